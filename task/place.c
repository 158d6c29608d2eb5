/* SPDX-License-Identifier: BSD-3-Clause
 *
 * place.c - whether a task with hints on its memory should wait for its own CPU or run on an idle
 * one elsewhere, and which of its memory should move there: placement.c decides, memory.c applies
 * the decision. It reads only the tree and the hints, so that tests can use trees of other
 * machines.
 */
#include "task/internal.h"
#include "task/placement.h"

#include <string.h>

static struct bmi__place_region region_hint(const struct bmi__place_machine *machine,
                                            const struct bmi_task_region *region)
{
    uint32_t vertex = bmi__topology_numa(machine->topology, region->node);
    return (struct bmi__place_region){
        .bytes = (double)region->bytes,
        .read = (double)region->traffic,
        .node = vertex != BMI__NO_NODE ? bmi__place_node_of(machine, vertex) : -1,
        .stays = region->pinned,
    };
}

bool bmi__task_costs_valid(const struct bmi_task_costs *costs)
{
    return costs->local_ns_per_kib >= 0 && costs->remote_factor >= 0 &&
           costs->move_ns_per_kib >= 0 && costs->move_region_ns >= 0 && costs->move_task_ns >= 0;
}

int bmi_task_place(struct bmi_task_manager *manager, const struct bmi_task_hints *hints, int home,
                   double wait_ns, int idle, const struct bmi_task_costs *costs,
                   struct bmi_task_choice *choice)
{
    manager = bmi__manager(manager);
    costs = costs != NULL ? costs : &bmi__place_typical;
    if (manager == NULL || hints == NULL || choice == NULL || hints->count > BMI__PLACE_REGIONS ||
        home < 0 || home >= BMI_CPUSET_MAX || idle < 0 || idle >= BMI_CPUSET_MAX ||
        !(wait_ns >= 0) || !bmi__task_costs_valid(costs))
        return -BMI_EINVAL;
    const struct bmi__topology *topology = &manager->topology;
    uint32_t home_cpu = topology->local_of[home], idle_cpu = topology->local_of[idle];
    if (home_cpu == BMI__NO_CPU || idle_cpu == BMI__NO_CPU)
        return -BMI_EINVAL;

    struct bmi__place_machine machine;
    struct bmi__place_region regions[BMI__PLACE_REGIONS];
    struct bmi__place_choice found;
    bmi__place_machine_make(&machine, topology, costs, 0, 0);
    for (uint32_t i = 0; i < hints->count; i++)
        regions[i] = region_hint(&machine, &hints->regions[i]);
    struct bmi__place_group group = {
        .regions = regions,
        .region_count = hints->count,
        .tasks = 1,
        .runs = 1,
        .home = topology->leaf_of[home_cpu],
    };
    bmi__place_choose(&machine, NULL, &group, wait_ns, topology->leaf_of[idle_cpu], &found);
    *choice = (struct bmi_task_choice){.placement = found.placement, .moved = found.moved};
    memcpy(choice->cost_ns, found.cost_ns, sizeof(choice->cost_ns));
    bool leaves = choice->placement >= BMI_TASK_PLACE_TASK;
    uint32_t node = bmi__topology_numa_of(topology, leaves ? idle_cpu : home_cpu);
    choice->node = topology->nodes[node].numa;
    return 0;
}
