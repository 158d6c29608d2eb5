/* SPDX-License-Identifier: BSD-3-Clause
 *
 * queue_ring.c - the lock-free queue: a place for one task, and a ring of slots behind it.
 *
 * The place, which suffices while there is one task at a time, is a word: 0 "free", 1 "taken", or
 * the task. Who may do what:
 *   fill: puts a task there by compare-and-swap from free.
 *   claim: changes the task to taken by compare-and-swap. Whoever succeeds owns the task, and the
 *     word: he counts in `single_popped`, then sets it free. One who is stopped before that holds
 *     up nobody: tasks go behind meanwhile.
 *
 * A ring's position is a number that only grows; it stands for slot position % slots in round
 * position / slots. A slot holds either "empty, waiting for position P" (2P + 1) or a task with the
 * parity of its round in bit 1. Who may do what:
 *   fill: puts a task into the slot of the first free position by compare-and-swap from "waiting
 *     for it"; that is the moment at which the task is in the ring. `tail` only says where to start
 *     looking: it is stored without care, by whoever filled a slot, and may lie behind the truth.
 *     One who is stopped anywhere holds up nobody.
 *   claim: reads the slot of position `head` and claims it by moving head on; whoever succeeds owns
 *     the task and sets the slot to wait for its next round. One who is stopped before that holds
 *     up only those who want to fill the slot a whole round later.
 * Nobody follows a pointer to a task that is not its own, so that tasks may be freed at any time
 * after their pop. Parity tells whether a filled slot is filled for this position. If not, it is
 * still so from the round before (claimed, or the ring is full), or, once head has passed the
 * position, from a later one.
 *
 * Tasks go behind, into the ring, while the place is not free, and from then on until all of those
 * have been popped, so that order is kept. For the same reason who has seen a task behind looks at
 * the place once more before he claims it: what was pushed before is there, or has been claimed.
 * When the ring is full too, tasks spill into a list under a mutex, in the same manner. Who pops
 * moves spilled ones into the ring, or takes one directly where the ring has nothing. Lock order:
 * spill mutex only. While the place suffices nobody writes to the lines of the others, so that to
 * look whether anything is there costs little.
 *
 * What succeeds at once, as where nobody else is at the queue, is apart from what does not, for the
 * sake of the registers: those that are saved on the stack have to be written before a locked
 * instruction ends.
 */
#include "task/queue.h"

#include <pthread.h>
#include <stdlib.h>

#include "task/internal.h"

#define LINE 64
#define GIVE_WAY_NS 3000
#define PAUSES 16 /* between two looks at the clock */

enum { FREE, TAKEN }; /* else a task */

struct ring {
    struct bmi__queue queue; /* a line that never changes */
    uint64_t mask;           /* slots - 1 */

    _Alignas(LINE) _Atomic(uintptr_t) single; /* the place */
    _Atomic(uint64_t) single_popped;

    _Alignas(LINE) _Atomic(uint64_t) head; /* next position to pop */
    _Atomic(uint64_t) spilled;             /* tasks in the list; written under the mutex */
    _Alignas(LINE) _Atomic(uint64_t) tail; /* next position to fill, or one before that */

    _Alignas(LINE) _Atomic(uint64_t) spilled_direct; /* taken from the list without the ring */
    _Atomic(uint64_t) contended;
    pthread_mutex_t mutex;
    struct bmi_task *first, *last; /* under mutex */

    _Alignas(LINE) _Atomic(uint64_t) slots[];
};

/* What came of an attempt to fill or to claim. */
enum attempt {
    DONE,
    BEATEN, /* somebody else did it at the same moment */
    PASSED, /* what was looked at is used up, or not the oldest: look again */
    NO_MORE /* full; empty */
};

/* A compare-and-swap failed: somebody else is at it. Who lets that one go on for a moment, rather
 * than to take the line from it at once, has both done sooner: the other one does dozens of
 * operations in the time of few ways of the line from core to core. */
