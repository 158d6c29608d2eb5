/* SPDX-License-Identifier: BSD-3-Clause
 *
 * space_test.c - a separate space of operations: waiting in it, in a process without a free
 * descriptor, and cancelling an operation that is being posted.
 */
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/unit.h"
#include "trove-stub/completion.h"

enum { PATIENCE_S = 20, SLEEPS = 5 };

static int quiet_fd; /* never readable */

static void progress(void *owner)
{
    (void)owner;
}

static int source(void *owner)
{
    (void)owner;
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

/* Whether the thread has slept often enough between the checks, or the time has expired. */
static bool done(void *argument)
{
    struct waiting *waiting = argument;
    return times_slept() - waiting->slept_before >= SLEEPS || time(NULL) >= waiting->end;
}

/* Uses up all descriptors; returns the former limit. */
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
    bmi__space_wait_until(&space, NULL, done, &waiting);
    CU_ASSERT_TRUE(times_slept() - waiting.slept_before >= SLEEPS);
    CU_ASSERT_PTR_NULL(space.waiters);
    CU_ASSERT_PTR_NULL(space.idle_waiters);
    setrlimit(RLIMIT_NOFILE, &before);
    close(quiet_fd);
}

static int times_cancelled, times_destroyed;

static void count_cancelled(struct bmi__posted *posted)
{
    CU_ASSERT_EQUAL(posted->state, POSTED_PENDING);
    times_cancelled++;
}

static void count_destroyed(struct bmi__posted *posted)
{
    (void)posted;
    times_destroyed++;
}

/* Another thread may know the id before the post has returned. An operation that is cancelled then
 * goes to its owner's cancel at the end of the post; one that ended within its post has ended. */
static void cancelled_while_posting(void)
{
    static struct bmi__space space = {.progress = progress,
                                      .source = source,
                                      .cancel = count_cancelled,
                                      .destroy = count_destroyed,
                                      .lock = BMI__SPACE_LOCK};
    struct bmi__posted pending = {.next = NULL}, done_at_once = {.next = NULL};
    int64_t context, id;
    quiet_fd = eventfd(0, EFD_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(quiet_fd >= 0);
    CU_ASSERT_EQUAL_FATAL(bmi__space_open_context(&space, NULL, &context), 0);

    CU_ASSERT_EQUAL_FATAL(bmi__posted_begin(&space, &pending, context, NULL, &id), 0);
    CU_ASSERT_EQUAL(bmi__space_cancel(&space, id, context), 0);
    CU_ASSERT_EQUAL(times_cancelled, 0);
    CU_ASSERT_EQUAL(bmi__posted_end(&space, &pending, POSTED_IMMEDIATE_SUCCESS, &id), 0);
    CU_ASSERT_EQUAL(times_cancelled, 1);
    bmi__posted_complete(&space, &pending, -BMI_ECANCEL, 0);
    int outcount = 0;
    bmi_error_code_t error = 0;
    CU_ASSERT_EQUAL(bmi__space_test(&space, 1, &id, &outcount, NULL, &error, NULL, NULL, 0,
                                    context),
                    1);
    CU_ASSERT_EQUAL(outcount, 1);
    CU_ASSERT_EQUAL(error, -BMI_ECANCEL);

    CU_ASSERT_EQUAL_FATAL(bmi__posted_begin(&space, &done_at_once, context, NULL, &id), 0);
    CU_ASSERT_EQUAL(bmi__space_cancel(&space, id, context), 0);
    bmi__posted_complete(&space, &done_at_once, 0, 0);
    CU_ASSERT_EQUAL(bmi__posted_end(&space, &done_at_once, POSTED_IMMEDIATE_SUCCESS, &id), 1);
    CU_ASSERT_EQUAL(times_cancelled, 1);
    CU_ASSERT_EQUAL(times_destroyed, 2);
    CU_ASSERT_EQUAL(bmi__space_close_context(&space, context), 0);
    close(quiet_fd);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"sleeps without a descriptor", sleeps_without_a_descriptor},
        {"cancelled while it is being posted", cancelled_while_posting},
        CU_TEST_INFO_NULL,
    };
    return unit_run("space", tests);
}
