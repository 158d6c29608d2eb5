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
 * each time that the task is the poller, so that a fork finds it without any lock. The child has no
 * background task.
 */
#include "bmi/progress/background.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "bmi/base/clock.h"
#include "bmi/base/error.h"
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

enum { TICK_NS = 1000000, LONG_NS = 100000, REMEMBERED = 8 };
enum { FLAG_NONE, FLAG_COMPUTES, FLAG_ALWAYS };

atomic_bool bmi__background_is_on;

static struct bmi__checked_lock control = BMI__CHECKED_LOCK; /* its holder always waits */
static atomic_bool switches_on; /* written under control: its holder starts the task */
static pthread_mutex_t passing = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool is_background;
static _Thread_local bool control_taken; /* by before_fork */

static struct {
    struct bmi_task task;
    atomic_bool stopping;
    atomic_uint wake_flag;
    int call_fd; /* ends its wait for the network; written under control, never closed earlier */
    struct bmi_task_waker hook;
    /* turns of callers in test functions; these are hints: a count may be lost */
    atomic_uint turns;
    atomic_uint since_long; /* since a caller was away for long */
    _Atomic uint64_t left_ns;
    atomic_int post_node; /* of a thread that posted; -1: unknown, or the only one; a hint, too */
} background = {.call_fd = -1, .post_node = -1};

bool bmi__background_self(void)
{
    return is_background;
}

static void call(void)
{
    eventfd_write(background.call_fd, 1);
}

void bmi__background_end(void)
{
    if (background.call_fd >= 0)
        close(background.call_fd);
    background.call_fd = -1;
}

/* ---- callers' turns ------------------------------------------------------------------------- */

