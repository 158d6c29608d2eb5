/* SPDX-License-Identifier: BSD-3-Clause
 *
 * measure.c - what the task manager costs on this machine; not installed. Rounds are short and
 * interleaved, so that both queues see the same machine; a figure is the lower quartile of its
 * rounds, since whatever else the machine does only ever adds.
 *   measure own        submit, run, see it done, on the own CPU: each level of the live tree
 *   measure other      the same with another CPU running it, beside a cache line's round trip
 *   measure threads    N threads on one queue: all levels of a tree, 1 to 16 threads
 *   measure urgent     until a task starts on a CPU that computes: real-time helper, normal helper,
 *                      signal
 */
#include "bmi/task.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 41

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quartile(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare);
    return values[count / 4];
}

static void bind_to(int cpu)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET((size_t)cpu, &mask);
    sched_setaffinity(0, sizeof(mask), &mask);
}

static cpu_set_t at_start; /* the mask that the program was started with */

/* The CPU for thread `index`: one after the other of those that the program may use. */
static int start_cpu(int index)
{
    int left = index % CPU_COUNT(&at_start);
    for (int cpu = 0;; cpu++) {
        if (CPU_ISSET((size_t)cpu, &at_start) && left-- == 0)
            return cpu;
    }
}

static struct bmi_task_manager *manager_open(enum bmi_task_queue_kind kind, const char *synthetic,
                                             enum bmi_task_threads threads, bool no_realtime)
{
    struct bmi_task_manager *manager;
    char error[256];
    struct bmi_task_settings settings = {
        .queue = kind,
        .topology = synthetic ? BMI_TASK_TOPOLOGY_SYNTHETIC : BMI_TASK_TOPOLOGY_LIVE,
        .topology_text = synthetic,
        .no_realtime = no_realtime,
    };
    if (bmi_task_manager_create(&settings, &manager, error, sizeof(error)) != 0 ||
        bmi_task_manager_start(manager, threads) != 0) {
        fprintf(stderr, "measure: %s\n", error);
        exit(1);
    }
    return manager;
}

static enum bmi_task_verdict nothing(struct bmi_task *task, void *argument)
{
    (void)task;
    (void)argument;
    return BMI_TASK_DONE;
}

static void task_make(struct bmi_task *task, struct bmi_task_manager *manager,
                      const struct bmi_cpuset *cpus)
{
    struct bmi_task_attributes attributes = {.function = nothing, .cpus = cpus};
    if (bmi_task_prepare(task, manager, &attributes) != 0)
        exit(1);
}

/* ---- own ---- */

/* cpu -1: the one that this thread is on, as a hook finds it. */
static double own_once(struct bmi_task_manager *manager, const struct bmi_cpuset *cpus, int cpu)
{
    enum { TIMES = 5000 };
    struct bmi_task task;
    task_make(&task, manager, cpus);
    uint64_t start = now_ns();
    for (int i = 0; i < TIMES; i++) {
        bmi_task_submit(&task);
        while (bmi_task_state(&task) != BMI_TASK_ENDED) {
            if (cpu < 0)
                bmi_task_schedule(manager);
            else
                bmi_task_schedule_on(manager, cpu);
        }
    }
    return (double)(now_ns() - start) / TIMES;
}

static void measure_own(const char *synthetic, enum bmi_task_threads threads)
{
    struct bmi_task_manager *managers[2] = {
        manager_open(BMI_TASK_QUEUE_LOCK_FREE, synthetic, threads, false),
        manager_open(BMI_TASK_QUEUE_SPINLOCK, synthetic, threads, false),
    };
    struct bmi_cpuset all;
    bmi_task_cpus(managers[0], &all);
    int cpu = bmi_cpuset_next(&all, 0);
    bind_to(cpu);
    printf("own CPU, %s tree, %s: ns from submit to seen done\n", synthetic ? synthetic : "live",
           threads == BMI_TASK_WORKERS ? "with workers" : "hooks only");
    for (int queue = bmi_task_queue_count(managers[0]) - 1; queue >= 0; queue--) {
        struct bmi_task_queue_statistics statistics;
        double values[2][ROUNDS];
        bmi_task_queue_statistics(managers[0], queue, &statistics);
        if (!bmi_cpuset_has(&statistics.cpus, cpu))
            continue;
        for (int round = 0; round < ROUNDS; round++) {
            for (int kind = 0; kind < 2; kind++)
                values[kind][round] =
                    own_once(managers[kind], &statistics.cpus, synthetic ? cpu : -1);
        }
        printf("  %-36s lock-free %6.1f  spinlock %6.1f\n", statistics.name,
               quartile(values[0], ROUNDS), quartile(values[1], ROUNDS));
    }
    bmi_task_manager_destroy(managers[0]);
    bmi_task_manager_destroy(managers[1]);
    sched_setaffinity(0, sizeof(at_start), &at_start);
}

