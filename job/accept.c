/* SPDX-License-Identifier: BSD-3-Clause
 *
 * accept.c - bmi_job_accept: a machine for each unexpected message, at most `limit` at a time.
 *
 * A polling thread reserves a place (`alive`), then takes a message, then starts the machine, the
 * last two without the context's lock. Messages without a place stay in the core's queue, where
 * they count against their sender's budget; when a machine ends, the context is polled again.
 * `listed` says whether unexpected_wanted counts this context as having room: no thread is woken
 * for a message that the context would not take.
 */
#include <stdlib.h>

#include "bmi/connection/unexpected.h"
#include "bmi/progress/progress.h"
#include "bmi/state/library.h"
#include "job/internal.h"

/* Makes unexpected_wanted agree with whether there is room. */
static void list_locked(struct bmi_job_context *context)
{
    struct bmi__accept *accept = &context->accept;
    bool room = accept->job != NULL && !accept->stopping && accept->alive < accept->limit;
    if (room && !accept->listed)
        atomic_fetch_add(&context->unexpected_wanted, 1);
    else if (!room && accept->listed)
        atomic_fetch_sub(&context->unexpected_wanted, 1);
    accept->listed = room;
}

static void end_if_over_locked(struct bmi_job_context *context, struct bmi__job_ends *ends)
{
    struct bmi__accept *accept = &context->accept;
    list_locked(context);
    if (accept->job == NULL || !accept->stopping || accept->alive > 0)
        return;
    struct bmi__job *job = accept->job;
    accept->job = NULL;
    bmi__job_end_locked(context, job, -BMI_ECANCEL, (bmi_size_t)accept->started, ends);
}

void bmi__job_accept_cancel_locked(struct bmi_job_context *context, struct bmi__job_ends *ends)
{
    context->accept.stopping = true;
    end_if_over_locked(context, ends);
}

static void place_give_locked(struct bmi_job_context *context, struct bmi__job_ends *ends)
{
    context->accept.alive--;
    end_if_over_locked(context, ends);
}

void bmi__job_accepted_end(struct bmi_job_context *context, struct bmi_job_accepted *data)
{
    struct bmi__job_ends ends = {0};
    if (data->message.buffer != NULL)
        BMI_unexpected_free(data->message.addr, data->message.buffer);
    free(data);
    bmi_lock_take(&context->lock);
    place_give_locked(context, &ends);
    bool room = context->accept.listed;
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    if (room && bmi__unexpected_waiting(context->instance))
        bmi__job_poll_soon(context);
}

/* ---- taking ---------------------------------------------------------------------------------- */

static bool reserve(struct bmi_job_context *context, struct bmi__accept *copy)
{
    bmi_lock_take(&context->lock);
    bool room = context->accept.listed;
    if (room) {
        context->accept.alive++;
        list_locked(context);
        *copy = context->accept;
    }
    bmi_lock_give(&context->lock);
    return room;
}

/* Called after the start of a machine in the reserved place, successful or not. */
static void reserved_end(struct bmi_job_context *context, bool started)
{
    struct bmi__job_ends ends = {0};
    bmi_lock_take(&context->lock);
    if (started)
        context->accept.started++;
    else
        place_give_locked(context, &ends);
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
}

/* Takes one message for the reserved place. Returns false: there is none, or no machine can be
 * started for it. */
static bool take_one(struct bmi_job_context *context, const struct bmi__accept *accept)
{
    struct bmi_job_accepted *data = calloc(1, accept->data_size);
    if (data == NULL || bmi__unexpected_take(context->instance, &data->message, 1) != 1) {
        free(data);
        return false;
    }
    data->user_ptr = accept->job->user_ptr;
    reserved_end(context, true); /* before the machine can end */
    if (bmi__sm_start_owned(context, accept->table, data, SM_ACCEPTED, NULL) == 0)
        return true;
    bmi__unexpected_untake(context->instance, data->message.buffer); /* a later poll tries again */
    free(data);
    bmi_lock_take(&context->lock);
    context->accept.started--;
    bmi_lock_give(&context->lock);
    return false;
}

bool bmi__job_accept_take(struct bmi_job_context *context)
{
    struct bmi__accept accept;
    bool any = false;
    while (bmi__unexpected_waiting(context->instance) && reserve(context, &accept)) {
        if (!take_one(context, &accept)) {
            reserved_end(context, false);
            break;
        }
        any = true;
    }
    return any;
}

/* ---- posting --------------------------------------------------------------------------------- */

static int begin_locked(struct bmi_job_context *context, struct bmi__job *job,
                        const struct bmi__accept *wanted)
{
    if (context->accept.job != NULL)
        return -BMI_EBUSY;
    context->accept = *wanted;
    context->accept.job = job;
    list_locked(context);
    return 0;
}

int bmi_job_accept(struct bmi_job_context *context, struct bmi_sm_table *table, int limit,
                   size_t data_size, const struct bmi_job_options *options, bmi_job_id_t *id,
                   struct bmi_job_status *status)
{
    struct bmi__accept wanted = {.table = table, .limit = limit, .data_size = data_size};
    int result = table != NULL ? bmi__sm_frames(context, table) : -BMI_EINVAL;
    if (data_size == 0)
        wanted.data_size = sizeof(struct bmi_job_accepted);
    if (limit < 1 || wanted.data_size < sizeof(struct bmi_job_accepted) ||
        (options != NULL && options->machine != NULL))
        result = -BMI_EINVAL;
    if (id != NULL)
        *id = 0;
    if (result < 0)
        return result;
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_ACCEPT, options, id, status, &result);
    if (job == NULL)
        return result;
    bmi__job_wants_unexpected(context);
    bmi_lock_take(&context->lock);
    result = begin_locked(context, job, &wanted);
    bmi_lock_give(&context->lock);
    result = bmi__job_posted(context, job, result, id, status);
    if (result == 0 && bmi__unexpected_waiting(context->instance))
        bmi__job_poll_soon(context);
    return result;
}
