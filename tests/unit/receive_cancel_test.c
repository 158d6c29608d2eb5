/* SPDX-License-Identifier: BSD-3-Clause
 *
 * receive_cancel_test.c - cancelled receives that were announced, frame by frame: RTR_CANCEL and
 * its answer, the grace for that, tombstones (OP_TOMBSTONE), which stay behind, and memory that is
 * being written. The sender is a script.
 */
#include "bmi/base/instance.h"
#include "tests/unit/script_case.h"

static struct posted one, two, three;

/* ---- questions ------------------------------------------------------------------------------ */

static void a_cancelled_announcement_waits_for_the_answer(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    announce_two(script, &one, &two);
    cancel(&one);
    struct wire_header ask = script_expect(script, WIRE_RTR_CANCEL, NULL, 0);
    CU_ASSERT_EQUAL(ask.tag, TAG);
    CU_ASSERT_EQUAL(ask.source, (uint64_t)one.id);
    CU_ASSERT_EQUAL(ask.credit, 0);
    cancel(&one); /* a second cancel changes nothing */
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

/* A receive that the sender does not know ends at once, whether the sender reads or not. */
static void cancelled_before_it_was_announced(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, SMALL, TAG);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_TRUE(script_silent(script));
    CU_ASSERT_EQUAL(script_peer(script)->queue_count, 0);
    post_receive(script, &two, SMALL, TAG);
    CU_ASSERT_EQUAL(send_eager(script, 2, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, SMALL));
    script_close(script);
}

/* The message was on its way when the receive was cancelled: it is the result. */
static void a_cancelled_announcement_whose_message_came_first(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    announce_two(script, &one, &two);
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

/* Between RTR_CANCEL and its answer the program posts more. */
static void announcements_after_a_cancel_that_is_not_answered(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_receive(script, &one, LARGE, TAG);
    post_receive(script, &two, SMALL, TAG);
    script_expect(script, WIRE_RTR, NULL, 0);
    cancel(&one);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCEL, NULL, 0).credit, 0);
    post_receive(script, &three, LARGE, TAG);
    /* the cancelled one does not count among those before it */
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

/* Thousands of receives of one tag are cancelled, the last posted first: the rest is announced
 * again once, not after each answer. */
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

/* Answers one RTR_CANCEL after another, each time when no further one comes. Returns the most that
 * were out at a time; 0: fewer came. */
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
            return 0; /* no further one */
        struct wire_header answer = {.type = WIRE_RTR_CANCELLED,
                                     .tag = asked[answered].tag,
                                     .target = asked[answered].source};
        CU_ASSERT_EQUAL(script_send(script, answer, NULL, 0), 0);
        answered++;
    }
    return most;
}

/* However many are cancelled, only a few RTR_CANCELs are out at a time, also if the grace ends
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
        CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, graces[late]), 0);
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
        CU_ASSERT_EQUAL(script_peer(script)->queue_count, 0);
        ALIVE(script);
        script_close(script);
    }
}

/* Receives whose RTR_CANCEL is sent later count until then, and a message that comes first is
 * theirs. */
static void a_question_that_waits(void)
{
    enum { BEFORE = 512 };
    static bmi_op_id_t ids[BEFORE];
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "cancel_grace_ms=600000"), 0);
    for (int i = 0; i < BEFORE; i++) {
        CU_ASSERT_EQUAL(BMI_post_recv(&ids[i], script->address, one.buffer, LARGE, &one.actual,
                                      BMI_EXT_ALLOC, TAG + 1, NULL, case_context, NULL),
                        0);
        script_expect(script, WIRE_RTR, NULL, 0);
    }
    announce_two(script, &one, &two);
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

/* ---- tombstones ------------------------------------------------------------------------------ */

/* The grace applies while other time-outs are long. */
static void grace_set(void)
{
    CU_ASSERT_EQUAL(
        bmi__settings_set(&bmi__default,
                          "cancel_grace_ms=20,connect_timeout_ms=86400000,peer_timeout_ms=0"),
        0);
}

/* No answer within the grace: a tombstone takes the message that was committed to the receive. */
static void a_tombstone_discards_the_message(void)
{
    grace_set();
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    announce_two(script, &one, &two);
    cancel(&one);
    CU_ASSERT_TRUE(done_within(&one, 60000));
    CU_ASSERT_EQUAL(one.error, -BMI_ECANCEL);
    memset(one.buffer, 0x11, sizeof one.buffer);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 1, LARGE, true, TAG), 0);
    CU_ASSERT_EQUAL(one.buffer[0], 0x11);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, LARGE, true, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, LARGE));
    /* the late answer has no effect */
    CU_ASSERT_EQUAL(send_cancelled(script, (uint64_t)one.id), 0);
    ALIVE(script);
    script_close(script);
}

