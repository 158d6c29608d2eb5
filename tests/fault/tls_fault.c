/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_fault.c - which peers the tls method refuses, with the error of both sides; and the power of
 * a process between two peers. Each case has a server and a client process with credentials of
 * their own, made by bmi-keys in a folder of the test.
 *
 * usage: tls_fault BMI-KEYS
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/stress/support.h"

enum { LOG = 16384, MARKS = 64 };

/* What the processes of a case share. */
static struct shared {
    char url[BMI_MAX_ADDR_LEN];
    atomic_bool ready, stop;
    bool waits;          /* the client stays until the server has its messages */
    atomic_int received; /* unexpected messages of the server */
    char identity[256];  /* of the last one's peer, as the server sees it */
    char client_identity[256];
    int status; /* of the client's message */
    char logs[2][LOG];
    atomic_int logged[2];
    atomic_int carried; /* by the proxy */
    atomic_bool plain;  /* the proxy saw the marker */
} * shared;

static char folder[64];
static const char *tool;

static const char marker[] = "a marker that nobody else may read, sixty-four bytes of plain text.";

static void note(void *argument, enum bmi_log_level level, const char *text)
{
    int side = *(int *)argument;
    (void)level;
    int size = (int)strlen(text) + 1, at = atomic_fetch_add(&shared->logged[side], size);
    if (at + size < LOG) {
        memcpy(shared->logs[side] + at, text, (size_t)size - 1);
        shared->logs[side][at + size - 1] = '\n';
    }
}

static bool log_has(int side, const char *text)
{
    return strstr(shared->logs[side], text) != NULL;
}

/* ---- credentials ---------------------------------------------------------------------------- */

