/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wait.c - waiting for a task to end. A waiting thread enters the lot, a table of lists by the
 * task's address, with an event of its own. The thread that ends a task with WAITED set posts the
 * events of those that wait for it, without access to the task.
 *
 * While workers run, a waiting thread only sleeps. Two kinds go on with their work: a worker whose
 * task waits serves its CPU, and a helper runs the urgent tasks of its CPU. Without workers the
 * waiting threads are leader and followers (`driver` and `bystanders`): the leader runs tasks until
 * its own has ended, and sleeps, armed as a sleeper, when there are none. The followers run tasks
 * that they find, but are not woken for them; when the leader leaves, a follower that sleeps
 * becomes the leader. A wait inside a task that the leader runs, on the same stack, takes over the
 * leader's place until it returns. A thread that waits so deep within tasks that it may start no
 * more runs only the awaited task, out of its queue (an urgent one, if it is its CPU's helper). So
 * does a thread of the blocking pool, since all threads of the pool may be waiting for such tasks.
 *
 * Locks: a bucket's mutex for its list; sleepers_mutex for armed sleepers, leader and followers;
 * neither within the other. Events are posted under them, so that a waiter that has left is safe.
 */
#include "task/internal.h"

struct bmi__waiter {
    const struct bmi_task_manager *manager;
    struct bmi_task *task;
    struct bmi__event own_event, *event; /* a helper's is the one that urgent tasks post */
    struct bmi__waiter *next;            /* in its bucket */
    struct bmi__waiter *bystander;       /* next follower */
    struct bmi__waiter *outer;           /* leader of the manager before it, on the same stack */
    struct bmi__waiter *below;           /* leader of any manager before it on the same stack */
    struct bmi_task_sleeper sleeper;
    struct bmi__task_cpu *worker; /* the CPU whose worker waits, within a task; or NULL */
    struct bmi__task_cpu *helper; /* the same, of a helper */
    bool standing_by, asleep;     /* asleep: as a follower */
};

static _Thread_local struct bmi__waiter *own_driver;

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

/* ---- sleepers ---- */

static bool sleeper_unlink_locked(struct bmi_task_manager *manager,
                                  struct bmi_task_sleeper *sleeper)
{
    if (sleeper->link_to_me == NULL)
        return false;
    *sleeper->link_to_me = sleeper->next;
    if (sleeper->next != NULL)
        sleeper->next->link_to_me = sleeper->link_to_me;
    sleeper->link_to_me = NULL;
    atomic_fetch_sub(&manager->sleeper_count, 1);
    return true;
}

bool bmi_task_sleeper_arm(struct bmi_task_manager *manager, struct bmi_task_sleeper *sleeper)
{
    if (!sleeper->away && bmi__schedule_too_deep())
        return true; /* it could run none: others are woken */
    if (bmi__manager_made(manager) == NULL && bmi__early_arm(sleeper))
        return true;
    manager = bmi__manager_made(manager);
    pthread_mutex_lock(&manager->sleepers_mutex);
    if (sleeper->link_to_me == NULL) {
        sleeper->next = manager->sleepers;
        sleeper->link_to_me = &manager->sleepers;
        if (sleeper->next != NULL)
            sleeper->next->link_to_me = &sleeper->next;
        manager->sleepers = sleeper;
        atomic_fetch_add(&manager->sleeper_count, 1);
    }
    pthread_mutex_unlock(&manager->sleepers_mutex);
    if (bmi__hooks_wanted(manager)) {
        bmi_task_sleeper_disarm(manager, sleeper);
        return false;
    }
    return true;
}

void bmi_task_sleeper_disarm(struct bmi_task_manager *manager, struct bmi_task_sleeper *sleeper)
{
    if (bmi__manager_made(manager) == NULL && bmi__early_disarm(sleeper))
        return;
    manager = bmi__manager_made(manager);
    pthread_mutex_lock(&manager->sleepers_mutex);
    sleeper_unlink_locked(manager, sleeper);
    pthread_mutex_unlock(&manager->sleepers_mutex);
}

void bmi__sleepers_wake(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&manager->sleepers_mutex);
    for (bool more = true; more && manager->sleepers != NULL;) {
        struct bmi_task_sleeper *sleeper = manager->sleepers;
        more = sleeper->away;
        sleeper_unlink_locked(manager, sleeper);
        sleeper->wake(sleeper);
    }
    pthread_mutex_unlock(&manager->sleepers_mutex);
}

/* ---- leader (driver) and followers (bystanders) ---- */

static void waiter_wake(struct bmi_task_sleeper *sleeper)
{
    struct bmi__waiter *waiter =
        (struct bmi__waiter *)((char *)sleeper - offsetof(struct bmi__waiter, sleeper));
    bmi__event_post(waiter->event);
}

static void bystander_unlink_locked(struct bmi_task_manager *manager, struct bmi__waiter *waiter)
{
    struct bmi__waiter **link = &manager->bystanders;
    while (waiter->standing_by && *link != waiter)
        link = &(*link)->bystander;
    if (waiter->standing_by)
        *link = waiter->bystander;
    waiter->standing_by = false;
}

