/* SPDX-License-Identifier: BSD-3-Clause
 *
 * socket.c - libfabric's own TCP connections, of which it tells nothing: found by their addresses.
 *
 * Each goes from some port to a listening endpoint's, whose address is its name. A connection is
 * there when the first message to a process was taken; then it is looked for among the process's
 * descriptors, once for each process, and gets what a connection of the tcp method gets. Only who
 * sends has to: it is the sender's congestion control that counts.
 */
#include "ib.h"
#include "methods/tcp/address.h"
#include "methods/tcp/tcp.h"

enum { DESCRIPTORS_MOST = 1024 }; /* looked at: some 0.1 us each */

/* An endpoint's name is a socket address where it is one of TCP. */
static bool name_read(union tcp_socket_address *to, const uint8_t *name, size_t size)
{
    memset(to, 0, sizeof(*to));
    if (size > sizeof(*to))
        return false;
    memcpy(to, name, size);
    return (to->any.sa_family == AF_INET || to->any.sa_family == AF_INET6) &&
           size >= tcp_socket_address_length(to);
}

static bool same_place(const union tcp_socket_address *one, const union tcp_socket_address *other)
{
    char one_host[INET6_ADDRSTRLEN], other_host[INET6_ADDRSTRLEN];
    if (tcp_socket_address_port(one) != tcp_socket_address_port(other))
        return false;
    tcp_socket_address_host(one, one_host, sizeof(one_host));
    tcp_socket_address_host(other, other_host, sizeof(other_host));
    return strcmp(one_host, other_host) == 0;
}

/* Accepted by our endpoint, or made to the peer's. */
static bool is_the_providers(int fd, const union tcp_socket_address *ours,
                             const union tcp_socket_address *theirs)
{
    union tcp_socket_address here = {0}, there = {0};
    socklen_t here_length = sizeof(here), there_length = sizeof(there);
    if (getsockname(fd, &here.any, &here_length) < 0 ||
        getpeername(fd, &there.any, &there_length) < 0 ||
        (here.any.sa_family != AF_INET && here.any.sa_family != AF_INET6))
        return false;
    return same_place(&here, ours) || same_place(&there, theirs);
}

void ib_peer_settle(struct ib_state *state, struct ib_peer *peer)
{
    const struct ib_fabric *fabric = state->fabric;
    union tcp_socket_address ours, theirs;
    if (atomic_load_explicit(&peer->settled, memory_order_relaxed) ||
        atomic_exchange(&peer->settled, true))
        return;
    if (strncmp(state->provider, "tcp", 3) != 0 ||
        !name_read(&ours, fabric->name, fabric->name_size) ||
        !name_read(&theirs, peer->name, peer->size))
        return;
    for (int fd = 0; fd < DESCRIPTORS_MOST; fd++)
        if (is_the_providers(fd, &ours, &theirs))
            tcp_socket_settle(fd);
}
