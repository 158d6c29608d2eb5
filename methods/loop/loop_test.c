/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loop_test.c - the loop method's frames and links, under a fake core with a clock of its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <CUnit/Basic.h>

#include "methods/loop/fake_core.h"
#include "methods/loop/loop_suites.h"

#define LOOP (&bmi__method_loop)
#define DIALLER (&fake_dialler)
#define ACCEPTOR (&fake_peers[0])

#define CHECK_EVENTS(peer, expected) CU_ASSERT_STRING_EQUAL((peer)->events, expected)

static uint8_t pattern[8192];

static void pattern_fill(void)
{
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (uint8_t)(i * 31 + i / 251);
}

static bool message_equal(struct fake_peer *peer, uint64_t id, const void *memory, size_t size)
{
    struct fake_message *message = fake_message_find(peer, id);
    return message != NULL && message->arrived && message->length == size &&
           memcmp(message->memory, memory, size) == 0;
}

/* ---- addresses ------------------------------------------------------------------------------ */

static void test_parse(void)
{
    static const struct {
        const char *address, *canonical; /* NULL: refused */
    } cases[] = {
        {"server", "server"},
        {"a.b-c_9", "a.b-c_9"},
        {"server:7", "server:7"},
        {"server:007", "server:7"},
        {"server:0", "server:0"},
        {"server:65535", "server:65535"},
        {"", NULL},
        {":7", NULL},
        {"server:", NULL},
        {"server:65536", NULL},
        {"server:-1", NULL},
        {"server:7x", NULL},
        {"ser ver", NULL},
        {"server/path", "server"}, /* classic programs append a path */
        {"server:123456", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char canonical[64] = "";
        const char *reason = NULL;
        int status = LOOP->parse(cases[i].address, canonical, sizeof canonical, &reason);
        if (cases[i].canonical == NULL) {
            CU_ASSERT_EQUAL(status, -EINVAL);
            CU_ASSERT_PTR_NOT_NULL(reason);
        } else {
            CU_ASSERT_EQUAL(status, 0);
            CU_ASSERT_STRING_EQUAL(canonical, cases[i].canonical);
        }
    }
    char small[4];
    const char *reason;
    CU_ASSERT_EQUAL(LOOP->parse("server", small, sizeof small, &reason), -ENAMETOOLONG);
    char longest[400];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    CU_ASSERT_EQUAL(LOOP->parse(longest, longest, sizeof longest, &reason), -EINVAL);
}

static void test_listen(void)
{
    char bound[64], tiny[3];
    fake_pair_open(LOOP);
    CU_ASSERT_EQUAL(LOOP->listen(fake_state, "server", 0, bound, sizeof bound), -EADDRINUSE);
    CU_ASSERT_EQUAL(LOOP->listen(fake_state, "server:0", 0, bound, sizeof bound), 0);
    CU_ASSERT_STRING_EQUAL(bound, "server:1");
    CU_ASSERT_EQUAL(LOOP->listen(fake_state, "server:0", 0, bound, sizeof bound), 0);
    CU_ASSERT_STRING_EQUAL(bound, "server:2");
    CU_ASSERT_EQUAL(LOOP->listen(fake_state, "other", 0, tiny, sizeof tiny), -ENAMETOOLONG);
    CU_ASSERT_EQUAL(LOOP->listen(fake_state, "o t", 0, bound, sizeof bound), -EINVAL);
    fake_pair_close();
    /* names end with the method */
    fake_pair_open(LOOP);
    fake_pair_close();
}

static void test_networks_apart(void)
{
    fake_pair_open(LOOP);
    void *state;
    CU_ASSERT_EQUAL_FATAL(bmi__method_loopput.start(NULL, &state), 0);
    struct fake_peer *peer = &fake_peers[5];
    CU_ASSERT_EQUAL(bmi__method_loopput.connect(state, "server", peer, &peer->link), 0);
    fake_drive(100);
    CHECK_EVENTS(peer, "down:-111");
    bmi__method_loopput.stop(state);
    fake_pair_close();
}

/* ---- connecting ----------------------------------------------------------------------------- */

static void test_connect_refused(void)
{
    fake_pair_open(LOOP);
    CU_ASSERT_EQUAL(fake_dial(LOOP, &fake_peers[5], "nobody"), 0);
    CHECK_EVENTS(&fake_peers[5], ""); /* never from within connect */
    fake_drive(100);
    CHECK_EVENTS(&fake_peers[5], "down:-111");
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_LINKS], 2);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_LINKS_FAILED], 1);
    fake_pair_close();
}

