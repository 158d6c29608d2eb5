/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.h - the system's part of memory.c, by hwloc. Any thread may call.
 */
#ifndef BMI_TASK_MEMORY_H
#define BMI_TASK_MEMORY_H

#include "bmi/task.h"
#include "task/error.h"

/* Binds memory to a node and moves the pages that lie elsewhere; -1: unbinds it, pages stay where
 * they are. Returns 0, or as bmi_task_memory_move. */
int bmi__memory_bind(const void *memory, uint64_t bytes, int node);
/* The node that all of it lies on; -1: on several, or none yet; errors are below that. */
int bmi__memory_node(const void *memory, uint64_t bytes);

/* The NUMA node of the CPU that the caller runs on, by the system's number; -1: none is known, or
 * the manager's CPUs are all of that node. Makes no system call. */
int bmi__memory_here(const struct bmi_task_manager *manager);

/* Moves the regions of a task that is about to run here and that follow it (next_touch). */
void bmi__memory_follow(struct bmi_task_manager *manager, const struct bmi_task_hints *hints);

#endif
