/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rank.c - a role: its checks, its sockets to the other roles, its start and end.
 */
#define HARNESS_INTERNAL
#include "harness.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HELLO_TAG = 0x48454c4f };

/* ---- checks -------------------------------------------------------------------------------- */

void rank_at(struct rank *rank, const char *file, int line)
{
    struct position *at = &rank->report->position[rank->copy][rank->role];
    const char *name = strrchr(file, '/');
    atomic_store(&at->file, name ? name + 1 : file);
    atomic_store(&at->line, line);
}

static void fail(struct rank *rank, bool fatal, const char *format, va_list arguments)
{
    struct report *report = rank->report;
    struct position *at = &report->position[rank->copy][rank->role];
    int index = atomic_fetch_add(&report->failures, 1);
    if (index < FAILURES) {
        struct failure *failure = &report->list[index];
        failure->role = rank->role;
        failure->copy = rank->copy;
        failure->line = atomic_load(&at->line);
        vsnprintf(failure->text, sizeof failure->text, format, arguments);
        failure->file = atomic_load(&at->file);
    }
    if (fatal)
        _exit(1);
}

void rank_fail(struct rank *rank, bool fatal, const char *file, int line, const char *format, ...)
{
    va_list arguments;
    rank_at(rank, file, line);
    va_start(arguments, format);
    fail(rank, fatal, format, arguments);
    va_end(arguments);
}

void rank_fail_here(struct rank *rank, bool fatal, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail(rank, fatal, format, arguments);
    va_end(arguments);
}

bool rank_check(struct rank *rank, bool holds, bool fatal, const char *file, int line,
                const char *text)
{
    rank_at(rank, file, line);
    if (!holds)
        rank_fail_here(rank, fatal, "not so: %s", text);
    return holds;
}

bool rank_check_equal(struct rank *rank, int64_t actual, int64_t expected, bool fatal,
                      const char *file, int line, const char *text)
{
    rank_at(rank, file, line);
    if (actual != expected)
        rank_fail_here(rank, fatal, "%s: it is %lld, not %lld", text, (long long)actual,
                       (long long)expected);
    return actual == expected;
}

bool rank_check_status(struct rank *rank, int actual, int expected, bool fatal, const char *file,
                       int line, const char *text)
{
    rank_at(rank, file, line);
    if (actual != expected)
        rank_fail_here(rank, fatal, "%s: it is %d (%s), not %d (%s)", text, actual,
                       actual > 0 ? "positive" : bmi_status_string(actual), expected,
                       bmi_status_string(expected));
    return actual == expected;
}

void rank_skip(struct rank *rank, const char *format, ...)
{
    struct report *report = rank->report;
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

bool rank_is_self(const struct rank *rank)
{
    return rank->arrangement == CONFORMANCE_SELF || (rank->conformance_case->where & SOLO);
}

int rank_other(const struct rank *rank)
{
    return 1 - rank->role;
}

void rank_write(struct rank *rank, int role, const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size > 0) {
        ssize_t moved = send(rank->wires[role], at, size, MSG_NOSIGNAL);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            rank_fail_here(rank, true, "role %d is gone", role);
        at += moved;
        size -= (size_t)moved;
    }
}

void rank_read_idle(struct rank *rank, int role, void *bytes, size_t size)
{
    char *at = bytes;
    while (size > 0) {
        ssize_t moved = read(rank->wires[role], at, size);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            rank_fail_here(rank, true, "role %d is gone", role);
        at += moved;
        size -= (size_t)moved;
    }
}

void rank_read(struct rank *rank, int role, void *bytes, size_t size)
{
    struct pollfd wire = {.fd = rank->wires[role], .events = POLLIN};
    while (rank->context && poll(&wire, 1, 0) == 0)
        op_collect(rank, 1);
    rank_read_idle(rank, role, bytes, size);
}

void rank_signal(struct rank *rank, int role)
{
    rank_write(rank, role, "g", 1);
}

void rank_await_signal(struct rank *rank, int role)
{
    char go;
    rank_read(rank, role, &go, 1);
}

void rank_barrier(struct rank *rank)
{
    rank_signal(rank, rank_other(rank));
    rank_await_signal(rank, rank_other(rank));
}

void rank_barrier_idle(struct rank *rank)
{
    char go;
    rank_signal(rank, rank_other(rank));
    rank_read_idle(rank, rank_other(rank), &go, 1);
}

