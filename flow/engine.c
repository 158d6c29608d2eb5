/* SPDX-License-Identifier: BSD-3-Clause
 *
 * engine.c - shared by all flows: the contexts that their operations are posted to, and the polling
 * of these contexts.
 *
 * One thread at a time takes completions out and gives them to their flows: `wanted` counts the
 * requests to poll; the thread that makes it 1 polls, or submits the task that polls. Requests come
 * from threads that wait for flows, and from hooks of the two contexts, so that flows continue in
 * the background if the task manager has workers.
 *
 * Tasks may open and close contexts, and wait for flows or for other such tasks. So no task runs
 * within a poll, since all other threads rely on its end: its test calls, posts and steps run none
 * (bmi__tasks_hold). A waiting thread runs tasks before and after the poll.
 * - A thread that polls itself waits on an open context, which keeps the two contexts open, and
 *   holds no lock.
 * - The poll task has no context of its own: it holds `in_use`, which the thread that closes the
 *   last context takes.
 * - The last close takes its resources out of the engine under `life`, and ends them without a
 *   lock, since that waits, and runs tasks. New contexts may be open by then. Locks: `life`, then
 *   `in_use`; `times_lock`, which guards the list of flows with a deadline, and `event_lock` are
 *   innermost.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "bmi/base/clock.h"
#include "bmi/base/error.h"
#include "bmi/progress/progress.h"
#include "bmi/progress/wakeup.h"
#include "bmi/state/context.h"
#include "flow/internal.h"
#include "task/internal.h"

enum { BATCH = 32 };

/* How BMI's poller watches the storage; exists as long as the network's context. */
struct storage_watch {
    struct bmi_watch watch;
    struct bmi_deferred removal;
    struct context *context; /* the network's: woken when the watch has been removed */
    atomic_bool removed;
};

static void timer_expired(struct bmi_timer *timer);

static struct {
    pthread_mutex_t life;
    unsigned users;                 /* life: open flow contexts */
    pthread_mutex_t in_use;         /* held by the poll task */
    bool open;                      /* life and in_use to write: the poll task may use contexts */
    bmi_trove_context_id_t storage; /* life to write */
    _Atomic bmi_context_id network; /* life to write; 0: not open */
    atomic_uint wanted;             /* 1 until the task is prepared */
    atomic_uint events, waiting;    /* events: count of wake-ups; waiting: number of threads in
                                     BMI's wait, which poll after it */
    atomic_bool fd_used;            /* a program polls a context's descriptor */
    pthread_mutex_t event_lock;
    atomic_bool signalled; /* event_fd is readable; event_lock to write */
    struct bmi_task task;
    bool prepared;               /* life */
    struct context *context;     /* life: the network's, while it is open */
    struct storage_watch *watch; /* life: the same */
    pthread_mutex_t times_lock;
    struct flow *timed;       /* times_lock */
    _Atomic uint64_t next_ns; /* the earliest deadline; UINT64_MAX: none; times_lock to write */
    struct bmi_timer timer;   /* set to next_ns, as timer_fd */
    pthread_mutex_t fds_lock;
    int epoll_fd, timer_fd, event_fd; /* fds_lock until created, then constant */
} engine = {.life = PTHREAD_MUTEX_INITIALIZER,
            .in_use = PTHREAD_MUTEX_INITIALIZER,
            .times_lock = PTHREAD_MUTEX_INITIALIZER,
            .fds_lock = PTHREAD_MUTEX_INITIALIZER,
            .event_lock = PTHREAD_MUTEX_INITIALIZER,
            .wanted = 1,
            .next_ns = UINT64_MAX,
            .timer = {.expired = timer_expired},
            .epoll_fd = -1,
            .timer_fd = -1,
            .event_fd = -1};

/* ---- deadlines ------------------------------------------------------------------------------- */

/* For threads that wait in BMI, and for progress in the background. */
static void network_timer_set_locked(uint64_t due)
{
    uint64_t now = bmi__monotonic_ns();
    if (due == UINT64_MAX)
        bmi_method_timer_clear(&engine.timer);
    else
        bmi_method_timer_set(&engine.timer, due <= now ? 0 : (due - now + 999999) / 1000000);
}

