/* SPDX-License-Identifier: BSD-3-Clause
 *
 * is_sort.h - the integer sort (IS) of the NAS Parallel Benchmarks, report RNR-94-007.
 *
 * N processes have the keys in equal parts. In each of ten iterations they put their keys into
 * buckets, add up the buckets' sizes, give each process neighbouring buckets with about as many
 * keys, exchange the keys, and count them: so each key's rank is known. An iteration checks the
 * ranks of five keys (partial verification); after the last one the keys are put in order and
 * checked (full verification). BMI and MPI share all of this; a struct is_exchange is how the
 * processes exchange. One thread a process; no locks.
 */
#ifndef BENCH_IS_SORT_H
#define BENCH_IS_SORT_H

#include <stdint.h>

#define IS_TESTS 5
#define IS_ITERATIONS 10
#define IS_VALUES_MAX (1024 + IS_TESTS) /* in a sum: those of the buckets, and keys */

struct is_class {
    char name;
    uint8_t keys_log2, range_log2, buckets_log2; /* number of keys; keys are below 2^range_log2 */
    struct {
        uint32_t index, rank; /* of a key at the beginning */
        int8_t step;          /* its rank grows by this in an iteration */
        uint8_t from;         /* the iteration in which it has that rank */
    } tests[IS_TESTS];
};

const struct is_class *is_class_named(const char *name); /* NULL: none */
const struct is_class *is_class_of(uint64_t keys);

/* What a process sends to each process, or receives from each: `counts` words from `places` on. */
struct is_parts {
    uint32_t *words;
    int *counts, *places;
};

/* Calls that all processes make in the same order. */
struct is_exchange {
    int rank, count; /* of processes */
    /* Replaces each value by the sum of all processes' values. */
    void (*sum)(struct is_exchange *exchange, uint32_t *values, int count);
    /* Sends out[i] to process i, and receives in[i] from it. */
    void (*sizes)(struct is_exchange *exchange, uint32_t *out, uint32_t *in);
    /* Sends each process its part, and receives one from each, this process included. */
    void (*keys)(struct is_exchange *exchange, const struct is_parts *out,
                 const struct is_parts *in);
};

struct is_result {
    double seconds, communication_seconds; /* of the ten iterations */
    uint32_t ranks_right;                  /* found by this process, of IS_TESTS an iteration */
    uint32_t misplaced;                    /* keys that full verification found fault with */
};

void is_sort(const struct is_class *kind, struct is_exchange *exchange, struct is_result *result);

#endif
