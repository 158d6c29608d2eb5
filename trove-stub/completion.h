/* SPDX-License-Identifier: BSD-3-Clause
 *
 * completion.h - operations that are posted and tested for, and their contexts; shared by
 * trove-stub and flow.
 *
 * A *space* is one kind of operation (trove's, flow's) with its contexts. Each context has an owner
 * (in flow the engine of an instance, in trove NULL), whose source and progress its waiting threads
 * use. An operation embeds struct bmi__posted; it goes through POSTING (owned by the posting
 * thread), PENDING (its id is known), READY (in its context's queue) and is destroyed when it is
 * reported. One that completes while POSTING is DONE: its post returns 1.
 *
 * Rules. The space's lock guards all of it, and is innermost except for the task manager's. Its
 * speed is not critical: the operations of a space move buffers, not bytes. A waiting thread has
 * its own descriptor (from a pool), to which the completing thread writes; it also polls the
 * space's source, which is readable while `progress` has work, and lets tasks wake it.
 */
#ifndef TROVE_COMPLETION_H
#define TROVE_COMPLETION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "bmi.h"
#include "bmi/task.h"

struct bmi__space;
struct bmi__queue_context;

enum bmi__posted_state { POSTED_POSTING, POSTED_DONE, POSTED_PENDING, POSTED_READY };

/* All fields are under the space's lock, except those that the owner sets before the operation
 * begins. */
struct bmi__posted {
    struct bmi__posted *next, **link_to_me; /* in the context's queue */
    struct bmi__queue_context *context;
    int64_t id;
    enum bmi__posted_state state;
    bool cancelled; /* while POSTING; handled at the end of its post */
    bmi_error_code_t error;
    bmi_size_t actual;
    void *user_ptr;
};

/* A waiting thread; pooled, since it has a descriptor. Under the space's lock. */
struct bmi__space_waiter {
    struct bmi__space_waiter *next;
    struct bmi_task_waker waker;
    int fd;                                   /* -1: none, it checks every few milliseconds */
    const struct bmi__queue_context *context; /* NULL: waits for any completion */
    void *owner;                              /* the context's */
    bool any; /* takes any completion of the context; otherwise particular ones */
    bool signalled;
    struct bmi__space *space;
    atomic_bool woken;     /* it must check again; set, then `elsewhere` is read */
    atomic_bool elsewhere; /* it sleeps in the space's own way instead of on fd */
};

struct bmi__space_slot {
    struct bmi__posted *posted;
    uint32_t generation;
    uint32_t next_free;
};

struct bmi__space {
    /* set by the kind of operation; `owner` is that of a context */
    void (*progress)(void *owner);              /* does the work for which the source is readable */
    int (*source)(void *owner);                 /* its descriptor, or a negated errno */
    void (*cancel)(struct bmi__posted *posted); /* with the lock held; the operation is PENDING */
    void (*completed)(struct bmi__posted *posted); /* with the lock held; may be NULL */
    void (*destroy)(struct bmi__posted *posted);
    /* The space's own way to sleep, until waiter->woken or the time is over (<0: no limit), and to
     * wake such threads, with any lock held. NULL: sleep on a descriptor and the source. */
    bool (*sleeps)(void *owner); /* whether to use it now */
    void (*sleep)(struct bmi__space_waiter *waiter, int64_t left_ns);
    void (*wake)(void *owner);
    void (*fd_used)(void *owner); /* a program polls a context; may be NULL */
    /* below: completion.c's */
    pthread_mutex_t lock;
    struct bmi__space_slot *slots;
    uint32_t slot_count, free_slot; /* free_slot: index + 1 */
    struct bmi__queue_context **contexts;
    uint32_t context_count, context_generation;
    struct bmi__space_waiter *waiters, *idle_waiters;
};

#define BMI__SPACE_LOCK PTHREAD_MUTEX_INITIALIZER

/* Registers an operation: *id is its id from now on. Returns 0, -EINVAL (no such
 * context), -ENOMEM. */
int bmi__posted_begin(struct bmi__space *space, struct bmi__posted *posted, int64_t context,
                      void *user_ptr, int64_t *id);
enum bmi__posted_immediate {
    POSTED_IMMEDIATE_NEVER,   /* a test call reports every end */
    POSTED_IMMEDIATE_SUCCESS, /* a test call reports failures */
    POSTED_IMMEDIATE_ALWAYS
};

/* The post's end. Returns the post's result: 0, 1, or an error. */
int bmi__posted_end(struct bmi__space *space, struct bmi__posted *posted,
                    enum bmi__posted_immediate immediate, int64_t *id);
/* Completes it, once; it may be freed when this returns. `error` is a negated BMI error. */
void bmi__posted_complete(struct bmi__space *space, struct bmi__posted *posted,
                          bmi_error_code_t error, bmi_size_t actual);

int bmi__space_open_context(struct bmi__space *space, void *owner, int64_t *id);
/* The owner of the operation's context. After bmi__posted_begin. */
void *bmi__posted_owner(const struct bmi__posted *posted);
/* The owner of an open context; NULL: there is no such context. */
void *bmi__space_context_owner(struct bmi__space *space, int64_t id);
/* In a child of fork(): contexts, operations and perhaps the lock belong to the parent. */
void bmi__space_forget(struct bmi__space *space);
int bmi__space_close_context(struct bmi__space *space, int64_t id);
int bmi__space_context_fd(struct bmi__space *space, int64_t id);
int bmi__space_context_notify(struct bmi__space *space, int64_t id, void (*notify)(void *argument),
                              void *argument);
int bmi__space_test(struct bmi__space *space, int incount, const int64_t *ids, int *outcount,
                    int *index, bmi_error_code_t *errors, bmi_size_t *actuals, void **user_ptrs,
                    int max_idle_ms, int64_t context);
int bmi__space_testcontext(struct bmi__space *space, int incount, int64_t *ids, int *outcount,
                           bmi_error_code_t *errors, bmi_size_t *actuals, void **user_ptrs,
                           int max_idle_ms, int64_t context);
int bmi__space_cancel(struct bmi__space *space, int64_t id, int64_t context);
/* Calls `look` on an operation that was not reported yet, with the lock held. Returns 0,
 * -BMI_EINVAL. */
int bmi__space_look(struct bmi__space *space, int64_t id, int64_t context,
                    void (*look)(struct bmi__posted *posted, void *argument), void *argument);
/* Makes the owner's sleeping threads check again, including their way to sleep. Any thread, the
 * space's lock not held. */
void bmi__space_wake(struct bmi__space *space, const void *owner);
/* Waits until `done` returns true; it is called after each completion. */
void bmi__space_wait_until(struct bmi__space *space, void *owner, bool (*done)(void *argument),
                           void *argument);

#endif
