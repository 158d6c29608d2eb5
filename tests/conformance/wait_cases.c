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
static int wait_by(struct rank *rank, enum call call, struct op *op, int ms, int64_t *took)
{
    int count = -1, index, returned;
    bmi_error_code_t error = 0;
    bmi_op_id_t id = op->id;
    struct BMI_unexpected_info info;
    int64_t start = now_ms();
    if (call == TEST)
        returned = BMI_test(id, &count, &error, NULL, NULL, ms, rank->context);
    else if (call == TESTSOME)
        returned = BMI_testsome(1, &id, &count, &index, &error, NULL, NULL, ms, rank->context);
    else if (call == TESTCONTEXT)
        returned = BMI_testcontext(1, &id, &count, &error, NULL, NULL, ms, rank->context);
    else
        returned = BMI_testunexpected(1, &count, &info, ms);
    *took = now_ms() - start;
    NEED(rank, returned >= 0 && returned == count);
    if (count == 1 && call == TESTUNEXPECTED) {
        unexpected_give_back(rank, &info);
    } else if (count == 1) {
        CHECK_EQUAL(rank, error, 0);
        CHECK_EQUAL(rank, id, op->id);
        op->done = true;
        rank->reported++;
    }
    return returned;
}

static void expect_soon(struct rank *rank, enum call call, int64_t took)
{
    if (took > SOON_MS * patience())
        rank_fail(rank, false, __FILE__, __LINE__, "%s came back after %lld ms only",
                  call_names[call], (long long)took);
}

static void not_earlier(struct rank *rank)
{
    static const int bounds[] = {1, 7, BOUND_MS};
    struct op op;
    char byte;
    int64_t took;
    op_receive(rank, &op, &byte, 1, 1);
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < 3; i++) {
            CHECK_EQUAL(rank, wait_by(rank, (enum call)call, &op, bounds[i], &took), 0);
            if (took < bounds[i])
                rank_fail(rank, false, __FILE__, __LINE__, "%s waited %lld ms of %d",
                          call_names[call], (long long)took, bounds[i]);
            CHECK(rank, took < bounds[i] + SOON_MS * patience());
        }
        CHECK_EQUAL(rank, wait_by(rank, (enum call)call, &op, 0, &took), 0);
        CHECK(rank, took < SOON_MS * patience());
    }
    op_cancel(rank, &op, false);
}

/* A completion that exists already; then one that comes during the wait. */
static void at_once(struct rank *rank)
{
    timers_quieten(rank);
    for (int call = 0; call < CALLS; call++) {
        for (int bound = 0; bound < 2; bound++) {
            struct op op;
            char byte = 'b';
            int64_t took;
            if (rank->role == SENDER) {
                rank_barrier(rank);
                if (call == TESTUNEXPECTED)
                    op_send_unexpected(rank, &op, &byte, 1, 1);
                else
                    op_send(rank, &op, &byte, 1, call);
                op_finish(rank, &op, 1);
                continue;
            }
            op = (struct op){0};
            if (call != TESTUNEXPECTED)
                op_receive(rank, &op, &byte, 1, call);
            rank_barrier_idle(rank);
            int ms = bound ? INT_MAX : LONG_MS * patience(), got = 0;
            int64_t start = now_ms();
            while (!got) /* a wait may end early for an unexpected message of this process */
                got = wait_by(rank, (enum call)call, &op, ms, &took);
            expect_soon(rank, (enum call)call, now_ms() - start);
        }
    }
}

static void expect_idle(struct rank *rank, const char *while_what)
{
    int64_t thread = thread_cpu_ms(), process = process_cpu_ms(), start = now_ms();
    while (now_ms() - start < IDLE_MS)
        op_collect(rank, (int)(IDLE_MS - (now_ms() - start)));
    thread = thread_cpu_ms() - thread;
    process = process_cpu_ms() - process;
    if (thread > IDLE_CPU_MS * patience() || process > 2 * IDLE_CPU_MS * patience())
        rank_fail(rank, false, __FILE__, __LINE__,
                  "%d ms of waiting (%s) took %lld ms of CPU, %lld in the process", IDLE_MS,
                  while_what, (long long)thread, (long long)process);
}

