/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trace.c - calls a program's tracer for the events of machines. A machine reads the context's
 * tracer with one load for each step; replaced tracers are kept until the context is closed, since
 * a step may still be calling one.
 */
#include <stdlib.h>

#include "bmi/base/clock.h"
#include "bmi/base/log.h"
#include "bmi/progress/progress.h"
#include "job/internal.h"

void bmi__sm_trace_event(struct bmi__tracer *tracer, struct bmi_sm *machine,
                         enum bmi_sm_event event, int result, uint64_t since_ns)
{
    struct sm_frame *frame = &machine->frames[machine->depth - 1];
    bool whole = event == BMI_SM_STARTED || event == BMI_SM_ENDED;
    uint64_t now = bmi__monotonic_ns();
    struct bmi_sm_trace trace = {
        .event = event,
        .machine = bmi__job_id(machine->job),
        .table = frame->table->name,
        .state = whole ? NULL : frame->table->states[frame->state].name,
        .result = result,
        .time_ns = now,
        .took_ns = since_ns != 0 ? now - since_ns : 0,
    };
    tracer->function(tracer->argument, &trace);
}

void bmi_sm_trace_to(struct bmi_job_context *context, bmi_sm_tracer function, void *argument)
{
    struct bmi__tracer *tracer = function != NULL ? malloc(sizeof *tracer) : NULL;
    if (function != NULL && tracer == NULL) {
        bmi__log(context->instance, BMI_LOG_ERROR,
                 "no memory for a tracer of state machines: nothing is traced");
        return;
    }
    bmi_lock_take(&context->lock);
    if (tracer != NULL) {
        *tracer = (struct bmi__tracer){.function = function,
                                       .argument = argument,
                                       .next = context->tracers};
        context->tracers = tracer;
    }
    atomic_store_explicit(&context->tracer, tracer, memory_order_release);
    bmi_lock_give(&context->lock);
}

void bmi_sm_trace_print(void *file, const struct bmi_sm_trace *trace)
{
    static const char *const events[] = {"started", "step", "resumed", "jumped", "ended"};
    char result[64] = "";
    if (trace->result == BMI_SM_DEFERRED)
        snprintf(result, sizeof result, "waits");
    else if (trace->result < 0)
        snprintf(result, sizeof result, "%s", bmi_status_string(trace->result));
    else
        snprintf(result, sizeof result, "%d", trace->result);
    fprintf(file, "%11.6f machine %llu %s%s%s %s %s, %.3f us\n", (double)trace->time_ns / 1e9,
            (unsigned long long)trace->machine, trace->table, trace->state != NULL ? ": " : "",
            trace->state != NULL ? trace->state : "", events[trace->event], result,
            (double)trace->took_ns / 1e3);
}
