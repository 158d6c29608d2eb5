/* SPDX-License-Identifier: BSD-3-Clause
 *
 * background.c - progress without a caller.
 *
 * It is one task of the task manager, on a thread for tasks that may block. It is in one of two
 * states:
 *
 *   watching     no caller polls. The task makes passes while they find something, then blocks on
 *                the network's descriptor without the poller's role: a caller takes that at once.
 *   standing by  callers poll. The task sleeps on the futex `wake_flag` for TICK_NS at a time, and
 *                watches again when no caller had a turn during one. A caller that computes between
 *                its turns wakes the task as it leaves. While one caller blocks in the network for
 *                longer than a tick the task sleeps without ticks, and the caller wakes it.
 *
 * A caller counts as one that computes if it was away for more than LONG_NS at one of its last
 * REMEMBERED turns. An idle process has no ticks at all.
 *
 * On a machine with several NUMA nodes its thread moves to the node of the thread that posted,
 * whose memory it fills. The first post of a millisecond notes its node, so the thread moves at
 * most that often.
 *
 * `wake_flag` is what the task waits for, FLAG_NONE while it does not: it writes `wake_flag`, then
 * looks at the poller's role; a caller that leaves writes the role, then looks at `wake_flag`
 * (sequentially consistent).
 *
 * Locks: `control` is held over starting and stopping, outermost but for start.c's; `passing` over
 * each time that the task is the poller, so that a fork finds it without any lock. A fork does not
 * wait for them for ever: a task that forks may hold either, and another one the lock of forks. The
 * child has no background task.
 */
#include "bmi/progress/background.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "bmi/base/clock.h"
#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/base/settings.h"
#include "bmi/progress/offload.h"
#include "bmi/progress/progress.h"
#include "bmi/progress/wakeup.h"
#include "bmi/task.h"
#include "task/checked_lock.h"
#include "task/event.h"
#include "task/internal.h"
#include "task/memory.h"

enum { FORK_PATIENCE_S = 1 };
enum { TICK_NS = 1000000, LONG_NS = 100000, REMEMBERED = 8 };
enum { FLAG_NONE, FLAG_COMPUTES, FLAG_ALWAYS };

struct background_hook {
    struct bmi_task_waker waker; /* first */
    struct bmi__background *background;
};

struct bmi__background {
    struct bmi__checked_lock control; /* its holder always waits */
    atomic_bool switches_on;          /* written under control: its holder starts the task */
    pthread_mutex_t passing;
    bool control_taken, passing_taken; /* by a fork */
    struct bmi_task task;
    atomic_bool stopping;
    atomic_uint wake_flag;
    int call_fd; /* ends its wait for the network; written under control, never closed earlier */
    struct background_hook hook;
    /* turns of callers in test functions; these are hints: a count may be lost */
    atomic_uint turns;
    atomic_uint since_long; /* since a caller was away for long */
    _Atomic uint64_t left_ns;
    atomic_int post_node; /* of a thread that posted; -1: unknown, or the only one; a hint, too */
};

/* The instance whose background task this thread runs. */
static _Thread_local const struct bmi_instance *served;

bool bmi__background_self(const struct bmi_instance *instance)
{
    return served == instance;
}

static void call(struct bmi__background *background)
{
    eventfd_write(background->call_fd, 1);
}

/* ---- callers' turns ------------------------------------------------------------------------- */