static void test_connect_fails_on_demand(void)
{
    fake_pair_open(LOOP);
    bmi__loop_fail(LOOP, BMI__LOOP_CONNECT_NOW, 1, EMFILE);
    CU_ASSERT_EQUAL(fake_dial(LOOP, &fake_peers[5], "server"), -EMFILE);
    bmi__loop_fail(LOOP, BMI__LOOP_CONNECT, 2, EHOSTUNREACH);
    CU_ASSERT_EQUAL(fake_dial(LOOP, &fake_peers[5], "server"), 0);
    CU_ASSERT_EQUAL(fake_dial(LOOP, &fake_peers[6], "server"), 0);
    CU_ASSERT_EQUAL(fake_dial(LOOP, &fake_peers[7], "server"), 0);
    fake_drive(100);
    CHECK_EVENTS(&fake_peers[5], "up");
    CHECK_EVENTS(&fake_peers[6], "down:-113");
    CHECK_EVENTS(&fake_peers[7], "up");
    fake_pair_close();
}

static void test_accept_refused(void)
{
    fake_pair_open(LOOP);
    fake_accept_status = -ENOMEM;
    CU_ASSERT_EQUAL(fake_dial(LOOP, &fake_peers[5], "server"), 0);
    fake_drive(100);
    CHECK_EVENTS(&fake_peers[5], "down:-104");
    fake_pair_close();
}

static void test_frames_wait_for_link_up(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frames[3];
    fake_frame_make(&frames[0], FAKE_DATA, 1, pattern, 10);
    fake_frame_make(&frames[1], FAKE_DATA, 2, NULL, 0);
    fake_frame_make(&frames[2], FAKE_DATA, 3, pattern, 10);
    CU_ASSERT_EQUAL_FATAL(fake_dial(LOOP, &fake_peers[5], "server"), 0);
    fake_send(&fake_peers[5], frames, 2);
    LOOP->send(fake_peers[5].link, &frames[2].frame); /* not flushed: link_up does */
    fake_drive(100);
    CHECK_EVENTS(&fake_peers[5], "up sent:1:0 sent:2:0 sent:3:0");
    CHECK_EVENTS(&fake_peers[1], "accepted head:1 body:1 head:2 head:3 body:3");
    fake_pair_close();
}

/* ---- moving --------------------------------------------------------------------------------- */

static void test_order(void)
{
    fake_pair_open(LOOP);
    struct fake_frame there[3], back;
    for (unsigned i = 0; i < 3; i++)
        fake_frame_make(&there[i], FAKE_DATA, i, pattern + i, 100 * (i + 1));
    fake_frame_make(&back, FAKE_DATA, 9, pattern, 7);
    fake_send(DIALLER, there, 2);
    fake_send(DIALLER, &there[2], 1);
    fake_send(ACCEPTOR, &back, 1);
    CHECK_EVENTS(ACCEPTOR, ""); /* never from within flush */
    CU_ASSERT_TRUE(fake_drive(100));
    CHECK_EVENTS(ACCEPTOR, "head:0 body:0 head:1 body:1 head:2 body:2 sent:9:0");
    CHECK_EVENTS(DIALLER, "sent:0:0 sent:1:0 sent:2:0 head:9 body:9");
    for (unsigned i = 0; i < 3; i++)
        CU_ASSERT_TRUE(message_equal(ACCEPTOR, i, pattern + i, 100 * (i + 1)));
    CU_ASSERT_TRUE(message_equal(DIALLER, 9, pattern, 7));
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_FRAMES_SENT], 4);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_FRAMES_RECEIVED], 4);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_BYTES_SENT], 607 + 4 * BMI_FRAME_HEADER);
    CU_ASSERT_EQUAL(atomic_load(&ACCEPTOR->link->bytes_in), 600 + 3 * BMI_FRAME_HEADER);
    fake_pair_close();
}

