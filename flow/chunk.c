/* SPDX-License-Identifier: BSD-3-Clause
 *
 * chunk.c - a chunk of a flow: its memory, its ranges of a stream, and the operations that fill and
 * empty it.
 *
 * If one end is memory, the chunk uses the user's memory; otherwise the store's, if that lends
 * some, or a buffer of its own. From memory to memory the bytes are copied when the chunk is
 * emptied.
 */
#include <stdlib.h>
#include <string.h>

#include "bmi/base/instance.h"
#include "bmi/connection/address.h"
#include "flow/engine.h"

/* ---- lists ----------------------------------------------------------------------------------- */

static bool list_grow(struct flow_list *list, bool of_memory)
{
    int room = list->room > 0 ? list->room * 2 : 8;
    size_t count = (size_t)room;
    void *sizes = realloc(list->sizes, count * sizeof *list->sizes);
    if (sizes == NULL)
        return false;
    list->sizes = sizes;
    void *entries = of_memory ? realloc(list->buffers, count * sizeof *list->buffers)
                              : realloc(list->offsets, count * sizeof *list->offsets);
    if (entries == NULL)
        return false;
    if (of_memory)
        list->buffers = entries;
    else
        list->offsets = entries;
    list->room = room;
    return true;
}

static bool list_add_memory(struct flow_list *list, void *buffer, bmi_size_t size)
{
    int last = list->count - 1;
    if (last >= 0 && (char *)list->buffers[last] + list->sizes[last] == buffer) {
        list->sizes[last] += size;
        return true;
    }
    if (list->count == list->room && !list_grow(list, true))
        return false;
    list->buffers[list->count] = buffer;
    list->sizes[list->count++] = size;
    return true;
}

static bool list_add_range(struct flow_list *list, bmi_size_t offset, bmi_size_t size)
{
    int last = list->count - 1;
    if (last >= 0 && list->offsets[last] + list->sizes[last] == offset) {
        list->sizes[last] += size;
        return true;
    }
    if (list->count == list->room && !list_grow(list, false))
        return false;
    list->offsets[list->count] = offset;
    list->sizes[list->count++] = size;
    return true;
}

static void list_clear(struct flow_list *list)
{
    list->first = list->count = 0;
}

static void list_free(struct flow_list *list)
{
    free(list->buffers);
    free(list->offsets);
    free(list->sizes);
}

static void list_skip(struct flow_list *list, bmi_size_t bytes)
{
    while (bytes > 0 && list->first < list->count) {
        bmi_size_t *size = &list->sizes[list->first];
        bmi_size_t step = bytes < *size ? bytes : *size;
        *size -= step;
        if (list->buffers != NULL)
            list->buffers[list->first] = (char *)list->buffers[list->first] + step;
        else
            list->offsets[list->first] += step;
        bytes -= step;
        list->first += *size == 0;
    }
}

/* Makes a list of the next `bytes` bytes of a list of ranges; splits the last range if they end
 * within it. -1: no memory. */
static int list_part(struct flow_list *list, bmi_size_t bytes)
{
    int at = list->first;
    while (at < list->count && list->sizes[at] <= bytes)
        bytes -= list->sizes[at++];
    if (bytes == 0 || at == list->count)
        return at - list->first;
    if (list->count == list->room && !list_grow(list, false))
        return -1;
    size_t behind = (size_t)(list->count++ - at);
    memmove(list->offsets + at + 1, list->offsets + at, behind * sizeof *list->offsets);
    memmove(list->sizes + at + 1, list->sizes + at, behind * sizeof *list->sizes);
    list->sizes[at] = bytes;
    list->offsets[at + 1] += bytes;
    list->sizes[at + 1] -= bytes;
    return at + 1 - list->first;
}

/* ---- memory endpoints ------------------------------------------------------------------------ */

/* The memory of `size` bytes at a position of the request, at most to the end of its region.
 * Positions must not decrease. */
static void *memory_at(struct flow_memory *memory, bmi_size_t position, bmi_size_t *size)
{
    while (position - memory->start >= memory->sizes[memory->at])
        memory->start += memory->sizes[memory->at++];
    bmi_size_t skip = position - memory->start;
    bmi_size_t there = memory->sizes[memory->at] - skip;
    *size = *size < there ? *size : there;
    return (char *)memory->buffers[memory->at] + skip;
}

