/* SPDX-License-Identifier: BSD-3-Clause
 *
 * peer.c - the slab of peers, their operations, and the frames that they queue.
 *
 * The slab and the sum of past peers' counters are guarded by `slab_lock`, innermost. Control
 * frames (all but those that carry a message's body) are small, allocated here, and freed when the
 * method gives them back.
 */
#include "bmi/state/peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/error.h"
#include "bmi/base/log.h"
#include "bmi/connection/address.h"
#include "bmi/connection/failure.h"
#include "bmi/connection/handshake.h"
#include "bmi/connection/matching.h"
#include "bmi/progress/progress.h"
#include "bmi/protocol/credit.h"
#include "bmi/state/context.h"

enum { CHUNK = 64, CHUNKS = 1 << 16 };

static pthread_mutex_t slab_lock = PTHREAD_MUTEX_INITIALIZER;
static struct peer *slab[CHUNKS];  /* set once, read after slab_count */
static atomic_uint slab_count;     /* slab_lock */
static struct peer *slab_free;     /* slab_lock; linked by wants_next */
static struct bmi_statistics past; /* slab_lock */
static _Atomic uint64_t epochs = 1;
static _Atomic uint64_t given; /* peers that came back; slab_lock */

static bool slab_grow_locked(void)
{
    unsigned count = atomic_load(&slab_count);
    struct peer *chunk = count < CHUNKS ? calloc(CHUNK, sizeof *chunk) : NULL;
    if (chunk == NULL)
        return false;
    for (int i = CHUNK; i-- > 0;) {
        chunk[i].buckets = chunk[i].inline_buckets;
        chunk[i].bucket_count = KEY_BUCKETS;
        chunk[i].wants_next = slab_free;
        slab_free = &chunk[i];
    }
    slab[count] = chunk;
    atomic_store_explicit(&slab_count, count + 1, memory_order_release);
    return true;
}

struct peer *bmi__peer_take(void)
{
    pthread_mutex_lock(&slab_lock);
    struct peer *peer = NULL;
    if (slab_free != NULL || slab_grow_locked()) {
        peer = slab_free;
        slab_free = peer->wants_next;
        peer->wants_next = NULL;
    }
    pthread_mutex_unlock(&slab_lock);
    if (peer != NULL) {
        peer_lock(peer); /* the release of an old message compares the epoch */
        peer->epoch = atomic_fetch_add(&epochs, 1);
        peer->alternative = 0;
        atomic_store(&peer->state, PEER_IDLE);
        peer_unlock(peer);
    }
    return peer;
}

void bmi__peer_give(struct peer *peer)
{
    peer_lock(peer);
    pthread_mutex_lock(&slab_lock);
    bmi__peer_statistics(peer, &past);
    atomic_store(&peer->state, PEER_FREE);
    atomic_fetch_add(&given, 1);
    pthread_mutex_unlock(&slab_lock);
    bmi__attention_locked(peer);
    bmi__credit_forget_locked(peer);
    bmi__keys_free_locked(peer);
    bmi__meeting_clear_locked(peer);
    free(peer->question);
    size_t head = offsetof(struct peer, link);
    memset((char *)peer + head, 0, sizeof *peer - head);
    peer->buckets = peer->inline_buckets;
    peer->bucket_count = KEY_BUCKETS;
    peer_unlock(peer);
    pthread_mutex_lock(&slab_lock);
    peer->wants_next = slab_free;
    slab_free = peer;
    pthread_mutex_unlock(&slab_lock);
}

void bmi__peer_bury(struct peer *peer)
{
    bmi__book_lock();
    peer_lock(peer);
    bool over = peer->state == PEER_GONE && peer->op_count == 0;
    peer_unlock(peer);
    if (over)
        bmi__peer_give(peer);
    bmi__book_unlock();
}

void bmi__peer_each(void (*visit)(struct peer *peer, void *argument), void *argument)
{
    unsigned count = atomic_load_explicit(&slab_count, memory_order_acquire);
    for (unsigned c = 0; c < count; c++)
        for (int i = 0; i < CHUNK; i++)
            if (atomic_load_explicit(&slab[c][i].state, memory_order_relaxed) != PEER_FREE)
                visit(&slab[c][i], argument);
}

