/* SPDX-License-Identifier: BSD-3-Clause
 *
 * internal.h - what job's files share.
 *
 * Rules. A context's lock guards its jobs, its timers, and of its machines all that is marked; it
 * is held for a few lines at a time. Under it BMI_cancel may be called, and nothing that runs a
 * task, notifies, or calls the program: what has to happen after the lock was released is collected
 * in struct bmi__job_ends. BMI, the task manager, and progress never call job with a lock of theirs
 * held but for the hook and the sleepers' wake, which take no lock of a context.
 *
 * A job's life: FREE -> POSTING (its poster's; its end waits for the post to return) -> PENDING ->
 * READY (in the list that test calls take from) -> FREE, or straight to FREE where it is a
 * machine's. A job's memory is type-stable until the context is closed; ids have a generation.
 *
 * A machine is run by one thread at a time, since its task is. What no lock guards is that
 * thread's; whoever makes it go on writes `phase` under the lock before it submits the task.
 */
#ifndef JOB_INTERNAL_H
#define JOB_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "bmi/job.h"
#include "bmi/lock.h"
#include "bmi/method.h"
#include "bmi/state/context.h"

struct bmi__job_driver;

enum job_phase {
    JOB_FREE,
    JOB_POSTING,
    JOB_EARLY /* ended while POSTING */,
    JOB_PENDING,
    JOB_READY
};

enum job_flags {
    JOB_TIMED_OUT = 1,      /* its deadline has passed: its cancel is called a time-out */
    JOB_CANCEL_WANTED = 2,  /* cancelled while POSTING */
    JOB_LISTED = 4,         /* among those that wait for an unexpected message */
    JOB_DEADLINE_FIRST = 8, /* a timer: its deadline comes before its time */
    JOB_UNREPORTED = 16,    /* a machine that bmi_job_accept has started */
    JOB_REPEATS = 32 /* a timer: READY with a time, it is PENDING again when that is reported */
};

#define JOB_NOT_IN_HEAP UINT32_MAX

