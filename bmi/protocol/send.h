/* SPDX-License-Identifier: BSD-3-Clause
 *
 * send.h - how a message sets out. The peer's lock is held.
 */
#ifndef BMI_SEND_H
#define BMI_SEND_H

#include "bmi/state/peer.h"

/* Start an operation that was posted, or that comes from another peer or link. */
void bmi__send_start_locked(struct peer *peer, struct op *op);
void bmi__unexpected_start_locked(struct peer *peer, struct op *op);
/* Sends a small message if it can go at once: it is complete then, and needs no operation. false:
 * nothing was done; start an operation. */
bool bmi__send_now_locked(struct peer *peer, wire_tag tag, const void *buffer, bmi_size_t size);
/* Starts waiting messages, after the link is up or credit has arrived. */
void bmi__pending_pump_locked(struct peer *peer);
/* A CREDIT allows eager messages of up to `most` bytes. */
void bmi__large_told_locked(struct peer *peer, uint64_t most);
/* The first waiting unexpected message was cancelled: requests the credit that the next ones need.
 */
void bmi__unexpected_want_anew_locked(struct peer *peer);
void bmi__tag_queue_pump_locked(struct peer *peer, struct tag_queue *queue);
void bmi__tag_queues_pump_locked(struct peer *peer); /* the ring has room again */
void bmi__pending_remove_locked(struct peer *peer, struct op *op);
void bmi__send_frame_done_locked(struct peer *peer, struct op *op, int status);

#endif
