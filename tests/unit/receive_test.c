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

/* As before, but the next receive is too small: it waits for a message that it was posted for. */
static void cancelled_while_held_before_a_small_one(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    struct wire_header header = {.type = WIRE_EAGER, .tag = TAG, .length = 2 * SMALL};
    CU_ASSERT_EQUAL(script_begin(script, header), 0);
    post_receive(script, &one, 2 * SMALL, TAG);
    post_receive(script, &two, SMALL, TAG);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_EQUAL(script_body(script, message(1, 2 * SMALL), 2 * SMALL), 0);
    CU_ASSERT_FALSE(done(&two));
    CU_ASSERT_EQUAL(send_eager(script, 2, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, SMALL));
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

/* What the sender does not know of ends at once, whether it reads or not. */
static void cancelled_before_it_was_announced(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, SMALL, TAG);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_TRUE(script_silent(script));
    CU_ASSERT_EQUAL(script_peer(script)->key_count, 0);
    post_receive(script, &two, SMALL, TAG);
    CU_ASSERT_EQUAL(send_eager(script, 2, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, SMALL));
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

/* The grace counts where other times are long. */
static void grace_set(void)
{
    CU_ASSERT_EQUAL(bmi__settings_set(
                        "cancel_grace_ms=20,connect_timeout_ms=86400000,peer_timeout_ms=0"),
                    0);
}

/* Answers one RTR_CANCEL after another, each time when nothing more is asked. Returns the most that
 * were out at a time; 0: fewer were asked. */
static unsigned questions_answer(struct script *script, unsigned count)
{
    static struct wire_header asked[1500];
    unsigned came = 0, answered = 0, most = 0;
    while (answered < count) {
        struct script_frame *frame;
        script_drive();
        while ((frame = script_read(script)) != NULL) {
            if (frame->header.type == WIRE_RTR_CANCEL && came < COUNT_OF(asked))
                asked[came++] = frame->header;
            free(frame);
        }
        most = came - answered > most ? came - answered : most;
        if (answered == came)
            return 0; /* nothing more is asked */
        struct wire_header answer = {.type = WIRE_RTR_CANCELLED,
                                     .tag = asked[answered].tag,
                                     .target = asked[answered].source};
        CU_ASSERT_EQUAL(script_send(script, answer, NULL, 0), 0);
        answered++;
    }
    return most;
}

/* However many are cancelled, a sender is asked for a few at a time, also where the grace ends
 * first. */
static void questions_are_few_at_a_time(void)
{
    enum { MANY = 1500, QUESTIONS_MOST = 512, TAGS = 3 };
    static bmi_op_id_t ids[MANY];
    static const char *const graces[] = {"cancel_grace_ms=600000", "cancel_grace_ms=20"};
    for (int late = 0; late < 2; late++) {
        struct script *script = open_script(SCRIPT_FRAMES, NULL);
        bmi_error_code_t error;
        int count;
        CU_ASSERT_EQUAL(bmi__settings_set(graces[late]), 0);
        for (int i = 0; i < MANY; i++) {
            CU_ASSERT_EQUAL(BMI_post_recv(&ids[i], script->address, one.buffer, LARGE, &one.actual,
                                          BMI_EXT_ALLOC, TAG + i % TAGS, NULL, case_context, NULL),
                            0);
            script_expect(script, WIRE_RTR, NULL, 0);
        }
        for (int i = 0; i < MANY; i++)
            CU_ASSERT_EQUAL(BMI_cancel(ids[i], case_context), 0);
        for (int i = 0; late && i < MANY; i++)
            CU_ASSERT_EQUAL(BMI_test(ids[i], &count, &error, NULL, NULL, 60000, case_context), 1);
        post_receive(script, &two, LARGE, TAG);
        CU_ASSERT_EQUAL(questions_answer(script, MANY), QUESTIONS_MOST);
        for (int i = 0; !late && i < MANY; i++) {
            CU_ASSERT_EQUAL(BMI_test(ids[i], &count, &error, NULL, NULL, 0, case_context), 1);
            CU_ASSERT_EQUAL(error, -BMI_ECANCEL);
        }
        CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, LARGE, true, TAG), 0);
        CU_ASSERT_TRUE(received(&two, 2, LARGE));
        CU_ASSERT_EQUAL(script_peer(script)->key_count, 0);
        ALIVE(script);
        script_close(script);
    }
}

