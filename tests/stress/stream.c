/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stream.c - the streams of a stress test, and the steps of their ends: see stream.h.
 */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    enum stream_kind kind;
    bmi_size_t size_max;
} kinds[] = {
    {STRICT, 64},          {STRICT, 4096},      {STRICT, 128 << 10}, {STRICT, 1 << 20},
    {CANCEL, 256},         {CANCEL, 16 << 10},  {CANCEL, 128 << 10}, {CANCEL, 1 << 20},
    {SHARED, 1024},        {SHARED, 128 << 10}, {SHARED, 1 << 20},   {UNEXPECTED, 1024},
    {UNEXPECTED, 1 << 20},
};

unsigned stream_kinds(void)
{
    return sizeof kinds / sizeof kinds[0];
}

void stream_describe(struct stream *stream, unsigned index, unsigned kinds_index)
{
    stream->kind = kinds[kinds_index].kind;
    stream->size_max = kinds[kinds_index].size_max;
    stream->index = index;
    stream->tag = (bmi_msg_tag_t)(index * 0x9e3779b1u);
}

bool stream_numbered(const struct stream *stream)
{
    return stream->kind != STRICT;
}

/* The size of a message, which sender and receiver both know. All magnitudes are as likely; the
 * powers of two and their neighbours, among them the library's thresholds, come up often. */
bmi_size_t stream_message_size(const struct stream *stream, uint64_t number)
{
    struct chance chance = {.state = pattern_key(stream->index + 1000u, number)};
    uint64_t least = stream_numbered(stream) ? NUMBER_BYTES : 0;
    unsigned magnitudes = 1;
    while (((uint64_t)1 << magnitudes) <= (uint64_t)stream->size_max)
        magnitudes++;
    uint64_t top = (uint64_t)1 << chance_below(&chance, magnitudes);
    uint64_t size = chance_below(&chance, 4) ? top - chance_below(&chance, top)
                                             : top - 1 + chance_below(&chance, 3);
    if (size > (uint64_t)stream->size_max)
        size = (uint64_t)stream->size_max;
    if (chance_below(&chance, 16) == 0)
        size = 0;
    return (bmi_size_t)(size < least ? least : size);
}

struct message stream_message(const struct stream *stream, uint64_t number)
{
    return (struct message){.stream = stream->index,
                            .number = number,
                            .numbered = stream_numbered(stream),
                            .size = stream_message_size(stream, number)};
}

/* ---- open and close -------------------------------------------------------------------------- */

static void side_open(struct stream *stream, struct side *side, bool sending)
{
    pthread_mutex_init(&side->lock, NULL);
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &side->slots[i];
        bmi_size_t size = stream->size_max + GUARD;
        *slot = (struct slot){.stream = stream, .sending = sending};
        pthread_mutex_init(&slot->lock, NULL);
        slot->type = i % 2 ? BMI_PRE_ALLOC : BMI_EXT_ALLOC;
        slot->buffer = slot->type == BMI_EXT_ALLOC
                           ? malloc((size_t)size)
                           : BMI_memalloc(stream->peer, size, sending ? BMI_SEND : BMI_RECV);
        CHECK(slot->buffer != NULL, "no memory for a buffer");
        memset(slot->buffer, POISON, (size_t)stream->size_max);
        memset(slot->buffer + stream->size_max, GUARD_BYTE, GUARD);
    }
}

static void side_close(struct stream *stream, struct side *side)
{
    CHECK(side->outstanding == 0, "stream %u: %u operations are left", stream->index,
          side->outstanding);
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &side->slots[i];
        if (slot->type == BMI_EXT_ALLOC)
            free(slot->buffer);
        else
            must(BMI_memfree(stream->peer, slot->buffer, stream->size_max + GUARD,
                             slot->sending ? BMI_SEND : BMI_RECV),
                 "BMI_memfree");
        pthread_mutex_destroy(&slot->lock);
    }
    pthread_mutex_destroy(&side->lock);
}

void stream_open(struct stream *stream, BMI_addr_t peer, bmi_size_t unexpected_max)
{
    stream->peer = peer;
    if (stream->kind == UNEXPECTED && stream->size_max > unexpected_max)
        stream->size_max = unexpected_max;
    stream->order = calloc(RECEIVES_MAX, sizeof *stream->order);
    CHECK(stream->order != NULL, "no memory");
    side_open(stream, &stream->sending, true);
    side_open(stream, &stream->receiving, false);
}

void stream_close(struct stream *stream)
{
    side_close(stream, &stream->sending);
    side_close(stream, &stream->receiving);
    free(stream->order);
}

/* ---- posting --------------------------------------------------------------------------------- */

static struct slot *slot_claim_locked(struct side *side)
{
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &side->slots[i];
        pthread_mutex_lock(&slot->lock);
        bool free = slot->state == SLOT_FREE;
        if (free)
            slot->state = SLOT_POSTED;
        pthread_mutex_unlock(&slot->lock);
        if (free) {
            side->outstanding++;
            return slot;
        }
    }
    return NULL;
}

