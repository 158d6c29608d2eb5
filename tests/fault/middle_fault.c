/* SPDX-License-Identifier: BSD-3-Clause
 *
 * middle_fault.c - a process in the middle that cuts, holds or changes a connection.
 *
 * Each connection begins anew and carries one exchange: a request, bytes to the server, bytes back;
 * both sides verify them. The proxy harms it at one place. The exchange then fails with a cause, or
 * is right; no operation stays, and a peer with a connection of its own goes on meanwhile.
 *
 *   cut    after every byte of each direction
 *   hold   the same for some bytes, with short time limits: ETIMEDOUT
 *   flip   one bit of every byte (tls only)
 *   large  some bytes of a long exchange: flips, cuts, cuts behind a record; and what the proxy
 *          carried holds no piece of the data (tls only)
 *   split  nothing is harmed: the bytes come in pieces, and cut behind each record's header (tls
 *          only)
 *
 * usage: middle_fault cut|hold|flip|large|split
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy.h"
#include "serve.h"

enum { ASK_TAG = 5, THERE_TAG = 6, BACK_TAG = 7, SMALL = 24, LARGE = 1 << 20 };
enum { TIME_LIMIT_MS = 300, SLACK = 16 }; /* lengths of signatures vary */

struct ask {
    uint64_t number, size;
};

static bool tls;

/* ---- the server ------------------------------------------------------------------------------ */

struct answer {
    struct operation operation; /* first */
    struct ask ask;
    BMI_addr_t peer;
    bool back;
    char bytes[];
};

static unsigned asked, answered;

static void answer_post(struct answer *answer)
{
    bmi_op_id_t id;
    bmi_size_t size = (bmi_size_t)answer->ask.size, actual = 0;
    int result = answer->back ? BMI_post_send(&id, answer->peer, answer->bytes, size, BMI_EXT_ALLOC,
                                              BACK_TAG, answer, test_context, NULL)
                              : BMI_post_recv(&id, answer->peer, answer->bytes, size, &actual,
                                              BMI_EXT_ALLOC, THERE_TAG, answer, test_context, NULL);
    operation_posted(&answer->operation, result, answer->back ? size : actual);
}

static void answer_step(struct operation *operation, bmi_error_code_t status, bmi_size_t size)
{
    struct answer *answer = (struct answer *)operation;
    size_t bytes = (size_t)answer->ask.size;
    if (status != 0 || answer->back) {
        answered++;
        free(answer);
        return;
    }
    CHECK(size == (bmi_size_t)bytes &&
              pattern_wrong(answer->bytes, bytes, pattern_key(1, answer->ask.number), 0) < 0,
          "exchange %llu: the server got changed bytes", (unsigned long long)answer->ask.number);
    pattern_fill(answer->bytes, bytes, pattern_key(2, answer->ask.number), 0);
    answer->back = true;
    answer_post(answer);
}

static void ask_taken(const struct BMI_unexpected_info *info)
{
    struct ask ask;
    CHECK(info->tag == ASK_TAG && info->size == sizeof ask, "a changed request was delivered");
    memcpy(&ask, info->buffer, sizeof ask);
    CHECK(ask.size == SMALL || ask.size == LARGE, "a changed request was delivered");
    struct answer *answer = malloc(sizeof *answer + (size_t)ask.size);
    CHECK(answer != NULL, "no memory");
    *answer = (struct answer){.operation = {.done = answer_step}, .ask = ask, .peer = info->addr};
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
    asked++;
    answer_post(answer);
}

/* The words of the log, for the causes. */
static char logged[1 << 16];

static void log_note(void *argument, enum bmi_log_level level, const char *text)
{
    size_t have = strlen(logged);
    (void)argument, (void)level;
    if (have + strlen(text) + 2 < sizeof logged)
        sprintf(logged + have, "%s\n", text);
}

/* ---- the client ------------------------------------------------------------------------------ */

static BMI_addr_t server;
static uint64_t number;
static char there[LARGE], back[LARGE];

