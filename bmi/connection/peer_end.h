/* SPDX-License-Identifier: BSD-3-Clause
 *
 * peer_end.h - the end of a peer.
 */
#ifndef BMI_PEER_END_H
#define BMI_PEER_END_H

#include "bmi/state/peer.h"

/* Frees the peer's memory and returns it to the slab; adds its counters to the library's. The
 * caller holds the book's lock, and no other thread can reach the peer any more. */
void bmi__peer_give(struct peer *peer);
/* Gives back a peer that is GONE and has no operations any more; takes the book's lock. */
void bmi__peer_bury(struct peer *peer);
/* Completes all operations with `error`, and frees the peer's other state: queues, unmatched
 * messages, counts. Operations that the method still has complete when it gives them back. */
void bmi__peer_abandon_locked(struct peer *peer, int error);

#endif
