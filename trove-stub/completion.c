/* SPDX-License-Identifier: BSD-3-Clause
 *
 * completion.c - ids, contexts, queues of completed operations, and waiting. See completion.h.
 *
 * No completion is missed: a waiting thread enters the list and checks under one hold of the lock,
 * and a completing thread queues and signals under one hold of it. Completions that need tasks or
 * `progress` wake a waiting thread through its task waker or the source, which it polls together.
 */
#include "trove-stub/completion.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "task/internal.h"

enum { CONTEXTS_MAX = 1 << 16, SLOTS_MAX = 1 << 30, BLIND_NS = 5000000 };

/* Under the space's lock. */
struct bmi__queue_context {
    int64_t id;
    void *owner;                      /* constant */
    struct bmi__posted *first, **end; /* READY */
    uint32_t outstanding;             /* not reported yet */
    int event_fd, poll_fd;            /* -1: not requested */
    bool signalled;                   /* event_fd is readable */
    bool closing;
    void (*notify)(void *argument);
    void *argument;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int64_t id_make(uint32_t generation, uint32_t slot)
{
    return (int64_t)((uint64_t)(generation & 0x7fffffff) << 32 | (slot + 1));
}

/* ---- slots ----------------------------------------------------------------------------------- */

static bool slots_grow_locked(struct bmi__space *space)
{
    uint32_t count = space->slot_count > 0 ? space->slot_count * 2 : 64;
    if (count > SLOTS_MAX)
        return false;
    struct bmi__space_slot *slots = realloc(space->slots, count * sizeof *slots);
    if (slots == NULL)
        return false;
    for (uint32_t i = space->slot_count; i < count; i++) {
        slots[i] = (struct bmi__space_slot){.next_free = space->free_slot};
        space->free_slot = i + 1;
    }
    space->slots = slots;
    space->slot_count = count;
    return true;
}

static bool slot_take_locked(struct bmi__space *space, struct bmi__posted *posted)
{
    if (space->free_slot == 0 && !slots_grow_locked(space))
        return false;
    uint32_t slot = space->free_slot - 1;
    space->free_slot = space->slots[slot].next_free;
    space->slots[slot].posted = posted;
    posted->id = id_make(++space->slots[slot].generation, slot);
    return true;
}

static void slot_give_locked(struct bmi__space *space, const struct bmi__posted *posted)
{
    uint32_t slot = (uint32_t)posted->id - 1;
    space->slots[slot].posted = NULL;
    space->slots[slot].next_free = space->free_slot;
    space->free_slot = slot + 1;
}

static struct bmi__posted *find_locked(struct bmi__space *space, int64_t id,
                                       const struct bmi__queue_context *context)
{
    uint32_t slot = (uint32_t)id - 1;
    if (id <= 0 || slot >= space->slot_count)
        return NULL;
    struct bmi__posted *posted = space->slots[slot].posted;
    return posted != NULL && posted->id == id && posted->context == context ? posted : NULL;
}

/* ---- contexts -------------------------------------------------------------------------------- */

static struct bmi__queue_context *context_locked(struct bmi__space *space, int64_t id)
{
    uint32_t slot = (uint32_t)id - 1;
    if (id <= 0 || slot >= space->context_count)
        return NULL;
    struct bmi__queue_context *context = space->contexts[slot];
    return context != NULL && context->id == id && !context->closing ? context : NULL;
}

static int context_slot_locked(struct bmi__space *space)
{
    for (uint32_t i = 0; i < space->context_count; i++)
        if (space->contexts[i] == NULL)
            return (int)i;
    uint32_t count = space->context_count > 0 ? space->context_count * 2 : 8;
    if (count > CONTEXTS_MAX)
        return -ENOMEM;
    struct bmi__queue_context **contexts = realloc(space->contexts, count * sizeof(void *));
    if (contexts == NULL)
        return -ENOMEM;
    for (uint32_t i = space->context_count; i < count; i++)
        contexts[i] = NULL;
    space->contexts = contexts;
    int slot = (int)space->context_count;
    space->context_count = count;
    return slot;
}

int bmi__space_open_context(struct bmi__space *space, void *owner, int64_t *id)
{
    if (id == NULL)
        return -BMI_EINVAL;
    int source = space->source(owner);
    if (source < 0)
        return bmi_status_of(source);
    struct bmi__queue_context *context = calloc(1, sizeof *context);
    if (context == NULL)
        return -BMI_ENOMEM;
    context->owner = owner;
    context->end = &context->first;
    context->event_fd = context->poll_fd = -1;
    pthread_mutex_lock(&space->lock);
    int slot = context_slot_locked(space);
    if (slot >= 0) {
        context->id = id_make(++space->context_generation, (uint32_t)slot);
        space->contexts[slot] = context;
        *id = context->id;
    }
    pthread_mutex_unlock(&space->lock);
    if (slot < 0)
        free(context);
    return slot < 0 ? -BMI_ENOMEM : 0;
}

void bmi__space_forget(struct bmi__space *space)
{
    pthread_mutex_init(&space->lock, NULL);
    space->slots = NULL;
    space->slot_count = space->free_slot = 0;
    space->contexts = NULL;
    space->context_count = 0; /* the generation continues: earlier ids stay unknown */
    space->waiters = space->idle_waiters = NULL;
}

static int fd_make_locked(struct bmi__space *space, struct bmi__queue_context *context)
{
    struct epoll_event event = {.events = EPOLLIN};
    int event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int poll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (event_fd < 0 || poll_fd < 0 || epoll_ctl(poll_fd, EPOLL_CTL_ADD, event_fd, &event) < 0 ||
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, space->source(context->owner), &event) < 0) {
        int error = errno;
        if (event_fd >= 0)
            close(event_fd);
        if (poll_fd >= 0)
            close(poll_fd);
        return bmi_status_of(-error);
    }
    if (space->fd_used != NULL)
        space->fd_used(context->owner);
    context->event_fd = event_fd;
    return context->poll_fd = poll_fd;
}

