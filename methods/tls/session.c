/* SPDX-License-Identifier: BSD-3-Clause
 *
 * session.c - tickets, by which two processes connect again without certificates (RFC 8446, 2.2).
 *
 * A ticket stands for a handshake that proved both identities, and gives the same ones. It ends
 * `tls_session_s` seconds after that handshake, or before, with the first of the peer's
 * certificates or of our lists of revocations; that a resumed connection brings a new ticket does
 * not prolong this. New files end all tickets, since those belong to an SSL_CTX: a server's are
 * encrypted with its keys, a client's hang on it. The names that are accepted (tls_peers) are
 * checked whenever a ticket is used. A ticket that has ended is ignored: a full handshake decides.
 *
 * A server stores nothing: a ticket contains its session, with the client's certificate. A client
 * stores one ticket for each server, SESSIONS_MOST in all; the oldest gives way. It uses each once,
 * so that nobody can recognise it by a ticket. Shared keys (psk.c) have no tickets.
 *
 * Locks: `lock` of struct tls_sessions guards its list. It is taken within a link's lock, since
 * SSL_read finds the tickets, and is innermost.
 */
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tls.h"

enum { SESSIONS_MOST = 256, SERVER_NAME = IP_HOST_SIZE + 8 };

struct tls_kept {
    struct tls_kept *next;
    SSL_SESSION *session;
    char server[SERVER_NAME]; /* the name that was checked, and the port */
};

/* Hangs on an SSL_CTX. */
struct tls_sessions {
    int64_t lists_end_s; /* the first end of a list of revocations */
    pthread_mutex_t lock;
    struct tls_kept *first, **last; /* lock: the oldest first */
    int count;                      /* lock */
};

static int sessions_index;

static void kept_free(struct tls_kept *kept)
{
    SSL_SESSION_free(kept->session);
    free(kept);
}

static void context_frees(void *parent, void *pointer, CRYPTO_EX_DATA *data, int index, long number,
                          void *argument)
{
    struct tls_sessions *sessions = pointer;
    (void)parent, (void)data, (void)index, (void)number, (void)argument;
    if (!sessions)
        return;
    while (sessions->first) {
        struct tls_kept *kept = sessions->first;
        sessions->first = kept->next;
        kept_free(kept);
    }
    pthread_mutex_destroy(&sessions->lock);
    free(sessions);
}

static void sessions_index_make(void)
{
    sessions_index = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, context_frees);
}

static struct tls_sessions *sessions_of(const SSL *ssl)
{
    return SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), sessions_index);
}

/* ---- when a session ends -------------------------------------------------------------------- */

/* The end stands in the session, as the data of the application that its ticket carries. 0: not
 * set. */
static int64_t end_get(SSL_SESSION *session)
{
    int64_t end_s = 0;
    void *data;
    size_t size;
    if (SSL_SESSION_get0_ticket_appdata(session, &data, &size) == 1 && size == sizeof(end_s))
        memcpy(&end_s, data, size);
    return end_s;
}

/* Returns 0 where no peer was verified. */
static int64_t chain_end(const SSL *ssl)
{
    STACK_OF(X509) *chain = SSL_get0_verified_chain(ssl);
    int64_t end_s = sk_X509_num(chain) > 0 ? INT64_MAX : 0;
    for (int i = 0; i < sk_X509_num(chain); i++) {
        int64_t one_s = tls_time_of(X509_get0_notAfter(sk_X509_value(chain, i)));
        end_s = one_s < end_s ? one_s : end_s;
    }
    return end_s;
}

static struct bmi_instance *instance_of(const SSL *ssl)
{
    const struct tls_link *tls = SSL_get_app_data(ssl);
    return tls->link->base.instance;
}

/* Sets when the session of a full handshake ends; a resumed one keeps its end. Returns the seconds
 * that are left, 0: none. */
static int64_t end_set(const SSL *ssl, SSL_SESSION *session)
{
    const struct tls_sessions *sessions = sessions_of(ssl);
    int64_t now_s = time(NULL), life_s = bmi_method_setting(instance_of(ssl), "tls_session_s");
    int64_t end_s = end_get(session);
    if (end_s == 0) {
        end_s = chain_end(ssl);
        end_s = end_s < sessions->lists_end_s ? end_s : sessions->lists_end_s;
        end_s = end_s < now_s + life_s ? end_s : now_s + life_s;
        if (SSL_SESSION_set1_ticket_appdata(session, &end_s, sizeof(end_s)) != 1)
            return 0;
    }
    return end_s > now_s ? end_s - now_s : 0;
}

/* Whether the peer of a session would still be accepted. */
static bool is_usable(const SSL *ssl, SSL_SESSION *session)
{
    char name[TLS_NAME];
    X509 *certificate = SSL_SESSION_get0_peer(session);
    return bmi_method_setting(instance_of(ssl), "tls_session_s") > 0 &&
           end_get(session) > time(NULL) && certificate &&
           tls_name_find(instance_of(ssl), certificate, name);
}

/* ---- a server's tickets --------------------------------------------------------------------- */

static int ticket_made(SSL *ssl, void *argument)
{
    SSL_SESSION *session = SSL_get_session(ssl);
    int64_t left_s = end_set(ssl, session);
    (void)argument;
    SSL_SESSION_set_timeout(session, left_s > 0 ? (long)left_s : 1);
    return 1;
}

