/* SPDX-License-Identifier: BSD-3-Clause
 *
 * task_group.h - groups of tasks that the scheduler places with their memory, after the bubbles of
 * "Dynamic Task and Data Placement over NUMA Architectures" (Broquedis, Furmento, Goglin, Namyst,
 * Wacrenier, 2009). Groups mirror the program's structure: a parallel section, a client's requests,
 * the flow of a file. Each has hints on the memory that its tasks use.
 *
 * A group's tasks wait in the queue of one vertex of the manager's tree, its home. The first submit
 * chooses the home: a NUMA node, or a larger part of the machine if the group has more tasks than a
 * node has CPUs; below the home of the group's parent. A CPU that has nothing to run looks for a
 * waiting group by distance, and moves its tasks, its memory, or both to its own node if the
 * estimated time until the group's end becomes shorter. On a machine with one node all groups have
 * the global queue, and nothing is decided or moved.
 *
 * Errors are the negated codes of bmi.h. Where a function takes a manager, NULL stands for the
 * process's own. A manager outlives its groups: close them before bmi_task_manager_destroy.
 */
#ifndef BMI_TASK_GROUP_H
#define BMI_TASK_GROUP_H

#include "bmi/task.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BMI_TASK_GROUP_REGIONS 16 /* most regions of a group */
#define BMI_TASK_GROUP_PARTS 8    /* most places where tasks of one group wait or run */

struct bmi_task_group;

/* One piece of memory that a group uses. */
struct bmi_task_group_region {
    void *address; /* NULL: it cannot be moved */
    uint64_t bytes;
    uint64_t read;    /* bytes of it that one run reads, all tasks of the group together */
    uint64_t written; /* the same, written */
    int node;         /* NUMA node that it lies on (the system's number); -1: unknown, or on none
                         yet: it costs the same from everywhere, and is not moved */
    bool stays;       /* must not move: a network has registered it, it is pinned, or tasks outside
                         the group use it more */
};

/* The hints on a group; zero those that are unknown. */
struct bmi_task_group_hints {
    const struct bmi_task_group_region *regions;
    uint32_t count;    /* of regions, up to BMI_TASK_GROUP_REGIONS */
    uint32_t tasks;    /* that are to run at the same time; 0: 1 */
    double runs;       /* that each task still expects; 0: 1 */
    double compute_ns; /* of one task's run, beside its accesses to the regions */
    bool tasks_stay;   /* tasks must not leave the home; memory may come to it */
};

/* Makes a group of this manager, with hints. `parent` is the group that it is nested in, or NULL.
 * Hints of NULL are the parent's: each task uses as much of the parent's memory as a task of the
 * parent does, and that memory does not move with this group. Returns: 0 and *group; -BMI_EINVAL (a
 * parent of another manager, too many regions, a negative number), -BMI_ENOMEM. Owns: *group is the
 * caller's until bmi_task_group_close; hints are copied, the regions' memory is not accessed.
 * Threads: any. Blocks: the first call of the process with a manager of this machine, if it has
 * several nodes and costs are not given, while costs are measured: at most 80 ms. */
int bmi_task_group_create(struct bmi_task_manager *manager, struct bmi_task_group *parent,
                          const struct bmi_task_group_hints *hints, struct bmi_task_group **group);

/* Ends the caller's use of a group (NULL is left alone). Its outstanding tasks go on and still
 * belong to it; their end frees it. Its memory does not move any more. Returns: nothing. Owns: the
 * group is the library's; groups nested in it remain. Threads: any, but no other call with this
 * group may be under way or follow. Blocks: while the group's memory is being moved. */
void bmi_task_group_close(struct bmi_task_group *group);

/* Replaces a group's hints, e.g. for another phase of the program, or because the program moved its
 * memory. The group keeps its home. Returns: 0; -BMI_EINVAL as bmi_task_group_create. Owns: hints
 * are copied. Threads: any. Blocks: while the group's memory is being moved. */
int bmi_task_group_set_hints(struct bmi_task_group *group,
                             const struct bmi_task_group_hints *hints);

/* Submits a task, as bmi_task_submit does, and lets it belong to the group until it ends, repeated
 * runs included. A task that is running runs again where it belongs already. Returns: as
 * bmi_task_submit; -BMI_EINVAL also for a task of another manager, and for one that was prepared
 * with a set of CPUs, URGENT, or MAY_BLOCK. Owns: the task is lent until its end. Threads: any,
 * also within tasks. Blocks: as bmi_task_submit; a submit to a group without outstanding tasks may
 * wait for a decision of another thread. */
int bmi_task_group_submit(struct bmi_task_group *group, struct bmi_task *task);

/* Moves up to `most` of a group's waiting tasks, the oldest first, into a new group with the same
 * parent and home. The expected tasks of the hints are divided, and each task keeps its part of the
 * memory's traffic. Both groups use the memory now, so that it moves with neither. Returns: how
 * many tasks moved, and *part; -BMI_EINVAL (NULL, `most` 0 or above INT_MAX), -BMI_ENOMEM. Owns:
 * *part is the caller's until bmi_task_group_close. Threads: any. Blocks: while the group's memory
 * is being moved. */
int bmi_task_group_split(struct bmi_task_group *group, uint32_t most, struct bmi_task_group **part);

