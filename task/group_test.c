/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Groups of tasks on a machine of 2 packages of 2 NUMA nodes of 4 CPUs: node 0 has CPUs 0-3, node 1
 * (the same package) 4-7, and so on. Hooks act for the CPUs: a hook whose CPU has no work looks for
 * a group first, and then runs the tasks of any queue. `bmi_task_queue_run_by` tells both apart.
 * The function that moves memory is a stand-in: the tree is not this machine's.
 */
#include "bmi/task_group.h"
#include "task/testing.h"

#include <limits.h>

enum { MIB = 1 << 20, NODE_CPUS = 4, MOST = 16 };

static struct bmi_task_manager *manager;
static struct bmi_task tasks[MOST];
static atomic_uint runs;
static char memory[64];

/* ---- stand-ins and what they saw ------------------------------------------------------------- */

static struct {
    unsigned count;
    void *address;
    uint64_t bytes;
    int node, result;
} moves;

int __wrap_bmi_task_memory_move(struct bmi_task_manager *of, void *address, uint64_t bytes,
                                int node);

int __wrap_bmi_task_memory_move(struct bmi_task_manager *of, void *address, uint64_t bytes,
                                int node)
{
    CU_ASSERT_PTR_EQUAL(of, manager);
    moves.count++;
    moves.address = address;
    moves.bytes = bytes;
    moves.node = node;
    return moves.result;
}

static struct bmi_task_group_decision decisions[MOST];
static unsigned decision_count;

static void trace(void *argument, const struct bmi_task_group_decision *decision)
{
    CU_ASSERT_PTR_EQUAL(argument, decisions);
    if (decision_count < MOST)
        decisions[decision_count++] = *decision;
}

static void given_machine(const char *tree)
{
    struct bmi_task_settings settings = {
        .topology = BMI_TASK_TOPOLOGY_SYNTHETIC,
        .topology_text = tree,
    };
    manager = test_manager(&settings, BMI_TASK_HOOKS_ONLY);
    memset(&moves, 0, sizeof(moves));
    memset(tasks, 0, sizeof(tasks));
    decision_count = 0;
    atomic_store(&runs, 0);
    CU_ASSERT_EQUAL(bmi_task_group_set_costs(manager, &test_round_costs), 0);
    CU_ASSERT_EQUAL(bmi_task_group_trace(manager, trace, decisions), 0);
}

static void given_nodes(void)
{
    given_machine("package:2 numa:2 core:4 pu:1");
}

/* The queue of a NUMA node: that of its CPUs. */
static int queue_of(int node)
{
    struct bmi_task_queue_statistics statistics;
    for (int queue = 0; queue < bmi_task_queue_count(manager); queue++) {
        bmi_task_queue_statistics(manager, queue, &statistics);
        if (bmi_cpuset_count(&statistics.cpus) == NODE_CPUS &&
            bmi_cpuset_has(&statistics.cpus, node * NODE_CPUS))
            return queue;
    }
    return -1;
}

static struct bmi_task_group *group_make(struct bmi_task_group *parent,
                                         const struct bmi_task_group_hints *hints)
{
    struct bmi_task_group *group = NULL;
    CU_ASSERT_EQUAL_FATAL(bmi_task_group_create(manager, parent, hints, &group), 0);
    return group;
}

static struct bmi_task_group *group_on(int node, bool stays, uint64_t traffic, double compute_ns)
{
    struct bmi_task_group_region region = {
        .address = memory,
        .bytes = MIB,
        .read = traffic / 2,
        .written = traffic / 2,
        .node = node,
        .stays = stays,
    };
    struct bmi_task_group_hints hints = {
        .regions = &region,
        .count = 1,
        .compute_ns = compute_ns,
    };
    return group_make(NULL, &hints);
}

static void submit(struct bmi_task_group *group, int first, int count)
{
    for (int i = first; i < first + count; i++) {
        test_prepare_on(&tasks[i], manager, test_count, &runs, 0, NULL);
        CU_ASSERT_EQUAL(bmi_task_group_submit(group, &tasks[i]), 0);
    }
}

