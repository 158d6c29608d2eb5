/* SPDX-License-Identifier: BSD-3-Clause
 *
 * internal.h - the manager's structures, and the functions that its files share.
 *
 * Topology, array of nodes, array of CPUs, queues, and settings never change while a manager
 * exists. Data that many threads write is atomic. It is sequentially consistent where one side
 * writes A and reads B while the other writes B and reads A, else counters are relaxed. There are
 * three such pairs:
 *   push to a queue, then check for wakers      | note that a thread sleeps, then check queues
 *   push to a queue, then check `closed`          | set `closed`, then empty the queues
 *   push, then check whether the node is served   | mark it unserved, then wake all threads
 *
 * Locks, in this order: control > making > serving > (interning, lot, wakers, the blocking pool's
 * list, a node's affinity list, delaying, a queue's own). `placing` (group.h) is taken while none
 * of these is held; within it, of these only an affinity list's is taken. None is held while a task
 * runs. `control` is a deadlock-checking lock (checked_lock.h): its holder may start and join the
 * manager's threads, so a task that tries to take it then gets an error. `counting`, within it,
 * guards the counts of users, and which threads are to be started or joined.
 */
#ifndef BMI_TASK_INTERNAL_H
#define BMI_TASK_INTERNAL_H

#include "bmi/task.h"
#include "task/checked_lock.h"
#include "task/error.h"
#include "task/event.h"
#include "task/queue.h"
#include "task/topology.h"

#include <pthread.h>
#include <sys/types.h>

#define BMI__LINE 64
#define BMI__LOT_BUCKETS 64

/* bmi_task.state: a phase, and flags that come with it. */
enum {
    BMI__PHASE = 7,       /* mask: enum bmi_task_state */
    BMI__AGAIN = 8,       /* RUNNING: submitted again during the run */
    BMI__CANCEL = 16,     /* QUEUED, RUNNING: it must not run again */
    BMI__WAITED = 32,     /* a thread waits in the lot */
    BMI__RUNNER_SHIFT = 8 /* RUNNING: from this bit on, the number of the thread that runs it */
};

/* The library's own options: see bmi__blocking_first, bmi__callers_only. */
#define BMI__FIRST 0x4000u
#define BMI__CALLERS 0x2000u
#define BMI__NARROW 0x1000u /* prepared with a set of CPUs that is not the machine's */

/* The affinity list: tasks of a node whose set is not the node's, and tasks of groups. Any CPU of
 * the node searches it, but only those of a task's set may take the task. */
struct bmi__affinity {
    pthread_mutex_t mutex;
    struct bmi_task *first, **end;    /* under mutex */
    uint64_t heads;                   /* under mutex: how often the first task was taken */
    _Atomic(uint64_t) pushed, popped; /* written under mutex */
};

struct bmi__task_node {
    struct bmi__queue *queue;
    const struct bmi__topology_node *shape;
    struct bmi__task_node *parent;
    uint32_t index;
    atomic_uint live; /* number of its CPUs that have a worker; written under serving */
    struct bmi__affinity affinity;
    _Atomic(uint64_t) turned;  /* tasks that were popped, and pushed again without a run */
    _Atomic(uint64_t) *run_by; /* tasks run by each CPU of the node; the last entry: by others */
    struct {                   /* used by the timer only: the state at the last tick */
        uint64_t popped, queued;
        uint64_t affinity_heads, affinity_queued;
        bool warned;            /* a task was due, and the timer has woken a worker for it */
        uint64_t group_changes; /* when it last woke a worker of another node to look */
        uint32_t next_cpu;
    } timer;
};

struct bmi__worker {
    pthread_t thread;
    atomic_uint asleep;         /* futex: 1 while it sleeps or is about to */
    _Atomic(uint64_t) woken_ns; /* when another thread woke it */
    _Atomic(uint64_t)
        slow_until_ns;           /* its CPU started it late, and does not count as idle before */
    bool started;                /* under control: has a thread to be joined */
    bool serving;                /* under serving: runs tasks */
    bool roaming;                /* of the worker's thread: no longer bound to a CPU */
    enum bmi_task_policy policy; /* of the worker's thread: the policy that it has set */
};

