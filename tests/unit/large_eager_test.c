/* SPDX-License-Identifier: BSD-3-Clause
 *
 * large_eager_test.c - large eager messages: when the receiver allows them and withdraws that, the
 * reaction of the sender, and the places of their bodies. Frame by frame.
 */
#include "tests/unit/script_case.h"

enum { FRAME_MOST = 65536, IN_TIME_ENOUGH = 4, CHARGE = LARGE + WIRE_MESSAGE_CHARGE };

static struct posted one, two, three;

/* Frames hold a large message. */
static struct script *open_large(enum script_kind kind, const struct script_offer *offer)
{
    script_methods[kind].limits.frame_max = FRAME_MOST;
    struct script *script = open_script(kind, offer);
    script->places = true;
    return script;
}

static void close_large(struct script *script)
{
    struct bmi_method *method = &script_methods[script->link.method - script_methods];
    script_close(script);
    method->limits.frame_max = 16384;
}

/* A receive is posted when its request comes. Returns the new largest size of an eager message; 0:
 * unchanged. */
static uint64_t ask_in_time(struct script *script)
{
    uint64_t most = 0, receive = 0;
    post_receive(script, &one, LARGE, TAG);
    script_expect(script, WIRE_RTR, NULL, 0);
    CU_ASSERT_EQUAL(send_rts(script, 9, LARGE, TAG), 0);
    script_drive();
    while (receive == 0 && script->first != NULL) {
        struct script_frame *frame = script_read(script);
        if (frame->header.type == WIRE_CREDIT)
            most = frame->header.target;
        if (frame->header.type == WIRE_CTS)
            receive = frame->header.source;
        free(frame);
    }
    CU_ASSERT_EQUAL(send_data(script, receive, 1, LARGE, false, 0), 0);
    CU_ASSERT_TRUE(received(&one, 1, LARGE));
    return most;
}

/* The next CREDIT with a new largest size of eager messages; 0: none. */
static uint64_t allowance(struct script *script)
{
    uint64_t most = 0;
    script_drive();
    while (most == 0 && script->first != NULL) {
        struct script_frame *frame = script_read(script);
        most = frame->header.type == WIRE_CREDIT ? frame->header.target : 0;
        free(frame);
    }
    return most;
}

/* ---- the receiver --------------------------------------------------------------------------- */

/* The half of a peer's memory holds messages that make up the half, with their charges. */
static void two_large_messages_fit(void)
{
    enum { MEMORY = 1 << 20, LARGE_ONE = MEMORY / 4 };
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    const struct peer *peer = script_peer(script);
    uint32_t eager = peer->eager.standing, unexpected = peer->unexpected_window.standing;
    CU_ASSERT_TRUE(eager >= 2 * (LARGE_ONE + WIRE_MESSAGE_CHARGE));
    CU_ASSERT_TRUE(unexpected >= script->link.method->limits.unexpected_max + WIRE_MESSAGE_CHARGE);
    CU_ASSERT_TRUE(eager + unexpected <= MEMORY);
    script_close(script);
}

static void allowed_while_receives_come_in_time(void)
{
    struct script *script = open_large(SCRIPT_FRAMES, NULL);
    for (int i = 1; i < IN_TIME_ENOUGH; i++)
        CU_ASSERT_EQUAL(ask_in_time(script), 0);
    CU_ASSERT_EQUAL(ask_in_time(script), FRAME_MOST);
    post_receive(script, &one, LARGE, TAG);
    CU_ASSERT_EQUAL(send_eager(script, 2, LARGE, TAG), 0);
    CU_ASSERT_TRUE(received(&one, 2, LARGE));
    CU_ASSERT_EQUAL(allowance(script), 0); /* as before */
    CU_ASSERT_EQUAL(send_eager(script, 3, LARGE, TAG), 0);
    CU_ASSERT_EQUAL(send_eager(script, 4, SMALL, TAG), 0);
    post_receive(script, &two, LARGE, TAG);
    CU_ASSERT_TRUE(received(&two, 3, LARGE)); /* it was copied */
    CU_ASSERT_EQUAL(allowance(script), script->hello.eager_max);
    CU_ASSERT_EQUAL(send_eager(script, 5, LARGE, TAG + 1), 0); /* sent before the
                                                                  withdrawal arrived */
    ALIVE(script);
    post_receive(script, &one, SMALL, TAG);
    CU_ASSERT_TRUE(received(&one, 4, SMALL));
    post_receive(script, &one, LARGE, TAG + 1);
    CU_ASSERT_TRUE(received(&one, 5, LARGE));
    close_large(script);
}

