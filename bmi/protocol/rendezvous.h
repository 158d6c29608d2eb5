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
/* Sends the notice that the announced receive is too small for the message: both operations end. */
void bmi__too_large_send_locked(struct peer *peer, struct op *op, uint64_t receive);
void bmi__streams_pump_locked(struct peer *peer);
void bmi__receive_answer_locked(struct peer *peer, struct op *op, uint64_t sender, bmi_size_t size,
                                const struct bmi_region *regions, uint32_t region_count);
void bmi__announce_locked(struct peer *peer, struct tag_queue *queue, struct op *op,
                          uint32_t ahead);
/* The sender has forgotten the announcements of the tag, and lacks credit: only a new announcement
 * helps. */
void bmi__announce_again_locked(struct peer *peer, wire_tag tag);
/* Announces all receives that should be announced and are not. */
void bmi__announce_waiting_locked(struct peer *peer);
/* The start of the receive's message has arrived, or the receive ends: it no longer counts in
 * large_expected. */
void bmi__receive_settled_locked(struct op *op);
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

/* Ends the registration of an operation's memory, if there is one. */
void bmi__memory_release_locked(struct op *op);
/* The same without waiting. false: the peer is writing there now. */
bool bmi__memory_try_release_locked(struct op *op);
/* Releases the memory of all operations, except that of transfers under way. */
void bmi__memories_release_locked(struct peer *peer);

#endif
