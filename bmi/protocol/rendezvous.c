/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rendezvous.c - large messages: asked for (RTS, CTS), or announced before (RTR), then moved as
 * DATA frames straight into place, or by put or get where the network can. Peer's lock.
 *
 * "Receiver first": a receive names its sender, so a large one is announced when it is posted; if
 * the announcement is there when the send is posted, the message goes at once.
 * docs/wire-protocol.md says how announcements and messages that cross find each other.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/error.h"
#include "bmi/base/probe.h"
#include "bmi/base/settings.h"
#include "bmi/progress/progress.h"
#include "bmi/protocol/cancel.h"
#include "bmi/protocol/credit.h"
#include "bmi/protocol/frames.h"
#include "bmi/protocol/match.h"
#include "bmi/protocol/op_end.h"
#include "bmi/protocol/rendezvous.h"
#include "bmi/protocol/send.h"
#include "bmi/protocol/tag_queue.h"
#include "bmi/state/op.h"
#include "bmi/state/peer.h"

enum { STREAM_BYTES = 2 << 20 }; /* DATA with the method at a time */
/* Memory that an announcement takes with us, and its queue if it is the first of that. */
enum { ANNOUNCEMENT_CHARGE = 80, TAG_QUEUE_CHARGE = 160 };

/* Memory of an operation that the network moves: registered here, and the transfer if it is ours.
 */
struct remote_memory {
    struct bmi_transfer transfer;
    void *handle; /* method's; NULL: nothing registered */
    uint32_t count, room;
    struct bmi_region regions[];
};

static const struct bmi_method *method_of(const struct peer *peer)
{
    return peer->link->method;
}

/* The end where frames of the other side come in: of a link to ourselves, the other end. */
static struct bmi_link *link_in(const struct peer *peer)
{
    return peer->self_link != NULL ? peer->self_link : peer->link;
}

/* The end at which an operation's memory is registered, and from which its transfers start. */
static struct bmi_link *link_of(const struct peer *peer, const struct op *op)
{
    return op->kind == OP_RECV ? link_in(peer) : peer->link;
}

/* ---- registered memory ---------------------------------------------------------------------- */

/* With room for `room` regions, which are not set: each large message has one, and few have many.
 */
static struct remote_memory *memory_get(struct op *op, uint32_t room)
{
    struct remote_memory *memory = op->memory;
    if (memory != NULL && memory->room >= room)
        return memory;
    struct remote_memory *larger = realloc(memory, sizeof *memory + room * sizeof *memory->regions);
    if (larger == NULL)
        return NULL;
    if (memory == NULL) {
        larger->handle = NULL;
        larger->count = 0;
    }
    larger->room = room;
    return op->memory = larger;
}

/* Registers the first `size` bytes of the operation's list. false: the message must go in frames.
 */
static bool memory_expose(struct peer *peer, struct op *op, bmi_size_t size)
{
    const struct bmi_method *method = method_of(peer);
    uint32_t most = method->limits.regions_max;
    struct bmi_segments list = op->list;
    most = most < WIRE_REGIONS_MAX ? most : WIRE_REGIONS_MAX;
    most = most < list.count ? most : (uint32_t)list.count;
    if (method->expose == NULL || most == 0 || size == 0 || memory_get(op, most) == NULL)
        return false;
    op->memory->count = most;
    list.left = size;
    if (method->expose(link_of(peer, op), &list, op->memory->regions, &op->memory->count,
                       &op->memory->handle) == 0)
        return true;
    free(op->memory);
    op->memory = NULL;
    return false;
}

static bool memory_release(struct op *op, bool wait)
{
    struct remote_memory *memory = op->memory;
    struct peer *peer = op->peer;
    if (memory == NULL)
        return true;
    if (memory->handle != NULL && peer->link != NULL &&
        !method_of(peer)->release(link_of(peer, op), memory->handle, wait))
        return false;
    op->memory = NULL;
    free(memory);
    return true;
}

void bmi__memory_release_locked(struct op *op)
{
    memory_release(op, true);
}

bool bmi__memory_try_release_locked(struct op *op)
{
    return memory_release(op, false);
}

