/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rendezvous.h - large messages: requests, announcements, DATA, put and get. The peer's lock is
 * held.
 */
#ifndef BMI_RENDEZVOUS_H
#define BMI_RENDEZVOUS_H

#include "bmi/state/peer.h"
#include "bmi/state/wire.h"

void bmi__rts_send_locked(struct peer *peer, struct op *op);
void bmi__stream_start_locked(struct peer *peer, struct op *op, uint64_t receive, bool announced,
                              const struct bmi_region *regions, uint32_t region_count);
/* The announced receive is too small for the message: both end. */
void bmi__too_large_send_locked(struct peer *peer, struct op *op, uint64_t receive);
void bmi__streams_pump_locked(struct peer *peer);
void bmi__receive_answer_locked(struct peer *peer, struct op *op, uint64_t sender, bmi_size_t size,
                                const struct bmi_region *regions, uint32_t region_count);
void bmi__announce_locked(struct peer *peer, struct tag_queue *queue, struct op *op,
                          uint32_t ahead);
/* The sender has forgotten the announcements of the tag, and lacks credit: only a new announcement
 * helps. */
void bmi__announce_again_locked(struct peer *peer, bmi_msg_tag_t tag);
void bmi__announce_waiting_locked(struct peer *peer); /* all that should be and are not */
void bmi__receive_settled_locked(struct op *op);      /* its message's start is known, or it ends */
int bmi__cts_arrived_locked(struct peer *peer, const struct wire_header *header,
                            const struct bmi_region *regions, uint32_t count);
int bmi__rtr_arrived_locked(struct peer *peer, const struct wire_header *header,
                            const struct bmi_region *regions, uint32_t count);
int bmi__rtr_cancel_arrived_locked(struct peer *peer, const struct wire_header *header);
int bmi__rtr_cancelled_arrived_locked(struct peer *peer, const struct wire_header *header);
int bmi__abort_arrived_locked(struct peer *peer, const struct wire_header *header);
int bmi__data_arrived_locked(struct peer *peer, const struct wire_header *header,
                             struct bmi_sink *sink);
int bmi__data_done_locked(struct peer *peer, struct bmi_sink *sink);
int bmi__put_done_arrived_locked(struct peer *peer, const struct wire_header *header);
int bmi__get_done_arrived_locked(struct peer *peer, const struct wire_header *header);
void bmi__transfer_done_locked(struct peer *peer, struct op *op, int status);

/* Ends an operation's registration, if it has one. */
void bmi__memory_release_locked(struct op *op);
/* The same if the method may refuse it. false: the peer is writing there now. */
bool bmi__memory_try_release_locked(struct op *op);
void bmi__memories_release_locked(struct peer *peer); /* all but memory under transfer */

#endif
