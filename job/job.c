/* SPDX-License-Identifier: BSD-3-Clause
 *
 * job.c - how a job of any kind begins, ends, and is cancelled, and what its end does to the
 * machine that waits for it. See internal.h.
 */
#include <assert.h>
#include <stddef.h>

#include "bmi/base/clock.h"
#include "bmi/progress/progress.h"
#include "bmi/task_group.h"
#include "job/internal.h"

static void machine_add_locked(struct bmi_sm *machine, struct bmi__job *job)
{
    job->previous = NULL;
    job->next = machine->jobs;
    if (machine->jobs != NULL)
        machine->jobs->previous = job;
    machine->jobs = job;
    machine->outstanding++;
}

static void machine_remove_locked(struct bmi_sm *machine, struct bmi__job *job)
{
    if (job->previous != NULL)
        job->previous->next = job->next;
    else
        machine->jobs = job->next;
    if (job->next != NULL)
        job->next->previous = job->previous;
    machine->outstanding--;
}

static void unexpected_remove_locked(struct bmi_job_context *context, struct bmi__job *job)
{
    struct bmi__job *next = job->unexpected.next, *previous = job->unexpected.previous;
    if (previous != NULL)
        previous->unexpected.next = next;
    else
        context->unexpected.first = next;
    if (next != NULL)
        next->unexpected.previous = previous;
    else
        context->unexpected.last = previous;
    job->flags &= (uint8_t)~JOB_LISTED;
    atomic_fetch_sub(&context->unexpected_wanted, 1);
}

/* ---- begin ----------------------------------------------------------------------------------- */

/* The deadline of a job: its own or its machine's, whichever is earlier. */
uint64_t bmi__job_deadline_of(const struct bmi_job_options *options)
{
    if (options == NULL)
        return 0;
    uint64_t own = options->deadline_ns;
    uint64_t machine = options->machine != NULL ? options->machine->deadline_ns : 0;
    return own == 0 || (machine != 0 && machine < own) ? machine : own;
}

static int begin_locked(struct bmi_job_context *context, enum bmi_job_kind kind,
                        uint64_t deadline_ns, struct bmi__job **out, struct bmi__job_ends *ends)
{
    if (context->closing)
        return -BMI_ECANCEL;
    struct bmi__job *job = bmi__job_take_locked(context);
    if (job == NULL)
        return -BMI_ENOMEM;
    job->heap_index = JOB_NOT_IN_HEAP;
    /* A machine passes its deadline to its jobs; a timer adds itself, with its own time. */
    if (deadline_ns != 0 && kind != BMI_JOB_MACHINE && kind != BMI_JOB_TIMER &&
        bmi__job_heap_add_locked(context, job, deadline_ns, ends) < 0) {
        bmi__job_give_locked(context, job);
        return -BMI_ENOMEM;
    }
    job->kind = (uint8_t)kind;
    job->phase = JOB_POSTING;
    job->flags = 0;
    job->error = 0;
    job->actual = 0;
    job->op = 0;
    context->counts.posted++;
    context->counts.pending++;
    *out = job;
    return 0;
}

int bmi__job_begin(struct bmi_job_context *context, enum bmi_job_kind kind,
                   const struct bmi_job_options *options, struct bmi_job_status *status,
                   struct bmi__job **out)
{
    struct bmi__job_ends ends = {0};
    uint64_t deadline_ns = bmi__job_deadline_of(options);
    if (context == NULL)
        return -BMI_EINVAL;
    if (deadline_ns != 0 && deadline_ns <= bmi__monotonic_ns())
        return -BMI_ETIMEDOUT;
    bmi_lock_take(&context->lock);
    int result = begin_locked(context, kind, deadline_ns, out, &ends);
    if (result == 0) {
        struct bmi__job *job = *out;
        job->user_ptr = options != NULL ? options->user_ptr : NULL;
        job->machine = options != NULL ? options->machine : NULL;
        job->into = job->machine != NULL ? status : NULL;
        if (job->machine != NULL)
            machine_add_locked(job->machine, job);
    }
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    return result;
}

struct bmi__job *bmi__job_new(struct bmi_job_context *context, enum bmi_job_kind kind,
                              const struct bmi_job_options *options, bmi_job_id_t *id,
                              struct bmi_job_status *status, int *result)
{
    struct bmi__job *job = NULL;
    *result = bmi__job_begin(context, kind, options, status, &job);
    if (id != NULL)
        *id = job != NULL ? bmi__job_id(job) : 0;
    return job;
}

/* ---- the jobs that a machine waits for ------------------------------------------------------- */

