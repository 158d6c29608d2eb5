/* SPDX-License-Identifier: BSD-3-Clause
 *
 * offload.h - a send's submission as one task on the nearest idle CPU (PIOMan). Off unless the
 * settings `progress` and `offload` ask for it.
 *
 * Threads: start and stop are called with background.c's `control` held; the rest by any thread.
 */
#ifndef BMI_OFFLOAD_H
#define BMI_OFFLOAD_H

#include <stdatomic.h>
#include <stdbool.h>

#include "bmi/method.h"

extern atomic_bool bmi__offload_is_on;

static inline bool bmi__offload_on(void)
{
    return atomic_load_explicit(&bmi__offload_is_on, memory_order_acquire);
}

/* Starts the task manager's workers. Returns 0 or -errno. */
int bmi__offload_start_locked(void);
void bmi__offload_stop_locked(void);
/* Submits the flush of the link to the nearest idle CPU. Returns false if no CPU is idle: the
 * caller flushes it. */
bool bmi__offload_flush(struct bmi_link *link);
/* In a forked child: the tasks belong to the parent. */
void bmi__offload_after_fork_child(void);

#endif
