/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wait.c - waiting for a task to end. A waiting thread enters the lot, a table of lists by the
 * task's address, with an event of its own. The thread that ends a task with WAITED set posts the
 * events of those that wait for it, without access to the task.
 *
 * While workers run, a waiting thread only sleeps. Two kinds go on with their work: a worker whose
 * task waits serves its CPU, and a helper runs the urgent tasks of its CPU. Without workers the
 * waiting threads are leader and followers: the leader runs tasks until
 * its own has ended, and sleeps, armed as a waker, when there are none. The followers run tasks
 * that they find, but are not woken for them; when the leader leaves, a follower that sleeps
 * becomes the leader. A wait inside a task that the leader runs, on the same stack, takes over the
 * leader's place until it returns. A thread that waits so deep within tasks that it may start no
 * more runs only the awaited task, out of its queue (an urgent one, if it is its CPU's helper). So
 * does a thread of the blocking pool, since all threads of the pool may be waiting for such tasks.
 *
 * Locks: a bucket's mutex for its list; wakers_mutex for armed wakers, leader and followers;
 * neither within the other. Events are posted under them, so that a waiter that has left is safe.
 */
#include "task/internal.h"

struct bmi__waiter {
    const struct bmi_task_manager *manager;
    struct bmi_task *task;
    struct bmi__event own_event, *event; /* a helper's is the one that urgent tasks post */
    struct bmi__waiter *next;            /* in its bucket */
    struct bmi__waiter *follower;        /* next follower */
    struct bmi__waiter *outer;           /* leader of the manager before it, on the same stack */
    struct bmi__waiter *below;           /* leader of any manager before it on the same stack */
    struct bmi_task_waker waker;
    struct bmi__task_cpu *worker; /* the CPU whose worker waits, within a task; or NULL */
    struct bmi__task_cpu *helper; /* the same, of a helper */
    bool standing_by, asleep;     /* asleep: as a follower */
};

static _Thread_local struct bmi__waiter *own_leader;

/* ---- the lot ---- */

static struct bmi__lot_bucket *lot_bucket(struct bmi_task_manager *manager,
                                          const struct bmi_task *task)
{
    uint64_t hash = (uint64_t)(uintptr_t)task * 0x9e3779b97f4a7c15u;
    return &manager->lot[hash >> 32 & (BMI__LOT_BUCKETS - 1)];
}

static void lot_add(struct bmi_task_manager *manager, struct bmi__waiter *waiter)
{
    struct bmi__lot_bucket *bucket = lot_bucket(manager, waiter->task);
    pthread_mutex_lock(&bucket->mutex);
    waiter->next = bucket->first;
    bucket->first = waiter;
    pthread_mutex_unlock(&bucket->mutex);
}

static void lot_remove(struct bmi_task_manager *manager, struct bmi__waiter *waiter)
{
    struct bmi__lot_bucket *bucket = lot_bucket(manager, waiter->task);
    pthread_mutex_lock(&bucket->mutex);
    struct bmi__waiter **link = &bucket->first;
    while (*link != waiter)
        link = &(*link)->next;
    *link = waiter->next;
    pthread_mutex_unlock(&bucket->mutex);
}

static void bucket_wake(struct bmi__lot_bucket *bucket, const struct bmi_task *task)
{
    pthread_mutex_lock(&bucket->mutex);
    for (struct bmi__waiter *waiter = bucket->first; waiter != NULL; waiter = waiter->next) {
        if (task != NULL && waiter->task != task)
            continue;
        bmi__event_post(waiter->event);
        if (waiter->worker != NULL)
            bmi__worker_rouse(waiter->worker);
    }
    pthread_mutex_unlock(&bucket->mutex);
}

void bmi__lot_wake(struct bmi_task_manager *manager, const struct bmi_task *task)
{
    bucket_wake(lot_bucket(manager, task), task);
}

void bmi__lot_wake_all(struct bmi_task_manager *manager)
{
    for (size_t i = 0; i < BMI__LOT_BUCKETS; i++)
        bucket_wake(&manager->lot[i], NULL);
}

/* ---- wakers ---- */

static bool waker_unlink_locked(struct bmi_task_manager *manager, struct bmi_task_waker *waker)
{
    if (waker->link_to_me == NULL)
        return false;
    *waker->link_to_me = waker->next;
    if (waker->next != NULL)
        waker->next->link_to_me = waker->link_to_me;
    waker->link_to_me = NULL;
    atomic_fetch_sub(&manager->waker_count, 1);
    return true;
}

bool bmi_task_waker_arm(struct bmi_task_manager *manager, struct bmi_task_waker *waker)
{
    if (!waker->away && bmi__schedule_too_deep())
        return true; /* it could run none: others are woken */
    if (bmi__manager_made(manager) == NULL && bmi__early_arm(waker))
        return true;
    manager = bmi__manager_made(manager);
    pthread_mutex_lock(&manager->wakers_mutex);
    if (waker->link_to_me == NULL) {
        waker->next = manager->wakers;
        waker->link_to_me = &manager->wakers;
        if (waker->next != NULL)
            waker->next->link_to_me = &waker->next;
        manager->wakers = waker;
        atomic_fetch_add(&manager->waker_count, 1);
    }
    pthread_mutex_unlock(&manager->wakers_mutex);
    if (bmi__hooks_wanted(manager)) {
        bmi_task_waker_disarm(manager, waker);
        return false;
    }
    return true;
}

void bmi_task_waker_disarm(struct bmi_task_manager *manager, struct bmi_task_waker *waker)
{
    if (bmi__manager_made(manager) == NULL && bmi__early_disarm(waker))
        return;
    manager = bmi__manager_made(manager);
    pthread_mutex_lock(&manager->wakers_mutex);
    waker_unlink_locked(manager, waker);
    pthread_mutex_unlock(&manager->wakers_mutex);
}

void bmi__wakers_wake(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->wakers_mutex);
    for (bool more = true; more && manager->wakers != NULL;) {
        struct bmi_task_waker *waker = manager->wakers;
        more = waker->away;
        waker_unlink_locked(manager, waker);
        waker->wake(waker);
    }
    pthread_mutex_unlock(&manager->wakers_mutex);
}

