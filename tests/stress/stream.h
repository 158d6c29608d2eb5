/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stream.h - the streams of messages that threads_stress drives: one tag, one direction each.
 *
 * Kinds:
 *   STRICT      messages and receives in step, nothing cancelled: message n arrives in receive n,
 *               or that receive was too small for it. Sizes from 0.
 *   CANCEL      sends and receives are cancelled at random. Messages that arrive are numbered, in
 *               order of the receives; a message that was sent and does not arrive must be owed by
 *               a receive that was cancelled. A send cancelled in the midst of its bytes ends the
 *               receive that got them; one cancelled before them leaves its receive to a later
 *               message, which then is out of order.
 *   SHARED      as CANCEL, but posted by many threads at once, so the order is unknown.
 *   UNEXPECTED  each arrives once, unless its send was cancelled.
 *
 * The two ends of a stream, in one process or two, share its ledger. Its phases: ACTIVE until all
 * sends are complete, SENT until all receives are, QUIET while last messages are sent, which take
 * out messages left in the library, FINISHED. An operation that is never reported keeps its stream
 * from finishing; one reported twice finds its slot not posted.
 *
 * Locks: a side's lock > a slot's lock. Both may be held in a post or cancel, none in a test.
 */
#ifndef BMI_TESTS_STREAM_H
#define BMI_TESTS_STREAM_H

#include <pthread.h>

#include "message.h"

enum stream_kind { STRICT, CANCEL, SHARED, UNEXPECTED };
enum stream_phase { ACTIVE, SENT, QUIET, FINISHED };
enum message_fate { NOT_SENT, SENT_WHOLE, SENT_CANCELLED };
enum slot_state { SLOT_FREE, SLOT_POSTED, SLOT_REPORTED };

enum { SLOTS = 6, MESSAGES_MAX = 1 << 15, RECEIVES_MAX = 4 * MESSAGES_MAX, GUARD = 64 };
/* Bytes behind a buffer; in one that may not be written; in one that was just sent. */
enum { GUARD_BYTE = 0xa7, POISON = 0xc7, SCRIBBLE = 0xee };

/* Shared by both ends. */
struct ledger {
    atomic_int phase;
    atomic_uint posted;                 /* messages, last ones included */
    atomic_uint total;                  /* messages before the last ones; UINT32_MAX until known */
    atomic_uint receives;               /* posted */
    atomic_uint cancelled;              /* receives that were cancelled and ended with ECANCEL */
    atomic_uint cut_off;                /* receives that ended so because their message was
                                           cancelled */
    atomic_ulong bytes;                 /* arrived and verified */
    _Atomic uint8_t fate[MESSAGES_MAX]; /* the result for the sender */
    _Atomic uint8_t got[MESSAGES_MAX];  /* times arrived */
};

struct stream;

/* One operation. */
struct slot {
    pthread_mutex_t lock;
    struct stream *stream;
    bool sending;
    enum slot_state state;
    bool cancellable, cancelled;
    bool anybody; /* may be tested by any thread */
    bmi_op_id_t id;
    bmi_context_id context;
    uint64_t number;     /* of the message, or of the receive */
    bmi_size_t size;     /* of the message, or of the buffer given */
    bmi_size_t actual;   /* immediate receives */
    bmi_size_t poisoned; /* bytes that may not have been written since the last use */
    struct scatter scatter;
    char *buffer;
    enum bmi_buffer_type type;
};

struct side {
    pthread_mutex_t lock;
    unsigned outstanding;
    struct slot slots[SLOTS];
};

struct stream {
    enum stream_kind kind;
    unsigned index;
    bmi_msg_tag_t tag;
    bmi_size_t size_max;
    bool sends_here, receives_here;
    BMI_addr_t peer;
    struct ledger *ledger;
    struct side sending, receiving;
    uint32_t *order; /* CANCEL: receive -> message + 1; guarded by receiving.lock */
    bool swept;      /* a last message arrived; guarded by receiving.lock */
};

/* The destination of a post, chosen by the caller. */
struct posting {
    struct chance *chance;
    bmi_context_id context;
    bool anybody;         /* the context is not one thread's own */
    struct slot *pending; /* out: the slot if the post is pending */
};

void stream_open(struct stream *stream, BMI_addr_t peer, bmi_size_t unexpected_max);
void stream_close(struct stream *stream);
/* The process-local part of `count` streams over ledgers in shared memory. */
void stream_describe(struct stream *stream, unsigned index, unsigned kinds_index);
unsigned stream_kinds(void);

/* Properties of a message that both ends know: whether it has a number, its size, all of it. */
bool stream_numbered(const struct stream *stream);
bmi_size_t stream_message_size(const struct stream *stream, uint64_t number);
struct message stream_message(const struct stream *stream, uint64_t number);

/* One step of an end: posts, or advances the phase. Returns true if it did something. */
bool stream_send_step(struct stream *stream, struct posting *posting, bool stopping);
bool stream_receive_step(struct stream *stream, struct posting *posting);

/* Takes a completion that a test call reported, or an immediate one. */
void slot_complete(struct slot *slot, bmi_op_id_t id, bmi_error_code_t status, bmi_size_t size);
/* Cancels the slot's operation if that may be cancelled at random, or `anyway`. */
void slot_cancel(struct slot *slot, bool anyway);
/* Tests the slot's operation by its id, if any thread may; another thread may get its completion
 * first. */
void slot_test(struct slot *slot);
/* Takes an unexpected message of the stream; returns its number. */
uint64_t stream_take(struct stream *stream, const struct BMI_unexpected_info *info);

/* No work is left at this process's ends. */
bool stream_finished(struct stream *stream);
/* Checks the ledger after both ends have finished: no message is lost. */
void stream_audit(struct stream *stream);
void stream_print(struct stream *stream);

#endif
