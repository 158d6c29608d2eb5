/* SPDX-License-Identifier: BSD-3-Clause
 *
 * raw_side.c - sockets for the reference.
 */
#include "raw_side.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS_MAX 64

void link_watch(struct raw_link *link, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = link};
    if (epoll_ctl(link->epoll, EPOLL_CTL_MOD, link->socket, &event) < 0)
        die("epoll_ctl: %s", strerror(errno));
}

void link_blocking_set(struct raw_link *link, bool blocking)
{
    int flags = fcntl(link->socket, F_GETFL);
    flags = blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK;
    if (fcntl(link->socket, F_SETFL, flags) < 0)
        die("fcntl: %s", strerror(errno));
}

void socket_nodelay_set(int socket)
{
    int on = 1;
    if (setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0)
        die("TCP_NODELAY: %s", strerror(errno));
}

void socket_send(int socket, const void *buffer, size_t size)
{
    const uint8_t *bytes = buffer;
    while (size > 0) {
        ssize_t sent = send(socket, bytes, size, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (sent < 0)
            die("send: %s", strerror(errno));
        bytes += sent;
        size -= (size_t)sent;
    }
}

void socket_recv(int socket, void *buffer, size_t size)
{
    uint8_t *bytes = buffer;
    while (size > 0) {
        ssize_t got = recv(socket, bytes, size, 0);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            die("recv: %s", got < 0 ? strerror(errno) : "the peer has gone");
        bytes += got;
        size -= (size_t)got;
    }
}

static ssize_t plain_send(struct raw_link *link, const struct iovec *pieces, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)pieces,
                             .msg_iovlen = (size_t)count};
    ssize_t sent = count == 1 ? send(link->socket, pieces->iov_base, pieces->iov_len, MSG_NOSIGNAL)
                              : sendmsg(link->socket, &message, MSG_NOSIGNAL);
    return sent < 0 ? -errno : sent;
}

static ssize_t plain_recv(struct raw_link *link, const struct iovec *pieces, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)pieces,
                             .msg_iovlen = (size_t)count};
    ssize_t got = count == 1 ? recv(link->socket, pieces->iov_base, pieces->iov_len, 0)
                             : recvmsg(link->socket, &message, 0);
    return got < 0 ? -errno : got;
}

const struct raw_bytes raw_plain = {.send = plain_send, .recv = plain_recv};

size_t link_send_some(struct raw_link *link, const struct iovec *pieces, int count)
{
    ssize_t sent = link->bytes->send(link, pieces, count);
    if (sent < 0 && sent != -EAGAIN && sent != -EINTR)
        die("send: %s", strerror((int)-sent));
    return sent < 0 ? 0 : (size_t)sent;
}

size_t link_recv_some(struct raw_link *link, const struct iovec *pieces, int count)
{
    ssize_t got = link->bytes->recv(link, pieces, count);
    if (got == 0 || (got < 0 && got != -EAGAIN && got != -EINTR))
        die("recv: %s", got < 0 ? strerror((int)-got) : "the peer has gone");
    return got < 0 ? 0 : (size_t)got;
}

void link_send(struct raw_link *link, const void *buffer, size_t size)
{
    struct iovec piece = {(void *)(uintptr_t)buffer, size};
    while (piece.iov_len > 0) {
        size_t sent = link_send_some(link, &piece, 1);
        piece.iov_base = (uint8_t *)piece.iov_base + sent;
        piece.iov_len -= sent;
    }
}

void link_recv(struct raw_link *link, void *buffer, size_t size)
{
    struct iovec piece = {buffer, size};
    while (piece.iov_len > 0) {
        size_t got = link_recv_some(link, &piece, 1);
        piece.iov_base = (uint8_t *)piece.iov_base + got;
        piece.iov_len -= got;
    }
}

bool link_pending(const struct raw_link *link)
{
    return link->bytes->pending && link->bytes->pending(link);
}

void link_ask(struct raw_link *link, int server, const struct work *work)
{
    struct work asked = *work;
    uint8_t request[REQUEST_SIZE];
    asked.server = (uint8_t)server;
    request_encode(request, &asked);
    link_send(link, request, sizeof request);
}

void link_ask_and_await(struct raw_link *link, int server, const struct work *work)
{
    uint8_t ack[ACK_SIZE];
    link_ask(link, server, work);
    link_recv(link, ack, sizeof ack);
}

static void raw_spin(struct raw_client *client, const uint64_t *value, uint64_t target)
{
    uint64_t before = *value, start = now_ns();
    while (*value < target) {
        for (int i = 0; i < client->link_count; i++)
            client->links[i].ready(&client->links[i]);
        if (*value != before) {
            before = *value;
            start = now_ns();
        } else if (seconds_since(start) > client->timeout_s) {
            die("nothing came for %d s", client->timeout_s);
        }
    }
}

void raw_await(struct raw_client *client, const uint64_t *value, uint64_t target, bool spin)
{
    struct epoll_event events[EVENTS_MAX];
    if (spin)
        raw_spin(client, value, target);
    while (*value < target) {
        int count = epoll_wait(client->epoll, events, EVENTS_MAX, client->timeout_s * 1000);
        if (count < 0 && errno != EINTR)
            die("epoll_wait: %s", strerror(errno));
        if (count == 0)
            die("nothing came for %d s", client->timeout_s);
        for (int i = 0; i < count; i++) {
            struct raw_link *link = events[i].data.ptr;
            do
                link->ready(link);
            while (link_pending(link) && *value < target);
        }
    }
}
