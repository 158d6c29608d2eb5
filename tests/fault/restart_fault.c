/* SPDX-License-Identifier: BSD-3-Clause
 *
 * restart_fault.c - a server is killed (SIGKILL) in mid-transfer and started again at its address.
 *
 * The client's operations end at once with ECONNRESET. While no server listens, a send ends with
 * ECONNREFUSED. After the restart the next send to the same looked-up address reconnects by itself,
 * and the new server gets no message that was posted to the old one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve.h"

enum { OPEN_TAG = 2, BULK_TAG = 10, SMALL_TAG = 11, REPLY_TAG = 20, END_TAG = 30 };
enum { BULK = 1 << 20, SENDS = 16, SMALLS = 4, RECEIVES = 4, BEFORE_KILL = 3 };

struct plan {
    unsigned generation; /* of the server to start */
    unsigned port;
};

struct report {
    _Atomic uint64_t killed_ns;
};

static struct report *report;

static uint64_t key_of(unsigned generation, unsigned number)
{
    return pattern_key(generation, number);
}

/* ---- server ---------------------------------------------------------------------------------- */

static BMI_addr_t client;
static unsigned opened_by, ends;

static void unexpected(const struct BMI_unexpected_info *info)
{
    if (info->tag == OPEN_TAG) {
        CHECK(info->size == sizeof opened_by, "an open of %lld bytes", (long long)info->size);
        memcpy(&opened_by, info->buffer, sizeof opened_by);
    } else {
        CHECK(info->tag == END_TAG, "an unexpected message with tag %d", info->tag);
        ends++;
    }
    client = info->addr;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

/* The first: receives some of the client's bulk and is killed while it waits for the rest. It never
 * posts the last receive: so that message is not sent, however late the kill comes. */
static void first_life(int channel)
{
    static char bulk[SENDS][BULK];
    static struct noted receives[SENDS];
    for (unsigned i = 0; i < BEFORE_KILL; i++)
        note_receive(&receives[i], client, bulk[i], BULK, BULK_TAG);
    for (unsigned i = 0; i < BEFORE_KILL; i++) {
        noted_good(&receives[i], "bulk");
        CHECK(pattern_wrong(bulk[i], BULK, key_of(1, i), 0) < 0, "bulk %u is wrong", i);
    }
    for (unsigned i = BEFORE_KILL; i + 1 < SENDS; i++)
        note_receive(&receives[i], client, bulk[i], BULK, BULK_TAG);
    tell_number(channel, 0);
    for (;;)
        operations_step(1000);
}

/* The second: must get its own generation's messages and no other. */
static void second_life(void)
{
    static char bulk[BULK], none[BULK];
    static char reply[BULK];
    struct noted receive, small, left[2], answer;
    note_receive(&receive, client, bulk, BULK, BULK_TAG);
    note_receive(&small, client, none, BULK, SMALL_TAG);
    noted_good(&receive, "bulk after the restart");
    noted_good(&small, "a small message after the restart");
    CHECK(receive.size == BULK && pattern_wrong(bulk, BULK, key_of(2, 0), 0) < 0,
          "something of the old server's reached the new one");
    CHECK(small.size == 100 && pattern_wrong(none, 100, key_of(2, 1), 0) < 0,
          "a small message of the old server's reached the new one");
    note_receive(&left[0], client, bulk, BULK, BULK_TAG);
    note_receive(&left[1], client, none, BULK, SMALL_TAG);
    pattern_fill(reply, BULK, key_of(2, 2), 0);
    note_send(&answer, client, reply, BULK, REPLY_TAG);
    noted_good(&answer, "reply");
    while (ends == 0)
        operations_step(100);
    for (int i = 0; i < 2; i++) {
        if (left[i].ended) { /* the client may have disconnected before it announced that */
            CHECK(left[i].status == -BMI_ECONNRESET,
                  "a message came that was not sent to this server");
            continue;
        }
        must(BMI_cancel(left[i].id, test_context), "BMI_cancel");
        CHECK(noted_wait(&left[i], 1, 10000) && left[i].status == -BMI_ECANCEL,
              "a cancelled receive: %s", status_name(left[i].status));
    }
}

static int server(void *argument, int channel)
{
    const struct plan *plan = argument;
    char address[64], listening[BMI_MAX_ADDR_LEN];
    test_address(address, plan->port);
    serve(address, 0, listening);
    operations_open();
    test_unexpected = unexpected;
    tell_number(channel, test_port(listening));
    while (client == 0)
        operations_step(100);
    CHECK(opened_by == plan->generation, "server %u was opened by an open to server %u",
          plan->generation, opened_by);
    if (plan->generation == 1)
        first_life(channel);
    second_life();
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* ---- client ---------------------------------------------------------------------------------- */

static char bulk[SENDS][BULK], small[SMALLS][100], replies[RECEIVES][BULK];

static void open_server(BMI_addr_t address, unsigned generation)
{
    struct noted open;
    note_sendunexpected(&open, address, &generation, sizeof generation, OPEN_TAG);
    noted_good(&open, "open");
}

static void statuses_check(const struct noted *noted, unsigned count, const char *what, bool all)
{
    unsigned failed = 0;
    for (unsigned i = 0; i < count; i++) {
        /* Posted after the background noticed the end, it dials anew: no server listens there by
         * then. */
        bmi_error_code_t status = noted[i].status;
        CHECK(status == 0 || status == -BMI_ECONNRESET || status == -BMI_ECONNREFUSED, "%s %u: %s",
              what, i, status_name(status));
        CHECK(status == 0 || noted[i].size == 0, "a failed %s tells %lld bytes", what,
              (long long)noted[i].size);
        failed += status != 0;
    }
    printf("  %u of %u %ss failed\n", failed, count, what);
    CHECK(failed > 0 && (!all || failed == count), "too few %ss failed", what);
}

static void transfer_and_fail(BMI_addr_t address, int channel)
{
    static struct noted sends[SENDS], smalls[SMALLS], receives[RECEIVES];
    for (unsigned i = 0; i < RECEIVES; i++)
        note_receive(&receives[i], address, replies[i], BULK, REPLY_TAG);
    for (unsigned i = 0; i < SENDS; i++) {
        pattern_fill(bulk[i], BULK, key_of(1, i), 0);
        note_send(&sends[i], address, bulk[i], BULK, BULK_TAG);
    }
    for (unsigned i = 0; i < SMALLS; i++)
        note_send(&smalls[i], address, small[i], 100, SMALL_TAG);
    while (!heard(channel, 0)) /* the server is about to be killed, which does not wait */
        operations_step(1);
    int bound = TEST_BOUND_MS;
    CHECK(noted_wait(receives, RECEIVES, bound), "a receive does not end");
    CHECK(noted_wait(sends, SENDS, bound), "a send does not end");
    CHECK(noted_wait(smalls, SMALLS, bound), "a small send does not end");
    uint64_t last = receives[RECEIVES - 1].ended_ns;
    for (unsigned i = 0; i < SENDS; i++)
        last = sends[i].ended_ns > last ? sends[i].ended_ns : last;
    hear_number(channel);
    printf("  the last operation ended %.1f ms after the kill\n",
           (double)(int64_t)(last - atomic_load(&report->killed_ns)) / 1e6);
    statuses_check(receives, RECEIVES, "receive", true);
    statuses_check(sends, SENDS, "send", false);
}

static void nobody_listens(BMI_addr_t address)
{
    struct noted refused;
    uint64_t start = now_ns();
    note_send(&refused, address, small[0], 100, SMALL_TAG);
    CHECK(noted_wait(&refused, 1, TEST_BOUND_MS), "a send to nobody does not end");
    printf("  with nobody there: %s after %.1f ms\n", status_name(refused.status),
           (double)(now_ns() - start) / 1e6);
    CHECK(refused.status == -BMI_ECONNREFUSED, "a send to nobody: %s", status_name(refused.status));
}

static void talk_again(BMI_addr_t address)
{
    struct noted sends[2], reply, end;
    open_server(address, 2);
    pattern_fill(bulk[0], BULK, key_of(2, 0), 0);
    pattern_fill(small[0], 100, key_of(2, 1), 0);
    note_receive(&reply, address, replies[0], BULK, REPLY_TAG);
    note_send(&sends[0], address, bulk[0], BULK, BULK_TAG);
    note_send(&sends[1], address, small[0], 100, SMALL_TAG);
    noted_good(&sends[0], "bulk to the new server");
    noted_good(&sends[1], "a small message to the new server");
    noted_good(&reply, "the new server's reply");
    CHECK(pattern_wrong(replies[0], BULK, key_of(2, 2), 0) < 0, "the new reply is wrong");
    note_sendunexpected(&end, address, "", 0, END_TAG);
    noted_good(&end, "end");
    CHECK(statistics_of(address).reconnects >= 1, "no reconnect was counted");
}

static int client_run(void *argument, int channel)
{
    (void)argument;
    char listening[64];
    BMI_addr_t address;
    int64_t port = hear_number(channel);
    test_address(listening, (unsigned)port);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    operations_open();
    must(BMI_addr_lookup(&address, listening), "BMI_addr_lookup");
    open_server(address, 1);
    transfer_and_fail(address, channel);
    nobody_listens(address);
    tell_number(channel, 0);
    hear_number(channel);
    talk_again(address);
    struct bmi_statistics gauges = statistics_of(0);
    CHECK(gauges.outstanding_sends == 0 && gauges.outstanding_receives == 0,
          "operations are left in the library");
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* While no server lives any process may take its port: at this test's own address none does. */
static void host_choose(void)
{
    char host[16];
    unsigned number = (unsigned)getpid();
    snprintf(host, sizeof host, "127.%u.%u.%u", 1 + (number >> 16) % 254, number >> 8 & 255,
             number & 255);
    setenv("BMI_TEST_HOST", host, 0);
}

int main(void)
{
    test_begin("restart_fault", 40);
    host_choose();
    report = shared_memory(sizeof *report);
    struct plan first = {.generation = 1}, second = {.generation = 2};
    struct child old = child_start("old server", server, &first);
    struct child other = child_start("client", client_run, NULL);
    second.port = (unsigned)hear_number(old.channel);
    tell_number(other.channel, second.port);
    hear_number(old.channel); /* in the midst of it */
    atomic_store(&report->killed_ns, now_ns());
    child_kill(&old);
    tell_number(other.channel, 0);
    hear_number(other.channel); /* all has failed */
    struct child new = child_start("new server", server, &second);
    CHECK(hear_number(new.channel) == second.port, "the new server has another port");
    tell_number(other.channel, 0);
    child_end(&other);
    child_end(&new);
    return test_passed();
}
