/* SPDX-License-Identifier: BSD-3-Clause
 *
 * job_test.c - jobs of each kind: posted, tested for, cancelled, timed out; one wait and one
 * descriptor for all of them; in the foreground and in the background.
 */
#include <poll.h>
#include <pthread.h>

#include "job/job_case.h"

static const struct bmi_job_options *with(void *user_ptr)
{
    static struct bmi_job_options options;
    options = (struct bmi_job_options){.user_ptr = user_ptr};
    return &options;
}

/* Threads return a null pointer after a failure: CUnit's checks are for one thread. */
static void join_good(pthread_t thread)
{
    void *good;
    CU_ASSERT_EQUAL(pthread_join(thread, &good), 0);
    CU_ASSERT_PTR_NOT_NULL(good);
}

static void message_there_and_back(bmi_size_t size)
{
    char *out = malloc((size_t)size), *in = calloc(1, (size_t)size);
    bmi_job_id_t send, receive;
    struct bmi_job_status sent = {0}, received = {0};
    memset(out, 'x', (size_t)size);
    int receiving = bmi_job_recv(job_case.context, job_case.self, in, size, BMI_EXT_ALLOC, 7,
                                 with(in), &receive, &received);
    int sending = bmi_job_send(job_case.context, job_case.self, out, size, BMI_EXT_ALLOC, 7,
                               with(out), &send, &sent);
    CU_ASSERT_TRUE_FATAL(receiving >= 0 && sending >= 0);
    for (int left = (receiving == 0) + (sending == 0); left > 0; left--) {
        struct bmi_job_status status = job_case_fetch();
        if (status.id == receive && receiving == 0)
            received = status;
        else
            sent = status;
    }
    CU_ASSERT_EQUAL(received.error, 0);
    CU_ASSERT_EQUAL(received.actual, size);
    CU_ASSERT_EQUAL(received.kind, BMI_JOB_RECEIVE);
    CU_ASSERT_PTR_EQUAL(received.user_ptr, in);
    CU_ASSERT_EQUAL(sent.error, 0);
    CU_ASSERT_EQUAL(sent.kind, BMI_JOB_SEND);
    CU_ASSERT_EQUAL(sent.actual, size);
    CU_ASSERT_EQUAL(memcmp(in, out, (size_t)size), 0);
    free(out);
    free(in);
}

static void test_messages(void)
{
    message_there_and_back(10);
    message_there_and_back(1 << 20);
    job_case_none();
}

static void test_lists(void)
{
    char one[3] = "ab", two[5] = "cdef", in[6];
    const void *out[] = {one, two};
    void *into[] = {in, in + 2};
    bmi_size_t sizes[] = {2, 4};
    bmi_job_id_t ids[2];
    struct bmi_job_status status;
    int left = 0;
    int posted = bmi_job_recv_list(job_case.context, job_case.self, into, sizes, 2, 6,
                                   BMI_EXT_ALLOC, 1, NULL, &ids[0], &status);
    left += posted == 0;
    posted = bmi_job_send_list(job_case.context, job_case.self, out, sizes, 2, 6, BMI_EXT_ALLOC, 1,
                               NULL, &ids[1], &status);
    left += posted == 0;
    while (left-- > 0) {
        status = job_case_fetch();
        CU_ASSERT_EQUAL(status.error, 0);
        CU_ASSERT_EQUAL(status.actual, 6);
    }
    CU_ASSERT_EQUAL(memcmp(in, "abcdef", 6), 0);
}

