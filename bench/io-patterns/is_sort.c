/* SPDX-License-Identifier: BSD-3-Clause
 *
 * is_sort.c - see is_sort.h. The keys' memory, as far as it is exchanged, is that of the sample
 * (data_allocate); every other array belongs to one sort.
 */
#include "is_sort.h"
#include "bench.h"

#include <stdlib.h>
#include <string.h>

/* Indices, ranks, and their changes are the specification's. */
static const struct is_class classes[] = {
    {'S',
     16,
     11,
     9,
     {{48427, 0, 1, 0},
      {17148, 18, 1, 0},
      {23627, 346, 1, 0},
      {62548, 64917, -1, 0},
      {4431, 65463, -1, 0}}},
    {'W',
     20,
     16,
     10,
     {{357773, 1249, 1, 2},
      {934767, 11698, 1, 2},
      {875723, 1039987, -1, 0},
      {898999, 1043896, -1, 0},
      {404505, 1048018, -1, 0}}},
    {'A',
     23,
     19,
     10,
     {{2112377, 104, 1, 1},
      {662041, 17523, 1, 1},
      {5336171, 123928, 1, 1},
      {3642833, 8288932, -1, 1},
      {4250760, 8388264, -1, 1}}},
    {'B',
     25,
     21,
     10,
     {{41869, 33422937, -1, 0},
      {812306, 10244, 1, 0},
      {5102857, 59149, 1, 0},
      {18232239, 33135281, -1, 0},
      {26860214, 99, 1, 0}}},
};
enum { CLASSES = sizeof classes / sizeof *classes };

const struct is_class *is_class_named(const char *name)
{
    for (int i = 0; i < CLASSES; i++)
        if (name[0] == classes[i].name && name[1] == 0)
            return &classes[i];
    return NULL;
}

const struct is_class *is_class_of(uint64_t keys)
{
    for (int i = 0; i < CLASSES; i++)
        if (keys == 1ull << classes[i].keys_log2)
            return &classes[i];
    return NULL;
}

/* ---- the published generator --------------------------------------------------------------- */

#define RANDOM_BITS 46
#define RANDOM_MASK ((1ull << RANDOM_BITS) - 1)
#define RANDOM_SEED 314159265ull
#define RANDOM_FACTOR 1220703125ull /* 5^13 */
#define NUMBERS 4                   /* a key is their mean */

static uint64_t random_next(uint64_t *number)
{
    *number = *number * RANDOM_FACTOR & RANDOM_MASK;
    return *number;
}

/* Returns: the generator after `steps` numbers, so that each process makes its own keys. */
static uint64_t random_after(uint64_t steps)
{
    uint64_t number = RANDOM_SEED, factor = RANDOM_FACTOR;
    for (; steps > 0; steps >>= 1) {
        if (steps & 1)
            number = number * factor & RANDOM_MASK;
        factor = factor * factor & RANDOM_MASK;
    }
    return number;
}

/* ---- one process's part -------------------------------------------------------------------- */

struct sort {
    const struct is_class *kind;
    struct is_exchange *exchange;
    struct is_result *result;
    int buckets, shift;        /* a key's bucket is the key >> shift */
    uint32_t first, key_count; /* the keys that this process has */
    uint32_t *keys;            /* unsorted */
    uint32_t *sizes, *totals;  /* of each bucket, here and in all; totals[buckets + i]: test i */
    uint32_t *places;          /* of each bucket in out.words */
    struct is_parts out, in;   /* by process */
    uint32_t room;             /* of in.words */
    uint32_t *out_sizes, *in_sizes;
    uint32_t least, end; /* the keys that this process ranks are in [least, end) */
    uint32_t below;      /* keys of the processes before this one */
    uint32_t received;   /* keys in in.words */
    uint32_t *ranks;     /* by key: how many of those received are not larger */
    uint64_t communication_ns;
};

static uint32_t keys_before(const struct sort *sort, int process)
{
    return (uint32_t)(((uint64_t)process << sort->kind->keys_log2) /
                      (uint64_t)sort->exchange->count);
}

static uint32_t range(const struct sort *sort)
{
    return 1u << sort->kind->range_log2;
}

static void parts_open(struct is_parts *parts, uint32_t words, int processes)
{
    parts->words = data_allocate(words * sizeof *parts->words);
    parts->counts = allocate((size_t)processes * sizeof *parts->counts);
    parts->places = allocate((size_t)processes * sizeof *parts->places);
}

static void parts_close(struct is_parts *parts, uint32_t words)
{
    data_release(parts->words, words * sizeof *parts->words);
    free(parts->counts);
    free(parts->places);
}

/* A process gets a bucket more than its share, and the largest one has less than 3 times the mean
 * size: the mean of four numbers has a density of 8/3 in the middle. */
static uint32_t receive_room(const struct sort *sort)
{
    uint32_t total = 1u << sort->kind->keys_log2;
    return total / (uint32_t)sort->exchange->count + total / (uint32_t)sort->buckets * 3 + 1024;
}

