/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ping.h - signs of life on request. The peer's lock is held.
 */
#ifndef BMI_PING_H
#define BMI_PING_H

#include "bmi/state/peer.h"

void bmi__pings_send_locked(struct peer *peer); /* pings that waited for the link */
void bmi__ping_start_locked(struct peer *peer, struct op *op);
void bmi__pong_arrived_locked(struct peer *peer, uint64_t token);

#endif
