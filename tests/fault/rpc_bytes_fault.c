/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc_bytes_fault.c - peers that lie in requests and replies of bmi/rpc.h: bad headers, streams and
 * bodies shorter than announced, cancels of nothing, thousands of requests that wait. No service
 * sees a byte that was not sent, no call ends as if it were good, and a healthy client continues.
 */
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bmi/rpc.h"
#include "raw_peer.h"
#include "serve.h"

/* Types with the space of requests or replies in the upper bits. */
enum { REQUEST = RAW_UNEXPECTED | 1 << 5, REQUEST_PART = RAW_EAGER | 1 << 5 };
enum { CANCEL = RAW_CANCEL | 1 << 5, CANCEL_PROGRAM = RAW_CANCEL };
enum { REPLY_PART = RAW_EAGER | 2 << 5, REPLY_UNEXPECTED = RAW_UNEXPECTED | 2 << 5 };
enum { KIND_REQUEST = 1, KIND_REPLY, STREAM_APART = 2, BODY_APART = 4 };
enum { HEAD = 32, NAME = 8, MANY = 2500, MEBI = 1 << 20 };

static char listening[BMI_MAX_ADDR_LEN];
static struct chance chance;
static atomic_uint arrived_count, run_count;

/* A header, and in a request's the name "service". Returns its size. */
static size_t head_make(uint8_t *bytes, uint8_t kind, uint32_t flags, uint64_t stream,
                        uint64_t body)
{
    uint32_t room = htole32(4096);
    size_t name = kind == KIND_REQUEST ? NAME : 0;
    memset(bytes, 0, HEAD + NAME);
    bytes[0] = kind;
    bytes[1] = 1;
    bytes[2] = name > 0 ? NAME - 1 : 0;
    flags = htole32(flags);
    stream = htole64(stream);
    body = htole64(body);
    memcpy(bytes + 4, &flags, 4);
    memcpy(bytes + 8, &stream, 8);
    memcpy(bytes + 16, &body, 8);
    memcpy(bytes + 24, &room, 4);
    memcpy(bytes + HEAD, "service", name);
    return HEAD + name;
}

/* The description of a piece: its kind (1 express, 2 cheaper) and size. */
static void piece_make(uint8_t *bytes, uint64_t kind, uint64_t size)
{
    uint64_t description = htole64(size | kind << 56);
    memcpy(bytes, &description, sizeof description);
}

static void frame_send(int socket, uint8_t type, int32_t tag, const void *body, size_t size)
{
    struct raw_frame frame = {.type = type, .tag = tag, .length = size};
    (void)raw_send(socket, &frame, body);
}

/* ---- lying callers: a child that never starts the library ------------------------------------ */

/* Waits for the reply to a request. Returns its status. */
static int32_t reply_await(int socket, int32_t tag)
{
    static uint8_t body[RAW_BODY_MAX];
    struct raw_frame frame;
    int32_t status;
    do
        CHECK(raw_receive(socket, &frame, body, TEST_BOUND_MS), "no reply to request %d", tag);
    while ((frame.type & 0x7f) != REPLY_PART || frame.tag != tag);
    CHECK(frame.length == HEAD && body[0] == KIND_REPLY, "a strange reply");
    memcpy(&status, body + 28, sizeof status);
    return (int32_t)le32toh((uint32_t)status);
}

static void garbage_head(int socket)
{
    uint64_t words[10];
    for (int i = 0; i < 10; i++)
        words[i] = chance_next(&chance);
    frame_send(socket, REQUEST, 1, words, sizeof words);
}

static void head_too_short(int socket)
{
    uint8_t bytes[HEAD + NAME];
    head_make(bytes, KIND_REQUEST, 0, 0, 0);
    frame_send(socket, REQUEST, 1, bytes, HEAD - 1);
}

static void stream_not_there(int socket)
{
    uint8_t bytes[HEAD + NAME];
    frame_send(socket, REQUEST, 1, bytes, head_make(bytes, KIND_REQUEST, 0, 100, 0));
}

static void stream_too_long(int socket)
{
    uint8_t bytes[HEAD + NAME];
    frame_send(socket, REQUEST, 1, bytes,
               head_make(bytes, KIND_REQUEST, STREAM_APART, MEBI + 1, 0));
}

static void reply_as_request(int socket)
{
    uint8_t bytes[HEAD + NAME];
    frame_send(socket, REQUEST, 1, bytes, head_make(bytes, KIND_REPLY, 0, 0, 0));
}

static void unexpected_reply(int socket)
{
    uint8_t bytes[HEAD + NAME];
    frame_send(socket, REPLY_UNEXPECTED, 1, bytes, head_make(bytes, KIND_REPLY, 0, 0, 0));
}

static void unknown_space(int socket)
{
    frame_send(socket, RAW_UNEXPECTED | 3 << 5, 1, "x", 1);
}

