/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Tasks in the background: workers, timer, urgent tasks, the blocking pool, and CPUs that the
 * process loses.
 */
#include "task/internal.h"
#include "task/testing.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

static enum bmi_task_status note_cpu(struct bmi_task *task, void *argument)
{
    (void)task;
    atomic_store((atomic_int *)argument, sched_getcpu());
    return BMI_TASK_DONE;
}

/* A thread that never blocks, on one CPU. */
struct busy {
    int cpu;
    pthread_t thread;
    atomic_uint computing, stop;
};

static void *busy_main(void *argument)
{
    struct busy *busy = argument;
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET((size_t)busy->cpu, &mask);
    sched_setaffinity(0, sizeof(mask), &mask);
    atomic_store(&busy->computing, 1);
    while (!atomic_load_explicit(&busy->stop, memory_order_relaxed))
        continue;
    return NULL;
}

static void busy_start(struct busy *busy, int cpu)
{
    *busy = (struct busy){.cpu = cpu};
    pthread_create(&busy->thread, NULL, busy_main, busy);
    CU_ASSERT_TRUE(test_reaches(&busy->computing, 1));
}

static void busy_end(struct busy *busy)
{
    atomic_store(&busy->stop, 1);
    pthread_join(busy->thread, NULL);
}

/* Every CPU's own tasks run on it, only by its worker: the test runs none. */
static void test_workers_run(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    struct bmi_cpuset all;
    bmi_task_cpus(manager, &all);
    for (int round = 0; round < 50; round++) {
        for (int cpu = bmi_cpuset_next(&all, 0); cpu >= 0; cpu = bmi_cpuset_next(&all, cpu + 1)) {
            struct bmi_task task;
            struct bmi_cpuset only = test_only(cpu);
            atomic_int ran_on = -1;
            test_prepare_on(&task, manager, note_cpu, &ran_on, 0, &only);
            bmi_task_submit(&task);
            CU_ASSERT_EQUAL(bmi_task_wait(&task, 20000), 0);
            CU_ASSERT_EQUAL(ran_on, cpu);
        }
    }
    struct bmi_task_queue_statistics statistics;
    bmi_task_queue_statistics(manager, 0, &statistics);
    CU_ASSERT_TRUE(statistics.served);
    bmi_task_manager_destroy(manager);
}

static void add_switches(const char *folder, void *argument)
{
    char path[300], line[128];
    snprintf(path, sizeof(path), "%s/status", folder);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        long switches;
        if (sscanf(line, "voluntary_ctxt_switches: %ld", &switches) == 1)
            *(long *)argument += switches;
    }
    if (file != NULL)
        fclose(file);
}

/* With nothing queued no thread of the manager runs at all. */
static void test_idle_uses_no_cpu(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    struct bmi_task task;
    atomic_uint runs = 0;
    test_prepare_on(&task, manager, test_count, &runs, BMI_TASK_URGENT, NULL);
    bmi_task_submit(&task);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, 20000), 0);
    test_prepare_on(&task, manager, test_count, &runs, 0, NULL);
    bmi_task_submit(&task);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, 20000), 0);

    const struct timespec span = {.tv_nsec = 300000000}; /* the test measures a span of time */
    uint64_t end = test_now_ns() + 20000000000u;
    long before, after;
    do { /* the timer ticks on for some 10 ms after the last task */
        before = after = 0;
        test_threads("bmi-", add_switches, &before);
        nanosleep(&span, NULL);
        test_threads("bmi-", add_switches, &after);
    } while (after != before && test_now_ns() < end);
    CU_ASSERT_TRUE(before > 0);
    CU_ASSERT_EQUAL(after, before);
    bmi_task_manager_destroy(manager);
}

