/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test_cases.c - "Test": the completions that test calls report, and their form.
 */
#include "harness.h"

#include <string.h>

enum { COUNT = 10 };

/* Posts `count` receives directly, so that the case tests them directly. */
static void post_receives(struct rank *rank, bmi_op_id_t *ids, int64_t *values, int count)
{
    for (int i = 0; i < count; i++) {
        bmi_size_t actual;
        values[i] = -1;
        NEED_STATUS(rank,
                    BMI_post_recv(&ids[i], rank->peer, &values[i], sizeof values[i], &actual,
                                  BMI_EXT_ALLOC, i, &values[i], rank->context, NULL),
                    0);
    }
}

static void send_value(struct rank *rank, int64_t value)
{
    struct op op;
    op_send(rank, &op, &value, sizeof value, (bmi_msg_tag_t)value);
    op_finish(rank, &op, sizeof value);
}

/* Completes the receive of tag 0 and takes its completion by BMI_test. */
static void send_value_to_self(struct rank *rank, bmi_op_id_t *id, const int64_t *value)
{
    bmi_context_id receives = rank->context, sends;
    int count = 0;
    bmi_error_code_t error;
    int64_t deadline = now_ms() + 20000 * patience();
    NEED_STATUS(rank, BMI_open_context(&sends), 0);
    rank->context = sends;
    send_value(rank, 0);
    rank->context = receives;
    BMI_close_context(sends);
    while (BMI_test(*id, &count, &error, NULL, NULL, 100, receives) == 0)
        NEED(rank, now_ms() < deadline);
    CHECK_EQUAL(rank, count, 1);
    CHECK_EQUAL(rank, error, 0);
    CHECK_EQUAL(rank, *value, 0);
}

/* A second context, so that the case's own completions are not collected with the sends. */
static bmi_context_id own_context(struct rank *rank)
{
    bmi_context_id context;
    NEED_STATUS(rank, BMI_open_context(&context), 0);
    return context;
}

/* Waits until the context holds `depth` completions. */
static void wait_for_depth(struct rank *rank, bmi_context_id context, uint64_t depth)
{
    struct bmi_context_statistics statistics = {.context = context};
    int64_t deadline = now_ms() + 20000 * patience();
    while (statistics.queue_depth < depth) {
        NEED(rank, now_ms() < deadline);
        op_collect(rank, 1);
        NEED_STATUS(rank, BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &statistics), 0);
    }
}

static void bad_arguments(struct rank *rank)
{
    bmi_op_id_t ids[2] = {0, 0}, id;
    int count = 7, indexes[2];
    bmi_error_code_t errors[2];
    bmi_size_t actuals[2];
    void *user_ptrs[2];
    struct BMI_unexpected_info info;
    bmi_context_id context = rank->context;
    int64_t value;
    post_receives(rank, &id, &value, 1);
    CHECK_STATUS(rank, BMI_test(id, NULL, errors, actuals, user_ptrs, 0, context), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_test(id, &count, NULL, actuals, user_ptrs, 0, context), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_test(id, &count, errors, actuals, user_ptrs, -1, context), -BMI_EINVAL);
    CHECK_STATUS(rank,
                 BMI_testsome(2, NULL, &count, indexes, errors, actuals, user_ptrs, 0, context),
                 -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_testsome(2, ids, NULL, indexes, errors, actuals, user_ptrs, 0, context),
                 -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_testsome(2, ids, &count, NULL, errors, actuals, user_ptrs, 0, context),
                 -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_testsome(2, ids, &count, indexes, NULL, actuals, user_ptrs, 0, context),
                 -BMI_EINVAL);
    CHECK_STATUS(rank,
                 BMI_testsome(-1, ids, &count, indexes, errors, actuals, user_ptrs, 0, context),
                 -BMI_EINVAL);
    CHECK_STATUS(rank,
                 BMI_testsome(2, ids, &count, indexes, errors, actuals, user_ptrs, -1, context),
                 -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_testcontext(2, NULL, &count, errors, actuals, user_ptrs, 0, context),
                 -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_testcontext(2, ids, NULL, errors, actuals, user_ptrs, 0, context),
                 -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_testcontext(2, ids, &count, NULL, actuals, user_ptrs, 0, context),
                 -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_testcontext(-1, ids, &count, errors, actuals, user_ptrs, 0, context),
                 -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_testcontext(2, ids, &count, errors, actuals, user_ptrs, -1, context),
                 -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_testunexpected(1, NULL, &info, 0), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_testunexpected(1, &count, NULL, 0), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_testunexpected(-1, &count, &info, 0), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_testunexpected(1, &count, &info, -1), -BMI_EINVAL);
    send_value_to_self(rank, &id, &value);
}

