/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trove.c - stores, and the running of an operation: within its post, by a task, or by io_uring;
 * injected faults and delays. The posts are in post.c.
 */
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "task/memory.h"
#include "trove-stub/store.h"

/* ---- the space of operations ----------------------------------------------------------------- */

static void op_cancel(struct bmi__posted *posted)
{
    struct trove_op *op = (struct trove_op *)posted;
    struct bmi_trove_store *store = op->place.store;
    atomic_store(&op->cancelled, true);
    if (op->delay_ms > 0) {
        pthread_mutex_lock(&store->lock);
        pthread_cond_broadcast(&store->delays);
        pthread_mutex_unlock(&store->lock);
    }
    if (op->what == TROVE_REMOVE && bmi__trove_removal_cancel(op))
        return;
    if (op->has_task)
        bmi_task_cancel(&op->task);
}

/* The store may be closed as soon as it has no outstanding operation; a cancel uses it
 * until then. */
static void op_completed(struct bmi__posted *posted)
{
    struct trove_op *op = (struct trove_op *)posted;
    atomic_fetch_sub(&op->place.store->outstanding, 1);
}

static void op_destroy(struct bmi__posted *posted)
{
    struct trove_op *op = (struct trove_op *)posted;
    free(op->piece);
    free(op->rooms);
    free(op);
}

static void rings_reap(void *owner)
{
    (void)owner;
    bmi__rings_reap();
}

static int rings_source(void *owner)
{
    (void)owner;
    return bmi__rings_source();
}

struct bmi__space bmi__trove_space = {
    .progress = rings_reap,
    .source = rings_source,
    .cancel = op_cancel,
    .completed = op_completed,
    .destroy = op_destroy,
    .lock = BMI__SPACE_LOCK,
};

static void after_fork_child(void)
{
    bmi__space_forget(&bmi__trove_space);
}

static void fork_watch(void)
{
    pthread_atfork(NULL, NULL, after_fork_child);
}

/* ---- running an operation -------------------------------------------------------------------- */

static void counted(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static void finish_count(struct trove_op *op, int error)
{
    struct bmi_trove_store *store = op->place.store;
    if (op->what == TROVE_READ) {
        counted(&store->counts.reads, 1);
        counted(&store->counts.read_bytes, (uint64_t)op->actual);
    } else if (op->what == TROVE_WRITE) {
        counted(&store->counts.writes, 1);
        counted(&store->counts.written_bytes, (uint64_t)op->actual);
    } else if (op->what >= TROVE_GET) {
        counted(&store->counts.keys, 1);
    }
    if (error == -ECANCELED)
        counted(&store->counts.cancels, 1);
    else if (error != 0)
        counted(&store->counts.errors, 1);
}

void bmi__trove_finish(struct trove_op *op, int error)
{
    struct bmi_trove_store *store = op->place.store;
    bool moves = op->what == TROVE_READ || op->what == TROVE_WRITE;
    if (moves && store->backend->end != NULL)
        store->backend->end(op);
    finish_count(op, error);
    if (op->what == TROVE_REMOVE && (op->flags & BMI_TROVE_WHEN_RELEASED) != 0)
        bmi__trove_removal_over(op);
    if (op->actual_out != NULL)
        *op->actual_out = op->actual;
    bmi__posted_complete(&bmi__trove_space, &op->posted, bmi_status_of(error), op->actual);
}

/* Runs it on a thread that may block as long as the backend does. Returns its result. */
static int op_run(struct trove_op *op)
{
    if (atomic_load(&op->cancelled))
        return -ECANCELED;
    bool moves = op->what == TROVE_READ || op->what == TROVE_WRITE;
    if (op->faulty && op->fault != 0 && (!moves || op->most == 0))
        return op->fault;
    int result = moves ? bmi__trove_move(op) : op->place.store->backend->run(op);
    return result == 0 && op->faulty ? op->fault : result;
}

/* Waits for an injected delay's end, or for the operation to be cancelled. */
static void op_delay(struct trove_op *op)
{
    struct bmi_trove_store *store = op->place.store;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += op->delay_ms / 1000;
    until.tv_nsec += op->delay_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&store->lock);
    while (!atomic_load(&op->cancelled) &&
           pthread_cond_timedwait(&store->delays, &store->lock, &until) != ETIMEDOUT)
        continue;
    pthread_mutex_unlock(&store->lock);
}

static enum bmi_task_status task_run(struct bmi_task *task, void *argument)
{
    struct trove_op *op = argument;
    (void)task;
    if (op->delay_ms > 0)
        op_delay(op);
    bmi__trove_finish(op, op_run(op));
    return BMI_TASK_GONE;
}

