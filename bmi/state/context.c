/* SPDX-License-Identifier: BSD-3-Clause
 *
 * context.c - see context.h. Lock order: a context's lock is innermost but for progress's.
 *
 * The descriptor for a program's own loop is an epoll set of its own, which holds the network's
 * (readable when a method has work) and event_fd (readable when a completion waits).
 */
#include "bmi/state/context.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "bmi/base/instance.h"
#include "bmi/progress/progress.h"
#include "bmi/progress/waiters.h"
#include "bmi/progress/wakeup.h"
#include "bmi/state/library.h"
#include "bmi/state/op.h"

enum { CONTEXTS = 1 << 16 };

static _Atomic(struct context *) contexts[CONTEXTS];
static atomic_uint slots_used; /* slots that were ever in use; grows under table_lock */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t generations; /* table_lock; never starts again, so that no id of an earlier
                                initialization is an id of this one */

/* What an instance knows of its contexts. */
struct bmi__contexts {
    atomic_uint open_count;
    _Atomic(struct context *) last_only; /* bmi__context_only's last result; checked again */

    /* Contexts that a program polls and that are not signalled. An unexpected message signals all
     * of them and empties the list. A context returns to it when the program has looked, so that
     * one signal is given for each look. */
    pthread_mutex_t quiet_lock;            /* innermost */
    _Atomic(struct context *) quiet_first; /* quiet_lock; read without it */
};

static struct context *context_make(uint32_t slot)
{
    struct context *context = calloc(1, sizeof *context);
    if (context == NULL)
        return NULL;
    context->slot = slot;
    atomic_init(&context->event_fd, -1);
    context->poll_fd = -1;
    __cds_wfcq_init(&context->incoming, &context->incoming_tail);
    atomic_store(&contexts[slot], context);
    return context;
}

/* table_lock held: a context that is free, made if need be. */
static struct context *context_claim_locked(void)
{
    unsigned used = atomic_load(&slots_used);
    for (unsigned i = 0; i < used; i++) {
        struct context *context = atomic_load(&contexts[i]);
        if (!atomic_load(&context->claimed))
            return context;
    }
    if (used == CONTEXTS)
        return NULL;
    struct context *context = context_make(used);
    if (context != NULL)
        atomic_store(&slots_used, used + 1);
    return context;
}

int bmi__context_open(struct bmi_instance *instance, bmi_context_id *id)
{
    struct bmi__contexts *all = instance->contexts;
    pthread_mutex_lock(&table_lock);
    struct context *context = context_claim_locked();
    if (context != NULL) {
        generations = (generations + 1) & 0x7fffffff;
        context->generation = generations;
        context->instance = instance;
        *id = (bmi_context_id)((uint64_t)context->generation << 32 | (context->slot + 1));
        atomic_store(&context->id, *id);
        context->completions = context->immediate = 0;
        atomic_store(&context->claimed, true);
        atomic_store(&context->hidden, false);
        atomic_store(&context->completions_only, false);
        atomic_store(&context->open, true);
        atomic_fetch_add(&all->open_count, 1);
    }
    pthread_mutex_unlock(&table_lock);
    return context != NULL ? 0 : -ENOMEM;
}

static void quiet_remove(struct context *context)
{
    struct bmi__contexts *all = context->instance->contexts;
    pthread_mutex_lock(&all->quiet_lock);
    if (context->quiet_place != NULL) {
        atomic_store(context->quiet_place, context->quiet_next);
        struct context *next = atomic_load(&context->quiet_next);
        if (next != NULL)
            next->quiet_place = context->quiet_place;
        context->quiet_place = NULL;
    }
    pthread_mutex_unlock(&all->quiet_lock);
}

static void quiet_add(struct context *context)
{
    struct bmi__contexts *all = context->instance->contexts;
    pthread_mutex_lock(&all->quiet_lock);
    if (context->quiet_place == NULL && !atomic_load(&context->completions_only)) {
        struct context *first = atomic_load(&all->quiet_first);
        atomic_store(&context->quiet_next, first);
        context->quiet_place = &all->quiet_first;
        if (first != NULL)
            first->quiet_place = &context->quiet_next;
        atomic_store(&all->quiet_first, context);
    }
    pthread_mutex_unlock(&all->quiet_lock);
}

static void descriptors_close_locked(struct context *context)
{
    quiet_remove(context);
    int event_fd = atomic_exchange(&context->event_fd, -1);
    if (event_fd >= 0)
        close(event_fd);
    if (context->poll_fd >= 0)
        close(context->poll_fd);
    context->poll_fd = -1;
    context->signalled = false;
}

