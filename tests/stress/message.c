/* SPDX-License-Identifier: BSD-3-Clause
 *
 * message.c - filling and checking scattered messages: see message.h.
 */
#include "message.h"

#include <string.h>

static void cuts_sort(bmi_size_t *cuts, int count)
{
    for (int i = 1; i < count; i++) {
        bmi_size_t cut = cuts[i];
        int at = i;
        for (; at > 0 && cuts[at - 1] > cut; at--)
            cuts[at] = cuts[at - 1];
        cuts[at] = cut;
    }
}

void scatter_make(struct scatter *scatter, void *buffer, bmi_size_t size, int count,
                  struct chance *chance)
{
    bmi_size_t cuts[PIECES_MAX + 1];
    cuts[0] = 0;
    cuts[count] = size;
    for (int i = 1; i < count; i++) {
        cuts[i] = (bmi_size_t)chance_below(chance, (uint64_t)size + 1);
        if (i > 1 && chance_below(chance, 8) == 0)
            cuts[i] = cuts[i - 1]; /* an empty piece, once sorted */
    }
    cuts_sort(cuts, count + 1);
    scatter->count = count;
    for (int i = 0; i < count; i++) {
        scatter->sizes[i] = cuts[i + 1] - cuts[i];
        scatter->buffers[i] = (char *)buffer + (size - cuts[i + 1]);
    }
}

static uint64_t number_hide(uint64_t stream, uint64_t number)
{
    return number ^ pattern_key(stream, UINT64_MAX);
}

/* Copies the first bytes of the message out of, or into, its pieces. */
static void scatter_head(const struct scatter *scatter, void *head, size_t size, bool write)
{
    char *at = head;
    for (int i = 0; i < scatter->count && size > 0; i++) {
        size_t part = (size_t)scatter->sizes[i] < size ? (size_t)scatter->sizes[i] : size;
        if (write)
            memcpy(scatter->buffers[i], at, part);
        else
            memcpy(at, scatter->buffers[i], part);
        at += part;
        size -= part;
    }
}

void message_fill(const struct scatter *scatter, const struct message *message)
{
    uint64_t key = pattern_key(message->stream, message->number);
    uint64_t offset = 0;
    for (int i = 0; i < scatter->count; i++) {
        pattern_fill(scatter->buffers[i], (size_t)scatter->sizes[i], key, offset);
        offset += (uint64_t)scatter->sizes[i];
    }
    if (message->numbered) {
        uint64_t hidden = number_hide(message->stream, message->number);
        scatter_head(scatter, &hidden, sizeof hidden, true);
    }
}

int64_t message_wrong(const struct scatter *scatter, const struct message *message)
{
    uint64_t key = pattern_key(message->stream, message->number);
    uint64_t offset = 0, left = (uint64_t)message->size;
    uint64_t skip = message->numbered ? NUMBER_BYTES : 0;
    for (int i = 0; i < scatter->count && left > 0; i++) {
        uint64_t part = (uint64_t)scatter->sizes[i] < left ? (uint64_t)scatter->sizes[i] : left;
        uint64_t from = offset < skip ? skip - offset : 0;
        if (from < part) {
            int64_t wrong =
                pattern_wrong((char *)scatter->buffers[i] + from, part - from, key, offset + from);
            if (wrong >= 0)
                return wrong;
        }
        offset += part;
        left -= part;
    }
    return -1;
}

uint64_t message_number(const struct scatter *scatter, uint64_t stream)
{
    uint64_t hidden = 0;
    scatter_head(scatter, &hidden, sizeof hidden, false);
    return number_hide(stream, hidden);
}
