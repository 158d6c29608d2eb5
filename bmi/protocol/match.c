/* SPDX-License-Identifier: BSD-3-Clause
 *
 * match.c - pairs messages with receives. Peer's lock.
 *
 * A tag queue belongs to (peer, tag). It holds waiting receives or waiting messages, never both,
 * except for a message that is too large for a receive: the post is refused then. Receives are
 * matched oldest first, messages in order of arrival. An eager message without a receive is held
 * in memory that is charged to the peer's window. Of a large message only the request is held.
 *
 * Large messages go eager, too, while their receives come in time: with the message, or before the
 * next one of the peer. The receiver counts how many did, one after the other; its CREDIT allows
 * the sender to send them unasked (receiver-controlled threshold), until one had to be copied. Each
 * permission that ended so doubles the number that the next one takes (exponential back-off).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/error.h"
#include "bmi/base/probe.h"
#include "bmi/progress/progress.h"
#include "bmi/protocol/credit.h"
#include "bmi/protocol/frames.h"
#include "bmi/protocol/match.h"
#include "bmi/protocol/op_end.h"
#include "bmi/protocol/rendezvous.h"
#include "bmi/protocol/tag_queue.h"
#include "bmi/state/op.h"
#include "bmi/state/peer.h"

static void sink_fill(struct bmi_sink *sink, enum sink_kind kind, void *owner, uint64_t length)
{
    *sink = (struct bmi_sink){.length = length, .owner = owner, .cookie = (uint64_t)kind};
}

/* ---- large messages ------------------------------------------------------------------------- */

/* A message found its receive in time, or too late. Networks that put or get copy eager messages,
 * which costs what the question saves: there large messages always ask. */
static void large_learn(struct peer *peer, bmi_size_t size, bool in_time)
{
    enum { IN_TIME_LEAST = 4, TOO_LATE_MOST = 5 };
    const struct bmi_method_limits *limits = &peer->link->method->limits;
    if (size <= (bmi_size_t)peer->eager_max || size > limits->frame_max || limits->put ||
        limits->get)
        return;
    bool allowed = peer->in_time >= IN_TIME_LEAST << peer->too_late;
    if (in_time && !allowed)
        peer->in_time++;
    if (!in_time && allowed && peer->too_late < TOO_LATE_MOST)
        peer->too_late++;
    if (!in_time)
        peer->in_time = 0;
    bool allow = peer->in_time >= IN_TIME_LEAST << peer->too_late;
    if (allow == allowed)
        return;
    struct wire_header header = {.type = WIRE_CREDIT,
                                 .target = allow ? (uint64_t)limits->frame_max
                                                 : (uint64_t)peer->eager_max};
    bmi__control_send_locked(peer, header, NULL, 0);
    bmi__progress_dirty(peer->link);
}

/* ---- unmatched messages --------------------------------------------------------------------- */

enum { REQUESTS_MANY = 64, REQUEST_BITS = 9 };

/* A peer names its requests as it likes: few to a bucket are all that it can be kept to. */
static struct unmatched **request_bucket(const struct tag_queue *queue, uint64_t sender)
{
    uint64_t hash = sender * UINT64_C(0x9e3779b97f4a7c15);
    return &queue->requests[hash >> (64 - REQUEST_BITS)];
}

static void request_enter(struct tag_queue *queue, struct unmatched *message)
{
    if (queue->requests == NULL || message->sender == 0)
        return;
    struct unmatched **bucket = request_bucket(queue, message->sender);
    message->request_next = *bucket;
    *bucket = message;
}

static void request_leave(struct tag_queue *queue, struct unmatched *message)
{
    if (queue->requests == NULL || message->sender == 0)
        return;
    struct unmatched **place = request_bucket(queue, message->sender);
    while (*place != message)
        place = &(*place)->request_next;
    *place = message->request_next;
}

/* Without memory requests are looked for in the queue's list. */
static void requests_index(struct tag_queue *queue)
{
    queue->requests = calloc((size_t)1 << REQUEST_BITS, sizeof *queue->requests);
    for (struct unmatched *one = queue->unmatched_first; one != NULL; one = one->next)
        request_enter(queue, one);
}

struct unmatched *bmi__request_find_locked(const struct tag_queue *queue, uint64_t sender)
{
    bool indexed = queue->requests != NULL;
    struct unmatched *one = indexed ? *request_bucket(queue, sender) : queue->unmatched_first;
    while (one != NULL && one->sender != sender)
        one = indexed ? one->request_next : one->next;
    return one;
}

