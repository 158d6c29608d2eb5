/* SPDX-License-Identifier: BSD-3-Clause
 *
 * address_cases.c - "Init and addresses": look-up, its reverse, ranges, alternatives, host names.
 */
#include "harness.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PEERS = 200 };

static void same_handle(struct rank *rank)
{
    BMI_addr_t handles[PEERS];
    char url[200];
    CHECK_EQUAL(rank, rank_look_up(rank, rank->listen), rank->peer);
    CHECK_EQUAL(rank, rank_look_up(rank, rank->listen), rank->peer);
    for (int i = 0; i < PEERS; i++) {
        made_up_address(rank, i, url, sizeof url);
        handles[i] = rank_look_up(rank, url);
        CHECK(rank, handles[i] >> 32 != rank->peer >> 32);
        for (int k = 0; k < i; k++)
            CHECK(rank, handles[i] >> 32 != handles[k] >> 32);
    }
    for (int i = 0; i < PEERS; i++) {
        made_up_address(rank, i, url, sizeof url);
        CHECK_EQUAL(rank, rank_look_up(rank, url), handles[i]);
        CHECK(rank, strcmp(BMI_addr_rev_lookup(handles[i]), url) == 0);
    }
}

static void lookup_refuses(struct rank *rank)
{
    BMI_addr_t addr = 7;
    char text[200];
    CHECK_STATUS(rank, BMI_addr_lookup(&addr, NULL), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_addr_lookup(&addr, ""), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_addr_lookup(&addr, "no scheme"), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_addr_lookup(&addr, "nosuch://127.0.0.1:1"), -BMI_ENOPROTOOPT);
    CHECK_STATUS(rank, BMI_addr_lookup(&addr, "nosuch://a:1,neither://b:2"), -BMI_ENOPROTOOPT);
    CHECK_STATUS(rank, BMI_addr_lookup(NULL, rank->listen), -BMI_EINVAL);
    snprintf(text, sizeof text, "%s://", rank->method->scheme);
    CHECK_STATUS(rank, BMI_addr_lookup(&addr, text), -BMI_EINVAL);
    for (const char *const *bad = rank->method->bad_addresses; *bad; bad++) {
        int status = BMI_addr_lookup(&addr, *bad);
        if (status != -BMI_EINVAL)
            rank_fail(rank, false, __FILE__, __LINE__, "look-up of \"%s\": %s, not EINVAL", *bad,
                      bmi_status_string(status));
    }
    CHECK_EQUAL(rank, addr, 7);
}

/* 2047 characters are legal, one more is not. */
static void length(struct rank *rank)
{
    char url[BMI_MAX_ADDR_LEN + 10];
    size_t used = strlen(rank->listen);
    BMI_addr_t addr = 7;
    memcpy(url, rank->listen, used);
    url[used] = '/';
    memset(url + used + 1, 'p', sizeof url - used - 1);
    url[BMI_MAX_ADDR_LEN] = '\0';
    CHECK_STATUS(rank, BMI_addr_lookup(&addr, url), -BMI_ENAMETOOLONG);
    CHECK_EQUAL(rank, addr, 7);
    url[BMI_MAX_ADDR_LEN - 1] = '\0';
    CHECK_STATUS(rank, BMI_addr_lookup(&addr, url), 0);
    CHECK(rank, BMI_addr_rev_lookup(addr) && strcmp(BMI_addr_rev_lookup(addr), url) == 0);
}

/* Serves one client: one message, one answer. */

/* Serves one visitor: a hello, an answer. */
static void serve(struct rank *rank, const char *listen)
{
    struct op answer;
    rank_start_server(rank, listen, 0);
    rank_write(rank, 0, rank->listen, sizeof rank->listen);
    rank->peer = rank_hello_receive(rank);
    op_send(rank, &answer, "welcome", 7, 1);
    op_finish(rank, &answer, 7);
    rank_barrier(rank);
    rank_stop(rank);
}

