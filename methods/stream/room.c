/* SPDX-License-Identifier: BSD-3-Clause
 *
 * room.c - how links learn that their sockets have room to write, with either engine.
 *
 * The core's one epoll watches a second one, the method's own, which watches sockets for room. A
 * socket joins it when it is dialled or full for the first time, edge-triggered, and stays. So
 * there is no epoll_ctl per message and no wake-up for room that no link needs.
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

int stream_room_start(struct stream_state *state)
{
    state->room_epoll = epoll_create1(EPOLL_CLOEXEC);
    if (state->room_epoll < 0)
        return -errno;
    state->room_watch.fd = state->room_epoll;
    state->room_watch.ready = room_ready;
    int error = bmi_method_watch_add(state->instance, &state->room_watch, EPOLLIN);
    if (error)
        close(state->room_epoll);
    return error;
}

void stream_room_stop(struct stream_state *state)
{
    bmi_method_watch_remove(state->instance, &state->room_watch);
    close(state->room_epoll);
}

int stream_room_watch(struct stream_link *link)
{
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET, .data.ptr = link};
    if (epoll_ctl(stream_state_of(link)->room_epoll, EPOLL_CTL_ADD, link->watch.fd, &event) < 0)
        return -errno;
    return 0;
}

void stream_room_forget(struct stream_link *link)
{
    struct epoll_event unused = {0};
    epoll_ctl(stream_state_of(link)->room_epoll, EPOLL_CTL_DEL, link->watch.fd, &unused);
}
