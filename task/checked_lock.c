/* SPDX-License-Identifier: BSD-3-Clause
 *
 * checked_lock.c - see checked_lock.h. `mutex` is held for a few lines, and no other lock is taken
 * within it.
 */
#include "task/checked_lock.h"
#include "task/internal.h"

void bmi__checked_lock_init(struct bmi__checked_lock *lock)
{
    pthread_mutex_init(&lock->mutex, NULL);
    pthread_cond_init(&lock->changed, NULL);
    lock->taken = lock->waits = false;
}

int bmi__checked_lock_take(struct bmi__checked_lock *lock)
{
    bool refused = false;
    pthread_mutex_lock(&lock->mutex);
    while (lock->taken && !(refused = lock->waits && bmi__tasks_within() > 0))
        pthread_cond_wait(&lock->changed, &lock->mutex);
    if (!refused)
        lock->taken = true;
    pthread_mutex_unlock(&lock->mutex);
    return refused ? -BMI_EDEADLK : 0;
}

void bmi__checked_lock_waits(struct bmi__checked_lock *lock)
{
    pthread_mutex_lock(&lock->mutex);
    lock->waits = true;
    pthread_cond_broadcast(&lock->changed); /* tasks that came before give up */
    pthread_mutex_unlock(&lock->mutex);
}

void bmi__checked_lock_give(struct bmi__checked_lock *lock)
{
    pthread_mutex_lock(&lock->mutex);
    lock->taken = lock->waits = false;
    pthread_cond_broadcast(&lock->changed);
    pthread_mutex_unlock(&lock->mutex);
}
