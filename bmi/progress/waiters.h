/* SPDX-License-Identifier: BSD-3-Clause
 *
 * waiters.h - threads that wait in a test function: the followers, and the poller while it blocks.
 *
 * Each follower sleeps on a futex of its own. A completion looks at the waiters of its context
 * only, however many wait on others.
 */
#ifndef BMI_WAITERS_H
#define BMI_WAITERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bmi.h"

struct bmi_instance;

/* Waiters with this id wait for several operations of their list. */
#define WAITER_SOME INT64_MIN

/* The threads that wait for completions of one context (state/context.h). */
struct waiter_list {
    struct waiter *first, *last; /* under waiters.c's lock */
    atomic_uint count;           /* to be read without it */
};

/* A thread that waits for something. Lives on the thread's stack. */
struct waiter {
    struct bmi_instance *instance;
    bool (*ready)(
        struct waiter *waiter); /* is it there? may take it; called by the thread itself */
    void *argument;
    struct waiter_list *list; /* of the context; NULL: of the threads that wait for messages */
    bmi_op_id_t op;           /* only this operation; 0: any */
    const bmi_op_id_t *some;  /* WAITER_SOME: which (an id may be 0), lent; NULL: all of them */
    int some_count;
    /* below: of waiters.c, under its lock */
    atomic_uint signalled;          /* futex: 1 from when it is woken until it has looked */
    bool polling;                   /* it is the poller and blocks in the epoll set */
    struct waiter *next, *previous; /* of its list */
    struct waiter *next_of_all, *previous_of_all; /* of all */
    struct waiter *outer; /* of the same thread, which waits within a callback */
};

/* Threads to wake once the caller holds no lock that they might want. If there are more than fit,
 * the rest are woken at once. */
struct wakes {
    const atomic_uint *each[8]; /* the waiter may be gone by then */
    unsigned count;
};

/* Puts a waiter on the lists; from then on a completion wakes it. It looks once more after that. */
void bmi__waiter_enlist(struct waiter *waiter, bool as_poller);
void bmi__waiter_delist(struct waiter *waiter);
/* Sleeps until woken. Returns false if the deadline (CLOCK_MONOTONIC, ns) came first. */
bool bmi__waiter_sleep(struct waiter *waiter, uint64_t deadline_ns);

/* Number of enlisted followers. */
unsigned bmi__waiters_asleep(struct bmi_instance *instance);
/* Number of threads that wait for unexpected messages. */
unsigned bmi__waiters_for_unexpected(struct bmi_instance *instance);
/* Wakes one follower, to become the poller. Returns false if there is none. */
bool bmi__waiters_wake_one(struct bmi_instance *instance);
/* Whether a thread on the list will take the completion of `op`; 0: of any. */
bool bmi__waiters_claim(struct bmi_instance *instance, struct waiter_list *list, bmi_op_id_t op);
/* A completion (of `op`; 0: of an earlier one) was pushed into the list's context; NULL: an
 * unexpected message. If no waiter of the list takes it, the threads that wait for unexpected
 * messages are notified. The threads to wake are added to `wakes`. */
void bmi__waiters_notify(struct bmi_instance *instance, struct waiter_list *list, bmi_op_id_t op,
                         struct wakes *wakes);
void bmi__wakes_finish(struct wakes *wakes);

/* In the child of a fork only the thread that forked waits. */
void bmi__waiters_before_fork(struct bmi_instance *instance);
void bmi__waiters_after_fork_parent(struct bmi_instance *instance);
void bmi__waiters_after_fork_child(struct bmi_instance *instance);

int bmi__waiters_open(struct bmi_instance *instance);
void bmi__waiters_close(struct bmi_instance *instance);

#endif
