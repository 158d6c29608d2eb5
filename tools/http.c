/* SPDX-License-Identifier: BSD-3-Clause
 *
 * http.c - see http.h.
 *
 * One thread waits for all connections. A connection has one request, one answer, and an end; each
 * of these phases has a deadline that no byte of the client moves. The page is made when a request
 * is complete, and serves all requests that are complete then. While it is still being sent it also
 * serves those of the next seconds, so that clients that do not read cannot make it pile up.
 */
#include "http.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CLIENTS = 32,
    BACKLOG = 128,
    REQUEST_MOST = 8192,
    HEAD_MOST = 512,
    REQUEST_MS = 5000,
    ANSWER_MS = 10000,
    END_MS = 1000,
    REUSE_MS = 5000,
    PAUSE_MS = 1000
};

struct page {
    char *text;
    size_t size;
    int64_t made_ms;
    int users;
};

enum phase { FREE, REQUEST, COMPLETE, ANSWER, END };

struct client {
    enum phase phase;
    int fd;
    int64_t deadline_ms; /* of the phase */
    bool openmetrics;
    char request[REQUEST_MOST + 1], head[HEAD_MOST];
    size_t got, head_size, sent; /* sent: of head and page */
    struct page *page;           /* or NULL */
};

struct server {
    int listener;
    http_make *make;
    void *argument;
    int64_t paused_until_ms; /* no descriptor was free for a new connection */
    struct page *pages[2];   /* by `openmetrics`; NULL: none */
    struct client clients[CLIENTS];
};

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void page_drop(struct page *page)
{
    if (page == NULL || --page->users > 0)
        return;
    free(page->text);
    free(page);
}

/* Returns a page for one more user, or NULL. The server is itself a user of its latest pages. */
static struct page *page_take(struct server *server, bool openmetrics, int64_t since_ms)
{
    struct page **latest = &server->pages[openmetrics];

    if (*latest != NULL && (*latest)->made_ms < since_ms &&
        ((*latest)->users == 1 || (*latest)->made_ms + REUSE_MS < since_ms)) {
        page_drop(*latest);
        *latest = NULL;
    }
    if (*latest == NULL) {
        struct page *page = calloc(1, sizeof *page);

        if (page != NULL)
            page->text = server->make(server->argument, openmetrics, &page->size);
        if (page == NULL || page->text == NULL) {
            free(page);
            return NULL;
        }
        page->made_ms = now_ms();
        page->users = 1;
        *latest = page;
    }
    (*latest)->users++;
    return *latest;
}

/* ---- a client -------------------------------------------------------------------------------- */

static void phase_set(struct client *client, enum phase phase, int ms)
{
    client->phase = phase;
    client->deadline_ms = now_ms() + ms;
}

static void client_free(struct client *client)
{
    close(client->fd);
    page_drop(client->page);
    client->page = NULL;
    client->fd = -1;
    client->phase = FREE;
}

static void answer(struct client *client, const char *status, const char *type, const char *body)
{
    size_t size = client->page != NULL ? client->page->size : strlen(body);
    int length =
        snprintf(client->head, sizeof client->head,
                 "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s"
                 "Connection: close\r\n\r\n%s",
                 status, type, size, strncmp(status, "405", 3) == 0 ? "Allow: GET\r\n" : "", body);

    client->head_size = (size_t)length;
    client->sent = 0;
    phase_set(client, ANSWER, ANSWER_MS);
}

static void answer_error(struct client *client, const char *status)
{
    answer(client, status, "text/plain; charset=utf-8", "the page is /metrics\n");
}

static void answer_page(struct server *server, struct client *client, int64_t since_ms)
{
    client->page = page_take(server, client->openmetrics, since_ms);
    if (client->page == NULL)
        answer_error(client, "500 Internal Server Error");
    else if (client->openmetrics)
        answer(client, "200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", "");
    else
        answer(client, "200 OK", "text/plain; version=0.0.4; charset=utf-8", "");
}

