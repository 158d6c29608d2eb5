/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mismatch_cases.c - "Matching": buffers that are larger or smaller than the message.
 */
#include "harness.h"

#include <string.h>

enum { KEY = 1, NEIGHBOUR = 2, MARKER = 3 };

static const bmi_size_t message_sizes[] = {100, 10000, 100000, 2000000};
enum { SIZES = 4 };

static void larger_buffer(struct rank *rank, enum message_order order)
{
    for (int i = 0; i < SIZES; i++) {
        struct op op;
        bmi_size_t size = message_sizes[i];
        char *memory = memory_take(rank, 2 * size);
        if ((order == RECEIVE_FIRST) == (rank->role == SENDER))
            rank_barrier(rank);
        if (rank->role == SENDER) {
            pattern_fill(memory, size, 1);
            op_send(rank, &op, memory, size, i);
        } else {
            op_receive(rank, &op, memory, 2 * size, i);
        }
        if ((order == RECEIVE_FIRST) != (rank->role == SENDER))
            rank_barrier(rank);
        op_finish(rank, &op, size);
        if (rank->role == RECEIVER) {
            CHECK(rank, pattern_holds(memory, size, 1));
            for (bmi_size_t k = size; k < 2 * size; k++)
                NEED_EQUAL(rank, memory[k], 0);
        }
        memory_give_back(memory);
    }
}

static void larger_buffer_first(struct rank *rank)
{
    larger_buffer(rank, RECEIVE_FIRST);
}

static void larger_buffer_after(struct rank *rank)
{
    larger_buffer(rank, SEND_FIRST);
}

/* ---- the smaller buffer is posted before the message comes ----------------------------------- */

/* Sends: before on KEY, too large on KEY, after on KEY, and one on another tag. */
static void send_around(struct rank *rank, bmi_size_t size)
{
    struct op ops[4];
    char *memory = memory_take(rank, size);
    pattern_fill(memory, size, 1);
    op_send(rank, &ops[0], memory, 50, KEY);
    op_send(rank, &ops[1], memory, size, KEY);
    op_send(rank, &ops[2], memory, 60, KEY);
    op_send(rank, &ops[3], memory, size, NEIGHBOUR);
    op_finish(rank, &ops[0], 50);
    op_wait(rank, &ops[1]); /* its completion is local: the result may be either */
    CHECK(rank, ops[1].error == 0 || ops[1].error == -BMI_EMSGSIZE);
    op_finish(rank, &ops[2], 60);
    op_finish(rank, &ops[3], size);
    memory_give_back(memory);
}

static void receive_around(struct rank *rank, bmi_size_t size, bool by_list)
{
    struct op ops[4];
    char before[50], after[60], *neighbour = memory_take(rank, size);
    struct list list = list_make(rank, 9, size - 1, 3, 3);
    op_receive(rank, &ops[0], before, sizeof before, KEY);
    if (by_list)
        op_receive_list(rank, &ops[1], &list, KEY);
    else
        op_receive(rank, &ops[1], list.memory, size - 1, KEY);
    op_receive(rank, &ops[2], after, sizeof after, KEY);
    op_receive(rank, &ops[3], neighbour, size, NEIGHBOUR);
    rank_barrier(rank);
    op_finish(rank, &ops[0], sizeof before);
    op_finish_error(rank, &ops[1], BMI_EMSGSIZE);
    op_finish(rank, &ops[2], sizeof after);
    op_finish(rank, &ops[3], size);
    CHECK(rank, pattern_holds(before, sizeof before, 1));
    CHECK(rank, pattern_holds(after, sizeof after, 1));
    CHECK(rank, pattern_holds(neighbour, size, 1));
    list_free(&list);
    memory_give_back(neighbour);
}

static void smaller_buffer_first(struct rank *rank)
{
    struct bmi_method_statistics before;
    rank_warm_up(rank);
    before = method_statistics(rank);
    for (int i = 0; i < 2 * SIZES; i++) {
        if (rank->role == SENDER) {
            rank_barrier(rank);
            send_around(rank, message_sizes[i / 2]);
        } else {
            receive_around(rank, message_sizes[i / 2], i % 2);
        }
    }
    message_pass(rank, 1000, 9, TOGETHER);
    /* The connection was not lost: nobody made another one. One that lost a simultaneous connect
     * may end here. */
    CHECK_EQUAL(rank, method_statistics(rank).links_opened, before.links_opened);
    CHECK_EQUAL(rank, method_statistics(rank).links_accepted, before.links_accepted);
}

/* Zero bytes of room are less than one. */
static void no_room(struct rank *rank)
{
    struct op ops[2];
    char byte = 'x';
    if (rank->role == SENDER) {
        rank_barrier(rank);
        op_send(rank, &ops[0], &byte, 1, KEY);
        op_send(rank, &ops[1], &byte, 1, KEY);
        op_wait(rank, &ops[0]);
        op_finish(rank, &ops[1], 1);
        return;
    }
    op_receive(rank, &ops[0], NULL, 0, KEY);
    op_receive(rank, &ops[1], &byte, 1, KEY);
    rank_barrier(rank);
    op_finish_error(rank, &ops[0], BMI_EMSGSIZE);
    op_finish(rank, &ops[1], 1);
}

/* ---- the message is there before the smaller buffer is posted -------------------------------- */

/* The marker, sent later on the same link, shows that the message has been announced. */
static void send_and_mark(struct rank *rank, bmi_size_t size)
{
    struct op op, marker;
    char *memory = memory_take(rank, size);
    pattern_fill(memory, size, 1);
    op_send(rank, &op, memory, size, KEY);
    op_send(rank, &marker, "m", 1, MARKER);
    op_finish(rank, &marker, 1);
    op_finish(rank, &op, size);
    memory_give_back(memory);
}

static void receive_refused(struct rank *rank, bmi_size_t size, bool by_list)
{
    struct op op, marker;
    char byte, *memory = memory_take(rank, size);
    struct list list = list_make(rank, 9, size - 1, 3, 3);
    op_receive(rank, &marker, &byte, 1, MARKER);
    op_finish(rank, &marker, 1);
    for (int i = 0; i < 3; i++) {
        if (by_list)
            op_post_list(rank, &op, POST_RECEIVE, rank->peer, &list, KEY);
        else
            op_post(rank, &op, POST_RECEIVE, rank->peer, list.memory, size - 1, KEY);
        NEED_STATUS(rank, op.posted, -BMI_EMSGSIZE);
    }
    op_receive(rank, &op, memory, size, KEY);
    op_finish(rank, &op, size);
    CHECK(rank, pattern_holds(memory, size, 1));
    list_free(&list);
    memory_give_back(memory);
}

static void smaller_buffer_after(struct rank *rank)
{
    for (int i = 0; i < 2 * SIZES; i++) {
        if (rank->role == SENDER)
            send_and_mark(rank, message_sizes[i / 2]);
        else
            receive_refused(rank, message_sizes[i / 2], i % 2);
    }
}

#define SECTION .section = "Matching"
const struct conformance_case mismatch_cases[] = {
    {SECTION, .name = "buffer larger than the message, posted first", .run = larger_buffer_first},
    {SECTION, .name = "buffer larger than the message, posted after", .run = larger_buffer_after},
    {SECTION, .name = "buffer smaller than the message, posted first: EMSGSIZE, no other notices",
     .run = smaller_buffer_first},
    {SECTION, .name = "no room for one byte: EMSGSIZE", .run = no_room},
    {SECTION, .name = "buffer smaller than a message that waits: refused, the message stays",
     .run = smaller_buffer_after},
    {0},
};
