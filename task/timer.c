/* SPDX-License-Identifier: BSD-3-Clause
 *
 * timer.c - the thread that queues repeating tasks when their interval is over (delay.c), and keeps
 * a program that never blocks from starving tasks. It runs with the workers, and where a task with
 * an interval was prepared. It sleeps while no task is queued or delayed.
 *
 * The first submit arms it; then it checks the occupied nodes once a tick. A task is due if it was
 * queued a tick ago and still is: queues are first in, first out, so that is true if fewer tasks
 * were popped since than had been queued. For a node with a due task the timer first wakes one more
 * sleeping worker. If none sleeps, or a tick later, the helper of one of the node's CPUs runs a
 * round, for a bounded time. Only this thread accesses the members `timer` of nodes.
 */
#include "task/internal.h"

#define QUIET_TICKS 4 /* ticks that it goes on for after the last queued task */

void bmi__timer_arm(struct bmi_task_manager *manager)
{
    if (!atomic_load(&manager->timer_armed) && !atomic_exchange(&manager->timer_armed, true))
        bmi__event_post(&manager->timer_event);
}

/* Records a node's counts; returns whether a task of the last tick is still there. */
static bool node_due(struct bmi__task_node *node, const struct bmi_cpuset **only)
{
    struct bmi__queue_counts counts;
    bmi__node_counts(node, &counts);
    int64_t ran = (int64_t)(counts.popped - node->timer.popped); /* < 0: a search goes on */
    bool due = ran < (int64_t)node->timer.queued;
    node->timer.popped = counts.popped;
    node->timer.queued = counts.pushed > counts.popped ? counts.pushed - counts.popped : 0;

    *only = NULL;
    if (bmi__affinity_empty(&node->affinity)) {
        node->timer.affinity_queued = 0;
        return due;
    }
    /* not first in, first out for every CPU; but the first one is the oldest */
    const struct bmi_cpuset *first;
    uint64_t heads = bmi__affinity_heads(&node->affinity, &first);
    bool stuck = node->timer.affinity_queued && heads == node->timer.affinity_heads;
    node->timer.affinity_heads = heads;
    node->timer.affinity_queued = !bmi__affinity_empty(&node->affinity);
    if (stuck && !due)
        *only = first;
    return due || stuck;
}

static void node_forget(struct bmi__task_node *node)
{
    node->timer.queued = 0;
    node->timer.affinity_queued = 0;
    node->timer.warned = false;
}

/* One CPU of a node after the other, of those that are served and in `only`. */
static uint32_t node_next_cpu(struct bmi_task_manager *manager, struct bmi__task_node *node,
                              const struct bmi_cpuset *only)
{
    struct bmi_cpuset served;
    const struct bmi__topology_node *shape =
        atomic_load(&node->live) ? node->shape : manager->nodes[0].shape;
    bmi__served(manager, &served);
    for (uint32_t i = 0; i < shape->count; i++) {
        uint32_t cpu = shape->first + (node->timer.next_cpu++ % shape->count);
        if (bmi_cpuset_has(&served, (int)cpu) && (only == NULL || bmi_cpuset_has(only, (int)cpu)))
            return cpu;
    }
    return BMI__NO_CPU;
}

/* A CPU that fell idle before these tasks were submitted did not see them: wakes the nearest one,
 * once for each change of the groups. */
static void others_look(struct bmi_task_manager *manager, struct bmi__task_node *node)
{
    uint64_t changes = atomic_load(&manager->group_changes);
    if (changes == node->timer.group_changes || bmi__affinity_empty(&node->affinity))
        return;
    node->timer.group_changes = changes;
    bmi__wake_one(manager, &manager->nodes[0], NULL, node->shape->first);
}

static void node_help(struct bmi_task_manager *manager, struct bmi__task_node *node,
                      const struct bmi_cpuset *only)
{
    const struct bmi__task_node *from = atomic_load(&node->live) ? node : &manager->nodes[0];
    if (!node->timer.warned && bmi__wake_one(manager, from, only, bmi__cpu_self(manager))) {
        node->timer.warned = true;
        return;
    }
    others_look(manager, node);
    uint32_t cpu = node_next_cpu(manager, node, only);
    if (cpu == BMI__NO_CPU)
        cpu = node_next_cpu(manager, node, NULL);
    if (cpu != BMI__NO_CPU)
        bmi__helper_kick(&manager->cpus[cpu]);
}

