/* SPDX-License-Identifier: BSD-3-Clause
 *
 * receive_test.c - the receiving side of the protocol, frame by frame: which receive each message
 * reaches, whatever crosses. The sender is a script.
 */
#include "tests/unit/script_case.h"

static struct posted one, two, three, four;

/* The sender has forgotten an announcement. */
static int send_cancelled(struct script *script, uint64_t receive)
{
    struct wire_header answer = {.type = WIRE_RTR_CANCELLED, .tag = TAG, .target = receive};
    return script_send(script, answer, NULL, 0);
}

/* The first frame of an announced message of so many bytes. */
static struct wire_header stream_start(uint64_t receive, uint64_t size)
{
    return (struct wire_header){
        .type = WIRE_DATA, .flags = WIRE_FIRST, .tag = TAG, .source = size, .target = receive};
}

/* Two large receives that the sender knows of. */
static void announce_two(struct script *script)
{
    post_receive(script, &one, LARGE, TAG);
    post_receive(script, &two, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).source, (uint64_t)one.id);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).source, (uint64_t)two.id);
}

/* ---- eager ---------------------------------------------------------------------------------- */

static void eager_reaches_the_oldest_receive(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, SMALL, TAG);
    post_receive(script, &two, SMALL, TAG);
    post_receive(script, &three, SMALL, TAG + 1);
    CU_ASSERT_EQUAL(send_eager(script, 1, 30, TAG + 1), 0);
    CU_ASSERT_EQUAL(send_eager(script, 2, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&three, 1, 30));
    CU_ASSERT_TRUE(received(&one, 2, SMALL));
    CU_ASSERT_FALSE(done(&two));
    CU_ASSERT_EQUAL(send_eager(script, 3, 0, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 3, 0));
    CU_ASSERT_EQUAL(two.buffer[0], 0xee);
    script_close(script);
}

static void unmatched_messages_wait_in_order(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(send_eager(script, i, SMALL, TAG), 0);
    CU_ASSERT_EQUAL(send_rts(script, 9, LARGE, TAG), 0);
    post_receive(script, &one, SMALL, TAG);
    post_receive(script, &two, SMALL, TAG);
    post_receive(script, &three, LARGE, TAG);
    CU_ASSERT_TRUE(received(&one, 0, SMALL));
    CU_ASSERT_TRUE(received(&two, 1, SMALL));
    CU_ASSERT_TRUE(received(&three, 2, SMALL));
    CU_ASSERT_TRUE(script_silent(script));
    post_receive(script, &four, LARGE, TAG);
    struct wire_header cts = script_expect(script, WIRE_CTS, NULL, 0);
    CU_ASSERT_EQUAL(cts.target, 9);
    CU_ASSERT_EQUAL(send_data(script, cts.source, 3, LARGE, false, 0), 0);
    CU_ASSERT_TRUE(received(&four, 3, LARGE));
    script_close(script);
}

static void a_message_too_large_costs_its_receive_alone(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, 10, TAG);
    post_receive(script, &two, 10, TAG);
    post_receive(script, &three, SMALL, TAG);
    CU_ASSERT_EQUAL(send_eager(script, 1, 11, TAG), 0);
    CU_ASSERT_EQUAL(send_rts(script, 77, LARGE, TAG), 0);
    CU_ASSERT_EQUAL(send_eager(script, 3, SMALL, TAG), 0);
    CU_ASSERT_TRUE(failed(&one, BMI_EMSGSIZE));
    CU_ASSERT_EQUAL(one.buffer[0], 0xee);
    CU_ASSERT_TRUE(failed(&two, BMI_EMSGSIZE));
    CU_ASSERT_TRUE(received(&three, 3, SMALL));
    struct wire_header cts = script_expect(script, WIRE_CTS, NULL, 0);
    CU_ASSERT_EQUAL(cts.flags, WIRE_DISCARD);
    CU_ASSERT_EQUAL(cts.target, 77);
    ALIVE(script);
    script_close(script);
}

