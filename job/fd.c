/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fd.c - the descriptor for a program's own loop: an epoll set of BMI's descriptor of the context
 * (the network has work), of an eventfd (a job has ended, a task was submitted), and of a timerfd
 * (a timer or deadline is due).
 *
 * A thread that adds an event writes to the eventfd. Only bmi__job_fd_settle reads it, and checks
 * all sources after the read: the check sees earlier events, and later events write again. fd_lock
 * guards the waker and the timer; it is taken before the manager's locks.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "bmi/base/error.h"
#include "bmi/instance.h"
#include "job/internal.h"

void bmi__job_fd_signal(struct bmi_job_context *context)
{
    eventfd_write(atomic_load(&context->event_fd), 1);
}

static void waker_wake(struct bmi_task_waker *waker)
{
    struct bmi_job_context *context =
        (struct bmi_job_context *)((char *)waker - offsetof(struct bmi_job_context, fd_waker));
    bmi__job_fd_signal(context);
}

static void timer_set_locked(struct bmi_job_context *context)
{
    uint64_t due = context->background ? UINT64_MAX : atomic_load(&context->next_due_ns);
    struct itimerspec when = {0};
    if (due == context->fd_due_ns)
        return;
    context->fd_due_ns = due;
    if (due != UINT64_MAX) {
        when.it_value.tv_sec = (time_t)(due / 1000000000u);
        when.it_value.tv_nsec = (long)(due % 1000000000u) | 1;
    }
    timerfd_settime(context->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static bool more_to_do(struct bmi_job_context *context)
{
    bmi_lock_take(&context->lock);
    bool more = context->ready.first != NULL;
    bmi_lock_give(&context->lock);
    if (more || context->background)
        return more;
    return atomic_load(&context->trove.pending) || atomic_load(&context->flow.pending) ||
           !bmi_task_waker_arm(context->manager, &context->fd_waker);
}

static void settle_locked(struct bmi_job_context *context)
{
    eventfd_t value;
    eventfd_read(atomic_load(&context->event_fd), &value);
    if (!context->background)
        bmi_task_waker_disarm(context->manager, &context->fd_waker);
    timer_set_locked(context);
    if (more_to_do(context))
        bmi__job_fd_signal(context);
}

void bmi__job_fd_settle(struct bmi_job_context *context)
{
    pthread_mutex_lock(&context->fd_lock);
    settle_locked(context);
    pthread_mutex_unlock(&context->fd_lock);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static int set_fill(struct bmi_job_context *context, int set, int event, int timer)
{
    struct bmi_context_fd network = {.context = context->bmi};
    struct epoll_event in = {.events = EPOLLIN};
    if (set < 0 || event < 0 || timer < 0)
        return bmi__error(-errno);
    int result = bmi_instance_get_info(context->instance, BMI_GET_CONTEXT_FD, &network);
    if (result < 0)
        return result;
    /* In the background the program need not poll the network. */
    if (epoll_ctl(set, EPOLL_CTL_ADD, event, &in) < 0 ||
        epoll_ctl(set, EPOLL_CTL_ADD, timer, &in) < 0 ||
        (!context->background && epoll_ctl(set, EPOLL_CTL_ADD, network.fd, &in) < 0))
        return bmi__error(-errno);
    return 0;
}

static int open_locked(struct bmi_job_context *context)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    int event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    int result = set_fill(context, set, event, timer);
    if (result < 0) {
        int fds[] = {set, event, timer};
        for (int i = 0; i < 3; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        return result;
    }
    context->timer_fd = timer;
    context->fd_due_ns = UINT64_MAX;
    context->epoll_fd = set;
    atomic_store(&context->event_fd, event);
    settle_locked(context);
    return set;
}

int bmi_job_context_fd(struct bmi_job_context *context)
{
    if (context == NULL)
        return -BMI_EINVAL;
    pthread_mutex_lock(&context->fd_lock);
    int fd = context->epoll_fd >= 0 ? context->epoll_fd : open_locked(context);
    pthread_mutex_unlock(&context->fd_lock);
    return fd;
}

void bmi__job_fd_init(struct bmi_job_context *context)
{
    pthread_mutex_init(&context->fd_lock, NULL);
    context->epoll_fd = context->timer_fd = -1;
    atomic_init(&context->event_fd, -1);
    context->fd_waker.wake = waker_wake;
    context->fd_waker.away = true; /* armed between the program's calls */
}

void bmi__job_fd_close(struct bmi_job_context *context)
{
    int event = atomic_exchange(&context->event_fd, -1);
    if (event >= 0) {
        if (!context->background)
            bmi_task_waker_disarm(context->manager, &context->fd_waker);
        close(context->epoll_fd);
        close(context->timer_fd);
        close(event);
    }
    pthread_mutex_destroy(&context->fd_lock);
}
