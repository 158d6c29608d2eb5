/* SPDX-License-Identifier: BSD-3-Clause
 *
 * handshake.h - the handshake of a link, and how two processes come to use one link.
 *
 * The dialler sends HELLO, the accepter answers; no frame goes before. One fact is certain: a link
 * that we dialled reaches the process that was looked up. On a link that we accepted, the other
 * process states its identity, which is only a hint. So if the answer to our dial carries an
 * incarnation that accepted links have named too, the dialler asks, over its own link, whether one
 * of those belongs to the other side (JOIN). The question and its answer prove that both sides hold
 * both ends of both links. If so, the posted operations move to the accepted link, and the dialled
 * one is closed; otherwise the dialled one is used. docs/wire-protocol.md says why a process in
 * between cannot forge that. A wrong hint costs one exchange with the dialled process, and no
 * waiting. The book's lock is held throughout.
 */
#ifndef BMI_HANDSHAKE_H
#define BMI_HANDSHAKE_H

#include "bmi/state/peer.h"

struct bmi_instance;

/* Makes this process's incarnation. */
int bmi__handshake_start(struct bmi_instance *instance);

/* Starts connecting to the peer's address, from its present alternative on. With the peer's lock,
 * without the book's. Returns 0 or an errno: nothing was started. */
int bmi__dial_locked(struct peer *peer);

/* Run by the poller; take the book's and the peer's lock. <0: end the link. */
int bmi__handshake_up(struct bmi_link *link);
int bmi__hello_arrived(struct bmi_link *link, bool reply, const uint8_t *bytes, size_t size);
int bmi__join_arrived(struct bmi_link *link, bool reply, const uint8_t *bytes, size_t size);

#endif
