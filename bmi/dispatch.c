/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dispatch.c - the core's side of the boundary: passes the events that methods report to the
 * protocol's steps.
 *
 * This file decodes a frame's header and decides nothing else about the frame. Bodies of the
 * protocol itself (HELLO, JOIN, regions) are read into memory of this file and handled when whole.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bmi/base/clock.h"
#include "bmi/base/crypto.h"
#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/base/probe.h"
#include "bmi/connection/handshake.h"
#include "bmi/connection/peer_end.h"
#include "bmi/connection/stranger.h"
#include "bmi/connection/unexpected.h"
#include "bmi/progress/work.h"
#include "bmi/protocol/credit.h"
#include "bmi/protocol/frames.h"
#include "bmi/protocol/match.h"
#include "bmi/protocol/ping.h"
#include "bmi/protocol/rendezvous.h"
#include "bmi/protocol/send.h"
#include "bmi/protocol/tag_queue.h"
#include "bmi/state/library.h"
#include "bmi/state/liveness.h"
#include "bmi/state/peer.h"

/* A frame whose body belongs to the protocol itself. */
struct inbound {
    enum sink_kind kind; /* SINK_CONTROL; first, see arriving_free */
    struct wire_header header;
    void *buffer; /* == bytes, as a list of one */
    bmi_size_t size;
    uint8_t bytes[];
};

/* Control frames that a peer caused, and that wait because it does not read. At the first bound,
 * the queued frames are written. At the second, which grows with our own operations, the peer is
 * given up. */
enum { ANSWERS_FLUSH = 256, ANSWERS_MOST = 2048, ANSWERS_AN_OPERATION = 4 };

void bmi_method_refusal(uint8_t bytes[BMI_FRAME_HEADER])
{
    wire_encode(bytes, &(struct wire_header){.type = WIRE_REJECT, .target = ENOMEM});
}

int bmi_method_link_accepted(struct bmi_link *link)
{
    struct peer *peer = bmi__peer_take(link->instance);
    if (peer == NULL) {
        free(link->host);
        link->host = NULL;
        return -ENOMEM;
    }
    peer_lock(peer);
    bmi_link_ref(link);
    peer->link = link;
    peer->flags |= PEER_ACCEPTED;
    peer->since_ns = bmi__instance_now_ns(peer->instance);
    link_own(link, peer);
    atomic_store(&peer->state, PEER_HANDSHAKE);
    bmi__attention_locked(peer);
    BMI_PROBE(2, link_up, peer, link->host);
    peer_unlock(peer);
    return 0;
}

void bmi_method_link_up(struct bmi_link *link)
{
    int status = bmi__handshake_up(link);
    if (status < 0)
        link->method->close(link, false);
}

void bmi_method_link_host(struct bmi_link *link, const char *host, uint32_t number)
{
    link->host_number = number;
    free(link->host);
    link->host = host != NULL ? strdup(host) : NULL;
}

void bmi_method_link_ends(struct bmi_link *link, const void *dialler, const void *accepter,
                          size_t size)
{
    uint8_t bytes[2 * BMI_LINK_END];
    assert(size <= BMI_LINK_END);
    memcpy(bytes, dialler, size);
    memcpy(bytes + size, accepter, size);
    bmi__digest16(link->ends, bytes, 2 * size);
}

void bmi_method_link_user(struct bmi_link *link, uint32_t user, bool dialled)
{
    uint32_t users[2] = {geteuid(), user};
    if (users[0] != users[1])
        bmi_method_link_ends(link, &users[!dialled], &users[dialled], sizeof users[0]);
}

/* ---- frames that are whole ------------------------------------------------------------------ */

static bool starts_message(const struct wire_header *header)
{
    return header->type == WIRE_EAGER || header->type == WIRE_RTS || header->type == WIRE_VOID ||
           header->type == WIRE_ABORT ||
           (header->type == WIRE_DATA && (header->flags & WIRE_FIRST));
}

/* These frames may cause the other program to send such frames, too: it returns credit, posts
 * receives again, or rejects a message that does not fit. */
static bool moves_program(const struct wire_header *header)
{
    return header->type == WIRE_EAGER || header->type == WIRE_RTS ||
           header->type == WIRE_UNEXPECTED || header->type == WIRE_RTR;
}

/* Whether the peer causes many answers and does not read them. */
static bool answers_too_many(const struct peer *peer)
{
    if (peer->answers <= ANSWERS_MOST + ANSWERS_AN_OPERATION * peer->op_count)
        return false;
    bmi__log(peer->instance, BMI_LOG_WARN, "%s asks and does not read", bmi__peer_name(peer));
    return true;
}