/* A program that computes on every CPU and makes no call: the timer makes helpers run the tasks. */
static void test_busy_cpus_do_not_starve(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    struct bmi_cpuset all;
    struct busy busy[64];
    int count = 0;
    bmi_task_cpus(manager, &all);
    for (int cpu = bmi_cpuset_next(&all, 0); cpu >= 0 && count < 64;
         cpu = bmi_cpuset_next(&all, cpu + 1))
        busy_start(&busy[count++], cpu);
    int first = bmi_cpuset_next(&all, 0);
    struct bmi_cpuset only = test_only(first);
    uint64_t worst = 0;
    for (int round = 0; round < 30; round++) {
        struct bmi_task task;
        atomic_uint runs = 0;
        test_prepare_on(&task, manager, test_count, &runs, 0, round % 2 ? &only : NULL);
        uint64_t start = test_now_ns();
        bmi_task_submit(&task);
        CU_ASSERT_TRUE(test_reaches(&runs, 1)); /* the test runs no task */
        uint64_t took = test_now_ns() - start;
        worst = took > worst ? took : worst;
        CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), 0);
    }
    printf("worst %.1f ms ", (double)worst / 1e6);
    CU_ASSERT_TRUE(worst < 1000000000);
    for (int i = 0; i < count; i++)
        busy_end(&busy[i]);
    bmi_task_manager_destroy(manager);
}

/* An urgent task starts on its CPU while that computes, also where there are no workers. */
static void test_urgent(void)
{
    static const enum bmi_task_threads ways[] = {BMI_TASK_HOOKS_ONLY, BMI_TASK_WORKERS};
    for (size_t way = 0; way < 2; way++) {
        struct bmi_task_manager *manager = test_manager(NULL, ways[way]);
        struct bmi_cpuset all;
        int last = 0;
        bmi_task_cpus(manager, &all);
        for (int cpu = bmi_cpuset_next(&all, 0); cpu >= 0; cpu = bmi_cpuset_next(&all, cpu + 1))
            last = cpu;
        struct bmi_cpuset only = test_only(last);
        struct busy busy;
        busy_start(&busy, last);
        for (int round = 0; round < 20; round++) {
            struct bmi_task task;
            atomic_int ran_on = -1;
            test_prepare_on(&task, manager, note_cpu, &ran_on, BMI_TASK_URGENT, &only);
            bmi_task_submit(&task);
            while (bmi_task_state(&task) != BMI_TASK_ENDED)
                sched_yield();
            CU_ASSERT_EQUAL(ran_on, last);
        }
        busy_end(&busy);
        bmi_task_manager_destroy(manager);
    }
}

/* Prepared before the manager is started, and used over a stop and a new start. */
static void test_threads_follow_start_and_stop(void)
{
    struct bmi_task_manager *manager;
    struct bmi_task urgent, blocking;
    atomic_uint runs = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_create(NULL, &manager, NULL, 0), 0);
    test_prepare_on(&urgent, manager, test_count, &runs, BMI_TASK_URGENT, NULL);
    test_prepare_on(&blocking, manager, test_count, &runs, BMI_TASK_MAY_BLOCK, NULL);
    CU_ASSERT_EQUAL(bmi_task_submit(&urgent), -BMI_ENODEV);
    for (int round = 0; round < 5; round++) {
        CU_ASSERT_EQUAL(bmi_task_manager_start(manager, BMI_TASK_HOOKS_ONLY), 0);
        CU_ASSERT_EQUAL(bmi_task_submit(&urgent), 0);
        CU_ASSERT_EQUAL(bmi_task_submit(&blocking), 0);
        CU_ASSERT_EQUAL(bmi_task_wait(&urgent, 20000), 0);
        CU_ASSERT_EQUAL(bmi_task_wait(&blocking, 20000), 0);
        CU_ASSERT_EQUAL(bmi_task_manager_stop(manager, BMI_TASK_HOOKS_ONLY), 0);
    }
    CU_ASSERT_EQUAL(runs, 10);
    bmi_task_manager_destroy(manager);
}

/* ---- tasks that block ---- */

struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t opened;
    bool open;
    atomic_uint inside, through;
};

static enum bmi_task_status pass_gate(struct bmi_task *task, void *argument)
{
    (void)task;
    struct gate *gate = argument;
    atomic_fetch_add(&gate->inside, 1);
    pthread_mutex_lock(&gate->mutex);
    while (!gate->open)
        pthread_cond_wait(&gate->opened, &gate->mutex);
    pthread_mutex_unlock(&gate->mutex);
    atomic_fetch_add(&gate->through, 1);
    return BMI_TASK_DONE;
}

static void gate_open(struct gate *gate)
{
    pthread_mutex_lock(&gate->mutex);
    gate->open = true;
    pthread_cond_broadcast(&gate->opened);
    pthread_mutex_unlock(&gate->mutex);
}

