/* SPDX-License-Identifier: BSD-3-Clause
 *
 * listen.c - listening sockets: which interfaces they are bound to, and the address that peers
 * dial. The methods accept the connections.
 */
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ip.h"

/* Binds and listens. Returns a socket or an errno. */
static int socket_listen(struct bmi_instance *instance, ip_prepare *prepare,
                         const union ip_socket_address *address, bool dual_stack)
{
    int on = 1, v6only = !dual_stack, error;
    int fd =
        socket(address->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return -errno;
    if (address->any.sa_family == AF_INET6 &&
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof(v6only)) < 0)
        goto undo_socket;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0)
        goto undo_socket;
    if (prepare)
        prepare(instance, fd);
    if (bind(fd, &address->any, ip_socket_address_length(address)) < 0 ||
        listen(fd, (int)bmi_method_setting(instance, "tcp_backlog")) < 0)
        goto undo_socket;
    return fd;

undo_socket:
    error = -errno;
    close(fd);
    return error;
}

static union ip_socket_address any_host(int family, uint16_t port)
{
    union ip_socket_address any = {.any.sa_family = (sa_family_t)family};
    ip_socket_address_set_port(&any, port);
    return any;
}

/* All interfaces; both families if the kernel supports them and `family` is AF_UNSPEC. */
static int listen_everywhere(struct bmi_instance *instance, ip_prepare *prepare, int family,
                             uint16_t port)
{
    if (family == AF_UNSPEC) {
        union ip_socket_address both = any_host(AF_INET6, port);
        int fd = socket_listen(instance, prepare, &both, true);
        if (fd != -EAFNOSUPPORT && fd != -EADDRNOTAVAIL)
            return fd;
        family = AF_INET;
    }
    union ip_socket_address any = any_host(family, port);
    return socket_listen(instance, prepare, &any, false);
}

/* The first of the host's addresses that can be bound. */
static int listen_on(struct bmi_instance *instance, ip_prepare *prepare,
                     const union ip_socket_address *addresses, size_t count)
{
    int fd = -EADDRNOTAVAIL;
    for (size_t i = 0; i < count; i++) {
        fd = socket_listen(instance, prepare, &addresses[i], false);
        if (fd >= 0)
            break;
    }
    return fd;
}

/* The host's addresses, and its family: AF_UNSPEC if it has both. */
static int host_addresses(const struct ip_address *host, union ip_socket_address *addresses,
                          size_t *count, int *family)
{
    *family = AF_UNSPEC;
    *count = 0;
    if (host->kind == IP_HOST_EMPTY)
        return 0;
    if (host->kind == IP_HOST_NAME) { /* to bind to it */
        int error = ip_resolve_now(host->host, host->port, addresses, count);
        if (error)
            return error;
    } else {
        ip_address_to_socket(host, &addresses[0]);
        if (host->scope[0])
            addresses[0].ipv6.sin6_scope_id = if_nametoindex(host->scope);
        *count = 1;
    }
    *family = addresses[0].any.sa_family;
    for (size_t i = 1; i < *count; i++)
        if (addresses[i].any.sa_family != *family)
            *family = AF_UNSPEC;
    return 0;
}

static bool host_is_any(const struct ip_address *host)
{
    static const uint8_t zero[16];
    bool numeric = host->kind == IP_HOST_IPV4 || host->kind == IP_HOST_IPV6;
    return host->kind == IP_HOST_EMPTY || (numeric && memcmp(host->numeric, zero, 16) == 0);
}

/* Ranks an interface's address as one for others to dial: 0 is unusable. */
static int interface_rank(const struct ifaddrs *interface, int family)
{
    const struct sockaddr *address = interface->ifa_addr;
    if (!address || (interface->ifa_flags & (IFF_UP | IFF_LOOPBACK)) != IFF_UP)
        return 0;
    if (family != AF_UNSPEC && address->sa_family != family)
        return 0;
    if (address->sa_family == AF_INET)
        return 2;
    if (address->sa_family != AF_INET6)
        return 0;
    const void *ipv6 = address; /* aligned by getifaddrs */
    return IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)ipv6)->sin6_addr) ? 0 : 1;
}