/* ---- leader and followers ---- */

static void waiter_wake(struct bmi_task_waker *waker)
{
    struct bmi__waiter *waiter =
        (struct bmi__waiter *)((char *)waker - offsetof(struct bmi__waiter, waker));
    bmi__event_post(waiter->event);
}

static void follower_unlink_locked(struct bmi_task_manager *manager, struct bmi__waiter *waiter)
{
    struct bmi__waiter **link = &manager->followers;
    while (waiter->standing_by && *link != waiter)
        link = &(*link)->follower;
    if (waiter->standing_by)
        *link = waiter->follower;
    waiter->standing_by = false;
}

bool bmi__leads(const struct bmi_task_manager *manager)
{
    return own_leader != NULL && own_leader->manager == manager;
}

/* Whether the leader waits further down on the caller's own stack. */
static bool leader_is_below(struct bmi_task_manager *manager)
{
    const struct bmi__waiter *waiter = own_leader;
    while (waiter != NULL && waiter != manager->leader)
        waiter = waiter->below;
    return waiter != NULL;
}

/* Returns whether the waiter is the leader now; else it is a follower. */
static bool leader_become(struct bmi_task_manager *manager, struct bmi__waiter *waiter)
{
    pthread_mutex_lock(&manager->wakers_mutex);
    if (manager->leader == waiter) {
        /* as before */
    } else if (manager->leader == NULL || leader_is_below(manager)) {
        waiter->outer = manager->leader;
        waiter->below = own_leader;
        manager->leader = waiter;
        own_leader = waiter;
        follower_unlink_locked(manager, waiter);
    } else if (!waiter->standing_by) {
        waiter->follower = manager->followers;
        manager->followers = waiter;
        waiter->standing_by = true;
    }
    bool leading = manager->leader == waiter;
    pthread_mutex_unlock(&manager->wakers_mutex);
    return leading;
}

/* Stops being leader or follower, and passes the leader's role on to a thread that can take it. */
static void leader_leave(struct bmi_task_manager *manager, struct bmi__waiter *waiter)
{
    pthread_mutex_lock(&manager->wakers_mutex);
    follower_unlink_locked(manager, waiter);
    if (manager->leader == waiter) {
        manager->leader = waiter->outer;
        own_leader = waiter->below;
    }
    struct bmi__waiter *next = manager->leader == NULL ? manager->followers : NULL;
    while (next != NULL && !next->asleep) /* it may be in a long task; then it checks by itself */
        next = next->follower;
    if (next != NULL)
        bmi__event_post(next->event);
    pthread_mutex_unlock(&manager->wakers_mutex);
    /* the task that this thread was woken for, if it did not run it */
    if (next == NULL && atomic_load(&manager->waker_count) != 0 && bmi__hooks_wanted(manager))
        bmi__wakers_wake(manager);
}

/* Sleeps, unless there is no leader: a thread that is awake gets no event when the leader ends. */
static void stand_by(struct bmi_task_manager *manager, struct bmi__waiter *waiter,
                     uint64_t deadline_ns)
{
    pthread_mutex_lock(&manager->wakers_mutex);
    bool sleep = waiter->asleep = manager->leader != NULL;
    pthread_mutex_unlock(&manager->wakers_mutex);
    if (!sleep)
        return;
    bmi__event_wait(waiter->event, deadline_ns);
    pthread_mutex_lock(&manager->wakers_mutex);
    waiter->asleep = false;
    pthread_mutex_unlock(&manager->wakers_mutex);
}

