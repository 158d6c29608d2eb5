/* SPDX-License-Identifier: BSD-3-Clause
 *
 * background.c - progress without a caller: who drives when no thread of the program waits.
 *
 * It is one task of the task manager, on the CPUs that share a cache with the CPU that posted last,
 * but not on that one if there are others: who posts and computes keeps its CPU. Where the system
 * itself chooses, it finds both CPUs of two busy at the moment when a message comes, leaves us on
 * the poster's, and the other idle while we copy. The task is on a thread for tasks that may block
 * (those have a short slice, so they get their turn soon on CPUs that compute). It is in one of
 * three places:
 *
 *   watching     nobody drives. It makes passes while they find something, then waits for the
 *                network's descriptor, without the seat: a caller takes that at once, unhindered.
 *                Callers that go on driving call it away, since each message would wake it.
 *   standing by  callers drive. It sleeps, looks at each tick whether they still do, and watches
 *                again when they have ceased. A caller that is expected to compute now rings the
 *                bell when it leaves the seat. A tick takes a caller's CPU for some 25 us, so each
 *                that finds them driving, and none that was away for long, doubles the time to the
 *                next: who stays away for the first time is noticed within the time that it has
 *                driven before, TICK_MOST_NS at most.
 *   parked       a caller sleeps in the network, holding the seat. It sleeps without ticks; whoever
 *                leaves the seat rings the bell.
 *
 * What a caller does after it has left the seat is foretold from the last times (foretell.h), long
 * (it computed, more than COMPUTES_NS) or short. Computing is time on the CPU, but for writes: who
 * shares its core with others, perhaps with the very peer that it talks to, is away for just as
 * long, but to wake the background would only add one more that wants that core. The time on the
 * CPU costs a system call, so it is taken only while some of the last times away were long by the
 * clock on the wall.
 *
 * So a caller that waits keeps driving itself, at no cost but for a look at the bell; and an idle
 * process has no ticks at all. `bell` is what the background waits for on it, 0 while it does not:
 * it writes the bell, then looks at the seat; who leaves the seat writes that, then looks at the
 * bell (sequentially consistent).
 *
 * Locks: `control` is held over starting and stopping, outermost but for start.c's; `passing` over
 * each time that the background has the seat, so that a fork finds it without any lock. The child
 * has no background.
 */
#include "bmi/background.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "bmi/foretell.h"
#include "bmi/log.h"
#include "bmi/progress.h"
#include "bmi/settings.h"
#include "bmi/task.h"
#include "bmi/work.h"
#include "task/event.h"
#include "task/gate.h"
#include "task/internal.h"

enum { TICK_NS = 1000000, TICK_MOST_NS = 8000000 };
enum { COMPUTES_NS = 30000, MOVE_NS = 1000000000, PART_NS = 10000000 };
enum { PARK_TICKS = 10, NOBODY_NS = 250000, DRIVEN_TURNS = 8 };
enum { BELL_NONE, BELL_COMPUTES, BELL_ALWAYS };

atomic_bool bmi__background_is_on;

static struct bmi__gate control = BMI__GATE; /* its holder always waits */
static atomic_bool switches_on;              /* written under control: what its holder does */
static pthread_mutex_t passing = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool is_background;
static _Thread_local bool control_taken; /* by before_fork */
/* This thread's time on a CPU as it left the seat, and that of its writes since; 0: was not looked
 * at. */
static _Thread_local uint64_t left_cpu_ns;

static struct {
    atomic_bool stopping;
    atomic_uint bell;
    int call_fd;             /* wakes it while it watches; written under control, kept to the end */
    atomic_bool waits;       /* for the network, and has not been called away */
    atomic_uint waits_since; /* `turns` then */
    struct bmi_task_sleeper hook;
    /* where: two tasks, since one that moves submits the other and ends */
    struct bmi_task tasks[2];
    struct bmi_cpuset near; /* the running task's own, as the next two */
    int left_out;           /* the one of these that it stays away from, or -1 */
    uint64_t moved_ns;
    atomic_int posted_cpu;
    /* the callers' turns; written with the seat held */
    atomic_uint turns;
    atomic_uint absences; /* how often they were away, computing or for long */
    atomic_bool computes; /* the caller will probably stay away for long */
    _Atomic uint64_t left_ns;
    struct foretell aways; /* seat: of the times between turns; a long one is computing */
    unsigned waits_lately; /* seat: of the last of them a bit each, 1 for long by the clock */
    pthread_t left_by;     /* seat: who left it last */
} background = {.call_fd = -1};

