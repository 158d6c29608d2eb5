/* SPDX-License-Identifier: BSD-3-Clause
 *
 * event.h - a futex, and a binary semaphore on it: a post before or during a wait is not lost,
 * several posts count as one. Any thread posts; one waits.
 */
#ifndef BMI_TASK_EVENT_H
#define BMI_TASK_EVENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct bmi__event {
    atomic_uint posted;
};

/* Sleeps while *word is `value`, until woken or deadline_ns (CLOCK_MONOTONIC; 0: none); may also
 * return for no reason. */
void bmi__futex_wait(atomic_uint *word, unsigned value, uint64_t deadline_ns);
/* All that sleep on the word, of which only the address is used: it may be gone. */
void bmi__futex_wake(const atomic_uint *word);

void bmi__event_post(struct bmi__event *event);
/* Returns false if the deadline (0: none) has come first. */
bool bmi__event_wait(struct bmi__event *event, uint64_t deadline_ns);

#endif
