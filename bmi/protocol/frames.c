/* SPDX-License-Identifier: BSD-3-Clause
 *
 * frames.c - makes and queues frames.
 *
 * Control frames (all but those that carry a message's body) are small, allocated here, and freed
 * when the method returns them. The peer's lock is held.
 */
#include "bmi/protocol/frames.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/progress/progress.h"
#include "bmi/protocol/credit.h"
#include "bmi/state/liveness.h"
#include "bmi/state/op.h"
#include "bmi/state/peer.h"

struct control {
    struct bmi_frame frame;
    void *body; /* the list of one */
    bmi_size_t size;
    bool answer; /* counted in the peer's answers */
    char bytes[];
};

/* For a REJECT that says that there is no memory; one at a time. */
struct bmi__frames {
    atomic_flag reserve_used;
    struct control reserve; /* last: it ends with an array */
};

void bmi__frame_trace(const struct peer *peer, const char *way, const struct wire_header *header)
{
    if (bmi__log_wanted(peer->instance, BMI_LOG_TRACE))
        bmi__log(peer->instance, BMI_LOG_TRACE,
                 "%s %s: %s flags %x tag %d space %d length %llu seen %u credit %u source "
                 "%llx target %llx",
                 way, bmi__peer_name(peer), wire_type_name(header->type), header->flags,
                 (int32_t)header->tag, wire_tag_space(header->tag),
                 (unsigned long long)header->length, header->seen, header->credit,
                 (unsigned long long)header->source, (unsigned long long)header->target);
}

static void header_encode(struct peer *peer, struct wire_header *header,
                          uint8_t bytes[BMI_FRAME_HEADER])
{
    header->seen = peer->seen;
    peer->seen_reported = peer->seen;
    if (header->type != WIRE_RTR && header->type != WIRE_JOIN) /* it may end with its link */
        header->credit = bmi__credit_report_locked(peer);
    wire_encode(bytes, header);
    bmi__frame_trace(peer, "to", header);
}

struct bmi_frame *bmi__control_make(struct peer *peer, struct wire_header header, const void *body,
                                    size_t size)
{
    struct bmi__frames *frames = peer->instance->frames;
    struct control *control = malloc(sizeof *control + size);
    if (control == NULL && header.type == WIRE_REJECT &&
        !atomic_flag_test_and_set(&frames->reserve_used))
        control = &frames->reserve;
    if (control == NULL)
        return NULL;
    *control = (struct control){.body = control->bytes, .size = (bmi_size_t)size};
    if (size > 0)
        memcpy(control->bytes, body, size);
    control->frame.body = (struct bmi_segments){.buffers = &control->body,
                                                .sizes = &control->size,
                                                .count = 1,
                                                .left = (bmi_size_t)size};
    header.length = size;
    header_encode(peer, &header, control->frame.header);
    return &control->frame;
}

struct bmi_frame *bmi__control_instead(struct peer *peer, const struct bmi_frame *of, uint8_t type)
{
    struct control *control = malloc(sizeof *control);
    struct wire_header header;
    const char *reason;
    if (control == NULL || wire_decode(of->header, &header, &reason) < 0) {
        free(control);
        return NULL;
    }
    *control = (struct control){.body = control->bytes};
    control->frame.body =
        (struct bmi_segments){.buffers = &control->body, .sizes = &control->size, .count = 1};
    header.type = type;
    header.flags = 0;
    header.tag = type == WIRE_VOID ? header.tag : 0;
    header.length = header.source = header.target = 0;
    wire_encode(control->frame.header, &header);
    bmi__frame_trace(peer, "instead to", &header);
    return &control->frame;
}

void bmi__control_free(struct bmi_instance *instance, struct bmi_frame *frame)
{
    struct bmi__frames *frames = instance->frames;
    if (frame == &frames->reserve.frame)
        atomic_flag_clear(&frames->reserve_used);
    else
        free(frame);
}

void bmi__control_done_locked(struct peer *peer, struct bmi_frame *frame)
{
    if (((struct control *)frame)->answer && peer->answers > 0)
        peer->answers--;
    bmi__control_free(peer->instance, frame);
}

/* The peer causes one such frame for each message or announcement that it sends. That holds even if
 * our program triggers the frame by freeing a message, or by posting the next receive or send. */
static bool peer_causes(const struct wire_header *header)
{
    bool word_alone = header->type == WIRE_DATA && (header->flags & WIRE_LAST);
    return word_alone || header->type == WIRE_CREDIT || header->type == WIRE_RTR ||
           header->type == WIRE_CTS;
}

bool bmi__control_send_locked(struct peer *peer, struct wire_header header, const void *body,
                              size_t size)
{
    struct bmi_link *link = peer->link;
    if (link == NULL)
        return false;
    struct bmi_frame *frame = bmi__control_make(peer, header, body, size);
    if (frame == NULL) {
        bmi__peer_fail_locked(peer, -ENOMEM, "no memory for a frame");
        return false;
    }
    if ((peer->flags & PEER_ANSWERING) || peer_causes(&header)) {
        ((struct control *)frame)->answer = true;
        peer->answers++;
    }
    link->method->send(link, frame);
    bmi__progress_dirty(link);
    return true;
}

void bmi__op_frame_send_locked(struct op *op, struct wire_header *header, bmi_size_t bytes)
{
    struct peer *peer = op->peer;
    struct bmi_frame *frame = &op->frame;
    frame->next = NULL;
    frame->header_sent = 0;
    frame->status = 0;
    bmi__segments_lend(&frame->body, &op->list, bytes);
    header->length = (uint64_t)bytes;
    header_encode(peer, header, frame->header);
    op->flags |= OP_FRAME_OUT;
    peer->link->method->send(peer->link, frame);
}

bool bmi__frame_is_op(const struct bmi_frame *frame)
{
    return frame->body.buffers != &((const struct control *)frame)->body;
}

struct op *bmi__frame_op(struct bmi_frame *frame)
{
    return (struct op *)((char *)frame - offsetof(struct op, frame));
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__frames_open(struct bmi_instance *instance)
{
    struct bmi__frames *frames = calloc(1, sizeof *frames);
    if (frames == NULL)
        return -ENOMEM;
    instance->frames = frames;
    return 0;
}

void bmi__frames_close(struct bmi_instance *instance)
{
    free(instance->frames);
    instance->frames = NULL;
}