void bmi__context_release(struct context *context)
{
    struct bmi_instance *instance = context->instance;
    struct bmi__contexts *all = instance->contexts;
    bmi__context_set_hook(context, NULL, NULL);
    bmi_lock_take(&context->lock);
    descriptors_close_locked(context);
    bmi_lock_give(&context->lock);
    pthread_mutex_lock(&table_lock);
    bool counted = atomic_exchange(&context->open, false) && !atomic_load(&context->hidden);
    if (counted)
        atomic_fetch_sub(&all->open_count, 1);
    atomic_store(&context->claimed, false);
    pthread_mutex_unlock(&table_lock);
    /* another may be the only context, and have completions */
    if (counted)
        bmi__progress_notify(instance, NULL, 0);
}

struct context *bmi__context_find(bmi_context_id id)
{
    uint32_t slot = (uint32_t)id - 1;
    if (id <= 0 || slot >= atomic_load_explicit(&slots_used, memory_order_acquire))
        return NULL;
    struct context *context = atomic_load_explicit(&contexts[slot], memory_order_relaxed);
    if (!atomic_load_explicit(&context->open, memory_order_acquire) ||
        atomic_load_explicit(&context->id, memory_order_relaxed) != id)
        return NULL;
    return context;
}

void bmi__context_each(struct bmi_instance *instance,
                       void (*visit)(bmi_context_id id, void *argument), void *argument)
{
    pthread_mutex_lock(&table_lock);
    unsigned used = atomic_load(&slots_used);
    for (unsigned i = 0; i < used; i++) {
        struct context *context = atomic_load(&contexts[i]);
        if (atomic_load(&context->open) && context->instance == instance)
            visit(atomic_load(&context->id), argument);
    }
    pthread_mutex_unlock(&table_lock);
}

void bmi__context_hide(struct context *context)
{
    struct bmi__contexts *all = context->instance->contexts;
    if (atomic_exchange(&context->hidden, true))
        return;
    atomic_fetch_sub(&all->open_count, 1);
    /* another may be the only context, and have completions */
    bmi__progress_notify(context->instance, NULL, 0);
}

void bmi__context_completions_only(struct context *context)
{
    atomic_store(&context->completions_only, true);
}

static bool is_programs(const struct context *context, const struct bmi_instance *instance)
{
    return atomic_load(&context->open) && !atomic_load(&context->hidden) &&
           context->instance == instance;
}

struct context *bmi__context_only(struct bmi_instance *instance)
{
    struct bmi__contexts *all = instance->contexts;
    if (atomic_load_explicit(&all->open_count, memory_order_relaxed) != 1)
        return NULL;
    struct context *last = atomic_load(&all->last_only);
    if (last != NULL && is_programs(last, instance))
        return last;
    unsigned used = atomic_load(&slots_used);
    for (unsigned i = 0; i < used; i++) {
        struct context *context = atomic_load(&contexts[i]);
        if (!is_programs(context, instance))
            continue;
        atomic_store(&all->last_only, context);
        return context;
    }
    return NULL;
}

/* Whether an unexpected message waits for which the context's descriptor must become readable. */
static bool message_to_tell(struct context *context)
{
    return !atomic_load(&context->completions_only) && bmi__unexpected_waiting(context->instance);
}

static void signal_locked(struct context *context)
{
    int fd = atomic_load(&context->event_fd);
    if (fd < 0 || context->signalled)
        return;
    context->signalled = true;
    quiet_remove(context);
    eventfd_write(fd, 1);
}

static void unsignal_locked(struct context *context)
{
    eventfd_t value;
    if (!context->signalled || bmi__context_has(context) || message_to_tell(context))
        return;
    context->signalled = false;
    eventfd_read(atomic_load(&context->event_fd), &value);
    quiet_add(context);
    if (message_to_tell(context)) /* it arrived before the context was on the list */
        signal_locked(context);
}

/* A thread that counts itself after the hook was removed finds no hook. The remover waits for
 * threads that counted themselves before. */
static void hook_call(struct context *context)
{
    if (atomic_load_explicit(&context->hook, memory_order_relaxed) == NULL)
        return;
    atomic_fetch_add(&context->hook_users, 1);
    bmi__context_hook hook = atomic_load(&context->hook);
    if (hook != NULL)
        hook(context->hook_argument, false);
    atomic_fetch_sub(&context->hook_users, 1);
}

