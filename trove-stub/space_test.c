/* SPDX-License-Identifier: BSD-3-Clause
 *
 * space_test.c - waiting within a space of operations of its own, in a process that has no
 * descriptor left.
 */
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/unit.h"
#include "trove-stub/completion.h"

enum { PATIENCE_S = 20, SLEEPS = 5 };

static int quiet_fd; /* never readable */

static void progress(void)
{
}

static int source(void)
{
    return quiet_fd;
}

static long times_slept(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

struct waiting {
    long slept_before;
    time_t end;
};

/* Done once the thread has slept between looks, which is what is tested; or never. */
static bool done(void *argument)
{
    struct waiting *waiting = argument;
    return times_slept() - waiting->slept_before >= SLEEPS || time(NULL) >= waiting->end;
}

/* Leaves no descriptor for others to open; returns the former limit. */
static struct rlimit descriptors_end(void)
{
    struct rlimit before, now;
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &before), 0);
    now = before;
    int next = dup(quiet_fd); /* all below are taken */
    CU_ASSERT_TRUE_FATAL(next >= 0);
    close(next);
    now.rlim_cur = (rlim_t)next;
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &now), 0);
    CU_ASSERT_TRUE(eventfd(0, 0) < 0);
    return before;
}

static void sleeps_without_a_descriptor(void)
{
    static struct bmi__space space = {.progress = progress,
                                      .source = source,
                                      .lock = BMI__SPACE_LOCK};
    quiet_fd = eventfd(0, EFD_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(quiet_fd >= 0);
    CU_ASSERT_PTR_NOT_NULL_FATAL(bmi_task_manager_default());
    struct rlimit before = descriptors_end();
    struct waiting waiting = {.slept_before = times_slept(), .end = time(NULL) + PATIENCE_S};
    bmi__space_wait_until(&space, done, &waiting);
    CU_ASSERT_TRUE(times_slept() - waiting.slept_before >= SLEEPS);
    CU_ASSERT_PTR_NULL(space.waiters);
    CU_ASSERT_PTR_NULL(space.idle_waiters);
    setrlimit(RLIMIT_NOFILE, &before);
    close(quiet_fd);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"sleeps without a descriptor", sleeps_without_a_descriptor},
        CU_TEST_INFO_NULL,
    };
    return unit_run("space", tests);
}
