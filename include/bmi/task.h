/* SPDX-License-Identifier: BSD-3-Clause
 *
 * task.h - a locality-aware task manager, after PIOMan (Trahay, Denis: "A Scalable and Generic Task
 * Scheduling System for Communication Libraries", Cluster 2009).
 *
 * A tree of queues mirrors the machine: one queue for the machine, each package, NUMA node, shared
 * cache, core, and processing unit (here: CPU). Levels that have the same CPUs share one queue. A
 * task is a function with an argument and a set of CPUs; it waits in the lowest queue that covers
 * the set. A CPU runs the tasks of its own queue, then those of each queue above it, up to the
 * global one. Three kinds of threads run tasks: worker threads (one bound to each CPU; they sleep
 * while their queues are empty), a timer thread where a CPU is too busy for its worker, and hooks:
 * threads of the program that call bmi_task_schedule() or wait for a task. Without workers the
 * hooks run all queues, and the manager has no thread of its own.
 *
 * This header includes no other header of libbmi, and the code uses no other part of libbmi. Errors
 * are the negated codes of bmi.h; bmi_status_string() names them. CPU numbers are the operating
 * system's. Where a function takes a manager, NULL stands for the process's own,
 * bmi_task_manager_default(). After fork() a child must not use its parent's managers; its default
 * manager is a new one.
 */
#ifndef BMI_TASK_H
#define BMI_TASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#if !defined(__cplusplus) && __STDC_VERSION__ >= 201112L
#include <stdatomic.h>
#define BMI_TASK_ATOMIC(type) _Atomic(type)
#else
#define BMI_TASK_ATOMIC(type) type /* same size and alignment; only the library accesses it */
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* ---- sets of CPUs ---------------------------------------------------------------------------- */

#define BMI_CPUSET_MAX 1024 /* CPU numbers are below this */

struct bmi_cpuset {
    uint64_t words[BMI_CPUSET_MAX / 64];
};

/* Empty a set; add a CPU, remove it, test for it; count the CPUs. A CPU number outside
 * 0..BMI_CPUSET_MAX-1 is never in a set; adding it changes nothing. Returns: nothing;
 * bmi_cpuset_has and bmi_cpuset_count return the answer. Owns: nothing, sets are the caller's.
 * Threads: the caller synchronizes, as for any data. Blocks: no. */
static inline void bmi_cpuset_clear(struct bmi_cpuset *set)
{
    for (size_t i = 0; i < BMI_CPUSET_MAX / 64; i++)
        set->words[i] = 0;
}

static inline void bmi_cpuset_add(struct bmi_cpuset *set, int cpu)
{
    if (cpu >= 0 && cpu < BMI_CPUSET_MAX)
        set->words[cpu / 64] |= UINT64_C(1) << (cpu % 64);
}

static inline void bmi_cpuset_remove(struct bmi_cpuset *set, int cpu)
{
    if (cpu >= 0 && cpu < BMI_CPUSET_MAX)
        set->words[cpu / 64] &= ~(UINT64_C(1) << (cpu % 64));
}

static inline bool bmi_cpuset_has(const struct bmi_cpuset *set, int cpu)
{
    return cpu >= 0 && cpu < BMI_CPUSET_MAX && (set->words[cpu / 64] >> (cpu % 64) & 1) != 0;
}

/* Returns: the lowest CPU of the set that is >= `from`, or -1: the loop is
 * for (int cpu = bmi_cpuset_next(&set, 0); cpu >= 0; cpu = bmi_cpuset_next(&set, cpu + 1))
 * Owns: nothing. Threads: the caller's care. Blocks: no. */
static inline int bmi_cpuset_next(const struct bmi_cpuset *set, int from)
{
    for (int cpu = from < 0 ? 0 : from; cpu < BMI_CPUSET_MAX; cpu = (cpu / 64 + 1) * 64) {
        uint64_t rest = set->words[cpu / 64] >> (cpu % 64);
        if (rest != 0)
            return cpu + __builtin_ctzll(rest);
    }
    return -1;
}

