/* SPDX-License-Identifier: BSD-3-Clause
 *
 * request_test.c - the places that distributions give a file's bytes, and walks through requests,
 * compared with a model that works byte by byte.
 */
#include <stdbool.h>

#include "bmi/flow.h"
#include "flow/random.h"
#include "flow/request.h"
#include "tests/unit/unit.h"

static void stripes_are_where_they_should_be(void)
{
    const struct bmi_flow_distribution *stripe = &bmi_flow_simple_stripe;
    struct bmi_flow_stripe size = {.stripe_size = 10};
    for (uint32_t servers = 1; servers <= 5; servers++) {
        for (bmi_size_t logical = 0; logical < 500; logical++) {
            uint32_t owner = (uint32_t)(logical / 10) % servers;
            bmi_size_t physical = logical / 10 / servers * 10 + logical % 10;
            CU_ASSERT_EQUAL(stripe->to_physical(&size, owner, servers, logical), physical);
            CU_ASSERT_EQUAL(stripe->to_logical(&size, owner, servers, physical), logical);
            CU_ASSERT_EQUAL(stripe->file_size(&size, owner, servers, physical + 1), logical + 1);
            for (uint32_t server = 0; server < servers; server++) {
                bmi_size_t next = stripe->next_mapped(&size, server, servers, logical),
                           expected = logical;
                while ((uint32_t)(expected / 10) % servers != server)
                    expected++;
                CU_ASSERT_EQUAL(next, expected);
            }
        }
    }
    CU_ASSERT_EQUAL(stripe->to_physical(NULL, 1, 4, 65536 + 7), 7);
    CU_ASSERT_EQUAL(stripe->next_mapped(NULL, 1, 2, INT64_MAX - 1000), INT64_MAX - 1000);
    CU_ASSERT_EQUAL(stripe->next_mapped(NULL, 0, 2, INT64_MAX - 1000), -1);
    CU_ASSERT_PTR_EQUAL(bmi_flow_distribution_find("simple_stripe"), stripe);
    CU_ASSERT_PTR_EQUAL(bmi_flow_distribution_find("contiguous"), &bmi_flow_contiguous);
    CU_ASSERT_PTR_NULL(bmi_flow_distribution_find("other"));
}

static void a_files_size_comes_from_its_streams(void)
{
    struct bmi_flow_stripe size = {.stripe_size = 10};
    const bmi_size_t sizes[3] = {20, 13, 10}, none[3] = {0, 0, 0}, bad[3] = {0, -1, 0};
    CU_ASSERT_EQUAL(bmi_flow_file_size(&bmi_flow_simple_stripe, &size, 3, sizes), 43);
    CU_ASSERT_EQUAL(bmi_flow_file_size(&bmi_flow_simple_stripe, &size, 3, none), 0);
    CU_ASSERT_EQUAL(bmi_flow_file_size(&bmi_flow_simple_stripe, &size, 3, bad), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_flow_file_size(&bmi_flow_contiguous, NULL, 3, sizes), 20);
    const bmi_size_t huge[2] = {INT64_MAX, 0}; /* of no file: it would end beyond the
                                                  largest offset */
    CU_ASSERT_EQUAL(bmi_flow_file_size(&bmi_flow_simple_stripe, NULL, 2, huge), INT64_MAX);
    size.stripe_size = INT64_MAX;
    CU_ASSERT_EQUAL(bmi_flow_file_size(&bmi_flow_simple_stripe, &size, 3, sizes), INT64_MAX);
    CU_ASSERT_EQUAL(bmi_flow_file_size(NULL, NULL, 3, sizes), -BMI_EINVAL);
}

