/* SPDX-License-Identifier: BSD-3-Clause
 *
 * send_cancel_test.c - sends that are cancelled, frame by frame: before they left, while they wait,
 * after RTS, and in the midst; and the effects on other sends. The receiver is a script.
 */
#include "bmi/base/clock.h"
#include "bmi/base/instance.h"
#include "bmi/base/settings.h"
#include "bmi/progress/progress.h"
#include "tests/unit/script_case.h"

static struct posted one, two, three, four;

/* ---- eager ---------------------------------------------------------------------------------- */

/* Withdrawn sends leave frames for a peer that does not read; the peer has not caused them. */
static void cancelled_while_the_peer_does_not_read(void)
{
    enum { MANY = 2 * ANSWERS_MOST };
    static bmi_op_id_t ids[MANY];
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    script->stuck = true;
    for (int i = 0; i < MANY; i++)
        CU_ASSERT_EQUAL(BMI_post_send(&ids[i], script->address, "", 0, BMI_EXT_ALLOC, TAG, NULL,
                                      case_context, NULL),
                        0);
    for (int i = 0; i < MANY; i++) {
        bmi_error_code_t error;
        int count;
        CU_ASSERT_EQUAL(BMI_cancel(ids[i], case_context), 0);
        CU_ASSERT_EQUAL(BMI_test(ids[i], &count, &error, NULL, NULL, 0, case_context), 1);
        CU_ASSERT_EQUAL(error, -BMI_ECANCEL);
    }
    CU_ASSERT_EQUAL(script_send(script, (struct wire_header){.type = WIRE_PING}, NULL, 0), 0);
    ALIVE(script);
    script_close(script);
}

/* The same for large ones, which were all started if their receives were announced. */
static void started_and_cancelled_while_the_peer_does_not_read(void)
{
    enum { MANY = ANSWERS_MOST + 512 };
    static bmi_op_id_t ids[MANY];
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    for (unsigned i = 0; i < MANY; i++)
        CU_ASSERT_EQUAL(send_rtr(script, i + 1, LARGE, i, TAG), 0);
    script->stuck = true;
    for (int i = 0; i < MANY; i++)
        CU_ASSERT_EQUAL(BMI_post_send(&ids[i], script->address, message(1, LARGE), LARGE,
                                      BMI_EXT_ALLOC, TAG, NULL, case_context, NULL),
                        0);
    for (int i = 0; i < MANY; i++) {
        bmi_error_code_t error;
        int count;
        CU_ASSERT_EQUAL(BMI_cancel(ids[i], case_context), 0);
        CU_ASSERT_EQUAL(BMI_test(ids[i], &count, &error, NULL, NULL, 0, case_context), 1);
        CU_ASSERT_EQUAL(error, -BMI_ECANCEL);
    }
    CU_ASSERT_EQUAL(script_send(script, (struct wire_header){.type = WIRE_PING}, NULL, 0), 0);
    ALIVE(script);
    script_close(script);
}

static void cancelled_before_it_left(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    script->stuck = true;
    post_send(script, &one, SMALL, TAG);
    post_send(script, &two, SMALL, TAG);
    post_send(script, &three, SMALL, TAG);
    post_unexpected(script, &four, SMALL, TAG);
    cancel(&two);
    cancel(&four);
    CU_ASSERT_TRUE(failed(&two, BMI_ECANCEL));
    CU_ASSERT_TRUE(failed(&four, BMI_ECANCEL));
    script->stuck = false;
    CU_ASSERT_EQUAL(send_credit(script, 1, 0), 0);
    post_send(script, &two, 0, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_VOID, NULL, 0).tag, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, 0);
    CU_ASSERT_TRUE(done(&one) && done(&three) && one.error == 0 && three.error == 0);
    script_close(script);
}

/* The credit of a message that never left is free for the next one. */
static void cancelled_gives_its_credit_back(void)
{
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = SMALL + WIRE_MESSAGE_CHARGE,
                                       .unexpected_credit = SMALL + WIRE_MESSAGE_CHARGE};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    script->stuck = true;
    post_send(script, &one, SMALL, TAG);
    post_unexpected(script, &two, SMALL, TAG);
    cancel(&one);
    cancel(&two);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL) && failed(&two, BMI_ECANCEL));
    script->stuck = false;
    post_send(script, &three, SMALL, TAG);
    post_unexpected(script, &four, SMALL, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_VOID, NULL, 0).tag, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_UNEXPECTED, NULL, 0).length, SMALL);
    CU_ASSERT_TRUE(script_silent(script));
    CU_ASSERT_TRUE(done(&three) && done(&four) && three.error == 0 && four.error == 0);
    script_close(script);
}

