/* SPDX-License-Identifier: BSD-3-Clause
 *
 * flood_fault.c - peers that ignore every credit, send frames without end, and never read.
 *
 * Each kind of frame in turn: messages, requests and announcements that need memory, and questions
 * that need answers. The server may end the connection or stop reading it; it may not take more
 * memory than a peer's share, and others continue. A flood's first frames are within its credit:
 * the answer to a PING after them shows that they were accepted, before the others are sent.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "raw_peer.h"
#include "serve.h"

enum { PEER_MEMORY = 128 << 10, SLACK = 512 << 10, FRAMES = 400000, BLOCKED_MS = 1500 };
enum { AT_FIRST = 4 }; /* frames of a flood that are within its credit */

static char listening[BMI_MAX_ADDR_LEN];

/* The repeated frames: the fields in which a number increases; after requests of one tag, as many
 * as the credit allows. HELD: the gauges count the memory of the first ones. */
enum how { NOTHING = 0, TAG = 1, SOURCE = 2, TAG_AND_SOURCE = TAG | SOURCE, BEHIND = 4, HELD = 8 };

static const struct {
    const char *name;
    struct raw_frame frame;
    unsigned how;
} floods[] = {
    {"EAGER, 4000 bytes", {.type = RAW_EAGER, .length = 4000}, TAG | HELD},
    {"EAGER, no bytes", {.type = RAW_EAGER}, TAG | HELD},
    {"UNEXPECTED, 4000 bytes", {.type = RAW_UNEXPECTED, .length = 4000}, TAG | HELD},
    {"UNEXPECTED, no bytes", {.type = RAW_UNEXPECTED}, TAG | HELD},
    {"RTS", {.type = RAW_RTS, .target = 1 << 20}, TAG_AND_SOURCE | HELD},
    {"RTR", {.type = RAW_RTR, .target = 1 << 20}, TAG_AND_SOURCE},
    {"RTR of one tag", {.type = RAW_RTR, .tag = 1, .target = 1 << 20}, SOURCE},
    {"RTR_CANCEL", {.type = RAW_RTR_CANCEL}, TAG_AND_SOURCE},
    {"VOID", {.type = RAW_VOID}, TAG},
    {"ABORT", {.type = RAW_ABORT}, TAG_AND_SOURCE},
    {"CTS", {.type = RAW_CTS, .source = 1}, SOURCE},
    {"ABORT, behind RTS", {.type = RAW_ABORT, .tag = 1}, SOURCE | BEHIND | HELD},
    {"WANT", {.type = RAW_WANT, .flags = 3}, NOTHING},
    {"WANT, behind RTS", {.type = RAW_WANT, .flags = 1, .source = UINT64_MAX}, BEHIND | HELD},
    {"PING", {.type = RAW_PING}, SOURCE},
};
enum { FLOODS = sizeof floods / sizeof floods[0] };

enum outcome { ALL_SENT, BLOCKED, ENDED };
static const char *const outcome_names[] = {"all sent", "blocked", "ended"};

/* Writes without blocking for ever. */
static enum outcome write_patiently(int socket, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(socket, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            bytes += sent;
            size -= (size_t)sent;
            continue;
        }
        if (errno != EAGAIN && errno != EINTR)
            return ENDED;
        struct pollfd poller = {.fd = socket, .events = POLLOUT};
        if (poll(&poller, 1, BLOCKED_MS * (int)test_slowness()) == 0)
            return BLOCKED;
    }
    return ALL_SENT;
}

/* Their sources are far from those that are counted. */
static void requests_send(int socket, uint32_t credit)
{
    enum { CHARGE = 128, FIRST = 1 << 30 };
    for (uint32_t i = 0; i < credit / CHARGE; i++) {
        struct raw_frame frame = {.type = RAW_RTS,
                                  .tag = 1,
                                  .source = FIRST + i,
                                  .target = 1 << 20};
        CHECK(raw_send(socket, &frame, NULL), "requests within the credit");
    }
}

static void frame_next(struct raw_frame *frame, unsigned how)
{
    frame->tag += (how & TAG) != 0;
    frame->source += (how & SOURCE) != 0;
}

/* Sends the first frames, and waits for the answer that they were accepted. */
static void flood_begin(int socket, unsigned kind, struct raw_frame *frame)
{
    static const uint8_t body[RAW_HEADER + 4000];
    const struct raw_frame ping = {.type = RAW_PING, .source = UINT64_C(1) << 32};
    struct raw_frame answer = {0};
    for (int i = 0; i < AT_FIRST; i++) {
        frame_next(frame, floods[kind].how);
        CHECK(raw_send(socket, frame, body), "%s: ended at frame %d", floods[kind].name, i);
    }
    CHECK(raw_send(socket, &ping, NULL), "%s: ended at its beginning", floods[kind].name);
    while (answer.type != RAW_PONG || answer.target != ping.source)
        CHECK(raw_receive(socket, &answer, NULL, TEST_BOUND_MS), "%s: its beginning is not taken",
              floods[kind].name);
}