static void cancel_of_no_call(int socket)
{
    struct raw_frame cancel = {.type = CANCEL_PROGRAM, .tag = 1};
    (void)raw_send(socket, &cancel, NULL);
}

/* Each must lose its connection. */
static void (*const bad[])(int socket) = {garbage_head,    head_too_short,   stream_not_there,
                                          stream_too_long, reply_as_request, unexpected_reply,
                                          unknown_space,   cancel_of_no_call};
enum { BAD = sizeof bad / sizeof *bad };

static void short_parts(int socket)
{
    uint8_t bytes[HEAD + NAME + 8];
    size_t size = head_make(bytes, KIND_REQUEST, STREAM_APART, 1000, 0);
    frame_send(socket, REQUEST, 7, bytes, size);
    frame_send(socket, REQUEST_PART, 7, "too short", 9);
    CHECK(reply_await(socket, 7) == -BMI_EPROTO, "a short stream was taken");
    size = head_make(bytes, KIND_REQUEST, BODY_APART, 8, 50000);
    piece_make(bytes + size, 2, 50000);
    frame_send(socket, REQUEST, 8, bytes, size + 8);
    frame_send(socket, REQUEST_PART, 8, "too short", 9);
    CHECK(reply_await(socket, 8) == -BMI_EPROTO, "a short body was taken");
    static char large[2000];
    size = head_make(bytes, KIND_REQUEST, STREAM_APART, 100, 0);
    frame_send(socket, REQUEST, 9, bytes, size);
    frame_send(socket, REQUEST_PART, 9, large, sizeof large);
    CHECK(reply_await(socket, 9) < 0, "a stream longer than announced was taken");
    for (int i = 0; i < 100; i++) { /* cancels of nothing, and of requests that are over */
        struct raw_frame cancel = {.type = CANCEL, .flags = STREAM_APART | BODY_APART, .tag = i};
        (void)raw_send(socket, &cancel, NULL);
    }
    head_make(bytes, KIND_REQUEST, 0, 0, 0);
    frame_send(socket, REQUEST, 10, bytes, HEAD + NAME);
    CHECK(reply_await(socket, 10) == -BMI_EBADMSG, "an empty request");
}

/* Requests that each announce 1 MiB; then a byte for each, which ends it. */
static void many_streams(int socket)
{
    uint8_t bytes[HEAD + NAME];
    size_t size = head_make(bytes, KIND_REQUEST, STREAM_APART, MEBI, 0);
    for (int i = 0; i < MANY; i++)
        frame_send(socket, REQUEST, i, bytes, size);
    for (int i = 0; i < MANY; i++)
        frame_send(socket, REQUEST_PART, i, "x", 1);
    for (int i = 0; i < MANY; i++)
        CHECK(reply_await(socket, i) == -BMI_EPROTO, "a short stream was taken");
}

static int callers_run(void *argument, int channel)
{
    (void)argument;
    hear(channel, listening, sizeof listening);
    for (int i = 0; i < BAD; i++) {
        struct raw_hello hello = raw_hello_make(&chance);
        int socket = raw_join(listening, &hello, NULL);
        bad[i](socket);
        CHECK(raw_ended(socket, TEST_BOUND_MS), "bad request %d was borne", i);
        close(socket);
    }
    for (int i = 0; i < 2; i++) {
        struct raw_hello hello = raw_hello_make(&chance);
        int socket = raw_join(listening, &hello, NULL);
        if (i == 0)
            short_parts(socket);
        else
            many_streams(socket);
        close(socket);
    }
    tell_number(channel, 1);
    return 0;
}

/* ---- a lying server ------------------------------------------------------------------------- */

enum lie { LIE_GARBAGE, LIE_STREAM_SHORT, LIE_BODY_SHORT, LIE_BODY_WITH_HEAD, LIES };

static void lie_tell(int socket, enum lie lie, int32_t tag)
{
    uint8_t bytes[HEAD + NAME + 8] = "garbage";
    size_t size = 40;
    if (lie == LIE_STREAM_SHORT)
        size = head_make(bytes, KIND_REPLY, STREAM_APART, 1000, 0);
    if (lie == LIE_BODY_SHORT) {
        size = head_make(bytes, KIND_REPLY, BODY_APART, 8, 5000);
        piece_make(bytes + size, 2, 5000);
        size += 8;
    }
    if (lie == LIE_BODY_WITH_HEAD) { /* sound, though no library sends it so */
        size = head_make(bytes, KIND_REPLY, STREAM_APART, 8, 5);
        memcpy(bytes + size, "hello", 5);
        size += 5;
    }
    frame_send(socket, REPLY_PART, tag, bytes, size);
    piece_make(bytes, 2, 5);
    if (lie != LIE_GARBAGE)
        frame_send(socket, REPLY_PART, tag, bytes, 8);
}

