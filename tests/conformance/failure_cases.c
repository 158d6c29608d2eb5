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

static void refused(struct party *party)
{
    char url[200], byte, *memory = memory_take(party, LARGE);
    int holder;
    struct op ops[5];
    BMI_addr_t self = party->peer;
    refused_address(party, url, sizeof url, &holder);
    for (int i = 0; i < 3; i++) {
        party->peer = party_look_up(party, url);
        int64_t start = now_ms();
        op_receive(party, &ops[0], &byte, 1, 1);
        op_receive(party, &ops[1], memory, LARGE, 2);
        op_post(party, &ops[2], POST_SEND, party->peer, memory, LARGE, 1);
        op_post(party, &ops[3], POST_SEND, party->peer, &byte, 1, 1);
        op_post(party, &ops[4], POST_UNEXPECTED, party->peer, &byte, 1, 1);
        for (int k = 0; k < 5; k++)
            op_finish_error(party, &ops[k], BMI_ECONNREFUSED);
        CHECK(party, now_ms() - start < SOON_MS * patience());
    }
    CHECK(party, statistics_of(party, party->peer).errors >= 3 * 5);
    party->peer = self;
    message_pass_self(party);
    memory_give_back(memory);
}

/* A single send is refused, too. A single receive needs no connection, and may be cancelled. */
static void refused_alone(struct party *party)
{
    char url[200], byte;
    int holder;
    struct op op;
    refused_address(party, url, sizeof url, &holder);
    party->peer = party_look_up(party, url);
    op_send(party, &op, "x", 1, 1);
    op_finish_error(party, &op, BMI_ECONNREFUSED);
    op_send_unexpected(party, &op, "x", 1, 1);
    op_finish_error(party, &op, BMI_ECONNREFUSED);
    op_receive(party, &op, &byte, 1, 1);
    if (op.posted == 0)
        CHECK_STATUS(party, BMI_cancel(op.id, party->context), 0);
    op_wait(party, &op);
    CHECK(party, op.error == -BMI_ECANCEL || op.error == -BMI_ECONNREFUSED);
}

/* ---- a looked-up peer dies ------------------------------------------------------------------- */

/* A server that sends its address to role 0. */
static void serve(struct party *party, const char *listen)
{
    party_start_server(party, listen, 0);
    party_tell(party, 0, party->listen, sizeof party->listen);
    party->peer = party_be_greeted(party);
}

static void join(struct party *party, int server)
{
    party_hear_idle(party, server, party->peer_url, sizeof party->peer_url);
    party->peer = party_look_up(party, party->peer_url);
    party_greet(party);
}

/* Answers each small message of tag 5 with another, until the order to stop. */
static void answer_on(struct party *party)
{
    char byte = 0;
    while (byte != 's') {
        struct op op;
        op_receive(party, &op, &byte, 1, 5);
        op_finish(party, &op, 1);
        op_send(party, &op, &byte, 1, 6);
        op_finish(party, &op, 1);
    }
    party_stop(party);
}

static void neighbour(struct party *party)
{
    serve(party, NULL);
    answer_on(party);
}

static void ask_neighbour(struct party *party, BMI_addr_t addr, const char *what)
{
    struct op send, receive;
    char byte = 0;
    op_post(party, &receive, POST_RECEIVE, addr, &byte, 1, 6);
    op_post(party, &send, POST_SEND, addr, (void *)(uintptr_t)what, 1, 5);
    op_finish(party, &send, 1);
    op_finish(party, &receive, 1);
    CHECK_EQUAL(party, byte, *what);
}

/* All kinds of operation outstanding towards the peer that dies. */
struct outstanding {
    struct op ops[6];
    char *memory, byte;
};

static void post_outstanding(struct party *party, struct outstanding *all)
{
    all->memory = memory_take(party, LARGE);
    op_receive(party, &all->ops[0], &all->byte, 1, 1);
    op_receive(party, &all->ops[1], all->memory, LARGE, 2);
    op_receive(party, &all->ops[2], &all->byte, 1, 1);
    op_send(party, &all->ops[3], all->memory, LARGE, 3);
    op_send(party, &all->ops[4], all->memory, LARGE, 4);
    op_send(party, &all->ops[5], all->memory, LARGE, 3);
}

