/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dial.c - which address an outgoing connection goes to, and the next one when that fails. The
 * method makes the sockets; nothing here blocks.
 */
#include <net/if.h>
#include <sys/socket.h>

#include "ip.h"

enum { ATTEMPT_MIN_MS = 500 };

int ip_dial_init(struct ip_dial *dial, const char *canonical)
{
    int error = ip_address_parse(canonical, &dial->address, NULL);
    return error == 0 && dial->address.kind == IP_HOST_EMPTY ? -EINVAL : error;
}

void ip_dial_cancel(struct ip_dial *dial)
{
    if (dial->resolve)
        ip_resolve_cancel(dial->resolve);
    dial->resolve = NULL;
}

/* The time for one candidate, so that all together stay near the setting. */
static uint64_t attempt_ms(const struct ip_dial *dial)
{
    uint64_t all = (uint64_t)bmi_method_setting(dial->link->instance, "connect_timeout_ms");
    uint64_t share = all / (dial->count > 0 ? dial->count : 1);
    uint64_t least = all < ATTEMPT_MIN_MS ? all : ATTEMPT_MIN_MS;
    return share > least ? share : least;
}

static void dial_next(struct ip_dial *dial)
{
    while (dial->next < dial->count) {
        dial->error = dial->attempt(dial, &dial->candidates[dial->next++]);
        if (dial->error == 0) {
            bmi_method_timer_set(dial->link->instance, dial->timer, attempt_ms(dial));
            return;
        }
    }
    dial->failed(dial, dial->error);
}

void ip_dial_again(struct ip_dial *dial, int error)
{
    dial->error = error;
    dial_next(dial);
}

static void dial_resolved(void *argument, int status, const union ip_socket_address *addresses,
                          size_t count)
{
    struct ip_dial *dial = argument;

    dial->resolve = NULL;
    if (status) {
        bmi_method_log(dial->link->instance, BMI_LOG_WARN, dial->link,
                       "%s: cannot look up host name '%s': %s", dial->link->method->schemes,
                       dial->address.host, bmi_status_string(status));
        dial->failed(dial, status);
        return;
    }
    memcpy(dial->candidates, addresses, count * sizeof(*addresses));
    dial->count = count;
    dial_next(dial);
}

/* A numeric host: one candidate. Returns 0 or an errno. */
static int candidate_numeric(struct ip_dial *dial)
{
    union ip_socket_address *to = &dial->candidates[0];
    ip_address_to_socket(&dial->address, to);
    if (dial->address.scope[0]) {
        to->ipv6.sin6_scope_id = if_nametoindex(dial->address.scope);
        if (to->ipv6.sin6_scope_id == 0)
            return -ENODEV;
    }
    dial->count = 1;
    return 0;
}

void ip_dial_start(struct ip_dial *dial, const struct ip_names *names)
{
    if (dial->address.kind != IP_HOST_NAME) {
        dial->error = candidate_numeric(dial);
        dial_next(dial);
        return;
    }
    /* A name that this process listens as may be unknown to resolvers. */
    if (ip_names_have(names, &dial->address)) {
        ip_socket_address_loopback(&dial->candidates[0], dial->address.port);
        dial->count = 1;
        dial_next(dial);
        return;
    }
    int status = ip_resolve_start(dial->link->instance, dial->address.host, dial->address.port,
                                  dial_resolved, dial, &dial->resolve);
    if (status == 0)
        bmi_method_timer_set(dial->link->instance, dial->timer, attempt_ms(dial));
    else
        dial->failed(dial, status);
}

static void ends_set(struct bmi_link *link, const union ip_socket_address *dialler,
                     const union ip_socket_address *accepter)
{
    uint8_t ends[2][IP_ADDRESS_BYTES];
    ip_socket_address_bytes(dialler, ends[0]);
    ip_socket_address_bytes(accepter, ends[1]);
    bmi_method_link_ends(link, ends[0], ends[1], IP_ADDRESS_BYTES);
}

static void host_set(struct bmi_link *link, const union ip_socket_address *there)
{
    char host[INET6_ADDRSTRLEN];
    ip_socket_address_host(there, host, sizeof(host));
    bmi_method_link_host(link, host, ip_socket_address_port(there));
}

int ip_dial_check(struct bmi_link *link, int fd)
{
    union ip_socket_address here = {0}, there = {0};
    socklen_t length = sizeof(int), here_length = sizeof(here), there_length = sizeof(there);
    int error = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0)
        return -errno;
    if (error)
        return -error;
    if (getpeername(fd, &there.any, &there_length) < 0 ||
        getsockname(fd, &here.any, &here_length) < 0)
        return -errno;
    /* No socket listens on the port, and the kernel chose it as our local port: TCP then
     * connects the socket to itself. */
    if (memcmp(&here, &there, sizeof(here)) == 0)
        return -ECONNREFUSED;
    ip_socket_set_timeout(link->instance, link->method, link, fd);
    host_set(link, &there);
    ends_set(link, &here, &there);
    return 0;
}

void ip_accepted(struct bmi_link *link, int fd, const union ip_socket_address *from)
{
    union ip_socket_address here = {0};
    socklen_t length = sizeof(here);

    ip_socket_set_timeout(link->instance, link->method, link, fd);
    host_set(link, from);
    if (getsockname(fd, &here.any, &length) == 0)
        ends_set(link, from, &here); /* else it is never joined with another one */
}
