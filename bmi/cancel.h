/* SPDX-License-Identifier: BSD-3-Clause
 * cancel.h - taking operations back. */
#ifndef BMI_CANCEL_H
#define BMI_CANCEL_H

#include "bmi/peer.h"

/* See BMI_cancel. */
int bmi__cancel(struct op *op, bmi_op_id_t id);
/* A stream of which no frame is with the method ends here, after `moved` bytes: the receiver is
 * told. */
void bmi__stream_cancel_locked(struct peer *peer, struct op *op, bmi_size_t moved);
/* The receiver answers a cancelled send whose memory it could have fetched: it has not. */
void bmi__cancelled_granted_locked(struct peer *peer, struct op *op, bool discard);
/* An RTR_CANCELLED has come: more of those that wait may be sent. */
void bmi__question_answered_locked(struct peer *peer);
/* Receives whose sender did not answer in time end now. Returns whether others still wait. */
bool bmi__cancel_graces_locked(struct peer *peer, uint64_t now);

#endif
