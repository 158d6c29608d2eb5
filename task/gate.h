/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gate.h - a lock whose holder may wait for tasks, or for the threads that run them. A task that
 * comes to it then would be waited for by whom it waits for itself, at once or over others: it is
 * told so (-BMI_EDEADLK) instead. Who comes from outside any task waits, as for a mutex.
 *
 * Who holds a gate and takes another one says before that it waits: the other's holder may.
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

/* Also in the child of a fork: whoever held it is not there. */
void bmi__gate_init(struct bmi__gate *gate);
/* Returns 0, or -BMI_EDEADLK: within a task, and the holder waits for tasks. */
int bmi__gate_take(struct bmi__gate *gate);
/* From here on, until it gives the gate back, the holder waits for tasks. */
void bmi__gate_waits(struct bmi__gate *gate);
void bmi__gate_give(struct bmi__gate *gate);

#endif
