/* SPDX-License-Identifier: BSD-3-Clause
 *
 * storage.c - jobs of storage: bmi_trove_post_* on the trove context of a job context.
 */
#include "job/internal.h"

/* How many of a list's keys were found, if only the pairs have that. */
static bmi_size_t pairs_found(const struct bmi_trove_pair *pairs, int count)
{
    bmi_size_t found = 0;
    for (int i = 0; i < count; i++)
        found += pairs[i].error != -BMI_ENOENT;
    return found;
}

int bmi_job_trove_create(struct bmi_job_context *context, const struct bmi_trove_place *place,
                         bmi_trove_object_id_t *object, unsigned flags,
                         const struct bmi_job_options *options, bmi_job_id_t *id,
                         struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result = bmi_trove_post_create(&job->op, place, object, flags, job, context->trove.id);
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_remove(struct bmi_job_context *context, const struct bmi_trove_place *place,
                         unsigned flags, const struct bmi_job_options *options, bmi_job_id_t *id,
                         struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result = bmi_trove_post_remove(&job->op, place, flags, job, context->trove.id);
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_objects(struct bmi_job_context *context, const struct bmi_trove_place *place,
                          bmi_trove_object_id_t *position, bmi_trove_object_id_t *objects,
                          int count, const struct bmi_job_options *options, bmi_job_id_t *id,
                          struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result =
        bmi_trove_post_objects(&job->op, place, position, objects, count, job, context->trove.id);
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_read_list(struct bmi_job_context *context, const struct bmi_trove_place *place,
                            void *const *buffers, const bmi_size_t *sizes, int count,
                            const bmi_size_t *stream_offsets, const bmi_size_t *stream_sizes,
                            int stream_count, unsigned flags, const struct bmi_job_options *options,
                            bmi_job_id_t *id, struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result = bmi_trove_post_read_list(&job->op, place, buffers, sizes, count, stream_offsets,
                                      stream_sizes, stream_count, &job->actual, flags, job,
                                      context->trove.id);
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_write_list(struct bmi_job_context *context, const struct bmi_trove_place *place,
                             const void *const *buffers, const bmi_size_t *sizes, int count,
                             const bmi_size_t *stream_offsets, const bmi_size_t *stream_sizes,
                             int stream_count, unsigned flags,
                             const struct bmi_job_options *options, bmi_job_id_t *id,
                             struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result = bmi_trove_post_write_list(&job->op, place, buffers, sizes, count, stream_offsets,
                                       stream_sizes, stream_count, &job->actual, flags, job,
                                       context->trove.id);
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_read_at(struct bmi_job_context *context, const struct bmi_trove_place *place,
                          void *buffer, bmi_size_t size, bmi_size_t offset, unsigned flags,
                          const struct bmi_job_options *options, bmi_job_id_t *id,
                          struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result = bmi_trove_post_read_at(&job->op, place, buffer, size, offset, &job->actual, flags, job,
                                    context->trove.id);
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_write_at(struct bmi_job_context *context, const struct bmi_trove_place *place,
                           const void *buffer, bmi_size_t size, bmi_size_t offset, unsigned flags,
                           const struct bmi_job_options *options, bmi_job_id_t *id,
                           struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result = bmi_trove_post_write_at(&job->op, place, buffer, size, offset, &job->actual, flags,
                                     job, context->trove.id);
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_resize(struct bmi_job_context *context, const struct bmi_trove_place *place,
                         bmi_size_t size, unsigned flags, const struct bmi_job_options *options,
                         bmi_job_id_t *id, struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result = bmi_trove_post_resize(&job->op, place, size, flags, job, context->trove.id);
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_flush(struct bmi_job_context *context, const struct bmi_trove_place *place,
                        const struct bmi_job_options *options, bmi_job_id_t *id,
                        struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result = bmi_trove_post_flush(&job->op, place, job, context->trove.id);
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_size(struct bmi_job_context *context, const struct bmi_trove_place *place,
                       bmi_size_t *size, const struct bmi_job_options *options, bmi_job_id_t *id,
                       struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result = bmi_trove_post_size(&job->op, place, size, job, context->trove.id);
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_get(struct bmi_job_context *context, const struct bmi_trove_place *place,
                      struct bmi_trove_pair *pairs, int count,
                      const struct bmi_job_options *options, bmi_job_id_t *id,
                      struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result = bmi_trove_post_get(&job->op, place, pairs, count, job, context->trove.id);
    if (result > 0)
        job->actual = pairs_found(pairs, count);
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_put(struct bmi_job_context *context, const struct bmi_trove_place *place,
                      struct bmi_trove_pair *pairs, int count, unsigned flags,
                      const struct bmi_job_options *options, bmi_job_id_t *id,
                      struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result = bmi_trove_post_put(&job->op, place, pairs, count, flags, job, context->trove.id);
    if (result > 0)
        job->actual = count;
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_exchange(struct bmi_job_context *context, const struct bmi_trove_place *place,
                           struct bmi_trove_pair *pairs, const struct bmi_trove_pair *expected,
                           struct bmi_trove_pair *old, int count, unsigned flags,
                           const struct bmi_job_options *options, bmi_job_id_t *id,
                           struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result = bmi_trove_post_exchange(&job->op, place, pairs, expected, old, count, flags, job,
                                     context->trove.id);
    if (result > 0)
        job->actual = count;
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_remove_keys(struct bmi_job_context *context, const struct bmi_trove_place *place,
                              struct bmi_trove_pair *pairs, int count, unsigned flags,
                              const struct bmi_job_options *options, bmi_job_id_t *id,
                              struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result =
        bmi_trove_post_remove_keys(&job->op, place, pairs, count, flags, job, context->trove.id);
    if (result > 0)
        job->actual = pairs_found(pairs, count);
    return bmi__job_posted(context, job, result, id, status);
}

int bmi_job_trove_iterate(struct bmi_job_context *context, const struct bmi_trove_place *place,
                          struct bmi_trove_position *position, struct bmi_trove_pair *pairs,
                          int count, const struct bmi_job_options *options, bmi_job_id_t *id,
                          struct bmi_job_status *status)
{
    int result;
    struct bmi__job *job =
        bmi__job_source_new(context, BMI_JOB_TROVE, options, id, status, &result);
    if (job == NULL)
        return result;
    result =
        bmi_trove_post_iterate(&job->op, place, position, pairs, count, job, context->trove.id);
    return bmi__job_posted(context, job, result, id, status);
}