/* Those that are asked for later count until then, and a message that comes first is theirs. */
static void a_question_that_waits(void)
{
    enum { BEFORE = 512 };
    static bmi_op_id_t ids[BEFORE];
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(bmi__settings_set("cancel_grace_ms=600000"), 0);
    for (int i = 0; i < BEFORE; i++) {
        CU_ASSERT_EQUAL(BMI_post_recv(&ids[i], script->address, one.buffer, LARGE, &one.actual,
                                      BMI_EXT_ALLOC, TAG + 1, NULL, case_context, NULL),
                        0);
        script_expect(script, WIRE_RTR, NULL, 0);
    }
    announce_two(script);
    for (int i = 0; i < BEFORE; i++) {
        CU_ASSERT_EQUAL(BMI_cancel(ids[i], case_context), 0);
        script_expect(script, WIRE_RTR_CANCEL, NULL, 0);
    }
    cancel(&one);
    cancel(&two);
    cancel(&two);
    CU_ASSERT_TRUE(script_silent(script));
    post_receive(script, &three, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).credit, 2);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 1, LARGE, true, TAG), 0);
    CU_ASSERT_TRUE(received(&one, 1, LARGE));
    script_cut(script, -ECONNRESET);
    CU_ASSERT_TRUE(failed(&two, BMI_ECANCEL) && failed(&three, BMI_ECONNRESET));
    for (int i = 0; i < BEFORE; i++) {
        bmi_error_code_t error;
        int count;
        CU_ASSERT_EQUAL(BMI_test(ids[i], &count, &error, NULL, NULL, 0, case_context), 1);
        CU_ASSERT_EQUAL(error, -BMI_ECANCEL);
    }
    script_close(script);
}

/* No answer within the grace: a ghost swallows the message that was committed to the receive. */
static void a_ghost_swallows_what_was_on_its_way(void)
{
    grace_set();
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
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
    post_receive(script, &three, SMALL, TAG);
    cancel(&three); /* the sender knows of none any more: it need not be asked */
    CU_ASSERT_TRUE(failed(&three, BMI_ECANCEL));
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

/* A receive that was cancelled, or its ghost, is not told of again, nor counted: its message would
 * be lost with it. */
static void cancelled_ones_are_not_announced_again(void)
{
    enum { GHOST, ASKED, WAYS }; /* in this order: a tick that was set is not set anew */
    for (int way = 0; way < WAYS; way++)
        for (int by_tag = 0; by_tag < 2; by_tag++) {
            grace_set();
            if (way == ASKED)
                CU_ASSERT_EQUAL(bmi__settings_set("cancel_grace_ms=60000"), 0);
            struct script *script = open_script(SCRIPT_FRAMES, NULL);
            post_receive(script, &one, LARGE, TAG);
            post_receive(script, &two, SMALL, TAG);
            CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).source, (uint64_t)one.id);
            cancel(&one);
            CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCEL, NULL, 0).source,
                            (uint64_t)one.id);
            if (way == GHOST)
                CU_ASSERT_TRUE(done_within(&one, 60000));
            uint8_t flags = WIRE_EAGER_CREDIT | (by_tag ? WIRE_ANNOUNCE : 0);
            for (int times = 0; times < 2; times++)
                CU_ASSERT_EQUAL(send_want(script, flags, 1 << 20, TAG), 0);
            struct wire_header rtr = script_expect(script, WIRE_RTR, NULL, 0);
            CU_ASSERT_EQUAL(rtr.source, (uint64_t)two.id);
            CU_ASSERT_EQUAL(rtr.credit, 0);
            if (by_tag) /* known ones again, as often as asked */
                while (script_expect(script, WIRE_RTR, NULL, 0).source == (uint64_t)two.id)
                    continue;
            CU_ASSERT_TRUE(script_silent(script));
            CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, SMALL, true, TAG), 0);
            CU_ASSERT_TRUE(received(&two, 2, SMALL));
            script_close(script);
            CU_ASSERT_TRUE(done(&one));
        }
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

