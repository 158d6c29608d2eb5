/* SPDX-License-Identifier: BSD-3-Clause
 *
 * script_case.c - see script_case.h.
 */
#include "tests/unit/script_case.h"
#include "bmi/base/instance.h"

#include "bmi/base/settings.h"
#include "bmi/protocol/credit.h"

bmi_context_id case_context;

static void case_begin(void)
{
    CU_ASSERT_EQUAL_FATAL(
        bmi__settings_set(&bmi__default,
                          "immediate=off,announce=on,peer_memory=1M,total_memory=256M,"
                          "cancel_grace_ms=60000,connect_timeout_ms=10000,peer_timeout_ms=30000,"
                          "eager_max=0,spin_us=0"),
        0);
    CU_ASSERT_EQUAL_FATAL(BMI_initialize(NULL, NULL, 0), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&case_context), 0);
}

static void case_end(void)
{
    struct bmi_statistics all;
    BMI_close_context(case_context);
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_GET_STATISTICS, &all), 0);
    CU_ASSERT_EQUAL(all.outstanding_receives, 0);
    CU_ASSERT_EQUAL(all.outstanding_sends, 0);
    CU_ASSERT_EQUAL(all.unmatched_messages, 0);
    CU_ASSERT_EQUAL(all.unmatched_bytes, 0);
    CU_ASSERT_EQUAL(credit_used(), 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

int64_t credit_used(void)
{
    return bmi__credit_used(&bmi__default);
}

int script_suite_run(const char *name, CU_TestInfo *tests)
{
    CU_SuiteInfo suites[] = {
        {.pName = name, .pSetUpFunc = case_begin, .pTearDownFunc = case_end, .pTests = tests},
        CU_SUITE_INFO_NULL};
    return unit_run_suites(suites);
}

struct script *open_script(enum script_kind kind, const struct script_offer *offer)
{
    struct script *script = script_open(kind, offer);
    CU_ASSERT_PTR_NOT_NULL_FATAL(script);
    return script;
}

/* ---- posting -------------------------------------------------------------------------------- */

static void posted_clear(struct posted *posted, bmi_size_t size)
{
    posted->size = size;
    posted->actual = -1;
    posted->error = 1;
    posted->done = false;
    memset(posted->buffer, 0xee, sizeof posted->buffer);
}

static bmi_size_t usual_frame_max;

struct script *open_long_script(void)
{
    const struct script_offer offer = {.eager_max = 32768, .eager_credit = 1 << 20};
    struct bmi_method_limits *limits = &script_methods[SCRIPT_FRAMES].limits;
    usual_frame_max = limits->frame_max;
    limits->frame_max = 32768;
    CU_ASSERT_EQUAL_FATAL(bmi__settings_set(&bmi__default, "eager_max=32K"), 0);
    return open_script(SCRIPT_FRAMES, &offer);
}

void close_long_script(struct script *script)
{
    script_close(script);
    script_methods[SCRIPT_FRAMES].limits.frame_max = usual_frame_max;
}

void post_receive(struct script *script, struct posted *posted, bmi_size_t size, int tag)
{
    posted_clear(posted, size);
    CU_ASSERT_EQUAL(BMI_post_recv(&posted->id, script->address, posted->buffer, size,
                                  &posted->actual, BMI_EXT_ALLOC, tag, posted, case_context, NULL),
                    0);
}

void post_send(struct script *script, struct posted *posted, bmi_size_t size, int tag)
{
    posted_clear(posted, size);
    CU_ASSERT_EQUAL(BMI_post_send(&posted->id, script->address, posted->buffer, size, BMI_EXT_ALLOC,
                                  tag, posted, case_context, NULL),
                    0);
}

void post_unexpected(struct script *script, struct posted *posted, bmi_size_t size, int tag)
{
    posted_clear(posted, size);
    CU_ASSERT_EQUAL(BMI_post_sendunexpected(&posted->id, script->address, posted->buffer, size,
                                            BMI_EXT_ALLOC, tag, posted, case_context, NULL),
                    0);
}

void cancel(struct posted *posted)
{
    CU_ASSERT_EQUAL(BMI_cancel(posted->id, case_context), 0);
    script_drive();
}

/* ---- completion ----------------------------------------------------------------------------- */

bool done_within(struct posted *posted, int ms)
{
    int count = 0;
    void *user_ptr = NULL;
    if (posted->done)
        return true;
    CU_ASSERT_TRUE(BMI_test(posted->id, &count, &posted->error, &posted->actual, &user_ptr, ms,
                            case_context) >= 0);
    posted->done = count == 1;
    if (posted->done)
        CU_ASSERT_PTR_EQUAL(user_ptr, posted);
    return posted->done;
}

bool done(struct posted *posted)
{
    script_drive();
    return done_within(posted, 0);
}

bool received(struct posted *posted, int number, bmi_size_t size)
{
    return done(posted) && posted->error == 0 && posted->actual == size &&
           memcmp(posted->buffer, message(number, (size_t)size), (size_t)size) == 0;
}

bool failed(struct posted *posted, int32_t error)
{
    return done(posted) && posted->error == -error && posted->actual == 0;
}

/* ---- the other side reads ------------------------------------------------------------------- */

bool goes_to(struct script *script, struct posted *posted, uint64_t receive)
{
    struct wire_header first = script_expect(script, WIRE_DATA, NULL, 0);
    if (!(first.flags & WIRE_FIRST) || first.target != receive ||
        first.source != (uint64_t)posted->size || first.tag != TAG)
        return false;
    for (uint64_t bytes = first.length; bytes < (uint64_t)posted->size;) {
        struct wire_header next = script_expect(script, WIRE_DATA, NULL, 0);
        if (next.type == 0 || next.target != receive || (next.flags & WIRE_FIRST))
            return false;
        bytes += next.length;
        if (((next.flags & WIRE_LAST) != 0) != (bytes == (uint64_t)posted->size))
            return false;
    }
    return done(posted) && posted->error == 0 && posted->actual == posted->size;
}

uint64_t asks(struct script *script, struct posted *posted)
{
    struct wire_header rts = script_expect(script, WIRE_RTS, NULL, 0);
    return rts.type != 0 && rts.target == (uint64_t)posted->size ? rts.source : 0;
}

void announce_two(struct script *script, struct posted *first, struct posted *second)
{
    post_receive(script, first, LARGE, TAG);
    post_receive(script, second, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).source, (uint64_t)first->id);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).source, (uint64_t)second->id);
}

