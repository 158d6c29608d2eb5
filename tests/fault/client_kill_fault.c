/* SPDX-License-Identifier: BSD-3-Clause
 *
 * client_kill_fault.c - a client is killed in the midst of its transfers.
 *
 * The server's operations with it end at once with ECONNRESET; it is not connected again: later
 * posts return the cause, and reach no later client; dropped references free its memory.
 */
#include <stdio.h>
#include <string.h>

#include "serve.h"

enum {
    OPEN_TAG = 2,
    UP_TAG = 10,
    DOWN_TAG = 11,
    NEVER_TAG = 12,
    SIZE = 1 << 20,
    OPS = 8,
    ROUNDS = 20
};
enum { GROWTH = 32768 }; /* bytes, between half of the rounds and their end */

static char listening[BMI_MAX_ADDR_LEN];

/* Sends and receives for ever; it is killed at a random moment. */
static int client_run(void *argument, int channel)
{
    static char up[OPS][SIZE], down[OPS][SIZE];
    static struct noted open, sends[OPS], receives[OPS];
    (void)argument;
    BMI_addr_t server = client_open(channel);
    note_sendunexpected(&open, server, "", 0, OPEN_TAG);
    while (!heard(channel, 0)) {
        for (unsigned i = 0; i < OPS; i++) {
            if (!receives[i].posted || receives[i].ended)
                note_receive(&receives[i], server, down[i], SIZE, DOWN_TAG);
            if (!sends[i].posted || sends[i].ended)
                note_send(&sends[i], server, up[i], SIZE, UP_TAG);
        }
        operations_step(1000);
    }
    return 1;
}

static struct child clients[ROUNDS];
static BMI_addr_t client;

static void opened(const struct BMI_unexpected_info *info)
{
    CHECK(info->tag == OPEN_TAG, "an unexpected message with tag %d", info->tag);
    client = info->addr;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

static char up[OPS][SIZE], down[OPS][SIZE];
static struct noted sends[OPS], receives[OPS];

static unsigned transfers_step(void)
{
    unsigned ended = 0;
    for (unsigned i = 0; i < OPS; i++) {
        if (!receives[i].posted || receives[i].ended) {
            CHECK(!receives[i].posted || receives[i].status == 0, "receive: %s",
                  status_name(receives[i].status));
            ended += receives[i].posted;
            note_receive(&receives[i], client, up[i], SIZE, UP_TAG);
        }
        if (!sends[i].posted || sends[i].ended) {
            CHECK(!sends[i].posted || sends[i].status == 0, "send: %s",
                  status_name(sends[i].status));
            ended += sends[i].posted;
            note_send(&sends[i], client, down[i], SIZE, DOWN_TAG);
        }
    }
    operations_step(10);
    return ended;
}

static void lost_check(const struct noted *noted, const char *what)
{
    CHECK(noted->status == 0 || noted->status == -BMI_ECONNRESET, "%s: %s", what,
          status_name(noted->status));
}

static double round_run(struct child *child, unsigned transfers)
{
    static char nothing[SIZE];
    struct noted never; /* a receive without a message; all others may have completed in time */
    unsigned done = 0;
    memset(sends, 0, sizeof sends);
    memset(receives, 0, sizeof receives);
    client = 0;
    tell(child->channel, listening, sizeof listening);
    while (client == 0)
        operations_step(100);
    note_receive(&never, client, nothing, SIZE, NEVER_TAG);
    while (done < transfers)
        done += transfers_step();
    BMI_addr_t gone = client;
    child_kill(child);
    uint64_t start = now_ns();
    int bound = TEST_BOUND_MS;
    CHECK(noted_wait(receives, OPS, bound), "a receive from a killed client does not end");
    CHECK(noted_wait(sends, OPS, bound), "a send to a killed client does not end");
    CHECK(noted_wait(&never, 1, bound) && never.status == -BMI_ECONNRESET,
          "a receive of what a killed client did not send: %s", status_name(never.status));
    double took_ms = (double)(now_ns() - start) / 1e6;
    for (unsigned i = 0; i < OPS; i++) {
        lost_check(&sends[i], "a send to a killed client");
        lost_check(&receives[i], "a receive from a killed client");
    }
    while (method_statistics(test_method()).links > 0)
        operations_step(10); /* all may have completed in time, and its end may not be
                                noticed yet */
    struct noted late[2];
    note_send(&late[0], gone, down[0], 100, DOWN_TAG);
    note_receive(&late[1], gone, up[0], SIZE, UP_TAG);
    CHECK(noted_wait(late, 2, bound), "a later operation does not end");
    for (int i = 0; i < 2; i++) {
        CHECK(late[i].status != 0, "a later operation went well");
        lost_check(&late[i], "a later operation");
    }
    must(BMI_set_info(gone, BMI_DEC_ADDR_REF, NULL), "BMI_DEC_ADDR_REF");
    return took_ms;
}

int main(void)
{
    test_begin("client_kill_fault", 40);
    struct chance chance = {.state = test_seed()};
    unsigned rounds = test_scaled(ROUNDS, 5);
    rounds = rounds > ROUNDS ? ROUNDS : rounds;
    for (unsigned i = 0; i < rounds; i++)
        clients[i] = child_start("client", client_run, NULL);
    serve_here(BMI_AUTO_REF_COUNT, listening);
    operations_open();
    test_unexpected = opened;
    double longest_ms = 0;
    size_t memory = 0;
    for (unsigned i = 0; i < rounds; i++) {
        double took_ms = round_run(&clients[i], 1 + (unsigned)chance_below(&chance, 63));
        longest_ms = took_ms > longest_ms ? took_ms : longest_ms;
        if (i == rounds / 2)
            memory = memory_in_use();
    }
    /* libfabric releases the last one's connection some time later */
    uint64_t end = now_ns() + TEST_BOUND_MS * UINT64_C(1000000);
    while (memory_in_use() >= memory + GROWTH && now_ns() < end)
        operations_step(10);
    size_t now = memory_in_use();
    printf("  %u clients killed; operations ended within %.1f ms; memory %zu -> %zu bytes\n",
           rounds, longest_ms, memory, now);
    CHECK(!test_memory_measurable() || now < memory + GROWTH, "memory grew by %zu bytes",
          now - memory);
    struct bmi_statistics gauges = statistics_of(0);
    CHECK(gauges.outstanding_sends == 0 && gauges.outstanding_receives == 0 &&
              gauges.unmatched_bytes == 0 && gauges.unexpected_bytes == 0,
          "something is left in the library");
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
