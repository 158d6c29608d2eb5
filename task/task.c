/* SPDX-License-Identifier: BSD-3-Clause
 *
 * task.c - a task's life. Its state is one word: a phase and flags (internal.h), changed by atomic
 * operations only. The thread whose change succeeds has the right to the step that follows:
 *   submit  IDLE, ENDED, CANCELLED -> QUEUED, and pushes it;
 *           RUNNING -> RUNNING | AGAIN; in other states it is written back unchanged
 *   cancel  QUEUED, RUNNING -> the same | CANCEL; the task stays in its queue
 *   pop     the popping thread: QUEUED -> RUNNING, and runs it, or, with CANCEL, ends it
 *   end     the running thread: RUNNING -> ENDED, CANCELLED, or QUEUED once more
 * After the change to ENDED or CANCELLED, after a push, and after the status GONE, no thread of the
 * manager accesses the task's memory: the owner may have freed it.
 */
#include "task/group.h"
#include "task/internal.h"
#include "task/memory.h"

#include <stdlib.h>
#include <string.h>

#define KNOWN_OPTIONS (BMI_TASK_REPEAT | BMI_TASK_URGENT | BMI_TASK_MAY_BLOCK)
#define FOLLOWED 0x8000u /* the library's own: some of its memory moves to the CPU that runs it */

/* These do not go to a node's queue. */
#define SPECIAL (BMI_TASK_MAY_BLOCK | BMI_TASK_URGENT | BMI__CALLERS)

/* ---- preparing ---- */

/* Keeps one copy of each set that is no node's, until the manager ends. */
static const struct bmi_cpuset *set_intern(struct bmi_task_manager *manager,
                                           const struct bmi_cpuset *local)
{
    pthread_mutex_lock(&manager->interning);
    struct bmi__interned *entry = manager->interned;
    while (entry != NULL && memcmp(&entry->local, local, sizeof(*local)) != 0)
        entry = entry->next;
    if (entry == NULL) {
        entry = malloc(sizeof(*entry));
        if (entry != NULL) {
            *entry = (struct bmi__interned){.local = *local, .next = manager->interned};
            manager->interned = entry;
        }
    }
    pthread_mutex_unlock(&manager->interning);
    return entry != NULL ? &entry->local : NULL;
}

/* Finds the node of a task's set, and keeps the set where it is not the node's. */
static int task_place(struct bmi_task *task, const struct bmi_cpuset *cpus)
{
    struct bmi_task_manager *manager = task->manager;
    struct bmi__topology *topology = &manager->topology;
    struct bmi_cpuset local;
    if (cpus == NULL) {
        atomic_init(&task->node, &manager->nodes[0]);
        return 0;
    }
    if (bmi__topology_local(topology, cpus, &local) != 0)
        return -BMI_EINVAL;
    uint32_t first = (uint32_t)bmi_cpuset_next(&local, 0);
    uint32_t last = first;
    for (int cpu = (int)first; cpu >= 0; cpu = bmi_cpuset_next(&local, cpu + 1))
        last = (uint32_t)cpu;
    struct bmi__task_node *node = &manager->nodes[bmi__topology_cover(topology, first, last)];
    atomic_init(&task->node, node);
    if (node != manager->nodes)
        task->options |= BMI__NARROW;
    if ((uint32_t)bmi_cpuset_count(&local) == node->shape->count)
        return 0;
    task->options |= BMI__NARROW;
    task->only = set_intern(manager, &local);
    return task->only != NULL ? 0 : -BMI_ENOMEM;
}

/* Urgent tasks have a CPU: the lowest of the set, as the system counts. */
static uint32_t urgent_cpu(struct bmi_task_manager *manager, const struct bmi_cpuset *cpus)
{
    struct bmi_cpuset all;
    if (cpus == NULL) {
        bmi__topology_cpus(&manager->topology, 0, &all);
        cpus = &all;
    }
    return manager->topology.local_of[bmi_cpuset_next(cpus, 0)];
}

