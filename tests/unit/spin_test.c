/* SPDX-License-Identifier: BSD-3-Clause
 *
 * spin_test.c - what waits learn from how they ended: by times given, not by the clock.
 */
#include <stdint.h>

#include "bmi/settings.h"
#include "bmi/spin.h"
#include "unit.h"

enum { MOST = 50000, BRIEF = MOST + MOST / 2, LONG = 1000000 };

static void set_up(void)
{
    bmi__setting_put(SETTING_SPIN, MOST / 1000);
    bmi__spin_reset();
}

static void tear_down(void)
{
}

/* A spin fails, and so long a sleep follows. Returns how many waits go without spinning then. */
static unsigned fail_and_sleep(uint64_t slept_ns)
{
    unsigned without = 0;
    while (!bmi__spin_worth_it(0)) {
        bmi__spin_learn(slept_ns);
        without++;
    }
    bmi__spin_failed();
    bmi__spin_learn(slept_ns);
    return without;
}

static void where_it_fails_it_is_left_out(void)
{
    const unsigned left_out[] = {0, 1, 3, 7, 15, 31, 63, 127, 255, 255};
    for (int i = 0; i < 10; i++)
        CU_ASSERT_EQUAL(fail_and_sleep(LONG), left_out[i]);
    CU_ASSERT_FALSE(bmi__spin.in_the_way);
    CU_ASSERT_EQUAL(bmi__spin_most(), MOST);
}

static void a_short_sleep_brings_it_back(void)
{
    for (int i = 0; i < 5; i++)
        fail_and_sleep(LONG);
    CU_ASSERT_FALSE(bmi__spin_worth_it(0));
    bmi__spin_learn(BRIEF);
    CU_ASSERT_TRUE(bmi__spin_worth_it(0));
}

static void what_came_just_after_may_need_the_core(void)
{
    fail_and_sleep(BRIEF);
    CU_ASSERT_TRUE(bmi__spin.in_the_way);
    CU_ASSERT_TRUE(bmi__spin_worth_it(0)); /* the next one tries it */
    bmi__spin_failed();
    bmi__spin_learn(LONG);
    CU_ASSERT_FALSE(bmi__spin.in_the_way);
}

static void a_question_stands_until_it_is_answered(void)
{
    fail_and_sleep(BRIEF);
    CU_ASSERT_EQUAL(bmi__spin.yields, 0);
    CU_ASSERT_TRUE(bmi__spin_worth_it(0));
    for (unsigned i = 1; i <= 5; i++) /* too few for an answer */
        bmi__spin_yield();
    bmi__spin_failed();
    bmi__spin_learn(BRIEF);
    CU_ASSERT_TRUE(bmi__spin.in_the_way);
    CU_ASSERT_EQUAL(bmi__spin.yields, 5);
}

static void what_comes_a_little_late_is_waited_for(void)
{
    fail_and_sleep(BRIEF);
    CU_ASSERT_EQUAL(bmi__spin_most(), MOST);
    for (unsigned times = 2; times <= 4; times += 2) {
        CU_ASSERT_TRUE(bmi__spin_worth_it(0));
        bmi__spin.in_the_way = false; /* it has yielded, and nobody took the core */
        bmi__spin.alone = true;
        bmi__spin_failed();
        bmi__spin_learn(BRIEF);
        CU_ASSERT_EQUAL(bmi__spin_most(), times * MOST);
        CU_ASSERT_FALSE(bmi__spin.in_the_way);
    }
    fail_and_sleep(LONG);
    CU_ASSERT_EQUAL(bmi__spin_most(), MOST);
}

static void who_has_lost_the_core_does_not_spin(void)
{
    uint64_t now = 1000000000;
    CU_ASSERT_FALSE(bmi__spin_interrupted(now - 1000, now)); /* short */
    bmi__spin.paused_until_ns = now + 1000;
    CU_ASSERT_FALSE(bmi__spin_worth_it(now));
    CU_ASSERT_TRUE(bmi__spin_worth_it(now + 1000));
}

static void by_the_setting_it_is_off(void)
{
    bmi__setting_put(SETTING_SPIN, 0);
    CU_ASSERT_FALSE(bmi__spin_worth_it(0));
    CU_ASSERT_EQUAL(bmi__spin_most(), 0);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"where it fails it is left out more and more often", where_it_fails_it_is_left_out},
        {"a short sleep brings it back", a_short_sleep_brings_it_back},
        {"what comes just after may need the core", what_came_just_after_may_need_the_core},
        {"a question stands until it is answered", a_question_stands_until_it_is_answered},
        {"what comes a little late is waited for", what_comes_a_little_late_is_waited_for},
        {"who has lost the core does not spin", who_has_lost_the_core_does_not_spin},
        {"by the setting it is off", by_the_setting_it_is_off},
        CU_TEST_INFO_NULL,
    };
    CU_SuiteInfo suites[] = {
        {.pName = "spin", .pSetUpFunc = set_up, .pTearDownFunc = tear_down, .pTests = tests},
        CU_SUITE_INFO_NULL};
    return unit_run_suites(suites);
}