void rank_crash(struct rank *rank)
{
    atomic_store(&rank->report->may_die[rank->role], true);
    for (;;)
        raise(SIGKILL);
}

void rank_wait_for_end(struct rank *rank, int role)
{
    int pidfd = pidfd_open(atomic_load(&rank->report->pids[role]), 0);
    struct pollfd process = {.fd = pidfd, .events = POLLIN};
    if (pidfd < 0 && errno != ESRCH)
        rank_fail_here(rank, true, "pidfd_open: %s", strerror(errno));
    while (pidfd >= 0 && poll(&process, 1, -1) != 1)
        ;
    if (pidfd >= 0)
        close(pidfd);
}

/* ---- memory and descriptors ---------------------------------------------------------------- */

struct kept {
    struct kept *next;
    int descriptor;
    max_align_t memory[];
};

static struct kept *kept_add(struct rank *rank, size_t size)
{
    struct kept *kept = calloc(1, sizeof *kept + size);
    if (kept == NULL)
        rank_fail_here(rank, true, "no memory for %zu bytes", size);
    kept->descriptor = -1;
    kept->next = rank->kept;
    rank->kept = kept;
    return kept;
}

void *rank_keep(struct rank *rank, size_t size)
{
    return kept_add(rank, size)->memory;
}

void *rank_of_case(struct rank *rank, size_t size)
{
    if (rank->of_case == NULL)
        rank->of_case = rank_keep(rank, size);
    return rank->of_case;
}

int *rank_keep_descriptor(struct rank *rank)
{
    return &kept_add(rank, 0)->descriptor;
}

void rank_release(struct rank *rank)
{
    while (rank->kept != NULL) {
        struct kept *kept = rank->kept;
        rank->kept = kept->next;
        if (kept->descriptor >= 0)
            close(kept->descriptor);
        free(kept);
    }
}

/* ---- start and end ------------------------------------------------------------------------- */

static int library_start(struct rank *rank, const char *methods, const char *listen, int flags)
{
    if (rank->arrangement == CONFORMANCE_INSTANCES)
        return instance_start(rank, methods, listen, flags);
    return BMI_initialize(methods, listen, flags);
}

static int library_stop(struct rank *rank)
{
    return rank->arrangement == CONFORMANCE_INSTANCES ? instance_stop(rank) : BMI_finalize();
}

void rank_start_server(struct rank *rank, const char *listen, int flags)
{
    int status = library_start(rank, rank->method->name, listen ? listen : rank->method->listen,
                               BMI_INIT_SERVER | flags);
    if (status != 0)
        rank_fail_here(rank, true, "start as a server: %s", bmi_status_string(status));
    status = BMI_get_info(0, BMI_GET_LISTEN_ADDR, rank->listen);
    if (status != 0)
        rank_fail_here(rank, true, "BMI_GET_LISTEN_ADDR: %s", bmi_status_string(status));
    status = BMI_open_context(&rank->context);
    if (status != 0)
        rank_fail_here(rank, true, "BMI_open_context: %s", bmi_status_string(status));
}

void rank_start_client(struct rank *rank)
{
    int status = library_start(rank, NULL, NULL, 0);
    if (status != 0)
        rank_fail_here(rank, true, "start as a client: %s", bmi_status_string(status));
    status = BMI_open_context(&rank->context);
    if (status != 0)
        rank_fail_here(rank, true, "BMI_open_context: %s", bmi_status_string(status));
}

void rank_stop(struct rank *rank)
{
    if (rank->context)
        BMI_close_context(rank->context);
    rank->context = 0;
    int status = library_stop(rank);
    if (status != 0)
        rank_fail_here(rank, true, "stop: %s", bmi_status_string(status));
}

BMI_addr_t rank_look_up(struct rank *rank, const char *url)
{
    BMI_addr_t addr = 0;
    int status = BMI_addr_lookup(&addr, url);
    if (status != 0 || addr == 0)
        rank_fail_here(rank, true, "look-up of %.200s: %s, handle %lld", url,
                       bmi_status_string(status), (long long)addr);
    return addr;
}

void rank_hello_send(struct rank *rank)
{
    struct op hello;
    op_send_unexpected(rank, &hello, "hello", 5, HELLO_TAG);
    op_finish(rank, &hello, 5);
}

