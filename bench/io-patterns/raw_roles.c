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

void raw_link_open(struct raw_link *link, const struct raw_bytes *bytes, int epoll, int socket,
                   bool accepted)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
    *link = (struct raw_link){.socket = socket, .epoll = epoll, .bytes = bytes};
    socket_nodelay_set(socket);
    if (bytes->open)
        bytes->open(link, accepted);
    link_blocking_set(link, false);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event) < 0)
        die("epoll_ctl: %s", strerror(errno));
}

/* Returns: the link; NULL: no client has come. */
static struct raw_link *link_accept(const struct raw_server *server)
{
    int socket = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
    if (socket < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
        return NULL;
    if (socket < 0)
        die("accept: %s", strerror(errno));
    struct raw_link *link = allocate(sizeof *link);
    raw_link_open(link, server->bytes, server->epoll, socket, true);
    return link;
}

void raw_link_close(struct raw_link *link)
{
    if (link->bytes->close)
        link->bytes->close(link);
    close(link->socket);
}

/* Reads a request, and begins to answer it when it is whole. Returns: false if the link is closed.
 */
static bool link_request_read(struct raw_server *server, struct raw_link *link)
{
    struct work work;
    struct iovec piece = {link->request + link->request_used, REQUEST_SIZE - link->request_used};
    ssize_t got = link->bytes->recv(link, &piece, 1);
    if (got == -EAGAIN || got == -EINTR)
        return true;
    if (got < 0 && got != -ECONNRESET)
        die("recv: %s", strerror((int)-got));
    if (got <= 0) {
        raw_link_close(link);
        free(link);
        return false;
    }
    link->request_used += (size_t)got;
    if (link->request_used < REQUEST_SIZE)
        return true;
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
    return true;
}

/* Continues an answer. */
static void link_continue(struct raw_server *server, struct raw_link *link)
{
    link->ready(link);
    server->busy -= link->ready == NULL;
}

/* Does what the link's bytes allow: reads a request, continues an answer. */
static void link_serve(struct raw_server *server, struct raw_link *link)
{
    bool open = true;
    do {
        if (link->ready && link->spins)
            return;
        if (link->ready)
            link_continue(server, link);
        else
            open = link_request_read(server, link);
    } while (open && link_pending(link));
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
            if (link)
                link_serve(server, link);
            else if ((link = link_accept(server)) != NULL && link_pending(link))
                link_serve(server, link); /* a layer has read the first request as it opened */
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

void raw_server_open(struct raw_server *server, const struct raw_bytes *bytes,
                     const char *listen_url, char *url, size_t url_size)
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
    *server = (struct raw_server){.bytes = bytes,
                                  .listener = listener,
                                  .epoll = epoll_create1(EPOLL_CLOEXEC)};
    if (server->epoll < 0 || epoll_ctl(server->epoll, EPOLL_CTL_ADD, listener, &event) < 0)
        die("epoll: %s", strerror(errno));
    listener_url(listener, url, url_size);
}

void raw_client_open(struct raw_client *client, const struct raw_bytes *bytes,
                     const struct options *options)
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
        raw_link_open(&client->links[i], bytes, client->epoll, socket, false);
    }
}

/* Ends at once, also while a pattern waits for its connection: there is nothing to undo. */
static void end_now(int signal_number)
{
    (void)signal_number;
    _exit(0);
}

static const struct raw_bytes *bytes_of(const struct options *options)
{
    (void)options; /* a build without tls has one kind */
#ifdef BENCH_TLS
    if (BIT(options->contender) & BITS_TLS)
        return &raw_tls;
#endif
    return &raw_plain;
}

void raw_server_main(const struct options *options)
{
    struct raw_server server;
    char listen[64], url[320];
    int control = control_open(options, "server");
    format_text(listen, sizeof listen, "raw://%s:0", listen_host(options));
    signal(SIGTERM, end_now);
    signal(SIGINT, end_now);
    raw_server_open(&server, bytes_of(options), options->listen ? options->listen : listen, url,
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
    const struct raw_bytes *bytes = bytes_of(options);
    raw_client_open(&client, bytes, options);
    samples_take(control, options, bytes->name ? bytes->name(&client.links[0]) : "", sample_run,
                 &client);
}
