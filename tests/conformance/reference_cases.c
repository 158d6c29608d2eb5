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
static void wait_until_stale(struct party *party, BMI_addr_t addr)
{
    int64_t deadline = now_ms() + 20000 * patience();
    while (BMI_addr_rev_lookup_unexpected(addr) != NULL) {
        NEED(party, now_ms() < deadline);
        op_collect(party, 20);
    }
}

/* ---- BMI_AUTO_REF_COUNT: role 0 is a client, role 1 counts ----------------------------------- */

static void greet_and_hear(struct party *party)
{
    struct op answer;
    char byte;
    op_receive(party, &answer, &byte, 1, ANSWER_TAG);
    party_greet(party);
    op_finish(party, &answer, 1);
}

static void answer_to(struct party *party, BMI_addr_t addr)
{
    struct op answer;
    op_post(party, &answer, POST_SEND, addr, "a", 1, ANSWER_TAG);
    NEED(party, answer.posted >= 0);
    op_finish(party, &answer, 1);
}

static void client_of_counter(struct party *party)
{
    party_hear_idle(party, 1, party->peer_url, sizeof party->peer_url);
    party_start_client(party);
    party->peer = party_look_up(party, party->peer_url);
    for (int i = 0; i < MESSAGES; i++)
        greet_and_hear(party);
    party_hear_go(party, 1);
    greet_and_hear(party);
    party_stop(party);
    party_tell_go(party, 1);
}

/* Each message is one reference; while one is held the address works; after the last one was
 * dropped, the peer may get a new handle at its next message; a dead peer without references is
 * forgotten. */
static void auto_counted(struct party *party)
{
    BMI_addr_t addr = 0, next;
    if (party->role == 0) {
        client_of_counter(party);
        return;
    }
    party_start_server(party, NULL, BMI_AUTO_REF_COUNT);
    party_tell(party, 0, party->listen, sizeof party->listen);
    for (int i = 0; i < MESSAGES; i++) {
        next = party_be_greeted(party);
        CHECK(party, addr == 0 || next == addr);
        addr = next;
        answer_to(party, addr);
    }
    for (int i = 0; i < MESSAGES; i++)
        CHECK_STATUS(party, reference_drop(addr), 0);
    CHECK_STATUS(party, reference_drop(addr), -BMI_EINVAL);
    party_tell_go(party, 0);
    addr = party_be_greeted(party);
    answer_to(party, addr);
    party_hear_go(party, 0);
    CHECK(party, BMI_addr_rev_lookup_unexpected(addr) != NULL);
    CHECK_STATUS(party, reference_drop(addr), 0);
    wait_until_stale(party, addr);
    CHECK_STATUS(party, reference_drop(addr), -BMI_EINVAL);
    party_stop(party);
}

/* Without the flag only the program counts. */
static void counted_by_hand(struct party *party)
{
    if (party->role == 0) {
        client_of_counter(party);
        return;
    }
    BMI_addr_t addr = 0;
    party_start_server(party, NULL, 0);
    party_tell(party, 0, party->listen, sizeof party->listen);
    for (int i = 0; i < MESSAGES; i++) {
        addr = party_be_greeted(party);
        answer_to(party, addr);
    }
    for (int i = 0; i < 5; i++)
        CHECK_STATUS(party, BMI_set_info(addr, BMI_INC_ADDR_REF, NULL), 0);
    for (int i = 0; i < 5; i++) {
        CHECK(party, BMI_addr_rev_lookup_unexpected(addr) != NULL);
        CHECK_STATUS(party, reference_drop(addr), 0);
    }
    CHECK_STATUS(party, reference_drop(addr), -BMI_EINVAL);
    party_tell_go(party, 0);
    addr = party_be_greeted(party);
    answer_to(party, addr);
    party_hear_go(party, 0);
    party_stop(party);
}

/* The look-up holds a looked-up address until it is dropped, independent of references. */
static void looked_up(struct party *party)
{
    char url[200];
    int holder;
    struct op op;
    refused_address(party, url, sizeof url, &holder);
    BMI_addr_t addr = party_look_up(party, url);
    CHECK_STATUS(party, reference_drop(addr), -BMI_EINVAL);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 10; i++)
            CHECK_STATUS(party, BMI_set_info(addr, BMI_INC_ADDR_REF, NULL), 0);
        for (int i = 0; i < 10; i++)
            CHECK_STATUS(party, reference_drop(addr), 0);
        CHECK_STATUS(party, reference_drop(addr), -BMI_EINVAL);
        const char *string = BMI_addr_rev_lookup(addr);
        CHECK(party, string != NULL && strcmp(string, url) == 0);
        CHECK(party, party_look_up(party, url) == addr);
        op_post(party, &op, POST_SEND, addr, "x", 1,
                1); /* no server listens, but the handle is valid */
        NEED(party, op.posted >= 0);
        op_wait(party, &op);
        CHECK(party, op.error < 0 && op.error != -BMI_EINVAL);
    }
    CHECK_STATUS(party, BMI_set_info(addr, BMI_DROP_ADDR, NULL), 0);
    CHECK(party, BMI_addr_rev_lookup(addr) == NULL);
}

