/* SPDX-License-Identifier: BSD-3-Clause
 *
 * send.c - how a message sets out. Peer's lock.
 *
 * Messages of one tag start in the order of their posts. The next one goes
 *   - where a receive was announced for it and it is large: as DATA straight away;
 *   - eager, if it is small, or the peer's receives for large ones come in time, and the peer's
 *     credit covers it;
 *   - by RTS, if it is large and there is credit for that;
 *   - else it waits (pending), and a WANT frame notifies the peer. If unmatched messages hold its
 *     memory, the peer then announces every receive that it has, so that other messages never delay
 *     one whose receive is posted.
 */
#include <errno.h>
#include <stdlib.h>

#include "bmi/progress/progress.h"
#include "bmi/protocol/cancel.h"
#include "bmi/protocol/credit.h"
#include "bmi/protocol/frames.h"
#include "bmi/protocol/op_end.h"
#include "bmi/protocol/rendezvous.h"
#include "bmi/protocol/send.h"
#include "bmi/protocol/tag_queue.h"
#include "bmi/state/liveness.h"
#include "bmi/state/op.h"
#include "bmi/state/peer.h"

/* The announcement for the queue's next message, if there is one. */
static struct announcement *announcement_next(struct tag_queue *queue)
{
    struct announcement *first = queue->announced_first;
    return first != NULL && first->position == queue->position ? first : NULL;
}

static bool note(struct peer *peer, struct tag_queue *queue, struct op *op)
{
    queue->asked = false;
    if (bmi__sent_note_locked(peer, queue, false, &op->message_index))
        return true;
    bmi__peer_fail_locked(peer, -ENOMEM, "no memory to note a message");
    return false;
}

static void eager_send(struct peer *peer, struct op *op)
{
    peer->eager_credit -= op->total + WIRE_MESSAGE_CHARGE;
    peer->counters.eager_sent++;
    op->stage = SEND_FRAME;
    bmi__op_frame_send_locked(op, &(struct wire_header){.type = WIRE_EAGER, .tag = op->tag},
                              op->total);
}

/* Whether it goes as one frame, if there is credit. */
static bool is_small(const struct peer *peer, const struct op *op)
{
    const struct bmi_method_limits *limits = &peer->link->method->limits;
    bool unasked = (op->flags & OP_UNASKED) && !limits->put && !limits->get &&
                   op->total + WIRE_MESSAGE_CHARGE <= peer->eager_credit;
    bmi_size_t most = (peer->flags & PEER_TAKES_LARGE) || unasked ? limits->frame_max
                                                                  : (bmi_size_t)peer->eager_max;
    return op->total <= most && op->total + WIRE_MESSAGE_CHARGE <= (bmi_size_t)peer->eager_window;
}

/* Sends the message to the receive that was announced for it. If the receive is too small, both
 * operations end: the notice of that needs no credit, so it never waits for other messages. */
static bool announced_start(struct peer *peer, struct tag_queue *queue, struct op *op,
                            const struct announcement *announced)
{
    if (!note(peer, queue, op))
        return false;
    peer->counters.announced_sent++;
    if (op->total <= announced->capacity)
        bmi__stream_start_locked(peer, op, announced->receive, true, announced->regions,
                                 announced->region_count);
    else
        bmi__too_large_send_locked(peer, op, announced->receive);
    bmi__announcement_drop_locked(peer, queue, &queue->announced_first);
    return true;
}

/* Starts the queue's next message if it may. false: it has to wait. */
static bool message_start(struct peer *peer, struct tag_queue *queue, struct op *op)
{
    if (bmi__sent_full_locked(peer))
        return false;
    struct announcement *announced = announcement_next(queue);
    bool small = is_small(peer, op);
    bool credit = peer->eager_credit >= op->total + WIRE_MESSAGE_CHARGE;
    bool unasked = small ? credit : peer->eager_credit >= WIRE_MESSAGE_CHARGE;
    bool fits = announced != NULL && op->total <= announced->capacity;
    bool eager = small && credit && op->total <= STRAIGHT_BYTES;
    if (announced != NULL && (fits ? !eager : !unasked))
        return announced_start(peer, queue, op, announced);
    if (!unasked)
        return false;
    if (!note(peer, queue, op))
        return false;
    if (announced != NULL)
        bmi__announcement_drop_locked(peer, queue, &queue->announced_first);
    if (small)
        eager_send(peer, op);
    else
        bmi__rts_send_locked(peer, op);
    return true;
}

/* ---- sends that wait ------------------------------------------------------------------------ */

static void waiting_append(struct peer *peer, struct tag_queue *queue)
{
    queue->waiting_next = NULL;
    queue->waiting_previous = peer->waiting_last;
    if (peer->waiting_last != NULL)
        peer->waiting_last->waiting_next = queue;
    else
        peer->waiting_first = queue;
    peer->waiting_last = queue;
}

