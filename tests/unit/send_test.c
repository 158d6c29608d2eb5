/* SPDX-License-Identifier: BSD-3-Clause
 *
 * send_test.c - the sending side of the protocol, frame by frame: how each message goes out, and
 * which announced receive it is for, whatever crosses. The receiver is a script.
 */
#include "tests/unit/script_case.h"

static struct posted one, two, three, four;

/* All of the message goes straight to this announced receive; nothing is written between. */
static bool goes_to(struct script *script, struct posted *posted, uint64_t receive)
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

/* The message asks. Returns the sender's number for it, 0: it did not ask. */
static uint64_t asks(struct script *script, struct posted *posted)
{
    struct wire_header rts = script_expect(script, WIRE_RTS, NULL, 0);
    return rts.type != 0 && rts.target == (uint64_t)posted->size ? rts.source : 0;
}

static int send_cts(struct script *script, uint64_t sender, uint64_t receive, uint8_t flags)
{
    return script_send(
        script,
        (struct wire_header){.type = WIRE_CTS, .flags = flags, .source = receive, .target = sender},
        NULL, 0);
}

static int send_rtr_cancel(struct script *script, uint64_t receive)
{
    return script_send(script,
                       (struct wire_header){.type = WIRE_RTR_CANCEL, .tag = TAG, .source = receive},
                       NULL, 0);
}

static int send_credit(struct script *script, uint32_t eager, uint32_t unexpected)
{
    return script_send(
        script, (struct wire_header){.type = WIRE_CREDIT, .credit = eager, .source = unexpected},
        NULL, 0);
}

/* ---- eager ---------------------------------------------------------------------------------- */

static void small_goes_at_once(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    uint8_t body[SMALL];
    post_send(script, &one, SMALL, TAG);
    struct wire_header header = script_expect(script, WIRE_EAGER, body, sizeof body);
    CU_ASSERT_EQUAL(header.tag, TAG);
    CU_ASSERT_EQUAL(header.length, SMALL);
    CU_ASSERT_EQUAL(body[0], 0xee);
    CU_ASSERT_TRUE(done(&one) && one.error == 0 && one.actual == SMALL);
    post_send(script, &two, 0, -7);
    header = script_expect(script, WIRE_EAGER, NULL, 0);
    CU_ASSERT_EQUAL(header.tag, -7);
    CU_ASSERT_EQUAL(header.length, 0);
    CU_ASSERT_TRUE(done(&two) && two.error == 0);
    script_close(script);
}

static void credit_is_never_overdrawn(void)
{
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = 3 * (SMALL + WIRE_MESSAGE_CHARGE),
                                       .unexpected_credit = SMALL + WIRE_MESSAGE_CHARGE};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    static struct posted many[5];
    for (int i = 0; i < 5; i++)
        post_send(script, &many[i], SMALL, TAG);
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_EAGER_CREDIT);
    CU_ASSERT_TRUE(script_silent(script));
    CU_ASSERT_FALSE(done(&many[3]));
    CU_ASSERT_EQUAL(send_credit(script, SMALL + WIRE_MESSAGE_CHARGE, 0), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_EAGER_CREDIT);
    CU_ASSERT_EQUAL(send_credit(script, SMALL + WIRE_MESSAGE_CHARGE, 0), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    CU_ASSERT_TRUE(done(&many[4]) && many[4].error == 0);

    post_unexpected(script, &many[0], SMALL, TAG);
    post_unexpected(script, &many[1], SMALL, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_UNEXPECTED, NULL, 0).length, SMALL);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_UNEXPECTED_CREDIT);
    CU_ASSERT_EQUAL(send_credit(script, 0, SMALL + WIRE_MESSAGE_CHARGE), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_UNEXPECTED, NULL, 0).length, SMALL);
    CU_ASSERT_TRUE(done(&many[1]) && many[1].error == 0);
    script_close(script);
}

enum { ANSWERS_MOST = 2048, ANSWERS_AN_OPERATION = 4 };

