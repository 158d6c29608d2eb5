/* SPDX-License-Identifier: BSD-3-Clause
 *
 * timers_test.c - timers run in the order in which they are due, whatever the order of their
 * setting, and not before; a cleared one never runs, a moved one runs once.
 */
#include "bmi/api/api.h"
#include "bmi/base/instance.h"
#include "bmi/progress/timers.h"

#include "bmi/method.h"
#include "unit.h"

enum { TIMERS = 200, LATEST_MS = 20 };

struct one {
    struct bmi_timer timer; /* first */
    unsigned ran;
    uint64_t due_ns;
};

static struct one all[TIMERS];
static uint64_t last_due_ns;

static void expired(struct bmi_timer *timer)
{
    struct one *one = (struct one *)timer;
    one->ran++;
    CU_ASSERT_TRUE(bmi_method_now_ns(&bmi__default) >= one->due_ns);
    CU_ASSERT_TRUE(one->due_ns >= last_due_ns);
    last_due_ns = one->due_ns;
}

static void set(struct one *one, uint64_t delay_ms)
{
    one->timer.expired = expired;
    bmi_method_timer_set(&bmi__default, &one->timer, delay_ms);
    one->due_ns = one->timer.due_ns;
}

static void run_all(void)
{
    while (bmi__timers_next(&bmi__default) != UINT64_MAX)
        bmi__timers_run(&bmi__default);
}

/* Given timers with delays that jump about, some cleared, some set again, when time passes, then
 * the others run once each, soonest first. */
static void order_of_due_times(void)
{
    memset(all, 0, sizeof all);
    last_due_ns = 0;
    for (unsigned i = 0; i < TIMERS; i++)
        set(&all[i], i * 7919 % LATEST_MS);
    for (unsigned i = 0; i < TIMERS; i += 3)
        bmi_method_timer_clear(&bmi__default, &all[i].timer);
    for (unsigned i = 1; i < TIMERS; i += 3)
        set(&all[i], (i * 104729 + 5) % LATEST_MS);
    run_all();
    for (unsigned i = 0; i < TIMERS; i++)
        CU_ASSERT_EQUAL(all[i].ran, i % 3 != 0);
}

/* The first, the last, and the only one of the list are taken out, and new ones come in. */
static void ends_of_the_list(void)
{
    memset(all, 0, sizeof all);
    last_due_ns = 0;
    for (unsigned i = 0; i < 3; i++)
        set(&all[i], i);
    bmi_method_timer_clear(&bmi__default, &all[2].timer);
    bmi_method_timer_clear(&bmi__default, &all[0].timer);
    bmi_method_timer_clear(&bmi__default, &all[1].timer);
    bmi_method_timer_clear(&bmi__default, &all[1].timer);
    CU_ASSERT_EQUAL(bmi__timers_next(&bmi__default), UINT64_MAX);
    set(&all[3], 2);
    set(&all[4], 1);
    set(&all[5], 3);
    run_all();
    for (unsigned i = 0; i < 6; i++)
        CU_ASSERT_EQUAL(all[i].ran, i >= 3);
    set(&all[3], 1000);
    bmi__timers_forget(&bmi__default);
    CU_ASSERT_EQUAL(bmi__timers_next(&bmi__default), UINT64_MAX);
    set(&all[4], 0);
    run_all();
    CU_ASSERT_EQUAL(all[3].ran, 1);
    CU_ASSERT_EQUAL(all[4].ran, 2);
}

int main(void)
{
    if (bmi__parts_open(&bmi__default) < 0)
        return 1;
    static CU_TestInfo cases[] = {
        {"order of due times", order_of_due_times},
        {"ends of the list", ends_of_the_list},
        CU_TEST_INFO_NULL,
    };
    return unit_run("timers", cases);
}
