/* SPDX-License-Identifier: BSD-3-Clause
 *
 * topology_mask.c - the topology where hwloc is absent: the CPUs of the process's affinity mask
 * (which a cgroup's CPU set has narrowed already), each with a queue, and the global one above. If
 * the system refuses the mask: as many CPUs as are online, and no thread is bound.
 */
#include "task/topology.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

/* One CPU: its queue is the global one. */
static uint32_t mask_root(struct bmi__topology *topology, const cpu_set_t *mask)
{
    int only = -1;
    for (int cpu = 0; CPU_COUNT(mask) == 1 && cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET((size_t)cpu, mask))
            only = cpu;
    }
    uint32_t root = bmi__topology_add(topology, BMI__NO_NODE, only);
    if (root == BMI__NO_NODE)
        return root;
    bmi__topology_name(&topology->nodes[root], only < 0 ? "Machine" : "Machine + CPU");
    topology->nodes[root].levels = 1u << BMI_TASK_LEVEL_MACHINE;
    if (only >= 0)
        topology->nodes[root].levels |= 1u << BMI_TASK_LEVEL_CORE | 1u << BMI_TASK_LEVEL_CPU;
    return root;
}

static void mask_guess(cpu_set_t *mask)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    CPU_SET(0, mask);
    for (int cpu = 1; cpu < online && cpu < CPU_SETSIZE; cpu++)
        CPU_SET((size_t)cpu, mask);
}

int bmi__topology_from_mask(struct bmi__topology *topology, char *error, size_t error_size)
{
    _Static_assert(CPU_SETSIZE <= BMI_CPUSET_MAX, "a mask's CPUs fit into a set");
    cpu_set_t mask;
    CPU_ZERO(&mask);
    topology->this_system = sched_getaffinity(0, sizeof(mask), &mask) == 0;
    if (!topology->this_system && errno == EINVAL) {
        snprintf(error, error_size, "the affinity mask is larger than %d CPUs", CPU_SETSIZE);
        return -BMI_EOVERFLOW;
    }
    if (!topology->this_system)
        mask_guess(&mask);
    uint32_t root = mask_root(topology, &mask);
    if (root == BMI__NO_NODE)
        return -BMI_ENOMEM;
    for (int cpu = 0; CPU_COUNT(&mask) > 1 && cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET((size_t)cpu, &mask))
            continue;
        uint32_t leaf = bmi__topology_add(topology, root, cpu);
        if (leaf == BMI__NO_NODE)
            return -BMI_ENOMEM;
        bmi__topology_name(&topology->nodes[leaf], "CPU");
        topology->nodes[leaf].levels = 1u << BMI_TASK_LEVEL_CORE | 1u << BMI_TASK_LEVEL_CPU;
    }
    return 0;
}
