/* SPDX-License-Identifier: BSD-3-Clause
 *
 * schedule.c - Algorithm 1: a CPU runs the tasks of its own queue, then of each one above, up to
 * the global one; then of queues that no worker serves. From each queue it runs at most as many
 * tasks as it found there, and at most BATCH, so that a repeating task does not delay the one-shot
 * tasks behind it or the queues above. It recognises an empty queue without a lock (Algorithm 2, in
 * the queues).
 *
 * `occupied` has a bit for each node that may have tasks. A pushing thread sets it where it is
 * clear; a thread that clears it checks before and after that the node is empty. A CPU clears it
 * only once in many visits that found nothing, so that it does not take a cache line from the
 * submitting threads.
 */
#include "task/group.h"
#include "task/internal.h"

#include <sched.h>
#include <unistd.h>

#define BATCH 64
#define VAIN_VISITS 1024 /* a power of 2 */

/* The state of the calling thread. */
static _Thread_local struct {
    unsigned depth;                     /* rounds within tasks within rounds */
    unsigned within;                    /* tasks' functions on its stack */
    unsigned held;                      /* bmi__tasks_hold */
    unsigned needed;                    /* bmi__tasks_needed, in the innermost task */
    unsigned vain;                      /* visits of nodes that had no task */
    struct bmi__task_cpu *worker;       /* it is this CPU's worker */
    struct bmi__task_cpu *helper;       /* its helper */
    const struct bmi_task_manager *own; /* it is one of the manager's threads */
    uint32_t number;                    /* the system's; 0: not read yet */
} self;

uint32_t bmi__runner_self(void)
{
    if (self.number == 0)
        self.number = (uint32_t)gettid();
    return self.number;
}

void bmi__worker_is(struct bmi__task_cpu *cpu)
{
    self.worker = cpu;
}

struct bmi__task_cpu *bmi__worker_self(struct bmi_task_manager *manager)
{
    return self.worker != NULL && self.worker->manager == manager ? self.worker : NULL;
}

void bmi__thread_is_of(const struct bmi_task_manager *manager)
{
    self.own = manager;
}

bool bmi__thread_self_of(const struct bmi_task_manager *manager)
{
    return self.own == manager;
}

void bmi__helper_is(struct bmi__task_cpu *cpu)
{
    self.helper = cpu;
}

struct bmi__task_cpu *bmi__helper_self(struct bmi_task_manager *manager)
{
    return self.helper != NULL && self.helper->manager == manager ? self.helper : NULL;
}

static bool node_covers(const struct bmi__task_node *node, uint32_t cpu)
{
    return cpu - node->shape->first < node->shape->count;
}

bool bmi__runner_returns(struct bmi_task_manager *manager, const struct bmi__task_node *node,
                         const struct bmi_cpuset *only)
{
    if (self.worker == NULL) /* a leader remains the leader while no worker runs, even of another
                                manager */
        return atomic_load(&manager->live_workers) == 0 && atomic_load(&node->live) == 0 &&
               bmi__leads(manager);
    return self.worker->manager == manager && node_covers(node, self.worker->index) &&
           (only == NULL || bmi_cpuset_has(only, (int)self.worker->index));
}

enum bmi_task_status bmi__task_call(bmi_task_function function, struct bmi_task *task)
{
    unsigned needed = self.needed;
    self.needed = 0;
    self.within++;
    enum bmi_task_status status = function(task, task->argument);
    self.within--;
    self.needed = needed;
    return status;
}

unsigned bmi__tasks_within(void)
{
    return self.within;
}

bool bmi__schedule_too_deep(void)
{
    return self.held > 0 || self.depth >= (self.needed > 0 ? BMI_TASK_WAIT_DEPTH : BMI_TASK_DEPTH);
}

bool bmi__wait_too_deep(void)
{
    return self.held > 0 || self.depth >= BMI_TASK_WAIT_DEPTH;
}

void bmi__tasks_needed(void)
{
    self.needed++;
}

void bmi__tasks_needed_end(void)
{
    self.needed--;
}

void bmi__tasks_hold(void)
{
    self.held++;
}

void bmi__tasks_release(void)
{
    self.held--;
}

uint32_t bmi__cpu_self(struct bmi_task_manager *manager)
{
    int os = sched_getcpu();
    uint32_t local = os >= 0 && os < BMI_CPUSET_MAX ? manager->topology.local_of[os] : BMI__NO_CPU;
    if (!manager->topology.this_system || local == BMI__NO_CPU)
        local = (uint32_t)(os < 0 ? 0 : os) % manager->topology.cpu_count;
    return local;
}

