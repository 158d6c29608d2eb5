/* SPDX-License-Identifier: BSD-3-Clause
 *
 * crowd_stress.c - many client processes at one server, all connected at once.
 *
 * Each client asks, gets its bytes back (some eager, some large), and stays. When all are connected
 * the server sleeps with all of them idle, which must cost almost no processor time. Then every
 * client asks once more, and ends.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum { CLIENTS = 256, REQUEST_TAG = 1, REPLY_TAG = 2, SIZE_LARGE = 200000, IDLE_MS = 500 };

static char listening[BMI_MAX_ADDR_LEN];
static bmi_context_id context;

static bmi_size_t size_of(uint32_t client)
{
    return client % 2 ? SIZE_LARGE : 1000;
}

static bmi_size_t wait_for(bmi_op_id_t id, int posted, bmi_size_t actual, const char *what)
{
    int count = 0;
    bmi_error_code_t status = 0;
    must(posted, what);
    while (posted == 0 && count == 0)
        must(BMI_test(id, &count, &status, &actual, NULL, 1000, context), what);
    CHECK(status == 0, "%s: %s", what, status_name(status));
    return actual;
}

/* ---- clients --------------------------------------------------------------------------------- */

static void client_ask(BMI_addr_t server, uint32_t client)
{
    static char bytes[SIZE_LARGE];
    bmi_op_id_t send, receive;
    bmi_size_t actual = 0;
    memset(bytes, 0, sizeof bytes);
    int receiving = BMI_post_recv(&receive, server, bytes, SIZE_LARGE, &actual, BMI_EXT_ALLOC,
                                  REPLY_TAG, NULL, context, NULL);
    int sending = BMI_post_sendunexpected(&send, server, &client, sizeof client, BMI_EXT_ALLOC,
                                          REQUEST_TAG, NULL, context, NULL);
    wait_for(send, sending, 0, "request");
    actual = wait_for(receive, receiving, actual, "reply");
    CHECK(actual == size_of(client), "client %u: %lld bytes", client, (long long)actual);
    CHECK(pattern_wrong(bytes, (size_t)actual, pattern_key(1, client), 0) < 0,
          "client %u: wrong bytes", client);
}

static int client_main(void *argument, int channel)
{
    uint32_t client = *(const uint32_t *)argument;
    BMI_addr_t server;
    hear(channel, listening, sizeof listening);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    must(BMI_open_context(&context), "BMI_open_context");
    must(BMI_addr_lookup(&server, listening), "BMI_addr_lookup");
    client_ask(server, client);
    tell_number(channel, client);
    hear_number(channel); /* all are connected, and were idle */
    client_ask(server, client);
    BMI_close_context(context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* ---- server ---------------------------------------------------------------------------------- */

struct reply {
    bmi_size_t size;
    char bytes[SIZE_LARGE];
};

static unsigned replied;

static void reply_start(const struct BMI_unexpected_info *info)
{
    struct reply *reply = malloc(sizeof *reply);
    uint32_t client;
    bmi_op_id_t id;
    CHECK(reply != NULL && info->error_code == 0 && info->size == sizeof client, "a request");
    memcpy(&client, info->buffer, sizeof client);
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
    reply->size = size_of(client);
    pattern_fill(reply->bytes, (size_t)reply->size, pattern_key(1, client), 0);
    int posted = BMI_post_send(&id, info->addr, reply->bytes, reply->size, BMI_EXT_ALLOC, REPLY_TAG,
                               reply, context, NULL);
    must(posted, "reply");
    if (posted == 1) {
        free(reply);
        replied++;
    }
}

static void serve_once(void)
{
    struct BMI_unexpected_info infos[8];
    struct completion completion;
    int count = 0;
    while (next_completion(context, 0, &completion)) {
        struct reply *reply = completion.user;
        CHECK(completion.status == 0 && completion.size == reply->size, "a reply: %s",
              status_name(completion.status));
        free(reply);
        replied++;
    }
    must(BMI_testunexpected(8, &count, infos, 10), "BMI_testunexpected");
    for (int i = 0; i < count; i++)
        reply_start(&infos[i]);
}

static void idle_wait(void)
{
    struct BMI_unexpected_info info;
    int count = 0;
    uint64_t before = cpu_ns(), end = now_ns() + IDLE_MS * UINT64_C(1000000);
    while (now_ns() < end) {
        must(BMI_testunexpected(1, &count, &info, IDLE_MS), "BMI_testunexpected");
        CHECK(count == 0, "a request that nobody sent");
    }
    uint64_t spent_ms = (cpu_ns() - before) / 1000000;
    printf("  idle for %d ms: %llu ms of processor time\n", IDLE_MS, (unsigned long long)spent_ms);
    CHECK(spent_ms < IDLE_MS / 2, "waiting spent %llu of %d ms", (unsigned long long)spent_ms,
          IDLE_MS);
}

int main(void)
{
    static struct child children[CLIENTS];
    static uint32_t numbers[CLIENTS];
    test_begin("crowd_stress", 100);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        numbers[i] = i;
        children[i] = child_start("client", client_main, &numbers[i]);
    }
    serve_here(0, listening);
    must(BMI_open_context(&context), "BMI_open_context");
    for (uint32_t i = 0; i < CLIENTS; i++)
        tell(children[i].channel, listening, sizeof listening);
    while (replied < CLIENTS)
        serve_once();
    for (uint32_t i = 0; i < CLIENTS; i++) {
        while (!heard(children[i].channel, 0))
            serve_once();
        CHECK(hear_number(children[i].channel) == i, "client %u", i);
    }
    uint64_t links = method_statistics(test_method()).links;
    CHECK(links == CLIENTS, "%llu connections", (unsigned long long)links);
    idle_wait();
    for (uint32_t i = 0; i < CLIENTS; i++)
        tell_number(children[i].channel, 0);
    while (replied < 2 * CLIENTS || method_statistics(test_method()).links > 0)
        serve_once();
    for (uint32_t i = 0; i < CLIENTS; i++)
        child_end(&children[i]);
    BMI_close_context(context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
