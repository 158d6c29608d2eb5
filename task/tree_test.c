/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Where tasks wait and which CPUs take them, on a tree of two packages of two cores, by hooks that
 * act for its CPUs.
 */
#include "task/testing.h"

static struct bmi_task_manager *given_tree(void)
{
    struct bmi_task_settings settings = {
        .topology = BMI_TASK_TOPOLOGY_SYNTHETIC,
        .topology_text = "package:2 core:2 pu:1",
    };
    return test_manager(&settings, BMI_TASK_HOOKS_ONLY);
}

static enum bmi_task_status count_up(struct bmi_task *task, void *argument)
{
    (void)task;
    if (argument != NULL)
        atomic_fetch_add((atomic_uint *)argument, 1);
    return BMI_TASK_DONE;
}

static uint64_t run_by(struct bmi_task_manager *manager, int queue, int cpu)
{
    return bmi_task_queue_run_by(manager, queue, cpu);
}

/* The set names the lowest queue that covers it; a CPU runs its own queue and those above. */
static void test_queue_of_a_set(void)
{
    struct bmi_task_manager *manager = given_tree();
    struct {
        int first, last, queue;
    } expected[] = {{0, 0, 2}, {3, 3, 6}, {0, 1, 1}, {2, 3, 4}, {0, 3, 0}};
    for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
        struct bmi_task task;
        struct bmi_cpuset cpus = test_only(expected[i].first);
        for (int cpu = expected[i].first; cpu <= expected[i].last; cpu++)
            bmi_cpuset_add(&cpus, cpu);
        struct bmi_task_attributes attributes = {.function = count_up, .cpus = &cpus};
        struct bmi_task_queue_statistics statistics;
        CU_ASSERT_EQUAL(bmi_task_prepare(&task, manager, &attributes), 0);
        bmi_task_submit(&task);
        bmi_task_queue_statistics(manager, expected[i].queue, &statistics);
        CU_ASSERT_EQUAL(statistics.submitted, 1);
        CU_ASSERT_EQUAL(statistics.queued, 1);
        CU_ASSERT_FALSE(statistics.served);
        CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, expected[i].last), 1);
        CU_ASSERT_EQUAL(run_by(manager, expected[i].queue, expected[i].last), 1);
        bmi_task_queue_statistics(manager, expected[i].queue, &statistics);
        CU_ASSERT_EQUAL(statistics.run, 1);
        CU_ASSERT_EQUAL(statistics.queued, 0);
    }
    bmi_task_manager_destroy(manager);
}

static unsigned order[4], order_count;

static enum bmi_task_status note_order(struct bmi_task *task, void *argument)
{
    (void)task;
    order[order_count++] = *(unsigned *)argument;
    return BMI_TASK_DONE;
}

/* Algorithm 1: own queue, package, machine; submitted the other way round. */
static void test_upwards(void)
{
    struct bmi_task_manager *manager = given_tree();
    struct bmi_task tasks[3];
    unsigned levels[3] = {0, 1, 2};
    struct bmi_cpuset sets[3] = {test_only(2), test_only(2), test_only(2)};
    bmi_cpuset_add(&sets[1], 3);
    bmi_task_cpus(manager, &sets[2]);
    order_count = 0;
    for (int i = 2; i >= 0; i--) {
        struct bmi_task_attributes attributes = {
            .function = note_order,
            .argument = &levels[i],
            .cpus = &sets[i],
        };
        CU_ASSERT_EQUAL(bmi_task_prepare(&tasks[i], manager, &attributes), 0);
        bmi_task_submit(&tasks[i]);
    }
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, 2), 3);
    for (unsigned i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(order[i], i);
    bmi_task_manager_destroy(manager);
}

/* Without workers a hook reaches every queue, after its own. */
static void test_hook_reaches_all(void)
{
    struct bmi_task_manager *manager = given_tree();
    struct bmi_task task;
    struct bmi_cpuset cpus = test_only(3);
    struct bmi_task_attributes attributes = {.function = count_up, .cpus = &cpus};
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, manager, &attributes), 0);
    bmi_task_submit(&task);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, 0), 1);
    CU_ASSERT_EQUAL(run_by(manager, 6, -1), 1);
    CU_ASSERT_EQUAL(run_by(manager, 6, 3), 0);
    CU_ASSERT_EQUAL(run_by(manager, 6, 0), 0);
    CU_ASSERT_EQUAL(run_by(manager, 99, 0), 0);
    bmi_task_manager_destroy(manager);
}

