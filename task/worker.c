/* SPDX-License-Identifier: BSD-3-Clause
 *
 * worker.c - the threads that run tasks in the background: one for each CPU, bound to it; asleep
 * while there is no task. wake.c explains why no wake-up is lost.
 *
 * The kernel schedules workers as SCHED_BATCH unless a setting says otherwise. Such a worker starts
 * at once on an idle CPU. On a busy one it does not interrupt the thread that computes, but takes
 * turns with it, so that a task that it has begun gets a fair share of the CPU until its end.
 *
 * A process may lose a CPU (a cgroup's CPU set or an affinity mask shrinks): the kernel then moves
 * the worker elsewhere. A worker that finds itself on another CPU binds itself again. If its mask
 * lacks the CPU, or the kernel refuses, it retires: its CPU's nodes count as unserved, unless
 * another worker serves them, and every worker checks unserved nodes too. The last worker stays,
 * unbound.
 */
#include "task/internal.h"

#include <sched.h>

#define SLOW_NS 500000        /* a worker that runs this long after its wake-up: the CPU is busy */
#define SLOW_FACTOR 20        /* the CPU counts as busy for so many times the delay */
#define SLOW_MAX_NS 100000000 /* but no longer than that */

/* ---- lost CPUs ---- */

static bool worker_keeps_cpu(const struct bmi__task_cpu *cpu)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    if (sched_getaffinity(0, sizeof(mask), &mask) != 0 || !CPU_ISSET((size_t)cpu->os, &mask))
        return false;
    CPU_ZERO(&mask);
    CPU_SET((size_t)cpu->os, &mask);
    return sched_setaffinity(0, sizeof(mask), &mask) == 0;
}

/* Ends the service of a lost CPU. Returns false if it must go on as the last worker. */
static bool worker_retire(struct bmi__task_cpu *cpu)
{
    struct bmi_task_manager *manager = cpu->manager;
    pthread_mutex_lock(&manager->serving);
    bool last = atomic_load(&manager->live_workers) == 1;
    if (!last)
        bmi__manager_serve_locked(manager, cpu->index, false);
    pthread_mutex_unlock(&manager->serving);
    if (last)
        cpu->worker.roaming = true;
    else
        bmi__wake_all(manager); /* they have more queues to check now */
    return !last;
}

/* Returns false if the worker must end. */
static bool worker_in_place(struct bmi__task_cpu *cpu)
{
    if (!cpu->manager->topology.this_system || cpu->worker.roaming || sched_getcpu() == cpu->os)
        return true;
    return worker_keeps_cpu(cpu) || !worker_retire(cpu);
}

/* ---- sleeping ---- */

static void note_delay(struct bmi__worker *worker)
{
    uint64_t woken = atomic_exchange_explicit(&worker->woken_ns, 0, memory_order_relaxed);
    uint64_t now = bmi__now_ns();
    if (woken == 0 || now < woken + SLOW_NS)
        return;
    uint64_t avoid = (now - woken) * SLOW_FACTOR;
    atomic_store_explicit(&worker->slow_until_ns, now + (avoid < SLOW_MAX_NS ? avoid : SLOW_MAX_NS),
                          memory_order_relaxed);
}

static void worker_sleep(struct bmi__task_cpu *cpu)
{
    struct bmi_task_manager *manager = cpu->manager;
    struct bmi__worker *worker = &cpu->worker;
    atomic_store(&worker->asleep, 1);
    bmi__bit_set(manager->idle, cpu->index);
    if (!bmi__schedule_has(manager, cpu->index) && !atomic_load(&manager->workers_stopping)) {
        while (atomic_load(&worker->asleep) == 1)
            bmi__futex_wait(&worker->asleep, 1, 0);
        note_delay(worker);
    }
    bmi__bit_clear(manager->idle, cpu->index);
    atomic_store(&worker->asleep, 0);
}

void bmi__worker_nap(struct bmi__task_cpu *cpu, struct bmi__event *event, uint64_t deadline_ns)
{
    struct bmi_task_manager *manager = cpu->manager;
    atomic_store(&cpu->worker.asleep, 1);
    bmi__bit_set(manager->idle, cpu->index);
    if (atomic_exchange(&event->posted, 0) == 0 && !bmi__schedule_has(manager, cpu->index))
        bmi__futex_wait(&cpu->worker.asleep, 1, deadline_ns);
    bmi__bit_clear(manager->idle, cpu->index);
    atomic_store(&cpu->worker.asleep, 0);
}