/* Handles the fields that every frame carries: the count of our messages that were seen, and
 * credit. */
static int piggyback_locked(struct peer *peer, const struct wire_header *header)
{
    int status = bmi__sent_seen_locked(peer, header->seen);
    if (status < 0)
        return status;
    if (bmi__sent_room_locked(peer))
        bmi__tag_queues_pump_locked(peer);
    if (starts_message(header) && !(header->type == WIRE_RTS && header->length > 0))
        peer->seen++; /* an RTS with regions counts when these have arrived */
    if (header->type == WIRE_CREDIT && header->target != 0)
        bmi__large_told_locked(peer, header->target);
    uint32_t eager = header->type == WIRE_RTR ? 0 : header->credit;
    uint64_t unexpected = header->type == WIRE_CREDIT ? header->source : 0;
    if (unexpected > UINT32_MAX)
        return -EPROTO;
    if (eager == 0 && unexpected == 0)
        return 0;
    bool lent = unexpected > 0 && (peer->flags & PEER_WANTS_UNEXPECTED);
    peer->eager_credit += eager;
    peer->unexpected_credit += (int64_t)unexpected;
    if (eager > 0)
        peer->flags &= ~(uint32_t)PEER_WANTS_EAGER;
    if (unexpected > 0)
        peer->flags &= ~(uint32_t)PEER_WANTS_UNEXPECTED;
    if (lent && peer->unexpected.first == NULL) /* the send that asked was cancelled */
        bmi__credit_unused_locked(peer, (uint32_t)unexpected);
    if (peer->waiting_first == NULL && peer->unexpected.first == NULL)
        return 0;
    if (answers_too_many(peer))
        return -EPROTO; /* for too little credit we repeat our request */
    bmi__pending_pump_locked(peer);
    return 0;
}

/* Frames that make us answer. */
static int answer_locked(struct peer *peer, const struct wire_header *header)
{
    struct wire_header pong = {.type = WIRE_PONG, .target = header->source};
    if (answers_too_many(peer))
        return -EPROTO;
    if (header->type == WIRE_RTR_CANCEL)
        return bmi__rtr_cancel_arrived_locked(peer, header);
    if (header->type == WIRE_ABORT)
        return bmi__abort_arrived_locked(peer, header);
    if (header->type == WIRE_WANT)
        return bmi__credit_wanted_locked(peer, header);
    bmi__control_send_locked(peer, pong, NULL, 0);
    return 0;
}

static int cancel_arrived_locked(struct peer *peer, const struct wire_header *header)
{
    enum wire_space space = wire_tag_space(header->tag);
    if (space == SPACE_REPLY)
        peer->instance->upcalls->reply_withdrawn_locked(peer, (int32_t)header->tag, header->flags);
    else if (space == SPACE_REQUEST && !(header->flags & WIRE_NO_HEAD))
        peer->instance->upcalls->request_cancelled_locked(peer, (int32_t)header->tag,
                                                          header->flags);
    else
        return -EPROTO;
    return 0;
}

static int bodiless_locked(struct peer *peer, const struct wire_header *header)
{
    switch (header->type) {
    case WIRE_RTS:
        return bmi__rts_arrived_locked(peer, header, NULL, 0);
    case WIRE_CTS:
        return bmi__cts_arrived_locked(peer, header, NULL, 0);
    case WIRE_RTR:
        return bmi__rtr_arrived_locked(peer, header, NULL, 0);
    case WIRE_PUT_DONE:
        return bmi__put_done_arrived_locked(peer, header);
    case WIRE_GET_DONE:
        return bmi__get_done_arrived_locked(peer, header);
    case WIRE_RTR_CANCELLED:
        return bmi__rtr_cancelled_arrived_locked(peer, header);
    case WIRE_ABORT:
    case WIRE_RTR_CANCEL:
    case WIRE_WANT:
    case WIRE_PING:
        return answer_locked(peer, header);
    case WIRE_PONG:
        bmi__pong_arrived_locked(peer, header->target);
        return bmi__sent_told_locked(peer, header->target);
    case WIRE_CANCEL:
        return cancel_arrived_locked(peer, header);
    case WIRE_VOID:
    case WIRE_CREDIT:
    case WIRE_BYE:
        return 0;
    default:
        return -EPROTO;
    }
}

/* ---- headers -------------------------------------------------------------------------------- */

