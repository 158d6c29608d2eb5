/* SPDX-License-Identifier: BSD-3-Clause
 *
 * deadline.h - when calls have to end: a list, soonest first, and one timer of the core for it.
 */
#ifndef BMI_RPC_DEADLINE_H
#define BMI_RPC_DEADLINE_H

#include <stdint.h>

/* Embedded in its owner; zero before first use. */
struct deadline {
    struct deadline *sooner, *later; /* the list's lock */
    uint64_t due_ns;                 /* 0: not in the list */
};

/* Enters it, or does nothing where due_ns is 0. Any thread, any lock held. */
void bmi__deadline_set(struct deadline *deadline, uint64_t due_ns);
/* Takes it out of the list. Any thread, any lock held. */
void bmi__deadline_clear(struct deadline *deadline);
/* The first that is due, which leaves the list; NULL: none. The poller, which alone frees the
 * owners. Asks for `due` to be called when the next one is. */
struct deadline *bmi__deadline_take(void);
/* The poller calls it, without a lock, when a deadline is due. Set before the first use. */
void bmi__deadline_hook(void (*due)(void));
void bmi__deadlines_stop(void);

#endif