/* The thread that runs urgent tasks, and due ones for the timer, on one CPU. */
struct bmi__helper {
    pthread_t thread;
    struct bmi__event event;
    bool wanted, started; /* under making */
    atomic_bool due;
    atomic_bool deep; /* it waits so deep within tasks that it runs only the awaited one */
};

struct bmi__task_cpu {
    _Alignas(BMI__LINE) struct bmi_task_manager *manager;
    uint32_t index;
    int os;
    struct bmi__task_node *leaf;
    struct bmi__queue *urgent;
    atomic_uint urgent_queued; /* raised before a push to `urgent`, lowered after the pop */
    struct bmi__worker worker;
    struct bmi__helper helper;
    _Atomic(uint64_t) group_looked; /* group_changes at its last look that moved nothing */
};

/* The blocking pool: threads for tasks that may block. */
struct bmi__blocking {
    pthread_mutex_t mutex;
    pthread_cond_t arrived;
    struct bmi_task *first, **end; /* under mutex, as all here */
    pthread_t *threads;
    uint32_t count, idle;
    uint32_t limit; /* of tasks that run at a time */
    bool wanted, open;
    bool starved; /* the last start of a needed thread failed */
};

struct bmi__waiter;
struct bmi__groups;

struct bmi__lot_bucket {
    pthread_mutex_t mutex;
    struct bmi__waiter *first; /* under mutex */
};

struct bmi__interned {
    struct bmi_cpuset local;
    struct bmi__interned *next;
};

struct bmi_task_manager {
    struct bmi__topology topology;
    struct bmi_task_settings settings; /* defaults filled in; pointers cleared */
    struct bmi_cpuset worker_cpus;     /* local */
    struct bmi__task_node *nodes;
    struct bmi__task_cpu *cpus;
    uint32_t node_words; /* of the bitmaps over nodes */

    /* rarely written, read by each submit */
    _Alignas(BMI__LINE) atomic_bool closed; /* not started, or shut down */
    atomic_bool timer_armed;
    atomic_uint live_workers;
    atomic_int policy; /* of workers: enum bmi_task_policy */
    atomic_uint waker_count;
    _Atomic(uint64_t) *occupied; /* bit a node: may have queued tasks */
    _Atomic(uint64_t) *unserved; /* bit a node: no worker below it */

    /* bit a CPU: its worker sleeps; it has a worker (written under serving) */
    _Alignas(BMI__LINE) _Atomic(uint64_t) idle[BMI_CPUSET_MAX / 64];
    _Alignas(BMI__LINE) _Atomic(uint64_t) served[BMI_CPUSET_MAX / 64];

    _Alignas(BMI__LINE) struct bmi__checked_lock control;
    pthread_mutex_t counting;
    uint32_t users, worker_users;     /* under counting */
    bool open, working;               /* under counting; both locks to write: it has its threads */
    bool timer_running, timer_wanted; /* under making */
    pthread_t timer;
    struct bmi__event timer_event;
    atomic_bool workers_stopping, helpers_stopping, timer_stopping;

    struct bmi__queue *callers; /* tasks that only hooks run */

    pthread_mutex_t placing;         /* where groups are (group.h) */
    struct bmi__groups *groups;      /* under placing; NULL: there was no group yet */
    _Atomic(uint64_t) group_changes; /* 0 where no group was ever placed */
    atomic_bool costs_known;         /* written under placing (costs.h) */

    pthread_mutex_t delaying;     /* innermost */
    struct bmi_task *delayed;     /* until their interval has passed; under delaying */
    _Atomic(uint64_t) delayed_ns; /* when the first of them is due, or UINT64_MAX */