/* By the time that an ABORT names it a receive may have been given back, and have another message.
 */
static void abort_of_what_it_had_before(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(bmi__settings_set("announce=off"), 0);
    post_receive(script, &one, LARGE, TAG);
    CU_ASSERT_EQUAL(send_rts(script, 31, LARGE, TAG), 0);
    CU_ASSERT_EQUAL(send_abort(script, 31, 0, false, TAG), 0);
    CU_ASSERT_EQUAL(send_rts(script, 32, LARGE, TAG), 0);
    CU_ASSERT_EQUAL(send_abort(script, 31, (uint64_t)one.id, false, TAG), 0);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 2, LARGE, false, 0), 0);
    CU_ASSERT_TRUE(received(&one, 2, LARGE));
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

/* A receive that comes back finds a message that is too large for it. It was posted before that
 * came: both end. */
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

/* An announced receive took a request that crossed its announcement. Given back, it is announced
 * anew, and takes the next message as if that had been its first. */
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
    CU_ASSERT_EQUAL(script->enrolled, 1);
    struct wire_header data = stream_start((uint64_t)one.id, LARGE);
    CU_ASSERT_EQUAL(script_send(script, data, message(1, LARGE), 1000), 0);
    CU_ASSERT_EQUAL(send_abort(script, 32, (uint64_t)one.id, true, TAG), 0);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_EQUAL(script->enrolled, 0);
    ALIVE(script);
    script_close(script);
}

/* Whether headers only are read is for large messages that are on their way, each once. */
static void large_ones_are_expected_once(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, LARGE, TAG);
    CU_ASSERT_EQUAL(atomic_load(&script->link.large_expected), 1);
    CU_ASSERT_EQUAL(send_rts(script, 31, LARGE, TAG), 0); /* crosses the announcement */
    CU_ASSERT_EQUAL(atomic_load(&script->link.large_expected), 1);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 1, LARGE, false, 0), 0);
    CU_ASSERT_TRUE(received(&one, 1, LARGE));
    CU_ASSERT_EQUAL(atomic_load(&script->link.large_expected), 0);
    script_close(script);
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

/* The sender is writing to its memory: within the grace nothing ends before it has said so. */
static void cancelled_while_a_put_writes(void)
{
    struct script *script = open_script(SCRIPT_PUT, NULL);
    post_receive(script, &one, LARGE, TAG);
    uint8_t bytes[WIRE_REGION];
    struct bmi_region region[WIRE_REGIONS_MAX];
    struct wire_header rtr = script_expect(script, WIRE_RTR, bytes, sizeof bytes);
    CU_ASSERT_EQUAL(wire_regions_decode(bytes, sizeof bytes, region), 1);
    struct wire_header start = stream_start(rtr.source, LARGE);
    start.flags |= WIRE_BY_PUT;
    CU_ASSERT_EQUAL(script_send(script, start, NULL, 0), 0);
    cancel(&one);
    CU_ASSERT_FALSE(done(&one));
    CU_ASSERT_EQUAL(script->enrolled, 1);
    script_put(region, 1, message(1, LARGE), LARGE);
    struct wire_header over = {.type = WIRE_PUT_DONE, .target = rtr.source};
    CU_ASSERT_EQUAL(script_send(script, over, NULL, 0), 0);
    CU_ASSERT_TRUE(received(&one, 1, LARGE));
    CU_ASSERT_EQUAL(script->enrolled, 0);
    script_close(script);
}

/* The sender does not say so within the grace, and cannot be kept from writing, for a while: then
 * it ends when he can. Announced, and not answered for, or with the put under way. */
