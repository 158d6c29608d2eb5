/* SPDX-License-Identifier: BSD-3-Clause
 *
 * internal.h - declarations shared by job's files.
 *
 * Rules. A context's lock guards its jobs, its timers, and the marked fields of its machines; it is
 * held for a few lines at a time. A thread that holds it may call BMI_cancel, but no function that
 * runs a task, notifies, or calls the program: struct bmi__job_ends collects the actions to do
 * after the release. BMI, the task manager, and progress never call job with a lock of theirs held,
 * except the hook and the wake functions of wakers, which take no lock of a context.
 *
 * A job's life: FREE -> POSTING (owned by the posting thread; an end waits for the post to return)
 * -> PENDING -> READY (in the list that test calls take from) -> FREE, or straight to FREE if it
 * belongs to a machine. A job's memory is type-stable until the context is closed; ids have a
 * generation.
 *
 * One thread at a time runs a machine, since it is one task. Fields that no lock guards belong to
 * that thread; a thread that resumes the machine writes `phase` under the lock before it submits
 * the task.
 */
#ifndef JOB_INTERNAL_H
#define JOB_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "bmi/job.h"
#include "bmi/lock.h"
#include "bmi/method.h"
#include "bmi/state/context.h"

struct bmi__job_poller;
struct bmi__job_upcalls;

enum job_phase {
    JOB_FREE,
    JOB_POSTING,
    JOB_EARLY /* ended while POSTING */,
    JOB_PENDING,
    JOB_READY
};

enum job_flags {
    JOB_TIMED_OUT = 1,      /* its deadline has passed: its cancel is reported as a time-out */
    JOB_CANCEL_WANTED = 2,  /* cancelled while POSTING */
    JOB_LISTED = 4,         /* among those that wait for an unexpected message */
    JOB_DEADLINE_FIRST = 8, /* a timer: its deadline comes before its time */
    JOB_UNREPORTED = 16,    /* a machine that bmi_job_accept or bmi_job_serve has started */
    JOB_REPEATS = 32        /* a timer: READY with a time; a report makes it PENDING again */
};

#define JOB_NOT_IN_HEAP UINT32_MAX

struct bmi__job {
    struct bmi__job *next, *previous; /* in the machine's list, the ready list, or the free list */
    struct bmi_sm *machine;           /* the machine that it belongs to, or NULL */
    struct bmi_job_status *into;      /* a machine's: destination of the status */
    void *user_ptr;
    uint64_t due_ns; /* due time, while in the heap */
    bmi_size_t actual;
    bmi_error_code_t error;
    uint32_t heap_index;
    uint32_t slot, generation;
    uint8_t kind, phase, flags;
    union {
        bmi_op_id_t op;
        struct bmi_sm *child;         /* BMI_JOB_MACHINE: that machine */
        struct bmi__job_watch *watch; /* BMI_JOB_SIGNAL, BMI_JOB_CHILD */
        struct bmi__serve *serve;     /* BMI_JOB_SERVE */
        struct {
            uint64_t interval_ns, deadline_ns; /* JOB_REPEATS; deadline 0: none */
        } repeat;
        struct {
            struct BMI_unexpected_info *info;
            struct bmi__job *next, *previous;
        } unexpected;
    };
};

struct bmi__job_list {
    struct bmi__job *first, *last;
};

/* Actions to do once the lock is released. */
struct bmi__job_ends {
    struct bmi_sm *resume; /* by next */
    bool ready;            /* a job has become READY */
    bool earlier;          /* next_due_ns has become earlier */
};

struct bmi__tracer {
    bmi_sm_tracer function;
    void *argument;
    struct bmi__tracer *next; /* all tracers ever set */
};

/* A trove or flow context: see source.c. */
struct bmi__job_source {
    struct bmi_job_context *context;
    bool is_flow;
    pthread_mutex_t lock; /* held to open it */
    atomic_bool open, pending, unwatched;
    int64_t id; /* id of the context; set before open */
    struct bmi_watch watch;
    struct bmi_deferred removal;
};

/* What job.c and machine.c need of files above them. */
struct bmi__job_upcalls {
    void (*watch_cancel_locked)(struct bmi_job_context *context, struct bmi__job *job,
                                struct bmi__job_ends *ends);
    void (*accept_cancel_locked)(struct bmi_job_context *context, struct bmi__job_ends *ends);
    void (*serve_cancel_locked)(struct bmi_job_context *context, struct bmi__job *job,
                                struct bmi__job_ends *ends);
    /* A machine of bmi_job_accept, or of bmi_job_serve, has ended. No lock held. */
    void (*accepted_end)(struct bmi_job_context *context, struct bmi_job_accepted *data);
    void (*served_end)(struct bmi_job_context *context, void *data, int result);
};