static enum outcome flood(int socket, unsigned kind, struct raw_frame frame, unsigned frames)
{
    const unsigned how = floods[kind].how;
    size_t each = RAW_HEADER + (size_t)frame.length;
    unsigned at_once = (unsigned)((64 << 10) / each);
    uint8_t *bytes = calloc(at_once, each);
    enum outcome outcome = ALL_SENT;
    CHECK(bytes != NULL, "no memory");
    if (frame.length > 0)
        frames /= 20;
    for (unsigned sent = 0; sent < frames && outcome == ALL_SENT; sent += at_once) {
        for (unsigned i = 0; i < at_once; i++) {
            frame_next(&frame, how);
            raw_encode(bytes + i * each, &frame);
        }
        outcome = write_patiently(socket, bytes, at_once * each);
    }
    free(bytes);
    return outcome;
}

static int flooder(void *argument, int channel)
{
    struct chance chance = {.state = test_seed()};
    (void)argument;
    hear(channel, listening, sizeof listening);
    for (unsigned i = 0; i < FLOODS; i++) {
        struct raw_hello hello = raw_hello_make(&chance), theirs;
        hear_number(channel);
        int socket = raw_join(listening, &hello, &theirs);
        if (floods[i].how & BEHIND)
            requests_send(socket, theirs.eager_credit);
        struct raw_frame frame = floods[i].frame;
        flood_begin(socket, i, &frame);
        tell_number(channel, 0);
        hear_number(channel);
        enum outcome outcome = flood(socket, i, frame, test_scaled(FRAMES, 100000));
        tell_number(channel, outcome);
        hear_number(channel);
        raw_reset(socket);
    }
    return 0;
}

/* Unexpected messages of a flood that were within its credit. */
static unsigned taken;

static void take(const struct BMI_unexpected_info *info)
{
    taken++;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

/* Does not fetch unexpected messages, so that they pile up. */
static void step_without_fetch(void)
{
    struct completion completion;
    bool any = next_completion(test_context, 1, &completion);
    for (; any; any = next_completion(test_context, 0, &completion)) {
        struct operation *operation = completion.user;
        operation->done(operation, completion.status, completion.size);
    }
}

static uint64_t held(void)
{
    struct bmi_statistics gauges = statistics_of(0);
    return gauges.unmatched_bytes + gauges.unexpected_bytes;
}

/* Serves until the flood has begun. Returns the memory held for it. */
static uint64_t flood_begun(struct child *child, unsigned kind)
{
    tell_number(child->channel, 0);
    while (!heard(child->channel, 0))
        step_without_fetch();
    hear_number(child->channel);
    uint64_t bytes = held();
    CHECK(!(floods[kind].how & HELD) || bytes > 0, "%s: nothing is held of it", floods[kind].name);
    return bytes;
}

static void flood_run(struct child *child, unsigned kind, struct echo_report *report)
{
    size_t before = memory_in_use(), most = before;
    unsigned long exchanges = atomic_load(&report->exchanges);
    atomic_store(&report->longest_ns, 0);
    uint64_t gauge = flood_begun(child, kind);
    tell_number(child->channel, 0);
    while (!heard(child->channel, 0)) {
        step_without_fetch();
        size_t now = memory_in_use();
        most = now > most ? now : most;
        uint64_t bytes = held();
        gauge = bytes > gauge ? bytes : gauge;
    }
    int64_t outcome = hear_number(child->channel);
    double longest_ms = (double)atomic_load(&report->longest_ns) / 1e6;
    printf("  %-24s %-8s memory +%5zu KiB, gauges %6llu; others: %lu exchanges, longest %.0f ms\n",
           floods[kind].name, outcome_names[outcome], (most - before) >> 10,
           (unsigned long long)gauge, atomic_load(&report->exchanges) - exchanges, longest_ms);
    CHECK(gauge <= PEER_MEMORY, "%s: %llu bytes are held for a peer", floods[kind].name,
          (unsigned long long)gauge);
    CHECK(!test_memory_measurable() || most - before < PEER_MEMORY + SLACK,
          "%s: memory grew by %zu bytes", floods[kind].name, most - before);
    CHECK(longest_ms < TEST_BOUND_MS, "%s: others were held up", floods[kind].name);
    tell_number(child->channel, 0);
    while (method_statistics(test_method()).links > 1)
        operations_step(10); /* fetches messages within the credit */
    exchanges = atomic_load(&report->exchanges);
    while (atomic_load(&report->exchanges) < exchanges + 10)
        operations_step(10);
}

int main(void)
{
    test_begin("flood_fault", 90);
    struct echo_report *report = shared_memory(sizeof *report);
    struct child child = child_start("flooder", flooder, NULL);
    struct child client = echo_client_start(report);
    setenv("BMI_PEER_MEMORY", "128K", 1);
    serve_here(0, listening);
    operations_open();
    test_unexpected = take;
    tell(child.channel, listening, sizeof listening);
    echo_client_go(report, &client, listening);
    for (unsigned i = 0; i < FLOODS; i++)
        flood_run(&child, i, report);
    printf("  unexpected messages within the credit: %u\n", taken);
    CHECK(taken >= 2 * AT_FIRST, "only %u unexpected messages were taken", taken);
    child_end(&child);
    echo_client_end(report, &client);
    struct bmi_statistics gauges = statistics_of(0);
    CHECK(gauges.unmatched_bytes == 0 && gauges.unexpected_bytes == 0, "memory of floods is left");
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
