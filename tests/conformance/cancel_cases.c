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
static void expect_no_more(struct party *party)
{
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(party, op_collect(party, 10), 0);
}

/* Traffic on the key of the cancelled operation, small and large, both orders. */
static void expect_key_works(struct party *party)
{
    message_pass(party, 100, KEY, TOGETHER);
    message_pass(party, LARGE, KEY, RECEIVE_FIRST);
    message_pass(party, LARGE, KEY, SEND_FIRST);
    message_pass(party, 100, KEY, SEND_FIRST);
}

/* The peer never answers: all operations wait for the connection. */
static void connecting(struct party *party)
{
    char url[100], byte, *memory = memory_take(party, LARGE);
    int descriptor, port = plain_listener(party, &descriptor);
    BMI_addr_t self = party->peer;
    struct op ops[5];
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", party->method->scheme, port);
    party->peer = party_look_up(party, url);
    op_send(party, &ops[0], &byte, 1, KEY);
    op_send(party, &ops[1], memory, LARGE, KEY);
    op_receive(party, &ops[2], &byte, 1, KEY);
    op_receive(party, &ops[3], memory, LARGE, KEY);
    op_send_unexpected(party, &ops[4], &byte, 1, KEY);
    op_collect(party, 10);
    for (int i = 4; i >= 0; i--)
        op_cancel(party, &ops[i], i == 0 || i == 4);
    expect_no_more(party);
    party->peer = self;
    message_pass_self(party);
    close(descriptor);
    memory_give_back(memory);
}

/* Before any progress, perhaps before the connection was begun. */
static void just_posted(struct party *party)
{
    struct op ops[3];
    char byte, *memory = memory_take(party, LARGE);
    if (party->role == SENDER) {
        op_send(party, &ops[0], memory, LARGE, KEY);
        op_receive(party, &ops[1], memory, LARGE, KEY + 1);
        op_receive(party, &ops[2], &byte, 1, KEY + 2);
        for (int i = 0; i < 3; i++)
            op_cancel(party, &ops[i], false);
        expect_no_more(party);
    }
    party_meet(party);
    expect_key_works(party);
    memory_give_back(memory);
}

/* A receive that nothing matches, the small unannounced, the large announced to the sender. */
static void unmatched_receive(struct party *party)
{
    static const bmi_size_t sizes[] = {100, LARGE};
    struct bmi_method_statistics before;
    party_warm_up(party);
    before = method_statistics(party);
    for (int i = 0; i < 2; i++) {
        char *memory = memory_take(party, sizes[i]);
        struct op op;
        if (party->role == RECEIVER)
            op_receive(party, &op, memory, sizes[i], KEY);
        party_meet(party);
        if (party->role == RECEIVER) {
            op_cancel(party, &op, false);
            expect_no_more(party);
        }
        party_meet(party);
        expect_key_works(party);
        memory_give_back(memory);
    }
    CHECK_EQUAL(party, method_statistics(party).links_opened, before.links_opened);
}

/* Of five receives of one key the second and fourth are cancelled: the others match in order. */
static void receive_in_the_middle(struct party *party)
{
    static const bmi_size_t sizes[] = {100, LARGE};
    for (int i = 0; i < 2; i++) {
        struct op ops[5];
        char *memory = memory_take(party, 5 * sizes[i]);
        for (int k = 0; k < 5 && party->role == RECEIVER; k++)
            op_receive(party, &ops[k], memory + k * sizes[i], sizes[i], KEY);
        party_meet(party);
        for (int k = 1; k < 5 && party->role == RECEIVER; k += 2)
            op_cancel(party, &ops[k], false);
        party_meet(party);
        for (int k = 0; k < 5; k += 2) {
            if (party->role == SENDER) {
                pattern_fill(memory + k * sizes[i], sizes[i], (uint64_t)k);
                op_send(party, &ops[k], memory + k * sizes[i], sizes[i], KEY);
            }
        }
        for (int k = 0; k < 5; k += 2) {
            op_finish(party, &ops[k], sizes[i]);
            CHECK(party, pattern_holds(memory + k * sizes[i], sizes[i], (uint64_t)k));
        }
        memory_give_back(memory);
    }
}

/* A large send that the receiver knows of, but has no receive for. */
static void queued_large_send(struct party *party)
{
    struct op ops[3];
    char *memory = memory_take(party, 3 * LARGE);
    for (int i = 0; i < 3 && party->role == SENDER; i++) {
        pattern_fill(memory + i * LARGE, LARGE, (uint64_t)i);
        op_send(party, &ops[i], memory + i * LARGE, LARGE, KEY);
    }
    party_meet(party);
    if (party->role == SENDER) {
        op_cancel(party, &ops[1], false);
        memset(memory + LARGE, 0xEE, LARGE);
        expect_no_more(party);
    }
    party_meet(party);
    for (int i = 0; i < 3; i += 2) {
        if (party->role == RECEIVER)
            op_receive(party, &ops[i], memory + i * LARGE, LARGE, KEY);
        op_finish(party, &ops[i], LARGE);
        CHECK(party, pattern_holds(memory + i * LARGE, LARGE, (uint64_t)i));
    }
    expect_key_works(party);
    memory_give_back(memory);
}

