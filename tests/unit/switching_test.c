/* SPDX-License-Identifier: BSD-3-Clause
 *
 * switching_test.c - tasks that start or finalize the library, switch progress in the background,
 * or fork, while another thread is within such a call and waits for them.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bmi/base/instance.h"
#include "bmi/connection/address.h"
#include "bmi/flow.h"
#include "bmi/progress/background.h"

#include "bmi/state/library.h"
#include "task/internal.h"
#include "tests/unit/deep.h"
#include "unit.h"

enum { PATIENCE_S = 60, UNKNOWN = 12345 };

/* The results of the calls that a task makes after another thread has begun to wait for it. */
struct meddler {
    struct bmi_task task;
    bool (*here)(void);  /* whether it runs on the intended thread; else it does nothing */
    bool (*begun)(void); /* the other thread waits, or is about to */
    atomic_bool in_place;
    int started, finalized, on, off, opened, child;
};

static bool late(time_t *since)
{
    time_t now = time(NULL);
    if (*since == 0)
        *since = now;
    sched_yield();
    return now - *since > PATIENCE_S;
}

static int background_set(int on)
{
    return BMI_set_info(0, BMI_BACKGROUND, &on);
}

/* ---- thread and moment ----------------------------------------------------------------------- */

static _Thread_local bool is_tester, is_main;

static bool by_worker(void)
{
    return bmi__worker_self(bmi_task_manager_default()) != NULL;
}

static bool by_background(void)
{
    return bmi__background_self(&bmi__default);
}

static bool by_tester(void)
{
    return is_tester;
}

static bool by_anybody(void)
{
    return true;
}

static bool finalizing(void)
{
    return !bmi__running(&bmi__default);
}

static bool workers_stop(void)
{
    return atomic_load(&bmi_task_manager_default()->workers_stopping);
}

static bool manager_stops(void)
{
    return atomic_load(&bmi_task_manager_default()->closed);
}

/* ---- the task ---- */

static int fork_and_wait(void)
{
    int status = -1;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, &status, 0);
    return status;
}

static int flow_context_try(void)
{
    bmi_flow_context_id_t context;
    int result = bmi_flow_context_open(&context);
    if (result == 0)
        bmi_flow_context_close(context);
    return result;
}

static enum bmi_task_status meddle(struct bmi_task *task, void *argument)
{
    struct meddler *meddler = argument;
    time_t since = 0;
    (void)task;
    if (!meddler->here() || atomic_exchange(&meddler->in_place, true))
        return BMI_TASK_DONE;
    while (!meddler->begun())
        if (late(&since))
            return BMI_TASK_DONE;
    meddler->child = fork_and_wait();
    meddler->started = BMI_initialize(NULL, NULL, 0);
    meddler->finalized = BMI_finalize();
    meddler->on = background_set(1);
    meddler->off = background_set(0);
    if (bmi__running(&bmi__default))
        background_set(bmi__background_on(&bmi__default));
    meddler->opened = flow_context_try();
    return BMI_TASK_DONE;
}

static void meddler_make(struct meddler *meddler, bool (*here)(void), bool (*begun)(void),
                         unsigned options)
{
    *meddler = (struct meddler){.here = here,
                                .begun = begun,
                                .started = UNKNOWN,
                                .finalized = UNKNOWN,
                                .on = UNKNOWN,
                                .off = UNKNOWN,
                                .opened = UNKNOWN,
                                .child = UNKNOWN};
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&meddler->task, NULL,
                                           &(struct bmi_task_attributes){.function = meddle,
                                                                         .argument = meddler,
                                                                         .options = options}),
                          0);
}

/* Until it runs on the intended thread, and stays there. It may be submitted once too often, and
 * then end as cancelled. */
static void meddler_go(struct meddler *meddler)
{
    time_t since = 0;
    while (!atomic_load(&meddler->in_place) && !late(&since))
        bmi_task_submit(&meddler->task); /* -EBUSY: it is queued already */
    CU_ASSERT_TRUE_FATAL(atomic_load(&meddler->in_place));
}

static void loop_open(int flags)
{
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_loop", "loop://switching", BMI_INIT_SERVER | flags),
                          0);
}

