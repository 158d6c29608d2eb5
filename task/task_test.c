/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Tasks without workers: the work of hooks and waiting threads. Every case runs with both queues.
 */
#include "task/testing.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct bmi_task_manager *given_manager(void)
{
    struct bmi_task_settings settings = {.queue_slots = 8};
    return test_manager(&settings, BMI_TASK_HOOKS_ONLY);
}

static enum bmi_task_status count_up(struct bmi_task *task, void *argument)
{
    (void)task;
    if (argument != NULL)
        atomic_fetch_add((atomic_uint *)argument, 1);
    return BMI_TASK_DONE;
}

static void prepare(struct bmi_task *task, struct bmi_task_manager *manager, bmi_task_function run,
                    void *argument, unsigned options)
{
    struct bmi_task_attributes attributes = {
        .function = run,
        .argument = argument,
        .options = options,
    };
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(task, manager, &attributes), 0);
}

static void test_submit_run_done(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct bmi_task task;
    atomic_uint runs = 0;
    prepare(&task, manager, count_up, &runs, 0);
    CU_ASSERT_EQUAL(bmi_task_state(&task), BMI_TASK_IDLE);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, 0), -BMI_EINVAL);
    for (unsigned i = 1; i <= 3; i++) {
        CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
        CU_ASSERT_EQUAL(bmi_task_state(&task), BMI_TASK_QUEUED);
        CU_ASSERT_EQUAL(bmi_task_submit(&task), -BMI_EBUSY);
        CU_ASSERT_EQUAL(bmi_task_schedule(manager), 1);
        CU_ASSERT_EQUAL(bmi_task_state(&task), BMI_TASK_ENDED);
        CU_ASSERT_EQUAL(runs, i);
        CU_ASSERT_EQUAL(bmi_task_wait(&task, 0), 0);
    }
    CU_ASSERT_EQUAL(bmi_task_schedule(manager), 0);
    bmi_task_manager_destroy(manager);
}

static void test_bad_input(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct bmi_task task;
    struct bmi_cpuset cpus;
    struct bmi_task_attributes attributes = {.function = count_up, .cpus = &cpus};
    bmi_cpuset_clear(&cpus);
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, manager, &attributes), -BMI_EINVAL);
    bmi_cpuset_add(&cpus, BMI_CPUSET_MAX - 1);
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, manager, &attributes), -BMI_EINVAL);
    attributes = (struct bmi_task_attributes){.function = NULL};
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, manager, &attributes), -BMI_EINVAL);
    attributes = (struct bmi_task_attributes){.function = count_up, .options = 64};
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, manager, &attributes), -BMI_EINVAL);
    attributes.options = BMI_TASK_URGENT | BMI_TASK_MAY_BLOCK;
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, manager, &attributes), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_prepare(NULL, manager, &attributes), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, manager, NULL), -BMI_EINVAL);
    task = (struct bmi_task){0};
    CU_ASSERT_EQUAL(bmi_task_submit(&task), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, 0), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_nearest_idle(manager, BMI_CPUSET_MAX), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, -1), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_start(manager, (enum bmi_task_threads)7), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(manager, BMI_TASK_WORKERS), -BMI_EINVAL);
    bmi_task_manager_destroy(manager);

    struct bmi_task_settings settings = {.queue_slots = 12};
    char error[64];
    CU_ASSERT_EQUAL(bmi_task_manager_create(&settings, &manager, error, sizeof(error)),
                    -BMI_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "queue_slots"));
    settings = (struct bmi_task_settings){.worker_cpus = &cpus};
    CU_ASSERT_EQUAL(bmi_task_manager_create(&settings, &manager, error, sizeof(error)),
                    -BMI_EINVAL);
    settings = (struct bmi_task_settings){.blocking_threads = -1};
    manager = test_manager(&settings, BMI_TASK_HOOKS_ONLY);
    attributes.options = BMI_TASK_MAY_BLOCK;
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, manager, &attributes), -BMI_EOPNOTSUPP);
    bmi_task_manager_destroy(manager);
}

