/* SPDX-License-Identifier: BSD-3-Clause
 *
 * foretell_test.c - programs that compute are known for it soon, those that do not are left alone.
 */
#include <string.h>

#include "bmi/foretell.h"
#include "unit.h"

static struct foretell foretell;
static bool told;
static unsigned missed, false_alarms;

static void set_up(void)
{
    memset(&foretell, 0, sizeof foretell);
    told = false;
    missed = false_alarms = 0;
}

static void tear_down(void)
{
}

static void time_away(bool is_long)
{
    missed += is_long && !told;
    false_alarms += !is_long && told;
    told = bmi__foretell(&foretell, is_long);
}

static void counts_begin(void)
{
    missed = false_alarms = 0;
}

static void who_never_computes_is_left_alone(void)
{
    for (int i = 0; i < 1000; i++)
        time_away(false);
    CU_ASSERT_EQUAL(false_alarms, 0);
}

static void an_exception_is_forgotten(void)
{
    for (int i = 0; i < 1000; i++)
        time_away(i % 100 == 50);
    CU_ASSERT_EQUAL(false_alarms, 0);
}

static void every_third_time(void)
{
    for (int i = 0; i < 12; i++)
        time_away(i % 3 == 2);
    counts_begin();
    for (int i = 12; i < 300; i++)
        time_away(i % 3 == 2);
    CU_ASSERT_EQUAL(missed, 0);
    CU_ASSERT_EQUAL(false_alarms, 0);
}

/* A round: computes, then one call, or two; which of both is not known before. */
static void round_of_one_or_two(unsigned *seed)
{
    *seed = *seed * 1103515245u + 12345u;
    time_away(true);
    time_away(false);
    if (*seed >> 16 & 1)
        time_away(false);
}

static void rounds_that_differ(void)
{
    unsigned seed = 1;
    for (int i = 0; i < 3; i++)
        round_of_one_or_two(&seed);
    counts_begin();
    for (int i = 0; i < 20; i++)
        round_of_one_or_two(&seed);
    CU_ASSERT_TRUE(missed <= 8); /* after two calls, or one, and both are as likely */
}

static void who_ceases_to_compute(void)
{
    for (int i = 0; i < 100; i++)
        time_away(i % 2 == 0);
    counts_begin();
    for (int i = 0; i < 100; i++)
        time_away(false);
    CU_ASSERT_TRUE(false_alarms <= 6);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"who never computes is left alone", who_never_computes_is_left_alone},
        {"an exception is forgotten", an_exception_is_forgotten},
        {"every third time", every_third_time},
        {"rounds that differ", rounds_that_differ},
        {"who ceases to compute", who_ceases_to_compute},
        CU_TEST_INFO_NULL,
    };
    CU_SuiteInfo suites[] = {
        {.pName = "foretell", .pSetUpFunc = set_up, .pTearDownFunc = tear_down, .pTests = tests},
        CU_SUITE_INFO_NULL};
    return unit_run_suites(suites);
}