static struct bmi_task_group_statistics statistics_of(struct bmi_task_group *group)
{
    struct bmi_task_group_statistics statistics;
    bmi_task_group_statistics(group, &statistics);
    return statistics;
}

static uint64_t run_by(int queue, int cpu)
{
    return bmi_task_queue_run_by(manager, queue, cpu);
}

static uint64_t queued(int queue)
{
    struct bmi_task_queue_statistics statistics;
    bmi_task_queue_statistics(manager, queue, &statistics);
    return statistics.queued;
}

/* ---- homes ----------------------------------------------------------------------------------- */

static void test_home_near_memory(void)
{
    given_nodes();
    struct bmi_task_group *group = group_on(2, false, 2 * MIB, 0);
    CU_ASSERT_EQUAL(statistics_of(group).home, -1);
    submit(group, 0, 2);
    CU_ASSERT_EQUAL(statistics_of(group).home, queue_of(2));
    CU_ASSERT_EQUAL(queued(queue_of(2)), 2);
    CU_ASSERT_EQUAL(statistics_of(group).outstanding, 2);
    CU_ASSERT_EQUAL(statistics_of(group).waiting, 2);
    CU_ASSERT_EQUAL(decision_count, 1);
    CU_ASSERT_EQUAL(decisions[0].from, -1);
    CU_ASSERT_EQUAL(decisions[0].to, queue_of(2));
    CU_ASSERT_PTR_EQUAL(decisions[0].group, group);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, 2 * NODE_CPUS), 2);
    CU_ASSERT_EQUAL(run_by(queue_of(2), 2 * NODE_CPUS), 2);
    CU_ASSERT_EQUAL(statistics_of(group).outstanding, 0);
    CU_ASSERT_EQUAL(moves.count, 0);
    bmi_task_group_close(group);
    bmi_task_manager_destroy(manager);
}

/* A group with room on one node, one that needs a package, one that needs the machine. */
static void test_home_has_room(void)
{
    static const uint32_t sizes[] = {NODE_CPUS, NODE_CPUS + 1, 2 * NODE_CPUS + 1};
    given_nodes();
    for (int i = 0; i < 3; i++) {
        struct bmi_task_group *group =
            group_make(NULL, &(struct bmi_task_group_hints){.tasks = sizes[i], .compute_ns = 1000});
        submit(group, i, 1);
        struct bmi_task_queue_statistics statistics;
        bmi_task_queue_statistics(manager, statistics_of(group).home, &statistics);
        CU_ASSERT_EQUAL(bmi_cpuset_count(&statistics.cpus), NODE_CPUS << i);
        bmi_task_group_close(group);
    }
    while (bmi_task_schedule_on(manager, 0) != 0)
        continue;
    CU_ASSERT_EQUAL(runs, 3);
    bmi_task_manager_destroy(manager);
}

static void test_home_below_the_parent(void)
{
    given_nodes();
    struct bmi_task_group_hints large = {.tasks = 2 * NODE_CPUS, .compute_ns = 1000};
    struct bmi_task_group_region far = {.bytes = MIB, .read = MIB, .node = 3};
    struct bmi_task_group_hints there = {.regions = &far, .count = 1, .tasks = 2 * NODE_CPUS};
    struct bmi_task_group *parent = group_make(NULL, &there);
    struct bmi_task_group *child[2] = {group_make(parent, &large), group_make(parent, NULL)};
    submit(child[0], 0, 1); /* places the parent: on the package of node 3 */
    submit(child[1], 1, 1); /* inherits the memory */
    struct bmi_task_queue_statistics statistics;
    bmi_task_queue_statistics(manager, statistics_of(parent).home, &statistics);
    CU_ASSERT_EQUAL(bmi_cpuset_count(&statistics.cpus), 2 * NODE_CPUS);
    CU_ASSERT_TRUE(bmi_cpuset_has(&statistics.cpus, 3 * NODE_CPUS));
    CU_ASSERT_EQUAL(statistics_of(child[0]).home, statistics_of(parent).home);
    CU_ASSERT_EQUAL(statistics_of(child[1]).home, queue_of(3));
    CU_ASSERT_EQUAL(statistics_of(parent).outstanding, 0);
    bmi_task_group_close(parent); /* its children remain */
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, 3 * NODE_CPUS), 2);
    for (int i = 0; i < 2; i++)
        bmi_task_group_close(child[i]);
    bmi_task_manager_destroy(manager);
}

