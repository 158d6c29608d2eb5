/* SPDX-License-Identifier: BSD-3-Clause
 *
 * post.c - the posts, one for each kind of job. Each takes a job, calls its source, and passes the
 * source's result to job.c.
 */
#include "bmi/progress/progress.h"
#include "bmi/state/library.h"
#include "job/internal.h"

/* ---- BMI ------------------------------------------------------------------------------------- */

int bmi_job_send(struct bmi_job_context *context, BMI_addr_t to, const void *buffer,
                 bmi_size_t size, enum bmi_buffer_type type, bmi_msg_tag_t tag,
                 const struct bmi_job_options *options, bmi_job_id_t *id,
                 struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_SEND, options, id, status, &result);
    if (job == NULL)
        return result;
    result = BMI_post_send(&job->op, to, buffer, size, type, tag, job, context->bmi, NULL);
    if (result > 0)
        job->actual = size;
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_send_list(struct bmi_job_context *context, BMI_addr_t to, const void *const *buffers,
                      const bmi_size_t *sizes, int count, bmi_size_t total,
                      enum bmi_buffer_type type, bmi_msg_tag_t tag,
                      const struct bmi_job_options *options, bmi_job_id_t *id,
                      struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_SEND, options, id, status, &result);
    if (job == NULL)
        return result;
    result = BMI_post_send_list(&job->op, to, buffers, sizes, count, total, type, tag, job,
                                context->bmi, NULL);
    if (result > 0)
        job->actual = total;
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_sendunexpected(struct bmi_job_context *context, BMI_addr_t to, const void *buffer,
                           bmi_size_t size, enum bmi_buffer_type type, bmi_msg_tag_t tag,
                           const struct bmi_job_options *options, bmi_job_id_t *id,
                           struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_new(context, BMI_JOB_SEND_UNEXPECTED, options, id, status, &result);
    if (job == NULL)
        return result;
    result =
        BMI_post_sendunexpected(&job->op, to, buffer, size, type, tag, job, context->bmi, NULL);
    if (result > 0)
        job->actual = size;
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_sendunexpected_list(struct bmi_job_context *context, BMI_addr_t to,
                                const void *const *buffers, const bmi_size_t *sizes, int count,
                                bmi_size_t total, enum bmi_buffer_type type, bmi_msg_tag_t tag,
                                const struct bmi_job_options *options, bmi_job_id_t *id,
                                struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_new(context, BMI_JOB_SEND_UNEXPECTED, options, id, status, &result);
    if (job == NULL)
        return result;
    result = BMI_post_sendunexpected_list(&job->op, to, buffers, sizes, count, total, type, tag,
                                          job, context->bmi, NULL);
    if (result > 0)
        job->actual = total;
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_recv(struct bmi_job_context *context, BMI_addr_t from, void *buffer, bmi_size_t size,
                 enum bmi_buffer_type type, bmi_msg_tag_t tag,
                 const struct bmi_job_options *options, bmi_job_id_t *id,
                 struct bmi_job_status *status)
{
    int result;
    bmi_size_t actual = 0;
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_RECEIVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result =
        BMI_post_recv(&job->op, from, buffer, size, &actual, type, tag, job, context->bmi, NULL);
    if (result > 0)
        job->actual = actual;
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_recv_list(struct bmi_job_context *context, BMI_addr_t from, void *const *buffers,
                      const bmi_size_t *sizes, int count, bmi_size_t total,
                      enum bmi_buffer_type type, bmi_msg_tag_t tag,
                      const struct bmi_job_options *options, bmi_job_id_t *id,
                      struct bmi_job_status *status)
{
    int result;
    bmi_size_t actual = 0;
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_RECEIVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result = BMI_post_recv_list(&job->op, from, buffers, sizes, count, total, &actual, type, tag,
                                job, context->bmi, NULL);
    if (result > 0)
        job->actual = actual;
    return bmi__job_posted(context, job, result, id, status);
}

static void unexpected_append_locked(struct bmi_job_context *context, struct bmi__job *job,
                                     struct BMI_unexpected_info *info)
{
    job->unexpected.info = info;
    job->unexpected.next = NULL;
    job->unexpected.previous = context->unexpected.last;
    if (context->unexpected.last != NULL)
        context->unexpected.last->unexpected.next = job;
    else
        context->unexpected.first = job;
    context->unexpected.last = job;
    job->flags |= JOB_LISTED;
    atomic_fetch_add(&context->unexpected_wanted, 1);
}

int bmi_job_unexpected(struct bmi_job_context *context, struct BMI_unexpected_info *info,
                       const struct bmi_job_options *options, bmi_job_id_t *id,
                       struct bmi_job_status *status)
{
    int result;
    if (info == NULL)
        return -BMI_EINVAL;
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_UNEXPECTED, options, id, status, &result);
    if (job == NULL)
        return result;
    bmi__job_wants_unexpected(context);
    bmi_lock_take(&context->lock);
    unexpected_append_locked(context, job, info);
    bmi_lock_give(&context->lock);
    result = bmi__job_posted(context, job, 0, id, status);
    if (bmi__unexpected_waiting(context->instance))
        bmi__job_poll_soon(context);
    return result;
}

/* ---- the rest -------------------------------------------------------------------------------- */

int bmi_job_timer(struct bmi_job_context *context, uint64_t due_ns,
                  const struct bmi_job_options *options, bmi_job_id_t *id,
                  struct bmi_job_status *status)
{
    int result;
    struct bmi__job_ends ends = {0};
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_TIMER, options, id, status, &result);
    if (job == NULL)
        return result;
    uint64_t deadline_ns = bmi__job_deadline_of(options);
    bmi_lock_take(&context->lock);
    if (deadline_ns != 0 && deadline_ns < due_ns) {
        job->flags |= JOB_DEADLINE_FIRST;
        due_ns = deadline_ns;
    }
    result = bmi__job_heap_add_locked(context, job, due_ns, &ends);
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    return bmi__job_posted(context, job, result, id, status);
}

/* The job becomes PENDING under the same hold of the lock, so that no time can come before. */
static int repeat_begin_locked(struct bmi_job_context *context, struct bmi__job *job,
                               uint64_t due_ns, struct bmi__job_ends *ends)
{
    uint64_t deadline_ns = job->repeat.deadline_ns;
    if (deadline_ns != 0 && deadline_ns <= due_ns) {
        job->flags |= JOB_DEADLINE_FIRST;
        due_ns = deadline_ns;
    }
    int result = bmi__job_heap_add_locked(context, job, due_ns, ends);
    if (result < 0)
        return result;
    job->flags |= JOB_REPEATS;
    job->phase = JOB_PENDING;
    if (job->flags & JOB_CANCEL_WANTED)
        bmi__job_cancel_locked(context, job, ends);
    return 0;
}

int bmi_job_timer_repeat(struct bmi_job_context *context, uint64_t due_ns, int64_t interval_ms,
                         const struct bmi_job_options *options, bmi_job_id_t *id,
                         struct bmi_job_status *status)
{
    int result;
    struct bmi__job_ends ends = {0};
    if (id == NULL || interval_ms < 1 || interval_ms > INT64_MAX / 1000000 ||
        (options != NULL && options->machine != NULL))
        return -BMI_EINVAL;
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_TIMER, options, id, status, &result);
    if (job == NULL)
        return result;
    bmi_lock_take(&context->lock);
    job->repeat.interval_ns = (uint64_t)interval_ms * 1000000u;
    job->repeat.deadline_ns = bmi__job_deadline_of(options);
    result = repeat_begin_locked(context, job, due_ns, &ends);
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    return result == 0 ? 0 : bmi__job_posted(context, job, result, id, status);
}

