/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stranger.h - the other end of a connection does not speak BMI: says what it seems to be.
 */
#ifndef BMI_STRANGER_H
#define BMI_STRANGER_H

#include "bmi/peer.h"

/* Logs what a peer whose first bytes are no frame seems to be, else those bytes. Peer's lock. */
void bmi__stranger_log_locked(const struct peer *peer, const uint8_t *bytes, size_t have);

#endif
