/* SPDX-License-Identifier: BSD-3-Clause
 *
 * meeting.h - finds peers by what a handshake says of them, however many there are.
 *
 * A peer can be found by one thing at a time, which depends on its state. What is found is a
 * candidate: it may have changed, or merely share a hash, so its finder locks it and looks.
 */
#ifndef BMI_MEETING_H
#define BMI_MEETING_H

#include "bmi/peer.h"

enum meeting {
    MEETING_NAME = 1,    /* dialled, once a HELLO has gone: by the name of its link */
    MEETING_INCARNATION, /* accepted, UP */
};

/* Has the peer found by these bytes from now on, and by nothing else. Its lock is held. Without
 * memory it is not found: then two processes may have two connections. */
void bmi__meeting_set_locked(struct peer *peer, enum meeting kind, const void *bytes, size_t size);
/* Has it found by nothing. */
void bmi__meeting_clear_locked(struct peer *peer);
/* Fills in at most `most` candidates; returns their number. Any lock but a peer's of them. */
unsigned bmi__meeting_find(enum meeting kind, const void *bytes, size_t size, struct peer **found,
                           unsigned most);
void bmi__meeting_stop(void);

#endif
