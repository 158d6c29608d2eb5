/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Sixteen threads over a synthetic tree of 256 CPUs submit, cancel, repeat, and run tasks at
 * random; every accepted submit must have exactly one end, a run or a cancellation, and no task may
 * run twice at a time. Half of the time the threads are hooks, half of the time workers run too;
 * rings are small, so that they overflow.
 */
#include "task/stressing.h"

#include <errno.h>
#include <string.h>

enum { TASKS = 1500 };

enum way { ONE_SHOT, REPEATING, SELF_SUBMITTING, WAYS };

struct item {
    struct bmi_task task;
    enum way way;
    atomic_uint accepted; /* submits that were taken */
    atomic_uint ends;     /* runs that are no repetitions, and cancellations */
    atomic_uint running;
    atomic_int left; /* runs before a repeating one is done */
};

/* Freed by its own function. */
struct fleeting {
    struct bmi_task task;
};

static struct item items[TASKS];
static struct bmi_task_manager *manager;
static atomic_uint fleeting_made, fleeting_gone, wrong, finish;
static atomic_ullong runs, cancels;

static enum bmi_task_status item_run(struct bmi_task *task, void *argument)
{
    struct item *item = argument;
    if (task != &item->task || atomic_exchange(&item->running, 1) != 0)
        atomic_fetch_add(&wrong, 1);
    enum bmi_task_status status = BMI_TASK_DONE;
    if (item->way == REPEATING && atomic_fetch_sub(&item->left, 1) > 0)
        status = BMI_TASK_AGAIN;
    else
        atomic_fetch_add(&item->ends, 1);
    if (item->way == SELF_SUBMITTING && atomic_fetch_sub(&item->left, 1) > 0 &&
        bmi_task_submit(task) == 0)
        atomic_fetch_add(&item->accepted, 1);
    atomic_fetch_add_explicit(&runs, 1, memory_order_relaxed);
    atomic_store(&item->running, 0);
    return status;
}

static enum bmi_task_status item_cancelled(struct bmi_task *task, void *argument)
{
    struct item *item = argument;
    if (task != &item->task || atomic_exchange(&item->running, 1) != 0)
        atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&item->ends, 1);
    atomic_fetch_add_explicit(&cancels, 1, memory_order_relaxed);
    atomic_store(&item->running, 0);
    return BMI_TASK_DONE;
}

static enum bmi_task_status fleeting_run(struct bmi_task *task, void *argument)
{
    (void)task;
    free(argument);
    atomic_fetch_add(&fleeting_gone, 1);
    return BMI_TASK_GONE;
}

/* One CPU, a node of the tree, anything, or a set that is no node's. */
static const struct bmi_cpuset *random_set(struct bmi_cpuset *set, uint32_t *state)
{
    int cpu = (int)(random_next(state) % STRESS_CPUS);
    enum bmi_task_level level =
        (enum bmi_task_level)(random_next(state) % (BMI_TASK_LEVEL_MACHINE + 1));
    switch (random_next(state) % 8) {
    case 0:
        return NULL;
    case 1:
        *set = test_only(cpu);
        bmi_cpuset_add(set, (int)(random_next(state) % 4)); /* few different ones: they are kept */
        bmi_cpuset_remove(set, cpu);
        bmi_cpuset_add(set, cpu / 64 * 64);
        return set;
    default:
        if (bmi_task_cpus_near(manager, cpu, level, set) != 0)
            atomic_fetch_add(&wrong, 1);
        return set;
    }
}

static void prepare_items(uint32_t *state)
{
    for (int i = 0; i < TASKS; i++) {
        struct item *item = &items[i];
        struct bmi_cpuset set;
        memset(item, 0, sizeof(*item));
        item->way = (enum way)(random_next(state) % WAYS);
        struct bmi_task_attributes attributes = {
            .function = item_run,
            .cancelled = item_cancelled,
            .argument = item,
            .cpus = random_set(&set, state),
            .options = item->way == REPEATING ? BMI_TASK_REPEAT : 0,
            .interval_us = item->way == REPEATING ? random_next(state) % 200 : 0,
        };
        if (bmi_task_prepare(&item->task, manager, &attributes) != 0)
            atomic_fetch_add(&wrong, 1);
    }
}