void bmi__memories_release_locked(struct peer *peer)
{
    for (struct op *op = peer->ops_first; op != NULL; op = op->peer_next)
        if (op->stage != SEND_PUT && op->stage != RECV_GET)
            bmi__memory_release_locked(op);
}

/* Frame with regions as its body, if the operation's memory is registered. */
static void regions_send(struct peer *peer, struct wire_header header, const struct op *op)
{
    uint8_t bytes[WIRE_REGIONS_MAX * WIRE_REGION];
    uint32_t count = op->memory != NULL ? op->memory->count : 0;
    if (count > 0)
        wire_regions_encode(bytes, op->memory->regions, count);
    bmi__control_send_locked(peer, header, bytes, count * WIRE_REGION);
}

static uint64_t regions_sum(const struct bmi_region *regions, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += regions[i].length; /* checked against overflow when decoded */
    return sum;
}

static bool transfer_start(struct peer *peer, struct op *op, bool get, bmi_size_t size,
                           const struct bmi_region *regions, uint32_t count)
{
    if (count == 0 || method_of(peer)->transfer == NULL || size == 0 ||
        regions_sum(regions, count) < (uint64_t)size || memory_get(op, count) == NULL)
        return false;
    struct remote_memory *memory = op->memory;
    for (uint32_t i = 0; i < count; i++)
        memory->regions[i] = regions[i];
    memory->transfer = (struct bmi_transfer){.local = op->list,
                                             .remote = memory->regions,
                                             .remote_count = count,
                                             .get = get,
                                             .owner = op};
    memory->transfer.local.left = size;
    op->stage = get ? RECV_GET : SEND_PUT;
    method_of(peer)->transfer(link_of(peer, op), &memory->transfer);
    return true;
}

/* ---- large_expected: a stream is to read headers only --------------------------------------- */

static void large_expect(struct peer *peer, struct op *op)
{
    if (op->flags & OP_COUNTED_LARGE)
        return;
    op->flags |= OP_COUNTED_LARGE;
    atomic_fetch_add_explicit(&link_in(peer)->large_expected, 1, memory_order_relaxed);
}

void bmi__receive_settled_locked(struct op *op)
{
    if (!(op->flags & OP_COUNTED_LARGE))
        return;
    op->flags &= (uint8_t)~OP_COUNTED_LARGE;
    struct peer *peer = op->peer;
    if (peer->link != NULL)
        atomic_fetch_sub_explicit(&link_in(peer)->large_expected, 1, memory_order_relaxed);
}

/* ---- the sender ----------------------------------------------------------------------------- */

static bool gets_only(const struct bmi_method *method)
{
    return method->limits.get && !method->limits.put;
}

void bmi__rts_send_locked(struct peer *peer, struct op *op)
{
    peer->eager_credit -= WIRE_MESSAGE_CHARGE;
    peer->counters.rendezvous_sent++;
    op->stage = SEND_RTS;
    if (gets_only(method_of(peer)))
        memory_expose(peer, op, op->total);
    struct wire_header header = {.type = WIRE_RTS,
                                 .tag = op->tag,
                                 .source = (uint64_t)bmi__op_id(op),
                                 .target = (uint64_t)op->total};
    regions_send(peer, header, op);
}

static void start_send(struct peer *peer, struct op *op, uint8_t flags)
{
    struct wire_header start = {.type = WIRE_DATA,
                                .flags = WIRE_FIRST | flags,
                                .tag = op->tag,
                                .source = (uint64_t)op->total,
                                .target = op->remote};
    if (op->total == 0)
        start.flags |= WIRE_LAST;
    op->flags |= OP_STARTED;
    bmi__control_send_locked(peer, start, NULL, 0);
}

static void data_send(struct peer *peer, struct op *op);

/* An announced message starts on the wire now, before any later one of its tag: with its first
 * bytes, or with a frame that has none while much else is under way. */
static void stream_enter(struct peer *peer, struct op *op)
{
    op->stage = SEND_STREAM;
    bmi__op_append(&peer->streams, op);
    if (!(op->flags & OP_STARTED) && peer->stream_bytes < STREAM_BYTES)
        data_send(peer, op);
    else if (!(op->flags & OP_STARTED))
        start_send(peer, op, 0);
    bmi__streams_pump_locked(peer);
}

