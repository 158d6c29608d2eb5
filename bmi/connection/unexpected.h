/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unexpected.h - messages without a posted receive, until the program frees them.
 *
 * The queue of whole messages is guarded by its own lock, innermost but for progress's. Each buffer
 * that the program holds belongs to a struct unexpected; it counts against its sender's window
 * until it is freed.
 */
#ifndef BMI_UNEXPECTED_H
#define BMI_UNEXPECTED_H

#include "bmi/state/peer.h"
#include "bmi/state/wire.h"

struct bmi_instance;

/* Hands up to `most` waiting messages to the program. Returns their number. */
int bmi__unexpected_take(struct bmi_instance *instance, struct BMI_unexpected_info *info, int most);
/* Gives a taken message back that the program has not seen: it is the next to be taken. */
void bmi__unexpected_untake(struct bmi_instance *instance, void *buffer);
/* The thread that received a message calls the hook when the message can be taken. Any lock may be
 * held: the hook may submit a task or notify. There is one hook; it stays. */
void bmi__unexpected_set_hook(struct bmi_instance *instance,
                              void (*hook)(struct bmi_instance *instance));
/* The buffer's instance may have ended. -EINVAL: no buffer of ours. */
int bmi__unexpected_release(void *buffer);
/* The number of waiting messages of an address. */
int bmi__unexpected_count(struct bmi_instance *instance, BMI_addr_t address);
/* Call it when PEER_FULL_UNEXPECTED was set for a peer. While any peer has this flag, the log warns
 * once a second. Poller. */
void bmi__unexpected_stalled(struct bmi_instance *instance);
int bmi__unexpected_arrived_locked(struct peer *peer, const struct wire_header *header,
                                   struct bmi_sink *sink);
void bmi__unexpected_done_locked(struct peer *peer, struct bmi_sink *sink);
/* Frees a message whose link ended before it was whole. Hold no lock but the book's. */
void bmi__unexpected_lost(void *message);
/* Frees the buffer of a partial body when the link ended. Poller; no lock but the book's.
 */
void bmi__arriving_free(struct bmi_link *link);
int bmi__unexpected_open(struct bmi_instance *instance);
void bmi__unexpected_close(struct bmi_instance *instance);

#endif
