/* SPDX-License-Identifier: BSD-3-Clause
 *
 * promise.c - see promise.h.
 */
#include "bmi/promise.h"

#include <stdatomic.h>

#include "bmi/background.h"
#include "bmi/progress.h"
#include "bmi/waiters.h"
#include "bmi/work.h"

/* Within KEPT_NS it was kept; after COMES_NS the guard takes it that nobody comes. */
enum { KEPT_NS = 20000, COMES_NS = 200000, LIKELY_NS = 2000000 };
/* What promises cost that were not kept in time is set off against those that were, each of which
 * saves about LATE_NS of somebody's time. Up to LOSS_MOST is borne; one can cost LOSS_OF_ONE. Where
 * the next sleeper is on another CPU, that counts as much: threads that are spread over CPUs come
 * together again while one drives for all, and not while each hands over to the next. */
enum { LATE_NS = 4000, LOSS_OF_ONE = 256, LOSS_MOST = 4 * LOSS_OF_ONE, SKIP_MOST = 65535 };
enum { EXCUSED = 1 }; /* in made_ns: it has excused somebody */
/* A guard's look. Shorter than the kernel's tick it costs more, a timer of its own, which matters
 * less where MANY sleep: one of them guards until its turn comes. */
enum { GUARD_NS = 5000000, GUARD_OF_MANY_NS = 1000000, MANY = 8 };

static struct {
    _Atomic uint64_t made_ns; /* the one that stands; 0: none */
    _Atomic uint64_t left_ns; /* when a driver left to answer, while others slept */
    atomic_uint count;        /* made */
    atomic_uint loss;         /* of late, in units of LATE_NS */
    atomic_uint backoff;      /* messages that came without one after the last failure */
    atomic_uint skip;         /* messages that are still to */
} promise;

static unsigned get(atomic_uint *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void set(atomic_uint *counter, unsigned value)
{
    atomic_store_explicit(counter, value, memory_order_relaxed);
}

/* ---- what has been learnt ------------------------------------------------------------------- */

static void kept(void)
{
    unsigned loss = get(&promise.loss);
    if (loss == 0)
        return;
    set(&promise.loss, loss - 1);
    if (loss == 1)
        set(&promise.backoff, 0);
}

static void failed(uint64_t cost)
{
    unsigned loss = get(&promise.loss) + (unsigned)(cost < LOSS_OF_ONE ? cost : LOSS_OF_ONE);
    if (loss > LOSS_MOST) {
        unsigned backoff = get(&promise.backoff) * 2 + 1;
        set(&promise.backoff, backoff < SKIP_MOST ? backoff : SKIP_MOST);
        set(&promise.skip, get(&promise.backoff));
        loss = LOSS_MOST;
    }
    set(&promise.loss, loss);
}

/* Returns whether one need not go without. */
static bool worth_it(void)
{
    unsigned skip = get(&promise.skip);
    if (skip > 0)
        set(&promise.skip, skip - 1);
    return skip == 0;
}

void bmi__promise_missed(void)
{
    worth_it();
}

/* ---- promises ------------------------------------------------------------------------------- */

uint64_t bmi__promise_make(void)
{
    if (bmi__waiters_asleep() == 0)
        return 0;
    uint64_t now = bmi__monotonic_ns();
    atomic_store_explicit(&promise.left_ns, now, memory_order_relaxed);
    if (!bmi__waiters_guarded() || !worth_it())
        return 0;
    if (!bmi__waiters_next_is_near()) {
        failed(LOSS_OF_ONE);
        return 0;
    }
    set(&promise.count, get(&promise.count) + 1);
    return now & ~(uint64_t)EXCUSED;
}

void bmi__promise_set(uint64_t made_ns)
{
    if (made_ns != 0 || bmi__promise_standing() != 0)
        atomic_store_explicit(&promise.made_ns, made_ns, memory_order_relaxed);
}

uint64_t bmi__promise_standing(void)
{
    return atomic_load_explicit(&promise.made_ns, memory_order_relaxed);
}

bool bmi__promise_excuses(void)
{
    uint64_t made = bmi__promise_standing();
    return made != 0 && (made & EXCUSED) == 0 &&
           atomic_compare_exchange_strong_explicit(&promise.made_ns, &made, made | EXCUSED,
                                                   memory_order_relaxed, memory_order_relaxed);
}

void bmi__promise_end(uint64_t now_ns)
{
    uint64_t made = bmi__promise_standing();
    if (made == 0)
        return;
    bmi__promise_set(0);
    if (now_ns < made + KEPT_NS)
        kept();
    else
        failed((now_ns - made) / LATE_NS);
}

bool bmi__promise_young(uint64_t now_ns)
{
    uint64_t made = bmi__promise_standing();
    return made != 0 && now_ns < made + KEPT_NS;
}

bool bmi__promise_likely(uint64_t now_ns)
{
    return now_ns - atomic_load_explicit(&promise.left_ns, memory_order_relaxed) < LIKELY_NS;
}

unsigned bmi__promises(void)
{
    return get(&promise.count);
}

/* ---- who guards, and who comes -------------------------------------------------------------- */

/* Whether the guard can leave the seat to others: where promises were made (`since`), but none
 * stands, it is taken or was handed on; who has promised may wait for this very CPU. */
static bool others_come(unsigned since)
{
    uint64_t made = bmi__promise_standing();
    if (made == 0)
        return bmi__promises() != since;
    return bmi__monotonic_ns() < made + COMES_NS;
}

bool bmi__promise_sleep(struct waiter *waiter, bool in_turn, uint64_t deadline_ns)
{
    while (bmi__waiter_guards(waiter)) {
        unsigned since = bmi__promises();
        uint64_t look_ns = bmi__monotonic_ns();
        look_ns += bmi__waiters_asleep() < MANY ? GUARD_NS : GUARD_OF_MANY_NS;
        if (look_ns >= deadline_ns)
            break;
        if (bmi__waiter_sleep(waiter, look_ns, in_turn))
            return true;
        if (others_come(since))
            continue;
        bmi__promise_end(bmi__monotonic_ns());
        if (since == bmi__promises())
            bmi__waiter_unguard(waiter);
        return true;
    }
    return bmi__waiter_sleep(waiter, deadline_ns, in_turn);
}

bool bmi__promise_hand_on(struct waiter *waiter)
{
    if (bmi__promise_standing() == 0)
        return false;
    bmi__promise_end(bmi__monotonic_ns());
    bmi__work_flush();
    return bmi__waiters_hand_over(waiter);
}

void bmi__promise_reset(void)
{
    bmi__promise_set(0);
    set(&promise.loss, 0);
    set(&promise.backoff, 0);
    set(&promise.skip, 0);
}
