/* SPDX-License-Identifier: BSD-3-Clause
 *
 * spin.c - see spin.h.
 */
#include "bmi/spin.h"

#include <sched.h>
#include <sys/resource.h>

#include "bmi/settings.h"

enum { SKIP_MOST = 255, STRETCH_MOST = 3, YIELDS = 16 };
enum { PREEMPTED_NS = 100000, PREEMPTED_TIMES = 10, PAUSE_MOST_NS = 100000000 };

struct bmi__spin bmi__spin;

static uint64_t setting_ns(void)
{
    return (uint64_t)bmi__setting(SETTING_SPIN) * 1000;
}

uint64_t bmi__spin_most(void)
{
    return setting_ns() * (1 + bmi__spin.stretch);
}

/* Spinning pays if what is waited for comes while we spin. Where it fails, because the time is long
 * or because whoever is to send wants this core, it is left out more and more often. */
bool bmi__spin_worth_it(uint64_t now)
{
    if (setting_ns() == 0 || now < bmi__spin.paused_until_ns)
        return false;
    if (bmi__spin.skip > 0) {
        bmi__spin.skip--;
        return false;
    }
    bmi__spin.alone = false;
    return true;
}

bool bmi__spin_failed(void)
{
    bmi__spin.backoff = bmi__spin.backoff * 2 + 1;
    if (bmi__spin.backoff > SKIP_MOST)
        bmi__spin.backoff = SKIP_MOST;
    bmi__spin.skip = bmi__spin.backoff;
    bmi__spin.just_failed = true;
    return false;
}

/* A sleep was short, for one whose end takes some tens of microseconds: to spin would have paid. If
 * that had just been tried in vain, what came needed the core that the spin was on: the next one
 * yields it. If it did so and nobody took it, what came is due a little later than spins end: they
 * take longer then, until one fails before a long sleep. */
void bmi__spin_learn(uint64_t slept_ns)
{
    bool brief = slept_ns < 2 * setting_ns();
    bool failed = bmi__spin.just_failed;
    bmi__spin.just_failed = false;
    if (brief && !bmi__spin.in_the_way)
        bmi__spin_paid();
    if (!failed)
        return;
    if (!bmi__spin.in_the_way) /* else the question stands: a spin may end before its answer */
        bmi__spin.yields = 0;
    bmi__spin.in_the_way = brief && !bmi__spin.alone;
    if (!brief)
        bmi__spin.stretch = 0;
    else if (bmi__spin.alone && bmi__spin.stretch < STRETCH_MOST)
        bmi__spin.stretch = bmi__spin.stretch * 2 + 1;
}

bool bmi__core_was_taken(void)
{
    static _Thread_local long before;
    struct rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage) < 0)
        return true;
    bool taken = usage.ru_nivcsw != before;
    before = usage.ru_nivcsw;
    return taken;
}

/* Two processes that began on one core answer each other at the cost of a switch then, and since
 * neither sleeps, the system moves one to an idle core. Whether anybody took it the system tells:
 * by the time that a yield takes that cannot be told, it is 0.3 us on one machine and 1.5 us on
 * another. A driver that asks for the yields of one before it hears of its own past too, so rather
 * goes on yielding. */
void bmi__spin_yield(void)
{
    if (bmi__spin.yields == 0)
        bmi__core_was_taken(); /* what was before does not count */
    sched_yield();
    if (++bmi__spin.yields < YIELDS)
        return;
    bmi__spin.yields = 0;
    bmi__spin.in_the_way = bmi__core_was_taken();
    bmi__spin.alone = !bmi__spin.in_the_way;
}

/* A pass that took very long may have had much to move, too. */
bool bmi__spin_interrupted(uint64_t last, uint64_t now)
{
    if (now - last <= PREEMPTED_NS || !bmi__core_was_taken())
        return false;
    uint64_t pause_ns = (now - last) * PREEMPTED_TIMES;
    bmi__spin.paused_until_ns = now + (pause_ns < PAUSE_MOST_NS ? pause_ns : PAUSE_MOST_NS);
    return true;
}

void bmi__spin_reset(void)
{
    bmi__spin = (struct bmi__spin){0};
}