void bmi__stream_start_locked(struct peer *peer, struct op *op, uint64_t receive, bool announced,
                              const struct bmi_region *regions, uint32_t region_count)
{
    op->remote = receive;
    bool put = method_of(peer)->limits.put && region_count > 0 && op->total > 0;
    if (!announced)
        op->flags |= OP_STARTED;
    if (put && announced)
        start_send(peer, op, WIRE_BY_PUT);
    if (!put || !transfer_start(peer, op, false, op->total, regions, region_count))
        stream_enter(peer, op);
}

void bmi__too_large_send_locked(struct peer *peer, struct op *op, uint64_t receive)
{
    op->remote = receive;
    start_send(peer, op, WIRE_LAST);
    bmi__op_complete_locked(op, 0, op->total); /* like a message whose body is drained */
}

/* Queues the next DATA frame of a stream. With the last one it leaves the streams. */
static void data_send(struct peer *peer, struct op *op)
{
    bmi_size_t most = method_of(peer)->limits.frame_max;
    bmi_size_t bytes = op->list.left < most ? op->list.left : most;
    struct wire_header header = {.type = WIRE_DATA, .target = op->remote};
    if (!(op->flags & OP_STARTED)) {
        header.flags |= WIRE_FIRST;
        header.tag = op->tag;
        header.source = (uint64_t)op->total;
        op->flags |= OP_STARTED;
    }
    if (bytes == op->list.left) {
        header.flags |= WIRE_LAST;
        bmi__op_remove(&peer->streams, op);
        op->stage = SEND_FRAME;
    }
    op->expected = bytes;
    peer->stream_bytes += (uint32_t)bytes;
    bmi__op_frame_send_locked(op, &header, bytes);
    bmi_segments_advance(&op->list, (size_t)bytes);
}

void bmi__streams_pump_locked(struct peer *peer)
{
    struct op *op = peer->streams.first;
    bool any = false;
    while (op != NULL && peer->stream_bytes < STREAM_BYTES) {
        struct op *next = op->next;
        if (!(op->flags & OP_FRAME_OUT)) {
            data_send(peer, op);
            any = true;
        }
        op = next;
    }
    if (any)
        bmi__progress_dirty(peer->link);
}

static struct op *find(struct peer *peer, uint64_t id, enum op_stage stage)
{
    struct op *op = bmi__op_find((bmi_op_id_t)id);
    return op != NULL && op->peer == peer && bmi__op_id(op) == (bmi_op_id_t)id && op->stage == stage
               ? op
               : NULL;
}

int bmi__cts_arrived_locked(struct peer *peer, const struct wire_header *header,
                            const struct bmi_region *regions, uint32_t count)
{
    struct op *op = find(peer, header->target, SEND_RTS);
    if (op == NULL)
        return 0; /* cancelled; an ABORT is on its way */
    bmi__memory_release_locked(op);
    op->remote = header->source;
    if (op->flags & OP_CANCELLED)
        bmi__cancelled_answered_locked(peer, op, (header->flags & WIRE_DISCARD) != 0);
    else if (header->flags & WIRE_DISCARD)
        bmi__op_complete_locked(op, 0, op->total);
    else
        bmi__stream_start_locked(peer, op, header->source, false, regions, count);
    return 0;
}

int bmi__get_done_arrived_locked(struct peer *peer, const struct wire_header *header)
{
    struct op *op = find(peer, header->target, SEND_RTS);
    if (op != NULL)
        bmi__op_complete_locked(op, 0, op->total);
    return 0;
}

/* ---- announcements, at the sender ----------------------------------------------------------- */

/* The number of the message that matches a receive with `ahead` others before it. Messages with
 * numbers below the queue's position are under way already. */
static uint32_t number_of(const struct tag_queue *queue, uint32_t ahead)
{
    return queue->position - queue->unseen + ahead;
}

static uint32_t announcement_charge(const struct tag_queue *queue, uint32_t region_count)
{
    bool first = queue == NULL || queue->announced_first == NULL;
    return (uint32_t)(ANNOUNCEMENT_CHARGE + (first ? TAG_QUEUE_CHARGE : 0)) +
           region_count * (uint32_t)sizeof(struct bmi_region);
}