static unsigned get(atomic_uint *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

void bmi__background_caller_enters(struct bmi_instance *instance, uint64_t now_ns)
{
    struct bmi__background *background = instance->background;
    uint64_t left = atomic_load_explicit(&background->left_ns, memory_order_relaxed);
    unsigned since = now_ns > left + LONG_NS ? 0 : get(&background->since_long) + 1;
    atomic_store_explicit(&background->since_long, since, memory_order_relaxed);
}

void bmi__background_caller_leaves(struct bmi_instance *instance, uint64_t now_ns)
{
    struct bmi__background *background = instance->background;
    atomic_store_explicit(&background->left_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&background->turns, get(&background->turns) + 1, memory_order_relaxed);
}

static bool callers_compute(struct bmi__background *background)
{
    return get(&background->since_long) < REMEMBERED;
}

void bmi__background_role_free(struct bmi_instance *instance)
{
    struct bmi__background *background = instance->background;
    unsigned wake_flag = atomic_load(&background->wake_flag);
    if (wake_flag == FLAG_NONE || (wake_flag == FLAG_COMPUTES && !callers_compute(background)))
        return;
    if (atomic_exchange(&background->wake_flag, FLAG_NONE) != FLAG_NONE)
        bmi__futex_wake(&background->wake_flag);
}

/* Sleeps until a caller resets `wake_flag` (returns true) or the deadline passes (deadline_ns 0:
 * never). Returns at once if no caller would reset it. */
static bool flag_wait(struct bmi_instance *instance, unsigned wake_flag, uint64_t deadline_ns)
{
    struct bmi__background *background = instance->background;
    atomic_store(&background->wake_flag, wake_flag);
    bool wait =
        !atomic_load(&background->stopping) &&
        (wake_flag == FLAG_ALWAYS ? bmi__progress_poller_blocks(instance)
                                  : bmi__progress_polled(instance) || !callers_compute(background));
    while (wait && atomic_load(&background->wake_flag) == wake_flag) {
        bmi__futex_wait(&background->wake_flag, wake_flag, deadline_ns);
        wait = deadline_ns == 0 || bmi__monotonic_ns() < deadline_ns;
    }
    return atomic_exchange(&background->wake_flag, FLAG_NONE) == FLAG_NONE;
}

static void stand_by(struct bmi_instance *instance)
{
    struct bmi__background *background = instance->background;
    bmi__progress_watch_end(instance);
    while (!atomic_load(&background->stopping)) {
        unsigned turns = get(&background->turns);
        if (flag_wait(instance, FLAG_COMPUTES, bmi__monotonic_ns() + TICK_NS))
            return;
        if (turns != get(&background->turns))
            continue;
        if (!bmi__progress_polled(instance))
            return;
        if (bmi__progress_poller_blocks(instance) && flag_wait(instance, FLAG_ALWAYS, 0) &&
            callers_compute(background))
            return;
    }
}

/* ---- near the posts -------------------------------------------------------------------------- */

void bmi__background_posted(struct bmi_instance *instance)
{
    struct bmi__background *background = instance->background;
    if (!bmi__background_on(instance))
        return;
    int node = bmi__memory_here(bmi_task_manager_default());
    atomic_store_explicit(&background->post_node, node, memory_order_relaxed);
}

/* The caller may run on the CPUs of a node; -1: on all. */
static void move_to(int node)
{
    const struct bmi__topology *topology = &bmi_task_manager_default()->topology;
    struct bmi_cpuset cpus;
    if (!topology->this_system)
        return;
    bmi__topology_cpus(topology, node >= 0 ? bmi__topology_numa(topology, node) : 0, &cpus);
    bmi__thread_bind(&cpus); /* if the CPUs are gone it stays as it is */
}

static void follow_posts(struct bmi__background *background, int *at)
{
    int node = atomic_load_explicit(&background->post_node, memory_order_relaxed);
    if (node != *at)
        move_to(node);
    *at = node;
}

/* ---- watching ------------------------------------------------------------------------------- */

static void hook_wanted(struct bmi_task_waker *waker)
{
    call(((struct background_hook *)waker)->background);
}

/* Waits for the network, for a call, or until a timer is due. Runs tasks that wait for a hook. */
static void network_wait(struct bmi_instance *instance, uint64_t until_ns)
{
    struct bmi__background *background = instance->background;
    struct pollfd fds[2] = {{.fd = bmi__progress_fd(instance), .events = POLLIN},
                            {.fd = background->call_fd, .events = POLLIN}};
    if (bmi_task_waker_arm(NULL, &background->hook.waker)) {
        uint64_t now = bmi__monotonic_ns();
        uint64_t ms = until_ns <= now ? 0 : (until_ns - now + 999999) / 1000000;
        poll(fds, 2, until_ns == UINT64_MAX ? -1 : ms > 1000000 ? 1000000 : (int)ms);
    }
    bmi_task_waker_disarm(NULL, &background->hook.waker);
    eventfd_t value;
    if (fds[1].revents != 0 && !atomic_load(&background->stopping))
        eventfd_read(background->call_fd, &value);
    bmi_task_schedule(NULL);
}

static enum bmi_task_status run(struct bmi_task *task, void *argument)
{
    struct bmi_instance *instance = argument;
    struct bmi__background *background = instance->background;
    (void)task;
    served = instance;
    unsigned turns = get(&background->turns);
    int at = -1;
    while (!atomic_load(&background->stopping)) {
        uint64_t until_ns;
        follow_posts(background, &at);
        pthread_mutex_lock(&background->passing);
        enum bmi__watch found = bmi__progress_watch(instance, &until_ns);
        pthread_mutex_unlock(&background->passing);
        if (found == BMI__WATCH_QUIET)
            network_wait(instance, until_ns);
        /* while the task blocks on the descriptor, each message wakes it, also one that a caller
         * takes */
        bool driven = turns != get(&background->turns) && !callers_compute(background);
        if (found == BMI__WATCH_TAKEN || driven)
            stand_by(instance);
        turns = get(&background->turns);
    }
    if (at >= 0)
        move_to(-1); /* the thread's next task expects that */
    served = NULL;
    return BMI_TASK_DONE;
}

/* ---- start and stop ------------------------------------------------------------------------- */

static int task_submit(struct bmi_instance *instance)
{
    struct bmi__background *background = instance->background;
    struct bmi_task_manager *manager = bmi_task_manager_default();
    int status = bmi__blocking_reserve(manager);
    if (status < 0)
        return status;
    status = bmi_task_prepare(&background->task, NULL,
                              &(struct bmi_task_attributes){.function = run,
                                                            .argument = instance,
                                                            .options = BMI_TASK_MAY_BLOCK});
    if (status == 0)
        status = bmi_task_submit(&background->task);
    if (status < 0)
        bmi__blocking_unreserve(manager);
    return status;
}

static int start_locked(struct bmi_instance *instance)
{
    struct bmi__background *background = instance->background;
    if (background->call_fd < 0)
        background->call_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (background->call_fd < 0)
        return -errno;
    eventfd_t value;
    eventfd_read(background->call_fd, &value); /* a call may be left over from the last stop */
    background->hook =
        (struct background_hook){.waker.wake = hook_wanted, .background = background};
    atomic_store(&background->stopping, false);
    atomic_store(&background->since_long, 0);
    atomic_store(&background->post_node, -1);
    int status = bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY);
    if (status < 0)
        return status;
    atomic_store(&instance->background_on, true);
    status = task_submit(instance);
    if (status == 0)
        return 0;
    atomic_store(&instance->background_on, false);
    bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
    return status;
}