static void grace_ends_when_the_writer_is_done(void)
{
    for (int begun = 0; begun < 2; begun++) {
        grace_set();
        struct script *script = open_script(SCRIPT_PUT, NULL);
        post_receive(script, &one, LARGE, TAG);
        struct wire_header start = stream_start((uint64_t)one.id, LARGE);
        start.flags |= WIRE_BY_PUT;
        if (begun)
            CU_ASSERT_EQUAL(script_send(script, start, NULL, 0), 0);
        script->writes = true;
        cancel(&one);
        CU_ASSERT_FALSE(done_within(&one, 100));
        CU_ASSERT_EQUAL(script->enrolled, 1);
        script->writes = false;
        CU_ASSERT_TRUE(done_within(&one, 60000));
        CU_ASSERT_EQUAL(one.error, -BMI_ECANCEL);
        CU_ASSERT_EQUAL(script->enrolled, 0);
        struct wire_header over = {.type = WIRE_PUT_DONE, .target = (uint64_t)one.id};
        CU_ASSERT_EQUAL(script_send(script, over, NULL, 0), 0); /* too late, and no harm */
        ALIVE(script);
        script_close(script);
    }
}

/* The connection is about to end, and until it has its sender may be writing. */
static void cancelled_while_the_connection_ends(void)
{
    struct script *script = open_script(SCRIPT_PUT, NULL);
    post_receive(script, &one, LARGE, TAG);
    script_expect(script, WIRE_RTR, NULL, 0);
    CU_ASSERT_EQUAL(BMI_set_info(script->address, BMI_TCP_CLOSE_SOCKET, NULL), 0);
    CU_ASSERT_EQUAL(BMI_cancel(one.id, case_context), 0);
    CU_ASSERT_FALSE(script->down);
    CU_ASSERT_EQUAL(script->enrolled, 1);
    CU_ASSERT_TRUE(done(&one));
    CU_ASSERT_NOT_EQUAL(one.error, 0);
    CU_ASSERT_TRUE(script->down);
    CU_ASSERT_EQUAL(script->enrolled, 0);
    script_close(script);
}

/* The sender's put failed and it streams instead; the receiver's patience ends in the midst of a
 * body, whose memory must not be written to, nor its operation touched, from then on. */
