/* SPDX-License-Identifier: BSD-3-Clause
 *
 * queue.c - the slow paths of the lock-free queue (queue.h), for contention and a full
 * ring, and its queries.
 */
#include "task/queue.h"

#include <stdlib.h>

#include "task/internal.h"

#define GIVE_WAY_NS 3000
#define PAUSES 16 /* between two reads of the clock */

/* A compare-and-swap failed: another thread uses the queue. Both finish sooner if this one lets the
 * other go on for a moment than if it takes the cache line at once: the other does dozens of
 * operations in the time in which the line moves between cores a few times. */
static __attribute__((cold)) void give_way(struct bmi__queue *ring)
{
    uint64_t until = bmi__now_ns() + GIVE_WAY_NS;
    atomic_fetch_add_explicit(&ring->contended, 1, memory_order_relaxed);
    do {
        for (int i = 0; i < PAUSES; i++)
            bmi__pause();
    } while (bmi__now_ns() < until);
}

/* ---- the ring ---- */

static bool is_waiting(uint64_t slot)
{
    return slot & 1;
}

enum bmi__attempt bmi__ring_fill_none(struct bmi__queue *ring, uint64_t position, uint64_t seen)
{
    /* used up, unless it is filled from the round before, while head has not passed it */
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
    bool before = !is_waiting(seen) && !bmi__ring_filled_for(ring, seen, position);
    return head <= position && before ? BMI__NO_MORE : BMI__PASSED;
}

/* Goes on after an attempt at a position. Returns false if the ring is full. */
static inline bool fill_on(struct bmi__queue *ring, uint64_t position, struct bmi_task *task,
                           enum bmi__attempt attempt)
{
    while (attempt == BMI__BEATEN || attempt == BMI__PASSED) {
        if (attempt == BMI__BEATEN)
            give_way(ring);
        uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
        position = head > position ? head : position + 1;
        attempt = bmi__ring_fill_at(ring, position, task);
    }
    return attempt == BMI__DONE;
}

/* Returns false if the ring is full. */
static inline bool ring_fill(struct bmi__queue *ring, struct bmi_task *task)
{
    uint64_t position = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    return fill_on(ring, position, task, bmi__ring_fill_at(ring, position, task));
}

static inline bool ring_has_none(struct bmi__queue *ring)
{
    for (;;) {
        uint64_t head = atomic_load(&ring->head);
        uint64_t seen = atomic_load(bmi__ring_slot(ring, head));
        if (bmi__ring_filled_for(ring, seen, head))
            return false;
        if (seen == bmi__ring_waiting_for(head) || atomic_load(&ring->head) == head)
            return true;
    }
}

enum bmi__attempt bmi__ring_claim_none(struct bmi__queue *ring, uint64_t head, uint64_t seen)
{
    if (is_waiting(seen))
        return BMI__PASSED; /* for a later round: head was old */
    /* of the round before, its owner is about to empty it? */
    return atomic_load(&ring->head) == head ? BMI__NO_MORE : BMI__PASSED;
}

/* The first position that is not filled, from `head` on. */
static uint64_t ring_end(struct bmi__queue *ring, uint64_t head)
{
    uint64_t end = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    end = end > head ? end : head;
    while (bmi__ring_filled_for(
        ring, atomic_load_explicit(bmi__ring_slot(ring, end), memory_order_relaxed), end))
        end++;
    return end;
}

/* ---- spilled tasks ---- */

static void spill_push(struct bmi__queue *ring, struct bmi_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&ring->mutex);
    if (ring->first == NULL)
        ring->first = task;
    else
        ring->last->next = task;
    ring->last = task;
    atomic_fetch_add(&ring->spilled, 1);
    pthread_mutex_unlock(&ring->mutex);
}

/* The caller has checked that there is one. */
static struct bmi_task *spill_pop_locked(struct bmi__queue *ring)
{
    struct bmi_task *task = ring->first;
    ring->first = task->next;
    atomic_fetch_sub(&ring->spilled, 1);
    atomic_fetch_add_explicit(&ring->spilled_direct, 1, memory_order_relaxed);
    return task;
}

/* Moves spilled tasks into the ring, unless another thread does so. */
static void spill_refill(struct bmi__queue *ring)
{
    if (pthread_mutex_trylock(&ring->mutex) != 0)
        return;
    while (ring->first != NULL) {
        struct bmi_task *task = ring->first;
        struct bmi_task *next = task->next; /* once filled in the task is not the caller's */
        if (!ring_fill(ring, task))
            break;
        ring->first = next;
        atomic_fetch_sub(&ring->spilled, 1);
    }
    pthread_mutex_unlock(&ring->mutex);
}

