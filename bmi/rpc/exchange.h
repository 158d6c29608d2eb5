/* SPDX-License-Identifier: BSD-3-Clause
 *
 * exchange.h - what a call and a served request have in common: an operation (OP_EXCHANGE) that
 * belongs to a peer, and up to six messages with that peer, its parts.
 *
 * Locks. The members of an exchange are guarded by its peer's lock; a message belongs to one thread
 * at a time: to the poller while the program unpacks it. Parts complete under the peer's lock, on
 * any thread, and queue the exchange's step. The poller alone runs steps, so a step never runs
 * twice at a time. It may run within the handling of a frame, with that link's receive lock held,
 * which a cancel may need: cancels, and calls of the program's functions that may do anything, are
 * left to `late`, which the poller runs without a lock.
 *
 * `op` is written under the lock: once before the first step is queued, then by the poller. So the
 * poller, and a thread that serves the request, read it without the lock to find the peer.
 */
#ifndef BMI_RPC_EXCHANGE_H
#define BMI_RPC_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "bmi/method.h"
#include "bmi/rpc/head.h"
#include "bmi/rpc/message.h"
#include "bmi/state/op.h"
#include "bmi/state/peer.h"
#include "bmi/state/wire.h"

enum { PART_HEAD, PART_STREAM, PART_BODY, PARTS };

/* The bit of a part: its flag of a CANCEL. */
#define PART_BIT(which) (1u << (which))
_Static_assert(WIRE_NO_HEAD == PART_BIT(PART_HEAD) && WIRE_NO_STREAM == PART_BIT(PART_STREAM) &&
                   WIRE_NO_BODY == PART_BIT(PART_BODY),
               "the flags of a CANCEL are bits of parts");

/* A message of the exchange. */
struct part {
    struct op *op; /* under way */
    bool started, done;
    int error; /* done: 0 or a negated errno */
    bmi_size_t size;
};

struct exchange {
    struct bmi_deferred work; /* its step; first */
    struct bmi_deferred late; /* what the step left for later */
    struct bmi_instance *instance;
    unsigned late_work; /* poller: which */
    struct op *op;      /* in its peer's list */
    struct part out[PARTS], in[PARTS];
    uint32_t outstanding; /* parts under way */
    uint32_t absent;      /* bits of parts to receive that their sender has withdrawn */
    uint32_t withdrawn;   /* of these, whose receives were cancelled */
    int32_t number;       /* the messages' tag: chosen by the caller */
    bool is_call;
    bool over;  /* its operation is gone; the next step frees it */
    bool ended; /* bmi__exchange_end_locked was called, with this error */
    int end_error;
};

/* Prepares an exchange of zeroes. */
void bmi__exchange_init(struct bmi_instance *instance, struct exchange *exchange, bool is_call,
                        int32_t number, void (*step)(struct bmi_deferred *work),
                        void (*late)(struct bmi_deferred *late));
struct exchange *bmi__exchange_of_late(struct bmi_deferred *late);
/* Leaves work for later. Poller. */
void bmi__exchange_late(struct exchange *exchange, unsigned late_work);
/* Notes the operation that the program posted: when it starts, or ends before that. */
void bmi__exchange_posted_locked(struct exchange *exchange, struct op *op);
/* Locks the peer of an exchange that is not over. */
struct peer *bmi__exchange_lock(struct exchange *exchange);
/* Unlocks it, and frees it if it is gone and this was its last operation. */
void bmi__exchange_unlock(struct peer *peer);
/* Whether the exchange's connection is there and is not being closed. */
static inline bool bmi__exchange_up_locked(const struct peer *peer, const struct exchange *exchange)
{
    return peer->state == PEER_UP && !(peer->flags & PEER_CLOSING) &&
           !(exchange->ended && !exchange->is_call);
}
/* The call, or the request, of that number; NULL: none. */
struct exchange *bmi__exchange_find_locked(struct peer *peer, bool is_call, int32_t number);
/* A CANCEL names messages (bits of parts) that do not come: notes them, and forgets those of which
 * the receive was discarded. `exchange`: as found, or NULL. */
void bmi__exchange_absent_locked(struct peer *peer, struct exchange *exchange, wire_tag tag,
                                 uint32_t parts);
/* How many discarded receives of calls and requests still wait for their messages. */
int bmi__exchange_tombstones_locked(const struct peer *peer);
/* Queues the step. */
void bmi__exchange_soon(struct exchange *exchange);
/* Gives the exchange an operation of the peer of its own. false: no memory. */
bool bmi__exchange_adopt_locked(struct peer *peer, struct exchange *exchange);
/* Takes that away: the exchange is over, and its memory the caller's once the step does not wait to
 * run (bmi__exchange_idle). */
void bmi__exchange_leave_locked(struct peer *peer, struct exchange *exchange);
/* Whether the exchange, which is over, can be freed now; else its next step, or `late`, has to. */
bool bmi__exchange_idle(struct exchange *exchange);

/* Starts the sending of a part: `count` entries of a list. */
void bmi__part_send_locked(struct peer *peer, struct exchange *exchange, int which,
                           void *const *buffers, const bmi_size_t *sizes, uint32_t count,
                           bmi_size_t total);
/* Starts the sending of a message whose list has its header: that, with what does not travel apart
 * by `flags` (enum rpc_flags); then what does. */
void bmi__message_head_send_locked(struct peer *peer, struct exchange *exchange,
                                   const struct bmi_message *message, uint32_t flags);
void bmi__message_rest_send_locked(struct peer *peer, struct exchange *exchange,
                                   const struct bmi_message *message, uint32_t flags);
/* Starts the receiving of a part. A list of 0 entries: discards the message. */
void bmi__part_receive_locked(struct peer *peer, struct exchange *exchange, int which,
                              void *const *buffers, const bmi_size_t *sizes, uint32_t count,
                              bmi_size_t total);
/* Adds the ids of the parts under way, from `first` on, to `count` others; returns their number. */
int bmi__parts_list_locked(const struct part parts[PARTS], int first, bmi_op_id_t ids[2 * PARTS],
                           int count);
/* Cancels them. `discard`: the messages of receives will come, and are discarded. No lock. */
void bmi__parts_cancel(const bmi_op_id_t *ids, int count, bool discard);
/* Whether a part is being received that its sender has withdrawn. */
bool bmi__absent_awaited_locked(const struct exchange *exchange);
/* Cancels the receives of such parts. No lock. */
void bmi__absent_withdraw(struct exchange *exchange);
/* Whether no part of these is under way. */
bool bmi__parts_none_locked(const struct part parts[PARTS]);

/* struct bmi__upcalls */
void bmi__exchange_end_locked(struct op *op, int error);
/* Frees all exchanges: the instance ends, and no operation is under way. */
void bmi__exchanges_free(struct bmi_instance *instance);

/* call.c and serve.c */
void bmi__call_start_locked(struct peer *peer, struct op *op);
void bmi__call_free(struct exchange *exchange);
void bmi__request_free(struct exchange *exchange);

int bmi__exchanges_open(struct bmi_instance *instance);
void bmi__exchanges_close(struct bmi_instance *instance);

#endif
