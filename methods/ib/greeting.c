/* SPDX-License-Identifier: BSD-3-Clause
 *
 * greeting.c - what two processes say first over an exchange.
 *
 * Both sides send an *opening*: version, provider, address family, and a status, which is not 0
 * where the sender refuses. The side that dialled sends first. An opening says nothing that a
 * stranger may not know. Over shm each side then asks the kernel whose process has the other end.
 * Only if all fits, both send a *greeting*: token, wake-up flag, the endpoint's name; the dialler
 * first, again. The other side's greeting has a status, too: it may lack memory for the peer.
 *
 * The first line of an opening is followed by an empty one, so that an HTTP server answers at once.
 * A listener that reads something else answers with an opening that refuses, and closes.
 *
 * Runs in the driver.
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
    GREETING_BYTES = 160,
    GREETING_STATUS = 0,
    GREETING_NAME_SIZE = 4,
    GREETING_TOKEN = 8,
    GREETING_RECORD = 16,
    GREETING_NAME = 32,
    REFUSED_MS = 1000 /* the time for a refused peer to read why */
};

_Static_assert(OPENING_PROVIDER + IB_PROVIDER_BYTES == OPENING_BYTES, "the provider stands last");
_Static_assert(GREETING_NAME + IB_NAME_BYTES == GREETING_BYTES, "the name stands last");
static const uint8_t magic[OPENING_VERSION] = "BMI ib\r\n\r\n";

struct ib_greeting {
    bool opened;  /* the other side's opening was good */
    bool refused; /* the other side was told so: what it still sends is dropped */
    uint32_t have;
    uint8_t bytes[GREETING_BYTES];
};

static const char *host_of(const struct ib_link *link)
{
    return link->base.host ? link->base.host : "a peer";
}

/* ---- sending ----------------------------------------------------------------------------------
 */

/* They are the first bytes on the wire: the socket has room. */
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

static int greeting_send(const struct ib_link *link)
{
    const struct ib_state *state = ib_state_of(link);
    const struct ib_endpoint *endpoint = link->endpoint;
    uint64_t token = htole64(link->token);
    uint8_t greeting[GREETING_BYTES] = {0};
    ib_number_put(greeting + GREETING_NAME_SIZE, (uint32_t)endpoint->name_size);
    memcpy(greeting + GREETING_TOKEN, &token, 8);
    if (state->doorbell)
        ib_doorbell_record(state->doorbell, greeting + GREETING_RECORD);
    memcpy(greeting + GREETING_NAME, endpoint->name, endpoint->name_size);
    return bytes_send(link, greeting, sizeof(greeting));
}

void ib_greeting_refuse(struct ib_link *link, int status)
{
    uint8_t greeting[GREETING_BYTES] = {0};
    if (!link->greeting->opened) {
        opening_send(link, status);
        return;
    }
    ib_number_put(greeting + GREETING_STATUS, (uint32_t)-status);
    bytes_send(link, greeting, sizeof(greeting));
}

/* Ends a link that is not up. The core knows only those that we dialled. A peer that dialled us is
 * told why; a close with unread bytes would take that back, so those are read first. */
static void greeting_fail(struct ib_link *link, int status)
{
    if (link->dialled) {
        ib_link_end(link, status);
        return;
    }
    if (link->greeting->refused || status == -ECONNRESET) {
        ib_link_forget(link);
        return;
    }
    ib_greeting_refuse(link, status);
    shutdown(link->watch.fd, SHUT_WR);
    link->greeting->refused = true;
    bmi_method_timer_set(&link->timer, REFUSED_MS);
}

void ib_greeting_expired(struct ib_link *link)
{
    if (link->greeting->refused)
        ib_link_forget(link);
    else
        greeting_fail(link, -ETIMEDOUT);
}

/* ---- the opening ------------------------------------------------------------------------------
 */

/* What sends such bytes instead of an opening. */
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
    const struct ib_greeting *greeting = link->greeting;
    size_t size = greeting->have < sizeof(magic) ? greeting->have : sizeof(magic);
    if (memcmp(greeting->bytes, magic, size) == 0)
        return 0;
    bmi_method_log(BMI_LOG_WARN, &link->base,
                   "%s: %s does not speak this protocol, but: %s. Check its port and its scheme",
                   ib_state_of(link)->kind->scheme, host_of(link),
                   stranger(greeting->bytes, greeting->have));
    return -EPROTO;
}

/* The other side's status, if that is one that it may have; 0: it does not refuse. */
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

/* Whether the other side's opening fits ours. Logs what does not. */
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

/* Processes that share memory must be of one user, by the kernel's word. */
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

/* The local address by which the other side is reached tells which endpoint is ours. */
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
    int status = opening_check(link, link->greeting->bytes);
    if (status == 0)
        status = user_check(link);
    if (status == 0 && !link->dialled)
        status = endpoint_choose(link);
    if (status)
        return status;
    if (!link->dialled) {
        status = opening_send(link, 0);
        link->greeting->opened = true;
        return status;
    }
    link->greeting->opened = true;
    status = ib_token_make(link);
    return status ? status : greeting_send(link);
}

/* ---- the greeting -----------------------------------------------------------------------------
 */