static void timer_set_locked(uint64_t due)
{
    struct itimerspec when = {0};
    atomic_store(&engine.next_ns, due);
    if (due != UINT64_MAX) {
        when.it_value.tv_sec = (time_t)(due / 1000000000u);
        when.it_value.tv_nsec = (long)(due % 1000000000u);
    }
    timerfd_settime(engine.timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
    network_timer_set_locked(due);
}

void bmi__engine_time(struct flow *flow)
{
    flow->deadline_ns = bmi__monotonic_ns() + (uint64_t)flow->what.timeout_ms * 1000000;
    pthread_mutex_lock(&engine.times_lock);
    flow->next_timed = engine.timed;
    flow->timed_link = &engine.timed;
    if (engine.timed != NULL)
        engine.timed->timed_link = &flow->next_timed;
    engine.timed = flow;
    if (flow->deadline_ns < engine.next_ns)
        timer_set_locked(flow->deadline_ns);
    pthread_mutex_unlock(&engine.times_lock);
}

static void untime_locked(struct flow *flow)
{
    *flow->timed_link = flow->next_timed;
    if (flow->next_timed != NULL)
        flow->next_timed->timed_link = flow->timed_link;
    flow->timed_link = NULL;
}

void bmi__engine_untime(struct flow *flow)
{
    pthread_mutex_lock(&engine.times_lock);
    if (flow->timed_link != NULL)
        untime_locked(flow);
    pthread_mutex_unlock(&engine.times_lock);
}

/* No flow is left. */
static void times_end(void)
{
    pthread_mutex_lock(&engine.times_lock);
    timer_set_locked(UINT64_MAX);
    pthread_mutex_unlock(&engine.times_lock);
}

/* Ends flows whose time is over; a flow leaves the list before it is freed. */
static void times_run(void)
{
    if (atomic_load(&engine.next_ns) == UINT64_MAX ||
        bmi__monotonic_ns() < atomic_load(&engine.next_ns))
        return;
    uint64_t now = bmi__monotonic_ns(), next = UINT64_MAX;
    pthread_mutex_lock(&engine.times_lock);
    for (struct flow *flow = engine.timed, *after; flow != NULL; flow = after) {
        after = flow->next_timed;
        if (flow->deadline_ns <= now) {
            untime_locked(flow);
            bmi__flow_kill(flow, -BMI_ETIMEDOUT);
        } else if (flow->deadline_ns < next) {
            next = flow->deadline_ns;
        }
    }
    timer_set_locked(next);
    pthread_mutex_unlock(&engine.times_lock);
}

/* ---- polling --------------------------------------------------------------------------------- */

static void network_take(void)
{
    bmi_op_id_t ops[BATCH];
    bmi_error_code_t errors[BATCH];
    bmi_size_t actuals[BATCH];
    void *chunks[BATCH];
    int count = BATCH;
    while (engine.network != 0 && count == BATCH &&
           BMI_testcontext(BATCH, ops, &count, errors, actuals, chunks, 0, engine.network) > 0)
        for (int i = 0; i < count; i++)
            bmi__flow_arrived(chunks[i], errors[i], actuals[i]);
}

/* Until a test call reports nothing: only such a call polls io_uring. */
static void storage_take(void)
{
    bmi_op_id_t ops[BATCH];
    bmi_error_code_t errors[BATCH];
    bmi_size_t actuals[BATCH];
    void *chunks[BATCH];
    int count;
    while (bmi_trove_testcontext(BATCH, ops, &count, errors, actuals, chunks, 0, engine.storage) >
           0)
        for (int i = 0; i < count; i++)
            bmi__flow_arrived(chunks[i], errors[i], actuals[i]);
}

/* Called by the one thread that made `wanted` 1, or by the task that it submitted. */
static void poll_run(void)
{
    unsigned seen;
    bmi__tasks_hold();
    do {
        seen = atomic_load(&engine.wanted);
        network_take();
        storage_take();
        times_run();
    } while (!atomic_compare_exchange_strong(&engine.wanted, &seen, 0));
    bmi__tasks_release();
}

static void event_signal(void)
{
    if (atomic_load(&engine.signalled))
        return; /* the thread that clears it checks afterwards */
    pthread_mutex_lock(&engine.event_lock);
    if (!atomic_exchange(&engine.signalled, true))
        eventfd_write(engine.event_fd, 1);
    pthread_mutex_unlock(&engine.event_lock);
}

void bmi__engine_task_waits(void)
{
    if (atomic_load(&engine.fd_used))
        event_signal();
}

/* Call it before the check of the sources that the event stands for. */
static void event_clear(void)
{
    eventfd_t value;
    if (!atomic_load(&engine.signalled))
        return;
    pthread_mutex_lock(&engine.event_lock);
    if (atomic_exchange(&engine.signalled, false))
        eventfd_read(engine.event_fd, &value);
    pthread_mutex_unlock(&engine.event_lock);
}

/* Called by a thread that tests or waits, which runs the flows' steps itself. Tasks that it runs
 * may have left further ones; a program that waits for a descriptor calls again for those. */
void bmi__engine_poll(void)
{
    event_clear();
    if (atomic_fetch_add(&engine.wanted, 1) == 0) {
        bmi__flow_steps_begin();
        poll_run();
        bmi__flow_steps_end();
    }
    if (atomic_load(&engine.fd_used) && bmi_task_schedule(NULL) > 0)
        event_signal();
}

/* A worker leaves steps to the workers near them; a hook runs them, since its thread may sleep
   next.
 */
static enum bmi_task_status poll_task(struct bmi_task *task, void *argument)
{
    (void)task, (void)argument;
    if (bmi__worker_self(bmi_task_manager_default()) == NULL)
        bmi__flow_steps_begin();
    pthread_mutex_lock(&engine.in_use);
    if (engine.open)
        poll_run();
    else
        atomic_store(&engine.wanted, 0);
    pthread_mutex_unlock(&engine.in_use);
    bmi__flow_steps_end();
    return BMI_TASK_DONE;
}

/* The manager stops before the task has run: no thread polls. */
static enum bmi_task_status poll_cancelled(struct bmi_task *task, void *argument)
{
    (void)task, (void)argument;
    atomic_store(&engine.wanted, 0);
    return BMI_TASK_DONE;
}

/* A completion has come. A thread that polls already sees it; otherwise the task takes it, run by a
 * worker, by a waiting thread, or by a program that waits for a descriptor of flow's. */
static void poll_wanted(void *argument)
{
    (void)argument;
    if (atomic_load(&engine.waiting) > 0) { /* it polls when it wakes, for any reason */
        atomic_fetch_add(&engine.events,
                         1); /* it has read the count before it counted itself as waiting */
        bmi__engine_wake();
        return;
    }
    if (atomic_fetch_add(&engine.wanted, 1) != 0)
        return;
    if (bmi_task_submit(&engine.task) != 0)
        atomic_store(&engine.wanted, 0);
    bmi__engine_task_waits();
}

static void timer_expired(struct bmi_timer *timer)
{
    (void)timer;
    poll_wanted(NULL);
}

static void network_hook(void *argument, bool unexpected)
{
    if (!unexpected)
        poll_wanted(argument);
}

/* ---- contexts -------------------------------------------------------------------------------- */

static int fd_watch(int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return fd >= 0 && epoll_ctl(engine.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

static int fds_make_locked(void)
{
    if (engine.timer_fd < 0)
        engine.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (engine.event_fd < 0)
        engine.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (engine.timer_fd < 0 || engine.event_fd < 0)
        return -errno;
    engine.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (engine.epoll_fd < 0)
        return -errno;
    int result = fd_watch(engine.timer_fd);
    if (result == 0)
        result = fd_watch(engine.event_fd);
    if (result != 0) { /* the next call creates it again */
        close(engine.epoll_fd);
        engine.epoll_fd = -1;
    }
    return result;
}

int bmi__engine_source(void)
{
    pthread_mutex_lock(&engine.fds_lock);
    int result = engine.epoll_fd < 0 ? fds_make_locked() : 0;
    pthread_mutex_unlock(&engine.fds_lock);
    return result < 0 ? result : engine.epoll_fd;
}

static int storage_open_locked(void)
{
    int result = bmi_trove_context_open(&engine.storage);
    if (result != 0)
        return result;
    int fd = bmi_trove_context_fd(engine.storage);
    result = fd < 0 ? fd : bmi__error(fd_watch(fd));
    if (result == 0)
        result = bmi_trove_context_notify(engine.storage, poll_wanted, NULL);
    if (result != 0)
        bmi_trove_context_close(engine.storage);
    return result;
}

static int task_ready_locked(void)
{
    if (engine.prepared)
        return 0;
    int result = bmi_task_prepare(&engine.task, NULL,
                                  &(struct bmi_task_attributes){.function = poll_task,
                                                                .cancelled = poll_cancelled});
    engine.prepared = result == 0;
    if (result == 0)
        atomic_store(&engine.wanted, 0);
    return result;
}

static void open_set_locked(bool open)
{
    pthread_mutex_lock(&engine.in_use);
    engine.open = open;
    pthread_mutex_unlock(&engine.in_use);
}

int bmi__engine_open(void)
{
    int result = bmi__engine_source();
    if (result < 0)
        return bmi__error(result);
    result = bmi__error(bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY));
    if (result != 0)
        return result;
    pthread_mutex_lock(&engine.life);
    result = bmi__error(task_ready_locked());
    if (result == 0 && engine.users == 0 && (result = storage_open_locked()) == 0)
        open_set_locked(true);
    engine.users += result == 0;
    pthread_mutex_unlock(&engine.life);
    if (result != 0)
        bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
    return result;
}

/* ---- the network ----------------------------------------------------------------------------- */

/* The network's set of descriptors, not the context's own: that one is readable also while
 * unexpected messages wait, which flows do not take. */
static void network_fd_use(void)
{
    pthread_mutex_lock(&engine.fds_lock);
    if (atomic_load(&engine.fd_used) && engine.network != 0) {
        bmi__progress_fd_used();
        fd_watch(bmi__progress_fd()); /* EEXIST: it is in the set already */
    }
    pthread_mutex_unlock(&engine.fds_lock);
}

/* It may stay readable while no thread polls the network, and flows no longer do. */
static void network_fd_leave(void)
{
    pthread_mutex_lock(&engine.fds_lock);
    epoll_ctl(engine.epoll_fd, EPOLL_CTL_DEL, bmi__progress_fd(), NULL); /* ENOENT: it was not in
                                                                            the set */
    pthread_mutex_unlock(&engine.fds_lock);
}

void bmi__engine_fd_used(void)
{
    atomic_store(&engine.fd_used, true);
    network_fd_use();
    event_signal(); /* tasks may wait already */
}

static void storage_readable(struct bmi_watch *watch, uint32_t events)
{
    (void)watch, (void)events;
    poll_wanted(NULL);
}

/* BMI's poller watches the storage's descriptor: so one wait covers both. It gets a copy of the
 * descriptor, since others may watch it, too. */
static int storage_watch_locked(struct context *context)
{
    struct storage_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return -ENOMEM;
    int fd = fcntl(bmi_trove_context_fd(engine.storage), F_DUPFD_CLOEXEC, 0);
    watch->watch = (struct bmi_watch){.ready = storage_readable, .fd = fd};
    watch->context = context;
    int result = fd < 0 ? -errno : bmi_method_watch_add(&watch->watch, EPOLLIN | EPOLLET);
    if (result != 0) {
        if (fd >= 0)
            close(fd);
        free(watch);
        return result;
    }
    engine.watch = watch;
    return 0;
}

static int network_open_locked(void)
{
    bmi_context_id id;
    int result = BMI_open_context(&id);
    if (result != 0)
        return result;
    struct context *context = bmi__context_find(id);
    result = bmi__error(storage_watch_locked(context));
    if (result != 0) {
        BMI_close_context(id);
        return result;
    }
    engine.context = context;
    bmi__context_hide(context);
    bmi__context_set_hook(context, network_hook, NULL);
    atomic_store(&engine.network, id);
    network_fd_use();
    return 0;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The resources of the last users, to be closed without a lock. */
struct past {
    bmi_trove_context_id_t storage;
    bmi_context_id network; /* 0: was not open */
    struct storage_watch *watch;
};

/* When this returns no thread uses them any more. */
static struct past contexts_end_locked(void)
{
    struct past past = {.storage = engine.storage, .network = engine.network};
    open_set_locked(false);
    times_end();
    past.watch = engine.watch;
    engine.watch = NULL;
    atomic_store(&engine.network, 0);
    if (past.network != 0)
        network_fd_leave();
    return past;
}

/* Only the poller may remove a watch. */
static void watch_remove(struct bmi_deferred *deferred)
{
    struct storage_watch *watch =
        (struct storage_watch *)((char *)deferred - offsetof(struct storage_watch, removal));
    struct context *context = watch->context;
    bmi_method_watch_remove(&watch->watch);
    atomic_store(&watch->removed, true);
    bmi__progress_notify(context_waiters(context), 0);
}

static bool watch_removed(struct waiter *waiter)
{
    const struct storage_watch *watch = waiter->argument;
    return atomic_load(&watch->removed);
}

static void network_close(bmi_context_id network, struct storage_watch *watch)
{
    struct waiter waiter = {.ready = watch_removed,
                            .argument = watch,
                            .list = context_waiters(watch->context),
                            .op = WAITER_SOME};
    if (bmi__context_find(network) != NULL) { /* otherwise BMI was finalized, against the rules */
        watch->removal.run = watch_remove;
        bmi_method_defer(&watch->removal);
        while (!atomic_load(&watch->removed))
            bmi__progress_wait(&waiter, 1000);
        BMI_close_context(network);
    }
    close(watch->watch.fd);
    free(watch);
}

void bmi__engine_close(void)
{
    struct past past = {0};
    pthread_mutex_lock(&engine.life);
    bool last = --engine.users == 0;
    if (last)
        past = contexts_end_locked();
    pthread_mutex_unlock(&engine.life);
    if (last) {
        bmi__buffers_free();
        if (past.network != 0)
            network_close(past.network, past.watch);
        bmi_trove_context_close(past.storage);
    }
    bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
}

/* ---- fork ------------------------------------------------------------------------------------ */

static void fd_forget(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* BMI's resources of flow (a context, its watch and the timer) stay in the child unused, and
 * request no poll: the task was prepared for the parent's manager. */
void bmi__engine_forget(void)
{
    pthread_mutex_t *const locks[] = {&engine.life, &engine.in_use, &engine.event_lock,
                                      &engine.times_lock, &engine.fds_lock};
    for (size_t i = 0; i < sizeof locks / sizeof *locks; i++)
        pthread_mutex_init(locks[i], NULL);
    engine.users = 0;
    engine.open = engine.prepared = false;
    engine.storage = 0;
    atomic_store(&engine.network, 0);
    atomic_store(&engine.wanted, 1);
    atomic_store(&engine.waiting, 0);
    atomic_store(&engine.fd_used, false);
    atomic_store(&engine.signalled, false);
    engine.context = NULL;
    engine.watch = NULL;
    engine.timed = NULL;
    atomic_store(&engine.next_ns, UINT64_MAX);
    fd_forget(&engine.epoll_fd);
    fd_forget(&engine.timer_fd);
    fd_forget(&engine.event_fd);
}

/* ---- sleeping in BMI's wait ------------------------------------------------------------------ */

bool bmi__engine_sleeps(void)
{
    return atomic_load(&engine.network) != 0;
}

void bmi__engine_wake(void)
{
    bmi__progress_notify(context_waiters(engine.context), 0);
}

struct sleep {
    struct bmi__space_waiter *self;
    unsigned seen; /* events */
};

/* Whether a thread polls, and so begins another round after this. */
static bool poller_asked(void)
{
    unsigned seen = atomic_load(&engine.wanted);
    while (seen != 0 && !atomic_compare_exchange_weak(&engine.wanted, &seen, seen + 1))
        ;
    return seen != 0;
}

/* Completions in the context are no reason to stay awake while another thread takes them out. */
static bool sleep_over(struct waiter *waiter)
{
    const struct sleep *sleep = waiter->argument;
    return atomic_load(&sleep->self->woken) || atomic_load(&engine.events) != sleep->seen ||
           (bmi__context_has(engine.context) && !poller_asked());
}

/* A completion from before `seen` was read is in the context, or with the poll task. */
void bmi__engine_sleep(struct bmi__space_waiter *self, int64_t left_ns)
{
    enum { LONGEST_NS = 1000000000 };
    struct sleep sleep = {.self = self, .seen = atomic_load(&engine.events)};
    struct waiter waiter = {.ready = sleep_over,
                            .argument = &sleep,
                            .list = context_waiters(engine.context),
                            .op = WAITER_SOME};
    uint64_t ns = left_ns < 0 || left_ns > LONGEST_NS ? LONGEST_NS : (uint64_t)left_ns;
    atomic_fetch_add(&engine.waiting, 1);
    bmi__progress_wait(&waiter, (int)((ns + 999999) / 1000000));
    atomic_fetch_sub(&engine.waiting, 1);
}

int bmi__engine_network_open(void)
{
    if (atomic_load(&engine.network) != 0)
        return 0;
    pthread_mutex_lock(&engine.life);
    int result = engine.users == 0 ? -BMI_EINVAL : 0;
    if (result == 0 && atomic_load(&engine.network) == 0)
        result = network_open_locked();
    pthread_mutex_unlock(&engine.life);
    if (result == 0)
        bmi__space_wake(&bmi__flow_space); /* from now on they sleep in the network's wait */
    return result;
}

bmi_context_id bmi__engine_network(void)
{
    return atomic_load(&engine.network); /* constant while there are flows that use it */
}

bmi_trove_context_id_t bmi__engine_storage(void)
{
    return engine.storage; /* constant while there are flows */
}
