/* SPDX-License-Identifier: BSD-3-Clause
 *
 * matching_cases.c - "Matching": the receive that gets each message.
 */
#include "harness.h"

#include <string.h>

enum { MESSAGES = 60, MANY_TAGS = 1000 };

/* Small, credit-bound, and large ones: the order of a key must hold over all message paths. */
static bmi_size_t mixed_size(int i)
{
    static const bmi_size_t sizes[] = {8, 300000, 100, 8192, 1000000, 16, 65536, 40000, 8, 262145};
    return sizes[i % (int)(sizeof sizes / sizeof *sizes)];
}

static void send_mixed(struct rank *rank, struct op *ops, char **buffers, bmi_msg_tag_t tag)
{
    for (int i = 0; i < MESSAGES; i++) {
        buffers[i] = memory_take(rank, mixed_size(i));
        pattern_fill(buffers[i], mixed_size(i), (uint64_t)i);
        op_send(rank, &ops[i], buffers[i], mixed_size(i), tag);
    }
}

static void receive_mixed(struct rank *rank, struct op *ops, char **buffers, bmi_msg_tag_t tag)
{
    for (int i = 0; i < MESSAGES; i++) {
        buffers[i] = memory_take(rank, mixed_size(i));
        op_receive(rank, &ops[i], buffers[i], mixed_size(i), tag);
    }
}

static void finish_mixed(struct rank *rank, struct op *ops, char **buffers)
{
    for (int i = 0; i < MESSAGES; i++) {
        op_finish(rank, &ops[i], mixed_size(i));
        if (rank->role == RECEIVER && !pattern_holds(buffers[i], mixed_size(i), (uint64_t)i))
            rank_fail(rank, false, __FILE__, __LINE__, "message %d is another", i);
        memory_give_back(buffers[i]);
    }
}

static void order_of_one_key(struct rank *rank, enum message_order order)
{
    struct op ops[MESSAGES];
    char *buffers[MESSAGES];
    bool meet_before = rank->role == (order == RECEIVE_FIRST ? SENDER : RECEIVER);
    if (order != TOGETHER && meet_before)
        rank_barrier(rank);
    if (rank->role == SENDER)
        send_mixed(rank, ops, buffers, 1);
    else
        receive_mixed(rank, ops, buffers, 1);
    if (order != TOGETHER && !meet_before)
        rank_barrier(rank);
    finish_mixed(rank, ops, buffers);
}

static void order_receives_first(struct rank *rank)
{
    order_of_one_key(rank, RECEIVE_FIRST);
}

static void order_sends_first(struct rank *rank)
{
    order_of_one_key(rank, SEND_FIRST);
}

static void order_together(struct rank *rank)
{
    for (int i = 0; i < 5; i++)
        order_of_one_key(rank, TOGETHER);
}

/* Half of the receives posted before the messages, half after: sequence within the key. */
static void order_half_announced(struct rank *rank)
{
    struct op ops[MESSAGES];
    char *buffers[MESSAGES];
    if (rank->role == SENDER) {
        rank_barrier(rank);
        send_mixed(rank, ops, buffers, 1);
        rank_barrier(rank);
    } else {
        for (int i = 0; i < MESSAGES; i++) {
            if (i == MESSAGES / 2) {
                rank_barrier(rank);
                rank_barrier(rank);
            }
            buffers[i] = memory_take(rank, mixed_size(i));
            op_receive(rank, &ops[i], buffers[i], mixed_size(i), 1);
        }
    }
    finish_mixed(rank, ops, buffers);
}

/* ---- tags ------------------------------------------------------------------------------------ */

static void many_tags(struct rank *rank, enum message_order order, bmi_size_t size)
{
    struct op *mine = rank_keep(rank, MANY_TAGS * sizeof *mine);
    int tags[MANY_TAGS];
    char *memory = memory_take(rank, size * MANY_TAGS);
    for (int i = 0; i < MANY_TAGS; i++)
        tags[i] = i;
    random_shuffle(tags, MANY_TAGS, (uint64_t)rank->role + 1);
    if (order == SEND_FIRST && rank->role == RECEIVER)
        rank_barrier(rank);
    for (int i = 0; i < MANY_TAGS; i++) {
        char *buffer = memory + size * tags[i];
        if (rank->role == SENDER) {
            pattern_fill(buffer, size, (uint64_t)tags[i]);
            op_send(rank, &mine[tags[i]], buffer, size, tags[i]);
        } else {
            op_receive(rank, &mine[tags[i]], buffer, size, tags[i]);
        }
    }
    if (order == SEND_FIRST && rank->role == SENDER)
        rank_barrier(rank);
    for (int i = 0; i < MANY_TAGS; i++) {
        op_finish(rank, &mine[i], size);
        if (rank->role == RECEIVER && !pattern_holds(memory + size * i, size, (uint64_t)i))
            rank_fail(rank, false, __FILE__, __LINE__, "tag %d has another's bytes", i);
    }
    memory_give_back(memory);
}

static void many_tags_small(struct rank *rank)
{
    many_tags(rank, TOGETHER, 64);
    many_tags(rank, SEND_FIRST, 64);
}

static void many_tags_beyond_credit(struct rank *rank)
{
    many_tags(rank, TOGETHER, 5000);
    many_tags(rank, SEND_FIRST, 5000);
}

static void many_tags_large(struct rank *rank)
{
    many_tags(rank, SEND_FIRST, 70000);
}

