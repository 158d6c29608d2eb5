/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ofi_hosts_fault.c - hosts with several addresses, over ofi+tcp: two network namespaces, each with
 * a first interface of the same address (as docker0 and virbr0 have), and a second one that leads
 * to the other.
 *
 * Given a server that listens on all interfaces, when it is dialled by its second address, then
 * calls of all sizes are answered. The same by an IPv6 address of the link, with its scope.
 */
#include <stdio.h>

#include "namespaces.h"
#include "serve.h"

enum { CALLS = 10 };

/* The listen address of the server, and the address that the client dials (the port is added). */
static const struct {
    const char *name, *listen, *dial;
    int flags;
} cases[] = {
    {"the second address", "ofi+tcp://:0", "ofi+tcp://10.98.0.1", 0},
    {"the second address, and by its number", "ofi+tcp://0.0.0.0:0", "ofi+tcp://10.98.0.1", 0},
    {"an address of the link", "ofi+tcp://[fe80::1%bmi_s]:0", "ofi+tcp://[fe80::1%bmi_c]",
     BMI_TCP_BIND_SPECIFIC},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* The first interface. */
static bool first_make(int pid)
{
    return namespace_run(pid, "ip link set lo up && "
                              "ip link add bmi_first type veth peer name bmi_other && "
                              "ip addr add 10.99.0.1/24 dev bmi_first && "
                              "ip link set bmi_first up && ip link set bmi_other up");
}

static bool link_up(int pid, int number, const char *device)
{
    return namespace_run(pid,
                         "ip addr add 10.98.0.%d/24 dev %s && "
                         "ip addr add fe80::%d/64 dev %s nodad && ip link set %s up",
                         number, device, number, device, device);
}

static int server_run(void *argument, int channel)
{
    char listening[BMI_MAX_ADDR_LEN];
    unsigned i = *(const unsigned *)argument;
    namespace_enter_child(channel);
    serve(cases[i].listen, cases[i].flags, listening);
    operations_open();
    printf("  %s: listens at %s\n", cases[i].name, listening);
    tell_number(channel, test_port(listening));
    while (!heard(channel, 0))
        operations_step(5);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

static int client_run(void *argument, int channel)
{
    char address[128];
    BMI_addr_t server;
    unsigned i = *(const unsigned *)argument;
    namespace_enter_child(channel);
    snprintf(address, sizeof address, "%s:%u", cases[i].dial, (unsigned)hear_number(channel));
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    operations_open();
    must(BMI_addr_lookup(&server, address), "BMI_addr_lookup");
    echo_hello(server);
    for (unsigned k = 0; k < CALLS; k++)
        echo_call(server, k, k % 2 ? 100 : ECHO_MAX);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

static void case_run(unsigned i)
{
    struct child server = child_start("server", server_run, &i);
    struct child client = child_start("client", client_run, &i);
    namespace_check_child(server.channel);
    namespace_check_child(client.channel);
    if (!first_make(server.pid) || !first_make(client.pid))
        test_skip("cannot make network interfaces (ip, nsenter)");
    CHECK(namespace_run(server.pid, "ip link add bmi_s type veth peer name bmi_c netns %d",
                        client.pid) &&
              link_up(server.pid, 1, "bmi_s") && link_up(client.pid, 2, "bmi_c"),
          "no link between the namespaces");
    tell_number(server.channel, 0);
    tell_number(client.channel, 0);
    tell_number(client.channel, hear_number(server.channel));
    child_end(&client);
    tell_number(server.channel, 0);
    child_end(&server);
    printf("  %s: served\n", cases[i].name);
}

int main(void)
{
    test_begin("ofi_hosts_fault", 60);
    namespaces_needed();
    for (unsigned i = 0; i < CASES; i++)
        case_run(i);
    return test_passed();
}
