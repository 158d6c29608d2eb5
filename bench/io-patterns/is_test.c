/* SPDX-License-Identifier: BSD-3-Clause
 *
 * is_test.c - the integer sort among threads that exchange by memory: verification passes, and it
 * notices an exchange that is broken. Three threads have parts of unequal sizes.
 */
#include "is_sort.h"

#include <CUnit/Basic.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 3, EVERY = -1 /* exchange of keys */ };

enum fault { NO_FAULT, KEY_CHANGED, KEY_OUT_OF_RANGE, PART_LOST, PART_TWICE };

struct thread_exchange {
    struct is_exchange base;
    pthread_t thread;
    const struct is_class *kind;
    enum fault fault;
    int broken;    /* which exchange of keys is; the first one is not timed */
    int exchanges; /* of keys so far */
    struct is_result result;
};

static pthread_barrier_t barrier;
static const void *shown[THREADS]; /* by rank, between two barriers */

static void show(const struct is_exchange *exchange, const void *memory)
{
    shown[exchange->rank] = memory;
    pthread_barrier_wait(&barrier);
}

static void sum_exchange(struct is_exchange *exchange, uint32_t *values, int count)
{
    uint32_t *sums = calloc((size_t)count, sizeof *sums);
    show(exchange, values);
    for (int i = 0; i < THREADS; i++)
        for (int j = 0; j < count; j++)
            sums[j] += ((const uint32_t *)shown[i])[j];
    pthread_barrier_wait(&barrier);
    memcpy(values, sums, (size_t)count * sizeof *sums);
    free(sums);
}

static void sizes_exchange(struct is_exchange *exchange, uint32_t *out, uint32_t *in)
{
    show(exchange, out);
    for (int i = 0; i < THREADS; i++)
        in[i] = ((const uint32_t *)shown[i])[exchange->rank];
    pthread_barrier_wait(&barrier);
}

/* Damages the keys that came from rank 1. */
static void keys_damage(enum fault fault, const struct is_parts *in)
{
    uint32_t *part = in->words + in->places[1];
    size_t bytes = (size_t)in->counts[1] * sizeof *part;
    if (fault == KEY_CHANGED)
        part[0] ^= 1;
    else if (fault == KEY_OUT_OF_RANGE)
        part[0] = UINT32_MAX;
    else if (fault == PART_LOST)
        memset(part, 0, bytes);
    else if (fault == PART_TWICE) /* another rank's instead */
        memmove(part, in->words, bytes);
}

static void keys_exchange(struct is_exchange *base, const struct is_parts *out,
                          const struct is_parts *in)
{
    struct thread_exchange *exchange = (struct thread_exchange *)base;
    show(base, out);
    for (int i = 0; i < THREADS; i++) {
        const struct is_parts *from = shown[i];
        memcpy(in->words + in->places[i], from->words + from->places[base->rank],
               (size_t)in->counts[i] * sizeof *in->words);
    }
    if (exchange->broken == EVERY || exchange->broken == exchange->exchanges)
        keys_damage(exchange->fault, in);
    exchange->exchanges++;
    pthread_barrier_wait(&barrier);
}

static void *thread_main(void *argument)
{
    struct thread_exchange *exchange = argument;
    is_sort(exchange->kind, &exchange->base, &exchange->result);
    return NULL;
}

/* Sorts while the exchange of the last thread is broken, which has keys of published ranks.
 * Returns: all threads' result. */
static struct is_result sort_with(const char *kind, enum fault fault, int broken)
{
    struct thread_exchange threads[THREADS];
    struct is_result all = {0};
    CU_ASSERT_EQUAL_FATAL(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        threads[i] = (struct thread_exchange){.base = {.rank = i,
                                                       .count = THREADS,
                                                       .sum = sum_exchange,
                                                       .sizes = sizes_exchange,
                                                       .keys = keys_exchange},
                                              .kind = is_class_named(kind),
                                              .fault = i == THREADS - 1 ? fault : NO_FAULT,
                                              .broken = broken};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i].thread, NULL, thread_main, &threads[i]),
                              0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i].thread, NULL);
        all.ranks_right += threads[i].result.ranks_right;
        all.misplaced += threads[i].result.misplaced;
    }
    pthread_barrier_destroy(&barrier);
    return all;
}

static void test_sorted(void)
{
    static const char *const kinds[] = {"S", "W"};
    for (int i = 0; i < 2; i++) {
        /* given an exchange that works, when keys are sorted */
        struct is_result all = sort_with(kinds[i], NO_FAULT, EVERY);
        /* then all published ranks are right, and all keys in order */
        CU_ASSERT_EQUAL(all.ranks_right, IS_TESTS * IS_ITERATIONS);
        CU_ASSERT_EQUAL(all.misplaced, 0);
    }
}

static void test_full(void)
{
    for (enum fault fault = KEY_CHANGED; fault <= PART_TWICE; fault++) {
        /* given an exchange that is always broken, when keys are sorted */
        struct is_result all = sort_with("S", fault, EVERY);
        /* then full verification notices it */
        CU_ASSERT(all.misplaced > 0);
    }
}

static void test_partial(void)
{
    /* given an exchange that is broken once, when keys are sorted */
    struct is_result all = sort_with("S", PART_LOST, IS_ITERATIONS / 2);
    /* then partial verification notices it, and full verification cannot */
    CU_ASSERT(all.ranks_right < IS_TESTS * IS_ITERATIONS);
    CU_ASSERT_EQUAL(all.misplaced, 0);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"sorted", test_sorted},
        {"full verification", test_full},
        {"partial verification", test_partial},
        CU_TEST_INFO_NULL,
    };
    CU_SuiteInfo suites[] = {{.pName = "is_sort", .pTests = tests}, CU_SUITE_INFO_NULL};
    if (CU_initialize_registry() != CUE_SUCCESS || CU_register_suites(suites) != CUE_SUCCESS)
        return 1;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failed = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failed == 0 ? 0 : 1;
}