void bmi__peers_free(void)
{
    unsigned count = atomic_exchange(&slab_count, 0);
    for (unsigned c = 0; c < count; c++) {
        free(slab[c]);
        slab[c] = NULL;
    }
    slab_free = NULL;
    bmi__keys_stop();
    memset(&past, 0, sizeof past);
}

/* ---- statistics ----------------------------------------------------------------------------- */

void bmi__peer_statistics(const struct peer *peer, struct bmi_statistics *statistics)
{
    const struct peer_counters *from = &peer->counters;
#define ADD(field) statistics->field += from->field
    ADD(messages_sent);
    ADD(messages_received);
    ADD(bytes_sent);
    ADD(bytes_received);
    ADD(unexpected_sent);
    ADD(unexpected_received);
    ADD(eager_sent);
    ADD(rendezvous_sent);
    ADD(announced_sent);
    ADD(announcements);
    ADD(puts);
    ADD(put_bytes);
    ADD(gets);
    ADD(get_bytes);
    ADD(copies);
    ADD(copied_bytes);
    ADD(credit_waits);
    ADD(connects);
    ADD(reconnects);
    statistics->accepts += (peer->flags & PEER_GREETED) != 0;
    ADD(errors);
    ADD(cancels);
    ADD(outstanding_sends);
    ADD(outstanding_receives);
    ADD(unmatched_messages);
    ADD(unmatched_bytes);
    ADD(unexpected_waiting);
    ADD(unexpected_bytes);
#undef ADD
}

static void add_statistics(struct peer *peer, void *statistics)
{
    peer_lock(peer);
    if (peer->state != PEER_FREE)
        bmi__peer_statistics(peer, statistics);
    peer_unlock(peer);
}

void bmi__peers_past_unexpected(uint64_t bytes)
{
    pthread_mutex_lock(&slab_lock);
    past.unexpected_waiting--;
    past.unexpected_bytes -= bytes;
    pthread_mutex_unlock(&slab_lock);
}

/* A peer that is given back meanwhile would be in neither sum, and counters would shrink. So this
 * counts again then, but not for ever if peers come and go all the time. */
void bmi__peers_statistics(struct bmi_statistics *statistics)
{
    enum { TRIES = 64 };
    uint64_t before;
    int tries = 0;
    do {
        pthread_mutex_lock(&slab_lock);
        before = atomic_load(&given);
        *statistics = past;
        pthread_mutex_unlock(&slab_lock);
        bmi__peer_each(add_statistics, statistics);
    } while (atomic_load(&given) != before && ++tries < TRIES);
}

/* ---- operations ----------------------------------------------------------------------------- */

void bmi__peer_adopt_locked(struct peer *peer, struct op *op)
{
    atomic_store_explicit(&op->peer, peer, memory_order_release);
    op->peer_next = NULL;
    op->peer_previous = peer->ops_last;
    if (peer->ops_last != NULL)
        peer->ops_last->peer_next = op;
    else
        peer->ops_first = op;
    peer->ops_last = op;
    if (op->kind == OP_RECV)
        peer->counters.outstanding_receives++;
    else
        peer->counters.outstanding_sends++;
    if (peer->op_count++ == 0) {
        peer->silent_ticks = 0; /* no operation waited until now */
        bmi__attention_locked(peer);
    }
}

void bmi__op_detach_locked(struct peer *peer, struct op *op)
{
    if (op->peer_previous != NULL)
        op->peer_previous->peer_next = op->peer_next;
    else
        peer->ops_first = op->peer_next;
    if (op->peer_next != NULL)
        op->peer_next->peer_previous = op->peer_previous;
    else
        peer->ops_last = op->peer_previous;
    if (op->kind == OP_RECV)
        peer->counters.outstanding_receives--;
    else
        peer->counters.outstanding_sends--;
    peer->op_count--; /* the tick sees that nothing is due any more */
    atomic_store_explicit(&op->peer, NULL, memory_order_release);
}

static void count_result(struct peer *peer, const struct op *op, int error, bmi_size_t actual)
{
    struct peer_counters *counters = &peer->counters;
    if (error == BMI__CANCELLED)
        counters->cancels++;
    else if (error != 0)
        counters->errors++;
    else if (op->kind == OP_SEND)
        counters->messages_sent++, counters->bytes_sent += (uint64_t)actual;
    else if (op->kind == OP_RECV)
        counters->messages_received++, counters->bytes_received += (uint64_t)actual;
    else if (op->kind == OP_SEND_UNEXPECTED)
        counters->unexpected_sent++, counters->bytes_sent += (uint64_t)actual;
}