static void hear_server(struct rank *rank)
{
    rank_read_idle(rank, 1, rank->peer_url, sizeof rank->peer_url);
}

static void visit(struct rank *rank, const char *url)
{
    struct op answer;
    char bytes[7];
    rank_start_client(rank);
    rank->peer = rank_look_up(rank, url);
    op_receive(rank, &answer, bytes, sizeof bytes, 1);
    rank_hello_send(rank);
    op_finish(rank, &answer, sizeof bytes);
    CHECK(rank, memcmp(bytes, "welcome", 7) == 0);
    CHECK(rank, strcmp(BMI_addr_rev_lookup(rank->peer), url) == 0);
    rank_barrier(rank);
    rank_stop(rank);
}

static void path_ignored(struct rank *rank)
{
    char url[BMI_MAX_ADDR_LEN + 20];
    if (rank->role == 1) {
        serve(rank, NULL);
        return;
    }
    hear_server(rank);
    snprintf(url, sizeof url, "%s/pvfs2-fs", rank->peer_url);
    visit(rank, url);
}

/* The first alternatives: one without a listener, and one with a scheme that this host lacks. */
static void alternatives(struct rank *rank)
{
    char refused[200], url[BMI_MAX_ADDR_LEN + 300];
    if (rank->role == 1) {
        serve(rank, NULL);
        return;
    }
    hear_server(rank);
    refused_address(rank, refused, sizeof refused);
    snprintf(url, sizeof url, "nosuch://a:1,%s,%s/path", refused, rank->peer_url);
    visit(rank, url);
}

/* Of two usable alternatives the first one is used; the other gets no connection. */
static void first_alternative(struct rank *rank)
{
    char url[2 * BMI_MAX_ADDR_LEN + 20];
    if (rank->role == 1) {
        serve(rank, NULL);
        return;
    }
    if (rank->role == 2) {
        struct bmi_method_statistics before;
        rank_start_server(rank, NULL, 0);
        before = method_statistics(rank);
        rank_write(rank, 0, rank->listen, sizeof rank->listen);
        rank_await_signal(rank, 0);
        CHECK_EQUAL(rank, method_statistics(rank).links_accepted, before.links_accepted);
        rank_stop(rank);
        return;
    }
    char other[BMI_MAX_ADDR_LEN];
    hear_server(rank);
    rank_read_idle(rank, 2, other, sizeof other);
    snprintf(url, sizeof url, "nosuch://a:1,%s,%s", rank->peer_url, other);
    visit(rank, url);
    rank_signal(rank, 2);
}

static void alternatives_all_refused(struct rank *rank)
{
    char first[100], second[100], url[300];
    struct op send, receive;
    char bytes[10];
    rank_start_client(rank);
    refused_address(rank, first, sizeof first);
    refused_address(rank, second, sizeof second);
    snprintf(url, sizeof url, "%s,%s", first, second);
    rank->peer = rank_look_up(rank, url);
    op_receive(rank, &receive, bytes, sizeof bytes, 1);
    op_send(rank, &send, "x", 1, 1);
    op_finish_error(rank, &send, BMI_ECONNREFUSED);
    op_finish_error(rank, &receive, BMI_ECONNREFUSED);
    rank_stop(rank);
}

static void visit_by_host(struct rank *rank, const char *host, const char *listen)
{
    char url[300];
    if (rank->role == 1) {
        serve(rank, listen);
        return;
    }
    hear_server(rank);
    snprintf(url, sizeof url, "%s://%s:%d", rank->method->scheme, host, url_port(rank->peer_url));
    visit(rank, url);
}

static void host_name(struct rank *rank)
{
    visit_by_host(rank, "localhost", NULL);
}

static void host_ipv4(struct rank *rank)
{
    visit_by_host(rank, "127.0.0.1", NULL);
}

