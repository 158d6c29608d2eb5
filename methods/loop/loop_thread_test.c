/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loop_thread_test.c - the loop method with a poller, senders, and threads that take frames back,
 * all at once. Each frame comes back exactly once, and each complete frame has the sent bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "methods/loop/fake_core.h"
#include "methods/loop/loop_suites.h"

#define LOOP (&bmi__method_loop)

enum { SENDERS = 3, FRAMES = 1500, BODY = 600 };

static struct fake_peer diallers[SENDERS];
static struct sender {
    unsigned number;
    unsigned seed;
    unsigned untouched, detached; /* withdrawn */
    struct fake_frame frames[FRAMES];
    uint8_t bodies[FRAMES][BODY];
} senders[SENDERS];
static atomic_bool over;

static void *drive(void *unused)
{
    (void)unused;
    while (!atomic_load(&over)) {
        fake_wait();
        fake_drive(1000000);
    }
    return NULL;
}

/* Takes a frame back as a cancel does, and spoils its memory. */
static void frame_withdraw(struct sender *sender, struct fake_frame *frame)
{
    struct fake_peer *peer = &diallers[sender->number];
    pthread_mutex_lock(&peer->lock);
    if (!frame->back && LOOP->withdraw(peer->link, &frame->frame, NULL)) {
        frame->back = true;
        if (frame->frame.header_sent > 0)
            sender->detached++;
        else
            sender->untouched++;
        memset(frame->buffer, 0xee, BODY);
    }
    pthread_mutex_unlock(&peer->lock);
}

/* The oldest frame that is not back: perhaps it is just being delivered. */
static struct fake_frame *frame_oldest(struct sender *sender, unsigned *oldest, unsigned newest)
{
    struct fake_peer *peer = &diallers[sender->number];
    pthread_mutex_lock(&peer->lock);
    while (*oldest < newest && sender->frames[*oldest].back)
        ++*oldest;
    pthread_mutex_unlock(&peer->lock);
    return &sender->frames[*oldest];
}

static void *send_all(void *argument)
{
    struct sender *sender = argument;
    struct fake_peer *peer = &diallers[sender->number];
    unsigned oldest = 0;
    for (unsigned i = 0; i < FRAMES; i++) {
        memset(sender->bodies[i], (int)(i % 200), BODY);
        fake_frame_make(&sender->frames[i], FAKE_DATA, i, sender->bodies[i], BODY);
        fake_send(peer, &sender->frames[i], 1);
        switch (rand_r(&sender->seed) % 16) {
        case 0:
            frame_withdraw(sender, &sender->frames[i]);
            break;
        case 1:
            frame_withdraw(sender, frame_oldest(sender, &oldest, i));
            break;
        default:
            break;
        }
    }
    return NULL;
}

/* Tries to retract bodies that the poller is just delivering, one in four. Messages are never
 * freed while it runs, and a retracted body stays as it is. */
static void *retract_some(void *unused)
{
    (void)unused;
    for (unsigned round = 0; !atomic_load(&over); round++) {
        struct fake_peer *peer = &fake_peers[round % SENDERS];
        pthread_mutex_lock(&peer->lock);
        struct fake_message *message = peer->messages;
        pthread_mutex_unlock(&peer->lock);
        if (message != NULL && message->id % 4 == 0 && LOOP->retract(peer->link, message))
            memset(message->memory, 0xdd, message->length);
        sched_yield();
    }
    return NULL;
}

static bool all_back(const struct sender *sender)
{
    struct fake_peer *peer = &diallers[sender->number];
    pthread_mutex_lock(&peer->lock);
    bool back = peer->sent + sender->untouched + sender->detached == FRAMES;
    pthread_mutex_unlock(&peer->lock);
    return back;
}

static void messages_check(const struct fake_peer *peer, unsigned *retracted)
{
    unsigned wrong = 0;
    for (const struct fake_message *message = peer->messages; message != NULL;
         message = message->next) {
        uint8_t expected = message->arrived ? (uint8_t)(message->id % 200) : 0xdd;
        *retracted += !message->arrived;
        for (size_t i = 0; i < message->length; i++)
            wrong += message->memory[i] != expected;
    }
    CU_ASSERT_EQUAL(wrong, 0);
}

static void scene_open(void)
{
    char bound[64];
    fake_reset();
    CU_ASSERT_EQUAL_FATAL(LOOP->start(NULL, &fake_state), 0);
    CU_ASSERT_EQUAL_FATAL(LOOP->listen(fake_state, "server", 0, bound, sizeof bound), 0);
    for (unsigned i = 0; i < SENDERS; i++) {
        fake_peer_clear(&diallers[i]);
        CU_ASSERT_EQUAL_FATAL(fake_dial(LOOP, &diallers[i], "server"), 0);
        fake_drive(100);
        diallers[i].quiet = fake_peers[i].quiet = true;
    }
    bmi__loop_piece(LOOP, 37);
}

static void test_threads(void)
{
    scene_open();
    unsigned seed = (unsigned)time(NULL);
    printf("seed %u ", seed);
    pthread_t poller, taker, threads[SENDERS];
    atomic_store(&over, false);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&poller, NULL, drive, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&taker, NULL, retract_some, NULL), 0);
    for (unsigned i = 0; i < SENDERS; i++) {
        senders[i].number = i;
        senders[i].seed = seed + i;
        senders[i].untouched = senders[i].detached = 0;
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, send_all, &senders[i]), 0);
    }
    for (unsigned i = 0; i < SENDERS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < SENDERS; i++)
        while (!all_back(&senders[i]))
            sched_yield();
    atomic_store(&over, true);
    fake_wake();
    pthread_join(poller, NULL);
    pthread_join(taker, NULL);
    fake_drive(1000000); /* the rest of detached bodies */

    unsigned untouched = 0, detached = 0, retracted = 0, arrived = 0;
    for (unsigned i = 0; i < SENDERS; i++) {
        CU_ASSERT_EQUAL(diallers[i].failed, 0);
        messages_check(&fake_peers[i], &retracted);
        untouched += senders[i].untouched;
        detached += senders[i].detached;
        arrived += fake_peers[i].arrived;
    }
    CU_ASSERT_EQUAL(arrived + retracted + untouched, SENDERS * FRAMES);
    printf("(%u arrived, %u retracted, %u withdrawn, %u in mid-body) ", arrived, retracted,
           untouched, detached);
    LOOP->stop(fake_state);
    fake_drive(100);
    bmi__loop_reset(LOOP);
    for (unsigned i = 0; i < SENDERS; i++)
        fake_peer_clear(&diallers[i]);
    fake_reset();
}

CU_TestInfo loop_thread_tests[] = {
    {"send, withdraw, retract, deliver", test_threads},
    CU_TEST_INFO_NULL,
};
