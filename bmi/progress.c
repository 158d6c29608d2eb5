/* SPDX-License-Identifier: BSD-3-Clause
 *
 * progress.c - the driver's seat, and the passes it makes. See progress.h.
 *
 * Rules. `seat` is taken by exchange where nobody has or wants it, and given back by subtraction;
 * all that only the driver touches (batch, spin, timers) needs no lock beyond it. A sleeper misses
 * nothing since it looks again after it is on the list (waiters.c); the driver misses nothing since
 * it sets `asleep`, then looks at all queues again, then sleeps, and whoever queues something looks
 * at `asleep` afterwards (both sequentially consistent). `watching` is the same for the background
 * part, which waits for the network without holding the seat. While a thread sleeps the seat is
 * taken, or somebody is woken to take it, or it is guarded (waiters.h): a driver that leaves it
 * under a promise gives it back, then looks for the guard; who guards no more, then looks at it.
 *
 * Who forks takes the seat first, so that the child finds it in order: it adds SEAT_WANTED, which
 * keeps others from it, and has the driver leave it. The child begins with a free seat.
 */
#include "bmi/progress.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "bmi/background.h"
#include "bmi/context.h"
#include "bmi/log.h"
#include "bmi/methods.h"
#include "bmi/promise.h"
#include "bmi/settings.h"
#include "bmi/spin.h"
#include "bmi/task.h"
#include "bmi/timers.h"
#include "bmi/waiters.h"
#include "bmi/work.h"
#include "task/event.h"

enum { BATCH = 64, EPOLL_EVERY = 32, EPOLL_SELDOM = 4096 };
enum { SPIN_CLOCK_EVERY = 4 };
enum { SEAT_TAKEN = 1, SEAT_WANTED = 2, FORK_PATIENCE_NS = 1000000000 };

static struct {
    int epoll_fd, wake_fd, timer_fd;
    atomic_uint seat; /* SEAT_TAKEN, and SEAT_WANTED for each thread that is to fork */
    atomic_bool asleep, watching, wake_pending, fd_used;
    atomic_bool hooks_due; /* a task was queued that nobody but a hook will run */
    atomic_uint pass;
    /* the driver's */
    uint64_t watch_until_ns; /* the timer that the background, which watches, knows of */
    struct epoll_event batch[BATCH];
    int batch_count, batch_next;
    bool woke;          /* this pass has woken a thread that slept */
    struct wakes wakes; /* of this pass, yet to be woken */
    uint64_t now_ns;    /* when the clock was last looked at, nearly */
    uint64_t woken_ns;  /* when the last sleep ended */
    uint64_t passed_ns; /* when timers were looked at last, if there were any, */
    uint64_t others_ns; /* and what that was as the epoll set was asked last */
    uint64_t waited_ns; /* a wait has asked it, or slept on it, then or later, */
    unsigned waits;     /* and so many have not since, which took no look at the clock */
} progress = {.epoll_fd = -1, .wake_fd = -1, .timer_fd = -1};

static struct bmi_watch wake_watch, timer_watch;
static _Thread_local bool driving; /* this thread has the seat */

uint64_t bmi__monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int bmi__progress_fd(void)
{
    return progress.epoll_fd;
}

uint32_t bmi__progress_pass(void)
{
    return atomic_load_explicit(&progress.pass, memory_order_relaxed);
}

/* What was queued before can be seen by whoever is not seen asleep after. The thread sanitizer
 * knows no fences; any read-modify-write is one on the machines that it runs on. */
