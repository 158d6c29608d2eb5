/* SPDX-License-Identifier: BSD-3-Clause
 *
 * frames.h - makes and queues frames. The peer's lock is held.
 */
#ifndef BMI_FRAMES_H
#define BMI_FRAMES_H

#include "bmi/state/peer.h"
#include "bmi/state/wire.h"

struct bmi_instance;

/* Queues a frame without a body of the operation's own: copied, any size up to a few KB.
 * Piggy-backs credit. `header.length` is set to `size`. false: no memory (the peer is failed then).
 */
bool bmi__control_send_locked(struct peer *peer, struct wire_header header, const void *body,
                              size_t size);
/* Queues the operation's own frame with the next `bytes` of its list as body. Completes *header. */
void bmi__op_frame_send_locked(struct op *op, struct wire_header *header, bmi_size_t bytes);
struct op *bmi__frame_op(struct bmi_frame *frame);
bool bmi__frame_is_op(const struct bmi_frame *frame);
struct bmi_frame *bmi__control_make(struct peer *peer, struct wire_header header, const void *body,
                                    size_t size);
/* Makes a frame of another type that replaces a frame taken back. It carries the same credit and
 * the same count of seen messages, so that none of that is lost or reordered. */
struct bmi_frame *bmi__control_instead(struct peer *peer, const struct bmi_frame *of, uint8_t type);
void bmi__control_free(struct bmi_instance *instance, struct bmi_frame *frame);
/* Logs a frame that goes ("to") or came ("from"), at level trace. */
void bmi__frame_trace(const struct peer *peer, const char *way, const struct wire_header *header);
/* The method gave the frame back. */
void bmi__control_done_locked(struct peer *peer, struct bmi_frame *frame);

int bmi__frames_open(struct bmi_instance *instance);
void bmi__frames_close(struct bmi_instance *instance);

#endif
