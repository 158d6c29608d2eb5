/* SPDX-License-Identifier: BSD-3-Clause
 *
 * context.c - one SSL_CTX for each role, with this process's credentials.
 *
 * Each handshake asks for its context. If a file or the name of one has changed since, a new
 * context is made; connections that stand keep the old one. If that fails (a file is half
 * written), the old context stays in use, and the failure is logged once for each change. `lock` is
 * held while files are read; the threads that wait for it are those of other handshakes, or make a
 * report, which has the times when the credentials expire.
 */
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tls.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* The files whose names are settings. */
enum tls_file { TLS_CERTIFICATE, TLS_KEY, TLS_AUTHORITIES, TLS_REVOCATIONS, TLS_PSK, TLS_FILES };

enum { WHY = 512 };

/* What tells one content of a file from another. */
struct tls_stamp {
    const char *name;
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed;
};

struct tls_contexts {
    struct bmi_instance *instance;
    pthread_mutex_t lock;
    struct {
        SSL_CTX *context; /* NULL: none was made */
        struct tls_stamp stamps[TLS_FILES];
    } role[TLS_ROLES];
    struct tls_stamp expiry_stamps[TLS_FILES];
    struct bmi_method_expiry expiry; /* of these files */
};

static const char *const settings[TLS_FILES] = {
    [TLS_CERTIFICATE] = "tls_certificate",
    [TLS_KEY] = "tls_key",
    [TLS_AUTHORITIES] = "tls_authorities",
    [TLS_REVOCATIONS] = "tls_revocations",
    [TLS_PSK] = "tls_psk",
};

/* ---- which files ---------------------------------------------------------------------------- */

static void stamp_take(struct bmi_instance *instance, struct tls_stamp *stamp, const char *setting)
{
    struct stat is;
    *stamp = (struct tls_stamp){.name = bmi_method_setting_text(instance, setting)};
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

/* As ssh: a key of ours must be ours alone; another user's, which a group of ours may share, must
 * not be everybody's. A file that is not there is left to its reader. */
int tls_file_check(const char *file, char *why, size_t size)
{
    struct stat is;
    if (stat(file, &is) < 0 || (is.st_mode & (is.st_uid == geteuid() ? 077 : 07)) == 0)
        return 0;
    snprintf(why, size, "file '%s' has mode %04o: others can read or write its keys (chmod 600)",
             file, (unsigned)is.st_mode & 07777);
    return -EACCES;
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
    /* Without NO_AUTO_CHAIN each handshake verifies our own certificate to find its authority, and
     * sends that, too; the peer decodes and keeps it, beside its own copy. */
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);
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

/* A context that is being made, and why it cannot be. */
struct loading {
    SSL_CTX *context;
    const struct tls_stamp *stamps;
    char *why;
    size_t size;
};

static int file_fails(const struct loading *loading, const char *what, enum tls_file file)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    snprintf(loading->why, loading->size, "%s, file '%s': %s", what, loading->stamps[file].name,
             reason ? reason : "not usable");
    ERR_clear_error();
    return -EACCES;
}

static int missing(const struct loading *loading, const char *what)
{
    snprintf(loading->why, loading->size, "%s (docs/security.md)", what);
    return -EACCES;
}

