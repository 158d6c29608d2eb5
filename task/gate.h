/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gate.h - a deadlock-checking lock: its holder may wait for tasks, or for the threads that run
 * them. A task that tried to take it then would wait for the holder, which waits for the task,
 * directly or through others: the call returns -BMI_EDEADLK instead. A thread outside any task
 * waits, as for a mutex.
 *
 * A thread that holds one such lock calls bmi__gate_waits before it takes another one, since the
 * other's holder may be waiting for tasks.
 */
#ifndef BMI_TASK_GATE_H
#define BMI_TASK_GATE_H

#include <pthread.h>
#include <stdbool.h>

struct bmi__gate {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool taken, waits; /* mutex */
};

#define BMI__GATE                                                               \
    {                                                                           \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER \
    }

/* Also in the child of a fork, where the holder does not exist. */
void bmi__gate_init(struct bmi__gate *gate);
/* Returns 0, or -BMI_EDEADLK: within a task, and the holder waits for tasks. */
int bmi__gate_take(struct bmi__gate *gate);
/* From here on, until it releases the lock, the holder waits for tasks. */
void bmi__gate_waits(struct bmi__gate *gate);
void bmi__gate_give(struct bmi__gate *gate);

#endif
