/* SPDX-License-Identifier: BSD-3-Clause
 *
 * move.c - reads and writes as pieces: one range of the stream with the memory that belongs to it.
 *
 * Pieces follow the lists in order. Adjacent ranges of the stream are one piece, so that a call
 * moves as much as possible; a piece has at most TROVE_PIECE_SEGMENTS segments of memory.
 */
#include <errno.h>
#include <string.h>

#include "trove-stub/store.h"

/* Skips entries that are used up or empty. */
static bool cursor_settle(struct trove_op *op)
{
    while (op->buffer < op->count && op->buffer_done == op->sizes[op->buffer]) {
        op->buffer++;
        op->buffer_done = 0;
    }
    while (op->stream < op->stream_count && op->stream_done == op->stream_sizes[op->stream]) {
        op->stream++;
        op->stream_done = 0;
    }
    return op->buffer < op->count && op->stream < op->stream_count;
}

/* Contiguous bytes of the stream from the cursor on, up to `most`. */
static bmi_size_t stream_run(const struct trove_op *op, bmi_size_t most)
{
    bmi_size_t size = op->stream_sizes[op->stream] - op->stream_done;
    bmi_size_t end = op->offsets[op->stream] + op->stream_sizes[op->stream];
    for (int i = op->stream + 1; i < op->stream_count && size < most; i++) {
        if (op->stream_sizes[i] == 0)
            continue;
        if (op->offsets[i] != end)
            break;
        size += op->stream_sizes[i];
        end += op->stream_sizes[i];
    }
    return size < most ? size : most;
}

/* Bytes of the segments of memory from the cursor on that fit into one piece, up to `most`. */
static bmi_size_t memory_run(const struct trove_op *op, bmi_size_t most)
{
    bmi_size_t size = 0, skip = op->buffer_done;
    int segments = 0;
    for (int i = op->buffer; i < op->count && size < most; i++, skip = 0) {
        size += op->sizes[i] - skip;
        segments += op->sizes[i] > skip;
        if (segments == TROVE_PIECE_SEGMENTS)
            break;
    }
    return size < most ? size : most;
}

/* Segments of memory from the cursor on, up to `most` bytes. */
static void piece_memory(const struct trove_op *op, struct trove_piece *piece, bmi_size_t most)
{
    bmi_size_t skip = op->buffer_done;
    for (int i = op->buffer; i < op->count && piece->size < most; i++, skip = 0) {
        bmi_size_t size = op->sizes[i] - skip;
        if (size == 0)
            continue;
        if (piece->count == TROVE_PIECE_SEGMENTS)
            return;
        if (size > most - piece->size)
            size = most - piece->size;
        piece->memory[piece->count++] =
            (struct iovec){.iov_base = (char *)op->buffers[i] + skip, .iov_len = (size_t)size};
        piece->size += size;
    }
}

bool bmi__trove_piece_next(struct trove_op *op, struct trove_piece *piece)
{
    enum { MOST = 1 << 30 }; /* the system moves at most 2 GiB at a time */
    if (op->finished || op->actual >= op->most || !cursor_settle(op))
        return false;
    bmi_size_t most = op->most - op->actual < MOST ? op->most - op->actual : MOST;
    piece->count = 0;
    piece->size = 0;
    piece->offset = op->offsets[op->stream] + op->stream_done;
    /* It reads the ranges only as far as the memory reaches: lists may have a million entries. */
    piece_memory(op, piece, stream_run(op, memory_run(op, most)));
    return true;
}

static void advance(struct trove_op *op, bmi_size_t bytes)
{
    op->actual += bytes;
    for (bmi_size_t left = bytes; left > 0 && cursor_settle(op);) {
        bmi_size_t in_buffer = op->sizes[op->buffer] - op->buffer_done;
        bmi_size_t in_stream = op->stream_sizes[op->stream] - op->stream_done;
        bmi_size_t step = in_buffer < in_stream ? in_buffer : in_stream;
        step = step < left ? step : left;
        op->buffer_done += step;
        op->stream_done += step;
        left -= step;
    }
}

int bmi__trove_piece_done(struct trove_op *op, struct trove_piece *piece, ssize_t moved)
{
    if (moved < 0)
        return (int)moved;
    if (moved == 0 && op->what == TROVE_WRITE)
        return -EIO;
    if (moved == 0 && (op->flags & BMI_TROVE_ZEROS) == 0)
        op->finished = true; /* the stream's end */
    if (moved == 0 && !op->finished) {
        for (int i = 0; i < piece->count; i++)
            memset(piece->memory[i].iov_base, 0, piece->memory[i].iov_len);
        moved = (ssize_t)piece->size;
    }
    advance(op, moved);
    bool more = !op->finished && op->actual < op->most;
    return more && atomic_load(&op->cancelled) ? -ECANCELED : 0;
}

int bmi__trove_move(struct trove_op *op)
{
    const struct trove_backend *backend = op->place.store->backend;
    struct trove_piece piece;
    int result = backend->begin(op);
    while (result == 0 && bmi__trove_piece_next(op, &piece)) {
        ssize_t moved =
            op->what == TROVE_READ ? backend->read(op, &piece) : backend->write(op, &piece);
        result = bmi__trove_piece_done(op, &piece, moved);
    }
    if (result == 0 && op->what == TROVE_WRITE && (op->flags & BMI_TROVE_SYNC) != 0)
        result = backend->sync(op);
    return result;
}
