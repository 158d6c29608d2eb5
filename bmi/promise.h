/* SPDX-License-Identifier: BSD-3-Clause
 *
 * promise.h - the seat of a driver that will be back at once.
 *
 * A driver whose own completion has come goes to answer it, and most often waits again some
 * microseconds later. Whoever it wakes to drive meanwhile costs a wake-up before the answer, and if
 * that one slept on this CPU it can drive only by keeping the answer waiting. So the driver wakes
 * nobody then: it leaves the seat free, and *promises* that somebody will come soon. Who comes
 * hands the seat to the thread that has slept longest (waiters.c), whose message is likely to be
 * the next: the wake-up and the switch lie in the time of the answer's way, and the thread that
 * drives finds its message itself.
 *
 * Nothing depends on promises being kept: while the seat is free under one, a sleeper *guards* it
 * (waiters.h), which looks at the seat every few milliseconds. What is here learns whether promises
 * pay: where they were not kept in KEPT_NS, or threads sleep on several CPUs, they are made less
 * and less often.
 *
 * Who may touch it: bmi__promise_make is for the driver; all else for any thread. The counters may
 * lose a count of two that come at the same time.
 */
#ifndef BMI_PROMISE_H
#define BMI_PROMISE_H

#include <stdbool.h>
#include <stdint.h>

struct waiter;

/* By a driver that leaves with what it waited for. Returns when the promise was made
 * (CLOCK_MONOTONIC, ns), or 0: none is, and a sleeper is to be woken. */
uint64_t bmi__promise_make(void);
/* By a driver that has woken threads for messages of theirs: they have come without a promise. */
void bmi__promise_missed(void);
/* Before the seat is given back under a promise of that time, and whenever it is taken (0). */
void bmi__promise_set(uint64_t made_ns);
/* When the promise was made under which the seat is free; 0: there is none. */
uint64_t bmi__promise_standing(void);
/* Whether one stands that has excused nobody from a pass; it has then. */
bool bmi__promise_excuses(void);
/* If a promise stands, it is over at that time: kept, or not in time. */
void bmi__promise_end(uint64_t now_ns);
/* Whether one stands at that time that may yet be kept in time. */
bool bmi__promise_young(uint64_t now_ns);
/* Whether drivers have left to answer lately, with a promise or without, while others slept. */
bool bmi__promise_likely(uint64_t now_ns);

/* Sleeps, on the lists, until woken, or, as the guard, until it is to look at the seat itself:
 * promises have ceased, and it need not guard any more, or one is old. While others take the seat,
 * or are about to come, it sleeps on. Returns false if the time is over. */
bool bmi__promise_sleep(struct waiter *waiter, bool in_turn, uint64_t deadline_ns);
/* By who has come to wait: if the seat is free under a promise it goes to the one whose message is
 * likely to be next, and `waiter` is on the lists. Returns false if it is to take the seat. */
bool bmi__promise_hand_on(struct waiter *waiter);

/* How many were made; wraps. */
unsigned bmi__promises(void);
/* At the start, and in the child of a fork. */
void bmi__promise_reset(void);

#endif
