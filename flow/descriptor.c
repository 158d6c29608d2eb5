/* SPDX-License-Identifier: BSD-3-Clause
 *
 * descriptor.c - the descriptor of flow's contexts, which a program may poll: an epoll set of an
 * event, the timer of the deadlines, the storage's descriptor, and the network's.
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
#include "bmi/state/library.h"
#include "flow/internal.h"

static struct {
    pthread_mutex_t lock;
    int epoll_fd, timer_fd, event_fd; /* lock until created, then constant */
    bool network_open;                /* lock */
    atomic_bool used;                 /* a program polls a context's descriptor */
    pthread_mutex_t event_lock;
    atomic_bool signalled; /* event_fd is readable; event_lock to write */
} descriptor = {.lock = PTHREAD_MUTEX_INITIALIZER,
                .event_lock = PTHREAD_MUTEX_INITIALIZER,
                .epoll_fd = -1,
                .timer_fd = -1,
                .event_fd = -1};

/* ---- the set --------------------------------------------------------------------------------- */

int bmi__descriptor_watch(int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return fd >= 0 && epoll_ctl(descriptor.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

static int fds_make_locked(void)
{
    if (descriptor.timer_fd < 0)
        descriptor.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (descriptor.event_fd < 0)
        descriptor.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (descriptor.timer_fd < 0 || descriptor.event_fd < 0)
        return -errno;
    descriptor.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (descriptor.epoll_fd < 0)
        return -errno;
    int result = bmi__descriptor_watch(descriptor.timer_fd);
    if (result == 0)
        result = bmi__descriptor_watch(descriptor.event_fd);
    if (result != 0) { /* the next call creates it again */
        close(descriptor.epoll_fd);
        descriptor.epoll_fd = -1;
    }
    return result;
}

int bmi__descriptor(void)
{
    pthread_mutex_lock(&descriptor.lock);
    int result = descriptor.epoll_fd < 0 ? fds_make_locked() : 0;
    pthread_mutex_unlock(&descriptor.lock);
    return result < 0 ? result : descriptor.epoll_fd;
}

void bmi__descriptor_timer(uint64_t due_ns)
{
    struct itimerspec when = {0};
    if (due_ns != UINT64_MAX) {
        when.it_value.tv_sec = (time_t)(due_ns / 1000000000u);
        when.it_value.tv_nsec = (long)(due_ns % 1000000000u);
    }
    timerfd_settime(descriptor.timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* ---- the network ----------------------------------------------------------------------------- */

/* The network's set of descriptors, not the context's own: that one is readable also while
 * unexpected messages wait, which flows do not take. */
static void network_use_locked(void)
{
    if (!atomic_load(&descriptor.used) || !descriptor.network_open)
        return;
    bmi__progress_fd_used(&bmi__default);
    bmi__descriptor_watch(bmi__progress_fd(&bmi__default)); /* EEXIST: it is in the set already */
}

void bmi__descriptor_network(bool open)
{
    pthread_mutex_lock(&descriptor.lock);
    descriptor.network_open = open;
    if (open)
        network_use_locked();
    else if (bmi__running(&bmi__default)) /* otherwise BMI was finalized, against the rules */
        /* it may stay readable while no thread polls the network; ENOENT: it was not in the set */
        epoll_ctl(descriptor.epoll_fd, EPOLL_CTL_DEL, bmi__progress_fd(&bmi__default), NULL);
    pthread_mutex_unlock(&descriptor.lock);
}

/* ---- the event ------------------------------------------------------------------------------- */

void bmi__descriptor_signal(void)
{
    if (!atomic_load(&descriptor.used) || atomic_load(&descriptor.signalled))
        return; /* the thread that clears it checks afterwards */
    pthread_mutex_lock(&descriptor.event_lock);
    if (!atomic_exchange(&descriptor.signalled, true))
        eventfd_write(descriptor.event_fd, 1);
    pthread_mutex_unlock(&descriptor.event_lock);
}

void bmi__descriptor_clear(void)
{
    eventfd_t value;
    if (!atomic_load(&descriptor.signalled))
        return;
    pthread_mutex_lock(&descriptor.event_lock);
    if (atomic_exchange(&descriptor.signalled, false))
        eventfd_read(descriptor.event_fd, &value);
    pthread_mutex_unlock(&descriptor.event_lock);
}

bool bmi__descriptor_used(void)
{
    return atomic_load(&descriptor.used);
}

void bmi__descriptor_use(void)
{
    pthread_mutex_lock(&descriptor.lock);
    atomic_store(&descriptor.used, true);
    network_use_locked();
    pthread_mutex_unlock(&descriptor.lock);
    bmi__descriptor_signal(); /* tasks may wait already */
}

/* ---- fork ------------------------------------------------------------------------------------ */

static void fd_forget(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void bmi__descriptor_forget(void)
{
    pthread_mutex_init(&descriptor.lock, NULL);
    pthread_mutex_init(&descriptor.event_lock, NULL);
    descriptor.network_open = false;
    atomic_store(&descriptor.used, false);
    atomic_store(&descriptor.signalled, false);
    fd_forget(&descriptor.epoll_fd);
    fd_forget(&descriptor.timer_fd);
    fd_forget(&descriptor.event_fd);
}
