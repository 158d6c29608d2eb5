/* SPDX-License-Identifier: BSD-3-Clause
 *
 * driver.c - for contexts in the background: a task that polls the network and runs their timers.
 *
 * One task that may block waits inside BMI for all such contexts, on its own BMI context, in which
 * no operation ever completes. A completion in a job context's own BMI context submits that
 * context's polling task, through the hook; a due timer in its heap does so from here. Workers poll
 * and run the machines.
 *
 * `lock` guards the_driver; the list of contexts has its own lock, inside that one. A thread that
 * waits for tasks, or runs one, holds neither. The thread that closes the last context takes the
 * driver out, and waits for its task without the lock. If that task is further down on the same
 * stack (it ran, within its wait, a task that closes the context), the driver frees itself.
 */
#include <errno.h>
#include <stdlib.h>

#include "bmi/base/clock.h"
#include "bmi/progress/progress.h"
#include "bmi/state/context.h"
#include "job/internal.h"
#include "task/internal.h"

struct bmi__job_driver {
    unsigned users; /* lock */
    bmi_context_id bmi;
    struct context *network;
    struct bmi_task task;
    atomic_bool look, stop;
    bool orphan; /* its task frees it; used only by that task's thread */
    pthread_mutex_t contexts_lock;
    struct bmi_job_context *contexts; /* contexts_lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bmi__job_driver *the_driver; /* lock */

void bmi__job_driver_look(struct bmi__job_driver *driver)
{
    atomic_store(&driver->look, true);
    bmi__progress_notify(driver->network, 0);
}

static bool driver_ready(struct waiter *waiter)
{
    struct bmi__job_driver *driver = waiter->argument;
    return atomic_load(&driver->look) || atomic_load(&driver->stop);
}

/* Submits the polling task of each context whose timer is due. Returns the time of the
 * next timer. */
static uint64_t timers_look(struct bmi__job_driver *driver)
{
    uint64_t now = bmi__monotonic_ns(), next = UINT64_MAX;
    pthread_mutex_lock(&driver->contexts_lock);
    for (struct bmi_job_context *context = driver->contexts; context != NULL;
         context = context->driver_next) {
        uint64_t due = atomic_load(&context->next_due_ns);
        if (due <= now) {
            bmi_task_submit(&context->poll); /* the driver checks again when that task has run */
            due = now + 1000000u;
        }
        if (due < next)
            next = due;
    }
    pthread_mutex_unlock(&driver->contexts_lock);
    return next;
}

static void driver_free(struct bmi__job_driver *driver)
{
    BMI_close_context(driver->bmi);
    pthread_mutex_destroy(&driver->contexts_lock);
    free(driver);
}

static enum bmi_task_verdict driver_run(struct bmi_task *task, void *argument)
{
    struct bmi__job_driver *driver = argument;
    struct waiter waiter = {.ready = driver_ready,
                            .argument = driver,
                            .context = driver->network,
                            .op = WAITER_SOME};
    (void)task;
    while (!atomic_load(&driver->stop)) {
        atomic_store(&driver->look, false);
        uint64_t due = timers_look(driver), now = bmi__monotonic_ns();
        uint64_t ms = due <= now ? 1 : (due - now + 999999) / 1000000;
        bmi__progress_wait(&waiter, ms > 1000000 ? 1000000 : (int)ms);
    }
    if (!driver->orphan)
        return BMI_TASK_DONE;
    driver_free(driver);
    return BMI_TASK_GONE;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int driver_begin(struct bmi__job_driver *driver)
{
    struct bmi_task_attributes attributes = {.function = driver_run,
                                             .argument = driver,
                                             .options = BMI_TASK_MAY_BLOCK};
    int result = BMI_open_context(&driver->bmi);
    if (result < 0)
        return result;
    driver->network = bmi__context_find(driver->bmi);
    bmi__context_hide(driver->network);
    if (bmi_task_prepare(&driver->task, NULL, &attributes) < 0 ||
        bmi_task_submit(&driver->task) < 0) {
        BMI_close_context(driver->bmi);
        return -BMI_EAGAIN;
    }
    return 0;
}

static struct bmi__job_driver *driver_make_locked(int *result)
{
    struct bmi__job_driver *driver = calloc(1, sizeof *driver);
    *result = -BMI_ENOMEM;
    if (driver == NULL)
        return NULL;
    pthread_mutex_init(&driver->contexts_lock, NULL);
    *result = driver_begin(driver);
    if (*result < 0) {
        pthread_mutex_destroy(&driver->contexts_lock);
        free(driver);
        return NULL;
    }
    return the_driver = driver;
}

/* The driver is no longer reachable from the_driver. */
static void driver_end(struct bmi__job_driver *driver)
{
    atomic_store(&driver->stop, true);
    bmi__progress_notify(driver->network, 0);
    driver->orphan = bmi__task_await(&driver->task) == -BMI_EDEADLK;
    if (!driver->orphan)
        driver_free(driver);
}

/* A forked child has neither the driver's thread nor its contexts. */
static void after_fork_child(void)
{
    pthread_mutex_init(&lock, NULL);
    the_driver = NULL;
}

static void fork_watch(void)
{
    pthread_atfork(NULL, NULL, after_fork_child);
}

int bmi__job_driver_join(struct bmi_job_context *context)
{
    static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
    int result = 0;
    pthread_once(&fork_once, fork_watch);
    pthread_mutex_lock(&lock);
    struct bmi__job_driver *driver = the_driver;
    if (driver == NULL)
        driver = driver_make_locked(&result);
    if (driver != NULL) {
        driver->users++;
        context->driver = driver;
        pthread_mutex_lock(&driver->contexts_lock);
        context->driver_next = driver->contexts;
        driver->contexts = context;
        pthread_mutex_unlock(&driver->contexts_lock);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* A polling task that a worker has begun still calls bmi__job_driver_look: close waits for it
 * between this and bmi__job_driver_leave. */
void bmi__job_driver_unwatch(struct bmi_job_context *context)
{
    struct bmi__job_driver *driver = context->driver;
    pthread_mutex_lock(&driver->contexts_lock);
    struct bmi_job_context **place = &driver->contexts;
    while (*place != context)
        place = &(*place)->driver_next;
    *place = context->driver_next;
    pthread_mutex_unlock(&driver->contexts_lock);
}

void bmi__job_driver_leave(struct bmi_job_context *context)
{
    struct bmi__job_driver *driver = context->driver;
    pthread_mutex_lock(&lock);
    bool last = --driver->users == 0;
    if (last)
        the_driver = NULL;
    pthread_mutex_unlock(&lock);
    if (last)
        driver_end(driver);
}