/* ---- again ---- */

static enum bmi_task_status submit_itself(struct bmi_task *task, void *argument)
{
    if (atomic_fetch_add((atomic_uint *)argument, 1) < 2) {
        CU_ASSERT_EQUAL(bmi_task_submit(task), 0);
        CU_ASSERT_EQUAL(bmi_task_submit(task), -BMI_EBUSY);
    }
    return BMI_TASK_DONE;
}

static void test_resubmits_itself(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct bmi_task task;
    atomic_uint runs = 0;
    prepare(&task, manager, submit_itself, &runs, 0);
    bmi_task_submit(&task);
    CU_ASSERT_EQUAL(bmi_task_schedule(manager), 1);
    CU_ASSERT_EQUAL(bmi_task_state(&task), BMI_TASK_QUEUED);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), 0);
    CU_ASSERT_EQUAL(runs, 3);
    bmi_task_manager_destroy(manager);
}

static enum bmi_task_status five_times(struct bmi_task *task, void *argument)
{
    (void)task;
    return atomic_fetch_add((atomic_uint *)argument, 1) < 4 ? BMI_TASK_AGAIN : BMI_TASK_DONE;
}

static void test_repeats(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct bmi_task task;
    atomic_uint runs = 0;
    prepare(&task, manager, five_times, &runs, BMI_TASK_REPEAT);
    bmi_task_submit(&task);
    for (unsigned i = 1; i <= 5; i++) {
        CU_ASSERT_EQUAL(bmi_task_schedule(manager), 1);
        CU_ASSERT_EQUAL(runs, i);
    }
    CU_ASSERT_EQUAL(bmi_task_state(&task), BMI_TASK_ENDED);
    runs = 0;
    prepare(&task, manager, five_times, &runs, 0); /* without the option AGAIN is DONE */
    bmi_task_submit(&task);
    CU_ASSERT_EQUAL(bmi_task_schedule(manager), 1);
    CU_ASSERT_EQUAL(bmi_task_state(&task), BMI_TASK_ENDED);
    bmi_task_manager_destroy(manager);
}

static enum bmi_task_status for_ever(struct bmi_task *task, void *argument)
{
    (void)task;
    atomic_fetch_add((atomic_uint *)argument, 1);
    return BMI_TASK_AGAIN;
}

/* A repeating task in the CPU's own queue delays neither those behind it nor those above. */
static void test_repeating_is_fair(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct bmi_task forever, behind[20], above;
    struct bmi_cpuset own;
    atomic_uint repeats = 0, runs = 0, above_runs = 0;
    bmi_task_cpus(manager, &own);
    own = test_only(bmi_cpuset_next(&own, 0));
    int cpu = bmi_cpuset_next(&own, 0);
    struct bmi_task_attributes attributes = {
        .function = for_ever,
        .argument = &repeats,
        .cpus = &own,
        .options = BMI_TASK_REPEAT,
    };
    CU_ASSERT_EQUAL(bmi_task_prepare(&forever, manager, &attributes), 0);
    bmi_task_submit(&forever);
    attributes.options = 0;
    attributes.function = count_up;
    attributes.argument = &runs;
    for (int i = 0; i < 20; i++) {
        CU_ASSERT_EQUAL(bmi_task_prepare(&behind[i], manager, &attributes), 0);
        bmi_task_submit(&behind[i]);
    }
    prepare(&above, manager, count_up, &above_runs, 0);
    bmi_task_submit(&above);
    bmi_task_schedule_on(manager, cpu);
    CU_ASSERT_EQUAL(runs, 20);
    CU_ASSERT_EQUAL(above_runs, 1);
    CU_ASSERT_EQUAL(repeats, 1);
    for (unsigned i = 2; i < 10; i++) {
        bmi_task_schedule_on(manager, cpu);
        CU_ASSERT_EQUAL(repeats, i);
    }
    CU_ASSERT_EQUAL(bmi_task_cancel(&forever), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&forever, -1), -BMI_ECANCEL);
    bmi_task_manager_destroy(manager);
}

