/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The queue: order, overflow, and that each pushed task comes out exactly once under all
 * races. The ring is small, so that rounds, spilling and refilling happen all the time.
 */
#include "task/queue.h"
#include "task/testing.h"

#include <pthread.h>

enum { SLOTS = 8, MANY = 1000, THREADS = 4, EACH = 20000, OWN = 16 };

static void test_order(void)
{
    static struct bmi_task tasks[MANY];
    struct bmi__queue *queue = bmi__queue_create(SLOTS);
    CU_ASSERT_TRUE(bmi__queue_empty(queue));
    CU_ASSERT_PTR_NULL(bmi__queue_pop(queue));
    for (int round = 0; round < 5; round++) {
        int next = 0;
        for (int i = 0; i < MANY; i++) {
            bmi__queue_push(queue, &tasks[i]);
            CU_ASSERT_FALSE(bmi__queue_empty(queue));
            if (i % 3 == round % 3)
                CU_ASSERT_PTR_EQUAL(bmi__queue_pop(queue), &tasks[next++]);
        }
        while (next < MANY)
            CU_ASSERT_PTR_EQUAL(bmi__queue_pop(queue), &tasks[next++]);
        CU_ASSERT_TRUE(bmi__queue_empty(queue));
        CU_ASSERT_PTR_NULL(bmi__queue_pop(queue));
    }
    struct bmi__queue_counts counts;
    bmi__queue_count(queue, &counts);
    CU_ASSERT_EQUAL(counts.pushed, 5 * MANY);
    CU_ASSERT_EQUAL(counts.popped, 5 * MANY);
    CU_ASSERT_EQUAL(bmi__queue_length(queue), 0);
    bmi__queue_destroy(queue);
}

/* Each task is in the queue or out; `out` records it, and detects a second owner. */
struct item {
    struct bmi_task task; /* first */
    atomic_uint in;
    atomic_uint pops;
};

static struct bmi__queue *shared;
static struct item items[THREADS][OWN];
static atomic_uint pushed, popped, wrong;

static void take_one(void)
{
    struct item *item = (struct item *)bmi__queue_pop(shared);
    if (item == NULL)
        return;
    atomic_fetch_add(&popped, 1);
    item->pops++;
    if (atomic_exchange(&item->in, 0) != 1)
        atomic_fetch_add(&wrong, 1);
}

static void *push_and_pop(void *argument)
{
    struct item *own = argument;
    for (int left = EACH; left > 0;) {
        struct item *item = &own[left % OWN];
        unsigned out = 0;
        if (atomic_compare_exchange_strong(&item->in, &out, 1)) {
            atomic_fetch_add(&pushed, 1);
            bmi__queue_push(shared, &item->task);
            left--;
        }
        take_one();
    }
    return NULL;
}

static void test_each_once(void)
{
    pthread_t threads[THREADS];
    shared = bmi__queue_create(SLOTS);
    atomic_store(&pushed, 0);
    atomic_store(&popped, 0);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, push_and_pop, items[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    while (!bmi__queue_empty(shared))
        take_one();
    CU_ASSERT_EQUAL(atomic_load(&wrong), 0);
    CU_ASSERT_EQUAL(atomic_load(&pushed), THREADS * EACH);
    CU_ASSERT_EQUAL(atomic_load(&popped), THREADS * EACH);
    struct bmi__queue_counts counts;
    bmi__queue_count(shared, &counts);
    CU_ASSERT_EQUAL(counts.pushed, THREADS * EACH);
    CU_ASSERT_EQUAL(counts.popped, THREADS * EACH);
    bmi__queue_destroy(shared);
}

/* One pusher's tasks come out in its order, also through the overflow: two threads, one popping. */
static void *push_in_order(void *argument)
{
    struct item *many = argument;
    for (int i = 0; i < MANY; i++)
        bmi__queue_push(shared, &many[i].task);
    return NULL;
}

static void test_order_across_threads(void)
{
    static struct item many[MANY];
    for (int round = 0; round < 20; round++) {
        pthread_t thread;
        shared = bmi__queue_create(SLOTS);
        pthread_create(&thread, NULL, push_in_order, many);
        int next = 0, disorder = 0;
        while (next < MANY) {
            struct bmi_task *task = bmi__queue_pop(shared);
            if (task == NULL)
                sched_yield();
            else
                disorder += task != &many[next++].task;
        }
        pthread_join(thread, NULL);
        CU_ASSERT_EQUAL(disorder, 0);
        CU_ASSERT_TRUE(bmi__queue_empty(shared));
        bmi__queue_destroy(shared);
    }
}

int main(void)
{
    CU_TestInfo cases[] = {
        {"first in, first out, beyond its slots", test_order},
        {"each task comes out once", test_each_once},
        {"order across threads", test_order_across_threads},
        CU_TEST_INFO_NULL,
    };
    return test_run("queue", cases);
}