static int inbound_make(const struct wire_header *header, struct bmi_sink *sink)
{
    struct inbound *inbound = malloc(sizeof *inbound + (size_t)header->length);
    if (inbound == NULL)
        return -ENOMEM;
    inbound->kind = SINK_CONTROL;
    inbound->header = *header;
    inbound->buffer = inbound->bytes;
    inbound->size = (bmi_size_t)header->length;
    *sink = (struct bmi_sink){.length = header->length, .owner = inbound, .cookie = SINK_CONTROL};
    sink->body = (struct bmi_segments){.buffers = &inbound->buffer,
                                       .sizes = &inbound->size,
                                       .count = 1,
                                       .left = inbound->size};
    return 0;
}

static int up_frame_locked(struct peer *peer, const struct wire_header *header, const uint8_t *body,
                           struct bmi_sink *sink)
{
    int status = piggyback_locked(peer, header);
    if (status < 0)
        return status;
    if (moves_program(header) && answers_too_many(peer))
        return -EPROTO;
    switch (header->type) {
    case WIRE_EAGER:
        return bmi__eager_arrived_locked(peer, header, body, sink);
    case WIRE_UNEXPECTED:
        return bmi__unexpected_arrived_locked(peer, header, sink);
    case WIRE_DATA:
        return bmi__data_arrived_locked(peer, header, sink);
    case WIRE_RTS:
    case WIRE_CTS:
    case WIRE_RTR:
    case WIRE_JOIN:
        if (header->length > 0)
            return inbound_make(header, sink);
        return bodiless_locked(peer, header);
    default:
        return bodiless_locked(peer, header);
    }
}

/* A REJECT means another version, or that the other side has no memory. */
static int handshake_frame(const struct wire_header *header, struct bmi_sink *sink)
{
    if (header->type == WIRE_REJECT && header->target == ENOMEM)
        return -ENOMEM;
    bool handshake = header->type == WIRE_HELLO || header->type == WIRE_JOIN;
    if (handshake && header->length > 0)
        return inbound_make(header, sink);
    return -EPROTO;
}

/* Locks the peer whose frame has arrived. Frames that are sent until owner_unlock count as its
 * answers. */
static struct peer *owner_lock(struct bmi_link *link)
{
    struct peer *peer = link_owner(link);
    if (peer == NULL)
        return NULL;
    peer_lock(peer);
    peer->flags |= PEER_ANSWERING;
    return peer;
}

static void owner_unlock(struct peer *peer)
{
    peer->flags &= ~(uint32_t)PEER_ANSWERING;
    peer_unlock(peer);
}

/* A decoded header. If status < 0, `reason` says why the bytes are no header. */
struct shown {
    const uint8_t *bytes;
    struct wire_header header;
    const char *reason;
    int status;
};

static int body_done_locked(struct peer *peer, struct bmi_sink *sink)
{
    if (sink->cookie == SINK_UNEXPECTED)
        bmi__unexpected_done_locked(peer, sink);
    else if (sink->cookie == SINK_DATA)
        return bmi__data_done_locked(peer, sink);
    else
        return bmi__message_done_locked(peer, sink);
    return 0;
}

/* The dialling side logs a REJECT as such, and not as a bad frame. */
static void refused_log_locked(struct peer *peer, const struct shown *shown, int status)
{
    bool rejected =
        shown->status == 0 && shown->header.type == WIRE_REJECT && peer->state == PEER_DIALLING;
    if (rejected && status == -ENOMEM)
        bmi__log(peer->instance, BMI_LOG_WARN, "%s refuses us: it has no memory for a connection",
                 bmi__peer_name(peer));
    else if (status == -ENOMEM)
        bmi__log(peer->instance, BMI_LOG_WARN, "%s: no memory for a frame of type %d",
                 bmi__peer_name(peer), shown->header.type);
    else if (rejected)
        bmi__log(peer->instance, BMI_LOG_WARN,
                 "%s refuses us: it speaks another version of the protocol, we speak %u",
                 bmi__peer_name(peer), WIRE_VERSION);
    else if (shown->status < 0 && (peer->state == PEER_DIALLING || peer->state == PEER_HANDSHAKE))
        bmi__stranger_log_locked(peer, shown->bytes, bmi_frame_header_size(shown->bytes[0]));
    else
        bmi__log(peer->instance, BMI_LOG_WARN, "%s: bad frame (type %d): %s: %s",
                 bmi__peer_name(peer), shown->header.type, shown->reason, strerror(-status));
}

/* A dialling process is answered with a REJECT if there is no memory for its HELLO, or if it speaks
 * another protocol: its log can then name what it has reached. Returns whether there is an answer
 * to flush. */
