/* SPDX-License-Identifier: BSD-3-Clause
 *
 * queue_kind.h - the queue of one node of the tree: first in, first out, of tasks, for any number
 * of threads at both ends. Two implementations behind one table: a ring without locks, the default
 * (queue_ring.h), and a list under a spinlock, the paper's (queue_spin.c).
 *
 * Both guarantee: push never fails and never allocates; each pushed task is popped once; every
 * empty() and pop() that starts after a push has returned sees that push. The last also holds for
 * the sleep protocol (push, then check for sleeping threads; note that a thread sleeps, then check
 * whether the queue is empty: one of them sees the other), for which all these accesses are
 * sequentially consistent. After the push the queue's caller must not access the task: it may have
 * ended.
 */
#ifndef BMI_TASK_QUEUE_KIND_H
#define BMI_TASK_QUEUE_KIND_H

#include "bmi/task.h"

struct bmi__queue;

struct bmi__queue_counts {
    uint64_t pushed, popped, contended;
};

struct bmi__queue_kind {
    const char *name;
    struct bmi__queue *(*create)(uint32_t slots); /* a power of 2, >= 8 */
    void (*destroy)(struct bmi__queue *queue);
    bool (*empty)(struct bmi__queue *queue); /* takes no lock: Algorithm 2 */
    void (*count)(struct bmi__queue *queue, struct bmi__queue_counts *counts);
    /* NULL of the ring: queue.h has that in line. */
    void (*push)(struct bmi__queue *queue, struct bmi_task *task);
    struct bmi_task *(*pop)(struct bmi__queue *queue); /* NULL: empty */
    uint64_t (*length)(struct bmi__queue *queue);      /* approximate; a lower number if in doubt */
};

/* The start of both. */
struct bmi__queue {
    const struct bmi__queue_kind *kind;
};

extern const struct bmi__queue_kind bmi__queue_ring;
extern const struct bmi__queue_kind bmi__queue_spin;

/* For a thread that waits in a loop: pauses the CPU for a moment. */
static inline void bmi__pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
