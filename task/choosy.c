/* SPDX-License-Identifier: BSD-3-Clause
 *
 * choosy.c - the affinity list, the second queue of a node: tasks whose set of CPUs is not exactly
 * the node's, e.g. the first CPU of each of two packages. They are rare, so this is a plain list
 * under a mutex; a CPU searches it from its start for the first task that it may take. Lock: the
 * list's own mutex; no lock is taken within it.
 */
#include "task/internal.h"

void bmi__choosy_init(struct bmi__choosy *choosy)
{
    pthread_mutex_init(&choosy->mutex, NULL);
    choosy->first = NULL;
    choosy->end = &choosy->first;
}

void bmi__choosy_push(struct bmi__choosy *choosy, struct bmi_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&choosy->mutex);
    *choosy->end = task;
    choosy->end = &task->next;
    atomic_fetch_add(&choosy->pushed, 1);
    pthread_mutex_unlock(&choosy->mutex);
}

static bool may_take(const struct bmi_task *task, const struct bmi_cpuset *served, uint32_t cpu)
{
    if (cpu == BMI__NO_CPU || bmi_cpuset_has(task->only, (int)cpu))
        return true;
    for (size_t i = 0; i < BMI_CPUSET_MAX / 64; i++) {
        if (task->only->words[i] & served->words[i])
            return false;
    }
    return true;
}

static struct bmi_task **find_locked(struct bmi__choosy *choosy, const struct bmi_cpuset *served,
                                     uint32_t cpu)
{
    struct bmi_task **link = &choosy->first;
    while (*link != NULL && !may_take(*link, served, cpu))
        link = &(*link)->next;
    return link;
}

/* Takes the task that *link leads to, if there is one. */
static struct bmi_task *take_locked(struct bmi__choosy *choosy, struct bmi_task **link)
{
    struct bmi_task *task = *link;
    if (task == NULL)
        return NULL;
    choosy->heads += link == &choosy->first;
    *link = task->next;
    if (choosy->end == &task->next)
        choosy->end = link;
    atomic_fetch_add(&choosy->popped, 1);
    return task;
}

struct bmi_task *bmi__choosy_pop(struct bmi__choosy *choosy, const struct bmi_cpuset *served,
                                 uint32_t cpu)
{
    pthread_mutex_lock(&choosy->mutex);
    struct bmi_task *task = take_locked(choosy, find_locked(choosy, served, cpu));
    pthread_mutex_unlock(&choosy->mutex);
    return task;
}

bool bmi__choosy_claim(struct bmi__choosy *choosy, const struct bmi_task *task)
{
    pthread_mutex_lock(&choosy->mutex);
    struct bmi_task **link = &choosy->first;
    while (*link != NULL && *link != task)
        link = &(*link)->next;
    bool found = take_locked(choosy, link) != NULL;
    pthread_mutex_unlock(&choosy->mutex);
    return found;
}

bool bmi__choosy_has(struct bmi__choosy *choosy, const struct bmi_cpuset *served, uint32_t cpu)
{
    pthread_mutex_lock(&choosy->mutex);
    bool found = *find_locked(choosy, served, cpu) != NULL;
    pthread_mutex_unlock(&choosy->mutex);
    return found;
}

uint64_t bmi__choosy_heads(struct bmi__choosy *choosy, const struct bmi_cpuset **only)
{
    pthread_mutex_lock(&choosy->mutex);
    uint64_t heads = choosy->heads;
    *only = choosy->first != NULL ? choosy->first->only : NULL;
    pthread_mutex_unlock(&choosy->mutex);
    return heads;
}