void bmi__served(struct bmi_task_manager *manager, struct bmi_cpuset *served)
{
    for (size_t i = 0; i < BMI_CPUSET_MAX / 64; i++)
        served->words[i] = atomic_load_explicit(&manager->served[i], memory_order_relaxed);
}

/* ---- one node ---- */

static inline void node_count(struct bmi__task_node *node, uint32_t cpu, unsigned ran)
{
    uint32_t place = node_covers(node, cpu) ? cpu - node->shape->first : node->shape->count;
    atomic_fetch_add_explicit(&node->run_by[place], ran, memory_order_relaxed);
}

static void node_run(struct bmi_task_manager *manager, struct bmi__task_node *node, uint32_t cpu,
                     struct bmi_task *task)
{
    node_count(node, cpu, 1);
    bmi__task_run(manager, task);
}

static bool expired(uint64_t deadline_ns)
{
    return deadline_ns != 0 && bmi__now_ns() >= deadline_ns;
}

static __attribute__((noinline)) unsigned affinity_visit(struct bmi_task_manager *manager,
                                                         struct bmi__task_node *node, uint32_t cpu,
                                                         uint64_t deadline_ns)
{
    struct bmi_cpuset served;
    bmi__served(manager, &served);
    uint64_t popped = atomic_load(&node->affinity.popped);
    uint64_t left = atomic_load(&node->affinity.pushed) - popped;
    unsigned ran = 0;
    while (left-- > 0 && ran < BATCH && !expired(deadline_ns)) {
        struct bmi_task *task = bmi__affinity_pop(&node->affinity, &served, cpu);
        if (task == NULL)
            break;
        node_run(manager, node, cpu, task);
        ran++;
    }
    return ran;
}

static unsigned node_visit(struct bmi_task_manager *manager, struct bmi__task_node *node,
                           uint32_t cpu, uint64_t deadline_ns)
{
    unsigned ran = 0;
    struct bmi_task *task = bmi__queue_pop(node->queue);
    if (task != NULL) {
        uint64_t left = bmi__queue_length(node->queue);
        left = left < BATCH ? left : BATCH - 1;
        do {
            bmi__task_run(manager, task);
            ran++;
        } while (left-- > 0 && !expired(deadline_ns) &&
                 (task = bmi__queue_pop(node->queue)) != NULL);
        node_count(node, cpu, ran);
    }
    if (!bmi__affinity_empty(&node->affinity))
        ran += affinity_visit(manager, node, cpu, deadline_ns);
    if (ran == 0 && ++self.vain % VAIN_VISITS == 0 && !bmi__node_settle(manager, node))
        bmi__wake_for(manager, node, NULL); /* for threads that checked while the bit was clear */
    return ran;
}

/* Searches a queue for a task. The tasks before it are taken and pushed again, so they come behind
 * the others. One thread searches at a time, so that a thread that does not find the task knows
 * that another runs it, or is about to push it. *others: how many tasks were out for a moment, in
 * which another thread may have found the queue empty. */
static bool queue_search(struct bmi_task_manager *manager, struct bmi__queue *queue,
                         const struct bmi_task *task, uint64_t *others)
{
    struct bmi_task *other = NULL;
    *others = 0;
    pthread_mutex_lock(&manager->claiming);
    for (uint64_t left = bmi__queue_length(queue) + 1; left > 0; left--) {
        other = bmi__queue_pop(queue);
        if (other == NULL || other == task)
            break;
        bmi__queue_push(queue, other);
        ++*others;
    }
    pthread_mutex_unlock(&manager->claiming);
    return other != NULL && other == task;
}

static bool queue_claim(struct bmi_task_manager *manager, struct bmi__task_node *node,
                        const struct bmi_task *task)
{
    uint64_t others;
    bool found = queue_search(manager, node->queue, task, &others);
    if (others > 0) {
        atomic_fetch_add_explicit(&node->turned, others, memory_order_relaxed);
        bmi__bit_set(manager->occupied, node->index);
        bmi__wake_for(manager, node, NULL);
        if (atomic_load(&manager->closed))
            bmi__manager_cancel_queued(manager);
    }
    return found;
}