/* The ring seemed empty: the oldest task is there by now, or in the list. */
static enum bmi__attempt spill_take(struct bmi__queue *ring, struct bmi_task **task)
{
    pthread_mutex_lock(&ring->mutex);
    enum bmi__attempt attempt = bmi__ring_claim(ring, task);
    if (attempt == BMI__NO_MORE && ring->first != NULL) {
        attempt =
            bmi__single_length(ring) > 0 ? BMI__PASSED : BMI__DONE; /* as in bmi__ring_claim */
        if (attempt == BMI__DONE)
            *task = spill_pop_locked(ring);
    }
    pthread_mutex_unlock(&ring->mutex);
    return attempt;
}

/* ---- tasks behind the place for one ---- */

/* The list first: a task that has left it by then is in the ring, or popped. */
static inline bool behind_empty(struct bmi__queue *ring)
{
    return atomic_load(&ring->spilled) == 0 && ring_has_none(ring);
}

void bmi__ring_push_on(struct bmi__queue *ring, struct bmi_task *task, uint64_t position,
                       enum bmi__attempt attempt)
{
    if (!fill_on(ring, position, task, attempt))
        spill_push(ring, task);
}

static enum bmi__attempt behind_take(struct bmi__queue *ring, struct bmi_task **task)
{
    enum bmi__attempt attempt = bmi__ring_claim(ring, task);
    if (atomic_load(&ring->spilled) == 0) {
        /* has another thread moved it from the list to the ring? */
        return attempt == BMI__NO_MORE && !ring_has_none(ring) ? BMI__PASSED : attempt;
    }
    if (attempt == BMI__NO_MORE)
        return spill_take(ring, task);
    if (attempt == BMI__DONE)
        spill_refill(ring);
    return attempt;
}

/* ---- the queue ---- */

void bmi__ring_push_beaten(struct bmi__queue *ring, struct bmi_task *task)
{
    give_way(ring);
    if (bmi__single_fill(ring, task) != BMI__DONE)
        bmi__ring_push_behind(ring, task);
}

bool bmi__queue_empty(struct bmi__queue *ring)
{
    return bmi__single_length(ring) == 0 && behind_empty(ring);
}

/* Goes on after an attempt. */
struct bmi_task *bmi__ring_pop_on(struct bmi__queue *ring, enum bmi__attempt attempt)
{
    struct bmi_task *task = NULL;
    while (attempt == BMI__BEATEN || attempt == BMI__PASSED) {
        if (attempt == BMI__BEATEN && bmi__queue_empty(ring)) { /* that thread took the last
                                                                     one */
            atomic_fetch_add_explicit(&ring->contended, 1, memory_order_relaxed);
            return NULL;
        }
        if (attempt == BMI__BEATEN)
            give_way(ring);
        attempt = bmi__single_claim(ring, &task);
        if (attempt == BMI__NO_MORE)
            attempt = behind_take(ring, &task);
    }
    return task;
}

void bmi__queue_count(struct bmi__queue *ring, struct bmi__queue_counts *counts)
{
    uint64_t direct = atomic_load_explicit(&ring->spilled_direct, memory_order_relaxed);
    uint64_t single = atomic_load_explicit(&ring->single_popped, memory_order_acquire);
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
    counts->popped = single + head + direct;
    counts->pushed = single + bmi__single_length(ring) + ring_end(ring, head) + direct +
                     atomic_load_explicit(&ring->spilled, memory_order_relaxed);
    counts->contended = atomic_load_explicit(&ring->contended, memory_order_relaxed);
}

struct bmi__queue *bmi__queue_create(uint32_t slots)
{
    struct bmi__queue *ring =
        aligned_alloc(BMI__RING_LINE, sizeof(*ring) + slots * sizeof(*ring->slots));
    if (ring == NULL)
        return NULL;
    *ring = (struct bmi__queue){.mask = slots - 1};
    for (uint64_t i = 0; i < slots; i++)
        atomic_init(&ring->slots[i], bmi__ring_waiting_for(i));
    pthread_mutex_init(&ring->mutex, NULL);
    return ring;
}

void bmi__queue_destroy(struct bmi__queue *ring)
{
    pthread_mutex_destroy(&ring->mutex);
    free(ring);
}
