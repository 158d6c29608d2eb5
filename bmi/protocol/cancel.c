/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cancel.c - cancels operations, each according to its progress. No other operation is affected.
 *
 * A send of which nothing was sent is withdrawn. A send that is partly on its way is aborted, and
 * the receive that it matched waits for another message as if nothing had happened. If the sender
 * knows of a receive (it is announced, or announced ones stand behind it), the receiver asks the
 * sender first, since a message may be on its way. The receive ends with the answer, with that
 * message, or after the grace. After the grace, a tombstone (OP_TOMBSTONE) takes the receive's
 * place and discards the data that the sender had already committed to it; if the message has
 * begun, its rest is drained.
 */
#include "bmi/protocol/cancel.h"

#include <errno.h>
#include <stdlib.h>

#include "bmi/base/clock.h"
#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/base/settings.h"
#include "bmi/protocol/frames.h"
#include "bmi/protocol/match.h"
#include "bmi/protocol/op_end.h"
#include "bmi/protocol/rendezvous.h"
#include "bmi/protocol/send.h"
#include "bmi/protocol/tag_queue.h"
#include "bmi/state/library.h"
#include "bmi/state/liveness.h"
#include "bmi/state/op.h"

/* ---- sends ---------------------------------------------------------------------------------- */

/* Later sends of the same tag may start now, or must request the forgotten announcements anew. */
static void others_go(struct peer *peer, wire_tag tag)
{
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, tag);
    if (peer->state == PEER_UP && queue != NULL && queue->pending.first != NULL)
        bmi__tag_queue_pump_locked(peer, queue);
}

/* Informs the receiver that a started message ends. If none of its bytes moved, the receive goes on
 * waiting. */
static void abort_send(struct peer *peer, struct op *op, bool moved)
{
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, op->tag);
    uint32_t index;
    if (queue == NULL || !bmi__sent_note_locked(peer, queue, true, &index)) {
        bmi__peer_fail_locked(peer, -ENOMEM, "no memory to abort a message");
        return;
    }
    if (!moved) {
        bmi__tag_queue_unsettle_locked(peer, queue); /* a receive may be given back */
        peer->flags |= PEER_FORGOT;                  /* announcements made meanwhile are not used */
    }
    struct wire_header header = {.type = WIRE_ABORT,
                                 .flags = moved ? WIRE_MOVED : 0,
                                 .tag = op->tag,
                                 .source = (uint64_t)bmi__op_id(op),
                                 .target = op->remote};
    bmi__control_send_locked(peer, header, NULL, 0);
    others_go(peer, op->tag);
}

void bmi__stream_cancel_locked(struct peer *peer, struct op *op, bmi_size_t moved)
{
    bmi__op_unqueue_locked(peer, op);
    abort_send(peer, op, moved > 0);
    bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    bmi__streams_pump_locked(peer);
}

/* A frame of the operation is with the method: tries to get it back. If the frame starts a message,
 * a VOID replaces it, so that the message count stays right. Any other frame is replaced so that
 * its credit is not lost. */
enum taken { TAKEN_WHOLE, TAKEN_REST, GONE };
static enum taken frame_take(struct peer *peer, struct op *op, bool starts)
{
    struct bmi_frame *instead =
        bmi__control_instead(peer, &op->frame, starts ? WIRE_VOID : WIRE_CREDIT);
    if (instead == NULL)
        return GONE; /* the operation completes with its real result */
    if (peer->link == NULL || !peer->link->method->withdraw(peer->link, &op->frame, instead)) {
        bmi__control_free(peer->instance, instead);
        return GONE;
    }
    op->flags &= (uint8_t)~OP_FRAME_OUT;
    peer->stream_bytes -= (uint32_t)op->expected;
    op->expected = 0;
    if (op->frame.header_sent == 0)
        return TAKEN_WHOLE;
    bmi__control_free(peer->instance, instead);
    return TAKEN_REST;
}