/* ---- ends ---- */

struct owner {
    struct bmi_task task;
    atomic_uint *freed;
};

static enum bmi_task_status free_owner(struct bmi_task *task, void *argument)
{
    struct owner *owner = argument;
    CU_ASSERT_PTR_EQUAL(task, &owner->task);
    atomic_fetch_add(owner->freed, 1);
    free(owner);
    return BMI_TASK_GONE;
}

static void test_frees_its_owner(void)
{
    struct bmi_task_manager *manager = given_manager();
    atomic_uint freed = 0;
    for (unsigned i = 0; i < 100; i++) {
        struct owner *owner = malloc(sizeof(*owner));
        owner->freed = &freed;
        struct bmi_task_attributes attributes = {
            .function = free_owner,
            .cancelled = free_owner,
            .argument = owner,
        };
        CU_ASSERT_EQUAL(bmi_task_prepare(&owner->task, manager, &attributes), 0);
        bmi_task_submit(&owner->task);
        if (i % 3 == 0)
            bmi_task_cancel(&owner->task);
        if (i == 50)
            bmi_task_schedule(manager);
    }
    CU_ASSERT_TRUE(freed >= 8);
    bmi_task_manager_destroy(manager); /* the rest */
    CU_ASSERT_EQUAL(freed, 100);
}

static void test_cancel(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct bmi_task task;
    atomic_uint runs = 0, cancels = 0;
    prepare(&task, manager, count_up, &runs, 0);
    task.cancelled = NULL;
    CU_ASSERT_EQUAL(bmi_task_cancel(&task), -BMI_EALREADY);
    bmi_task_submit(&task);
    CU_ASSERT_EQUAL(bmi_task_cancel(&task), 0);
    CU_ASSERT_TRUE(bmi_task_cancel_wanted(&task));
    CU_ASSERT_EQUAL(bmi_task_submit(&task), -BMI_EBUSY);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), -BMI_ECANCEL);
    CU_ASSERT_EQUAL(bmi_task_state(&task), BMI_TASK_CANCELLED);
    CU_ASSERT_EQUAL(bmi_task_cancel(&task), -BMI_EALREADY);
    CU_ASSERT_EQUAL(bmi_task_submit(&task), 0); /* and it can be used again */
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), 0);
    CU_ASSERT_EQUAL(runs, 1);

    struct bmi_task_attributes attributes = {
        .function = for_ever,
        .cancelled = count_up,
        .argument = &cancels,
        .options = BMI_TASK_REPEAT,
    };
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, manager, &attributes), 0);
    bmi_task_submit(&task);
    bmi_task_schedule(manager);
    bmi_task_cancel(&task);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), -BMI_ECANCEL);
    CU_ASSERT_EQUAL(cancels, 2); /* one run, one cancel */
    bmi_task_manager_destroy(manager);
}

static enum bmi_task_status cancel_itself(struct bmi_task *task, void *argument)
{
    (void)argument;
    CU_ASSERT_FALSE(bmi_task_cancel_wanted(task));
    CU_ASSERT_EQUAL(bmi_task_cancel(task), -BMI_EBUSY);
    CU_ASSERT_TRUE(bmi_task_cancel_wanted(task));
    return BMI_TASK_AGAIN;
}

static void test_cancel_while_running(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct bmi_task task;
    prepare(&task, manager, cancel_itself, NULL, BMI_TASK_REPEAT);
    bmi_task_submit(&task);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), -BMI_ECANCEL);
    prepare(&task, manager, cancel_itself, NULL, 0); /* its real result came first */
    bmi_task_submit(&task);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), 0);
    bmi_task_manager_destroy(manager);
}

static void *wait_for(void *argument)
{
    return (void *)(intptr_t)bmi_task_wait(argument, -1);
}