static void a_waiting_message_too_large_stays_for_a_larger_receive(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(send_eager(script, 1, SMALL, TAG), 0);
    bmi_op_id_t id = 9;
    bmi_size_t actual;
    CU_ASSERT_EQUAL(BMI_post_recv(&id, script->address, one.buffer, SMALL - 1, &actual,
                                  BMI_EXT_ALLOC, TAG, NULL, case_context, NULL),
                    -BMI_EMSGSIZE);
    CU_ASSERT_EQUAL(id, 0);
    post_receive(script, &two, SMALL, TAG);
    CU_ASSERT_TRUE(received(&two, 1, SMALL));
    script_close(script);
}

/* ---- cancel while an eager message is arriving ---------------------------------------------- */

static void cancelled_while_arriving_is_drained(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, SMALL, TAG);
    post_receive(script, &two, SMALL, TAG);
    struct wire_header header = {.type = WIRE_EAGER, .tag = TAG, .length = SMALL};
    CU_ASSERT_EQUAL(script_begin(script, header), 0);
    CU_ASSERT_EQUAL(script_body(script, message(1, SMALL), 40), 0);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    memset(one.buffer, 0x11, sizeof one.buffer); /* it is the program's again */
    CU_ASSERT_EQUAL(script_body(script, message(1, SMALL) + 40, 60), 0);
    CU_ASSERT_EQUAL(one.buffer[40], 0x11);
    CU_ASSERT_EQUAL(send_eager(script, 2, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, SMALL));
    script_close(script);
}

/* The message had begun to arrive before any receive was posted. */
static void cancelled_while_its_message_is_held(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    struct wire_header header = {.type = WIRE_EAGER, .tag = TAG, .length = SMALL};
    CU_ASSERT_EQUAL(script_begin(script, header), 0);
    CU_ASSERT_EQUAL(script_body(script, message(1, SMALL), 40), 0);
    post_receive(script, &one, SMALL, TAG);
    post_receive(script, &two, SMALL, TAG);
    CU_ASSERT_FALSE(done(&one));
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_EQUAL(script_body(script, message(1, SMALL) + 40, 60), 0);
    CU_ASSERT_EQUAL(send_eager(script, 2, SMALL, TAG), 0);
    /* message 1 went to the next receive, or nowhere with the cancelled one; never behind 2 */
    CU_ASSERT_TRUE(received(&two, 1, SMALL) || received(&two, 2, SMALL));
    CU_ASSERT_EQUAL(one.buffer[0], 0xee);
    ALIVE(script);
    if (memcmp(two.buffer, message(1, SMALL), SMALL) == 0) {
        post_receive(script, &three, SMALL, TAG);
        CU_ASSERT_TRUE(received(&three, 2, SMALL));
    }
    script_close(script);
}

/* As before, but an announced receive stands behind: the sender counts on it. */
static void cancelled_while_held_before_an_announced_one(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    struct wire_header header = {.type = WIRE_EAGER, .tag = TAG, .length = SMALL};
    CU_ASSERT_EQUAL(script_begin(script, header), 0);
    post_receive(script, &one, SMALL, TAG);
    post_receive(script, &two, LARGE, TAG);
    struct wire_header rtr = script_expect(script, WIRE_RTR, NULL, 0);
    CU_ASSERT_EQUAL(rtr.source, (uint64_t)two.id);
    CU_ASSERT_EQUAL(rtr.credit, 0);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_EQUAL(script_body(script, message(1, SMALL), SMALL), 0);
    /* the sender's next message is the announced receive's */
    CU_ASSERT_EQUAL(send_data(script, rtr.source, 2, LARGE, true, TAG), 0);
    ALIVE(script);
    CU_ASSERT_TRUE(received(&two, 2, LARGE));
    script_close(script);
}

/* ---- rendezvous ----------------------------------------------------------------------------- */