/* Whether a waiting message uses up the announcement at once: then it needs no room. */
static bool wanted_now(const struct tag_queue *queue, const struct wire_header *header)
{
    return queue != NULL && queue->pending.first != NULL &&
           number_of(queue, header->credit) == queue->position;
}

static int announcement_keep(struct peer *peer, const struct wire_header *header,
                             const struct bmi_region *regions, uint32_t count, uint32_t charge)
{
    struct tag_queue *queue = bmi__tag_queue_get_locked(peer, header->tag);
    struct announcement *one = queue != NULL ? malloc(sizeof *one + count * sizeof *regions) : NULL;
    if (one == NULL) {
        bmi__announcement_return_locked(peer, charge);
        return -ENOMEM;
    }
    *one = (struct announcement){.receive = header->source,
                                 .capacity = (bmi_size_t)header->target,
                                 .position = number_of(queue, header->credit),
                                 .region_count = count,
                                 .charge = charge};
    for (uint32_t i = 0; i < count; i++)
        one->regions[i] = regions[i];
    bmi__announcement_insert_locked(peer, queue, one);
    bmi__tag_queue_pump_locked(peer, queue);
    return 0;
}

int bmi__rtr_arrived_locked(struct peer *peer, const struct wire_header *header,
                            const struct bmi_region *regions, uint32_t count)
{
    if (header->target > INT64_MAX)
        return -EPROTO;
    if (!method_of(peer)->limits.put)
        count = 0;
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, header->tag);
    if (queue != NULL && !bmi__tag_queue_settled_locked(peer, queue, header->seen)) {
        peer->flags |= PEER_FORGOT;
        return 0; /* its message will go by RTS, or request the announcement by WANT */
    }
    if (queue != NULL && (int32_t)(number_of(queue, header->credit) - queue->position) < 0)
        return 0; /* a message that is under way will find the receive */
    uint32_t charge = announcement_charge(queue, count);
    if (!bmi__announcement_charge_locked(peer, charge)) {
        charge = 0;
        if (!wanted_now(queue, header)) {
            peer->flags |= PEER_FORGOT;
            return 0; /* as above; the message may request credit, too */
        }
    }
    return announcement_keep(peer, header, regions, count, charge);
}

int bmi__rtr_cancel_arrived_locked(struct peer *peer, const struct wire_header *header)
{
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, header->tag);
    if (queue != NULL) {
        bmi__tag_queue_unsettle_locked(peer, queue);
        bmi__tag_queue_release_locked(peer, queue);
    }
    struct wire_header answer = {.type = WIRE_RTR_CANCELLED,
                                 .tag = header->tag,
                                 .target = header->source};
    bmi__control_send_locked(peer, answer, NULL, 0);
    return 0;
}

/* ---- the receiver --------------------------------------------------------------------------- */

/* Whether to announce a receive to the sender before the sender asks. */
static bool worth_announcing(const struct peer *peer, const struct op *op)
{
    if (peer->state != PEER_UP)
        return false; /* there may be no link */
    if (peer->flags & PEER_ANNOUNCE_ALL)
        return true;
    if (wire_tag_space(op->tag) != SPACE_PROGRAM)
        return false; /* its message was sent behind a header that has come */
    return op->total > (bmi_size_t)peer->eager_max &&
           bmi__setting(peer->instance, SETTING_ANNOUNCE) != 0 && !gets_only(method_of(peer));
}

static void rtr_send(struct peer *peer, struct op *op, uint32_t ahead)
{
    struct wire_header header = {.type = WIRE_RTR,
                                 .tag = op->tag,
                                 .credit = ahead,
                                 .source = (uint64_t)bmi__op_id(op),
                                 .target = (uint64_t)op->total};
    regions_send(peer, header, op);
}

