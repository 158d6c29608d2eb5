/* SPDX-License-Identifier: BSD-3-Clause
 *
 * progress.c - the poller and its passes. See progress.h.
 *
 * Rules. `role` is taken by exchange when no thread has or wants it, and given back by exchange or,
 * if a thread wants it meanwhile, by subtraction; all that only the poller touches (batch, spin)
 * needs no lock beyond it. A follower misses nothing, since it looks again after it is on the list
 * (waiters.c). The poller misses nothing, since it says that it blocks, then looks at all queues
 * again, then blocks (wakeup.h). While a follower sleeps, there is a poller, or a follower was
 * woken to become it: one that is woken and goes without polling wakes the next.
 *
 * A thread that forks takes the role first, so that the child finds what only pollers touch in
 * order: it adds ROLE_WANTED, which keeps others from it and makes the poller leave.
 */
#include "bmi/progress/progress.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "bmi/base/clock.h"
#include "bmi/base/instance.h"
#include "bmi/lock.h"
#include "bmi/progress/background.h"
#include "bmi/progress/methods.h"
#include "bmi/progress/spin.h"
#include "bmi/progress/timers.h"
#include "bmi/progress/waiters.h"
#include "bmi/progress/wakeup.h"
#include "bmi/progress/work.h"
#include "bmi/task.h"
#include "task/event.h"

enum { BATCH = 64, EPOLL_EVERY = 32, SPIN_EPOLL_EVERY = 128, SPIN_CLOCK_EVERY = 16 };
enum { ROLE_TAKEN = 1, ROLE_WANTED = 2, FORK_PATIENCE_NS = 1000000000 };

struct bmi__progress {
    atomic_uint role;      /* ROLE_TAKEN, and ROLE_WANTED for each thread that is about to fork */
    atomic_bool hooks_due; /* a task was queued that only a hook will run */
    atomic_uint pass;
    bool fork_has_role; /* the thread that forks has the role; start.c's list_lock */
    /* the poller's */
    bool woke; /* it has woken followers, which may need this CPU */
    struct epoll_event batch[BATCH];
    int batch_count, batch_next;
    struct wakes wakes;         /* followers whose completions have come in this pass */
    uint64_t watch_until_ns;    /* the timer that the background task, which blocks, knows of */
    uint64_t all_looked_ns;     /* when look_at_all last ran */
    struct bmi_instance *outer; /* of which this thread is the poller, too */
};

/* A hook of the task manager, by which it wakes the poller of an instance. */
struct hook {
    struct bmi_task_waker waker; /* first */
    struct bmi_instance *instance;
};

uint32_t bmi__progress_pass(struct bmi_instance *instance)
{
    struct bmi__progress *progress = instance->progress;
    return atomic_load_explicit(&progress->pass, memory_order_relaxed);
}

bool bmi__progress_polled(struct bmi_instance *instance)
{
    struct bmi__progress *progress = instance->progress;
    return atomic_load(&progress->role) != 0;
}

bool bmi__progress_poller_blocks(struct bmi_instance *instance)
{
    return bmi__progress_polled(instance) && bmi__wakeup_poller_asleep(instance);
}

/* As the poller: another thread is about to fork. */
static bool role_is_wanted(struct bmi__progress *progress)
{
    return atomic_load(&progress->role) != ROLE_TAKEN;
}

void bmi__progress_dirty(struct bmi_link *link)
{
    if (bmi__work_dirty(link))
        bmi__progress_kick(link->instance);
}

/* By the poller, which holds no lock. */
static void wake_followers(struct bmi__progress *progress)
{
    if (progress->wakes.count == 0)
        return;
    bmi__wakes_finish(&progress->wakes);
    progress->woke = true;
}

void bmi__progress_notify(struct bmi_instance *instance, struct waiter_list *list, bmi_op_id_t op)
{
    struct bmi__progress *progress = instance->progress;
    /* The push before, and these loads, are sequentially consistent, as a waiter's enlisting and
     * its second look are. The poller itself looks again before it blocks. */
    if (bmi__is_poller(instance)) {
        if (bmi__waiters_asleep(instance) > 0)
            bmi__waiters_notify(instance, list, op, &progress->wakes);
        return;
    }
    struct wakes wakes = {.count = 0};
    bmi__waiters_notify(instance, list, op, &wakes);
    bmi__wakes_finish(&wakes);
}

/* ---- watches -------------------------------------------------------------------------------- */

int bmi_method_watch_add(struct bmi_instance *instance, struct bmi_watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    return epoll_ctl(bmi__progress_fd(instance), EPOLL_CTL_ADD, watch->fd, &event) < 0 ? -errno : 0;
}

