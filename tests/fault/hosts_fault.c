/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hosts_fault.c - one host opens more connections than tcp_host_links.
 *
 * A new connection of a host replaces an idle one of the same host. A busy client keeps its
 * connection, and a new client is served. The number of connections stays at the limit. The server
 * refuses a new connection where none is idle.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "raw_peer.h"
#include "serve.h"

enum { LIMIT = 8, CONNECTIONS = 40, TAG = 5 };

static char listening[BMI_MAX_ADDR_LEN];

/* Opens connections that send HELLO and no more, holds them until the order. */
static int crowd(void *argument, int channel)
{
    static int sockets[CONNECTIONS];
    struct chance chance = {.state = test_seed()};
    (void)argument;
    hear(channel, listening, sizeof listening);
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        struct raw_hello hello = raw_hello_make(&chance);
        sockets[i] = raw_connect(listening, 0);
        raw_send_hello(sockets[i], &hello);
        char byte; /* the answer: a connection without a handshake is not idle */
        CHECK(recv(sockets[i], &byte, 1, MSG_PEEK) == 1, "connection %u is refused", i);
    }
    tell_number(channel, 0);
    hear_number(channel);
    for (unsigned i = 0; i < CONNECTIONS; i++)
        close(sockets[i]);
    return 0;
}

static unsigned long long links(void)
{
    return method_statistics(test_method()).links;
}

/* Steps until all of the crowd was accepted or refused, and the number has settled. */
static void crowd_arrive(const struct child *child)
{
    tell(child->channel, listening, sizeof listening);
    while (!heard(child->channel, 0))
        operations_step(10);
    hear_number(child->channel);
    while (method_statistics(test_method()).links_accepted < CONNECTIONS || links() > LIMIT)
        operations_step(10);
}

int main(void)
{
    char setting[64];
    test_begin("hosts_fault", 30);
    struct echo_report *reports = shared_memory(2 * sizeof *reports);
    struct child crowd_child = child_start("crowd", crowd, NULL);
    struct child old_client = echo_client_start(&reports[0]);
    struct child new_client = echo_client_start(&reports[1]);
    snprintf(setting, sizeof setting, "tcp_host_links=%d", LIMIT);
    serve_here(0, listening);
    operations_open();
    must(BMI_set_info(0, BMI_SETTING, setting), "BMI_set_info");

    echo_client_go(&reports[0], &old_client, listening);
    crowd_arrive(&crowd_child);
    printf("  %llu connections of %llu\n", links(),
           (unsigned long long)method_statistics(test_method()).links_accepted);
    unsigned long before = atomic_load(&reports[0].exchanges);
    while (atomic_load(&reports[0].exchanges) < before + 10)
        operations_step(10);
    echo_client_go(&reports[1], &new_client, listening);
    CHECK(links() <= LIMIT + 1, "more connections than allowed");

    snprintf(setting, sizeof setting, "tcp_host_links=1");
    must(BMI_set_info(0, BMI_SETTING, setting), "BMI_set_info");
    tell_number(crowd_child.channel, 0);
    child_end(&crowd_child);
    while (links() > 2)
        operations_step(10);
    struct chance chance = {.state = test_seed()};
    struct raw_hello hello = raw_hello_make(&chance);
    int refused = raw_connect_plain(listening, 0);
    char byte;
    raw_send_hello(refused, &hello);
    while (recv(refused, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN)
        operations_step(1);
    CHECK(links() <= 2, "both clients are busy, and one more was taken");
    close(refused);

    atomic_store(&reports[1].stop, true); /* the next call waits until all sessions have ended */
    echo_client_end(&reports[0], &old_client);
    echo_client_end(&reports[1], &new_client);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
