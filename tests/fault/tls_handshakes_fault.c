/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_handshakes_fault.c - connections that stay in their TLS handshake, or complete it together:
 * their effect on others and on limits. The server is this process.
 *
 * usage: tls_handshakes_fault last|hosts|descriptors
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "raw_peer.h"
#include "raw_tls.h"
#include "serve.h"

enum { SLOW_MS = 1000 }; /* a handshake that waits for its peer so long gives way */

static char listening[BMI_MAX_ADDR_LEN];

static void setting(const char *text)
{
    must(BMI_set_info(0, BMI_SETTING, (void *)(uintptr_t)text), "BMI_set_info");
}

static void serve_for(unsigned ms)
{
    for (uint64_t until = now_ns() + ms * UINT64_C(1000000); now_ns() < until;)
        operations_step(10);
}

static void start(void)
{
    serve_here(0, listening);
    operations_open();
}

static int finish(void)
{
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}

/* ---- the last place -------------------------------------------------------------------------- */

/* Given two places for handshakes, of which a slow one has the first. When a connection takes the
 * second, then the slow one stays; when a third one comes, it gives way. */
static int last(void)
{
    start();
    setting("handshakes_max=2");
    int slow = raw_connect_plain(listening, 0);
    serve_for(SLOW_MS + 200);
    int second = raw_connect_plain(listening, 0);
    serve_for(200);
    CHECK(!raw_ended(slow, 0), "a handshake is ended for no newcomer");
    int third = raw_connect_plain(listening, 0);
    while (!raw_ended(slow, 0))
        operations_step(10);
    CHECK(!raw_ended(second, 0) && !raw_ended(third, 0), "a young handshake is ended");
    close(slow);
    close(second);
    close(third);
    return finish();
}

/* ---- a host's limit -------------------------------------------------------------------------- */

enum { LINKS_MOST = 4, CONNECTIONS = 8 };

/* Goes on with a session's handshake. Returns whether that has failed. */
static bool session_fails(SSL *ssl)
{
    int result = SSL_connect(ssl);
    int kind = SSL_get_error(ssl, result);
    return result != 1 && kind != SSL_ERROR_WANT_READ && kind != SSL_ERROR_WANT_WRITE;
}

/* Given a limit for a host, when more connections are there before the first handshake, then no
 * more than the limit are up in the end. */
static int hosts(void)
{
    SSL *sessions[CONNECTIONS];
    bool failed[CONNECTIONS] = {false};
    unsigned failures = 0, links = 0;
    start();
    setting("tcp_host_links=4");
    for (int i = 0; i < CONNECTIONS; i++) {
        int socket = raw_connect_plain(listening, 0);
        fcntl(socket, F_SETFL, O_NONBLOCK);
        sessions[i] = raw_tls_session(socket);
    }
    serve_for(100);
    while (failures + links < CONNECTIONS) {
        for (int i = 0; i < CONNECTIONS; i++)
            if (!failed[i] && session_fails(sessions[i])) {
                failed[i] = true;
                failures++;
            }
        operations_step(10);
        links = (unsigned)method_statistics("bmi_tls").links;
        CHECK(links <= LINKS_MOST, "%u connections of a host are up", links);
    }
    CHECK(links == LINKS_MOST, "%u connections are up", links);
    for (int i = 0; i < CONNECTIONS; i++) {
        close(SSL_get_fd(sessions[i]));
        SSL_free(sessions[i]);
    }
    return finish();
}

/* ---- descriptors ----------------------------------------------------------------------------- */

enum { SPARE = 24, SILENT = 60, SHORTAGE_MS = 5000, SERVED_MS = 10000, TAG = 5 };

/* Keeps so many connections that say nothing: makes another one for each that the server ends. */
static int silent(void *argument, int channel)
{
    struct pollfd polled[SILENT + 1] = {{.fd = channel, .events = POLLIN}};
    (void)argument;
    hear(channel, listening, sizeof listening);
    for (int i = 1; i <= SILENT; i++)
        polled[i] = (struct pollfd){.fd = raw_connect_plain(listening, 0), .events = POLLIN};
    tell_number(channel, 0);
    while (poll(polled, SILENT + 1, -1) > 0 && polled[0].revents == 0)
        for (int i = 1; i <= SILENT; i++)
            if (polled[i].revents != 0) {
                close(polled[i].fd);
                polled[i].fd = raw_connect_plain(listening, 0);
            }
    for (int i = 1; i <= SILENT; i++)
        close(polled[i].fd);
    return 0;
}

/* Sends one message, and stays until the order. */
static int quiet(void *argument, int channel)
{
    struct noted message;
    (void)argument;
    note_sendunexpected(&message, client_open(channel), "", 0, TAG);
    noted_good(&message, "a message");
    tell_number(channel, 0);
    hear_number(channel);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

static void message_free(const struct BMI_unexpected_info *info)
{
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

static void answer(const struct child *child)
{
    while (!heard(child->channel, 0))
        operations_step(10);
    hear_number(child->channel);
}

/* Given a client that is quiet, when silent connections take all descriptors again and again, then
 * the client keeps its connection, and a new one is served. */
static int descriptors(void)
{
    struct echo_report *report = shared_memory(sizeof *report);
    struct child crowd = child_start("silent crowd", silent, NULL);
    struct child old_client = child_start("quiet client", quiet, NULL);
    struct child new_client = echo_client_start(report);
    test_unexpected = message_free;
    start();
    tell(old_client.channel, listening, sizeof listening);
    answer(&old_client);
    unsigned usual = descriptors_allow(1024);
    descriptors_limit(descriptors_open() + SPARE);
    tell(crowd.channel, listening, sizeof listening);
    answer(&crowd);
    serve_for(SHORTAGE_MS);
    CHECK(method_statistics("bmi_tls").links == 1, "the quiet client's connection has ended");

    uint64_t from = now_ns();
    echo_client_go(report, &new_client, listening);
    unsigned took_ms = (unsigned)((now_ns() - from) / 1000000u);
    printf("  a new client is served after %u ms\n", took_ms);
    CHECK(took_ms < SERVED_MS * test_slowness(), "a new client waits for %u ms", took_ms);
    tell_number(old_client.channel, 0);
    tell_number(crowd.channel, 0);
    child_end(&crowd);
    echo_client_end(report, &new_client);
    child_end(&old_client);
    descriptors_limit(usual);
    return finish();
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    test_begin("tls_handshakes_fault", 30);
    if (strcmp(what, "last") == 0)
        return last();
    if (strcmp(what, "hosts") == 0)
        return hosts();
    CHECK(strcmp(what, "descriptors") == 0, "usage: tls_handshakes_fault last|hosts|descriptors");
    return descriptors();
}
