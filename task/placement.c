/* SPDX-License-Identifier: BSD-3-Clause
 *
 * placement.c - see placement.h. The estimate that every decision compares is the time of a group
 * until its end at a vertex:
 *
 *     runs * share * (compute + sum over regions of bytes * distance * stretch) + price of moves
 *
 * share: tasks for each CPU there, at least 1. stretch: demand over bandwidth of the busiest part
 * of the way (memory, links), at least 1; the group's own demand counts. Distances are taken from
 * the tree: hwloc's own matrices are missing in synthetic topologies and, on real machines, seldom
 * more than "near" and "far".
 */
#include "task/placement.h"

#include <math.h> /* INFINITY only: libbmi is not linked with libm */
#include <stdlib.h>
#include <string.h>

#define GAIN_LEAST 0.05 /* of the cost: smaller gains are within the estimate's error */
#define EQUAL 1e-9      /* costs that differ by less, relatively, are equal */

const struct bmi_task_costs bmi__place_typical = {
    .local_ns_per_kib = 60, /* some 17 GB/s for one core */
    .remote_factor = 0.6,
    .move_ns_per_kib = 250, /* move_pages: about 4 GB/s, page tables included */
    .move_region_ns = 5000,
    .move_task_ns = 2000,
};

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* ---- the machine ----------------------------------------------------------------------------- */

void bmi__place_machine_make(struct bmi__place_machine *machine,
                             const struct bmi__topology *topology,
                             const struct bmi_task_costs *costs, double memory_rate,
                             double link_rate)
{
    machine->topology = topology;
    machine->costs = *costs;
    machine->memory_rate = memory_rate;
    machine->link_rate = link_rate;
    machine->node_count = 0;
    for (uint32_t i = 0; i < topology->node_count && machine->node_count < BMI__PLACE_NODES; i++) {
        if (topology->nodes[i].numa >= 0)
            machine->vertices[machine->node_count++] = i;
    }
}

static bool covers(const struct bmi__topology *topology, uint32_t upper, uint32_t lower)
{
    const struct bmi__topology_node *above = &topology->nodes[upper];
    const struct bmi__topology_node *below = &topology->nodes[lower];
    return above->first <= below->first &&
           below->first + below->count <= above->first + above->count;
}

/* Whether a vertex has CPUs of a node: it stands above the node, or below. */
static bool has_node(const struct bmi__place_machine *machine, uint32_t vertex, uint32_t node)
{
    return covers(machine->topology, vertex, machine->vertices[node]) ||
           covers(machine->topology, machine->vertices[node], vertex);
}

int bmi__place_node_of(const struct bmi__place_machine *machine, uint32_t vertex)
{
    for (uint32_t i = 0; i < machine->node_count; i++) {
        if (covers(machine->topology, machine->vertices[i], vertex))
            return (int)i;
    }
    return -1;
}

unsigned bmi__place_distance(const struct bmi__topology *topology, uint32_t from, uint32_t to)
{
    unsigned levels = 0;
    for (; !covers(topology, from, to); from = topology->nodes[from].parent)
        levels++;
    return levels;
}

/* Where a task runs: a node, or -1 and the root for a CPU that belongs to none. */
struct spot {
    int node;
    uint32_t vertex;
};

static struct spot spot_of(const struct bmi__place_machine *machine, uint32_t vertex)
{
    int node = bmi__place_node_of(machine, vertex);
    return (struct spot){.node = node, .vertex = node >= 0 ? machine->vertices[node] : 0};
}

/* How many times as long as a local access one to memory of `node` takes. */
static double remote(const struct bmi__place_machine *machine, struct spot at, int node)
{
    unsigned far = 0;
    if (node >= 0)
        far = bmi__place_distance(machine->topology, at.vertex, machine->vertices[node]);
    return 1 + far * machine->costs.remote_factor;
}

/* A copy to `at` is read over the distance. */
static double copy_ns_per_kib(const struct bmi__place_machine *machine, struct spot at, int from)
{
    const struct bmi_task_costs *costs = &machine->costs;
    return costs->move_ns_per_kib + costs->local_ns_per_kib * (remote(machine, at, from) - 1);
}

/* ---- the load -------------------------------------------------------------------------------- */

int bmi__place_load_open(const struct bmi__place_machine *machine, struct bmi__place_load *load)
{
    size_t nodes = machine->node_count;
    memset(load, 0, sizeof(*load));
    load->tasks = calloc(machine->topology->node_count, sizeof(*load->tasks));
    load->own = calloc(machine->topology->node_count, sizeof(*load->own));
    load->flows = calloc(nodes * nodes + 1, sizeof(*load->flows));
    if (load->tasks != NULL && load->own != NULL && load->flows != NULL)
        return 0;
    bmi__place_load_close(load);
    return -BMI_ENOMEM;
}

