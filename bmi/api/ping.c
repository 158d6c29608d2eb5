/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ping.c - signs of life asked for: by the liveness tick (token 0), and by bmi_ping.
 *
 * A ping is an operation in a context of its own, whose completion says that the PONG came; its
 * `actual` is the time it took, in nanoseconds.
 */
#include <errno.h>

#include "bmi/api/api.h"
#include "bmi/base/error.h"
#include "bmi/connection/address.h"
#include "bmi/connection/handshake.h"
#include "bmi/progress/progress.h"
#include "bmi/state/context.h"
#include "bmi/state/peer.h"

static void send_locked(struct peer *peer, struct op *op)
{
    struct wire_header header = {.type = WIRE_PING, .source = (uint64_t)bmi__op_id(op)};
    op->deadline_ns = bmi__monotonic_ns();
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
        bmi__op_complete_locked(op, 0, (bmi_size_t)(bmi__monotonic_ns() - op->deadline_ns));
}

static int ping(BMI_addr_t addr, int timeout_ms, bmi_context_id context, double *round_trip_us)
{
    bmi_op_id_t id;
    bmi_size_t nanoseconds = 0;
    bmi_error_code_t error = 0;
    int count = 0;
    struct post post = {.kind = OP_PING, .address = addr, .context = context};
    int status = bmi__post(&post, &id);
    if (status < 0)
        return status;
    status = BMI_test(id, &count, &error, &nanoseconds, NULL, timeout_ms, context);
    if (status >= 0 && count == 0) {
        BMI_cancel(id, context);
        while (status >= 0 && count == 0)
            status = BMI_test(id, &count, &error, &nanoseconds, NULL, 1000, context);
        if (error == -BMI_ECANCEL)
            error = -BMI_ETIMEDOUT;
    }
    *round_trip_us = (double)nanoseconds / 1000;
    return status < 0 ? status : error;
}

int bmi_ping(BMI_addr_t addr, int timeout_ms, double *round_trip_us)
{
    bmi_context_id context;
    if (timeout_ms <= 0 || round_trip_us == NULL)
        return -BMI_EINVAL;
    int status = BMI_open_context(&context);
    if (status < 0)
        return status;
    bmi__context_hide(bmi__context_find(context));
    status = ping(addr, timeout_ms, context, round_trip_us);
    BMI_close_context(context);
    return status;
}