static void refused_while_finalizing(const struct meddler *meddler)
{
    CU_ASSERT_EQUAL(meddler->child, 0);
    CU_ASSERT_EQUAL(meddler->started, -BMI_EDEADLK);
    CU_ASSERT_EQUAL(meddler->finalized, -BMI_EDEADLK);
    CU_ASSERT_EQUAL(meddler->on, -BMI_EINVAL); /* not initialized */
}

static void works_afterwards(void)
{
    loop_open(BMI_INIT_BACKGROUND);
    CU_ASSERT_EQUAL(background_set(0), 0);
    CU_ASSERT_FALSE(bmi__background_on(&bmi__default));
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

/* ---- cases ---- */

static void finalize_waits_for_a_worker(void)
{
    struct meddler meddler;
    loop_open(BMI_INIT_BACKGROUND);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=on"), 0);
    meddler_make(&meddler, by_worker, finalizing, 0);
    meddler_go(&meddler);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    bmi_task_wait(&meddler.task, -1);
    refused_while_finalizing(&meddler);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=off"), 0);
    works_afterwards();
}

static void finalize_waits_for_the_background(void)
{
    struct meddler meddler;
    loop_open(BMI_INIT_BACKGROUND);
    meddler_make(&meddler, by_background, finalizing, 0);
    meddler_go(&meddler);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    bmi_task_wait(&meddler.task, -1);
    refused_while_finalizing(&meddler);
    works_afterwards();
}

static void finalize_waits_for_a_task_that_may_block(void)
{
    struct meddler meddler;
    loop_open(BMI_INIT_BACKGROUND);
    meddler_make(&meddler, by_anybody, finalizing, BMI_TASK_MAY_BLOCK);
    meddler_go(&meddler);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    bmi_task_wait(&meddler.task, -1);
    refused_while_finalizing(&meddler);
    works_afterwards();
}

static enum bmi_task_status wait_for_meddler(struct bmi_task *task, void *argument)
{
    struct meddler *meddler = argument;
    (void)task;
    bmi_task_wait(&meddler->task, -1);
    return BMI_TASK_DONE;
}

static atomic_bool testing_over;

static void *tests_run(void *argument)
{
    (void)argument;
    is_tester = true;
    while (!atomic_load(&testing_over)) {
        bmi_task_schedule(NULL);
        sched_yield();
    }
    return NULL;
}

/* The background runs a task that waits for one within a thread's test call. */
static void finalize_waits_for_a_test_call(void)
{
    struct meddler meddler;
    struct bmi_task between;
    pthread_t tester;
    loop_open(BMI_INIT_BACKGROUND);
    atomic_store(&testing_over, false);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&tester, NULL, tests_run, NULL), 0);
    meddler_make(&meddler, by_tester, finalizing, 0);
    meddler_go(&meddler);
    CU_ASSERT_EQUAL(bmi_task_prepare(&between, NULL,
                                     &(struct bmi_task_attributes){.function = wait_for_meddler,
                                                                   .argument = &meddler}),
                    0);
    CU_ASSERT_EQUAL(bmi_task_submit(&between), 0);
    while (bmi_task_state(&between) != BMI_TASK_RUNNING)
        sched_yield();
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    bmi_task_wait(&meddler.task, -1);
    CU_ASSERT_EQUAL(bmi_task_wait(&between, -1), 0);
    refused_while_finalizing(&meddler);
    atomic_store(&testing_over, true);
    pthread_join(tester, NULL);
    works_afterwards();
}

static bool main_finalizes(void)
{
    return is_main && !bmi__running(&bmi__default);
}

/* Finalizes with tasks queued. Returns whether it ran one itself. */
static bool finalize_with_tasks(struct meddler *meddlers, int count)
{
    bool within = false;
    loop_open(BMI_INIT_BACKGROUND);
    for (int i = 0; i < count; i++) {
        meddler_make(&meddlers[i], main_finalizes, finalizing, 0);
        CU_ASSERT_EQUAL(bmi_task_submit(&meddlers[i].task), 0);
    }
    is_main = true;
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    is_main = false;
    for (int i = 0; i < count; i++) {
        bmi_task_wait(&meddlers[i].task, -1); /* -BMI_ECANCEL: the manager ended first */
        if (!atomic_load(&meddlers[i].in_place))
            continue;
        refused_while_finalizing(&meddlers[i]);
        within = true;
    }
    return within;
}

