/* SPDX-License-Identifier: BSD-3-Clause
 *
 * failure_cases.c - "Failure": refusal, peers that die, peers that are restarted. Roles: 0 checks;
 * 1 dies; 2 is the restarted role 1, or an unaffected peer.
 */
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { LARGE = 4 * MIB, HUGE_BYTES = 64 * MIB, SOON_MS = 30000, OURS = 7 };

/* ---- refused --------------------------------------------------------------------------------- */

static void refused(struct rank *rank)
{
    char url[200], byte, *memory = memory_take(rank, LARGE);
    struct op ops[5];
    BMI_addr_t self = rank->peer;
    refused_address(rank, url, sizeof url);
    for (int i = 0; i < 3; i++) {
        rank->peer = rank_look_up(rank, url);
        int64_t start = now_ms();
        op_receive(rank, &ops[0], &byte, 1, 1);
        op_receive(rank, &ops[1], memory, LARGE, 2);
        op_post(rank, &ops[2], POST_SEND, rank->peer, memory, LARGE, 1);
        op_post(rank, &ops[3], POST_SEND, rank->peer, &byte, 1, 1);
        op_post(rank, &ops[4], POST_UNEXPECTED, rank->peer, &byte, 1, 1);
        for (int k = 0; k < 5; k++)
            op_finish_error(rank, &ops[k], BMI_ECONNREFUSED);
        CHECK(rank, now_ms() - start < SOON_MS * patience());
    }
    CHECK(rank, statistics_of(rank, rank->peer).errors >= 3 * 5);
    rank->peer = self;
    message_pass_self(rank);
    memory_give_back(memory);
}

/* A single send is refused, too. A single receive needs no connection, and may be cancelled. */
static void refused_alone(struct rank *rank)
{
    char url[200], byte;
    struct op op;
    refused_address(rank, url, sizeof url);
    rank->peer = rank_look_up(rank, url);
    op_send(rank, &op, "x", 1, 1);
    op_finish_error(rank, &op, BMI_ECONNREFUSED);
    op_send_unexpected(rank, &op, "x", 1, 1);
    op_finish_error(rank, &op, BMI_ECONNREFUSED);
    op_receive(rank, &op, &byte, 1, 1);
    if (op.posted == 0)
        CHECK_STATUS(rank, BMI_cancel(op.id, rank->context), 0);
    op_wait(rank, &op);
    CHECK(rank, op.error == -BMI_ECANCEL || op.error == -BMI_ECONNREFUSED);
}

/* ---- a looked-up peer dies ------------------------------------------------------------------- */

/* A server that sends its address to role 0. */
static void serve(struct rank *rank, const char *listen)
{
    rank_start_server(rank, listen, 0);
    rank_write(rank, 0, rank->listen, sizeof rank->listen);
    rank->peer = rank_hello_receive(rank);
}

static void join(struct rank *rank, int server)
{
    rank_read_idle(rank, server, rank->peer_url, sizeof rank->peer_url);
    rank->peer = rank_look_up(rank, rank->peer_url);
    rank_hello_send(rank);
}

/* Answers each small message of tag 5 with another, until the order to stop. */
static void answer_on(struct rank *rank)
{
    char byte = 0;
    while (byte != 's') {
        struct op op;
        op_receive(rank, &op, &byte, 1, 5);
        op_finish(rank, &op, 1);
        op_send(rank, &op, &byte, 1, 6);
        op_finish(rank, &op, 1);
    }
    rank_stop(rank);
}

static void neighbour(struct rank *rank)
{
    serve(rank, NULL);
    answer_on(rank);
}

static void ask_neighbour(struct rank *rank, BMI_addr_t addr, const char *what)
{
    struct op send, receive;
    char byte = 0;
    op_post(rank, &receive, POST_RECEIVE, addr, &byte, 1, 6);
    op_post(rank, &send, POST_SEND, addr, (void *)(uintptr_t)what, 1, 5);
    op_finish(rank, &send, 1);
    op_finish(rank, &receive, 1);
    CHECK_EQUAL(rank, byte, *what);
}