static bool memory_add(struct flow_list *list, struct flow_memory *memory,
                       const struct flow_piece *piece)
{
    for (bmi_size_t done = 0; done < piece->size;) {
        bmi_size_t size = piece->size - done;
        void *buffer = memory_at(memory, piece->request + done, &size);
        if (!list_add_memory(list, buffer, size))
            return false;
        done += size;
    }
    return true;
}

/* ---- cutting --------------------------------------------------------------------------------- */

/* Adds a piece to the chunk's lists. If both ends are memory, the source's regions are the chunk's
 * memory, and the destination's are in stream_out, as memory. */
static bool piece_add(struct flow *flow, struct flow_chunk *chunk, const struct flow_piece *piece)
{
    bool added = true;
    enum bmi_flow_kind from = flow->what.source.kind, to = flow->what.destination.kind;
    if (from == BMI_FLOW_MEMORY)
        added = memory_add(&chunk->memory, &flow->source_memory, piece);
    else if (from == BMI_FLOW_STORAGE)
        added = list_add_range(&chunk->stream_in, piece->physical, piece->size);
    if (to == BMI_FLOW_MEMORY)
        added = added && memory_add(from == BMI_FLOW_MEMORY ? &chunk->stream_out : &chunk->memory,
                                    &flow->destination_memory, piece);
    else if (to == BMI_FLOW_STORAGE)
        added = added && list_add_range(&chunk->stream_out, piece->physical, piece->size);
    return added;
}

/* The address that owns the buffers; none if the network treats all memory alike. */
static BMI_addr_t buffer_address(const struct flow *flow)
{
    const struct bmi_flow_endpoint *end =
        flow->what.source.kind == BMI_FLOW_NETWORK ? &flow->what.source : &flow->what.destination;
    return flow->any_memory ? BUFFER_OF_NOBODY : end->u.network.address;
}

static enum bmi_op_type buffer_use(const struct flow *flow)
{
    return flow->what.source.kind == BMI_FLOW_NETWORK ? BMI_RECV : BMI_SEND;
}

static void buffer_free(struct flow_chunk *chunk)
{
    if (chunk->buffer.memory != NULL)
        bmi__buffer_put(&chunk->buffer);
    chunk->buffer.memory = NULL;
}

/* Gets a buffer of its own; a flow that is smaller than its buffers gets a smaller one. */
static bool buffer_ready(struct flow *flow, struct flow_chunk *chunk)
{
    struct flow_buffer *buffer = &chunk->buffer;
    if (buffer->memory == NULL || buffer->size < chunk->size) {
        buffer_free(chunk);
        *buffer = (struct flow_buffer){
            .size = flow->walked ? chunk->size : flow->what.buffer_size,
            .instance = flow->engine->instance,
            .address = buffer_address(flow),
            .use = buffer_use(flow),
            .node = flow->node,
        };
        bmi__buffer_get(buffer);
        if (buffer->memory == NULL)
            return false;
    }
    list_clear(&chunk->memory);
    return list_add_memory(&chunk->memory, buffer->memory, chunk->size);
}

static bool chunk_lent(const struct flow_chunk *chunk)
{
    return chunk->lease.count > 0;
}

/* Borrows the store's memory for the stream's ranges, if it lends that: no byte is copied then. */
static bool chunk_borrow(const struct flow *flow, struct flow_chunk *chunk)
{
    const struct flow_list *in = &chunk->stream_in, *out = &chunk->stream_out;
    const struct bmi_flow_endpoint *from = &flow->what.source, *to = &flow->what.destination;
    if (!flow->any_memory)
        return false;
    if (from->kind == BMI_FLOW_STORAGE)
        return bmi__trove_lend(&chunk->lease, &from->u.storage.place, in->offsets, in->sizes,
                               in->count);
    return to->kind == BMI_FLOW_STORAGE &&
           bmi__trove_lend_blank(&chunk->lease, &to->u.storage.place, out->offsets, out->sizes,
                                 out->count);
}

/* Gets memory for the chunk's bytes that belongs to neither end. */
static bool memory_ready(struct flow *flow, struct flow_chunk *chunk)
{
    if (!chunk_borrow(flow, chunk))
        return buffer_ready(flow, chunk);
    for (int i = 0; i < chunk->lease.count; i++)
        if (!list_add_memory(&chunk->memory, chunk->lease.buffers[i], chunk->lease.sizes[i]))
            return false;
    return true;
}

static void cut_begin(struct flow *flow, struct flow_chunk *chunk)
{
    list_clear(&chunk->memory);
    list_clear(&chunk->stream_in);
    list_clear(&chunk->stream_out);
    chunk->size = chunk->moved = 0;
    chunk->failed = false;
    flow->cutting = true;
    flow->cut_pieces = 0;
}

