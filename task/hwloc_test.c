/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Topologies from hwloc: text, file, and this machine as far as the process may use it.
 */
#include "task/testing.h"
#include "tests/unit/emulation.h"

#include <errno.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <hwloc.h>

static struct bmi_task_manager *synthetic(const char *text)
{
    struct bmi_task_settings settings = {
        .topology = BMI_TASK_TOPOLOGY_SYNTHETIC,
        .topology_text = text,
    };
    return test_manager(&settings, BMI_TASK_HOOKS_ONLY);
}

static void test_256_cores(void)
{
    struct bmi_task_manager *manager = synthetic("numa:8 l3:4 core:8 pu:1");
    struct bmi_task_queue_statistics statistics;
    struct bmi_cpuset cpus;
    CU_ASSERT_EQUAL(bmi_task_cpus(manager, &cpus), 256);
    CU_ASSERT_EQUAL(bmi_cpuset_count(&cpus), 256);
    CU_ASSERT_EQUAL(bmi_task_queue_count(manager), 1 + 8 + 32 + 256);
    CU_ASSERT_EQUAL(bmi_task_queue_statistics(manager, 0, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.parent, -1);
    CU_ASSERT_EQUAL(bmi_task_queue_statistics(manager, 1, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.parent, 0);
    CU_ASSERT_EQUAL(bmi_cpuset_count(&statistics.cpus), 32);
    CU_ASSERT_PTR_NOT_NULL(strstr(statistics.name, "NUMANode"));
    CU_ASSERT_EQUAL(bmi_task_queue_statistics(manager, 297, &statistics), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_task_cpus_near(manager, 200, BMI_TASK_LEVEL_CACHE, &cpus), 0);
    CU_ASSERT_EQUAL(bmi_cpuset_count(&cpus), 8);
    CU_ASSERT_EQUAL(bmi_cpuset_next(&cpus, 0), 200);
    CU_ASSERT_EQUAL(bmi_task_cpus_near(manager, 200, BMI_TASK_LEVEL_NUMA, &cpus), 0);
    CU_ASSERT_EQUAL(bmi_cpuset_count(&cpus), 32);
    CU_ASSERT_EQUAL(bmi_task_cpus_near(manager, 256, BMI_TASK_LEVEL_NUMA, &cpus), -BMI_EINVAL);
    bmi_task_manager_destroy(manager);
}

static void test_equal_levels_are_one(void)
{
    struct bmi_task_manager *manager = synthetic("package:1 numa:1 l3:1 l2:2 l1d:1 core:1 pu:2");
    struct bmi_task_queue_statistics statistics;
    CU_ASSERT_EQUAL(bmi_task_queue_count(manager), 1 + 2 + 4);
    bmi_task_queue_statistics(manager, 0, &statistics);
    CU_ASSERT_PTR_NOT_NULL(strstr(statistics.name, "Machine"));
    CU_ASSERT_PTR_NOT_NULL(strstr(statistics.name, "Package"));
    CU_ASSERT_PTR_NOT_NULL(strstr(statistics.name, "L3"));
    bmi_task_queue_statistics(manager, 1, &statistics);
    CU_ASSERT_PTR_NOT_NULL(strstr(statistics.name, "Core"));
    bmi_task_manager_destroy(manager);
    manager = synthetic("pu:1");
    CU_ASSERT_EQUAL(bmi_task_queue_count(manager), 1);
    bmi_task_manager_destroy(manager);
}

static int create(enum bmi_task_topology_source source, const char *text, char *error, size_t size)
{
    struct bmi_task_settings settings = {.topology = source, .topology_text = text};
    struct bmi_task_manager *manager = NULL;
    int result = bmi_task_manager_create(&settings, &manager, error, size);
    bmi_task_manager_destroy(manager);
    return result;
}

static void test_refused_text_has_hwlocs_message(void)
{
    char error[256];
    CU_ASSERT_EQUAL(create(BMI_TASK_TOPOLOGY_SYNTHETIC, "package:2 cores:x", error, sizeof(error)),
                    -BMI_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "package:2 cores:x"));
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "unknown object type")); /* hwloc's words */
    CU_ASSERT_EQUAL(create(BMI_TASK_TOPOLOGY_SYNTHETIC, "", error, sizeof(error)), -BMI_EINVAL);
    CU_ASSERT_EQUAL(create(BMI_TASK_TOPOLOGY_SYNTHETIC, NULL, error, sizeof(error)), -BMI_EINVAL);
    CU_ASSERT_EQUAL(create(BMI_TASK_TOPOLOGY_SYNTHETIC, "core:2000 pu:1", error, sizeof(error)),
                    -BMI_EOVERFLOW);
    CU_ASSERT_EQUAL(create(BMI_TASK_TOPOLOGY_SYNTHETIC, "cores:x", NULL, 0), -BMI_EINVAL);
}