static void announced_and_streamed_in_pieces(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, LARGE, TAG);
    struct wire_header rtr = script_expect(script, WIRE_RTR, NULL, 0);
    CU_ASSERT_EQUAL(rtr.tag, TAG);
    CU_ASSERT_EQUAL(rtr.source, (uint64_t)one.id);
    CU_ASSERT_EQUAL(rtr.target, LARGE);
    CU_ASSERT_EQUAL(rtr.credit, 0);
    struct wire_header data = stream_start(rtr.source, 30000);
    CU_ASSERT_EQUAL(script_send(script, data, NULL, 0), 0); /* starts without bytes */
    data = (struct wire_header){.type = WIRE_DATA, .target = rtr.source};
    CU_ASSERT_EQUAL(script_send(script, data, message(7, 30000), 10000), 0);
    CU_ASSERT_EQUAL(send_eager(script, 8, SMALL, TAG + 1), 0); /* others pass between */
    CU_ASSERT_EQUAL(script_send(script, data, message(7, 30000) + 10000, 10000), 0);
    CU_ASSERT_FALSE(done(&one));
    data.flags = WIRE_LAST;
    CU_ASSERT_EQUAL(script_send(script, data, message(7, 30000) + 20000, 10000), 0);
    CU_ASSERT_TRUE(received(&one, 7, 30000));
    post_receive(script, &two, SMALL, TAG + 1);
    CU_ASSERT_TRUE(received(&two, 8, SMALL));
    script_close(script);
}

static void announcements_count_the_receives_before_them(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, SMALL, TAG);
    post_receive(script, &two, LARGE, TAG);
    post_receive(script, &three, SMALL, TAG);
    post_receive(script, &four, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).credit, 1);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).credit, 3);
    CU_ASSERT_EQUAL(send_eager(script, 1, SMALL, TAG), 0);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, LARGE, true, TAG), 0);
    CU_ASSERT_EQUAL(send_eager(script, 3, SMALL, TAG), 0);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)four.id, 4, LARGE, true, TAG), 0);
    CU_ASSERT_TRUE(received(&one, 1, SMALL) && received(&two, 2, LARGE));
    CU_ASSERT_TRUE(received(&three, 3, SMALL) && received(&four, 4, LARGE));
    script_close(script);
}

/* The sender had not read the announcement: an eager message and a request cross it. */
static void announcements_crossed_by_messages(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, LARGE, TAG);
    post_receive(script, &two, LARGE, TAG);
    CU_ASSERT_EQUAL(send_eager(script, 1, SMALL, TAG), 0);
    CU_ASSERT_EQUAL(send_rts(script, 55, LARGE, TAG), 0);
    CU_ASSERT_TRUE(received(&one, 1, SMALL));
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).credit, 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).credit, 1);
    struct wire_header cts = script_expect(script, WIRE_CTS, NULL, 0);
    CU_ASSERT_EQUAL(cts.target, 55);
    CU_ASSERT_EQUAL(cts.source, (uint64_t)two.id);
    CU_ASSERT_EQUAL(send_data(script, cts.source, 2, LARGE, false, 0), 0);
    CU_ASSERT_TRUE(received(&two, 2, LARGE));
    script_close(script);
}

static void a_stream_into_a_cancelled_receive_is_drained(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    announce_two(script);
    struct wire_header data = stream_start((uint64_t)one.id, LARGE);
    data.length = 20000;
    CU_ASSERT_EQUAL(script_begin(script, data), 0);
    CU_ASSERT_EQUAL(script_body(script, message(1, LARGE), 5000), 0);
    cancel(&one); /* in the midst of a frame */
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    memset(one.buffer, 0x11, sizeof one.buffer);
    CU_ASSERT_EQUAL(script_body(script, message(1, LARGE) + 5000, 15000), 0);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, LARGE, true, TAG), 0);
    data = (struct wire_header){.type = WIRE_DATA, .flags = WIRE_LAST, .target = (uint64_t)one.id};
    CU_ASSERT_EQUAL(script_send(script, data, message(1, LARGE) + 20000, 20000), 0);
    CU_ASSERT_TRUE(received(&two, 2, LARGE));
    CU_ASSERT_EQUAL(one.buffer[5000], 0x11);
    CU_ASSERT_EQUAL(one.buffer[30000], 0x11);
    ALIVE(script);
    script_close(script);
}

