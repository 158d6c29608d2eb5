/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi-keys.c - credentials for the tls method: an authority, certificates that it signs, a list of
 * those it has revoked, and files of shared keys. See bmi-keys.1.
 *
 * Keys are on the curve P-256. Files with secrets have the mode 0600, and no file is overwritten
 * but the list of revocations. The list is made anew from the serial numbers in a text file beside
 * it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bmi.h"
#include "line.h"

enum { PATH = 1024, KEY_BYTES = 32, SERIAL_BYTES = 16, DAY_S = 86400 };
enum { AUTHORITY_DAYS = 3650, DAYS = 397, LIST_DAYS = 30 };

static int days; /* --days; 0: the default */

static _Noreturn void fail(const char *format, ...)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "bmi-keys: ");
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s%s\n", reason ? ": " : "", reason ? reason : "");
    exit(1);
}

static void check(bool fine, const char *what)
{
    if (!fine)
        fail("%s", what);
}

/* ---- files ---------------------------------------------------------------------------------- */

static void path_make(char path[PATH], const char *folder, const char *name, const char *suffix)
{
    if (snprintf(path, PATH, "%s/%s%s", folder, name, suffix) >= PATH)
        fail("the name of the file is too long");
}

static FILE *file_create(const char *path, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file)
        fail("cannot create %s: %s", path, strerror(errno));
    return file;
}

static void file_close(FILE *file, const char *path)
{
    if (fclose(file) != 0)
        fail("cannot write %s: %s", path, strerror(errno));
    printf("%s\n", path);
}

static FILE *file_open(const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file)
        fail("cannot read %s: %s", path, strerror(errno));
    return file;
}

static X509 *certificate_read(const char *folder, const char *name)
{
    char path[PATH];
    path_make(path, folder, name, ".pem");
    FILE *file = file_open(path);
    X509 *certificate = PEM_read_X509(file, NULL, NULL, NULL);
    fclose(file);
    check(certificate != NULL, path);
    return certificate;
}

static EVP_PKEY *key_read(const char *folder, const char *name)
{
    char path[PATH];
    path_make(path, folder, name, ".key");
    FILE *file = file_open(path);
    EVP_PKEY *key = PEM_read_PrivateKey(file, NULL, NULL, NULL);
    fclose(file);
    check(key != NULL, path);
    return key;
}

static void key_write(const char *folder, const char *name, EVP_PKEY *key)
{
    char path[PATH];
    path_make(path, folder, name, ".key");
    FILE *file = file_create(path, 0600);
    check(PEM_write_PKCS8PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1, path);
    file_close(file, path);
}

static void certificate_write(const char *folder, const char *name, X509 *certificate)
{
    char path[PATH];
    path_make(path, folder, name, ".pem");
    FILE *file = file_create(path, 0644);
    check(PEM_write_X509(file, certificate) == 1, path);
    file_close(file, path);
}

/* ---- certificates --------------------------------------------------------------------------- */

static void extension_add(X509 *certificate, X509 *issuer, int kind, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, kind, value);
    check(extension && X509_add_ext(certificate, extension, -1) == 1, value);
    X509_EXTENSION_free(extension);
}

static X509_NAME *name_make(const char *name)
{
    X509_NAME *made = X509_NAME_new();
    check(made && X509_NAME_add_entry_by_txt(made, "CN", MBSTRING_UTF8, (const unsigned char *)name,
                                             -1, -1, 0) == 1,
          "no certificate can have this name");
    return made;
}

static X509 *certificate_make(const char *name, EVP_PKEY *key, const X509_NAME *issuer, int valid)
{
    X509 *certificate = X509_new();
    X509_NAME *subject = name_make(name);
    unsigned char serial[SERIAL_BYTES];
    check(RAND_bytes(serial, sizeof serial) == 1, "no random numbers");
    serial[0] &= 0x7f;
    BIGNUM *number = BN_bin2bn(serial, sizeof serial, NULL);
    long from = valid < 0 ? (long)valid * DAY_S - DAY_S : -300; /* clocks differ */
    check(certificate && number && X509_set_version(certificate, X509_VERSION_3) == 1 &&
              BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) &&
              X509_gmtime_adj(X509_getm_notBefore(certificate), from) &&
              X509_gmtime_adj(X509_getm_notAfter(certificate), (long)valid * DAY_S) &&
              X509_set_subject_name(certificate, subject) == 1 &&
              X509_set_issuer_name(certificate, issuer ? issuer : subject) == 1 &&
              X509_set_pubkey(certificate, key) == 1,
          "no certificate");
    BN_free(number);
    X509_NAME_free(subject);
    return certificate;
}

