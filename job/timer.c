/* SPDX-License-Identifier: BSD-3-Clause
 *
 * timer.c - deadlines and timers: a binary heap of jobs by due time, under the context's lock. Each
 * job knows its place, so that a job which ends before its deadline is taken out at once.
 */
#include <stdlib.h>

#include "bmi/base/clock.h"
#include "bmi/progress/progress.h"
#include "job/internal.h"

static void heap_put(struct bmi_job_context *context, uint32_t place, struct bmi__job *job)
{
    context->heap[place] = job;
    job->heap_index = place;
}

static void heap_up(struct bmi_job_context *context, uint32_t place, struct bmi__job *job)
{
    while (place > 0 && context->heap[(place - 1) / 2]->due_ns > job->due_ns) {
        heap_put(context, place, context->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    heap_put(context, place, job);
}

static void heap_down(struct bmi_job_context *context, uint32_t place, struct bmi__job *job)
{
    for (;;) {
        uint32_t child = place * 2 + 1;
        if (child + 1 < context->heap_count &&
            context->heap[child + 1]->due_ns < context->heap[child]->due_ns)
            child++;
        if (child >= context->heap_count || context->heap[child]->due_ns >= job->due_ns)
            break;
        heap_put(context, place, context->heap[child]);
        place = child;
    }
    heap_put(context, place, job);
}

static void next_due_tell_locked(struct bmi_job_context *context)
{
    atomic_store(&context->next_due_ns,
                 context->heap_count > 0 ? context->heap[0]->due_ns : UINT64_MAX);
}

static int heap_room_locked(struct bmi_job_context *context)
{
    if (context->heap_count < context->heap_room)
        return 0;
    uint32_t room = context->heap_room != 0 ? context->heap_room * 2 : 64;
    struct bmi__job **grown = realloc(context->heap, room * sizeof *grown);
    if (grown == NULL)
        return -BMI_ENOMEM;
    context->counts.job_bytes += (room - context->heap_room) * sizeof *grown;
    context->heap = grown;
    context->heap_room = room;
    return 0;
}

int bmi__job_timer_add_locked(struct bmi_job_context *context, struct bmi__job *job,
                              uint64_t due_ns, struct bmi__job_ends *ends)
{
    if (heap_room_locked(context) < 0)
        return -BMI_ENOMEM;
    job->due_ns = due_ns;
    heap_up(context, context->heap_count++, job);
    if (job->heap_index == 0) {
        next_due_tell_locked(context);
        ends->earlier = true;
    }
    return 0;
}

void bmi__job_timer_remove_locked(struct bmi_job_context *context, struct bmi__job *job)
{
    uint32_t place = job->heap_index;
    struct bmi__job *last = context->heap[--context->heap_count];
    job->heap_index = JOB_NOT_IN_HEAP;
    if (last != job) {
        if (place > 0 && context->heap[(place - 1) / 2]->due_ns > last->due_ns)
            heap_up(context, place, last);
        else
            heap_down(context, place, last);
    }
    if (place == 0)
        next_due_tell_locked(context);
}

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
    bmi__job_timer_add_locked(context, job, next, ends);
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
        bmi__job_timer_remove_locked(context, job);
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
