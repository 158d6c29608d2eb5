/* SPDX-License-Identifier: BSD-3-Clause
 *
 * poller.c - for contexts in the background: a task for each instance that has such contexts, which
 * polls the network and runs their timers.
 *
 * The task may block. It waits inside BMI for all of these contexts, on its own BMI context, in
 * which no operation ever completes. A completion in a job context's own BMI context submits that
 * context's polling task, through the hook; a due timer in its heap does so from here. Workers poll
 * and run the machines.
 *
 * `lock` guards the list of pollers; a poller's list of contexts has its own lock, inside that one.
 * A thread that waits for tasks, or runs one, holds neither. The thread that closes an instance's
 * last context takes the poller out, and waits for its task without the lock. If that task is
 * further down on the same stack (it ran, within its wait, a task that closes the context), the
 * poller frees itself.
 */
#include <errno.h>
#include <stdlib.h>

#include "bmi/base/clock.h"
#include "bmi/instance.h"
#include "bmi/progress/progress.h"
#include "bmi/state/context.h"
#include "job/internal.h"
#include "task/internal.h"

struct bmi__job_poller {
    struct bmi_instance *instance;
    struct bmi__job_poller *next; /* lock */
    unsigned users;               /* lock */
    bmi_context_id bmi;
    struct context *network;
    struct bmi_task task;
    atomic_bool look, stop;
    bool orphan; /* its task frees it; used only by that task's thread */
    pthread_mutex_t contexts_lock;
    struct bmi_job_context *contexts; /* contexts_lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bmi__job_poller *pollers; /* lock; at most one for each instance */

void bmi__job_poller_look(struct bmi__job_poller *poller)
{
    atomic_store(&poller->look, true);
    bmi__progress_notify(poller->instance, context_waiters(poller->network), 0);
}

static bool poller_ready(struct waiter *waiter)
{
    struct bmi__job_poller *poller = waiter->argument;
    return atomic_load(&poller->look) || atomic_load(&poller->stop);
}

/* Submits the polling task of each context whose timer is due. Returns the time of the
 * next timer. */
static uint64_t timers_look(struct bmi__job_poller *poller)
{
    uint64_t now = bmi__monotonic_ns(), next = UINT64_MAX;
    pthread_mutex_lock(&poller->contexts_lock);
    for (struct bmi_job_context *context = poller->contexts; context != NULL;
         context = context->poller_next) {
        uint64_t due = atomic_load(&context->next_due_ns);
        if (due <= now) {
            bmi_task_submit(&context->poll); /* the poller checks again when that task has run */
            due = now + 1000000u;
        }
        if (due < next)
            next = due;
    }
    pthread_mutex_unlock(&poller->contexts_lock);
    return next;
}

static void poller_free(struct bmi__job_poller *poller)
{
    BMI_close_context(poller->bmi);
    bmi__blocking_unreserve(bmi_task_manager_default());
    pthread_mutex_destroy(&poller->contexts_lock);
    free(poller);
}

static enum bmi_task_status poller_run(struct bmi_task *task, void *argument)
{
    struct bmi__job_poller *poller = argument;
    struct waiter waiter = {.instance = poller->instance,
                            .ready = poller_ready,
                            .argument = poller,
                            .list = context_waiters(poller->network),
                            .op = WAITER_SOME};
    (void)task;
    while (!atomic_load(&poller->stop)) {
        atomic_store(&poller->look, false);
        uint64_t due = timers_look(poller), now = bmi__monotonic_ns();
        uint64_t ms = due <= now ? 1 : (due - now + 999999) / 1000000;
        bmi__progress_wait(&waiter, ms > 1000000 ? 1000000 : (int)ms);
    }
    if (!poller->orphan)
        return BMI_TASK_DONE;
    poller_free(poller);
    return BMI_TASK_GONE;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int poller_begin(struct bmi__job_poller *poller)
{
    struct bmi_task_attributes attributes = {.function = poller_run,
                                             .argument = poller,
                                             .options = BMI_TASK_MAY_BLOCK};
    int result = bmi_instance_open_context(poller->instance, &poller->bmi);
    if (result < 0)
        return result;
    poller->network = bmi__context_find(poller->bmi);
    bmi__context_hide(poller->network);
    struct bmi_task_manager *manager = bmi_task_manager_default();
    result = bmi__blocking_reserve(manager);
    if (result == 0 && (bmi_task_prepare(&poller->task, NULL, &attributes) < 0 ||
                        bmi_task_submit(&poller->task) < 0)) {
        bmi__blocking_unreserve(manager);
        result = -BMI_EAGAIN;
    }
    if (result < 0)
        BMI_close_context(poller->bmi);
    return result;
}

static struct bmi__job_poller *poller_make_locked(struct bmi_instance *instance, int *result)
{
    struct bmi__job_poller *poller = calloc(1, sizeof *poller);
    *result = -BMI_ENOMEM;
    if (poller == NULL)
        return NULL;
    poller->instance = instance;
    pthread_mutex_init(&poller->contexts_lock, NULL);
    *result = poller_begin(poller);
    if (*result < 0) {
        pthread_mutex_destroy(&poller->contexts_lock);
        free(poller);
        return NULL;
    }
    poller->next = pollers;
    return pollers = poller;
}

/* The poller is no longer in the list. */
static void poller_end(struct bmi__job_poller *poller)
{
    atomic_store(&poller->stop, true);
    bmi__progress_notify(poller->instance, context_waiters(poller->network), 0);
    poller->orphan = bmi__task_await(&poller->task) == -BMI_EDEADLK;
    if (!poller->orphan)
        poller_free(poller);
}

/* A forked child has neither the pollers' threads nor their contexts. */
static void after_fork_child(void)
{
    pthread_mutex_init(&lock, NULL);
    pollers = NULL;
}

static void fork_watch(void)
{
    pthread_atfork(NULL, NULL, after_fork_child);
}

static struct bmi__job_poller *poller_find_locked(const struct bmi_instance *instance)
{
    struct bmi__job_poller *poller = pollers;
    while (poller != NULL && poller->instance != instance)
        poller = poller->next;
    return poller;
}

int bmi__job_poller_join(struct bmi_job_context *context)
{
    static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
    int result = 0;
    pthread_once(&fork_once, fork_watch);
    pthread_mutex_lock(&lock);
    struct bmi__job_poller *poller = poller_find_locked(context->instance);
    if (poller == NULL)
        poller = poller_make_locked(context->instance, &result);
    if (poller != NULL) {
        poller->users++;
        context->poller = poller;
        pthread_mutex_lock(&poller->contexts_lock);
        context->poller_next = poller->contexts;
        poller->contexts = context;
        pthread_mutex_unlock(&poller->contexts_lock);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* A polling task that a worker has begun still calls bmi__job_poller_look: close waits for it
 * between this and bmi__job_poller_leave. */
void bmi__job_poller_unwatch(struct bmi_job_context *context)
{
    struct bmi__job_poller *poller = context->poller;
    pthread_mutex_lock(&poller->contexts_lock);
    struct bmi_job_context **place = &poller->contexts;
    while (*place != context)
        place = &(*place)->poller_next;
    *place = context->poller_next;
    pthread_mutex_unlock(&poller->contexts_lock);
}

static void unlist_locked(struct bmi__job_poller *poller)
{
    struct bmi__job_poller **place = &pollers;
    while (*place != poller)
        place = &(*place)->next;
    *place = poller->next;
}

void bmi__job_poller_leave(struct bmi_job_context *context)
{
    struct bmi__job_poller *poller = context->poller;
    pthread_mutex_lock(&lock);
    bool last = --poller->users == 0;
    if (last)
        unlist_locked(poller);
    pthread_mutex_unlock(&lock);
    if (last)
        poller_end(poller);
}