void bmi_method_watch_remove(struct bmi_instance *instance, struct bmi_watch *watch)
{
    struct bmi__progress *progress = instance->progress;
    epoll_ctl(bmi__progress_fd(instance), EPOLL_CTL_DEL, watch->fd, NULL);
    for (int i = progress->batch_next; i < progress->batch_count; i++)
        if (progress->batch[i].data.ptr == watch)
            progress->batch[i].data.ptr = NULL;
}

/* Waits for events (0: only looks) and runs their callbacks. Returns how many there were. */
static int events_run(struct bmi_instance *instance, int timeout_ms)
{
    struct bmi__progress *progress = instance->progress;
    int count = epoll_wait(bmi__progress_fd(instance), progress->batch, BATCH, timeout_ms);
    if (timeout_ms != 0)
        bmi__wakeup_set_asleep(instance, false);
    if (count < 0)
        return 0; /* a signal */
    progress->batch_count = count;
    for (int i = 0; i < count; i++) {
        progress->batch_next = i + 1;
        struct bmi_watch *watch = progress->batch[i].data.ptr;
        if (watch != NULL)
            watch->ready(watch, progress->batch[i].events);
        wake_followers(progress);
    }
    progress->batch_count = 0;
    return count;
}

/* ---- passes --------------------------------------------------------------------------------- */

/* Out of line, since its registers would slow down each pass, and many have no work. */
static __attribute__((noinline)) void work_run(struct bmi_instance *instance)
{
    for (int i = 0; i < 16 && !bmi__work_none(instance); i++) {
        bmi__work_deferred(instance);
        bmi__work_flush(instance);
    }
    if (bmi__is_poller(instance))
        wake_followers(instance->progress);
}

/* The work before and after a look at the network. Returns whether there was any. */
static bool chores(struct bmi_instance *instance)
{
    bool any = !bmi__work_none(instance);
    if (any)
        work_run(instance);
    return any;
}

/* The descriptors that are likeliest to have something. Returns how many had. */
static int look(struct bmi_instance *instance)
{
    struct bmi__progress *progress = instance->progress;
    int events = bmi__methods_progress(instance);
    wake_followers(progress);
    return events;
}

static void timers_run(struct bmi_instance *instance)
{
    struct bmi__progress *progress = instance->progress;
    bmi__timers_run(instance);
    wake_followers(progress);
}

/* Methods look once more as they arm, and may defer work. Returns whether the poller may block. */
static bool arm(struct bmi_instance *instance)
{
    struct bmi__progress *progress = instance->progress;
    bool armed = bmi__methods_arm(instance);
    wake_followers(progress);
    return armed && bmi__work_none(instance);
}

/* Only the poller writes the number: no need for an atomic addition. */
static unsigned pass_begin(struct bmi__progress *progress)
{
    unsigned number = atomic_load_explicit(&progress->pass, memory_order_relaxed) + 1;
    atomic_store_explicit(&progress->pass, number, memory_order_relaxed);
    return number;
}

/* Looks without blocking. The likeliest descriptors are asked directly, the epoll set when they
 * have nothing, and every few times anyway. Returns whether there was anything. */
static bool pass(struct bmi_instance *instance)
{
    struct bmi__progress *progress = instance->progress;
    unsigned number = pass_begin(progress);
    bool any = chores(instance);
    int events = look(instance);
    if (events == 0 || number % EPOLL_EVERY == 0)
        events += events_run(instance, 0);
    timers_run(instance);
    return chores(instance) || any || events > 0;
}

/* A task was submitted that only a hook will run. The manager's lock is held. */
static void hook_wanted(struct bmi_task_waker *waker)
{
    struct bmi_instance *instance = ((struct hook *)waker)->instance;
    atomic_store(&instance->progress->hooks_due, true);
    bmi__wakeup_force(instance);
}

static int timeout_ms(struct bmi_instance *instance, uint64_t deadline_ns)
{
    uint64_t now = bmi__monotonic_ns(), due = bmi__timers_next(instance);
    if (due > deadline_ns)
        due = deadline_ns;
    uint64_t ms = due <= now ? 0 : (due - now + 999999) / 1000000;
    return ms > 1000000 ? 1000000 : (int)ms;
}

/* Blocks until something happens or the time is over, unless something is there already. Returns
 * whether a descriptor had something. */
