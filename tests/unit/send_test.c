/* SPDX-License-Identifier: BSD-3-Clause
 *
 * send_test.c - the sending side of the protocol, frame by frame: the path of each message, its
 * cost, and attacks of a bad peer. The receiver is a script.
 */
#include "tests/unit/script_case.h"

static struct posted one, two, three, four;

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
    CU_ASSERT_EQUAL(send_credit(script, 0, SMALL + WIRE_MESSAGE_CHARGE), 0);
    CU_ASSERT_TRUE(script_silent(script)); /* unrequested credit is kept nevertheless */
    post_unexpected(script, &many[0], SMALL, TAG);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_UNEXPECTED, NULL, 0).length, SMALL);
    script_close(script);
    CU_ASSERT_TRUE(done(&many[0]) && many[0].error == 0);
}

/* Credit in small pieces makes the library send a WANT for the rest each time: without a bound if
 * the peer reads those. */
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
        (eager ? post_send : post_unexpected)(script, &two, BYTES, TAG); /* uses up the credit */
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

/* Each sent message is recorded until the receiver has seen it. A receiver that gives credit and
 * does not update `seen` gets a PING, and no message starts until it does. */
static void unseen_messages_are_bounded(void)
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

/* An unused tag takes no memory, whichever side used it last. */
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
    CU_ASSERT_EQUAL(script_peer(script)->queue_count, 0);
    for (int tag = 0; tag < TAGS; tag++) {
        struct wire_header gone = {.type = WIRE_RTR_CANCEL, .tag = tag, .source = 71};
        CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, tag), 0);
        CU_ASSERT_EQUAL(script_send(script, gone, NULL, 0), 0);
    }
    CU_ASSERT_EQUAL(script_peer(script)->queue_count, 0);
    for (int tag = 0; tag < TAGS; tag++) { /* the receive comes while the message is on its way */
        struct wire_header eager = {.type = WIRE_EAGER, .tag = tag, .length = SMALL};
        CU_ASSERT_EQUAL(script_begin(script, eager), 0);
        post_receive(script, &one, SMALL, tag);
        CU_ASSERT_EQUAL(script_body(script, message(1, SMALL), SMALL), 0);
        CU_ASSERT_TRUE(received(&one, 1, SMALL));
    }
    CU_ASSERT_EQUAL(script_peer(script)->queue_count, 0);
    script_close(script);
}

/* ---- get ------------------------------------------------------------------------------------ */

static void request_whose_memory_is_fetched(void)
{
    struct script *script = open_script(SCRIPT_GET, NULL);
    for (int refuse = 0; refuse < 2; refuse++) {
        script->refuse_memory = refuse;
        post_send(script, &one, LARGE, TAG);
        struct wire_header rts = script_expect(script, WIRE_RTS, NULL, 0);
        CU_ASSERT_EQUAL(rts.length, refuse ? 0 : WIRE_REGION);
        CU_ASSERT_EQUAL(script->exposed, refuse ? 0u : 1u);
        CU_ASSERT_FALSE(done(&one));
        struct wire_header over = {.type = WIRE_GET_DONE, .target = rts.source};
        if (refuse)
            over =
                (struct wire_header){.type = WIRE_CTS, .flags = WIRE_DISCARD, .target = rts.source};
        CU_ASSERT_EQUAL(script_send(script, over, NULL, 0), 0);
        CU_ASSERT_TRUE(done(&one) && one.error == 0 && one.actual == LARGE);
        CU_ASSERT_EQUAL(script->exposed, 0);
    }
    script_close(script);
}

/* ---- bad peers, and the end ----------------------------------------------------------------- */

