/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_rotation_fault.c - credentials are replaced, by rename, while clients read and reconnect.
 *
 * Given a server and eight clients that share files of credentials, when the certificates are
 * replaced three times, and then the authority, then no operation fails, and both sides see the new
 * identities. When an identity is withdrawn meanwhile, its connection that stands goes on, and its
 * next one is refused.
 *
 * usage: tls_rotation_fault BMI-KEYS
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve.h"
#include "tls_keys.h"

enum { CLIENTS = 8, READS = 4, SIZE = 64 << 10, ASK_TAG = 5, ANSWER_TAG = 6, NAME = 256 };
enum { STOP, READ, RECONNECT }; /* orders to the one that leaves */

static struct report {
    atomic_bool stop;
    atomic_uint connections[CLIENTS];
    char server[CLIENTS][NAME]; /* the identity that a client saw last */
} * report;

static char url[BMI_MAX_ADDR_LEN];

/* ---- clients --------------------------------------------------------------------------------- */

static void files_set(const char *name)
{
    char text[512];
    const char *folder = keys_folder;
    snprintf(text, sizeof text,
             "tls_certificate=%s/live/%s.pem,tls_key=%s/live/%s.key,"
             "tls_authorities=%s/live/authority.pem,tls_revocations=%s/live/revoked.pem",
             folder, name, folder, name, folder, folder);
    must(BMI_set_info(0, BMI_SETTING, text), text);
}

static BMI_addr_t client_begin(const char *name, int channel)
{
    files_set(name);
    return client_open(channel);
}

