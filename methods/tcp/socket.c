/* SPDX-License-Identifier: BSD-3-Clause
 *
 * socket.c - options of sockets, and the options of bmi.h that concern them.
 *
 * The send_lock keeps a link's socket open while its options are set by another thread.
 */
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "tcp.h"

enum { KEEPALIVE_PROBES = 3 };

static void option_set(struct tcp_link *link, int fd, int level, int option, int value,
                       const char *name)
{
    if (setsockopt(fd, level, option, &value, sizeof(value)) < 0)
        bmi_method_log(BMI_LOG_WARN, link ? &link->base : NULL, "tcp: cannot set %s to %d: %s",
                       name, value, strerror(errno));
}

static int clamp(int64_t value)
{
    return value > INT32_MAX ? INT32_MAX : (int)value;
}

static int send_bytes(struct tcp_state *state)
{
    int bytes = atomic_load_explicit(&state->send_bytes, memory_order_relaxed);
    return bytes >= 0 ? bytes : clamp(bmi_method_setting("tcp_sndbuf"));
}

static int receive_bytes(struct tcp_state *state)
{
    int bytes = atomic_load_explicit(&state->receive_bytes, memory_order_relaxed);
    return bytes >= 0 ? bytes : clamp(bmi_method_setting("tcp_rcvbuf"));
}

void tcp_socket_set_buffers(struct tcp_state *state, int fd)
{
    int to_send = send_bytes(state), to_receive = receive_bytes(state);
    if (to_send > 0)
        option_set(NULL, fd, SOL_SOCKET, SO_SNDBUF, to_send, "SO_SNDBUF");
    if (to_receive > 0)
        option_set(NULL, fd, SOL_SOCKET, SO_RCVBUF, to_receive, "SO_RCVBUF");
}

void tcp_socket_set_options(struct tcp_state *state, struct tcp_link *link, int fd)
{
    int idle_s = clamp(bmi_method_setting("tcp_keepalive_s"));
    int timeout_ms = clamp(bmi_method_setting("peer_timeout_ms"));

    option_set(link, fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
    if (idle_s > 0) {
        int interval_s = idle_s / KEEPALIVE_PROBES > 0 ? idle_s / KEEPALIVE_PROBES : 1;
        option_set(link, fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
        option_set(link, fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s, "TCP_KEEPIDLE");
        option_set(link, fd, IPPROTO_TCP, TCP_KEEPINTVL, interval_s, "TCP_KEEPINTVL");
        option_set(link, fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES, "TCP_KEEPCNT");
    }
    if (timeout_ms > 0)
        option_set(link, fd, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_ms, "TCP_USER_TIMEOUT");
    tcp_socket_set_buffers(state, fd);
}

/* Sets or reads a buffer size of a link's socket; the kernel tells twice what was set. */
static int link_buffer(struct tcp_link *link, int option, int *bytes, bool set)
{
    socklen_t length = sizeof(*bytes);
    int result = -ENOTCONN;

    tcp_lock(&link->send_lock);
    if (link->phase == TCP_UP && set)
        result = *bytes == 0 ? 0 : setsockopt(link->watch.fd, SOL_SOCKET, option, bytes, length);
    else if (link->phase == TCP_UP)
        result = getsockopt(link->watch.fd, SOL_SOCKET, option, bytes, &length);
    if (result == -1)
        result = -errno;
    tcp_unlock(&link->send_lock);

    if (result == 0 && !set)
        *bytes /= 2;
    return result;
}

static int buffer_option(struct tcp_state *state, struct tcp_link *link, int option, int *bytes,
                         bool set)
{
    bool sending = option == BMI_TCP_BUFFER_SEND_SIZE;
    if (set && *bytes < 0)
        return -EINVAL;
    if (link)
        return link_buffer(link, sending ? SO_SNDBUF : SO_RCVBUF, bytes, set);
    if (set)
        atomic_store_explicit(sending ? &state->send_bytes : &state->receive_bytes, *bytes,
                              memory_order_relaxed);
    else
        *bytes = sending ? send_bytes(state) : receive_bytes(state);
    return 0;
}

int tcp_option(void *state_argument, struct bmi_link *base, int option, void *value, bool set)
{
    struct tcp_state *state = state_argument;
    struct tcp_link *link = base ? tcp_link_of(base) : NULL;

    switch (option) {
    case BMI_TCP_BUFFER_SEND_SIZE:
    case BMI_TCP_BUFFER_RECEIVE_SIZE:
        return value ? buffer_option(state, link, option, value, set) : -EINVAL;
    case BMI_TCP_GET_PORT:
        if (set || !value)
            return -EINVAL;
        *(int *)value = atomic_load(&state->port);
        return 0;
    case BMI_TCP_CLOSE_SOCKET:
        if (!set)
            return -EINVAL;
        if (link)
            tcp_close(base, false);
        return 0;
    default:
        return -ENOSYS;
    }
}
