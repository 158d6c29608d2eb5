/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trove_wait_cases.c - tests, waits, cancel, and injected faults.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "trove-stub/trove_cases.h"

/* ---- tests, waits, cancel -------------------------------------------------------------------- */

/* Posts a write until one is pending: with a short delay it may be done by the time the post ends.
 */
static int write_pending(bmi_trove_op_id_t *op, char *byte, bmi_size_t offset, void *user_ptr)
{
    int result;
    do
        result = bmi_trove_post_write_at(op, &place, byte, 1, offset, NULL, 0, user_ptr, context);
    while (result == 1);
    return result;
}

static void delay(int ms, unsigned kinds)
{
    CU_ASSERT_EQUAL(bmi_trove_inject(store,
                                     &(struct bmi_trove_fault){.kinds = kinds, .delay_ms = ms}),
                    0);
}

void completions_come_with_their_pointers(void)
{
    enum { COUNT = 20 };
    bmi_trove_op_id_t ops[COUNT], out[COUNT];
    bmi_error_code_t errors[COUNT];
    bmi_size_t actuals[COUNT];
    void *pointers[COUNT];
    char bytes[COUNT];
    bool seen[COUNT] = {false};
    delay(1, BMI_TROVE_WRITES);
    for (int i = 0; i < COUNT; i++)
        CU_ASSERT_EQUAL_FATAL(write_pending(&ops[i], &bytes[i], i, &bytes[i]), 0);
    for (int left = COUNT; left > 0;) {
        int count = 0;
        CU_ASSERT_EQUAL_FATAL(bmi_trove_testcontext(7, out, &count, errors, actuals, pointers,
                                                    PATIENCE_MS, context),
                              1);
        for (int i = 0; i < count; i++, left--) {
            long index = (char *)pointers[i] - bytes;
            CU_ASSERT_FATAL(index >= 0 && index < COUNT && !seen[index]);
            seen[index] = true;
            CU_ASSERT_EQUAL(out[i], ops[index]);
            CU_ASSERT_EQUAL(errors[i], 0);
            CU_ASSERT_EQUAL(actuals[i], 1);
        }
    }
    int count = 9;
    CU_ASSERT_EQUAL(bmi_trove_testcontext(7, out, &count, errors, NULL, NULL, 0, context), 0);
    CU_ASSERT_EQUAL(count, 0);
}

void testsome_takes_the_named_operations(void)
{
    bmi_trove_op_id_t ops[3], asked[3], out[4];
    bmi_error_code_t errors[4];
    int index[3], count;
    char bytes[3];
    delay(1, BMI_TROVE_WRITES);
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL_FATAL(write_pending(&ops[i], &bytes[i], i, NULL), 0);
    asked[0] = 0;
    asked[1] = ops[2];
    asked[2] = 0;
    CU_ASSERT_EQUAL(bmi_trove_testsome(3, asked, &count, index, errors, NULL, NULL, PATIENCE_MS,
                                       context),
                    1);
    CU_ASSERT_EQUAL(count, 1);
    CU_ASSERT_EQUAL(index[0], 1);
    CU_ASSERT_EQUAL(bmi_trove_testsome(3, asked, &count, index, errors, NULL, NULL, 0, context),
                    -BMI_EINVAL);
    for (int left = 2; left > 0; left -= count)
        CU_ASSERT_EQUAL_FATAL(bmi_trove_testcontext(4, out, &count, errors, NULL, NULL, PATIENCE_MS,
                                                    context),
                              1);
}

static void count_up(void *argument)
{
    atomic_fetch_add((atomic_int *)argument, 1);
}

