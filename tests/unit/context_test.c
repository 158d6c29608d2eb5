/* SPDX-License-Identifier: BSD-3-Clause
 *
 * context_test.c - completion queues: order, one operation out of many, many threads that push and
 * take, stale handles.
 */
#include "bmi/api/api.h"
#include "bmi/base/instance.h"
#include "bmi/state/context.h"

#include <pthread.h>
#include <sched.h>

#include "bmi/state/op.h"
#include "unit.h"

static struct context *open_context(bmi_context_id *id)
{
    CU_ASSERT_EQUAL_FATAL(bmi__context_open(&bmi__default, id), 0);
    struct context *context = bmi__context_find(*id);
    CU_ASSERT_PTR_NOT_NULL_FATAL(context);
    return context;
}

static struct op *op_make(struct context *context, intptr_t number)
{
    struct op *op = bmi__op_take(&bmi__default);
    CU_ASSERT_PTR_NOT_NULL_FATAL(op);
    op->context = context;
    op->user_ptr = (void *)number;
    atomic_store(&op->state, OP_PENDING);
    return op;
}

static void end(void)
{
    bmi__parts_close(&bmi__default);
    bmi__context_table_free();
    bmi__op_table_free();
    CU_ASSERT_EQUAL_FATAL(bmi__parts_open(&bmi__default), 0);
}

static void completions_come_out_in_order(void)
{
    bmi_context_id id;
    struct context *context = open_context(&id);
    struct op *taken[16];
    intptr_t next = 0, pushed = 0;
    CU_ASSERT_FALSE(bmi__context_has(context));
    CU_ASSERT_EQUAL(bmi__context_take(context, taken, 16), 0);
    for (int round = 1; round < 40; round++) {
        for (int i = 0; i < round; i++)
            bmi__context_complete(op_make(context, pushed++));
        CU_ASSERT_TRUE(bmi__context_has(context));
        int count = bmi__context_take(context, taken, 1 + round % 16);
        CU_ASSERT_TRUE(count > 0 && count <= 1 + round % 16);
        for (int i = 0; i < count; i++) {
            CU_ASSERT_EQUAL((intptr_t)taken[i]->user_ptr, next++);
            bmi__op_give(taken[i]);
        }
        CU_ASSERT_EQUAL(bmi__context_depth(context), (uint64_t)(pushed - next));
    }
    int count;
    while ((count = bmi__context_take(context, taken, 16)) > 0)
        for (int i = 0; i < count; i++) {
            CU_ASSERT_EQUAL((intptr_t)taken[i]->user_ptr, next++);
            bmi__op_give(taken[i]);
        }
    CU_ASSERT_EQUAL(next, pushed);
    CU_ASSERT_FALSE(bmi__context_has(context));
    bmi__context_release(context);
    end();
}

static void one_is_taken_out_of_many(void)
{
    bmi_context_id id, other_id;
    struct context *context = open_context(&id), *other = open_context(&other_id);
    struct op *ops[5], *taken[8];
    struct op *pending = op_make(context, 9);
    for (int i = 0; i < 5; i++) {
        ops[i] = op_make(context, i);
        bmi__context_complete(ops[i]);
    }
    CU_ASSERT_FALSE(bmi__context_take_op(context, pending, bmi__op_id(pending)));
    CU_ASSERT_TRUE(bmi__context_take_op(context, ops[3], bmi__op_id(ops[3])));
    CU_ASSERT_FALSE(bmi__context_take_op(context, ops[3], bmi__op_id(ops[3]))); /* once */
    CU_ASSERT_FALSE(bmi__context_take_op(context, ops[2], bmi__op_id(ops[2]) ^ INT64_C(1) << 33));
    CU_ASSERT_FALSE(bmi__context_take_op(other, ops[2], bmi__op_id(ops[2])));
    CU_ASSERT_TRUE(bmi__context_take_op(context, ops[0], bmi__op_id(ops[0])));
    CU_ASSERT_EQUAL(bmi__context_take(context, taken, 8), 3);
    CU_ASSERT_PTR_EQUAL(taken[0], ops[1]);
    CU_ASSERT_PTR_EQUAL(taken[1], ops[2]);
    CU_ASSERT_PTR_EQUAL(taken[2], ops[4]);
    CU_ASSERT_FALSE(bmi__context_has(context));
    for (int i = 0; i < 5; i++)
        bmi__op_give(ops[i]);
    bmi__op_give(pending);
    bmi__context_release(context);
    bmi__context_release(other);
    end();
}

