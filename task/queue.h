/* SPDX-License-Identifier: BSD-3-Clause
 *
 * queue.h - calls of a node's queue (queue_kind.h), by any thread. The common case of the default
 * queue is inlined in the caller.
 */
#ifndef BMI_TASK_QUEUE_H
#define BMI_TASK_QUEUE_H

#include "task/queue_kind.h"
#include "task/queue_ring.h"

static inline bool bmi__queue_is_ring(const struct bmi__queue *queue)
{
    return __builtin_expect(queue->kind == &bmi__queue_ring, true);
}

/* A push is to follow soon. */
static inline void bmi__queue_expect(struct bmi__queue *queue)
{
    if (bmi__queue_is_ring(queue))
        bmi__ring_expect((struct bmi__ring *)queue);
}

static inline void bmi__queue_push(struct bmi__queue *queue, struct bmi_task *task)
{
    if (bmi__queue_is_ring(queue))
        bmi__ring_push((struct bmi__ring *)queue, task);
    else
        queue->kind->push(queue, task);
}

static inline struct bmi_task *bmi__queue_pop(struct bmi__queue *queue)
{
    return bmi__queue_is_ring(queue) ? bmi__ring_pop((struct bmi__ring *)queue)
                                     : queue->kind->pop(queue);
}

static inline uint64_t bmi__queue_length(struct bmi__queue *queue)
{
    return bmi__queue_is_ring(queue) ? bmi__ring_length((struct bmi__ring *)queue)
                                     : queue->kind->length(queue);
}

static inline bool bmi__queue_empty(struct bmi__queue *queue)
{
    return queue->kind->empty(queue);
}

#endif
