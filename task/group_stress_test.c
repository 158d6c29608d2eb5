/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Sixteen threads over a synthetic tree of 256 CPUs create, split, merge, cancel, and close groups
 * at random, change their hints, submit tasks to them and cancel these, and act for CPUs without
 * work, which moves tasks and memory. Every accepted submit must have exactly one end, a run or a
 * cancellation, and no task may run twice at a time. Half of the time the threads are hooks, half
 * of the time workers run too.
 *
 * A group is in a slot. A thread uses it under the slot's lock for reading, and replaces it under
 * the lock for writing: no call with a group may be under way when it is closed.
 */
#include "bmi/task_group.h"
#include "task/stressing.h"

#include <string.h>

enum { TASKS = 1000, SLOTS = 24, NODES = 8 };

struct item {
    struct bmi_task task;
    bool repeats;
    atomic_uint accepted; /* submits that were taken */
    atomic_uint ends;     /* runs that are no repetitions, and cancellations */
    atomic_uint running;
    atomic_int left; /* runs before a repeating one is done */
};

struct slot {
    pthread_rwlock_t lock;
    struct bmi_task_group *group; /* under lock; or NULL */
};

static struct item items[TASKS];
static struct slot slots[SLOTS];
static struct bmi_task_manager *manager;
static char memory[NODES];
static atomic_uint wrong, finish;
static atomic_ullong runs, cancels, splits, merges, copies, tasks_moved;

/* The tree is not this machine's. One move in eight fails. */
int __wrap_bmi_task_memory_move(struct bmi_task_manager *of, void *address, uint64_t bytes,
                                int node);

int __wrap_bmi_task_memory_move(struct bmi_task_manager *of, void *address, uint64_t bytes,
                                int node)
{
    if (of != manager || (char *)address < memory || (char *)address >= memory + NODES ||
        bytes == 0 || node < 0 || node >= NODES)
        atomic_fetch_add(&wrong, 1);
    sched_yield(); /* it takes a while */
    return atomic_fetch_add(&copies, 1) % 8 == 7 ? -BMI_EIO : 0;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static enum bmi_task_status item_run(struct bmi_task *task, void *argument)
{
    struct item *item = argument;
    if (task != &item->task || atomic_exchange(&item->running, 1) != 0)
        atomic_fetch_add(&wrong, 1);
    bool again =
        item->repeats && !bmi_task_cancel_wanted(task) && atomic_fetch_sub(&item->left, 1) > 0;
    if (!again)
        atomic_fetch_add(&item->ends, 1);
    atomic_fetch_add_explicit(&runs, 1, memory_order_relaxed);
    atomic_store(&item->running, 0);
    return again ? BMI_TASK_AGAIN : BMI_TASK_DONE;
}

static enum bmi_task_status item_cancelled(struct bmi_task *task, void *argument)
{
    struct item *item = argument;
    if (task != &item->task || atomic_load(&item->running) != 0)
        atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&item->ends, 1);
    atomic_fetch_add_explicit(&cancels, 1, memory_order_relaxed);
    return BMI_TASK_DONE;
}

static void prepare_items(uint32_t *state)
{
    for (int i = 0; i < TASKS; i++) {
        struct item *item = &items[i];
        memset(item, 0, sizeof(*item));
        item->repeats = random_next(state) % 4 == 0;
        struct bmi_task_attributes attributes = {
            .function = item_run,
            .cancelled = item_cancelled,
            .argument = item,
            .options = item->repeats ? BMI_TASK_REPEAT : 0,
            .interval_us = item->repeats ? random_next(state) % 200 : 0,
        };
        if (bmi_task_prepare(&item->task, manager, &attributes) != 0)
            atomic_fetch_add(&wrong, 1);
    }
}

/* One thread at a time submits a task: a submit that finds it running has no end of its own if the
 * task repeats. The state has to be looked at as well: the end is counted before the return. */
