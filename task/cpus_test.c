/* SPDX-License-Identifier: BSD-3-Clause
 *
 * CPUs that are idle, and CPUs that are taken away from the process. Needs two.
 */
#include "task/testing.h"

#include <errno.h>

static void prepare_on(struct bmi_task *task, struct bmi_task_manager *manager, void *argument,
                       const struct bmi_cpuset *cpus)
{
    struct bmi_task_attributes attributes = {
        .function = test_count,
        .argument = argument,
        .cpus = cpus,
    };
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(task, manager, &attributes), 0);
}

static void test_nearest_idle(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    struct bmi_cpuset all;
    bmi_task_cpus(manager, &all);
    int first = bmi_cpuset_next(&all, 0);
    CU_ASSERT_EQUAL(bmi_task_nearest_idle(manager, first),
                    -BMI_ENOENT); /* no worker sleeps there */
    bmi_task_manager_start(manager, BMI_TASK_WORKERS);
    int nearest = -BMI_ENOENT;
    uint64_t end = test_now_ns() + 20000000000u;
    while ((nearest = bmi_task_nearest_idle(manager, first)) < 0 && test_now_ns() < end)
        sched_yield(); /* until workers have found that there is nothing */
    CU_ASSERT_TRUE(nearest >= 0 && nearest != first && bmi_cpuset_has(&all, nearest));
    bmi_task_manager_stop(manager, BMI_TASK_WORKERS);
    CU_ASSERT_EQUAL(bmi_task_nearest_idle(manager, first), -BMI_ENOENT);
    bmi_task_manager_destroy(manager);
}

static void note_thread(const char *folder, void *argument)
{
    *(pid_t *)argument = atoi(strrchr(folder, '/') + 1);
}

/* The worker of this CPU, or 0. */
static pid_t worker_thread(int cpu)
{
    char name[32];
    pid_t thread = 0;
    snprintf(name, sizeof(name), "bmi-worker/%d\n", cpu);
    test_threads(name, note_thread, &thread);
    return thread;
}

/* As `taskset -a`, or the kernel when a cgroup's CPU set shrinks: the worker's mask loses its CPU.
 * The tasks in that CPU's queue run elsewhere, now and later; so do those that may run anywhere. */
static void test_mask_shrinks(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    struct bmi_cpuset all;
    bmi_task_cpus(manager, &all);
    int kept = bmi_cpuset_next(&all, 0), lost = bmi_cpuset_next(&all, kept + 1);
    cpu_set_t mask;
    pid_t worker = worker_thread(lost);
    CU_ASSERT_NOT_EQUAL_FATAL(worker, 0);
    CPU_ZERO(&mask);
    CPU_SET((size_t)kept, &mask);
    CU_ASSERT_EQUAL(sched_setaffinity(worker, sizeof(mask), &mask), 0);

    struct bmi_task tasks[40];
    struct bmi_cpuset only = test_only(lost);
    struct bmi_task_queue_statistics statistics;
    atomic_uint runs = 0;
    for (unsigned i = 0; i < 40; i++) {
        prepare_on(&tasks[i], manager, &runs, i % 2 ? &only : NULL);
        bmi_task_submit(&tasks[i]);
        CU_ASSERT_TRUE(test_reaches(&runs, i + 1));
        CU_ASSERT_EQUAL(bmi_task_wait(&tasks[i], 20000), 0);
    }
    int queue = bmi_task_queue_count(manager) - 1; /* the last CPU's */
    while (bmi_task_queue_statistics(manager, queue, &statistics) == 0 &&
           !bmi_cpuset_has(&statistics.cpus, lost))
        queue--;
    CU_ASSERT_FALSE(statistics.served);
    CU_ASSERT_EQUAL(worker_thread(lost), 0); /* retired */

    /* the last worker stays, wherever it is put */
    worker = worker_thread(kept);
    for (int cpu = lost; cpu >= 0; cpu = bmi_cpuset_next(&all, cpu + 1))
        CPU_SET((size_t)cpu, &mask);
    CPU_CLR((size_t)kept, &mask);
    CU_ASSERT_EQUAL(sched_setaffinity(worker, sizeof(mask), &mask), 0);
    for (unsigned i = 0; i < 40; i++) {
        bmi_task_submit(&tasks[i]);
        CU_ASSERT_TRUE(test_reaches(&runs, 40 + i + 1));
        CU_ASSERT_EQUAL(bmi_task_wait(&tasks[i], 20000), 0);
    }
    bmi_task_manager_destroy(manager);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"nearest idle CPU", test_nearest_idle},
        {"a mask that shrinks", test_mask_shrinks},
        CU_TEST_INFO_NULL,
    };
    if (bmi_task_cpus(NULL, NULL) < 2) {
        printf("skipped: needs two CPUs\n");
        return TEST_SKIPPED;
    }
    return test_run("CPUs", cases);
}
