/* SPDX-License-Identifier: BSD-3-Clause
 *
 * progress.c - the driver's seat, the passes it makes, and the threads that sleep. See progress.h.
 *
 * Rules. `seat` is taken by exchange and given back by store; all that only the driver touches
 * (batch, spin, timers) needs no lock beyond it. `lock` guards the list of waiters and their flags and
 * is innermost. A sleeper misses nothing since it looks again after it is on the list; the driver
 * misses nothing since it sets `asleep`, then looks at all queues again, then sleeps, and whoever
 * queues something looks at `asleep` afterwards (both sequentially consistent).
 */
#include "bmi/progress.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "bmi/context.h"
#include "bmi/log.h"
#include "bmi/methods.h"
#include "bmi/settings.h"
#include "bmi/timers.h"

enum { BATCH = 64, EPOLL_EVERY = 32, SPIN_SKIP_MOST = 255, SPIN_CLOCK_EVERY = 4 };
enum { PREEMPTED_NS = 100000, SPIN_PAUSE_NS = 10000000 };

static struct {
    int epoll_fd, wake_fd, timer_fd;
    atomic_bool seat, asleep, wake_pending, fd_used;
    atomic_uint pass, unexpected_waiters;
    atomic_uint sleepers; /* waiters that are not the driver */
    _Atomic(struct bmi_link *) dirty;
    _Atomic(struct bmi_deferred *) deferred;
    pthread_mutex_t lock;
    struct waiter *first, *last; /* lock: all that sleep, and the driver if it may */
    /* the driver's */
    struct epoll_event batch[BATCH];
    int batch_count, batch_next;
    uint64_t spin_paused_until_ns;
    unsigned spin_skip, spin_backoff; /* waits to go without spinning; grows as spinning fails */
} progress = {.epoll_fd = -1, .wake_fd = -1, .timer_fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER};

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

/* What was queued before can be seen by whoever is not seen asleep after. The thread sanitizer knows
 * no fences; any read-modify-write is one on the machines that it runs on. */
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
    return atomic_load(&progress.asleep);
}

unsigned bmi__progress_unexpected_waiters(void)
{
    return atomic_load(&progress.unexpected_waiters);
}

/* ---- waking the driver ---------------------------------------------------------------------- */

static void wake_write(void)
{
    if (!atomic_exchange(&progress.wake_pending, true))
        eventfd_write(progress.wake_fd, 1);
}

void bmi__progress_kick(void)
{
    if (bmi__progress_asleep() || atomic_load(&progress.fd_used))
        wake_write();
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
    progress.batch_count = count;
    for (int i = 0; i < count; i++) {
        progress.batch_next = i + 1;
        struct bmi_watch *watch = progress.batch[i].data.ptr;
        if (watch != NULL)
            watch->ready(watch, progress.batch[i].events);
    }
    progress.batch_count = 0;
    return count;
}

/* ---- deferred calls and dirty links --------------------------------------------------------- */

void bmi_method_defer(struct bmi_deferred *deferred)
{
    if (atomic_exchange(&deferred->pending, true))
        return;
    struct bmi_deferred *first = atomic_load(&progress.deferred);
    do
        atomic_store_explicit(&deferred->next, first, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&progress.deferred, &first, deferred));
    bmi__progress_kick();
}

static bool deferred_run(void)
{
    if (atomic_load(&progress.deferred) == NULL)
        return false;
    struct bmi_deferred *list = atomic_exchange(&progress.deferred, NULL);
    bool any = list != NULL;
    while (list != NULL) {
        struct bmi_deferred *next = atomic_load_explicit(&list->next, memory_order_relaxed);
        atomic_store(&list->pending, false);
        list->run(list);
        list = next;
    }
    return any;
}

void bmi__progress_dirty(struct bmi_link *link)
{
    if (atomic_load(&link->dirty) || atomic_exchange(&link->dirty, true))
        return;
    bmi_link_ref(link);
    struct bmi_link *first = atomic_load(&progress.dirty);
    do
        atomic_store_explicit(&link->dirty_next, first, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&progress.dirty, &first, link));
    if (!driving)
        bmi__progress_kick();
}