/* ---- cancel of announced receives ----------------------------------------------------------- */

static void a_cancelled_announcement_waits_for_the_answer(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    announce_two(script);
    cancel(&one);
    struct wire_header ask = script_expect(script, WIRE_RTR_CANCEL, NULL, 0);
    CU_ASSERT_EQUAL(ask.tag, TAG);
    CU_ASSERT_EQUAL(ask.source, (uint64_t)one.id);
    CU_ASSERT_EQUAL(ask.credit, 0);
    cancel(&one); /* asking again changes nothing */
    CU_ASSERT_TRUE(script_silent(script));
    CU_ASSERT_FALSE(done(&one));
    CU_ASSERT_EQUAL(send_cancelled(script, ask.source), 0);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_FALSE(done(&two));
    /* the sender has forgotten the other one: it is announced again, as the first now */
    struct wire_header again = script_expect(script, WIRE_RTR, NULL, 0);
    CU_ASSERT_EQUAL(again.source, (uint64_t)two.id);
    CU_ASSERT_EQUAL(again.credit, 0);
    post_receive(script, &three, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).credit, 1);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, LARGE, true, TAG), 0);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)three.id, 3, LARGE, true, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, LARGE) && received(&three, 3, LARGE));
    script_close(script);
}

/* The message was on its way when the receive was cancelled: it is the result. */
static void a_cancelled_announcement_whose_message_came_first(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    announce_two(script);
    cancel(&one);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 1, LARGE, true, TAG), 0);
    CU_ASSERT_TRUE(received(&one, 1, LARGE));
    struct wire_header ask = script_expect(script, WIRE_RTR_CANCEL, NULL, 0);
    CU_ASSERT_EQUAL(send_cancelled(script, ask.source), 0);
    CU_ASSERT_FALSE(done(&two));
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, LARGE, true, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, LARGE));
    ALIVE(script);
    script_close(script);
}

/* Between the question and the answer the program posts more. */
static void announcements_after_a_cancel_that_is_not_answered(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, LARGE, TAG);
    post_receive(script, &two, SMALL, TAG);
    script_expect(script, WIRE_RTR, NULL, 0);
    cancel(&one);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCEL, NULL, 0).credit, 0);
    post_receive(script, &three, LARGE, TAG);
    /* of those before it the cancelled one does not count */
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).credit, 1);
    cancel(&two);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCEL, NULL, 0).credit, 0);
    CU_ASSERT_EQUAL(send_cancelled(script, (uint64_t)one.id), 0);
    CU_ASSERT_EQUAL(send_cancelled(script, (uint64_t)two.id), 0);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL) && failed(&two, BMI_ECANCEL));
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)three.id, 3, LARGE, true, TAG), 0);
    CU_ASSERT_TRUE(received(&three, 3, LARGE));
    script_close(script);
}

/* Thousands of one tag are cancelled, the last posted first: what is left is announced again once,
 * not after each answer. */
static void many_cancelled_announcements(void)
{
    enum { MANY = 400, LEFT = 100, AGAIN = 64 };
    static struct posted many[MANY];
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    for (int i = 0; i < MANY; i++) {
        post_receive(script, &many[i], LARGE, TAG);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).credit, (uint32_t)i);
    }
    for (int i = MANY; i-- > LEFT;) {
        cancel(&many[i]);
        CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCEL, NULL, 0).source,
                        (uint64_t)many[i].id);
    }
    for (int i = MANY; i-- > LEFT;) {
        CU_ASSERT_TRUE(script_silent(script));
        struct wire_header answer = {.type = WIRE_RTR_CANCELLED,
                                     .tag = TAG,
                                     .target = (uint64_t)many[i].id};
        CU_ASSERT_EQUAL(script_send(script, answer, NULL, 0), 0);
        CU_ASSERT_TRUE(failed(&many[i], BMI_ECANCEL));
    }
    for (int i = 0; i < AGAIN; i++) {
        struct wire_header again = script_expect(script, WIRE_RTR, NULL, 0);
        CU_ASSERT_EQUAL(again.source, (uint64_t)many[i].id);
        CU_ASSERT_EQUAL(again.credit, (uint32_t)i);
    }
    CU_ASSERT_TRUE(script_silent(script));
    script_close(script);
    for (int i = 0; i < LEFT; i++)
        CU_ASSERT_TRUE(done(&many[i]));
}

