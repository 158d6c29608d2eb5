/* SPDX-License-Identifier: BSD-3-Clause
 *
 * frame_queue.c - frames that wait to be sent on one link, for methods that write a stream.
 *
 * The core may take a frame back whose first bytes have gone. A copy of its other bytes then stands
 * in for it: `rest`, which is always the first of the queue, is the queue's own memory, and never
 * comes back to the core.
 */
#include <stdlib.h>

#include "bmi/method.h"

struct bmi_frame_rest {
    struct bmi_frame frame;
    void *buffer;
    bmi_size_t size;
    uint8_t bytes[];
};

void bmi_frame_queue_append(struct bmi_frame_queue *queue, struct bmi_frame *frames)
{
    struct bmi_frame *last = frames;
    while (last->next != NULL)
        last = last->next;
    if (queue->first != NULL)
        queue->last->next = frames;
    else
        queue->first = frames;
    queue->last = last;
}

/* ---- frames that have gone ------------------------------------------------------------------ */

/* Frees the rest if the chain begins with it. Returns the chain without it. */
static struct bmi_frame *strip(struct bmi_frame_queue *queue, struct bmi_frame *chain)
{
    if (queue->rest == NULL || chain != &queue->rest->frame)
        return chain;
    chain = chain->next;
    free(queue->rest);
    queue->rest = NULL;
    return chain;
}

static size_t bytes_left(const struct bmi_frame *frame)
{
    return bmi_frame_header_left(frame) + (size_t)frame->body.left;
}

struct bmi_frame **bmi_frame_queue_sent(struct bmi_frame_queue *queue, size_t bytes,
                                        struct bmi_frame **done, int64_t *count)
{
    struct bmi_frame *chain = queue->first, *last = NULL, *at = chain;
    *count = 0;
    for (; at != NULL && bytes >= bytes_left(at); at = at->next) {
        bytes -= bytes_left(at);
        at->header_sent = bmi_frame_header_size(at->header[0]);
        at->status = 0;
        last = at;
        ++*count;
    }
    queue->first = at;
    if (at != NULL && bytes > 0) {
        size_t header = bmi_frame_header_left(at);
        header = header < bytes ? header : bytes;
        at->header_sent += (uint32_t)header;
        bmi_segments_advance(&at->body, bytes - header);
    }
    if (last == NULL)
        return done;
    last->next = NULL;
    *done = strip(queue, chain);
    return *done != NULL ? &last->next : done;
}

struct bmi_frame *bmi_frame_queue_take(struct bmi_frame_queue *queue)
{
    struct bmi_frame *chain = queue->first;
    queue->first = NULL;
    return strip(queue, chain);
}

/* ---- frames that the core takes back -------------------------------------------------------- */

bool bmi_frame_queue_has(const struct bmi_frame_queue *queue, const struct bmi_frame *frame,
                         const struct bmi_frame *end, bool *before_end)
{
    *before_end = end != NULL;
    for (const struct bmi_frame *at = queue->first; at != NULL; at = at->next) {
        if (at == frame)
            return true;
        if (at == end)
            *before_end = false;
    }
    return false;
}

/* Copies the bytes of the frame that have not gone. Returns NULL without memory. */
static struct bmi_frame *rest_make(struct bmi_frame_queue *queue, struct bmi_frame *frame)
{
    size_t size = (size_t)frame->body.left;
    struct bmi_frame_rest *rest = malloc(sizeof *rest + size);
    if (rest == NULL)
        return NULL;
    rest->frame = *frame;
    rest->buffer = rest->bytes;
    rest->size = frame->body.left;
    rest->frame.body = (struct bmi_segments){.buffers = &rest->buffer,
                                             .sizes = &rest->size,
                                             .count = 1,
                                             .left = rest->size};
    bmi_segments_gather(&frame->body, rest->bytes, size);
    queue->rest = rest;
    return &rest->frame;
}

bool bmi_frame_queue_withdraw(struct bmi_frame_queue *queue, struct bmi_frame *frame,
                              struct bmi_frame *replacement)
{
    struct bmi_frame **place = &queue->first, *before = NULL;
    for (; *place != NULL && *place != frame; place = &(*place)->next)
        before = *place;
    if (*place == NULL)
        return false;
    if (frame->header_sent > 0) {
        replacement = rest_make(queue, frame);
        if (replacement == NULL)
            return false;
    }
    *place = replacement != NULL ? replacement : frame->next;
    if (replacement != NULL)
        replacement->next = frame->next;
    if (queue->last == frame)
        queue->last = replacement != NULL ? replacement : before;
    frame->next = NULL;
    return true;
}