/* No thread runs them before the stop. */
static void test_shutdown_reports_cancelled(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct bmi_task tasks[50], forever;
    atomic_uint runs = 0, repeats = 0;
    prepare(&forever, manager, for_ever, &repeats, BMI_TASK_REPEAT);
    bmi_task_submit(&forever);
    for (int i = 0; i < 50; i++) {
        prepare(&tasks[i], manager, count_up, &runs, 0);
        bmi_task_submit(&tasks[i]);
    }
    CU_ASSERT_EQUAL(bmi_task_manager_stop(manager, BMI_TASK_HOOKS_ONLY), 0);
    for (int i = 0; i < 50; i++)
        CU_ASSERT_EQUAL(bmi_task_wait(&tasks[i], 0), -BMI_ECANCEL);
    CU_ASSERT_EQUAL(bmi_task_state(&forever), BMI_TASK_CANCELLED);
    CU_ASSERT_EQUAL(runs, 0);
    CU_ASSERT_EQUAL(bmi_task_submit(&forever), -BMI_ENODEV);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(manager, BMI_TASK_HOOKS_ONLY), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_manager_start(manager, BMI_TASK_HOOKS_ONLY), 0);
    CU_ASSERT_EQUAL(bmi_task_submit(&tasks[0]), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&tasks[0], -1), 0);
    CU_ASSERT_EQUAL(runs, 1);

    pthread_t waiter; /* a waiting thread is woken too */
    void *result;
    bmi_task_submit(&forever);
    pthread_create(&waiter, NULL, wait_for, &forever);
    repeats = 0;
    CU_ASSERT_TRUE(test_reaches(&repeats, 3));
    bmi_task_manager_stop(manager, BMI_TASK_HOOKS_ONLY);
    pthread_join(waiter, &result);
    CU_ASSERT_EQUAL((intptr_t)result, -BMI_ECANCEL);
    bmi_task_manager_destroy(manager);
}

/* ---- waiting ---- */

static enum bmi_task_status await_flag(struct bmi_task *task, void *argument)
{
    (void)task;
    return atomic_load((atomic_uint *)argument) ? BMI_TASK_DONE : BMI_TASK_AGAIN;
}

static void test_wait_times_out(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct bmi_task task;
    atomic_uint flag = 0;
    prepare(&task, manager, await_flag, &flag, BMI_TASK_REPEAT);
    bmi_task_submit(&task);
    uint64_t start = test_now_ns();
    CU_ASSERT_EQUAL(bmi_task_wait(&task, 30), -BMI_ETIMEDOUT);
    CU_ASSERT_TRUE(test_now_ns() - start >= 30000000);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, 0), -BMI_ETIMEDOUT);
    flag = 1;
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), 0);
    bmi_task_manager_destroy(manager);
}

static enum bmi_task_status await_inner(struct bmi_task *task, void *argument)
{
    (void)task;
    struct bmi_task *inner = argument;
    if (inner == NULL)
        return BMI_TASK_DONE;
    bmi_task_submit(inner);
    int result = bmi_task_wait(inner, -1);
    CU_ASSERT_EQUAL(result, 0);
    return BMI_TASK_DONE;
}

/* Tasks that wait for tasks, as deep as is allowed, and no deeper. */
static enum bmi_task_status await_deeper(struct bmi_task *task, void *argument)
{
    struct bmi_task *next = task + 1;
    atomic_int *deepest = argument;
    bmi_task_submit(next);
    int result = bmi_task_wait(next, -1);
    if (result == -BMI_EDEADLK)
        atomic_store(deepest, (int)bmi_task_state(next));
    else
        CU_ASSERT_EQUAL(result, 0);
    return BMI_TASK_DONE;
}