/* A program's own loop: poll the descriptor, then test with 0 ms. */
void the_descriptor_is_readable_when_there_is_something(void)
{
    bmi_trove_op_id_t op, out;
    bmi_error_code_t error;
    atomic_int notified = 0;
    char byte = 1;
    int count = 0, pending = 0;
    struct pollfd poll_fd = {.fd = bmi_trove_context_fd(context), .events = POLLIN};
    CU_ASSERT_FATAL(poll_fd.fd >= 0);
    CU_ASSERT_EQUAL(bmi_trove_context_fd(context), poll_fd.fd);
    CU_ASSERT_EQUAL(bmi_trove_context_notify(context, count_up, &notified), 0);
    for (int i = 0; i < 10; i++) {
        if (i == 5)
            delay(2, BMI_TROVE_WRITES);
        int result = bmi_trove_post_write_at(&op, &place, &byte, 1, 0, NULL, 0, NULL, context);
        CU_ASSERT(result >= 0);
        int seen = result;
        pending += result == 0; /* a busy machine may have done it, even with a delay */
        while (seen == 0) {
            CU_ASSERT_EQUAL_FATAL(poll(&poll_fd, 1, PATIENCE_MS), 1);
            CU_ASSERT(bmi_trove_testcontext(1, &out, &count, &error, NULL, NULL, 0, context) >= 0);
            seen = count;
            if (count > 0)
                CU_ASSERT_EQUAL(out, op);
        }
    }
    CU_ASSERT_EQUAL(atomic_load(&notified), pending);
    CU_ASSERT_EQUAL(bmi_trove_context_notify(context, NULL, NULL), 0);
}

void a_cancelled_operation_ends_at_once(void)
{
    bmi_trove_op_id_t op;
    char byte = 1;
    delay(600000, BMI_TROVE_WRITES);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_post_write_at(&op, &place, &byte, 1, 0, NULL, 0, NULL, context),
                          0);
    CU_ASSERT_EQUAL(bmi_trove_cancel(op, context), 0);
    CU_ASSERT_EQUAL(bmi_trove_cancel(op, context), 0);
    struct outcome outcome = done(0, &op);
    CU_ASSERT_EQUAL(outcome.error, -BMI_ECANCEL);
    CU_ASSERT_EQUAL(outcome.actual, 0);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
    CU_ASSERT_EQUAL(size_now(), 0);
}

void closing_a_context_cancels(void)
{
    enum { COUNT = 12 };
    bmi_trove_op_id_t op;
    char bytes[COUNT];
    delay(600000, BMI_TROVE_ALL);
    for (int i = 0; i < COUNT; i++)
        CU_ASSERT_EQUAL_FATAL(bmi_trove_post_write_at(&op, &place, &bytes[i], 1, i, NULL, 0, NULL,
                                                      context),
                              0);
    CU_ASSERT_EQUAL(bmi_trove_context_close(context), 0);
    CU_ASSERT_EQUAL(bmi_trove_context_close(context), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_context_open(&context), 0);
    CU_ASSERT_EQUAL(size_now(), 0);
}

/* Several threads post to and wait on one context. */
struct crowd {
    atomic_int left;
    atomic_int wrong;
};

static void *crowd_member(void *argument)
{
    enum { POSTS = 100 };
    struct crowd *crowd = argument;
    char bytes[64] = {0};
    for (int i = 0; i < POSTS; i++) {
        bmi_trove_op_id_t op;
        bmi_error_code_t errors[4];
        bmi_trove_op_id_t out[4];
        int count, result = bmi_trove_post_write_at(&op, &place, bytes, 64, i * 64, NULL, 0, NULL,
                                                    context);
        if (result == 1)
            atomic_fetch_sub(&crowd->left, 1);
        else if (result < 0)
            atomic_fetch_add(&crowd->wrong, 1);
        if (bmi_trove_testcontext(4, out, &count, errors, NULL, NULL, i % 3, context) < 0)
            atomic_fetch_add(&crowd->wrong, 1);
        atomic_fetch_sub(&crowd->left, count);
        for (int k = 0; k < count; k++)
            atomic_fetch_add(&crowd->wrong, errors[k] != 0);
    }
    while (atomic_load(&crowd->left) > 0) {
        bmi_error_code_t error;
        bmi_trove_op_id_t out;
        int count;
        bmi_trove_testcontext(1, &out, &count, &error, NULL, NULL, 20, context);
        atomic_fetch_sub(&crowd->left, count);
    }
    return NULL;
}

void many_threads_on_one_context(void)
{
    enum { THREADS = 4, POSTS = 100 };
    pthread_t threads[THREADS];
    struct crowd crowd = {.left = THREADS * POSTS};
    for (int i = 0; i < THREADS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, crowd_member, &crowd), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CU_ASSERT_EQUAL(crowd.left, 0);
    CU_ASSERT_EQUAL(crowd.wrong, 0);
}