/* BMI_test: not yet, then once. */
static void test_one(struct rank *rank)
{
    bmi_op_id_t id;
    int64_t value;
    int count = 7;
    bmi_error_code_t error = 7;
    bmi_size_t actual = 7;
    void *user_ptr = NULL;
    bmi_context_id sends = rank->context, receives = own_context(rank);
    rank->context = receives;
    post_receives(rank, &id, &value, 1);
    CHECK(rank, id > 0);
    CHECK_EQUAL(rank, BMI_test(id, &count, &error, &actual, &user_ptr, 0, receives), 0);
    CHECK_EQUAL(rank, count, 0);
    rank->context = sends;
    send_value(rank, 0);
    int64_t deadline = now_ms() + 20000 * patience();
    int returned;
    while ((returned = BMI_test(id, &count, &error, &actual, &user_ptr, 100, receives)) == 0) {
        CHECK_EQUAL(rank, count, 0);
        NEED(rank, now_ms() < deadline);
    }
    CHECK_EQUAL(rank, returned, 1);
    CHECK_EQUAL(rank, count, 1);
    CHECK_EQUAL(rank, error, 0);
    CHECK_EQUAL(rank, actual, sizeof value);
    CHECK(rank, user_ptr == &value && value == 0);
    CHECK_STATUS(rank, BMI_test(id, &count, &error, &actual, &user_ptr, 0, receives), -BMI_EINVAL);
    BMI_close_context(receives);
}

/* NULL user_ptrs and actuals in every call. */
static void null_arrays(struct rank *rank)
{
    bmi_op_id_t ids[3], out;
    int64_t values[3];
    int count, index;
    bmi_error_code_t error;
    bmi_context_id sends = rank->context, receives = own_context(rank);
    rank->context = receives;
    post_receives(rank, ids, values, 3);
    rank->context = sends;
    for (int i = 0; i < 3; i++)
        send_value(rank, i);
    wait_for_depth(rank, receives, 3);
    /* No room for a completion: it stays, and the call does not wait. */
    CHECK_EQUAL(rank, BMI_testcontext(0, NULL, &count, NULL, NULL, NULL, 60000, receives), 0);
    CHECK_EQUAL(rank, BMI_testunexpected(0, &count, NULL, 0), 0);
    CHECK_EQUAL(rank, BMI_test(ids[0], &count, &error, NULL, NULL, 0, receives), 1);
    CHECK_EQUAL(rank, BMI_testsome(1, &ids[1], &count, &index, &error, NULL, NULL, 0, receives), 1);
    CHECK_EQUAL(rank, BMI_testcontext(1, &out, &count, &error, NULL, NULL, 0, receives), 1);
    CHECK_EQUAL(rank, out, ids[2]);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(rank, values[i], i);
    BMI_close_context(receives);
}

