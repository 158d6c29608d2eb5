/* SPDX-License-Identifier: BSD-3-Clause
 *
 * measure.c - how long an urgent task takes to start on a CPU that computes: by the real-time
 * helper, the normal one, and a signal to the computing thread. `bmi-bench tasks` measures the cost
 * of other tasks. Not installed; built from the task manager's files alone.
 */
#include "bmi/task.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

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

static void bind_to(int cpu)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET((size_t)cpu, &mask);
    sched_setaffinity(0, sizeof(mask), &mask);
}

static struct bmi_task_manager *manager_open(bool no_realtime)
{
    struct bmi_task_manager *manager;
    char error[256];
    struct bmi_task_settings settings = {.no_realtime = no_realtime};
    if (bmi_task_manager_create(&settings, &manager, error, sizeof(error)) != 0 ||
        bmi_task_manager_start(manager, BMI_TASK_HOOKS_ONLY) != 0) {
        fprintf(stderr, "task-measure: %s\n", error);
        exit(1);
    }
    return manager;
}

static _Atomic(uint64_t) started_ns;
static atomic_bool computing_ends;

static enum bmi_task_status note_start(struct bmi_task *task, void *argument)
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
    struct bmi_task_manager *real = manager_open(false);
    struct bmi_task_manager *normal = manager_open(true);
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

int main(void)
{
    measure_urgent();
    return 0;
}
