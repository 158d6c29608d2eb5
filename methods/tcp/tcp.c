/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tcp.c - the tcp method: frames over TCP sockets, by methods/stream and methods/ip.
 */
#include <linux/sockios.h>
#include <stdio.h>
#include <sys/ioctl.h>

#include "tcp.h"

static const struct bmi_setting_spec settings[] = {
    TCP_SETTINGS,
    {"tcp_engine", BMI_SETTING_TEXT, 0, 0, 0,
     "how bytes move: auto (now epoll), epoll, or io_uring"},
    {0}};

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

/* Sets the reason for the choice, and the level at which it is logged. Returns NULL for a bad
 * setting. */
static const struct stream_engine *engine_choose(struct bmi_instance *instance, char *reason,
                                                 size_t size, enum bmi_log_level *level)
{
    const char *wanted = bmi_method_setting_text(instance, "tcp_engine");
    char why[STREAM_WHY];

    *level = BMI_LOG_INFO;
    if (*wanted == '\0' || strcmp(wanted, "auto") == 0) {
        snprintf(reason, size, "engine epoll, the default");
    } else if (strcmp(wanted, "epoll") == 0) {
        snprintf(reason, size, "engine epoll, as tcp_engine says");
    } else if (strcmp(wanted, "io_uring") != 0) {
        snprintf(reason, size, "tcp_engine is \"%s\", which is none of auto, epoll, io_uring",
                 wanted);
        *level = BMI_LOG_ERROR;
        return NULL;
    } else if (stream_uring_usable(why)) {
        snprintf(reason, size, "engine io_uring, as tcp_engine says");
        return &stream_engine_uring;
    } else {
        snprintf(reason, size, "engine epoll, though tcp_engine says io_uring: %s", why);
        *level = BMI_LOG_WARN;
    }
    return &stream_engine_epoll;
}

int tcp_choice(struct bmi_instance *instance, struct bmi_method_choice *choice)
{
    enum bmi_log_level level;
    return engine_choose(instance, choice->reason, sizeof(choice->reason), &level) ? 0 : -EINVAL;
}

static int tcp_start(struct bmi_instance *instance, void **out)
{
    char reason[2 * STREAM_WHY];
    enum bmi_log_level level;
    const struct stream_engine *engine = engine_choose(instance, reason, sizeof(reason), &level);
    bmi_method_log(instance, level, NULL, "tcp: %s", reason);
    if (!engine)
        return -EINVAL;
    return stream_method_start(instance, sizeof(struct tcp_state), &tcp_socket, engine, out);
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
    .description = "TCP sockets over IPv4 and IPv6",
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
