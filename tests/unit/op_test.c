/* SPDX-License-Identifier: BSD-3-Clause
 *
 * op_test.c - the table of operations: generations, stale ids, reuse, many threads, its end.
 */
#include "bmi/base/instance.h"
#include "bmi/state/op.h"

#include <pthread.h>
#include <sched.h>

#include "unit.h"

enum { MANY = 3000 };

static int int_compare(const void *one, const void *other)
{
    bmi_op_id_t a = *(const bmi_op_id_t *)one, b = *(const bmi_op_id_t *)other;
    return (a > b) - (a < b);
}

static bool all_differ(bmi_op_id_t *ids, size_t count)
{
    qsort(ids, count, sizeof *ids, int_compare);
    for (size_t i = 1; i < count; i++)
        if (ids[i] == ids[i - 1])
            return false;
    return true;
}

static bool op_is_clear(const struct op *op)
{
    return op->next == NULL && op->previous == NULL && op->peer == NULL && op->flags == 0 &&
           op->stage == STAGE_NONE && op->actual == 0 && op->expected == 0 && op->remote == 0 &&
           op->held == NULL && op->memory == NULL && op->error == 0 && !op->ready;
}

static void ids_are_positive_and_differ(void)
{
    static struct op *ops[MANY];
    static bmi_op_id_t ids[MANY];
    for (int i = 0; i < MANY; i++) {
        ops[i] = bmi__op_take(&bmi__default);
        CU_ASSERT_PTR_NOT_NULL_FATAL(ops[i]);
        CU_ASSERT_TRUE(op_is_clear(ops[i]));
        CU_ASSERT_EQUAL(ops[i]->state, OP_POSTING);
        ids[i] = bmi__op_id(ops[i]);
        CU_ASSERT_TRUE(ids[i] > 0);
        CU_ASSERT_PTR_EQUAL(bmi__op_find(ids[i]), ops[i]);
    }
    for (int i = 0; i < MANY; i++)
        bmi__op_give(ops[i]);
    CU_ASSERT_TRUE(all_differ(ids, MANY));
    bmi__op_table_free();
}

static void given_back_ids_are_stale(void)
{
    struct op *op = bmi__op_take(&bmi__default);
    CU_ASSERT_PTR_NOT_NULL_FATAL(op);
    bmi_op_id_t id = bmi__op_id(op);
    bmi__op_give(op);
    CU_ASSERT_PTR_NULL(bmi__op_find(id));
    /* the same slot repeatedly: never an id that existed before */
    for (int i = 0; i < 1000; i++) {
        struct op *again = bmi__op_take(&bmi__default);
        CU_ASSERT_PTR_EQUAL(again, op);
        CU_ASSERT_NOT_EQUAL(bmi__op_id(again), id);
        CU_ASSERT_PTR_NULL(bmi__op_find(id));
        id = bmi__op_id(again);
        bmi__op_give(again);
    }
    CU_ASSERT_PTR_NULL(bmi__op_find(id));
    bmi__op_table_free();
}

/* A slot is used so often that its generations repeat: a completed id stays invalid. */
static void over_when_all_numbers_were_used(void)
{
    struct op *op = bmi__op_take(&bmi__default);
    CU_ASSERT_PTR_NOT_NULL_FATAL(op);
    unsigned first = op->generation, last = first > 1 ? first - 1 : INT32_MAX;
    op->generation = last > 1 ? last - 1 : INT32_MAX;
    bmi_op_id_t id = bmi__op_id(op);
    for (int i = 0; i < 4; i++) {
        bmi__op_give(op);
        CU_ASSERT_PTR_EQUAL_FATAL(bmi__op_take(&bmi__default), op);
        CU_ASSERT_TRUE(bmi__op_is_over(id));
        CU_ASSERT_FALSE(bmi__op_is_over(bmi__op_id(op)));
    }
    bmi__op_give(op);
    op->generation = first + 10; /* else the next table begins where this one has ended */
    op->used_up = false;
    bmi__op_table_free();
}

