/* SPDX-License-Identifier: BSD-3-Clause
 * timers.h - one-shot timers that the poller runs (bmi_method_timer_set and _clear set them). */
#ifndef BMI_TIMERS_H
#define BMI_TIMERS_H

#include <stdint.h>

struct bmi_instance;

/* Runs the timers that are due. Poller. */
void bmi__timers_run(struct bmi_instance *instance);
/* When the next is due (UINT64_MAX: none). */
uint64_t bmi__timers_next(struct bmi_instance *instance);
/* Forgets all. */
void bmi__timers_forget(struct bmi_instance *instance);

int bmi__timers_open(struct bmi_instance *instance);
void bmi__timers_close(struct bmi_instance *instance);

#endif