static void test_unexpected(void)
{
    struct BMI_unexpected_info info[2];
    bmi_job_id_t ids[2];
    struct bmi_job_status status, got[2];
    const void *list[] = {"se", "cond"};
    bmi_size_t sizes[] = {2, 4};
    int count, index[2], left = 2;
    for (int i = 0; i < 2; i++)
        CU_ASSERT_EQUAL_FATAL(bmi_job_unexpected(job_case.context, &info[i], NULL, &ids[i], NULL),
                              0);
    int posted = bmi_job_sendunexpected(job_case.context, job_case.self, "first", 5, BMI_EXT_ALLOC,
                                        1, NULL, NULL, &status);
    CU_ASSERT_TRUE(posted == 0 || (posted == 1 && status.actual == 5));
    left += posted == 0;
    posted = bmi_job_sendunexpected_list(job_case.context, job_case.self, list, sizes, 2, 6,
                                         BMI_EXT_ALLOC, 2, NULL, NULL, &status);
    CU_ASSERT_TRUE(posted == 0 || (posted == 1 && status.actual == 6));
    left += posted == 0;
    for (int found = 0; found < 2;) {
        CU_ASSERT_TRUE_FATAL(bmi_job_testsome(job_case.context, 2, ids, &count, index, &got[found],
                                              PATIENCE_MS) == 1);
        for (int i = 0; i < count; i++)
            ids[index[i]] = 0;
        found += count;
    }
    CU_ASSERT_EQUAL(memcmp(info[0].buffer, "first", 5), 0);
    CU_ASSERT_EQUAL(info[1].tag, 2);
    CU_ASSERT_EQUAL(info[1].size, 6);
    CU_ASSERT_EQUAL(got[0].kind, BMI_JOB_UNEXPECTED);
    for (int i = 0; i < 2; i++)
        BMI_unexpected_free(info[i].addr, info[i].buffer);
    for (left -= 2; left > 0; left--)
        CU_ASSERT_EQUAL(job_case_fetch().kind, BMI_JOB_SEND_UNEXPECTED);
}

/* Messages that no job waits for do not keep a test call from waiting. */
static void test_unexpected_without_receiver(void)
{
    struct BMI_unexpected_info info;
    struct bmi_job_status status;
    int count = 0;
    if (bmi_job_sendunexpected(job_case.context, job_case.self, "x", 1, BMI_EXT_ALLOC, 1, NULL,
                               NULL, &status) == 0)
        job_case_fetch();
    uint64_t begin = bmi_job_deadline(0);
    CU_ASSERT_EQUAL(bmi_job_testcontext(job_case.context, 1, &count, &status, 30), 0);
    CU_ASSERT_TRUE(bmi_job_deadline(0) - begin >= 30000000u);
    while (count == 0)
        CU_ASSERT_TRUE_FATAL(BMI_testunexpected(1, &count, &info, 100) >= 0);
    BMI_unexpected_free(info.addr, info.buffer);
}

/* Messages that a context has taken, and that were not fetched before it was closed, go to others,
 * in order. */
static void test_unexpected_not_fetched(void)
{
    struct bmi_job_context *closed;
    struct bmi_job_statistics statistics = {0};
    struct BMI_unexpected_info taken[2], info;
    struct bmi_job_status status;
    bmi_job_id_t event;
    int count = 0, options = job_case.background ? BMI_JOB_BACKGROUND : 0;
    CU_ASSERT_EQUAL_FATAL(bmi_job_context_open((unsigned)options, &closed), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_job_event(closed, NULL, &event, NULL), 0);
    for (int i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(bmi_job_unexpected(closed, &taken[i], NULL, NULL, NULL), 0);
        if (bmi_job_sendunexpected(job_case.context, job_case.self, &"ab"[i], 1, BMI_EXT_ALLOC, i,
                                   NULL, NULL, &status) == 0)
            job_case_fetch();
    }
    while (statistics.completions_waiting < 2) {
        CU_ASSERT_EQUAL_FATAL(bmi_job_test(closed, event, &count, &status, 1), 0);
        CU_ASSERT_EQUAL(bmi_job_statistics(closed, &statistics), 0);
    }
    bmi_job_context_close(closed);
    for (int i = 0; i < 2; i++) {
        CU_ASSERT_PTR_NULL(taken[i].buffer);
        CU_ASSERT_EQUAL_FATAL(BMI_testunexpected(1, &count, &info, 0), 1);
        CU_ASSERT_EQUAL(info.tag, i);
        CU_ASSERT_EQUAL(info.size, 1);
        CU_ASSERT_EQUAL(memcmp(info.buffer, &"ab"[i], 1), 0);
        CU_ASSERT_EQUAL(BMI_unexpected_free(info.addr, info.buffer), 0);
    }
}

