/* SPDX-License-Identifier: BSD-3-Clause
 *
 * match.h - pairs arriving messages with receives. The peer's lock is held.
 */
#ifndef BMI_MATCH_H
#define BMI_MATCH_H

#include "bmi/state/peer.h"
#include "bmi/state/wire.h"

/* Returns 0: queued or matched; 1 never; <0: refused. One that is too small for a message that
 * waits is refused (-EMSGSIZE) when it is posted; one that was posted before (refuse false: it
 * comes from another peer, or link) ends with that error and consumes the message. */
int bmi__receive_start_locked(struct peer *peer, struct op *op, bool refuse);
/* Takes a receive out of its tag queue. */
void bmi__receive_unqueue_locked(struct tag_queue *queue, struct op *op);
void bmi__receive_requeue_locked(struct peer *peer, struct op *op);
/* `body`: all of it, where it is there already; then *sink may have length 0: nothing is left to
 * do. */
int bmi__eager_arrived_locked(struct peer *peer, const struct wire_header *header,
                              const uint8_t *body, struct bmi_sink *sink);
int bmi__rts_arrived_locked(struct peer *peer, const struct wire_header *header,
                            const struct bmi_region *regions, uint32_t count);
/* The body of a message without a receive goes on arriving: to its receive, if that is there now.
 */
void bmi__message_place_locked(struct peer *peer, struct bmi_sink *sink);
int bmi__message_done_locked(struct peer *peer, struct bmi_sink *sink);
/* The request of that sender's operation that waits under the queue; NULL: none. */
struct unmatched *bmi__request_find_locked(const struct tag_queue *queue, uint64_t sender);
void bmi__unmatched_remove_locked(struct peer *peer, struct tag_queue *queue,
                                  struct unmatched *message);

#endif
