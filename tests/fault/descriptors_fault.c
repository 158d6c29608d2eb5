/* SPDX-License-Identifier: BSD-3-Clause
 *
 * descriptors_fault.c - a server runs out of descriptors (EMFILE).
 *
 * More connections come than it may have. Existing ones continue at their pace, it does not spin
 * over those that it cannot accept, its own sends to new addresses end with EMFILE. A new client
 * gets the place of an idle connection; when descriptors are free again the server's sends go out.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "raw_peer.h"
#include "serve.h"

enum { SPARE = 24, CONNECTIONS = 96 };

static char listening[BMI_MAX_ADDR_LEN];

/* Opens connections, holds them until the order, closes them. */
static int crowd(void *argument, int channel)
{
    static int sockets[CONNECTIONS];
    struct chance chance = {.state = test_seed()};
    (void)argument;
    hear(channel, listening, sizeof listening);
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        struct raw_hello hello = raw_hello_make(&chance);
        sockets[i] = raw_connect(listening, 0); /* the kernel completes the connection, accepted or
                                                   not */
        raw_send_hello(sockets[i], &hello);
    }
    tell_number(channel, 0);
    hear_number(channel);
    for (unsigned i = 0; i < CONNECTIONS; i++)
        close(sockets[i]);
    tell_number(channel, 0);
    return 0;
}

/* Processor time over a second in which only the crowd has requests. */
static double idle_share(void)
{
    uint64_t start = now_ns(), used = cpu_ns();
    while (now_ns() - start < UINT64_C(1000000000))
        operations_step(1000);
    return (double)(cpu_ns() - used) / (double)(now_ns() - start);
}

static void clients_stop(struct echo_report *report, struct child *client)
{
    unsigned before = echo_sessions();
    atomic_store(&report->stop, true);
    while (echo_sessions() == before)
        operations_step(10);
    child_end(client);
}

static int finish(struct child *other)
{
    tell_number(other->channel, 0);
    child_end(other);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}

int main(void)
{
    test_begin("descriptors_fault", 40);
    struct echo_report *reports = shared_memory(3 * sizeof *reports);
    struct child crowd_child = child_start("crowd", crowd, NULL);
    struct child old_client = echo_client_start(&reports[0]);
    struct child new_client = echo_client_start(&reports[1]);
    struct child other = echo_server_start(0);
    char others[BMI_MAX_ADDR_LEN];
    BMI_addr_t other_address;
    echo_server_address(&other, others);

    serve("tcp://127.0.0.1:0", 0, listening);
    operations_open();
    must(BMI_addr_lookup(&other_address, others), "BMI_addr_lookup");
    strcpy(reports[0].listening, listening);
    strcpy(reports[1].listening, listening);
    tell_number(old_client.channel, 0);
    while (atomic_load(&reports[0].exchanges) < 10)
        operations_step(10);
    struct echo_pace before = echo_pace(&reports[0], 500);

    unsigned usual = descriptors_allow(1024);
    descriptors_limit(descriptors_open() + SPARE);
    tell(crowd_child.channel, listening, sizeof listening);
    while (!heard(crowd_child.channel, 0))
        operations_step(10);
    hear_number(crowd_child.channel);
    uint64_t links = method_statistics("bmi_tcp").links;
    struct echo_pace now = echo_pace(&reports[0], 500);
    echo_pace_unharmed(&before, &now);
    printf("  %llu connections of %u are taken\n", (unsigned long long)links, CONNECTIONS + 1);
    CHECK(links < CONNECTIONS, "the descriptors did not run out");

    struct noted hello;
    note_sendunexpected(&hello, other_address, "", 0, ECHO_HELLO_TAG);
    CHECK(noted_wait(&hello, 1, TEST_BOUND_MS), "a send that needs a descriptor does not end");
    printf("  a send that needs a descriptor: %s\n", status_name(hello.status));
    CHECK(hello.status == -BMI_EMFILE, "a send that needs a descriptor: %s",
          status_name(hello.status));
    clients_stop(&reports[0], &old_client);
    double share = idle_share();
    printf("  idle, with connections that cannot be taken: %.1f %% of a processor\n", share * 100);
    CHECK(share < 0.2 * test_slowness(), "the server spins");

    /* A new client is served although all of the crowd stay connected: those are idle. */
    tell_number(new_client.channel, 0);
    while (atomic_load(&reports[1].exchanges) < 100)
        operations_step(10);
    tell_number(crowd_child.channel, 0);
    while (method_statistics("bmi_tcp").links > 1)
        operations_step(10);
    hear_number(crowd_child.channel);
    child_end(&crowd_child);
    echo_hello(other_address);
    echo_call(other_address, 1, 5000);
    descriptors_limit(usual);
    clients_stop(&reports[1], &new_client);
    return finish(&other);
}
