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
#include <sys/epoll.h>

#include "bmi/base/clock.h"
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

static struct {
    atomic_uint role;      /* ROLE_TAKEN, and ROLE_WANTED for each thread that is about to fork */
    atomic_bool hooks_due; /* a task was queued that only a hook will run */
    atomic_uint pass;
    /* the poller's */
    bool woke; /* it has woken followers, which may need this CPU */
    struct epoll_event batch[BATCH];
    int batch_count, batch_next;
    struct wakes wakes;      /* followers whose completions have come in this pass */
    uint64_t watch_until_ns; /* the timer that the background task, which blocks, knows of */
    uint64_t all_looked_ns;  /* when look_at_all last ran */
} progress;

uint32_t bmi__progress_pass(void)
{
    return atomic_load_explicit(&progress.pass, memory_order_relaxed);
}

bool bmi__progress_polled(void)
{
    return atomic_load(&progress.role) != 0;
}

bool bmi__progress_poller_blocks(void)
{
    return bmi__progress_polled() && bmi__wakeup_poller_asleep();
}

/* As the poller: another thread is about to fork. */
static bool role_is_wanted(void)
{
    return atomic_load(&progress.role) != ROLE_TAKEN;
}

void bmi__progress_dirty(struct bmi_link *link)
{
    if (bmi__work_dirty(link))
        bmi__progress_kick();
}

/* By the poller, which holds no lock. */
static void wake_followers(void)
{
    if (progress.wakes.count == 0)
        return;
    bmi__wakes_finish(&progress.wakes);
    progress.woke = true;
}

void bmi__progress_notify(struct waiter_list *list, bmi_op_id_t op)
{
    /* The push before, and these loads, are sequentially consistent, as a waiter's enlisting and
     * its second look are. The poller itself looks again before it blocks. */
    if (bmi__is_poller()) {
        if (bmi__waiters_asleep() > 0)
            bmi__waiters_notify(list, op, &progress.wakes);
        return;
    }
    struct wakes wakes = {.count = 0};
    bmi__waiters_notify(list, op, &wakes);
    bmi__wakes_finish(&wakes);
}

/* ---- watches -------------------------------------------------------------------------------- */

int bmi_method_watch_add(struct bmi_watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    return epoll_ctl(bmi__progress_fd(), EPOLL_CTL_ADD, watch->fd, &event) < 0 ? -errno : 0;
}

void bmi_method_watch_remove(struct bmi_watch *watch)
{
    epoll_ctl(bmi__progress_fd(), EPOLL_CTL_DEL, watch->fd, NULL);
    for (int i = progress.batch_next; i < progress.batch_count; i++)
        if (progress.batch[i].data.ptr == watch)
            progress.batch[i].data.ptr = NULL;
}

/* Waits for events (0: only looks) and runs their callbacks. Returns how many there were. */
static int events_run(int timeout_ms)
{
    int count = epoll_wait(bmi__progress_fd(), progress.batch, BATCH, timeout_ms);
    if (timeout_ms != 0)
        bmi__wakeup_set_asleep(false);
    if (count < 0)
        return 0; /* a signal */
    progress.batch_count = count;
    for (int i = 0; i < count; i++) {
        progress.batch_next = i + 1;
        struct bmi_watch *watch = progress.batch[i].data.ptr;
        if (watch != NULL)
            watch->ready(watch, progress.batch[i].events);
        wake_followers();
    }
    progress.batch_count = 0;
    return count;
}

/* ---- passes --------------------------------------------------------------------------------- */

/* The work before and after a look at the network. Returns whether there was any. */
static bool chores(void)
{
    bool all = false;
    for (int i = 0; i < 16; i++) {
        bool any = bmi__work_deferred();
        if (!bmi__work_flush() && !any)
            break;
        all = true;
    }
    if (bmi__is_poller())
        wake_followers();
    return all;
}

/* The descriptors that are likeliest to have something. Returns how many had. */
static int look(void)
{
    int events = bmi__methods_progress();
    wake_followers();
    return events;
}

static void timers_run(void)
{
    bmi__timers_run();
    wake_followers();
}

