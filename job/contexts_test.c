/* SPDX-License-Identifier: BSD-3-Clause
 *
 * contexts_test.c - two contexts in the foreground: a loop serves one by its descriptor while a
 * thread waits for the other; actions of both call test functions.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "bmi/base/instance.h"
#include "bmi/progress/progress.h"
#include "job/job_case.h"

static struct bmi_job_context *other;

static void other_open(void)
{
    CU_ASSERT_EQUAL_FATAL(bmi_job_context_open(0, &other), 0);
}

/* ---- a descriptor's context, and a thread that waits ----------------------------------------- */

static _Atomic bmi_job_id_t event;

static int wait_event(struct bmi_sm *machine, void *data)
{
    struct bmi_job_options options = {.machine = machine};
    bmi_job_id_t id;
    (void)data;
    int posted = bmi_job_event(bmi_sm_context(machine), &options, &id, NULL);
    atomic_store(&event, id);
    return bmi_sm_posted(posted);
}

static const struct bmi_sm_state waiting_states[] = {
    {"wait", .action = wait_event, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table waiting = {"waiting", waiting_states, 1, 0};

static atomic_bool told;

/* Waits for longer than the test: a wait checks once more when its time is over. */
static void *wait_for(void *argument)
{
    bmi_job_id_t *id = argument;
    struct bmi_job_status status;
    int count = 0;
    bmi_job_test(other, *id, &count, &status, 100 * PATIENCE_MS);
    atomic_store(&told, count == 1);
    return NULL;
}

/* The waker that was armed last, of a program that may be slow to call, is not the only one
 * woken. */
static void test_descriptor_beside(void)
{
    struct bmi_job_status status;
    bmi_job_id_t id;
    int count;
    pthread_t thread;
    other_open();
    atomic_store(&event, 0);
    atomic_store(&told, false);
    CU_ASSERT_TRUE_FATAL(bmi_job_context_fd(job_case.context) >= 0);
    CU_ASSERT_EQUAL_FATAL(bmi_sm_start(other, &waiting, NULL, NULL, NULL, &id, NULL), 0);
    while (atomic_load(&event) == 0)
        CU_ASSERT_EQUAL_FATAL(bmi_job_test(other, id, &count, &status, 1), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, wait_for, &id), 0);
    while (!bmi__progress_poller_blocks(&bmi__default))
        sched_yield();
    job_case_none(); /* the loop with the descriptor polls, and goes to sleep */
    CU_ASSERT_EQUAL(bmi_job_event_complete(other, atomic_load(&event), 0, 0), 0);
    time_t end = time(NULL) + PATIENCE_MS / 1000;
    while (!atomic_load(&told) && time(NULL) < end)
        sched_yield();
    CU_ASSERT_TRUE(atomic_load(&told));
    job_case_none(); /* otherwise this call would run the machine */
    pthread_join(thread, NULL);
    bmi_job_context_close(other);
}

/* ---- actions that test ----------------------------------------------------------------------- */

enum { THREADS = 2, EACH = 16, MACHINES = THREADS * (1 + EACH) };

static struct {
    atomic_int met, ended;
    time_t end;
} barrier;

static int nothing(struct bmi_sm *machine, void *data)
{
    (void)machine;
    (void)data;
    return BMI_SM_DONE;
}

static const struct bmi_sm_state nothing_states[] = {
    {"nothing", .action = nothing, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table idler = {"nothing", nothing_states, 1, 0};

static void barrier_wait(int count)
{
    atomic_fetch_add(&barrier.met, 1);
    while (atomic_load(&barrier.met) < count && time(NULL) < barrier.end)
        sched_yield();
}

static void count_ends(struct bmi_job_context *context, int ms)
{
    struct bmi_job_status statuses[4];
    int count = 0;
    bmi_job_testcontext(context, 4, &count, statuses, ms);
    atomic_fetch_add(&barrier.ended, count);
}

/* While an action of each context is under way, machines of both wait to run. */
static int test_within(struct bmi_sm *machine, void *data)
{
    struct bmi_job_context *context = bmi_sm_context(machine);
    (void)data;
    barrier_wait(THREADS);
    for (int i = 0; i < EACH; i++)
        bmi_sm_start(context, &idler, NULL, NULL, NULL, NULL, NULL);
    barrier_wait(2 * THREADS);
    count_ends(context, 0);
    return BMI_SM_DONE;
}

static const struct bmi_sm_state testing_states[] = {
    {"test", .action = test_within, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table testing = {"testing", testing_states, 1, 0};

static bool over(void)
{
    return atomic_load(&barrier.ended) >= MACHINES || time(NULL) >= barrier.end;
}

static void *loop(void *context)
{
    while (!over())
        count_ends(context, 1);
    return NULL;
}

/* Actions of machines that call test functions. If the threads wait for each other the test fails
 * by _exit, since such threads cannot be ended. */
static void test_actions_that_test(void)
{
    pthread_t threads[THREADS];
    other_open();
    struct bmi_job_context *contexts[THREADS] = {job_case.context, other};
    atomic_store(&barrier.met, 0);
    atomic_store(&barrier.ended, 0);
    barrier.end = time(NULL) + PATIENCE_MS / 1000;
    for (int i = 0; i < THREADS; i++)
        CU_ASSERT_EQUAL_FATAL(bmi_sm_start(contexts[i], &testing, NULL, NULL, NULL, NULL, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, loop, contexts[i]), 0);
    while (!over())
        sched_yield();
    if (atomic_load(&barrier.ended) < MACHINES) {
        fprintf(stderr, "%d of %d machines have ended\n", atomic_load(&barrier.ended), MACHINES);
        _exit(1);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CU_ASSERT_EQUAL(atomic_load(&barrier.ended), MACHINES);
    bmi_job_context_close(other);
}

/* ---- steps of one context -------------------------------------------------------------------- */

static struct {
    atomic_bool inside, overlap;
    atomic_int ended;
} steps;

static int step(struct bmi_sm *machine, void *data)
{
    (void)machine;
    (void)data;
    if (atomic_exchange(&steps.inside, true))
        atomic_store(&steps.overlap, true);
    sched_yield(); /* to a thread that might take a step */
    atomic_store(&steps.inside, false);
    return BMI_SM_DONE;
}

static const struct bmi_sm_state stepping_states[] = {
    {"one", .action = step, .on = {BMI_SM_ELSE(1)}},
    {"two", .action = step, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table stepping = {"stepping", stepping_states, 2, 0};

enum { STEPPING = 2000 };

static void *steps_run(void *context)
{
    struct bmi_job_status status;
    int count = 0;
    while (atomic_load(&steps.ended) < STEPPING) {
        bmi_job_testcontext(context, 1, &count, &status, 1);
        atomic_fetch_add(&steps.ended, count);
    }
    return NULL;
}

/* On any thread. */
static void test_one_step_at_a_time(void)
{
    pthread_t threads[THREADS];
    atomic_store(&steps.ended, 0);
    for (int i = 0; i < STEPPING; i++)
        CU_ASSERT_EQUAL_FATAL(bmi_sm_start(job_case.context, &stepping, NULL, NULL, NULL, NULL,
                                           NULL),
                              0);
    for (int i = 0; i < THREADS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, steps_run, job_case.context), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CU_ASSERT_FALSE(atomic_load(&steps.overlap));
}

/* ---- a task that an action waits for --------------------------------------------------------- */

static struct {
    struct bmi_task task;
    atomic_bool task_over, second_over;
} waited;

static int second(struct bmi_sm *machine, void *data)
{
    (void)machine;
    (void)data;
    atomic_store(&waited.second_over, true);
    return BMI_SM_DONE;
}

static const struct bmi_sm_state second_states[] = {
    {"second", .action = second, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table second_table = {"second", second_states, 1, 0};

/* On its own thread: finds a machine of the context, and must not wait for the step lock. */
static enum bmi_task_status start_and_schedule(struct bmi_task *task, void *argument)
{
    (void)task;
    CU_ASSERT_EQUAL(bmi_sm_start(argument, &second_table, NULL, NULL, NULL, NULL, NULL), 0);
    bmi_task_schedule(NULL);
    atomic_store(&waited.task_over, true);
    return BMI_TASK_DONE;
}

static int first(struct bmi_sm *machine, void *data)
{
    (void)machine;
    (void)data;
    CU_ASSERT_EQUAL(bmi_task_submit(&waited.task), 0);
    while (!atomic_load(&waited.task_over))
        sched_yield();
    return BMI_SM_DONE;
}

static const struct bmi_sm_state first_states[] = {
    {"first", .action = first, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table first_table = {"first", first_states, 1, 0};

static void test_action_that_waits_for_a_task(void)
{
    struct bmi_task_attributes attributes = {.function = start_and_schedule,
                                             .argument = job_case.context,
                                             .options = BMI_TASK_MAY_BLOCK};
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&waited.task, NULL, &attributes), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_sm_start(job_case.context, &first_table, NULL, NULL, NULL, NULL,
                                       NULL),
                          0);
    job_case_fetch();
    job_case_fetch();
    CU_ASSERT_TRUE(atomic_load(&waited.second_over));
    CU_ASSERT_EQUAL(bmi_task_wait(&waited.task, -1), 0);
}

int main(void)
{
    static CU_TestInfo tests[] = {
        {"a descriptor beside a thread that waits", test_descriptor_beside},
        {"actions that test", test_actions_that_test},
        {"one step at a time", test_one_step_at_a_time},
        {"an action that waits for a task", test_action_that_waits_for_a_task},
        CU_TEST_INFO_NULL,
    };
    static CU_SuiteInfo suites[] = {
        {.pName = "contexts",
         .pSetUpFunc = job_case_begin,
         .pTearDownFunc = job_case_end,
         .pTests = tests},
        CU_SUITE_INFO_NULL,
    };
    return unit_run_suites(suites);
}
