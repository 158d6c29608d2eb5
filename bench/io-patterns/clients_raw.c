/* SPDX-License-Identifier: BSD-3-Clause
 *
 * clients_raw.c - the pattern clients over plain sockets in epoll sets: for each request one read
 * and one write on either side.
 */
#include "clients.h"
#include "raw_side.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

void clients_serve_raw(struct raw_link *link, const struct work *work)
{
    uint8_t reply[ACK_SIZE];
    clients_reply(work, reply);
    link_send(link, reply, sizeof reply);
}

/* ---- the clients --------------------------------------------------------------------------- */

static struct raw_link connected[CLIENTS_MAX];
static uint32_t connected_count;

static int server_dial(uint32_t address, const struct raw_link *first)
{
    struct sockaddr_in to;
    socklen_t size = sizeof to;
    int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0 || getpeername(first->socket, (struct sockaddr *)&to, &size) < 0)
        die("socket: %s", strerror(errno));
    to.sin_addr.s_addr = htonl(address);
    if (connect(made, (struct sockaddr *)&to, sizeof to) < 0)
        die("connection %u: %s", connected_count, strerror(errno));
    return made;
}

static void connected_set(struct raw_client *client, const struct work *work)
{
    const struct raw_link *first = &client->links[0];
    struct work question = *work;
    question.on = CLIENTS_CALL;
    while (connected_count > work->size)
        raw_link_close(&connected[--connected_count]);
    for (; connected_count < work->size; connected_count++) {
        struct raw_link *link = &connected[connected_count];
        int dialled = server_dial(clients_address(connected_count), first);
        raw_link_open(link, first->bytes, client->epoll, dialled, false);
        link_ask_and_await(link, 0, &question);
    }
}

struct callers {
    struct calls calls;
    struct work asked;
    struct caller {
        struct callers *callers;
        struct raw_link *link;
        uint32_t place;
        size_t got; /* of the reply */
    } all[];
};

static void call_start(struct caller *caller)
{
    struct callers *callers = caller->callers;
    caller->got = 0;
    if (call_begin(&callers->calls, caller->place))
        link_ask(caller->link, 0, &callers->asked);
}

static void reply_read(struct raw_link *link)
{
    struct caller *caller = link->state;
    uint8_t reply[ACK_SIZE];
    struct iovec piece = {reply, ACK_SIZE - caller->got};
    caller->got += link_recv_some(link, &piece, 1);
    if (caller->got < ACK_SIZE)
        return;
    call_end(&caller->callers->calls, caller->place);
    call_start(caller);
}

static double calls_run(struct raw_client *client, const struct work *work)
{
    struct callers *callers = allocate(sizeof *callers + work->window * sizeof(struct caller));
    callers->asked = *work;
    callers->asked.on = CLIENTS_CALL;
    calls_open(&callers->calls, work);
    for (uint32_t i = 0; i < work->window; i++) {
        struct raw_link *link = &connected[clients_active(work, i)];
        callers->all[i] = (struct caller){.callers = callers, .link = link, .place = i};
        link->state = &callers->all[i];
        link->ready = reply_read;
        call_start(&callers->all[i]);
    }
    raw_await(client, &callers->calls.ended, callers->calls.total, false);
    double figure = calls_close(&callers->calls);
    free(callers);
    return figure;
}

static void usage_ask(struct raw_link *link, const struct work *work, uint8_t on,
                      uint8_t usage[ACK_SIZE])
{
    struct work question = *work;
    question.on = on;
    link_ask(link, 0, &question);
    link_recv(link, usage, ACK_SIZE);
}

double clients_run_raw(struct raw_client *client, const struct work *work)
{
    uint8_t before[ACK_SIZE], after[ACK_SIZE], on;
    bool asks = clients_asks(work, &on);
    connected_set(client, work);
    if (asks)
        usage_ask(&client->links[0], work, on, before);
    double figure = calls_run(client, work);
    if (!asks)
        return figure;
    usage_ask(&client->links[0], work, CLIENTS_END, after);
    return clients_used(work, before, after);
}
