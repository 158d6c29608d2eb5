/* SPDX-License-Identifier: BSD-3-Clause
 *
 * op_end.h - operations enter a peer, leave it, and complete. The peer's lock is held.
 */
#ifndef BMI_OP_END_H
#define BMI_OP_END_H

#include "bmi/state/peer.h"

void bmi__peer_adopt_locked(struct peer *peer, struct op *op);
/* Completes: detaches it and notifies its context (or the posting thread). `error` is a negated
 * errno. */
void bmi__op_complete_locked(struct op *op, int error, bmi_size_t actual);
/* Removes it from the list of its stage. */
void bmi__op_unqueue_locked(struct peer *peer, struct op *op);
/* Removes it from the peer, so that another peer can adopt it. */
void bmi__op_detach_locked(struct peer *peer, struct op *op);

#endif
