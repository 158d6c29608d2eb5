/* SPDX-License-Identifier: BSD-3-Clause
 *
 * timers.c - a list of timers, soonest first, under `lock` (innermost). There are few: one for the
 * peers' liveness, one for a method's own ends each. A timer is out of the list while it runs and
 * may set itself again.
 */
#include "bmi/progress/timers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "bmi/base/clock.h"
#include "bmi/method.h"
#include "bmi/progress/wakeup.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bmi_timer *soonest;                /* lock */
static _Atomic uint64_t soonest_ns = UINT64_MAX; /* its due time, to be read without it */

static void unlink_locked(struct bmi_timer *timer)
{
    if (timer->link_to_me == NULL)
        return;
    *timer->link_to_me = timer->next;
    if (timer->next != NULL)
        timer->next->link_to_me = timer->link_to_me;
    timer->link_to_me = NULL;
    timer->next = NULL;
}

static void publish_locked(void)
{
    atomic_store(&soonest_ns, soonest != NULL ? soonest->due_ns : UINT64_MAX);
}

void bmi_method_timer_set(struct bmi_timer *timer, uint64_t delay_ms)
{
    uint64_t due = bmi__monotonic_ns() + delay_ms * 1000000u;
    pthread_mutex_lock(&lock);
    unlink_locked(timer);
    struct bmi_timer **place = &soonest;
    while (*place != NULL && (*place)->due_ns <= due)
        place = &(*place)->next;
    timer->due_ns = due;
    timer->next = *place;
    timer->link_to_me = place;
    if (timer->next != NULL)
        timer->next->link_to_me = &timer->next;
    *place = timer;
    bool first = soonest == timer;
    publish_locked();
    pthread_mutex_unlock(&lock);
    if (first)
        bmi__progress_kick();
}

void bmi_method_timer_clear(struct bmi_timer *timer)
{
    pthread_mutex_lock(&lock);
    unlink_locked(timer);
    publish_locked();
    pthread_mutex_unlock(&lock);
}

uint64_t bmi__timers_next(void)
{
    return atomic_load_explicit(&soonest_ns, memory_order_relaxed);
}

uint64_t bmi__timers_run(void)
{
    uint64_t due = bmi__timers_next();
    uint64_t now = due != UINT64_MAX ? bmi__monotonic_ns() : 0;
    while (due <= now) {
        pthread_mutex_lock(&lock);
        struct bmi_timer *timer = soonest;
        if (timer == NULL || timer->due_ns > now) {
            pthread_mutex_unlock(&lock);
            break;
        }
        unlink_locked(timer);
        publish_locked();
        pthread_mutex_unlock(&lock);
        timer->expired(timer);
    }
    return now;
}

void bmi__timers_forget(void)
{
    pthread_mutex_lock(&lock);
    while (soonest != NULL)
        unlink_locked(soonest);
    publish_locked();
    pthread_mutex_unlock(&lock);
}
