/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ofi_forked_child_fault.c - a server of ofi+shm that forks and ends, as with daemon(3): its child
 * continues, and clients that start afterwards, and remove files of dead processes, can reach it.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve.h"

enum { CALLS = 20, CLIENTS = 2 };

static int client(void *argument, int channel)
{
    (void)argument;
    BMI_addr_t server = client_open(channel);
    echo_hello(server);
    for (uint64_t i = 0; i < CALLS; i++)
        echo_call(server, i, i % 2 ? ECHO_MAX : 1000);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* The child serves when its parent has ended, until the order to end. */
static int server(void *argument, int channel)
{
    char listening[BMI_MAX_ADDR_LEN];
    (void)argument;
    serve_here(0, listening);
    operations_open();
    if (leave_to_child())
        return 0;
    tell(channel, listening, sizeof listening);
    while (!heard(channel, 0))
        operations_step(5);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    tell_number(channel, 0);
    _exit(0);
}

int main(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct child clients[CLIENTS];
    test_begin("ofi_forked_child_fault", 60);
    setenv("BMI_TEST_METHOD", "ofi+shm", 1);
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = child_start("a client", client, NULL);
    struct child parent = child_start("the server", server, NULL);
    int child = dup(parent.channel);
    child_end(&parent);
    hear(child, listening, sizeof listening);
    for (int i = 0; i < CLIENTS; i++) {
        tell(clients[i].channel, listening, sizeof listening);
        child_end(&clients[i]);
    }
    tell_number(child, 0);
    hear_number(child);
    close(child);
    return test_passed();
}