/* An announcement that crosses the frame sent in place of a withdrawn message is for the next
 * message. */
static void cancelled_is_not_counted(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    script->stuck = true;
    post_send(script, &one, SMALL, TAG);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    script->stuck = false;
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    post_send(script, &two, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_VOID, NULL, 0).tag, TAG);
    CU_ASSERT_TRUE(goes_to(script, &two, 71));
    script_close(script);
}

/* The next message goes to the second receive, and the first receive is left: announcements made
 * before the peer has seen that are not used. */
static void cancelled_before_another(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    script->stuck = true;
    for (uint32_t i = 0; i < 2; i++)
        CU_ASSERT_EQUAL(send_rtr(script, 71 + i, LARGE, i, TAG), 0);
    post_send(script, &one, LARGE, TAG);
    post_send(script, &two, LARGE, TAG);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    for (uint32_t i = 0; i < 2; i++) /* again */
        CU_ASSERT_EQUAL(send_rtr(script, 71 + i, LARGE, i, TAG), 0);
    script->stuck = false;
    script_write(script, 100);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_VOID, NULL, 0).tag, TAG);
    CU_ASSERT_TRUE(goes_to(script, &two, 72));
    post_send(script, &three, LARGE, TAG);
    CU_ASSERT_NOT_EQUAL(asks(script, &three), 0);
    CU_ASSERT_EQUAL(send_rtr(script, 73, LARGE, 0, TAG), 0);
    post_send(script, &four, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, &four, 73));
    cancel(&three);
    script_close(script);
}

static void cancelled_while_it_waits_for_credit(void)
{
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = SMALL + WIRE_MESSAGE_CHARGE};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    post_send(script, &four, SMALL, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    post_send(script, &one, SMALL, TAG);
    post_send(script, &two, SMALL, TAG);
    post_unexpected(script, &three, SMALL, TAG);
    cancel(&one);
    cancel(&three);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL) && failed(&three, BMI_ECANCEL));
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_EAGER_CREDIT);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_UNEXPECTED_CREDIT);
    CU_ASSERT_EQUAL(send_credit(script, 4096, 4096), 0);
    struct wire_header back = script_expect(script, WIRE_WANT, NULL, 0); /* no message needs
                                                                            it now */
    CU_ASSERT_EQUAL(back.flags, WIRE_UNUSED);
    CU_ASSERT_EQUAL(back.source, 4096);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    CU_ASSERT_TRUE(script_silent(script));
    CU_ASSERT_TRUE(done(&two) && two.error == 0);
    script_close(script);
}

/* It waited for more credit than later ones need. */
static void cancelled_it_lets_smaller_ones_go(void)
{
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = 2 * (SMALL + WIRE_MESSAGE_CHARGE)};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    post_send(script, &four, SMALL, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    post_send(script, &one, 3 * SMALL, TAG);
    post_send(script, &two, SMALL, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_EAGER_CREDIT);
    CU_ASSERT_TRUE(script_silent(script));
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    CU_ASSERT_TRUE(done(&two) && two.error == 0);
    script_close(script);
}

/* Likewise; if there is no such credit either, WANT requests it. */
static void cancelled_it_lets_unexpected_ones_go(void)
{
    for (int credit = 0; credit < 2; credit++) {
        const struct script_offer offer = {.eager_max = 16384,
                                           .unexpected_max = 16384,
                                           .unexpected_credit = (uint32_t)(1 + credit) *
                                                                (SMALL + WIRE_MESSAGE_CHARGE)};
        struct script *script = open_script(SCRIPT_FRAMES, &offer);
        post_unexpected(script, &three, SMALL, TAG);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_UNEXPECTED, NULL, 0).length, SMALL);
        post_unexpected(script, &one, 3 * SMALL, TAG);
        post_unexpected(script, &two, SMALL, TAG);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_UNEXPECTED_CREDIT);
        CU_ASSERT_TRUE(script_silent(script));
        cancel(&one);
        CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
        if (credit == 0) {
            struct wire_header want = script_expect(script, WIRE_WANT, NULL, 0);
            CU_ASSERT_EQUAL(want.flags, WIRE_UNEXPECTED_CREDIT);
            CU_ASSERT_EQUAL(want.source, SMALL + WIRE_MESSAGE_CHARGE);
            CU_ASSERT_EQUAL(send_credit(script, 0, SMALL + WIRE_MESSAGE_CHARGE), 0);
        }
        CU_ASSERT_EQUAL(script_expect(script, WIRE_UNEXPECTED, NULL, 0).length, SMALL);
        CU_ASSERT_TRUE(done(&two) && two.error == 0);
        script_close(script);
    }
}

