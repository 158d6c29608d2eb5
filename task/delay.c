/* SPDX-License-Identifier: BSD-3-Clause
 *
 * delay.c - repeating tasks between two runs: those with an interval wait in a list, sorted by due
 * time, and the timer's thread queues them then. Such a task is QUEUED, but in no queue. A cancel
 * queues it at once, so that its end does not wait for the interval.
 *
 * Lock: `delaying`, for the list. No lock is taken within it, and no task is queued under it.
 */
#include "task/internal.h"

static void due_set_locked(struct bmi_task_manager *manager)
{
    const struct bmi_task *first = manager->delayed;
    atomic_store(&manager->delayed_ns, first != NULL ? first->due_ns : UINT64_MAX);
}

/* Takes the task that *link leads to out of the list. */
static struct bmi_task *take_locked(struct bmi_task_manager *manager, struct bmi_task **link)
{
    struct bmi_task *task = *link;
    *link = task->next;
    due_set_locked(manager);
    return task;
}

void bmi__delay(struct bmi_task_manager *manager, struct bmi_task *task)
{
    struct bmi_task **link = &manager->delayed;
    task->due_ns = bmi__now_ns() + (uint64_t)task->interval_us * 1000;
    pthread_mutex_lock(&manager->delaying);
    bool cancelled = bmi_task_cancel_wanted(task), first = false;
    if (!cancelled) {
        while (*link != NULL && (*link)->due_ns <= task->due_ns)
            link = &(*link)->next;
        task->next = *link;
        *link = task;
        first = manager->delayed == task;
        due_set_locked(manager);
    }
    pthread_mutex_unlock(&manager->delaying);
    if (cancelled)
        bmi__task_queue(manager, task);
    else if (first)
        bmi__event_post(&manager->timer_event);
}

void bmi__delay_end(struct bmi_task_manager *manager, const struct bmi_task *task)
{
    struct bmi_task **link = &manager->delayed, *found = NULL;
    pthread_mutex_lock(&manager->delaying);
    while (*link != NULL && *link != task)
        link = &(*link)->next;
    if (*link != NULL)
        found = take_locked(manager, link);
    pthread_mutex_unlock(&manager->delaying);
    if (found != NULL)
        bmi__task_queue(manager, found);
}

struct bmi_task *bmi__delayed_pop(struct bmi_task_manager *manager, uint64_t now_ns)
{
    struct bmi_task *task = NULL;
    if (atomic_load(&manager->delayed_ns) > now_ns)
        return NULL;
    pthread_mutex_lock(&manager->delaying);
    if (manager->delayed != NULL && manager->delayed->due_ns <= now_ns)
        task = take_locked(manager, &manager->delayed);
    pthread_mutex_unlock(&manager->delaying);
    return task;
}
