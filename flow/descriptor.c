/* SPDX-License-Identifier: BSD-3-Clause
 *
 * descriptor.c - the descriptor of an engine's contexts, which a program may poll: an epoll set of
 * an event, the timer of the deadlines, the storage's descriptor, and the network's.
 *
 * The event says that a task of flow's waits. `lock` guards the set until it is made, and whether
 * it has the network; `event_lock` guards the event. Both are innermost.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "bmi/base/instance.h"
#include "bmi/progress/progress.h"
#include "bmi/progress/wakeup.h"
#include "flow/engine.h"

/* ---- the set --------------------------------------------------------------------------------- */

int bmi__descriptor_watch(struct flow_engine *engine, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return fd >= 0 && epoll_ctl(engine->descriptor.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0
               ? 0
               : -errno;
}

static int fds_make_locked(struct flow_engine *engine)
{
    struct flow_descriptor *descriptor = &engine->descriptor;
    if (descriptor->timer_fd < 0)
        descriptor->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (descriptor->event_fd < 0)
        descriptor->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (descriptor->timer_fd < 0 || descriptor->event_fd < 0)
        return -errno;
    descriptor->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (descriptor->epoll_fd < 0)
        return -errno;
    int result = bmi__descriptor_watch(engine, descriptor->timer_fd);
    if (result == 0)
        result = bmi__descriptor_watch(engine, descriptor->event_fd);
    if (result != 0) { /* the next call creates it again */
        close(descriptor->epoll_fd);
        descriptor->epoll_fd = -1;
    }
    return result;
}

void bmi__descriptor_init(struct flow_engine *engine)
{
    struct flow_descriptor *descriptor = &engine->descriptor;
    pthread_mutex_init(&descriptor->lock, NULL);
    pthread_mutex_init(&descriptor->event_lock, NULL);
    descriptor->epoll_fd = descriptor->timer_fd = descriptor->event_fd = -1;
}

int bmi__descriptor(struct flow_engine *engine)
{
    struct flow_descriptor *descriptor = &engine->descriptor;
    pthread_mutex_lock(&descriptor->lock);
    int result = descriptor->epoll_fd < 0 ? fds_make_locked(engine) : 0;
    pthread_mutex_unlock(&descriptor->lock);
    return result < 0 ? result : descriptor->epoll_fd;
}

void bmi__descriptor_timer(struct flow_engine *engine, uint64_t delay_ns)
{
    struct itimerspec when = {0};
    if (delay_ns != UINT64_MAX) {
        when.it_value.tv_sec = (time_t)(delay_ns / 1000000000u);
        when.it_value.tv_nsec = delay_ns > 0 ? (long)(delay_ns % 1000000000u) : 1;
    }
    timerfd_settime(engine->descriptor.timer_fd, 0, &when, NULL);
}

/* ---- the network ----------------------------------------------------------------------------- */

/* The network's set of descriptors, not the context's own: that one is readable also while
 * unexpected messages wait, which flows do not take. */
static void network_use_locked(struct flow_engine *engine)
{
    if (!atomic_load(&engine->descriptor.used) || !engine->descriptor.network_open)
        return;
    bmi__progress_fd_used(engine->instance);
    /* EEXIST: it is in the set already */
    bmi__descriptor_watch(engine, bmi__progress_fd(engine->instance));
}

void bmi__descriptor_network_open(struct flow_engine *engine)
{
    pthread_mutex_lock(&engine->descriptor.lock);
    engine->descriptor.network_open = true;
    network_use_locked(engine);
    pthread_mutex_unlock(&engine->descriptor.lock);
}

/* The network's set may stay readable while no thread polls the network. */
void bmi__descriptor_network_close(struct flow_engine *engine, bool running)
{
    struct flow_descriptor *descriptor = &engine->descriptor;
    pthread_mutex_lock(&descriptor->lock);
    descriptor->network_open = false;
    if (running) /* ENOENT: it was not in the set */
        epoll_ctl(descriptor->epoll_fd, EPOLL_CTL_DEL, bmi__progress_fd(engine->instance), NULL);
    pthread_mutex_unlock(&descriptor->lock);
}

/* ---- the event ------------------------------------------------------------------------------- */

void bmi__descriptor_signal(struct flow_engine *engine)
{
    struct flow_descriptor *descriptor = &engine->descriptor;
    if (!atomic_load(&descriptor->used) || atomic_load(&descriptor->signalled))
        return; /* the thread that clears it checks afterwards */
    pthread_mutex_lock(&descriptor->event_lock);
    if (!atomic_exchange(&descriptor->signalled, true))
        eventfd_write(descriptor->event_fd, 1);
    pthread_mutex_unlock(&descriptor->event_lock);
}

void bmi__descriptor_clear(struct flow_engine *engine)
{
    struct flow_descriptor *descriptor = &engine->descriptor;
    eventfd_t value;
    if (!atomic_load(&descriptor->signalled))
        return;
    pthread_mutex_lock(&descriptor->event_lock);
    if (atomic_exchange(&descriptor->signalled, false))
        eventfd_read(descriptor->event_fd, &value);
    pthread_mutex_unlock(&descriptor->event_lock);
}

bool bmi__descriptor_used(const struct flow_engine *engine)
{
    return atomic_load(&engine->descriptor.used);
}

void bmi__descriptor_use(struct flow_engine *engine)
{
    pthread_mutex_lock(&engine->descriptor.lock);
    atomic_store(&engine->descriptor.used, true);
    network_use_locked(engine);
    pthread_mutex_unlock(&engine->descriptor.lock);
    bmi__descriptor_signal(engine); /* tasks may wait already */
}

/* ---- fork ------------------------------------------------------------------------------------ */

static void fd_forget(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void bmi__descriptor_forget(struct flow_engine *engine)
{
    struct flow_descriptor *descriptor = &engine->descriptor;
    pthread_mutex_init(&descriptor->lock, NULL);
    pthread_mutex_init(&descriptor->event_lock, NULL);
    descriptor->network_open = false;
    atomic_store(&descriptor->used, false);
    atomic_store(&descriptor->signalled, false);
    fd_forget(&descriptor->epoll_fd);
    fd_forget(&descriptor->timer_fd);
    fd_forget(&descriptor->event_fd);
}
