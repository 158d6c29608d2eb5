/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Which thread runs a task when the usual threads are busy, have ended, or have changed.
 */
#include "task/internal.h"
#include "task/testing.h"

#include <errno.h>
#include <pthread.h>

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

/* ---- workers start while a leader runs a task ---- */

struct thrice {
    atomic_uint runs, go_on;
};

/* The first run is one before the waiting thread sleeps, the second is the leader's. */
static enum bmi_task_status three_times(struct bmi_task *task, void *argument)
{
    struct thrice *thrice = argument;
    (void)task;
    unsigned before = atomic_fetch_add(&thrice->runs, 1);
    if (before == 1)
        test_reaches(&thrice->go_on, 1);
    return before < 2 ? BMI_TASK_AGAIN : BMI_TASK_DONE;
}

/* The leader stops running tasks then, so a worker is woken for the task that it has queued
 * again. */
static void test_workers_start_under_a_leader(void)
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
    test_prepare_on(&task, manager, three_times, &thrice, BMI_TASK_REPEAT, &second);
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

/* ---- a manager starts again while a thread still ends tasks of its last stop ---- */

struct straggler {
    struct bmi_task_manager *manager;
    struct bmi_task task;
    atomic_uint running, go_on, cancelling, end;
    pthread_t thread;
};

static enum bmi_task_status again_when_told(struct bmi_task *task, void *argument)
{
    struct straggler *straggler = argument;
    (void)task;
    atomic_store(&straggler->running, 1);
    test_reaches(&straggler->go_on, 1);
    return BMI_TASK_AGAIN;
}

static enum bmi_task_status cancelled_when_told(struct bmi_task *task, void *argument)
{
    struct straggler *straggler = argument;
    (void)task;
    atomic_store(&straggler->cancelling, 1);
    test_reaches(&straggler->end, 1);
    return BMI_TASK_DONE;
}

static void *schedule_once(void *argument)
{
    struct straggler *straggler = argument;
    bmi_task_schedule(straggler->manager);
    return NULL;
}

/* A stop comes during a run of its task; the run sees that as it queues the task again: it ends the
 * queued tasks. */
static void straggler_begin(struct straggler *straggler, struct bmi_task_manager *manager)
{
    struct bmi_task_attributes attributes = {
        .function = again_when_told,
        .cancelled = cancelled_when_told,
        .argument = straggler,
        .options = BMI_TASK_REPEAT,
    };
    *straggler = (struct straggler){.manager = manager};
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&straggler->task, manager, &attributes), 0);
    CU_ASSERT_EQUAL(bmi_task_submit(&straggler->task), 0);
    pthread_create(&straggler->thread, NULL, schedule_once, straggler);
    CU_ASSERT_TRUE(test_reaches(&straggler->running, 1));
    CU_ASSERT_EQUAL(bmi_task_manager_stop(manager, BMI_TASK_HOOKS_ONLY), 0);
    atomic_store(&straggler->go_on, 1);
    CU_ASSERT_TRUE(test_reaches(&straggler->cancelling, 1));
}

