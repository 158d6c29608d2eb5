/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_keys.c - credentials for the tests of the tls method: see tls_keys.h.
 */
#include "tls_keys.h"

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DAY_S = 86400, PATH = 128 };

char keys_folder[64];
static const char *keys_tool;

void keys_run(const char *format, ...)
{
    char text[512], command[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(command, sizeof command, "cd %s && keys() { %s \"$@\" >>log; } && %s", keys_folder,
             keys_tool, text);
    CHECK(system(command) == 0, "%s", command);
}

static FILE *file_open(const char *name, const char *mode)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s/%s", keys_folder, name);
    FILE *file = fopen(path, mode);
    CHECK(file != NULL, "cannot open %s", path);
    return file;
}

void keys_validity_set(const char *who, long from_s, long to_s)
{
    char name[32];
    snprintf(name, sizeof name, "a/%s.pem", who);
    FILE *file = file_open(name, "r"), *authority = file_open("a/authority.key", "r");
    X509 *certificate = PEM_read_X509(file, NULL, NULL, NULL);
    EVP_PKEY *key = PEM_read_PrivateKey(authority, NULL, NULL, NULL);
    fclose(file);
    fclose(authority);
    CHECK(certificate && key && X509_gmtime_adj(X509_getm_notBefore(certificate), from_s) &&
              X509_gmtime_adj(X509_getm_notAfter(certificate), to_s) &&
              X509_sign(certificate, key, EVP_sha256()) > 0,
          "%s is signed again", name);
    file = file_open(name, "w");
    CHECK(PEM_write_X509(file, certificate) == 1, "%s", name);
    fclose(file);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

void keys_make(const char *tool)
{
    keys_tool = tool;
    strcpy(keys_folder, "/tmp/tls_fault.XXXXXX");
    CHECK(mkdtemp(keys_folder) != NULL, "mkdtemp");
    keys_run("keys authority a && keys authority b");
    keys_run("keys host a good 127.0.0.1 && keys host a other 127.0.0.9");
    keys_run("keys --days -1 host a expired 127.0.0.1 && keys host a early 127.0.0.1");
    keys_run("keys client a client && keys client a leaver && keys host b stranger 127.0.0.1");
    keys_run("keys client a gone && keys host a gonehost 127.0.0.1");
    keys_run("keys revoke a gone gonehost");
    keys_run("keys psk one cluster && keys psk two cluster && keys psk three elsewhere");
    keys_validity_set("early", DAY_S, 2 * DAY_S);
}

void keys_remove(void)
{
    keys_run("rm -rf %s", keys_folder);
}

static void setting_set(const char *name, const char *file)
{
    char text[256];
    snprintf(text, sizeof text, "%s=%s%s%s", name, *file ? keys_folder : "", *file ? "/" : "",
             file);
    must(BMI_set_info(0, BMI_SETTING, text), text);
}

void credentials_set(const char *who, const char *peers)
{
    char name[64], text[PATH];
    if (strncmp(who, "psk:", 4) == 0) {
        setting_set("tls_psk", who + 4);
        return;
    }
    const char *authority = strcmp(who, "stranger") == 0 ? "b" : "a";
    snprintf(name, sizeof name, "%s/%s.pem", authority, who);
    setting_set("tls_certificate", name);
    snprintf(name, sizeof name, "%s/%s.key", authority, who);
    setting_set("tls_key", name);
    setting_set("tls_authorities", "a/authority.pem");
    setting_set("tls_revocations", "a/revoked.pem");
    snprintf(text, sizeof text, "tls_peers=%s", peers ? peers : "");
    must(BMI_set_info(0, BMI_SETTING, text), text);
}
