/* SPDX-License-Identifier: BSD-3-Clause
 *
 * receive_test.c - the receiving side of the protocol, frame by frame: the receive of each message
 * when frames cross, also if the receive is cancelled while its message arrives. The sender is a
 * script.
 */
#include "bmi/base/instance.h"
#include "bmi/protocol/tag_queue.h"
#include "tests/unit/script_case.h"

static struct posted one, two, three, four;

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
    /* message 1 went to the next receive, or was dropped with the cancelled one; never after 2 */
    CU_ASSERT_TRUE(received(&two, 1, SMALL) || received(&two, 2, SMALL));
    CU_ASSERT_EQUAL(one.buffer[0], 0xee);
    ALIVE(script);
    if (memcmp(two.buffer, message(1, SMALL), SMALL) == 0) {
        post_receive(script, &three, SMALL, TAG);
        CU_ASSERT_TRUE(received(&three, 2, SMALL));
    }
    script_close(script);
}

/* As before, but the next receive is too small: it waits for the message that it was posted for. */
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

/* As before, but an announced receive comes after it: the sender relies on it. */
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
    /* the sender's next message is for the announced receive */
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

/* A large eager message, whose body should go straight to its place, is expected, not announced. */
static void long_ones_that_come_unasked_are_expected(void)
{
    struct script *script = open_long_script();
    post_receive(script, &one, 16384, TAG);
    CU_ASSERT_EQUAL(atomic_load(&script->link.large_expected), 0);
    post_receive(script, &two, 32768, TAG);
    CU_ASSERT_EQUAL(atomic_load(&script->link.large_expected), 1);
    CU_ASSERT_EQUAL(script_peer(script)->counters.announcements, 0);
    CU_ASSERT_EQUAL(send_eager(script, 1, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&one, 1, SMALL));
    CU_ASSERT_EQUAL(atomic_load(&script->link.large_expected), 1);
    CU_ASSERT_EQUAL(send_eager(script, 2, 32768, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, 32768));
    CU_ASSERT_EQUAL(atomic_load(&script->link.large_expected), 0);
    post_receive(script, &one, 32768, TAG);
    cancel(&one);
    CU_ASSERT_TRUE(failed(&one, BMI_ECANCEL));
    CU_ASSERT_EQUAL(atomic_load(&script->link.large_expected), 0);
    /* Also an announced one, since its sender lacks credit. */
    script_peer(script)->flags |= PEER_ANNOUNCE_ALL;
    post_receive(script, &two, 32768, TAG);
    CU_ASSERT_EQUAL(script_peer(script)->counters.announcements, 1);
    CU_ASSERT_EQUAL(atomic_load(&script->link.large_expected), 1);
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 2, 32768, true, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 2, 32768));
    CU_ASSERT_EQUAL(atomic_load(&script->link.large_expected), 0);
    close_long_script(script);
}

/* Large messages on their way are counted, each once: then the link reads headers only. */
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

static void a_stream_into_a_cancelled_receive_is_drained(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    announce_two(script, &one, &two);
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

/* ---- announcements that the sender has forgotten -------------------------------------------- */

/* WANT names a tag: all receives of that tag are announced, known and small ones, too; others are
 * not. */
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

/* The window is not crowded, but its rest is too small for the message whose receive waits. */
static void announced_when_the_window_is_too_small(void)
{
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "peer_memory=32K"), 0);
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    enum { WINDOW = 16384 + 16384 / 8, HELD = 9000, NEXT = 10000 };
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
    CU_ASSERT_EQUAL(script->exposed, 1);
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
    CU_ASSERT_EQUAL(script->exposed, 0);
    script_close(script);
}

/* Regions that a network cannot use are not kept: they are not charged. */
static void regions_of_a_request_that_waits(void)
{
    for (int kind = SCRIPT_PUT; kind <= SCRIPT_GET; kind++) {
        struct script *script = open_script((enum script_kind)kind, NULL);
        CU_ASSERT_EQUAL(request_for_get(script), 0);
        const struct tag_queue *queue = bmi__tag_queue_find_locked(script_peer(script), TAG);
        CU_ASSERT_EQUAL(queue->unmatched_first->region_count, kind == SCRIPT_GET ? 1u : 0u);
        post_receive(script, &one, LARGE, TAG);
        CU_ASSERT_EQUAL(script->transfers != NULL, kind == SCRIPT_GET);
        script_close(script);
        CU_ASSERT_TRUE(done(&one));
    }
}

/* A get would write beyond them: the message comes in frames. */
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
        } else { /* it requests frames instead */
            CU_ASSERT_EQUAL(script_expect(script, WIRE_CTS, NULL, 0).target, 66);
            CU_ASSERT_EQUAL(send_data(script, (uint64_t)one.id, 4, LARGE, false, 0), 0);
        }
        CU_ASSERT_TRUE(received(&one, 4, LARGE));
        script_close(script);
    }
}