/* Timers end in the order of their times, once all are set and every third is cancelled; on a slow
 * machine some may have ended before. */
static void test_timers(void)
{
    enum { TIMERS = 500 };
    uint64_t first = bmi_job_deadline(50), last = 0, due[TIMERS];
    bmi_job_id_t ids[TIMERS];
    int cancelled = 0;
    for (int i = 0; i < TIMERS; i++) {
        due[i] = first + (uint64_t)(i * 7919 % TIMERS) * 20000u;
        CU_ASSERT_EQUAL_FATAL(bmi_job_timer(job_case.context, due[i], with(&due[i]), &ids[i], NULL),
                              0);
    }
    for (int i = 0; i < TIMERS; i += 3)
        CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, ids[i]), 0);
    bool in_order = bmi_job_deadline(0) < first;
    for (int i = 0; i < TIMERS; i++) {
        struct bmi_job_status status = job_case_fetch();
        uint64_t mine = *(uint64_t *)status.user_ptr;
        if (status.error == -BMI_ECANCEL) {
            cancelled++;
            continue;
        }
        CU_ASSERT_EQUAL(status.error, 0);
        CU_ASSERT_EQUAL(status.kind, BMI_JOB_TIMER);
        CU_ASSERT_TRUE(bmi_job_deadline(0) >= mine);
        CU_ASSERT_TRUE(!in_order || mine >= last);
        last = mine;
    }
    CU_ASSERT_TRUE(!in_order || cancelled == (TIMERS + 2) / 3);
    job_case_none();
}

/* An earlier timer of another thread ends a wait that has begun. */
static void *timer_thread(void *context)
{
    return bmi_job_timer(context, bmi_job_deadline(1), NULL, NULL, NULL) == 0 ? context : NULL;
}

static void test_earlier_timer(void)
{
    pthread_t thread;
    bmi_job_id_t late;
    CU_ASSERT_EQUAL(bmi_job_timer(job_case.context, bmi_job_deadline(10 * PATIENCE_MS), NULL, &late,
                                  NULL),
                    0);
    pthread_create(&thread, NULL, timer_thread, job_case.context);
    CU_ASSERT_NOT_EQUAL(job_case_fetch().id, late);
    join_good(thread);
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, late), 0);
    struct bmi_job_status status = job_case_fetch();
    CU_ASSERT_EQUAL(status.id, late);
    CU_ASSERT_EQUAL(status.error, -BMI_ECANCEL);
}

/* So does the deadline of another thread's job. */
static void *deadline_thread(void *context)
{
    int posted;
    bmi_job_id_t id;
    do {
        struct bmi_job_options options = {.deadline_ns = bmi_job_deadline(1)};
        posted = bmi_job_event(context, &options, &id, NULL);
    } while (posted == -BMI_ETIMEDOUT);
    return posted == 0 ? context : NULL;
}

static void test_earlier_deadline(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, deadline_thread, job_case.context);
    CU_ASSERT_EQUAL(job_case_fetch().error, -BMI_ETIMEDOUT);
    join_good(thread);
}

static void test_deadlines(void)
{
    char in[8];
    struct bmi_job_options options = {.deadline_ns = bmi_job_deadline(50), .user_ptr = in};
    struct BMI_unexpected_info info;
    bmi_job_id_t id;
    int posted[4], pending = 0;
    posted[0] = bmi_job_recv(job_case.context, job_case.self, in, 8, BMI_EXT_ALLOC, 9, &options,
                             NULL, NULL);
    posted[1] = bmi_job_unexpected(job_case.context, &info, &options, NULL, NULL);
    posted[2] = bmi_job_event(job_case.context, &options, &id, NULL);
    posted[3] =
        bmi_job_timer(job_case.context, bmi_job_deadline(10 * PATIENCE_MS), &options, NULL, NULL);
    for (int i = 0; i < 4; i++) { /* refused if the machine was so slow that it had passed */
        CU_ASSERT_TRUE(posted[i] == 0 || posted[i] == -BMI_ETIMEDOUT);
        pending += posted[i] == 0;
    }
    for (int i = 0; i < pending; i++) {
        struct bmi_job_status status = job_case_fetch();
        CU_ASSERT_EQUAL(status.error, -BMI_ETIMEDOUT);
        CU_ASSERT_EQUAL(status.actual, 0);
        CU_ASSERT_TRUE(bmi_job_deadline(0) >= options.deadline_ns);
    }
    CU_ASSERT_EQUAL(bmi_job_event(job_case.context, &options, &id, NULL), -BMI_ETIMEDOUT);
    CU_ASSERT_EQUAL(id, 0);
    message_there_and_back(100); /* the timed-out job does not delay it */
    job_case_none();
}

