/* SPDX-License-Identifier: BSD-3-Clause
 *
 * segments.c - cursors over scatter lists of any length, seen through windows of iovecs.
 *
 * A cursor is normal when its current segment has bytes left or `left` is 0; every function here
 * accepts it otherwise and skips empty segments. `left` never exceeds what the list still holds.
 */
#include <string.h>

#include "bmi/method.h"

/* Whether the current segment holds the next `bytes`, as it usually does; not of none. */
static bool is_in_one(const struct bmi_segments *segments, size_t bytes)
{
    return bytes > 0 && segments->index < segments->count &&
           (size_t)(segments->sizes[segments->index] - segments->offset) >= bytes;
}

size_t bmi_segments_window(const struct bmi_segments *segments, struct iovec *iov, size_t max,
                           size_t limit, size_t *bytes)
{
    size_t left = (uint64_t)segments->left < limit ? (size_t)segments->left : limit;
    size_t entries = 0, total = 0;
    uint32_t index = segments->index;
    bmi_size_t offset = segments->offset;
    if (max > 0 && is_in_one(segments, left)) {
        *iov =
            (struct iovec){.iov_base = (char *)segments->buffers[index] + offset, .iov_len = left};
        total = left;
        entries = 1;
        left = 0;
    }
    while (left > 0 && entries < max && index < segments->count) {
        size_t length = (size_t)(segments->sizes[index] - offset);
        if (length > left)
            length = left;
        if (length > 0) {
            iov[entries].iov_base = (char *)segments->buffers[index] + offset;
            iov[entries++].iov_len = length;
            left -= length;
            total += length;
        }
        index++;
        offset = 0;
    }
    if (bytes != NULL)
        *bytes = total;
    return entries;
}

void bmi_segments_advance(struct bmi_segments *segments, size_t bytes)
{
    if (bytes == 0)
        return; /* the owner may have freed a list of which nothing is left */
    segments->left -= (bmi_size_t)bytes;
    while (segments->index < segments->count) {
        size_t length = (size_t)(segments->sizes[segments->index] - segments->offset);
        if (bytes < length) {
            segments->offset += (bmi_size_t)bytes;
            return;
        }
        bytes -= length;
        segments->index++;
        segments->offset = 0;
    }
}

/* Copies between the list and `memory`, whichever way. */
static size_t copy(struct bmi_segments *segments, void *memory, size_t bytes, bool into_list)
{
    size_t done = 0, length;
    struct iovec part;
    while (done < bytes && bmi_segments_window(segments, &part, 1, bytes - done, &length) > 0) {
        if (into_list)
            memcpy(part.iov_base, (char *)memory + done, length);
        else
            memcpy((char *)memory + done, part.iov_base, length);
        bmi_segments_advance(segments, length);
        done += length;
    }
    return done;
}

size_t bmi_segments_scatter(struct bmi_segments *segments, const void *from, size_t bytes)
{
    return copy(segments, (void *)(uintptr_t)from, bytes, true);
}

size_t bmi_segments_gather(struct bmi_segments *segments, void *to, size_t bytes)
{
    return copy(segments, to, bytes, false);
}
