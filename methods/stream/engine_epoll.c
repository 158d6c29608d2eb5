/* SPDX-License-Identifier: BSD-3-Clause
 *
 * engine_epoll.c - how the method learns that a socket has room to write.
 *
 * The core's one epoll watches for data to read, level-triggered. A second epoll, the method's own,
 * watches for room, and the core's epoll watches the second one. A socket joins it when it is
 * dialled or full for the first time, edge-triggered, and stays. So there is no epoll_ctl per
 * message and no wake-up for room that no link needs. Another kind of engine (io_uring) would
 * replace this file and bytes.c.
 */
#include <sys/epoll.h>
#include <unistd.h>

#include "stream.h"

enum { EVENTS = 64 };

static void room_ready(struct bmi_watch *watch, uint32_t watch_events)
{
    struct stream_state *state = stream_container(watch, struct stream_state, room_watch);
    struct epoll_event events[EVENTS];

    (void)watch_events;
    int count = epoll_wait(state->room_epoll, events, EVENTS, 0);
    for (int i = 0; i < count; i++) {
        struct stream_link *link = events[i].data.ptr;
        if (link->phase == STREAM_DIALLING)
            state->socket->dial_ready(link);
        else if (link->phase == STREAM_SECURING)
            stream_secure_room(link);
        else
            stream_send_room(link);
    }
}

int stream_engine_start(struct stream_state *state)
{
    state->room_epoll = epoll_create1(EPOLL_CLOEXEC);
    if (state->room_epoll < 0)
        return -errno;
    state->room_watch.fd = state->room_epoll;
    state->room_watch.ready = room_ready;
    int error = bmi_method_watch_add(&state->room_watch, EPOLLIN);
    if (error)
        close(state->room_epoll);
    return error;
}

void stream_engine_stop(struct stream_state *state)
{
    bmi_method_watch_remove(&state->room_watch);
    close(state->room_epoll);
}

int stream_engine_watch_room(struct stream_link *link)
{
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET, .data.ptr = link};
    if (epoll_ctl(stream_state_of(link)->room_epoll, EPOLL_CTL_ADD, link->watch.fd, &event) < 0)
        return -errno;
    return 0;
}

void stream_engine_forget(struct stream_link *link)
{
    struct epoll_event unused = {0};
    epoll_ctl(stream_state_of(link)->room_epoll, EPOLL_CTL_DEL, link->watch.fd, &unused);
}
