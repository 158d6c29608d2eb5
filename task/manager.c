/* SPDX-License-Identifier: BSD-3-Clause
 *
 * manager.c - making a manager from a topology, starting and stopping it. `counting` guards the
 * counts of users. A thread holds `control` while it starts or joins threads, so that these exclude
 * each other. A user comes or goes without `control` if the running threads suffice for it and
 * other users need them: tasks do so while another thread joins the thread that they run on.
 *
 * `closed` is set while no user has the manager started. A submit that runs at the same time sees
 * `closed` after its push and ends the queued tasks, as the stop does (internal.h), until the
 * manager is started again.
 */
#include "task/group.h"
#include "task/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define URGENT_SLOTS 64

static const struct bmi_task_settings defaults = {
    .queue_slots = 1024,
    .blocking_threads = 4,
    .timer_us = 2000,
    .timer_budget_us = 200,
};

/* ---- making ---- */

static int settings_fill(struct bmi_task_settings *settings, char *error, size_t error_size)
{
    if (settings->queue_slots == 0)
        settings->queue_slots = defaults.queue_slots;
    if (settings->blocking_threads == 0)
        settings->blocking_threads = defaults.blocking_threads;
    if (settings->timer_us == 0)
        settings->timer_us = defaults.timer_us;
    if (settings->timer_budget_us == 0)
        settings->timer_budget_us = defaults.timer_budget_us;
    const char *wrong = NULL;
    if (settings->queue_slots < 8 || settings->queue_slots > 1u << 20 ||
        (settings->queue_slots & (settings->queue_slots - 1)))
        wrong = "queue_slots must be a power of 2 from 8 to 1048576";
    else if (settings->blocking_threads < -1 || settings->blocking_threads > 1024)
        wrong = "blocking_threads must be from -1 to 1024";
    else if (!bmi__policy_known(settings->worker_policy))
        wrong = "worker_policy is not a known policy";
    else if (settings->topology < BMI_TASK_TOPOLOGY_LIVE ||
             settings->topology > BMI_TASK_TOPOLOGY_XML)
        wrong = "topology is not a known source";
    else if (settings->topology != BMI_TASK_TOPOLOGY_LIVE && settings->topology_text == NULL)
        wrong = "topology_text is missing";
    if (wrong == NULL)
        return 0;
    snprintf(error, error_size, "%s", wrong);
    return -BMI_EINVAL;
}

static bool node_init(struct bmi_task_manager *manager, uint32_t index)
{
    struct bmi__task_node *node = &manager->nodes[index];
    node->shape = &manager->topology.nodes[index];
    node->index = index;
    node->parent =
        node->shape->parent != BMI__NO_NODE ? &manager->nodes[node->shape->parent] : NULL;
    bmi__affinity_init(&node->affinity);
    node->run_by = calloc(node->shape->count + 1, sizeof(*node->run_by));
    node->queue = bmi__queue_create(manager->settings.queue_slots);
    manager->unserved[index / 64] |= (uint64_t)1 << (index % 64);
    return node->run_by != NULL && node->queue != NULL;
}

static bool cpu_init(struct bmi_task_manager *manager, uint32_t index)
{
    struct bmi__task_cpu *cpu = &manager->cpus[index];
    cpu->manager = manager;
    cpu->index = index;
    cpu->os = manager->topology.os_of[index];
    cpu->leaf = &manager->nodes[manager->topology.leaf_of[index]];
    cpu->urgent = bmi__queue_create(URGENT_SLOTS);
    return cpu->urgent != NULL;
}

static void mutexes_init(struct bmi_task_manager *manager)
{
    bmi__checked_lock_init(&manager->control);
    pthread_mutex_init(&manager->counting, NULL);
    pthread_mutex_init(&manager->serving, NULL);
    pthread_mutex_init(&manager->delaying, NULL);
    pthread_mutex_init(&manager->making, NULL);
    pthread_mutex_init(&manager->interning, NULL);
    pthread_mutex_init(&manager->claiming, NULL);
    pthread_mutex_init(&manager->placing, NULL);
    pthread_mutex_init(&manager->wakers_mutex, NULL);
    pthread_mutex_init(&manager->blocking.mutex, NULL);
    pthread_cond_init(&manager->blocking.arrived, NULL);
    for (size_t i = 0; i < BMI__LOT_BUCKETS; i++)
        pthread_mutex_init(&manager->lot[i].mutex, NULL);
}