static void signal_locked(struct bmi__queue_context *context)
{
    if (context->event_fd < 0 || context->signalled)
        return;
    context->signalled = true;
    eventfd_write(context->event_fd, 1);
}

static void unsignal_locked(struct bmi__queue_context *context)
{
    eventfd_t value;
    if (!context->signalled || context->first != NULL)
        return;
    context->signalled = false;
    eventfd_read(context->event_fd, &value);
}

int bmi__space_context_fd(struct bmi__space *space, int64_t id)
{
    pthread_mutex_lock(&space->lock);
    struct bmi__queue_context *context = context_locked(space, id);
    int fd = context == NULL ? -BMI_EINVAL : context->poll_fd;
    if (fd == -1)
        fd = fd_make_locked(space, context);
    if (fd >= 0 && context->first != NULL)
        signal_locked(context);
    pthread_mutex_unlock(&space->lock);
    return fd;
}

int bmi__space_context_notify(struct bmi__space *space, int64_t id, void (*notify)(void *argument),
                              void *argument)
{
    pthread_mutex_lock(&space->lock);
    struct bmi__queue_context *context = context_locked(space, id);
    if (context != NULL) {
        context->notify = notify;
        context->argument = argument;
    }
    pthread_mutex_unlock(&space->lock);
    return context != NULL ? 0 : -BMI_EINVAL;
}

void *bmi__posted_owner(const struct bmi__posted *posted)
{
    return posted->context->owner;
}

void *bmi__space_context_owner(struct bmi__space *space, int64_t id)
{
    pthread_mutex_lock(&space->lock);
    const struct bmi__queue_context *context = context_locked(space, id);
    void *owner = context != NULL ? context->owner : NULL;
    pthread_mutex_unlock(&space->lock);
    return owner;
}

struct closing {
    struct bmi__space *space;
    struct bmi__queue_context *context;
};

static bool queue_complete(void *argument)
{
    struct closing *closing = argument;
    uint32_t ready = 0;
    pthread_mutex_lock(&closing->space->lock);
    for (struct bmi__posted *one = closing->context->first; one != NULL; one = one->next)
        ready++;
    bool complete = ready == closing->context->outstanding;
    pthread_mutex_unlock(&closing->space->lock);
    return complete;
}

static void cancel_all_locked(struct bmi__space *space, const struct bmi__queue_context *context)
{
    for (uint32_t i = 0; i < space->slot_count; i++) {
        struct bmi__posted *posted = space->slots[i].posted;
        if (posted != NULL && posted->context == context && posted->state == POSTED_PENDING)
            space->cancel(posted);
    }
}