static void claims_that_cannot_be_end_the_link(void)
{
    static const struct wire_header bad[] = {
        {.type = WIRE_PING, .seen = 1}, /* claims to have seen an unsent message */
        {.type = WIRE_PING, .seen = UINT32_MAX},
        {.type = WIRE_CREDIT, .source = UINT64_C(1) << 32},
        {.type = WIRE_RTR, .target = UINT64_MAX},
        {.type = WIRE_RTS, .source = 1, .target = UINT64_MAX},
        {.type = WIRE_RTS, .source = 0, .target = 1},
        {.type = WIRE_DATA, .flags = WIRE_FIRST, .source = 1, .target = 1}, /* never announced */
        {.type = WIRE_HELLO},
        {.type = WIRE_JOIN},
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
    CU_ASSERT_EQUAL(send_eager(other, 1, SMALL, TAG), 0); /* others are not affected */
    CU_ASSERT_TRUE(received(&two, 1, SMALL));
    script_close(other);
}

static size_t regions_make(uint8_t *bytes, uint32_t count)
{
    struct bmi_region regions[WIRE_REGIONS_MAX] = {{0}};
    wire_regions_encode(bytes, regions, count);
    return count * WIRE_REGION;
}

/* The memory kept for a request or an announcement grows with its regions: their number is bounded.
 */
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

static void frames_for_unknown_operations_are_ignored(void)
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
        {.type = WIRE_CANCEL, .tag = TAG + ((wire_tag)SPACE_REQUEST << 32)},
        {.type = WIRE_CANCEL, .flags = WIRE_NO_HEAD, .tag = TAG + ((wire_tag)SPACE_REPLY << 32)},
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

/* Ids of operations can be guessed: no peer can end or access those of another peer. */
static void another_peers_operations_are_left_alone(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    post_send(script, &one, LARGE, TAG);
    uint64_t sender = asks(script, &one);
    post_receive(script, &two, LARGE, TAG + 1);
    CU_ASSERT_EQUAL(send_rts(script, 31, LARGE, TAG + 1), 0); /* CTS for two */
    post_receive(script, &three, LARGE, TAG);                 /* announced, then requested */
    cancel(&three);
    const uint64_t cleared = (uint64_t)two.id, asked = (uint64_t)three.id;
    const struct wire_header bad[] = {
        {.type = WIRE_CTS, .source = 1, .target = sender},
        {.type = WIRE_CTS, .flags = WIRE_DISCARD, .target = sender},
        {.type = WIRE_GET_DONE, .target = sender},
        {.type = WIRE_PUT_DONE, .target = cleared},
        {.type = WIRE_ABORT, .source = 31, .target = cleared, .tag = TAG + 1},
        {.type = WIRE_ABORT, .flags = WIRE_MOVED, .source = 31, .target = cleared, .tag = TAG + 1},
        {.type = WIRE_DATA, .target = cleared},
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
    CU_ASSERT_EQUAL(send_data(script, cleared, 2, LARGE, false, 0), 0);
    CU_ASSERT_TRUE(received(&two, 2, LARGE));
    CU_ASSERT_EQUAL(send_cts(script, sender, 71, WIRE_DISCARD), 0);
    CU_ASSERT_TRUE(done(&one) && one.error == 0);
    script_close(script);
    CU_ASSERT_TRUE(done(&three));
}

static void everything_fails_with_the_link(void)
{
    static struct posted many[6];
    static uint8_t remote[LARGE];
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = 2 * WIRE_MESSAGE_CHARGE + SMALL};
    struct script *script = open_script(SCRIPT_PUT, &offer);
    CU_ASSERT_EQUAL(send_rtr_memory(script, 71, remote, LARGE), 0);
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
    CU_ASSERT_EQUAL(script->exposed, 0);
    script_close(script);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"small goes at once", small_goes_at_once},
        {"credit is never overdrawn", credit_is_never_overdrawn},
        {"crumbs of credit", crumbs_of_credit},
        {"unseen messages are bounded", unseen_messages_are_bounded},
        {"unexpected ones keep their order", unexpected_ones_keep_their_order},
        {"tags are forgotten", tags_are_forgotten},
        {"request whose memory is fetched", request_whose_memory_is_fetched},
        {"claims that cannot be", claims_that_cannot_be_end_the_link},
        {"more regions than the network has", more_regions_than_the_network_has},
        {"frames for unknown operations are ignored", frames_for_unknown_operations_are_ignored},
        {"another peer's operations are left alone", another_peers_operations_are_left_alone},
        {"everything fails with the link", everything_fails_with_the_link},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("sending", tests);
}
