/* SPDX-License-Identifier: BSD-3-Clause
 *
 * engine.c - shared by the flows of an instance: the contexts that their operations are posted to,
 * and the polling of these contexts.
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
#include "flow/engine.h"
#include "task/internal.h"

enum { BATCH = 32 };

/* How BMI's poller watches the storage; exists as long as the network's context. */
struct storage_watch {
    struct bmi_watch watch; /* first */
    struct bmi_deferred removal;
    struct flow_engine *engine;
    struct context *context; /* the network's: woken when the watch has been removed */
    atomic_bool removed;
};

static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;
static struct flow_engine *engines; /* life */

/* ---- polling --------------------------------------------------------------------------------- */

static void network_take(struct flow_engine *engine)
{
    bmi_op_id_t ops[BATCH];
    bmi_error_code_t errors[BATCH];
    bmi_size_t actuals[BATCH];
    void *chunks[BATCH];
    int count = BATCH;
    while (engine->network != 0 && count == BATCH &&
           BMI_testcontext(BATCH, ops, &count, errors, actuals, chunks, 0, engine->network) > 0)
        for (int i = 0; i < count; i++)
            bmi__flow_arrived(chunks[i], errors[i], actuals[i]);
}

/* Until a test call reports nothing: only such a call polls io_uring. */
static void storage_take(struct flow_engine *engine)
{
    bmi_op_id_t ops[BATCH];
    bmi_error_code_t errors[BATCH];
    bmi_size_t actuals[BATCH];
    void *chunks[BATCH];
    int count;
    while (bmi_trove_testcontext(BATCH, ops, &count, errors, actuals, chunks, 0, engine->storage) >
           0)
        for (int i = 0; i < count; i++)
            bmi__flow_arrived(chunks[i], errors[i], actuals[i]);
}

/* Called by the one thread that made `wanted` 1, or by the task that it submitted. */
static void poll_run(struct flow_engine *engine)
{
    unsigned seen;
    bmi__tasks_hold();
    do {
        seen = atomic_load(&engine->wanted);
        network_take(engine);
        storage_take(engine);
        bmi__deadlines_run(engine, bmi__flow_kill);
    } while (!atomic_compare_exchange_strong(&engine->wanted, &seen, 0));
    bmi__tasks_release();
}

/* Called by a thread that tests or waits, which runs the flows' steps itself. Tasks that it runs
 * may have left further ones; a program that waits for a descriptor calls again for those. */
void bmi__engine_poll(void *owner)
{
    struct flow_engine *engine = owner;
    bmi__descriptor_clear(engine);
    if (atomic_fetch_add(&engine->wanted, 1) == 0) {
        bmi__flow_steps_begin();
        poll_run(engine);
        bmi__flow_steps_end();
    }
    if (bmi__descriptor_used(engine) && bmi_task_schedule(NULL) > 0)
        bmi__descriptor_signal(engine);
}

/* A worker leaves steps to the workers near them; a hook runs them, since its thread may sleep
   next.
 */
static enum bmi_task_status poll_task(struct bmi_task *task, void *argument)
{
    struct flow_engine *engine = argument;
    (void)task;
    if (bmi__worker_self(bmi_task_manager_default()) == NULL)
        bmi__flow_steps_begin();
    pthread_mutex_lock(&engine->in_use);
    if (engine->open)
        poll_run(engine);
    else
        atomic_store(&engine->wanted, 0);
    pthread_mutex_unlock(&engine->in_use);
    bmi__flow_steps_end();
    return BMI_TASK_DONE;
}

/* The manager stops before the task has run: no thread polls. */
static enum bmi_task_status poll_cancelled(struct bmi_task *task, void *argument)
{
    struct flow_engine *engine = argument;
    (void)task;
    atomic_store(&engine->wanted, 0);
    return BMI_TASK_DONE;
}

/* A completion has come. A thread that polls already sees it; otherwise the task takes it, run by a
 * worker, by a waiting thread, or by a program that waits for a descriptor of flow's. */
