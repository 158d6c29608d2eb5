/* SPDX-License-Identifier: BSD-3-Clause
 *
 * engine_epoll.c - the engine that asks which sockets are readable: the core's epoll set.
 *
 * The link that received last, the hot one, is read by polling as well. After STREAM_HOT_READS such
 * reads it leaves the epoll set until the poller blocks, or another link becomes the hot one: each
 * arrival costs the sender's kernel some 0.13 us for a set on which no thread waits.
 */
#include "stream.h"

static int epoll_watch(struct stream_link *link)
{
    int error = bmi_method_watch_add(link->base.instance, &link->watch, STREAM_WATCHED);
    link->watched = error == 0;
    return error;
}

static void epoll_ignore(struct stream_link *link)
{
    struct stream_state *state = stream_state_of(link);

    if (state->hot == link)
        state->hot = NULL;
    if (link->watched)
        bmi_method_watch_remove(link->base.instance, &link->watch);
    link->watched = false;
}

/* The hot link is watched again. */
static void hot_watch(struct stream_state *state)
{
    struct stream_link *link = state->hot;

    state->hot_reads = 0;
    if (!link || link->watched)
        return;
    int error = epoll_watch(link);
    if (error)
        stream_link_end(link, error);
}

void stream_hot_set(struct stream_link *link)
{
    struct stream_state *state = stream_state_of(link);
    hot_watch(state);
    state->hot = link;
}

/* It was read by polling. */
static void hot_read(struct stream_state *state)
{
    struct stream_link *link = state->hot;

    if (!link || ++state->hot_reads < STREAM_HOT_READS || !link->watched)
        return;
    bmi_method_watch_remove(state->instance, &link->watch);
    link->watched = false;
}

static int epoll_progress(struct stream_state *state)
{
    if (!state->hot)
        return 0;
    int64_t bytes = stream_receive_poll(state->hot);
    if (bytes > 0)
        hot_read(state);
    return bytes != 0;
}

static bool epoll_arm(struct stream_state *state)
{
    hot_watch(state);
    return true;
}

const struct stream_engine stream_engine_epoll = {
    .name = "epoll",
    .watch = epoll_watch,
    .ignore = epoll_ignore,
    .progress = epoll_progress,
    .arm = epoll_arm,
};