void bmi__context_set_hook(struct context *context, bmi__context_hook hook, void *argument)
{
    if (hook != NULL)
        context->hook_argument = argument;
    atomic_store(&context->hook, hook);
    while (hook == NULL && atomic_load(&context->hook_users) > 0)
        sched_yield(); /* a hook only queues something */
}

void bmi__context_complete(struct op *op)
{
    struct context *context = op->context;
    bmi_op_id_t id = bmi__op_id(op);
    op->completed.next = NULL; /* cds_wfcq_node_init, without a call */
    atomic_store_explicit(&op->ready, false, memory_order_release); /* for ThreadSanitizer */
    cds_wfcq_enqueue(&context->incoming, &context->incoming_tail, &op->completed);
    /* From here on, the thread that takes `op` owns it. */
    if (atomic_load(&context->event_fd) >= 0) {
        bmi_lock_take(&context->lock);
        signal_locked(context);
        bmi_lock_give(&context->lock);
    }
    bmi__progress_notify(context->instance, &context->waiters, id);
    hook_call(context);
}

void bmi__context_immediate(struct context *context)
{
    bmi_add(&context->immediate, 1);
}

/* Sequentially consistent, as waiters.c needs it; cds_wfcq_empty promises no order. The thread that
 * appended an operation may still have to link it. */
static bool incoming_any(struct context *context)
{
    return __atomic_load_n(&context->incoming_tail.p, __ATOMIC_SEQ_CST) != &context->incoming.node;
}

bool bmi__context_has(struct context *context)
{
    return incoming_any(context) ||
           atomic_load_explicit(&context->ready_count, memory_order_relaxed) > 0;
}

/* A thread that appends links its operation one instruction after the tail shows it. If it lost its
 * CPU there, it gets this one. The library's own wait, which sleeps 10 ms, is for threads of lower
 * priority, to which a CPU cannot be yielded. */
static struct cds_wfcq_node *oldest_incoming_locked(struct context *context)
{
    enum { YIELDS = 1000 };
    for (int i = 0; i < YIELDS; i++) {
        struct cds_wfcq_node *node =
            __cds_wfcq_dequeue_nonblocking(&context->incoming, &context->incoming_tail);
        if (node != CDS_WFCQ_WOULDBLOCK)
            return node;
        sched_yield();
    }
    return __cds_wfcq_dequeue_blocking(&context->incoming, &context->incoming_tail);
}

/* The queue orders the memory accesses of both threads. ThreadSanitizer, which does not see into
 * the library, learns that from `ready`. */
static struct op *incoming_take_locked(struct context *context)
{
    struct cds_wfcq_node *node = oldest_incoming_locked(context);
    if (node == NULL)
        return NULL;
    struct op *op = caa_container_of(node, struct op, completed);
    (void)atomic_load_explicit(&op->ready, memory_order_acquire);
    return op;
}

/* Moves incoming to ready. */
static void gather_locked(struct context *context)
{
    if (!incoming_any(context))
        return;
    /* The sum is never 0 in between: a thread that looks without the lock finds the operation in
     * one of the two. */
    unsigned count = atomic_load_explicit(&context->ready_count, memory_order_relaxed);
    atomic_store_explicit(&context->ready_count, count + 1, memory_order_relaxed);
    for (struct op *op; (op = incoming_take_locked(context)) != NULL; count++) {
        atomic_store_explicit(&op->ready, true, memory_order_relaxed);
        bmi__op_append(&context->ready, op);
    }
    atomic_store_explicit(&context->ready_count, count, memory_order_relaxed);
}

bool bmi__context_unclaimed(struct context *context)
{
    if (atomic_load(&context->waiters.count) == 0)
        return bmi__context_has(context);
    if (bmi__waiters_claim(context->instance, &context->waiters, 0))
        return false;
    bmi_lock_take(&context->lock);
    gather_locked(context);
    struct op *op = context->ready.first;
    while (op != NULL && bmi__waiters_claim(context->instance, &context->waiters, bmi__op_id(op)))
        op = op->next;
    bmi_lock_give(&context->lock);
    return op != NULL;
}

static void ready_remove_locked(struct context *context, struct op *op)
{
    unsigned left = atomic_load_explicit(&context->ready_count, memory_order_relaxed);
    bmi__op_remove(&context->ready, op);
    atomic_store_explicit(&op->ready, false, memory_order_relaxed);
    atomic_store_explicit(&context->ready_count, left - 1, memory_order_relaxed);
}

static struct op *oldest_take_locked(struct context *context)
{
    struct op *op = context->ready.first;
    if (op == NULL)
        return incoming_take_locked(context);
    ready_remove_locked(context, op);
    return op;
}

