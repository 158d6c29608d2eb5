/* SPDX-License-Identifier: BSD-3-Clause
 *
 * psk.c - external pre-shared keys (RFC 8446, 4.2.11; RFC 9257), in place of certificates.
 *
 * A key is not used as it stands in the file. The client appends the name of its process, 16 random
 * bytes, to the identity that it sends, and both sides derive the key of the connection from all
 * that. So each process has keys of its own in the role of a client, and a server refuses those of
 * its own process. Without this, an attacker could send a client's messages back to the same
 * process, and make it talk to itself ("Selfie", RFC 9257, 5.1).
 *
 * The keys hang on the context that they were read for, and are freed with it.
 */
#include <ctype.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>

#include "tls.h"

enum {
    KEY_LEAST = 16,
    KEY_MOST = 64,
    IDENTITY_MOST = 200,
    INSTANCE_TEXT = 2 * TLS_INSTANCE, /* its name in hex */
    WIRE_MOST = IDENTITY_MOST + 1 + INSTANCE_TEXT
};

struct psk {
    struct psk *next;
    size_t bytes;
    uint8_t key[KEY_MOST];
    char identity[IDENTITY_MOST + 1];
};

static void keys_free(struct psk *psk)
{
    while (psk) {
        struct psk *next = psk->next;
        OPENSSL_cleanse(psk, sizeof(*psk));
        free(psk);
        psk = next;
    }
}

static void context_frees(void *parent, void *keys, CRYPTO_EX_DATA *data, int index, long number,
                          void *argument)
{
    (void)parent, (void)data, (void)index, (void)number, (void)argument;
    keys_free(keys);
}

static int keys_index;

static void keys_index_make(void)
{
    keys_index = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, context_frees);
}

/* ---- the file ------------------------------------------------------------------------------- */

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static bool key_parse(struct psk *psk, const char *hex, size_t length)
{
    if (length % 2 != 0 || length / 2 < KEY_LEAST || length / 2 > KEY_MOST)
        return false;
    for (size_t i = 0; i < length; i += 2) {
        int high = digit(hex[i]), low = digit(hex[i + 1]);
        if (high < 0 || low < 0)
            return false;
        psk->key[i / 2] = (uint8_t)(high << 4 | low);
    }
    psk->bytes = length / 2;
    return true;
}

/* Takes "identity:hex" apart. */
static bool line_parse(struct psk *psk, const char *line)
{
    size_t length = strcspn(line, ":");
    if (length == 0 || length > IDENTITY_MOST || line[length] != ':')
        return false;
    for (size_t i = 0; i < length; i++)
        if (line[i] <= ' ' || line[i] > '~')
            return false;
    memcpy(psk->identity, line, length);
    psk->identity[length] = '\0';
    const char *hex = line + length + 1;
    return key_parse(psk, hex, strcspn(hex, " \t\r\n"));
}

/* Returns 0, -ENOMEM, or the number of the line that is wrong. */
static int keys_read(FILE *file, struct psk **keys)
{
    char line[WIRE_MOST + 2 * KEY_MOST + 8];
    struct psk **end = keys;
    for (int number = 1; fgets(line, sizeof(line), file); number++) {
        if (line[strspn(line, " \t\r\n")] == '\0' || line[0] == '#')
            continue;
        *end = calloc(1, sizeof(**end));
        if (!*end)
            return -ENOMEM;
        if (!line_parse(*end, line))
            return number;
        end = &(*end)->next;
    }
    OPENSSL_cleanse(line, sizeof(line));
    return 0;
}

static struct psk *keys_of(const SSL *ssl)
{
    return SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), keys_index);
}

/* ---- the key of a connection ---------------------------------------------------------------- */

