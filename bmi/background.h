/* SPDX-License-Identifier: BSD-3-Clause
 *
 * background.h - progress without a caller: a task of the task manager polls while no thread of the
 * program does. Off unless asked for.
 */
#ifndef BMI_BACKGROUND_H
#define BMI_BACKGROUND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern atomic_bool bmi__background_is_on;

static inline bool bmi__background_on(void)
{
    return atomic_load_explicit(&bmi__background_is_on, memory_order_relaxed);
}

/* Starts or stops it, as the settings say; nothing to do where it is so already. Returns 0, or
 * -EAGAIN or -ENOMEM: a thread cannot be started; -EDEADLK: called by the background task itself,
 * or within a task while another thread does it and waits for tasks. */
int bmi__background_follow(void);
/* Stops it, whatever the settings say. Returns 0, or -EDEADLK, as above. */
int bmi__background_stop(void);
/* Gives back what it keeps while it is off: at the end, when no caller is within BMI. */
void bmi__background_end(void);
/* Whether the calling thread runs the background task. */
bool bmi__background_self(void);

/* By callers, while it is on: this thread enters a test function; is about to leave it; has ceased
 * to be the poller, and no follower takes its place. */
void bmi__background_caller_enters(uint64_t now_ns);
void bmi__background_caller_leaves(uint64_t now_ns);
void bmi__background_role_free(void);

#endif
