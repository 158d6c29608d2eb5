/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory on NUMA nodes. On a machine with one node the calls succeed and do nothing; the tests
 * check there the errors that they return, and decisions made for a machine of eight nodes. On a
 * machine with several nodes, memory must lie where it was put.
 */
#include "task/internal.h"
#include "task/testing.h"

#include <errno.h>

enum { BYTES = 1 << 20 };

static struct bmi_task_manager *live;
static int first_node, nodes;

static int last_node(void)
{
    int last = first_node;
    for (uint32_t i = 0; i < live->topology.node_count; i++) {
        if (live->topology.nodes[i].numa > last)
            last = live->topology.nodes[i].numa;
    }
    return last;
}

static void test_allocates_on_a_node(void)
{
    const int wanted[] = {-1, first_node, last_node()};
    for (size_t i = 0; i < 3; i++) {
        void *memory = NULL;
        CU_ASSERT_EQUAL_FATAL(bmi_task_memory_allocate(live, BYTES, wanted[i], &memory), 0);
        unsigned char *bytes = memory;
        CU_ASSERT_EQUAL(bytes[BYTES - 1], 0);
        memset(memory, 7, BYTES);
        int node = bmi_task_memory_node(live, memory, BYTES);
        CU_ASSERT_TRUE(wanted[i] < 0 || node == wanted[i]);
        bmi_task_memory_free(memory, BYTES);
    }
    bmi_task_memory_free(NULL, BYTES);
}

static void test_moves(void)
{
    void *memory;
    CU_ASSERT_EQUAL_FATAL(bmi_task_memory_allocate(live, BYTES, first_node, &memory), 0);
    memset(memory, 7, BYTES);
    CU_ASSERT_EQUAL(bmi_task_memory_move(live, memory, BYTES, last_node()), 0);
    CU_ASSERT_EQUAL(bmi_task_memory_node(live, memory, BYTES), last_node());
    CU_ASSERT_EQUAL(bmi_task_memory_move(live, memory, BYTES, -1), 0);
    const unsigned char *bytes = memory;
    for (int i = 0; i < BYTES; i += 4096)
        CU_ASSERT_EQUAL(bytes[i], 7);
    bmi_task_memory_free(memory, BYTES);
}

static void test_applies_a_choice(void)
{
    void *memory[3];
    struct bmi_task_region regions[3];
    for (int i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL_FATAL(bmi_task_memory_allocate(live, BYTES, first_node, &memory[i]), 0);
        memset(memory[i], i, BYTES);
        regions[i] = (struct bmi_task_region){.address = memory[i], .bytes = BYTES, .node = 0};
    }
    regions[2].pinned = true;
    struct bmi_task_hints hints = {.regions = regions, .count = 3};
    struct bmi_task_choice choice = {.moved = 6, .node = last_node()};
    CU_ASSERT_EQUAL(bmi_task_place_apply(live, &hints, &choice), 1); /* not the pinned one */
    CU_ASSERT_EQUAL(bmi_task_memory_node(live, memory[0], BYTES), first_node);
    CU_ASSERT_EQUAL(bmi_task_memory_node(live, memory[1], BYTES), last_node());
    CU_ASSERT_EQUAL(bmi_task_memory_node(live, memory[2], BYTES), first_node);
    choice.moved = 8;
    CU_ASSERT_EQUAL(bmi_task_place_apply(live, &hints, &choice), -BMI_EINVAL);
    choice.moved = 0;
    CU_ASSERT_EQUAL(bmi_task_place_apply(live, &hints, &choice), 0);
    CU_ASSERT_EQUAL(bmi_task_place_apply(live, NULL, &choice), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_place_apply(live, &hints, NULL), -BMI_EINVAL);
    for (int i = 0; i < 3; i++)
        bmi_task_memory_free(memory[i], BYTES);
}

static enum bmi_task_status sum_up(struct bmi_task *task, void *argument)
{
    unsigned *sum = argument;
    const unsigned char *bytes = task->hints->regions[0].address;
    for (int i = 0; i < BYTES; i++)
        *sum += bytes[i];
    return BMI_TASK_DONE;
}

