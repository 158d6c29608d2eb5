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
    struct tcp_link *link;
    int buffers[2]; /* by enum tcp_buffer; send_lock */
};

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
static int attempt(struct ip_dial *dial, const union ip_socket_address *to)
{
    struct tcp_link *link = tcp_container(dial, struct tcp_dial, ip)->link;
    int fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return -errno;
    ip_socket_set_options(&link->base, fd);
    tcp_lock(&link->send_lock);
    tcp_socket_set_buffers_locked(link, fd);
    int result = connect(fd, &to->any, ip_socket_address_length(to));
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

static void failed(struct ip_dial *dial, int error)
{
    tcp_link_end(tcp_container(dial, struct tcp_dial, ip)->link, error);
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
    struct tcp_link *link = tcp_link_new(state, -1);
    if (!link) {
        error = -ENOMEM;
        goto undo_dial;
    }
    dial->link = link;
    dial->ip.link = &link->base;
    dial->ip.timer = &link->timer;
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
    if (dial)
        ip_dial_cancel(&dial->ip);
    free(dial);
}

int *tcp_dial_buffers_locked(struct tcp_link *link)
{
    tcp_assert_locked(&link->send_lock);
    return link->dial ? link->dial->buffers : NULL;
}

void tcp_dial_start(struct tcp_link *link)
{
    tcp_lock(&link->send_lock);
    link->phase = TCP_DIALLING;
    tcp_unlock(&link->send_lock);
    ip_dial_start(&link->dial->ip, tcp_state_of(link)->names);
}

void tcp_dial_ready(struct tcp_link *link)
{
    int error = ip_dial_check(&link->base, link->watch.fd);
    if (error == -ENOTCONN)
        return; /* the report came too early: still under way */
    if (error) {
        socket_close(link);
        ip_dial_again(&link->dial->ip, error);
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
    socket_close(link);
    ip_dial_again(&link->dial->ip, -ETIMEDOUT);
}
