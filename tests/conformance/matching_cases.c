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

static void send_mixed(struct party *party, struct op *ops, char **buffers, bmi_msg_tag_t tag)
{
    for (int i = 0; i < MESSAGES; i++) {
        buffers[i] = memory_take(party, mixed_size(i));
        pattern_fill(buffers[i], mixed_size(i), (uint64_t)i);
        op_send(party, &ops[i], buffers[i], mixed_size(i), tag);
    }
}

static void receive_mixed(struct party *party, struct op *ops, char **buffers, bmi_msg_tag_t tag)
{
    for (int i = 0; i < MESSAGES; i++) {
        buffers[i] = memory_take(party, mixed_size(i));
        op_receive(party, &ops[i], buffers[i], mixed_size(i), tag);
    }
}

static void finish_mixed(struct party *party, struct op *ops, char **buffers)
{
    for (int i = 0; i < MESSAGES; i++) {
        op_finish(party, &ops[i], mixed_size(i));
        if (party->role == RECEIVER && !pattern_holds(buffers[i], mixed_size(i), (uint64_t)i))
            party_fail(party, false, __FILE__, __LINE__, "message %d is another", i);
        memory_give_back(buffers[i]);
    }
}

static void order_of_one_key(struct party *party, enum message_order order)
{
    struct op ops[MESSAGES];
    char *buffers[MESSAGES];
    bool meet_before = party->role == (order == RECEIVE_FIRST ? SENDER : RECEIVER);
    if (order != TOGETHER && meet_before)
        party_meet(party);
    if (party->role == SENDER)
        send_mixed(party, ops, buffers, 1);
    else
        receive_mixed(party, ops, buffers, 1);
    if (order != TOGETHER && !meet_before)
        party_meet(party);
    finish_mixed(party, ops, buffers);
}

static void order_receives_first(struct party *party)
{
    order_of_one_key(party, RECEIVE_FIRST);
}

static void order_sends_first(struct party *party)
{
    order_of_one_key(party, SEND_FIRST);
}

static void order_together(struct party *party)
{
    for (int i = 0; i < 5; i++)
        order_of_one_key(party, TOGETHER);
}

/* Half of the receives posted before the messages, half after: sequence within the key. */
static void order_half_announced(struct party *party)
{
    struct op ops[MESSAGES];
    char *buffers[MESSAGES];
    if (party->role == SENDER) {
        party_meet(party);
        send_mixed(party, ops, buffers, 1);
        party_meet(party);
    } else {
        for (int i = 0; i < MESSAGES; i++) {
            if (i == MESSAGES / 2) {
                party_meet(party);
                party_meet(party);
            }
            buffers[i] = memory_take(party, mixed_size(i));
            op_receive(party, &ops[i], buffers[i], mixed_size(i), 1);
        }
    }
    finish_mixed(party, ops, buffers);
}

/* ---- tags ------------------------------------------------------------------------------------ */

static void many_tags(struct party *party, enum message_order order, bmi_size_t size)
{
    static struct op ops[ROLES][MANY_TAGS];
    struct op *mine = ops[party->role];
    int tags[MANY_TAGS];
    char *memory = memory_take(party, size * MANY_TAGS);
    for (int i = 0; i < MANY_TAGS; i++)
        tags[i] = i;
    random_shuffle(tags, MANY_TAGS, (uint64_t)party->role + 1);
    if (order == SEND_FIRST && party->role == RECEIVER)
        party_meet(party);
    for (int i = 0; i < MANY_TAGS; i++) {
        char *buffer = memory + size * tags[i];
        if (party->role == SENDER) {
            pattern_fill(buffer, size, (uint64_t)tags[i]);
            op_send(party, &mine[tags[i]], buffer, size, tags[i]);
        } else {
            op_receive(party, &mine[tags[i]], buffer, size, tags[i]);
        }
    }
    if (order == SEND_FIRST && party->role == SENDER)
        party_meet(party);
    for (int i = 0; i < MANY_TAGS; i++) {
        op_finish(party, &mine[i], size);
        if (party->role == RECEIVER && !pattern_holds(memory + size * i, size, (uint64_t)i))
            party_fail(party, false, __FILE__, __LINE__, "tag %d has another's bytes", i);
    }
    memory_give_back(memory);
}

static void many_tags_small(struct party *party)
{
    many_tags(party, TOGETHER, 64);
    many_tags(party, SEND_FIRST, 64);
}

static void many_tags_beyond_credit(struct party *party)
{
    many_tags(party, TOGETHER, 5000);
    many_tags(party, SEND_FIRST, 5000);
}