    pthread_mutex_t serving;  /* which CPU serves which node */
    pthread_mutex_t making;   /* starting helpers and threads of the blocking pool */
    bool helpers_open;        /* under making: they may be started */
    pthread_mutex_t claiming; /* taken last but for a queue's own: searching a queue for a task */
    pthread_mutex_t interning;
    struct bmi__interned *interned; /* under interning */

    pthread_mutex_t wakers_mutex;
    struct bmi_task_waker *wakers; /* armed ones; under wakers_mutex */
    struct bmi__waiter *leader;    /* the leader: the waiting thread that runs tasks; under
                                          wakers_mutex */
    struct bmi__waiter *followers; /* the followers; under wakers_mutex */
    struct bmi__blocking blocking;
    struct bmi__lot_bucket lot[BMI__LOT_BUCKETS];
};

/* ---- bitmaps ---- */

static inline bool bmi__bit_get(_Atomic(uint64_t) *words, uint32_t bit)
{
    return (atomic_load(&words[bit / 64]) >> (bit % 64) & 1) != 0;
}

/* Returns the previous value. */
static inline bool bmi__bit_set(_Atomic(uint64_t) *words, uint32_t bit)
{
    uint64_t mask = (uint64_t)1 << (bit % 64);
    return (atomic_fetch_or(&words[bit / 64], mask) & mask) != 0;
}

static inline bool bmi__bit_clear(_Atomic(uint64_t) *words, uint32_t bit)
{
    uint64_t mask = (uint64_t)1 << (bit % 64);
    return (atomic_fetch_and(&words[bit / 64], ~mask) & mask) != 0;
}

/* ---- default.c ---- */

/* NULL becomes the default manager. */
struct bmi_task_manager *bmi__manager(struct bmi_task_manager *manager);
/* The same, but does not create it: NULL while it does not exist, and so has no tasks. */
struct bmi_task_manager *bmi__manager_made(struct bmi_task_manager *manager);
/* Arms and disarms a waker of the default manager before that exists; false: it exists now. */
bool bmi__early_arm(struct bmi_task_waker *waker);
bool bmi__early_disarm(struct bmi_task_waker *waker);

/* Sets the policy of the default manager's workers, also before it is made. */
void bmi__default_policy(enum bmi_task_policy policy);

/* ---- manager.c ---- */

bool bmi__policy_known(enum bmi_task_policy policy);

/* Frees a manager that is not started, or was created in part. */
void bmi__manager_free(struct bmi_task_manager *manager);
/* Ends every queued task as cancelled, while the manager is closed. */
void bmi__manager_cancel_queued(struct bmi_task_manager *manager);
/* A worker has begun to serve its CPU's nodes, or has stopped that. serving held. */
void bmi__manager_serve_locked(struct bmi_task_manager *manager, uint32_t cpu, bool serve);

/* ---- task.c ---- */

/* Runs a task that was popped. */
void bmi__task_run(struct bmi_task_manager *manager, struct bmi_task *task);
/* Ends a task that was popped without running it. */
void bmi__task_drop(struct bmi_task_manager *manager, struct bmi_task *task);
/* Queues a task that is QUEUED, in no queue, and the caller's. */
void bmi__task_queue(struct bmi_task_manager *manager, struct bmi_task *task);
/* Queues a task again that was popped, and wakes the threads that may run it: a thread may have
 * searched the queue while the task was out. */
void bmi__task_put_back(struct bmi_task_manager *manager, struct bmi_task *task);

/* Queues an urgent task on its CPU; takes one from there. NULL at once if there is none. */
void bmi__urgent_push(struct bmi__task_cpu *cpu, struct bmi_task *task);
static inline struct bmi_task *bmi__urgent_pop(struct bmi__task_cpu *cpu)
{
    struct bmi_task *task = NULL;
    if (atomic_load(&cpu->urgent_queued) != 0 && (task = bmi__queue_pop(cpu->urgent)) != NULL)
        atomic_fetch_sub(&cpu->urgent_queued, 1);
    return task;
}

/* ---- affinity.c ---- */