static void poll_wanted(void *argument)
{
    struct flow_engine *engine = argument;
    if (atomic_load(&engine->waiting) > 0) { /* it polls when it wakes, for any reason */
        /* it has read the count before it counted itself as waiting */
        atomic_fetch_add(&engine->events, 1);
        bmi__engine_wake(engine);
        return;
    }
    if (atomic_fetch_add(&engine->wanted, 1) != 0)
        return;
    if (bmi_task_submit(&engine->task) != 0)
        atomic_store(&engine->wanted, 0);
    bmi__descriptor_signal(engine);
}

static void deadline_due(struct flow_engine *engine)
{
    poll_wanted(engine);
}

static void network_hook(void *argument, bool unexpected)
{
    if (!unexpected)
        poll_wanted(argument);
}

/* ---- contexts -------------------------------------------------------------------------------- */

static int storage_open_locked(struct flow_engine *engine)
{
    int result = bmi_trove_context_open(&engine->storage);
    if (result != 0)
        return result;
    int fd = bmi_trove_context_fd(engine->storage);
    result = fd < 0 ? fd : bmi__error(bmi__descriptor_watch(engine, fd));
    if (result == 0)
        result = bmi_trove_context_notify(engine->storage, poll_wanted, engine);
    if (result != 0)
        bmi_trove_context_close(engine->storage);
    return result;
}

static int task_ready_locked(struct flow_engine *engine)
{
    if (engine->prepared)
        return 0;
    int result = bmi_task_prepare(&engine->task, NULL,
                                  &(struct bmi_task_attributes){.function = poll_task,
                                                                .cancelled = poll_cancelled,
                                                                .argument = engine});
    engine->prepared = result == 0;
    if (result == 0)
        atomic_store(&engine->wanted, 0);
    return result;
}

static void open_set_locked(struct flow_engine *engine, bool open)
{
    pthread_mutex_lock(&engine->in_use);
    engine->open = open;
    pthread_mutex_unlock(&engine->in_use);
}

static struct flow_engine *engine_make_locked(void)
{
    struct flow_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL)
        return NULL;
    pthread_mutex_init(&engine->in_use, NULL);
    atomic_init(&engine->wanted, 1);
    bmi__deadlines_init(engine, deadline_due);
    bmi__descriptor_init(engine);
    engine->next = engines;
    engines = engine;
    return engine;
}

/* The instance's own, else a free one, else a new one. */
static struct flow_engine *engine_find_locked(const struct bmi_instance *instance)
{
    struct flow_engine *unused = NULL;
    for (struct flow_engine *engine = engines; engine != NULL; engine = engine->next) {
        if (engine->instance == instance)
            return engine;
        if (engine->instance == NULL)
            unused = engine;
    }
    return unused != NULL ? unused : engine_make_locked();
}

static int engine_begin_locked(struct flow_engine *engine)
{
    int result = bmi__descriptor(engine);
    if (result < 0)
        return bmi__error(result);
    result = bmi__error(task_ready_locked(engine));
    if (result == 0)
        result = storage_open_locked(engine);
    if (result == 0)
        open_set_locked(engine, true);
    return result;
}

int bmi__engine_open(struct bmi_instance *instance, struct flow_engine **opened)
{
    int result = bmi__error(bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY));
    if (result != 0)
        return result;
    pthread_mutex_lock(&life);
    struct flow_engine *engine = engine_find_locked(instance);
    if (engine == NULL)
        result = -BMI_ENOMEM;
    else if (engine->users == 0)
        result = engine_begin_locked(engine);
    if (result == 0) {
        if (engine->instance != instance) /* a hook of an earlier use may read it */
            engine->instance = instance;
        engine->users++;
    }
    pthread_mutex_unlock(&life);
    if (result != 0)
        bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
    *opened = engine;
    return result;
}

/* ---- the network ----------------------------------------------------------------------------- */

static void storage_readable(struct bmi_watch *watch, uint32_t events)
{
    (void)events;
    poll_wanted(((struct storage_watch *)watch)->engine);
}

/* BMI's poller watches the storage's descriptor: so one wait covers both. It gets a copy of the
 * descriptor, since others may watch it, too. */
