/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wait_cases.c - "Test": the length of waits in test calls, the events that end them, and their use
 * of CPU time.
 */
#include "harness.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    READABLE_MS = 30000,
    BOUND_MS = 150,
    LONG_MS = 60000,
    SOON_MS = 30000,
    IDLE_MS = 500,
    IDLE_CPU_MS = 60
};
enum call { TEST, TESTSOME, TESTCONTEXT, TESTUNEXPECTED, CALLS };

static const char *const call_names[CALLS] = {"BMI_test", "BMI_testsome", "BMI_testcontext",
                                              "BMI_testunexpected"};

/* Waits by one of the calls; returns the call's result, and its time. */
static int wait_by(struct party *party, enum call call, struct op *op, int ms, int64_t *took)
{
    int count = -1, index, returned;
    bmi_error_code_t error = 0;
    bmi_op_id_t id = op->id;
    struct BMI_unexpected_info info;
    int64_t start = now_ms();
    if (call == TEST)
        returned = BMI_test(id, &count, &error, NULL, NULL, ms, party->context);
    else if (call == TESTSOME)
        returned = BMI_testsome(1, &id, &count, &index, &error, NULL, NULL, ms, party->context);
    else if (call == TESTCONTEXT)
        returned = BMI_testcontext(1, &id, &count, &error, NULL, NULL, ms, party->context);
    else
        returned = BMI_testunexpected(1, &count, &info, ms);
    *took = now_ms() - start;
    NEED(party, returned >= 0 && returned == count);
    if (count == 1 && call == TESTUNEXPECTED) {
        unexpected_give_back(party, &info);
    } else if (count == 1) {
        CHECK_EQUAL(party, error, 0);
        CHECK_EQUAL(party, id, op->id);
        op->done = true;
        party->reported++;
    }
    return returned;
}

static void expect_soon(struct party *party, enum call call, int64_t took)
{
    if (took > SOON_MS * patience())
        party_fail(party, false, __FILE__, __LINE__, "%s came back after %lld ms only",
                   call_names[call], (long long)took);
}

static void not_earlier(struct party *party)
{
    static const int bounds[] = {1, 7, BOUND_MS};
    struct op op;
    char byte;
    int64_t took;
    op_receive(party, &op, &byte, 1, 1);
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < 3; i++) {
            CHECK_EQUAL(party, wait_by(party, (enum call)call, &op, bounds[i], &took), 0);
            if (took < bounds[i])
                party_fail(party, false, __FILE__, __LINE__, "%s waited %lld ms of %d",
                           call_names[call], (long long)took, bounds[i]);
            CHECK(party, took < bounds[i] + SOON_MS * patience());
        }
        CHECK_EQUAL(party, wait_by(party, (enum call)call, &op, 0, &took), 0);
        CHECK(party, took < SOON_MS * patience());
    }
    op_cancel(party, &op, false);
}

/* A completion that exists already; then one that comes during the wait. */
static void at_once(struct party *party)
{
    timers_quieten(party);
    for (int call = 0; call < CALLS; call++) {
        for (int bound = 0; bound < 2; bound++) {
            struct op op;
            char byte = 'b';
            int64_t took;
            if (party->role == SENDER) {
                party_meet(party);
                if (call == TESTUNEXPECTED)
                    op_send_unexpected(party, &op, &byte, 1, 1);
                else
                    op_send(party, &op, &byte, 1, call);
                op_finish(party, &op, 1);
                continue;
            }
            op = (struct op){0};
            if (call != TESTUNEXPECTED)
                op_receive(party, &op, &byte, 1, call);
            party_meet_idle(party);
            int ms = bound ? INT_MAX : LONG_MS * patience(), got = 0;
            int64_t start = now_ms();
            while (!got) /* a wait may end early for an unexpected message of this process */
                got = wait_by(party, (enum call)call, &op, ms, &took);
            expect_soon(party, (enum call)call, now_ms() - start);
        }
    }
}