/* All kinds of operation outstanding towards the peer that dies. */
struct outstanding {
    struct op ops[6];
    char *memory, byte;
};

static void post_outstanding(struct rank *rank, struct outstanding *all)
{
    all->memory = memory_take(rank, LARGE);
    op_receive(rank, &all->ops[0], &all->byte, 1, 1);
    op_receive(rank, &all->ops[1], all->memory, LARGE, 2);
    op_receive(rank, &all->ops[2], &all->byte, 1, 1);
    op_send(rank, &all->ops[3], all->memory, LARGE, 3);
    op_send(rank, &all->ops[4], all->memory, LARGE, 4);
    op_send(rank, &all->ops[5], all->memory, LARGE, 3);
}

/* Their connection was closed: they end without a time-out. */
static void expect_lost(struct rank *rank, struct outstanding *all)
{
    int64_t start = now_ms();
    for (int i = 0; i < 6; i++) {
        op_wait(rank, &all->ops[i]);
        if (!error_is_loss(all->ops[i].error) || all->ops[i].error == -BMI_ETIMEDOUT)
            rank_fail(rank, false, __FILE__, __LINE__, "operation %d ended with %s", i,
                      bmi_status_string(all->ops[i].error));
    }
    CHECK(rank, now_ms() - start < SOON_MS * patience());
    memory_give_back(all->memory);
}

static void dies(struct rank *rank)
{
    if (rank->role == 1) {
        serve(rank, NULL);
        rank_await_signal(rank, 0);
        rank_crash(rank);
    }
    if (rank->role == 2) {
        neighbour(rank);
        return;
    }
    struct outstanding all;
    rank_start_client(rank);
    join(rank, 2);
    BMI_addr_t other = rank->peer;
    join(rank, 1);
    timers_quieten(rank);
    post_outstanding(rank, &all);
    ask_neighbour(rank, other, "a");
    rank_signal(rank, 1);
    expect_lost(rank, &all);
    ask_neighbour(rank, other, "b");
    struct op op;
    op_send(rank, &op, "x", 1, 1);
    op_wait(rank, &op);
    CHECK(rank, error_is_loss(op.error));
    ask_neighbour(rank, other, "s");
    rank_stop(rank);
}

/* The same for a server whose client dies: it is not connected again, and posts return
 * the cause. */
static void accepted_dies(struct rank *rank)
{
    if (rank->role != 0) {
        rank_read_idle(rank, 0, rank->peer_url, sizeof rank->peer_url);
        rank_start_client(rank);
        rank->peer = rank_look_up(rank, rank->peer_url);
        struct op op;
        char byte = 0;
        op_receive(rank, &op, &byte, 1, 7);
        rank_hello_send(rank);
        rank_await_signal(rank, 0);
        if (rank->role == 1)
            rank_crash(rank);
        op_finish(rank, &op, 1);
        CHECK_EQUAL(rank, byte, 'l');
        rank_stop(rank);
        return;
    }
    struct outstanding all;
    rank_start_server(rank, NULL, 0);
    rank_write(rank, 1, rank->listen, sizeof rank->listen);
    BMI_addr_t dying = rank_hello_receive(rank);
    rank_write(rank, 2, rank->listen, sizeof rank->listen);
    BMI_addr_t living = rank_hello_receive(rank);
    rank->peer = dying;
    timers_quieten(rank);
    post_outstanding(rank, &all);
    op_collect(rank, 10);
    rank_signal(rank, 1);
    expect_lost(rank, &all);
    for (int kind = POST_SEND; kind <= POST_RECEIVE; kind++) {
        struct op op;
        char byte = 0;
        op_post(rank, &op, (enum post_kind)kind, dying, &byte, 1, 1);
        op_wait(rank, &op);
        CHECK(rank, error_is_loss(op.error));
    }
    rank_signal(rank, 2);
    rank->peer = living;
    struct op op;
    op_send(rank, &op, "l", 1, 7);
    op_finish(rank, &op, 1);
    rank_stop(rank);
}