static void item_submit(struct bmi_task_group *group, struct item *item, uint32_t *state)
{
    unsigned ends = atomic_load(&item->ends);
    enum bmi_task_state now = bmi_task_state(&item->task);
    if (now == BMI_TASK_RUNNING || now == BMI_TASK_QUEUED ||
        !atomic_compare_exchange_strong(&item->accepted, &ends, ends + 1))
        return;
    atomic_store(&item->left, (int)(random_next(state) % 5));
    int result =
        group != NULL ? bmi_task_group_submit(group, &item->task) : bmi_task_submit(&item->task);
    if (result != 0)
        atomic_fetch_sub(&item->accepted, 1);
    if (result != 0 && result != -BMI_ENODEV)
        atomic_fetch_add(&wrong, 1);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static void random_hints(struct bmi_task_group_hints *hints, struct bmi_task_group_region *regions,
                         uint32_t *state)
{
    *hints = (struct bmi_task_group_hints){
        .regions = regions,
        .count = random_next(state) % 4,
        .tasks = random_next(state) % 64,
        .runs = random_next(state) % 16,
        .compute_ns = random_next(state) % 100000,
        .tasks_stay = random_next(state) % 8 == 0,
    };
    for (uint32_t i = 0; i < hints->count; i++) {
        regions[i] = (struct bmi_task_group_region){
            .address = &memory[random_next(state) % NODES],
            .bytes = 1 + random_next(state) % 100000,
            .read = random_next(state) % 10000000,
            .written = random_next(state) % 10000000,
            .node = (int)(random_next(state) % (NODES + 1)) - 1,
            .stays = random_next(state) % 4 == 0,
        };
    }
}

static struct bmi_task_group *group_make(struct bmi_task_group *parent, uint32_t *state)
{
    struct bmi_task_group_region regions[4];
    struct bmi_task_group_hints hints;
    struct bmi_task_group *group = NULL;
    bool inherits = parent != NULL && random_next(state) % 2;
    random_hints(&hints, regions, state);
    if (bmi_task_group_create(manager, parent, inherits ? NULL : &hints, &group) != 0)
        atomic_fetch_add(&wrong, 1);
    return group;
}

static void group_end(struct bmi_task_group *group)
{
    if (group == NULL)
        return;
    struct bmi_task_group_statistics statistics;
    bmi_task_group_statistics(group, &statistics);
    atomic_fetch_add(&tasks_moved, statistics.tasks_moved);
    bmi_task_group_close(group);
}

/* Puts a group into a slot; the one that was there is closed. */
static void slot_put(struct slot *slot, struct bmi_task_group *group)
{
    pthread_rwlock_wrlock(&slot->lock);
    struct bmi_task_group *old = slot->group;
    slot->group = group;
    pthread_rwlock_unlock(&slot->lock);
    group_end(old);
}

static void replace(uint32_t *state)
{
    struct slot *above = &slots[random_next(state) % SLOTS];
    pthread_rwlock_rdlock(&above->lock);
    struct bmi_task_group *parent = random_next(state) % 4 == 0 ? above->group : NULL;
    struct bmi_task_group *made = group_make(parent, state);
    pthread_rwlock_unlock(&above->lock);
    slot_put(&slots[random_next(state) % SLOTS], made);
}

static void split(struct slot *slot, uint32_t *state)
{
    struct bmi_task_group *part = NULL;
    pthread_rwlock_rdlock(&slot->lock);
    int moved = slot->group != NULL
                    ? bmi_task_group_split(slot->group, 1 + random_next(state) % 20, &part)
                    : 0;
    pthread_rwlock_unlock(&slot->lock);
    if (moved < 0)
        atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&splits, (unsigned)moved);
    if (part != NULL)
        slot_put(&slots[random_next(state) % SLOTS], part);
}

/* The slots' locks in their order. Too many regions together are an error that may come. */
static void merge(uint32_t *state)
{
    uint32_t a = random_next(state) % SLOTS, b = random_next(state) % SLOTS;
    struct slot *first = &slots[a < b ? a : b], *second = &slots[a < b ? b : a];
    if (a == b)
        return;
    pthread_rwlock_rdlock(&first->lock);
    pthread_rwlock_rdlock(&second->lock);
    int moved = 0;
    if (slots[a].group != NULL && slots[b].group != NULL)
        moved = bmi_task_group_merge(slots[a].group, slots[b].group);
    if (moved < 0 && moved != -BMI_EINVAL)
        atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&merges, moved > 0 ? (unsigned)moved : 0);
    pthread_rwlock_unlock(&second->lock);
    pthread_rwlock_unlock(&first->lock);
}

static void change_hints(struct bmi_task_group *group, uint32_t *state)
{
    struct bmi_task_group_region regions[4];
    struct bmi_task_group_hints hints;
    random_hints(&hints, regions, state);
    if (bmi_task_group_set_hints(group, &hints) != 0)
        atomic_fetch_add(&wrong, 1);
}