/* Credit in crumbs makes us say each time what is still missing: without end to who reads that. */
static void crumbs_of_credit(void)
{
    enum { CRUMBS = 6000, BYTES = 10000 };
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = BYTES + WIRE_MESSAGE_CHARGE,
                                       .unexpected_credit = BYTES + WIRE_MESSAGE_CHARGE};
    for (int i = 0; i < 4; i++) {
        struct script *script = open_script(SCRIPT_FRAMES, &offer);
        bool eager = i % 2 == 0, reads = i < 2;
        int status = 0, sent = 0;
        script->stuck = !reads;
        (eager ? post_send : post_unexpected)(script, &two, BYTES, TAG); /* has all there is */
        (eager ? post_send : post_unexpected)(script, &one, BYTES, TAG);
        for (; sent < CRUMBS && status == 0; sent++) {
            status = send_credit(script, eager, !eager);
            script_drive();
            free(script_read(script));
        }
        CU_ASSERT_EQUAL(status, reads ? 0 : -EPROTO);
        CU_ASSERT_TRUE(reads || sent <= ANSWERS_MOST + 2 * ANSWERS_AN_OPERATION + 2);
        CU_ASSERT_EQUAL(done(&one), !reads);
        script_close(script);
        CU_ASSERT_TRUE(done(&two));
        CU_ASSERT_TRUE(reads ? done(&one) : one.error == -BMI_EPROTO);
    }
}

/* Of sends that were taken back something is left for a peer that does not read; it has not asked
 * for that. */
static void cancelled_while_nobody_reads(void)
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

/* What was sent is noted until the receiver has seen it. One that gives credit and does not say
 * what it has seen is asked, and nothing starts until it says. */
static void what_was_not_seen_is_bounded(void)
{
    enum { MANY = 20000, MOST = 8192 };
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = 1 << 30,
                                       .unexpected_credit = 1 << 20};
    static const bool truths[] = {true, false};
    for (size_t truth = 0; truth < COUNT_OF(truths); truth++) {
        struct script *script = open_script(SCRIPT_FRAMES, &offer);
        const struct peer *peer = script_peer(script);
        static bmi_op_id_t ids[MANY];
        for (int i = 0; i < MANY; i++)
            CU_ASSERT_EQUAL(BMI_post_send(&ids[i], script->address, "", 0, BMI_EXT_ALLOC, i % 3,
                                          NULL, case_context, NULL),
                            0);
        uint32_t sent = 0;
        for (struct wire_header ping = {0}; sent < MANY; ping.type = 0) {
            CU_ASSERT_TRUE(peer->sent_count - peer->sent_seen <= MOST);
            while (ping.type == 0 && sent < MANY) {
                script_drive();
                struct script_frame *frame = script_read(script);
                CU_ASSERT_PTR_NOT_NULL_FATAL(frame);
                if (frame->header.type == WIRE_EAGER)
                    sent++;
                else
                    ping = frame->header;
                free(frame);
            }
            if (sent == MANY)
                break;
            CU_ASSERT_EQUAL_FATAL(ping.type, WIRE_PING);
            CU_ASSERT_TRUE(script_silent(script));
            struct wire_header pong = {.type = WIRE_PONG,
                                       .target = ping.source,
                                       .seen = truths[truth] ? sent : sent - 1};
            script->manual_seen = true;
            int status = script_send(script, pong, NULL, 0);
            CU_ASSERT_EQUAL(status, truths[truth] ? 0 : -EPROTO);
            if (status < 0)
                break;
        }
        CU_ASSERT_EQUAL(sent, truths[truth] ? MANY : MOST);
        script_close(script);
        for (int i = 0, count; i < MANY; i++) {
            bmi_error_code_t error;
            CU_ASSERT_EQUAL(BMI_test(ids[i], &count, &error, NULL, NULL, 0, case_context), 1);
        }
    }
}

/* Messages that announced receives wait for are held up and go on just so. */
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
    post_send(script, &one, SMALL, TAG + 2); /* no credit, no receive: waits, whatever is seen */
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

/* Without credit a message whose receive is announced is not held up. */
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

/* ---- announcements -------------------------------------------------------------------------- */

/* Two receives are announced, again perhaps, and the next two messages go to them. */
static void announced_and_used(struct script *script, uint64_t first, uint64_t second)
{
    CU_ASSERT_EQUAL(send_rtr(script, first, LARGE, 0, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr(script, second, LARGE, 1, TAG), 0);
    post_send(script, &two, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, &two, first));
    post_send(script, &three, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, &three, second));
}

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

/* The same with messages of other tags among those not seen. */
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

/* More is announced than is kept. Without credit a message whose announcement was dropped asks for
 * it, once, and uses it at once although there is still no room. */