struct bmi__job {
    struct bmi__job *next, *previous; /* of its machine's, of the ready, of the free */
    struct bmi_sm *machine;           /* whose it is, or NULL */
    struct bmi_job_status *into;      /* a machine's: where to tell */
    void *user_ptr;
    uint64_t due_ns; /* in the heap: when */
    bmi_size_t actual;
    bmi_error_code_t error;
    uint32_t heap_index;
    uint32_t slot, generation;
    uint8_t kind, phase, flags;
    union {
        bmi_op_id_t op;
        struct bmi_sm *child;         /* BMI_JOB_MACHINE: the machine that it is */
        struct bmi__job_watch *watch; /* BMI_JOB_SIGNAL, BMI_JOB_CHILD */
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

/* What is to be done once the lock is released. */
struct bmi__job_ends {
    struct bmi_sm *resume; /* by next */
    bool ready;            /* a job has become READY */
    bool earlier;          /* next_due_ns has */
};

struct bmi__tracer {
    bmi_sm_tracer function;
    void *argument;
    struct bmi__tracer *next; /* all ever set */
};

/* Trove, or flow: see source.c. */
struct bmi__job_source {
    struct bmi_job_context *context;
    bool is_flow;
    pthread_mutex_t lock; /* to open it */
    atomic_bool open, pending, unwatched;
    int64_t id; /* of its context; set before open */
    struct bmi_watch watch;
    struct bmi_deferred removal;
};

/* bmi_job_accept: see accept.c. */
struct bmi__accept {
    struct bmi__job *job; /* NULL: none is pending */
    struct bmi_sm_table *table;
    size_t data_size;
    int limit, alive; /* machines, and those that are about to be started */
    uint64_t started;
    bool listed; /* counted in unexpected_wanted */
    bool stopping;
};

struct bmi_job_context {
    bmi_context_id bmi;
    struct context *network; /* the same */
    struct bmi_task_manager *manager;
    bool background;
    struct bmi_lock lock;
    /* below: lock */
    struct bmi__job **chunks;
    uint32_t chunk_count, chunk_room;
    struct bmi__job *free;
    struct bmi__job_list ready;
    struct bmi__job_list unexpected; /* that wait for a message, by unexpected.next */
    struct bmi__job **heap;
    uint32_t heap_count, heap_room;
    struct bmi_sm *free_machines;
    struct bmi__accept accept;
    bool closing;
    struct bmi_job_statistics counts; /* but for steps */
    struct bmi__tracer *tracers;
    /* above: lock */
    _Atomic uint64_t next_due_ns;    /* of the heap, or UINT64_MAX; written under lock */
    _Atomic uint64_t ready_sequence; /* how many ever became ready; written under lock */
    atomic_uint unexpected_wanted;   /* length of that list, and 1 where `accept` has room; written
                                        under lock */
    _Atomic uint64_t steps;
    atomic_uint runners; /* threads that run one of its machines */
    /* foreground: held, before all other locks, by who runs one of its machines; recursive. Who
     * holds another context's, or is within another task, only tries */
    pthread_mutex_t stepping;
    _Atomic(struct bmi__tracer *) tracer;
    bool wants_listed;                  /* poll.c's list of those who want messages; its lock */
    struct bmi_job_context *wants_next; /* the same */
    struct bmi__job_source trove, flow;
    atomic_uint watches;  /* signal.c: descriptors that the driver watches */
    struct bmi_task poll; /* background: takes what has come */
    bool poll_submitted;  /* ever, at the end of the opening */
    struct bmi__job_driver *driver;
    struct bmi_job_context *driver_next; /* the driver's list, under its lock */
    /* fd.c */
    pthread_mutex_t fd_lock;
    int epoll_fd, timer_fd;
    atomic_int event_fd; /* -1: nobody asked */
    struct bmi_task_sleeper fd_sleeper;
    uint64_t fd_due_ns; /* what timer_fd is set to; fd_lock */
};

/* ---- machines ---- */

enum sm_phase {
    SM_RUNNING, /* or about to be run */
    SM_WAITING, /* for `outstanding` to become 0 */
    SM_RESUMED, /* it has; the task is submitted */
    SM_ENDING,  /* as WAITING, after its last state */
    SM_ENDED    /* as RESUMED */
};

enum sm_cancel { SM_NOT_CANCELLED, SM_CANCEL_WANTED, SM_CANCEL_DELIVERED };

struct sm_frame {
    const struct bmi_sm_table *table;
    void *data;
    int state;
};

struct bmi_sm {
    struct bmi_task task;
    struct bmi_job_context *context;
    struct bmi_sm *next;   /* in a list to resume, or of the free */
    struct bmi__job *job;  /* that it is */
    struct bmi__job *jobs; /* that it waits for; lock */
    uint64_t deadline_ns;
    uint64_t since_ns, started_ns; /* traced: when it began to wait, and to live */
    uint32_t outstanding;          /* length of jobs; lock */
    int failure;                   /* of the first of them that failed; lock */
    int last, result;
    uint8_t phase;       /* lock */
    uint8_t cancel;      /* lock */
    bool cancelling;     /* lock */
    bool jobs_cancelled; /* lock: all of its jobs were, since it began to wait */
    bool has_result;
    bool accepted; /* by bmi_job_accept: its data and message are freed at its end */
    uint16_t depth, depth_most;
    struct sm_frame frames[];
};

/* ---- job.c ---- */

/* A new job, POSTING, in its machine's list and, with a deadline, in the heap. Returns 0 or a BMI
 * error. */
int bmi__job_begin(struct bmi_job_context *context, enum bmi_job_kind kind,
                   const struct bmi_job_options *options, struct bmi_job_status *status,
                   struct bmi__job **job);
/* The same, its source open, told of by its id from before that can complete it; NULL: *result says
 * why. */
struct bmi__job *bmi__job_new(struct bmi_job_context *context, enum bmi_job_kind kind,
                              const struct bmi_job_options *options, bmi_job_id_t *id,
                              struct bmi_job_status *status, int *result);
/* What of `options` holds: the job's own deadline or its machine's, whichever is earlier. */
uint64_t bmi__job_deadline_of(const struct bmi_job_options *options);
/* Ends a post whose source said `posted` (0, 1, or an error); returns it. */
int bmi__job_posted(struct bmi_job_context *context, struct bmi__job *job, int posted,
                    bmi_job_id_t *id, struct bmi_job_status *status);
/* Ends a job. */
void bmi__job_end_locked(struct bmi_job_context *context, struct bmi__job *job,
                         bmi_error_code_t error, bmi_size_t actual, struct bmi__job_ends *ends);
void bmi__job_cancel_locked(struct bmi_job_context *context, struct bmi__job *job,
                            struct bmi__job_ends *ends);
/* The lock is released: does what was collected. */
void bmi__job_after(struct bmi_job_context *context, struct bmi__job_ends *ends);
struct bmi__job *bmi__job_find_locked(struct bmi_job_context *context, bmi_job_id_t id);
bmi_job_id_t bmi__job_id(const struct bmi__job *job);
/* Takes a READY job out; it is free then. */
void bmi__job_report_locked(struct bmi_job_context *context, struct bmi__job *job,
                            struct bmi_job_status *status);
/* A repeating timer's time has come, `times` times. */
void bmi__job_tick_locked(struct bmi_job_context *context, struct bmi__job *job, uint64_t times,
                          struct bmi__job_ends *ends);
/* Calls cancel for every job that has not ended. */
void bmi__job_cancel_all_locked(struct bmi_job_context *context, struct bmi__job_ends *ends);
void bmi__job_table_free(struct bmi_job_context *context);

/* ---- accept.c ---- */

/* Starts machines for messages that wait, as far as there is room. Returns whether it did. */
bool bmi__job_accept_take(struct bmi_job_context *context);
/* The accepting job is cancelled: it takes no more. */
void bmi__job_accept_cancel_locked(struct bmi_job_context *context, struct bmi__job_ends *ends);
/* One of its machines has ended. */
void bmi__job_accept_ended_locked(struct bmi_job_context *context, struct bmi__job_ends *ends);
/* Frees what such a machine had. No lock. */
void bmi__job_accept_free(struct bmi_job_accepted *data);

/* ---- signal.c ---- */

void bmi__job_watch_cancel_locked(struct bmi_job_context *context, struct bmi__job *job,
                                  struct bmi__job_ends *ends);
/* Waits until no descriptor is watched. No job is pending. */
void bmi__job_watches_end(struct bmi_job_context *context);

/* ---- timer.c: the heap of deadlines ---- */

/* -ENOMEM, or 0. Sets ends->earlier if it is the first now. */
int bmi__job_timer_add_locked(struct bmi_job_context *context, struct bmi__job *job,
                              uint64_t due_ns, struct bmi__job_ends *ends);
void bmi__job_timer_remove_locked(struct bmi_job_context *context, struct bmi__job *job);
/* Ends or cancels what is due. Returns whether anything was. */
bool bmi__job_timers_run(struct bmi_job_context *context);

/* ---- poll.c ---- */

/* Takes in what has come from the network, unexpected messages, and timers that are due. Returns
 * whether anything was there. */
bool bmi__job_poll(struct bmi_job_context *context);
/* Wakes those that wait in test calls. Any thread, no lock of the context. */
void bmi__job_notify(struct bmi_job_context *context);
/* Has somebody poll: who waits, or a worker. */
void bmi__job_poll_soon(struct bmi_job_context *context);
/* Waits at most `max_idle_ms` until the ready_sequence is not `seen`, or anything else was done.
 * Returns false when the time is over. */
bool bmi__job_wait(struct bmi_job_context *context, uint64_t seen, uint64_t until_ns);
/* Has it polled when an unexpected message comes, from now on. */
void bmi__job_wants_unexpected(struct bmi_job_context *context);
/* The end of polling by others. */
void bmi__job_hooks_end(struct bmi_job_context *context);
/* In the background: has it polled when something completes. */
void bmi__job_hook(struct bmi_job_context *context);

/* ---- source.c ---- */

void bmi__job_source_init(struct bmi__job_source *source, struct bmi_job_context *context,
                          bool is_flow);
int bmi__job_source_open(struct bmi__job_source *source);
/* Has nobody told of it any more. No job of it is pending. */
void bmi__job_source_quiet(struct bmi__job_source *source);
/* Nobody polls it any more, either. */
void bmi__job_source_close(struct bmi__job_source *source);
/* Fetches what has completed. Returns whether anything had. */
bool bmi__job_source_take(struct bmi__job_source *source);

/* ---- fd.c ---- */

void bmi__job_fd_init(struct bmi_job_context *context);
void bmi__job_fd_close(struct bmi_job_context *context);
void bmi__job_fd_signal(struct bmi_job_context *context);
/* After a test call: makes the descriptor readable if there is more to do, else not. */
void bmi__job_fd_settle(struct bmi_job_context *context);

/* ---- driver.c: the network in the background ---- */

int bmi__job_driver_join(struct bmi_job_context *context);
/* From now on the driver submits no polling task of this context. */
void bmi__job_driver_unwatch(struct bmi_job_context *context);
/* Follows unwatch, when no polling task of the context runs any more: may free the driver. */
void bmi__job_driver_leave(struct bmi_job_context *context);
/* A context's next_due_ns is earlier than before. */
void bmi__job_driver_look(struct bmi__job_driver *driver);

/* ---- machine.c ---- */

/* One of a machine's jobs has ended, and is out of its list. */
void bmi__sm_job_ended_locked(struct bmi_job_context *context, struct bmi_sm *machine,
                              bmi_error_code_t error, struct bmi__job_ends *ends);
void bmi__sm_cancel_locked(struct bmi_job_context *context, struct bmi_sm *machine,
                           struct bmi__job_ends *ends);
/* Starts one that bmi_job_accept has made the data of. */
int bmi__sm_start_accepted(struct bmi_job_context *context, struct bmi_sm_table *table,
                           struct bmi_job_accepted *data);
void bmi__sm_resume(struct bmi_sm *machine);
void bmi__sm_free_all(struct bmi_job_context *context);

/* ---- check.c ---- */

/* How many frames a machine of this table needs; <0: a BMI error. */
int bmi__sm_frames(struct bmi_sm_table *table);
#define SM_DEPTH_MOST 16

/* ---- trace.c ---- */

void bmi__sm_trace_event(struct bmi__tracer *tracer, struct bmi_sm *machine,
                         enum bmi_sm_event event, int result, uint64_t since_ns);

#endif
