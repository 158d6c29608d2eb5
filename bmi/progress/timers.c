/* SPDX-License-Identifier: BSD-3-Clause
 *
 * timers.c - a list of timers, soonest first, under `lock` (innermost). A timer is out of the list
 * while it runs and may set itself again. Most timers of a program wait equally long, so that a new
 * one belongs to the end of the list, or near it: its place is looked for from there.
 */
#include "bmi/progress/timers.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include "bmi/base/clock.h"
#include "bmi/base/instance.h"
#include "bmi/method.h"
#include "bmi/progress/wakeup.h"

struct bmi__timers {
    pthread_mutex_t lock;
    struct bmi_timer *soonest;   /* lock */
    struct bmi_timer **end;      /* lock: the last one's `next` */
    _Atomic uint64_t soonest_ns; /* its due time, to be read without it */
};

static void unlink_locked(struct bmi__timers *timers, struct bmi_timer *timer)
{
    if (timer->link_to_me == NULL)
        return;
    *timer->link_to_me = timer->next;
    *(timer->next != NULL ? &timer->next->link_to_me : &timers->end) = timer->link_to_me;
    timer->link_to_me = NULL;
    timer->next = NULL;
}

static void publish_locked(struct bmi__timers *timers)
{
    atomic_store(&timers->soonest_ns,
                 timers->soonest != NULL ? timers->soonest->due_ns : UINT64_MAX);
}

/* The place behind all timers that are due no later. */
static struct bmi_timer **place_locked(struct bmi__timers *timers, uint64_t due_ns)
{
    struct bmi_timer **place = timers->end;
    while (place != &timers->soonest) {
        struct bmi_timer *before =
            (struct bmi_timer *)((char *)place - offsetof(struct bmi_timer, next));
        if (before->due_ns <= due_ns)
            break;
        place = before->link_to_me;
    }
    return place;
}

void bmi_method_timer_set(struct bmi_instance *instance, struct bmi_timer *timer, uint64_t delay_ms)
{
    struct bmi__timers *timers = instance->timers;
    uint64_t due = bmi__instance_now_ns(instance) + delay_ms * 1000000u;
    pthread_mutex_lock(&timers->lock);
    unlink_locked(timers, timer);
    struct bmi_timer **place = place_locked(timers, due);
    timer->due_ns = due;
    timer->next = *place;
    timer->link_to_me = place;
    *(timer->next != NULL ? &timer->next->link_to_me : &timers->end) = &timer->next;
    *place = timer;
    bool first = timers->soonest == timer;
    publish_locked(timers);
    pthread_mutex_unlock(&timers->lock);
    if (first)
        bmi__progress_kick(instance);
}

void bmi_method_timer_clear(struct bmi_instance *instance, struct bmi_timer *timer)
{
    struct bmi__timers *timers = instance->timers;
    if (timers == NULL)
        return; /* the instance is closed: all were forgotten */
    pthread_mutex_lock(&timers->lock);
    unlink_locked(timers, timer);
    publish_locked(timers);
    pthread_mutex_unlock(&timers->lock);
}

uint64_t bmi__timers_next(struct bmi_instance *instance)
{
    struct bmi__timers *timers = instance->timers;
    return atomic_load_explicit(&timers->soonest_ns, memory_order_relaxed);
}

/* Out of line, since its registers would slow down each pass, and most have none to run. */
static __attribute__((noinline)) void due_run(struct bmi__timers *timers, uint64_t now)
{
    for (;;) {
        pthread_mutex_lock(&timers->lock);
        struct bmi_timer *timer = timers->soonest;
        if (timer == NULL || timer->due_ns > now) {
            pthread_mutex_unlock(&timers->lock);
            return;
        }
        unlink_locked(timers, timer);
        publish_locked(timers);
        pthread_mutex_unlock(&timers->lock);
        timer->expired(timer);
    }
}

void bmi__timers_run(struct bmi_instance *instance)
{
    uint64_t due = bmi__timers_next(instance);
    uint64_t now = due != UINT64_MAX ? bmi__instance_now_ns(instance) : 0;
    if (due <= now)
        due_run(instance->timers, now);
}

void bmi__timers_forget(struct bmi_instance *instance)
{
    struct bmi__timers *timers = instance->timers;
    pthread_mutex_lock(&timers->lock);
    while (timers->soonest != NULL)
        unlink_locked(timers, timers->soonest);
    publish_locked(timers);
    pthread_mutex_unlock(&timers->lock);
}

int bmi__timers_open(struct bmi_instance *instance)
{
    struct bmi__timers *timers = calloc(1, sizeof *timers);
    if (timers == NULL)
        return -ENOMEM;
    pthread_mutex_init(&timers->lock, NULL);
    timers->end = &timers->soonest;
    atomic_init(&timers->soonest_ns, UINT64_MAX);
    instance->timers = timers;
    return 0;
}

void bmi__timers_close(struct bmi_instance *instance)
{
    free(instance->timers);
    instance->timers = NULL;
}
