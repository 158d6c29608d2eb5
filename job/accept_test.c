/* SPDX-License-Identifier: BSD-3-Clause
 *
 * accept_test.c - bmi_job_accept: a machine for each unexpected message, at most `limit` at a time;
 * and the context's descriptor, which ignores messages that no job takes.
 */
#include <poll.h>
#include <pthread.h>

#include "bmi/base/instance.h"
#include "bmi/progress/progress.h"
#include "bmi/state/library.h"
#include "job/job_case.h"

/* A request: its machine waits for an event of the test's, then ends. */
struct request {
    struct bmi_job_accepted accepted;
    bmi_job_id_t event;
};

enum { MOST = 64 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bmi_job_id_t events[MOST];                      /* lock */
static int alive, alive_most, served, freed_by_action; /* lock */
static bool free_early;

static void reset(void)
{
    alive = alive_most = served = freed_by_action = 0;
    free_early = false;
    memset(events, 0, sizeof events);
}

static int locked(const int *value)
{
    pthread_mutex_lock(&lock);
    int copy = *value;
    pthread_mutex_unlock(&lock);
    return copy;
}

static int begin(struct bmi_sm *machine, void *data)
{
    struct request *request = data;
    int tag = request->accepted.message.tag;
    bool good = request->event == 0 && request->accepted.user_ptr == events &&
                request->accepted.message.size == 4 &&
                memcmp(request->accepted.message.buffer, "ping", 4) == 0;
    int posted =
        bmi_job_event(bmi_sm_context(machine), BMI_SM_MINE(machine), &request->event, NULL);
    pthread_mutex_lock(&lock);
    if (good && tag >= 0 && tag < MOST)
        events[tag] = request->event;
    alive++;
    if (alive > alive_most)
        alive_most = alive;
    pthread_mutex_unlock(&lock);
    return bmi_sm_posted(posted);
}

static int finish(struct bmi_sm *machine, void *data)
{
    struct request *request = data;
    (void)machine;
    pthread_mutex_lock(&lock);
    alive--;
    served++;
    if (free_early) {
        BMI_unexpected_free(request->accepted.message.addr, request->accepted.message.buffer);
        request->accepted.message.buffer = NULL;
        freed_by_action++;
    }
    pthread_mutex_unlock(&lock);
    return bmi_sm_last(machine) < 0 ? bmi_sm_last(machine) : BMI_SM_DONE;
}

enum { BEGIN, FINISH };
static const struct bmi_sm_state states[] = {
    [BEGIN] = {.name = "begin", .action = begin, .on = {BMI_SM_ELSE(FINISH)}},
    [FINISH] = {.name = "finish", .action = finish, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table table = BMI_SM_TABLE("request", states);

static bmi_job_id_t accept_begin(int limit)
{
    bmi_job_id_t id;
    struct bmi_job_options options = {.user_ptr = events};
    reset();
    CU_ASSERT_EQUAL_FATAL(bmi_job_accept(job_case.context, &table, limit, sizeof(struct request),
                                         &options, &id, NULL),
                          0);
    return id;
}

/* Sends a message and waits for the send's end. */
static void message_send(int tag)
{
    bmi_job_id_t id;
    struct bmi_job_status status = {0};
    int posted = bmi_job_sendunexpected(job_case.context, job_case.self, "ping", 4, BMI_EXT_ALLOC,
                                        tag, NULL, &id, &status);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, id, &status, posted, PATIENCE_MS), 0);
}

/* Runs the context until the value is reached. */
static bool reached(const int *value, int wanted)
{
    uint64_t until_ns = bmi_job_deadline(PATIENCE_MS);
    while (locked(value) < wanted && bmi_job_deadline(0) < until_ns) {
        bmi_job_id_t id;
        int posted = bmi_job_timer(job_case.context, bmi_job_deadline(1), NULL, &id, NULL);
        bmi_job_wait(job_case.context, id, NULL, posted, -1);
    }
    return locked(value) >= wanted;
}

static void let_go(int tag)
{
    pthread_mutex_lock(&lock);
    bmi_job_id_t event = events[tag];
    pthread_mutex_unlock(&lock);
    CU_ASSERT_EQUAL(bmi_job_event_complete(job_case.context, event, 0, 0), 0);
}

static void accept_end(bmi_job_id_t id, bmi_size_t started)
{
    struct bmi_job_status status = {0};
    bmi_job_cancel(job_case.context, id);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, id, &status, 0, PATIENCE_MS), -BMI_ECANCEL);
    CU_ASSERT_EQUAL(status.kind, BMI_JOB_ACCEPT);
    CU_ASSERT_EQUAL(status.actual, started);
    job_case_none();
}

