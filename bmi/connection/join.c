/* SPDX-License-Identifier: BSD-3-Clause
 *
 * join.c - restarts posted operations over the link of another peer, which is the same process, or
 * over the peer's next link.
 */
#include "bmi/connection/join.h"

#include "bmi/base/instance.h"
#include "bmi/base/probe.h"
#include "bmi/connection/address.h"
#include "bmi/connection/handshake.h"
#include "bmi/connection/peer_end.h"
#include "bmi/progress/progress.h"
#include "bmi/protocol/match.h"
#include "bmi/protocol/op_end.h"
#include "bmi/protocol/ping.h"
#include "bmi/protocol/send.h"
#include "bmi/state/library.h"

void bmi__peers_lock(struct peer *one, struct peer *other)
{
    peer_lock(one < other ? one : other);
    peer_lock(one < other ? other : one);
}

void bmi__op_begin_locked(struct peer *peer, struct op *op)
{
    bmi__peer_adopt_locked(peer, op);
    int status = 0;
    if (peer->flags & PEER_CLOSING) /* joined too late: they wait for the next link */
        op->stage = STAGE_NEXT;
    else if (op->kind == OP_SEND)
        bmi__send_start_locked(peer, op);
    else if (op->kind == OP_SEND_UNEXPECTED)
        bmi__unexpected_start_locked(peer, op);
    else if (op->kind == OP_RECV)
        status = bmi__receive_start_locked(peer, op, false);
    else if (op->kind == OP_EXCHANGE)
        peer->instance->upcalls->exchange_start_locked(peer, op);
    if (status < 0)
        bmi__op_complete_locked(op, status, 0);
}

static struct op *next_first_locked(const struct peer *peer)
{
    struct op *op = peer->ops_first;
    while (op != NULL && op->stage != STAGE_NEXT)
        op = op->peer_next;
    return op;
}

void bmi__next_start_locked(struct peer *peer, int status)
{
    for (struct op *op = next_first_locked(peer), *next; op != NULL; op = next) {
        next = op->peer_next;
        if (op->stage != STAGE_NEXT)
            continue;
        op->stage = STAGE_NONE;
        if (status < 0) {
            if (op->kind == OP_EXCHANGE)
                peer->instance->upcalls->exchange_end_locked(op, status);
            else
                bmi__op_complete_locked(op, status, 0);
            continue;
        }
        bmi__op_detach_locked(peer, op);
        bmi__op_begin_locked(peer, op);
        if (next == NULL)
            break; /* restarted operations now stand last */
    }
}

bool bmi__next_waits_locked(const struct peer *peer)
{
    return next_first_locked(peer) != NULL;
}

void bmi__dial_next_locked(struct peer *peer)
{
    if (bmi__next_waits_locked(peer))
        bmi__next_start_locked(peer, bmi__dial_locked(peer));
}

void bmi__link_forget_locked(struct peer *peer)
{
    struct bmi_link *link = peer->link;
    peer->link = NULL;
    if (link == NULL)
        return;
    BMI_PROBE(3, disconnect, peer, (int)peer->cause, peer->op_count);
    link_own(link, NULL);
    link->method->close(link, false);
    bmi_link_unref(link);
}

void bmi__join(struct peer *from, struct peer *to)
{
    bmi__peers_lock(from, to);
    bmi__link_forget_locked(from);
    bmi__address_move_locked(from, to);
    to->counters.connects++;
    while (from->ops_first != NULL) {
        struct op *op = from->ops_first;
        bmi__op_unqueue_locked(from, op);
        bmi__op_detach_locked(from, op);
        op->stage = STAGE_NONE;
        bmi__op_begin_locked(to, op);
    }
    bmi__pings_send_locked(to);
    if (to->link != NULL)
        bmi__progress_dirty(to->link);
    peer_unlock(to);
    peer_unlock(from);
    bmi__peer_give(from);
}
