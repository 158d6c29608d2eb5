/* SPDX-License-Identifier: BSD-3-Clause
 *
 * data.c - the contents of messages, and their place in memory.
 *
 * The byte at a position of a stream follows from the two, so a check detects data at a wrong
 * place, from a wrong stream, or left over from before. Without --verify a stream's buffer is at
 * most AREA_MAX bytes of whole messages, or a window of them where that is more, and used again and
 * again; with it, a stream lies in memory as a whole.
 *
 * Memory is the process's own, or that of data_allocator_set: BMI_memalloc's. Each sample names its
 * kind, since a server's requests, and the samples of a rank of MPI, are of several contenders.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

#define AREA_MAX (16u << 20)

static struct data_allocator allocator;

void data_allocator_set(const struct data_allocator *other)
{
    allocator = other ? *other : (struct data_allocator){0};
}

bool data_is_own(void)
{
    return !allocator.allocate;
}

void *data_allocate(uint64_t size)
{
    if (data_is_own())
        return allocate_pages(size);
    void *memory = allocator.allocate(size);
    memset(memory, 0, size);
    return memory;
}

void data_release(void *memory, uint64_t size)
{
    if (!allocator.release)
        free(memory);
    else if (memory)
        allocator.release(memory, size);
}

static uint64_t word_at(uint32_t stream, uint64_t index)
{
    uint64_t word = (index + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)stream * 0xd1b54a32d192ed03u;
    word = (word ^ (word >> 31)) * 0xbf58476d1ce4e5b9u;
    return word ^ (word >> 29);
}

/* Bytes of the word that holds the position, from the position on, at most `size`. */
static uint64_t piece_at(uint32_t stream, uint64_t position, uint64_t size, uint8_t piece[8])
{
    uint64_t skip = position % 8;
    uint64_t length = size < 8 - skip ? size : 8 - skip;
    uint64_t word = word_at(stream, position / 8);
    memcpy(piece, (const uint8_t *)&word + skip, length);
    return length;
}

/* Writes the bytes of a stream from a position on. */
void data_fill(void *buffer, uint64_t size, uint32_t stream, uint64_t position)
{
    uint8_t *bytes = buffer;
    for (uint64_t done = 0; done < size;) {
        uint8_t piece[8];
        uint64_t length = piece_at(stream, position + done, size - done, piece);
        memcpy(bytes + done, piece, length);
        done += length;
    }
}

/* Ends the process unless the buffer holds the bytes of a stream from a position on. */
void data_check(const void *buffer, uint64_t size, uint32_t stream, uint64_t position)
{
    const uint8_t *bytes = buffer;
    for (uint64_t done = 0; done < size;) {
        uint8_t piece[8];
        uint64_t length = piece_at(stream, position + done, size - done, piece);
        for (uint64_t i = 0; i < length; i++)
            if (bytes[done + i] != piece[i])
                die("verify: stream %u, position %llu: 0x%02x instead of 0x%02x", stream,
                    (unsigned long long)(position + done + i), bytes[done + i], piece[i]);
        done += length;
    }
}

/* A buffer with the first `size` bytes of a stream; the same one for each caller. */
const uint8_t *data_source(uint32_t stream, uint64_t size)
{
    static struct source {
        struct source *next;
        uint8_t *bytes;
        uint64_t size;
        uint32_t stream;
        bool own;
    } * sources;
    for (struct source *source = sources; source; source = source->next)
        if (source->stream == stream && source->size >= size && source->own == data_is_own())
            return source->bytes;
    /* Smaller ones of the stream stay: a transfer may be using them. */
    struct source *source = allocate(sizeof *source);
    *source =
        (struct source){.next = sources, .size = size, .stream = stream, .own = data_is_own()};
    source->bytes = data_allocate(size);
    data_fill(source->bytes, size, stream, 0);
    sources = source;
    return source->bytes;
}

/* Bytes of memory that a stream of the sample takes: whole messages. */
uint64_t data_area(const struct work *work)
{
    uint64_t messages = message_count(work);
    uint64_t fit = AREA_MAX / work->size > work->window ? AREA_MAX / work->size : work->window;
    return (work->verify || messages < fit ? messages : fit) * work->size;
}

/* Where in that memory a position of the stream lies. */
uint64_t data_place(const struct work *work, uint64_t position)
{
    return position % data_area(work);
}

/* Bytes that a plain receiver takes at once from a position on: as far ahead as others post. */
uint64_t data_ahead(const struct work *work, uint64_t position)
{
    uint64_t size = (uint64_t)work->window * work->size;
    uint64_t left = work->amount - position;
    uint64_t to_end = data_area(work) - data_place(work, position);
    size = size < left ? size : left;
    return size < to_end ? size : to_end;
}

void *data_renew(struct data_kept kept[2], uint64_t size)
{
    kept += data_is_own();
    if (kept->size < size) {
        data_release(kept->memory, kept->size);
        kept->memory = data_allocate(size);
        kept->size = size;
    }
    return kept->memory;
}

/* Memory for data that comes in; the process's only one, that of the last call where it fits. */
uint8_t *data_arena(uint64_t size)
{
    static struct data_kept arenas[2];
    return data_renew(arenas, size);
}
