/* SPDX-License-Identifier: BSD-3-Clause
 *
 * announced_test.c - sends to announced receives, frame by frame: the receive of each message when
 * frames cross; cancelled announcements; and put. The receiver is a script.
 */
#include "bmi/base/instance.h"
#include "tests/unit/script_case.h"

static struct posted one, two, three;

/* ---- announcements -------------------------------------------------------------------------- */

static void announced_goes_straight(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 1, TAG), 0);
    post_send(script, &one, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, &one, 71));
    post_send(script, &two, LARGE - 1, TAG);
    CU_ASSERT_TRUE(goes_to(script, &two, 72));
    post_send(script, &three, LARGE, TAG);
    uint64_t sender = asks(script, &three);
    CU_ASSERT_NOT_EQUAL(sender, 0);
    CU_ASSERT_EQUAL(send_cts(script, sender, 73, WIRE_DISCARD), 0);
    CU_ASSERT_TRUE(done(&three) && three.error == 0);
    script_close(script);
}

/* Also if it could go eagerly, unless it is short. */
static void announced_and_long_goes_straight(void)
{
    struct script *script = open_long_script();
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 1, TAG), 0);
    post_send(script, &one, 32768, TAG);
    CU_ASSERT_TRUE(goes_to(script, &one, 71));
    post_send(script, &two, 16384, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, 16384);
    post_send(script, &three, 32768, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, 32768);
    CU_ASSERT_TRUE(done(&one) && done(&two) && done(&three));
    close_long_script(script);
}

/* Several at once: they start in order and share the link. */
static void announced_streams_start_in_order(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    uint64_t bytes[3] = {0}, started = 0;
    for (uint32_t i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(send_rtr(script, 70 + i, LARGE, i, TAG), 0);
    post_send(script, &one, LARGE, TAG);
    post_send(script, &two, LARGE, TAG);
    post_send(script, &three, LARGE, TAG);
    script_drive();
    struct script_frame *frame;
    while ((frame = script_read(script)) != NULL) {
        CU_ASSERT_EQUAL(frame->header.type, WIRE_DATA);
        CU_ASSERT_TRUE_FATAL(frame->header.target >= 70 && frame->header.target < 73);
        if (frame->header.flags & WIRE_FIRST)
            CU_ASSERT_EQUAL(frame->header.target, 70 + started++);
        bytes[frame->header.target - 70] += frame->size;
        free(frame);
        script_drive();
    }
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(bytes[i], LARGE);
    CU_ASSERT_TRUE(done(&one) && done(&two) && done(&three));
    script_close(script);
}

/* Without credit for EAGER or RTS, a message that does not fit its receive reports that
 * and ends. */
static void too_large_and_no_credit_to_ask(void)
{
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = SMALL + 2 * WIRE_MESSAGE_CHARGE};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    CU_ASSERT_EQUAL(send_rtr(script, 70, LARGE - 1, 0, TAG), 0);
    post_send(script, &one, LARGE, TAG); /* has the credit for RTS */
    CU_ASSERT_NOT_EQUAL(asks(script, &one), 0);
    post_send(script, &two, SMALL, TAG + 1); /* gets the rest */
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    for (uint64_t i = 0; i < 2; i++) {
        post_send(script, &three, i == 0 ? SMALL : LARGE, TAG);
        CU_ASSERT_FALSE(done(&three));
        script_drive();
        free(script_read(script)); /* WANT, the first time */
        CU_ASSERT_EQUAL(send_rtr(script, 71 + i, SMALL - 1, 0, TAG), 0);
        struct wire_header word = script_expect(script, WIRE_DATA, NULL, 0);
        CU_ASSERT_EQUAL(word.flags, WIRE_FIRST | WIRE_LAST);
        CU_ASSERT_EQUAL(word.length, 0);
        CU_ASSERT_EQUAL(word.source, (uint64_t)three.size);
        CU_ASSERT_EQUAL(word.target, 71 + i);
        CU_ASSERT_TRUE(done(&three) && three.error == 0 && three.actual == three.size);
    }
    cancel(&one);
    script_close(script);
}

/* After as many bytes as may be under way. It has none, and goes with the frame that carries its
 * size. */