/* Also after so many uses of a slot that a new table's numbers could have been reached. */
static void given_back_ids_are_over(void)
{
    enum { USES = 100000 };
    bmi_op_id_t first = 0, last = 0;
    for (int i = 0; i < USES; i++) {
        struct op *op = bmi__op_take(&bmi__default);
        CU_ASSERT_PTR_NOT_NULL_FATAL(op);
        last = bmi__op_id(op);
        first = i == 0 ? last : first;
        if (bmi__op_is_over(last))
            CU_FAIL_FATAL("an operation in use is over");
        bmi__op_give(op);
        if (!bmi__op_is_over(last))
            CU_FAIL_FATAL("an operation given back is not over");
    }
    const bmi_op_id_t never[] = {0,
                                 -1,
                                 INT64_MIN,
                                 INT64_MAX,
                                 -first,
                                 first - (INT64_C(1) << 32),
                                 last + (INT64_C(1) << 32),
                                 last + (INT64_C(1) << 33),
                                 last ^ INT64_C(1) << 62,
                                 last + 4096};
    CU_ASSERT_TRUE(bmi__op_is_over(first));
    for (size_t i = 0; i < COUNT_OF(never); i++)
        CU_ASSERT_FALSE(bmi__op_is_over(never[i]));
    bmi__op_table_free();
    struct op *op = bmi__op_take(&bmi__default);
    CU_ASSERT_PTR_NOT_NULL_FATAL(op);
    CU_ASSERT_TRUE(bmi__op_id(op) > last);
    CU_ASSERT_PTR_NULL(bmi__op_find(first));
    CU_ASSERT_FALSE(bmi__op_is_over(first) || bmi__op_is_over(last));
    bmi__op_give(op);
    bmi__op_table_free();
}

static void an_invalid_id_finds_no_operation(void)
{
    struct op *op = bmi__op_take(&bmi__default);
    CU_ASSERT_PTR_NOT_NULL_FATAL(op);
    bmi_op_id_t id = bmi__op_id(op);
    const bmi_op_id_t bad[] = {0,
                               -1,
                               INT64_MIN,
                               INT64_MAX,
                               1,
                               UINT32_MAX,
                               id + 1,
                               id - 1,
                               -id,
                               id & UINT32_MAX,
                               id ^ INT64_C(1) << 32,
                               id ^ INT64_C(1) << 62,
                               id + 4096,
                               (id & ~INT64_C(0xffffffff))};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        CU_ASSERT_PTR_NULL(bmi__op_find(bad[i]));
    CU_ASSERT_PTR_EQUAL(bmi__op_find(id), op);
    bmi__op_give(op);
    bmi__op_table_free();
    CU_ASSERT_PTR_NULL(bmi__op_find(id));
}

static void a_field_left_behind_is_cleared(void)
{
    struct op *op = bmi__op_take(&bmi__default);
    CU_ASSERT_PTR_NOT_NULL_FATAL(op);
    op->flags = 0xff;
    op->stage = RECV_HELD;
    op->remote = 77;
    op->actual = op->expected = 5;
    op->error = -1;
    op->ready = true;
    op->held = (struct unmatched *)op;
    bmi__op_give(op);
    struct op *again = bmi__op_take(&bmi__default);
    CU_ASSERT_PTR_EQUAL(again, op);
    CU_ASSERT_TRUE(op_is_clear(again));
    bmi__op_give(again);
    bmi__op_table_free();
}

static void generation_never_becomes_zero(void)
{
    struct op *op = bmi__op_take(&bmi__default);
    CU_ASSERT_PTR_NOT_NULL_FATAL(op);
    atomic_store(&op->generation, 0x7fffffff);
    CU_ASSERT_TRUE(bmi__op_id(op) > 0);
    bmi__op_give(op);
    op = bmi__op_take(&bmi__default);
    CU_ASSERT_TRUE(bmi__op_id(op) > 0);
    CU_ASSERT_PTR_EQUAL(bmi__op_find(bmi__op_id(op)), op);
    bmi__op_give(op);
    bmi__op_table_free();
}

