/* SPDX-License-Identifier: BSD-3-Clause
 *
 * topology.c - the tree as data: building it node by node, and queries of it. See topology.h: after
 * it is built it is never written again. This file does not use tasks or queues, so that all of it
 * can be tested on trees of other machines.
 */
#include "task/topology.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool topology_grow(struct bmi__topology *topology)
{
    if (topology->node_count < topology->node_room)
        return true;
    uint32_t room = topology->node_room ? 2 * topology->node_room : 64;
    struct bmi__topology_node *nodes = realloc(topology->nodes, room * sizeof(*nodes));
    if (nodes == NULL)
        return false;
    topology->nodes = nodes;
    topology->node_room = room;
    return true;
}

static bool topology_add_cpu(struct bmi__topology *topology, uint32_t node, int os_cpu)
{
    if (os_cpu >= BMI_CPUSET_MAX || topology->local_of[os_cpu] != BMI__NO_CPU)
        return false;
    uint32_t local = topology->cpu_count++;
    topology->os_of[local] = (uint16_t)os_cpu;
    topology->leaf_of[local] = node;
    topology->local_of[os_cpu] = local;
    for (uint32_t i = node; i != BMI__NO_NODE; i = topology->nodes[i].parent)
        topology->nodes[i].count++;
    return true;
}

uint32_t bmi__topology_add(struct bmi__topology *topology, uint32_t parent, int os_cpu)
{
    if (!topology_grow(topology))
        return BMI__NO_NODE;
    uint32_t index = topology->node_count++;
    topology->nodes[index] = (struct bmi__topology_node){
        .parent = parent,
        .depth = parent == BMI__NO_NODE ? 0 : topology->nodes[parent].depth + 1,
        .first = topology->cpu_count,
        .numa = -1,
    };
    if (os_cpu >= 0 && !topology_add_cpu(topology, index, os_cpu))
        return BMI__NO_NODE;
    return index;
}

void bmi__topology_name(struct bmi__topology_node *node, const char *name)
{
    size_t used = strlen(node->name);
    snprintf(node->name + used, sizeof(node->name) - used, "%s%s", used ? " + " : "", name);
}

int bmi__topology_build(const struct bmi_task_settings *settings, struct bmi__topology *topology,
                        char *error, size_t error_size)
{
    memset(topology, 0, sizeof(*topology));
    for (int i = 0; i < BMI_CPUSET_MAX; i++)
        topology->local_of[i] = BMI__NO_CPU;
    topology->os_of = calloc(BMI_CPUSET_MAX, sizeof(*topology->os_of));
    topology->leaf_of = calloc(BMI_CPUSET_MAX, sizeof(*topology->leaf_of));
    int result = -BMI_ENOMEM;
    if (topology->os_of != NULL && topology->leaf_of != NULL)
        result = bmi__topology_from_hwloc(settings, topology, error, error_size);
    if (result == -BMI_ENOMEM)
        snprintf(error, error_size, "out of memory");
    if (result != 0)
        bmi__topology_free(topology);
    return result;
}

void bmi__topology_free(struct bmi__topology *topology)
{
    free(topology->nodes);
    free(topology->os_of);
    free(topology->leaf_of);
    topology->nodes = NULL;
    topology->os_of = NULL;
    topology->leaf_of = NULL;
}

int bmi__topology_local(const struct bmi__topology *topology, const struct bmi_cpuset *cpus,
                        struct bmi_cpuset *local)
{
    bmi_cpuset_clear(local);
    int cpu = bmi_cpuset_next(cpus, 0);
    if (cpu < 0)
        return -BMI_EINVAL;
    for (; cpu >= 0; cpu = bmi_cpuset_next(cpus, cpu + 1)) {
        if (topology->local_of[cpu] == BMI__NO_CPU)
            return -BMI_EINVAL;
        bmi_cpuset_add(local, (int)topology->local_of[cpu]);
    }
    return 0;
}

void bmi__topology_cpus(const struct bmi__topology *topology, uint32_t node,
                        struct bmi_cpuset *cpus)
{
    const struct bmi__topology_node *of = &topology->nodes[node];
    bmi_cpuset_clear(cpus);
    for (uint32_t i = of->first; i < of->first + of->count; i++)
        bmi_cpuset_add(cpus, topology->os_of[i]);
}

uint32_t bmi__topology_cover(const struct bmi__topology *topology, uint32_t first, uint32_t last)
{
    uint32_t node = topology->leaf_of[first];
    while (last >= topology->nodes[node].first + topology->nodes[node].count)
        node = topology->nodes[node].parent;
    return node;
}

uint32_t bmi__topology_near(const struct bmi__topology *topology, uint32_t cpu,
                            enum bmi_task_level level)
{
    uint32_t node = topology->leaf_of[cpu];
    for (; topology->nodes[node].parent != BMI__NO_NODE; node = topology->nodes[node].parent) {
        /* a cache that only one core has is not shared */
        uint32_t levels = topology->nodes[node].levels;
        if (topology->nodes[node].levels & (1u << BMI_TASK_LEVEL_CORE))
            levels &= ~(1u << BMI_TASK_LEVEL_CACHE);
        if (levels >> level)
            break;
    }
    return node;
}

/* The first member of the set in [first, first + count), or BMI__NO_CPU. */
static uint32_t set_first(const struct bmi_cpuset *set, uint32_t first, uint32_t count)
{
    int found = count ? bmi_cpuset_next(set, (int)first) : -1;
    return found >= 0 && (uint32_t)found < first + count ? (uint32_t)found : BMI__NO_CPU;
}

uint32_t bmi__topology_nearest(const struct bmi__topology *topology,
                               const struct bmi_cpuset *candidates, uint32_t cpu)
{
    uint32_t node = topology->leaf_of[cpu];
    for (; node != BMI__NO_NODE; node = topology->nodes[node].parent) {
        const struct bmi__topology_node *of = &topology->nodes[node];
        /* from `cpu` upwards first, so that neighbours do not all choose the same one */
        uint32_t found = set_first(candidates, cpu, of->first + of->count - cpu);
        if (found == BMI__NO_CPU)
            found = set_first(candidates, of->first, cpu - of->first);
        if (found != BMI__NO_CPU)
            return found;
    }
    return BMI__NO_CPU;
}

uint32_t bmi__topology_numa(const struct bmi__topology *topology, int numa)
{
    for (uint32_t node = 0; numa >= 0 && node < topology->node_count; node++) {
        if (topology->nodes[node].numa == numa)
            return node;
    }
    return BMI__NO_NODE;
}

uint32_t bmi__topology_numa_of(const struct bmi__topology *topology, uint32_t cpu)
{
    uint32_t node = topology->leaf_of[cpu];
    while (topology->nodes[node].numa < 0 && topology->nodes[node].parent != BMI__NO_NODE)
        node = topology->nodes[node].parent;
    return node;
}

int bmi__topology_numa_count(const struct bmi__topology *topology)
{
    int count = 0;
    for (uint32_t node = 0; node < topology->node_count; node++)
        count += topology->nodes[node].numa >= 0;
    return count;
}

int bmi__topology_numa_first(const struct bmi__topology *topology)
{
    for (uint32_t node = 0; node < topology->node_count; node++) {
        if (topology->nodes[node].numa >= 0)
            return topology->nodes[node].numa;
    }
    return -1;
}
