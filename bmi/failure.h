/* SPDX-License-Identifier: BSD-3-Clause
 *
 * failure.h - the end of links and peers, silence, and time-outs.
 *
 * A tick runs while any peer has operations, is being dialled, or has not greeted ("attention"),
 * and always if idle connections are to be closed (`idle_reap_s`).
 * Ticks count only when somebody drives, so a program that computes for a minute does not find its
 * peers dead when it comes back.
 */
#ifndef BMI_FAILURE_H
#define BMI_FAILURE_H

#include "bmi/peer.h"

enum { BMI__TICKS_DEAD = 8 }; /* a peer that is silent for so many is given up */

/* Notes whether the tick has to look at the peer: after its state changed, and when it gets its
 * first operation. That it has none any more the tick sees itself. */
void bmi__attention_locked(struct peer *peer);
/* Ends the peer's link (reason NULL: as asked); its operations complete with the error once the
 * link is down. */
void bmi__peer_fail_locked(struct peer *peer, int error, const char *reason);
/* The same when what is queued has been written, and the other side has said goodbye where the
 * network has that: within linger_ms. */
void bmi__peer_leave_locked(struct peer *peer);
/* A cancelled receive waits for its sender's word: the tick is to come sooner. */
void bmi__grace_begins(void);
/* Closes connections idle for so many seconds. */
void bmi__reap_idle(int64_t seconds);
/* The setting that has the tick do so was changed: it may be off, as nothing wanted it. */
void bmi__reap_wanted(void);
void bmi__failure_stop(void);

/* rendezvous.c: ends an operation's registration, if it has one. */
void bmi__memory_release_locked(struct op *op);
/* The same where it may be refused: false, the peer is in the midst of writing there. */
bool bmi__memory_try_release_locked(struct op *op);
void bmi__memories_release_locked(struct peer *peer); /* all but what is being transferred */

#endif
