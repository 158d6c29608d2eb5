/* SPDX-License-Identifier: BSD-3-Clause
 *
 * promise_test.c - drivers that leave the seat and promise to be back: when they may, what is
 * learnt of it, to whom the seat goes when they come, and what becomes of it when they do not. All
 * on one CPU, as promises are made to threads of the same one only.
 */
#include <sched.h>
#include <unistd.h>

#include "bmi/progress.h"
#include "bmi/promise.h"
#include "party.h"

enum { TRIES = 1000 };
enum { LATE_NS = 10000000, OFTEN = 2000 };

static void open(void)
{
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_loop", "loop://promise", BMI_INIT_SERVER), 0);
}

static void end(void)
{
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

/* ---- sleepers that are none ------------------------------------------------------------------ */

static void promises_need_a_guard_here(void)
{
    open();
    struct waiter only = sleeper();
    CU_ASSERT_EQUAL(bmi__promise_make(), 0); /* nobody sleeps */
    bmi__waiter_enlist(&only, false);
    CU_ASSERT_EQUAL(bmi__promise_make(), 0);
    bmi__waiter_guard(&only);
    CU_ASSERT_TRUE(bmi__waiter_guards(&only));
    CU_ASSERT_NOT_EQUAL(bmi__promise_make(), 0);
    atomic_store(&only.cpu, sched_getcpu() + 1); /* it went to sleep elsewhere */
    CU_ASSERT_EQUAL(bmi__promise_make(), 0);
    atomic_store(&only.cpu, sched_getcpu());
    atomic_store(&only.signalled, 1); /* it is awake */
    CU_ASSERT_EQUAL(bmi__promise_make(), 0);
    bmi__waiter_delist(&only);
    CU_ASSERT_FALSE(bmi__waiters_guarded());
    end();
}

static void the_background_changes_nothing(void)
{
    int on = 1, off = 0;
    struct waiter only = sleeper();
    open();
    CU_ASSERT_EQUAL_FATAL(BMI_set_info(0, BMI_BACKGROUND, &on), 0);
    bmi__waiter_enlist(&only, false);
    CU_ASSERT_EQUAL(bmi__promise_make(), 0);
    bmi__waiter_guard(&only);
    uint64_t made = 0;
    for (int i = 0; i < OFTEN && made == 0; i++) {
        atomic_store(&only.signalled, 0); /* it may have been offered the seat, and sleeps again */
        made = bmi__promise_make();
    }
    CU_ASSERT_NOT_EQUAL(made, 0);
    bmi__waiter_delist(&only);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_BACKGROUND, &off), 0);
    end();
}

/* A promise that is kept at once, or late. Returns false if none is made. */
static bool promise(uint64_t took_ns)
{
    uint64_t made = bmi__promise_make();
    if (made == 0)
        return false;
    bmi__promise_set(made);
    CU_ASSERT_EQUAL(bmi__promise_standing(), made);
    CU_ASSERT_EQUAL(bmi__promise_young(made + took_ns), took_ns == 0);
    bmi__promise_end(made + took_ns);
    CU_ASSERT_EQUAL(bmi__promise_standing(), 0);
    return true;
}

static unsigned refused(void)
{
    unsigned count = 0;
    while (!promise(LATE_NS) && count < OFTEN)
        count++;
    return count;
}

static void late_ones_become_rare(void)
{
    struct waiter only = sleeper();
    unsigned borne = 0;
    open();
    bmi__waiter_enlist(&only, false);
    bmi__waiter_guard(&only);
    while (promise(LATE_NS) && borne < OFTEN)
        borne++;
    CU_ASSERT_TRUE(borne > 1 && borne < 10);
    unsigned before = refused() + 1; /* the last of those that were borne was refused, too */
    for (int i = 0; i < 6; i++) {
        unsigned now = refused();
        CU_ASSERT_TRUE(now >= 2 * before && now < OFTEN);
        before = now;
    }
    for (int i = 0; i < OFTEN; i++)
        promise(0);
    CU_ASSERT_TRUE(promise(LATE_NS));
    CU_ASSERT_TRUE(promise(LATE_NS)); /* one is borne again */
    bmi__waiter_delist(&only);
    end();
}

