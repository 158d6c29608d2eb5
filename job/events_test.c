/* SPDX-License-Identifier: BSD-3-Clause
 *
 * events_test.c - signals, ends of child processes, and timers that repeat, as jobs; in the
 * foreground and in the background.
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "job/job_case.h"

static int wait_for(bmi_job_id_t id, struct bmi_job_status *status)
{
    return bmi_job_wait(job_case.context, id, status, 0, PATIENCE_MS);
}

/* ---- signals --------------------------------------------------------------------------------- */

static void test_signal(void)
{
    bmi_job_id_t id;
    struct bmi_job_status status = {0};
    /* given a job for a signal */
    CU_ASSERT_EQUAL_FATAL(bmi_job_signal(job_case.context, SIGUSR1, NULL, &id, NULL), 0);
    job_case_none();
    /* when the signal comes, then the job ends, and the signal is consumed */
    kill(getpid(), SIGUSR1);
    CU_ASSERT_EQUAL(wait_for(id, &status), 0);
    CU_ASSERT_EQUAL(status.kind, BMI_JOB_SIGNAL);
    CU_ASSERT_EQUAL(status.actual, SIGUSR1);
    sigset_t pending;
    sigpending(&pending);
    CU_ASSERT_FALSE(sigismember(&pending, SIGUSR1));
}

static void test_signal_before(void)
{
    bmi_job_id_t id;
    /* a signal that came before the post is reported, too */
    kill(getpid(), SIGUSR1);
    CU_ASSERT_EQUAL_FATAL(bmi_job_signal(job_case.context, SIGUSR1, NULL, &id, NULL), 0);
    CU_ASSERT_EQUAL(wait_for(id, NULL), 0);
}

static void test_signal_of_two(void)
{
    bmi_job_id_t ids[2];
    struct bmi_job_status status;
    int count = 0, index = 0;
    /* given two jobs for one signal */
    for (int i = 0; i < 2; i++)
        CU_ASSERT_EQUAL_FATAL(bmi_job_signal(job_case.context, SIGUSR2, NULL, &ids[i], NULL), 0);
    /* when it comes once, then one of them ends */
    kill(getpid(), SIGUSR2);
    CU_ASSERT_EQUAL(bmi_job_testsome(job_case.context, 2, ids, &count, &index, &status,
                                     PATIENCE_MS),
                    1);
    job_case_none();
    kill(getpid(), SIGUSR2);
    CU_ASSERT_EQUAL(wait_for(ids[1 - index], &status), 0);
}