static void test_idle_costs_nothing(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frame;
    fake_frame_make(&frame, FAKE_DATA, 1, pattern, 10);
    fake_send(DIALLER, &frame, 1);
    fake_drive(100);
    CU_ASSERT_EQUAL(fake_rounds, 1);
    LOOP->flush(DIALLER->link);
    LOOP->flush(ACCEPTOR->link);
    fake_drive(100);
    CU_ASSERT_EQUAL(fake_rounds, 1);
    fake_pair_close();
}

static void test_turns_are_fair(void)
{
    fake_pair_open(LOOP);
    enum { MANY = 200 };
    static struct fake_frame many[MANY];
    struct fake_frame one;
    for (unsigned i = 0; i < MANY; i++)
        fake_frame_make(&many[i], FAKE_DATA, i, NULL, 0);
    fake_frame_make(&one, FAKE_DATA, 1000, NULL, 0);
    fake_send(DIALLER, many, MANY);
    fake_send(ACCEPTOR, &one, 1);
    fake_drive(1); /* one round: each link has had one turn */
    CU_ASSERT_TRUE(one.back);
    CU_ASSERT_EQUAL(ACCEPTOR->arrived, 64);
    fake_drive(100);
    CU_ASSERT_TRUE(many[MANY - 1].back);
    CU_ASSERT_EQUAL(ACCEPTOR->arrived, MANY);
    fake_pair_close();
}

static void test_pieces(void)
{
    static const size_t sizes[] = {1, 2, 39, 40, 41, 1000};
    static const size_t pieces[] = {1, 3, 64};
    for (size_t p = 0; p < 3; p++)
        for (size_t s = 0; s < 6; s++) {
            fake_pair_open(LOOP);
            bmi__loop_piece(LOOP, pieces[p]);
            ACCEPTOR->segment = 7;
            void *buffers[3] = {pattern, NULL, pattern + sizes[s] / 3};
            bmi_size_t lengths[3] = {(bmi_size_t)(sizes[s] / 3), 0,
                                     (bmi_size_t)(sizes[s] - sizes[s] / 3)};
            struct fake_frame frame;
            fake_frame_make(&frame, FAKE_DATA, 1, pattern, sizes[s]);
            frame.frame.body.buffers = buffers;
            frame.frame.body.sizes = lengths;
            frame.frame.body.count = 3;
            fake_send(DIALLER, &frame, 1);
            CU_ASSERT_TRUE(fake_drive(2000));
            CU_ASSERT_TRUE(message_equal(ACCEPTOR, 1, pattern, sizes[s]));
            CHECK_EVENTS(DIALLER, "sent:1:0");
            CU_ASSERT(fake_rounds >= (sizes[s] + pieces[p] - 1) / pieces[p]);
            fake_pair_close();
        }
}

static void test_drain_and_small_room(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frames[2];
    fake_frame_make(&frames[0], FAKE_DATA, 1, pattern, 500);
    frames[0].frame.header[1] = FAKE_DRAIN;
    fake_frame_make(&frames[1], FAKE_DATA, 2, pattern, 500);
    ACCEPTOR->room = 20;
    fake_send(DIALLER, frames, 2);
    fake_drive(100);
    CHECK_EVENTS(ACCEPTOR, "head:1 body:1 head:2 body:2");
    CU_ASSERT_PTR_NULL(fake_message_find(ACCEPTOR, 1));
    CU_ASSERT_TRUE(message_equal(ACCEPTOR, 2, pattern, 20));
    fake_pair_close();
}

/* The receiver still reads undelivered bytes from the sender's memory. */
static void test_bodies_stay_with_the_sender(void)
{
    fake_pair_open(LOOP);
    uint8_t memory[100] = {0};
    struct fake_frame frame;
    fake_frame_make(&frame, FAKE_DATA, 1, memory, sizeof memory);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_DIALLER, 10);
    fake_send(DIALLER, &frame, 1);
    fake_drive(100);
    CHECK_EVENTS(ACCEPTOR, "head:1");
    memset(memory, 5, sizeof memory);
    bmi__loop_release(LOOP, BMI__LOOP_FROM_DIALLER);
    fake_drive(100);
    memset(memory, 0, 10);
    CU_ASSERT_TRUE(message_equal(ACCEPTOR, 1, memory, sizeof memory));
    fake_pair_close();
}

