/* SPDX-License-Identifier: BSD-3-Clause
 *
 * handshake.c - the handshake over a new exchange.
 *
 * Both sides send an *opening*: version, provider, address family, and a status, which is not 0 if
 * the sender refuses. The side that dialled sends first. An opening has no secrets: any process may
 * read it. Over shm each side then asks the kernel for the user of the process at the other end.
 * Only if all of that matches, both send a *hello*: token, wake-up flag, the endpoint's name; the
 * dialler first, again. The other side's hello has a status, too: it may lack memory for the peer.
 *
 * The first line of an opening is followed by an empty one, so that an HTTP server answers at once.
 * A listener that reads other bytes answers with an opening that refuses, and closes.
 *
 * The poller runs all of it.
 */
#include <endian.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ib.h"

enum {
    OPENING_BYTES = 96,
    OPENING_VERSION = 12,
    OPENING_STATUS = 16,
    OPENING_FORMAT = 20,
    OPENING_MESSAGE = 24,
    OPENING_PROVIDER = 32,
    HELLO_BYTES = 160,
    HELLO_STATUS = 0,
    HELLO_NAME_SIZE = 4,
    HELLO_TOKEN = 8,
    HELLO_RECORD = 16,
    HELLO_NAME = 32,
    REFUSED_MS = 1000 /* the time for a refused peer to read the reason */
};

_Static_assert(OPENING_PROVIDER + IB_PROVIDER_BYTES == OPENING_BYTES, "the provider stands last");
_Static_assert(HELLO_NAME + IB_NAME_BYTES == HELLO_BYTES, "the name stands last");
static const uint8_t magic[OPENING_VERSION] = "BMI ib\r\n\r\n";

struct ib_handshake {
    bool opened;  /* the other side's opening was valid */
    bool refused; /* we have sent a refusal: further bytes are dropped */
    uint32_t have;
    uint8_t bytes[HELLO_BYTES];
};

static const char *host_of(const struct ib_link *link)
{
    return link->base.host ? link->base.host : "a peer";
}

/* ---- sending ----------------------------------------------------------------------------------
 */

