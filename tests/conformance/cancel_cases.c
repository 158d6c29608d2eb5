/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cancel_cases.c - "Cancel" of operations of which no byte moves yet: each completes exactly once,
 * others are not affected, the connection stays, and new traffic on the same key is correct.
 * Cancelling while bytes move: transfer_cases.c.
 */
#include "harness.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KEY = 1, LARGE = 3 * MIB };

/* After a cancel: no completion is reported any more. */
static void expect_no_more(struct rank *rank)
{
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(rank, op_collect(rank, 10), 0);
}

/* Traffic on the key of the cancelled operation, small and large, both orders. */
static void expect_key_works(struct rank *rank)
{
    message_pass(rank, 100, KEY, TOGETHER);
    message_pass(rank, LARGE, KEY, RECEIVE_FIRST);
    message_pass(rank, LARGE, KEY, SEND_FIRST);
    message_pass(rank, 100, KEY, SEND_FIRST);
}

/* The peer never answers: all operations wait for the connection. */
static void connecting(struct rank *rank)
{
    char url[100], byte, *memory = memory_take(rank, LARGE);
    int descriptor, port = plain_listener(rank, &descriptor);
    BMI_addr_t self = rank->peer;
    struct op ops[5];
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", rank->method->scheme, port);
    rank->peer = rank_look_up(rank, url);
    op_send(rank, &ops[0], &byte, 1, KEY);
    op_send(rank, &ops[1], memory, LARGE, KEY);
    op_receive(rank, &ops[2], &byte, 1, KEY);
    op_receive(rank, &ops[3], memory, LARGE, KEY);
    op_send_unexpected(rank, &ops[4], &byte, 1, KEY);
    op_collect(rank, 10);
    for (int i = 4; i >= 0; i--)
        op_cancel(rank, &ops[i], i == 0 || i == 4);
    expect_no_more(rank);
    rank->peer = self;
    message_pass_self(rank);
    close(descriptor);
    memory_give_back(memory);
}

/* Before any progress, perhaps before the connection was begun. */
static void just_posted(struct rank *rank)
{
    struct op ops[3];
    char byte, *memory = memory_take(rank, LARGE);
    if (rank->role == SENDER) {
        op_send(rank, &ops[0], memory, LARGE, KEY);
        op_receive(rank, &ops[1], memory, LARGE, KEY + 1);
        op_receive(rank, &ops[2], &byte, 1, KEY + 2);
        for (int i = 0; i < 3; i++)
            op_cancel(rank, &ops[i], false);
        expect_no_more(rank);
    }
    rank_barrier(rank);
    expect_key_works(rank);
    memory_give_back(memory);
}

/* A receive that nothing matches, the small unannounced, the large announced to the sender. */
static void unmatched_receive(struct rank *rank)
{
    static const bmi_size_t sizes[] = {100, LARGE};
    struct bmi_method_statistics before;
    rank_warm_up(rank);
    before = method_statistics(rank);
    for (int i = 0; i < 2; i++) {
        char *memory = memory_take(rank, sizes[i]);
        struct op op;
        if (rank->role == RECEIVER)
            op_receive(rank, &op, memory, sizes[i], KEY);
        rank_barrier(rank);
        if (rank->role == RECEIVER) {
            op_cancel(rank, &op, false);
            expect_no_more(rank);
        }
        rank_barrier(rank);
        expect_key_works(rank);
        memory_give_back(memory);
    }
    CHECK_EQUAL(rank, method_statistics(rank).links_opened, before.links_opened);
}