static void use(struct slot *slot, uint32_t *state)
{
    pthread_rwlock_rdlock(&slot->lock);
    uint32_t what = random_next(state) % 64;
    if (slot->group != NULL && what == 0)
        bmi_task_group_cancel(slot->group);
    else if (slot->group != NULL && what == 1)
        change_hints(slot->group, state);
    else
        item_submit(slot->group, &items[random_next(state) % TASKS], state);
    pthread_rwlock_unlock(&slot->lock);
}

static void *act_at_random(void *argument)
{
    uint32_t state = *(const uint32_t *)argument;
    while (!atomic_load_explicit(&finish, memory_order_relaxed)) {
        uint32_t what = random_next(&state) % 128;
        if (what < 2)
            replace(&state);
        else if (what < 4)
            split(&slots[random_next(&state) % SLOTS], &state);
        else if (what < 6)
            merge(&state);
        else if (what < 10)
            bmi_task_cancel(&items[random_next(&state) % TASKS].task);
        else if (what < 30)
            bmi_task_schedule_on(manager, (int)(random_next(&state) % STRESS_CPUS));
        else
            use(&slots[random_next(&state) % SLOTS], &state);
    }
    return NULL;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static void settle(void)
{
    for (int i = 0; i < TASKS; i++) {
        if (!stress_task_ends(&items[i].task))
            atomic_fetch_add(&wrong, 1);
    }
}

/* All tasks have ended, though their threads may not have left the groups yet. */
static void check_sums(void)
{
    uint64_t end = test_now_ns() + 20000000000u;
    unsigned lost = 0, counted = 0;
    for (int i = 0; i < TASKS; i++)
        lost += atomic_load(&items[i].accepted) != atomic_load(&items[i].ends);
    for (int i = 0; i < SLOTS; i++) {
        struct bmi_task_group_statistics statistics = {.outstanding = 0};
        do {
            sched_yield();
            if (slots[i].group != NULL)
                bmi_task_group_statistics(slots[i].group, &statistics);
        } while (statistics.outstanding != 0 && test_now_ns() < end);
        counted += statistics.outstanding + statistics.waiting;
        slot_put(&slots[i], NULL);
    }
    CU_ASSERT_EQUAL(lost, 0);
    CU_ASSERT_EQUAL(counted, 0);
    CU_ASSERT_EQUAL(atomic_load(&wrong), 0);
    for (int queue = 0; queue < bmi_task_queue_count(manager); queue++) {
        struct bmi_task_queue_statistics statistics;
        bmi_task_queue_statistics(manager, queue, &statistics);
        CU_ASSERT_EQUAL(statistics.queued, 0);
        CU_ASSERT_EQUAL(statistics.submitted, statistics.run);
    }
}

static void stress(bool workers, bool shutdown, uint64_t length_ns, uint32_t *state)
{
    manager = stress_manager("package:4 numa:2 l3:4 core:8 pu:1", workers, state);
    prepare_items(state);
    for (int i = 0; i < SLOTS; i++)
        slot_put(&slots[i], group_make(NULL, state));
    stress_threads(act_at_random, &finish, shutdown ? manager : NULL, length_ns, state);
    if (!shutdown)
        settle();
    check_sums();
    bmi_task_manager_destroy(manager);
}

static void test_stress(void)
{
    for (int i = 0; i < SLOTS; i++)
        pthread_rwlock_init(&slots[i].lock, NULL);
    stress_rounds(stress);
    printf("%llu runs, %llu cancellations; moved %llu tasks by splits, %llu by merges, "
           "%llu by decisions, %llu regions ",
           (unsigned long long)atomic_load(&runs), (unsigned long long)atomic_load(&cancels),
           (unsigned long long)atomic_load(&splits), (unsigned long long)atomic_load(&merges),
           (unsigned long long)atomic_load(&tasks_moved), (unsigned long long)atomic_load(&copies));
    CU_ASSERT_TRUE(atomic_load(&runs) > 0);
    CU_ASSERT_TRUE(atomic_load(&cancels) > 0);
    CU_ASSERT_TRUE(atomic_load(&splits) > 0);
    CU_ASSERT_TRUE(atomic_load(&merges) > 0);
    CU_ASSERT_TRUE(atomic_load(&tasks_moved) > 0);
    CU_ASSERT_TRUE(atomic_load(&copies) > 0);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"16 threads, groups over 256 CPUs", test_stress},
        CU_TEST_INFO_NULL,
    };
    return test_run("group stress", cases);
}
