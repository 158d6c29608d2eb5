/* SPDX-License-Identifier: BSD-3-Clause
 *
 * layout.h - a client's memory in read and write: striped over the servers, as a file is.
 *
 * A stream is the part of one server. It lies in segments; segment k of server s begins at byte (k
 * * lanes + s) * segment. There are two lanes at least, so a message's pieces are never neighbours
 * in memory.
 */
#ifndef BENCH_LAYOUT_H
#define BENCH_LAYOUT_H

#include "bench.h"

#include <sys/uio.h>

struct layout {
    uint8_t *memory;
    uint64_t segment;
    uint64_t lanes;
    uint64_t area; /* bytes of a stream that the memory holds */
};

/* Memory for the streams of `servers` servers; that of the last call where it fits. */
void layout_prepare(struct layout *layout, const struct work *work, int servers);
/* Names the pieces of a stream's bytes [position, position + size), which must not wrap.
 * Returns: their number, at most `max`; the pieces then cover less. */
int layout_pieces(const struct layout *layout, int server, uint64_t position, uint64_t size,
                  struct iovec *pieces, int max);
void layout_clear(const struct layout *layout);
/* Fills the memory with a stream of each server, or checks that it holds it. */
void layout_fill(const struct layout *layout, int server, uint32_t stream, uint64_t shift);
void layout_check(const struct layout *layout, int server, uint32_t stream, uint64_t shift,
                  uint64_t size);
void layout_segment_set(uint64_t segment);

#endif
