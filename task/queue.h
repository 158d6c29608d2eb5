/* SPDX-License-Identifier: BSD-3-Clause
 *
 * queue.h - the queue of one node of the tree: first in, first out, of tasks, for any number of
 * threads at both ends, without locks: a place for one task, and a ring of slots behind it.
 *
 * Push never fails and never allocates; each pushed task is popped once; every check for emptiness
 * and every pop that starts after a push has returned sees that push. The last also holds for the
 * sleep protocol (push, then check for sleeping threads; note that a thread sleeps, then check
 * whether the queue is empty: one of them sees the other), for which all these accesses are
 * sequentially consistent. After the push the queue's caller must not access the task: it may have
 * ended.
 *
 * The place, which suffices while there is one task at a time, is a word: 0 "free", 1 "taken", or
 * the task. Two operations change it:
 *   fill:  puts a task there by compare-and-swap from free.
 *   claim: changes the task to taken by compare-and-swap. The thread that succeeds owns the task
 *          and the word: it counts in `single_popped`, then sets the word free. If it is stopped
 *          before that, it delays no other thread: tasks go into the ring in the meantime.
 *
 * A ring's position is a number that only grows; it stands for slot position % slots in round
 * position / slots. A slot holds either "empty, waiting for position P" (2P + 1) or a task with the
 * parity of its round in bit 1. Two operations change it:
 *   fill:  puts a task into the slot of the first free position by compare-and-swap from "waiting
 *          for it"; at that moment the task is in the ring. `tail` is only a hint where to start
 *          the search: each thread that filled a slot stores it without ordering, and it may be too
 *          low. A thread that is stopped anywhere here delays no other.
 *   claim: reads the slot of position `head` and claims it by moving head on. The thread that
 *          succeeds owns the task and sets the slot to wait for its next round. If it is stopped
 *          before that, it delays only threads that fill the slot a whole round later.
 * No thread dereferences a task that it does not own, so that tasks may be freed at any time after
 * their pop. Parity shows whether a filled slot is filled for this position. If not, it is still
 * filled from the round before (claimed, or the ring is full), or, once head has passed the
 * position, from a later one.
 *
 * Tasks go into the ring while the place is not free, and from then on until all of those have been
 * popped, so that order is kept. For the same reason a thread that has seen a task in the ring
 * checks the place once more before it claims that task: a task that was pushed before is there, or
 * has been claimed. When the ring is full too, tasks spill into a list under a mutex, in the same
 * manner. A popping thread moves spilled tasks into the ring, or takes one directly if the ring is
 * empty. Lock order: spill mutex only. While the place suffices no thread writes to the cache lines
 * of the ring and the list, so that a check for emptiness is cheap.
 *
 * The uncontended paths are in this header, inlined in their callers; the others are in
 * queue.c. Registers that calls save on the stack would have to be written before a locked
 * instruction ends.
 */
#ifndef BMI_TASK_QUEUE_H
#define BMI_TASK_QUEUE_H

#include "bmi/task.h"

#include <pthread.h>

#define BMI__RING_LINE 64

enum { BMI__FREE, BMI__TAKEN }; /* else a task */

struct bmi__queue {
    uint64_t mask; /* slots - 1; a line that never changes */

    _Alignas(BMI__RING_LINE) _Atomic(uintptr_t) single; /* the place */
    _Atomic(uint64_t) single_popped;

    _Alignas(BMI__RING_LINE) _Atomic(uint64_t) head; /* next position to pop */
    _Atomic(uint64_t) spilled; /* tasks in the list; written under the mutex */
    _Alignas(BMI__RING_LINE) _Atomic(uint64_t) tail; /* next position to fill, or one before that */

    _Alignas(BMI__RING_LINE) _Atomic(uint64_t)
        spilled_direct; /* taken from the list without the ring */
    _Atomic(uint64_t) contended;
    pthread_mutex_t mutex;
    struct bmi_task *first, *last; /* under mutex */

    _Alignas(BMI__RING_LINE) _Atomic(uint64_t) slots[];
};

struct bmi__queue_counts {
    uint64_t pushed, popped, contended;
};