void bmi__place_load_close(struct bmi__place_load *load)
{
    free(load->tasks);
    free(load->own);
    free(load->flows);
}

/* Where a region lies once its group has run at `at`. */
static int lies_on(const struct bmi__place_region *region, struct spot at, bool moved)
{
    return moved || region->node < 0 ? at.node : region->node;
}

static bool bit(uint64_t bits, uint32_t i)
{
    return bits >> i & 1;
}

/* The time of a task's run at `at` on an otherwise idle machine. */
static double alone_ns(const struct bmi__place_machine *machine,
                       const struct bmi__place_group *group, struct spot at, uint64_t moved)
{
    double bytes = 0; /* as many local ones would take as long */
    for (uint32_t i = 0; i < group->region_count; i++) {
        const struct bmi__place_region *region = &group->regions[i];
        bytes += (region->read + region->written) *
                 remote(machine, at, lies_on(region, at, bit(moved, i)));
    }
    return group->compute_ns + bytes / group->tasks / 1024 * machine->costs.local_ns_per_kib;
}

static void rates_add(struct bmi__place_rates *rates, int cpu, int memory, double read,
                      double written)
{
    if (memory < 0)
        return;
    rates->memory[memory] += read + written;
    if (cpu == memory || cpu < 0)
        return;
    rates->out[memory] += read;
    rates->in[memory] += written;
    rates->in[cpu] += read;
    rates->out[cpu] += written;
}

/* Tasks for each CPU of a vertex, of those above it a part, if `more` join; at least 1. */
static double share(const struct bmi__place_machine *machine, const struct bmi__place_load *load,
                    uint32_t vertex, uint32_t more)
{
    const struct bmi__topology_node *nodes = machine->topology->nodes;
    if (load == NULL)
        return 1;
    double tasks = (double)load->tasks[vertex] + more;
    for (uint32_t i = nodes[vertex].parent; i != BMI__NO_NODE; i = nodes[i].parent)
        tasks += (double)load->own[i] * nodes[vertex].count / nodes[i].count;
    return larger(tasks / nodes[vertex].count, 1);
}

/* Tasks that have no CPU cause no traffic: a node's demand counts as far as its CPUs go. */
static void rates_update(const struct bmi__place_machine *machine, struct bmi__place_load *load)
{
    uint32_t nodes = machine->node_count;
    memset(&load->rates, 0, sizeof(load->rates));
    for (uint32_t cpu = 0; cpu < nodes; cpu++) {
        double running = 1 / share(machine, load, machine->vertices[cpu], 0);
        for (uint32_t i = 0; i < nodes; i++) {
            const struct bmi__place_flow *flow = &load->flows[cpu * nodes + i];
            rates_add(&load->rates, (int)cpu, (int)i, running * flow->read,
                      running * flow->written);
        }
    }
}

static uint32_t nodes_below(const struct bmi__place_machine *machine, uint32_t vertex)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < machine->node_count; i++)
        count += has_node(machine, vertex, i);
    return count;
}

/* A group on several nodes has an equal part of its tasks on each. */
static void load_change(const struct bmi__place_machine *machine, struct bmi__place_load *load,
                        const struct bmi__place_group *group, int sign)
{
    uint32_t parts = nodes_below(machine, group->home);
    for (uint32_t cpu = 0; cpu < machine->node_count; cpu++) {
        struct spot at = {.node = (int)cpu, .vertex = machine->vertices[cpu]};
        double run_ns = alone_ns(machine, group, at, 0);
        for (uint32_t i = 0; run_ns > 0 && i < group->region_count; i++) {
            const struct bmi__place_region *region = &group->regions[i];
            if (!has_node(machine, group->home, cpu))
                break;
            uint32_t memory = (uint32_t)lies_on(region, at, false);
            struct bmi__place_flow *flow = &load->flows[cpu * machine->node_count + memory];
            flow->read += sign * region->read / parts / run_ns;
            flow->written += sign * region->written / parts / run_ns;
        }
    }
    load->own[group->home] += (uint32_t)sign * group->tasks;
    for (uint32_t i = group->home; i != BMI__NO_NODE; i = machine->topology->nodes[i].parent)
        load->tasks[i] += (uint32_t)sign * group->tasks;
    rates_update(machine, load);
}

void bmi__place_load_add(const struct bmi__place_machine *machine, struct bmi__place_load *load,
                         const struct bmi__place_group *group)
{
    load_change(machine, load, group, 1);
}

void bmi__place_load_remove(const struct bmi__place_machine *machine, struct bmi__place_load *load,
                            const struct bmi__place_group *group)
{
    load_change(machine, load, group, -1);
}

/* ---- the estimate ---------------------------------------------------------------------------- */

