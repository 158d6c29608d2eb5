/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Decisions of placement.c, as tables of cases, on a machine of 2 packages of 2 NUMA nodes of 2
 * caches of 2 CPUs: node 0 has CPUs 0-3, node 1 (the same package) 4-7, node 2 8-11, node 3 12-15.
 */
#include "task/placement.h"
#include "task/testing.h"

#include <errno.h>

enum { NODES = 4, GROUPS = 32 };

#define KIB 1024.0
#define MIB (1024 * KIB)

static struct bmi__topology topology;
static struct bmi__place_machine machine;

static uint32_t node_vertex(int node)
{
    return node >= 0 ? machine.vertices[node] : 0;
}

/* Tasks that only read, of one region each. */
static struct bmi__place_group group_make(struct bmi__place_region *region, uint32_t tasks,
                                          double runs, double each, int home, int node)
{
    *region = (struct bmi__place_region){.bytes = each * tasks, .read = each * tasks, .node = node};
    return (struct bmi__place_group){.regions = region,
                                     .region_count = 1,
                                     .tasks = tasks,
                                     .runs = runs,
                                     .home = node_vertex(home)};
}

/* Adds `count` single tasks at a node, with their memory there. */
static void fill(struct bmi__place_load *load, int node, uint32_t count)
{
    struct bmi__place_region region;
    struct bmi__place_group one = group_make(&region, 1, 10, MIB, node, node);
    for (uint32_t i = 0; i < count; i++)
        bmi__place_load_add(&machine, load, &one);
}

static void test_distance(void)
{
    static const unsigned expected[NODES][NODES] = {{0, 1, 2, 2},
                                                    {1, 0, 2, 2},
                                                    {2, 2, 0, 1},
                                                    {2, 2, 1, 0}};
    CU_ASSERT_EQUAL_FATAL(machine.node_count, NODES);
    for (int i = 0; i < NODES; i++)
        for (int j = 0; j < NODES; j++)
            CU_ASSERT_EQUAL(bmi__place_distance(&topology, node_vertex(i), node_vertex(j)),
                            expected[i][j]);
    CU_ASSERT_EQUAL(bmi__place_node_of(&machine, topology.leaf_of[9]), 2);
    CU_ASSERT_EQUAL(bmi__place_node_of(&machine, topology.nodes[node_vertex(1)].parent), -1);
}

/* The lowest level with room, near the memory. `full`: tasks that each node has already. */
static void test_new(void)
{
    static const struct {
        uint32_t tasks;
        int memory;
        uint32_t full[NODES];
        enum bmi_task_level lowest;
        uint32_t first, count; /* CPUs of the expected vertex */
    } cases[] = {
        {1, -1, {0}, BMI_TASK_LEVEL_CPU, 0, 1},
        {1, 2, {0}, BMI_TASK_LEVEL_CPU, 8, 1}, /* where its memory lies */
        {2, 2, {0}, BMI_TASK_LEVEL_CPU, 8, 2}, /* a cache for two */
        {4, 2, {0}, BMI_TASK_LEVEL_CPU, 8, 4}, /* a node */
        {5, 2, {0}, BMI_TASK_LEVEL_CPU, 8, 4}, /* waiting a little is cheaper than remote memory */
        {8, 2, {0}, BMI_TASK_LEVEL_CPU, 8, 8}, /* the package around the memory */
        {16, 2, {0}, BMI_TASK_LEVEL_CPU, 0, 16},           /* the machine */
        {1, 2, {0}, BMI_TASK_LEVEL_NUMA, 8, 4},            /* not below nodes */
        {4, -1, {4, 0, 4, 4}, BMI_TASK_LEVEL_CPU, 4, 4},   /* the only free node */
        {2, 2, {0, 0, 12, 0}, BMI_TASK_LEVEL_NUMA, 12, 4}, /* a full node: its neighbour */
        {2, 2, {8, 8, 3, 8}, BMI_TASK_LEVEL_NUMA, 8, 4},   /* all full: the memory's own */
        {4, -1, {0, 2, 2, 2}, BMI_TASK_LEVEL_NUMA, 0, 4},  /* most room */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct bmi__place_load load;
        struct bmi__place_region region;
        struct bmi__place_group group =
            group_make(&region, cases[i].tasks, 10, 10 * MIB, 0, cases[i].memory);
        CU_ASSERT_EQUAL_FATAL(bmi__place_load_open(&machine, &load), 0);
        for (int node = 0; node < NODES; node++)
            fill(&load, node, cases[i].full[node]);
        uint32_t vertex = bmi__place_new(&machine, &load, &group, 0, cases[i].lowest);
        if (topology.nodes[vertex].first != cases[i].first ||
            topology.nodes[vertex].count != cases[i].count)
            printf("case %zu: CPUs %u+%u ", i, topology.nodes[vertex].first,
                   topology.nodes[vertex].count);
        CU_ASSERT_EQUAL(topology.nodes[vertex].first, cases[i].first);
        CU_ASSERT_EQUAL(topology.nodes[vertex].count, cases[i].count);
        bmi__place_load_close(&load);
    }
}