struct bmi__queue *bmi__queue_create(uint32_t slots); /* a power of 2, >= 8; NULL: no memory */
void bmi__queue_destroy(struct bmi__queue *queue);
/* Takes no lock: Algorithm 2. */
bool bmi__queue_empty(struct bmi__queue *queue);
void bmi__queue_count(struct bmi__queue *queue, struct bmi__queue_counts *counts);

/* For a thread that waits in a loop: pauses the CPU for a moment. */
static inline void bmi__pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The outcome of an attempt to fill or to claim. */
enum bmi__attempt {
    BMI__DONE,
    BMI__BEATEN, /* another thread did it at the same moment */
    BMI__PASSED, /* the slot is used up, or not the oldest: try again */
    BMI__NO_MORE /* full; empty */
};

/* ---- queue.c: continues after an attempt that failed ---- */

/* Why the slot of a position, which holds `seen`, could not be filled; why there was no task to
 * claim in the slot of position `head`, which does not wait for that. */
enum bmi__attempt bmi__ring_fill_none(struct bmi__queue *ring, uint64_t position, uint64_t seen);
enum bmi__attempt bmi__ring_claim_none(struct bmi__queue *ring, uint64_t head, uint64_t seen);
/* Pushes a task after another thread took the place at the same moment. */
void bmi__ring_push_beaten(struct bmi__queue *ring, struct bmi_task *task);
/* Pushes a task behind the place, after an attempt at a position. */
void bmi__ring_push_on(struct bmi__queue *ring, struct bmi_task *task, uint64_t position,
                       enum bmi__attempt attempt);
/* Pops, after an attempt. NULL: empty */
struct bmi_task *bmi__ring_pop_on(struct bmi__queue *ring, enum bmi__attempt attempt);

/* ---- the place for one ---- */

static inline enum bmi__attempt bmi__single_claim(struct bmi__queue *ring, struct bmi_task **task)
{
    uintptr_t seen = atomic_load(&ring->single);
    if (seen == BMI__FREE || seen == BMI__TAKEN)
        return BMI__NO_MORE;
    if (!atomic_compare_exchange_strong_explicit(&ring->single, &seen, BMI__TAKEN,
                                                 memory_order_acq_rel, memory_order_relaxed))
        return BMI__BEATEN;
    uint64_t popped = atomic_load_explicit(&ring->single_popped, memory_order_relaxed);
    atomic_store_explicit(&ring->single_popped, popped + 1, memory_order_relaxed);
    atomic_store_explicit(&ring->single, BMI__FREE, memory_order_release);
    *task = (struct bmi_task *)seen;
    return BMI__DONE;
}

static inline uint64_t bmi__single_length(struct bmi__queue *ring)
{
    return atomic_load(&ring->single) > BMI__TAKEN;
}

/* ---- the ring ---- */

static inline uint64_t bmi__ring_waiting_for(uint64_t position)
{
    return 2 * position + 1;
}

static inline uint64_t bmi__ring_parity(struct bmi__queue *ring, uint64_t position)
{
    return position & (ring->mask + 1) ? 2 : 0;
}

static inline _Atomic(uint64_t) *bmi__ring_slot(struct bmi__queue *ring, uint64_t position)
{
    return &ring->slots[position & ring->mask];
}

static inline bool bmi__ring_filled_for(struct bmi__queue *ring, uint64_t slot, uint64_t position)
{
    return (slot & 3) == bmi__ring_parity(ring, position);
}

/* Fills the slot of a position if it waits for that. */
static inline enum bmi__attempt bmi__ring_fill_at(struct bmi__queue *ring, uint64_t position,
                                                  struct bmi_task *task)
{
    _Atomic(uint64_t) *slot = bmi__ring_slot(ring, position);
    uint64_t filled = (uint64_t)(uintptr_t)task | bmi__ring_parity(ring, position);
    uint64_t seen = atomic_load_explicit(slot, memory_order_acquire);
    if (seen != bmi__ring_waiting_for(position))
        return bmi__ring_fill_none(ring, position, seen);
    if (!atomic_compare_exchange_strong(slot, &seen, filled))
        return BMI__BEATEN;
    atomic_store_explicit(&ring->tail, position + 1, memory_order_relaxed);
    return BMI__DONE;
}