static void idle_alone(struct rank *rank)
{
    struct op op;
    char byte;
    int64_t took, cpu;
    expect_idle(rank, "nothing posted");
    op_receive(rank, &op, &byte, 1, 1);
    for (int call = 0; call < CALLS; call++) {
        cpu = thread_cpu_ms();
        CHECK_EQUAL(rank, wait_by(rank, (enum call)call, &op, IDLE_MS, &took), 0);
        cpu = thread_cpu_ms() - cpu;
        if (cpu > IDLE_CPU_MS * patience())
            rank_fail(rank, false, __FILE__, __LINE__, "%s: %d ms took %lld ms of CPU",
                      call_names[call], IDLE_MS, (long long)cpu);
    }
    op_cancel(rank, &op, false);
}

/* Both sides connected, receives posted, small and large sends without a receive yet. */
static void idle_connected(struct rank *rank)
{
    struct op large, small, receive;
    char byte, *memory = memory_take(rank, 4 * MIB);
    message_pass(rank, 100, 1, TOGETHER);
    rank_barrier(rank);
    expect_idle(rank, "connected");
    op_receive(rank, &receive, &byte, 1, 100 + rank->role);
    if (rank->role == SENDER) {
        op_send(rank, &large, memory, 4 * MIB, 2);
        op_send(rank, &small, memory, 1000, 3);
    }
    rank_barrier(rank);
    op_collect(rank, 10);
    expect_idle(rank, "messages wait for their receives");
    rank_barrier(rank);
    if (rank->role == RECEIVER) {
        op_receive(rank, &small, memory, 1000, 3);
        op_receive(rank, &large, memory, 4 * MIB, 2);
    }
    op_finish(rank, &small, 1000);
    op_finish(rank, &large, 4 * MIB);
    op_cancel(rank, &receive, false);
    memory_give_back(memory);
}

/* A host that accepts the connection and sends nothing. */
static void idle_connecting(struct rank *rank)
{
    char url[100];
    int descriptor, port = plain_listener(rank, &descriptor);
    struct op op;
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", rank->method->scheme, port);
    rank->peer = rank_look_up(rank, url);
    op_send(rank, &op, "x", 1, 1);
    expect_idle(rank, "no answer to the connection yet");
    op_cancel(rank, &op, true);
    close(descriptor);
}

/* ---- what else ends a wait ------------------------------------------------------------------- */

static void context_ends_for_unexpected(struct rank *rank)
{
    struct BMI_unexpected_info info;
    bmi_op_id_t id;
    bmi_error_code_t error;
    for (int i = 0; i < 3; i++) {
        if (rank->role == SENDER) {
            rank_barrier(rank);
            rank_hello_send(rank);
            rank_barrier(rank);
            continue;
        }
        int count = 7;
        rank_barrier_idle(rank);
        int64_t start = now_ms();
        CHECK_EQUAL(rank,
                    BMI_testcontext(1, &id, &count, &error, NULL, NULL, LONG_MS * patience(),
                                    rank->context),
                    0);
        CHECK_EQUAL(rank, count, 0);
        expect_soon(rank, TESTCONTEXT, now_ms() - start);
        NEED_EQUAL(rank, BMI_testunexpected(1, &count, &info, 0), 1);
        CHECK_EQUAL(rank, info.size, 5);
        unexpected_give_back(rank, &info);
        rank_barrier(rank);
    }
}

static void unexpected_ends_for_only_context(struct rank *rank)
{
    for (int i = 0; i < 3; i++) {
        struct op send, receive;
        struct BMI_unexpected_info info;
        char byte;
        int count = 7;
        op_receive(rank, &receive, &byte, 1, 1);
        op_send(rank, &send, "b", 1, 1);
        int64_t start = now_ms();
        CHECK_EQUAL(rank, BMI_testunexpected(1, &count, &info, LONG_MS * patience()), 0);
        CHECK_EQUAL(rank, count, 0);
        expect_soon(rank, TESTUNEXPECTED, now_ms() - start);
        op_finish(rank, &send, 1);
        op_finish(rank, &receive, 1);
    }
}

/* Another thread waits on the context, but for other operations. */
struct other_wait {
    struct rank *rank;
    bool some; /* by testsome */
    bmi_op_id_t id;
    int count, index;
    bmi_error_code_t error;
};