BMI_addr_t rank_hello_receive(struct rank *rank)
{
    struct BMI_unexpected_info info;
    unexpected_take(rank, &info);
    if (info.tag != HELLO_TAG || info.size != 5 || memcmp(info.buffer, "hello", 5) != 0)
        rank_fail_here(rank, true, "a hello of tag %d and %lld bytes", info.tag,
                       (long long)info.size);
    unexpected_give_back(rank, &info);
    return info.addr;
}

static void tell_url(struct rank *rank)
{
    rank_write(rank, rank_other(rank), rank->listen, sizeof rank->listen);
}

static void look_up_other(struct rank *rank)
{
    rank_read_idle(rank, rank_other(rank), rank->peer_url, sizeof rank->peer_url);
    rank->peer = rank_look_up(rank, rank->peer_url);
}

static void start_two(struct rank *rank)
{
    bool pair = rank->arrangement == CONFORMANCE_PAIR || rank->arrangement == CONFORMANCE_INSTANCES;
    int server = rank->arrangement == CONFORMANCE_FIRST_SERVES ? 0 : 1;
    if (pair || rank->role == server) {
        rank_start_server(rank, NULL, 0);
        tell_url(rank);
        if (pair)
            look_up_other(rank);
        else
            rank->peer = rank_hello_receive(rank);
    } else {
        rank_start_client(rank);
        look_up_other(rank);
        rank_hello_send(rank);
    }
    rank_barrier(rank);
}

static void start_self(struct rank *ranks, int count)
{
    rank_start_server(&ranks[0], NULL, 0);
    snprintf(ranks[0].peer_url, sizeof ranks[0].peer_url, "%s", ranks[0].listen);
    ranks[0].peer = rank_look_up(&ranks[0], ranks[0].listen);
    if (count < 2)
        return;
    ranks[1].peer = ranks[0].peer;
    memcpy(ranks[1].listen, ranks[0].listen, sizeof ranks[1].listen);
    memcpy(ranks[1].peer_url, ranks[0].peer_url, sizeof ranks[1].peer_url);
    int status = BMI_open_context(&ranks[1].context);
    if (status != 0)
        rank_fail_here(&ranks[1], true, "BMI_open_context: %s", bmi_status_string(status));
}

/* The end of every case: no operation is left, and no completion is reported twice. */
static void expect_quiet(struct rank *rank)
{
    op_collect(rank, 0);
    if (rank->pending != rank->reported)
        rank_fail_here(rank, true, "%lu operations were pending, %lu were reported", rank->pending,
                       rank->reported);
}

static void role_run(struct rank *rank)
{
    rank->conformance_case->run(rank);
    if (!(rank->conformance_case->where & (SOLO | RAW | CAST))) {
        rank_barrier(rank);
        expect_quiet(rank);
    }
}

static void *second_run(void *argument)
{
    role_run(argument);
    return NULL;
}

/* The roles of one BMI, in this process. */
static void play_self(struct rank *ranks, int count)
{
    pthread_t second;
    start_self(ranks, count);
    if (count == 2 && pthread_create(&second, NULL, second_run, &ranks[1]) != 0)
        rank_fail_here(&ranks[1], true, "no thread");
    role_run(&ranks[0]);
    if (count == 2) {
        pthread_join(second, NULL);
        BMI_close_context(ranks[1].context);
    } else {
        expect_quiet(&ranks[0]);
    }
    rank_stop(&ranks[0]);
}

void rank_play(struct rank *rank)
{
    unsigned where = rank->conformance_case->where;
    if (where & (RAW | CAST)) {
        role_run(rank);
    } else if (where & SOLO) {
        play_self(rank, 1);
    } else {
        start_two(rank);
        role_run(rank);
        rank_stop(rank);
    }
}

int rank_run(struct rank *ranks, int count)
{
    bool raw = ranks[0].conformance_case->where & RAW;
    if (ranks[0].arrangement == CONFORMANCE_INSTANCES)
        instances_run(ranks, count);
    else if (ranks[0].arrangement == CONFORMANCE_SELF && !raw)
        play_self(ranks, count);
    else
        rank_play(&ranks[0]);
    for (int i = 0; i < count; i++)
        rank_release(&ranks[i]);
    return atomic_load(&ranks[0].report->failures) ? 1 : 0;
}
