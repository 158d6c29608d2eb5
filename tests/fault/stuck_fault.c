/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stuck_fault.c - clients that are stopped (SIGSTOP) while many messages are on their way to them:
 * large ones, whose receives they had posted, fill the network, and small ones wait behind.
 *
 * First one, then many: a healthy client continues at its pace, long before any of them times out.
 * When they are killed, all sends to them end.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve.h"

enum { CLIENTS = 16, LARGE = 16, LARGE_SIZE = 1 << 20, SMALL = 300, SMALL_SIZE = 1000 };
enum { SENDS = LARGE + SMALL, HERE_TAG = 5, LARGE_TAG = 100, SMALL_TAG = 1000 };

static char listening[BMI_MAX_ADDR_LEN];
static char bytes[LARGE_SIZE];

/* Posts receives, reports that it is ready, and stops. */
static int stopped_client(void *argument, int channel)
{
    static struct noted receives[LARGE], here;
    (void)argument;
    BMI_addr_t server = client_open(channel);
    for (int i = 0; i < LARGE; i++) {
        void *buffer = malloc(LARGE_SIZE);
        CHECK(buffer != NULL, "no memory");
        note_receive(&receives[i], server, buffer, LARGE_SIZE, LARGE_TAG + i);
    }
    note_sendunexpected(&here, server, "", 0, HERE_TAG);
    noted_good(&here, "the word that it is here");
    for (int i = 0; i < 20; i++)
        operations_step(5);
    tell_number(channel, 0);
    raise(SIGSTOP);
    return 1;
}

static BMI_addr_t stopped[CLIENTS];
static unsigned stopped_count;

static void is_here(const struct BMI_unexpected_info *info)
{
    CHECK(info->tag == HERE_TAG, "an unexpected message with tag %d", info->tag);
    stopped[stopped_count++] = info->addr;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

static struct noted sends[CLIENTS][SENDS];

static void send_much(unsigned client)
{
    for (int i = 0; i < LARGE; i++)
        note_send(&sends[client][i], stopped[client], bytes, LARGE_SIZE, LARGE_TAG + i);
    for (int i = 0; i < 20; i++)
        operations_step(1);
    for (int i = 0; i < SMALL; i++) { /* each in its own message, if possible */
        note_send(&sends[client][LARGE + i], stopped[client], bytes, SMALL_SIZE, SMALL_TAG + i);
        operations_step(0);
    }
}

/* Makes the next clients stop, up to this number, and sends many messages to them. */
static void stop(const struct child *children, unsigned until)
{
    unsigned first = stopped_count;
    for (unsigned i = first; i < until; i++)
        tell(children[i].channel, listening, sizeof listening);
    while (stopped_count < until)
        operations_step(10);
    for (unsigned i = first; i < until; i++)
        while (!heard(children[i].channel, 0))
            operations_step(10);
    for (unsigned i = first; i < until; i++)
        send_much(i);
}

static unsigned ended_count(void)
{
    unsigned ended = 0;
    for (int client = 0; client < CLIENTS; client++)
        for (int i = 0; i < SENDS; i++)
            ended += sends[client][i].ended;
    return ended;
}

static void pace_check(struct echo_report *report, const struct echo_pace *before)
{
    struct echo_pace now = echo_pace(report, 300);
    echo_pace_unharmed(before, &now);
    printf("  %u of %u sends to %u stopped clients have ended\n", ended_count(),
           stopped_count * SENDS, stopped_count);
    CHECK(ended_count() < stopped_count * SENDS, "all sends ended: the test tests nothing");
}

int main(void)
{
    test_begin("stuck_fault", 150);
    struct echo_report *report = shared_memory(sizeof *report);
    struct child children[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        children[i] = child_start("client that stops", stopped_client, NULL);
    struct child client = echo_client_start(report);
    setenv("BMI_PEER_TIMEOUT_MS", "600000", 1);
    serve_here(0, listening);
    operations_open();
    test_unexpected = is_here;
    echo_client_go(report, &client, listening);
    struct echo_pace before = echo_pace(report, 300);
    stop(children, 1);
    pace_check(report, &before);
    stop(children, CLIENTS);
    pace_check(report, &before);

    for (int i = 0; i < CLIENTS; i++)
        child_kill(&children[i]);
    for (int i = 0; i < CLIENTS; i++)
        CHECK(noted_wait(sends[i], SENDS, TEST_BOUND_MS), "sends to a killed client do not end");
    echo_client_end(report, &client);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