static void *other_wait_run(void *argument)
{
    struct other_wait *other = argument;
    bmi_context_id context = other->rank->context;
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

static void unexpected_ends_beside_other_waits(struct rank *rank, bool some)
{
    struct other_wait other = {.rank = rank, .some = some};
    struct bmi_context_statistics statistics = {.context = rank->context};
    bmi_size_t actual;
    char byte;
    NEED_STATUS(rank,
                BMI_post_recv(&other.id, rank->peer, &byte, 1, &actual, BMI_EXT_ALLOC, 99, NULL,
                              rank->context, NULL),
                0);
    pthread_t thread = rank_thread(rank, other_wait_run, &other);
    while (statistics.waiters == 0) {
        NEED_STATUS(rank, BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &statistics), 0);
        sched_yield();
    }
    unexpected_ends_for_only_context(rank);
    CHECK_STATUS(rank, BMI_cancel(other.id, rank->context), 0);
    pthread_join(thread, NULL);
    CHECK_EQUAL(rank, other.count, 1);
    CHECK_STATUS(rank, other.error, -BMI_ECANCEL);
}

static void unexpected_ends_beside_test(struct rank *rank)
{
    unexpected_ends_beside_other_waits(rank, false);
}

static void unexpected_ends_beside_testsome(struct rank *rank)
{
    unexpected_ends_beside_other_waits(rank, true);
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
static void unexpected_ends_during_ping(struct rank *rank)
{
    char url[200];
    void *link = NULL;
    int silent, port = plain_listener(rank, &silent);
    NEED_STATUS(rank, BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=600000"), 0);
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", rank->method->scheme, port);
    struct pinged pinged = {.addr = rank_look_up(rank, url)};
    pthread_t thread = rank_thread(rank, ping_run, &pinged);
    while (link == NULL) {
        op_collect(rank, 5);
        NEED_STATUS(rank, BMI_get_info(pinged.addr, BMI_GET_METH_ADDR, &link), 0);
    }
    unexpected_ends_for_only_context(rank);
    close(silent);
    pthread_join(thread, NULL);
    CHECK(rank, pinged.status < 0);
}

/* The loop that a program with one thread has: both calls in turn, long waits in each. */
static void one_thread_alternates(struct rank *rank)
{
    enum { ROUNDS = 20 };
    int64_t start = now_ms();
    if (rank->role == SENDER) {
        for (int i = 0; i < ROUNDS; i++) {
            struct op reply;
            char byte;
            op_receive(rank, &reply, &byte, 1, i);
            rank_hello_send(rank);
            op_finish(rank, &reply, 1);
        }
        return;
    }
    for (int i = 0; i < ROUNDS; i++) {
        struct op reply;
        struct BMI_unexpected_info info;
        int count = 0;
        while (count == 0) {
            BMI_testunexpected(1, &count, &info, rank_is_self(rank) ? 100 : 5000);
            if (count == 0)
                op_collect(rank, 5000);
        }
        unexpected_give_back(rank, &info);
        op_post(rank, &reply, POST_SEND, info.addr, "r", 1, i);
        op_finish(rank, &reply, 1);
    }
    CHECK(rank, now_ms() - start < SOON_MS * patience());
}

/* ---- a descriptor for the program's own loop ------------------------------------------------- */

static int context_descriptor(struct rank *rank)
{
    struct bmi_context_fd asked = {.context = rank->context, .fd = -1};
    timers_quieten(rank);
    NEED_STATUS(rank, BMI_get_info(0, BMI_GET_CONTEXT_FD, &asked), 0);
    NEED(rank, asked.fd >= 0);
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
static void finish_by_poll(struct rank *rank, int descriptor, struct op *op, bmi_size_t size)
{
    int64_t deadline = now_ms() + LONG_MS * patience();
    while (!op->done) {
        NEED(rank, readable(descriptor, READABLE_MS * patience()) == 1);
        while (op_collect(rank, 0) > 0)
            ;
        NEED(rank, now_ms() < deadline);
    }
    op_finish(rank, op, size);
}

static void expect_unreadable(struct rank *rank, int descriptor)
{
    int64_t deadline = now_ms() + SOON_MS * patience();
    while (readable(descriptor, 50) != 0) {
        NEED(rank, now_ms() < deadline);
        op_collect(rank, 0);
    }
}

static void descriptor_only(struct rank *rank)
{
    static const bmi_size_t sizes[] = {0, 100, 20000, 300000, 4 * MIB};
    int descriptor = context_descriptor(rank);
    char *memory = memory_take(rank, 4 * MIB);
    for (int i = 0; i < 5; i++) {
        struct op op;
        if (rank->role == SENDER) {
            pattern_fill(memory, sizes[i], (uint64_t)i);
            op_send(rank, &op, memory, sizes[i], i);
        } else {
            op_receive(rank, &op, memory, sizes[i], i);
        }
        finish_by_poll(rank, descriptor, &op, sizes[i]);
        if (rank->role == RECEIVER)
            CHECK(rank, pattern_holds(memory, sizes[i], (uint64_t)i));
    }
    rank_barrier(rank);
    expect_unreadable(rank, descriptor);
    memory_give_back(memory);
}

/* Level-triggered: readable as long as a completion waits, and not longer. */
static void descriptor_level(struct rank *rank)
{
    struct op send, receive;
    char byte;
    int descriptor = context_descriptor(rank);
    CHECK_EQUAL(rank, context_descriptor(rank), descriptor);
    expect_unreadable(rank, descriptor);
    op_receive(rank, &receive, &byte, 1, 1);
    expect_unreadable(rank, descriptor);
    op_send(rank, &send, "b", 1, 1);
    int64_t deadline = now_ms() + SOON_MS * patience();
    struct bmi_context_statistics statistics = {.context = rank->context};
    while (statistics.queue_depth == 0) { /* another context made the progress: this one keeps its
                                             own completions */
        int count;
        struct BMI_unexpected_info info;
        NEED(rank, now_ms() < deadline);
        BMI_testunexpected(1, &count, &info, 0);
        BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &statistics);
    }
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(rank, readable(descriptor, 0), 1);
    op_finish(rank, &send, 1);
    op_finish(rank, &receive, 1);
    expect_unreadable(rank, descriptor);
}

static void descriptor_unexpected(struct rank *rank)
{
    struct BMI_unexpected_info info;
    int count = 0, descriptor = context_descriptor(rank);
    if (rank->role == SENDER) {
        rank_barrier(rank);
        rank_hello_send(rank);
        return;
    }
    rank_barrier(rank);
    int64_t deadline = now_ms() + LONG_MS * patience();
    while (count == 0) {
        NEED(rank, now_ms() < deadline);
        NEED(rank, readable(descriptor, SOON_MS * patience()) == 1);
        op_collect(rank, 0);
        NEED(rank, BMI_testunexpected(1, &count, &info, 0) >= 0);
    }
    CHECK_EQUAL(rank, info.size, 5);
    unexpected_give_back(rank, &info);
    expect_unreadable(rank, descriptor);
}

/* Every context's descriptor becomes readable, repeatedly, and is quiet after its program has
 * polled. */
static void descriptors_unexpected(struct rank *rank)
{
    enum { MORE = 5 };
    bmi_context_id first = rank->context, contexts[MORE + 1] = {first};
    int descriptors[MORE + 1];
    for (int i = 0; i <= MORE; i++) {
        if (i > 0)
            NEED_STATUS(rank, BMI_open_context(&contexts[i]), 0);
        rank->context = contexts[i];
        descriptors[i] = context_descriptor(rank);
    }
    for (int round = 0; round < 4; round++) {
        struct BMI_unexpected_info info;
        struct op hello;
        int waiting = 0, count = 0;
        rank->context = first;
        op_send_unexpected(rank, &hello, "hello", 5, round);
        op_finish(rank, &hello, 5);
        int64_t deadline = now_ms() + SOON_MS * patience();
        while (waiting == 0) {
            NEED(rank, now_ms() < deadline);
            op_collect(rank, 0);
            NEED_STATUS(rank, BMI_get_info(rank->peer, BMI_TCP_CHECK_UNEXPECTED, &waiting), 0);
        }
        /* the background task may have counted it, and be about to make the descriptor readable */
        for (int i = 0; i <= MORE; i++)
            CHECK_EQUAL(rank, readable(descriptors[i], SOON_MS * patience()), 1);
        NEED_STATUS(rank, BMI_testunexpected(1, &count, &info, 0), 1);
        unexpected_give_back(rank, &info);
        for (int i = 0; i <= MORE; i++) {
            rank->context = contexts[i];
            expect_unreadable(rank, descriptors[i]);
        }
    }
    for (int i = 1; i <= MORE; i++)
        BMI_close_context(contexts[i]);
    rank->context = first;
}

#define SECTION .section = "Test"
const struct conformance_case wait_cases[] = {
    {SECTION, .name = "a wait ends not before its bound", .run = not_earlier, .where = SOLO},
    {SECTION, .name = "a wait ends when there is something", .run = at_once},
    {SECTION, .name = "waiting burns no CPU", .run = idle_alone, .where = SOLO | OF_PROCESS},
    {SECTION, .name = "waiting burns no CPU, connected and blocked", .run = idle_connected,
     .where = PROCESSES | OF_PROCESS},
    {SECTION, .name = "waiting burns no CPU, connecting", .run = idle_connecting,
     .where = SOLO | PORTS | OF_PROCESS},
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
