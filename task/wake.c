/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wake.c - after a push: which threads to wake. A worker that finds no task sets its bit in `idle`,
 * checks its queues once more, and sleeps. A pushing thread reads the bits of the node's CPUs, and
 * the thread that clears a bit wakes that worker. So a submit makes a system call only for a worker
 * that sleeps, and none while the workers concerned are awake, or are woken but do not run yet. How
 * long a worker took to run after its last wake-up shows whether its CPU is really idle.
 */
#include "task/internal.h"

/* The idle CPUs of a word, of those that lie from `first` to `last`. */
static inline uint64_t idle_word(struct bmi_task_manager *manager, uint32_t word, uint32_t first,
                                 uint32_t last)
{
    uint64_t bits = atomic_load(&manager->idle[word]);
    if (word == first / 64)
        bits &= ~(uint64_t)0 << (first % 64);
    if (word == last / 64)
        bits &= ~(uint64_t)0 >> (63 - last % 64);
    return bits;
}

/* Whether a node has idle CPUs. */
static inline bool idle_any(struct bmi_task_manager *manager, const struct bmi__task_node *node)
{
    uint32_t first = node->shape->first, last = first + node->shape->count - 1;
    uint32_t word = first / 64;
    while (word < last / 64 && idle_word(manager, word, first, last) == 0)
        word++;
    return idle_word(manager, word, first, last) != 0;
}

/* The idle CPUs of a range. Returns false if there are none. */
static bool idle_in(struct bmi_task_manager *manager, uint32_t first, uint32_t count,
                    struct bmi_cpuset *idle)
{
    bool any = false;
    uint32_t last = first + count - 1;
    bmi_cpuset_clear(idle);
    for (uint32_t word = first / 64; word <= last / 64; word++) {
        idle->words[word] = idle_word(manager, word, first, last);
        any = any || idle->words[word] != 0;
    }
    return any;
}

/* Removes those whose CPU started them late not long ago. */
static void drop_slow(struct bmi_task_manager *manager, struct bmi_cpuset *idle)
{
    uint64_t now = bmi__now_ns();
    for (int cpu = bmi_cpuset_next(idle, 0); cpu >= 0; cpu = bmi_cpuset_next(idle, cpu + 1)) {
        if (atomic_load_explicit(&manager->cpus[cpu].worker.slow_until_ns, memory_order_relaxed) >
            now)
            bmi_cpuset_remove(idle, cpu);
    }
}

/* Returns false if another thread has woken it, or it has woken by itself. */
static bool worker_wake(struct bmi_task_manager *manager, uint32_t cpu)
{
    struct bmi__worker *worker = &manager->cpus[cpu].worker;
    if (!bmi__bit_clear(manager->idle, cpu))
        return false;
    atomic_store_explicit(&worker->woken_ns, bmi__now_ns(), memory_order_relaxed);
    atomic_store(&worker->asleep, 0);
    bmi__futex_wake(&worker->asleep);
    return true;
}

static bool wake_among(struct bmi_task_manager *manager, struct bmi_cpuset *candidates,
                       uint32_t cpu)
{
    for (;;) {
        uint32_t nearest = bmi__topology_nearest(&manager->topology, candidates, cpu);
        if (nearest == BMI__NO_CPU)
            return false;
        if (worker_wake(manager, nearest))
            return true;
        bmi_cpuset_remove(candidates, (int)nearest);
    }
}

bool bmi__wake_one(struct bmi_task_manager *manager, const struct bmi__task_node *node,
                   const struct bmi_cpuset *only, uint32_t cpu)
{
    struct bmi_cpuset idle, quick;
    if (!idle_in(manager, node->shape->first, node->shape->count, &idle))
        return false;
    if (only != NULL) {
        struct bmi_cpuset served;
        bool reachable = false;
        bmi__served(manager, &served);
        for (size_t i = 0; i < BMI_CPUSET_MAX / 64; i++)
            reachable = reachable || (served.words[i] & only->words[i]);
        for (size_t i = 0; reachable && i < BMI_CPUSET_MAX / 64; i++)
            idle.words[i] &= only->words[i];
    }
    quick = idle;
    drop_slow(manager, &quick);
    bmi_cpuset_remove(&quick, (int)cpu); /* the caller runs there */
    return wake_among(manager, &quick, cpu) || wake_among(manager, &idle, cpu);
}

void bmi__wake_for(struct bmi_task_manager *manager, struct bmi__task_node *node,
                   const struct bmi_cpuset *only)
{
    if (atomic_load(&node->live) == 0) {
        if (atomic_load(&manager->waker_count) != 0)
            bmi__wakers_wake(manager);
        node = &manager->nodes[0]; /* any worker will do */
    }
    if (atomic_load(&manager->live_workers) == 0)
        return;
    if (idle_any(manager, node))
        bmi__wake_one(manager, node, only, bmi__cpu_self(manager));
    bmi__timer_arm(manager);
}

void bmi__wake_all(struct bmi_task_manager *manager)
{
    for (uint32_t cpu = 0; cpu < manager->topology.cpu_count; cpu++) {
        struct bmi__worker *worker = &manager->cpus[cpu].worker;
        bmi__bit_clear(manager->idle, cpu);
        if (atomic_exchange(&worker->asleep, 0) != 0)
            bmi__futex_wake(&worker->asleep);
    }
}

int bmi_task_nearest_idle(struct bmi_task_manager *manager, int cpu)
{
    manager = bmi__manager(manager);
    if (manager == NULL || cpu < 0 || cpu >= BMI_CPUSET_MAX ||
        manager->topology.local_of[cpu] == BMI__NO_CPU)
        return -BMI_EINVAL;
    uint32_t local = manager->topology.local_of[cpu];
    struct bmi_cpuset idle;
    if (!idle_in(manager, 0, manager->topology.cpu_count, &idle))
        return -BMI_ENOENT;
    drop_slow(manager, &idle);
    bmi_cpuset_remove(&idle, (int)local);
    uint32_t nearest = bmi__topology_nearest(&manager->topology, &idle, local);
    return nearest != BMI__NO_CPU ? manager->topology.os_of[nearest] : -BMI_ENOENT;
}
