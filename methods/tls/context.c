/* SPDX-License-Identifier: BSD-3-Clause
 *
 * context.c - one SSL_CTX for each role, with this process's credentials.
 *
 * Each handshake asks for its context. If a file or the name of one has changed since, a new
 * context is made; connections that stand keep the old one. If that fails (a file is half
 * written), the old context stays in use, and the failure is logged once for each change. `lock` is
 * held while files are read; the threads that wait for it are those of other handshakes.
 */
#include <openssl/err.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "tls.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* The files whose names are settings. */
enum tls_file { TLS_CERTIFICATE, TLS_KEY, TLS_AUTHORITIES, TLS_REVOCATIONS, TLS_PSK, TLS_FILES };

/* What tells one content of a file from another. */
struct tls_stamp {
    const char *name;
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed;
};

struct tls_contexts {
    pthread_mutex_t lock;
    struct {
        SSL_CTX *context; /* NULL: none was made */
        struct tls_stamp stamps[TLS_FILES];
    } role[TLS_ROLES];
};

static const char *const settings[TLS_FILES] = {
    [TLS_CERTIFICATE] = "tls_certificate",
    [TLS_KEY] = "tls_key",
    [TLS_AUTHORITIES] = "tls_authorities",
    [TLS_REVOCATIONS] = "tls_revocations",
    [TLS_PSK] = "tls_psk",
};

/* ---- which files ---------------------------------------------------------------------------- */

static void stamp_take(struct tls_stamp *stamp, const char *setting)
{
    struct stat is;
    *stamp = (struct tls_stamp){.name = bmi_method_setting_text(setting)};
    if (*stamp->name == '\0' || stat(stamp->name, &is) < 0)
        return;
    stamp->device = is.st_dev;
    stamp->inode = is.st_ino;
    stamp->size = is.st_size;
    stamp->changed = is.st_mtim;
}

/* Equal texts of a setting are one string. */
static bool stamp_equal(const struct tls_stamp *one, const struct tls_stamp *other)
{
    return one->name == other->name && one->device == other->device && one->inode == other->inode &&
           one->size == other->size && one->changed.tv_sec == other->changed.tv_sec &&
           one->changed.tv_nsec == other->changed.tv_nsec;
}

static bool is_set(const struct tls_stamp *stamps, enum tls_file file)
{
    return stamps[file].name[0] != '\0';
}

/* ---- a context ------------------------------------------------------------------------------ */

static bool aes_is_fast(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
    return getauxval(AT_HWCAP) & HWCAP_AES;
#else
    return false;
#endif
}

/* A key that is encrypted would be asked for at the terminal. */
static int no_password(char *to, int size, int writing, void *argument)
{
    (void)to, (void)size, (void)writing, (void)argument;
    return -1;
}

static bool rules_set(SSL_CTX *context, enum tls_role role)
{
    static const unsigned char session_context[] = {'b', 'm', 'i'};
    const char *ciphers = aes_is_fast() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                        : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
    SSL_CTX_set_options(context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION |
                                     SSL_OP_NO_TICKET | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_default_passwd_cb(context, no_password);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, tls_verify);
    /* a server that verifies peers accepts shared keys only with a session's context */
    return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_ciphersuites(context, ciphers) == 1 &&
           SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1 &&
           (role == TLS_CLIENT || (SSL_CTX_set_num_tickets(context, 0) == 1 &&
                                   SSL_CTX_set_session_id_context(context, session_context,
                                                                  sizeof(session_context)) == 1));
}

static int file_fails(const char *what, const struct tls_stamp *stamp)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    bmi_method_log(BMI_LOG_ERROR, NULL, "tls: %s, file '%s': %s", what, stamp->name,
                   reason ? reason : "not usable");
    ERR_clear_error();
    return -EACCES;
}

static int missing(const char *what)
{
    bmi_method_log(BMI_LOG_ERROR, NULL, "tls: %s (docs/security.md)", what);
    return -EACCES;
}

