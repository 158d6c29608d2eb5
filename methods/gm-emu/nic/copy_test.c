/* SPDX-License-Identifier: BSD-3-Clause
 *
 * copy_test.c - copies that stream, and short ones: every byte, none beside, at all alignments.
 */
#include "harness.h"
#include "internal.h"

enum { AREA = 128 << 10, BESIDE = 128, GUARD = 0xa5 };

static uint8_t source[AREA + 64], target[AREA + 2 * BESIDE + 64];

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
    static const size_t LENGTHS[] = {0,     1,     63,    64,    65,    1000,
                                     16383, 16384, 16385, 16447, 16448, 20000};
    unsigned wrong = 0;
    for (size_t i = 0; i < sizeof(source); i++)
        source[i] = (uint8_t)(i * 31 + (i >> 8) * 7 + 1);
    for (size_t i = 0; i < sizeof(LENGTHS) / sizeof(*LENGTHS); i++)
        for (size_t to = 0; to < 64; to++)
            for (size_t from = 0; from < 64; from += 7) {
                memset(target, GUARD, LENGTHS[i] + 2 * BESIDE + 64);
                nic__copy(target + BESIDE + to, source + from, LENGTHS[i]);
                wrong += !is_right(to, from, LENGTHS[i]);
            }
    CU_ASSERT_EQUAL(wrong, 0);
}

static void pieces_follow_each_other(void)
{
    const struct iovec PIECES[] = {{source + 3, 17000}, {source + 40000, 5}, {source + 1, 33001}};
    memset(target, GUARD, sizeof(target));
    nic__copy_all(target + BESIDE, PIECES, 3);
    CU_ASSERT_EQUAL(memcmp(target + BESIDE, source + 3, 17000), 0);
    CU_ASSERT_EQUAL(memcmp(target + BESIDE + 17000, source + 40000, 5), 0);
    CU_ASSERT_EQUAL(memcmp(target + BESIDE + 17005, source + 1, 33001), 0);
    CU_ASSERT(is_guarded(target + BESIDE + 50006, BESIDE));
}

int main(void)
{
    static const struct test_case CASES[] = {
        {"every alignment and length", every_alignment_and_length},
        {"pieces follow each other", pieces_follow_each_other},
    };
    return CASES_RUN("copy", CASES);
}
