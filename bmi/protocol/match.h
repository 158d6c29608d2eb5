/* SPDX-License-Identifier: BSD-3-Clause
 *
 * match.h - pairs arriving messages with receives. The peer's lock is held.
 */
#ifndef BMI_MATCH_H
#define BMI_MATCH_H

#include "bmi/state/peer.h"
#include "bmi/state/wire.h"

/* Starts a receive. Returns 0: it is queued or matched (never 1); <0: refused. A new receive that
 * is too small for the message that waits for it is refused (-EMSGSIZE). With `refuse` false (the
 * receive was posted before, and moves to another peer or link) it ends with that error instead,
 * and consumes the message. */
int bmi__receive_start_locked(struct peer *peer, struct op *op, bool refuse);
/* Takes a receive out of its tag queue. */
void bmi__receive_unqueue_locked(struct tag_queue *queue, struct op *op);
void bmi__receive_requeue_locked(struct peer *peer, struct op *op);
/* Handles an EAGER. `body`: the whole body if it has arrived already, else NULL. *sink may then
 * have length 0: nothing is left to do. */
int bmi__eager_arrived_locked(struct peer *peer, const struct wire_header *header,
                              const uint8_t *body, struct bmi_sink *sink);
int bmi__rts_arrived_locked(struct peer *peer, const struct wire_header *header,
                            const struct bmi_region *regions, uint32_t count);
/* Before more of an unmatched message's body arrives: redirects the sink to its receive, if that
 * was posted meanwhile. */
void bmi__message_place_locked(struct peer *peer, struct bmi_sink *sink);
int bmi__message_done_locked(struct peer *peer, struct bmi_sink *sink);
/* The waiting request (RTS) of the sender's operation `sender`; NULL: none. */
struct unmatched *bmi__request_find_locked(const struct tag_queue *queue, uint64_t sender);
void bmi__unmatched_remove_locked(struct peer *peer, struct tag_queue *queue,
                                  struct unmatched *message);

#endif