static void test_may_block(void)
{
    enum { TASKS = 10, POOL_THREADS = 3 };
    struct bmi_task_settings settings = {.blocking_threads = POOL_THREADS};
    struct bmi_task_manager *manager = test_manager(&settings, BMI_TASK_WORKERS);
    struct gate gate = {
        .mutex = PTHREAD_MUTEX_INITIALIZER,
        .opened = PTHREAD_COND_INITIALIZER,
    };
    struct bmi_task blocking[TASKS], plain;
    struct bmi_cpuset all;
    atomic_uint runs = 0;
    bmi_task_cpus(manager, &all);
    for (int i = 0; i < TASKS; i++) {
        test_prepare_on(&blocking[i], manager, pass_gate, &gate, BMI_TASK_MAY_BLOCK, NULL);
        bmi_task_submit(&blocking[i]);
    }
    CU_ASSERT_TRUE(test_reaches(&gate.inside, POOL_THREADS));
    for (int cpu = bmi_cpuset_next(&all, 0); cpu >= 0; cpu = bmi_cpuset_next(&all, cpu + 1)) {
        struct bmi_cpuset only = test_only(cpu); /* no worker is delayed */
        test_prepare_on(&plain, manager, test_count, &runs, 0, &only);
        bmi_task_submit(&plain);
        CU_ASSERT_EQUAL(bmi_task_wait(&plain, 20000), 0);
    }
    CU_ASSERT_EQUAL(gate.inside,
                    POOL_THREADS); /* no more than the limit, and the others are cancelled */
    CU_ASSERT_EQUAL(bmi_task_cancel(&blocking[TASKS - 1]), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&blocking[TASKS - 1], 0), -BMI_ETIMEDOUT);
    gate_open(&gate);
    CU_ASSERT_EQUAL(bmi_task_wait(&blocking[TASKS - 1], 20000), -BMI_ECANCEL);
    for (int i = 0; i < TASKS - 1; i++)
        CU_ASSERT_EQUAL(bmi_task_wait(&blocking[i], 20000), 0);
    CU_ASSERT_EQUAL(gate.through, TASKS - 1);

    struct bmi_cpuset only = test_only(bmi_cpuset_next(&all, 0)); /* on the CPUs of its set */
    atomic_int ran_on = -1;
    test_prepare_on(&plain, manager, note_cpu, &ran_on, BMI_TASK_MAY_BLOCK, &only);
    bmi_task_submit(&plain);
    CU_ASSERT_EQUAL(bmi_task_wait(&plain, 20000), 0);
    CU_ASSERT_EQUAL(ran_on, bmi_cpuset_next(&all, 0));
    bmi_task_manager_destroy(manager);
}

struct waiting {
    struct bmi_task *task;
    atomic_uint *impatient; /* how often waiters have given up */
    int result;
    pthread_t thread;
};

static void *wait_again_and_again(void *argument)
{
    struct waiting *waiting = argument;
    for (int i = 0; i < 30; i++) {
        if (bmi_task_wait(waiting->task, 1 + i % 3) == -BMI_ETIMEDOUT)
            atomic_fetch_add(waiting->impatient, 1);
    }
    waiting->result = bmi_task_wait(waiting->task, 20000);
    return NULL;
}

/* Several threads wait for one task, come and go, and all return at its end. */
static void test_several_wait_for_one(void)
{
    enum { WAITERS = 4 };
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    struct gate gate = {
        .mutex = PTHREAD_MUTEX_INITIALIZER,
        .opened = PTHREAD_COND_INITIALIZER,
    };
    struct bmi_task task;
    struct waiting waiting[WAITERS];
    atomic_uint impatient = 0;
    test_prepare_on(&task, manager, pass_gate, &gate, BMI_TASK_MAY_BLOCK, NULL);
    CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
    for (int i = 0; i < WAITERS; i++) {
        waiting[i] = (struct waiting){.task = &task, .impatient = &impatient, .result = -1};
        pthread_create(&waiting[i].thread, NULL, wait_again_and_again, &waiting[i]);
    }
    CU_ASSERT_TRUE(test_reaches(&impatient, 30 * WAITERS));
    gate_open(&gate);
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(waiting[i].thread, NULL);
        CU_ASSERT_EQUAL(waiting[i].result, 0);
    }
    bmi_task_manager_destroy(manager);
}