static enum bmi_task_status task_cancelled(struct bmi_task *task, void *argument)
{
    (void)task;
    bmi__trove_finish(argument, -ECANCELED);
    return BMI_TASK_GONE;
}

/* On several NUMA nodes it runs on the node of the thread that begins it, near the buffers. */
int bmi__trove_task_prepare(struct trove_op *op)
{
    struct bmi_cpuset near;
    struct bmi_task_attributes attributes = {.function = task_run,
                                             .argument = op,
                                             .cancelled = task_cancelled,
                                             .options = BMI_TASK_MAY_BLOCK};
    if (bmi__memory_here(bmi_task_manager_default()) >= 0 &&
        bmi_task_cpus_near(NULL, sched_getcpu(), BMI_TASK_LEVEL_NUMA, &near) == 0)
        attributes.cpus = &near;
    return bmi_task_prepare(&op->task, NULL, &attributes);
}

void bmi__trove_by_task(struct trove_op *op)
{
    counted(&op->place.store->counts.tasks, 1);
    int result = bmi__trove_task_prepare(op);
    if (result == 0) {
        pthread_mutex_lock(&bmi__trove_space.lock);
        op->has_task = true;
        pthread_mutex_unlock(&bmi__trove_space.lock);
        result = bmi_task_submit(&op->task);
    }
    if (result != 0)
        bmi__trove_finish(op, result == -BMI_EOPNOTSUPP ? -EAGAIN : result);
}

/* Decides whether this operation fails, and how. */
static void fault_apply(struct trove_op *op)
{
    static const unsigned kinds[] = {
        [TROVE_READ] = BMI_TROVE_READS,       [TROVE_WRITE] = BMI_TROVE_WRITES,
        [TROVE_RESIZE] = BMI_TROVE_WRITES,    [TROVE_FLUSH] = BMI_TROVE_SYNCS,
        [TROVE_SIZE] = BMI_TROVE_OBJECTS,     [TROVE_CREATE] = BMI_TROVE_OBJECTS,
        [TROVE_REMOVE] = BMI_TROVE_OBJECTS,   [TROVE_OBJECTS] = BMI_TROVE_OBJECTS,
        [TROVE_GET] = BMI_TROVE_KEYS,         [TROVE_PUT] = BMI_TROVE_KEYS,
        [TROVE_REMOVE_KEYS] = BMI_TROVE_KEYS, [TROVE_ITERATE] = BMI_TROVE_KEYS,
    };
    struct bmi_trove_store *store = op->place.store;
    pthread_mutex_lock(&store->lock);
    const struct bmi_trove_fault *fault = &store->fault;
    bool strikes = false;
    if ((fault->kinds & kinds[op->what]) != 0) {
        uint64_t number = store->fault_seen++;
        strikes =
            number >= fault->skip && (fault->times == 0 || number - fault->skip < fault->times);
    }
    if (strikes) {
        op->faulty = true;
        op->fault = fault->error;
        op->delay_ms = fault->delay_ms;
        if (fault->limit > 0 || fault->error != 0)
            op->most = fault->limit < op->total ? fault->limit : op->total;
    }
    pthread_mutex_unlock(&store->lock);
    if (strikes)
        counted(&store->counts.faults, 1);
}

/* The ends that a post may report by itself. Only a test call can return the number of objects or
 * pairs found. */
static enum bmi__posted_immediate immediate_of(const struct trove_op *op)
{
    bool found = op->what == TROVE_OBJECTS || op->what == TROVE_ITERATE;
    return found || op->place.store->settings.no_immediate ? POSTED_IMMEDIATE_NEVER
                                                           : POSTED_IMMEDIATE_ALWAYS;
}

/* Runs it, or starts a task or io_uring for it. */
static void op_begin(struct trove_op *op)
{
    struct bmi_trove_store *store = op->place.store;
    const struct trove_backend *backend = store->backend;
    bool waits = op->what == TROVE_REMOVE && (op->flags & BMI_TROVE_WHEN_RELEASED) != 0;
    int held = waits ? bmi__trove_removal_wait(op) : 0;
    if (held > 0)
        return;
    if (held < 0)
        bmi__trove_finish(op, held);
    else if (op->delay_ms == 0 && !store->settings.no_immediate && backend->immediate &&
             op->total <= store->settings.immediate_max)
        bmi__trove_finish(op, op_run(op));
    else if (op->delay_ms > 0 || op->faulty || backend->start == NULL || !backend->start(op))
        bmi__trove_by_task(op);
}

