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

static void same_handle(struct party *party)
{
    BMI_addr_t handles[PEERS];
    char url[200];
    CHECK_EQUAL(party, party_look_up(party, party->listen), party->peer);
    CHECK_EQUAL(party, party_look_up(party, party->listen), party->peer);
    for (int i = 0; i < PEERS; i++) {
        made_up_address(party, i, url, sizeof url);
        handles[i] = party_look_up(party, url);
        CHECK(party, handles[i] >> 32 != party->peer >> 32);
        for (int k = 0; k < i; k++)
            CHECK(party, handles[i] >> 32 != handles[k] >> 32);
    }
    for (int i = 0; i < PEERS; i++) {
        made_up_address(party, i, url, sizeof url);
        CHECK_EQUAL(party, party_look_up(party, url), handles[i]);
        CHECK(party, strcmp(BMI_addr_rev_lookup(handles[i]), url) == 0);
    }
}

static void lookup_refuses(struct party *party)
{
    BMI_addr_t addr = 7;
    char text[200];
    CHECK_STATUS(party, BMI_addr_lookup(&addr, NULL), -BMI_EINVAL);
    CHECK_STATUS(party, BMI_addr_lookup(&addr, ""), -BMI_EINVAL);
    CHECK_STATUS(party, BMI_addr_lookup(&addr, "no scheme"), -BMI_EINVAL);
    CHECK_STATUS(party, BMI_addr_lookup(&addr, "nosuch://127.0.0.1:1"), -BMI_ENOPROTOOPT);
    CHECK_STATUS(party, BMI_addr_lookup(&addr, "nosuch://a:1,neither://b:2"), -BMI_ENOPROTOOPT);
    CHECK_STATUS(party, BMI_addr_lookup(NULL, party->listen), -BMI_EINVAL);
    snprintf(text, sizeof text, "%s://", party->method->scheme);
    CHECK_STATUS(party, BMI_addr_lookup(&addr, text), -BMI_EINVAL);
    for (const char *const *bad = party->method->bad_addresses; *bad; bad++) {
        int status = BMI_addr_lookup(&addr, *bad);
        if (status != -BMI_EINVAL)
            party_fail(party, false, __FILE__, __LINE__, "look-up of \"%s\": %s, not EINVAL", *bad,
                       bmi_status_string(status));
    }
    CHECK_EQUAL(party, addr, 7);
}

/* 2047 characters are legal, one more is not. */
static void length(struct party *party)
{
    char url[BMI_MAX_ADDR_LEN + 10];
    size_t used = strlen(party->listen);
    BMI_addr_t addr = 7;
    memcpy(url, party->listen, used);
    url[used] = '/';
    memset(url + used + 1, 'p', sizeof url - used - 1);
    url[BMI_MAX_ADDR_LEN] = '\0';
    CHECK_STATUS(party, BMI_addr_lookup(&addr, url), -BMI_ENAMETOOLONG);
    CHECK_EQUAL(party, addr, 7);
    url[BMI_MAX_ADDR_LEN - 1] = '\0';
    CHECK_STATUS(party, BMI_addr_lookup(&addr, url), 0);
    CHECK(party, BMI_addr_rev_lookup(addr) && strcmp(BMI_addr_rev_lookup(addr), url) == 0);
}

/* Serves one client: one message, one answer. */

/* Serves one visitor: a greeting, an answer. */
static void serve(struct party *party, const char *listen)
{
    struct op answer;
    party_start_server(party, listen, 0);
    party_tell(party, 0, party->listen, sizeof party->listen);
    party->peer = party_be_greeted(party);
    op_send(party, &answer, "welcome", 7, 1);
    op_finish(party, &answer, 7);
    party_meet(party);
    party_stop(party);
}

static void hear_server(struct party *party)
{
    party_hear_idle(party, 1, party->peer_url, sizeof party->peer_url);
}

