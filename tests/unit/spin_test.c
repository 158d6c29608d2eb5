/* SPDX-License-Identifier: BSD-3-Clause
 *
 * spin_test.c - which waits spin. The time does not pass, so the machine's load is never read.
 */
#include "bmi/base/instance.h"
#include "bmi/progress/spin.h"

#include "bmi/base/settings.h"
#include "unit.h"

enum { WINDOW_US = 50, WINDOW_NS = WINDOW_US * 1000, MOST = 63 };

static void begin(void)
{
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "spin_us=50"), 0);
    bmi__spin_close(&bmi__default);
    CU_ASSERT_EQUAL_FATAL(bmi__spin_open(&bmi__default), 0);
}

/* Returns how many waits go without a spin now. */
static unsigned skipped(void)
{
    unsigned waits = 0;
    while (bmi__spin_window(&bmi__default, 0) == 0 && waits < 1000)
        waits++;
    return waits;
}

static void failures_double_the_waits_without(void)
{
    begin();
    CU_ASSERT_EQUAL(bmi__spin_window(&bmi__default, 0), WINDOW_NS);
    for (unsigned expected = 1; expected < MOST; expected = expected * 2 + 1) {
        bmi__spin_failed(&bmi__default);
        CU_ASSERT_EQUAL(skipped(), expected);
    }
    for (int i = 0; i < 3; i++) {
        bmi__spin_failed(&bmi__default);
        CU_ASSERT_EQUAL(skipped(), MOST);
    }
}

static void success_restores(void)
{
    begin();
    for (int i = 0; i < 10; i++)
        bmi__spin_failed(&bmi__default);
    bmi__spin_paid(&bmi__default);
    CU_ASSERT_EQUAL(skipped(), 0);
    bmi__spin_failed(&bmi__default);
    CU_ASSERT_EQUAL(skipped(), 1);
}

static void a_short_sleep_restores(void)
{
    begin();
    for (int i = 0; i < 10; i++)
        bmi__spin_failed(&bmi__default);
    bmi__spin_slept(&bmi__default, WINDOW_NS);
    CU_ASSERT_EQUAL(bmi__spin_window(&bmi__default, 0), 0);
    bmi__spin_slept(&bmi__default, WINDOW_NS - 1);
    CU_ASSERT_EQUAL(skipped(), 0);
}

static void none_at_all(void)
{
    begin();
    CU_ASSERT_EQUAL(bmi__settings_set(&bmi__default, "spin_us=0"), 0);
    bmi__spin_slept(&bmi__default, 0);
    CU_ASSERT_EQUAL(skipped(), 1000);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"failures double the waits without", failures_double_the_waits_without},
        {"success restores", success_restores},
        {"a short sleep restores", a_short_sleep_restores},
        {"none at all", none_at_all},
        CU_TEST_INFO_NULL,
    };
    return unit_run("spin", tests);
}