/* Everything on top of the topology. On failure bmi__manager_free frees the parts. */
static bool manager_fill(struct bmi_task_manager *manager)
{
    const struct bmi__topology *topology = &manager->topology;
    int32_t pool_threads = manager->settings.blocking_threads;
    manager->node_words = (topology->node_count + 63) / 64;
    manager->nodes = calloc(topology->node_count, sizeof(*manager->nodes));
    size_t cpus_size = topology->cpu_count * sizeof(*manager->cpus);
    manager->cpus = aligned_alloc(BMI__LINE, cpus_size);
    manager->occupied = calloc(manager->node_words, sizeof(*manager->occupied));
    manager->unserved = calloc(manager->node_words, sizeof(*manager->unserved));
    manager->blocking.end = &manager->blocking.first;
    manager->blocking.limit = pool_threads > 0 ? (uint32_t)pool_threads : 0;
    manager->blocking.threads =
        calloc(manager->blocking.limit + 1, sizeof(*manager->blocking.threads));
    if (manager->cpus != NULL)
        memset(manager->cpus, 0, cpus_size);
    if (manager->nodes == NULL || manager->cpus == NULL || manager->occupied == NULL ||
        manager->unserved == NULL || manager->blocking.threads == NULL)
        return false;
    for (uint32_t i = 0; i < topology->node_count; i++) {
        if (!node_init(manager, i))
            return false;
    }
    for (uint32_t i = 0; i < topology->cpu_count; i++) {
        if (!cpu_init(manager, i))
            return false;
    }
    manager->callers = bmi__queue_create(manager->settings.queue_slots);
    return manager->callers != NULL;
}

void bmi__manager_free(struct bmi_task_manager *manager)
{
    const struct bmi__topology *topology = &manager->topology;
    for (uint32_t i = 0; manager->nodes != NULL && i < topology->node_count; i++) {
        struct bmi__task_node *node = &manager->nodes[i];
        free(node->run_by);
        if (node->queue != NULL)
            bmi__queue_destroy(node->queue);
    }
    for (uint32_t i = 0; manager->cpus != NULL && i < topology->cpu_count; i++) {
        struct bmi__queue *urgent = manager->cpus[i].urgent;
        if (urgent != NULL)
            bmi__queue_destroy(urgent);
    }
    if (manager->callers != NULL)
        bmi__queue_destroy(manager->callers);
    bmi__groups_free(manager);
    while (manager->interned != NULL) {
        struct bmi__interned *entry = manager->interned;
        manager->interned = entry->next;
        free(entry);
    }
    free(manager->nodes);
    free(manager->cpus);
    free(manager->occupied);
    free(manager->unserved);
    free(manager->blocking.threads);
    bmi__topology_free(&manager->topology);
    free(manager);
}

static int workers_choose(struct bmi_task_manager *manager, char *error, size_t error_size)
{
    if (manager->settings.worker_cpus == NULL) {
        for (uint32_t i = 0; i < manager->topology.cpu_count; i++)
            bmi_cpuset_add(&manager->worker_cpus, (int)i);
        return 0;
    }
    int result = bmi__topology_local(&manager->topology, manager->settings.worker_cpus,
                                     &manager->worker_cpus);
    if (result != 0)
        snprintf(error, error_size, "worker_cpus is empty or names a CPU that does not exist");
    return result;
}

/* Builds all of it; on failure nothing is left. */
static int manager_make(const struct bmi_task_settings *settings, struct bmi_task_manager **made,
                        char *error, size_t error_size)
{
    struct bmi_task_settings filled = settings != NULL ? *settings : defaults;
    int result = settings_fill(&filled, error, error_size);
    if (result != 0)
        return result;
    struct bmi_task_manager *manager = aligned_alloc(BMI__LINE, sizeof(*manager));
    if (manager == NULL) {
        snprintf(error, error_size, "out of memory");
        return -BMI_ENOMEM;
    }
    memset(manager, 0, sizeof(*manager));
    manager->settings = filled;
    atomic_store(&manager->closed, true);
    atomic_store(&manager->delayed_ns, UINT64_MAX);
    atomic_store(&manager->policy, (int)filled.worker_policy);
    mutexes_init(manager);
    result = bmi__topology_build(&manager->settings, &manager->topology, error, error_size);
    if (result != 0)
        goto undo_manager;
    result = workers_choose(manager, error, error_size);
    if (result != 0)
        goto undo_manager;
    result = -BMI_ENOMEM;
    snprintf(error, error_size, "out of memory");
    if (!manager_fill(manager))
        goto undo_manager;
    manager->settings.topology_text = NULL;
    manager->settings.worker_cpus = NULL;
    error[0] = '\0';
    *made = manager;
    return 0;

undo_manager:
    bmi__manager_free(manager);
    return result;
}