/* Sets that are no node's: the first of many such tasks do not block the last. */
static void test_sets_of_no_node(void)
{
    struct bmi_task_manager *manager = given_tree();
    struct bmi_task tasks[10];
    atomic_uint runs = 0;
    for (int i = 0; i < 10; i++) {
        struct bmi_cpuset cpus = test_only(i % 2);
        bmi_cpuset_add(&cpus, 2);
        struct bmi_task_attributes attributes = {
            .function = count_up,
            .argument = &runs,
            .cpus = &cpus,
        };
        CU_ASSERT_EQUAL(bmi_task_prepare(&tasks[i], manager, &attributes), 0);
        bmi_task_submit(&tasks[i]);
    }
    CU_ASSERT_EQUAL(bmi_task_cancel(&tasks[5]), 0);
    struct bmi_task_queue_statistics statistics;
    bmi_task_queue_statistics(manager, 0, &statistics);
    CU_ASSERT_EQUAL(statistics.queued, 10);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, 3), 10); /* no CPU of the sets is served */
    CU_ASSERT_EQUAL(runs, 9);
    CU_ASSERT_EQUAL(bmi_task_state(&tasks[5]), BMI_TASK_CANCELLED);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, 2), 0);
    for (int i = 0; i < 10; i++)
        bmi_task_submit(&tasks[i]);
    bmi_task_manager_destroy(manager);
    for (int i = 0; i < 10; i++)
        CU_ASSERT_EQUAL(bmi_task_state(&tasks[i]), BMI_TASK_CANCELLED);
}

static enum bmi_task_status hold_on(struct bmi_task *task, void *argument)
{
    atomic_uint *held = argument;
    (void)task;
    atomic_fetch_add(held, 1);
    while (atomic_load(held) < 3)
        sched_yield();
    return BMI_TASK_DONE;
}

/* Both workers of a set are busy: no worker of another CPU takes its task, though they search its
 * queue; the timer makes a helper of one of the set's CPUs run it. */
static void test_sets_of_no_node_with_workers(void)
{
    struct bmi_cpuset workers = test_only(0), set = test_only(0);
    bmi_cpuset_add(&set, 2);
    bmi_cpuset_add(&workers, 2);
    bmi_cpuset_add(&workers, 3);
    struct bmi_task_settings settings = {
        .topology = BMI_TASK_TOPOLOGY_SYNTHETIC,
        .topology_text = "package:2 core:2 pu:1",
        .worker_cpus = &workers,
    };
    struct bmi_task_manager *manager = test_manager(&settings, BMI_TASK_WORKERS);
    struct bmi_task holding[2], first, second;
    atomic_uint held = 0;
    for (int i = 0; i < 2; i++) {
        struct bmi_cpuset one = test_only(2 * i);
        struct bmi_task_attributes hold = {.function = hold_on, .argument = &held, .cpus = &one};
        CU_ASSERT_EQUAL(bmi_task_prepare(&holding[i], manager, &hold), 0);
        bmi_task_submit(&holding[i]);
    }
    CU_ASSERT_TRUE(test_reaches(&held, 2));
    struct bmi_task_attributes attributes = {.function = count_up, .cpus = &set};
    CU_ASSERT_EQUAL(bmi_task_prepare(&first, manager, &attributes), 0);
    CU_ASSERT_EQUAL(bmi_task_prepare(&second, manager, &attributes), 0);
    CU_ASSERT_PTR_EQUAL(first.only, second.only); /* equal sets are kept once */
    bmi_task_submit(&first);
    for (int i = 0; i < 20; i++) {
        CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, 1), 0);
        CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, 3), 0);
    }
    uint64_t end = test_now_ns() + 20000000000u;
    while (bmi_task_state(&first) != BMI_TASK_ENDED && test_now_ns() < end)
        sched_yield();
    CU_ASSERT_EQUAL(run_by(manager, 0, 0) + run_by(manager, 0, 2), 1);
    CU_ASSERT_EQUAL(run_by(manager, 0, 1) + run_by(manager, 0, 3), 0);
    atomic_store(&held, 3);
    for (int i = 0; i < 2; i++)
        CU_ASSERT_EQUAL(bmi_task_wait(&holding[i], 20000), 0);
    bmi_task_manager_destroy(manager);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"queue of a set", test_queue_of_a_set},
        {"from the own queue upwards", test_upwards},
        {"a hook reaches all queues", test_hook_reaches_all},
        {"sets that are no node's", test_sets_of_no_node},
        {"such sets and workers", test_sets_of_no_node_with_workers},
        CU_TEST_INFO_NULL,
    };
    return test_run("tree", cases);
}