bool bmi__drives(const struct bmi_task_manager *manager)
{
    return own_driver != NULL && own_driver->manager == manager;
}

/* Whether the leader waits further down on the caller's own stack. */
static bool driver_is_below(struct bmi_task_manager *manager)
{
    const struct bmi__waiter *waiter = own_driver;
    while (waiter != NULL && waiter != manager->driver)
        waiter = waiter->below;
    return waiter != NULL;
}

/* Returns whether the waiter is the leader now; else it is a follower. */
static bool driver_become(struct bmi_task_manager *manager, struct bmi__waiter *waiter)
{
    pthread_mutex_lock(&manager->sleepers_mutex);
    if (manager->driver == waiter) {
        /* as before */
    } else if (manager->driver == NULL || driver_is_below(manager)) {
        waiter->outer = manager->driver;
        waiter->below = own_driver;
        manager->driver = waiter;
        own_driver = waiter;
        bystander_unlink_locked(manager, waiter);
    } else if (!waiter->standing_by) {
        waiter->bystander = manager->bystanders;
        manager->bystanders = waiter;
        waiter->standing_by = true;
    }
    bool driving = manager->driver == waiter;
    pthread_mutex_unlock(&manager->sleepers_mutex);
    return driving;
}

/* Stops being leader or follower, and passes the leader's role on to a thread that can take it. */
static void driver_cease(struct bmi_task_manager *manager, struct bmi__waiter *waiter)
{
    pthread_mutex_lock(&manager->sleepers_mutex);
    bystander_unlink_locked(manager, waiter);
    if (manager->driver == waiter) {
        manager->driver = waiter->outer;
        own_driver = waiter->below;
    }
    struct bmi__waiter *heir = manager->driver == NULL ? manager->bystanders : NULL;
    while (heir != NULL && !heir->asleep) /* it may be in a long task; then it checks by itself */
        heir = heir->bystander;
    if (heir != NULL)
        bmi__event_post(heir->event);
    pthread_mutex_unlock(&manager->sleepers_mutex);
    /* the task that this thread was woken for, if it did not run it */
    if (heir == NULL && atomic_load(&manager->sleeper_count) != 0 && bmi__hooks_wanted(manager))
        bmi__sleepers_wake(manager);
}

/* Sleeps, unless there is no leader: a thread that is awake gets no event when the leader ends. */
static void stand_by(struct bmi_task_manager *manager, struct bmi__waiter *waiter,
                     uint64_t deadline_ns)
{
    pthread_mutex_lock(&manager->sleepers_mutex);
    bool sleep = waiter->asleep = manager->driver != NULL;
    pthread_mutex_unlock(&manager->sleepers_mutex);
    if (!sleep)
        return;
    bmi__event_wait(waiter->event, deadline_ns);
    pthread_mutex_lock(&manager->sleepers_mutex);
    waiter->asleep = false;
    pthread_mutex_unlock(&manager->sleepers_mutex);
}

static void drive(struct bmi_task_manager *manager, struct bmi__waiter *waiter,
                  uint64_t deadline_ns)
{
    if (!driver_become(manager, waiter)) {
        /* The leader may be in a long task, and the awaited task may be queued. */
        if (bmi__schedule_hook(manager, bmi__cpu_self(manager), deadline_ns) == 0)
            stand_by(manager, waiter, deadline_ns);
        return;
    }
    if (bmi__schedule_hook(manager, bmi__cpu_self(manager), deadline_ns) != 0)
        return;
    if (bmi_task_sleeper_arm(manager, &waiter->sleeper))
        bmi__event_wait(waiter->event, deadline_ns);
    bmi_task_sleeper_disarm(manager, &waiter->sleeper);
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
        /* and again: an urgent task does not wait for this one */
    } else if (atomic_load(&manager->live_workers) == 0 ||
               atomic_load(&manager->workers_stopping)) {
        drive(manager, waiter, deadline_ns);
    } else {
        bmi__event_wait(waiter->event, deadline_ns);
    }
}

/* Whether the caller runs the task itself, below on its own stack: it cannot end before the caller
 * does. */
static bool task_is_below(uint32_t state)
{
    return (state & BMI__PHASE) == BMI_TASK_RUNNING &&
           state >> BMI__RUNNER_SHIFT == bmi__runner_self();
}

static int wait_for_end(struct bmi_task *task, uint64_t deadline_ns)
{
    struct bmi_task_manager *manager = task->manager;
    struct bmi__waiter waiter = {
        .manager = manager,
        .task = task,
        .sleeper.wake = waiter_wake,
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
    driver_cease(manager, &waiter);
    return result;
}

int bmi_task_wait(struct bmi_task *task, int timeout_ms)
{
    uint32_t state = atomic_load_explicit(&task->state, memory_order_acquire);
    if ((state & BMI__PHASE) == BMI_TASK_IDLE)
        return -BMI_EINVAL;
    if (!task_final(state) && timeout_ms != 0) {
        struct bmi_task_manager *manager = task->manager;
        if (bmi__wait_too_deep() || task_is_below(state))
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
