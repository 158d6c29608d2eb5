/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tls_pair.c - a server's and a client's process: see tls_pair.h. Their logs come over pipes.
 */
#include "tls_pair.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LOG = 1 << 16 };

enum { END, CALL }; /* orders to the server */

struct pair pair;
static struct child children[2];
static bool server_runs;

/* ---- logs ----------------------------------------------------------------------------------- */

static struct {
    int ends[2]; /* of the pipe */
    size_t have;
    char text[LOG];
} logs[2];

/* A full pipe loses lines. */
static void note(void *argument, enum bmi_log_level level, const char *text)
{
    char line[512];
    (void)level;
    int size = snprintf(line, sizeof line, "%s\n", text);
    ssize_t ignored =
        write(*(int *)argument, line, (size_t)size < sizeof line ? (size_t)size : sizeof line - 1);
    (void)ignored;
}

static void log_open(enum pair_side side)
{
    logs[side].have = 0;
    logs[side].text[0] = '\0';
    CHECK(pipe2(logs[side].ends, O_NONBLOCK | O_CLOEXEC) == 0, "pipe");
}

static void log_close(enum pair_side side)
{
    close(logs[side].ends[0]);
    close(logs[side].ends[1]);
}

/* Reads the lines that have come. */
const char *log_text(enum pair_side side)
{
    size_t room = LOG - 1 - logs[side].have;
    ssize_t more = read(logs[side].ends[0], logs[side].text + logs[side].have, room);
    if (more > 0)
        logs[side].have += (size_t)more;
    logs[side].text[logs[side].have] = '\0';
    return logs[side].text;
}

bool log_has(enum pair_side side, const char *text)
{
    return strstr(log_text(side), text) != NULL;
}

void until_logged(enum pair_side side, const char *text)
{
    bool came = true;
    while (!log_has(side, text) && came) {
        struct pollfd polled = {.fd = logs[side].ends[0], .events = POLLIN};
        came = poll(&polled, 1, TEST_BOUND_MS) > 0;
    }
    CHECK(came, "the %s logs \"%s\"; it logged: %s", side == SERVER ? "server" : "client", text,
          log_text(side));
}

static void side_begin(enum pair_side side, const char *who, const char *peers)
{
    struct bmi_log_callback callback = {note, &logs[side].ends[1], BMI_LOG_INFO};
    must(BMI_set_info(0, BMI_LOG_CALLBACK, &callback), "BMI_LOG_CALLBACK");
    credentials_set(who, peers);
}

/* ---- messages ------------------------------------------------------------------------------ */

/* Returns the status of the last message. */
static int messages_send(BMI_addr_t server, unsigned count, bmi_context_id context)
{
    int status = 0;
    for (unsigned i = 0; i < count && status == 0; i++) {
        int out = 0;
        bmi_op_id_t op;
        bmi_error_code_t error = 0;
        int result =
            BMI_post_sendunexpected(&op, server, "hello", 5, BMI_EXT_ALLOC, 1, NULL, context, NULL);
        while (result == 0 && out == 0)
            must(BMI_test(op, &out, &error, NULL, NULL, 1000, context), "BMI_test");
        status = result < 0 ? result : error;
    }
    return status;
}

/* ---- the server ----------------------------------------------------------------------------- */

/* What a child is started with. */
struct start {
    const char *scheme, *url, *who, *peers;
    unsigned count;
};

static void server_step(int channel)
{
    struct BMI_unexpected_info info;
    struct bmi_peer_identity identity = {.name = ""};
    char name[PAIR_NAME] = "";
    int count = 0;
    must(BMI_testunexpected(1, &count, &info, 10), "BMI_testunexpected");
    if (count == 0)
        return;
    if (BMI_get_info(info.addr, BMI_PEER_IDENTITY, &identity) == 0)
        snprintf(name, sizeof name, "%s", identity.name);
    must(BMI_unexpected_free(info.addr, info.buffer), "BMI_unexpected_free");
    tell(channel, name, sizeof name);
}

