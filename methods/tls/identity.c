/* SPDX-License-Identifier: BSD-3-Clause
 *
 * identity.c - names in certificates: which are accepted (tls_peers), and which is the peer's.
 *
 * A name is a DNS name, an IP address, a URI or a mail address among the certificate's subject
 * alternative names. Names with other than printable ASCII characters are ignored, so that no name
 * can end early or forge a line of the log.
 */
#include <arpa/inet.h>
#include <fnmatch.h>
#include <openssl/x509v3.h>
#include <stdio.h>

#include "tls.h"

/* ---- one name ------------------------------------------------------------------------------- */

static bool text_take(const ASN1_STRING *from, char name[TLS_NAME])
{
    const unsigned char *bytes = ASN1_STRING_get0_data(from);
    int length = ASN1_STRING_length(from);
    if (length <= 0 || length >= TLS_NAME)
        return false;
    for (int i = 0; i < length; i++)
        if (bytes[i] <= ' ' || bytes[i] > '~')
            return false;
    memcpy(name, bytes, (size_t)length);
    name[length] = '\0';
    return true;
}

static bool name_take(const GENERAL_NAME *from, char name[TLS_NAME])
{
    int kind;
    const ASN1_STRING *value = GENERAL_NAME_get0_value(from, &kind);
    if (kind == GEN_DNS || kind == GEN_URI || kind == GEN_EMAIL)
        return text_take(value, name);
    if (kind != GEN_IPADD)
        return false;
    int length = ASN1_STRING_length(value);
    int family = length == 4 ? AF_INET : AF_INET6;
    return (length == 4 || length == 16) &&
           inet_ntop(family, ASN1_STRING_get0_data(value), name, TLS_NAME);
}

/* Whether one of the patterns, separated by spaces, fits. */
static bool accepted(const char *name, const char *patterns)
{
    char one[TLS_NAME];
    while (*patterns != '\0') {
        size_t length = strcspn(patterns, " ");
        if (length > 0 && length < sizeof(one)) {
            memcpy(one, patterns, length);
            one[length] = '\0';
            if (fnmatch(one, name, FNM_NOESCAPE) == 0)
                return true;
        }
        patterns += length + (patterns[length] == ' ');
    }
    return false;
}

bool tls_name_find(struct bmi_instance *instance, X509 *certificate, char name[TLS_NAME])
{
    const char *patterns = bmi_method_setting_text(instance, "tls_peers");
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    bool found = false;
    for (int i = 0; !found && i < sk_GENERAL_NAME_num(names); i++)
        found = name_take(sk_GENERAL_NAME_value(names, i), name) &&
                (*patterns == '\0' || accepted(name, patterns));
    GENERAL_NAMES_free(names);
    return found;
}

static const char name_fault[] = "its certificate has no name that is accepted (see tls_peers)";

/* ---- in a handshake ------------------------------------------------------------------------- */

int tls_verify(int ok, X509_STORE_CTX *store)
{
    char name[TLS_NAME];
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct tls_link *tls = SSL_get_app_data(ssl);
    if (!ok || X509_STORE_CTX_get_error_depth(store) > 0)
        return ok;
    if (tls_name_find(tls->link->base.instance, X509_STORE_CTX_get_current_cert(store), name))
        return 1;
    tls->making->fault = name_fault;
    X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
    return 0;
}

/* A session that a key stands for has no certificate. */
static bool peer_name(const struct tls_link *tls, X509 *certificate, char name[TLS_NAME])
{
    if (certificate)
        return tls_name_find(tls->link->base.instance, certificate, name);
    memcpy(name, tls->making->identity, TLS_NAME);
    return SSL_session_reused(tls->ssl) && *name != '\0';
}

int tls_identity_set(struct tls_link *tls)
{
    char name[TLS_NAME];
    X509 *certificate = SSL_get0_peer_certificate(tls->ssl);
    if (!peer_name(tls, certificate, name)) { /* tls_peers changed meanwhile */
        tls_cause_log(tls, name_fault);
        return -EACCES;
    }
    tls->resumed = certificate && SSL_session_reused(tls->ssl);
    tls->identity = strdup(name);
    return tls->identity ? 0 : -ENOMEM;
}

void tls_identity_get(struct tls_link *tls, struct bmi_peer_identity *identity)
{
    snprintf(identity->name, sizeof(identity->name), "%s", tls->identity);
    bmi_lock_take(&tls->lock);
    X509 *certificate = SSL_get0_peer_certificate(tls->ssl);
    identity->expires_s = certificate ? tls_time_of(X509_get0_notAfter(certificate)) : 0;
    snprintf(identity->protection, sizeof(identity->protection), "TLS 1.3, %s%s",
             SSL_get_cipher_name(tls->ssl), tls->resumed ? ", resumed" : "");
    bmi_lock_give(&tls->lock);
}

/* The same checks as those of a server that we dial: a client's certificate has a name, too. */
bool tls_address_proved(struct tls_link *tls, const char *address)
{
    struct ip_address parsed;
    const char *reason;
    if (ip_address_parse(address, &parsed, &reason) < 0)
        return false;
    bmi_lock_take(&tls->lock);
    X509 *certificate = SSL_get0_peer_certificate(tls->ssl);
    bool proved = certificate && X509_check_purpose(certificate, X509_PURPOSE_SSL_SERVER, 0) == 1 &&
                  (parsed.kind == IP_HOST_NAME
                       ? X509_check_host(certificate, parsed.host, 0,
                                         X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS, NULL) == 1
                       : X509_check_ip_asc(certificate, parsed.host, 0) == 1);
    bmi_lock_give(&tls->lock);
    return proved;
}

const char *tls_fault_name(long error)
{
    switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return "its certificate has expired";
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return "its certificate is not yet valid";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
        return "its certificate is of an unknown authority";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        return "its certificate is of another name";
    case X509_V_ERR_INVALID_PURPOSE:
        return "its certificate is not for this role (bmi-keys: a client's, used by a server)";
    case X509_V_ERR_CERT_REVOKED:
        return "its certificate is revoked";
    case X509_V_ERR_CRL_HAS_EXPIRED:
        return "the list of revoked certificates has expired";
    case X509_V_ERR_UNABLE_TO_GET_CRL:
        return "there is no list of revoked certificates of its authority";
    default:
        return X509_verify_cert_error_string(error);
    }
}