/* An end among them must not cancel again: `cancelling`. */
void bmi__sm_cancel_jobs_locked(struct bmi_sm *machine, struct bmi__job_ends *ends)
{
    if (machine->cancelling)
        return;
    machine->cancelling = machine->jobs_cancelled = true;
    for (struct bmi__job *job = machine->jobs, *next; job != NULL; job = next) {
        next = job->next;
        bmi__job_cancel_locked(machine->context, job, ends);
    }
    machine->cancelling = false;
}

/* If all jobs were cancelled since it began to wait, a failure is only the answer to that: children
 * that are cleaning up are not disturbed. */
bool bmi__sm_first_failure_counts(const struct bmi_sm *machine)
{
    return machine->phase == SM_WAITING && machine->failure < 0 && !machine->jobs_cancelled &&
           sm_state(machine)->wait == BMI_SM_FIRST_FAILURE;
}

/* One of its jobs has ended, and was taken out of its list. */
static void machine_job_ended_locked(struct bmi_sm *machine, bmi_error_code_t error,
                                     struct bmi__job_ends *ends)
{
    bool first = error < 0 && machine->failure == 0;
    if (first)
        machine->failure = error;
    if (machine->outstanding > 0) {
        if (first && bmi__sm_first_failure_counts(machine))
            bmi__sm_cancel_jobs_locked(machine, ends);
        return;
    }
    if (machine->phase != SM_WAITING && machine->phase != SM_ENDING)
        return;
    machine->phase = machine->phase == SM_WAITING ? SM_RESUMED : SM_ENDED;
    machine->next = ends->resume;
    ends->resume = machine;
}

static void machine_cancel_locked(struct bmi_sm *machine, struct bmi__job_ends *ends)
{
    if (machine->phase == SM_ENDED)
        return;
    machine->cancel = SM_CANCEL_WANTED;
    if (machine->phase == SM_WAITING || machine->phase == SM_ENDING)
        bmi__sm_cancel_jobs_locked(machine, ends);
}

void bmi__sm_resume(struct bmi_sm *machine)
{
    struct bmi_task_group *group = machine->group;
    int result = group != NULL ? bmi_task_group_submit(group, &machine->task)
                               : bmi_task_submit(&machine->task);
    assert(result == 0);
    (void)result;
}

/* ---- end ------------------------------------------------------------------------------------- */

static void status_of(const struct bmi__job *job, bmi_job_id_t id, struct bmi_job_status *status)
{
    *status = (struct bmi_job_status){.id = id,
                                      .kind = job->kind,
                                      .error = job->error,
                                      .actual = job->actual,
                                      .user_ptr = job->user_ptr};
}

static void count_end_locked(struct bmi_job_context *context, const struct bmi__job *job)
{
    context->counts.pending--;
    context->counts.completed++;
    if (job->error == -BMI_ECANCEL)
        context->counts.cancelled++;
    else if (job->error == -BMI_ETIMEDOUT)
        context->counts.timed_out++;
    else if (job->error < 0)
        context->counts.failed++;
}

void bmi__job_end_locked(struct bmi_job_context *context, struct bmi__job *job,
                         bmi_error_code_t error, bmi_size_t actual, struct bmi__job_ends *ends)
{
    if (error == -BMI_ECANCEL && (job->flags & JOB_TIMED_OUT))
        error = -BMI_ETIMEDOUT;
    job->error = error;
    job->actual = actual;
    if (job->flags & JOB_LISTED)
        unexpected_remove_locked(context, job);
    if (job->phase == JOB_POSTING) {
        job->phase = JOB_EARLY; /* bmi__job_posted continues */
        return;
    }
    if (job->heap_index != JOB_NOT_IN_HEAP)
        bmi__job_heap_remove_locked(context, job);
    count_end_locked(context, job);
    struct bmi_sm *machine = job->machine;
    if (job->flags & JOB_UNREPORTED) {
        bmi__job_give_locked(context, job);
        return;
    }
    if (machine == NULL) {
        job->phase = JOB_READY;
        bmi__job_ready_append_locked(context, job);
        ends->ready = true;
        return;
    }
    machine_remove_locked(machine, job);
    if (job->into != NULL)
        status_of(job, bmi__job_id(job), job->into);
    bmi__job_give_locked(context, job);
    machine_job_ended_locked(machine, error, ends);
}

void bmi__job_tick_locked(struct bmi_job_context *context, struct bmi__job *job, uint64_t times,
                          struct bmi__job_ends *ends)
{
    job->actual += (bmi_size_t)times;
    if (job->phase == JOB_READY)
        return;
    job->phase = JOB_READY;
    bmi__job_ready_append_locked(context, job);
    ends->ready = true;
}

/* A repeating timer whose time was not fetched ends: that report is its last one. */
static void repeat_end_locked(struct bmi_job_context *context, struct bmi__job *job)
{
    job->flags &= (uint8_t)~JOB_REPEATS;
    job->error = job->flags & JOB_TIMED_OUT ? -BMI_ETIMEDOUT : -BMI_ECANCEL;
    if (job->heap_index != JOB_NOT_IN_HEAP)
        bmi__job_heap_remove_locked(context, job);
    count_end_locked(context, job);
}

