/* SPDX-License-Identifier: BSD-3-Clause
 * request.c - see request.h. */
#include "flow/request.h"

#include <limits.h>
#include <stddef.h>

static bmi_size_t extent_total(const struct bmi_flow_extent *extent)
{
    if (extent->offset < 0 || extent->size < 0 || extent->count < 0 ||
        (extent->count > 1 && extent->stride < 0))
        return -BMI_EINVAL;
    if (extent->count == 0 || extent->size == 0)
        return 0;
    bmi_size_t last;
    bmi_size_t total, end;
    bmi_size_t steps = extent->count - 1, stride = steps > 0 ? extent->stride : 0;
    if (__builtin_mul_overflow(extent->size, extent->count, &total) ||
        __builtin_mul_overflow(steps, stride, &last) ||
        __builtin_add_overflow(last, extent->offset, &end) ||
        __builtin_add_overflow(end, extent->size, &end))
        return -BMI_EFBIG;
    return total;
}

bmi_size_t bmi__flow_request_total(const struct bmi_flow_extent *extents, int count)
{
    bmi_size_t total = 0;
    if (count < 0 || (count > 0 && extents == NULL))
        return -BMI_EINVAL;
    for (int i = 0; i < count; i++) {
        bmi_size_t size = extent_total(&extents[i]);
        if (size < 0)
            return size;
        if (__builtin_add_overflow(total, size, &total))
            return -BMI_EFBIG;
    }
    return total;
}

bool bmi__flow_distribution_valid(const struct bmi_flow_distribution *distribution)
{
    return distribution->next_mapped != NULL && distribution->to_physical != NULL &&
           distribution->contiguous != NULL;
}

/* Goes to the next block that has bytes; false: there is none. */
static bool block_settle(struct flow_walk *walk)
{
    while (walk->extent < walk->extent_count) {
        const struct bmi_flow_extent *extent = &walk->extents[walk->extent];
        if (walk->block < extent->count && extent->size > 0)
            return true;
        walk->extent++;
        walk->block = 0;
    }
    return false;
}

/* Goes to the next block that may have bytes of the server: the first ones at or after this block's
 * start, and after its end, are at `at` (-1: there are none). */
static void block_end(struct flow_walk *walk, bmi_size_t at)
{
    const struct bmi_flow_extent *extent = &walk->extents[walk->extent];
    bmi_size_t left = extent->count - walk->block, steps = 1;
    bmi_size_t end = extent->offset + extent->size;
    if (walk->block > 0)
        end += walk->block * extent->stride;
    if (walk->done == 0 && at < 0)
        steps = left;
    else if (walk->done == 0 && left > 1) /* in part: the next block may begin before the present
                                             position */
        steps = extent->stride > 0 ? (at - end) / extent->stride + 1 : left;
    steps = steps < left ? steps : left;
    walk->request += steps * extent->size;
    walk->block += steps;
    walk->done = 0;
}

enum flow_walked bmi__flow_walk_next(struct flow_walk *walk, bmi_size_t most,
                                     struct flow_piece *piece)
{
    const struct bmi_flow_distribution *distribution = walk->distribution;
    while (block_settle(walk)) {
        const struct bmi_flow_extent *extent = &walk->extents[walk->extent];
        bmi_size_t start = extent->offset + (walk->block > 0 ? walk->block * extent->stride : 0);
        bmi_size_t end = start + extent->size, at = -1;
        if (walk->done < extent->size)
            at = distribution->next_mapped(walk->parameters, walk->server, walk->servers,
                                           start + walk->done);
        if (at < 0 || at >= end) {
            block_end(walk, at);
            if (--walk->budget <= 0)
                return FLOW_LATER;
            continue;
        }
        piece->request = walk->request + (at - start);
        piece->physical =
            distribution->to_physical(walk->parameters, walk->server, walk->servers, at);
        bmi_size_t run = distribution->contiguous(walk->parameters, walk->server, walk->servers,
                                                  piece->physical);
        run = run < 1 ? 1 : run;
        run = run < end - at ? run : end - at;
        piece->size = run < most ? run : most;
        walk->done = at - start + piece->size;
        return FLOW_PIECE;
    }
    return FLOW_WALKED;
}

bmi_size_t bmi_flow_request_size(const struct bmi_flow_extent *extents, int count,
                                 const struct bmi_flow_distribution *distribution,
                                 const void *parameters, uint32_t server, uint32_t servers)
{
    if (distribution == NULL)
        distribution = &bmi_flow_contiguous;
    bmi_size_t total = bmi__flow_request_total(extents, count);
    if (total < 0 || server == servers)
        return total;
    if (server > servers || !bmi__flow_distribution_valid(distribution))
        return -BMI_EINVAL;
    struct flow_walk walk = {.extents = extents,
                             .extent_count = count,
                             .distribution = distribution,
                             .parameters = parameters,
                             .server = server,
                             .servers = servers};
    struct flow_piece piece;
    enum flow_walked walked;
    total = 0;
    do {
        walk.budget = INT_MAX;
        walked = bmi__flow_walk_next(&walk, INT64_MAX, &piece);
        total += walked == FLOW_PIECE ? piece.size : 0;
    } while (walked != FLOW_WALKED);
    return total;
}