/* One waited for at a time, the last sent first. */
static void tags_one_by_one(struct rank *rank)
{
    enum { COUNT = 50 };
    struct op ops[COUNT];
    char bytes[COUNT][3000];
    for (int i = COUNT - 1; i >= 0; i--) {
        int k = rank->role == SENDER ? COUNT - 1 - i : i;
        if (rank->role == SENDER) {
            pattern_fill(bytes[k], sizeof bytes[k], (uint64_t)k);
            op_send(rank, &ops[k], bytes[k], sizeof bytes[k], k);
        } else {
            op_receive(rank, &ops[k], bytes[k], sizeof bytes[k], k);
            op_finish(rank, &ops[k], sizeof bytes[k]);
            CHECK(rank, pattern_holds(bytes[k], sizeof bytes[k], (uint64_t)k));
        }
    }
    for (int i = 0; i < COUNT && rank->role == SENDER; i++)
        op_finish(rank, &ops[i], sizeof bytes[i]);
}

/* ---- spaces ---------------------------------------------------------------------------------- */

/* The same tag in both: neither takes a message of the other. */
static void expected_and_unexpected(struct rank *rank)
{
    struct op ops[20];
    struct BMI_unexpected_info info;
    int64_t values[20];
    if (rank->role == SENDER) {
        for (int i = 0; i < 20; i++) {
            values[i] = i;
            if (i % 2)
                op_send_unexpected(rank, &ops[i], &values[i], sizeof values[i], 5);
            else
                op_send(rank, &ops[i], &values[i], sizeof values[i], 5);
        }
        for (int i = 0; i < 20; i++)
            op_finish(rank, &ops[i], sizeof values[i]);
        return;
    }
    op_receive(rank, &ops[0], &values[0], sizeof values[0], 5);
    for (int i = 1; i < 20; i += 2) {
        unexpected_take(rank, &info);
        CHECK_EQUAL(rank, info.tag, 5);
        NEED_EQUAL(rank, info.size, sizeof(int64_t));
        memcpy(&values[i], info.buffer, sizeof values[i]);
        CHECK_EQUAL(rank, values[i], i);
        unexpected_give_back(rank, &info);
    }
    for (int i = 0; i < 20; i += 2) {
        if (i > 0)
            op_receive(rank, &ops[i], &values[i], sizeof values[i], 5);
        op_finish(rank, &ops[i], sizeof values[i]);
        CHECK_EQUAL(rank, values[i], i);
    }
}

/* Both send and receive on one tag: each process's messages go to the other. */
static void both_directions_one_tag(struct rank *rank)
{
    struct op sends[MESSAGES], receives[MESSAGES];
    char *from[MESSAGES], *to[MESSAGES];
    send_mixed(rank, sends, from, 1);
    receive_mixed(rank, receives, to, 1);
    for (int i = 0; i < MESSAGES; i++) {
        op_finish(rank, &sends[i], mixed_size(i));
        op_finish(rank, &receives[i], mixed_size(i));
        CHECK(rank, pattern_holds(to[i], mixed_size(i), (uint64_t)i));
        memory_give_back(from[i]);
        memory_give_back(to[i]);
    }
}

static void both_directions(struct rank *rank)
{
    struct op sends[MESSAGES], receives[MESSAGES];
    char *from[MESSAGES], *to[MESSAGES];
    receive_mixed(rank, receives, to, rank_other(rank));
    send_mixed(rank, sends, from, rank->role);
    for (int i = 0; i < MESSAGES; i++) {
        op_finish(rank, &sends[i], mixed_size(i));
        op_finish(rank, &receives[i], mixed_size(i));
        CHECK(rank, pattern_holds(to[i], mixed_size(i), (uint64_t)i));
        memory_give_back(from[i]);
        memory_give_back(to[i]);
    }
}

/* Ping-pong, the pattern of latency: one message each way at a time. */
static void ping_pong(struct rank *rank)
{
    static const bmi_size_t sizes[] = {24, 1200, 20000, 200000};
    for (int i = 0; i < 4 * 50; i++) {
        bmi_size_t size = sizes[i / 50];
        struct op send, receive;
        char *buffer = memory_take(rank, size), *other = memory_take(rank, size);
        op_receive(rank, &receive, other, size, rank_other(rank));
        if (rank->role == RECEIVER)
            op_finish(rank, &receive, size);
        pattern_fill(buffer, size, (uint64_t)i);
        op_send(rank, &send, buffer, size, rank->role);
        op_finish(rank, &send, size);
        op_finish(rank, &receive, size);
        CHECK(rank, pattern_holds(other, size, (uint64_t)i));
        memory_give_back(buffer);
        memory_give_back(other);
    }
}

#define SECTION .section = "Matching"
const struct conformance_case matching_cases[] = {
    {SECTION, .name = "order of one key, receives first", .run = order_receives_first},
    {SECTION, .name = "order of one key, sends first", .run = order_sends_first},
    {SECTION, .name = "order of one key, both at once", .run = order_together},
    {SECTION, .name = "order of one key, half announced", .run = order_half_announced},
    {SECTION, .name = "1,000 tags in any order", .run = many_tags_small},
    {SECTION, .name = "1,000 tags in any order, beyond the credit", .run = many_tags_beyond_credit},
    {SECTION, .name = "1,000 tags in any order, large", .run = many_tags_large},
    {SECTION, .name = "the last sent, received first", .run = tags_one_by_one},
    {SECTION, .name = "expected and unexpected are separate", .run = expected_and_unexpected},
    {SECTION, .name = "both directions at once", .run = both_directions},
    {SECTION, .name = "both directions on one tag", .run = both_directions_one_tag,
     .where = PROCESSES},
    {SECTION, .name = "ping-pong", .run = ping_pong},
    {0},
};