static void eager_cancel(struct peer *peer, struct op *op)
{
    bool counted = op->kind == OP_SEND;
    wire_tag tag = op->tag;
    enum taken taken = frame_take(peer, op, counted);
    if (taken == TAKEN_WHOLE) {
        if (counted) {
            bmi__sent_withdraw_locked(peer, op->message_index);
            peer->eager_credit += op->total + WIRE_MESSAGE_CHARGE;
        } else {
            peer->unexpected_credit += op->total + WIRE_MESSAGE_CHARGE;
        }
        bmi__op_complete_locked(op, BMI__CANCELLED, 0);
        others_go(peer, tag);
        bmi__pending_pump_locked(peer); /* there is credit again */
    } else if (taken == TAKEN_REST) {
        bmi__op_complete_locked(op, 0, op->total); /* it arrives whole */
    }
}

/* The frame that starts an announced message was not sent: withdraws the message. */
static void start_withdrawn(struct peer *peer, struct op *op)
{
    wire_tag tag = op->tag;
    bmi__op_unqueue_locked(peer, op);
    bmi__sent_withdraw_locked(peer, op->message_index);
    bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    others_go(peer, tag);
}

static void stream_cancel(struct peer *peer, struct op *op)
{
    bool last = op->stage == SEND_FRAME;
    bool out = (op->flags & OP_FRAME_OUT) != 0;
    bool starts = out && (op->frame.header[1] & WIRE_FIRST) != 0;
    bmi_size_t moved = op->total - op->list.left, framed = op->expected;
    enum taken taken = out ? frame_take(peer, op, starts) : TAKEN_WHOLE;
    if (out && taken == TAKEN_WHOLE)
        moved -= framed;
    if (starts && taken == TAKEN_WHOLE) {
        start_withdrawn(peer, op);
    } else if (taken == GONE) {
        op->flags |= OP_CANCELLED; /* when its frame comes back */
    } else if (last && taken == TAKEN_REST) {
        bmi__op_complete_locked(op, 0, op->total);
    } else {
        bmi__stream_cancel_locked(peer, op, moved);
    }
}

/* The receiver may be fetching the message, or may have it. Its answer says which. */
static void rts_cancel(struct peer *peer, struct op *op)
{
    bool fetched = op->memory != NULL;
    if (op->flags & OP_CANCELLED)
        return;
    bmi__memory_release_locked(op);
    abort_send(peer, op, false);
    if (fetched)
        op->flags |= OP_CANCELLED;
    else
        bmi__op_complete_locked(op, BMI__CANCELLED, 0);
}

void bmi__cancelled_answered_locked(struct peer *peer, struct op *op, bool discard)
{
    if (!discard)
        abort_send(peer, op, false);
    bmi__op_complete_locked(op, BMI__CANCELLED, 0);
}

/* Sends that waited behind this one may be smaller. For unexpected messages, the peer was asked for
 * the credit that the first of them needs. */
static void pending_cancel(struct peer *peer, struct op *op)
{
    bool up = peer->state == PEER_UP, asked = op == peer->unexpected.first;
    struct tag_queue *queue =
        op->kind == OP_SEND ? bmi__tag_queue_find_locked(peer, op->tag) : NULL;
    bmi__op_unqueue_locked(peer, op);
    bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    if (queue != NULL && up)
        bmi__tag_queue_pump_locked(peer, queue);
    else if (queue != NULL)
        bmi__tag_queue_release_locked(peer, queue);
    if (up)
        bmi__pending_pump_locked(peer);
    if (up && asked)
        bmi__unexpected_want_anew_locked(peer);
}

/* The put completes with its real result. If the network does not move it, the peer is given up,
 * although it is not silent. That happens after the time-out for silence plus the time that a slow
 * network needs. */
static void put_cancel(struct op *op)
{
    enum { SLOW_NS = 1000 }; /* per byte */
    uint64_t most_ns = (uint64_t)bmi__setting(op->instance, SETTING_PEER_TIMEOUT) * 1000000u;
    if ((op->flags & OP_CANCEL_ASKED) || most_ns == 0)
        return;
    op->flags |= OP_CANCEL_ASKED;
    op->deadline_ns = bmi__instance_now_ns(op->instance) + most_ns + (uint64_t)op->total * SLOW_NS;
}

static void send_cancel(struct peer *peer, struct op *op)
{
    switch (op->stage) {
    case SEND_PENDING:
        pending_cancel(peer, op);
        break;
    case SEND_FRAME:
        if (op->flags & OP_STARTED)
            stream_cancel(peer, op);
        else
            eager_cancel(peer, op);
        break;
    case SEND_RTS:
        rts_cancel(peer, op);
        break;
    case SEND_STREAM:
        stream_cancel(peer, op);
        break;
    case SEND_PUT:
        put_cancel(op);
        break;
    default:
        break; /* completes with its real result */
    }
}

