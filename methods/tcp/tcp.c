/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tcp.c - the tcp method: frames over sockets. Its operations, its start and its end.
 */
#include <stdlib.h>

#include "tcp.h"

/* Bodies above EAGER_MAX go by rendezvous, so a body is not sent and buffered before the
 * receiver posts for it. (From 16 KiB on, the core reads the pieces straight to their place,
 * also unexpected ones.) FRAME_MAX bounds how long a link sends one message before it sends
 * another's frame: a larger value means fewer headers, a smaller one less waiting. */
enum { EAGER_MAX = 32768, UNEXPECTED_MAX = 65536, FRAME_MAX = 262144 };

_Static_assert(sizeof(struct tcp_link) <= 512, "an idle link stays small");

_Atomic int64_t *tcp_counters;

static int tcp_start(void **out)
{
    tcp_counters = bmi_method_counters(&bmi__method_tcp);
    /* aligned_alloc wants a multiple of the alignment */
    size_t size = (sizeof(struct tcp_state) + 63) & ~(size_t)63;
    struct tcp_state *state = aligned_alloc(64, size);
    if (!state)
        return -ENOMEM;
    memset(state, 0, offsetof(struct tcp_state, stage));

    int error = tcp_engine_start(state);
    if (error)
        goto undo_state;
    *out = state;
    return 0;

undo_state:
    free(state);
    return error;
}

static void tcp_stop(void *argument)
{
    struct tcp_state *state = argument;

    tcp_listen_stop(state);
    while (state->links) {
        struct tcp_link *link = state->links;
        tcp_lock(&link->send_lock);
        link->closing = TCP_CLOSE_NOW;
        tcp_unlock(&link->send_lock);
        tcp_link_end(link, 0);
    }
    tcp_engine_stop(state);
    free(state);
}

const struct bmi_method bmi__method_tcp = {
    .name = "bmi_tcp",
    .schemes = "tcp",
    .description = "TCP sockets over IPv4 and IPv6, epoll",
    .limits = {.eager_max = EAGER_MAX,
               .unexpected_max = UNEXPECTED_MAX,
               .frame_max = FRAME_MAX,
               .segments_max = TCP_IOVECS},
    .start = tcp_start,
    .stop = tcp_stop,
    .listen = tcp_listen,
    .parse = ip_parse,
    .connect = tcp_connect,
    .send = tcp_send,
    .flush = tcp_flush,
    .withdraw = tcp_withdraw,
    .retract = tcp_retract,
    .close = tcp_close,
    .progress = tcp_progress,
    .arm = tcp_arm,
    .option = tcp_option,
};
