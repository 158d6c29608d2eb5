/* SPDX-License-Identifier: BSD-3-Clause
 *
 * queue_spin.c - the paper's queue: a list under a spinlock. A first check for emptiness takes no
 * lock (Algorithm 2). `first`, `last` and links are accessed under the lock only; `pushed` and
 * `popped` are written under it and any thread reads them.
 *
 * The holder of the lock may be a SCHED_IDLE worker that another thread of its CPU has displaced: a
 * thread that has spun for a while yields, and then sleeps for moments, so that the worker can run.
 */
#include "task/queue.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define LINE 64
#define SPINS_BEFORE_YIELD 128
#define YIELDS_BEFORE_SLEEP 16
#define SLEEP_NS 50000

struct spin {
    struct bmi__queue queue;
    _Alignas(LINE) atomic_bool locked;
    struct bmi_task *first, *last;
    _Atomic(uint64_t) pushed, popped;
    _Atomic(uint64_t) contended; /* under the lock */
};

static void spin_wait(struct spin *spin)
{
    const struct timespec moment = {.tv_nsec = SLEEP_NS};
    for (unsigned round = 0; atomic_load_explicit(&spin->locked, memory_order_relaxed); round++) {
        if (round < SPINS_BEFORE_YIELD)
            bmi__pause();
        else if (round < SPINS_BEFORE_YIELD + YIELDS_BEFORE_SLEEP)
            sched_yield();
        else
            nanosleep(&moment, NULL);
    }
}

static inline void spin_lock(struct spin *spin)
{
    if (!atomic_exchange_explicit(&spin->locked, true, memory_order_acquire))
        return;
    do {
        spin_wait(spin);
    } while (atomic_exchange_explicit(&spin->locked, true, memory_order_acquire));
    uint64_t contended = atomic_load_explicit(&spin->contended, memory_order_relaxed);
    atomic_store_explicit(&spin->contended, contended + 1, memory_order_relaxed);
}

static inline void spin_unlock(struct spin *spin)
{
    atomic_store_explicit(&spin->locked, false, memory_order_release);
}

static void spin_push(struct bmi__queue *queue, struct bmi_task *task)
{
    struct spin *spin = (struct spin *)queue;
    task->next = NULL;
    spin_lock(spin);
    if (spin->first == NULL)
        spin->first = task;
    else
        spin->last->next = task;
    spin->last = task;
    uint64_t pushed = atomic_load_explicit(&spin->pushed, memory_order_relaxed);
    atomic_store(&spin->pushed, pushed + 1); /* sequentially consistent: the sleep protocol */
    spin_unlock(spin);
}

static bool spin_empty(struct bmi__queue *queue)
{
    struct spin *spin = (struct spin *)queue;
    uint64_t popped = atomic_load(&spin->popped); /* first: pushed can only be more */
    return atomic_load(&spin->pushed) == popped;
}

static struct bmi_task *spin_pop(struct bmi__queue *queue)
{
    struct spin *spin = (struct spin *)queue;
    if (spin_empty(queue))
        return NULL;
    spin_lock(spin);
    struct bmi_task *task = spin->first;
    if (task != NULL) {
        spin->first = task->next;
        uint64_t popped = atomic_load_explicit(&spin->popped, memory_order_relaxed);
        atomic_store_explicit(&spin->popped, popped + 1, memory_order_release);
    }
    spin_unlock(spin);
    return task;
}

static uint64_t spin_length(struct bmi__queue *queue)
{
    struct spin *spin = (struct spin *)queue;
    uint64_t popped = atomic_load_explicit(&spin->popped, memory_order_acquire);
    return atomic_load_explicit(&spin->pushed, memory_order_relaxed) - popped;
}

static void spin_count(struct bmi__queue *queue, struct bmi__queue_counts *counts)
{
    struct spin *spin = (struct spin *)queue;
    counts->popped = atomic_load_explicit(&spin->popped, memory_order_acquire);
    counts->pushed = atomic_load_explicit(&spin->pushed, memory_order_relaxed);
    counts->contended = atomic_load_explicit(&spin->contended, memory_order_relaxed);
}

static struct bmi__queue *spin_create(uint32_t slots)
{
    (void)slots; /* a list has no end */
    struct spin *spin = aligned_alloc(LINE, sizeof(*spin));
    if (spin == NULL)
        return NULL;
    *spin = (struct spin){.queue.kind = &bmi__queue_spin};
    return &spin->queue;
}

static void spin_destroy(struct bmi__queue *queue)
{
    free(queue);
}

const struct bmi__queue_kind bmi__queue_spin = {
    .name = "spinlock",
    .create = spin_create,
    .destroy = spin_destroy,
    .push = spin_push,
    .pop = spin_pop,
    .empty = spin_empty,
    .length = spin_length,
    .count = spin_count,
};