static void dropped_announcements_are_asked_for(void)
{
    enum { MANY = 400 };
    const struct script_offer offer = {.eager_max = 16384, .unexpected_max = 16384};
    CU_ASSERT_EQUAL(bmi__settings_set("peer_memory=32K"), 0);
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    for (int i = 0; i < MANY; i++)
        CU_ASSERT_EQUAL(send_rtr(script, 1000 + (uint64_t)i, SMALL, 0, TAG + 1 + i), 0);
    CU_ASSERT_TRUE(script_peer(script)->key_count < MANY);
    for (uint32_t i = 0; i < 2; i++)
        CU_ASSERT_EQUAL(send_rtr(script, 71 + i, LARGE, i, TAG), 0);
    post_send(script, &one, SMALL, TAG);
    struct wire_header want = script_expect(script, WIRE_WANT, NULL, 0);
    CU_ASSERT_EQUAL(want.flags, WIRE_EAGER_CREDIT | WIRE_ANNOUNCE);
    CU_ASSERT_EQUAL(want.tag, TAG);
    CU_ASSERT_EQUAL(want.source, WIRE_MESSAGE_CHARGE); /* no window at all: it would ask */
    post_send(script, &two, LARGE, TAG);
    CU_ASSERT_TRUE(script_silent(script)); /* it has asked */
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    CU_ASSERT_TRUE(goes_to(script, &one, 71));
    /* the next one is to be announced again as well: asked for since a message went */
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).tag, TAG);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 0, TAG), 0);
    CU_ASSERT_TRUE(goes_to(script, &two, 72));
    post_send(script, &three, SMALL, TAG + 1); /* this one was kept */
    struct wire_header first = script_expect(script, WIRE_DATA, NULL, 0);
    CU_ASSERT_EQUAL(first.target, 1000);
    CU_ASSERT_TRUE(done(&three) && three.error == 0);
    script_close(script);
}

/* ---- announcements taken back --------------------------------------------------------------- */

/* One receive is cancelled: what was announced is forgotten, until it is announced again. */
static void announcements_behind_a_cancelled_one(void)
{
    for (uint32_t gone = 0; gone < 3; gone++) {
        struct script *script = open_script(SCRIPT_FRAMES, NULL);
        for (uint32_t i = 0; i < 3; i++)
            CU_ASSERT_EQUAL(send_rtr(script, 71 + i, LARGE, i, TAG), 0);
        CU_ASSERT_EQUAL(send_rtr_cancel(script, 71 + gone), 0);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCELLED, NULL, 0).target, 71 + gone);
        uint32_t first = gone == 0 ? 72 : 71, second = gone == 2 ? 72 : 73;
        announced_and_used(script, first, second);
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

/* One of them that comes too early is not used. A message that waits for credit asks for it again,
 * by its tag, since the other side believes that it is known. */
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
    CU_ASSERT_EQUAL(send_credit(script, WIRE_MESSAGE_CHARGE, 0), 0); /* too little */
    struct wire_header want = script_expect(script, WIRE_WANT, NULL, 0);
    CU_ASSERT_EQUAL(want.flags, WIRE_EAGER_CREDIT | WIRE_ANNOUNCE);
    CU_ASSERT_EQUAL(want.tag, TAG);
    script->manual_seen = false;
    CU_ASSERT_EQUAL(send_rtr(script, 72, SMALL, 0, TAG), 0);
    CU_ASSERT_TRUE(goes_to(script, &two, 72));
    script_close(script);
}

/* The cancelled receive takes the eager message that was on its way; later ones count right. */
static void a_cancel_that_crosses_the_message(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_send(script, &one, SMALL, TAG); /* takes 71 when it gets there */
    CU_ASSERT_TRUE(done(&one));
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 1, TAG), 0);
    CU_ASSERT_EQUAL(send_rtr_cancel(script, 71), 0);
    /* made before the message was seen: not to be used */
    CU_ASSERT_EQUAL(send_rtr(script, 73, LARGE, 1, TAG), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCELLED, NULL, 0).target, 71);
    announced_and_used(script, 72, 73);
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
    post_send(script, &two, 0, TAG + 1); /* has all written */
    CU_ASSERT_EQUAL(script_expect(script, WIRE_VOID, NULL, 0).tag, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCELLED, NULL, 0).target, 71);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).tag, TAG + 1);
    announced_and_used(script, 72, 73);
    script_close(script);
}

