/* SPDX-License-Identifier: BSD-3-Clause
 *
 * source.c - trove and flow as sources of a job context: each is a context of its own kind, opened
 * when its first job is posted. A poll fetches completions there after a notification: by the
 * notify function, or by the descriptor, which BMI's poller watches (edge-triggered, so that a
 * poller that does not fetch them does not spin). `pending` says that there may be a completion; it
 * is set before any thread is woken, and cleared before a fetch.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bmi/base/error.h"
#include "bmi/progress/progress.h"
#include "flow/internal.h"
#include "job/internal.h"
#include "task/internal.h"

enum { BATCH = 64 };

static void source_told(void *argument)
{
    struct bmi__job_source *source = argument;
    atomic_store(&source->pending, true);
    bmi__job_poll_soon(source->context);
}

static void source_readable(struct bmi_watch *watch, uint32_t events)
{
    (void)events;
    source_told((char *)watch - offsetof(struct bmi__job_source, watch));
}

/* ---- opening --------------------------------------------------------------------------------- */

static int kind_open(struct bmi__job_source *source)
{
    return source->is_flow ? bmi__flow_context_open(source->context->instance, &source->id)
                           : bmi_trove_context_open(&source->id);
}

static void kind_close(struct bmi__job_source *source)
{
    if (source->is_flow)
        bmi_flow_context_close(source->id);
    else
        bmi_trove_context_close(source->id);
}

static int kind_notify(struct bmi__job_source *source, void (*notify)(void *argument))
{
    return source->is_flow ? bmi_flow_context_notify(source->id, notify, source)
                           : bmi_trove_context_notify(source->id, notify, source);
}

/* The descriptor for BMI's poller to watch. A flow context's own descriptor contains BMI's, and
 * cannot be put into that one; the poller polls the network anyway, so this is the descriptor of
 * the storage. Each context watches a copy, since an epoll set takes a descriptor once. */
static int kind_fd(struct bmi__job_source *source)
{
    int fd =
        bmi_trove_context_fd(source->is_flow ? bmi__flow_context_storage(source->id) : source->id);
    int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return copy >= 0 ? copy : fd < 0 ? fd : bmi__error(-errno);
}

static int open_locked(struct bmi__job_source *source)
{
    int result = kind_open(source);
    if (result < 0)
        return result;
    source->watch = (struct bmi_watch){.ready = source_readable, .fd = kind_fd(source)};
    result = source->watch.fd < 0 ? source->watch.fd : kind_notify(source, source_told);
    if (result == 0)
        result = bmi__error(
            bmi_method_watch_add(source->context->instance, &source->watch, EPOLLIN | EPOLLET));
    if (result == 0) {
        atomic_store_explicit(&source->open, true, memory_order_release);
        return 0;
    }
    if (source->watch.fd >= 0)
        close(source->watch.fd);
    kind_close(source);
    return result;
}

static int source_open(struct bmi__job_source *source)
{
    int result = 0;
    if (atomic_load_explicit(&source->open, memory_order_acquire))
        return 0;
    pthread_mutex_lock(&source->lock);
    if (!atomic_load_explicit(&source->open, memory_order_relaxed))
        result = open_locked(source);
    pthread_mutex_unlock(&source->lock);
    return result;
}

struct bmi__job *bmi__job_source_new(struct bmi_job_context *context, enum bmi_job_kind kind,
                                     const struct bmi_job_options *options, bmi_job_id_t *id,
                                     struct bmi_job_status *status, int *result)
{
    *result = -BMI_EINVAL;
    if (context != NULL)
        *result = source_open(kind == BMI_JOB_FLOW ? &context->flow : &context->trove);
    if (*result == 0)
        return bmi__job_new(context, kind, options, id, status, result);
    if (id != NULL)
        *id = 0;
    return NULL;
}

void bmi__job_source_init(struct bmi__job_source *source, struct bmi_job_context *context,
                          bool is_flow)
{
    source->context = context;
    source->is_flow = is_flow;
    pthread_mutex_init(&source->lock, NULL);
}

/* ---- closing --------------------------------------------------------------------------------- */

/* Only the poller may remove a watch. */
static void watch_remove(struct bmi_deferred *deferred)
{
    struct bmi__job_source *source =
        (struct bmi__job_source *)((char *)deferred - offsetof(struct bmi__job_source, removal));
    struct bmi_instance *instance = source->context->instance;
    struct context *network = source->context->network;
    bmi_method_watch_remove(instance, &source->watch);
    atomic_store(&source->unwatched, true); /* the last access to it */
    bmi__progress_notify(instance, context_waiters(network), 0);
}

static bool unwatched(struct waiter *waiter)
{
    return atomic_load((atomic_bool *)waiter->argument);
}

void bmi__job_source_quiet(struct bmi__job_source *source)
{
    struct bmi_instance *instance = source->context->instance;
    struct waiter waiter = {.instance = instance,
                            .ready = unwatched,
                            .argument = &source->unwatched,
                            .list = context_waiters(source->context->network),
                            .op = WAITER_SOME};
    if (!atomic_load(&source->open))
        return;
    source->removal.run = watch_remove;
    bmi_method_defer(instance, &source->removal);
    while (!atomic_load(&source->unwatched))
        bmi__progress_wait(&waiter, 1000);
    close(source->watch.fd);
    kind_notify(source, NULL);
}

void bmi__job_source_close(struct bmi__job_source *source)
{
    if (atomic_load(&source->open))
        kind_close(source);
    pthread_mutex_destroy(&source->lock);
}

/* ---- fetching -------------------------------------------------------------------------------- */

static int fetch(struct bmi__job_source *source)
{
    struct bmi_job_context *context = source->context;
    struct bmi__job_ends ends = {0};
    int64_t ids[BATCH];
    bmi_error_code_t errors[BATCH];
    bmi_size_t actuals[BATCH];
    void *jobs[BATCH];
    int count = 0;
    if (source->is_flow)
        bmi_flow_testcontext(BATCH, ids, &count, errors, actuals, jobs, 0, source->id);
    else
        bmi_trove_testcontext(BATCH, ids, &count, errors, actuals, jobs, 0, source->id);
    bmi_lock_take(&context->lock);
    for (int i = 0; i < count; i++)
        bmi__job_end_locked(context, jobs[i], errors[i], actuals[i], &ends);
    bmi_lock_give(&context->lock);
    bmi__job_after(context, &ends);
    return count;
}

bool bmi__job_source_take(struct bmi__job_source *source)
{
    bool any = false;
    if (!atomic_load(&source->pending) || !atomic_exchange(&source->pending, false))
        return false;
    bmi__tasks_hold(); /* a task might wait for a completion that only this call fetches */
    while (fetch(source) > 0)
        any = true;
    bmi__tasks_release();
    return any;
}
