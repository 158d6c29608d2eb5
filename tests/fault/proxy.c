/* SPDX-License-Identifier: BSD-3-Clause
 *
 * proxy.c - a process in the middle: see proxy.h. The thread and its user speak in turns
 * over a pair of sockets, so nothing needs a lock.
 */
#include "proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "raw_peer.h"

static struct {
    int listener, channel, user; /* the thread's end, the user's */
    char server[BMI_MAX_ADDR_LEN];
    struct proxy_order order;
    struct proxy_carried carried;
    size_t record_have[2], record_size[2]; /* of the present one, in each direction */
    int sockets[2]; /* from which the bytes of each direction come; -1: none */
    uint8_t *copy[2];
} proxy;

static void copy_take(enum proxy_way way, const uint8_t *bytes, size_t size)
{
    size_t at = proxy.carried.bytes[way];
    if (at < PROXY_COPY)
        memcpy(proxy.copy[way] + at, bytes, size < PROXY_COPY - at ? size : PROXY_COPY - at);
    proxy.carried.bytes[way] += size;
}

static void both_close(void)
{
    for (int way = 0; way < 2; way++) {
        if (proxy.sockets[way] >= 0)
            close(proxy.sockets[way]);
        proxy.sockets[way] = -1;
    }
}

/* How many more bytes of this direction may pass. */
static size_t allowed(enum proxy_way way)
{
    const struct proxy_order *order = &proxy.order;
    if (order->deed == HOLD && proxy.carried.done)
        return 0;
    if (order->way != way || (order->deed != CUT && order->deed != HOLD))
        return SIZE_MAX;
    return order->place - proxy.carried.bytes[way];
}

static void deed_do(void)
{
    const struct proxy_order *order = &proxy.order;
    if ((order->deed != CUT && order->deed != HOLD) ||
        proxy.carried.bytes[order->way] < order->place)
        return;
    proxy.carried.done = true;
    if (order->deed == CUT)
        both_close();
}

enum { RECORD_HEADER = 5 };

/* Takes the next byte of a direction. Returns how many bytes of its record there are; 0: all. */
static size_t record_step(enum proxy_way way, uint8_t byte)
{
    size_t *have = &proxy.record_have[way], *size = &proxy.record_size[way];
    ++*have;
    if (*have == RECORD_HEADER - 1)
        *size = RECORD_HEADER + ((size_t)byte << 8);
    if (*have == RECORD_HEADER)
        *size += byte;
    if (*have >= RECORD_HEADER && *have == *size)
        *have = 0;
    return *have;
}

/* How many of the bytes go before the cut at a record's end. */
static size_t record_cut(const uint8_t *bytes, size_t have, size_t at)
{
    for (size_t i = 0; i < have; i++)
        if (record_step(proxy.order.way, bytes[i]) == 0 && at + i + 1 >= proxy.order.place) {
            proxy.carried.done = true;
            return i + 1;
        }
    return have;
}

/* How many of the bytes are carried together. */
static size_t split_next(enum proxy_way way, const uint8_t *bytes, size_t have)
{
    if (proxy.order.place > 0)
        return have < proxy.order.place ? have : proxy.order.place;
    for (size_t i = 0; i < have; i++)
        if (record_step(way, bytes[i]) == RECORD_HEADER)
            return i + 1;
    return have;
}

/* Waits until the other side has read all, by the kernel's list of connections. */
static void taken_wait(int socket)
{
    struct sockaddr_in here, there;
    socklen_t size = sizeof here;
    unsigned own, other, left = 1;
    CHECK(getsockname(socket, (struct sockaddr *)&here, &size) == 0, "getsockname");
    if (getpeername(socket, (struct sockaddr *)&there, &size) < 0)
        return; /* it has ended */
    while (left > 0) {
        char line[256];
        FILE *list = fopen("/proc/net/tcp", "re");
        CHECK(list != NULL, "/proc/net/tcp");
        left = 0;
        while (fgets(line, sizeof line, list))
            if (sscanf(line, " %*u: %*x:%x %*x:%x %*x %*x:%x", &own, &other, &left) == 3 &&
                own == ntohs(there.sin_port) && other == ntohs(here.sin_port))
                break;
            else
                left = 0;
        fclose(list);
        sched_yield();
    }
}