static int task_needs(struct bmi_task *task, const struct bmi_task_attributes *attributes)
{
    struct bmi_task_manager *manager = task->manager;
    if (task->options & BMI_TASK_URGENT) {
        task->cpu = (uint16_t)urgent_cpu(manager, attributes->cpus);
        atomic_init(&task->node, manager->cpus[task->cpu].leaf);
        return bmi__helper_need(&manager->cpus[task->cpu]);
    }
    if (task->options & BMI_TASK_MAY_BLOCK)
        return manager->settings.blocking_threads > 0 ? bmi__blocking_need(manager)
                                                      : -BMI_EOPNOTSUPP;
    return 0;
}

static uint16_t options_of(const struct bmi_task_attributes *attributes)
{
    unsigned options = attributes->options;
    for (uint32_t i = 0; attributes->hints != NULL && i < attributes->hints->count; i++) {
        if (attributes->hints->regions[i].next_touch)
            options |= FOLLOWED;
    }
    return (uint16_t)options;
}

int bmi_task_prepare(struct bmi_task *task, struct bmi_task_manager *manager,
                     const struct bmi_task_attributes *attributes)
{
    const unsigned both = BMI_TASK_URGENT | BMI_TASK_MAY_BLOCK;
    if (task == NULL || attributes == NULL || attributes->function == NULL ||
        (attributes->options & ~(unsigned)KNOWN_OPTIONS) || (attributes->options & both) == both ||
        (attributes->interval_us != 0 && !(attributes->options & BMI_TASK_REPEAT)))
        return -BMI_EINVAL;
    manager = bmi__manager(manager);
    if (manager == NULL)
        return -BMI_ENOMEM;
    struct bmi_task prepared = {
        .options = options_of(attributes),
        .function = attributes->function,
        .argument = attributes->argument,
        .manager = manager,
        .cancelled = attributes->cancelled,
        .interval_us = attributes->interval_us,
        .hints = attributes->hints,
    };
    int result = task_place(&prepared, attributes->cpus);
    if (result == 0 && attributes->interval_us != 0)
        result = bmi__timer_need(manager);
    if (result == 0)
        result = task_needs(&prepared, attributes);
    if (result == 0)
        *task = prepared;
    return result;
}

void bmi__callers_only(struct bmi_task *task)
{
    task->options |= BMI__CALLERS;
}

/* ---- submitting ---- */

void bmi__urgent_push(struct bmi__task_cpu *cpu, struct bmi_task *task)
{
    atomic_fetch_add(&cpu->urgent_queued, 1);
    bmi__queue_push(cpu->urgent, task);
}

/* Wakes the threads that may run a task pushed to a node. `again`: by its runner, after a run. */
static inline void enqueued(struct bmi_task_manager *manager, struct bmi__task_node *node,
                            const struct bmi_cpuset *only, bool again)
{
    if (!bmi__bit_get(manager->occupied, node->index))
        bmi__bit_set(manager->occupied, node->index);
    if (!again || !bmi__runner_returns(manager, node, only))
        bmi__wake_for(manager, node, only);
}

/* Queues a task that has options or a group, or whose set is not exactly a node's. It is kept out
 * of line, since its registers would slow down every other caller. */
static __attribute__((noinline)) void enqueue_special(struct bmi_task_manager *manager,
                                                      struct bmi_task *task, bool again)
{
    struct bmi__task_node *node = atomic_load_explicit(&task->node, memory_order_relaxed);
    const struct bmi_cpuset *only = task->only;
    if (task->options & BMI__CALLERS) {
        bmi__queue_push(manager->callers, task);
        if (atomic_load(&manager->waker_count) != 0)
            bmi__wakers_wake(manager);
    } else if (task->options & BMI_TASK_MAY_BLOCK) {
        bmi__blocking_submit(manager, task);
    } else if (task->options & BMI_TASK_URGENT) {
        struct bmi__task_cpu *cpu = &manager->cpus[task->cpu];
        bmi__urgent_push(cpu, task);
        bmi__event_post(&cpu->helper.event);
    } else {
        if (task->group != NULL) {
            node = bmi__group_node(task);
            atomic_store_explicit(&task->node, node, memory_order_relaxed);
        }
        bmi__affinity_push(&node->affinity, task);
        enqueued(manager, node, only, again);
    }
}

