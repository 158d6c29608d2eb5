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

#include "bmi/base/instance.h"

static inline bool bmi__background_on(const struct bmi_instance *instance)
{
    return atomic_load_explicit(&instance->background_on, memory_order_relaxed);
}

/* Starts or stops the task, as the settings require. Returns 0, or -EAGAIN or -ENOMEM: a thread
 * cannot be started; -EDEADLK: the background task itself called this, or a task called it while
 * another thread is starting or stopping the task and waits for tasks. */
int bmi__background_follow(struct bmi_instance *instance);
/* Stops the task, whatever the settings require. Returns 0, or -EDEADLK, as above. */
int bmi__background_stop(struct bmi_instance *instance);
int bmi__background_open(struct bmi_instance *instance);
void bmi__background_close(struct bmi_instance *instance);
/* Whether the calling thread runs the background task. */
bool bmi__background_self(const struct bmi_instance *instance);

/* Around a fork: the child has no background task. */
void bmi__background_before_fork(struct bmi_instance *instance);
void bmi__background_after_fork_parent(struct bmi_instance *instance);
void bmi__background_after_fork_child(struct bmi_instance *instance);

/* A thread has posted. It need not be called for each post. */
void bmi__background_posted(struct bmi_instance *instance);

/* Called by threads of the program while the task is on: when the thread enters a test function;
 * when it is about to leave it; when it was the poller and no follower replaces it. */
void bmi__background_caller_enters(struct bmi_instance *instance, uint64_t now_ns);
void bmi__background_caller_leaves(struct bmi_instance *instance, uint64_t now_ns);
void bmi__background_role_free(struct bmi_instance *instance);

#endif