/* A receiver that often is late gives permission seldom. */
static void each_permission_that_ends_doubles_the_next(void)
{
    enum { ROUNDS = 7, ENOUGH_MOST = 128 };
    struct script *script = open_large(SCRIPT_FRAMES, NULL);
    int enough = IN_TIME_ENOUGH;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 1; i < enough; i++)
            CU_ASSERT_EQUAL(ask_in_time(script), 0);
        CU_ASSERT_EQUAL(ask_in_time(script), FRAME_MOST);
        CU_ASSERT_EQUAL(send_eager(script, 3, LARGE, TAG), 0);
        post_receive(script, &two, LARGE, TAG);
        CU_ASSERT_TRUE(received(&two, 3, LARGE)); /* it was copied */
        CU_ASSERT_EQUAL(allowance(script), script->hello.eager_max);
        enough = 2 * enough < ENOUGH_MOST ? 2 * enough : ENOUGH_MOST;
    }
    close_large(script);
}

/* A receive that is posted after its request is in time, unless other messages have
 * come meanwhile. */
static void a_request_that_waited_for_others(void)
{
    struct script *script = open_large(SCRIPT_FRAMES, NULL);
    for (int i = 0; i < 2 * IN_TIME_ENOUGH; i++) {
        bool in_time = i >= IN_TIME_ENOUGH;
        CU_ASSERT_EQUAL(send_rts(script, 9, LARGE, TAG), 0);
        if (!in_time)
            CU_ASSERT_EQUAL(send_eager(script, 1, SMALL, TAG + 1), 0);
        post_receive(script, &one, LARGE, TAG);
        if (i == 2 * IN_TIME_ENOUGH - 1)
            CU_ASSERT_EQUAL(script_expect(script, WIRE_CREDIT, NULL, 0).target, FRAME_MOST);
        struct wire_header cts = script_expect(script, WIRE_CTS, NULL, 0);
        CU_ASSERT_EQUAL(send_data(script, cts.source, 1, LARGE, false, 0), 0);
        CU_ASSERT_TRUE(received(&one, 1, LARGE));
        if (in_time)
            continue;
        post_receive(script, &two, SMALL, TAG + 1);
        CU_ASSERT_TRUE(received(&two, 1, SMALL));
    }
    close_large(script);
}

static void begin_large(struct script *script)
{
    struct wire_header header = {.type = WIRE_EAGER, .tag = TAG, .length = LARGE};
    CU_ASSERT_EQUAL(script_begin(script, header), 0);
}

/* Its receive is posted while the body arrives: the rest goes straight to its place. */
static void the_rest_goes_to_a_receive_that_came_late(void)
{
    enum { BEFORE = 1000 };
    const size_t befores[] = {0, BEFORE};
    struct script *script = open_large(SCRIPT_FRAMES, NULL);
    for (size_t i = 0; i < COUNT_OF(befores); i++) {
        const uint8_t *bytes = message(7, LARGE);
        uint32_t copies = script_peer(script)->counters.copies;
        begin_large(script);
        if (befores[i] > 0)
            CU_ASSERT_EQUAL(script_body(script, bytes, befores[i]), 0);
        post_receive(script, &one, LARGE, TAG);
        CU_ASSERT_EQUAL(script_body(script, bytes + befores[i], BEFORE), 0);
        CU_ASSERT_EQUAL(memcmp(one.buffer, bytes, befores[i] + BEFORE), 0);
        size_t come = befores[i] + BEFORE;
        CU_ASSERT_EQUAL(script_body(script, bytes + come, LARGE - come), 0);
        CU_ASSERT_TRUE(received(&one, 7, LARGE));
        CU_ASSERT_EQUAL(script_peer(script)->counters.copies, copies);
    }
    close_large(script);
}