static void authority_command(int count, char **words)
{
    if (count != 1 && count != 2)
        fail("usage: bmi-keys authority FOLDER [NAME]");
    if (mkdir(words[0], 0700) < 0 && errno != EEXIST)
        fail("cannot make %s: %s", words[0], strerror(errno));
    EVP_PKEY *key = EVP_EC_gen("P-256");
    check(key != NULL, "no key");
    X509 *certificate = certificate_make(count == 2 ? words[1] : "BMI authority", key, NULL,
                                         days ? days : AUTHORITY_DAYS);
    extension_add(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE");
    extension_add(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign");
    extension_add(certificate, certificate, NID_subject_key_identifier, "hash");
    check(X509_sign(certificate, key, EVP_sha256()) > 0, "no signature");
    key_write(words[0], "authority", key);
    certificate_write(words[0], "authority", certificate);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

/* Appends a name as the extension wants it: "DNS:name". */
static void alternative_add(char *all, size_t size, const char *name)
{
    struct in6_addr address;
    size_t used = strlen(all);
    bool numeric =
        inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1;
    const char *kind = numeric ? "IP:" : strstr(name, "://") ? "URI:" : "DNS:";
    if (strpbrk(name, ", \t\n"))
        fail("'%s' is no name of a host", name);
    if (snprintf(all + used, size - used, "%s%s%s", used ? "," : "", kind, name) >=
        (int)(size - used))
        fail("there are too many names");
}

/* A certificate with its key, for the first name; the others are further names of the same host. */
static void signed_make(const char *usage, int count, char **words)
{
    char names[4096] = "";
    const char *folder = words[0], *name = words[1];
    if (strchr(name, '/'))
        fail("'%s' cannot be the name of a file", name);
    for (int i = 1; i < count; i++)
        alternative_add(names, sizeof names, words[i]);
    X509 *authority = certificate_read(folder, "authority");
    EVP_PKEY *signer = key_read(folder, "authority"), *key = EVP_EC_gen("P-256");
    check(key != NULL, "no key");
    X509 *certificate =
        certificate_make(name, key, X509_get_subject_name(authority), days ? days : DAYS);
    extension_add(certificate, authority, NID_basic_constraints, "critical,CA:FALSE");
    extension_add(certificate, authority, NID_key_usage, "critical,digitalSignature");
    extension_add(certificate, authority, NID_ext_key_usage, usage);
    extension_add(certificate, authority, NID_authority_key_identifier, "keyid");
    extension_add(certificate, authority, NID_subject_alt_name, names);
    check(X509_sign(certificate, signer, EVP_sha256()) > 0, "no signature");
    key_write(folder, name, key);
    certificate_write(folder, name, certificate);
    X509_free(certificate);
    X509_free(authority);
    EVP_PKEY_free(key);
    EVP_PKEY_free(signer);
}

/* A host's processes are servers and clients of each other. */
static void host_command(int count, char **words)
{
    if (count < 2)
        fail("usage: bmi-keys [--days N] host FOLDER NAME [NAME or ADDRESS...]");
    signed_make("serverAuth,clientAuth", count, words);
}

static void client_command(int count, char **words)
{
    if (count != 2)
        fail("usage: bmi-keys [--days N] client FOLDER NAME");
    signed_make("clientAuth", count, words);
}

/* ---- revocation ----------------------------------------------------------------------------- */

static void serial_note(const char *folder, const X509 *certificate)
{
    char path[PATH];
    path_make(path, folder, "revoked", ".txt");
    BIGNUM *number = ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), NULL);
    char *hex = number ? BN_bn2hex(number) : NULL;
    FILE *file = fopen(path, "ae");
    if (!hex || !file || fprintf(file, "%s\n", hex) < 0 || fclose(file) != 0)
        fail("cannot write %s: %s", path, strerror(errno));
    OPENSSL_free(hex);
    BN_free(number);
}

static void revoked_add(X509_CRL *list, const char *hex)
{
    BIGNUM *number = NULL;
    X509_REVOKED *revoked = X509_REVOKED_new();
    ASN1_TIME *now = X509_gmtime_adj(NULL, 0);
    check(BN_hex2bn(&number, hex) > 0, "a serial number is wrong");
    ASN1_INTEGER *serial = BN_to_ASN1_INTEGER(number, NULL);
    check(revoked && now && serial && X509_REVOKED_set_serialNumber(revoked, serial) == 1 &&
              X509_REVOKED_set_revocationDate(revoked, now) == 1 &&
              X509_CRL_add0_revoked(list, revoked) == 1,
          "no entry of the list");
    ASN1_INTEGER_free(serial);
    ASN1_TIME_free(now);
    BN_free(number);
}

static void serials_add(const char *folder, X509_CRL *list)
{
    char path[PATH], line[128];
    path_make(path, folder, "revoked", ".txt");
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        revoked_add(list, line);
    }
    if (file)
        fclose(file);
}

/* Writes the list beside the old one, and puts it in its place. */
static void list_write(const char *folder, X509_CRL *list)
{
    char path[PATH], fresh[PATH];
    path_make(path, folder, "revoked", ".pem");
    path_make(fresh, folder, "revoked", ".new");
    unlink(fresh);
    FILE *file = file_create(fresh, 0644);
    check(PEM_write_X509_CRL(file, list) == 1, fresh);
    if (fclose(file) != 0 || rename(fresh, path) < 0)
        fail("cannot write %s: %s", path, strerror(errno));
    printf("%s\n", path);
}