/* Their connection was closed: they end without a time-out. */
static void expect_lost(struct party *party, struct outstanding *all)
{
    int64_t start = now_ms();
    for (int i = 0; i < 6; i++) {
        op_wait(party, &all->ops[i]);
        if (!error_is_loss(all->ops[i].error) || all->ops[i].error == -BMI_ETIMEDOUT)
            party_fail(party, false, __FILE__, __LINE__, "operation %d ended with %s", i,
                       bmi_status_string(all->ops[i].error));
    }
    CHECK(party, now_ms() - start < SOON_MS * patience());
    memory_give_back(all->memory);
}

static void dies(struct party *party)
{
    if (party->role == 1) {
        serve(party, NULL);
        party_hear_go(party, 0);
        party_crash(party);
    }
    if (party->role == 2) {
        neighbour(party);
        return;
    }
    struct outstanding all;
    party_start_client(party);
    join(party, 2);
    BMI_addr_t other = party->peer;
    join(party, 1);
    timers_quieten(party);
    post_outstanding(party, &all);
    ask_neighbour(party, other, "a");
    party_tell_go(party, 1);
    expect_lost(party, &all);
    ask_neighbour(party, other, "b");
    struct op op;
    op_send(party, &op, "x", 1, 1);
    op_wait(party, &op);
    CHECK(party, error_is_loss(op.error));
    ask_neighbour(party, other, "s");
    party_stop(party);
}

/* The same for a server whose client dies: it is not connected again, and posts return
 * the cause. */
static void accepted_dies(struct party *party)
{
    if (party->role != 0) {
        party_hear_idle(party, 0, party->peer_url, sizeof party->peer_url);
        party_start_client(party);
        party->peer = party_look_up(party, party->peer_url);
        struct op op;
        char byte = 0;
        op_receive(party, &op, &byte, 1, 7);
        party_greet(party);
        party_hear_go(party, 0);
        if (party->role == 1)
            party_crash(party);
        op_finish(party, &op, 1);
        CHECK_EQUAL(party, byte, 'l');
        party_stop(party);
        return;
    }
    struct outstanding all;
    party_start_server(party, NULL, 0);
    party_tell(party, 1, party->listen, sizeof party->listen);
    BMI_addr_t dying = party_be_greeted(party);
    party_tell(party, 2, party->listen, sizeof party->listen);
    BMI_addr_t living = party_be_greeted(party);
    party->peer = dying;
    timers_quieten(party);
    post_outstanding(party, &all);
    op_collect(party, 10);
    party_tell_go(party, 1);
    expect_lost(party, &all);
    for (int kind = POST_SEND; kind <= POST_RECEIVE; kind++) {
        struct op op;
        char byte = 0;
        op_post(party, &op, (enum post_kind)kind, dying, &byte, 1, 1);
        op_wait(party, &op);
        CHECK(party, error_is_loss(op.error));
    }
    party_tell_go(party, 2);
    party->peer = living;
    struct op op;
    op_send(party, &op, "l", 1, 7);
    op_finish(party, &op, 1);
    party_stop(party);
}

/* No operation outstanding: no error, and no text on standard error or output. */
static void leaves_quietly(struct party *party)
{
    if (party->role == 1) {
        serve(party, NULL);
        party_hear_go(party, 0);
        party_crash(party);
    }
    struct capture capture;
    char text[1000];
    capture_begin(party, &capture);
    party_start_client(party);
    join(party, 1);
    uint64_t errors = statistics_of(party, 0).errors;
    party_tell_go(party, 1);
    int64_t deadline = now_ms() + SOON_MS * patience();
    while (method_statistics(party).links > 0) {
        NEED(party, now_ms() < deadline);
        CHECK_EQUAL(party, op_collect(party, 20), 0);
    }
    CHECK_EQUAL(party, statistics_of(party, 0).errors, errors);
    struct op op;
    op_send(party, &op, "x", 1, 1);
    op_wait(party, &op);
    CHECK(party, error_is_loss(op.error));
    party_stop(party);
    if (capture_end(party, &capture, text, sizeof text) > 0)
        party_fail(party, false, __FILE__, __LINE__, "printed: %s", text);
}