void bmi__affinity_init(struct bmi__affinity *affinity);
void bmi__affinity_push(struct bmi__affinity *affinity, struct bmi_task *task);
/* The first task that `cpu` may take, or NULL: a task of a group, one whose set contains that CPU,
 * or one of whose set no CPU is `served` (local numbers). BMI__NO_CPU takes any. */
struct bmi_task *bmi__affinity_pop(struct bmi__affinity *affinity, const struct bmi_cpuset *served,
                                   uint32_t cpu);
/* Takes up to `most` tasks of a part of a group, as a list. */
struct bmi_task *bmi__affinity_take(struct bmi__affinity *affinity,
                                    const struct bmi_task_group *group, uint32_t part,
                                    uint32_t most);
/* Takes that task, if it is in the list: then the caller runs it. */
bool bmi__affinity_claim(struct bmi__affinity *affinity, const struct bmi_task *task);
bool bmi__affinity_has(struct bmi__affinity *affinity, const struct bmi_cpuset *served,
                       uint32_t cpu);
/* Returns how often the first task was taken; *only is the set of the present first task, NULL if
 * there is none. */
uint64_t bmi__affinity_heads(struct bmi__affinity *affinity, const struct bmi_cpuset **only);
static inline bool bmi__affinity_empty(struct bmi__affinity *affinity)
{
    uint64_t popped = atomic_load(&affinity->popped);
    return atomic_load(&affinity->pushed) == popped;
}

/* ---- place.c ---- */

bool bmi__task_costs_valid(const struct bmi_task_costs *costs);

/* ---- delay.c ---- */

/* Queues a task that was popped, and is QUEUED again, after its interval. */
void bmi__delay(struct bmi_task_manager *manager, struct bmi_task *task);
/* Queues the task now, if it waits for its interval. It was cancelled, and its memory may be
 * freed. */
void bmi__delay_end(struct bmi_task_manager *manager, const struct bmi_task *task);
/* Takes a task that is due at `now_ns`, or NULL. */
struct bmi_task *bmi__delayed_pop(struct bmi_task_manager *manager, uint64_t now_ns);

/* ---- schedule.c ---- */

/* The local number of the CPU that the caller is on. */
uint32_t bmi__cpu_self(struct bmi_task_manager *manager);
/* One round for a CPU (Algorithm 1), until deadline_ns if that is not 0. Returns how many ran. */
unsigned bmi__schedule(struct bmi_task_manager *manager, uint32_t cpu, uint64_t deadline_ns);
/* The same for a thread that calls a hook: it also runs the tasks that are for callers. */
unsigned bmi__schedule_hook(struct bmi_task_manager *manager, uint32_t cpu, uint64_t deadline_ns);
/* Only hooks run this prepared task (without URGENT and MAY_BLOCK): no worker and no helper takes
 * it. Its set of CPUs is ignored. */
void bmi__callers_only(struct bmi_task *task);
/* Whether a round would find a task. */
bool bmi__schedule_has(struct bmi_task_manager *manager, uint32_t cpu);
/* Whether a queue that no worker serves has a task. */
bool bmi__unserved_has(struct bmi_task_manager *manager);
/* The same, or there are tasks for callers: only a hook can run these. */
bool bmi__hooks_wanted(struct bmi_task_manager *manager);
/* Calls a task's function. */
enum bmi_task_status bmi__task_call(bmi_task_function function, struct bmi_task *task);
/* How many tasks, of any manager, the caller is nested in. */
unsigned bmi__tasks_within(void);
/* Whether the caller is nested in so many tasks that it runs only a task that it waits for. */
bool bmi__schedule_too_deep(void);
/* Whether the nesting has reached its limit. */
bool bmi__wait_too_deep(void);
/* Runs a task that the caller waits for, if it is queued and the caller may run it: a MAY_BLOCK
 * task on a thread of the blocking pool, an urgent one on its CPU's helper. Returns false: the
 * thread that runs or queues the task completes it. */