static void test_waits_within_tasks(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct bmi_task chain[3], deep[BMI_TASK_WAIT_DEPTH + 1];
    atomic_int deepest = -1;
    for (int i = 0; i < 3; i++)
        prepare(&chain[i], manager, await_inner, i < 2 ? &chain[i + 1] : NULL, 0);
    bmi_task_submit(&chain[0]);
    CU_ASSERT_EQUAL(bmi_task_wait(&chain[0], -1), 0);

    for (int i = 0; i < BMI_TASK_WAIT_DEPTH + 1; i++)
        prepare(&deep[i], manager, i < BMI_TASK_WAIT_DEPTH ? await_deeper : count_up,
                i < BMI_TASK_WAIT_DEPTH ? (void *)&deepest : NULL, 0);
    bmi_task_submit(&deep[0]);
    CU_ASSERT_EQUAL(bmi_task_wait(&deep[0], -1), 0);
    CU_ASSERT_EQUAL(deepest, BMI_TASK_QUEUED);
    CU_ASSERT_EQUAL(bmi_task_wait(&deep[BMI_TASK_WAIT_DEPTH], -1), 0);
    bmi_task_manager_destroy(manager);
}

/* Independent tasks, each of which waits for one of its own: however many of them nest on one
 * waiting thread, and however many threads wait. */
struct parent {
    struct bmi_task task, child;
    struct bmi_task_manager *manager;
    unsigned options;
    const struct bmi_cpuset *cpus;
    atomic_int runs;
    int result;
};

static enum bmi_task_status child_await(struct bmi_task *task, void *argument)
{
    struct parent *parent = argument;
    struct bmi_task_attributes attributes = {.function = count_up,
                                             .argument = &parent->runs,
                                             .options = parent->options,
                                             .cpus = parent->cpus};
    (void)task;
    parent->result = bmi_task_prepare(&parent->child, parent->manager, &attributes);
    if (parent->result == 0)
        parent->result = bmi_task_submit(&parent->child);
    if (parent->result == 0)
        parent->result = bmi_task_wait(&parent->child, 20000);
    return BMI_TASK_DONE;
}

static void parents_wait(enum bmi_task_threads threads, unsigned options,
                         const struct bmi_cpuset *cpus)
{
    enum { PARENTS = 40 };
    struct parent parents[PARENTS];
    struct bmi_task_queue_statistics queue;
    struct bmi_task_manager *manager = test_manager(NULL, threads);
    for (int i = 0; i < PARENTS; i++) {
        parents[i] = (struct parent){.manager = manager, .options = options, .cpus = cpus};
        prepare(&parents[i].task, manager, child_await, &parents[i], options);
    }
    for (int i = 0; i < PARENTS; i++)
        bmi_task_submit(&parents[i].task);
    for (int i = 0; i < PARENTS; i++) {
        CU_ASSERT_EQUAL(bmi_task_wait(&parents[i].task, 20000), 0);
        CU_ASSERT_EQUAL(parents[i].result, 0);
        CU_ASSERT_EQUAL(atomic_load(&parents[i].runs), 1);
    }
    uint64_t submitted = 0, run = 0;
    for (int i = 0; bmi_task_queue_statistics(manager, i, &queue) == 0; i++)
        submitted += queue.submitted, run += queue.run;
    CU_ASSERT_EQUAL(submitted, options == 0 ? 2 * PARENTS : 0);
    CU_ASSERT_EQUAL(run, submitted);
    bmi_task_manager_destroy(manager);
}

static void test_many_parents(void)
{
    struct bmi_cpuset one = test_only(sched_getcpu());
    for (int threads = BMI_TASK_HOOKS_ONLY; threads <= BMI_TASK_WORKERS; threads++) {
        parents_wait((enum bmi_task_threads)threads, 0, NULL);
        parents_wait((enum bmi_task_threads)threads, 0, &one);
        parents_wait((enum bmi_task_threads)threads, BMI_TASK_MAY_BLOCK, NULL);
    }
}

struct waiting {
    struct bmi_task task;
    struct waiting *wanted;
    int result;
};

static enum bmi_task_status await_wanted(struct bmi_task *task, void *argument)
{
    struct waiting *waiting = argument;
    (void)task;
    if (waiting->wanted != NULL)
        waiting->result = bmi_task_wait(&waiting->wanted->task, 20000);
    return BMI_TASK_DONE;
}

