/* SPDX-License-Identifier: BSD-3-Clause
 *
 * waiters.h - threads that wait for a completion, each on a condition of its own. A completion
 * looks at the waiters of its context only, however many wait on others.
 */
#ifndef BMI_WAITERS_H
#define BMI_WAITERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bmi.h"
#include "bmi/summon.h"

struct context;

/* Waiters of this id wait for several operations of their context. */
#define WAITER_SOME INT64_MIN

/* A thread that wants something. Lives on its stack. */
struct waiter {
    bool (*ready)(
        struct waiter *waiter); /* has it come? may take it; called by the thread itself */
    void *argument;
    struct context *context; /* whose completions it waits for; NULL: unexpected messages */
    bmi_op_id_t op;          /* only this operation; 0: any */
    const bmi_op_id_t *some; /* WAITER_SOME: which (an id may be 0), lent; NULL: all of them */
    int some_count;
    bool handed; /* progress.c: it is on the lists already, and has handed the seat on */
    /* below: waiters.c's own, under its lock */
    atomic_uint signalled;          /* futex: 1 from when it is woken until it has looked */
    atomic_bool offered;            /* the seat was, by a driver that left it */
    atomic_int cpu;                 /* where it went to sleep, or is about to */
    atomic_int pipe;                /* summon.h: what it sleeps on; -1: the futex */
    bool driving;                   /* sleeps in the network, not here */
    struct waiter *next, *previous; /* of its context, or for unexpected messages */
    struct waiter *next_of_all, *previous_of_all; /* of all */
};

struct waiter_list {
    struct waiter *first, *last;
};

/* Threads that are to be woken once the caller holds no lock that they might want. Where there are
 * more than fit, those are woken at once. */
struct wakes {
    struct {
        const atomic_uint *word; /* its waiter may be gone */
        int pipe;
    } each[8];
    unsigned count;
};

/* Puts a waiter on the lists; from then on a completion wakes it. It looks once more after that. */
void bmi__waiter_enlist(struct waiter *waiter, bool as_driver);
void bmi__waiter_delist(struct waiter *waiter);
/* Sleeps until it is woken. Returns false if the time was over first. `in_turn`: threads have their
 * messages in turn, so that it had better be on the CPU of nearly all others, or, if they are
 * spread, the driver's, and is brought there if the system likes (summon.h). */
bool bmi__waiter_sleep(struct waiter *waiter, uint64_t deadline_ns, bool in_turn);
/* By the driver, as it begins: it drives on this CPU. */
void bmi__waiters_driven_here(void);

/* One of those who sleep may *guard* the seat: it looks by itself, time and again, whether that is
 * free. Who gives that up (by bmi__waiter_unguard, or leaving the lists) looks at the seat once
 * more; a driver that leaves the seat without waking anybody looks whether it is guarded after. */
void bmi__waiter_guard(struct waiter *waiter);   /* unless somebody does */
void bmi__waiter_unguard(struct waiter *waiter); /* unless it does not */
bool bmi__waiter_guards(struct waiter *waiter);
bool bmi__waiters_guarded(void);
/* Whether nearly all of those who had their messages in turn have slept on one CPU lately, and this
 * is another. */
bool bmi__waiters_crowd_elsewhere(void);
/* Whether the one that has slept longest does so where nearly all do; if they are spread, on this
 * CPU. */
bool bmi__waiters_next_is_near(void);
/* If so wakes that one to take the seat, and puts `waiter` on the lists as one who sleeps. It
 * guards the seat from then on if nobody else does. */
bool bmi__waiters_hand_over(struct waiter *waiter);

/* Enlisted ones that do not drive. */
unsigned bmi__waiters_asleep(void);
/* Threads that wait for unexpected messages. */
unsigned bmi__waiters_for_unexpected(void);
/* Wakes one that sleeps. Returns false if there is none. */
bool bmi__waiters_wake_one(void);
/* Whether a thread that waits on the context will take the completion of `op`; 0: of any. */
bool bmi__waiters_claim(struct context *context, bmi_op_id_t op);
/* A completion (of `op`; 0: of one that was there) was pushed into the context; context NULL: an
 * unexpected message. What nobody who waits on the context takes is told to those who wait for
 * unexpected messages. Returns whether a thread that sleeps was woken, or is in `wakes` now. */
bool bmi__waiters_notify(struct context *context, bmi_op_id_t op, struct wakes *wakes);
void bmi__wakes_finish(struct wakes *wakes);

/* Nobody waits any more. */
void bmi__waiters_stop(void);
/* The child knows no waiters but those of the thread that forked. */
void bmi__waiters_before_fork(void);
void bmi__waiters_after_fork_parent(void);
void bmi__waiters_after_fork_child(void);

#endif