/* Behind as many bytes as may be under way. It has none, and goes with the frame that says so. */
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

/* ---- cancel of sends ------------------------------------------------------------------------ */

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

/* It goes by its announcement although the next one of its tag cannot. */
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

/* A small one does not overtake a large one that waits for credit. */
static void unexpected_ones_keep_their_order(void)
{
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .unexpected_credit = SMALL + WIRE_MESSAGE_CHARGE};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    post_unexpected(script, &one, 2 * SMALL, TAG);
    post_unexpected(script, &two, SMALL, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).flags, WIRE_UNEXPECTED_CREDIT);
    CU_ASSERT_TRUE(script_silent(script));
    CU_ASSERT_EQUAL(send_credit(script, 0, 2 * SMALL + WIRE_MESSAGE_CHARGE), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_UNEXPECTED, NULL, 0).length, 2 * SMALL);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_UNEXPECTED, NULL, 0).length, SMALL);
    CU_ASSERT_TRUE(done(&one) && done(&two));
    script_close(script);
}

/* What a message that never left would have used is there for the next one. */
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

/* An announcement that crosses what is sent in place of a message taken back is for the next one.
 */
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

/* Bytes that were with the network and were taken back are not under way any more: of those only so
 * many may be. */
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
    announced_and_used(script, 71 + TIMES, 72 + TIMES);
    script_close(script);
}

/* A tag of which nothing is left takes no memory, whoever used it last. */
static void tags_are_forgotten(void)
{
    enum { TAGS = 100 };
    const struct script_offer offer = {.eager_max = 16384, .unexpected_max = 16384};
    struct script *script = open_script(SCRIPT_FRAMES, &offer);
    for (int tag = 0; tag < TAGS; tag++) {
        post_send(script, &one, SMALL, tag); /* there is no credit for it */
        cancel(&one);
        CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    }
    CU_ASSERT_EQUAL(script_peer(script)->key_count, 0);
    for (int tag = 0; tag < TAGS; tag++) {
        struct wire_header gone = {.type = WIRE_RTR_CANCEL, .tag = tag, .source = 71};
        CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, tag), 0);
        CU_ASSERT_EQUAL(script_send(script, gone, NULL, 0), 0);
    }
    CU_ASSERT_EQUAL(script_peer(script)->key_count, 0);
    for (int tag = 0; tag < TAGS; tag++) { /* the receive comes while the message does */
        struct wire_header eager = {.type = WIRE_EAGER, .tag = tag, .length = SMALL};
        CU_ASSERT_EQUAL(script_begin(script, eager), 0);
        post_receive(script, &one, SMALL, tag);
        CU_ASSERT_EQUAL(script_body(script, message(1, SMALL), SMALL), 0);
        CU_ASSERT_TRUE(received(&one, 1, SMALL));
    }
    CU_ASSERT_EQUAL(script_peer(script)->key_count, 0);
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
    struct wire_header back = script_expect(script, WIRE_WANT, NULL, 0); /* nobody needs it now */
    CU_ASSERT_EQUAL(back.flags, WIRE_UNUSED);
    CU_ASSERT_EQUAL(back.source, 4096);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    CU_ASSERT_TRUE(script_silent(script));
    CU_ASSERT_TRUE(done(&two) && two.error == 0);
    script_close(script);
}

/* It waited for more credit than those behind it need. */
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

/* An announcement that was made before the ABORT was seen does not count the receive that it gives
 * back: it is not used. */
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

/* The receive that was granted to it, and got nothing, is given back. */
static void cancelled_when_granted(void)
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

/* Its frame cannot be taken back: what comes after it does not go. A last one has gone with it. */
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

/* ---- put and get ---------------------------------------------------------------------------- */

static uint8_t remote[LARGE];

static int send_rtr_regions(struct script *script, uint64_t receive, uint64_t length)
{
    uint8_t bytes[WIRE_REGION];
    struct bmi_region region = {.address = (uintptr_t)remote, .length = length, .key = 1};
    wire_regions_encode(bytes, &region, 1);
    return script_send(
        script,
        (struct wire_header){.type = WIRE_RTR, .tag = TAG, .source = receive, .target = LARGE},
        bytes, sizeof bytes);
}