/* ---- receives ------------------------------------------------------------------------------- */

static void ask_sender(struct peer *peer, struct tag_queue *queue, struct op *op)
{
    uint64_t id = op->flags & OP_TOMBSTONE ? op->remote : (uint64_t)bmi__op_id(op);
    struct wire_header header = {.type = WIRE_RTR_CANCEL, .tag = op->tag, .source = id};
    peer->questions++;
    queue->questions++;
    op->flags &= (uint8_t)~OP_CANCEL_WAITS;
    op->flags |= OP_CANCEL_ASKED;
    queue->live--;
    bmi__control_send_locked(peer, header, NULL, 0);
}

/* A program may cancel any number of receives between two test calls, which read the answers. This
 * limits the unanswered questions to a number that every sender accepts. The rest wait. */
enum { QUESTIONS_MOST = 512 };

static void question_begin(struct peer *peer, struct tag_queue *queue, struct op *op)
{
    op->deadline_ns = bmi__instance_now_ns(op->instance) +
                      (uint64_t)bmi__setting(peer->instance, SETTING_CANCEL_GRACE) * 1000000u;
    bmi__grace_begins(peer->instance);
    if (peer->questions < QUESTIONS_MOST) {
        ask_sender(peer, queue, op);
    } else {
        op->flags |= OP_CANCEL_WAITS;
        peer->flags |= PEER_QUESTIONS;
    }
}

void bmi__question_answered_locked(struct peer *peer)
{
    if (peer->questions > 0)
        peer->questions--;
    if (!(peer->flags & PEER_QUESTIONS) || peer->questions > QUESTIONS_MOST / 2)
        return;
    peer->flags &= ~(uint32_t)PEER_QUESTIONS;
    for (struct op *op = peer->ops_first; op != NULL; op = op->peer_next) {
        if (op->stage != RECV_POSTED || !(op->flags & OP_CANCEL_WAITS))
            continue;
        if (peer->questions == QUESTIONS_MOST) {
            peer->flags |= PEER_QUESTIONS;
            return;
        }
        ask_sender(peer, bmi__tag_queue_find_locked(peer, op->tag), op);
    }
}

static void posted_cancel(struct peer *peer, struct op *op)
{
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, op->tag);
    if (peer->state == PEER_UP && queue->announced > 0 && !(peer->flags & PEER_CLOSING)) {
        if (!(op->flags & (OP_CANCEL_ASKED | OP_CANCEL_WAITS)))
            question_begin(peer, queue, op);
        return;
    }
    if (peer->link != NULL && op->memory != NULL)
        return; /* it ends with the connection, on which a sender may be writing to it */
    bmi__receive_unqueue_locked(queue, op);
    bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    bmi__tag_queue_release_locked(peer, queue);
}

/* Puts a tombstone in the place of the receive, for the message that the receive had matched.
 * false: no memory. */
static bool message_swallow(struct peer *peer, struct op *op)
{
    struct op *tombstone = bmi__op_take(peer->instance);
    if (tombstone == NULL)
        return false;
    tombstone->kind = OP_RECV;
    tombstone->tag = op->tag;
    tombstone->total = 0;
    tombstone->flags = OP_TOMBSTONE;
    tombstone->stage = RECV_HELD;
    tombstone->held = op->held;
    tombstone->held->claimed_by = tombstone;
    bmi__peer_adopt_locked(peer, tombstone);
    return true;
}

/* Gives the message that the receive had claimed to the next receive, or lets it wait. Two cases
 * differ. If the sender knows of later receives, it assumes that the message has used up this one.
 * And a receive that is too small must not stand behind a message. In both, the message ends with
 * the receive that had claimed it. */
static void held_cancel(struct peer *peer, struct op *op)
{
    struct unmatched *message = op->held;
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, op->tag);
    struct op *next = queue->receives.first;
    if (next != NULL && (queue->announced > 0 || next->total < message->size)) {
        if (!message_swallow(peer, op))
            return; /* its real result will come */
        next = NULL;
    } else {
        message->claimed_by = NULL;
    }
    op->held = NULL;
    bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    if (next != NULL) {
        bmi__receive_unqueue_locked(queue, next);
        bmi__receive_settled_locked(next);
        next->stage = RECV_HELD;
        next->held = message;
        message->claimed_by = next;
    }
}