static int call_itself(const char *url)
{
    bmi_context_id context;
    BMI_addr_t itself;
    must(BMI_open_context(&context), "BMI_open_context");
    must(BMI_addr_lookup(&itself, url), "BMI_addr_lookup");
    int status = messages_send(itself, 1, context);
    BMI_close_context(context);
    return status;
}

static int server_main(void *argument, int channel)
{
    const struct start *start = argument;
    char listen[64], url[BMI_MAX_ADDR_LEN];
    int64_t order;
    side_begin(SERVER, start->who, start->peers);
    snprintf(listen, sizeof listen, "%s://127.0.0.1:0", start->scheme);
    serve(listen, 0, url);
    tell(channel, url, sizeof url);
    do {
        while (!heard(channel, 0))
            server_step(channel);
        order = hear_number(channel);
        if (order == CALL)
            tell_number(channel, call_itself(url));
    } while (order != END);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

void server_start(const char *scheme, const char *who, const char *peers)
{
    struct start start = {.scheme = scheme, .who = who, .peers = peers};
    children[SERVER] = child_start("server", server_main, &start);
    hear(children[SERVER].channel, pair.url, sizeof pair.url);
    server_runs = true;
}

void server_calls_itself(void)
{
    tell_number(children[SERVER].channel, CALL);
    pair.status = (int)hear_number(children[SERVER].channel);
}

static void messages_hear(int wait_ms)
{
    for (; heard(children[SERVER].channel, wait_ms); wait_ms = 0) {
        hear(children[SERVER].channel, pair.client_identity, sizeof pair.client_identity);
        pair.received++;
    }
}

/* ---- the client ----------------------------------------------------------------------------- */

static int client_main(void *argument, int channel)
{
    const struct start *start = argument;
    bmi_context_id context;
    BMI_addr_t server;
    struct bmi_peer_identity identity = {.name = ""};
    char name[PAIR_NAME] = "";
    side_begin(CLIENT, start->who, start->peers);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    must(BMI_open_context(&context), "BMI_open_context");
    must(BMI_addr_lookup(&server, start->url), "BMI_addr_lookup");
    tell_number(channel, messages_send(server, start->count, context));
    if (BMI_get_info(server, BMI_PEER_IDENTITY, &identity) == 0)
        snprintf(name, sizeof name, "%s", identity.name);
    tell(channel, name, sizeof name);
    hear_number(channel);
    BMI_close_context(context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

void client_start(const char *url, const char *who, const char *peers, unsigned count)
{
    struct start start = {.url = url, .who = who, .peers = peers, .count = count};
    log_close(CLIENT);
    log_open(CLIENT);
    children[CLIENT] = child_start("client", client_main, &start);
}

void client_end(unsigned count)
{
    unsigned until = pair.received + count;
    struct child *client = &children[CLIENT];
    pair.status = (int)hear_number(client->channel);
    hear(client->channel, pair.server_identity, sizeof pair.server_identity);
    for (bool came = true; pair.status == 0 && pair.received < until && came;) {
        came = heard(children[SERVER].channel, TEST_BOUND_MS);
        CHECK(came, "a message that was sent does not arrive");
        messages_hear(0);
    }
    tell_number(client->channel, 0);
    child_end(client);
}

void client_run(const char *url, const char *who, const char *peers, unsigned count)
{
    client_start(url, who, peers, count);
    client_end(count);
}

/* ---- cases ---------------------------------------------------------------------------------- */

void case_begin(const char *name)
{
    printf("  %s\n", name);
    memset(&pair, 0, sizeof pair);
    log_open(SERVER);
    log_open(CLIENT);
}

void case_end(void)
{
    if (server_runs) {
        messages_hear(0);
        tell_number(children[SERVER].channel, END);
        child_end(&children[SERVER]);
        server_runs = false;
    }
    log_close(SERVER);
    log_close(CLIENT);
}