static void dropped(struct party *party)
{
    char url[200];
    int holder, droppable = 0;
    struct op op;
    refused_address(party, url, sizeof url, &holder);
    BMI_addr_t addr = party_look_up(party, url);
    CHECK_STATUS(party, BMI_get_info(addr, BMI_DROP_ADDR_QUERY, &droppable), 0);
    CHECK(party, droppable != 0);
    CHECK_STATUS(party, BMI_set_info(addr, BMI_DROP_ADDR, NULL), 0);
    CHECK(party, BMI_addr_rev_lookup(addr) == NULL);
    op_post(party, &op, POST_SEND, addr, "x", 1, 1);
    CHECK_STATUS(party, op.posted, -BMI_EINVAL);
    CHECK_STATUS(party, BMI_set_info(addr, BMI_DROP_ADDR, NULL), -BMI_EINVAL);
    BMI_addr_t next = party_look_up(party, url);
    CHECK(party, next != addr);
    CHECK(party, BMI_addr_rev_lookup(addr) == NULL);
    CHECK(party, strcmp(BMI_addr_rev_lookup(next), url) == 0);
}

static void expect_dropped(struct party *party, BMI_addr_t addr)
{
    struct op op;
    CHECK_STATUS(party, BMI_set_info(addr, BMI_DROP_ADDR, NULL), 0);
    CHECK_STATUS(party, BMI_set_info(addr, BMI_DROP_ADDR, NULL), -BMI_EINVAL);
    CHECK(party, BMI_addr_rev_lookup(addr) == NULL);
    CHECK(party, BMI_addr_rev_lookup_unexpected(addr) == NULL);
    op_post(party, &op, POST_SEND, addr, "x", 1, 1);
    CHECK_STATUS(party, op.posted, -BMI_EINVAL);
}

enum { TIMES = 3, UNFETCHED_TAG = 77 };

/* Looks the server up, sends it a message, and drops it, several times; one more message waits
 * there. */
static void dropping_client(struct party *party)
{
    struct op last;
    party_hear_idle(party, 1, party->peer_url, sizeof party->peer_url);
    party_start_client(party);
    for (int i = 0; i < TIMES; i++) {
        BMI_addr_t before = party->peer;
        party->peer = party_look_up(party, party->peer_url);
        CHECK(party, party->peer != before);
        party_greet(party);
        party_hear_go(party, 1);
        if (i < TIMES - 1)
            expect_dropped(party, party->peer);
    }
    op_send_unexpected(party, &last, "last", 4, UNFETCHED_TAG);
    op_finish(party, &last, 4);
    party_hear_go(party, 1);
    party_stop(party);
}

/* A client that connected is dropped while its message waits to be fetched. */
static void dropping_server(struct party *party)
{
    struct BMI_unexpected_info info;
    BMI_addr_t addr = 0;
    int waiting = 0;
    party_start_server(party, NULL, 0);
    party_tell(party, 0, party->listen, sizeof party->listen);
    for (int i = 0; i < TIMES; i++) {
        BMI_addr_t before = addr;
        addr = party_be_greeted(party);
        CHECK(party, addr != before);
        party_tell_go(party, 0);
    }
    int64_t deadline = now_ms() + 20000 * patience();
    while (waiting == 0) {
        NEED(party, now_ms() < deadline);
        op_collect(party, 20);
        NEED_STATUS(party, BMI_get_info(addr, BMI_TCP_CHECK_UNEXPECTED, &waiting), 0);
    }
    expect_dropped(party, addr);
    unexpected_take(party, &info);
    CHECK_EQUAL(party, info.tag, UNFETCHED_TAG);
    CHECK(party, info.addr == addr && info.size == 4 && memcmp(info.buffer, "last", 4) == 0);
    unexpected_give_back(party, &info);
    party_tell_go(party, 0);
    party_stop(party);
}

static void dropped_connected(struct party *party)
{
    if (party->role == 0)
        dropping_client(party);
    else
        dropping_server(party);
}

/* ---- handles and ids that are none ----------------------------------------------------------- */