void bmi__unmatched_remove_locked(struct peer *peer, struct tag_queue *queue,
                                  struct unmatched *message)
{
    request_leave(queue, message);
    if (message->previous != NULL)
        message->previous->next = message->next;
    else
        queue->unmatched_first = message->next;
    if (message->next != NULL)
        message->next->previous = message->previous;
    else
        queue->unmatched_last = message->previous;
    uint64_t held = message->sender != 0 ? 0 : (uint64_t)message->size;
    peer->counters.unmatched_messages--;
    peer->counters.unmatched_bytes -= (uint32_t)(held + sizeof *message);
    bmi__credit_return_locked(peer, false, held);
    free(message);
    if (--queue->unmatched_count > 0 || queue->requests == NULL)
        return;
    free(queue->requests);
    queue->requests = NULL;
}

static struct unmatched *unmatched_add(struct peer *peer, struct tag_queue *queue, bmi_size_t size,
                                       size_t held, uint64_t sender)
{
    struct unmatched *message = malloc(sizeof *message + held);
    if (message == NULL)
        return NULL;
    *message = (struct unmatched){.size = size, .sender = sender, .tag = queue->tag, .whole = true};
    message->previous = queue->unmatched_last;
    if (queue->unmatched_last != NULL)
        queue->unmatched_last->next = message;
    else
        queue->unmatched_first = message;
    queue->unmatched_last = message;
    if (++queue->unmatched_count == REQUESTS_MANY && queue->requests == NULL)
        requests_index(queue);
    else
        request_enter(queue, message);
    peer->counters.unmatched_messages++;
    peer->counters.unmatched_bytes +=
        (uint32_t)((sender != 0 ? 0 : (uint64_t)size) + sizeof *message);
    return message;
}

/* Hands a whole eager message to a receive, or to a tombstone. It is consumed also if it is too
 * large. */
static void unmatched_deliver(struct peer *peer, struct tag_queue *queue, struct unmatched *message,
                              struct op *op)
{
    bmi_size_t size = message->size;
    bool tombstone = (op->flags & OP_TOMBSTONE) != 0, fits = size <= op->total;
    if (size > 0 && !tombstone && fits) {
        bmi_segments_scatter(&op->list, message->body, (size_t)size);
        peer->counters.copies++;
        peer->counters.copied_bytes += (uint64_t)size;
    }
    large_learn(peer, size, false);
    bmi__unmatched_remove_locked(peer, queue, message);
    bmi__op_complete_locked(op, tombstone ? BMI__CANCELLED : fits ? 0 : -EMSGSIZE, size);
}

/* Notifies the sender that its message is too large for the receive. The message counts as sent. */
static void request_discard(struct peer *peer, struct op *op, uint64_t sender)
{
    struct wire_header discard = {.type = WIRE_CTS, .flags = WIRE_DISCARD, .target = sender};
    bmi__control_send_locked(peer, discard, NULL, 0);
    bmi__op_complete_locked(op, -EMSGSIZE, 0);
}

/* The first message that waits is given to the receive, which ends with EMSGSIZE if it is too
 * small. */
static void take_unmatched(struct peer *peer, struct tag_queue *queue, struct op *op)
{
    struct unmatched *message = queue->unmatched_first;
    while (message->claimed_by != NULL)
        message = message->next;
    BMI_PROBE(3, match, op, op->tag, message->size);
    if (message->sender != 0) {
        struct bmi_region regions[WIRE_REGIONS_MAX];
        uint32_t count = message->region_count;
        uint64_t sender = message->sender;
        bmi_size_t size = message->size;
        large_learn(peer, size, message->seen == peer->seen);
        memcpy(regions, message->body, count * sizeof *regions);
        bmi__unmatched_remove_locked(peer, queue, message);
        if (size <= op->total)
            bmi__receive_answer_locked(peer, op, sender, size, regions, count);
        else
            request_discard(peer, op, sender);
    } else if (message->whole) {
        unmatched_deliver(peer, queue, message, op);
    } else {
        message->claimed_by = op;
        op->held = message;
        op->stage = RECV_HELD;
    }
    bmi__credit_tell_locked(peer);
}

static struct unmatched *unmatched_next(const struct tag_queue *queue)
{
    struct unmatched *message = queue->unmatched_first;
    while (message != NULL && message->claimed_by != NULL)
        message = message->next;
    return message;
}

/* ---- receives ------------------------------------------------------------------------------- */

