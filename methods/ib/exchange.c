/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exchange.c - the address exchange, a TCP connection beside each link: dialled, accepted, its
 * records, and its end.
 *
 * It begins with the handshake (handshake.c). Then come records of one byte, some with a number:
 * RING (read your completion queue), BYE n (end of stream: I have sent n messages and send no
 * more), DONE (all of your messages have arrived). A side that closes in order sends BYE and waits
 * for DONE, so no message is lost when its endpoint is closed. If the connection ends otherwise,
 * the other process has died: messages that have arrived are handled, then the link goes down.
 *
 * The poller runs all of it, except ib_connect, ib_listen, and ib_ring_locked.
 */
#include <fcntl.h>
#include <net/if.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "ib.h"
#include "methods/ip/ip.h"

enum {
    DRAIN_PASSES = 256, /* passes that handle the messages of a dead peer */
    RECORDS_BYTES = 64  /* bytes read at a time */
};
enum record { RECORD_RING = 'r', RECORD_BYE = 'b', RECORD_DONE = 'd' };

/* A link that is being dialled. */
struct ib_dial {
    struct ip_dial ip;
    struct ib_link *link;
};

static void exchange_ready(struct bmi_watch *watch, uint32_t events);

int ib_exchange_watch(struct ib_link *link, uint32_t events)
{
    if (link->watched)
        bmi_method_watch_remove(&link->watch);
    link->watch.ready = exchange_ready;
    int status = bmi_method_watch_add(&link->watch, events);
    link->watched = status == 0;
    return status;
}

/* ---- dialling ---------------------------------------------------------------------------------
 */

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

/* Begins to connect to an address. Returns 0 or an errno. */
static int attempt(struct ip_dial *dial, const union ip_socket_address *to)
{
    struct ib_link *link = ib_container(dial, struct ib_dial, ip)->link;
    int fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return -errno;
    ip_socket_set_options(link->base.method, &link->base, fd);
    if (connect(fd, &to->any, ip_socket_address_length(to)) < 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        int error = -errno;
        close(fd);
        return error;
    }
    ib_lock(&link->send_lock);
    link->watch.fd = fd;
    ib_unlock(&link->send_lock);
    int status = ib_exchange_watch(link, EPOLLOUT);
    if (status)
        socket_close(link);
    return status;
}

static void failed(struct ip_dial *dial, int error)
{
    ib_link_end(ib_container(dial, struct ib_dial, ip)->link, error);
}

int ib_connect(void *state, const char *canonical, void *owner, struct bmi_link **out)
{
    struct ib_dial *dial = calloc(1, sizeof(*dial));
    if (!dial)
        return -ENOMEM;
    dial->ip.attempt = attempt;
    dial->ip.failed = failed;
    int error = ip_dial_init(&dial->ip, canonical);
    struct ib_link *link = error ? NULL : ib_link_new(state, -1, true);
    if (!link) {
        free(dial);
        return error ? error : -ENOMEM;
    }
    dial->link = link;
    dial->ip.link = &link->base;
    dial->ip.timer = &link->timer;
    link->base.owner = owner;
    link->dial = dial;
    *out = &link->base;
    ib_link_kick(link);
    return 0;
}

void ib_dial_free(struct ib_link *link)
{
    if (link->dial)
        ip_dial_cancel(&link->dial->ip);
    free(link->dial);
    link->dial = NULL;
}

void ib_dial_start(struct ib_link *link)
{
    ib_lock(&link->send_lock);
    link->phase = IB_DIALLING;
    ib_unlock(&link->send_lock);
    ip_dial_start(&link->dial->ip, ib_state_of(link)->names);
}

void ib_dial_expired(struct ib_link *link)
{
    socket_close(link);
    ip_dial_again(&link->dial->ip, -ETIMEDOUT);
}

static void connect_ready(struct ib_link *link)
{
    int error = ip_dial_check(&link->base, link->watch.fd);
    if (error == -ENOTCONN)
        return; /* reported too early: the connection is still being made */
    if (error) {
        socket_close(link);
        ip_dial_again(&link->dial->ip, error);
        return;
    }
    ib_dial_free(link);
    error = ib_handshake_start(link);
    if (error)
        ib_link_end(link, error);
}

/* ---- records ----------------------------------------------------------------------------------
 */

/* Writes waiting records; those that the socket does not take wait for room. */
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
    int status = ib_exchange_watch(link, EPOLLIN | EPOLLRDHUP | (left ? (uint32_t)EPOLLOUT : 0));
    if (status) /* without a watch its end would not be noticed */
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
    ib_number_put(record + 1, link->sequence_out);
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
    /* If other records wait, or the socket is full, these wake the other side. */
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
        link->bye_sequence = ib_number_get(at + 1);
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

