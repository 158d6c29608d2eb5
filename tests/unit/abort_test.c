/* SPDX-License-Identifier: BSD-3-Clause
 *
 * abort_test.c - messages that their sender cancels, frame by frame, on the receiving side: ABORT
 * of a request or a stream, the receives that come back, and VOID. The sender is a script.
 */
#include "bmi/base/instance.h"
#include "tests/unit/script_case.h"

static struct posted one, two, three;

static void abort_of_a_request_that_waits(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(send_rts(script, 31, LARGE, TAG), 0);
    CU_ASSERT_EQUAL(send_rts(script, 32, LARGE, TAG), 0);
    CU_ASSERT_EQUAL(send_abort(script, 31, 0, false, TAG), 0);
    post_receive(script, &one, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_CTS, NULL, 0).target, 32);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 2, LARGE, false, 0), 0);
    CU_ASSERT_TRUE(received(&one, 2, LARGE));
    script_close(script);
}

static void abort_of_nothing(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(send_eager(script, 5, SMALL, TAG), 0);
    CU_ASSERT_EQUAL(send_abort(script, 0, 0, false, TAG), 0);
    CU_ASSERT_EQUAL(send_abort(script, 31, 0, false, TAG), 0);
    post_receive(script, &one, LARGE, TAG);
    CU_ASSERT_TRUE(received(&one, 5, SMALL));
    script_close(script);
}

/* So many that a linear search would not do: of two tags, with equal operation ids, cancelled in
 * another order than they came; the remaining ones keep their receives. */
static void abort_of_many_requests(void)
{
    enum { MANY = 300, FIRST = 1000, STEP = 7 };
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    for (int round = 0; round < 2; round++) { /* the first round leaves none */
        for (uint64_t i = 0; i < MANY; i++)
            CU_ASSERT_EQUAL(send_rts(script, FIRST + i / 2, LARGE, TAG + (int)(i % 2)), 0);
        CU_ASSERT_EQUAL(send_abort(script, FIRST + MANY, 0, false, TAG), 0); /* of no request */
        CU_ASSERT_EQUAL(send_abort(script, 0, 0, false, TAG), 0);
        for (uint64_t i = 0, at = 0; i < MANY / 2; i++, at = (at + STEP) % (MANY / 2)) {
            CU_ASSERT_EQUAL(send_abort(script, FIRST + at, 0, false, TAG), 0);
            if (round == 0 || at % 3 != 0)
                CU_ASSERT_EQUAL(send_abort(script, FIRST + at, 0, false, TAG + 1), 0);
        }
    }
    for (uint64_t i = 0; i < MANY / 2; i += 3) {
        post_receive(script, &one, LARGE, TAG + 1);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_CTS, NULL, 0).target, FIRST + i);
        CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 2, LARGE, false, 0), 0);
        CU_ASSERT_TRUE(received(&one, 2, LARGE));
    }
    post_receive(script, &one, LARGE, TAG);
    CU_ASSERT_EQUAL(send_eager(script, 5, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&one, 5, SMALL));
    script_close(script);
}

static void abort_gives_the_receive_back(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "announce=off"), 0);
    post_receive(script, &one, LARGE, TAG);
    post_receive(script, &two, LARGE, TAG);
    CU_ASSERT_EQUAL(send_rts(script, 31, LARGE, TAG), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_CTS, NULL, 0).target, 31);
    CU_ASSERT_EQUAL(send_abort(script, 31, 0, false, TAG), 0);
    CU_ASSERT_FALSE(done(&one));
    CU_ASSERT_EQUAL(send_eager(script, 5, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&one, 5, SMALL));
    CU_ASSERT_FALSE(done(&two));
    CU_ASSERT_EQUAL(send_eager(script, 6, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 6, SMALL));
    script_close(script);
}