/* Of five receives of one key the second and fourth are cancelled: the others match in order. */
static void receive_in_the_middle(struct rank *rank)
{
    static const bmi_size_t sizes[] = {100, LARGE};
    for (int i = 0; i < 2; i++) {
        struct op ops[5];
        char *memory = memory_take(rank, 5 * sizes[i]);
        for (int k = 0; k < 5 && rank->role == RECEIVER; k++)
            op_receive(rank, &ops[k], memory + k * sizes[i], sizes[i], KEY);
        rank_barrier(rank);
        for (int k = 1; k < 5 && rank->role == RECEIVER; k += 2)
            op_cancel(rank, &ops[k], false);
        rank_barrier(rank);
        for (int k = 0; k < 5; k += 2) {
            if (rank->role == SENDER) {
                pattern_fill(memory + k * sizes[i], sizes[i], (uint64_t)k);
                op_send(rank, &ops[k], memory + k * sizes[i], sizes[i], KEY);
            }
        }
        for (int k = 0; k < 5; k += 2) {
            op_finish(rank, &ops[k], sizes[i]);
            CHECK(rank, pattern_holds(memory + k * sizes[i], sizes[i], (uint64_t)k));
        }
        memory_give_back(memory);
    }
}

/* A large send that the receiver knows of, but has no receive for. */
static void queued_large_send(struct rank *rank)
{
    struct op ops[3];
    char *memory = memory_take(rank, 3 * LARGE);
    for (int i = 0; i < 3 && rank->role == SENDER; i++) {
        pattern_fill(memory + i * LARGE, LARGE, (uint64_t)i);
        op_send(rank, &ops[i], memory + i * LARGE, LARGE, KEY);
    }
    rank_barrier(rank);
    if (rank->role == SENDER) {
        op_cancel(rank, &ops[1], false);
        memset(memory + LARGE, 0xEE, LARGE);
        expect_no_more(rank);
    }
    rank_barrier(rank);
    for (int i = 0; i < 3; i += 2) {
        if (rank->role == RECEIVER)
            op_receive(rank, &ops[i], memory + i * LARGE, LARGE, KEY);
        op_finish(rank, &ops[i], LARGE);
        CHECK(rank, pattern_holds(memory + i * LARGE, LARGE, (uint64_t)i));
    }
    expect_key_works(rank);
    memory_give_back(memory);
}

/* Eager sends beyond the peer's memory: those that were not sent yet end with ECANCEL; exactly the
 * others are received, in order. */
static void queued_small_sends(struct rank *rank)
{
    enum { COUNT = 600 };
    struct op *ops = rank_keep(rank, COUNT * sizeof *ops);
    bmi_size_t size = method_info(rank).eager_max;
    char *memory = memory_take(rank, COUNT * size);
    bool went[COUNT];
    if (rank->role == SENDER) {
        for (int i = 0; i < COUNT; i++) {
            pattern_fill(memory + i * size, size, (uint64_t)i);
            op_send(rank, &ops[i], memory + i * size, size, KEY);
        }
        rank_barrier(rank);
        int cancelled = 0;
        for (int i = COUNT - 1; i >= 0; i--) {
            op_cancel(rank, &ops[i], true);
            went[i] = ops[i].error == 0;
            cancelled += !went[i];
        }
        CHECK(rank, cancelled > 0);
        expect_no_more(rank);
        rank_write(rank, RECEIVER, went, sizeof went);
    } else {
        rank_barrier(rank);
        rank_read(rank, SENDER, went, sizeof went);
        for (int i = 0; i < COUNT; i++) {
            struct op op;
            if (!went[i])
                continue;
            op_receive(rank, &op, memory, size, KEY);
            op_finish(rank, &op, size);
            CHECK(rank, pattern_holds(memory, size, (uint64_t)i));
        }
    }
    expect_key_works(rank);
    memory_give_back(memory);
}

static void queued_unexpected(struct rank *rank)
{
    enum { COUNT = 600 };
    struct op *ops = rank_keep(rank, COUNT * sizeof *ops);
    bmi_size_t size = unexpected_limit(rank);
    char *memory = memory_take(rank, size);
    bool went[COUNT];
    if (rank->role == SENDER) {
        for (int i = 0; i < COUNT; i++)
            op_send_unexpected(rank, &ops[i], memory, size, i);
        rank_barrier(rank);
        for (int i = COUNT - 1; i >= 0; i--) {
            op_cancel(rank, &ops[i], true);
            went[i] = ops[i].error == 0;
        }
        rank_write(rank, RECEIVER, went, sizeof went);
        rank_hello_send(rank);
    } else {
        rank_barrier(rank);
        rank_read(rank, SENDER, went, sizeof went);
        for (int i = 0; i < COUNT; i++) {
            struct BMI_unexpected_info info;
            if (!went[i])
                continue;
            unexpected_take(rank, &info);
            CHECK_EQUAL(rank, info.tag, i);
            CHECK_EQUAL(rank, info.size, size);
            unexpected_give_back(rank, &info);
        }
        rank_hello_receive(rank);
    }
    memory_give_back(memory);
}