/* A group opens within the vertex that it was placed on. */
static void test_new_within(void)
{
    struct bmi__place_load load;
    struct bmi__place_region region;
    struct bmi__place_group group = group_make(&region, 1, 10, MIB, 0, 0);
    uint32_t package = topology.nodes[node_vertex(2)].parent;
    CU_ASSERT_EQUAL_FATAL(bmi__place_load_open(&machine, &load), 0);
    fill(&load, 2, 1);
    CU_ASSERT_EQUAL(bmi__place_new(&machine, &load, &group, package, BMI_TASK_LEVEL_NUMA),
                    node_vertex(3));
    bmi__place_load_close(&load);
}

/* One task at node 0; a CPU of node `idle` has nothing to run. `beside`: other tasks of node 0. */
static void test_choose(void)
{
    static const struct {
        double runs, kib, compute_ns;
        int memory, idle;
        uint32_t beside;
        bool stays, pinned;
        enum bmi_task_placement expected;
    } cases[] = {
        /* all is well; the task goes to its memory; a last run is not worth a move; many are */
        {10, 1024, 0, 0, 1, 0, false, false, BMI_TASK_PLACE_STAY},
        {10, 1024, 0, 2, 2, 0, false, false, BMI_TASK_PLACE_TASK},
        {1, 1024, 0, 2, 1, 0, false, false, BMI_TASK_PLACE_STAY},
        {100, 1024, 0, 2, 1, 0, false, false, BMI_TASK_PLACE_DATA},
        /* a task that must stay; pinned memory */
        {100, 1024, 0, 2, 2, 0, true, false, BMI_TASK_PLACE_DATA},
        {100, 1024, 0, 2, 1, 0, false, true, BMI_TASK_PLACE_STAY},
        /* a full node: the task leaves; if it has many runs and may, with its memory */
        {1, 1024, 1e4, 0, 1, 8, false, false, BMI_TASK_PLACE_TASK},
        {1, 1024, 0, 0, 1, 8, false, false, BMI_TASK_PLACE_TASK},
        {100, 1024, 0, 0, 1, 8, false, false, BMI_TASK_PLACE_BOTH},
        {100, 1024, 0, 0, 1, 8, false, true, BMI_TASK_PLACE_TASK},
        {100, 1024, 1e4, 0, 1, 8, false, true, BMI_TASK_PLACE_TASK},
        /* CPUs suffice, the memory's bandwidth does not */
        {100, 1024, 0, 0, 3, 3, false, false, BMI_TASK_PLACE_BOTH},
        {1, 1024, 0, 0, 3, 3, false, false, BMI_TASK_PLACE_STAY},
        /* memory on no node yet */
        {100, 1024, 0, -1, 3, 0, false, false, BMI_TASK_PLACE_STAY},
        {100, 1024, 0, -1, 3, 8, false, false, BMI_TASK_PLACE_TASK},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct bmi__place_load load;
        struct bmi__place_region region;
        struct bmi__place_choice choice;
        struct bmi__place_group group =
            group_make(&region, 1, cases[i].runs, cases[i].kib * KIB, 0, cases[i].memory);
        group.compute_ns = cases[i].compute_ns;
        group.stays = cases[i].stays;
        region.stays = cases[i].pinned;
        CU_ASSERT_EQUAL_FATAL(bmi__place_load_open(&machine, &load), 0);
        fill(&load, 0, cases[i].beside);
        bmi__place_choose(&machine, &load, &group, 0, node_vertex(cases[i].idle), &choice);
        if (choice.placement != cases[i].expected)
            printf("case %zu: %d, costs %g %g %g %g ", i, choice.placement, choice.cost_ns[0],
                   choice.cost_ns[1], choice.cost_ns[2], choice.cost_ns[3]);
        CU_ASSERT_EQUAL(choice.placement, cases[i].expected);
        bool moves =
            choice.placement == BMI_TASK_PLACE_DATA || choice.placement == BMI_TASK_PLACE_BOTH;
        CU_ASSERT_EQUAL(choice.moved, (uint64_t)moves);
        bmi__place_load_close(&load);
    }
}