/* The second runs on top of the first, which waits for the third; and one that waits for itself. */
static void test_waits_for_a_task_below(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct waiting three[3] = {{.wanted = &three[2]}, {.wanted = &three[0]}, {.wanted = NULL}};
    struct waiting itself = {.wanted = &itself};
    for (int i = 0; i < 3; i++)
        prepare(&three[i].task, manager, await_wanted, &three[i], 0);
    for (int i = 0; i < 3; i++)
        bmi_task_submit(&three[i].task);
    CU_ASSERT_EQUAL(bmi_task_wait(&three[0].task, -1), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&three[1].task, -1), 0);
    CU_ASSERT_EQUAL(three[0].result, 0);
    CU_ASSERT_EQUAL(three[1].result, -BMI_EDEADLK);
    prepare(&itself.task, manager, await_wanted, &itself, 0);
    bmi_task_submit(&itself.task);
    CU_ASSERT_EQUAL(bmi_task_wait(&itself.task, -1), 0);
    CU_ASSERT_EQUAL(itself.result, -BMI_EDEADLK);
    bmi_task_manager_destroy(manager);
}

/* Many threads wait, one of them runs the tasks; each returns when its own task has ended. */
static void test_many_wait(void)
{
    enum { WAITERS = 16 };
    struct bmi_task_manager *manager = given_manager();
    struct bmi_task tasks[WAITERS];
    atomic_uint flags[WAITERS];
    pthread_t threads[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
        atomic_init(&flags[i], 0);
        prepare(&tasks[i], manager, await_flag, &flags[i], BMI_TASK_REPEAT);
        bmi_task_submit(&tasks[i]);
        pthread_create(&threads[i], NULL, wait_for, &tasks[i]);
    }
    for (int i = 0; i < WAITERS; i++) {
        int which = (i * 7) % WAITERS;
        void *result;
        atomic_store(&flags[which], 1);
        pthread_join(threads[which], &result);
        CU_ASSERT_EQUAL((intptr_t)result, 0);
    }
    bmi_task_manager_destroy(manager);
}

/* A waiting thread sleeps while no task is queued, and a new task wakes it: a later task is the
 * first to submit the awaited one. */
static enum bmi_task_status hold_on(struct bmi_task *task, void *argument)
{
    (void)task;
    atomic_uint *phase = argument;
    atomic_store(phase, 1);
    while (atomic_load(phase) == 1)
        sched_yield();
    return BMI_TASK_DONE;
}

struct hook {
    struct bmi_task_manager *manager;
    pthread_t thread;
};

static void *schedule_once(void *argument)
{
    struct hook *hook = argument;
    while (bmi_task_schedule(hook->manager) == 0)
        sched_yield();
    return NULL;
}

static void test_waiting_thread_serves_submits(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct hook hook = {.manager = manager};
    struct bmi_task held, other[100];
    pthread_t waiter;
    atomic_uint phase = 0, runs = 0;
    void *result;
    prepare(&held, manager, hold_on, &phase, 0);
    bmi_task_submit(&held);
    pthread_create(&hook.thread, NULL, schedule_once, &hook); /* runs `held` */
    CU_ASSERT_TRUE(test_reaches(&phase, 1));
    pthread_create(&waiter, NULL, wait_for, &held); /* has nothing to do but to wait */
    for (unsigned i = 0; i < 100; i++) {
        prepare(&other[i], manager, count_up, &runs, 0);
        bmi_task_submit(&other[i]);
        CU_ASSERT_TRUE(test_reaches(&runs, i + 1)); /* by the waiter: there is no other thread */
    }
    atomic_store(&phase, 2);
    pthread_join(waiter, &result);
    pthread_join(hook.thread, NULL);
    CU_ASSERT_EQUAL((intptr_t)result, 0);
    bmi_task_manager_destroy(manager);
}

struct counting_waker {
    struct bmi_task_waker waker;
    unsigned wakes;
};

static void count_wake(struct bmi_task_waker *waker)
{
    ((struct counting_waker *)waker)->wakes++;
}

static bool disarm(struct bmi_task_manager *manager, struct counting_waker *waker)
{
    bool armed = waker->waker.link_to_me != NULL;
    bmi_task_waker_disarm(manager, &waker->waker);
    return armed;
}