/* The receive's memory is being written to, or may be. From now on its frames are drained, and the
 * method stops a running transfer. The peer's lock is released meanwhile. Returns whether the
 * operation still exists. */
static bool arriving_stop(struct peer *peer, struct op *op, bmi_op_id_t id, bool *stopped)
{
    op->flags |= OP_CANCELLED;
    struct bmi_link *links[2] = {peer->link, peer->self_link};
    *stopped = false;
    for (int i = 0; i < 2; i++)
        if (links[i] != NULL)
            bmi_link_ref(links[i]);
    peer_unlock(peer);
    for (int i = 0; i < 2; i++)
        if (links[i] != NULL) {
            *stopped |= links[i]->method->retract(links[i], op);
            bmi_link_unref(links[i]);
        }
    peer_lock(peer);
    return bmi__op_id(op) == id && op->peer == peer;
}

static void arriving_cancel(struct peer *peer, struct op *op, bmi_op_id_t id)
{
    bool stopped;
    if (!arriving_stop(peer, op, id, &stopped))
        return; /* it completed meanwhile */
    if (stopped || (op->stage == RECV_CLEARED && op->memory == NULL)) {
        bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    } else if (op->memory != NULL && !(op->flags & OP_CANCEL_ASKED)) {
        /* a put may be writing: wait until it is done or the grace ends */
        op->flags |= OP_CANCEL_ASKED;
        op->deadline_ns = bmi__instance_now_ns(op->instance) +
                          (uint64_t)bmi__setting(peer->instance, SETTING_CANCEL_GRACE) * 1000000u;
        bmi__grace_begins(peer->instance);
    }
}

static void receive_cancel(struct peer *peer, struct op *op, bmi_op_id_t id)
{
    switch (op->stage) {
    case RECV_POSTED:
        posted_cancel(peer, op);
        break;
    case RECV_HELD:
        held_cancel(peer, op);
        break;
    case RECV_CLEARED:
    case RECV_ARRIVING:
        arriving_cancel(peer, op, id);
        break;
    case RECV_GET: /* its real result comes, unless the transfer fails */
        op->flags |= OP_CANCELLED;
        break;
    default:
        break;
    }
}

/* ---- the grace ------------------------------------------------------------------------------ */

/* Puts a tombstone in the receive's place. false: not now, try at the next tick. A sender may be
 * writing to its memory already, and that sender may be a stopped process: the poller does not wait
 * for it. */
static bool haunt(struct peer *peer, struct op *op)
{
    struct op *tombstone = bmi__op_take(peer->instance);
    if (tombstone == NULL)
        return false;
    if (!bmi__memory_try_release_locked(op)) {
        bmi__op_give(tombstone);
        return false;
    }
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, op->tag);
    tombstone->kind = OP_RECV;
    tombstone->tag = op->tag;
    tombstone->total = 0;
    tombstone->remote = (uint64_t)bmi__op_id(op);
    tombstone->flags = (uint8_t)(OP_TOMBSTONE | (op->flags & (OP_ANNOUNCED | OP_CANCEL_WAITS)));
    tombstone->stage = RECV_POSTED;
    tombstone->next = op->next;
    tombstone->previous = op->previous;
    *(op->previous != NULL ? &op->previous->next : &queue->receives.first) = tombstone;
    *(op->next != NULL ? &op->next->previous : &queue->receives.last) = tombstone;
    op->next = op->previous = NULL;
    queue->tombstones++;
    bmi__peer_adopt_locked(peer, tombstone);
    bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    return true;
}

/* The receive's message began to arrive, but has not ended. Stops the transfers to its memory,
 * once. *released is set if the peer's lock was released for that. Returns whether the receive must
 * wait longer. */
static bool arriving_end(struct peer *peer, struct op *op, bool *released)
{
    bool stopped;
    *released = !(op->flags & OP_CANCELLED);
    if (*released && !arriving_stop(peer, op, bmi__op_id(op), &stopped))
        return false;
    if (*released && stopped)
        op->stage = RECV_CLEARED; /* no transfer is under way any more */
    if (op->memory != NULL && !bmi__memory_try_release_locked(op))
        return true; /* the writing process may be stopped: try at the next tick */
    if (op->stage == RECV_CLEARED)
        bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    return false;
}

