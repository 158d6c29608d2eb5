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

/* Makes the epoll set. Returns 0 or -errno. */
int bmi__wakeup_start(void);
void bmi__wakeup_stop(void);

/* The epoll set, also for nesting in a program's own. */
int bmi__progress_fd(void);
/* From now on deferred calls and timers make that descriptor readable, too. */
void bmi__progress_fd_used(void);
/* Whether a program polls that descriptor. */
bool bmi__wakeup_fd_used(void);

/* Makes a poller that blocks, or the background task, look at everything again. It does nothing if
 * the caller is the poller, which looks before it blocks or leaves. Any thread. */
void bmi__progress_kick(void);
/* The same, even if no thread seems to block. */
void bmi__wakeup_force(void);
/* Whether the poller or the background task blocks. Then the thread that queues something must
 * flush it, or kick the poller. Call this after queueing. */
bool bmi__progress_asleep(void);
/* Whether the poller blocks, the background task aside. */
bool bmi__wakeup_poller_asleep(void);

/* The poller calls this around the time that it blocks. */
void bmi__wakeup_set_asleep(bool asleep);
/* The background task calls this around the time that it blocks. */
void bmi__wakeup_set_watching(bool watching);
bool bmi__wakeup_watching(void);

/* Makes the set readable at that time (CLOCK_MONOTONIC, ns; UINT64_MAX: never). */
void bmi__wakeup_timer(uint64_t due_ns);

/* This thread becomes the poller, or stops being it. */
void bmi__wakeup_set_poller(bool poller);
bool bmi__is_poller(void);

#endif