/* Methods look once more as they arm, and may defer work. Returns whether the poller may block. */
static bool arm(void)
{
    bool armed = bmi__methods_arm();
    wake_followers();
    return armed && bmi__work_none();
}

/* Only the poller writes the number: no need for an atomic addition. */
static unsigned pass_begin(void)
{
    unsigned number = atomic_load_explicit(&progress.pass, memory_order_relaxed) + 1;
    atomic_store_explicit(&progress.pass, number, memory_order_relaxed);
    return number;
}

/* Looks without blocking. The likeliest descriptors are asked directly, the epoll set when they
 * have nothing, and every few times anyway. Returns whether there was anything. */
static bool pass(void)
{
    unsigned number = pass_begin();
    bool any = chores();
    int events = look();
    if (events == 0 || number % EPOLL_EVERY == 0)
        events += events_run(0);
    timers_run();
    if (!bmi__work_none())
        any = chores() || any;
    return any || events > 0;
}

/* A task was submitted that only a hook will run. The manager's lock is held. */
static void hook_wanted(struct bmi_task_waker *waker)
{
    (void)waker;
    atomic_store(&progress.hooks_due, true);
    bmi__wakeup_force();
}

static int timeout_ms(uint64_t deadline_ns)
{
    uint64_t now = bmi__monotonic_ns(), due = bmi__timers_next();
    if (due > deadline_ns)
        due = deadline_ns;
    uint64_t ms = due <= now ? 0 : (due - now + 999999) / 1000000;
    return ms > 1000000 ? 1000000 : (int)ms;
}

/* Blocks until something happens or the time is over, unless something is there already. Returns
 * whether a descriptor had something. */
static bool pass_blocking(struct waiter *waiter, uint64_t deadline_ns)
{
    struct bmi_task_waker hook = {.wake = hook_wanted};
    bmi__wakeup_set_asleep(true);
    bool hooked = bmi_task_waker_arm(NULL, &hook);
    if (!hooked)
        atomic_store(&progress.hooks_due, true);
    bool idle = hooked && !waiter->ready(waiter) && bmi__work_none() && !role_is_wanted();
    bool armed = idle && arm(), any = false;
    if (armed)
        any = events_run(timeout_ms(deadline_ns)) > 0;
    bmi_task_waker_disarm(NULL, &hook);
    bmi__wakeup_set_asleep(false);
    pass_begin();
    if (idle && !armed)
        any = look() > 0; /* something is there already */
    timers_run();
    chores();
    return any;
}

/* ---- the role ------------------------------------------------------------------------------- */

static bool role_take(void)
{
    unsigned free = 0;
    bool taken =
        atomic_load(&progress.role) == free && bmi_replace(&progress.role, &free, ROLE_TAKEN);
    bmi__wakeup_set_poller(taken);
    return taken;
}

static void role_give_back(void)
{
    unsigned role = ROLE_TAKEN;
    bmi__wakeup_set_poller(false);
    if (bmi_replace(&progress.role, &role, 0))
        return;
    atomic_fetch_sub(&progress.role, ROLE_TAKEN); /* for a thread that is about to fork */
    bmi__futex_wake(&progress.role);
}

/* While there is no poller, events are noticed by a program, or by the background task, that polls
 * the network's descriptor. */
static void descriptor_arm(void)
{
    if (bmi__wakeup_fd_used())
        bmi__wakeup_timer(bmi__timers_next());
    bool earlier = bmi__wakeup_watching() && bmi__timers_next() < progress.watch_until_ns;
    if (!arm() || earlier)
        bmi__wakeup_force();
}

/* There is no poller: wakes one follower, or the background task, to become it. */
static void role_offer(void)
{
    if (!bmi__waiters_wake_one() && bmi__background_on())
        bmi__background_role_free();
}

static void caller_enters(void)
{
    if (bmi__background_on())
        bmi__background_caller_enters(bmi__monotonic_ns());
}

static void caller_leaves(void)
{
    if (bmi__background_on())
        bmi__background_caller_leaves(bmi__monotonic_ns());
}

