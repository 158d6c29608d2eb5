/* SPDX-License-Identifier: BSD-3-Clause
 *
 * context_cases.c - "Test" and "Sizes": contexts are separate, many, and may be closed at any time;
 * outstanding operations are bounded by memory alone.
 */
#include "harness.h"

#include <string.h>

enum { CONTEXTS = 1024 };

/* Takes one completion of one context; 0 if there is none. */
static bmi_op_id_t take_one(struct rank *rank, bmi_context_id context, bmi_error_code_t *error)
{
    bmi_op_id_t id = 0;
    int count = -1;
    int returned = BMI_testcontext(1, &id, &count, error, NULL, NULL, 0, context);
    NEED(rank, returned >= 0 && returned == count);
    return count ? id : 0;
}

static bmi_op_id_t receive_in(struct rank *rank, bmi_context_id context, char *byte,
                              bmi_msg_tag_t tag)
{
    bmi_op_id_t id;
    bmi_size_t actual;
    NEED_STATUS(rank,
                BMI_post_recv(&id, rank->peer, byte, 1, &actual, BMI_EXT_ALLOC, tag, byte, context,
                              NULL),
                0);
    return id;
}

static void wait_for(struct rank *rank, bmi_context_id context)
{
    struct bmi_context_statistics statistics = {.context = context};
    int64_t deadline = now_ms() + 20000 * patience();
    while (statistics.queue_depth == 0) {
        NEED(rank, now_ms() < deadline);
        op_collect(rank, 1);
        NEED_STATUS(rank, BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &statistics), 0);
    }
}

/* One operation in each of 1,024 contexts; each completion appears in its own. */
static void many_contexts(struct rank *rank)
{
    bmi_context_id contexts[CONTEXTS];
    bmi_op_id_t ids[CONTEXTS];
    char bytes[CONTEXTS];
    int order[CONTEXTS];
    for (int i = 0; i < CONTEXTS; i++) {
        NEED_STATUS(rank, BMI_open_context(&contexts[i]), 0);
        NEED(rank, contexts[i] > 0 && contexts[i] != rank->context);
        NEED(rank, i == 0 || contexts[i] != contexts[i - 1]);
        ids[i] = receive_in(rank, contexts[i], &bytes[i], i);
        order[i] = i;
    }
    random_shuffle(order, CONTEXTS, 6);
    for (int i = 0; i < CONTEXTS; i++) {
        struct op op;
        bmi_error_code_t error = 7;
        int k = order[i], before = order[(i + 1) % CONTEXTS];
        op_send(rank, &op, "b", 1, k);
        wait_for(rank, contexts[k]);
        CHECK_EQUAL(rank, take_one(rank, contexts[before], &error), 0);
        CHECK_EQUAL(rank, take_one(rank, contexts[k], &error), ids[k]);
        CHECK_EQUAL(rank, error, 0);
        CHECK_EQUAL(rank, bytes[k], 'b');
        op_finish(rank, &op, 1);
    }
    for (int i = 0; i < CONTEXTS; i++)
        BMI_close_context(contexts[i]);
    message_pass_self(rank);
}

/* An operation is reported in its own context, never by a call on another. */
static void separate(struct rank *rank)
{
    bmi_context_id first, second;
    bmi_op_id_t id, ids[1];
    char byte;
    struct op op;
    int count = 7, index;
    bmi_error_code_t error = 7;
    NEED_STATUS(rank, BMI_open_context(&first), 0);
    NEED_STATUS(rank, BMI_open_context(&second), 0);
    ids[0] = id = receive_in(rank, first, &byte, 1);
    op_send(rank, &op, "b", 1, 1);
    wait_for(rank, first);
    CHECK_EQUAL(rank, take_one(rank, second, &error), 0);
    CHECK(rank, BMI_test(id, &count, &error, NULL, NULL, 0, second) != 1);
    CHECK(rank, BMI_testsome(1, ids, &count, &index, &error, NULL, NULL, 0, second) != 1);
    CHECK_EQUAL(rank, take_one(rank, first, &error), id);
    CHECK_EQUAL(rank, error, 0);
    op_finish(rank, &op, 1);
    BMI_close_context(first);
    BMI_close_context(second);
}

/* Completions not fetched are dropped, outstanding operations end; buffers are free; other contexts
   continue.
 */