/* Whether a client accepts OpenMetrics. */
static bool accepts_openmetrics(const char *request)
{
    const char *line = request;

    while ((line = strchr(line, '\n')) != NULL) {
        line++;
        size_t length = strcspn(line, "\r\n");
        if (strncasecmp(line, "accept:", 7) == 0 &&
            memmem(line, length, "application/openmetrics-text", 28) != NULL)
            return true;
    }
    return false;
}

/* All of the request's head is there. */
static void request_parse(struct client *client)
{
    const char *request = client->request;
    const char *target = request + 4;
    size_t length = strcspn(request, "\r\n");
    const char *protocol = memmem(request, length, " HTTP/1.", 8);

    if (protocol == NULL || strlen(request) != client->got)
        answer_error(client, "400 Bad Request");
    else if (strncmp(request, "GET ", 4) != 0)
        answer_error(client, "405 Method Not Allowed");
    else if (strncmp(target, "/metrics", 8) != 0 || strchr("? ", target[8]) == NULL)
        answer_error(client, "404 Not Found");
    else {
        client->openmetrics = accepts_openmetrics(request);
        client->phase = COMPLETE;
    }
}

static void request_read(struct client *client)
{
    ssize_t got = recv(client->fd, client->request + client->got, REQUEST_MOST - client->got, 0);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        client_free(client);
        return;
    }
    client->got += (size_t)got;
    client->request[client->got] = '\0';
    if (memmem(client->request, client->got, "\r\n\r\n", 4) != NULL ||
        memmem(client->request, client->got, "\n\n", 2) != NULL)
        request_parse(client);
    else if (client->got == REQUEST_MOST)
        answer_error(client, "431 Request Header Fields Too Large");
}

static void answer_send(struct client *client)
{
    size_t page_size = client->page != NULL ? client->page->size : 0;
    size_t size = client->head_size + page_size;

    while (client->sent < size) {
        bool head = client->sent < client->head_size;
        const char *from = head ? client->head + client->sent
                                : client->page->text + (client->sent - client->head_size);
        size_t left = head ? client->head_size - client->sent : size - client->sent;
        int more = head && page_size > 0 ? MSG_MORE : 0;
        ssize_t sent = send(client->fd, from, left, MSG_NOSIGNAL | more);

        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (sent < 0) {
            client_free(client);
            return;
        }
        client->sent += (size_t)sent;
    }
    page_drop(client->page);
    client->page = NULL;
    shutdown(client->fd, SHUT_WR);
    phase_set(client, END, END_MS);
}

/* Reads until the client closes: to close before it has sent all would destroy the answer. */
static void end_read(struct client *client)
{
    ssize_t got = recv(client->fd, client->request, REQUEST_MOST, 0);

    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        client_free(client);
}

/* ---- all clients ----------------------------------------------------------------------------- */

/* A free place; or that of the oldest client without a complete request, else of the oldest. */
static struct client *place_find(struct server *server)
{
    struct client *oldest = NULL;

    for (int i = 0; i < CLIENTS; i++) {
        struct client *client = &server->clients[i];

        if (client->phase == FREE)
            return client;
        if (oldest == NULL || (client->phase == REQUEST) > (oldest->phase == REQUEST) ||
            ((client->phase == REQUEST) == (oldest->phase == REQUEST) &&
             client->deadline_ms < oldest->deadline_ms))
            oldest = client;
    }
    client_free(oldest);
    return oldest;
}

static void client_accept(struct server *server)
{
    int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
        return;
    if (fd < 0) { /* the connection stays in the queue, and the listener would stay readable */
        server->paused_until_ms = now_ms() + PAUSE_MS;
        return;
    }
    struct client *client = place_find(server);
    client->fd = fd;
    client->got = 0;
    phase_set(client, REQUEST, REQUEST_MS);
}

