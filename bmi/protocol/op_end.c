/* SPDX-License-Identifier: BSD-3-Clause
 *
 * op_end.c - the operations of a peer: how they enter its list, leave it, and complete. The peer's
 * lock is held.
 */
#include "bmi/protocol/op_end.h"

#include "bmi/base/error.h"
#include "bmi/base/probe.h"
#include "bmi/protocol/match.h"
#include "bmi/protocol/rendezvous.h"
#include "bmi/protocol/send.h"
#include "bmi/protocol/tag_queue.h"
#include "bmi/state/context.h"
#include "bmi/state/liveness.h"
#include "bmi/state/op.h"

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
    else if (op->kind != OP_EXCHANGE)
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
    else if (op->kind != OP_EXCHANGE)
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
    if (op->flags & OP_TOMBSTONE) {
        bmi__op_give(op);
        return;
    }
    BMI_PROBE(6, complete, op, peer, op->kind, op->tag, error, op->actual);
    struct context *context = atomic_load_explicit(&op->context, memory_order_relaxed);
    if (context->direct != NULL)
        context->direct(peer, op);
    else if (!bmi__op_is_first(op, OP_DONE_INLINE))
        bmi__context_complete(op);
}

void bmi__op_unqueue_locked(struct peer *peer, struct op *op)
{
    switch (op->stage) {
    case SEND_PENDING:
        bmi__pending_remove_locked(peer, op);
        break;
    case RECV_POSTED:
        bmi__receive_unqueue_locked(bmi__tag_queue_find_locked(peer, op->tag), op);
        break;
    case SEND_STREAM:
        bmi__op_remove(&peer->streams, op);
        break;
    default:
        break;
    }
}
