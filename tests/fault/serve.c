/* SPDX-License-Identifier: BSD-3-Clause
 *
 * serve.c - operations, the echo server, and its healthy clients: see serve.h.
 */
#include "serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bmi_context_id test_context;
void (*test_unexpected)(const struct BMI_unexpected_info *info);

/* ---- operations ------------------------------------------------------------------------------ */

void operations_open(void)
{
    must(BMI_open_context(&test_context), "BMI_open_context");
}

BMI_addr_t client_open(int channel)
{
    char listening[BMI_MAX_ADDR_LEN];
    BMI_addr_t server;
    hear(channel, listening, sizeof listening);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    operations_open();
    must(BMI_addr_lookup(&server, listening), "BMI_addr_lookup");
    return server;
}

void operation_posted(struct operation *operation, int result, bmi_size_t size)
{
    if (result == 1)
        operation->done(operation, 0, size);
    else if (result < 0)
        operation->done(operation, result, 0);
}

static void echo_session_start(BMI_addr_t peer);
static void sessions_repeat(void);

static void unexpected_take(const struct BMI_unexpected_info *info)
{
    if (info->tag == ECHO_HELLO_TAG) {
        echo_session_start(info->addr);
        must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
        return;
    }
    CHECK(test_unexpected != NULL, "an unexpected message with tag %d", info->tag);
    test_unexpected(info);
}

void operations_step(int wait_ms)
{
    struct completion completion;
    struct BMI_unexpected_info infos[16];
    int count = 0;
    bool any = next_completion(test_context, wait_ms, &completion);
    for (; any; any = next_completion(test_context, 0, &completion)) {
        struct operation *operation = completion.user;
        operation->done(operation, completion.status, completion.size);
    }
    must(BMI_testunexpected(16, &count, infos, 0), "BMI_testunexpected");
    for (int i = 0; i < count; i++)
        unexpected_take(&infos[i]);
    sessions_repeat();
}

static void noted_done(struct operation *operation, bmi_error_code_t status, bmi_size_t size)
{
    struct noted *noted = (struct noted *)operation;
    CHECK(noted->posted && !noted->ended, "an operation ended twice");
    noted->ended = true;
    noted->status = status;
    noted->size = size;
    noted->ended_ns = now_ns();
}

static void noted_start(struct noted *noted)
{
    *noted = (struct noted){.operation = {.done = noted_done}, .posted = true};
}

void note_send(struct noted *noted, BMI_addr_t peer, const void *buffer, bmi_size_t size,
               bmi_msg_tag_t tag)
{
    noted_start(noted);
    int result = BMI_post_send(&noted->id, peer, buffer, size, BMI_EXT_ALLOC, tag, noted,
                               test_context, NULL);
    operation_posted(&noted->operation, result, size);
}

void note_sendunexpected(struct noted *noted, BMI_addr_t peer, const void *buffer, bmi_size_t size,
                         bmi_msg_tag_t tag)
{
    noted_start(noted);
    int result = BMI_post_sendunexpected(&noted->id, peer, buffer, size, BMI_EXT_ALLOC, tag, noted,
                                         test_context, NULL);
    operation_posted(&noted->operation, result, size);
}

void note_receive(struct noted *noted, BMI_addr_t peer, void *buffer, bmi_size_t size,
                  bmi_msg_tag_t tag)
{
    bmi_size_t actual = 0;
    noted_start(noted);
    int result = BMI_post_recv(&noted->id, peer, buffer, size, &actual, BMI_EXT_ALLOC, tag, noted,
                               test_context, NULL);
    operation_posted(&noted->operation, result, actual);
}

bool noted_wait(const struct noted *noted, unsigned count, int wait_ms)
{
    uint64_t until = now_ns() + (uint64_t)wait_ms * 1000000u;
    for (unsigned i = 0; i < count; i++)
        while (!noted[i].ended) {
            uint64_t now = now_ns();
            if (now >= until)
                return false;
            operations_step((int)((until - now) / 1000000u) + 1);
        }
    return true;
}

void noted_good(const struct noted *noted, const char *what)
{
    CHECK(noted_wait(noted, 1, TEST_BOUND_MS), "%s does not end", what);
    CHECK(noted->status == 0, "%s: %s", what, status_name(noted->status));
}

/* ---- echo, server's side --------------------------------------------------------------------- */

struct session {
    struct operation operation; /* first */
    BMI_addr_t peer;
    struct session *next;
    bool replying;
    bool again; /* its post was refused for lack of memory, and is repeated */
    bmi_size_t size;
    char bytes[ECHO_MAX];
};

static struct session first_session; /* so that a server short of memory can have one */
static struct session *session_list; /* those of living peers */
static unsigned sessions;

unsigned echo_sessions(void)
{
    return sessions;
}

/* Posts its reply, or the receive of the next call. */
static void session_post(struct session *session)
{
    bmi_op_id_t id;
    bmi_size_t size = session->size;
    int result = session->replying
                     ? BMI_post_send(&id, session->peer, session->bytes, size, BMI_EXT_ALLOC,
                                     ECHO_REPLY_TAG, session, test_context, NULL)
                     : BMI_post_recv(&id, session->peer, session->bytes, ECHO_MAX, &size,
                                     BMI_EXT_ALLOC, ECHO_CALL_TAG, session, test_context, NULL);
    session->again = result == -BMI_ENOMEM;
    if (!session->again)
        operation_posted(&session->operation, result, size);
}

