/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mismatch_cases.c - "Matching": buffers that are larger or smaller than the message.
 */
#include "harness.h"

#include <string.h>

enum { KEY = 1, NEIGHBOUR = 2, MARKER = 3 };

static const bmi_size_t message_sizes[] = {100, 10000, 100000, 2000000};
enum { SIZES = 4 };

static void larger_buffer(struct party *party, enum message_order order)
{
    for (int i = 0; i < SIZES; i++) {
        struct op op;
        bmi_size_t size = message_sizes[i];
        char *memory = memory_take(party, 2 * size);
        if ((order == RECEIVE_FIRST) == (party->role == SENDER))
            party_meet(party);
        if (party->role == SENDER) {
            pattern_fill(memory, size, 1);
            op_send(party, &op, memory, size, i);
        } else {
            op_receive(party, &op, memory, 2 * size, i);
        }
        if ((order == RECEIVE_FIRST) != (party->role == SENDER))
            party_meet(party);
        op_finish(party, &op, size);
        if (party->role == RECEIVER) {
            CHECK(party, pattern_holds(memory, size, 1));
            for (bmi_size_t k = size; k < 2 * size; k++)
                NEED_EQUAL(party, memory[k], 0);
        }
        memory_give_back(memory);
    }
}

static void larger_buffer_first(struct party *party)
{
    larger_buffer(party, RECEIVE_FIRST);
}

static void larger_buffer_after(struct party *party)
{
    larger_buffer(party, SEND_FIRST);
}

/* ---- the smaller buffer is posted before the message comes ----------------------------------- */

/* Sends: before on KEY, too large on KEY, after on KEY, and one on another tag. */
static void send_around(struct party *party, bmi_size_t size)
{
    struct op ops[4];
    char *memory = memory_take(party, size);
    pattern_fill(memory, size, 1);
    op_send(party, &ops[0], memory, 50, KEY);
    op_send(party, &ops[1], memory, size, KEY);
    op_send(party, &ops[2], memory, 60, KEY);
    op_send(party, &ops[3], memory, size, NEIGHBOUR);
    op_finish(party, &ops[0], 50);
    op_wait(party, &ops[1]); /* its completion is local: the result may be either */
    CHECK(party, ops[1].error == 0 || ops[1].error == -BMI_EMSGSIZE);
    op_finish(party, &ops[2], 60);
    op_finish(party, &ops[3], size);
    memory_give_back(memory);
}

static void receive_around(struct party *party, bmi_size_t size, bool by_list)
{
    struct op ops[4];
    char before[50], after[60], *neighbour = memory_take(party, size);
    struct list list = list_make(party, 9, size - 1, 3, 3);
    op_receive(party, &ops[0], before, sizeof before, KEY);
    if (by_list)
        op_receive_list(party, &ops[1], &list, KEY);
    else
        op_receive(party, &ops[1], list.memory, size - 1, KEY);
    op_receive(party, &ops[2], after, sizeof after, KEY);
    op_receive(party, &ops[3], neighbour, size, NEIGHBOUR);
    party_meet(party);
    op_finish(party, &ops[0], sizeof before);
    op_finish_error(party, &ops[1], BMI_EMSGSIZE);
    op_finish(party, &ops[2], sizeof after);
    op_finish(party, &ops[3], size);
    CHECK(party, pattern_holds(before, sizeof before, 1));
    CHECK(party, pattern_holds(after, sizeof after, 1));
    CHECK(party, pattern_holds(neighbour, size, 1));
    list_free(&list);
    memory_give_back(neighbour);
}

static void smaller_buffer_first(struct party *party)
{
    struct bmi_method_statistics before;
    party_warm_up(party);
    before = method_statistics(party);
    for (int i = 0; i < 2 * SIZES; i++) {
        if (party->role == SENDER) {
            party_meet(party);
            send_around(party, message_sizes[i / 2]);
        } else {
            receive_around(party, message_sizes[i / 2], i % 2);
        }
    }
    CHECK_EQUAL(party, method_statistics(party).links_failed, before.links_failed);
    CHECK_EQUAL(party, method_statistics(party).links_opened, before.links_opened);
    message_pass(party, 1000, 9, TOGETHER);
}

/* Zero bytes of room are less than one. */
static void no_room(struct party *party)
{
    struct op ops[2];
    char byte = 'x';
    if (party->role == SENDER) {
        party_meet(party);
        op_send(party, &ops[0], &byte, 1, KEY);
        op_send(party, &ops[1], &byte, 1, KEY);
        op_wait(party, &ops[0]);
        op_finish(party, &ops[1], 1);
        return;
    }
    op_receive(party, &ops[0], NULL, 0, KEY);
    op_receive(party, &ops[1], &byte, 1, KEY);
    party_meet(party);
    op_finish_error(party, &ops[0], BMI_EMSGSIZE);
    op_finish(party, &ops[1], 1);
}

/* ---- the message is there before the smaller buffer is posted -------------------------------- */

/* The marker, sent later on the same link, shows that the message has been announced. */
static void send_and_mark(struct party *party, bmi_size_t size)
{
    struct op op, marker;
    char *memory = memory_take(party, size);
    pattern_fill(memory, size, 1);
    op_send(party, &op, memory, size, KEY);
    op_send(party, &marker, "m", 1, MARKER);
    op_finish(party, &marker, 1);
    op_finish(party, &op, size);
    memory_give_back(memory);
}

static void receive_refused(struct party *party, bmi_size_t size, bool by_list)
{
    struct op op, marker;
    char byte, *memory = memory_take(party, size);
    struct list list = list_make(party, 9, size - 1, 3, 3);
    op_receive(party, &marker, &byte, 1, MARKER);
    op_finish(party, &marker, 1);
    for (int i = 0; i < 3; i++) {
        if (by_list)
            op_post_list(party, &op, POST_RECEIVE, party->peer, &list, KEY);
        else
            op_post(party, &op, POST_RECEIVE, party->peer, list.memory, size - 1, KEY);
        NEED_STATUS(party, op.posted, -BMI_EMSGSIZE);
    }
    op_receive(party, &op, memory, size, KEY);
    op_finish(party, &op, size);
    CHECK(party, pattern_holds(memory, size, 1));
    list_free(&list);
    memory_give_back(memory);
}

static void smaller_buffer_after(struct party *party)
{
    for (int i = 0; i < 2 * SIZES; i++) {
        if (party->role == SENDER)
            send_and_mark(party, message_sizes[i / 2]);
        else
            receive_refused(party, message_sizes[i / 2], i % 2);
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
