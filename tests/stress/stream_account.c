/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stream_account.c - accounts for ends and arrivals: see stream.h.
 */
#include <stdio.h>
#include <string.h>

#include "stream.h"

static const char *const kind_names[] = {"strict", "cancel", "shared", "unexpected"};

/* ---- completions ----------------------------------------------------------------------------- */

static void sent(struct slot *slot, bmi_error_code_t status, bmi_size_t size, bool cancelled)
{
    struct stream *stream = slot->stream;
    uint8_t fate = SENT_WHOLE;
    if (status == -BMI_ECANCEL) {
        CHECK(cancelled, "stream %u: message %llu was cancelled by nobody", stream->index,
              (unsigned long long)slot->number);
        CHECK(size == 0, "a cancelled send tells %lld bytes", (long long)size);
        fate = SENT_CANCELLED;
    } else {
        CHECK(status == 0 && size == slot->size, "stream %u: message %llu of %lld: %s, %lld bytes",
              stream->index, (unsigned long long)slot->number, (long long)slot->size,
              status_name(status), (long long)size);
    }
    memset(slot->buffer, SCRIBBLE, (size_t)(slot->size < GUARD ? slot->size : GUARD));
    int old = atomic_exchange(&stream->ledger->fate[slot->number], fate);
    CHECK(old == NOT_SENT, "stream %u: message %llu ended twice", stream->index,
          (unsigned long long)slot->number);
}

/* Records that a message has arrived, and checks it. */
static void arrived(struct stream *stream, const struct scatter *scatter, uint64_t number,
                    bmi_size_t size)
{
    struct ledger *ledger = stream->ledger;
    CHECK(number < atomic_load(&ledger->posted), "stream %u: no message %llu was sent",
          stream->index, (unsigned long long)number);
    struct message message = stream_message(stream, number);
    CHECK(size == message.size, "stream %u: message %llu has %lld bytes, not %lld", stream->index,
          (unsigned long long)number, (long long)size, (long long)message.size);
    int64_t wrong = message_wrong(scatter, &message);
    CHECK(wrong < 0, "stream %u: message %llu of %lld bytes is wrong at %lld", stream->index,
          (unsigned long long)number, (long long)size, (long long)wrong);
    CHECK(atomic_fetch_add(&ledger->got[number], 1) == 0, "stream %u: message %llu came twice",
          stream->index, (unsigned long long)number);
    atomic_fetch_add(&ledger->bytes, (unsigned long)size);
}

static void received(struct slot *slot, bmi_error_code_t status, bmi_size_t size, bool cancelled)
{
    struct stream *stream = slot->stream;
    uint64_t number = slot->number;
    for (int i = 0; i < GUARD; i++)
        CHECK((uint8_t)slot->buffer[stream->size_max + i] == GUARD_BYTE,
              "stream %u: a receive wrote behind its buffer", stream->index);
    if (status == -BMI_ECANCEL) {
        CHECK(cancelled || stream->kind != STRICT,
              "stream %u: receive %llu was cancelled by nobody", stream->index,
              (unsigned long long)number);
        CHECK(size == 0, "a cancelled receive tells %lld bytes", (long long)size);
        atomic_fetch_add(cancelled ? &stream->ledger->cancelled : &stream->ledger->cut_off, 1);
        memset(slot->buffer, POISON, (size_t)stream->size_max);
        slot->poisoned = stream->size_max;
    } else if (status == -BMI_EMSGSIZE) {
        CHECK(stream->kind == STRICT && slot->size < stream_message_size(stream, number) &&
                  size == 0,
              "stream %u: receive %llu: %s, %lld bytes", stream->index, (unsigned long long)number,
              status_name(status), (long long)size);
        atomic_fetch_add(&stream->ledger->got[number], 1);
    } else {
        CHECK(status == 0, "stream %u: receive %llu: %s", stream->index, (unsigned long long)number,
              status_name(status));
        if (stream_numbered(stream)) {
            CHECK(size >= NUMBER_BYTES, "stream %u: a message of %lld bytes", stream->index,
                  (long long)size);
            number = message_number(&slot->scatter, stream->index);
        }
        arrived(stream, &slot->scatter, number, size);
        pthread_mutex_lock(&stream->receiving.lock);
        stream->order[slot->number] = (uint32_t)number + 1;
        stream->swept |= number >= atomic_load(&stream->ledger->total);
        pthread_mutex_unlock(&stream->receiving.lock);
    }
}