static void cancelled_where_the_rest_goes(void)
{
    struct script *script = open_large(SCRIPT_FRAMES, NULL);
    const uint8_t *bytes = message(7, LARGE);
    begin_large(script);
    post_receive(script, &one, LARGE, TAG);
    CU_ASSERT_EQUAL(script_body(script, bytes, 1000), 0);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    memset(one.buffer, 0x11, sizeof one.buffer); /* it is the program's again */
    CU_ASSERT_EQUAL(script_body(script, bytes + 1000, LARGE - 1000), 0);
    CU_ASSERT_EQUAL(one.buffer[1000], 0x11);
    post_receive(script, &two, SMALL, TAG);
    CU_ASSERT_EQUAL(send_eager(script, 2, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, SMALL));

    begin_large(script); /* cancelled before any byte came: the next receive gets it */
    post_receive(script, &one, LARGE, TAG);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    post_receive(script, &two, LARGE, TAG);
    CU_ASSERT_EQUAL(script_body(script, message(7, LARGE), LARGE), 0);
    CU_ASSERT_TRUE(received(&two, 7, LARGE));
    close_large(script);
}

static void one_that_arrives_stays_for_a_larger_receive(void)
{
    struct script *script = open_large(SCRIPT_FRAMES, NULL);
    const uint8_t *bytes = message(7, LARGE);
    bmi_op_id_t id;
    bmi_size_t actual;
    begin_large(script);
    CU_ASSERT_EQUAL(script_body(script, bytes, 1000), 0);
    CU_ASSERT_EQUAL(BMI_post_recv(&id, script->address, one.buffer, LARGE - 1, &actual,
                                  BMI_EXT_ALLOC, TAG, NULL, case_context, NULL),
                    -BMI_EMSGSIZE);
    post_receive(script, &two, LARGE, TAG);
    CU_ASSERT_EQUAL(script_body(script, bytes + 1000, LARGE - 1000), 0);
    CU_ASSERT_TRUE(received(&two, 7, LARGE));
    post_receive(script, &one, SMALL, TAG); /* posted before: it ends, and so does the message */
    CU_ASSERT_EQUAL(send_eager(script, 7, LARGE, TAG), 0);
    CU_ASSERT_TRUE(failed(&one, BMI_EMSGSIZE));
    ALIVE(script);
    close_large(script);
}

/* Unmatched messages stay within the window, also those that break the rules. */
static void held_messages_are_bounded(void)
{
    struct script *script = open_large(SCRIPT_FRAMES, NULL);
    int status = 0, sent = 0;
    for (; status == 0 && sent < 1000; sent++)
        status = send_eager(script, 1, LARGE, TAG);
    CU_ASSERT_EQUAL(status, -EPROTO);
    CU_ASSERT_EQUAL(sent - 1, (int)(script->hello.eager_credit / CHARGE));
    close_large(script);
    script = open_large(SCRIPT_FRAMES, NULL);
    struct wire_header longer = {.type = WIRE_EAGER, .tag = TAG, .length = FRAME_MOST + 1};
    CU_ASSERT_EQUAL(script_begin(script, longer), -EMSGSIZE);
    close_large(script);
}

/* The link ends while the rest of a body is on its way, before and after its receive came. */
static void the_link_ends_in_between(void)
{
    for (int i = 0; i < 3; i++) {
        struct script *script = open_large(SCRIPT_FRAMES, NULL);
        begin_large(script);
        CU_ASSERT_EQUAL(script_body(script, message(7, LARGE), 1000), 0);
        if (i > 0)
            post_receive(script, &one, LARGE, TAG);
        if (i > 1)
            CU_ASSERT_EQUAL(script_body(script, message(7, LARGE), 1000), 0);
        script_cut(script, -ECONNRESET);
        CU_ASSERT_TRUE(i == 0 || failed(&one, BMI_ECONNRESET));
        close_large(script);
    }
}

/* Networks that put or get move large messages without a copy: there they always use
 * a rendezvous. */
static void not_where_the_network_puts(void)
{
    struct script *script = open_large(SCRIPT_PUT, NULL);
    for (int i = 0; i < 2 * IN_TIME_ENOUGH; i++) {
        CU_ASSERT_EQUAL(send_rts(script, 9, LARGE, TAG), 0);
        post_receive(script, &one, LARGE, TAG);
        CU_ASSERT_EQUAL(allowance(script), 0);
        cancel(&one);
        CU_ASSERT_EQUAL(send_abort(script, 9, 0, false, TAG), 0);
        script_drive();
    }
    close_large(script);
}

