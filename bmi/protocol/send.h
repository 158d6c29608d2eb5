/* SPDX-License-Identifier: BSD-3-Clause
 *
 * send.h - how a message sets out. The peer's lock is held.
 */
#ifndef BMI_SEND_H
#define BMI_SEND_H

#include "bmi/state/peer.h"

/* An operation of the caller's enters. */
void bmi__send_start_locked(struct peer *peer, struct op *op);
void bmi__unexpected_start_locked(struct peer *peer, struct op *op);
/* Sends a small message that can go at once and is complete with that, so it needs no operation.
 * false: nothing was done, start an operation. */
bool bmi__send_now_locked(struct peer *peer, bmi_msg_tag_t tag, const void *buffer,
                          bmi_size_t size);
void bmi__pending_pump_locked(struct peer *peer); /* link up, or credit came */
/* A CREDIT says how large an eager message may be. */
void bmi__large_told_locked(struct peer *peer, uint64_t most);
/* The first unexpected message that waited was cancelled: asks for what the others need. */
void bmi__unexpected_want_anew_locked(struct peer *peer);
void bmi__tag_queue_pump_locked(struct peer *peer, struct tag_queue *queue);
void bmi__tag_queues_pump_locked(struct peer *peer); /* the ring has room again */
void bmi__pending_remove_locked(struct peer *peer, struct op *op);
void bmi__send_frame_done_locked(struct peer *peer, struct op *op, int status);

#endif
