/* SPDX-License-Identifier: BSD-3-Clause
 *
 * connect_cases.c - "Init and addresses" and "Failure": one connection for a pair of processes,
 * also when both connect at once; connections that end and are made again without an error.
 */
#include "harness.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SOON_MS = 30000 };

/* How often a process starts and ends in a case. */
static int rounds(const struct rank *rank)
{
    return rank->small ? 6 : 25;
}

/* Makes progress until this process has `links` connections. */
static void wait_for_links(struct rank *rank, uint64_t links)
{
    int64_t deadline = now_ms() + SOON_MS * patience();
    while (method_statistics(rank).links != links) {
        if (now_ms() > deadline)
            rank_fail(rank, true, __FILE__, __LINE__, "%lld connections, not %lld",
                      (long long)method_statistics(rank).links, (long long)links);
        op_collect(rank, 10);
    }
}

/* Writes a name of the host in place of its number. */
static void name_put(char *url)
{
    static const char number[] = "127.0.0.1", name[] = "localhost"; /* as long */
    char *place = strstr(url, number);
    if (place)
        memcpy(place, name, sizeof name - 1);
}

static void start_pair(struct rank *rank, bool by_name)
{
    int other = rank_other(rank);
    rank_start_server(rank, NULL, 0);
    rank_write(rank, other, rank->listen, sizeof rank->listen);
    rank_read_idle(rank, other, rank->peer_url, sizeof rank->peer_url);
    if (by_name)
        name_put(rank->peer_url);
    rank->peer = rank_look_up(rank, rank->peer_url);
}

/* Both post at the same moment, messages of each kind and size: each arrives once, in order, and
 * one connection is left. */
static void connect_at_once(struct rank *rank, bool by_name)
{
    static const bmi_size_t sizes[] = {16, 16, 300000, 16, 5000, 1000000};
    enum { COUNT = 6 };
    for (int round = 0; round < rounds(rank); round++) {
        struct op sends[COUNT], receives[COUNT], hello;
        struct BMI_unexpected_info info;
        char *from[COUNT], *to[COUNT];
        start_pair(rank, by_name);
        for (int i = 0; i < COUNT; i++) {
            from[i] = memory_take(rank, sizes[i]);
            to[i] = memory_take(rank, sizes[i]);
            pattern_fill(from[i], sizes[i], (uint64_t)(i + round + rank->role));
        }
        rank_barrier_idle(rank);
        op_send_unexpected(rank, &hello, "hello", 5, round);
        for (int i = 0; i < COUNT; i++) {
            op_send(rank, &sends[i], from[i], sizes[i], 1);
            op_receive(rank, &receives[i], to[i], sizes[i], 1);
        }
        for (int i = 0; i < COUNT; i++) {
            op_finish(rank, &sends[i], sizes[i]);
            op_finish(rank, &receives[i], sizes[i]);
            CHECK(rank, pattern_holds(to[i], sizes[i], (uint64_t)(i + round + rank_other(rank))));
            memory_give_back(from[i]);
            memory_give_back(to[i]);
        }
        op_finish(rank, &hello, 5);
        unexpected_take(rank, &info);
        CHECK_EQUAL(rank, info.tag, round);
        unexpected_give_back(rank, &info);
        wait_for_links(rank, 1);
        int count = 0;
        CHECK_EQUAL(rank, BMI_testunexpected(1, &count, &info, 0), 0);
        rank_barrier(rank);
        rank_stop(rank);
        rank_barrier_idle(rank);
    }
}

static void both_at_once(struct rank *rank)
{
    connect_at_once(rank, false);
}

static void by_names_at_once(struct rank *rank)
{
    connect_at_once(rank, true);
}

/* One process looks the other up and sends; the other one, which looked it up too, answers over the
 * same connection. */
static void answer_takes_the_same(struct rank *rank)
{
    rank_warm_up(rank);
    wait_for_links(rank, 1);
    struct bmi_method_statistics before = method_statistics(rank);
    for (int i = 0; i < 10; i++)
        rank_warm_up(rank);
    CHECK_EQUAL(rank, method_statistics(rank).links_opened, before.links_opened);
    CHECK_EQUAL(rank, method_statistics(rank).links_accepted, before.links_accepted);
    wait_for_links(rank, 1);
}

/* A look-up alone makes no connection. */
static void lazy(struct rank *rank)
{
    struct op op;
    char byte;
    op_collect(rank, 50);
    CHECK_EQUAL(rank, method_statistics(rank).links, 0);
    rank_barrier(rank);
    if (rank->role == SENDER) {
        op_send(rank, &op, "b", 1, 1);
    } else {
        op_receive(rank, &op, &byte, 1, 1);
    }
    op_finish(rank, &op, 1);
    rank_barrier(rank);
    wait_for_links(rank, 1);
}

