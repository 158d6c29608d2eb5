/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_trust_fault.c - what a tls peer's identity is good for after the first handshake: tickets and
 * their end, claimed listen addresses, credentials that change while a process runs. Processes with
 * credentials of their own obey the test: each order is answered with what its process sees.
 *
 * usage: tls_trust_fault BMI-KEYS
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tls_keys.h"

enum action { WHO, SET, START, SEND, RECEIVE, CLOSE, LOOK, END };

struct order {
    enum action action;
    char text[512];
};

struct answer {
    int status;
    char url[512]; /* where it listens */
    int identity_status;
    struct bmi_peer_identity identity; /* of the peer of the order */
    uint64_t dialled_tls, dialled_tcp, handshakes, resumed;
    char log[4096]; /* since the order before */
};

/* ---- a process that obeys ------------------------------------------------------------------- */

struct process {
    bmi_context_id context;
    pthread_mutex_t lock;
    char log[4096]; /* lock */
};

static void note(void *argument, enum bmi_log_level level, const char *text)
{
    struct process *process = argument;
    (void)level;
    pthread_mutex_lock(&process->lock);
    size_t used = strlen(process->log);
    snprintf(process->log + used, sizeof process->log - used, "%s\n", text);
    pthread_mutex_unlock(&process->lock);
}

static int start(struct process *process, const char *listen)
{
    bool serves = listen[0] != '\0';
    int status = serves ? BMI_initialize("bmi_tls,bmi_tcp", listen, BMI_INIT_SERVER)
                        : BMI_initialize(NULL, NULL, 0);
    return status < 0 ? status : BMI_open_context(&process->context);
}

static void identity_take(BMI_addr_t addr, struct answer *answer)
{
    answer->identity_status = BMI_get_info(addr, BMI_PEER_IDENTITY, &answer->identity);
}

static int send_to(struct process *process, const char *url, struct answer *answer)
{
    BMI_addr_t addr;
    bmi_op_id_t op;
    bmi_error_code_t error = 0;
    int out = 0, result = BMI_addr_lookup(&addr, url);
    if (result == 0)
        result = BMI_post_sendunexpected(&op, addr, "?", 1, BMI_EXT_ALLOC, 1, NULL,
                                         process->context, NULL);
    while (result == 0 && out == 0)
        must(BMI_test(op, &out, &error, NULL, NULL, 1000, process->context), "BMI_test");
    identity_take(addr, answer);
    return result < 0 ? result : error;
}

static int receive(struct answer *answer)
{
    struct BMI_unexpected_info info;
    int count = 0;
    must(BMI_testunexpected(1, &count, &info, TEST_BOUND_MS), "BMI_testunexpected");
    CHECK(count == 1, "a message came");
    identity_take(info.addr, answer);
    return BMI_unexpected_free(info.addr, info.buffer);
}

/* Closes the connection, and waits for its end. */
static int close_to(const char *url)
{
    BMI_addr_t addr;
    struct bmi_peer_identity identity;
    int none = 0;
    must(BMI_addr_lookup(&addr, url), url);
    must(BMI_set_info(addr, BMI_TCP_CLOSE_SOCKET, NULL), "BMI_TCP_CLOSE_SOCKET");
    while (BMI_get_info(addr, BMI_PEER_IDENTITY, &identity) != -BMI_ENXIO) {
        struct BMI_unexpected_info info;
        must(BMI_testunexpected(1, &none, &info, 1), "BMI_testunexpected");
        CHECK(none == 0, "no message comes");
    }
    return 0;
}