/* bmi_job_accept: see accept.c. */
struct bmi__accept {
    struct bmi__job *job; /* NULL: none is pending */
    struct bmi_sm_table *table;
    size_t data_size;
    int limit, alive; /* machines, and those about to be started */
    uint64_t started;
    bool listed; /* counted in unexpected_wanted */
    bool stopping;
};

struct bmi_job_context {
    struct bmi_instance *instance; /* whose messages, services and poller its jobs use */
    bmi_context_id bmi;
    struct context *network; /* the same */
    struct bmi_task_manager *manager;
    const struct bmi__job_upcalls *upcalls;
    bool background;
    struct bmi_lock lock;
    /* below: lock */
    struct bmi__job **chunks;
    uint32_t chunk_count, chunk_room;
    struct bmi__job *free;
    struct bmi__job_list ready;
    struct bmi__job_list unexpected; /* jobs that wait for a message, by unexpected.next */
    struct bmi__job **heap;
    uint32_t heap_count, heap_room;
    struct bmi_sm *free_machines;
    struct bmi__accept accept;
    bool closing;
    struct bmi_job_statistics counts; /* except steps */
    struct bmi__tracer *tracers;
    /* above: lock */
    _Atomic uint64_t next_due_ns;    /* of the heap, or UINT64_MAX; written under lock */
    _Atomic uint64_t ready_sequence; /* number of jobs that ever became ready; written under lock */
    atomic_uint unexpected_wanted;   /* length of that list, plus 1 if `accept` has room; written
                                        under lock */
    _Atomic uint64_t steps;
    atomic_uint runners; /* threads that are running one of its machines */
    /* foreground: the step lock. A thread that runs one of its machines holds it, before all other
     * locks; recursive. A thread that holds another context's, or is within another task, only
     * tries it */
    pthread_mutex_t stepping;
    _Atomic(struct bmi__tracer *) tracer;
    bool wants_listed;                  /* in wake.c's list of contexts that want messages; guarded
                                           by its lock */
    struct bmi_job_context *wants_next; /* the same */
    struct bmi__job_source trove, flow;
    atomic_uint watches;  /* signal.c: descriptors that BMI's poller watches */
    struct bmi_task poll; /* background: the polling task */
    bool poll_submitted;  /* set at the end of the opening */
    struct bmi__job_poller *poller;
    struct bmi_job_context *poller_next; /* the poller's list, under its lock */
    /* fd.c */
    pthread_mutex_t fd_lock;
    int epoll_fd, timer_fd;
    atomic_int event_fd; /* -1: the program has not asked for it */
    struct bmi_task_waker fd_waker;
    uint64_t fd_due_ns; /* the time that timer_fd is set to; fd_lock */
};

/* ---- machines ---- */

enum sm_phase {
    SM_RUNNING, /* or about to run */
    SM_WAITING, /* for `outstanding` to become 0 */
    SM_RESUMED, /* `outstanding` has become 0; the task is submitted */
    SM_ENDING,  /* as SM_WAITING, after its last state */
    SM_ENDED    /* as SM_RESUMED */
};

/* The function that started it. */
enum sm_owner { SM_STARTED, SM_ACCEPTED, SM_SERVED };

enum sm_cancel { SM_NOT_CANCELLED, SM_CANCEL_WANTED, SM_CANCEL_DELIVERED };

struct sm_frame {
    const struct bmi_sm_table *table;
    void *data;
    int state;
};

struct bmi_sm {
    struct bmi_task task;
    struct bmi_task_group *group; /* that the task is submitted to; or NULL */
    struct bmi_job_context *context;
    struct bmi_sm *next;   /* in a list to resume, or in the free list */
    struct bmi__job *job;  /* its own job */
    struct bmi__job *jobs; /* the jobs that it waits for; lock */
    uint64_t deadline_ns;
    uint64_t since_ns, started_ns; /* traced: start of the wait, and of the machine */
    uint32_t outstanding;          /* length of jobs; lock */
    int failure;                   /* error of the first of them that failed; lock */
    int last, result;
    uint8_t phase;       /* lock */
    uint8_t cancel;      /* lock */
    bool cancelling;     /* lock */
    bool jobs_cancelled; /* lock: all of its jobs were cancelled since it began to wait */
    bool has_result;
    uint8_t owner; /* enum sm_owner */
    uint16_t depth, depth_most;
    struct sm_frame frames[];
};

static inline struct sm_frame *sm_top(struct bmi_sm *machine)
{
    return &machine->frames[machine->depth - 1];
}

