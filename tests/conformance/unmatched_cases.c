/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unmatched_cases.c - "Matching": messages without a receive, and unexpected ones.
 */
#include "harness.h"

#include <string.h>

enum { PEER_MEMORY = MIB, MANY = 100000, SMALL = 100 };

/* A large message, unmatched, in front of small ones. */
static void large_in_front(struct party *party)
{
    enum { COUNT = 200 };
    struct op large[3], small[COUNT];
    char bytes[COUNT][SMALL], *memory = memory_take(party, 8 * MIB);
    pattern_fill(memory, 8 * MIB, 1);
    for (int i = 0; i < 3 && party->role == SENDER; i++)
        op_send(party, &large[i], memory, 8 * MIB, 1000 + i);
    for (int i = 0; i < COUNT; i++) {
        if (party->role == SENDER)
            op_send(party, &small[i], memory, SMALL, i);
        else
            op_receive(party, &small[i], bytes[i], SMALL, i);
    }
    for (int i = 0; i < COUNT; i++)
        op_finish(party, &small[i], SMALL);
    party_meet(party);
    for (int i = 2; i >= 0; i--) {
        if (party->role == RECEIVER) {
            memset(memory, 0, 8 * MIB);
            op_receive(party, &large[i], memory, 8 * MIB, 1000 + i);
        }
        op_finish(party, &large[i], 8 * MIB);
        CHECK(party, pattern_holds(memory, 8 * MIB, 1));
    }
    memory_give_back(memory);
}

/* Messages of the largest eager size, more than the peer's memory holds, then one that matches. */
static void eager_in_front(struct party *party)
{
    enum { COUNT = 400 };
    static struct op ops[ROLES][COUNT];
    struct op *mine = ops[party->role], matching;
    bmi_size_t size = method_info(party).eager_max;
    char byte = 'b', *memory = memory_take(party, size);
    pattern_fill(memory, size, 1);
    if (party->role == SENDER) {
        for (int i = 0; i < COUNT; i++)
            op_send(party, &mine[i], memory, size, i);
        op_send(party, &matching, &byte, 1, COUNT);
        op_finish(party, &matching, 1);
    } else {
        op_receive(party, &matching, &byte, 1, COUNT);
        op_finish(party, &matching, 1);
        CHECK(party, statistics_of(party, 0).unmatched_bytes <= 2 * PEER_MEMORY);
        for (int i = 0; i < COUNT; i++) {
            memset(memory, 0, (size_t)size);
            op_receive(party, &mine[i], memory, size, i);
            op_finish(party, &mine[i], size);
            CHECK(party, pattern_holds(memory, size, 1));
        }
    }
    for (int i = 0; i < COUNT; i++)
        op_finish(party, &mine[i], size);
    memory_give_back(memory);
}

/* If the message has come before the receive that is too small, the post is refused: a larger one
 * takes it. */
static void too_small_receive(struct party *party, struct op *op, char *bytes, bmi_size_t size,
                              char *memory, bmi_size_t larger, bmi_msg_tag_t tag)
{
    op_post(party, op, POST_RECEIVE, party->peer, bytes, size, tag);
    if (op->posted == -BMI_EMSGSIZE)
        op_receive(party, op, memory, larger, tag);
    else
        NEED_STATUS(party, op->posted, 0);
}