int bmi__receive_start_locked(struct peer *peer, struct op *op, bool refuse)
{
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, op->tag);
    if (queue == NULL)
        return -ENOMEM;
    struct unmatched *message = unmatched_next(queue);
    if (message != NULL && message->size > op->total && refuse)
        return -EMSGSIZE;
    if (message != NULL) {
        take_unmatched(peer, queue, op);
        bmi__tag_queue_release_locked(peer, queue);
        return 0;
    }
    op->stage = RECV_POSTED;
    bmi__op_append(&queue->receives, op);
    bmi__announce_locked(peer, queue, op, queue->live++);
    return 0;
}

void bmi__receive_unqueue_locked(struct tag_queue *queue, struct op *op)
{
    bmi__op_remove(&queue->receives, op);
    if (bmi__receive_live(op))
        queue->live--;
    if (op->flags & OP_ANNOUNCED)
        queue->announced--;
    if (op->flags & OP_TOMBSTONE)
        queue->tombstones--;
}

/* Puts it before those that were posted later: the peer's operations stand in order of their posts.
 * Tombstones stand before all, whenever they were made. */
static void enqueue_by_age(struct tag_queue *queue, struct op *op)
{
    struct op *later = op->peer_next;
    while (later != NULL && (later->kind != OP_RECV || later->stage != RECV_POSTED ||
                             later->tag != op->tag || (later->flags & OP_TOMBSTONE)))
        later = later->peer_next;
    if (later == NULL) {
        bmi__op_append(&queue->receives, op);
        return;
    }
    op->next = later;
    op->previous = later->previous;
    *(later->previous != NULL ? &later->previous->next : &queue->receives.first) = op;
    later->previous = op;
}

/* A receive whose message was taken back waits again, before younger ones. */
void bmi__receive_requeue_locked(struct peer *peer, struct op *op)
{
    bool cancelled = (op->flags & (OP_CANCELLED | OP_CANCEL_ASKED | OP_CANCEL_WAITS)) != 0;
    struct tag_queue *queue = cancelled ? NULL : bmi__tag_queue_get_locked(peer, op->tag);
    if (queue == NULL) {
        bmi__op_complete_locked(op, cancelled ? BMI__CANCELLED : -ENOMEM, 0);
        return;
    }
    bmi__receive_settled_locked(op);
    bmi__memory_release_locked(op);
    op->list.index = 0;
    op->list.offset = 0;
    op->list.left = op->total;
    op->actual = op->expected = 0;
    op->remote = 0;
    op->flags &= (uint8_t) ~(OP_ANNOUNCED | OP_DISCARDING);
    struct unmatched *message = unmatched_next(queue);
    if (message != NULL) {
        take_unmatched(peer, queue, op);
    } else {
        enqueue_by_age(queue, op);
        op->stage = RECV_POSTED;
        queue->live++;
    }
    bmi__tag_queue_release_locked(peer, queue);
}

/* Takes the oldest receive for a message that starts; NULL: none. A tombstone swallows the message.
 */
static struct op *receive_take(struct tag_queue *queue)
{
    struct op *op = queue->receives.first;
    if (op == NULL)
        return NULL;
    bmi__receive_unqueue_locked(queue, op);
    bmi__receive_settled_locked(op);
    return op;
}

/* ---- messages that arrive ------------------------------------------------------------------- */

/* `body`: it is there already, NULL: it is to come. One of one piece is put to its place here. */
static void eager_to_receive(struct peer *peer, struct op *op, uint64_t length, const uint8_t *body,
                             struct bmi_sink *sink)
{
    bool fits = (bmi_size_t)length <= op->total && !(op->flags & OP_TOMBSTONE);
    BMI_PROBE(3, match, op, op->tag, (bmi_size_t)length);
    bmi__credit_return_locked(peer, false, length);
    large_learn(peer, (bmi_size_t)length, true);
    op->expected = (bmi_size_t)length;
    op->stage = RECV_ARRIVING;
    if (!fits)
        op->flags |= OP_DISCARDING;
    if (length == 0 || (body != NULL && fits && op->list.count == 1)) {
        if (length > 0)
            memcpy(op->list.buffers[0], body, (size_t)length);
        sink->length = 0;
        bmi__op_complete_locked(op, 0, (bmi_size_t)length);
        return;
    }
    sink_fill(sink, SINK_OP, op, length);
    if (fits)
        bmi__segments_lend(&sink->body, &op->list, (bmi_size_t)length);
}

static int eager_to_memory(struct peer *peer, struct tag_queue *queue, uint64_t length,
                           struct bmi_sink *sink)
{
    struct unmatched *message = unmatched_add(peer, queue, (bmi_size_t)length, (size_t)length, 0);
    if (message == NULL)
        return -ENOMEM;
    if (length == 0)
        return 0;
    message->whole = false;
    message->buffer = message->body;
    sink_fill(sink, SINK_UNMATCHED, message, length);
    sink->body = (struct bmi_segments){.buffers = &message->buffer,
                                       .sizes = &message->size,
                                       .count = 1,
                                       .left = message->size};
    return 0;
}

