/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_messages_fault.c - a peer with good credentials sends updates of TLS keys without end, asks
 * for an answer to each, and reads nothing.
 *
 * Given a healthy client, when such a peer connects again and again, then the client goes on, each
 * of these connections ends, and the server's memory does not grow.
 */
#include <openssl/ssl.h>
#include <stdio.h>
#include <unistd.h>

#include "raw_peer.h"
#include "raw_tls.h"
#include "serve.h"

enum { UPDATES = 1000, WINDOW_MS = 1500, GROWTH_MOST = 16 << 20 };
enum { HELD_UP_MOST_NS = 2000000000 };

/* Sends many by one write, so that the server has more work than the flood. Returns false when the
 * connection has ended. */
static bool updates_send(SSL *ssl, int socket)
{
    char *bytes;
    for (int i = 0; i < UPDATES; i++)
        if (SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED) != 1 || SSL_do_handshake(ssl) != 1)
            return false;
    long size = BIO_get_mem_data(SSL_get_wbio(ssl), &bytes);
    bool sent = raw_write(socket, bytes, (size_t)size);
    (void)BIO_reset(SSL_get_wbio(ssl));
    return sent;
}

/* Counts the connections that ended, until the order to stop. */
static int flood(void *argument, int channel)
{
    char listening[BMI_MAX_ADDR_LEN];
    atomic_int *ended = argument;
    hear(channel, listening, sizeof listening);
    while (!heard(channel, 0)) {
        int socket = raw_connect_plain(listening, 0);
        SSL *ssl = raw_tls_session(socket);
        bool stands = SSL_connect(ssl) == 1;
        CHECK(stands, "the flood's handshake fails");
        SSL_set0_wbio(ssl, BIO_new(BIO_s_mem()));
        while (stands && !heard(channel, 0))
            stands = updates_send(ssl, socket);
        *ended += !stands;
        SSL_free(ssl);
        close(socket);
    }
    tell_number(channel, 0);
    return 0;
}

int main(void)
{
    char listening[BMI_MAX_ADDR_LEN];
    test_begin("tls_messages_fault", 20);
    struct echo_report *report = shared_memory(sizeof *report);
    atomic_int *ended = shared_memory(sizeof *ended);
    struct child flood_child = child_start("flood", flood, ended);
    struct child client = echo_client_start(report);
    serve_here(0, listening);
    operations_open();
    echo_client_go(report, &client, listening);
    struct echo_pace before = echo_pace(report, 500);

    size_t resident = memory_resident();
    tell(flood_child.channel, listening, sizeof listening);
    struct echo_pace now = echo_pace(report, WINDOW_MS);
    size_t grown = memory_resident() > resident ? memory_resident() - resident : 0;
    echo_pace_unharmed(&before, &now);
    while (*ended == 0)
        operations_step(10);
    printf("  %d connections of the flood ended; memory grew by %zu KiB\n", *ended, grown >> 10);
    CHECK(now.longest_ns < HELD_UP_MOST_NS * test_slowness(), "others were held up");
    CHECK(!test_memory_measurable() || grown < GROWTH_MOST, "memory grew by %zu bytes", grown);
    tell_number(flood_child.channel, 0);
    while (!heard(flood_child.channel, 0))
        operations_step(10);
    hear_number(flood_child.channel);
    child_end(&flood_child);
    echo_client_end(report, &client);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
