/* SPDX-License-Identifier: BSD-3-Clause
 *
 * send.c - outgoing frames: as many as are waiting are copied into one message.
 *
 * A frame that was copied is sent, as far as the core knows: it is returned before the network has
 * sent it. If the network does not take a message (its queue is full, its connection is being
 * made), nothing has changed: frames are copied when there is a slot, and leave the queue after the
 * post.
 *
 * A peer that receives nothing holds the slots of its link's messages. So the slots of a link are
 * bounded, and each link can get its first one however many the others hold.
 */
#include <endian.h>

#include "ib.h"

/* Status beside the errnos: the link is flushed when the network has returned one of its messages.
 */
enum { WAITS = 1 };

void ib_send(struct bmi_link *base, struct bmi_frame *frames)
{
    struct ib_link *link = ib_link_of(base);

    ib_lock(&link->send_lock);
    bmi_frame_queue_append(&link->queue, frames);
    ib_unlock(&link->send_lock);
}

bool ib_withdraw(struct bmi_link *base, struct bmi_frame *frame, struct bmi_frame *replacement)
{
    struct ib_link *link = ib_link_of(base);

    ib_lock(&link->send_lock);
    bool found = bmi_frame_queue_withdraw(&link->queue, frame, replacement);
    bool last = found && !link->queue.first && link->closing != IB_OPEN;
    ib_unlock(&link->send_lock);

    if (last)
        ib_link_kick(link);
    return found;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Fills a message from the front of the queue, which stays as it is. Returns its size. */
static size_t message_fill_locked(struct ib_link *link, uint8_t *memory)
{
    size_t most = ib_state_of(link)->fabric->message_max, size = IB_PREFIX;
    ib_assert_locked(&link->send_lock);
    for (struct bmi_frame *at = link->queue.first; at; at = at->next) {
        struct bmi_segments body = at->body;
        if (at->header_sent == 0) {
            size_t header = bmi_frame_header_size(at->header[0]);
            if (most - size < header)
                break;
            memcpy(memory + size, at->header, header);
            size += header;
        }
        size += bmi_segments_gather(&body, memory + size, most - size);
        if (body.left > 0)
            break;
    }
    return size;
}

static void prefix_write(struct ib_link *link, uint8_t *memory, size_t size)
{
    struct ib_prefix prefix = {.token = htole64(link->their_token),
                               .sequence = htole32(link->sequence_out),
                               .length = htole32((uint32_t)(size - IB_PREFIX))};
    memcpy(memory, &prefix, sizeof(prefix));
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Whether the link may have one more slot, and there is one. It may always have a first one; more
 * only while fewer than IB_SLOTS are taken, and IB_LINK_SLOTS at most. */
static bool slot_allowed_locked(struct ib_link *link)
{
    struct ib_fabric *fabric = ib_state_of(link)->fabric;
    ib_assert_locked(&ib_state_of(link)->fabric_lock);
    bool may = link->slots == 0 ||
               (link->slots < IB_LINK_SLOTS && link->slots + fabric->taken_slots < IB_SLOTS);
    return may && (fabric->free_slots || ib_slots_make_locked(fabric) == 0);
}

/* Takes a slot. Returns 0; WAITS; or -EAGAIN: there is no memory for the link's first slot. */
static int slot_take(struct ib_link *link, struct ib_slot **out)
{
    struct ib_state *state = ib_state_of(link);
    struct ib_fabric *fabric = state->fabric;
    ib_assert_locked(&link->send_lock);
    ib_lock(&state->fabric_lock);
    bool allowed = slot_allowed_locked(link);
    int status = allowed ? 0 : link->slots > 0 ? WAITS : -EAGAIN;
    link->wants_slot = status == WAITS;
    if (allowed) {
        *out = fabric->free_slots;
        fabric->free_slots = (*out)->next;
        fabric->taken_slots++;
        link->slots++;
        (*out)->operation.token = link->token;
    }
    ib_unlock(&state->fabric_lock);
    return status;
}

static void slot_give_locked(struct ib_fabric *fabric, struct ib_link *link, struct ib_slot *slot)
{
    slot->next = fabric->free_slots;
    fabric->free_slots = slot;
    fabric->taken_slots--;
    if (link)
        link->slots--;
}

bool ib_slot_back(struct ib_state *state, struct ib_link *link, struct ib_slot *slot)
{
    ib_lock(&state->fabric_lock);
    slot_give_locked(state->fabric, link, slot);
    bool wanted = link && link->wants_slot;
    if (wanted)
        link->wants_slot = false;
    ib_unlock(&state->fabric_lock);
    return wanted;
}

/* ---- posting --------------------------------------------------------------------------------- */

/* Posts a message in a slot. A small one is copied at once, and needs no slot (NULL). Returns 0,
 * -EAGAIN, or another errno. The slot is free again unless the network needs it. */
static int message_post(struct ib_link *link, struct ib_slot *slot, uint8_t *memory, size_t size)
{
    struct ib_state *state = ib_state_of(link);
    bool inject = size <= state->fabric->inject_max;
    ssize_t status;

    ib_assert_locked(&link->send_lock);
    prefix_write(link, memory, size);
    ib_lock(&state->fabric_lock);
    if (inject)
        status = fi_inject(link->endpoint->id, memory, size, link->peer->address);
    else
        status = fi_send(link->endpoint->id, memory, size, slot->descriptor, link->peer->address,
                         &slot->operation.context);
    if (status)
        link->peer->doubtful = link->endpoint;
    if (slot && (status || inject))
        slot_give_locked(state->fabric, link, slot);
    ib_unlock(&state->fabric_lock);
    if (status)
        return ib_error(status);
    link->sequence_out++;
    ib_count(state, BMI_COUNT_WRITES, 1);
    ib_count(state, BMI_COUNT_BYTES_SENT, (int64_t)size);
    ib_peer_settle(link);
    return 0;
}

/* Sends one message from the front of the queue; from an empty one the end of stream. Appends
 * complete frames to the chain. Returns 0, WAITS, -EAGAIN, or another errno. */
static int message_send_locked(struct ib_link *link, struct bmi_frame ***done)
{
    struct ib_state *state = ib_state_of(link);
    struct ib_slot *slot = NULL;
    int64_t frames;
    int status = slot_take(link, &slot);
    if (status)
        return status;
    size_t size = message_fill_locked(link, slot->memory);
    status = message_post(link, slot, slot->memory, size);
    if (status)
        return status;
    link->bye_sent = size == IB_PREFIX;
    *done = bmi_frame_queue_sent(&link->queue, size - IB_PREFIX, *done, &frames);
    ib_count(state, BMI_COUNT_FRAMES_SENT, frames);
    return 0;
}

bool ib_may_send_locked(const struct ib_link *link)
{
    return link->phase == IB_UP && link->ready && !link->failure && !link->bye_sent &&
           link->closing != IB_CLOSE_NOW;
}

/* Whether a message is to be sent: frames, or at the end of a link the end of stream. */
static bool message_is_due_locked(const struct ib_link *link)
{
    bool ends = link->closing == IB_CLOSE_LINGERING && !link->transfers;
    return (link->queue.first || ends) && ib_may_send_locked(link);
}

void ib_flush(struct bmi_link *base)
{
    struct ib_link *link = ib_link_of(base);
    struct bmi_frame *done = NULL, **done_end = &done;
    int status = 0;
    bool any = false;

    ib_lock(&link->send_lock);
    ib_transfers_post_locked(link);
    while (status == 0 && message_is_due_locked(link)) {
        status = message_send_locked(link, &done_end);
        any |= status == 0;
    }
    if (any)
        ib_ring_locked(link);
    if (status == -EAGAIN)
        ib_link_block_locked(link);
    else if (status < 0)
        link->failure = status;
    bool kick = link->failure;
    ib_unlock(&link->send_lock);

    if (done)
        bmi_method_frames_sent(base, done);
    if (kick)
        ib_link_kick(link);
}

bool ib_send_now(struct bmi_link *base, const uint8_t header[BMI_FRAME_SHORT], const void *body,
                 size_t bytes)
{
    struct ib_link *link = ib_link_of(base);
    struct ib_state *state = ib_state_of(link);
    uint8_t memory[IB_PREFIX + BMI_FRAME_SHORT + BMI_SEND_NOW];
    size_t size = IB_PREFIX + BMI_FRAME_SHORT + bytes;

    memcpy(memory + IB_PREFIX, header, BMI_FRAME_SHORT);
    memcpy(memory + IB_PREFIX + BMI_FRAME_SHORT, body, bytes);
    ib_lock(&link->send_lock);
    bool sent = ib_may_send_locked(link) && link->closing == IB_OPEN && !link->queue.first &&
                size <= state->fabric->inject_max && message_post(link, NULL, memory, size) == 0;
    if (sent)
        ib_ring_locked(link);
    ib_unlock(&link->send_lock);
    ib_count(state, BMI_COUNT_FRAMES_SENT, sent);
    return sent;
}