static void finalize_runs_tasks_itself(void)
{
    struct meddler meddlers[8];
    time_t since = 0;
    bool within;
    while (!(within = finalize_with_tasks(meddlers, 8)) && !late(&since))
        continue;
    CU_ASSERT_TRUE(within);
    works_afterwards();
}

/* The background keeps the manager, so contexts can be opened. */
static void switching_waits_for_a_worker(void)
{
    struct meddler meddler;
    loop_open(BMI_INIT_BACKGROUND);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=on"), 0);
    meddler_make(&meddler, by_worker, workers_stop, 0);
    meddler_go(&meddler);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=off"), 0);
    bmi_task_wait(&meddler.task, -1);
    CU_ASSERT_EQUAL(meddler.child, 0);
    CU_ASSERT_EQUAL(meddler.started, 0); /* counted, without a lock under which a thread waits */
    CU_ASSERT_EQUAL(meddler.finalized, 0);
    CU_ASSERT_EQUAL(meddler.on, 0); /* it is on */
    CU_ASSERT_EQUAL(meddler.off, -BMI_EDEADLK);
    CU_ASSERT_EQUAL(meddler.opened, 0);
    CU_ASSERT_TRUE(bmi__background_on(&bmi__default));
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    works_afterwards();
}

static void switching_waits_for_a_task_that_may_block(void)
{
    struct meddler meddler;
    loop_open(BMI_INIT_BACKGROUND);
    meddler_make(&meddler, by_anybody, manager_stops, BMI_TASK_MAY_BLOCK);
    meddler_go(&meddler);
    CU_ASSERT_EQUAL(background_set(0), 0);
    bmi_task_wait(&meddler.task, -1);
    CU_ASSERT_EQUAL(meddler.child, 0);
    CU_ASSERT_EQUAL(meddler.started, 0);
    CU_ASSERT_EQUAL(meddler.finalized, 0);
    CU_ASSERT_EQUAL(meddler.on, -BMI_EDEADLK);
    CU_ASSERT_EQUAL(meddler.off, 0); /* as the other thread does the same */
    CU_ASSERT_EQUAL(meddler.opened, -BMI_EDEADLK);
    CU_ASSERT_FALSE(bmi__background_on(&bmi__default));
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    works_afterwards();
}

/* A worker's own task undoes the last start: the worker cannot wait for itself. */
static enum bmi_task_status switch_all_off(struct bmi_task *task, void *argument)
{
    struct meddler *meddler = argument;
    (void)task;
    if (!by_worker() || atomic_exchange(&meddler->in_place, true))
        return BMI_TASK_DONE;
    meddler->off = BMI_set_info(0, BMI_SETTING, "offload=off");
    meddler->finalized = BMI_finalize();
    return BMI_TASK_DONE;
}

static void a_worker_switches_workers_off(void)
{
    struct meddler meddler;
    loop_open(BMI_INIT_BACKGROUND);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=on"), 0);
    meddler_make(&meddler, by_worker, finalizing, 0);
    CU_ASSERT_EQUAL(bmi_task_prepare(&meddler.task, NULL,
                                     &(struct bmi_task_attributes){.function = switch_all_off,
                                                                   .argument = &meddler}),
                    0);
    meddler_go(&meddler);
    bmi_task_wait(&meddler.task, -1);
    CU_ASSERT_EQUAL(meddler.off, 0);
    CU_ASSERT_EQUAL(meddler.finalized, 0);
    CU_ASSERT_FALSE(bmi__running(&bmi__default));
    works_afterwards();
    CU_ASSERT_EQUAL(atomic_load(&bmi_task_manager_default()->live_workers), 0);
    CU_ASSERT_TRUE(manager_stops());
}

/* The manager keeps running: only the thread that switches it off waits for the
 * background's end. */
static void switch_off_deep(void *argument)
{
    struct bmi_task_manager *manager = bmi_task_manager_default();
    CU_ASSERT_EQUAL(background_set(0), 0);
    pthread_mutex_lock(&manager->blocking.mutex);
    uint32_t busy = manager->blocking.count - manager->blocking.idle;
    pthread_mutex_unlock(&manager->blocking.mutex);
    atomic_fetch_add((atomic_uint *)argument, busy > 0);
}