static void a_tombstone_goes_with_a_late_answer(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "cancel_grace_ms=20"), 0);
    post_receive(script, &one, LARGE, TAG);
    post_receive(script, &two, SMALL, TAG);
    script_expect(script, WIRE_RTR, NULL, 0);
    cancel(&one);
    CU_ASSERT_TRUE(done_within(&one, 60000));
    CU_ASSERT_EQUAL(one.error, -BMI_ECANCEL);
    CU_ASSERT_EQUAL(send_cancelled(script, (uint64_t)one.id), 0);
    post_receive(script, &three, SMALL, TAG);
    cancel(&three); /* the sender knows no receive any more: no RTR_CANCEL is needed */
    CU_ASSERT_TRUE(failed(&three, BMI_ECANCEL));
    CU_ASSERT_EQUAL(send_eager(script, 2, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, SMALL));
    script_close(script);
}

/* A cancelled receive, or its tombstone, is neither announced again nor counted: its message would
 * be lost. */
static void cancelled_ones_are_not_announced_again(void)
{
    enum { TOMBSTONE, ASKED, WAYS }; /* in this order: a tick that was set is not set again */
    for (int way = 0; way < WAYS; way++)
        for (int by_tag = 0; by_tag < 2; by_tag++) {
            grace_set();
            if (way == ASKED)
                CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "cancel_grace_ms=60000"), 0);
            struct script *script = open_script(SCRIPT_FRAMES, NULL);
            post_receive(script, &one, LARGE, TAG);
            post_receive(script, &two, SMALL, TAG);
            CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR, NULL, 0).source, (uint64_t)one.id);
            cancel(&one);
            CU_ASSERT_EQUAL(script_expect(script, WIRE_RTR_CANCEL, NULL, 0).source,
                            (uint64_t)one.id);
            if (way == TOMBSTONE)
                CU_ASSERT_TRUE(done_within(&one, 60000));
            uint8_t flags = WIRE_EAGER_CREDIT | (by_tag ? WIRE_ANNOUNCE : 0);
            for (int times = 0; times < 2; times++)
                CU_ASSERT_EQUAL(send_want(script, flags, 1 << 20, TAG), 0);
            struct wire_header rtr = script_expect(script, WIRE_RTR, NULL, 0);
            CU_ASSERT_EQUAL(rtr.source, (uint64_t)two.id);
            CU_ASSERT_EQUAL(rtr.credit, 0);
            if (by_tag) /* known ones again, at each WANT */
                while (script_expect(script, WIRE_RTR, NULL, 0).source == (uint64_t)two.id)
                    continue;
            CU_ASSERT_TRUE(script_silent(script));
            CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, SMALL, true, TAG), 0);
            CU_ASSERT_TRUE(received(&two, 2, SMALL));
            script_close(script);
            CU_ASSERT_TRUE(done(&one));
        }
}

/* ---- put and get ---------------------------------------------------------------------------- */

/* The sender is writing to its memory: within the grace it does not end before the
 * sender's report. */
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
    CU_ASSERT_EQUAL(script->exposed, 1);
    script_put(region, 1, message(1, LARGE), LARGE);
    struct wire_header over = {.type = WIRE_PUT_DONE, .target = rtr.source};
    CU_ASSERT_EQUAL(script_send(script, over, NULL, 0), 0);
    CU_ASSERT_TRUE(received(&one, 1, LARGE));
    CU_ASSERT_EQUAL(script->exposed, 0);
    script_close(script);
}

/* The sender does not report that within the grace, and its writes cannot be stopped for a while:
 * the receive ends when they can. Announced without an answer, or with the put under way. */
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
        CU_ASSERT_EQUAL(script->exposed, 1);
        script->writes = false;
        CU_ASSERT_TRUE(done_within(&one, 60000));
        CU_ASSERT_EQUAL(one.error, -BMI_ECANCEL);
        CU_ASSERT_EQUAL(script->exposed, 0);
        struct wire_header over = {.type = WIRE_PUT_DONE, .target = (uint64_t)one.id};
        CU_ASSERT_EQUAL(script_send(script, over, NULL, 0), 0); /* too late, without effect */
        ALIVE(script);
        script_close(script);
    }
}