/* A peer that is connected and silent: the time-out is a setting. */
static void silent(struct party *party)
{
    enum { TIMEOUT_MS = 4000 };
    if (party->role == 1) {
        serve(party, NULL);
        party_hear_go(party, 0);
        atomic_store(&party->report->may_die[1], true);
        party_tell_go(party, 0);
        for (;;)
            raise(SIGSTOP);
    }
    if (party->role == 2) {
        neighbour(party);
        return;
    }
    struct outstanding all;
    party_start_client(party);
    NEED_STATUS(party, BMI_set_info(0, BMI_SETTING, "peer_timeout_ms=4000"), 0);
    join(party, 2);
    BMI_addr_t other = party->peer;
    join(party, 1);
    post_outstanding(party, &all);
    party_tell_go(party, 1);
    party_hear_go(party, 1);
    int64_t start = now_ms();
    for (int i = 0; i < 6; i++)
        op_finish_error(party, &all.ops[i], BMI_ETIMEDOUT);
    int64_t took = now_ms() - start;
    CHECK(party, took >= TIMEOUT_MS / 2 && took <= 5 * TIMEOUT_MS + SOON_MS * patience());
    ask_neighbour(party, other, "s");
    kill(atomic_load(&party->report->pids[1]), SIGKILL);
    memory_give_back(all.memory);
    party_stop(party);
}

/* For role 1, which is stopped in the midst of a message. */
static char *huge_send(struct party *party, struct op *op)
{
    serve(party, NULL);
    char *memory = memory_take(party, HUGE_BYTES);
    memset(memory, 1, HUGE_BYTES);
    op_send(party, op, memory, HUGE_BYTES, 1);
    return memory;
}

/* Role 0: connects to its neighbour and to role 1, receives the message of role 1, and stops that
 * process as soon as some bytes have arrived. Returns the receive's memory. */
static char *huge_receive_stopped(struct party *party, struct op *op, BMI_addr_t *other)
{
    char *memory = memory_take(party, HUGE_BYTES);
    memory[0] = 0;
    join(party, 2);
    *other = party->peer;
    join(party, 1);
    op_receive(party, op, memory, HUGE_BYTES, 1);
    while (*(volatile char *)memory == 0)
        op_collect(party, 1);
    kill(atomic_load(&party->report->pids[1]), SIGSTOP);
    return memory;
}

/* After an operation has ended, no peer writes to its memory. */
static void check_ours(struct party *party, const char *memory)
{
    size_t changed = 0;
    for (size_t i = 0; i < HUGE_BYTES; i++)
        changed += memory[i] != OURS;
    CHECK_EQUAL(party, changed, 0);
}

/* A peer that is stopped in the midst of its message, perhaps while it writes into our memory: its
 * connection ends, no other peer waits for that, and then the memory is ours again. */
static void stopped_midway(struct party *party)
{
    enum { GIVEN_UP_MS = 9000 };
    struct op op;
    BMI_addr_t other;
    if (strcmp(party->method->scheme, "ofi+shm") == 0)
        party_skip(party, "a process killed while it sends may leave libfabric's lock taken");
    if (party->role == 2) {
        neighbour(party);
        return;
    }
    if (party->role == 1) {
        atomic_store(&party->report->may_die[1], true);
        huge_send(party, &op);
        for (;;)
            op_collect(party, 1000);
    }
    party_start_client(party);
    char *memory = huge_receive_stopped(party, &op, &other);
    NEED_STATUS(party, BMI_set_info(party->peer, BMI_TCP_CLOSE_SOCKET, NULL), 0);
    int64_t start = now_ms();
    for (int i = 0; i < 3; i++)
        ask_neighbour(party, other, "a");
    bool waited = op.done && now_ms() - start > GIVEN_UP_MS;
    CHECK(party, !waited);
    bool early = op.done;
    if (early)
        memset(memory, OURS, HUGE_BYTES);
    kill(atomic_load(&party->report->pids[1]), early ? SIGCONT : SIGKILL);
    op_wait(party, &op);
    CHECK(party, op.error == 0 || op.error == -BMI_ECANCEL || error_is_loss(op.error));
    if (!early)
        memset(memory, OURS, HUGE_BYTES);
    ask_neighbour(party, other, "a");
    kill(atomic_load(&party->report->pids[1]), SIGKILL);
    ask_neighbour(party, other, "s");
    check_ours(party, memory);
    memory_give_back(memory);
    party_stop(party);
}

/* A receive that is cancelled while its sender is stopped, perhaps while it writes into our memory:
 * no other peer waits for that, the connection stays, and when the receive has ended its memory is
 * ours again. */
