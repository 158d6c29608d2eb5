/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dial.c - makes outgoing connections without blocking any thread.
 *
 * tcp_connect only creates the link. The poller looks the name up (resolve.c) if it is one, then
 * tries its addresses one after the other, each for its share of the time. The link ends with the
 * error of the last address. Everything but tcp_connect runs in the poller.
 */
#include <net/if.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tcp.h"

enum { ATTEMPT_MIN_MS = 500 };

struct tcp_dial {
    struct tcp_resolve *resolve; /* while the name is being looked up */
    struct tcp_address address;
    union tcp_socket_address candidates[TCP_NAME_ADDRESSES];
    size_t count, next;
    int error;      /* of the last candidate */
    int buffers[2]; /* by enum tcp_buffer; send_lock */
};

int tcp_connect(void *state, const char *canonical, void *owner, struct bmi_link **out)
{
    struct tcp_dial *dial = calloc(1, sizeof(*dial));
    if (!dial)
        return -ENOMEM;
    dial->buffers[TCP_SEND_BUFFER] = dial->buffers[TCP_RECEIVE_BUFFER] = -1;
    int error = tcp_address_parse(canonical, &dial->address, NULL);
    if (!error && dial->address.kind == TCP_HOST_EMPTY)
        error = -EINVAL;
    if (error)
        goto undo_dial;
    struct tcp_link *link = tcp_link_new(state, -1);
    if (!link) {
        error = -ENOMEM;
        goto undo_dial;
    }
    link->base.owner = owner;
    link->dial = dial;
    *out = &link->base;
    tcp_link_kick(link);
    return 0;

undo_dial:
    free(dial);
    return error;
}

void tcp_dial_free(struct tcp_link *link)
{
    struct tcp_dial *dial = link->dial;
    tcp_lock(&link->send_lock);
    link->dial = NULL;
    tcp_unlock(&link->send_lock);
    if (dial && dial->resolve)
        tcp_resolve_cancel(dial->resolve);
    free(dial);
}

int *tcp_dial_buffers_locked(struct tcp_link *link)
{
    tcp_assert_locked(&link->send_lock);
    return link->dial ? link->dial->buffers : NULL;
}

static void socket_close(struct tcp_link *link)
{
    if (link->watch.fd < 0)
        return;
    tcp_engine_forget(link);
    tcp_lock(&link->send_lock);
    close(link->watch.fd);
    link->watch.fd = -1;
    link->room_watched = false;
    tcp_unlock(&link->send_lock);
}

/* A connection is under way or made. Buffer sizes that are set meanwhile are seen here, or
 * applied to the socket. Returns 0 or an errno. */
static int attempt(struct tcp_link *link, const union tcp_socket_address *to)
{
    int fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return -errno;
    tcp_socket_set_options(link, fd);
    tcp_lock(&link->send_lock);
    tcp_socket_set_buffers_locked(link, fd);
    int result = connect(fd, &to->any, tcp_socket_address_length(to));
    result = result < 0 && errno != EINPROGRESS && errno != EINTR ? -errno : 0;
    if (result == 0) {
        link->watch.fd = fd;
        link->room_watched = true;
    }
    tcp_unlock(&link->send_lock);
    if (result < 0) {
        close(fd);
        return result;
    }
    result = tcp_engine_watch_room(link); /* reports at once if the connection is established
                                           * already */
    if (result < 0)
        socket_close(link);
    return result;
}

/* The time for one candidate, so that all together stay near the setting. */
static uint64_t attempt_ms(const struct tcp_dial *dial)
{
    uint64_t all = (uint64_t)bmi_method_setting("connect_timeout_ms");
    uint64_t share = all / (dial->count > 0 ? dial->count : 1);
    uint64_t least = all < ATTEMPT_MIN_MS ? all : ATTEMPT_MIN_MS;
    return share > least ? share : least;
}

static void dial_next(struct tcp_link *link)
{
    struct tcp_dial *dial = link->dial;
    while (dial->next < dial->count) {
        dial->error = attempt(link, &dial->candidates[dial->next++]);
        if (dial->error == 0) {
            bmi_method_timer_set(&link->timer, attempt_ms(dial));
            return;
        }
    }
    tcp_link_end(link, dial->error);
}

static void dial_resolved(void *argument, int status, const union tcp_socket_address *addresses,
                          size_t count)
{
    struct tcp_link *link = argument;
    struct tcp_dial *dial = link->dial;

    dial->resolve = NULL;
    if (status) {
        bmi_method_log(BMI_LOG_WARN, &link->base, "tcp: cannot look up host name '%s': %s",
                       dial->address.host, bmi_status_string(status));
        tcp_link_end(link, status);
        return;
    }
    memcpy(dial->candidates, addresses, count * sizeof(*addresses));
    dial->count = count;
    dial_next(link);
}

/* A numeric host: one candidate. Returns 0 or an errno. */
static int candidate_numeric(struct tcp_dial *dial)
{
    union tcp_socket_address *to = &dial->candidates[0];
    tcp_address_to_socket(&dial->address, to);
    if (dial->address.scope[0]) {
        to->ipv6.sin6_scope_id = if_nametoindex(dial->address.scope);
        if (to->ipv6.sin6_scope_id == 0)
            return -ENODEV;
    }
    dial->count = 1;
    return 0;
}

void tcp_dial_start(struct tcp_link *link)
{
    struct tcp_dial *dial = link->dial;

    tcp_lock(&link->send_lock);
    link->phase = TCP_DIALLING;
    tcp_unlock(&link->send_lock);
    if (dial->address.kind != TCP_HOST_NAME) {
        dial->error = candidate_numeric(dial);
        dial_next(link);
        return;
    }
    /* A name that this process listens as may be unknown to resolvers. */
    if (tcp_listens_as(tcp_state_of(link), dial->address.host, dial->address.port)) {
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
        tcp_link_end(link, status);
}

/* Returns 0 if the socket is connected to another socket, and reports the peer's address to the
 * core. */
static int connection_check(struct tcp_link *link)
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
    /* No socket listens on the port, and the kernel chose it as our local port: TCP then
     * connects the socket to itself. */
    if (memcmp(&here, &there, sizeof(here)) == 0)
        return -ECONNREFUSED;
    tcp_socket_address_host(&there, host, sizeof(host));
    bmi_method_link_host(&link->base, host, tcp_socket_address_port(&there));
    tcp_socket_address_bytes(&here, ends[0]);
    tcp_socket_address_bytes(&there, ends[1]);
    bmi_method_link_ends(&link->base, ends[0], ends[1], TCP_ADDRESS_BYTES);
    return 0;
}

void tcp_dial_ready(struct tcp_link *link)
{
    int error = connection_check(link);
    if (error == -ENOTCONN)
        return; /* the report came too early: still under way */
    if (error) {
        link->dial->error = error;
        socket_close(link);
        dial_next(link);
        return;
    }
    bmi_method_timer_clear(&link->timer);
    tcp_dial_free(link);
    tcp_count(BMI_COUNT_LINKS_OPENED, 1);
    bmi_method_link_up(&link->base);
    tcp_link_open(link);
}

void tcp_dial_expired(struct tcp_link *link)
{
    link->dial->error = -ETIMEDOUT;
    socket_close(link);
    dial_next(link);
}