static __attribute__((cold)) void give_way(struct ring *ring)
{
    uint64_t until = bmi__now_ns() + GIVE_WAY_NS;
    atomic_fetch_add_explicit(&ring->contended, 1, memory_order_relaxed);
    do {
        for (int i = 0; i < PAUSES; i++)
            bmi__pause();
    } while (bmi__now_ns() < until);
}

/* ---- the place for one ---- */

static inline enum attempt single_claim(struct ring *ring, struct bmi_task **task)
{
    uintptr_t seen = atomic_load(&ring->single);
    if (seen == FREE || seen == TAKEN)
        return NO_MORE;
    if (!atomic_compare_exchange_strong_explicit(&ring->single, &seen, TAKEN, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return BEATEN;
    uint64_t popped = atomic_load_explicit(&ring->single_popped, memory_order_relaxed);
    atomic_store_explicit(&ring->single_popped, popped + 1, memory_order_relaxed);
    atomic_store_explicit(&ring->single, FREE, memory_order_release);
    *task = (struct bmi_task *)seen;
    return DONE;
}

static inline uint64_t single_length(struct ring *ring)
{
    return atomic_load(&ring->single) > TAKEN;
}

/* ---- the ring ---- */

static inline uint64_t waiting_for(uint64_t position)
{
    return 2 * position + 1;
}

static inline bool is_waiting(uint64_t slot)
{
    return slot & 1;
}

static inline uint64_t parity_of(struct ring *ring, uint64_t position)
{
    return position & (ring->mask + 1) ? 2 : 0;
}

static inline _Atomic(uint64_t) *slot_of(struct ring *ring, uint64_t position)
{
    return &ring->slots[position & ring->mask];
}

static inline bool is_filled_for(struct ring *ring, uint64_t slot, uint64_t position)
{
    return (slot & 3) == parity_of(ring, position);
}

/* Fills the slot of a position if it waits for that. */
static inline enum attempt slot_fill(struct ring *ring, uint64_t position, struct bmi_task *task)
{
    _Atomic(uint64_t) *slot = slot_of(ring, position);
    uint64_t filled = (uint64_t)(uintptr_t)task | parity_of(ring, position);
    uint64_t seen = atomic_load_explicit(slot, memory_order_acquire);
    if (seen != waiting_for(position)) {
        /* used up, unless it is filled from the round before, while head has not passed it */
        uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
        bool before = !is_waiting(seen) && !is_filled_for(ring, seen, position);
        return head <= position && before ? NO_MORE : PASSED;
    }
    if (!atomic_compare_exchange_strong(slot, &seen, filled))
        return BEATEN;
    atomic_store_explicit(&ring->tail, position + 1, memory_order_relaxed);
    return DONE;
}

static inline uint64_t fill_from(struct ring *ring)
{
    return atomic_load_explicit(&ring->tail, memory_order_relaxed);
}

/* Goes on after an attempt at a position. Returns false if the ring is full. */
static inline bool fill_on(struct ring *ring, uint64_t position, struct bmi_task *task,
                           enum attempt attempt)
{
    while (attempt == BEATEN || attempt == PASSED) {
        if (attempt == BEATEN)
            give_way(ring);
        uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
        position = head > position ? head : position + 1;
        attempt = slot_fill(ring, position, task);
    }
    return attempt == DONE;
}

/* Returns false if the ring is full. */
static inline bool ring_fill(struct ring *ring, struct bmi_task *task)
{
    uint64_t position = fill_from(ring);
    return fill_on(ring, position, task, slot_fill(ring, position, task));
}

static inline bool ring_has_none(struct ring *ring)
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

/* Why there was nothing to claim in the slot of position `head`. */
static inline enum attempt claim_none(struct ring *ring, uint64_t head, uint64_t seen)
{
    if (seen == waiting_for(head))
        return NO_MORE;
    if (is_waiting(seen))
        return PASSED; /* for a later round: head was old */
    /* of the round before, its owner is about to empty it? */
    return atomic_load(&ring->head) == head ? NO_MORE : PASSED;
}

/* The place may have been filled, with an older task than is seen here, after it was looked at. */
static inline enum attempt ring_claim(struct ring *ring, struct bmi_task **task)
{
    uint64_t head = atomic_load(&ring->head);
    _Atomic(uint64_t) *slot = slot_of(ring, head);
    uint64_t seen = atomic_load(slot);
    if (!is_filled_for(ring, seen, head))
        return claim_none(ring, head, seen);
    if (single_length(ring) > 0)
        return PASSED;
    if (!atomic_compare_exchange_strong_explicit(&ring->head, &head, head + 1, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return BEATEN;
    atomic_store_explicit(slot, waiting_for(head + ring->mask + 1), memory_order_release);
    *task = (struct bmi_task *)(uintptr_t)(seen & ~(uint64_t)3);
    return DONE;
}

/* The first position that is not filled, from `head` on. */
static uint64_t ring_end(struct ring *ring, uint64_t head)
{
    uint64_t end = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    end = end > head ? end : head;
    while (is_filled_for(ring, atomic_load_explicit(slot_of(ring, end), memory_order_relaxed), end))
        end++;
    return end;
}

/* Below 0 where tail lies behind. */
static inline int64_t ring_between(struct ring *ring)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    return (int64_t)(atomic_load_explicit(&ring->tail, memory_order_relaxed) - head);
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

/* There is one. */
static struct bmi_task *spill_pop_locked(struct ring *ring)
{
    struct bmi_task *task = ring->first;
    ring->first = task->next;
    atomic_fetch_sub(&ring->spilled, 1);
    atomic_fetch_add_explicit(&ring->spilled_direct, 1, memory_order_relaxed);
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
static enum attempt spill_take(struct ring *ring, struct bmi_task **task)
{
    pthread_mutex_lock(&ring->mutex);
    enum attempt attempt = ring_claim(ring, task);
    if (attempt == NO_MORE && ring->first != NULL) {
        attempt = single_length(ring) > 0 ? PASSED : DONE; /* as in ring_claim */
        if (attempt == DONE)
            *task = spill_pop_locked(ring);
    }
    pthread_mutex_unlock(&ring->mutex);
    return attempt;
}

/* ---- what lies behind the place for one ---- */

/* The list first: what has left it by then is in the ring, or popped. */
static inline bool behind_empty(struct ring *ring)
{
    return atomic_load(&ring->spilled) == 0 && ring_has_none(ring);
}

/* The same in fewer steps; at a loss, false. */
static inline bool behind_unused(struct ring *ring)
{
    uint64_t spilled = atomic_load(&ring->spilled);
    uint64_t head = atomic_load(&ring->head);
    return spilled == 0 && atomic_load(slot_of(ring, head)) == waiting_for(head);
}

static __attribute__((noinline)) void behind_push_on(struct ring *ring, struct bmi_task *task,
                                                     uint64_t position, enum attempt attempt)
{
    if (!fill_on(ring, position, task, attempt))
        spill_push(ring, task);
}

static void behind_push(struct ring *ring, struct bmi_task *task)
{
    uint64_t position = fill_from(ring);
    enum attempt attempt = NO_MORE;
    if (atomic_load_explicit(&ring->spilled, memory_order_relaxed) == 0)
        attempt = slot_fill(ring, position, task);
    if (attempt != DONE)
        behind_push_on(ring, task, position, attempt);
}

static enum attempt behind_take(struct ring *ring, struct bmi_task **task)
{
    enum attempt attempt = ring_claim(ring, task);
    if (atomic_load(&ring->spilled) == 0) {
        /* somebody has moved it from the list to the ring? */
        return attempt == NO_MORE && !ring_has_none(ring) ? PASSED : attempt;
    }
    if (attempt == NO_MORE)
        return spill_take(ring, task);
    if (attempt == DONE)
        spill_refill(ring);
    return attempt;
}

/* ---- the queue ---- */

/* A task that goes behind without need keeps its turn. */
static inline enum attempt single_fill(struct ring *ring, struct bmi_task *task)
{
    uintptr_t seen = atomic_load_explicit(&ring->single, memory_order_relaxed);
    if (seen != FREE || !behind_unused(ring))
        return NO_MORE;
    return atomic_compare_exchange_strong(&ring->single, &seen, (uintptr_t)task) ? DONE : BEATEN;
}

static __attribute__((noinline)) void push_beaten(struct ring *ring, struct bmi_task *task)
{
    give_way(ring);
    if (single_fill(ring, task) != DONE)
        behind_push(ring, task);
}

static void ring_push(struct bmi__queue *queue, struct bmi_task *task)
{
    struct ring *ring = (struct ring *)queue;
    enum attempt attempt = single_fill(ring, task);
    if (attempt == NO_MORE)
        behind_push(ring, task);
    else if (attempt == BEATEN)
        push_beaten(ring, task);
}

static bool ring_empty(struct bmi__queue *queue)
{
    struct ring *ring = (struct ring *)queue;
    return single_length(ring) == 0 && behind_empty(ring);
}

/* Goes on after an attempt. */
static __attribute__((noinline)) struct bmi_task *pop_on(struct ring *ring, enum attempt attempt)
{
    struct bmi_task *task = NULL;
    while (attempt == BEATEN || attempt == PASSED) {
        if (attempt == BEATEN && ring_empty(&ring->queue)) { /* that one had the last */
            atomic_fetch_add_explicit(&ring->contended, 1, memory_order_relaxed);
            return NULL;
        }
        if (attempt == BEATEN)
            give_way(ring);
        attempt = single_claim(ring, &task);
        if (attempt == NO_MORE)
            attempt = behind_take(ring, &task);
    }
    return task;
}

static struct bmi_task *ring_pop(struct bmi__queue *queue)
{
    struct ring *ring = (struct ring *)queue;
    struct bmi_task *task;
    enum attempt attempt = single_claim(ring, &task);
    if (attempt == NO_MORE)
        attempt = atomic_load(&ring->spilled) == 0 ? ring_claim(ring, &task) : PASSED;
    if (attempt == DONE)
        return task;
    return attempt == NO_MORE ? NULL : pop_on(ring, attempt);
}

static uint64_t ring_length(struct bmi__queue *queue)
{
    struct ring *ring = (struct ring *)queue;
    int64_t length = (int64_t)single_length(ring) + ring_between(ring) +
                     (int64_t)atomic_load_explicit(&ring->spilled, memory_order_relaxed);
    return length > 0 ? (uint64_t)length : 0;
}

static void ring_count(struct bmi__queue *queue, struct bmi__queue_counts *counts)
{
    struct ring *ring = (struct ring *)queue;
    uint64_t direct = atomic_load_explicit(&ring->spilled_direct, memory_order_relaxed);
    uint64_t single = atomic_load_explicit(&ring->single_popped, memory_order_acquire);
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
    counts->popped = single + head + direct;
    counts->pushed = single + single_length(ring) + ring_end(ring, head) + direct +
                     atomic_load_explicit(&ring->spilled, memory_order_relaxed);
    counts->contended = atomic_load_explicit(&ring->contended, memory_order_relaxed);
}

static struct bmi__queue *ring_create(uint32_t slots)
{
    struct ring *ring = aligned_alloc(LINE, sizeof(*ring) + slots * sizeof(*ring->slots));
    if (ring == NULL)
        return NULL;
    *ring = (struct ring){.queue.kind = &bmi__queue_ring, .mask = slots - 1};
    for (uint64_t i = 0; i < slots; i++)
        atomic_init(&ring->slots[i], waiting_for(i));
    pthread_mutex_init(&ring->mutex, NULL);
    return &ring->queue;
}

static void ring_destroy(struct bmi__queue *queue)
{
    struct ring *ring = (struct ring *)queue;
    pthread_mutex_destroy(&ring->mutex);
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