/* Memory that follows its task is whole there, and lies on the node of the CPU that ran it. */
static void test_follows_a_task(void)
{
    void *memory;
    unsigned sum = 0;
    struct bmi_cpuset cpus;
    CU_ASSERT_EQUAL_FATAL(bmi_task_memory_allocate(live, BYTES, first_node, &memory), 0);
    memset(memory, 1, BYTES);
    struct bmi_task_region region = {.address = memory,
                                     .bytes = BYTES,
                                     .node = first_node,
                                     .next_touch = true};
    struct bmi_task_hints hints = {.regions = &region, .count = 1};
    uint32_t last = live->topology.cpu_count - 1;
    bmi_cpuset_clear(&cpus);
    bmi_cpuset_add(&cpus, live->topology.os_of[last]);
    struct bmi_task_attributes attributes = {.function = sum_up,
                                             .argument = &sum,
                                             .cpus = &cpus,
                                             .hints = &hints};
    struct bmi_task task;
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&task, live, &attributes), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_start(live, BMI_TASK_WORKERS), 0);
    CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(live, BMI_TASK_WORKERS), 0);
    CU_ASSERT_EQUAL(sum, BYTES);
    uint32_t node = bmi__topology_numa_of(&live->topology, last);
    if (nodes > 1)
        CU_ASSERT_EQUAL(bmi_task_memory_node(live, memory, BYTES), live->topology.nodes[node].numa);
    bmi_task_memory_free(memory, BYTES);
}

static void test_bad_input(void)
{
    void *memory = NULL;
    char byte;
    CU_ASSERT_EQUAL(bmi_task_memory_allocate(live, 0, -1, &memory), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_memory_allocate(live, BYTES, -2, &memory), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_memory_allocate(live, BYTES, 4000, &memory), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_memory_allocate(live, BYTES, -1, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_memory_allocate(live, UINT64_MAX / 2, -1, &memory), -BMI_ENOMEM);
    CU_ASSERT_PTR_NULL(memory);
    CU_ASSERT_EQUAL(bmi_task_memory_move(live, NULL, BYTES, -1), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_memory_move(live, &byte, 0, -1), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_memory_move(live, &byte, 1, 4000), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_memory_node(live, NULL, 1), -BMI_EINVAL);
}

/* A decision for another machine can't be applied on this one. */
static void test_other_machine(void)
{
    static char page[BYTES];
    struct bmi_task_settings settings = {
        .topology = BMI_TASK_TOPOLOGY_SYNTHETIC,
        .topology_text = "package:4 numa:2 core:8 pu:1",
    };
    struct bmi_task_manager *other;
    char error[256];
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_create(&settings, &other, error, sizeof(error)), 0);
    struct bmi_task_region region = {.address = page,
                                     .bytes = BYTES,
                                     .traffic = 100 * (uint64_t)BYTES,
                                     .node = 7};
    struct bmi_task_hints hints = {.regions = &region, .count = 1};
    struct bmi_task_choice choice;
    CU_ASSERT_EQUAL(bmi_task_place(other, &hints, 0, 0, 0, NULL, &choice), 0);
    CU_ASSERT_EQUAL(choice.placement, BMI_TASK_PLACE_DATA);
    CU_ASSERT_EQUAL(choice.moved, 1);
    CU_ASSERT_EQUAL(bmi_task_place_apply(other, &hints, &choice), -BMI_EOPNOTSUPP);
    CU_ASSERT_EQUAL(bmi_task_memory_move(other, page, BYTES, 8), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_memory_node(other, page, BYTES), -BMI_EOPNOTSUPP);
    bmi_task_manager_destroy(other);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"allocates on a node", test_allocates_on_a_node},
        {"moves", test_moves},
        {"applies a choice", test_applies_a_choice},
        {"follows a task", test_follows_a_task},
        {"bad input", test_bad_input},
        {"another machine's nodes", test_other_machine},
        CU_TEST_INFO_NULL,
    };
    live = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    nodes = bmi__topology_numa_count(&live->topology);
    first_node = nodes > 0 ? bmi__topology_numa_first(&live->topology) : 0;
    printf("%d NUMA nodes%s\n", nodes, nodes > 1 ? "" : ": nothing can be moved for real");
    int result = test_run("memory", cases);
    bmi_task_manager_destroy(live);
    return result;
}
