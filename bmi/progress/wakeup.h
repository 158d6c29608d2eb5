/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wakeup.h - the epoll set of all methods, and how a thread that blocks in it is woken.
 *
 * The poller sets `asleep`, then looks at all queues again, then blocks. A thread that queues
 * something looks at `asleep` afterwards (both sequentially consistent) and writes to an eventfd in
 * the set. `watching` is the same for the background task, which blocks in the set without being
 * the poller.
 */
#ifndef BMI_WAKEUP_H
#define BMI_WAKEUP_H

#include <stdbool.h>
#include <stdint.h>

struct bmi_instance;

/* Makes the epoll set. Returns 0 or -errno. */
int bmi__wakeup_open(struct bmi_instance *instance);
void bmi__wakeup_close(struct bmi_instance *instance);

/* The epoll set, also for nesting in a program's own. */
int bmi__progress_fd(struct bmi_instance *instance);
/* From now on deferred calls and timers make that descriptor readable, too. */
void bmi__progress_fd_used(struct bmi_instance *instance);
/* Whether a program polls that descriptor. */
bool bmi__wakeup_fd_used(struct bmi_instance *instance);

/* Makes a poller that blocks, or the background task, look at everything again. It does nothing if
 * the caller is the poller, which looks before it blocks or leaves. Any thread. */
void bmi__progress_kick(struct bmi_instance *instance);
/* The same, even if no thread seems to block. */
void bmi__wakeup_force(struct bmi_instance *instance);
/* Whether the poller or the background task blocks. Then the thread that queues something must
 * flush it, or kick the poller. Call this after queueing. */
bool bmi__progress_asleep(struct bmi_instance *instance);
/* Whether the poller blocks, the background task aside. */
bool bmi__wakeup_poller_asleep(struct bmi_instance *instance);

/* The poller calls this around the time that it blocks. */
void bmi__wakeup_set_asleep(struct bmi_instance *instance, bool asleep);
/* The background task calls this around the time that it blocks. */
void bmi__wakeup_set_watching(struct bmi_instance *instance, bool watching);
bool bmi__wakeup_watching(struct bmi_instance *instance);

/* Makes the set readable at that time (CLOCK_MONOTONIC, ns; UINT64_MAX: never). */
void bmi__wakeup_timer(struct bmi_instance *instance, uint64_t due_ns);

/* From now on this thread is the poller of that instance; NULL: of none. Returns of which it was.
 */
struct bmi_instance *bmi__wakeup_set_poller(struct bmi_instance *instance);
struct bmi_instance *bmi__wakeup_poller(void);
bool bmi__is_poller(const struct bmi_instance *instance);

#endif
