/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls.c - the tls method: settings, start and stop, options.
 */
#include "tls.h"

#include <openssl/rand.h>
#include <stdio.h>

static const struct bmi_setting_spec settings[] = {
    {"tls_certificate", BMI_SETTING_TEXT, 0, 0, 0,
     "file with this process's certificate and those that lead to an authority (PEM)"},
    {"tls_key", BMI_SETTING_TEXT, 0, 0, 0, "file with its private key (PEM)"},
    {"tls_authorities", BMI_SETTING_TEXT, 0, 0, 0,
     "file with the certificates of the authorities that peers' certificates come from (PEM)"},
    {"tls_revocations", BMI_SETTING_TEXT, 0, 0, 0,
     "file with the authorities' lists of revoked certificates (PEM)"},
    {"tls_peers", BMI_SETTING_TEXT, 0, 0, 0,
     "patterns of the names that are accepted from peers, separated by spaces; empty: all names "
     "that an authority has signed"},
    {"tls_psk", BMI_SETTING_TEXT, 0, 0, 0,
     "file with keys that peers share, lines of identity:hex; the first one is used to connect"},
    {"tls_session_s", BMI_SETTING_NUMBER, 3600, 0, 86400,
     "seconds after a handshake in which its peer may connect again by a ticket, without "
     "certificates; 0: no tickets"},
    {"tls_key_records", BMI_SETTING_NUMBER, 1 << 24, 1, 1 << 24,
     "records that are sent before the key is updated"},
    {"tls_kernel_send", BMI_SETTING_SWITCH, 0, 0, 1,
     "let the kernel encrypt (kernel TLS), where it can; a connection then ends after "
     "tls_key_records records"},
    STREAM_SECURE_SETTINGS,
    TCP_SETTINGS,
    {0}};

static const struct stream_socket tls_socket = {
    .method = &bmi__method_tls,
    .bytes = &tls_bytes,
    .dial = tcp_dial,
    .dial_ready = tcp_dial_ready,
    .dial_expired = tcp_dial_expired,
    .dial_free = tcp_dial_free,
    .accept = tcp_accept,
    .settle = ip_socket_settle,
    .delivered = tcp_delivered,
};

/* Steps of handshakes use the contexts until the links have stopped. */
static void tls_stop(void *argument)
{
    struct tls_state *state = argument;
    struct tls_contexts *contexts = state->contexts;
    tcp_stop(state);
    tls_contexts_free(contexts);
}

static int tls_start(struct bmi_instance *instance, void **out)
{
    struct tls_state *state;
    int error =
        stream_method_start(instance, sizeof(*state), &tls_socket, &stream_engine_epoll, out);
    if (error)
        return error;
    state = *out;
    state->contexts = tls_contexts_make(instance);
    error = state->contexts ? 0 : -ENOMEM;
    if (!error && RAND_bytes(state->instance, TLS_INSTANCE) != 1)
        error = -EIO;
    if (error)
        tls_stop(state);
    return error;
}

/* A server without credentials would refuse every client, so it does not start. */
static int tls_listen(void *argument, const char *address, int flags, char *bound, size_t size)
{
    struct tls_state *state = argument;
    SSL_CTX *context = tls_context_get(state->contexts, TLS_SERVER);
    if (!context)
        return -EACCES;
    SSL_CTX_free(context);
    return tcp_listen(argument, address, flags, bound, size);
}

/* The lock keeps the layer, and with it the name, until it is copied. */
static int identity_get(struct stream_link *link, struct bmi_peer_identity *identity)
{
    int error = -ENXIO;
    stream_lock(&link->send_lock);
    struct tls_link *tls = link->layer;
    if (tls && link->phase == STREAM_UP) {
        tls_identity_get(tls, identity);
        error = 0;
    }
    stream_unlock(&link->send_lock);
    return error;
}

static int tls_option(struct bmi_instance *instance, void *state, struct bmi_link *base, int option,
                      void *value, bool set)
{
    if (option == BMI_METHOD_PROVED_ADDRESS)
        return tls_address_proved(tls_link_of(stream_link_of(base)), value) ? 0 : -EACCES;
    if (option == BMI_METHOD_CHOICE)
        return tls_credentials_check(instance, value);
    if (option == BMI_METHOD_EXPIRY) {
        tls_contexts_expiry(((struct tls_state *)state)->contexts, value);
        return 0;
    }
    if (option != BMI_PEER_IDENTITY) {
        int status = tcp_option(instance, state, base, option, value, set);
        return option == BMI_TCP_GET_PORT && status == 0 ? 1 : status; /* tcp's own is preferred */
    }
    if (set)
        return -EINVAL;
    return base ? identity_get(stream_link_of(base), value) : -ENXIO;
}

const struct bmi_method bmi__method_tls = {
    .name = "bmi_tls",
    .schemes = "tls",
    .description = "TLS 1.3 over TCP sockets, both sides authenticated",
    .settings = settings,
    .defaults = tcp_defaults,
    .hosts = &ip_hosts,
    .secure = true,
    .start = tls_start,
    .stop = tls_stop,
    .listen = tls_listen,
    .parse = ip_parse,
    .connect = tcp_connect,
    .option = tls_option,
    STREAM_METHOD,
};