static void expect_stale(struct party *party, BMI_addr_t addr)
{
    struct op op;
    char bytes[10];
    void *buffers[] = {bytes};
    bmi_size_t sizes[] = {sizeof bytes};
    struct list list = {.buffers = buffers, .sizes = sizes, .count = 1, .total = sizeof bytes};
    struct bmi_statistics statistics;
    for (int kind = POST_SEND; kind <= POST_RECEIVE; kind++) {
        op_post(party, &op, (enum post_kind)kind, addr, bytes, sizeof bytes, 1);
        CHECK_STATUS(party, op.posted, -BMI_EINVAL);
        op_post_list(party, &op, (enum post_kind)kind, addr, &list, 1);
        CHECK_STATUS(party, op.posted, -BMI_EINVAL);
    }
    CHECK(party, BMI_memalloc(addr, 100, BMI_SEND) == NULL);
    CHECK(party, BMI_addr_rev_lookup(addr) == NULL);
    CHECK(party, BMI_addr_rev_lookup_unexpected(addr) == NULL);
    CHECK_STATUS(party, BMI_set_info(addr, BMI_INC_ADDR_REF, NULL), -BMI_EINVAL);
    CHECK_STATUS(party, BMI_set_info(addr, BMI_DEC_ADDR_REF, NULL), -BMI_EINVAL);
    CHECK_STATUS(party, BMI_set_info(addr, BMI_DROP_ADDR, NULL), -BMI_EINVAL);
    if (addr) {
        int number;
        CHECK_STATUS(party, BMI_get_info(addr, BMI_GET_STATISTICS, &statistics), -BMI_EINVAL);
        CHECK_STATUS(party, BMI_get_info(addr, BMI_GET_UNEXP_SIZE, &number), -BMI_EINVAL);
        CHECK_STATUS(party, BMI_get_info(addr, BMI_TCP_CHECK_UNEXPECTED, &number), -BMI_EINVAL);
    }
    CHECK_STATUS(party, BMI_query_addr_range(addr, "tcp://127.*", 0), -BMI_EINVAL);
}

static void stale_addresses(struct party *party)
{
    BMI_addr_t real = party->peer;
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
            expect_stale(party, none[i]);
    }
    message_pass_self(party);
}

static void expect_no_id(struct party *party, bmi_op_id_t id)
{
    int count = 7, index = 7;
    bmi_error_code_t error = 7;
    bmi_size_t actual = 7;
    void *user_ptr = &count;
    CHECK_STATUS(party, BMI_test(id, &count, &error, &actual, &user_ptr, 0, party->context),
                 -BMI_EINVAL);
    CHECK(party, error == 7 && actual == 7 && user_ptr == &count);
    CHECK_STATUS(party,
                 BMI_testsome(1, &id, &count, &index, &error, &actual, &user_ptr, 0,
                              party->context),
                 id == 0 ? 0 : -BMI_EINVAL);
    CHECK(party, error == 7 && actual == 7 && user_ptr == &count);
    CHECK_STATUS(party, BMI_cancel(id, party->context), -BMI_EINVAL);
}

static void stale_ids(struct party *party)
{
    struct op receive;
    char bytes[10];
    op_receive(party, &receive, bytes, sizeof bytes, 1);
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
        expect_no_id(party, none[i]);
    op_cancel(party, &receive, false);
}

/* After its report an id is invalid, also when its slot is used again. A cancel of it does nothing:
 * it has completed. */
static void reported_ids(struct party *party)
{
    bmi_op_id_t ids[100];
    struct op receive;
    char bytes[10];
    int count;
    bmi_error_code_t error;
    for (int i = 0; i < 100; i++) {
        op_receive(party, &receive, bytes, sizeof bytes, i);
        ids[i] = receive.id;
        for (int k = 0; k < i; k++)
            CHECK(party, ids[k] != ids[i]);
        if (i > 0) {
            CHECK_STATUS(party, BMI_test(ids[i - 1], &count, &error, NULL, NULL, 0, party->context),
                         -BMI_EINVAL);
            CHECK_STATUS(party, BMI_cancel(ids[i / 2], party->context), 0);
            CHECK_STATUS(party, BMI_cancel(ids[i - 1], party->context), 0);
            CHECK_EQUAL(party, op_collect(party, 0), 0);
        }
        op_cancel(party, &receive, false);
    }
}

static void stale_contexts(struct party *party)
{
    bmi_context_id closed, real = party->context;
    NEED_STATUS(party, BMI_open_context(&closed), 0);
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
        party->context = none[i];
        for (int kind = POST_SEND; kind <= POST_RECEIVE; kind++) {
            op_post(party, &op, (enum post_kind)kind, party->peer, bytes, sizeof bytes, 1);
            CHECK_STATUS(party, op.posted, -BMI_EINVAL);
        }
        CHECK_STATUS(party, BMI_testcontext(1, &id, &count, &error, NULL, NULL, 0, none[i]),
                     -BMI_EINVAL);
        CHECK_STATUS(party, BMI_cancel(12345, none[i]), -BMI_EINVAL);
        CHECK_STATUS(party, BMI_get_info(0, BMI_GET_CONTEXT_FD, &asked), -BMI_EINVAL);
        BMI_close_context(none[i]);
    }
    party->context = real;
    CHECK_STATUS(party, BMI_open_context(NULL), -BMI_EINVAL);
    message_pass_self(party);
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
    {SECTION, .name = "stale addresses are refused", .run = stale_addresses, .where = SOLO},
    {SECTION, .name = "op ids that are none are refused", .run = stale_ids, .where = SOLO},
    {SECTION, .name = "a reported op id is none any more", .run = reported_ids, .where = SOLO},
    {SECTION, .name = "stale contexts are refused", .run = stale_contexts, .where = SOLO},
    {0},
};
