/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm_receive.c - incoming messages: put in order, cut into frames, bodies straight to their place.
 *
 * A message may still lie in memory that the peer can write. So the preamble and each header are
 * copied before they are checked; bodies are copied once, to the place that the core chose, and
 * their bytes are not inspected here.
 *
 * Order: each message of a link has the next sequence. A message is early if an earlier one went
 * with the other priority and is not here yet. An early message is held as a copy; its buffer goes
 * back to the NIC at once, so that held messages cannot block the missing one. The sender keeps to
 * a window (gm_send.c), which bounds the held messages; the link of a peer that does not is ended.
 * So is a link with more bytes held than a ring can hold: the missing message is in its own ring,
 * which is read first, or goes there when the sender next goes on.
 */
#include <stdlib.h>

#include "gm.h"

/* The window of high messages, that of low ones behind the last of them, and the omitted
 * sequence 0. A ring of low priority has 16 of the largest. */
enum { HELD_MOST = 2 * GM_MIXED_WINDOW + 2, HELD_BYTES = 24 << GM_LOW_SIZE };

/* ---- frames --------------------------------------------------------------------------------- */

static int frame_begin_locked(struct gm_link *link, const uint8_t *header)
{
    gm_count(BMI_COUNT_FRAMES_RECEIVED, 1);
    int status = bmi_method_frame_arrived(&link->base, header, &link->sink);
    if (status < 0)
        return status;
    link->body_left = link->sink.length;
    return 0;
}

static int body_end_locked(struct gm_link *link)
{
    bool retracted = link->retracted;
    link->retracted = false;
    return retracted ? 0 : bmi_method_body_arrived(&link->base, &link->sink);
}

static void header_copy_locked(struct gm_link *link, const uint8_t **bytes, size_t *length,
                               size_t size)
{
    size_t missing = size - link->header_have;
    size_t taken = *length < missing ? *length : missing;
    memcpy(link->header + link->header_have, *bytes, taken);
    *bytes += taken;
    *length -= taken;
    link->header_have = (uint8_t)(link->header_have + taken);
}

/* The first byte, which gives the header's size, is copied once and never read again. */
static int header_take_locked(struct gm_link *link, const uint8_t **bytes, size_t *length)
{
    if (link->header_have == 0)
        header_copy_locked(link, bytes, length, 1);
    size_t size = bmi_frame_header_size(link->header[0]);
    header_copy_locked(link, bytes, length, size);
    if (link->header_have < size)
        return 0;
    link->header_have = 0;
    return frame_begin_locked(link, link->header);
}

static int body_take_locked(struct gm_link *link, const uint8_t **bytes, size_t *length)
{
    size_t taken = link->body_left < *length ? (size_t)link->body_left : *length;
    bmi_segments_scatter(&link->sink.body, *bytes, taken);
    *bytes += taken;
    *length -= taken;
    link->body_left -= taken;
    return link->body_left == 0 ? body_end_locked(link) : 0;
}

/* Takes small messages that are complete here, without the receive lock. Returns their bytes. */
static int whole_take(struct gm_link *link, const uint8_t *bytes, size_t length)
{
    int done = 0, taken = 1;
    while (length - (size_t)done >= BMI_FRAME_SHORT && taken > 0 && link->body_left == 0 &&
           link->header_have == 0 && !atomic_load_explicit(&link->deaf, memory_order_relaxed)) {
        const uint8_t *at = bytes + done;
        size_t left = length - (size_t)done;
        uint8_t header[BMI_FRAME_SHORT];
        memcpy(header, at, sizeof header);
        taken =
            bmi_method_frame_whole(&link->base, header, at + sizeof header, left - sizeof header);
        done += taken > 0 ? taken : 0;
        gm_count(BMI_COUNT_FRAMES_RECEIVED, taken > 0);
    }
    return taken < 0 ? taken : done;
}

/* The next bytes of the stream of frames. Receive lock not held. */
static int stream_take(struct gm_link *link, const uint8_t *bytes, size_t length)
{
    int status = whole_take(link, bytes, length);
    if (status == (int)length)
        return 0;
    bytes += status > 0 ? status : 0;
    length -= status > 0 ? (size_t)status : 0;
    gm_lock(&link->receive_lock);
    while (length > 0 && status >= 0 && !atomic_load_explicit(&link->deaf, memory_order_relaxed))
        status = link->body_left > 0 ? body_take_locked(link, &bytes, &length)
                                     : header_take_locked(link, &bytes, &length);
    gm_unlock(&link->receive_lock);
    if (status < 0)
        gm_count(BMI_COUNT_BAD_FRAMES, 1);
    return status;
}

/* ---- order ---------------------------------------------------------------------------------- */

static uint32_t after(uint32_t sequence)
{
    return sequence + 1 != 0 ? sequence + 1 : 1;
}

