/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A task that a thread of the manager has begun goes on, while another process computes on each
 * CPU: it takes at most three times as long as the same work on a plain thread.
 */
#include "task/spinning.h"

#define WORK_NS (30 * SPINNING_MS)

static struct spinning spinning;
static struct bmi_task_manager *manager;

static enum bmi_task_status work(struct bmi_task *task, void *argument)
{
    (void)task;
    (void)argument;
    spinning_work(WORK_NS);
    return BMI_TASK_DONE;
}

/* From submit to the end of the wait. */
static uint64_t task_ns(void *argument)
{
    struct bmi_task *task = argument;
    uint64_t start = test_now_ns();
    CU_ASSERT_EQUAL(bmi_task_submit(task), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(task, -1), 0);
    return test_now_ns() - start;
}

/* A worker takes the task while its CPU is idle; then the others begin to compute. */
static uint64_t begun_ns(void *argument)
{
    struct bmi_task *task = argument;
    spinning_pause(&spinning);
    uint64_t start = test_now_ns();
    CU_ASSERT_EQUAL(bmi_task_submit(task), 0);
    while (bmi_task_state(task) == BMI_TASK_QUEUED)
        sched_yield();
    spinning_go(&spinning);
    CU_ASSERT_EQUAL(bmi_task_wait(task, -1), 0);
    return test_now_ns() - start;
}

static void expect_fair(uint64_t (*measure)(void *), unsigned options,
                        const struct bmi_cpuset *cpus)
{
    struct bmi_task task;
    test_prepare_on(&task, manager, work, NULL, options, cpus);
    spinning_go(&spinning);
    CU_ASSERT_TRUE(spinning_is_fair(measure, &task, WORK_NS));
    spinning_pause(&spinning);
}

static void test_anywhere(void)
{
    expect_fair(task_ns, 0, NULL);
}

static void test_on_one_cpu(void)
{
    struct bmi_cpuset only = test_only(spinning.cpus[0]);
    expect_fair(task_ns, 0, &only);
}

static void test_begun_on_an_idle_cpu(void)
{
    expect_fair(begun_ns, 0, NULL);
}

static void test_urgent(void)
{
    expect_fair(task_ns, BMI_TASK_URGENT, NULL);
}

static void test_may_block(void)
{
    expect_fair(task_ns, BMI_TASK_MAY_BLOCK, NULL);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"on any CPU", test_anywhere},
        {"on one CPU", test_on_one_cpu},
        {"begun on an idle CPU", test_begun_on_an_idle_cpu},
        {"urgent", test_urgent},
        {"may block", test_may_block},
        CU_TEST_INFO_NULL,
    };
    spinning_open(&spinning);
    manager = test_manager(NULL, BMI_TASK_WORKERS);
    int result = test_run("begun tasks", cases);
    bmi_task_manager_destroy(manager);
    spinning_close(&spinning);
    return result;
}