int bmi__trove_start(struct trove_op *op, bmi_trove_op_id_t *id, void *user_ptr,
                     bmi_trove_context_id_t context)
{
    struct bmi_trove_store *store = op->place.store;
    *id = 0;
    op->most = op->total;
    int result = bmi__posted_begin(&bmi__trove_space, &op->posted, context, user_ptr, id);
    if (result != 0) {
        free(op->rooms);
        free(op);
        return bmi_status_of(result);
    }
    atomic_fetch_add(&store->outstanding, 1);
    counted(&store->counts.operations, 1);
    fault_apply(op);
    op_begin(op);
    int ended = bmi__posted_end(&bmi__trove_space, &op->posted, immediate_of(op), id);
    if (ended != 0)
        counted(&store->counts.immediate, 1);
    return ended;
}

/* ---- opening and closing --------------------------------------------------------------------- */

int bmi__trove_explain(int result, char *error, size_t error_size, const char *format, ...)
{
    if (error != NULL && error_size > 0) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error, error_size, format, arguments);
        va_end(arguments);
    }
    return result;
}

static const struct trove_backend *const backends[] = {&bmi__trove_dir, &bmi__trove_mem,
                                                       &bmi__trove_null};

static const struct trove_backend *backend_find(const char *where)
{
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        size_t length = strlen(backends[i]->name);
        if (strncmp(where, backends[i]->name, length) == 0 && where[length] == ':')
            return backends[i];
    }
    return NULL;
}

static void settings_default(struct bmi_trove_settings *settings)
{
    if (settings->open_files == 0)
        settings->open_files = 256;
    if (settings->ring_entries == 0)
        settings->ring_entries = 128;
    if (settings->immediate_max == 0)
        settings->immediate_max = 1 << 20;
}

static struct bmi_trove_store *store_make(const struct trove_backend *backend,
                                          const struct bmi_trove_settings *settings)
{
    struct bmi_trove_store *store = calloc(1, sizeof *store);
    if (store == NULL)
        return NULL;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&store->delays, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&store->lock, NULL);
    store->backend = backend;
    if (settings != NULL)
        store->settings = *settings;
    settings_default(&store->settings);
    return store;
}

static void store_free(struct bmi_trove_store *store)
{
    pthread_cond_destroy(&store->delays);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

int bmi_trove_open(struct bmi_trove_store **store, const char *where,
                   const struct bmi_trove_settings *settings, char *error, size_t error_size)
{
    if (store == NULL || where == NULL)
        return bmi__trove_explain(-BMI_EINVAL, error, error_size, "no store named");
    const struct trove_backend *backend = backend_find(where);
    if (backend == NULL)
        return bmi__trove_explain(-BMI_EINVAL, error, error_size,
                                  "\"%s\": not dir:PATH, mem: or null:", where);
    if (settings != NULL && settings->capacity < 0)
        return bmi__trove_explain(-BMI_EINVAL, error, error_size, "capacity below 0");
    struct bmi_trove_store *new = store_make(backend, settings);
    if (new == NULL)
        return bmi__trove_explain(-BMI_ENOMEM, error, error_size, "out of memory");
    int result = bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY);
    if (result != 0) {
        bmi__trove_explain(0, error, error_size, "the task manager does not start");
        goto undo_make;
    }
    result = backend->open(new, where + strlen(backend->name) + 1, error, error_size);
    if (result != 0)
        goto undo_start;
    *store = new;
    return 0;

undo_start:
    bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
undo_make:
    store_free(new);
    return bmi_status_of(result);
}

static bool store_idle(void *argument)
{
    struct bmi_trove_store *store = argument;
    return atomic_load(&store->outstanding) == 0;
}

int bmi_trove_close(struct bmi_trove_store *store)
{
    if (store == NULL)
        return -BMI_EINVAL;
    bmi__trove_holds_end(store);
    bmi__space_wait_until(&bmi__trove_space, NULL, store_idle, store);
    int result = store->backend->close(store);
    bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
    store_free(store);
    return bmi_status_of(result);
}

int bmi_trove_space(struct bmi_trove_store *store, bmi_size_t *total, bmi_size_t *available)
{
    if (store == NULL || total == NULL || available == NULL)
        return -BMI_EINVAL;
    return bmi_status_of(store->backend->space(store, total, available));
}

int bmi_trove_collection_create(struct bmi_trove_store *store, bmi_trove_collection_id_t collection)
{
    return store == NULL ? -BMI_EINVAL
                         : bmi_status_of(store->backend->collection_create(store, collection));
}

