/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exchange.c - the address exchange, a TCP connection beside each link: dialled, accepted, its
 * bytes, and its end.
 *
 * It begins with the handshake (handshake.c). Then each byte is a ring (read your completion queue)
 * or the confirmation of our end of stream (link.c). If the connection ends before a link has ended
 * in order, the other process has died: messages that have arrived are handled, then the link goes
 * down.
 *
 * The poller runs all of it, except ib_connect, ib_listen, and ib_ring_locked.
 */
#include <net/if.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "ib.h"
#include "methods/ip/ip.h"

/* A link that is being dialled. */
struct ib_dial {
    struct ip_dial ip;
    struct ib_link *link;
};

static void exchange_ready(struct bmi_watch *watch, uint32_t events);

int ib_exchange_watch(struct ib_link *link, uint32_t events)
{
    if (link->watched)
        bmi_method_watch_remove(link->base.instance, &link->watch);
    link->watch.ready = exchange_ready;
    int status = bmi_method_watch_add(link->base.instance, &link->watch, events);
    link->watched = status == 0;
    return status;
}

void ib_exchange_close(struct ib_link *link)
{
    if (link->watched)
        bmi_method_watch_remove(link->base.instance, &link->watch);
    link->watched = false;
    ib_lock(&link->send_lock);
    if (link->watch.fd >= 0)
        close(link->watch.fd);
    link->watch.fd = -1;
    ib_unlock(&link->send_lock);
}

/* ---- dialling -------------------------------------------------------------------------------- */

/* Begins to connect to an address. Returns 0 or an errno. */
static int attempt(struct ip_dial *dial, const union ip_socket_address *to)
{
    struct ib_link *link = ib_container(dial, struct ib_dial, ip)->link;
    int fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return -errno;
    ip_socket_set_options(link->base.instance, link->base.method, &link->base, fd);
    if (connect(fd, &to->any, ip_socket_address_length(to)) < 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        int error = -errno;
        close(fd);
        return error;
    }
    ib_lock(&link->send_lock);
    link->watch.fd = fd;
    ib_unlock(&link->send_lock);
    int status = ib_exchange_watch(link, EPOLLOUT);
    if (status)
        ib_exchange_close(link);
    return status;
}

static void failed(struct ip_dial *dial, int error)
{
    ib_link_end(ib_container(dial, struct ib_dial, ip)->link, error);
}

int ib_connect(void *state, const char *canonical, void *owner, struct bmi_link **out)
{
    struct ib_dial *dial = calloc(1, sizeof(*dial));
    if (!dial)
        return -ENOMEM;
    dial->ip.attempt = attempt;
    dial->ip.failed = failed;
    int error = ip_dial_init(&dial->ip, canonical);
    struct ib_link *link = error ? NULL : ib_link_new(state, -1, true);
    if (!link) {
        free(dial);
        return error ? error : -ENOMEM;
    }
    dial->link = link;
    dial->ip.link = &link->base;
    dial->ip.timer = &link->timer;
    link->base.owner = owner;
    link->dial = dial;
    *out = &link->base;
    ib_link_kick(link);
    return 0;
}

void ib_dial_free(struct ib_link *link)
{
    if (link->dial)
        ip_dial_cancel(&link->dial->ip);
    free(link->dial);
    link->dial = NULL;
}

void ib_dial_start(struct ib_link *link)
{
    ib_phase_set(link, IB_DIALLING);
    ip_dial_start(&link->dial->ip, ib_state_of(link)->names);
}

void ib_dial_again(struct ib_link *link, int error)
{
    ib_exchange_close(link);
    ip_dial_again(&link->dial->ip, error);
}

static void connect_ready(struct ib_link *link)
{
    int error = ip_dial_check(&link->base, link->watch.fd);
    if (error == -ENOTCONN)
        return; /* reported too early: the connection is still being made */
    if (error) {
        ib_dial_again(link, error);
        return;
    }
    ib_dial_free(link);
    error = ib_handshake_start(link);
    if (error)
        ib_link_end(link, error);
}

/* ---- bytes and the end ----------------------------------------------------------------------- */

void ib_byte_send(const struct ib_link *link, char byte)
{
    if (send(link->watch.fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        bmi_method_log(link->base.instance, BMI_LOG_DEBUG, &link->base, "the byte '%c' is lost: %s",
                       byte, strerror(errno));
}

void ib_ring_locked(struct ib_link *link)
{
    ib_assert_locked(&link->send_lock);
    if (link->doorbell && link->watch.fd >= 0 && ib_doorbell_wanted(link->doorbell, &link->rung))
        ib_byte_send(link, IB_BYTE_RING);
}

/* Returns 0 or the errno that ends the link. */
static int bytes_take(struct ib_link *link, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] == IB_BYTE_CONFIRMED)
            link->bye_confirmed = true;
        else if (bytes[i] != IB_BYTE_RING)
            return -EPROTO;
    return 0;
}

