/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A cgroup's CPU set: it bounds the tree, and when it shrinks tasks of the lost CPU run on those
 * that are left. Needs two CPUs and the right to make a cgroup; the group made here is removed
 * again.
 */
#include "task/testing.h"
#include "tests/unit/emulation.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char group[128]; /* its folder */
static int kept, lost;  /* two CPUs */

static bool file_write(const char *folder, const char *name, const char *text)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    bool written = file != NULL && fputs(text, file) >= 0;
    if (file != NULL && fclose(file) != 0)
        written = false; /* the kernel's answer comes with the flush */
    return written;
}

static bool file_read(const char *folder, const char *name, char *text, int size)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    bool got = file != NULL && fgets(text, size, file) != NULL;
    if (file != NULL)
        fclose(file);
    return got;
}

/* Makes a group of both CPUs below the root of either version's tree. */
static bool group_make(void)
{
    char text[256] = "", cpus[32];
    const char *root = "/sys/fs/cgroup/cpuset";
    bool second = false;
    if (!file_read(root, "cpuset.mems", text, sizeof(text))) {
        root = "/sys/fs/cgroup";
        second = file_read(root, "cgroup.subtree_control", text, sizeof(text)) &&
                 strstr(text, "cpuset") != NULL;
        if (!second)
            return false;
    }
    snprintf(group, sizeof(group), "%s/bmi-test-%d", root, getpid());
    snprintf(cpus, sizeof(cpus), "%d,%d", kept, lost);
    if (mkdir(group, 0755) != 0)
        return false;
    if ((second || file_write(group, "cpuset.mems", text)) &&
        file_write(group, "cpuset.cpus", cpus))
        return true;
    rmdir(group);
    return false;
}

/* Submits to the CPU's own queue, and waits without helping. */
static bool runs_on(struct bmi_task_manager *manager, int cpu)
{
    struct bmi_cpuset only = test_only(cpu);
    atomic_uint runs = 0;
    struct bmi_task task;
    struct bmi_task_attributes attributes = {
        .function = test_count,
        .argument = &runs,
        .cpus = &only,
    };
    return bmi_task_prepare(&task, manager, &attributes) == 0 && bmi_task_submit(&task) == 0 &&
           test_reaches(&runs, 1) && bmi_task_wait(&task, 20000) == 0;
}

/* In the group. Returns the step that went wrong, or 0. */
static int member_main(const char *folder, int keep, int lose)
{
    struct bmi_task_manager *manager = test_manager(NULL, BMI_TASK_WORKERS);
    char text[16];
    if (bmi_task_cpus(manager, NULL) != 2)
        return 1;
    if (!runs_on(manager, keep) || !runs_on(manager, lose))
        return 2;
    snprintf(text, sizeof(text), "%d", keep);
    if (!file_write(folder, "cpuset.cpus", text))
        return 3;
    for (int i = 0; i < 20; i++) {
        if (!runs_on(manager, lose) || !runs_on(manager, keep))
            return 4;
    }
    /* workers started anew leave the lost CPU out */
    if (bmi_task_manager_stop(manager, BMI_TASK_WORKERS) != 0 ||
        bmi_task_manager_start(manager, BMI_TASK_WORKERS) != 0 || !runs_on(manager, lose))
        return 6;
    bmi_task_manager_destroy(manager);
    manager = test_manager(NULL, BMI_TASK_WORKERS); /* the tree of a new one is smaller */
    if (bmi_task_cpus(manager, NULL) != 1 || !runs_on(manager, keep))
        return 5;
    bmi_task_manager_destroy(manager);
    return 0;
}

static void test_shrinking_group(void)
{
    pid_t child = fork();
    if (child == 0) {
        char numbers[2][16];
        snprintf(numbers[0], sizeof(numbers[0]), "%d", kept);
        snprintf(numbers[1], sizeof(numbers[1]), "%d", lost);
        if (file_write(group, "cgroup.procs", "0"))
            execl(test_program(), "cgroup_test", group, numbers[0], numbers[1], (char *)NULL);
        _exit(99);
    }
    int status = -1;
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_TRUE(WIFEXITED(status));
    CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
}

int main(int count, char **arguments)
{
    if (count == 4)
        return member_main(arguments[1], atoi(arguments[2]), atoi(arguments[3]));
    CU_TestInfo cases[] = {
        {"a cgroup's CPU set that shrinks", test_shrinking_group},
        CU_TEST_INFO_NULL,
    };
    if (test_emulation_lacks("start of a program by another"))
        return TEST_SKIPPED;
    struct bmi_cpuset all;
    bmi_task_cpus(NULL, &all);
    kept = bmi_cpuset_next(&all, 0);
    lost = bmi_cpuset_next(&all, kept + 1);
    if (lost < 0 || !group_make()) {
        printf("skipped: %s\n", lost < 0 ? "needs two CPUs" : "may not make a cgroup");
        return TEST_SKIPPED;
    }
    int result = test_run("cgroup", cases);
    if (rmdir(group) != 0) {
        perror(group);
        result = EXIT_FAILURE;
    }
    return result;
}