static void closed_with_operations(struct rank *rank)
{
    enum { LARGE = 4 * MIB };
    char *large = memory_take(rank, LARGE);
    bmi_context_id context;
    struct op op, neighbour, unexpected;
    char bytes[3] = "...", other;
    bmi_op_id_t ids[2];
    bmi_size_t actual;
    NEED_STATUS(rank, BMI_open_context(&context), 0);
    receive_in(rank, context, &bytes[0], 1);
    receive_in(rank, context, &bytes[1], 2);
    NEED_STATUS(rank,
                BMI_post_recv(&ids[0], rank->peer, large, LARGE, &actual, BMI_EXT_ALLOC, 3, NULL,
                              context, NULL),
                0);
    NEED_STATUS(rank,
                BMI_post_send(&ids[1], rank->peer, large, LARGE, BMI_EXT_ALLOC, 4, NULL, context,
                              NULL),
                0);
    op_receive(rank, &neighbour, &other, 1, 1);
    op_send(rank, &op, "b", 1, 1);
    op_finish(rank, &op, 1);
    wait_for(rank, context);
    BMI_close_context(context);
    memset(large, 0x5A, LARGE);
    CHECK_STATUS(rank, BMI_cancel(ids[0], context), -BMI_EINVAL);
    op_send(rank, &op, "c", 1, 1);
    op_finish(rank, &op, 1);
    op_finish(rank, &neighbour, 1);
    CHECK_EQUAL(rank, other, 'c');
    op_receive(rank, &neighbour, large, 1, 2);
    op_send(rank, &op, "d", 1, 2);
    op_finish(rank, &op, 1);
    op_finish(rank, &neighbour, 1);
    CHECK_EQUAL(rank, large[0], 'd');
    CHECK_EQUAL(rank, bytes[1], '.');
    op_send_unexpected(rank, &unexpected, "u", 1, 1);
    op_finish(rank, &unexpected, 1);
    for (size_t i = 1; i < LARGE; i++)
        NEED_EQUAL(rank, large[i], 0x5A);
    struct BMI_unexpected_info info;
    unexpected_take(rank, &info);
    unexpected_give_back(rank, &info);
    memory_give_back(large);
}

static void opened_and_closed(struct rank *rank)
{
    for (int i = 0; i < 5000; i++) {
        bmi_context_id context;
        NEED_STATUS(rank, BMI_open_context(&context), 0);
        NEED(rank, context > 0);
        if (i % 100 == 0) {
            struct bmi_context_fd asked = {.context = context, .fd = -1};
            CHECK_STATUS(rank, BMI_get_info(0, BMI_GET_CONTEXT_FD, &asked), 0);
        }
        BMI_close_context(context);
    }
    BMI_close_context(0);
    BMI_close_context(-1);
    BMI_close_context(123456789);
    message_pass_self(rank);
}

/* 100,000 receives outstanding, matched from the last to the first. */
static void many_outstanding(struct rank *rank)
{
    int count = instrumented() ? 10000 : 100000;
    struct op *ops = memory_take(rank, (bmi_size_t)sizeof *ops * count), send;
    int32_t *values = memory_take(rank, (bmi_size_t)sizeof *values * count);
    for (int i = 0; i < count; i++)
        op_receive(rank, &ops[i], &values[i], sizeof values[i], i);
    CHECK_EQUAL(rank, statistics_of(rank, 0).outstanding_receives, count);
    for (int32_t i = count - 1; i >= 0; i--) {
        op_send(rank, &send, &i, sizeof i, i);
        op_finish(rank, &send, sizeof i);
    }
    for (int i = 0; i < count; i++) {
        op_finish(rank, &ops[i], sizeof values[i]);
        NEED_EQUAL(rank, values[i], i);
    }
    CHECK_EQUAL(rank, statistics_of(rank, 0).outstanding_receives, 0);
    memory_give_back(values);
    memory_give_back(ops);
}

/* All of one key: neither posting nor matching may search a list. */
static void many_of_one_key(struct rank *rank)
{
    int count = instrumented() ? 10000 : 100000;
    struct op *ops = memory_take(rank, (bmi_size_t)sizeof *ops * count), send;
    int32_t *values = memory_take(rank, (bmi_size_t)sizeof *values * count);
    for (int i = 0; i < count; i++)
        op_receive(rank, &ops[i], &values[i], sizeof values[i], 1);
    for (int i = 0; i < count / 2; i++)
        op_cancel(rank, &ops[2 * i], false);
    for (int32_t i = 1; i < count; i += 2) {
        op_send(rank, &send, &i, sizeof i, 1);
        op_finish(rank, &send, sizeof i);
    }
    for (int i = 1; i < count; i += 2) {
        op_finish(rank, &ops[i], sizeof values[i]);
        NEED_EQUAL(rank, values[i], i);
    }
    memory_give_back(values);
    memory_give_back(ops);
}

#define SECTION .section = "Sizes"
const struct conformance_case context_cases[] = {
    {SECTION, .name = "1,024 contexts", .run = many_contexts, .where = SOLO},
    {.section = "Test", .name = "contexts are separate", .run = separate, .where = SOLO},
    {.section = "Test",
     .name = "a context closed with operations",
     .run = closed_with_operations,
     .where = SOLO},
    {SECTION, .name = "contexts opened and closed 5,000 times", .run = opened_and_closed,
     .where = SOLO},
    {SECTION, .name = "100,000 operations outstanding", .run = many_outstanding, .where = SOLO},
    {SECTION, .name = "100,000 operations of one key, half cancelled", .run = many_of_one_key,
     .where = SOLO},
    {0},
};