/* It must not end tasks that are submitted since. */
static void test_started_again_under_a_straggler(void)
{
    enum { TASKS = 3 };
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    struct bmi_task tasks[TASKS];
    struct straggler straggler;
    atomic_uint runs = 0;
    for (int i = 0; i < TASKS; i++)
        test_prepare_on(&tasks[i], manager, test_count, &runs, 0, NULL);
    straggler_begin(&straggler, manager);
    CU_ASSERT_EQUAL(bmi_task_manager_start(manager, BMI_TASK_HOOKS_ONLY), 0);
    for (int i = 0; i < TASKS; i++)
        CU_ASSERT_EQUAL(bmi_task_submit(&tasks[i]), 0);
    atomic_store(&straggler.end, 1);
    pthread_join(straggler.thread, NULL);
    CU_ASSERT_EQUAL(bmi_task_state(&straggler.task), BMI_TASK_CANCELLED);
    for (int i = 0; i < TASKS; i++)
        CU_ASSERT_EQUAL(bmi_task_wait(&tasks[i], 20000), 0);
    CU_ASSERT_EQUAL(runs, TASKS);
    struct bmi_task_queue_statistics statistics;
    CU_ASSERT_EQUAL(bmi_task_queue_statistics(manager, 0, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.submitted, TASKS + 2); /* the straggler's twice */
    bmi_task_manager_destroy(manager);
}

/* ---- a submit that finds the task queued, while another thread takes it out ---- */

struct letters {
    struct bmi_task task;
    struct bmi_task_manager *manager;
    atomic_uint stop;
    _Alignas(BMI__LINE) atomic_uint written; /* the task must see it */
    _Alignas(BMI__LINE) atomic_uint seen;
};

static enum bmi_task_status see_letter(struct bmi_task *task, void *argument)
{
    struct letters *letters = argument;
    (void)task;
    unsigned written = atomic_load_explicit(&letters->written, memory_order_relaxed);
    atomic_store_explicit(&letters->seen, written, memory_order_relaxed);
    return BMI_TASK_DONE;
}

static void *schedule_on_and_on(void *argument)
{
    struct letters *letters = argument;
    while (!atomic_load(&letters->stop))
        bmi_task_schedule(letters->manager);
    return NULL;
}

/* A thread that submits a task queues it or gets -BMI_EBUSY: in both cases a later run sees the
 * thread's earlier writes. (A defect would show in some of so many attempts.) */
static void test_busy_orders_like_a_submit(void)
{
    enum { TRIES = 300000 };
    static struct letters letters;
    unsigned tries = 0, busy = 0, unseen = 0;
    uint64_t end = test_now_ns() + 2000000000; /* where one CPU takes turns fewer have to do */
    pthread_t runner;
    letters = (struct letters){.manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY)};
    test_prepare_on(&letters.task, letters.manager, see_letter, &letters, 0, NULL);
    pthread_create(&runner, NULL, schedule_on_and_on, &letters);
    while (tries++ < TRIES && test_now_ns() < end) {
        bmi_task_submit(&letters.task);
        for (unsigned pause = tries % 32; pause > 0; pause--)
            bmi__pause();
        atomic_store_explicit(&letters.written, tries, memory_order_relaxed);
        busy += bmi_task_submit(&letters.task) == -BMI_EBUSY;
        for (unsigned look = 1; bmi_task_state(&letters.task) != BMI_TASK_ENDED; look++)
            look % 1024 ? bmi__pause() : (void)sched_yield();
        unseen += atomic_load(&letters.seen) != tries;
    }
    atomic_store(&letters.stop, 1);
    pthread_join(runner, NULL);
    printf("%u of %u found it queued ", busy, tries - 1);
    CU_ASSERT_EQUAL(unseen, 0);
    bmi_task_manager_destroy(letters.manager);
}

/* ---- urgent tasks ---- */

struct hold {
    pthread_mutex_t mutex;
    pthread_cond_t over;
    bool is_over;
    atomic_uint began;
};

static enum bmi_task_status hold_on(struct bmi_task *task, void *argument)
{
    struct hold *hold = argument;
    (void)task;
    atomic_store(&hold->began, 1);
    pthread_mutex_lock(&hold->mutex);
    while (!hold->is_over)
        pthread_cond_wait(&hold->over, &hold->mutex);
    pthread_mutex_unlock(&hold->mutex);
    return BMI_TASK_DONE;
}

static void hold_end(struct hold *hold)
{
    pthread_mutex_lock(&hold->mutex);
    hold->is_over = true;
    pthread_cond_broadcast(&hold->over);
    pthread_mutex_unlock(&hold->mutex);
}

static struct bmi_cpuset first_cpu(void)
{
    struct bmi_cpuset all;
    bmi_task_cpus(NULL, &all);
    return test_only(bmi_cpuset_next(&all, 0));
}

/* While its CPU's helper is held up, the worker leaves an urgent task where it is. */
static void test_workers_leave_urgent_tasks(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    struct bmi_cpuset here = first_cpu();
    struct hold hold = {.mutex = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER};
    struct bmi_task holding, urgent, plain;
    atomic_uint urgent_runs = 0, runs = 0;
    test_prepare_on(&holding, manager, hold_on, &hold, BMI_TASK_URGENT, &here);
    test_prepare_on(&urgent, manager, test_count, &urgent_runs, BMI_TASK_URGENT, &here);
    test_prepare_on(&plain, manager, test_count, &runs, 0, &here);
    CU_ASSERT_EQUAL(bmi_task_submit(&holding), 0);
    CU_ASSERT_TRUE(test_reaches(&hold.began, 1));
    CU_ASSERT_EQUAL(bmi_task_submit(&urgent), 0);
    for (unsigned round = 1; round <= 20; round++) {
        CU_ASSERT_EQUAL(bmi_task_submit(&plain), 0);
        CU_ASSERT_TRUE(test_reaches(&runs, round)); /* by the worker, which finds no urgent task
                                                       there */
        while (bmi_task_state(&plain) != BMI_TASK_ENDED)
            sched_yield();
    }
    CU_ASSERT_EQUAL(urgent_runs, 0);
    hold_end(&hold);
    CU_ASSERT_TRUE(test_reaches(&urgent_runs, 1));
    CU_ASSERT_EQUAL(bmi_task_wait(&urgent, 20000), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&holding, 20000), 0);
    bmi_task_manager_destroy(manager);
}