/* ---- the sender ----------------------------------------------------------------------------- */

static int send_allowance(struct script *script, uint64_t most)
{
    struct wire_header header = {.type = WIRE_CREDIT, .target = most};
    return script_send(script, header, NULL, 0);
}

static void sent_unasked_while_allowed(void)
{
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = CHARGE + SMALL + WIRE_MESSAGE_CHARGE};
    struct script *script = open_large(SCRIPT_FRAMES, &offer);
    CU_ASSERT_EQUAL(send_allowance(script, FRAME_MOST), 0);
    post_send(script, &one, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, LARGE);
    CU_ASSERT_TRUE(done(&one) && one.error == 0 && one.actual == LARGE);

    post_send(script, &two, LARGE, TAG); /* no credit: it waits, and others go */
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).source, CHARGE);
    post_send(script, &three, SMALL, TAG + 1);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, SMALL);
    CU_ASSERT_FALSE(done(&two));
    CU_ASSERT_EQUAL(send_credit(script, CHARGE, 0), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, LARGE);
    CU_ASSERT_TRUE(done(&two) && two.error == 0);

    post_send(script, &one, LARGE, TAG); /* or it goes to its receive */
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).source, CHARGE);
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    struct wire_header data = script_expect(script, WIRE_DATA, NULL, 0);
    CU_ASSERT_EQUAL(data.target, 71);
    CU_ASSERT_EQUAL(data.length, LARGE);

    CU_ASSERT_EQUAL(send_credit(script, CHARGE, 0), 0);
    CU_ASSERT_EQUAL(send_allowance(script, 16384), 0);
    post_send(script, &one, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTS, NULL, 0).target, LARGE);
    close_large(script);
    CU_ASSERT_TRUE(done(&one));
}

/* A message that waits for credit uses RTS, after large ones were disallowed and some
 * credit came. */
static void taken_back_while_one_waits(void)
{
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = CHARGE};
    struct script *script = open_large(SCRIPT_FRAMES, &offer);
    CU_ASSERT_EQUAL(send_allowance(script, FRAME_MOST), 0);
    post_send(script, &one, LARGE, TAG);
    post_send(script, &two, LARGE, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, LARGE);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_WANT, NULL, 0).source, CHARGE);
    struct wire_header word = {.type = WIRE_CREDIT, .target = 16384, .credit = CHARGE - 1};
    CU_ASSERT_EQUAL(script_send(script, word, NULL, 0), 0);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_RTS, NULL, 0).target, LARGE);
    close_large(script);
    CU_ASSERT_TRUE(done(&one) && done(&two));
}

static void withdrawn_before_it_went(void)
{
    struct script *script = open_large(SCRIPT_FRAMES, NULL);
    CU_ASSERT_EQUAL(send_allowance(script, FRAME_MOST), 0);
    int64_t credit = script_peer(script)->eager_credit;
    script->stuck = true;
    post_send(script, &one, LARGE, TAG);
    post_send(script, &two, LARGE, TAG);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_EQUAL(script_peer(script)->eager_credit, credit - CHARGE);
    script_write(script, 2);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_VOID, NULL, 0).tag, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, LARGE);
    CU_ASSERT_TRUE(done(&two) && two.error == 0);
    close_large(script);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"two large messages fit", two_large_messages_fit},
        {"allowed while receives come in time", allowed_while_receives_come_in_time},
        {"each permission that ends doubles the next", each_permission_that_ends_doubles_the_next},
        {"a request that waited for others", a_request_that_waited_for_others},
        {"the rest goes to a late receive", the_rest_goes_to_a_receive_that_came_late},
        {"cancelled where the rest goes", cancelled_where_the_rest_goes},
        {"one that arrives stays", one_that_arrives_stays_for_a_larger_receive},
        {"held messages are bounded", held_messages_are_bounded},
        {"the link ends in between", the_link_ends_in_between},
        {"not where the network puts", not_where_the_network_puts},
        {"sent unasked while allowed", sent_unasked_while_allowed},
        {"taken back while one waits", taken_back_while_one_waits},
        {"withdrawn before it went", withdrawn_before_it_went},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("large, unasked", tests);
}
