/* SPDX-License-Identifier: BSD-3-Clause
 *
 * streams.h - a BMI client's half of read and write: one stream of messages from or to each server.
 */
#ifndef BENCH_STREAMS_H
#define BENCH_STREAMS_H

#include "bmi_side.h"
#include "layout.h"

/* Asks every server, then receives (or, where it writes, sends) all messages of all streams, lists
 * of segments, `window` of each stream at once. The first ones are posted ahead of the request if
 * this side posts first, else at the server's acknowledgement. A writer ends with the second one.
 * Returns: the seconds that this took. */
double streams_run(struct bmi_client *client, const struct work *work, const struct layout *layout,
                   bool writes);

#endif
