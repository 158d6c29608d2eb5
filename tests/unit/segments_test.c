/* SPDX-License-Identifier: BSD-3-Clause
 *
 * segments_test.c - cursors over scatter lists, against a flat copy of the same bytes.
 */
#include <sys/uio.h>

#include "bmi/method.h"
#include "unit.h"

enum { FLAT = 4096, SEGMENTS_MOST = 200 };

static uint8_t flat[FLAT], spread[2 * FLAT];
static void *buffers[SEGMENTS_MOST];
static bmi_size_t sizes[SEGMENTS_MOST];
static uint64_t seed;

static uint64_t random_below(uint64_t bound)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % bound;
}

/* A list of random segments, empty ones among them, with gaps between; `total` bytes in all. */
static struct bmi_segments list_random(size_t *total)
{
    size_t used = 0, at = 0;
    uint32_t count = 1 + (uint32_t)random_below(SEGMENTS_MOST - 1);
    for (uint32_t i = 0; i < count; i++) {
        size_t size = random_below(4) == 0 ? 0 : (size_t)random_below(60);
        if (used + size > FLAT)
            size = 0;
        buffers[i] = spread + at;
        sizes[i] = (bmi_size_t)size;
        used += size;
        at += size + random_below(3);
    }
    *total = used;
    return (struct bmi_segments){.buffers = buffers,
                                 .sizes = sizes,
                                 .count = count,
                                 .left = (bmi_size_t)used};
}

static void gather_and_scatter_in_random_steps(void)
{
    for (seed = 1; seed < 300 * 7; seed += 7) {
        uint64_t kept = seed;
        size_t total;
        uint8_t result[FLAT];
        struct bmi_segments list = list_random(&total), again = list;
        for (size_t i = 0; i < total; i++)
            flat[i] = (uint8_t)random_below(256);
        memset(spread, 0, sizeof spread);
        for (size_t done = 0; done < total;) {
            size_t step = 1 + random_below(100);
            size_t moved = bmi_segments_scatter(&list, flat + done, step);
            CU_ASSERT_EQUAL(moved, step < total - done ? step : total - done);
            done += moved;
        }
        CU_ASSERT_EQUAL(list.left, 0);
        for (size_t done = 0; done < total;) {
            size_t moved = bmi_segments_gather(&again, result + done, 1 + random_below(100));
            CU_ASSERT_TRUE_FATAL(moved > 0);
            done += moved;
        }
        CU_ASSERT_EQUAL(again.left, 0);
        CU_ASSERT_EQUAL(memcmp(result, flat, total), 0);
        seed = kept;
    }
}

static void windows_show_the_next_segments(void)
{
    for (seed = 5; seed < 300 * 7; seed += 7) {
        uint64_t kept = seed;
        size_t total, seen = 0;
        struct bmi_segments list = list_random(&total);
        for (size_t i = 0; i < sizeof spread; i++)
            spread[i] = (uint8_t)random_below(256);
        struct bmi_segments copy = list;
        bmi_segments_gather(&copy, flat, total);
        while (list.left > 0) {
            struct iovec iov[8];
            size_t bytes, sum = 0, most = 1 + random_below(8), limit = 1 + random_below(200);
            size_t entries = bmi_segments_window(&list, iov, most, limit, &bytes);
            CU_ASSERT_TRUE_FATAL(entries >= 1 && entries <= most && bytes <= limit);
            for (size_t i = 0; i < entries; i++) {
                CU_ASSERT_TRUE(iov[i].iov_len > 0);
                CU_ASSERT_EQUAL(memcmp(iov[i].iov_base, flat + seen + sum, iov[i].iov_len), 0);
                sum += iov[i].iov_len;
            }
            CU_ASSERT_EQUAL(sum, bytes);
            size_t taken = 1 + random_below(bytes); /* a short write */
            bmi_segments_advance(&list, taken);
            seen += taken;
        }
        CU_ASSERT_EQUAL(seen, total);
        seed = kept;
    }
}

