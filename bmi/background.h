/* SPDX-License-Identifier: BSD-3-Clause
 *
 * background.h - progress without a caller: a task of the task manager drives the network when no
 * thread does. Off unless asked for.
 */
#ifndef BMI_BACKGROUND_H
#define BMI_BACKGROUND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bmi/method.h"

extern atomic_bool bmi__background_is_on;

static inline bool bmi__background_on(void)
{
    return atomic_load_explicit(&bmi__background_is_on, memory_order_relaxed);
}

/* Starts or stops it, as the settings say; nothing to do where it is so already. Returns 0, or
 * -EAGAIN or -ENOMEM: a thread cannot be started; -EDEADLK: called by the background itself, or
 * within a task while another thread does it and waits for tasks. */
int bmi__background_follow(void);
/* Stops it whatever the settings say. Returns 0, or -EDEADLK, as above. */
int bmi__background_stop(void);
/* Gives back what it keeps over being switched off: at the end, when no caller is within BMI. */
void bmi__background_end(void);
/* Whether the calling thread is the background. */
bool bmi__background_self(void);

/* A caller has taken the seat; leaves it; has left it and nobody else takes it. The seat is held in
 * the first two; their time may be some microseconds old. */
void bmi__background_turn_begins(uint64_t now_ns);
void bmi__background_turn_ends(uint64_t now_ns);
void bmi__background_seat_free(void);

/* The calling thread posted: polling moves near to it. */
void bmi__background_posted(void);
/* Flushes a link for a caller, or has the nearest idle CPU do it, if that is wanted and there is
 * one. */
void bmi__background_flush(struct bmi_link *link);

#endif
