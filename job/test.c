/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test.c - the test functions: they take ended jobs; if there are none they poll the sources and
 * run tasks, and take again; then they wait. If a call finds ended jobs at once, every few calls
 * poll nevertheless, so that a program with a constant supply still reads the network and runs its
 * tasks. A caller that waits for one machine takes that machine's steps before those of others.
 */
#include <limits.h>

#include "bmi/base/clock.h"
#include "bmi/connection/address.h"
#include "bmi/progress/progress.h"
#include "job/internal.h"

enum { POLL_EVERY = 8, OTHERS_EVERY = 8 };

static _Thread_local unsigned calls_without_poll, calls_without_others;

/* The arguments of a test call. */
struct take {
    struct bmi_job_context *context;
    int (*take_locked)(struct take *take); /* returns how many it took; -1: invalid id */
    const bmi_job_id_t *ids;               /* NULL: any */
    int count;                             /* of ids, or the most jobs to take */
    int *index;
    struct bmi_job_status *statuses;
};

static int take_any_locked(struct take *take)
{
    struct bmi_job_context *context = take->context;
    int taken = 0;
    while (taken < take->count && context->ready.first != NULL)
        bmi__job_report_locked(context, context->ready.first, &take->statuses[taken++]);
    return taken;
}

static int take_some_locked(struct take *take)
{
    struct bmi_job_context *context = take->context;
    int taken = 0;
    for (int i = 0; i < take->count; i++)
        if (take->ids[i] != 0 && bmi__job_find_locked(context, take->ids[i]) == NULL)
            return -1;
    for (int i = 0; i < take->count; i++) {
        struct bmi__job *job =
            take->ids[i] != 0 ? bmi__job_find_locked(context, take->ids[i]) : NULL;
        if (job == NULL || job->phase != JOB_READY)
            continue;
        if (take->index != NULL)
            take->index[taken] = i;
        bmi__job_report_locked(context, job, &take->statuses[taken++]);
    }
    return taken;
}

/* Returns the result of take_locked, and in *seen the ready_sequence at that time. */
static int take_now(struct take *take, uint64_t *seen)
{
    bmi_lock_take(&take->context->lock);
    *seen = atomic_load_explicit(&take->context->ready_sequence, memory_order_relaxed);
    int taken = take->take_locked(take);
    bmi_lock_give(&take->context->lock);
    return taken;
}

/* Runs tasks. A machine that the caller waits for comes first; if it ends, most calls leave the
 * steps of other machines to the next call. */
static void tasks_run(const struct take *take)
{
    bool one = take->ids != NULL && take->count == 1;
    if (one && calls_without_others < OTHERS_EVERY &&
        bmi__sm_run_first(take->context, take->ids[0])) {
        calls_without_others++;
        return;
    }
    calls_without_others = 0;
    bmi_task_schedule(take->context->manager);
}

/* Polls every source once. */
static void look(const struct take *take, bool drive)
{
    calls_without_poll = 0;
    if (drive)
        bmi__progress_poll(take->context->instance);
    bmi__job_poll(take->context);
    tasks_run(take);
}

static int take_or_wait(struct take *take, int max_idle_ms)
{
    struct bmi_job_context *context = take->context;
    uint64_t seen, until_ns = 0;
    int taken = take_now(take, &seen);
    if (taken != 0) {
        if (++calls_without_poll >= POLL_EVERY)
            look(take, true);
        return taken;
    }
    look(take, max_idle_ms == 0);
    taken = take_now(take, &seen);
    if (taken != 0 || max_idle_ms == 0)
        return taken;
    until_ns = bmi__monotonic_ns() + (uint64_t)max_idle_ms * 1000000u;
    for (bool more = true; taken == 0 && more;) {
        more = bmi__job_wait(context, seen, until_ns);
        look(take, false);
        taken = take_now(take, &seen);
    }
    return taken;
}

/* Returns the result of the test functions. */
static int test(struct take *take, int *outcount, int max_idle_ms)
{
    int taken = take_or_wait(take, max_idle_ms);
    if (atomic_load_explicit(&take->context->event_fd, memory_order_relaxed) >= 0)
        bmi__job_fd_settle(take->context);
    if (taken < 0)
        return -BMI_EINVAL;
    *outcount = taken;
    return taken > 0;
}

static bool arguments_good(const struct bmi_job_context *context, int *outcount, int max_idle_ms)
{
    if (outcount != NULL)
        *outcount = 0;
    return context != NULL && outcount != NULL && max_idle_ms >= 0;
}

int bmi_job_test(struct bmi_job_context *context, bmi_job_id_t id, int *outcount,
                 struct bmi_job_status *status, int max_idle_ms)
{
    struct take take = {.context = context,
                        .take_locked = take_some_locked,
                        .ids = &id,
                        .count = 1,
                        .statuses = status};
    if (!arguments_good(context, outcount, max_idle_ms) || status == NULL || id == 0)
        return -BMI_EINVAL;
    return test(&take, outcount, max_idle_ms);
}

int bmi_job_testsome(struct bmi_job_context *context, int incount, const bmi_job_id_t *ids,
                     int *outcount, int *index, struct bmi_job_status *statuses, int max_idle_ms)
{
    struct take take = {.context = context,
                        .take_locked = take_some_locked,
                        .ids = ids,
                        .count = incount,
                        .index = index,
                        .statuses = statuses};
    if (!arguments_good(context, outcount, max_idle_ms) || incount < 0 ||
        (incount > 0 && (ids == NULL || statuses == NULL)))
        return -BMI_EINVAL;
    return test(&take, outcount, max_idle_ms);
}

int bmi_job_testcontext(struct bmi_job_context *context, int incount, int *outcount,
                        struct bmi_job_status *statuses, int max_idle_ms)
{
    struct take take = {.context = context,
                        .take_locked = take_any_locked,
                        .count = incount,
                        .statuses = statuses};
    if (!arguments_good(context, outcount, max_idle_ms) || incount < 1 || statuses == NULL)
        return -BMI_EINVAL;
    return test(&take, outcount, max_idle_ms);
}

/* ---- one job --------------------------------------------------------------------------------- */

static void cancel_late(struct bmi_job_context *context, bmi_job_id_t id)
{
    struct bmi__job_ends ends = {0};
    bmi_lock_take(&context->lock);
    struct bmi__job *job = bmi__job_find_locked(context, id);
    if (job != NULL) {
        job->flags |= JOB_TIMED_OUT;
        bmi__job_cancel_locked(context, job, &ends);
    }
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
}

int bmi_job_wait(struct bmi_job_context *context, bmi_job_id_t id, struct bmi_job_status *status,
                 int posted, int timeout_ms)
{
    struct bmi_job_status own = {0};
    struct bmi_job_status *into = status != NULL ? status : &own;
    int count = 0;
    if (context == NULL)
        return -BMI_EINVAL;
    if (posted != 0) {
        if (posted < 0)
            into->error = posted;
        return posted < 0 ? posted : into->error;
    }
    int result = bmi_job_test(context, id, &count, into, timeout_ms < 0 ? INT_MAX : timeout_ms);
    if (result == 0 && timeout_ms >= 0)
        cancel_late(context, id);
    while (result == 0)
        result = bmi_job_test(context, id, &count, into, INT_MAX);
    return result < 0 ? result : into->error;
}