/* A sleeping owner is woken, and with it those armed later whose owners are away. */
static void test_wakers_away(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct counting_waker wakers[5];
    struct bmi_task task;
    atomic_uint runs = 0;
    prepare(&task, manager, count_up, &runs, 0);
    for (int i = 0; i < 5; i++) {
        bool away = i == 0 || i >= 3;
        wakers[i] = (struct counting_waker){.waker = {.wake = count_wake, .away = away}};
        CU_ASSERT_TRUE(bmi_task_waker_arm(manager, &wakers[i].waker));
    }
    bmi_task_submit(&task);
    for (int i = 0; i < 5; i++) {
        CU_ASSERT_EQUAL(wakers[i].wakes, i >= 2);
        CU_ASSERT_EQUAL(disarm(manager, &wakers[i]), i < 2);
    }
    CU_ASSERT_EQUAL(bmi_task_schedule(manager), 1);
    CU_ASSERT_TRUE(bmi_task_waker_arm(manager, &wakers[0].waker));
    bmi_task_submit(&task); /* no other thread runs tasks */
    CU_ASSERT_EQUAL(wakers[0].wakes, 1);
    CU_ASSERT_EQUAL(bmi_task_schedule(manager), 1);
    bmi_task_manager_destroy(manager);
}

static void test_waker(void)
{
    struct bmi_task_manager *manager = given_manager();
    struct counting_waker waker = {.waker.wake = count_wake};
    struct bmi_task first, second;
    atomic_uint runs = 0;
    prepare(&first, manager, count_up, &runs, 0);
    prepare(&second, manager, count_up, &runs, 0);
    CU_ASSERT_TRUE(bmi_task_waker_arm(manager, &waker.waker));
    CU_ASSERT_EQUAL(waker.wakes, 0);
    bmi_task_submit(&first);
    bmi_task_submit(&second);
    CU_ASSERT_EQUAL(waker.wakes, 1);
    bmi_task_waker_disarm(manager, &waker.waker);
    CU_ASSERT_FALSE(bmi_task_waker_arm(manager, &waker.waker));
    CU_ASSERT_FALSE(disarm(manager, &waker)); /* it was not armed */
    CU_ASSERT_EQUAL(bmi_task_schedule(manager), 2);
    CU_ASSERT_TRUE(bmi_task_waker_arm(manager, &waker.waker));
    bmi_task_waker_disarm(manager, &waker.waker);
    bmi_task_submit(&first);
    CU_ASSERT_EQUAL(waker.wakes, 1);
    CU_ASSERT_EQUAL(bmi_task_schedule(manager), 1);
    bmi_task_manager_destroy(manager);
}

static void test_default_manager(void)
{
    struct bmi_task task;
    atomic_uint runs = 0;
    CU_ASSERT_PTR_NOT_NULL(bmi_task_manager_default());
    CU_ASSERT_PTR_EQUAL(bmi_task_manager_default(), bmi_task_manager_default());
    prepare(&task, NULL, count_up, &runs, 0);
    CU_ASSERT_EQUAL(bmi_task_submit(&task), -BMI_ENODEV);
    CU_ASSERT_EQUAL(bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY), 0);
    CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
    CU_ASSERT_EQUAL(bmi_task_schedule(NULL), 1);
    CU_ASSERT_EQUAL(runs, 1);
    bmi_task_manager_destroy(bmi_task_manager_default()); /* is left alone */
    CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY), 0);
    CU_ASSERT_EQUAL(bmi_task_state(&task), BMI_TASK_CANCELLED);
}

