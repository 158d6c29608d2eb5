/* SPDX-License-Identifier: BSD-3-Clause
 *
 * test.c - the test functions: take completed operations; else make progress, or wait; take again.
 *
 * A test that finds completions at once makes progress only every few calls, so that a program that
 * always has completions still reads its network.
 */
#include <errno.h>
#include <stddef.h>

#include "bmi/api/api.h"
#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/connection/unexpected.h"
#include "bmi/progress/progress.h"
#include "bmi/progress/waiters.h"
#include "bmi/state/context.h"
#include "bmi/state/library.h"
#include "bmi/state/op.h"

enum { TAKE_MOST = 64, PROGRESS_EVERY = 16 };

static _Thread_local unsigned calls_without_progress;

/* Between successful calls: a pass now and then. */
static void progress_now_and_then(struct bmi_instance *instance)
{
    if (++calls_without_progress < PROGRESS_EVERY)
        return;
    calls_without_progress = 0;
    bmi__progress_poll(instance);
}

/* The operation belongs to the caller now: copies its result out and frees it. */
static void op_report(struct op *op, bmi_error_code_t *error, bmi_size_t *actual, void **user_ptr)
{
    *error = bmi__error(op->error);
    if (actual != NULL)
        *actual = op->actual;
    if (user_ptr != NULL)
        *user_ptr = op->user_ptr;
    bmi__op_give(op);
}

/* ---- one operation -------------------------------------------------------------------------- */

struct one {
    struct op *op;
    bmi_op_id_t id;
    bool taken;
};

static bool one_ready(struct waiter *waiter)
{
    struct one *one = waiter->argument;
    if (!one->taken)
        one->taken = bmi__context_take_op(waiter_context(waiter), one->op, one->id);
    return one->taken;
}

int BMI_test(bmi_op_id_t id, int *outcount, bmi_error_code_t *error_code, bmi_size_t *actual_size,
             void **user_ptr, int max_idle_time_ms, bmi_context_id context_id)
{
    if (outcount != NULL)
        *outcount = 0;
    struct context *context = running_context(context_id);
    struct one one = {.op = context != NULL ? bmi__op_find(id) : NULL, .id = id};
    if (outcount == NULL || error_code == NULL || max_idle_time_ms < 0 || one.op == NULL ||
        one.op->context != context)
        return -BMI_EINVAL;
    struct waiter waiter = {.instance = context->instance,
                            .ready = one_ready,
                            .argument = &one,
                            .list = &context->waiters,
                            .op = id};
    if (one_ready(&waiter))
        progress_now_and_then(context->instance);
    else
        bmi__progress_wait(&waiter, max_idle_time_ms);
    if (!one_ready(&waiter))
        return 0;
    op_report(one.op, error_code, actual_size, user_ptr);
    *outcount = 1;
    return 1;
}

/* ---- several -------------------------------------------------------------------------------- */

struct some {
    const bmi_op_id_t *ids;
    int count;
    int taken;
    int *index;
    bmi_error_code_t *errors;
    bmi_size_t *actuals;
    void **user_ptrs;
};

static bool some_ready(struct waiter *waiter)
{
    struct some *some = waiter->argument;
    if (some->taken > 0)
        return true;
    if (!bmi__context_has(waiter_context(waiter)))
        return false;
    for (int i = 0; i < some->count; i++) {
        struct op *op = bmi__op_find(some->ids[i]);
        if (op == NULL || !bmi__context_take_op(waiter_context(waiter), op, some->ids[i]))
            continue;
        int out = some->taken++;
        some->index[out] = i;
        op_report(op, &some->errors[out], some->actuals != NULL ? &some->actuals[out] : NULL,
                  some->user_ptrs != NULL ? &some->user_ptrs[out] : NULL);
    }
    return some->taken > 0;
}

static bool ids_valid(const bmi_op_id_t *ids, int count, const struct context *context)
{
    for (int i = 0; i < count; i++) {
        struct op *op = ids[i] != 0 ? bmi__op_find(ids[i]) : NULL;
        if (ids[i] != 0 && (op == NULL || op->context != context))
            return false;
    }
    return true;
}

int BMI_testsome(int incount, bmi_op_id_t *id_array, int *outcount, int *index_array,
                 bmi_error_code_t *error_code_array, bmi_size_t *actual_size_array,
                 void **user_ptr_array, int max_idle_time_ms, bmi_context_id context_id)
{
    if (outcount != NULL)
        *outcount = 0;
    struct context *context = running_context(context_id);
    bool arrays = id_array != NULL && index_array != NULL && error_code_array != NULL;
    if (outcount == NULL || context == NULL || incount < 0 || (incount > 0 && !arrays) ||
        max_idle_time_ms < 0 || !ids_valid(id_array, incount, context))
        return -BMI_EINVAL;
    struct some some = {.ids = id_array,
                        .count = incount,
                        .index = index_array,
                        .errors = error_code_array,
                        .actuals = actual_size_array,
                        .user_ptrs = user_ptr_array};
    static const bmi_op_id_t none;
    struct waiter waiter = {.instance = context->instance,
                            .ready = some_ready,
                            .argument = &some,
                            .list = &context->waiters,
                            .op = WAITER_SOME,
                            .some = incount > 0 ? id_array : &none,
                            .some_count = incount};
    if (some_ready(&waiter))
        progress_now_and_then(context->instance);
    else
        bmi__progress_wait(&waiter, max_idle_time_ms);
    some_ready(&waiter);
    *outcount = some.taken;
    return some.taken > 0;
}

