/* SPDX-License-Identifier: BSD-3-Clause
 *
 * group_test.c - machines that belong to a group of tasks, on a machine of 2 NUMA nodes of 4 CPUs.
 * hwloc takes that machine from HWLOC_SYNTHETIC; workers are not bound to its CPUs. In the
 * foreground a group has no effect.
 */
#include "bmi/base/clock.h"
#include "bmi/task_group.h"
#include "job/job_case.h"

enum { NODE_CPUS = 4, MACHINES = 20 };

static struct bmi_task_group *group;
static struct bmi_sm_placement placement;

static void given_a_group_on(int node)
{
    struct bmi_task_group_region region = {.bytes = 1 << 20,
                                           .read = 1 << 20,
                                           .node = node,
                                           .stays = true};
    struct bmi_task_group_hints hints = {.regions = &region, .count = 1, .tasks_stay = true};
    CU_ASSERT_EQUAL_FATAL(bmi_task_group_create(NULL, NULL, &hints, &group), 0);
    placement = (struct bmi_sm_placement){.group = group};
}

static struct bmi_task_group_statistics group_read(void)
{
    struct bmi_task_group_statistics statistics;
    bmi_task_group_statistics(group, &statistics);
    return statistics;
}

/* The node whose CPUs the group's home has; -1: it has no home. */
static int home_node(void)
{
    struct bmi_task_queue_statistics statistics;
    int home = group_read().home;
    if (home < 0)
        return -1;
    CU_ASSERT_EQUAL_FATAL(bmi_task_queue_statistics(NULL, home, &statistics), 0);
    CU_ASSERT_EQUAL(bmi_cpuset_count(&statistics.cpus), NODE_CPUS);
    return bmi_cpuset_next(&statistics.cpus, 0) / NODE_CPUS;
}

static void group_end(void)
{
    CU_ASSERT_EQUAL(group_read().waiting, 0);
    bmi_task_group_close(group);
}

/* ---- a machine: an action, an event, a child, an action -------------------------------------- */

struct seen {
    uint32_t first, in_child, last; /* outstanding tasks of the group, in actions */
};

/* A millisecond, in which the machine does not belong to the group. */
static int pause_a_little(struct bmi_sm *machine, void *data)
{
    struct bmi_job_options options = {.machine = machine};
    (void)data;
    return bmi_sm_posted(bmi_job_timer(bmi_sm_context(machine), bmi__monotonic_ns() + 1000000,
                                       &options, NULL, NULL));
}

static int child_look(struct bmi_sm *machine, void *data)
{
    struct seen *seen = data;
    (void)machine;
    seen->in_child = group_read().outstanding;
    return BMI_SM_DONE;
}

enum { PAUSE, LOOK };
static const struct bmi_sm_state child_states[] = {[PAUSE] = {"pause", .action = pause_a_little,
                                                              .on = {BMI_SM_ELSE(LOOK)}},
                                                   [LOOK] = {"look", .action = child_look,
                                                             .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table child_table = BMI_SM_TABLE("child", child_states);

static int look_first(struct bmi_sm *machine, void *data)
{
    struct seen *seen = data;
    seen->first = group_read().outstanding;
    return pause_a_little(machine, data);
}

static int start_child(struct bmi_sm *machine, void *data)
{
    struct bmi_job_options options = {.machine = machine};
    return bmi_sm_posted(
        bmi_sm_start(bmi_sm_context(machine), &child_table, data, NULL, &options, NULL, NULL));
}

static int look_last(struct bmi_sm *machine, void *data)
{
    struct seen *seen = data;
    (void)machine;
    seen->last = group_read().outstanding;
    return BMI_SM_DONE;
}

enum { FIRST, CHILD, LAST };
static const struct bmi_sm_state states[] = {
    [FIRST] = {"first", .action = look_first, .on = {BMI_SM_OK(CHILD), BMI_SM_FAIL(BMI_SM_END)}},
    [CHILD] = {"child", .action = start_child, .on = {BMI_SM_OK(LAST), BMI_SM_FAIL(BMI_SM_END)}},
    [LAST] = {"last", .action = look_last, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table table = BMI_SM_TABLE("machine", states);

/* ---- tests ----------------------------------------------------------------------------------- */

static void a_machine_belongs_to_its_group(void)
{
    for (int node = 0; node < 2; node++) {
        struct seen seen = {0};
        bmi_job_id_t id;
        given_a_group_on(node);
        CU_ASSERT_EQUAL_FATAL(bmi_sm_start(job_case.context, &table, &seen, &placement, NULL, &id,
                                           NULL),
                              0);
        CU_ASSERT_EQUAL(job_case_fetch().error, 0);
        if (job_case.background) {
            CU_ASSERT_EQUAL(seen.first, 1);
            /* a machine that has just deferred or ended may still be counted */
            CU_ASSERT(seen.in_child == 1 || seen.in_child == 2);
            CU_ASSERT(seen.last == 1 || seen.last == 2);
            CU_ASSERT_EQUAL(home_node(), node);
        } else {
            CU_ASSERT_EQUAL(seen.first + seen.in_child + seen.last, 0);
            CU_ASSERT_EQUAL(home_node(), -1);
        }
        group_end();
    }
}

static void many_machines_of_one_group_end(void)
{
    static struct seen seen[MACHINES];
    given_a_group_on(1);
    for (int i = 0; i < MACHINES; i++)
        CU_ASSERT_EQUAL_FATAL(bmi_sm_start(job_case.context, &table, &seen[i], &placement, NULL,
                                           NULL, NULL),
                              0);
    for (int i = 0; i < MACHINES; i++)
        CU_ASSERT_EQUAL(job_case_fetch().error, 0);
    group_end();
}

static void a_group_does_not_suit(void)
{
    struct bmi_task_manager *other;
    struct bmi_task_group *foreign;
    struct bmi_cpuset cpus;
    bmi_task_cpus(NULL, &cpus);
    given_a_group_on(0);
    placement.cpus = &cpus;
    CU_ASSERT_EQUAL(bmi_sm_start(job_case.context, &table, NULL, &placement, NULL, NULL, NULL),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_create(NULL, &other, NULL, 0), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_group_create(other, NULL, NULL, &foreign), 0);
    placement = (struct bmi_sm_placement){.group = foreign};
    CU_ASSERT_EQUAL(bmi_sm_start(job_case.context, &table, NULL, &placement, NULL, NULL, NULL),
                    -BMI_EINVAL);
    job_case_none();
    bmi_task_group_close(foreign);
    bmi_task_manager_destroy(other);
    group_end();
}

static CU_TestInfo tests[] = {{"a machine belongs to its group", a_machine_belongs_to_its_group},
                              {"many machines of one group end", many_machines_of_one_group_end},
                              {"a group that does not suit is refused", a_group_does_not_suit},
                              CU_TEST_INFO_NULL};

int main(void)
{
    setenv("HWLOC_SYNTHETIC", "package:2 numa:1 core:4 pu:1", 1);
    return job_case_run("groups, foreground", "groups, background", tests);
}