static void run(const char *format, ...)
{
    char command[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    CHECK(system(command) == 0, "%s", command);
}

static void keys_make(void)
{
    strcpy(folder, "/tmp/tls_fault.XXXXXX");
    CHECK(mkdtemp(folder) != NULL, "mkdtemp");
    run("cd %s && exec >log && %s authority a && %s authority b", folder, tool, tool);
    run("cd %s && exec >log && %s host a good 127.0.0.1 && %s host a other 127.0.0.9", folder, tool,
        tool);
    run("cd %s && exec >log && %s --days -1 host a expired 127.0.0.1", folder, tool);
    run("cd %s && exec >log && %s client a client && %s client a gone", folder, tool, tool);
    run("cd %s && exec >log && %s client a leaver", folder, tool);
    run("cd %s && exec >log && %s host b stranger 127.0.0.1 && %s revoke a gone", folder, tool,
        tool);
    run("cd %s && exec >log && %s psk one cluster && %s psk two cluster && %s psk three elsewhere",
        folder, tool, tool, tool);
}

static void setting_set(const char *name, const char *file)
{
    char text[256];
    snprintf(text, sizeof text, "%s=%s%s%s", name, *file ? folder : "", *file ? "/" : "", file);
    must(BMI_set_info(0, BMI_SETTING, text), text);
}

/* "good" is a/good.pem with a/good.key; "psk:one" a file of keys. */
static void credentials_set(const char *who, const char *peers)
{
    char name[64], text[128];
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

/* ---- the two processes ---------------------------------------------------------------------- */

static int side_of[2] = {0, 1};

static void side_begin(int side)
{
    struct bmi_log_callback callback = {note, &side_of[side], BMI_LOG_INFO};
    must(BMI_set_info(0, BMI_LOG_CALLBACK, &callback), "BMI_LOG_CALLBACK");
}

static void server_step(void)
{
    struct BMI_unexpected_info info;
    struct bmi_peer_identity identity;
    int count = 0;
    must(BMI_testunexpected(1, &count, &info, 10), "BMI_testunexpected");
    if (count == 0)
        return;
    if (BMI_get_info(info.addr, BMI_PEER_IDENTITY, &identity) == 0)
        memcpy(shared->identity, identity.name, sizeof identity.name);
    must(BMI_unexpected_free(info.addr, info.buffer), "BMI_unexpected_free");
    shared->received++;
}

static pid_t server_start(const char *scheme, const char *who, const char *peers)
{
    char listen[64];
    pid_t child = fork();
    if (child != 0) {
        while (!shared->ready && waitpid(child, NULL, WNOHANG) == 0)
            usleep(1000);
        CHECK(shared->ready, "the server started");
        return child;
    }
    test_deadline();
    side_begin(0);
    credentials_set(who, peers);
    snprintf(listen, sizeof listen, "%s://127.0.0.1:0", scheme);
    serve(listen, 0, shared->url);
    shared->ready = true;
    while (!shared->stop)
        server_step();
    BMI_finalize();
    _exit(0);
}

/* Sends so many messages with the marker. Returns the status of the last one. */
static int messages_send(const char *url, int count)
{
    bmi_context_id context;
    BMI_addr_t server;
    struct bmi_peer_identity identity;
    bmi_op_id_t op;
    int status = 0;
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    must(BMI_open_context(&context), "BMI_open_context");
    must(BMI_addr_lookup(&server, url), "BMI_addr_lookup");
    for (int i = 0; i < count && status == 0; i++) {
        int out = 0;
        bmi_error_code_t error = 0;
        int result = BMI_post_sendunexpected(&op, server, marker, sizeof marker, BMI_EXT_ALLOC, 1,
                                             NULL, context, NULL);
        while (result == 0 && out == 0)
            must(BMI_test(op, &out, &error, NULL, NULL, 1000, context), "BMI_test");
        status = result < 0 ? result : error;
    }
    for (int i = 0; shared->waits && i < TEST_BOUND_MS && shared->received < count; i++)
        usleep(1000);
    if (BMI_get_info(server, BMI_PEER_IDENTITY, &identity) == 0)
        memcpy(shared->client_identity, identity.name, sizeof identity.name);
    BMI_finalize();
    return status;
}

static void client_run(const char *url, const char *who, const char *peers, int count)
{
    pid_t child = fork();
    if (child == 0) {
        test_deadline();
        side_begin(1);
        credentials_set(who, peers);
        shared->status = messages_send(url, count);
        _exit(0);
    }
    int ended;
    waitpid(child, &ended, 0);
    CHECK(WIFEXITED(ended) && WEXITSTATUS(ended) == 0, "the client ended");
}

static void case_begin(const char *name)
{
    printf("  %s\n", name);
    fflush(stdout);
    memset(shared, 0, sizeof *shared);
}

static void case_end(pid_t server)
{
    int ended;
    shared->stop = true;
    waitpid(server, &ended, 0);
    CHECK(WIFEXITED(ended) && WEXITSTATUS(ended) == 0, "the server ended");
}

static void until_logged(int side, const char *text)
{
    for (int i = 0; i < TEST_BOUND_MS && !log_has(side, text); i++)
        usleep(1000);
    CHECK(log_has(side, text), "side %d logs \"%s\"; it logged: %s", side, text,
          shared->logs[side]);
}

/* ---- refused peers -------------------------------------------------------------------------- */

static const struct refused {
    const char *name, *server, *client;
    const char *server_scheme, *client_scheme; /* NULL: tls */
    const char *server_peers, *client_peers;
    int status;
    const char *server_log, *client_log; /* NULL: nothing in particular */
} refused[] = {
    {"an expired client", "good", "expired", NULL, NULL, NULL, NULL, BMI_EACCES,
     "its certificate has expired", "it refuses us: "},
    {"an expired server", "expired", "client", NULL, NULL, NULL, NULL, BMI_EACCES,
     "it refuses us: ", "its certificate has expired"},
    {"a client of an unknown authority", "good", "stranger", NULL, NULL, NULL, NULL, BMI_EACCES,
     "unknown authority", "it refuses us: "},
    {"a server of an unknown authority", "stranger", "client", NULL, NULL, NULL, NULL, BMI_EACCES,
     "it refuses us: ", "unknown authority"},
    {"a server with another name", "other", "client", NULL, NULL, NULL, NULL, BMI_EACCES,
     "it refuses us: ", "is of another name"},
    {"a revoked client", "good", "gone", NULL, NULL, NULL, NULL, BMI_EACCES, "is revoked",
     "it refuses us: "},
    {"a client whose name is not accepted", "good", "client", NULL, NULL, "admin* good", NULL,
     BMI_EACCES, "no name that is accepted", "it refuses us: "},
    {"a server whose name is not accepted", "good", "client", NULL, NULL, NULL, "storage*",
     BMI_EACCES, "it refuses us: ", "no name that is accepted"},
    {"another key of the identity", "psk:one", "psk:two", NULL, NULL, NULL, NULL, BMI_EACCES,
     "its key is another one", "it refuses us: "},
    {"a key of an unknown identity", "psk:one", "psk:three", NULL, NULL, NULL, NULL, BMI_EACCES,
     "identity is unknown", "it refuses us: "},
    {"a key where certificates are wanted", "good", "psk:one", NULL, NULL, NULL, NULL, BMI_EACCES,
     NULL, "unknown authority"},
    {"a plain client", "good", "client", "tls", "tcp", NULL, NULL, BMI_EPROTO, "no TLS 1.3",
     "a TLS server"},
    {"a plain server", "good", "client", "tcp", "tls", NULL, NULL, BMI_EPROTO, "a TLS client",
     NULL},
};

static void refused_check(const struct refused *one)
{
    char url[BMI_MAX_ADDR_LEN];
    case_begin(one->name);
    pid_t server = server_start(one->server_scheme ? one->server_scheme : "tls", one->server,
                                one->server_peers);
    snprintf(url, sizeof url, "%s%s", one->client_scheme ? one->client_scheme : "tls",
             strstr(shared->url, "://"));
    client_run(url, one->client, one->client_peers, 1);
    CHECK(shared->status == -one->status || shared->status == one->status,
          "the client's status is %s; its log: %s", bmi_status_string(shared->status),
          shared->logs[1]);
    if (one->server_log)
        until_logged(0, one->server_log);
    if (one->client_log)
        until_logged(1, one->client_log);
    CHECK(shared->received == 0, "nothing was received");
    case_end(server);
}

static void accepted_check(const char *name, const char *server_name, const char *client_name,
                           const char *server_identity, const char *client_identity)
{
    case_begin(name);
    shared->waits = true;
    pid_t server = server_start("tls", server_name, NULL);
    client_run(shared->url, client_name, NULL, 3);
    CHECK(shared->status == 0, "%s: %s", bmi_status_string(shared->status), shared->logs[1]);
    for (int i = 0; i < TEST_BOUND_MS && shared->received < 3; i++)
        usleep(1000);
    CHECK(shared->received == 3, "messages came");
    CHECK(strcmp(shared->identity, client_identity) == 0, "the client is %s", shared->identity);
    CHECK(strcmp(shared->client_identity, server_identity) == 0, "the server is %s",
          shared->client_identity);
    case_end(server);
}

/* A process that connects to itself gets its own messages back, as from an attacker. */
static void reflected_check(void)
{
    case_begin("a key that comes back to its own process");
    pid_t child = fork();
    if (child == 0) {
        test_deadline();
        side_begin(0);
        credentials_set("psk:one", NULL);
        serve("tls://127.0.0.1:0", 0, shared->url);
        shared->status = messages_send(shared->url, 1);
        BMI_finalize();
        _exit(0);
    }
    waitpid(child, NULL, 0);
    CHECK(shared->status == -BMI_EACCES, "%s", bmi_status_string(shared->status));
    until_logged(0, "a key of this very process");
}

/* ---- openssl's own programs ----------------------------------------------------------------- */

static int s_client(const char *options)
{
    char command[1024];
    const char *port = strrchr(shared->url, ':') + 1;
    snprintf(command, sizeof command,
             "cd %s && (sleep 1) | openssl s_client -connect 127.0.0.1:%s -CAfile a/authority.pem "
             "-verify_return_error %s >s_client.out 2>&1",
             folder, port, options);
    return system(command);
}

static void openssl_check(void)
{
    case_begin("openssl s_client: as a client, without certificate, with TLS 1.2");
    if (system("openssl version >/dev/null 2>&1") != 0) {
        printf("    left out: there is no program openssl\n");
        return;
    }
    pid_t server = server_start("tls", "good", NULL);
    CHECK(s_client("-cert a/client.pem -key a/client.key") == 0, "s_client shakes hands");
    until_logged(0, " is client (TLSv1.3, ");
    s_client("");
    until_logged(0, "it has no certificate");
    CHECK(s_client("-tls1_2 -cert a/client.pem -key a/client.key") != 0, "TLS 1.2 is refused");
    until_logged(0, "no TLS 1.3: unsupported protocol");
    case_end(server);
}

/* ---- between the two ------------------------------------------------------------------------ */

static int listen_somewhere(int *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(fd, (struct sockaddr *)&at, sizeof at) | listen(fd, 8), "listen");
    getsockname(fd, (struct sockaddr *)&at, &length);
    *port = ntohs(at.sin_port);
    return fd;
}

/* Passes bytes on; flips one of those from the client at the place `flip`. */
static bool carry(int from, int to, long flip, long *at)
{
    char bytes[65536];
    ssize_t have = read(from, bytes, sizeof bytes);
    if (have <= 0)
        return false;
    if (memmem(bytes, (size_t)have, marker, sizeof marker - 1))
        shared->plain = true;
    if (flip >= *at && flip < *at + have)
        bytes[flip - *at] ^= 1;
    *at += have;
    shared->carried = (int)*at;
    return write(to, bytes, (size_t)have) == have;
}

static pid_t proxy_start(int listener, long flip)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    long at = 0, back = 0;
    to.sin_port = htons((uint16_t)atoi(strrchr(shared->url, ':') + 1));
    int client = accept(listener, NULL, NULL), server = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(server, (struct sockaddr *)&to, sizeof to), "connect");
    struct pollfd polled[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    for (bool goes = true; goes && poll(polled, 2, -1) > 0;) {
        if (polled[0].revents)
            goes = carry(client, server, flip, &at);
        if (goes && polled[1].revents)
            goes = carry(server, client, -1, &back);
        shared->carried = (int)at;
    }
    _exit(0);
}