/* No answer within the grace: a ghost swallows the message that was committed to the receive. */
static void a_ghost_swallows_what_was_on_its_way(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(bmi__settings_set("cancel_grace_ms=20"), 0);
    announce_two(script);
    cancel(&one);
    CU_ASSERT_TRUE(done_within(&one, 60000));
    CU_ASSERT_EQUAL(one.error, -BMI_ECANCEL);
    memset(one.buffer, 0x11, sizeof one.buffer);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 1, LARGE, true, TAG), 0);
    CU_ASSERT_EQUAL(one.buffer[0], 0x11);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, LARGE, true, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, LARGE));
    /* the late answer finds nothing, and harms nothing */
    CU_ASSERT_EQUAL(send_cancelled(script, (uint64_t)one.id), 0);
    ALIVE(script);
    script_close(script);
}

static void a_ghost_goes_with_a_late_answer(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(bmi__settings_set("cancel_grace_ms=20"), 0);
    post_receive(script, &one, LARGE, TAG);
    post_receive(script, &two, SMALL, TAG);
    script_expect(script, WIRE_RTR, NULL, 0);
    cancel(&one);
    CU_ASSERT_TRUE(done_within(&one, 60000));
    CU_ASSERT_EQUAL(one.error, -BMI_ECANCEL);
    CU_ASSERT_EQUAL(send_cancelled(script, (uint64_t)one.id), 0);
    CU_ASSERT_EQUAL(send_eager(script, 2, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, SMALL));
    script_close(script);
}

/* ---- announcements that the sender has forgotten --------------------------------------------- */

static int send_want(struct script *script, uint8_t flags, uint64_t bytes, int tag)
{
    return script_send(
        script,
        (struct wire_header){.type = WIRE_WANT, .flags = flags, .tag = tag, .source = bytes}, NULL,
        0);
}

/* It asks by tag: all of that tag are told, known ones again, small ones, too, others not. */
static void announced_again_when_asked_for(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, LARGE, TAG);
    post_receive(script, &two, SMALL, TAG);
    post_receive(script, &three, LARGE, TAG + 1);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).source, (uint64_t)one.id);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).source, (uint64_t)three.id);
    CU_ASSERT_EQUAL(send_want(script, WIRE_EAGER_CREDIT | WIRE_ANNOUNCE, SMALL, TAG), 0);
    struct wire_header rtr = script_expect(script, WIRE_RTR, NULL, 0);
    CU_ASSERT_EQUAL(rtr.source, (uint64_t)one.id);
    CU_ASSERT_EQUAL(rtr.credit, 0);
    rtr = script_expect(script, WIRE_RTR, NULL, 0);
    CU_ASSERT_EQUAL(rtr.source, (uint64_t)two.id);
    CU_ASSERT_EQUAL(rtr.credit, 1);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).type, 0);
    CU_ASSERT_EQUAL(send_want(script, WIRE_EAGER_CREDIT | WIRE_ANNOUNCE, SMALL, TAG + 7), 0);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 1, LARGE, true, TAG), 0);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, SMALL, true, TAG), 0);
    CU_ASSERT_TRUE(received(&one, 1, LARGE) && received(&two, 2, SMALL));
    ALIVE(script);
    script_close(script);
    CU_ASSERT_TRUE(done(&three));
}

/* The window is not crowded, but what is left of it is too small for the message whose receive
 * waits. */
