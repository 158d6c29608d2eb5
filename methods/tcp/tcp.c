/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tcp.c - the tcp method: frames over TCP sockets, by methods/stream and methods/ip.
 */
#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "tcp.h"

/* Bodies above EAGER_MAX go by rendezvous, so a body is not sent and buffered before the
 * receiver posts for it. (From 16 KiB on, the core reads the pieces straight to their place,
 * also unexpected ones.) FRAME_MAX bounds how long a link sends one message before it sends
 * another's frame: a larger value means fewer headers, a smaller one less waiting. */
enum { EAGER_MAX = 32768, UNEXPECTED_MAX = 65536, FRAME_MAX = 262144 };

static const struct bmi_setting_spec settings[] = {
    {"tcp_sndbuf", BMI_SETTING_BYTES, 0, 0, 1 << 30,
     "bytes of a socket's send buffer; 0: the kernel's own tuning"},
    {"tcp_rcvbuf", BMI_SETTING_BYTES, 0, 0, 1 << 30,
     "bytes of a socket's receive buffer; 0: the kernel's own tuning"},
    {"tcp_host_links", BMI_SETTING_NUMBER, 16384, 0, 1 << 24,
     "connections accepted from one host at most; one more takes the place of an idle one of that "
     "host, or is closed; 0: no limit"},
    IP_SETTINGS,
    {0}};

static const struct bmi_option_default defaults[] = {{BMI_TCP_BUFFER_SEND_SIZE, "tcp_sndbuf"},
                                                     {BMI_TCP_BUFFER_RECEIVE_SIZE, "tcp_rcvbuf"},
                                                     {0}};

static bool delivered(int fd)
{
    int unacknowledged = 0;
    return ioctl(fd, SIOCOUTQ, &unacknowledged) < 0 || unacknowledged == 0;
}

static const struct stream_socket tcp_socket = {
    .method = &bmi__method_tcp,
    .dial = tcp_dial,
    .dial_ready = tcp_dial_ready,
    .dial_expired = tcp_dial_expired,
    .dial_free = tcp_dial_free,
    .accept = tcp_accept,
    .settle = ip_socket_settle,
    .delivered = delivered,
};

static int tcp_start(void **out)
{
    struct tcp_state *state = calloc(1, sizeof(*state));
    int error = state ? stream_method_start(&state->stream, &tcp_socket) : -ENOMEM;
    if (error)
        free(state);
    else
        *out = state;
    return error;
}

static void tcp_stop(void *argument)
{
    struct tcp_state *state = argument;
    stream_method_stop(&state->stream);
    ip_names_free(&state->names);
    free(state);
}

const struct bmi_method bmi__method_tcp = {
    .name = "bmi_tcp",
    .schemes = "tcp",
    .description = "TCP sockets over IPv4 and IPv6, epoll",
    .limits = {.eager_max = EAGER_MAX,
               .unexpected_max = UNEXPECTED_MAX,
               .frame_max = FRAME_MAX,
               .segments_max = STREAM_IOVECS},
    .settings = settings,
    .defaults = defaults,
    .hosts = &ip_hosts,
    .start = tcp_start,
    .stop = tcp_stop,
    .listen = tcp_listen,
    .parse = ip_parse,
    .connect = tcp_connect,
    .send = stream_send,
    .flush = stream_flush,
    .withdraw = stream_withdraw,
    .retract = stream_retract,
    .close = stream_close,
    .progress = stream_progress,
    .arm = stream_arm,
    .option = tcp_option,
};