int bmi_job_null(struct bmi_job_context *context, bmi_error_code_t error,
                 const struct bmi_job_options *options, bmi_job_id_t *id,
                 struct bmi_job_status *status)
{
    int result;
    struct bmi__job_ends ends = {0};
    if (error > 0)
        return -BMI_EINVAL;
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_NULL, options, id, status, &result);
    if (job == NULL)
        return result;
    bmi_lock_take(&context->lock);
    bmi__job_end_locked(context, job, error, 0, &ends);
    bmi_lock_give(&context->lock);
    return bmi__job_posted(context, job, 0, id, status);
}

int bmi_job_event(struct bmi_job_context *context, const struct bmi_job_options *options,
                  bmi_job_id_t *id, struct bmi_job_status *status)
{
    int result;
    if (id == NULL)
        return -BMI_EINVAL;
    struct bmi__job *job = bmi__job_new(context, BMI_JOB_EVENT, options, id, status, &result);
    if (job == NULL)
        return result;
    return bmi__job_posted(context, job, 0, id, status);
}

int bmi_job_event_complete(struct bmi_job_context *context, bmi_job_id_t id, bmi_error_code_t error,
                           bmi_size_t actual)
{
    struct bmi__job_ends ends = {0};
    if (context == NULL || error > 0)
        return -BMI_EINVAL;
    bmi_lock_take(&context->lock);
    struct bmi__job *job = bmi__job_find_locked(context, id);
    bool good = job != NULL && job->kind == BMI_JOB_EVENT &&
                (job->phase == JOB_PENDING || job->phase == JOB_POSTING);
    if (good)
        bmi__job_end_locked(context, job, error, actual, &ends);
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    return good ? 0 : -BMI_EINVAL;
}