/* Idle CPUs take near groups first; the load is the same afterwards. */
static void test_find(void)
{
    struct bmi__place_load load, before;
    struct bmi__place_region regions[3];
    struct bmi__place_choice choice;
    struct bmi__place_group far = group_make(&regions[0], 1, 1000, MIB, 2, 2);
    struct bmi__place_group near = group_make(&regions[1], 1, 100, MIB, 0, 0);
    struct bmi__place_group well = group_make(&regions[2], 1, 100, MIB, 3, 3);
    const struct bmi__place_group *groups[] = {&well, &far, &near};
    CU_ASSERT_EQUAL_FATAL(bmi__place_load_open(&machine, &load), 0);
    CU_ASSERT_EQUAL_FATAL(bmi__place_load_open(&machine, &before), 0);
    fill(&load, 2, 8);
    fill(&load, 0, 8);
    for (int i = 0; i < 3; i++)
        bmi__place_load_add(&machine, &load, groups[i]);
    before.rates = load.rates;
    CU_ASSERT_EQUAL(bmi__place_find(&machine, &load, node_vertex(1), groups, 3, &choice), 2);
    CU_ASSERT_EQUAL(choice.placement, BMI_TASK_PLACE_BOTH);
    CU_ASSERT_EQUAL(bmi__place_find(&machine, &load, node_vertex(1), groups, 2, &choice), 1);
    CU_ASSERT_EQUAL(bmi__place_find(&machine, &load, node_vertex(1), groups, 1, &choice), -1);
    for (int i = 0; i < NODES; i++)
        CU_ASSERT_DOUBLE_EQUAL(load.rates.memory[i], before.rates.memory[i], 1e-9);
    bmi__place_load_close(&load);
    bmi__place_load_close(&before);
}

/* A node has more work than its memory serves: idle nodes take tasks with their memory until no
 * one gains, and then no task moves back. */