static void test_hold_is_for_one_direction(void)
{
    fake_pair_open(LOOP);
    struct fake_frame there, back;
    fake_frame_make(&there, FAKE_DATA, 1, pattern, 10);
    fake_frame_make(&back, FAKE_DATA, 2, pattern, 10);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_DIALLER, 0);
    fake_send(DIALLER, &there, 1);
    fake_send(ACCEPTOR, &back, 1);
    CU_ASSERT_TRUE(fake_drive(100)); /* held frames do not keep the poller busy */
    CHECK_EVENTS(ACCEPTOR, "sent:2:0");
    CHECK_EVENTS(DIALLER, "head:2 body:2");
    bmi__loop_release(LOOP, BMI__LOOP_FROM_DIALLER);
    fake_drive(100);
    CHECK_EVENTS(ACCEPTOR, "sent:2:0 head:1 body:1");
    fake_pair_close();
}

static void test_delay(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frames[2];
    fake_frame_make(&frames[0], FAKE_DATA, 1, pattern, 10);
    fake_frame_make(&frames[1], FAKE_DATA, 2, pattern, 10);
    bmi__loop_delay(LOOP, 10);
    fake_send(DIALLER, &frames[0], 1);
    fake_drive(100);
    fake_advance(9);
    fake_send(DIALLER, &frames[1], 1); /* does not postpone the first one */
    fake_drive(100);
    CHECK_EVENTS(ACCEPTOR, "");
    fake_advance(1);
    CHECK_EVENTS(ACCEPTOR, "head:1 body:1");
    fake_advance(9);
    CHECK_EVENTS(ACCEPTOR, "head:1 body:1");
    fake_advance(1);
    CHECK_EVENTS(ACCEPTOR, "head:1 body:1 head:2 body:2");
    CHECK_EVENTS(DIALLER, "sent:1:0 sent:2:0");
    fake_pair_close();
}

static void test_strangers(void)
{
    uint8_t altered[40];
    for (size_t i = 0; i < sizeof altered; i++)
        altered[i] = i < 16 ? pattern[i] ^ 0x5a : pattern[i];
    for (size_t piece = 1; piece < 20; piece += 6) {
        fake_pair_open(LOOP);
        struct fake_frame frames[3];
        fake_frame_make(&frames[0], FAKE_HELLO, 1, pattern, sizeof altered);
        fake_frame_make(&frames[1], FAKE_DATA, 2, pattern, sizeof altered);
        fake_frame_make(&frames[2], FAKE_HELLO, 3, pattern, 9);
        bmi__loop_strangers(LOOP, true);
        bmi__loop_piece(LOOP, piece);
        fake_send(DIALLER, frames, 3);
        fake_drive(1000);
        CU_ASSERT_TRUE(message_equal(ACCEPTOR, 1, altered, sizeof altered));
        CU_ASSERT_TRUE(message_equal(ACCEPTOR, 2, pattern, sizeof altered));
        CU_ASSERT_TRUE(message_equal(ACCEPTOR, 3, altered, 9));
        CU_ASSERT_EQUAL(pattern[0], 0); /* the sender's memory is as it was */
        fake_pair_close();
    }
}

/* ---- taking back ---------------------------------------------------------------------------- */

static void test_retract_in_mid_body(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frames[2];
    fake_frame_make(&frames[0], FAKE_DATA, 1, pattern + 1, 100);
    fake_frame_make(&frames[1], FAKE_DATA, 2, pattern, 100);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_DIALLER, 10);
    fake_send(DIALLER, frames, 2);
    fake_drive(100);
    struct fake_message *message = fake_message_find(ACCEPTOR, 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(message);
    CU_ASSERT_FALSE(LOOP->retract(ACCEPTOR->link, &frames)); /* of another owner */
    CU_ASSERT_TRUE(LOOP->retract(ACCEPTOR->link, message));
    CU_ASSERT_FALSE(LOOP->retract(ACCEPTOR->link, message));
    bmi__loop_release(LOOP, BMI__LOOP_FROM_DIALLER);
    fake_drive(100);
    CHECK_EVENTS(ACCEPTOR, "head:1 head:2 body:2");
    CHECK_EVENTS(DIALLER, "sent:1:0 sent:2:0");
    CU_ASSERT_EQUAL(memcmp(message->memory, pattern + 1, 10), 0);
    for (size_t i = 10; i < 100; i++)
        CU_ASSERT_EQUAL(message->memory[i], 0);
    CU_ASSERT_FALSE(LOOP->retract(ACCEPTOR->link, fake_message_find(ACCEPTOR, 2)));
    fake_pair_close();
}