int bmi__space_close_context(struct bmi__space *space, int64_t id)
{
    pthread_mutex_lock(&space->lock);
    struct bmi__queue_context *context = context_locked(space, id);
    if (context != NULL) {
        context->closing = true;
        context->notify = NULL;
        cancel_all_locked(space, context);
    }
    pthread_mutex_unlock(&space->lock);
    if (context == NULL)
        return -BMI_EINVAL;
    bmi__space_wait_until(space, context->owner, queue_complete,
                          &(struct closing){.space = space, .context = context});
    pthread_mutex_lock(&space->lock);
    space->contexts[(uint32_t)id - 1] = NULL;
    for (struct bmi__posted *one = context->first; one != NULL; one = one->next)
        slot_give_locked(space, one);
    pthread_mutex_unlock(&space->lock);
    for (struct bmi__posted *one = context->first, *next; one != NULL; one = next) {
        next = one->next;
        space->destroy(one);
    }
    if (context->event_fd >= 0) {
        close(context->event_fd);
        close(context->poll_fd);
    }
    free(context);
    return 0;
}

/* ---- waiters --------------------------------------------------------------------------------- */

/* Any thread, any lock held: it takes no lock, except in the space's wake function. */
static void waiter_wake(struct bmi__space_waiter *waiter)
{
    atomic_store(&waiter->woken, true);
    if (atomic_load(&waiter->elsewhere))
        waiter->space->wake(waiter->owner);
    else if (waiter->fd >= 0)
        eventfd_write(waiter->fd, 1);
}

static void waiter_signal_locked(struct bmi__space_waiter *waiter)
{
    if (waiter->signalled)
        return;
    waiter->signalled = true;
    waiter_wake(waiter);
}

/* Of the threads that take any completion of the context, it wakes only one. */
static void waiters_signal_locked(struct bmi__space *space,
                                  const struct bmi__queue_context *context)
{
    bool any_woken = false;
    for (struct bmi__space_waiter *waiter = space->waiters; waiter != NULL; waiter = waiter->next) {
        bool concerned = waiter->context == NULL || waiter->context == context;
        if (!concerned || (waiter->any && (any_woken || waiter->signalled)))
            continue;
        waiter_signal_locked(waiter);
        any_woken = any_woken || waiter->any;
    }
}

void bmi__space_wake(struct bmi__space *space, const void *owner)
{
    pthread_mutex_lock(&space->lock);
    for (struct bmi__space_waiter *waiter = space->waiters; waiter != NULL; waiter = waiter->next)
        if (waiter->owner == owner)
            waiter_wake(waiter);
    pthread_mutex_unlock(&space->lock);
}

/* Called by the task manager with a lock of its own held. */
static void waker_wake(struct bmi_task_waker *waker)
{
    struct bmi__space_waiter *waiter =
        (struct bmi__space_waiter *)((char *)waker - offsetof(struct bmi__space_waiter, waker));
    waiter_wake(waiter);
}

/* NULL: errno has the cause. */
static struct bmi__space_waiter *waiter_make(void)
{
    struct bmi__space_waiter *waiter = calloc(1, sizeof *waiter);
    if (waiter == NULL)
        return NULL;
    waiter->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (waiter->fd < 0) {
        int error = errno;
        free(waiter);
        errno = error;
        return NULL;
    }
    return waiter;
}

/* Enters a waiting thread into the list. If no memory or descriptor is left, uses `instead`, which
 * is the caller's and has no descriptor, or returns NULL with errno. */
static struct bmi__space_waiter *waiter_enlist(struct bmi__space *space, void *owner,
                                               const struct bmi__queue_context *context, bool any,
                                               struct bmi__space_waiter *instead)
{
    pthread_mutex_lock(&space->lock);
    struct bmi__space_waiter *waiter = space->idle_waiters;
    if (waiter != NULL)
        space->idle_waiters = waiter->next;
    pthread_mutex_unlock(&space->lock);
    if (waiter == NULL && (waiter = waiter_make()) == NULL && (waiter = instead) == NULL)
        return NULL;
    waiter->waker.wake = waker_wake;
    waiter->space = space;
    waiter->owner = owner;
    waiter->context = context;
    waiter->any = any;
    waiter->signalled = false;
    atomic_store(&waiter->woken, false);
    pthread_mutex_lock(&space->lock);
    waiter->next = space->waiters;
    space->waiters = waiter;
    pthread_mutex_unlock(&space->lock);
    return waiter;
}

