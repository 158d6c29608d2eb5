/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bad_bytes_fault.c - connections that send invalid bytes: none, garbage, a web request, half a
 * header, frames with false contents. Each must lose its connection, and only its own: a healthy
 * client continues meanwhile, and afterwards the server holds no memory of them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "raw_peer.h"
#include "serve.h"

enum { ASK_TAG = 5, BODY_TAG = 6 };

static char listening[BMI_MAX_ADDR_LEN];
static struct chance chance;

/* ---- the bad peer: a child that never starts the library ------------------------------------- */

static void say_nothing(int socket)
{
    (void)socket;
}

static void half_header(int socket)
{
    uint8_t bytes[RAW_HEADER];
    struct raw_frame frame = {.type = RAW_HELLO, .length = 52};
    raw_encode(bytes, &frame);
    raw_write(socket, bytes, sizeof bytes / 2);
}

static void half_hello(int socket)
{
    uint8_t bytes[RAW_HEADER + 10] = {0};
    struct raw_frame frame = {.type = RAW_HELLO, .length = 52};
    raw_encode(bytes, &frame);
    raw_write(socket, bytes, sizeof bytes);
}

static void garbage(int socket)
{
    uint64_t words[512];
    for (unsigned i = 0; i < 512; i++)
        words[i] = chance_next(&chance);
    raw_write(socket, words, sizeof words);
}

static void web_request(int socket)
{
    static const char text[] = "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";
    raw_write(socket, text, sizeof text - 1);
}

static void hello_then_garbage(int socket)
{
    struct raw_hello hello = raw_hello_make(&chance);
    raw_send_hello(socket, &hello);
    garbage(socket);
}

static void other_version(int socket)
{
    struct raw_hello hello = raw_hello_make(&chance);
    hello.version = 999;
    raw_send_hello(socket, &hello);
}

static void hello_lies_of_length(int socket)
{
    struct raw_hello hello = raw_hello_make(&chance);
    uint8_t body[RAW_HEADER + BMI_MAX_ADDR_LEN];
    struct raw_frame frame = {.type = RAW_HELLO, .length = raw_hello_encode(body, &hello)};
    body[34] = 0xff; /* the length of the listen address */
    body[35] = 0x7f;
    raw_send(socket, &frame, body);
}

/* A HELLO whose listen address is invalid; valid frames would follow. */
static void hello_listens_nowhere(int socket)
{
    struct raw_hello hello = raw_hello_make(&chance);
    memset(hello.listen, '%', sizeof hello.listen - 1);
    hello.listen[sizeof hello.listen - 1] = '\0';
    raw_send_hello(socket, &hello);
    garbage(socket);
}

static void hello_twice(int socket)
{
    struct raw_hello hello = raw_hello_make(&chance);
    raw_send_hello(socket, &hello);
    raw_send_hello(socket, &hello);
}

static void no_hello(int socket)
{
    raw_send_unexpected(socket, ASK_TAG, 1);
}

static void frame_after_hello(int socket, const struct raw_frame *frame)
{
    struct raw_hello hello = raw_hello_make(&chance);
    raw_send_hello(socket, &hello);
    raw_send(socket, frame, NULL);
}

static void unknown_type(int socket)
{
    frame_after_hello(socket, &(struct raw_frame){.type = 0xee});
}

static void short_of_another_type(int socket)
{
    frame_after_hello(socket, &(struct raw_frame){.type = RAW_PING, .brief = true});
}

static void short_with_a_wrong_magic(int socket)
{
    frame_after_hello(socket,
                      &(struct raw_frame){.type = RAW_UNEXPECTED, .magic = 0xb21f, .brief = true});
}

static void unknown_flags(int socket)
{
    frame_after_hello(socket, &(struct raw_frame){.type = RAW_EAGER, .flags = 0x80});
}

static void endless_body(int socket)
{
    frame_after_hello(socket, &(struct raw_frame){.type = RAW_EAGER, .length = UINT64_MAX});
}

static void eager_too_long(int socket)
{
    frame_after_hello(socket, &(struct raw_frame){.type = RAW_EAGER, .length = 32 << 20});
}

static void unexpected_too_long(int socket)
{
    frame_after_hello(socket, &(struct raw_frame){.type = RAW_UNEXPECTED, .length = 32 << 20});
}

