/* SPDX-License-Identifier: BSD-3-Clause
 *
 * credit.h - how much memory a peer may use here by unmatched and unfetched messages.
 *
 * A message of n bytes is charged n + WIRE_MESSAGE_CHARGE against a window. Each peer has two:
 * eager (expected messages and requests to send) and unexpected. A window has a standing size,
 * which a new peer gets from the library's budget; it is larger while the budget is ample. When a
 * message is consumed, its charge is returned to the peer as long as the window is below its
 * standing size, else to the budget. The return is piggy-backed, or sent in a CREDIT frame. A peer
 * that lacks credit says so (WANT) and gets some in its turn. Announcements that a peer sends also
 * use memory here: they have a bound for each peer and a total bound, and count in the budget. All
 * functions need the peer's lock; the budget itself is atomic, and its queue has a lock.
 */
#ifndef BMI_CREDIT_H
#define BMI_CREDIT_H

#include "bmi/state/peer.h"
#include "bmi/state/wire.h"

struct bmi_instance;

/* Gives a new peer its windows. `granted` holds the bytes that the peer may send. */
void bmi__credit_open_locked(struct peer *peer, uint32_t unexpected_max);
/* Returns everything to the budget, except the charge of unexpected messages that the program holds
 * or has not fetched: each of those returns its own. */
void bmi__credit_forget_locked(struct peer *peer);
/* Frees the charge of a message whose peer has ended before. */
void bmi__credit_orphan_return(struct bmi_instance *instance, uint64_t bytes);

/* Charges a message that arrived. -EPROTO: more than was granted. */
int bmi__credit_charge_locked(struct peer *peer, bool unexpected, uint64_t bytes);
/* Returns the charge of a consumed message. */
void bmi__credit_return_locked(struct peer *peer, bool unexpected, uint64_t bytes);
/* The eager credit to put into a header now. */
uint32_t bmi__credit_report_locked(struct peer *peer);
/* Sends a CREDIT frame if enough credit has accumulated. */
void bmi__credit_tell_locked(struct peer *peer);
/* The peer wants credit, or gives some back (a WANT came). -EPROTO: more than it has. */
int bmi__credit_wanted_locked(struct peer *peer, const struct wire_header *want);

/* Charges an announcement that is to be kept. false: no room for it. */
bool bmi__announcement_charge_locked(struct peer *peer, uint32_t bytes);
void bmi__announcement_return_locked(struct peer *peer, uint32_t bytes);

/* As a sender: informs the peer that we lack credit (once, until some arrives), and how much we
 * need to continue. With a queue: also that we have forgotten its announcements (once, until a
 * message of the queue is sent). */
void bmi__credit_want_locked(struct peer *peer, uint8_t which, uint64_t bytes,
                             struct tag_queue *queue);
/* As a sender: credit that we requested has arrived and cannot be used. */
void bmi__credit_unused_locked(struct peer *peer, uint32_t bytes);

int bmi__credit_open(struct bmi_instance *instance);
void bmi__credit_close(struct bmi_instance *instance);
/* Bytes of the budget that are given out or held. */
int64_t bmi__credit_used(struct bmi_instance *instance);

#endif