static inline const struct bmi_sm_state *sm_state(const struct bmi_sm *machine)
{
    const struct sm_frame *frame = &machine->frames[machine->depth - 1];
    return &frame->table->states[frame->state];
}

/* The files, from the bottom; each uses those above it in this list. unit.layers checks that. */

/* ---- table.c ---- */

/* A free job, with a new generation; NULL: no memory. */
struct bmi__job *bmi__job_take_locked(struct bmi_job_context *context);
void bmi__job_give_locked(struct bmi_job_context *context, struct bmi__job *job);
struct bmi__job *bmi__job_find_locked(struct bmi_job_context *context, bmi_job_id_t id);
bmi_job_id_t bmi__job_id(const struct bmi__job *job);
void bmi__job_ready_append_locked(struct bmi_job_context *context, struct bmi__job *job);
void bmi__job_ready_remove_locked(struct bmi_job_context *context, struct bmi__job *job);
/* Calls that for each slot, whether its job is free or not. */
void bmi__job_each_locked(struct bmi_job_context *context,
                          void (*visit)(struct bmi_job_context *context, struct bmi__job *job,
                                        struct bmi__job_ends *ends),
                          struct bmi__job_ends *ends);
void bmi__job_table_free(struct bmi_job_context *context);

/* ---- heap.c: jobs by due time ---- */

/* -ENOMEM, or 0. Sets ends->earlier if it is the first now. */
int bmi__job_heap_add_locked(struct bmi_job_context *context, struct bmi__job *job, uint64_t due_ns,
                             struct bmi__job_ends *ends);
void bmi__job_heap_remove_locked(struct bmi_job_context *context, struct bmi__job *job);
void bmi__job_heap_free(struct bmi_job_context *context);

/* ---- fd.c ---- */

void bmi__job_fd_init(struct bmi_job_context *context);
void bmi__job_fd_close(struct bmi_job_context *context);
void bmi__job_fd_signal(struct bmi_job_context *context);
/* After a test call: makes the descriptor readable if there is more work, else not readable. */
void bmi__job_fd_settle(struct bmi_job_context *context);

/* ---- poller.c: the network in the background ---- */

int bmi__job_poller_join(struct bmi_job_context *context);
/* From now on the poller submits no polling task of this context. */
void bmi__job_poller_unwatch(struct bmi_job_context *context);
/* Follows unwatch, when no polling task of the context runs any more: may free the poller. */
void bmi__job_poller_leave(struct bmi_job_context *context);
/* Call it when a context's next_due_ns has become earlier. */
void bmi__job_poller_look(struct bmi__job_poller *poller);

/* ---- check.c ---- */

/* How many frames a machine of this table needs; <0: a BMI error, and the log of the context's
 * instance has the details (NULL: the default one's). */
int bmi__sm_frames(const struct bmi_job_context *context, struct bmi_sm_table *table);
#define SM_DEPTH_MOST 16

/* ---- wake.c ---- */

/* Wakes threads that wait in test calls. Any thread, no lock of the context held. */
void bmi__job_notify(struct bmi_job_context *context);
/* Makes another thread poll: a waiting one, or a worker. */
void bmi__job_poll_soon(struct bmi_job_context *context);
/* From now on the context is polled when an unexpected message comes. */
void bmi__job_wants_unexpected(struct bmi_job_context *context);
/* In the background: polls the context when an operation completes. */
void bmi__job_hook(struct bmi_job_context *context);
/* From here on no other thread polls the context. */
void bmi__job_hooks_end(struct bmi_job_context *context);

/* ---- job.c ---- */

/* A new job, POSTING, in its machine's list and, with a deadline, in the heap. Returns 0 or a BMI
 * error. */
int bmi__job_begin(struct bmi_job_context *context, enum bmi_job_kind kind,
                   const struct bmi_job_options *options, struct bmi_job_status *status,
                   struct bmi__job **job);
/* As bmi__job_begin. The job can be found by its id before its source can complete it. NULL:
 * *result has the error. */
struct bmi__job *bmi__job_new(struct bmi_job_context *context, enum bmi_job_kind kind,
                              const struct bmi_job_options *options, bmi_job_id_t *id,
                              struct bmi_job_status *status, int *result);
/* The deadline of `options`: the job's own or its machine's, whichever is earlier. */
uint64_t bmi__job_deadline_of(const struct bmi_job_options *options);
/* Ends a post whose source returned `posted` (0, 1, or an error); returns the post's result. */
int bmi__job_posted(struct bmi_job_context *context, struct bmi__job *job, int posted,
                    bmi_job_id_t *id, struct bmi_job_status *status);
/* Ends a job. */
void bmi__job_end_locked(struct bmi_job_context *context, struct bmi__job *job,
                         bmi_error_code_t error, bmi_size_t actual, struct bmi__job_ends *ends);
