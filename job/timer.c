/* SPDX-License-Identifier: BSD-3-Clause
 *
 * timer.c - what happens when a job's time has come: its deadline, or a timer's own time.
 */
#include "bmi/base/clock.h"
#include "bmi/progress/progress.h"
#include "job/internal.h"

/* Puts a repeating timer back into the heap, into the place that it has left. */
static void repeat_locked(struct bmi_job_context *context, struct bmi__job *job, uint64_t now,
                          struct bmi__job_ends *ends)
{
    uint64_t interval = job->repeat.interval_ns, deadline = job->repeat.deadline_ns;
    uint64_t times = 1 + (now - job->due_ns) / interval;
    uint64_t next = job->due_ns + times * interval;
    if (next < job->due_ns)
        next = UINT64_MAX;
    if (deadline != 0 && deadline <= next) {
        job->flags |= JOB_DEADLINE_FIRST;
        next = deadline;
    }
    bmi__job_heap_add_locked(context, job, next, ends);
    bmi__job_tick_locked(context, job, times, ends);
}

static void timer_fire_locked(struct bmi_job_context *context, struct bmi__job *job, uint64_t now,
                              struct bmi__job_ends *ends)
{
    if ((job->flags & (JOB_REPEATS | JOB_DEADLINE_FIRST)) == JOB_REPEATS) {
        repeat_locked(context, job, now, ends);
        return;
    }
    if (job->kind == BMI_JOB_TIMER && !(job->flags & JOB_DEADLINE_FIRST)) {
        bmi__job_end_locked(context, job, 0, 0, ends);
        return;
    }
    job->flags |= JOB_TIMED_OUT;
    bmi__job_cancel_locked(context, job, ends);
}

bool bmi__job_timers_run(struct bmi_job_context *context)
{
    struct bmi__job_ends ends = {0};
    bool any = false;
    if (atomic_load_explicit(&context->next_due_ns, memory_order_relaxed) == UINT64_MAX)
        return false;
    uint64_t now = bmi__monotonic_ns();
    if (atomic_load_explicit(&context->next_due_ns, memory_order_relaxed) > now)
        return false;
    bmi_lock_take(&context->lock);
    while (context->heap_count > 0 && context->heap[0]->due_ns <= now) {
        struct bmi__job *job = context->heap[0];
        bmi__job_heap_remove_locked(context, job);
        timer_fire_locked(context, job, now, &ends);
        any = true;
    }
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    return any;
}

uint64_t bmi_job_deadline(int64_t ms)
{
    if (ms < 0)
        return 0;
    uint64_t now = bmi__monotonic_ns(), most_ms = (UINT64_MAX - now) / 1000000u;
    return (uint64_t)ms > most_ms ? UINT64_MAX : now + (uint64_t)ms * 1000000u;
}
