/* SPDX-License-Identifier: BSD-3-Clause
 *
 * transfer_cases.c - "Cancel" while bytes move, and beside other traffic.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

enum { KEY = 1, SEGMENT = MIB, CANARY = 0x5A };

/* Bytes that have moved until now, by frames or by remote memory operations. */
static uint64_t bytes_moved(struct party *party)
{
    struct bmi_method_statistics method = method_statistics(party);
    struct bmi_statistics all = statistics_of(party, 0);
    return method.bytes_sent + method.bytes_received + all.put_bytes + all.get_bytes;
}

static void wait_until_moving(struct party *party, const struct op *op, uint64_t before)
{
    while (!op->done && bytes_moved(party) < before + 2 * SEGMENT)
        op_collect(party, 1);
}

/* A transfer of half a gigabyte, cancelled by `canceller` when it is under way. Bytes that a
 * receiver does not need any more are still sent to it. Returns whether it ended as cancelled. */
static bool cancel_in_transfer(struct party *party, int canceller)
{
    int segments = party->small ? 64 : instrumented() ? 256 : 512;
    char *memory = memory_take(party, SEGMENT);
    struct list list = list_repeat(party, memory, SEGMENT, segments);
    struct op op;
    uint64_t before = bytes_moved(party);
    if (party->role == RECEIVER) {
        op_receive_list(party, &op, &list, KEY);
        party_meet(party);
    } else {
        party_meet(party);
        op_send_list(party, &op, &list, KEY);
    }
    if (party->role == canceller) {
        wait_until_moving(party, &op, before);
        op_cancel(party, &op, true);
    } else {
        op_wait(party, &op);
    }
    memset(memory, CANARY, SEGMENT); /* it is ours again: no peer may write to it any more */
    party_meet(party);
    message_pass(party, 100, KEY, TOGETHER);
    message_pass(party, 300000, KEY, RECEIVE_FIRST);
    message_pass(party, 300000, KEY, SEND_FIRST);
    for (int i = 0; i < SEGMENT; i++)
        NEED_EQUAL(party, memory[i], CANARY);
    list_free(&list);
    memory_give_back(memory);
    return op.error == -BMI_ECANCEL;
}

/* Repeated; if bytes take time, until a transfer was cancelled in their midst. (All of a small one
 * may be with the network by then.) */
static void cancels_in_transfer(struct party *party, int canceller)
{
    enum { TIMES = 3, MOST = 40 };
    bool takes_time = (party->method->features & CONFORMANCE_PROCESSES) && !party->small;
    bool any = false, on = true;
    for (int i = 0; on; i++) {
        any = cancel_in_transfer(party, canceller) || any;
        on = i + 1 < TIMES || (takes_time && !any && i + 1 < MOST);
        if (party->role == canceller)
            party_tell(party, party_other(party), &on, sizeof on);
        else
            party_hear(party, canceller, &on, sizeof on);
    }
    if (party->role == canceller)
        CHECK(party, any || !takes_time);
}

static void send_in_transfer(struct party *party)
{
    struct bmi_method_statistics before;
    party_warm_up(party);
    before = method_statistics(party);
    cancels_in_transfer(party, SENDER);
    CHECK_EQUAL(party, method_statistics(party).links_opened, before.links_opened);
    CHECK_EQUAL(party, method_statistics(party).bad_frames, before.bad_frames);
}

static void receive_in_transfer(struct party *party)
{
    struct bmi_method_statistics before;
    party_warm_up(party);
    before = method_statistics(party);
    cancels_in_transfer(party, RECEIVER);
    CHECK_EQUAL(party, method_statistics(party).links_opened, before.links_opened);
    CHECK_EQUAL(party, method_statistics(party).bad_frames, before.bad_frames);
}

/* ---- cancel and match cross each other ------------------------------------------------------- */

enum { ROUNDS = 150, LAST = 1000000, DONE = 2 };

/* Message i has its number in every word; the last one has LAST. */
static bmi_size_t crossing_size(int i)
{
    static const bmi_size_t sizes[] = {64, 300000, 9000, 1000000};
    return sizes[i % 4];
}

static void send_numbered(struct party *party, struct op *op, int64_t *words, int64_t number,
                          bmi_size_t size)
{
    for (bmi_size_t k = 0; k < size / 8; k++)
        words[k] = number;
    op_send(party, op, words, size, KEY);
}

/* DONE is sent when all sends have completed. */
static void crossing_sender(struct party *party)
{
    static struct op ops[ROUNDS], done;
    int64_t *words[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        words[i] = memory_take(party, crossing_size(i));
        send_numbered(party, &ops[i], words[i], i, crossing_size(i));
        op_collect(party, i % 3);
    }
    for (int i = 0; i < ROUNDS; i++) {
        op_finish(party, &ops[i], crossing_size(i));
        memory_give_back(words[i]);
    }
    op_send(party, &done, "d", 1, DONE);
    op_finish(party, &done, 1);
}