static void test_one_node(void)
{
    given_machine("package:1 numa:1 core:4 pu:1");
    struct bmi_task_group *group = group_on(0, false, 100 * MIB, 1000);
    submit(group, 0, 8);
    CU_ASSERT_EQUAL(queued(0), 8);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, 3), 8);
    CU_ASSERT_EQUAL(run_by(0, 3), 8);
    CU_ASSERT_EQUAL(decision_count, 0);
    CU_ASSERT_EQUAL(moves.count, 0);
    bmi_task_group_close(group);
    bmi_task_manager_destroy(manager);
}

static enum bmi_task_status note_order(struct bmi_task *task, void *argument)
{
    unsigned *order = argument;
    *order = atomic_fetch_add(&runs, 1) + 1;
    (void)task;
    return BMI_TASK_DONE;
}

/* A group that needs a package is opened level by level: a CPU of the package takes tasks of it
 * after those of the queues below. */
static void test_wide_group_after_near_work(void)
{
    unsigned order[3] = {0};
    given_nodes();
    struct bmi_task_group *wide =
        group_make(NULL, &(struct bmi_task_group_hints){.tasks = NODE_CPUS + 1, .compute_ns = 1e5});
    struct bmi_task_group *near = group_on(0, true, MIB, 1000);
    struct bmi_task_group *const groups[] = {wide, wide, near};
    for (int i = 0; i < 3; i++) {
        test_prepare_on(&tasks[i], manager, note_order, &order[i], 0, NULL);
        CU_ASSERT_EQUAL(bmi_task_group_submit(groups[i], &tasks[i]), 0);
    }
    struct bmi_task_queue_statistics statistics;
    bmi_task_queue_statistics(manager, queue_of(0), &statistics);
    CU_ASSERT_EQUAL(statistics_of(wide).home, statistics.parent);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, 0), 3);
    CU_ASSERT_EQUAL(order[2], 1);
    CU_ASSERT_EQUAL(order[0], 2);
    CU_ASSERT_EQUAL(order[1], 3);
    CU_ASSERT_EQUAL(run_by(statistics_of(wide).home, 0), 2);
    bmi_task_group_close(wide);
    bmi_task_group_close(near);
    bmi_task_manager_destroy(manager);
}

/* ---- a CPU without work ---------------------------------------------------------------------- */

/* Eight tasks on four CPUs: a CPU of another node takes half of them. */
static void test_pull_of_tasks(void)
{
    given_nodes();
    struct bmi_task_group *group = group_on(0, true, 0, 100000);
    submit(group, 0, 8);
    CU_ASSERT_EQUAL(queued(queue_of(0)), 8);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, NODE_CPUS), 8);
    CU_ASSERT_EQUAL(run_by(queue_of(1), NODE_CPUS), 4);
    CU_ASSERT_EQUAL(run_by(queue_of(0), -1), 4);
    CU_ASSERT_EQUAL(decision_count, 2);
    CU_ASSERT_EQUAL(decisions[1].placement, BMI_TASK_PLACE_TASK);
    CU_ASSERT_EQUAL(decisions[1].from, queue_of(0));
    CU_ASSERT_EQUAL(decisions[1].to, queue_of(1));
    CU_ASSERT_EQUAL(decisions[1].tasks, 4);
    CU_ASSERT_TRUE(decisions[1].cost_ns[BMI_TASK_PLACE_TASK] <
                   decisions[1].cost_ns[BMI_TASK_PLACE_STAY]);
    struct bmi_task_group_statistics statistics = statistics_of(group);
    CU_ASSERT_EQUAL(statistics.tasks_moved, 4);
    CU_ASSERT_EQUAL(statistics.decisions[BMI_TASK_PLACE_TASK], 1);
    CU_ASSERT_EQUAL(statistics.home, queue_of(0)); /* as before: not all have moved */
    CU_ASSERT_EQUAL(statistics.outstanding, 0);
    CU_ASSERT_EQUAL(statistics.waiting, 0);
    submit(group, 0, 1);
    CU_ASSERT_EQUAL(queued(queue_of(0)), 1);
    bmi_task_schedule_on(manager, 0);
    bmi_task_group_close(group);
    bmi_task_manager_destroy(manager);
}