/* ---- other ---- */

struct other {
    struct bmi_task_manager *manager;
    int cpu;
    atomic_bool stop;
    _Alignas(64) atomic_uint ball;
};

static void *other_main(void *argument)
{
    struct other *other = argument;
    bind_to(other->cpu);
    while (!atomic_load_explicit(&other->stop, memory_order_relaxed)) {
        if (other->manager != NULL) {
            bmi_task_schedule_on(other->manager, other->cpu);
        } else if (atomic_load_explicit(&other->ball, memory_order_acquire) == 1) {
            atomic_store_explicit(&other->ball, 0, memory_order_release);
        }
    }
    return NULL;
}

/* One round trip of a cache line (no manager), or of a task. */
static double other_once(struct bmi_task_manager *manager, int cpu, const struct bmi_cpuset *cpus)
{
    enum { TIMES = 2000 };
    struct other other = {.manager = manager, .cpu = cpu};
    struct bmi_task task;
    pthread_t thread;
    pthread_create(&thread, NULL, other_main, &other);
    if (manager != NULL)
        task_make(&task, manager, cpus);
    uint64_t start = 0;
    for (int i = -200; i < TIMES; i++) {
        if (i == 0)
            start = now_ns();
        if (manager != NULL) {
            bmi_task_submit(&task);
            while (bmi_task_state(&task) != BMI_TASK_ENDED)
                continue;
        } else {
            atomic_store_explicit(&other.ball, 1, memory_order_release);
            while (atomic_load_explicit(&other.ball, memory_order_acquire) == 1)
                continue;
        }
    }
    double each = (double)(now_ns() - start) / TIMES;
    atomic_store(&other.stop, true);
    pthread_join(thread, NULL);
    return each;
}

static void measure_other(void)
{
    struct bmi_task_manager *managers[2] = {
        manager_open(BMI_TASK_QUEUE_LOCK_FREE, NULL, BMI_TASK_HOOKS_ONLY, false),
        manager_open(BMI_TASK_QUEUE_SPINLOCK, NULL, BMI_TASK_HOOKS_ONLY, false),
    };
    struct bmi_cpuset all;
    bmi_task_cpus(managers[0], &all);
    int cpu = bmi_cpuset_next(&all, 0);
    int far = bmi_cpuset_next(&all, cpu + 1);
    bind_to(cpu);
    for (; far >= 0; far = bmi_cpuset_next(&all, far + 1)) {
        double values[3][ROUNDS];
        struct bmi_cpuset only;
        bmi_cpuset_clear(&only);
        bmi_cpuset_add(&only, far);
        for (int round = 0; round < ROUNDS; round++) {
            values[0][round] = other_once(managers[0], far, &only);
            values[1][round] = other_once(managers[1], far, &only);
            values[2][round] = other_once(NULL, far, NULL);
        }
        double line = quartile(values[2], ROUNDS);
        double free_ns = quartile(values[0], ROUNDS), spin_ns = quartile(values[1], ROUNDS);
        printf(
            "CPU %d to %d: cache line %.1f ns, lock-free %.1f (%.2f x), spinlock %.1f (%.2f x)\n",
            cpu, far, line, free_ns, free_ns / line, spin_ns, spin_ns / line);
    }
    bmi_task_manager_destroy(managers[0]);
    bmi_task_manager_destroy(managers[1]);
}