/* Returns false if the other side has gone. */
static bool split_write(enum proxy_way way, const uint8_t *bytes, size_t have)
{
    bool written = true;
    for (size_t done = 0, next; written && done < have; done += next) {
        next = split_next(way, bytes + done, have - done);
        written = raw_write(proxy.sockets[!way], bytes + done, next);
        taken_wait(proxy.sockets[!way]);
    }
    proxy.carried.done = true;
    return written;
}

/* Carries the bytes that are there. The end of one side is the end of both. */
static void carry(enum proxy_way way)
{
    uint8_t bytes[16384];
    size_t most = allowed(way), at = proxy.carried.bytes[way];
    ssize_t have = recv(proxy.sockets[way], bytes, most < sizeof bytes ? most : sizeof bytes, 0);
    if (have <= 0) {
        both_close();
        return;
    }
    if (proxy.order.deed == CUT_RECORD && proxy.order.way == way)
        have = (ssize_t)record_cut(bytes, (size_t)have, at);
    copy_take(way, bytes, (size_t)have); /* as the sender meant it */
    if (proxy.order.deed == FLIP && proxy.order.way == way &&
        proxy.order.place - at < (size_t)have) {
        bytes[proxy.order.place - at] ^= 1;
        proxy.carried.done = true;
    }
    bool written = proxy.order.deed == SPLIT ? split_write(way, bytes, (size_t)have)
                                             : raw_write(proxy.sockets[!way], bytes, (size_t)have);
    if (!written || (proxy.order.deed == CUT_RECORD && proxy.carried.done))
        both_close();
}

/* Until the user ends it. */
static void connection_run(void)
{
    proxy.sockets[TO_SERVER] = accept(proxy.listener, NULL, NULL);
    proxy.sockets[TO_CLIENT] = raw_connect_plain(proxy.server, 0);
    for (;;) {
        struct pollfd polled[3] = {{.fd = proxy.channel, .events = POLLIN}};
        deed_do();
        for (int way = 0; way < 2; way++)
            polled[1 + way] =
                (struct pollfd){.fd = allowed((enum proxy_way)way) > 0 ? proxy.sockets[way] : -1,
                                .events = POLLIN};
        if (poll(polled, 3, -1) < 0)
            continue;
        if (polled[0].revents)
            return;
        for (int way = 0; way < 2; way++)
            if (polled[1 + way].revents && proxy.sockets[way] >= 0)
                carry((enum proxy_way)way);
    }
}

static void *proxy_run(void *argument)
{
    for (;;) {
        hear(proxy.channel, &proxy.order, sizeof proxy.order);
        memset(&proxy.carried, 0, sizeof proxy.carried);
        memset(proxy.record_have, 0, sizeof proxy.record_have);
        connection_run();
        hear_number(proxy.channel);
        both_close();
        tell(proxy.channel, &proxy.carried, sizeof proxy.carried);
    }
    return argument;
}

void proxy_start(const char *server, char url[BMI_MAX_ADDR_LEN])
{
    char bound[BMI_MAX_ADDR_LEN];
    int ends[2];
    pthread_t thread;
    strcpy(proxy.server, server);
    proxy.listener = raw_bind("127.0.0.1", bound);
    CHECK(listen(proxy.listener, 8) == 0, "listen: %s", strerror(errno));
    size_t scheme = (size_t)(strstr(server, "://") - server);
    memcpy(url, server, scheme);
    strcpy(url + scheme, strstr(bound, "://"));
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    proxy.channel = ends[0];
    proxy.user = ends[1];
    for (int way = 0; way < 2; way++) {
        proxy.sockets[way] = -1;
        proxy.copy[way] = malloc(PROXY_COPY);
        CHECK(proxy.copy[way] != NULL, "no memory");
    }
    CHECK(pthread_create(&thread, NULL, proxy_run, NULL) == 0, "a thread");
    pthread_detach(thread);
}

void proxy_begin(struct proxy_order order)
{
    tell(proxy.user, &order, sizeof order);
}

struct proxy_carried proxy_end(void)
{
    struct proxy_carried carried;
    tell_number(proxy.user, 0);
    hear(proxy.user, &carried, sizeof carried);
    return carried;
}

const uint8_t *proxy_copy(enum proxy_way way)
{
    return proxy.copy[way];
}
