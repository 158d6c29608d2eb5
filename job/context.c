/* SPDX-License-Identifier: BSD-3-Clause
 *
 * context.c - opening and closing a context, and queries. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "bmi/base/clock.h"
#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/connection/address.h"
#include "bmi/connection/unexpected.h"
#include "bmi/progress/progress.h"
#include "bmi/state/context.h"
#include "bmi/state/library.h"
#include "job/internal.h"
#include "task/internal.h"

static enum bmi_task_status poll_run(struct bmi_task *task, void *argument)
{
    struct bmi_job_context *context = argument;
    bmi__job_poll(context);
    if (bmi__context_has(context->network)) /* more than a batch: the hook has reported
                                               it already */
        bmi_task_submit(task);
    return BMI_TASK_DONE;
}

static const struct bmi__job_upcalls upcalls = {
    .watch_cancel_locked = bmi__job_watch_cancel_locked,
    .accept_cancel_locked = bmi__job_accept_cancel_locked,
    .serve_cancel_locked = bmi__job_serve_cancel_locked,
    .accepted_end = bmi__job_accepted_end,
    .served_end = bmi__job_served_end,
};

/* ---- opening --------------------------------------------------------------------------------- */

static int background_begin(struct bmi_job_context *context)
{
    struct bmi_task_attributes attributes = {.function = poll_run, .argument = context};
    int result = bmi_task_prepare(&context->poll, context->manager, &attributes);
    if (result == 0)
        result = bmi__job_poller_join(context);
    if (result < 0)
        return bmi__error(result);
    bmi__job_hook(context);
    context->poll_submitted = bmi_task_submit(&context->poll) == 0;
    return 0;
}

static int network_begin(struct bmi_job_context *context)
{
    int result = bmi_instance_open_context(context->instance, &context->bmi);
    if (result < 0)
        return result;
    context->network = bmi__context_find(context->bmi);
    bmi__context_completions_only(context->network);
    return 0;
}

static enum bmi_task_threads threads_of(const struct bmi_job_context *context)
{
    return context->background ? BMI_TASK_WORKERS : BMI_TASK_HOOKS_ONLY;
}

static int context_begin(struct bmi_job_context *context)
{
    int result = network_begin(context);
    if (result < 0)
        return result;
    result = bmi__error(bmi_task_manager_start(context->manager, threads_of(context)));
    if (result < 0)
        goto undo_network;
    result = context->background ? background_begin(context) : 0;
    if (result < 0)
        goto undo_manager;
    return 0;
undo_manager:
    bmi_task_manager_stop(context->manager, threads_of(context));
undo_network:
    BMI_close_context(context->bmi);
    return result;
}

/* Recursive: an action may call a test function, which runs machines. */
static void steps_init(struct bmi_job_context *context)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&context->stepping, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

int bmi_instance_job_context_open(struct bmi_instance *instance, unsigned options,
                                  struct bmi_job_context **out)
{
    if (out == NULL || (options & ~(unsigned)BMI_JOB_BACKGROUND) || instance == NULL ||
        !bmi__running(instance))
        return -BMI_EINVAL;
    struct bmi_job_context *context = calloc(1, sizeof *context);
    if (context == NULL)
        return -BMI_ENOMEM;
    context->instance = instance;
    context->manager = bmi_task_manager_default();
    context->upcalls = &upcalls;
    context->background = options & BMI_JOB_BACKGROUND;
    atomic_init(&context->next_due_ns, UINT64_MAX);
    steps_init(context);
    bmi__job_fd_init(context);
    bmi__job_source_init(&context->trove, context, false);
    bmi__job_source_init(&context->flow, context, true);
    int result = context->manager != NULL ? context_begin(context) : -BMI_ENOMEM;
    if (result < 0) {
        bmi__job_fd_close(context);
        pthread_mutex_destroy(&context->stepping);
        free(context);
        return result;
    }
    *out = context;
    return 0;
}

int bmi_job_context_open(unsigned options, struct bmi_job_context **out)
{
    return bmi_instance_job_context_open(&bmi__default, options, out);
}

/* ---- closing --------------------------------------------------------------------------------- */

/* Runs until no job is pending. */
static void drain(struct bmi_job_context *context)
{
    bool pending = true;
    struct bmi__job_ends ends = {0};
    bmi__tasks_needed();
    bmi_lock_take(&context->lock);
    context->closing = true;
    bmi__job_cancel_all_locked(context, &ends);
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    while (pending) {
        bmi__job_poll(context);
        bmi_task_schedule(context->manager);
        bmi_lock_take(&context->lock);
        uint64_t seen = atomic_load(&context->ready_sequence);
        pending = context->counts.pending > 0;
        bmi_lock_give(&context->lock);
        if (pending) /* the end of a machine's job is no completion: check again soon */
            bmi__job_wait(context, seen, bmi__monotonic_ns() + 10000000u);
    }
    bmi__job_watches_end(context);
    while (atomic_load(&context->runners) > 0)
        sched_yield(); /* another thread is in the last lines of a machine's end */
    bmi__tasks_needed_end();
}

/* Returns messages that were taken and not fetched to the core's queue, in order: otherwise no call
 * would free them, and their senders would wait for room. */
static void messages_return(struct bmi_job_context *context)
{
    for (struct bmi__job *job = context->ready.last; job != NULL; job = job->previous)
        if (job->kind == BMI_JOB_UNEXPECTED && job->error == 0) {
            bmi__unexpected_untake(context->instance, job->unexpected.info->buffer);
            job->unexpected.info->buffer = NULL;
        }
}

int bmi_job_context_close(struct bmi_job_context *context)
{
    if (context == NULL)
        return -BMI_EINVAL;
    drain(context);
    bmi__job_source_quiet(&context->flow);
    bmi__job_source_quiet(&context->trove);
    bmi__job_hooks_end(context);
    messages_return(context);
    if (context->background) {
        bmi__job_poller_unwatch(context);
        if (context->poll_submitted)
            bmi__task_await(&context->poll); /* runs no tasks while it waits */
        bmi__job_poller_leave(context);
    }
    bmi__job_source_close(&context->flow);
    bmi__job_source_close(&context->trove);
    bmi__job_fd_close(context);
    bmi_task_manager_stop(context->manager, threads_of(context));
    BMI_close_context(context->bmi);
    bmi__sm_free_all(context);
    bmi__job_heap_free(context);
    bmi__job_table_free(context);
    for (struct bmi__tracer *tracer = context->tracers, *next; tracer != NULL; tracer = next) {
        next = tracer->next;
        free(tracer);
    }
    pthread_mutex_destroy(&context->stepping);
    free(context);
    return 0;
}

int bmi_job_statistics(struct bmi_job_context *context, struct bmi_job_statistics *statistics)
{
    if (context == NULL || statistics == NULL)
        return -BMI_EINVAL;
    bmi_lock_take(&context->lock);
    *statistics = context->counts;
    bmi_lock_give(&context->lock);
    statistics->steps = atomic_load(&context->steps);
    return 0;
}
