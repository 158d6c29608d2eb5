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
static int rounds(const struct party *party)
{
    return party->small ? 6 : 25;
}

/* Makes progress until this process has `links` connections. */
static void wait_for_links(struct party *party, uint64_t links)
{
    int64_t deadline = now_ms() + SOON_MS * patience();
    while (method_statistics(party).links != links) {
        if (now_ms() > deadline)
            party_fail(party, true, __FILE__, __LINE__, "%lld connections, not %lld",
                       (long long)method_statistics(party).links, (long long)links);
        op_collect(party, 10);
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

static void start_pair(struct party *party, bool by_name)
{
    int other = party_other(party);
    party_start_server(party, NULL, 0);
    party_tell(party, other, party->listen, sizeof party->listen);
    party_hear_idle(party, other, party->peer_url, sizeof party->peer_url);
    if (by_name)
        name_put(party->peer_url);
    party->peer = party_look_up(party, party->peer_url);
}

/* Both post at the same moment, messages of each kind and size: each arrives once, in order, and
 * one connection is left. */
static void connect_at_once(struct party *party, bool by_name)
{
    static const bmi_size_t sizes[] = {16, 16, 300000, 16, 5000, 1000000};
    enum { COUNT = 6 };
    for (int round = 0; round < rounds(party); round++) {
        struct op sends[COUNT], receives[COUNT], hello;
        struct BMI_unexpected_info info;
        char *from[COUNT], *to[COUNT];
        start_pair(party, by_name);
        for (int i = 0; i < COUNT; i++) {
            from[i] = memory_take(party, sizes[i]);
            to[i] = memory_take(party, sizes[i]);
            pattern_fill(from[i], sizes[i], (uint64_t)(i + round + party->role));
        }
        party_meet_idle(party);
        op_send_unexpected(party, &hello, "hello", 5, round);
        for (int i = 0; i < COUNT; i++) {
            op_send(party, &sends[i], from[i], sizes[i], 1);
            op_receive(party, &receives[i], to[i], sizes[i], 1);
        }
        for (int i = 0; i < COUNT; i++) {
            op_finish(party, &sends[i], sizes[i]);
            op_finish(party, &receives[i], sizes[i]);
            CHECK(party,
                  pattern_holds(to[i], sizes[i], (uint64_t)(i + round + party_other(party))));
            memory_give_back(from[i]);
            memory_give_back(to[i]);
        }
        op_finish(party, &hello, 5);
        unexpected_take(party, &info);
        CHECK_EQUAL(party, info.tag, round);
        unexpected_give_back(party, &info);
        wait_for_links(party, 1);
        int count = 0;
        CHECK_EQUAL(party, BMI_testunexpected(1, &count, &info, 0), 0);
        party_meet(party);
        party_stop(party);
        party_meet_idle(party);
    }
}

static void both_at_once(struct party *party)
{
    connect_at_once(party, false);
}

static void by_names_at_once(struct party *party)
{
    connect_at_once(party, true);
}

/* One process looks the other up and sends; the other one, which looked it up too, answers over the
 * same connection. */
static void answer_takes_the_same(struct party *party)
{
    party_warm_up(party);
    wait_for_links(party, 1);
    struct bmi_method_statistics before = method_statistics(party);
    for (int i = 0; i < 10; i++)
        party_warm_up(party);
    CHECK_EQUAL(party, method_statistics(party).links_opened, before.links_opened);
    CHECK_EQUAL(party, method_statistics(party).links_accepted, before.links_accepted);
    wait_for_links(party, 1);
}

/* A look-up alone makes no connection. */
static void lazy(struct party *party)
{
    struct op op;
    char byte;
    op_collect(party, 50);
    CHECK_EQUAL(party, method_statistics(party).links, 0);
    party_meet(party);
    if (party->role == SENDER) {
        op_send(party, &op, "b", 1, 1);
    } else {
        op_receive(party, &op, &byte, 1, 1);
    }
    op_finish(party, &op, 1);
    party_meet(party);
    wait_for_links(party, 1);
}

/* Posting never waits for a connection, a name, or a peer that does not answer. */
static void post_never_blocks(struct party *party)
{
    char url[200], byte;
    int descriptor, port = plain_listener(party, &descriptor);
    struct op ops[40];
    int64_t start = now_ms();
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", party->method->scheme, port);
    for (int i = 0; i < 40; i++) {
        char name[100];
        snprintf(name, sizeof name, "%s://no-such-host-%d.invalid:1", party->method->scheme, i);
        party->peer = party_look_up(party, i % 2 ? name : url);
        op_send(party, &ops[i], &byte, 1, 1);
    }
    CHECK(party, now_ms() - start < SOON_MS * patience());
    for (int i = 0; i < 40; i++) {
        if (ops[i].posted == 0 && !ops[i].done)
            CHECK_STATUS(party, BMI_cancel(ops[i].id, party->context), 0);
    }
    for (int i = 0; i < 40; i++)
        op_wait(party, &ops[i]);
    close(descriptor);
}

/* BMI_REAP_IDLE: idle connections end; the next message makes a new one. */
static void reaped(struct party *party)
{
    party_warm_up(party);
    wait_for_links(party, 1);
    party_meet(party);
    if (party->role == SENDER) {
        int64_t deadline = now_ms() + SOON_MS * patience();
        const int seconds = 0;
        while (method_statistics(party).links > 0) {
            NEED(party, now_ms() < deadline);
            NEED_STATUS(party, BMI_set_info(0, BMI_REAP_IDLE, (void *)(uintptr_t)&seconds), 0);
            op_collect(party, 20);
        }
    } else {
        wait_for_links(party, 0);
    }
    party_meet(party);
    party_warm_up(party);
    wait_for_links(party, 1);
}

/* One call suffices, even if the idle time of a connection is not known then. */
static void reaped_later(struct party *party)
{
    party_warm_up(party);
    wait_for_links(party, 1);
    party_meet(party);
    if (party->role == SENDER) {
        int64_t start = now_ms();
        int seconds = 1;
        NEED_STATUS(party, BMI_set_info(0, BMI_REAP_IDLE, &seconds), 0);
        while (method_statistics(party).links > 0) {
            NEED(party, now_ms() - start < 1000 + SOON_MS * patience());
            op_collect(party, 20);
        }
        CHECK(party, now_ms() - start >= 1000);
    } else {
        wait_for_links(party, 0);
    }
    party_meet(party);
}

/* Set for an address: affects only this one, is kept until it connects, and for its later
 * connections. */
static void buffers_of_an_address(struct party *party)
{
    char url[200];
    int holder;
    refused_address(party, url, sizeof url, &holder);
    BMI_addr_t other = party_look_up(party, url);
    for (int option = BMI_TCP_BUFFER_SEND_SIZE; option <= BMI_TCP_BUFFER_RECEIVE_SIZE; option++) {
        int usual = -1, size = 50000 + option, negative = -1, got = 0;
        CHECK_STATUS(party, BMI_get_info(0, option, &usual), 0);
        CHECK_STATUS(party, BMI_set_info(party->peer, option, &negative), -BMI_EINVAL);
        CHECK_STATUS(party, BMI_set_info(party->peer, option, &size), 0);
        CHECK_STATUS(party, BMI_get_info(party->peer, option, &got), 0);
        CHECK_EQUAL(party, got, size);
        CHECK_STATUS(party, BMI_get_info(other, option, &got), 0);
        CHECK_EQUAL(party, got, usual);
        CHECK_STATUS(party, BMI_get_info(0, option, &got), 0);
        CHECK_EQUAL(party, got, usual);
    }
    for (int round = 0; round < 2; round++) {
        party_warm_up(party);
        for (int option = BMI_TCP_BUFFER_SEND_SIZE; option <= BMI_TCP_BUFFER_RECEIVE_SIZE;
             option++) {
            int got = 0;
            CHECK_STATUS(party, BMI_get_info(party->peer, option, &got), 0);
            CHECK_EQUAL(party, got, 50000 + option);
        }
        party_meet(party);
        CHECK_STATUS(party, BMI_set_info(party->peer, BMI_TCP_CLOSE_SOCKET, NULL), 0);
        wait_for_links(party, 0);
        party_meet(party);
    }
}

/* One server, many short-lived uses of it from one process. */
static void come_and_go(struct party *party)
{
    if (party->role == SENDER) {
        char url[BMI_MAX_ADDR_LEN];
        party_hear_idle(party, RECEIVER, url, sizeof url);
        for (int i = 0; i < 2 * rounds(party); i++) {
            party_start_client(party);
            party->peer = party_look_up(party, url);
            party_greet(party);
            party_stop(party);
        }
        return;
    }
    party_start_server(party, NULL, BMI_AUTO_REF_COUNT);
    party_tell(party, SENDER, party->listen, sizeof party->listen);
    for (int i = 0; i < 2 * rounds(party); i++) {
        BMI_addr_t addr = party_be_greeted(party);
        CHECK_STATUS(party, BMI_set_info(addr, BMI_DEC_ADDR_REF, NULL), 0);
    }
    wait_for_links(party, 0);
    party_stop(party);
}

/* The peer's library answers, while its program waits for something else. */
static void pinged(struct party *party)
{
    struct op op;
    char byte = 'p';
    if (party->role == SENDER) {
        double us = -1;
        NEED_STATUS(party, bmi_ping(party->peer, SOON_MS * patience(), &us), 0);
        CHECK(party, us > 0 && us < SOON_MS * 1000.0 * patience());
        NEED_STATUS(party, bmi_ping(party->peer, 0, &us), -BMI_EINVAL);
        NEED_STATUS(party, bmi_ping(party->peer, SOON_MS, NULL), -BMI_EINVAL);
        NEED_STATUS(party, bmi_ping(0, SOON_MS, &us), -BMI_EINVAL);
        op_send(party, &op, &byte, 1, 1);
    } else {
        op_receive(party, &op, &byte, 1, 1);
    }
    op_finish(party, &op, 1);
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
    {0},
};
