/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bytes_test.c - the layer against a peer with good credentials that sends what it should not:
 * messages of TLS without end, and an end of the stream together with data. The peer is an SSL
 * object of the test with a shared key, on a plain socket; it never reads.
 */
#include <CUnit/Basic.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "methods/stream/fake_core.h"
#include "methods/tls/tls.h"

#define WIRE "test.00000000000000000000000000000001" /* the key's identity, and a process */

enum { INTO_BYTES = 1 << 20, DRIVES = 500, BODY = 64, SMALL = 4096, RECORD = 16384 };

static const unsigned char key[] = "0123456789abcdef";
static uint8_t into[INTO_BYTES];
static SSL_CTX *context;
static SSL *peer;
static int wire;
static struct fake_owner *owner;

/* ---- the peer ------------------------------------------------------------------------------- */

static int key_use(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *length,
                   SSL_SESSION **out)
{
    static const unsigned char label[] = "libbmi tls psk 1 " WIRE, cipher[] = {0x13, 0x01};
    unsigned char secret[32];
    unsigned int size = sizeof(secret);
    (void)digest;
    HMAC(EVP_sha256(), key, sizeof(key) - 1, label, sizeof(label) - 1, secret, &size);
    *id = (const unsigned char *)WIRE;
    *length = sizeof(WIRE) - 1;
    *out = SSL_SESSION_new();
    return SSL_SESSION_set1_master_key(*out, secret, size) == 1 &&
           SSL_SESSION_set_cipher(*out, SSL_CIPHER_find(ssl, cipher)) == 1 &&
           SSL_SESSION_set_protocol_version(*out, TLS1_3_VERSION) == 1;
}

static void key_file_make(void)
{
    static char name[32];
    static const char line[] = "test:30313233343536373839616263646566\n";
    int file = memfd_create("psk", 0);
    if (fchmod(file, S_IRUSR | S_IWUSR) < 0 || write(file, line, sizeof(line) - 1) < 0)
        abort();
    snprintf(name, sizeof(name), "/proc/self/fd/%d", file);
    fake_tls_psk = name;
}