/* Fills the descriptors to wait for. Returns how long, in ms; -1: for ever. */
static int clients_poll(const struct server *server, struct pollfd polled[CLIENTS + 1])
{
    int64_t now = now_ms(), next = INT64_MAX;
    bool paused = server->paused_until_ms > now;

    polled[CLIENTS] = (struct pollfd){.fd = paused ? -1 : server->listener, .events = POLLIN};
    if (paused)
        next = server->paused_until_ms;
    for (int i = 0; i < CLIENTS; i++) {
        const struct client *client = &server->clients[i];
        short events = client->phase == ANSWER ? POLLOUT : POLLIN;

        polled[i] = (struct pollfd){.fd = client->fd, .events = events};
        if (client->phase != FREE && client->deadline_ms < next)
            next = client->deadline_ms;
    }
    if (next == INT64_MAX)
        return -1;
    return next > now ? (int)(next - now) : 0;
}

static void client_serve(struct client *client, short events)
{
    if (client->phase == FREE)
        return;
    if (events == 0) {
        if (client->deadline_ms <= now_ms())
            client_free(client);
        return;
    }
    if (client->phase == REQUEST)
        request_read(client);
    else if (client->phase == ANSWER)
        answer_send(client);
    else
        end_read(client);
}

int http_serve(int listener, http_make *make, void *argument, const sigset_t *waiting,
               const volatile sig_atomic_t *ending)
{
    static struct server server;
    struct pollfd polled[CLIENTS + 1];
    int ready = 0;

    server = (struct server){.listener = listener, .make = make, .argument = argument};
    for (int i = 0; i < CLIENTS; i++)
        server.clients[i].fd = -1;
    while (!*ending) {
        int wait_ms = clients_poll(&server, polled);
        struct timespec wait = {.tv_sec = wait_ms / 1000, .tv_nsec = wait_ms % 1000 * 1000000L};

        ready = ppoll(polled, CLIENTS + 1, wait_ms < 0 ? NULL : &wait, waiting);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready < 0)
            break;
        for (int i = 0; i < CLIENTS; i++)
            client_serve(&server.clients[i], polled[i].revents);
        int64_t since_ms = now_ms();
        for (int i = 0; i < CLIENTS; i++) {
            if (server.clients[i].phase == COMPLETE)
                answer_page(&server, &server.clients[i], since_ms);
        }
        if (polled[CLIENTS].revents != 0)
            client_accept(&server);
    }
    for (int i = 0; i < CLIENTS; i++) {
        if (server.clients[i].phase != FREE)
            client_free(&server.clients[i]);
    }
    page_drop(server.pages[0]);
    page_drop(server.pages[1]);
    close(listener);
    return ready < 0 && !*ending ? -1 : 0;
}

/* ---- listening ------------------------------------------------------------------------------- */

/* Returns the socket, or -1 with errno set. */
static int socket_listen(const struct addrinfo *at)
{
    int on = 1;
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static void address_write(int fd, char *bound, size_t size)
{
    struct sockaddr_storage at;
    socklen_t length = sizeof at;
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";

    if (getsockname(fd, (struct sockaddr *)&at, &length) == 0)
        getnameinfo((struct sockaddr *)&at, length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(bound, size, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
}

int http_listen(const char *address, char *bound, size_t size, const char **reason)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char host[NI_MAXHOST];
    const char *colon = strrchr(address, ':');
    struct addrinfo *at;
    int length = colon != NULL ? (int)(colon - address) : -1;
    bool brackets = length >= 2 && address[0] == '[' && address[length - 1] == ']';

    *reason = "not HOST:PORT";
    if (length < 0 || length >= NI_MAXHOST || colon[1] == '\0' ||
        (!brackets && memchr(address, ':', (size_t)length) != NULL))
        return -1;
    snprintf(host, sizeof host, "%.*s", brackets ? length - 2 : length, address + brackets);
    int status = getaddrinfo(*host != '\0' ? host : NULL, colon + 1, &hints, &at);
    if (status != 0) {
        *reason = status == EAI_SYSTEM ? strerror(errno) : gai_strerror(status);
        return -1;
    }
    int fd = socket_listen(at);
    *reason = strerror(errno);
    freeaddrinfo(at);
    if (fd >= 0)
        address_write(fd, bound, size);
    return fd;
}