static void lead_or_follow(struct bmi_task_manager *manager, struct bmi__waiter *waiter,
                           uint64_t deadline_ns)
{
    if (!leader_become(manager, waiter)) {
        /* The leader may be in a long task, and the awaited task may be queued. */
        if (bmi__schedule_hook(manager, bmi__cpu_self(manager), deadline_ns) == 0)
            stand_by(manager, waiter, deadline_ns);
        return;
    }
    if (bmi__schedule_hook(manager, bmi__cpu_self(manager), deadline_ns) != 0)
        return;
    if (bmi_task_waker_arm(manager, &waiter->waker))
        bmi__event_wait(waiter->event, deadline_ns);
    bmi_task_waker_disarm(manager, &waiter->waker);
}

/* ---- waiting ---- */

static bool task_final(uint32_t state)
{
    uint32_t phase = state & BMI__PHASE;
    return phase != BMI_TASK_QUEUED && phase != BMI_TASK_RUNNING;
}

/* Makes the end of the task post the event. Returns false: it has ended. */
static bool task_watch(struct bmi_task *task)
{
    uint32_t state = atomic_load(&task->state);
    do {
        if (task_final(state))
            return false;
    } while (!atomic_compare_exchange_weak(&task->state, &state, state | BMI__WAITED));
    return true;
}

/* The thread is nested in many tasks, of which only the innermost can go on: it starts no more. The
 * task may be on its way into its queue; no event reports its arrival there. */
static void deep_step(struct bmi_task_manager *manager, struct bmi__waiter *waiter,
                      uint64_t deadline_ns)
{
    enum { LOOK_NS = 10000000 };
    if (bmi__awaited_run(manager, waiter->task))
        return;
    uint64_t look_ns = bmi__now_ns() + LOOK_NS;
    bool sooner = deadline_ns != 0 && deadline_ns < look_ns;
    if (waiter->helper != NULL)
        bmi__helper_deep(waiter->helper, true);
    bmi__event_wait(waiter->event, sooner ? deadline_ns : look_ns);
    if (waiter->helper != NULL)
        bmi__helper_deep(waiter->helper, false);
}

/* One step of waiting, in the way that suits the caller. */
static void wait_step(struct bmi_task_manager *manager, struct bmi__waiter *waiter,
                      uint64_t deadline_ns)
{
    if (bmi__schedule_too_deep()) {
        deep_step(manager, waiter, deadline_ns);
    } else if (bmi__thread_self_of(manager) && (waiter->task->options & BMI_TASK_MAY_BLOCK) &&
               bmi__awaited_run(manager, waiter->task)) {
        /* all threads of the blocking pool may be waiting like this one */
    } else if (waiter->worker != NULL) {
        if (bmi__schedule(manager, waiter->worker->index, deadline_ns) == 0)
            bmi__worker_nap(waiter->worker, waiter->event, deadline_ns);
    } else if (waiter->helper != NULL && bmi__urgent_run(waiter->helper)) {
        /* loops: urgent tasks run first, also while this helper's task waits */
    } else if (atomic_load(&manager->live_workers) == 0 ||
               atomic_load(&manager->workers_stopping)) {
        lead_or_follow(manager, waiter, deadline_ns);
    } else {
        bmi__event_wait(waiter->event, deadline_ns);
    }
}

static int wait_for_end(struct bmi_task *task, uint64_t deadline_ns)
{
    struct bmi_task_manager *manager = task->manager;
    struct bmi__waiter waiter = {
        .manager = manager,
        .task = task,
        .waker.wake = waiter_wake,
        .worker = bmi__worker_self(manager),
        .helper = bmi__helper_self(manager),
    };
    waiter.event = waiter.helper != NULL ? &waiter.helper->helper.event : &waiter.own_event;
    int result = 0;
    lot_add(manager, &waiter);
    while (result == 0 && task_watch(task)) {
        wait_step(manager, &waiter, deadline_ns);
        if (deadline_ns != 0 && bmi__now_ns() >= deadline_ns)
            result = -BMI_ETIMEDOUT;
    }
    lot_remove(manager, &waiter);
    leader_leave(manager, &waiter);
    return result;
}

int bmi_task_wait(struct bmi_task *task, int timeout_ms)
{
    uint32_t state = atomic_load_explicit(&task->state, memory_order_acquire);
    if ((state & BMI__PHASE) == BMI_TASK_IDLE)
        return -BMI_EINVAL;
    if (!task_final(state) && timeout_ms != 0) {
        struct bmi_task_manager *manager = task->manager;
        if (bmi__wait_too_deep() || bmi__task_runs_here(state))
            return -BMI_EDEADLK;
        uint64_t deadline_ns = 0;
        if (timeout_ms > 0)
            deadline_ns = bmi__now_ns() + (uint64_t)timeout_ms * 1000000;
        bmi__schedule(manager, bmi__cpu_self(manager), deadline_ns);
        wait_for_end(task, deadline_ns);
        state = atomic_load_explicit(&task->state, memory_order_acquire);
    }
    if (!task_final(state))
        return -BMI_ETIMEDOUT;
    return (state & BMI__PHASE) == BMI_TASK_CANCELLED ? -BMI_ECANCEL : 0;
}

int bmi__task_await(struct bmi_task *task)
{
    bmi__tasks_needed();
    int result = bmi_task_wait(task, -1);
    bmi__tasks_needed_end();
    return result;
}