/* Such messages, and large ones by rendezvous, then one of each kind whose receive is too small. */
static void too_small_behind(struct party *party)
{
    enum { COUNT = 80, ASKING = 8 };
    static struct op ops[ROLES][COUNT];
    struct op *mine = ops[party->role], mismatched[2];
    bmi_size_t size = method_info(party).eager_max;
    char *memory = memory_take(party, 2 * size), bytes[2][10];
    for (int i = 0; i < COUNT && party->role == SENDER; i++)
        op_send(party, &mine[i], memory, i < COUNT - ASKING ? size : 2 * size, i);
    for (int i = 0; i < 2; i++) {
        if (party->role == SENDER)
            op_send(party, &mismatched[i], memory, (i + 1) * size, COUNT);
        else
            too_small_receive(party, &mismatched[i], bytes[i], sizeof bytes[i], memory, 2 * size,
                              COUNT);
    }
    for (int i = 0; i < 2; i++) {
        if (party->role == RECEIVER && mismatched[i].size == sizeof bytes[i])
            op_finish_error(party, &mismatched[i], BMI_EMSGSIZE);
        else if (party->role == RECEIVER)
            op_finish(party, &mismatched[i], (i + 1) * size);
        else
            op_wait(party, &mismatched[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        if (party->role == RECEIVER)
            op_receive(party, &mine[i], memory, 2 * size, i);
        op_finish(party, &mine[i], i < COUNT - ASKING ? size : 2 * size);
    }
    memory_give_back(memory);
}

static void send_many(struct party *party, struct op *ops, int count)
{
    struct op matching;
    char *memory = memory_take(party, count * 8);
    for (int i = 0; i < count; i++) {
        int64_t value = i;
        memcpy(memory + i * 8, &value, 8);
        op_send(party, &ops[i], memory + i * 8, 8, 1);
    }
    op_send(party, &matching, memory, 8, 2);
    op_finish(party, &matching, 8);
    for (int i = 0; i < count; i++)
        op_finish(party, &ops[i], 8);
    party_meet(party);
    memory_give_back(memory);
}

/* Back-pressure, not loss: none of these messages is received before the announcement of the last
 * one. */
static void receive_many(struct party *party, struct op *ops, int count)
{
    struct op matching;
    char *memory = memory_take(party, (count + 1) * 8);
    op_receive(party, &matching, memory + count * 8, 8, 2);
    op_finish(party, &matching, 8);
    struct bmi_statistics held = statistics_of(party, 0);
    CHECK(party, held.unmatched_bytes <= 2 * PEER_MEMORY);
    for (int i = 0; i < count; i++)
        op_receive(party, &ops[i], memory + i * 8, 8, 1);
    for (int i = 0; i < count; i++) {
        int64_t value;
        op_finish(party, &ops[i], 8);
        memcpy(&value, memory + i * 8, 8);
        if (value != i)
            party_fail(party, true, __FILE__, __LINE__, "message %d comes as number %d", (int)value,
                       i);
    }
    party_meet(party);
    CHECK_EQUAL(party, statistics_of(party, 0).unmatched_bytes, 0);
    memory_give_back(memory);
}

static void many_in_front(struct party *party)
{
    int count = instrumented() ? MANY / 10 : MANY;
    struct op *ops = memory_take(party, (bmi_size_t)sizeof *ops * count);
    if (party->role == SENDER)
        send_many(party, ops, count);
    else
        receive_many(party, ops, count);
    memory_give_back(ops);
}

/* The bounds are settings: of one peer, and of all. The sender's messages wait, none is lost. */
static void bounded_by_settings(struct party *party)
{
    enum { COUNT = 300, SIZE = 4000, BOUND = 128 * KIB };
    static struct op ops[COUNT];
    struct op matching;
    char byte = 'm', *memory = memory_take(party, COUNT * SIZE);
    if (party->role == SENDER) {
        party_start_client(party);
        party_hear_idle(party, RECEIVER, party->peer_url, sizeof party->peer_url);
        party->peer = party_look_up(party, party->peer_url);
        party_greet(party);
        for (int i = 0; i < COUNT; i++) {
            pattern_fill(memory + i * SIZE, SIZE, (uint64_t)i);
            op_send(party, &ops[i], memory + i * SIZE, SIZE, 1);
        }
        op_send(party, &matching, &byte, 1, 2);
    } else {
        party_start_server(party, NULL, 0);
        NEED_STATUS(party, BMI_set_info(0, BMI_SETTING, "peer_memory=32768"), 0);
        NEED_STATUS(party, BMI_set_info(0, BMI_SETTING, "total_memory=131072"), 0);
        party_tell(party, SENDER, party->listen, sizeof party->listen);
        party->peer = party_be_greeted(party);
        op_receive(party, &matching, &byte, 1, 2);
        op_finish(party, &matching, 1);
        CHECK(party, statistics_of(party, 0).unmatched_bytes <= BOUND);
        for (int i = 0; i < COUNT; i++)
            op_receive(party, &ops[i], memory + i * SIZE, SIZE, 1);
    }
    for (int i = 0; i < COUNT; i++) {
        op_finish(party, &ops[i], SIZE);
        CHECK(party, pattern_holds(memory + i * SIZE, SIZE, (uint64_t)i));
    }
    op_wait(party, &matching);
    party_meet(party);
    party_stop(party);
    memory_give_back(memory);
}

/* ---- unexpected ------------------------------------------------------------------------------ */

static void unexpected_sizes(struct party *party)
{
    bmi_size_t limit = unexpected_limit(party);
    const bmi_size_t sizes[] = {0, 1, 25, 400, 1200, 4096, 16383, 16384, limit - 1, limit};
    char *memory = memory_take(party, limit + 1);
    CHECK(party, limit >= 16384);
    for (int i = 0; i < 10; i++) {
        struct BMI_unexpected_info info;
        struct op op;
        if (party->role == SENDER) {
            pattern_fill(memory, sizes[i], (uint64_t)i);
            op_send_unexpected(party, &op, memory, sizes[i], i);
            op_finish(party, &op, sizes[i]);
            continue;
        }
        unexpected_take(party, &info);
        CHECK_EQUAL(party, info.tag, i);
        NEED_EQUAL(party, info.size, sizes[i]);
        CHECK(party, pattern_holds(info.buffer, info.size, (uint64_t)i));
        unexpected_give_back(party, &info);
    }
    memory_give_back(memory);
}

static void unexpected_too_large(struct party *party)
{
    bmi_size_t limit = unexpected_limit(party);
    char *memory = memory_take(party, limit + 1);
    struct list list = list_make(party, 3, limit + 1, 1, 0);
    struct op op;
    op_post(party, &op, POST_UNEXPECTED, party->peer, memory, limit + 1, 1);
    CHECK_STATUS(party, op.posted, -BMI_EMSGSIZE);
    op_post_list(party, &op, POST_UNEXPECTED, party->peer, &list, 1);
    CHECK_STATUS(party, op.posted, -BMI_EMSGSIZE);
    party_meet(party);
    if (party->role == SENDER)
        party_greet(party);
    else
        party_be_greeted(party);
    list_free(&list);
    memory_give_back(memory);
}

/* In the order of the sends; several from one call; more than the budget holds, so that some wait
 * at the sender; none is lost. */
static void unexpected_many(struct party *party)
{
    enum { COUNT = 2000, SIZE = 4000, AT_ONCE = 16 };
    static struct op ops[COUNT];
    char *memory = memory_take(party, COUNT * SIZE);
    int got = 0, most = 0;
    for (int i = 0; i < COUNT && party->role == SENDER; i++) {
        pattern_fill(memory + i * SIZE, SIZE, (uint64_t)i);
        op_send_unexpected(party, &ops[i], memory + i * SIZE, SIZE, i);
    }
    if (party->role == SENDER) {
        for (int i = 0; i < COUNT; i++)
            op_finish(party, &ops[i], SIZE);
    }
    int64_t start = now_ms(), deadline = start + 30000 * patience();
    while (party->role == RECEIVER && got < COUNT) {
        struct BMI_unexpected_info infos[AT_ONCE];
        int count = -1;
        NEED(party, now_ms() < deadline);
        NEED(party, BMI_testunexpected(AT_ONCE, &count, infos, 100) == (count > 0));
        NEED(party, count >= 0 && count <= AT_ONCE);
        most = count > most ? count : most;
        for (int i = 0; i < count; i++, got++) {
            NEED_EQUAL(party, infos[i].tag, got);
            NEED_EQUAL(party, infos[i].size, SIZE);
            CHECK(party, pattern_holds(infos[i].buffer, SIZE, (uint64_t)got));
            unexpected_give_back(party, &infos[i]);
        }
    }
    CHECK(party, party->role == SENDER || now_ms() - start < 30000 * patience()); /* no stall */
    party_meet(party);
    CHECK_EQUAL(party, statistics_of(party, 0).unexpected_waiting, 0);
    memory_give_back(memory);
}

/* The program may read the buffer until it frees it, independent of later messages. */
static void unexpected_kept(struct party *party)
{
    enum { COUNT = 20, SIZE = 1000 };
    struct BMI_unexpected_info infos[COUNT];
    char bytes[SIZE];
    for (int i = 0; i < COUNT; i++) {
        struct op op;
        if (party->role == SENDER) {
            pattern_fill(bytes, SIZE, (uint64_t)i);
            op_send_unexpected(party, &op, bytes, SIZE, i);
            op_finish(party, &op, SIZE);
        } else {
            unexpected_take(party, &infos[i]);
        }
        message_pass(party, 100000, 100 + i, TOGETHER);
    }
    for (int i = COUNT - 1; i >= 0 && party->role == RECEIVER; i--) {
        CHECK(party, pattern_holds(infos[i].buffer, SIZE, (uint64_t)i));
        unexpected_give_back(party, &infos[i]);
    }
}

/* BMI_TCP_CHECK_UNEXPECTED reports them, and they are counted, as long as they are held. */
static void unexpected_told(struct party *party)
{
    struct BMI_unexpected_info info;
    int waiting = -1;
    if (party->role == SENDER) {
        for (int i = 0; i < 3; i++)
            party_greet(party);
        party_meet(party);
        party_meet(party);
        return;
    }
    party_meet(party);
    unexpected_take(party, &info);
    int64_t deadline = now_ms() + 20000 * patience();
    while (waiting != 2) {
        NEED(party, now_ms() < deadline);
        op_collect(party, 1);
        NEED_STATUS(party, BMI_get_info(info.addr, BMI_TCP_CHECK_UNEXPECTED, &waiting), 0);
    }
    unexpected_give_back(party, &info);
    for (int i = 0; i < 2; i++)
        party_be_greeted(party);
    NEED_STATUS(party, BMI_get_info(info.addr, BMI_TCP_CHECK_UNEXPECTED, &waiting), 0);
    CHECK_EQUAL(party, waiting, 0);
    party_meet(party);
}

#define SECTION .section = "Matching"
const struct conformance_case unmatched_cases[] = {
    {SECTION, .name = "a large unmatched message holds up no small one", .run = large_in_front},
    {SECTION, .name = "unmatched eager messages hold up no other", .run = eager_in_front},
    {SECTION, .name = "unmatched messages hold up no receive that is too small",
     .run = too_small_behind},
    {SECTION, .name = "100,000 unmatched messages, then one that matches", .run = many_in_front,
     .seconds = 300},
    {SECTION, .name = "memory for unmatched messages is bounded by settings",
     .run = bounded_by_settings, .where = CAST, .roles = 2},
    {SECTION, .name = "unexpected messages up to the method's limit", .run = unexpected_sizes},
    {SECTION, .name = "a larger unexpected message is refused: EMSGSIZE",
     .run = unexpected_too_large},
    {SECTION, .name = "many unexpected messages: in order, bounded, none lost",
     .run = unexpected_many},
    {SECTION, .name = "BMI owns an unexpected buffer until it is freed", .run = unexpected_kept},
    {SECTION, .name = "unexpected messages that wait are reported", .run = unexpected_told},
    {0},
};
