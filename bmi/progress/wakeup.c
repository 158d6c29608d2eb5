/* SPDX-License-Identifier: BSD-3-Clause
 * wakeup.c - see wakeup.h. */
#include "bmi/progress/wakeup.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "bmi/method.h"

static struct {
    int epoll_fd, wake_fd, timer_fd;
    atomic_bool asleep, watching;
    atomic_bool pending; /* the eventfd was written to, and not read since */
    atomic_bool fd_used;
} wakeup = {.epoll_fd = -1, .wake_fd = -1, .timer_fd = -1};

static struct bmi_watch wake_watch, timer_watch;
static _Thread_local bool is_poller;

void bmi__wakeup_set_poller(bool poller)
{
    is_poller = poller;
}

bool bmi__is_poller(void)
{
    return is_poller;
}

int bmi__progress_fd(void)
{
    return wakeup.epoll_fd;
}

bool bmi__progress_asleep(void)
{
    bmi_fence(); /* the caller has queued something before */
    return atomic_load(&wakeup.asleep) || atomic_load(&wakeup.watching);
}

bool bmi__wakeup_poller_asleep(void)
{
    return atomic_load(&wakeup.asleep);
}

void bmi__wakeup_set_asleep(bool asleep)
{
    atomic_store(&wakeup.asleep, asleep);
}

void bmi__wakeup_set_watching(bool watching)
{
    atomic_store(&wakeup.watching, watching);
    bmi_fence();
}

bool bmi__wakeup_watching(void)
{
    return atomic_load_explicit(&wakeup.watching, memory_order_relaxed);
}

void bmi__wakeup_force(void)
{
    if (!atomic_exchange(&wakeup.pending, true))
        eventfd_write(wakeup.wake_fd, 1);
}

void bmi__progress_kick(void)
{
    if (is_poller)
        return;
    if (bmi__progress_asleep() || atomic_load(&wakeup.fd_used))
        bmi__wakeup_force();
}

void bmi__progress_fd_used(void)
{
    atomic_store(&wakeup.fd_used, true);
    bmi__wakeup_force();
}

bool bmi__wakeup_fd_used(void)
{
    return atomic_load_explicit(&wakeup.fd_used, memory_order_relaxed);
}

void bmi__wakeup_timer(uint64_t due_ns)
{
    struct itimerspec when = {0};
    if (due_ns != UINT64_MAX) {
        when.it_value.tv_sec = (time_t)(due_ns / 1000000000u);
        when.it_value.tv_nsec = (long)(due_ns % 1000000000u) | 1;
    }
    timerfd_settime(wakeup.timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void wake_ready(struct bmi_watch *watch, uint32_t events)
{
    eventfd_t value;
    (void)events;
    eventfd_read(watch->fd, &value);
    atomic_store(&wakeup.pending, false);
}

static void timer_ready(struct bmi_watch *watch, uint32_t events)
{
    uint64_t count;
    (void)events;
    ssize_t got = read(watch->fd, &count, sizeof count);
    (void)got; /* it only had to end a wait */
}

int bmi__wakeup_start(void)
{
    wakeup.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    wakeup.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    wakeup.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    wake_watch = (struct bmi_watch){.ready = wake_ready, .fd = wakeup.wake_fd};
    timer_watch = (struct bmi_watch){.ready = timer_ready, .fd = wakeup.timer_fd};
    if (wakeup.epoll_fd >= 0 && wakeup.wake_fd >= 0 && wakeup.timer_fd >= 0 &&
        bmi_method_watch_add(&wake_watch, EPOLLIN) == 0 &&
        bmi_method_watch_add(&timer_watch, EPOLLIN) == 0)
        return 0;
    int error = errno;
    bmi__wakeup_stop();
    return -error;
}

void bmi__wakeup_stop(void)
{
    int *fds[] = {&wakeup.epoll_fd, &wakeup.wake_fd, &wakeup.timer_fd};
    for (int i = 0; i < 3; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
    atomic_store(&wakeup.fd_used, false);
    atomic_store(&wakeup.watching, false);
    atomic_store(&wakeup.pending, false);
}
