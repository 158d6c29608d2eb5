/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BENCH_COORDINATOR_H
#define BENCH_COORDINATOR_H

#include "bench.h"

/* Starts the processes, takes all samples, reports. Ends the process where anything fails. */
void coordinator_run(const struct options *options);

#endif