static int storage_watch_locked(struct flow_engine *engine, struct context *context)
{
    struct storage_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return -ENOMEM;
    int fd = fcntl(bmi_trove_context_fd(engine->storage), F_DUPFD_CLOEXEC, 0);
    watch->watch = (struct bmi_watch){.ready = storage_readable, .fd = fd};
    watch->engine = engine;
    watch->context = context;
    int result =
        fd < 0 ? -errno : bmi_method_watch_add(engine->instance, &watch->watch, EPOLLIN | EPOLLET);
    if (result != 0) {
        if (fd >= 0)
            close(fd);
        free(watch);
        return result;
    }
    engine->watch = watch;
    return 0;
}

static int network_open_locked(struct flow_engine *engine)
{
    bmi_context_id id;
    int result = bmi_instance_open_context(engine->instance, &id);
    if (result != 0)
        return result;
    struct context *context = bmi__context_find(id);
    result = bmi__error(storage_watch_locked(engine, context));
    if (result != 0) {
        BMI_close_context(id);
        return result;
    }
    atomic_store(&engine->context, context);
    bmi__context_hide(context);
    bmi__context_set_hook(context, network_hook, engine);
    atomic_store(&engine->network, id);
    bmi__descriptor_network_open(engine);
    return 0;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The resources of the last users, to be closed without a lock. */
struct past {
    struct bmi_instance *instance;
    bmi_trove_context_id_t storage;
    bmi_context_id network;      /* 0: was not open */
    struct storage_watch *watch; /* NULL: the same */
};

/* Otherwise BMI was finalized, against the rules, and an instance may be gone. */
static bool network_runs(bmi_context_id network)
{
    return bmi__context_find(network) != NULL;
}

/* When this returns no thread uses them any more, but a hook may still wake threads. */
static struct past contexts_end_locked(struct flow_engine *engine)
{
    struct past past = {.instance = engine->instance,
                        .storage = engine->storage,
                        .network = engine->network,
                        .watch = engine->watch};
    open_set_locked(engine, false);
    bmi__deadlines_end(engine);
    engine->watch = NULL;
    atomic_store(&engine->network, 0);
    if (past.network != 0)
        bmi__descriptor_network_close(engine, network_runs(past.network));
    engine->ending++;
    return past;
}

/* Only the poller may remove a watch. */
static void watch_remove(struct bmi_deferred *deferred)
{
    struct storage_watch *watch =
        (struct storage_watch *)((char *)deferred - offsetof(struct storage_watch, removal));
    struct context *context = watch->context;
    struct bmi_instance *instance = context->instance;
    bmi_method_watch_remove(instance, &watch->watch);
    atomic_store(&watch->removed, true); /* the last access to it */
    bmi__progress_notify(instance, context_waiters(context), 0);
}

static bool watch_removed(struct waiter *waiter)
{
    const struct storage_watch *watch = waiter->argument;
    return atomic_load(&watch->removed);
}

static void network_close(const struct past *past)
{
    struct storage_watch *watch = past->watch;
    struct waiter waiter = {.instance = past->instance,
                            .ready = watch_removed,
                            .argument = watch,
                            .op = WAITER_SOME};
    if (network_runs(past->network)) {
        waiter.list = context_waiters(watch->context);
        watch->removal.run = watch_remove;
        bmi_method_defer(past->instance, &watch->removal);
        while (!atomic_load(&watch->removed))
            bmi__progress_wait(&waiter, 1000);
        BMI_close_context(past->network);
    }
    close(watch->watch.fd);
    free(watch);
}

/* The storage's hook ends with its context, those that the poller runs with the watch. */
static void past_end(struct flow_engine *engine, const struct past *past)
{
    bmi__buffers_free(past->instance);
    bmi_trove_context_close(past->storage);
    if (past->network != 0)
        network_close(past);
    pthread_mutex_lock(&life);
    if (--engine->ending == 0 && engine->users == 0)
        engine->instance = NULL;
    pthread_mutex_unlock(&life);
}

void bmi__engine_close(struct flow_engine *engine)
{
    struct past past = {0};
    pthread_mutex_lock(&life);
    bool last = --engine->users == 0;
    if (last)
        past = contexts_end_locked(engine);
    pthread_mutex_unlock(&life);
    if (last)
        past_end(engine, &past);
    bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
}

/* ---- fork ------------------------------------------------------------------------------------ */

/* BMI's resources of flow (a context and its watch) stay in the child unused, and request no poll:
 * the task was prepared for the parent's manager. */
static void engine_forget(struct flow_engine *engine)
{
    pthread_mutex_init(&engine->in_use, NULL);
    engine->users = engine->ending = 0;
    engine->open = engine->prepared = false;
    engine->storage = 0;
    atomic_store(&engine->network, 0);
    atomic_store(&engine->wanted, 1);
    atomic_store(&engine->waiting, 0);
    atomic_store(&engine->context, NULL);
    engine->watch = NULL;
    bmi__deadlines_forget(engine);
    bmi__descriptor_forget(engine);
}

/* One that was in use stays the instance's, which may have its timer. */
void bmi__engines_forget(void)
{
    pthread_mutex_init(&life, NULL);
    for (struct flow_engine *engine = engines; engine != NULL; engine = engine->next)
        engine_forget(engine);
}

/* ---- sleeping in BMI's wait ------------------------------------------------------------------ */

int bmi__engine_source(void *owner)
{
    return bmi__descriptor(owner);
}

void bmi__engine_fd_used(void *owner)
{
    bmi__descriptor_use(owner);
}

bool bmi__engine_sleeps(void *owner)
{
    const struct flow_engine *engine = owner;
    return atomic_load(&engine->network) != 0;
}

void bmi__engine_wake(void *owner)
{
    const struct flow_engine *engine = owner;
    bmi__progress_notify(engine->instance, context_waiters(atomic_load(&engine->context)), 0);
}

struct sleep {
    struct bmi__space_waiter *self;
    unsigned seen; /* events */
};

/* Whether a thread polls, and so begins another round after this. */
static bool poller_asked(struct flow_engine *engine)
{
    unsigned seen = atomic_load(&engine->wanted);
    while (seen != 0 && !atomic_compare_exchange_weak(&engine->wanted, &seen, seen + 1))
        ;
    return seen != 0;
}

/* Completions in the context are no reason to stay awake while another thread takes them out. */
static bool sleep_over(struct waiter *waiter)
{
    const struct sleep *sleep = waiter->argument;
    struct flow_engine *engine = sleep->self->owner;
    return atomic_load(&sleep->self->woken) || atomic_load(&engine->events) != sleep->seen ||
           (bmi__context_has(atomic_load(&engine->context)) && !poller_asked(engine));
}

/* A completion from before `seen` was read is in the context, or with the poll task. */
void bmi__engine_sleep(struct bmi__space_waiter *self, int64_t left_ns)
{
    enum { LONGEST_NS = 1000000000 };
    struct flow_engine *engine = self->owner;
    struct sleep sleep = {.self = self, .seen = atomic_load(&engine->events)};
    struct waiter waiter = {.instance = engine->instance,
                            .ready = sleep_over,
                            .argument = &sleep,
                            .list = context_waiters(atomic_load(&engine->context)),
                            .op = WAITER_SOME};
    uint64_t ns = left_ns < 0 || left_ns > LONGEST_NS ? LONGEST_NS : (uint64_t)left_ns;
    atomic_fetch_add(&engine->waiting, 1);
    bmi__progress_wait(&waiter, (int)((ns + 999999) / 1000000));
    atomic_fetch_sub(&engine->waiting, 1);
}

int bmi__engine_network_open(struct flow_engine *engine)
{
    pthread_mutex_lock(&life);
    int result = engine->users == 0 ? -BMI_EINVAL : 0;
    if (result == 0 && atomic_load(&engine->network) == 0)
        result = network_open_locked(engine);
    pthread_mutex_unlock(&life);
    return result;
}

bmi_context_id bmi__engine_network(const struct flow_engine *engine)
{
    return atomic_load(&engine->network); /* constant while there are flows that use it */
}

bmi_trove_context_id_t bmi__engine_storage(const struct flow_engine *engine)
{
    return engine->storage; /* constant while there are flows */
}