int bmi__chunk_cut(struct flow *flow, struct flow_chunk *chunk)
{
    struct flow_piece piece;
    if (!flow->cutting)
        cut_begin(flow, chunk);
    while (chunk->size < flow->what.buffer_size && flow->cut_pieces < FLOW_PIECES_MAX) {
        enum flow_walked walked =
            bmi__flow_walk_next(&flow->walk, flow->what.buffer_size - chunk->size, &piece);
        if (walked == FLOW_LATER)
            return CHUNK_CUT_LATER;
        flow->walked = walked == FLOW_WALKED;
        if (flow->walked)
            break;
        flow->cut_pieces++;
        chunk->size += piece.size;
        if (!piece_add(flow, chunk, &piece)) {
            flow->cutting = false;
            return -BMI_ENOMEM;
        }
    }
    flow->cutting = false;
    if (chunk->size == 0)
        return 0;
    return flow->needs_buffers && !memory_ready(flow, chunk) ? -BMI_ENOMEM : 1;
}

/* ---- operations ------------------------------------------------------------------------------ */

static enum bmi_buffer_type buffer_type(const struct flow_chunk *chunk)
{
    return chunk->flow->needs_buffers && !chunk->flow->any_memory ? BMI_PRE_ALLOC : BMI_EXT_ALLOC;
}

static int chunk_receive(struct flow_chunk *chunk)
{
    const struct bmi_flow_endpoint *end = &chunk->flow->what.source;
    struct flow_list *list = &chunk->memory;
    chunk->on_network = true;
    return BMI_post_recv_list(&chunk->op, end->u.network.address, list->buffers, list->sizes,
                              list->count, chunk->size, &chunk->actual, buffer_type(chunk),
                              end->u.network.tag, chunk, chunk->flow->network, NULL);
}

static int chunk_send(struct flow_chunk *chunk)
{
    const struct bmi_flow_endpoint *end = &chunk->flow->what.destination;
    struct flow_list *list = &chunk->memory;
    chunk->on_network = true;
    chunk->actual = chunk->size;
    return BMI_post_send_list(&chunk->op, end->u.network.address,
                              (const void *const *)list->buffers, list->sizes, list->count,
                              chunk->size, buffer_type(chunk), end->u.network.tag, chunk,
                              chunk->flow->network, NULL);
}

/* Storage takes at most that many regions of memory in a list: the rest continues as after a short
 * operation. */
static int storage_lists(const struct flow_list *memory, struct flow_list *stream,
                         int *memory_count, int *stream_count)
{
    bmi_size_t bytes = 0;
    *memory_count = memory->count - memory->first;
    *stream_count = stream->count - stream->first;
    if (*memory_count <= BMI_TROVE_LIST_MAX)
        return 0;
    *memory_count = BMI_TROVE_LIST_MAX;
    for (int i = 0; i < BMI_TROVE_LIST_MAX; i++)
        bytes += memory->sizes[memory->first + i];
    *stream_count = list_part(stream, bytes);
    return *stream_count < 0 ? -BMI_ENOMEM : 0;
}

static int chunk_read(struct flow_chunk *chunk)
{
    const struct flow *flow = chunk->flow;
    struct flow_list *memory = &chunk->memory, *stream = &chunk->stream_in;
    unsigned flags = (flow->what.flags & BMI_FLOW_ZEROS) != 0 ? BMI_TROVE_ZEROS : 0;
    chunk->on_network = false;
    if (chunk_lent(chunk)) {
        chunk->actual = chunk->size;
        return 1;
    }
    int memory_count, stream_count;
    int result = storage_lists(memory, stream, &memory_count, &stream_count);
    if (result != 0)
        return result;
    return bmi_trove_post_read_list(&chunk->op, &flow->what.source.u.storage.place,
                                    memory->buffers + memory->first, memory->sizes + memory->first,
                                    memory_count, stream->offsets + stream->first,
                                    stream->sizes + stream->first, stream_count, &chunk->actual,
                                    flags, chunk, chunk->flow->storage);
}

static int chunk_write(struct flow_chunk *chunk)
{
    const struct flow *flow = chunk->flow;
    struct flow_list *memory = &chunk->memory, *stream = &chunk->stream_out;
    int memory_count, stream_count;
    int result = storage_lists(memory, stream, &memory_count, &stream_count);
    chunk->on_network = false;
    if (result != 0)
        return result;
    return bmi__trove_post_write_lent(&chunk->op, &flow->what.destination.u.storage.place,
                                      (const void *const *)memory->buffers + memory->first,
                                      memory->sizes + memory->first, memory_count,
                                      stream->offsets + stream->first,
                                      stream->sizes + stream->first, stream_count, &chunk->actual,
                                      &chunk->lease, chunk, chunk->flow->storage);
}

