/* SPDX-License-Identifier: BSD-3-Clause
 *
 * post_cases.c - "Post": results of posts, refusals, and the ownership of memory until completion.
 * operation.c checks the consequences of 0, 1, and negative results at every post of the suite.
 */
#include "harness.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* Arguments of a post; each refusal changes one of them. */
struct arguments {
    const char *wrong;
    bmi_op_id_t *id;
    void *buffer;
    bmi_size_t size;
    bmi_size_t *actual;
    enum bmi_buffer_type type;
};

static int post_single(struct rank *rank, enum post_kind kind, const struct arguments *with)
{
    if (kind == POST_RECEIVE)
        return BMI_post_recv(with->id, rank->peer, with->buffer, with->size, with->actual,
                             with->type, 1, NULL, rank->context, NULL);
    if (kind == POST_SEND)
        return BMI_post_send(with->id, rank->peer, with->buffer, with->size, with->type, 1, NULL,
                             rank->context, NULL);
    return BMI_post_sendunexpected(with->id, rank->peer, with->buffer, with->size, with->type, 1,
                                   NULL, rank->context, NULL);
}

static void refused_single(struct rank *rank)
{
    char bytes[100];
    bmi_op_id_t id;
    bmi_size_t actual = 7;
    const struct arguments table[] = {
        {"no place for the id", NULL, bytes, 100, &actual, BMI_EXT_ALLOC},
        {"no buffer", &id, NULL, 100, &actual, BMI_EXT_ALLOC},
        {"negative size", &id, bytes, -1, &actual, BMI_EXT_ALLOC},
        {"smallest size", &id, bytes, INT64_MIN, &actual, BMI_EXT_ALLOC},
        {"buffer type 0", &id, bytes, 100, &actual, (enum bmi_buffer_type)0},
        {"buffer type 3", &id, bytes, 100, &actual, (enum bmi_buffer_type)3},
        {"no place for the actual size", &id, bytes, 100, NULL, BMI_EXT_ALLOC},
    };
    int without_actual = sizeof table / sizeof *table - 1;
    for (int kind = POST_SEND; kind <= POST_RECEIVE; kind++) {
        for (int i = 0; i < without_actual + (kind == POST_RECEIVE); i++) {
            id = -77;
            int status = post_single(rank, (enum post_kind)kind, &table[i]);
            if (status != -BMI_EINVAL || (table[i].id && id != 0) || actual != 7)
                rank_fail(rank, false, __FILE__, __LINE__, "%s: returned %d, id %lld, actual %d",
                          table[i].wrong, status, (long long)id, (int)actual);
        }
    }
    CHECK_EQUAL(rank, op_collect(rank, 0), 0);
    message_pass_self(rank);
}

struct list_arguments {
    const char *wrong;
    void *const *buffers;
    const bmi_size_t *sizes;
    int count;
    bmi_size_t total;
};

static int post_list(struct rank *rank, enum post_kind kind, const struct list_arguments *with,
                     bmi_op_id_t *id, bmi_size_t *actual)
{
    const void *const *sources = (const void *const *)with->buffers;
    if (kind == POST_RECEIVE)
        return BMI_post_recv_list(id, rank->peer, with->buffers, with->sizes, with->count,
                                  with->total, actual, BMI_EXT_ALLOC, 1, NULL, rank->context, NULL);
    if (kind == POST_SEND)
        return BMI_post_send_list(id, rank->peer, sources, with->sizes, with->count, with->total,
                                  BMI_EXT_ALLOC, 1, NULL, rank->context, NULL);
    return BMI_post_sendunexpected_list(id, rank->peer, sources, with->sizes, with->count,
                                        with->total, BMI_EXT_ALLOC, 1, NULL, rank->context, NULL);
}