/* A thread that leaves without taking all completions wakes the next one. */
static void waiter_delist(struct bmi__space *space, struct bmi__space_waiter *waiter)
{
    eventfd_t value;
    pthread_mutex_lock(&space->lock);
    struct bmi__space_waiter **link = &space->waiters;
    while (*link != waiter)
        link = &(*link)->next;
    *link = waiter->next;
    if (waiter->fd >= 0) {
        eventfd_read(waiter->fd, &value);
        waiter->next = space->idle_waiters;
        space->idle_waiters = waiter;
    }
    if (waiter->context != NULL && waiter->any && waiter->context->first != NULL)
        waiters_signal_locked(space, waiter->context);
    pthread_mutex_unlock(&space->lock);
}

/* Without a descriptor only the source can wake the thread: it checks every few milliseconds. */
static void waiter_poll(struct bmi__space_waiter *waiter, int64_t left_ns)
{
    if (waiter->fd < 0 && (left_ns < 0 || left_ns > BLIND_NS))
        left_ns = BLIND_NS;
    struct pollfd fds[2] = {{.fd = waiter->fd, .events = POLLIN},
                            {.fd = waiter->space->source(waiter->owner), .events = POLLIN}};
    struct timespec limit = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};
    if (!atomic_load(&waiter->woken))
        ppoll(fds, 2, left_ns < 0 ? NULL : &limit, NULL);
}

/* Sleeps until an event that may concern the thread, or until the time is over. */
static void waiter_sleep(struct bmi__space *space, struct bmi__space_waiter *waiter,
                         int64_t left_ns)
{
    struct bmi_task_manager *manager = bmi_task_manager_default();
    eventfd_t value;
    bool elsewhere = space->sleeps != NULL && space->sleeps(waiter->owner);
    atomic_store(&waiter->elsewhere, elsewhere);
    if (bmi_task_waker_arm(manager, &waiter->waker)) {
        if (elsewhere)
            space->sleep(waiter, left_ns);
        else
            waiter_poll(waiter, left_ns);
    }
    bmi_task_waker_disarm(manager, &waiter->waker);
    pthread_mutex_lock(&space->lock);
    waiter->signalled = false;
    if (!elsewhere && waiter->fd >= 0)
        eventfd_read(waiter->fd, &value);
    atomic_store(&waiter->woken, false);
    pthread_mutex_unlock(&space->lock);
}

/* Makes progress and runs tasks until `look` has found something or the time is over (deadline 0:
 * at once; UINT64_MAX: never). `instead`: see waiter_enlist. Returns -BMI_EMFILE or -BMI_ENOMEM,
 * where it cannot wait, or 0. */
static int wait_for(struct bmi__space *space, void *owner, const struct bmi__queue_context *context,
                    bool any, struct bmi__space_waiter *instead, bool (*look)(void *argument),
                    void *argument, uint64_t deadline)
{
    space->progress(owner);
    bmi_task_schedule(NULL);
    if (look(argument) || deadline == 0)
        return 0;
    struct bmi__space_waiter *waiter = waiter_enlist(space, owner, context, any, instead);
    if (waiter == NULL)
        return bmi_status_of(-errno);
    while (!look(argument)) {
        uint64_t now = deadline == UINT64_MAX ? 0 : now_ns();
        if (now >= deadline)
            break;
        waiter_sleep(space, waiter, deadline == UINT64_MAX ? -1 : (int64_t)(deadline - now));
        space->progress(owner);
        bmi_task_schedule(NULL);
    }
    waiter_delist(space, waiter);
    return 0;
}

static uint64_t deadline_of(int max_idle_ms)
{
    return max_idle_ms == 0 ? 0 : now_ns() + (uint64_t)max_idle_ms * 1000000;
}

void bmi__space_wait_until(struct bmi__space *space, void *owner, bool (*done)(void *argument),
                           void *argument)
{
    struct bmi__space_waiter blind = {.fd = -1};
    bmi__tasks_needed();
    while (!done(argument))
        wait_for(space, owner, NULL, false, &blind, done, argument, UINT64_MAX);
    bmi__tasks_needed_end();
}

/* ---- posts and completions ------------------------------------------------------------------- */