/* Runs in a child, where the default manager does not exist yet. Returns the line that failed. */
static int before_it_is_made(void)
{
    struct counting_waker woken = {.waker.wake = count_wake};
    struct counting_waker left = {.waker.wake = count_wake};
    struct bmi_task task;
    atomic_uint runs = 0;
    struct bmi_task_attributes attributes = {.function = count_up, .argument = &runs};
    if (bmi_task_schedule(NULL) != 0)
        return __LINE__;
    if (!bmi_task_waker_arm(NULL, &woken.waker) || !bmi_task_waker_arm(NULL, &left.waker))
        return __LINE__;
    bmi_task_waker_disarm(NULL, &left.waker);
    if (woken.wakes != 0 || bmi_task_prepare(&task, NULL, &attributes) != 0)
        return __LINE__; /* that has made it */
    if (woken.wakes != 1 || left.wakes != 0)
        return __LINE__;
    if (bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY) != 0 ||
        !bmi_task_waker_arm(NULL, &woken.waker) || bmi_task_submit(&task) != 0)
        return __LINE__;
    bmi_task_waker_disarm(NULL, &woken.waker);
    if (woken.wakes != 2 || bmi_task_schedule(NULL) != 1 || runs != 1)
        return __LINE__;
    return bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY) != 0 ? __LINE__ : 0;
}

static void test_default_manager_of_a_child(void)
{
    int status = -1;
    bmi_task_manager_default();
    pid_t child = fork();
    if (child == 0)
        _exit(before_it_is_made() != 0);
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_TRUE(WIFEXITED(status));
    CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
}

/* Owners embed it: its size is theirs. */
static void test_size(void)
{
    CU_ASSERT_TRUE(sizeof(struct bmi_task) <= 96);
}

/* ---- the end of the process ------------------------------------------------------------------ */

static atomic_uint at_end; /* 1: a thread runs a task, 2: the library's destructors have run */
static pthread_t runner;

static enum bmi_task_status outlast(struct bmi_task *task, void *argument)
{
    (void)task, (void)argument;
    atomic_store(&at_end, 1);
    test_reaches(&at_end, 2);
    return BMI_TASK_DONE;
}

static void *schedule_default(void *argument)
{
    (void)argument;
    bmi_task_schedule(NULL);
    return NULL;
}

/* After those of the library, which have no priority. */
__attribute__((destructor(101))) static void last_of_all(void)
{
    if (atomic_load(&at_end) != 1)
        return;
    atomic_store(&at_end, 2);
    pthread_join(runner, NULL);
}

static void end_while_a_task_runs(void)
{
    struct bmi_task_attributes attributes = {.function = outlast};
    static struct bmi_task task;
#ifdef M_PERTURB
    mallopt(M_PERTURB, 0x5a); /* freed memory holds no valid pointer; musl has no such setting */
#endif
    if (bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY) != 0 ||
        bmi_task_prepare(&task, NULL, &attributes) != 0 || bmi_task_submit(&task) != 0 ||
        pthread_create(&runner, NULL, schedule_default, NULL) != 0 || !test_reaches(&at_end, 1))
        _exit(EXIT_FAILURE);
    bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
    exit(EXIT_SUCCESS);
}

/* A process may end while another thread of its is in a hook. */
static void test_process_ends(void)
{
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        end_while_a_task_runs();
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"submit, run, done", test_submit_run_done},
        {"bad input", test_bad_input},
        {"a task resubmits itself", test_resubmits_itself},
        {"repeats until done", test_repeats},
        {"a repeating task is fair", test_repeating_is_fair},
        {"a task frees its owner", test_frees_its_owner},
        {"cancel", test_cancel},
        {"cancel while running", test_cancel_while_running},
        {"shutting down reports cancelled", test_shutdown_reports_cancelled},
        {"wait times out", test_wait_times_out},
        {"waits within tasks", test_waits_within_tasks},
        {"many parents", test_many_parents},
        {"the process ends while a task runs", test_process_ends},
        {"waits for a task below on the stack", test_waits_for_a_task_below},
        {"many wait", test_many_wait},
        {"a waiting thread serves submits", test_waiting_thread_serves_submits},
        {"a waker is woken once", test_waker},
        {"wakers whose owners are away", test_wakers_away},
        {"the process's own manager", test_default_manager},
        {"a child has its own, made when first used", test_default_manager_of_a_child},
        {"size of a task", test_size},
        CU_TEST_INFO_NULL,
    };
    return test_run("tasks", cases);
}
