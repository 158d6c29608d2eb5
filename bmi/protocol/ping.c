/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ping.c - signs of life on request: by the liveness timer (token 0), and by bmi_ping.
 *
 * A ping is an operation. It completes when the PONG has come; its `actual` is the time that this
 * took, in nanoseconds. The peer's lock is held.
 */
#include "bmi/protocol/ping.h"

#include "bmi/base/clock.h"
#include "bmi/protocol/frames.h"
#include "bmi/protocol/op_end.h"
#include "bmi/state/op.h"

static void send_locked(struct peer *peer, struct op *op)
{
    struct wire_header header = {.type = WIRE_PING, .source = (uint64_t)bmi__op_id(op)};
    op->deadline_ns = bmi__instance_now_ns(op->instance);
    op->flags |= OP_STARTED;
    bmi__control_send_locked(peer, header, NULL, 0);
}

void bmi__ping_start_locked(struct peer *peer, struct op *op)
{
    if (peer->state == PEER_UP)
        send_locked(peer, op);
}

void bmi__pings_send_locked(struct peer *peer)
{
    for (struct op *op = peer->ops_first; op != NULL; op = op->peer_next)
        if (op->kind == OP_PING && op->stage != STAGE_NEXT && !(op->flags & OP_STARTED))
            send_locked(peer, op);
}

void bmi__pong_arrived_locked(struct peer *peer, uint64_t token)
{
    struct op *op = bmi__op_find((bmi_op_id_t)token);
    if (op != NULL && op->peer == peer && op->kind == OP_PING && (op->flags & OP_STARTED))
        bmi__op_complete_locked(op, 0,
                                (bmi_size_t)(bmi__instance_now_ns(op->instance) - op->deadline_ns));
}
