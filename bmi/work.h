/* SPDX-License-Identifier: BSD-3-Clause
 *
 * work.h - what the driver is to do beside looking at the network: deferred calls, and links that
 * have something to flush. bmi_method_defer (bmi/method.h) adds the former.
 *
 * Both are lists that any thread pushes onto without a lock, and that whoever runs them takes
 * whole.
 */
#ifndef BMI_WORK_H
#define BMI_WORK_H

#include <stdbool.h>

struct bmi_link;

/* Has the link flushed; refers to it until then. Returns false if it was there already. Any
 * thread. */
bool bmi__work_dirty(struct bmi_link *link);

/* Runs the deferred calls. Returns whether there was any. Driver. */
bool bmi__work_deferred(void);

/* Flushes the links. Returns whether there was any. Any thread, no lock held. */
bool bmi__work_flush(void);

/* Whether there is nothing of either kind. */
bool bmi__work_none(void);

/* Forgets all of it: at the end. */
void bmi__work_drop(void);

#endif
