/* SPDX-License-Identifier: BSD-3-Clause
 *
 * deadline.c - see deadline.h. Most calls of a program have the same time-out, so a new deadline
 * belongs to the end of the list, or near it: it is looked for from there.
 */
#include "bmi/rpc/deadline.h"

#include <pthread.h>
#include <stddef.h>

#include "bmi/base/clock.h"
#include "bmi/method.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* innermost but for the timers' */
static struct deadline *soonest, *latest;                /* lock */
static void (*hook)(void);

static void arm(struct bmi_deferred *deferred);
static void expired(struct bmi_timer *timer);
static struct bmi_deferred arming = {.run = arm};
static struct bmi_timer timer = {.expired = expired}; /* poller */

/* The poller: sets the timer for the first one. */
static void arm(struct bmi_deferred *deferred)
{
    (void)deferred;
    pthread_mutex_lock(&lock);
    uint64_t due = soonest != NULL ? soonest->due_ns : 0;
    pthread_mutex_unlock(&lock);
    if (due == 0)
        return;
    uint64_t now = bmi__monotonic_ns();
    bmi_method_timer_set(&timer, due > now ? (due - now + 999999) / 1000000 : 0);
}

static void expired(struct bmi_timer *expired_timer)
{
    (void)expired_timer;
    hook();
    arm(NULL);
}

void bmi__deadline_hook(void (*due)(void))
{
    hook = due;
}

static void unlink_locked(struct deadline *deadline)
{
    *(deadline->sooner != NULL ? &deadline->sooner->later : &soonest) = deadline->later;
    *(deadline->later != NULL ? &deadline->later->sooner : &latest) = deadline->sooner;
    *deadline = (struct deadline){0};
}

void bmi__deadline_set(struct deadline *deadline, uint64_t due_ns)
{
    if (due_ns == 0)
        return;
    pthread_mutex_lock(&lock);
    struct deadline *before = latest;
    while (before != NULL && before->due_ns > due_ns)
        before = before->sooner;
    deadline->due_ns = due_ns;
    deadline->sooner = before;
    deadline->later = before != NULL ? before->later : soonest;
    *(deadline->later != NULL ? &deadline->later->sooner : &latest) = deadline;
    *(before != NULL ? &before->later : &soonest) = deadline;
    pthread_mutex_unlock(&lock);
    if (before == NULL)
        bmi_method_defer(&arming);
}

void bmi__deadline_clear(struct deadline *deadline)
{
    pthread_mutex_lock(&lock);
    if (deadline->due_ns != 0)
        unlink_locked(deadline);
    pthread_mutex_unlock(&lock);
}

struct deadline *bmi__deadline_take(void)
{
    uint64_t now = bmi__monotonic_ns();
    pthread_mutex_lock(&lock);
    struct deadline *first = soonest;
    if (first != NULL && first->due_ns > now)
        first = NULL;
    if (first != NULL)
        unlink_locked(first);
    pthread_mutex_unlock(&lock);
    return first;
}

void bmi__deadlines_stop(void)
{
    soonest = latest = NULL;
    atomic_store(&arming.pending, false);
}
