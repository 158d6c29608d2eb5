/* SPDX-License-Identifier: BSD-3-Clause
 *
 * progress.h - who drives the network, who waits, and what they wait for.
 *
 * One thread at a time is the *driver*: it holds the seat, runs methods' callbacks, timers and
 * deferred calls, and waits in the one epoll set for all methods. Whoever calls a test function
 * takes the seat if it is free; else it sleeps on its own condition until its context has
 * something or the seat becomes free. No thread of the library's own is needed; where progress in
 * the background is on, that part takes the seat when nobody waits (background.c).
 */
#ifndef BMI_PROGRESS_H
#define BMI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "bmi/method.h"
#include "bmi/waiters.h"

int bmi__progress_start(void);
void bmi__progress_stop(void);
/* For pthread_atfork: the child finds the seat free, and nobody waiting but who forked. */
void bmi__progress_before_fork(void);
void bmi__progress_after_fork_parent(void);
void bmi__progress_after_fork_child(void);
/* The epoll set of all methods, for nesting. */
int bmi__progress_fd(void);
/* From now on deferred work and timers must make that descriptor readable, too. */
void bmi__progress_fd_used(void);

/* Drives or sleeps until waiter->ready, at most max_idle_ms (0: one pass, without sleeping). */
void bmi__progress_wait(struct waiter *waiter, int max_idle_ms);
/* One pass by a thread that waits for nothing, if the seat is free. */
void bmi__progress_poll(void);
/* A few, as long as they find something: by who is about to post after long silence. */
void bmi__progress_catch_up(void);
/* Runs deferred calls and flushes, by whoever is alone. */
void bmi__progress_chores(void);

/* A completion (of `op`) was pushed into the context; context NULL: an unexpected message. */
void bmi__progress_notify(struct context *context, bmi_op_id_t op);
/* Makes a driver that sleeps look at everything again. */
void bmi__progress_kick(void);
/* Whether a driver sleeps in the kernel at present, or the background waits for the network: what
 * is queued then must be flushed by its poster, or the driver kicked. To be called after queueing.
 */
bool bmi__progress_asleep(void);
/* Whether somebody drives; whether that one sleeps in the network. */
bool bmi__progress_driven(void);
bool bmi__progress_driver_sleeps(void);

/* Has the link flushed by the driver's next pass; wakes it if it sleeps. Any thread. */
void bmi__progress_dirty(struct bmi_link *link);
/* Number of the present pass; changes with each. */
uint32_t bmi__progress_pass(void);

/* For the background: if the seat is free, makes passes while they find something. QUIET: nothing
 * is left, and what comes makes bmi__progress_fd readable; timers are due at *until_ns. From then
 * on until bmi__progress_watch_end whoever queues something wakes the background, too. */
enum bmi__watch { BMI__WATCH_TAKEN, BMI__WATCH_AGAIN, BMI__WATCH_QUIET };
enum bmi__watch bmi__progress_watch(uint64_t *until_ns);
void bmi__progress_watch_end(void);

uint64_t bmi__monotonic_ns(void);

/* Defined in unexpected.c: whether a message waits to be fetched. */
bool bmi__unexpected_waiting(void);

#endif
