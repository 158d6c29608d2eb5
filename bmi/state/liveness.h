/* SPDX-License-Identifier: BSD-3-Clause
 *
 * liveness.h - which peers the liveness timer must look at, and the requested end of a link.
 *
 * The timer runs while any peer has operations, is being dialled, or has not completed the
 * handshake ("attention"), and always if idle connections are to be closed (`idle_reap_s`). Its
 * ticks count only while a thread polls, so a program that computes for a minute does not find its
 * peers dead when it comes back. connection/failure.c looks at the peers.
 */
#ifndef BMI_LIVENESS_H
#define BMI_LIVENESS_H

#include "bmi/state/peer.h"

struct bmi_instance;

enum { BMI__TICKS_DEAD = 8 }; /* a peer that is silent for so many ticks is given up */

/* Notes whether the timer must look at the peer. Call it after the peer's state changed, and when
 * the peer gets its first operation. The tick itself notices that the peer has no operations left.
 */
void bmi__attention_locked(struct peer *peer);
/* A cancelled receive waits for its sender's answer: the next tick comes sooner. */
void bmi__grace_begins(struct bmi_instance *instance);
/* Starts the timer if it does not run. */
void bmi__liveness_arm(struct bmi_instance *instance);
/* Stops it, at the end. */
void bmi__liveness_stop(struct bmi_instance *instance);
int bmi__liveness_open(struct bmi_instance *instance);
void bmi__liveness_close(struct bmi_instance *instance);

/* Ends the peer's link (reason NULL: on request). Its operations complete with the error once the
 * link is down. */
void bmi__peer_fail_locked(struct peer *peer, int error, const char *reason);

/* Whether the close of the peer's link was requested, and the link is not down yet. */
static inline bool bmi__peer_closing(const struct peer *peer)
{
    return (peer->flags & PEER_CLOSING) && peer->link != NULL;
}

#endif
