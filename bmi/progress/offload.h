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

#include "bmi/base/instance.h"
#include "bmi/method.h"

static inline bool bmi__offload_on(const struct bmi_instance *instance)
{
    return atomic_load_explicit(&instance->offload_on, memory_order_acquire);
}

/* Starts the task manager's workers. Returns 0 or -errno. */
int bmi__offload_start_locked(struct bmi_instance *instance);
void bmi__offload_stop_locked(struct bmi_instance *instance);
/* Submits the flush of the link to the nearest idle CPU. Returns false if no CPU is idle: the
 * caller flushes it. */
bool bmi__offload_flush(struct bmi_link *link);
/* Waits for its tasks; offload is off. */
void bmi__offload_drain(struct bmi_instance *instance);
int bmi__offload_open(struct bmi_instance *instance);
void bmi__offload_close(struct bmi_instance *instance);
/* In a forked child: the tasks belong to the parent. */
void bmi__offload_after_fork_child(struct bmi_instance *instance);

#endif
