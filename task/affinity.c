/* SPDX-License-Identifier: BSD-3-Clause
 *
 * affinity.c - the affinity list, the second queue of a node: tasks whose set of CPUs is not
 * exactly the node's, e.g. the first CPU of each of two packages, and tasks of groups, which other
 * nodes take out of the middle. This is a plain list under a mutex; a CPU searches it from its
 * start for the first task that it may take. Lock: the list's own mutex; no lock is taken within
 * it.
 */
#include "task/internal.h"

void bmi__affinity_init(struct bmi__affinity *affinity)
{
    pthread_mutex_init(&affinity->mutex, NULL);
    affinity->first = NULL;
    affinity->end = &affinity->first;
}

void bmi__affinity_push(struct bmi__affinity *affinity, struct bmi_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&affinity->mutex);
    *affinity->end = task;
    affinity->end = &task->next;
    atomic_fetch_add(&affinity->pushed, 1);
    pthread_mutex_unlock(&affinity->mutex);
}

static bool may_take(const struct bmi_task *task, const struct bmi_cpuset *served, uint32_t cpu)
{
    if (cpu == BMI__NO_CPU || task->only == NULL || bmi_cpuset_has(task->only, (int)cpu))
        return true;
    for (size_t i = 0; i < BMI_CPUSET_MAX / 64; i++) {
        if (task->only->words[i] & served->words[i])
            return false;
    }
    return true;
}

static struct bmi_task **find_locked(struct bmi__affinity *affinity,
                                     const struct bmi_cpuset *served, uint32_t cpu)
{
    struct bmi_task **link = &affinity->first;
    while (*link != NULL && !may_take(*link, served, cpu))
        link = &(*link)->next;
    return link;
}

/* Takes the task that *link leads to, if there is one. */
static struct bmi_task *take_locked(struct bmi__affinity *affinity, struct bmi_task **link)
{
    struct bmi_task *task = *link;
    if (task == NULL)
        return NULL;
    affinity->heads += link == &affinity->first;
    *link = task->next;
    if (affinity->end == &task->next)
        affinity->end = link;
    atomic_fetch_add(&affinity->popped, 1);
    return task;
}

struct bmi_task *bmi__affinity_pop(struct bmi__affinity *affinity, const struct bmi_cpuset *served,
                                   uint32_t cpu)
{
    pthread_mutex_lock(&affinity->mutex);
    struct bmi_task *task = take_locked(affinity, find_locked(affinity, served, cpu));
    pthread_mutex_unlock(&affinity->mutex);
    return task;
}

struct bmi_task *bmi__affinity_take(struct bmi__affinity *affinity,
                                    const struct bmi_task_group *group, uint32_t part,
                                    uint32_t most)
{
    struct bmi_task *taken = NULL, **end = &taken;
    struct bmi_task **link = &affinity->first;
    pthread_mutex_lock(&affinity->mutex);
    while (*link != NULL && most > 0) {
        if ((*link)->group != group || (*link)->cpu != part) {
            link = &(*link)->next;
            continue;
        }
        *end = take_locked(affinity, link);
        end = &(*end)->next;
        most--;
    }
    pthread_mutex_unlock(&affinity->mutex);
    *end = NULL;
    return taken;
}

bool bmi__affinity_claim(struct bmi__affinity *affinity, const struct bmi_task *task)
{
    pthread_mutex_lock(&affinity->mutex);
    struct bmi_task **link = &affinity->first;
    while (*link != NULL && *link != task)
        link = &(*link)->next;
    bool found = take_locked(affinity, link) != NULL;
    pthread_mutex_unlock(&affinity->mutex);
    return found;
}

bool bmi__affinity_has(struct bmi__affinity *affinity, const struct bmi_cpuset *served,
                       uint32_t cpu)
{
    pthread_mutex_lock(&affinity->mutex);
    bool found = *find_locked(affinity, served, cpu) != NULL;
    pthread_mutex_unlock(&affinity->mutex);
    return found;
}

uint64_t bmi__affinity_heads(struct bmi__affinity *affinity, const struct bmi_cpuset **only)
{
    pthread_mutex_lock(&affinity->mutex);
    uint64_t heads = affinity->heads;
    *only = affinity->first != NULL ? affinity->first->only : NULL;
    pthread_mutex_unlock(&affinity->mutex);
    return heads;
}