void bmi__op_complete_locked(struct op *op, int error, bmi_size_t actual)
{
    struct peer *peer = op->peer;
    bmi__receive_settled_locked(op);
    bmi__memory_release_locked(op);
    count_result(peer, op, error, actual);
    bmi__op_detach_locked(peer, op);
    op->error = error;
    op->actual = error != 0 ? 0 : actual;
    op->stage = STAGE_NONE;
    if (op->flags & OP_GHOST) {
        bmi__op_give(op);
        return;
    }
    if (!bmi__op_is_first(op, OP_DONE_INLINE))
        bmi__context_complete(op);
}

void bmi__op_unqueue_locked(struct peer *peer, struct op *op)
{
    switch (op->stage) {
    case SEND_PENDING:
        bmi__pending_remove_locked(peer, op);
        break;
    case RECV_POSTED:
        bmi__receive_unqueue_locked(bmi__key_find_locked(peer, op->tag), op);
        break;
    case SEND_STREAM:
        bmi__op_remove(&peer->streams, op);
        break;
    default:
        break;
    }
}

static void unmatched_free_all(struct peer *peer)
{
    for (uint32_t i = 0; i < peer->bucket_count; i++)
        for (struct key *key = peer->buckets[i]; key != NULL; key = key->next)
            while (key->unmatched_first != NULL)
                bmi__unmatched_remove_locked(peer, key, key->unmatched_first);
}

void bmi__peer_abandon_locked(struct peer *peer, int error)
{
    unmatched_free_all(peer);
    for (struct op *op = peer->ops_first, *next; op != NULL; op = next) {
        next = op->peer_next;
        bool out = (op->flags & OP_FRAME_OUT) || op->stage == SEND_PUT || op->stage == RECV_GET;
        bool waits = op->stage == STAGE_NEXT && peer->state == PEER_IDLE;
        if (op->stage == STAGE_DYING || waits)
            continue;
        bmi__op_unqueue_locked(peer, op);
        unsigned asked = op->kind == OP_RECV ? OP_CANCEL_ASKED | OP_CANCEL_WAITS : 0;
        bool cancelled = (op->flags & (OP_CANCELLED | asked)) != 0;
        op->error = cancelled ? BMI__CANCELLED : error;
        op->stage = STAGE_DYING;
        if (!out)
            bmi__op_complete_locked(op, op->error, 0);
    }
    bmi__credit_forget_locked(peer);
    bmi__keys_free_locked(peer);
    peer->eager_credit = peer->unexpected_credit = 0;
    peer->stream_bytes = peer->answers = peer->questions = 0;
    peer->flags &= ~(uint32_t)PEER_QUESTIONS;
    peer->waiting_first = peer->waiting_last = NULL;
}

/* ---- frames --------------------------------------------------------------------------------- */

struct control {
    struct bmi_frame frame;
    void *body; /* the list of one */
    bmi_size_t size;
    bool answer; /* counted in the peer's answers */
    char bytes[];
};

void bmi__frame_trace(const struct peer *peer, const char *way, const struct wire_header *header)
{
    if (bmi__log_wanted(BMI_LOG_TRACE))
        bmi__log(BMI_LOG_TRACE,
                 "%s %s: %s flags %x tag %d length %llu seen %u credit %u source "
                 "%llx target %llx",
                 way, bmi__peer_name(peer), wire_type_name(header->type), header->flags,
                 header->tag, (unsigned long long)header->length, header->seen, header->credit,
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
    struct control *control = malloc(sizeof *control + size);
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
    header.length = header.source = header.target = 0;
    wire_encode(control->frame.header, &header);
    bmi__frame_trace(peer, "instead to", &header);
    return &control->frame;
}

void bmi__control_free(struct bmi_frame *frame)
{
    free(frame);
}

void bmi__control_done_locked(struct peer *peer, struct bmi_frame *frame)
{
    if (((struct control *)frame)->answer && peer->answers > 0)
        peer->answers--;
    bmi__control_free(frame);
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