/* Withdraws under the peer's lock, as the core does. */
static bool withdraw(struct fake_frame *frame, struct fake_frame *replacement)
{
    pthread_mutex_lock(&DIALLER->lock);
    bool result = LOOP->withdraw(DIALLER->link, &frame->frame,
                                 replacement != NULL ? &replacement->frame : NULL);
    pthread_mutex_unlock(&DIALLER->lock);
    return result;
}

static void test_withdraw_untouched(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frames[5], replacement;
    for (unsigned i = 0; i < 5; i++)
        fake_frame_make(&frames[i], FAKE_DATA, i, pattern, 10);
    fake_frame_make(&replacement, FAKE_DATA, 9, pattern, 20);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_DIALLER, 0);
    fake_send(DIALLER, frames, 4);
    fake_drive(100);
    CU_ASSERT_TRUE(withdraw(&frames[0], NULL));         /* first */
    CU_ASSERT_TRUE(withdraw(&frames[2], &replacement)); /* middle, replaced */
    CU_ASSERT_TRUE(withdraw(&frames[3], NULL));         /* last */
    CU_ASSERT_FALSE(withdraw(&frames[3], NULL));
    frames[4].frame.next = NULL;
    LOOP->send(DIALLER->link, &frames[4].frame); /* not flushed */
    CU_ASSERT_TRUE(withdraw(&frames[4], NULL));
    CU_ASSERT_EQUAL(frames[4].frame.header_sent, 0);
    fake_send(DIALLER, &frames[3], 1); /* the queue's tail pointer is right */
    bmi__loop_release(LOOP, BMI__LOOP_FROM_DIALLER);
    fake_drive(100);
    CHECK_EVENTS(ACCEPTOR, "head:1 body:1 head:9 body:9 head:3 body:3");
    CHECK_EVENTS(DIALLER, "sent:1:0 sent:9:0 sent:3:0");
    CU_ASSERT_FALSE(withdraw(&frames[1], NULL)); /* long gone */
    fake_pair_close();
}

/* The rest of a body goes on from the method's memory: the sender's may be used again at once. */
static void test_withdraw_in_mid_body(void)
{
    fake_pair_open(LOOP);
    uint8_t memory[100];
    memcpy(memory, pattern, sizeof memory);
    struct fake_frame frames[2], replacement;
    fake_frame_make(&frames[0], FAKE_DATA, 1, memory, sizeof memory);
    fake_frame_make(&frames[1], FAKE_DATA, 2, pattern, 10);
    fake_frame_make(&replacement, FAKE_DATA, 9, pattern, 20);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_DIALLER, 10);
    fake_send(DIALLER, frames, 2);
    fake_drive(100);
    CU_ASSERT_TRUE(withdraw(&frames[0], &replacement));
    CU_ASSERT(frames[0].frame.header_sent > 0);
    CU_ASSERT_EQUAL(frames[0].frame.body.left, 0);
    CU_ASSERT_FALSE(withdraw(&frames[0], NULL));
    memset(memory, 0xff, sizeof memory);
    memset(&frames[0], 0xff, sizeof frames[0]);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_DIALLER, 30); /* and on in pieces */
    fake_drive(100);
    CHECK_EVENTS(ACCEPTOR, "head:1");
    bmi__loop_release(LOOP, BMI__LOOP_FROM_DIALLER);
    fake_drive(100);
    CHECK_EVENTS(ACCEPTOR, "head:1 body:1 head:2 body:2");
    CHECK_EVENTS(DIALLER, "sent:2:0");
    CU_ASSERT_TRUE(message_equal(ACCEPTOR, 1, pattern, 100));
    fake_pair_close();
}

static struct fake_frame late_frame;

static void withdraw_late(void)
{
    CU_ASSERT_FALSE(withdraw(&late_frame, NULL));
}

/* All of it has gone, though it is not back yet. */
static void test_withdraw_too_late(void)
{
    fake_pair_open(LOOP);
    fake_frame_make(&late_frame, FAKE_DATA, 1, pattern, 100);
    fake_body_hook = withdraw_late;
    fake_send(DIALLER, &late_frame, 1);
    fake_drive(100);
    CU_ASSERT_PTR_NULL(fake_body_hook); /* it was called */
    CHECK_EVENTS(DIALLER, "sent:1:0");
    fake_pair_close();
}

