/* SPDX-License-Identifier: BSD-3-Clause
 *
 * context.h - completion contexts, and the threads that wait on them.
 *
 * A context is a queue of completed operations. A thread that completes one appends it to
 * `incoming` without a lock. A thread that tests takes operations out of it under the context's
 * lock, the oldest first. One that tests a certain operation moves all of `incoming` into `ready`,
 * whose operations are the older ones. Contexts are type-stable memory, as operations are.
 */
#ifndef BMI_CONTEXT_H
#define BMI_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <urcu/wfcqueue.h>

#include "bmi/lock.h"
#include "bmi/progress/waiters.h"
#include "bmi/state/op.h"

struct bmi_instance;

/* The thread that completed an operation of the context calls this, after the operation can be
 * taken out. Any lock may be held, so the hook may submit a task or notify, and nothing else.
 * `unexpected` is false; for those messages see bmi__unexpected_set_hook. */
typedef void (*bmi__context_hook)(void *argument, bool unexpected);

struct peer;

struct context {
    _Atomic(struct bmi_instance *) instance; /* set before `open` */
    /* An internal context: takes a completed operation at once, with its peer's lock held; the
     * operation is the callee's. NULL: it is queued. Set before the first use. */
    void (*direct)(struct peer *peer, struct op *op);
    struct cds_wfcq_tail incoming_tail; /* appended to by any thread */
    struct __cds_wfcq_head incoming;    /* taken out of under lock */
    struct bmi_lock lock;
    struct op_list ready;       /* lock */
    struct waiter_list waiters; /* threads that wait on it */
    atomic_int event_fd;        /* for BMI_GET_CONTEXT_FD; -1: not requested */
    int poll_fd;                /* polled by the program: event_fd and the network; lock */
    _Atomic(struct context *) quiet_next;   /* context.c's list of contexts to be signalled */
    _Atomic(struct context *) *quiet_place; /* the pointer to this one there; NULL: not listed */
    atomic_bool signalled;                  /* event_fd is readable; written under lock */
    atomic_bool open;
    atomic_bool hidden;           /* not a context of the program */
    atomic_bool completions_only; /* unexpected messages do not make its descriptor readable */
    atomic_bool claimed;          /* in use, or being freed */
    _Atomic(bmi_context_id) id;   /* set while claimed; read also with a stale id */
    uint32_t slot, generation;
    atomic_uint ready_count;      /* operations in `ready`; written under lock */
    _Atomic uint64_t completions; /* how many were reported; written under lock */
    _Atomic uint64_t immediate;
    _Atomic(bmi__context_hook) hook; /* or NULL */
    void *hook_argument;             /* set before hook */
    atomic_uint hook_users;          /* calls of the hook that are under way */
};

/* NULL: the waiters for unexpected messages. */
static inline struct waiter_list *context_waiters(struct context *context)
{
    return context != NULL ? &context->waiters : NULL;
}

/* The context that a waiter waits on; it waits on one. */
static inline struct context *waiter_context(const struct waiter *waiter)
{
    return (struct context *)((char *)waiter->list - offsetof(struct context, waiters));
}

int bmi__context_open(struct bmi_instance *instance, bmi_context_id *id);
void bmi__context_release(struct context *context);
/* NULL: no such context. */
struct context *bmi__context_find(bmi_context_id id);
/* Calls that for each open context of the instance. */
void bmi__context_each(struct bmi_instance *instance,
                       void (*visit)(bmi_context_id id, void *argument), void *argument);
/* Marks a context of the library itself, for example of flows. bmi__context_only ignores it. */
void bmi__context_hide(struct context *context);
/* Unexpected messages do not make its descriptor readable: a job context takes them by its hook. */
void bmi__context_completions_only(struct context *context);
/* The only open context of the program's in the instance, or NULL if there are none or several. */
struct context *bmi__context_only(struct bmi_instance *instance);
int bmi__contexts_open(struct bmi_instance *instance);
void bmi__contexts_close(struct bmi_instance *instance);
/* Frees the process's table. No instance is open. */
void bmi__context_table_free(void);

/* Sets a context's hook if it has none, or removes it (NULL). After a removal returns, the hook is
 * not running. Call neither from within the hook, nor with a lock held that the hook takes. */
void bmi__context_set_hook(struct context *context, bmi__context_hook hook, void *argument);

/* Puts a completed operation into its context and wakes the threads that wait for it. Any thread.
 * The caller may hold any lock but the context's and progress's. */
void bmi__context_complete(struct op *op);
/* Counts an operation that completed within its post. */
void bmi__context_immediate(struct context *context);
/* Completed operations that wait to be taken out. */
uint64_t bmi__context_depth(struct context *context);
/* Whether something waits to be taken out; a hint without the lock. */
bool bmi__context_has(struct context *context);
/* Whether it holds a completion that no waiting thread of the context will take. */
bool bmi__context_unclaimed(struct context *context);
/* Whether nothing waits to be taken out, and its descriptor says so. */
bool bmi__context_quiet(struct context *context);
/* Takes out up to `most` completed operations, in order. Call bmi__context_take, which is quick
 * where there are none. */
int bmi__context_take_any(struct context *context, struct op **ops, int most);
static inline int bmi__context_take(struct context *context, struct op **ops, int most)
{
    return bmi__context_quiet(context) ? 0 : bmi__context_take_any(context, ops, most);
}
/* Takes out this operation if it has completed. */
bool bmi__context_take_op(struct context *context, struct op *op, bmi_op_id_t id);
/* The descriptor to poll. Returns it or an errno. */
int bmi__context_fd(struct context *context);
/* An unexpected message waits: makes the descriptors of contexts readable. */
void bmi__contexts_signal(struct bmi_instance *instance);

#endif
