/* SPDX-License-Identifier: BSD-3-Clause
 *
 * listen.c - listening sockets, and which connections are taken. methods/stream accepts them: when
 * descriptors run out, an idle connection of the host that holds most makes room, or one that sends
 * no HELLO. A host at its limit (tcp_host_links) gets a new connection in place of such a one of
 * its own, or none. Everything but tcp_listen runs in the poller.
 */
#include <unistd.h>

#include "tcp.h"

/* Links whose other end is at that host. */
static int64_t host_links(struct stream_state *state, const char *host)
{
    int64_t count = 0;
    stream_lock(&state->list_lock);
    for (const struct stream_link *at = state->links; at; at = at->list_next) {
        union ip_socket_address there = {0};
        socklen_t length = sizeof(there);
        char its[INET6_ADDRSTRLEN];
        if (!at->accepted || getpeername(at->watch.fd, &there.any, &length) < 0)
            continue;
        ip_socket_address_host(&there, its, sizeof(its));
        count += strcmp(its, host) == 0;
    }
    stream_unlock(&state->list_lock);
    return count;
}

/* Whether the host may have one more; asks for one of its own to be closed where it has all. */
static bool host_may(struct stream_state *state, const char *host)
{
    int64_t most = bmi_method_setting(state->instance, "tcp_host_links");
    int64_t all = atomic_load(&state->counters[BMI_COUNT_LINKS]) + state->securing.accepted;
    if (most == 0 || all < most)
        return true;
    const struct bmi_method *method = state->socket->method;
    int64_t count = host_links(state, host);
    if (count < most || bmi_method_idle_close(state->instance, method, host))
        return true;
    bmi_method_log(state->instance, BMI_LOG_WARN, NULL,
                   "%s: a connection from %s is refused: it has %lld (see tcp_host_links)",
                   method->schemes, host, (long long)count);
    return false;
}

int tcp_accept(struct stream_link *link, const struct sockaddr_storage *address)
{
    const union ip_socket_address *from = (const void *)address;
    char host[INET6_ADDRSTRLEN];
    ip_socket_address_host(from, host, sizeof(host));
    if (!host_may(stream_state_of(link), host))
        return -EMFILE;
    ip_socket_set_options(link->base.instance, link->base.method, &link->base, link->watch.fd);
    stream_lock(&link->send_lock);
    tcp_socket_set_buffers_locked(link->base.instance, link, link->watch.fd);
    stream_unlock(&link->send_lock);
    ip_accepted(&link->base, link->watch.fd, from);
    return 0;
}

static void prepare(struct bmi_instance *instance, int fd)
{
    tcp_socket_set_buffers_locked(instance, NULL, fd);
}

int tcp_listen(void *argument, const char *text, int flags, char *bound, size_t size)
{
    struct tcp_state *state = argument;
    uint16_t port;

    int fd = ip_listen_open(state->stream.instance, state->stream.socket->method, text, flags,
                            prepare, bound, size, &port);
    if (fd < 0)
        return fd;
    struct ip_address host;
    int error = ip_address_parse(bound, &host, NULL);
    if (!error && host.kind == IP_HOST_NAME && !(flags & BMI_TCP_BIND_SPECIFIC))
        error = ip_names_add(&state->names, &host, port);
    if (!error)
        error = stream_listen(&state->stream, fd);
    if (error) {
        close(fd);
        return error;
    }
    int none = 0;
    atomic_compare_exchange_strong(&state->port, &none, port);
    return 0;
}