/* Checks every node once. Returns whether any has a task. */
static bool tick(struct bmi_task_manager *manager)
{
    bool any = false;
    for (uint32_t i = 0; i < manager->topology.node_count; i++) {
        struct bmi__task_node *node = &manager->nodes[i];
        const struct bmi_cpuset *only;
        if (!bmi__bit_get(manager->occupied, i) || bmi__node_settle(manager, node)) {
            node_forget(node);
            continue;
        }
        any = true;
        if (node_due(node, &only))
            node_help(manager, node, only);
        else
            node->timer.warned = false;
    }
    return any;
}

/* Checks the nodes if the time for that has come: `tick_ns`, 0 while no check is due. Returns the
 * time of the next check. */
static uint64_t ticks(struct bmi_task_manager *manager, uint64_t tick_ns, unsigned *quiet)
{
    uint64_t now_ns = bmi__now_ns();
    uint64_t next_ns = now_ns + (uint64_t)manager->settings.timer_us * 1000;
    if (tick_ns == 0) {
        *quiet = 0;
        return atomic_load(&manager->timer_armed) ? next_ns : 0;
    }
    if (now_ns < tick_ns)
        return tick_ns;
    *quiet = tick(manager) ? 0 : *quiet + 1;
    if (*quiet < QUIET_TICKS)
        return next_ns;
    atomic_store(&manager->timer_armed, false);
    if (!tick(manager))
        return 0;
    atomic_store(&manager->timer_armed, true); /* that task's submit saw the timer still armed */
    *quiet = 0;
    return next_ns;
}

static void *timer_main(void *argument)
{
    struct bmi_task_manager *manager = argument;
    uint64_t tick_ns = 0;
    unsigned quiet = 0;
    bmi__thread_raise(!manager->settings.no_realtime);
    bmi__thread_is_of(manager); /* it may end tasks as cancelled */
    for (;;) {
        uint64_t until_ns = atomic_load(&manager->delayed_ns);
        if (tick_ns != 0 && tick_ns < until_ns)
            until_ns = tick_ns;
        bmi__event_wait(&manager->timer_event, until_ns != UINT64_MAX ? until_ns : 0);
        if (atomic_load(&manager->timer_stopping))
            return NULL;
        struct bmi_task *task;
        uint64_t now_ns = bmi__now_ns();
        while ((task = bmi__delayed_pop(manager, now_ns)) != NULL)
            bmi__task_queue(manager, task);
        tick_ns = ticks(manager, tick_ns, &quiet);
    }
}

static int timer_start_locked(struct bmi_task_manager *manager)
{
    if (manager->timer_running)
        return 0;
    atomic_store(&manager->timer_stopping, false);
    atomic_store(&manager->timer_armed, false);
    int result = bmi__thread_start(&manager->timer, timer_main, manager, -1, "bmi-timer", 0);
    manager->timer_running = result == 0;
    return result;
}

int bmi__timer_start(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->making);
    int result = timer_start_locked(manager);
    pthread_mutex_unlock(&manager->making);
    if (result == 0)
        bmi__timer_arm(manager); /* tasks may be queued from before */
    return result;
}

int bmi__timer_need(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->making);
    int result = manager->helpers_open ? timer_start_locked(manager) : 0;
    manager->timer_wanted = manager->timer_wanted || result == 0;
    pthread_mutex_unlock(&manager->making);
    return result;
}

int bmi__timer_open(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->making);
    int result = manager->timer_wanted ? timer_start_locked(manager) : 0;
    pthread_mutex_unlock(&manager->making);
    return result;
}

/* `making` is not held while the thread is joined: it may start a thread for a task. */
void bmi__timer_stop(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->making);
    bool running = manager->timer_running;
    pthread_mutex_unlock(&manager->making);
    if (!running)
        return;
    atomic_store(&manager->timer_stopping, true);
    bmi__event_post(&manager->timer_event);
    pthread_join(manager->timer, NULL);
    pthread_mutex_lock(&manager->making);
    manager->timer_running = false;
    pthread_mutex_unlock(&manager->making);
}
