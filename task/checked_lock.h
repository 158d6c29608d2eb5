/* SPDX-License-Identifier: BSD-3-Clause
 *
 * checked_lock.h - a deadlock-checking lock: its holder may wait for tasks, or for the threads that
 * run them. A task that tried to take it then would wait for the holder, which waits for the task,
 * directly or through others: the call returns -BMI_EDEADLK instead. A thread outside any task
 * waits, as for a mutex.
 *
 * A thread that holds one such lock calls bmi__checked_lock_waits before it takes another one,
 * since the other's holder may be waiting for tasks.
 */
#ifndef BMI_TASK_CHECKED_LOCK_H
#define BMI_TASK_CHECKED_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

struct bmi__checked_lock {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool taken, waits; /* mutex */
};

#define BMI__CHECKED_LOCK                                                       \
    {                                                                           \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER \
    }

/* Also in the child of a fork, where the holder does not exist. */
void bmi__checked_lock_init(struct bmi__checked_lock *lock);
/* Returns 0, or -BMI_EDEADLK: within a task, and the holder waits for tasks. */
int bmi__checked_lock_take(struct bmi__checked_lock *lock);
/* The same, or -BMI_ETIMEDOUT at `until`, a time of CLOCK_REALTIME. */
int bmi__checked_lock_take_until(struct bmi__checked_lock *lock, const struct timespec *until);
/* From here on, until it releases the lock, the holder waits for tasks. */
void bmi__checked_lock_waits(struct bmi__checked_lock *lock);
void bmi__checked_lock_give(struct bmi__checked_lock *lock);

#endif
