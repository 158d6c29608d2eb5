/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm_receive.c - incoming messages: cut into frames, bodies straight to their place.
 *
 * A message may still lie in memory that the peer can write. So each header is copied before it is
 * checked; bodies are copied once, to the place that the core chose, and their bytes are not
 * inspected here.
 */
#include "gm.h"

/* ---- frames --------------------------------------------------------------------------------- */

static int frame_begin_locked(struct gm_link *link, const uint8_t *header)
{
    gm_count(link, BMI_COUNT_FRAMES_RECEIVED, 1);
    int status = bmi_method_frame_arrived(&link->base, header, &link->sink);
    if (status < 0)
        return status;
    link->body_left = link->sink.length;
    link->retracted = false;
    return 0;
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
    if (link->body_left > 0 || link->retracted)
        return 0;
    return bmi_method_body_arrived(&link->base, &link->sink);
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
        gm_count(link, BMI_COUNT_FRAMES_RECEIVED, taken > 0);
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
        gm_count(link, BMI_COUNT_BAD_FRAMES, 1);
    return status;
}

int gm_message_arrived(struct gm_link *link, const void *message, size_t length)
{
    uint64_t before = atomic_load_explicit(&link->base.bytes_in, memory_order_relaxed);
    atomic_store_explicit(&link->base.bytes_in, before + length, memory_order_relaxed);
    gm_count(link, BMI_COUNT_READS, 1);
    gm_count(link, BMI_COUNT_BYTES_RECEIVED, (int64_t)length);
    return stream_take(link, message, length);
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
}