static void sessions_repeat(void)
{
    for (struct session *at = session_list, *next; at != NULL; at = next) {
        next = at->next;
        if (at->again)
            session_post(at);
    }
}

static void session_end(struct session *session)
{
    struct session **link = &session_list;
    while (*link != session)
        link = &(*link)->next;
    *link = session->next;
    if (session == &first_session)
        first_session.peer = 0;
    else
        free(session);
    sessions--;
}

static void session_step(struct operation *operation, bmi_error_code_t status, bmi_size_t size)
{
    struct session *session = (struct session *)operation;
    if (status != 0) {
        CHECK(status == -BMI_ECONNRESET || status == -BMI_ETIMEDOUT, "a session ended with %s",
              status_name(status));
        session_end(session);
        return;
    }
    session->replying = !session->replying;
    session->size = size;
    session_post(session);
}

static void echo_session_start(BMI_addr_t peer)
{
    struct session *session = first_session.peer == 0 ? &first_session : malloc(sizeof *session);
    CHECK(session != NULL, "no memory");
    session->replying = false;
    session->operation.done = session_step;
    session->peer = peer;
    session->next = session_list;
    session_list = session;
    sessions++;
    session_post(session);
}

static int echo_server(void *argument, int channel)
{
    char address[64], listening[BMI_MAX_ADDR_LEN];
    test_address(address, *(const unsigned *)argument);
    serve(address, 0, listening);
    operations_open();
    tell(channel, listening, sizeof listening);
    while (!heard(channel, 0))
        operations_step(50);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

struct child echo_server_start(unsigned port)
{
    return child_start("echo server", echo_server, &port);
}

void echo_server_address(const struct child *server, char listening[BMI_MAX_ADDR_LEN])
{
    hear(server->channel, listening, BMI_MAX_ADDR_LEN);
}

/* ---- echo, client's side --------------------------------------------------------------------- */

void echo_hello(BMI_addr_t server)
{
    struct noted hello;
    note_sendunexpected(&hello, server, "", 0, ECHO_HELLO_TAG);
    noted_good(&hello, "echo: hello");
}

void echo_call(BMI_addr_t server, uint64_t number, bmi_size_t size)
{
    static char out[ECHO_MAX], in[ECHO_MAX];
    struct noted send, receive;
    uint64_t key = pattern_key(99, number);
    pattern_fill(out, (size_t)size, key, 0);
    note_receive(&receive, server, in, ECHO_MAX, ECHO_REPLY_TAG);
    note_send(&send, server, out, size, ECHO_CALL_TAG);
    noted_good(&send, "echo: call");
    noted_good(&receive, "echo: reply");
    CHECK(receive.size == size && pattern_wrong(in, (size_t)size, key, 0) < 0,
          "echo: the reply is wrong: %lld of %lld bytes", (long long)receive.size, (long long)size);
}

static int echo_client(void *argument, int channel)
{
    static const bmi_size_t sizes[] = {1, 64, 1000, 8192, ECHO_MAX};
    struct echo_report *report = argument;
    BMI_addr_t server;
    hear_number(channel);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    operations_open();
    must(BMI_addr_lookup(&server, report->listening), "BMI_addr_lookup");
    echo_hello(server);
    for (uint64_t i = 0; !atomic_load(&report->stop); i++) {
        uint64_t start = now_ns();
        echo_call(server, i, sizes[i % 5]);
        unsigned long took = (unsigned long)(now_ns() - start);
        if (took > atomic_load(&report->longest_ns))
            atomic_store(&report->longest_ns, took);
        atomic_fetch_add(&report->exchanges, 1);
    }
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

struct child echo_client_start(struct echo_report *report)
{
    return child_start("healthy client", echo_client, report);
}

void echo_client_go(struct echo_report *report, const struct child *client, const char *listening)
{
    strcpy(report->listening, listening);
    tell_number(client->channel, 0);
    while (atomic_load(&report->exchanges) < 10)
        operations_step(10);
}

void echo_client_end(struct echo_report *report, struct child *client)
{
    atomic_store(&report->stop, true);
    while (echo_sessions() > 0)
        operations_step(10);
    child_end(client);
}

struct echo_pace echo_pace(struct echo_report *report, unsigned window_ms)
{
    unsigned long first = atomic_load(&report->exchanges);
    uint64_t start = now_ns();
    atomic_store(&report->longest_ns, 0);
    uint64_t took = 0;
    /* For the window, and further until there is any exchange, which may take a while on busy
     * cores. */
    while (took < window_ms * UINT64_C(1000000) ||
           (atomic_load(&report->exchanges) == first && took < TEST_BOUND_MS * UINT64_C(1000000))) {
        operations_step(1);
        took = now_ns() - start;
    }
    double seconds = (double)(now_ns() - start) / 1e9;
    return (struct echo_pace){
        .exchanges_per_s = (double)(atomic_load(&report->exchanges) - first) / seconds,
        .longest_ns = atomic_load(&report->longest_ns),
    };
}

void echo_pace_unharmed(const struct echo_pace *before, const struct echo_pace *now)
{
    printf("  others: %.0f exchanges/s, longest %.1f ms; before %.0f/s, %.1f ms\n",
           now->exchanges_per_s, (double)now->longest_ns / 1e6, before->exchanges_per_s,
           (double)before->longest_ns / 1e6);
    CHECK(now->exchanges_per_s > 0, "others stand still");
    CHECK(now->longest_ns < TEST_BOUND_MS * UINT64_C(1000000), "others were held up");
}
