/* SPDX-License-Identifier: BSD-3-Clause
 *
 * queue_ring.c - the lock-free queue: a ring of slots between two counters.
 *
 * A position is a number that only grows; it stands for slot position % slots in round position /
 * slots. A slot holds either "empty, waiting for position P" (2P + 1) or a task with the parity of
 * its round in bit 1. Who may do what:
 *   push fills the slot of the first free position by compare-and-swap from "waiting for it"; that
 *     is the moment at which the task is in the queue. `tail` only says where to start looking: it
 * is stored without care, by whoever pushed, and may lie behind the truth. A pusher that is stopped
 *     anywhere holds up nobody.
 *   pop reads the slot of position `head` and claims it by moving head on; whoever succeeds owns
 * the task and sets the slot to wait for its next round. One that is stopped before that holds up
 *     only those who want to fill the slot a whole round later.
 * Nobody follows a pointer to a task that is not its own, so that tasks may be freed at any time
 * after their pop. Parity tells whether a filled slot is filled for this position. If not, it is
 * still so from the round before (claimed, or the ring is full), or, once head has passed the
 * position, from a later one.
 *
 * When the ring is full, tasks spill into a list under a mutex, and all later ones too until it is
 * empty again, so that order is kept. Who pops moves spilled ones into the ring, or takes one
 * directly where the ring has nothing. Lock order: spill mutex only.
 */
#include "task/queue.h"

#include <pthread.h>
#include <stdlib.h>

#define LINE 64
#define SLOTS_PER_LINE (LINE / sizeof(uint64_t))

struct ring {
    struct bmi__queue queue;
    uint64_t mask;      /* slots - 1 */
    unsigned line_bits; /* log2 of the number of cache lines of slots */
    _Atomic(uint64_t) *slots;

    _Alignas(LINE) _Atomic(uint64_t) head; /* next position to pop */
    _Atomic(uint64_t) pop_contended;
    _Alignas(LINE) _Atomic(uint64_t) tail; /* next position to fill, or one before that */
    _Atomic(uint64_t) push_contended;

    _Alignas(LINE) _Atomic(uint64_t) spilled; /* tasks in the list; written under the mutex */
    _Atomic(uint64_t) spilled_direct;         /* taken from the list without the ring */
    pthread_mutex_t mutex;
    struct bmi_task *first, *last; /* under mutex */
};

static inline uint64_t waiting_for(uint64_t position)
{
    return 2 * position + 1;
}

static inline bool is_waiting(uint64_t slot)
{
    return slot & 1;
}

static inline uint64_t parity_of(const struct ring *ring, uint64_t position)
{
    return position & (ring->mask + 1) ? 2 : 0;
}

/* Neighbouring positions lie in different cache lines, so that a push and a pop side by side do not
 * take the line from each other. */
static inline _Atomic(uint64_t) *slot_of(const struct ring *ring, uint64_t position)
{
    uint64_t index = position & ring->mask;
    uint64_t lines_mask = ((uint64_t)1 << ring->line_bits) - 1;
    return &ring->slots[(index & lines_mask) * SLOTS_PER_LINE + (index >> ring->line_bits)];
}

