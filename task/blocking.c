/* SPDX-License-Identifier: BSD-3-Clause
 *
 * blocking.c - the blocking pool: threads for tasks that may block, so that these hold up no worker
 * and no caller. At most settings.blocking_threads of its tasks run at a time, and one more for
 * each bmi__blocking_reserve: the library's own tasks that run for as long as the program wants
 * must not take the program's threads. The threads share one list of tasks, first in, first out
 * except for tasks of bmi__blocking_first. There is always one idle thread as long as the limit
 * allows: the last idle thread starts another one before it runs a task, so that a submit starts
 * one only where that has failed. A thread moves to the CPUs of its task.
 *
 * The mutex of struct bmi__blocking guards all of it, and is not held while a task runs or a thread
 * is joined. `count`, `limit`, and `threads` change under both this mutex and the manager's
 * `making` (taken first), under which threads are started.
 */
#include "task/internal.h"

#include <stdlib.h>

static void *pool_main(void *argument);

/* Starts one more thread if none is idle and the limit allows. making held. */
static int pool_grow_locked(struct bmi_task_manager *manager)
{
    struct bmi__blocking *pool = &manager->blocking;
    pthread_mutex_lock(&pool->mutex);
    bool grow = pool->open && pool->idle == 0 && pool->count < pool->limit;
    if (grow) {
        pool->count++;
        pool->idle++;
    }
    uint32_t index = pool->count - 1;
    pthread_mutex_unlock(&pool->mutex);
    if (!grow)
        return 0;
    int result =
        bmi__thread_start(&pool->threads[index], pool_main, manager, -1, "bmi-blocking", index);
    pthread_mutex_lock(&pool->mutex);
    pool->starved = result != 0;
    if (result != 0) {
        pool->count--;
        pool->idle--;
    }
    pthread_mutex_unlock(&pool->mutex);
    return result;
}

static void pool_grow(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->making);
    pool_grow_locked(manager); /* on failure the next submit tries again */
    pthread_mutex_unlock(&manager->making);
}

/* Takes the task that *link leads to, if there is one. */
static struct bmi_task *take_locked(struct bmi__blocking *pool, struct bmi_task **link)
{
    struct bmi_task *task = *link;
    if (task != NULL) {
        *link = task->next;
        if (pool->end == &task->next)
            pool->end = link;
    }
    return task;
}

/* Waits for a task. Returns NULL when the thread must end. *last: it was the last idle one. */
static struct bmi_task *pool_take(struct bmi__blocking *pool, bool *last)
{
    pthread_mutex_lock(&pool->mutex);
    while (pool->open && (pool->first == NULL || pool->count - pool->idle >= pool->limit))
        pthread_cond_wait(&pool->arrived, &pool->mutex);
    struct bmi_task *task = pool->open ? take_locked(pool, &pool->first) : NULL;
    if (task != NULL)
        pool->idle--;
    *last = pool->idle == 0 && pool->count < pool->limit;
    pthread_mutex_unlock(&pool->mutex);
    return task;
}

/* Binds the caller to the CPUs of a task: those of the node, or those of `only`. */
static void pool_move(struct bmi_task_manager *manager, const struct bmi__task_node *node,
                      const struct bmi_cpuset *only)
{
    struct bmi_cpuset cpus;
    bmi_cpuset_clear(&cpus);
    const struct bmi__topology_node *shape = node->shape;
    for (uint32_t i = shape->first; i < shape->first + shape->count; i++) {
        if (only == NULL || bmi_cpuset_has(only, (int)i))
            bmi_cpuset_add(&cpus, manager->cpus[i].os);
    }
    bmi__thread_bind(&cpus); /* if the CPUs are gone it stays as it is */
}

static void *pool_main(void *argument)
{
    struct bmi_task_manager *manager = argument;
    struct bmi__blocking *pool = &manager->blocking;
    const struct bmi__task_node *at = NULL; /* at its start, the CPUs that its starter may use:
                                               unknown */
    const struct bmi_cpuset *only = NULL;
    struct bmi_task *task;
    bool last;
    bmi__thread_is_of(manager);
    bmi__thread_raise(false); /* a short slice: it handles the event that it waited for soon */
    while ((task = pool_take(pool, &last)) != NULL) {
        if (last)
            pool_grow(manager);
        if (manager->topology.this_system && (task->node != at || task->only != only)) {
            at = task->node;
            only = task->only;
            pool_move(manager, at, only);
        }
        bmi__task_run(manager, task);
        pthread_mutex_lock(&pool->mutex);
        pool->idle++;
        pthread_mutex_unlock(&pool->mutex);
    }
    return NULL;
}

