/* SPDX-License-Identifier: BSD-3-Clause
 *
 * copy_test.c - copies that stream: every byte, none beside, at all alignments and lengths; and the
 * choice between the ways.
 */
#include "harness.h"
#include "internal.h"

enum { AREA = 128 << 10, BESIDE = 128, GUARD = 0xa5 };

static uint8_t source[AREA + 64], target[AREA + 2 * BESIDE + 64];

static void sources_fill(void)
{
    for (size_t i = 0; i < sizeof(source); i++)
        source[i] = (uint8_t)(i * 31 + (i >> 8) * 7 + 1);
}

static bool is_guarded(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != GUARD)
            return false;
    return true;
}

/* Whether a copy to target + BESIDE + to was right, and nothing else was written near it. */
static bool is_right(size_t to, size_t from, size_t length)
{
    return memcmp(target + BESIDE + to, source + from, length) == 0 &&
           is_guarded(target + to, BESIDE) &&
           is_guarded(target + BESIDE + to + length, BESIDE - to);
}

static void every_alignment_and_length(void)
{
    static const size_t LENGTHS[] = {0,   1,   15,  16,   63,   64,   65,   127,
                                     128, 129, 191, 1000, 4096, 4097, 20000};
    unsigned wrong = 0;
    sources_fill();
    for (size_t i = 0; i < sizeof(LENGTHS) / sizeof(*LENGTHS); i++)
        for (size_t to = 0; to < 64; to++)
            for (size_t from = 0; from < 64; from += 7) {
                memset(target, GUARD, LENGTHS[i] + 2 * BESIDE + 64);
                nic__copy_streaming(target + BESIDE + to, source + from, LENGTHS[i]);
                wrong += !is_right(to, from, LENGTHS[i]);
            }
    CU_ASSERT_EQUAL(wrong, 0);
}

/* Makes the next copy there one to memory that may be in a cache. */
static void know(struct nic_copier *copier, uint8_t *to)
{
    unsigned turn = atomic_load(&copier->turn);
    nic__copy(copier, to, source, 16 << 10);
    atomic_store(&copier->turn, turn); /* where nothing streams it counted */
}

/* Copies to other memory are not timed; memory that was written too long ago counts as other. */
static void only_what_a_cache_may_hold_is_timed(void)
{
    enum { PIECE = 16 << 10, MANY = NIC_COPY_PLACES + 1 };
    struct nic_copier copier = {.turn = 0};
    sources_fill();
    for (unsigned round = 0; round < 2; round++) {
        know(&copier, target);
        atomic_store(&copier.cost[NIC_COPY_PLAIN], 0);
        nic__copy(&copier, target, source, PIECE);
        CU_ASSERT(atomic_load(&copier.cost[NIC_COPY_PLAIN]) > 0);
        atomic_store(&copier.turn, 0);
        /* as if other memory was written */
        atomic_fetch_add(&copier.copied, (uint64_t)MANY * PIECE);
        atomic_store(&copier.cost[NIC_COPY_PLAIN], 0);
        nic__copy(&copier, target, source, PIECE);
#ifdef __SSE2__ /* else there is only one method */
        CU_ASSERT_EQUAL(atomic_load(&copier.turn), 0);
        CU_ASSERT_EQUAL(atomic_load(&copier.cost[NIC_COPY_PLAIN]), 0);
#endif
    }
}

static void both_ways_copy_alike(void)
{
    struct nic_copier copier = {.turn = 0};
    unsigned wrong = 0;
    sources_fill();
    for (unsigned i = 0; i < 400; i++) {
        size_t to = i * 5 % 64, from = i * 11 % 64, length = i % 3 == 0 ? 1000 : AREA - i * 64;
        memset(target, GUARD, sizeof(target));
        nic__copy(&copier, target + BESIDE + to, source + from, length);
        wrong += !is_right(to, from, length);
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT(atomic_load(&copier.cost[NIC_COPY_PLAIN]) > 0);
    CU_ASSERT(atomic_load(&copier.cost[NIC_COPY_STREAM]) > 0);
}

/* The slower method is still tried, so that its average can come down. */
static void a_way_that_was_bad_is_tried_again(void)
{
    static const uint64_t DEAR = 1000000000000000; /* more than any copy takes */
    for (int way = 0; way < NIC_COPY_WAYS; way++) {
        struct nic_copier copier = {.turn = 2};
        atomic_store(&copier.cost[way], DEAR);
        atomic_store(&copier.cost[!way], 1);
        know(&copier, target);
        for (unsigned i = 0; i < 62; i++)
            nic__copy(&copier, target, source, 16 << 10);
        CU_ASSERT_EQUAL(atomic_load(&copier.cost[way]), DEAR);
        CU_ASSERT_NOT_EQUAL(atomic_load(&copier.cost[!way]), 1);
        nic__copy(&copier, target, source, 16 << 10);
        nic__copy(&copier, target, source, 16 << 10);
        CU_ASSERT(atomic_load(&copier.cost[way]) < DEAR);
    }
}

int main(void)
{
    static const struct test_case CASES[] = {
        {"every alignment and length", every_alignment_and_length},
        {"only what a cache may hold is timed", only_what_a_cache_may_hold_is_timed},
        {"both ways copy alike", both_ways_copy_alike},
        {"a way that was bad is tried again", a_way_that_was_bad_is_tried_again},
    };
    return CASES_RUN("copy", CASES);
}