static void waiting_remove(struct peer *peer, struct tag_queue *queue)
{
    if (queue->waiting_previous != NULL)
        queue->waiting_previous->waiting_next = queue->waiting_next;
    else
        peer->waiting_first = queue->waiting_next;
    if (queue->waiting_next != NULL)
        queue->waiting_next->waiting_previous = queue->waiting_previous;
    else
        peer->waiting_last = queue->waiting_previous;
}

/* The first message of the queue waits: asks the receiver for whatever lets it go on. If the
 * announcements of its receives were forgotten, and may never be sent again, asks for them by tag.
 */
static void eager_want(struct peer *peer, struct tag_queue *queue)
{
    const struct op *op = queue->pending.first;
    if (bmi__sent_full_locked(peer))
        return; /* it is not credit that it waits for */
    uint64_t bytes =
        is_small(peer, op) ? (uint64_t)op->total + WIRE_MESSAGE_CHARGE : WIRE_MESSAGE_CHARGE;
    bool forgot = (peer->flags & PEER_FORGOT) && announcement_next(queue) == NULL;
    bmi__credit_want_locked(peer, WIRE_EAGER_CREDIT, bytes, forgot ? queue : NULL);
}

static void pend(struct peer *peer, struct tag_queue *queue, struct op *op)
{
    op->stage = SEND_PENDING;
    if (queue->pending.first == NULL)
        waiting_append(peer, queue);
    bmi__op_append(&queue->pending, op);
    if (peer->state == PEER_UP)
        eager_want(peer, queue);
}

void bmi__pending_remove_locked(struct peer *peer, struct op *op)
{
    if (op->kind == OP_SEND_UNEXPECTED) {
        bmi__op_remove(&peer->unexpected, op);
        return;
    }
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, op->tag);
    bmi__op_remove(&queue->pending, op);
    if (queue->pending.first == NULL)
        waiting_remove(peer, queue);
}

void bmi__send_start_locked(struct peer *peer, struct op *op)
{
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, op->tag);
    if (queue == NULL) {
        bmi__op_complete_locked(op, -ENOMEM, 0);
        return;
    }
    if (peer->state != PEER_UP || queue->pending.first != NULL || !message_start(peer, queue, op))
        pend(peer, queue, op);
}

/* ---- at once -------------------------------------------------------------------------------- */

/* Whether a message of the queue may go now, as one frame, without other frames for it. */
static bool may_go_now(const struct peer *peer, const struct tag_queue *queue, bmi_size_t size)
{
    bmi_size_t charge = size + WIRE_MESSAGE_CHARGE;
    uint32_t room = peer->sent_size > SENT_INLINE ? peer->sent_size : SENT_INLINE;
    if (room > SENT_MOST)
        room = SENT_MOST;
    return queue->pending.first == NULL && queue->announced_first == NULL &&
           (uint64_t)size <= peer->eager_max && charge <= (bmi_size_t)peer->eager_window &&
           charge <= peer->eager_credit && peer->sent_count - peer->sent_seen < room;
}

/* Changes the state of the peer and of the queue as message_start does, but after the message was
 * written: the answer may arrive meanwhile. The first message to a peer that the liveness timer
 * does not look at takes the long way, which marks the peer as not idle. */
bool bmi__send_now_locked(struct peer *peer, wire_tag tag, const void *buffer, bmi_size_t size)
{
    const uint32_t flags = peer->flags & (PEER_ATTENTION | PEER_CLOSING);
    if (peer->state != PEER_UP || flags != PEER_ATTENTION || size <= 0 || size > BMI_SEND_NOW)
        return false;
    struct bmi_link *link = peer->link;
    struct tag_queue *queue =
        link->method->send_now != NULL ? bmi__tag_queue_get_locked(peer, tag) : NULL;
    if (queue == NULL || !may_go_now(peer, queue, size))
        return false;
    struct wire_header header = {.type = WIRE_EAGER,
                                 .tag = tag,
                                 .length = (uint64_t)size,
                                 .seen = peer->seen,
                                 .credit = peer->eager.unreported};
    uint8_t bytes[BMI_FRAME_HEADER];
    wire_encode(bytes, &header);
    if (!link->method->send_now(link, bytes, buffer, (size_t)size))
        return false;
    uint32_t index;
    bmi__frame_trace(peer, "to", &header);
    peer->seen_reported = peer->seen;
    (void)bmi__credit_report_locked(peer);
    queue->asked = false;
    (void)bmi__sent_note_locked(peer, queue, false, &index); /* there is room */
    peer->eager_credit -= size + WIRE_MESSAGE_CHARGE;
    peer->counters.eager_sent++;
    peer->counters.messages_sent++;
    peer->counters.bytes_sent += (uint64_t)size;
    return true;
}

/* ---- sends that waited ---------------------------------------------------------------------- */

void bmi__tag_queue_pump_locked(struct peer *peer, struct tag_queue *queue)
{
    while (queue->pending.first != NULL) {
        struct op *op = queue->pending.first;
        bmi__op_remove(&queue->pending, op);
        if (!message_start(peer, queue, op)) {
            bmi__op_prepend(&queue->pending, op);
            if (peer->flags & PEER_FORGOT)
                eager_want(peer, queue);
            bmi__progress_dirty(peer->link); /* those before it */
            return;
        }
        if (queue->pending.first == NULL)
            waiting_remove(peer, queue);
    }
    bmi__progress_dirty(peer->link);
    bmi__tag_queue_release_locked(peer, queue);
}

