/* SPDX-License-Identifier: BSD-3-Clause
 *
 * summon.h - wakes that bring a thread to the CPU of who wakes it.
 *
 * Threads that have their messages in turn cost least where one CPU has them all (promise.h). The
 * system leaves each where it slept, though, be that the CPU of the very process that sends to
 * them, which each displaces. It takes along who is woken through a pipe by a thread that is alone
 * on its CPU, if no CPU that shares a cache with that is idle (Linux, kernel/sched/fair.c:
 * wake_affine() with WF_SYNC); through a futex it does not. So a thread that is elsewhere than
 * nearly all others, or, if they are spread, than the driver, sleeps on a pipe, until it has been
 * brought over, or that has failed too often. It is a hint to the scheduler: no thread's affinity
 * is changed.
 *
 * Who may touch it: functions named *_locked are called with waiters.c's lock held, the others
 * without, by any thread. A pipe may be rung when its sleeper has gone: the next one wakes for
 * nothing then, and looks, as every waiter does.
 */
#ifndef BMI_SUMMON_H
#define BMI_SUMMON_H

#include <stdbool.h>
#include <stdint.h>

/* A pipe for this thread to sleep on; -1: it is to use a futex, since there is none (no descriptor
 * is left, or SUMMON_MOST sleep so) or it has not been brought over the last times (more of
 * them where it has `much` to gain). */
enum { SUMMON_MOST = 16 };
int bmi__summon_take_locked(bool much);
/* It sleeps there no more. `came`: it is on another CPU now. */
void bmi__summon_give_locked(int pipe, bool came);
/* Sleeps until it is rung, or that time (CLOCK_MONOTONIC), or for nothing. */
void bmi__summon_sleep(int pipe, uint64_t deadline_ns);
void bmi__summon_ring(int pipe);

/* Closes all pipes, on which nobody sleeps. Who still rings is waited for. */
void bmi__summons_close_locked(void);
/* The child has the parent's pipes; it closes its copies. */
void bmi__summons_after_fork_child_locked(void);

#endif