static void test_one_each(void)
{
    bmi_job_id_t id = accept_begin(8);
    /* when messages come, then each has a machine, whose end is not reported */
    for (int tag = 0; tag < 5; tag++)
        message_send(tag);
    CU_ASSERT_TRUE(reached(&alive, 5));
    for (int tag = 0; tag < 5; tag++)
        let_go(tag);
    CU_ASSERT_TRUE(reached(&served, 5));
    job_case_none();
    accept_end(id, 5);
}

static void test_limit(void)
{
    enum { LIMIT = 3, MESSAGES = 10 };
    struct bmi_job_statistics statistics;
    bmi_job_id_t id = accept_begin(LIMIT);
    /* given more messages than machines may be alive */
    for (int tag = 0; tag < MESSAGES; tag++)
        message_send(tag);
    CU_ASSERT_TRUE(reached(&alive, LIMIT));
    /* then the others wait in the library, in their sender's budget */
    CU_ASSERT_EQUAL(bmi_job_statistics(job_case.context, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.machines_alive, LIMIT);
    CU_ASSERT_TRUE(bmi__unexpected_waiting(&bmi__default));
    /* and each end makes room for the next, in the order of their coming */
    for (int tag = 0; tag < MESSAGES; tag++) {
        let_go(tag);
        CU_ASSERT_TRUE(reached(&served, tag + 1));
        int next = tag + 1 < MESSAGES - LIMIT ? LIMIT : MESSAGES - tag - 1;
        CU_ASSERT_TRUE(reached(&alive, next < LIMIT ? next : LIMIT));
    }
    CU_ASSERT_EQUAL(alive_most, LIMIT);
    CU_ASSERT_FALSE(bmi__unexpected_waiting(&bmi__default));
    accept_end(id, MESSAGES);
}

static void test_stop(void)
{
    struct bmi_job_status status = {0};
    int count = 0;
    /* given machines at the limit, and a message that waits */
    bmi_job_id_t id = accept_begin(2);
    for (int tag = 0; tag < 3; tag++)
        message_send(tag);
    CU_ASSERT_TRUE(reached(&alive, 2));
    /* when the accepting is cancelled, then the job stays until its machines have ended, and takes
     * no more messages */
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    CU_ASSERT_EQUAL(bmi_job_test(job_case.context, id, &count, &status, 20), 0);
    let_go(0);
    let_go(1);
    accept_end(id, 2);
    /* and another call can fetch the message */
    struct BMI_unexpected_info info = {0};
    CU_ASSERT_EQUAL(BMI_testunexpected(1, &count, &info, 0), 1);
    CU_ASSERT_EQUAL(info.tag, 2);
    BMI_unexpected_free(info.addr, info.buffer);
}

static void test_deadline(void)
{
    bmi_job_id_t id;
    struct bmi_job_status status = {0};
    struct bmi_job_options options = {.deadline_ns = bmi_job_deadline(5)};
    /* the accepting ends at its deadline */
    int posted = bmi_job_accept(job_case.context, &table, 1, 0, &options, &id, NULL);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, id, &status, posted, -1), -BMI_ETIMEDOUT);
    CU_ASSERT_EQUAL(status.actual, 0);
}

static void test_freed_by_action(void)
{
    bmi_job_id_t id = accept_begin(1);
    free_early = true;
    message_send(0);
    CU_ASSERT_TRUE(reached(&alive, 1));
    let_go(0);
    CU_ASSERT_TRUE(reached(&served, 1));
    CU_ASSERT_EQUAL(freed_by_action, 1);
    accept_end(id, 1);
}