static void host_ipv6(struct rank *rank)
{
    struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int probe = socket(AF_INET6, SOCK_STREAM, 0);
    char listen[100];
    if (probe < 0 || bind(probe, (struct sockaddr *)&loopback, sizeof loopback) < 0)
        rank_skip(rank, "this host has no ::1");
    close(probe);
    snprintf(listen, sizeof listen, "%s://[::1]:0", rank->method->scheme);
    visit_by_host(rank, "[::1]", listen);
}

/* The log explains why a connection was not made. */
static void log_scan(void *argument, enum bmi_log_level level, const char *text)
{
    atomic_int *numbers = argument;
    (void)level;
    if (strstr(text, "Unknown error") != NULL)
        atomic_fetch_add(numbers, 1);
}

static void host_unknown(struct rank *rank)
{
    atomic_int numbers = 0;
    struct bmi_log_callback callback = {.write = log_scan,
                                        .argument = &numbers,
                                        .level = BMI_LOG_DEBUG};
    struct op send;
    char url[100];
    snprintf(url, sizeof url, "%s://no-such-host.invalid:3334", rank->method->scheme);
    rank_start_client(rank);
    rank->peer = rank_look_up(rank, url);
    CHECK_STATUS(rank, BMI_set_info(0, BMI_LOG_CALLBACK, &callback), 0);
    op_send(rank, &send, "x", 1, 1);
    op_finish_error(rank, &send, BMI_EHOSTNTFD);
    callback.write = NULL;
    CHECK_STATUS(rank, BMI_set_info(0, BMI_LOG_CALLBACK, &callback), 0);
    CHECK_EQUAL(rank, atomic_load(&numbers), 0);
    rank_stop(rank);
}

/* ---- the reverse ----------------------------------------------------------------------------- */

static void rev_lookup(struct rank *rank)
{
    bool looked_up = rank->peer_url[0];
    const char *string = BMI_addr_rev_lookup(rank->peer);
    if (looked_up)
        CHECK(rank, string && strcmp(string, rank->peer_url) == 0);
    else
        CHECK(rank, string == NULL);
}

static void rev_lookup_unexpected(struct rank *rank)
{
    struct BMI_unexpected_info info;
    if (rank->role == SENDER) {
        rank_hello_send(rank);
        return;
    }
    unexpected_take(rank, &info);
    const char *host = BMI_addr_rev_lookup_unexpected(info.addr);
    NEED(rank, host != NULL);
    if (rank->method->host && strcmp(host, rank->method->host) != 0)
        rank_fail(rank, false, __FILE__, __LINE__, "the host is \"%s\"", host);
    unexpected_give_back(rank, &info);
}

/* The address of an unexpected message: answers go to it, and expected messages match it. */
static void unexpected_address_answers(struct rank *rank)
{
    struct BMI_unexpected_info info;
    struct op send, receive;
    char bytes[10];
    if (rank->role == SENDER) {
        op_receive(rank, &receive, bytes, sizeof bytes, 21);
        rank_hello_send(rank);
        op_finish(rank, &receive, 6);
        CHECK(rank, memcmp(bytes, "answer", 6) == 0);
        return;
    }
    unexpected_take(rank, &info);
    op_post(rank, &send, POST_SEND, info.addr, "answer", 6, 21);
    NEED(rank, send.posted >= 0);
    op_finish(rank, &send, 6);
    unexpected_give_back(rank, &info);
}

struct range {
    const char *text; /* with a place for the scheme */
    int netmask, expected;
};

/* The other role; if that has another host, the address of a listener at 127.0.0.1. */
static BMI_addr_t at_loopback(struct rank *rank)
{
    BMI_addr_t address = rank->peer;
    char url[100];
    if (rank->method->host && strcmp(rank->method->host, "127.0.0.1") != 0) {
        made_up_address(rank, 1, url, sizeof url);
        NEED_STATUS(rank, BMI_addr_lookup(&address, url), 0);
    }
    return address;
}