static void an_empty_one_behind_many_streams(void)
{
    enum { STREAMS = 129 }; /* of 16 KiB each are under way */
    static struct posted many[STREAMS];
    const struct script_offer offer = {.eager_max = 16384, .unexpected_max = 16384};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    script->stuck = true;
    for (int i = 0; i < STREAMS; i++) {
        CU_ASSERT_EQUAL(send_rtr(script, 100 + (uint64_t)i, LARGE, 0, TAG + 1 + i), 0);
        post_send(script, &many[i], LARGE, TAG + 1 + i);
    }
    CU_ASSERT_EQUAL(send_rtr(script, 71, 0, 0, TAG), 0);
    post_send(script, &one, 0, TAG);
    script_write(script, STREAMS);
    for (int i = 0; i < STREAMS; i++) {
        struct wire_header first = script_expect(script, WIRE_DATA, NULL, 0);
        CU_ASSERT_EQUAL(first.target, 100 + (uint64_t)i);
        CU_ASSERT_EQUAL(first.flags, WIRE_FIRST);
    }
    script_write(script, 1);
    struct wire_header empty = script_expect(script, WIRE_DATA, NULL, 0);
    CU_ASSERT_EQUAL(empty.target, 71);
    CU_ASSERT_EQUAL(empty.length, 0);
    CU_ASSERT_EQUAL(empty.flags, WIRE_FIRST | WIRE_LAST);
    script_close(script);
    CU_ASSERT_TRUE(done(&one));
    for (int i = 0; i < STREAMS; i++)
        CU_ASSERT_TRUE(done(&many[i]));
}

static void announced_with_others_before_it(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 1, TAG), 0);
    post_send(script, &one, LARGE, TAG); /* for the receive before it */
    CU_ASSERT_NOT_EQUAL(asks(script, &one), 0);
    post_send(script, &two, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, &two, 72));
    cancel(&one);
    script_close(script);
}

/* The receiver had not seen the eager message when it announced: that one is for the receive. */
static void announcement_crossed_by_an_eager_message(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_send(script, &one, SMALL, TAG);
    CU_ASSERT_TRUE(done(&one));
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 1, TAG), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    post_send(script, &two, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, &two, 72));
    script_close(script);
}

/* The same with messages of other tags among the unseen ones. */
static void announcement_crossed_by_other_tags(void)
{
    static struct posted many[8];
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    for (int i = 0; i < 8; i++)
        post_send(script, &many[i], SMALL, i % 4 == 1 ? TAG : TAG + 1 + i);
    for (int i = 0; i < 3; i++) /* one of the two of the tag is seen */
        CU_ASSERT_NOT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).type, 0);
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0); /* the other one's */
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 1, TAG), 0);
    for (int i = 0; i < 5; i++)
        CU_ASSERT_NOT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).type, 0);
    post_send(script, &one, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, &one, 72));
    script_close(script);
}

static void announcement_crossed_by_a_request(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_send(script, &one, LARGE, TAG);
    script_drive();
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    uint64_t sender = asks(script, &one);
    CU_ASSERT_NOT_EQUAL(sender, 0);
    post_send(script, &two, LARGE, TAG);
    uint64_t next = asks(script, &two);
    CU_ASSERT_NOT_EQUAL(next, 0);
    CU_ASSERT_EQUAL(send_cts(script, next, 72, 0), 0); /* answers in any order */
    CU_ASSERT_EQUAL(script_expect(script, WIRE_DATA, NULL, 0).target, 72);
    CU_ASSERT_EQUAL(send_cts(script, sender, 71, 0), 0);
    script_drive();
    CU_ASSERT_TRUE(done(&one) && one.error == 0);
    CU_ASSERT_TRUE(done(&two) && two.error == 0);
    script_close(script);
}

static void small_uses_up_its_announcement(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 1, TAG), 0);
    post_send(script, &one, SMALL, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    post_send(script, &two, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, &two, 72));
    script_close(script);
}

static void too_large_for_its_announcement_asks(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE - 1, 0, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 1, TAG), 0);
    post_send(script, &one, LARGE, TAG);
    uint64_t sender = asks(script, &one);
    CU_ASSERT_NOT_EQUAL(sender, 0);
    CU_ASSERT_EQUAL(send_cts(script, sender, 0, WIRE_DISCARD), 0);
    CU_ASSERT_TRUE(done(&one) && one.error == 0);
    post_send(script, &two, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, &two, 72));
    script_close(script);
}

/* More receives are announced than are kept. Without credit a message whose announcement was
 * dropped sends WANT for it, once, and uses it at once although there is still no room. */