static void expect_idle(struct party *party, const char *while_what)
{
    int64_t thread = thread_cpu_ms(), process = process_cpu_ms(), start = now_ms();
    while (now_ms() - start < IDLE_MS)
        op_collect(party, (int)(IDLE_MS - (now_ms() - start)));
    thread = thread_cpu_ms() - thread;
    process = process_cpu_ms() - process;
    if (thread > IDLE_CPU_MS * patience() || process > 2 * IDLE_CPU_MS * patience())
        party_fail(party, false, __FILE__, __LINE__,
                   "%d ms of waiting (%s) took %lld ms of CPU, %lld in the process", IDLE_MS,
                   while_what, (long long)thread, (long long)process);
}

static void idle_alone(struct party *party)
{
    struct op op;
    char byte;
    int64_t took, cpu;
    expect_idle(party, "nothing posted");
    op_receive(party, &op, &byte, 1, 1);
    for (int call = 0; call < CALLS; call++) {
        cpu = thread_cpu_ms();
        CHECK_EQUAL(party, wait_by(party, (enum call)call, &op, IDLE_MS, &took), 0);
        cpu = thread_cpu_ms() - cpu;
        if (cpu > IDLE_CPU_MS * patience())
            party_fail(party, false, __FILE__, __LINE__, "%s: %d ms took %lld ms of CPU",
                       call_names[call], IDLE_MS, (long long)cpu);
    }
    op_cancel(party, &op, false);
}

/* Both sides connected, receives posted, small and large sends without a receive yet. */
static void idle_connected(struct party *party)
{
    struct op large, small, receive;
    char byte, *memory = memory_take(party, 4 * MIB);
    message_pass(party, 100, 1, TOGETHER);
    party_meet(party);
    expect_idle(party, "connected");
    op_receive(party, &receive, &byte, 1, 100 + party->role);
    if (party->role == SENDER) {
        op_send(party, &large, memory, 4 * MIB, 2);
        op_send(party, &small, memory, 1000, 3);
    }
    party_meet(party);
    op_collect(party, 10);
    expect_idle(party, "messages wait for their receives");
    party_meet(party);
    if (party->role == RECEIVER) {
        op_receive(party, &small, memory, 1000, 3);
        op_receive(party, &large, memory, 4 * MIB, 2);
    }
    op_finish(party, &small, 1000);
    op_finish(party, &large, 4 * MIB);
    op_cancel(party, &receive, false);
    memory_give_back(memory);
}

/* A host that accepts the connection and sends nothing. */
static void idle_connecting(struct party *party)
{
    char url[100];
    int descriptor, port = plain_listener(party, &descriptor);
    struct op op;
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", party->method->scheme, port);
    party->peer = party_look_up(party, url);
    op_send(party, &op, "x", 1, 1);
    expect_idle(party, "no answer to the connection yet");
    op_cancel(party, &op, true);
    close(descriptor);
}

/* ---- what else ends a wait ------------------------------------------------------------------- */

static void context_ends_for_unexpected(struct party *party)
{
    struct BMI_unexpected_info info;
    bmi_op_id_t id;
    bmi_error_code_t error;
    for (int i = 0; i < 3; i++) {
        if (party->role == SENDER) {
            party_meet(party);
            party_greet(party);
            party_meet(party);
            continue;
        }
        int count = 7;
        party_meet_idle(party);
        int64_t start = now_ms();
        CHECK_EQUAL(party,
                    BMI_testcontext(1, &id, &count, &error, NULL, NULL, LONG_MS * patience(),
                                    party->context),
                    0);
        CHECK_EQUAL(party, count, 0);
        expect_soon(party, TESTCONTEXT, now_ms() - start);
        NEED_EQUAL(party, BMI_testunexpected(1, &count, &info, 0), 1);
        CHECK_EQUAL(party, info.size, 5);
        unexpected_give_back(party, &info);
        party_meet(party);
    }
}

static void unexpected_ends_for_only_context(struct party *party)
{
    for (int i = 0; i < 3; i++) {
        struct op send, receive;
        struct BMI_unexpected_info info;
        char byte;
        int count = 7;
        op_receive(party, &receive, &byte, 1, 1);
        op_send(party, &send, "b", 1, 1);
        int64_t start = now_ms();
        CHECK_EQUAL(party, BMI_testunexpected(1, &count, &info, LONG_MS * patience()), 0);
        CHECK_EQUAL(party, count, 0);
        expect_soon(party, TESTUNEXPECTED, now_ms() - start);
        op_finish(party, &send, 1);
        op_finish(party, &receive, 1);
    }
}

