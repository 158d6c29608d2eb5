/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Groups of tasks on a machine with several NUMA nodes, such as a guest (tests/vm/groups.sh): what
 * memory costs is measured, tasks run where their groups are, and /proc/self/numa_maps shows pages
 * where the decisions say, and others where they were.
 */
#include "task/costs.h"
#include "task/internal.h"
#include "task/testing.h"

#include <inttypes.h>
#include <math.h>
#include <sys/mman.h>

enum { BYTES = 1 << 20, LARGE = 8 << 20, MOST_TASKS = 64, LONG_MS = 100000 };

static struct bmi_task_manager *manager;
static struct bmi_task tasks[MOST_TASKS];
static int cpus_used[MOST_TASKS];

static void given_manager(enum bmi_task_threads threads, const struct bmi_task_costs *costs)
{
    manager = test_manager(NULL, threads);
    CU_ASSERT_EQUAL(bmi_task_group_set_costs(manager, costs), 0);
}

static struct bmi_task_numa numa_at(int index)
{
    struct bmi_task_numa numa = {.node = -1};
    CU_ASSERT_EQUAL_FATAL(bmi_task_numa_node(manager, index, &numa), 0);
    return numa;
}

static struct bmi_task_numa last_numa(void)
{
    return numa_at(bmi__topology_numa_count(&manager->topology) - 1);
}

static struct bmi_cpuset cpus_of(struct bmi_task_numa numa)
{
    struct bmi_task_queue_statistics statistics;
    CU_ASSERT_EQUAL_FATAL(bmi_task_queue_statistics(manager, numa.queue, &statistics), 0);
    return statistics.cpus;
}

/* ---- memory, as the kernel sees it ----------------------------------------------------------- */

/* Touched pages on a node. Pages that cannot be accessed keep the mapping apart from others. */
static void *memory_on(int node)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *all = mmap(NULL, BYTES + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(all, MAP_FAILED);
    char *memory = all + page;
    CU_ASSERT_EQUAL_FATAL(mprotect(memory, BYTES, PROT_READ | PROT_WRITE), 0);
    CU_ASSERT_EQUAL(bmi_task_memory_move(manager, memory, BYTES, node), 0);
    memset(memory, 1, BYTES);
    return memory;
}

static void memory_free(void *memory)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    munmap((char *)memory - page, BYTES + 2 * page);
}