/* No more tasks than CPUs at home: they wait for these, however long a CPU elsewhere is idle. */
static void test_stays_while_home_has_room(void)
{
    given_nodes();
    struct bmi_task_group *group = group_on(0, false, 2 * MIB, 1000);
    submit(group, 0, 4);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, NODE_CPUS), 4);
    CU_ASSERT_EQUAL(run_by(queue_of(0), -1), 4);
    CU_ASSERT_EQUAL(run_by(queue_of(1), NODE_CPUS), 0);
    CU_ASSERT_EQUAL(statistics_of(group).decisions[BMI_TASK_PLACE_STAY], 1);
    CU_ASSERT_EQUAL(statistics_of(group).tasks_moved, 0);
    bmi_task_group_close(group);
    bmi_task_manager_destroy(manager);
}

/* Node 0 has eight tasks that cannot leave, and one of a group with 1 MiB there. A CPU of node 1
 * falls idle; `expected` is what becomes of the group. */
static struct bmi_task_group_statistics crowded_home(bool memory_stays, bool tasks_stay,
                                                     uint64_t traffic)
{
    struct bmi_task_group_hints crowd = {.compute_ns = 100000, .tasks_stay = true};
    struct bmi_task_group_region regions[2] = {
        {.bytes = 1, .read = 100 * MIB, .node = 0, .stays = true},
        {.address = memory, .bytes = MIB, .read = traffic, .node = 0, .stays = memory_stays},
    };
    struct bmi_task_group_hints hints = {
        .regions = &regions[1],
        .count = 1,
        .compute_ns = 100000,
        .tasks_stay = tasks_stay,
    };
    crowd.regions = regions;
    crowd.count = 1;
    struct bmi_task_group *others = group_make(NULL, &crowd), *group = group_make(NULL, &hints);
    submit(group, 8, 1);
    submit(others, 0, 8);
    CU_ASSERT_EQUAL(queued(queue_of(0)), 9);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, NODE_CPUS), 9);
    struct bmi_task_group_statistics statistics = statistics_of(group);
    CU_ASSERT_EQUAL(run_by(queue_of(1), NODE_CPUS), statistics.tasks_moved);
    CU_ASSERT_EQUAL(statistics_of(others).tasks_moved, 0);
    bmi_task_group_close(others);
    bmi_task_group_close(group);
    return statistics;
}

static void test_pull_of_tasks_and_memory(void)
{
    given_nodes();
    struct bmi_task_group_statistics statistics = crowded_home(false, false, 20 * (uint64_t)MIB);
    CU_ASSERT_EQUAL(statistics.decisions[BMI_TASK_PLACE_BOTH], 1);
    CU_ASSERT_EQUAL(statistics.tasks_moved, 1);
    CU_ASSERT_EQUAL(statistics.regions_moved, 1);
    CU_ASSERT_EQUAL(statistics.bytes_moved, MIB);
    CU_ASSERT_EQUAL(statistics.home, queue_of(1));
    CU_ASSERT_EQUAL(moves.count, 1);
    CU_ASSERT_PTR_EQUAL(moves.address, memory);
    CU_ASSERT_EQUAL(moves.bytes, MIB);
    CU_ASSERT_EQUAL(moves.node, 1);
    bmi_task_manager_destroy(manager);
}

