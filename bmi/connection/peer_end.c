/* SPDX-License-Identifier: BSD-3-Clause
 *
 * peer_end.c - the end of a peer: its operations complete, and its memory returns to the slab.
 */
#include "bmi/connection/peer_end.h"

#include <stdlib.h>

#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/connection/address.h"
#include "bmi/connection/matching.h"
#include "bmi/protocol/credit.h"
#include "bmi/protocol/match.h"
#include "bmi/protocol/op_end.h"
#include "bmi/protocol/tag_queue.h"
#include "bmi/state/library.h"
#include "bmi/state/liveness.h"
#include "bmi/state/peer.h"

void bmi__peer_give(struct peer *peer)
{
    peer_lock(peer);
    bmi__peer_retire_locked(peer);
    bmi__attention_locked(peer);
    bmi__credit_forget_locked(peer);
    bmi__tag_queues_free_locked(peer);
    bmi__matching_clear_locked(peer);
    free(peer->question);
    bmi__peer_clear_locked(peer);
    peer_unlock(peer);
    bmi__peer_put(peer);
}

void bmi__peer_bury(struct peer *peer)
{
    bmi__book_lock(peer->instance);
    peer_lock(peer);
    bool over = peer->state == PEER_GONE && peer->op_count == 0;
    peer_unlock(peer);
    if (over)
        bmi__peer_give(peer);
    bmi__book_unlock(peer->instance);
}

static void unmatched_free_all(struct peer *peer)
{
    for (uint32_t i = 0; i < peer->bucket_count; i++)
        for (struct tag_queue *queue = peer->buckets[i]; queue != NULL; queue = queue->next)
            while (queue->unmatched_first != NULL)
                bmi__unmatched_remove_locked(peer, queue, queue->unmatched_first);
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
        if (op->kind == OP_EXCHANGE)
            peer->instance->upcalls->exchange_end_locked(op, op->error);
        else if (!out)
            bmi__op_complete_locked(op, op->error, 0);
    }
    bmi__credit_forget_locked(peer);
    bmi__tag_queues_free_locked(peer);
    peer->eager_credit = peer->unexpected_credit = 0;
    peer->stream_bytes = peer->answers = peer->questions = 0;
    peer->flags &= ~(uint32_t)PEER_QUESTIONS;
    peer->waiting_first = peer->waiting_last = NULL;
}