int bmi__eager_arrived_locked(struct peer *peer, const struct wire_header *header,
                              const uint8_t *body, struct bmi_sink *sink)
{
    /* A large message may arrive after we have withdrawn the permission for such: it was sent
     * before, and the credit bounds it. */
    uint64_t most = (uint64_t)peer->link->method->limits.frame_max;
    if (header->length > peer->eager_max && header->length > most)
        return -EMSGSIZE;
    int status = bmi__credit_charge_locked(peer, false, header->length);
    if (status < 0)
        return status;
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, header->tag);
    if (queue == NULL)
        return -ENOMEM;
    struct op *op = receive_take(queue);
    if (op != NULL) {
        eager_to_receive(peer, op, header->length, body, sink);
        bmi__tag_queue_release_locked(peer, queue);
        bmi__credit_tell_locked(peer);
        return 0;
    }
    return eager_to_memory(peer, queue, header->length, sink);
}

static void rts_to_receive(struct peer *peer, struct op *op, const struct wire_header *header,
                           const struct bmi_region *regions, uint32_t count)
{
    bmi_size_t size = (bmi_size_t)header->target;
    BMI_PROBE(3, match, op, op->tag, size);
    bmi__credit_return_locked(peer, false, 0);
    large_learn(peer, size, true);
    if (size <= op->total && !(op->flags & OP_TOMBSTONE)) {
        bmi__receive_answer_locked(peer, op, header->source, size, regions, count);
        return;
    }
    request_discard(peer, op, header->source);
}

int bmi__rts_arrived_locked(struct peer *peer, const struct wire_header *header,
                            const struct bmi_region *regions, uint32_t count)
{
    if (header->target > INT64_MAX || header->source == 0)
        return -EPROTO;
    if (!peer->link->method->limits.get)
        count = 0; /* of no use, and not paid for */
    int status = bmi__credit_charge_locked(peer, false, 0);
    if (status < 0)
        return status;
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, header->tag);
    if (queue == NULL)
        return -ENOMEM;
    struct op *op = receive_take(queue);
    if (op != NULL) {
        rts_to_receive(peer, op, header, regions, count);
        bmi__tag_queue_release_locked(peer, queue);
        bmi__credit_tell_locked(peer);
        return 0;
    }
    struct unmatched *message = unmatched_add(peer, queue, (bmi_size_t)header->target,
                                              count * sizeof *regions, header->source);
    if (message == NULL)
        return -ENOMEM;
    message->region_count = count;
    message->seen = peer->seen;
    if (count > 0)
        memcpy(message->body, regions, count * sizeof *regions);
    return 0;
}

void bmi__message_place_locked(struct peer *peer, struct bmi_sink *sink)
{
    struct unmatched *message = sink->owner;
    struct op *op = message->claimed_by;
    if (op == NULL || (op->flags & OP_TOMBSTONE) || message->size > op->total)
        return;
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, message->tag);
    bmi_size_t size = message->size, left = sink->body.left;
    bmi_segments_scatter(&op->list, message->body, (size_t)(size - left));
    bmi__unmatched_remove_locked(peer, queue, message);
    large_learn(peer, size, true);
    op->held = NULL;
    op->expected = size;
    op->stage = RECV_ARRIVING;
    sink_fill(sink, SINK_OP, op, (uint64_t)size);
    bmi__segments_lend(&sink->body, &op->list, left);
    bmi__tag_queue_release_locked(peer, queue);
    bmi__credit_tell_locked(peer);
}

/* A body of sink_kind SINK_OP or SINK_UNMATCHED is whole. */
int bmi__message_done_locked(struct peer *peer, struct bmi_sink *sink)
{
    if (sink->cookie == SINK_OP) {
        struct op *op = sink->owner;
        bool fits = !(op->flags & OP_DISCARDING);
        bmi__op_complete_locked(op, fits ? 0 : -EMSGSIZE, op->expected);
        return 0;
    }
    struct unmatched *message = sink->owner;
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, message->tag);
    struct op *op = message->claimed_by;
    message->whole = true;
    if (op != NULL) {
        message->claimed_by = NULL;
        op->held = NULL;
        unmatched_deliver(peer, queue, message, op);
        bmi__credit_tell_locked(peer);
        bmi__tag_queue_release_locked(peer, queue);
    }
    return 0;
}
