/* SPDX-License-Identifier: BSD-3-Clause
 *
 * party.c - a role: its checks, its sockets to the other roles, its start and end.
 */
#define HARNESS_INTERNAL
#include "harness.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GREETING_TAG = 0x48454c4f };

/* ---- checks -------------------------------------------------------------------------------- */

void party_at(struct party *party, const char *file, int line)
{
    struct position *at = &party->report->position[party->role];
    const char *name = strrchr(file, '/');
    atomic_store(&at->file, name ? name + 1 : file);
    atomic_store(&at->line, line);
}

static void fail(struct party *party, bool fatal, const char *format, va_list arguments)
{
    struct report *report = party->report;
    struct position *at = &report->position[party->role];
    int index = atomic_fetch_add(&report->failures, 1);
    if (index < FAILURES) {
        struct failure *failure = &report->list[index];
        failure->role = party->role;
        failure->line = atomic_load(&at->line);
        vsnprintf(failure->text, sizeof failure->text, format, arguments);
        failure->file = atomic_load(&at->file);
    }
    if (fatal)
        _exit(1);
}

void party_fail(struct party *party, bool fatal, const char *file, int line, const char *format,
                ...)
{
    va_list arguments;
    party_at(party, file, line);
    va_start(arguments, format);
    fail(party, fatal, format, arguments);
    va_end(arguments);
}

void party_fail_here(struct party *party, bool fatal, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail(party, fatal, format, arguments);
    va_end(arguments);
}

bool party_check(struct party *party, bool holds, bool fatal, const char *file, int line,
                 const char *text)
{
    party_at(party, file, line);
    if (!holds)
        party_fail_here(party, fatal, "not so: %s", text);
    return holds;
}

bool party_check_equal(struct party *party, int64_t actual, int64_t expected, bool fatal,
                       const char *file, int line, const char *text)
{
    party_at(party, file, line);
    if (actual != expected)
        party_fail_here(party, fatal, "%s: it is %lld, not %lld", text, (long long)actual,
                        (long long)expected);
    return actual == expected;
}

bool party_check_status(struct party *party, int actual, int expected, bool fatal, const char *file,
                        int line, const char *text)
{
    party_at(party, file, line);
    if (actual != expected)
        party_fail_here(party, fatal, "%s: it is %d (%s), not %d (%s)", text, actual,
                        actual > 0 ? "positive" : bmi_status_string(actual), expected,
                        bmi_status_string(expected));
    return actual == expected;
}

void party_skip(struct party *party, const char *format, ...)
{
    struct report *report = party->report;
    if (!atomic_exchange(&report->skips, true)) { /* both roles skip; one prints the reason */
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(report->reason, sizeof report->reason, format, arguments);
        va_end(arguments);
        atomic_store(&report->skipped, true);
        _exit(0);
    }
    for (;;)
        pause();
}

/* ---- wires --------------------------------------------------------------------------------- */

bool party_is_self(const struct party *party)
{
    return party->arrangement == CONFORMANCE_SELF;
}

int party_other(const struct party *party)
{
    return 1 - party->role;
}

void party_tell(struct party *party, int role, const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size > 0) {
        ssize_t moved = send(party->wires[role], at, size, MSG_NOSIGNAL);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            party_fail_here(party, true, "role %d is gone", role);
        at += moved;
        size -= (size_t)moved;
    }
}

void party_hear_idle(struct party *party, int role, void *bytes, size_t size)
{
    char *at = bytes;
    while (size > 0) {
        ssize_t moved = read(party->wires[role], at, size);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            party_fail_here(party, true, "role %d is gone", role);
        at += moved;
        size -= (size_t)moved;
    }
}

void party_hear(struct party *party, int role, void *bytes, size_t size)
{
    struct pollfd wire = {.fd = party->wires[role], .events = POLLIN};
    while (party->context && poll(&wire, 1, 0) == 0)
        op_collect(party, 1);
    party_hear_idle(party, role, bytes, size);
}

void party_tell_go(struct party *party, int role)
{
    party_tell(party, role, "g", 1);
}

void party_hear_go(struct party *party, int role)
{
    char go;
    party_hear(party, role, &go, 1);
}

void party_meet(struct party *party)
{
    party_tell_go(party, party_other(party));
    party_hear_go(party, party_other(party));
}

void party_meet_idle(struct party *party)
{
    char go;
    party_tell_go(party, party_other(party));
    party_hear_idle(party, party_other(party), &go, 1);
}

void party_crash(struct party *party)
{
    atomic_store(&party->report->may_die[party->role], true);
    for (;;)
        raise(SIGKILL);
}

void party_wait_for_end(struct party *party, int role)
{
    int pidfd = pidfd_open(atomic_load(&party->report->pids[role]), 0);
    struct pollfd process = {.fd = pidfd, .events = POLLIN};
    if (pidfd < 0 && errno != ESRCH)
        party_fail_here(party, true, "pidfd_open: %s", strerror(errno));
    while (pidfd >= 0 && poll(&process, 1, -1) != 1)
        ;
    if (pidfd >= 0)
        close(pidfd);
}

/* ---- start and end ------------------------------------------------------------------------- */