/* Moves the waiting tasks of `from` and its hints into another group of the manager; running tasks
 * of `from`, and those that wait for an interval, end there, and so do all tasks of a cancelled
 * group. The traffic of memory that both groups name, with the same address and size, is added.
 * Returns: how many tasks moved; -BMI_EINVAL (NULL, the same group, another manager, too many
 * regions together). Owns: `from` remains the caller's, without hints on memory. Threads: any.
 * Blocks: while memory of one of them is being moved. */
int bmi_task_group_merge(struct bmi_task_group *into, struct bmi_task_group *from);

/* Cancels a group and the groups nested in it, for good: no task of them begins to run any more,
 * also none that is submitted later. Each ends as after bmi_task_cancel when a CPU reaches it in
 * its queue. bmi_task_cancel_wanted returns true in running tasks. Returns: nothing. Owns: the
 * group remains the caller's. Threads: any, also within tasks. Blocks: no. */
void bmi_task_group_cancel(struct bmi_task_group *group);

struct bmi_task_group_statistics {
    uint32_t outstanding;  /* tasks that were submitted and have not ended */
    uint32_t waiting;      /* those that do not run now */
    int home;              /* index of its queue; -1: not chosen yet */
    uint64_t decisions[4]; /* how often a CPU without work looked at the group, by enum
                              bmi_task_placement; STAY: it took nothing of the group */
    uint64_t tasks_moved, regions_moved, bytes_moved;
    uint64_t regions_failed; /* the system could not move them; they stay since then */
};

/* Reads a group's counters. A task that has just ended may still be counted. Returns: nothing.
 * Owns: *statistics is the caller's. Threads: any. Blocks: while another thread decides. */
/* a function with the name of a structure, as C allows */
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
void bmi_task_group_statistics(struct bmi_task_group *group,
                               struct bmi_task_group_statistics *statistics);
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/* ---- of a manager ---------------------------------------------------------------------------- */

/* Sets the costs by which a manager decides; NULL: those that it begins with. These are measured,
 * once in the process, if the tree is this machine's and has several nodes; else they are typical
 * ones of a two-socket server. Returns: 0; -BMI_EINVAL (a negative cost), -BMI_EBUSY (the manager
 * has groups), -BMI_ENOMEM. Owns: costs are copied. Threads: any. Blocks: with NULL, as
 * bmi_task_group_create. */
int bmi_task_group_set_costs(struct bmi_task_manager *manager, const struct bmi_task_costs *costs);

enum bmi_task_cost_source {
    BMI_TASK_COST_DEFAULT = 0, /* typical of a two-socket server */
    BMI_TASK_COST_MEASURED,    /* on this machine */
    BMI_TASK_COST_GIVEN        /* by bmi_task_group_set_costs */
};

#define BMI_TASK_COST_CAUSE 96

struct bmi_task_cost {
    const char *name; /* of the member of struct bmi_task_costs; the library's, for ever */
    double value;
    enum bmi_task_cost_source source;
    char cause[BMI_TASK_COST_CAUSE]; /* of DEFAULT: why there is no measured one; else empty */
};

/* Reads one of the costs by which a manager decides: index 0, 1, ... until it returns -BMI_EINVAL.
 * Returns: 0 and *cost; -BMI_EINVAL (NULL, no such index), -BMI_ENOMEM. Owns: *cost is the
 * caller's. Threads: any. Blocks: as bmi_task_group_create, and while another thread decides. */
int bmi_task_group_cost(struct bmi_task_manager *manager, int index, struct bmi_task_cost *cost);

/* How far memory of a NUMA node is from the CPUs of another, or of the same one: *distance as in
 * struct bmi_task_costs, and the time in which one of these CPUs reads it (0: not measured; on a
 * machine of more than 8 nodes some are left out). Nodes have the system's numbers. Returns: 0 and
 * both; -BMI_EINVAL (NULL, no such node in the tree), -BMI_ENOMEM. Owns: nothing. Threads: any.
 * Blocks: as bmi_task_group_cost. */
int bmi_task_numa_access(struct bmi_task_manager *manager, int cpus, int memory, int *distance,
                         double *read_ns_per_kib);

/* A decision, as the trace function receives it. */
struct bmi_task_group_decision {
    const struct bmi_task_group *group;
    enum bmi_task_placement placement;
    int from, to;      /* indices of queues; from -1: the group's first submit */
    uint32_t tasks;    /* waiting tasks that move */
    uint64_t moved;    /* bit i: region i moves to the node of `to` */
    double cost_ns[4]; /* of each placement, until the group's end; of the first submit: zeroes.
                          If only some tasks move, it is of one task */
};

typedef void (*bmi_task_group_trace_function)(void *argument,
                                              const struct bmi_task_group_decision *decision);

/* Calls `trace` (NULL: nothing) for each decision to place or move a group of the manager. `trace`
 * runs on the thread that decides, with a lock held; it must be short and must not call the task
 * manager. Returns: 0, -BMI_ENOMEM. Owns: `argument` stays the caller's, lent until the next call.
 * Threads: any. Blocks: while another thread decides. */
int bmi_task_group_trace(struct bmi_task_manager *manager, bmi_task_group_trace_function trace,
                         void *argument);

#ifdef __cplusplus
}
#endif

#endif