/* Queues a QUEUED task, which the caller no longer owns then. */
static void task_enqueue(struct bmi_task_manager *manager, struct bmi_task *task, bool again)
{
    if (task->only != NULL || task->group != NULL || (task->options & SPECIAL)) {
        enqueue_special(manager, task, again);
    } else {
        struct bmi__task_node *node = atomic_load_explicit(&task->node, memory_order_relaxed);
        bmi__queue_push(node->queue, task);
        enqueued(manager, node, NULL, again);
    }
    if (atomic_load(&manager->closed))
        bmi__manager_cancel_queued(manager);
}

void bmi__task_queue(struct bmi_task_manager *manager, struct bmi_task *task)
{
    task_enqueue(manager, task, false);
}

void bmi__task_put_back(struct bmi_task_manager *manager, struct bmi_task *task)
{
    if (task->only == NULL && task->group == NULL && !(task->options & SPECIAL))
        atomic_fetch_add_explicit(&task->node->turned, 1, memory_order_relaxed);
    task_enqueue(manager, task, false);
}

static inline int submit(struct bmi_task *task, struct bmi_task_group *group)
{
    struct bmi_task_manager *manager = task->manager;
    if (manager == NULL) /* never prepared */
        return -BMI_EINVAL;
    if (atomic_load_explicit(&manager->closed, memory_order_relaxed))
        return -BMI_ENODEV;
    bmi__queue_expect(atomic_load_explicit(&task->node, memory_order_relaxed)->queue);
    uint32_t state = atomic_load_explicit(&task->state, memory_order_relaxed);
    uint32_t next;
    bool busy;
    do { /* where it is busy as well: only a change publishes earlier writes to the next runner */
        uint32_t phase = state & BMI__PHASE;
        busy = phase == BMI_TASK_QUEUED || (state & (BMI__AGAIN | BMI__CANCEL));
        next = busy ? state : phase == BMI_TASK_RUNNING ? state | BMI__AGAIN : BMI_TASK_QUEUED;
    } while (!atomic_compare_exchange_weak_explicit(&task->state, &state, next,
                                                    memory_order_acq_rel, memory_order_relaxed));
    if (!busy && next == BMI_TASK_QUEUED) {
        if (group != NULL)
            bmi__group_submitted(group, task);
        task_enqueue(manager, task, false);
    }
    return busy ? -BMI_EBUSY : 0;
}

int bmi_task_submit(struct bmi_task *task)
{
    return submit(task, NULL);
}

int bmi_task_group_submit(struct bmi_task_group *group, struct bmi_task *task)
{
    if (group == NULL || task == NULL || task->manager != group->manager ||
        (task->options & (SPECIAL | BMI__NARROW)))
        return -BMI_EINVAL;
    return submit(task, group);
}

int bmi_task_cancel(struct bmi_task *task)
{
    struct bmi_task_manager *manager = task->manager;
    bool delayed = task->interval_us != 0; /* after the change the task may be freed */
    uint32_t state = atomic_load_explicit(&task->state, memory_order_relaxed);
    uint32_t phase;
    do {
        phase = state & BMI__PHASE;
        if (phase != BMI_TASK_QUEUED && phase != BMI_TASK_RUNNING)
            return -BMI_EALREADY;
    } while (!atomic_compare_exchange_weak_explicit(&task->state, &state, state | BMI__CANCEL,
                                                    memory_order_acq_rel, memory_order_relaxed));
    if (phase == BMI_TASK_QUEUED && delayed)
        bmi__delay_end(manager, task);
    return phase == BMI_TASK_QUEUED ? 0 : -BMI_EBUSY;
}

enum bmi_task_state bmi_task_state(const struct bmi_task *task)
{
    return atomic_load_explicit(&task->state, memory_order_acquire) & BMI__PHASE;
}

bool bmi_task_cancel_wanted(const struct bmi_task *task)
{
    uint32_t state = atomic_load_explicit(&task->state, memory_order_relaxed);
    /* only the thread that runs the task may look at its group, which its end may free */
    return (state & BMI__CANCEL) ||
           (bmi__task_runs_here(state) && bmi__group_is_cancelled(task->group));
}

/* ---- running ---- */

static void task_finish(struct bmi_task_manager *manager, struct bmi_task *task, uint32_t phase)
{
    if (atomic_exchange_explicit(&task->state, phase, memory_order_acq_rel) & BMI__WAITED)
        bmi__lot_wake(manager, task);
}

