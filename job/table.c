/* SPDX-License-Identifier: BSD-3-Clause
 *
 * table.c - a context's jobs: slot and generation make an id; the list of those that are READY.
 * The context's lock guards all of it.
 */
#include <stdlib.h>

#include "job/internal.h"

enum { CHUNK = 256 };

static int chunk_add_locked(struct bmi_job_context *context)
{
    if (context->chunk_count == context->chunk_room) {
        uint32_t room = context->chunk_room != 0 ? context->chunk_room * 2 : 16;
        struct bmi__job **grown = realloc(context->chunks, room * sizeof *grown);
        if (grown == NULL)
            return -BMI_ENOMEM;
        context->chunks = grown;
        context->chunk_room = room;
    }
    struct bmi__job *chunk = calloc(CHUNK, sizeof *chunk);
    if (chunk == NULL)
        return -BMI_ENOMEM;
    for (uint32_t i = CHUNK; i-- > 0;) {
        chunk[i].slot = context->chunk_count * CHUNK + i;
        chunk[i].next = context->free;
        context->free = &chunk[i];
    }
    context->chunks[context->chunk_count++] = chunk;
    context->counts.job_bytes += CHUNK * sizeof *chunk;
    return 0;
}

void bmi__job_table_free(struct bmi_job_context *context)
{
    for (uint32_t i = 0; i < context->chunk_count; i++)
        free(context->chunks[i]);
    free(context->chunks);
}

bmi_job_id_t bmi__job_id(const struct bmi__job *job)
{
    return (bmi_job_id_t)((uint64_t)job->generation << 32 | (job->slot + 1));
}

struct bmi__job *bmi__job_find_locked(struct bmi_job_context *context, bmi_job_id_t id)
{
    uint32_t slot = (uint32_t)id - 1;
    if (id <= 0 || slot / CHUNK >= context->chunk_count)
        return NULL;
    struct bmi__job *job = &context->chunks[slot / CHUNK][slot % CHUNK];
    return job->phase != JOB_FREE && bmi__job_id(job) == id ? job : NULL;
}

struct bmi__job *bmi__job_take_locked(struct bmi_job_context *context)
{
    if (context->free == NULL && chunk_add_locked(context) < 0)
        return NULL;
    struct bmi__job *job = context->free;
    context->free = job->next;
    job->generation = (job->generation + 1) & 0x7fffffff;
    job->generation += job->generation == 0;
    return job;
}

void bmi__job_give_locked(struct bmi_job_context *context, struct bmi__job *job)
{
    job->phase = JOB_FREE;
    job->next = context->free;
    context->free = job;
}

void bmi__job_each_locked(struct bmi_job_context *context,
                          void (*visit)(struct bmi_job_context *context, struct bmi__job *job,
                                        struct bmi__job_ends *ends),
                          struct bmi__job_ends *ends)
{
    for (uint32_t i = 0; i < context->chunk_count * CHUNK; i++)
        visit(context, &context->chunks[i / CHUNK][i % CHUNK], ends);
}

/* ---- the list of READY jobs ------------------------------------------------------------------ */

void bmi__job_ready_append_locked(struct bmi_job_context *context, struct bmi__job *job)
{
    job->next = NULL;
    job->previous = context->ready.last;
    if (context->ready.last != NULL)
        context->ready.last->next = job;
    else
        context->ready.first = job;
    context->ready.last = job;
    context->counts.completions_waiting++;
    atomic_store(&context->ready_sequence, atomic_load(&context->ready_sequence) + 1);
}

void bmi__job_ready_remove_locked(struct bmi_job_context *context, struct bmi__job *job)
{
    if (job->previous != NULL)
        job->previous->next = job->next;
    else
        context->ready.first = job->next;
    if (job->next != NULL)
        job->next->previous = job->previous;
    else
        context->ready.last = job->previous;
    context->counts.completions_waiting--;
}
