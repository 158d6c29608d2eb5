/* SPDX-License-Identifier: BSD-3-Clause
 *
 * reaped_fault.c - a server hangs (SIGSTOP) while a client's connection to it is idle, and the
 * client closes idle connections. The server never confirms the end; that connection ends
 * nevertheless, and operations posted meanwhile do not wait for it.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "serve.h"

enum { TIMEOUT_MS = 2000, LINGER_MS = 500, REAP_S = 1, TAG = 7 };

static char bytes[1000];

/* Long enough for the connection to be found idle, and its end to be under way. */
static void idle(void)
{
    uint64_t until = now_ns() + 3 * REAP_S * UINT64_C(1000000000);
    while (now_ns() < until)
        operations_step(50);
}

static void settings_put(const char *name, unsigned value)
{
    char text[64];
    snprintf(text, sizeof text, "%s=%u", name, value);
    must(BMI_set_info(0, BMI_SETTING, text), text);
}

int main(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct noted send, receive;
    BMI_addr_t server;
    test_begin("reaped_fault", 120);
    unsigned timeout_ms = TIMEOUT_MS * (test_slowness() > 1 ? 2 : 1);
    struct child child = echo_server_start(0);
    echo_server_address(&child, listening);
    settings_put("peer_timeout_ms", timeout_ms);
    settings_put("connect_timeout_ms", timeout_ms);
    settings_put("linger_ms", LINGER_MS);
    settings_put("idle_reap_s", REAP_S);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    operations_open();
    must(BMI_addr_lookup(&server, listening), "BMI_addr_lookup");
    echo_hello(server);
    echo_call(server, 0, 1000);
    child_signal(&child, SIGSTOP);
    idle();
    uint64_t start = now_ns();
    note_receive(&receive, server, bytes, sizeof bytes, TAG);
    note_send(&send, server, bytes, sizeof bytes, TAG);
    bool ended = noted_wait(&receive, 1, 10 * (int)timeout_ms);
    printf("  %s after %.1f s\n", ended ? status_name(receive.status) : "pending",
           (double)(now_ns() - start) / 1e9);
    CHECK(ended && receive.status != 0, "a receive waits for a connection that does not end");
    child_kill(&child);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