/* Another thread waits on the context, but for other operations. */
struct other_wait {
    struct party *party;
    bool some; /* by testsome */
    bmi_op_id_t id;
    int count, index;
    bmi_error_code_t error;
};

static void *other_wait_run(void *argument)
{
    struct other_wait *other = argument;
    bmi_context_id context = other->party->context;
    int64_t deadline = now_ms() + LONG_MS * patience();
    while (other->count == 0 && now_ms() < deadline) {
        if (other->some)
            BMI_testsome(1, &other->id, &other->count, &other->index, &other->error, NULL, NULL,
                         LONG_MS * patience(), context);
        else
            BMI_test(other->id, &other->count, &other->error, NULL, NULL, LONG_MS * patience(),
                     context);
    }
    return NULL;
}

static void unexpected_ends_beside_other_waits(struct party *party, bool some)
{
    struct other_wait other = {.party = party, .some = some};
    struct bmi_context_statistics statistics = {.context = party->context};
    pthread_t thread;
    bmi_size_t actual;
    char byte;
    NEED_STATUS(party,
                BMI_post_recv(&other.id, party->peer, &byte, 1, &actual, BMI_EXT_ALLOC, 99, NULL,
                              party->context, NULL),
                0);
    NEED(party, pthread_create(&thread, NULL, other_wait_run, &other) == 0);
    while (statistics.waiters == 0) {
        NEED_STATUS(party, BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &statistics), 0);
        sched_yield();
    }
    unexpected_ends_for_only_context(party);
    CHECK_STATUS(party, BMI_cancel(other.id, party->context), 0);
    pthread_join(thread, NULL);
    CHECK_EQUAL(party, other.count, 1);
    CHECK_STATUS(party, other.error, -BMI_ECANCEL);
}

static void unexpected_ends_beside_test(struct party *party)
{
    unexpected_ends_beside_other_waits(party, false);
}

static void unexpected_ends_beside_testsome(struct party *party)
{
    unexpected_ends_beside_other_waits(party, true);
}

struct pinged {
    BMI_addr_t addr;
    int status;
};

static void *ping_run(void *argument)
{
    struct pinged *pinged = argument;
    double us;
    pinged->status = bmi_ping(pinged->addr, LONG_MS * patience(), &us);
    return NULL;
}

