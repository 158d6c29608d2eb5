/* SPDX-License-Identifier: BSD-3-Clause
 *
 * layout.c - a client's striped memory.
 */
#include "layout.h"

#include <stdlib.h>
#include <string.h>

static uint64_t segment_size = 65536;

void layout_segment_set(uint64_t segment)
{
    segment_size = segment;
}

static uint64_t layout_size(const struct layout *layout)
{
    return (layout->area / layout->segment + 1) * layout->segment * layout->lanes;
}

void layout_prepare(struct layout *layout, const struct work *work, int servers)
{
    static struct data_kept memories[2];
    *layout = (struct layout){.segment = segment_size,
                              .lanes = servers > 2 ? (uint64_t)servers : 2,
                              .area = data_area(work)};
    layout->memory = data_renew(memories, layout_size(layout));
}

int layout_pieces(const struct layout *layout, int server, uint64_t position, uint64_t size,
                  struct iovec *pieces, int max)
{
    int count = 0;
    uint64_t place = position % layout->area;
    while (size > 0 && count < max) {
        uint64_t inside = place % layout->segment;
        uint64_t length = layout->segment - inside;
        if (length > size)
            length = size;
        uint64_t stripe = place / layout->segment * layout->lanes + (uint64_t)server;
        pieces[count++] =
            (struct iovec){layout->memory + stripe * layout->segment + inside, length};
        place += length;
        size -= length;
    }
    return count;
}

void layout_clear(const struct layout *layout)
{
    memset(layout->memory, 0, layout_size(layout));
}

void layout_fill(const struct layout *layout, int server, uint32_t stream, uint64_t shift)
{
    for (uint64_t position = 0; position < layout->area;) {
        struct iovec piece;
        layout_pieces(layout, server, position, layout->area - position, &piece, 1);
        data_fill(piece.iov_base, piece.iov_len, stream, position + shift);
        position += piece.iov_len;
    }
}

void layout_check(const struct layout *layout, int server, uint32_t stream, uint64_t shift,
                  uint64_t size)
{
    for (uint64_t position = 0; position < size;) {
        struct iovec piece;
        layout_pieces(layout, server, position, size - position, &piece, 1);
        data_check(piece.iov_base, piece.iov_len, stream, position + shift);
        position += piece.iov_len;
    }
}
