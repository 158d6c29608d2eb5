/* SPDX-License-Identifier: BSD-3-Clause
 *
 * paper_tree.h - the task scheduler of PIOMan's paper and nothing else, as a reference for the task
 * manager: a tree of lists, each under a spinlock. A CPU runs its own list, then each one above
 * (Algorithm 1); a list's first check for emptiness takes no lock (Algorithm 2).
 *
 * Locks: each list has one. Any thread may submit and schedule.
 */
#ifndef BENCH_PAPER_TREE_H
#define BENCH_PAPER_TREE_H

#include "bmi/task.h"

#include <stdatomic.h>
#include <stdbool.h>

struct paper_tree;

struct paper_task {
    struct paper_task *next;
    struct paper_list *list;
    void (*function)(struct paper_task *task);
    atomic_bool ended;
};

/* A tree with a list for each of the manager's queues. */
struct paper_tree *paper_tree_open(struct bmi_task_manager *manager);
void paper_tree_close(struct paper_tree *tree);

/* A task that these CPUs may run, which are those of one list. */
void paper_prepare(struct paper_tree *tree, struct paper_task *task,
                   void (*function)(struct paper_task *task), const struct bmi_cpuset *cpus);
void paper_submit(struct paper_task *task);
/* Runs tasks as this CPU. Returns: how many. */
unsigned paper_schedule(struct paper_tree *tree, int cpu);
bool paper_ended(struct paper_task *task);

#endif
