/* SPDX-License-Identifier: BSD-3-Clause
 *
 * run.c - which thread runs a flow's steps, and the requests for them. See internal.h for the
 * rules.
 */
#include "flow/internal.h"

static enum bmi_task_status step_task(struct bmi_task *task, void *argument);

/* The task is prepared anew each time and returns GONE: after a step has released the flow, a step
 * of another thread may follow and free it. The flow may be freed when this returns. */
static int step_submit(struct flow *flow)
{
    struct flow_engine *engine = flow->engine;
    int result = bmi__flow_submit(flow, step_task);
    if (result == 0)
        bmi__descriptor_signal(engine);
    return result;
}

/* Called by the one thread that made `wanted` 1, or the thread that this one has left it to.
 * Another thread may run the flow, or it may be freed, when this returns. */
static void step_run(struct flow *flow)
{
    for (;;) {
        unsigned seen = atomic_load(&flow->wanted);
        bmi__flow_advance(flow);
        if (flow->finished) {
            if (flow->deadline_ns != 0)
                bmi__deadline_remove(flow);
            bmi__posted_complete(flow->space, &flow->posted, flow->error, atomic_load(&flow->good));
            return;
        }
        if (flow->more && step_submit(flow) == 0)
            return;
        if (!flow->more && atomic_compare_exchange_strong(&flow->wanted, &seen, 0))
            return;
    }
}

static enum bmi_task_status step_task(struct bmi_task *task, void *argument)
{
    (void)task;
    step_run(argument);
    return BMI_TASK_GONE;
}

/* Flows whose steps this thread keeps to run itself. */
static _Thread_local struct flow *kept;
static _Thread_local bool keeping;

static bool step_claim(struct flow *flow)
{
    return atomic_fetch_add(&flow->wanted, 1) == 0;
}

static void step_begin(struct flow *flow)
{
    if (keeping) {
        flow->next_here = kept;
        kept = flow;
    } else {
        step_submit(flow);
    }
}

void bmi__flow_start(struct flow *flow)
{
    if (step_claim(flow))
        step_run(flow);
}

void bmi__flow_steps_begin(void)
{
    keeping = true;
}

void bmi__flow_steps_end(void)
{
    keeping = false;
    while (kept != NULL) {
        struct flow *flow = kept;
        kept = flow->next_here;
        step_run(flow);
    }
}

void bmi__flow_steps_forget(void)
{
    keeping = false;
    kept = NULL;
}

void bmi__flow_kill(struct flow *flow, bmi_error_code_t cause)
{
    bmi_error_code_t none = 0;
    if (atomic_compare_exchange_strong(&flow->kill, &none, cause) && step_claim(flow))
        step_begin(flow);
}

/* A running step takes the chunk as soon as the lock is released, and may end the flow: so whether
 * a step is running must be checked before. */
void bmi__flow_arrived(struct flow_chunk *chunk, bmi_error_code_t error, bmi_size_t actual)
{
    struct flow *flow = chunk->flow;
    chunk->error = error;
    chunk->actual = actual;
    chunk->next_arrived = NULL;
    pthread_mutex_lock(&flow->lock);
    *flow->arrived_end = chunk;
    flow->arrived_end = &chunk->next_arrived;
    bool mine = step_claim(flow);
    pthread_mutex_unlock(&flow->lock);
    if (mine)
        step_begin(flow);
}
