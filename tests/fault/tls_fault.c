/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_fault.c - which peers the tls method refuses: the status of the client's message, and the
 * words in both sides' logs. Each case has a server and a client process with credentials of their
 * own.
 *
 * usage: tls_fault BMI-KEYS
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "raw_peer.h"
#include "tls_pair.h"

static const char refuses[] = "it refuses us: ";

static const struct refused {
    const char *name, *server, *client;
    const char *server_log, *client_log; /* NULL: nothing in particular */
    int status;                          /* 0: EACCES */
    const char *server_peers, *client_peers;
    const char *server_scheme, *client_scheme; /* NULL: tls */
} refused[] = {
    {"an expired client", "good", "expired", "its certificate has expired",
     .client_log = "it refuses us: our certificate has expired"},
    {"an expired server", "expired", "client", "it refuses us: our certificate has expired",
     .client_log = "its certificate has expired"},
    {"a client that is not yet valid", "good", "early", "its certificate is not yet valid",
     .client_log = "it refuses us: our certificate is of another name, or not yet valid"},
    {"a server that is not yet valid", "early", "client",
     "it refuses us: our certificate is of another name, or not yet valid",
     .client_log = "its certificate is not yet valid"},
    {"a client of an unknown authority", "good", "stranger",
     "its certificate is of an unknown authority",
     .client_log = "it refuses us: our certificate is of an authority that it does not know"},
    {"a server of an unknown authority", "stranger", "client",
     "it refuses us: our certificate is of an authority that it does not know",
     .client_log = "its certificate is of an unknown authority"},
    {"a server with another name", "other", "client",
     "it refuses us: our certificate is of another name, or not yet valid",
     .client_log = "its certificate is of another name"},
    {"a revoked client", "good", "gone", "its certificate is revoked",
     .client_log = "it refuses us: our certificate is revoked"},
    {"a revoked server", "gonehost", "client", "it refuses us: our certificate is revoked",
     .client_log = "its certificate is revoked"},
    {"a client whose name is not accepted", "good", "client", "no name that is accepted",
     "it refuses us: it accepts no name or key of ours", .server_peers = "admin* good"},
    {"a server whose name is not accepted", "good", "client",
     "it refuses us: it accepts no name or key of ours", "no name that is accepted",
     .client_peers = "storage*"},
    {"another key of the identity", "psk:one", "psk:two", "its key is another one",
     .client_log = refuses},
    {"a key of an unknown identity", "psk:one", "psk:three", "identity is unknown",
     .client_log = refuses},
    {"a key where certificates are wanted", "good", "psk:one", refuses,
     .client_log = "unknown authority"},
    {"a certificate where a key is wanted", "psk:one", "client", "it has no key of ours",
     .client_log = refuses},
    {"a plain client", "good", "client", "no TLS 1.3", "a TLS server", BMI_EPROTO,
     .client_scheme = "tcp"},
    {"a plain server", "good", "client", "a TLS client", "no TLS 1.3", BMI_EPROTO,
     .server_scheme = "tcp"},
};

static void refused_check(const struct refused *one)
{
    char url[BMI_MAX_ADDR_LEN + 8];
    int status = one->status ? one->status : BMI_EACCES;
    case_begin(one->name);
    server_start(one->server_scheme ? one->server_scheme : "tls", one->server, one->server_peers);
    snprintf(url, sizeof url, "%s%s", one->client_scheme ? one->client_scheme : "tls",
             strstr(pair.url, "://"));
    client_run(url, one->client, one->client_peers, 1);
    CHECK(pair.status == -status, "the client's status is %s; its log: %s",
          bmi_status_string(pair.status), log_text(CLIENT));
    if (one->server_log)
        until_logged(SERVER, one->server_log);
    if (one->client_log)
        until_logged(CLIENT, one->client_log);
    case_end();
    CHECK(pair.received == 0, "a message was received");
}

static void accepted_check(const char *name, const char *server_name, const char *client_name,
                           const char *server_identity, const char *client_identity)
{
    case_begin(name);
    server_start("tls", server_name, NULL);
    client_run(pair.url, client_name, NULL, 3);
    CHECK(pair.status == 0, "%s: %s", bmi_status_string(pair.status), log_text(CLIENT));
    CHECK(strcmp(pair.client_identity, client_identity) == 0, "the client is %s",
          pair.client_identity);
    CHECK(strcmp(pair.server_identity, server_identity) == 0, "the server is %s",
          pair.server_identity);
    case_end();
}

/* A process that connects to itself gets its own messages back, as from an attacker. */
static void reflected_check(void)
{
    case_begin("a key that comes back to its own process");
    server_start("tls", "psk:one", NULL);
    server_calls_itself();
    CHECK(pair.status == -BMI_EACCES, "%s", bmi_status_string(pair.status));
    until_logged(SERVER, "a key of this very process");
    until_logged(SERVER, refuses);
    case_end();
}

/* Given: a server, to which a client has connected. Then the list of revoked certificates is
 * replaced: the client is refused by the same process, another one is not. */
static void withdrawn_check(void)
{
    case_begin("an identity that is withdrawn while the server runs");
    server_start("tls", "good", NULL);
    client_run(pair.url, "leaver", NULL, 1);
    CHECK(pair.status == 0, "%s", bmi_status_string(pair.status));
    keys_run("keys revoke a leaver");
    client_run(pair.url, "leaver", NULL, 1);
    CHECK(pair.status == -BMI_EACCES, "%s", bmi_status_string(pair.status));
    until_logged(SERVER, "is revoked");
    client_run(pair.url, "client", NULL, 1);
    CHECK(pair.status == 0, "%s", bmi_status_string(pair.status));
    case_end();
}

/* More connections that send nothing than may be in their handshake at a time. */
static void silent_check(void)
{
    enum { SILENT = 40 };
    int silent[SILENT];
    case_begin("connections that begin no handshake");
    setenv("BMI_HANDSHAKES_MAX", "8", 1);
    setenv("BMI_HANDSHAKE_TIMEOUT_MS", "500", 1);
    server_start("tls", "good", NULL);
    unsetenv("BMI_HANDSHAKES_MAX");
    unsetenv("BMI_HANDSHAKE_TIMEOUT_MS");
    for (int i = 0; i < SILENT; i++)
        silent[i] = raw_connect_plain(pair.url, 0);
    client_run(pair.url, "client", NULL, 1);
    CHECK(pair.status == 0, "%s", bmi_status_string(pair.status));
    until_logged(SERVER, "does not complete its handshake");
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
    case_end();
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: tls_fault BMI-KEYS");
    test_begin("tls_fault", 30);
    keys_make(argv[1]);
    accepted_check("certificates", "good", "client", "good", "client");
    accepted_check("a shared key", "psk:one", "psk:one", "cluster", "cluster");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        refused_check(&refused[i]);
    reflected_check();
    withdrawn_check();
    silent_check();
    keys_remove();
    return test_passed();
}
