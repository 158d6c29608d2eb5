/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bounce.c - directed sends through the ring of low priority.
 *
 * Each piece is a record that names its destination; the peer's poller checks that against its
 * exposures, copies, and answers the last one. All directed sends go this way where the kernel
 * refuses process_vm_writev. Long ones from plain to plain memory do as long as the receiver looks
 * or sleeps, since two processors that copy through a ring which fits into a cache are faster than
 * one in process_vm_writev. The sender's part runs with directed_lock held, the receiver's in its
 * poller.
 */
#include <errno.h>

#include "internal.h"

enum {
    BOUNCE_MIN = 64 << 10, /* shorter ones are not bounced by choice */
    BOUNCE_PATIENCE = 4    /* pieces without a sign of the receiver */
};

/* ---- the sender -------------------------------------------------------------------------------
 */

bool nic__answers_full_locked(const struct nic_peer *peer)
{
    const struct nic_send *oldest = peer->answering.head;
    return oldest != NULL && peer->bounces + 1 - oldest->number >= NIC_ANSWERS;
}

/* No send has number 0. The answers' places stay consecutive also where numbers wrap around. */
static uint32_t number_next(struct nic_peer *peer)
{
    peer->bounces = peer->bounces == UINT32_MAX ? NIC_ANSWERS : peer->bounces + 1;
    return peer->bounces;
}

/* Puts the next piece into the ring. peer->lock held. */
static enum nic_step piece_put(struct nic_peer *peer, struct nic_send *send, uint64_t limit)
{
    struct nic_ring *ring = &peer->out[NIC_LOW_PRIORITY];
    struct iovec window[NIC_WINDOW];
    send->full_at = ring->seen;
    send->ring_full = send->number == 0 && nic__answers_full_locked(peer);
    if (send->ring_full)
        return NIC_STEP_BLOCKED;
    uint64_t bytes, most = peer->max_length[NIC_LOW_PRIORITY] - sizeof(struct nic_bounce);
    if (most > NIC_BOUNCE_PIECE)
        most = NIC_BOUNCE_PIECE;
    size_t count = nic__source_window(send, window, limit < most ? limit : most, &bytes);
    uint8_t *place = nic__out_reserve(peer, NIC_LOW_PRIORITY, sizeof(struct nic_bounce) + bytes);
    send->full_at = ring->seen;
    send->ring_full = place == NULL;
    if (place == NULL)
        return NIC_STEP_BLOCKED;
    if (send->number == 0)
        send->number = number_next(peer);
    send->answer_wanted = send->done + bytes == send->length;
    struct nic_bounce bounce = {.key = send->key,
                                .offset = send->offset + send->done,
                                .number = send->number,
                                .last = send->answer_wanted};
    memcpy(place, &bounce, sizeof(bounce));
    nic__copy_all(place + sizeof(bounce), window, count);
    nic__ring_publish(ring, sizeof(bounce) + bytes, NIC_RECORD_BOUNCE, 0, 0);
    atomic_store_explicit(&peer->unsettled, true, memory_order_relaxed);
    nic__source_advance(send, bytes);
    nic__count(&peer->port->counters.bounced, 1);
    nic__count(&peer->port->counters.bounced_bytes, bytes);
    return send->answer_wanted ? NIC_STEP_TOLD : NIC_STEP_MORE;
}

bool nic__answered(const struct nic_peer *peer, const struct nic_send *send, int *status)
{
    uint64_t answer = atomic_load_explicit(&peer->theirs->bounced[send->number % NIC_ANSWERS],
                                           memory_order_acquire);
    uint32_t error = (uint32_t)answer;
    if ((uint32_t)(answer >> 32) != send->number)
        return false;
    *status = error < 4096 ? -(int)error : -EPROTO;
    return true;
}

enum nic_step nic__bounce_step(struct nic_peer *peer, struct nic_send *send, uint64_t limit)
{
    uint64_t before = send->done;
    bmi_lock_take(&peer->lock);
    enum nic_step step = piece_put(peer, send, limit);
    bmi_lock_give(&peer->lock);
    peer->unrung += send->done - before;
    if (step != NIC_STEP_MORE || peer->unrung >= peer->out[NIC_LOW_PRIORITY].size / 2) {
        peer->unrung = 0;
        nic__doorbell(peer);
    }
    return step;
}

/* Whether the data lies outside of arenas on both sides. Only a hint, from the first segment. */
static bool is_plain(struct nic_peer *peer, const struct nic_send *send)
{
    uint64_t offset;
    const struct nic_shared_exposure *exposure = nic__exposure_named(peer, send->key);
    return exposure != NULL && exposure->arena == NIC_NO_ARENA &&
           nic__arena_of(peer->port, send->iov->iov_base, send->iov->iov_len, &offset) ==
               NIC_NO_ARENA;
}

void nic__bounce_choose(struct nic_peer *peer, struct nic_send *send)
{
    send->bounced = send->length >= BOUNCE_MIN && !peer->port->timed && peer->vm_write &&
                    peer->faults.drop_every == 0 && is_plain(peer, send);
}

bool nic__receiver_looks(struct nic_peer *peer)
{
    uint32_t turns = atomic_load_explicit(&peer->their_port->turns, memory_order_relaxed);
    if (turns != peer->turns_seen ||
        atomic_load_explicit(&peer->their_port->asleep, memory_order_relaxed) != 0)
        peer->turns_same = 0;
    else if (peer->turns_same < BOUNCE_PATIENCE)
        peer->turns_same++;
    peer->turns_seen = turns;
    return peer->turns_same < BOUNCE_PATIENCE;
}

/* ---- the receiver -----------------------------------------------------------------------------
 */

bool nic__bounce_arrived(struct nic_peer *peer, const uint8_t *payload, uint64_t length)
{
    struct nic_bounce bounce;
    if (length < sizeof(bounce))
        return false;
    memcpy(&bounce, payload, sizeof(bounce));
    if (bounce.number != peer->bounce_number) {
        peer->bounce_number = bounce.number;
        peer->bounce_status = 0;
    }
    if (peer->bounce_status == 0)
        peer->bounce_status =
            nic__exposure_write(peer->port, peer->link_name, bounce.key, bounce.offset,
                                payload + sizeof(bounce), length - sizeof(bounce));
    nic__turn(peer->port);
    if (bounce.last == 0)
        return true;
    atomic_store_explicit(&peer->mine->bounced[bounce.number % NIC_ANSWERS],
                          (uint64_t)bounce.number << 32 | (uint32_t)-peer->bounce_status,
                          memory_order_release);
    bmi_fence();
    if (atomic_load_explicit(&peer->theirs->wants, memory_order_relaxed) != 0)
        nic__doorbell(peer);
    return true;
}
