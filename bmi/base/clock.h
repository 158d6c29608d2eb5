/* SPDX-License-Identifier: BSD-3-Clause
 * clock.h - the clock of the library: CLOCK_MONOTONIC, in nanoseconds. Any thread. */
#ifndef BMI_CLOCK_H
#define BMI_CLOCK_H

#include <stdint.h>

uint64_t bmi__monotonic_ns(void);

#endif