static bool pass_blocking(struct waiter *waiter, uint64_t deadline_ns)
{
    struct bmi_instance *instance = waiter->instance;
    struct bmi__progress *progress = instance->progress;
    struct hook hook = {.waker.wake = hook_wanted, .instance = instance};
    bmi__wakeup_set_asleep(instance, true);
    bool hooked = bmi_task_waker_arm(NULL, &hook.waker);
    if (!hooked)
        atomic_store(&progress->hooks_due, true);
    bool idle =
        hooked && !waiter->ready(waiter) && bmi__work_none(instance) && !role_is_wanted(progress);
    bool armed = idle && arm(instance), any = false;
    if (armed)
        any = events_run(instance, timeout_ms(instance, deadline_ns)) > 0;
    bmi_task_waker_disarm(NULL, &hook.waker);
    bmi__wakeup_set_asleep(instance, false);
    pass_begin(progress);
    if (idle && !armed)
        any = look(instance) > 0; /* something is there already */
    timers_run(instance);
    chores(instance);
    return any;
}

/* ---- the role ------------------------------------------------------------------------------- */

static bool role_take(struct bmi_instance *instance)
{
    struct bmi__progress *progress = instance->progress;
    unsigned free = 0;
    if (atomic_load(&progress->role) != free || !bmi_replace(&progress->role, &free, ROLE_TAKEN))
        return false;
    progress->outer = bmi__wakeup_set_poller(instance);
    return true;
}

/* Of a role that was taken to poll, or to fork. */
static void role_free(struct bmi__progress *progress)
{
    unsigned role = ROLE_TAKEN;
    if (bmi_replace(&progress->role, &role, 0))
        return;
    atomic_fetch_sub(&progress->role, ROLE_TAKEN); /* for a thread that is about to fork */
    bmi__futex_wake(&progress->role);
}

static void role_give_back(struct bmi__progress *progress)
{
    bmi__wakeup_set_poller(progress->outer);
    role_free(progress);
}

/* While there is no poller, events are noticed by a program, or by the background task, that polls
 * the network's descriptor. */
static void descriptor_arm(struct bmi_instance *instance)
{
    struct bmi__progress *progress = instance->progress;
    if (bmi__wakeup_fd_used(instance))
        bmi__wakeup_timer(instance, bmi__timers_next(instance));
    bool earlier =
        bmi__wakeup_watching(instance) && bmi__timers_next(instance) < progress->watch_until_ns;
    if (!arm(instance) || earlier)
        bmi__wakeup_force(instance);
}

/* There is no poller: wakes one follower, or the background task, to become it. */
static void role_offer(struct bmi_instance *instance)
{
    if (!bmi__waiters_wake_one(instance) && bmi__background_on(instance))
        bmi__background_role_free(instance);
}

static void caller_enters(struct bmi_instance *instance)
{
    if (bmi__background_on(instance))
        bmi__background_caller_enters(instance, bmi__monotonic_ns());
}

static void caller_leaves(struct bmi_instance *instance)
{
    if (bmi__background_on(instance))
        bmi__background_caller_leaves(instance, bmi__monotonic_ns());
}