/* Messages through the proxy, which flips a byte. Returns the bytes that it carried. */
static int through_proxy(const char *name, long flip, int messages)
{
    char url[64];
    int port, listener;
    case_begin(name);
    pid_t server = server_start("tls", "good", NULL);
    listener = listen_somewhere(&port);
    pid_t proxy = proxy_start(listener, flip);
    snprintf(url, sizeof url, "tls://127.0.0.1:%d", port);
    client_run(url, "client", NULL, messages);
    CHECK(!shared->plain, "the marker went through in plain text");
    waitpid(proxy, NULL, 0);
    close(listener);
    int carried = shared->carried, received = shared->received;
    if (flip >= 0) {
        CHECK(received < messages, "%d messages were received", received);
        until_logged(0, ":");
        client_run(shared->url, "client", NULL, 1); /* the server serves others */
        CHECK(shared->status == 0, "%s", bmi_status_string(shared->status));
    }
    case_end(server);
    return carried;
}

/* ---- in time -------------------------------------------------------------------------------- */

/* Given: a server, to which a client has connected. Then the list of revoked certificates is
 * replaced: the client is refused by the same process, another one is not. */
static void withdrawn_check(void)
{
    case_begin("an identity that is withdrawn while the server runs");
    pid_t server = server_start("tls", "good", NULL);
    client_run(shared->url, "leaver", NULL, 1);
    CHECK(shared->status == 0, "%s", bmi_status_string(shared->status));
    run("cd %s && exec >log && %s revoke a leaver", folder, tool);
    client_run(shared->url, "leaver", NULL, 1);
    CHECK(shared->status == -BMI_EACCES, "%s", bmi_status_string(shared->status));
    until_logged(0, "is revoked");
    client_run(shared->url, "client", NULL, 1);
    CHECK(shared->status == 0, "%s", bmi_status_string(shared->status));
    case_end(server);
}

