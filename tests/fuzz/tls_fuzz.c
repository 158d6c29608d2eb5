/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_fuzz.c - two sides of a TLS connection, and the input between them. Both sides are links of
 * the tls method with a shared key; the bytes of each lie in a pair of sockets of its own, and get
 * to the other side only by a command of the input. It may carry them in pieces, change one, add
 * some, end the stream, let a side send frames, or have the keys updated; at any time, before the
 * handshake is complete and after it. The server's frames go on to the receiver of frames and to a
 * small core (fake_core.h).
 *
 * For every input: no crash, and each side gets what the other has sent, or less of it. Without
 * harm it gets all. Random numbers come from the test, so that an input always does the same.
 */
#define OPENSSL_SUPPRESS_DEPRECATED /* RAND_set_rand_method */

#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "methods/stream/fake_core.h"
#include "methods/tls/tls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { UPDATES_MOST = 32 }; /* of keys without data that a side accepts */
enum { MOST = 1 << 20, BODY = 1 << 16, PIECE = 65536, DRIVES = 4, ROUNDS = 16 };

struct side {
    struct stream_link *link; /* NULL: it has gone */
    int wire;                 /* the other end of its socket */
    bool secure, failed;
    uint8_t *sent; /* what it sent: bodies that are kept of the client, all of the server */
    size_t sent_bytes, got;
};

static struct {
    const uint8_t *next, *end;
    struct side server, client;
    bool harmed;
    unsigned frames, updates; /* of the client; of keys */
} session;

static uint8_t *into, body[BODY], carried[PIECE], got[PIECE];
static uint64_t random_state;

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* ---- random numbers ------------------------------------------------------------------------- */

static int random_bytes(unsigned char *to, int size)
{
    for (int i = 0; i < size; i++) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        to[i] = (unsigned char)(random_state >> 56);
    }
    return 1;
}

static int random_status(void)
{
    return 1;
}

/* ---- the input ------------------------------------------------------------------------------ */

static bool more(void)
{
    return session.next < session.end;
}

static uint8_t take(void)
{
    return more() ? *session.next++ : 0;
}

static size_t take_number(void)
{
    size_t high = take();
    return high << 8 | take();
}

/* ---- the two sides -------------------------------------------------------------------------- */

static bool is_server(const struct side *side)
{
    return side == &session.server;
}

static void side_make(struct side *side)
{
    int ends[2];
    uint8_t *sent = side->sent;
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    *side = (struct side){.sent = sent, .wire = ends[1]};
    side->link = stream_link_new(fake_state, ends[0]);
    require(side->link != NULL && tls_bytes.start(side->link) == 0);
    side->link->accepted = true;
    if (is_server(side))
        return;
    struct tls_link *tls = tls_link_of(side->link);
    tls->role = TLS_CLIENT;
    strcpy(tls->making->host, "localhost");
}

/* Each side is a process of its own to the other: it has another name. */
static void handshake_step(struct side *side)
{
    struct tls_state *state = fake_state;
    memset(state->instance, is_server(side) ? 1 : 2, sizeof(state->instance));
    int result = tls_bytes.handshake(side->link);
    side->failed = result != 0 && result != -EAGAIN && result != -ENOBUFS;
    side->secure = result == 0;
    if (!side->secure || !is_server(side))
        return;
    fake_accepted_count = 0;
    fake_accepted[0].into = into;
    require(bmi_method_link_accepted(&side->link->base) == 0);
    stream_accepted(side->link);
}

static void server_drive(struct side *side)
{
    for (int i = 0; i < DRIVES || (fake_accepted[0].link && side->link->unread); i++)
        fake_drive(0);
    if (fake_accepted[0].link == NULL)
        side->link = NULL;
}

/* The client's stream is compared as it comes. */
static void client_read(struct side *side)
{
    struct iovec piece = {got, sizeof got};
    ssize_t have;
    do {
        have = tls_bytes.read(side->link, &piece, 1);
        for (ssize_t i = 0; i < have; i++)
            require(side->got + (size_t)i < session.server.sent_bytes &&
                    got[i] == session.server.sent[side->got + (size_t)i]);
        side->got += have > 0 ? (size_t)have : 0;
    } while (have > 0 && tls_bytes.unread(side->link));
    side->failed |= have == 0 || (have < 0 && have != -EAGAIN);
    if (tls_bytes.unsent(side->link))
        tls_bytes.write(side->link, NULL, 0);
}

static void step(struct side *side)
{
    if (side->link == NULL || side->failed)
        return;
    if (!side->secure)
        handshake_step(side);
    else if (is_server(side))
        server_drive(side);
    else
        client_read(side);
}

/* ---- between them --------------------------------------------------------------------------- */

static void carry(struct side *from, struct side *to, size_t most, size_t changed, uint8_t change)
{
    ssize_t have = recv(from->wire, carried, most < PIECE ? most : PIECE, 0);
    if (have <= 0)
        return;
    if (change != 0) {
        carried[changed % (size_t)have] ^= change;
        session.harmed = true;
    }
    /* a full socket loses bytes */
    session.harmed |= send(to->wire, carried, (size_t)have, MSG_NOSIGNAL) != have;
}

static void carry_all(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        step(&session.client);
        carry(&session.client, &session.server, PIECE, 0, 0);
        step(&session.server);
        carry(&session.server, &session.client, PIECE, 0, 0);
    }
}

static void add(struct side *to)
{
    size_t size = take() + 1u, left = (size_t)(session.end - session.next);
    if (size > left)
        size = left;
    session.harmed |= size > 0;
    send(to->wire, session.next, size, MSG_NOSIGNAL);
    session.next += size;
}