/* No operation outstanding: no error, and no text on standard error or output. */
static void leaves_quietly(struct rank *rank)
{
    if (rank->role == 1) {
        serve(rank, NULL);
        rank_await_signal(rank, 0);
        rank_crash(rank);
    }
    struct capture capture;
    char text[1000];
    capture_begin(rank, &capture);
    rank_start_client(rank);
    join(rank, 1);
    uint64_t errors = statistics_of(rank, 0).errors;
    rank_signal(rank, 1);
    int64_t deadline = now_ms() + SOON_MS * patience();
    while (method_statistics(rank).links > 0) {
        NEED(rank, now_ms() < deadline);
        CHECK_EQUAL(rank, op_collect(rank, 20), 0);
    }
    CHECK_EQUAL(rank, statistics_of(rank, 0).errors, errors);
    struct op op;
    op_send(rank, &op, "x", 1, 1);
    op_wait(rank, &op);
    CHECK(rank, error_is_loss(op.error));
    rank_stop(rank);
    if (capture_end(rank, &capture, text, sizeof text) > 0)
        rank_fail(rank, false, __FILE__, __LINE__, "printed: %s", text);
}

/* A peer that is connected and silent: the time-out is a setting. */
static void silent(struct rank *rank)
{
    enum { TIMEOUT_MS = 4000 };
    if (rank->role == 1) {
        serve(rank, NULL);
        rank_await_signal(rank, 0);
        atomic_store(&rank->report->may_die[1], true);
        rank_signal(rank, 0);
        for (;;)
            raise(SIGSTOP);
    }
    if (rank->role == 2) {
        neighbour(rank);
        return;
    }
    struct outstanding all;
    rank_start_client(rank);
    NEED_STATUS(rank, BMI_set_info(0, BMI_SETTING, "peer_timeout_ms=4000"), 0);
    join(rank, 2);
    BMI_addr_t other = rank->peer;
    join(rank, 1);
    post_outstanding(rank, &all);
    rank_signal(rank, 1);
    rank_await_signal(rank, 1);
    int64_t start = now_ms();
    for (int i = 0; i < 6; i++)
        op_finish_error(rank, &all.ops[i], BMI_ETIMEDOUT);
    int64_t took = now_ms() - start;
    CHECK(rank, took >= TIMEOUT_MS / 2 && took <= 5 * TIMEOUT_MS + SOON_MS * patience());
    ask_neighbour(rank, other, "s");
    kill(atomic_load(&rank->report->pids[1]), SIGKILL);
    memory_give_back(all.memory);
    rank_stop(rank);
}

/* For role 1, which is stopped in the midst of a message. */
static char *huge_send(struct rank *rank, struct op *op)
{
    serve(rank, NULL);
    char *memory = memory_take(rank, HUGE_BYTES);
    memset(memory, 1, HUGE_BYTES);
    op_send(rank, op, memory, HUGE_BYTES, 1);
    return memory;
}

/* Role 0: connects to its neighbour and to role 1, receives the message of role 1, and stops that
 * process as soon as some bytes have arrived. Returns the receive's memory. */
static char *huge_receive_stopped(struct rank *rank, struct op *op, BMI_addr_t *other)
{
    char *memory = memory_take(rank, HUGE_BYTES);
    memory[0] = 0;
    join(rank, 2);
    *other = rank->peer;
    join(rank, 1);
    op_receive(rank, op, memory, HUGE_BYTES, 1);
    while (*(volatile char *)memory == 0)
        op_collect(rank, 1);
    kill(atomic_load(&rank->report->pids[1]), SIGSTOP);
    return memory;
}

/* After an operation has ended, no peer writes to its memory. */
static void check_ours(struct rank *rank, const char *memory)
{
    size_t changed = 0;
    for (size_t i = 0; i < HUGE_BYTES; i++)
        changed += memory[i] != OURS;
    CHECK_EQUAL(rank, changed, 0);
}