static int send_rtr_region(struct script *script, uint64_t receive)
{
    return send_rtr_regions(script, receive, LARGE);
}

/* A put would write beyond them. */
static void regions_smaller_than_the_message_are_not_put_to(void)
{
    struct script *script = open_script(SCRIPT_PUT, NULL);
    CU_ASSERT_EQUAL(send_rtr_regions(script, 71, LARGE - 1), 0);
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
        CU_ASSERT_EQUAL(send_rtr_region(script, 71), 0);
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
        } else if (statuses[i] == -EIO) { /* by frames, then */
            for (int k = 0; k < 3; k++)
                CU_ASSERT_EQUAL(script_expect(script, WIRE_DATA, NULL, 0).target, 71);
            CU_ASSERT_TRUE(done(&one) && one.error == 0);
        } else { /* the receiver cancelled and took its memory back: no harm to the sender */
            CU_ASSERT_TRUE(done(&one) && one.error == 0 && one.actual == LARGE);
        }
        CU_ASSERT_EQUAL(script->enrolled, 0);
        script_close(script);
    }
}

static void request_whose_memory_is_fetched(void)
{
    struct script *script = open_script(SCRIPT_GET, NULL);
    for (int refuse = 0; refuse < 2; refuse++) {
        script->refuse_memory = refuse;
        post_send(script, &one, LARGE, TAG);
        struct wire_header rts = script_expect(script, WIRE_RTS, NULL, 0);
        CU_ASSERT_EQUAL(rts.length, refuse ? 0 : WIRE_REGION);
        CU_ASSERT_EQUAL(script->enrolled, refuse ? 0u : 1u);
        CU_ASSERT_FALSE(done(&one));
        struct wire_header over = {.type = WIRE_GET_DONE, .target = rts.source};
        if (refuse)
            over =
                (struct wire_header){.type = WIRE_CTS, .flags = WIRE_DISCARD, .target = rts.source};
        CU_ASSERT_EQUAL(script_send(script, over, NULL, 0), 0);
        CU_ASSERT_TRUE(done(&one) && one.error == 0 && one.actual == LARGE);
        CU_ASSERT_EQUAL(script->enrolled, 0);
    }
    script_close(script);
}

/* The receiver may have fetched it already: whether it has, its answer says; asking twice changes
 * nothing. The memory is out of its reach at once. */