static void role_leave(struct bmi_instance *instance)
{
    struct bmi__progress *progress = instance->progress;
    caller_leaves(instance);
    if (bmi__wakeup_fd_used(instance) || bmi__wakeup_watching(instance))
        descriptor_arm(instance);
    role_give_back(progress);
    role_offer(instance);
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* One turn of a spin. Returns whether anything was found. Where every method is known through the
 * epoll set that is asked each time; else it costs as much as thirty turns, and is asked seldom. */
static bool spin_turn(struct bmi_instance *instance, unsigned number)
{
    struct bmi__progress *progress = instance->progress;
    pass_begin(progress);
    bool any = chores(instance);
    int events = look(instance);
    if (events == 0 && (!bmi__methods_polled(instance) || number % SPIN_EPOLL_EVERY == 0))
        events = events_run(instance, 0);
    return any || events > 0;
}

/* Looks without blocking until the waiter is ready or nothing has come for as long as spinning
 * pays. Returns whether it is ready. */
static bool spin(struct waiter *waiter, uint64_t now, uint64_t deadline_ns)
{
    struct bmi_instance *instance = waiter->instance;
    struct bmi__progress *progress = instance->progress;
    uint64_t window_ns = bmi__spin_window(instance, now), until = now + window_ns;
    if (window_ns == 0)
        return false;
    for (unsigned i = 1; now < until && now < deadline_ns; i++) {
        bool any = spin_turn(instance, i);
        if (waiter->ready(waiter)) {
            bmi__spin_paid(instance);
            return true;
        }
        if (!any && i % SPIN_CLOCK_EVERY != 0)
            continue;
        if (progress->woke)
            sched_yield();
        progress->woke = false;
        now = bmi__monotonic_ns();
        if (now >= bmi__timers_next(instance))
            timers_run(instance);
        if (any)
            until = now + window_ns;
        if (role_is_wanted(progress))
            return false;
    }
    bmi__spin_failed(instance);
    return false;
}

/* If one peer always has a message ready, each wait ends in its first pass, which looks at that
 * peer only. So all descriptors and timers are checked first from time to time. */
static void look_at_all(struct bmi_instance *instance, uint64_t now)
{
    struct bmi__progress *progress = instance->progress;
    enum { EVERY_NS = 1000000 };
    if (now < progress->all_looked_ns + EVERY_NS)
        return;
    progress->all_looked_ns = now;
    events_run(instance, 0);
    timers_run(instance);
}

/* As the poller, until the waiter is ready, the time is over, hooks have something to run, or
 * another thread is about to fork. */
static void poll_for(struct waiter *waiter, uint64_t now, uint64_t deadline_ns)
{
    struct bmi_instance *instance = waiter->instance;
    struct bmi__progress *progress = instance->progress;
    look_at_all(instance, now);
    chores(instance);
    if (waiter->ready(waiter) || spin(waiter, now, deadline_ns))
        return;
    bmi__waiter_enlist(waiter, true);
    while (!waiter->ready(waiter) && !atomic_load(&progress->hooks_due) &&
           !role_is_wanted(progress)) {
        uint64_t begin = now;
        bool any = pass_blocking(waiter, deadline_ns);
        now = bmi__monotonic_ns();
        if (any)
            bmi__spin_slept(instance, now - begin);
        if (now >= deadline_ns || (any && spin(waiter, now, deadline_ns)))
            break;
    }
    bmi__waiter_delist(waiter);
}

/* As a follower, until the waiter is ready, the time is over, or this thread is the poller. Returns
 * whether it is. */
static bool follow(struct waiter *waiter, uint64_t deadline_ns)
{
    struct bmi_instance *instance = waiter->instance;
    bool poller = false, time_left = true;
    bmi__waiter_enlist(waiter, false);
    while (!waiter->ready(waiter) && time_left && !(poller = role_take(instance)))
        time_left = bmi__waiter_sleep(waiter, deadline_ns);
    bmi__waiter_delist(waiter);
    if (!poller)
        caller_leaves(instance);
    if (!poller && !bmi__progress_polled(instance))
        role_offer(instance);
    return poller;
}

/* Runs what waited for a hook. Without the role: tasks may call test functions. */
static void hooks_run(struct bmi__progress *progress)
{
    if (!atomic_load(&progress->hooks_due))
        return;
    atomic_store(&progress->hooks_due, false);
    bmi_task_schedule(NULL);
}

/* In an instance with a clock of its own. */
static void wait_simulated(struct waiter *waiter, int max_idle_ms)
{
    struct bmi_instance *instance = waiter->instance;
    uint64_t deadline_ns = bmi__instance_now_ns(instance) + (uint64_t)max_idle_ms * 1000000u;
    for (;;) {
        bmi__progress_poll(instance);
        if (waiter->ready(waiter) || bmi__instance_now_ns(instance) >= deadline_ns)
            return;
        uint64_t due_ns = bmi__timers_next(instance);
        instance->wait(instance->argument, due_ns < deadline_ns ? due_ns : deadline_ns);
    }
}

void bmi__progress_wait(struct waiter *waiter, int max_idle_ms)
{
    struct bmi_instance *instance = waiter->instance;
    bmi_task_schedule(NULL);
    if (max_idle_ms == 0) {
        bmi__progress_poll(instance);
        return;
    }
    if (instance->now_ns != NULL) {
        wait_simulated(waiter, max_idle_ms);
        return;
    }
    uint64_t now = bmi__monotonic_ns(), deadline_ns = now + (uint64_t)max_idle_ms * 1000000u;
    caller_enters(instance);
    bool poller = role_take(instance);
    for (;;) {
        if (!poller && (poller = follow(waiter, deadline_ns)))
            now = bmi__monotonic_ns();
        if (poller) {
            poll_for(waiter, now, deadline_ns);
            role_leave(instance);
        }
        hooks_run(instance->progress);
        if (waiter->ready(waiter) || bmi__monotonic_ns() >= deadline_ns)
            return;
        poller = false; /* it left the role for a hook or a fork, and goes on waiting */
    }
}

void bmi__progress_poll(struct bmi_instance *instance)
{
    caller_enters(instance);
    if (!role_take(instance))
        return;
    pass(instance);
    role_leave(instance);
}

void bmi__progress_catch_up(struct bmi_instance *instance)
{
    enum { PASSES = 4 };
    if (bmi__is_poller(instance) || !role_take(instance))
        return; /* within a pass, or another thread is at it */
    pass(instance);
    for (int i = 0; i < PASSES; i++) {
        arm(instance); /* methods that poll look at descriptors only then, or in the next pass */
        if (!pass(instance))
            break;
    }
    role_leave(instance);
}

void bmi__progress_chores(struct bmi_instance *instance)
{
    chores(instance);
}

/* ---- for the background task ---------------------------------------------------------------- */

enum bmi__watch bmi__progress_watch(struct bmi_instance *instance, uint64_t *until_ns)
{
    struct bmi__progress *progress = instance->progress;
    enum { PASSES = 64 };
    if (!role_take(instance))
        return BMI__WATCH_TAKEN;
    for (int i = 0; i < PASSES && pass(instance); i++)
        continue;
    bmi__wakeup_set_watching(instance, true);
    bool quiet = bmi__work_none(instance) && arm(instance);
    *until_ns = bmi__timers_next(instance);
    progress->watch_until_ns = *until_ns;
    role_give_back(progress);
    bmi__waiters_wake_one(instance);
    return quiet ? BMI__WATCH_QUIET : BMI__WATCH_AGAIN;
}

void bmi__progress_watch_end(struct bmi_instance *instance)
{
    bmi__wakeup_set_watching(instance, false);
}

/* ---- fork ----------------------------------------------------------------------------------- */

/* Whether this thread is its poller, also if it polls another one within a callback. */
static bool is_poller_to_fork(const struct bmi_instance *instance)
{
    struct bmi_instance *one = bmi__wakeup_poller();
    while (one != NULL && one != instance)
        one = one->progress->outer;
    return one != NULL;
}

/* Takes the role before all threads that do not have it yet. Returns false if the poller does not
 * leave: the poller is this thread, or waits for something that this thread holds. */
static bool role_take_to_fork(struct bmi_instance *instance)
{
    struct bmi__progress *progress = instance->progress;
    if (is_poller_to_fork(instance))
        return false;
    uint64_t deadline_ns = bmi__monotonic_ns() + FORK_PATIENCE_NS;
    unsigned role = atomic_fetch_add(&progress->role, ROLE_WANTED) + ROLE_WANTED;
    if (role & ROLE_TAKEN) {
        atomic_store(&progress->hooks_due, true); /* the poller leaves for them */
        bmi__wakeup_force(instance);
    }
    for (;;) {
        while ((role & ROLE_TAKEN) == 0)
            if (atomic_compare_exchange_weak(&progress->role, &role, role | ROLE_TAKEN))
                return true;
        if (bmi__monotonic_ns() >= deadline_ns)
            break;
        bmi__futex_wait(&progress->role, role, deadline_ns);
        role = atomic_load(&progress->role);
    }
    if (atomic_fetch_sub(&progress->role, ROLE_WANTED) == ROLE_WANTED)
        role_offer(instance); /* it became free just now: the follower that was woken has seen us */
    return false;
}

void bmi__progress_before_fork(struct bmi_instance *instance)
{
    instance->progress->fork_has_role = role_take_to_fork(instance);
}

void bmi__progress_after_fork_parent(struct bmi_instance *instance)
{
    struct bmi__progress *progress = instance->progress;
    if (!progress->fork_has_role)
        return;
    atomic_fetch_sub(&progress->role, ROLE_WANTED);
    role_free(progress);
    role_offer(instance);
}

/* The child lacks the parent's poller and waiters, except for this thread. */
void bmi__progress_after_fork_child(struct bmi_instance *instance)
{
    struct bmi__progress *progress = instance->progress;
    const bool poller = is_poller_to_fork(instance);
    atomic_store(&progress->role, poller ? ROLE_TAKEN : 0);
    if (poller)
        return;
    bmi__wakeup_set_asleep(instance, false);
    atomic_store(&progress->hooks_due, false);
    progress->batch_count = 0;
    progress->wakes.count = 0;
}

/* ---- open and close ------------------------------------------------------------------------- */

int bmi__progress_open(struct bmi_instance *instance)
{
    struct bmi__progress *progress = calloc(1, sizeof *progress);
    if (progress == NULL)
        return -ENOMEM;
    instance->progress = progress;
    return 0;
}

void bmi__progress_close(struct bmi_instance *instance)
{
    free(instance->progress);
    instance->progress = NULL;
}
