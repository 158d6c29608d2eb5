/* SPDX-License-Identifier: BSD-3-Clause
 *
 * noread_fault.c - a peer that never reads: its socket is full.
 *
 * Sends to it end with ETIMEDOUT in bounded time, or with ECONNRESET when it disconnects. A healthy
 * client continues at its pace. The end of the library waits for it no longer than BMI_LINGER_MS.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "raw_peer.h"
#include "serve.h"

enum { HERE_TAG = 5, BULK_TAG = 6, TIMEOUT_MS = 4000, LINGER_MS = 300 };
enum { SENDS = 1024, SIZE = 16 << 10 };

static char listening[BMI_MAX_ADDR_LEN];

/* Connects, sends its listen address, grants credit without end, and reads no more. At the order it
 * resets. */
static int mute(void *argument, int channel)
{
    struct chance chance = {.state = test_seed() + 1};
    (void)argument;
    hear(channel, listening, sizeof listening);
    for (;;) {
        struct raw_hello hello = raw_hello_make(&chance);
        hello.eager_credit = hello.unexpected_credit = 1u << 30;
        if (hear_number(channel) == 0)
            return 0;
        int socket = raw_connect(listening, 4096);
        raw_send_hello(socket, &hello);
        raw_send_unexpected(socket, HERE_TAG, 0);
        hear_number(channel);
        raw_reset(socket);
    }
}

static BMI_addr_t muted;

static void here(const struct BMI_unexpected_info *info)
{
    CHECK(info->tag == HERE_TAG, "an unexpected message with tag %d", info->tag);
    muted = info->addr;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

static void mute_join(const struct child *child)
{
    muted = 0;
    tell_number(child->channel, 1);
    while (muted == 0)
        operations_step(10);
}

static struct noted sends[SENDS];
static char bytes[SIZE];

static unsigned ended_now(void)
{
    unsigned ended = 0;
    for (unsigned i = 0; i < SENDS; i++)
        ended += sends[i].ended;
    return ended;
}

static void fill(void)
{
    for (unsigned i = 0; i < SENDS; i++)
        note_send(&sends[i], muted, bytes, SIZE, BULK_TAG);
}

static void statuses_check(bmi_error_code_t expected, bmi_error_code_t or_else)
{
    unsigned failed = 0;
    for (unsigned i = 0; i < SENDS; i++) {
        bmi_error_code_t status = sends[i].status;
        CHECK(status == 0 || status == expected || status == or_else, "send %u: %s", i,
              status_name(status));
        failed += status != 0;
    }
    printf("  %u of %u sends failed with %s\n", failed, SENDS, status_name(expected));
    CHECK(failed > 0, "no send failed: the test tests nothing");
}

static void reset_run(const struct child *child, struct echo_report *report,
                      const struct echo_pace *before)
{
    mute_join(child);
    fill();
    struct echo_pace now = echo_pace(report, 500);
    echo_pace_unharmed(before, &now);
    CHECK(ended_now() < SENDS, "all sends ended though nobody reads");
    tell_number(child->channel, 0);
    CHECK(noted_wait(sends, SENDS, TEST_BOUND_MS), "sends to a peer that has reset do not end");
    statuses_check(-BMI_ECONNRESET, -BMI_ECONNRESET);
}

static void timeout_run(const struct child *child, struct echo_report *report,
                        const struct echo_pace *before)
{
    mute_join(child);
    uint64_t start = now_ns();
    fill();
    while (ended_now() < SENDS) {
        struct echo_pace now = echo_pace(report, 500);
        echo_pace_unharmed(before, &now);
        CHECK(now_ns() - start < UINT64_C(1000000) * (TIMEOUT_MS * test_slowness() + TEST_BOUND_MS),
              "sends to a peer that does not read never end");
    }
    printf("  all sends ended after %.0f ms\n", (double)(now_ns() - start) / 1e6);
    statuses_check(-BMI_ETIMEDOUT, -BMI_ETIMEDOUT);
    tell_number(child->channel, 0);
}

int main(void)
{
    test_begin("noread_fault", 40);
    struct echo_report *report = shared_memory(sizeof *report);
    struct child child = child_start("peer that does not read", mute, NULL);
    struct child client = echo_client_start(report);
    char timeout[16];
    snprintf(timeout, sizeof timeout, "%u", TIMEOUT_MS * test_slowness());
    setenv("BMI_PEER_TIMEOUT_MS", timeout, 1);
    setenv("BMI_LINGER_MS", "300", 1);
    serve_here(0, listening);
    operations_open();
    test_unexpected = here;
    tell(child.channel, listening, sizeof listening);
    echo_client_go(report, &client, listening);
    struct echo_pace before = echo_pace(report, 500);
    reset_run(&child, report, &before);
    timeout_run(&child, report, &before);
    echo_client_end(report, &client);

    mute_join(&child);
    fill();
    uint64_t start = now_ns();
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    double took_ms = (double)(now_ns() - start) / 1e6;
    printf("  BMI_finalize with a full socket: %.0f ms\n", took_ms);
    CHECK(took_ms < LINGER_MS + TEST_BOUND_MS, "BMI_finalize took %.0f ms", took_ms);
    tell_number(child.channel, 0);
    tell_number(child.channel, 0);
    child_end(&child);
    return test_passed();
}
