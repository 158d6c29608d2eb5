/* SPDX-License-Identifier: BSD-3-Clause
 *
 * topology.h - the shape of the tree: the CPUs and the resources that they share. It is built
 * once, from hwloc (topology_hwloc.c), and never written again: any thread may read it.
 *
 * CPUs are renumbered 0..cpu_count-1 in the order of the tree, so that each node covers a range
 * [first, first + count). Sets in this numbering are called local; those of callers have the
 * operating system's numbers. Nodes stand in an array, each after its parent; 0 is the root.
 */
#ifndef BMI_TASK_TOPOLOGY_H
#define BMI_TASK_TOPOLOGY_H

#include "bmi/task.h"
#include "task/error.h"

#define BMI__NODE_NAME 64
#define BMI__NO_CPU UINT32_MAX
#define BMI__NO_NODE UINT32_MAX

struct bmi__topology_node {
    char name[BMI__NODE_NAME]; /* "L2 + Core + PU": the levels folded into it */
    uint32_t parent;           /* BMI__NO_NODE for the root */
    uint32_t depth;
    uint32_t first, count; /* CPUs */
    uint32_t levels;       /* 1 << enum bmi_task_level for each folded one */
    int numa;              /* the NUMA node whose CPUs these are exactly, or -1 */
    uint64_t memory;       /* of that node, in bytes */
};

struct bmi__topology {
    struct bmi__topology_node *nodes;
    uint32_t node_count, node_room;
    uint32_t cpu_count;
    uint16_t *os_of;                   /* by local number */
    uint32_t *leaf_of;                 /* node, by local number */
    uint32_t local_of[BMI_CPUSET_MAX]; /* by the system's number; BMI__NO_CPU */
    int machine_numa; /* NUMA nodes of the machine, those whose CPUs the process lacks included */
    bool this_system; /* threads can be bound to its CPUs */
};

/* Builds the topology that the settings ask for. Returns 0 or an error, with a text in error. */
int bmi__topology_build(const struct bmi_task_settings *settings, struct bmi__topology *topology,
                        char *error, size_t error_size);
void bmi__topology_free(struct bmi__topology *topology);

/* For its source: a node below `parent` (BMI__NO_NODE: the root), depth first; a leaf has an
 * os_cpu
 * >= 0. Returns its index, or BMI__NO_NODE: out of memory, or the CPU number is too large. */
uint32_t bmi__topology_add(struct bmi__topology *topology, uint32_t parent, int os_cpu);
/* Adds the name of one more level of it. */
void bmi__topology_name(struct bmi__topology_node *node, const char *name);

int bmi__topology_from_hwloc(const struct bmi_task_settings *settings,
                             struct bmi__topology *topology, char *error, size_t error_size);

/* Translates a set of the system's numbers. Returns 0; -BMI_EINVAL: empty, or a CPU is not the
 * tree's. */
int bmi__topology_local(const struct bmi__topology *topology, const struct bmi_cpuset *cpus,
                        struct bmi_cpuset *local);
/* Fills the system's numbers of a node's CPUs. */
void bmi__topology_cpus(const struct bmi__topology *topology, uint32_t node,
                        struct bmi_cpuset *cpus);
/* The lowest node that covers local CPUs first..last. */
uint32_t bmi__topology_cover(const struct bmi__topology *topology, uint32_t first, uint32_t last);
/* The lowest node above `cpu` of this level or a higher one. */
uint32_t bmi__topology_near(const struct bmi__topology *topology, uint32_t cpu,
                            enum bmi_task_level level);
/* The CPU of `candidates` (local) that is nearest to `cpu` in the tree, itself first; BMI__NO_CPU:
 * none. */
uint32_t bmi__topology_nearest(const struct bmi__topology *topology,
                               const struct bmi_cpuset *candidates, uint32_t cpu);

/* NUMA nodes: the tree's node of one by the system's number (BMI__NO_NODE: there is none), the one
 * that a CPU belongs to (the root if none is), how many there are, and the first one's number (-1).
 */
uint32_t bmi__topology_numa(const struct bmi__topology *topology, int numa);
uint32_t bmi__topology_numa_of(const struct bmi__topology *topology, uint32_t cpu);
int bmi__topology_numa_count(const struct bmi__topology *topology);
int bmi__topology_numa_first(const struct bmi__topology *topology);

#endif