/* Authorities may have the same name; the list says by the key which one it is of. */
static void list_extension_add(X509_CRL *list, X509 *authority)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, authority, NULL, NULL, list, 0);
    X509_EXTENSION *extension =
        X509V3_EXT_conf_nid(NULL, &context, NID_authority_key_identifier, "keyid");
    check(extension && X509_CRL_add_ext(list, extension, -1) == 1, "no key of the authority");
    X509_EXTENSION_free(extension);
}

/* `revoke FOLDER [NAME...]`: without a name the list is only made anew, since it expires. */
static void revoke_command(int count, char **words)
{
    if (count < 1)
        fail("usage: bmi-keys [--days N] revoke FOLDER [NAME...]");
    X509 *authority = certificate_read(words[0], "authority");
    EVP_PKEY *signer = key_read(words[0], "authority");
    for (int i = 1; i < count; i++) {
        X509 *certificate = certificate_read(words[0], words[i]);
        serial_note(words[0], certificate);
        X509_free(certificate);
    }
    X509_CRL *list = X509_CRL_new();
    ASN1_TIME *now = X509_gmtime_adj(NULL, 0);
    ASN1_TIME *next = X509_gmtime_adj(NULL, (long)(days ? days : LIST_DAYS) * DAY_S);
    check(list && now && next && X509_CRL_set_version(list, X509_CRL_VERSION_2) == 1 &&
              X509_CRL_set_issuer_name(list, X509_get_subject_name(authority)) == 1 &&
              X509_CRL_set1_lastUpdate(list, now) == 1 && X509_CRL_set1_nextUpdate(list, next) == 1,
          "no list");
    list_extension_add(list, authority);
    serials_add(words[0], list);
    check(X509_CRL_sort(list) == 1 && X509_CRL_sign(list, signer, EVP_sha256()) > 0,
          "no signature");
    list_write(words[0], list);
    ASN1_TIME_free(now);
    ASN1_TIME_free(next);
    X509_CRL_free(list);
    X509_free(authority);
    EVP_PKEY_free(signer);
}

/* ---- shared keys ---------------------------------------------------------------------------- */

/* Appends a key to a file, which is made if it is not there. */
static void psk_command(int count, char **words)
{
    unsigned char key[KEY_BYTES];
    if (count != 2 || strpbrk(words[1], ": \t\n"))
        fail("usage: bmi-keys psk FILE IDENTITY, without a colon or a space in it");
    int fd = open(words[0], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "a");
    struct stat is;
    if (file && fstat(fd, &is) == 0 && (is.st_mode & 077) != 0)
        fail("%s has mode %04o: others can read its keys (chmod 600)", words[0],
             (unsigned)is.st_mode & 07777);
    check(RAND_bytes(key, sizeof key) == 1, "no random numbers");
    if (!file || fprintf(file, "%s:", words[1]) < 0)
        fail("cannot write %s: %s", words[0], strerror(errno));
    for (int i = 0; i < KEY_BYTES; i++)
        fprintf(file, "%02x", key[i]);
    fprintf(file, "\n");
    file_close(file, words[0]);
}

/* ---- main ----------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(int count, char **words);
    const char *help;
} commands[] = {
    {"authority", authority_command, "authority FOLDER [NAME]: an authority, in a new folder"},
    {"host", host_command, "host FOLDER NAME [NAME or ADDRESS...]: a host's certificate and key"},
    {"client", client_command, "client FOLDER NAME: the same for a client that serves nobody"},
    {"revoke", revoke_command, "revoke FOLDER [NAME...]: the list of revoked certificates"},
    {"psk", psk_command, "psk FILE IDENTITY: one more key that peers share"},
};

static void usage(FILE *to)
{
    fprintf(to, "usage: bmi-keys [--days N] COMMAND ...\n"
                "       bmi-keys --version | --help\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(to, "  %s\n", commands[i].help);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"days", required_argument, NULL, 'd'},
                                            {"version", no_argument, NULL, 'V'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    int option;
    while ((option = getopt_long(argc, argv, "+Vh", options, NULL)) != -1) {
        if (option == 'V')
            printf("bmi-keys (libbmi) %s\n", bmi_version());
        if (option == 'h')
            usage(stdout);
        if (option == 'V' || option == 'h')
            return output_end(0);
        days = option == 'd' ? atoi(optarg) : 0;
        if (days == 0) {
            usage(stderr);
            return 2;
        }
    }
    for (size_t i = 0; optind < argc && i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[optind], commands[i].name) == 0) {
            commands[i].run(argc - optind - 1, argv + optind + 1);
            return 0;
        }
    usage(stderr);
    return 2;
}