static bool dirty_flush(void)
{
    if (atomic_load(&progress.dirty) == NULL)
        return false;
    struct bmi_link *link = atomic_exchange(&progress.dirty, NULL);
    bool any = link != NULL;
    while (link != NULL) {
        struct bmi_link *next = atomic_load_explicit(&link->dirty_next, memory_order_relaxed);
        atomic_store(&link->dirty, false);
        link->method->flush(link);
        bmi_link_unref(link);
        link = next;
    }
    return any;
}

static bool queues_empty(void)
{
    return atomic_load(&progress.dirty) == NULL && atomic_load(&progress.deferred) == NULL;
}

/* ---- passes --------------------------------------------------------------------------------- */

/* What comes before and after the network is looked at. */
static void chores(void)
{
    for (int i = 0; i < 16; i++) {
        bool any = deferred_run();
        if (!dirty_flush() && !any)
            return;
    }
}

/* Only the driver writes the number: no need for an atomic addition. */
static unsigned pass_begin(void)
{
    unsigned number = atomic_load_explicit(&progress.pass, memory_order_relaxed) + 1;
    atomic_store_explicit(&progress.pass, number, memory_order_relaxed);
    return number;
}

/* Looks without sleeping. The busiest descriptors are asked directly, the epoll set when they have
 * nothing, and every few times anyway. */
static void pass(void)
{
    unsigned number = pass_begin();
    chores();
    int events = bmi__methods_progress();
    if (events == 0 || number % EPOLL_EVERY == 0)
        events_run(0);
    bmi__timers_run();
    if (!queues_empty())
        chores();
}

/* Sleeps until something happens or the time is over, unless something is there already. */
static void pass_asleep(struct waiter *waiter, uint64_t deadline_ns)
{
    atomic_store(&progress.asleep, true);
    bool idle = !waiter->ready(waiter) && queues_empty(), armed = idle && bmi__methods_arm();
    if (armed) {
        uint64_t now = bmi__monotonic_ns(), due = bmi__timers_next();
        if (due > deadline_ns)
            due = deadline_ns;
        uint64_t ms = due <= now ? 0 : (due - now + 999999) / 1000000;
        events_run(ms > 1000000 ? 1000000 : (int)ms);
    }
    atomic_store(&progress.asleep, false);
    pass_begin();
    if (idle && !armed)
        bmi__methods_progress(); /* something is there already */
    bmi__timers_run();
    chores();
}

/* ---- the seat ------------------------------------------------------------------------------- */

static bool seat_take(void)
{
    driving = !atomic_load(&progress.seat) &&
              !atomic_exchange_explicit(&progress.seat, true, memory_order_acquire);
    return driving;
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

/* The seat is free: wakes one sleeper to take it. Whoever was woken and goes without taking it, since
 * its time is over or what it waited for has come, offers it on. */
static void seat_offer(void)
{
    if (atomic_load(&progress.sleepers) == 0)
        return;
    pthread_mutex_lock(&progress.lock);
    struct waiter *waiter = progress.first;
    while (waiter != NULL && (waiter->signalled || waiter->driving))
        waiter = waiter->next;
    if (waiter != NULL) {
        waiter->signalled = true;
        pthread_cond_signal(&waiter->wake);
    }
    pthread_mutex_unlock(&progress.lock);
}

/* Gives the seat back. */
static void seat_leave(void)
{
    if (atomic_load_explicit(&progress.fd_used, memory_order_relaxed)) {
        fd_timer_arm();
        if (!queues_empty() || !bmi__methods_arm())
            wake_write();
    }
    driving = false;
    atomic_store(&progress.seat, false);
    seat_offer();
}

/* ---- waiters -------------------------------------------------------------------------------- */

static void waiter_enlist(struct waiter *waiter, bool as_driver)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&waiter->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    waiter->signalled = false;
    waiter->driving = as_driver;
    pthread_mutex_lock(&progress.lock);
    waiter->next = NULL;
    waiter->previous = progress.last;
    if (progress.last != NULL)
        progress.last->next = waiter;
    else
        progress.first = waiter;
    progress.last = waiter;
    if (!as_driver)
        atomic_fetch_add(&progress.sleepers, 1);
    atomic_fetch_add(waiter->context != NULL ? &waiter->context->waiters
                                             : &progress.unexpected_waiters, 1);
    pthread_mutex_unlock(&progress.lock);
}

