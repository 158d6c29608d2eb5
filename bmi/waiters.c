/* SPDX-License-Identifier: BSD-3-Clause
 *
 * waiters.c - see waiters.h.
 *
 * `lock` guards all lists and the members of waiters that are marked so; it is innermost. A waiter
 * misses nothing: it enlists itself, then looks for what it wants; who completes pushes, then looks
 * at the count of waiters (all sequentially consistent). Threads are woken after the lock was given
 * back, and by the driver after those of the pass were, so that they do not run into them; the
 * waiter may be gone by then (event.c).
 */
#include "bmi/waiters.h"

#include <sched.h>
#include <stddef.h>

#include "bmi/context.h"
#include "bmi/lock.h"
#include "bmi/progress.h"
#include "task/event.h"

/* Who goes to sleep elsewhere counts as four that do not: fewer than that make a crowd. */
enum { VOTES_MOST = 64, VOTES_SURE = 24, VOTES_AGAINST = 4 };

static struct bmi_lock lock;
static struct waiter *first, *last;                /* lock: all, the driver too */
static struct waiter_list for_unexpected;          /* lock */
static atomic_uint unexpected_count, asleep_count; /* written under lock */
static _Atomic(struct waiter *) guard;             /* written under lock */
static atomic_int driver_cpu = -1;                 /* where one drove last, while others slept */
/* Where those sleep who have their messages in turn, and how many have done so in a row, nearly. */
static struct {
    atomic_int cpu, votes;
} crowd = {.cpu = -1};
static _Thread_local struct waiter *own; /* this thread's, while it is enlisted */

unsigned bmi__waiters_asleep(void)
{
    return atomic_load(&asleep_count);
}

unsigned bmi__waiters_for_unexpected(void)
{
    return atomic_load(&unexpected_count);
}

static struct waiter_list *list_of(struct context *context)
{
    return context != NULL ? &context->waiting : &for_unexpected;
}

static atomic_uint *count_of(struct context *context)
{
    return context != NULL ? &context->waiters : &unexpected_count;
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
    append_locked(list_of(waiter->context), waiter);
    append_to_all_locked(waiter);
    if (!waiter->driving)
        atomic_fetch_add(&asleep_count, 1);
    atomic_fetch_add(count_of(waiter->context), 1);
}

static void delist_locked(struct waiter *waiter)
{
    remove_locked(list_of(waiter->context), waiter);
    remove_from_all_locked(waiter);
    if (!waiter->driving)
        atomic_fetch_sub(&asleep_count, 1);
    atomic_fetch_sub(count_of(waiter->context), 1);
    if (atomic_load_explicit(&guard, memory_order_relaxed) == waiter)
        atomic_store(&guard, NULL);
}

static void prepare(struct waiter *waiter, bool as_driver)
{
    atomic_store_explicit(&waiter->signalled, 0, memory_order_relaxed);
    atomic_store_explicit(&waiter->offered, false, memory_order_relaxed);
    atomic_store_explicit(&waiter->cpu, sched_getcpu(), memory_order_relaxed);
    atomic_store_explicit(&waiter->pipe, -1, memory_order_relaxed);
    waiter->driving = as_driver;
}