void party_start_server(struct party *party, const char *listen, int flags)
{
    int status = BMI_initialize(party->method->name, listen ? listen : party->method->listen,
                                BMI_INIT_SERVER | flags);
    if (status != 0)
        party_fail_here(party, true, "BMI_initialize: %s", bmi_status_string(status));
    status = BMI_get_info(0, BMI_GET_LISTEN_ADDR, party->listen);
    if (status != 0)
        party_fail_here(party, true, "BMI_GET_LISTEN_ADDR: %s", bmi_status_string(status));
    status = BMI_open_context(&party->context);
    if (status != 0)
        party_fail_here(party, true, "BMI_open_context: %s", bmi_status_string(status));
}

void party_start_client(struct party *party)
{
    int status = BMI_initialize(NULL, NULL, 0);
    if (status != 0)
        party_fail_here(party, true, "BMI_initialize: %s", bmi_status_string(status));
    status = BMI_open_context(&party->context);
    if (status != 0)
        party_fail_here(party, true, "BMI_open_context: %s", bmi_status_string(status));
}

void party_stop(struct party *party)
{
    if (party->context)
        BMI_close_context(party->context);
    party->context = 0;
    int status = BMI_finalize();
    if (status != 0)
        party_fail_here(party, true, "BMI_finalize: %s", bmi_status_string(status));
}

BMI_addr_t party_look_up(struct party *party, const char *url)
{
    BMI_addr_t addr = 0;
    int status = BMI_addr_lookup(&addr, url);
    if (status != 0 || addr == 0)
        party_fail_here(party, true, "look-up of %.200s: %s, handle %lld", url,
                        bmi_status_string(status), (long long)addr);
    return addr;
}

void party_greet(struct party *party)
{
    struct op hello;
    op_send_unexpected(party, &hello, "hello", 5, GREETING_TAG);
    op_finish(party, &hello, 5);
}

BMI_addr_t party_be_greeted(struct party *party)
{
    struct BMI_unexpected_info info;
    unexpected_take(party, &info);
    if (info.tag != GREETING_TAG || info.size != 5 || memcmp(info.buffer, "hello", 5) != 0)
        party_fail_here(party, true, "a greeting of tag %d and %lld bytes", info.tag,
                        (long long)info.size);
    unexpected_give_back(party, &info);
    return info.addr;
}

static void tell_url(struct party *party)
{
    party_tell(party, party_other(party), party->listen, sizeof party->listen);
}

static void look_up_other(struct party *party)
{
    party_hear_idle(party, party_other(party), party->peer_url, sizeof party->peer_url);
    party->peer = party_look_up(party, party->peer_url);
}

static void start_two(struct party *party)
{
    bool pair = party->arrangement == CONFORMANCE_PAIR;
    int server = party->arrangement == CONFORMANCE_FIRST_SERVES ? 0 : 1;
    if (pair || party->role == server) {
        party_start_server(party, NULL, 0);
        tell_url(party);
        if (pair)
            look_up_other(party);
        else
            party->peer = party_be_greeted(party);
    } else {
        party_start_client(party);
        look_up_other(party);
        party_greet(party);
    }
    party_meet(party);
}

static void start_self(struct party *parties, int count)
{
    party_start_server(&parties[0], NULL, 0);
    snprintf(parties[0].peer_url, sizeof parties[0].peer_url, "%s", parties[0].listen);
    parties[0].peer = party_look_up(&parties[0], parties[0].listen);
    if (count < 2)
        return;
    parties[1].peer = parties[0].peer;
    memcpy(parties[1].listen, parties[0].listen, sizeof parties[1].listen);
    memcpy(parties[1].peer_url, parties[0].peer_url, sizeof parties[1].peer_url);
    int status = BMI_open_context(&parties[1].context);
    if (status != 0)
        party_fail_here(&parties[1], true, "BMI_open_context: %s", bmi_status_string(status));
}

/* The end of every case: no operation is left, and no completion is reported twice. */
static void expect_quiet(struct party *party)
{
    op_collect(party, 0);
    if (party->pending != party->reported)
        party_fail_here(party, true, "%lu operations were pending, %lu were reported",
                        party->pending, party->reported);
}

static void *role_run(void *argument)
{
    struct party *party = argument;
    party->conformance_case->run(party);
    if (!(party->conformance_case->where & (SOLO | RAW | CAST))) {
        party_meet(party);
        expect_quiet(party);
    }
    return NULL;
}

/* Both roles in this process. */
static void play_self(struct party *parties, int count)
{
    pthread_t second;
    start_self(parties, count);
    if (count == 2 && pthread_create(&second, NULL, role_run, &parties[1]) != 0)
        party_fail_here(&parties[1], true, "no thread");
    role_run(&parties[0]);
    if (count == 2) {
        pthread_join(second, NULL);
        BMI_close_context(parties[1].context);
    } else {
        expect_quiet(&parties[0]);
    }
    party_stop(&parties[0]);
}

int party_play(struct party *parties, int count)
{
    unsigned where = parties[0].conformance_case->where;
    if (where & (RAW | CAST)) {
        role_run(&parties[0]);
    } else if (party_is_self(&parties[0])) {
        play_self(parties, count);
    } else {
        start_two(&parties[0]);
        role_run(&parties[0]);
        party_stop(&parties[0]);
    }
    return atomic_load(&parties[0].report->failures) ? 1 : 0;
}
