/* SPDX-License-Identifier: BSD-3-Clause
 *
 * silent_fault.c - one host holds all descriptors of a server by connections without a HELLO.
 *
 * Given a server that may have 256 descriptors, a connection of one host and then 250 of another,
 * none of which sends a HELLO, and a handshake time-out that does not expire, when a client of a
 * third host connects, then it is served. The oldest connection of the host with the most was
 * closed, later ones and the other host's exist. When a host may have one connection
 * (tcp_host_links), then one with a HELLO replaces one without.
 */
#include <stdio.h>
#include <unistd.h>

#include "raw_peer.h"
#include "serve.h"

enum { DESCRIPTORS = 256, CONNECTIONS = 250, LATER = 150 };

static char listening[BMI_MAX_ADDR_LEN];

static int crowd(void *argument, int channel)
{
    static int sockets[CONNECTIONS];
    struct chance chance = {.state = test_seed()};
    struct raw_frame frame;
    (void)argument;
    descriptors_allow(CONNECTIONS + 64);
    hear(channel, listening, sizeof listening);
    int lone = raw_connect_from("127.0.0.3", listening);
    for (unsigned i = 0; i < CONNECTIONS; i++)
        sockets[i] = raw_connect_from("127.0.0.2", listening); /* the kernel completes the
                                                                  connection */
    tell_number(channel, 0);
    hear_number(channel); /* the client was served */
    CHECK(raw_ended(sockets[0], TEST_BOUND_MS), "the oldest connection is still there");
    CHECK(!raw_ended(sockets[LATER], 0), "a later connection has gone");
    CHECK(!raw_ended(lone, 0), "the only connection of another host has gone");
    tell_number(channel, 0);
    hear_number(channel); /* each host may have one connection */
    struct raw_hello hello = raw_hello_make(&chance);
    int with_hello = raw_connect_from("127.0.0.3", listening);
    raw_send_hello(with_hello, &hello);
    CHECK(raw_receive(with_hello, &frame, NULL, TEST_BOUND_MS), "no answer to a HELLO");
    CHECK(raw_ended(lone, TEST_BOUND_MS), "a host has two connections");
    tell_number(channel, 0);
    return 0;
}

static void serve_until_heard(const struct child *child)
{
    while (!heard(child->channel, 0))
        operations_step(10);
    hear_number(child->channel);
}

int main(void)
{
    test_begin("silent_fault", 30);
    struct echo_report *report = shared_memory(sizeof *report);
    struct child crowd_child = child_start("crowd", crowd, NULL);
    struct child client = echo_client_start(report);

    descriptors_limit(DESCRIPTORS);
    serve_here(0, listening);
    operations_open();
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=600000"), "BMI_SETTING");
    tell(crowd_child.channel, listening, sizeof listening);
    serve_until_heard(&crowd_child);
    uint64_t start = now_ns();
    echo_client_go(report, &client, listening);
    printf("  %llu connections; a newcomer was served after %.1f s\n",
           (unsigned long long)method_statistics(test_method()).links,
           (double)(now_ns() - start) / 1e9);
    tell_number(crowd_child.channel, 0);
    serve_until_heard(&crowd_child);
    must(BMI_set_info(0, BMI_SETTING, "tcp_host_links=1"), "BMI_SETTING");
    tell_number(crowd_child.channel, 0);
    serve_until_heard(&crowd_child);

    echo_client_end(report, &client);
    child_end(&crowd_child);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