static void stopped_cancelled(struct party *party)
{
    enum { GIVEN_UP_MS = 9000, LOOK_MS = 250 };
    struct op op;
    BMI_addr_t other;
    if (strcmp(party->method->scheme, "ofi+shm") == 0)
        party_skip(party, "a process stopped while it sends may hold libfabric's lock");
    if (party->role == 2) {
        neighbour(party);
        return;
    }
    if (party->role == 1) {
        char *memory = huge_send(party, &op);
        op_wait(party, &op);
        answer_on(party);
        memory_give_back(memory);
        return;
    }
    party_start_client(party);
    NEED_STATUS(party, BMI_set_info(0, BMI_SETTING, "cancel_grace_ms=20"), 0);
    char *memory = huge_receive_stopped(party, &op, &other);
    if (!op.done)
        CHECK_STATUS(party, BMI_cancel(op.id, party->context), 0);
    int64_t start = now_ms(), longest = 0;
    while (!op.done && now_ms() - start < LOOK_MS) {
        int64_t asked = now_ms();
        ask_neighbour(party, other, "a");
        longest = now_ms() - asked > longest ? now_ms() - asked : longest;
    }
    CHECK(party, longest < GIVEN_UP_MS);
    if (op.done)
        memset(memory, OURS, HUGE_BYTES);
    kill(atomic_load(&party->report->pids[1]), SIGCONT);
    if (!op.done) {
        op_wait(party, &op);
        memset(memory, OURS, HUGE_BYTES);
    }
    CHECK(party, op.error == 0 || op.error == -BMI_ECANCEL);
    ask_neighbour(party, other, "a");
    ask_neighbour(party, party->peer, "s");
    ask_neighbour(party, other, "s");
    check_ours(party, memory);
    memory_give_back(memory);
    party_stop(party);
}

/* ---- a peer that comes again ----------------------------------------------------------------- */

static void serve_again(struct party *party)
{
    char url[BMI_MAX_ADDR_LEN];
    struct op op;
    char byte = 0;
    party_hear_idle(party, 0, url, sizeof url);
    party_start_server(party, url, 0);
    party_tell_go(party, 0);
    party->peer = party_be_greeted(party);
    op_receive(party, &op, &byte, 1, 1);
    op_finish(party, &op, 1);
    CHECK_EQUAL(party, byte, 'n'); /* the new process; messages posted to the old one never arrive
                                      here */
    op_send(party, &op, "a", 1, 2);
    op_finish(party, &op, 1);
    party_stop(party);
}

/* Outstanding operations fail with the old process; the next send reconnects by itself. */
static void comes_again(struct party *party)
{
    if (party->role == 1) {
        serve(party, NULL);
        party_hear_go(party, 0);
        party_crash(party);
    }
    if (party->role == 2) {
        serve_again(party);
        return;
    }
    struct outstanding all;
    struct op send, receive;
    char byte = 0;
    party_start_client(party);
    join(party, 1);
    timers_quieten(party);
    post_outstanding(party, &all);
    op_send(party, &send, "o", 1, 1); /* eager: the old process's socket accepts it */
    op_finish(party, &send, 1);
    party_tell_go(party, 1);
    expect_lost(party, &all);
    party_wait_for_end(party, 1);
    party_tell(party, 2, party->peer_url, sizeof party->peer_url);
    party_hear_go(party, 2);
    CHECK_EQUAL(party, party_look_up(party, party->peer_url), party->peer);
    party_greet(party);
    op_receive(party, &receive, &byte, 1, 2);
    op_send(party, &send, "n", 1, 1);
    op_finish(party, &send, 1);
    op_finish(party, &receive, 1);
    CHECK_EQUAL(party, byte, 'a');
    CHECK(party, statistics_of(party, party->peer).reconnects >= 1);
    party_stop(party);
}

/* The old process dies while this one makes no progress: the next send, posted before the loss was
 * noticed, fails or reaches the new process whole; it is never lost without an error, and a later
 * one succeeds. */