static void announced_when_the_window_is_too_small(void)
{
    CU_ASSERT_EQUAL(bmi__settings_set("peer_memory=32K"), 0);
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    enum { WINDOW = 16384, HELD = 7000, NEXT = 10000 };
    CU_ASSERT_EQUAL(script->hello.eager_credit, WINDOW);
    CU_ASSERT_EQUAL(send_eager(script, 1, HELD, TAG + 1), 0); /* has no receive */
    post_receive(script, &one, NEXT, TAG);
    CU_ASSERT_TRUE(script_silent(script));
    CU_ASSERT_EQUAL(send_want(script, WIRE_EAGER_CREDIT, NEXT + WIRE_MESSAGE_CHARGE, 0), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).source, (uint64_t)one.id);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 2, NEXT, true, TAG), 0);
    CU_ASSERT_TRUE(received(&one, 2, NEXT));
    script_close(script);
}

/* ---- ABORT ---------------------------------------------------------------------------------- */

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

static void abort_gives_the_receive_back(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(bmi__settings_set("announce=off"), 0);
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

/* Two granted receives come back in either order: the older one is first again. */
static void receives_given_back_keep_their_order(void)
{
    for (int order = 0; order < 2; order++) {
        struct script *script = open_script(SCRIPT_FRAMES, NULL);
        CU_ASSERT_EQUAL(bmi__settings_set("announce=off"), 0);
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

/* A receive that comes back finds a message that is too large for it. It was posted before that came:
 * both end. */
static void a_receive_given_back_to_a_message_too_large(void)
{
    enum { EAGER_WHOLE, REQUEST, EAGER_IN_PIECES, CASES };
    for (int i = 0; i < CASES; i++) {
        struct script *script = open_script(SCRIPT_FRAMES, NULL);
        CU_ASSERT_EQUAL(bmi__settings_set("announce=off"), 0);
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

static void abort_after_bytes_moved_fails_the_receive(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    announce_two(script);
    struct wire_header data = stream_start((uint64_t)one.id, LARGE);
    CU_ASSERT_EQUAL(script_send(script, data, message(1, LARGE), 1000), 0);
    CU_ASSERT_EQUAL(send_abort(script, 31, (uint64_t)one.id, true, TAG), 0);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, LARGE, true, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, LARGE));
    script_close(script);
}

/* A receive that was cancelled, and asked for, took a request which is then aborted: it must not
 * come back to swallow a later message. */
static void abort_of_what_a_cancelled_receive_took(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(bmi__settings_set("cancel_grace_ms=20"), 0);
    post_receive(script, &one, LARGE, TAG);
    post_receive(script, &two, SMALL, TAG);
    script_expect(script, WIRE_RTR, NULL, 0);
    CU_ASSERT_EQUAL(BMI_cancel(one.id, case_context), 0);
    CU_ASSERT_EQUAL(send_rts(script, 31, LARGE, TAG), 0); /* crosses the question */
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

/* ---- put and get ---------------------------------------------------------------------------- */

static void put_into_announced_memory(void)
{
    struct script *script = open_script(SCRIPT_PUT, NULL);
    post_receive(script, &one, LARGE, TAG);
    uint8_t bytes[WIRE_REGION];
    struct bmi_region region[WIRE_REGIONS_MAX];
    struct wire_header rtr = script_expect(script, WIRE_RTR, bytes, sizeof bytes);
    CU_ASSERT_EQUAL_FATAL(rtr.length, WIRE_REGION);
    CU_ASSERT_EQUAL(wire_regions_decode(bytes, sizeof bytes, region), 1);
    CU_ASSERT_EQUAL(script->enrolled, 1);
    struct wire_header start = {.type = WIRE_DATA,
                                .flags = WIRE_FIRST | WIRE_BY_PUT,
                                .tag = TAG,
                                .source = 30000,
                                .target = rtr.source};
    CU_ASSERT_EQUAL(script_send(script, start, NULL, 0), 0);
    script_put(region, 1, message(1, 30000), 30000);
    CU_ASSERT_FALSE(done(&one));
    struct wire_header over = {.type = WIRE_PUT_DONE, .target = rtr.source};
    CU_ASSERT_EQUAL(script_send(script, over, NULL, 0), 0);
    CU_ASSERT_TRUE(received(&one, 1, 30000));
    CU_ASSERT_EQUAL(script->enrolled, 0);
    script_close(script);
}

/* The sender's put failed and it streams instead; the receiver's patience ends in the midst of a
 * body, whose memory must not be written to, nor its operation touched, from then on. */
static void grace_ends_while_a_body_arrives(void)
{
    struct script *script = open_script(SCRIPT_PUT, NULL);
    CU_ASSERT_EQUAL(bmi__settings_set("cancel_grace_ms=20"), 0);
    post_receive(script, &one, LARGE, TAG);
    script_expect(script, WIRE_RTR, NULL, 0);
    struct wire_header data = {.type = WIRE_DATA,
                               .flags = WIRE_FIRST | WIRE_LAST,
                               .tag = TAG,
                               .source = LARGE,
                               .target = (uint64_t)one.id,
                               .length = LARGE};
    CU_ASSERT_EQUAL(script_begin(script, data), 0);
    CU_ASSERT_EQUAL(script_body(script, message(1, LARGE), 1000), 0);
    cancel(&one);
    CU_ASSERT_TRUE(done_within(&one, 60000));
    CU_ASSERT_EQUAL(one.error, -BMI_ECANCEL);
    CU_ASSERT_EQUAL(script->enrolled, 0);
    memset(one.buffer, 0x11, sizeof one.buffer);
    CU_ASSERT_EQUAL(script_body(script, message(1, LARGE) + 1000, LARGE - 1000), 0);
    CU_ASSERT_EQUAL(one.buffer[1000], 0x11);
    CU_ASSERT_EQUAL(one.buffer[LARGE - 1], 0x11);
    ALIVE(script);
    script_close(script);
}

static int request_for_get(struct script *script)
{
    uint8_t bytes[WIRE_REGION];
    struct bmi_region region = {.address = (uintptr_t)message(4, LARGE), .length = LARGE};
    wire_regions_encode(bytes, &region, 1);
    struct wire_header rts = {.type = WIRE_RTS, .tag = TAG, .source = 66, .target = LARGE};
    return script_send(script, rts, bytes, sizeof bytes);
}

static void get_of_a_request_s_memory(void)
{
    for (int status = 0; status >= -EIO; status -= EIO) {
        struct script *script = open_script(SCRIPT_GET, NULL);
        post_receive(script, &one, LARGE, TAG);
        CU_ASSERT_TRUE(script_silent(script)); /* a receiver that gets does not announce */
        CU_ASSERT_EQUAL(request_for_get(script), 0);
        CU_ASSERT_TRUE(script_transfer_end(script, status));
        if (status == 0) {
            CU_ASSERT_EQUAL(script_expect(script, WIRE_GET_DONE, NULL, 0).target, 66);
        } else { /* it asks for frames instead */
            CU_ASSERT_EQUAL(script_expect(script, WIRE_CTS, NULL, 0).target, 66);
            CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 4, LARGE, false, 0), 0);
        }
        CU_ASSERT_TRUE(received(&one, 4, LARGE));
        script_close(script);
    }
}

/* The memory is being written to: nothing ends before the transfer does. If that fails, since the
 * sender may have cancelled as well, the receive must not wait for another message. */
static void cancelled_while_it_gets(void)
{
    for (int status = 0; status >= -EIO; status -= EIO) {
        struct script *script = open_script(SCRIPT_GET, NULL);
        post_receive(script, &one, LARGE, TAG);
        CU_ASSERT_EQUAL(request_for_get(script), 0);
        CU_ASSERT_EQUAL(BMI_cancel(one.id, case_context), 0);
        CU_ASSERT_FALSE(done(&one));
        CU_ASSERT_TRUE(script_transfer_end(script, status));
        if (status == 0) {
            CU_ASSERT_EQUAL(script_expect(script, WIRE_GET_DONE, NULL, 0).target, 66);
            CU_ASSERT_TRUE(received(&one, 4, LARGE));
        } else {
            CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
            CU_ASSERT_EQUAL(script_expect(script, WIRE_CTS, NULL, 0).target, 66);
            CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 4, LARGE, false, 0), 0);
        }
        ALIVE(script);
        script_close(script);
    }
}

