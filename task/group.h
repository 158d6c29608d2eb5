/* SPDX-License-Identifier: BSD-3-Clause
 *
 * group.h - groups of tasks inside the task manager (bmi/task_group.h): the object (group.c), and
 * the scheduler's use of the decisions of placement.c (group_place.c).
 *
 * Threads and locks. A task's members `group` and `cpu` (the number of the part of the group that
 * it belongs to) are written by the thread that has the right to the task's next step (task.c):
 * its submitter, the thread that took it out of its list, or the one that runs it. Waiting tasks
 * are in the affinity list of the vertex of their part. A part's counters and its vertex are
 * atomic: a submit, a run, and an end change counters without a lock. The manager's lock `placing`
 * guards the list of groups, the load, each vertex, and the hints. An end and a submit take it only
 * where a part's tasks begin or cease to be outstanding. A part other than the first gets tasks
 * only under `placing`.
 *
 * A group's lock `moving` is held while its memory is copied, which takes long; `placing` is not.
 * The regions' addresses change only under both.
 *
 * Order: moving (of two groups: by address) > placing > the mutex of an affinity list. A thread
 * that decides holds `placing`, so it only tries to take `moving`; if that fails, memory stays
 * where it is. No task runs, and no thread is woken, under these locks. A thread that moves tasks
 * takes them out of their list under `placing`, and pushes them without a lock: meanwhile they are
 * in no list, as after a pop.
 *
 * References: the caller's, one for each group nested in it, one for each outstanding task. They
 * are dropped without a lock; the last one frees the group.
 */
#ifndef BMI_TASK_GROUP_INTERNAL_H
#define BMI_TASK_GROUP_INTERNAL_H

#include "bmi/task_group.h"
#include "task/costs.h"
#include "task/internal.h"
#include "task/placement.h"

/* Tasks of a group that wait and run at one vertex. The first part is at the group's home. */
struct bmi__group_part {
    _Atomic(uint32_t) vertex; /* written under placing; BMI__NO_NODE: none yet */
    atomic_uint outstanding, waiting;
    uint32_t counted;                  /* so many are in the load; under placing */
    struct bmi__place_group candidate; /* of the look under way; under placing */
};

struct bmi__group_hints {
    uint32_t count, tasks;
    double runs, compute_ns;
    bool tasks_stay;
    void *addresses[BMI_TASK_GROUP_REGIONS];
    bool movable[BMI_TASK_GROUP_REGIONS];
    struct bmi__place_region one[BMI_TASK_GROUP_REGIONS]; /* as one task uses them; they stay */
};

struct bmi_task_group {
    struct bmi_task_manager *manager;
    struct bmi_task_group *parent;
    struct bmi_task_group *next, **link; /* all groups of the manager; under placing */
    bool flat;                           /* the machine has one node: nothing to decide */
    atomic_uint references;
    atomic_bool cancelled; /* written under placing */
    pthread_mutex_t moving;
    struct bmi__group_hints hints;                        /* under placing */
    struct bmi__place_region all[BMI_TASK_GROUP_REGIONS]; /* as all tasks use them, for a decision
                                                             that is made; under placing */
    struct bmi_task_group_statistics counts; /* its decisions and moves; under placing */
    struct bmi__group_part parts[BMI_TASK_GROUP_PARTS];
};

enum { BMI__GROUP_LOOK = 64 }; /* most candidates of one look */

/* What a manager needs for groups; made with the first one, or its costs. Under placing, but for
 * the tree and the numbers of its nodes, which do not change. */
struct bmi__groups {
    struct bmi__place_machine machine;
    struct bmi__place_load load;
    struct bmi__calibration calibration; /* where machine.costs are from (costs.h) */
    struct bmi_task_group *first;
    bmi_task_group_trace_function trace;
    void *trace_argument;
    const struct bmi__place_group *candidates[BMI__GROUP_LOOK];
    struct {
        struct bmi_task_group *group;
        uint32_t part;
    } found[BMI__GROUP_LOOK];
};

/* ---- group.c ---- */

/* A task that is QUEUED and the caller's, about to be pushed, joins the group. */
void bmi__group_submitted(struct bmi_task_group *group, struct bmi_task *task);
/* The same task is about to be pushed for another run. */
void bmi__group_again(struct bmi_task *task);
/* The caller has popped the task. Returns whether it must end as cancelled. */
bool bmi__group_begin(struct bmi_task *task);
bool bmi__group_is_cancelled(const struct bmi_task_group *group);
/* A task of that part of the group has ended; its memory may be freed. */
void bmi__group_end(struct bmi_task_group *group, uint32_t part);
/* The node whose affinity list the task enters. */
struct bmi__task_node *bmi__group_node(const struct bmi_task *task);
/* The list of tasks is pushed to the lists of their groups. */
void bmi__group_push(struct bmi_task_manager *manager, struct bmi_task *tasks);
/* Drops a reference. */
void bmi__group_drop(struct bmi_task_group *group);

/* ---- group_place.c ---- */

int bmi__groups_open_locked(struct bmi_task_manager *manager);
/* The first one frees the state of a manager that nobody uses any more. */
void bmi__groups_free(struct bmi_task_manager *manager);
/* Makes the load count the outstanding tasks of a part; of all parts of a group. */
void bmi__group_count_locked(struct bmi_task_group *group, struct bmi__group_part *part);
void bmi__group_count_all_locked(struct bmi_task_group *group);
/* Takes the tasks of all parts out of the load, before hints or a vertex change. */
void bmi__group_uncount_locked(struct bmi_task_group *group);
/* Chooses the home if the group has none. */
uint32_t bmi__group_home_locked(struct bmi_task_group *group);
/* The CPU (local number) found nothing to run: looks for a group whose tasks or memory should move.
 * Returns whether it has moved tasks to a queue of this CPU. */
bool bmi__group_pull(struct bmi_task_manager *manager, uint32_t cpu);

#endif