/* Messages that come while one thread drives for all count as much as drivers that leave. */
static void they_come_back_by_messages(void)
{
    struct waiter only = sleeper();
    open();
    bmi__waiter_enlist(&only, false);
    bmi__waiter_guard(&only);
    while (promise(LATE_NS))
        continue;
    unsigned last = refused();
    for (int i = 0; i < 3; i++)
        last = refused(); /* each at least twice the one before */
    CU_ASSERT_TRUE_FATAL(last > 0);
    for (unsigned i = 0; i < 4 * last; i++)
        bmi__promise_missed();
    CU_ASSERT_TRUE(promise(0));
    bmi__waiter_delist(&only);
    end();
}

static void threads_elsewhere_make_them_rare(void)
{
    struct waiter only = sleeper();
    unsigned count = 0;
    open();
    bmi__waiter_enlist(&only, false);
    bmi__waiter_guard(&only);
    for (int i = 0; i < OFTEN; i++) {
        atomic_store(&only.cpu, sched_getcpu() + 1);
        CU_ASSERT_EQUAL(bmi__promise_make(), 0);
        atomic_store(&only.cpu, sched_getcpu());
        count += promise(0);
    }
    CU_ASSERT_TRUE(count > 1 && count < 20);
    bmi__waiter_delist(&only);
    end();
}

static void one_poll_is_excused(void)
{
    struct waiter only = sleeper();
    open();
    bmi__waiter_enlist(&only, false);
    bmi__waiter_guard(&only);
    uint64_t made = bmi__promise_make();
    bmi__promise_set(made);
    uint32_t pass = bmi__progress_pass();
    bmi__progress_poll();
    CU_ASSERT_EQUAL(bmi__progress_pass(), pass);
    CU_ASSERT_TRUE(bmi__promise_young(made)); /* it stands */
    bmi__progress_poll();
    CU_ASSERT_NOT_EQUAL(bmi__progress_pass(), pass);
    CU_ASSERT_EQUAL(bmi__promise_standing(), 0);
    CU_ASSERT_EQUAL(atomic_load(&only.signalled), 1); /* offered */
    bmi__waiter_delist(&only);
    end();
}

static void the_longest_sleeper_is_next(void)
{
    struct waiter waiters[4] = {sleeper(), sleeper(), sleeper(), sleeper()};
    open();
    CU_ASSERT_FALSE(bmi__waiters_hand_over(&waiters[2])); /* to nobody: it is not enlisted */
    CU_ASSERT_EQUAL(bmi__waiters_asleep(), 0);
    bmi__waiter_enlist(&waiters[0], false);
    bmi__waiter_enlist(&waiters[1], false);
    bmi__waiter_guard(&waiters[0]);
    CU_ASSERT_TRUE(bmi__waiters_hand_over(&waiters[2]));
    CU_ASSERT_EQUAL(atomic_load(&waiters[0].signalled), 1);
    CU_ASSERT_FALSE(atomic_load(&waiters[0].offered));
    CU_ASSERT_EQUAL(atomic_load(&waiters[1].signalled), 0);
    CU_ASSERT_TRUE(bmi__waiter_guards(&waiters[2])); /* who is woken does no longer */
    CU_ASSERT_TRUE(bmi__waiters_hand_over(&waiters[3]));
    CU_ASSERT_EQUAL(atomic_load(&waiters[1].signalled), 1);
    CU_ASSERT_EQUAL(atomic_load(&waiters[2].signalled), 0);
    CU_ASSERT_TRUE(bmi__waiter_guards(&waiters[2]));
    CU_ASSERT_TRUE(bmi__waiters_wake_one());
    CU_ASSERT_TRUE(atomic_load(&waiters[3].offered)); /* the last */
    for (int i = 0; i < 4; i++)
        bmi__waiter_delist(&waiters[i]);
    end();
}

/* ---- threads --------------------------------------------------------------------------------- */

static bool one_sleeps(void)
{
    return bmi__waiters_asleep() == 1;
}

static bool nobody_guards(void)
{
    return !bmi__waiters_guarded();
}

/* Of two parties that wait one has just driven, and answered. Returns whether it guards now, while
 * the other drives. */
static bool one_guards(struct party *driver)
{
    party_call(driver);
    return becomes(one_sleeps) && becomes(bmi__progress_driver_sleeps) && bmi__waiters_guarded();
}