static void handles_are_positive_differ_and_go_stale(void)
{
    enum { MANY = 1100 };
    static bmi_context_id ids[MANY];
    for (int i = 0; i < MANY; i++) {
        struct context *context = open_context(&ids[i]);
        CU_ASSERT_TRUE(ids[i] > 0);
        CU_ASSERT_EQUAL(context->id, ids[i]);
    }
    for (int i = 1; i < MANY; i++)
        CU_ASSERT_PTR_NOT_EQUAL(bmi__context_find(ids[i]), bmi__context_find(ids[i - 1]));
    CU_ASSERT_PTR_NULL(bmi__context_only(&bmi__default));
    for (int i = 0; i < MANY; i++) {
        if (i == MANY - 1)
            CU_ASSERT_PTR_EQUAL(bmi__context_only(&bmi__default), bmi__context_find(ids[i]));
        bmi__context_release(bmi__context_find(ids[i]));
        CU_ASSERT_PTR_NULL(bmi__context_find(ids[i]));
    }
    CU_ASSERT_PTR_NULL(bmi__context_only(&bmi__default));
    bmi_context_id again;
    open_context(&again); /* a slot used before, another handle */
    for (int i = 0; i < MANY; i++)
        CU_ASSERT_NOT_EQUAL(again, ids[i]);
    const bmi_context_id bad[] = {0,
                                  -1,
                                  INT64_MIN,
                                  INT64_MAX,
                                  1,
                                  again + 1,
                                  again ^ INT64_C(1) << 40,
                                  again & UINT32_MAX,
                                  UINT32_MAX};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        CU_ASSERT_PTR_NULL(bmi__context_find(bad[i]));
    bmi__context_release(bmi__context_find(again));
    end();
    CU_ASSERT_PTR_NULL(bmi__context_find(again));
}

/* The last finalize frees the table; the next initialize makes a new one. */
static void handles_are_stale_after_another_start(void)
{
    bmi_context_id before, after;
    open_context(&before);
    end();
    open_context(&after);
    CU_ASSERT_NOT_EQUAL(after, before);
    CU_ASSERT_PTR_NULL(bmi__context_find(before));
    end();
}

/* ---- threads -------------------------------------------------------------------------------- */

enum { PUSHERS = 4, TAKERS = 2, EACH = 20000 };

static struct context *shared;
static atomic_int taken_count, wrong;
static atomic_uchar seen[PUSHERS][EACH];

static void *push(void *argument)
{
    intptr_t who = (intptr_t)argument;
    for (intptr_t i = 0; i < EACH; i++) {
        struct op *op = bmi__op_take(&bmi__default);
        op->context = shared;
        op->user_ptr = (void *)(who << 32 | i);
        atomic_store(&op->state, OP_PENDING);
        bmi__context_complete(op);
    }
    return NULL;
}

static void *take(void *argument)
{
    struct op *ops[32];
    intptr_t last[PUSHERS] = {-1, -1, -1, -1};
    (void)argument;
    while (atomic_load(&taken_count) < PUSHERS * EACH) {
        int count = bmi__context_take(shared, ops, 32);
        for (int i = 0; i < count; i++) {
            intptr_t who = (intptr_t)ops[i]->user_ptr >> 32;
            intptr_t number = (intptr_t)ops[i]->user_ptr & 0xffffffff;
            /* in the order of their completion, as seen by one thread; each once */
            if (number <= last[who] || atomic_fetch_add(&seen[who][number], 1) != 0)
                atomic_fetch_add(&wrong, 1);
            last[who] = number;
            bmi__op_give(ops[i]);
        }
        atomic_fetch_add(&taken_count, count);
        if (count == 0)
            sched_yield();
    }
    return NULL;
}

static void many_threads_push_and_take(void)
{
    bmi_context_id id;
    pthread_t threads[PUSHERS + TAKERS];
    shared = open_context(&id);
    for (intptr_t i = 0; i < PUSHERS + TAKERS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, i < PUSHERS ? push : take,
                                             (void *)i),
                              0);
    for (int i = 0; i < PUSHERS + TAKERS; i++)
        pthread_join(threads[i], NULL);
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_EQUAL(taken_count, PUSHERS * EACH);
    CU_ASSERT_EQUAL(shared->completions, PUSHERS * EACH);
    CU_ASSERT_FALSE(bmi__context_has(shared));
    bmi__context_release(shared);
    end();
}

int main(void)
{
    if (bmi__parts_open(&bmi__default) < 0)
        return 1;
    CU_TestInfo tests[] = {
        {"completions come out in order", completions_come_out_in_order},
        {"one is taken out of many", one_is_taken_out_of_many},
        {"handles are positive, differ, go stale", handles_are_positive_differ_and_go_stale},
        {"handles are stale after another start", handles_are_stale_after_another_start},
        {"many threads push and take", many_threads_push_and_take},
        CU_TEST_INFO_NULL,
    };
    return unit_run("contexts", tests);
}