int bmi__posted_begin(struct bmi__space *space, struct bmi__posted *posted, int64_t context,
                      void *user_ptr, int64_t *id)
{
    int result = 0;
    pthread_mutex_lock(&space->lock);
    posted->context = context_locked(space, context);
    posted->user_ptr = user_ptr;
    posted->state = POSTED_POSTING;
    posted->cancelled = false;
    if (posted->context == NULL)
        result = -EINVAL;
    else if (!slot_take_locked(space, posted))
        result = -ENOMEM;
    if (result == 0) {
        posted->context->outstanding++;
        *id = posted->id;
    }
    pthread_mutex_unlock(&space->lock);
    return result;
}

static void ready_locked(struct bmi__space *space, struct bmi__posted *posted)
{
    struct bmi__queue_context *context = posted->context;
    posted->state = POSTED_READY;
    posted->next = NULL;
    posted->link_to_me = context->end;
    *context->end = posted;
    context->end = &posted->next;
    signal_locked(context);
    waiters_signal_locked(space, context);
    if (context->notify != NULL)
        context->notify(context->argument);
}

void bmi__posted_complete(struct bmi__space *space, struct bmi__posted *posted,
                          bmi_error_code_t error, bmi_size_t actual)
{
    pthread_mutex_lock(&space->lock);
    posted->error = error;
    posted->actual = actual;
    if (space->completed != NULL)
        space->completed(posted);
    if (posted->state == POSTED_POSTING)
        posted->state = POSTED_DONE;
    else
        ready_locked(space, posted);
    pthread_mutex_unlock(&space->lock);
}

int bmi__posted_end(struct bmi__space *space, struct bmi__posted *posted,
                    enum bmi__posted_immediate immediate, int64_t *id)
{
    int result = 0;
    pthread_mutex_lock(&space->lock);
    bool done = posted->state == POSTED_DONE;
    bool at_once = done && immediate != POSTED_IMMEDIATE_NEVER &&
                   (posted->error == 0 || immediate == POSTED_IMMEDIATE_ALWAYS);
    if (at_once) {
        result = posted->error != 0 ? posted->error : 1;
        struct bmi__queue_context *context = posted->context;
        context->outstanding--;
        slot_give_locked(space, posted);
        space->destroy(posted);
        *id = 0;
        if (context->closing) /* the closing thread waits, and no completion is queued */
            waiters_signal_locked(space, context);
    } else if (done) {
        ready_locked(space, posted);
    } else {
        posted->state = POSTED_PENDING;
        if (posted->context->closing || posted->cancelled)
            space->cancel(posted);
    }
    pthread_mutex_unlock(&space->lock);
    return result;
}

int bmi__space_cancel(struct bmi__space *space, int64_t id, int64_t context_id)
{
    pthread_mutex_lock(&space->lock);
    struct bmi__queue_context *context = context_locked(space, context_id);
    struct bmi__posted *posted = context != NULL ? find_locked(space, id, context) : NULL;
    if (posted != NULL && posted->state == POSTED_PENDING)
        space->cancel(posted);
    else if (posted != NULL && posted->state == POSTED_POSTING)
        posted->cancelled = true;
    pthread_mutex_unlock(&space->lock);
    return posted != NULL ? 0 : -BMI_EINVAL;
}