void announced_and_used(struct script *script, struct posted *one, struct posted *two,
                        uint64_t first, uint64_t second)
{
    CU_ASSERT_EQUAL(send_rtr(script, first, LARGE, 0, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr(script, second, LARGE, 1, TAG), 0);
    post_send(script, one, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, one, first));
    post_send(script, two, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, two, second));
}

/* ---- the other side sends ------------------------------------------------------------------- */

const uint8_t *message(int number, size_t size)
{
    static uint8_t bytes[1 << 17];
    for (size_t i = 0; i < size && i < sizeof bytes; i++)
        bytes[i] = (uint8_t)((size_t)number * 17 + i * 31 + i / 251);
    return bytes;
}

int send_eager(struct script *script, int number, size_t size, int tag)
{
    return script_send(script, (struct wire_header){.type = WIRE_EAGER, .tag = tag},
                       message(number, size), size);
}

int send_rts(struct script *script, uint64_t sender, uint64_t size, int tag)
{
    return script_send(
        script,
        (struct wire_header){.type = WIRE_RTS, .tag = tag, .source = sender, .target = size}, NULL,
        0);
}

int send_data(struct script *script, uint64_t receive, int number, size_t size, bool first, int tag)
{
    struct wire_header header = {.type = WIRE_DATA, .flags = WIRE_LAST, .target = receive};
    if (first) {
        header.flags |= WIRE_FIRST;
        header.tag = tag;
        header.source = size;
    }
    return script_send(script, header, message(number, size), size);
}

int send_abort(struct script *script, uint64_t sender, uint64_t receive, bool moved, int tag)
{
    return script_send(script,
                       (struct wire_header){.type = WIRE_ABORT,
                                            .tag = tag,
                                            .flags = moved ? WIRE_MOVED : 0,
                                            .source = sender,
                                            .target = receive},
                       NULL, 0);
}

int send_rtr(struct script *script, uint64_t receive, uint64_t capacity, uint32_t ahead, int tag)
{
    return script_send(script,
                       (struct wire_header){.type = WIRE_RTR,
                                            .tag = tag,
                                            .credit = ahead,
                                            .source = receive,
                                            .target = capacity},
                       NULL, 0);
}

int send_rtr_memory(struct script *script, uint64_t receive, void *memory, uint64_t length)
{
    uint8_t bytes[WIRE_REGION];
    struct bmi_region region = {.address = (uintptr_t)memory, .length = length, .key = 1};
    wire_regions_encode(bytes, &region, 1);
    return script_send(
        script,
        (struct wire_header){.type = WIRE_RTR, .tag = TAG, .source = receive, .target = LARGE},
        bytes, sizeof bytes);
}

int send_cancelled(struct script *script, uint64_t receive)
{
    struct wire_header answer = {.type = WIRE_RTR_CANCELLED, .tag = TAG, .target = receive};
    return script_send(script, answer, NULL, 0);
}

int send_cts(struct script *script, uint64_t sender, uint64_t receive, uint8_t flags)
{
    return script_send(
        script,
        (struct wire_header){.type = WIRE_CTS, .flags = flags, .source = receive, .target = sender},
        NULL, 0);
}

int send_credit(struct script *script, uint32_t eager, uint32_t unexpected)
{
    return script_send(
        script, (struct wire_header){.type = WIRE_CREDIT, .credit = eager, .source = unexpected},
        NULL, 0);
}

int send_want(struct script *script, uint8_t flags, uint64_t bytes, int tag)
{
    return script_send(
        script,
        (struct wire_header){.type = WIRE_WANT, .flags = flags, .tag = tag, .source = bytes}, NULL,
        0);
}

int request_for_get(struct script *script)
{
    uint8_t bytes[WIRE_REGION];
    struct bmi_region region = {.address = (uintptr_t)message(4, LARGE), .length = LARGE};
    wire_regions_encode(bytes, &region, 1);
    struct wire_header rts = {.type = WIRE_RTS, .tag = TAG, .source = 66, .target = LARGE};
    return script_send(script, rts, bytes, sizeof bytes);
}

struct wire_header stream_start(uint64_t receive, uint64_t size)
{
    return (struct wire_header){
        .type = WIRE_DATA, .flags = WIRE_FIRST, .tag = TAG, .source = size, .target = receive};
}
