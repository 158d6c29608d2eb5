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
 *   `in_use`, then those of deadlines.c and descriptor.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/progress/progress.h"
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
    struct bmi_task task;
    bool prepared;               /* life */
    struct context *context;     /* life: the network's, while it is open */
    struct storage_watch *watch; /* life: the same */
} engine = {.life = PTHREAD_MUTEX_INITIALIZER, .in_use = PTHREAD_MUTEX_INITIALIZER, .wanted = 1};

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
        bmi__deadlines_run(bmi__flow_kill);
    } while (!atomic_compare_exchange_strong(&engine.wanted, &seen, 0));
    bmi__tasks_release();
}

/* Called by a thread that tests or waits, which runs the flows' steps itself. Tasks that it runs
 * may have left further ones; a program that waits for a descriptor calls again for those. */
void bmi__engine_poll(void)
{
    bmi__descriptor_clear();
    if (atomic_fetch_add(&engine.wanted, 1) == 0) {
        bmi__flow_steps_begin();
        poll_run();
        bmi__flow_steps_end();
    }
    if (bmi__descriptor_used() && bmi_task_schedule(NULL) > 0)
        bmi__descriptor_signal();
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
    bmi__descriptor_signal();
}

static void deadline_due(void)
{
    poll_wanted(NULL);
}

static void network_hook(void *argument, bool unexpected)
{
    if (!unexpected)
        poll_wanted(argument);
}

/* ---- contexts -------------------------------------------------------------------------------- */

static int storage_open_locked(void)
{
    int result = bmi_trove_context_open(&engine.storage);
    if (result != 0)
        return result;
    int fd = bmi_trove_context_fd(engine.storage);
    result = fd < 0 ? fd : bmi__error(bmi__descriptor_watch(fd));
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
    int result = bmi__descriptor();
    if (result < 0)
        return bmi__error(result);
    result = bmi__error(bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY));
    if (result != 0)
        return result;
    bmi__deadlines_begin(deadline_due);
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
    int result =
        fd < 0 ? -errno : bmi_method_watch_add(context->instance, &watch->watch, EPOLLIN | EPOLLET);
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
    bmi__descriptor_network(true);
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
    bmi__deadlines_end();
    past.watch = engine.watch;
    engine.watch = NULL;
    atomic_store(&engine.network, 0);
    if (past.network != 0)
        bmi__descriptor_network(false);
    return past;
}

/* Only the poller may remove a watch. */
static void watch_remove(struct bmi_deferred *deferred)
{
    struct storage_watch *watch =
        (struct storage_watch *)((char *)deferred - offsetof(struct storage_watch, removal));
    struct context *context = watch->context;
    bmi_method_watch_remove(&bmi__default, &watch->watch);
    atomic_store(&watch->removed, true);
    bmi__progress_notify(&bmi__default, context_waiters(context), 0);
}

static bool watch_removed(struct waiter *waiter)
{
    const struct storage_watch *watch = waiter->argument;
    return atomic_load(&watch->removed);
}

static void network_close(bmi_context_id network, struct storage_watch *watch)
{
    struct waiter waiter = {.instance = &bmi__default,
                            .ready = watch_removed,
                            .argument = watch,
                            .list = context_waiters(watch->context),
                            .op = WAITER_SOME};
    if (bmi__context_find(network) != NULL) { /* otherwise BMI was finalized, against the rules */
        watch->removal.run = watch_remove;
        bmi_method_defer(&bmi__default, &watch->removal);
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

/* BMI's resources of flow (a context and its watch) stay in the child unused, and request no poll:
 * the task was prepared for the parent's manager. */
void bmi__engine_forget(void)
{
    pthread_mutex_init(&engine.life, NULL);
    pthread_mutex_init(&engine.in_use, NULL);
    engine.users = 0;
    engine.open = engine.prepared = false;
    engine.storage = 0;
    atomic_store(&engine.network, 0);
    atomic_store(&engine.wanted, 1);
    atomic_store(&engine.waiting, 0);
    engine.context = NULL;
    engine.watch = NULL;
}

/* ---- sleeping in BMI's wait ------------------------------------------------------------------ */

bool bmi__engine_sleeps(void)
{
    return atomic_load(&engine.network) != 0;
}

void bmi__engine_wake(void)
{
    bmi__progress_notify(&bmi__default, context_waiters(engine.context), 0);
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
    struct waiter waiter = {.instance = &bmi__default,
                            .ready = sleep_over,
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
    pthread_mutex_lock(&engine.life);
    int result = engine.users == 0 ? -BMI_EINVAL : 0;
    if (result == 0 && atomic_load(&engine.network) == 0)
        result = network_open_locked();
    pthread_mutex_unlock(&engine.life);
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