static int certificate_load(const struct loading *loading)
{
    const struct tls_stamp *stamps = loading->stamps;
    SSL_CTX *context = loading->context;
    if (!is_set(stamps, TLS_KEY))
        return missing(loading, "tls_certificate is set, tls_key is not");
    if (!is_set(stamps, TLS_AUTHORITIES))
        return missing(loading, "tls_certificate is set, tls_authorities is not");
    if (SSL_CTX_use_certificate_chain_file(context, stamps[TLS_CERTIFICATE].name) != 1)
        return file_fails(loading, "no certificate", TLS_CERTIFICATE);
    int error = tls_file_check(stamps[TLS_KEY].name, loading->why, loading->size);
    if (error)
        return error;
    if (SSL_CTX_use_PrivateKey_file(context, stamps[TLS_KEY].name, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(context) != 1)
        return file_fails(loading, "no key of the certificate", TLS_KEY);
    return 0;
}

static int authorities_load(const struct loading *loading)
{
    const struct tls_stamp *stamps = loading->stamps;
    X509_STORE *store = SSL_CTX_get_cert_store(loading->context);
    if (SSL_CTX_load_verify_file(loading->context, stamps[TLS_AUTHORITIES].name) != 1)
        return file_fails(loading, "no authorities", TLS_AUTHORITIES);
    if (!is_set(stamps, TLS_REVOCATIONS))
        return 0;
    if (X509_STORE_load_file(store, stamps[TLS_REVOCATIONS].name) != 1)
        return file_fails(loading, "no revocations", TLS_REVOCATIONS);
    X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
    return 0;
}

static int keys_load(const struct loading *loading)
{
    const char *name = loading->stamps[TLS_PSK].name;
    int error = tls_file_check(name, loading->why, loading->size);
    return error ? error : tls_psk_load(loading->context, name, loading->why, loading->size);
}

/* Tickets stand for certificates; a client that has keys connects by these. */
static int tickets_load(const struct loading *loading, enum tls_role role)
{
    const struct tls_stamp *stamps = loading->stamps;
    if (!is_set(stamps, TLS_CERTIFICATE) || (role == TLS_CLIENT && is_set(stamps, TLS_PSK)) ||
        tls_sessions_open(loading->context, role))
        return 0;
    return missing(loading, "no memory for tickets");
}

static int credentials_load(const struct loading *loading, enum tls_role role)
{
    const struct tls_stamp *stamps = loading->stamps;
    int error = 0;
    if (!is_set(stamps, TLS_CERTIFICATE) && !is_set(stamps, TLS_PSK))
        return missing(loading, "neither tls_certificate nor tls_psk is set");
    if (is_set(stamps, TLS_CERTIFICATE))
        error = certificate_load(loading);
    if (!error && is_set(stamps, TLS_AUTHORITIES))
        error = authorities_load(loading);
    if (!error && is_set(stamps, TLS_PSK))
        error = keys_load(loading);
    return error ? error : tickets_load(loading, role);
}

static SSL_CTX *context_make(enum tls_role role, const struct tls_stamp *stamps, char *why,
                             size_t size)
{
    ERR_clear_error();
    SSL_CTX *context = SSL_CTX_new(role == TLS_CLIENT ? TLS_client_method() : TLS_server_method());
    const struct loading loading = {context, stamps, why, size};
    if (!context || !rules_set(context, role)) {
        missing(&loading, "OpenSSL does not offer TLS 1.3 as it is needed");
        ERR_clear_error();
    } else if (credentials_load(&loading, role) == 0) {
        return context;
    }
    SSL_CTX_free(context);
    return NULL;
}

/* ---- the contexts --------------------------------------------------------------------------- */

struct tls_contexts *tls_contexts_make(struct bmi_instance *instance)
{
    struct tls_contexts *contexts = calloc(1, sizeof(*contexts));
    if (!contexts)
        return NULL;
    contexts->instance = instance;
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

static bool stamps_changed(struct bmi_instance *instance, struct tls_stamp *stamps)
{
    bool changed = false;
    for (int file = 0; file < TLS_FILES; file++) {
        struct tls_stamp now;
        stamp_take(instance, &now, settings[file]);
        changed |= !stamp_equal(&now, &stamps[file]);
        stamps[file] = now;
    }
    return changed;
}

SSL_CTX *tls_context_get(struct tls_contexts *contexts, enum tls_role role)
{
    pthread_mutex_lock(&contexts->lock);
    SSL_CTX **context = &contexts->role[role].context;
    bool changed = stamps_changed(contexts->instance, contexts->role[role].stamps);
    if (changed || !*context) {
        char why[WHY];
        SSL_CTX *made = context_make(role, contexts->role[role].stamps, why, sizeof(why));
        if (made) {
            SSL_CTX_free(*context);
            *context = made;
        } else {
            bmi_method_log(contexts->instance, BMI_LOG_ERROR, NULL, "tls: %s%s", why,
                           *context ? "; the credentials read before stay in use" : "");
        }
    }
    SSL_CTX *found = *context;
    if (found)
        SSL_CTX_up_ref(found);
    pthread_mutex_unlock(&contexts->lock);
    return found;
}

void tls_contexts_expiry(struct tls_contexts *contexts, struct bmi_method_expiry *expiry)
{
    pthread_mutex_lock(&contexts->lock);
    if (stamps_changed(contexts->instance, contexts->expiry_stamps))
        tls_expiry_read(contexts->instance, &contexts->expiry);
    *expiry = contexts->expiry;
    pthread_mutex_unlock(&contexts->lock);
}

int tls_context_check(struct bmi_instance *instance, char *why, size_t size)
{
    struct tls_stamp stamps[TLS_FILES] = {0};
    stamps_changed(instance, stamps);
    SSL_CTX *context = context_make(TLS_SERVER, stamps, why, size);
    SSL_CTX_free(context);
    return context ? 0 : -EACCES;
}