/* The same of tasks for callers. */
static bool callers_claim(struct bmi_task_manager *manager, const struct bmi_task *task)
{
    uint64_t others;
    bool found = queue_search(manager, manager->callers, task, &others);
    if (others > 0 && atomic_load(&manager->waker_count) != 0)
        bmi__wakers_wake(manager);
    if (others > 0 && atomic_load(&manager->closed))
        bmi__manager_cancel_queued(manager);
    return found;
}

/* The same for urgent tasks, by the CPU's own helper; no other thread needs a wake-up for them. */
static bool urgent_claim(struct bmi__task_cpu *cpu, const struct bmi_task *task)
{
    uint64_t others;
    bool found = queue_search(cpu->manager, cpu->urgent, task, &others);
    if (found)
        atomic_fetch_sub(&cpu->urgent_queued, 1);
    if (others > 0 && atomic_load(&cpu->manager->closed))
        bmi__manager_cancel_queued(cpu->manager);
    return found;
}

bool bmi__awaited_run(struct bmi_task_manager *manager, struct bmi_task *task)
{
    struct bmi__task_node *node = task->node;
    bool blocks = task->options & BMI_TASK_MAY_BLOCK, urgent = task->options & BMI_TASK_URGENT;
    bool callers = task->options & BMI__CALLERS, found;
    if (callers)
        found = callers_claim(manager, task);
    else if (blocks)
        found = bmi__thread_self_of(manager) && self.worker == NULL && self.helper == NULL &&
                bmi__blocking_claim(manager, task);
    else if (urgent) /* if the caller is its CPU's helper, no other thread will */
        found = bmi__helper_self(manager) == &manager->cpus[task->cpu] &&
                urgent_claim(&manager->cpus[task->cpu], task);
    else if (!bmi__affinity_empty(&node->affinity) && bmi__affinity_claim(&node->affinity, task))
        found = true;
    else
        found = task->only == NULL && queue_claim(manager, node, task);
    if (!found)
        return false;
    self.depth++;
    if (blocks || urgent || callers)
        bmi__task_run(manager, task);
    else
        node_run(manager, node, bmi__cpu_self(manager), task);
    self.depth--;
    return true;
}

static bool node_has_none(struct bmi__task_node *node)
{
    return bmi__queue_empty(node->queue) && bmi__affinity_empty(&node->affinity);
}

bool bmi__node_settle(struct bmi_task_manager *manager, struct bmi__task_node *node)
{
    if (!node_has_none(node))
        return false;
    bmi__bit_clear(manager->occupied, node->index);
    if (node_has_none(node))
        return true;
    bmi__bit_set(manager->occupied, node->index);
    return false;
}

/* ---- nodes that no worker serves ---- */

static unsigned unserved_visit(struct bmi_task_manager *manager, uint32_t cpu, uint64_t deadline_ns)
{
    unsigned ran = 0;
    for (uint32_t word = 0; word < manager->node_words; word++) {
        uint64_t bits = atomic_load(&manager->unserved[word]);
        bits = bits ? bits & atomic_load(&manager->occupied[word]) : 0;
        for (; bits != 0; bits &= bits - 1) {
            struct bmi__task_node *node =
                &manager->nodes[word * 64 + (uint32_t)__builtin_ctzll(bits)];
            if (node_covers(node, cpu) || bmi__node_settle(manager, node))
                continue; /* the caller has just visited that one */
            ran += node_visit(manager, node, cpu, deadline_ns);
            if (expired(deadline_ns))
                return ran;
        }
    }
    return ran;
}

bool bmi__unserved_has(struct bmi_task_manager *manager)
{
    for (uint32_t word = 0; word < manager->node_words; word++) {
        uint64_t bits =
            atomic_load(&manager->unserved[word]) & atomic_load(&manager->occupied[word]);
        for (; bits != 0; bits &= bits - 1) {
            uint32_t index = word * 64 + (uint32_t)__builtin_ctzll(bits);
            if (!bmi__node_settle(manager, &manager->nodes[index]))
                return true;
        }
    }
    return false;
}

bool bmi__hooks_wanted(struct bmi_task_manager *manager)
{
    return !bmi__queue_empty(manager->callers) || bmi__unserved_has(manager);
}

/* ---- rounds ---- */

bool bmi__urgent_run(struct bmi__task_cpu *cpu)
{
    struct bmi_task *task = bmi__schedule_too_deep() ? NULL : bmi__urgent_pop(cpu);
    if (task == NULL)
        return false;
    self.depth++;
    bmi__task_run(cpu->manager, task);
    self.depth--;
    return true;
}