static void test_signal_refused(void)
{
    bmi_job_id_t id;
    /* a signal that the thread does not block would end the process */
    CU_ASSERT_EQUAL(bmi_job_signal(job_case.context, SIGHUP, NULL, &id, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(id, 0);
    CU_ASSERT_EQUAL(bmi_job_signal(job_case.context, -1, NULL, &id, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_signal(NULL, SIGUSR1, NULL, &id, NULL), -BMI_EINVAL);
}

static void *sender(void *argument)
{
    (void)argument;
    kill(getpid(), SIGUSR1);
    return NULL;
}

/* A signal ends a wait in testcontext, or a poll of the descriptor. */
static void test_signal_ends_wait(void)
{
    struct pollfd poll_fd = {.fd = bmi_job_context_fd(job_case.context), .events = POLLIN};
    struct bmi_job_status status = {0};
    pthread_t thread;
    bmi_job_id_t id;
    int count = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_job_signal(job_case.context, SIGUSR1, NULL, &id, NULL), 0);
    pthread_create(&thread, NULL, sender, NULL);
    CU_ASSERT_EQUAL(job_case_fetch().id, id);
    pthread_join(thread, NULL);
    CU_ASSERT_EQUAL_FATAL(bmi_job_signal(job_case.context, SIGUSR1, NULL, &id, NULL), 0);
    pthread_create(&thread, NULL, sender, NULL);
    while (count == 0) {
        CU_ASSERT_EQUAL_FATAL(poll(&poll_fd, 1, PATIENCE_MS), 1);
        CU_ASSERT(bmi_job_testcontext(job_case.context, 1, &count, &status, 0) >= 0);
    }
    CU_ASSERT_EQUAL(status.id, id);
    pthread_join(thread, NULL);
}

/* ---- children -------------------------------------------------------------------------------- */

/* A child that ends with this code when the pipe's other end is closed. */
static pid_t child_start(int code, int *hold)
{
    int ends[2];
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        if (read(ends[0], &byte, 1) != 0)
            _exit(99);
        _exit(code);
    }
    close(ends[0]);
    *hold = ends[1];
    return child;
}

static void test_child(void)
{
    bmi_job_id_t id;
    struct bmi_job_status status = {0};
    int hold;
    /* given a child that runs */
    pid_t child = child_start(7, &hold);
    CU_ASSERT_EQUAL_FATAL(bmi_job_child(job_case.context, child, NULL, &id, NULL), 0);
    job_case_none();
    /* when it ends, then the job ends, with its status, and the child is reaped */
    close(hold);
    CU_ASSERT_EQUAL(wait_for(id, &status), 0);
    CU_ASSERT_EQUAL(status.kind, BMI_JOB_CHILD);
    CU_ASSERT(WIFEXITED((int)status.actual) && WEXITSTATUS((int)status.actual) == 7);
    CU_ASSERT_EQUAL(waitpid(child, NULL, WNOHANG), -1);
}

static void test_child_killed(void)
{
    bmi_job_id_t id;
    struct bmi_job_status status = {0};
    int hold;
    pid_t child = child_start(0, &hold);
    kill(child, SIGKILL);
    CU_ASSERT_EQUAL_FATAL(bmi_job_child(job_case.context, child, NULL, &id, NULL), 0);
    CU_ASSERT_EQUAL(wait_for(id, &status), 0);
    CU_ASSERT(WIFSIGNALED((int)status.actual) && WTERMSIG((int)status.actual) == SIGKILL);
    close(hold);
}

static void test_child_refused(void)
{
    bmi_job_id_t id;
    CU_ASSERT_EQUAL(bmi_job_child(job_case.context, getpid(), NULL, &id, NULL), -BMI_ENOENT);
    CU_ASSERT_EQUAL(bmi_job_child(job_case.context, 0, NULL, &id, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_child(NULL, 1, NULL, &id, NULL), -BMI_EINVAL);
}

static void test_cancelled(void)
{
    bmi_job_id_t signal, child;
    int hold;
    pid_t process = child_start(3, &hold);
    CU_ASSERT_EQUAL_FATAL(bmi_job_signal(job_case.context, SIGUSR1, NULL, &signal, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_job_child(job_case.context, process, NULL, &child, NULL), 0);
    /* when they are cancelled, then signal and child are left to the program */
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, signal), 0);
    CU_ASSERT_EQUAL(wait_for(signal, NULL), -BMI_ECANCEL);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, child, NULL, 0, 1), -BMI_ETIMEDOUT);
    close(hold);
    CU_ASSERT_EQUAL(waitpid(process, NULL, 0), process);
    job_case_none();
}

/* The context is closed by the test's clean-up while they are pending. */
static void test_closed(void)
{
    bmi_job_id_t id;
    CU_ASSERT_EQUAL(bmi_job_signal(job_case.context, SIGUSR1, NULL, &id, NULL), 0);
    CU_ASSERT_EQUAL(bmi_job_timer_repeat(job_case.context, bmi_job_deadline(0), 1, NULL, &id, NULL),
                    0);
}

/* ---- timers that repeat ---------------------------------------------------------------------- */

