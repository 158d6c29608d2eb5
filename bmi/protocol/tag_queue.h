/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tag_queue.h - a peer's tags in progress, and its ring of sent messages. The peer's lock is held.
 */
#ifndef BMI_TAG_QUEUE_H
#define BMI_TAG_QUEUE_H

#include "bmi/state/peer.h"

struct tag_queue *bmi__tag_queue_find_locked(struct peer *peer, wire_tag tag);
void bmi__announcement_insert_locked(struct peer *peer, struct tag_queue *queue,
                                     struct announcement *one);
/* Takes the announcement at *place out of the queue and frees it. */
void bmi__announcement_drop_locked(struct peer *peer, struct tag_queue *queue,
                                   struct announcement **place);
struct tag_queue *bmi__tag_queue_get_locked(struct peer *peer,
                                            wire_tag tag); /* makes it; NULL: memory */
void bmi__tag_queue_release_locked(struct peer *peer,
                                   struct tag_queue *queue); /* frees it if nothing is left */
void bmi__tag_queues_free_locked(struct peer *peer);
/* Records that a message, or an abort, of the queue is sent. false: no memory. */
bool bmi__sent_note_locked(struct peer *peer, struct tag_queue *queue, bool abort, uint32_t *index);
/* Whether so many messages are recorded that none may start until the peer reports which it has
 * seen. If so, sends the peer a PING for that. A peer that answers falsely loses its link. */
bool bmi__sent_full_locked(struct peer *peer);
/* Whether the ring was full and has room again, so that waiting messages may start. Returns true
 * once. */
bool bmi__sent_room_locked(struct peer *peer);
/* Handles a PONG. -EPROTO: it answers that PING and does not report enough messages. */
int bmi__sent_told_locked(struct peer *peer, uint64_t token);
/* A recorded message was withdrawn: a VOID takes its place. */
void bmi__sent_withdraw_locked(struct peer *peer, uint32_t index);
/* Unsettles the queue: its announcements, kept or under way, may match other messages by now. Drops
 * the kept ones (docs/wire-protocol.md). */
void bmi__tag_queue_unsettle_locked(struct peer *peer, struct tag_queue *queue);
/* Whether an announcement that carries this `seen` can be used. */
bool bmi__tag_queue_settled_locked(const struct peer *peer, const struct tag_queue *queue,
                                   uint32_t seen);
/* The peer reports how many messages it has seen. -EPROTO: more than were sent. */
int bmi__sent_seen_locked(struct peer *peer, uint32_t seen);

#endif