static void test_withdraw_then_cut(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frame;
    fake_frame_make(&frame, FAKE_DATA, 1, pattern, 100);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_DIALLER, 10);
    fake_send(DIALLER, &frame, 1);
    fake_drive(100);
    CU_ASSERT_TRUE(withdraw(&frame, NULL));
    bmi__loop_cut(LOOP, ECONNRESET);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "down:-104");
    CHECK_EVENTS(ACCEPTOR, "head:1 down:-104");
    fake_pair_close();
}

/* ---- ends ----------------------------------------------------------------------------------- */

static void test_close(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frames[2], back;
    fake_frame_make(&frames[0], FAKE_DATA, 1, pattern, 100);
    fake_frame_make(&frames[1], FAKE_DATA, 2, pattern, 100);
    fake_frame_make(&back, FAKE_DATA, 3, pattern, 100);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_DIALLER | BMI__LOOP_FROM_ACCEPTOR, 0);
    fake_send(DIALLER, frames, 1);
    fake_send(ACCEPTOR, &back, 1);
    frames[1].frame.next = NULL;
    LOOP->send(DIALLER->link, &frames[1].frame); /* not flushed */
    LOOP->close(DIALLER->link, false);
    CHECK_EVENTS(DIALLER, ""); /* link_down comes from the poller */
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "sent:1:-125 sent:2:-125 down:0");
    CHECK_EVENTS(ACCEPTOR, "sent:3:-104 down:0");
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_LINKS], 0);
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_LINKS_FAILED], 0);
    /* calls that the core may still make do nothing */
    LOOP->flush(DIALLER->gone);
    LOOP->close(DIALLER->gone, true);
    CU_ASSERT_FALSE(LOOP->retract(DIALLER->gone, NULL));
    CU_ASSERT_FALSE(LOOP->withdraw(DIALLER->gone, &frames[0].frame, NULL));
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "sent:1:-125 sent:2:-125 down:0");
    fake_pair_close();
}

static void test_close_in_mid_body(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frame;
    fake_frame_make(&frame, FAKE_DATA, 1, pattern, 100);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_DIALLER, 10);
    fake_send(DIALLER, &frame, 1);
    fake_drive(100);
    LOOP->close(DIALLER->link, false);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "sent:1:-125 down:0");
    CHECK_EVENTS(ACCEPTOR, "head:1 down:-104");
    fake_pair_close();
}

static void test_linger(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frames[2];
    fake_frame_make(&frames[0], FAKE_DATA, 1, pattern, 100);
    fake_frame_make(&frames[1], FAKE_DATA, 2, pattern, 100);
    frames[0].frame.next = &frames[1].frame;
    frames[1].frame.next = NULL;
    LOOP->send(DIALLER->link, &frames[0].frame); /* not flushed */
    LOOP->close(DIALLER->link, true);
    fake_drive(100);
    CHECK_EVENTS(ACCEPTOR, "head:1 body:1 head:2 body:2 down:0");
    CHECK_EVENTS(DIALLER, "sent:1:0 sent:2:0 down:0");
    fake_pair_close();
}

/* Both have frames left: these are sent, though no owner receives them any more. */
static void test_both_linger(void)
{
    fake_pair_open(LOOP);
    struct fake_frame there, back;
    fake_frame_make(&there, FAKE_DATA, 1, pattern, 100);
    fake_frame_make(&back, FAKE_DATA, 2, pattern, 100);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_ACCEPTOR, 0);
    fake_send(DIALLER, &there, 1);
    fake_send(ACCEPTOR, &back, 1);
    LOOP->close(DIALLER->link, true);
    LOOP->close(ACCEPTOR->link, true);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "sent:1:0");
    bmi__loop_release(LOOP, BMI__LOOP_FROM_ACCEPTOR);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "sent:1:0 down:0");
    CHECK_EVENTS(ACCEPTOR, "sent:2:0 down:0");
    fake_pair_close();
}