/* Writing by idle CPUs. The tasks are one for each CPU, made when first wanted, and stay: a thread
 * may be about to submit one when this is switched off. */
static struct {
    atomic_bool on;
    struct bmi_task *tasks; /* written under control, before `on` */
} offload;

bool bmi__background_self(void)
{
    return is_background;
}

static void call(void)
{
    eventfd_write(background.call_fd, 1);
}

/* Not where it is switched off: a caller may be about to call. */
void bmi__background_end(void)
{
    if (background.call_fd >= 0)
        close(background.call_fd);
    background.call_fd = -1;
}

/* ---- callers' turns ------------------------------------------------------------------------- */

/* For who alone writes it. */
static void count_up(atomic_uint *count)
{
    unsigned before = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, before + 1, memory_order_relaxed);
}

/* The caller computed for long, or did not: foretells the next time. */
static void away_note(bool was_long)
{
    bool computes = bmi__foretell(&background.aways, was_long);
    if (computes != atomic_load_explicit(&background.computes, memory_order_relaxed))
        atomic_store_explicit(&background.computes, computes, memory_order_relaxed);
}

static uint64_t own_cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

/* Where another thread comes than the one that left, what that one used of a CPU is not known: then
 * the time itself decides, if it is a long one. */
static bool has_computed(uint64_t away_ns)
{
    if (!pthread_equal(background.left_by, pthread_self()))
        return away_ns > NOBODY_NS;
    return left_cpu_ns != 0 && own_cpu_ns() > left_cpu_ns + COMPUTES_NS;
}

void bmi__background_turn_begins(uint64_t now_ns)
{
    uint64_t left = atomic_load_explicit(&background.left_ns, memory_order_relaxed);
    bool waited = now_ns > left && now_ns - left > COMPUTES_NS;
    bool computed = waited && has_computed(now_ns - left);
    away_note(computed);
    if (computed || (waited && now_ns - left > NOBODY_NS))
        count_up(&background.absences);
    background.waits_lately = (background.waits_lately << 1 | waited) % FORETELL_HISTORIES;
}

static bool caller_computes(void)
{
    return atomic_load_explicit(&background.computes, memory_order_relaxed);
}

static unsigned turns_made(void)
{
    return atomic_load_explicit(&background.turns, memory_order_relaxed);
}

/* While the background waits for the network, what comes there wakes it, whoever takes it. So
 * callers that drive again, and do not compute between, call it away: it finds that they do, and
 * stands by. */
static void call_away(void)
{
    if (!atomic_load_explicit(&background.waits, memory_order_relaxed) || caller_computes())
        return;
    unsigned since = atomic_load_explicit(&background.waits_since, memory_order_relaxed);
    if (turns_made() - since >= DRIVEN_TURNS && atomic_exchange(&background.waits, false))
        call();
}

void bmi__background_turn_ends(uint64_t now_ns)
{
    count_up(&background.turns);
    atomic_store_explicit(&background.left_ns, now_ns, memory_order_relaxed);
    background.left_by = pthread_self();
    left_cpu_ns = background.waits_lately != 0 ? own_cpu_ns() : 0;
    call_away();
}

/* For how long nobody had a turn. */
static uint64_t away_ns(void)
{
    uint64_t left = atomic_load_explicit(&background.left_ns, memory_order_relaxed);
    uint64_t now = bmi__monotonic_ns();
    return now > left ? now - left : 0;
}

static unsigned absences(void)
{
    return atomic_load_explicit(&background.absences, memory_order_relaxed);
}

/* ---- the bell ------------------------------------------------------------------------------- */

static void bell_ring(void)
{
    if (atomic_exchange(&background.bell, BELL_NONE) != BELL_NONE)
        bmi__futex_wake(&background.bell);
}

void bmi__background_seat_free(void)
{
    unsigned bell = atomic_load(&background.bell);
    if (bell == BELL_ALWAYS || (bell == BELL_COMPUTES && caller_computes()))
        bell_ring();
}

/* Sleeps until the bell rings (returns true), the time is over (deadline_ns 0: never), or at once
 * where it would not ring. */
