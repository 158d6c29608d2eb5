/* SPDX-License-Identifier: BSD-3-Clause
 *
 * greeting.h - how two processes come to share one link.
 *
 * Both ends of a link send a HELLO first, the dialler at once, the accepter in answer. What a HELLO
 * claims (listen addresses, incarnation) is a hint; the one fact is that a link which we dialled
 * reaches who we looked up. So when two processes dial each other, or one dials a process that it
 * has accepted a link from, the dialled side answers REDUNDANT with the nonce of the link to be
 * used instead: told over a link that we dialled, that proves whose the accepted link is, and the
 * looked-up address is joined to it. The nonce itself is a secret of who dials and who is dialled:
 * REDUNDANT tells its digest, which is believed of links from the host that was dialled, or that
 * claim to be it. Nothing but greetings was sent on either link by then. Who finds, as its dial is
 * answered, that the other has dialled as well waits for that word, if its incarnation is the
 * lesser one.
 * The book's lock is held throughout.
 */
#ifndef BMI_GREETING_H
#define BMI_GREETING_H

#include "bmi/peer.h"

/* Makes this process's incarnation. */
int bmi__greeting_start(void);

/* Starts connecting to the peer's address, from its present alternative on. With the peer's lock,
 * without the book's. Returns 0 or an errno: nothing was started. */
int bmi__dial_locked(struct peer *peer);

/* Driver; take the book's and the peer's lock. <0: end the link. */
int bmi__greeting_up(struct bmi_link *link);
int bmi__hello_arrived(struct bmi_link *link, bool reply, bool insist, const uint8_t *bytes,
                       size_t size);
int bmi__redundant_arrived(struct bmi_link *link, const uint8_t *bytes, size_t size);
/* Peers that waited for a dial of ours to be settled are answered. Book's lock held. */
void bmi__greeting_settle_held(void);
/* An accepted link has ended: dials that waited for word of it go on. Book's lock held. */
void bmi__greeting_settle_twins(void);

/* What people know a peer by: the address that it was looked up by, or its host and a number that
 * tells it from others there, while it is connected. Valid until the thread's next call, with the
 * peer's lock held. */
const char *bmi__peer_name(const struct peer *peer);

#endif