static void waiter_delist(struct waiter *waiter)
{
    pthread_mutex_lock(&progress.lock);
    if (waiter->previous != NULL)
        waiter->previous->next = waiter->next;
    else
        progress.first = waiter->next;
    if (waiter->next != NULL)
        waiter->next->previous = waiter->previous;
    else
        progress.last = waiter->previous;
    if (!waiter->driving)
        atomic_fetch_sub(&progress.sleepers, 1);
    atomic_fetch_sub(waiter->context != NULL ? &waiter->context->waiters
                                             : &progress.unexpected_waiters, 1);
    pthread_mutex_unlock(&progress.lock);
    pthread_cond_destroy(&waiter->wake);
}

static void waiter_signal_locked(struct waiter *waiter)
{
    waiter->signalled = true;
    if (waiter->driving)
        bmi__progress_kick();
    else
        pthread_cond_signal(&waiter->wake);
}

/* Who is to be woken: every thread that tests this operation, and one that takes any. */
static void notify_locked(struct context *context, bmi_op_id_t op)
{
    bool any_woken = false;
    for (struct waiter *waiter = progress.first; waiter != NULL; waiter = waiter->next) {
        if (waiter->context != context)
            continue;
        if (waiter->op == WAITER_SOME || (waiter->op != 0 && waiter->op == op))
            waiter_signal_locked(waiter);
        if (waiter->op == 0 && !any_woken && (waiter->driving || !waiter->signalled)) {
            waiter_signal_locked(waiter);
            any_woken = true;
        }
    }
}

/* Threads that test a context, and are to know of an unexpected message, and the reverse. */
static void notify_others_locked(struct context *context)
{
    for (struct waiter *waiter = progress.first; waiter != NULL; waiter = waiter->next)
        if ((waiter->context == NULL) != (context == NULL) && waiter->op == 0)
            waiter_signal_locked(waiter);
}

void bmi__progress_notify(struct context *context, bmi_op_id_t op)
{
    /* The push before, and these loads, are sequentially consistent, as a waiter's enlisting and its
     * second look are. The driver itself looks again before it sleeps. */
    if (driving && atomic_load(&progress.sleepers) == 0)
        return;
    bool direct = atomic_load(context != NULL ? &context->waiters : &progress.unexpected_waiters) > 0;
    bool others = context == NULL ? !direct
                                  : !direct && atomic_load(&progress.unexpected_waiters) > 0;
    if (!direct && !others)
        return;
    pthread_mutex_lock(&progress.lock);
    if (direct)
        notify_locked(context, op);
    if (others)
        notify_others_locked(context);
    pthread_mutex_unlock(&progress.lock);
}

/* Sleeps until signalled or the time is over. Returns false when it is over. */
static bool waiter_sleep(struct waiter *waiter, uint64_t deadline_ns)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    int status = 0;
    pthread_mutex_lock(&progress.lock);
    while (!waiter->signalled && status == 0)
        status = pthread_cond_timedwait(&waiter->wake, &progress.lock, &until);
    waiter->signalled = false;
    pthread_mutex_unlock(&progress.lock);
    return status == 0;
}

/* ---- spinning ------------------------------------------------------------------------------- */

/* Spinning pays if what is waited for comes while we spin. Where it fails, because the time is long or
 * because whoever is to send wants this core, it is left out more and more often. */
static bool spin_worth_it(uint64_t most_ns, uint64_t now)
{
    if (most_ns == 0 || now < progress.spin_paused_until_ns)
        return false;
    if (progress.spin_skip == 0)
        return true;
    progress.spin_skip--;
    return false;
}

static bool spin_failed(void)
{
    progress.spin_backoff = progress.spin_backoff * 2 + 1;
    if (progress.spin_backoff > SPIN_SKIP_MOST)
        progress.spin_backoff = SPIN_SKIP_MOST;
    progress.spin_skip = progress.spin_backoff;
    return false;
}

/* Polls for as long as that has paid lately. A pass that took very long means that another thread
 * wanted this core: then no spinning for a while. Returns whether the waiter is ready. */
