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

/* until NULL: never. */
static int take(struct bmi__checked_lock *lock, const struct timespec *until)
{
    int result = 0;
    pthread_mutex_lock(&lock->mutex);
    while (lock->taken && result == 0) {
        if (lock->waits && bmi__tasks_within() > 0)
            result = -BMI_EDEADLK;
        else if (until == NULL)
            pthread_cond_wait(&lock->changed, &lock->mutex);
        else if (pthread_cond_timedwait(&lock->changed, &lock->mutex, until) != 0 && lock->taken)
            result = -BMI_ETIMEDOUT;
    }
    if (result == 0)
        lock->taken = true;
    pthread_mutex_unlock(&lock->mutex);
    return result;
}

int bmi__checked_lock_take(struct bmi__checked_lock *lock)
{
    return take(lock, NULL);
}

int bmi__checked_lock_take_until(struct bmi__checked_lock *lock, const struct timespec *until)
{
    return take(lock, until);
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
