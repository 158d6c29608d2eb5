/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Who runs a task when those who would have are busy, have gone, or are others now.
 */
#include "task/internal.h"
#include "task/testing.h"

#include <errno.h>
#include <pthread.h>

static void prepare_on(struct bmi_task *task, struct bmi_task_manager *manager,
                       bmi_task_function run, void *argument, unsigned options,
                       const struct bmi_cpuset *cpus)
{
    struct bmi_task_attributes attributes = {
        .function = run,
        .argument = argument,
        .options = options,
        .cpus = cpus,
    };
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(task, manager, &attributes), 0);
}

struct waiting {
    struct bmi_task *task;
    int timeout_ms, result;
    pthread_t thread;
};

static void *wait_for(void *argument)
{
    struct waiting *waiting = argument;
    waiting->result = bmi_task_wait(waiting->task, waiting->timeout_ms);
    return NULL;
}

/* ---- workers start while a driver runs a task ---- */

struct thrice {
    atomic_uint runs, go_on;
};

/* The first run is one on the way to waiting, the second is the driver's. */
static enum bmi_task_verdict three_times(struct bmi_task *task, void *argument)
{
    struct thrice *thrice = argument;
    (void)task;
    unsigned before = atomic_fetch_add(&thrice->runs, 1);
    if (before == 1)
        test_reaches(&thrice->go_on, 1);
    return before < 2 ? BMI_TASK_AGAIN : BMI_TASK_DONE;
}

/* The driver drives no more then, so the task that it has queued again is told to a worker. */
static void test_workers_start_under_a_driver(void)
{
    struct bmi_cpuset all, first, second;
    bmi_task_cpus(NULL, &all);
    if (bmi_cpuset_count(&all) < 2) {
        printf("skipped: needs two CPUs ");
        return;
    }
    first = test_only(bmi_cpuset_next(&all, 0));
    second = test_only(bmi_cpuset_next(&all, bmi_cpuset_next(&all, 0) + 1));
    struct bmi_task_settings settings = {.worker_cpus = &first};
    struct bmi_task_manager *manager = test_manager(&settings, BMI_TASK_HOOKS_ONLY);
    uint32_t worker = manager->topology.local_of[bmi_cpuset_next(&first, 0)];
    struct bmi_task task;
    struct thrice thrice = {.runs = 0};
    struct waiting waiting = {.task = &task, .timeout_ms = 5000, .result = -1};
    prepare_on(&task, manager, three_times, &thrice, BMI_TASK_REPEAT, &second);
    CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
    pthread_create(&waiting.thread, NULL, wait_for, &waiting);
    CU_ASSERT_TRUE(test_reaches(&thrice.runs, 2));
    CU_ASSERT_EQUAL(bmi_task_manager_start(manager, BMI_TASK_WORKERS), 0);
    while (!bmi__bit_get(manager->idle, worker) || atomic_load(&manager->timer_armed))
        sched_yield(); /* until worker and timer sleep */
    atomic_store(&thrice.go_on, 1);
    pthread_join(waiting.thread, NULL);
    CU_ASSERT_EQUAL(waiting.result, 0);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(manager, BMI_TASK_WORKERS), 0);
    bmi_task_manager_destroy(manager);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"workers start under a driver", test_workers_start_under_a_driver},
        CU_TEST_INFO_NULL,
    };
    return test_run("shifts", cases);
}