/* It had the credit that others wait for. */
static void cancelled_it_lets_others_go(void)
{
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = SMALL + WIRE_MESSAGE_CHARGE,
                                       .unexpected_credit = SMALL + WIRE_MESSAGE_CHARGE};
    for (int tag = TAG; tag < TAG + 2; tag++) {
        struct script *script = open_script(SCRIPT_FRAMES, &offer);
        script->stuck = true;
        post_send(script, &one, SMALL, TAG);
        post_unexpected(script, &two, SMALL, TAG);
        post_send(script, &three, SMALL, tag);
        post_unexpected(script, &four, SMALL, TAG);
        cancel(&one);
        cancel(&two);
        CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL) && failed(&two, BMI_ECANCEL));
        script_write(script, 100);
        CU_ASSERT_TRUE(done(&three) && three.error == 0);
        CU_ASSERT_TRUE(done(&four) && four.error == 0);
        script_close(script);
    }
}

/* The rest of the other side's window is too small for the next message of the tag. That message
 * uses the announcement that the withdrawn message had used up, or that was dropped because that
 * message was under way. */
static void cancelled_it_leaves_its_receive(void)
{
    enum { BEFORE = 3 * SMALL, LEFT = SMALL, NEXT = 2 * SMALL };
    for (int used = 0; used < 2; used++) {
        const struct script_offer offer = {.eager_max = 16384,
                                           .unexpected_max = 16384,
                                           .eager_credit = BEFORE + LEFT + 2 * WIRE_MESSAGE_CHARGE};
        struct script *script = open_script(SCRIPT_FRAMES, &offer);
        script->stuck = true;
        post_send(script, &three, BEFORE, TAG + 1);
        if (used)
            CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
        post_send(script, &one, used ? NEXT : LEFT, TAG);
        if (!used)
            CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
        post_send(script, &two, NEXT, TAG);
        cancel(&one);
        CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
        script->stuck = false;
        script_write(script, 100);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).tag, TAG + 1);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_VOID, NULL, 0).tag, TAG);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_EAGER_CREDIT);
        struct wire_header want = script_expect(script, WIRE_WANT, NULL, 0);
        CU_ASSERT_EQUAL(want.flags, WIRE_EAGER_CREDIT | WIRE_ANNOUNCE);
        CU_ASSERT_EQUAL(want.tag, TAG);
        CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
        CU_ASSERT_TRUE(goes_to(script, &two, 71));
        CU_ASSERT_TRUE(done(&three) && three.error == 0);
        script_close(script);
    }
}

/* ---- rendezvous ----------------------------------------------------------------------------- */

/* Withdrawn bytes are not under way any more, so they do not count against the limit of bytes under
 * way. */
static void cancelled_streams_leave_room_for_others(void)
{
    enum { TIMES = 200 }; /* 16 KiB each, of 2 MiB */
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    for (uint64_t i = 0; i < TIMES; i++) {
        CU_ASSERT_EQUAL(send_rtr(script, 71 + i, LARGE, 0, TAG), 0);
        script->stuck = true;
        post_send(script, &one, LARGE, TAG);
        cancel(&one);
        CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
        script_write(script, 1);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_VOID, NULL, 0).tag, TAG);
    }
    script->stuck = false;
    announced_and_used(script, &two, &three, 71 + TIMES, 72 + TIMES);
    script_close(script);
}

/* The receive that the request took comes back before all others; then come the announced ones. */
static void cancelled_after_it_asked(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_send(script, &one, LARGE, TAG);
    uint64_t sender = asks(script, &one);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 0, TAG), 0); /* 71 took the request */
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_EQUAL(send_cts(script, sender, 71, 0), 0); /* crosses the ABORT: not answered */
    struct wire_header abort = script_expect(script, WIRE_ABORT, NULL, 0);
    CU_ASSERT_EQUAL(abort.source, sender);
    CU_ASSERT_EQUAL(abort.target, 0);
    CU_ASSERT_EQUAL(abort.flags, 0);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 1, TAG), 0); /* again: 71 is before it */
    post_send(script, &two, LARGE, TAG);                     /* for 71 */
    CU_ASSERT_NOT_EQUAL(asks(script, &two), 0);
    post_send(script, &three, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, &three, 72));
    cancel(&two);
    script_close(script);
}

/* An announcement that was made before the ABORT was seen does not count the receive that the ABORT
 * gives back: it is not used. */