static void size_negative(int socket)
{
    frame_after_hello(socket,
                      &(struct raw_frame){.type = RAW_RTS, .source = 1, .target = UINT64_MAX});
}

static void cts_for_nothing(int socket)
{
    frame_after_hello(socket, &(struct raw_frame){.type = RAW_CTS,
                                                  .source = 7,
                                                  .target = 0x4141414141414141u});
}

static void data_for_nothing(int socket)
{
    struct raw_frame frame = {.type = RAW_DATA,
                              .flags = 2,
                              .length = 64,
                              .target = 0x4141414141414141u};
    char body[64] = {0};
    struct raw_hello hello = raw_hello_make(&chance);
    raw_send_hello(socket, &hello);
    raw_send(socket, &frame, body);
}

static void put_done_for_nothing(int socket)
{
    frame_after_hello(socket, &(struct raw_frame){.type = RAW_PUT_DONE, .target = 12345});
}

static void get_done_for_nothing(int socket)
{
    frame_after_hello(socket, &(struct raw_frame){.type = RAW_GET_DONE, .target = 12345});
}

static void regions_not_whole(int socket)
{
    struct raw_frame frame = {.type = RAW_RTS, .source = 1, .target = 1 << 20, .length = 25};
    char body[25] = {0};
    struct raw_hello hello = raw_hello_make(&chance);
    raw_send_hello(socket, &hello);
    raw_send(socket, &frame, body);
}

