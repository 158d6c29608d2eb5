/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wait_test.c - bmi_job_wait: post and wait, cancel and wait; in the foreground and in the
 * background.
 */
#include <pthread.h>

#include "job/job_case.h"

static void test_in_time(void)
{
    char in[8] = "";
    bmi_job_id_t receive, send;
    struct bmi_job_status received = {0}, sent = {0};
    /* given a receive that is pending */
    int receiving = bmi_job_recv(job_case.context, job_case.self, in, sizeof in, BMI_EXT_ALLOC, 1,
                                 NULL, &receive, &received);
    int sending = bmi_job_send(job_case.context, job_case.self, "hello", 6, BMI_EXT_ALLOC, 1, NULL,
                               &send, &sent);
    /* when the test waits for both, then its own wait reports each */
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, send, &sent, sending, PATIENCE_MS), 0);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, receive, &received, receiving, -1), 0);
    CU_ASSERT_EQUAL(received.error, 0);
    CU_ASSERT_EQUAL(received.actual, 6);
    CU_ASSERT_STRING_EQUAL(in, "hello");
    job_case_none();
}

static void test_too_late(void)
{
    char in[8];
    bmi_job_id_t id;
    struct bmi_job_status status = {0};
    /* given a receive that no message comes for */
    int posted = bmi_job_recv(job_case.context, job_case.self, in, sizeof in, BMI_EXT_ALLOC, 2,
                              NULL, &id, &status);
    CU_ASSERT_EQUAL_FATAL(posted, 0);
    /* when the test waits for it, then it has ended, and the buffer is free */
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, id, &status, posted, 5), -BMI_ETIMEDOUT);
    CU_ASSERT_EQUAL(status.error, -BMI_ETIMEDOUT);
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), -BMI_EINVAL);
    job_case_none();
}

static void test_cancel_and_wait(void)
{
    bmi_job_id_t id;
    int posted = bmi_job_event(job_case.context, NULL, &id, NULL);
    /* when it is given no time, then it is cancelled */
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, id, NULL, posted, 0), -BMI_ETIMEDOUT);
    /* and after a cancel of the program's it ends with that */
    posted = bmi_job_event(job_case.context, NULL, &id, NULL);
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, id, NULL, posted, -1), -BMI_ECANCEL);
    job_case_none();
}

static void test_not_pending(void)
{
    struct bmi_job_status status = {.error = 0};
    bmi_job_id_t id = 0;
    /* a refused post is no job: the wait returns what the post did */
    int posted = bmi_job_timer(job_case.context, 1, &(struct bmi_job_options){.deadline_ns = 1},
                               &id, &status);
    CU_ASSERT_EQUAL(posted, -BMI_ETIMEDOUT);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, id, &status, posted, -1), -BMI_ETIMEDOUT);
    CU_ASSERT_EQUAL(status.error, -BMI_ETIMEDOUT);
    /* one that was done at once has its result already */
    status = (struct bmi_job_status){.actual = 5};
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, 0, &status, 1, -1), 0);
    CU_ASSERT_EQUAL(status.actual, 5);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, 0, &status, 0, -1), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, 1234567, &status, 0, 0), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_wait(NULL, 1, &status, 0, 0), -BMI_EINVAL);
}

static void test_others_stay(void)
{
    bmi_job_id_t other, timer;
    /* given another job that ends first */
    CU_ASSERT_EQUAL(bmi_job_null(job_case.context, -BMI_EIO, NULL, &other, NULL), 0);
    int posted = bmi_job_timer(job_case.context, bmi_job_deadline(2), NULL, &timer, NULL);
    /* when one is waited for, then the other is left to a test call */
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, timer, NULL, posted, PATIENCE_MS), 0);
    struct bmi_job_status status = job_case_fetch();
    CU_ASSERT_EQUAL(status.id, other);
    CU_ASSERT_EQUAL(status.error, -BMI_EIO);
}

/* ---- machines: BMI_SM_TABLE, BMI_SM_MINE ----------------------------------------------------- */

static int pause_action(struct bmi_sm *machine, void *data)
{
    uint64_t due_ns = bmi_job_deadline(*(int *)data);
    return bmi_sm_posted(
        bmi_job_timer(bmi_sm_context(machine), due_ns, BMI_SM_MINE(machine), NULL, NULL));
}

static int choose(struct bmi_sm *machine, void *data)
{
    (void)data;
    bmi_sm_set_result(machine, 42);
    return BMI_SM_DONE;
}

enum { PAUSE, CHOOSE };
static const struct bmi_sm_state states[] = {
    [PAUSE] = {.name = "pause",
               .action = pause_action,
               .on = {BMI_SM_OK(CHOOSE), BMI_SM_FAIL(BMI_SM_END)}},
    [CHOOSE] = {.name = "choose", .action = choose, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table table = BMI_SM_TABLE("pause", states);

static void test_machine(void)
{
    bmi_job_id_t id;
    int ms = 1;
    CU_ASSERT_EQUAL(table.count, 2);
    /* a machine's result may be positive */
    int posted = bmi_sm_start(job_case.context, &table, &ms, NULL, NULL, &id, NULL);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, id, NULL, posted, PATIENCE_MS), 42);
    /* one that takes too long is cancelled, with the timer that it waits for */
    ms = PATIENCE_MS;
    posted = bmi_sm_start(job_case.context, &table, &ms, NULL, NULL, &id, NULL);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, id, NULL, posted, 5), -BMI_ETIMEDOUT);
    job_case_none();
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { WAITERS = 8, ROUNDS = 50 };

static void *waiter(void *argument)
{
    bool good = true;
    (void)argument;
    for (int i = 0; i < ROUNDS; i++) {
        bmi_job_id_t id;
        int posted = bmi_job_timer(job_case.context, bmi_job_deadline(1), NULL, &id, NULL);
        good &= bmi_job_wait(job_case.context, id, NULL, posted, PATIENCE_MS) == 0;
    }
    return good ? &job_case : NULL;
}

static void test_threads(void)
{
    pthread_t threads[WAITERS];
    for (int i = 0; i < WAITERS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, waiter, NULL), 0);
    for (int i = 0; i < WAITERS; i++) {
        void *good;
        pthread_join(threads[i], &good);
        CU_ASSERT_PTR_NOT_NULL(good);
    }
    job_case_none();
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"a job ends in time", test_in_time},
        {"a job that does not end in time is cancelled", test_too_late},
        {"cancel and wait", test_cancel_and_wait},
        {"jobs that are not pending", test_not_pending},
        {"other jobs are left to test calls", test_others_stay},
        {"machines", test_machine},
        {"many threads wait, each for its own", test_threads},
        CU_TEST_INFO_NULL,
    };
    return job_case_run("wait, foreground", "wait, background", tests);
}