/* Another thread may have filled the place, with an older task than is seen here, after the caller
 * read it. */
static inline enum bmi__attempt bmi__ring_claim(struct bmi__queue *ring, struct bmi_task **task)
{
    uint64_t head = atomic_load(&ring->head);
    _Atomic(uint64_t) *slot = bmi__ring_slot(ring, head);
    uint64_t seen = atomic_load(slot);
    if (seen == bmi__ring_waiting_for(head))
        return BMI__NO_MORE;
    if (!bmi__ring_filled_for(ring, seen, head))
        return bmi__ring_claim_none(ring, head, seen);
    if (bmi__single_length(ring) > 0)
        return BMI__PASSED;
    if (!atomic_compare_exchange_strong_explicit(&ring->head, &head, head + 1, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return BMI__BEATEN;
    atomic_store_explicit(slot, bmi__ring_waiting_for(head + ring->mask + 1), memory_order_release);
    *task = (struct bmi_task *)(uintptr_t)(seen & ~(uint64_t)3);
    return BMI__DONE;
}

/* ---- the queue ---- */

/* Whether no task is behind the place; if in doubt, false. */
static inline bool bmi__behind_unused(struct bmi__queue *ring)
{
    uint64_t spilled = atomic_load(&ring->spilled);
    uint64_t head = atomic_load(&ring->head);
    return spilled == 0 && atomic_load(bmi__ring_slot(ring, head)) == bmi__ring_waiting_for(head);
}

/* A task that goes into the ring without need keeps its turn. */
static inline enum bmi__attempt bmi__single_fill(struct bmi__queue *ring, struct bmi_task *task)
{
    uintptr_t seen = atomic_load_explicit(&ring->single, memory_order_relaxed);
    if (seen != BMI__FREE || !bmi__behind_unused(ring))
        return BMI__NO_MORE;
    return atomic_compare_exchange_strong(&ring->single, &seen, (uintptr_t)task) ? BMI__DONE
                                                                                 : BMI__BEATEN;
}

static inline void bmi__ring_push_behind(struct bmi__queue *ring, struct bmi_task *task)
{
    uint64_t position = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    enum bmi__attempt attempt = BMI__NO_MORE;
    if (atomic_load_explicit(&ring->spilled, memory_order_relaxed) == 0)
        attempt = bmi__ring_fill_at(ring, position, task);
    if (attempt != BMI__DONE)
        bmi__ring_push_on(ring, task, position, attempt);
}

/* A push is to follow soon: prefetches the place's cache line for writing, so that the code up to
 * the push does not wait for it. (x86-64 processors of the last fifteen years know the instruction
 * or ignore it; the compiler's builtin prefetches for reading only.) */
static inline void bmi__queue_expect(struct bmi__queue *ring)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(ring->single));
#else
    __builtin_prefetch((const void *)&ring->single, 1);
#endif
}

static inline void bmi__queue_push(struct bmi__queue *ring, struct bmi_task *task)
{
    enum bmi__attempt attempt = bmi__single_fill(ring, task);
    if (attempt == BMI__NO_MORE)
        bmi__ring_push_behind(ring, task);
    else if (attempt == BMI__BEATEN)
        bmi__ring_push_beaten(ring, task);
}

/* NULL: empty */
static inline struct bmi_task *bmi__queue_pop(struct bmi__queue *ring)
{
    struct bmi_task *task = NULL;
    enum bmi__attempt attempt = bmi__single_claim(ring, &task);
    if (attempt == BMI__NO_MORE)
        attempt = atomic_load(&ring->spilled) == 0 ? bmi__ring_claim(ring, &task) : BMI__PASSED;
    if (attempt == BMI__DONE)
        return task;
    return attempt == BMI__NO_MORE ? NULL : bmi__ring_pop_on(ring, attempt);
}

/* Approximate; a lower number if in doubt. */
static inline uint64_t bmi__queue_length(struct bmi__queue *ring)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed); /* or behind head */
    uint64_t spilled = atomic_load_explicit(&ring->spilled, memory_order_relaxed);
    int64_t length = (int64_t)(bmi__single_length(ring) + tail - head + spilled);
    return length > 0 ? (uint64_t)length : 0;
}

#endif