/* Memory of which little is used does not pay its move. */
static void test_pull_without_memory(void)
{
    given_nodes();
    struct bmi_task_group_statistics statistics = crowded_home(false, false, MIB);
    CU_ASSERT_EQUAL(statistics.decisions[BMI_TASK_PLACE_TASK], 1);
    CU_ASSERT_EQUAL(statistics.home, queue_of(1));
    CU_ASSERT_EQUAL(moves.count, 0);
    bmi_task_manager_destroy(manager);
    given_nodes();
    statistics = crowded_home(true, false, 20 * (uint64_t)MIB); /* pinned */
    CU_ASSERT_EQUAL(statistics.decisions[BMI_TASK_PLACE_TASK], 1);
    CU_ASSERT_EQUAL(moves.count, 0);
    bmi_task_manager_destroy(manager);
    given_nodes();
    statistics = crowded_home(false, true, 20 * (uint64_t)MIB);
    CU_ASSERT_EQUAL(statistics.decisions[BMI_TASK_PLACE_STAY], 1);
    CU_ASSERT_EQUAL(statistics.tasks_moved, 0);
    CU_ASSERT_EQUAL(moves.count, 0);
    bmi_task_manager_destroy(manager);
}

/* Memory on another node than the tasks, which must not leave: it comes to them. */
static void test_pull_of_memory(void)
{
    given_nodes();
    struct bmi_task_group_region region = {
        .address = memory,
        .bytes = MIB,
        .read = 20 * MIB,
        .node = 0,
    };
    struct bmi_task_group_hints hints = {.regions = &region, .count = 1, .tasks_stay = true};
    struct bmi_task_group *group = group_make(NULL, &hints);
    submit(group, 0, 1);
    region.node = 2;
    CU_ASSERT_EQUAL(bmi_task_group_set_hints(group, &hints), 0);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, NODE_CPUS), 1);
    CU_ASSERT_EQUAL(statistics_of(group).decisions[BMI_TASK_PLACE_DATA], 1);
    CU_ASSERT_EQUAL(statistics_of(group).home, queue_of(0));
    CU_ASSERT_EQUAL(moves.count, 1);
    CU_ASSERT_EQUAL(moves.node, 0);
    CU_ASSERT_EQUAL(run_by(queue_of(0), -1), 1);
    submit(group, 0, 1); /* it lies there now */
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, NODE_CPUS), 1);
    CU_ASSERT_EQUAL(moves.count, 1);
    bmi_task_group_close(group);
    bmi_task_manager_destroy(manager);
}

/* Memory that the system cannot move is tried once. */
static void test_memory_that_fails(void)
{
    given_nodes();
    moves.result = -BMI_EIO;
    struct bmi_task_group *group = group_on(2, false, 20 * MIB, 0);
    struct bmi_task_group_region region = {.address = memory, .bytes = MIB, .read = MIB, .node = 2};
    struct bmi_task_group_hints hints = {.regions = &region, .count = 1, .tasks_stay = true};
    submit(group, 0, 1);
    region.node = 0;
    region.read = 20 * MIB;
    CU_ASSERT_EQUAL(bmi_task_group_set_hints(group, &hints), 0);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, NODE_CPUS), 1);
    CU_ASSERT_EQUAL(moves.count, 1);
    submit(group, 0, 1);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, NODE_CPUS), 1);
    CU_ASSERT_EQUAL(moves.count, 1);
    CU_ASSERT_EQUAL(statistics_of(group).regions_failed, 1);
    CU_ASSERT_EQUAL(statistics_of(group).regions_moved, 0);
    bmi_task_group_close(group);
    bmi_task_manager_destroy(manager);
}

static enum bmi_task_status meet(struct bmi_task *task, void *argument)
{
    (void)task;
    atomic_fetch_add((atomic_uint *)argument, 1);
    test_reaches(argument, 3);
    return BMI_TASK_DONE;
}

/* Three tasks at one CPU, whose worker and helper run one each until all have begun: the worker of
 * the other node, asleep since before, has to look and take the third. */
