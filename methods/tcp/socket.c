/* SPDX-License-Identifier: BSD-3-Clause
 *
 * socket.c - options of sockets, and the options of bmi.h that concern them.
 *
 * The send_lock keeps a link's socket open while its options are set by another thread.
 */
#include <arpa/inet.h>
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

static int default_bytes(enum tcp_buffer which)
{
    return clamp(bmi_method_setting(which == TCP_SEND_BUFFER ? "tcp_sndbuf" : "tcp_rcvbuf"));
}

static int link_bytes_locked(struct tcp_link *link, enum tcp_buffer which)
{
    const int *set = link ? tcp_dial_buffers_locked(link) : NULL;
    return set && set[which] >= 0 ? set[which] : default_bytes(which);
}

void tcp_socket_set_buffers_locked(struct tcp_link *link, int fd)
{
    int to_send = link_bytes_locked(link, TCP_SEND_BUFFER);
    int to_receive = link_bytes_locked(link, TCP_RECEIVE_BUFFER);
    if (to_send > 0)
        option_set(link, fd, SOL_SOCKET, SO_SNDBUF, to_send, "SO_SNDBUF");
    if (to_receive > 0)
        option_set(link, fd, SOL_SOCKET, SO_RCVBUF, to_receive, "SO_RCVBUF");
}

void tcp_socket_set_options(struct tcp_link *link, int fd)
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
}

static bool same_host(int fd)
{
    union tcp_socket_address here = {0}, there = {0};
    socklen_t here_length = sizeof(here), there_length = sizeof(there);
    char here_text[INET6_ADDRSTRLEN], there_text[INET6_ADDRSTRLEN];

    if (getsockname(fd, &here.any, &here_length) < 0 ||
        getpeername(fd, &there.any, &there_length) < 0)
        return false;
    tcp_socket_address_host(&here, here_text, sizeof(here_text));
    tcp_socket_address_host(&there, there_text, sizeof(there_text));
    return strcmp(here_text, there_text) == 0;
}

void tcp_socket_settle(int fd)
{
    static const char reno[] = "reno";
    if (bmi_method_setting("tcp_local_reno") && same_host(fd))
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof(reno) - 1); /* or as it was */
}

/* Sets a buffer size: of the socket, if there is one, and of the sockets that dialling will
 * make. */
static int link_buffer_set_locked(struct tcp_link *link, enum tcp_buffer which, int bytes)
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
static int link_buffer_get_locked(struct tcp_link *link, enum tcp_buffer which, int *bytes)
{
    int option = which == TCP_SEND_BUFFER ? SO_SNDBUF : SO_RCVBUF;
    socklen_t length = sizeof(*bytes);
    const int *to_come = tcp_dial_buffers_locked(link);
    if (to_come || link->watch.fd < 0) {
        *bytes = to_come && to_come[which] >= 0 ? to_come[which] : default_bytes(which);
        return 0;
    }
    if (getsockopt(link->watch.fd, SOL_SOCKET, option, bytes, &length) < 0)
        return -errno;
    *bytes /= 2;
    return 0;
}

static int link_buffer(struct tcp_link *link, enum tcp_buffer which, int *bytes, bool set)
{
    int result = -ENOTCONN;

    tcp_lock(&link->send_lock);
    if (link->phase != TCP_DOWN)
        result = set ? link_buffer_set_locked(link, which, *bytes)
                     : link_buffer_get_locked(link, which, bytes);
    tcp_unlock(&link->send_lock);
    return result;
}

/* The default is the core's, a setting: it is read here only. */
static int buffer_option(struct tcp_link *link, enum tcp_buffer which, int *bytes, bool set)
{
    if (set && *bytes < 0)
        return -EINVAL;
    if (link)
        return link_buffer(link, which, bytes, set);
    if (set)
        return -ENOSYS;
    *bytes = default_bytes(which);
    return 0;
}

int tcp_option(void *state_argument, struct bmi_link *base, int option, void *value, bool set)
{
    struct tcp_state *state = state_argument;
    struct tcp_link *link = base ? tcp_link_of(base) : NULL;

    switch (option) {
    case BMI_TCP_BUFFER_SEND_SIZE:
        return value ? buffer_option(link, TCP_SEND_BUFFER, value, set) : -EINVAL;
    case BMI_TCP_BUFFER_RECEIVE_SIZE:
        return value ? buffer_option(link, TCP_RECEIVE_BUFFER, value, set) : -EINVAL;
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
