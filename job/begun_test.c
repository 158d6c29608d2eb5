/* SPDX-License-Identifier: BSD-3-Clause
 *
 * begun_test.c - steps of machines while workers run and another process computes on each CPU. A
 * worker takes no step of a context in the foreground, and a step in the background gets its share.
 */
#include <stdatomic.h>

#include "job/job_case.h"
#include "task/spinning.h"

enum { ROUNDS = 100, MACHINES = 50 };

#define WORK_NS (10 * SPINNING_MS)

static struct spinning spinning;
static atomic_uint strangers; /* steps taken by threads other than `caller` */
static pid_t caller;
static atomic_bool begun;

/* ---- in the foreground ---- */

static int step(struct bmi_sm *machine, void *data)
{
    (void)machine;
    (void)data;
    if (gettid() != caller)
        atomic_fetch_add(&strangers, 1);
    return 0;
}

static int work(struct bmi_sm *machine, void *data)
{
    atomic_store(&begun, true);
    spinning_work(WORK_NS);
    return step(machine, data);
}

static const struct bmi_sm_state empty_states[] = {
    {"step", .action = step, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table empty = {"empty", empty_states, 1, 0};
static const struct bmi_sm_state busy_states[] = {
    {"work", .action = work, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table busy = {"busy", busy_states, 1, 0};

static void start(struct bmi_sm_table *table, bmi_job_id_t *id)
{
    CU_ASSERT_EQUAL_FATAL(bmi_sm_start(job_case.context, table, NULL, NULL, NULL, id, NULL), 0);
}

static void await(bmi_job_id_t id)
{
    struct bmi_job_status status;
    int count = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_job_test(job_case.context, id, &count, &status, PATIENCE_MS), 1);
}

/* Given workers, when a caller waits for many machines, it takes each step. */
static void test_callers_take_steps(void)
{
    bmi_job_id_t ids[MACHINES];
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_start(NULL, BMI_TASK_WORKERS), 0);
    caller = gettid();
    atomic_store(&strangers, 0);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < MACHINES; i++)
            start(&empty, &ids[i]);
        for (int i = 0; i < MACHINES; i++)
            await(ids[i]);
    }
    CU_ASSERT_EQUAL(atomic_load(&strangers), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_WORKERS), 0);
}

/* Given a machine with work to do, when a caller waits for another machine, that one's step comes
 * first; but the work is not put off for ever. */
static void test_awaited_step_first(void)
{
    bmi_job_id_t first, second;
    unsigned before = 0;
    atomic_store(&begun, false);
    start(&busy, &first);
    while (!atomic_load(&begun) && before < ROUNDS) {
        start(&empty, &second);
        await(second);
        before += !atomic_load(&begun);
    }
    CU_ASSERT_TRUE(before > 0 && before < ROUNDS);
    await(first);
}

/* Waits until another thread has begun the work, or 5 ms if none may begin it. */
static void let_begin(void)
{
    uint64_t end = test_now_ns() + 5 * SPINNING_MS;
    while (!atomic_load(&begun) && (job_case.background || test_now_ns() < end))
        sched_yield();
    atomic_store(&begun, false);
}

/* The time until an empty step was taken, behind another machine's work. */
static uint64_t behind_ns(void *argument)
{
    bmi_job_id_t first, second;
    (void)argument;
    spinning_pause(&spinning);
    start(&busy, &first);
    let_begin();
    spinning_go(&spinning);
    uint64_t begin = test_now_ns();
    start(&empty, &second);
    await(second);
    uint64_t took = test_now_ns() - begin;
    await(first);
    return took;
}

static void test_empty_step_behind_work(void)
{
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_start(NULL, BMI_TASK_WORKERS), 0);
    spinning_go(&spinning);
    CU_ASSERT_TRUE(spinning_is_fair(behind_ns, NULL, WORK_NS));
    spinning_pause(&spinning);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_WORKERS), 0);
}

/* ---- in the background ---- */

static uint64_t begun_ns(void *argument)
{
    bmi_job_id_t id;
    (void)argument;
    spinning_pause(&spinning);
    uint64_t begin = test_now_ns();
    start(&busy, &id);
    let_begin();
    spinning_go(&spinning);
    await(id);
    return test_now_ns() - begin;
}

static void test_step_in_the_background(void)
{
    spinning_go(&spinning);
    CU_ASSERT_TRUE(spinning_is_fair(begun_ns, NULL, WORK_NS));
    spinning_pause(&spinning);
}

int main(void)
{
    static CU_TestInfo foreground[] = {
        {"callers take all steps", test_callers_take_steps},
        {"the awaited machine's step comes first", test_awaited_step_first},
        {"an empty step behind work", test_empty_step_behind_work},
        CU_TEST_INFO_NULL,
    };
    static CU_TestInfo background[] = {
        {"a step in the background", test_step_in_the_background},
        CU_TEST_INFO_NULL,
    };
    CU_SuiteInfo suites[] = {
        {"steps in the foreground", NULL, NULL, job_case_begin, job_case_end, foreground},
        {"steps in the background", NULL, NULL, job_case_begin_background, job_case_end,
         background},
        CU_SUITE_INFO_NULL,
    };
    spinning_open(&spinning);
    int result = unit_run_suites(suites);
    spinning_close(&spinning);
    return result;
}