static SSL_TICKET_RETURN ticket_read(SSL *ssl, SSL_SESSION *session, const unsigned char *key,
                                     size_t length, SSL_TICKET_STATUS status, void *argument)
{
    (void)key, (void)length, (void)argument;
    bool is_ours = status == SSL_TICKET_SUCCESS || status == SSL_TICKET_SUCCESS_RENEW;
    return is_ours && is_usable(ssl, session) ? SSL_TICKET_RETURN_USE_RENEW
                                              : SSL_TICKET_RETURN_IGNORE_RENEW;
}

/* ---- a client's tickets --------------------------------------------------------------------- */

/* The name of the server that was or will be checked, and its port. */
static bool server_name(SSL *ssl, char name[SERVER_NAME])
{
    const struct tls_link *tls = SSL_get_app_data(ssl);
    const X509_VERIFY_PARAM *checked = SSL_get0_param(ssl);
    const char *host = X509_VERIFY_PARAM_get0_host((X509_VERIFY_PARAM *)checked, 0);
    char *address = host ? NULL : X509_VERIFY_PARAM_get1_ip_asc((X509_VERIFY_PARAM *)checked);
    bool named = host || address;
    if (named)
        snprintf(name, SERVER_NAME, "%s %u", host ? host : address,
                 (unsigned)tls->link->base.host_number);
    OPENSSL_free(address);
    return named;
}

/* Takes the ticket of that server, or, if NULL, the oldest one, from the list. */
static struct tls_kept *take_locked(struct tls_sessions *sessions, const char *server)
{
    struct tls_kept **at = &sessions->first, *kept;
    while ((kept = *at) != NULL && server && strcmp(kept->server, server) != 0)
        at = &kept->next;
    if (!kept)
        return NULL;
    *at = kept->next;
    if (!*at)
        sessions->last = at;
    sessions->count--;
    return kept;
}

static void keep(struct tls_sessions *sessions, struct tls_kept *kept)
{
    pthread_mutex_lock(&sessions->lock);
    struct tls_kept *old = take_locked(sessions, kept->server);
    if (!old && sessions->count == SESSIONS_MOST)
        old = take_locked(sessions, NULL);
    kept->next = NULL;
    *sessions->last = kept;
    sessions->last = &kept->next;
    sessions->count++;
    pthread_mutex_unlock(&sessions->lock);
    if (old)
        kept_free(old);
}

/* Keeps a copy: OpenSSL spoils a session whose connection ends without an announcement. */
static int ticket_arrived(SSL *ssl, SSL_SESSION *session)
{
    struct tls_kept *kept = calloc(1, sizeof(*kept));
    bool lasts = end_set(ssl, session) > 0 && SSL_SESSION_get_ticket_lifetime_hint(session) > 0;
    if (!kept || !lasts || !server_name(ssl, kept->server)) {
        free(kept);
        return 0;
    }
    kept->session = SSL_SESSION_dup(session);
    if (kept->session)
        keep(sessions_of(ssl), kept);
    else
        free(kept);
    return 0;
}

static void ticket_use(struct tls_sessions *sessions, SSL *ssl)
{
    char server[SERVER_NAME];
    if (!server_name(ssl, server))
        return;
    pthread_mutex_lock(&sessions->lock);
    struct tls_kept *kept = take_locked(sessions, server);
    pthread_mutex_unlock(&sessions->lock);
    if (!kept)
        return;
    if (is_usable(ssl, kept->session))
        SSL_set_session(ssl, kept->session);
    kept_free(kept);
}

void tls_session_begin(SSL *ssl)
{
    struct tls_sessions *sessions = sessions_of(ssl);
    if (sessions && !SSL_is_server(ssl))
        ticket_use(sessions, ssl);
    else if (bmi_method_setting(instance_of(ssl), "tls_session_s") == 0)
        SSL_set_num_tickets(ssl, 0);
}

/* ---- a context's ---------------------------------------------------------------------------- */

static int64_t lists_end(SSL_CTX *context)
{
    STACK_OF(X509_OBJECT) *objects = X509_STORE_get0_objects(SSL_CTX_get_cert_store(context));
    int64_t end_s = INT64_MAX;
    for (int i = 0; i < sk_X509_OBJECT_num(objects); i++) {
        X509_CRL *list = X509_OBJECT_get0_X509_CRL(sk_X509_OBJECT_value(objects, i));
        const ASN1_TIME *next = list ? X509_CRL_get0_nextUpdate(list) : NULL;
        if (next && tls_time_of(next) < end_s)
            end_s = tls_time_of(next);
    }
    return end_s;
}

bool tls_sessions_open(SSL_CTX *context, enum tls_role role)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, sessions_index_make);
    struct tls_sessions *sessions = calloc(1, sizeof(*sessions));
    if (!sessions)
        return false;
    sessions->lists_end_s = lists_end(context);
    sessions->last = &sessions->first;
    pthread_mutex_init(&sessions->lock, NULL);
    if (SSL_CTX_set_ex_data(context, sessions_index, sessions) != 1) {
        pthread_mutex_destroy(&sessions->lock);
        free(sessions);
        return false;
    }
    SSL_CTX_clear_options(context, SSL_OP_NO_TICKET);
    if (role == TLS_SERVER)
        return SSL_CTX_set_session_ticket_cb(context, ticket_made, ticket_read, NULL) == 1 &&
               SSL_CTX_set_num_tickets(context, 1) == 1;
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(context, ticket_arrived);
    return true;
}