void slot_complete(struct slot *slot, bmi_op_id_t id, bmi_error_code_t status, bmi_size_t size)
{
    struct stream *stream = slot->stream;
    struct side *side = slot->sending ? &stream->sending : &stream->receiving;
    CHECK(slot->id == id, "a completion's id is not the one that its post gave");
    pthread_mutex_lock(&slot->lock);
    CHECK(slot->state == SLOT_POSTED, "stream %u: a %s was reported twice", stream->index,
          slot->sending ? "send" : "receive");
    slot->state = SLOT_REPORTED;
    bool cancelled = slot->cancelled;
    pthread_mutex_unlock(&slot->lock);

    if (slot->sending)
        sent(slot, status, size, cancelled);
    else
        received(slot, status, size, cancelled);

    pthread_mutex_lock(&side->lock);
    pthread_mutex_lock(&slot->lock);
    slot->state = SLOT_FREE;
    slot->id = 0;
    pthread_mutex_unlock(&slot->lock);
    side->outstanding--;
    pthread_mutex_unlock(&side->lock);
}

void slot_cancel(struct slot *slot, bool anyway)
{
    pthread_mutex_lock(&slot->lock);
    if (slot->state == SLOT_POSTED && slot->id > 0 && (anyway || slot->cancellable)) {
        slot->cancelled = true;
        int result = BMI_cancel(slot->id, slot->context);
        /* EINVAL: another thread has just got its completion. */
        CHECK(result == 0 || result == -BMI_EINVAL, "BMI_cancel: %s", status_name(result));
    }
    pthread_mutex_unlock(&slot->lock);
}

void slot_test(struct slot *slot)
{
    int count = 0;
    bmi_error_code_t status = 0;
    bmi_size_t size = -1;
    void *user = NULL;
    bmi_op_id_t id = 0;
    pthread_mutex_lock(&slot->lock);
    if (slot->state == SLOT_POSTED && slot->id > 0 && slot->anybody) {
        id = slot->id;
        int result = BMI_test(id, &count, &status, &size, &user, 0, slot->context);
        CHECK(result == count || (result == -BMI_EINVAL && count == 0), "BMI_test: %s",
              status_name(result));
    }
    pthread_mutex_unlock(&slot->lock);
    if (count) {
        CHECK(user == slot, "BMI_test gave another operation's user pointer");
        slot_complete(slot, id, status, size);
    }
}

uint64_t stream_take(struct stream *stream, const struct BMI_unexpected_info *info)
{
    struct scatter scatter = {.count = 1, .buffers = {info->buffer}, .sizes = {info->size}};
    CHECK(info->error_code == 0 && info->size >= NUMBER_BYTES && info->buffer != NULL,
          "stream %u: unexpected: %s, %lld bytes", stream->index, status_name(info->error_code),
          (long long)info->size);
    uint64_t number = message_number(&scatter, stream->index);
    arrived(stream, &scatter, number, info->size);
    return number;
}

/* ---- the end --------------------------------------------------------------------------------- */

bool stream_finished(struct stream *stream)
{
    if (atomic_load(&stream->ledger->phase) != FINISHED)
        return false;
    struct side *sides[] = {&stream->sending, &stream->receiving};
    unsigned outstanding = 0;
    for (int i = 0; i < 2; i++) {
        pthread_mutex_lock(&sides[i]->lock);
        outstanding += sides[i]->outstanding;
        pthread_mutex_unlock(&sides[i]->lock);
    }
    return outstanding == 0;
}

