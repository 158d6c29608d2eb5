/* SPDX-License-Identifier: BSD-3-Clause
 *
 * library.h - what every layer may ask of an instance as a whole, and the calls that lower layers
 * make to higher ones.
 */
#ifndef BMI_LIBRARY_H
#define BMI_LIBRARY_H

#include <stdbool.h>
#include <stdint.h>

#include "bmi.h"

struct bmi_instance;
struct op;
struct peer;

/* Functions of higher layers that lower ones call. Of an instance (`upcalls`), set before it
 * starts. The poller calls them, without a lock unless a comment states one. */
struct bmi__upcalls {
    /* The liveness timer has expired: looks at the peers that need attention. Returns whether
     * cancelled receives wait for their senders' answers. */
    bool (*liveness_expired)(struct bmi_instance *instance);
    /* With a peer's lock held: it lacks credit since the program holds its messages. */
    void (*unexpected_stalled)(struct bmi_instance *instance);
    /* With the peer's lock held: an exchange (OP_EXCHANGE) begins, on a connection or before there
     * is one; it must end, with this error (an errno): it was cancelled, or the link has ended. */
    void (*exchange_start_locked)(struct peer *peer, struct op *op);
    void (*exchange_end_locked)(struct op *op, int error);
    /* With the peer's lock held: an unexpected message of SPACE_REQUEST. Returns whether the buffer
     * is the callee's, until BMI_unexpected_free. */
    bool (*request_arrived_locked)(struct peer *peer, int32_t number, void *buffer,
                                   bmi_size_t size);
    /* With the peer's lock held: a CANCEL of a request, or of a reply, with these flags. */
    void (*request_cancelled_locked)(struct peer *peer, int32_t number, uint8_t flags);
    void (*reply_withdrawn_locked)(struct peer *peer, int32_t number, uint8_t flags);
};

/* Between its opening, or first initialize, and its closing, or last finalize. */
bool bmi__running(const struct bmi_instance *instance);
void bmi__running_set(struct bmi_instance *instance, bool running);
/* Initialized with BMI_AUTO_REF_COUNT. */
bool bmi__auto_references(struct bmi_instance *instance);
void bmi__auto_references_set(struct bmi_instance *instance, bool on);

/* Whether an unexpected message waits to be fetched. Any thread, any lock. */
bool bmi__unexpected_waiting(struct bmi_instance *instance);
/* Adds to the number of those messages. */
void bmi__unexpected_waiting_add(struct bmi_instance *instance, int change);
/* No message waits any more: the instance ends. */
void bmi__unexpected_waiting_reset(struct bmi_instance *instance);

#endif