static void grace_ends_while_a_body_arrives(void)
{
    grace_set();
    struct script *script = open_script(SCRIPT_PUT, NULL);
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

/* The receive was cancelled before its message began. A sender that does not go on with it holds
 * the receive no longer than the grace, whether the network puts or not. */
static void grace_ends_in_a_message_that_came_first(void)
{
    static const enum script_kind kinds[] = {SCRIPT_FRAMES, SCRIPT_PUT};
    static const bmi_size_t begun[] = {0, 1000}; /* between two frames; in the midst of one */
    for (int i = 0; i < 4; i++) {
        struct script *script = open_script(kinds[i / 2], NULL);
        bmi_size_t moved = begun[i % 2];
        CU_ASSERT_EQUAL(bmi__settings_set("cancel_grace_ms=20"), 0);
        post_receive(script, &one, LARGE, TAG);
        cancel(&one);
        struct wire_header data = {.type = WIRE_DATA,
                                   .flags = WIRE_FIRST,
                                   .tag = TAG,
                                   .source = LARGE,
                                   .target = (uint64_t)one.id};
        if (moved > 0) {
            data.flags |= WIRE_LAST;
            data.length = LARGE;
        }
        CU_ASSERT_EQUAL(script_begin(script, data), 0);
        if (moved > 0)
            CU_ASSERT_EQUAL(script_body(script, message(1, LARGE), (size_t)moved), 0);
        CU_ASSERT_TRUE(done_within(&one, 60000));
        CU_ASSERT_EQUAL(one.error, -BMI_ECANCEL);
        CU_ASSERT_EQUAL(script->enrolled, 0);
        memset(one.buffer, 0x11, sizeof one.buffer);
        int status = moved > 0
                         ? script_body(script, message(1, LARGE) + moved, (size_t)(LARGE - moved))
                         : send_data(script, data.target, 1, LARGE, false, TAG);
        CU_ASSERT_EQUAL(status, 0);
        CU_ASSERT_EQUAL(one.buffer[moved], 0x11);
        CU_ASSERT_EQUAL(one.buffer[LARGE - 1], 0x11);
        ALIVE(script);
        script_close(script);
    }
}

static int request_for_get(struct script *script)
{
    uint8_t bytes[WIRE_REGION];
    struct bmi_region region = {.address = (uintptr_t)message(4, LARGE), .length = LARGE};
    wire_regions_encode(bytes, &region, 1);
    struct wire_header rts = {.type = WIRE_RTS, .tag = TAG, .source = 66, .target = LARGE};
    return script_send(script, rts, bytes, sizeof bytes);
}

/* What a network has no use for is not kept: it is not paid for. */
static void regions_of_a_request_that_waits(void)
{
    for (int kind = SCRIPT_PUT; kind <= SCRIPT_GET; kind++) {
        struct script *script = open_script((enum script_kind)kind, NULL);
        CU_ASSERT_EQUAL(request_for_get(script), 0);
        const struct key *key = bmi__key_find_locked(script_peer(script), TAG);
        CU_ASSERT_EQUAL(key->unmatched_first->region_count, kind == SCRIPT_GET ? 1u : 0u);
        post_receive(script, &one, LARGE, TAG);
        CU_ASSERT_EQUAL(script->transfers != NULL, kind == SCRIPT_GET);
        script_close(script);
        CU_ASSERT_TRUE(done(&one));
    }
}

/* It would have to write beyond them: the message comes in frames. */
static void regions_smaller_than_the_message_are_not_fetched(void)
{
    uint8_t bytes[WIRE_REGION];
    struct bmi_region region = {.address = (uintptr_t)message(4, LARGE), .length = LARGE - 1};
    struct script *script = open_script(SCRIPT_GET, NULL);
    wire_regions_encode(bytes, &region, 1);
    post_receive(script, &one, LARGE, TAG);
    struct wire_header rts = {.type = WIRE_RTS, .tag = TAG, .source = 66, .target = LARGE};
    CU_ASSERT_EQUAL(script_send(script, rts, bytes, sizeof bytes), 0);
    CU_ASSERT_PTR_NULL(script->transfers);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_CTS, NULL, 0).target, 66);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 4, LARGE, false, 0), 0);
    CU_ASSERT_TRUE(received(&one, 4, LARGE));
    script_close(script);
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

/* ---- lies about receives -------------------------------------------------------------------- */

/* What starts a message names an announced receive of its tag, and fits into it; what follows is
 * what is left of it. */
static void data_that_does_not_fit_ends_the_link(void)
{
    enum { WRONG_SIZE, WRONG_TAG, NOT_ANNOUNCED, TOO_MUCH, NOT_LAST, NOT_ALL, WAYS };
    for (int way = 0; way < WAYS; way++) {
        struct script *script = open_script(SCRIPT_FRAMES, NULL);
        announce_two(script);
        post_receive(script, &three, SMALL, TAG);
        post_receive(script, &four, LARGE, TAG + 1);
        struct wire_header data = stream_start((uint64_t)one.id, LARGE);
        if (way == WRONG_SIZE)
            data.source = LARGE + 1;
        if (way == WRONG_TAG)
            data.tag = TAG + 1;
        if (way == NOT_ANNOUNCED)
            data.target = (uint64_t)three.id, data.source = SMALL;
        if (way >= TOO_MUCH)
            CU_ASSERT_EQUAL(script_send(script, data, message(1, LARGE), 1000), 0);
        size_t size = way < TOO_MUCH ? 10 : way == TOO_MUCH ? LARGE - 999 : LARGE - 1000;
        if (way >= TOO_MUCH)
            data.flags = way == NOT_ALL ? WIRE_LAST : 0, data.source = 0, data.tag = 0;
        if (way == NOT_ALL)
            size--;
        CU_ASSERT_EQUAL(script_send(script, data, message(1, LARGE), size), -EPROTO);
        CU_ASSERT_TRUE(failed(&one, BMI_EPROTO) && failed(&two, BMI_EPROTO));
        CU_ASSERT_TRUE(failed(&three, BMI_EPROTO) && failed(&four, BMI_EPROTO));
        script_close(script);
    }
}