/* Returns the status of the reply, and checks it. */
static int exchange(size_t size)
{
    struct noted noted[3];
    struct ask ask = {.number = ++number, .size = size};
    pattern_fill(there, size, pattern_key(1, number), 0);
    memset(back, 0, size);
    note_receive(&noted[0], server, back, (bmi_size_t)size, BACK_TAG);
    note_sendunexpected(&noted[1], server, &ask, sizeof ask, ASK_TAG);
    note_send(&noted[2], server, there, (bmi_size_t)size, THERE_TAG);
    CHECK(noted_wait(noted, 3, TEST_BOUND_MS), "exchange %llu: an operation stays",
          (unsigned long long)number);
    CHECK(noted[0].status != 0 || pattern_wrong(back, size, pattern_key(2, number), 0) < 0,
          "exchange %llu: the client got changed bytes", (unsigned long long)number);
    return noted[0].status;
}

static struct proxy_carried carried;

static int harmed_exchange(enum proxy_way way, enum proxy_deed deed, size_t place, size_t size)
{
    proxy_begin((struct proxy_order){.way = way, .deed = deed, .place = place});
    int status = exchange(size);
    carried = proxy_end();
    must(BMI_set_info(server, BMI_TCP_CLOSE_SOCKET, NULL), "BMI_TCP_CLOSE_SOCKET");
    return status;
}

/* How exchanges ended. */
static struct {
    int status;
    unsigned count;
} ends[8];

static void end_count(int status)
{
    unsigned i = 0;
    while (ends[i].count > 0 && ends[i].status != status)
        CHECK(++i < 7, "exchanges end in too many ways");
    ends[i].status = status;
    ends[i].count++;
}

static void ends_print(const char *what)
{
    printf("  %s:", what);
    for (unsigned i = 0; ends[i].count > 0; i++)
        printf(" %u %s;", ends[i].count, status_name(ends[i].status));
    printf("\n");
    memset(ends, 0, sizeof ends);
}

static const char *const way_names[] = {"to the server", "to the client"};

static void end_check(int status, enum proxy_way way, size_t place, bool expected)
{
    CHECK(expected, "%s, byte %zu: %s", way_names[way], place, status_name(status));
    end_count(status);
}

/* Steps over all bytes, or, where the build is slow, over some. */
static size_t stride(struct chance *chance)
{
    return test_slowness() == 1 ? 1 : 1 + chance_below(chance, 19);
}

/* A cut before the end of the connecting is a refusal to tcp. */
static bool is_cut(int status)
{
    return status == -BMI_ECONNRESET || (!tls && status == -BMI_ECONNREFUSED);
}

static void cut_every(enum proxy_way way, size_t bytes, struct chance *chance)
{
    for (size_t place = 0; place < bytes; place += stride(chance)) {
        int status = harmed_exchange(way, CUT, place, SMALL);
        bool good = status == 0 && (!carried.done || place + SLACK > bytes);
        end_check(status, way, place, good || (carried.done && is_cut(status)));
    }
    ends_print(way_names[way]);
}

static void time_limits_set(void)
{
    char text[128];
    snprintf(text, sizeof text, "connect_timeout_ms=%u,peer_timeout_ms=%u",
             TIME_LIMIT_MS * test_slowness(), TIME_LIMIT_MS * test_slowness());
    must(BMI_set_info(0, BMI_SETTING, text), text);
    snprintf(text, sizeof text, "handshake_timeout_ms=%u", TIME_LIMIT_MS * test_slowness());
    if (tls)
        must(BMI_set_info(0, BMI_SETTING, text), text);
}

static void hold_some(enum proxy_way way, size_t bytes, struct chance *chance)
{
    enum { SAMPLES = 8 };
    time_limits_set();
    for (int i = 0; i < SAMPLES; i++) {
        size_t place = chance_below(chance, bytes - SLACK);
        int status = harmed_exchange(way, HOLD, place, SMALL);
        end_check(status, way, place, carried.done && status == -BMI_ETIMEDOUT);
    }
    ends_print(way_names[way]);
}