static void bad_requests_are_refused(void)
{
    struct bmi_flow_extent extent = {.offset = 0, .size = 10, .stride = 20, .count = 3};
    CU_ASSERT_EQUAL(bmi_flow_request_size(&extent, 1, NULL, NULL, 1, 1), 30);
    CU_ASSERT_EQUAL(bmi_flow_request_size(&extent, 1, NULL, NULL, 2, 1), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_flow_request_size(NULL, 1, NULL, NULL, 0, 1), -BMI_EINVAL);
    extent.offset = -1;
    CU_ASSERT_EQUAL(bmi_flow_request_size(&extent, 1, NULL, NULL, 0, 1), -BMI_EINVAL);
    extent = (struct bmi_flow_extent){.offset = 5, .size = 10, .stride = INT64_MAX, .count = 3};
    CU_ASSERT_EQUAL(bmi_flow_request_size(&extent, 1, NULL, NULL, 0, 1), -BMI_EFBIG);
    extent = (struct bmi_flow_extent){.offset = INT64_MAX, .size = 1, .count = 1};
    CU_ASSERT_EQUAL(bmi_flow_request_size(&extent, 1, NULL, NULL, 0, 1), -BMI_EFBIG);
    extent = (struct bmi_flow_extent){.offset = 0, .size = INT64_MAX, .count = 2};
    CU_ASSERT_EQUAL(bmi_flow_request_size(&extent, 1, NULL, NULL, 0, 1), -BMI_EFBIG);
}

/* Each byte of a request in order, as (bytes before it, place in the server's stream). */
static bmi_size_t bytes_of(const struct bmi_flow_extent *extent, bmi_size_t unit, uint32_t server,
                           uint32_t servers, bmi_size_t most, bmi_size_t (*bytes)[2])
{
    bmi_size_t count = 0;
    for (bmi_size_t block = 0; block < extent->count; block++)
        for (bmi_size_t i = 0; i < extent->size && count < most; i++) {
            bmi_size_t at = extent->offset + block * extent->stride + i;
            if ((uint32_t)(at / unit) % servers != server)
                continue;
            bytes[count][0] = block * extent->size + i;
            bytes[count++][1] = at / unit / servers * unit + at % unit;
        }
    return count;
}

/* The walk skips blocks of other servers at once: overlapping blocks, and a budget that is used up
 * repeatedly, do not change the result. */
static void walks_against_a_model(void)
{
    enum { MOST_BYTES = 4000 };
    static bmi_size_t bytes[MOST_BYTES][2];
    random_begin();
    for (int round = 0; round < 2000; round++) {
        struct bmi_flow_stripe unit = {.stripe_size = 1 + random_below(40)};
        struct bmi_flow_extent extent = {.offset = random_below(100),
                                         .size = 1 + random_below(60),
                                         .stride = random_below(200),
                                         .count = 1 + random_below(40)};
        uint32_t servers = 1 + random_below(5), server = random_below(servers);
        struct flow_walk walk = {.extents = &extent,
                                 .extent_count = 1,
                                 .distribution = &bmi_flow_simple_stripe,
                                 .parameters = &unit,
                                 .server = server,
                                 .servers = servers};
        struct flow_piece piece;
        enum flow_walked walked;
        bmi_size_t count = bytes_of(&extent, unit.stripe_size, server, servers, MOST_BYTES, bytes);
        bmi_size_t at = 0;
        bool same = true;
        do {
            walk.budget = 1 + (int)random_below(3);
            walked = bmi__flow_walk_next(&walk, 1 + random_below(50), &piece);
            for (bmi_size_t i = 0; walked == FLOW_PIECE && i < piece.size; i++, at++)
                same = same && at < count && bytes[at][0] == piece.request + i &&
                       bytes[at][1] == piece.physical + i;
        } while (walked != FLOW_WALKED);
        CU_ASSERT(same && at == count);
    }
}

static CU_TestInfo cases[] = {{"stripes are where they should be",
                               stripes_are_where_they_should_be},
                              {"a file's size comes from its streams",
                               a_files_size_comes_from_its_streams},
                              {"bad requests are refused", bad_requests_are_refused},
                              {"walks against a model", walks_against_a_model},
                              CU_TEST_INFO_NULL};

int main(void)
{
    return unit_run("flow requests", cases);
}
