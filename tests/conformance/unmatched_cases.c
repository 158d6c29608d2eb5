/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unmatched_cases.c - "Matching": messages without a receive, and unexpected ones.
 */
#include "harness.h"

#include <string.h>

enum { PEER_MEMORY = MIB, MANY = 100000, SMALL = 100 };

/* A large message, unmatched, in front of small ones. */
static void large_in_front(struct rank *rank)
{
    enum { COUNT = 200 };
    struct op large[3], small[COUNT];
    char bytes[COUNT][SMALL], *memory = memory_take(rank, 8 * MIB);
    pattern_fill(memory, 8 * MIB, 1);
    for (int i = 0; i < 3 && rank->role == SENDER; i++)
        op_send(rank, &large[i], memory, 8 * MIB, 1000 + i);
    for (int i = 0; i < COUNT; i++) {
        if (rank->role == SENDER)
            op_send(rank, &small[i], memory, SMALL, i);
        else
            op_receive(rank, &small[i], bytes[i], SMALL, i);
    }
    for (int i = 0; i < COUNT; i++)
        op_finish(rank, &small[i], SMALL);
    rank_barrier(rank);
    for (int i = 2; i >= 0; i--) {
        if (rank->role == RECEIVER) {
            memset(memory, 0, 8 * MIB);
            op_receive(rank, &large[i], memory, 8 * MIB, 1000 + i);
        }
        op_finish(rank, &large[i], 8 * MIB);
        CHECK(rank, pattern_holds(memory, 8 * MIB, 1));
    }
    memory_give_back(memory);
}

/* Messages of the largest eager size, more than the peer's memory holds, then one that matches. */
static void eager_in_front(struct rank *rank)
{
    enum { COUNT = 400 };
    struct op *mine = rank_keep(rank, COUNT * sizeof *mine), matching;
    bmi_size_t size = method_info(rank).eager_max;
    char byte = 'b', *memory = memory_take(rank, size);
    pattern_fill(memory, size, 1);
    if (rank->role == SENDER) {
        for (int i = 0; i < COUNT; i++)
            op_send(rank, &mine[i], memory, size, i);
        op_send(rank, &matching, &byte, 1, COUNT);
        op_finish(rank, &matching, 1);
    } else {
        op_receive(rank, &matching, &byte, 1, COUNT);
        op_finish(rank, &matching, 1);
        CHECK(rank, statistics_of(rank, 0).unmatched_bytes <= 2 * PEER_MEMORY);
        for (int i = 0; i < COUNT; i++) {
            memset(memory, 0, (size_t)size);
            op_receive(rank, &mine[i], memory, size, i);
            op_finish(rank, &mine[i], size);
            CHECK(rank, pattern_holds(memory, size, 1));
        }
    }
    for (int i = 0; i < COUNT; i++)
        op_finish(rank, &mine[i], size);
    memory_give_back(memory);
}

/* If the message has come before the receive that is too small, the post is refused: a larger one
 * takes it. */
static void too_small_receive(struct rank *rank, struct op *op, char *bytes, bmi_size_t size,
                              char *memory, bmi_size_t larger, bmi_msg_tag_t tag)
{
    op_post(rank, op, POST_RECEIVE, rank->peer, bytes, size, tag);
    if (op->posted == -BMI_EMSGSIZE)
        op_receive(rank, op, memory, larger, tag);
    else
        NEED_STATUS(rank, op->posted, 0);
}

