/* SPDX-License-Identifier: BSD-3-Clause
 *
 * driver.c - for contexts in the background: drives the network, and watches their timers.
 *
 * One task that may block, for all such contexts, sits in BMI's wait, on a BMI
 * context of its own in which nothing ever completes. What completes in a job context's own BMI
 * context submits that one's polling task, by the hook; what is due in its heap does so from here.
 * Polling and all that follows runs on workers.
 *
 * `lock` guards whether there is a driver; its list of contexts has a lock of its own, inside that.
 * Neither is held while anything waits for tasks, or runs any. Whoever is the last to leave takes
 * the driver out, and waits for its task without the lock; where that lies below on the own stack,
 * since a task that it ran within its wait closes the context, it frees itself.
 */
#include <errno.h>
#include <stdlib.h>

#include "bmi/progress/progress.h"
#include "job/internal.h"
#include "task/internal.h"

struct bmi__job_driver {
    unsigned users; /* lock */
    bmi_context_id bmi;
    struct context *network;
    struct bmi_task task;
    atomic_bool look, stop;
    bool orphan; /* its task frees it; that one's thread's */
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

/* Has contexts polled whose time has come; returns when the next one's will. */
static uint64_t timers_look(struct bmi__job_driver *driver)
{
    uint64_t now = bmi__monotonic_ns(), next = UINT64_MAX;
    pthread_mutex_lock(&driver->contexts_lock);
    for (struct bmi_job_context *context = driver->contexts; context != NULL;
         context = context->driver_next) {
        uint64_t due = atomic_load(&context->next_due_ns);
        if (due <= now) {
            bmi_task_submit(&context->poll); /* it looks again when it is done */
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

/* Nobody finds it any more. */
static void driver_end(struct bmi__job_driver *driver)
{
    atomic_store(&driver->stop, true);
    bmi__progress_notify(driver->network, 0);
    driver->orphan = bmi__task_await(&driver->task) == -BMI_EDEADLK;
    if (!driver->orphan)
        driver_free(driver);
}

/* A child has neither the driver's thread nor the contexts that it drove. */
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