void bmi__waiter_enlist(struct waiter *waiter, bool as_driver)
{
    prepare(waiter, as_driver);
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

/* ---- where they sleep ----------------------------------------------------------------------- */

static int get(atomic_int *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

static void set(atomic_int *value, int to)
{
    atomic_store_explicit(value, to, memory_order_relaxed);
}

/* Two threads at a time may lose a vote. */
static void crowd_vote(int cpu)
{
    int votes = get(&crowd.votes);
    if (get(&crowd.cpu) == cpu) {
        set(&crowd.votes, votes < VOTES_MOST ? votes + 1 : votes);
    } else if (votes > VOTES_AGAINST) {
        set(&crowd.votes, votes - VOTES_AGAINST);
    } else {
        set(&crowd.cpu, cpu);
        set(&crowd.votes, 1);
    }
}

/* -1: they are spread, or few. */
static int crowd_cpu(void)
{
    return get(&crowd.votes) >= VOTES_SURE ? get(&crowd.cpu) : -1;
}

bool bmi__waiters_crowd_elsewhere(void)
{
    int cpu = crowd_cpu();
    return cpu >= 0 && cpu != sched_getcpu() && bmi__waiters_asleep() > 0;
}

void bmi__waiters_driven_here(void)
{
    if (bmi__waiters_asleep() > 0)
        set(&driver_cpu, sched_getcpu());
}

/* ---- sleeping ------------------------------------------------------------------------------- */

/* Whoever wakes it looks at `pipe` after it has set `signalled`: here it is the other way round.
 * The clock is asked after a sleep only: one that begins too late ends at once. */
static bool sleep_on(struct waiter *waiter, int pipe, uint64_t deadline_ns)
{
    atomic_store(&waiter->pipe, pipe);
    while (atomic_exchange(&waiter->signalled, 0) == 0) {
        if (pipe >= 0)
            bmi__summon_sleep(pipe, deadline_ns);
        else
            bmi__futex_wait(&waiter->signalled, 0, deadline_ns);
        if (atomic_load(&waiter->signalled) == 0 && bmi__monotonic_ns() >= deadline_ns)
            return false;
    }
    return true;
}

static bool sleep_elsewhere(struct waiter *waiter, int cpu, uint64_t deadline_ns)
{
    bmi_lock_take(&lock);
    int pipe = bmi__summon_take_locked(crowd_cpu() >= 0);
    bmi_lock_give(&lock);
    bool woken = sleep_on(waiter, pipe, deadline_ns);
    if (pipe < 0)
        return woken;
    atomic_store(&waiter->pipe, -1);
    bmi_lock_take(&lock);
    bmi__summon_give_locked(pipe, sched_getcpu() != cpu);
    bmi_lock_give(&lock);
    return woken;
}

bool bmi__waiter_sleep(struct waiter *waiter, uint64_t deadline_ns, bool in_turn)
{
    int cpu = sched_getcpu(), there = crowd_cpu();
    if (there < 0)
        there = get(&driver_cpu);
    set(&waiter->cpu, cpu);
    if (in_turn)
        crowd_vote(cpu);
    if (in_turn && there >= 0 && there != cpu)
        return sleep_elsewhere(waiter, cpu, deadline_ns);
    return sleep_on(waiter, -1, deadline_ns);
}

/* ---- waking --------------------------------------------------------------------------------- */

static void wake(const atomic_uint *word, int pipe)
{
    if (pipe >= 0)
        bmi__summon_ring(pipe);
    else
        bmi__futex_wake(word);
}

/* Returns whether the waiter sleeps, and is or will be woken. */
static bool signal_locked(struct waiter *waiter, struct wakes *wakes)
{
    bool again = atomic_exchange(&waiter->signalled, 1) != 0;
    if (waiter->driving) {
        bmi__progress_kick();
        return false;
    }
    if (again)
        return true;
    int pipe = atomic_load(&waiter->pipe);
    if (wakes->count < sizeof wakes->each / sizeof *wakes->each) {
        wakes->each[wakes->count].word = &waiter->signalled;
        wakes->each[wakes->count++].pipe = pipe;
    } else {
        wake(&waiter->signalled, pipe);
    }
    return true;
}

void bmi__wakes_finish(struct wakes *wakes)
{
    for (unsigned i = 0; i < wakes->count; i++)
        wake(wakes->each[i].word, wakes->each[i].pipe);
    wakes->count = 0;
}

/* The one that has come last: where threads have their messages in turn its own is the furthest
 * off, and it drives for the others until then. */
bool bmi__waiters_wake_one(void)
{
    struct wakes wakes = {.count = 0};
    if (atomic_load(&asleep_count) == 0)
        return false;
    bmi_lock_take(&lock);
    struct waiter *waiter = last;
    bool any = false;
    for (; waiter != NULL; waiter = waiter->previous_of_all) {
        any = any || !waiter->driving;
        if (!waiter->driving && atomic_load(&waiter->signalled) == 0)
            break;
    }
    if (waiter != NULL) {
        atomic_store_explicit(&waiter->offered, true, memory_order_relaxed);
        signal_locked(waiter, &wakes);
    }
    bmi_lock_give(&lock);
    bmi__wakes_finish(&wakes);
    return any;
}

/* Whether it waits for this very operation; 0: for whichever there is. */
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

bool bmi__waiters_claim(struct context *context, bmi_op_id_t op)
{
    bmi_lock_take(&lock);
    const struct waiter *waiter = list_of(context)->first;
    while (waiter != NULL && waiter->op != 0 && !names(waiter, op))
        waiter = waiter->next;
    bmi_lock_give(&lock);
    return waiter != NULL;
}

/* Every thread that tests this operation, and one that takes any. Returns whether a thread that
 * sleeps was woken; *claimed: there was any such thread. */
static bool notify_locked(struct context *context, bmi_op_id_t op, struct wakes *wakes,
                          bool *claimed)
{
    bool any = false, taker_woken = false;
    for (struct waiter *waiter = list_of(context)->first; waiter != NULL; waiter = waiter->next) {
        bool named = names(waiter, op);
        *claimed = *claimed || named || waiter->op == 0;
        if (named || (waiter->op == WAITER_SOME && op == 0))
            any = signal_locked(waiter, wakes) || any;
        if (waiter->op == 0 && !taker_woken &&
            (waiter->driving || atomic_load(&waiter->signalled) == 0)) {
            any = signal_locked(waiter, wakes) || any;
            taker_woken = true;
        }
    }
    return any;
}

/* Threads that test a context, and are to know of an unexpected message, and the reverse. */
static bool notify_others_locked(struct context *context, struct wakes *wakes)
{
    bool any = false;
    for (struct waiter *waiter = first; waiter != NULL; waiter = waiter->next_of_all)
        if ((waiter->context == NULL) != (context == NULL) && waiter->op == 0)
            any = signal_locked(waiter, wakes) || any;
    return any;
}

bool bmi__waiters_notify(struct context *context, bmi_op_id_t op, struct wakes *wakes)
{
    bool direct = atomic_load(count_of(context)) > 0, claimed = false, any = false;
    bool others = context == NULL ? !direct : bmi__waiters_for_unexpected() > 0;
    if (!direct && !others)
        return false;
    bmi_lock_take(&lock);
    if (direct)
        any = notify_locked(context, op, wakes, &claimed);
    if (others && !claimed)
        any = notify_others_locked(context, wakes) || any;
    bmi_lock_give(&lock);
    return any;
}

/* ---- the guard, and who is next ------------------------------------------------------------- */

bool bmi__waiters_guarded(void)
{
    return atomic_load(&guard) != NULL;
}

bool bmi__waiter_guards(struct waiter *waiter)
{
    return atomic_load_explicit(&guard, memory_order_relaxed) == waiter;
}

void bmi__waiter_guard(struct waiter *waiter)
{
    bmi_lock_take(&lock);
    if (!bmi__waiters_guarded())
        atomic_store(&guard, waiter);
    bmi_lock_give(&lock);
}

void bmi__waiter_unguard(struct waiter *waiter)
{
    bmi_lock_take(&lock);
    if (bmi__waiter_guards(waiter))
        atomic_store(&guard, NULL);
    bmi_lock_give(&lock);
}

/* The one that has slept longest, of those that nobody has woken, if it does so where most do; if
 * they are spread, on this CPU. */
static struct waiter *next_locked(void)
{
    int most = crowd_cpu(), where = most >= 0 ? most : sched_getcpu();
    struct waiter *waiter = first;
    while (waiter != NULL && (waiter->driving || atomic_load(&waiter->signalled) != 0))
        waiter = waiter->next_of_all;
    return waiter != NULL && get(&waiter->cpu) == where ? waiter : NULL;
}

bool bmi__waiters_next_is_near(void)
{
    bmi_lock_take(&lock);
    bool near = next_locked() != NULL;
    bmi_lock_give(&lock);
    return near;
}

bool bmi__waiters_hand_over(struct waiter *waiter)
{
    struct wakes wakes = {.count = 0};
    prepare(waiter, false);
    bmi_lock_take(&lock);
    struct waiter *next = next_locked();
    if (next != NULL) {
        enlist_locked(waiter);
        if (!bmi__waiters_guarded() || bmi__waiter_guards(next))
            atomic_store(&guard, waiter);
        signal_locked(next, &wakes);
    }
    bmi_lock_give(&lock);
    if (next == NULL)
        return false;
    own = waiter;
    bmi__wakes_finish(&wakes);
    return true;
}

/* ---- the stop, and fork --------------------------------------------------------------------- */

void bmi__waiters_stop(void)
{
    set(&crowd.votes, 0);
    bmi_lock_take(&lock);
    bmi__summons_close_locked();
    bmi_lock_give(&lock);
}

void bmi__waiters_before_fork(void)
{
    bmi_lock_take(&lock);
}

void bmi__waiters_after_fork_parent(void)
{
    bmi_lock_give(&lock);
}

/* The others' stacks are still there as they were, until this process has threads again. */
void bmi__waiters_after_fork_child(void)
{
    while (first != NULL)
        delist_locked(first);
    if (own != NULL)
        enlist_locked(own);
    bmi__summons_after_fork_child_locked();
    bmi_lock_give(&lock);
}