/* More connections that send nothing than may be in their handshake at a time. */
static void silent_check(void)
{
    enum { SILENT = 40 };
    int silent[SILENT];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    case_begin("connections that begin no handshake");
    setenv("BMI_HANDSHAKES_MAX", "8", 1);
    setenv("BMI_HANDSHAKE_TIMEOUT_MS", "500", 1);
    pid_t server = server_start("tls", "good", NULL);
    unsetenv("BMI_HANDSHAKES_MAX");
    unsetenv("BMI_HANDSHAKE_TIMEOUT_MS");
    to.sin_port = htons((uint16_t)atoi(strrchr(shared->url, ':') + 1));
    for (int i = 0; i < SILENT; i++) {
        silent[i] = socket(AF_INET, SOCK_STREAM, 0);
        must(connect(silent[i], (struct sockaddr *)&to, sizeof to), "connect");
    }
    client_run(shared->url, "client", NULL, 1);
    CHECK(shared->status == 0, "%s", bmi_status_string(shared->status));
    until_logged(0, "does not complete its handshake");
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
    case_end(server);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: tls_fault BMI-KEYS");
    tool = argv[1];
    test_begin("tls_fault", 120);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    keys_make();
    accepted_check("certificates", "good", "client", "good", "client");
    accepted_check("a shared key", "psk:one", "psk:one", "cluster", "cluster");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        refused_check(&refused[i]);
    reflected_check();
    openssl_check();
    withdrawn_check();
    silent_check();
    int all = through_proxy("a capture shows nothing", -1, MARKS);
    CHECK(shared->status == 0, "%s", bmi_status_string(shared->status));
    through_proxy("a byte of the handshake is flipped", 100, MARKS);
    through_proxy("a byte of a message is flipped", all / 2 + 1000, MARKS);
    run("rm -rf %s", folder);
    printf("tls_fault: passed\n");
    return 0;
}