/* A frame, whose body is partly kept by its receiver. */
static void say(struct side *from, const uint8_t *header, size_t length, size_t kept)
{
    size_t header_size = bmi_frame_header_size(*header);
    struct iovec pieces[3] = {{(void *)(uintptr_t)header, header_size}};
    size_t cut = length > 0 ? take_number() % (length + 1) : 0;
    pieces[1] = (struct iovec){body, cut};
    pieces[2] = (struct iovec){body + cut, length - cut};
    uint8_t *sent = from->sent + from->sent_bytes;
    ssize_t accepted = tls_bytes.write(from->link, pieces, 3);
    require(accepted < 0 || (size_t)accepted == header_size + length);
    if (accepted < 0)
        return;
    if (is_server(from)) {
        memcpy(sent, header, header_size);
        memcpy(sent + header_size, body, length);
        from->sent_bytes += header_size + length;
    } else {
        memcpy(sent, body, kept);
        from->sent_bytes += kept;
        session.frames++;
    }
}

static void frame(struct side *from)
{
    uint8_t header[BMI_FRAME_HEADER], shape = take();
    size_t length = take_number(), kept = shape & 1 ? length : length / 2;
    if (!from->secure || from->link == NULL || from->failed ||
        from->sent_bytes + length + sizeof header > MOST)
        return;
    for (size_t i = 0; i < length; i += 256)
        body[i] = take();
    fake_header_write(header, shape >> 1, length, kept);
    if (!is_server(from) && shape == 255) { /* no frame: it ends the connection */
        header[1] ^= 1;
        session.harmed = true;
    }
    say(from, header, length, kept);
}

static void key_update(struct side *side, bool answered)
{
    session.harmed |= ++session.updates > UPDATES_MOST;
    if (side->secure && side->link != NULL)
        SSL_key_update(tls_link_of(side->link)->ssl,
                       answered ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED);
}

static void end(struct side *side, bool announced)
{
    session.harmed = true;
    if (!announced)
        shutdown(side->wire, SHUT_WR);
    else if (side->secure && side->link != NULL && !is_server(side)) {
        tls_bytes.end(side->link);
        tls_bytes.write(side->link, NULL, 0);
        side->failed = true; /* it does nothing more */
    }
}

/* ---- one session ---------------------------------------------------------------------------- */

static void command(void)
{
    uint8_t what = take();
    struct side *one = what & 128 ? &session.server : &session.client;
    struct side *other = what & 128 ? &session.client : &session.server;
    switch (what & 15) {
    case 0:
    case 1:
        step(one);
        break;
    case 2:
    case 3:
        carry(one, other, take_number(), 0, 0);
        break;
    case 4:
        carry(one, other, PIECE, take_number(), take());
        break;
    case 5:
        add(one);
        break;
    case 6:
        key_update(one, what & 16);
        break;
    case 7:
        end(one, what & 16);
        break;
    case 8:
        carry_all();
        break;
    case 9:
        fake_tls_key_records = what & 16 ? 1 : 1 << 24;
        break;
    default:
        frame(one);
        break;
    }
}

static void start(void)
{
    static const char key[] = "fuzz:000102030405060708090a0b0c0d0e0f\n";
    static const RAND_METHOD numbers = {.bytes = random_bytes,
                                        .pseudorand = random_bytes,
                                        .status = random_status};
    static char name[32];
    int file = memfd_create("psk", 0);
    require(file >= 0 && fchmod(file, S_IRUSR | S_IWUSR) == 0);
    require(write(file, key, sizeof key - 1) == sizeof key - 1);
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    fake_tls_psk = name;
    fake_quiet = true;
    fake_method = &bmi__method_tls;
    require(RAND_set_rand_method(&numbers) == 1);
    fake_start();
    into = malloc(MOST);
    session.server.sent = malloc(MOST);
    session.client.sent = malloc(MOST);
    require(into && session.server.sent && session.client.sent);
}

static void side_end(struct side *side)
{
    close(side->wire);
    if (side->link != NULL && side->secure && is_server(side)) {
        for (int i = 0; i < 100 && side->link != NULL; i++)
            server_drive(side);
        require(side->link == NULL);
    } else if (side->link != NULL) {
        tls_bytes.free(side->link);
        stream_link_forget(side->link);
    }
}

static void check(void)
{
    const struct fake_owner *owner = &fake_accepted[0];
    if (!session.server.secure)
        return;
    require(owner->received <= session.client.sent_bytes);
    require(memcmp(into, session.client.sent, owner->received) == 0 ||
            owner->bodies < owner->frames);
    require((unsigned)owner->frames <= session.frames);
}

static void check_whole(void)
{
    for (int i = 0; i < 4; i++)
        carry_all();
    if (session.harmed)
        return;
    require(session.server.secure && session.client.secure);
    require((unsigned)fake_accepted[0].bodies + 0u <= session.frames);
    require(fake_accepted[0].received == session.client.sent_bytes);
    require(memcmp(into, session.client.sent, session.client.sent_bytes) == 0);
    require(session.client.got == session.server.sent_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (into == NULL)
        start();
    random_state = 1;
    session.next = data;
    session.end = data + size;
    session.harmed = false;
    session.frames = session.updates = 0;
    fake_tls_key_records = 1 << 24;
    side_make(&session.server);
    side_make(&session.client);
    if (take() & 1)
        carry_all();
    while (more()) {
        command();
        check();
    }
    check_whole();
    side_end(&session.client);
    side_end(&session.server);
    return 0;
}
