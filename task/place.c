/* SPDX-License-Identifier: BSD-3-Clause
 *
 * place.c - decides, by cost, whether a task with hints on its memory should wait for its own CPU
 * or run on an idle one elsewhere, and which of its memory should move there. It reads only the
 * tree and the hints, so that tests can use trees of other machines; memory.c applies the decision.
 * Distances are taken from the tree: hwloc's own matrices are missing in synthetic topologies and,
 * on real machines, seldom more than "near" and "far".
 */
#include "task/internal.h"

#define MOST_REGIONS 64

static const struct bmi_task_costs typical = {
    .local_ns_per_kib = 60, /* some 17 GB/s for one core */
    .remote_factor = 0.6,
    .move_ns_per_kib = 250, /* move_pages: about 4 GB/s, page tables included */
    .move_region_ns = 5000,
    .move_task_ns = 2000,
};

/* Levels to climb from `from` to one that covers `to`. */
static unsigned distance(const struct bmi__topology *topology, uint32_t from, uint32_t to)
{
    unsigned levels = 0;
    const struct bmi__topology_node *wanted = to != BMI__NO_NODE ? &topology->nodes[to] : NULL;
    while (wanted != NULL && (wanted->first < topology->nodes[from].first ||
                              wanted->first + wanted->count >
                                  topology->nodes[from].first + topology->nodes[from].count)) {
        from = topology->nodes[from].parent;
        levels++;
    }
    return levels;
}

/* The cost of a region's use from `at`, where the region lies, and where it is moved there
 * first. */
struct use {
    double stays_ns, moved_ns;
};

static struct use region_use(const struct bmi__topology *topology,
                             const struct bmi_task_region *region, uint32_t at,
                             const struct bmi_task_costs *costs)
{
    unsigned far = distance(topology, at, bmi__topology_numa(topology, region->node));
    double remote = 1 + far * costs->remote_factor;
    double local_ns = (double)region->traffic / 1024 * costs->local_ns_per_kib;
    double move_ns = (double)region->bytes / 1024 *
                         (costs->move_ns_per_kib + costs->local_ns_per_kib * (remote - 1)) +
                     costs->move_region_ns;
    return (struct use){.stays_ns = local_ns * remote, .moved_ns = local_ns + move_ns};
}

/* The cost of all regions from `at`: as they lie, and with those moved for which it pays. */
static struct use regions_use(const struct bmi__topology *topology,
                              const struct bmi_task_hints *hints, uint32_t at,
                              const struct bmi_task_costs *costs, uint64_t *moved)
{
    struct use sum = {0, 0};
    *moved = 0;
    for (uint32_t i = 0; i < hints->count; i++) {
        struct use use = region_use(topology, &hints->regions[i], at, costs);
        bool pays = !hints->regions[i].pinned && use.moved_ns < use.stays_ns;
        sum.stays_ns += use.stays_ns;
        sum.moved_ns += pays ? use.moved_ns : use.stays_ns;
        *moved |= (uint64_t)pays << i;
    }
    return sum;
}

static bool costs_valid(const struct bmi_task_costs *costs)
{
    return costs->local_ns_per_kib >= 0 && costs->remote_factor >= 0 &&
           costs->move_ns_per_kib >= 0 && costs->move_region_ns >= 0 && costs->move_task_ns >= 0;
}

int bmi_task_place(struct bmi_task_manager *manager, const struct bmi_task_hints *hints, int home,
                   double wait_ns, int idle, const struct bmi_task_costs *costs,
                   struct bmi_task_choice *choice)
{
    manager = bmi__manager(manager);
    costs = costs != NULL ? costs : &typical;
    if (manager == NULL || hints == NULL || choice == NULL || hints->count > MOST_REGIONS ||
        home < 0 || home >= BMI_CPUSET_MAX || idle < 0 || idle >= BMI_CPUSET_MAX ||
        !(wait_ns >= 0) || !costs_valid(costs))
        return -BMI_EINVAL;
    const struct bmi__topology *topology = &manager->topology;
    uint32_t home_cpu = topology->local_of[home], idle_cpu = topology->local_of[idle];
    if (home_cpu == BMI__NO_CPU || idle_cpu == BMI__NO_CPU)
        return -BMI_EINVAL;

    uint32_t home_node = bmi__topology_numa_of(topology, home_cpu);
    uint32_t idle_node = bmi__topology_numa_of(topology, idle_cpu);
    uint64_t moved[2];
    struct use at_home = regions_use(topology, hints, home_node, costs, &moved[0]);
    struct use at_idle = regions_use(topology, hints, idle_node, costs, &moved[1]);
    double start_ns = home_cpu == idle_cpu ? 0 : costs->move_task_ns;
    *choice = (struct bmi_task_choice){
        .cost_ns = {[BMI_TASK_PLACE_STAY] = wait_ns + at_home.stays_ns,
                    [BMI_TASK_PLACE_DATA] = wait_ns + at_home.moved_ns,
                    [BMI_TASK_PLACE_TASK] = start_ns + at_idle.stays_ns,
                    [BMI_TASK_PLACE_BOTH] = start_ns + at_idle.moved_ns},
    };
    for (int i = BMI_TASK_PLACE_DATA; i <= BMI_TASK_PLACE_BOTH; i++) {
        if (choice->cost_ns[i] < choice->cost_ns[choice->placement])
            choice->placement = (enum bmi_task_placement)i;
    }
    bool leaves = choice->placement >= BMI_TASK_PLACE_TASK;
    if (choice->placement == BMI_TASK_PLACE_DATA || choice->placement == BMI_TASK_PLACE_BOTH)
        choice->moved = moved[leaves];
    choice->node = topology->nodes[leaves ? idle_node : home_node].numa;
    return 0;
}