/* Receives got messages in the order of their posts, except those whose message was cancelled: each
 * took a later one, and a cancelled one comes before those that overtook it. */
static void order_audit(const struct stream *stream, unsigned refused)
{
    uint32_t least = UINT32_MAX; /* message + 1 of all later receives */
    unsigned first = 0, late = 0;
    while (refused > 0 && atomic_load(&stream->ledger->fate[first]) != SENT_CANCELLED)
        first++;
    for (unsigned i = RECEIVES_MAX; i-- > 0;) {
        uint32_t message = stream->order[i];
        if (message > least) {
            CHECK(refused > 0 && first + 1 < least, "stream %u: message %u came after %u",
                  stream->index, least - 1, message - 1);
            late++;
        } else if (message > 0) {
            least = message;
        }
    }
    CHECK(late <= refused, "stream %u: %u receives were passed, %u sends were cancelled",
          stream->index, late, refused);
}

void stream_audit(struct stream *stream)
{
    struct ledger *ledger = stream->ledger;
    unsigned total = atomic_load(&ledger->total), missing = 0, refused = 0;
    for (unsigned i = 0; i < total; i++) {
        unsigned fate = atomic_load(&ledger->fate[i]), got = atomic_load(&ledger->got[i]);
        CHECK(fate != NOT_SENT, "stream %u: message %u was never reported", stream->index, i);
        CHECK(fate != SENT_CANCELLED || got == 0,
              "stream %u: message %u arrived though its send was cancelled", stream->index, i);
        missing += fate == SENT_WHOLE && got == 0;
        refused += fate == SENT_CANCELLED;
    }
    unsigned owed = atomic_load(&ledger->cancelled);
    CHECK(missing <= (stream->kind == UNEXPECTED ? 0 : owed),
          "stream %u: %u messages are lost, %u receives were cancelled", stream->index, missing,
          owed);
    unsigned cut_off = atomic_load(&ledger->cut_off);
    CHECK(cut_off <= refused, "stream %u: %u receives were cut off, %u sends were cancelled",
          stream->index, cut_off, refused);
    if (stream->receives_here && stream->kind == CANCEL)
        order_audit(stream, refused);
    if (stream->receives_here)
        printf("  %-10s max %7lld: %5u messages, %6.1f MB, cancelled %u sends, %u receives "
               "(%u messages drained, %u receives cut off)\n",
               kind_names[stream->kind], (long long)stream->size_max, total,
               (double)atomic_load(&ledger->bytes) / 1e6, refused, owed, missing, cut_off);
}

static void side_print(const struct side *side)
{
    for (int i = 0; i < SLOTS; i++) {
        const struct slot *slot = &side->slots[i];
        if (slot->state != SLOT_FREE)
            fprintf(stderr, "    %s %llu of %lld bytes, id %llx, context %llx%s%s\n",
                    slot->sending ? "send" : "receive", (unsigned long long)slot->number,
                    (long long)slot->size, (unsigned long long)slot->id,
                    (unsigned long long)slot->context, slot->cancelled ? ", cancelled" : "",
                    slot->state == SLOT_REPORTED ? ", reported" : "");
    }
}

void stream_print(struct stream *stream)
{
    static const char *const phases[] = {"active", "sent", "quiet", "finished"};
    struct ledger *ledger = stream->ledger;
    fprintf(stderr, "  stream %u (%s, max %lld, tag %d): %s, %u messages, %u receives\n",
            stream->index, kind_names[stream->kind], (long long)stream->size_max, stream->tag,
            phases[atomic_load(&ledger->phase)], atomic_load(&ledger->posted),
            atomic_load(&ledger->receives));
    side_print(&stream->sending);
    side_print(&stream->receiving);
}