static void test_cancel(void)
{
    char in[8];
    struct BMI_unexpected_info info;
    bmi_job_id_t ids[4];
    struct bmi_job_status status;
    int count;
    bmi_job_recv(job_case.context, job_case.self, in, 8, BMI_EXT_ALLOC, 9, NULL, &ids[0], NULL);
    bmi_job_unexpected(job_case.context, &info, NULL, &ids[1], NULL);
    bmi_job_event(job_case.context, NULL, &ids[2], NULL);
    bmi_job_timer(job_case.context, bmi_job_deadline(PATIENCE_MS), NULL, &ids[3], NULL);
    for (int i = 0; i < 4; i++)
        CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, ids[i]), 0);
    for (int i = 0; i < 4; i++) {
        CU_ASSERT_EQUAL_FATAL(bmi_job_test(job_case.context, ids[i], &count, &status, PATIENCE_MS),
                              1);
        CU_ASSERT_EQUAL(status.error, -BMI_ECANCEL);
        CU_ASSERT_EQUAL(status.id, ids[i]);
        CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, ids[i]), -BMI_EINVAL);
        CU_ASSERT_EQUAL(bmi_job_test(job_case.context, ids[i], &count, &status, 0), -BMI_EINVAL);
    }
    job_case_none();
}

static void test_null(void)
{
    bmi_job_id_t id;
    CU_ASSERT_EQUAL(bmi_job_null(job_case.context, 0, with(&id), &id, NULL), 0);
    CU_ASSERT_EQUAL(bmi_job_null(job_case.context, -BMI_EIO, NULL, NULL, NULL), 0);
    struct bmi_job_status status = job_case_fetch();
    CU_ASSERT_EQUAL(status.id, id);
    CU_ASSERT_PTR_EQUAL(status.user_ptr, &id);
    CU_ASSERT_EQUAL(status.error, 0);
    CU_ASSERT_EQUAL(job_case_fetch().error, -BMI_EIO);
}

static void *event_thread(void *argument)
{
    const bmi_job_id_t *id = argument;
    bool good = bmi_job_event_complete(job_case.context, *id, -BMI_EROFS, 0) == 0 &&
                bmi_job_event_complete(job_case.context, *id, 0, 0) == -BMI_EINVAL;
    return good ? argument : NULL;
}

static void test_event(void)
{
    pthread_t thread;
    bmi_job_id_t id;
    CU_ASSERT_EQUAL(bmi_job_event(job_case.context, NULL, &id, NULL), 0);
    pthread_create(&thread, NULL, event_thread, &id);
    join_good(thread);
    struct bmi_job_status status = job_case_fetch();
    CU_ASSERT_EQUAL(status.id, id);
    CU_ASSERT_EQUAL(status.error, -BMI_EROFS);
    CU_ASSERT_EQUAL(bmi_job_event(job_case.context, NULL, &id, NULL), 0);
    CU_ASSERT_EQUAL(bmi_job_event_complete(job_case.context, id, 0, 42), 0);
    CU_ASSERT_EQUAL(job_case_fetch().actual, 42);
}

/* All threads are woken that each wait for their own job. */
static void *waiter_thread(void *argument)
{
    const bmi_job_id_t *id = argument;
    struct bmi_job_status status = {0};
    int count = 0;
    bool good =
        bmi_job_test(job_case.context, *id, &count, &status, PATIENCE_MS) == 1 && status.id == *id;
    return good ? argument : NULL;
}

