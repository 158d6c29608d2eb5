/* SPDX-License-Identifier: BSD-3-Clause
 *
 * size_cases.c - "Sizes" of single messages: around every threshold, and beyond 32 bits. Memory
 * stays small there: the same pages are mapped over and over, or listed over and over.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_TAG = 77 };

static void sizes_in_order(struct rank *rank, enum message_order order)
{
    bmi_size_t eager = method_info(rank).eager_max;
    bmi_size_t unexpected = unexpected_limit(rank);
    const bmi_size_t sizes[] = {
        0,
        1,
        2,
        7,
        8,
        9,
        24,
        39,
        40,
        41,
        63,
        64,
        65,
        1200,
        2047,
        2048,
        2049,
        4095,
        4096,
        4097,
        16383,
        16384,
        16385,
        65535,
        65536,
        65537,
        262143,
        262144,
        262145,
        MIB - 1,
        MIB,
        MIB + 1,
        eager - 1,
        eager,
        eager + 1,
        unexpected,
        unexpected + 1,
        5 * MIB + 3,
    };
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++)
        message_pass(rank, sizes[i], 100 + i, order);
}

static void sizes_together(struct rank *rank)
{
    sizes_in_order(rank, TOGETHER);
}

static void sizes_receive_first(struct rank *rank)
{
    sizes_in_order(rank, RECEIVE_FIRST);
}

static void sizes_send_first(struct rank *rank)
{
    sizes_in_order(rank, SEND_FIRST);
}

/* All sizes at once, received in the reverse order. */
static void sizes_at_once(struct rank *rank)
{
    enum { COUNT = 40 };
    struct op ops[COUNT];
    void *buffers[COUNT];
    for (int k = 0; k < COUNT; k++) {
        int i = rank->role == SENDER ? k : COUNT - 1 - k;
        bmi_size_t size = (bmi_size_t)1 << (i / 2);
        size += i % 2 ? 1 : -1;
        buffers[i] = memory_take(rank, size);
        if (rank->role == SENDER) {
            pattern_fill(buffers[i], size, (uint64_t)i);
            op_send(rank, &ops[i], buffers[i], size, i);
        } else {
            op_receive(rank, &ops[i], buffers[i], size, i);
        }
    }
    for (int i = 0; i < COUNT; i++) {
        op_finish(rank, &ops[i], ops[i].size);
        if (rank->role == RECEIVER)
            CHECK(rank, pattern_holds(buffers[i], ops[i].size, (uint64_t)i));
        memory_give_back(buffers[i]);
    }
}

/* `size` contiguous bytes of address space, of which every `period` bytes are the same memory. The
 * pages are populated in one call, if the system has one: a fault for each takes longer than the
 * messages. */