static void test_linger_cut(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frame;
    fake_frame_make(&frame, FAKE_DATA, 1, pattern, 100);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_DIALLER, 0);
    fake_send(DIALLER, &frame, 1);
    LOOP->close(DIALLER->link, true);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "");
    LOOP->close(DIALLER->link, false);
    LOOP->close(DIALLER->link, true); /* too late to linger again */
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "sent:1:-125 down:0");
    CHECK_EVENTS(ACCEPTOR, "down:0");
    fake_pair_close();
}

/* A receiver that closes in mid-body gets no more of it. */
static void test_receiver_closes_in_mid_body(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frame, back;
    fake_frame_make(&frame, FAKE_DATA, 1, pattern + 1, 100);
    fake_frame_make(&back, FAKE_DATA, 2, pattern, 100);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_DIALLER, 10);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_ACCEPTOR, 0);
    fake_send(DIALLER, &frame, 1);
    fake_send(ACCEPTOR, &back, 1);
    fake_drive(100);
    LOOP->close(ACCEPTOR->link, true);
    bmi__loop_release(LOOP, BMI__LOOP_FROM_DIALLER);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "sent:1:0");
    CHECK_EVENTS(ACCEPTOR, "head:1");
    struct fake_message *message = fake_message_find(ACCEPTOR, 1);
    CU_ASSERT_EQUAL(message->memory[9], pattern[10]);
    CU_ASSERT_EQUAL(message->memory[10], 0);
    bmi__loop_release(LOOP, BMI__LOOP_FROM_ACCEPTOR);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "sent:1:0 head:2 body:2 down:0");
    CHECK_EVENTS(ACCEPTOR, "head:1 sent:2:0 down:0");
    fake_pair_close();
}

static void test_send_fails_on_demand(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frames[3];
    for (unsigned i = 0; i < 3; i++)
        fake_frame_make(&frames[i], FAKE_DATA, i, pattern, 10);
    bmi__loop_fail(LOOP, BMI__LOOP_SEND, 2, EPIPE);
    fake_send(DIALLER, frames, 3);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "sent:0:0 sent:1:-32 sent:2:-32 down:-32");
    CHECK_EVENTS(ACCEPTOR, "head:0 body:0 down:-104");
    fake_pair_close();
}

static void test_cut(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frames[2];
    fake_frame_make(&frames[0], FAKE_DATA, 1, pattern, 100);
    fake_frame_make(&frames[1], FAKE_DATA, 2, pattern, 100);
    bmi__loop_hold(LOOP, BMI__LOOP_FROM_DIALLER, 10);
    bmi__loop_delay(LOOP, 0);
    fake_send(DIALLER, frames, 2);
    fake_drive(100);
    bmi__loop_cut(LOOP, ETIMEDOUT);
    fake_drive(100);
    CHECK_EVENTS(DIALLER, "sent:1:-110 sent:2:-110 down:-110");
    CHECK_EVENTS(ACCEPTOR, "head:1 down:-110");
    bmi__loop_reset(LOOP);
    /* a new link is as good as any */
    CU_ASSERT_EQUAL(fake_dial(LOOP, &fake_peers[5], "server"), 0);
    fake_drive(100);
    CHECK_EVENTS(&fake_peers[5], "up");
    fake_pair_close();
}

static void test_bad_frames(void)
{
    static const uint8_t faults[] = {FAKE_REFUSE_HEADER, FAKE_REFUSE_BODY};
    for (unsigned i = 0; i < 2; i++) {
        fake_pair_open(LOOP);
        struct fake_frame frames[2];
        fake_frame_make(&frames[0], FAKE_DATA, 1, pattern, 10);
        frames[0].frame.header[1] = faults[i];
        fake_frame_make(&frames[1], FAKE_DATA, 2, pattern, 10);
        fake_send(DIALLER, frames, 2);
        fake_drive(100);
        CHECK_EVENTS(ACCEPTOR, i == 0 ? "down:-74" : "head:1 down:-74");
        CHECK_EVENTS(DIALLER, i == 0 ? "sent:1:-104 sent:2:-104 down:-104"
                                     : "sent:1:0 sent:2:-104 down:-104");
        fake_pair_close();
    }
}

static void test_header_and_body_disagree(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frame;
    fake_frame_make(&frame, FAKE_DATA, 1, pattern, 10);
    frame.frame.body.left = 9;
    fake_send(DIALLER, &frame, 1);
    fake_drive(100);
    CHECK_EVENTS(ACCEPTOR, "head:1 down:-71");
    CHECK_EVENTS(DIALLER, "sent:1:-104 down:-104");
    CU_ASSERT_EQUAL(fake_counters[BMI_COUNT_BAD_FRAMES], 1);
    fake_pair_close();
}

