/* SPDX-License-Identifier: BSD-3-Clause
 *
 * watch_test.c - who waits over shm watches its bell: when it begins and ends to, and what it finds
 * however little the bell tells. One process with a link to itself, which drives pass by pass.
 */
#include <stdio.h>

#include "methods/ib/ib.h"
#include "methods/tcp/fake_core.h"
#include "tests/unit/unit.h"

extern const struct bmi_method bmi__method_ofi_shm;

/* Passes in which a watch begins where nothing comes, and in which a hint is followed. */
enum { BEGINS = IB_LOOKS_MOST + 2, FOLLOWED = IB_LOOK_DELAY_MOST + 1 + BEGINS };

static struct fake_owner dialled;
static struct fake_owner *accepted;
static struct ib_state *state;
static uint8_t into_dialled[64], into_accepted[64];

/* One pass over the queue, or the bell. */
static int pass(void)
{
    return fake_method->progress(fake_state);
}

static bool watch_begins(void)
{
    for (int i = 0; i < BEGINS && !state->watching; i++)
        CU_ASSERT_EQUAL(pass(), 0);
    return state->watching;
}

static void message_send(void)
{
    static struct bmi_frame frame;
    frame = (struct bmi_frame){0};
    fake_header_write(frame.header, 1, 0, 0);
    fake_method->send(dialled.link, &frame);
    fake_method->flush(dialled.link);
}

/* Passes until the message is there; -1: it is not within so many. */
static int passes_until_frame(int most)
{
    int before = accepted->frames;
    for (int i = 1; i <= most; i++) {
        pass();
        if (accepted->frames > before)
            return i;
    }
    return -1;
}

static void test_begins(void)
{
    CU_ASSERT_FATAL(watch_begins());
    for (int i = 0; i < 1000; i++)
        CU_ASSERT_EQUAL(pass(), 0);
    CU_ASSERT(state->watching);
    CU_ASSERT(ib_bell_untouched(state->bell));
}

/* Its sender takes our word back when it is there: no pass is lost. */
static void test_message(void)
{
    for (int i = 0; i < 100; i++) {
        CU_ASSERT_FATAL(watch_begins());
        message_send();
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
        ib_bell_announce(ib_link_of(dialled.link)->bell, hints[i]);
        for (int k = 0; k < FOLLOWED; k++) {
            CU_ASSERT_EQUAL(pass(), 0);
            looked += !state->watching;
        }
        CU_ASSERT(looked > 0 && looked <= IB_LOOKS_MOST + 1);
        CU_ASSERT(state->watching);
        message_send();
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
        ib_bell_announce(ib_link_of(dialled.link)->bell, 64);
        for (int k = 0; k < late[i]; k++)
            CU_ASSERT_EQUAL(pass(), 0);
        message_send();
        CU_ASSERT_EQUAL(passes_until_frame(1), 1);
    }
}

/* What no bell tells of is looked for in each pass. */
static void test_untold(void)
{
    CU_ASSERT_FATAL(watch_begins());
    atomic_fetch_add(&state->fabric->pieces, 1);
    for (int i = 0; i < 100; i++) {
        CU_ASSERT_EQUAL(pass(), 0);
        CU_ASSERT(!state->watching);
    }
    atomic_fetch_sub(&state->fabric->pieces, 1);
    CU_ASSERT(watch_begins());
}

/* A watch becomes a sleep, for which is rung, and that ends by a look. */
static void test_sleep(void)
{
    CU_ASSERT_FATAL(watch_begins());
    CU_ASSERT(fake_method->arm(fake_state));
    CU_ASSERT(state->armed && !state->watching);
    message_send();
    int before = accepted->frames;
    CU_ASSERT(FAKE_UNTIL(accepted->frames > before));
    CU_ASSERT(!state->armed);

    /* what is there already keeps from it */
    CU_ASSERT_FATAL(watch_begins());
    message_send();
    before = accepted->frames;
    CU_ASSERT(!fake_method->arm(fake_state));
    CU_ASSERT_EQUAL(accepted->frames, before + 1);
    CU_ASSERT(!state->armed && !state->watching);
}

static void connected_to_ourselves(void)
{
    char url[200];
    fake_listen(url, sizeof(url));
    fake_owner_init(&fake_accepted[0], into_accepted);
    CU_ASSERT_EQUAL_FATAL(fake_dial(url, &dialled, into_dialled), 0);
    CU_ASSERT_FATAL(FAKE_UNTIL(dialled.ups == 1 && fake_accepted_count == 1));
    accepted = &fake_accepted[0];
    message_send(); /* the provider's own acquaintance is made with the first */
    CU_ASSERT_FATAL(FAKE_UNTIL(accepted->frames == 1));
    state = fake_state;
    CU_ASSERT_PTR_NOT_NULL_FATAL(state->bell);
}

static void disconnected(void)
{
    fake_method->close(dialled.link, true);
    CU_ASSERT(FAKE_UNTIL(dialled.downs == 1 && accepted->downs == 1));
}

int main(void)
{
    CU_TestInfo tests[] = {{"connected to ourselves", connected_to_ourselves},
                           {"begins where nothing comes", test_begins},
                           {"a message ends it", test_message},
                           {"a false hint", test_false_hint},
                           {"a message later than its hint", test_late},
                           {"what no bell tells of", test_untold},
                           {"becomes a sleep", test_sleep},
                           {"disconnected", disconnected},
                           CU_TEST_INFO_NULL};
    fake_method = &bmi__method_ofi_shm;
    void *trial;
    int error = fake_method->start(&trial);
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
    int status = unit_run("watch", tests);
    return fake_stop() || status ? 1 : 0;
}
