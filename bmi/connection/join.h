/* SPDX-License-Identifier: BSD-3-Clause
 *
 * join.h - restarts posted operations over the link of another peer, or over the peer's next link.
 */
#ifndef BMI_JOIN_H
#define BMI_JOIN_H

#include "bmi/state/peer.h"

/* Locks two peers in the order of their addresses. */
void bmi__peers_lock(struct peer *one, struct peer *other);
/* Detaches the peer's link; the peer goes on. */
void bmi__link_forget_locked(struct peer *peer);
/* Moves the operations posted to `from` (looked up, not up) to the link of `to`, which is the same
 * process. `from` no longer exists afterwards. Book's lock held. */
void bmi__join(struct peer *from, struct peer *to);

/* Starts an operation that belongs to no peer, or again: on the peer's connection, or the next one
 * if that is being closed. A receive that is too small for the message that waits ends with
 * EMSGSIZE and consumes the message. */
void bmi__op_begin_locked(struct peer *peer, struct op *op);

/* Whether anything was posted while the peer's link was being closed. */
bool bmi__next_waits_locked(const struct peer *peer);
/* The peer's link is gone: dials again for the operations posted while it was being closed. */
void bmi__dial_next_locked(struct peer *peer);
/* The dial for them was started, or failed with this error. */
void bmi__next_start_locked(struct peer *peer, int status);

#endif
