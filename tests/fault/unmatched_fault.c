/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unmatched_fault.c - a client sends many messages for which its server has posted no receive.
 *
 * The server holds no more of them than BMI_PEER_MEMORY; the client waits; another client continues
 * at its pace; and when the receives are posted, in the opposite order of the tags, all messages
 * arrive.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve.h"

enum { MESSAGES = 512, PEER_MEMORY = 128 << 10, OPEN_TAG = 5, FIRST_TAG = 100, LARGEST = 64 << 10 };

static char listening[BMI_MAX_ADDR_LEN];

static bmi_size_t size_of(unsigned number)
{
    struct chance chance = {.state = pattern_key(1, number)};
    bmi_size_t top = chance_below(&chance, 4) ? 4096 : LARGEST;
    return (bmi_size_t)chance_below(&chance, (uint64_t)top + 1);
}

static int client_run(void *argument, int channel)
{
    static struct noted open, sends[MESSAGES];
    static char buffers[MESSAGES][LARGEST];
    (void)argument;
    BMI_addr_t server = client_open(channel);
    note_sendunexpected(&open, server, "", 0, OPEN_TAG);
    for (unsigned i = 0; i < MESSAGES; i++) {
        pattern_fill(buffers[i], (size_t)size_of(i), pattern_key(2, i), 0);
        note_send(&sends[i], server, buffers[i], size_of(i), (int)(FIRST_TAG + i));
    }
    for (unsigned i = 0; i < MESSAGES; i++) {
        while (!sends[i].ended)
            operations_step(1000);
        CHECK(sends[i].status == 0, "send %u: %s", i, status_name(sends[i].status));
    }
    struct bmi_statistics counters = statistics_of(0);
    tell_number(channel, (int64_t)(counters.credit_waits + counters.rendezvous_sent));
    hear_number(channel);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

static BMI_addr_t client;
static uint64_t most;

static void opened(const struct BMI_unexpected_info *info)
{
    CHECK(info->tag == OPEN_TAG, "an unexpected message with tag %d", info->tag);
    client = info->addr;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

static uint64_t gauge_watch(void)
{
    uint64_t bytes = statistics_of(0).unmatched_bytes;
    CHECK(bytes <= PEER_MEMORY, "%llu bytes of unmatched messages are held, %d are allowed",
          (unsigned long long)bytes, PEER_MEMORY);
    most = bytes > most ? bytes : most;
    return bytes;
}

static void pile_up(void)
{
    uint64_t since = now_ns(), bytes = 0, first = now_ns();
    while (now_ns() - since < UINT64_C(300000000) || bytes <= PEER_MEMORY / 4) {
        operations_step(1);
        uint64_t now = gauge_watch();
        if (now != bytes)
            since = now_ns();
        bytes = now;
        CHECK(now_ns() - first < TEST_BOUND_MS * UINT64_C(1000000),
              "the memory of unmatched messages never settles");
    }
    printf("  no receive posted: %llu bytes in %llu messages are held\n", (unsigned long long)bytes,
           (unsigned long long)statistics_of(0).unmatched_messages);
}

static void receive_all(void)
{
    static struct noted receives[MESSAGES];
    static char buffers[MESSAGES][LARGEST];
    for (unsigned i = MESSAGES; i-- > 0;) {
        note_receive(&receives[i], client, buffers[i], LARGEST, (int)(FIRST_TAG + i));
        operations_step(0);
        gauge_watch();
    }
    for (unsigned i = 0; i < MESSAGES; i++) {
        noted_good(&receives[i], "an unmatched message");
        gauge_watch();
        CHECK(receives[i].size == size_of(i) &&
                  pattern_wrong(buffers[i], (size_t)size_of(i), pattern_key(2, i), 0) < 0,
              "message %u of %lld bytes is wrong (%lld bytes)", i, (long long)size_of(i),
              (long long)receives[i].size);
    }
}

int main(void)
{
    test_begin("unmatched_fault", 60);
    struct echo_report *report = shared_memory(sizeof *report);
    struct child child = child_start("client", client_run, NULL);
    struct child third = echo_client_start(report);
    setenv("BMI_PEER_MEMORY", "128K", 1);
    serve_here(0, listening);
    operations_open();
    test_unexpected = opened;
    echo_client_go(report, &third, listening);
    struct echo_pace before = echo_pace(report, 500);
    tell(child.channel, listening, sizeof listening);
    pile_up();
    struct echo_pace now = echo_pace(report, 500);
    echo_pace_unharmed(&before, &now);
    receive_all();
    while (!heard(child.channel, 0))
        operations_step(1);
    int64_t waits = hear_number(child.channel);
    printf("  most bytes held: %llu of %d; %lld sends waited\n", (unsigned long long)most,
           PEER_MEMORY, (long long)waits);
    CHECK(waits > 0, "no send had to wait: the test tests nothing");
    CHECK(statistics_of(0).unmatched_bytes == 0, "unmatched bytes are left");
    tell_number(child.channel, 0);
    child_end(&child);
    echo_client_end(report, &third);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