int bmi__blocking_need(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->making);
    int result = manager->blocking.count == 0 ? pool_grow_locked(manager) : 0;
    manager->blocking.wanted = manager->blocking.wanted || result == 0;
    pthread_mutex_unlock(&manager->making);
    return result;
}

int bmi__blocking_reserve(struct bmi_task_manager *manager)
{
    struct bmi__blocking *pool = &manager->blocking;
    int result = 0;
    pthread_mutex_lock(&manager->making);
    pthread_mutex_lock(&pool->mutex);
    uint32_t most = pool->count > pool->limit ? pool->count : pool->limit;
    pthread_t *threads = realloc(pool->threads, (most + 2) * sizeof *threads);
    if (threads == NULL) {
        result = -BMI_ENOMEM;
    } else {
        pool->threads = threads;
        pool->limit++;
        pthread_cond_signal(&pool->arrived); /* a task may have waited for the limit */
    }
    pthread_mutex_unlock(&pool->mutex);
    if (result == 0 && pool->wanted)
        pool_grow_locked(manager); /* likewise; on failure the next submit tries again */
    pthread_mutex_unlock(&manager->making);
    return result;
}

void bmi__blocking_unreserve(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->making);
    pthread_mutex_lock(&manager->blocking.mutex);
    manager->blocking.limit--; /* a thread too many stays, idle, until the manager stops */
    pthread_mutex_unlock(&manager->blocking.mutex);
    pthread_mutex_unlock(&manager->making);
}

void bmi__blocking_first(struct bmi_task *task)
{
    task->options |= BMI__FIRST;
}

void bmi__blocking_submit(struct bmi_task_manager *manager, struct bmi_task *task)
{
    struct bmi__blocking *pool = &manager->blocking;
    pthread_mutex_lock(&pool->mutex);
    struct bmi_task **link = task->options & BMI__FIRST ? &pool->first : pool->end;
    task->next = *link;
    *link = task;
    if (pool->end == link)
        pool->end = &task->next;
    bool starved = pool->starved;
    pthread_cond_signal(&pool->arrived);
    pthread_mutex_unlock(&pool->mutex);
    if (starved)
        pool_grow(manager);
}

bool bmi__blocking_claim(struct bmi_task_manager *manager, const struct bmi_task *task)
{
    struct bmi__blocking *pool = &manager->blocking;
    pthread_mutex_lock(&pool->mutex);
    struct bmi_task **link = &pool->first;
    while (*link != NULL && *link != task)
        link = &(*link)->next;
    bool found = take_locked(pool, link) != NULL;
    pthread_mutex_unlock(&pool->mutex);
    return found;
}

struct bmi_task *bmi__blocking_pop(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->blocking.mutex);
    struct bmi_task *task = take_locked(&manager->blocking, &manager->blocking.first);
    pthread_mutex_unlock(&manager->blocking.mutex);
    return task;
}

int bmi__blocking_start(struct bmi_task_manager *manager)
{
    struct bmi__blocking *pool = &manager->blocking;
    pthread_mutex_lock(&manager->making);
    pthread_mutex_lock(&pool->mutex);
    pool->open = true;
    pthread_mutex_unlock(&pool->mutex);
    int result = pool->wanted ? pool_grow_locked(manager) : 0;
    pthread_mutex_unlock(&manager->making);
    if (result != 0)
        bmi__blocking_stop(manager);
    return result;
}

void bmi__blocking_stop(struct bmi_task_manager *manager)
{
    struct bmi__blocking *pool = &manager->blocking;
    bmi__checked_lock_waits(&manager->control);
    pthread_mutex_lock(&manager->making); /* a thread that was about to start one has done so */
    pthread_mutex_lock(&pool->mutex);
    pool->open = false;
    pthread_cond_broadcast(&pool->arrived);
    pthread_mutex_unlock(&pool->mutex);
    pthread_mutex_unlock(&manager->making);
    for (uint32_t i = 0; i < pool->count; i++) {
        pthread_mutex_lock(&manager->making);
        pthread_t thread = pool->threads[i];
        pthread_mutex_unlock(&manager->making);
        pthread_join(thread, NULL);
    }
    pthread_mutex_lock(&manager->making);
    pthread_mutex_lock(&pool->mutex);
    pool->count = 0;
    pool->idle = 0;
    pthread_mutex_unlock(&pool->mutex);
    pthread_mutex_unlock(&manager->making);
}
