/* SPDX-License-Identifier: BSD-3-Clause
 *
 * accept.c - see accept.h. Everything but stream_acceptor_add runs in the poller.
 */
#include "accept.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    ACCEPT_BATCH = 32,    /* connections taken in one pass */
    ACCEPT_RETRY_MS = 100 /* after running out of descriptors */
};

struct stream_listener {
    struct stream_listener *next;
    struct stream_acceptor *acceptor;
    struct bmi_watch watch;
    bool watched;
};

static void timer_expired(struct bmi_timer *timer)
{
    stream_acceptor_resume((void *)((char *)timer - offsetof(struct stream_acceptor, timer)));
}

static void accept_pause(struct stream_acceptor *acceptor)
{
    acceptor->paused = true;
    for (struct stream_listener *at = acceptor->listeners; at; at = at->next) {
        if (at->watched)
            bmi_method_watch_remove(acceptor->instance, &at->watch);
        at->watched = false;
    }
    acceptor->timer.expired = timer_expired;
    bmi_method_timer_set(acceptor->instance, &acceptor->timer, ACCEPT_RETRY_MS);
}

static void accept_fails(struct stream_acceptor *acceptor, int error)
{
    if (!acceptor->logged)
        bmi_method_log(acceptor->instance, BMI_LOG_WARN, NULL,
                       "%s: cannot accept connections: %s; trying again as others close",
                       acceptor->method->schemes, strerror(-error));
    acceptor->logged = true;
    accept_pause(acceptor);
}

void stream_acceptor_resume(struct stream_acceptor *acceptor)
{
    if (!acceptor->paused)
        return;
    acceptor->paused = false;
    bmi_method_timer_clear(acceptor->instance, &acceptor->timer);
    for (struct stream_listener *at = acceptor->listeners; at; at = at->next) {
        if (at->watched)
            continue;
        int error = bmi_method_watch_add(acceptor->instance, &at->watch, EPOLLIN);
        at->watched = error == 0;
        if (error) {
            accept_fails(acceptor, error);
            return;
        }
    }
}

/* Whether resources are short that other descriptors' owners must free first; else the error is
 * that connection's. */
static bool out_of_resources(int error)
{
    return error == -EMFILE || error == -ENFILE || error == -ENOBUFS || error == -ENOMEM;
}

static int connection_take(struct stream_acceptor *acceptor, int listener,
                           struct sockaddr_storage *from)
{
    socklen_t length = sizeof(*from);
    if (acceptor->take)
        return acceptor->take(acceptor, listener, from);
    int fd = accept4(listener, (struct sockaddr *)from, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* A connection waits, and there is no descriptor for it. */
static void descriptors_short(struct stream_acceptor *acceptor, int error)
{
    accept_fails(acceptor, error);
    if (acceptor->give_way && acceptor->give_way(acceptor))
        return;
    if (acceptor->evicts)
        bmi_method_idle_close(acceptor->instance, acceptor->method, NULL);
}

static bool may(struct stream_acceptor *acceptor)
{
    return !acceptor->may || acceptor->may(acceptor);
}

/* A connection waits. Returns whether it may be taken. */
static bool may_first(struct stream_acceptor *acceptor)
{
    if (!may(acceptor) && acceptor->give_way)
        acceptor->give_way(acceptor);
    return may(acceptor);
}

/* Only for the first connection of a batch is it certain that it waits, so only for that one others
 * give way. The listener reports again while one waits. */
static void listener_ready(struct bmi_watch *watch, uint32_t events)
{
    struct stream_listener *listener =
        (void *)((char *)watch - offsetof(struct stream_listener, watch));
    struct stream_acceptor *acceptor = listener->acceptor;

    (void)events;
    if (!may_first(acceptor)) {
        accept_pause(acceptor);
        return;
    }
    for (int i = 0; i < ACCEPT_BATCH && may(acceptor); i++) {
        struct sockaddr_storage from = {0};
        int fd = connection_take(acceptor, watch->fd, &from);
        if (fd == -EAGAIN || fd == -EWOULDBLOCK) {
            acceptor->logged = false; /* the backlog is empty: the shortage is over */
            return;
        }
        if (out_of_resources(fd)) {
            if (i == 0)
                descriptors_short(acceptor, fd);
            return;
        }
        if (fd >= 0)
            acceptor->accepted(acceptor, fd, &from);
    }
}

int stream_acceptor_add(struct stream_acceptor *acceptor, int fd)
{
    struct stream_listener *listener = calloc(1, sizeof(*listener));
    if (!listener)
        return -ENOMEM;
    listener->acceptor = acceptor;
    listener->watch.fd = fd;
    listener->watch.ready = listener_ready;
    int error = bmi_method_watch_add(acceptor->instance, &listener->watch, EPOLLIN);
    if (error) {
        free(listener);
        return error;
    }
    listener->watched = true;
    listener->next = acceptor->listeners;
    acceptor->listeners = listener;
    return 0;
}

void stream_acceptor_stop(struct stream_acceptor *acceptor)
{
    if (acceptor->paused)
        bmi_method_timer_clear(acceptor->instance, &acceptor->timer);
    acceptor->paused = false;
    while (acceptor->listeners) {
        struct stream_listener *listener = acceptor->listeners;
        acceptor->listeners = listener->next;
        if (listener->watched)
            bmi_method_watch_remove(acceptor->instance, &listener->watch);
        close(listener->watch.fd);
        free(listener);
    }
}