static void test_sleeping_worker_looks(void)
{
    struct bmi_task_settings settings = {
        .topology = BMI_TASK_TOPOLOGY_SYNTHETIC,
        .topology_text = "numa:2 core:1 pu:1",
    };
    manager = test_manager(&settings, BMI_TASK_WORKERS);
    atomic_uint met = 0;
    uint64_t end = test_now_ns() + 20000000000u;
    while (bmi_task_nearest_idle(manager, 0) != 1 && test_now_ns() < end)
        sched_yield();
    struct bmi_task_group *group = group_on(0, true, 2, 1e6);
    for (int i = 0; i < 3; i++) {
        test_prepare_on(&tasks[i], manager, meet, &met, 0, NULL);
        CU_ASSERT_EQUAL(bmi_task_group_submit(group, &tasks[i]), 0);
    }
    CU_ASSERT_TRUE(test_reaches(&met, 3));
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(bmi_task_wait(&tasks[i], 20000), 0);
    CU_ASSERT_TRUE(statistics_of(group).tasks_moved >= 1);
    bmi_task_group_close(group);
    bmi_task_manager_destroy(manager);
}

/* ---- the life of groups ---------------------------------------------------------------------- */

static enum bmi_task_status three_times(struct bmi_task *task, void *argument)
{
    (void)task;
    return atomic_fetch_add((atomic_uint *)argument, 1) < 2 ? BMI_TASK_AGAIN : BMI_TASK_DONE;
}

/* A task belongs to its group until it ends, then to none: the next submit says where it goes. */
static void test_membership(void)
{
    given_nodes();
    struct bmi_task_group *one = group_on(1, false, MIB, 0), *other = group_on(2, false, MIB, 0);
    test_prepare_on(&tasks[0], manager, three_times, &runs, BMI_TASK_REPEAT, NULL);
    CU_ASSERT_EQUAL(bmi_task_group_submit(one, &tasks[0]), 0);
    CU_ASSERT_EQUAL(bmi_task_group_submit(other, &tasks[0]), -BMI_EBUSY);
    CU_ASSERT_EQUAL(statistics_of(other).outstanding, 0);
    for (unsigned i = 1; i <= 2; i++) {
        CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, NODE_CPUS), 1);
        CU_ASSERT_EQUAL(queued(queue_of(1)), 1);
        CU_ASSERT_EQUAL(statistics_of(one).outstanding, 1);
    }
    bmi_task_group_close(one); /* its task goes on */
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, NODE_CPUS), 1);
    CU_ASSERT_EQUAL(bmi_task_state(&tasks[0]), BMI_TASK_ENDED);
    CU_ASSERT_EQUAL(bmi_task_group_submit(other, &tasks[0]), 0);
    CU_ASSERT_EQUAL(queued(queue_of(2)), 1);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, 2 * NODE_CPUS), 1);
    CU_ASSERT_EQUAL(bmi_task_submit(&tasks[0]), 0);
    CU_ASSERT_EQUAL(queued(0), 1);
    CU_ASSERT_EQUAL(statistics_of(other).outstanding, 0);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, 0), 1);
    CU_ASSERT_EQUAL(runs, 5);
    bmi_task_group_close(other);
    bmi_task_manager_destroy(manager);
}

static bool wanted[2];

static enum bmi_task_status cancels_its_group(struct bmi_task *task, void *argument)
{
    wanted[0] = bmi_task_cancel_wanted(task);
    bmi_task_group_cancel(argument);
    wanted[1] = bmi_task_cancel_wanted(task);
    return BMI_TASK_AGAIN;
}

static void test_cancel(void)
{
    given_nodes();
    struct bmi_task_group *parent = group_on(0, false, MIB, 0), *child = group_make(parent, NULL);
    struct bmi_task_group *beside = group_on(0, false, MIB, 0);
    test_prepare_on(&tasks[5], manager, cancels_its_group, parent, BMI_TASK_REPEAT, NULL);
    CU_ASSERT_EQUAL(bmi_task_group_submit(parent, &tasks[5]), 0);
    submit(parent, 0, 2);
    submit(child, 2, 2);
    submit(beside, 4, 1);
    while (bmi_task_schedule_on(manager, 0) != 0)
        continue;
    CU_ASSERT_FALSE(wanted[0]);
    CU_ASSERT_TRUE(wanted[1]);
    CU_ASSERT_EQUAL(runs, 1);
    for (int i = 0; i < 6; i++)
        CU_ASSERT_EQUAL(bmi_task_state(&tasks[i]), i == 4 ? BMI_TASK_ENDED : BMI_TASK_CANCELLED);
    submit(child, 0, 1);
    CU_ASSERT_EQUAL(bmi_task_wait(&tasks[0], 20000), -BMI_ECANCEL);
    CU_ASSERT_EQUAL(statistics_of(parent).outstanding, 0);
    CU_ASSERT_EQUAL(statistics_of(child).outstanding, 0);
    CU_ASSERT_EQUAL(statistics_of(child).waiting, 0);
    bmi_task_group_close(parent);
    bmi_task_group_close(child);
    bmi_task_group_close(beside);
    bmi_task_manager_destroy(manager);
}

