/* SPDX-License-Identifier: BSD-3-Clause
 *
 * blocking_test.c - tasks that may block where the system refuses a thread for a while; and a
 * worker that runs before its starter goes on. Stands in for bmi__thread_start (the linker's
 * --wrap).
 */
#include "task/internal.h"
#include "task/testing.h"

#include <errno.h>
#include <sys/resource.h>

static atomic_uint refusals; /* how many threads are still to be refused */
static atomic_uint refused;
static bool may_not_bind;          /* threads that need a binding are refused */
static struct bmi_task *meanwhile; /* submitted once a worker has begun, and found nothing */

int __real_bmi__thread_start(pthread_t *thread, void *(*function)(void *), void *argument,
                             int os_cpu, const char *name, uint32_t number);
int __wrap_bmi__thread_start(pthread_t *thread, void *(*function)(void *), void *argument,
                             int os_cpu, const char *name, uint32_t number);

static void submit_meanwhile(struct bmi__task_cpu *cpu)
{
    struct bmi_task *task = meanwhile;
    meanwhile = NULL;
    while (atomic_load(&cpu->manager->timer_armed)) /* some ticks, in which the worker sleeps */
        sched_yield();
    CU_ASSERT_EQUAL(bmi_task_submit(task), 0);
}

int __wrap_bmi__thread_start(pthread_t *thread, void *(*function)(void *), void *argument,
                             int os_cpu, const char *name, uint32_t number)
{
    if (may_not_bind && os_cpu >= 0)
        return -BMI_EPERM;
    if (atomic_load(&refusals) == 0) {
        int result = __real_bmi__thread_start(thread, function, argument, os_cpu, name, number);
        if (result == 0 && meanwhile != NULL && strcmp(name, "bmi-worker") == 0)
            submit_meanwhile(argument);
        return result;
    }
    atomic_fetch_sub(&refusals, 1);
    atomic_fetch_add(&refused, 1);
    return -BMI_EAGAIN;
}

struct blocking {
    struct bmi_task task;
    atomic_uint *go;
    atomic_uint began;
};

static enum bmi_task_status block(struct bmi_task *task, void *argument)
{
    struct blocking *blocking = argument;
    (void)task;
    atomic_fetch_add(&blocking->began, 1);
    for (int i = 0; i < 5 && !test_reaches(blocking->go, 1); i++)
        continue; /* longer than the thread that releases it */
    return BMI_TASK_DONE;
}

static void given(struct blocking *blocking, struct bmi_task_manager *manager, atomic_uint *go)
{
    struct bmi_task_attributes attributes = {.function = block,
                                             .argument = blocking,
                                             .options = BMI_TASK_MAY_BLOCK};
    *blocking = (struct blocking){.go = go};
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&blocking->task, manager, &attributes), 0);
}

/* The first task takes the only thread; the next one's start is refused. Later tasks get a thread
 * again, while the first still blocks, whether they were prepared before that or after. */
static void refused_then_not(bool prepared_before)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    struct blocking first, second;
    atomic_uint go = 0, go_on = 1;
    atomic_store(&refused, 0);
    given(&first, manager, &go);
    if (prepared_before)
        given(&second, manager, &go_on);
    atomic_store(&refusals, 1);
    CU_ASSERT_EQUAL(bmi_task_submit(&first.task), 0);
    CU_ASSERT_TRUE(test_reaches(&first.began, 1));
    CU_ASSERT_TRUE(test_reaches(&refused, 1));
    if (!prepared_before)
        given(&second, manager, &go_on);
    CU_ASSERT_EQUAL(bmi_task_submit(&second.task), 0);
    CU_ASSERT_TRUE(test_reaches(&second.began, 1));
    CU_ASSERT_EQUAL(atomic_load(&refusals), 0);
    atomic_store(&go, 1);
    CU_ASSERT_EQUAL(bmi_task_wait(&first.task, -1), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&second.task, -1), 0);
    bmi_task_manager_destroy(manager);
}

static void test_prepared_before(void)
{
    refused_then_not(true);
}

static void test_prepared_after(void)
{
    refused_then_not(false);
}

/* Without a blocking pool the prepare fails. */
static void test_none(void)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    struct bmi_task_attributes attributes = {.function = block, .options = BMI_TASK_MAY_BLOCK};
    struct bmi_task task;
    struct blocking later;
    atomic_uint go = 1;
    atomic_store(&refusals, 1);
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, manager, &attributes), -BMI_EAGAIN);
    given(&later, manager, &go);
    CU_ASSERT_EQUAL(bmi_task_submit(&later.task), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&later.task, -1), 0);
    bmi_task_manager_destroy(manager);
}

struct ordered {
    struct bmi_task task;
    atomic_uint *order;
    unsigned place;
};

static enum bmi_task_status note_order(struct bmi_task *task, void *argument)
{
    struct ordered *ordered = argument;
    (void)task;
    ordered->place = atomic_fetch_add(ordered->order, 1);
    return BMI_TASK_DONE;
}

