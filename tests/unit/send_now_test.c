/* SPDX-License-Identifier: BSD-3-Clause
 *
 * send_now_test.c - small messages that go without an operation, frame by frame: when they do,
 * their contents and cost, and when they must not. The receiver is a script whose network accepts
 * them.
 *
 * A receive is outstanding in each case: the first message to a peer that the library does not
 * watch goes by an operation.
 */
#include "bmi/base/instance.h"
#include "bmi/base/settings.h"
#include "bmi/connection/failure.h"
#include "bmi/progress/progress.h"
#include "bmi/state/liveness.h"
#include "tests/unit/script_case.h"

static struct posted one, two, three;
static unsigned went; /* by send_now */
static bool takes;

/* As flush, for one frame. */
static bool send_now(struct bmi_link *link, const uint8_t *header, const void *body, size_t bytes)
{
    struct script *script = (struct script *)link;
    const char *reason;
    if (!takes || script->queued != NULL || script->stuck || script->closing)
        return false;
    struct script_frame *frame = malloc(sizeof *frame + bytes);
    CU_ASSERT_FATAL(frame != NULL && wire_decode(header, &frame->header, &reason) == 0);
    CU_ASSERT_EQUAL(frame->header.length, bytes);
    frame->next = NULL;
    frame->size = bytes;
    memcpy(frame->body, body, bytes);
    *script->end = frame;
    script->end = &frame->next;
    went++;
    return true;
}

/* Of the sends between two passes the first is written at once. */
static void next_pass(void)
{
    bmi__progress_poll(&bmi__default);
    script_drive();
}

static struct script *open_now(const struct script_offer *offer)
{
    struct script *script = open_script(SCRIPT_FRAMES, offer);
    script_methods[SCRIPT_FRAMES].send_now = send_now;
    bmi__setting_put(&bmi__default, SETTING_IMMEDIATE, 1);
    takes = true;
    went = 0;
    post_receive(script, &three, SMALL, TAG + 9);
    next_pass();
    return script;
}

static void close_now(struct script *script)
{
    script_close(script);
    CU_ASSERT_TRUE(done(&three));
    script_methods[SCRIPT_FRAMES].send_now = NULL;
}

/* Returns the result of the post. */
static int send(struct script *script, struct posted *posted, bmi_size_t size, int tag)
{
    memset(posted->buffer, 0x5a, sizeof posted->buffer);
    posted->done = false;
    posted->id = -1;
    return BMI_post_send(&posted->id, script->address, posted->buffer, size, BMI_EXT_ALLOC, tag,
                         posted, case_context, NULL);
}

/* Whether it goes by send_now, as a message of its bytes. */
static bool goes_now(struct script *script, bmi_size_t size, int tag)
{
    uint8_t body[BMI_SEND_NOW] = {0};
    unsigned before = went;
    int status = send(script, &one, size, tag);
    struct wire_header header = script_expect(script, WIRE_EAGER, body, sizeof body);
    CU_ASSERT_EQUAL(header.tag, tag);
    CU_ASSERT_EQUAL((bmi_size_t)header.length, size);
    CU_ASSERT_TRUE(size == 0 || (body[0] == 0x5a && body[size - 1] == 0x5a));
    CU_ASSERT_TRUE(status == 1 && one.id == 0);
    CU_ASSERT_TRUE(script_silent(script));
    next_pass();
    return went == before + 1;
}

static struct bmi_statistics statistics(void)
{
    struct bmi_statistics all;
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_GET_STATISTICS, &all), 0);
    return all;
}

/* ---- messages that go ------------------------------------------------------------------------ */

static void a_small_one_goes_without_an_operation(void)
{
    struct script *script = open_now(NULL);
    struct bmi_statistics before = statistics();
    CU_ASSERT_TRUE(goes_now(script, 1, TAG));
    CU_ASSERT_TRUE(goes_now(script, SMALL, -TAG));
    CU_ASSERT_TRUE(goes_now(script, BMI_SEND_NOW, TAG));
    struct bmi_statistics after = statistics();
    CU_ASSERT_EQUAL(after.messages_sent - before.messages_sent, 3);
    CU_ASSERT_EQUAL(after.eager_sent - before.eager_sent, 3);
    CU_ASSERT_EQUAL(after.bytes_sent - before.bytes_sent, 1 + SMALL + BMI_SEND_NOW);
    CU_ASSERT_EQUAL(after.outstanding_sends, before.outstanding_sends);
    close_now(script);
}