static void role_leave(void)
{
    caller_leaves();
    if (bmi__wakeup_fd_used() || bmi__wakeup_watching())
        descriptor_arm();
    role_give_back();
    role_offer();
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* One turn of a spin. Returns whether anything was found. Where every method is known through the
 * epoll set that is asked each time; else it costs as much as thirty turns, and is asked seldom. */
static bool spin_turn(unsigned number)
{
    pass_begin();
    bool any = chores();
    int events = look();
    if (events == 0 && (!bmi__methods_polled() || number % SPIN_EPOLL_EVERY == 0))
        events = events_run(0);
    return any || events > 0;
}

/* Looks without blocking until the waiter is ready or nothing has come for as long as spinning
 * pays. Returns whether it is ready. */
static bool spin(struct waiter *waiter, uint64_t now, uint64_t deadline_ns)
{
    uint64_t window_ns = bmi__spin_window(now), until = now + window_ns;
    if (window_ns == 0)
        return false;
    for (unsigned i = 1; now < until && now < deadline_ns; i++) {
        bool any = spin_turn(i);
        if (waiter->ready(waiter)) {
            bmi__spin_paid();
            return true;
        }
        if (!any && i % SPIN_CLOCK_EVERY != 0)
            continue;
        if (progress.woke)
            sched_yield();
        progress.woke = false;
        now = bmi__monotonic_ns();
        if (now >= bmi__timers_next())
            timers_run();
        if (any)
            until = now + window_ns;
        if (role_is_wanted())
            return false;
    }
    bmi__spin_failed();
    return false;
}

/* If one peer always has a message ready, each wait ends in its first pass, which looks at that
 * peer only. So all descriptors and timers are checked first from time to time. */
static void look_at_all(uint64_t now)
{
    enum { EVERY_NS = 1000000 };
    if (now < progress.all_looked_ns + EVERY_NS)
        return;
    progress.all_looked_ns = now;
    events_run(0);
    timers_run();
}

/* As the poller, until the waiter is ready, the time is over, hooks have something to run, or
 * another thread is about to fork. */
static void poll_for(struct waiter *waiter, uint64_t now, uint64_t deadline_ns)
{
    look_at_all(now);
    chores();
    if (waiter->ready(waiter) || spin(waiter, now, deadline_ns))
        return;
    bmi__waiter_enlist(waiter, true);
    while (!waiter->ready(waiter) && !atomic_load(&progress.hooks_due) && !role_is_wanted()) {
        uint64_t begin = now;
        bool any = pass_blocking(waiter, deadline_ns);
        now = bmi__monotonic_ns();
        if (any)
            bmi__spin_slept(now - begin);
        if (now >= deadline_ns || (any && spin(waiter, now, deadline_ns)))
            break;
    }
    bmi__waiter_delist(waiter);
}

/* As a follower, until the waiter is ready, the time is over, or this thread is the poller. Returns
 * whether it is. */
static bool follow(struct waiter *waiter, uint64_t deadline_ns)
{
    bool poller = false, time_left = true;
    bmi__waiter_enlist(waiter, false);
    while (!waiter->ready(waiter) && time_left && !(poller = role_take()))
        time_left = bmi__waiter_sleep(waiter, deadline_ns);
    bmi__waiter_delist(waiter);
    if (!poller)
        caller_leaves();
    if (!poller && !bmi__progress_polled())
        role_offer();
    return poller;
}

/* Runs what waited for a hook. Without the role: tasks may call test functions. */
static void hooks_run(void)
{
    if (!atomic_load(&progress.hooks_due))
        return;
    atomic_store(&progress.hooks_due, false);
    bmi_task_schedule(NULL);
}

void bmi__progress_wait(struct waiter *waiter, int max_idle_ms)
{
    bmi_task_schedule(NULL);
    if (max_idle_ms == 0) {
        bmi__progress_poll();
        return;
    }
    uint64_t now = bmi__monotonic_ns(), deadline_ns = now + (uint64_t)max_idle_ms * 1000000u;
    caller_enters();
    bool poller = role_take();
    for (;;) {
        if (!poller && (poller = follow(waiter, deadline_ns)))
            now = bmi__monotonic_ns();
        if (poller) {
            poll_for(waiter, now, deadline_ns);
            role_leave();
        }
        hooks_run();
        if (waiter->ready(waiter) || bmi__monotonic_ns() >= deadline_ns)
            return;
        poller = false; /* it left the role for a hook or a fork, and goes on waiting */
    }
}

void bmi__progress_poll(void)
{
    caller_enters();
    if (!role_take())
        return;
    pass();
    role_leave();
}

void bmi__progress_catch_up(void)
{
    enum { PASSES = 4 };
    if (bmi__is_poller() || !role_take())
        return; /* within a pass, or another thread is at it */
    pass();
    for (int i = 0; i < PASSES; i++) {
        arm(); /* methods that poll look at descriptors then, or in the pass after it, only */
        if (!pass())
            break;
    }
    role_leave();
}

void bmi__progress_chores(void)
{
    chores();
}

/* ---- for the background task ---------------------------------------------------------------- */

enum bmi__watch bmi__progress_watch(uint64_t *until_ns)
{
    enum { PASSES = 64 };
    if (!role_take())
        return BMI__WATCH_TAKEN;
    for (int i = 0; i < PASSES && pass(); i++)
        continue;
    bmi__wakeup_set_watching(true);
    bool quiet = bmi__work_none() && arm();
    *until_ns = bmi__timers_next();
    progress.watch_until_ns = *until_ns;
    role_give_back();
    bmi__waiters_wake_one();
    return quiet ? BMI__WATCH_QUIET : BMI__WATCH_AGAIN;
}

void bmi__progress_watch_end(void)
{
    bmi__wakeup_set_watching(false);
}

/* ---- fork ----------------------------------------------------------------------------------- */

static _Thread_local bool fork_has_role;

/* Takes the role before all threads that do not have it yet. Returns false if the poller does not
 * leave: the poller is this thread, or waits for something that this thread holds. */
static bool role_take_to_fork(void)
{
    if (bmi__is_poller())
        return false;
    uint64_t deadline_ns = bmi__monotonic_ns() + FORK_PATIENCE_NS;
    unsigned role = atomic_fetch_add(&progress.role, ROLE_WANTED) + ROLE_WANTED;
    if (role & ROLE_TAKEN) {
        atomic_store(&progress.hooks_due, true); /* the poller leaves for them */
        bmi__wakeup_force();
    }
    for (;;) {
        while ((role & ROLE_TAKEN) == 0)
            if (atomic_compare_exchange_weak(&progress.role, &role, role | ROLE_TAKEN))
                return true;
        if (bmi__monotonic_ns() >= deadline_ns)
            break;
        bmi__futex_wait(&progress.role, role, deadline_ns);
        role = atomic_load(&progress.role);
    }
    if (atomic_fetch_sub(&progress.role, ROLE_WANTED) == ROLE_WANTED)
        role_offer(); /* it became free just now: the follower that was woken has seen us */
    return false;
}

void bmi__progress_before_fork(void)
{
    fork_has_role = role_take_to_fork();
    bmi__waiters_before_fork();
}

void bmi__progress_after_fork_parent(void)
{
    bmi__waiters_after_fork_parent();
    if (!fork_has_role)
        return;
    atomic_fetch_sub(&progress.role, ROLE_WANTED);
    role_give_back();
    role_offer();
}

/* The child lacks the parent's poller and waiters, except for this thread. */
void bmi__progress_after_fork_child(void)
{
    bmi__waiters_after_fork_child();
    atomic_store(&progress.role, bmi__is_poller() ? ROLE_TAKEN : 0);
    if (bmi__is_poller())
        return;
    bmi__wakeup_set_asleep(false);
    atomic_store(&progress.hooks_due, false);
    progress.batch_count = 0;
    progress.wakes.count = 0;
}

/* ---- start and stop ------------------------------------------------------------------------- */

int bmi__progress_start(void)
{
    int status = bmi__wakeup_start();
    if (status == 0)
        bmi__spin_reset();
    return status;
}

void bmi__progress_stop(void)
{
    bmi__wakeup_stop();
    bmi__work_drop();
    atomic_store(&progress.hooks_due, false);
}