static void cancelled_while_it_may_be_fetched(void)
{
    for (int fetched = 0; fetched < 2; fetched++) {
        struct script *script = open_script(SCRIPT_GET, NULL);
        post_send(script, &one, LARGE, TAG);
        struct wire_header rts = script_expect(script, WIRE_RTS, NULL, 0);
        cancel(&one);
        CU_ASSERT_EQUAL(script->enrolled, 0);
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

/* ---- bad peers, and the end ----------------------------------------------------------------- */

static void claims_that_cannot_be_end_the_link(void)
{
    static const struct wire_header bad[] = {
        {.type = WIRE_PING, .seen = 1}, /* has seen what was not sent */
        {.type = WIRE_PING, .seen = UINT32_MAX},
        {.type = WIRE_CREDIT, .source = UINT64_C(1) << 32},
        {.type = WIRE_RTR, .target = UINT64_MAX},
        {.type = WIRE_RTS, .source = 1, .target = UINT64_MAX},
        {.type = WIRE_RTS, .source = 0, .target = 1},
        {.type = WIRE_DATA, .flags = WIRE_FIRST, .source = 1, .target = 1}, /* never announced */
        {.type = WIRE_HELLO},
        {.type = WIRE_REDUNDANT},
        {.type = WIRE_REJECT},
    };
    struct script *other = open_script(SCRIPT_FRAMES, NULL);
    post_receive(other, &two, SMALL, TAG);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct script *script = open_script(SCRIPT_FRAMES, NULL);
        post_receive(script, &one, SMALL, TAG);
        script->manual_seen = true;
        CU_ASSERT_EQUAL(script_send(script, bad[i], NULL, 0), -EPROTO);
        CU_ASSERT_TRUE(failed(&one, BMI_EPROTO));
        script_close(script);
    }
    CU_ASSERT_EQUAL(send_eager(other, 1, SMALL, TAG), 0); /* others notice nothing */
    CU_ASSERT_TRUE(received(&two, 1, SMALL));
    script_close(other);
}

static size_t regions_make(uint8_t *bytes, uint32_t count)
{
    struct bmi_region regions[WIRE_REGIONS_MAX] = {{0}};
    wire_regions_encode(bytes, regions, count);
    return count * WIRE_REGION;
}

/* What is kept of a request or an announcement grows with its regions: their number is bounded. */
static void more_regions_than_the_network_has(void)
{
    static const uint8_t types[] = {WIRE_RTS, WIRE_CTS, WIRE_RTR};
    uint8_t bytes[WIRE_REGIONS_MAX * WIRE_REGION];
    for (int kind = SCRIPT_FRAMES; kind <= SCRIPT_GET; kind++)
        for (size_t i = 0; i < COUNT_OF(types); i++) {
            uint32_t most = script_methods[kind].limits.regions_max;
            struct script *script = open_script((enum script_kind)kind, NULL);
            struct wire_header header = {.type = types[i], .source = 1};
            CU_ASSERT_EQUAL(script_send(script, header, bytes, regions_make(bytes, most)), 0);
            ALIVE(script);
            size_t size = regions_make(bytes, most + 1);
            CU_ASSERT_EQUAL(script_send(script, header, bytes, size), -EPROTO);
            script_close(script);
        }
}

static void what_names_nothing_is_ignored(void)
{
    static const struct wire_header stray[] = {
        {.type = WIRE_CTS, .source = 1, .target = 2},
        {.type = WIRE_CTS, .flags = WIRE_DISCARD, .target = UINT64_MAX},
        {.type = WIRE_GET_DONE, .target = 99},
        {.type = WIRE_PUT_DONE, .target = 99},
        {.type = WIRE_PONG, .target = 99},
        {.type = WIRE_ABORT, .source = 1, .target = 99, .tag = TAG},
        {.type = WIRE_ABORT, .flags = WIRE_MOVED, .tag = TAG},
        {.type = WIRE_RTR_CANCELLED, .target = 99, .tag = TAG},
        {.type = WIRE_DATA, .target = 99},
        {.type = WIRE_VOID, .tag = TAG},
        {.type = WIRE_BYE},
        {.type = WIRE_CREDIT},
    };
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, SMALL, TAG);
    for (size_t i = 0; i < COUNT_OF(stray); i++)
        CU_ASSERT_EQUAL(script_send(script, stray[i], NULL, 0), 0);
    CU_ASSERT_TRUE(script_silent(script));
    CU_ASSERT_EQUAL(send_eager(script, 1, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&one, 1, SMALL));
    script_close(script);
}

/* Numbers of operations can be guessed: nobody ends, or gets at, those of another peer. */
static void what_is_another_s_is_left_alone(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_send(script, &one, LARGE, TAG);
    uint64_t sender = asks(script, &one);
    post_receive(script, &two, LARGE, TAG + 1);
    CU_ASSERT_EQUAL(send_rts(script, 31, LARGE, TAG + 1), 0); /* two is granted */
    post_receive(script, &three, LARGE, TAG);                 /* announced, then asked for */
    cancel(&three);
    const uint64_t granted = (uint64_t)two.id, asked = (uint64_t)three.id;
    const struct wire_header bad[] = {
        {.type = WIRE_CTS, .source = 1, .target = sender},
        {.type = WIRE_CTS, .flags = WIRE_DISCARD, .target = sender},
        {.type = WIRE_GET_DONE, .target = sender},
        {.type = WIRE_PUT_DONE, .target = granted},
        {.type = WIRE_ABORT, .source = 31, .target = granted, .tag = TAG + 1},
        {.type = WIRE_ABORT, .flags = WIRE_MOVED, .source = 31, .target = granted, .tag = TAG + 1},
        {.type = WIRE_DATA, .target = granted},
        {.type = WIRE_DATA, .flags = WIRE_FIRST, .source = LARGE, .target = asked, .tag = TAG},
        {.type = WIRE_RTR_CANCELLED, .target = asked, .tag = TAG},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct script *other = open_script(SCRIPT_FRAMES, NULL);
        post_receive(other, &four, LARGE, TAG); /* so that it has the tag as well */
        script_send(other, bad[i], NULL, 0);
        CU_ASSERT_FALSE(done(&one) || done(&two) || done(&three));
        script_close(other);
        CU_ASSERT_TRUE(done(&four));
    }
    CU_ASSERT_EQUAL(send_data(script, granted, 2, LARGE, false, 0), 0);
    CU_ASSERT_TRUE(received(&two, 2, LARGE));
    CU_ASSERT_EQUAL(send_cts(script, sender, 71, WIRE_DISCARD), 0);
    CU_ASSERT_TRUE(done(&one) && one.error == 0);
    script_close(script);
    CU_ASSERT_TRUE(done(&three));
}

