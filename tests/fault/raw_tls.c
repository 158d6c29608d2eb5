/* SPDX-License-Identifier: BSD-3-Clause
 *
 * raw_tls.c - TLS under the bytes of a peer made by hand: see raw_tls.h.
 *
 * Locks: `lock` guards the list of bridges; the thread of a bridge alone uses the rest of it.
 */
#include "raw_tls.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../stress/support.h"

enum { PIECE = 16384 };

/* Bytes on their way in one direction. */
struct flow {
    size_t have, done;
    bool over; /* no more will come */
    char bytes[PIECE];
};

struct bridge {
    struct bridge *next; /* lock */
    int outer;           /* the test's end of the pair */
    int inner, network;
    bool resets; /* lock */
    SSL *ssl;
    struct flow out, in; /* to the network; to the test */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bridge *bridges; /* lock */

/* ---- bytes ---------------------------------------------------------------------------------- */

static void take_plain(struct bridge *bridge)
{
    struct flow *out = &bridge->out;
    ssize_t got = read(bridge->inner, out->bytes, sizeof out->bytes);
    out->done = 0;
    out->have = got > 0 ? (size_t)got : 0;
    if (got == 0) {
        out->over = true;
        SSL_shutdown(bridge->ssl);
    }
}

static void give_plain(struct bridge *bridge)
{
    struct flow *in = &bridge->in;
    ssize_t sent = send(bridge->inner, in->bytes + in->done, in->have - in->done, MSG_NOSIGNAL);
    if (sent > 0)
        in->done += (size_t)sent;
}

/* Returns false if the session cannot go on. */
static bool give_network(struct bridge *bridge)
{
    struct flow *out = &bridge->out;
    size_t sent = 0;
    ERR_clear_error();
    int result = SSL_write_ex(bridge->ssl, out->bytes + out->done, out->have - out->done, &sent);
    out->done += sent;
    return result == 1 || SSL_get_error(bridge->ssl, result) == SSL_ERROR_WANT_WRITE;
}

static void take_network(struct bridge *bridge)
{
    struct flow *in = &bridge->in;
    in->done = in->have = 0;
    ERR_clear_error();
    int result = SSL_read_ex(bridge->ssl, in->bytes, sizeof in->bytes, &in->have);
    if (result != 1 && SSL_get_error(bridge->ssl, result) != SSL_ERROR_WANT_READ) {
        in->over = true;
        shutdown(bridge->inner, SHUT_WR);
    }
}

static bool waits(const struct flow *flow)
{
    return flow->done < flow->have;
}

/* Returns false when the test has closed its end, or nothing can be sent any more. */
static bool carry(struct bridge *bridge)
{
    bool out = waits(&bridge->out), in = waits(&bridge->in);
    struct pollfd polled[2] = {{.fd = bridge->inner}, {.fd = bridge->network}};
    polled[0].events = (short)((!out && !bridge->out.over ? POLLIN : 0) | (in ? POLLOUT : 0));
    polled[1].events = (short)((out ? POLLOUT : 0) | (!in && !bridge->in.over ? POLLIN : 0));
    if (polled[1].events == 0)
        polled[1].fd = -1; /* its end is known */
    if (!in && !bridge->in.over && SSL_pending(bridge->ssl) > 0)
        take_network(bridge);
    else if (poll(polled, 2, -1) < 0)
        return false;
    if (polled[0].revents & POLLHUP && !(polled[0].revents & POLLIN))
        return false;
    if (polled[0].revents & POLLIN)
        take_plain(bridge);
    if (polled[0].revents & POLLOUT)
        give_plain(bridge);
    if (out && polled[1].revents != 0 && !give_network(bridge))
        return false;
    if (!in && !bridge->in.over && polled[1].revents != 0)
        take_network(bridge);
    return true;
}

/* ---- a bridge ------------------------------------------------------------------------------- */

static void bridge_forget(struct bridge *bridge)
{
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
    pthread_mutex_lock(&lock);
    struct bridge **at = &bridges;
    while (*at != bridge)
        at = &(*at)->next;
    *at = bridge->next;
    bool resets = bridge->resets;
    pthread_mutex_unlock(&lock);
    if (resets)
        setsockopt(bridge->network, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

static void *bridge_run(void *argument)
{
    struct bridge *bridge = argument;
    while (carry(bridge))
        continue;
    bridge_forget(bridge);
    close(bridge->network);
    close(bridge->inner);
    SSL_free(bridge->ssl);
    ERR_clear_error();
    free(bridge);
    return NULL;
}

/* A peer that connects has a client's certificate: a server's would prove that it may use the
 * address that it claims. */
static SSL_CTX *context_make(bool accepts)
{
    const char *client = getenv("BMI_TEST_CLIENT"), *authorities = getenv("BMI_TLS_AUTHORITIES");
    char certificate[256], key[256];
    const char *name = accepts ? getenv("BMI_TLS_CERTIFICATE") : client;
    CHECK(name && client && authorities, "BMI_TLS_CERTIFICATE and its like are not set");
    snprintf(certificate, sizeof certificate, "%s%s", name, accepts ? "" : ".pem");
    snprintf(key, sizeof key, "%s%s", accepts ? getenv("BMI_TLS_KEY") : client,
             accepts ? "" : ".key");
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    CHECK(context && SSL_CTX_use_certificate_chain_file(context, certificate) == 1 &&
              SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) == 1 &&
              SSL_CTX_load_verify_locations(context, authorities, NULL) == 1,
          "credentials of a peer made by hand");
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_NO_AUTO_CHAIN);
    return context;
}

static SSL *session_new(int network, bool accepts)
{
    static SSL_CTX *contexts[2];
    SSL_CTX **context = &contexts[accepts];
    if (!*context)
        *context = context_make(accepts);
    signal(SIGPIPE, SIG_IGN); /* OpenSSL's write */
    SSL *ssl = SSL_new(*context);
    CHECK(ssl && SSL_set_fd(ssl, network) == 1, "no memory");
    return ssl;
}

SSL *raw_tls_session(int network)
{
    return session_new(network, false);
}

static SSL *session_make(int network, bool accepts)
{
    SSL *ssl = session_new(network, accepts);
    int result = accepts ? SSL_accept(ssl) : SSL_connect(ssl);
    CHECK(result == 1, "the TLS handshake of a peer made by hand: %s",
          ERR_reason_error_string(ERR_peek_error()));
    return ssl;
}

int raw_tls_make(int network, bool accepts)
{
    struct bridge *bridge = calloc(1, sizeof *bridge);
    int ends[2];
    pthread_t thread;
    CHECK(bridge && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a pair of sockets");
    bridge->ssl = session_make(network, accepts);
    bridge->network = network;
    bridge->outer = ends[0];
    bridge->inner = ends[1];
    fcntl(network, F_SETFL, O_NONBLOCK);
    fcntl(bridge->inner, F_SETFL, O_NONBLOCK);
    pthread_mutex_lock(&lock);
    bridge->next = bridges;
    bridges = bridge;
    pthread_mutex_unlock(&lock);
    CHECK(pthread_create(&thread, NULL, bridge_run, bridge) == 0, "a thread");
    pthread_detach(thread);
    return ends[0];
}

bool raw_tls_reset(int plain)
{
    pthread_mutex_lock(&lock);
    struct bridge *at = bridges;
    while (at && at->outer != plain)
        at = at->next;
    if (at)
        at->resets = true;
    pthread_mutex_unlock(&lock);
    return at != NULL;
}
