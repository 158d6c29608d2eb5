/* SPDX-License-Identifier: BSD-3-Clause
 *
 * list_cases.c - "Post": scatter lists of any count, whose segments need not match.
 */
#include "harness.h"

#include <limits.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef IOV_MAX
#define IOV_MAX 1024
#endif

enum { ONE_BUFFER = 0 }; /* not a list at all */

struct shape {
    int sends, receives; /* segments on the two sides */
    bmi_size_t size;
    unsigned empty_every;
};

static void pass_shape(struct rank *rank, const struct shape *shape, bmi_msg_tag_t tag)
{
    int count = rank->role == SENDER ? shape->sends : shape->receives;
    struct list list = list_make(rank, count ? count : 1, shape->size,
                                 (uint64_t)tag + (uint64_t)rank->role * 1000, shape->empty_every);
    struct op op;
    if (rank->role == SENDER) {
        list_fill(&list, (uint64_t)tag);
        if (count == ONE_BUFFER)
            op_send(rank, &op, list.memory, list.total, tag);
        else
            op_send_list(rank, &op, &list, tag);
    } else if (count == ONE_BUFFER) {
        op_receive(rank, &op, list.memory, list.total, tag);
    } else {
        op_receive_list(rank, &op, &list, tag);
    }
    op_finish(rank, &op, shape->size);
    if (rank->role == RECEIVER && !list_holds(&list, shape->size, (uint64_t)tag))
        rank_fail(rank, false, __FILE__, __LINE__, "%d to %d segments, %lld bytes: wrong bytes",
                  shape->sends, shape->receives, (long long)shape->size);
    list_free(&list);
}

static void pass_shapes(struct rank *rank, const struct shape *shapes, int count)
{
    for (int i = 0; i < count; i++)
        pass_shape(rank, &shapes[i], i);
}

static void counts(struct rank *rank)
{
    enum { SMALL = 12000, LARGE = 700000 };
    static const struct shape shapes[] = {
        {1, 1, SMALL, 0},
        {1, 1, LARGE, 0},
        {ONE_BUFFER, 1, LARGE, 0},
        {1, ONE_BUFFER, LARGE, 0},
        {2, 3, 5, 0},
        {3, 2, SMALL, 0},
        {7, 5, LARGE, 0},
        {IOV_MAX - 1, IOV_MAX + 1, SMALL, 0},
        {IOV_MAX, IOV_MAX, SMALL, 0},
        {IOV_MAX + 1, IOV_MAX - 1, SMALL, 0},
        {IOV_MAX - 1, IOV_MAX, LARGE, 0},
        {IOV_MAX, IOV_MAX + 1, LARGE, 0},
        {IOV_MAX + 1, IOV_MAX, LARGE, 0},
        {ONE_BUFFER, IOV_MAX + 1, LARGE, 0},
        {IOV_MAX + 1, ONE_BUFFER, LARGE, 0},
        {IOV_MAX, ONE_BUFFER, SMALL, 0},
        {ONE_BUFFER, 2 * IOV_MAX + 1, SMALL, 0},
    };
    pass_shapes(rank, shapes, sizeof shapes / sizeof *shapes);
}

static void longest(struct rank *rank)
{
    static const struct shape shapes[] = {
        {65536, 65536, 65536, 0},        {65536, 40000, 4 * MIB + 1, 0},
        {40000, 65536, 4 * MIB + 1, 0},  {65536, ONE_BUFFER, 2 * MIB, 0},
        {ONE_BUFFER, 65536, 2 * MIB, 0}, {65536, 65535, 10000, 0},
    };
    pass_shapes(rank, shapes, sizeof shapes / sizeof *shapes);
}

static void empty_segments(struct rank *rank)
{
    static const struct shape shapes[] = {
        {20, 30, 1000, 2},       {20, 30, 100000, 2},       {3000, 2500, 50000, 2},
        {3000, 2500, 900000, 3}, {65536, 65536, 300000, 2}, {2000, 1500, 1, 2},
        {2000, 1500, 0, 2},
    };
    pass_shapes(rank, shapes, sizeof shapes / sizeof *shapes);
}