/* ---- threads ---- */

struct crowd {
    struct bmi_task_manager *manager;
    const struct bmi_cpuset *cpus;
    pthread_barrier_t barrier;
    int each;
};

struct member {
    struct crowd *crowd;
    int cpu; /* of the tree */
    int on;  /* where it really runs */
    uint64_t from_ns, to_ns;
    pthread_t thread;
};

static void *member_main(void *argument)
{
    enum { TASKS = 8 };
    struct member *member = argument;
    struct crowd *crowd = member->crowd;
    bind_to(member->on);
    struct bmi_task tasks[TASKS];
    for (int i = 0; i < TASKS; i++)
        task_make(&tasks[i], crowd->manager, crowd->cpus);
    pthread_barrier_wait(&crowd->barrier);
    member->from_ns = now_ns();
    for (int done = 0; done < crowd->each; done += TASKS) {
        for (int i = 0; i < TASKS; i++)
            bmi_task_submit(&tasks[i]);
        for (int i = 0; i < TASKS; i++) {
            while (bmi_task_state(&tasks[i]) != BMI_TASK_ENDED) {
                if (bmi_task_schedule_on(crowd->manager, member->cpu) == 0)
                    sched_yield();
            }
        }
    }
    member->to_ns = now_ns();
    return NULL;
}

static double crowd_once(struct bmi_task_manager *manager, const struct bmi_cpuset *cpus,
                         int threads)
{
    struct crowd crowd = {.manager = manager, .cpus = cpus, .each = 32000 / threads / 8 * 8};
    struct member members[16];
    int cpu = bmi_cpuset_next(cpus, 0);
    pthread_barrier_init(&crowd.barrier, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        members[i] = (struct member){.crowd = &crowd, .cpu = cpu, .on = start_cpu(i)};
        pthread_create(&members[i].thread, NULL, member_main, &members[i]);
        cpu = bmi_cpuset_next(cpus, cpu + 1);
        if (cpu < 0)
            cpu = bmi_cpuset_next(cpus, 0);
    }
    uint64_t from_ns = UINT64_MAX, to_ns = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(members[i].thread, NULL);
        from_ns = members[i].from_ns < from_ns ? members[i].from_ns : from_ns;
        to_ns = members[i].to_ns > to_ns ? members[i].to_ns : to_ns;
    }
    pthread_barrier_destroy(&crowd.barrier);
    return (double)(to_ns - from_ns) / (crowd.each * threads);
}

static void measure_threads(const char *synthetic)
{
    static const int counts[] = {1, 2, 4, 8, 16};
    struct bmi_task_manager *managers[2] = {
        manager_open(BMI_TASK_QUEUE_LOCK_FREE, synthetic, BMI_TASK_HOOKS_ONLY, false),
        manager_open(BMI_TASK_QUEUE_SPINLOCK, synthetic, BMI_TASK_HOOKS_ONLY, false),
    };
    printf("threads on one queue of %s: ns a task\n", synthetic);
    for (int queue = bmi_task_queue_count(managers[0]) - 1; queue >= 0; queue--) {
        struct bmi_task_queue_statistics statistics;
        bmi_task_queue_statistics(managers[0], queue, &statistics);
        if (!bmi_cpuset_has(&statistics.cpus, 0))
            continue;
        for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
            double values[2][ROUNDS];
            for (int round = 0; round < ROUNDS; round++) {
                for (int kind = 0; kind < 2; kind++)
                    values[kind][round] = crowd_once(managers[kind], &statistics.cpus, counts[i]);
            }
            double free_ns = quartile(values[0], ROUNDS), spin_ns = quartile(values[1], ROUNDS);
            printf("  %-28s %2d threads: lock-free %7.1f  spinlock %7.1f  ratio %.2f\n",
                   statistics.name, counts[i], free_ns, spin_ns, free_ns / spin_ns);
        }
    }
    bmi_task_manager_destroy(managers[0]);
    bmi_task_manager_destroy(managers[1]);
}

