/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dial.c - makes outgoing connections without blocking any thread.
 *
 * tcp_connect only creates the link. The poller then has methods/ip look the name up and try its
 * addresses one after the other. The link ends with the error of the last address. Everything but
 * tcp_connect runs in the poller.
 */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tcp.h"

struct tcp_dial {
    struct ip_dial ip;
    struct stream_link *link;
    int buffers[2]; /* by enum tcp_buffer; send_lock */
};

/* A connection is under way or made. Buffer sizes that are set meanwhile are seen here, or
 * applied to the socket. Returns 0 or an errno. */
static int attempt(struct ip_dial *dial, const union ip_socket_address *to)
{
    struct stream_link *link = stream_container(dial, struct tcp_dial, ip)->link;
    int fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return -errno;
    ip_socket_set_options(link->base.instance, link->base.method, &link->base, fd);
    stream_lock(&link->send_lock);
    tcp_socket_set_buffers_locked(link->base.instance, link, fd);
    int result = connect(fd, &to->any, ip_socket_address_length(to));
    result = result < 0 && errno != EINPROGRESS && errno != EINTR ? -errno : 0;
    if (result == 0)
        stream_dial_socket_locked(link, fd);
    stream_unlock(&link->send_lock);
    if (result < 0) {
        close(fd);
        return result;
    }
    return stream_dial_watch(link);
}

static void failed(struct ip_dial *dial, int error)
{
    stream_link_end(stream_container(dial, struct tcp_dial, ip)->link, error);
}

int tcp_connect(void *state, const char *canonical, void *owner, struct bmi_link **out)
{
    struct tcp_dial *dial = calloc(1, sizeof(*dial));
    if (!dial)
        return -ENOMEM;
    dial->buffers[TCP_SEND_BUFFER] = dial->buffers[TCP_RECEIVE_BUFFER] = -1;
    dial->ip.attempt = attempt;
    dial->ip.failed = failed;
    int error = ip_dial_init(&dial->ip, canonical);
    if (error)
        goto undo_dial;
    error = stream_connect(state, dial, owner, out);
    if (error)
        goto undo_dial;
    return 0;

undo_dial:
    free(dial);
    return error;
}

void tcp_dial_free(void *argument)
{
    struct tcp_dial *dial = argument;
    ip_dial_cancel(&dial->ip);
    free(dial);
}

int *tcp_dial_buffers_locked(struct stream_link *link)
{
    stream_assert_locked(&link->send_lock);
    struct tcp_dial *dial = link->dial;
    return dial ? dial->buffers : NULL;
}

const struct ip_address *tcp_dial_address(const struct stream_link *link)
{
    const struct tcp_dial *dial = link->dial;
    return &dial->ip.address;
}

void tcp_dial(struct stream_link *link)
{
    struct tcp_dial *dial = link->dial;
    dial->link = link;
    dial->ip.link = &link->base;
    dial->ip.timer = &link->timer;
    ip_dial_start(&dial->ip, tcp_state_of(link)->names);
}

void tcp_dial_ready(struct stream_link *link)
{
    struct tcp_dial *dial = link->dial;
    int error = ip_dial_check(&link->base, link->watch.fd);
    if (error == 0) {
        stream_dial_done(link);
    } else if (error != -ENOTCONN) { /* else the report came too early: still under way */
        stream_dial_close(link);
        ip_dial_again(&dial->ip, error);
    }
}

void tcp_dial_expired(struct stream_link *link)
{
    struct tcp_dial *dial = link->dial;
    stream_dial_close(link);
    ip_dial_again(&dial->ip, -ETIMEDOUT);
}