static void test_waiters(void)
{
    enum { WAITERS = 8 };
    pthread_t threads[WAITERS];
    bmi_job_id_t ids[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
        CU_ASSERT_EQUAL_FATAL(bmi_job_event(job_case.context, NULL, &ids[i], NULL), 0);
        pthread_create(&threads[i], NULL, waiter_thread, &ids[i]);
    }
    for (int i = 0; i < WAITERS; i++)
        CU_ASSERT_EQUAL(bmi_job_event_complete(job_case.context, ids[i], 0, 0), 0);
    for (int i = 0; i < WAITERS; i++)
        join_good(threads[i]);
    job_case_none();
}

/* ---- the descriptor -------------------------------------------------------------------------- */

/* Waits for the descriptor, then fetches: as a program's own loop. */
static struct bmi_job_status fetch_by_fd(int fd)
{
    struct bmi_job_status status = {0};
    struct pollfd look = {.fd = fd, .events = POLLIN};
    for (int count = 0; count == 0;) {
        CU_ASSERT_EQUAL_FATAL(poll(&look, 1, PATIENCE_MS), 1);
        CU_ASSERT_TRUE_FATAL(bmi_job_testcontext(job_case.context, 1, &count, &status, 0) >= 0);
    }
    return status;
}

/* It becomes quiet when no event is left. */
static void expect_quiet(int fd)
{
    struct pollfd look = {.fd = fd, .events = POLLIN};
    for (int i = 0; i < 1000 && poll(&look, 1, 0) == 1; i++)
        job_case_none();
    CU_ASSERT_EQUAL(poll(&look, 1, 0), 0);
}

