/* SPDX-License-Identifier: BSD-3-Clause
 *
 * fi_pingpong.h - libfabric's fi_pingpong as a contender. The coordinator's; one thread, no locks.
 */
#ifndef BENCH_FI_PINGPONG_H
#define BENCH_FI_PINGPONG_H

#include "bench.h"

/* Ends the run where it cannot be compared with. */
void fi_pingpong_open(const struct options *options);
/* Takes a sample. Returns: seconds, the unit of the pattern's `value`. */
double fi_pingpong_sample(const struct options *options, const struct work *work);

#endif