void bmi__worker_rouse(struct bmi__task_cpu *cpu)
{
    if (atomic_exchange(&cpu->worker.asleep, 0) != 0)
        bmi__futex_wake(&cpu->worker.asleep);
}

static void worker_set_policy(struct bmi__worker *worker, enum bmi_task_policy policy)
{
    worker->policy = policy;
    bmi__thread_policy(policy);
}

static void *worker_main(void *argument)
{
    struct bmi__task_cpu *cpu = argument;
    struct bmi_task_manager *manager = cpu->manager;
    /* until its starter has counted it: no thread wakes it before */
    pthread_mutex_lock(&manager->serving);
    pthread_mutex_unlock(&manager->serving);
    worker_set_policy(&cpu->worker, (enum bmi_task_policy)atomic_load(&manager->policy));
    bmi__thread_is_of(manager);
    bmi__worker_is(cpu);
    while (!atomic_load(&manager->workers_stopping) && worker_in_place(cpu)) {
        int policy = atomic_load_explicit(&manager->policy, memory_order_relaxed);
        if ((int)cpu->worker.policy != policy)
            worker_set_policy(&cpu->worker, (enum bmi_task_policy)policy);
        if (bmi__schedule(manager, cpu->index, 0) == 0)
            worker_sleep(cpu);
    }
    bmi__worker_is(NULL);
    pthread_mutex_lock(&manager->serving);
    bmi__manager_serve_locked(manager, cpu->index, false);
    pthread_mutex_unlock(&manager->serving);
    /* waiting threads, and workers in tasks that wait, may have to check its queues now */
    bmi__wakers_wake(manager);
    bmi__wake_all(manager);
    return NULL;
}

/* ---- start and stop ---- */

static int worker_start_thread(struct bmi__task_cpu *cpu, bool bound)
{
    cpu->worker.roaming = !bound;
    return bmi__thread_start(&cpu->worker.thread, worker_main, cpu, bound ? cpu->os : -1,
                             "bmi-worker", (uint32_t)cpu->os);
}

/* A CPU that was lost since the topology was read is left out. Where the process may bind no
 * thread, as under a seccomp filter, the worker runs anywhere. */
static int worker_start(struct bmi_task_manager *manager, uint32_t index)
{
    struct bmi__task_cpu *cpu = &manager->cpus[index];
    pthread_mutex_lock(&manager->serving); /* it can't retire before it serves */
    int result = worker_start_thread(cpu, manager->topology.this_system);
    if (result == -BMI_EPERM || result == -BMI_EACCES || result == -BMI_ENOSYS)
        result = worker_start_thread(cpu, false);
    if (result == 0) {
        cpu->worker.started = true;
        bmi__manager_serve_locked(manager, index, true);
    }
    pthread_mutex_unlock(&manager->serving);
    return result == -BMI_EINVAL ? 0 : result;
}

int bmi__workers_start(struct bmi_task_manager *manager)
{
    int result = 0;
    atomic_store(&manager->workers_stopping, false);
    for (int i = bmi_cpuset_next(&manager->worker_cpus, 0); i >= 0 && result == 0;
         i = bmi_cpuset_next(&manager->worker_cpus, i + 1))
        result = worker_start(manager, (uint32_t)i);
    if (result == 0 && atomic_load(&manager->live_workers) == 0)
        result = -BMI_EAGAIN;
    if (result != 0)
        bmi__workers_stop(manager);
    return result;
}

void bmi__workers_stop(struct bmi_task_manager *manager)
{
    bmi__checked_lock_waits(&manager->control);
    atomic_store(&manager->workers_stopping, true);
    bmi__lot_wake_all(manager); /* waiting tasks and other waiting threads have to run the queued
                                   tasks now */
    bmi__wake_all(manager);
    for (uint32_t i = 0; i < manager->topology.cpu_count; i++) {
        struct bmi__worker *worker = &manager->cpus[i].worker;
        if (!worker->started)
            continue;
        bmi__thread_normal(worker->thread); /* its CPU may be too busy to let it end */
        pthread_join(worker->thread, NULL);
        worker->started = false;
    }
}
