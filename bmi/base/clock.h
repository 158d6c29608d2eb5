/* SPDX-License-Identifier: BSD-3-Clause
 * clock.h - the clock of the library: CLOCK_MONOTONIC, in nanoseconds. Any thread. */
#ifndef BMI_CLOCK_H
#define BMI_CLOCK_H

#include <stdint.h>

struct bmi_instance;

/* The system's clock, by which threads wait. */
uint64_t bmi__monotonic_ns(void);
/* The clock of an instance, by which timers go and time-outs are due. */
uint64_t bmi__instance_now_ns(const struct bmi_instance *instance);

#endif
