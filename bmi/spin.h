/* SPDX-License-Identifier: BSD-3-Clause
 *
 * spin.h - whether a wait polls before it sleeps, for how long, and whether it lets others have its
 * core meanwhile. All of it is learnt from how waits have ended; progress.c waits.
 *
 * Threads: whoever has the driver's seat.
 */
#ifndef BMI_SPIN_H
#define BMI_SPIN_H

#include <stdbool.h>
#include <stdint.h>

struct bmi__spin {
    uint64_t paused_until_ns;
    unsigned skip, backoff; /* waits to go without spinning; grows as spinning fails */
    bool just_failed;       /* nothing slept since */
    bool in_the_way;        /* what a spin waited for came when it had let go: it yields */
    bool alone;             /* the last one has yielded its core in vain */
    unsigned stretch;       /* spins take so many times the setting more */
    unsigned yields;        /* since the system was asked who took this core */
};

extern struct bmi__spin bmi__spin;

/* For how long to spin, in ns; 0: not at all. */
uint64_t bmi__spin_most(void);

/* Whether a wait that begins, or goes on after there was something that did not end it, is to
 * spin. */
bool bmi__spin_worth_it(uint64_t now);

/* What was waited for came. */
static inline void bmi__spin_paid(void)
{
    bmi__spin.skip = bmi__spin.backoff = 0;
}

/* It did not. Returns false. */
bool bmi__spin_failed(void);

/* A sleep has ended since a descriptor had something. It took that long until the thread ran. */
void bmi__spin_learn(uint64_t slept_ns);

/* Whether another thread has had this one's core since the question before. Costs a system call. */
bool bmi__core_was_taken(void);

/* Lets whoever wants this core have it. */
void bmi__spin_yield(void);

/* Whether the time since a spin last looked at the clock went to another thread: then no spinning
 * for a while, the longer the longer that took. */
bool bmi__spin_interrupted(uint64_t last, uint64_t now);

void bmi__spin_reset(void);

#endif
