/* SPDX-License-Identifier: BSD-3-Clause
 *
 * raw_side.h - the reference over plain sockets: connections, and a server's epoll loop.
 *
 * A client has one connection to each server and keeps it. Between samples a server waits with
 * epoll for requests; read and write go on in that loop (link->ready), the patterns of one pair
 * take the connection for themselves, make it blocking, and give it back at the end.
 */
#ifndef BENCH_RAW_SIDE_H
#define BENCH_RAW_SIDE_H

#include "bench.h"

#include <sys/types.h>
#include <sys/uio.h>

struct raw_link {
    int socket;
    int epoll;                            /* the loop that it is in */
    void (*ready)(struct raw_link *link); /* continue; NULL: a request is awaited */
    uint8_t request[REQUEST_SIZE];
    size_t request_used;
    void *state;           /* the pattern's */
    bool spins;            /* is continued all the time, not only when epoll reports it */
    struct raw_link *next; /* of those */
};

struct raw_server {
    int listener, epoll;
    uint64_t served; /* requests taken */
    int busy;        /* links whose answers go on */
    struct raw_link *spinning;
};

struct raw_client {
    struct raw_link *links; /* one a server */
    int link_count;
    int epoll;
    int timeout_s;
};

/* Sets which events of the link continue it: EPOLLIN, EPOLLOUT. */
void link_watch(struct raw_link *link, uint32_t events);
void link_blocking_set(struct raw_link *link, bool blocking);

void socket_nodelay_set(int socket);
/* Blocking, or spinning on a socket that does not block: all of it, or the process ends. */
void socket_send(int socket, const void *buffer, size_t size);
void socket_recv(int socket, void *buffer, size_t size);

/* Non-blocking. Returns: bytes moved, 0 where none can be now. */
size_t socket_send_some(int socket, struct iovec *pieces, int count);
size_t socket_recv_some(int socket, struct iovec *pieces, int count);

/* Sends the request, blocking or not: it always fits. */
void link_ask(struct raw_link *link, int server, const struct work *work);
void link_ask_and_await(struct raw_link *link, int server, const struct work *work);

/* Runs the clients' links until *value reaches `target`; `spin`: without waiting. */
void raw_await(struct raw_client *client, const uint64_t *value, uint64_t target, bool spin);

/* A process's whole life, and its parts. A server runs until it has answered `requests` requests
 * to their end, or for ever (0). */
void raw_server_open(struct raw_server *server, const char *listen_url, char *url, size_t url_size);
void raw_server_run(struct raw_server *server, uint64_t requests);
void raw_client_open(struct raw_client *client, const struct options *options);
void raw_server_main(const struct options *options);
void raw_client_main(const struct options *options);

#endif
