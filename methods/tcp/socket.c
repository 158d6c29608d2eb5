/* SPDX-License-Identifier: BSD-3-Clause
 *
 * socket.c - the buffer sizes of sockets, and the options of bmi.h that concern sockets.
 *
 * The send_lock keeps a link's socket open while its options are set by another thread.
 */
#include <sys/socket.h>

#include "tcp.h"

static int clamp(int64_t value)
{
    return value > INT32_MAX ? INT32_MAX : (int)value;
}

static int default_bytes(struct bmi_instance *instance, enum tcp_buffer which)
{
    return clamp(
        bmi_method_setting(instance, which == TCP_SEND_BUFFER ? "tcp_sndbuf" : "tcp_rcvbuf"));
}

static int link_bytes_locked(struct bmi_instance *instance, struct stream_link *link,
                             enum tcp_buffer which)
{
    const int *set = link ? tcp_dial_buffers_locked(link) : NULL;
    return set && set[which] >= 0 ? set[which] : default_bytes(instance, which);
}

void tcp_socket_set_buffers_locked(struct bmi_instance *instance, struct stream_link *link, int fd)
{
    int to_send = link_bytes_locked(instance, link, TCP_SEND_BUFFER);
    int to_receive = link_bytes_locked(instance, link, TCP_RECEIVE_BUFFER);
    const struct bmi_link *base = link ? &link->base : NULL;
    const struct bmi_method *method = link ? base->method : &bmi__method_tcp;
    if (to_send > 0)
        ip_socket_set_option(instance, method, base, fd, SOL_SOCKET, SO_SNDBUF, to_send,
                             "SO_SNDBUF");
    if (to_receive > 0)
        ip_socket_set_option(instance, method, base, fd, SOL_SOCKET, SO_RCVBUF, to_receive,
                             "SO_RCVBUF");
}

/* Sets a buffer size: of the socket, if there is one, and of the sockets that dialling will
 * make. */
static int link_buffer_set_locked(struct stream_link *link, enum tcp_buffer which, int bytes)
{
    int option = which == TCP_SEND_BUFFER ? SO_SNDBUF : SO_RCVBUF;
    int *to_come = tcp_dial_buffers_locked(link);
    if (to_come)
        to_come[which] = bytes;
    if (link->watch.fd < 0 || bytes == 0)
        return 0;
    return setsockopt(link->watch.fd, SOL_SOCKET, option, &bytes, sizeof(bytes)) < 0 ? -errno : 0;
}

/* The kernel returns twice the size that was set. */
static int link_buffer_get_locked(struct stream_link *link, enum tcp_buffer which, int *bytes)
{
    int option = which == TCP_SEND_BUFFER ? SO_SNDBUF : SO_RCVBUF;
    socklen_t length = sizeof(*bytes);
    const int *to_come = tcp_dial_buffers_locked(link);
    if (to_come || link->watch.fd < 0) {
        *bytes = to_come && to_come[which] >= 0 ? to_come[which]
                                                : default_bytes(link->base.instance, which);
        return 0;
    }
    if (getsockopt(link->watch.fd, SOL_SOCKET, option, bytes, &length) < 0)
        return -errno;
    *bytes /= 2;
    return 0;
}

static int link_buffer(struct stream_link *link, enum tcp_buffer which, int *bytes, bool set)
{
    int result = -ENOTCONN;

    stream_lock(&link->send_lock);
    if (link->phase != STREAM_DOWN)
        result = set ? link_buffer_set_locked(link, which, *bytes)
                     : link_buffer_get_locked(link, which, bytes);
    stream_unlock(&link->send_lock);
    return result;
}

/* The default is a setting, which the core sets for the option: it is read here only. */
static int buffer_option(struct bmi_instance *instance, struct stream_link *link,
                         enum tcp_buffer which, int *bytes, bool set)
{
    if (set && *bytes < 0)
        return -EINVAL;
    if (link)
        return link_buffer(link, which, bytes, set);
    if (set)
        return -ENOSYS;
    *bytes = default_bytes(instance, which);
    return 0;
}

int tcp_option(struct bmi_instance *instance, void *state_argument, struct bmi_link *base,
               int option, void *value, bool set)
{
    struct tcp_state *state = state_argument;
    struct stream_link *link = base ? stream_link_of(base) : NULL;

    switch (option) {
    case BMI_TCP_BUFFER_SEND_SIZE:
        return value ? buffer_option(instance, link, TCP_SEND_BUFFER, value, set) : -EINVAL;
    case BMI_TCP_BUFFER_RECEIVE_SIZE:
        return value ? buffer_option(instance, link, TCP_RECEIVE_BUFFER, value, set) : -EINVAL;
    case BMI_METHOD_CHOICE:
        return set ? -EINVAL : tcp_choice(instance, value);
    case BMI_TCP_GET_PORT:
        if (set || !value)
            return -EINVAL;
        *(int *)value = atomic_load(&state->port);
        return 0;
    default:
        return stream_option(instance, state, base, option, value, set);
    }
}