/* Ends the task, or waits until it has ended. A queued task might otherwise wait for a thread for
 * ever. Other queued tasks run first, as in every wait for tasks: this may be the last use of the
 * task manager. */
static void task_end(struct bmi_task *task)
{
    struct bmi_task_manager *manager = bmi_task_manager_default();
    bmi__tasks_needed();
    bmi_task_schedule(manager);
    bmi__tasks_needed_end();
    if (bmi__blocking_claim(manager, task))
        bmi__task_drop(manager, task);
    bmi__task_await(task);
    bmi__blocking_unreserve(manager);
}

static void stop_locked(struct bmi_instance *instance)
{
    struct bmi__background *background = instance->background;
    bmi__offload_stop_locked(instance);
    atomic_store(&background->stopping, true);
    call(background);
    if (atomic_exchange(&background->wake_flag, FLAG_NONE) != FLAG_NONE)
        bmi__futex_wake(&background->wake_flag);
    task_end(&background->task);
    atomic_store(&instance->background_on, false);
    bmi__progress_watch_end(instance);
    /* from now on, a program that polls a descriptor runs the timers */
    bmi__progress_kick(instance);
    bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
}

static int follow_locked(struct bmi_instance *instance, bool wanted, bool offload_wanted)
{
    int status = 0;
    if (!wanted && bmi__background_on(instance))
        stop_locked(instance);
    bool start = wanted && !bmi__background_on(instance);
    if (start)
        status = start_locked(instance);
    if (status == 0 && wanted && offload_wanted) {
        status = bmi__offload_start_locked(instance);
        if (status < 0 && start)
            stop_locked(instance);
    }
    if (!offload_wanted)
        bmi__offload_stop_locked(instance);
    if (status < 0)
        bmi__log(instance, BMI_LOG_ERROR, "progress in the background: %s",
                 bmi_status_string(bmi__error(status)));
    return status;
}

