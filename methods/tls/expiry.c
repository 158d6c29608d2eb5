/* SPDX-License-Identifier: BSD-3-Clause
 *
 * expiry.c - whether this process's credentials can be used, and for how long: for bmi-info, also
 * while the method does not run, and for the report.
 */
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <time.h>

#include "tls.h"

enum {
    DAY_S = 86400,
    WARN_DAYS = 30,
    WARN_LIST_DAYS = 7 /* bmi-keys makes lists for 30 days */
};

/* What ends first, of certificates or of lists. */
struct expiry {
    const char *what, *file;
    int64_t end_s;
};

int64_t tls_time_of(const ASN1_TIME *time)
{
    struct tm parts;
    return ASN1_TIME_to_tm(time, &parts) == 1 ? (int64_t)timegm(&parts) : 0;
}

static void note(struct expiry *expiry, const char *file, const ASN1_TIME *time)
{
    if (time && tls_time_of(time) < expiry->end_s) {
        expiry->file = file;
        expiry->end_s = tls_time_of(time);
    }
}

static void file_note(const char *file, struct expiry *certificates, struct expiry *lists)
{
    BIO *bio = *file ? BIO_new_file(file, "r") : NULL;
    STACK_OF(X509_INFO) *all = bio ? PEM_X509_INFO_read_bio(bio, NULL, NULL, NULL) : NULL;
    for (int i = 0; i < sk_X509_INFO_num(all); i++) {
        const X509_INFO *one = sk_X509_INFO_value(all, i);
        if (one->x509)
            note(certificates, file, X509_get0_notAfter(one->x509));
        if (one->crl)
            note(lists, file, X509_CRL_get0_nextUpdate(one->crl));
    }
    sk_X509_INFO_pop_free(all, X509_INFO_free);
    BIO_free(bio);
    ERR_clear_error();
}

static void files_note(struct bmi_instance *instance, struct expiry *certificates,
                       struct expiry *lists)
{
    file_note(bmi_method_setting_text(instance, "tls_certificate"), certificates, lists);
    file_note(bmi_method_setting_text(instance, "tls_authorities"), certificates, lists);
    file_note(bmi_method_setting_text(instance, "tls_revocations"), certificates, lists);
}

void tls_expiry_read(struct bmi_instance *instance, struct bmi_method_expiry *expiry)
{
    struct expiry certificates = {.end_s = INT64_MAX}, lists = {.end_s = INT64_MAX};
    files_note(instance, &certificates, &lists);
    expiry->certificates_s = certificates.file ? certificates.end_s : 0;
    expiry->revocations_s = lists.file ? lists.end_s : 0;
}

/* Writes the days that are left, if they are few. Returns whether they are. */
static bool warned(const struct expiry *expiry, int64_t days, char *text, size_t size)
{
    int64_t left_s = expiry->end_s - time(NULL);
    if (!expiry->file || left_s >= days * DAY_S)
        return false;
    if (left_s < 0)
        snprintf(text, size, "warning: %s in '%s' has expired", expiry->what, expiry->file);
    else
        snprintf(text, size, "warning: %s in '%s' expires in %lld days", expiry->what, expiry->file,
                 (long long)(left_s / DAY_S));
    return true;
}

int tls_credentials_check(struct bmi_instance *instance, struct bmi_method_choice *choice)
{
    struct expiry certificates = {.what = "a certificate", .end_s = INT64_MAX};
    struct expiry lists = {.what = "a list of revoked certificates", .end_s = INT64_MAX};
    char *text = choice->reason;
    size_t size = sizeof(choice->reason);
    int error = tls_context_check(instance, text, size);
    if (error)
        return error;
    files_note(instance, &certificates, &lists);
    if (warned(&certificates, WARN_DAYS, text, size) || warned(&lists, WARN_LIST_DAYS, text, size))
        return 0;
    if (certificates.file)
        snprintf(text, size, "the certificates are valid for %lld days",
                 (long long)((certificates.end_s - time(NULL)) / DAY_S));
    else
        snprintf(text, size, "shared keys, which do not expire");
    return 0;
}
