/* SPDX-License-Identifier: BSD-3-Clause
 * cancel.h - taking operations back. */
#ifndef BMI_CANCEL_H
#define BMI_CANCEL_H

#include "bmi/state/peer.h"

/* See BMI_cancel. */
int bmi__cancel(struct op *op, bmi_op_id_t id);
/* Cancels a receive whose message is sure to come, or has come: that message is discarded, and does
 * not wait for another receive. Another operation is cancelled. */
void bmi__discard(struct op *op, bmi_op_id_t id);
/* The peer has withdrawn a message of the tag, whose receive was discarded: the tombstone that
 * waits for it goes, the last one or the first. */
void bmi__tombstone_remove_locked(struct peer *peer, wire_tag tag, bool last);
/* Ends a stream of which no frame is with the method, after `moved` bytes, and informs the
 * receiver. */
void bmi__stream_cancel_locked(struct peer *peer, struct op *op, bmi_size_t moved);
/* The receiver answers a cancelled send whose memory it could have fetched, and has not fetched it.
 */
void bmi__cancelled_answered_locked(struct peer *peer, struct op *op, bool discard);
/* An RTR_CANCELLED has arrived: more of the waiting questions may be sent. */
void bmi__question_answered_locked(struct peer *peer);
/* Ends the receives whose sender did not answer in time. Returns whether others still wait. */
bool bmi__cancel_graces_locked(struct peer *peer, uint64_t now);

#endif