static void test_split_and_merge(void)
{
    given_nodes();
    struct bmi_task_group *group = group_on(1, false, 20 * MIB, 100000), *part = NULL;
    submit(group, 0, 6);
    CU_ASSERT_EQUAL(bmi_task_group_split(group, 2, &part), 2);
    CU_ASSERT_EQUAL(statistics_of(group).outstanding, 4);
    CU_ASSERT_EQUAL(statistics_of(part).outstanding, 2);
    CU_ASSERT_EQUAL(statistics_of(part).waiting, 2);
    CU_ASSERT_EQUAL(statistics_of(part).home, queue_of(1));
    CU_ASSERT_EQUAL(queued(queue_of(1)), 6);
    bmi_task_group_cancel(part); /* the two oldest */
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, NODE_CPUS), 6);
    CU_ASSERT_EQUAL(runs, 4);
    CU_ASSERT_EQUAL(bmi_task_state(&tasks[1]), BMI_TASK_CANCELLED);
    CU_ASSERT_EQUAL(bmi_task_state(&tasks[2]), BMI_TASK_ENDED);
    bmi_task_group_close(part);

    struct bmi_task_group *other = group_on(3, false, MIB, 0);
    submit(group, 0, 3);
    submit(other, 3, 2);
    CU_ASSERT_EQUAL(bmi_task_group_merge(other, group), 3);
    CU_ASSERT_EQUAL(statistics_of(group).outstanding, 0);
    CU_ASSERT_EQUAL(statistics_of(other).outstanding, 5);
    CU_ASSERT_EQUAL(queued(queue_of(3)), 5);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, 3 * NODE_CPUS), 5);
    CU_ASSERT_EQUAL(statistics_of(other).outstanding, 0);
    bmi_task_group_close(group);
    bmi_task_group_close(other);
    bmi_task_manager_destroy(manager);
}

/* After a split both groups use the memory: it stays. */
static void test_split_memory_stays(void)
{
    given_nodes();
    struct bmi_task_group_hints crowd = {.compute_ns = 100000, .tasks_stay = true};
    struct bmi_task_group *group = group_on(0, false, 20 * MIB, 100000), *part = NULL;
    struct bmi_task_group *others;
    submit(group, 8, 1);
    CU_ASSERT_EQUAL(bmi_task_group_split(group, 1, &part), 1);
    others = group_make(part, &crowd); /* below the home of `part`: on node 0 */
    submit(others, 0, 8);
    CU_ASSERT_EQUAL(bmi_task_schedule_on(manager, NODE_CPUS), 9);
    CU_ASSERT_EQUAL(statistics_of(part).tasks_moved, 1);
    CU_ASSERT_EQUAL(moves.count, 0);
    bmi_task_group_close(others);
    bmi_task_group_close(part);
    bmi_task_group_close(group);
    bmi_task_manager_destroy(manager);
}

/* The manager's end ends tasks of closed groups, and frees these. */
static void test_shutdown(void)
{
    given_nodes();
    struct bmi_task_group *group = group_on(0, false, MIB, 0), *child = group_make(group, NULL);
    submit(group, 0, 4);
    submit(child, 4, 4);
    bmi_task_group_close(group);
    bmi_task_group_close(child);
    bmi_task_manager_destroy(manager);
    for (int i = 0; i < 8; i++)
        CU_ASSERT_EQUAL(bmi_task_state(&tasks[i]), BMI_TASK_CANCELLED);
}

