/* SPDX-License-Identifier: BSD-3-Clause
 *
 * socket.c - the ends of TCP connections: of exchanges, and of libfabric's own.
 *
 * libfabric gives no access to its connections. Each leads from some port to the address of a
 * listening endpoint, which is that endpoint's name. A connection exists once the first message to
 * a process was taken. Then, once for each peer, we search the process's descriptors for it, and
 * set the socket options that the tcp method sets.
 */
#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <stdio.h>
#include <unistd.h>

#include "ib.h"
#include "methods/ip/ip.h"

enum { DESCRIPTORS_MOST = 1024 }; /* most descriptors searched, some 0.1 us each */

/* Reads an endpoint's name, which over TCP is a socket address. */
static bool name_read(union ip_socket_address *to, const uint8_t *name, size_t size)
{
    memset(to, 0, sizeof(*to));
    if (size > sizeof(*to))
        return false;
    memcpy(to, name, size);
    return (to->any.sa_family == AF_INET || to->any.sa_family == AF_INET6) &&
           size >= ip_socket_address_length(to);
}

static bool same_place(const union ip_socket_address *one, const union ip_socket_address *other)
{
    uint8_t ones[IP_ADDRESS_BYTES], others[IP_ADDRESS_BYTES];
    ip_socket_address_bytes(one, ones);
    ip_socket_address_bytes(other, others);
    return memcmp(ones, others, sizeof(ones)) == 0;
}

/* Returns false if the descriptor is no connected socket of IP. */
static bool ends_read(int fd, union ip_socket_address *here, union ip_socket_address *there)
{
    socklen_t here_length = sizeof(*here), there_length = sizeof(*there);
    memset(here, 0, sizeof(*here));
    memset(there, 0, sizeof(*there));
    return getsockname(fd, &here->any, &here_length) == 0 &&
           getpeername(fd, &there->any, &there_length) == 0 &&
           (here->any.sa_family == AF_INET || here->any.sa_family == AF_INET6);
}

int ib_socket_host(int fd, char *host, size_t size)
{
    union ip_socket_address address = {0};
    socklen_t length = sizeof(address);
    char interface[IF_NAMESIZE];
    if (getsockname(fd, &address.any, &length) < 0)
        return -errno;
    ip_socket_address_host(&address, host, size);
    size_t used = strlen(host);
    if (address.any.sa_family == AF_INET6 && address.ipv6.sin6_scope_id != 0 &&
        if_indextoname(address.ipv6.sin6_scope_id, interface))
        snprintf(host + used, size - used, "%%%s", interface);
    return 0;
}

int ib_socket_name_check(const struct ib_link *link, uint8_t *name, size_t size)
{
    union ip_socket_address told, there = {0};
    socklen_t length = sizeof(there);
    char told_host[INET6_ADDRSTRLEN], host[INET6_ADDRSTRLEN];
    if (!name_read(&told, name, size))
        return 0;
    if (getpeername(link->watch.fd, &there.any, &length) < 0)
        return -errno;
    if (told.any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&told.ipv6.sin6_addr)) {
        told.ipv6.sin6_scope_id = there.ipv6.sin6_scope_id; /* theirs means nothing here */
        memcpy(name, &told, size);
    }
    ip_socket_address_host(&told, told_host, sizeof(told_host));
    ip_socket_address_host(&there, host, sizeof(host));
    if (strcmp(told_host, host) != 0)
        bmi_method_log(link->base.instance, BMI_LOG_WARN, &link->base,
                       "the peer's exchange is at %s, but its endpoint is at %s", host, told_host);
    return 0;
}

/* ---- the user of a peer ---------------------------------------------------------------------- */

/* Asks the kernel about the TCP socket with these ends. The structures are the kernel's. */
static int socket_ask(int netlink, const union ip_socket_address *here,
                      const union ip_socket_address *there)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff}; /* begins an IPv4 host */
    struct {
        struct nlmsghdr header;
        struct inet_diag_req_v2 body;
    } request = {.header = {.nlmsg_len = sizeof(request),
                            .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                            .nlmsg_flags = NLM_F_REQUEST},
                 .body = {.sdiag_protocol = IPPROTO_TCP,
                          .idiag_states = UINT32_MAX,
                          .id = {.idiag_sport = htons(ip_socket_address_port(here)),
                                 .idiag_dport = htons(ip_socket_address_port(there)),
                                 .idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}}};
    uint8_t ends[2][IP_ADDRESS_BYTES];
    ip_socket_address_bytes(here, ends[0]);
    ip_socket_address_bytes(there, ends[1]);
    bool ipv4 = memcmp(ends[0], mapped, sizeof(mapped)) == 0;
    size_t skipped = ipv4 ? sizeof(mapped) : 0, size = sizeof(struct in6_addr) - skipped;
    request.body.sdiag_family = ipv4 ? AF_INET : AF_INET6;
    memcpy(request.body.id.idiag_src, ends[0] + skipped, size);
    memcpy(request.body.id.idiag_dst, ends[1] + skipped, size);
    if (!ipv4)
        request.body.id.idiag_if = here->ipv6.sin6_scope_id;
    return send(netlink, &request, sizeof(request), 0) < 0 ? -errno : 0;
}

static int socket_user(int netlink, uid_t *user)
{
    union {
        struct nlmsghdr header;
        char bytes[1024];
    } answer = {0};
    ssize_t got = recv(netlink, &answer, sizeof(answer), 0);
    if (got < 0)
        return -errno;
    if (answer.header.nlmsg_type == NLMSG_ERROR &&
        (size_t)got >= NLMSG_LENGTH(sizeof(struct nlmsgerr)))
        return ((const struct nlmsgerr *)NLMSG_DATA(&answer.header))->error;
    if (answer.header.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
        (size_t)got < NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
        return -EPROTO;
    *user = ((const struct inet_diag_msg *)NLMSG_DATA(&answer.header))->idiag_uid;
    return 0;
}

int ib_socket_peer_user(int fd, uid_t *user)
{
    union ip_socket_address here, there;
    if (!ends_read(fd, &here, &there))
        return -ENOTCONN;
    int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (netlink < 0)
        return -errno;
    int status = socket_ask(netlink, &there, &here); /* the ends as the other side sees them */
    if (status == 0)
        status = socket_user(netlink, user);
    close(netlink);
    return status;
}

/* ---- libfabric's connections ----------------------------------------------------------------- */

void ib_peer_settle(const struct ib_link *link)
{
    const struct ib_endpoint *endpoint = link->endpoint;
    struct ib_peer *peer = link->peer;
    union ip_socket_address ours, theirs, here, there;
    if (atomic_load_explicit(&peer->settled, memory_order_relaxed) ||
        atomic_exchange(&peer->settled, true))
        return;
    if (!ib_state_of(link)->fabric->many ||
        !name_read(&ours, endpoint->name, endpoint->name_size) ||
        !name_read(&theirs, peer->name, peer->size))
        return;
    /* Our endpoint has accepted the connection, or made it to the peer's. */
    for (int fd = 0; fd < DESCRIPTORS_MOST; fd++)
        if (ends_read(fd, &here, &there) &&
            (same_place(&here, &ours) || same_place(&there, &theirs))) {
            ip_socket_settle(link->base.instance, fd);
            ip_socket_set_options(link->base.instance, link->base.method, NULL, fd);
            /* it ends where its peer has gone without a word */
            ip_socket_set_timeout(link->base.instance, link->base.method, NULL, fd);
        }
}
