/* SPDX-License-Identifier: BSD-3-Clause
 *
 * spare.c - the blocking pool: at most settings.spare_threads threads for tasks that may block, so
 * that these hold up no worker and no caller. The threads share one list of tasks, first in, first
 * out except for tasks of bmi__spare_first. There is always one idle thread as long as the limit
 * allows: the last idle thread starts another one before it runs a task, so that a submit starts
 * one only where that has failed. A thread moves to the CPUs of its task.
 *
 * The mutex of struct bmi__spare guards all of it, and is not held while a task runs or a thread is
 * joined. `count` changes under both this mutex and the manager's `making` (taken first), under
 * which threads are started.
 */
#include "task/internal.h"

#include <sched.h>
#include <stdlib.h>

static void *spare_main(void *argument);

/* Starts one more thread if none is idle and the limit allows. making held. */
static int spare_grow_locked(struct bmi_task_manager *manager)
{
    struct bmi__spare *spare = &manager->spare;
    pthread_mutex_lock(&spare->mutex);
    bool grow = spare->open && spare->idle == 0 && spare->count < spare->limit;
    if (grow) {
        spare->count++;
        spare->idle++;
    }
    uint32_t index = spare->count - 1;
    pthread_mutex_unlock(&spare->mutex);
    if (!grow)
        return 0;
    int result =
        bmi__thread_start(&spare->threads[index], spare_main, manager, -1, "bmi-spare", index);
    pthread_mutex_lock(&spare->mutex);
    spare->starved = result != 0;
    if (result != 0) {
        spare->count--;
        spare->idle--;
    }
    pthread_mutex_unlock(&spare->mutex);
    return result;
}

static void spare_grow(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->making);
    spare_grow_locked(manager); /* on failure the next submit tries again */
    pthread_mutex_unlock(&manager->making);
}

/* Takes the task that *link leads to, if there is one. */
static struct bmi_task *take_locked(struct bmi__spare *spare, struct bmi_task **link)
{
    struct bmi_task *task = *link;
    if (task != NULL) {
        *link = task->next;
        if (spare->end == &task->next)
            spare->end = link;
    }
    return task;
}

/* Waits for a task. Returns NULL when the thread must end. *last: it was the last idle one. */
static struct bmi_task *spare_take(struct bmi__spare *spare, bool *last)
{
    pthread_mutex_lock(&spare->mutex);
    while (spare->first == NULL && spare->open)
        pthread_cond_wait(&spare->arrived, &spare->mutex);
    struct bmi_task *task = spare->open ? take_locked(spare, &spare->first) : NULL;
    if (task != NULL)
        spare->idle--;
    *last = spare->idle == 0 && spare->count < spare->limit;
    pthread_mutex_unlock(&spare->mutex);
    return task;
}

/* Binds the caller to the CPUs of a task: those of the node, or those of `only`. */
static void spare_move(struct bmi_task_manager *manager, const struct bmi__task_node *node,
                       const struct bmi_cpuset *only)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    const struct bmi__topology_node *shape = node->shape;
    for (uint32_t i = shape->first; i < shape->first + shape->count; i++) {
        if (only == NULL || bmi_cpuset_has(only, (int)i))
            CPU_SET((size_t)manager->cpus[i].os, &mask);
    }
    sched_setaffinity(0, sizeof(mask), &mask); /* CPUs that are lost: it stays where it may be */
}

static void *spare_main(void *argument)
{
    struct bmi_task_manager *manager = argument;
    struct bmi__spare *spare = &manager->spare;
    const struct bmi__task_node *at = NULL; /* at its start, the CPUs that its starter may use:
                                               unknown */
    const struct bmi_cpuset *only = NULL;
    struct bmi_task *task;
    bool last;
    bmi__thread_is_of(manager);
    bmi__thread_raise(false); /* a short slice: it handles the event that it waited for soon */
    while ((task = spare_take(spare, &last)) != NULL) {
        if (last)
            spare_grow(manager);
        if (manager->topology.this_system && (task->node != at || task->only != only)) {
            at = task->node;
            only = task->only;
            spare_move(manager, at, only);
        }
        bmi__task_run(manager, task);
        pthread_mutex_lock(&spare->mutex);
        spare->idle++;
        pthread_mutex_unlock(&spare->mutex);
    }
    return NULL;
}

int bmi__spare_need(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->making);
    int result = manager->spare.count == 0 ? spare_grow_locked(manager) : 0;
    manager->spare.wanted = manager->spare.wanted || result == 0;
    pthread_mutex_unlock(&manager->making);
    return result;
}

void bmi__spare_first(struct bmi_task *task)
{
    task->options |= BMI__FIRST;
}

void bmi__spare_submit(struct bmi_task_manager *manager, struct bmi_task *task)
{
    struct bmi__spare *spare = &manager->spare;
    pthread_mutex_lock(&spare->mutex);
    struct bmi_task **link = task->options & BMI__FIRST ? &spare->first : spare->end;
    task->next = *link;
    *link = task;
    if (spare->end == link)
        spare->end = &task->next;
    bool starved = spare->starved;
    pthread_cond_signal(&spare->arrived);
    pthread_mutex_unlock(&spare->mutex);
    if (starved)
        spare_grow(manager);
}

bool bmi__spare_claim(struct bmi_task_manager *manager, const struct bmi_task *task)
{
    struct bmi__spare *spare = &manager->spare;
    pthread_mutex_lock(&spare->mutex);
    struct bmi_task **link = &spare->first;
    while (*link != NULL && *link != task)
        link = &(*link)->next;
    bool found = take_locked(spare, link) != NULL;
    pthread_mutex_unlock(&spare->mutex);
    return found;
}

struct bmi_task *bmi__spare_pop(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->spare.mutex);
    struct bmi_task *task = take_locked(&manager->spare, &manager->spare.first);
    pthread_mutex_unlock(&manager->spare.mutex);
    return task;
}

int bmi__spare_start(struct bmi_task_manager *manager)
{
    struct bmi__spare *spare = &manager->spare;
    pthread_mutex_lock(&manager->making);
    pthread_mutex_lock(&spare->mutex);
    spare->open = true;
    pthread_mutex_unlock(&spare->mutex);
    int result = spare->wanted ? spare_grow_locked(manager) : 0;
    pthread_mutex_unlock(&manager->making);
    if (result != 0)
        bmi__spare_stop(manager);
    return result;
}

void bmi__spare_stop(struct bmi_task_manager *manager)
{
    struct bmi__spare *spare = &manager->spare;
    bmi__gate_waits(&manager->control);
    pthread_mutex_lock(&manager->making); /* a thread that was about to start one has done so */
    pthread_mutex_lock(&spare->mutex);
    spare->open = false;
    pthread_cond_broadcast(&spare->arrived);
    pthread_mutex_unlock(&spare->mutex);
    pthread_mutex_unlock(&manager->making);
    for (uint32_t i = 0; i < spare->count; i++)
        pthread_join(spare->threads[i], NULL);
    pthread_mutex_lock(&manager->making);
    pthread_mutex_lock(&spare->mutex);
    spare->count = 0;
    spare->idle = 0;
    pthread_mutex_unlock(&spare->mutex);
    pthread_mutex_unlock(&manager->making);
}