bool bmi__awaited_run(struct bmi_task_manager *manager, struct bmi_task *task);
/* Between these two calls the calling thread runs tasks even where it is nested too deep for that:
 * a thread that closes an object must wait for the object's end, and may be the only one that can
 * run the tasks that lead to it. This does not apply inside the tasks that it runs, but these may
 * do the same, BMI_TASK_WAIT_DEPTH deep. The calls nest. */
void bmi__tasks_needed(void);
void bmi__tasks_needed_end(void);
/* Between these two calls the calling thread runs no task in any call: it holds a lock that tasks
 * may take. The calls nest. */
void bmi__tasks_hold(void);
void bmi__tasks_release(void);
/* The calling thread's number, unique among the live threads. */
uint32_t bmi__runner_self(void);
/* Whether the caller runs a task of this state, below on its own stack: it cannot end before the
 * caller does. */
static inline bool bmi__task_runs_here(uint32_t state)
{
    return (state & BMI__PHASE) == BMI_TASK_RUNNING &&
           state >> BMI__RUNNER_SHIFT == bmi__runner_self();
}
/* Marks the calling thread as this CPU's worker (NULL: none). */
void bmi__worker_is(struct bmi__task_cpu *cpu);
struct bmi__task_cpu *bmi__worker_self(struct bmi_task_manager *manager);
/* Marks the calling thread as one of the manager's, which joins it when it stops. */
void bmi__thread_is_of(const struct bmi_task_manager *manager);
bool bmi__thread_self_of(const struct bmi_task_manager *manager);
/* As bmi__worker_is, of its helper. */
void bmi__helper_is(struct bmi__task_cpu *cpu);
struct bmi__task_cpu *bmi__helper_self(struct bmi_task_manager *manager);
/* Runs an urgent task of a CPU. Returns false if there is none. */
bool bmi__urgent_run(struct bmi__task_cpu *cpu);
/* Whether the caller is a worker or leader that will visit this node again by itself. */
bool bmi__runner_returns(struct bmi_task_manager *manager, const struct bmi__task_node *node,
                         const struct bmi_cpuset *only);
/* Whether a node has no tasks; clears its bit in `occupied` then. */
bool bmi__node_settle(struct bmi_task_manager *manager, struct bmi__task_node *node);
/* Tasks of its queue so far, without those that a search took and pushed again. */
void bmi__node_counts(struct bmi__task_node *node, struct bmi__queue_counts *counts);
/* Fills the CPUs that have a worker. */
void bmi__served(struct bmi_task_manager *manager, struct bmi_cpuset *served);

/* ---- wake.c ---- */

/* A task was pushed to a node: wakes threads that may run it. `only`: its set, or NULL. */
void bmi__wake_for(struct bmi_task_manager *manager, struct bmi__task_node *node,
                   const struct bmi_cpuset *only);
void bmi__wake_all(struct bmi_task_manager *manager);
/* Wakes an idle worker of a node, the one nearest to `cpu`. Returns false: none sleeps. */
bool bmi__wake_one(struct bmi_task_manager *manager, const struct bmi__task_node *node,
                   const struct bmi_cpuset *only, uint32_t cpu);

/* ---- wait.c ---- */

/* Wakes the threads that wait for a task that has ended; does not access the task. */
void bmi__lot_wake(struct bmi_task_manager *manager, const struct bmi_task *task);
/* Wakes all threads that wait for any task: other CPUs serve the queues now. */
void bmi__lot_wake_all(struct bmi_task_manager *manager);
/* Whether the calling thread waits for a task of this manager and runs others in the meantime. */
bool bmi__leads(const struct bmi_task_manager *manager);
/* A thread that closes an object waits with it for a task of the object that it has cancelled, or
 * that will end: like bmi_task_wait, at any nesting depth. Returns -BMI_EDEADLK if the task is
 * below on the caller's own stack, so that it cannot end first: the caller must then leave the
 * freeing to the task. Else the task is the caller's. */
int bmi__task_await(struct bmi_task *task);
/* Wakes one armed waker that is not `away`, or all that are, and those armed after it. */
void bmi__wakers_wake(struct bmi_task_manager *manager);