static void peer_connect(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int small = SMALL;
    wire = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(wire, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    CU_ASSERT_FATAL(connect(wire, (struct sockaddr *)&to, sizeof(to)) == 0);
    fcntl(wire, F_SETFL, O_NONBLOCK);
    peer = SSL_new(context);
    SSL_set_fd(peer, wire);
    SSL_set_connect_state(peer);
    CU_ASSERT_FATAL(FAKE_UNTIL(SSL_do_handshake(peer) == 1));
    fake_accepted[0].into = into;
    CU_ASSERT_FATAL(FAKE_UNTIL(fake_accepted_count == 1));
    owner = &fake_accepted[0];
}

/* What the peer says from here on gathers, and leaves in one write. */
static void gather(void)
{
    SSL_set0_wbio(peer, BIO_new(BIO_s_mem()));
}

/* Returns false if not all of it went. */
static bool leave(void)
{
    char *bytes;
    long size = BIO_get_mem_data(SSL_get_wbio(peer), &bytes);
    ssize_t sent = send(wire, bytes, (size_t)size, MSG_NOSIGNAL);
    (void)BIO_reset(SSL_get_wbio(peer));
    return sent == size;
}

static void say_data(const void *bytes, size_t size)
{
    CU_ASSERT_EQUAL(SSL_write(peer, bytes, (int)size), (int)size);
}

static void say_updates(int count, int kind)
{
    for (int i = 0; i < count; i++) {
        CU_ASSERT_EQUAL(SSL_key_update(peer, kind), 1);
        CU_ASSERT_EQUAL(SSL_do_handshake(peer), 1);
    }
}

/* The header of a frame, of whose body nothing has been said. */
static void say_header(size_t length)
{
    uint8_t header[BMI_FRAME_HEADER];
    fake_header_write(header, 0, length, length);
    say_data(header, sizeof(header));
}

/* ---- the method ----------------------------------------------------------------------------- */

static void setup(void)
{
    char bound[64];
    fake_method = &bmi__method_tls;
    fake_send_buffer = SMALL;
    fake_peer_timeout_ms = 600000; /* the peer's silence is not the subject; valgrind is slow */
    context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_psk_use_session_callback(context, key_use);
    fake_start();
    peer_connect(fake_listen(bound, sizeof(bound)));
    gather();
}

static void teardown(void)
{
    SSL_free(peer);
    SSL_CTX_free(context);
    ERR_clear_error();
    close(wire);
    CU_ASSERT_EQUAL(fake_stop(), 0);
}

/* Drives so long, and no longer, that the link would have ended. */
static bool ends(void)
{
    for (int i = 0; i < DRIVES && owner->downs == 0; i++)
        fake_drive(5);
    return owner->downs == 1;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void updates_without_data_end_the_link(void)
{
    say_header(BODY);
    say_updates(1000, SSL_KEY_UPDATE_NOT_REQUESTED);
    say_data("", 1);
    CU_ASSERT_TRUE(leave());
    CU_ASSERT_TRUE(ends());
    CU_ASSERT_EQUAL(owner->status, -EPROTO);
    CU_ASSERT_EQUAL(owner->bodies, 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(fake_logged, "no data"));
}

static void updates_with_data_pause_the_read(void)
{
    enum { AT_ONCE = 4 }; /* passes of one drive */
    uint8_t body[BODY];
    const struct stream_link *link = stream_link_of(owner->link);
    say_header(BODY);
    for (int i = 0; i < BODY; i++) {
        body[i] = (uint8_t)(i + 1);
        say_updates(16, SSL_KEY_UPDATE_NOT_REQUESTED);
        say_data(&body[i], 1);
    }
    CU_ASSERT_TRUE(leave());
    CU_ASSERT_TRUE_FATAL(FAKE_UNTIL(owner->frames == 1));
    CU_ASSERT_TRUE(link->body_left >= BODY - AT_ONCE);
    uint64_t most = 0;
    for (int i = 0; i < DRIVES && owner->bodies == 0; i++) {
        uint64_t before = link->body_left;
        fake_drive(5);
        most = before - link->body_left > most ? before - link->body_left : most;
    }
    CU_ASSERT_EQUAL(owner->bodies, 1);
    CU_ASSERT_EQUAL(memcmp(into, body, BODY), 0);
    CU_ASSERT_TRUE(most <= AT_ONCE);
    CU_ASSERT_EQUAL(owner->downs, 0);
}

static void unread_answers_end_the_link(void)
{
    enum { ROUNDS = 8000, ROUND = 16 };
    int rounds = 0;
    say_header((size_t)ROUNDS);
    for (; rounds < ROUNDS && owner->downs == 0; rounds++) {
        say_updates(ROUND, SSL_KEY_UPDATE_REQUESTED);
        say_data("", 1);
        CU_ASSERT_TRUE_FATAL(leave() || owner->downs > 0);
        fake_drive(0);
    }
    CU_ASSERT_TRUE(ends());
    CU_ASSERT_EQUAL(owner->status, -EPROTO);
    CU_ASSERT_PTR_NOT_NULL(strstr(fake_logged, "answers"));
}

static void an_end_behind_data_is_noticed(void)
{
    static const uint8_t body[BODY] = {1};
    say_header(BODY);
    say_data(body, BODY);
    SSL_shutdown(peer);
    CU_ASSERT_TRUE(leave());
    CU_ASSERT_TRUE(ends());
    CU_ASSERT_EQUAL(owner->status, 0);
    CU_ASSERT_EQUAL(owner->bodies, 1);
}

static void records_that_left_are_counted(void)
{
    struct stream_link *link = stream_link_of(owner->link);
    struct iovec all = {into, INTO_BYTES};
    uint32_t records = tls_link_of(link)->records;
    ssize_t moved = 0;
    for (int i = 0; i < DRIVES; i++) {
        moved = tls_kernel_send(link, &all, 1);
        records += moved > 0 ? (uint32_t)((moved + RECORD - 1) / RECORD) : 0;
    }
    CU_ASSERT_EQUAL(moved, -EAGAIN);
    CU_ASSERT_EQUAL(tls_link_of(link)->records, records);
}

int main(void)
{
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    key_file_make();
    CU_pSuite suite = CU_add_suite_with_setup_and_teardown("bytes", NULL, NULL, setup, teardown);
    CU_ADD_TEST(suite, updates_without_data_end_the_link);
    CU_ADD_TEST(suite, updates_with_data_pause_the_read);
    CU_ADD_TEST(suite, unread_answers_end_the_link);
    CU_ADD_TEST(suite, an_end_behind_data_is_noticed);
    CU_ADD_TEST(suite, records_that_left_are_counted);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failures > 0;
}