/* Posting never waits for a connection, a name, or a peer that does not answer. */
static void post_never_blocks(struct rank *rank)
{
    char url[200], byte;
    int descriptor, port = plain_listener(rank, &descriptor);
    struct op ops[40];
    int64_t start = now_ms();
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", rank->method->scheme, port);
    for (int i = 0; i < 40; i++) {
        char name[100];
        snprintf(name, sizeof name, "%s://no-such-host-%d.invalid:1", rank->method->scheme, i);
        rank->peer = rank_look_up(rank, i % 2 ? name : url);
        op_send(rank, &ops[i], &byte, 1, 1);
    }
    CHECK(rank, now_ms() - start < SOON_MS * patience());
    for (int i = 0; i < 40; i++) {
        if (ops[i].posted == 0 && !ops[i].done)
            CHECK_STATUS(rank, BMI_cancel(ops[i].id, rank->context), 0);
    }
    for (int i = 0; i < 40; i++)
        op_wait(rank, &ops[i]);
    close(descriptor);
}

/* BMI_REAP_IDLE: idle connections end; the next message makes a new one. */
static void reaped(struct rank *rank)
{
    rank_warm_up(rank);
    wait_for_links(rank, 1);
    rank_barrier(rank);
    if (rank->role == SENDER) {
        int64_t deadline = now_ms() + SOON_MS * patience();
        const int seconds = 0;
        while (method_statistics(rank).links > 0) {
            NEED(rank, now_ms() < deadline);
            NEED_STATUS(rank, BMI_set_info(0, BMI_REAP_IDLE, (void *)(uintptr_t)&seconds), 0);
            op_collect(rank, 20);
        }
    } else {
        wait_for_links(rank, 0);
    }
    rank_barrier(rank);
    rank_warm_up(rank);
    wait_for_links(rank, 1);
}

/* One call suffices, even if the idle time of a connection is not known then. */
static void reaped_later(struct rank *rank)
{
    rank_warm_up(rank);
    wait_for_links(rank, 1);
    rank_barrier(rank);
    if (rank->role == SENDER) {
        int64_t start = now_ms();
        int seconds = 1;
        NEED_STATUS(rank, BMI_set_info(0, BMI_REAP_IDLE, &seconds), 0);
        while (method_statistics(rank).links > 0) {
            NEED(rank, now_ms() - start < 1000 + SOON_MS * patience());
            op_collect(rank, 20);
        }
        CHECK(rank, now_ms() - start >= 1000);
    } else {
        wait_for_links(rank, 0);
    }
    rank_barrier(rank);
}

/* Set for an address: affects only this one, is kept until it connects, and for its later
 * connections. */
static void buffers_of_an_address(struct rank *rank)
{
    char url[200];
    refused_address(rank, url, sizeof url);
    BMI_addr_t other = rank_look_up(rank, url);
    for (int option = BMI_TCP_BUFFER_SEND_SIZE; option <= BMI_TCP_BUFFER_RECEIVE_SIZE; option++) {
        int usual = -1, size = 50000 + option, negative = -1, got = 0;
        CHECK_STATUS(rank, BMI_get_info(0, option, &usual), 0);
        CHECK_STATUS(rank, BMI_set_info(rank->peer, option, &negative), -BMI_EINVAL);
        CHECK_STATUS(rank, BMI_set_info(rank->peer, option, &size), 0);
        CHECK_STATUS(rank, BMI_get_info(rank->peer, option, &got), 0);
        CHECK_EQUAL(rank, got, size);
        CHECK_STATUS(rank, BMI_get_info(other, option, &got), 0);
        CHECK_EQUAL(rank, got, usual);
        CHECK_STATUS(rank, BMI_get_info(0, option, &got), 0);
        CHECK_EQUAL(rank, got, usual);
    }
    for (int round = 0; round < 2; round++) {
        rank_warm_up(rank);
        for (int option = BMI_TCP_BUFFER_SEND_SIZE; option <= BMI_TCP_BUFFER_RECEIVE_SIZE;
             option++) {
            int got = 0;
            CHECK_STATUS(rank, BMI_get_info(rank->peer, option, &got), 0);
            CHECK_EQUAL(rank, got, 50000 + option);
        }
        rank_barrier(rank);
        CHECK_STATUS(rank, BMI_set_info(rank->peer, BMI_TCP_CLOSE_SOCKET, NULL), 0);
        wait_for_links(rank, 0);
        rank_barrier(rank);
    }
}

