/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where a task and its memory go, on a machine of 4 packages of 2 NUMA nodes of 8 cores: CPUs 0-7
 * are node 0, 8-15 node 1 (the same package), 16-23 node 2 (another one), and so on.
 */
#include "task/testing.h"

#include <errno.h>

enum { MIB = 1 << 20 };

static struct bmi_task_manager *manager;

static struct bmi_task_choice place(const struct bmi_task_region *regions, uint32_t count,
                                    double wait_ns, int idle)
{
    struct bmi_task_hints hints = {.regions = regions, .count = count};
    struct bmi_task_choice choice;
    CU_ASSERT_EQUAL_FATAL(bmi_task_place(manager, &hints, 0, wait_ns, idle, &test_round_costs,
                                         &choice),
                          0);
    return choice;
}

static void test_costs(void)
{
    struct bmi_task_region region = {.bytes = MIB, .traffic = 2 * MIB, .node = 0};
    struct bmi_task_choice choice = place(&region, 1, 500, 16);
    CU_ASSERT_DOUBLE_EQUAL(choice.cost_ns[BMI_TASK_PLACE_STAY], 500 + 2048, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(choice.cost_ns[BMI_TASK_PLACE_DATA], 500 + 2048, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(choice.cost_ns[BMI_TASK_PLACE_TASK], 10 + 3 * 2048, 1e-6);
    /* moving costs more than it saves: BOTH moves nothing */
    CU_ASSERT_DOUBLE_EQUAL(choice.cost_ns[BMI_TASK_PLACE_BOTH], 10 + 3 * 2048, 1e-6);
    choice = place(&region, 1, 500, 8);
    CU_ASSERT_DOUBLE_EQUAL(choice.cost_ns[BMI_TASK_PLACE_TASK], 10 + 2 * 2048, 1e-6);
    region.traffic = 20 * MIB;
    choice = place(&region, 1, 500, 16);
    CU_ASSERT_DOUBLE_EQUAL(choice.cost_ns[BMI_TASK_PLACE_BOTH], 10 + 20480 + 1024 * (4 + 2) + 100,
                           1e-6);
}

static void test_stays_where_waiting_is_cheap(void)
{
    struct bmi_task_region region = {.bytes = MIB, .traffic = MIB, .node = 0};
    struct bmi_task_choice choice = place(&region, 1, 500, 16);
    CU_ASSERT_EQUAL(choice.placement, BMI_TASK_PLACE_STAY);
    CU_ASSERT_EQUAL(choice.moved, 0);
    CU_ASSERT_EQUAL(choice.node, 0);
    CU_ASSERT_EQUAL(place(NULL, 0, 0, 16).placement, BMI_TASK_PLACE_STAY);
    CU_ASSERT_EQUAL(place(NULL, 0, 11, 16).placement, BMI_TASK_PLACE_TASK);
}

/* The longer the wait and the nearer the idle CPU, the sooner the task moves. */
static void test_moves_the_task(void)
{
    struct bmi_task_region region = {.bytes = MIB, .traffic = MIB, .node = 0};
    CU_ASSERT_EQUAL(place(&region, 1, 1030, 8).placement, BMI_TASK_PLACE_STAY);
    CU_ASSERT_EQUAL(place(&region, 1, 1040, 8).placement, BMI_TASK_PLACE_TASK);
    CU_ASSERT_EQUAL(place(&region, 1, 1040, 16).placement, BMI_TASK_PLACE_STAY);
    CU_ASSERT_EQUAL(place(&region, 1, 2070, 16).placement, BMI_TASK_PLACE_TASK);
    CU_ASSERT_EQUAL(place(&region, 1, 20, 1).placement, BMI_TASK_PLACE_TASK); /* the same node */
    region.node = 2; /* to its memory it moves even from a free CPU */
    CU_ASSERT_EQUAL(place(&region, 1, 0, 16).placement, BMI_TASK_PLACE_TASK);
    CU_ASSERT_EQUAL(place(&region, 1, 0, 16).node, 2);
}

/* Much use of little memory: it pays to take it along. */
static void test_moves_both(void)
{
    struct bmi_task_region regions[3] = {
        {.bytes = MIB, .traffic = 100 * (uint64_t)MIB, .node = 0},
        {.bytes = MIB, .traffic = 100 * (uint64_t)MIB, .node = 0, .pinned = true},
        {.bytes = 100 * (uint64_t)MIB, .traffic = MIB, .node = 0},
    };
    struct bmi_task_choice choice = place(regions, 3, 1e9, 24);
    CU_ASSERT_EQUAL(choice.placement, BMI_TASK_PLACE_BOTH);
    CU_ASSERT_EQUAL(choice.moved, 1); /* not the pinned one, nor the one that is used little */
    CU_ASSERT_EQUAL(choice.node, 3);
}

static void test_moves_the_data(void)
{
    struct bmi_task_region regions[2] = {
        {.bytes = MIB, .traffic = 100 * (uint64_t)MIB, .node = 0},
        {.bytes = MIB, .traffic = 50 * (uint64_t)MIB, .node = 7},
    };
    struct bmi_task_choice choice = place(regions, 2, 0, 56);
    CU_ASSERT_EQUAL(choice.placement, BMI_TASK_PLACE_DATA);
    CU_ASSERT_EQUAL(choice.moved, 2);
    CU_ASSERT_EQUAL(choice.node, 0);
    choice = place(regions, 2, 100, 56); /* waiting reverses the decision */
    CU_ASSERT_EQUAL(choice.placement, BMI_TASK_PLACE_BOTH);
    CU_ASSERT_EQUAL(choice.moved, 1);
    CU_ASSERT_EQUAL(choice.node, 7);
}

/* Memory on no node yet goes where it is touched first: no place is better. */
static void test_unknown_memory(void)
{
    struct bmi_task_region region = {.bytes = MIB, .traffic = MIB, .node = -1};
    CU_ASSERT_EQUAL(place(&region, 1, 0, 16).placement, BMI_TASK_PLACE_STAY);
    CU_ASSERT_EQUAL(place(&region, 1, 20, 16).placement, BMI_TASK_PLACE_TASK);
    CU_ASSERT_EQUAL(place(&region, 1, 20, 16).moved, 0);
}

static void test_bad_input(void)
{
    static const struct bmi_task_costs negative = {.remote_factor = -1};
    struct bmi_task_hints hints = {.count = 0};
    struct bmi_task_choice choice;
    CU_ASSERT_EQUAL(bmi_task_place(manager, NULL, 0, 0, 1, NULL, &choice), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_place(manager, &hints, 0, 0, 1, NULL, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_place(manager, &hints, 64, 0, 1, NULL, &choice), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_place(manager, &hints, 0, -1, 1, NULL, &choice), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_place(manager, &hints, 0, 0, 1, &negative, &choice), -BMI_EINVAL);
    hints.count = 65;
    CU_ASSERT_EQUAL(bmi_task_place(manager, &hints, 0, 0, 1, NULL, &choice), -BMI_EINVAL);
    hints.count = 0;
    CU_ASSERT_EQUAL(bmi_task_place(manager, &hints, 0, 0, 1, NULL, &choice), 0);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"what placements cost", test_costs},
        {"stays where waiting is cheap", test_stays_where_waiting_is_cheap},
        {"moves the task", test_moves_the_task},
        {"moves task and memory", test_moves_both},
        {"moves the memory", test_moves_the_data},
        {"memory that is on no node", test_unknown_memory},
        {"bad input", test_bad_input},
        CU_TEST_INFO_NULL,
    };
    struct bmi_task_settings settings = {
        .topology = BMI_TASK_TOPOLOGY_SYNTHETIC,
        .topology_text = "package:4 numa:2 core:8 pu:1",
    };
    manager = test_manager(&settings, BMI_TASK_HOOKS_ONLY);
    int result = test_run("place", cases);
    bmi_task_manager_destroy(manager);
    return result;
}