/* When an ABORT names a receive it may have been given back already, and have another message. */
static void abort_of_an_earlier_message(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "announce=off"), 0);
    post_receive(script, &one, LARGE, TAG);
    CU_ASSERT_EQUAL(send_rts(script, 31, LARGE, TAG), 0);
    CU_ASSERT_EQUAL(send_abort(script, 31, 0, false, TAG), 0);
    CU_ASSERT_EQUAL(send_rts(script, 32, LARGE, TAG), 0);
    CU_ASSERT_EQUAL(send_abort(script, 31, (uint64_t)one.id, false, TAG), 0);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 2, LARGE, false, 0), 0);
    CU_ASSERT_TRUE(received(&one, 2, LARGE));
    script_close(script);
}

/* Two receives whose CTS was sent come back in any order: the older one is first again. */
static void receives_given_back_keep_their_order(void)
{
    for (int order = 0; order < 2; order++) {
        struct script *script = open_script(SCRIPT_FRAMES, NULL);
        CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "announce=off"), 0);
        post_receive(script, &one, LARGE, TAG);
        post_receive(script, &two, LARGE, TAG);
        post_receive(script, &three, LARGE, TAG);
        CU_ASSERT_EQUAL(send_rts(script, 31, LARGE, TAG), 0);
        CU_ASSERT_EQUAL(send_rts(script, 32, LARGE, TAG), 0);
        CU_ASSERT_EQUAL(send_abort(script, order ? 32 : 31, 0, false, TAG), 0);
        CU_ASSERT_EQUAL(send_abort(script, order ? 31 : 32, 0, false, TAG), 0);
        for (int i = 1; i <= 3; i++)
            CU_ASSERT_EQUAL(send_eager(script, i, SMALL, TAG), 0);
        CU_ASSERT_TRUE(received(&one, 1, SMALL));
        CU_ASSERT_TRUE(received(&two, 2, SMALL));
        CU_ASSERT_TRUE(received(&three, 3, SMALL));
        script_close(script);
    }
}

/* A receive that comes back finds a message that is too large for it. It was posted before the
 * message came: both end. */
static void a_receive_given_back_to_a_message_too_large(void)
{
    enum { EAGER_WHOLE, REQUEST, EAGER_IN_PIECES, CASES };
    for (int i = 0; i < CASES; i++) {
        struct script *script = open_script(SCRIPT_FRAMES, NULL);
        CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "announce=off"), 0);
        post_receive(script, &one, SMALL, TAG);
        CU_ASSERT_EQUAL(send_rts(script, 31, SMALL, TAG), 0);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_CTS, NULL, 0).target, 31);
        struct wire_header eager = {.type = WIRE_EAGER, .tag = TAG, .length = 2 * SMALL};
        if (i == REQUEST)
            CU_ASSERT_EQUAL(send_rts(script, 32, LARGE, TAG), 0);
        if (i == EAGER_WHOLE)
            CU_ASSERT_EQUAL(send_eager(script, 2, 2 * SMALL, TAG), 0);
        CU_ASSERT_EQUAL(send_abort(script, 31, 0, false, TAG), 0);
        if (i == EAGER_IN_PIECES) {
            CU_ASSERT_EQUAL(script_begin(script, eager), 0);
            CU_ASSERT_EQUAL(script_body(script, message(2, 2 * SMALL), 2 * SMALL), 0);
        }
        CU_ASSERT_TRUE(failed(&one, BMI_EMSGSIZE));
        CU_ASSERT_EQUAL(one.buffer[0], 0xee);
        if (i == REQUEST)
            CU_ASSERT_EQUAL(script_expect(script, WIRE_CTS, NULL, 0).flags, WIRE_DISCARD);
        post_receive(script, &two, LARGE, TAG); /* for the next one */
        CU_ASSERT_EQUAL(send_eager(script, 3, SMALL, TAG), 0);
        CU_ASSERT_TRUE(received(&two, 3, SMALL));
        script_close(script);
    }
}

/* An announced receive took a request that crossed its announcement. Given back, it is announced
 * again, and takes the next message as its first. */
