/* SPDX-License-Identifier: BSD-3-Clause
 *
 * function_cases.c - "Functions": every prototype; memory; descriptions of methods, settings, and
 * options.
 */
#include "harness.h"

#include <stdio.h>
#include <string.h>

/* Argument orders and types: this table compiles, or the interface has changed. */
struct prototypes {
    int (*initialize)(const char *, const char *, int);
    int (*finalize)(void);
    int (*open_context)(bmi_context_id *);
    void (*close_context)(bmi_context_id);
    int (*send)(bmi_op_id_t *, BMI_addr_t, const void *, bmi_size_t, enum bmi_buffer_type,
                bmi_msg_tag_t, void *, bmi_context_id, bmi_hint);
    int (*sendunexpected)(bmi_op_id_t *, BMI_addr_t, const void *, bmi_size_t, enum bmi_buffer_type,
                          bmi_msg_tag_t, void *, bmi_context_id, bmi_hint);
    int (*recv)(bmi_op_id_t *, BMI_addr_t, void *, bmi_size_t, bmi_size_t *, enum bmi_buffer_type,
                bmi_msg_tag_t, void *, bmi_context_id, bmi_hint);
    int (*send_list)(bmi_op_id_t *, BMI_addr_t, const void *const *, const bmi_size_t *, int,
                     bmi_size_t, enum bmi_buffer_type, bmi_msg_tag_t, void *, bmi_context_id,
                     bmi_hint);
    int (*recv_list)(bmi_op_id_t *, BMI_addr_t, void *const *, const bmi_size_t *, int, bmi_size_t,
                     bmi_size_t *, enum bmi_buffer_type, bmi_msg_tag_t, void *, bmi_context_id,
                     bmi_hint);
    int (*sendunexpected_list)(bmi_op_id_t *, BMI_addr_t, const void *const *, const bmi_size_t *,
                               int, bmi_size_t, enum bmi_buffer_type, bmi_msg_tag_t, void *,
                               bmi_context_id, bmi_hint);
    int (*test)(bmi_op_id_t, int *, bmi_error_code_t *, bmi_size_t *, void **, int, bmi_context_id);
    int (*testsome)(int, bmi_op_id_t *, int *, int *, bmi_error_code_t *, bmi_size_t *, void **,
                    int, bmi_context_id);
    int (*testcontext)(int, bmi_op_id_t *, int *, bmi_error_code_t *, bmi_size_t *, void **, int,
                       bmi_context_id);
    int (*testunexpected)(int, int *, struct BMI_unexpected_info *, int);
    int (*cancel)(bmi_op_id_t, bmi_context_id);
    void *(*memalloc)(BMI_addr_t, bmi_size_t, enum bmi_op_type);
    int (*memfree)(BMI_addr_t, void *, bmi_size_t, enum bmi_op_type);
    int (*unexpected_free)(BMI_addr_t, void *);
    int (*set_info)(BMI_addr_t, int, void *);
    int (*get_info)(BMI_addr_t, int, void *);
    int (*addr_lookup)(BMI_addr_t *, const char *);
    const char *(*rev_lookup)(BMI_addr_t);
    const char *(*rev_lookup_unexpected)(BMI_addr_t);
    int (*query_addr_range)(BMI_addr_t, const char *, int);
};

static const struct prototypes prototypes = {
    .initialize = BMI_initialize,
    .finalize = BMI_finalize,
    .open_context = BMI_open_context,
    .close_context = BMI_close_context,
    .send = BMI_post_send,
    .sendunexpected = BMI_post_sendunexpected,
    .recv = BMI_post_recv,
    .send_list = BMI_post_send_list,
    .recv_list = BMI_post_recv_list,
    .sendunexpected_list = BMI_post_sendunexpected_list,
    .test = BMI_test,
    .testsome = BMI_testsome,
    .testcontext = BMI_testcontext,
    .testunexpected = BMI_testunexpected,
    .cancel = BMI_cancel,
    .memalloc = BMI_memalloc,
    .memfree = BMI_memfree,
    .unexpected_free = BMI_unexpected_free,
    .set_info = BMI_set_info,
    .get_info = BMI_get_info,
    .addr_lookup = BMI_addr_lookup,
    .rev_lookup = BMI_addr_rev_lookup,
    .rev_lookup_unexpected = BMI_addr_rev_lookup_unexpected,
    .query_addr_range = BMI_query_addr_range,
};

static void every_prototype(struct rank *rank)
{
    NEED_STATUS(rank, prototypes.initialize(NULL, NULL, 0), 0);
    CHECK_STATUS(rank, prototypes.finalize(), 0);
}

static void version(struct rank *rank)
{
    char expected[40];
    snprintf(expected, sizeof expected, "%d.%d.%d", BMI_VERSION_MAJOR, BMI_VERSION_MINOR,
             BMI_VERSION_PATCH);
    CHECK(rank, strcmp(bmi_version(), expected) == 0);
}