/* A peer that is stopped in the midst of its message, perhaps while it writes into our memory: its
 * connection ends, no other peer waits for that, and then the memory is ours again. */
static void stopped_midway(struct rank *rank)
{
    enum { GIVEN_UP_MS = 9000 };
    struct op op;
    BMI_addr_t other;
    if (strcmp(rank->method->scheme, "ofi+shm") == 0)
        rank_skip(rank, "a process killed while it sends may leave libfabric's lock taken");
    if (rank->role == 2) {
        neighbour(rank);
        return;
    }
    if (rank->role == 1) {
        atomic_store(&rank->report->may_die[1], true);
        huge_send(rank, &op);
        for (;;)
            op_collect(rank, 1000);
    }
    rank_start_client(rank);
    char *memory = huge_receive_stopped(rank, &op, &other);
    NEED_STATUS(rank, BMI_set_info(rank->peer, BMI_TCP_CLOSE_SOCKET, NULL), 0);
    int64_t start = now_ms();
    for (int i = 0; i < 3; i++)
        ask_neighbour(rank, other, "a");
    bool waited = op.done && now_ms() - start > GIVEN_UP_MS;
    CHECK(rank, !waited);
    bool early = op.done;
    if (early)
        memset(memory, OURS, HUGE_BYTES);
    kill(atomic_load(&rank->report->pids[1]), early ? SIGCONT : SIGKILL);
    op_wait(rank, &op);
    CHECK(rank, op.error == 0 || op.error == -BMI_ECANCEL || error_is_loss(op.error));
    if (!early)
        memset(memory, OURS, HUGE_BYTES);
    ask_neighbour(rank, other, "a");
    kill(atomic_load(&rank->report->pids[1]), SIGKILL);
    ask_neighbour(rank, other, "s");
    check_ours(rank, memory);
    memory_give_back(memory);
    rank_stop(rank);
}

/* A receive that is cancelled while its sender is stopped, perhaps while it writes into our memory:
 * no other peer waits for that, the connection stays, and when the receive has ended its memory is
 * ours again. */
static void stopped_cancelled(struct rank *rank)
{
    enum { GIVEN_UP_MS = 9000, LOOK_MS = 250 };
    struct op op;
    BMI_addr_t other;
    if (strcmp(rank->method->scheme, "ofi+shm") == 0)
        rank_skip(rank, "a process stopped while it sends may hold libfabric's lock");
    if (rank->role == 2) {
        neighbour(rank);
        return;
    }
    if (rank->role == 1) {
        char *memory = huge_send(rank, &op);
        op_wait(rank, &op);
        answer_on(rank);
        memory_give_back(memory);
        return;
    }
    rank_start_client(rank);
    NEED_STATUS(rank, BMI_set_info(0, BMI_SETTING, "cancel_grace_ms=20"), 0);
    char *memory = huge_receive_stopped(rank, &op, &other);
    if (!op.done)
        CHECK_STATUS(rank, BMI_cancel(op.id, rank->context), 0);
    int64_t start = now_ms(), longest = 0;
    while (!op.done && now_ms() - start < LOOK_MS) {
        int64_t asked = now_ms();
        ask_neighbour(rank, other, "a");
        longest = now_ms() - asked > longest ? now_ms() - asked : longest;
    }
    CHECK(rank, longest < GIVEN_UP_MS);
    if (op.done)
        memset(memory, OURS, HUGE_BYTES);
    kill(atomic_load(&rank->report->pids[1]), SIGCONT);
    if (!op.done) {
        op_wait(rank, &op);
        memset(memory, OURS, HUGE_BYTES);
    }
    CHECK(rank, op.error == 0 || op.error == -BMI_ECANCEL);
    ask_neighbour(rank, other, "a");
    ask_neighbour(rank, rank->peer, "s");
    ask_neighbour(rank, other, "s");
    check_ours(rank, memory);
    memory_give_back(memory);
    rank_stop(rank);
}