int bmi_task_manager_create(const struct bmi_task_settings *settings,
                            struct bmi_task_manager **manager, char *error, size_t error_size)
{
    char unwanted[1];
    if (error == NULL || error_size == 0) {
        error = unwanted;
        error_size = sizeof(unwanted);
    }
    if (manager == NULL) {
        snprintf(error, error_size, "no place for the manager");
        return -BMI_EINVAL;
    }
    return manager_make(settings, manager, error, error_size);
}

bool bmi__policy_known(enum bmi_task_policy policy)
{
    return policy >= BMI_TASK_POLICY_BATCH && policy <= BMI_TASK_POLICY_IDLE;
}

int bmi_task_manager_set_policy(struct bmi_task_manager *manager, enum bmi_task_policy policy)
{
    if (!bmi__policy_known(policy))
        return -BMI_EINVAL;
    if (manager == NULL)
        bmi__default_policy(policy);
    else
        atomic_store(&manager->policy, (int)policy);
    return 0;
}

/* ---- serving ---- */

void bmi__manager_serve_locked(struct bmi_task_manager *manager, uint32_t cpu, bool serve)
{
    struct bmi__worker *worker = &manager->cpus[cpu].worker;
    if (worker->serving == serve)
        return;
    worker->serving = serve;
    for (struct bmi__task_node *node = manager->cpus[cpu].leaf; node != NULL; node = node->parent) {
        unsigned live = atomic_load_explicit(&node->live, memory_order_relaxed);
        /* the bit before the count: a thread that sees the count at 0 wakes the readers of the
         * bits */
        if (!serve && live == 1)
            bmi__bit_set(manager->unserved, node->index);
        atomic_store(&node->live, serve ? live + 1 : live - 1);
        if (serve && live == 0)
            bmi__bit_clear(manager->unserved, node->index);
    }
    if (serve) {
        bmi__bit_set(manager->served, cpu);
        atomic_fetch_add(&manager->live_workers, 1);
    } else {
        bmi__bit_clear(manager->served, cpu);
        atomic_fetch_sub(&manager->live_workers, 1);
    }
}

/* ---- start and stop ---- */

/* The first user: starts the threads that the tasks prepared so far need. */
static int manager_open(struct bmi_task_manager *manager)
{
    int result = bmi__helpers_start(manager);
    if (result != 0)
        return result;
    result = bmi__timer_open(manager);
    if (result != 0)
        goto undo_helpers;
    result = bmi__blocking_start(manager);
    if (result != 0)
        goto undo_helpers;
    atomic_store(&manager->closed, false);
    return 0;

undo_helpers:
    bmi__helpers_stop(manager);
    bmi__timer_stop(manager);
    return result;
}

/* The last user: every task ends. Running tasks may wait for queued ones, so the queued ones are
 * cancelled before threads are joined; those that running tasks submit later are cancelled
 * after. */
static void manager_close(struct bmi_task_manager *manager)
{
    atomic_store(&manager->closed, true);
    bmi__manager_cancel_queued(manager);
    bmi__blocking_stop(manager);
    bmi__helpers_stop(manager);
    bmi__timer_stop(manager);
    bmi__manager_cancel_queued(manager);
}

static int background_start(struct bmi_task_manager *manager)
{
    int result = bmi__timer_start(manager);
    if (result != 0)
        return result;
    return bmi__workers_start(manager);
}

/* Takes any queued task, from one place after the other: nodes, CPUs, the tasks for callers, those
 * that wait for their interval, and those that may block. NULL: there is none at `*place` or
 * later. */
static struct bmi_task *any_pop(struct bmi_task_manager *manager, uint32_t *place)
{
    const uint32_t nodes = manager->topology.node_count, cpus = manager->topology.cpu_count;
    struct bmi_task *task = NULL;
    for (; *place < nodes + cpus; ++*place) {
        struct bmi__task_node *node = *place < nodes ? &manager->nodes[*place] : NULL;
        if (node == NULL)
            task = bmi__urgent_pop(&manager->cpus[*place - nodes]);
        else if ((task = bmi__queue_pop(node->queue)) == NULL)
            task = bmi__affinity_pop(&node->affinity, NULL, BMI__NO_CPU);
        if (task != NULL)
            return task;
    }
    task = bmi__queue_pop(manager->callers);
    if (task == NULL)
        task = bmi__delayed_pop(manager, UINT64_MAX - 1);
    return task != NULL ? task : bmi__blocking_pop(manager);
}

/* A caller that saw `closed` may arrive late: after a new start it could take tasks of the new
 * users. A task that it took before the start belongs to the old users. */
void bmi__manager_cancel_queued(struct bmi_task_manager *manager)
{
    struct bmi_task *task;
    uint32_t place = 0;
    while ((task = any_pop(manager, &place)) != NULL) {
        if (!atomic_load(&manager->closed)) {
            bmi__task_put_back(manager, task);
            return;
        }
        bmi__task_drop(manager, task);
    }
}

