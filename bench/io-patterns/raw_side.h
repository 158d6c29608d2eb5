/* SPDX-License-Identifier: BSD-3-Clause
 *
 * raw_side.h - the reference over sockets: connections, and a server's epoll loop. The bytes are
 * those of the sockets, or OpenSSL's on them (tls_side.c).
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

struct raw_link;

/* How a link's bytes move. The socket blocks or not (link_blocking_set). */
struct raw_bytes {
    /* After the connection is made, by `accepted` or by us. It blocks. */
    void (*open)(struct raw_link *link, bool accepted);
    void (*close)(struct raw_link *link);
    /* Return: bytes moved, or a negated errno; -EAGAIN: none can be now. 0 of recv: the peer has
     * gone. */
    ssize_t (*send)(struct raw_link *link, const struct iovec *pieces, int count);
    ssize_t (*recv)(struct raw_link *link, const struct iovec *pieces, int count);
    /* Whether there are bytes that the socket does not report. NULL: never. */
    bool (*pending)(const struct raw_link *link);
    /* In words, for the report. NULL: nothing to say. */
    const char *(*name)(const struct raw_link *link);
};

extern const struct raw_bytes raw_plain, raw_tls;

struct raw_link {
    int socket;
    const struct raw_bytes *bytes;
    void *layer;                          /* of `bytes` */
    int epoll;                            /* the loop that it is in */
    void (*ready)(struct raw_link *link); /* continue; NULL: a request is awaited */
    uint8_t request[REQUEST_SIZE];
    size_t request_used;
    void *state;           /* the pattern's */
    bool spins;            /* is continued all the time, not only when epoll reports it */
    struct raw_link *next; /* of those */
};

struct raw_server {
    const struct raw_bytes *bytes;
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

/* Makes a link of a connected socket, accepted or not, and watches it in an epoll set. */
void raw_link_open(struct raw_link *link, const struct raw_bytes *bytes, int epoll, int socket,
                   bool accepted);
void raw_link_close(struct raw_link *link); /* leaves the link's own memory */
/* Sets which events of the link continue it: EPOLLIN, EPOLLOUT. */
void link_watch(struct raw_link *link, uint32_t events);
void link_blocking_set(struct raw_link *link, bool blocking);

void socket_nodelay_set(int socket);
/* Blocking, or spinning on a socket that does not block: all of it, or the process ends. */
void socket_send(int socket, const void *buffer, size_t size);
void socket_recv(int socket, void *buffer, size_t size);

/* The same over the link's bytes. */
void link_send(struct raw_link *link, const void *buffer, size_t size);
void link_recv(struct raw_link *link, void *buffer, size_t size);
/* What can be moved at once, or, if the socket blocks, at least one byte. Returns: bytes moved. */
size_t link_send_some(struct raw_link *link, const struct iovec *pieces, int count);
size_t link_recv_some(struct raw_link *link, const struct iovec *pieces, int count);
bool link_pending(const struct raw_link *link);

/* Sends the request, blocking or not: it always fits. */
void link_ask(struct raw_link *link, int server, const struct work *work);
void link_ask_and_await(struct raw_link *link, int server, const struct work *work);

/* Runs the clients' links until *value reaches `target`; `spin`: without waiting. */
void raw_await(struct raw_client *client, const uint64_t *value, uint64_t target, bool spin);

/* A process's whole life, and its parts. A server runs until it has answered `requests` requests
 * to their end, or for ever (0). */
void raw_server_open(struct raw_server *server, const struct raw_bytes *bytes,
                     const char *listen_url, char *url, size_t url_size);
void raw_server_run(struct raw_server *server, uint64_t requests);
void raw_client_open(struct raw_client *client, const struct raw_bytes *bytes,
                     const struct options *options);
void raw_server_main(const struct options *options);
void raw_client_main(const struct options *options);

#endif