enum { LEVELS = 10 };

struct deep {
    struct bmi_task tasks[LEVELS]; /* each waits for the next, the last for `plain` if it exists */
    struct bmi_task plain, bottom;
    int results[LEVELS], plain_result, bottom_result;
    unsigned levels;
    bool has_plain;
    atomic_uint ended;
};

static int submit_and_wait(struct bmi_task *task)
{
    int result = bmi_task_submit(task);
    return result == 0 ? bmi_task_wait(task, 2000) : result;
}

static enum bmi_task_status go_deeper(struct bmi_task *task, void *argument)
{
    struct deep *deep = argument;
    unsigned level = (unsigned)(task - deep->tasks);
    if (level + 1 < deep->levels)
        deep->results[level] = submit_and_wait(&deep->tasks[level + 1]);
    else if (deep->has_plain)
        deep->plain_result = submit_and_wait(&deep->plain);
    atomic_fetch_add(&deep->ended, 1);
    return BMI_TASK_DONE;
}

static enum bmi_task_status await_bottom(struct bmi_task *task, void *argument)
{
    struct deep *deep = argument;
    (void)task;
    deep->bottom_result = submit_and_wait(&deep->bottom);
    return BMI_TASK_DONE;
}

static void deep_given(struct deep *deep, struct bmi_task_manager *manager, unsigned levels,
                       const struct bmi_cpuset *here)
{
    *deep = (struct deep){.levels = levels};
    for (unsigned level = 0; level < levels; level++)
        test_prepare_on(&deep->tasks[level], manager, go_deeper, deep, BMI_TASK_URGENT, here);
}

/* The test runs no task: the one thread that runs urgent tasks there waits within so many of
 * them. */
static void deep_runs(struct deep *deep)
{
    CU_ASSERT_EQUAL(bmi_task_submit(&deep->tasks[0]), 0);
    CU_ASSERT_TRUE(test_reaches(&deep->ended, deep->levels));
    CU_ASSERT_EQUAL(bmi_task_wait(&deep->tasks[0], 20000), 0);
    for (unsigned level = 0; level + 1 < deep->levels; level++)
        CU_ASSERT_EQUAL(deep->results[level], 0);
}

static void test_urgent_tasks_within_many(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    struct bmi_cpuset here = first_cpu();
    struct deep deep;
    deep_given(&deep, manager, LEVELS, &here);
    deep_runs(&deep);
    CU_ASSERT_EQUAL(atomic_load(&manager->cpus[deep.tasks[0].cpu].urgent_queued), 0);
    bmi_task_manager_destroy(manager);
}

/* It waits for a task that waits, on a worker, for an urgent task that it can't run. */
static void test_a_worker_stands_in_for_a_deep_helper(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    struct bmi_cpuset here = first_cpu();
    struct deep deep;
    atomic_uint runs = 0;
    deep_given(&deep, manager, BMI_TASK_DEPTH + 1, &here);
    deep.has_plain = true;
    test_prepare_on(&deep.plain, manager, await_bottom, &deep, 0, &here);
    test_prepare_on(&deep.bottom, manager, test_count, &runs, BMI_TASK_URGENT, &here);
    deep_runs(&deep);
    CU_ASSERT_EQUAL(deep.plain_result, 0);
    CU_ASSERT_EQUAL(deep.bottom_result, 0);
    bmi_task_manager_destroy(manager);
}

/* ---- a leader leaves, and one of the followers is in a long task ---- */

struct watch {
    struct bmi_task_manager *manager;
    struct bmi_task leaving, busy,
        awaited; /* the leader waits for the first, others for the last */
    struct waiting leader, idle, occupied;
    struct bmi__waiter *first; /* to become a follower */
    struct hold driving, working, holding;
};

static struct bmi__waiter *last_follower(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->wakers_mutex);
    struct bmi__waiter *waiter = manager->followers;
    pthread_mutex_unlock(&manager->wakers_mutex);
    return waiter;
}