/* What a task leaves at its end: its next submit may name another group, or none. */
struct membership {
    struct bmi_task_group *group; /* or NULL */
    uint32_t part;
};

static inline struct membership group_leave(struct bmi_task *task)
{
    struct membership of = {.group = task->group, .part = task->cpu};
    if (of.group != NULL) {
        task->group = NULL;
        atomic_store_explicit(&task->node, &task->manager->nodes[0], memory_order_relaxed);
    }
    return of;
}

static inline void group_left(const struct membership *of)
{
    if (of->group != NULL)
        bmi__group_end(of->group, of->part);
}

/* Ends a RUNNING | CANCEL task; other threads can only add WAITED to its state. */
static void task_end_cancelled(struct bmi_task_manager *manager, struct bmi_task *task)
{
    const struct membership of = group_leave(task);
    if (task->cancelled == NULL || bmi__task_call(task->cancelled, task) != BMI_TASK_GONE)
        task_finish(manager, task, BMI_TASK_CANCELLED);
    group_left(&of);
}

static void task_delay(struct bmi_task_manager *manager, struct bmi_task *task)
{
    bmi__delay(manager, task);
    if (atomic_load(&manager->closed))
        bmi__manager_cancel_queued(manager);
}

/* After a run: ends the task, or queues it once more. */
static void task_settle(struct bmi_task_manager *manager, struct bmi_task *task, bool repeat)
{
    const struct membership of = group_leave(task);
    uint32_t state = atomic_load_explicit(&task->state, memory_order_relaxed);
    uint32_t next;
    bool delay;
    do {
        delay = repeat && task->interval_us != 0 && !(state & BMI__AGAIN);
        bool again = repeat || (state & BMI__AGAIN);
        if (again && (state & BMI__CANCEL)) {
            task->group = of.group;
            task_end_cancelled(manager, task);
            return;
        }
        next = again ? BMI_TASK_QUEUED | (state & BMI__WAITED) : BMI_TASK_ENDED;
    } while (!atomic_compare_exchange_weak_explicit(&task->state, &state, next,
                                                    memory_order_acq_rel, memory_order_relaxed));
    if (next == BMI_TASK_ENDED) {
        if (state & BMI__WAITED)
            bmi__lot_wake(manager, task);
        group_left(&of);
        return;
    }
    task->group = of.group;
    if (of.group != NULL)
        bmi__group_again(task);
    if (delay)
        task_delay(manager, task);
    else
        task_enqueue(manager, task, true);
}

/* Ends a QUEUED task that was popped. */
static void task_drop(struct bmi_task_manager *manager, struct bmi_task *task)
{
    /* first, so that no thread submits it again while it seems to run */
    atomic_fetch_or_explicit(&task->state, BMI__CANCEL, memory_order_relaxed);
    atomic_fetch_add_explicit(&task->state, BMI_TASK_RUNNING - BMI_TASK_QUEUED,
                              memory_order_acq_rel);
    task_end_cancelled(manager, task);
}

void bmi__task_drop(struct bmi_task_manager *manager, struct bmi_task *task)
{
    if (task->group != NULL)
        bmi__group_begin(task);
    task_drop(manager, task);
}

void bmi__task_run(struct bmi_task_manager *manager, struct bmi_task *task)
{
    uint32_t change =
        BMI_TASK_RUNNING - BMI_TASK_QUEUED + (bmi__runner_self() << BMI__RUNNER_SHIFT);
    const struct membership of = {.group = task->group, .part = task->cpu};
    if (of.group != NULL && bmi__group_begin(task)) {
        task_drop(manager, task);
        return;
    }
    uint32_t state = atomic_fetch_add_explicit(&task->state, change, memory_order_acq_rel);
    if (state & BMI__CANCEL) {
        task_end_cancelled(manager, task);
        return;
    }
    bool may_repeat = task->options & BMI_TASK_REPEAT;
    if (task->options & FOLLOWED)
        bmi__memory_follow(manager, task->hints);
    enum bmi_task_status status = bmi__task_call(task->function, task);
    if (status != BMI_TASK_GONE)
        task_settle(manager, task, may_repeat && status == BMI_TASK_AGAIN);
    else
        group_left(&of);
}