static void test_xml(void)
{
    char folder[] = "/tmp/bmi-task-XXXXXX", path[64], error[256];
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/machine.xml", folder);
    CU_ASSERT_EQUAL(create(BMI_TASK_TOPOLOGY_XML, path, error, sizeof(error)), -BMI_ENOENT);

    hwloc_topology_t topology;
    hwloc_topology_init(&topology);
    hwloc_topology_set_synthetic(topology, "package:2 l3:2 core:3 pu:2");
    hwloc_topology_load(topology);
    hwloc_topology_export_xml(topology, path, 0);
    hwloc_topology_destroy(topology);
    struct bmi_task_settings settings = {.topology = BMI_TASK_TOPOLOGY_XML, .topology_text = path};
    struct bmi_task_manager *manager = test_manager(&settings, BMI_TASK_HOOKS_ONLY);
    CU_ASSERT_EQUAL(bmi_task_cpus(manager, NULL), 24);
    CU_ASSERT_EQUAL(bmi_task_queue_count(manager), 1 + 2 + 4 + 12 + 24);
    bmi_task_manager_destroy(manager);

    FILE *file = fopen(path, "w");
    fputs("<topology><object", file);
    fclose(file);
    CU_ASSERT_EQUAL(create(BMI_TASK_TOPOLOGY_XML, path, error, sizeof(error)), -BMI_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(error, path));
    unlink(path);
    rmdir(folder);
}

/* A process that may use only one CPU has a tree of one: the test runs this program again. */
static int check_one_cpu(int cpu)
{
    struct bmi_cpuset cpus;
    int count = bmi_task_cpus(NULL, &cpus);
    return count == 1 && bmi_cpuset_has(&cpus, cpu) && bmi_task_queue_count(NULL) == 1 ? 0 : 1;
}

static void test_affinity(void)
{
    cpu_set_t mask;
    if (test_emulation_lacks("start of a program by another"))
        return;
    sched_getaffinity(0, sizeof(mask), &mask);
    size_t last = 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        last = CPU_ISSET(cpu, &mask) ? cpu : last;
    char number[24];
    snprintf(number, sizeof(number), "%zu", last);
    pid_t child = fork();
    if (child == 0) {
        CPU_ZERO(&mask);
        CPU_SET(last, &mask);
        sched_setaffinity(0, sizeof(mask), &mask);
        execl(test_program(), "hwloc_test", number, (char *)NULL);
        _exit(2);
    }
    int status = -1;
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
}

static void test_drawing(void)
{
    struct bmi_task_manager *manager = synthetic("package:2 core:2 pu:1");
    char text[2048], start[10];
    size_t length = bmi_task_topology_text(manager, text, sizeof(text));
    CU_ASSERT_EQUAL(length, strlen(text));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "4 CPUs, 7 queues"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\n  Package (CPUs 2-3): queue 4"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\n    Core + PU (CPU 3): queue 6"));
    CU_ASSERT_EQUAL(bmi_task_topology_text(manager, start, sizeof(start)), length);
    CU_ASSERT_EQUAL(strncmp(start, text, sizeof(start) - 1), 0);
    CU_ASSERT_EQUAL(strlen(start), sizeof(start) - 1);
    CU_ASSERT_EQUAL(bmi_task_topology_text(manager, NULL, 0), length);
    bmi_task_manager_destroy(manager);
}

/* A chroot without /sys: the CPUs are those of the affinity mask, and nothing is printed. */
static void test_without_sys(void)
{
    char folder[] = "/tmp/bmi-task-XXXXXX", said[64];
    int output[2];
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    CU_ASSERT_EQUAL_FATAL(pipe(output), 0);
    int here = bmi_task_cpus(NULL, NULL);
    pid_t child = fork();
    if (child == 0) {
        struct bmi_task_manager *manager;
        if (chroot(folder) != 0 || dup2(output[1], STDERR_FILENO) < 0)
            _exit(TEST_SKIPPED);
        _exit(bmi_task_manager_create(NULL, &manager, NULL, 0) != 0 ||
              bmi_task_cpus(manager, NULL) != here);
    }
    close(output[1]);
    test_child(child, "chroot takes root");
    CU_ASSERT_EQUAL(read(output[0], said, sizeof(said)), 0);
    close(output[0]);
    rmdir(folder);
}

/* The mask holds although there is no /proc, where hwloc finds the process's threads. */
static void test_without_proc(void)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct bmi_task_manager *manager;
        cpu_set_t mask;
        CPU_ZERO(&mask);
        CPU_SET((size_t)sched_getcpu(), &mask);
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", "", MS_REC | MS_PRIVATE, NULL) != 0 ||
            umount2("/proc", MNT_DETACH) != 0 || sched_setaffinity(0, sizeof(mask), &mask) != 0)
            _exit(TEST_SKIPPED);
        _exit(bmi_task_manager_create(NULL, &manager, NULL, 0) != 0 ||
              bmi_task_cpus(manager, NULL) != 1);
    }
    test_child(child, "unmounting takes root");
}

int main(int count, char **arguments)
{
    if (count > 1)
        return check_one_cpu(atoi(arguments[1]));
    CU_TestInfo cases[] = {
        {"8 nodes of 32 cores", test_256_cores},
        {"levels with the same CPUs are one", test_equal_levels_are_one},
        {"a refused text comes with hwloc's words", test_refused_text_has_hwlocs_message},
        {"an XML file", test_xml},
        {"the affinity mask is honoured", test_affinity},
        {"the tree as text", test_drawing},
        {"a root without /sys", test_without_sys},
        {"a system without /proc", test_without_proc},
        CU_TEST_INFO_NULL,
    };
    return test_run("hwloc", cases);
}