static bool has_leader(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->wakers_mutex);
    bool led = manager->leader != NULL;
    pthread_mutex_unlock(&manager->wakers_mutex);
    return led;
}

/* Returns in a run before the wait, so that only the leader stays in it. */
static enum bmi_task_status leave_when_told(struct bmi_task *task, void *argument)
{
    struct watch *watch = argument;
    if (!has_leader(watch->manager))
        return BMI_TASK_AGAIN;
    return hold_on(task, &watch->driving);
}

static _Thread_local bool is_occupied;

/* The same for the last follower. */
static enum bmi_task_status work_when_last(struct bmi_task *task, void *argument)
{
    struct watch *watch = argument;
    if (!is_occupied || last_follower(watch->manager) == watch->first)
        return BMI_TASK_AGAIN;
    return hold_on(task, &watch->working);
}

/* Waits again if the other thread had its task in hand just then. */
static void *wait_occupied(void *argument)
{
    struct watch *watch = argument;
    is_occupied = true;
    while (!atomic_load(&watch->working.began))
        bmi_task_wait(&watch->awaited, 1);
    return wait_for(&watch->occupied);
}

static void waiting_begin(struct waiting *waiting, struct bmi_task *task)
{
    *waiting = (struct waiting){.task = task, .timeout_ms = -1, .result = -1};
    pthread_create(&waiting->thread, NULL, wait_for, waiting);
}

/* One leader, two followers: one of them sleeps, and the later one is in a task. */
static void watch_begin(struct watch *watch)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    const struct hold hold = {.mutex = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER};
    *watch = (struct watch){.manager = manager, .driving = hold, .working = hold, .holding = hold};
    test_prepare_on(&watch->leaving, manager, leave_when_told, watch, BMI_TASK_REPEAT, NULL);
    test_prepare_on(&watch->busy, manager, work_when_last, watch, BMI_TASK_REPEAT, NULL);
    test_prepare_on(&watch->awaited, manager, hold_on, &watch->holding, BMI_TASK_MAY_BLOCK, NULL);
    CU_ASSERT_EQUAL(bmi_task_submit(&watch->awaited), 0);
    CU_ASSERT_EQUAL(bmi_task_submit(&watch->leaving), 0);
    waiting_begin(&watch->leader, &watch->leaving);
    CU_ASSERT_TRUE(test_reaches(&watch->driving.began, 1));
    waiting_begin(&watch->idle, &watch->awaited);
    while ((watch->first = last_follower(manager)) == NULL)
        sched_yield();
    CU_ASSERT_EQUAL(bmi_task_submit(&watch->busy), 0);
    watch->occupied = (struct waiting){.task = &watch->awaited, .timeout_ms = -1, .result = -1};
    pthread_create(&watch->occupied.thread, NULL, wait_occupied, watch);
    CU_ASSERT_TRUE(test_reaches(&watch->working.began, 1));
}

static void test_the_idle_one_leads_next(void)
{
    static struct watch watch;
    struct bmi_task task;
    atomic_uint runs = 0;
    watch_begin(&watch);
    test_prepare_on(&task, watch.manager, test_count, &runs, 0, NULL);
    hold_end(&watch.driving);
    pthread_join(watch.leader.thread, NULL);
    CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
    CU_ASSERT_TRUE(test_reaches(&runs, 1));
    hold_end(&watch.working);
    hold_end(&watch.holding);
    pthread_join(watch.idle.thread, NULL);
    pthread_join(watch.occupied.thread, NULL);
    CU_ASSERT_EQUAL(watch.idle.result, 0);
    CU_ASSERT_EQUAL(watch.occupied.result, 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, 20000), 0);
    CU_ASSERT_PTR_NULL(watch.manager->followers);
    bmi_task_manager_destroy(watch.manager);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"workers start under a leader", test_workers_start_under_a_leader},
        {"started again under a straggler", test_started_again_under_a_straggler},
        {"-BMI_EBUSY orders like a submit", test_busy_orders_like_a_submit},
        {"workers leave urgent tasks alone", test_workers_leave_urgent_tasks},
        {"urgent tasks within many", test_urgent_tasks_within_many},
        {"a worker stands in for a deep helper", test_a_worker_stands_in_for_a_deep_helper},
        {"the idle one leads next", test_the_idle_one_leads_next},
        CU_TEST_INFO_NULL,
    };
    return test_run("shifts", cases);
}
