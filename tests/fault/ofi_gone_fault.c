/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ofi_gone_fault.c - clients of ofi+shm whose connection has ended: none of their shared memory
 * stays mapped; each takes one of the 256 places that libfabric has for peers. A living client
 * connects again, when another has taken its place, and moves the same messages.
 *
 * usage: ofi_gone_fault [all]      (all: registers all memory, and moves it by puts)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve.h"

enum { ROUNDS = 5, CALLS = 20, STEADY = 0, CLIENTS = 3 };

/* Calls at the order, and closes its connection at the next order. */
static int client(void *argument, int channel)
{
    BMI_addr_t server = client_open(channel);
    (void)argument;
    while (hear_number(channel) != 0) {
        echo_hello(server);
        for (uint64_t i = 0; i < CALLS; i++)
            echo_call(server, i, i % 2 ? ECHO_MAX : 1000);
        tell_number(channel, 0);
        hear_number(channel);
        BMI_set_info(server, BMI_TCP_CLOSE_SOCKET, NULL);
        while (method_statistics(test_method()).links > 0)
            operations_step(5);
        tell_number(channel, 0);
    }
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* Whether shared memory of that process's endpoint is mapped here. */
static bool is_mapped(pid_t pid)
{
    char line[512], part[32];
    bool mapped = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL, "no /proc");
    snprintf(part, sizeof part, "-%d-", (int)pid);
    while (fgets(line, sizeof line, maps))
        mapped |= strstr(line, "/dev/shm/bmi-") != NULL && strstr(line, part) != NULL;
    fclose(maps);
    return mapped;
}

static void answered(const struct child *from)
{
    while (!heard(from->channel, 0))
        operations_step(5);
    hear_number(from->channel);
}

static void calls(const struct child *who)
{
    tell_number(who->channel, 1);
    answered(who);
    CHECK(is_mapped(who->pid), "no shared memory of %s: does the test look for it?", who->name);
}

static void closes(const struct child *who)
{
    unsigned sessions = echo_sessions();
    tell_number(who->channel, 1);
    answered(who);
    while (echo_sessions() == sessions || method_statistics(test_method()).links == sessions)
        operations_step(5);
    CHECK(!is_mapped(who->pid), "the shared memory of %s is kept", who->name);
}

int main(int argc, char **argv)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct child clients[CLIENTS];
    test_begin("ofi_gone_fault", 90);
    setenv("BMI_TEST_METHOD", "ofi+shm", 1);
    if (argc > 1 && strcmp(argv[1], "all") == 0)
        setenv("BMI_OFI_REGISTER_ALL", "1", 1);
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = child_start(i == STEADY ? "the steady client" : "another", client, NULL);
    serve_here(0, listening);
    operations_open();
    for (int i = 0; i < CLIENTS; i++)
        tell(clients[i].channel, listening, sizeof listening);
    calls(&clients[STEADY]);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = STEADY + 1; i < CLIENTS; i++) {
            closes(&clients[STEADY]);
            calls(&clients[i]);
            calls(&clients[STEADY]);
            closes(&clients[i]);
        }
    closes(&clients[STEADY]);
    for (int i = 0; i < CLIENTS; i++) {
        tell_number(clients[i].channel, 0);
        child_end(&clients[i]);
    }
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