static void fence(void)
{
#ifdef __SANITIZE_THREAD__
    static atomic_int any;
    atomic_fetch_add_explicit(&any, 0, memory_order_relaxed);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

bool bmi__progress_asleep(void)
{
    fence();
    return atomic_load(&progress.asleep) || atomic_load(&progress.watching);
}

bool bmi__progress_driver_sleeps(void)
{
    return bmi__progress_driven() && atomic_load(&progress.asleep);
}

bool bmi__progress_driven(void)
{
    return atomic_load(&progress.seat) != 0;
}

/* As the driver: somebody is to fork. */
static bool seat_is_wanted(void)
{
    return atomic_load(&progress.seat) != SEAT_TAKEN;
}

/* ---- waking the driver ---------------------------------------------------------------------- */

static void wake_write(void)
{
    if (!atomic_exchange(&progress.wake_pending, true))
        eventfd_write(progress.wake_fd, 1);
}

/* The driver itself looks at everything before it sleeps or leaves the seat. */
void bmi__progress_kick(void)
{
    if (driving)
        return;
    if (bmi__progress_asleep() || atomic_load(&progress.fd_used))
        wake_write();
}

void bmi__progress_dirty(struct bmi_link *link)
{
    if (bmi__work_dirty(link))
        bmi__progress_kick();
}

static void wake_ready(struct bmi_watch *watch, uint32_t events)
{
    eventfd_t value;
    (void)events;
    eventfd_read(watch->fd, &value);
    atomic_store(&progress.wake_pending, false);
}

static void timer_ready(struct bmi_watch *watch, uint32_t events)
{
    uint64_t count;
    (void)events;
    ssize_t got = read(watch->fd, &count, sizeof count);
    (void)got; /* it only had to wake us */
}

void bmi__progress_fd_used(void)
{
    atomic_store(&progress.fd_used, true);
    wake_write();
}

/* Wakes whom what has just been done was for. By the driver, without any lock. */
static void wake_waiters(void)
{
    if (progress.wakes.count > 0)
        bmi__wakes_finish(&progress.wakes);
}

/* ---- watches -------------------------------------------------------------------------------- */

int bmi_method_watch_add(struct bmi_watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    return epoll_ctl(progress.epoll_fd, EPOLL_CTL_ADD, watch->fd, &event) < 0 ? -errno : 0;
}

void bmi_method_watch_remove(struct bmi_watch *watch)
{
    epoll_ctl(progress.epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    for (int i = progress.batch_next; i < progress.batch_count; i++)
        if (progress.batch[i].data.ptr == watch)
            progress.batch[i].data.ptr = NULL;
}

/* Waits for events (0: only looks) and runs their callbacks. Returns how many there were. */
static int events_run(int timeout_ms)
{
    int count = epoll_wait(progress.epoll_fd, progress.batch, BATCH, timeout_ms);
    progress.waits = 0;
    if (timeout_ms != 0) {
        atomic_store(&progress.asleep, false);
        progress.waited_ns = progress.woken_ns = bmi__monotonic_ns();
    }
    if (count < 0)
        return 0; /* a signal */
    progress.batch_count = count;
    for (int i = 0; i < count; i++) {
        progress.batch_next = i + 1;
        struct bmi_watch *watch = progress.batch[i].data.ptr;
        if (watch != NULL)
            watch->ready(watch, progress.batch[i].events);
        wake_waiters();
    }
    progress.batch_count = 0;
    return count;
}

/* ---- passes --------------------------------------------------------------------------------- */

/* What comes before and after the network is looked at. Returns whether there was anything. */
static bool chores(void)
{
    bool all = false;
    for (int i = 0; i < 16; i++) {
        bool any = bmi__work_deferred();
        if (!bmi__work_flush() && !any)
            break;
        all = true;
    }
    if (driving)
        wake_waiters();
    return all;
}

/* The descriptors that are likeliest to have something. Returns what was done. */
static int look(void)
{
    int events = bmi__methods_progress();
    wake_waiters();
    return events;
}

static void timers_run(void)
{
    progress.passed_ns = bmi__timers_run();
    wake_waiters();
}

static void timers_run_at(uint64_t now)
{
    if (now >= bmi__timers_next())
        timers_run();
}

/* Methods look once more as they arm. Returns whether the driver may sleep. */
static bool arm(void)
{
    bool armed = bmi__methods_arm();
    wake_waiters();
    return armed;
}

/* Only the driver writes the number: no need for an atomic addition. */
static unsigned pass_begin(void)
{
    unsigned number = atomic_load_explicit(&progress.pass, memory_order_relaxed) + 1;
    atomic_store_explicit(&progress.pass, number, memory_order_relaxed);
    return number;
}

/* Whether others than those who are likeliest to have something have waited for long: one of these
 * may send without end, frames that take long. */
static bool others_due(unsigned number)
{
    enum { OTHERS_NS = 100000 };
    return number % EPOLL_EVERY == 0 || progress.passed_ns > progress.others_ns + OTHERS_NS;
}

/* Looks without sleeping. The busiest descriptors are asked directly, the epoll set when they have
 * nothing, and every few times anyway. Returns whether there was anything. */
static bool pass(void)
{
    unsigned number = pass_begin();
    bool any = chores();
    int events = look();
    if (events == 0 || others_due(number)) {
        events += events_run(0);
        progress.others_ns = progress.passed_ns;
    }
    timers_run();
    if (!bmi__work_none())
        any = chores() || any;
    return any || events > 0;
}

/* A task was submitted that only a hook will run. The manager's lock is held. */
static void hook_wanted(struct bmi_task_sleeper *sleeper)
{
    (void)sleeper;
    atomic_store(&progress.hooks_due, true);
    wake_write();
}

/* Sleeps until something happens or the time is over, unless something is there already. Returns
 * whether a descriptor had something. */
static bool pass_asleep(struct waiter *waiter, uint64_t deadline_ns)
{
    struct bmi_task_sleeper hook = {.wake = hook_wanted};
    atomic_store(&progress.asleep, true);
    bool hooked = bmi_task_sleeper_arm(NULL, &hook);
    if (!hooked)
        atomic_store(&progress.hooks_due, true);
    bool idle = hooked && !waiter->ready(waiter) && bmi__work_none() && !seat_is_wanted();
    bool armed = idle && arm(), any = false;
    if (armed) {
        uint64_t now = bmi__monotonic_ns(), due = bmi__timers_next();
        if (due > deadline_ns)
            due = deadline_ns;
        uint64_t ms = due <= now ? 0 : (due - now + 999999) / 1000000;
        any = events_run(ms > 1000000 ? 1000000 : (int)ms) > 0;
        if (any)
            bmi__spin_learn(progress.woken_ns - now);
        bmi__core_was_taken(); /* what was before is over */
    }
    bmi_task_sleeper_disarm(NULL, &hook);
    atomic_store(&progress.asleep, false);
    pass_begin();
    if (idle && !armed)
        any = look() > 0; /* something is there already */
    timers_run();
    chores();
    return any;
}

/* ---- the seat ------------------------------------------------------------------------------- */

static bool seat_take(void)
{
    unsigned free = 0;
    driving = atomic_load(&progress.seat) == free;
    if (driving && bmi_one_thread())
        atomic_store_explicit(&progress.seat, SEAT_TAKEN, memory_order_relaxed);
    else if (driving)
        driving =
            atomic_compare_exchange_strong_explicit(&progress.seat, &free, SEAT_TAKEN,
                                                    memory_order_acquire, memory_order_relaxed);
    if (driving)
        bmi__promise_set(0);
    return driving;
}

static void seat_give_back(void)
{
    driving = false;
    if (bmi_one_thread())
        atomic_store_explicit(&progress.seat, 0, memory_order_relaxed);
    else if (atomic_fetch_sub(&progress.seat, SEAT_TAKEN) != SEAT_TAKEN)
        bmi__futex_wake(&progress.seat);
}

static void fd_timer_arm(void)
{
    uint64_t due = bmi__timers_next();
    struct itimerspec when = {0};
    if (due != UINT64_MAX) {
        when.it_value.tv_sec = (time_t)(due / 1000000000u);
        when.it_value.tv_nsec = (long)(due % 1000000000u) | 1;
    }
    timerfd_settime(progress.timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* Makes what comes while nobody drives known to who waits for the network's descriptor. */
static void seat_hand_over(void)
{
    if (atomic_load_explicit(&progress.fd_used, memory_order_relaxed))
        fd_timer_arm();
    bool earlier = atomic_load_explicit(&progress.watching, memory_order_relaxed) &&
                   bmi__timers_next() < progress.watch_until_ns;
    if (!arm() || !bmi__work_none() || earlier)
        wake_write();
}

/* The seat is free: wakes one sleeper to take it. Whoever was woken and goes without taking it,
 * since its time is over or what it waited for has come, offers it on. */
static void seat_offer(void)
{
    if (!bmi__waiters_wake_one() && bmi__background_on())
        bmi__background_seat_free();
}

static void seat_vacate(uint64_t promise_ns)
{
    if (bmi__background_on())
        bmi__background_turn_ends(progress.now_ns);
    if (atomic_load_explicit(&progress.fd_used, memory_order_relaxed) ||
        atomic_load_explicit(&progress.watching, memory_order_relaxed))
        seat_hand_over();
    bmi__promise_set(promise_ns);
    seat_give_back();
}

/* Gives the seat back: under a promise of that time, which keeps it for who comes next, or (0) for
 * one that sleeps. */
static void seat_leave(uint64_t promise_ns)
{
    seat_vacate(promise_ns);
    if (promise_ns == 0 || !bmi__waiters_guarded())
        seat_offer();
}

/* Leaves it to who has slept longest, and waits as one of those who sleep. */
static void seat_hand_down(struct waiter *waiter)
{
    seat_vacate(0);
    waiter->handed = bmi__waiters_hand_over(waiter);
    if (!waiter->handed)
        seat_offer();
}

void bmi__progress_notify(struct context *context, bmi_op_id_t op)
{
    /* The push before, and these loads, are sequentially consistent, as a waiter's enlisting and
     * its second look are. The driver itself looks again before it sleeps. */
    if (driving && bmi__waiters_asleep() == 0)
        return;
    if (driving) {
        progress.woke = bmi__waiters_notify(context, op, &progress.wakes) || progress.woke;
        return;
    }
    struct wakes wakes = {.count = 0};
    bmi__waiters_notify(context, op, &wakes);
    bmi__wakes_finish(&wakes);
}

/* ---- spinning ------------------------------------------------------------------------------- */

/* What a spin looks at when it has found nothing in its n-th turn: the descriptors, now and then.
 * That costs as much as thirty turns, and more: the next message finds little of what it needs in
 * the caches, is late, and so has the other side look at its own. A process of one thread, whose
 * messages all come by polling, does so seldom: counted over all passes, as no spin may be that
 * long. */
static void look_further(unsigned number)
{
    enum bmi__telling telling = bmi__methods_telling();
    if (telling == BMI__TELLS_LITTLE && bmi_one_thread()) {
        if (bmi__progress_pass() % EPOLL_SELDOM != 0)
            return;
        timers_run();
    } else if (telling != BMI__TELLS_ALL && number % EPOLL_EVERY != 0) {
        return;
    }
    events_run(0);
}

/* One turn of who waits and does not sleep. Returns whether the waiter is ready. */
static inline bool turn(struct waiter *waiter, unsigned number)
{
    pass_begin();
    chores();
    if (look() == 0)
        look_further(number);
    return waiter->ready(waiter);
}

/* One wait after another may end in its first turns, since somebody's next message is always there:
 * now and then one looks at all descriptors, and at timers, before. */
static void look_at_all(void)
{
    events_run(0);
    timers_run();
}

static void look_at_all_by(uint64_t now_ns)
{
    enum { OTHERS_NS = 1000000 };
    if (now_ns < progress.waited_ns + OTHERS_NS)
        return;
    progress.waited_ns = now_ns;
    look_at_all();
}

/* A few turns without a look at the clock, which takes longer than one, where messages come by
 * polling and it pays to wait for them so. Returns whether the waiter is ready. */
static bool glance(struct waiter *waiter)
{
    enum { GLANCES = 16, WAITS_MOST = 512 };
    if (bmi__methods_telling() != BMI__TELLS_LITTLE || !bmi_one_thread() ||
        bmi__setting(SETTING_SPIN) == 0 || bmi__spin.skip > 0 || bmi__spin.in_the_way)
        return false;
    if (++progress.waits > WAITS_MOST)
        look_at_all();
    for (unsigned i = 1; i <= GLANCES; i++) {
        if (turn(waiter, i)) {
            bmi__spin_paid();
            return true;
        }
    }
    return false;
}

/* Whether this driver wakes threads for their messages that all sleep on another CPU. That may be
 * the one that is to send the next: one of those had better drive. */
static bool misplaced(void)
{
    return progress.woke && bmi__waiters_crowd_elsewhere();
}

/* Polls for as long as that has paid lately, unless another thread wants this core. Returns whether
 * the waiter is ready. */
static bool spin(struct waiter *waiter, uint64_t start, uint64_t deadline_ns)
{
    if (!bmi__spin_worth_it(start))
        return false;
    uint64_t most = bmi__spin_most();
    uint64_t last = start, now = start, until = start + most;
    if (until > deadline_ns)
        until = deadline_ns;
    for (unsigned i = 1; now < until; i++) {
        if (turn(waiter, i)) {
            bmi__spin_paid();
            progress.now_ns = now;
            return true;
        }
        if (misplaced())
            return false;
        if (progress.woke) { /* another's message: it may be waiting for this core */
            progress.woke = false;
            bmi__promise_missed();
            bmi__spin_paid();
            sched_yield();
            last = now = bmi__monotonic_ns();
            until = now + most > deadline_ns ? deadline_ns : now + most;
            timers_run_at(now); /* others' messages may keep us here for long */
            continue;
        }
        if (bmi__spin.in_the_way)
            bmi__spin_yield();
        else if (i % SPIN_CLOCK_EVERY != 0)
            continue;
        now = bmi__monotonic_ns();
        if (seat_is_wanted())
            break;
        if (bmi__spin_interrupted(last, now))
            break;
        last = now;
    }
    return bmi__spin_failed();
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* The time, where it is not needed but by the background. */
static uint64_t turn_time(void)
{
    return bmi__background_on() ? bmi__monotonic_ns() : 0;
}

/* As the driver, until ready, the time is over, hooks have something to run, somebody is to fork,
 * or another had better drive. Returns whether it is ready. */
static bool drive(struct waiter *waiter, uint64_t start, uint64_t deadline_ns)
{
    bmi__waiters_driven_here();
    look_at_all_by(start);
    chores();
    progress.woke = false;
    if (waiter->ready(waiter) || spin(waiter, start, deadline_ns))
        return true;
    bool ready, lively = false;
    bmi__waiter_enlist(waiter, true);
    while (!(ready = waiter->ready(waiter)) && !atomic_load(&progress.hooks_due) &&
           !seat_is_wanted() && !misplaced()) {
        uint64_t now = bmi__monotonic_ns();
        if (now >= deadline_ns)
            break;
        if (!progress.woke && !lively) {
            lively = pass_asleep(waiter, deadline_ns);
            continue;
        }
        if (progress.woke)
            sched_yield();
        progress.woke = lively = false; /* there is traffic: the next message may be near */
        if ((ready = spin(waiter, now, deadline_ns)))
            break;
    }
    bmi__waiter_delist(waiter);
    progress.now_ns = turn_time();
    return ready;
}

/* As one of those who sleep: until ready, the time is over, or the seat is free and ours. */
static bool sleep_or_take_seat(struct waiter *waiter, uint64_t start, uint64_t deadline_ns)
{
    bool seat = false, time_left = true, handed = waiter->handed;
    waiter->handed = false;
    if (!handed)
        bmi__waiter_enlist(waiter, false);
    bool in_turn = bmi__promise_likely(start);
    if (!handed && in_turn && !bmi__waiters_guarded())
        bmi__waiter_guard(waiter); /* promises would be kept */
    while (!waiter->ready(waiter) && time_left && !(seat = !handed && seat_take())) {
        handed = false;
        time_left = bmi__promise_sleep(waiter, in_turn, deadline_ns);
    }
    bmi__waiter_delist(waiter);
    if (seat)
        progress.now_ns = turn_time();
    else if (!bmi__progress_driven())
        seat_offer();
    return seat;
}

/* Takes the seat for a caller. */
static bool seat_take_turn(uint64_t now_ns)
{
    if (!seat_take())
        return false;
    progress.now_ns = now_ns;
    if (bmi__background_on())
        bmi__background_turn_begins(now_ns);
    return true;
}

/* What waited for a hook, if anything. It runs without the seat: tasks may call test functions. */
static void hooks_run(void)
{
    if (!atomic_load(&progress.hooks_due))
        return;
    atomic_store(&progress.hooks_due, false);
    bmi_task_schedule(NULL);
}

/* One turn of a wait, as the driver (`seat`: it is that already) or asleep, until something has
 * happened. Returns whether the waiter is known to be ready. */
static bool wait_turn(struct waiter *waiter, bool seat, uint64_t start, uint64_t deadline_ns)
{
    bool ready = false;
    if (!seat) {
        seat = sleep_or_take_seat(waiter, start, deadline_ns);
        if (seat) {
            if (atomic_load_explicit(&waiter->offered, memory_order_relaxed))
                sched_yield(); /* who left it has a message to answer, perhaps on this core */
            start = bmi__monotonic_ns(); /* who has slept has not been kept from spinning */
        }
    }
    if (seat) {
        ready = drive(waiter, start, deadline_ns);
        if (!ready && misplaced())
            seat_hand_down(waiter);
        else
            seat_leave(ready ? bmi__promise_make() : 0);
    }
    if (!waiter->handed) /* as long as it is on the lists it can't wait for anything else */
        hooks_run();
    return ready;
}

void bmi__progress_wait(struct waiter *waiter, int max_idle_ms)
{
    bmi_task_schedule(NULL);
    if (max_idle_ms == 0) {
        bmi__progress_poll();
        return;
    }
    waiter->handed = bmi__promise_hand_on(waiter);
    uint64_t start = turn_time();
    bool seat = !waiter->handed && seat_take_turn(start);
    if (seat && glance(waiter)) {
        seat_leave(0);
        hooks_run();
        return;
    }
    if (start == 0)
        start = bmi__monotonic_ns();
    uint64_t deadline_ns = start + (uint64_t)max_idle_ms * 1000000u;
    /* Who leaves for hooks that another thread runs meanwhile goes on, too. */
    while (!wait_turn(waiter, seat, start, deadline_ns) &&
           (waiter->handed || (!waiter->ready(waiter) && bmi__monotonic_ns() < deadline_ns)))
        seat = false;
}

/* Who looks without waiting while a promise stands is likely to be who has made it, and about to
 * wait: once it need not. */
void bmi__progress_poll(void)
{
    if (bmi__promise_excuses()) {
        bmi__work_flush();
        return;
    }
    if (!seat_take_turn(turn_time()))
        return;
    pass();
    seat_leave(0);
}

void bmi__progress_catch_up(void)
{
    enum { PASSES = 4 };
    if (driving || !seat_take_turn(turn_time()))
        return; /* within a pass, or somebody else is at it */
    pass();
    for (int i = 0; i < PASSES; i++) {
        arm(); /* methods that poll look at descriptors then, or in the pass after it, only */
        if (!pass())
            break;
    }
    seat_leave(0);
}

void bmi__progress_chores(void)
{
    chores();
}

/* ---- for the background --------------------------------------------------------------------- */

enum bmi__watch bmi__progress_watch(uint64_t *until_ns)
{
    enum { PASSES = 64 };
    if (!seat_take())
        return BMI__WATCH_TAKEN;
    for (int i = 0; i < PASSES && pass(); i++)
        continue;
    atomic_store(&progress.watching, true);
    fence();
    bool quiet = bmi__work_none() && arm();
    *until_ns = bmi__timers_next();
    progress.watch_until_ns = *until_ns;
    seat_give_back();
    bmi__waiters_wake_one();
    return quiet ? BMI__WATCH_QUIET : BMI__WATCH_AGAIN;
}

void bmi__progress_watch_end(void)
{
    atomic_store(&progress.watching, false);
}

/* ---- fork ----------------------------------------------------------------------------------- */

static _Thread_local bool fork_has_seat;

/* Takes the seat before all who have not got it yet. Returns false if the driver does not leave it:
 * it is us, or waits for what we hold. */
static bool seat_take_to_fork(void)
{
    if (driving)
        return false;
    uint64_t deadline_ns = bmi__monotonic_ns() + FORK_PATIENCE_NS;
    unsigned seat = atomic_fetch_add(&progress.seat, SEAT_WANTED) + SEAT_WANTED;
    if (seat & SEAT_TAKEN) {
        atomic_store(&progress.hooks_due, true); /* the driver leaves the seat for them */
        wake_write();
    }
    for (;;) {
        while ((seat & SEAT_TAKEN) == 0)
            if (atomic_compare_exchange_weak(&progress.seat, &seat, seat | SEAT_TAKEN))
                return true;
        if (bmi__monotonic_ns() >= deadline_ns)
            break;
        bmi__futex_wait(&progress.seat, seat, deadline_ns);
        seat = atomic_load(&progress.seat);
    }
    if (atomic_fetch_sub(&progress.seat, SEAT_WANTED) == SEAT_WANTED)
        seat_offer(); /* it became free just now: who was offered it has seen us */
    return false;
}

void bmi__progress_before_fork(void)
{
    fork_has_seat = seat_take_to_fork();
    bmi__waiters_before_fork();
}

void bmi__progress_after_fork_parent(void)
{
    bmi__waiters_after_fork_parent();
    if (!fork_has_seat)
        return;
    atomic_fetch_sub(&progress.seat, SEAT_WANTED);
    seat_give_back();
    seat_offer();
}

/* Who drove and who waited is not here, but for this thread. */
void bmi__progress_after_fork_child(void)
{
    bmi__waiters_after_fork_child();
    bmi__promise_reset();
    atomic_store(&progress.seat, driving ? SEAT_TAKEN : 0);
    if (driving)
        return;
    atomic_store(&progress.asleep, false);
    atomic_store(&progress.hooks_due, false);
    progress.batch_count = 0;
    progress.wakes.count = 0;
}

/* ---- start and stop ------------------------------------------------------------------------- */

int bmi__progress_start(void)
{
    progress.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    progress.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    progress.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    wake_watch = (struct bmi_watch){.ready = wake_ready, .fd = progress.wake_fd};
    timer_watch = (struct bmi_watch){.ready = timer_ready, .fd = progress.timer_fd};
    if (progress.epoll_fd < 0 || progress.wake_fd < 0 || progress.timer_fd < 0 ||
        bmi_method_watch_add(&wake_watch, EPOLLIN) < 0 ||
        bmi_method_watch_add(&timer_watch, EPOLLIN) < 0) {
        int error = errno;
        bmi__progress_stop();
        return -error;
    }
    bmi__spin_reset();
    bmi__promise_reset();
    return 0;
}

void bmi__progress_stop(void)
{
    int *fds[] = {&progress.epoll_fd, &progress.wake_fd, &progress.timer_fd};
    for (int i = 0; i < 3; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
    bmi__waiters_stop();
    bmi__work_drop();
    atomic_store(&progress.fd_used, false);
    atomic_store(&progress.watching, false);
    atomic_store(&progress.hooks_due, false);
    atomic_store(&progress.wake_pending, false);
}