/* ---- a peer that comes again ----------------------------------------------------------------- */

static void serve_again(struct rank *rank)
{
    char url[BMI_MAX_ADDR_LEN];
    struct op op;
    char byte = 0;
    rank_read_idle(rank, 0, url, sizeof url);
    rank_start_server(rank, url, 0);
    rank_signal(rank, 0);
    rank->peer = rank_hello_receive(rank);
    op_receive(rank, &op, &byte, 1, 1);
    op_finish(rank, &op, 1);
    CHECK_EQUAL(rank, byte, 'n'); /* the new process; messages posted to the old one never arrive
                                      here */
    op_send(rank, &op, "a", 1, 2);
    op_finish(rank, &op, 1);
    rank_stop(rank);
}

/* Outstanding operations fail with the old process; the next send reconnects by itself. */
static void comes_again(struct rank *rank)
{
    if (rank->role == 1) {
        serve(rank, NULL);
        rank_await_signal(rank, 0);
        rank_crash(rank);
    }
    if (rank->role == 2) {
        serve_again(rank);
        return;
    }
    struct outstanding all;
    struct op send, receive;
    char byte = 0;
    rank_start_client(rank);
    join(rank, 1);
    timers_quieten(rank);
    post_outstanding(rank, &all);
    op_send(rank, &send, "o", 1, 1); /* eager: the old process's socket accepts it */
    op_finish(rank, &send, 1);
    rank_signal(rank, 1);
    expect_lost(rank, &all);
    rank_wait_for_end(rank, 1);
    rank_write(rank, 2, rank->peer_url, sizeof rank->peer_url);
    rank_await_signal(rank, 2);
    CHECK_EQUAL(rank, rank_look_up(rank, rank->peer_url), rank->peer);
    rank_hello_send(rank);
    op_receive(rank, &receive, &byte, 1, 2);
    op_send(rank, &send, "n", 1, 1);
    op_finish(rank, &send, 1);
    op_finish(rank, &receive, 1);
    CHECK_EQUAL(rank, byte, 'a');
    CHECK(rank, statistics_of(rank, rank->peer).reconnects >= 1);
    rank_stop(rank);
}

/* The old process dies while this one makes no progress: the next send, posted before the loss was
 * noticed, fails or reaches the new process whole; it is never lost without an error, and a later
 * one succeeds. */
static void comes_again_unnoticed(struct rank *rank)
{
    if (rank->role == 1) {
        serve(rank, NULL);
        rank_await_signal(rank, 0);
        rank_crash(rank);
    }
    if (rank->role == 2) {
        char url[BMI_MAX_ADDR_LEN], byte = 0;
        struct op op;
        rank_read_idle(rank, 0, url, sizeof url);
        rank_start_server(rank, url, 0);
        rank_signal(rank, 0);
        rank->peer = rank_hello_receive(rank);
        op_receive(rank, &op, &byte, 1, 1);
        op_finish(rank, &op, 1);
        CHECK(rank, byte == 'n' || byte == 'o');
        rank_signal(rank, 0);
        rank_stop(rank);
        return;
    }
    struct op op;
    char byte;
    rank_start_client(rank);
    join(rank, 1);
    op_receive(rank, &op, &byte, 1, 9);
    rank_signal(rank, 1);
    rank_wait_for_end(rank, 1);
    rank_write(rank, 2, rank->peer_url, sizeof rank->peer_url);
    rank_read_idle(rank, 2, &byte, 1);
    op_wait(rank, &op);
    CHECK(rank, error_is_loss(op.error));
    rank_hello_send(rank);
    op_send(rank, &op, "n", 1, 1);
    op_finish(rank, &op, 1);
    rank_await_signal(rank, 2);
    rank_stop(rank);
}