/* The host that peers dial when none was given: this machine's first non-loopback address. */
static void host_choose(int family, struct ip_address *host)
{
    struct ifaddrs *interfaces = NULL;
    const struct sockaddr *best = NULL;
    int best_rank = 0;

    if (getifaddrs(&interfaces) == 0) {
        for (const struct ifaddrs *at = interfaces; at; at = at->ifa_next) {
            int rank = interface_rank(at, family);
            if (rank > best_rank) {
                best_rank = rank;
                best = at->ifa_addr;
            }
        }
    }
    union ip_socket_address chosen = {0};
    if (best)
        memcpy(&chosen, best,
               best->sa_family == AF_INET ? sizeof(chosen.ipv4) : sizeof(chosen.ipv6));
    else if (family == AF_INET6)
        chosen.ipv6 =
            (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    else
        chosen.ipv4 =
            (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    host->kind = chosen.any.sa_family == AF_INET ? IP_HOST_IPV4 : IP_HOST_IPV6;
    ip_socket_address_host(&chosen, host->host, sizeof(host->host));
    freeifaddrs(interfaces);
}

/* Whether one of the addresses is this machine's. */
static bool any_is_here(const union ip_socket_address *addresses, size_t count)
{
    bool here = false;
    for (size_t i = 0; i < count && !here; i++) {
        union ip_socket_address one = addresses[i];
        ip_socket_address_set_port(&one, 0);
        int fd = socket(one.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        here = fd < 0 || bind(fd, &one.any, ip_socket_address_length(&one)) == 0;
        if (fd >= 0)
            close(fd);
    }
    return here;
}

/* With all interfaces, the host is only the name that peers connect to. It is not looked up:
 * this machine may not know the name, or it may be another machine's where addresses are
 * translated. A numeric host that is not an address of this machine causes a warning. */
static int socket_open(struct bmi_instance *instance, const struct bmi_method *method,
                       ip_prepare *prepare, const struct ip_address *host, int flags, int *family)
{
    union ip_socket_address addresses[IP_NAME_ADDRESSES];
    size_t count;

    *family = AF_UNSPEC;
    if (host->kind == IP_HOST_NAME && !(flags & BMI_TCP_BIND_SPECIFIC))
        return listen_everywhere(instance, prepare, AF_UNSPEC, host->port);
    int error = host_addresses(host, addresses, &count, family);
    if (error)
        return error;
    if ((flags & BMI_TCP_BIND_SPECIFIC) && count > 0)
        return listen_on(instance, prepare, addresses, count);
    if (count > 0 && !any_is_here(addresses, count))
        bmi_method_log(instance, BMI_LOG_WARN, NULL,
                       "%s: listening for '%s', which is not this machine's", method->schemes,
                       host->host);
    return listen_everywhere(instance, prepare, *family, host->port);
}

int ip_listen_open(struct bmi_instance *instance, const struct bmi_method *method, const char *text,
                   int flags, ip_prepare *prepare, char *bound, size_t size, uint16_t *port)
{
    struct ip_address host;
    const char *reason = "";
    union ip_socket_address real = {0};
    socklen_t length = sizeof(real);
    int family;

    int error = ip_address_parse(text, &host, &reason);
    if (error) {
        bmi_method_log(instance, BMI_LOG_ERROR, NULL, "%s: bad listen address '%s': %s",
                       method->schemes, text, reason);
        return error;
    }
    int fd = socket_open(instance, method, prepare, &host, flags, &family);
    if (fd < 0) {
        bmi_method_log(instance, BMI_LOG_ERROR, NULL, "%s: cannot listen on '%s': %s",
                       method->schemes, text,
                       -fd & BMI_ERROR_BIT ? bmi_status_string(fd) : strerror(-fd));
        return fd;
    }
    if (getsockname(fd, &real.any, &length) < 0) {
        error = -errno;
        goto undo_socket;
    }
    if (host_is_any(&host))
        host_choose(family, &host);
    *port = ip_socket_address_port(&real);
    error = ip_address_format(&host, *port, bound, size);
    if (error)
        goto undo_socket;
    return fd;

undo_socket:
    close(fd);
    return error;
}

/* ---- names ---------------------------------------------------------------------------------- */

struct ip_names {
    struct ip_names *next;
    uint16_t port;
    char name[];
};

int ip_names_add(struct ip_names **names, const struct ip_address *host, uint16_t port)
{
    size_t size = strlen(host->host) + 1;
    struct ip_names *one = malloc(sizeof(*one) + size);
    if (!one)
        return -ENOMEM;
    memcpy(one->name, host->host, size);
    one->port = port;
    one->next = *names;
    *names = one;
    return 0;
}

bool ip_names_have(const struct ip_names *names, const struct ip_address *host)
{
    while (names && (names->port != host->port || strcmp(names->name, host->host) != 0))
        names = names->next;
    return names != NULL;
}

void ip_names_free(struct ip_names **names)
{
    while (*names) {
        struct ip_names *one = *names;
        *names = one->next;
        free(one);
    }
}