static double stretch(const struct bmi__place_machine *machine,
                      const struct bmi__place_rates *rates, int cpu, int memory)
{
    double most = 1;
    if (memory >= 0 && machine->memory_rate > 0)
        most = larger(most, rates->memory[memory] / machine->memory_rate);
    if (memory >= 0 && cpu >= 0 && cpu != memory && machine->link_rate > 0) {
        double busiest = larger(larger(rates->out[memory], rates->in[memory]),
                                larger(rates->out[cpu], rates->in[cpu]));
        most = larger(most, busiest / machine->link_rate);
    }
    return most;
}

/* A place to estimate: the part of the group's demand that comes from there. */
struct plan {
    const struct bmi__place_machine *machine;
    const struct bmi__place_load *load; /* without the group; or NULL */
    const struct bmi__place_group *group;
    struct spot at;
    double share;
    double part; /* 1: all tasks; 0: the group's own demand is not counted */
};

/* The price of moves; each task copies a part. */
static double moves_ns(const struct plan *plan, const struct bmi__place_rates *rates,
                       uint64_t moved)
{
    const struct bmi__place_machine *machine = plan->machine;
    double sum = 0;
    for (uint32_t i = 0; i < plan->group->region_count; i++) {
        const struct bmi__place_region *region = &plan->group->regions[i];
        if (bit(moved, i))
            sum += region->bytes / 1024 / plan->group->tasks *
                       copy_ns_per_kib(machine, plan->at, region->node) *
                       stretch(machine, rates, plan->at.node, region->node) +
                   machine->costs.move_region_ns;
    }
    return sum;
}

/* The time until the group's end, if these regions move first. */
static double until_end_ns(const struct plan *plan, uint64_t moved)
{
    const struct bmi__place_machine *machine = plan->machine;
    const struct bmi__place_group *group = plan->group;
    double alone = alone_ns(machine, group, plan->at, moved);
    double each = plan->share > 0 && alone > 0 ? plan->part / (alone * plan->share) : 0;
    struct bmi__place_rates rates;
    memset(&rates, 0, sizeof(rates));
    if (plan->load != NULL)
        rates = plan->load->rates;
    for (uint32_t i = 0; i < group->region_count; i++) {
        const struct bmi__place_region *region = &group->regions[i];
        rates_add(&rates, plan->at.node, lies_on(region, plan->at, bit(moved, i)),
                  region->read * each, region->written * each);
    }
    double run_ns = group->compute_ns;
    for (uint32_t i = 0; i < group->region_count; i++) {
        const struct bmi__place_region *region = &group->regions[i];
        int node = lies_on(region, plan->at, bit(moved, i));
        run_ns += (region->read + region->written) / group->tasks / 1024 *
                  machine->costs.local_ns_per_kib * remote(machine, plan->at, node) *
                  stretch(machine, &rates, plan->at.node, node);
    }
    return group->runs * plan->share * run_ns + moves_ns(plan, &rates, moved);
}

/* The same with those regions moved for which it pays. */
static double with_moves_ns(const struct plan *plan, uint64_t *moved)
{
    double least = until_end_ns(plan, 0);
    *moved = 0;
    for (uint32_t i = 0; i < plan->group->region_count; i++) {
        const struct bmi__place_region *region = &plan->group->regions[i];
        if (region->stays || region->node < 0 || region->node == plan->at.node)
            continue;
        double cost = until_end_ns(plan, *moved | UINT64_C(1) << i);
        if (cost < least) {
            least = cost;
            *moved |= UINT64_C(1) << i;
        }
    }
    return least;
}

/* The time until the group's end at a vertex; on several nodes, where no memory moves, the mean. Of
 * the group's own demand the part `own` counts: 1 or 0. */
static double vertex_ns(struct plan plan, uint32_t vertex, double own, uint64_t *moved)
{
    const struct bmi__place_machine *machine = plan.machine;
    uint32_t nodes = nodes_below(machine, vertex);
    plan.share = share(machine, plan.load, vertex, plan.group->tasks);
    plan.part = nodes > 1 ? own / nodes : own;
    plan.at = spot_of(machine, vertex);
    if (nodes <= 1)
        return moved != NULL ? with_moves_ns(&plan, moved) : until_end_ns(&plan, 0);
    double sum = 0;
    for (uint32_t i = 0; i < machine->node_count; i++) {
        plan.at = (struct spot){.node = (int)i, .vertex = machine->vertices[i]};
        sum += has_node(machine, vertex, i) ? until_end_ns(&plan, 0) : 0;
    }
    return sum / nodes;
}

/* ---- decisions ------------------------------------------------------------------------------- */

/* Whether a new group may go on a vertex: not below the level `lowest`, nor above a vertex with as
 * many CPUs as it has tasks. */