static void look(struct process *process, struct answer *answer)
{
    struct bmi_method_statistics tls = {.name = "bmi_tls"}, tcp = {.name = "bmi_tcp"};
    BMI_get_info(0, BMI_GET_LISTEN_ADDR, answer->url);
    if (BMI_get_info(0, BMI_GET_METHOD_STATISTICS, &tls) == 0) {
        answer->dialled_tls = tls.links_opened;
        answer->handshakes = tls.handshakes;
        answer->resumed = tls.handshakes_resumed;
    }
    if (BMI_get_info(0, BMI_GET_METHOD_STATISTICS, &tcp) == 0)
        answer->dialled_tcp = tcp.links_opened;
    pthread_mutex_lock(&process->lock);
    memcpy(answer->log, process->log, sizeof answer->log);
    process->log[0] = '\0';
    pthread_mutex_unlock(&process->lock);
}

static int obey(struct process *process, struct order *order, struct answer *answer)
{
    switch (order->action) {
    case WHO:
        credentials_set(order->text, NULL);
        return 0;
    case SET:
        return BMI_set_info(0, BMI_SETTING, order->text);
    case START:
        return start(process, order->text);
    case SEND:
        return send_to(process, order->text, answer);
    case RECEIVE:
        return receive(answer);
    case CLOSE:
        return close_to(order->text);
    default:
        return 0;
    }
}

/* A thread of the library makes progress while the process waits for orders. */
static int process_run(void *argument, int channel)
{
    static struct process process = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct bmi_log_callback callback = {note, &process, BMI_LOG_INFO};
    char background[] = "progress=background";
    (void)argument;
    must(BMI_set_info(0, BMI_LOG_CALLBACK, &callback), "BMI_LOG_CALLBACK");
    must(BMI_set_info(0, BMI_SETTING, background), background);
    for (;;) {
        static struct order order;
        static struct answer answer;
        memset(&answer, 0, sizeof answer);
        hear(channel, &order, sizeof order);
        answer.status = obey(&process, &order, &answer);
        look(&process, &answer);
        tell(channel, &answer, sizeof answer);
        if (order.action == END)
            break;
    }
    BMI_finalize();
    return 0;
}

/* ---- orders --------------------------------------------------------------------------------- */