static void left_bounds_a_list_that_holds_more(void)
{
    char one[10], two[10], out[20] = "";
    void *const list_buffers[] = {one, two};
    const bmi_size_t list_sizes[] = {10, 10};
    struct bmi_segments list = {.buffers = list_buffers,
                                .sizes = list_sizes,
                                .count = 2,
                                .left = 13};
    struct iovec iov[4];
    size_t bytes;
    CU_ASSERT_EQUAL(bmi_segments_window(&list, iov, 4, 100, &bytes), 2);
    CU_ASSERT_EQUAL(bytes, 13);
    CU_ASSERT_EQUAL(iov[1].iov_len, 3);
    memset(one, 'a', sizeof one);
    memset(two, 'b', sizeof two);
    CU_ASSERT_EQUAL(bmi_segments_gather(&list, out, sizeof out), 13);
    CU_ASSERT_STRING_EQUAL(out, "aaaaaaaaaabbb");
    CU_ASSERT_EQUAL(bmi_segments_gather(&list, out, sizeof out), 0);
    CU_ASSERT_EQUAL(bmi_segments_window(&list, iov, 4, 100, NULL), 0);
}

static void empty_lists(void)
{
    static const bmi_size_t none[3] = {0, 0, 0};
    void *const nowhere[3] = {NULL, NULL, NULL};
    struct bmi_segments lists[] = {
        {0},
        {.buffers = nowhere, .sizes = none, .count = 1},
        {.buffers = nowhere, .sizes = none, .count = 3},
    };
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        struct iovec iov[2];
        size_t bytes = 9;
        CU_ASSERT_EQUAL(bmi_segments_window(&lists[i], iov, 2, 100, &bytes), 0);
        CU_ASSERT_EQUAL(bytes, 0);
        CU_ASSERT_EQUAL(bmi_segments_scatter(&lists[i], "x", 1), 0);
        bmi_segments_advance(&lists[i], 0);
        CU_ASSERT_EQUAL(lists[i].left, 0);
    }
}

/* More segments than any window, and sizes beyond 32 bits without memory behind them. */
static void long_lists_and_large_sizes(void)
{
    enum { MANY = 65536 };
    static uint8_t bytes[MANY];
    static void *many_buffers[MANY];
    static bmi_size_t many_sizes[MANY];
    for (uint32_t i = 0; i < MANY; i++) {
        many_buffers[i] = &bytes[MANY - 1 - i];
        many_sizes[i] = 1;
    }
    uint8_t *source = malloc(MANY);
    CU_ASSERT_PTR_NOT_NULL_FATAL(source);
    for (uint32_t i = 0; i < MANY; i++)
        source[i] = (uint8_t)(i * 7);
    struct bmi_segments list = {.buffers = many_buffers,
                                .sizes = many_sizes,
                                .count = MANY,
                                .left = MANY};
    CU_ASSERT_EQUAL(bmi_segments_scatter(&list, source, MANY), MANY);
    for (uint32_t i = 0; i < MANY; i++)
        if (bytes[MANY - 1 - i] != source[i])
            CU_FAIL("a byte is in the wrong place");
    free(source);

    const bmi_size_t huge[2] = {INT64_C(1) << 40, INT64_C(1) << 40};
    void *const base[2] = {(void *)4096, (void *)(INT64_C(1) << 45)};
    struct iovec iov[2];
    size_t covered;
    list =
        (struct bmi_segments){.buffers = base, .sizes = huge, .count = 2, .left = INT64_C(1) << 41};
    bmi_segments_advance(&list, (size_t)(INT64_C(1) << 40) - 1);
    CU_ASSERT_EQUAL(bmi_segments_window(&list, iov, 2, SIZE_MAX, &covered), 2);
    CU_ASSERT_EQUAL(covered, (size_t)(INT64_C(1) << 40) + 1);
    CU_ASSERT_EQUAL(iov[0].iov_len, 1);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"gather and scatter in random steps", gather_and_scatter_in_random_steps},
        {"windows show the next segments", windows_show_the_next_segments},
        {"left bounds a list that holds more", left_bounds_a_list_that_holds_more},
        {"empty lists", empty_lists},
        {"long lists and large sizes", long_lists_and_large_sizes},
        CU_TEST_INFO_NULL,
    };
    return unit_run("segments", tests);
}
