/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gate.c - see gate.h. `mutex` is held for a few lines, and no other lock is taken within it.
 */
#include "task/gate.h"
#include "task/internal.h"

void bmi__gate_init(struct bmi__gate *gate)
{
    pthread_mutex_init(&gate->mutex, NULL);
    pthread_cond_init(&gate->changed, NULL);
    gate->taken = gate->waits = false;
}

int bmi__gate_take(struct bmi__gate *gate)
{
    bool refused = false;
    pthread_mutex_lock(&gate->mutex);
    while (gate->taken && !(refused = gate->waits && bmi__tasks_within() > 0))
        pthread_cond_wait(&gate->changed, &gate->mutex);
    if (!refused)
        gate->taken = true;
    pthread_mutex_unlock(&gate->mutex);
    return refused ? -BMI_EDEADLK : 0;
}

void bmi__gate_waits(struct bmi__gate *gate)
{
    pthread_mutex_lock(&gate->mutex);
    gate->waits = true;
    pthread_cond_broadcast(&gate->changed); /* tasks that came before give up */
    pthread_mutex_unlock(&gate->mutex);
}

void bmi__gate_give(struct bmi__gate *gate)
{
    pthread_mutex_lock(&gate->mutex);
    gate->taken = gate->waits = false;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->mutex);
}