/* One server, many short-lived uses of it from one process. */
static void come_and_go(struct rank *rank)
{
    if (rank->role == SENDER) {
        char url[BMI_MAX_ADDR_LEN];
        rank_read_idle(rank, RECEIVER, url, sizeof url);
        for (int i = 0; i < 2 * rounds(rank); i++) {
            rank_start_client(rank);
            rank->peer = rank_look_up(rank, url);
            rank_hello_send(rank);
            rank_stop(rank);
        }
        return;
    }
    rank_start_server(rank, NULL, BMI_AUTO_REF_COUNT);
    rank_write(rank, SENDER, rank->listen, sizeof rank->listen);
    for (int i = 0; i < 2 * rounds(rank); i++) {
        BMI_addr_t addr = rank_hello_receive(rank);
        CHECK_STATUS(rank, BMI_set_info(addr, BMI_DEC_ADDR_REF, NULL), 0);
    }
    wait_for_links(rank, 0);
    rank_stop(rank);
}

/* The receiver takes nothing until all sends are posted; the sender ends when they are done. */
static void sent_before_the_end(struct rank *rank)
{
    enum { COUNT = 60, SIZE = 12000 };
    struct op ops[COUNT];
    char *memory = memory_take(rank, COUNT * SIZE);
    if (rank->role == SENDER) {
        rank_read_idle(rank, RECEIVER, rank->peer_url, sizeof rank->peer_url);
        rank_start_client(rank);
        rank->peer = rank_look_up(rank, rank->peer_url);
        rank_hello_send(rank);
        pattern_fill(memory, COUNT * SIZE, 9);
        for (int i = 0; i < COUNT; i++)
            op_send_unexpected(rank, &ops[i], memory + i * SIZE, SIZE, i);
        rank_signal(rank, RECEIVER);
        for (int i = 0; i < COUNT; i++)
            op_finish(rank, &ops[i], SIZE);
    } else {
        char byte;
        rank_start_server(rank, NULL, 0);
        rank_write(rank, SENDER, rank->listen, sizeof rank->listen);
        rank_hello_receive(rank);
        rank_read_idle(rank, SENDER, &byte, 1);
        for (int i = 0; i < COUNT; i++) {
            struct BMI_unexpected_info info;
            unexpected_take(rank, &info);
            NEED_STATUS(rank, info.error_code, 0);
            CHECK(rank, info.tag == i && info.size == SIZE &&
                            pattern_holds_from(info.buffer, SIZE, 9, (bmi_size_t)i * SIZE));
            unexpected_give_back(rank, &info);
        }
    }
    rank_stop(rank);
    memory_give_back(memory);
}

/* The peer's library answers, while its program waits for something else. */
static void pinged(struct rank *rank)
{
    struct op op;
    char byte = 'p';
    if (rank->role == SENDER) {
        double us = -1;
        NEED_STATUS(rank, bmi_ping(rank->peer, SOON_MS * patience(), &us), 0);
        CHECK(rank, us > 0 && us < SOON_MS * 1000.0 * patience());
        NEED_STATUS(rank, bmi_ping(rank->peer, 0, &us), -BMI_EINVAL);
        NEED_STATUS(rank, bmi_ping(rank->peer, SOON_MS, NULL), -BMI_EINVAL);
        NEED_STATUS(rank, bmi_ping(0, SOON_MS, &us), -BMI_EINVAL);
        op_send(rank, &op, &byte, 1, 1);
    } else {
        op_receive(rank, &op, &byte, 1, 1);
    }
    op_finish(rank, &op, 1);
}

#define SECTION .section = "Init and addresses"
const struct conformance_case connect_cases[] = {
    {SECTION, .name = "both sides connect at once: one connection a pair", .run = both_at_once,
     .where = CAST, .roles = 2, .seconds = 300},
    {SECTION, .name = "both sides connect at once, by names that neither goes by",
     .run = by_names_at_once, .where = CAST | PORTS, .roles = 2, .seconds = 300},
    {SECTION, .name = "both directions take one connection", .run = answer_takes_the_same,
     .where = PROCESSES},
    {SECTION, .name = "a look-up alone connects nobody", .run = lazy, .where = BOTH_LISTEN},
    {SECTION, .name = "bmi_ping is answered", .run = pinged},
    {SECTION, .name = "a post never blocks", .run = post_never_blocks, .where = SOLO | PORTS},
    {SECTION, .name = "socket buffer sizes of an address", .run = buffers_of_an_address,
     .where = BOTH_LISTEN | SOCKETS},
    {SECTION, .name = "BMI_REAP_IDLE", .run = reaped, .where = BOTH_LISTEN},
    {SECTION, .name = "BMI_REAP_IDLE, of later", .run = reaped_later, .where = BOTH_LISTEN},
    {SECTION, .name = "clients come and go", .run = come_and_go, .where = CAST, .roles = 2},
    {SECTION, .name = "messages that a process sent before its end arrive",
     .run = sent_before_the_end, .where = CAST, .roles = 2},
    {0},
};
