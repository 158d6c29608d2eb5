/* SPDX-License-Identifier: BSD-3-Clause
 *
 * policy_test.c - how the kernel schedules workers: as the settings say when they start, and as
 * bmi_task_manager_set_policy and BMI's setting say from their next task on.
 */
#include <sys/syscall.h>

#include "task/testing.h"

static int of_kernel(enum bmi_task_policy policy)
{
    static const int kernel[] = {[BMI_TASK_POLICY_BATCH] = SCHED_BATCH,
                                 [BMI_TASK_POLICY_NORMAL] = SCHED_OTHER,
                                 [BMI_TASK_POLICY_IDLE] = SCHED_IDLE};
    return kernel[policy];
}

struct workers {
    int wanted; /* the kernel's policy */
    unsigned have, have_not;
};

static void look(const char *folder, void *argument)
{
    struct workers *workers = argument;
    /* musl's sched_getscheduler always fails */
    if (syscall(SYS_sched_getscheduler, atoi(strrchr(folder, '/') + 1)) == workers->wanted)
        workers->have++;
    else
        workers->have_not++;
}

/* Waits until a worker has the policy, or all have. Looks from outside: a SCHED_IDLE thread of a
 * loaded machine does not run for long. */
static bool workers_get(enum bmi_task_policy policy, bool all)
{
    uint64_t end = test_now_ns() + 20000000000u;
    struct workers workers;
    do {
        workers = (struct workers){.wanted = of_kernel(policy)};
        test_threads("bmi-worker", look, &workers);
    } while ((workers.have == 0 || (all && workers.have_not > 0)) && test_now_ns() < end);
    return workers.have > 0 && (!all || workers.have_not == 0);
}

static enum bmi_task_status until(struct bmi_task *task, void *argument)
{
    (void)task;
    return atomic_load((atomic_bool *)argument) ? BMI_TASK_DONE : BMI_TASK_AGAIN;
}

/* A worker changes at its next task: given one that wakes it, it gets the policy. */
static bool changes_to(struct bmi_task_manager *manager, enum bmi_task_policy policy)
{
    struct bmi_task task;
    atomic_bool stop = false;
    struct bmi_task_attributes attributes = {.function = until,
                                             .argument = &stop,
                                             .options = BMI_TASK_REPEAT,
                                             .interval_us = 1000};
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&task, manager, &attributes), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_submit(&task), 0);
    bool changes = workers_get(policy, false);
    atomic_store(&stop, true);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), 0);
    return changes;
}

static void test_from_the_start(void)
{
    for (int policy = BMI_TASK_POLICY_BATCH; policy <= BMI_TASK_POLICY_IDLE; policy++) {
        struct bmi_task_settings settings = {.worker_policy = (enum bmi_task_policy)policy};
        struct bmi_task_manager *manager = test_manager(&settings, BMI_TASK_WORKERS);
        CU_ASSERT_TRUE(workers_get(settings.worker_policy, true));
        bmi_task_manager_destroy(manager);
    }
}

/* IDLE comes last: a process without RLIMIT_NICE cannot leave it. */
static void test_while_they_run(void)
{
    static const enum bmi_task_policy order[] = {BMI_TASK_POLICY_NORMAL, BMI_TASK_POLICY_BATCH,
                                                 BMI_TASK_POLICY_NORMAL, BMI_TASK_POLICY_IDLE};
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    CU_ASSERT_TRUE(workers_get(BMI_TASK_POLICY_BATCH, true));
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        CU_ASSERT_EQUAL(bmi_task_manager_set_policy(manager, order[i]), 0);
        CU_ASSERT_TRUE(changes_to(manager, order[i]));
    }
    bmi_task_manager_destroy(manager);
}

static void test_the_setting(void)
{
    CU_ASSERT_EQUAL(BMI_initialize(NULL, NULL, 0), 0);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "worker_policy=normal"), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_start(NULL, BMI_TASK_WORKERS), 0);
    CU_ASSERT_TRUE(workers_get(BMI_TASK_POLICY_NORMAL, true));
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "worker_policy=idle"), 0);
    CU_ASSERT_TRUE(changes_to(NULL, BMI_TASK_POLICY_IDLE));
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_WORKERS), 0);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "worker_policy=batch"), 0);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "worker_policy=fast"), -BMI_EINVAL);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

static void test_refused(void)
{
    struct bmi_task_settings settings = {.worker_policy = (enum bmi_task_policy)3};
    struct bmi_task_manager *manager = NULL;
    char error[256] = "";
    CU_ASSERT_TRUE(bmi_task_manager_create(&settings, &manager, error, sizeof error) < 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "worker_policy"));
    CU_ASSERT_TRUE(bmi_task_manager_set_policy(NULL, (enum bmi_task_policy)3) < 0);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"workers start with the policy of the settings", test_from_the_start},
        {"workers change their policy", test_while_they_run},
        {"the setting worker_policy", test_the_setting},
        {"unknown policies are refused", test_refused},
        CU_TEST_INFO_NULL,
    };
    return test_run("workers' policy", cases);
}