static void methods_built_in(struct rank *rank)
{
    struct bmi_method_info info = method_info(rank);
    int count = 0;
    CHECK(rank, strstr(info.schemes, rank->method->scheme) != NULL);
    CHECK(rank, info.description && info.description[0]);
    CHECK(rank, info.eager_max > 0);
    CHECK(rank, info.unexpected_max >= 16384);
    CHECK(rank, info.segments_max >= 1);
    while (bmi_method_next(count, &info) == 0)
        count++;
    CHECK_STATUS(rank, bmi_method_next(count, &info), -BMI_ENOENT);
    CHECK_STATUS(rank, bmi_method_next(-1, &info), -BMI_ENOENT);
}

static void settings_built_in(struct rank *rank)
{
    const char *name, *value, *help;
    int count = 0;
    bool immediate = false;
    for (; bmi_setting_next(count, &name, &value, &help) == 0; count++) {
        CHECK(rank, name && name[0] && value && help && help[0]);
        immediate |= strcmp(name, "immediate") == 0;
    }
    CHECK(rank, count > 0);
    CHECK(rank, immediate);
    CHECK_STATUS(rank, bmi_setting_next(count, &name, &value, &help), -BMI_ENOENT);
    CHECK_STATUS(rank, bmi_setting_next(-1, &name, &value, &help), -BMI_ENOENT);
}

static void memory(struct rank *rank)
{
    static const bmi_size_t sizes[] = {1, 4095, 4096, 65537, MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct op send, receive;
        char *from = BMI_memalloc(rank->peer, sizes[i], BMI_SEND);
        char *to = BMI_memalloc(rank->peer, sizes[i], BMI_RECV);
        NEED(rank, from && to);
        pattern_fill(from, sizes[i], i);
        receive = (struct op){.size = sizes[i]};
        receive.posted = BMI_post_recv(&receive.id, rank->peer, to, sizes[i], &receive.actual,
                                       BMI_PRE_ALLOC, 3, &receive, rank->context, NULL);
        NEED_STATUS(rank, receive.posted, 0);
        rank->pending++;
        send = (struct op){.size = sizes[i], .sends = true};
        send.posted = BMI_post_send(&send.id, rank->peer, from, sizes[i], BMI_PRE_ALLOC, 3, &send,
                                    rank->context, NULL);
        NEED(rank, send.posted == 0 || send.posted == 1);
        rank->pending += send.posted == 0;
        send.done = send.posted == 1;
        op_wait(rank, &send);
        op_finish(rank, &receive, sizes[i]);
        CHECK(rank, pattern_holds(to, sizes[i], i));
        CHECK_STATUS(rank, BMI_memfree(rank->peer, from, sizes[i], BMI_SEND), 0);
        CHECK_STATUS(rank, BMI_memfree(rank->peer, to, sizes[i], BMI_RECV), 0);
    }
}

static void memory_refused(struct rank *rank)
{
    CHECK(rank, BMI_memalloc(rank->peer, -1, BMI_SEND) == NULL);
    CHECK(rank, BMI_memalloc(rank->peer, INT64_MAX, BMI_RECV) == NULL);
    CHECK(rank, BMI_memalloc(0, 100, BMI_RECV) == NULL);
    CHECK(rank, BMI_memalloc(0x7777777700000001, 100, BMI_RECV) == NULL);
    CHECK_STATUS(rank, BMI_memfree(rank->peer, NULL, 100, BMI_SEND), -BMI_EINVAL);
}

/* Memory may be freed after its address has become stale. */
static void memory_outlives_address(struct rank *rank)
{
    char url[BMI_MAX_ADDR_LEN];
    refused_address(rank, url, sizeof url);
    BMI_addr_t addr = rank_look_up(rank, url);
    char *memory_of_addr = BMI_memalloc(addr, 1000, BMI_SEND);
    NEED(rank, memory_of_addr != NULL);
    memset(memory_of_addr, 1, 1000);
    CHECK_STATUS(rank, BMI_set_info(addr, BMI_DROP_ADDR, NULL), 0);
    CHECK_STATUS(rank, BMI_memfree(addr, memory_of_addr, 1000, BMI_SEND), 0);
}

const struct conformance_case function_cases[] = {
    {.section = "Functions", .name = "every prototype", .run = every_prototype, .where = RAW},
    {.section = "Functions", .name = "version", .run = version, .where = RAW},
    {.section = "Functions", .name = "methods built in", .run = methods_built_in, .where = RAW},
    {.section = "Functions", .name = "settings built in", .run = settings_built_in, .where = RAW},
    {.section = "Functions",
     .name = "memalloc, memfree, BMI_PRE_ALLOC",
     .run = memory,
     .where = SOLO},
    {.section = "Functions",
     .name = "memalloc and memfree refuse",
     .run = memory_refused,
     .where = SOLO},
    {.section = "Functions",
     .name = "memory outlives its address",
     .run = memory_outlives_address,
     .where = SOLO},
    {0},
};