static void many_tags_large(struct party *party)
{
    many_tags(party, SEND_FIRST, 70000);
}

/* One waited for at a time, the last sent first. */
static void tags_one_by_one(struct party *party)
{
    enum { COUNT = 50 };
    struct op ops[COUNT];
    char bytes[COUNT][3000];
    for (int i = COUNT - 1; i >= 0; i--) {
        int k = party->role == SENDER ? COUNT - 1 - i : i;
        if (party->role == SENDER) {
            pattern_fill(bytes[k], sizeof bytes[k], (uint64_t)k);
            op_send(party, &ops[k], bytes[k], sizeof bytes[k], k);
        } else {
            op_receive(party, &ops[k], bytes[k], sizeof bytes[k], k);
            op_finish(party, &ops[k], sizeof bytes[k]);
            CHECK(party, pattern_holds(bytes[k], sizeof bytes[k], (uint64_t)k));
        }
    }
    for (int i = 0; i < COUNT && party->role == SENDER; i++)
        op_finish(party, &ops[i], sizeof bytes[i]);
}

/* ---- spaces ---------------------------------------------------------------------------------- */

/* The same tag in both: neither takes a message of the other. */
static void expected_and_unexpected(struct party *party)
{
    struct op ops[20];
    struct BMI_unexpected_info info;
    int64_t values[20];
    if (party->role == SENDER) {
        for (int i = 0; i < 20; i++) {
            values[i] = i;
            if (i % 2)
                op_send_unexpected(party, &ops[i], &values[i], sizeof values[i], 5);
            else
                op_send(party, &ops[i], &values[i], sizeof values[i], 5);
        }
        for (int i = 0; i < 20; i++)
            op_finish(party, &ops[i], sizeof values[i]);
        return;
    }
    op_receive(party, &ops[0], &values[0], sizeof values[0], 5);
    for (int i = 1; i < 20; i += 2) {
        unexpected_take(party, &info);
        CHECK_EQUAL(party, info.tag, 5);
        NEED_EQUAL(party, info.size, sizeof(int64_t));
        memcpy(&values[i], info.buffer, sizeof values[i]);
        CHECK_EQUAL(party, values[i], i);
        unexpected_give_back(party, &info);
    }
    for (int i = 0; i < 20; i += 2) {
        if (i > 0)
            op_receive(party, &ops[i], &values[i], sizeof values[i], 5);
        op_finish(party, &ops[i], sizeof values[i]);
        CHECK_EQUAL(party, values[i], i);
    }
}

/* Both send and receive on one tag: each process's messages go to the other. */
static void both_directions_one_tag(struct party *party)
{
    struct op sends[MESSAGES], receives[MESSAGES];
    char *from[MESSAGES], *to[MESSAGES];
    send_mixed(party, sends, from, 1);
    receive_mixed(party, receives, to, 1);
    for (int i = 0; i < MESSAGES; i++) {
        op_finish(party, &sends[i], mixed_size(i));
        op_finish(party, &receives[i], mixed_size(i));
        CHECK(party, pattern_holds(to[i], mixed_size(i), (uint64_t)i));
        memory_give_back(from[i]);
        memory_give_back(to[i]);
    }
}

static void both_directions(struct party *party)
{
    struct op sends[MESSAGES], receives[MESSAGES];
    char *from[MESSAGES], *to[MESSAGES];
    receive_mixed(party, receives, to, party_other(party));
    send_mixed(party, sends, from, party->role);
    for (int i = 0; i < MESSAGES; i++) {
        op_finish(party, &sends[i], mixed_size(i));
        op_finish(party, &receives[i], mixed_size(i));
        CHECK(party, pattern_holds(to[i], mixed_size(i), (uint64_t)i));
        memory_give_back(from[i]);
        memory_give_back(to[i]);
    }
}

/* Ping-pong, the pattern of latency: one message each way at a time. */
static void ping_pong(struct party *party)
{
    static const bmi_size_t sizes[] = {24, 1200, 20000, 200000};
    for (int i = 0; i < 4 * 50; i++) {
        bmi_size_t size = sizes[i / 50];
        struct op send, receive;
        char *buffer = memory_take(party, size), *other = memory_take(party, size);
        op_receive(party, &receive, other, size, party_other(party));
        if (party->role == RECEIVER)
            op_finish(party, &receive, size);
        pattern_fill(buffer, size, (uint64_t)i);
        op_send(party, &send, buffer, size, party->role);
        op_finish(party, &send, size);
        op_finish(party, &receive, size);
        CHECK(party, pattern_holds(other, size, (uint64_t)i));
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
