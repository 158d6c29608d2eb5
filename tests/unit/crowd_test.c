/* SPDX-License-Identifier: BSD-3-Clause
 *
 * crowd_test.c - where threads sleep that have their messages in turn: nearly all on one CPU, or
 * spread; to whom the seat goes then; and a driver on another CPU, which hands it down to one of
 * them. Stands in for bmi__waiters_hand_over (the linker's --wrap). Needs two CPUs.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "bmi/context.h"
#include "bmi/method.h"
#include "bmi/progress.h"
#include "bmi/promise.h"
#include "bmi/waiters.h"
#include "unit.h"

enum { PATIENCE_S = 60, ALL = 64, ROUNDS = 100, TRIES = 5 };

static int home, other; /* CPUs */

static void go_to(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    CU_ASSERT_EQUAL_FATAL(sched_setaffinity(0, sizeof one, &one), 0);
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

static bool never(struct waiter *waiter)
{
    (void)waiter;
    return false;
}

static struct waiter sleeper(void)
{
    return (struct waiter){.ready = never};
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

/* Waits on its CPU until it is called, again and again. */
struct party {
    pthread_t thread;
    int cpu;
    bmi_context_id context;
    atomic_uint calls, answers;
    atomic_bool last; /* it ends with the next answer */
    struct bmi_deferred call;
};

static atomic_uint handed_down; /* by a driver, not by who has come under a promise */

bool __real_bmi__waiters_hand_over(struct waiter *waiter);
bool __wrap_bmi__waiters_hand_over(struct waiter *waiter);

bool __wrap_bmi__waiters_hand_over(struct waiter *waiter)
{
    bool driven = waiter->argument != NULL && sched_getcpu() == other;
    bool handed = __real_bmi__waiters_hand_over(waiter);
    if (driven && handed)
        atomic_fetch_add(&handed_down, 1);
    return handed;
}

static bool is_called(struct waiter *waiter)
{
    struct party *party = waiter->argument;
    return atomic_load(&party->calls) != atomic_load(&party->answers);
}

static void *answer(void *argument)
{
    struct party *party = argument;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)party->cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    do {
        struct waiter waiter = {.ready = is_called,
                                .argument = party,
                                .context = bmi__context_find(party->context),
                                .op = WAITER_SOME};
        bmi__progress_wait(&waiter, 10 * PATIENCE_S * 1000);
        atomic_fetch_add(&party->answers, 1);
    } while (!atomic_load(&party->last));
    return NULL;
}

/* By the driver, as if its message had come. */
static void call_now(struct bmi_deferred *deferred)
{
    struct party *party = (struct party *)((char *)deferred - offsetof(struct party, call));
    atomic_fetch_add(&party->calls, 1);
    bmi__progress_notify(bmi__context_find(party->context), 0);
}

static bool becomes(bool (*what)(void))
{
    time_t until = time(NULL) + PATIENCE_S;
    while (!what() && time(NULL) < until)
        sched_yield();
    return what();
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

static void party_start(struct party *party, int cpu)
{
    *party = (struct party){.cpu = cpu, .call.run = call_now};
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&party->context), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&party->thread, NULL, answer, party), 0);
}

static void party_call(struct party *party)
{
    unsigned answers = atomic_load(&party->answers);
    bmi_method_defer(&party->call);
    time_t until = time(NULL) + PATIENCE_S;
    while (atomic_load(&party->answers) == answers && time(NULL) < until)
        sched_yield();
    CU_ASSERT_EQUAL_FATAL(atomic_load(&party->answers), answers + 1);
}

static void party_end(struct party *party)
{
    atomic_store(&party->last, true);
    party_call(party);
    pthread_join(party->thread, NULL);
    BMI_close_context(party->context);
}

/* It may leave the seat for another reason before, or begin its turn with the call, and stay. */
static bool one_round(unsigned round)
{
    struct party stray, parties[2];
    open();
    sleep_at(home, ALL);
    atomic_store(&handed_down, 0);
    party_start(&stray, other);
    CU_ASSERT_TRUE_FATAL(becomes(one_drives));
    party_start(&parties[0], home);
    party_start(&parties[1], home);
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
    cpu_set_t all;
    home = other = -1;
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return 1;
    for (int cpu = 0; cpu < CPU_SETSIZE && other < 0; cpu++) {
        if (CPU_ISSET((size_t)cpu, &all)) {
            other = home < 0 ? -1 : cpu;
            home = home < 0 ? cpu : home;
        }
    }
    if (other < 0) {
        printf("skipped: one CPU\n");
        return 77;
    }
    return unit_run("crowd", tests);
}
