/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cause.c - why a connection failed: EACCES for a refused identity, EPROTO for bytes that are no
 * TLS 1.3, the socket's error; and the line in the log.
 */
#include <openssl/err.h>
#include <stdio.h>

#include "tls.h"

enum { ALERTS = 1000 }; /* the reason of an error is above that for an alert of the peer */

/* Alerts for other reasons than an identity. */
static bool alert_is_protocol(int alert, bool with_key)
{
    switch (alert) {
    case SSL_AD_ILLEGAL_PARAMETER: /* also what OpenSSL answers to a wrong key */
        return !with_key;
    case SSL_AD_UNEXPECTED_MESSAGE:
    case SSL_AD_BAD_RECORD_MAC:
    case SSL_AD_RECORD_OVERFLOW:
    case SSL_AD_DECODE_ERROR:
    case SSL_AD_PROTOCOL_VERSION:
    case SSL_AD_INTERNAL_ERROR:
    case SSL_AD_MISSING_EXTENSION:
    case SSL_AD_UNSUPPORTED_EXTENSION:
        return true;
    default:
        return false;
    }
}

/* What an alert of the peer says of us, in words. NULL: OpenSSL's are clear. */
static const char *alert_words(int alert)
{
    switch (alert) {
    case SSL_AD_CERTIFICATE_EXPIRED:
        return "our certificate has expired";
    case SSL_AD_CERTIFICATE_REVOKED:
        return "our certificate is revoked";
    case SSL_AD_UNKNOWN_CA:
        return "our certificate is of an authority that it does not know";
    case SSL_AD_CERTIFICATE_REQUIRED:
        return "it wants a certificate, and we have none";
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
        return "our certificate is not for this role";
    case SSL_AD_BAD_CERTIFICATE:
        return "our certificate is of another name, or not yet valid; its log says which";
    case SSL_AD_HANDSHAKE_FAILURE:
        return "it accepts no name or key of ours (tls_peers, tls_psk); its log says more";
    default:
        return NULL;
    }
}

static int alert_cause(const struct tls_link *tls, int alert, char *text, size_t size)
{
    bool with_key = bmi_method_setting_text(tls->link->base.instance, "tls_psk")[0] != '\0';
    bool protocol = alert_is_protocol(alert, with_key && tls->role == TLS_CLIENT);
    const char *words = protocol ? NULL : alert_words(alert);
    snprintf(text, size, "it %s: %s", protocol ? "reports" : "refuses us",
             words ? words : SSL_alert_desc_string_long(alert));
    return protocol ? -EPROTO : -EACCES;
}

static int reason_cause(const struct tls_link *tls, int reason, char *text, size_t size)
{
    const char *words = ERR_reason_error_string(ERR_peek_error());
    const char *fault = tls->making ? tls->making->fault : NULL;
    switch (reason) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
        words = fault ? fault : tls_fault_name(SSL_get_verify_result(tls->ssl));
        break;
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        words = "it has no certificate";
        break;
    case SSL_R_BINDER_DOES_NOT_VERIFY:
        words = "its key is another one than ours of that identity";
        break;
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM: /* no key, and no certificate in its place */
    case SSL_R_NO_SHARED_CIPHER:
        words = fault ? fault : "it has no key of ours, and we have no certificate";
        break;
    default:
        snprintf(text, size, "%s: %s", tls->making ? "no TLS 1.3" : "a bad record",
                 words ? words : "unknown error");
        return -EPROTO;
    }
    snprintf(text, size, "%s", words);
    return -EACCES;
}

void tls_cause_log(const struct tls_link *tls, const char *text)
{
    const struct bmi_link *base = &tls->link->base;
    const char *name = base->host ? base->host : tls->identity; /* a link that is up has no host */
    bmi_method_log(tls->link->base.instance, BMI_LOG_WARN, base, "%s:%u: %s", name ? name : "?",
                   (unsigned)base->host_number, text);
}

int tls_cause_locked(struct tls_link *tls)
{
    char text[256];
    int error = tls->socket_error;
    if (error) {
        ERR_clear_error();
        if (!tls->making)
            return error; /* an end as any other connection's */
        snprintf(text, sizeof(text), "it closed the connection within the handshake%s",
                 tls->read_any             ? ""
                 : tls->role == TLS_CLIENT ? "; is it a TLS server?"
                                           : "; is it a TLS client?");
    } else {
        int reason = ERR_GET_REASON(ERR_peek_error());
        error = reason >= ALERTS ? alert_cause(tls, reason - ALERTS, text, sizeof(text))
                                 : reason_cause(tls, reason, text, sizeof(text));
        ERR_clear_error();
    }
    tls_cause_log(tls, text);
    return error;
}