static void test_refused(void)
{
    bmi_job_id_t id;
    static struct bmi_sm_table bad = {"bad", NULL, 0, 0};
    CU_ASSERT_EQUAL(bmi_job_accept(NULL, &table, 1, 0, NULL, &id, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_accept(job_case.context, NULL, 1, 0, NULL, &id, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_accept(job_case.context, &bad, 1, 0, NULL, &id, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_accept(job_case.context, &table, 0, 0, NULL, &id, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_accept(job_case.context, &table, 1, 1, NULL, &id, NULL), -BMI_EINVAL);
    /* a second one of a context */
    bmi_job_id_t first = accept_begin(1);
    CU_ASSERT_EQUAL(bmi_job_accept(job_case.context, &table, 1, 0, NULL, &id, NULL), -BMI_EBUSY);
    CU_ASSERT_EQUAL(id, 0);
    accept_end(first, 0);
    /* and after its end another one */
    accept_end(accept_begin(1), 0);
}

static void test_close(void)
{
    /* given machines that are alive, and messages that wait, when the context is closed (by the
     * clean-up of the test), then the machines are cancelled and all memory is freed */
    accept_begin(2);
    for (int tag = 0; tag < 4; tag++)
        message_send(tag);
    CU_ASSERT_TRUE(reached(&alive, 2));
}

/* ---- the descriptor -------------------------------------------------------------------------- */

/* Counts the turns of a loop on the descriptor within `ms`; each turn calls a test function. */
static int turns(int ms)
{
    struct pollfd poll_fd = {.fd = bmi_job_context_fd(job_case.context), .events = POLLIN};
    uint64_t until_ns = bmi_job_deadline(ms);
    int count = 0;
    CU_ASSERT_FATAL(poll_fd.fd >= 0);
    for (;;) {
        struct bmi_job_status status;
        uint64_t now_ns = bmi_job_deadline(0);
        int outcount = 0;
        if (now_ns >= until_ns)
            return count;
        poll(&poll_fd, 1, (int)((until_ns - now_ns) / 1000000) + 1);
        bmi_job_testcontext(job_case.context, 1, &outcount, &status, 0);
        count++;
    }
}

/* Whether the loop sleeps, after work in the background has ended. */
static bool comes_to_rest(void)
{
    enum {
        FEW = 50,
        TRIES = 20
    }; /* a defect once made it some 200 turns a millisecond, without
                                      end */
    for (int i = 0; i < TRIES; i++)
        if (turns(100) < FEW)
            return true;
    return false;
}

static void test_quiet(void)
{
    struct BMI_unexpected_info info;
    int count = 0;
    /* given a message that no job takes, and a loop on the descriptor */
    turns(1);
    message_send(9);
    while (!bmi__unexpected_waiting(&bmi__default))
        turns(1);
    /* then the loop sleeps */
    CU_ASSERT_TRUE(comes_to_rest());
    /* also if a server is at its limit */
    CU_ASSERT_EQUAL(BMI_testunexpected(1, &count, &info, 0), 1);
    BMI_unexpected_free(info.addr, info.buffer);
    bmi_job_id_t id = accept_begin(1);
    message_send(0);
    message_send(1);
    CU_ASSERT_TRUE(reached(&alive, 1));
    CU_ASSERT_TRUE(comes_to_rest());
    /* and the loop notices the room */
    let_go(0);
    while (locked(&served) < 1 || locked(&alive) < 1)
        turns(1);
    let_go(1);
    while (locked(&served) < 2)
        turns(1);
    accept_end(id, 2);
}

static void test_readable(void)
{
    struct pollfd poll_fd = {.fd = bmi_job_context_fd(job_case.context), .events = POLLIN};
    struct bmi_job_status status;
    struct BMI_unexpected_info info;
    bmi_job_id_t id;
    int count = 0;
    /* given a message that came before any job that takes it */
    message_send(3);
    while (!bmi__unexpected_waiting(&bmi__default))
        turns(1);
    CU_ASSERT_EQUAL(bmi_job_unexpected(job_case.context, &info, NULL, &id, NULL), 0);
    /* then the descriptor becomes readable */
    while (count == 0) {
        CU_ASSERT_EQUAL_FATAL(poll(&poll_fd, 1, PATIENCE_MS), 1);
        CU_ASSERT(bmi_job_testcontext(job_case.context, 1, &count, &status, 0) >= 0);
    }
    CU_ASSERT_EQUAL(info.tag, 3);
    BMI_unexpected_free(info.addr, info.buffer);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"a machine for each message", test_one_each},
        {"no more machines than the limit", test_limit},
        {"cancelled, it takes no more", test_stop},
        {"its deadline", test_deadline},
        {"an action frees the message", test_freed_by_action},
        {"refusals", test_refused},
        {"the context is closed", test_close},
        {"the descriptor says nothing of messages that nobody takes", test_quiet},
        {"the descriptor reports a message that a job takes", test_readable},
        CU_TEST_INFO_NULL,
    };
    return job_case_run("accept, foreground", "accept, background", tests);
}