static int pieces_choose(struct chance *chance)
{
    return chance_below(chance, 2) ? 1 : 1 + (int)chance_below(chance, PIECES_MAX);
}

static int send_post_locked(struct slot *slot, struct posting *posting)
{
    struct stream *stream = slot->stream;
    struct message message = stream_message(stream, slot->number);
    struct scatter *scatter = &slot->scatter;
    slot->size = message.size;
    scatter_make(scatter, slot->buffer, message.size, pieces_choose(posting->chance),
                 posting->chance);
    message_fill(scatter, &message);
    const void *const *buffers = (const void *const *)scatter->buffers;
    bool list = scatter->count > 1 || chance_below(posting->chance, 4) == 0;
    if (stream->kind == UNEXPECTED && list)
        return BMI_post_sendunexpected_list(&slot->id, stream->peer, buffers, scatter->sizes,
                                            scatter->count, message.size, slot->type, stream->tag,
                                            slot, slot->context, NULL);
    if (stream->kind == UNEXPECTED)
        return BMI_post_sendunexpected(&slot->id, stream->peer, buffers[0], message.size,
                                       slot->type, stream->tag, slot, slot->context, NULL);
    if (list)
        return BMI_post_send_list(&slot->id, stream->peer, buffers, scatter->sizes, scatter->count,
                                  message.size, slot->type, stream->tag, slot, slot->context, NULL);
    return BMI_post_send(&slot->id, stream->peer, buffers[0], message.size, slot->type, stream->tag,
                         slot, slot->context, NULL);
}

static void poison_check(const struct slot *slot)
{
    for (bmi_size_t i = 0; i < slot->poisoned; i++)
        CHECK((uint8_t)slot->buffer[i] == POISON,
              "stream %u: byte %lld was written after the receive was cancelled",
              slot->stream->index, (long long)i);
}

static int receive_post_locked(struct slot *slot, struct posting *posting)
{
    struct stream *stream = slot->stream;
    struct scatter *scatter = &slot->scatter;
    poison_check(slot);
    slot->poisoned = 0;
    slot->size = stream->size_max;
    if (stream->kind == STRICT && chance_below(posting->chance, 8) == 0)
        slot->size = (bmi_size_t)chance_below(posting->chance, (uint64_t)stream->size_max);
    else if (stream->kind == STRICT && chance_below(posting->chance, 2))
        slot->size = stream_message_size(stream, slot->number);
    scatter_make(scatter, slot->buffer, slot->size, pieces_choose(posting->chance),
                 posting->chance);
    if (scatter->count > 1 || chance_below(posting->chance, 4) == 0)
        return BMI_post_recv_list(&slot->id, stream->peer, scatter->buffers, scatter->sizes,
                                  scatter->count, slot->size, &slot->actual, slot->type,
                                  stream->tag, slot, slot->context, NULL);
    return BMI_post_recv(&slot->id, stream->peer, slot->buffer, slot->size, &slot->actual,
                         slot->type, stream->tag, slot, slot->context, NULL);
}

/* Posts the slot's operation. Returns the post's result; the slot's lock is released. */
static int slot_post(struct slot *slot, struct posting *posting, bool cancellable)
{
    pthread_mutex_lock(&slot->lock);
    slot->cancellable = cancellable;
    slot->cancelled = false;
    slot->context = posting->context;
    slot->anybody = posting->anybody;
    int result =
        slot->sending ? send_post_locked(slot, posting) : receive_post_locked(slot, posting);
    if (result != 0)
        CHECK(slot->id == 0, "a post that is not pending left an id");
    else
        CHECK(slot->id > 0, "a pending post left no id");
    if (result < 0)
        slot->state = SLOT_FREE;
    pthread_mutex_unlock(&slot->lock);
    return result;
}

/* After a post, with no lock held. */
static void slot_posted(struct slot *slot, struct posting *posting, int result)
{
    if (result == 0)
        posting->pending = slot;
    else
        slot_complete(slot, 0, 0, slot->sending ? slot->size : slot->actual);
}

/* Releases the side's lock, which is held, for the post if many threads may post at once. */
static void message_post_locked(struct stream *stream, struct posting *posting, struct slot *slot)
{
    struct ledger *ledger = stream->ledger;
    bool last = atomic_load(&ledger->phase) == QUIET;
    unsigned number = atomic_fetch_add(&ledger->posted, 1);
    CHECK(number < MESSAGES_MAX, "too many messages");
    slot->number = number;
    if (stream->kind == SHARED)
        pthread_mutex_unlock(&stream->sending.lock);
    int result = slot_post(slot, posting, stream->kind != STRICT && !last);
    /* A pending slot may belong to another thread already. */
    CHECK(result >= 0, "stream %u: post of message %u: %s", stream->index, number,
          status_name(result));
    if (stream->kind != SHARED)
        pthread_mutex_unlock(&stream->sending.lock);
    slot_posted(slot, posting, result);
}

