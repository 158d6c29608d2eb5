/* SPDX-License-Identifier: BSD-3-Clause
 *
 * failure.h - the end of links and peers, silence, and time-outs.
 */
#ifndef BMI_FAILURE_H
#define BMI_FAILURE_H

#include "bmi/state/peer.h"

/* What the liveness timer does (struct bmi__upcalls). Returns whether cancelled receives wait for
 * their senders' answers. */
bool bmi__liveness_expired(void);
/* Ends the peer's link after the queued frames are written and, if the network has an end of
 * stream, the other side has sent its own. Waits for that at most linger_ms. */
void bmi__peer_leave_locked(struct peer *peer);
/* Whether the peer's connection can be closed without harm, as far as its state says. Its lock. */
bool bmi__reapable(const struct peer *peer);
/* Closes connections idle for so many seconds. */
void bmi__reap_idle(int64_t seconds);
/* The setting for that was changed: starts the tick, which may be off because nothing needed it. */
void bmi__reap_wanted(void);
void bmi__failure_stop(void);

#endif
