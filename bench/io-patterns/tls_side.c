/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_side.c - the bytes of the reference tls: OpenSSL on the link's socket, as its manual pages
 * show it. TLS 1.3 with the ciphers and credentials of the method tls.
 */
#include "raw_side.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>

static const char *credential(const char *variable)
{
    const char *file = getenv(variable);
    if (!file || !*file)
        die("--reference tls: %s is not set; see tls_certificate in bmi(7)", variable);
    return file;
}

static void tls_check(long result, const char *what)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    if (result != 1)
        die("OpenSSL: %s: %s", what, reason ? reason : "failed");
}

static bool aes_is_fast(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_cpu_supports("aes");
#else
    return true;
#endif
}

static SSL_CTX *context_make(bool server)
{
    SSL_CTX *context = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    const char *certificate = credential("BMI_TLS_CERTIFICATE"), *key = credential("BMI_TLS_KEY"),
               *authorities = credential("BMI_TLS_AUTHORITIES");
    tls_check(context != NULL, "a context");
    tls_check(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION), "TLS 1.3");
    tls_check(SSL_CTX_set_ciphersuites(context, aes_is_fast() ? "TLS_AES_128_GCM_SHA256"
                                                              : "TLS_CHACHA20_POLY1305_SHA256"),
              "its cipher");
    tls_check(SSL_CTX_use_certificate_chain_file(context, certificate), certificate);
    tls_check(SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM), key);
    tls_check(SSL_CTX_load_verify_file(context, authorities), authorities);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_read_ahead(context, 1); /* faster than without */
    return context;
}

static void tls_open(struct raw_link *link, bool accepted)
{
    static SSL_CTX *contexts[2];
    if (!contexts[accepted])
        contexts[accepted] = context_make(accepted);
    SSL *ssl = SSL_new(contexts[accepted]);
    tls_check(ssl && SSL_set_fd(ssl, link->socket) == 1, "a connection");
    tls_check(accepted ? SSL_accept(ssl) : SSL_connect(ssl), "the handshake");
    link->layer = ssl;
}

static void tls_close(struct raw_link *link)
{
    SSL_free(link->layer);
}

/* A call of SSL_read or SSL_write has failed. Returns: as raw_bytes.recv. */
static ssize_t tls_status(const struct raw_link *link, int result)
{
    int kind = SSL_get_error(link->layer, result);
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE)
        return -EAGAIN;
    bool gone = kind == SSL_ERROR_ZERO_RETURN || kind == SSL_ERROR_SSL || errno == 0;
    ERR_clear_error();
    return gone ? 0 : -errno;
}

/* Moves one piece after the other, until no byte can be moved. */
static ssize_t tls_send(struct raw_link *link, const struct iovec *pieces, int count)
{
    ssize_t all = 0;
    for (int i = 0; i < count; i++)
        for (size_t done = 0, sent; done < pieces[i].iov_len; done += sent, all += (ssize_t)sent) {
            int result = SSL_write_ex(link->layer, (const uint8_t *)pieces[i].iov_base + done,
                                      pieces[i].iov_len - done, &sent);
            if (result != 1)
                return all > 0 ? all : tls_status(link, result);
        }
    return all;
}

static ssize_t tls_recv(struct raw_link *link, const struct iovec *pieces, int count)
{
    ssize_t all = 0;
    for (int i = 0; i < count; i++)
        for (size_t done = 0, got; done < pieces[i].iov_len; done += got, all += (ssize_t)got) {
            int result = SSL_read_ex(link->layer, (uint8_t *)pieces[i].iov_base + done,
                                     pieces[i].iov_len - done, &got);
            if (result != 1)
                return all > 0 ? all : tls_status(link, result);
        }
    return all;
}

static bool tls_pending(const struct raw_link *link)
{
    return SSL_has_pending(link->layer);
}

static const char *tls_name(const struct raw_link *link)
{
    return SSL_get_cipher_name(link->layer);
}

const struct raw_bytes raw_tls = {
    .open = tls_open,
    .close = tls_close,
    .send = tls_send,
    .recv = tls_recv,
    .pending = tls_pending,
    .name = tls_name,
};
