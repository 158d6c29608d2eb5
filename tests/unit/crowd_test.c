/* SPDX-License-Identifier: BSD-3-Clause
 *
 * crowd_test.c - where threads sleep that have their messages in turn: nearly all on one CPU, or
 * spread; to whom the seat goes then; and a driver on another CPU, which hands it down to one of
 * them. Stands in for bmi__waiters_hand_over (the linker's --wrap). Needs two CPUs.
 */
#include <sched.h>

#include "bmi/progress.h"
#include "party.h"

enum { ALL = 64, ROUNDS = 100, TRIES = 5 };

static int home, other; /* CPUs */

static void go_to(int cpu)
{
    CU_ASSERT_TRUE_FATAL(cpu_bind(cpu));
}

static void open(void)
{
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_loop", "loop://crowd", BMI_INIT_SERVER), 0);
}

static void end(void)
{
    go_to(home);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

/* Goes to sleep so often on a CPU, for no time. */
static void sleep_at(int cpu, int times)
{
    struct waiter waiter = sleeper();
    go_to(cpu);
    for (int i = 0; i < times; i++)
        CU_ASSERT_FALSE(bmi__waiter_sleep(&waiter, bmi__monotonic_ns(), true));
}

static bool crowd_is_elsewhere(int from)
{
    go_to(from);
    return bmi__waiters_crowd_elsewhere();
}

static void most_make_a_crowd(void)
{
    struct waiter only = sleeper();
    open();
    sleep_at(home, ALL);
    CU_ASSERT_FALSE(crowd_is_elsewhere(other)); /* nobody sleeps now */
    go_to(home);
    bmi__waiter_enlist(&only, false);
    CU_ASSERT_TRUE(crowd_is_elsewhere(other));
    CU_ASSERT_FALSE(crowd_is_elsewhere(home));
    for (int i = 0; i < ALL; i++) { /* a ninth of them elsewhere */
        sleep_at(home, 8);
        sleep_at(other, 1);
    }
    CU_ASSERT_TRUE(crowd_is_elsewhere(other));
    for (int i = 0; i < ALL; i++) {
        sleep_at(home, 1);
        sleep_at(other, 1);
    }
    CU_ASSERT_FALSE(crowd_is_elsewhere(other));
    CU_ASSERT_FALSE(crowd_is_elsewhere(home));
    sleep_at(other, ALL);
    CU_ASSERT_TRUE(crowd_is_elsewhere(home));
    bmi__waiter_delist(&only);
    end();
    open(); /* who comes next begins anew */
    bmi__waiter_enlist(&only, false);
    CU_ASSERT_FALSE(crowd_is_elsewhere(home));
    bmi__waiter_delist(&only);
    end();
}

static void who_sleeps_with_the_crowd_is_next(void)
{
    struct waiter stray = sleeper(), one = sleeper(), driver = sleeper();
    open();
    go_to(other);
    bmi__waiter_enlist(&stray, false);
    CU_ASSERT_TRUE(bmi__waiters_next_is_near()); /* there is no crowd: it is on this CPU */
    go_to(home);
    CU_ASSERT_FALSE(bmi__waiters_next_is_near());
    bmi__waiter_enlist(&one, false);
    sleep_at(home, ALL);
    go_to(other);
    CU_ASSERT_FALSE(bmi__waiters_next_is_near());
    CU_ASSERT_FALSE(bmi__waiters_hand_over(&driver));
    bmi__waiter_delist(&stray);
    CU_ASSERT_TRUE(bmi__waiters_next_is_near()); /* not here, but where most are */
    CU_ASSERT_TRUE(bmi__waiters_hand_over(&driver));
    CU_ASSERT_EQUAL(atomic_load(&one.signalled), 1);
    bmi__waiter_delist(&one);
    bmi__waiter_delist(&driver);
    end();
}

/* ---- a driver elsewhere ---------------------------------------------------------------------- */

/* By the stray one, which has come once, before anybody could promise: as a driver. */
static atomic_uint handed_down;

bool __real_bmi__waiters_hand_over(struct waiter *waiter);
bool __wrap_bmi__waiters_hand_over(struct waiter *waiter);

bool __wrap_bmi__waiters_hand_over(struct waiter *waiter)
{
    bool stray = waiter->argument != NULL && sched_getcpu() == other;
    bool handed = __real_bmi__waiters_hand_over(waiter);
    if (stray && handed)
        atomic_fetch_add(&handed_down, 1);
    return handed;
}

static bool one_drives(void)
{
    return bmi__progress_driver_sleeps() && bmi__waiters_asleep() == 0;
}

static bool one_drives_two_sleep(void)
{
    return bmi__progress_driver_sleeps() && bmi__waiters_asleep() == 2;
}

static bool two_sleep(void)
{
    return bmi__waiters_asleep() == 2;
}

/* It may leave the seat for another reason before, or begin its turn with the call, and stay. */
static bool one_round(unsigned round)
{
    struct party stray, parties[2];
    open();
    sleep_at(home, ALL);
    atomic_store(&handed_down, 0);
    party_start(&stray, other, true);
    CU_ASSERT_TRUE_FATAL(becomes(one_drives));
    party_start(&parties[0], home, true);
    party_start(&parties[1], home, true);
    CU_ASSERT_TRUE_FATAL(becomes(two_sleep));
    for (unsigned i = 0; i < TRIES && atomic_load(&handed_down) == 0; i++) {
        party_call(&parties[(round + i) % 2]);
        CU_ASSERT_TRUE_FATAL(becomes(one_drives_two_sleep));
    }
    bool handed = atomic_load(&handed_down) > 0;
    party_call(&stray);
    party_call(&parties[0]);
    party_call(&parties[1]);
    party_call(&stray);
    party_end(&parties[round / 2 % 2]);
    party_end(&stray);
    party_end(&parties[1 - round / 2 % 2]);
    end();
    return handed;
}

static void a_driver_elsewhere_hands_down(void)
{
    unsigned handed = 0;
    for (unsigned round = 0; round < ROUNDS; round++)
        handed += one_round(round);
    CU_ASSERT_TRUE(handed > ROUNDS / 2);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"most make a crowd", most_make_a_crowd},
        {"who sleeps with the crowd is next", who_sleeps_with_the_crowd_is_next},
        {"a driver elsewhere hands the seat down", a_driver_elsewhere_hands_down},
        CU_TEST_INFO_NULL,
    };
    if (!cpus_find(&home, &other)) {
        printf("skipped: one CPU\n");
        return 77;
    }
    return unit_run("crowd", tests);
}