static unsigned get(atomic_uint *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

void bmi__background_caller_enters(uint64_t now_ns)
{
    uint64_t left = atomic_load_explicit(&background.left_ns, memory_order_relaxed);
    unsigned since = now_ns > left + LONG_NS ? 0 : get(&background.since_long) + 1;
    atomic_store_explicit(&background.since_long, since, memory_order_relaxed);
}

void bmi__background_caller_leaves(uint64_t now_ns)
{
    atomic_store_explicit(&background.left_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&background.turns, get(&background.turns) + 1, memory_order_relaxed);
}

static bool callers_compute(void)
{
    return get(&background.since_long) < REMEMBERED;
}

void bmi__background_role_free(void)
{
    unsigned wake_flag = atomic_load(&background.wake_flag);
    if (wake_flag == FLAG_NONE || (wake_flag == FLAG_COMPUTES && !callers_compute()))
        return;
    if (atomic_exchange(&background.wake_flag, FLAG_NONE) != FLAG_NONE)
        bmi__futex_wake(&background.wake_flag);
}

/* Sleeps until a caller resets `wake_flag` (returns true) or the deadline passes (deadline_ns 0:
 * never). Returns at once if no caller would reset it. */
static bool flag_wait(unsigned wake_flag, uint64_t deadline_ns)
{
    atomic_store(&background.wake_flag, wake_flag);
    bool wait = !atomic_load(&background.stopping) &&
                (wake_flag == FLAG_ALWAYS ? bmi__progress_poller_blocks()
                                          : bmi__progress_polled() || !callers_compute());
    while (wait && atomic_load(&background.wake_flag) == wake_flag) {
        bmi__futex_wait(&background.wake_flag, wake_flag, deadline_ns);
        wait = deadline_ns == 0 || bmi__monotonic_ns() < deadline_ns;
    }
    return atomic_exchange(&background.wake_flag, FLAG_NONE) == FLAG_NONE;
}

static void stand_by(void)
{
    bmi__progress_watch_end();
    while (!atomic_load(&background.stopping)) {
        unsigned turns = get(&background.turns);
        if (flag_wait(FLAG_COMPUTES, bmi__monotonic_ns() + TICK_NS))
            return;
        if (turns != get(&background.turns))
            continue;
        if (!bmi__progress_polled())
            return;
        if (bmi__progress_poller_blocks() && flag_wait(FLAG_ALWAYS, 0) && callers_compute())
            return;
    }
}

/* ---- near the posts -------------------------------------------------------------------------- */

void bmi__background_posted(void)
{
    if (!bmi__background_on())
        return;
    int node = bmi__memory_here(bmi_task_manager_default());
    atomic_store_explicit(&background.post_node, node, memory_order_relaxed);
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

static void follow_posts(int *at)
{
    int node = atomic_load_explicit(&background.post_node, memory_order_relaxed);
    if (node != *at)
        move_to(node);
    *at = node;
}

/* ---- watching ------------------------------------------------------------------------------- */

static void hook_wanted(struct bmi_task_waker *waker)
{
    (void)waker;
    call();
}

/* Waits for the network, for a call, or until a timer is due. Runs tasks that wait for a hook. */
static void network_wait(uint64_t until_ns)
{
    struct pollfd fds[2] = {{.fd = bmi__progress_fd(), .events = POLLIN},
                            {.fd = background.call_fd, .events = POLLIN}};
    if (bmi_task_waker_arm(NULL, &background.hook)) {
        uint64_t now = bmi__monotonic_ns();
        uint64_t ms = until_ns <= now ? 0 : (until_ns - now + 999999) / 1000000;
        poll(fds, 2, until_ns == UINT64_MAX ? -1 : ms > 1000000 ? 1000000 : (int)ms);
    }
    bmi_task_waker_disarm(NULL, &background.hook);
    eventfd_t value;
    if (fds[1].revents != 0 && !atomic_load(&background.stopping))
        eventfd_read(background.call_fd, &value);
    bmi_task_schedule(NULL);
}

static enum bmi_task_status run(struct bmi_task *task, void *argument)
{
    (void)task, (void)argument;
    is_background = true;
    unsigned turns = get(&background.turns);
    int at = -1;
    while (!atomic_load(&background.stopping)) {
        uint64_t until_ns;
        follow_posts(&at);
        pthread_mutex_lock(&passing);
        enum bmi__watch found = bmi__progress_watch(&until_ns);
        pthread_mutex_unlock(&passing);
        if (found == BMI__WATCH_QUIET)
            network_wait(until_ns);
        /* while the task blocks on the descriptor, each message wakes it, also one that a caller
         * takes */
        bool driven = turns != get(&background.turns) && !callers_compute();
        if (found == BMI__WATCH_TAKEN || driven)
            stand_by();
        turns = get(&background.turns);
    }
    if (at >= 0)
        move_to(-1); /* the thread's next task expects that */
    is_background = false;
    return BMI_TASK_DONE;
}

/* ---- start and stop ------------------------------------------------------------------------- */

static int task_submit(void)
{
    int status = bmi_task_prepare(&background.task, NULL,
                                  &(struct bmi_task_attributes){.function = run,
                                                                .options = BMI_TASK_MAY_BLOCK});
    return status < 0 ? status : bmi_task_submit(&background.task);
}

static int start_locked(void)
{
    if (background.call_fd < 0)
        background.call_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (background.call_fd < 0)
        return -errno;
    eventfd_t value;
    eventfd_read(background.call_fd, &value); /* a call may be left over from the last stop */
    background.hook = (struct bmi_task_waker){.wake = hook_wanted};
    atomic_store(&background.stopping, false);
    atomic_store(&background.since_long, 0);
    atomic_store(&background.post_node, -1);
    int status = bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY);
    if (status < 0)
        return status;
    atomic_store(&bmi__background_is_on, true);
    status = task_submit();
    if (status == 0)
        return 0;
    atomic_store(&bmi__background_is_on, false);
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
}

static void stop_locked(void)
{
    bmi__offload_stop_locked();
    atomic_store(&background.stopping, true);
    call();
    if (atomic_exchange(&background.wake_flag, FLAG_NONE) != FLAG_NONE)
        bmi__futex_wake(&background.wake_flag);
    task_end(&background.task);
    atomic_store(&bmi__background_is_on, false);
    bmi__progress_watch_end();
    bmi__progress_kick(); /* from now on, a program that polls a descriptor runs the timers */
    bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
}

static int follow_locked(bool wanted, bool offload_wanted)
{
    int status = 0;
    if (!wanted && bmi__background_on())
        stop_locked();
    bool start = wanted && !bmi__background_on();
    if (start)
        status = start_locked();
    if (status == 0 && wanted && offload_wanted) {
        status = bmi__offload_start_locked();
        if (status < 0 && start)
            stop_locked();
    }
    if (!offload_wanted)
        bmi__offload_stop_locked();
    if (status < 0)
        bmi__log(BMI_LOG_ERROR, "progress in the background: %s",
                 bmi_status_string(bmi__error(status)));
    return status;
}

/* ---- fork ----------------------------------------------------------------------------------- */

/* A fork within a task takes neither lock: another thread may hold `control` and wait for this
 * task, and the background task holds `passing` itself. */
static void before_fork(void)
{
    if (is_background)
        return;
    control_taken = bmi__checked_lock_take(&control) == 0;
    pthread_mutex_lock(&passing);
}

static void after_fork_parent(void)
{
    if (is_background)
        return;
    pthread_mutex_unlock(&passing);
    if (control_taken)
        bmi__checked_lock_give(&control);
}

static void after_fork_child(void)
{
    bmi__checked_lock_init(&control); /* the child lacks the thread that held it */
    if (is_background)
        pthread_mutex_init(&passing, NULL); /* likewise */
    else
        pthread_mutex_unlock(&passing);
    is_background = false;
    bmi__background_end(); /* the parent owns the descriptor and the task manager */
    memset(&background.task, 0, sizeof background.task);
    bmi__offload_after_fork_child();
    if (!atomic_exchange(&bmi__background_is_on, false))
        return;
    bmi__progress_watch_end();
    atomic_store(&background.wake_flag, FLAG_NONE);
    atomic_store(&background.stopping, true);
}

static void fork_watch(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static int switch_begin(void)
{
    int status = bmi__checked_lock_take(&control);
    if (status == 0)
        bmi__checked_lock_waits(&control);
    return status;
}

static bool is_wanted(void)
{
    return bmi__setting(SETTING_PROGRESS) == PROGRESS_BACKGROUND;
}

int bmi__background_follow(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fork_watch);
    if (is_background)
        return is_wanted() == bmi__background_on() ? 0 : -EDEADLK;
    if (switch_begin() != 0)
        return is_wanted() == atomic_load(&switches_on) ? 0 : -EDEADLK;
    bool wanted = is_wanted(); /* under the lock: the last change wins */
    atomic_store(&switches_on, wanted);
    int status = follow_locked(wanted, bmi__setting(SETTING_OFFLOAD) != 0);
    bmi__checked_lock_give(&control);
    return status;
}

int bmi__background_stop(void)
{
    if (is_background || switch_begin() != 0)
        return -EDEADLK;
    atomic_store(&switches_on, false);
    if (bmi__background_on())
        stop_locked();
    bmi__checked_lock_give(&control);
    return 0;
}