static void reported_locked(struct context *context, int count)
{
    uint64_t before = atomic_load_explicit(&context->completions, memory_order_relaxed);
    atomic_store_explicit(&context->completions, before + (uint64_t)count, memory_order_relaxed);
}

uint64_t bmi__context_depth(struct context *context)
{
    bmi_lock_take(&context->lock);
    gather_locked(context);
    bmi_lock_give(&context->lock);
    return atomic_load(&context->ready_count);
}

bool bmi__context_quiet(struct context *context)
{
    return !bmi__context_has(context) && !context->signalled;
}

int bmi__context_take_any(struct context *context, struct op **ops, int most)
{
    int count = 0;
    bmi_lock_take(&context->lock);
    while (count < most && (ops[count] = oldest_take_locked(context)) != NULL)
        count++;
    reported_locked(context, count);
    unsignal_locked(context);
    bmi_lock_give(&context->lock);
    return count;
}

bool bmi__context_take_op(struct context *context, struct op *op, bmi_op_id_t id)
{
    if (!bmi__context_has(context))
        return false;
    bmi_lock_take(&context->lock);
    gather_locked(context);
    bool taken = bmi__op_id(op) == id && op->context == context && op->ready;
    if (taken) {
        ready_remove_locked(context, op);
        reported_locked(context, 1);
    }
    unsignal_locked(context);
    bmi_lock_give(&context->lock);
    return taken;
}

static int fd_make_locked(struct context *context)
{
    struct epoll_event event = {.events = EPOLLIN};
    int event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int poll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (event_fd < 0 || poll_fd < 0 || epoll_ctl(poll_fd, EPOLL_CTL_ADD, event_fd, &event) < 0 ||
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, bmi__progress_fd(context->instance), &event) < 0) {
        int error = errno == EINVAL ? EMFILE : errno; /* the kernel limits nested epoll sets */
        if (event_fd >= 0)
            close(event_fd);
        if (poll_fd >= 0)
            close(poll_fd);
        return -error;
    }
    atomic_store(&context->event_fd, event_fd);
    quiet_add(context);
    bmi__progress_fd_used(context->instance);
    return context->poll_fd = poll_fd;
}

int bmi__context_fd(struct context *context)
{
    bmi_lock_take(&context->lock);
    int fd = context->poll_fd;
    if (fd < 0)
        fd = fd_make_locked(context);
    if (fd >= 0 && (bmi__context_has(context) || message_to_tell(context)))
        signal_locked(context);
    bmi_lock_give(&context->lock);
    return fd;
}

void bmi__contexts_signal(struct bmi_instance *instance)
{
    struct bmi__contexts *all = instance->contexts;
    while (atomic_load(&all->quiet_first) != NULL) {
        pthread_mutex_lock(&all->quiet_lock);
        struct context *context = atomic_load(&all->quiet_first);
        pthread_mutex_unlock(&all->quiet_lock);
        if (context == NULL)
            return;
        bmi_lock_take(&context->lock);
        signal_locked(context);
        bmi_lock_give(&context->lock);
    }
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__contexts_open(struct bmi_instance *instance)
{
    struct bmi__contexts *all = calloc(1, sizeof *all);
    if (all == NULL)
        return -ENOMEM;
    pthread_mutex_init(&all->quiet_lock, NULL);
    instance->contexts = all;
    return 0;
}

static void drop_completions(struct context *context)
{
    struct op *op;
    while (bmi__context_take(context, &op, 1) == 1)
        bmi__op_give(op);
}

/* The memory of its contexts stays in the table for later ones. */
void bmi__contexts_close(struct bmi_instance *instance)
{
    if (instance->contexts == NULL)
        return;
    pthread_mutex_lock(&table_lock);
    unsigned used = atomic_load(&slots_used);
    for (unsigned i = 0; i < used; i++) {
        struct context *context = atomic_load(&contexts[i]);
        if (!atomic_load(&context->claimed) || context->instance != instance)
            continue;
        drop_completions(context);
        descriptors_close_locked(context);
        atomic_store(&context->hook, NULL);
        atomic_store(&context->open, false);
        atomic_store(&context->claimed, false);
    }
    pthread_mutex_unlock(&table_lock);
    free(instance->contexts);
    instance->contexts = NULL;
}

void bmi__context_table_free(void)
{
    unsigned used = atomic_exchange(&slots_used, 0);
    for (unsigned i = 0; i < used; i++)
        free(atomic_exchange(&contexts[i], NULL));
}