/* Eager sends beyond the peer's memory: those that were not sent yet end with ECANCEL; exactly the
 * others are received, in order. */
static void queued_small_sends(struct party *party)
{
    enum { COUNT = 600 };
    static struct op ops[COUNT];
    bmi_size_t size = method_info(party).eager_max;
    char *memory = memory_take(party, COUNT * size);
    bool went[COUNT];
    if (party->role == SENDER) {
        for (int i = 0; i < COUNT; i++) {
            pattern_fill(memory + i * size, size, (uint64_t)i);
            op_send(party, &ops[i], memory + i * size, size, KEY);
        }
        party_meet(party);
        int cancelled = 0;
        for (int i = COUNT - 1; i >= 0; i--) {
            op_cancel(party, &ops[i], true);
            went[i] = ops[i].error == 0;
            cancelled += !went[i];
        }
        CHECK(party, cancelled > 0);
        expect_no_more(party);
        party_tell(party, RECEIVER, went, sizeof went);
    } else {
        party_meet(party);
        party_hear(party, SENDER, went, sizeof went);
        for (int i = 0; i < COUNT; i++) {
            struct op op;
            if (!went[i])
                continue;
            op_receive(party, &op, memory, size, KEY);
            op_finish(party, &op, size);
            CHECK(party, pattern_holds(memory, size, (uint64_t)i));
        }
    }
    expect_key_works(party);
    memory_give_back(memory);
}

static void queued_unexpected(struct party *party)
{
    enum { COUNT = 600 };
    static struct op ops[COUNT];
    bmi_size_t size = unexpected_limit(party);
    char *memory = memory_take(party, size);
    bool went[COUNT];
    if (party->role == SENDER) {
        for (int i = 0; i < COUNT; i++)
            op_send_unexpected(party, &ops[i], memory, size, i);
        party_meet(party);
        for (int i = COUNT - 1; i >= 0; i--) {
            op_cancel(party, &ops[i], true);
            went[i] = ops[i].error == 0;
        }
        party_tell(party, RECEIVER, went, sizeof went);
        party_greet(party);
    } else {
        party_meet(party);
        party_hear(party, SENDER, went, sizeof went);
        for (int i = 0; i < COUNT; i++) {
            struct BMI_unexpected_info info;
            if (!went[i])
                continue;
            unexpected_take(party, &info);
            CHECK_EQUAL(party, info.tag, i);
            CHECK_EQUAL(party, info.size, size);
            unexpected_give_back(party, &info);
        }
        party_be_greeted(party);
    }
    memory_give_back(memory);
}

/* Completed, not tested: the real result is reported. */
static void completed(struct party *party)
{
    struct op send, receive;
    struct bmi_context_statistics statistics = {.context = party->context};
    bmi_context_id sends;
    char byte = 0;
    int64_t deadline = now_ms() + 20000 * patience();
    NEED_STATUS(party, BMI_open_context(&sends), 0);
    op_receive(party, &receive, &byte, 1, KEY);
    bmi_context_id receives = party->context;
    party->context = sends;
    op_send(party, &send, "b", 1, KEY);
    op_finish(party, &send, 1);
    while (statistics.queue_depth == 0) {
        NEED(party, now_ms() < deadline);
        op_collect(party, 1);
        NEED_STATUS(party, BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &statistics), 0);
    }
    party->context = receives;
    CHECK_STATUS(party, BMI_cancel(receive.id, receives), 0);
    CHECK_STATUS(party, BMI_cancel(receive.id, receives), 0);
    op_finish(party, &receive, 1);
    CHECK_EQUAL(party, byte, 'b');
    expect_no_more(party);
    BMI_close_context(sends);
}

static void twice(struct party *party)
{
    struct op op;
    char byte;
    op_receive(party, &op, &byte, 1, KEY);
    CHECK_STATUS(party, BMI_cancel(op.id, party->context), 0);
    CHECK_STATUS(party, BMI_cancel(op.id, party->context), 0);
    op_finish_error(party, &op, BMI_ECANCEL);
    expect_no_more(party);
}

/* The cancel itself reports no result: also with immediate completion a test call does. */
static void reported_by_its_context(struct party *party)
{
    struct op op;
    char byte;
    bmi_op_id_t id;
    bmi_context_id other;
    bmi_error_code_t error;
    int count;
    NEED_STATUS(party, BMI_open_context(&other), 0);
    op_receive(party, &op, &byte, 1, KEY);
    CHECK_STATUS(party, BMI_cancel(op.id, party->context), 0);
    CHECK_EQUAL(party, BMI_testcontext(1, &id, &count, &error, NULL, NULL, 20, other), 0);
    op_finish_error(party, &op, BMI_ECANCEL);
    BMI_close_context(other);
}

static void forceful_mode(struct party *party)
{
    CHECK_STATUS(party, BMI_set_info(party->peer, BMI_FORCEFUL_CANCEL_MODE, NULL), 0);
    unmatched_receive(party);
    queued_large_send(party);
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