static void dropped_announcements_are_asked_for(void)
{
    enum { MANY = 400 };
    const struct script_offer offer = {.eager_max = 16384, .unexpected_max = 16384};
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "peer_memory=32K"), 0);
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    for (int i = 0; i < MANY; i++)
        CU_ASSERT_EQUAL(send_rtr(script, 1000 + (uint64_t)i, SMALL, 0, TAG + 1 + i), 0);
    CU_ASSERT_TRUE(script_peer(script)->queue_count < MANY);
    for (uint32_t i = 0; i < 2; i++)
        CU_ASSERT_EQUAL(send_rtr(script, 71 + i, LARGE, i, TAG), 0);
    post_send(script, &one, SMALL, TAG);
    struct wire_header want = script_expect(script, WIRE_WANT, NULL, 0);
    CU_ASSERT_EQUAL(want.flags, WIRE_EAGER_CREDIT | WIRE_ANNOUNCE);
    CU_ASSERT_EQUAL(want.tag, TAG);
    CU_ASSERT_EQUAL(want.source, WIRE_MESSAGE_CHARGE); /* no window at all: it would send WANT */
    post_send(script, &two, LARGE, TAG);
    CU_ASSERT_TRUE(script_silent(script)); /* it has sent WANT */
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    CU_ASSERT_TRUE(goes_to(script, &one, 71));
    /* the next one must be announced again as well: WANT again, since a message was sent */
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).tag, TAG);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 0, TAG), 0);
    CU_ASSERT_TRUE(goes_to(script, &two, 72));
    post_send(script, &three, SMALL, TAG + 1); /* this one was kept */
    struct wire_header first = script_expect(script, WIRE_DATA, NULL, 0);
    CU_ASSERT_EQUAL(first.target, 1000);
    CU_ASSERT_TRUE(done(&three) && three.error == 0);
    script_close(script);
}

/* ---- credit --------------------------------------------------------------------------------- */

/* Messages for which announced receives wait are delayed and continue in the same way. */
static void announced_waits_until_others_are_seen(void)
{
    enum { MOST = 8192 };
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = MOST * WIRE_MESSAGE_CHARGE};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    static bmi_op_id_t ids[MOST];
    for (int i = 0; i < MOST; i++)
        CU_ASSERT_EQUAL(BMI_post_send(&ids[i], script->address, "", 0, BMI_EXT_ALLOC, TAG + 1, NULL,
                                      case_context, NULL),
                        0);
    post_send(script, &one, SMALL, TAG + 2); /* no credit, no receive: waits even if all frames are
                                                seen */
    for (int i = 0; i < MOST; i++)
        CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, 0);
    struct wire_header ping = script_expect(script, WIRE_PING, NULL, 0);
    script->manual_seen = true;
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    post_send(script, &two, LARGE, TAG);
    CU_ASSERT_TRUE(script_silent(script));
    struct wire_header pong = {.type = WIRE_PONG, .target = ping.source, .seen = MOST};
    CU_ASSERT_EQUAL(script_send(script, pong, NULL, 0), 0);
    script->manual_seen = false;
    struct wire_header first = script_expect(script, WIRE_DATA, NULL, 0);
    CU_ASSERT_TRUE(first.flags & WIRE_FIRST);
    CU_ASSERT_EQUAL(first.target, 71);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_EAGER_CREDIT); /* one's */
    CU_ASSERT_EQUAL(script_expect(script, WIRE_DATA, NULL, 0).target, 71);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_DATA, NULL, 0).flags, WIRE_LAST);
    CU_ASSERT_TRUE(done(&two) && two.error == 0);
    CU_ASSERT_FALSE(done(&one));
    script_close(script);
    CU_ASSERT_TRUE(done(&one) && one.error < 0);
    for (int i = 0, count; i < MOST; i++) {
        bmi_error_code_t error;
        CU_ASSERT_EQUAL(BMI_test(ids[i], &count, &error, NULL, NULL, 0, case_context), 1);
    }
}

/* Without credit a message whose receive is announced is not delayed. */
static void announced_goes_without_credit(void)
{
    const struct script_offer offer = {.eager_max = 16384, .unexpected_max = 16384};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    post_send(script, &one, SMALL, TAG + 1);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_EAGER_CREDIT);
    post_send(script, &two, SMALL, TAG);
    CU_ASSERT_TRUE(script_silent(script));
    CU_ASSERT_EQUAL(send_rtr(script, 71, SMALL, 0, TAG), 0);
    CU_ASSERT_TRUE(goes_to(script, &two, 71));
    CU_ASSERT_FALSE(done(&one));
    script_close(script);
    CU_ASSERT_TRUE(done(&one) && one.error < 0);
}

