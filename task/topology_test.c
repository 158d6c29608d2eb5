/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The tree as data: built by hand, as its source would.
 */
#include "task/testing.h"
#include "task/topology.h"
#include "tests/unit/emulation.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static struct bmi__topology tree;

static uint32_t add(uint32_t parent, int os, uint32_t levels, const char *name)
{
    uint32_t node = bmi__topology_add(&tree, parent, os);
    bmi__topology_name(&tree.nodes[node], name);
    tree.nodes[node].levels = levels;
    return node;
}

/* Two packages, each with a cache that two cores of two CPUs share; the system numbers the second
 * CPUs of all cores after the first ones. */
static void given_tree(void)
{
    memset(&tree, 0, sizeof(tree));
    tree.os_of = calloc(BMI_CPUSET_MAX, sizeof(*tree.os_of));
    tree.leaf_of = calloc(BMI_CPUSET_MAX, sizeof(*tree.leaf_of));
    for (int i = 0; i < BMI_CPUSET_MAX; i++)
        tree.local_of[i] = BMI__NO_CPU;
    uint32_t machine = add(BMI__NO_NODE, -1, 1u << BMI_TASK_LEVEL_MACHINE, "Machine");
    for (int package = 0; package < 2; package++) {
        uint32_t levels = 1u << BMI_TASK_LEVEL_PACKAGE | 1u << BMI_TASK_LEVEL_CACHE;
        uint32_t above = add(machine, -1, levels, "Package");
        bmi__topology_name(&tree.nodes[above], "L3");
        for (int core = 0; core < 2; core++) {
            levels = 1u << BMI_TASK_LEVEL_CORE | 1u << BMI_TASK_LEVEL_CACHE;
            uint32_t pair = add(above, -1, levels, "Core");
            add(pair, 2 * package + core, 1u << BMI_TASK_LEVEL_CPU, "PU");
            add(pair, 2 * package + core + 4, 1u << BMI_TASK_LEVEL_CPU, "PU");
        }
    }
}

static void test_shape(void)
{
    given_tree();
    CU_ASSERT_EQUAL(tree.cpu_count, 8);
    CU_ASSERT_EQUAL(tree.node_count, 1 + 2 + 4 + 8);
    CU_ASSERT_EQUAL(tree.nodes[0].count, 8);
    CU_ASSERT_EQUAL(tree.nodes[1].first, 0);
    CU_ASSERT_EQUAL(tree.nodes[1].count, 4);
    CU_ASSERT_STRING_EQUAL(tree.nodes[1].name, "Package + L3");
    CU_ASSERT_EQUAL(tree.os_of[1], 4);
    CU_ASSERT_EQUAL(tree.local_of[4], 1);
    struct bmi_cpuset cpus;
    bmi__topology_cpus(&tree, 1, &cpus);
    CU_ASSERT_EQUAL(bmi_cpuset_count(&cpus), 4);
    CU_ASSERT_TRUE(bmi_cpuset_has(&cpus, 5));
    CU_ASSERT_FALSE(bmi_cpuset_has(&cpus, 2));
    bmi__topology_free(&tree);
}

static void test_same_cpu_twice_is_refused(void)
{
    given_tree();
    CU_ASSERT_EQUAL(bmi__topology_add(&tree, 0, 3), BMI__NO_NODE);
    CU_ASSERT_EQUAL(bmi__topology_add(&tree, 0, BMI_CPUSET_MAX), BMI__NO_NODE);
    bmi__topology_free(&tree);
}

static void test_cover(void)
{
    given_tree();
    CU_ASSERT_EQUAL(bmi__topology_cover(&tree, 3, 3), tree.leaf_of[3]);
    CU_ASSERT_EQUAL(bmi__topology_cover(&tree, 2, 3), tree.nodes[tree.leaf_of[3]].parent);
    CU_ASSERT_EQUAL(bmi__topology_cover(&tree, 1, 3), 1);
    CU_ASSERT_EQUAL(bmi__topology_cover(&tree, 3, 4), 0);
    CU_ASSERT_EQUAL(bmi__topology_cover(&tree, 0, 7), 0);
    bmi__topology_free(&tree);
}