/* Memory to memory: both lists are in the order of the flow's bytes. */
static int chunk_copy(struct flow_chunk *chunk)
{
    const struct flow_list *from = &chunk->memory, *to = &chunk->stream_out;
    bmi_size_t in_from = 0, in_to = 0;
    for (int i = 0, k = 0; i < from->count && k < to->count;) {
        bmi_size_t left_from = from->sizes[i] - in_from, left_to = to->sizes[k] - in_to;
        bmi_size_t step = left_from < left_to ? left_from : left_to;
        memmove((char *)to->buffers[k] + in_to, (char *)from->buffers[i] + in_from, (size_t)step);
        in_from += step;
        in_to += step;
        if (in_from == from->sizes[i]) {
            i++;
            in_from = 0;
        }
        if (in_to == to->sizes[k]) {
            k++;
            in_to = 0;
        }
    }
    atomic_fetch_add(&chunk->flow->copied, chunk->size);
    chunk->actual = chunk->size;
    return 1;
}

int bmi__chunk_fill(struct flow_chunk *chunk)
{
    switch (chunk->flow->what.source.kind) {
    case BMI_FLOW_NETWORK:
        return chunk_receive(chunk);
    case BMI_FLOW_STORAGE:
        return chunk_read(chunk);
    default:
        chunk->actual = chunk->size;
        return 1;
    }
}

int bmi__chunk_empty(struct flow_chunk *chunk)
{
    const struct flow *flow = chunk->flow;
    if (flow->needs_buffers && !chunk_lent(chunk) &&
        chunk->moved == 0) { /* a read may have split the list */
        list_clear(&chunk->memory);
        list_add_memory(&chunk->memory, chunk->buffer.memory, chunk->size);
    }
    if (flow->what.destination.kind == BMI_FLOW_NETWORK)
        return chunk_send(chunk);
    if (flow->what.destination.kind == BMI_FLOW_STORAGE)
        return chunk_write(chunk);
    if (flow->what.source.kind == BMI_FLOW_MEMORY)
        return chunk_copy(chunk);
    chunk->actual = chunk->size;
    return 1;
}

void bmi__chunk_skip(struct flow_chunk *chunk, bmi_size_t bytes)
{
    chunk->moved += bytes;
    list_skip(&chunk->memory, bytes);
    list_skip(chunk->state == CHUNK_FILLING ? &chunk->stream_in : &chunk->stream_out, bytes);
}

bmi_error_code_t bmi__chunk_lost(const struct flow_chunk *chunk)
{
    const struct flow *flow = chunk->flow;
    bool filling = chunk->state == CHUNK_FILLING;
    const struct bmi_flow_endpoint *end = filling ? &flow->what.source : &flow->what.destination;
    uint32_t before = filling ? flow->source_losses : flow->destination_losses;
    bmi_error_code_t cause;
    if (end->kind != BMI_FLOW_NETWORK ||
        bmi__address_losses(flow->engine->instance, end->u.network.address, &cause) == before)
        return 0;
    return cause;
}

int bmi__chunk_end_of_stream(struct flow_chunk *chunk)
{
    const struct bmi_flow_endpoint *end = &chunk->flow->what.destination;
    chunk->on_network = true;
    return BMI_post_send(&chunk->op, end->u.network.address, chunk, 0, BMI_EXT_ALLOC,
                         end->u.network.tag, chunk, chunk->flow->network, NULL);
}

int bmi__chunk_flush(struct flow_chunk *chunk)
{
    chunk->on_network = false;
    return bmi_trove_post_flush(&chunk->op, &chunk->flow->what.destination.u.storage.place, chunk,
                                chunk->flow->storage);
}

void bmi__chunk_cancel(struct flow_chunk *chunk)
{
    if (chunk->on_network)
        BMI_cancel(chunk->op, chunk->flow->network);
    else
        bmi_trove_cancel(chunk->op, chunk->flow->storage);
}

void bmi__chunk_free(struct flow_chunk *chunk)
{
    buffer_free(chunk);
    bmi__trove_lease_free(&chunk->lease);
    list_free(&chunk->memory);
    list_free(&chunk->stream_in);
    list_free(&chunk->stream_out);
}
