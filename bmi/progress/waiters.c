/* SPDX-License-Identifier: BSD-3-Clause
 *
 * waiters.c - see waiters.h.
 *
 * `lock` guards all lists and the members of waiters that are marked so; it is innermost. A waiter
 * misses nothing: it enlists itself, then looks for what it wants; a thread that completes an
 * operation pushes it, then looks at the count of waiters (both sequentially consistent). Threads
 * are woken after the lock was given back, and by the poller after it has given back those of its
 * pass, so that they do not run into them; the waiter may be gone by then (event.c).
 */
#include "bmi/progress/waiters.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "bmi/base/clock.h"
#include "bmi/base/instance.h"
#include "bmi/lock.h"
#include "bmi/progress/wakeup.h"
#include "task/event.h"

struct bmi__waiters {
    struct bmi_lock lock;
    struct waiter *first, *last;       /* lock: all, the poller too */
    struct waiter_list for_unexpected; /* lock */
    atomic_uint asleep_count;          /* written under lock */
};

static _Thread_local struct waiter *own; /* this thread's that are enlisted, by `outer` */

unsigned bmi__waiters_asleep(struct bmi_instance *instance)
{
    struct bmi__waiters *waiters = instance->waiters;
    return atomic_load(&waiters->asleep_count);
}

unsigned bmi__waiters_for_unexpected(struct bmi_instance *instance)
{
    struct bmi__waiters *waiters = instance->waiters;
    return atomic_load(&waiters->for_unexpected.count);
}

/* NULL: the list of the threads that wait for unexpected messages. */
static struct waiter_list *list_of(struct bmi__waiters *waiters, struct waiter_list *list)
{
    return list != NULL ? list : &waiters->for_unexpected;
}

static void append_locked(struct waiter_list *list, struct waiter *waiter)
{
    waiter->next = NULL;
    waiter->previous = list->last;
    if (list->last != NULL)
        list->last->next = waiter;
    else
        list->first = waiter;
    list->last = waiter;
}

static void remove_locked(struct waiter_list *list, struct waiter *waiter)
{
    if (waiter->previous != NULL)
        waiter->previous->next = waiter->next;
    else
        list->first = waiter->next;
    if (waiter->next != NULL)
        waiter->next->previous = waiter->previous;
    else
        list->last = waiter->previous;
}

static void append_to_all_locked(struct waiter *waiter)
{
    struct bmi__waiters *waiters = waiter->instance->waiters;
    waiter->next_of_all = NULL;
    waiter->previous_of_all = waiters->last;
    if (waiters->last != NULL)
        waiters->last->next_of_all = waiter;
    else
        waiters->first = waiter;
    waiters->last = waiter;
}

static void remove_from_all_locked(struct waiter *waiter)
{
    struct bmi__waiters *waiters = waiter->instance->waiters;
    if (waiter->previous_of_all != NULL)
        waiter->previous_of_all->next_of_all = waiter->next_of_all;
    else
        waiters->first = waiter->next_of_all;
    if (waiter->next_of_all != NULL)
        waiter->next_of_all->previous_of_all = waiter->previous_of_all;
    else
        waiters->last = waiter->previous_of_all;
}

static void enlist_locked(struct waiter *waiter)
{
    struct bmi__waiters *waiters = waiter->instance->waiters;
    append_locked(list_of(waiters, waiter->list), waiter);
    append_to_all_locked(waiter);
    if (!waiter->polling)
        atomic_fetch_add(&waiters->asleep_count, 1);
    atomic_fetch_add(&list_of(waiters, waiter->list)->count, 1);
}

static void delist_locked(struct waiter *waiter)
{
    struct bmi__waiters *waiters = waiter->instance->waiters;
    remove_locked(list_of(waiters, waiter->list), waiter);
    remove_from_all_locked(waiter);
    if (!waiter->polling)
        atomic_fetch_sub(&waiters->asleep_count, 1);
    atomic_fetch_sub(&list_of(waiters, waiter->list)->count, 1);
}

void bmi__waiter_enlist(struct waiter *waiter, bool as_poller)
{
    struct bmi__waiters *waiters = waiter->instance->waiters;
    atomic_store_explicit(&waiter->signalled, 0, memory_order_relaxed);
    waiter->polling = as_poller;
    bmi_lock_take(&waiters->lock);
    enlist_locked(waiter);
    bmi_lock_give(&waiters->lock);
    waiter->outer = own;
    own = waiter;
}

void bmi__waiter_delist(struct waiter *waiter)
{
    struct bmi__waiters *waiters = waiter->instance->waiters;
    struct waiter **place = &own;
    while (*place != waiter)
        place = &(*place)->outer;
    *place = waiter->outer;
    bmi_lock_take(&waiters->lock);
    delist_locked(waiter);
    bmi_lock_give(&waiters->lock);
}

/* ---- sleeping and waking -------------------------------------------------------------------- */

bool bmi__waiter_sleep(struct waiter *waiter, uint64_t deadline_ns)
{
    while (atomic_exchange(&waiter->signalled, 0) == 0) {
        bmi__futex_wait(&waiter->signalled, 0, deadline_ns);
        if (atomic_load(&waiter->signalled) == 0 && bmi__monotonic_ns() >= deadline_ns)
            return false;
    }
    return true;
}

