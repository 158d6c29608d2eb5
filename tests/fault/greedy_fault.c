/* SPDX-License-Identifier: BSD-3-Clause
 *
 * greedy_fault.c - a client whose next request has always arrived when the server waits again:
 * others, including one that has not connected yet, are served nevertheless.
 *
 * The server is one thread that makes only waiting calls, and works for a while on each request.
 */
#include <stdlib.h>
#include <string.h>

#include "serve.h"

enum { ASK_TAG = 1, ANSWER_TAG = 2, WINDOW = 2, GREEDY_S = 20, WORK_NS = 20000 };

struct scene {
    char listening[BMI_MAX_ADDR_LEN];
    atomic_bool begun;    /* the greedy client is being served */
    atomic_bool answered; /* the other client was */
};

static bmi_context_id context;

/* Posts a request, and the receive of its answer, whose place is the user pointer. */
static void ask(BMI_addr_t server, uint64_t *answer)
{
    static uint64_t question;
    static bmi_size_t actual;
    bmi_op_id_t op;
    CHECK(BMI_post_recv(&op, server, answer, sizeof *answer, &actual, BMI_EXT_ALLOC, ANSWER_TAG,
                        answer, context, NULL) == 0,
          "a receive without a request yet");
    CHECK(BMI_post_sendunexpected(&op, server, &question, sizeof question, BMI_EXT_ALLOC, ASK_TAG,
                                  NULL, context, NULL) >= 0,
          "a request is refused");
}

/* The place of the next answer. */
static uint64_t *answer_await(void)
{
    void *place = NULL;
    while (place == NULL) {
        bmi_op_id_t op;
        bmi_error_code_t error;
        int got = 0;
        BMI_testcontext(1, &op, &got, &error, NULL, &place, 1000, context);
        if (got == 0)
            place = NULL;
        else
            must(error, "an operation");
    }
    return place;
}

static BMI_addr_t client_begin(const struct scene *scene)
{
    BMI_addr_t server;
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    must(BMI_open_context(&context), "BMI_open_context");
    must(BMI_addr_lookup(&server, scene->listening), "BMI_addr_lookup");
    return server;
}

/* Always has requests outstanding, until the other client was answered. */
static int greedy(void *argument, int channel)
{
    struct scene *scene = argument;
    uint64_t answers[WINDOW], until;
    hear_number(channel);
    BMI_addr_t server = client_begin(scene);
    until = now_ns() + GREEDY_S * UINT64_C(1000000000);
    for (int i = 0; i < WINDOW; i++)
        ask(server, &answers[i]);
    while (!atomic_load(&scene->answered) && now_ns() < until) {
        ask(server, answer_await());
        atomic_store(&scene->begun, true);
    }
    tell_number(channel, atomic_load(&scene->answered));
    hear_number(channel);
    return 0;
}

static int modest(void *argument, int channel)
{
    struct scene *scene = argument;
    uint64_t answer;
    hear_number(channel);
    BMI_addr_t server = client_begin(scene);
    ask(server, &answer);
    answer_await();
    atomic_store(&scene->answered, true);
    tell_number(channel, 0);
    hear_number(channel);
    return 0;
}

/* Only waits, as a server's thread without other contexts. */
static void serve_one(void)
{
    static uint64_t answer;
    struct BMI_unexpected_info info;
    bmi_op_id_t op;
    int count = 0;
    CHECK(BMI_testunexpected(1, &count, &info, 100) >= 0, "BMI_testunexpected");
    if (count == 0)
        return;
    for (uint64_t until = now_ns() + WORK_NS; now_ns() < until;)
        continue;
    CHECK(BMI_post_send(&op, info.addr, &answer, sizeof answer, BMI_EXT_ALLOC, ANSWER_TAG, NULL,
                        context, NULL) >= 0,
          "an answer is refused");
    must(BMI_unexpected_free(info.addr, info.buffer), "BMI_unexpected_free");
}

int main(void)
{
    test_begin("greedy_fault", 60);
    struct scene *scene = shared_memory(sizeof *scene);
    struct child one = child_start("greedy", greedy, scene);
    struct child other = child_start("modest", modest, scene);
    serve_here(0, scene->listening);
    must(BMI_open_context(&context), "BMI_open_context");
    tell_number(one.channel, 0);
    while (!atomic_load(&scene->begun))
        serve_one();
    tell_number(other.channel, 0);
    while (!heard(one.channel, 0))
        serve_one();
    CHECK(hear_number(one.channel), "one client keeps the server from all others");
    tell_number(one.channel, 0);
    tell_number(other.channel, 0);
    child_end(&one);
    child_end(&other);
    BMI_close_context(context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