/* Advances the sending end; returns whether to post a message. */
static bool send_phase_locked(struct stream *stream, bool stopping, bool *moved)
{
    struct ledger *ledger = stream->ledger;
    unsigned posted = atomic_load(&ledger->posted), total = atomic_load(&ledger->total);
    switch (atomic_load(&ledger->phase)) {
    case ACTIVE:
        if (!stopping && posted < MESSAGES_MAX - 4 * SLOTS)
            return true;
        if (stream->sending.outstanding == 0) {
            atomic_store(&ledger->total, posted);
            atomic_store(&ledger->phase, SENT);
            *moved = true;
        }
        return false;
    case QUIET:
        if (stream->kind == STRICT)
            return posted < atomic_load(&ledger->receives);
        return posted == total;
    default:
        return false;
    }
}

bool stream_send_step(struct stream *stream, struct posting *posting, bool stopping)
{
    bool moved = false;
    struct slot *slot = NULL;
    pthread_mutex_lock(&stream->sending.lock);
    if (send_phase_locked(stream, stopping, &moved))
        slot = slot_claim_locked(&stream->sending);
    if (!slot) {
        pthread_mutex_unlock(&stream->sending.lock);
        return moved;
    }
    message_post_locked(stream, posting, slot);
    return true;
}

/* Posts one receive; the side's lock, which is held, is released afterwards. */
static void receive_one_locked(struct stream *stream, struct posting *posting, struct slot *slot,
                               bool cancellable)
{
    struct ledger *ledger = stream->ledger;
    struct side *side = &stream->receiving;
    slot->number = atomic_fetch_add(&ledger->receives, 1);
    CHECK(slot->number < RECEIVES_MAX, "too many receives");
    if (stream->kind == SHARED)
        pthread_mutex_unlock(&side->lock);
    int result = slot_post(slot, posting, cancellable && slot->number < RECEIVES_MAX / 2);
    if (result < 0) {
        CHECK(result == -BMI_EMSGSIZE && stream->kind == STRICT &&
                  slot->size < stream_message_size(stream, slot->number),
              "stream %u: post of receive %llu: %s", stream->index,
              (unsigned long long)slot->number, status_name(result));
        atomic_fetch_sub(&ledger->receives, 1); /* STRICT: no other thread has posted */
        side->outstanding--;
    }
    if (stream->kind != SHARED)
        pthread_mutex_unlock(&side->lock);
    if (result >= 0)
        slot_posted(slot, posting, result);
}

static void receives_cancel_locked(struct stream *stream)
{
    for (int i = 0; i < SLOTS; i++)
        slot_cancel(&stream->receiving.slots[i], true);
}

/* Advances the receiving end after the sends are done; returns whether to post a receive. */
static bool receive_phase_locked(struct stream *stream, bool *moved)
{
    struct ledger *ledger = stream->ledger;
    struct side *side = &stream->receiving;
    int phase = atomic_load(&ledger->phase), next = phase;
    bool post = false;
    if (phase == ACTIVE)
        return stream->kind != UNEXPECTED;
    if (phase == SENT && stream->kind == STRICT) {
        post = atomic_load(&ledger->receives) < atomic_load(&ledger->total);
        next = post ? SENT : QUIET;
    } else if (phase == SENT) {
        receives_cancel_locked(stream);
        next = side->outstanding == 0 ? QUIET : SENT;
    } else if (phase == QUIET && stream->kind == STRICT) {
        next = side->outstanding == 0 ? FINISHED : QUIET;
    } else if (phase == QUIET && stream->kind != UNEXPECTED) {
        post = side->outstanding == 0 && !stream->swept;
        next = stream->swept ? FINISHED : QUIET;
    }
    if (next != phase)
        atomic_store(&ledger->phase, next);
    *moved = next != phase;
    return post;
}

/* All sent messages have been received, the last one included. */
static bool unexpected_complete(struct stream *stream)
{
    struct ledger *ledger = stream->ledger;
    if (atomic_load(&ledger->phase) != QUIET)
        return false;
    unsigned total = atomic_load(&ledger->total); /* it is known by now */
    if (!atomic_load(&ledger->got[total]))
        return false;
    for (unsigned i = 0; i < total; i++)
        if (atomic_load(&ledger->fate[i]) == SENT_WHOLE && !atomic_load(&ledger->got[i]))
            return false;
    atomic_store(&ledger->phase, FINISHED);
    return true;
}

bool stream_receive_step(struct stream *stream, struct posting *posting)
{
    bool moved = false;
    struct slot *slot = NULL;
    if (stream->kind == UNEXPECTED && unexpected_complete(stream))
        return true;
    pthread_mutex_lock(&stream->receiving.lock);
    if (receive_phase_locked(stream, &moved))
        slot = slot_claim_locked(&stream->receiving);
    if (!slot) {
        pthread_mutex_unlock(&stream->receiving.lock);
        return moved;
    }
    bool active = atomic_load(&stream->ledger->phase) == ACTIVE;
    receive_one_locked(stream, posting, slot, stream->kind != STRICT && active);
    return true;
}