/* The source completed or refused it at once: restores the state before the post. */
static void job_undo_locked(struct bmi_job_context *context, struct bmi__job *job, bool done)
{
    if (job->heap_index != JOB_NOT_IN_HEAP)
        bmi__job_heap_remove_locked(context, job);
    if (job->machine != NULL)
        machine_remove_locked(job->machine, job);
    context->counts.pending--;
    context->counts.posted -= !done;
    context->counts.immediate += done;
    bmi__job_give_locked(context, job);
}

int bmi__job_posted(struct bmi_job_context *context, struct bmi__job *job, int posted,
                    bmi_job_id_t *id, struct bmi_job_status *status)
{
    struct bmi__job_ends ends = {0};
    bmi_lock_take(&context->lock);
    if (posted != 0) {
        if (id != NULL)
            *id = 0;
        if (posted < 0)
            job->error = posted;
        if (status != NULL)
            status_of(job, 0, status);
        job_undo_locked(context, job, posted > 0);
    } else if (job->phase == JOB_EARLY) {
        job->phase = JOB_PENDING;
        bmi__job_end_locked(context, job, job->error, job->actual, &ends);
    } else {
        job->phase = JOB_PENDING;
        if (job->flags & JOB_CANCEL_WANTED)
            bmi__job_cancel_locked(context, job, &ends);
    }
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    return posted;
}

void bmi__job_after(struct bmi_job_context *context, struct bmi__job_ends *ends)
{
    struct bmi_sm *machine = ends->resume;
    while (machine != NULL) {
        struct bmi_sm *next = machine->next;
        bmi__sm_resume(machine);
        machine = next;
    }
    if (ends->earlier && context->background)
        bmi__job_poller_look(context->poller);
    if (ends->ready || (ends->earlier && !context->background))
        bmi__job_notify(context);
}

void bmi__job_report_locked(struct bmi_job_context *context, struct bmi__job *job,
                            struct bmi_job_status *status)
{
    assert(job->phase == JOB_READY);
    bmi__job_ready_remove_locked(context, job);
    status_of(job, bmi__job_id(job), status);
    if (job->flags & JOB_REPEATS) {
        job->phase = JOB_PENDING;
        job->actual = 0;
    } else {
        bmi__job_give_locked(context, job);
    }
}

/* ---- cancel ---------------------------------------------------------------------------------- */

void bmi__job_cancel_locked(struct bmi_job_context *context, struct bmi__job *job,
                            struct bmi__job_ends *ends)
{
    if (job->phase == JOB_POSTING) {
        job->flags |= JOB_CANCEL_WANTED;
        return;
    }
    if (job->phase == JOB_READY && (job->flags & JOB_REPEATS))
        repeat_end_locked(context, job);
    if (job->phase != JOB_PENDING)
        return;
    job->flags &= (uint8_t)~JOB_REPEATS;
    switch (job->kind) {
    case BMI_JOB_SEND:
    case BMI_JOB_SEND_UNEXPECTED:
    case BMI_JOB_RECEIVE:
    case BMI_JOB_RPC:
        BMI_cancel(job->op, context->bmi);
        break;
    case BMI_JOB_TROVE:
        bmi_trove_cancel(job->op, context->trove.id);
        break;
    case BMI_JOB_FLOW:
        bmi_flow_cancel(job->op, context->flow.id);
        break;
    case BMI_JOB_SIGNAL:
    case BMI_JOB_CHILD:
        context->upcalls->watch_cancel_locked(context, job, ends);
        break;
    case BMI_JOB_ACCEPT:
        context->upcalls->accept_cancel_locked(context, ends);
        break;
    case BMI_JOB_SERVE:
        context->upcalls->serve_cancel_locked(context, job, ends);
        break;
    case BMI_JOB_MACHINE:
        machine_cancel_locked(job->child, ends);
        break;
    default:
        bmi__job_end_locked(context, job, -BMI_ECANCEL, 0, ends);
    }
}

int bmi_job_cancel(struct bmi_job_context *context, bmi_job_id_t id)
{
    struct bmi__job_ends ends = {0};
    if (context == NULL)
        return -BMI_EINVAL;
    bmi_lock_take(&context->lock);
    struct bmi__job *job = bmi__job_find_locked(context, id);
    if (job != NULL)
        bmi__job_cancel_locked(context, job, &ends);
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    return job != NULL ? 0 : -BMI_EINVAL;
}

void bmi__job_cancel_all_locked(struct bmi_job_context *context, struct bmi__job_ends *ends)
{
    bmi__job_each_locked(context, bmi__job_cancel_locked, ends);
}