static int client_end(void)
{
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* Returns the status. */
static int read_once(BMI_addr_t server, uint64_t number)
{
    static char bytes[SIZE];
    struct noted noted[2];
    note_receive(&noted[0], server, bytes, SIZE, ANSWER_TAG);
    note_sendunexpected(&noted[1], server, &number, sizeof number, ASK_TAG);
    CHECK(noted_wait(noted, 2, TEST_BOUND_MS), "a read does not end");
    CHECK(noted[0].status != 0 || pattern_wrong(bytes, SIZE, pattern_key(1, number), 0) < 0,
          "wrong bytes were read");
    return noted[0].status;
}

static int client(void *argument, int channel)
{
    unsigned self = *(const unsigned *)argument;
    struct bmi_peer_identity identity;
    BMI_addr_t server = client_begin("client", channel);
    for (uint64_t number = 0; !report->stop; report->connections[self]++) {
        for (int i = 0; i < READS; i++) {
            int status = read_once(server, ++number);
            CHECK(status == 0, "client %u, read %llu: %s", self, (unsigned long long)number,
                  status_name(status));
        }
        must(BMI_get_info(server, BMI_PEER_IDENTITY, &identity), "BMI_PEER_IDENTITY");
        snprintf(report->server[self], NAME, "%s", identity.name);
        must(BMI_set_info(server, BMI_TCP_CLOSE_SOCKET, NULL), "BMI_TCP_CLOSE_SOCKET");
    }
    tell_number(channel, 0);
    return client_end();
}

static int leaver(void *argument, int channel)
{
    (void)argument;
    BMI_addr_t server = client_begin("leaver", channel);
    for (int64_t order = hear_number(channel); order != STOP; order = hear_number(channel)) {
        if (order == RECONNECT)
            must(BMI_set_info(server, BMI_TCP_CLOSE_SOCKET, NULL), "BMI_TCP_CLOSE_SOCKET");
        tell_number(channel, read_once(server, 1));
    }
    return client_end();
}

/* ---- the server ------------------------------------------------------------------------------ */

struct answer {
    struct operation operation; /* first */
    char bytes[SIZE];
};

static struct child clients[CLIENTS];
static unsigned answers, failed;
static char client_identity[NAME]; /* of the last request */

static void answer_done(struct operation *operation, bmi_error_code_t status, bmi_size_t size)
{
    (void)size;
    failed += status != 0;
    answers++;
    free(operation);
}

static void asked(const struct BMI_unexpected_info *info)
{
    struct bmi_peer_identity identity;
    struct answer *answer = malloc(sizeof *answer);
    uint64_t number;
    bmi_op_id_t id;
    CHECK(answer != NULL && info->size == sizeof number, "a request");
    memcpy(&number, info->buffer, sizeof number);
    if (BMI_get_info(info->addr, BMI_PEER_IDENTITY, &identity) == 0)
        snprintf(client_identity, NAME, "%s", identity.name);
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
    answer->operation.done = answer_done;
    pattern_fill(answer->bytes, SIZE, pattern_key(1, number), 0);
    int result = BMI_post_send(&id, info->addr, answer->bytes, SIZE, BMI_EXT_ALLOC, ANSWER_TAG,
                               answer, test_context, NULL);
    operation_posted(&answer->operation, result, SIZE);
}

/* Serves until each client has made two more connections after the present one. */
static void connections_wait(void)
{
    unsigned before[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        before[i] = report->connections[i];
    for (int i = 0; i < CLIENTS; i++)
        while (report->connections[i] < before[i] + 3) {
            operations_step(10);
            CHECK(!heard(clients[i].channel, 0), "client %d has ended", i);
        }
}

static int leaver_read(const struct child *child, int64_t order)
{
    tell_number(child->channel, order);
    while (!heard(child->channel, 0))
        operations_step(10);
    return (int)hear_number(child->channel);
}

/* Puts files in place of those in use. */
static void replace(const char *from, const char *name)
{
    keys_run("for f in pem key; do cp %s.$f live/new && mv live/new live/%s.$f; done", from, name);
}

static void identities_check(const char *server, const char *one)
{
    connections_wait();
    for (int i = 0; i < CLIENTS; i++)
        CHECK(strcmp(report->server[i], server) == 0, "client %d sees %s, not %s", i,
              report->server[i], server);
    CHECK(strcmp(client_identity, one) == 0, "the server sees %s, not %s", client_identity, one);
    printf("  the server is %s, clients are %s\n", server, one);
}

static void certificates_replace(const char *authority, int version)
{
    char from[64], host[32], one[32];
    snprintf(host, sizeof host, "host%d", version);
    snprintf(one, sizeof one, "client%d", version);
    keys_run("keys host %s %s 127.0.0.1 && keys client %s %s", authority, host, authority, one);
    snprintf(from, sizeof from, "%s/%s", authority, host);
    replace(from, "host");
    snprintf(from, sizeof from, "%s/%s", authority, one);
    replace(from, "client");
    identities_check(host, one);
}

static void authorities_replace(const char *which)
{
    keys_run("for f in authority revoked; do cat %s/$f.pem >live/new && mv live/new live/$f.pem; "
             "done",
             which);
    connections_wait();
}

static void withdraw(const struct child *child)
{
    CHECK(leaver_read(child, READ) == 0, "before it is withdrawn");
    keys_run("keys revoke a leaver && cp a/revoked.pem live/new && mv live/new live/revoked.pem");
    CHECK(leaver_read(child, READ) == 0, "over the connection that stands");
    int status = leaver_read(child, RECONNECT);
    CHECK(status == -BMI_EACCES, "the withdrawn identity: %s", status_name(status));
    printf("  the withdrawn identity is refused\n");
    connections_wait();
}

int main(int argc, char **argv)
{
    static unsigned selves[CLIENTS];
    CHECK(argc == 2, "usage: tls_rotation_fault BMI-KEYS");
    test_begin("tls_rotation_fault", 40);
    report = shared_memory(sizeof *report);
    keys_make(argv[1]);
    keys_run("keys revoke b && mkdir live && cp a/authority.pem a/revoked.pem live");
    replace("a/good", "host");
    replace("a/client", "client");
    replace("a/leaver", "leaver");
    struct child leaving = child_start("leaver", leaver, NULL);
    for (unsigned i = 0; i < CLIENTS; i++) {
        selves[i] = i;
        clients[i] = child_start("client", client, &selves[i]);
    }
    files_set("host");
    serve("tls://127.0.0.1:0", 0, url);
    operations_open();
    test_unexpected = asked;
    tell(leaving.channel, url, sizeof url);
    for (int i = 0; i < CLIENTS; i++)
        tell(clients[i].channel, url, sizeof url);
    identities_check("good", "client");
    for (int version = 1; version <= 3; version++)
        certificates_replace("a", version);
    withdraw(&leaving);
    tell_number(leaving.channel, STOP);
    child_end(&leaving);
    authorities_replace("[ab]");
    certificates_replace("b", 4);
    authorities_replace("b");
    report->stop = true;
    for (int i = 0; i < CLIENTS; i++) {
        while (!heard(clients[i].channel, 0))
            operations_step(10);
        child_end(&clients[i]);
    }
    printf("  %u reads, none failed\n", answers);
    CHECK(failed == 0, "%u answers failed", failed);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    keys_remove();
    return test_passed();
}
