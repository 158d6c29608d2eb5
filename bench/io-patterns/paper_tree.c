/* SPDX-License-Identifier: BSD-3-Clause
 *
 * paper_tree.c - see paper_tree.h. A thread that has spun for a while yields, so that the holder of
 * the lock can run if the kernel has put another thread on its CPU.
 */
#include "paper_tree.h"

#include "bench.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define LINE 64
#define SPINS_BEFORE_YIELD 128

struct paper_list {
    _Alignas(LINE) atomic_bool locked;
    struct paper_task *first, *last; /* lock */
    atomic_uint length;              /* written under the lock */
    struct bmi_cpuset cpus;
};

/* The lists above a CPU, its own first. */
struct path {
    int count;
    struct paper_list **lists;
};

struct paper_tree {
    int count;
    struct paper_list *lists;
    struct path paths[BMI_CPUSET_MAX];
};

static inline void list_lock(struct paper_list *list)
{
    unsigned spins = 0;
    while (atomic_exchange_explicit(&list->locked, true, memory_order_acquire))
        while (atomic_load_explicit(&list->locked, memory_order_relaxed))
            if (++spins > SPINS_BEFORE_YIELD)
                sched_yield();
}

static inline void list_unlock(struct paper_list *list)
{
    atomic_store_explicit(&list->locked, false, memory_order_release);
}

void paper_prepare(struct paper_tree *tree, struct paper_task *task,
                   void (*function)(struct paper_task *task), const struct bmi_cpuset *cpus)
{
    int list = 0;
    while (list < tree->count && memcmp(&tree->lists[list].cpus, cpus, sizeof *cpus) != 0)
        list++;
    if (list == tree->count)
        die("a set of CPUs without a list");
    task->list = &tree->lists[list];
    task->function = function;
    atomic_init(&task->ended, true);
}

void paper_submit(struct paper_task *task)
{
    struct paper_list *list = task->list;
    task->next = NULL;
    atomic_store_explicit(&task->ended, false, memory_order_relaxed);
    list_lock(list);
    if (list->first)
        list->last->next = task;
    else
        list->first = task;
    list->last = task;
    atomic_store_explicit(&list->length, list->length + 1, memory_order_relaxed);
    list_unlock(list);
}

static struct paper_task *list_pop(struct paper_list *list)
{
    if (atomic_load_explicit(&list->length, memory_order_relaxed) == 0)
        return NULL;
    list_lock(list);
    struct paper_task *task = list->first;
    if (task) {
        list->first = task->next;
        atomic_store_explicit(&list->length, list->length - 1, memory_order_relaxed);
    }
    list_unlock(list);
    return task;
}

unsigned paper_schedule(struct paper_tree *tree, int cpu)
{
    const struct path *path = &tree->paths[cpu];
    unsigned run = 0;
    for (int i = 0; i < path->count; i++) {
        struct paper_task *task;
        while ((task = list_pop(path->lists[i])) != NULL) {
            task->function(task);
            atomic_store_explicit(&task->ended, true, memory_order_release);
            run++;
        }
    }
    return run;
}

bool paper_ended(struct paper_task *task)
{
    return atomic_load_explicit(&task->ended, memory_order_acquire);
}

/* The manager numbers its queues from the root, so a CPU's own list has the highest number. */
static void path_make(struct paper_tree *tree, int cpu)
{
    struct path *path = &tree->paths[cpu];
    path->lists = allocate((size_t)tree->count * sizeof *path->lists);
    for (int i = tree->count - 1; i >= 0; i--)
        if (bmi_cpuset_has(&tree->lists[i].cpus, cpu))
            path->lists[path->count++] = &tree->lists[i];
}

struct paper_tree *paper_tree_open(struct bmi_task_manager *manager)
{
    struct paper_tree *tree = allocate(sizeof *tree);
    struct bmi_task_queue_statistics statistics;
    struct bmi_cpuset cpus;
    memset(tree, 0, sizeof *tree);
    tree->count = bmi_task_queue_count(manager);
    tree->lists = allocate_pages((size_t)tree->count * sizeof *tree->lists);
    memset(tree->lists, 0, (size_t)tree->count * sizeof *tree->lists);
    for (int i = 0; i < tree->count; i++) {
        bmi_task_queue_statistics(manager, i, &statistics);
        tree->lists[i].cpus = statistics.cpus;
    }
    bmi_task_cpus(manager, &cpus);
    for (int cpu = bmi_cpuset_next(&cpus, 0); cpu >= 0; cpu = bmi_cpuset_next(&cpus, cpu + 1))
        path_make(tree, cpu);
    return tree;
}

void paper_tree_close(struct paper_tree *tree)
{
    for (int cpu = 0; cpu < BMI_CPUSET_MAX; cpu++)
        free(tree->paths[cpu].lists);
    free(tree->lists);
    free(tree);
}
