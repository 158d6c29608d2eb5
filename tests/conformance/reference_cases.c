/* SPDX-License-Identifier: BSD-3-Clause
 *
 * reference_cases.c - "Init and addresses": references to addresses, and invalid or stale handles
 * and ids.
 */
#include "harness.h"

#include <stdio.h>
#include <string.h>

enum { MESSAGES = 3, ANSWER_TAG = 9 };

static int reference_drop(BMI_addr_t addr)
{
    return BMI_set_info(addr, BMI_DEC_ADDR_REF, NULL);
}

/* Makes progress until the handle is stale; ends the case if it stays valid. */
static void wait_until_stale(struct rank *rank, BMI_addr_t addr)
{
    int64_t deadline = now_ms() + 20000 * patience();
    while (BMI_addr_rev_lookup_unexpected(addr) != NULL) {
        NEED(rank, now_ms() < deadline);
        op_collect(rank, 20);
    }
}

/* ---- BMI_AUTO_REF_COUNT: role 0 is a client, role 1 counts ----------------------------------- */

static void hello_and_answer(struct rank *rank)
{
    struct op answer;
    char byte;
    op_receive(rank, &answer, &byte, 1, ANSWER_TAG);
    rank_hello_send(rank);
    op_finish(rank, &answer, 1);
}

static void answer_to(struct rank *rank, BMI_addr_t addr)
{
    struct op answer;
    op_post(rank, &answer, POST_SEND, addr, "a", 1, ANSWER_TAG);
    NEED(rank, answer.posted >= 0);
    op_finish(rank, &answer, 1);
}

static void client_of_counter(struct rank *rank)
{
    rank_read_idle(rank, 1, rank->peer_url, sizeof rank->peer_url);
    rank_start_client(rank);
    rank->peer = rank_look_up(rank, rank->peer_url);
    for (int i = 0; i < MESSAGES; i++)
        hello_and_answer(rank);
    rank_await_signal(rank, 1);
    hello_and_answer(rank);
    rank_stop(rank);
    rank_signal(rank, 1);
}

/* Each message is one reference; while one is held the address works; after the last one was
 * dropped, the peer may get a new handle at its next message; a dead peer without references is
 * forgotten. */
static void auto_counted(struct rank *rank)
{
    BMI_addr_t addr = 0, next;
    if (rank->role == 0) {
        client_of_counter(rank);
        return;
    }
    rank_start_server(rank, NULL, BMI_AUTO_REF_COUNT);
    rank_write(rank, 0, rank->listen, sizeof rank->listen);
    for (int i = 0; i < MESSAGES; i++) {
        next = rank_hello_receive(rank);
        CHECK(rank, addr == 0 || next == addr);
        addr = next;
        answer_to(rank, addr);
    }
    for (int i = 0; i < MESSAGES; i++)
        CHECK_STATUS(rank, reference_drop(addr), 0);
    CHECK_STATUS(rank, reference_drop(addr), -BMI_EINVAL);
    rank_signal(rank, 0);
    addr = rank_hello_receive(rank);
    answer_to(rank, addr);
    rank_await_signal(rank, 0);
    CHECK(rank, BMI_addr_rev_lookup_unexpected(addr) != NULL);
    CHECK_STATUS(rank, reference_drop(addr), 0);
    wait_until_stale(rank, addr);
    CHECK_STATUS(rank, reference_drop(addr), -BMI_EINVAL);
    rank_stop(rank);
}

/* Without the flag only the program counts. */
static void counted_by_hand(struct rank *rank)
{
    if (rank->role == 0) {
        client_of_counter(rank);
        return;
    }
    BMI_addr_t addr = 0;
    rank_start_server(rank, NULL, 0);
    rank_write(rank, 0, rank->listen, sizeof rank->listen);
    for (int i = 0; i < MESSAGES; i++) {
        addr = rank_hello_receive(rank);
        answer_to(rank, addr);
    }
    for (int i = 0; i < 5; i++)
        CHECK_STATUS(rank, BMI_set_info(addr, BMI_INC_ADDR_REF, NULL), 0);
    for (int i = 0; i < 5; i++) {
        CHECK(rank, BMI_addr_rev_lookup_unexpected(addr) != NULL);
        CHECK_STATUS(rank, reference_drop(addr), 0);
    }
    CHECK_STATUS(rank, reference_drop(addr), -BMI_EINVAL);
    rank_signal(rank, 0);
    addr = rank_hello_receive(rank);
    answer_to(rank, addr);
    rank_await_signal(rank, 0);
    rank_stop(rank);
}