static void announce(struct peer *peer, struct tag_queue *queue, struct op *op, uint32_t ahead)
{
    enum { NOT_NOW = OP_ANNOUNCED | OP_CANCEL_ASKED | OP_CANCEL_WAITS | OP_TOMBSTONE };
    if (peer->state != PEER_UP || (op->flags & NOT_NOW))
        return;
    queue->announced++;
    bool large = op->total > (bmi_size_t)peer->eager_max;
    if (large && !(method_of(peer)->limits.put && memory_expose(peer, op, op->total)))
        large_expect(peer, op);
    op->flags |= OP_ANNOUNCED;
    peer->counters.announcements++;
    rtr_send(peer, op, ahead);
}

static bool worth_expecting(const struct peer *peer, const struct op *op)
{
    return op->total > STRAIGHT_BYTES && peer->state == PEER_UP && !method_of(peer)->limits.put;
}

void bmi__announce_locked(struct peer *peer, struct tag_queue *queue, struct op *op, uint32_t ahead)
{
    if (worth_expecting(peer, op))
        large_expect(peer, op);
    if (worth_announcing(peer, op))
        announce(peer, queue, op, ahead);
}

/* The sender has forgotten the announcements of this queue (see tag_queue.c). If it lacks credit,
 * only an announcement helps: `all` announces small receives, too. A sender that asks for each of
 * its messages before it has read the answers gets one announcement at a time: the next receive of
 * the tag. */
static void announce_again(struct peer *peer, struct tag_queue *queue, bool all)
{
    enum { AGAIN_MOST = 64, UNREAD_MANY = 256 };
    uint32_t ahead = 0, most = peer->answers > UNREAD_MANY ? 1 : AGAIN_MOST;
    for (struct op *op = queue->receives.first; op != NULL && ahead < most; op = op->next) {
        if (!bmi__receive_live(op))
            continue;
        if ((op->flags & OP_ANNOUNCED) && !(op->flags & OP_CANCEL_WAITS))
            rtr_send(peer, op, ahead);
        else if (all || worth_announcing(peer, op))
            announce(peer, queue, op, ahead);
        ahead++;
    }
}

void bmi__announce_again_locked(struct peer *peer, wire_tag tag)
{
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, tag);
    if (queue != NULL)
        announce_again(peer, queue, true);
}

void bmi__announce_waiting_locked(struct peer *peer)
{
    for (uint32_t i = 0; i < peer->bucket_count; i++)
        for (struct tag_queue *queue = peer->buckets[i]; queue != NULL; queue = queue->next) {
            uint32_t ahead = 0;
            for (struct op *op = queue->receives.first; op != NULL; op = op->next) {
                if (!bmi__receive_live(op))
                    continue;
                bmi__announce_locked(peer, queue, op, ahead++);
            }
        }
}

/* The tombstone (OP_TOMBSTONE) of a receive; NULL: none. */
static struct op *tombstone_find(const struct tag_queue *queue, uint64_t receive)
{
    struct op *op = queue->receives.first;
    while (op != NULL && !((op->flags & OP_TOMBSTONE) && op->remote == receive))
        op = op->next;
    return op;
}

/* The sender has forgotten an announcement of the tag. When it has answered all questions, the
 * receives are announced again, once. If the receive no longer exists, its message came first. */
int bmi__rtr_cancelled_arrived_locked(struct peer *peer, const struct wire_header *header)
{
    bmi__question_answered_locked(peer);
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, header->tag);
    if (queue == NULL)
        return 0;
    struct op *op = find(peer, header->target, RECV_POSTED);
    if (op != NULL && (op->tag != header->tag || !(op->flags & OP_CANCEL_ASKED)))
        op = NULL;
    if (op == NULL && queue->tombstones > 0)
        op = tombstone_find(queue, header->target);
    if (op != NULL) {
        bmi__receive_unqueue_locked(queue, op);
        bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    }
    if (queue->questions > 0 && --queue->questions == 0)
        announce_again(peer, queue, false);
    bmi__tag_queue_release_locked(peer, queue);
    return 0;
}

void bmi__receive_answer_locked(struct peer *peer, struct op *op, uint64_t sender, bmi_size_t size,
                                const struct bmi_region *regions, uint32_t region_count)
{
    const struct bmi_method *method = method_of(peer);
    op->expected = size;
    op->remote = sender;
    if (gets_only(method) && transfer_start(peer, op, true, size, regions, region_count))
        return;
    op->stage = RECV_CLEARED;
    bool put = method->limits.put && (op->memory != NULL || memory_expose(peer, op, size));
    if (!put)
        large_expect(peer, op);
    struct wire_header header = {.type = WIRE_CTS,
                                 .target = sender,
                                 .source = (uint64_t)bmi__op_id(op)};
    regions_send(peer, header, op);
}

