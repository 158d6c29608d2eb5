/* SPDX-License-Identifier: BSD-3-Clause
 *
 * matching.h - finds peers by data of their handshake, in constant time.
 *
 * A peer is found by one key at a time, which depends on its state. A result is a candidate: it may
 * have changed, or merely share a hash, so the caller locks the peer and checks it.
 */
#ifndef BMI_MATCHING_H
#define BMI_MATCHING_H

#include "bmi/state/peer.h"

struct bmi_instance;

enum matching {
    MATCHING_NAME = 1,    /* a dialled peer, once its HELLO was sent: by the name of its link */
    MATCHING_INCARNATION, /* an accepted peer that is UP: by its incarnation */
};

/* From now on, the peer is found by these bytes only. Its lock is held. Without memory it is not
 * found: then two processes may have two connections. */
void bmi__matching_set_locked(struct peer *peer, enum matching kind, const void *bytes,
                              size_t size);
/* From now on, the peer is not found. */
void bmi__matching_clear_locked(struct peer *peer);
/* Fills in at most `most` candidates; returns their number. The caller may hold any lock but that
 * of a candidate. */
unsigned bmi__matching_find(struct bmi_instance *instance, enum matching kind, const void *bytes,
                            size_t size, struct peer **found, unsigned most);
int bmi__matching_open(struct bmi_instance *instance);
void bmi__matching_close(struct bmi_instance *instance);

#endif