/* ---- start and stop ---- */

/* Starts are counted for each kind; without workers the hooks run the queued tasks. */
static void test_counted(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    struct bmi_task task;
    atomic_uint runs = 0;
    test_prepare_on(&task, manager, test_count, &runs, 0, NULL);
    CU_ASSERT_EQUAL(bmi_task_manager_start(manager, BMI_TASK_WORKERS), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_start(manager, BMI_TASK_WORKERS), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(manager, BMI_TASK_WORKERS), 0);
    bmi_task_submit(&task);
    CU_ASSERT_TRUE(test_reaches(&runs, 1)); /* by a worker */
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(manager, BMI_TASK_WORKERS), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(manager, BMI_TASK_WORKERS), -BMI_EINVAL);
    bmi_task_submit(&task);
    CU_ASSERT_EQUAL(bmi_task_state(&task), BMI_TASK_QUEUED);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), 0); /* by this thread */
    CU_ASSERT_EQUAL(runs, 2);
    bmi_task_manager_destroy(manager);
}

static enum bmi_task_status again(struct bmi_task *task, void *argument)
{
    (void)task;
    atomic_fetch_add((atomic_uint *)argument, 1);
    return BMI_TASK_AGAIN;
}

static enum bmi_task_status await_other(struct bmi_task *task, void *argument)
{
    (void)task;
    struct bmi_task *other = argument;
    int result = bmi_task_wait(other, -1);
    return result == 0 || result == -BMI_ECANCEL ? BMI_TASK_DONE : BMI_TASK_AGAIN;
}

/* Shutting down over repeating tasks, queued ones, and one that waits for another. */
static void test_shutdown_hangs_nowhere(void)
{
    for (int round = 0; round < 20; round++) {
        struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
        struct bmi_task repeating[8], waiting;
        atomic_uint repeats = 0;
        for (int i = 0; i < 8; i++) {
            test_prepare_on(&repeating[i], manager, again, &repeats,
                            BMI_TASK_REPEAT | (i == 7 ? BMI_TASK_MAY_BLOCK : 0) |
                                (i == 6 ? BMI_TASK_URGENT : 0),
                            NULL);
            bmi_task_submit(&repeating[i]);
        }
        test_prepare_on(&waiting, manager, await_other, &repeating[0], 0, NULL);
        bmi_task_submit(&waiting);
        CU_ASSERT_TRUE(test_reaches(&repeats, 20));
        bmi_task_manager_destroy(manager);
        for (int i = 0; i < 8; i++)
            CU_ASSERT_EQUAL(bmi_task_state(&repeating[i]), BMI_TASK_CANCELLED);
        CU_ASSERT_TRUE(bmi_task_state(&waiting) == BMI_TASK_CANCELLED ||
                       bmi_task_state(&waiting) == BMI_TASK_ENDED);
    }
}

/* Workers end while a task on one of them waits for another task: the hooks run that one. */
static enum bmi_task_status await_flag(struct bmi_task *task, void *argument)
{
    (void)task;
    return atomic_load((atomic_uint *)argument) ? BMI_TASK_DONE : BMI_TASK_AGAIN;
}

static void *stop_workers(void *manager)
{
    bmi_task_manager_stop(manager, BMI_TASK_WORKERS);
    return NULL;
}

static void test_workers_end_under_a_waiting_task(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    for (int round = 0; round < 20; round++) {
        struct bmi_task waiting, awaited;
        atomic_uint flag = 0;
        pthread_t stopper;
        bmi_task_manager_start(manager, BMI_TASK_WORKERS);
        test_prepare_on(&awaited, manager, await_flag, &flag, BMI_TASK_REPEAT, NULL);
        test_prepare_on(&waiting, manager, await_other, &awaited, 0, NULL);
        bmi_task_submit(&awaited);
        bmi_task_submit(&waiting);
        while (bmi_task_state(&waiting) == BMI_TASK_QUEUED)
            sched_yield();
        pthread_create(&stopper, NULL, stop_workers, manager);
        atomic_store(&flag, 1);
        pthread_join(stopper, NULL);
        CU_ASSERT_EQUAL(bmi_task_wait(&waiting, 20000), 0);
        CU_ASSERT_EQUAL(bmi_task_wait(&awaited, 20000), 0);
    }
    bmi_task_manager_destroy(manager);
}

