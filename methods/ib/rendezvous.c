/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rendezvous.c - the TCP connection beside each link: greeting, rings, goodbye, and its end.
 *
 * Greeting: both sides send 240 bytes: version, provider, token, bell, the endpoint's name. The
 * dialler speaks first. Then records of one byte, some with a number: RING (look at your queue),
 * BYE n (I have sent n messages and send no more), DONE (all of yours are here). A side that closes
 * in good order says BYE and waits for DONE; so nothing is lost when its endpoint goes. A
 * connection that ends otherwise is the other process's death: what has arrived is taken, then the
 * link goes down.
 *
 * Runs in the driver, but for ib_connect, ib_listen, and ib_ring_locked.
 */
#include <endian.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "ib.h"
#include "methods/tcp/tcp.h"

enum {
    HELLO_BYTES = 240,
    HELLO_VERSION = 8,
    HELLO_FORMAT = 12,
    HELLO_TOKEN = 16,
    HELLO_BELL = 24,
    HELLO_NAME_SIZE = 40,
    HELLO_MESSAGE = 44,
    HELLO_PROVIDER = 48,
    HELLO_NAME = 112,
    DRAIN_PASSES = 256, /* over what a dead peer has sent */
    RECORDS_BYTES = 64, /* read at a time */
    KEEPALIVE_PROBES = 3
};
enum record { RECORD_RING = 'r', RECORD_BYE = 'b', RECORD_DONE = 'd' };

_Static_assert(HELLO_NAME + IB_NAME_BYTES == HELLO_BYTES, "the name stands last");
_Static_assert(HELLO_PROVIDER + IB_PROVIDER_BYTES == HELLO_NAME, "the provider before it");
static const uint8_t magic[8] = "BMI ib\r\n";

/* A link on its way up. */
struct ib_dial {
    struct tcp_resolve *resolve; /* while the name is being looked up */
    struct tcp_address address;
    union tcp_socket_address candidates[TCP_NAME_ADDRESSES];
    size_t count, next;
    int error; /* of the last candidate */
    size_t hello_have;
    uint8_t hello[HELLO_BYTES];
};

struct ib_listener {
    struct ib_listener *next;
    struct ib_state *state;
    struct bmi_watch watch;
    struct bmi_timer timer;     /* while out of descriptors */
    struct tcp_address address; /* its name, if it has one, was not looked up */
};

static void rendezvous_ready(struct bmi_watch *watch, uint32_t events);

static void number_put(uint8_t *to, uint32_t number)
{
    number = htole32(number);
    memcpy(to, &number, 4);
}

static uint32_t number_get(const uint8_t *from)
{
    uint32_t number;
    memcpy(&number, from, 4);
    return le32toh(number);
}

/* ---- sockets ----------------------------------------------------------------------------------
 */

static void option_set(int fd, int level, int option, int value)
{
    setsockopt(fd, level, option, &value, sizeof(value)); /* none of them is needed to go on */
}

void ib_socket_set_options(int fd)
{
    int64_t idle_s = bmi_method_setting("tcp_keepalive_s");
    int64_t timeout_ms = bmi_method_setting("peer_timeout_ms");
    option_set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (idle_s > 0) {
        option_set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
        option_set(fd, IPPROTO_TCP, TCP_KEEPIDLE, (int)idle_s);
        option_set(fd, IPPROTO_TCP, TCP_KEEPINTVL,
                   idle_s > KEEPALIVE_PROBES ? (int)idle_s / KEEPALIVE_PROBES : 1);
        option_set(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
    }
    if (timeout_ms > 0 && timeout_ms <= INT32_MAX)
        option_set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)timeout_ms);
}

/* Watches the rendezvous, for these events instead of those before. Returns 0 or an errno. */
static int watch_set(struct ib_link *link, uint32_t events)
{
    if (link->watched)
        bmi_method_watch_remove(&link->watch);
    link->watch.ready = rendezvous_ready;
    int status = bmi_method_watch_add(&link->watch, events);
    link->watched = status == 0;
    return status;
}

/* A link that fails before it is up: the core knows those that it dialled only. */
static void rise_failed(struct ib_link *link, int status)
{
    if (link->dialled)
        ib_link_end(link, status);
    else
        ib_link_forget(link);
}

/* ---- greeting ---------------------------------------------------------------------------------
 */

