/* SPDX-License-Identifier: BSD-3-Clause
 *
 * memory.c - memory on NUMA nodes: allocates it on a node, moves it there, or leaves it to the node
 * that touches it. It applies the decisions of place.c. A node is one of the manager's tree. On a
 * machine with one node it does nothing and makes no system call; with more nodes, hwloc binds and
 * migrates (memory_hwloc.c). No state, no locks.
 */
#include "task/memory.h"
#include "task/internal.h"

#include <sched.h>
#include <sys/mman.h>

enum where { NOTHING_TO_DO = 1 };
enum { HUGE_LEAST = 4 << 20 }; /* bytes for which huge pages are asked for */

/* Whether a node (-1: none) is valid. Returns NOTHING_TO_DO: yes, and it is the only one; 0: bind
 * memory to it; or an error. */
static int node_check(const struct bmi_task_manager *manager, int node)
{
    const struct bmi__topology *topology = &manager->topology;
    int nodes = bmi__topology_numa_count(topology);
    if (node < -1 || (node >= 0 && nodes > 0 && bmi__topology_numa(topology, node) == BMI__NO_NODE))
        return -BMI_EINVAL;
    if (nodes == 0 && node > 0)
        return -BMI_EINVAL; /* a machine that reports no nodes has one, which is 0 */
    if (nodes <= 1 && topology->machine_numa <= 1)
        return NOTHING_TO_DO;
    return topology->this_system ? 0 : -BMI_EOPNOTSUPP;
}

int bmi_task_memory_allocate(struct bmi_task_manager *manager, uint64_t bytes, int node,
                             void **memory)
{
    manager = bmi__manager(manager);
    if (manager == NULL)
        return -BMI_ENOMEM;
    if (memory == NULL || bytes == 0 || bytes > SIZE_MAX)
        return -BMI_EINVAL;
    int check = node_check(manager, node);
    if (check < 0)
        return check;
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return -BMI_ENOMEM;
    if (check == 0 && bytes >= HUGE_LEAST)
        madvise(pages, bytes, MADV_HUGEPAGE); /* a hint, for fewer pages to touch and to move */
    int result = check == 0 && node >= 0 ? bmi__memory_bind(pages, bytes, node) : 0;
    if (result < 0) {
        munmap(pages, bytes);
        return result;
    }
    *memory = pages;
    return 0;
}

void bmi_task_memory_free(void *memory, uint64_t bytes)
{
    if (memory != NULL)
        munmap(memory, bytes);
}

int bmi_task_memory_move(struct bmi_task_manager *manager, void *memory, uint64_t bytes, int node)
{
    manager = bmi__manager(manager);
    if (manager == NULL)
        return -BMI_ENOMEM;
    if (memory == NULL || bytes == 0 || bytes > SIZE_MAX)
        return -BMI_EINVAL;
    int check = node_check(manager, node);
    if (check != 0)
        return check == NOTHING_TO_DO ? 0 : check;
    return bmi__memory_bind(memory, bytes, node);
}

int bmi_task_memory_node(struct bmi_task_manager *manager, const void *memory, uint64_t bytes)
{
    manager = bmi__manager(manager);
    if (manager == NULL)
        return -BMI_ENOMEM;
    if (memory == NULL || bytes == 0 || bytes > SIZE_MAX)
        return -BMI_EINVAL;
    int check = node_check(manager, -1);
    if (check < 0)
        return check;
    if (check == 0)
        return bmi__memory_node(memory, bytes);
    int only = bmi__topology_numa_first(&manager->topology);
    return only >= 0 ? only : 0;
}

int bmi_task_place_apply(struct bmi_task_manager *manager, const struct bmi_task_hints *hints,
                         const struct bmi_task_choice *choice)
{
    int moved = 0;
    if (hints == NULL || choice == NULL || hints->count > 64 ||
        (hints->count < 64 && choice->moved >> hints->count != 0))
        return -BMI_EINVAL;
    for (uint32_t i = 0; i < hints->count; i++) {
        const struct bmi_task_region *region = &hints->regions[i];
        if (!(choice->moved >> i & 1) || region->pinned)
            continue;
        int result = bmi_task_memory_move(manager, region->address, region->bytes, choice->node);
        if (result < 0)
            return result;
        moved++;
    }
    return moved;
}

/* The vertex of the NUMA node of the CPU that the caller runs on, or BMI__NO_NODE. */
static uint32_t vertex_here(const struct bmi__topology *topology)
{
    int os = sched_getcpu();
    if (os < 0 || os >= BMI_CPUSET_MAX || topology->local_of[os] == BMI__NO_CPU)
        return BMI__NO_NODE;
    return bmi__topology_numa_of(topology, topology->local_of[os]);
}

int bmi__memory_here(const struct bmi_task_manager *manager)
{
    uint32_t here = vertex_here(&manager->topology);
    return here != BMI__NO_NODE && here != 0 ? manager->topology.nodes[here].numa : -1;
}

__attribute__((noinline)) void bmi__memory_follow(struct bmi_task_manager *manager,
                                                  const struct bmi_task_hints *hints)
{
    uint32_t here = node_check(manager, -1) == 0 ? vertex_here(&manager->topology) : BMI__NO_NODE;
    if (here == BMI__NO_NODE)
        return; /* one node; or the CPU is on none that we know */
    int node = manager->topology.nodes[here].numa;
    for (uint32_t i = 0; node >= 0 && i < hints->count; i++) {
        const struct bmi_task_region *region = &hints->regions[i];
        if (region->next_touch && !region->pinned && region->address != NULL && region->bytes > 0)
            bmi__memory_bind(region->address, region->bytes, node); /* where not, it is remote */
    }
}
