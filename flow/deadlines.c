/* SPDX-License-Identifier: BSD-3-Clause
 *
 * deadlines.c - the flows of an engine that have a deadline, and the timers for the earliest one:
 * one of BMI's, for threads that wait there and for progress in the background, and one of the
 * descriptor. Flows between memory and storage need no running BMI: then there is only the latter.
 * Deadlines go by the clock of the instance.
 *
 * `lock` guards the list; it is innermost, except that a step may be requested with it held.
 */
#include <stddef.h>

#include "bmi/base/clock.h"
#include "bmi/state/library.h"
#include "flow/engine.h"

static void timer_expired(struct bmi_timer *timer)
{
    struct flow_engine *engine =
        (struct flow_engine *)((char *)timer - offsetof(struct flow_engine, deadlines.timer));
    engine->deadlines.due(engine);
}

static void timers_set_locked(struct flow_engine *engine, uint64_t due)
{
    struct flow_deadlines *deadlines = &engine->deadlines;
    uint64_t now = bmi__instance_now_ns(engine->instance);
    uint64_t delay = due == UINT64_MAX ? UINT64_MAX : due <= now ? 0 : due - now;
    atomic_store(&deadlines->next_ns, due);
    bmi__descriptor_timer(engine, delay);
    if (due == UINT64_MAX)
        bmi_method_timer_clear(engine->instance, &deadlines->timer);
    else if (bmi__running(engine->instance))
        bmi_method_timer_set(engine->instance, &deadlines->timer, (delay + 999999) / 1000000);
}

void bmi__deadlines_init(struct flow_engine *engine, void (*due)(struct flow_engine *engine))
{
    pthread_mutex_init(&engine->deadlines.lock, NULL);
    atomic_init(&engine->deadlines.next_ns, UINT64_MAX);
    engine->deadlines.timer.expired = timer_expired;
    engine->deadlines.due = due;
}

void bmi__deadline_add(struct flow *flow)
{
    struct flow_engine *engine = flow->engine;
    struct flow_deadlines *deadlines = &engine->deadlines;
    flow->deadline_ns =
        bmi__instance_now_ns(engine->instance) + (uint64_t)flow->what.timeout_ms * 1000000;
    pthread_mutex_lock(&deadlines->lock);
    flow->next_timed = deadlines->first;
    flow->timed_link = &deadlines->first;
    if (deadlines->first != NULL)
        deadlines->first->timed_link = &flow->next_timed;
    deadlines->first = flow;
    if (flow->deadline_ns < deadlines->next_ns)
        timers_set_locked(engine, flow->deadline_ns);
    pthread_mutex_unlock(&deadlines->lock);
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
    pthread_mutex_lock(&flow->engine->deadlines.lock);
    if (flow->timed_link != NULL)
        remove_locked(flow);
    pthread_mutex_unlock(&flow->engine->deadlines.lock);
}

void bmi__deadlines_end(struct flow_engine *engine)
{
    pthread_mutex_lock(&engine->deadlines.lock);
    timers_set_locked(engine, UINT64_MAX);
    pthread_mutex_unlock(&engine->deadlines.lock);
}

void bmi__deadlines_run(struct flow_engine *engine,
                        void (*kill)(struct flow *flow, bmi_error_code_t cause))
{
    struct flow_deadlines *deadlines = &engine->deadlines;
    uint64_t next = atomic_load(&deadlines->next_ns);
    if (next == UINT64_MAX)
        return;
    uint64_t now = bmi__instance_now_ns(engine->instance);
    if (now < next)
        return;
    next = UINT64_MAX;
    pthread_mutex_lock(&deadlines->lock);
    for (struct flow *flow = deadlines->first, *after; flow != NULL; flow = after) {
        after = flow->next_timed;
        if (flow->deadline_ns <= now) {
            remove_locked(flow);
            kill(flow, -BMI_ETIMEDOUT);
        } else if (flow->deadline_ns < next) {
            next = flow->deadline_ns;
        }
    }
    timers_set_locked(engine, next);
    pthread_mutex_unlock(&deadlines->lock);
}

/* In a forked child: no flow has a deadline. BMI's timer is left as it is. */
void bmi__deadlines_forget(struct flow_engine *engine)
{
    pthread_mutex_init(&engine->deadlines.lock, NULL);
    engine->deadlines.first = NULL;
    atomic_store(&engine->deadlines.next_ns, UINT64_MAX);
}
