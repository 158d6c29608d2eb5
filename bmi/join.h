/* SPDX-License-Identifier: BSD-3-Clause
 *
 * join.h - what was posted to a peer starts anew: over the link of another peer, or over its next
 * one.
 */
#ifndef BMI_JOIN_H
#define BMI_JOIN_H

#include "bmi/peer.h"

/* Locks two peers, in the order in which that is done. */
void bmi__peers_lock(struct peer *one, struct peer *other);
/* Lets go of the peer's link without an end of the peer. */
void bmi__link_forget_locked(struct peer *peer);
/* What was posted to `from` (looked up, not up) goes over the link of `to`, which is its process.
 * `from` is no more. Book's lock held. */
void bmi__join(struct peer *from, struct peer *to);

/* Whether anything was posted while the peer's link was being closed. */
bool bmi__next_waits_locked(const struct peer *peer);
/* The peer's link is gone: dials again for what was posted while it was being closed. */
void bmi__dial_next_locked(struct peer *peer);
/* A dial was made for it, or with what error it was not. */
void bmi__next_start_locked(struct peer *peer, int status);

#endif