/* A receive is posted and announced between the two parts of a request with regions: it belongs to
 * that request, and its announcement must not count the request as matched. */
static void announced_within_a_request(void)
{
    uint8_t bytes[WIRE_REGION];
    struct bmi_region region = {.address = (uintptr_t)message(4, LARGE), .length = LARGE};
    struct wire_header rts = {
        .type = WIRE_RTS, .tag = TAG, .source = 66, .target = LARGE, .length = sizeof bytes};
    struct script *script = open_script(SCRIPT_GET, NULL);
    uint32_t seen = script_peer(script)->seen;
    wire_regions_encode(bytes, &region, 1);
    script_peer(script)->flags |= PEER_ANNOUNCE_ALL;
    CU_ASSERT_EQUAL(script_begin(script, rts), 0);
    post_receive(script, &one, LARGE, TAG);
    struct wire_header rtr = script_expect(script, WIRE_RTR, NULL, 0);
    CU_ASSERT_EQUAL(rtr.seen, seen);
    CU_ASSERT_EQUAL(rtr.credit, 0); /* for the first unseen message: this one */
    CU_ASSERT_EQUAL(script_body(script, bytes, sizeof bytes), 0);
    CU_ASSERT_TRUE(script_transfer_end(script, 0));
    CU_ASSERT_EQUAL(script_expect(script, WIRE_GET_DONE, NULL, 0).seen, seen + 1);
    CU_ASSERT_TRUE(received(&one, 4, LARGE));
    script_close(script);
}

/* ---- lies about receives -------------------------------------------------------------------- */

/* A frame that starts a message names an announced receive of its tag, and fits into it; later
 * frames fit into the rest. */
static void data_that_does_not_fit_ends_the_link(void)
{
    enum {
        WRONG_SIZE,
        NO_LAST,
        BY_PUT,
        WRONG_TAG,
        NOT_ANNOUNCED,
        TOO_MUCH,
        NOT_LAST,
        NOT_ALL,
        WAYS
    };
    for (int way = 0; way < WAYS; way++) {
        struct script *script = open_script(SCRIPT_FRAMES, NULL);
        announce_two(script, &one, &two);
        post_receive(script, &three, SMALL, TAG);
        post_receive(script, &four, LARGE, TAG + 1);
        struct wire_header data = stream_start((uint64_t)one.id, LARGE);
        if (way <= BY_PUT)
            data.source = LARGE + 1;
        if (way == BY_PUT)
            data.flags |= WIRE_LAST | WIRE_BY_PUT;
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
        if (way == NO_LAST || way == BY_PUT)
            size = 0;
        CU_ASSERT_EQUAL(script_send(script, data, message(1, LARGE), size), -EPROTO);
        CU_ASSERT_TRUE(failed(&one, BMI_EPROTO) && failed(&two, BMI_EPROTO));
        CU_ASSERT_TRUE(failed(&three, BMI_EPROTO) && failed(&four, BMI_EPROTO));
        script_close(script);
    }
}

/* The sender lacks the credit to show that its message is too large, and sends a notice. */
static void announced_and_too_small(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    announce_two(script, &one, &two);
    struct wire_header word = stream_start((uint64_t)one.id, LARGE + 1);
    word.flags |= WIRE_LAST;
    CU_ASSERT_EQUAL(script_send(script, word, NULL, 0), 0);
    CU_ASSERT_TRUE(failed(&one, BMI_EMSGSIZE));
    CU_ASSERT_EQUAL(send_data(script, (uint64_t)two.id, 1, LARGE, true, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 1, LARGE));
    ALIVE(script);
    script_close(script);
}

/* An answer without a question, or to a question of another tag, has no effect. */
static void unrequested_answers(void)
{
    struct script *script = open_script(SCRIPT_FRAMES, NULL);
    announce_two(script, &one, &two);
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
    post_receive(script, &many[2], LARGE, TAG + 2); /* its CTS has regions for a put */
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
    CU_ASSERT_EQUAL(script->exposed, 0);
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
        {"announced again when asked for", announced_again_when_asked_for},
        {"announced where the window is small", announced_when_the_window_is_too_small},
        {"large ones are expected once", large_ones_are_expected_once},
        {"long ones that come unasked are expected", long_ones_that_come_unasked_are_expected},
        {"put into announced memory", put_into_announced_memory},
        {"regions of a request that waits", regions_of_a_request_that_waits},
        {"regions too small to be fetched", regions_smaller_than_the_message_are_not_fetched},
        {"get of a request's memory", get_of_a_request_s_memory},
        {"announced within a request", announced_within_a_request},
        {"data that does not fit", data_that_does_not_fit_ends_the_link},
        {"announced, and too small", announced_and_too_small},
        {"unrequested answers", unrequested_answers},
        {"everything fails with the link", everything_fails_with_the_link},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("receiving", tests);
}