static void comes_again_unnoticed(struct party *party)
{
    if (party->role == 1) {
        serve(party, NULL);
        party_hear_go(party, 0);
        party_crash(party);
    }
    if (party->role == 2) {
        char url[BMI_MAX_ADDR_LEN], byte = 0;
        struct op op;
        party_hear_idle(party, 0, url, sizeof url);
        party_start_server(party, url, 0);
        party_tell_go(party, 0);
        party->peer = party_be_greeted(party);
        op_receive(party, &op, &byte, 1, 1);
        op_finish(party, &op, 1);
        CHECK(party, byte == 'n' || byte == 'o');
        party_tell_go(party, 0);
        party_stop(party);
        return;
    }
    struct op op;
    char byte;
    party_start_client(party);
    join(party, 1);
    op_receive(party, &op, &byte, 1, 9);
    party_tell_go(party, 1);
    party_wait_for_end(party, 1);
    party_tell(party, 2, party->peer_url, sizeof party->peer_url);
    party_hear_idle(party, 2, &byte, 1);
    op_wait(party, &op);
    CHECK(party, error_is_loss(op.error));
    party_greet(party);
    op_send(party, &op, "n", 1, 1);
    op_finish(party, &op, 1);
    party_hear_go(party, 2);
    party_stop(party);
}

/* We close the connection: the next send connects again. */
static void closed_on_purpose(struct party *party)
{
    if (party->role == 1) {
        party_meet(party);
        party->peer = party_be_greeted(party);
        message_pass(party, 1000, 1, TOGETHER);
        return;
    }
    uint64_t before;
    CHECK_STATUS(party, BMI_set_info(party->peer, BMI_TCP_CLOSE_SOCKET, NULL), 0);
    before = method_statistics(party).links_opened;
    party_meet(party);
    party_greet(party);
    message_pass(party, 1000, 1, TOGETHER);
    CHECK(party, method_statistics(party).links_opened > before);
}

/* The same for a connection that the other side has made, and that our looked-up address uses.
 * Operations posted to that address before its end wait for the next connection, or can be
 * cancelled. */
static void closed_of_the_other_side(struct party *party)
{
    struct op cancelled, kept;
    char byte;
    if (party->role == 1) {
        party_greet(party);
        message_pass(party, 1000, 1, TOGETHER);
        party_meet(party);
        party->peer = party_be_greeted(party);
        op_send(party, &kept, "k", 1, 3);
        op_finish(party, &kept, 1);
        message_pass(party, 1000, 1, TOGETHER);
        return;
    }
    party_be_greeted(party);
    message_pass(party, 1000, 1, TOGETHER);
    party_meet(party);
    CHECK_STATUS(party, BMI_set_info(party->peer, BMI_TCP_CLOSE_SOCKET, NULL), 0);
    op_receive(party, &cancelled, &byte, 1, 2);
    NEED_STATUS(party, BMI_cancel(cancelled.id, party->context), 0);
    op_receive(party, &kept, &byte, 1, 3);
    party_greet(party);
    op_wait(party, &cancelled);
    CHECK_STATUS(party, cancelled.error, -BMI_ECANCEL);
    op_finish(party, &kept, 1);
    message_pass(party, 1000, 1, TOGETHER);
}

#define SECTION .section = "Failure"
const struct conformance_case failure_cases[] = {
    {SECTION, .name = "connection refused", .run = refused, .where = SOLO},
    {SECTION, .name = "connection refused, one at a time", .run = refused_alone, .where = SOLO},
    {SECTION, .name = "a peer dies: its operations end, others notice nothing", .run = dies,
     .where = CAST, .roles = 3},
    {SECTION, .name = "an accepted peer that is gone stays gone", .run = accepted_dies,
     .where = CAST, .roles = 3},
    {SECTION, .name = "a peer that goes with nothing outstanding is no error",
     .run = leaves_quietly, .where = CAST, .roles = 2},
    {SECTION, .name = "a silent peer: ETIMEDOUT after a time that is a setting", .run = silent,
     .where = CAST, .roles = 3},
    {SECTION, .name = "a peer that is stopped midway: others notice nothing", .run = stopped_midway,
     .where = CAST, .roles = 3},
    {SECTION, .name = "a receive cancelled while its sender is stopped: others notice nothing",
     .run = stopped_cancelled, .where = CAST, .roles = 3},
    {SECTION, .name = "a peer that restarts is a new incarnation", .run = comes_again,
     .where = CAST, .roles = 3},
    {SECTION, .name = "a peer that restarts unnoticed", .run = comes_again_unnoticed, .where = CAST,
     .roles = 3},
    {SECTION, .name = "BMI_TCP_CLOSE_SOCKET, then traffic again", .run = closed_on_purpose,
     .where = BOTH_LISTEN | PORTS},
    {SECTION, .name = "BMI_TCP_CLOSE_SOCKET of the other side's connection",
     .run = closed_of_the_other_side, .where = BOTH_LISTEN | PORTS},
    {0},
};
