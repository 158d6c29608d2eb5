/* SPDX-License-Identifier: BSD-3-Clause
 *
 * keys.h - credentials for a run over TLS.
 */
#ifndef BENCH_KEYS_H
#define BENCH_KEYS_H

#include "bench.h"

/* Makes an authority and a certificate for this host by bmi-keys, in a folder that is removed at
 * exit, and sets the variables that name them, unless the user has set such. */
void keys_make(const struct options *options);

#endif
