/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stop_fault.c - a server is stopped (SIGSTOP): its kernel still answers, but the process does not.
 *
 * If the stop is shorter than the time-out, no operation fails. Beyond it operations with that
 * server end with ETIMEDOUT, in a bounded time, while another server continues at full speed and a
 * receive from it, idle but alive, is not affected. After it continues, the next send reaches the
 * server again.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve.h"

enum { TIMEOUT_MS = 3000, CALLS = 64, IDLE_TAG = 4 };

static unsigned timeout_ms; /* TIMEOUT_MS, longer under a sanitizer */

static char out[ECHO_MAX], in[CALLS][ECHO_MAX];
static struct noted sends[CALLS], receives[CALLS];

static void calls_post(BMI_addr_t server)
{
    pattern_fill(out, sizeof out, pattern_key(5, 5), 0);
    for (unsigned i = 0; i < CALLS; i++)
        note_receive(&receives[i], server, in[i], ECHO_MAX, ECHO_REPLY_TAG);
    for (unsigned i = 0; i < CALLS; i++)
        note_send(&sends[i], server, out, ECHO_MAX, ECHO_CALL_TAG);
}

struct pace {
    unsigned exchanges;
    uint64_t longest_ns;
    double seconds;
};

static void pace_add(struct pace *pace, BMI_addr_t server)
{
    uint64_t start = now_ns();
    echo_call(server, pace->exchanges++, 1000);
    uint64_t took = now_ns() - start;
    pace->longest_ns = took > pace->longest_ns ? took : pace->longest_ns;
    pace->seconds += (double)took / 1e9;
}

static void pace_print(const char *when, const struct pace *pace)
{
    printf("  the other server, %s: %.0f exchanges/s, longest %.1f ms\n", when,
           pace->exchanges / pace->seconds, (double)pace->longest_ns / 1e6);
}

/* Stops the server for less than the time-out: all operations end without an error. */
static void short_stop(const struct child *child, BMI_addr_t stopped, BMI_addr_t other)
{
    struct pace pace = {.exchanges = 0};
    child_signal(child, SIGSTOP);
    uint64_t until = now_ns() + timeout_ms * UINT64_C(400000);
    calls_post(stopped);
    while (now_ns() < until)
        pace_add(&pace, other);
    unsigned early = 0;
    for (unsigned i = 0; i < CALLS; i++)
        early += receives[i].ended;
    CHECK(early == 0, "%u replies came from a stopped server", early);
    child_signal(child, SIGCONT);
    for (unsigned i = 0; i < CALLS; i++) {
        noted_good(&sends[i], "a call to a server stopped for a moment");
        noted_good(&receives[i], "a reply of a server stopped for a moment");
        CHECK(pattern_wrong(in[i], ECHO_MAX, pattern_key(5, 5), 0) < 0, "a reply is wrong");
    }
    pace_print("during a short stop", &pace);
}

static bool all_ended(void)
{
    for (unsigned i = 0; i < CALLS; i++)
        if (!sends[i].ended || !receives[i].ended)
            return false;
    return true;
}

static void timeouts_check(uint64_t stopped_ns)
{
    unsigned timed_out = 0;
    uint64_t first = UINT64_MAX, last = 0;
    for (unsigned i = 0; i < CALLS; i++) {
        CHECK(receives[i].status == -BMI_ETIMEDOUT, "a receive from a stopped server: %s",
              status_name(receives[i].status));
        CHECK(sends[i].status == 0 || sends[i].status == -BMI_ETIMEDOUT,
              "a send to a stopped server: %s", status_name(sends[i].status));
        timed_out += sends[i].status != 0;
        first = receives[i].ended_ns < first ? receives[i].ended_ns : first;
        last = receives[i].ended_ns > last ? receives[i].ended_ns : last;
    }
    double first_ms = (double)(first - stopped_ns) / 1e6,
           last_ms = (double)(last - stopped_ns) / 1e6;
    printf("  %u of %u sends and all receives timed out, %.0f to %.0f ms after the stop\n",
           timed_out, CALLS, first_ms, last_ms);
    CHECK(timed_out > 0, "no send timed out");
    CHECK(first_ms > timeout_ms * 0.9, "timed out too early");
    CHECK(last_ms < timeout_ms * 3.5 + TEST_BOUND_MS, "timed out too late");
}

static void long_stop(const struct child *child, BMI_addr_t stopped, BMI_addr_t other)
{
    struct pace before = {.exchanges = 0}, pace = before;
    static char never[100];
    struct noted idle;
    uint64_t until = now_ns() + UINT64_C(500000000);
    note_receive(&idle, other, never, sizeof never, IDLE_TAG);
    while (now_ns() < until)
        pace_add(&before, other);
    child_signal(child, SIGSTOP);
    uint64_t start = now_ns();
    calls_post(stopped);
    while (!all_ended() && now_ns() < start + (timeout_ms * 4 + TEST_BOUND_MS) * UINT64_C(1000000))
        pace_add(&pace, other);
    CHECK(all_ended(), "operations with a stopped server do not end");
    timeouts_check(start);
    pace_print("before", &before);
    pace_print("during a long stop", &pace);
    CHECK(pace.exchanges > 0 && pace.longest_ns < TEST_BOUND_MS * UINT64_C(1000000),
          "the other server was held up");
    child_signal(child, SIGCONT);

    /* An idle peer that is alive does not count as dead: wait on, for longer than the time-out. */
    until = now_ns() + timeout_ms * UINT64_C(2000000);
    while (now_ns() < until && !idle.ended)
        operations_step((int)timeout_ms / 4);
    CHECK(!idle.ended, "a receive from an idle server: %s", status_name(idle.status));
    must(BMI_cancel(idle.id, test_context), "BMI_cancel");
    CHECK(noted_wait(&idle, 1, TEST_BOUND_MS) && idle.status == -BMI_ECANCEL,
          "a cancelled receive: %s", status_name(idle.status));
}

int main(void)
{
    test_begin("stop_fault", 40);
    char listening[2][BMI_MAX_ADDR_LEN];
    char setting[32];
    BMI_addr_t servers[2];
    struct child children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = echo_server_start(0);
        echo_server_address(&children[i], listening[i]);
    }
    timeout_ms = TIMEOUT_MS * (test_slowness() > 1 ? 2 : 1);
    snprintf(setting, sizeof setting, "%u", timeout_ms);
    setenv("BMI_PEER_TIMEOUT_MS", setting, 1);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    operations_open();
    for (int i = 0; i < 2; i++) {
        must(BMI_addr_lookup(&servers[i], listening[i]), "BMI_addr_lookup");
        echo_hello(servers[i]);
        echo_call(servers[i], 1, 1000);
    }
    short_stop(&children[0], servers[0], servers[1]);
    long_stop(&children[0], servers[0], servers[1]);
    echo_hello(servers[0]);
    echo_call(servers[0], 2, 1000);
    printf("  reconnects to the stopped server: %llu\n",
           (unsigned long long)statistics_of(servers[0]).reconnects);
    CHECK(statistics_of(servers[0]).reconnects >= 1, "no reconnect was counted");
    for (int i = 0; i < 2; i++)
        tell_number(children[i].channel, 0);
    /* Before the wait for the servers: over some networks the receives that they cancel end only
     * after our answer, which needs calls of BMI, or after our end. */
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    for (int i = 0; i < 2; i++)
        child_end(&children[i]);
    return test_passed();
}