/* bmi_ping has its own context; the program's context is still the only one. */
static void unexpected_ends_during_ping(struct party *party)
{
    char url[200];
    void *link = NULL;
    pthread_t thread;
    int silent, port = plain_listener(party, &silent);
    NEED_STATUS(party, BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=600000"), 0);
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", party->method->scheme, port);
    struct pinged pinged = {.addr = party_look_up(party, url)};
    NEED(party, pthread_create(&thread, NULL, ping_run, &pinged) == 0);
    while (link == NULL) {
        op_collect(party, 5);
        NEED_STATUS(party, BMI_get_info(pinged.addr, BMI_GET_METH_ADDR, &link), 0);
    }
    unexpected_ends_for_only_context(party);
    close(silent);
    pthread_join(thread, NULL);
    CHECK(party, pinged.status < 0);
}

/* The loop that a program with one thread has: both calls in turn, long waits in each. */
static void one_thread_alternates(struct party *party)
{
    enum { ROUNDS = 20 };
    int64_t start = now_ms();
    if (party->role == SENDER) {
        for (int i = 0; i < ROUNDS; i++) {
            struct op reply;
            char byte;
            op_receive(party, &reply, &byte, 1, i);
            party_greet(party);
            op_finish(party, &reply, 1);
        }
        return;
    }
    for (int i = 0; i < ROUNDS; i++) {
        struct op reply;
        struct BMI_unexpected_info info;
        int count = 0;
        while (count == 0) {
            BMI_testunexpected(1, &count, &info, party_is_self(party) ? 100 : 5000);
            if (count == 0)
                op_collect(party, 5000);
        }
        unexpected_give_back(party, &info);
        op_post(party, &reply, POST_SEND, info.addr, "r", 1, i);
        op_finish(party, &reply, 1);
    }
    CHECK(party, now_ms() - start < SOON_MS * patience());
}

/* ---- a descriptor for the program's own loop ------------------------------------------------- */

static int context_descriptor(struct party *party)
{
    struct bmi_context_fd asked = {.context = party->context, .fd = -1};
    timers_quieten(party);
    NEED_STATUS(party, BMI_get_info(0, BMI_GET_CONTEXT_FD, &asked), 0);
    NEED(party, asked.fd >= 0);
    return asked.fd;
}

static int readable(int descriptor, int ms)
{
    struct pollfd polled = {.fd = descriptor, .events = POLLIN};
    return poll(&polled, 1, ms);
}

/* Makes progress only after poll() until `op` is done. A descriptor that stays unreadable for
 * READABLE_MS has missed an event; no timer of the library makes it readable before, see
 * context_descriptor. */
static void finish_by_poll(struct party *party, int descriptor, struct op *op, bmi_size_t size)
{
    int64_t deadline = now_ms() + LONG_MS * patience();
    while (!op->done) {
        NEED(party, readable(descriptor, READABLE_MS * patience()) == 1);
        while (op_collect(party, 0) > 0)
            ;
        NEED(party, now_ms() < deadline);
    }
    op_finish(party, op, size);
}

static void expect_unreadable(struct party *party, int descriptor)
{
    int64_t deadline = now_ms() + SOON_MS * patience();
    while (readable(descriptor, 50) != 0) {
        NEED(party, now_ms() < deadline);
        op_collect(party, 0);
    }
}

static void descriptor_only(struct party *party)
{
    static const bmi_size_t sizes[] = {0, 100, 20000, 300000, 4 * MIB};
    int descriptor = context_descriptor(party);
    char *memory = memory_take(party, 4 * MIB);
    for (int i = 0; i < 5; i++) {
        struct op op;
        if (party->role == SENDER) {
            pattern_fill(memory, sizes[i], (uint64_t)i);
            op_send(party, &op, memory, sizes[i], i);
        } else {
            op_receive(party, &op, memory, sizes[i], i);
        }
        finish_by_poll(party, descriptor, &op, sizes[i]);
        if (party->role == RECEIVER)
            CHECK(party, pattern_holds(memory, sizes[i], (uint64_t)i));
    }
    party_meet(party);
    expect_unreadable(party, descriptor);
    memory_give_back(memory);
}

/* Level-triggered: readable as long as a completion waits, and not longer. */
static void descriptor_level(struct party *party)
{
    struct op send, receive;
    char byte;
    int descriptor = context_descriptor(party);
    CHECK_EQUAL(party, context_descriptor(party), descriptor);
    expect_unreadable(party, descriptor);
    op_receive(party, &receive, &byte, 1, 1);
    expect_unreadable(party, descriptor);
    op_send(party, &send, "b", 1, 1);
    int64_t deadline = now_ms() + SOON_MS * patience();
    struct bmi_context_statistics statistics = {.context = party->context};
    while (statistics.queue_depth == 0) { /* another context made the progress: this one keeps its
                                             own completions */
        int count;
        struct BMI_unexpected_info info;
        NEED(party, now_ms() < deadline);
        BMI_testunexpected(1, &count, &info, 0);
        BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &statistics);
    }
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(party, readable(descriptor, 0), 1);
    op_finish(party, &send, 1);
    op_finish(party, &receive, 1);
    expect_unreadable(party, descriptor);
}