int bmi__space_look(struct bmi__space *space, int64_t id, int64_t context_id,
                    void (*look)(struct bmi__posted *posted, void *argument), void *argument)
{
    pthread_mutex_lock(&space->lock);
    struct bmi__queue_context *context = context_locked(space, context_id);
    struct bmi__posted *posted = context != NULL ? find_locked(space, id, context) : NULL;
    if (posted != NULL)
        look(posted, argument);
    pthread_mutex_unlock(&space->lock);
    return posted != NULL ? 0 : -BMI_EINVAL;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* The arguments and results of a test call. */
struct wanted {
    struct bmi__space *space;
    struct bmi__queue_context *context;
    const int64_t *ids; /* these ids only; NULL: any */
    int64_t *out_ids;
    int incount, outcount;
    int *index;
    bmi_error_code_t *errors;
    bmi_size_t *actuals;
    void **user_ptrs;
};

/* Takes a completion that was removed from the queue. */
static void take_locked(struct wanted *wanted, struct bmi__posted *posted)
{
    int out = wanted->outcount++;
    wanted->errors[out] = posted->error;
    if (wanted->actuals != NULL)
        wanted->actuals[out] = posted->actual;
    if (wanted->user_ptrs != NULL)
        wanted->user_ptrs[out] = posted->user_ptr;
    if (wanted->out_ids != NULL)
        wanted->out_ids[out] = posted->id;
    wanted->context->outstanding--;
    slot_give_locked(wanted->space, posted);
    wanted->space->destroy(posted);
}

static void unqueue_locked(struct bmi__queue_context *context, struct bmi__posted *posted)
{
    *posted->link_to_me = posted->next;
    if (posted->next != NULL)
        posted->next->link_to_me = posted->link_to_me;
    else
        context->end = posted->link_to_me;
}

static void take_any_locked(struct wanted *wanted)
{
    while (wanted->outcount < wanted->incount && wanted->context->first != NULL) {
        struct bmi__posted *posted = wanted->context->first;
        unqueue_locked(wanted->context, posted);
        take_locked(wanted, posted);
    }
}

static void take_these_locked(struct wanted *wanted)
{
    for (int i = 0; i < wanted->incount && wanted->context->first != NULL; i++) {
        struct bmi__posted *posted = find_locked(wanted->space, wanted->ids[i], wanted->context);
        if (posted == NULL || posted->state != POSTED_READY)
            continue;
        if (wanted->index != NULL)
            wanted->index[wanted->outcount] = i;
        unqueue_locked(wanted->context, posted);
        take_locked(wanted, posted);
    }
}

static bool wanted_look(void *argument)
{
    struct wanted *wanted = argument;
    if (wanted->outcount > 0)
        return true;
    pthread_mutex_lock(&wanted->space->lock);
    if (wanted->ids != NULL)
        take_these_locked(wanted);
    else
        take_any_locked(wanted);
    unsignal_locked(wanted->context);
    pthread_mutex_unlock(&wanted->space->lock);
    return wanted->outcount > 0;
}

static bool ids_valid_locked(struct wanted *wanted)
{
    for (int i = 0; i < wanted->incount; i++)
        if (wanted->ids[i] != 0 &&
            find_locked(wanted->space, wanted->ids[i], wanted->context) == NULL)
            return false;
    return true;
}

static int wanted_get(struct wanted *wanted, int64_t context_id, int max_idle_ms, int *outcount)
{
    struct bmi__space *space = wanted->space;
    pthread_mutex_lock(&space->lock);
    wanted->context = context_locked(space, context_id);
    bool valid = wanted->context != NULL && (wanted->ids == NULL || ids_valid_locked(wanted));
    pthread_mutex_unlock(&space->lock);
    if (!valid)
        return -BMI_EINVAL;
    int result = 0;
    if (!wanted_look(wanted))
        result = wait_for(space, wanted->context->owner, wanted->context, wanted->ids == NULL, NULL,
                          wanted_look, wanted, deadline_of(max_idle_ms));
    *outcount = wanted->outcount;
    return wanted->outcount > 0 ? 1 : result;
}

int bmi__space_test(struct bmi__space *space, int incount, const int64_t *ids, int *outcount,
                    int *index, bmi_error_code_t *errors, bmi_size_t *actuals, void **user_ptrs,
                    int max_idle_ms, int64_t context)
{
    static const int64_t none[1];
    if (outcount == NULL)
        return -BMI_EINVAL;
    *outcount = 0;
    if (incount < 0 || (incount > 0 && (ids == NULL || errors == NULL)) || max_idle_ms < 0)
        return -BMI_EINVAL;
    struct wanted wanted = {.space = space,
                            .ids = ids != NULL ? ids : none,
                            .incount = incount,
                            .index = index,
                            .errors = errors,
                            .actuals = actuals,
                            .user_ptrs = user_ptrs};
    return wanted_get(&wanted, context, max_idle_ms, outcount);
}

int bmi__space_testcontext(struct bmi__space *space, int incount, int64_t *ids, int *outcount,
                           bmi_error_code_t *errors, bmi_size_t *actuals, void **user_ptrs,
                           int max_idle_ms, int64_t context)
{
    if (outcount == NULL)
        return -BMI_EINVAL;
    *outcount = 0;
    if (incount < 1 || ids == NULL || errors == NULL || max_idle_ms < 0)
        return -BMI_EINVAL;
    struct wanted wanted = {.space = space,
                            .out_ids = ids,
                            .incount = incount,
                            .errors = errors,
                            .actuals = actuals,
                            .user_ptrs = user_ptrs};
    return wanted_get(&wanted, context, max_idle_ms, outcount);
}
