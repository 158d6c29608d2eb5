/* SPDX-License-Identifier: BSD-3-Clause
 *
 * numa.h - for tests on a machine with several NUMA nodes, which a guest of vm.numa is.
 */
#ifndef TESTS_NUMA_H
#define TESTS_NUMA_H

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "bmi/task.h"
#include "tests/unit/unit.h"

enum { NODES_MOST = 8, NODE_NONE = -1, NODES_SKIPPED = 77 };

static struct {
    int count;
    int cpu[NODES_MOST]; /* the first one of each */
} nodes;

static inline int node_of_cpu(int cpu)
{
    for (int node = 0; node < NODES_MOST; node++) {
        char path[80];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/node%d", cpu, node);
        if (access(path, F_OK) == 0)
            return node;
    }
    return NODE_NONE;
}

/* Prints how many nodes there are. Returns whether there are several: otherwise the test is
 * skipped. */
static inline bool nodes_find(void)
{
    struct bmi_cpuset cpus;
    int seen = NODE_NONE;
    bmi_task_cpus(NULL, &cpus);
    for (int cpu = bmi_cpuset_next(&cpus, 0); cpu >= 0 && nodes.count < NODES_MOST;
         cpu = bmi_cpuset_next(&cpus, cpu + 1)) {
        int node = node_of_cpu(cpu);
        if (node > seen) {
            nodes.cpu[nodes.count++] = cpu;
            seen = node;
        }
    }
    if (nodes.count < 2)
        printf("skipped: this machine has one NUMA node; vm.numa runs the test in guests\n");
    else
        printf("%d NUMA nodes\n", nodes.count);
    return nodes.count > 1;
}

static inline void run_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    CU_ASSERT_EQUAL_FATAL(sched_setaffinity(0, sizeof set, &set), 0);
}

/* The manager's threads for tasks that block, which go to the CPUs of each task. */
static inline int blocking_threads_on(int node)
{
    DIR *threads = opendir("/proc/self/task");
    struct dirent *entry;
    int count = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(threads);
    while ((entry = readdir(threads)) != NULL) {
        char path[280], name[32] = "";
        cpu_set_t set;
        bool on_node = true;
        snprintf(path, sizeof path, "/proc/self/task/%.200s/comm", entry->d_name);
        FILE *comm = fopen(path, "r");
        if (comm == NULL)
            continue;
        char *read = fgets(name, sizeof name, comm);
        fclose(comm);
        if (read == NULL || strncmp(name, "bmi-blocking", 12) != 0 ||
            sched_getaffinity(atoi(entry->d_name), sizeof set, &set) != 0)
            continue;
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            on_node = on_node && (!CPU_ISSET((size_t)cpu, &set) || node_of_cpu(cpu) == node);
        count += on_node;
    }
    closedir(threads);
    return count;
}

#endif
