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

#include <stddef.h>

#include "bmi/base/clock.h"
#include "bmi/lock.h"
#include "bmi/progress/wakeup.h"
#include "task/event.h"

static struct bmi_lock lock;
static struct waiter *first, *last;       /* lock: all, the poller too */
static struct waiter_list for_unexpected; /* lock */
static atomic_uint asleep_count;          /* written under lock */
static _Thread_local struct waiter *own;  /* this thread's, while it is enlisted */

unsigned bmi__waiters_asleep(void)
{
    return atomic_load(&asleep_count);
}

unsigned bmi__waiters_for_unexpected(void)
{
    return atomic_load(&for_unexpected.count);
}

/* NULL: the list of the threads that wait for unexpected messages. */
static struct waiter_list *list_of(struct waiter_list *list)
{
    return list != NULL ? list : &for_unexpected;
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
    waiter->next_of_all = NULL;
    waiter->previous_of_all = last;
    if (last != NULL)
        last->next_of_all = waiter;
    else
        first = waiter;
    last = waiter;
}

static void remove_from_all_locked(struct waiter *waiter)
{
    if (waiter->previous_of_all != NULL)
        waiter->previous_of_all->next_of_all = waiter->next_of_all;
    else
        first = waiter->next_of_all;
    if (waiter->next_of_all != NULL)
        waiter->next_of_all->previous_of_all = waiter->previous_of_all;
    else
        last = waiter->previous_of_all;
}

static void enlist_locked(struct waiter *waiter)
{
    append_locked(list_of(waiter->list), waiter);
    append_to_all_locked(waiter);
    if (!waiter->polling)
        atomic_fetch_add(&asleep_count, 1);
    atomic_fetch_add(&list_of(waiter->list)->count, 1);
}

static void delist_locked(struct waiter *waiter)
{
    remove_locked(list_of(waiter->list), waiter);
    remove_from_all_locked(waiter);
    if (!waiter->polling)
        atomic_fetch_sub(&asleep_count, 1);
    atomic_fetch_sub(&list_of(waiter->list)->count, 1);
}

void bmi__waiter_enlist(struct waiter *waiter, bool as_poller)
{
    atomic_store_explicit(&waiter->signalled, 0, memory_order_relaxed);
    waiter->polling = as_poller;
    bmi_lock_take(&lock);
    enlist_locked(waiter);
    bmi_lock_give(&lock);
    own = waiter;
}

void bmi__waiter_delist(struct waiter *waiter)
{
    own = NULL;
    bmi_lock_take(&lock);
    delist_locked(waiter);
    bmi_lock_give(&lock);
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
        bmi__progress_kick();
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
bool bmi__waiters_wake_one(void)
{
    struct wakes wakes = {.count = 0};
    if (atomic_load(&asleep_count) == 0)
        return false;
    bmi_lock_take(&lock);
    struct waiter *waiter = last;
    bool any = false;
    for (; waiter != NULL; waiter = waiter->previous_of_all) {
        any = any || !waiter->polling;
        if (!waiter->polling && atomic_load(&waiter->signalled) == 0)
            break;
    }
    if (waiter != NULL)
        signal_locked(waiter, &wakes);
    bmi_lock_give(&lock);
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

bool bmi__waiters_claim(struct waiter_list *list, bmi_op_id_t op)
{
    bmi_lock_take(&lock);
    const struct waiter *waiter = list_of(list)->first;
    while (waiter != NULL && waiter->op != 0 && !names(waiter, op))
        waiter = waiter->next;
    bmi_lock_give(&lock);
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
static void notify_others_locked(bool unexpected, struct wakes *wakes)
{
    for (struct waiter *waiter = first; waiter != NULL; waiter = waiter->next_of_all)
        if ((waiter->list == NULL) != unexpected && waiter->op == 0)
            signal_locked(waiter, wakes);
}

void bmi__waiters_notify(struct waiter_list *list, bmi_op_id_t op, struct wakes *wakes)
{
    bool direct = atomic_load(&list_of(list)->count) > 0, claimed = false;
    bool others = list == NULL ? !direct : bmi__waiters_for_unexpected() > 0;
    if (!direct && !others)
        return;
    bmi_lock_take(&lock);
    if (direct)
        claimed = notify_locked(list_of(list), op, wakes);
    if (others && !claimed)
        notify_others_locked(list == NULL, wakes);
    bmi_lock_give(&lock);
}

/* ---- fork ----------------------------------------------------------------------------------- */

void bmi__waiters_before_fork(void)
{
    bmi_lock_take(&lock);
}

void bmi__waiters_after_fork_parent(void)
{
    bmi_lock_give(&lock);
}

/* The stacks of the other threads are still there, until this process has threads again. */
void bmi__waiters_after_fork_child(void)
{
    while (first != NULL)
        delist_locked(first);
    if (own != NULL)
        enlist_locked(own);
    bmi_lock_give(&lock);
}