/* Counts a user for which the running threads suffice. Returns false if more must be started. */
static bool user_add(struct bmi_task_manager *manager, enum bmi_task_threads threads)
{
    bool workers = threads == BMI_TASK_WORKERS;
    pthread_mutex_lock(&manager->counting);
    bool enough = manager->open && (manager->working || !workers);
    if (enough) {
        manager->users++;
        manager->worker_users += workers;
    }
    pthread_mutex_unlock(&manager->counting);
    return enough;
}

/* control held: only its holder changes which threads exist. */
static int threads_start_locked(struct bmi_task_manager *manager, enum bmi_task_threads threads)
{
    bool start_open = !manager->open;
    bool start_workers = threads == BMI_TASK_WORKERS && !manager->working;
    int result = start_open ? manager_open(manager) : 0;
    if (result != 0)
        return result;
    if (start_workers)
        result = background_start(manager);
    if (result != 0) {
        if (start_open)
            manager_close(manager);
        return result;
    }
    pthread_mutex_lock(&manager->counting);
    manager->open = true;
    manager->working = manager->working || start_workers;
    pthread_mutex_unlock(&manager->counting);
    return 0;
}

/* Joins the threads that no user needs. control held, after bmi__checked_lock_waits. */
static void threads_stop_locked(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->counting);
    bool last = manager->open && manager->users == 0;
    bool last_worker = manager->working && manager->worker_users == 0;
    manager->open = manager->open && !last;
    manager->working = manager->working && !last_worker;
    pthread_mutex_unlock(&manager->counting);
    if (last) {
        atomic_store(&manager->closed, true);
        bmi__manager_cancel_queued(manager);
    }
    if (last_worker)
        bmi__workers_stop(manager); /* the timer's thread sleeps until the manager closes */
    if (last)
        manager_close(manager);
}

int bmi_task_manager_start(struct bmi_task_manager *manager, enum bmi_task_threads threads)
{
    if (threads != BMI_TASK_HOOKS_ONLY && threads != BMI_TASK_WORKERS)
        return -BMI_EINVAL;
    manager = bmi__manager(manager);
    if (manager == NULL)
        return -BMI_ENOMEM;
    if (user_add(manager, threads))
        return 0;
    int result = bmi__checked_lock_take(&manager->control);
    if (result != 0)
        return result;
    /* a stop without `control` cannot be the last; the last one holds it */
    while (result == 0 && !user_add(manager, threads))
        result = threads_start_locked(manager, threads);
    bmi__checked_lock_give(&manager->control);
    return result;
}

/* Stops the threads that no user needs, if the caller may wait for that. The manager's own threads,
 * and tasks that another stopping thread waits for, leave it to the next start or stop. */
static void threads_stop(struct bmi_task_manager *manager)
{
    if (bmi__thread_self_of(manager) || bmi__checked_lock_take(&manager->control) != 0)
        return;
    bmi__checked_lock_waits(&manager->control);
    threads_stop_locked(manager);
    bmi__checked_lock_give(&manager->control);
}

/* Returns false if there is no such user. *unwanted: more threads run than the others need. */
static bool user_remove(struct bmi_task_manager *manager, enum bmi_task_threads threads,
                        bool *unwanted)
{
    bool workers = threads == BMI_TASK_WORKERS;
    pthread_mutex_lock(&manager->counting);
    bool known = workers ? manager->worker_users > 0
                         : threads == BMI_TASK_HOOKS_ONLY && manager->users > manager->worker_users;
    if (known) {
        manager->users--;
        manager->worker_users -= workers;
    }
    *unwanted =
        (manager->open && manager->users == 0) || (manager->working && manager->worker_users == 0);
    pthread_mutex_unlock(&manager->counting);
    return known;
}

int bmi_task_manager_stop(struct bmi_task_manager *manager, enum bmi_task_threads threads)
{
    bool unwanted;
    manager = bmi__manager(manager);
    if (manager == NULL)
        return -BMI_EINVAL;
    bool known = user_remove(manager, threads, &unwanted);
    if (unwanted)
        threads_stop(manager);
    return known ? 0 : -BMI_EINVAL;
}

void bmi_task_manager_destroy(struct bmi_task_manager *manager)
{
    if (manager == NULL || manager == bmi__manager_made(NULL))
        return;
    while (bmi_task_manager_stop(manager, BMI_TASK_WORKERS) == 0)
        continue;
    while (bmi_task_manager_stop(manager, BMI_TASK_HOOKS_ONLY) == 0)
        continue;
    /* Within a task of the manager its threads still exist: then its memory is not freed. */
    if (!bmi__thread_self_of(manager))
        bmi__manager_free(manager);
}