static bool bell_wait(unsigned bell, uint64_t deadline_ns)
{
    atomic_store(&background.bell, bell);
    bool wait = !atomic_load(&background.stopping) &&
                (bell == BELL_ALWAYS ? bmi__progress_driver_sleeps()
                                     : bmi__progress_driven() || !caller_computes());
    while (wait && atomic_load(&background.bell) == bell) {
        bmi__futex_wait(&background.bell, bell, deadline_ns);
        wait = deadline_ns == 0 || bmi__monotonic_ns() < deadline_ns;
    }
    return atomic_exchange(&background.bell, BELL_NONE) == BELL_NONE;
}

/* Others drive: waits until they have ceased to. A caller that sleeps in the network for a moment
 * only is not worth a bell: who leaves would ring it for each message. */
static void stand_by(void)
{
    unsigned asleep = 0; /* ticks that the same caller has slept */
    uint64_t tick_ns = TICK_NS;
    bmi__progress_watch_end();
    while (!atomic_load(&background.stopping)) {
        unsigned turns = turns_made(), away = absences();
        if (bell_wait(BELL_COMPUTES, bmi__monotonic_ns() + tick_ns))
            return;
        bool same = turns == turns_made();
        if (!bmi__progress_driven() && (same || away_ns() > NOBODY_NS))
            return;
        if (same || away != absences())
            tick_ns = TICK_NS;
        else if (tick_ns < TICK_MOST_NS)
            tick_ns *= 2;
        asleep = same && bmi__progress_driver_sleeps() ? asleep + 1 : 0;
        if (asleep < PARK_TICKS)
            continue;
        uint64_t parked_ns = bmi__monotonic_ns();
        if (bell_wait(BELL_ALWAYS, 0) && caller_computes())
            return;
        /* a caller that sleeps in the network for long each time is soon left alone again */
        asleep = bmi__monotonic_ns() - parked_ns > PARK_TICKS * TICK_NS ? PARK_TICKS - 1 : 0;
    }
}

/* ---- watching ------------------------------------------------------------------------------- */

static void hook_wanted(struct bmi_task_sleeper *sleeper)
{
    (void)sleeper;
    call();
}

/* Waits for the network, for a call, or until a timer is due; runs what hooks should run. Returns
 * whether callers have called it away: what is there is theirs, and to look for it would only have
 * them wait for the socket. */
static bool network_wait(uint64_t until_ns)
{
    bool called = false;
    struct pollfd fds[2] = {{.fd = bmi__progress_fd(), .events = POLLIN},
                            {.fd = background.call_fd, .events = POLLIN}};
    if (bmi_task_sleeper_arm(NULL, &background.hook)) {
        uint64_t now = bmi__monotonic_ns();
        uint64_t ms = until_ns <= now ? 0 : (until_ns - now + 999999) / 1000000;
        atomic_store_explicit(&background.waits_since, turns_made(), memory_order_relaxed);
        atomic_store(&background.waits, true);
        poll(fds, 2, until_ns == UINT64_MAX ? -1 : ms > 1000000 ? 1000000 : (int)ms);
        called = !atomic_exchange(&background.waits, false);
    }
    bmi_task_sleeper_disarm(NULL, &background.hook);
    eventfd_t value;
    if (fds[1].revents != 0 && !atomic_load(&background.stopping))
        eventfd_read(background.call_fd, &value);
    bmi_task_schedule(NULL);
    return called;
}

/* Who posts is far away, or on the very CPU that we are on. */
static bool has_moved(void)
{
    int cpu = atomic_load_explicit(&background.posted_cpu, memory_order_relaxed);
    if (cpu == background.left_out)
        return false;
    bool far = !bmi_cpuset_has(&background.near, cpu);
    bool shared = background.left_out >= 0 && sched_getcpu() == cpu;
    uint64_t least_ns = far ? MOVE_NS : PART_NS;
    return (far || shared) && bmi__monotonic_ns() - background.moved_ns > least_ns;
}

static void drive_and_wait(void)
{
    unsigned seen = turns_made();
    while (!atomic_load(&background.stopping) && !has_moved()) {
        uint64_t until_ns;
        pthread_mutex_lock(&passing);
        enum bmi__watch found = bmi__progress_watch(&until_ns);
        pthread_mutex_unlock(&passing);
        unsigned turns = turns_made();
        bool driven = found == BMI__WATCH_TAKEN || (turns != seen && !caller_computes());
        if (!driven && found == BMI__WATCH_QUIET)
            driven = network_wait(until_ns);
        if (driven) {
            stand_by();
            turns = turns_made();
        }
        seen = turns;
    }
}