static bool suits(const struct bmi__topology *topology, uint32_t vertex, uint32_t tasks,
                  enum bmi_task_level lowest)
{
    const struct bmi__topology_node *nodes = topology->nodes;
    uint32_t child = vertex + 1; /* if there are any, the first one */
    bool wide = child < topology->node_count && nodes[child].parent == vertex &&
                nodes[child].levels >> lowest && nodes[child].count >= tasks;
    return nodes[vertex].levels >> lowest && !wide;
}

uint32_t bmi__place_new(const struct bmi__place_machine *machine,
                        const struct bmi__place_load *load, const struct bmi__place_group *group,
                        uint32_t within, enum bmi_task_level lowest)
{
    const struct bmi__topology_node *nodes = machine->topology->nodes;
    const struct plan plan = {.machine = machine, .load = load, .group = group};
    uint32_t best = within;
    double least = INFINITY, fill = INFINITY;
    for (uint32_t i = within; i < machine->topology->node_count; i++) {
        if (!covers(machine->topology, within, i) ||
            !suits(machine->topology, i, group->tasks, lowest))
            continue;
        /* Without its own demand: a group starts together, and idle CPUs take parts of it later
         * if there is too little bandwidth. */
        double cost = vertex_ns(plan, i, 0, NULL);
        double filled = (double)load->tasks[i] / nodes[i].count;
        bool equal = cost <= least * (1 + EQUAL) && cost >= least * (1 - EQUAL);
        /* children follow their parents: of equal ones the lower is taken */
        if (equal ? filled < fill || (filled <= fill && covers(machine->topology, best, i))
                  : cost < least) {
            best = i;
            least = cost;
            fill = filled;
        }
    }
    return best;
}

void bmi__place_choose(const struct bmi__place_machine *machine, const struct bmi__place_load *load,
                       const struct bmi__place_group *group, double wait_ns, uint32_t idle,
                       struct bmi__place_choice *choice)
{
    const struct plan plan = {.machine = machine, .load = load, .group = group};
    uint64_t moved[2] = {0, 0};
    double start_ns = group->stays          ? INFINITY
                      : idle != group->home ? machine->costs.move_task_ns
                                            : 0;
    choice->cost_ns[BMI_TASK_PLACE_STAY] = wait_ns + vertex_ns(plan, group->home, 1, NULL);
    choice->cost_ns[BMI_TASK_PLACE_DATA] = wait_ns + vertex_ns(plan, group->home, 1, &moved[0]);
    choice->cost_ns[BMI_TASK_PLACE_TASK] = start_ns + vertex_ns(plan, idle, 1, NULL);
    choice->cost_ns[BMI_TASK_PLACE_BOTH] = start_ns + vertex_ns(plan, idle, 1, &moved[1]);
    choice->placement = BMI_TASK_PLACE_STAY;
    for (int i = BMI_TASK_PLACE_DATA; i <= BMI_TASK_PLACE_BOTH; i++) {
        if (choice->cost_ns[i] < choice->cost_ns[choice->placement])
            choice->placement = (enum bmi_task_placement)i;
    }
    choice->moved = choice->placement == BMI_TASK_PLACE_DATA   ? moved[0]
                    : choice->placement == BMI_TASK_PLACE_BOTH ? moved[1]
                                                               : 0;
}

/* The gain of a group; 0: too little to move. */
static double gain_ns(const struct bmi__place_machine *machine, struct bmi__place_load *load,
                      const struct bmi__place_group *group, uint32_t idle,
                      struct bmi__place_choice *choice)
{
    bmi__place_load_remove(machine, load, group);
    bmi__place_choose(machine, load, group, 0, idle, choice);
    bmi__place_load_add(machine, load, group);
    double stay = choice->cost_ns[BMI_TASK_PLACE_STAY];
    double gain = stay - choice->cost_ns[choice->placement];
    return gain > GAIN_LEAST * stay ? gain : 0;
}

int bmi__place_find(const struct bmi__place_machine *machine, struct bmi__place_load *load,
                    uint32_t idle, const struct bmi__place_group *const *groups, uint32_t count,
                    struct bmi__place_choice *choice)
{
    const struct bmi__topology *topology = machine->topology;
    unsigned furthest = bmi__place_distance(topology, idle, 0);
    for (unsigned far = 0; far <= furthest; far++) {
        double most = 0;
        int found = -1;
        for (uint32_t i = 0; i < count; i++) {
            struct bmi__place_choice one;
            if (bmi__place_distance(topology, idle, groups[i]->home) != far)
                continue;
            double gain = gain_ns(machine, load, groups[i], idle, &one);
            if (gain > most) {
                most = gain;
                found = (int)i;
                *choice = one;
            }
        }
        if (found >= 0)
            return found;
    }
    return -1;
}