/* It is cancelled repeatedly, as by BMI_close_context: the grace passes once. */
static void grace_ends_though_cancelled_again(void)
{
    CU_ASSERT_EQUAL(
        bmi__settings_set(&bmi__default,
                          "cancel_grace_ms=200,connect_timeout_ms=86400000,peer_timeout_ms=0"),
        0);
    struct script *script = open_script(SCRIPT_PUT, NULL);
    post_receive(script, &one, LARGE, TAG);
    struct wire_header start = stream_start((uint64_t)one.id, LARGE);
    start.flags |= WIRE_BY_PUT;
    CU_ASSERT_EQUAL(script_send(script, start, NULL, 0), 0);
    bool ended = false;
    for (int i = 0; i < 600 && !ended; i++) {
        cancel(&one);
        ended = done_within(&one, 50);
    }
    CU_ASSERT_TRUE(ended);
    CU_ASSERT_EQUAL(one.error, -BMI_ECANCEL);
    script_close(script);
}

/* The connection is about to end, and until then the sender may be writing. */
static void cancelled_while_the_connection_ends(void)
{
    struct script *script = open_script(SCRIPT_PUT, NULL);
    post_receive(script, &one, LARGE, TAG);
    script_expect(script, WIRE_RTR, NULL, 0);
    CU_ASSERT_EQUAL(BMI_set_info(script->address, BMI_TCP_CLOSE_SOCKET, NULL), 0);
    CU_ASSERT_EQUAL(BMI_cancel(one.id, case_context), 0);
    CU_ASSERT_FALSE(script->down);
    CU_ASSERT_EQUAL(script->exposed, 1);
    CU_ASSERT_TRUE(done(&one));
    CU_ASSERT_NOT_EQUAL(one.error, 0);
    CU_ASSERT_TRUE(script->down);
    CU_ASSERT_EQUAL(script->exposed, 0);
    script_close(script);
}

/* The sender's put failed and it streams instead; the grace ends in the midst of a body: from then
 * on its memory must not be written, nor its operation accessed. */
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
    CU_ASSERT_EQUAL(script->exposed, 0);
    memset(one.buffer, 0x11, sizeof one.buffer);
    CU_ASSERT_EQUAL(script_body(script, message(1, LARGE) + 1000, LARGE - 1000), 0);
    CU_ASSERT_EQUAL(one.buffer[1000], 0x11);
    CU_ASSERT_EQUAL(one.buffer[LARGE - 1], 0x11);
    ALIVE(script);
    script_close(script);
}

/* The receive was cancelled before its message began. A sender that does not continue the message
 * delays the receive no longer than the grace, with and without put. */
static void grace_ends_in_a_message_that_came_first(void)
{
    static const enum script_kind kinds[] = {SCRIPT_FRAMES, SCRIPT_PUT};
    static const bmi_size_t begun[] = {0, 1000}; /* between two frames; in the midst of one */
    for (int i = 0; i < 4; i++) {
        struct script *script = open_script(kinds[i / 2], NULL);
        bmi_size_t moved = begun[i % 2];
        CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "cancel_grace_ms=20"), 0);
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
        CU_ASSERT_EQUAL(script->exposed, 0);
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

/* The memory is being written: the receive does not end before the transfer. If that fails, since
 * the sender may have cancelled as well, the receive must not wait for another message. */
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

int main(void)
{
    CU_TestInfo tests[] = {
        {"a cancelled announcement waits", a_cancelled_announcement_waits_for_the_answer},
        {"cancelled before it was announced", cancelled_before_it_was_announced},
        {"its message came first", a_cancelled_announcement_whose_message_came_first},
        {"announcements after it", announcements_after_a_cancel_that_is_not_answered},
        {"many cancelled announcements", many_cancelled_announcements},
        {"questions are few at a time", questions_are_few_at_a_time},
        {"a question that waits", a_question_that_waits},
        {"a tombstone discards the message", a_tombstone_discards_the_message},
        {"a tombstone goes with a late answer", a_tombstone_goes_with_a_late_answer},
        {"cancelled ones are not announced again", cancelled_ones_are_not_announced_again},
        {"cancelled while a put writes", cancelled_while_a_put_writes},
        {"grace ends when the writer is done", grace_ends_when_the_writer_is_done},
        {"grace ends though cancelled again", grace_ends_though_cancelled_again},
        {"cancelled while the connection ends", cancelled_while_the_connection_ends},
        {"grace ends while a body arrives", grace_ends_while_a_body_arrives},
        {"grace ends in a message that came", grace_ends_in_a_message_that_came_first},
        {"cancelled while it gets", cancelled_while_it_gets},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("receives cancelled", tests);
}