static void test_stop_with_open_links(void)
{
    fake_pair_open(LOOP);
    struct fake_frame frame;
    fake_frame_make(&frame, FAKE_DATA, 1, pattern, 10);
    bmi__loop_delay(LOOP, 1000);
    fake_send(DIALLER, &frame, 1);
    fake_drive(100);
    struct fake_peer *late = &fake_peers[5];
    CU_ASSERT_EQUAL(fake_dial(LOOP, late, "server"), 0);
    LOOP->stop(fake_state);
    CHECK_EVENTS(DIALLER, "sent:1:-125 down:0");
    CHECK_EVENTS(ACCEPTOR, "down:0");
    CHECK_EVENTS(late, "down:0");
    bmi__loop_reset(LOOP);
    fake_reset();
    fake_peer_clear(&fake_dialler);
    fake_pair_open(LOOP); /* before the deferred call that `late` had requested has run */
    fake_pair_close();
}

static void test_limits(void)
{
    CU_ASSERT_EQUAL(bmi__loop_limits(LOOP, 100, 0, 1000), 0);
    CU_ASSERT_EQUAL(LOOP->limits.eager_max, 100);
    CU_ASSERT_EQUAL(LOOP->limits.unexpected_max, 16384);
    CU_ASSERT_EQUAL(LOOP->limits.frame_max, 1000);
    CU_ASSERT_EQUAL(bmi__method_loopput.limits.eager_max, 16384);
    fake_pair_open(LOOP);
    CU_ASSERT_EQUAL(bmi__loop_limits(LOOP, 1, 1, 1), -EBUSY);
    fake_pair_close();
    CU_ASSERT_EQUAL(LOOP->limits.eager_max, 16384);
    CU_ASSERT_EQUAL(LOOP->limits.frame_max, 262144);
}

static CU_TestInfo frame_tests[] = {
    {"parse", test_parse},
    {"listen", test_listen},
    {"networks are apart", test_networks_apart},
    {"connect: refused", test_connect_refused},
    {"connect: fails on demand", test_connect_fails_on_demand},
    {"connect: the core refuses", test_accept_refused},
    {"frames wait for link_up", test_frames_wait_for_link_up},
    {"order", test_order},
    {"idle costs nothing", test_idle_costs_nothing},
    {"turns are fair", test_turns_are_fair},
    {"pieces", test_pieces},
    {"drain, small room", test_drain_and_small_room},
    {"bodies stay with the sender", test_bodies_stay_with_the_sender},
    {"hold", test_hold_is_for_one_direction},
    {"delay", test_delay},
    {"strangers", test_strangers},
    {"retract in mid-body", test_retract_in_mid_body},
    {"withdraw untouched", test_withdraw_untouched},
    {"withdraw in mid-body", test_withdraw_in_mid_body},
    {"withdraw too late", test_withdraw_too_late},
    {"withdraw, then cut", test_withdraw_then_cut},
    {"close", test_close},
    {"close in mid-body", test_close_in_mid_body},
    {"linger", test_linger},
    {"both linger", test_both_linger},
    {"linger, then cut", test_linger_cut},
    {"receiver closes in mid-body", test_receiver_closes_in_mid_body},
    {"send fails on demand", test_send_fails_on_demand},
    {"cut", test_cut},
    {"bad frames", test_bad_frames},
    {"header and body disagree", test_header_and_body_disagree},
    {"stop with open links", test_stop_with_open_links},
    {"limits", test_limits},
    CU_TEST_INFO_NULL,
};

int main(void)
{
    pattern_fill();
    CU_SuiteInfo suites[] = {
        {.pName = "frames", .pTests = frame_tests},
        {.pName = "memory", .pTests = loop_memory_tests},
        {.pName = "threads", .pTests = loop_thread_tests},
        CU_SUITE_INFO_NULL,
    };
    if (CU_initialize_registry() != CUE_SUCCESS || CU_register_suites(suites) != CUE_SUCCESS)
        return 1;
    CU_basic_set_mode(CU_BRM_NORMAL);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failures == 0 ? 0 : 1;
}