static void refused_list(struct rank *rank)
{
    char bytes[100];
    void *buffers[] = {bytes, bytes + 50}, *holes[] = {bytes, NULL};
    const bmi_size_t sizes[] = {50, 50}, negative[] = {150, -50}, huge[] = {INT64_MAX, INT64_MAX};
    const struct list_arguments table[] = {
        {"no buffers", NULL, sizes, 2, 100},
        {"no sizes", buffers, NULL, 2, 100},
        {"count 0", buffers, sizes, 0, 0},
        {"count -1", buffers, sizes, -1, 100},
        {"smallest count", buffers, sizes, INT_MIN, 100},
        {"total 1 too large", buffers, sizes, 2, 101},
        {"total 1 too small", buffers, sizes, 2, 99},
        {"total of the first", buffers, sizes, 2, 50},
        {"total 0", buffers, sizes, 2, 0},
        {"total -1", buffers, sizes, 2, -1},
        {"a segment without memory", holes, sizes, 2, 100},
        {"a negative segment", buffers, negative, 2, 100},
        {"a sum that overflows", buffers, huge, 2, -2},
        {"a sum that is larger than int64", buffers, huge, 2, INT64_MAX},
    };
    bmi_op_id_t id;
    bmi_size_t actual = 7;
    for (int kind = POST_SEND; kind <= POST_RECEIVE; kind++) {
        for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
            id = -77;
            int status = post_list(rank, (enum post_kind)kind, &table[i], &id, &actual);
            if (status != -BMI_EINVAL || id != 0 || actual != 7)
                rank_fail(rank, false, __FILE__, __LINE__, "%s: returned %d, id %lld, actual %d",
                          table[i].wrong, status, (long long)id, (int)actual);
        }
        CHECK_STATUS(rank,
                     post_list(rank, (enum post_kind)kind,
                               &(struct list_arguments){NULL, buffers, sizes, 2, 100}, NULL,
                               &actual),
                     -BMI_EINVAL);
    }
    CHECK_STATUS(rank,
                 post_list(rank, POST_RECEIVE,
                           &(struct list_arguments){NULL, buffers, sizes, 2, 100}, &id, NULL),
                 -BMI_EINVAL);
    CHECK_EQUAL(rank, op_collect(rank, 0), 0);
    message_pass_self(rank);
}

/* Zero bytes, with and without memory, both kinds, by lists of nothing. */
static void zero_length(struct rank *rank)
{
    struct op ops[4];
    char bytes[8] = "unmoved";
    void *buffers[] = {bytes, NULL, bytes};
    bmi_size_t sizes[] = {0, 0, 0};
    struct list nothing = {.buffers = buffers, .sizes = sizes, .count = 3};
    if (rank->role == SENDER) {
        op_send(rank, &ops[0], bytes, 0, 1);
        op_send(rank, &ops[1], NULL, 0, 1);
        op_send_list(rank, &ops[2], &nothing, 1);
        op_send(rank, &ops[3], bytes, 0, 1);
        for (int i = 0; i < 4; i++)
            op_finish(rank, &ops[i], 0);
        return;
    }
    op_receive(rank, &ops[0], NULL, 0, 1);
    op_receive(rank, &ops[1], bytes, sizeof bytes, 1);
    op_receive(rank, &ops[2], bytes, 0, 1);
    op_receive_list(rank, &ops[3], &nothing, 1);
    for (int i = 0; i < 4; i++)
        op_finish(rank, &ops[i], 0);
    CHECK(rank, strcmp(bytes, "unmoved") == 0);
}

/* Every integer is a valid tag. */
static void all_tags(struct rank *rank)
{
    static const bmi_msg_tag_t tags[] = {0, 1, -1, INT32_MAX, INT32_MIN, 0x10000, -0x10000};
    enum { TAGS = sizeof tags / sizeof *tags };
    struct op ops[TAGS];
    int64_t values[TAGS];
    for (int i = 0; i < TAGS; i++) {
        int k = rank->role == SENDER ? i : TAGS - 1 - i;
        values[k] = rank->role == SENDER ? tags[k] : 0;
        if (rank->role == SENDER)
            op_send(rank, &ops[k], &values[k], sizeof values[k], tags[k]);
        else
            op_receive(rank, &ops[k], &values[k], sizeof values[k], tags[k]);
    }
    for (int i = 0; i < TAGS; i++) {
        op_finish(rank, &ops[i], sizeof values[i]);
        CHECK_EQUAL(rank, values[i], tags[i]);
    }
}

/* A send's completion is local: the buffer, and the arrays of a list, may be reused at once. The
 * arrays are not changed. */
static void lent_until_completion(struct rank *rank)
{
    static const bmi_size_t sizes[] = {100, 16384, 70000, 300000, 3 * MIB};
    for (int i = 0; i < 5; i++) {
        struct op op;
        struct list list = list_make(rank, 17, sizes[i], (uint64_t)i, 5);
        bmi_size_t sum = 0;
        if (rank->role == SENDER) {
            list_fill(&list, 1);
            op_send_list(rank, &op, &list, i);
        } else {
            op_receive_list(rank, &op, &list, i);
        }
        op_finish(rank, &op, sizes[i]);
        for (int k = 0; k < list.count; k++)
            sum += list.sizes[k];
        CHECK_EQUAL(rank, sum, sizes[i]);
        if (rank->role == SENDER) {
            memset(list.memory, 0xEE, (size_t)sizes[i]);
            memset(list.sizes, 0xEE, sizeof *list.sizes * (size_t)list.count);
            memset(list.buffers, 0xEE, sizeof *list.buffers * (size_t)list.count);
        }
        rank_barrier(rank);
        if (rank->role == RECEIVER)
            CHECK(rank, list_holds(&list, sizes[i], 1));
        rank_barrier(rank);
        list_free(&list);
    }
}

