/* SPDX-License-Identifier: BSD-3-Clause
 *
 * poll.c - fetches completions from each source, and waits for more.
 *
 * The wait is BMI's own: the thread is the poller or a follower, and runs tasks. Other events that
 * end the wait call bmi__job_notify (wake.c): the end of a job, an earlier timer, a submitted task
 * (the waker's wake function), an unexpected message (the BMI context's hook). No wake-up is
 * lost, since a waiting thread enters the list before its last check (docs/threads.md).
 */
#include "bmi/base/clock.h"
#include "bmi/base/error.h"
#include "bmi/connection/address.h"
#include "bmi/connection/unexpected.h"
#include "bmi/progress/progress.h"
#include "bmi/state/context.h"
#include "bmi/state/library.h"
#include "bmi/state/op.h"
#include "job/internal.h"

enum { BATCH = 64 };

/* ---- sources --------------------------------------------------------------------------------- */

/* Fetches up to BATCH completions of BMI. Returns their number. */
static int network_take(struct bmi_job_context *context)
{
    struct op *ops[BATCH];
    struct bmi__job_ends ends = {0};
    int count = bmi__context_take(context->network, ops, BATCH);
    if (count == 0)
        return 0;
    bmi_lock_take(&context->lock);
    for (int i = 0; i < count; i++)
        bmi__job_end_locked(context, ops[i]->user_ptr, bmi__error(ops[i]->error), ops[i]->actual,
                            &ends);
    bmi_lock_give(&context->lock);
    for (int i = 0; i < count; i++)
        bmi__op_give(ops[i]);
    bmi__job_after(context, &ends);
    return count;
}

/* Fetches unexpected messages for jobs that wait for one. Returns whether any came. */
static bool unexpected_take(struct bmi_job_context *context)
{
    struct bmi__job_ends ends = {0};
    bool any = false;
    if (atomic_load(&context->unexpected_wanted) == 0 ||
        !bmi__unexpected_waiting(context->instance))
        return false;
    bmi_lock_take(&context->lock);
    struct bmi__job *job;
    while ((job = context->unexpected.first) != NULL &&
           bmi__unexpected_take(context->instance, job->unexpected.info, 1) == 1) {
        bmi__job_end_locked(context, job, 0, job->unexpected.info->size, &ends);
        any = true;
    }
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    return bmi__job_accept_take(context) || any;
}

bool bmi__job_poll(struct bmi_job_context *context)
{
    bool any = network_take(context) > 0;
    any |= unexpected_take(context);
    any |= bmi__job_source_take(&context->trove);
    any |= bmi__job_source_take(&context->flow);
    any |= bmi__job_timers_run(context);
    return any;
}

/* ---- waiting --------------------------------------------------------------------------------- */

struct wait {
    struct bmi_job_context *context;
    uint64_t seen;   /* ready_sequence */
    uint64_t due_ns; /* next_due_ns */
    struct bmi_task_waker waker;
    atomic_bool woken;
};

static void wait_wake(struct bmi_task_waker *waker)
{
    struct wait *wait = (struct wait *)((char *)waker - offsetof(struct wait, waker));
    struct bmi_job_context *context = wait->context;
    atomic_store(&wait->woken, true);
    bmi__progress_notify(context->instance, context_waiters(context->network), 0);
}

/* In the background other threads fetch completions; this thread only waits for ended jobs. */
static bool wait_ready(struct waiter *waiter)
{
    struct wait *wait = waiter->argument;
    struct bmi_job_context *context = wait->context;
    if (atomic_load(&context->ready_sequence) != wait->seen)
        return true;
    if (context->background)
        return false;
    return atomic_load(&wait->woken) || atomic_load(&context->trove.pending) ||
           atomic_load(&context->flow.pending) ||
           atomic_load(&context->next_due_ns) < wait->due_ns ||
           bmi__context_has(context->network) ||
           (atomic_load(&context->unexpected_wanted) > 0 &&
            bmi__unexpected_waiting(waiter->instance));
}

/* Milliseconds to wait, rounded up so that a timer is due at the end. */
static int wait_ms(const struct wait *wait, uint64_t now, uint64_t until_ns)
{
    uint64_t end = wait->due_ns < until_ns ? wait->due_ns : until_ns;
    uint64_t ms = end <= now ? 0 : (end - now + 999999) / 1000000;
    return ms > 1000000 ? 1000000 : (int)ms;
}

bool bmi__job_wait(struct bmi_job_context *context, uint64_t seen, uint64_t until_ns)
{
    struct wait wait = {.context = context, .seen = seen, .waker = {.wake = wait_wake}};
    struct waiter waiter = {.instance = context->instance,
                            .ready = wait_ready,
                            .argument = &wait,
                            .list = context_waiters(context->network),
                            .op = WAITER_SOME};
    uint64_t now = bmi__monotonic_ns();
    if (now >= until_ns)
        return false;
    if (context->background) { /* the poller runs the timers */
        wait.due_ns = UINT64_MAX;
        bmi__progress_wait(&waiter, wait_ms(&wait, now, until_ns));
        return true;
    }
    wait.due_ns = atomic_load(&context->next_due_ns);
    if (bmi_task_waker_arm(context->manager, &wait.waker)) {
        int ms = wait_ms(&wait, now, until_ns);
        if (ms > 0)
            bmi__progress_wait(&waiter, ms);
    }
    bmi_task_waker_disarm(context->manager, &wait.waker);
    return true;
}