static void sort_open(struct sort *sort, const struct is_class *kind, struct is_exchange *exchange,
                      struct is_result *result)
{
    int processes = exchange->count;
    *sort = (struct sort){.kind = kind,
                          .exchange = exchange,
                          .result = result,
                          .buckets = 1 << kind->buckets_log2,
                          .shift = kind->range_log2 - kind->buckets_log2};
    sort->first = keys_before(sort, exchange->rank);
    sort->key_count = keys_before(sort, exchange->rank + 1) - sort->first;
    sort->room = receive_room(sort);
    sort->keys = allocate(sort->key_count * sizeof *sort->keys);
    sort->sizes = allocate((size_t)sort->buckets * sizeof *sort->sizes);
    sort->totals = allocate((size_t)(sort->buckets + IS_TESTS) * sizeof *sort->totals);
    sort->places = allocate((size_t)sort->buckets * sizeof *sort->places);
    sort->ranks = allocate(range(sort) * sizeof *sort->ranks);
    sort->out_sizes = allocate((size_t)processes * sizeof *sort->out_sizes);
    sort->in_sizes = allocate((size_t)processes * sizeof *sort->in_sizes);
    parts_open(&sort->out, sort->key_count, processes);
    parts_open(&sort->in, sort->room, processes);
}

static void sort_close(struct sort *sort)
{
    parts_close(&sort->out, sort->key_count);
    parts_close(&sort->in, sort->room);
    free(sort->keys);
    free(sort->sizes);
    free(sort->totals);
    free(sort->places);
    free(sort->ranks);
    free(sort->out_sizes);
    free(sort->in_sizes);
}

static void keys_make(struct sort *sort)
{
    uint64_t number = random_after((uint64_t)sort->first * NUMBERS);
    int shift = RANDOM_BITS + 2 - sort->kind->range_log2; /* 2: the sum of four is not their mean */
    for (uint32_t i = 0; i < sort->key_count; i++) {
        uint64_t sum = 0;
        for (int j = 0; j < NUMBERS; j++)
            sum += random_next(&number);
        sort->keys[i] = (uint32_t)(sum >> shift);
    }
}

/* Returns: where this process has the key with that index; NULL: another process does. */
static uint32_t *key_at(const struct sort *sort, uint32_t index)
{
    uint32_t place = index - sort->first;
    return index >= sort->first && place < sort->key_count ? &sort->keys[place] : NULL;
}

/* Each iteration changes two keys, so that it has something to find out. */
static void keys_change(struct sort *sort, uint32_t iteration)
{
    uint32_t *low = key_at(sort, iteration), *high = key_at(sort, iteration + IS_ITERATIONS);
    if (low)
        *low = iteration;
    if (high)
        *high = range(sort) - iteration;
}

/* ---- an iteration -------------------------------------------------------------------------- */

static void buckets_count(struct sort *sort)
{
    memset(sort->sizes, 0, (size_t)sort->buckets * sizeof *sort->sizes);
    for (uint32_t i = 0; i < sort->key_count; i++)
        sort->sizes[sort->keys[i] >> sort->shift]++;
    memcpy(sort->totals, sort->sizes, (size_t)sort->buckets * sizeof *sort->sizes);
    for (int i = 0; i < IS_TESTS; i++) {
        const uint32_t *key = key_at(sort, sort->kind->tests[i].index);
        sort->totals[sort->buckets + i] = key ? *key : 0;
    }
}

static void buckets_fill(struct sort *sort)
{
    uint32_t place = 0, *words = sort->out.words;
    for (int i = 0; i < sort->buckets; i++) {
        sort->places[i] = place;
        place += sort->sizes[i];
    }
    for (uint32_t i = 0; i < sort->key_count; i++)
        words[sort->places[sort->keys[i] >> sort->shift]++] = sort->keys[i];
}

/* Gives the processes their buckets, in order: each takes buckets until all processes up to it have
 * their share. */
static void buckets_share(struct sort *sort)
{
    const struct is_exchange *exchange = sort->exchange;
    uint32_t all = 0, place = 0;
    for (int process = 0, bucket = 0; process < exchange->count; process++) {
        uint32_t share = keys_before(sort, process + 1), below = all, words = 0;
        int first = bucket;
        for (; bucket < sort->buckets && all < share; bucket++) {
            all += sort->totals[bucket];
            words += sort->sizes[bucket];
        }
        if (process == exchange->rank) {
            sort->below = below;
            sort->least = (uint32_t)first << sort->shift;
            sort->end = (uint32_t)bucket << sort->shift;
        }
        sort->out_sizes[process] = words;
        sort->out.counts[process] = (int)words;
        sort->out.places[process] = (int)place;
        place += words;
    }
}

