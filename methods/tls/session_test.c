/* SPDX-License-Identifier: BSD-3-Clause
 *
 * session_test.c - a client's tickets: used once, 256 in all, and their end. Both sides of each
 * handshake are SSL objects of the test, connected in memory, with certificates of their own; the
 * test sets the time.
 */
#include <CUnit/Basic.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <time.h>

#include "methods/stream/fake_core.h"
#include "methods/tls/tls.h"

enum { TICKETS_MOST = 256, CLIENT_VALID_S = 1000, SERVER_VALID_S = 100000 };

static const char *const names[TLS_ROLES] = {[TLS_CLIENT] = "client", [TLS_SERVER] = "server"};
static const long valid_s[TLS_ROLES] = {CLIENT_VALID_S, SERVER_VALID_S};
static SSL_CTX *contexts[TLS_ROLES];
static long verified; /* the server's result of the last full handshake */

/* The clock of the method and of OpenSSL. */
static time_t now_s = 1000000000;

time_t time(time_t *out)
{
    if (out)
        *out = now_s;
    return now_s;
}

/* ---- certificates --------------------------------------------------------------------------- */

static X509 *certificate_make(EVP_PKEY *key, const char *name, long seconds)
{
    char names_text[64];
    X509 *made = X509_new();
    CU_ASSERT_PTR_NOT_NULL_FATAL(made);
    X509_set_version(made, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made), 1);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(made), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(made, X509_get_subject_name(made));
    X509_gmtime_adj(X509_getm_notBefore(made), 0);
    X509_gmtime_adj(X509_getm_notAfter(made), seconds);
    X509_set_pubkey(made, key);
    snprintf(names_text, sizeof names_text, "DNS:%s", name);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, names_text);
    X509_add_ext(made, extension, -1);
    X509_EXTENSION_free(extension);
    CU_ASSERT_FATAL(X509_sign(made, key, EVP_sha256()) > 0);
    return made;
}

static void setup(void)
{
    static const unsigned char context_name[] = "test";
    for (int role = 0; role < TLS_ROLES; role++) {
        contexts[role] = SSL_CTX_new(TLS_method());
        CU_ASSERT_PTR_NOT_NULL_FATAL(contexts[role]);
        SSL_CTX_set_min_proto_version(contexts[role], TLS1_3_VERSION);
        SSL_CTX_set_verify(contexts[role], SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                           tls_verify);
        SSL_CTX_set_session_id_context(contexts[role], context_name, sizeof context_name);
    }
    for (int role = 0; role < TLS_ROLES; role++) {
        EVP_PKEY *key = EVP_EC_gen("P-256");
        X509 *own = certificate_make(key, names[role], valid_s[role]);
        CU_ASSERT_EQUAL_FATAL(SSL_CTX_use_certificate(contexts[role], own), 1);
        CU_ASSERT_EQUAL_FATAL(SSL_CTX_use_PrivateKey(contexts[role], key), 1);
        X509_STORE_add_cert(SSL_CTX_get_cert_store(contexts[!role]), own);
        X509_free(own);
        EVP_PKEY_free(key);
    }
    fake_tls_session_s = 3600;
    for (int role = 0; role < TLS_ROLES; role++)
        CU_ASSERT_TRUE_FATAL(tls_sessions_open(contexts[role], (enum tls_role)role));
}

static void teardown(void)
{
    for (int role = 0; role < TLS_ROLES; role++)
        SSL_CTX_free(contexts[role]);
}

/* ---- a connection --------------------------------------------------------------------------- */

struct side {
    struct stream_link link;
    struct tls_making making;
    struct tls_link tls;
};

static void side_make(struct side *side, enum tls_role role, unsigned port)
{
    memset(side, 0, sizeof *side);
    side->link.base.host_number = (uint16_t)port;
    side->tls.link = &side->link;
    side->tls.making = &side->making;
    side->tls.ssl = SSL_new(contexts[role]);
    CU_ASSERT_PTR_NOT_NULL_FATAL(side->tls.ssl);
    SSL_set_app_data(side->tls.ssl, &side->tls);
    if (role == TLS_SERVER)
        SSL_set_accept_state(side->tls.ssl);
    else
        SSL_set_connect_state(side->tls.ssl);
    if (role == TLS_CLIENT)
        SSL_set1_host(side->tls.ssl, names[TLS_SERVER]);
    tls_session_begin(side->tls.ssl);
}