/* Whether the frame starts a message and says that none of its bytes follow. */
static bool is_word_alone(const struct wire_header *header)
{
    return header->length == 0 && (header->flags & WIRE_LAST) && !(header->flags & WIRE_BY_PUT);
}

/* Takes the receive of an announced message from its queue. NULL: it was cancelled without an
 * answer, so the message must be discarded; or it is too small, and no bytes of the message
 * follow. */
static int announced_take(struct peer *peer, const struct wire_header *header, struct op **found)
{
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, header->tag);
    struct op *op = find(peer, header->target, RECV_POSTED);
    *found = NULL;
    if (queue == NULL)
        return -EPROTO;
    if (op == NULL) {
        op = tombstone_find(queue, header->target);
        if (op == NULL)
            return -EPROTO;
    } else if (!(op->flags & OP_ANNOUNCED) || op->tag != header->tag ||
               (header->source > (uint64_t)op->total && !is_word_alone(header))) {
        return -EPROTO;
    }
    BMI_PROBE(3, match, op, op->tag, (bmi_size_t)header->source);
    bmi__receive_unqueue_locked(queue, op);
    if (op->flags & OP_TOMBSTONE) {
        bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    } else if (header->source > (uint64_t)op->total) {
        bmi__op_complete_locked(op, -EMSGSIZE, 0);
    } else {
        op->stage = RECV_CLEARED;
        op->expected = (bmi_size_t)header->source;
        *found = op;
    }
    bmi__tag_queue_release_locked(peer, queue);
    return 0;
}

int bmi__data_arrived_locked(struct peer *peer, const struct wire_header *header,
                             struct bmi_sink *sink)
{
    struct op *op = NULL;
    if (header->flags & WIRE_FIRST) {
        int status = announced_take(peer, header, &op);
        if (status < 0)
            return status;
    } else {
        op = find(peer, header->target, RECV_CLEARED);
    }
    *sink = (struct bmi_sink){.length = header->length, .cookie = SINK_DRAIN};
    if (op == NULL || (header->flags & WIRE_BY_PUT))
        return 0;                   /* cancelled: drained; or nothing to come here */
    if (op->flags & OP_CANCELLED) { /* it waited for a put, which will not happen */
        bmi__op_complete_locked(op, BMI__CANCELLED, 0);
        return 0;
    }
    uint64_t room = (uint64_t)(op->expected - op->actual);
    bool last = (header->flags & WIRE_LAST) != 0;
    if (header->length > room || last != (header->length == room))
        return -EPROTO;
    sink->owner = op;
    sink->cookie = SINK_DATA;
    sink->body = op->list;
    sink->body.left = (bmi_size_t)header->length;
    return header->length == 0 ? bmi__data_done_locked(peer, sink) : 0;
}

int bmi__data_done_locked(struct peer *peer, struct bmi_sink *sink)
{
    struct op *op = sink->owner;
    (void)peer;
    bmi_segments_advance(&op->list, (size_t)sink->length);
    op->actual += (bmi_size_t)sink->length;
    if (op->actual == op->expected)
        bmi__op_complete_locked(op, 0, op->expected);
    return 0;
}

int bmi__put_done_arrived_locked(struct peer *peer, const struct wire_header *header)
{
    struct op *op = find(peer, header->target, RECV_CLEARED);
    if (op == NULL)
        return 0; /* cancelled */
    if (op->memory == NULL)
        return -EPROTO;
    bmi__op_complete_locked(op, 0, op->expected);
    return 0;
}

/* A message that the receiver fetches by gets ends. If it is being fetched, the end of the transfer
 * notifies the sender. Otherwise this function does, since the message may have been fetched when
 * the sender gave it up. Returns whether all is done. */