/* Completed, not tested: the real result is reported. */
static void completed(struct rank *rank)
{
    struct op send, receive;
    struct bmi_context_statistics statistics = {.context = rank->context};
    bmi_context_id sends;
    char byte = 0;
    int64_t deadline = now_ms() + 20000 * patience();
    NEED_STATUS(rank, BMI_open_context(&sends), 0);
    op_receive(rank, &receive, &byte, 1, KEY);
    bmi_context_id receives = rank->context;
    rank->context = sends;
    op_send(rank, &send, "b", 1, KEY);
    op_finish(rank, &send, 1);
    while (statistics.queue_depth == 0) {
        NEED(rank, now_ms() < deadline);
        op_collect(rank, 1);
        NEED_STATUS(rank, BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &statistics), 0);
    }
    rank->context = receives;
    CHECK_STATUS(rank, BMI_cancel(receive.id, receives), 0);
    CHECK_STATUS(rank, BMI_cancel(receive.id, receives), 0);
    op_finish(rank, &receive, 1);
    CHECK_EQUAL(rank, byte, 'b');
    expect_no_more(rank);
    BMI_close_context(sends);
}

static void twice(struct rank *rank)
{
    struct op op;
    char byte;
    op_receive(rank, &op, &byte, 1, KEY);
    CHECK_STATUS(rank, BMI_cancel(op.id, rank->context), 0);
    CHECK_STATUS(rank, BMI_cancel(op.id, rank->context), 0);
    op_finish_error(rank, &op, BMI_ECANCEL);
    expect_no_more(rank);
}

/* The cancel itself reports no result: also with immediate completion a test call does. */
static void reported_by_its_context(struct rank *rank)
{
    struct op op;
    char byte;
    bmi_op_id_t id;
    bmi_context_id other;
    bmi_error_code_t error;
    int count;
    NEED_STATUS(rank, BMI_open_context(&other), 0);
    op_receive(rank, &op, &byte, 1, KEY);
    CHECK_STATUS(rank, BMI_cancel(op.id, rank->context), 0);
    CHECK_EQUAL(rank, BMI_testcontext(1, &id, &count, &error, NULL, NULL, 20, other), 0);
    op_finish_error(rank, &op, BMI_ECANCEL);
    BMI_close_context(other);
}

static void forceful_mode(struct rank *rank)
{
    CHECK_STATUS(rank, BMI_set_info(rank->peer, BMI_FORCEFUL_CANCEL_MODE, NULL), 0);
    unmatched_receive(rank);
    queued_large_send(rank);
}

#define SECTION .section = "Cancel"
const struct conformance_case cancel_cases[] = {
    {SECTION, .name = "while connecting", .run = connecting, .where = SOLO | PORTS},
    {SECTION, .name = "just posted", .run = just_posted},
    {SECTION, .name = "a receive unmatched, or announced", .run = unmatched_receive},
    {SECTION, .name = "receives in the middle of a key", .run = receive_in_the_middle},
    {SECTION, .name = "a large send that waits for its receive", .run = queued_large_send},
    {SECTION, .name = "sends that wait for the peer's memory", .run = queued_small_sends},
    {SECTION, .name = "unexpected sends that wait", .run = queued_unexpected},
    {SECTION, .name = "completed, not tested yet", .run = completed, .where = SOLO},
    {SECTION, .name = "twice", .run = twice, .where = SOLO},
    {SECTION, .name = "reported by a test call of its context", .run = reported_by_its_context,
     .where = SOLO},
    {SECTION, .name = "BMI_FORCEFUL_CANCEL_MODE changes nothing", .run = forceful_mode},
    {0},
};
