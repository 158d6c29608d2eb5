/* SPDX-License-Identifier: BSD-3-Clause
 *
 * listen.c - listening sockets, and the connections that they accept.
 *
 * The poller accepts connections in bounded batches, so that many of them at once do not delay the
 * other links. When descriptors (or memory for sockets) run out, the poller stops watching the
 * listeners until a link closes or a timer expires: the kernel queues new connections meanwhile,
 * and existing links go on. An idle connection of the host that holds most makes room, or one that
 * sends no HELLO. A host at its limit (tcp_host_links) gets a new connection in place of such a one
 * of its own, or none.
 * Everything but tcp_listen itself runs in the poller.
 */
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "tcp.h"

struct tcp_listener {
    struct tcp_listener *next;
    struct tcp_state *state;
    struct bmi_watch watch;
    bool watched;
    char *name; /* host name that stands for all interfaces; NULL: none */
    uint16_t port;
};

/* ---- accepting ------------------------------------------------------------------------------ */

static void accept_timer_expired(struct bmi_timer *timer)
{
    tcp_listen_resume(tcp_container(timer, struct tcp_state, accept_timer));
}

static void accept_pause(struct tcp_state *state, int error)
{
    if (!state->accept_logged)
        bmi_method_log(BMI_LOG_WARN, NULL,
                       "tcp: cannot accept connections: %s; trying again as others close",
                       strerror(-error));
    state->accept_logged = true;
    state->accept_paused = true;
    for (struct tcp_listener *at = state->listeners; at; at = at->next) {
        if (at->watched)
            bmi_method_watch_remove(&at->watch);
        at->watched = false;
    }
    state->accept_timer.expired = accept_timer_expired;
    bmi_method_timer_set(&state->accept_timer, TCP_ACCEPT_RETRY_MS);
}

void tcp_listen_resume(struct tcp_state *state)
{
    if (!state->accept_paused)
        return;
    state->accept_paused = false;
    bmi_method_timer_clear(&state->accept_timer);
    for (struct tcp_listener *at = state->listeners; at; at = at->next) {
        if (at->watched)
            continue;
        int error = bmi_method_watch_add(&at->watch, EPOLLIN);
        at->watched = error == 0;
        if (error) {
            accept_pause(state, error);
            return;
        }
    }
}

static void link_ends(struct bmi_link *link, int fd, const union tcp_socket_address *from)
{
    union tcp_socket_address here = {0};
    socklen_t length = sizeof(here);
    uint8_t ends[2][TCP_ADDRESS_BYTES];

    if (getsockname(fd, &here.any, &length) < 0)
        return; /* it is never joined with another one then */
    tcp_socket_address_bytes(from, ends[0]);
    tcp_socket_address_bytes(&here, ends[1]);
    bmi_method_link_ends(link, ends[0], ends[1], TCP_ADDRESS_BYTES);
}

/* Links whose other end is at that host. */
static int64_t host_links(struct tcp_state *state, const char *host)
{
    int64_t count = 0;
    tcp_lock(&state->list_lock);
    for (const struct tcp_link *at = state->links; at; at = at->list_next) {
        union tcp_socket_address there = {0};
        socklen_t length = sizeof(there);
        char its[INET6_ADDRSTRLEN];
        if (!at->accepted || getpeername(at->watch.fd, &there.any, &length) < 0)
            continue;
        tcp_socket_address_host(&there, its, sizeof(its));
        count += strcmp(its, host) == 0;
    }
    tcp_unlock(&state->list_lock);
    return count;
}

/* Whether the host may have one more; asks for one of its own to be closed where it has all. */
static bool host_may(struct tcp_state *state, const char *host)
{
    int64_t most = bmi_method_setting("tcp_host_links");
    if (most == 0 || atomic_load(&tcp_counters[BMI_COUNT_LINKS]) < most)
        return true;
    int64_t count = host_links(state, host);
    if (count < most || bmi_method_idle_close(&bmi__method_tcp, host))
        return true;
    bmi_method_log(BMI_LOG_WARN, NULL,
                   "tcp: a connection from %s is refused: it has %lld (see tcp_host_links)", host,
                   (long long)count);
    return false;
}

static void accept_link(struct tcp_state *state, int fd, const union tcp_socket_address *from)
{
    char host[INET6_ADDRSTRLEN];
    tcp_socket_address_host(from, host, sizeof(host));
    struct tcp_link *link = host_may(state, host) ? tcp_link_new(state, fd) : NULL;
    if (!link) {
        close(fd);
        return;
    }
    link->accepted = true;
    tcp_socket_set_options(link, fd);
    tcp_lock(&link->send_lock);
    tcp_socket_set_buffers_locked(link, fd);
    tcp_unlock(&link->send_lock);
    bmi_method_link_host(&link->base, host, tcp_socket_address_port(from));
    link_ends(&link->base, fd, from);
    if (bmi_method_link_accepted(&link->base) < 0) {
        tcp_link_forget(link);
        return;
    }
    tcp_count(BMI_COUNT_LINKS_ACCEPTED, 1);
    tcp_link_open(link);
}