/* Sends the first bytes on the connection: the socket has room for them. */
static int bytes_send(const struct ib_link *link, const uint8_t *bytes, size_t size)
{
    ssize_t sent = send(link->watch.fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent == (ssize_t)size ? 0 : sent < 0 ? -errno : -ENOBUFS;
}

static int opening_send(const struct ib_link *link, int status)
{
    const struct ib_state *state = ib_state_of(link);
    uint8_t opening[OPENING_BYTES] = {0};
    memcpy(opening, magic, sizeof(magic));
    ib_number_put(opening + OPENING_VERSION, IB_VERSION);
    ib_number_put(opening + OPENING_STATUS, (uint32_t)-status);
    ib_number_put(opening + OPENING_FORMAT, state->fabric->info->addr_format);
    ib_number_put(opening + OPENING_MESSAGE, IB_MESSAGE_BYTES);
    memcpy(opening + OPENING_PROVIDER, state->provider, strlen(state->provider) + 1);
    return bytes_send(link, opening, sizeof(opening));
}

static int hello_send(const struct ib_link *link)
{
    const struct ib_state *state = ib_state_of(link);
    const struct ib_endpoint *endpoint = link->endpoint;
    uint64_t token = htole64(link->token);
    uint8_t hello[HELLO_BYTES] = {0};
    ib_number_put(hello + HELLO_NAME_SIZE, (uint32_t)endpoint->name_size);
    memcpy(hello + HELLO_TOKEN, &token, 8);
    if (state->doorbell)
        ib_doorbell_record(state->doorbell, hello + HELLO_RECORD);
    memcpy(hello + HELLO_NAME, endpoint->name, endpoint->name_size);
    return bytes_send(link, hello, sizeof(hello));
}

void ib_handshake_refuse(struct ib_link *link, int status)
{
    uint8_t hello[HELLO_BYTES] = {0};
    if (!link->handshake->opened) {
        opening_send(link, status);
        return;
    }
    ib_number_put(hello + HELLO_STATUS, (uint32_t)-status);
    bytes_send(link, hello, sizeof(hello));
}

/* Ends a link that is not up. The core knows only links that we dialled. A peer that dialled us
 * gets the reason; a close with unread bytes would discard it, so these are read first. */
static void handshake_fail(struct ib_link *link, int status)
{
    if (link->dialled) {
        ib_link_end(link, status);
        return;
    }
    if (link->handshake->refused || status == -ECONNRESET) {
        ib_link_forget(link);
        return;
    }
    ib_handshake_refuse(link, status);
    shutdown(link->watch.fd, SHUT_WR);
    link->handshake->refused = true;
    bmi_method_timer_set(&link->timer, REFUSED_MS);
}

void ib_handshake_expired(struct ib_link *link)
{
    if (link->handshake->refused)
        ib_link_forget(link);
    else
        handshake_fail(link, -ETIMEDOUT);
}

/* ---- the opening ------------------------------------------------------------------------------
 */

/* The kind of service that sends such bytes instead of an opening. */
static const char *stranger(const uint8_t *bytes, size_t size)
{
    static const struct {
        const char *begin, *name;
    } known[] = {{"HTTP/", "an HTTP server"},
                 {"GET ", "an HTTP client"},
                 {"POST ", "an HTTP client"},
                 {"HEAD ", "an HTTP client"},
                 {"PUT ", "an HTTP client"},
                 {"SSH-", "an SSH server or client"},
                 {"\x15\x03", "TLS"},
                 {"\x16\x03", "TLS"},
                 {"BMI ib\r\n", "another version of this protocol"}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (size >= strlen(known[i].begin) &&
            memcmp(bytes, known[i].begin, strlen(known[i].begin)) == 0)
            return known[i].name;
    if (size >= 4 && bytes[2] == 0x1F && bytes[3] == 0xB3) /* docs/wire-protocol.md */
        return "BMI's method tcp";
    return "another protocol";
}

/* Whether the bytes received may begin an opening. */
static int magic_check(const struct ib_link *link)
{
    const struct ib_handshake *handshake = link->handshake;
    size_t size = handshake->have < sizeof(magic) ? handshake->have : sizeof(magic);
    if (memcmp(handshake->bytes, magic, size) == 0)
        return 0;
    bmi_method_log(BMI_LOG_WARN, &link->base,
                   "%s: %s does not speak this protocol, but: %s. Check its port and its scheme",
                   ib_state_of(link)->kind->scheme, host_of(link),
                   stranger(handshake->bytes, handshake->have));
    return -EPROTO;
}

/* The other side's status, or an errno if that is invalid; 0: it does not refuse. */
static int status_get(const struct ib_link *link, const uint8_t *from)
{
    static const int statuses[] = {EACCES,  EPERM,           ENOMEM,       EMFILE,   ENFILE,
                                   ENOBUFS, EPROTONOSUPPORT, ECONNREFUSED, ETIMEDOUT};
    uint32_t status = ib_number_get(from);
    int known = status ? -EPROTO : 0;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
        if (status == (uint32_t)statuses[i])
            known = -statuses[i];
    if (known)
        bmi_method_log(BMI_LOG_WARN, &link->base, "%s: %s refuses us: %s",
                       ib_state_of(link)->kind->scheme, host_of(link), bmi_status_string(known));
    return known;
}

/* Whether the other side's opening matches ours. Logs the difference. */
static int opening_check(const struct ib_link *link, const uint8_t *opening)
{
    const struct ib_state *state = ib_state_of(link);
    const char *scheme = state->kind->scheme;
    const char *provider = (const char *)opening + OPENING_PROVIDER;
    uint32_t version = ib_number_get(opening + OPENING_VERSION);
    if (version != IB_VERSION) {
        bmi_method_log(BMI_LOG_WARN, &link->base,
                       "%s: %s speaks version %u of the exchange, we speak %d", scheme,
                       host_of(link), version, IB_VERSION);
        return -EPROTONOSUPPORT;
    }
    if (memchr(provider, '\0', IB_PROVIDER_BYTES) == NULL ||
        strcmp(provider, state->provider) != 0) {
        bmi_method_log(BMI_LOG_WARN, &link->base,
                       "%s: %s uses another provider than %s: choose one scheme on both sides",
                       scheme, host_of(link), state->provider);
        return -EPROTONOSUPPORT;
    }
    if (ib_number_get(opening + OPENING_FORMAT) != state->fabric->info->addr_format) {
        bmi_method_log(BMI_LOG_WARN, &link->base,
                       "%s: the endpoint of %s has an address of another family than ours (IPv4, "
                       "IPv6): have the server listen, and be dialled, by one of one family",
                       scheme, host_of(link));
        return -EPROTONOSUPPORT;
    }
    if (ib_number_get(opening + OPENING_MESSAGE) != IB_MESSAGE_BYTES) {
        bmi_method_log(BMI_LOG_WARN, &link->base, "%s: %s has messages of another size", scheme,
                       host_of(link));
        return -EPROTO;
    }
    return status_get(link, opening + OPENING_STATUS);
}

/* Processes that share memory must be of one user, as the kernel reports it. */
static int user_check(const struct ib_link *link)
{
    const struct ib_state *state = ib_state_of(link);
    uid_t user = 0;
    if (!state->doorbell)
        return 0;
    int status = ib_socket_peer_user(link->watch.fd, &user);
    if (status == 0 && user == geteuid())
        return 0;
    if (status)
        bmi_method_log(BMI_LOG_WARN, &link->base, "%s: cannot find out whose process %s is: %s",
                       state->kind->scheme, host_of(link), strerror(-status));
    else
        bmi_method_log(BMI_LOG_WARN, &link->base,
                       "%s: the peer's process belongs to user %u, ours to user %u. This provider "
                       "connects processes of one user on one host",
                       state->kind->scheme, (unsigned)user, (unsigned)geteuid());
    return status == 0 || status == -ENOENT ? -EACCES : status;
}

/* Chooses our endpoint by the local address of the exchange. */
static int endpoint_choose(struct ib_link *link)
{
    char host[IB_HOST_BYTES];
    struct ib_endpoint *endpoint = NULL;
    int status = ib_socket_host(link->watch.fd, host, sizeof(host));
    if (status == 0)
        status = ib_endpoint_get(ib_state_of(link), host, &endpoint);
    ib_lock(&link->send_lock);
    link->endpoint = endpoint;
    ib_unlock(&link->send_lock);
    return status;
}

/* Takes the other side's opening. Returns 0 or an errno. */
static int opening_take(struct ib_link *link)
{
    int status = opening_check(link, link->handshake->bytes);
    if (status == 0)
        status = user_check(link);
    if (status == 0 && !link->dialled)
        status = endpoint_choose(link);
    if (status)
        return status;
    if (!link->dialled) {
        status = opening_send(link, 0);
        link->handshake->opened = true;
        return status;
    }
    link->handshake->opened = true;
    status = ib_token_make(link);
    return status ? status : hello_send(link);
}

/* ---- the hello -----------------------------------------------------------------------------
 */

/* The first invalid field of a hello; NULL: none. A name that is text must end within its bytes,
 * since the provider takes no size. */
static const char *nonsense(const struct ib_link *link, const uint8_t *hello)
{
    const struct ib_state *state = ib_state_of(link);
    uint32_t size = ib_number_get(hello + HELLO_NAME_SIZE);
    uint64_t record;
    memcpy(&record, hello + HELLO_RECORD, sizeof(record));
    if (size == 0 || size > IB_NAME_BYTES)
        return "an endpoint's name of no possible size";
    if (state->fabric->shared ? !memchr(hello + HELLO_NAME, '\0', size)
                              : size != link->endpoint->name_size)
        return "an endpoint's name that is none";
    if ((state->doorbell != NULL) != (record != 0))
        return record != 0 ? "a page to share, which we need not" : "no page to share";
    return NULL;
}

/* Whether the other end of the exchange belongs to a link of this process, too. */
static bool is_to_ourselves(const struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    ib_lock(&state->list_lock);
    const struct ib_link *other = state->links;
    while (other && !ib_sockets_joined(link->watch.fd, other->watch.fd))
        other = other->list_next;
    ib_unlock(&state->list_lock);
    return other != NULL;
}

/* Opens the other side's wake-up flag. It names the process whose memory our gets read. That may be
 * this process only if the link is to ourselves. */
static int doorbell_take(const struct ib_link *link, const uint8_t *record,
                         struct ib_doorbell **doorbell)
{
    int status = ib_doorbell_open(record, doorbell);
    if (status || !*doorbell || ib_doorbell_process(*doorbell) != getpid() || is_to_ourselves(link))
        return status;
    ib_doorbell_free(*doorbell);
    *doorbell = NULL;
    return -EPERM;
}

/* Opens the memory that the other side shares, and its endpoint. The link owns them, also if a step
 * fails. */
static int peer_open(struct ib_link *link, uint8_t *hello)
{
    struct ib_state *state = ib_state_of(link);
    struct ib_doorbell *doorbell = NULL;
    struct ib_peer *peer = NULL;
    uint8_t *name = hello + HELLO_NAME;
    uint32_t size = ib_number_get(hello + HELLO_NAME_SIZE);
    int status = doorbell_take(link, hello + HELLO_RECORD, &doorbell);
    if (status)
        bmi_method_log(BMI_LOG_WARN, &link->base, "%s: cannot share a page with the peer: %s",
                       state->kind->scheme, strerror(-status));
    else
        status = ib_socket_name_check(link, name, size);
    if (status == 0)
        status = ib_peer_get(state, name, size, &peer);
    if (status && status != -EACCES)
        bmi_method_log(BMI_LOG_WARN, &link->base, "%s: cannot reach the endpoint of %s: %s",
                       state->kind->scheme, host_of(link), strerror(-status));
    ib_lock(&link->send_lock);
    link->peer = peer;
    link->doorbell = doorbell;
    ib_unlock(&link->send_lock);
    return status;
}

/* Handles the other side's hello: its endpoint, its token, its wake-up flag. */
static int hello_take(struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    uint8_t *hello = link->handshake->bytes;
    uint64_t token;
    int status = status_get(link, hello + HELLO_STATUS);
    if (status)
        return status;
    const char *what = nonsense(link, hello);
    if (what) {
        bmi_method_log(BMI_LOG_WARN, &link->base, "%s: %s sends a hello with %s",
                       state->kind->scheme, host_of(link), what);
        return -EPROTO;
    }
    memcpy(&token, hello + HELLO_TOKEN, 8);
    status = peer_open(link, hello);
    ib_lock(&link->send_lock);
    link->their_token = le64toh(token);
    ib_unlock(&link->send_lock);
    return status;
}

/* The handshake is complete. Returns 0 or an errno. */
static int handshake_end(struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    int status = hello_take(link);
    if (status == 0 && !link->dialled) {
        status = ib_token_make(link);
        if (status == 0)
            status = hello_send(link);
        if (status == 0)
            status = bmi_method_link_accepted(&link->base);
    }
    if (status)
        return status;
    ib_handshake_free(link);
    ib_count(state, link->dialled ? BMI_COUNT_LINKS_OPENED : BMI_COUNT_LINKS_ACCEPTED, 1);
    if (link->dialled)
        bmi_method_link_up(&link->base);
    ib_link_open(link);
    return 0;
}

/* ---- reading ----------------------------------------------------------------------------------
 */

/* The connection has ended. A server that reads an opening and closes without an answer speaks
 * another protocol. */
static int ended(const struct ib_link *link)
{
    const struct ib_handshake *handshake = link->handshake;
    if (!link->dialled)
        return -ECONNRESET;
    if (handshake->opened || handshake->have > 0)
        return -ECONNREFUSED;
    bmi_method_log(BMI_LOG_WARN, &link->base,
                   "%s: %s closed the connection without an answer. Is it a server of this scheme?",
                   ib_state_of(link)->kind->scheme, host_of(link));
    return -EPROTO;
}

/* Reads from the socket. Returns 1 if an opening or a hello is whole, 0 if not, or an errno. */
static int bytes_read(struct ib_link *link)
{
    struct ib_handshake *handshake = link->handshake;
    uint32_t whole = handshake->opened ? HELLO_BYTES : OPENING_BYTES;
    ssize_t got = recv(link->watch.fd, handshake->bytes + handshake->have, whole - handshake->have,
                       MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : link->dialled ? -errno : -ECONNRESET;
    if (got == 0)
        return ended(link);
    handshake->have += (uint32_t)got;
    if (handshake->refused) {
        handshake->have = 0;
        return 0;
    }
    int status = handshake->opened ? 0 : magic_check(link);
    return status ? status : handshake->have == whole;
}

void ib_handshake_read(struct ib_link *link)
{
    struct ib_handshake *handshake = link->handshake;
    int status = bytes_read(link);
    if (status == 1) {
        struct ib_state *state = ib_state_of(link);
        handshake->have = 0;
        ib_doorbell_reserve_lend(state->doorbell);
        status = handshake->opened ? handshake_end(link) : opening_take(link);
        ib_doorbell_reserve_take(state->doorbell);
    }
    if (status)
        handshake_fail(link, status);
}

int ib_handshake_start(struct ib_link *link)
{
    link->handshake = calloc(1, sizeof(*link->handshake));
    if (!link->handshake)
        return -ENOMEM;
    int status = link->dialled ? endpoint_choose(link) : 0;
    if (status == 0 && link->dialled)
        status = opening_send(link, 0);
    if (status == 0)
        status = ib_exchange_watch(link, EPOLLIN | EPOLLRDHUP);
    if (status)
        return status;
    ib_lock(&link->send_lock);
    link->phase = IB_HANDSHAKE;
    ib_unlock(&link->send_lock);
    bmi_method_timer_set(&link->timer, (uint64_t)bmi_method_setting("connect_timeout_ms"));
    return 0;
}

void ib_handshake_free(struct ib_link *link)
{
    free(link->handshake);
    link->handshake = NULL;
}