static void test_bad_input(void)
{
    static const struct bmi_task_costs negative = {.remote_factor = -1};
    given_nodes();
    struct bmi_task_group_region regions[BMI_TASK_GROUP_REGIONS + 1] = {{.bytes = 1}};
    struct bmi_task_group_hints hints = {.regions = regions, .count = BMI_TASK_GROUP_REGIONS + 1};
    struct bmi_task_group *group = NULL, *part = NULL;
    CU_ASSERT_EQUAL(bmi_task_group_create(manager, NULL, &hints, &group), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_group_create(manager, NULL, NULL, NULL), -BMI_EINVAL);
    hints.count = 1;
    hints.runs = -1;
    CU_ASSERT_EQUAL(bmi_task_group_create(manager, NULL, &hints, &group), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_group_set_costs(manager, &negative), -BMI_EINVAL);
    group = group_make(NULL, NULL);
    CU_ASSERT_EQUAL(bmi_task_group_set_costs(manager, &test_round_costs), -BMI_EBUSY);
    CU_ASSERT_EQUAL(bmi_task_group_set_hints(group, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_group_split(group, 0, &part), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_group_split(group, (uint32_t)INT_MAX + 1, &part), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_group_merge(group, group), -BMI_EINVAL);

    struct bmi_cpuset set = test_only(1);
    test_prepare_on(&tasks[0], manager, test_count, &runs, 0, &set);
    CU_ASSERT_EQUAL(bmi_task_group_submit(group, &tasks[0]), -BMI_EINVAL);
    test_prepare_on(&tasks[0], manager, test_count, &runs, BMI_TASK_URGENT, NULL);
    CU_ASSERT_EQUAL(bmi_task_group_submit(group, &tasks[0]), -BMI_EINVAL);
    test_prepare_on(&tasks[0], NULL, test_count, &runs, 0, NULL);
    CU_ASSERT_EQUAL(bmi_task_group_submit(group, &tasks[0]), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_group_submit(NULL, &tasks[0]), -BMI_EINVAL);

    /* two groups whose regions together are too many: neither changes */
    hints.runs = 0;
    hints.count = BMI_TASK_GROUP_REGIONS;
    for (uint32_t i = 0; i < BMI_TASK_GROUP_REGIONS; i++)
        regions[i] = (struct bmi_task_group_region){.bytes = i + 1, .node = -1};
    CU_ASSERT_EQUAL(bmi_task_group_set_hints(group, &hints), 0);
    struct bmi_task_group *same = group_make(NULL, &hints), *other = group_on(0, true, 1, 0);
    submit(other, 0, 1);
    CU_ASSERT_EQUAL(bmi_task_group_merge(group, other), -BMI_EINVAL);
    CU_ASSERT_EQUAL(statistics_of(other).outstanding, 1);
    CU_ASSERT_EQUAL(bmi_task_group_merge(group, same), 0);
    bmi_task_group_close(other);
    bmi_task_group_close(same);
    bmi_task_group_close(group);
    bmi_task_group_close(NULL);
    bmi_task_manager_destroy(manager);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"home near its memory", test_home_near_memory},
        {"home with room", test_home_has_room},
        {"home below the parent's", test_home_below_the_parent},
        {"a wide group after near work", test_wide_group_after_near_work},
        {"one node", test_one_node},
        {"an idle CPU takes tasks", test_pull_of_tasks},
        {"stays while home has room", test_stays_while_home_has_room},
        {"an idle CPU takes tasks and memory", test_pull_of_tasks_and_memory},
        {"memory that does not move along", test_pull_without_memory},
        {"memory moves to the tasks", test_pull_of_memory},
        {"memory that cannot be moved", test_memory_that_fails},
        {"a sleeping worker looks", test_sleeping_worker_looks},
        {"membership of a task", test_membership},
        {"cancel", test_cancel},
        {"split and merge", test_split_and_merge},
        {"memory stays after a split", test_split_memory_stays},
        {"shutdown", test_shutdown},
        {"bad input", test_bad_input},
        CU_TEST_INFO_NULL,
    };
    return test_run("groups", cases);
}