/* ---- threads -------------------------------------------------------------------------------- */

/* One thread takes operations and another returns them, as when one posts and the other tests. */
enum { THREADS = 4, ROUNDS = 20000, BOARD = 512 };
static _Atomic(struct op *) board[BOARD];
static atomic_int wrong;

static void *take_and_give(void *argument)
{
    uint64_t seed = (uint64_t)(uintptr_t)argument * 2654435769u + 1;
    for (int i = 0; i < ROUNDS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        struct op *op = NULL;
        if (seed >> 63) {
            op = bmi__op_take(&bmi__default);
            if (op == NULL || bmi__op_find(bmi__op_id(op)) != op)
                atomic_fetch_add(&wrong, 1);
        }
        struct op *other = atomic_exchange(&board[(seed >> 40) % BOARD], op);
        if (other == NULL)
            continue;
        bmi_op_id_t id = bmi__op_id(other);
        if (bmi__op_find(id) != other)
            atomic_fetch_add(&wrong, 1);
        bmi__op_give(other);
        if (bmi__op_find(id) != NULL || !bmi__op_is_over(id))
            atomic_fetch_add(&wrong, 1);
    }
    return NULL;
}

static void threads_take_and_others_give(void)
{
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, take_and_give, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CU_ASSERT_EQUAL(wrong, 0);
    for (int i = 0; i < BOARD; i++) {
        struct op *op = atomic_exchange(&board[i], NULL);
        if (op != NULL)
            bmi__op_give(op);
    }
    bmi__op_table_free();
}

static void *take_some_and_exit(void *ops)
{
    for (int i = 0; i < 10; i++)
        ((struct op **)ops)[i] = bmi__op_take(&bmi__default);
    for (int i = 0; i < 5; i++)
        bmi__op_give(((struct op **)ops)[i]);
    return NULL;
}

/* A thread's cache goes back to the table when it ends: 200 threads one after another need one
 * chunk, not 200. */
static void a_thread_that_ends_returns_its_cache(void)
{
    for (int i = 0; i < 200; i++) {
        struct op *ops[10];
        pthread_t thread;
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, take_some_and_exit, ops), 0);
        pthread_join(thread, NULL);
        for (int k = 0; k < 10; k++)
            CU_ASSERT_TRUE(ops[k]->slot < 512);
        for (int k = 5; k < 10; k++)
            bmi__op_give(ops[k]);
    }
    bmi__op_table_free();
}

static void note_slot(struct op *op, void *argument)
{
    *(uint64_t *)argument |= UINT64_C(1) << op->slot % 64;
}

/* An instance's walk visits its operations only, and its end gives those back. */
static void operations_belong_to_an_instance(void)
{
    struct bmi_instance other = {0};
    struct op *ours = bmi__op_take(&bmi__default), *others[2];
    for (int i = 0; i < 2; i++)
        others[i] = bmi__op_take(&other);
    CU_ASSERT_TRUE_FATAL(ours != NULL && others[0] != NULL && others[1] != NULL);
    bmi_op_id_t id = bmi__op_id(ours), stale = bmi__op_id(others[1]);
    uint64_t seen = 0;
    bmi__op_each(&bmi__default, note_slot, &seen);
    CU_ASSERT_EQUAL(seen, UINT64_C(1) << ours->slot % 64);
    bmi__ops_give(&other);
    CU_ASSERT_PTR_EQUAL(bmi__op_find(id), ours);
    CU_ASSERT_PTR_NULL(bmi__op_find(stale));
    seen = 0;
    bmi__op_each(&other, note_slot, &seen);
    CU_ASSERT_EQUAL(seen, 0);
    bmi__op_give(ours);
    bmi__op_table_free();
}

