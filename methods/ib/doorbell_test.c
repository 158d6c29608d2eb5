/* SPDX-License-Identifier: BSD-3-Clause
 *
 * doorbell_test.c - the wake-up flag of shm: when a sender rings, and that no message is overlooked
 * by a poller that goes to sleep. The process connects to itself and polls pass by pass.
 */
#include <stdio.h>
#include <unistd.h>

#include "methods/ib/ib.h"
#include "methods/stream/fake_core.h"
#include "tests/unit/unit.h"

extern const struct bmi_method bmi__method_ofi_shm;

enum { LINKS = 2 };

static struct fake_owner dialled[LINKS];
static uint8_t into_dialled[LINKS][64], into_accepted[LINKS][64];

static struct ib_state *state(void)
{
    return fake_state;
}

static void frame_send(int link)
{
    static struct bmi_frame frame;
    frame = (struct bmi_frame){0};
    fake_header_write(frame.header, 1, 0, 0);
    fake_method->send(dialled[link].link, &frame);
    fake_method->flush(dialled[link].link);
}

static void test_connect(void)
{
    char url[200];
    fake_listen(url, sizeof(url));
    for (int i = 0; i < LINKS; i++) {
        fake_owner_init(&fake_accepted[i], into_accepted[i]);
        CU_ASSERT_EQUAL_FATAL(fake_dial(url, &dialled[i], into_dialled[i]), 0);
        CU_ASSERT_FATAL(FAKE_UNTIL(dialled[i].ups == 1 && fake_accepted_count == i + 1));
        frame_send(i); /* the provider's own connection is made with the first message */
        CU_ASSERT_FATAL(FAKE_UNTIL(fake_accepted[i].frames == 1));
    }
    CU_ASSERT_PTR_NOT_NULL_FATAL(state()->doorbell);
}

/* Given a page and its peer's view of it, when its owner sleeps, then each link has to ring once.
 */
static void test_ring_once(void)
{
    struct ib_doorbell *ours, *theirs;
    struct ib_doorbell_record record;
    uint32_t rung[LINKS] = {0};
    CU_ASSERT_EQUAL_FATAL(ib_doorbell_make(&ours), 0);
    record = ib_doorbell_record(ours);
    CU_ASSERT_EQUAL_FATAL(ib_doorbell_open(&record, &theirs), 0);
    CU_ASSERT_EQUAL(ib_doorbell_process(theirs), getpid());
    for (int round = 0; round < 3; round++) {
        CU_ASSERT(!ib_doorbell_wanted(theirs, &rung[0]));
        ib_doorbell_sleep(ours, true);
        for (int i = 0; i < LINKS; i++) {
            CU_ASSERT(ib_doorbell_wanted(theirs, &rung[i]));
            CU_ASSERT(!ib_doorbell_wanted(theirs, &rung[i]));
        }
        ib_doorbell_sleep(ours, true); /* the same sleep */
        CU_ASSERT(!ib_doorbell_wanted(theirs, &rung[0]));
        ib_doorbell_sleep(ours, false);
    }
    ib_doorbell_free(theirs);
    record.number ^= 2;
    CU_ASSERT_EQUAL(ib_doorbell_open(&record, &theirs), -EPROTO);
    ib_doorbell_free(ours);
}

/* Given a poller about to sleep, when a message is there already, then it does not sleep. */
static void test_message_before(void)
{
    for (int i = 0; i < 100; i++) {
        int before = fake_accepted[0].frames;
        frame_send(0);
        CU_ASSERT(!fake_method->arm(fake_state));
        CU_ASSERT_EQUAL(fake_accepted[0].frames, before + 1);
        CU_ASSERT(!state()->armed);
    }
}

/* Given a sleeping poller, when a message comes, then its exchange wakes it. */
static void test_message_after(void)
{
    for (int i = 0; i < 100; i++) {
        int link = i % LINKS, before = fake_accepted[link].frames;
        while (!fake_method->arm(fake_state))
            continue;
        CU_ASSERT(state()->armed);
        frame_send(link);
        fake_drive(10000); /* waits for descriptors alone */
        CU_ASSERT_EQUAL(fake_accepted[link].frames, before + 1);
        CU_ASSERT(!state()->armed);
    }
}

/* Given a sleeping poller, when one link rings and closes at once, then the other one's message
 * wakes the poller all the same. */
static void test_closed_link(void)
{
    int before = fake_accepted[0].frames;
    while (!fake_method->arm(fake_state))
        continue;
    frame_send(1);
    ib_link_of(fake_accepted[1].link)->watched = false; /* its ring is lost with its descriptor */
    bmi_method_watch_remove(NULL, &ib_link_of(fake_accepted[1].link)->watch);
    frame_send(0);
    fake_drive(10000);
    CU_ASSERT_EQUAL(fake_accepted[0].frames, before + 1);
    fake_method->close(fake_accepted[1].link, false);
    fake_method->close(dialled[1].link, false);
    CU_ASSERT(FAKE_UNTIL(dialled[1].downs == 1 && fake_accepted[1].downs == 1));
}

static void test_disconnect(void)
{
    fake_method->close(dialled[0].link, true);
    CU_ASSERT(FAKE_UNTIL(dialled[0].downs == 1 && fake_accepted[0].downs == 1));
}

int main(void)
{
    CU_TestInfo tests[] = {{"connected to ourselves", test_connect},
                           {"each link rings once a sleep", test_ring_once},
                           {"a message before the sleep", test_message_before},
                           {"a message after", test_message_after},
                           {"a link that closes", test_closed_link},
                           {"disconnected", test_disconnect},
                           CU_TEST_INFO_NULL};
    fake_method = &bmi__method_ofi_shm;
    void *trial;
    int error = fake_method->start(NULL, &trial);
    if (error == -ENOSYS) {
        puts("skipped: no libfabric");
        return 77;
    }
    if (error) {
        fprintf(stderr, "%s does not start: %s\n", fake_method->name, strerror(-error));
        return 1;
    }
    fake_method->stop(trial);
    fake_start();
    int status = unit_run("doorbell", tests);
    return fake_stop() || status ? 1 : 0;
}
