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

/* Starts or stops the task, as the settings require. Returns 0, or -EAGAIN or -ENOMEM: a thread
 * cannot be started; -EDEADLK: the background task itself called this, or a task called it while
 * another thread is starting or stopping the task and waits for tasks. */
int bmi__background_follow(void);
/* Stops the task, whatever the settings require. Returns 0, or -EDEADLK, as above. */
int bmi__background_stop(void);
/* Frees the memory and descriptors that it keeps while it is off. Call at the end, when no caller
 * is within BMI. */
void bmi__background_end(void);
/* Whether the calling thread runs the background task. */
bool bmi__background_self(void);

/* A thread has posted. It need not be called for each post. */
void bmi__background_posted(void);

/* Called by threads of the program while the task is on: when the thread enters a test function;
 * when it is about to leave it; when it was the poller and no follower replaces it. */
void bmi__background_caller_enters(uint64_t now_ns);
void bmi__background_caller_leaves(uint64_t now_ns);
void bmi__background_role_free(void);

#endif