/* The other process has gone, or has cut the link: its earlier messages are handled first. */
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

static void exchange_ready(struct bmi_watch *watch, uint32_t events)
{
    struct ib_link *link = ib_container(watch, struct ib_link, watch);
    bmi_link_ref(&link->base);
    if (link->phase == IB_DIALLING)
        connect_ready(link);
    else if (link->phase == IB_HANDSHAKE)
        ib_handshake_read(link);
    else if (link->phase == IB_UP && (events & ~(uint32_t)EPOLLOUT))
        records_ready(link);
    if (link->phase == IB_UP && (events & EPOLLOUT))
        out_write(link);
    bmi_link_unref(&link->base);
}

/* ---- listening --------------------------------------------------------------------------------
 */

static void accepted(struct stream_acceptor *acceptor, int fd, const struct sockaddr_storage *from)
{
    struct ib_state *state = ib_container(acceptor, struct ib_state, acceptor);
    struct ib_link *link = ib_link_new(state, fd, false);
    if (!link) {
        close(fd);
        return;
    }
    ip_socket_set_options(link->base.method, &link->base, fd);
    ip_accepted(&link->base, fd, (const void *)from);
    if (ib_handshake_start(link))
        ib_link_forget(link);
}

/* Accepts a connection if descriptors for the provider's connection are left as well; otherwise new
 * clients wait. shm needs one for a moment only, which the wake-up flag has in reserve. */
static int connection_take(struct stream_acceptor *acceptor, int listener,
                           struct sockaddr_storage *from)
{
    enum { PROVIDERS = 2 };
    const struct ib_state *state = ib_container(acceptor, struct ib_state, acceptor);
    socklen_t length = sizeof(*from);
    int reserve[PROVIDERS], count = 0;
    while (!state->doorbell && count < PROVIDERS &&
           (reserve[count] = fcntl(listener, F_DUPFD_CLOEXEC, 0)) >= 0)
        count++;
    int fd = -1;
    if (state->doorbell || count == PROVIDERS)
        fd = accept4(listener, (struct sockaddr *)from, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    int error = fd < 0 ? -errno : fd;
    while (count > 0)
        close(reserve[--count]);
    return error;
}

/* Outputs the host of "host:port" in numeric form, for the endpoint's own address; false: any
 * address serves. A name is looked up only if the socket is bound to it. */
static bool host_numeric(const char *bound, int flags, char *host, size_t size)
{
    struct ip_address address;
    union ip_socket_address addresses[IP_NAME_ADDRESSES];
    size_t count = 0;
    if (ip_address_parse(bound, &address, NULL) ||
        (address.kind == IP_HOST_NAME && !(flags & BMI_TCP_BIND_SPECIFIC)))
        return false;
    if (address.kind == IP_HOST_NAME && ip_resolve_now(address.host, 0, addresses, &count) == 0)
        ip_socket_address_host(&addresses[0], host, size);
    else if (address.kind != IP_HOST_NAME)
        snprintf(host, size, "%s%s%s", address.host, address.scope[0] ? "%" : "", address.scope);
    return address.kind != IP_HOST_NAME || count > 0;
}

/* Makes the endpoint for the address, and accepts connections. Returns 0 or an errno. */
static int listener_add(struct ib_state *state, int fd, const char *bound, int flags, uint16_t port)
{
    char host[IP_HOST_SIZE + IF_NAMESIZE];
    struct ib_endpoint *endpoint;
    struct ip_address address;
    bool numeric = host_numeric(bound, flags, host, sizeof(host));
    int status = ib_endpoint_get(state, numeric ? host : NULL, &endpoint);
    if (status == 0 && !(flags & BMI_TCP_BIND_SPECIFIC) &&
        ip_address_parse(bound, &address, NULL) == 0 && address.kind == IP_HOST_NAME)
        status = ip_names_add(&state->names, &address, port);
    state->acceptor.method = state->method;
    state->acceptor.take = connection_take;
    state->acceptor.accepted = accepted;
    return status ? status : stream_acceptor_add(&state->acceptor, fd);
}

int ib_listen(void *argument, const char *text, int flags, char *bound, size_t size)
{
    struct ib_state *state = argument;
    uint16_t port;
    int fd = ip_listen_open(state->method, text, flags, NULL, bound, size, &port);
    if (fd < 0)
        return fd;
    int status = listener_add(state, fd, bound, flags, port);
    if (status) {
        close(fd);
        return status;
    }
    int none = 0;
    atomic_compare_exchange_strong(&state->port, &none, port);
    return 0;
}

void ib_listen_stop(struct ib_state *state)
{
    stream_acceptor_stop(&state->acceptor);
    ip_names_free(&state->names);
}
