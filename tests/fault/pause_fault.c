/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pause_fault.c - a server closes idle connections, and a client pauses for longer than that,
 * outside the library: it has not noticed the end when it continues. Its next operations use a new
 * connection, and neither fail nor are lost.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve.h"

enum { ROUNDS = 2, SIZE = 1000, TAG = 7 };

/* No operation is outstanding between two requests. After each it reports when it has no connection
 * any more. */
static int server_run(void *argument, int channel)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct BMI_unexpected_info request;
    struct noted reply;
    bool connected = false;
    int count;
    (void)argument;
    setenv("BMI_IDLE_REAP_S", "1", 1);
    serve_here(0, listening);
    operations_open();
    tell(channel, listening, sizeof listening);
    while (!heard(channel, 0)) {
        must(BMI_testunexpected(1, &count, &request, 50), "BMI_testunexpected");
        if (connected && method_statistics(test_method()).links == 0) {
            connected = false;
            tell_number(channel, 0);
        }
        if (count == 0)
            continue;
        connected = true;
        note_send(&reply, request.addr, request.buffer, request.size, request.tag);
        noted_good(&reply, "a reply");
        BMI_unexpected_free(request.addr, request.buffer);
    }
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* A request, whose reply's receive is posted first, and the reply. */
static void request_make(BMI_addr_t server, int round)
{
    char out[SIZE], in[SIZE];
    struct noted request, reply;
    memset(out, 'a' + round, sizeof out);
    note_receive(&reply, server, in, sizeof in, TAG);
    note_sendunexpected(&request, server, out, sizeof out, TAG);
    noted_good(&request, "a request after a pause");
    noted_good(&reply, "the reply to a request after a pause");
    CHECK(reply.size == SIZE && memcmp(in, out, SIZE) == 0, "another reply");
}

static uint64_t connects(void)
{
    struct bmi_statistics statistics;
    must(BMI_get_info(0, BMI_GET_STATISTICS, &statistics), "BMI_GET_STATISTICS");
    return statistics.connects;
}

int main(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    BMI_addr_t server;
    test_begin("pause_fault", 120);
    struct child child = child_start("server", server_run, NULL);
    echo_server_address(&child, listening);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    operations_open();
    must(BMI_addr_lookup(&server, listening), "BMI_addr_lookup");
    for (int round = 0; round < ROUNDS; round++) {
        request_make(server, round);
        hear_number(child.channel); /* outside the library */
    }
    request_make(server, ROUNDS);
    printf("  %d pauses, %llu connections\n", ROUNDS, (unsigned long long)connects());
    CHECK(connects() > ROUNDS, "the server has not closed its connection in each pause");
    tell_number(child.channel, 0);
    child_end(&child);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
