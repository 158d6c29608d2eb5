/* SPDX-License-Identifier: BSD-3-Clause
 *
 * default.c - the process's own manager. Its first user makes it, and it is never freed, since
 * other threads may be in hooks while the process ends. Hooks do not make it: before it exists it
 * has no tasks, so a program without tasks pays one atomic read for them. A waker that is armed
 * before goes into `early`, and is woken when the manager is made.
 *
 * `own_mutex` serialises the making, and guards `policy`. `early_mutex`, within it, guards `early`,
 * and ensures that `early` is empty once `own` is set. A forked child puts the parent's manager
 * aside, since its threads do not exist in the child.
 */
#include "task/internal.h"

static pthread_mutex_t own_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t early_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct bmi_task_manager *) own; /* set under both mutexes */
/* A parent's, kept in sight of leak checkers. */
__attribute__((used)) static struct bmi_task_manager *put_aside;
static struct bmi_task_waker *early; /* under early_mutex */
static enum bmi_task_policy policy;  /* under own_mutex */

/* ---- fork ---- */

static void before_fork(void)
{
    pthread_mutex_lock(&own_mutex);
    pthread_mutex_lock(&early_mutex);
}

static void after_fork_parent(void)
{
    pthread_mutex_unlock(&early_mutex);
    pthread_mutex_unlock(&own_mutex);
}

static void after_fork_child(void)
{
    struct bmi_task_manager *manager = atomic_exchange(&own, NULL);
    if (manager != NULL)
        put_aside = manager;
    early = NULL;
    after_fork_parent();
}

/* When the library is loaded: handlers registered first run last before a fork, so that these locks
 * are taken after those of the manager's callers. */
__attribute__((constructor)) static void fork_watch(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* ---- wakers before it is made ---- */

static void early_unlink_locked(struct bmi_task_waker *waker)
{
    if (waker->link_to_me == NULL)
        return;
    *waker->link_to_me = waker->next;
    if (waker->next != NULL)
        waker->next->link_to_me = waker->link_to_me;
    waker->link_to_me = NULL;
}

bool bmi__early_arm(struct bmi_task_waker *waker)
{
    pthread_mutex_lock(&early_mutex);
    bool is_early = atomic_load_explicit(&own, memory_order_relaxed) == NULL;
    if (is_early && waker->link_to_me == NULL) {
        waker->next = early;
        waker->link_to_me = &early;
        if (early != NULL)
            early->link_to_me = &waker->next;
        early = waker;
    }
    pthread_mutex_unlock(&early_mutex);
    return is_early;
}

bool bmi__early_disarm(struct bmi_task_waker *waker)
{
    pthread_mutex_lock(&early_mutex);
    bool is_early = atomic_load_explicit(&own, memory_order_relaxed) == NULL;
    if (is_early)
        early_unlink_locked(waker);
    pthread_mutex_unlock(&early_mutex);
    return is_early;
}

/* From here on other threads see the manager. */
static void own_publish(struct bmi_task_manager *manager)
{
    pthread_mutex_lock(&early_mutex);
    while (early != NULL) {
        struct bmi_task_waker *waker = early;
        early_unlink_locked(waker);
        waker->wake(waker);
    }
    atomic_store_explicit(&own, manager, memory_order_release);
    pthread_mutex_unlock(&early_mutex);
}

/* ---- the manager ---- */

struct bmi_task_manager *bmi_task_manager_default(void)
{
    struct bmi_task_manager *manager = atomic_load_explicit(&own, memory_order_acquire);
    if (manager != NULL)
        return manager;
    pthread_mutex_lock(&own_mutex);
    manager = atomic_load_explicit(&own, memory_order_relaxed);
    struct bmi_task_settings settings = {.worker_policy = policy};
    if (manager == NULL && bmi_task_manager_create(&settings, &manager, NULL, 0) == 0)
        own_publish(manager);
    pthread_mutex_unlock(&own_mutex);
    return manager;
}

void bmi__default_policy(enum bmi_task_policy wanted)
{
    pthread_mutex_lock(&own_mutex);
    policy = wanted;
    struct bmi_task_manager *manager = atomic_load_explicit(&own, memory_order_relaxed);
    if (manager != NULL)
        atomic_store(&manager->policy, (int)wanted);
    pthread_mutex_unlock(&own_mutex);
}

struct bmi_task_manager *bmi__manager(struct bmi_task_manager *manager)
{
    return manager != NULL ? manager : bmi_task_manager_default();
}

struct bmi_task_manager *bmi__manager_made(struct bmi_task_manager *manager)
{
    return manager != NULL ? manager : atomic_load_explicit(&own, memory_order_acquire);
}