static void announced_before_the_abort_was_seen(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_send(script, &one, LARGE, TAG);
    CU_ASSERT_NOT_EQUAL(asks(script, &one), 0);
    cancel(&one);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 0, TAG), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_ABORT, NULL, 0).flags, 0);
    post_send(script, &two, LARGE, TAG);
    CU_ASSERT_NOT_EQUAL(asks(script, &two), 0);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 0, TAG), 0); /* 71 was taken by the second */
    post_send(script, &three, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, &three, 72));
    cancel(&two);
    script_close(script);
}

/* It is not used, and no other event helps the waiting message: that sends WANT, again after each
 * ABORT. */
static void announced_too_soon_for_one_that_waits(void)
{
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = 2 * WIRE_MESSAGE_CHARGE};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    post_send(script, &one, LARGE, TAG);
    post_send(script, &two, LARGE, TAG);
    post_send(script, &three, LARGE, TAG);
    CU_ASSERT_NOT_EQUAL(asks(script, &one), 0);
    CU_ASSERT_NOT_EQUAL(asks(script, &two), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_EAGER_CREDIT);
    for (int i = 0; i < 2; i++) {
        cancel(i == 0 ? &one : &two);
        if (i == 0)
            CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_ABORT, NULL, 0).flags, 0);
        struct wire_header want = script_expect(script, WIRE_WANT, NULL, 0);
        CU_ASSERT_EQUAL(want.flags, WIRE_EAGER_CREDIT | WIRE_ANNOUNCE);
        CU_ASSERT_EQUAL(want.tag, TAG);
    }
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    CU_ASSERT_TRUE(goes_to(script, &three, 71));
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL) && failed(&two, BMI_ECANCEL));
    script_close(script);
}

static void cancelled_stream_of_which_nothing_left(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    script->stuck = true;
    post_send(script, &one, LARGE, TAG);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    script->stuck = false;
    CU_ASSERT_EQUAL(send_credit(script, 1, 0), 0);
    post_send(script, &two, LARGE, TAG); /* for the same receive, which was not used */
    CU_ASSERT_EQUAL(script_expect(script, WIRE_VOID, NULL, 0).tag, TAG);
    CU_ASSERT_NOT_EQUAL(asks(script, &two), 0);
    cancel(&two);
    script_close(script);
}

/* The receive whose CTS has come, and that got no bytes, waits again. */
static void cancelled_after_cts(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_send(script, &one, LARGE, TAG);
    uint64_t sender = asks(script, &one);
    script->stuck = true;
    CU_ASSERT_EQUAL(send_cts(script, sender, 71, 0), 0);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    script_write(script, 2);
    struct wire_header abort = script_expect(script, WIRE_ABORT, NULL, 0);
    CU_ASSERT_EQUAL(abort.type, WIRE_ABORT);
    CU_ASSERT_EQUAL(abort.flags, 0);
    CU_ASSERT_EQUAL(abort.target, 71);
    script_close(script);
}

static void cancelled_stream_in_the_midst(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 1, TAG), 0);
    script->stuck = true;
    post_send(script, &one, LARGE, TAG);
    script_write(script, 1);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    script->stuck = false;
    post_send(script, &two, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_DATA, NULL, 0).target, 71);
    struct wire_header abort = script_expect(script, WIRE_ABORT, NULL, 0);
    CU_ASSERT_EQUAL(abort.flags, WIRE_MOVED);
    CU_ASSERT_EQUAL(abort.target, 71);
    CU_ASSERT_TRUE(goes_to(script, &two, 72));
    script_close(script);
}

/* Its frame cannot be taken back, and no other DATA frame follows it. If it was the last frame, the
 * message has gone. */
static void cancelled_stream_whose_frame_has_gone(void)
{
    for (int last = 0; last < 2; last++) {
        const struct script_offer offer = {.eager_max = 1, .eager_credit = 4096};
        struct script *script = open_script(SCRIPT_FRAMES, &offer);
        CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
        script->holds = true;
        post_send(script, &one, last ? SMALL : LARGE, TAG);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_DATA, NULL, 0).target, 71);
        cancel(&one);
        CU_ASSERT_FALSE(done(&one));
        script_return(script);
        CU_ASSERT_TRUE(done(&one));
        CU_ASSERT_EQUAL(one.error, last ? 0 : -BMI_ECANCEL);
        if (!last)
            CU_ASSERT_EQUAL(script_expect(script, WIRE_ABORT, NULL, 0).flags, WIRE_MOVED);
        CU_ASSERT_TRUE(script_silent(script));
        script_close(script);
    }
}