static void *wait_long(void *argument)
{
    struct waiting *waiting = argument;
    waiting->result = bmi_task_wait(waiting->task, 20000);
    return NULL;
}

/* Workers end under a thread that sleeps until a task has ended: it has to run that now. */
static void test_workers_end_under_a_waiting_thread(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    struct bmi_task awaited;
    atomic_uint flag = 0;
    struct waiting waiting = {.task = &awaited, .result = -1};
    bmi_task_manager_start(manager, BMI_TASK_WORKERS);
    test_prepare_on(&awaited, manager, await_flag, &flag, BMI_TASK_REPEAT, NULL);
    CU_ASSERT_EQUAL(bmi_task_submit(&awaited), 0);
    pthread_create(&waiting.thread, NULL, wait_long, &waiting);
    while (!(atomic_load(&awaited.state) & BMI__WAITED))
        sched_yield();
    CU_ASSERT_EQUAL(bmi_task_manager_stop(manager, BMI_TASK_WORKERS), 0);
    atomic_store(&flag, 1);
    pthread_join(waiting.thread, NULL);
    CU_ASSERT_EQUAL(waiting.result, 0);
    bmi_task_manager_destroy(manager);
}

struct nest {
    struct bmi_task_manager *other; /* its task waits in another manager in between; or NULL */
    struct bmi_task between, several[2];
    atomic_uint runs[2], outer_runs;
    int results[3];
};

/* Runs often enough that a run follows after the waiting thread has begun to wait. */
static enum bmi_task_status three_times(struct bmi_task *task, void *argument)
{
    (void)task;
    return atomic_fetch_add((atomic_uint *)argument, 1) < 2 ? BMI_TASK_AGAIN : BMI_TASK_DONE;
}

static enum bmi_task_status await_several(struct bmi_task *task, void *argument)
{
    struct nest *nest = argument;
    if (task != &nest->between && atomic_fetch_add(&nest->outer_runs, 1) < 1)
        return BMI_TASK_AGAIN; /* a waiting thread makes the second run */
    if (task != &nest->between && nest->other != NULL) {
        bmi_task_submit(&nest->between);
        nest->results[2] = bmi_task_wait(&nest->between, 20000);
        return BMI_TASK_DONE;
    }
    if (task == &nest->between && nest->outer_runs++ < 3)
        return BMI_TASK_AGAIN;
    for (int i = 0; i < 2; i++) {
        bmi_task_submit(&nest->several[i]);
        nest->results[i] = bmi_task_wait(&nest->several[i], 20000);
    }
    return BMI_TASK_DONE;
}

/* A waiting thread that runs tasks also does so in waits within these, one after the other, also
 * across a wait in another manager. */
static void test_waits_within_waits(void)
{
    for (int round = 0; round < 2; round++) {
        struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
        struct bmi_task_manager *other = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
        struct nest nest = {.other = round ? other : NULL, .results = {-1, -1, -1}};
        struct bmi_task outer;
        test_prepare_on(&outer, manager, await_several, &nest, BMI_TASK_REPEAT, NULL);
        test_prepare_on(&nest.between, other, await_several, &nest, BMI_TASK_REPEAT, NULL);
        for (int i = 0; i < 2; i++)
            test_prepare_on(&nest.several[i], manager, three_times, &nest.runs[i], BMI_TASK_REPEAT,
                            NULL);
        bmi_task_submit(&outer);
        CU_ASSERT_EQUAL(bmi_task_wait(&outer, 20000), 0);
        CU_ASSERT_EQUAL(nest.results[0], 0);
        CU_ASSERT_EQUAL(nest.results[1], 0);
        CU_ASSERT_EQUAL(nest.results[2], round ? 0 : -1);
        CU_ASSERT_PTR_NULL(manager->leader);
        CU_ASSERT_FALSE(bmi__leads(manager) || bmi__leads(other));
        bmi_task_manager_destroy(other);
        bmi_task_manager_destroy(manager);
    }
}

struct patient {
    struct bmi_task *task;
    int timeout_ms, result;
    uint64_t cpu_ns; /* that the wait took of a CPU */
    pthread_t thread;
};

static uint64_t own_cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
}