/* What a greeting says that cannot be; NULL: nothing. A name that is text ends within its bytes:
 * the provider asks no size of it. */
static const char *nonsense(const struct ib_link *link, const uint8_t *greeting)
{
    const struct ib_state *state = ib_state_of(link);
    uint32_t size = ib_number_get(greeting + GREETING_NAME_SIZE);
    uint64_t record;
    memcpy(&record, greeting + GREETING_RECORD, sizeof(record));
    if (size == 0 || size > IB_NAME_BYTES)
        return "an endpoint's name of no possible size";
    if (state->fabric->shared ? !memchr(greeting + GREETING_NAME, '\0', size)
                              : size != link->endpoint->name_size)
        return "an endpoint's name that is none";
    if ((state->doorbell != NULL) != (record != 0))
        return record != 0 ? "a page to share, which we need not" : "no page to share";
    return NULL;
}

/* Whether the other end of the exchange is a link's of this process, too. */
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

/* The other side's wake-up flag. It names the process whose memory our gets read: ours only if that
 * is the other side. */
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

/* Opens what the other side shares with us. The link has it, also if only in part. */
static int peer_open(struct ib_link *link, uint8_t *greeting)
{
    struct ib_state *state = ib_state_of(link);
    struct ib_doorbell *doorbell = NULL;
    struct ib_peer *peer = NULL;
    uint8_t *name = greeting + GREETING_NAME;
    uint32_t size = ib_number_get(greeting + GREETING_NAME_SIZE);
    int status = doorbell_take(link, greeting + GREETING_RECORD, &doorbell);
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

/* The other side is known: its endpoint, its token, its wake-up flag. */
static int greeting_take(struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    uint8_t *greeting = link->greeting->bytes;
    uint64_t token;
    int status = status_get(link, greeting + GREETING_STATUS);
    if (status)
        return status;
    const char *what = nonsense(link, greeting);
    if (what) {
        bmi_method_log(BMI_LOG_WARN, &link->base, "%s: %s greets with %s", state->kind->scheme,
                       host_of(link), what);
        return -EPROTO;
    }
    memcpy(&token, greeting + GREETING_TOKEN, 8);
    status = peer_open(link, greeting);
    ib_lock(&link->send_lock);
    link->their_token = le64toh(token);
    ib_unlock(&link->send_lock);
    return status;
}

/* Both sides know each other. Returns 0 or an errno. */
static int greeting_end(struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    int status = greeting_take(link);
    if (status == 0 && !link->dialled) {
        status = ib_token_make(link);
        if (status == 0)
            status = greeting_send(link);
        if (status == 0)
            status = bmi_method_link_accepted(&link->base);
    }
    if (status)
        return status;
    ib_greeting_free(link);
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
    const struct ib_greeting *greeting = link->greeting;
    if (!link->dialled)
        return -ECONNRESET;
    if (greeting->opened || greeting->have > 0)
        return -ECONNREFUSED;
    bmi_method_log(BMI_LOG_WARN, &link->base,
                   "%s: %s closed the connection without an answer. Is it a server of this scheme?",
                   ib_state_of(link)->kind->scheme, host_of(link));
    return -EPROTO;
}

/* Reads from the socket. Returns 1 if an opening or a greeting is whole, 0 if not, or an errno. */
static int bytes_read(struct ib_link *link)
{
    struct ib_greeting *greeting = link->greeting;
    uint32_t whole = greeting->opened ? GREETING_BYTES : OPENING_BYTES;
    ssize_t got = recv(link->watch.fd, greeting->bytes + greeting->have, whole - greeting->have,
                       MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : link->dialled ? -errno : -ECONNRESET;
    if (got == 0)
        return ended(link);
    greeting->have += (uint32_t)got;
    if (greeting->refused) {
        greeting->have = 0;
        return 0;
    }
    int status = greeting->opened ? 0 : magic_check(link);
    return status ? status : greeting->have == whole;
}

void ib_greeting_read(struct ib_link *link)
{
    struct ib_greeting *greeting = link->greeting;
    int status = bytes_read(link);
    if (status == 1) {
        struct ib_state *state = ib_state_of(link);
        greeting->have = 0;
        ib_doorbell_spare_lend(state->doorbell);
        status = greeting->opened ? greeting_end(link) : opening_take(link);
        ib_doorbell_spare_take(state->doorbell);
    }
    if (status)
        greeting_fail(link, status);
}

int ib_greeting_start(struct ib_link *link)
{
    link->greeting = calloc(1, sizeof(*link->greeting));
    if (!link->greeting)
        return -ENOMEM;
    int status = link->dialled ? endpoint_choose(link) : 0;
    if (status == 0 && link->dialled)
        status = opening_send(link, 0);
    if (status == 0)
        status = ib_exchange_watch(link, EPOLLIN | EPOLLRDHUP);
    if (status)
        return status;
    ib_lock(&link->send_lock);
    link->phase = IB_GREETING;
    ib_unlock(&link->send_lock);
    bmi_method_timer_set(&link->timer, (uint64_t)bmi_method_setting("connect_timeout_ms"));
    return 0;
}

void ib_greeting_free(struct ib_link *link)
{
    free(link->greeting);
    link->greeting = NULL;
}
