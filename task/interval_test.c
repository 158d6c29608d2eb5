/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Repeating tasks with an interval: no run comes too early, and ends do not wait for the interval.
 */
#include "task/testing.h"

enum { RUNS = 5, INTERVAL_US = 2000, HOUR_US = 2000000000 };

struct runs {
    uint64_t ended_ns[RUNS];
    atomic_uint count;
    atomic_uint early; /* runs that began before the interval was over */
};

static enum bmi_task_status note_time(struct bmi_task *task, void *argument)
{
    (void)task;
    struct runs *runs = argument;
    unsigned count = atomic_load(&runs->count);
    if (count > 0 && test_now_ns() < runs->ended_ns[count - 1] + INTERVAL_US * UINT64_C(1000))
        atomic_fetch_add(&runs->early, 1);
    runs->ended_ns[count] = test_now_ns();
    atomic_fetch_add(&runs->count, 1);
    return count + 1 < RUNS ? BMI_TASK_AGAIN : BMI_TASK_DONE;
}

static enum bmi_task_status for_ever(struct bmi_task *task, void *argument)
{
    (void)task;
    atomic_fetch_add((atomic_uint *)argument, 1);
    return BMI_TASK_AGAIN;
}

static void prepare(struct bmi_task *task, struct bmi_task_manager *manager, bmi_task_function run,
                    void *argument, unsigned options, uint32_t interval_us)
{
    struct bmi_task_attributes attributes = {
        .function = run,
        .argument = argument,
        .options = BMI_TASK_REPEAT | options,
        .interval_us = interval_us,
    };
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(task, manager, &attributes), 0);
}

/* With and without workers, and on each kind of thread. */
static void test_not_too_early(void)
{
    static const unsigned options[] = {0, BMI_TASK_URGENT, BMI_TASK_MAY_BLOCK};
    for (int way = 0; way < 6; way++) {
        struct bmi_task_manager *manager =
            test_manager(NULL, way % 2 ? BMI_TASK_WORKERS : BMI_TASK_HOOKS_ONLY);
        struct bmi_task task;
        struct runs runs = {0};
        prepare(&task, manager, note_time, &runs, options[way / 2], INTERVAL_US);
        CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
        CU_ASSERT_EQUAL(bmi_task_wait(&task, 20000), 0);
        CU_ASSERT_EQUAL(atomic_load(&runs.count), RUNS);
        CU_ASSERT_EQUAL(atomic_load(&runs.early), 0);
        bmi_task_manager_destroy(manager);
    }
}

/* Given one that waits for an hour, another with a short interval still comes in time. */
static void test_the_earlier_goes_first(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    struct bmi_task slow, quick;
    atomic_uint slow_runs = 0;
    struct runs runs = {0};
    prepare(&slow, manager, for_ever, &slow_runs, 0, HOUR_US);
    prepare(&quick, manager, note_time, &runs, 0, INTERVAL_US);
    CU_ASSERT_EQUAL(bmi_task_submit(&slow), 0);
    CU_ASSERT_TRUE(test_reaches(&slow_runs, 1));
    CU_ASSERT_EQUAL(bmi_task_submit(&quick), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&quick, 20000), 0);
    CU_ASSERT_EQUAL(atomic_load(&slow_runs), 1);
    bmi_task_manager_destroy(manager);
    CU_ASSERT_EQUAL(bmi_task_state(&slow), BMI_TASK_CANCELLED);
}

/* A cancel, before or after the task has come into the list, ends it without the interval. */
static void test_cancel(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    struct bmi_task task;
    for (int round = 0; round < 200; round++) {
        atomic_uint runs = 0;
        prepare(&task, manager, for_ever, &runs, 0, HOUR_US);
        CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
        CU_ASSERT_TRUE(test_reaches(&runs, 1));
        if (round % 2) {
            while (bmi_task_state(&task) != BMI_TASK_QUEUED)
                sched_yield();
            CU_ASSERT_EQUAL(bmi_task_submit(&task), -BMI_EBUSY);
        }
        bmi_task_cancel(&task);
        CU_ASSERT_EQUAL(bmi_task_wait(&task, 20000), -BMI_ECANCEL);
        CU_ASSERT_EQUAL(atomic_load(&runs), 1);
    }
    bmi_task_manager_destroy(manager);
}

static void test_an_interval_needs_repeat(void)
{
    struct bmi_task task;
    struct bmi_task_attributes attributes = {.function = for_ever, .interval_us = 1};
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, NULL, &attributes), -BMI_EINVAL);
}

/* Prepared before the start, and over a stop and a new start. */
static void test_stop_and_start(void)
{
    struct bmi_task_manager *manager;
    struct bmi_task task;
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_create(NULL, &manager, NULL, 0), 0);
    struct runs runs = {0};
    prepare(&task, manager, note_time, &runs, 0, INTERVAL_US);
    for (int round = 0; round < 3; round++) {
        CU_ASSERT_EQUAL(bmi_task_manager_start(manager, BMI_TASK_HOOKS_ONLY), 0);
        atomic_store(&runs.count, 0);
        CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
        CU_ASSERT_EQUAL(bmi_task_wait(&task, 20000), 0);
        CU_ASSERT_EQUAL(atomic_load(&runs.count), RUNS);
        CU_ASSERT_EQUAL(bmi_task_manager_stop(manager, BMI_TASK_HOOKS_ONLY), 0);
    }
    bmi_task_manager_destroy(manager);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"no run comes too early", test_not_too_early},
        {"the earlier goes first", test_the_earlier_goes_first},
        {"cancel does not wait", test_cancel},
        {"an interval needs REPEAT", test_an_interval_needs_repeat},
        {"stop and start", test_stop_and_start},
        CU_TEST_INFO_NULL,
    };
    return test_run("intervals", cases);
}