/* Whether both sides get through their handshake. */
static bool shake_hands(SSL *client, SSL *server)
{
    for (int i = 0; i < 4; i++) {
        ERR_clear_error();
        SSL_do_handshake(client);
        SSL_do_handshake(server);
    }
    ERR_clear_error();
    return SSL_is_init_finished(client) && SSL_is_init_finished(server);
}

enum end { REFUSED, FULL, BY_TICKET };

/* The client connects to the server at this port. */
static enum end connect_to(unsigned port, bool gives_ticket)
{
    struct side client, server;
    char byte;
    BIO *client_end, *server_end;
    CU_ASSERT_EQUAL_FATAL(BIO_new_bio_pair(&client_end, 0, &server_end, 0), 1);
    side_make(&client, TLS_CLIENT, port);
    side_make(&server, TLS_SERVER, port);
    SSL_set_bio(client.tls.ssl, client_end, client_end);
    SSL_set_bio(server.tls.ssl, server_end, server_end);
    if (!gives_ticket)
        SSL_set_num_tickets(server.tls.ssl, 0);
    bool good = shake_hands(client.tls.ssl, server.tls.ssl);
    CU_ASSERT_TRUE(SSL_read(client.tls.ssl, &byte, 1) <= 0); /* takes the ticket */
    ERR_clear_error();
    verified = SSL_get_verify_result(server.tls.ssl);
    enum end end = !good ? REFUSED : SSL_session_reused(server.tls.ssl) == 1 ? BY_TICKET : FULL;
    SSL_free(client.tls.ssl);
    SSL_free(server.tls.ssl);
    return end;
}

/* ---- the tests ------------------------------------------------------------------------------ */

static void a_ticket_is_used_once(void)
{
    CU_ASSERT_EQUAL(connect_to(1, true), FULL);
    CU_ASSERT_EQUAL(connect_to(1, false), BY_TICKET);
    CU_ASSERT_EQUAL(connect_to(1, false), FULL);
    CU_ASSERT_EQUAL(connect_to(1, true), FULL);
    CU_ASSERT_EQUAL(connect_to(2, true), FULL);
    CU_ASSERT_EQUAL(connect_to(1, true), BY_TICKET);
    CU_ASSERT_EQUAL(connect_to(1, true), BY_TICKET);
}

static void the_oldest_ticket_gives_way(void)
{
    for (unsigned port = 1; port <= TICKETS_MOST + 1; port++)
        CU_ASSERT_EQUAL(connect_to(port, true), FULL);
    CU_ASSERT_EQUAL(connect_to(2, false), BY_TICKET);
    CU_ASSERT_EQUAL(connect_to(TICKETS_MOST + 1, false), BY_TICKET);
    CU_ASSERT_EQUAL(connect_to(1, false), FULL);
}

static void a_resumed_connection_does_not_prolong(void)
{
    fake_tls_session_s = 100;
    CU_ASSERT_EQUAL(connect_to(1, true), FULL);
    now_s += 98;
    CU_ASSERT_EQUAL(connect_to(1, true), BY_TICKET);
    now_s += 1;
    CU_ASSERT_EQUAL(connect_to(1, true), BY_TICKET);
    now_s += 1;
    CU_ASSERT_EQUAL(connect_to(1, true), FULL);
    CU_ASSERT_EQUAL(connect_to(1, true), BY_TICKET);
    fake_tls_session_s = 0;
    CU_ASSERT_EQUAL(connect_to(1, true), FULL);
}

static void a_ticket_ends_with_the_certificate(void)
{
    CU_ASSERT_EQUAL(connect_to(1, true), FULL);
    now_s += CLIENT_VALID_S - 1;
    CU_ASSERT_EQUAL(connect_to(1, true), BY_TICKET);
    now_s += 2;
    CU_ASSERT_EQUAL(connect_to(1, true), REFUSED);
    CU_ASSERT_EQUAL(verified, X509_V_ERR_CERT_HAS_EXPIRED);
}

int main(void)
{
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    CU_pSuite suite = CU_add_suite_with_setup_and_teardown("tickets", NULL, NULL, setup, teardown);
    CU_ADD_TEST(suite, a_ticket_is_used_once);
    CU_ADD_TEST(suite, the_oldest_ticket_gives_way);
    CU_ADD_TEST(suite, a_resumed_connection_does_not_prolong);
    CU_ADD_TEST(suite, a_ticket_ends_with_the_certificate);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failures > 0;
}
