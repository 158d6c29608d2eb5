/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The costs by which groups are placed: derived from samples, measured, given, and the defaults
 * with their causes. Machines of several nodes are trees whose nodes are parts of this machine, or
 * are not there. The start of a thread and the clock are stand-ins that call the real ones, unless
 * a case wants another behaviour. `task_numa` measures on real nodes.
 */
#include "task/costs.h"
#include "task/internal.h"
#include "task/testing.h"

#include <math.h>
#include <sys/syscall.h>

/* ---- stand-ins ------------------------------------------------------------------------------- */

static unsigned started;
static bool never_starts;

int __real_bmi__thread_start(pthread_t *thread, void *(*function)(void *), void *argument,
                             int os_cpu, const char *name, uint32_t number);
int __wrap_bmi__thread_start(pthread_t *thread, void *(*function)(void *), void *argument,
                             int os_cpu, const char *name, uint32_t number);

int __wrap_bmi__thread_start(pthread_t *thread, void *(*function)(void *), void *argument,
                             int os_cpu, const char *name, uint32_t number)
{
    started++;
    return never_starts
               ? 0
               : __real_bmi__thread_start(thread, function, argument, os_cpu, name, number);
}

static _Atomic(uint64_t) step_ns, ahead_ns; /* the clock gains so much in each call; so far */

uint64_t __real_bmi__now_ns(void);
uint64_t __wrap_bmi__now_ns(void);

uint64_t __wrap_bmi__now_ns(void)
{
    return __real_bmi__now_ns() + atomic_fetch_add(&ahead_ns, atomic_load(&step_ns));
}

/* ---- samples --------------------------------------------------------------------------------- */

/* Two nodes of 50 ns a KiB, twice that from the other one; a region moves in 3000 ns and 200 ns a
 * KiB, of which 50 are the remote read. */
static struct bmi__samples two_nodes(void)
{
    return (struct bmi__samples){
        .count = 2,
        .numa = {0, 1},
        .distance = {{0, 1}, {1, 0}},
        .read_ns_per_kib = {{50, 100}, {100, 50}},
        .page_kib = 4,
        .move_page_ns = 3000 + 4 * 200,
        .move_pages_ns = 3000 + BMI__CALIBRATE_KIB * 200,
        .cold_ns = 2500,
        .warm_ns = 500,
        .cause = "the cause",
    };
}

static struct bmi__calibration derived(const struct bmi__samples *samples)
{
    struct bmi__calibration calibration;
    bmi__costs_derive(samples, &calibration);
    return calibration;
}

static bool is_measured(const struct bmi__calibration *calibration, int i)
{
    return calibration->source[i] == BMI_TASK_COST_MEASURED && calibration->cause[i][0] == '\0';
}

static bool is_default(const struct bmi__calibration *calibration, int i, const char *cause)
{
    return calibration->source[i] == BMI_TASK_COST_DEFAULT &&
           strstr(calibration->cause[i], cause) != NULL;
}