static char *repeated_pages(struct rank *rank, bmi_size_t size, bmi_size_t period)
{
    int file = memfd_create("conformance", MFD_CLOEXEC);
    NEED(rank, file >= 0 && ftruncate(file, period) == 0);
    char *memory =
        mmap(NULL, (size_t)size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(rank, memory != MAP_FAILED);
    for (bmi_size_t at = 0; at < size; at += period)
        NEED(rank, mmap(memory + at, (size_t)period, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                        file, 0) != MAP_FAILED);
    close(file);
#ifdef MADV_POPULATE_WRITE
    madvise(memory, (size_t)size, MADV_POPULATE_WRITE);
#endif
    return memory;
}

static void skip_where_slow(struct rank *rank)
{
    if (instrumented())
        rank_skip(rank, "gigabytes take too long, and shadow memory, under instrumentation");
}

/* More than 2 GiB in one buffer, and in a list whose segments are all the same memory. The message
 * repeats every MIB; the receiver's memory every 3 MIB, so its pages must hold the pattern three
 * times. */
static void two_gib_once(struct rank *rank)
{
    struct op op;
    skip_where_slow(rank);
    if (rank->role == SENDER) {
        char *memory = repeated_pages(rank, OVER_2_GIB, MIB);
        pattern_fill(memory, MIB, 5);
        op_send(rank, &op, memory, OVER_2_GIB, HUGE_TAG);
        op_finish(rank, &op, OVER_2_GIB);
        munmap(memory, (size_t)OVER_2_GIB);
        return;
    }
    char *memory = repeated_pages(rank, OVER_2_GIB, 3 * MIB);
    op_receive(rank, &op, memory, OVER_2_GIB, HUGE_TAG);
    op_finish(rank, &op, OVER_2_GIB);
    for (int i = 0; i < 3; i++)
        CHECK(rank, pattern_holds(memory + i * MIB, MIB, 5));
    munmap(memory, (size_t)OVER_2_GIB);
}

static void two_gib_list(struct rank *rank)
{
    struct op op;
    skip_where_slow(rank);
    char *memory = memory_take(rank, 3 * MIB);
    struct list list = rank->role == SENDER
                           ? list_repeat(rank, memory, MIB, (int)(OVER_2_GIB / MIB))
                           : list_repeat(rank, memory, 3 * MIB, (int)(OVER_2_GIB / (3 * MIB)));
    if (rank->role == SENDER) {
        pattern_fill(memory, MIB, 6);
        op_send_list(rank, &op, &list, HUGE_TAG);
    } else {
        op_receive_list(rank, &op, &list, HUGE_TAG);
    }
    op_finish(rank, &op, OVER_2_GIB);
    for (int i = 0; i < 3 && rank->role == RECEIVER; i++)
        CHECK(rank, pattern_holds(memory + i * MIB, MIB, 6));
    list_free(&list);
    memory_give_back(memory);
}

/* Messages and receives of 2^40 bytes are legal: a receive of that size takes a small message, and
 * a send of that size can be posted, seen by the other side, and cancelled. */
static void two_to_the_forty(struct rank *rank)
{
    enum { SEGMENT = 16 * MIB, SEGMENTS = 65536 };
    struct op op;
    char *memory = mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(rank, memory != MAP_FAILED);
    struct list list = list_repeat(rank, memory, SEGMENT, SEGMENTS);
    NEED_EQUAL(rank, list.total, (bmi_size_t)1 << 40);
    if (rank->role == SENDER) {
        message_pass(rank, 100000, 2, RECEIVE_FIRST);
        op_send_list(rank, &op, &list, 1);
        rank_barrier(rank);
        op_cancel(rank, &op, false);
        rank_barrier(rank);
    } else {
        char *bytes = memory;
        op_receive_list(rank, &op, &list, 2);
        rank_barrier(rank);
        op_finish(rank, &op, 100000);
        CHECK(rank, pattern_holds(bytes, 100000, 2));
        rank_barrier(rank);
        rank_barrier(rank);
    }
    message_pass(rank, 1000, 3, TOGETHER);
    list_free(&list);
    munmap(memory, SEGMENT);
}

static void largest_told(struct rank *rank)
{
    int size = 0;
    CHECK_STATUS(rank, BMI_get_info(rank->peer, BMI_CHECK_MAXSIZE, &size), 0);
    CHECK_EQUAL(rank, size, INT32_MAX);
    CHECK(rank, unexpected_limit(rank) >= 16384);
    CHECK_STATUS(rank, BMI_get_info(rank->peer, BMI_GET_UNEXP_SIZE, &size), 0);
    CHECK_EQUAL(rank, size, 16384);
}

#define SECTION .section = "Matching"
const struct conformance_case size_cases[] = {
    {SECTION, .name = "sizes around every threshold, both at once", .run = sizes_together},
    {SECTION, .name = "sizes around every threshold, receive first", .run = sizes_receive_first},
    {SECTION, .name = "sizes around every threshold, send first", .run = sizes_send_first},
    {SECTION, .name = "many sizes at once", .run = sizes_at_once},
    {SECTION, .name = "2 GiB in one buffer", .run = two_gib_once, .where = GIGABYTES,
     .seconds = 300},
    {SECTION, .name = "2 GiB in a list", .run = two_gib_list, .where = GIGABYTES, .seconds = 300},
    {SECTION, .name = "2^40 bytes can be posted", .run = two_to_the_forty},
    {SECTION, .name = "the largest sizes are reported", .run = largest_told, .where = SOLO},
    {0},
};