bool bmi__cancel_graces_locked(struct peer *peer, uint64_t now)
{
    bool waiting = false, stuck = false;
    for (struct op *op = peer->ops_first, *next; op != NULL; op = next) {
        bool released = false;
        next = op->peer_next;
        if (op->stage == SEND_PUT && (op->flags & OP_CANCEL_ASKED))
            stuck |= now >= op->deadline_ns;
        if (op->kind != OP_RECV || (op->flags & OP_TOMBSTONE) ||
            !(op->flags & (OP_CANCEL_ASKED | OP_CANCEL_WAITS)))
            continue;
        if (now < op->deadline_ns)
            waiting = true;
        else if (op->stage == RECV_POSTED)
            waiting |= !haunt(peer, op);
        else if (op->stage == RECV_CLEARED || op->stage == RECV_ARRIVING)
            waiting |= arriving_end(peer, op, &released);
        else if (op->stage == RECV_HELD)
            held_cancel(peer, op);
        if (released)
            next = peer->ops_first; /* others may have gone */
    }
    if (stuck)
        bmi__peer_fail_locked(peer, -ETIMEDOUT, "a cancelled message does not end");
    return waiting;
}

/* ---- discarding ------------------------------------------------------------------------------ */

/* Cancels a receive, and discards the message that it matches, now or later. */
static void receive_discard(struct peer *peer, struct op *op, bmi_op_id_t id)
{
    if (op->stage == RECV_POSTED && !(op->flags & (OP_CANCEL_ASKED | OP_CANCEL_WAITS))) {
        struct tag_queue *queue = bmi__tag_queue_find_locked(peer, op->tag);
        bool live = bmi__receive_live(op);
        if (haunt(peer, op)) {
            queue->live -= live;
            return;
        }
        question_begin(peer, queue, op); /* its memory is being written to */
    } else if (op->stage == RECV_HELD) {
        if (!message_swallow(peer, op))
            return; /* its real result will come */
        op->held = NULL;
        bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    } else {
        receive_cancel(peer, op, id);
    }
}

void bmi__tombstone_remove_locked(struct peer *peer, wire_tag tag, bool last)
{
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, tag);
    if (queue == NULL || queue->tombstones == 0)
        return;
    struct op *op = last ? queue->receives.last : queue->receives.first;
    while (op != NULL && !(op->flags & OP_TOMBSTONE))
        op = last ? op->previous : op->next;
    if (op != NULL) {
        bmi__receive_unqueue_locked(queue, op);
        bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    }
    bmi__tag_queue_release_locked(peer, queue);
}

/* ---- the way in ----------------------------------------------------------------------------- */

/* Cancels it, by the function for its kind. */
static void cancel_locked(struct peer *peer, struct op *op, bmi_op_id_t id, bool discard)
{
    if (op->stage == STAGE_NEXT && op->kind != OP_EXCHANGE)
        bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    else if (op->kind == OP_RECV && discard)
        receive_discard(peer, op, id);
    else if (op->kind == OP_RECV)
        receive_cancel(peer, op, id);
    else if (op->kind == OP_PING)
        bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    else if (op->kind == OP_EXCHANGE)
        op->instance->upcalls->exchange_end_locked(op, BMI__CANCELLED);
    else
        send_cancel(peer, op);
}

static int cancel(struct op *op, bmi_op_id_t id, bool discard)
{
    struct peer *peer;
    for (;;) {
        peer = op->peer;
        if (peer == NULL || bmi__op_id(op) != id)
            return 0; /* completed; the peer may be of an instance that closes */
        peer_lock(peer);
        if (op->peer == peer)
            break;
        peer_unlock(peer); /* moved to another peer */
    }
    if (bmi__op_id(op) == id && op->stage != STAGE_DYING)
        cancel_locked(peer, op, id, discard);
    struct bmi_link *link = peer->link;
    if (link != NULL)
        bmi_link_ref(link);
    peer_unlock(peer);
    if (link != NULL) {
        link->method->flush(link);
        bmi_link_unref(link);
    }
    return 0;
}

int bmi__cancel(struct op *op, bmi_op_id_t id)
{
    return cancel(op, id, false);
}

void bmi__discard(struct op *op, bmi_op_id_t id)
{
    cancel(op, id, true);
}