static void test_repeat(void)
{
    enum { EVERY_MS = 2, TIMES = 5 };
    bmi_job_id_t id;
    struct bmi_job_status status = {0};
    bmi_size_t times = 0;
    uint64_t due_ns = bmi_job_deadline(0);
    CU_ASSERT_EQUAL_FATAL(bmi_job_timer_repeat(job_case.context, due_ns, EVERY_MS, NULL, &id, NULL),
                          0);
    /* when it is tested repeatedly, then it is reported with the same id */
    while (times < TIMES) {
        status = job_case_fetch();
        CU_ASSERT_EQUAL(status.id, id);
        CU_ASSERT_EQUAL(status.error, 0);
        CU_ASSERT_EQUAL(status.kind, BMI_JOB_TIMER);
        CU_ASSERT(status.actual >= 1);
        times += status.actual;
    }
    /* and not more often than the interval allows */
    uint64_t passed_ms = (bmi_job_deadline(0) - due_ns) / 1000000;
    CU_ASSERT((uint64_t)times <= passed_ms / EVERY_MS + 1);
    /* until it is cancelled */
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    CU_ASSERT_EQUAL(wait_for(id, &status), -BMI_ECANCEL);
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), -BMI_EINVAL);
    job_case_none();
}

static void test_repeat_not_fetched(void)
{
    struct bmi_job_statistics statistics;
    struct bmi_job_status status = {0};
    bmi_job_id_t id, timer;
    CU_ASSERT_EQUAL_FATAL(bmi_job_timer_repeat(job_case.context, bmi_job_deadline(0), 1, NULL, &id,
                                               NULL),
                          0);
    /* given times that were not fetched */
    int posted = bmi_job_timer(job_case.context, bmi_job_deadline(30), NULL, &timer, NULL);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, timer, NULL, posted, -1), 0);
    /* then they are one report */
    CU_ASSERT_EQUAL(bmi_job_statistics(job_case.context, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.completions_waiting, 1);
    /* which is the last one if it is cancelled then */
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    status = job_case_fetch();
    CU_ASSERT_EQUAL(status.id, id);
    CU_ASSERT_EQUAL(status.error, -BMI_ECANCEL);
    CU_ASSERT(status.actual >= 2);
    job_case_none();
    CU_ASSERT_EQUAL(bmi_job_statistics(job_case.context, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.pending, 0);
}

static void test_repeat_deadline(void)
{
    struct bmi_job_options options = {.deadline_ns = bmi_job_deadline(20)};
    struct bmi_job_status status = {0};
    bmi_job_id_t id;
    CU_ASSERT_EQUAL_FATAL(bmi_job_timer_repeat(job_case.context, bmi_job_deadline(0), 1, &options,
                                               &id, NULL),
                          0);
    do
        status = job_case_fetch();
    while (status.error == 0);
    CU_ASSERT_EQUAL(status.error, -BMI_ETIMEDOUT);
    job_case_none();
}

static void test_repeat_refused(void)
{
    bmi_job_id_t id;
    CU_ASSERT_EQUAL(bmi_job_timer_repeat(job_case.context, 1, 0, NULL, &id, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_timer_repeat(job_case.context, 1, INT64_MAX, NULL, &id, NULL),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_timer_repeat(job_case.context, 1, 1, NULL, NULL, NULL), -BMI_EINVAL);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"a signal", test_signal},
        {"a signal that came before", test_signal_before},
        {"two jobs for one signal", test_signal_of_two},
        {"signals refused", test_signal_refused},
        {"a signal ends a wait", test_signal_ends_wait},
        {"a child ends", test_child},
        {"a child is killed", test_child_killed},
        {"children refused", test_child_refused},
        {"cancelled", test_cancelled},
        {"the context is closed", test_closed},
        {"a timer repeats", test_repeat},
        {"times that are not fetched", test_repeat_not_fetched},
        {"a repeating timer's deadline", test_repeat_deadline},
        {"repeating timers refused", test_repeat_refused},
        CU_TEST_INFO_NULL,
    };
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* before the library has threads */
    return job_case_run("events, foreground", "events, background", tests);
}