/* BMI_testsome: of ten, ids of 0 between, those with odd numbers complete. */
static void some(struct rank *rank)
{
    bmi_op_id_t ids[COUNT], asked[2 * COUNT] = {0};
    int64_t values[COUNT];
    int count = 7, indexes[2 * COUNT];
    bmi_error_code_t errors[2 * COUNT];
    bmi_size_t actuals[2 * COUNT];
    void *user_ptrs[2 * COUNT];
    bmi_context_id sends = rank->context, receives = own_context(rank);
    rank->context = receives;
    post_receives(rank, ids, values, COUNT);
    rank->context = sends;
    for (int i = 0; i < COUNT; i++)
        asked[2 * i + 1] = ids[i];
    CHECK_EQUAL(rank,
                BMI_testsome(2 * COUNT, asked, &count, indexes, errors, actuals, user_ptrs, 0,
                             receives),
                0);
    CHECK_EQUAL(rank, count, 0);
    for (int i = 1; i < COUNT; i += 2)
        send_value(rank, i);
    wait_for_depth(rank, receives, COUNT / 2);
    CHECK_EQUAL(rank,
                BMI_testsome(2 * COUNT, asked, &count, indexes, errors, actuals, user_ptrs, 1000,
                             receives),
                1);
    NEED_EQUAL(rank, count, COUNT / 2);
    for (int k = 0; k < count; k++) {
        NEED(rank, indexes[k] >= 0 && indexes[k] < 2 * COUNT && indexes[k] % 4 == 3);
        CHECK(rank, k == 0 || indexes[k] != indexes[k - 1]);
        int64_t *value = &values[indexes[k] / 2];
        CHECK(rank, user_ptrs[k] == value && *value == indexes[k] / 2);
        CHECK_EQUAL(rank, errors[k], 0);
        CHECK_EQUAL(rank, actuals[k], sizeof *value);
        asked[indexes[k]] = 0;
    }
    CHECK_EQUAL(rank,
                BMI_testsome(2 * COUNT, asked, &count, indexes, errors, actuals, user_ptrs, 0,
                             receives),
                0);
    CHECK_EQUAL(rank, count, 0);
    for (int i = 0; i < COUNT; i++)
        CHECK(rank, (i % 2 == 0) == (asked[2 * i + 1] != 0));
    for (int i = 0; i < COUNT; i += 2)
        send_value(rank, i);
    wait_for_depth(rank, receives, COUNT / 2);
    CHECK_EQUAL(rank,
                BMI_testsome(2 * COUNT, asked, &count, indexes, errors, NULL, NULL, 1000, receives),
                1);
    CHECK_EQUAL(rank, count, COUNT / 2);
    BMI_close_context(receives);
}

/* An empty list reports no completion. */
static void some_of_none(struct rank *rank)
{
    bmi_op_id_t ids[4] = {0, 0, 0, 0};
    int count = 7, indexes[4];
    bmi_error_code_t errors[4];
    CHECK_EQUAL(rank, BMI_testsome(4, ids, &count, indexes, errors, NULL, NULL, 0, rank->context),
                0);
    CHECK_EQUAL(rank, count, 0);
    count = 7;
    CHECK_EQUAL(rank, BMI_testsome(0, ids, &count, indexes, errors, NULL, NULL, 0, rank->context),
                0);
    CHECK_EQUAL(rank, count, 0);
}

/* A stale id among good ones is a usage error, and the good ones stay. */
static void some_with_stale(struct rank *rank)
{
    bmi_op_id_t ids[2];
    int64_t values[1];
    int count = 7, indexes[2];
    bmi_error_code_t errors[2];
    post_receives(rank, ids, values, 1);
    ids[1] = ids[0] ^ (bmi_op_id_t)1 << 40;
    CHECK_STATUS(rank, BMI_testsome(2, ids, &count, indexes, errors, NULL, NULL, 0, rank->context),
                 -BMI_EINVAL);
    send_value_to_self(rank, ids, values);
}