void bmi__job_cancel_locked(struct bmi_job_context *context, struct bmi__job *job,
                            struct bmi__job_ends *ends);
/* Call it after the lock was released: does the collected actions. */
void bmi__job_after(struct bmi_job_context *context, struct bmi__job_ends *ends);
/* Takes out a READY job, which becomes free. */
void bmi__job_report_locked(struct bmi_job_context *context, struct bmi__job *job,
                            struct bmi_job_status *status);
/* A repeating timer is due, `times` times. */
void bmi__job_tick_locked(struct bmi_job_context *context, struct bmi__job *job, uint64_t times,
                          struct bmi__job_ends *ends);
/* Calls cancel for every job that has not ended. */
void bmi__job_cancel_all_locked(struct bmi_job_context *context, struct bmi__job_ends *ends);
/* Submits the task of a machine that waits no more, or begins. */
void bmi__sm_resume(struct bmi_sm *machine);
/* Cancels all jobs that the machine waits for. */
void bmi__sm_cancel_jobs_locked(struct bmi_sm *machine, struct bmi__job_ends *ends);
/* Whether a failure among them ends its wait. */
bool bmi__sm_first_failure_counts(const struct bmi_sm *machine);

/* ---- timer.c ---- */

/* Ends or cancels due jobs. Returns whether there were any. */
bool bmi__job_timers_run(struct bmi_job_context *context);

/* ---- signal.c ---- */

void bmi__job_watch_cancel_locked(struct bmi_job_context *context, struct bmi__job *job,
                                  struct bmi__job_ends *ends);
/* Waits until no descriptor is watched. No job may be pending. */
void bmi__job_watches_end(struct bmi_job_context *context);

/* ---- source.c ---- */

void bmi__job_source_init(struct bmi__job_source *source, struct bmi_job_context *context,
                          bool is_flow);
/* As bmi__job_new, of BMI_JOB_TROVE or BMI_JOB_FLOW, with the source open. */
struct bmi__job *bmi__job_source_new(struct bmi_job_context *context, enum bmi_job_kind kind,
                                     const struct bmi_job_options *options, bmi_job_id_t *id,
                                     struct bmi_job_status *status, int *result);
/* From here on no thread gets a notification of it. No job of it may be pending. */
void bmi__job_source_quiet(struct bmi__job_source *source);
/* No thread may poll it any more, either. */
void bmi__job_source_close(struct bmi__job_source *source);
/* Fetches completions. Returns whether there were any. */
bool bmi__job_source_take(struct bmi__job_source *source);

/* ---- trace.c ---- */

void bmi__sm_trace_event(struct bmi__tracer *tracer, struct bmi_sm *machine,
                         enum bmi_sm_event event, int result, uint64_t since_ns);

/* ---- machine.c ---- */

/* Starts a machine with data that accept.c or serve.c has made. `id` may be NULL. */
int bmi__sm_start_owned(struct bmi_job_context *context, struct bmi_sm_table *table, void *data,
                        enum sm_owner owner, bmi_job_id_t *id);
/* Foreground: takes steps of this machine, if it is queued behind others. Returns whether it has
 * ended. */
bool bmi__sm_run_first(struct bmi_job_context *context, bmi_job_id_t id);
void bmi__sm_free_all(struct bmi_job_context *context);

/* ---- accept.c ---- */

/* Starts machines for waiting messages while there is room. Returns whether it started one. */
bool bmi__job_accept_take(struct bmi_job_context *context);
/* The accepting job is cancelled: it accepts no more messages. */
void bmi__job_accept_cancel_locked(struct bmi_job_context *context, struct bmi__job_ends *ends);
/* One of its machines has ended: frees its data and message. Another message may take its place. */
void bmi__job_accepted_end(struct bmi_job_context *context, struct bmi_job_accepted *data);

/* ---- serve.c ---- */

/* The serving job is cancelled: it starts no more machines. */
void bmi__job_serve_cancel_locked(struct bmi_job_context *context, struct bmi__job *job,
                                  struct bmi__job_ends *ends);
/* One of its machines has ended, with this result: ends the request, if the machine has not. */
void bmi__job_served_end(struct bmi_job_context *context, void *data, int result);

/* ---- poll.c ---- */

/* Fetches completions of the network, unexpected messages, and due timers. Returns whether there
 * were any. */
bool bmi__job_poll(struct bmi_job_context *context);
/* Waits at most `max_idle_ms` until ready_sequence differs from `seen`, or other work was done.
 * Returns false when the time is over. */
bool bmi__job_wait(struct bmi_job_context *context, uint64_t seen, uint64_t until_ns);

#endif