/* The look-up holds a looked-up address until it is dropped, independent of references. */
static void looked_up(struct rank *rank)
{
    char url[200];
    struct op op;
    refused_address(rank, url, sizeof url);
    BMI_addr_t addr = rank_look_up(rank, url);
    CHECK_STATUS(rank, reference_drop(addr), -BMI_EINVAL);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 10; i++)
            CHECK_STATUS(rank, BMI_set_info(addr, BMI_INC_ADDR_REF, NULL), 0);
        for (int i = 0; i < 10; i++)
            CHECK_STATUS(rank, reference_drop(addr), 0);
        CHECK_STATUS(rank, reference_drop(addr), -BMI_EINVAL);
        const char *string = BMI_addr_rev_lookup(addr);
        CHECK(rank, string != NULL && strcmp(string, url) == 0);
        CHECK(rank, rank_look_up(rank, url) == addr);
        op_post(rank, &op, POST_SEND, addr, "x", 1,
                1); /* no server listens, but the handle is valid */
        NEED(rank, op.posted >= 0);
        op_wait(rank, &op);
        CHECK(rank, op.error < 0 && op.error != -BMI_EINVAL);
    }
    CHECK_STATUS(rank, BMI_set_info(addr, BMI_DROP_ADDR, NULL), 0);
    CHECK(rank, BMI_addr_rev_lookup(addr) == NULL);
}

static void dropped(struct rank *rank)
{
    char url[200];
    int droppable = 0;
    struct op op;
    refused_address(rank, url, sizeof url);
    BMI_addr_t addr = rank_look_up(rank, url);
    CHECK_STATUS(rank, BMI_get_info(addr, BMI_DROP_ADDR_QUERY, &droppable), 0);
    CHECK(rank, droppable != 0);
    CHECK_STATUS(rank, BMI_set_info(addr, BMI_DROP_ADDR, NULL), 0);
    CHECK(rank, BMI_addr_rev_lookup(addr) == NULL);
    op_post(rank, &op, POST_SEND, addr, "x", 1, 1);
    CHECK_STATUS(rank, op.posted, -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_set_info(addr, BMI_DROP_ADDR, NULL), -BMI_EINVAL);
    BMI_addr_t next = rank_look_up(rank, url);
    CHECK(rank, next != addr);
    CHECK(rank, BMI_addr_rev_lookup(addr) == NULL);
    CHECK(rank, strcmp(BMI_addr_rev_lookup(next), url) == 0);
}

static void expect_dropped(struct rank *rank, BMI_addr_t addr)
{
    struct op op;
    CHECK_STATUS(rank, BMI_set_info(addr, BMI_DROP_ADDR, NULL), 0);
    CHECK_STATUS(rank, BMI_set_info(addr, BMI_DROP_ADDR, NULL), -BMI_EINVAL);
    CHECK(rank, BMI_addr_rev_lookup(addr) == NULL);
    CHECK(rank, BMI_addr_rev_lookup_unexpected(addr) == NULL);
    op_post(rank, &op, POST_SEND, addr, "x", 1, 1);
    CHECK_STATUS(rank, op.posted, -BMI_EINVAL);
}

enum { TIMES = 3, UNFETCHED_TAG = 77 };

/* Looks the server up, sends it a message, and drops it, several times; one more message waits
 * there. */
static void dropping_client(struct rank *rank)
{
    struct op last;
    rank_read_idle(rank, 1, rank->peer_url, sizeof rank->peer_url);
    rank_start_client(rank);
    for (int i = 0; i < TIMES; i++) {
        BMI_addr_t before = rank->peer;
        rank->peer = rank_look_up(rank, rank->peer_url);
        CHECK(rank, rank->peer != before);
        rank_hello_send(rank);
        rank_await_signal(rank, 1);
        if (i < TIMES - 1)
            expect_dropped(rank, rank->peer);
    }
    op_send_unexpected(rank, &last, "last", 4, UNFETCHED_TAG);
    op_finish(rank, &last, 4);
    rank_await_signal(rank, 1);
    rank_stop(rank);
}

