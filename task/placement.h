/* SPDX-License-Identifier: BSD-3-Clause
 *
 * placement.h - decides where groups of tasks and their memory go, after "Dynamic Task and Data
 * Placement over NUMA Architectures" (Broquedis, Furmento, Goglin, Namyst, Wacrenier, 2009). Pure
 * functions of the tree, the load, and the hints: no system call, no thread, no clock. The caller
 * moves tasks and memory, and synchronizes.
 *
 * A vertex is a node of the topology's tree; a node is a NUMA node, numbered 0, 1, ... in the order
 * of the tree. The load counts the tasks placed on each vertex, and the memory traffic between
 * nodes that they cause at full speed. It stretches the estimated time of accesses to a busy
 * memory.
 */
#ifndef BMI_TASK_PLACEMENT_H
#define BMI_TASK_PLACEMENT_H

#include "task/topology.h"

enum { BMI__PLACE_NODES = 64, BMI__PLACE_REGIONS = 64 };

struct bmi__place_machine {
    const struct bmi__topology *topology;
    struct bmi_task_costs costs;
    double memory_rate; /* bytes a ns of one node's memory; 0: no limit */
    double link_rate;   /* the same of a node's link, each way */
    uint32_t node_count;
    uint32_t vertices[BMI__PLACE_NODES]; /* of the nodes */
};

/* One piece of memory that a group uses. */
struct bmi__place_region {
    double bytes;
    double read, written; /* bytes in one run, by all tasks of the group together */
    int node;             /* that it lies on; -1: none yet, its first use places it */
    bool stays;           /* pinned, or owned by another group */
};

/* A group of tasks that run at the same time, or one task. */
struct bmi__place_group {
    const struct bmi__place_region *regions;
    uint32_t region_count; /* up to BMI__PLACE_REGIONS */
    uint32_t tasks;
    double compute_ns; /* of one task's run, beside its accesses to memory */
    double runs;       /* that each task still expects */
    uint32_t home;     /* vertex that it is placed on */
    bool stays;        /* its tasks must not leave their home */
};

/* Bytes a ns, by node: of its memory, and out of it and into it over its link. */
struct bmi__place_rates {
    double memory[BMI__PLACE_NODES], out[BMI__PLACE_NODES], in[BMI__PLACE_NODES];
};

struct bmi__place_flow {
    double read, written; /* bytes a ns, if each task had a CPU */
};

struct bmi__place_load {
    uint32_t *tasks, *own;         /* by vertex: placed on it or below; on it */
    struct bmi__place_flow *flows; /* by node of the CPU, then node of the memory */
    struct bmi__place_rates rates; /* follow from these */
};

struct bmi__place_choice {
    enum bmi_task_placement placement;
    uint64_t moved;    /* bit i: region i moves to the node of the group's tasks */
    double cost_ns[4]; /* of each placement, until the group's end */
};

/* The typical costs of a server with two sockets. */
extern const struct bmi_task_costs bmi__place_typical;

/* Nodes beyond BMI__PLACE_NODES are left out: memory there costs as if it were local. */
void bmi__place_machine_make(struct bmi__place_machine *machine,
                             const struct bmi__topology *topology,
                             const struct bmi_task_costs *costs, double memory_rate,
                             double link_rate);
/* The number of the node that a vertex belongs to; -1: to several, or to none. */
int bmi__place_node_of(const struct bmi__place_machine *machine, uint32_t vertex);
/* Levels to climb from the vertex `from` to one that covers `to`. */
unsigned bmi__place_distance(const struct bmi__topology *topology, uint32_t from, uint32_t to);

/* An empty load. Returns 0, or -BMI_ENOMEM; then there is nothing to free. */
int bmi__place_load_open(const struct bmi__place_machine *machine, struct bmi__place_load *load);
void bmi__place_load_close(struct bmi__place_load *load);
/* Adds a group at its home, or removes it. Its regions and its home must not change in between. */
void bmi__place_load_add(const struct bmi__place_machine *machine, struct bmi__place_load *load,
                         const struct bmi__place_group *group);
void bmi__place_load_remove(const struct bmi__place_machine *machine, struct bmi__place_load *load,
                            const struct bmi__place_group *group);

/* Where a new group goes, below the vertex `within`: the cheapest vertex for its runs, where
 * waiting for a CPU counts as well as remote memory. Of equal ones it takes that with most room,
 * then the lowest; none below the level `lowest`, and none that is higher than the group's tasks
 * need. */
uint32_t bmi__place_new(const struct bmi__place_machine *machine,
                        const struct bmi__place_load *load, const struct bmi__place_group *group,
                        uint32_t within, enum bmi_task_level lowest);

/* Compares four placements of a group that could start at its home in wait_ns from now, or at
 * `idle` now. The load (NULL: the machine is empty) does not include the group. */
void bmi__place_choose(const struct bmi__place_machine *machine, const struct bmi__place_load *load,
                       const struct bmi__place_group *group, double wait_ns, uint32_t idle,
                       struct bmi__place_choice *choice);

/* A CPU of the vertex `idle` has nothing to run: looks for the group of `groups`, all part of the
 * load, that gains most if its tasks, its memory, or both move. Groups further away are looked at
 * only if no nearer one gains. The load is the same afterwards. Returns the group's number and
 * *choice; -1: no group gains. */
int bmi__place_find(const struct bmi__place_machine *machine, struct bmi__place_load *load,
                    uint32_t idle, const struct bmi__place_group *const *groups, uint32_t count,
                    struct bmi__place_choice *choice);

#endif
