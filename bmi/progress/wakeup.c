/* SPDX-License-Identifier: BSD-3-Clause
 * wakeup.c - see wakeup.h. */
#include "bmi/progress/wakeup.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "bmi/base/instance.h"
#include "bmi/method.h"

struct bmi__wakeup {
    int epoll_fd, wake_fd, timer_fd;
    atomic_bool asleep, watching;
    atomic_bool pending; /* the eventfd was written to, and not read since */
    atomic_bool fd_used;
    struct bmi_watch wake_watch, timer_watch;
};

/* The instance whose poller this thread is; the latest one, if the program called another instance
 * within a callback of the first. */
static _Thread_local struct bmi_instance *polled;

struct bmi_instance *bmi__wakeup_set_poller(struct bmi_instance *instance)
{
    struct bmi_instance *before = polled;
    polled = instance;
    return before;
}

struct bmi_instance *bmi__wakeup_poller(void)
{
    return polled;
}

bool bmi__is_poller(const struct bmi_instance *instance)
{
    return polled == instance;
}

int bmi__progress_fd(struct bmi_instance *instance)
{
    struct bmi__wakeup *wakeup = instance->wakeup;
    return wakeup->epoll_fd;
}

bool bmi__progress_asleep(struct bmi_instance *instance)
{
    struct bmi__wakeup *wakeup = instance->wakeup;
    bmi_fence(); /* the caller has queued something before */
    return atomic_load(&wakeup->asleep) || atomic_load(&wakeup->watching);
}

bool bmi__wakeup_poller_asleep(struct bmi_instance *instance)
{
    struct bmi__wakeup *wakeup = instance->wakeup;
    return atomic_load(&wakeup->asleep);
}

void bmi__wakeup_set_asleep(struct bmi_instance *instance, bool asleep)
{
    struct bmi__wakeup *wakeup = instance->wakeup;
    atomic_store(&wakeup->asleep, asleep);
}

void bmi__wakeup_set_watching(struct bmi_instance *instance, bool watching)
{
    struct bmi__wakeup *wakeup = instance->wakeup;
    atomic_store(&wakeup->watching, watching);
    bmi_fence();
}

bool bmi__wakeup_watching(struct bmi_instance *instance)
{
    struct bmi__wakeup *wakeup = instance->wakeup;
    return atomic_load_explicit(&wakeup->watching, memory_order_relaxed);
}

void bmi__wakeup_force(struct bmi_instance *instance)
{
    struct bmi__wakeup *wakeup = instance->wakeup;
    if (!atomic_exchange(&wakeup->pending, true))
        eventfd_write(wakeup->wake_fd, 1);
}

void bmi__progress_kick(struct bmi_instance *instance)
{
    struct bmi__wakeup *wakeup = instance->wakeup;
    if (polled == instance)
        return;
    if (bmi__progress_asleep(instance) || atomic_load(&wakeup->fd_used))
        bmi__wakeup_force(instance);
}

void bmi__progress_fd_used(struct bmi_instance *instance)
{
    struct bmi__wakeup *wakeup = instance->wakeup;
    atomic_store(&wakeup->fd_used, true);
    bmi__wakeup_force(instance);
}

bool bmi__wakeup_fd_used(struct bmi_instance *instance)
{
    struct bmi__wakeup *wakeup = instance->wakeup;
    return atomic_load_explicit(&wakeup->fd_used, memory_order_relaxed);
}

void bmi__wakeup_timer(struct bmi_instance *instance, uint64_t due_ns)
{
    struct bmi__wakeup *wakeup = instance->wakeup;
    struct itimerspec when = {0};
    if (due_ns != UINT64_MAX) {
        when.it_value.tv_sec = (time_t)(due_ns / 1000000000u);
        when.it_value.tv_nsec = (long)(due_ns % 1000000000u) | 1;
    }
    timerfd_settime(wakeup->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void wake_ready(struct bmi_watch *watch, uint32_t events)
{
    struct bmi__wakeup *wakeup =
        (struct bmi__wakeup *)((char *)watch - offsetof(struct bmi__wakeup, wake_watch));
    eventfd_t value;
    (void)events;
    eventfd_read(watch->fd, &value);
    atomic_store(&wakeup->pending, false);
}

static void timer_ready(struct bmi_watch *watch, uint32_t events)
{
    uint64_t count;
    (void)events;
    ssize_t got = read(watch->fd, &count, sizeof count);
    (void)got; /* it only had to end a wait */
}

int bmi__wakeup_open(struct bmi_instance *instance)
{
    struct bmi__wakeup *wakeup = calloc(1, sizeof *wakeup);
    if (wakeup == NULL)
        return -ENOMEM;
    instance->wakeup = wakeup;
    wakeup->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    wakeup->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    wakeup->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    wakeup->wake_watch = (struct bmi_watch){.ready = wake_ready, .fd = wakeup->wake_fd};
    wakeup->timer_watch = (struct bmi_watch){.ready = timer_ready, .fd = wakeup->timer_fd};
    if (wakeup->epoll_fd >= 0 && wakeup->wake_fd >= 0 && wakeup->timer_fd >= 0 &&
        bmi_method_watch_add(instance, &wakeup->wake_watch, EPOLLIN) == 0 &&
        bmi_method_watch_add(instance, &wakeup->timer_watch, EPOLLIN) == 0)
        return 0;
    int error = errno;
    bmi__wakeup_close(instance);
    return -error;
}

void bmi__wakeup_close(struct bmi_instance *instance)
{
    struct bmi__wakeup *wakeup = instance->wakeup;
    if (wakeup == NULL)
        return;
    const int fds[] = {wakeup->epoll_fd, wakeup->wake_fd, wakeup->timer_fd};
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(wakeup);
    instance->wakeup = NULL;
}