/* It carries the count of seen messages and returns credit, once, as any frame does. */
static void it_carries_credit_and_seen(void)
{
    struct script *script = open_now(NULL);
    post_receive(script, &two, SMALL, TAG);
    CU_ASSERT_EQUAL(send_eager(script, 1, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 1, SMALL));
    CU_ASSERT_EQUAL(send(script, &one, SMALL, TAG), 1);
    struct wire_header header = script_expect(script, WIRE_EAGER, NULL, 0);
    CU_ASSERT_EQUAL(header.seen, 1);
    CU_ASSERT_EQUAL(header.credit, SMALL + WIRE_MESSAGE_CHARGE);
    next_pass();
    CU_ASSERT_EQUAL(send(script, &one, SMALL, TAG), 1);
    header = script_expect(script, WIRE_EAGER, NULL, 0);
    CU_ASSERT_EQUAL(header.seen, 1);
    CU_ASSERT_EQUAL(header.credit, 0);
    CU_ASSERT_EQUAL(went, 2);
    close_now(script);
}

/* If the network does not accept it, it is sent as an operation, and no count or credit is sent
 * twice. */
static void a_refused_message_goes_by_an_operation(void)
{
    struct script *script = open_now(NULL);
    takes = false;
    post_receive(script, &two, SMALL, TAG);
    CU_ASSERT_EQUAL(send_eager(script, 1, SMALL, TAG), 0);
    CU_ASSERT_TRUE(received(&two, 1, SMALL));
    CU_ASSERT_EQUAL(send(script, &one, SMALL, TAG), 1);
    struct wire_header header = script_expect(script, WIRE_EAGER, NULL, 0);
    CU_ASSERT_EQUAL(header.seen, 1);
    CU_ASSERT_EQUAL(header.credit, SMALL + WIRE_MESSAGE_CHARGE);
    CU_ASSERT_EQUAL(went, 0);
    close_now(script);
}

/* Its message counts among those of the tag: an announcement made while it was on its way is for
 * the next message. */
static void it_counts_for_announcements(void)
{
    struct script *script = open_now(NULL);
    script->manual_seen = true; /* it has not been seen as the receive is announced */
    CU_ASSERT_EQUAL(send(script, &one, SMALL, TAG), 1);
    CU_ASSERT_EQUAL(went, 1);
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 1, TAG), 0); /* after the one it goes to */
    script_expect(script, WIRE_EAGER, NULL, 0);
    next_pass();
    bmi__setting_put(&bmi__default, SETTING_IMMEDIATE, 0);
    post_send(script, &two, LARGE, TAG);
    CU_ASSERT_TRUE(goes_to(script, &two, 71));
    close_now(script);
}

/* ---- messages that do not -------------------------------------------------------------------- */

static void credit_is_not_overdrawn(void)
{
    const struct script_offer offer = {.eager_max = 16384,
                                       .unexpected_max = 16384,
                                       .eager_credit = 2 * (SMALL + WIRE_MESSAGE_CHARGE)};
    struct script *script = open_now(&offer);
    CU_ASSERT_TRUE(goes_now(script, SMALL, TAG));
    CU_ASSERT_TRUE(goes_now(script, SMALL, TAG + 1));
    CU_ASSERT_EQUAL(send(script, &one, SMALL, TAG), 0);
    next_pass();
    CU_ASSERT_EQUAL(send(script, &two, 1, TAG), 0); /* behind it */
    CU_ASSERT_EQUAL(went, 2);
    script_expect(script, WIRE_WANT, NULL, 0);
    CU_ASSERT_EQUAL(send_credit(script, 1 + WIRE_MESSAGE_CHARGE, 0), 0);
    next_pass();
    CU_ASSERT_FALSE(done(&two)); /* there is credit for it, and an earlier message */
    CU_ASSERT_EQUAL(send_credit(script, SMALL + WIRE_MESSAGE_CHARGE, 0), 0);
    CU_ASSERT_TRUE(done(&one) && done(&two));
    CU_ASSERT_EQUAL(went, 2);
    close_now(script);
}

static void an_announced_receive_is_looked_at_first(void)
{
    struct script *script = open_now(NULL);
    CU_ASSERT_EQUAL(send_rtr(script, 71, LARGE, 0, TAG), 0);
    CU_ASSERT_FALSE(goes_now(script, SMALL, TAG));
    CU_ASSERT_TRUE(goes_now(script, SMALL, TAG)); /* the announcement was for that one */
    close_now(script);
}

