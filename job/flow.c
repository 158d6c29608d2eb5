/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flow.c - jobs that are flows, on the flow context of a job context.
 */
#include <limits.h>

#include "bmi/base/clock.h"
#include "job/internal.h"

/* The flow's own time limit: the time left until the deadline, if that is less. */
static int timeout_of(const struct bmi_flow_description *description,
                      const struct bmi_job_options *options)
{
    uint64_t deadline_ns = bmi__job_deadline_of(options), now = bmi__monotonic_ns();
    if (deadline_ns == 0)
        return description->timeout_ms;
    uint64_t ms = deadline_ns <= now ? 1 : (deadline_ns - now + 999999) / 1000000;
    if (ms > INT_MAX)
        ms = INT_MAX;
    return description->timeout_ms > 0 && (uint64_t)description->timeout_ms < ms
               ? description->timeout_ms
               : (int)ms;
}

int bmi_job_flow(struct bmi_job_context *context, const struct bmi_flow_description *description,
                 const struct bmi_job_options *options, bmi_job_id_t *id,
                 struct bmi_job_status *status)
{
    int result;
    if (id != NULL)
        *id = 0;
    if (description == NULL)
        return -BMI_EINVAL;
    struct bmi__job *job = bmi__job_source_new(context, BMI_JOB_FLOW, options, id, status, &result);
    if (job == NULL)
        return result;
    struct bmi_flow_description limited = *description;
    limited.timeout_ms = timeout_of(description, options);
    result = bmi_flow_post(&job->op, &limited, job, context->flow.id);
    if (result > 0) /* all bytes have been moved, and only this gives their number */
        job->actual =
            bmi_flow_request_size(limited.extents, limited.extent_count, limited.distribution,
                                  limited.distribution_parameters, limited.server,
                                  limited.servers > 0 ? limited.servers : 1);
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_flow_progress(struct bmi_job_context *context, bmi_job_id_t id,
                          struct bmi_flow_progress *progress)
{
    if (context == NULL || progress == NULL)
        return -BMI_EINVAL;
    bmi_lock_take(&context->lock);
    struct bmi__job *job = bmi__job_find_locked(context, id);
    bool flow = job != NULL && job->kind == BMI_JOB_FLOW && job->phase == JOB_PENDING;
    bmi_flow_id_t op = flow ? job->op : 0;
    bmi_lock_give(&context->lock);
    return flow ? bmi_flow_progress(op, progress, context->flow.id) : -BMI_EINVAL;
}
