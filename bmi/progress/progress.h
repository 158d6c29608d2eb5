/* SPDX-License-Identifier: BSD-3-Clause
 *
 * progress.h - the poller, and the threads that wait: leader and followers.
 *
 * One thread at a time is the *poller*: it runs methods' callbacks, timers and deferred calls, and
 * blocks in the one epoll set of all methods. A thread that calls a test function becomes the
 * poller if there is none; otherwise it is a *follower* and sleeps on its own futex until its
 * context has a completion or it is chosen as the next poller. A poller that leaves wakes exactly
 * one follower. The library needs no thread of its own; where progress in the background is on, its
 * task polls while no caller does (background.c).
 */
#ifndef BMI_PROGRESS_H
#define BMI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "bmi/method.h"
#include "bmi/progress/waiters.h"

int bmi__progress_open(struct bmi_instance *instance);
void bmi__progress_close(struct bmi_instance *instance);
/* Around a fork: the child has no poller, and no waiter but the thread that forked. */
void bmi__progress_before_fork(struct bmi_instance *instance);
void bmi__progress_after_fork_parent(struct bmi_instance *instance);
void bmi__progress_after_fork_child(struct bmi_instance *instance);

/* Polls or sleeps until waiter->ready, at most max_idle_ms (0: one pass, without blocking). */
void bmi__progress_wait(struct waiter *waiter, int max_idle_ms);
/* One pass by a thread that does not wait, if there is no poller. */
void bmi__progress_poll(struct bmi_instance *instance);
/* A few passes, as long as they find something: before a post after long silence. */
void bmi__progress_catch_up(struct bmi_instance *instance);
/* Runs deferred calls and flushes, for a thread that is alone. */
void bmi__progress_chores(struct bmi_instance *instance);

/* A completion (of `op`) was pushed into the list's context; NULL: an unexpected message. */
void bmi__progress_notify(struct bmi_instance *instance, struct waiter_list *list, bmi_op_id_t op);
/* Whether there is a poller; whether it blocks in the epoll set. */
bool bmi__progress_polled(struct bmi_instance *instance);
bool bmi__progress_poller_blocks(struct bmi_instance *instance);

/* Requests that the poller's next pass flushes the link; wakes a poller that blocks. Any thread. */
void bmi__progress_dirty(struct bmi_link *link);
/* Number of the present pass; changes with each. */
uint32_t bmi__progress_pass(struct bmi_instance *instance);

/* For the background task: if there is no poller, makes passes while they find something. QUIET:
 * nothing is left, and new events make bmi__progress_fd readable; timers are due at *until_ns. From
 * then on until bmi__progress_watch_end, a thread that queues something wakes the background task,
 * too. */
enum bmi__watch { BMI__WATCH_TAKEN, BMI__WATCH_AGAIN, BMI__WATCH_QUIET };
enum bmi__watch bmi__progress_watch(struct bmi_instance *instance, uint64_t *until_ns);
void bmi__progress_watch_end(struct bmi_instance *instance);

#endif