static void signal_locked(struct waiter *waiter, struct wakes *wakes)
{
    bool again = atomic_exchange(&waiter->signalled, 1) != 0;
    if (waiter->polling)
        bmi__progress_kick(waiter->instance);
    else if (!again && wakes->count < sizeof wakes->each / sizeof *wakes->each)
        wakes->each[wakes->count++] = &waiter->signalled;
    else if (!again)
        bmi__futex_wake(&waiter->signalled);
}

void bmi__wakes_finish(struct wakes *wakes)
{
    for (unsigned i = 0; i < wakes->count; i++)
        bmi__futex_wake(wakes->each[i]);
    wakes->count = 0;
}

/* Wakes the follower that came last: if threads get their messages in turn, its own message is the
 * furthest off, and it polls for the others until then. */
bool bmi__waiters_wake_one(struct bmi_instance *instance)
{
    struct bmi__waiters *waiters = instance->waiters;
    struct wakes wakes = {.count = 0};
    if (atomic_load(&waiters->asleep_count) == 0)
        return false;
    bmi_lock_take(&waiters->lock);
    struct waiter *waiter = waiters->last;
    bool any = false;
    for (; waiter != NULL; waiter = waiter->previous_of_all) {
        any = any || !waiter->polling;
        if (!waiter->polling && atomic_load(&waiter->signalled) == 0)
            break;
    }
    if (waiter != NULL)
        signal_locked(waiter, &wakes);
    bmi_lock_give(&waiters->lock);
    bmi__wakes_finish(&wakes);
    return any;
}

/* Whether the waiter waits for this very operation; 0: for any. */
static bool names(const struct waiter *waiter, bmi_op_id_t op)
{
    if (waiter->op == WAITER_SOME && waiter->some == NULL)
        return true;
    if (waiter->op != WAITER_SOME || op == 0)
        return waiter->op != 0 && waiter->op == op;
    int i = 0;
    while (i < waiter->some_count && waiter->some[i] != op)
        i++;
    return i < waiter->some_count;
}

bool bmi__waiters_claim(struct bmi_instance *instance, struct waiter_list *list, bmi_op_id_t op)
{
    struct bmi__waiters *waiters = instance->waiters;
    bmi_lock_take(&waiters->lock);
    const struct waiter *waiter = list_of(waiters, list)->first;
    while (waiter != NULL && waiter->op != 0 && !names(waiter, op))
        waiter = waiter->next;
    bmi_lock_give(&waiters->lock);
    return waiter != NULL;
}

/* Notifies every thread that tests this operation, and one that takes any. Returns whether there
 * was such a thread. */
static bool notify_locked(const struct waiter_list *list, bmi_op_id_t op, struct wakes *wakes)
{
    bool claimed = false, taker_woken = false;
    for (struct waiter *waiter = list->first; waiter != NULL; waiter = waiter->next) {
        bool named = names(waiter, op);
        claimed = claimed || named || waiter->op == 0;
        if (named || (waiter->op == WAITER_SOME && op == 0))
            signal_locked(waiter, wakes);
        if (waiter->op == 0 && !taker_woken &&
            (waiter->polling || atomic_load(&waiter->signalled) == 0)) {
            signal_locked(waiter, wakes);
            taker_woken = true;
        }
    }
    return claimed;
}

/* Notifies threads that test a context of an unexpected message, and threads that wait for
 * unexpected messages of a completion. */
static void notify_others_locked(struct bmi__waiters *waiters, bool unexpected, struct wakes *wakes)
{
    for (struct waiter *waiter = waiters->first; waiter != NULL; waiter = waiter->next_of_all)
        if ((waiter->list == NULL) != unexpected && waiter->op == 0)
            signal_locked(waiter, wakes);
}

void bmi__waiters_notify(struct bmi_instance *instance, struct waiter_list *list, bmi_op_id_t op,
                         struct wakes *wakes)
{
    struct bmi__waiters *waiters = instance->waiters;
    bool direct = atomic_load(&list_of(waiters, list)->count) > 0, claimed = false;
    bool others = list == NULL ? !direct : bmi__waiters_for_unexpected(instance) > 0;
    if (!direct && !others)
        return;
    bmi_lock_take(&waiters->lock);
    if (direct)
        claimed = notify_locked(list_of(waiters, list), op, wakes);
    if (others && !claimed)
        notify_others_locked(waiters, list == NULL, wakes);
    bmi_lock_give(&waiters->lock);
}

/* ---- fork ----------------------------------------------------------------------------------- */

void bmi__waiters_before_fork(struct bmi_instance *instance)
{
    struct bmi__waiters *waiters = instance->waiters;
    bmi_lock_take(&waiters->lock);
}

void bmi__waiters_after_fork_parent(struct bmi_instance *instance)
{
    struct bmi__waiters *waiters = instance->waiters;
    bmi_lock_give(&waiters->lock);
}

/* The stacks of the other threads are still there, until this process has threads again. */
void bmi__waiters_after_fork_child(struct bmi_instance *instance)
{
    struct bmi__waiters *waiters = instance->waiters;
    while (waiters->first != NULL)
        delist_locked(waiters->first);
    for (struct waiter *one = own; one != NULL; one = one->outer)
        if (one->instance == instance)
            enlist_locked(one);
    bmi_lock_give(&waiters->lock);
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__waiters_open(struct bmi_instance *instance)
{
    struct bmi__waiters *waiters = calloc(1, sizeof *waiters);
    if (waiters == NULL)
        return -ENOMEM;
    instance->waiters = waiters;
    return 0;
}

void bmi__waiters_close(struct bmi_instance *instance)
{
    free(instance->waiters);
    instance->waiters = NULL;
}