static void visit(struct party *party, const char *url)
{
    struct op answer;
    char bytes[7];
    party_start_client(party);
    party->peer = party_look_up(party, url);
    op_receive(party, &answer, bytes, sizeof bytes, 1);
    party_greet(party);
    op_finish(party, &answer, sizeof bytes);
    CHECK(party, memcmp(bytes, "welcome", 7) == 0);
    CHECK(party, strcmp(BMI_addr_rev_lookup(party->peer), url) == 0);
    party_meet(party);
    party_stop(party);
}

static void path_ignored(struct party *party)
{
    char url[BMI_MAX_ADDR_LEN + 20];
    if (party->role == 1) {
        serve(party, NULL);
        return;
    }
    hear_server(party);
    snprintf(url, sizeof url, "%s/pvfs2-fs", party->peer_url);
    visit(party, url);
}

/* The first alternatives: one without a listener, and one with a scheme that this host lacks. */
static void alternatives(struct party *party)
{
    char refused[200], url[BMI_MAX_ADDR_LEN + 300];
    int holder;
    if (party->role == 1) {
        serve(party, NULL);
        return;
    }
    hear_server(party);
    refused_address(party, refused, sizeof refused, &holder);
    snprintf(url, sizeof url, "nosuch://a:1,%s,%s/path", refused, party->peer_url);
    visit(party, url);
}

/* Of two usable alternatives the first one is used; the other gets no connection. */
static void first_alternative(struct party *party)
{
    char url[2 * BMI_MAX_ADDR_LEN + 20];
    if (party->role == 1) {
        serve(party, NULL);
        return;
    }
    if (party->role == 2) {
        struct bmi_method_statistics before;
        party_start_server(party, NULL, 0);
        before = method_statistics(party);
        party_tell(party, 0, party->listen, sizeof party->listen);
        party_hear_go(party, 0);
        CHECK_EQUAL(party, method_statistics(party).links_accepted, before.links_accepted);
        party_stop(party);
        return;
    }
    char other[BMI_MAX_ADDR_LEN];
    hear_server(party);
    party_hear_idle(party, 2, other, sizeof other);
    snprintf(url, sizeof url, "nosuch://a:1,%s,%s", party->peer_url, other);
    visit(party, url);
    party_tell_go(party, 2);
}

static void alternatives_all_refused(struct party *party)
{
    char first[100], second[100], url[300];
    int holders[2];
    struct op send, receive;
    char bytes[10];
    party_start_client(party);
    refused_address(party, first, sizeof first, &holders[0]);
    refused_address(party, second, sizeof second, &holders[1]);
    snprintf(url, sizeof url, "%s,%s", first, second);
    party->peer = party_look_up(party, url);
    op_receive(party, &receive, bytes, sizeof bytes, 1);
    op_send(party, &send, "x", 1, 1);
    op_finish_error(party, &send, BMI_ECONNREFUSED);
    op_finish_error(party, &receive, BMI_ECONNREFUSED);
    party_stop(party);
}

static void visit_by_host(struct party *party, const char *host, const char *listen)
{
    char url[300];
    if (party->role == 1) {
        serve(party, listen);
        return;
    }
    hear_server(party);
    snprintf(url, sizeof url, "%s://%s:%d", party->method->scheme, host, url_port(party->peer_url));
    visit(party, url);
}

static void host_name(struct party *party)
{
    visit_by_host(party, "localhost", NULL);
}

static void host_ipv4(struct party *party)
{
    visit_by_host(party, "127.0.0.1", NULL);
}

static void host_ipv6(struct party *party)
{
    struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int probe = socket(AF_INET6, SOCK_STREAM, 0);
    char listen[100];
    if (probe < 0 || bind(probe, (struct sockaddr *)&loopback, sizeof loopback) < 0)
        party_skip(party, "this host has no ::1");
    close(probe);
    snprintf(listen, sizeof listen, "%s://[::1]:0", party->method->scheme);
    visit_by_host(party, "[::1]", listen);
}

/* The log explains why a connection was not made. */
static void log_scan(void *argument, enum bmi_log_level level, const char *text)
{
    atomic_int *numbers = argument;
    (void)level;
    if (strstr(text, "Unknown error") != NULL)
        atomic_fetch_add(numbers, 1);
}