static void receive_prepare(struct sort *sort)
{
    sort->received = 0;
    for (int i = 0; i < sort->exchange->count; i++) {
        if (sort->in_sizes[i] > sort->room - sort->received)
            die("the processes' sizes of their parts are wrong");
        sort->in.counts[i] = (int)sort->in_sizes[i];
        sort->in.places[i] = (int)sort->received;
        sort->received += sort->in_sizes[i];
    }
}

static void keys_exchange(struct sort *sort)
{
    struct is_exchange *exchange = sort->exchange;
    uint64_t start = now_ns();
    exchange->sum(exchange, sort->totals, sort->buckets + IS_TESTS);
    sort->communication_ns += now_ns() - start;
    buckets_share(sort);
    start = now_ns();
    exchange->sizes(exchange, sort->out_sizes, sort->in_sizes);
    receive_prepare(sort);
    exchange->keys(exchange, &sort->out, &sort->in);
    sort->communication_ns += now_ns() - start;
}

/* A wrong key must not be written outside of the array, hence the mask. */
static void keys_rank(struct sort *sort)
{
    uint32_t *ranks = sort->ranks, mask = range(sort) - 1;
    const uint32_t *words = sort->in.words;
    memset(ranks + sort->least, 0, (sort->end - sort->least) * sizeof *ranks);
    for (uint32_t i = 0; i < sort->received; i++)
        ranks[words[i] & mask]++;
    for (uint32_t key = sort->least + 1; key < sort->end; key++)
        ranks[key] += ranks[key - 1];
}

static void ranks_verify(struct sort *sort, int iteration)
{
    for (int i = 0; i < IS_TESTS; i++) {
        uint32_t key = sort->totals[sort->buckets + i];
        if (key < sort->least || key >= sort->end)
            continue;
        int64_t expected = sort->kind->tests[i].rank;
        expected += sort->kind->tests[i].step * (iteration - sort->kind->tests[i].from);
        uint32_t rank = sort->below + (key > sort->least ? sort->ranks[key - 1] : 0);
        sort->result->ranks_right += rank == expected;
    }
}

static void iteration_run(struct sort *sort, int iteration)
{
    keys_change(sort, (uint32_t)iteration);
    buckets_count(sort);
    buckets_fill(sort);
    keys_exchange(sort);
    keys_rank(sort);
    ranks_verify(sort, iteration);
}

/* ---- full verification --------------------------------------------------------------------- */

static uint32_t words_sum(const uint32_t *words, uint32_t count)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += words[i];
    return sum;
}

/* Puts the received keys in order. Returns: how many are not those of this process. */
static uint32_t keys_place(struct sort *sort, uint32_t *sorted)
{
    uint32_t misplaced = 0;
    for (uint32_t i = 0; i < sort->received; i++) {
        uint32_t key = sort->in.words[i];
        if (key < sort->least || key >= sort->end)
            misplaced++;
        else
            sorted[--sort->ranks[key]] = key;
    }
    return misplaced;
}

/* Returns: how many keys are smaller than one before them, also of another process. */
static uint32_t order_check(struct sort *sort, const uint32_t *sorted)
{
    const struct is_exchange *exchange = sort->exchange;
    uint32_t misplaced = 0, last = 0;
    for (int i = 0; i < exchange->count; i++)
        sort->out_sizes[i] = sort->received > 0 ? sorted[sort->received - 1] : 0;
    exchange->sizes(sort->exchange, sort->out_sizes, sort->in_sizes);
    for (int i = 0; i < exchange->rank; i++)
        if (sort->in_sizes[i] > last)
            last = sort->in_sizes[i];
    for (uint32_t i = 0; i < sort->received; i++) {
        misplaced += sorted[i] < last;
        last = sorted[i];
    }
    return misplaced;
}

/* Beyond the published check of the order, the sum says that these are the keys of the beginning.
 */
static void order_verify(struct sort *sort)
{
    uint32_t *sorted = allocate(sort->received * sizeof *sorted);
    uint32_t misplaced = keys_place(sort, sorted);
    misplaced += order_check(sort, sorted);
    uint32_t lost = words_sum(sort->keys, sort->key_count) - words_sum(sorted, sort->received);
    sort->exchange->sum(sort->exchange, &lost, 1);
    sort->result->misplaced = misplaced + (lost != 0);
    free(sorted);
}

void is_sort(const struct is_class *kind, struct is_exchange *exchange, struct is_result *result)
{
    struct sort sort;
    uint32_t barrier = 0;
    *result = (struct is_result){0};
    sort_open(&sort, kind, exchange, result);
    keys_make(&sort);
    iteration_run(&sort, 1); /* as the specification says: connections, pages */
    result->ranks_right = 0;
    sort.communication_ns = 0;
    exchange->sum(exchange, &barrier, 1);
    uint64_t start = now_ns();
    for (int i = 1; i <= IS_ITERATIONS; i++)
        iteration_run(&sort, i);
    result->seconds = seconds_since(start);
    result->communication_seconds = (double)sort.communication_ns * 1e-9;
    order_verify(&sort);
    sort_close(&sort);
}