/* First and last segments empty; more of them than one gathering write takes. */
static void empty_ends(struct rank *rank)
{
    enum { COUNT = 2 * IOV_MAX + 3 };
    static const bmi_size_t sizes[] = {10, 20000, 500000};
    for (int i = 0; i < 3; i++) {
        struct list list = list_make(rank, COUNT, sizes[i], 1, 0);
        struct op op;
        for (int k = 0; k < COUNT; k++) {
            list.buffers[k] = k < COUNT / 2 ? NULL : list.memory;
            list.sizes[k] = k == COUNT / 2 ? sizes[i] : 0;
        }
        if (rank->role == SENDER) {
            list_fill(&list, 4);
            op_send_list(rank, &op, &list, i);
        } else {
            op_receive_list(rank, &op, &list, i);
        }
        op_finish(rank, &op, sizes[i]);
        if (rank->role == RECEIVER)
            CHECK(rank, list_holds(&list, sizes[i], 4));
        list_free(&list);
    }
}

/* The pattern of file I/O: strips of 64 KiB, as in a 256 KiB message. */
static void strips(struct rank *rank)
{
    enum { MESSAGES = 16 };
    struct list lists[MESSAGES];
    struct op ops[MESSAGES];
    for (int i = 0; i < MESSAGES; i++) {
        lists[i] = list_make(rank, 4, 256 * KIB, 0, 0);
        for (int k = 0; k < 4; k++) {
            lists[i].buffers[k] = (char *)lists[i].memory + k * 64 * KIB;
            lists[i].sizes[k] = 64 * KIB;
        }
        if (rank->role == SENDER) {
            list_fill(&lists[i], (uint64_t)i);
            op_send_list(rank, &ops[i], &lists[i], 1);
        } else {
            op_receive_list(rank, &ops[i], &lists[i], 1);
        }
    }
    for (int i = 0; i < MESSAGES; i++) {
        op_finish(rank, &ops[i], 256 * KIB);
        if (rank->role == RECEIVER)
            CHECK(rank, list_holds(&lists[i], 256 * KIB, (uint64_t)i));
        list_free(&lists[i]);
    }
}

static void unexpected_lists(struct rank *rank)
{
    static const int segments[] = {1, 2, IOV_MAX - 1, IOV_MAX, IOV_MAX + 1, 16384};
    bmi_size_t size = unexpected_limit(rank);
    for (int i = 0; i < 6; i++) {
        if (rank->role == SENDER) {
            struct op op;
            struct list list = list_make(rank, segments[i], size, (uint64_t)i, 3);
            list_fill(&list, (uint64_t)i);
            op_post_list(rank, &op, POST_UNEXPECTED, rank->peer, &list, i);
            op_finish(rank, &op, size);
            list_free(&list);
        } else {
            struct BMI_unexpected_info info;
            unexpected_take(rank, &info);
            CHECK_EQUAL(rank, info.tag, i);
            NEED_EQUAL(rank, info.size, size);
            CHECK(rank, pattern_holds(info.buffer, size, (uint64_t)i));
            unexpected_give_back(rank, &info);
        }
    }
}

/* A message shorter than the list: memory behind its end is not touched. */
static void short_message(struct rank *rank)
{
    static const bmi_size_t sizes[] = {0, 1, 3000, 30000, 300000};
    for (int i = 0; i < 5; i++) {
        struct op op;
        if (rank->role == SENDER) {
            char *memory = memory_take(rank, sizes[i]);
            pattern_fill(memory, sizes[i], 8);
            op_send(rank, &op, memory, sizes[i], i);
            op_finish(rank, &op, sizes[i]);
            memory_give_back(memory);
            continue;
        }
        struct list list = list_make(rank, 2000, 600000, 3, 4);
        op_receive_list(rank, &op, &list, i);
        op_finish(rank, &op, sizes[i]);
        CHECK(rank, list_holds(&list, sizes[i], 8));
        for (bmi_size_t k = sizes[i]; k < 600000; k++)
            NEED_EQUAL(rank, ((char *)list.memory)[k], 0);
        list_free(&list);
    }
}

#define SECTION .section = "Post"
const struct conformance_case list_cases[] = {
    {SECTION, .name = "lists of 1 to IOV_MAX+1 segments", .run = counts},
    {SECTION, .name = "lists of 65,536 segments, unlike on the two sides", .run = longest},
    {SECTION, .name = "zero-length segments", .run = empty_segments},
    {SECTION, .name = "zero-length segments at both ends", .run = empty_ends},
    {SECTION, .name = "strips of 64 KiB", .run = strips},
    {SECTION, .name = "unexpected lists", .run = unexpected_lists},
    {SECTION, .name = "a message shorter than the list", .run = short_message},
    {0},
};