static int server_run(void *argument, int channel)
{
    static uint8_t body[RAW_BODY_MAX];
    char address[BMI_MAX_ADDR_LEN];
    struct raw_frame frame;
    (void)argument;
    int listener = raw_bind("127.0.0.1", address);
    CHECK(listen(listener, 8) == 0, "listen");
    tell(channel, address, sizeof address);
    int socket = raw_accept(listener, address);
    struct raw_hello hello = raw_hello_make(&chance);
    CHECK(raw_receive(socket, &frame, body, TEST_BOUND_MS), "no HELLO");
    CHECK(raw_answer_hello(socket, &hello), "the connection has ended");
    for (int lie = 0; lie < LIES;) {
        CHECK(raw_receive(socket, &frame, body, TEST_BOUND_MS), "no request");
        if ((frame.type & 0x7f) == REQUEST && body[0] == KIND_REQUEST)
            lie_tell(socket, (enum lie)lie++, frame.tag);
    }
    hear_number(channel);
    return 0;
}

/* ---- the process under test ------------------------------------------------------------------ */

/* Takes one cheaper piece of any size. */
static int service_arrived(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    bmi_size_t size;
    atomic_fetch_add(&arrived_count, 1);
    if (bmi_unpack_size(arguments, &size) != 0)
        return -BMI_EBADMSG;
    void *memory = malloc((size_t)size + 1);
    bmi_rpc_set_data(request, memory);
    return bmi_unpack(arguments, memory, size, BMI_UNPACK_CHEAPER);
}

static void service_run(struct bmi_rpc_request *request)
{
    atomic_fetch_add(&run_count, 1);
    bmi_rpc_reply(request, NULL);
}

static void service_ended(struct bmi_rpc_request *request, bmi_error_code_t status)
{
    (void)status;
    free(bmi_rpc_data(request));
}

static int reply_unpack(struct bmi_message *reply, void *argument)
{
    bmi_size_t size;
    int status = bmi_unpack_size(reply, &size);
    return status < 0 ? status : bmi_unpack(reply, argument, size, BMI_UNPACK_CHEAPER);
}

static void call_done(struct operation *operation, bmi_error_code_t status, bmi_size_t size)
{
    struct noted *noted = (struct noted *)operation;
    noted->ended = true;
    noted->status = status;
    noted->size = size;
}

static void lies_call(const char *address)
{
    static const int expected[LIES] = {-BMI_EPROTO, -BMI_EPROTO, -BMI_EPROTO, 0};
    static char memory[5000];
    BMI_addr_t server;
    must(BMI_addr_lookup(&server, address), "BMI_addr_lookup");
    for (int lie = 0; lie < LIES; lie++) {
        struct noted noted = {.operation.done = call_done};
        must(bmi_rpc_call(&noted.id, server, "service", NULL, reply_unpack, memory, NULL,
                          &noted.operation, test_context),
             "bmi_rpc_call");
        for (uint64_t until = now_ns() + TEST_BOUND_MS * UINT64_C(1000000);
             !noted.ended && now_ns() < until;)
            operations_step(10);
        CHECK(noted.ended && noted.status == expected[lie], "lie %d: %s", lie,
              status_name(noted.status));
    }
    CHECK(memcmp(memory, "hello", 5) == 0, "a body behind its header was not delivered");
}

int main(void)
{
    static const struct bmi_rpc_service service = {.arrived = service_arrived,
                                                   .run = service_run,
                                                   .ended = service_ended};
    test_begin("rpc_bytes_fault", 60);
    chance.state = test_seed();
    struct echo_report *report = shared_memory(sizeof *report);
    struct child callers = child_start("callers", callers_run, NULL);
    struct child liar = child_start("liar", server_run, NULL);
    struct child client = echo_client_start(report);
    char address[BMI_MAX_ADDR_LEN];

    serve_here(0, listening);
    operations_open();
    must(bmi_rpc_register("service", &service), "bmi_rpc_register");
    echo_client_go(report, &client, listening);
    atomic_store(&report->longest_ns, 0);
    tell(callers.channel, listening, sizeof listening);
    while (!heard(callers.channel, 0))
        operations_step(5);
    printf("  the healthy client's longest exchange: %.0f ms; arrived %u, run %u\n",
           (double)atomic_load(&report->longest_ns) / 1e6, arrived_count, run_count);
    CHECK(run_count == 0, "%u lying requests ran", run_count);
    CHECK(atomic_load(&report->longest_ns) < UINT64_C(5000000000) * test_slowness(),
          "requests that wait held up a healthy client");
    hear(liar.channel, address, sizeof address);
    lies_call(address);
    tell_number(liar.channel, 1);
    child_end(&liar);
    child_end(&callers);
    echo_client_end(report, &client);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
