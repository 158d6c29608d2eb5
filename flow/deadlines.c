/* SPDX-License-Identifier: BSD-3-Clause
 *
 * deadlines.c - the flows that have a deadline, and the timers for the earliest one: one of BMI's,
 * for threads that wait there and for progress in the background, and one of the descriptor. Flows
 * between memory and storage need no running BMI: then there is only the latter.
 *
 * `lock` guards the list; it is innermost, except that a step may be requested with it held.
 */
#include "bmi/base/clock.h"
#include "bmi/base/instance.h"
#include "bmi/method.h"
#include "bmi/state/library.h"
#include "flow/internal.h"

static void timer_expired(struct bmi_timer *timer);

static struct {
    pthread_mutex_t lock;
    struct flow *first;          /* lock */
    _Atomic uint64_t next_ns;    /* the earliest; UINT64_MAX: none; lock to write */
    struct bmi_timer timer;      /* set to next_ns, as the descriptor's */
    _Atomic(void (*)(void)) due; /* the timer's function */
} deadlines = {.lock = PTHREAD_MUTEX_INITIALIZER,
               .next_ns = UINT64_MAX,
               .timer = {.expired = timer_expired}};

static void timer_expired(struct bmi_timer *timer)
{
    (void)timer;
    atomic_load (&deadlines.due)();
}

static void timers_set_locked(uint64_t due)
{
    uint64_t now = bmi__monotonic_ns();
    atomic_store(&deadlines.next_ns, due);
    bmi__descriptor_timer(due);
    if (due == UINT64_MAX)
        bmi_method_timer_clear(&deadlines.timer);
    else if (bmi__running(&bmi__default))
        bmi_method_timer_set(&bmi__default, &deadlines.timer,
                             due <= now ? 0 : (due - now + 999999) / 1000000);
}

void bmi__deadlines_begin(void (*due)(void))
{
    atomic_store(&deadlines.due, due);
}

void bmi__deadline_add(struct flow *flow)
{
    flow->deadline_ns = bmi__monotonic_ns() + (uint64_t)flow->what.timeout_ms * 1000000;
    pthread_mutex_lock(&deadlines.lock);
    flow->next_timed = deadlines.first;
    flow->timed_link = &deadlines.first;
    if (deadlines.first != NULL)
        deadlines.first->timed_link = &flow->next_timed;
    deadlines.first = flow;
    if (flow->deadline_ns < deadlines.next_ns)
        timers_set_locked(flow->deadline_ns);
    pthread_mutex_unlock(&deadlines.lock);
}

static void remove_locked(struct flow *flow)
{
    *flow->timed_link = flow->next_timed;
    if (flow->next_timed != NULL)
        flow->next_timed->timed_link = flow->timed_link;
    flow->timed_link = NULL;
}

void bmi__deadline_remove(struct flow *flow)
{
    pthread_mutex_lock(&deadlines.lock);
    if (flow->timed_link != NULL)
        remove_locked(flow);
    pthread_mutex_unlock(&deadlines.lock);
}

void bmi__deadlines_end(void)
{
    pthread_mutex_lock(&deadlines.lock);
    timers_set_locked(UINT64_MAX);
    pthread_mutex_unlock(&deadlines.lock);
}

void bmi__deadlines_run(void (*kill)(struct flow *flow, bmi_error_code_t cause))
{
    if (atomic_load(&deadlines.next_ns) == UINT64_MAX ||
        bmi__monotonic_ns() < atomic_load(&deadlines.next_ns))
        return;
    uint64_t now = bmi__monotonic_ns(), next = UINT64_MAX;
    pthread_mutex_lock(&deadlines.lock);
    for (struct flow *flow = deadlines.first, *after; flow != NULL; flow = after) {
        after = flow->next_timed;
        if (flow->deadline_ns <= now) {
            remove_locked(flow);
            kill(flow, -BMI_ETIMEDOUT);
        } else if (flow->deadline_ns < next) {
            next = flow->deadline_ns;
        }
    }
    timers_set_locked(next);
    pthread_mutex_unlock(&deadlines.lock);
}

/* In a forked child: no flow has a deadline. BMI's timer is left as it is. */
void bmi__deadlines_forget(void)
{
    pthread_mutex_init(&deadlines.lock, NULL);
    deadlines.first = NULL;
    atomic_store(&deadlines.next_ns, UINT64_MAX);
}