static void descriptor_unexpected(struct party *party)
{
    struct BMI_unexpected_info info;
    int count = 0, descriptor = context_descriptor(party);
    if (party->role == SENDER) {
        party_meet(party);
        party_greet(party);
        return;
    }
    party_meet(party);
    int64_t deadline = now_ms() + LONG_MS * patience();
    while (count == 0) {
        NEED(party, now_ms() < deadline);
        NEED(party, readable(descriptor, SOON_MS * patience()) == 1);
        op_collect(party, 0);
        NEED(party, BMI_testunexpected(1, &count, &info, 0) >= 0);
    }
    CHECK_EQUAL(party, info.size, 5);
    unexpected_give_back(party, &info);
    expect_unreadable(party, descriptor);
}

/* Every context's descriptor becomes readable, repeatedly, and is quiet after its program has
 * polled. */
static void descriptors_unexpected(struct party *party)
{
    enum { MORE = 5 };
    bmi_context_id first = party->context, contexts[MORE + 1] = {first};
    int descriptors[MORE + 1];
    for (int i = 0; i <= MORE; i++) {
        if (i > 0)
            NEED_STATUS(party, BMI_open_context(&contexts[i]), 0);
        party->context = contexts[i];
        descriptors[i] = context_descriptor(party);
    }
    for (int round = 0; round < 4; round++) {
        struct BMI_unexpected_info info;
        struct op greeting;
        int waiting = 0, count = 0;
        party->context = first;
        op_send_unexpected(party, &greeting, "hello", 5, round);
        op_finish(party, &greeting, 5);
        int64_t deadline = now_ms() + SOON_MS * patience();
        while (waiting == 0) {
            NEED(party, now_ms() < deadline);
            op_collect(party, 0);
            NEED_STATUS(party, BMI_get_info(party->peer, BMI_TCP_CHECK_UNEXPECTED, &waiting), 0);
        }
        /* the background task may have counted it, and be about to make the descriptor readable */
        for (int i = 0; i <= MORE; i++)
            CHECK_EQUAL(party, readable(descriptors[i], SOON_MS * patience()), 1);
        NEED_STATUS(party, BMI_testunexpected(1, &count, &info, 0), 1);
        unexpected_give_back(party, &info);
        for (int i = 0; i <= MORE; i++) {
            party->context = contexts[i];
            expect_unreadable(party, descriptors[i]);
        }
    }
    for (int i = 1; i <= MORE; i++)
        BMI_close_context(contexts[i]);
    party->context = first;
}

#define SECTION .section = "Test"
const struct conformance_case wait_cases[] = {
    {SECTION, .name = "a wait ends not before its bound", .run = not_earlier, .where = SOLO},
    {SECTION, .name = "a wait ends when there is something", .run = at_once},
    {SECTION, .name = "waiting burns no CPU", .run = idle_alone, .where = SOLO},
    {SECTION, .name = "waiting burns no CPU, connected and blocked", .run = idle_connected,
     .where = PROCESSES},
    {SECTION, .name = "waiting burns no CPU, connecting", .run = idle_connecting,
     .where = SOLO | PORTS},
    {SECTION, .name = "testcontext ends early for an unexpected message",
     .run = context_ends_for_unexpected},
    {SECTION, .name = "testunexpected ends early for the only context's completion",
     .run = unexpected_ends_for_only_context, .where = SOLO},
    {SECTION, .name = "testunexpected ends early for it beside a BMI_test of another",
     .run = unexpected_ends_beside_test, .where = SOLO},
    {SECTION, .name = "testunexpected ends early for it beside a testsome of others",
     .run = unexpected_ends_beside_testsome, .where = SOLO},
    {SECTION, .name = "testunexpected ends early for it during a ping",
     .run = unexpected_ends_during_ping, .where = SOLO | SOCKETS},
    {SECTION, .name = "one thread alternates between both", .run = one_thread_alternates},
    {SECTION, .name = "BMI_GET_CONTEXT_FD drives a program's own loop", .run = descriptor_only},
    {SECTION, .name = "BMI_GET_CONTEXT_FD is level-triggered", .run = descriptor_level,
     .where = SOLO},
    {SECTION, .name = "BMI_GET_CONTEXT_FD tells of unexpected messages",
     .run = descriptor_unexpected},
    {SECTION, .name = "BMI_GET_CONTEXT_FD of several contexts tells of unexpected messages",
     .run = descriptors_unexpected, .where = SOLO},
    {0},
};
