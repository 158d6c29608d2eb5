/* SPDX-License-Identifier: BSD-3-Clause
 *
 * signal.c - signals and ends of child processes as jobs: a signalfd or a pidfd each, which BMI's
 * poller watches. The poller ends the job within the watch's callback.
 *
 * Only the poller removes a watch, so the thread that ends the job (in the callback, or by a
 * cancel) sets `over` and defers the removal, which frees the watch. The context's lock guards
 * `over`: once it is set the job's slot may be in use by another job. The watch is edge-triggered,
 * so that the poller does not spin until the watch is removed.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bmi/base/error.h"
#include "bmi/progress/progress.h"
#include "job/internal.h"

struct bmi__job_watch {
    struct bmi_watch watch; /* first; its descriptor is this structure's */
    struct bmi_deferred removal;
    struct bmi_job_context *context;
    struct bmi__job *job; /* until over */
    pid_t child;
    bool over; /* the context's lock */
};

/* ---- ends ------------------------------------------------------------------------------------ */

static void watch_remove(struct bmi_deferred *deferred)
{
    struct bmi__job_watch *watch =
        (struct bmi__job_watch *)((char *)deferred - offsetof(struct bmi__job_watch, removal));
    struct bmi_job_context *context = watch->context;
    struct bmi_instance *instance = context->instance;
    struct context *network = context->network;
    bmi_method_watch_remove(instance, &watch->watch);
    close(watch->watch.fd);
    free(watch);
    if (atomic_fetch_sub(&context->watches, 1) == 1) /* the last access to it */
        bmi__progress_notify(instance, context_waiters(network), 0);
}

static void watch_end_locked(struct bmi__job_watch *watch, bmi_error_code_t error,
                             bmi_size_t actual, struct bmi__job_ends *ends)
{
    watch->over = true;
    bmi__job_end_locked(watch->context, watch->job, error, actual, ends);
    bmi_method_defer(watch->context->instance, &watch->removal); /* may be freed from here on */
}

void bmi__job_watch_cancel_locked(struct bmi_job_context *context, struct bmi__job *job,
                                  struct bmi__job_ends *ends)
{
    (void)context;
    watch_end_locked(job->watch, -BMI_ECANCEL, 0, ends);
}

static bool unwatched(struct waiter *waiter)
{
    struct bmi_job_context *context = waiter->argument;
    return atomic_load(&context->watches) == 0;
}

void bmi__job_watches_end(struct bmi_job_context *context)
{
    struct waiter waiter = {.instance = context->instance,
                            .ready = unwatched,
                            .argument = context,
                            .list = context_waiters(context->network),
                            .op = WAITER_SOME};
    while (atomic_load(&context->watches) > 0)
        bmi__progress_wait(&waiter, 1000);
}

/* ---- arrivals -------------------------------------------------------------------------------- */

/* Returns the signal's number; 0: none, another job has taken it. */
static bmi_size_t signal_take(int fd)
{
    struct signalfd_siginfo info;
    return read(fd, &info, sizeof info) == sizeof info ? (bmi_size_t)info.ssi_signo : 0;
}

static void signal_ready(struct bmi_watch *ready, uint32_t events)
{
    struct bmi__job_watch *watch = (struct bmi__job_watch *)ready;
    struct bmi_job_context *context = watch->context;
    struct bmi__job_ends ends = {0};
    (void)events;
    bmi_lock_take(&context->lock);
    bmi_size_t number = watch->over ? 0 : signal_take(ready->fd);
    if (number != 0)
        watch_end_locked(watch, 0, number, &ends);
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
}

static void child_ready(struct bmi_watch *ready, uint32_t events)
{
    struct bmi__job_watch *watch = (struct bmi__job_watch *)ready;
    struct bmi_job_context *context = watch->context;
    struct bmi__job_ends ends = {0};
    int status = 0;
    (void)events;
    bmi_lock_take(&context->lock);
    pid_t reaped = watch->over ? 0 : waitpid(watch->child, &status, WNOHANG);
    if (reaped != 0)
        watch_end_locked(watch, reaped < 0 ? -BMI_ENOENT : 0, status, &ends);
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
}

/* ---- posts ----------------------------------------------------------------------------------- */

/* Watches the descriptor (or reports a negated errno); closes it if it cannot be watched. */
static int watch_begin(struct bmi_job_context *context, struct bmi__job *job, int fd, pid_t child,
                       void (*ready)(struct bmi_watch *watch, uint32_t events))
{
    struct bmi__job_watch *watch = fd >= 0 ? calloc(1, sizeof *watch) : NULL;
    int result = fd < 0 ? fd : -ENOMEM;
    if (watch == NULL)
        goto undo_fd;
    *watch = (struct bmi__job_watch){.watch = {.ready = ready, .fd = fd},
                                     .removal = {.run = watch_remove},
                                     .context = context,
                                     .job = job,
                                     .child = child};
    job->watch = watch;
    atomic_fetch_add(&context->watches, 1);
    result = bmi_method_watch_add(context->instance, &watch->watch, EPOLLIN | EPOLLET);
    if (result == 0)
        return 0;
    atomic_fetch_sub(&context->watches, 1);
    free(watch);
undo_fd:
    if (fd >= 0)
        close(fd);
    return bmi__error(result);
}

static int signal_fd(int number)
{
    sigset_t set, blocked;
    sigemptyset(&set);
    if (sigaddset(&set, number) != 0 || pthread_sigmask(SIG_BLOCK, NULL, &blocked) != 0 ||
        !sigismember(&blocked, number))
        return -EINVAL;
    int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    return fd >= 0 ? fd : -errno;
}

int bmi_job_signal(struct bmi_job_context *context, int number,
                   const struct bmi_job_options *options, bmi_job_id_t *id,
                   struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_SIGNAL, options, id, status, &result);
    if (job == NULL)
        return result;
    result = watch_begin(context, job, signal_fd(number), 0, signal_ready);
    return bmi__job_posted(context, job, result, id, status);
}

static int child_fd(pid_t child)
{
    siginfo_t info;
    if (child <= 0)
        return -EINVAL;
    if (waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
        return -ENOENT;
    int fd = (int)syscall(SYS_pidfd_open, child, 0);
    return fd >= 0 ? fd : -errno;
}

int bmi_job_child(struct bmi_job_context *context, pid_t child,
                  const struct bmi_job_options *options, bmi_job_id_t *id,
                  struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_CHILD, options, id, status, &result);
    if (job == NULL)
        return result;
    result = watch_begin(context, job, child_fd(child), child, child_ready);
    return bmi__job_posted(context, job, result, id, status);
}
