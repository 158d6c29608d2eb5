/* SPDX-License-Identifier: BSD-3-Clause
 *
 * failure.h - the end of links and peers, silence, and time-outs.
 *
 * A tick runs while any peer has operations, is being dialled, or has not completed the handshake
 * ("attention"), and always if idle connections are to be closed (`idle_reap_s`). Ticks count only
 * while a thread polls, so a program that computes for a minute does not find its peers dead when
 * it comes back.
 */
#ifndef BMI_FAILURE_H
#define BMI_FAILURE_H

#include "bmi/state/peer.h"

enum { BMI__TICKS_DEAD = 8 }; /* a peer that is silent for so many is given up */

/* Notes whether the tick must look at the peer. Call it after the peer's state changed, and when
 * the peer gets its first operation. The tick itself notices that the peer has no operations left.
 */
void bmi__attention_locked(struct peer *peer);
/* Ends the peer's link (reason NULL: on request). Its operations complete with the error once the
 * link is down. */
void bmi__peer_fail_locked(struct peer *peer, int error, const char *reason);
/* The same after the queued frames are written and, if the network has an end of stream, the other
 * side has sent its own. Waits for that at most linger_ms. */
void bmi__peer_leave_locked(struct peer *peer);
/* A cancelled receive waits for its sender's answer: the next tick comes sooner. */
void bmi__grace_begins(void);
/* Whether the peer's connection can be closed without harm, as far as its state says. Its lock. */
bool bmi__reapable(const struct peer *peer);
/* Closes connections idle for so many seconds. */
void bmi__reap_idle(int64_t seconds);
/* The setting for that was changed: starts the tick, which may be off because nothing needed it. */
void bmi__reap_wanted(void);
void bmi__failure_stop(void);

/* rendezvous.c: ends an operation's registration, if it has one. */
void bmi__memory_release_locked(struct op *op);
/* The same if the method may refuse it. false: the peer is writing there now. */
bool bmi__memory_try_release_locked(struct op *op);
void bmi__memories_release_locked(struct peer *peer); /* all but memory under transfer */

#endif