/* ---- the table's end ------------------------------------------------------------------------ */

static atomic_int phase;

static void *outlive_the_table(void *unused)
{
    (void)unused;
    struct op *op = bmi__op_take(&bmi__default);
    bmi_op_id_t id = bmi__op_id(op);
    bmi__op_give(op); /* its cache has slots of the first table now */
    atomic_store(&phase, 1);
    while (atomic_load(&phase) != 2)
        sched_yield();
    struct op *fresh = bmi__op_take(&bmi__default);
    if (fresh == NULL || bmi__op_find(id) != NULL || bmi__op_find(bmi__op_id(fresh)) != fresh ||
        !op_is_clear(fresh))
        atomic_fetch_add(&wrong, 1);
    bmi__op_give(fresh);
    return NULL;
}

static void a_new_table_knows_nothing_of_the_old(void)
{
    pthread_t thread;
    bmi_op_id_t old[64];
    for (int i = 0; i < 64; i++)
        old[i] = bmi__op_id(bmi__op_take(&bmi__default));
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, outlive_the_table, NULL), 0);
    while (atomic_load(&phase) != 1)
        sched_yield();
    bmi__op_table_free();
    struct op *op = bmi__op_take(&bmi__default);
    CU_ASSERT_PTR_NOT_NULL_FATAL(op);
    for (int i = 0; i < 64; i++)
        CU_ASSERT_PTR_NULL(bmi__op_find(old[i]));
    atomic_store(&phase, 2);
    pthread_join(thread, NULL);
    CU_ASSERT_EQUAL(wrong, 0);
    bmi__op_give(op);
    bmi__op_table_free();
}

/* ---- lists ---------------------------------------------------------------------------------- */

static bool list_is(const struct op_list *list, struct op *const *expected, int count)
{
    struct op *op = list->first, *previous = NULL;
    for (int i = 0; i < count; i++, previous = op, op = op->next)
        if (op != expected[i] || op->previous != previous)
            return false;
    return op == NULL && list->last == previous;
}

static void lists(void)
{
    struct op a = {0}, b = {0}, c = {0};
    struct op_list list = {0};
    bmi__op_append(&list, &b);
    bmi__op_append(&list, &c);
    bmi__op_prepend(&list, &a);
    CU_ASSERT_TRUE(list_is(&list, (struct op *[]){&a, &b, &c}, 3));
    bmi__op_remove(&list, &b);
    CU_ASSERT_TRUE(list_is(&list, (struct op *[]){&a, &c}, 2));
    CU_ASSERT_TRUE(b.next == NULL && b.previous == NULL);
    bmi__op_remove(&list, &c);
    CU_ASSERT_TRUE(list_is(&list, (struct op *[]){&a}, 1));
    bmi__op_remove(&list, &a);
    CU_ASSERT_TRUE(list_is(&list, NULL, 0));
    bmi__op_prepend(&list, &a);
    CU_ASSERT_TRUE(list_is(&list, (struct op *[]){&a}, 1));
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"ids are positive and differ", ids_are_positive_and_differ},
        {"given-back ids are stale", given_back_ids_are_stale},
        {"given-back ids are over", given_back_ids_are_over},
        {"over when all numbers were used", over_when_all_numbers_were_used},
        {"an invalid id finds no operation", an_invalid_id_finds_no_operation},
        {"a field left behind is cleared", a_field_left_behind_is_cleared},
        {"a generation never becomes zero", generation_never_becomes_zero},
        {"threads take, others give", threads_take_and_others_give},
        {"a thread that ends returns its cache", a_thread_that_ends_returns_its_cache},
        {"operations belong to an instance", operations_belong_to_an_instance},
        {"a new table knows nothing of the old", a_new_table_knows_nothing_of_the_old},
        {"lists", lists},
        CU_TEST_INFO_NULL,
    };
    return unit_run("operations", tests);
}