/* The only thread takes tasks in order, but first those of bmi__blocking_first. */
static void test_first(void)
{
    static const unsigned places[] = {1, 2, 0, 3};
    struct bmi_task_settings settings = {.blocking_threads = 1};
    struct bmi_task_manager *manager = test_manager(&settings, BMI_TASK_HOOKS_ONLY);
    struct blocking blocking;
    struct ordered ordered[4];
    atomic_uint go = 0, order = 0;
    given(&blocking, manager, &go);
    CU_ASSERT_EQUAL(bmi_task_submit(&blocking.task), 0);
    CU_ASSERT_TRUE(test_reaches(&blocking.began, 1));
    for (int i = 0; i < 4; i++) {
        struct bmi_task_attributes attributes = {.function = note_order,
                                                 .argument = &ordered[i],
                                                 .options = BMI_TASK_MAY_BLOCK};
        ordered[i].order = &order;
        CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&ordered[i].task, manager, &attributes), 0);
        if (i == 2)
            bmi__blocking_first(&ordered[i].task);
        CU_ASSERT_EQUAL(bmi_task_submit(&ordered[i].task), 0);
    }
    atomic_store(&go, 1);
    for (int i = 0; i < 4; i++) {
        CU_ASSERT_EQUAL(bmi_task_wait(&ordered[i].task, 20000), 0);
        CU_ASSERT_EQUAL(ordered[i].place, places[i]);
    }
    CU_ASSERT_EQUAL(bmi_task_wait(&blocking.task, 20000), 0);
    bmi_task_manager_destroy(manager);
}

/* ---- workers --------------------------------------------------------------------------------- */

/* A task that is submitted while a worker starts, before its starter has counted it, does not wait
 * for the next submit. */
static void test_worker_begins(void)
{
    struct bmi_cpuset all, first;
    bmi_task_cpus(NULL, &all);
    first = test_only(bmi_cpuset_next(&all, 0));
    struct bmi_task_settings settings = {.worker_cpus = &first};
    struct bmi_task_manager *manager = test_manager(&settings, BMI_TASK_HOOKS_ONLY);
    atomic_uint ran = 0;
    struct bmi_task task;
    struct bmi_task_attributes attributes = {.function = test_count,
                                             .argument = &ran,
                                             .cpus = &first};
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&task, manager, &attributes), 0);
    meanwhile = &task;
    CU_ASSERT_EQUAL(bmi_task_manager_start(manager, BMI_TASK_WORKERS), 0);
    CU_ASSERT_TRUE(test_reaches(&ran, 1));
    bmi_task_manager_stop(manager, BMI_TASK_WORKERS);
    bmi_task_manager_destroy(manager);
}

/* Where no thread may be bound there are workers all the same, and urgent tasks run. */
static void test_may_not_bind(void)
{
    may_not_bind = true;
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    struct bmi_cpuset all;
    atomic_uint ran = 0;
    unsigned expected = 0;
    int workers = bmi_task_cpus(manager, &all);
    CU_ASSERT_EQUAL(atomic_load(&manager->live_workers), (unsigned)workers);
    for (int round = 0; round < 40; round++) {
        for (int cpu = bmi_cpuset_next(&all, 0); cpu >= 0; cpu = bmi_cpuset_next(&all, cpu + 1)) {
            struct bmi_cpuset only = test_only(cpu);
            struct bmi_task task;
            struct bmi_task_attributes attributes = {.function = test_count,
                                                     .argument = &ran,
                                                     .cpus = &only,
                                                     .options = round % 8 ? 0 : BMI_TASK_URGENT};
            CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&task, manager, &attributes), 0);
            CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
            CU_ASSERT_TRUE(test_reaches(&ran, ++expected));
            CU_ASSERT_EQUAL(bmi_task_wait(&task, 20000), 0);
        }
    }
    CU_ASSERT_EQUAL(atomic_load(&manager->live_workers), (unsigned)workers); /* none retires */
    bmi_task_manager_destroy(manager);
    may_not_bind = false;
}

/* ---- properties that a thread inherits from its starter -------------------------------------- */

struct setting {
    struct bmi_task_manager *manager;
    int cpus, nice; /* as the task finds them */
};

static enum bmi_task_status look(struct bmi_task *task, void *argument)
{
    struct setting *setting = argument;
    cpu_set_t mask;
    (void)task;
    CPU_ZERO(&mask);
    sched_getaffinity(0, sizeof(mask), &mask);
    setting->cpus = CPU_COUNT(&mask);
    setting->nice = getpriority(PRIO_PROCESS, 0);
    return BMI_TASK_DONE;
}

/* Bound to one CPU, and with a higher nice value than others. */
static void *submit_apart(void *argument)
{
    struct setting *setting = argument;
    struct bmi_task_attributes attributes = {.function = look,
                                             .argument = setting,
                                             .options = BMI_TASK_MAY_BLOCK};
    struct bmi_task task;
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET((size_t)sched_getcpu(), &mask);
    CU_ASSERT_EQUAL(sched_setaffinity(0, sizeof(mask), &mask), 0);
    CU_ASSERT_EQUAL(setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 2), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&task, setting->manager, &attributes), 0);
    CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, 20000), 0);
    return NULL;
}

/* A task that may run anywhere does so, independent of the thread that started its thread; the nice
 * value stays. */
static void test_starter_is_bound_and_nice(void)
{
    struct setting setting = {.manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY)};
    int nice = getpriority(PRIO_PROCESS, 0);
    pthread_t starter;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&starter, NULL, submit_apart, &setting), 0);
    pthread_join(starter, NULL);
    CU_ASSERT_EQUAL(setting.cpus, bmi_task_cpus(setting.manager, NULL));
    CU_ASSERT_EQUAL(setting.nice, nice + 2 < 19 ? nice + 2 : 19);
    bmi_task_manager_destroy(setting.manager);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"a task that was prepared before", test_prepared_before},
        {"a task that is prepared after", test_prepared_after},
        {"none at all", test_none},
        {"one that goes first", test_first},
        {"a worker begins before it is counted", test_worker_begins},
        {"threads that may not be bound", test_may_not_bind},
        {"the thread that starts another one is bound and nice", test_starter_is_bound_and_nice},
        CU_TEST_INFO_NULL,
    };
    return test_run("threads that start", tests);
}