/* ---- a context ------------------------------------------------------------------------------ */

struct any {
    struct op *ops[TAKE_MOST];
    int count, most;
};

static bool any_ready(struct waiter *waiter)
{
    struct any *any = waiter->argument;
    if (any->most == 0 && bmi__context_has(waiter_context(waiter)))
        return true; /* leave it for the caller's next call: this one has no room */
    if (any->count == 0)
        any->count = bmi__context_take(waiter_context(waiter), any->ops, any->most);
    if (any->count > 0)
        return true;
    /* If a thread waits for unexpected messages, it fetches them; else this program must. */
    return bmi__unexpected_waiting(waiter->instance) &&
           bmi__waiters_for_unexpected(waiter->instance) == 0;
}

int BMI_testcontext(int incount, bmi_op_id_t *out_id_array, int *outcount,
                    bmi_error_code_t *error_code_array, bmi_size_t *actual_size_array,
                    void **user_ptr_array, int max_idle_time_ms, bmi_context_id context_id)
{
    if (outcount != NULL)
        *outcount = 0;
    struct context *context = running_context(context_id);
    bool arrays = out_id_array != NULL && error_code_array != NULL;
    if (outcount == NULL || context == NULL || incount < 0 || (incount > 0 && !arrays) ||
        max_idle_time_ms < 0)
        return -BMI_EINVAL;
    struct any any; /* its array is not worth zeroing */
    any.count = 0;
    any.most = incount < TAKE_MOST ? incount : TAKE_MOST;
    struct waiter waiter = {.instance = context->instance,
                            .ready = any_ready,
                            .argument = &any,
                            .list = &context->waiters};
    bool ready = any_ready(&waiter);
    if (any.count > 0)
        progress_now_and_then(context->instance);
    else /* ready without a completion: an unexpected message waits, but the network goes on */
        bmi__progress_wait(&waiter, ready ? 0 : max_idle_time_ms);
    any_ready(&waiter);
    int done = 0;
    while (any.count > 0) {
        bool full = any.count == any.most; /* else there was no more */
        for (int i = 0; i < any.count; i++, done++) {
            out_id_array[done] = bmi__op_id(any.ops[i]);
            op_report(any.ops[i], &error_code_array[done],
                      actual_size_array != NULL ? &actual_size_array[done] : NULL,
                      user_ptr_array != NULL ? &user_ptr_array[done] : NULL);
        }
        any.most = incount - done < TAKE_MOST ? incount - done : TAKE_MOST;
        any.count = full && any.most > 0 ? bmi__context_take(context, any.ops, any.most) : 0;
    }
    *outcount = done;
    /* more completions may be for another thread */
    if ((done > 0 || incount == 0) && bmi__context_has(context))
        bmi__progress_notify(context->instance, &context->waiters, 0);
    return done > 0;
}

/* ---- unexpected messages -------------------------------------------------------------------- */

struct fetch {
    struct BMI_unexpected_info *info;
    int count, most;
};

static bool fetch_ready(struct waiter *waiter)
{
    struct fetch *fetch = waiter->argument;
    if (fetch->count == 0)
        fetch->count = bmi__unexpected_take(waiter->instance, fetch->info, fetch->most);
    if (fetch->count > 0 || (fetch->most == 0 && bmi__unexpected_waiting(waiter->instance)))
        return true;
    struct context *only = bmi__context_only(waiter->instance);
    return only != NULL && bmi__context_has(only) && bmi__context_unclaimed(only);
}

int bmi_instance_testunexpected(struct bmi_instance *instance, int incount, int *outcount,
                                struct BMI_unexpected_info *info_array, int max_idle_time_ms)
{
    if (outcount != NULL)
        *outcount = 0;
    if (outcount == NULL || incount < 0 || (incount > 0 && info_array == NULL) ||
        max_idle_time_ms < 0 || instance == NULL || !bmi__running(instance))
        return -BMI_EINVAL;
    struct fetch fetch = {.info = info_array, .most = incount};
    struct waiter waiter = {.instance = instance, .ready = fetch_ready, .argument = &fetch};
    bool ready = fetch_ready(&waiter);
    if (fetch.count > 0)
        progress_now_and_then(instance);
    else
        bmi__progress_wait(&waiter, ready ? 0 : max_idle_time_ms);
    fetch_ready(&waiter);
    *outcount = fetch.count;
    if (bmi__unexpected_waiting(instance))
        bmi__progress_notify(instance, NULL, 0); /* more messages may be for another thread */
    return fetch.count > 0;
}

int BMI_testunexpected(int incount, int *outcount, struct BMI_unexpected_info *info_array,
                       int max_idle_time_ms)
{
    return bmi_instance_testunexpected(&bmi__default, incount, outcount, info_array,
                                       max_idle_time_ms);
}