static int certificate_load(SSL_CTX *context, const struct tls_stamp *stamps)
{
    if (!is_set(stamps, TLS_KEY))
        return missing("tls_certificate is set, tls_key is not");
    if (!is_set(stamps, TLS_AUTHORITIES))
        return missing("tls_certificate is set, tls_authorities is not");
    if (SSL_CTX_use_certificate_chain_file(context, stamps[TLS_CERTIFICATE].name) != 1)
        return file_fails("no certificate", &stamps[TLS_CERTIFICATE]);
    if (SSL_CTX_use_PrivateKey_file(context, stamps[TLS_KEY].name, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(context) != 1)
        return file_fails("no key of the certificate", &stamps[TLS_KEY]);
    return 0;
}

static int authorities_load(SSL_CTX *context, const struct tls_stamp *stamps)
{
    X509_STORE *store = SSL_CTX_get_cert_store(context);
    if (SSL_CTX_load_verify_file(context, stamps[TLS_AUTHORITIES].name) != 1)
        return file_fails("no authorities", &stamps[TLS_AUTHORITIES]);
    if (!is_set(stamps, TLS_REVOCATIONS))
        return 0;
    if (X509_STORE_load_file(store, stamps[TLS_REVOCATIONS].name) != 1)
        return file_fails("no revocations", &stamps[TLS_REVOCATIONS]);
    X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
    return 0;
}

static int credentials_load(SSL_CTX *context, const struct tls_stamp *stamps)
{
    int error = 0;
    if (!is_set(stamps, TLS_CERTIFICATE) && !is_set(stamps, TLS_PSK))
        return missing("neither tls_certificate nor tls_psk is set");
    if (is_set(stamps, TLS_CERTIFICATE))
        error = certificate_load(context, stamps);
    if (!error && is_set(stamps, TLS_AUTHORITIES))
        error = authorities_load(context, stamps);
    if (!error && is_set(stamps, TLS_PSK))
        error = tls_psk_load(context, stamps[TLS_PSK].name);
    return error;
}

static SSL_CTX *context_make(enum tls_role role, const struct tls_stamp *stamps)
{
    ERR_clear_error();
    SSL_CTX *context = SSL_CTX_new(role == TLS_CLIENT ? TLS_client_method() : TLS_server_method());
    if (!context || !rules_set(context, role)) {
        missing("OpenSSL does not offer TLS 1.3 as it is needed");
        ERR_clear_error();
    } else if (credentials_load(context, stamps) == 0) {
        return context;
    }
    SSL_CTX_free(context);
    return NULL;
}

/* ---- the contexts --------------------------------------------------------------------------- */

struct tls_contexts *tls_contexts_make(void)
{
    struct tls_contexts *contexts = calloc(1, sizeof(*contexts));
    if (contexts)
        pthread_mutex_init(&contexts->lock, NULL);
    return contexts;
}

void tls_contexts_free(struct tls_contexts *contexts)
{
    if (!contexts)
        return;
    for (int role = 0; role < TLS_ROLES; role++)
        SSL_CTX_free(contexts->role[role].context);
    pthread_mutex_destroy(&contexts->lock);
    free(contexts);
}

static bool stamps_changed(struct tls_stamp *stamps)
{
    bool changed = false;
    for (int file = 0; file < TLS_FILES; file++) {
        struct tls_stamp now;
        stamp_take(&now, settings[file]);
        changed |= !stamp_equal(&now, &stamps[file]);
        stamps[file] = now;
    }
    return changed;
}

SSL_CTX *tls_context_get(struct tls_contexts *contexts, enum tls_role role)
{
    pthread_mutex_lock(&contexts->lock);
    SSL_CTX **context = &contexts->role[role].context;
    bool changed = stamps_changed(contexts->role[role].stamps);
    if (changed || !*context) {
        SSL_CTX *made = context_make(role, contexts->role[role].stamps);
        if (made) {
            SSL_CTX_free(*context);
            *context = made;
        } else if (*context) {
            bmi_method_log(BMI_LOG_ERROR, NULL, "tls: the credentials read before stay in use");
        }
    }
    SSL_CTX *found = *context;
    if (found)
        SSL_CTX_up_ref(found);
    pthread_mutex_unlock(&contexts->lock);
    return found;
}