/* ---- the task ------------------------------------------------------------------------------- */

static enum bmi_task_verdict run(struct bmi_task *task, void *argument);

/* Submits the task that is to go on, near the CPU that posted last. */
static int task_submit(unsigned which)
{
    struct bmi_cpuset all;
    bmi_task_wait(&background.tasks[which], -1); /* it has moved us here, and is about to end */
    int cpu = atomic_load(&background.posted_cpu);
    bmi_task_cpus(NULL, &all);
    if (bmi_task_cpus_near(NULL, cpu, BMI_TASK_LEVEL_CACHE, &background.near) < 0)
        background.near = all; /* a CPU that was not the process's when the manager was made */
    struct bmi_cpuset cpus = background.near;
    bmi_cpuset_add(&background.near, cpu);
    bmi_cpuset_remove(&cpus, cpu);
    background.left_out = bmi_cpuset_count(&cpus) > 0 ? cpu : -1;
    if (background.left_out < 0)
        cpus = background.near;
    background.moved_ns = bmi__monotonic_ns();
    int status = bmi_task_prepare(&background.tasks[which], NULL,
                                  &(struct bmi_task_attributes){.function = run,
                                                                .cpus = &cpus,
                                                                .options = BMI_TASK_MAY_BLOCK});
    if (status < 0)
        return status;
    /* Who moves gives its thread up, which tasks of the program's may wait for, and keep. */
    bmi__spare_first(&background.tasks[which]);
    return bmi_task_submit(&background.tasks[which]);
}

static enum bmi_task_verdict run(struct bmi_task *task, void *argument)
{
    (void)argument;
    is_background = true;
    for (;;) {
        drive_and_wait();
        if (atomic_load(&background.stopping) ||
            task_submit(task == &background.tasks[0] ? 1 : 0) == 0)
            break;
    }
    is_background = false;
    return BMI_TASK_DONE;
}

/* ---- writing by idle CPUs ---------------------------------------------------------------------
 */

static enum bmi_task_verdict flush_links(struct bmi_task *task, void *argument)
{
    (void)task, (void)argument;
    bmi__work_flush();
    return BMI_TASK_DONE;
}

/* Has a link flushed by the nearest idle CPU, if that is wanted and there is one. */
static bool offload_flush(struct bmi_link *link)
{
    if (!atomic_load_explicit(&offload.on, memory_order_acquire))
        return false;
    int cpu = bmi_task_nearest_idle(NULL, sched_getcpu());
    if (cpu < 0)
        return false;
    bmi__work_dirty(link); /* wakes nobody: the task flushes it */
    int status = bmi_task_submit(&offload.tasks[cpu]);
    return status == 0 || status == -EBUSY; /* busy: it is yet to run */
}

/* To write is not to compute. Where it wakes somebody it takes 40 us, and would wake the background
 * next time, which is in the way of who writes, and so on. The clock on the wall, which costs no
 * system call, is near enough. */
void bmi__background_flush(struct bmi_link *link)
{
    if (offload_flush(link))
        return;
    uint64_t before = left_cpu_ns != 0 ? bmi__monotonic_ns() : 0;
    link->method->flush(link);
    if (before != 0)
        left_cpu_ns += bmi__monotonic_ns() - before;
}

static int offload_prepare_locked(void)
{
    struct bmi_cpuset all;
    struct bmi_task *tasks = calloc(BMI_CPUSET_MAX, sizeof *tasks);
    int status = tasks != NULL ? 0 : -ENOMEM;
    bmi_task_cpus(NULL, &all);
    for (int cpu = bmi_cpuset_next(&all, 0); status == 0 && cpu >= 0;
         cpu = bmi_cpuset_next(&all, cpu + 1)) {
        struct bmi_cpuset one = {.words = {0}};
        bmi_cpuset_add(&one, cpu);
        status =
            bmi_task_prepare(&tasks[cpu], NULL,
                             &(struct bmi_task_attributes){.function = flush_links, .cpus = &one});
    }
    if (status == 0)
        offload.tasks = tasks;
    else
        free(tasks);
    return status;
}

static int offload_start_locked(void)
{
    int status = offload.tasks == NULL ? offload_prepare_locked() : 0;
    if (status == 0)
        status = bmi_task_manager_start(NULL, BMI_TASK_WORKERS);
    if (status == 0)
        atomic_store(&offload.on, true);
    return status;
}