/* ---- urgent ---- */

static _Atomic(uint64_t) started_ns;
static atomic_bool computing_ends;

static enum bmi_task_verdict note_start(struct bmi_task *task, void *argument)
{
    (void)task;
    (void)argument;
    atomic_store(&started_ns, now_ns());
    return BMI_TASK_DONE;
}

static void note_signal(int number)
{
    (void)number;
    atomic_store(&started_ns, now_ns());
}

static void *compute(void *argument)
{
    bind_to(*(const int *)argument);
    while (!atomic_load_explicit(&computing_ends, memory_order_relaxed))
        continue;
    return NULL;
}

static void urgent_way(const char *name, struct bmi_task_manager *manager, pthread_t computing,
                       const struct bmi_cpuset *cpus)
{
    enum { TIMES = 101 };
    double values[TIMES];
    struct bmi_task task;
    struct bmi_task_attributes attributes = {
        .function = note_start,
        .cpus = cpus,
        .options = BMI_TASK_URGENT,
    };
    if (manager != NULL && bmi_task_prepare(&task, manager, &attributes) != 0)
        exit(1);
    for (int i = 0; i < TIMES; i++) {
        const struct timespec gap = {.tv_nsec = 3000000};
        nanosleep(&gap, NULL);
        atomic_store(&started_ns, 0);
        uint64_t start = now_ns();
        if (manager != NULL)
            bmi_task_submit(&task);
        else
            pthread_kill(computing, SIGUSR1);
        while (atomic_load(&started_ns) == 0)
            continue;
        values[i] = (double)(atomic_load(&started_ns) - start) / 1000;
    }
    qsort(values, TIMES, sizeof(*values), compare);
    printf("  %-18s median %7.1f us, 9 in 10 within %7.1f, worst %7.1f\n", name, values[TIMES / 2],
           values[TIMES * 9 / 10], values[TIMES - 1]);
}

static void measure_urgent(void)
{
    struct bmi_task_manager *real =
        manager_open(BMI_TASK_QUEUE_LOCK_FREE, NULL, BMI_TASK_HOOKS_ONLY, false);
    struct bmi_task_manager *normal =
        manager_open(BMI_TASK_QUEUE_LOCK_FREE, NULL, BMI_TASK_HOOKS_ONLY, true);
    struct bmi_cpuset all, only;
    bmi_task_cpus(real, &all);
    int cpu = bmi_cpuset_next(&all, 0);
    int far = bmi_cpuset_next(&all, cpu + 1);
    if (far < 0) {
        printf("urgent: needs two CPUs\n");
        return;
    }
    bind_to(cpu);
    bmi_cpuset_clear(&only);
    bmi_cpuset_add(&only, far);
    signal(SIGUSR1, note_signal);
    pthread_t computing;
    pthread_create(&computing, NULL, compute, &far);
    printf("from submit to start on CPU %d, which computes:\n", far);
    urgent_way("real-time helper", real, computing, &only);
    urgent_way("normal helper", normal, computing, &only);
    urgent_way("signal", NULL, computing, &only);
    atomic_store(&computing_ends, true);
    pthread_join(computing, NULL);
    bmi_task_manager_destroy(real);
    bmi_task_manager_destroy(normal);
}

int main(int count, char **arguments)
{
    const char *what = count > 1 ? arguments[1] : "";
    sched_getaffinity(0, sizeof(at_start), &at_start);
    if (strcmp(what, "own") == 0) {
        measure_own(NULL, BMI_TASK_WORKERS);
        measure_own(NULL, BMI_TASK_HOOKS_ONLY);
        measure_own("package:8 l3:1 core:32 pu:1", BMI_TASK_HOOKS_ONLY);
    } else if (strcmp(what, "other") == 0) {
        measure_other();
    } else if (strcmp(what, "threads") == 0) {
        measure_threads("package:2 l3:2 core:4 pu:1");
    } else if (strcmp(what, "urgent") == 0) {
        measure_urgent();
    } else {
        fprintf(stderr, "usage: measure own|other|threads|urgent\n");
        return 2;
    }
    return 0;
}