static void everything_fails_with_the_link(void)
{
    static struct posted many[6];
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = 2 * WIRE_MESSAGE_CHARGE + SMALL};
    struct script *script = open_script(SCRIPT_PUT, &offer);
    CU_ASSERT_EQUAL(send_rtr_region(script, 71), 0);
    CU_ASSERT_EQUAL(send_rtr(script, 72, LARGE, 0, TAG + 1), 0);
    post_send(script, &many[0], LARGE, TAG);     /* put under way */
    post_send(script, &many[2], LARGE, TAG + 2); /* asked */
    script->stuck = true;
    post_send(script, &many[1], LARGE, TAG + 1); /* streaming, a frame with the method */
    post_send(script, &many[3], SMALL, TAG + 3); /* eager, with the method */
    post_send(script, &many[4], SMALL, TAG + 4); /* waits for credit */
    post_unexpected(script, &many[5], SMALL, 0); /* likewise */
    script_drive();
    for (int i = 0; i < 6; i++)
        CU_ASSERT_FALSE(done(&many[i]));
    script_cut(script, -ECONNRESET);
    for (int i = 0; i < 6; i++)
        CU_ASSERT_TRUE(failed(&many[i], BMI_ECONNRESET));
    CU_ASSERT_EQUAL(script->enrolled, 0);
    script_close(script);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"small goes at once", small_goes_at_once},
        {"credit is never overdrawn", credit_is_never_overdrawn},
        {"crumbs of credit", crumbs_of_credit},
        {"cancelled while nobody reads", cancelled_while_nobody_reads},
        {"what was not seen is bounded", what_was_not_seen_is_bounded},
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
        {"dropped announcements are asked for", dropped_announcements_are_asked_for},
        {"announcements behind a cancelled one", announcements_behind_a_cancelled_one},
        {"forgotten announcements are not used", forgotten_announcements_are_not_used},
        {"announced before the cancel was over", announced_before_the_cancel_was_over},
        {"a cancel that crosses the message", a_cancel_that_crosses_the_message},
        {"both sides cancel", both_sides_cancel},
        {"an empty one behind many streams", an_empty_one_behind_many_streams},
        {"cancelled before it left", cancelled_before_it_left},
        {"announced goes before one that waits", announced_goes_before_one_that_waits},
        {"unexpected ones keep their order", unexpected_ones_keep_their_order},
        {"cancelled gives its credit back", cancelled_gives_its_credit_back},
        {"cancelled is not counted", cancelled_is_not_counted},
        {"cancelled streams leave room", cancelled_streams_leave_room_for_others},
        {"tags are forgotten", tags_are_forgotten},
        {"cancelled while it waits for credit", cancelled_while_it_waits_for_credit},
        {"cancelled, smaller ones go", cancelled_it_lets_smaller_ones_go},
        {"cancelled after it asked", cancelled_after_it_asked},
        {"announced before the ABORT was seen", announced_before_the_abort_was_seen},
        {"cancelled stream, nothing left", cancelled_stream_of_which_nothing_left},
        {"cancelled when granted", cancelled_when_granted},
        {"cancelled stream, in the midst", cancelled_stream_in_the_midst},
        {"cancelled stream, its frame has gone", cancelled_stream_whose_frame_has_gone},
        {"regions too small to be put to", regions_smaller_than_the_message_are_not_put_to},
        {"put to an announced receive", put_to_an_announced_receive},
        {"request whose memory is fetched", request_whose_memory_is_fetched},
        {"cancelled while it may be fetched", cancelled_while_it_may_be_fetched},
        {"claims that cannot be", claims_that_cannot_be_end_the_link},
        {"more regions than the network has", more_regions_than_the_network_has},
        {"what names nothing is ignored", what_names_nothing_is_ignored},
        {"what is another's is left alone", what_is_another_s_is_left_alone},
        {"everything fails with the link", everything_fails_with_the_link},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("sending", tests);
}