static int hello_send(struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    const struct ib_fabric *fabric = state->fabric;
    uint64_t token = htole64(link->token);
    uint8_t hello[HELLO_BYTES] = {0};
    memcpy(hello, magic, sizeof(magic));
    number_put(hello + HELLO_VERSION, IB_VERSION);
    number_put(hello + HELLO_FORMAT, fabric->info->addr_format);
    memcpy(hello + HELLO_TOKEN, &token, 8);
    if (state->doorbell)
        ib_doorbell_record(state->doorbell, hello + HELLO_BELL);
    number_put(hello + HELLO_NAME_SIZE, (uint32_t)fabric->name_size);
    number_put(hello + HELLO_MESSAGE, IB_MESSAGE_BYTES);
    memcpy(hello + HELLO_PROVIDER, state->provider, strlen(state->provider) + 1);
    memcpy(hello + HELLO_NAME, fabric->name, fabric->name_size);
    ssize_t sent = send(link->watch.fd, hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent == HELLO_BYTES ? 0 : sent < 0 ? -errno : -ENOBUFS; /* it is the first on the wire */
}

/* What a greeting of the right version and provider tells that cannot be; NULL: nothing. A name
 * that is text ends within its bytes: the provider asks no size of it. A bell, which is opened as a
 * file, is there only where the provider needs one. */
static const char *hello_nonsense(const struct ib_state *state, const uint8_t *hello)
{
    const struct ib_fabric *fabric = state->fabric;
    uint32_t size = number_get(hello + HELLO_NAME_SIZE);
    uint64_t bell;
    memcpy(&bell, hello + HELLO_BELL, sizeof(bell));
    if (number_get(hello + HELLO_MESSAGE) != IB_MESSAGE_BYTES)
        return "messages of another size";
    if (size == 0 || size > IB_NAME_BYTES)
        return "an endpoint's name of no possible size";
    if (fabric->info->addr_format == FI_ADDR_STR ? !memchr(hello + HELLO_NAME, '\0', size)
                                                 : size != fabric->name_size)
        return "an endpoint's name that is none";
    if ((state->doorbell != NULL) != (bell != 0))
        return bell != 0 ? "a page to share, which we need not" : "no page to share";
    return NULL;
}

/* Whether the other side's greeting fits ours. Logs what does not. */
static int hello_check(struct ib_link *link, const uint8_t *hello)
{
    struct ib_state *state = ib_state_of(link);
    const char *scheme = state->kind->scheme;
    const char *provider = (const char *)hello + HELLO_PROVIDER;
    uint32_t version = number_get(hello + HELLO_VERSION);
    if (memcmp(hello, magic, sizeof(magic)) != 0) {
        bmi_method_log(BMI_LOG_WARN, &link->base, "%s: %s does not speak this protocol", scheme,
                       link->base.host ? link->base.host : "a peer");
        return -EPROTO;
    }
    if (version != IB_VERSION) {
        bmi_method_log(BMI_LOG_WARN, &link->base,
                       "%s: %s speaks version %u of the rendezvous, we speak %d", scheme,
                       link->base.host ? link->base.host : "a peer", version, IB_VERSION);
        return -EPROTONOSUPPORT;
    }
    if (memchr(provider, '\0', IB_PROVIDER_BYTES) == NULL ||
        strcmp(provider, state->provider) != 0) {
        bmi_method_log(BMI_LOG_WARN, &link->base,
                       "%s: %s uses provider %.*s, we use %s: choose one scheme on both sides",
                       scheme, link->base.host ? link->base.host : "a peer", IB_PROVIDER_BYTES - 1,
                       provider, state->provider);
        return -EPROTONOSUPPORT;
    }
    if (number_get(hello + HELLO_FORMAT) != state->fabric->info->addr_format) {
        bmi_method_log(BMI_LOG_WARN, &link->base,
                       "%s: the endpoint of %s has an address of another family than ours (IPv4, "
                       "IPv6): have the server listen, and be dialled, by one of one family",
                       scheme, link->base.host ? link->base.host : "a peer");
        return -EPROTONOSUPPORT;
    }
    const char *nonsense = hello_nonsense(state, hello);
    if (nonsense)
        bmi_method_log(BMI_LOG_WARN, &link->base, "%s: %s greets with %s", scheme,
                       link->base.host ? link->base.host : "a peer", nonsense);
    return nonsense ? -EPROTO : 0;
}

/* Whether the other end of the rendezvous is a link's of this process, too. */
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

/* The other side's bell. It names the process whose memory our gets read: ours only if that is the
 * other side. */
static int bell_take(const struct ib_link *link, const uint8_t *record, struct ib_doorbell **bell)
{
    int status = ib_doorbell_open(record, bell);
    if (status || !*bell || ib_doorbell_process(*bell) != getpid() || is_to_ourselves(link))
        return status;
    ib_doorbell_free(*bell);
    *bell = NULL;
    return -EPERM;
}

/* Opens what the other side shares with us. The link has it, also if only in part. */
static int hello_open(struct ib_link *link, const uint8_t *hello)
{
    struct ib_state *state = ib_state_of(link);
    struct ib_doorbell *bell = NULL;
    struct ib_peer *peer = NULL;
    int status = bell_take(link, hello + HELLO_BELL, &bell);
    if (status)
        bmi_method_log(
            BMI_LOG_WARN, &link->base,
            "%s: cannot share a page with the peer: %s. This provider connects processes "
            "of one user on one host",
            state->kind->scheme, strerror(-status));
    else
        status = ib_peer_get(state, hello + HELLO_NAME, number_get(hello + HELLO_NAME_SIZE), &peer);
    if (status == -EADDRNOTAVAIL)
        bmi_method_log(BMI_LOG_WARN, &link->base, "%s: the provider does not take the peer's name",
                       state->kind->scheme);
    ib_lock(&link->send_lock);
    link->peer = peer;
    link->doorbell = bell;
    ib_unlock(&link->send_lock);
    return status;
}

/* The other side is known: its endpoint, its token, its bell. */
static int hello_take(struct ib_link *link, const uint8_t *hello)
{
    struct ib_state *state = ib_state_of(link);
    uint64_t token;
    int status = hello_check(link, hello);
    if (status)
        return status;
    memcpy(&token, hello + HELLO_TOKEN, 8);
    ib_doorbell_spare_lend(state->doorbell);
    status = hello_open(link, hello);
    ib_doorbell_spare_take(state->doorbell);
    ib_lock(&link->send_lock);
    link->their_token = le64toh(token);
    ib_unlock(&link->send_lock);
    return status;
}

/* Both sides know each other. Returns 0 or an errno. */
static int greeted(struct ib_link *link)
{
    struct ib_state *state = ib_state_of(link);
    int status = hello_take(link, link->dial->hello);
    if (status == -EPROTONOSUPPORT && !link->dialled)
        hello_send(link); /* so that the other side can say why it is refused */
    if (status)
        return status;
    if (link->dialled) {
        ib_dial_free(link);
        ib_count(state, BMI_COUNT_LINKS_OPENED, 1);
        bmi_method_link_up(&link->base);
        ib_link_open(link);
        return 0;
    }
    status = ib_token_make(link);
    if (status == 0)
        status = hello_send(link);
    if (status == 0)
        status = bmi_method_link_accepted(&link->base);
    if (status)
        return status;
    ib_dial_free(link);
    ib_count(state, BMI_COUNT_LINKS_ACCEPTED, 1);
    ib_link_open(link);
    return 0;
}

void ib_greeting_read(struct ib_link *link)
{
    struct ib_dial *dial = link->dial;
    ssize_t got = recv(link->watch.fd, dial->hello + dial->hello_have,
                       HELLO_BYTES - dial->hello_have, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    int status = got < 0 ? -errno : got == 0 ? -ECONNREFUSED : 0;
    if (got > 0)
        dial->hello_have += (size_t)got;
    if (status == 0 && dial->hello_have == HELLO_BYTES)
        status = greeted(link);
    if (status)
        rise_failed(link, status);
}

/* Connected: what the other side has to say is next. */
static int greeting_start(struct ib_link *link)
{
    int status = watch_set(link, EPOLLIN | EPOLLRDHUP);
    if (status)
        return status;
    ib_lock(&link->send_lock);
    link->phase = IB_GREETING;
    ib_unlock(&link->send_lock);
    bmi_method_timer_set(&link->timer, (uint64_t)bmi_method_setting("connect_timeout_ms"));
    return 0;
}

/* ---- dialling ---------------------------------------------------------------------------------
 */

int ib_connect(void *state, const char *canonical, void *owner, struct bmi_link **out)
{
    struct ib_dial *dial = calloc(1, sizeof(*dial));
    if (!dial)
        return -ENOMEM;
    int error = tcp_address_parse(canonical, &dial->address, NULL);
    if (!error && dial->address.kind == TCP_HOST_EMPTY)
        error = -EINVAL;
    struct ib_link *link = error ? NULL : ib_link_new(state, -1, true);
    if (!link) {
        free(dial);
        return error ? error : -ENOMEM;
    }
    link->base.owner = owner;
    link->dial = dial;
    *out = &link->base;
    ib_link_kick(link);
    return 0;
}

void ib_dial_free(struct ib_link *link)
{
    if (link->dial && link->dial->resolve)
        tcp_resolve_cancel(link->dial->resolve);
    free(link->dial);
    link->dial = NULL;
}

static void socket_close(struct ib_link *link)
{
    if (link->watched)
        bmi_method_watch_remove(&link->watch);
    link->watched = false;
    ib_lock(&link->send_lock);
    if (link->watch.fd >= 0)
        close(link->watch.fd);
    link->watch.fd = -1;
    ib_unlock(&link->send_lock);
}

/* A connection is under way or made. Returns 0 or an errno. */
static int attempt(struct ib_link *link, const union tcp_socket_address *to)
{
    int fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return -errno;
    ib_socket_set_options(fd);
    if (connect(fd, &to->any, tcp_socket_address_length(to)) < 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        int error = -errno;
        close(fd);
        return error;
    }
    ib_lock(&link->send_lock);
    link->watch.fd = fd;
    ib_unlock(&link->send_lock);
    int status = watch_set(link, EPOLLOUT);
    if (status)
        socket_close(link);
    return status;
}

/* The time for one candidate, so that all together stay near the setting. */
static uint64_t attempt_ms(const struct ib_dial *dial)
{
    uint64_t all = (uint64_t)bmi_method_setting("connect_timeout_ms");
    uint64_t share = all / (dial->count > 0 ? dial->count : 1);
    return share > 500 || share == all ? share : 500;
}

static void dial_next(struct ib_link *link)
{
    struct ib_dial *dial = link->dial;
    while (dial->next < dial->count) {
        dial->error = attempt(link, &dial->candidates[dial->next++]);
        if (dial->error == 0) {
            bmi_method_timer_set(&link->timer, attempt_ms(dial));
            return;
        }
    }
    ib_link_end(link, dial->error);
}

static void dial_resolved(void *argument, int status, const union tcp_socket_address *addresses,
                          size_t count)
{
    struct ib_link *link = argument;
    struct ib_dial *dial = link->dial;
    dial->resolve = NULL;
    if (status) {
        bmi_method_log(BMI_LOG_WARN, &link->base, "%s: cannot look up host name '%s': %s",
                       ib_state_of(link)->kind->scheme, dial->address.host,
                       bmi_status_string(status));
        ib_link_end(link, status);
        return;
    }
    memcpy(dial->candidates, addresses, count * sizeof(*addresses));
    dial->count = count;
    dial_next(link);
}

/* A name that this process listens as may be unknown to resolvers. */
static bool listens_as(const struct ib_state *state, const struct tcp_address *address)
{
    const struct ib_listener *at = state->listeners;
    while (at && (at->address.kind != TCP_HOST_NAME || at->address.port != address->port ||
                  strcmp(at->address.host, address->host) != 0))
        at = at->next;
    return at != NULL;
}

void ib_dial_start(struct ib_link *link)
{
    struct ib_dial *dial = link->dial;
    ib_lock(&link->send_lock);
    link->phase = IB_DIALLING;
    ib_unlock(&link->send_lock);
    if (dial->address.kind != TCP_HOST_NAME) {
        tcp_address_to_socket(&dial->address, &dial->candidates[0]);
        if (dial->address.scope[0])
            dial->candidates[0].ipv6.sin6_scope_id = if_nametoindex(dial->address.scope);
        dial->count = 1;
        dial_next(link);
        return;
    }
    if (listens_as(ib_state_of(link), &dial->address)) {
        tcp_socket_address_loopback(&dial->candidates[0], dial->address.port);
        dial->count = 1;
        dial_next(link);
        return;
    }
    int status = tcp_resolve_start(dial->address.host, dial->address.port, dial_resolved, link,
                                   &dial->resolve);
    if (status == 0)
        bmi_method_timer_set(&link->timer, attempt_ms(dial));
    else
        ib_link_end(link, status);
}

void ib_dial_expired(struct ib_link *link)
{
    if (link->phase == IB_GREETING) {
        rise_failed(link, -ETIMEDOUT);
        return;
    }
    link->dial->error = -ETIMEDOUT;
    socket_close(link);
    dial_next(link);
}

/* Returns 0 if the socket is connected, to somebody else; fills in the local host. */
static int connection_check(struct ib_link *link, char *here_host, size_t size)
{
    union tcp_socket_address here = {0}, there = {0};
    socklen_t length = sizeof(int), here_length = sizeof(here), there_length = sizeof(there);
    char host[INET6_ADDRSTRLEN];
    uint8_t ends[2][TCP_ADDRESS_BYTES];
    int error = 0;
    if (getsockopt(link->watch.fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0)
        return -errno;
    if (error)
        return -error;
    if (getpeername(link->watch.fd, &there.any, &there_length) < 0 ||
        getsockname(link->watch.fd, &here.any, &here_length) < 0)
        return -errno;
    if (memcmp(&here, &there, sizeof(here)) == 0)
        return -ECONNREFUSED;
    tcp_socket_address_host(&there, host, sizeof(host));
    bmi_method_link_host(&link->base, host, tcp_socket_address_port(&there));
    tcp_socket_address_bytes(&here, ends[0]);
    tcp_socket_address_bytes(&there, ends[1]);
    bmi_method_link_ends(&link->base, ends[0], ends[1], TCP_ADDRESS_BYTES);
    tcp_socket_address_host(&here, here_host, size);
    return 0;
}

static void connect_ready(struct ib_link *link)
{
    char host[INET6_ADDRSTRLEN];
    int error = connection_check(link, host, sizeof(host));
    if (error == -ENOTCONN)
        return; /* told too early: still under way */
    if (error) {
        link->dial->error = error;
        socket_close(link);
        dial_next(link);
        return;
    }
    error = ib_fabric_open(ib_state_of(link), host);
    if (error == 0)
        error = ib_token_make(link);
    if (error == 0)
        error = hello_send(link);
    if (error == 0)
        error = greeting_start(link);
    if (error)
        ib_link_end(link, error);
}

/* ---- records ----------------------------------------------------------------------------------
 */

/* Writes what is to be written; what the socket does not take waits for room. */
static void out_write(struct ib_link *link)
{
    ib_lock(&link->send_lock);
    ssize_t sent =
        link->out_size > 0 && link->watch.fd >= 0
            ? send(link->watch.fd, link->out, link->out_size, MSG_NOSIGNAL | MSG_DONTWAIT)
            : 0;
    if (sent > 0) {
        link->out_size = (uint8_t)(link->out_size - sent);
        memmove(link->out, link->out + sent, link->out_size);
    }
    bool left = link->out_size > 0;
    ib_unlock(&link->send_lock);
    if (left == link->room_watched || link->watch.fd < 0)
        return;
    link->room_watched = left;
    int status = watch_set(link, EPOLLIN | EPOLLRDHUP | (left ? (uint32_t)EPOLLOUT : 0));
    if (status) /* nothing would tell of its end */
        ib_link_fail(link, status);
}

static void record_send(struct ib_link *link, const uint8_t *record, size_t size)
{
    ib_lock(&link->send_lock);
    memcpy(link->out + link->out_size, record, size); /* BYE and DONE once each: there is room */
    link->out_size = (uint8_t)(link->out_size + size);
    ib_unlock(&link->send_lock);
    out_write(link);
}

void ib_bye_send(struct ib_link *link)
{
    uint8_t record[5] = {RECORD_BYE};
    if (link->bye_sent)
        return;
    link->bye_sent = true;
    ib_lock(&link->send_lock);
    number_put(record + 1, link->sequence_out);
    ib_unlock(&link->send_lock);
    record_send(link, record, sizeof(record));
}

void ib_bye_check(struct ib_link *link)
{
    static const uint8_t done = RECORD_DONE;
    if (!link->bye_seen || link->phase != IB_UP || link->sequence_in != link->bye_sequence)
        return;
    if (!link->done_sent) {
        link->done_sent = true;
        record_send(link, &done, 1);
    }
    ib_lock(&link->send_lock);
    bool lingers = link->closing == IB_CLOSE_LINGERING;
    ib_unlock(&link->send_lock);
    if (!lingers)
        ib_link_end(link, 0);
}

void ib_ring_locked(struct ib_link *link)
{
    static const uint8_t ring = RECORD_RING;
    ib_assert_locked(&link->send_lock);
    if (!link->doorbell || link->watch.fd < 0 || !ib_doorbell_wanted(link->doorbell, &link->rung))
        return;
    /* If other records wait, or the socket is full, it has something to wake up for. */
    if (link->out_size == 0 && send(link->watch.fd, &ring, 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        bmi_method_log(BMI_LOG_DEBUG, &link->base, "%s: a ring is lost: %s",
                       ib_state_of(link)->kind->scheme, strerror(errno));
}

/* Handles one record of those at `at`. Returns the bytes used, 0 if it is not whole, or an errno.
 * The link may have ended. */
static int record_take(struct ib_link *link, const uint8_t *at, size_t size, bool *ring)
{
    switch (at[0]) {
    case RECORD_RING:
        *ring = true;
        return 1;
    case RECORD_BYE:
        if (size < 5)
            return 0;
        if (link->bye_seen)
            return -EPROTO;
        link->bye_seen = true;
        link->bye_sequence = number_get(at + 1);
        return 5;
    case RECORD_DONE:
        return link->bye_sent ? -ESHUTDOWN : -EPROTO;
    default:
        return -EPROTO;
    }
}

/* Returns 0 or the errno that ends the link; -ESHUTDOWN: in good order. */
static int records_take(struct ib_link *link, const uint8_t *at, size_t size, bool *ring)
{
    while (size > 0) {
        int used = record_take(link, at, size, ring);
        if (used < 0)
            return used;
        if (used == 0)
            break;
        at += used;
        size -= (size_t)used;
    }
    memcpy(link->in, at, size); /* at most 4 bytes of a BYE */
    link->in_size = (uint8_t)size;
    return 0;
}

/* The other process has gone, or has cut the link: what it sent before is taken first. */
static void hung_up(struct ib_link *link, int status)
{
    struct ib_state *state = ib_state_of(link);
    for (int i = 0; i < DRAIN_PASSES && link->phase == IB_UP; i++)
        if (ib_progress(state) == 0)
            break;
    ib_link_end(link, status == 0 ? -ECONNRESET : status);
}

static void records_ready(struct ib_link *link)
{
    uint8_t bytes[sizeof(link->in) + RECORDS_BYTES];
    bool ring = false;
    memcpy(bytes, link->in, link->in_size);
    ssize_t got = recv(link->watch.fd, bytes + link->in_size, RECORDS_BYTES, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        hung_up(link, got < 0 ? -errno : 0);
        return;
    }
    int status = records_take(link, bytes, link->in_size + (size_t)got, &ring);
    if (ring)
        ib_progress(ib_state_of(link));
    if (status == -ESHUTDOWN)
        ib_link_end(link, 0);
    else if (status)
        ib_link_end(link, status);
    else
        ib_bye_check(link);
}

static void rendezvous_ready(struct bmi_watch *watch, uint32_t events)
{
    struct ib_link *link = ib_container(watch, struct ib_link, watch);
    bmi_link_ref(&link->base);
    if (link->phase == IB_DIALLING)
        connect_ready(link);
    else if (link->phase == IB_GREETING)
        ib_greeting_read(link);
    else if (link->phase == IB_UP && (events & ~(uint32_t)EPOLLOUT))
        records_ready(link);
    if (link->phase == IB_UP && (events & EPOLLOUT))
        out_write(link);
    bmi_link_unref(&link->base);
}

/* ---- listening --------------------------------------------------------------------------------
 */

static void link_ends(struct bmi_link *link, int fd, const union tcp_socket_address *from)
{
    union tcp_socket_address here = {0};
    socklen_t length = sizeof(here);
    uint8_t ends[2][TCP_ADDRESS_BYTES];
    if (getsockname(fd, &here.any, &length) < 0)
        return; /* it is never joined with another one then */
    tcp_socket_address_bytes(from, ends[0]);
    tcp_socket_address_bytes(&here, ends[1]);
    bmi_method_link_ends(link, ends[0], ends[1], TCP_ADDRESS_BYTES);
}

static void accept_link(struct ib_state *state, int fd, const union tcp_socket_address *from)
{
    char host[INET6_ADDRSTRLEN];
    struct ib_link *link = ib_link_new(state, fd, false);
    if (!link) {
        close(fd);
        return;
    }
    ib_socket_set_options(fd);
    tcp_socket_address_host(from, host, sizeof(host));
    bmi_method_link_host(&link->base, host, tcp_socket_address_port(from));
    link_ends(&link->base, fd, from);
    link->dial = calloc(1, sizeof(*link->dial));
    int status = link->dial ? greeting_start(link) : -ENOMEM;
    if (status)
        ib_link_forget(link);
}

static void accept_resumed(struct bmi_timer *timer)
{
    struct ib_listener *listener = ib_container(timer, struct ib_listener, timer);
    if (bmi_method_watch_add(&listener->watch, EPOLLIN))
        bmi_method_timer_set(timer, TCP_ACCEPT_RETRY_MS);
}

static void listener_ready(struct bmi_watch *watch, uint32_t events)
{
    struct ib_listener *listener = ib_container(watch, struct ib_listener, watch);
    (void)events;
    for (int i = 0; i < TCP_ACCEPT_BATCH; i++) {
        union tcp_socket_address from = {0};
        socklen_t length = sizeof(from);
        int fd = accept4(watch->fd, &from.any, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            accept_link(listener->state, fd, &from);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            bmi_method_log(BMI_LOG_WARN, NULL, "%s: cannot accept connections: %s",
                           listener->state->kind->scheme, strerror(errno));
            bmi_method_watch_remove(watch);
            bmi_method_timer_set(&listener->timer, TCP_ACCEPT_RETRY_MS);
        }
        return;
    }
}

/* The host of "host:port" as numbers, for the endpoint's own address; false: any will do. A name is
 * looked up to bind to it, only. */
static bool host_numeric(const char *bound, int flags, char *host, size_t size)
{
    struct tcp_address address;
    union tcp_socket_address addresses[TCP_NAME_ADDRESSES];
    size_t count = 0;
    if (tcp_address_parse(bound, &address, NULL) ||
        (address.kind == TCP_HOST_NAME && !(flags & BMI_TCP_BIND_SPECIFIC)))
        return false;
    if (address.kind == TCP_HOST_NAME && tcp_resolve_now(address.host, 0, addresses, &count) == 0)
        tcp_socket_address_host(&addresses[0], host, size);
    else if (address.kind != TCP_HOST_NAME)
        snprintf(host, size, "%s", address.host);
    return address.kind != TCP_HOST_NAME || count > 0;
}

int ib_listen(void *argument, const char *text, int flags, char *bound, size_t size)
{
    struct ib_state *state = argument;
    char host[TCP_HOST_SIZE];
    uint16_t port;
    int fd = tcp_listen_open(NULL, text, flags, bound, size, &port);
    if (fd < 0)
        return fd;
    struct ib_listener *listener = calloc(1, sizeof(*listener));
    int status = listener ? 0 : -ENOMEM;
    if (status == 0)
        status =
            ib_fabric_open(state, host_numeric(bound, flags, host, sizeof(host)) ? host : NULL);
    if (status == 0) {
        listener->state = state;
        if (!(flags & BMI_TCP_BIND_SPECIFIC))
            tcp_address_parse(bound, &listener->address, NULL);
        listener->watch = (struct bmi_watch){.fd = fd, .ready = listener_ready};
        listener->timer.expired = accept_resumed;
        status = bmi_method_watch_add(&listener->watch, EPOLLIN);
    }
    if (status) {
        free(listener);
        close(fd);
        return status;
    }
    listener->next = state->listeners;
    state->listeners = listener;
    int none = 0;
    atomic_compare_exchange_strong(&state->port, &none, port);
    return 0;
}

void ib_listen_stop(struct ib_state *state)
{
    while (state->listeners) {
        struct ib_listener *listener = state->listeners;
        state->listeners = listener->next;
        bmi_method_timer_clear(&listener->timer);
        bmi_method_watch_remove(&listener->watch);
        close(listener->watch.fd);
        free(listener);
    }
}