int bmi_trove_collection_remove(struct bmi_trove_store *store, bmi_trove_collection_id_t collection)
{
    return store == NULL ? -BMI_EINVAL
                         : bmi_status_of(store->backend->collection_remove(store, collection));
}

int bmi_trove_collection_next(struct bmi_trove_store *store, bmi_trove_collection_id_t *collection)
{
    if (store == NULL || collection == NULL)
        return -BMI_EINVAL;
    return bmi_status_of(store->backend->collection_next(store, collection));
}

/* ---- faults and statistics ------------------------------------------------------------------- */

int bmi_trove_inject(struct bmi_trove_store *store, const struct bmi_trove_fault *fault)
{
    static const struct bmi_trove_fault none;
    if (store == NULL || (fault != NULL && (fault->limit < 0 || fault->delay_ms < 0 ||
                                            (fault->kinds & ~(unsigned)BMI_TROVE_ALL) != 0)))
        return -BMI_EINVAL;
    pthread_mutex_lock(&store->lock);
    store->fault = fault != NULL ? *fault : none;
    store->fault_seen = 0;
    pthread_mutex_unlock(&store->lock);
    return 0;
}

int bmi_trove_statistics(struct bmi_trove_store *store, struct bmi_trove_statistics *statistics)
{
    if (store == NULL || statistics == NULL)
        return -BMI_EINVAL;
    *statistics = (struct bmi_trove_statistics){
        .operations = store->counts.operations,
        .immediate = store->counts.immediate,
        .reads = store->counts.reads,
        .read_bytes = store->counts.read_bytes,
        .writes = store->counts.writes,
        .written_bytes = store->counts.written_bytes,
        .keys = store->counts.keys,
        .errors = store->counts.errors,
        .cancels = store->counts.cancels,
        .uring = store->counts.uring,
        .tasks = store->counts.tasks,
        .faults = store->counts.faults,
        .lent_bytes = store->counts.lent_bytes,
        .outstanding = atomic_load(&store->outstanding),
    };
    return 0;
}

/* ---- contexts and tests: completion.c does it ------------------------------------------------ */

int bmi_trove_context_open(bmi_trove_context_id_t *context)
{
    static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
    pthread_once(&fork_once, fork_watch);
    return bmi__space_open_context(&bmi__trove_space, NULL, context);
}

int bmi_trove_context_close(bmi_trove_context_id_t context)
{
    return bmi__space_close_context(&bmi__trove_space, context);
}

int bmi_trove_context_fd(bmi_trove_context_id_t context)
{
    return bmi__space_context_fd(&bmi__trove_space, context);
}

int bmi_trove_context_notify(bmi_trove_context_id_t context, void (*notify)(void *argument),
                             void *argument)
{
    return bmi__space_context_notify(&bmi__trove_space, context, notify, argument);
}

int bmi_trove_test(bmi_trove_op_id_t op, int *outcount, bmi_error_code_t *error, bmi_size_t *actual,
                   void **user_ptr, int max_idle_ms, bmi_trove_context_id_t context)
{
    if (op == 0 && outcount != NULL)
        *outcount = 0;
    return op == 0 ? -BMI_EINVAL
                   : bmi__space_test(&bmi__trove_space, 1, &op, outcount, NULL, error, actual,
                                     user_ptr, max_idle_ms, context);
}

int bmi_trove_testsome(int incount, const bmi_trove_op_id_t *ops, int *outcount, int *index,
                       bmi_error_code_t *errors, bmi_size_t *actuals, void **user_ptrs,
                       int max_idle_ms, bmi_trove_context_id_t context)
{
    if (incount > 0 && index == NULL)
        return -BMI_EINVAL;
    return bmi__space_test(&bmi__trove_space, incount, ops, outcount, index, errors, actuals,
                           user_ptrs, max_idle_ms, context);
}

int bmi_trove_testcontext(int incount, bmi_trove_op_id_t *ops, int *outcount,
                          bmi_error_code_t *errors, bmi_size_t *actuals, void **user_ptrs,
                          int max_idle_ms, bmi_trove_context_id_t context)
{
    return bmi__space_testcontext(&bmi__trove_space, incount, ops, outcount, errors, actuals,
                                  user_ptrs, max_idle_ms, context);
}

int bmi_trove_cancel(bmi_trove_op_id_t op, bmi_trove_context_id_t context)
{
    return bmi__space_cancel(&bmi__trove_space, op, context);
}