static void test_fd(void)
{
    pthread_t thread;
    char in[4];
    bmi_job_id_t id;
    int fd = bmi_job_context_fd(job_case.context);
    CU_ASSERT_TRUE_FATAL(fd >= 0);
    CU_ASSERT_EQUAL(bmi_job_context_fd(job_case.context), fd);
    expect_quiet(fd);

    bmi_job_timer(job_case.context, bmi_job_deadline(5), NULL, &id, NULL);
    CU_ASSERT_EQUAL(fetch_by_fd(fd).id, id);
    expect_quiet(fd);

    bmi_job_null(job_case.context, 0, NULL, &id, NULL);
    CU_ASSERT_EQUAL(fetch_by_fd(fd).id, id);

    bmi_job_event(job_case.context, NULL, &id, NULL);
    expect_quiet(fd);
    pthread_create(&thread, NULL, event_thread, &id);
    CU_ASSERT_EQUAL(fetch_by_fd(fd).id, id);
    join_good(thread);

    CU_ASSERT_EQUAL(bmi_job_recv(job_case.context, job_case.self, in, 4, BMI_EXT_ALLOC, 3, NULL,
                                 &id, NULL),
                    0);
    int sending = bmi_job_send(job_case.context, job_case.self, "ping", 4, BMI_EXT_ALLOC, 3, NULL,
                               NULL, NULL);
    CU_ASSERT_TRUE_FATAL(sending >= 0);
    int received = 0;
    for (int left = sending == 0 ? 2 : 1; left > 0; left--)
        received += fetch_by_fd(fd).id == id;
    CU_ASSERT_EQUAL(received, 1);
    CU_ASSERT_EQUAL(memcmp(in, "ping", 4), 0);
    expect_quiet(fd);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void test_bad_arguments(void)
{
    struct bmi_job_status status;
    struct bmi_job_context *none;
    bmi_job_id_t id = 5, stale = INT64_C(1) << 40 | 3;
    int count = 7;
    char byte;
    CU_ASSERT_EQUAL(bmi_job_context_open(99, &none), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_context_open(0, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_send(job_case.context, job_case.self, NULL, 1, BMI_EXT_ALLOC, 0, NULL,
                                 &id, NULL),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(id, 0);
    CU_ASSERT_EQUAL(bmi_job_recv(NULL, job_case.self, &byte, 1, BMI_EXT_ALLOC, 0, NULL, &id, NULL),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_recv(job_case.context, 12345, &byte, 1, BMI_EXT_ALLOC, 0, NULL, &id,
                                 NULL),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_unexpected(job_case.context, NULL, NULL, &id, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_null(job_case.context, 3, NULL, &id, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_event(job_case.context, NULL, NULL, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_event_complete(job_case.context, stale, 0, 0), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, stale), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, 0), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_test(job_case.context, stale, &count, &status, 0), -BMI_EINVAL);
    CU_ASSERT_EQUAL(count, 0);
    CU_ASSERT_EQUAL(bmi_job_testcontext(job_case.context, 0, &count, &status, 0), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_testcontext(job_case.context, 1, &count, &status, -1), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_testcontext(job_case.context, 1, NULL, &status, 0), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_testsome(job_case.context, 1, &stale, &count, NULL, &status, 0),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_context_fd(NULL), -BMI_EINVAL);
    struct bmi_flow_progress progress;
    CU_ASSERT_EQUAL(bmi_job_flow(job_case.context, NULL, NULL, &id, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_flow_progress(NULL, 1, &progress), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_flow_progress(job_case.context, 1, NULL), -BMI_EINVAL);
    job_case_none();
}

/* A refused post leaves no memory behind. */
static void test_refused(void)
{
    enum { REFUSED = 1000 };
    struct bmi_job_statistics before, after;
    char byte;
    for (int i = 0; i < REFUSED; i++) {
        CU_ASSERT_EQUAL(bmi_job_recv(job_case.context, 12345, &byte, 1, BMI_EXT_ALLOC, 0, NULL,
                                     NULL, NULL),
                        -BMI_EINVAL);
        if (i == 0)
            CU_ASSERT_EQUAL(bmi_job_statistics(job_case.context, &before), 0);
    }
    CU_ASSERT_EQUAL(bmi_job_statistics(job_case.context, &after), 0);
    CU_ASSERT_EQUAL(after.posted, 0);
    CU_ASSERT_EQUAL(after.pending, 0);
    CU_ASSERT_EQUAL(after.job_bytes, before.job_bytes);
}

/* Pending jobs end when the context is closed; the test's clean-up closes it. */
static void test_close_with_jobs(void)
{
    static char in[100];
    static struct BMI_unexpected_info info[4];
    struct bmi_job_statistics statistics;
    bmi_job_id_t id;
    for (int i = 0; i < 4; i++) {
        bmi_job_recv(job_case.context, job_case.self, in, 100, BMI_EXT_ALLOC, i, NULL, NULL, NULL);
        bmi_job_unexpected(job_case.context, &info[i], NULL, NULL, NULL);
        bmi_job_timer(job_case.context, bmi_job_deadline(PATIENCE_MS), NULL, NULL, NULL);
        bmi_job_event(job_case.context, NULL, &id, NULL);
        bmi_job_null(job_case.context, 0, NULL, NULL, NULL);
    }
    CU_ASSERT_EQUAL(bmi_job_statistics(job_case.context, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.pending, 16);
    CU_ASSERT_EQUAL(statistics.completions_waiting, 4);
    CU_ASSERT_EQUAL(statistics.posted, 20);
}

int main(void)
{
    static CU_TestInfo tests[] = {
        {"messages", test_messages},
        {"lists", test_lists},
        {"unexpected messages", test_unexpected},
        {"unexpected messages without a receiver", test_unexpected_without_receiver},
        {"unexpected messages that were not fetched", test_unexpected_not_fetched},
        {"timers end in order", test_timers},
        {"an earlier timer", test_earlier_timer},
        {"an earlier deadline", test_earlier_deadline},
        {"deadlines", test_deadlines},
        {"cancel", test_cancel},
        {"null jobs", test_null},
        {"events", test_event},
        {"threads that wait for a job each", test_waiters},
        {"the descriptor", test_fd},
        {"bad arguments", test_bad_arguments},
        {"refused posts", test_refused},
        {"close with jobs pending", test_close_with_jobs},
        CU_TEST_INFO_NULL,
    };
    return job_case_run("job", "job in the background", tests);
}
