/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wake.c - makes a thread poll a context: one that waits in a test call, or a worker. The hooks
 * through which BMI reports completions and unexpected messages.
 */
#include "bmi/connection/unexpected.h"
#include "bmi/progress/progress.h"
#include "job/internal.h"

/* Contexts of all instances that ever wanted an unexpected message. A thread may take the lock with
 * locks of BMI held. */
static pthread_mutex_t wants_lock = PTHREAD_MUTEX_INITIALIZER;
static struct bmi_job_context *wants; /* wants_lock */

void bmi__job_notify(struct bmi_job_context *context)
{
    bmi__progress_notify(context->instance, context_waiters(context->network), 0);
    if (atomic_load(&context->event_fd) >= 0)
        bmi__job_fd_signal(context);
}

void bmi__job_poll_soon(struct bmi_job_context *context)
{
    if (context->background)
        bmi_task_submit(&context->poll); /* -EBUSY: it will run anyway */
    else
        bmi__job_notify(context);
}

static void completion_hook(void *argument, bool unexpected)
{
    struct bmi_job_context *context = argument;
    (void)unexpected;
    bmi_task_submit(&context->poll); /* -EBUSY: it will run anyway */
}

void bmi__job_hook(struct bmi_job_context *context)
{
    bmi__context_set_hook(context->network, completion_hook, context);
}

/* Any context of the instance that wants a message may take it. */
static void unexpected_hook(struct bmi_instance *instance)
{
    pthread_mutex_lock(&wants_lock);
    for (struct bmi_job_context *context = wants; context != NULL; context = context->wants_next)
        if (context->instance == instance && atomic_load(&context->unexpected_wanted) > 0)
            bmi__job_poll_soon(context);
    pthread_mutex_unlock(&wants_lock);
}

void bmi__job_wants_unexpected(struct bmi_job_context *context)
{
    pthread_mutex_lock(&wants_lock);
    if (!context->wants_listed) {
        context->wants_listed = true;
        context->wants_next = wants;
        wants = context;
        bmi__unexpected_set_hook(context->instance, unexpected_hook);
    }
    pthread_mutex_unlock(&wants_lock);
}

void bmi__job_hooks_end(struct bmi_job_context *context)
{
    pthread_mutex_lock(&wants_lock);
    struct bmi_job_context **place = &wants;
    while (context->wants_listed && *place != context)
        place = &(*place)->wants_next;
    if (context->wants_listed)
        *place = context->wants_next;
    pthread_mutex_unlock(&wants_lock);
    bmi__context_set_hook(context->network, NULL, NULL);
}
