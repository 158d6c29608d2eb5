/* SPDX-License-Identifier: BSD-3-Clause
 *
 * child_test.c - jobs of a child of fork() whose parent had some, and has ended, as with daemon(3).
 */
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "job/job_case.h"

/* Its own context makes progress in the background: a timer makes the descriptor readable. */
static bool own_timer_told(void)
{
    struct bmi_job_options options = {0};
    struct bmi_job_context *own;
    struct bmi_job_status status;
    bmi_job_id_t id;
    int count = 0;
    if (bmi_job_context_open(BMI_JOB_BACKGROUND, &own) != 0 ||
        bmi_job_timer(own, bmi_job_deadline(1), &options, &id, NULL) != 0)
        return false;
    struct pollfd fd = {.fd = bmi_job_context_fd(own), .events = POLLIN};
    bool told_of = poll(&fd, 1, PATIENCE_MS / 10) == 1 &&
                   bmi_job_testcontext(own, 1, &count, &status, 0) == 1 && status.id == id;
    bmi_job_context_close(own);
    return told_of && BMI_finalize() == 0;
}

/* The parent leaves its work to its child, which continues when it learns that the parent has
 * ended. */
static void parent_leave(int gone, int tell)
{
    char byte;
    job_case_begin_background();
    if (fork() == 0) {
        alarm(PATIENCE_MS / 1000);
        bool good = read(gone, &byte, 1) == 1 && own_timer_told();
        _exit(write(tell, good ? "+" : "-", 1) != 1);
    }
    _exit(CU_get_number_of_failures() > 0);
}

static void test_parent_that_has_ended(void)
{
    int gone[2], tell[2], status = 0;
    char byte = 0;
    CU_ASSERT_EQUAL_FATAL(pipe(gone), 0);
    CU_ASSERT_EQUAL_FATAL(pipe(tell), 0);
    pid_t parent = fork();
    if (parent == 0) {
        close(gone[1]);
        parent_leave(gone[0], tell[1]);
    }
    close(gone[0]);
    close(tell[1]);
    CU_ASSERT_EQUAL(waitpid(parent, &status, 0), parent);
    CU_ASSERT_EQUAL(status, 0);
    CU_ASSERT_EQUAL(write(gone[1], "g", 1), 1);
    CU_ASSERT_EQUAL(read(tell[0], &byte, 1), 1);
    CU_ASSERT_EQUAL(byte, '+');
    close(gone[1]);
    close(tell[0]);
}

int main(void)
{
    static CU_TestInfo tests[] = {
        {"a parent that has ended", test_parent_that_has_ended},
        CU_TEST_INFO_NULL,
    };
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    /* A child that starts threads crashes there, or waits for a lock of the allocator. */
    puts("skipped: built with a sanitizer");
    return 77;
#endif
    return unit_run("jobs of a child", tests);
}
