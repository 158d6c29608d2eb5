/* SPDX-License-Identifier: BSD-3-Clause
 *
 * queue_ring.c - the lock-free queue: two rings of slots, a short one in a single cache line, where
 * tasks are while there are few, and a long one behind it.
 *
 * A ring's position is a number that only grows; it stands for slot position % slots in round
 * position / slots. A slot holds either "empty, waiting for position P" (2P + 1) or a task with the
 * parity of its round in bit 1. Who may do what:
 *   fill: puts a task into the slot of the first free position by compare-and-swap from "waiting
 * for it"; that is the moment at which the task is in the ring. `tail` only says where to start
 *     looking: it is stored without care, by whoever filled a slot, and may lie behind the truth.
 *     One who is stopped anywhere holds up nobody.
 *   claim: reads the slot of position `head` and claims it by moving head on; whoever succeeds owns
 *     the task and sets the slot to wait for its next round. One who is stopped before that holds
 * up only those who want to fill the slot a whole round later. Nobody follows a pointer to a task
 * that is not its own, so that tasks may be freed at any time after their pop. Parity tells whether
 * a filled slot is filled for this position. If not, it is still so from the round before (claimed,
 * or the ring is full), or, once head has passed the position, from a later one.
 *
 * Tasks go behind, into the long ring, while the short one is full, and from then on until all of
 * those have been popped, so that order is kept: while `behind_pushed`, which is raised after such
 * a push, differs from `behind_popped`. That is set to what behind_pushed was before nothing was
 * found there, so no push that has returned is ever hidden. When the long ring is full too, tasks
 * spill into a list under a mutex, in the same manner. Who pops moves spilled ones into the
 * ring, or takes one directly where the ring has nothing. Lock order: spill mutex only.
 */
#include "task/queue.h"

#include <pthread.h>
#include <stdlib.h>

#include "task/internal.h"

#define LINE 64
#define SHORT 4 /* slots */
#define GIVE_WAY_NS 3000
#define PAUSES 16 /* between two looks at the clock */

struct ring {
    struct bmi__queue queue; /* a line that never changes */
    uint64_t mask;           /* of the long ring: slots - 1 */
    _Atomic(uint64_t) *slots;

    _Alignas(LINE) _Atomic(uint64_t) short_head;
    _Atomic(uint64_t) short_tail;
    _Atomic(uint64_t) short_slots[SHORT];
    _Atomic(uint64_t) behind_pushed, behind_popped;

    _Alignas(LINE) _Atomic(uint64_t) head; /* next position to pop */
    _Atomic(uint64_t) pop_contended;
    _Alignas(LINE) _Atomic(uint64_t) tail; /* next position to fill, or one before that */
    _Atomic(uint64_t) push_contended;

    _Alignas(LINE) _Atomic(uint64_t) spilled; /* tasks in the list; written under the mutex */
    _Atomic(uint64_t) spilled_direct;         /* taken from the list without the ring */
    pthread_mutex_t mutex;
    struct bmi_task *first, *last; /* under mutex */
};

/* One of the two rings. Passed by value and inlined: nothing of it is ever in memory. */
struct view {
    _Atomic(uint64_t) *head, *tail, *slots, *push_contended, *pop_contended;
    uint64_t mask;
};

static inline struct view short_ring(struct ring *ring)
{
    return (struct view){&ring->short_head,     &ring->short_tail,    ring->short_slots,
                         &ring->push_contended, &ring->pop_contended, SHORT - 1};
}

static inline struct view long_ring(struct ring *ring)
{
    return (struct view){&ring->head,           &ring->tail,          ring->slots,
                         &ring->push_contended, &ring->pop_contended, ring->mask};
}

/* ---- one ring ---- */

static inline uint64_t waiting_for(uint64_t position)
{
    return 2 * position + 1;
}

static inline bool is_waiting(uint64_t slot)
{
    return slot & 1;
}

static inline uint64_t parity_of(struct view view, uint64_t position)
{
    return position & (view.mask + 1) ? 2 : 0;
}

static inline _Atomic(uint64_t) *slot_of(struct view view, uint64_t position)
{
    return &view.slots[position & view.mask];
}

static inline bool is_filled_for(struct view view, uint64_t slot, uint64_t position)
{
    return !is_waiting(slot) && (slot & 2) == parity_of(view, position);
}