static inline int bmi_cpuset_count(const struct bmi_cpuset *set)
{
    int count = 0;
    for (size_t i = 0; i < BMI_CPUSET_MAX / 64; i++)
        count += __builtin_popcountll(set->words[i]);
    return count;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

struct bmi_task;
struct bmi_task_manager;
struct bmi_task_group; /* bmi/task_group.h */

/* The status that a task's function returns. */
enum bmi_task_status {
    BMI_TASK_DONE = 0, /* the task has ended */
    BMI_TASK_AGAIN,    /* BMI_TASK_REPEAT: run it again, after others of its queue. Else: as DONE */
    BMI_TASK_GONE      /* the task has ended and its memory may be freed already: the manager does
                          not access it any more. No thread may be waiting for it */
};

/* A task's function. It may submit other tasks and itself (then it runs once more), wait for other
 * tasks, and free the task if it returns GONE. It runs on the stack of a worker or of a caller. The
 * manager's threads block all signals except those that a thread's own faults raise. Returns: the
 * task's status. Owns: the task stays lent to the manager, except after GONE. Threads: any that
 * runs tasks, one at a time. Blocks: it should be short; a task that may block must set
 * BMI_TASK_MAY_BLOCK. */
typedef enum bmi_task_status (*bmi_task_function)(struct bmi_task *task, void *argument);

enum bmi_task_option {
    BMI_TASK_REPEAT = 1, /* run it until it returns DONE. Between two runs the interval passes;
                            where that is 0, the task runs again and again, which takes all of an
                            idle CPU and a share of a busy one */
    BMI_TASK_URGENT = 2, /* run it at once, on the lowest CPU of its set, even if that CPU computes.
                            A thread that waits on that CPU runs it, real-time where the process may
                            use that. After it, this thread also runs the other due tasks of the
                            CPU */
    BMI_TASK_MAY_BLOCK = 4 /* run it on a thread of the blocking pool, which may run on the CPUs of
                              the set; never on a worker or a caller. At most
                              settings.blocking_threads run at a time */
};

enum bmi_task_state {
    BMI_TASK_IDLE = 0, /* prepared, never submitted */
    BMI_TASK_QUEUED,
    BMI_TASK_RUNNING,
    BMI_TASK_ENDED,    /* its function returned DONE */
    BMI_TASK_CANCELLED /* it was removed before its (next) run */
};

/* The properties of a new task; zero those that are not needed. */
struct bmi_task_attributes {
    bmi_task_function function; /* needed */
    void *argument;
    const struct bmi_cpuset *cpus; /* the task may run there; NULL: anywhere. Copied */
    unsigned options;              /* of enum bmi_task_option */
    bmi_task_function cancelled;   /* called instead of a run when the task is cancelled, also by a
                                      shutdown; NULL: only the state shows it */
    const struct bmi_task_hints *hints; /* memory that it uses; lent until the task has ended */
    uint32_t interval_us; /* with REPEAT: after a run that returns AGAIN, the next run starts so
                             much later. A thread of the manager waits for that, also without
                             workers. Each run scans the delayed tasks that are due before: meant
                             for tens of them, not thousands */
};

/* A task, embedded in its owner's structure; 8-byte aligned as any structure with pointers. Only
 * the manager accesses the members. */
struct bmi_task {
    BMI_TASK_ATOMIC(uint32_t) state;
    uint16_t options;
    uint16_t cpu; /* of an urgent task: the CPU to run on, by the tree's own number; of a group's
                     task: the part of the group */
    bmi_task_function function;
    void *argument;
    struct bmi_task_manager *manager;
    BMI_TASK_ATOMIC(struct bmi__task_node *) node; /* the node whose queue it enters */
    const struct bmi_cpuset *only; /* a set that is no node's: the CPUs that may take it; or NULL */
    struct bmi_task *next;         /* in a list, under that list's lock */
    struct bmi_task_group *group;  /* from submit to end; or NULL */
    bmi_task_function cancelled;
    const struct bmi_task_hints *hints;
    uint64_t due_ns; /* when a delayed task is due */
    uint32_t interval_us;
};

/* Makes a task ready to be submitted to this manager (NULL: the default one). A task may be
 * prepared again when it is neither queued nor running and no thread waits for it. Returns: 0;
 * -BMI_EINVAL (NULL, unknown options, an interval without REPEAT, a set that is empty or has a CPU
 * that is not the manager's, MAY_BLOCK together with URGENT), -BMI_ENOMEM, -BMI_EAGAIN (a thread
 * that URGENT, MAY_BLOCK, or an interval needs cannot be started), -BMI_EOPNOTSUPP (MAY_BLOCK
 * without a blocking pool). Owns: the task's memory is lent to the manager from submit until its
 * end; attributes are copied. Threads: any, one at a time for each task. Blocks: no, it may start a
 * thread. */
int bmi_task_prepare(struct bmi_task *task, struct bmi_task_manager *manager,
                     const struct bmi_task_attributes *attributes);

/* Queues a task. A task that is running may be submitted once: it runs again after that. Its next
 * run sees all that the caller has written before, also where -BMI_EBUSY says that it is queued
 * already. Returns: 0; -BMI_EBUSY (queued already, or cancelled while it runs), -BMI_ENODEV (the
 * manager is not started), -BMI_EINVAL (zeroed memory that was never prepared). Owns: the task is
 * lent until its end. Nothing is allocated. Threads: any, also within tasks. Blocks: no; it makes a
 * system call if it must wake a thread, and for MAY_BLOCK it tries again to start a thread if that
 * failed before. While another thread stops the manager, it may end queued tasks and call their
 * `cancelled` functions. */
int bmi_task_submit(struct bmi_task *task);

/* Takes a task out of its queue, or ends its repetition. The task ends (state CANCELLED,
 * `cancelled` is called) when a CPU reaches it in its queue; bmi_task_wait waits for that. Returns:
 * 0 (was queued: will not run again), -BMI_EBUSY (is running: will not run again after that),
 * -BMI_EALREADY (neither: nothing changes). Owns: ownership does not change before the task's end.
 * Threads: any. Blocks: no. */
int bmi_task_cancel(struct bmi_task *task);

/* Reads a task's state. If the task's function may return GONE, only this function may call it.
 * Returns: the task's state. Owns: nothing; with ENDED and CANCELLED the task is the caller's
 * again. Threads: any. Blocks: no. */
enum bmi_task_state bmi_task_state(const struct bmi_task *task);

/* A long-running function calls it to learn whether it should end soon. Returns: whether
 * bmi_task_cancel was called since the task was submitted. Owns: nothing. Threads: any. Blocks:
 * no. */
bool bmi_task_cancel_wanted(const struct bmi_task *task);

/* Waits until a task has ended. Meanwhile it runs tasks that the calling thread's CPU may run, and
 * without workers any task. (While workers run, a thread that is not a worker runs one round of
 * tasks, then sleeps.) In a call nested BMI_TASK_DEPTH tasks deep it runs only the awaited task, if
 * that is queued; a thread of the blocking pool does the same with an awaited MAY_BLOCK task at any
 * depth. If another thread submits the task again at once, the call may wait for that run as well.
 * Returns: 0 (ended), -BMI_ECANCEL, -BMI_ETIMEDOUT, -BMI_EINVAL (never submitted), -BMI_EDEADLK
 * (called within BMI_TASK_WAIT_DEPTH tasks within tasks; or for a task that waits itself, below on
 * the same stack, and so cannot end before the caller does). Owns: the task is the caller's again
 * with 0 and -BMI_ECANCEL. Threads: any, also within tasks. Blocks: up to timeout_ms (<0: no limit;
 * 0: it only checks), and for as long as a task that it runs takes. */
int bmi_task_wait(struct bmi_task *task, int timeout_ms);

#define BMI_TASK_DEPTH 8
#define BMI_TASK_WAIT_DEPTH 64

/* ---- hooks ----------------------------------------------------------------------------------- */

/* Runs one round of the paper's Algorithm 1 for the CPU that the caller is on: the tasks of its own
 * queue, then of each queue above, then of queues that no worker serves. From each queue it runs at
 * most as many tasks as it found there. Returns: how many tasks it ran; 0 at once where queues are
 * empty. Owns: nothing; tasks that end return to their owners. Threads: any, also within tasks.
 * Blocks: as the tasks do. */
unsigned bmi_task_schedule(struct bmi_task_manager *manager);

/* The same as if the caller ran on `cpu` (a CPU of the manager's, else it returns 0): for tests and
 * for measuring trees of other machines. Returns, Owns, Threads, Blocks: as bmi_task_schedule. */
unsigned bmi_task_schedule_on(struct bmi_task_manager *manager, int cpu);

/* For an event loop that runs a manager without workers and wants to sleep. The loop arms a
 * waker, sleeps in its own way, disarms the waker, and calls bmi_task_schedule. The first
 * submit that no worker will serve calls `wake` once, on the submitting thread, with a lock held:
 * `wake` may write to an eventfd or signal a condition, and must not call the manager. If several
 * wakers are armed, the one armed last is woken. Some owners do not sleep themselves, but stay
 * armed until the program calls them (a descriptor in another event loop). Such an owner sets
 * `away` before it arms: then the next waker is woken as well, since the program may be slow to
 * call, or may be waiting for this very task elsewhere. Returns, Owns, Threads, Blocks: see
 * bmi_task_waker_arm; `wake` itself must not block. */
struct bmi_task_waker {
    void (*wake)(struct bmi_task_waker *waker); /* set by the owner */
    struct bmi_task_waker *next, **link_to_me;  /* the manager's; zero before first use */
    bool away;                                  /* set by the owner, before it arms: see above */
};

/* Arms a waker. Returns: true: armed, sleep now; false: tasks are queued, call bmi_task_schedule
 * instead. Owns: the waker is lent until disarmed. Threads: any, one at a time for each waker.
 * Blocks: no. */
bool bmi_task_waker_arm(struct bmi_task_manager *manager, struct bmi_task_waker *waker);

/* Disarms a waker, whether it was woken, not woken, or not even armed. Returns: nothing. Owns:
 * the waker is the caller's again. Threads: as for arm. Blocks: no. */
void bmi_task_waker_disarm(struct bmi_task_manager *manager, struct bmi_task_waker *waker);

/* ---- managers -------------------------------------------------------------------------------- */

/* How the kernel schedules workers. */
enum bmi_task_policy {
    BMI_TASK_POLICY_BATCH = 0, /* SCHED_BATCH: a worker starts at once on an idle CPU. On a busy CPU
                                  it takes turns with the threads that compute, at the process's own
                                  priority, and interrupts none of them */
    BMI_TASK_POLICY_NORMAL,    /* SCHED_OTHER with a slice of 0.1 ms: a worker starts at once on a
                                  busy CPU, too, and interrupts the thread that computes there */
    BMI_TASK_POLICY_IDLE       /* SCHED_IDLE: a worker runs while no other thread wants its CPU. A
                                  task that it has begun stops while others compute there. A process
                                  without RLIMIT_NICE cannot choose another policy afterwards */
};

enum bmi_task_topology_source {
    BMI_TASK_TOPOLOGY_LIVE = 0,  /* this machine: CPUs that affinity mask and cgroup allow */
    BMI_TASK_TOPOLOGY_SYNTHETIC, /* hwloc's text: "package:8 l3:1 core:32 pu:1" */
    BMI_TASK_TOPOLOGY_XML        /* a file as `lstopo --of xml` writes it */
};

/* 0 takes the default. */
struct bmi_task_settings {
    enum bmi_task_topology_source topology;
    const char *topology_text;            /* the text, or the file's name */
    const struct bmi_cpuset *worker_cpus; /* these get a worker; NULL: all */
    uint32_t queue_slots; /* 1024: tasks that a queue holds without a lock; a power of 2, >= 8 */
    int32_t blocking_threads; /* 4: most threads of the blocking pool (MAY_BLOCK); -1: none */
    uint32_t timer_us; /* 2000: the timer runs a task that a busy CPU did not run for so long */
    uint32_t timer_budget_us; /* 200: the timer runs tasks for so long at a time */
    enum bmi_task_policy worker_policy;
    bool no_realtime; /* threads for urgent tasks and the timer keep the normal scheduler */
};

enum bmi_task_threads {
    BMI_TASK_HOOKS_ONLY = 0, /* tasks run in bmi_task_schedule and bmi_task_wait only */
    BMI_TASK_WORKERS = 1     /* and in the background, on workers */
};

/* The process's manager: live topology, default settings. The first use creates it, and it exists
 * until the process ends; hooks (bmi_task_schedule, wakers) do not create it. Returns: the
 * manager, or NULL (out of memory, or the topology can't be read). Owns: the library's. Threads:
 * any. Blocks: the first call, to read the topology. */
struct bmi_task_manager *bmi_task_manager_default(void);

/* Creates a separate manager, e.g. for a test; `settings` may be NULL. Returns: 0 and *manager;
 * -BMI_EINVAL (settings, or a topology text that hwloc rejects), -BMI_ENOENT (no such file;
 * -BMI_EACCES, -BMI_ENOTDIR, ...),
 * -BMI_EOVERFLOW (a CPU number above BMI_CPUSET_MAX), -BMI_ENOMEM. `error` (may be NULL) receives a
 * text in each case, with hwloc's own message where it has one. Owns: *manager is the caller's
 * until bmi_task_manager_destroy; settings are copied. Threads: any. Blocks: to read the
 * topology. */
int bmi_task_manager_create(const struct bmi_task_settings *settings,
                            struct bmi_task_manager **manager, char *error, size_t error_size);

/* Stops a manager as often as it was started, and frees it. It leaves the default manager and NULL
 * alone. Returns: nothing. Owns: all its memory is freed; tasks belong to their owners. Threads: no
 * other thread may be using the manager. It must not be called within a task that one of the
 * manager's threads runs: then the manager is stopped except for its threads, and its memory is
 * lost. Blocks: until running tasks have ended. */
void bmi_task_manager_destroy(struct bmi_task_manager *manager);

/* Changes the scheduling policy of a manager's workers. Each worker changes when the task that it
 * runs has ended. BMI's setting `worker_policy` does this for the default manager at BMI_initialize
 * and when it is set. Returns: 0; -BMI_EINVAL (no such policy). Owns: nothing. Threads: any.
 * Blocks: no. */
int bmi_task_manager_set_policy(struct bmi_task_manager *manager, enum bmi_task_policy policy);

/* Allows tasks to be submitted; with BMI_TASK_WORKERS, starts workers and timer. Starts are
 * counted: each needs its stop with the same `threads`; workers run until the last start that asked
 * for them is undone. Returns: 0; -BMI_EAGAIN, -BMI_ENOMEM (threads can't be started: nothing has
 * changed), -BMI_EINVAL, -BMI_EDEADLK (within a task, while another thread stops the manager and
 * may wait for that task). Owns: nothing. Threads: any. Blocks: until workers run. */
int bmi_task_manager_start(struct bmi_task_manager *manager, enum bmi_task_threads threads);

/* Undoes one start. When the last start with workers is undone, the workers end, and hooks run the
 * queued tasks. When the last start of all is undone, the manager shuts down: every task still
 * queued ends CANCELLED, repeating ones too; the call waits for tasks that run on the manager's
 * threads, and not for those that a hook runs. Stores, contexts of flows and jobs, and progress in
 * the background start and stop the default manager. Two calls do none of this at once: one on a
 * thread of the manager, and one within a task that another stopping thread may wait for. The next
 * start or stop of the manager then does it. Returns: 0; -BMI_EINVAL (more stops than starts).
 * Owns: tasks return to their owners. Threads: any. Blocks: until tasks on the manager's threads
 * have ended. */
int bmi_task_manager_stop(struct bmi_task_manager *manager, enum bmi_task_threads threads);

/* ---- queries --------------------------------------------------------------------------------- */

/* Counts the manager's CPUs, and fills *cpus (may be NULL) with them.
 * Returns: their number. Owns: nothing, *cpus is a copy. Threads: any. Blocks: no. */
int bmi_task_cpus(struct bmi_task_manager *manager, struct bmi_cpuset *cpus);

enum bmi_task_level {
    BMI_TASK_LEVEL_CPU = 0,
    BMI_TASK_LEVEL_CORE,  /* the CPUs of one core */
    BMI_TASK_LEVEL_CACHE, /* those that share the nearest cache with other cores */
    BMI_TASK_LEVEL_NUMA,
    BMI_TASK_LEVEL_PACKAGE,
    BMI_TASK_LEVEL_MACHINE
};

/* Fills *cpus with the CPUs at most that far from `cpu`: those of the lowest node above it in the
 * tree that is of this level or higher. E.g. BMI_TASK_LEVEL_CACHE of the CPU of sched_getcpu() for
 * a task that polls near its caller. Returns: 0; -BMI_EINVAL (not the manager's CPU, unknown
 * level). Owns: nothing, *cpus is a copy. Threads: any. Blocks: no. */
int bmi_task_cpus_near(struct bmi_task_manager *manager, int cpu, enum bmi_task_level level,
                       struct bmi_cpuset *cpus);

/* Looks for the nearest CPU other than `cpu` that is idle: its worker sleeps, and got the CPU at
 * once when it was woken last. Returns: the CPU; -BMI_ENOENT: none (submit to a wider set instead),
 * -BMI_EINVAL: not the manager's CPU. Owns: nothing. Threads: any; the answer may be outdated at
 * once. Blocks: no. */
int bmi_task_nearest_idle(struct bmi_task_manager *manager, int cpu);

struct bmi_task_queue_statistics {
    const char *name; /* "Package + NUMANode + L3"; owned by the manager */
    int parent;       /* index of the queue above, or -1 */
    int depth;        /* 0: the global queue */
    struct bmi_cpuset cpus;
    uint64_t submitted; /* tasks that entered it, each repetition counted */
    uint64_t run;       /* tasks that left it */
    uint64_t contended; /* conflicts between threads: a lock that was held, a compare-and-swap that
                           failed */
    uint64_t queued;    /* in it now; may differ by the operations under way */
    bool served;        /* a worker serves it */
};

/* Queues have indices 0 (global) to count - 1, each after its parent. Returns: the count; 0, or
 * -BMI_EINVAL for an index out of range. Owns: *statistics is the caller's, its name the manager's.
 * Threads: any. Blocks: no. */
int bmi_task_queue_count(struct bmi_task_manager *manager);
/* a function with the name of a structure, as C allows */
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
int bmi_task_queue_statistics(struct bmi_task_manager *manager, int queue,
                              struct bmi_task_queue_statistics *statistics);
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/* A NUMA node that has CPUs of the manager. */
struct bmi_task_numa {
    int node;        /* the system's number */
    int queue;       /* index of the queue of its CPUs */
    uint64_t memory; /* bytes; 0: unknown */
};

/* Describes NUMA node 0, 1, ... in the order of the tree; a machine that reports none has none.
 * Returns: 0 and *numa; -BMI_EINVAL: NULL, or there is no such node. Owns: *numa is the caller's.
 * Threads: any. Blocks: no. */
int bmi_task_numa_node(struct bmi_task_manager *manager, int index, struct bmi_task_numa *numa);

/* How many tasks of a queue `cpu` has run; cpu -1: those run by CPUs outside the queue's set (a
 * hook does that where no worker serves the queue). The tasks of a round are counted when the round
 * leaves the queue. Returns: the number; 0 for a queue or CPU that does not exist. Owns: nothing.
 * Threads: any. Blocks: no. */
uint64_t bmi_task_queue_run_by(struct bmi_task_manager *manager, int queue, int cpu);

/* Draws the tree with its queues as text, one line each, into `text` (as snprintf does).
 * Returns: the length that the whole text has, without the NUL. Owns: `text` is the caller's.
 * Threads: any. Blocks: no. */
size_t bmi_task_topology_text(struct bmi_task_manager *manager, char *text, size_t size);

/* ---- where tasks and their memory go ----------------------------------------------------------
 * After "Dynamic Task and Data Placement over NUMA Architectures" (Broquedis, Furmento, Goglin,
 * Wacrenier, Namyst, 2009): a task names the memory that it uses; when CPUs elsewhere are
 * idle, the costs of waiting, of remote memory, and of moving decide whether the task moves, its
 * memory, or both. */

/* One piece of memory that a task uses. */
struct bmi_task_region {
    void *address;
    uint64_t bytes;
    uint64_t traffic; /* bytes of the region that the task will read and write until its end */
    int node;         /* NUMA node that it lies on (the system's number); -1: unknown, or on none
                         yet: it costs the same from everywhere */
    bool pinned;      /* must not move: a network has registered it, or others use it more */
    bool next_touch;  /* moves to the node of the CPU that runs the task next, before the run; needs
                         an address. Read when the task is prepared */
};

/* Lent with the task until its end. */
struct bmi_task_hints {
    const struct bmi_task_region *regions;
    uint32_t count; /* up to 64 */
};

/* Costs on this machine. A distance is the number of levels of the tree to climb from a CPU's NUMA
 * node to a node that covers the memory as well; 0: its own. */
struct bmi_task_costs {
    double local_ns_per_kib; /* to read or write memory of the CPU's own node */
    double remote_factor;    /* at distance d this takes 1 + d * remote_factor times as long */
    double move_ns_per_kib;  /* to move memory, in addition to reading it over the distance */
    double move_region_ns;   /* for each region that moves: the system call */
    double move_task_ns;     /* for a task that starts elsewhere with cold caches */
};

enum bmi_task_placement {
    BMI_TASK_PLACE_STAY = 0, /* the task waits for its CPU, memory stays */
    BMI_TASK_PLACE_DATA,     /* the task waits for its CPU, memory moves there */
    BMI_TASK_PLACE_TASK,     /* the task runs on the idle CPU, memory stays */
    BMI_TASK_PLACE_BOTH      /* the task runs on the idle CPU, memory moves there */
};

struct bmi_task_choice {
    enum bmi_task_placement placement;
    uint64_t moved;    /* bit i: region i is to move to the CPU's node */
    int node;          /* that node; -1: the CPU has none */
    double cost_ns[4]; /* of each placement, from now to the task's end */
};

/* Decides where a task should run that could start on `home` in wait_ns from now, or on `idle` now.
 * Moves nothing. If placements cost the same, it takes the first of the enum. `costs` NULL: typical
 * ones of a two-socket server. Returns: 0 and *choice; -BMI_EINVAL (NULL, a CPU that is not the
 * manager's, more than 64 regions, a negative cost). Owns: nothing. Threads: any. Blocks: no. */
int bmi_task_place(struct bmi_task_manager *manager, const struct bmi_task_hints *hints, int home,
                   double wait_ns, int idle, const struct bmi_task_costs *costs,
                   struct bmi_task_choice *choice);

/* Applies the memory part of a choice: moves its regions, except pinned ones, to its node. To move
 * the task itself, prepare it with CPUs of that node. Returns: how many regions were moved;
 * -BMI_EINVAL (NULL, a choice of other hints), or an error of bmi_task_memory_move, after earlier
 * regions have been moved. Owns: nothing. Threads: any; the task may be running. Blocks: while the
 * system copies. */
int bmi_task_place_apply(struct bmi_task_manager *manager, const struct bmi_task_hints *hints,
                         const struct bmi_task_choice *choice);

/* Allocates whole pages, zeroed, on a NUMA node, by the system's number; -1: each page lies on the
 * node that touches it first. With several nodes, huge pages are asked for from 4 MiB on
 * (madvise(2), MADV_HUGEPAGE). A machine with one node has node 0 and needs no binding. Returns: 0
 * and *memory; -BMI_EINVAL (no bytes, no such node in the manager's tree), -BMI_ENOMEM,
 * -BMI_EOPNOTSUPP (the tree is not this machine's and has several nodes, or the system cannot
 * bind), -BMI_EPERM. Owns: *memory is the caller's until bmi_task_memory_free. Threads: any.
 * Blocks: no. */
int bmi_task_memory_allocate(struct bmi_task_manager *manager, uint64_t bytes, int node,
                             void **memory);

/* Frees memory of bmi_task_memory_allocate; `bytes` is the size that was allocated. NULL is left
 * alone. Returns: nothing. Owns: the memory is freed. Threads: any. Blocks: no. */
void bmi_task_memory_free(void *memory, uint64_t bytes);

/* Moves memory to a node and binds it there. Pages move as a whole, so that neighbouring data on
 * the first and last page moves as well. -1: nothing moves; pages that do not exist yet are placed
 * on the node that touches them first. Returns: 0 (also where there is one node only); -BMI_EINVAL,
 * -BMI_ENOMEM, -BMI_EOPNOTSUPP, -BMI_EPERM as above; -BMI_EIO (some pages cannot be moved now:
 * shared, or locked by the system; the others have been moved). Owns: nothing. Threads: any, also
 * while others use the memory. Blocks: while it is copied. */
int bmi_task_memory_move(struct bmi_task_manager *manager, void *memory, uint64_t bytes, int node);

/* Finds the node that memory lies on. Returns: the node that all of the memory lies on; -1: on
 * several, or not touched yet; other errors below that: -BMI_EINVAL, -BMI_ENOMEM, -BMI_EOPNOTSUPP,
 * -BMI_EIO. Owns: nothing. Threads: any. Blocks: no. */
int bmi_task_memory_node(struct bmi_task_manager *manager, const void *memory, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