/* Whether resources are short that other descriptors' owners must free first; else the error is
 * that connection's. */
static bool out_of_resources(int error)
{
    return error == -EMFILE || error == -ENFILE || error == -ENOBUFS || error == -ENOMEM;
}

static void listener_ready(struct bmi_watch *watch, uint32_t events)
{
    struct tcp_listener *listener = tcp_container(watch, struct tcp_listener, watch);
    struct tcp_state *state = listener->state;

    (void)events;
    for (int i = 0; i < TCP_ACCEPT_BATCH; i++) {
        union tcp_socket_address from = {0};
        socklen_t length = sizeof(from);
        int fd = accept4(watch->fd, &from.any, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        int error = fd < 0 ? -errno : 0;
        if (error == -EAGAIN || error == -EWOULDBLOCK) {
            state->accept_logged = false; /* the backlog is empty: the shortage is over */
            return;
        }
        if (out_of_resources(error)) {
            accept_pause(state, error);
            bmi_method_idle_close(&bmi__method_tcp, NULL);
            return;
        }
        if (fd >= 0)
            accept_link(state, fd, &from);
    }
}

/* ---- listening ------------------------------------------------------------------------------ */

/* Binds and listens. Returns a socket or an errno. */
static int socket_listen(struct tcp_state *state, const union tcp_socket_address *address,
                         bool dual_stack)
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
    if (state)
        tcp_socket_set_buffers_locked(NULL, fd);
    if (bind(fd, &address->any, tcp_socket_address_length(address)) < 0 ||
        listen(fd, (int)bmi_method_setting("tcp_backlog")) < 0)
        goto undo_socket;
    return fd;

undo_socket:
    error = -errno;
    close(fd);
    return error;
}

static union tcp_socket_address any_host(int family, uint16_t port)
{
    union tcp_socket_address any = {.any.sa_family = (sa_family_t)family};
    tcp_socket_address_set_port(&any, port);
    return any;
}

/* All interfaces; both families if the kernel supports them and `family` is AF_UNSPEC. */
static int listen_everywhere(struct tcp_state *state, int family, uint16_t port)
{
    if (family == AF_UNSPEC) {
        union tcp_socket_address both = any_host(AF_INET6, port);
        int fd = socket_listen(state, &both, true);
        if (fd != -EAFNOSUPPORT && fd != -EADDRNOTAVAIL)
            return fd;
        family = AF_INET;
    }
    union tcp_socket_address any = any_host(family, port);
    return socket_listen(state, &any, false);
}

/* The first of the host's addresses that can be bound. */
static int listen_on(struct tcp_state *state, const union tcp_socket_address *addresses,
                     size_t count)
{
    int fd = -EADDRNOTAVAIL;
    for (size_t i = 0; i < count; i++) {
        fd = socket_listen(state, &addresses[i], false);
        if (fd >= 0)
            break;
    }
    return fd;
}

