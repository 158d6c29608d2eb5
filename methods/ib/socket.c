/* SPDX-License-Identifier: BSD-3-Clause
 *
 * socket.c - TCP connections told apart by their addresses: libfabric's own, of which it tells
 * nothing, and a rendezvous both of whose ends are ours.
 *
 * Each of libfabric's goes from some port to a listening endpoint's, whose address is its name. A
 * connection is there when the first message to a process was taken; then it is looked for among
 * the process's descriptors, once for each process, and gets what a connection of the tcp method
 * gets. Only who sends has to: it is the sender's congestion control that counts.
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

/* Returns false if the descriptor is no connected socket of IP. */
static bool ends_read(int fd, union tcp_socket_address *here, union tcp_socket_address *there)
{
    socklen_t here_length = sizeof(*here), there_length = sizeof(*there);
    memset(here, 0, sizeof(*here));
    memset(there, 0, sizeof(*there));
    return getsockname(fd, &here->any, &here_length) == 0 &&
           getpeername(fd, &there->any, &there_length) == 0 &&
           (here->any.sa_family == AF_INET || here->any.sa_family == AF_INET6);
}

/* Accepted by our endpoint, or made to the peer's. */
static bool is_the_providers(int fd, const union tcp_socket_address *ours,
                             const union tcp_socket_address *theirs)
{
    union tcp_socket_address here, there;
    return ends_read(fd, &here, &there) && (same_place(&here, ours) || same_place(&there, theirs));
}

bool ib_sockets_joined(int one, int other)
{
    union tcp_socket_address here, there, others_here, others_there;
    return ends_read(one, &here, &there) && ends_read(other, &others_here, &others_there) &&
           same_place(&here, &others_there) && same_place(&there, &others_here);
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
        if (is_the_providers(fd, &ours, &theirs)) {
            tcp_socket_settle(fd);
            ib_socket_set_options(fd); /* it ends where its peer has gone without a word */
        }
}