/* A driver leaves with a promise, and ends: the guard drives. */
static void who_does_not_come_back(void)
{
    struct party staying, leaving;
    bool promised = false;
    open();
    for (int i = 0; i < TRIES && !promised; i++) {
        party_start(&staying, -1, false);
        CU_ASSERT_TRUE_FATAL(becomes(bmi__progress_driver_sleeps));
        party_start(&leaving, -1, false);
        CU_ASSERT_TRUE_FATAL(becomes(one_sleeps));
        unsigned promises = one_guards(&staying) ? bmi__promises() : bmi__promises() - 1;
        party_end(&leaving);
        promised = bmi__promises() == promises + 1;
        CU_ASSERT_TRUE_FATAL(becomes(bmi__progress_driver_sleeps));
        CU_ASSERT_EQUAL(bmi__waiters_asleep(), 0); /* `staying` does */
        party_end(&staying);
    }
    CU_ASSERT_TRUE(promised);
    end();
}

/* Nobody makes promises: nobody looks at the seat for long. */
static void guards_go_to_sleep(void)
{
    struct party parties[2];
    bool guarded = false;
    open();
    party_start(&parties[0], -1, false);
    CU_ASSERT_TRUE_FATAL(becomes(bmi__progress_driver_sleeps));
    party_start(&parties[1], -1, false);
    CU_ASSERT_TRUE_FATAL(becomes(one_sleeps));
    for (int i = 0; i < TRIES && !guarded; i++)
        guarded = one_guards(&parties[i % 2]);
    CU_ASSERT_TRUE(guarded);
    CU_ASSERT_TRUE(becomes(nobody_guards));
    CU_ASSERT_TRUE(bmi__progress_driver_sleeps() && one_sleeps());
    party_end(&parties[0]);
    party_end(&parties[1]);
    end();
}

/* ---- who comes while one guards -------------------------------------------------------------- */

static atomic_bool enough;

/* Again and again makes a promise, and keeps it. */
static void *promise_on(void *argument)
{
    while (!atomic_load(&enough)) {
        uint64_t made = bmi__promise_make();
        bmi__promise_set(made);
        bmi__promise_end(made);
        usleep(300);
    }
    return argument;
}

/* None stands as it looks: it does not take the seat. */
static void guards_leave_it_to_who_comes(void)
{
    struct waiter only = sleeper();
    pthread_t thread;
    bool left = false;
    open();
    bmi__waiter_enlist(&only, false);
    atomic_store(&enough, false);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, promise_on, NULL), 0);
    for (int i = 0; i < TRIES / 10 && !left; i++) {
        bmi__waiter_guard(&only);
        left = !bmi__promise_sleep(&only, false, bmi__monotonic_ns() + 3 * (uint64_t)LATE_NS);
    }
    CU_ASSERT_TRUE(left);
    CU_ASSERT_TRUE(bmi__waiter_guards(&only));
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    bmi__waiter_delist(&only);
    end();
}

static void guards_take_it_from_who_does_not(void)
{
    struct waiter only = sleeper();
    open();
    bmi__waiter_enlist(&only, false);
    bmi__waiter_guard(&only);
    uint64_t made = bmi__promise_make(), start = bmi__monotonic_ns();
    CU_ASSERT_NOT_EQUAL_FATAL(made, 0);
    bmi__promise_set(made);
    CU_ASSERT_TRUE(bmi__promise_sleep(&only, false, start + PATIENCE_S * (uint64_t)1000000000));
    CU_ASSERT_TRUE(bmi__monotonic_ns() < start + PATIENCE_S * (uint64_t)500000000);
    CU_ASSERT_EQUAL(bmi__promise_standing(), 0);
    bmi__waiter_delist(&only);
    end();
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"promises need a guard, here", promises_need_a_guard_here},
        {"the background changes nothing", the_background_changes_nothing},
        {"late ones become rare", late_ones_become_rare},
        {"they come back by messages", they_come_back_by_messages},
        {"threads elsewhere make them rare", threads_elsewhere_make_them_rare},
        {"one poll is excused", one_poll_is_excused},
        {"the longest sleeper is next", the_longest_sleeper_is_next},
        {"who does not come back", who_does_not_come_back},
        {"guards go to sleep", guards_go_to_sleep},
        {"guards leave it to who comes", guards_leave_it_to_who_comes},
        {"guards take it from who does not", guards_take_it_from_who_does_not},
        CU_TEST_INFO_NULL,
    };
    if (!cpu_bind(sched_getcpu()))
        return 1;
    return unit_run("promise", tests);
}
