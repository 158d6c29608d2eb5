/* SPDX-License-Identifier: BSD-3-Clause
 *
 * slow_server_fault.c - many senders of unexpected messages against one server that fetches them
 * slowly.
 *
 * Waiting messages in the server stay below its settings, for each peer and for all; no message is
 * lost or comes out of order; a client of expected messages continues at its pace meanwhile.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve.h"

enum { SENDERS = 8, MESSAGES = 400, PEER_MEMORY = 256 << 10, TOTAL_MEMORY = 1 << 20 };
enum { SLOW_TAG = 3, KEPT = 8 };

static unsigned messages;
static char listening[BMI_MAX_ADDR_LEN];

struct head {
    uint32_t sender, number;
};

static bmi_size_t size_of(struct head head)
{
    struct chance chance = {.state = pattern_key(head.sender, head.number)};
    return (bmi_size_t)(sizeof head + chance_below(&chance, 16384 - sizeof head + 1));
}

static uint64_t key_of(struct head head)
{
    return pattern_key(head.sender + 100, head.number);
}

/* ---- senders --------------------------------------------------------------------------------- */

static int sender(void *argument, int channel)
{
    static struct noted noted[MESSAGES];
    static char *buffers[MESSAGES];
    struct head head = {.sender = *(const uint32_t *)argument};
    BMI_addr_t server = client_open(channel);
    for (head.number = 0; head.number < messages; head.number++) {
        size_t size = (size_t)size_of(head);
        char *buffer = buffers[head.number] = malloc(size);
        CHECK(buffer != NULL, "no memory");
        memcpy(buffer, &head, sizeof head);
        pattern_fill(buffer + sizeof head, size - sizeof head, key_of(head), 0);
        note_sendunexpected(&noted[head.number], server, buffer, (bmi_size_t)size, SLOW_TAG);
    }
    for (unsigned i = 0; i < messages; i++) {
        while (!noted[i].ended)
            operations_step(1000);
        CHECK(noted[i].status == 0, "message %u: %s", i, status_name(noted[i].status));
        free(buffers[i]);
    }
    tell_number(channel, (int64_t)statistics_of(0).credit_waits);
    hear_number(channel); /* all are fetched */
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* ---- server ---------------------------------------------------------------------------------- */

static uint32_t next_number[SENDERS];
static BMI_addr_t sender_address[SENDERS];
static unsigned fetched;
static uint64_t most_bytes, most_of_a_peer;
static struct BMI_unexpected_info kept[KEPT];

static void gauges_watch(void)
{
    uint64_t bytes = statistics_of(0).unexpected_bytes;
    most_bytes = bytes > most_bytes ? bytes : most_bytes;
    CHECK(bytes <= TOTAL_MEMORY, "%llu bytes of unexpected messages wait, %d are allowed",
          (unsigned long long)bytes, TOTAL_MEMORY);
    for (unsigned i = 0; i < SENDERS; i++) {
        if (sender_address[i] == 0)
            continue;
        bytes = statistics_of(sender_address[i]).unexpected_bytes;
        most_of_a_peer = bytes > most_of_a_peer ? bytes : most_of_a_peer;
        CHECK(bytes <= PEER_MEMORY, "%llu bytes of one peer wait, %d are allowed",
              (unsigned long long)bytes, PEER_MEMORY);
    }
}

static void message_check(const struct BMI_unexpected_info *info)
{
    struct head head;
    CHECK(info->tag == SLOW_TAG && info->size >= (bmi_size_t)sizeof head,
          "a message with tag %d of %lld bytes", info->tag, (long long)info->size);
    memcpy(&head, info->buffer, sizeof head);
    CHECK(head.sender < SENDERS, "a message of sender %u", head.sender);
    CHECK(sender_address[head.sender] == 0 || sender_address[head.sender] == info->addr,
          "a sender has two addresses");
    sender_address[head.sender] = info->addr;
    CHECK(head.number == next_number[head.sender], "message %u of sender %u came instead of %u",
          head.number, head.sender, next_number[head.sender]);
    next_number[head.sender]++;
    CHECK(info->size == size_of(head), "message %u has %lld bytes", head.number,
          (long long)info->size);
    CHECK(pattern_wrong((char *)info->buffer + sizeof head, (size_t)info->size - sizeof head,
                        key_of(head), 0) < 0,
          "message %u of sender %u is wrong", head.number, head.sender);
}

static void kept_give_back(struct BMI_unexpected_info *place)
{
    if (place->buffer)
        must(BMI_unexpected_free(place->addr, place->buffer), "BMI_unexpected_free");
    place->buffer = NULL;
}

/* Frees buffers late, and not in the order of the messages. */
static void message_keep(const struct BMI_unexpected_info *info, struct chance *chance)
{
    struct BMI_unexpected_info *place = &kept[chance_below(chance, KEPT)];
    kept_give_back(place);
    *place = *info;
}

/* Tests only the context: unexpected messages pile up, the echo continues. */
static void no_fetch_step(int wait_ms)
{
    struct completion completion;
    bool any = next_completion(test_context, wait_ms, &completion);
    for (; any; any = next_completion(test_context, 0, &completion)) {
        struct operation *operation = completion.user;
        operation->done(operation, completion.status, completion.size);
    }
}

/* Until the gauge does not change for a while. */
static void pile_up(void)
{
    uint64_t since = now_ns(), bytes = 0, first = now_ns();
    while (now_ns() - since < UINT64_C(300000000) || bytes == 0) {
        no_fetch_step(1);
        gauges_watch();
        uint64_t now = statistics_of(0).unexpected_bytes;
        if (now != bytes)
            since = now_ns();
        bytes = now;
        CHECK(now_ns() - first < TEST_BOUND_MS * UINT64_C(1000000),
              "the memory of unexpected messages never settles");
    }
    printf("  nothing fetched: %llu bytes wait, resident %zu KiB\n", (unsigned long long)bytes,
           memory_resident() >> 10);
}

static void fetch_slowly(struct chance *chance)
{
    unsigned steps = 0;
    while (fetched < SENDERS * messages) {
        struct BMI_unexpected_info info;
        int count = 0;
        must(BMI_testunexpected(1, &count, &info, 1), "BMI_testunexpected");
        no_fetch_step(0);
        if (++steps % 16 == 0)
            gauges_watch();
        if (count == 0) { /* those kept may be all that their sender is allowed */
            kept_give_back(&kept[chance_below(chance, KEPT)]);
            continue;
        }
        message_check(&info);
        message_keep(&info, chance);
        fetched++;
    }
    for (unsigned i = 0; i < KEPT; i++)
        kept_give_back(&kept[i]);
}

static void nothing_left(void)
{
    struct BMI_unexpected_info info;
    int count = 0;
    must(BMI_testunexpected(1, &count, &info, 100), "BMI_testunexpected");
    CHECK(count == 0, "more messages came than were sent");
    struct bmi_statistics gauges = statistics_of(0);
    CHECK(gauges.unexpected_bytes == 0 && gauges.unexpected_waiting == 0,
          "the library still counts %llu unexpected bytes",
          (unsigned long long)gauges.unexpected_bytes);
    for (unsigned i = 0; i < SENDERS; i++)
        CHECK(next_number[i] == messages, "sender %u: %u of %u messages", i, next_number[i],
              messages);
}

static struct child senders[SENDERS];

static void senders_end(void)
{
    int64_t waits = 0;
    for (unsigned i = 0; i < SENDERS; i++) {
        while (!heard(senders[i].channel, 0))
            no_fetch_step(0);
        waits += hear_number(senders[i].channel);
    }
    printf("  most bytes waiting: %llu of %d in all, %llu of %d of a peer; %lld sends waited\n",
           (unsigned long long)most_bytes, TOTAL_MEMORY, (unsigned long long)most_of_a_peer,
           PEER_MEMORY, (long long)waits);
    CHECK(waits > 0, "no sender had to wait: the test tests nothing");
    for (unsigned i = 0; i < SENDERS; i++) {
        tell_number(senders[i].channel, 0);
        child_end(&senders[i]);
    }
}

int main(void)
{
    test_begin("slow_server_fault", 60);
    struct chance chance = {.state = test_seed()};
    struct echo_report *report = shared_memory(sizeof *report);
    messages = test_scaled(MESSAGES, 100);
    messages = messages > MESSAGES ? MESSAGES : messages;
    for (uint32_t i = 0; i < SENDERS; i++)
        senders[i] = child_start("sender", sender, &i);
    struct child client = echo_client_start(report);

    setenv("BMI_PEER_MEMORY", "256K", 1);
    setenv("BMI_TOTAL_MEMORY", "1M", 1);
    serve_here(0, listening);
    operations_open();
    echo_client_go(report, &client, listening);
    struct echo_pace before = echo_pace(report, 500);

    for (unsigned i = 0; i < SENDERS; i++)
        tell(senders[i].channel, listening, sizeof listening);
    pile_up();
    atomic_store(&report->longest_ns, 0);
    unsigned long exchanges = atomic_load(&report->exchanges);
    uint64_t start = now_ns();
    fetch_slowly(&chance);
    struct echo_pace now = {
        .exchanges_per_s = (double)(atomic_load(&report->exchanges) - exchanges) /
                           ((double)(now_ns() - start) / 1e9),
        .longest_ns = atomic_load(&report->longest_ns),
    };
    nothing_left();
    senders_end();
    echo_pace_unharmed(&before, &now);
    echo_client_end(report, &client);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return test_passed();
}