/* A client that connected is dropped while its message waits to be fetched. */
static void dropping_server(struct rank *rank)
{
    struct BMI_unexpected_info info;
    BMI_addr_t addr = 0;
    int waiting = 0;
    rank_start_server(rank, NULL, 0);
    rank_write(rank, 0, rank->listen, sizeof rank->listen);
    for (int i = 0; i < TIMES; i++) {
        BMI_addr_t before = addr;
        addr = rank_hello_receive(rank);
        CHECK(rank, addr != before);
        rank_signal(rank, 0);
    }
    int64_t deadline = now_ms() + 20000 * patience();
    while (waiting == 0) {
        NEED(rank, now_ms() < deadline);
        op_collect(rank, 20);
        NEED_STATUS(rank, BMI_get_info(addr, BMI_TCP_CHECK_UNEXPECTED, &waiting), 0);
    }
    expect_dropped(rank, addr);
    unexpected_take(rank, &info);
    CHECK_EQUAL(rank, info.tag, UNFETCHED_TAG);
    CHECK(rank, info.addr == addr && info.size == 4 && memcmp(info.buffer, "last", 4) == 0);
    unexpected_give_back(rank, &info);
    rank_signal(rank, 0);
    rank_stop(rank);
}

static void dropped_connected(struct rank *rank)
{
    if (rank->role == 0)
        dropping_client(rank);
    else
        dropping_server(rank);
}

/* ---- handles and ids that are none ----------------------------------------------------------- */

static void expect_stale(struct rank *rank, BMI_addr_t addr)
{
    struct op op;
    char bytes[10];
    void *buffers[] = {bytes};
    bmi_size_t sizes[] = {sizeof bytes};
    struct list list = {.buffers = buffers, .sizes = sizes, .count = 1, .total = sizeof bytes};
    struct bmi_statistics statistics;
    for (int kind = POST_SEND; kind <= POST_RECEIVE; kind++) {
        op_post(rank, &op, (enum post_kind)kind, addr, bytes, sizeof bytes, 1);
        CHECK_STATUS(rank, op.posted, -BMI_EINVAL);
        op_post_list(rank, &op, (enum post_kind)kind, addr, &list, 1);
        CHECK_STATUS(rank, op.posted, -BMI_EINVAL);
    }
    CHECK(rank, BMI_memalloc(addr, 100, BMI_SEND) == NULL);
    CHECK(rank, BMI_addr_rev_lookup(addr) == NULL);
    CHECK(rank, BMI_addr_rev_lookup_unexpected(addr) == NULL);
    CHECK_STATUS(rank, BMI_set_info(addr, BMI_INC_ADDR_REF, NULL), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_set_info(addr, BMI_DEC_ADDR_REF, NULL), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_set_info(addr, BMI_DROP_ADDR, NULL), -BMI_EINVAL);
    if (addr) {
        int number;
        CHECK_STATUS(rank, BMI_get_info(addr, BMI_GET_STATISTICS, &statistics), -BMI_EINVAL);
        CHECK_STATUS(rank, BMI_get_info(addr, BMI_GET_UNEXP_SIZE, &number), -BMI_EINVAL);
        CHECK_STATUS(rank, BMI_get_info(addr, BMI_TCP_CHECK_UNEXPECTED, &number), -BMI_EINVAL);
    }
    CHECK_STATUS(rank, BMI_query_addr_range(addr, "tcp://127.*", 0), -BMI_EINVAL);
}

static void stale_addresses(struct rank *rank)
{
    BMI_addr_t real = rank->peer;
    const BMI_addr_t none[] = {0,
                               1,
                               -1,
                               INT64_MAX,
                               INT64_MIN,
                               -real,
                               ~real,
                               real ^ (BMI_addr_t)1 << 32,
                               real ^ (BMI_addr_t)1 << 62,
                               real ^ 1,
                               real ^ 0x10000,
                               real + ((BMI_addr_t)1 << 33),
                               (BMI_addr_t)0x7777777777777777};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        if (none[i] != real)
            expect_stale(rank, none[i]);
    }
    message_pass_self(rank);
}

static void expect_no_id(struct rank *rank, bmi_op_id_t id)
{
    int count = 7, index = 7;
    bmi_error_code_t error = 7;
    bmi_size_t actual = 7;
    void *user_ptr = &count;
    CHECK_STATUS(rank, BMI_test(id, &count, &error, &actual, &user_ptr, 0, rank->context),
                 -BMI_EINVAL);
    CHECK(rank, error == 7 && actual == 7 && user_ptr == &count);
    CHECK_STATUS(rank,
                 BMI_testsome(1, &id, &count, &index, &error, &actual, &user_ptr, 0, rank->context),
                 id == 0 ? 0 : -BMI_EINVAL);
    CHECK(rank, error == 7 && actual == 7 && user_ptr == &count);
    CHECK_STATUS(rank, BMI_cancel(id, rank->context), -BMI_EINVAL);
}

