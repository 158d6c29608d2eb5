/* SPDX-License-Identifier: BSD-3-Clause
 *
 * failure.h - the end of links and peers, silence, and time-outs.
 */
#ifndef BMI_FAILURE_H
#define BMI_FAILURE_H

#include "bmi/state/peer.h"

struct bmi_instance;

/* What the liveness timer does (struct bmi__upcalls). Returns whether cancelled receives wait for
 * their senders' answers. */
bool bmi__liveness_expired(struct bmi_instance *instance);
/* Ends the peer's link after the queued frames are written and, if the network has an end of
 * stream, the other side has sent its own. Waits for that at most linger_ms. */
void bmi__peer_leave_locked(struct peer *peer);
/* Whether the peer's connection can be closed without harm, as far as its state says. Its lock. */
bool bmi__reapable(const struct peer *peer);
/* Closes connections idle for so many seconds. */
void bmi__reap_idle(struct bmi_instance *instance, int64_t seconds);
/* The setting for that was changed: starts the tick, which may be off because nothing needed it. */
void bmi__reap_wanted(struct bmi_instance *instance);
void bmi__failure_stop(struct bmi_instance *instance);
int bmi__reaper_open(struct bmi_instance *instance);
void bmi__reaper_close(struct bmi_instance *instance);

#endif
