/* SPDX-License-Identifier: BSD-3-Clause
 *
 * watch_test.c - who waits over shm watches its bell: when it begins and ends to, and what it finds
 * however little the bell tells.
 */
#include "methods/ib/ourselves.h"

/* Passes in which a watch begins where nothing comes, and in which a hint is followed. */
enum { BEGINS = IB_LOOKS_MOST + 2, FOLLOWED = IB_LOOK_DELAY_MOST + 1 + BEGINS };

/* One pass over the queue, or the bell. */
static int pass(void)
{
    return fake_method->progress(fake_state);
}

static bool watch_begins(void)
{
    for (int i = 0; i < BEGINS && !ourselves.state->watching; i++)
        CU_ASSERT_EQUAL(pass(), 0);
    return ourselves.state->watching;
}

/* Passes until the message is there; -1: it is not within so many. */
static int passes_until_frame(int most)
{
    int before = ourselves.accepted->frames;
    for (int i = 1; i <= most; i++) {
        pass();
        if (ourselves.accepted->frames > before)
            return i;
    }
    return -1;
}

static void test_begins(void)
{
    CU_ASSERT_FATAL(watch_begins());
    for (int i = 0; i < 1000; i++)
        CU_ASSERT_EQUAL(pass(), 0);
    CU_ASSERT(ourselves.state->watching);
    CU_ASSERT(ib_bell_untouched(ourselves.state->bell));
}

/* Its sender takes our word back when it is there: no pass is lost. */
static void test_message(void)
{
    for (int i = 0; i < 100; i++) {
        CU_ASSERT_FATAL(watch_begins());
        ourselves_send();
        CU_ASSERT_EQUAL(passes_until_frame(1), 1);
    }
}

/* Who has said that it sends, and does not, has us look for a while only; what comes then is found
 * all the same. */
static void test_false_hint(void)
{
    static const uint32_t hints[] = {1, 64, 4096, UINT32_MAX};
    for (size_t i = 0; i < COUNT_OF(hints); i++) {
        int looked = 0;
        CU_ASSERT_FATAL(watch_begins());
        ib_bell_announce(ib_link_of(ourselves.dialled.link)->bell, hints[i]);
        for (int k = 0; k < FOLLOWED; k++) {
            CU_ASSERT_EQUAL(pass(), 0);
            looked += !ourselves.state->watching;
        }
        CU_ASSERT(looked > 0 && looked <= IB_LOOKS_MOST + 1);
        CU_ASSERT(ourselves.state->watching);
        ourselves_send();
        CU_ASSERT_EQUAL(passes_until_frame(1), 1);
    }
}

/* The hint comes first, the message is late: it is there before the passes for it are over, or
 * long after. */
static void test_late(void)
{
    static const int late[] = {1, 2, IB_LOOKS_MOST, 100};
    for (size_t i = 0; i < COUNT_OF(late); i++) {
        CU_ASSERT_FATAL(watch_begins());
        ib_bell_announce(ib_link_of(ourselves.dialled.link)->bell, 64);
        for (int k = 0; k < late[i]; k++)
            CU_ASSERT_EQUAL(pass(), 0);
        ourselves_send();
        CU_ASSERT_EQUAL(passes_until_frame(1), 1);
    }
}

/* What no bell tells of is looked for in each pass. */
static void test_untold(void)
{
    CU_ASSERT_FATAL(watch_begins());
    atomic_fetch_add(&ourselves.state->fabric->pieces, 1);
    for (int i = 0; i < 100; i++) {
        CU_ASSERT_EQUAL(pass(), 0);
        CU_ASSERT(!ourselves.state->watching);
    }
    atomic_fetch_sub(&ourselves.state->fabric->pieces, 1);
    CU_ASSERT(watch_begins());
}

/* A watch becomes a sleep, for which is rung, and that ends by a look. */
static void test_sleep(void)
{
    CU_ASSERT_FATAL(watch_begins());
    CU_ASSERT(fake_method->arm(fake_state));
    CU_ASSERT(ourselves.state->armed && !ourselves.state->watching);
    ourselves_send();
    int before = ourselves.accepted->frames;
    CU_ASSERT(FAKE_UNTIL(ourselves.accepted->frames > before));
    CU_ASSERT(!ourselves.state->armed);

    /* what is there already keeps from it */
    CU_ASSERT_FATAL(watch_begins());
    ourselves_send();
    before = ourselves.accepted->frames;
    CU_ASSERT(!fake_method->arm(fake_state));
    CU_ASSERT_EQUAL(ourselves.accepted->frames, before + 1);
    CU_ASSERT(!ourselves.state->armed && !ourselves.state->watching);
}

int main(void)
{
    CU_TestInfo tests[] = {{"connected to ourselves", ourselves_connect},
                           {"begins where nothing comes", test_begins},
                           {"a message ends it", test_message},
                           {"a false hint", test_false_hint},
                           {"a message later than its hint", test_late},
                           {"what no bell tells of", test_untold},
                           {"becomes a sleep", test_sleep},
                           {"disconnected", ourselves_disconnect},
                           CU_TEST_INFO_NULL};
    return ourselves_run("watch", tests);
}