/* It uses its announcement although the next one of its tag has to wait. */
static void announced_goes_before_one_that_waits(void)
{
    const struct script_offer offer = {.eager_max = 16384, .unexpected_max = 16384};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    post_send(script, &one, SMALL, TAG);
    post_send(script, &two, SMALL, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_EAGER_CREDIT);
    CU_ASSERT_EQUAL(send_rtr(script, 71, SMALL, 0, TAG), 0);
    CU_ASSERT_TRUE(goes_to(script, &one, 71));
    CU_ASSERT_FALSE(done(&two));
    CU_ASSERT_EQUAL(send_rtr(script, 72, SMALL, 0, TAG), 0);
    CU_ASSERT_TRUE(goes_to(script, &two, 72));
    script_close(script);
}

/* ---- announcements taken back --------------------------------------------------------------- */

static int send_rtr_cancel(struct script *script, uint64_t receive)
{
    return script_send(script,
                       (struct wire_header){.type = WIRE_RTR_CANCEL, .tag = TAG, .source = receive},
                       NULL, 0);
}

/* One receive is cancelled: its announcements are forgotten until the receiver announces again. */
static void announcements_behind_a_cancelled_one(void)
{
    for (uint32_t gone = 0; gone < 3; gone++) {
        struct script *script = open_script(SCRIPT_FRAMES, NULL);
        for (uint32_t i = 0; i < 3; i++)
            CU_ASSERT_EQUAL(send_rtr(script, 71 + i, LARGE, i, TAG), 0);
        CU_ASSERT_EQUAL(send_rtr_cancel(script, 71 + gone), 0);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCELLED, NULL, 0).target, 71 + gone);
        uint32_t first = gone == 0 ? 72 : 71, second = gone == 2 ? 72 : 73;
        announced_and_used(script, &two, &three, first, second);
        script_close(script);
    }
}

static void forgotten_announcements_are_not_used(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 1, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr_cancel(script, 71), 0);
    post_send(script, &one, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCELLED, NULL, 0).target, 71);
    CU_ASSERT_NOT_EQUAL(asks(script, &one), 0);
    cancel(&one);
    script_close(script);
}

/* An announcement that comes too early is not used. A message that waits for credit sends WANT for
 * it again, by its tag, since the other side assumes that it is known. */
static void announced_before_the_cancel_was_over(void)
{
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = SMALL + WIRE_MESSAGE_CHARGE};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    script->manual_seen = true;
    post_send(script, &one, SMALL, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    CU_ASSERT_EQUAL(send_rtr_cancel(script, 71), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCELLED, NULL, 0).target, 71);
    post_send(script, &two, SMALL, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_EAGER_CREDIT);
    CU_ASSERT_EQUAL(send_rtr(script, 72, SMALL, 0, TAG), 0); /* the first was not seen */
    CU_ASSERT_TRUE(script_silent(script));
    CU_ASSERT_EQUAL(send_credit(script, WIRE_MESSAGE_CHARGE, 0), 0); /* not enough */
    struct wire_header want = script_expect(script, WIRE_WANT, NULL, 0);
    CU_ASSERT_EQUAL(want.flags, WIRE_EAGER_CREDIT | WIRE_ANNOUNCE);
    CU_ASSERT_EQUAL(want.tag, TAG);
    script->manual_seen = false;
    CU_ASSERT_EQUAL(send_rtr(script, 72, SMALL, 0, TAG), 0);
    CU_ASSERT_TRUE(goes_to(script, &two, 72));
    script_close(script);
}

/* The cancelled receive takes the eager message that was on its way; later ones are
 * counted right. */
static void a_cancel_that_crosses_the_message(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_send(script, &one, SMALL, TAG); /* takes 71 when it arrives */
    CU_ASSERT_TRUE(done(&one));
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 1, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr_cancel(script, 71), 0);
    /* made before the message was seen: must not be used */
    CU_ASSERT_EQUAL(send_rtr(script, 73, LARGE, 1, TAG), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCELLED, NULL, 0).target, 71);
    announced_and_used(script, &two, &three, 72, 73);
    script_close(script);
}

/* As before, but the message had not left, and is cancelled as well. */
static void both_sides_cancel(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    script->stuck = true;
    post_send(script, &one, SMALL, TAG);
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 1, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr_cancel(script, 71), 0);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    script->stuck = false;
    post_send(script, &two, 0, TAG + 1); /* makes the core write all frames */
    CU_ASSERT_EQUAL(script_expect(script, WIRE_VOID, NULL, 0).tag, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCELLED, NULL, 0).target, 71);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).tag, TAG + 1);
    announced_and_used(script, &two, &three, 72, 73);
    script_close(script);
}