/* ---- thread.c ---- */

uint64_t bmi__now_ns(void);
/* Starts a thread with all signals blocked, named, bound to os_cpu unless that is -1. 0 or an
 * error.
 */
int bmi__thread_start(pthread_t *thread, void *(*function)(void *), void *argument, int os_cpu,
                      const char *name, uint32_t number);
/* Binds the caller to CPUs, by the system's numbers. Returns 0, or an errno, as when these CPUs are
 * gone: then nothing has changed. */
int bmi__thread_bind(const struct bmi_cpuset *cpus);
/* Makes the caller real-time at the lowest priority if it may, else gives it a short time slice, so
 * that it preempts soon after a wake. */
void bmi__thread_raise(bool realtime);
/* Sets the kernel's scheduling policy of the caller, a worker, if the process may. */
void bmi__thread_policy(enum bmi_task_policy policy);
/* Makes another thread a normal one, if the process may. */
void bmi__thread_normal(pthread_t thread);

/* ---- worker.c, timer.c, helper.c, blocking.c ---- */

int bmi__workers_start(struct bmi_task_manager *manager); /* control held; 0 or an error */
void bmi__workers_stop(struct bmi_task_manager *manager); /* control held */
/* The worker of this CPU sleeps, within a task that waits: until there is a task for it, or
 * bmi__worker_rouse, or the deadline; at once if `event` is posted, which it consumes. */
void bmi__worker_nap(struct bmi__task_cpu *cpu, struct bmi__event *event, uint64_t deadline_ns);
void bmi__worker_rouse(struct bmi__task_cpu *cpu);
/* Starts the timer's thread if it does not run. 0 or -BMI_EAGAIN. */
int bmi__timer_start(struct bmi_task_manager *manager);
/* The same if the manager is started, and at each later start. */
int bmi__timer_need(struct bmi_task_manager *manager);
/* The manager starts and allows helpers: starts the timer's thread if it is needed. control
 * held. */
int bmi__timer_open(struct bmi_task_manager *manager);
void bmi__timer_stop(struct bmi_task_manager *manager); /* control held; helpers are stopped */
void bmi__timer_arm(struct bmi_task_manager *manager);
/* Makes sure that a CPU has its helper once the manager is started. 0 or -BMI_EAGAIN. */
int bmi__helper_need(struct bmi__task_cpu *cpu);
/* Wakes a CPU's helper to run the due tasks there. */
void bmi__helper_kick(struct bmi__task_cpu *cpu);
/* The caller, a CPU's helper, reports whether it is about to wait so deep within tasks that it runs
 * no urgent ones: then the CPU's worker runs them. */
void bmi__helper_deep(struct bmi__task_cpu *cpu, bool deep);
int bmi__helpers_start(struct bmi_task_manager *manager); /* control held */
void bmi__helpers_stop(struct bmi_task_manager *manager); /* control held */
int bmi__blocking_need(struct bmi_task_manager *manager); /* 0 or -BMI_EAGAIN */
/* One more task may run at a time, until bmi__blocking_unreserve: for a task of the library that
 * runs for long. 0 or -BMI_ENOMEM. */
int bmi__blocking_reserve(struct bmi_task_manager *manager);
void bmi__blocking_unreserve(struct bmi_task_manager *manager);
/* Puts a task that may block, and is prepared, ahead of all others that wait for a thread. */
void bmi__blocking_first(struct bmi_task *task);
void bmi__blocking_submit(struct bmi_task_manager *manager, struct bmi_task *task);
struct bmi_task *bmi__blocking_pop(struct bmi_task_manager *manager);
/* Takes that task, if it is queued: then the caller runs it. */
bool bmi__blocking_claim(struct bmi_task_manager *manager, const struct bmi_task *task);
int bmi__blocking_start(struct bmi_task_manager *manager); /* control held */
void bmi__blocking_stop(struct bmi_task_manager *manager); /* control held */

#endif