static void test_near(void)
{
    given_tree();
    uint32_t core = tree.nodes[tree.leaf_of[2]].parent;
    CU_ASSERT_EQUAL(bmi__topology_near(&tree, 2, BMI_TASK_LEVEL_CPU), tree.leaf_of[2]);
    CU_ASSERT_EQUAL(bmi__topology_near(&tree, 2, BMI_TASK_LEVEL_CORE), core);
    /* the core's own cache is not shared with other cores */
    CU_ASSERT_EQUAL(bmi__topology_near(&tree, 2, BMI_TASK_LEVEL_CACHE), 1);
    CU_ASSERT_EQUAL(bmi__topology_near(&tree, 2, BMI_TASK_LEVEL_NUMA), 1);
    CU_ASSERT_EQUAL(bmi__topology_near(&tree, 2, BMI_TASK_LEVEL_MACHINE), 0);
    bmi__topology_free(&tree);
}

static void test_nearest(void)
{
    given_tree();
    struct bmi_cpuset candidates;
    bmi_cpuset_clear(&candidates);
    CU_ASSERT_EQUAL(bmi__topology_nearest(&tree, &candidates, 3), BMI__NO_CPU);
    bmi_cpuset_add(&candidates, 6);
    CU_ASSERT_EQUAL(bmi__topology_nearest(&tree, &candidates, 3), 6);
    bmi_cpuset_add(&candidates, 0);
    CU_ASSERT_EQUAL(bmi__topology_nearest(&tree, &candidates, 3), 0);
    bmi_cpuset_add(&candidates, 2);
    CU_ASSERT_EQUAL(bmi__topology_nearest(&tree, &candidates, 3), 2);
    bmi_cpuset_add(&candidates, 3);
    CU_ASSERT_EQUAL(bmi__topology_nearest(&tree, &candidates, 3), 3);
    CU_ASSERT_EQUAL(bmi__topology_nearest(&tree, &candidates, 7), 6);
    bmi__topology_free(&tree);
}

static void test_local_sets(void)
{
    given_tree();
    struct bmi_cpuset cpus, local;
    bmi_cpuset_clear(&cpus);
    CU_ASSERT_EQUAL(bmi__topology_local(&tree, &cpus, &local), -BMI_EINVAL);
    bmi_cpuset_add(&cpus, 4);
    bmi_cpuset_add(&cpus, 3);
    CU_ASSERT_EQUAL(bmi__topology_local(&tree, &cpus, &local), 0);
    CU_ASSERT_EQUAL(bmi_cpuset_count(&local), 2);
    CU_ASSERT_TRUE(bmi_cpuset_has(&local, 1));
    CU_ASSERT_TRUE(bmi_cpuset_has(&local, 6));
    bmi_cpuset_add(&cpus, 8);
    CU_ASSERT_EQUAL(bmi__topology_local(&tree, &cpus, &local), -BMI_EINVAL);
    bmi__topology_free(&tree);
}

static void test_cpuset(void)
{
    struct bmi_cpuset set;
    bmi_cpuset_clear(&set);
    CU_ASSERT_EQUAL(bmi_cpuset_next(&set, 0), -1);
    bmi_cpuset_add(&set, -1);
    bmi_cpuset_add(&set, BMI_CPUSET_MAX);
    CU_ASSERT_EQUAL(bmi_cpuset_count(&set), 0);
    bmi_cpuset_add(&set, 63);
    bmi_cpuset_add(&set, 64);
    bmi_cpuset_add(&set, BMI_CPUSET_MAX - 1);
    CU_ASSERT_EQUAL(bmi_cpuset_next(&set, 0), 63);
    CU_ASSERT_EQUAL(bmi_cpuset_next(&set, 64), 64);
    CU_ASSERT_EQUAL(bmi_cpuset_next(&set, 65), BMI_CPUSET_MAX - 1);
    CU_ASSERT_EQUAL(bmi_cpuset_next(&set, BMI_CPUSET_MAX), -1);
    bmi_cpuset_remove(&set, 64);
    CU_ASSERT_FALSE(bmi_cpuset_has(&set, 64));
    CU_ASSERT_EQUAL(bmi_cpuset_count(&set), 2);
}