/* Such messages, and large ones by rendezvous, then one of each kind whose receive is too small. */
static void too_small_behind(struct rank *rank)
{
    enum { COUNT = 80, ASKING = 8 };
    struct op *mine = rank_keep(rank, COUNT * sizeof *mine), mismatched[2];
    bmi_size_t size = method_info(rank).eager_max;
    char *memory = memory_take(rank, 2 * size), bytes[2][10];
    for (int i = 0; i < COUNT && rank->role == SENDER; i++)
        op_send(rank, &mine[i], memory, i < COUNT - ASKING ? size : 2 * size, i);
    for (int i = 0; i < 2; i++) {
        if (rank->role == SENDER)
            op_send(rank, &mismatched[i], memory, (i + 1) * size, COUNT);
        else
            too_small_receive(rank, &mismatched[i], bytes[i], sizeof bytes[i], memory, 2 * size,
                              COUNT);
    }
    for (int i = 0; i < 2; i++) {
        if (rank->role == RECEIVER && mismatched[i].size == sizeof bytes[i])
            op_finish_error(rank, &mismatched[i], BMI_EMSGSIZE);
        else if (rank->role == RECEIVER)
            op_finish(rank, &mismatched[i], (i + 1) * size);
        else
            op_wait(rank, &mismatched[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        if (rank->role == RECEIVER)
            op_receive(rank, &mine[i], memory, 2 * size, i);
        op_finish(rank, &mine[i], i < COUNT - ASKING ? size : 2 * size);
    }
    memory_give_back(memory);
}

static void send_many(struct rank *rank, struct op *ops, int count)
{
    struct op matching;
    char *memory = memory_take(rank, count * 8);
    for (int i = 0; i < count; i++) {
        int64_t value = i;
        memcpy(memory + i * 8, &value, 8);
        op_send(rank, &ops[i], memory + i * 8, 8, 1);
    }
    op_send(rank, &matching, memory, 8, 2);
    op_finish(rank, &matching, 8);
    for (int i = 0; i < count; i++)
        op_finish(rank, &ops[i], 8);
    rank_barrier(rank);
    memory_give_back(memory);
}

/* Back-pressure, not loss: none of these messages is received before the announcement of the last
 * one. */
static void receive_many(struct rank *rank, struct op *ops, int count)
{
    struct op matching;
    char *memory = memory_take(rank, (count + 1) * 8);
    op_receive(rank, &matching, memory + count * 8, 8, 2);
    op_finish(rank, &matching, 8);
    struct bmi_statistics held = statistics_of(rank, 0);
    CHECK(rank, held.unmatched_bytes <= 2 * PEER_MEMORY);
    for (int i = 0; i < count; i++)
        op_receive(rank, &ops[i], memory + i * 8, 8, 1);
    for (int i = 0; i < count; i++) {
        int64_t value;
        op_finish(rank, &ops[i], 8);
        memcpy(&value, memory + i * 8, 8);
        if (value != i)
            rank_fail(rank, true, __FILE__, __LINE__, "message %d comes as number %d", (int)value,
                      i);
    }
    rank_barrier(rank);
    CHECK_EQUAL(rank, statistics_of(rank, 0).unmatched_bytes, 0);
    memory_give_back(memory);
}

static void many_in_front(struct rank *rank)
{
    int count = instrumented() ? MANY / 10 : MANY;
    struct op *ops = memory_take(rank, (bmi_size_t)sizeof *ops * count);
    if (rank->role == SENDER)
        send_many(rank, ops, count);
    else
        receive_many(rank, ops, count);
    memory_give_back(ops);
}

/* The bounds are settings: of one peer, and of all. The sender's messages wait, none is lost. */
static void bounded_by_settings(struct rank *rank)
{
    enum { COUNT = 300, SIZE = 4000, BOUND = 128 * KIB };
    struct op *ops = rank_keep(rank, COUNT * sizeof *ops);
    struct op matching;
    char byte = 'm', *memory = memory_take(rank, COUNT * SIZE);
    if (rank->role == SENDER) {
        rank_start_client(rank);
        rank_read_idle(rank, RECEIVER, rank->peer_url, sizeof rank->peer_url);
        rank->peer = rank_look_up(rank, rank->peer_url);
        rank_hello_send(rank);
        for (int i = 0; i < COUNT; i++) {
            pattern_fill(memory + i * SIZE, SIZE, (uint64_t)i);
            op_send(rank, &ops[i], memory + i * SIZE, SIZE, 1);
        }
        op_send(rank, &matching, &byte, 1, 2);
    } else {
        rank_start_server(rank, NULL, 0);
        NEED_STATUS(rank, BMI_set_info(0, BMI_SETTING, "peer_memory=32768"), 0);
        NEED_STATUS(rank, BMI_set_info(0, BMI_SETTING, "total_memory=131072"), 0);
        rank_write(rank, SENDER, rank->listen, sizeof rank->listen);
        rank->peer = rank_hello_receive(rank);
        op_receive(rank, &matching, &byte, 1, 2);
        op_finish(rank, &matching, 1);
        CHECK(rank, statistics_of(rank, 0).unmatched_bytes <= BOUND);
        for (int i = 0; i < COUNT; i++)
            op_receive(rank, &ops[i], memory + i * SIZE, SIZE, 1);
    }
    for (int i = 0; i < COUNT; i++) {
        op_finish(rank, &ops[i], SIZE);
        CHECK(rank, pattern_holds(memory + i * SIZE, SIZE, (uint64_t)i));
    }
    op_wait(rank, &matching);
    rank_barrier(rank);
    rank_stop(rank);
    memory_give_back(memory);
}

/* ---- unexpected ------------------------------------------------------------------------------ */

static void unexpected_sizes(struct rank *rank)
{
    bmi_size_t limit = unexpected_limit(rank);
    const bmi_size_t sizes[] = {0, 1, 25, 400, 1200, 4096, 16383, 16384, limit - 1, limit};
    char *memory = memory_take(rank, limit + 1);
    CHECK(rank, limit >= 16384);
    for (int i = 0; i < 10; i++) {
        struct BMI_unexpected_info info;
        struct op op;
        if (rank->role == SENDER) {
            pattern_fill(memory, sizes[i], (uint64_t)i);
            op_send_unexpected(rank, &op, memory, sizes[i], i);
            op_finish(rank, &op, sizes[i]);
            continue;
        }
        unexpected_take(rank, &info);
        CHECK_EQUAL(rank, info.tag, i);
        NEED_EQUAL(rank, info.size, sizes[i]);
        CHECK(rank, pattern_holds(info.buffer, info.size, (uint64_t)i));
        unexpected_give_back(rank, &info);
    }
    memory_give_back(memory);
}

static void unexpected_too_large(struct rank *rank)
{
    bmi_size_t limit = unexpected_limit(rank);
    char *memory = memory_take(rank, limit + 1);
    struct list list = list_make(rank, 3, limit + 1, 1, 0);
    struct op op;
    op_post(rank, &op, POST_UNEXPECTED, rank->peer, memory, limit + 1, 1);
    CHECK_STATUS(rank, op.posted, -BMI_EMSGSIZE);
    op_post_list(rank, &op, POST_UNEXPECTED, rank->peer, &list, 1);
    CHECK_STATUS(rank, op.posted, -BMI_EMSGSIZE);
    rank_barrier(rank);
    if (rank->role == SENDER)
        rank_hello_send(rank);
    else
        rank_hello_receive(rank);
    list_free(&list);
    memory_give_back(memory);
}

/* In the order of the sends; several from one call; more than the budget holds, so that some wait
 * at the sender; none is lost. */
static void unexpected_many(struct rank *rank)
{
    enum { COUNT = 2000, SIZE = 4000, AT_ONCE = 16 };
    struct op *ops = rank_keep(rank, COUNT * sizeof *ops);
    char *memory = memory_take(rank, COUNT * SIZE);
    int got = 0, most = 0;
    for (int i = 0; i < COUNT && rank->role == SENDER; i++) {
        pattern_fill(memory + i * SIZE, SIZE, (uint64_t)i);
        op_send_unexpected(rank, &ops[i], memory + i * SIZE, SIZE, i);
    }
    if (rank->role == SENDER) {
        for (int i = 0; i < COUNT; i++)
            op_finish(rank, &ops[i], SIZE);
    }
    int64_t start = now_ms(), deadline = start + 30000 * patience();
    while (rank->role == RECEIVER && got < COUNT) {
        struct BMI_unexpected_info infos[AT_ONCE];
        int count = -1;
        NEED(rank, now_ms() < deadline);
        NEED(rank, BMI_testunexpected(AT_ONCE, &count, infos, 100) == (count > 0));
        NEED(rank, count >= 0 && count <= AT_ONCE);
        most = count > most ? count : most;
        for (int i = 0; i < count; i++, got++) {
            NEED_EQUAL(rank, infos[i].tag, got);
            NEED_EQUAL(rank, infos[i].size, SIZE);
            CHECK(rank, pattern_holds(infos[i].buffer, SIZE, (uint64_t)got));
            unexpected_give_back(rank, &infos[i]);
        }
    }
    CHECK(rank, rank->role == SENDER || now_ms() - start < 30000 * patience()); /* no stall */
    rank_barrier(rank);
    CHECK_EQUAL(rank, statistics_of(rank, 0).unexpected_waiting, 0);
    memory_give_back(memory);
}

/* The program may read the buffer until it frees it, independent of later messages. */
static void unexpected_kept(struct rank *rank)
{
    enum { COUNT = 20, SIZE = 1000 };
    struct BMI_unexpected_info infos[COUNT];
    char bytes[SIZE];
    for (int i = 0; i < COUNT; i++) {
        struct op op;
        if (rank->role == SENDER) {
            pattern_fill(bytes, SIZE, (uint64_t)i);
            op_send_unexpected(rank, &op, bytes, SIZE, i);
            op_finish(rank, &op, SIZE);
        } else {
            unexpected_take(rank, &infos[i]);
        }
        message_pass(rank, 100000, 100 + i, TOGETHER);
    }
    for (int i = COUNT - 1; i >= 0 && rank->role == RECEIVER; i--) {
        CHECK(rank, pattern_holds(infos[i].buffer, SIZE, (uint64_t)i));
        unexpected_give_back(rank, &infos[i]);
    }
}

/* BMI_TCP_CHECK_UNEXPECTED reports them, and they are counted, as long as they are held. */
static void unexpected_told(struct rank *rank)
{
    struct BMI_unexpected_info info;
    int waiting = -1;
    if (rank->role == SENDER) {
        for (int i = 0; i < 3; i++)
            rank_hello_send(rank);
        rank_barrier(rank);
        rank_barrier(rank);
        return;
    }
    rank_barrier(rank);
    unexpected_take(rank, &info);
    int64_t deadline = now_ms() + 20000 * patience();
    while (waiting != 2) {
        NEED(rank, now_ms() < deadline);
        op_collect(rank, 1);
        NEED_STATUS(rank, BMI_get_info(info.addr, BMI_TCP_CHECK_UNEXPECTED, &waiting), 0);
    }
    unexpected_give_back(rank, &info);
    for (int i = 0; i < 2; i++)
        rank_hello_receive(rank);
    NEED_STATUS(rank, BMI_get_info(info.addr, BMI_TCP_CHECK_UNEXPECTED, &waiting), 0);
    CHECK_EQUAL(rank, waiting, 0);
    rank_barrier(rank);
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