/* Makes the session that stands for the key. */
static SSL_SESSION *session_make(SSL *ssl, const struct psk *psk, const char *wire)
{
    static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
    static const char label[] = "libbmi tls psk 1 ";
    unsigned char bytes[sizeof(label) - 1 + WIRE_MOST], key[32];
    unsigned int size = sizeof(key);
    size_t length = strlen(wire);
    memcpy(bytes, label, sizeof(label) - 1);
    memcpy(bytes + sizeof(label) - 1, wire, length);
    if (!HMAC(EVP_sha256(), psk->key, (int)psk->bytes, bytes, sizeof(label) - 1 + length, key,
              &size))
        return NULL;
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
    SSL_SESSION *session = SSL_SESSION_new();
    bool made = session && cipher && SSL_SESSION_set1_master_key(session, key, size) == 1 &&
                SSL_SESSION_set_cipher(session, cipher) == 1 &&
                SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
    OPENSSL_cleanse(key, sizeof(key));
    if (made)
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static void instance_write(const struct tls_link *tls, char text[INSTANCE_TEXT + 1])
{
    const uint8_t *instance = tls_state_of(tls->link)->instance;
    for (int i = 0; i < TLS_INSTANCE; i++)
        snprintf(text + 2 * i, 3, "%02x", instance[i]);
}

static int client_key(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *length,
                      SSL_SESSION **session)
{
    struct tls_link *tls = SSL_get_app_data(ssl);
    const struct psk *psk = keys_of(ssl);
    char *wire = tls->making->wire; /* OpenSSL copies it after the return */
    char instance[INSTANCE_TEXT + 1];
    *session = NULL;
    if (!psk || (digest && EVP_MD_get_type(digest) != NID_sha256))
        return 1;
    instance_write(tls, instance);
    snprintf(wire, sizeof(tls->making->wire), "%s.%s", psk->identity, instance);
    *session = session_make(ssl, psk, wire);
    *id = (const unsigned char *)wire;
    *length = strlen(wire);
    memcpy(tls->making->identity, psk->identity, sizeof(psk->identity));
    return *session != NULL;
}

/* Copies a peer's identity with its instance. Returns false if it is none of psk.c's, but a ticket
 * (session.c). */
static bool wire_take(char wire[WIRE_MOST + 1], const unsigned char *id, size_t length)
{
    if (length > WIRE_MOST || length <= INSTANCE_TEXT + 1 || memchr(id, '\0', length))
        return false;
    memcpy(wire, id, length);
    wire[length] = '\0';
    return wire[length - INSTANCE_TEXT - 1] == '.';
}

static const struct psk *key_find(const SSL *ssl, const char *wire)
{
    size_t name = strlen(wire) - INSTANCE_TEXT - 1;
    const struct psk *psk = keys_of(ssl);
    while (psk && (strlen(psk->identity) != name || memcmp(psk->identity, wire, name) != 0))
        psk = psk->next;
    return psk;
}

/* Without a session the handshake goes on with certificates, where we have one. */
static int server_key(SSL *ssl, const unsigned char *id, size_t length, SSL_SESSION **session)
{
    struct tls_link *tls = SSL_get_app_data(ssl);
    char wire[WIRE_MOST + 1], own[INSTANCE_TEXT + 1];
    *session = NULL;
    if (!wire_take(wire, id, length))
        return 1;
    const struct psk *psk = key_find(ssl, wire);
    if (!psk) {
        tls->making->fault = "its key's identity is unknown";
        return 1;
    }
    instance_write(tls, own);
    if (strcmp(wire + length - INSTANCE_TEXT, own) == 0) {
        tls->making->fault = "it uses a key of this very process, sent back to it";
        return 1;
    }
    *session = session_make(ssl, psk, wire);
    memcpy(tls->making->identity, psk->identity, sizeof(psk->identity));
    SSL_set_num_tickets(ssl, 0);
    return *session != NULL;
}

int tls_psk_load(SSL_CTX *context, const char *name, char *why, size_t size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct psk *keys = NULL;
    pthread_once(&once, keys_index_make);
    FILE *file = fopen(name, "re");
    if (!file) {
        snprintf(why, size, "no keys, file '%s': %s", name, strerror(errno));
        return -EACCES;
    }
    int bad = keys_read(file, &keys);
    fclose(file);
    if (bad > 0)
        snprintf(why, size, "file '%s', line %d: no identity:key in hex", name, bad);
    else if (bad < 0 || !keys)
        snprintf(why, size, "file '%s': %s", name, bad < 0 ? "no memory" : "it holds no key");
    if (bad || !keys || SSL_CTX_set_ex_data(context, keys_index, keys) != 1) {
        keys_free(keys);
        return -EACCES;
    }
    SSL_CTX_set_psk_use_session_callback(context, client_key);
    SSL_CTX_set_psk_find_session_callback(context, server_key);
    return 0;
}
