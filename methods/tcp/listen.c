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
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "tcp.h"

struct tcp_listener {
    struct tcp_listener *next;
    struct tcp_state *state;
    struct bmi_watch watch;
    bool watched;
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

/* Links whose other end is at that host. */
static int64_t host_links(struct tcp_state *state, const char *host)
{
    int64_t count = 0;
    tcp_lock(&state->list_lock);
    for (const struct tcp_link *at = state->links; at; at = at->list_next) {
        union ip_socket_address there = {0};
        socklen_t length = sizeof(there);
        char its[INET6_ADDRSTRLEN];
        if (!at->accepted || getpeername(at->watch.fd, &there.any, &length) < 0)
            continue;
        ip_socket_address_host(&there, its, sizeof(its));
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

static void accept_link(struct tcp_state *state, int fd, const union ip_socket_address *from)
{
    char host[INET6_ADDRSTRLEN];
    ip_socket_address_host(from, host, sizeof(host));
    struct tcp_link *link = host_may(state, host) ? tcp_link_new(state, fd) : NULL;
    if (!link) {
        close(fd);
        return;
    }
    link->accepted = true;
    ip_socket_set_options(&link->base, fd);
    tcp_lock(&link->send_lock);
    tcp_socket_set_buffers_locked(link, fd);
    tcp_unlock(&link->send_lock);
    ip_accepted(&link->base, fd, from);
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
        union ip_socket_address from = {0};
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

static int listener_add(struct tcp_state *state, int fd)
{
    struct tcp_listener *listener = calloc(1, sizeof(*listener));
    if (!listener)
        return -ENOMEM;
    listener->state = state;
    listener->watch.fd = fd;
    listener->watch.ready = listener_ready;
    int error = bmi_method_watch_add(&listener->watch, EPOLLIN);
    if (error) {
        free(listener);
        return error;
    }
    listener->watched = true;
    listener->next = state->listeners;
    state->listeners = listener;
    return 0;
}

static void prepare(int fd)
{
    tcp_socket_set_buffers_locked(NULL, fd);
}

int tcp_listen(void *argument, const char *text, int flags, char *bound, size_t size)
{
    struct tcp_state *state = argument;
    uint16_t port;

    int fd = ip_listen_open(&bmi__method_tcp, text, flags, prepare, bound, size, &port);
    if (fd < 0)
        return fd;
    struct ip_address host;
    int error = ip_address_parse(bound, &host, NULL);
    if (!error && host.kind == IP_HOST_NAME && !(flags & BMI_TCP_BIND_SPECIFIC))
        error = ip_names_add(&state->names, &host, port);
    if (!error)
        error = listener_add(state, fd);
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
        free(listener);
    }
    ip_names_free(&state->names);
}