static void messages_that_are_not_small(void)
{
    struct script *script = open_now(NULL);
    CU_ASSERT_FALSE(goes_now(script, 0, TAG));
    CU_ASSERT_EQUAL(send(script, &one, BMI_SEND_NOW + 1, TAG), 1);
    CU_ASSERT_EQUAL(script_expect(script, WIRE_EAGER, NULL, 0).length, BMI_SEND_NOW + 1);
    const void *buffers[] = {two.buffer};
    const bmi_size_t sizes[] = {SMALL};
    next_pass();
    CU_ASSERT_EQUAL(BMI_post_send_list(&two.id, script->address, buffers, sizes, 1, SMALL,
                                       BMI_EXT_ALLOC, TAG, NULL, case_context, NULL),
                    1);
    script_expect(script, WIRE_EAGER, NULL, 0);
    next_pass();
    CU_ASSERT_EQUAL(BMI_post_sendunexpected(&two.id, script->address, two.buffer, SMALL,
                                            BMI_EXT_ALLOC, TAG, NULL, case_context, NULL),
                    1);
    script_expect(script, WIRE_UNEXPECTED, NULL, 0);
    CU_ASSERT_EQUAL(went, 0);
    close_now(script);
}

/* Programs that cannot handle immediate completion see each send's completion; gathered sends are
 * gathered. */
static void settings_are_kept(void)
{
    struct script *script = open_now(NULL);
    bmi__setting_put(&bmi__default, SETTING_IMMEDIATE, 0);
    post_send(script, &one, SMALL, TAG);
    CU_ASSERT_TRUE(done(&one) && one.error == 0 && one.actual == SMALL);
    CU_ASSERT_EQUAL(went, 0);
    script_expect(script, WIRE_EAGER, NULL, 0);
    bmi__setting_put(&bmi__default, SETTING_IMMEDIATE, 1);
    next_pass();
    CU_ASSERT_EQUAL(send(script, &one, SMALL, TAG), 1);
    CU_ASSERT_EQUAL(send(script, &two, SMALL, TAG), 0); /* the second between two passes */
    CU_ASSERT_EQUAL(went, 1);
    bmi__setting_put(&bmi__default, SETTING_COALESCE, 0);
    next_pass();
    CU_ASSERT_TRUE(done(&two));
    script_expect(script, WIRE_EAGER, NULL, 0);
    script_expect(script, WIRE_EAGER, NULL, 0);
    CU_ASSERT_EQUAL(send_credit(script, 1, 0), 0); /* and reports that it has seen them */
    CU_ASSERT_EQUAL(send(script, &one, SMALL, TAG), 1);
    CU_ASSERT_EQUAL(send(script, &one, SMALL, TAG), 1);
    CU_ASSERT_EQUAL(went, 3);
    close_now(script);
}

/* A peer that only gets sends is not idle: the tick must watch it. */
static void a_peer_that_is_not_watched_is_before(void)
{
    struct script *script = open_now(NULL);
    CU_ASSERT_EQUAL(send_eager(script, 1, SMALL, TAG + 9), 0);
    CU_ASSERT_TRUE(received(&three, 1, SMALL));
    script_peer(script)->flags &= ~(uint32_t)PEER_ATTENTION; /* as the tick does */
    CU_ASSERT_FALSE(goes_now(script, SMALL, TAG));
    CU_ASSERT_TRUE(script_peer(script)->flags & PEER_ATTENTION);
    CU_ASSERT_TRUE(goes_now(script, SMALL, TAG));
    close_now(script);
}

/* After a link was closed only an operation can report that a message was not sent. */
static void none_goes_on_a_link_that_ends(void)
{
    struct script *script = open_now(NULL);
    bmi__peer_fail_locked(script_peer(script), -ECONNRESET, NULL);
    script->closing = false; /* the network has not noticed */
    CU_ASSERT_TRUE(send(script, &one, SMALL, TAG) >= 0);
    CU_ASSERT_EQUAL(went, 0);
    script->closing = true;
    close_now(script);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"a small one goes without an operation", a_small_one_goes_without_an_operation},
        {"it carries credit and `seen`", it_carries_credit_and_seen},
        {"a refused message goes by an operation", a_refused_message_goes_by_an_operation},
        {"it counts for announcements", it_counts_for_announcements},
        {"credit is not overdrawn", credit_is_not_overdrawn},
        {"an announced receive is looked at first", an_announced_receive_is_looked_at_first},
        {"messages that are not small", messages_that_are_not_small},
        {"settings are kept", settings_are_kept},
        {"a peer that is not watched is before", a_peer_that_is_not_watched_is_before},
        {"none goes on a link that ends", none_goes_on_a_link_that_ends},
        CU_TEST_INFO_NULL,
    };
    return script_suite_run("sending at once", tests);
}