static void ranges(struct rank *rank)
{
    BMI_addr_t address = at_loopback(rank);
    static const struct range table[] = {
        {"%s://127.*", 0, 1},
        {"%s://127.0.*", 99, 1},
        {"%s://127.0.0.*", 0, 1},
        {"%s://*", 0, 1},
        {"%s://128.*", 0, 0},
        {"%s://127.1.*", 0, 0},
        {"%s://127.0.0.1", 32, 1},
        {"%s://127.0.0.0", 8, 1},
        {"%s://127.255.255.255", 8, 1},
        {"%s://127.0.0.2", 31, 0},
        {"%s://127.0.0.0", 31, 1},
        {"%s://127.0.0.2", 30, 1},
        {"%s://10.0.0.0", 8, 0},
        {"%s://10.0.0.0", 0, 1},
        {"%s://127.128.0.0", 9, 0},
        {"%s://127.0.0.1", 33, -BMI_EINVAL},
        {"%s://127.0.0.1", -1, -BMI_EINVAL},
        {"%s://127.0.0", 8, -BMI_EINVAL},
        {"%s://", 8, -BMI_EINVAL},
        {"%s://127.0.0.256", 8, -BMI_EINVAL},
        {"nonsense", 8, -BMI_EINVAL},
        {"%s://1x7.*", 8, -BMI_EINVAL},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char text[100];
        snprintf(text, sizeof text, "%s", table[i].text);
        if (strncmp(text, "%s", 2) == 0)
            snprintf(text, sizeof text, "%s%s", rank->method->scheme, table[i].text + 2);
        int status = BMI_query_addr_range(address, text, table[i].netmask);
        if (status != table[i].expected)
            rank_fail(rank, false, __FILE__, __LINE__, "127.0.0.1 in %s with %d bits: %d, not %d",
                      text, table[i].netmask, status, table[i].expected);
    }
    CHECK_STATUS(rank, BMI_query_addr_range(address, NULL, 8), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_query_addr_range(0, "tcp://127.*", 8), -BMI_EINVAL);
    CHECK_STATUS(rank, BMI_query_addr_range(address ^ (BMI_addr_t)1 << 40, "tcp://127.*", 8),
                 -BMI_EINVAL);
}

#define SECTION .section = "Init and addresses"
const struct conformance_case address_cases[] = {
    {SECTION, .name = "the same string gives the same handle; upper 32 bits differ",
     .run = same_handle, .where = SOLO},
    {SECTION, .name = "lookup refuses and sets nothing", .run = lookup_refuses, .where = SOLO},
    {SECTION, .name = "2047 characters, and one more", .run = length, .where = SOLO},
    {SECTION, .name = "a trailing path is ignored", .run = path_ignored, .where = CAST, .roles = 2},
    {SECTION, .name = "the rest of the alternatives is tried", .run = alternatives, .where = CAST,
     .roles = 2},
    {SECTION, .name = "the first alternative is taken", .run = first_alternative, .where = CAST,
     .roles = 3},
    {SECTION, .name = "alternatives that all refuse", .run = alternatives_all_refused,
     .where = RAW},
    {SECTION, .name = "host name", .run = host_name, .where = CAST | PORTS, .roles = 2},
    {SECTION, .name = "IPv4 host", .run = host_ipv4, .where = CAST | PORTS, .roles = 2},
    {SECTION, .name = "IPv6 host", .run = host_ipv6, .where = CAST | PORTS, .roles = 2},
    {SECTION, .name = "unknown host", .run = host_unknown, .where = RAW | PORTS},
    {SECTION, .name = "rev_lookup", .run = rev_lookup},
    {SECTION, .name = "rev_lookup_unexpected", .run = rev_lookup_unexpected},
    {SECTION, .name = "an unexpected message's address answers", .run = unexpected_address_answers},
    {SECTION, .name = "query_addr_range", .run = ranges, .where = PORTS},
    {0},
};
