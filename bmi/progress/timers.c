/* SPDX-License-Identifier: BSD-3-Clause
 *
 * timers.c - a list of timers, soonest first, under `lock` (innermost). A timer is out of the list
 * while it runs and may set itself again. Most timers of a program wait equally long, so that a new
 * one belongs to the end of the list, or near it: its place is looked for from there.
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
static struct bmi_timer **end = &soonest;        /* lock: the last one's `next` */
static _Atomic uint64_t soonest_ns = UINT64_MAX; /* its due time, to be read without it */

static void unlink_locked(struct bmi_timer *timer)
{
    if (timer->link_to_me == NULL)
        return;
    *timer->link_to_me = timer->next;
    *(timer->next != NULL ? &timer->next->link_to_me : &end) = timer->link_to_me;
    timer->link_to_me = NULL;
    timer->next = NULL;
}

static void publish_locked(void)
{
    atomic_store(&soonest_ns, soonest != NULL ? soonest->due_ns : UINT64_MAX);
}

/* The place behind all timers that are due no later. */
static struct bmi_timer **place_locked(uint64_t due_ns)
{
    struct bmi_timer **place = end;
    while (place != &soonest) {
        struct bmi_timer *before =
            (struct bmi_timer *)((char *)place - offsetof(struct bmi_timer, next));
        if (before->due_ns <= due_ns)
            break;
        place = before->link_to_me;
    }
    return place;
}

void bmi_method_timer_set(struct bmi_timer *timer, uint64_t delay_ms)
{
    uint64_t due = bmi__monotonic_ns() + delay_ms * 1000000u;
    pthread_mutex_lock(&lock);
    unlink_locked(timer);
    struct bmi_timer **place = place_locked(due);
    timer->due_ns = due;
    timer->next = *place;
    timer->link_to_me = place;
    *(timer->next != NULL ? &timer->next->link_to_me : &end) = &timer->next;
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