static struct answer order(struct child *child, enum action action, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static struct answer order(struct child *child, enum action action, const char *format, ...)
{
    static struct order order;
    struct answer answer;
    va_list arguments;
    va_start(arguments, format);
    order.action = action;
    vsnprintf(order.text, sizeof order.text, format, arguments);
    va_end(arguments);
    tell(child->channel, &order, sizeof order);
    hear(child->channel, &answer, sizeof answer);
    return answer;
}

static struct child process_start(const char *who, const char *listen)
{
    struct child child = child_start(who, process_run, NULL);
    order(&child, WHO, "%s", who);
    struct answer answer = order(&child, START, "%s", listen);
    CHECK(answer.status == 0, "%s starts: %s", who, answer.log);
    return child;
}

static void process_end(struct child *child)
{
    order(child, END, "%s", "");
    child_end(child);
}

/* The first address of this scheme where a process listens. */
static const char *url_of(struct child *child, const char *scheme)
{
    static char copies[4][512];
    static unsigned next;
    struct answer answer = order(child, LOOK, "%s", "");
    char *copy = copies[next++ % 4];
    const char *at = strstr(answer.url, scheme);
    CHECK(at != NULL, "%s is in %s", scheme, answer.url);
    snprintf(copy, sizeof copies[0], "%.*s", (int)strcspn(at, ","), at);
    return copy;
}

/* ---- tickets -------------------------------------------------------------------------------- */

/* The client connects anew. `resumed`: whether by a ticket. */
static void connect_anew(struct child *server, struct child *client, const char *url,
                         const char *name, bool resumed)
{
    struct answer before = order(client, LOOK, "%s", ""), there;
    if (before.handshakes > 0)
        order(client, CLOSE, "%s", url);
    struct answer here = order(client, SEND, "%s", url);
    CHECK(here.status == 0, "%s: %s", bmi_status_string(here.status), here.log);
    there = order(server, RECEIVE, "%s", "");
    CHECK(here.handshakes == before.handshakes + 1, "one handshake more");
    CHECK(here.resumed == before.resumed + resumed, "resumed: %d is expected; %s", resumed,
          here.log);
    CHECK(strcmp(here.identity.name, "server") == 0, "the server is %s", here.identity.name);
    CHECK(strcmp(there.identity.name, name) == 0, "the client is %s", there.identity.name);
    CHECK((strstr(there.identity.protection, "resumed") != NULL) == resumed, "%s",
          there.identity.protection);
    CHECK(there.identity.expires_s > time(NULL), "when the client's certificate ends");
}

static void refused(struct child *client, const char *url, const char *words)
{
    order(client, CLOSE, "%s", url);
    struct answer here = order(client, SEND, "%s", url);
    CHECK(here.status == -BMI_EACCES, "%s: %s", bmi_status_string(here.status), here.log);
    CHECK(strstr(here.log, words) != NULL, "\"%s\": %s", words, here.log);
}

static void tickets_check(void)
{
    printf("  a ticket gives the identity of its handshake, and ends with new files\n");
    struct child server = process_start("server", "tls://127.0.0.1:0");
    struct child client = process_start("client", "");
    const char *url = url_of(&server, "tls");
    connect_anew(&server, &client, url, "client", false);
    connect_anew(&server, &client, url, "client", true);
    connect_anew(&server, &client, url, "client", true);
    keys_run("cp a/server.pem new && mv new a/server.pem");
    connect_anew(&server, &client, url, "client", false);
    connect_anew(&server, &client, url, "client", true);
    printf("  other credentials, by BMI_set_info\n");
    order(&client, WHO, "another");
    connect_anew(&server, &client, url, "another", false);
    connect_anew(&server, &client, url, "another", true);
    printf("  no tickets, by a setting of either side\n");
    order(&server, SET, "tls_session_s=0");
    connect_anew(&server, &client, url, "another", false);
    connect_anew(&server, &client, url, "another", false);
    order(&server, SET, "tls_session_s=3600");
    connect_anew(&server, &client, url, "another", false);
    order(&client, SET, "tls_session_s=0");
    connect_anew(&server, &client, url, "another", false);
    process_end(&client);
    process_end(&server);
}

static void withdrawn_check(void)
{
    printf("  an identity that is withdrawn is refused, with a ticket, too\n");
    struct child server = process_start("server", "tls://127.0.0.1:0");
    struct child client = process_start("leaver", "");
    const char *url = url_of(&server, "tls");
    connect_anew(&server, &client, url, "leaver", false);
    connect_anew(&server, &client, url, "leaver", true);
    order(&server, SET, "tls_peers=admin*");
    refused(&client, url, "it accepts no name or key of ours");
    order(&server, SET, "tls_peers=");
    connect_anew(&server, &client, url, "leaver", false);
    keys_run("keys revoke a leaver");
    refused(&client, url, "our certificate is revoked");
    process_end(&client);
    process_end(&server);
}

/* ---- refusals ------------------------------------------------------------------------------- */

static void keyless_check(void)
{
    printf("  a client that knows the authority, and has no certificate\n");
    struct child server = process_start("server", "tls://127.0.0.1:0");
    struct child client = process_start("psk:one", "");
    order(&client, SET, "tls_authorities=%s/a/authority.pem", keys_folder);
    struct answer here = order(&client, SEND, "%s", url_of(&server, "tls"));
    CHECK(here.status == -BMI_EACCES && strstr(here.log, "it wants a certificate, and we have"),
          "%s", here.log);
    struct answer there = order(&server, LOOK, "%s", "");
    CHECK(strstr(there.log, "it has no certificate"), "%s", there.log);
    process_end(&client);
    process_end(&server);
}

static void files_check(void)
{
    printf("  a file of keys that others can read\n");
    struct child server = process_start("server", "tls://127.0.0.1:0");
    const char *url = url_of(&server, "tls");
    keys_run("cd a && cp client.key open.key && cp client.pem open.pem && chmod 644 open.key");
    struct child client = process_start("open", "");
    struct answer here = order(&client, SEND, "%s", url);
    CHECK(here.status == -BMI_EACCES && strstr(here.log, "open.key' has mode 0644"), "%s",
          here.log);
    keys_run("chmod 600 a/open.key");
    here = order(&client, SEND, "%s", url);
    CHECK(here.status == 0, "%s", here.log);
    process_end(&client);
    keys_run("chmod 640 one");
    client = process_start("psk:one", "");
    here = order(&client, SEND, "%s", url);
    CHECK(here.status == -BMI_EACCES && strstr(here.log, "one' has mode 0640"), "%s", here.log);
    process_end(&client);
    process_end(&server);
}

/* ---- claimed listen addresses --------------------------------------------------------------- */

static const char everywhere[] = "tls://127.0.0.1:0,tcp://127.0.0.1:0";

/* `from` has connected to `to` over this scheme, and claims where it listens. */
static void introduce(struct child *from, struct child *to, const char *scheme)
{
    struct answer answer = order(from, SEND, "%s", url_of(to, scheme));
    CHECK(answer.status == 0, "%s", answer.log);
    order(to, RECEIVE, "%s", "");
}

static void claim_check(void)
{
    printf("  a claimed address that the certificate has\n");
    struct child server = process_start("server", everywhere);
    struct child peer = process_start("peer", everywhere);
    introduce(&peer, &server, "tls");
    const char *url = url_of(&peer, "tls");
    struct answer answer = order(&server, SEND, "%s", url);
    CHECK(answer.status == 0 && answer.dialled_tls == 0, "%s", answer.log);
    CHECK(strcmp(answer.identity.name, "peer") == 0, "%s", answer.identity.name);
    order(&peer, RECEIVE, "%s", "");
    order(&server, CLOSE, "%s", url);
    answer = order(&server, SEND, "%s", url);
    CHECK(answer.status == 0 && answer.dialled_tls == 1, "it dials, once the link has ended: %s",
          answer.log);
    order(&peer, RECEIVE, "%s", "");
    process_end(&peer);
    process_end(&server);
}

static void lie_check(void)
{
    printf("  a claimed address that the certificate lacks\n");
    struct child server = process_start("server", everywhere);
    struct child liar = process_start("liar", everywhere);
    introduce(&liar, &server, "tls");
    struct answer answer = order(&server, SEND, "%s", url_of(&liar, "tls"));
    CHECK(answer.status == -BMI_EACCES, "%s: %s", bmi_status_string(answer.status), answer.log);
    process_end(&liar);
    process_end(&server);
}

/* A link of one scheme never stands in for the other, although both ends are the same processes,
 * and prove that to each other. */
static void downgrade_check(const char *has, const char *wants, int status)
{
    printf("  a %s address, where there is a %s link\n", wants, has);
    struct child server = process_start("server", everywhere);
    struct child peer = process_start("peer", everywhere);
    introduce(&peer, &server, has);
    struct answer answer = order(&server, SEND, "%s", url_of(&peer, wants));
    CHECK(answer.status == 0, "%s", answer.log);
    CHECK(answer.identity_status == status, "%s", bmi_status_string(answer.identity_status));
    CHECK(answer.dialled_tls + answer.dialled_tcp == 1, "it dials");
    answer = order(&peer, RECEIVE, "%s", "");
    CHECK(answer.identity_status == status, "%s", bmi_status_string(answer.identity_status));
    process_end(&peer);
    process_end(&server);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: tls_trust_fault BMI-KEYS");
    test_begin("tls_trust_fault", 120);
    keys_make(argv[1]);
    keys_run("keys host a server 127.0.0.1 && keys host a peer 127.0.0.1");
    keys_run("keys client a another && keys client a liar");
    tickets_check();
    withdrawn_check();
    keyless_check();
    files_check();
    claim_check();
    lie_check();
    downgrade_check("tcp", "tls", 0);
    downgrade_check("tls", "tcp", -BMI_EOPNOTSUPP);
    keys_remove();
    return test_passed();
}
