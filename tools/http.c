/* SPDX-License-Identifier: BSD-3-Clause
 *
 * http.c - see http.h.
 *
 * libmicrohttpd accepts connections, parses requests, and sends answers, in this program's thread.
 * Its own time-out is for silent clients only. Here each connection has a deadline for its request,
 * then one for its answer; received bytes do not extend them. A client that is late is ended by
 * shutdown(2), upon which libmicrohttpd closes the connection.
 */
#include "http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CLIENTS = 32,
    BACKLOG = 128,
    MEMORY_MOST = 16384, /* for the heads of a request and of its answer */
    REQUEST_MS = 5000,
    ANSWER_MS = 10000,
    REUSE_MS = 5000,
    PAUSE_MS = 1000
};

struct client {
    int fd;                    /* -1: a free place */
    int64_t deadline_ms;       /* INT64_MAX: ended, not yet closed */
    struct MHD_Response *page; /* NULL until the request is complete */
};

struct page {
    struct MHD_Response *response; /* or NULL */
    int64_t made_ms;
};

struct http_server {
    struct MHD_Daemon *daemon;
    http_make *make;
    void *argument;
    int64_t run_ms;           /* when the last MHD_run began */
    bool run_had_events;      /* that run had something to do */
    bool run_changed_clients; /* in that run a connection began or ended */
    struct page pages[2];     /* the latest ones, by `openmetrics` */
    struct client clients[CLIENTS];
};

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- clients --------------------------------------------------------------------------------- */

static void client_end(struct client *client)
{
    shutdown(client->fd, SHUT_RDWR);
    client->deadline_ms = INT64_MAX;
}

/* Returns a place for a new connection. libmicrohttpd accepts none while it has CLIENTS: with the
 * last place taken, the oldest client without a complete request is ended, or else the oldest. */
static struct client *place_take(struct http_server *server)
{
    struct client *place = NULL, *oldest = NULL;
    int free_places = 0;

    for (int i = 0; i < CLIENTS; i++) {
        struct client *client = &server->clients[i];

        if (client->fd < 0) {
            place = client;
            free_places++;
        } else if (oldest == NULL || (client->page == NULL) > (oldest->page == NULL) ||
                   ((client->page == NULL) == (oldest->page == NULL) &&
                    client->deadline_ms < oldest->deadline_ms))
            oldest = client;
    }
    if (free_places == 1)
        client_end(oldest);
    return place;
}

/* libmicrohttpd has accepted a connection, or is about to close it. */
static void connection_notify(void *argument, struct MHD_Connection *connection, void **context,
                              enum MHD_ConnectionNotificationCode code)
{
    struct http_server *server = argument;

    server->run_changed_clients = true;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        struct client *client = *context = place_take(server);

        client->fd =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        client->deadline_ms = now_ms() + REQUEST_MS;
    } else
        *(struct client *)*context = (struct client){.fd = -1};
}

/* Ends clients that were late before the last MHD_run: it has read all that they had sent by then,
 * and may have taken seconds for a page. Returns the time to the next deadline; -1: none. */
static int deadlines_check(struct http_server *server)
{
    int64_t now = now_ms(), next = INT64_MAX;

    for (int i = 0; i < CLIENTS; i++) {
        struct client *client = &server->clients[i];

        if (client->fd >= 0 && client->deadline_ms <= server->run_ms)
            client_end(client);
        else if (client->fd >= 0 && client->deadline_ms < next)
            next = client->deadline_ms;
    }
    if (next == INT64_MAX)
        return -1;
    return next > now ? (int)(next - now) : 0;
}

/* ---- answers --------------------------------------------------------------------------------- */

static struct MHD_Response *response_make(size_t size, char *text, enum MHD_ResponseMemoryMode mode,
                                          const char *type)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(size, text, mode);

    if (response != NULL) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    }
    return response;
}

/* Returns the page, or NULL. While it is being sent, it serves the requests of the next seconds as
 * well: they may come together, or from clients that do not read, whose pages would pile up. */
static struct MHD_Response *page_get(struct http_server *server, bool openmetrics)
{
    static const char *const types[] = {
        "text/plain; version=0.0.4; charset=utf-8",
        "application/openmetrics-text; version=1.0.0; charset=utf-8"};
    struct page *page = &server->pages[openmetrics];
    bool is_used = false;
    size_t size;

    for (int i = 0; i < CLIENTS; i++)
        is_used |= page->response != NULL && server->clients[i].page == page->response;
    if (is_used && page->made_ms + REUSE_MS > now_ms())
        return page->response;
    if (page->response != NULL)
        MHD_destroy_response(page->response);
    char *text = server->make(server->argument, openmetrics, &size);
    page->made_ms = now_ms();
    page->response = NULL;
    if (text != NULL)
        page->response = response_make(size, text, MHD_RESPMEM_MUST_FREE, types[openmetrics]);
    if (page->response == NULL)
        free(text);
    return page->response;
}

