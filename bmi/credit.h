/* SPDX-License-Identifier: BSD-3-Clause
 *
 * credit.h - how much unmatched and unfetched messages a peer may cause us to hold.
 *
 * A message of n bytes is charged n + WIRE_MESSAGE_CHARGE against a window. Each peer has two:
 * eager (expected messages and requests to send) and unexpected. A window stands at a size that a
 * new peer is given from the library's budget, larger while the budget is ample; what a consumed
 * message was charged is given back to the peer, piggy-backed or by a CREDIT frame, as long as the
 * window is below its standing, else to the budget. A peer that lacks credit says so (WANT) and
 * gets some in its turn. Announcements that a peer sends are memory of ours, too: they have a bound
 * of their own for each peer and in all, and count in the budget. With the peer's lock held; the
 * budget itself is atomic, its queue has a lock.
 */
#ifndef BMI_CREDIT_H
#define BMI_CREDIT_H

#include "bmi/peer.h"

/* Gives a new peer its windows; what it may send is in granted. */
void bmi__credit_open_locked(struct peer *peer, uint32_t unexpected_max);
/* Returns everything to the budget but what unexpected messages hold that the program has, or has
 * not fetched: each returns its own. */
void bmi__credit_forget_locked(struct peer *peer);
/* A message that was charged is freed whose peer has ended before. */
void bmi__credit_orphan_return(uint64_t bytes);

/* A message came. -EPROTO: more than was granted. */
int bmi__credit_charge_locked(struct peer *peer, bool unexpected, uint64_t bytes);
/* A message that was charged is gone. */
void bmi__credit_return_locked(struct peer *peer, bool unexpected, uint64_t bytes);
/* The eager credit to tell the peer in a header now. */
uint32_t bmi__credit_report_locked(struct peer *peer);
/* Sends a CREDIT frame if enough has come together. */
void bmi__credit_tell_locked(struct peer *peer);
/* The peer wants credit, or gives some back (a WANT came). -EPROTO: more than it has. */
int bmi__credit_wanted_locked(struct peer *peer, const struct wire_header *want);

/* An announcement is to be kept. false: there is no room for it. */
bool bmi__announcement_charge_locked(struct peer *peer, uint32_t bytes);
void bmi__announcement_return_locked(struct peer *peer, uint32_t bytes);

/* As a sender: tells the peer that we lack credit (once, until some comes), and how much would get
 * us on. With a key: also that its announcements are not known any more (once, until a message of
 * it goes). */
void bmi__credit_want_locked(struct peer *peer, uint8_t which, uint64_t bytes, struct key *key);
/* As a sender: credit that we had asked for came, and is of no use. */
void bmi__credit_unused_locked(struct peer *peer, uint32_t bytes);

void bmi__credit_stop(void);
/* Bytes of the budget that are given out or held. */
int64_t bmi__credit_used(void);

#endif