/* ---- fork ----------------------------------------------------------------------------------- */

/* A fork within the background task takes neither lock: another thread may hold `control` and wait
 * for this task, which holds `passing` itself. */
void bmi__background_before_fork(struct bmi_instance *instance)
{
    struct bmi__background *background = instance->background;
    if (served == instance)
        return;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FORK_PATIENCE_S;
    background->control_taken = bmi__checked_lock_take_until(&background->control, &until) == 0;
    background->passing_taken = pthread_mutex_timedlock(&background->passing, &until) == 0;
}

void bmi__background_after_fork_parent(struct bmi_instance *instance)
{
    struct bmi__background *background = instance->background;
    if (served == instance)
        return;
    if (background->passing_taken)
        pthread_mutex_unlock(&background->passing);
    if (background->control_taken)
        bmi__checked_lock_give(&background->control);
}

static void descriptor_close(struct bmi__background *background)
{
    if (background->call_fd >= 0)
        close(background->call_fd);
    background->call_fd = -1;
}

void bmi__background_after_fork_child(struct bmi_instance *instance)
{
    struct bmi__background *background = instance->background;
    bmi__checked_lock_init(&background->control); /* the child lacks the thread that held it */
    if (served != instance && background->passing_taken)
        pthread_mutex_unlock(&background->passing);
    else
        pthread_mutex_init(&background->passing, NULL); /* likewise */
    descriptor_close(background); /* the parent owns it, and the task manager */
    memset(&background->task, 0, sizeof background->task);
    bmi__offload_after_fork_child(instance);
    if (served == instance)
        served = NULL;
    if (!atomic_exchange(&instance->background_on, false))
        return;
    bmi__progress_watch_end(instance);
    atomic_store(&background->wake_flag, FLAG_NONE);
    atomic_store(&background->stopping, true);
}

/* ---- on and off ------------------------------------------------------------------------------ */

static int switch_begin(struct bmi__background *background)
{
    int status = bmi__checked_lock_take(&background->control);
    if (status == 0)
        bmi__checked_lock_waits(&background->control);
    return status;
}

static bool is_wanted(struct bmi_instance *instance)
{
    return bmi__setting(instance, SETTING_PROGRESS) == PROGRESS_BACKGROUND &&
           instance->now_ns == NULL; /* else a thread of its own would wait by another clock */
}

int bmi__background_follow(struct bmi_instance *instance)
{
    struct bmi__background *background = instance->background;
    if (served == instance)
        return is_wanted(instance) == bmi__background_on(instance) ? 0 : -EDEADLK;
    if (switch_begin(background) != 0)
        return is_wanted(instance) == atomic_load(&background->switches_on) ? 0 : -EDEADLK;
    bool wanted = is_wanted(instance); /* under the lock: the last change wins */
    atomic_store(&background->switches_on, wanted);
    int status = follow_locked(instance, wanted, bmi__setting(instance, SETTING_OFFLOAD) != 0);
    bmi__checked_lock_give(&background->control);
    return status;
}

int bmi__background_stop(struct bmi_instance *instance)
{
    struct bmi__background *background = instance->background;
    if (served == instance || switch_begin(background) != 0)
        return -EDEADLK;
    atomic_store(&background->switches_on, false);
    if (bmi__background_on(instance))
        stop_locked(instance);
    bmi__checked_lock_give(&background->control);
    return 0;
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__background_open(struct bmi_instance *instance)
{
    struct bmi__background *background = calloc(1, sizeof *background);
    if (background == NULL)
        return -ENOMEM;
    bmi__checked_lock_init(&background->control);
    pthread_mutex_init(&background->passing, NULL);
    background->call_fd = -1;
    atomic_init(&background->post_node, -1);
    instance->background = background;
    return 0;
}

void bmi__background_close(struct bmi_instance *instance)
{
    if (instance->background == NULL)
        return;
    descriptor_close(instance->background);
    free(instance->background);
    instance->background = NULL;
}