static void stale_ids(struct rank *rank)
{
    struct op receive;
    char bytes[10];
    op_receive(rank, &receive, bytes, sizeof bytes, 1);
    bmi_op_id_t real = receive.id;
    const bmi_op_id_t none[] = {0,
                                -1,
                                INT64_MAX,
                                INT64_MIN,
                                -real,
                                ~real,
                                real ^ (bmi_op_id_t)1 << 62,
                                real + ((bmi_op_id_t)1 << 32),
                                real + ((bmi_op_id_t)1 << 33),
                                12345};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        expect_no_id(rank, none[i]);
    op_cancel(rank, &receive, false);
}

/* After its report an id is invalid, also when its slot is used again. A cancel of it does nothing:
 * it has completed. */
static void reported_ids(struct rank *rank)
{
    bmi_op_id_t ids[100];
    struct op receive;
    char bytes[10];
    int count;
    bmi_error_code_t error;
    for (int i = 0; i < 100; i++) {
        op_receive(rank, &receive, bytes, sizeof bytes, i);
        ids[i] = receive.id;
        for (int k = 0; k < i; k++)
            CHECK(rank, ids[k] != ids[i]);
        if (i > 0) {
            CHECK_STATUS(rank, BMI_test(ids[i - 1], &count, &error, NULL, NULL, 0, rank->context),
                         -BMI_EINVAL);
            CHECK_STATUS(rank, BMI_cancel(ids[i / 2], rank->context), 0);
            CHECK_STATUS(rank, BMI_cancel(ids[i - 1], rank->context), 0);
            CHECK_EQUAL(rank, op_collect(rank, 0), 0);
        }
        op_cancel(rank, &receive, false);
    }
}

static void stale_contexts(struct rank *rank)
{
    bmi_context_id closed, real = rank->context;
    NEED_STATUS(rank, BMI_open_context(&closed), 0);
    BMI_close_context(closed);
    const bmi_context_id none[] = {0,         -1,        closed,
                                   INT64_MAX, INT64_MIN, -real,
                                   ~real,     100000,    real ^ (bmi_context_id)1 << 40};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        struct op op;
        bmi_op_id_t id;
        int count;
        bmi_error_code_t error;
        char bytes[10];
        struct bmi_context_fd asked = {.context = none[i]};
        if (none[i] == real)
            continue;
        rank->context = none[i];
        for (int kind = POST_SEND; kind <= POST_RECEIVE; kind++) {
            op_post(rank, &op, (enum post_kind)kind, rank->peer, bytes, sizeof bytes, 1);
            CHECK_STATUS(rank, op.posted, -BMI_EINVAL);
        }
        CHECK_STATUS(rank, BMI_testcontext(1, &id, &count, &error, NULL, NULL, 0, none[i]),
                     -BMI_EINVAL);
        CHECK_STATUS(rank, BMI_cancel(12345, none[i]), -BMI_EINVAL);
        CHECK_STATUS(rank, BMI_get_info(0, BMI_GET_CONTEXT_FD, &asked), -BMI_EINVAL);
        BMI_close_context(none[i]);
    }
    rank->context = real;
    CHECK_STATUS(rank, BMI_open_context(NULL), -BMI_EINVAL);
    message_pass_self(rank);
}

#define SECTION .section = "Init and addresses"
const struct conformance_case reference_cases[] = {
    {SECTION, .name = "BMI_AUTO_REF_COUNT counts each unexpected message", .run = auto_counted,
     .where = CAST, .roles = 2},
    {SECTION, .name = "references counted by hand", .run = counted_by_hand, .where = CAST,
     .roles = 2},
    {SECTION, .name = "references of a looked-up address", .run = looked_up, .where = SOLO},
    {SECTION, .name = "BMI_DROP_ADDR makes a handle stale", .run = dropped, .where = SOLO},
    {SECTION, .name = "BMI_DROP_ADDR of a connected address", .run = dropped_connected,
     .where = CAST, .roles = 2},
    {SECTION, .name = "stale addresses are refused", .run = stale_addresses,
     .where = SOLO | OF_PROCESS},
    {SECTION, .name = "op ids that are none are refused", .run = stale_ids, .where = SOLO},
    {SECTION, .name = "a reported op id is none any more", .run = reported_ids, .where = SOLO},
    {SECTION, .name = "stale contexts are refused", .run = stale_contexts, .where = SOLO},
    {0},
};