static void submit_item(struct item *item, uint32_t *state)
{
    if (item->way == REPEATING) {
        /* One that is submitted while it runs is queued once, for both reasons: so wait for its
         * end. Its state has to be looked at as well: the end is counted before the task has
         * returned. */
        unsigned ends = atomic_load(&item->ends);
        enum bmi_task_state now = bmi_task_state(&item->task);
        if (now == BMI_TASK_RUNNING || now == BMI_TASK_QUEUED ||
            !atomic_compare_exchange_strong(&item->accepted, &ends, ends + 1))
            return;
        atomic_store(&item->left, (int)(random_next(state) % 5));
        int result = bmi_task_submit(&item->task);
        if (result != 0)
            atomic_fetch_sub(&item->accepted, 1);
        if (result != 0 && result != -BMI_ENODEV)
            atomic_fetch_add(&wrong, 1);
        return;
    }
    atomic_store(&item->left, (int)(random_next(state) % 3));
    if (bmi_task_submit(&item->task) == 0)
        atomic_fetch_add(&item->accepted, 1);
}

static void submit_fleeting(uint32_t *state)
{
    struct fleeting *fleeting = malloc(sizeof(*fleeting));
    struct bmi_cpuset set;
    struct bmi_task_attributes attributes = {
        .function = fleeting_run,
        .cancelled = fleeting_run,
        .argument = fleeting,
        .cpus = random_set(&set, state),
    };
    atomic_fetch_add(&fleeting_made, 1);
    if (bmi_task_prepare(&fleeting->task, manager, &attributes) != 0)
        atomic_fetch_add(&wrong, 1);
    else if (bmi_task_submit(&fleeting->task) == -BMI_ENODEV)
        fleeting_run(&fleeting->task, fleeting);
}

static void *act_at_random(void *argument)
{
    uint32_t state = *(const uint32_t *)argument;
    while (!atomic_load_explicit(&finish, memory_order_relaxed)) {
        struct item *item = &items[random_next(&state) % TASKS];
        switch (random_next(&state) % 16) {
        case 0:
            bmi_task_cancel(&item->task);
            break;
        case 1:
            submit_fleeting(&state);
            break;
        case 2:
        case 3:
        case 4:
        case 5:
        case 6:
            bmi_task_schedule_on(manager, (int)(random_next(&state) % STRESS_CPUS));
            break;
        default:
            submit_item(item, &state);
        }
    }
    return NULL;
}

/* After all threads have ended: everything queued runs. */
static void settle(void)
{
    for (int i = 0; i < TASKS; i++) {
        if (!stress_task_ends(&items[i].task))
            atomic_fetch_add(&wrong, 1);
    }
    while (atomic_load(&fleeting_gone) != atomic_load(&fleeting_made))
        bmi_task_schedule(manager);
}

static void check_sums(void)
{
    unsigned lost = 0;
    uint64_t submitted = 0, run = 0, by_cpus = 0;
    for (int i = 0; i < TASKS; i++)
        lost += atomic_load(&items[i].accepted) != atomic_load(&items[i].ends);
    for (int queue = 0; queue < bmi_task_queue_count(manager); queue++) {
        struct bmi_task_queue_statistics statistics;
        bmi_task_queue_statistics(manager, queue, &statistics);
        submitted += statistics.submitted;
        run += statistics.run;
        if (statistics.queued != 0)
            lost++;
        for (int cpu = -1; cpu < STRESS_CPUS; cpu++)
            by_cpus += bmi_task_queue_run_by(manager, queue, cpu);
    }
    CU_ASSERT_EQUAL(lost, 0);
    CU_ASSERT_EQUAL(atomic_load(&wrong), 0);
    CU_ASSERT_EQUAL(submitted, run);
    CU_ASSERT_TRUE(by_cpus <= run); /* no CPU runs those that a shutdown cancels */
    CU_ASSERT_EQUAL(atomic_load(&fleeting_gone), atomic_load(&fleeting_made));
}

static void stress(bool workers, bool shutdown, uint64_t length_ns, uint32_t *state)
{
    manager = stress_manager("package:8 l3:4 core:8 pu:1", workers, state);
    prepare_items(state);
    stress_threads(act_at_random, &finish, shutdown ? manager : NULL, length_ns, state);
    if (!shutdown)
        settle();
    check_sums();
    bmi_task_manager_destroy(manager);
}

static void test_stress(void)
{
    stress_rounds(stress);
    printf("%llu runs, %llu cancellations, %u freed by themselves ",
           (unsigned long long)atomic_load(&runs), (unsigned long long)atomic_load(&cancels),
           atomic_load(&fleeting_gone));
    CU_ASSERT_TRUE(atomic_load(&runs) > 0);
    CU_ASSERT_TRUE(atomic_load(&cancels) > 0);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"16 threads over 256 CPUs", test_stress},
        CU_TEST_INFO_NULL,
    };
    return test_run("stress", cases);
}