/* ---- put ------------------------------------------------------------------------------------ */

/* The peer sends a frame now and then, for so long. Returns whether the send has ended. */
static bool over_beside_a_peer_that_speaks(struct script *script, unsigned ms)
{
    uint64_t until = bmi__monotonic_ns() + ms * UINT64_C(1000000);
    while (!done(&one) && bmi__monotonic_ns() < until)
        atomic_fetch_add(&script->link.bytes_in, 1);
    return one.done;
}

/* A stalled network, with a peer that is not silent. */
static void cancelled_put_that_does_not_end(void)
{
    enum { TIMEOUT_MS = 200 };
    static uint8_t remote[LARGE];
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "peer_timeout_ms=200"), 0);
    struct script *script = open_script(SCRIPT_PUT, NULL);
    CU_ASSERT_EQUAL(send_rtr_memory(script, 71, remote, LARGE), 0);
    post_send(script, &one, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_DATA, NULL, 0).flags, WIRE_FIRST | WIRE_BY_PUT);
    CU_ASSERT_FALSE(over_beside_a_peer_that_speaks(script, 3 * TIMEOUT_MS));
    cancel(&one);
    cancel(&one);
    CU_ASSERT_FALSE(over_beside_a_peer_that_speaks(script, TIMEOUT_MS / 2));
    CU_ASSERT_TRUE(over_beside_a_peer_that_speaks(script, 300 * TIMEOUT_MS));
    CU_ASSERT_EQUAL(one.error, -BMI_ETIMEDOUT);
    script_close(script);
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "peer_timeout_ms=30000"), 0);
}

/* ---- get ------------------------------------------------------------------------------------ */

/* The receiver may have fetched it already: its answer decides that; a second cancel changes
 * nothing. The receiver cannot access the memory any more. */
static void cancelled_while_it_may_be_fetched(void)
{
    for (int fetched = 0; fetched < 2; fetched++) {
        struct script *script = open_script(SCRIPT_GET, NULL);
        post_send(script, &one, LARGE, TAG);
        struct wire_header rts = script_expect(script, WIRE_RTS, NULL, 0);
        cancel(&one);
        CU_ASSERT_EQUAL(script->exposed, 0);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_ABORT, NULL, 0).source, rts.source);
        cancel(&one);
        CU_ASSERT_TRUE(script_silent(script));
        CU_ASSERT_FALSE(done(&one));
        struct wire_header answer = {.type = WIRE_GET_DONE, .target = rts.source};
        if (!fetched)
            answer =
                (struct wire_header){.type = WIRE_CTS, .flags = WIRE_DISCARD, .target = rts.source};
        CU_ASSERT_EQUAL(script_send(script, answer, NULL, 0), 0);
        CU_ASSERT_TRUE(done(&one));
        CU_ASSERT_EQUAL(one.error, fetched ? 0 : -BMI_ECANCEL);
        CU_ASSERT_TRUE(script_silent(script));
        script_close(script);
    }
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"cancelled while the peer does not read", cancelled_while_the_peer_does_not_read},
        {"started, cancelled while the peer does not read",
         started_and_cancelled_while_the_peer_does_not_read},
        {"cancelled before it left", cancelled_before_it_left},
        {"cancelled gives its credit back", cancelled_gives_its_credit_back},
        {"cancelled is not counted", cancelled_is_not_counted},
        {"cancelled before another", cancelled_before_another},
        {"cancelled streams leave room", cancelled_streams_leave_room_for_others},
        {"cancelled while it waits for credit", cancelled_while_it_waits_for_credit},
        {"cancelled, smaller ones go", cancelled_it_lets_smaller_ones_go},
        {"cancelled, unexpected ones go", cancelled_it_lets_unexpected_ones_go},
        {"cancelled, others go", cancelled_it_lets_others_go},
        {"cancelled, it leaves its receive", cancelled_it_leaves_its_receive},
        {"announced too soon for one that waits", announced_too_soon_for_one_that_waits},
        {"cancelled after it asked", cancelled_after_it_asked},
        {"announced before the ABORT was seen", announced_before_the_abort_was_seen},
        {"cancelled stream, nothing left", cancelled_stream_of_which_nothing_left},
        {"cancelled after CTS", cancelled_after_cts},
        {"cancelled stream, in the midst", cancelled_stream_in_the_midst},
        {"cancelled stream, its frame has gone", cancelled_stream_whose_frame_has_gone},
        {"cancelled put that does not end", cancelled_put_that_does_not_end},
        {"cancelled while it may be fetched", cancelled_while_it_may_be_fetched},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("sends cancelled", tests);
}
