/* SPDX-License-Identifier: BSD-3-Clause
 *
 * heap.c - a binary heap of jobs by due time, under the context's lock. Each job knows its place,
 * so that a job which ends before its deadline is taken out at once.
 */
#include <stdlib.h>

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

static void next_due_set_locked(struct bmi_job_context *context)
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

int bmi__job_heap_add_locked(struct bmi_job_context *context, struct bmi__job *job, uint64_t due_ns,
                             struct bmi__job_ends *ends)
{
    if (heap_room_locked(context) < 0)
        return -BMI_ENOMEM;
    job->due_ns = due_ns;
    heap_up(context, context->heap_count++, job);
    if (job->heap_index == 0) {
        next_due_set_locked(context);
        ends->earlier = true;
    }
    return 0;
}

void bmi__job_heap_remove_locked(struct bmi_job_context *context, struct bmi__job *job)
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
        next_due_set_locked(context);
}

void bmi__job_heap_free(struct bmi_job_context *context)
{
    free(context->heap);
}
