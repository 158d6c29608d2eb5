/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tcp.c - the tcp method: frames over TCP sockets, by methods/stream and methods/ip.
 */
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "tcp.h"

static const struct bmi_setting_spec settings[] = {TCP_SETTINGS, {0}};

const struct bmi_option_default tcp_defaults[] = {{BMI_TCP_BUFFER_SEND_SIZE, "tcp_sndbuf"},
                                                  {BMI_TCP_BUFFER_RECEIVE_SIZE, "tcp_rcvbuf"},
                                                  {0}};

bool tcp_delivered(int fd)
{
    int unacknowledged = 0;
    return ioctl(fd, SIOCOUTQ, &unacknowledged) < 0 || unacknowledged == 0;
}

static const struct stream_socket tcp_socket = {
    .method = &bmi__method_tcp,
    .bytes = &stream_plain,
    .dial = tcp_dial,
    .dial_ready = tcp_dial_ready,
    .dial_expired = tcp_dial_expired,
    .dial_free = tcp_dial_free,
    .accept = tcp_accept,
    .settle = ip_socket_settle,
    .delivered = tcp_delivered,
};

static int tcp_start(void **out)
{
    return stream_method_start(sizeof(struct tcp_state), &tcp_socket, out);
}

void tcp_stop(void *argument)
{
    struct tcp_state *state = argument;
    ip_names_free(&state->names); /* the poller, which dials, has ended */
    stream_method_stop(state);
}

const struct bmi_method bmi__method_tcp = {
    .name = "bmi_tcp",
    .schemes = "tcp",
    .description = "TCP sockets over IPv4 and IPv6, epoll",
    .settings = settings,
    .defaults = tcp_defaults,
    .hosts = &ip_hosts,
    .start = tcp_start,
    .stop = tcp_stop,
    .listen = tcp_listen,
    .parse = ip_parse,
    .connect = tcp_connect,
    .option = tcp_option,
    STREAM_METHOD,
};
