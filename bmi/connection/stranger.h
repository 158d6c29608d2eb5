/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stranger.h - the other end of a connection does not speak BMI: logs which protocol it seems to
 * use.
 */
#ifndef BMI_STRANGER_H
#define BMI_STRANGER_H

#include "bmi/state/peer.h"

/* Logs which protocol a peer seems to use whose first bytes are no frame, else those bytes. Peer's
 * lock. */
void bmi__stranger_log_locked(const struct peer *peer, const uint8_t *bytes, size_t have);

#endif