static void test_derives(void)
{
    struct bmi__samples samples = two_nodes();
    struct bmi__calibration got = derived(&samples);
    for (int i = 0; i < BMI__COSTS; i++)
        CU_ASSERT_TRUE(is_measured(&got, i));
    CU_ASSERT_DOUBLE_EQUAL(got.costs.local_ns_per_kib, 50, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(got.costs.remote_factor, 1, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(got.costs.move_ns_per_kib, 150, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(got.costs.move_region_ns, 3000, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(got.costs.move_task_ns, 2000, 1e-6);
}

/* Each level of distance counts, and one odd pair does not. */
static void test_derives_from_many(void)
{
    struct bmi__samples samples = two_nodes();
    samples.count = 4;
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            samples.distance[i][j] = i == j ? 0 : i / 2 == j / 2 ? 1 : 2;
            samples.read_ns_per_kib[i][j] = 40 * (1 + 0.5 * samples.distance[i][j]);
        }
    }
    samples.read_ns_per_kib[0][3] = 4000;
    samples.read_ns_per_kib[2][2] = INFINITY;
    struct bmi__calibration got = derived(&samples);
    CU_ASSERT_TRUE(is_measured(&got, 0) && is_measured(&got, 1));
    CU_ASSERT_DOUBLE_EQUAL(got.costs.local_ns_per_kib, 40, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(got.costs.remote_factor, 0.5, 1e-6);
}

/* The home of a group whose memory is on the last of four nodes. */
static int home_with(const struct bmi_task_costs *costs)
{
    struct bmi_task_settings settings = {
        .topology = BMI_TASK_TOPOLOGY_SYNTHETIC,
        .topology_text = "numa:4 core:2 pu:1",
    };
    struct bmi_task_manager *manager = test_manager(&settings, BMI_TASK_HOOKS_ONLY);
    struct bmi_task_group_region region = {.bytes = 4096, .read = 4096, .node = 3};
    struct bmi_task_group_hints hints = {.regions = &region, .count = 1};
    struct bmi_task_group_statistics statistics;
    struct bmi_task_group *group;
    struct bmi_task task;
    atomic_uint runs = 0;
    CU_ASSERT_EQUAL(bmi_task_group_set_costs(manager, costs), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_group_create(manager, NULL, &hints, &group), 0);
    test_prepare_on(&task, manager, test_count, &runs, 0, NULL);
    CU_ASSERT_EQUAL(bmi_task_group_submit(group, &task), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), 0);
    bmi_task_group_statistics(group, &statistics);
    int node = manager->topology.nodes[statistics.home].numa;
    bmi_task_group_close(group);
    bmi_task_manager_destroy(manager);
    return node;
}

/* Nodes that are alike: still, a group goes to the node of its memory. */
static void test_remote_within_noise(void)
{
    struct bmi__samples samples = two_nodes();
    samples.read_ns_per_kib[0][1] = samples.read_ns_per_kib[1][0] = 45;
    struct bmi__calibration got = derived(&samples);
    CU_ASSERT_TRUE(is_measured(&got, 1));
    CU_ASSERT_DOUBLE_EQUAL(got.costs.remote_factor, 0.05, 1e-9);
    CU_ASSERT_EQUAL(home_with(&got.costs), 3);
    got.costs.remote_factor = 0;
    CU_ASSERT_NOT_EQUAL(home_with(&got.costs), 3);
}

static void test_refuses_absurd_figures(void)
{
    struct bmi__samples samples = two_nodes();
    samples.read_ns_per_kib[0][0] = samples.read_ns_per_kib[1][1] = 1e5;
    samples.move_pages_ns = samples.move_page_ns / 2;
    samples.warm_ns = 2 * samples.cold_ns;
    struct bmi__calibration got = derived(&samples);
    CU_ASSERT_TRUE(is_default(&got, 0, "measured as 1e+05, not within 2 to 5000"));
    CU_ASSERT_TRUE(is_default(&got, 1, "measured as -0.999"));
    CU_ASSERT_TRUE(is_default(&got, 2, "measured as -"));
    CU_ASSERT_TRUE(is_default(&got, 4, "measured as -2500"));
    CU_ASSERT_EQUAL(got.costs.local_ns_per_kib, bmi__place_typical.local_ns_per_kib);
    CU_ASSERT_EQUAL(got.costs.remote_factor, bmi__place_typical.remote_factor);
    CU_ASSERT_EQUAL(got.costs.move_ns_per_kib, bmi__place_typical.move_ns_per_kib);
    CU_ASSERT_EQUAL(got.costs.move_task_ns, bmi__place_typical.move_task_ns);
    samples = two_nodes();
    samples.move_page_ns = 1e9;
    samples.move_pages_ns = 2e9;
    got = derived(&samples);
    CU_ASSERT_TRUE(is_default(&got, 3, "not within 0 to 1e+07"));
    CU_ASSERT_EQUAL(got.costs.move_region_ns, bmi__place_typical.move_region_ns);
}

static void test_names_the_cause_of_missing_samples(void)
{
    struct bmi__samples samples = two_nodes();
    samples.read_ns_per_kib[0][1] = samples.read_ns_per_kib[1][0] = INFINITY;
    samples.move_page_ns = samples.warm_ns = INFINITY;
    struct bmi__calibration got = derived(&samples);
    CU_ASSERT_TRUE(is_measured(&got, 0));
    for (int i = 1; i < BMI__COSTS; i++)
        CU_ASSERT_TRUE(is_default(&got, i, "the cause"));
}

/* ---- measuring ------------------------------------------------------------------------------- */

enum { LONG_MS = 100000 }; /* as much time as a loaded test machine needs */

/* A tree of two nodes of one CPU each, with these numbers of CPUs and nodes. */
static struct bmi__samples measured_with(const int cpus[2], const int numa[2], int budget_ms,
                                         int limit_ms)
{
    struct bmi_task_settings settings = {
        .topology = BMI_TASK_TOPOLOGY_SYNTHETIC,
        .topology_text = "numa:2 pu:1",
    };
    struct bmi__topology topology;
    struct bmi__place_machine machine;
    struct bmi__samples samples;
    char error[256];
    CU_ASSERT_EQUAL_FATAL(bmi__topology_build(&settings, &topology, error, sizeof(error)), 0);
    bmi__place_machine_make(&machine, &topology, &bmi__place_typical, 0, 0);
    CU_ASSERT_EQUAL_FATAL(machine.node_count, 2);
    for (int i = 0; i < 2; i++) {
        topology.os_of[i] = (uint16_t)cpus[i];
        topology.nodes[machine.vertices[i]].numa = numa[i];
    }
    bmi__calibrate(&machine, budget_ms, limit_ms, &samples);
    bmi__topology_free(&topology);
    return samples;
}

static int first_cpu(void)
{
    struct bmi_cpuset all;
    bmi_task_cpus(NULL, &all);
    return bmi_cpuset_next(&all, 0);
}

/* Whether this system has the calls to place memory. Emulators and sandboxes may lack them. */
static bool can_place(void)
{
    bool can = syscall(SYS_get_mempolicy, NULL, NULL, 0ul, NULL, 0ul) == 0;
    if (!can)
        printf("(memory cannot be placed here) ");
    return can;
}

static struct bmi__samples measured_here(int second_node, int budget_ms, int limit_ms)
{
    const int cpus[] = {first_cpu(), first_cpu()}, numa[] = {0, second_node};
    return measured_with(cpus, numa, budget_ms, limit_ms);
}

static void test_measures(void)
{
    struct bmi__samples samples = measured_here(0, LONG_MS, LONG_MS);
    if (!can_place()) {
        CU_ASSERT_PTR_NOT_NULL(strstr(samples.cause, "memory cannot be put on node 0"));
        return;
    }
    CU_ASSERT_STRING_EQUAL(samples.cause, "");
    for (int i = 0; i < 4; i++)
        CU_ASSERT_TRUE(samples.read_ns_per_kib[i / 2][i % 2] > 0 &&
                       samples.read_ns_per_kib[i / 2][i % 2] < INFINITY);
    CU_ASSERT_TRUE(samples.move_page_ns > 0 && samples.move_pages_ns < INFINITY);
    CU_ASSERT_TRUE(samples.cold_ns > 0 && samples.warm_ns < INFINITY);
    struct bmi__calibration got = derived(&samples);
    printf("(%.3g ns/KiB, in %.1f ms) ", got.costs.local_ns_per_kib, (double)samples.took_ns / 1e6);
    CU_ASSERT_TRUE(is_measured(&got, 0));
}

static void test_node_without_memory(void)
{
    struct bmi__samples samples = measured_here(BMI_CPUSET_MAX - 1, LONG_MS, LONG_MS);
    if (!can_place())
        return;
    CU_ASSERT_PTR_NOT_NULL(strstr(samples.cause, "memory cannot be put on node 1023: "));
    CU_ASSERT_TRUE(samples.read_ns_per_kib[0][0] < INFINITY);
    CU_ASSERT_TRUE(samples.read_ns_per_kib[1][0] < INFINITY);
    CU_ASSERT_TRUE(isinf(samples.read_ns_per_kib[0][1]));
    CU_ASSERT_TRUE(isinf(samples.move_pages_ns));
}

static void test_node_of_a_forbidden_cpu(void)
{
    const int cpus[] = {first_cpu(), BMI_CPUSET_MAX - 1}, numa[] = {0, 0};
    struct bmi__samples samples = measured_with(cpus, numa, LONG_MS, LONG_MS);
    if (!can_place())
        return;
    CU_ASSERT_PTR_NOT_NULL(strstr(samples.cause, "no thread can be bound to node 0: "));
    CU_ASSERT_TRUE(samples.read_ns_per_kib[0][1] < INFINITY);
    CU_ASSERT_TRUE(isinf(samples.read_ns_per_kib[1][0]));
    CU_ASSERT_TRUE(isinf(samples.cold_ns));
}

/* The thread stops by its clock, which runs fast here: 1 ms passes with each look. */
static void test_thread_keeps_to_its_budget(void)
{
    uint64_t start = bmi__now_ns();
    atomic_store(&step_ns, 1000000);
    struct bmi__samples samples = measured_here(0, 40, LONG_MS);
    atomic_store(&step_ns, 0);
    if (!can_place())
        return;
    CU_ASSERT_PTR_NOT_NULL(strstr(samples.cause, "there was no time for 2 rounds in 40 ms"));
    CU_ASSERT_TRUE(bmi__now_ns() - start >= 40000000);
    CU_ASSERT_TRUE(isinf(samples.read_ns_per_kib[0][0]) && isinf(samples.cold_ns));
}

/* The thread gets no CPU: the caller goes on, but not earlier than it should. */
static void test_caller_keeps_to_its_limit(void)
{
    uint64_t start = bmi__now_ns();
    never_starts = true;
    struct bmi__samples samples = measured_here(0, LONG_MS, 8);
    never_starts = false;
    CU_ASSERT_TRUE(bmi__now_ns() - start >= 8000000);
    struct bmi__calibration got = derived(&samples);
    for (int i = 0; i < BMI__COSTS; i++)
        CU_ASSERT_TRUE(is_default(&got, i, "did not end within 8 ms"));
}

/* ---- of a manager ---------------------------------------------------------------------------- */

static struct bmi_task_manager *manager_of(const char *tree)
{
    struct bmi_task_settings settings = {
        .topology = tree != NULL ? BMI_TASK_TOPOLOGY_SYNTHETIC : BMI_TASK_TOPOLOGY_LIVE,
        .topology_text = tree,
    };
    return test_manager(&settings, BMI_TASK_HOOKS_ONLY);
}

static void check_costs(struct bmi_task_manager *manager, const struct bmi_task_costs *costs,
                        enum bmi_task_cost_source source, const char *cause)
{
    const double values[] = {costs->local_ns_per_kib, costs->remote_factor, costs->move_ns_per_kib,
                             costs->move_region_ns, costs->move_task_ns};
    for (int i = 0; i < BMI__COSTS; i++) {
        struct bmi_task_cost cost;
        CU_ASSERT_EQUAL_FATAL(bmi_task_group_cost(manager, i, &cost), 0);
        CU_ASSERT_EQUAL(cost.value, values[i]);
        CU_ASSERT_EQUAL(cost.source, source);
        CU_ASSERT_STRING_EQUAL(cost.cause, cause);
    }
}

/* No thread is started where there is nothing to measure. */
static void test_not_measured(void)
{
    static const char *const trees[] = {"core:2 pu:1", "package:2 numa:2 core:2 pu:1"};
    static const char *const causes[] = {"there is one node", "the topology is not this machine's"};
    started = 0;
    for (int i = 0; i < 2; i++) {
        struct bmi_task_manager *manager = manager_of(trees[i]);
        struct bmi_task_group *group;
        CU_ASSERT_EQUAL_FATAL(bmi_task_group_create(manager, NULL, NULL, &group), 0);
        check_costs(manager, &bmi__place_typical, BMI_TASK_COST_DEFAULT, causes[i]);
        bmi_task_group_close(group);
        bmi_task_manager_destroy(manager);
    }
    CU_ASSERT_EQUAL(started, 0);
}

static void test_given(void)
{
    struct bmi_task_manager *manager = manager_of("numa:2 core:2 pu:1");
    struct bmi_task_group *group;
    manager->topology.this_system = true; /* so that a measurement would begin */
    started = 0;
    CU_ASSERT_EQUAL(bmi_task_group_set_costs(manager, &test_round_costs), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_group_create(manager, NULL, NULL, &group), 0);
    check_costs(manager, &test_round_costs, BMI_TASK_COST_GIVEN, "");
    CU_ASSERT_EQUAL(started, 0);
    CU_ASSERT_EQUAL(bmi_task_group_set_costs(manager, &bmi__place_typical), -BMI_EBUSY);
    check_costs(manager, &test_round_costs, BMI_TASK_COST_GIVEN, "");
    bmi_task_group_close(group);
    manager->topology.this_system = false;
    CU_ASSERT_EQUAL(bmi_task_group_set_costs(manager, NULL), 0);
    check_costs(manager, &bmi__place_typical, BMI_TASK_COST_DEFAULT,
                "the topology is not this machine's");
    bmi_task_manager_destroy(manager);
}

/* Not when the manager is made, but with the first group, and no more than once in a process. */
static void test_measured_once(void)
{
    struct bmi_task_manager *managers[2];
    struct bmi_task_cost costs[2];
    started = 0;
    for (int i = 0; i < 2; i++) {
        struct bmi_task_group *group;
        managers[i] = manager_of("numa:2 core:2 pu:1");
        managers[i]->topology.this_system = true;
        CU_ASSERT_EQUAL(started, (unsigned)i);
        CU_ASSERT_EQUAL_FATAL(bmi_task_group_create(managers[i], NULL, NULL, &group), 0);
        CU_ASSERT_EQUAL(started, 1);
        CU_ASSERT_EQUAL(bmi_task_group_cost(managers[i], 0, &costs[i]), 0);
        bmi_task_group_close(group);
    }
    CU_ASSERT_EQUAL(costs[0].value, costs[1].value);
    for (int i = 0; i < 2; i++)
        bmi_task_manager_destroy(managers[i]);
}

static void test_nodes(void)
{
    struct bmi_task_manager *manager = manager_of("package:2 numa:2(memory=64MB) core:2 pu:1");
    struct bmi_task_numa numa;
    int distance;
    double ns;
    for (int i = 0; i < 4; i++) {
        CU_ASSERT_EQUAL_FATAL(bmi_task_numa_node(manager, i, &numa), 0);
        CU_ASSERT_EQUAL(numa.node, i);
        CU_ASSERT_EQUAL(numa.queue, (int)bmi__topology_numa(&manager->topology, i));
        CU_ASSERT_EQUAL(numa.memory, 64000000);
        CU_ASSERT_EQUAL(bmi_task_numa_access(manager, 0, i, &distance, &ns), 0);
        CU_ASSERT_EQUAL(distance, i == 0 ? 0 : i == 1 ? 1 : 2);
        CU_ASSERT_EQUAL(ns, 0);
    }
    CU_ASSERT_EQUAL(bmi_task_numa_node(manager, 4, &numa), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_numa_node(manager, -1, &numa), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_numa_node(manager, 0, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_numa_access(manager, 0, 4, &distance, &ns), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_numa_access(manager, -1, 0, &distance, &ns), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_numa_access(manager, 0, 0, NULL, &ns), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_numa_access(manager, 0, 0, &distance, NULL), -BMI_EINVAL);
    struct bmi_task_cost cost;
    CU_ASSERT_EQUAL(bmi_task_group_cost(manager, BMI__COSTS, &cost), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_group_cost(manager, -1, &cost), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_group_cost(manager, 0, NULL), -BMI_EINVAL);
    bmi_task_manager_destroy(manager);
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"derived from two nodes", test_derives},
        {"derived from many nodes", test_derives_from_many},
        {"remote memory within the noise", test_remote_within_noise},
        {"absurd figures", test_refuses_absurd_figures},
        {"missing samples", test_names_the_cause_of_missing_samples},
        {"measures", test_measures},
        {"a node without memory", test_node_without_memory},
        {"a node of a forbidden CPU", test_node_of_a_forbidden_cpu},
        {"the thread keeps to its budget", test_thread_keeps_to_its_budget},
        {"the caller keeps to its limit", test_caller_keeps_to_its_limit},
        {"not measured", test_not_measured},
        {"given", test_given},
        {"measured once", test_measured_once},
        {"nodes", test_nodes},
        CU_TEST_INFO_NULL,
    };
    return test_run("costs", cases);
}