static void host_unknown(struct party *party)
{
    atomic_int numbers = 0;
    struct bmi_log_callback callback = {.write = log_scan,
                                        .argument = &numbers,
                                        .level = BMI_LOG_DEBUG};
    struct op send;
    char url[100];
    snprintf(url, sizeof url, "%s://no-such-host.invalid:3334", party->method->scheme);
    party_start_client(party);
    party->peer = party_look_up(party, url);
    CHECK_STATUS(party, BMI_set_info(0, BMI_LOG_CALLBACK, &callback), 0);
    op_send(party, &send, "x", 1, 1);
    op_finish_error(party, &send, BMI_EHOSTNTFD);
    callback.write = NULL;
    CHECK_STATUS(party, BMI_set_info(0, BMI_LOG_CALLBACK, &callback), 0);
    CHECK_EQUAL(party, atomic_load(&numbers), 0);
    party_stop(party);
}

/* ---- the reverse ----------------------------------------------------------------------------- */

static void rev_lookup(struct party *party)
{
    bool looked_up = party->peer_url[0];
    const char *string = BMI_addr_rev_lookup(party->peer);
    if (looked_up)
        CHECK(party, string && strcmp(string, party->peer_url) == 0);
    else
        CHECK(party, string == NULL);
}

static void rev_lookup_unexpected(struct party *party)
{
    struct BMI_unexpected_info info;
    if (party->role == SENDER) {
        party_greet(party);
        return;
    }
    unexpected_take(party, &info);
    const char *host = BMI_addr_rev_lookup_unexpected(info.addr);
    NEED(party, host != NULL);
    if (party->method->host && strcmp(host, party->method->host) != 0)
        party_fail(party, false, __FILE__, __LINE__, "the host is \"%s\"", host);
    unexpected_give_back(party, &info);
}

/* The address of an unexpected message: answers go to it, and expected messages match it. */
static void unexpected_address_answers(struct party *party)
{
    struct BMI_unexpected_info info;
    struct op send, receive;
    char bytes[10];
    if (party->role == SENDER) {
        op_receive(party, &receive, bytes, sizeof bytes, 21);
        party_greet(party);
        op_finish(party, &receive, 6);
        CHECK(party, memcmp(bytes, "answer", 6) == 0);
        return;
    }
    unexpected_take(party, &info);
    op_post(party, &send, POST_SEND, info.addr, "answer", 6, 21);
    NEED(party, send.posted >= 0);
    op_finish(party, &send, 6);
    unexpected_give_back(party, &info);
}

struct range {
    const char *text; /* with a place for the scheme */
    int netmask, expected;
};

/* The other role; if that has another host, the address of a listener at 127.0.0.1. */
static BMI_addr_t at_loopback(struct party *party)
{
    BMI_addr_t address = party->peer;
    char url[100];
    if (party->method->host && strcmp(party->method->host, "127.0.0.1") != 0) {
        made_up_address(party, 1, url, sizeof url);
        NEED_STATUS(party, BMI_addr_lookup(&address, url), 0);
    }
    return address;
}

static void ranges(struct party *party)
{
    BMI_addr_t address = at_loopback(party);
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
            snprintf(text, sizeof text, "%s%s", party->method->scheme, table[i].text + 2);
        int status = BMI_query_addr_range(address, text, table[i].netmask);
        if (status != table[i].expected)
            party_fail(party, false, __FILE__, __LINE__, "127.0.0.1 in %s with %d bits: %d, not %d",
                       text, table[i].netmask, status, table[i].expected);
    }
    CHECK_STATUS(party, BMI_query_addr_range(address, NULL, 8), -BMI_EINVAL);
    CHECK_STATUS(party, BMI_query_addr_range(0, "tcp://127.*", 8), -BMI_EINVAL);
    CHECK_STATUS(party, BMI_query_addr_range(address ^ (BMI_addr_t)1 << 40, "tcp://127.*", 8),
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