/* An answer to a question that was not asked, or was asked of another tag, ends nothing. */
static void answers_that_nobody_asked_for(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    announce_two(script);
    post_receive(script, &three, SMALL, TAG + 1);
    CU_ASSERT_EQUAL(send_cancelled(script, (uint64_t)two.id), 0);
    CU_ASSERT_FALSE(done(&two));
    cancel(&one);
    struct wire_header answer = {.type = WIRE_RTR_CANCELLED,
                                 .tag = TAG + 1,
                                 .target = (uint64_t)one.id};
    CU_ASSERT_EQUAL(script_send(script, answer, NULL, 0), 0);
    CU_ASSERT_FALSE(done(&one) || done(&three));
    CU_ASSERT_EQUAL(send_cancelled(script, (uint64_t)one.id), 0);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, LARGE, true, TAG), 0);
    CU_ASSERT_EQUAL(send_eager(script, 3, SMALL, TAG + 1), 0);
    CU_ASSERT_TRUE(received(&two, 2, LARGE) && received(&three, 3, SMALL));
    script_close(script);
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
        {"cancelled while held, small behind", cancelled_while_held_before_a_small_one},
        {"cancelled while held, announced behind", cancelled_while_held_before_an_announced_one},
        {"announced and streamed in pieces", announced_and_streamed_in_pieces},
        {"announcements count those before", announcements_count_the_receives_before_them},
        {"announcements crossed by messages", announcements_crossed_by_messages},
        {"a stream into a cancelled receive", a_stream_into_a_cancelled_receive_is_drained},
        {"a cancelled announcement waits", a_cancelled_announcement_waits_for_the_answer},
        {"cancelled before it was announced", cancelled_before_it_was_announced},
        {"its message came first", a_cancelled_announcement_whose_message_came_first},
        {"announcements after it", announcements_after_a_cancel_that_is_not_answered},
        {"many cancelled announcements", many_cancelled_announcements},
        {"questions are few at a time", questions_are_few_at_a_time},
        {"a question that waits", a_question_that_waits},
        {"a ghost swallows", a_ghost_swallows_what_was_on_its_way},
        {"a ghost goes with a late answer", a_ghost_goes_with_a_late_answer},
        {"announced again when asked for", announced_again_when_asked_for},
        {"cancelled ones are not announced again", cancelled_ones_are_not_announced_again},
        {"announced where the window is small", announced_when_the_window_is_too_small},
        {"ABORT of a request that waits", abort_of_a_request_that_waits},
        {"ABORT gives the receive back", abort_gives_the_receive_back},
        {"ABORT of what it had before", abort_of_what_it_had_before},
        {"receives given back keep order", receives_given_back_keep_their_order},
        {"given back to a message too large", a_receive_given_back_to_a_message_too_large},
        {"an announced receive given back", an_announced_receive_given_back},
        {"large ones are expected once", large_ones_are_expected_once},
        {"ABORT after bytes moved", abort_after_bytes_moved_fails_the_receive},
        {"ABORT of what a cancelled one took", abort_of_what_a_cancelled_receive_took},
        {"VOID counts and does nothing", void_counts_and_does_nothing},
        {"put into announced memory", put_into_announced_memory},
        {"cancelled while a put writes", cancelled_while_a_put_writes},
        {"grace ends when the writer is done", grace_ends_when_the_writer_is_done},
        {"cancelled while the connection ends", cancelled_while_the_connection_ends},
        {"grace ends while a body arrives", grace_ends_while_a_body_arrives},
        {"regions of a request that waits", regions_of_a_request_that_waits},
        {"regions too small to be fetched", regions_smaller_than_the_message_are_not_fetched},
        {"grace ends in a message that came", grace_ends_in_a_message_that_came_first},
        {"get of a request's memory", get_of_a_request_s_memory},
        {"cancelled while it gets", cancelled_while_it_gets},
        {"data that does not fit", data_that_does_not_fit_ends_the_link},
        {"answers that nobody asked for", answers_that_nobody_asked_for},
        {"everything fails with the link", everything_fails_with_the_link},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("receiving", tests);
}