/* A thread that posts and ends: io_uring cancels its operations under way, trove must not. */
static void *post_and_end(void *argument)
{
    bmi_trove_op_id_t *ops = argument;
    static char bytes[8][100000];
    for (int i = 0; i < 8; i++)
        ops[i] = bmi_trove_post_write_at(&ops[i], &place, bytes[i], sizeof bytes[i], i * 100000,
                                         NULL, BMI_TROVE_SYNC, NULL, context) == 0
                     ? ops[i]
                     : 0;
    return NULL;
}

void a_poster_may_end(void)
{
    pthread_t thread;
    bmi_trove_op_id_t ops[8];
    char byte = 0;
    CU_ASSERT_EQUAL(write_at(&byte, 1, 0).error, 0); /* then the file is open */
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, post_and_end, ops), 0);
    pthread_join(thread, NULL);
    for (int i = 0; i < 8; i++)
        if (ops[i] != 0)
            CU_ASSERT_EQUAL(done(0, &ops[i]).error, 0);
    CU_ASSERT_EQUAL(size_now(), 800000);
}

/* ---- faults ---------------------------------------------------------------------------------- */

void faults_strike_the_nth(void)
{
    char bytes[10] = {0};
    struct bmi_trove_statistics statistics;
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &(struct bmi_trove_fault){.kinds = BMI_TROVE_WRITES,
                                                                      .skip = 2,
                                                                      .times = 1,
                                                                      .error = -BMI_EIO}),
                    0);
    CU_ASSERT_EQUAL(write_at(bytes, 10, 0).error, 0);
    CU_ASSERT_EQUAL(write_at(bytes, 10, 10).error, 0);
    CU_ASSERT_EQUAL(read_at(bytes, 10, 10, 0).error, 0); /* not counted */
    struct outcome outcome = write_at(bytes, 10, 20);
    CU_ASSERT_EQUAL(outcome.error, -BMI_EIO);
    CU_ASSERT_EQUAL(outcome.actual, 0);
    CU_ASSERT_EQUAL(size_now(), 20);
    CU_ASSERT_EQUAL(write_at(bytes, 10, 20).error, 0);
    CU_ASSERT_EQUAL(bmi_trove_statistics(store, &statistics), 0);
    CU_ASSERT_EQUAL(statistics.faults, 1);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &(struct bmi_trove_fault){.kinds = 64}), -BMI_EINVAL);
}

void faults_may_move_some_bytes_first(void)
{
    char bytes[1000] = {0};
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &(struct bmi_trove_fault){.kinds = BMI_TROVE_WRITES,
                                                                      .times = 1,
                                                                      .error = -BMI_ENOSPC,
                                                                      .limit = 300}),
                    0);
    struct outcome outcome = write_at(bytes, 1000, 0);
    CU_ASSERT_EQUAL(outcome.error, -BMI_ENOSPC);
    CU_ASSERT_EQUAL(outcome.actual, 300);
    CU_ASSERT_EQUAL(size_now(), 300);
    CU_ASSERT_EQUAL(write_at(bytes, 1000, 0).error, 0);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &(struct bmi_trove_fault){.kinds = BMI_TROVE_READS,
                                                                      .times = 1,
                                                                      .limit = 123}),
                    0);
    outcome = read_at(bytes, 1000, 0, 0);
    CU_ASSERT_EQUAL(outcome.error, 0);
    CU_ASSERT_EQUAL(outcome.actual, 123);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &(struct bmi_trove_fault){.kinds = BMI_TROVE_OBJECTS |
                                                                               BMI_TROVE_KEYS |
                                                                               BMI_TROVE_SYNCS,
                                                                      .error = -BMI_EIO}),
                    0);
    bmi_trove_op_id_t op;
    bmi_size_t size;
    CU_ASSERT_EQUAL(done(bmi_trove_post_size(&op, &place, &size, NULL, context), &op).error,
                    -BMI_EIO);
    CU_ASSERT_EQUAL(done(bmi_trove_post_flush(&op, &place, NULL, context), &op).error, -BMI_EIO);
    CU_ASSERT_EQUAL(put_one("a", "b", 0).error, -BMI_EIO);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
}