/* ---- the end -------------------------------------------------------------------------------- */

static void everything_fails_with_the_link(void)
{
    static struct posted many[6];
    struct script *script = open_script(SCRIPT_PUT, NULL);
    post_receive(script, &many[0], SMALL, TAG);     /* posted */
    post_receive(script, &many[1], LARGE, TAG + 1); /* announced */
    post_receive(script, &many[2], LARGE, TAG + 2); /* granted by put */
    post_receive(script, &many[3], SMALL, TAG + 3); /* arriving */
    post_receive(script, &many[4], LARGE, TAG + 4); /* cancelled, asked */
    cancel(&many[4]);
    CU_ASSERT_EQUAL(send_rts(script, 5, LARGE, TAG + 2), 0);
    CU_ASSERT_EQUAL(send_eager(script, 1, SMALL, TAG + 9), 0); /* unmatched */
    struct wire_header eager = {.type = WIRE_EAGER, .tag = TAG + 3, .length = SMALL};
    CU_ASSERT_EQUAL(script_begin(script, eager), 0);
    CU_ASSERT_EQUAL(script_body(script, message(1, SMALL), 9), 0);
    script_cut(script, -ETIMEDOUT);
    for (int i = 0; i < 4; i++)
        CU_ASSERT_TRUE(failed(&many[i], BMI_ETIMEDOUT));
    CU_ASSERT_TRUE(failed(&many[4], BMI_ECANCEL));
    CU_ASSERT_EQUAL(script->enrolled, 0);
    bmi_op_id_t id;
    CU_ASSERT_EQUAL(BMI_post_recv(&id, script->address, one.buffer, 1, &one.actual, BMI_EXT_ALLOC,
                                  TAG, NULL, case_context, NULL),
                    -BMI_ETIMEDOUT);
    script_close(script);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"eager reaches the oldest receive", eager_reaches_the_oldest_receive},
        {"unmatched messages wait in order", unmatched_messages_wait_in_order},
        {"a message too large costs its receive", a_message_too_large_costs_its_receive_alone},
        {"a waiting one stays for a larger receive",
         a_waiting_message_too_large_stays_for_a_larger_receive},
        {"cancelled while arriving", cancelled_while_arriving_is_drained},
        {"cancelled while its message is held", cancelled_while_its_message_is_held},
        {"cancelled while held, announced behind", cancelled_while_held_before_an_announced_one},
        {"announced and streamed in pieces", announced_and_streamed_in_pieces},
        {"announcements count those before", announcements_count_the_receives_before_them},
        {"announcements crossed by messages", announcements_crossed_by_messages},
        {"a stream into a cancelled receive", a_stream_into_a_cancelled_receive_is_drained},
        {"a cancelled announcement waits", a_cancelled_announcement_waits_for_the_answer},
        {"its message came first", a_cancelled_announcement_whose_message_came_first},
        {"announcements after it", announcements_after_a_cancel_that_is_not_answered},
        {"many cancelled announcements", many_cancelled_announcements},
        {"a ghost swallows", a_ghost_swallows_what_was_on_its_way},
        {"a ghost goes with a late answer", a_ghost_goes_with_a_late_answer},
        {"announced again when asked for", announced_again_when_asked_for},
        {"announced where the window is small", announced_when_the_window_is_too_small},
        {"ABORT of a request that waits", abort_of_a_request_that_waits},
        {"ABORT gives the receive back", abort_gives_the_receive_back},
        {"receives given back keep order", receives_given_back_keep_their_order},
        {"given back to a message too large", a_receive_given_back_to_a_message_too_large},
        {"ABORT after bytes moved", abort_after_bytes_moved_fails_the_receive},
        {"ABORT of what a cancelled one took", abort_of_what_a_cancelled_receive_took},
        {"VOID counts and does nothing", void_counts_and_does_nothing},
        {"put into announced memory", put_into_announced_memory},
        {"grace ends while a body arrives", grace_ends_while_a_body_arrives},
        {"get of a request's memory", get_of_a_request_s_memory},
        {"cancelled while it gets", cancelled_while_it_gets},
        {"everything fails with the link", everything_fails_with_the_link},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("receiving", tests);
}
