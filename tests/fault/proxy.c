/* SPDX-License-Identifier: BSD-3-Clause
 *
 * proxy.c - a process in the middle: see proxy.h. The thread and its user speak in turns
 * over a pair of sockets, so nothing needs a lock.
 */
#include "proxy.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
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
    size_t record_have, record_size; /* of the present one, in the ordered direction */
    int sockets[2];                  /* from which the bytes of each direction come; -1: none */
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

/* How many of the bytes go before the cut at a record's end. */
static size_t record_cut(const uint8_t *bytes, size_t have, size_t at)
{
    enum { HEADER = 5 };
    for (size_t i = 0; i < have; i++) {
        proxy.record_have++;
        if (proxy.record_have == HEADER - 1)
            proxy.record_size = HEADER + ((size_t)bytes[i] << 8);
        if (proxy.record_have == HEADER)
            proxy.record_size += bytes[i];
        if (proxy.record_have < HEADER || proxy.record_have < proxy.record_size)
            continue;
        proxy.record_have = 0;
        if (at + i + 1 >= proxy.order.place) {
            proxy.carried.done = true;
            return i + 1;
        }
    }
    return have;
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
    bool written = raw_write(proxy.sockets[!way], bytes, (size_t)have);
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
        proxy.record_have = 0;
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