/* A receive always gets one whole message, with a higher number than the one before. */
static int64_t numbered_check(struct party *party, const struct op *op, const int64_t *words,
                              int64_t before)
{
    NEED(party, op->actual >= 64 && op->actual % 8 == 0);
    NEED(party, words[0] > before);
    NEED_EQUAL(party, op->actual, crossing_size(words[0] == LAST ? ROUNDS : (int)words[0]));
    for (bmi_size_t k = 1; k < op->actual / 8; k++)
        NEED_EQUAL(party, words[k], words[0]);
    return words[0];
}

static void crossing_receiver(struct party *party)
{
    uint64_t seed = 11;
    int64_t last = -1, *words = memory_take(party, 1000000);
    int received = 0;
    char byte;
    struct op done;
    op_receive(party, &done, &byte, 1, DONE);
    while (!done.done) {
        struct op op;
        uint64_t choice = random_next(&seed);
        op_receive(party, &op, words, 1000000, KEY);
        for (uint64_t k = 0; k < choice % 7; k++)
            op_collect(party, 0);
        while (choice % 3 == 0 && !op.done && !done.done)
            op_collect(party, 1000);
        if (!op.done)
            CHECK_STATUS(party, BMI_cancel(op.id, party->context), 0);
        op_wait(party, &op);
        CHECK(party, op.error == 0 || op.error == -BMI_ECANCEL);
        if (op.error == 0)
            last = numbered_check(party, &op, words, last);
        received += op.error == 0;
    }
    op_finish(party, &done, 1);
    CHECK(party, received > 0);
    memory_give_back(words);
}

static void crossing(struct party *party)
{
    if (party->role == SENDER)
        crossing_sender(party);
    else
        crossing_receiver(party);
}

/* Sends cancelled at random: the receiver gets exactly those that report success, in order. */
static void crossing_sends(struct party *party)
{
    struct op op;
    int64_t *words = memory_take(party, 1000000), last = -1;
    uint64_t seed = 12;
    bool went[ROUNDS];
    int received = 0;
    if (party->role == SENDER) {
        for (int i = 0; i < ROUNDS; i++) {
            uint64_t choice = random_next(&seed);
            send_numbered(party, &op, words, i, crossing_size(i));
            for (uint64_t k = 0; k < choice % 5; k++)
                op_collect(party, 0);
            if (!op.done && choice % 4 != 0)
                CHECK_STATUS(party, BMI_cancel(op.id, party->context), 0);
            op_wait(party, &op);
            CHECK(party, op.error == 0 || op.error == -BMI_ECANCEL);
            went[i] = op.error == 0;
        }
        send_numbered(party, &op, words, LAST, crossing_size(ROUNDS));
        op_finish(party, &op, crossing_size(ROUNDS));
        party_tell(party, RECEIVER, went, sizeof went);
        memory_give_back(words);
        return;
    }
    bool got[ROUNDS] = {false};
    while (last != LAST) {
        op_receive(party, &op, words, 1000000, KEY);
        op_wait(party, &op);
        if (op.error == 0) /* a send that was cut off in the middle ends with an error */
            last = numbered_check(party, &op, words, last);
        if (op.error == 0 && last != LAST)
            got[last] = true;
    }
    party_hear(party, SENDER, went, sizeof went);
    for (int i = 0; i < ROUNDS; i++) {
        received += got[i];
        if (went[i])
            CHECK(party, got[i]);
    }
    CHECK(party, received > 0);
    memory_give_back(words);
}

/* Small messages flow on other tags while large ones beside them are cancelled over and over. */
static void beside_traffic(struct party *party)
{
    enum { LARGE = 3 * MIB, SMALL = 200 };
    char *memory = memory_take(party, LARGE), bytes[SMALL];
    for (int i = 0; i < 100; i++) {
        struct op large, small;
        if (party->role == SENDER) {
            pattern_fill(bytes, SMALL, (uint64_t)i);
            if (i % 2)
                op_send(party, &large, memory, LARGE, 10 + i);
            op_send(party, &small, bytes, SMALL, 2);
        } else {
            if (i % 2 == 0)
                op_receive(party, &large, memory, LARGE, 10 + i);
            op_receive(party, &small, bytes, SMALL, 2);
        }
        if ((i % 2 == 1) == (party->role == SENDER))
            op_cancel(party, &large, false);
        op_finish(party, &small, SMALL);
        if (party->role == RECEIVER)
            CHECK(party, pattern_holds(bytes, SMALL, (uint64_t)i));
    }
    memory_give_back(memory);
}

#define SECTION .section = "Cancel"
const struct conformance_case transfer_cases[] = {
    {SECTION, .name = "a large send in mid transfer", .run = send_in_transfer, .seconds = 300},
    {SECTION, .name = "a large receive in mid transfer", .run = receive_in_transfer,
     .seconds = 300},
    {SECTION, .name = "receives cancelled as their messages come", .run = crossing},
    {SECTION, .name = "sends cancelled as their receives come", .run = crossing_sends},
    {SECTION, .name = "beside other traffic", .run = beside_traffic},
    {0},
};