static void *wait_for_a_while(void *argument)
{
    struct patient *patient = argument;
    uint64_t start = own_cpu_ns();
    patient->result = bmi_task_wait(patient->task, patient->timeout_ms);
    patient->cpu_ns = own_cpu_ns() - start;
    return NULL;
}

static void note_wake(struct bmi_task_waker *waker)
{
    waker->away = true; /* from here on it only records its wake-up */
}

/* Without workers, waiting threads sleep, and leave no state behind. One that leaves with tasks
 * still queued, for which it was woken, wakes the next. */
static void test_waiting_without_workers(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    struct gate gate = {
        .mutex = PTHREAD_MUTEX_INITIALIZER,
        .opened = PTHREAD_COND_INITIALIZER,
    };
    struct bmi_task blocking, repeating;
    struct patient patients[2];
    struct bmi_task_waker waker = {.wake = note_wake};
    atomic_uint repeats = 0;
    test_prepare_on(&blocking, manager, pass_gate, &gate, BMI_TASK_MAY_BLOCK, NULL);
    test_prepare_on(&repeating, manager, again, &repeats, BMI_TASK_REPEAT, NULL);
    CU_ASSERT_EQUAL(bmi_task_submit(&blocking), 0);
    for (int i = 0; i < 2; i++) {
        patients[i] = (struct patient){.task = &blocking, .timeout_ms = 200};
        pthread_create(&patients[i].thread, NULL, wait_for_a_while, &patients[i]);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(patients[i].thread, NULL);
        CU_ASSERT_EQUAL(patients[i].result, -BMI_ETIMEDOUT);
        CU_ASSERT_TRUE(patients[i].cpu_ns < 10000000);
    }
    CU_ASSERT_PTR_NULL(manager->wakers);
    CU_ASSERT_PTR_NULL(manager->followers);
    CU_ASSERT_EQUAL(atomic_load(&manager->waker_count), 0);

    CU_ASSERT_TRUE(bmi_task_waker_arm(manager, &waker));
    patients[0].timeout_ms = 1000;
    pthread_create(&patients[0].thread, NULL, wait_for_a_while, &patients[0]);
    CU_ASSERT_TRUE(test_reaches(&manager->waker_count, 2));
    CU_ASSERT_EQUAL(bmi_task_submit(&repeating), 0); /* wakes the one that waits */
    pthread_join(patients[0].thread, NULL);
    CU_ASSERT_TRUE(waker.away);
    gate_open(&gate);
    CU_ASSERT_EQUAL(bmi_task_wait(&blocking, 20000), 0);
    bmi_task_manager_destroy(manager);
}

/* A worker's task waits for one that ends elsewhere, while there is nothing for the worker. */
static void test_a_waiting_worker_is_roused(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    struct bmi_cpuset all, only;
    bmi_task_cpus(manager, &all);
    only = test_only(bmi_cpuset_next(&all, 0));
    struct gate gate = {
        .mutex = PTHREAD_MUTEX_INITIALIZER,
        .opened = PTHREAD_COND_INITIALIZER,
    };
    struct bmi_task blocking, waiting;
    test_prepare_on(&blocking, manager, pass_gate, &gate, BMI_TASK_MAY_BLOCK, NULL);
    test_prepare_on(&waiting, manager, await_other, &blocking, 0, &only);
    CU_ASSERT_EQUAL(bmi_task_submit(&blocking), 0);
    CU_ASSERT_EQUAL(bmi_task_submit(&waiting), 0);
    uint32_t here = manager->topology.local_of[bmi_cpuset_next(&only, 0)];
    while (!(atomic_load(&blocking.state) & BMI__WAITED) || !bmi__bit_get(manager->idle, here))
        sched_yield(); /* the first worker sleeps within the task */
    gate_open(&gate);
    CU_ASSERT_EQUAL(bmi_task_wait(&waiting, 20000), 0);
    bmi_task_manager_destroy(manager);
}