/* Receivers need not look at the version of the first record. */
static bool is_version(size_t place)
{
    return place == 1 || place == 2;
}

/* ECONNREFUSED: the server gave up first, when it waited for the end of a record. */
static bool is_cause(int status)
{
    return status == -BMI_ECONNREFUSED || status == -BMI_EPROTO || status == -BMI_EACCES ||
           status == -BMI_ECONNRESET || status == -BMI_ETIMEDOUT;
}

/* One that a busy machine did not bring so far in time is repeated. */
static int flipped_exchange(enum proxy_way way, size_t place)
{
    int status;
    do
        status = harmed_exchange(way, FLIP, place, SMALL);
    while (!carried.done && status == -BMI_ETIMEDOUT);
    return status;
}

/* All bytes of the frames, which come last, and some of the handshake. */
static void flip_every(enum proxy_way way, size_t bytes, struct chance *chance)
{
    enum { FRAMES = 400 };
    time_limits_set();
    for (size_t place = 0; place < bytes;
         place += place + FRAMES < bytes ? 1 + chance_below(chance, 9) : stride(chance)) {
        int status = flipped_exchange(way, place);
        bool harmless = status == 0 && (!carried.done || is_version(place));
        end_check(status, way, place, harmless || (carried.done && is_cause(status)));
    }
    ends_print(way_names[way]);
}

static void large_some(enum proxy_way way, size_t bytes, struct chance *chance)
{
    static const enum proxy_deed deeds[] = {FLIP, CUT, CUT_RECORD};
    enum { SAMPLES = 30 };
    for (int i = 0; i < SAMPLES; i++) {
        size_t place = chance_below(chance, bytes - 1000);
        int status = harmed_exchange(way, deeds[i % 3], place, LARGE);
        bool flip = deeds[i % 3] == FLIP;
        end_check(status, way, place,
                  carried.done && (flip ? is_cause(status) : status == -BMI_ECONNRESET));
    }
    ends_print(way_names[way]);
}

static void split_check(size_t place, size_t size)
{
    int status = harmed_exchange(TO_SERVER, SPLIT, place, size);
    end_check(status, TO_SERVER, place, carried.done && status == 0);
}

/* Some 400 pieces, each of which takes the proxy 10 ms or more. Both directions are split at a
 * time. */
static void split_some(enum proxy_way way, size_t bytes, struct chance *chance)
{
    enum { SAMPLES = 3, SMALL_LEAST = 50, LARGE_PIECES = 100 };
    if (way != TO_SERVER)
        return;
    split_check(0, SMALL);
    split_check(0, LARGE);
    split_check(bytes / LARGE_PIECES + chance_below(chance, 20000), LARGE);
    for (int i = 0; i < SAMPLES; i++)
        split_check(SMALL_LEAST + chance_below(chance, 200), SMALL);
    ends_print("in pieces");
}

/* Whether the proxy carried a piece of the data of the last exchange. */
static bool data_seen(enum proxy_way way, const struct proxy_carried *passed)
{
    const char *data = way == TO_SERVER ? there : back;
    size_t have = passed->bytes[way] < PROXY_COPY ? passed->bytes[way] : PROXY_COPY;
    for (size_t at = 0; at + 16 <= LARGE; at += 4096)
        if (memmem(proxy_copy(way), have, data + at, 16) != NULL)
            return true;
    return false;
}

static void capture_check(const struct proxy_carried *passed)
{
    for (int way = 0; way < 2; way++)
        CHECK(data_seen((enum proxy_way)way, passed) == !tls, "%s: the data is %s in the capture",
              way_names[way], tls ? "plain" : "not");
    printf("  %zu bytes captured: %s\n", passed->bytes[0] + passed->bytes[1],
           tls ? "no data in plain text" : "the data");
}

typedef void harm_run(enum proxy_way way, size_t bytes, struct chance *chance);