/* A thread that has run it may not have recorded that yet. */
static void it_is_switched_off_deep_in_tasks(void)
{
    enum { ROUNDS_DEEP = 50 };
    atomic_uint busy = 0;
    loop_open(0);
    CU_ASSERT_EQUAL(bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY), 0);
    for (int i = 0; i < ROUNDS_DEEP; i++) {
        CU_ASSERT_EQUAL(background_set(1), 0);
        deep_run(switch_off_deep, &busy);
    }
    CU_ASSERT(atomic_load(&busy) < ROUNDS_DEEP);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY), 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    works_afterwards();
}

/* ---- all at once ---- */

enum { ROUNDS = 40, TASKS = 8, SWITCHERS = 2 };

struct switcher {
    struct bmi_task task;
    atomic_uint *wrong; /* statuses that are neither 0 nor EDEADLK */
    unsigned number;
};

static bool is_right(int status)
{
    return status == 0 || status == -BMI_EDEADLK;
}

static void switch_something(struct switcher *switcher)
{
    int status;
    switch (switcher->number++ % 4) {
    case 0:
        status = background_set(switcher->number / 4 % 2);
        break;
    case 1:
        status =
            BMI_set_info(0, BMI_SETTING, switcher->number / 4 % 2 ? "offload=on" : "offload=off");
        break;
    case 2:
        status = flow_context_try();
        break;
    default:
        status = BMI_initialize(NULL, NULL, 0);
        if (status == 0)
            status = BMI_finalize();
    }
    atomic_fetch_add(switcher->wrong, !is_right(status));
}

static enum bmi_task_status switch_task(struct bmi_task *task, void *argument)
{
    (void)task;
    switch_something(argument);
    return BMI_TASK_DONE;
}

static void *switch_run(void *argument)
{
    struct switcher *switcher = argument;
    for (int i = 0; i < ROUNDS; i++)
        switch_something(switcher);
    return NULL;
}

static void all_switch_at_once(void)
{
    struct switcher tasks[TASKS], threads[SWITCHERS];
    pthread_t ids[SWITCHERS];
    atomic_uint wrong = 0;
    loop_open(BMI_INIT_BACKGROUND);
    CU_ASSERT_EQUAL(bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY), 0);
    for (unsigned i = 0; i < TASKS; i++) {
        tasks[i] = (struct switcher){.wrong = &wrong, .number = i};
        CU_ASSERT_EQUAL(
            bmi_task_prepare(&tasks[i].task, NULL,
                             &(struct bmi_task_attributes){.function = switch_task,
                                                           .argument = &tasks[i],
                                                           .options = i % 2 ? BMI_TASK_MAY_BLOCK
                                                                            : BMI_TASK_REPEAT}),
            0);
    }
    for (unsigned i = 0; i < SWITCHERS; i++) {
        threads[i] = (struct switcher){.wrong = &wrong, .number = i};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&ids[i], NULL, switch_run, &threads[i]), 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < TASKS; i++)
            bmi_task_submit(&tasks[i].task); /* -EBUSY: it is queued already */
        bmi_task_schedule(NULL);
    }
    for (unsigned i = 0; i < SWITCHERS; i++)
        pthread_join(ids[i], NULL);
    for (unsigned i = 0; i < TASKS; i++)
        CU_ASSERT_EQUAL(bmi_task_wait(&tasks[i].task, -1), 0);
    CU_ASSERT_EQUAL(atomic_load(&wrong), 0);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=off"), 0);
    CU_ASSERT_EQUAL(background_set(0), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY), 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    works_afterwards();
    CU_ASSERT_EQUAL(atomic_load(&bmi_task_manager_default()->live_workers), 0);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"finalize waits for a worker", finalize_waits_for_a_worker},
        {"finalize waits for the background", finalize_waits_for_the_background},
        {"finalize waits for a task that may block", finalize_waits_for_a_task_that_may_block},
        {"finalize waits for a test call", finalize_waits_for_a_test_call},
        {"finalize runs tasks itself", finalize_runs_tasks_itself},
        {"switching waits for a worker", switching_waits_for_a_worker},
        {"switching waits for a task that may block", switching_waits_for_a_task_that_may_block},
        {"a worker switches workers off", a_worker_switches_workers_off},
        {"it is switched off deep in tasks", it_is_switched_off_deep_in_tasks},
        {"all switch at once", all_switch_at_once},
        CU_TEST_INFO_NULL,
    };
    return unit_run("switching", tests);
}