static enum MHD_Result answer_error(struct MHD_Connection *connection, unsigned status)
{
    static char text[] = "the page is /metrics\n";
    struct MHD_Response *response =
        response_make(sizeof text - 1, text, MHD_RESPMEM_PERSISTENT, "text/plain; charset=utf-8");

    if (response == NULL)
        return MHD_NO;
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, MHD_HTTP_METHOD_GET);
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

/* Answers a request whose head is complete; a body is not read. */
static enum MHD_Result request_answer(void *argument, struct MHD_Connection *connection,
                                      const char *path, const char *method, const char *version,
                                      const char *body, size_t *body_size, void **context)
{
    (void)version, (void)body, (void)body_size, (void)context;
    struct client *client =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    const char *accepts = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Accept");

    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0)
        return answer_error(connection, MHD_HTTP_METHOD_NOT_ALLOWED);
    if (strcmp(path, "/metrics") != 0)
        return answer_error(connection, MHD_HTTP_NOT_FOUND);
    client->page = page_get(argument, accepts != NULL &&
                                          strstr(accepts, "application/openmetrics-text") != NULL);
    client->deadline_ms = now_ms() + ANSWER_MS;
    if (client->page == NULL)
        return answer_error(connection, MHD_HTTP_INTERNAL_SERVER_ERROR);
    return MHD_queue_response(connection, MHD_HTTP_OK, client->page);
}

/* ---- serving --------------------------------------------------------------------------------- */

static int clients_wait(struct http_server *server, const sigset_t *waiting)
{
    MHD_UNSIGNED_LONG_LONG rest_ms;
    int epoll_fd = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    struct pollfd polled = {.fd = epoll_fd, .events = POLLIN};
    int wait_ms = deadlines_check(server);

    /* libmicrohttpd has work left; or a connection has ended, and MHD_run is to poll the listener
     * again, which it does not while it has as many as it may. */
    if (server->run_changed_clients || MHD_get_timeout(server->daemon, &rest_ms) == MHD_YES)
        wait_ms = 0;
    else if (wait_ms < 0 && server->run_had_events) {
        /* A connection waits, and MHD_run did not accept it: no descriptor is free. */
        wait_ms = PAUSE_MS;
        polled.fd = -1;
    }
    struct timespec wait = {.tv_sec = wait_ms / 1000, .tv_nsec = wait_ms % 1000 * 1000000L};
    return ppoll(&polled, 1, wait_ms < 0 ? NULL : &wait, waiting);
}

int http_serve(struct http_server *server, const sigset_t *waiting,
               const volatile sig_atomic_t *ending)
{
    int error = 0;

    while (!*ending && error == 0) {
        int ready = clients_wait(server, waiting);

        if (ready < 0) {
            error = errno == EINTR ? 0 : errno;
            continue;
        }
        server->run_ms = now_ms();
        server->run_had_events = ready > 0;
        server->run_changed_clients = false;
        MHD_run(server->daemon);
    }
    MHD_stop_daemon(server->daemon);
    for (int i = 0; i < 2; i++) {
        if (server->pages[i].response != NULL)
            MHD_destroy_response(server->pages[i].response);
    }
    errno = error;
    return error != 0 ? -1 : 0;
}

/* ---- listening ------------------------------------------------------------------------------- */

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

/* Returns the socket; or -1 and the reason. */
static int socket_listen(const char *address, const char **reason)
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
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    bool listens =
        fd >= 0 && bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0;
    *reason = strerror(errno);
    freeaddrinfo(at);
    if (listens || fd < 0)
        return fd;
    close(fd);
    return -1;
}

struct http_server *http_listen(const char *address, http_make *make, void *argument, char *bound,
                                size_t size, const char **reason)
{
    static struct http_server server;
    int listener = socket_listen(address, reason);

    if (listener < 0)
        return NULL;
    address_write(listener, bound, size);
    server = (struct http_server){.make = make, .argument = argument, .run_changed_clients = true};
    for (int i = 0; i < CLIENTS; i++)
        server.clients[i].fd = -1;
    server.daemon =
        MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, request_answer, &server,
                         MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_CONNECTION_LIMIT,
                         (unsigned)CLIENTS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_MOST,
                         MHD_OPTION_NOTIFY_CONNECTION, connection_notify, &server, MHD_OPTION_END);
    *reason = "libmicrohttpd does not start";
    return server.daemon != NULL ? &server : NULL;
}