/* Workers leave urgent tasks to the helper, which the kernel schedules before the threads that
 * compute. But a helper that waits deep within tasks takes none: then the worker does. */
static bool takes_urgent(struct bmi__task_cpu *cpu)
{
    return self.worker == NULL || atomic_load(&cpu->helper.deep);
}

/* The CPU's own queue, and those above it. */
static unsigned path_visit(struct bmi_task_manager *manager, uint32_t cpu, uint64_t deadline_ns)
{
    unsigned ran = 0;
    for (struct bmi__task_node *node = manager->cpus[cpu].leaf; node != NULL; node = node->parent) {
        if (bmi__bit_get(manager->occupied, node->index))
            ran += node_visit(manager, node, cpu, deadline_ns);
    }
    return ran;
}

/* Whether the CPU, which has found nothing, should look for a group to move to it. A helper's CPU
 * computes. */
static bool looks_for_groups(struct bmi__task_cpu *at)
{
    return atomic_load_explicit(&at->manager->group_changes, memory_order_relaxed) !=
               atomic_load_explicit(&at->group_looked, memory_order_relaxed) &&
           self.helper == NULL;
}

unsigned bmi__schedule(struct bmi_task_manager *manager, uint32_t cpu, uint64_t deadline_ns)
{
    struct bmi__task_cpu *at = &manager->cpus[cpu];
    unsigned ran = 0;
    if (bmi__schedule_too_deep())
        return 0;
    self.depth++;
    for (uint64_t left = takes_urgent(at) ? BATCH : 0; left > 0; left--) {
        struct bmi_task *task = bmi__urgent_pop(at);
        if (task == NULL)
            break;
        bmi__task_run(manager, task);
        ran++;
    }
    ran += path_visit(manager, cpu, deadline_ns);
    if (ran == 0 && looks_for_groups(at) && bmi__group_pull(manager, cpu))
        ran += path_visit(manager, cpu, deadline_ns);
    ran += unserved_visit(manager, cpu, deadline_ns);
    self.depth--;
    return ran;
}

/* Of the tasks for callers, at most as many as there are now. */
static unsigned callers_visit(struct bmi_task_manager *manager, uint64_t deadline_ns)
{
    unsigned ran = 0;
    struct bmi_task *task = bmi__queue_pop(manager->callers);
    if (task == NULL)
        return 0;
    uint64_t left = bmi__queue_length(manager->callers);
    left = left < BATCH ? left : BATCH - 1;
    self.depth++;
    do {
        bmi__task_run(manager, task);
        ran++;
    } while (left-- > 0 && !expired(deadline_ns) &&
             (task = bmi__queue_pop(manager->callers)) != NULL);
    self.depth--;
    return ran;
}

unsigned bmi__schedule_hook(struct bmi_task_manager *manager, uint32_t cpu, uint64_t deadline_ns)
{
    unsigned ran = 0;
    if (!bmi__schedule_too_deep() && !bmi__queue_empty(manager->callers))
        ran = callers_visit(manager, deadline_ns);
    return ran + bmi__schedule(manager, cpu, deadline_ns);
}

bool bmi__schedule_has(struct bmi_task_manager *manager, uint32_t cpu)
{
    struct bmi__task_cpu *at = &manager->cpus[cpu];
    struct bmi_cpuset served;
    if (takes_urgent(at) && atomic_load(&at->urgent_queued) != 0 && !bmi__queue_empty(at->urgent))
        return true;
    bmi__served(manager, &served);
    for (struct bmi__task_node *node = at->leaf; node != NULL; node = node->parent) {
        if (!bmi__queue_empty(node->queue))
            return true;
        if (!bmi__affinity_empty(&node->affinity) &&
            bmi__affinity_has(&node->affinity, &served, cpu))
            return true;
    }
    return bmi__unserved_has(manager);
}

unsigned bmi_task_schedule(struct bmi_task_manager *manager)
{
    manager = bmi__manager_made(manager);
    return manager != NULL ? bmi__schedule_hook(manager, bmi__cpu_self(manager), 0) : 0;
}

unsigned bmi_task_schedule_on(struct bmi_task_manager *manager, int cpu)
{
    manager = bmi__manager(manager);
    if (manager == NULL || cpu < 0 || cpu >= BMI_CPUSET_MAX)
        return 0;
    uint32_t local = manager->topology.local_of[cpu];
    return local != BMI__NO_CPU ? bmi__schedule_hook(manager, local, 0) : 0;
}