static bool reject_locked(struct peer *peer, const struct shown *shown, int status)
{
    struct wire_header header = {.type = WIRE_REJECT,
                                 .target = status == -ENOMEM ? ENOMEM : EPROTO};
    return (shown->status < 0 || status == -ENOMEM) && peer->state == PEER_HANDSHAKE &&
           bmi__control_send_locked(peer, header, NULL, 0);
}

/* Handles a frame, with its body if that has arrived; else *sink says where the body goes. */
static int frame_take(struct bmi_link *link, const struct shown *shown, const uint8_t *body,
                      struct bmi_sink *sink)
{
    int status = shown->status;
    *sink = (struct bmi_sink){0};
    struct peer *peer = owner_lock(link);
    if (peer == NULL)
        return -EPROTO;
    if (status == 0) {
        bmi__frame_trace(peer, "from", &shown->header);
        sink->length = shown->header.length;
        if (peer->state != PEER_UP)
            status = handshake_frame(&shown->header, sink);
        else if (peer->self_link == NULL || link == peer->self_link)
            status = up_frame_locked(peer, &shown->header, body, sink);
        else
            status = -EPROTO; /* on a link to this process, only the handshake arrives here */
    }
    if (status >= 0 && body != NULL && sink->length > 0) {
        bmi_segments_scatter(&sink->body, body, (size_t)sink->length);
        status = sink->owner != NULL ? body_done_locked(peer, sink) : 0;
        sink->length = 0;
    }
    bool flush = peer->answers > ANSWERS_FLUSH && peer->link != NULL;
    if (status < 0) {
        refused_log_locked(peer, shown, status);
        flush = reject_locked(peer, shown, status) || flush;
        if (peer->cause == 0)
            peer->cause = status == -ENOMEM ? -ENOMEM : -EPROTO;
    }
    if (status >= 0 && sink->length > 0 &&
        (sink->cookie == SINK_CONTROL || sink->cookie == SINK_UNEXPECTED))
        link->arriving = sink->owner;
    struct bmi_link *outgoing = peer->link;
    if (flush)
        bmi_link_ref(outgoing);
    owner_unlock(peer);
    if (flush) {
        outgoing->method->flush(outgoing);
        bmi_link_unref(outgoing);
    }
    bmi__work_soon_run(link->instance);
    return status;
}

int bmi_method_frame_arrived(struct bmi_link *link, const uint8_t *bytes, struct bmi_sink *sink)
{
    struct shown shown = {.bytes = bytes,
                          .header.type = wire_type_of(bytes[0]),
                          .reason = "out of place"};
    shown.status = wire_decode(bytes, &shown.header, &shown.reason);
    return frame_take(link, &shown, NULL, sink);
}

int bmi_method_header_begun(struct bmi_link *link, const uint8_t *bytes, size_t have)
{
    struct peer *peer = wire_begins(bytes, have) ? NULL : link_owner(link);
    int status = 0;
    if (peer == NULL)
        return 0;
    peer_lock(peer);
    if (peer->state == PEER_DIALLING) {
        bmi__stranger_log_locked(peer, bytes, have);
        if (peer->cause == 0)
            peer->cause = -EPROTO;
        status = -EPROTO;
    }
    peer_unlock(peer);
    return status;
}

int bmi_method_frame_whole(struct bmi_link *link, const uint8_t *bytes, const uint8_t *body,
                           size_t have)
{
    enum { LONGEST = 2048 }; /* most bytes copied under the peer's lock */
    struct shown shown = {.bytes = bytes, .reason = "out of place"};
    struct bmi_sink sink;
    if (bmi_frame_header_size(bytes[0]) != BMI_FRAME_SHORT)
        return 0; /* only messages have short headers, and all small messages do */
    shown.status = wire_decode(bytes, &shown.header, &shown.reason);
    if (shown.status < 0 || shown.header.length > LONGEST || shown.header.length > have)
        return 0;
    int status = frame_take(link, &shown, body, &sink);
    return status < 0 ? status : BMI_FRAME_SHORT + (int)shown.header.length;
}

/* ---- bodies --------------------------------------------------------------------------------- */

