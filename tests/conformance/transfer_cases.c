/* SPDX-License-Identifier: BSD-3-Clause
 *
 * transfer_cases.c - "Cancel" while bytes move, and beside other traffic.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

enum { KEY = 1, SEGMENT = MIB, CANARY = 0x5A };

/* Bytes that have moved until now, by frames or by remote memory operations. */
static uint64_t bytes_moved(struct rank *rank)
{
    struct bmi_method_statistics method = method_statistics(rank);
    struct bmi_statistics all = statistics_of(rank, 0);
    return method.bytes_sent + method.bytes_received + all.put_bytes + all.get_bytes;
}

static void wait_until_moving(struct rank *rank, const struct op *op, uint64_t before)
{
    while (!op->done && bytes_moved(rank) < before + 2 * SEGMENT)
        op_collect(rank, 1);
}

/* A transfer of half a gigabyte, cancelled by `canceller` when it is under way. Bytes that a
 * receiver does not need any more are still sent to it. Returns whether it ended as cancelled. */
static bool cancel_in_transfer(struct rank *rank, int canceller)
{
    int segments = rank->small ? 64 : instrumented() ? 256 : 512;
    char *memory = memory_take(rank, SEGMENT);
    struct list list = list_repeat(rank, memory, SEGMENT, segments);
    struct op op;
    uint64_t before = bytes_moved(rank);
    if (rank->role == RECEIVER) {
        op_receive_list(rank, &op, &list, KEY);
        rank_barrier(rank);
    } else {
        rank_barrier(rank);
        op_send_list(rank, &op, &list, KEY);
    }
    if (rank->role == canceller) {
        wait_until_moving(rank, &op, before);
        op_cancel(rank, &op, true);
    } else {
        op_wait(rank, &op);
    }
    memset(memory, CANARY, SEGMENT); /* it is ours again: no peer may write to it any more */
    rank_barrier(rank);
    message_pass(rank, 100, KEY, TOGETHER);
    message_pass(rank, 300000, KEY, RECEIVE_FIRST);
    message_pass(rank, 300000, KEY, SEND_FIRST);
    for (int i = 0; i < SEGMENT; i++)
        NEED_EQUAL(rank, memory[i], CANARY);
    list_free(&list);
    memory_give_back(memory);
    return op.error == -BMI_ECANCEL;
}

/* Repeated; if bytes take time, until a transfer was cancelled in their midst. (All of a small one
 * may be with the network by then.) */
static void cancels_in_transfer(struct rank *rank, int canceller)
{
    enum { TIMES = 3, MOST = 40 };
    bool takes_time = (rank->method->features & CONFORMANCE_PROCESSES) && !rank->small;
    bool any = false, on = true;
    for (int i = 0; on; i++) {
        any = cancel_in_transfer(rank, canceller) || any;
        on = i + 1 < TIMES || (takes_time && !any && i + 1 < MOST);
        if (rank->role == canceller)
            rank_write(rank, rank_other(rank), &on, sizeof on);
        else
            rank_read(rank, canceller, &on, sizeof on);
    }
    if (rank->role == canceller)
        CHECK(rank, any || !takes_time);
}

static void send_in_transfer(struct rank *rank)
{
    struct bmi_method_statistics before;
    rank_warm_up(rank);
    before = method_statistics(rank);
    cancels_in_transfer(rank, SENDER);
    CHECK_EQUAL(rank, method_statistics(rank).links_opened, before.links_opened);
    CHECK_EQUAL(rank, method_statistics(rank).bad_frames, before.bad_frames);
}

static void receive_in_transfer(struct rank *rank)
{
    struct bmi_method_statistics before;
    rank_warm_up(rank);
    before = method_statistics(rank);
    cancels_in_transfer(rank, RECEIVER);
    CHECK_EQUAL(rank, method_statistics(rank).links_opened, before.links_opened);
    CHECK_EQUAL(rank, method_statistics(rank).bad_frames, before.bad_frames);
}

/* ---- cancel and match cross each other ------------------------------------------------------- */

enum { ROUNDS = 150, LAST = 1000000, DONE = 2 };

/* Message i has its number in every word; the last one has LAST. */
static bmi_size_t crossing_size(int i)
{
    static const bmi_size_t sizes[] = {64, 300000, 9000, 1000000};
    return sizes[i % 4];
}

static void send_numbered(struct rank *rank, struct op *op, int64_t *words, int64_t number,
                          bmi_size_t size)
{
    for (bmi_size_t k = 0; k < size / 8; k++)
        words[k] = number;
    op_send(rank, op, words, size, KEY);
}

/* DONE is sent when all sends have completed. */
static void crossing_sender(struct rank *rank)
{
    struct op ops[ROUNDS], done;
    int64_t *words[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        words[i] = memory_take(rank, crossing_size(i));
        send_numbered(rank, &ops[i], words[i], i, crossing_size(i));
        op_collect(rank, i % 3);
    }
    for (int i = 0; i < ROUNDS; i++) {
        op_finish(rank, &ops[i], crossing_size(i));
        memory_give_back(words[i]);
    }
    op_send(rank, &done, "d", 1, DONE);
    op_finish(rank, &done, 1);
}