static const struct harm_kind {
    const char *name;
    harm_run *run;
    size_t size;
    const char *log; /* over tls the server's has this; NULL: nothing in particular */
} harms[] = {{"cut", cut_every, SMALL, "it closed the connection within the handshake"},
             {"hold", hold_some, SMALL, "does not complete its handshake"},
             {"flip", flip_every, SMALL, "a bad record: decryption failed"},
             {"large", large_some, LARGE, "a bad record: decryption failed"},
             {"split", split_some, LARGE, NULL}};

static int client(void *argument, int channel)
{
    const struct harm_kind *kind = argument;
    struct chance chance = {.state = test_seed()};
    char url[BMI_MAX_ADDR_LEN], through[BMI_MAX_ADDR_LEN];
    hear(channel, url, sizeof url);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    operations_open();
    proxy_start(url, through);
    must(BMI_addr_lookup(&server, through), "BMI_addr_lookup");
    int status = harmed_exchange(TO_SERVER, PASS, 0, kind->size);
    CHECK(status == 0, "without harm: %s", status_name(status));
    const struct proxy_carried whole = carried;
    if (kind->size == LARGE)
        capture_check(&whole);
    for (int way = 0; way < 2; way++)
        kind->run((enum proxy_way)way, whole.bytes[way], &chance);
    status = harmed_exchange(TO_SERVER, PASS, 0, kind->size);
    CHECK(status == 0, "without harm, again: %s", status_name(status));
    tell_number(channel, 0);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* ---- all ------------------------------------------------------------------------------------- */

static const struct harm_kind *kind_find(const char *name)
{
    for (unsigned i = 0; i < sizeof harms / sizeof harms[0]; i++)
        if (strcmp(harms[i].name, name) == 0)
            return &harms[i];
    CHECK(false, "usage: middle_fault cut|hold|flip|large|split");
    return NULL;
}

/* Until only the healthy client is left. */
static void others_gone(void)
{
    uint64_t until = now_ns() + TEST_BOUND_MS * UINT64_C(1000000);
    while ((method_statistics(test_method()).links > 1 || answered < asked) && now_ns() < until)
        operations_step(10);
    CHECK(method_statistics(test_method()).links == 1, "connections are left");
    CHECK(answered == asked, "operations of %u exchanges are left", asked - answered);
    CHECK(echo_sessions() == 1, "the healthy client was harmed");
}

int main(int argc, char **argv)
{
    char listening[BMI_MAX_ADDR_LEN];
    struct bmi_log_callback callback = {log_note, NULL, BMI_LOG_WARN};
    test_begin("middle_fault", 60);
    const struct harm_kind *kind = kind_find(argc > 1 ? argv[1] : "");
    tls = strcmp(test_scheme(), "tls") == 0;
    struct echo_report *report = shared_memory(sizeof *report);
    struct child harmed = child_start("harmed client", client, (void *)(uintptr_t)kind);
    struct child healthy = echo_client_start(report);
    must(BMI_set_info(0, BMI_LOG_CALLBACK, &callback), "BMI_LOG_CALLBACK");
    serve_here(0, listening);
    operations_open();
    test_unexpected = ask_taken;
    echo_client_go(report, &healthy, listening);
    unsigned long exchanges = atomic_load(&report->exchanges);
    if (kind->run == hold_some || kind->run == flip_every)
        time_limits_set();
    tell(harmed.channel, listening, sizeof listening);
    while (!heard(harmed.channel, 0))
        operations_step(20);
    hear_number(harmed.channel);
    exchanges = atomic_load(&report->exchanges) - exchanges;
    printf("  another peer: %lu exchanges, longest %.0f ms\n", exchanges,
           (double)atomic_load(&report->longest_ns) / 1e6);
    CHECK(exchanges > 0, "the healthy client stands still");
    child_end(&harmed);
    others_gone();
    CHECK(!tls || kind->log == NULL || strstr(logged, kind->log) != NULL,
          "the log has no line \"%s\"; it has: %s", kind->log ? kind->log : "", logged);
    echo_client_end(report, &healthy);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