static void test_settles(void)
{
    struct bmi__place_load load;
    struct bmi__place_region regions[GROUPS];
    struct bmi__place_group groups[GROUPS];
    const struct bmi__place_group *all[GROUPS];
    struct bmi__place_choice choice;
    unsigned moves = 0, found = 1;
    CU_ASSERT_EQUAL_FATAL(bmi__place_load_open(&machine, &load), 0);
    for (int i = 0; i < 8; i++) {
        groups[i] = group_make(&regions[i], 1, 1000, MIB, 0, 0);
        all[i] = &groups[i];
        bmi__place_load_add(&machine, &load, &groups[i]);
    }
    while (found > 0 && moves < GROUPS) {
        found = 0;
        for (int node = 0; node < NODES; node++) {
            int i = bmi__place_find(&machine, &load, node_vertex(node), all, 8, &choice);
            if (i < 0)
                continue;
            bmi__place_load_remove(&machine, &load, &groups[i]);
            if (choice.placement >= BMI_TASK_PLACE_TASK)
                groups[i].home = node_vertex(node);
            if (choice.moved)
                regions[i].node = bmi__place_node_of(&machine, groups[i].home);
            bmi__place_load_add(&machine, &load, &groups[i]);
            found++;
            moves++;
        }
    }
    CU_ASSERT_EQUAL(moves, 6);
    for (int node = 0; node < NODES; node++)
        CU_ASSERT_EQUAL(load.tasks[node_vertex(node)], 2);
    for (int i = 0; i < 8; i++)
        CU_ASSERT_EQUAL(node_vertex(regions[i].node), groups[i].home);
    bmi__place_load_close(&load);
}

/* A group that is removed leaves nothing, also one on several nodes. */
static void test_load(void)
{
    struct bmi__place_load load;
    struct bmi__place_region region;
    struct bmi__place_group group = group_make(&region, 8, 10, MIB, -1, 3);
    CU_ASSERT_EQUAL_FATAL(bmi__place_load_open(&machine, &load), 0);
    bmi__place_load_add(&machine, &load, &group);
    CU_ASSERT_EQUAL(load.tasks[0], 8);
    /* two tasks on each node; distances 2, 2, 1, 0, so each reads at 1/3, 1/3, 1/2, 1 */
    CU_ASSERT_DOUBLE_EQUAL(load.rates.memory[3], 2 * KIB * (2. / 3 + 1. / 2 + 1), 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(load.rates.out[3], 2 * KIB * (2. / 3 + 1. / 2), 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(load.rates.in[0], 2 * KIB / 3, 1e-6);
    bmi__place_load_remove(&machine, &load, &group);
    CU_ASSERT_EQUAL(load.tasks[0], 0);
    CU_ASSERT_DOUBLE_EQUAL(load.rates.memory[3], 0, 1e-9);
    region.written = region.read;
    region.read = 0;
    bmi__place_load_add(&machine, &load, &group);
    CU_ASSERT_DOUBLE_EQUAL(load.rates.in[3], 2 * KIB * (2. / 3 + 1. / 2), 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(load.rates.out[0], 2 * KIB / 3, 1e-6);
    bmi__place_load_remove(&machine, &load, &group);
    fill(&load, 1, 8); /* four have a CPU: the others cause no traffic */
    CU_ASSERT_DOUBLE_EQUAL(load.rates.memory[1], 4 * KIB, 1e-6);
    bmi__place_load_close(&load);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"distances", test_distance},
        {"load of nodes", test_load},
        {"new groups", test_new},
        {"a group that opens", test_new_within},
        {"stay, move, memory, both", test_choose},
        {"idle CPUs look for work", test_find},
        {"moves come to an end", test_settles},
        CU_TEST_INFO_NULL,
    };
    char error[256];
    struct bmi_task_settings settings = {
        .topology = BMI_TASK_TOPOLOGY_SYNTHETIC,
        .topology_text = "package:2 numa:2 l3:2 core:2 pu:1",
    };
    if (bmi__topology_build(&settings, &topology, error, sizeof(error)) != 0) {
        fprintf(stderr, "no topology: %s\n", error);
        return EXIT_FAILURE;
    }
    /* a node's memory serves two tasks that only read, a link one */
    bmi__place_machine_make(&machine, &topology, &test_round_costs, 2 * KIB, 1 * KIB);
    int result = test_run("placement", cases);
    bmi__topology_free(&topology);
    return result;
}