static int refuse(struct gm_link *link, const char *why)
{
    bmi_method_log(BMI_LOG_WARN, &link->base, "gm: %s; ending the connection", why);
    gm_count(BMI_COUNT_BAD_FRAMES, 1);
    return -EPROTO;
}

/* Each priority arrives in order: all held messages have the priority that the missing one has
 * not. */
static bool may_hold(const struct gm_link *link, uint32_t ahead, bool high, size_t length)
{
    return ahead > 0 && ahead <= HELD_MOST && length <= HELD_BYTES - link->held_bytes &&
           (link->held == NULL || link->held->high == high);
}

static int hold(struct gm_link *link, uint32_t sequence, bool high, const uint8_t *bytes,
                size_t length)
{
    struct gm_held **place = &link->held;
    uint32_t ahead = sequence - link->received;
    while (*place != NULL && (*place)->sequence - link->received < ahead)
        place = &(*place)->next;
    if (!may_hold(link, ahead, high, length) || (*place != NULL && (*place)->sequence == sequence))
        return refuse(link, "a message out of its order");
    struct gm_held *held = malloc(sizeof *held + length);
    if (held == NULL)
        return -ENOMEM;
    *held = (struct gm_held){.next = *place,
                             .sequence = sequence,
                             .length = (uint32_t)length,
                             .high = high};
    memcpy(held->bytes, bytes, length);
    *place = held;
    link->held_bytes += (uint32_t)length;
    return 0;
}

/* The next message in order is there. The other side waits for an acknowledgement of its high
 * messages; our next message carries it, or a message of its own after GM_ACK_EVERY more. */
static int in_order_take(struct gm_link *link, uint32_t sequence, bool high, const uint8_t *bytes,
                         size_t length)
{
    atomic_store_explicit(&link->received, sequence, memory_order_release);
    if (high && !atomic_load_explicit(&link->ack_owed, memory_order_relaxed)) {
        link->since_high = 0;
        atomic_store_explicit(&link->ack_owed, true, memory_order_release);
    }
    return stream_take(link, bytes, length);
}

/* Takes the held messages whose predecessors have arrived meanwhile. */
static int held_take(struct gm_link *link)
{
    int status = 0;
    struct gm_held *held;
    while (status >= 0 && (held = link->held) != NULL && held->sequence == after(link->received)) {
        link->held = held->next;
        link->held_bytes -= held->length;
        status = in_order_take(link, held->sequence, held->high, held->bytes, held->length);
        free(held);
    }
    return status;
}

static int ordered_take(struct gm_link *link, uint32_t sequence, bool high, const uint8_t *bytes,
                        size_t length)
{
    if (sequence != after(link->received))
        return hold(link, sequence, high, bytes, length);
    int status = in_order_take(link, sequence, high, bytes, length);
    return status >= 0 && link->held != NULL ? held_take(link) : status;
}

int gm_message_arrived(struct gm_link *link, enum nic_priority priority, const void *message,
                       size_t length)
{
    struct gm_preamble preamble;
    if (length < sizeof preamble)
        return refuse(link, "a message without its preamble");
    memcpy(&preamble, message, sizeof preamble);
    uint64_t before = atomic_load_explicit(&link->base.bytes_in, memory_order_relaxed);
    atomic_store_explicit(&link->base.bytes_in, before + length, memory_order_relaxed);
    gm_count(BMI_COUNT_READS, 1);
    gm_count(BMI_COUNT_BYTES_RECEIVED, (int64_t)length);
    if (!gm_send_acknowledged(link, preamble.acknowledged))
        return refuse(link, "an acknowledgement of what was not sent");
    length -= sizeof preamble;
    if (preamble.sequence == 0)
        return length == 0 ? 0 : refuse(link, "frames without a sequence");
    int status = ordered_take(link, preamble.sequence, priority == NIC_HIGH_PRIORITY,
                              (const uint8_t *)message + sizeof preamble, length);
    if (atomic_load_explicit(&link->ack_owed, memory_order_relaxed) &&
        ++link->since_high > GM_ACK_EVERY)
        gm_send_ack(link);
    return status < 0 ? status : 0;
}

/* ---- the core's side ------------------------------------------------------------------------ */

bool gm_retract(struct bmi_link *base, void *owner)
{
    struct gm_link *link = gm_link_of(base);
    gm_lock(&link->receive_lock);
    bool ours = owner != NULL && link->body_left > 0 && link->sink.owner == owner;
    if (ours) {
        link->sink.owner = NULL;
        link->sink.body.left = 0;
        link->retracted = true;
    }
    gm_unlock(&link->receive_lock);
    return ours;
}

void gm_receive_end(struct gm_link *link)
{
    gm_lock(&link->receive_lock);
    link->body_left = 0;
    link->sink.owner = NULL;
    link->sink.body.left = 0;
    gm_unlock(&link->receive_lock);
    while (link->held != NULL) {
        struct gm_held *held = link->held;
        link->held = held->next;
        link->held_bytes -= held->length;
        free(held);
    }
}