static bool abort_of_get(struct peer *peer, const struct wire_header *header)
{
    for (struct op *op = peer->ops_first; op != NULL; op = op->peer_next)
        if (op->stage == RECV_GET && op->remote == header->source)
            return true;
    struct wire_header answer = {.type = WIRE_CTS, .flags = WIRE_DISCARD, .target = header->source};
    bmi__control_send_locked(peer, answer, NULL, 0);
    return false;
}

int bmi__abort_arrived_locked(struct peer *peer, const struct wire_header *header)
{
    if (gets_only(method_of(peer)) && abort_of_get(peer, header))
        return 0;
    struct op *op = header->target != 0 ? find(peer, header->target, RECV_CLEARED) : NULL;
    if (header->target == 0)
        for (op = peer->ops_first; op != NULL; op = op->peer_next)
            if (op->stage == RECV_CLEARED && op->remote == header->source)
                break;
    if (op != NULL && op->remote != 0 && op->remote != header->source)
        op = NULL; /* given back already, by an ABORT that crossed its CTS */
    if (op != NULL && (header->flags & WIRE_MOVED))
        bmi__op_complete_locked(op, BMI__CANCELLED, 0);
    else if (op != NULL)
        bmi__receive_requeue_locked(peer, op);
    struct tag_queue *queue = bmi__tag_queue_find_locked(peer, header->tag);
    if (queue == NULL)
        return 0;
    if (op != NULL) {
        if (!(header->flags & WIRE_MOVED))
            announce_again(peer, queue, false);
        return 0;
    }
    struct unmatched *message =
        header->source != 0 ? bmi__request_find_locked(queue, header->source) : NULL;
    if (message != NULL)
        bmi__unmatched_remove_locked(peer, queue, message);
    bmi__tag_queue_release_locked(peer, queue);
    bmi__credit_tell_locked(peer);
    return 0;
}

/* ---- transfers ------------------------------------------------------------------------------ */

/* The send completes only when its PUT_DONE frame is written. After the completion, the program may
 * call no test function for a long time, and a frame that is only queued would stay. */
static void put_done(struct peer *peer, struct op *op, int status)
{
    if (peer->flags & PEER_CLOSING) {
        op->stage = STAGE_NONE; /* the link goes down and takes the operation along */
    } else if (status == 0) {
        struct wire_header header = {.type = WIRE_PUT_DONE, .target = op->remote};
        peer->counters.puts++;
        peer->counters.put_bytes += (uint64_t)op->total;
        assert(!(op->flags & OP_FRAME_OUT));
        op->stage = SEND_PUT_TOLD;
        bmi__op_frame_send_locked(op, &header, 0);
        bmi__progress_dirty(peer->link);
    } else if (status == -EACCES) {
        /* The receiver cancelled and withdrew its memory. The message had its receive: it counts as
         * sent, as DATA that the other side drains does. */
        bmi__op_complete_locked(op, 0, op->total);
    } else {
        bmi__memory_release_locked(op);
        stream_enter(peer, op);
    }
}

static void get_done(struct peer *peer, struct op *op, int status)
{
    struct wire_header header = {.type = WIRE_GET_DONE, .target = op->remote};
    if (peer->flags & PEER_CLOSING) {
        op->stage = STAGE_NONE;
        return;
    }
    if (status == 0) {
        peer->counters.gets++;
        peer->counters.get_bytes += (uint64_t)op->expected;
        bmi__control_send_locked(peer, header, NULL, 0);
        bmi__op_complete_locked(op, 0, op->expected);
        return;
    }
    op->stage = RECV_CLEARED;
    bmi__memory_release_locked(op);
    large_expect(peer, op);
    header = (struct wire_header){.type = WIRE_CTS,
                                  .target = op->remote,
                                  .source = (uint64_t)bmi__op_id(op)};
    bmi__control_send_locked(peer, header, NULL, 0);
    if (op->flags & OP_CANCELLED) /* data that arrives from now on is drained */
        bmi__op_complete_locked(op, BMI__CANCELLED, 0);
}

void bmi__transfer_done_locked(struct peer *peer, struct op *op, int status)
{
    if (op->stage == STAGE_DYING)
        bmi__op_complete_locked(op, op->error, 0);
    else if (op->stage == SEND_PUT)
        put_done(peer, op, status);
    else
        get_done(peer, op, status);
}
