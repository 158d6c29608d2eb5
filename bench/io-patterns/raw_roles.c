/* SPDX-License-Identifier: BSD-3-Clause
 *
 * raw_roles.c - the life of a plain-socket server and of a plain-socket client process.
 */
#include "raw_side.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS_MAX 64
#define TURNS_BETWEEN_REQUESTS 8 /* of answers that spin */

/* Splits "raw://host:port". */
static void url_split(const char *url, char *host, size_t host_size, char *port, size_t port_size)
{
    const char *rest = strncmp(url, "raw://", 6) == 0 ? url + 6 : url;
    const char *colon = strrchr(rest, ':');
    if (!colon)
        die("%s: no port", url);
    int length = (int)(colon - rest);
    if (length >= 2 && rest[0] == '[' && rest[length - 1] == ']') {
        rest++;
        length -= 2;
    }
    format_text(host, host_size, "%.*s", length, rest);
    format_text(port, port_size, "%s", colon + 1);
}

/* Resolves a URL and makes a socket for it. */
static int url_socket(const char *url, struct sockaddr_storage *address, socklen_t *size)
{
    char host[256], port[32];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    url_split(url, host, sizeof host, port, sizeof port);
    int status = getaddrinfo(host, port, &hints, &found);
    if (status != 0)
        die("%s: %s", url, gai_strerror(status));
    memcpy(address, found->ai_addr, found->ai_addrlen);
    *size = found->ai_addrlen;
    int made = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0)
        die("socket: %s", strerror(errno));
    freeaddrinfo(found);
    return made;
}

static void link_add(struct raw_link *link, int epoll, int socket)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
    *link = (struct raw_link){.socket = socket, .epoll = epoll};
    link_blocking_set(link, false);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event) < 0)
        die("epoll_ctl: %s", strerror(errno));
}

static void link_accept(int listener, int epoll)
{
    int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (socket < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
        return;
    if (socket < 0)
        die("accept: %s", strerror(errno));
    socket_nodelay_set(socket);
    link_add(allocate(sizeof(struct raw_link)), epoll, socket);
}

static void link_close(struct raw_link *link)
{
    close(link->socket);
    free(link);
}

/* Reads a request, and begins to answer it when it is whole. */
static void link_request_read(struct raw_server *server, struct raw_link *link)
{
    struct work work;
    ssize_t got = recv(link->socket, link->request + link->request_used,
                       REQUEST_SIZE - link->request_used, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got < 0 && errno != ECONNRESET)
        die("recv: %s", strerror(errno));
    if (got <= 0) {
        link_close(link);
        return;
    }
    link->request_used += (size_t)got;
    if (link->request_used < REQUEST_SIZE)
        return;
    link->request_used = 0;
    request_decode(&work, link->request);
    const struct pattern *pattern = pattern_numbered(work.pattern);
    if (!pattern || !pattern->serve_raw)
        die("a request for pattern %d, which is none", work.pattern);
    pattern->serve_raw(link, &work);
    server->served++;
    server->busy += link->ready != NULL;
    if (link->ready && link->spins) {
        link->next = server->spinning;
        server->spinning = link;
    }
}

/* Continues an answer. */
static void link_continue(struct raw_server *server, struct raw_link *link)
{
    link->ready(link);
    server->busy -= link->ready == NULL;
}

/* Continues all answers that spin. */
static void spinning_continue(struct raw_server *server)
{
    for (struct raw_link **place = &server->spinning; *place;) {
        struct raw_link *link = *place;
        link_continue(server, link);
        if (link->ready)
            place = &link->next;
        else
            *place = link->next;
    }
}

void raw_server_run(struct raw_server *server, uint64_t requests)
{
    struct epoll_event events[EVENTS_MAX];
    uint64_t end = requests > 0 ? server->served + requests : UINT64_MAX;
    for (int turn = 0; server->served < end || server->busy > 0; turn++) {
        spinning_continue(server);
        if (server->spinning && turn % TURNS_BETWEEN_REQUESTS != 0)
            continue;
        int count = epoll_wait(server->epoll, events, EVENTS_MAX, server->spinning ? 0 : -1);
        if (count < 0 && errno != EINTR)
            die("epoll_wait: %s", strerror(errno));
        for (int i = 0; i < count; i++) {
            struct raw_link *link = events[i].data.ptr;
            if (!link)
                link_accept(server->listener, server->epoll);
            else if (link->ready && link->spins)
                continue;
            else if (link->ready)
                link_continue(server, link);
            else
                link_request_read(server, link);
        }
    }
}

static void listener_url(int listener, char *url, size_t url_size)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char host[256], port[32];
    if (getsockname(listener, (struct sockaddr *)&address, &size) < 0 ||
        getnameinfo((struct sockaddr *)&address, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        die("own address not found");
    if (address.ss_family == AF_INET6)
        format_text(url, url_size, "raw://[%s]:%s", host, port);
    else
        format_text(url, url_size, "raw://%s:%s", host, port);
}

void raw_server_open(struct raw_server *server, const char *listen_url, char *url, size_t url_size)
{
    struct sockaddr_storage address;
    socklen_t size;
    int on = 1, listener = url_socket(listen_url, &address, &size);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, size) < 0 || listen(listener, 1024) < 0)
        die("%s: %s", listen_url, strerror(errno));
    if (fcntl(listener, F_SETFL, O_NONBLOCK) < 0)
        die("fcntl: %s", strerror(errno));
    *server = (struct raw_server){.listener = listener, .epoll = epoll_create1(EPOLL_CLOEXEC)};
    if (server->epoll < 0 || epoll_ctl(server->epoll, EPOLL_CTL_ADD, listener, &event) < 0)
        die("epoll: %s", strerror(errno));
    listener_url(listener, url, url_size);
}

void raw_client_open(struct raw_client *client, const struct options *options)
{
    *client =
        (struct raw_client){.link_count = options->url_count, .timeout_s = options->timeout_s};
    client->links = allocate((size_t)options->url_count * sizeof *client->links);
    client->epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < options->url_count; i++) {
        struct sockaddr_storage address;
        socklen_t size;
        int socket = url_socket(options->urls[i], &address, &size);
        if (connect(socket, (struct sockaddr *)&address, size) < 0)
            die("%s: %s", options->urls[i], strerror(errno));
        socket_nodelay_set(socket);
        link_add(&client->links[i], client->epoll, socket);
    }
}

/* Ends at once, also while a pattern waits for its connection: there is nothing to undo. */
static void end_now(int signal_number)
{
    (void)signal_number;
    _exit(0);
}

void raw_server_main(const struct options *options)
{
    struct raw_server server;
    char url[320];
    int control = control_open(options, "server");
    signal(SIGTERM, end_now);
    signal(SIGINT, end_now);
    raw_server_open(&server, options->listen ? options->listen : "raw://127.0.0.1:0", url,
                    sizeof url);
    address_tell(control, url);
    raw_server_run(&server, 0);
}

static double sample_run(void *client, const struct work *work)
{
    return pattern_numbered(work->pattern)->run_raw(client, work);
}

void raw_client_main(const struct options *options)
{
    struct raw_client client;
    int control = control_open(options, "client");
    raw_client_open(&client, options);
    samples_take(control, options, sample_run, &client);
}