/* A compare-and-swap failed: somebody else is at it. Who lets that one go on for a moment, rather
 * than to take the line from it at once, has both done sooner: the other one does dozens of
 * operations in the time of few ways of the line from core to core. */
static __attribute__((cold)) void give_way(_Atomic(uint64_t) *counter)
{
    uint64_t until = bmi__now_ns() + GIVE_WAY_NS;
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
    do {
        for (int i = 0; i < PAUSES; i++)
            bmi__pause();
    } while (bmi__now_ns() < until);
}

/* Fills the slot of a position if it waits for that. Else *seen is what it holds. */
static inline bool slot_fill(struct view view, uint64_t position, struct bmi_task *task,
                             uint64_t *seen)
{
    _Atomic(uint64_t) *slot = slot_of(view, position);
    uint64_t filled = (uint64_t)(uintptr_t)task | parity_of(view, position);
    *seen = atomic_load_explicit(slot, memory_order_acquire);
    if (*seen != waiting_for(position))
        return false;
    if (!atomic_compare_exchange_strong(slot, seen, filled)) {
        give_way(view.push_contended);
        return false;
    }
    atomic_store_explicit(view.tail, position + 1, memory_order_relaxed);
    return true;
}

/* Returns false if the ring is full. */
static inline bool ring_fill(struct view view, struct bmi_task *task)
{
    uint64_t position = atomic_load_explicit(view.tail, memory_order_relaxed);
    for (;;) {
        uint64_t seen;
        if (slot_fill(view, position, task, &seen))
            return true;
        /* used up, unless it is filled from the round before, while head has not passed it */
        uint64_t head = atomic_load_explicit(view.head, memory_order_acquire);
        if (head <= position && !is_waiting(seen) && !is_filled_for(view, seen, position))
            return false;
        position = head > position ? head : position + 1;
    }
}

static inline bool ring_has_none(struct view view)
{
    for (;;) {
        uint64_t head = atomic_load(view.head);
        uint64_t seen = atomic_load(slot_of(view, head));
        if (is_filled_for(view, seen, head))
            return false;
        if (seen == waiting_for(head) || atomic_load(view.head) == head)
            return true;
    }
}

static inline struct bmi_task *ring_claim(struct view view)
{
    for (;;) {
        uint64_t head = atomic_load(view.head);
        _Atomic(uint64_t) *slot = slot_of(view, head);
        uint64_t seen = atomic_load(slot);
        if (seen == waiting_for(head))
            return NULL;
        if (is_waiting(seen))
            continue; /* for a later round: head was old */
        if (!is_filled_for(view, seen, head)) {
            if (atomic_load(view.head) == head)
                return NULL; /* of the round before, its owner is about to empty it */
            continue;
        }
        if (atomic_compare_exchange_strong_explicit(view.head, &head, head + 1,
                                                    memory_order_acq_rel, memory_order_relaxed)) {
            atomic_store_explicit(slot, waiting_for(head + view.mask + 1), memory_order_release);
            return (struct bmi_task *)(uintptr_t)(seen & ~(uint64_t)3);
        }
        if (ring_has_none(view)) { /* that one had the last */
            atomic_fetch_add_explicit(view.pop_contended, 1, memory_order_relaxed);
            return NULL;
        }
        give_way(view.pop_contended);
    }
}

/* The first position that is not filled, from `head` on. */
static uint64_t ring_end(struct view view, uint64_t head)
{
    uint64_t end = atomic_load_explicit(view.tail, memory_order_relaxed);
    end = end > head ? end : head;
    while (is_filled_for(view, atomic_load_explicit(slot_of(view, end), memory_order_relaxed), end))
        end++;
    return end;
}