static int regions_arrived(struct bmi_link *link, const struct inbound *inbound)
{
    struct bmi_region regions[WIRE_REGIONS_MAX];
    int count = wire_regions_decode(inbound->bytes, (size_t)inbound->size, regions);
    struct peer *peer = count < 0 ? NULL : owner_lock(link);
    if (peer == NULL)
        return -EPROTO;
    int status = -EPROTO; /* of more regions than the network has, as of those of a HELLO */
    peer->seen += inbound->header.type == WIRE_RTS;
    if ((uint32_t)count > link->method->limits.regions_max)
        bmi__log(link->instance, BMI_LOG_WARN, "%s: regions that its network does not have",
                 bmi__peer_name(peer));
    else if (inbound->header.type == WIRE_RTS)
        status = bmi__rts_arrived_locked(peer, &inbound->header, regions, (uint32_t)count);
    else if (inbound->header.type == WIRE_CTS)
        status = bmi__cts_arrived_locked(peer, &inbound->header, regions, (uint32_t)count);
    else if (inbound->header.type == WIRE_RTR)
        status = bmi__rtr_arrived_locked(peer, &inbound->header, regions, (uint32_t)count);
    owner_unlock(peer);
    return status;
}

static int inbound_arrived(struct bmi_link *link, struct inbound *inbound)
{
    const struct wire_header *header = &inbound->header;
    size_t size = (size_t)inbound->size;
    int status;
    if (header->type == WIRE_HELLO)
        status = bmi__hello_arrived(link, (header->flags & WIRE_REPLY) != 0, inbound->bytes, size);
    else if (header->type == WIRE_JOIN)
        status = bmi__join_arrived(link, (header->flags & WIRE_REPLY) != 0, inbound->bytes, size);
    else
        status = regions_arrived(link, inbound);
    free(inbound);
    return status;
}

void bmi_method_body_place(struct bmi_link *link, struct bmi_sink *sink)
{
    if (sink->owner == NULL || sink->cookie != SINK_UNMATCHED)
        return;
    struct peer *peer = owner_lock(link);
    if (peer == NULL)
        return;
    if (peer->state == PEER_UP)
        bmi__message_place_locked(peer, sink);
    owner_unlock(peer);
}

int bmi_method_body_arrived(struct bmi_link *link, struct bmi_sink *sink)
{
    link->arriving = NULL;
    if (sink->owner == NULL)
        return 0;
    int status = 0;
    if (sink->cookie == SINK_CONTROL) {
        status = inbound_arrived(link, sink->owner);
    } else {
        struct peer *peer = owner_lock(link);
        if (peer != NULL) {
            status = body_done_locked(peer, sink);
            owner_unlock(peer);
        } else if (sink->cookie == SINK_UNEXPECTED) {
            bmi__unexpected_lost(sink->owner);
        }
    }
    bmi__work_soon_run(link->instance);
    return status;
}

/* ---- frames given back ----------------------------------------------------------------------- */

/* Handles the frames of one peer at the start of the chain; returns the rest. */
static struct bmi_frame *sent_of_one(struct bmi_link *link, struct bmi_frame *frame)
{
    struct op *first = bmi__frame_is_op(frame) ? bmi__frame_op(frame) : NULL;
    struct peer *peer = first != NULL ? first->peer : link_owner(link);
    if (peer == NULL) {
        struct bmi_frame *next = frame->next;
        bmi__control_free(link->instance, frame);
        return next;
    }
    peer_lock(peer);
    bool over = false;
    while (frame != NULL) {
        struct bmi_frame *next = frame->next;
        bool of_op = bmi__frame_is_op(frame);
        if (of_op && bmi__frame_op(frame)->peer != peer)
            break;
        if (of_op) {
            bmi__send_frame_done_locked(peer, bmi__frame_op(frame), frame->status);
        } else {
            bmi__control_done_locked(peer, frame);
        }
        frame = next;
    }
    if (peer->state == PEER_UP && peer->streams.first != NULL)
        bmi__streams_pump_locked(peer);
    over = peer->state == PEER_GONE && peer->op_count == 0 && first != NULL;
    peer_unlock(peer);
    if (over)
        bmi__peer_bury(peer);
    return frame;
}

void bmi_method_frames_sent(struct bmi_link *link, struct bmi_frame *frames)
{
    while (frames != NULL)
        frames = sent_of_one(link, frames);
}

void bmi_method_transfer_done(struct bmi_link *link, struct bmi_transfer *transfer, int status)
{
    struct op *op = transfer->owner;
    struct peer *peer = op->peer;
    (void)link;
    peer_lock(peer);
    bmi__transfer_done_locked(peer, op, status);
    bool over = peer->state == PEER_GONE && peer->op_count == 0;
    peer_unlock(peer);
    if (over)
        bmi__peer_bury(peer);
    bmi__work_soon_run(link->instance);
}
