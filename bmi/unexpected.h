/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unexpected.h - messages that nobody posted a receive for, until the program frees them.
 *
 * The queue of whole messages is guarded by its own lock, innermost but for progress's. A buffer
 * that the program has stands behind a struct unexpected; it counts against its sender's window
 * until it is freed.
 */
#ifndef BMI_UNEXPECTED_H
#define BMI_UNEXPECTED_H

#include "bmi/peer.h"

/* Takes up to `most` messages. */
int bmi__unexpected_take(struct BMI_unexpected_info *info, int most);
/* Gives one back that was taken and that the program has not seen: it is the next to be taken. */
void bmi__unexpected_untake(void *buffer);
/* Called after each message that can be taken, by whoever took it in, with any lock held: it may
 * submit a task or notify. There is one; it stays. */
void bmi__unexpected_set_hook(void (*hook)(void));
/* -EINVAL: no buffer of ours. */
int bmi__unexpected_release(void *buffer);
/* Messages of an address that wait. */
int bmi__unexpected_count(BMI_addr_t address);
/* A peer has PEER_FULL_UNEXPECTED from now on: as long as it has, the program is warned once a
 * second. Driver. */
void bmi__unexpected_stalled(void);
void bmi__unexpected_stop(void);

#endif
