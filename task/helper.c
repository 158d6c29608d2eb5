/* SPDX-License-Identifier: BSD-3-Clause
 *
 * helper.c - the threads that run tasks on a CPU that computes: urgent ones, and due ones for the
 * timer. There is one for each CPU that needs it, bound to it, asleep otherwise. It is real-time at
 * the lowest priority where the process may use that, else a normal thread with a short slice. (A
 * signal to the thread that computes would be no faster, would need to find that thread, and its
 * handler could run no code that takes a lock: docs/tasks.md has the figures.)
 *
 * `making` of the manager guards `wanted` and `started`. It is not held while a thread is joined: a
 * task may prepare another one in the meantime.
 */
#include "task/internal.h"

static void *helper_main(void *argument)
{
    struct bmi__task_cpu *cpu = argument;
    struct bmi_task_manager *manager = cpu->manager;
    bmi__thread_raise(!manager->settings.no_realtime);
    bmi__thread_is_of(manager);
    bmi__helper_is(cpu);
    while (!atomic_load(&manager->helpers_stopping)) {
        struct bmi_task *task = bmi__urgent_pop(cpu);
        bool due = atomic_exchange(&cpu->helper.due, false);
        if (task != NULL)
            bmi__task_run(manager, task);
        if (due) {
            uint64_t budget_ns = (uint64_t)manager->settings.timer_budget_us * 1000;
            bmi__schedule(manager, cpu->index, bmi__now_ns() + budget_ns);
        }
        if (task == NULL && !due)
            bmi__event_wait(&cpu->helper.event, 0);
    }
    return NULL;
}

static int helper_start_locked(struct bmi__task_cpu *cpu)
{
    struct bmi_task_manager *manager = cpu->manager;
    if (!manager->helpers_open || cpu->helper.started)
        return 0;
    int os = manager->topology.this_system ? cpu->os : -1;
    int result = bmi__thread_start(&cpu->helper.thread, helper_main, cpu, os, "bmi-helper",
                                   (uint32_t)cpu->os);
    if (result != 0 && os >= 0) /* the CPU is lost: elsewhere, then */
        result = bmi__thread_start(&cpu->helper.thread, helper_main, cpu, -1, "bmi-helper",
                                   (uint32_t)cpu->os);
    cpu->helper.started = result == 0;
    return result;
}

int bmi__helper_need(struct bmi__task_cpu *cpu)
{
    pthread_mutex_lock(&cpu->manager->making);
    int result = helper_start_locked(cpu);
    cpu->helper.wanted = cpu->helper.wanted || result == 0;
    pthread_mutex_unlock(&cpu->manager->making);
    return result;
}

void bmi__helper_kick(struct bmi__task_cpu *cpu)
{
    if (bmi__helper_need(cpu) != 0)
        return; /* the timer tries again */
    atomic_store(&cpu->helper.due, true);
    bmi__event_post(&cpu->helper.event);
}

void bmi__helper_deep(struct bmi__task_cpu *cpu, bool deep)
{
    atomic_store(&cpu->helper.deep, deep);
    if (deep) /* it notes that it sleeps, then looks whether this is so */
        bmi__worker_rouse(cpu);
}

int bmi__helpers_start(struct bmi_task_manager *manager)
{
    int result = 0;
    pthread_mutex_lock(&manager->making);
    atomic_store(&manager->helpers_stopping, false);
    manager->helpers_open = true;
    for (uint32_t i = 0; i < manager->topology.cpu_count && result == 0; i++) {
        if (manager->cpus[i].helper.wanted)
            result = helper_start_locked(&manager->cpus[i]);
    }
    pthread_mutex_unlock(&manager->making);
    if (result != 0)
        bmi__helpers_stop(manager);
    return result;
}

void bmi__helpers_stop(struct bmi_task_manager *manager)
{
    bmi__checked_lock_waits(&manager->control);
    pthread_mutex_lock(&manager->making);
    manager->helpers_open = false; /* from here on only this function changes `started` */
    pthread_mutex_unlock(&manager->making);
    atomic_store(&manager->helpers_stopping, true);
    for (uint32_t i = 0; i < manager->topology.cpu_count; i++) {
        struct bmi__helper *helper = &manager->cpus[i].helper;
        if (!helper->started)
            continue;
        bmi__event_post(&helper->event);
        pthread_join(helper->thread, NULL);
        helper->started = false;
    }
}