/* Workers on some CPUs only: any of them may run the tasks of the other CPUs' queues. */
static void test_some_workers(void)
{
    struct bmi_cpuset all, some;
    bmi_task_cpus(NULL, &all);
    some = test_only(bmi_cpuset_next(&all, 0));
    struct bmi_task_settings settings = {.worker_cpus = &some};
    struct bmi_task_manager *manager = test_manager(&settings, BMI_TASK_WORKERS);
    atomic_uint runs = 0;
    unsigned expected = 0;
    for (int cpu = bmi_cpuset_next(&all, 0); cpu >= 0; cpu = bmi_cpuset_next(&all, cpu + 1)) {
        struct bmi_task task;
        struct bmi_cpuset only = test_only(cpu);
        test_prepare_on(&task, manager, test_count, &runs, 0, &only);
        bmi_task_submit(&task);
        CU_ASSERT_TRUE(test_reaches(&runs, ++expected));
        CU_ASSERT_EQUAL(bmi_task_wait(&task, 20000), 0);
    }
    bmi_task_manager_destroy(manager);
}

struct urgent_chain {
    struct bmi_task first, second, third;
    int result;
    uint32_t here; /* the first CPU, as the manager counts */
    atomic_uint began, ended;
};

static enum bmi_task_status await_third(struct bmi_task *task, void *argument)
{
    struct urgent_chain *chain = argument;
    atomic_store(&chain->began, 1);
    while (!(atomic_load(&task->state) & BMI__WAITED) ||
           !bmi__bit_get(task->manager->idle, chain->here))
        sched_yield(); /* the first CPU's helper waits, its worker sleeps */
    bmi_task_submit(&chain->third);
    chain->result = bmi_task_wait(&chain->third, 20000);
    return BMI_TASK_DONE;
}

static enum bmi_task_status await_second(struct bmi_task *task, void *argument)
{
    struct urgent_chain *chain = argument;
    (void)task;
    bmi_task_submit(&chain->second);
    test_reaches(&chain->began, 1);
    bmi_task_wait(&chain->second, -1);
    atomic_store(&chain->ended, 1);
    return BMI_TASK_DONE;
}

/* An urgent task waits for one of another CPU, which needs another urgent one of the first CPU. */
static void test_urgent_while_one_waits(void)
{
    struct bmi_cpuset all, here, there;
    bmi_task_cpus(NULL, &all);
    if (bmi_cpuset_count(&all) < 2) { /* everything is run by the one CPU's threads */
        printf("skipped: needs two CPUs ");
        return;
    }
    here = test_only(bmi_cpuset_next(&all, 0));
    there = test_only(bmi_cpuset_next(&all, bmi_cpuset_next(&all, 0) + 1));
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    struct urgent_chain chain = {.result = -1};
    chain.here = manager->topology.local_of[bmi_cpuset_next(&here, 0)];
    atomic_uint runs = 0;
    test_prepare_on(&chain.first, manager, await_second, &chain, BMI_TASK_URGENT, &here);
    test_prepare_on(&chain.second, manager, await_third, &chain, 0, &there);
    test_prepare_on(&chain.third, manager, test_count, &runs, BMI_TASK_URGENT, &here);
    CU_ASSERT_EQUAL(bmi_task_submit(&chain.first), 0);
    for (int i = 0; i < 5 && !test_reaches(&chain.ended, 1); i++)
        continue;
    CU_ASSERT_EQUAL(chain.result, 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&chain.first, -1), 0);
    bmi_task_manager_destroy(manager);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"workers run tasks where they belong", test_workers_run},
        {"idle uses no CPU", test_idle_uses_no_cpu},
        {"busy CPUs do not starve tasks", test_busy_cpus_do_not_starve},
        {"urgent tasks on a busy CPU", test_urgent},
        {"an urgent task while another waits", test_urgent_while_one_waits},
        {"threads follow start and stop", test_threads_follow_start_and_stop},
        {"tasks that may block", test_may_block},
        {"several wait for one task", test_several_wait_for_one},
        {"start and stop are counted", test_counted},
        {"shutting down hangs nowhere", test_shutdown_hangs_nowhere},
        {"workers end under a waiting task", test_workers_end_under_a_waiting_task},
        {"workers end under a waiting thread", test_workers_end_under_a_waiting_thread},
        {"waits within waits", test_waits_within_waits},
        {"waiting without workers", test_waiting_without_workers},
        {"a worker that waits within a task is roused", test_a_waiting_worker_is_roused},
        {"workers on some CPUs", test_some_workers},
        CU_TEST_INFO_NULL,
    };
    return test_run("workers", cases);
}