/* BMI_testcontext: in order of completion, at most as many as there is room for. */
static void in_order(struct rank *rank)
{
    enum { MESSAGES = 100 };
    bmi_op_id_t ids[MESSAGES], out[MESSAGES];
    int64_t values[MESSAGES];
    static const int rooms[] = {1, 2, 3, 5, 89};
    int order[MESSAGES], count, done = 0;
    bmi_error_code_t errors[MESSAGES];
    bmi_size_t actuals[MESSAGES];
    void *user_ptrs[MESSAGES];
    bmi_context_id sends = rank->context, receives = own_context(rank);
    rank->context = receives;
    post_receives(rank, ids, values, MESSAGES);
    rank->context = sends;
    for (int i = 0; i < MESSAGES; i++)
        order[i] = i;
    random_shuffle(order, MESSAGES, 4);
    for (int i = 0; i < MESSAGES; i++) {
        send_value(rank, order[i]);
        wait_for_depth(rank, receives, (uint64_t)i + 1);
    }
    for (int i = 0; i < 5; i++) {
        NEED_EQUAL(rank,
                   BMI_testcontext(rooms[i], out, &count, errors, actuals, user_ptrs, 0, receives),
                   1);
        NEED_EQUAL(rank, count, rooms[i]);
        for (int k = 0; k < count; k++, done++) {
            CHECK_EQUAL(rank, out[k], ids[order[done]]);
            CHECK(rank, user_ptrs[k] == &values[order[done]]);
            CHECK_EQUAL(rank, errors[k], 0);
            CHECK_EQUAL(rank, actuals[k], sizeof values[0]);
        }
    }
    CHECK_EQUAL(rank, BMI_testcontext(1, out, &count, errors, NULL, NULL, 0, receives), 0);
    CHECK_EQUAL(rank, count, 0);
    BMI_close_context(receives);
}

/* A completion that one call has taken is not reported by another: test, testsome,
 * and testcontext. */
static void exactly_once(struct rank *rank)
{
    enum { MESSAGES = 30 };
    bmi_op_id_t ids[MESSAGES], out[MESSAGES];
    int64_t values[MESSAGES];
    int count, indexes[MESSAGES];
    bmi_error_code_t errors[MESSAGES];
    bmi_context_id sends = rank->context, receives = own_context(rank);
    rank->context = receives;
    post_receives(rank, ids, values, MESSAGES);
    rank->context = sends;
    for (int i = 0; i < MESSAGES; i++)
        send_value(rank, i);
    wait_for_depth(rank, receives, MESSAGES);
    for (int i = 0; i < 10; i++)
        CHECK_EQUAL(rank, BMI_test(ids[3 * i], &count, errors, NULL, NULL, 0, receives), 1);
    for (int i = 0; i < 10; i++)
        CHECK_EQUAL(rank,
                    BMI_testsome(1, &ids[3 * i + 1], &count, indexes, errors, NULL, NULL, 0,
                                 receives),
                    1);
    CHECK_EQUAL(rank, BMI_testcontext(MESSAGES, out, &count, errors, NULL, NULL, 0, receives), 1);
    NEED_EQUAL(rank, count, 10);
    for (int i = 0; i < 10; i++)
        CHECK_EQUAL(rank, out[i], ids[3 * i + 2]);
    CHECK_EQUAL(rank, BMI_testcontext(MESSAGES, out, &count, errors, NULL, NULL, 0, receives), 0);
    for (int i = 0; i < MESSAGES; i++)
        CHECK_STATUS(rank, BMI_test(ids[i], &count, errors, NULL, NULL, 0, receives), -BMI_EINVAL);
    BMI_close_context(receives);
}

#define SECTION .section = "Test"
const struct conformance_case test_cases[] = {
    {SECTION, .name = "usage errors", .run = bad_arguments, .where = SOLO},
    {SECTION, .name = "BMI_test", .run = test_one, .where = SOLO},
    {SECTION, .name = "NULL user_ptrs and actuals", .run = null_arrays, .where = SOLO},
    {SECTION, .name = "testsome skips zero ids and packs its outputs", .run = some, .where = SOLO},
    {SECTION, .name = "testsome of none", .run = some_of_none, .where = SOLO},
    {SECTION, .name = "testsome with a stale id", .run = some_with_stale, .where = SOLO},
    {SECTION, .name = "testcontext reports in order of completion", .run = in_order, .where = SOLO},
    {SECTION, .name = "each completion is reported once", .run = exactly_once, .where = SOLO},
    {0},
};