static bool spin(struct waiter *waiter, uint64_t start, uint64_t deadline_ns)
{
    uint64_t most = (uint64_t)bmi__setting(SETTING_SPIN) * 1000;
    if (!spin_worth_it(most, start))
        return false;
    uint64_t last = start, now = start, until = start + most;
    if (until > deadline_ns)
        until = deadline_ns;
    for (unsigned i = 1; now < until; i++) {
        pass_begin();
        chores();
        if (bmi__methods_progress() == 0 && (i % EPOLL_EVERY == 0 || !bmi__methods_poll()))
            events_run(0);
        if (waiter->ready(waiter)) {
            progress.spin_backoff = 0;
            return true;
        }
        if (i % SPIN_CLOCK_EVERY != 0)
            continue;
        now = bmi__monotonic_ns();
        if (now - last > PREEMPTED_NS) {
            progress.spin_paused_until_ns = now + SPIN_PAUSE_NS;
            break;
        }
        last = now;
    }
    return spin_failed();
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* As the driver, until ready or the time is over. */
static void drive(struct waiter *waiter, uint64_t start, uint64_t deadline_ns)
{
    chores();
    if (waiter->ready(waiter) || spin(waiter, start, deadline_ns))
        return;
    waiter_enlist(waiter, true);
    while (!waiter->ready(waiter)) {
        uint64_t now = bmi__monotonic_ns();
        if (now >= deadline_ns)
            break;
        pass_asleep(waiter, deadline_ns);
    }
    waiter_delist(waiter);
}

/* As one of those who sleep: until ready, the time is over, or the seat is free and ours. */
static bool sleep_or_take_seat(struct waiter *waiter, uint64_t deadline_ns)
{
    bool seat = false, time_left = true;
    waiter_enlist(waiter, false);
    while (!waiter->ready(waiter) && time_left && !(seat = seat_take()))
        time_left = waiter_sleep(waiter, deadline_ns);
    waiter_delist(waiter);
    if (!seat && !atomic_load(&progress.seat))
        seat_offer();
    return seat;
}

void bmi__progress_wait(struct waiter *waiter, int max_idle_ms)
{
    bool seat = seat_take();
    if (max_idle_ms == 0) {
        if (seat) {
            pass();
            seat_leave();
        }
        return;
    }
    uint64_t start = bmi__monotonic_ns();
    uint64_t deadline_ns = start + (uint64_t)max_idle_ms * 1000000u;
    if (!seat)
        seat = sleep_or_take_seat(waiter, deadline_ns);
    if (seat) {
        drive(waiter, start, deadline_ns);
        seat_leave();
    }
}

void bmi__progress_poll(void)
{
    if (!seat_take())
        return;
    pass();
    seat_leave();
}

void bmi__progress_chores(void)
{
    chores();
}

static bool has_ready(struct waiter *waiter)
{
    return bmi__context_has(waiter->context);
}

void bmi__progress_wait_any(struct context *context, int max_idle_ms)
{
    struct waiter waiter = {.ready = has_ready, .context = context, .op = WAITER_SOME};
    bmi__progress_wait(&waiter, max_idle_ms);
}

static bool drain_ready(struct waiter *waiter)
{
    bool (*busy)(void) = *(bool (**)(void))waiter->argument;
    return !busy();
}

void bmi__progress_drain(bool (*busy)(void), int64_t ms)
{
    struct waiter waiter = {.ready = drain_ready, .argument = &busy, .op = -1};
    if (!busy() || ms == 0)
        return;
    bmi__progress_wait(&waiter, (int)ms);
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
    progress.spin_paused_until_ns = 0;
    progress.spin_skip = progress.spin_backoff = 0;
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
    for (struct bmi_link *link = atomic_exchange(&progress.dirty, NULL), *next; link != NULL;
         link = next) {
        next = atomic_load(&link->dirty_next);
        bmi_link_unref(link);
    }
    for (struct bmi_deferred *one = atomic_exchange(&progress.deferred, NULL); one != NULL;
         one = atomic_load(&one->next))
        atomic_store(&one->pending, false);
    atomic_store(&progress.fd_used, false);
    atomic_store(&progress.wake_pending, false);
}