/* We close the connection: the next send connects again. */
static void closed_on_purpose(struct rank *rank)
{
    if (rank->role == 1) {
        rank_barrier(rank);
        rank->peer = rank_hello_receive(rank);
        message_pass(rank, 1000, 1, TOGETHER);
        return;
    }
    uint64_t before;
    CHECK_STATUS(rank, BMI_set_info(rank->peer, BMI_TCP_CLOSE_SOCKET, NULL), 0);
    before = method_statistics(rank).links_opened;
    rank_barrier(rank);
    rank_hello_send(rank);
    message_pass(rank, 1000, 1, TOGETHER);
    CHECK(rank, method_statistics(rank).links_opened > before);
}

/* The same for a connection that the other side has made, and that our looked-up address uses.
 * Operations posted to that address before its end wait for the next connection, or can be
 * cancelled. */
static void closed_of_the_other_side(struct rank *rank)
{
    struct op cancelled, kept;
    char byte;
    if (rank->role == 1) {
        rank_hello_send(rank);
        message_pass(rank, 1000, 1, TOGETHER);
        rank_barrier(rank);
        rank->peer = rank_hello_receive(rank);
        op_send(rank, &kept, "k", 1, 3);
        op_finish(rank, &kept, 1);
        message_pass(rank, 1000, 1, TOGETHER);
        return;
    }
    rank_hello_receive(rank);
    message_pass(rank, 1000, 1, TOGETHER);
    rank_barrier(rank);
    CHECK_STATUS(rank, BMI_set_info(rank->peer, BMI_TCP_CLOSE_SOCKET, NULL), 0);
    op_receive(rank, &cancelled, &byte, 1, 2);
    NEED_STATUS(rank, BMI_cancel(cancelled.id, rank->context), 0);
    op_receive(rank, &kept, &byte, 1, 3);
    rank_hello_send(rank);
    op_wait(rank, &cancelled);
    CHECK_STATUS(rank, cancelled.error, -BMI_ECANCEL);
    op_finish(rank, &kept, 1);
    message_pass(rank, 1000, 1, TOGETHER);
}

#define SECTION .section = "Failure"
const struct conformance_case failure_cases[] = {
    {SECTION, .name = "connection refused", .run = refused, .where = SOLO},
    {SECTION, .name = "connection refused, one at a time", .run = refused_alone, .where = SOLO},
    {SECTION, .name = "a peer dies: its operations end, others notice nothing", .run = dies,
     .where = CAST | OF_PROCESS, .roles = 3},
    {SECTION, .name = "an accepted peer that is gone stays gone", .run = accepted_dies,
     .where = CAST | OF_PROCESS, .roles = 3},
    {SECTION, .name = "a peer that goes with nothing outstanding is no error",
     .run = leaves_quietly, .where = CAST | OF_PROCESS, .roles = 2},
    {SECTION, .name = "a silent peer: ETIMEDOUT after a time that is a setting", .run = silent,
     .where = CAST | OF_PROCESS, .roles = 3},
    {SECTION, .name = "a peer that is stopped midway: others notice nothing", .run = stopped_midway,
     .where = CAST | OF_PROCESS, .roles = 3},
    {SECTION, .name = "a receive cancelled while its sender is stopped: others notice nothing",
     .run = stopped_cancelled, .where = CAST | OF_PROCESS, .roles = 3},
    {SECTION, .name = "a peer that restarts is a new incarnation", .run = comes_again,
     .where = CAST | OF_PROCESS, .roles = 3},
    {SECTION, .name = "a peer that restarts unnoticed", .run = comes_again_unnoticed,
     .where = CAST | OF_PROCESS, .roles = 3},
    {SECTION, .name = "BMI_TCP_CLOSE_SOCKET, then traffic again", .run = closed_on_purpose,
     .where = BOTH_LISTEN | PORTS},
    {SECTION, .name = "BMI_TCP_CLOSE_SOCKET of the other side's connection",
     .run = closed_of_the_other_side, .where = BOTH_LISTEN | PORTS},
    {0},
};