static void test_live(void)
{
    struct bmi_task_settings live = {.topology = BMI_TASK_TOPOLOGY_LIVE};
    char error[256];
    cpu_set_t mask;
    CPU_ZERO(&mask);
    sched_getaffinity(0, sizeof(mask), &mask);
    CU_ASSERT_EQUAL_FATAL(bmi__topology_build(&live, &tree, error, sizeof(error)), 0);
    CU_ASSERT_EQUAL(tree.cpu_count, (uint32_t)CPU_COUNT(&mask));
    CU_ASSERT_TRUE(tree.this_system);
    for (uint32_t i = 0; i < tree.cpu_count; i++)
        CU_ASSERT_TRUE(CPU_ISSET((size_t)tree.os_of[i], &mask));
    bmi__topology_free(&tree);
}

/* From here on the system refuses the call, as in a sandbox. */
static bool call_refuse(unsigned number)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(filter) / sizeof(*filter), filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static enum bmi_task_status done(struct bmi_task *task, void *argument)
{
    (void)task, (void)argument;
    return BMI_TASK_DONE;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { MODE = BMI_TASK_HOOKS_ONLY }; /* a sanitizer's own start of a thread asks for the mask */
#else
enum { MODE = BMI_TASK_WORKERS };
#endif

/* This program, started anew: hwloc asks once only. Returns its exit status. */
static int run_without_mask(void)
{
    struct bmi_task_attributes attributes = {.function = done};
    struct bmi_task_manager *manager;
    struct bmi_task task;
    cpu_set_t mask;
    alarm(20);
    if (!call_refuse(SYS_sched_getaffinity) || sched_getaffinity(0, sizeof(mask), &mask) == 0)
        return TEST_SKIPPED;
    if (bmi_task_manager_create(NULL, &manager, NULL, 0) != 0 ||
        bmi_task_cpus(manager, NULL) != (int)sysconf(_SC_NPROCESSORS_ONLN))
        return 1;
    if (bmi_task_manager_start(manager, (enum bmi_task_threads)MODE) != 0 ||
        bmi_task_prepare(&task, manager, &attributes) != 0 || bmi_task_submit(&task) != 0 ||
        bmi_task_wait(&task, 10000) != 0)
        return 2;
    bmi_task_manager_destroy(manager);
    return 0;
}

/* The tree has the CPUs that are online then; hwloc would not come back. */
static void test_mask_refused(void)
{
    if (test_emulation_lacks("start of a program by another"))
        return;
    pid_t child = fork();
    if (child == 0) {
        execl(test_program(), "topology_test", "without mask", (char *)NULL);
        _exit(2);
    }
    test_child(child, "no seccomp filters");
}

int main(int count, char **arguments)
{
    (void)arguments;
    if (count > 1)
        return run_without_mask();
    CU_TestInfo cases[] = {
        {"shape of a tree", test_shape},
        {"a CPU twice, or too high, is refused", test_same_cpu_twice_is_refused},
        {"lowest node that covers", test_cover},
        {"levels near a CPU", test_near},
        {"nearest of some CPUs", test_nearest},
        {"sets in local numbers", test_local_sets},
        {"operations on sets", test_cpuset},
        {"this machine has the CPUs of the affinity mask", test_live},
        {"an affinity mask that the system does not tell", test_mask_refused},
        CU_TEST_INFO_NULL,
    };
    return test_run("topology", cases);
}
