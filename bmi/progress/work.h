/* SPDX-License-Identifier: BSD-3-Clause
 *
 * work.h - the poller's work besides the network: deferred calls, and links that have something to
 * flush. bmi_method_defer (bmi/method.h) adds the former.
 *
 * Both are lists that any thread pushes onto without a lock. The thread that runs a list takes all
 * of it.
 */
#ifndef BMI_WORK_H
#define BMI_WORK_H

#include <stdbool.h>

struct bmi_deferred;
struct bmi_instance;
struct bmi_link;

/* Requests a flush of the link and takes a reference until then. Returns false if it was listed
 * already. Any thread. */
bool bmi__work_dirty(struct bmi_link *link);

/* Queues a call that the poller makes as soon as it has given the locks of the present frame back:
 * before the next frame of any link is read. Otherwise as bmi_method_defer. */
void bmi__work_soon(struct bmi_instance *instance, struct bmi_deferred *deferred);

/* Runs these calls. Poller, no peer's lock held, perhaps a link's receive lock. */
bool bmi__work_soon_run(struct bmi_instance *instance);

/* Runs these and the deferred calls. Returns whether there were any. Poller. */
bool bmi__work_deferred(struct bmi_instance *instance);

/* Flushes the links. Returns whether there was any. Any thread, no lock held. */
bool bmi__work_flush(struct bmi_instance *instance);

/* Whether there is nothing of either kind. */
bool bmi__work_none(struct bmi_instance *instance);

/* Forgets all of it. Call at the end. */
void bmi__work_drop(struct bmi_instance *instance);

int bmi__work_open(struct bmi_instance *instance);
void bmi__work_close(struct bmi_instance *instance);

#endif
