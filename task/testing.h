/* SPDX-License-Identifier: BSD-3-Clause
 *
 * testing.h - shared by the tests of the task manager: running a table of cases with CUnit,
 * managers, and waiting for conditions.
 */
#ifndef BMI_TASK_TESTING_H
#define BMI_TASK_TESTING_H

#include "bmi.h"
#include "bmi/task.h"

#include <CUnit/Basic.h>
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TEST_SKIPPED 77

/* Runs the cases; returns main's exit status. */
static inline int test_run(const char *name, CU_TestInfo *cases)
{
    CU_SuiteInfo suites[] = {{.pName = name, .pTests = cases}, CU_SUITE_INFO_NULL};
    if (CU_initialize_registry() != CUE_SUCCESS || CU_register_suites(suites) != CUE_SUCCESS)
        return EXIT_FAILURE;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* A manager, or the end of the test program: without it nothing can be tested. */
static inline struct bmi_task_manager *test_manager(const struct bmi_task_settings *settings,
                                                    enum bmi_task_threads threads)
{
    struct bmi_task_manager *manager;
    char error[256];
    int result = bmi_task_manager_create(settings, &manager, error, sizeof(error));
    if (result == 0)
        result = bmi_task_manager_start(manager, threads);
    if (result != 0) {
        fprintf(stderr, "no manager: %d %s\n", result, error);
        exit(EXIT_FAILURE);
    }
    return manager;
}

/* Costs in round figures: 1 ns a KiB at home, twice that in the package, three times beyond. */
static const struct bmi_task_costs test_round_costs = {
    .local_ns_per_kib = 1,
    .remote_factor = 1,
    .move_ns_per_kib = 4,
    .move_region_ns = 100,
    .move_task_ns = 10,
};

/* A task that does nothing but to count its runs in an atomic_uint. */
static inline enum bmi_task_status test_count(struct bmi_task *task, void *argument)
{
    (void)task;
    atomic_fetch_add((atomic_uint *)argument, 1);
    return BMI_TASK_DONE;
}

static inline void test_prepare_on(struct bmi_task *task, struct bmi_task_manager *manager,
                                   bmi_task_function run, void *argument, unsigned options,
                                   const struct bmi_cpuset *cpus)
{
    struct bmi_task_attributes attributes = {
        .function = run,
        .argument = argument,
        .options = options,
        .cpus = cpus,
    };
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(task, manager, &attributes), 0);
}

static inline uint64_t test_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Waits until *counter has reached `value`; gives up after 20 s. Returns whether it has. */
static inline bool test_reaches(atomic_uint *counter, unsigned value)
{
    uint64_t end = test_now_ns() + 20000000000u;
    while (atomic_load(counter) < value && test_now_ns() < end)
        sched_yield();
    return atomic_load(counter) >= value;
}

static inline struct bmi_cpuset test_only(int cpu)
{
    struct bmi_cpuset set;
    bmi_cpuset_clear(&set);
    bmi_cpuset_add(&set, cpu);
    return set;
}

/* Calls `visit` for each thread of this process whose name starts with `prefix`. */
static inline void test_threads(const char *prefix,
                                void (*visit)(const char *folder, void *argument), void *argument)
{
    DIR *threads = opendir("/proc/self/task");
    struct dirent *entry;
    while ((entry = readdir(threads)) != NULL) {
        char folder[280], path[300], name[32] = "";
        snprintf(folder, sizeof(folder), "/proc/self/task/%s", entry->d_name);
        snprintf(path, sizeof(path), "%s/comm", folder);
        FILE *file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (file == NULL)
            continue;
        if (fgets(name, sizeof(name), file) != NULL && strncmp(name, prefix, strlen(prefix)) == 0)
            visit(folder, argument);
        fclose(file);
    }
    closedir(threads);
}

/* A child that tests something ends with 0, or with TEST_SKIPPED, whose reason is then printed. */
static inline void test_child(pid_t child, const char *skipped)
{
    int status = -1;
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == TEST_SKIPPED)
        printf("skipped: %s ", skipped);
    else
        CU_ASSERT_EQUAL(status, 0);
}

/* This program's own path: /proc/self/exe itself would be valgrind's under valgrind. */
static inline const char *test_program(void)
{
    static char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    path[length > 0 ? length : 0] = '\0';
    return path;
}

#endif