static void offload_stop_locked(void)
{
    if (!atomic_exchange(&offload.on, false))
        return;
    bmi_task_manager_stop(NULL, BMI_TASK_WORKERS);
}

/* ---- fork ----------------------------------------------------------------------------------- */

/* From within a task: `control` may be held by who waits for it, the background has `passing`. */
static void before_fork(void)
{
    if (is_background)
        return;
    control_taken = bmi__gate_take(&control) == 0;
    pthread_mutex_lock(&passing);
}

static void after_fork_parent(void)
{
    if (is_background)
        return;
    pthread_mutex_unlock(&passing);
    if (control_taken)
        bmi__gate_give(&control);
}

static void after_fork_child(void)
{
    bmi__gate_init(&control); /* who held it is not here */
    if (is_background)
        pthread_mutex_init(&passing, NULL); /* the same */
    else
        pthread_mutex_unlock(&passing);
    is_background = false;
    bmi__background_end(); /* the descriptor is the parent's */
    /* and so is the tasks' manager; those of idle CPUs stay prepared while this is off */
    memset(background.tasks, 0, sizeof background.tasks);
    atomic_store(&offload.on, false);
    offload.tasks = NULL;
    if (!atomic_exchange(&bmi__background_is_on, false))
        return;
    bmi__progress_watch_end();
    atomic_store(&background.bell, BELL_NONE);
    atomic_store(&background.stopping, true);
}

static void fork_watch(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* ---- start and stop ------------------------------------------------------------------------- */

static int start_locked(void)
{
    int status;
    if (background.call_fd < 0)
        background.call_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (background.call_fd < 0)
        return -errno;
    background.hook = (struct bmi_task_sleeper){.wake = hook_wanted};
    atomic_store(&background.stopping, false);
    atomic_store(&background.computes, true);
    atomic_store(&background.posted_cpu, sched_getcpu());
    status = bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY);
    if (status < 0)
        return status;
    atomic_store(&bmi__background_is_on, true);
    status = task_submit(0);
    if (status == 0)
        return 0;
    atomic_store(&bmi__background_is_on, false);
    bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
    return status;
}

/* Ends a task, or waits until it has ended. One that is queued might wait for a thread for ever.
 * What else is queued runs first, as where one waits: this may be the manager's last use. */
static void task_end(struct bmi_task *task)
{
    struct bmi_task_manager *manager = bmi_task_manager_default();
    bmi__tasks_needed();
    bmi_task_schedule(manager);
    bmi__tasks_needed_end();
    if (bmi__spare_claim(manager, task))
        bmi__task_drop(manager, task);
    bmi__task_await(task);
}

/* Ends both tasks twice: the one that was waited for last may have submitted the other. */
static void stop_locked(void)
{
    offload_stop_locked();
    atomic_store(&background.stopping, true);
    call();
    bell_ring();
    for (int i = 0; i < 4; i++)
        task_end(&background.tasks[i % 2]);
    atomic_store(&bmi__background_is_on, false);
    bmi__progress_watch_end();
    bmi__progress_kick(); /* who polls a descriptor has to see to the timers from now on */
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
    if (status == 0 && wanted && offload_wanted && !atomic_load(&offload.on)) {
        status = offload_start_locked();
        if (status < 0 && start)
            stop_locked();
    }
    if (!offload_wanted)
        offload_stop_locked();
    if (status < 0)
        bmi__log(BMI_LOG_ERROR, "progress in the background: %s", strerror(-status));
    return status;
}

static int switch_begin(void)
{
    int status = bmi__gate_take(&control);
    if (status == 0)
        bmi__gate_waits(&control);
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
    bool wanted = is_wanted(); /* with the lock: who set it last is followed last */
    atomic_store(&switches_on, wanted);
    int status = follow_locked(wanted, bmi__setting(SETTING_OFFLOAD) != 0);
    bmi__gate_give(&control);
    return status;
}

int bmi__background_stop(void)
{
    if (is_background || switch_begin() != 0)
        return -EDEADLK;
    atomic_store(&switches_on, false);
    if (bmi__background_on())
        stop_locked();
    bmi__gate_give(&control);
    return 0;
}

void bmi__background_posted(void)
{
    int cpu = sched_getcpu();
    if (cpu != atomic_load_explicit(&background.posted_cpu, memory_order_relaxed))
        atomic_store_explicit(&background.posted_cpu, cpu, memory_order_relaxed);
}