static void an_announced_receive_given_back(void)
{
    struct script *script = open_script(SCRIPT_PUT, NULL);
    post_receive(script, &one, LARGE, TAG);
    CU_ASSERT_EQUAL(send_rts(script, 31, LARGE, TAG), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).length, WIRE_REGION);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_CTS, NULL, 0).length, WIRE_REGION);
    CU_ASSERT_EQUAL(send_abort(script, 31, 0, false, TAG), 0);
    struct wire_header again = script_expect(script, WIRE_RTR, NULL, 0);
    CU_ASSERT_EQUAL(again.source, (uint64_t)one.id);
    CU_ASSERT_EQUAL(again.length, WIRE_REGION);
    CU_ASSERT_EQUAL(script->exposed, 1);
    struct wire_header data = stream_start((uint64_t)one.id, LARGE);
    CU_ASSERT_EQUAL(script_send(script, data, message(1, LARGE), 1000), 0);
    CU_ASSERT_EQUAL(send_abort(script, 32, (uint64_t)one.id, true, TAG), 0);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_EQUAL(script->exposed, 0);
    ALIVE(script);
    script_close(script);
}

static void abort_after_bytes_moved_fails_the_receive(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    announce_two(script, &one, &two);
    struct wire_header data = stream_start((uint64_t)one.id, LARGE);
    CU_ASSERT_EQUAL(script_send(script, data, message(1, LARGE), 1000), 0);
    CU_ASSERT_EQUAL(send_abort(script, 31, (uint64_t)one.id, true, TAG), 0);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, LARGE, true, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, LARGE));
    script_close(script);
}

/* A cancelled receive with a pending RTR_CANCEL took a request which is then aborted: it must not
 * come back and take a later message. */
static void abort_of_a_cancelled_receives_message(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "cancel_grace_ms=20"), 0);
    post_receive(script, &one, LARGE, TAG);
    post_receive(script, &two, SMALL, TAG);
    script_expect(script, WIRE_RTR, NULL, 0);
    CU_ASSERT_EQUAL(BMI_cancel(one.id, case_context), 0);
    CU_ASSERT_EQUAL(send_rts(script, 31, LARGE, TAG), 0); /* crosses the RTR_CANCEL */
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCEL, NULL, 0).source, (uint64_t)one.id);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_CTS, NULL, 0).target, 31);
    CU_ASSERT_EQUAL(send_cancelled(script, (uint64_t)one.id), 0);
    CU_ASSERT_EQUAL(send_abort(script, 31, (uint64_t)one.id, false, TAG), 0);
    CU_ASSERT_TRUE(done_within(&one, 60000));
    CU_ASSERT_EQUAL(one.error, -BMI_ECANCEL);
    CU_ASSERT_EQUAL(send_eager(script, 2, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, SMALL));
    ALIVE(script);
    script_close(script);
}

static void void_counts_and_does_nothing(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).seen, 0);
    CU_ASSERT_EQUAL(script_send(script, (struct wire_header){.type = WIRE_VOID, .tag = TAG}, NULL,
                                0),
                    0);
    CU_ASSERT_FALSE(done(&one));
    post_receive(script, &two, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).seen, 1);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 1, LARGE, true, TAG), 0);
    CU_ASSERT_TRUE(received(&one, 1, LARGE));
    script_close(script);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"ABORT of a request that waits", abort_of_a_request_that_waits},
        {"ABORT of nothing", abort_of_nothing},
        {"ABORT of many requests", abort_of_many_requests},
        {"ABORT gives the receive back", abort_gives_the_receive_back},
        {"ABORT of an earlier message", abort_of_an_earlier_message},
        {"receives given back keep order", receives_given_back_keep_their_order},
        {"given back to a message too large", a_receive_given_back_to_a_message_too_large},
        {"an announced receive given back", an_announced_receive_given_back},
        {"ABORT after bytes moved", abort_after_bytes_moved_fails_the_receive},
        {"ABORT of a cancelled one's message", abort_of_a_cancelled_receives_message},
        {"VOID counts and does nothing", void_counts_and_does_nothing},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("messages taken back", tests);
}