/* ---- put ------------------------------------------------------------------------------------ */

static uint8_t remote[LARGE];

/* A put would write beyond them. */
static void regions_smaller_than_the_message_are_not_put_to(void)
{
    struct script *script = open_script(SCRIPT_PUT, NULL);
    CU_ASSERT_EQUAL(send_rtr_memory(script, 71, remote, LARGE - 1), 0);
    post_send(script, &one, LARGE, TAG);
    CU_ASSERT_PTR_NULL(script->transfers);
    struct wire_header first = script_expect(script, WIRE_DATA, NULL, 0);
    CU_ASSERT_TRUE(first.flags & WIRE_FIRST);
    uint64_t bytes = first.length;
    while (bytes < LARGE) {
        struct wire_header next = script_expect(script, WIRE_DATA, NULL, 0);
        CU_ASSERT_EQUAL_FATAL(next.type, WIRE_DATA);
        bytes += next.length;
    }
    CU_ASSERT_TRUE(done(&one) && one.error == 0);
    script_close(script);
}

static void put_to_an_announced_receive(void)
{
    static const int statuses[] = {0, -EIO, -EACCES};
    for (size_t i = 0; i < COUNT_OF(statuses); i++) {
        struct script *script = open_script(SCRIPT_PUT, NULL);
        memset(remote, 0, sizeof remote);
        CU_ASSERT_EQUAL(send_rtr_memory(script, 71, remote, LARGE), 0);
        post_send(script, &one, LARGE, TAG);
        struct wire_header first = script_expect(script, WIRE_DATA, NULL, 0);
        CU_ASSERT_EQUAL(first.flags, WIRE_FIRST | WIRE_BY_PUT);
        CU_ASSERT_EQUAL(first.source, LARGE);
        CU_ASSERT_FALSE(done(&one));
        CU_ASSERT_TRUE(script_transfer_end(script, statuses[i]));
        if (statuses[i] == 0) {
            CU_ASSERT_EQUAL(script_expect(script, WIRE_PUT_DONE, NULL, 0).target, 71);
            CU_ASSERT_EQUAL(memcmp(remote, one.buffer, LARGE), 0);
            CU_ASSERT_TRUE(done(&one) && one.error == 0 && one.actual == LARGE);
        } else if (statuses[i] == -EIO) { /* then by frames */
            for (int k = 0; k < 3; k++)
                CU_ASSERT_EQUAL(script_expect(script, WIRE_DATA, NULL, 0).target, 71);
            CU_ASSERT_TRUE(done(&one) && one.error == 0);
        } else { /* the receiver cancelled and revoked its memory: no harm to the sender */
            CU_ASSERT_TRUE(done(&one) && one.error == 0 && one.actual == LARGE);
        }
        CU_ASSERT_EQUAL(script->exposed, 0);
        script_close(script);
    }
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"announced and long goes straight", announced_and_long_goes_straight},
        {"announced waits until others are seen", announced_waits_until_others_are_seen},
        {"announced goes without credit", announced_goes_without_credit},
        {"announced goes straight", announced_goes_straight},
        {"announced streams start in order", announced_streams_start_in_order},
        {"announced with others before it", announced_with_others_before_it},
        {"announcement crossed by EAGER", announcement_crossed_by_an_eager_message},
        {"announcement crossed by other tags", announcement_crossed_by_other_tags},
        {"announcement crossed by RTS", announcement_crossed_by_a_request},
        {"small uses up its announcement", small_uses_up_its_announcement},
        {"too large for its announcement", too_large_for_its_announcement_asks},
        {"too large, and no credit to ask", too_large_and_no_credit_to_ask},
        {"dropped announcements are asked for", dropped_announcements_are_asked_for},
        {"announcements behind a cancelled one", announcements_behind_a_cancelled_one},
        {"forgotten announcements are not used", forgotten_announcements_are_not_used},
        {"announced before the cancel was over", announced_before_the_cancel_was_over},
        {"a cancel that crosses the message", a_cancel_that_crosses_the_message},
        {"both sides cancel", both_sides_cancel},
        {"an empty one behind many streams", an_empty_one_behind_many_streams},
        {"announced goes before one that waits", announced_goes_before_one_that_waits},
        {"regions too small to be put to", regions_smaller_than_the_message_are_not_put_to},
        {"put to an announced receive", put_to_an_announced_receive},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("sending to announced receives", tests);
}