/* ---- unexpected messages -------------------------------------------------------------------- */

static bool unexpected_send(struct peer *peer, struct op *op)
{
    if (peer->unexpected_credit < op->total + WIRE_MESSAGE_CHARGE)
        return false;
    peer->unexpected_credit -= op->total + WIRE_MESSAGE_CHARGE;
    op->stage = SEND_FRAME;
    bmi__op_frame_send_locked(op, &(struct wire_header){.type = WIRE_UNEXPECTED, .tag = op->tag},
                              op->total);
    return true;
}

/* Asks for as much as those that wait need, at most one message of the largest size. */
static void unexpected_want(struct peer *peer)
{
    uint64_t most = (uint64_t)peer->unexpected_max + WIRE_MESSAGE_CHARGE, bytes = 0;
    for (const struct op *op = peer->unexpected.first; op != NULL; op = op->next) {
        uint64_t charge = (uint64_t)op->total + WIRE_MESSAGE_CHARGE;
        if (bytes + charge > most)
            break;
        bytes += charge;
    }
    bmi__credit_want_locked(peer, WIRE_UNEXPECTED_CREDIT, bytes, NULL);
}

void bmi__unexpected_want_anew_locked(struct peer *peer)
{
    if (peer->unexpected.first == NULL)
        return;
    peer->flags &= ~(uint32_t)PEER_WANTS_UNEXPECTED;
    unexpected_want(peer);
}

void bmi__unexpected_start_locked(struct peer *peer, struct op *op)
{
    if (peer->state == PEER_UP && op->total > (bmi_size_t)peer->unexpected_max) {
        bmi__op_complete_locked(op, -EMSGSIZE, 0);
        return;
    }
    bool free_way = peer->state == PEER_UP && peer->unexpected.first == NULL;
    if (free_way && unexpected_send(peer, op))
        return;
    op->stage = SEND_PENDING;
    bmi__op_append(&peer->unexpected, op);
    if (peer->state == PEER_UP)
        unexpected_want(peer);
}

static void unexpected_pump(struct peer *peer)
{
    while (peer->unexpected.first != NULL) {
        struct op *op = peer->unexpected.first;
        bmi__op_remove(&peer->unexpected, op);
        if (op->total > (bmi_size_t)peer->unexpected_max) {
            bmi__op_complete_locked(op, -EMSGSIZE, 0);
        } else if (!unexpected_send(peer, op)) {
            bmi__op_prepend(&peer->unexpected, op);
            unexpected_want(peer);
            return;
        }
    }
}

/* ---- more room ------------------------------------------------------------------------------ */

static void eager_pump(struct peer *peer)
{
    struct tag_queue *queue;
    while ((queue = peer->waiting_first) != NULL && peer->eager_credit >= WIRE_MESSAGE_CHARGE) {
        bmi__tag_queue_pump_locked(peer, queue);
        if (peer->waiting_first == queue)
            break; /* the credit is used up */
    }
    if (peer->waiting_first != NULL)
        eager_want(peer, peer->waiting_first);
}

void bmi__large_told_locked(struct peer *peer, uint64_t most)
{
    bool before = (peer->flags & PEER_TAKES_LARGE) != 0;
    bool now = most >= (uint64_t)peer->link->method->limits.frame_max;
    peer->flags &= ~(uint32_t)PEER_TAKES_LARGE;
    peer->flags |= now ? PEER_TAKES_LARGE : 0;
    if (before && !now)
        eager_pump(peer); /* one that waits for credit asks now */
}

void bmi__tag_queues_pump_locked(struct peer *peer)
{
    for (struct tag_queue *queue = peer->waiting_first, *next; queue != NULL; queue = next) {
        next = queue->waiting_next;
        bmi__tag_queue_pump_locked(peer, queue);
    }
    if (peer->waiting_first != NULL)
        eager_want(peer, peer->waiting_first);
}

void bmi__pending_pump_locked(struct peer *peer)
{
    unexpected_pump(peer);
    eager_pump(peer);
    bmi__progress_dirty(peer->link);
}

void bmi__send_frame_done_locked(struct peer *peer, struct op *op, int status)
{
    op->flags &= (uint8_t)~OP_FRAME_OUT;
    if (op->stage == STAGE_DYING) {
        bmi__op_complete_locked(op, op->error, 0);
        return;
    }
    peer->stream_bytes -= (uint32_t)op->expected; /* what a DATA frame carried */
    op->expected = 0;
    if (status < 0)
        return; /* the link goes down and takes the operation along */
    if (op->stage == SEND_FRAME || op->stage == SEND_PUT_TOLD)
        bmi__op_complete_locked(op, 0, op->total);
    else if (op->flags & OP_CANCELLED)
        bmi__stream_cancel_locked(peer, op, op->total - op->list.left);
}