/* A message may be sent from read-only memory. */
static void read_only(struct rank *rank)
{
    static const bmi_size_t sizes[] = {1, 1000, 20000, 100000, MIB};
    for (int i = 0; i < 5; i++) {
        struct op op;
        size_t size = (size_t)sizes[i];
        void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        NEED(rank, memory != MAP_FAILED);
        if (rank->role == SENDER) {
            pattern_fill(memory, sizes[i], 2);
            NEED_EQUAL(rank, mprotect(memory, size, PROT_READ), 0);
            op_send(rank, &op, memory, sizes[i], i);
        } else {
            op_receive(rank, &op, memory, sizes[i], i);
        }
        op_finish(rank, &op, sizes[i]);
        CHECK(rank, pattern_holds(memory, sizes[i], 2));
        munmap(memory, size);
    }
}

/* Memory beside a receive's buffer is not changed. */
static void bytes_beyond(struct rank *rank)
{
    static const bmi_size_t sizes[] = {1, 1000, 20000, 100000, MIB};
    for (int i = 0; i < 5; i++) {
        struct op op;
        bmi_size_t size = sizes[i];
        unsigned char *memory = memory_take(rank, size + 64);
        memset(memory, 0x5A, (size_t)size + 64);
        if (rank->role == SENDER) {
            pattern_fill(memory, size, 2);
            op_send(rank, &op, memory, size, i);
            op_finish(rank, &op, size);
            CHECK(rank, pattern_holds(memory, size, 2));
        } else {
            op_receive(rank, &op, memory + 32, size, i);
            op_finish(rank, &op, size);
            CHECK(rank, pattern_holds(memory + 32, size, 2));
            for (int k = 0; k < 32; k++)
                CHECK(rank, memory[k] == 0x5A && memory[size + 32 + k] == 0x5A);
        }
        memory_give_back(memory);
    }
}

/* BMI_IMMEDIATE: immediate completions are counted as such; when off, there are none. */
static void immediate(struct rank *rank)
{
    struct bmi_context_statistics statistics = {.context = rank->context};
    unsigned seen = 0;
    for (int i = 0; i < 50; i++) {
        struct op op;
        char byte = 'i';
        if (rank->role == RECEIVER)
            rank_await_signal(rank, SENDER);
        if (rank->role == SENDER)
            op_send(rank, &op, &byte, 1, i);
        else
            op_receive(rank, &op, &byte, 1, i);
        seen += op.posted == 1;
        op_finish(rank, &op, 1);
        if (rank->role == SENDER)
            rank_signal(rank, RECEIVER);
    }
    NEED_STATUS(rank, BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &statistics), 0);
    CHECK(rank, rank->may_be_immediate || seen == 0);
    CHECK(rank, statistics.immediate >= seen);
    CHECK(rank, rank->may_be_immediate || statistics.immediate == 0);
}

/* The setting can also be changed while the library runs. */
static void immediate_setting(struct rank *rank)
{
    struct bmi_setting setting = {.name = "immediate"};
    NEED_STATUS(rank, BMI_set_info(0, BMI_SETTING, "immediate=off"), 0);
    NEED_STATUS(rank, BMI_get_info(0, BMI_SETTING, &setting), 0);
    CHECK(rank, strcmp(setting.value, "off") == 0 || strcmp(setting.value, "0") == 0);
    rank->may_be_immediate = false;
    for (int i = 0; i < 20; i++)
        message_pass_self(rank);
    NEED_STATUS(rank, BMI_set_info(0, BMI_SETTING, "immediate=on"), 0);
    rank->may_be_immediate = true;
    message_pass_self(rank);
}

#define SECTION .section = "Post"
const struct conformance_case post_cases[] = {
    {SECTION, .name = "wrong arguments are refused", .run = refused_single, .where = SOLO},
    {SECTION, .name = "wrong lists are refused", .run = refused_list, .where = SOLO},
    {SECTION, .name = "zero-length messages", .run = zero_length},
    {SECTION, .name = "every tag is legal", .run = all_tags},
    {SECTION, .name = "buffers and arrays are lent until completion", .run = lent_until_completion},
    {SECTION, .name = "nothing is written beside the buffer", .run = bytes_beyond},
    {SECTION, .name = "sends from memory that can't be written", .run = read_only},
    {SECTION, .name = "immediate completion is counted", .run = immediate},
    {SECTION, .name = "immediate completion is a setting", .run = immediate_setting, .where = SOLO},
    {0},
};