/* `ends`: the server itself must end the connection. */
static const struct {
    const char *name;
    void (*send)(int socket);
    bool ends;
} cases[] = {
    {"nothing at all", say_nothing, true},
    {"half a header, then silence", half_header, true},
    {"half a HELLO, then silence", half_hello, true},
    {"random garbage", garbage, true},
    {"a web request", web_request, true},
    {"a valid HELLO, then garbage", hello_then_garbage, true},
    {"a HELLO of another version", other_version, true},
    {"a HELLO that lies of its length", hello_lies_of_length, true},
    {"a HELLO with a bad address, then garbage", hello_listens_nowhere, true},
    {"a second HELLO", hello_twice, true},
    {"a message without a HELLO", no_hello, true},
    {"an unknown type", unknown_type, true},
    {"a short header of another type", short_of_another_type, true},
    {"a short header with a wrong magic number", short_with_a_wrong_magic, true},
    {"unknown flags", unknown_flags, true},
    {"a body of 2^64 bytes", endless_body, true},
    {"an eager message of 32 MiB", eager_too_long, true},
    {"an unexpected message of 32 MiB", unexpected_too_long, true},
    {"a size of 2^64", size_negative, true},
    {"CTS for no send", cts_for_nothing, false},
    {"DATA for no receive", data_for_nothing, false},
    {"PUT_DONE for no receive", put_done_for_nothing, false},
    {"GET_DONE for no send", get_done_for_nothing, false},
    {"regions that are not whole", regions_not_whole, true},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* Resets in the midst of the body of an eager message. */
static void reset_in_body(int channel)
{
    struct raw_hello hello = raw_hello_make(&chance);
    struct raw_frame frame = {.type = RAW_EAGER, .tag = BODY_TAG, .length = 8000};
    uint8_t half[RAW_HEADER + 4000] = {0};
    int socket = raw_join(listening, &hello, NULL);
    CHECK(raw_send_unexpected(socket, ASK_TAG, 1), "connection lost");
    hear_number(channel); /* the server has posted its receive */
    raw_encode(half, &frame);
    CHECK(raw_write(socket, half, sizeof half), "connection lost");
    hear_number(channel); /* and reads */
    raw_reset(socket);
}

static int bad_peer(void *argument, int channel)
{
    (void)argument;
    hear(channel, listening, sizeof listening);
    for (unsigned i = 0; i < CASES; i++) {
        hear_number(channel);
        int socket = raw_connect(listening, 0);
        cases[i].send(socket);
        bool ended = raw_ended(socket, cases[i].ends ? TEST_BOUND_MS : 200);
        close(socket);
        tell_number(channel, ended);
    }
    for (int i = 0; i < 2; i++) { /* with a receive posted, and without */
        hear_number(channel);
        reset_in_body(channel);
    }
    return 0;
}

/* ---- the server ------------------------------------------------------------------------------ */

static BMI_addr_t asker;

static void ask(const struct BMI_unexpected_info *info)
{
    CHECK(info->tag == ASK_TAG, "an unexpected message with tag %d", info->tag);
    asker = info->addr;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

/* Waits until only the healthy client's connection and session are left. */
static void others_gone(const char *name)
{
    uint64_t until = now_ns() + TEST_BOUND_MS * UINT64_C(1000000);
    while (method_statistics(test_method()).links > 1 && now_ns() < until)
        operations_step(10);
    CHECK(method_statistics(test_method()).links == 1, "%s: its connection is left", name);
    struct bmi_statistics gauges = statistics_of(0);
    CHECK(gauges.unmatched_bytes == 0 && gauges.unexpected_bytes == 0, "%s: its memory is left",
          name);
    CHECK(echo_sessions() == 1, "%s: the healthy client was harmed", name);
}

static void case_run(struct child *peer, unsigned i, struct echo_report *report)
{
    unsigned long exchanges = atomic_load(&report->exchanges);
    uint64_t start = now_ns();
    tell_number(peer->channel, (int64_t)i);
    while (!heard(peer->channel, 0))
        operations_step(5);
    bool ended = hear_number(peer->channel);
    printf("  %-45s %s after %4.0f ms\n", cases[i].name, ended ? "ended" : "is borne",
           (double)(now_ns() - start) / 1e6);
    CHECK(ended || !cases[i].ends, "%s: the connection was not ended", cases[i].name);
    others_gone(cases[i].name);
    while (atomic_load(&report->exchanges) < exchanges + 10)
        operations_step(5);
}

static void reset_run(struct child *peer, bool receive)
{
    static char buffer[8000];
    struct noted noted = {.posted = false};
    asker = 0;
    tell_number(peer->channel, 0);
    while (asker == 0)
        operations_step(10);
    if (receive)
        note_receive(&noted, asker, buffer, sizeof buffer, BODY_TAG);
    uint64_t frames = method_statistics(test_method()).frames_received;
    uint64_t bytes = method_statistics(test_method()).bytes_received;
    tell_number(peer->channel, 0);
    /* The healthy client's frames count as well: the bytes only show that time has passed. */
    while (method_statistics(test_method()).bytes_received < bytes + 100000 ||
           method_statistics(test_method()).frames_received < frames + 20)
        operations_step(10);
    CHECK(!noted.ended, "a receive ended with half its message: %s", status_name(noted.status));
    tell_number(peer->channel, 0);
    if (receive) {
        CHECK(noted_wait(&noted, 1, TEST_BOUND_MS), "a receive does not end after RST");
        CHECK(noted.status == -BMI_ECONNRESET && noted.size == 0, "after RST: %s, %lld bytes",
              status_name(noted.status), (long long)noted.size);
    }
    others_gone("RST in a body");
    struct noted late;
    note_send(&late, asker, buffer, 100, BODY_TAG);
    CHECK(noted_wait(&late, 1, TEST_BOUND_MS) && late.status != 0,
          "a send to a peer that is gone for good went well");
    printf("  RST in a body, receive %s: %s; a later send: %s\n", receive ? "posted" : "absent",
           receive ? status_name(noted.status) : "-", status_name(late.status));
}

int main(void)
{
    test_begin("bad_bytes_fault", 60);
    chance.state = test_seed();
    struct echo_report *report = shared_memory(sizeof *report);
    struct child peer = child_start("bad peer", bad_peer, NULL);
    struct child client = echo_client_start(report);

    setenv("BMI_PEER_TIMEOUT_MS", "0", 1); /* a peer that is silent because the machine is busy
                                              stays */
    serve_here(0, listening);
    operations_open();
    test_unexpected = ask;
    tell(peer.channel, listening, sizeof listening);
    echo_client_go(report, &client, listening);
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=1000"), "BMI_SETTING");
    for (unsigned i = 0; i < CASES; i++)
        case_run(&peer, i, report);
    must(BMI_set_info(0, BMI_SETTING, "connect_timeout_ms=30000"), "BMI_SETTING");
    uint64_t bad = method_statistics(test_method()).bad_frames;
    printf("  connections ended for what they sent: %llu\n", (unsigned long long)bad);
    CHECK(bad >= 10, "only %llu were noticed as bad", (unsigned long long)bad);
    reset_run(&peer, true);
    reset_run(&peer, false);

    child_end(&peer);
    echo_client_end(report, &client);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