/* The host's addresses, and its family: AF_UNSPEC if it has both. */
static int host_addresses(const struct tcp_address *host, union tcp_socket_address *addresses,
                          size_t *count, int *family)
{
    *family = AF_UNSPEC;
    *count = 0;
    if (host->kind == TCP_HOST_EMPTY)
        return 0;
    if (host->kind == TCP_HOST_NAME) { /* to bind to it */
        int error = tcp_resolve_now(host->host, host->port, addresses, count);
        if (error)
            return error;
    } else {
        tcp_address_to_socket(host, &addresses[0]);
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

static bool host_is_any(const struct tcp_address *host)
{
    static const uint8_t zero[16];
    bool numeric = host->kind == TCP_HOST_IPV4 || host->kind == TCP_HOST_IPV6;
    return host->kind == TCP_HOST_EMPTY || (numeric && memcmp(host->numeric, zero, 16) == 0);
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
static void host_choose(int family, struct tcp_address *host)
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
    union tcp_socket_address chosen = {0};
    if (best)
        memcpy(&chosen, best,
               best->sa_family == AF_INET ? sizeof(chosen.ipv4) : sizeof(chosen.ipv6));
    else if (family == AF_INET6)
        chosen.ipv6 =
            (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    else
        chosen.ipv4 =
            (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    host->kind = chosen.any.sa_family == AF_INET ? TCP_HOST_IPV4 : TCP_HOST_IPV6;
    tcp_socket_address_host(&chosen, host->host, sizeof(host->host));
    freeifaddrs(interfaces);
}

/* `name`: NULL, or a host name that need not be known to any resolver. */
static int listener_add(struct tcp_state *state, int fd, const char *name, uint16_t port)
{
    struct tcp_listener *listener = calloc(1, sizeof(*listener));
    if (!listener)
        return -ENOMEM;
    listener->state = state;
    listener->port = port;
    listener->name = name ? strdup(name) : NULL;
    if (name && !listener->name) {
        free(listener);
        return -ENOMEM;
    }
    listener->watch.fd = fd;
    listener->watch.ready = listener_ready;
    int error = bmi_method_watch_add(&listener->watch, EPOLLIN);
    if (error) {
        free(listener->name);
        free(listener);
        return error;
    }
    listener->watched = true;
    listener->next = state->listeners;
    state->listeners = listener;
    return 0;
}

/* Whether one of the addresses is this machine's. */
static bool any_is_here(const union tcp_socket_address *addresses, size_t count)
{
    bool here = false;
    for (size_t i = 0; i < count && !here; i++) {
        union tcp_socket_address one = addresses[i];
        tcp_socket_address_set_port(&one, 0);
        int fd = socket(one.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        here = fd < 0 || bind(fd, &one.any, tcp_socket_address_length(&one)) == 0;
        if (fd >= 0)
            close(fd);
    }
    return here;
}

/* With all interfaces, the host is only the name that peers connect to. It is not looked up:
 * this machine may not know the name, or it may be another machine's where addresses are
 * translated. A numeric host that is not an address of this machine causes a warning. */
static int socket_open(struct tcp_state *state, const struct tcp_address *host, int flags,
                       int *family)
{
    union tcp_socket_address addresses[TCP_NAME_ADDRESSES];
    size_t count;

    *family = AF_UNSPEC;
    if (host->kind == TCP_HOST_NAME && !(flags & BMI_TCP_BIND_SPECIFIC))
        return listen_everywhere(state, AF_UNSPEC, host->port);
    int error = host_addresses(host, addresses, &count, family);
    if (error)
        return error;
    if ((flags & BMI_TCP_BIND_SPECIFIC) && count > 0)
        return listen_on(state, addresses, count);
    if (count > 0 && !any_is_here(addresses, count))
        bmi_method_log(BMI_LOG_WARN, NULL, "tcp: listening for '%s', which is not this machine's",
                       host->host);
    return listen_everywhere(state, *family, host->port);
}

int tcp_listen_open(struct tcp_state *state, const char *text, int flags, char *bound, size_t size,
                    uint16_t *port)
{
    struct tcp_address host;
    const char *reason = "";
    union tcp_socket_address real = {0};
    socklen_t length = sizeof(real);
    int family;

    int error = tcp_address_parse(text, &host, &reason);
    if (error) {
        bmi_method_log(BMI_LOG_ERROR, NULL, "tcp: bad listen address '%s': %s", text, reason);
        return error;
    }
    int fd = socket_open(state, &host, flags, &family);
    if (fd < 0) {
        bmi_method_log(BMI_LOG_ERROR, NULL, "tcp: cannot listen on '%s': %s", text,
                       -fd & BMI_ERROR_BIT ? bmi_status_string(fd) : strerror(-fd));
        return fd;
    }
    if (getsockname(fd, &real.any, &length) < 0) {
        error = -errno;
        goto undo_socket;
    }
    if (host_is_any(&host))
        host_choose(family, &host);
    *port = tcp_socket_address_port(&real);
    error = tcp_address_format(&host, *port, bound, size);
    if (error)
        goto undo_socket;
    return fd;

undo_socket:
    close(fd);
    return error;
}

int tcp_listen(void *argument, const char *text, int flags, char *bound, size_t size)
{
    struct tcp_state *state = argument;
    uint16_t port;

    int fd = tcp_listen_open(state, text, flags, bound, size, &port);
    if (fd < 0)
        return fd;
    struct tcp_address host;
    int error = tcp_address_parse(bound, &host, NULL);
    bool unresolved = host.kind == TCP_HOST_NAME && !(flags & BMI_TCP_BIND_SPECIFIC);
    if (!error)
        error = listener_add(state, fd, unresolved ? host.host : NULL, port);
    if (error) {
        close(fd);
        return error;
    }
    int none = 0;
    atomic_compare_exchange_strong(&state->port, &none, port);
    return 0;
}

void tcp_listen_stop(struct tcp_state *state)
{
    bmi_method_timer_clear(&state->accept_timer);
    state->accept_paused = false;
    while (state->listeners) {
        struct tcp_listener *listener = state->listeners;
        state->listeners = listener->next;
        if (listener->watched)
            bmi_method_watch_remove(&listener->watch);
        close(listener->watch.fd);
        free(listener->name);
        free(listener);
    }
}

bool tcp_listens_as(const struct tcp_state *state, const char *name, uint16_t port)
{
    const struct tcp_listener *at = state->listeners;
    while (at && (!at->name || at->port != port || strcmp(at->name, name) != 0))
        at = at->next;
    return at != NULL;
}
