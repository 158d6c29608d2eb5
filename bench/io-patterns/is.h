/* SPDX-License-Identifier: BSD-3-Clause
 *
 * is.h - a sample of the integer sort: the servers sort when the client asks them.
 */
#ifndef BENCH_IS_H
#define BENCH_IS_H

#include "bench.h"
#include "is_sort.h"

/* work.figure */
enum is_figure { IS_SECONDS, IS_COMMUNICATION, IS_SHARE, IS_FIGURES };

/* A server's acknowledgement holds its result, in the byte order of the machines. */
_Static_assert(sizeof(struct is_result) <= ACK_SIZE, "a result fits into an acknowledgement");

/* A sample's figure from the acknowledgements of all servers. Ends the process if the keys were not
 * sorted. */
double is_figure_of(const struct work *work, const uint8_t (*acks)[ACK_SIZE]);

#endif