/* Whether all pages of a mapping lie on a node, by /proc/self/numa_maps: "7f0000 bind:1 N1=256". */
static bool lies_on(const void *memory, int node)
{
    char line[4096], wanted[32];
    bool does = false;
    FILE *maps = fopen("/proc/self/numa_maps", "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(maps);
    snprintf(wanted, sizeof(wanted), " N%d=%ld ", node, BYTES / sysconf(_SC_PAGESIZE));
    while (fgets(line, sizeof(line), maps) != NULL) {
        if (strtoull(line, NULL, 16) != (uintptr_t)memory)
            continue;
        does = strstr(line, wanted) != NULL;
        if (!does)
            printf("not on node %d: %s", node, line);
    }
    fclose(maps);
    return does;
}

/* Whether the kernel was asked for huge pages, by /proc/self/smaps. */
static bool may_be_huge(const void *memory)
{
    char line[4096];
    bool here = false, may = false;
    FILE *maps = fopen("/proc/self/smaps", "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(maps);
    while (fgets(line, sizeof(line), maps) != NULL) {
        uintptr_t begin, end;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2)
            here = begin <= (uintptr_t)memory && (uintptr_t)memory < end;
        else if (here && strncmp(line, "VmFlags:", 8) == 0)
            may = strstr(line, " hg") != NULL;
    }
    fclose(maps);
    return may;
}

static void test_large_memory_has_huge_pages(void)
{
    void *large, *small;
    manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    int node = last_numa().node;
    CU_ASSERT_EQUAL_FATAL(bmi_task_memory_allocate(manager, LARGE, node, &large), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_memory_allocate(manager, BYTES, node, &small), 0);
    memset(large, 1, LARGE);
    CU_ASSERT_TRUE(may_be_huge(large));
    CU_ASSERT_FALSE(may_be_huge(small));
    CU_ASSERT_EQUAL(bmi_task_memory_node(manager, large, LARGE), node);
    CU_ASSERT_EQUAL(bmi_task_memory_move(manager, large, LARGE, numa_at(0).node), 0);
    CU_ASSERT_EQUAL(bmi_task_memory_node(manager, large, LARGE), numa_at(0).node);
    bmi_task_memory_free(large, LARGE);
    bmi_task_memory_free(small, BYTES);
    bmi_task_manager_destroy(manager);
}

/* ---- costs ----------------------------------------------------------------------------------- */

static void test_measures_all_pairs(void)
{
    struct bmi__place_machine machine;
    struct bmi__samples samples;
    struct bmi__calibration got;
    manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    bmi__place_machine_make(&machine, &manager->topology, &bmi__place_typical, 0, 0);
    bmi__calibrate(&machine, LONG_MS, LONG_MS, &samples);
    printf("(in %.1f ms) ", (double)samples.took_ns / 1e6);
    CU_ASSERT_STRING_EQUAL(samples.cause, "");
    for (uint32_t i = 0; i < samples.count * samples.count; i++) {
        double ns = samples.read_ns_per_kib[i / samples.count][i % samples.count];
        CU_ASSERT_TRUE(ns > 0 && ns < INFINITY);
    }
    CU_ASSERT_TRUE(samples.move_page_ns > 0 && samples.move_page_ns < samples.move_pages_ns);
    CU_ASSERT_TRUE(samples.move_pages_ns < INFINITY);
    bmi__costs_derive(&samples, &got);
    CU_ASSERT_EQUAL(got.source[0], BMI_TASK_COST_MEASURED);
    bmi_task_manager_destroy(manager);
}

/* Either measured or with a cause, since a guest may get no CPU for that long. */
static void test_costs_of_the_manager(void)
{
    struct bmi_task_cost cost;
    struct bmi_task_group *group;
    manager = test_manager(NULL, BMI_TASK_HOOKS_ONLY);
    uint64_t start = test_now_ns();
    CU_ASSERT_EQUAL_FATAL(bmi_task_group_create(manager, NULL, NULL, &group), 0);
    printf("(first group after %.1f ms) ", (double)(test_now_ns() - start) / 1e6);
    for (int i = 0; bmi_task_group_cost(manager, i, &cost) == 0; i++) {
        CU_ASSERT_EQUAL(cost.source == BMI_TASK_COST_DEFAULT, cost.cause[0] != '\0');
        CU_ASSERT_NOT_EQUAL(cost.source, BMI_TASK_COST_GIVEN);
        CU_ASSERT_STRING_NOT_EQUAL(cost.cause, "there is one node");
        printf("\n    %s %g %s", cost.name, cost.value, cost.cause);
    }
    bmi_task_group_close(group);
    bmi_task_manager_destroy(manager);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static enum bmi_task_status note_cpu(struct bmi_task *task, void *argument)
{
    (void)task;
    *(int *)argument = sched_getcpu();
    return BMI_TASK_DONE;
}

static void submit(struct bmi_task_group *group, int first, int count)
{
    for (int i = first; i < first + count; i++) {
        cpus_used[i] = -1;
        test_prepare_on(&tasks[i], manager, note_cpu, &cpus_used[i], 0, NULL);
        CU_ASSERT_EQUAL(bmi_task_group_submit(group, &tasks[i]), 0);
    }
}

static struct bmi_task_group *group_of(const struct bmi_task_group_hints *hints)
{
    struct bmi_task_group *group = NULL;
    CU_ASSERT_EQUAL_FATAL(bmi_task_group_create(manager, NULL, hints, &group), 0);
    return group;
}

/* On each node, more tasks than it has CPUs, which must not leave it. */
static void test_tasks_run_near_their_memory(void)
{
    given_manager(BMI_TASK_WORKERS, &test_round_costs);
    for (int i = 0; i < bmi__topology_numa_count(&manager->topology); i++) {
        struct bmi_task_numa numa = numa_at(i);
        struct bmi_cpuset cpus = cpus_of(numa);
        struct bmi_task_group_region region = {
            .address = memory_on(numa.node),
            .bytes = BYTES,
            .read = 10 * BYTES,
            .node = numa.node,
            .stays = true,
        };
        struct bmi_task_group_hints hints = {.regions = &region, .count = 1, .tasks_stay = true};
        struct bmi_task_group *group = group_of(&hints);
        int count = 2 * bmi_cpuset_count(&cpus);
        submit(group, 0, count);
        for (int j = 0; j < count; j++) {
            CU_ASSERT_EQUAL(bmi_task_wait(&tasks[j], -1), 0);
            CU_ASSERT_TRUE(bmi_cpuset_has(&cpus, cpus_used[j]));
        }
        struct bmi_task_group_statistics statistics;
        bmi_task_group_statistics(group, &statistics);
        CU_ASSERT_EQUAL(statistics.home, numa.queue);
        CU_ASSERT_TRUE(lies_on(region.address, numa.node));
        bmi_task_group_close(group);
        memory_free(region.address);
    }
    bmi_task_manager_destroy(manager);
}

static struct bmi_task_group_decision seen;

static void trace(void *argument, const struct bmi_task_group_decision *decision)
{
    if (decision->from >= 0 && decision->group == *(struct bmi_task_group **)argument)
        seen = *decision;
}

/* The first node has many tasks that cannot leave. A group with memory there, of which one region
 * is registered, moves to the last node, whose CPU, the caller's, has no work. */
static void test_moves_with_its_memory(void)
{
    given_manager(BMI_TASK_HOOKS_ONLY, &test_round_costs);
    struct bmi_task_numa first = numa_at(0), last = last_numa();
    struct bmi_cpuset cpus = cpus_of(last), one, before;
    bmi_cpuset_clear(&one);
    bmi_cpuset_add(&one, bmi_cpuset_next(&cpus, 0));
    struct bmi_task_group_region regions[2] = {
        {.address = memory_on(first.node), .bytes = BYTES, .read = 20 * BYTES, .node = first.node},
        {.address = memory_on(first.node),
         .bytes = BYTES,
         .read = BYTES,
         .node = first.node,
         .stays = true},
    };
    struct bmi_task_group_hints hints = {.regions = regions, .count = 2, .compute_ns = 100000};
    struct bmi_task_group_hints crowd = {.regions = &regions[1],
                                         .count = 1,
                                         .compute_ns = 100000,
                                         .tasks_stay = true};
    struct bmi_task_group *group = group_of(&hints), *others = group_of(&crowd);
    CU_ASSERT_EQUAL(bmi_task_group_trace(manager, trace, &group), 0);
    struct bmi_cpuset home = cpus_of(first);
    int count = 2 * bmi_cpuset_count(&home);
    submit(group, count, 1);
    submit(others, 0, count);
    CU_ASSERT_TRUE(lies_on(regions[0].address, first.node));

    CU_ASSERT_EQUAL(sched_getaffinity(0, sizeof(before), (cpu_set_t *)(void *)&before), 0);
    CU_ASSERT_EQUAL(sched_setaffinity(0, sizeof(one), (cpu_set_t *)(void *)&one), 0);
    while (bmi_task_schedule(manager) > 0)
        continue;
    CU_ASSERT_EQUAL(sched_setaffinity(0, sizeof(before), (cpu_set_t *)(void *)&before), 0);

    CU_ASSERT_EQUAL(seen.placement, BMI_TASK_PLACE_BOTH);
    CU_ASSERT_EQUAL(seen.from, first.queue);
    CU_ASSERT_EQUAL(seen.to, last.queue);
    CU_ASSERT_EQUAL(seen.moved, 1);
    CU_ASSERT_TRUE(bmi_cpuset_has(&one, cpus_used[count]));
    CU_ASSERT_EQUAL(bmi_task_queue_run_by(manager, last.queue, cpus_used[count]), 1);
    CU_ASSERT_TRUE(lies_on(regions[0].address, last.node));
    CU_ASSERT_TRUE(lies_on(regions[1].address, first.node));
    bmi_task_group_close(group);
    bmi_task_group_close(others);
    for (int i = 0; i < 2; i++)
        memory_free(regions[i].address);
    bmi_task_manager_destroy(manager);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"large memory has huge pages", test_large_memory_has_huge_pages},
        {"all pairs of nodes are measured", test_measures_all_pairs},
        {"costs of the manager", test_costs_of_the_manager},
        {"tasks run near their memory", test_tasks_run_near_their_memory},
        {"a group moves with its memory", test_moves_with_its_memory},
        CU_TEST_INFO_NULL,
    };
    struct bmi_task_numa numa;
    if (bmi_task_numa_node(NULL, 1, &numa) != 0) {
        printf("skipped: this machine has one NUMA node; vm.groups runs this in a guest\n");
        return TEST_SKIPPED;
    }
    return test_run("NUMA nodes", cases);
}