static void count_contended(_Atomic(uint64_t) *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

static inline bool is_filled_for(const struct ring *ring, uint64_t slot, uint64_t position)
{
    return !is_waiting(slot) && (slot & 2) == parity_of(ring, position);
}

/* Returns false if the ring is full. */
static bool ring_fill(struct ring *ring, struct bmi_task *task)
{
    uint64_t position = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    for (;;) {
        _Atomic(uint64_t) *slot = slot_of(ring, position);
        uint64_t seen = atomic_load_explicit(slot, memory_order_acquire);
        if (seen == waiting_for(position)) {
            uint64_t filled = (uint64_t)(uintptr_t)task | parity_of(ring, position);
            if (atomic_compare_exchange_strong(slot, &seen, filled)) {
                atomic_store_explicit(&ring->tail, position + 1, memory_order_relaxed);
                return true;
            }
            count_contended(&ring->push_contended);
        }
        /* used up, unless it is filled from the round before, while head has not passed it */
        uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
        if (head <= position && !is_waiting(seen) && !is_filled_for(ring, seen, position))
            return false;
        position = head > position ? head : position + 1;
    }
}

static struct bmi_task *ring_claim(struct ring *ring)
{
    for (;;) {
        uint64_t head = atomic_load(&ring->head);
        _Atomic(uint64_t) *slot = slot_of(ring, head);
        uint64_t seen = atomic_load(slot);
        if (seen == waiting_for(head))
            return NULL;
        if (is_waiting(seen))
            continue; /* for a later round: head was old */
        if (!is_filled_for(ring, seen, head)) {
            if (atomic_load(&ring->head) == head)
                return NULL; /* of the round before, its owner is about to empty it */
            continue;
        }
        if (atomic_compare_exchange_strong_explicit(&ring->head, &head, head + 1,
                                                    memory_order_acq_rel, memory_order_relaxed)) {
            atomic_store_explicit(slot, waiting_for(head + ring->mask + 1), memory_order_release);
            return (struct bmi_task *)(uintptr_t)(seen & ~(uint64_t)3);
        }
        count_contended(&ring->pop_contended);
    }
}

static bool ring_has_none(struct ring *ring)
{
    for (;;) {
        uint64_t head = atomic_load(&ring->head);
        uint64_t seen = atomic_load(slot_of(ring, head));
        if (is_filled_for(ring, seen, head))
            return false;
        if (seen == waiting_for(head) || atomic_load(&ring->head) == head)
            return true;
    }
}

static void spill_push(struct ring *ring, struct bmi_task *task)
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

static struct bmi_task *spill_pop_locked(struct ring *ring)
{
    struct bmi_task *task = ring->first;
    if (task != NULL) {
        ring->first = task->next;
        atomic_fetch_sub(&ring->spilled, 1);
    }
    return task;
}

/* Moves spilled tasks into the ring, unless somebody is at it. */
static void spill_refill(struct ring *ring)
{
    if (pthread_mutex_trylock(&ring->mutex) != 0)
        return;
    while (ring->first != NULL) {
        struct bmi_task *task = ring->first;
        struct bmi_task *next = task->next; /* once filled in it is not ours */
        if (!ring_fill(ring, task))
            break;
        ring->first = next;
        atomic_fetch_sub(&ring->spilled, 1);
    }
    pthread_mutex_unlock(&ring->mutex);
}

/* The ring seemed empty: the oldest task is there by now, or in the list. */
static struct bmi_task *spill_take(struct ring *ring)
{
    pthread_mutex_lock(&ring->mutex);
    struct bmi_task *task = ring_claim(ring);
    if (task == NULL) {
        task = spill_pop_locked(ring);
        if (task != NULL)
            atomic_fetch_add_explicit(&ring->spilled_direct, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&ring->mutex);
    return task;
}

static void ring_push(struct bmi__queue *queue, struct bmi_task *task)
{
    struct ring *ring = (struct ring *)queue;
    if (atomic_load_explicit(&ring->spilled, memory_order_relaxed) == 0 && ring_fill(ring, task))
        return;
    spill_push(ring, task);
}

static struct bmi_task *ring_pop(struct bmi__queue *queue)
{
    struct ring *ring = (struct ring *)queue;
    struct bmi_task *task = ring_claim(ring);
    if (atomic_load(&ring->spilled) != 0) {
        if (task == NULL)
            return spill_take(ring);
        spill_refill(ring);
    }
    return task;
}

static bool ring_empty(struct bmi__queue *queue)
{
    struct ring *ring = (struct ring *)queue;
    return ring_has_none(ring) && atomic_load(&ring->spilled) == 0;
}

static uint64_t ring_length(struct bmi__queue *queue)
{
    struct ring *ring = (struct ring *)queue;
    uint64_t spilled = atomic_load_explicit(&ring->spilled, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    /* mostly that was all; tail would have to come from the cache of who pushes */
    if (!is_filled_for(ring, atomic_load_explicit(slot_of(ring, head), memory_order_relaxed), head))
        return spilled;
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    return (tail > head ? tail - head : 1) + spilled;
}

/* The first position that is not filled. */
static uint64_t ring_end(struct ring *ring, uint64_t head)
{
    uint64_t end = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    end = end > head ? end : head;
    while (is_filled_for(ring, atomic_load_explicit(slot_of(ring, end), memory_order_relaxed), end))
        end++;
    return end;
}

static void ring_count(struct bmi__queue *queue, struct bmi__queue_counts *counts)
{
    struct ring *ring = (struct ring *)queue;
    uint64_t direct = atomic_load_explicit(&ring->spilled_direct, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
    counts->popped = head + direct;
    counts->pushed =
        ring_end(ring, head) + direct + atomic_load_explicit(&ring->spilled, memory_order_relaxed);
    counts->contended = atomic_load_explicit(&ring->pop_contended, memory_order_relaxed) +
                        atomic_load_explicit(&ring->push_contended, memory_order_relaxed);
}

static struct bmi__queue *ring_create(uint32_t slots)
{
    struct ring *ring = aligned_alloc(LINE, sizeof(*ring));
    if (ring == NULL)
        return NULL;
    *ring = (struct ring){.queue.kind = &bmi__queue_ring, .mask = slots - 1};
    ring->slots = aligned_alloc(LINE, slots * sizeof(*ring->slots));
    if (ring->slots == NULL) {
        free(ring);
        return NULL;
    }
    while (SLOTS_PER_LINE << ring->line_bits < slots)
        ring->line_bits++;
    for (uint64_t i = 0; i < slots; i++)
        atomic_init(slot_of(ring, i), waiting_for(i));
    pthread_mutex_init(&ring->mutex, NULL);
    return &ring->queue;
}

static void ring_destroy(struct bmi__queue *queue)
{
    struct ring *ring = (struct ring *)queue;
    pthread_mutex_destroy(&ring->mutex);
    free(ring->slots);
    free(ring);
}

const struct bmi__queue_kind bmi__queue_ring = {
    .name = "lock-free",
    .create = ring_create,
    .destroy = ring_destroy,
    .push = ring_push,
    .pop = ring_pop,
    .empty = ring_empty,
    .length = ring_length,
    .count = ring_count,
};