static inline uint64_t ring_between(struct view view)
{
    uint64_t head = atomic_load_explicit(view.head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(view.tail, memory_order_relaxed);
    return tail > head ? tail - head : 0;
}

/* ---- spilled tasks ---- */

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
        if (!ring_fill(long_ring(ring), task))
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
    struct bmi_task *task = ring_claim(long_ring(ring));
    if (task == NULL) {
        task = spill_pop_locked(ring);
        if (task != NULL)
            atomic_fetch_add_explicit(&ring->spilled_direct, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&ring->mutex);
    return task;
}

/* ---- what lies behind the short ring ---- */

/* Whether there may be tasks. */
static inline bool behind_has(struct ring *ring)
{
    uint64_t popped = atomic_load_explicit(&ring->behind_popped, memory_order_relaxed);
    return atomic_load(&ring->behind_pushed) != popped;
}

static __attribute__((noinline)) void behind_push(struct ring *ring, struct bmi_task *task)
{
    if (atomic_load_explicit(&ring->spilled, memory_order_relaxed) != 0 ||
        !ring_fill(long_ring(ring), task))
        spill_push(ring, task);
    atomic_fetch_add(&ring->behind_pushed, 1);
}

static struct bmi_task *behind_take(struct ring *ring)
{
    struct bmi_task *task = ring_claim(long_ring(ring));
    if (atomic_load(&ring->spilled) == 0)
        return task;
    if (task == NULL)
        return spill_take(ring);
    spill_refill(ring);
    return task;
}

/* The list first: what has left it by then is in the ring, or popped. */
static inline bool behind_empty(struct ring *ring)
{
    return atomic_load(&ring->spilled) == 0 && ring_has_none(long_ring(ring));
}

/* Where tail is beyond head, another task was pushed: then `behind_popped` stays as it is, which
 * costs a look at most. */
static __attribute__((noinline)) struct bmi_task *behind_pop(struct ring *ring)
{
    struct bmi_task *task = NULL;
    bool empty;
    if (atomic_load(&ring->spilled) == 0)
        task = ring_claim(long_ring(ring));
    if (task != NULL && ring_between(long_ring(ring)) > 0)
        return task;
    do { /* NULL although there is one: somebody has just moved it from the list to the ring */
        uint64_t pushed = atomic_load(&ring->behind_pushed);
        if (task == NULL)
            task = behind_take(ring);
        empty = behind_empty(ring);
        if (empty) /* stored without care: too low a number only costs a look */
            atomic_store_explicit(&ring->behind_popped, pushed, memory_order_relaxed);
    } while (task == NULL && !empty);
    return task;
}

/* ---- the queue ---- */

static void ring_push(struct bmi__queue *queue, struct bmi_task *task)
{
    struct ring *ring = (struct ring *)queue;
    if (behind_has(ring) || !ring_fill(short_ring(ring), task))
        behind_push(ring, task);
}

static struct bmi_task *ring_pop(struct bmi__queue *queue)
{
    struct ring *ring = (struct ring *)queue;
    struct bmi_task *task = ring_claim(short_ring(ring));
    return task != NULL || !behind_has(ring) ? task : behind_pop(ring);
}

static bool ring_empty(struct bmi__queue *queue)
{
    struct ring *ring = (struct ring *)queue;
    return ring_has_none(short_ring(ring)) && (!behind_has(ring) || behind_empty(ring));
}

static uint64_t ring_length(struct bmi__queue *queue)
{
    struct ring *ring = (struct ring *)queue;
    uint64_t length = ring_between(short_ring(ring));
    if (behind_has(ring))
        length += ring_between(long_ring(ring)) +
                  atomic_load_explicit(&ring->spilled, memory_order_relaxed);
    return length;
}

static void ring_count(struct bmi__queue *queue, struct bmi__queue_counts *counts)
{
    struct ring *ring = (struct ring *)queue;
    uint64_t direct = atomic_load_explicit(&ring->spilled_direct, memory_order_relaxed);
    uint64_t short_head = atomic_load_explicit(&ring->short_head, memory_order_acquire);
    uint64_t long_head = atomic_load_explicit(&ring->head, memory_order_acquire);
    counts->popped = short_head + long_head + direct;
    counts->pushed = ring_end(short_ring(ring), short_head) + ring_end(long_ring(ring), long_head) +
                     direct + atomic_load_explicit(&ring->spilled, memory_order_relaxed);
    counts->contended = atomic_load_explicit(&ring->pop_contended, memory_order_relaxed) +
                        atomic_load_explicit(&ring->push_contended, memory_order_relaxed);
}

static void slots_init(struct view view)
{
    for (uint64_t i = 0; i <= view.mask; i++)
        atomic_init(&view.slots[i], waiting_for(i));
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
    slots_init(short_ring(ring));
    slots_init(long_ring(ring));
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