static void bytes_read(struct ib_link *link)
{
    char bytes[64];
    ssize_t got = recv(link->watch.fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    int status = got < 0 ? -errno : got == 0 ? -ECONNRESET : bytes_take(link, bytes, (size_t)got);
    if (status) {
        ib_drain(ib_state_of(link)); /* its earlier messages */
        ib_link_end(link, status);
    } else {
        ib_progress(ib_state_of(link));
        ib_bye_check(link);
    }
}

static void exchange_ready(struct bmi_watch *watch, uint32_t events)
{
    struct ib_link *link = ib_container(watch, struct ib_link, watch);
    (void)events;
    bmi_link_ref(&link->base);
    if (link->phase == IB_DIALLING)
        connect_ready(link);
    else if (link->phase == IB_HANDSHAKE)
        ib_handshake_read(link);
    else if (link->phase == IB_UP)
        bytes_read(link);
    bmi_link_unref(&link->base);
}

/* ---- listening ------------------------------------------------------------------------------- */

static void accepted(struct stream_acceptor *acceptor, int fd, const struct sockaddr_storage *from)
{
    struct ib_state *state = ib_container(acceptor, struct ib_state, acceptor);
    struct ib_link *link = ib_link_new(state, fd, false);
    if (!link) {
        close(fd);
        return;
    }
    ip_socket_set_options(link->base.instance, link->base.method, &link->base, fd);
    ip_accepted(&link->base, fd, (const void *)from);
    if (ib_handshake_start(link))
        ib_link_forget(link);
}

/* Accepts a connection if the descriptors are left as well that the provider's connection needs
 * (shm: for a moment, to map the peer's memory); otherwise new clients wait. */
static int connection_take(struct stream_acceptor *acceptor, int listener,
                           struct sockaddr_storage *from)
{
    enum { OURS = 1, PROVIDERS = 2 };
    socklen_t length = sizeof(*from);
    (void)acceptor;
    if (ib_descriptors_lack(OURS + PROVIDERS))
        return -EMFILE;
    int fd = accept4(listener, (struct sockaddr *)from, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* The numeric host of the listen address, for the endpoint's own address; NULL: any address serves.
 */
static const char *host_numeric(int fd, const struct ip_address *address, int flags, char *host,
                                size_t size)
{
    if (address->kind != IP_HOST_NAME)
        snprintf(host, size, "%s%s%s", address->host, address->scope[0] ? "%" : "", address->scope);
    else if (!(flags & BMI_TCP_BIND_SPECIFIC) || ib_socket_host(fd, host, size))
        return NULL;
    return host;
}

/* Makes the endpoint for the address, and accepts connections. Returns 0 or an errno. */
static int listener_add(struct ib_state *state, int fd, const char *bound, int flags, uint16_t port)
{
    char host[IP_HOST_SIZE + IF_NAMESIZE];
    struct ib_endpoint *endpoint;
    struct ip_address address;
    int status = ip_address_parse(bound, &address, NULL);
    if (status == 0)
        status = ib_endpoint_get(state, host_numeric(fd, &address, flags, host, sizeof(host)),
                                 &endpoint);
    if (status == 0 && address.kind == IP_HOST_NAME && !(flags & BMI_TCP_BIND_SPECIFIC))
        status = ip_names_add(&state->names, &address, port);
    state->acceptor.instance = state->instance;
    state->acceptor.method = state->method;
    state->acceptor.take = connection_take;
    state->acceptor.accepted = accepted;
    return status ? status : stream_acceptor_add(&state->acceptor, fd);
}

int ib_listen(void *argument, const char *text, int flags, char *bound, size_t size)
{
    struct ib_state *state = argument;
    uint16_t port;
    int fd = ip_listen_open(state->instance, state->method, text, flags, NULL, bound, size, &port);
    if (fd < 0)
        return fd;
    int status = listener_add(state, fd, bound, flags, port);
    if (status) {
        close(fd);
        return status;
    }
    int none = 0;
    atomic_compare_exchange_strong(&state->port, &none, port);
    return 0;
}

void ib_listen_stop(struct ib_state *state)
{
    stream_acceptor_stop(&state->acceptor);
    ip_names_free(&state->names);
}