/* A receive always gets one whole message, with a higher number than the one before. */
static int64_t numbered_check(struct rank *rank, const struct op *op, const int64_t *words,
                              int64_t before)
{
    NEED(rank, op->actual >= 64 && op->actual % 8 == 0);
    NEED(rank, words[0] > before);
    NEED_EQUAL(rank, op->actual, crossing_size(words[0] == LAST ? ROUNDS : (int)words[0]));
    for (bmi_size_t k = 1; k < op->actual / 8; k++)
        NEED_EQUAL(rank, words[k], words[0]);
    return words[0];
}

static void crossing_receiver(struct rank *rank)
{
    uint64_t seed = 11;
    int64_t last = -1, *words = memory_take(rank, 1000000);
    int received = 0;
    char byte;
    struct op done;
    op_receive(rank, &done, &byte, 1, DONE);
    while (!done.done) {
        struct op op;
        uint64_t choice = random_next(&seed);
        op_receive(rank, &op, words, 1000000, KEY);
        for (uint64_t k = 0; k < choice % 7; k++)
            op_collect(rank, 0);
        while (choice % 3 == 0 && !op.done && !done.done)
            op_collect(rank, 1000);
        if (!op.done)
            CHECK_STATUS(rank, BMI_cancel(op.id, rank->context), 0);
        op_wait(rank, &op);
        CHECK(rank, op.error == 0 || op.error == -BMI_ECANCEL);
        if (op.error == 0)
            last = numbered_check(rank, &op, words, last);
        received += op.error == 0;
    }
    op_finish(rank, &done, 1);
    CHECK(rank, received > 0);
    memory_give_back(words);
}

static void crossing(struct rank *rank)
{
    if (rank->role == SENDER)
        crossing_sender(rank);
    else
        crossing_receiver(rank);
}

/* Sends cancelled at random: the receiver gets exactly those that report success, in order. */
static void crossing_sends(struct rank *rank)
{
    struct op op;
    int64_t *words = memory_take(rank, 1000000), last = -1;
    uint64_t seed = 12;
    bool went[ROUNDS];
    int received = 0;
    if (rank->role == SENDER) {
        for (int i = 0; i < ROUNDS; i++) {
            uint64_t choice = random_next(&seed);
            send_numbered(rank, &op, words, i, crossing_size(i));
            for (uint64_t k = 0; k < choice % 5; k++)
                op_collect(rank, 0);
            if (!op.done && choice % 4 != 0)
                CHECK_STATUS(rank, BMI_cancel(op.id, rank->context), 0);
            op_wait(rank, &op);
            CHECK(rank, op.error == 0 || op.error == -BMI_ECANCEL);
            went[i] = op.error == 0;
        }
        send_numbered(rank, &op, words, LAST, crossing_size(ROUNDS));
        op_finish(rank, &op, crossing_size(ROUNDS));
        rank_write(rank, RECEIVER, went, sizeof went);
        memory_give_back(words);
        return;
    }
    bool got[ROUNDS] = {false};
    while (last != LAST) {
        op_receive(rank, &op, words, 1000000, KEY);
        op_wait(rank, &op);
        if (op.error == 0) /* a send that was cut off in the middle ends with an error */
            last = numbered_check(rank, &op, words, last);
        if (op.error == 0 && last != LAST)
            got[last] = true;
    }
    rank_read(rank, SENDER, went, sizeof went);
    for (int i = 0; i < ROUNDS; i++) {
        received += got[i];
        if (went[i])
            CHECK(rank, got[i]);
    }
    CHECK(rank, received > 0);
    memory_give_back(words);
}

/* Small messages flow on other tags while large ones beside them are cancelled over and over. */
static void beside_traffic(struct rank *rank)
{
    enum { LARGE = 3 * MIB, SMALL = 200 };
    char *memory = memory_take(rank, LARGE), bytes[SMALL];
    for (int i = 0; i < 100; i++) {
        struct op large, small;
        if (rank->role == SENDER) {
            pattern_fill(bytes, SMALL, (uint64_t)i);
            if (i % 2)
                op_send(rank, &large, memory, LARGE, 10 + i);
            op_send(rank, &small, bytes, SMALL, 2);
        } else {
            if (i % 2 == 0)
                op_receive(rank, &large, memory, LARGE, 10 + i);
            op_receive(rank, &small, bytes, SMALL, 2);
        }
        if ((i % 2 == 1) == (rank->role == SENDER))
            op_cancel(rank, &large, false);
        op_finish(rank, &small, SMALL);
        if (rank->role == RECEIVER)
            CHECK(rank, pattern_holds(bytes, SMALL, (uint64_t)i));
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
