/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi/job.h - one interface for all events that a server or client waits for, and state machines.
 *
 * A job is one operation: a message of BMI, a call (bmi/rpc.h), an operation of storage
 * (bmi/trove.h), a flow (bmi/flow.h), a timer, an event of the program's own, a whole state
 * machine. It is posted to a job context with a user pointer and perhaps a deadline, and reported
 * once by a test call on that context, whatever its kind: one wait, one descriptor, one loop.
 *
 * A state machine is a static table: states with an action each, and where each result leads. A
 * machine in the midst of its table costs some hundred bytes and no thread; thousands wait at once.
 * Each step is a task of the process's own task manager (bmi/task.h). Without workers the test
 * calls of any context run it; with BMI_JOB_BACKGROUND, the workers do, and the network makes
 * progress in the background as well.
 *
 * Errors are negated BMI errors. A name that ends in _ms is a time from now on, in milliseconds;
 * one that ends in deadline_ns or due_ns is a moment of CLOCK_MONOTONIC, in nanoseconds, as
 * bmi_job_deadline() makes it, and 0 is none. Unless it says otherwise, a function may be called by
 * any thread while its context is open.
 *
 * A context belongs to an instance of BMI (bmi/instance.h), the default one or another, which must
 * run until the context is closed. The addresses of its jobs are of that instance; its unexpected
 * messages and its services are that instance's. A child of fork() that may use BMI (see bmi(7))
 * must open its own contexts, and not use its parent's.
 */
#ifndef BMI_JOB_H
#define BMI_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include <bmi.h>
#include <bmi/flow.h>
#include <bmi/rpc.h>
#include <bmi/task.h>
#include <bmi/trove.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bmi_instance;
struct bmi_job_context;
struct bmi_sm; /* a running state machine */

typedef int64_t bmi_job_id_t; /* a job that is pending; positive; 0: none */

/* ---- contexts -------------------------------------------------------------------------------- */

/* Machines of a context without BMI_JOB_BACKGROUND take steps one at a time, on any thread. With it
 * they run side by side. */
enum bmi_job_context_option {
    BMI_JOB_BACKGROUND =
        1 /* the manager's workers take steps, and one of its threads makes network progress */
};

/* Opens a context; `options` are of enum bmi_job_context_option, or 0.
 * Returns: 0 and *context; EINVAL (NULL, unknown option, BMI not initialized), ENOMEM, EAGAIN
 *          (cannot start threads for the background), EDEADLK (within a task, while another thread
 *          stops the task manager and may wait for that task).
 * Owns: *context is the caller's until bmi_job_context_close. Threads: any. Blocks: with
 * BMI_JOB_BACKGROUND until workers run. */
int bmi_job_context_open(unsigned options, struct bmi_job_context **context);

/* As bmi_job_context_open, which opens a context of the default instance, for any instance.
 * Returns, Owns, Threads, Blocks: as that. -BMI_EINVAL: the instance is NULL or does not run. */
int bmi_instance_job_context_open(struct bmi_instance *instance, unsigned options,
                                  struct bmi_job_context **context);

/* Cancels every job, runs machines until each has ended (a cancelled machine must end), drops
 * completions not fetched, and frees the context. An unexpected message that no test call has
 * reported stays for the next call that fetches one.
 * Returns: 0; EINVAL (NULL). Owns: buffers and statuses are the caller's again. Threads: no other
 * thread may be using the context. Not within a machine's action; allowed in other tasks, at any
 * depth. Blocks: until the last job has ended. */
int bmi_job_context_close(struct bmi_job_context *context);

/* One descriptor for a program's own loop, level-triggered: while it is readable, call
 * bmi_job_testcontext with 0 ms until it reports nothing. An unexpected message makes it readable
 * only if a job of this context takes it: a program that also calls BMI_testunexpected watches a
 * descriptor of BMI_GET_CONTEXT_FD for that.
 * Returns: the descriptor, never to be read, written, or closed, valid until the context is closed;
 *          EMFILE, ENOMEM. Owns: the context's. Threads: any. Blocks: no. */
int bmi_job_context_fd(struct bmi_job_context *context);

struct bmi_job_statistics {
    uint64_t posted;                       /* jobs: pending ones and immediate ones */
    uint64_t immediate;                    /* of these: completed within the post */
    uint64_t completed;                    /* jobs that were pending and have ended */
    uint64_t timed_out, cancelled, failed; /* of these, by how they ended */
    uint64_t machines;                     /* machines started */
    uint64_t steps;                        /* actions called */
    uint64_t pending, machines_alive, completions_waiting; /* gauges */
    uint64_t job_bytes, machine_bytes; /* gauges: memory held for jobs, for machines */
};

/* Returns: 0; EINVAL. Owns: nothing. Threads: any. Blocks: no. */
/* a function with the name of a structure, as C allows */
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
int bmi_job_statistics(struct bmi_job_context *context, struct bmi_job_statistics *statistics);
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/* The deadline that is `ms` from now; 0 for ms < 0: none. A time beyond the clock's range becomes
 * its last one, which never comes. Returns: a time. Owns: nothing. Threads: any, at any time.
 * Blocks: no. */
uint64_t bmi_job_deadline(int64_t ms);

/* ---- jobs ------------------------------------------------------------------------------------ */

enum bmi_job_kind {
    BMI_JOB_SEND = 1,
    BMI_JOB_SEND_UNEXPECTED,
    BMI_JOB_RECEIVE,
    BMI_JOB_UNEXPECTED, /* the next unexpected message */
    BMI_JOB_TIMER,
    BMI_JOB_NULL,
    BMI_JOB_EVENT,
    BMI_JOB_MACHINE,
    BMI_JOB_TROVE, /* an operation of storage */
    BMI_JOB_FLOW,
    BMI_JOB_ACCEPT, /* machines for unexpected messages */
    BMI_JOB_SIGNAL,
    BMI_JOB_CHILD, /* the end of a process */
    BMI_JOB_RPC,
    BMI_JOB_SERVE /* machines for requests of a service */
};

/* How a job ended. */
struct bmi_job_status {
    bmi_job_id_t id; /* 0 where it was done at once */
    enum bmi_job_kind kind;
    bmi_error_code_t error; /* 0, or the cause of the failure; a machine: its result, which may be
                               positive */
    bmi_size_t actual; /* bytes sent or received, 0 after an error; storage and flows: see there */
    void *user_ptr;
};

/* Options of any post; a NULL pointer means none. */
struct bmi_job_options {
    void *user_ptr;
    uint64_t deadline_ns;   /* the job is cancelled then, and ends with ETIMEDOUT. A machine's job
                             ends at the machine's deadline at the latest */
    struct bmi_sm *machine; /* the job belongs to this machine: no test call reports it, and the
                               machine continues when all of its jobs have ended. Only the machine's
                               actions may set it */
};

#ifndef __cplusplus
/* Options of a job that belongs to this machine, and nothing else; valid to the end of
 * the block. */
#define BMI_SM_MINE(its) (&(const struct bmi_job_options){NULL, 0, (its)})
#endif

/* Common to all posts.
 *   options  may be NULL
 *   id       may be NULL, except for an event; set before any thread can see the completion
 *   status   may be NULL; filled if the post returns 1, or if the layer below refuses the job. For
 *            a job of a machine it is lent until the job ends, and filled then
 * Returns: 0: pending, reported once by a test call, or to its machine; 1: completed at once
 *          without an error, *status has the count, no test call reports it; <0: refused, no test
 *          call reports it: EINVAL, ENOMEM, ETIMEDOUT (the deadline has passed), ECANCEL (the
 *          context is being closed), or an error of the matching call of bmi.h, bmi/trove.h or
 *          bmi/flow.h.
 * Owns: buffers, lists, and other memory named as lent are the library's until the job has been
 *       reported, or its machine continues. Threads: any. Blocks: no. */

/* BMI_post_send and its relatives, see bmi.h. */
int bmi_job_send(struct bmi_job_context *context, BMI_addr_t to, const void *buffer,
                 bmi_size_t size, enum bmi_buffer_type type, bmi_msg_tag_t tag,
                 const struct bmi_job_options *options, bmi_job_id_t *id,
                 struct bmi_job_status *status);
int bmi_job_send_list(struct bmi_job_context *context, BMI_addr_t to, const void *const *buffers,
                      const bmi_size_t *sizes, int count, bmi_size_t total,
                      enum bmi_buffer_type type, bmi_msg_tag_t tag,
                      const struct bmi_job_options *options, bmi_job_id_t *id,
                      struct bmi_job_status *status);
int bmi_job_sendunexpected(struct bmi_job_context *context, BMI_addr_t to, const void *buffer,
                           bmi_size_t size, enum bmi_buffer_type type, bmi_msg_tag_t tag,
                           const struct bmi_job_options *options, bmi_job_id_t *id,
                           struct bmi_job_status *status);
int bmi_job_sendunexpected_list(struct bmi_job_context *context, BMI_addr_t to,
                                const void *const *buffers, const bmi_size_t *sizes, int count,
                                bmi_size_t total, enum bmi_buffer_type type, bmi_msg_tag_t tag,
                                const struct bmi_job_options *options, bmi_job_id_t *id,
                                struct bmi_job_status *status);
int bmi_job_recv(struct bmi_job_context *context, BMI_addr_t from, void *buffer, bmi_size_t size,
                 enum bmi_buffer_type type, bmi_msg_tag_t tag,
                 const struct bmi_job_options *options, bmi_job_id_t *id,
                 struct bmi_job_status *status);
int bmi_job_recv_list(struct bmi_job_context *context, BMI_addr_t from, void *const *buffers,
                      const bmi_size_t *sizes, int count, bmi_size_t total,
                      enum bmi_buffer_type type, bmi_msg_tag_t tag,
                      const struct bmi_job_options *options, bmi_job_id_t *id,
                      struct bmi_job_status *status);

/* Takes the next unexpected message; jobs that wait for one get them in the order of their posts.
 * *info is lent until the job ends. Its buffer is to be given back by BMI_unexpected_free. */
int bmi_job_unexpected(struct bmi_job_context *context, struct BMI_unexpected_info *info,
                       const struct bmi_job_options *options, bmi_job_id_t *id,
                       struct bmi_job_status *status);

/* A call: bmi_rpc_call of bmi/rpc.h defines it. The request is taken, also where the job is
 * refused. status->actual: the sizes of the reply's pieces. The job ends at the earlier of its
 * deadline and the timeout_ms of `call`. */
int bmi_job_rpc(struct bmi_job_context *context, BMI_addr_t server, const char *service,
                struct bmi_message *request, bmi_rpc_unpack unpack, void *unpack_argument,
                const struct bmi_rpc_options *call, const struct bmi_job_options *options,
                bmi_job_id_t *id, struct bmi_job_status *status);

/* Ends without an error at `due_ns`, a time as deadlines are; at once if that has passed. */
int bmi_job_timer(struct bmi_job_context *context, uint64_t due_ns,
                  const struct bmi_job_options *options, bmi_job_id_t *id,
                  struct bmi_job_status *status);

/* The same, repeated: at `due_ns`, and each `interval_ms` (above 0) after that, until it is
 * cancelled or its deadline comes. Each time is reported, with the same id; times that pass before
 * a test call has fetched the one before are one report. status->actual: their number. `id` may not
 * be NULL. The timer cannot belong to a machine: a machine posts its next timer itself. */
int bmi_job_timer_repeat(struct bmi_job_context *context, uint64_t due_ns, int64_t interval_ms,
                         const struct bmi_job_options *options, bmi_job_id_t *id,
                         struct bmi_job_status *status);

/* Ends when the process gets this signal, and consumes it: no handler is called. For instance
 * SIGINT, so that Ctrl-C ends a wait. status->actual: its number. Of several jobs for one signal
 * each takes one. The program blocks the signal in all threads, by pthread_sigmask before it starts
 * any: before BMI_initialize. A program that it starts inherits that: unblock the signal between
 * fork() and execve(). EINVAL, too, where the calling thread does not block it. */
int bmi_job_signal(struct bmi_job_context *context, int number,
                   const struct bmi_job_options *options, bmi_job_id_t *id,
                   struct bmi_job_status *status);

/* Ends when this child process has ended, and reaps it. status->actual: its status, as of
 * waitpid(2). ENOENT: the process has no such child; the job ends with it if another waitpid of the
 * program reaped the child first. Also EMFILE. */
int bmi_job_child(struct bmi_job_context *context, pid_t child,
                  const struct bmi_job_options *options, bmi_job_id_t *id,
                  struct bmi_job_status *status);

/* Ends at once, with `error` (0 or negative), and is reported by a test call as any other job: the
 * post never returns 1. It puts a result of the program among the completions. */
int bmi_job_null(struct bmi_job_context *context, bmi_error_code_t error,
                 const struct bmi_job_options *options, bmi_job_id_t *id,
                 struct bmi_job_status *status);

/* Pending until the program, or another library, calls bmi_job_event_complete. `id` may not be
 * NULL: without it the event cannot be completed. */
int bmi_job_event(struct bmi_job_context *context, const struct bmi_job_options *options,
                  bmi_job_id_t *id, struct bmi_job_status *status);

/* Ends an event, with this error (0 or negative) and this count of bytes.
 * Returns: 0; EINVAL: not a pending event. Owns: nothing. Threads: any. Blocks: no. */
int bmi_job_event_complete(struct bmi_job_context *context, bmi_job_id_t id, bmi_error_code_t error,
                           bmi_size_t actual);

/* Operations of storage: the functions of the same names in bmi/trove.h define them, and the memory
 * that they lend. An operation that fails within the post is refused with its error. Then *status
 * has that error, and in `actual` the bytes known good: a write that ran out of space may have
 * written some. */
int bmi_job_trove_create(struct bmi_job_context *context, const struct bmi_trove_place *place,
                         bmi_trove_object_id_t *object, unsigned flags,
                         const struct bmi_job_options *options, bmi_job_id_t *id,
                         struct bmi_job_status *status);
int bmi_job_trove_remove(struct bmi_job_context *context, const struct bmi_trove_place *place,
                         unsigned flags, const struct bmi_job_options *options, bmi_job_id_t *id,
                         struct bmi_job_status *status);
int bmi_job_trove_objects(struct bmi_job_context *context, const struct bmi_trove_place *place,
                          bmi_trove_object_id_t *position, bmi_trove_object_id_t *objects,
                          int count, const struct bmi_job_options *options, bmi_job_id_t *id,
                          struct bmi_job_status *status);
int bmi_job_trove_read_list(struct bmi_job_context *context, const struct bmi_trove_place *place,
                            void *const *buffers, const bmi_size_t *sizes, int count,
                            const bmi_size_t *stream_offsets, const bmi_size_t *stream_sizes,
                            int stream_count, unsigned flags, const struct bmi_job_options *options,
                            bmi_job_id_t *id, struct bmi_job_status *status);
int bmi_job_trove_write_list(struct bmi_job_context *context, const struct bmi_trove_place *place,
                             const void *const *buffers, const bmi_size_t *sizes, int count,
                             const bmi_size_t *stream_offsets, const bmi_size_t *stream_sizes,
                             int stream_count, unsigned flags,
                             const struct bmi_job_options *options, bmi_job_id_t *id,
                             struct bmi_job_status *status);
int bmi_job_trove_read_at(struct bmi_job_context *context, const struct bmi_trove_place *place,
                          void *buffer, bmi_size_t size, bmi_size_t offset, unsigned flags,
                          const struct bmi_job_options *options, bmi_job_id_t *id,
                          struct bmi_job_status *status);
int bmi_job_trove_write_at(struct bmi_job_context *context, const struct bmi_trove_place *place,
                           const void *buffer, bmi_size_t size, bmi_size_t offset, unsigned flags,
                           const struct bmi_job_options *options, bmi_job_id_t *id,
                           struct bmi_job_status *status);
int bmi_job_trove_resize(struct bmi_job_context *context, const struct bmi_trove_place *place,
                         bmi_size_t size, unsigned flags, const struct bmi_job_options *options,
                         bmi_job_id_t *id, struct bmi_job_status *status);
int bmi_job_trove_flush(struct bmi_job_context *context, const struct bmi_trove_place *place,
                        const struct bmi_job_options *options, bmi_job_id_t *id,
                        struct bmi_job_status *status);
int bmi_job_trove_size(struct bmi_job_context *context, const struct bmi_trove_place *place,
                       bmi_size_t *size, const struct bmi_job_options *options, bmi_job_id_t *id,
                       struct bmi_job_status *status);
int bmi_job_trove_get(struct bmi_job_context *context, const struct bmi_trove_place *place,
                      struct bmi_trove_pair *pairs, int count,
                      const struct bmi_job_options *options, bmi_job_id_t *id,
                      struct bmi_job_status *status);
int bmi_job_trove_put(struct bmi_job_context *context, const struct bmi_trove_place *place,
                      struct bmi_trove_pair *pairs, int count, unsigned flags,
                      const struct bmi_job_options *options, bmi_job_id_t *id,
                      struct bmi_job_status *status);
int bmi_job_trove_exchange(struct bmi_job_context *context, const struct bmi_trove_place *place,
                           struct bmi_trove_pair *pairs, const struct bmi_trove_pair *expected,
                           struct bmi_trove_pair *old, int count, unsigned flags,
                           const struct bmi_job_options *options, bmi_job_id_t *id,
                           struct bmi_job_status *status);
int bmi_job_trove_remove_keys(struct bmi_job_context *context, const struct bmi_trove_place *place,
                              struct bmi_trove_pair *pairs, int count, unsigned flags,
                              const struct bmi_job_options *options, bmi_job_id_t *id,
                              struct bmi_job_status *status);
int bmi_job_trove_iterate(struct bmi_job_context *context, const struct bmi_trove_place *place,
                          struct bmi_trove_position *position, struct bmi_trove_pair *pairs,
                          int count, const struct bmi_job_options *options, bmi_job_id_t *id,
                          struct bmi_job_status *status);

/* A flow, see bmi/flow.h; memory lent there is lent until the job ends. A deadline becomes its
 * timeout_ms, unless timeout_ms is earlier. status->actual: the bytes known good. */
int bmi_job_flow(struct bmi_job_context *context, const struct bmi_flow_description *description,
                 const struct bmi_job_options *options, bmi_job_id_t *id,
                 struct bmi_job_status *status);

/* Reads the progress of a flow. Returns: 0; EINVAL: not a pending flow. Owns: nothing. Threads:
 * any.
 * Blocks: no. */
int bmi_job_flow_progress(struct bmi_job_context *context, bmi_job_id_t id,
                          struct bmi_flow_progress *progress);

/* Asks a job to end: it ends once, with ECANCEL, or with its result if that came first. For a
 * machine, all jobs that it waits for are cancelled, so that its deferred state fails with ECANCEL,
 * and its table determines how it ends; a machine that does not wait at the moment gets this at its
 * next wait. Later states, which clean up, are not disturbed. Returns: 0, also for a job that has
 * ended and was not fetched; EINVAL: no such job. Owns: lent memory stays lent until the job is
 * reported.
 * Threads: any. Blocks: no. */
int bmi_job_cancel(struct bmi_job_context *context, bmi_job_id_t id);

/* ---- test ------------------------------------------------------------------------------------
 * Common to all: max_idle_ms of 0 polls the network and runs tasks once; above 0 waits at most that
 * long, using no CPU; below 0 is EINVAL. A waiting call runs tasks of the manager. Each completion
 * is reported once.
 * Returns: 1 if *outcount > 0, 0 if not; EINVAL (NULL, invalid id).
 * Owns: memory lent to the jobs returns to the caller. Threads: any number at once. Blocks: up to
 * max_idle_ms, and as long as a task that it runs takes. */

/* Reports whether this job has ended. A machine's steps are taken before those of other machines of
 * the context. */
int bmi_job_test(struct bmi_job_context *context, bmi_job_id_t id, int *outcount,
                 struct bmi_job_status *status, int max_idle_ms);

/* Reports which of `incount` jobs have ended (ids of 0 are skipped); statuses and places in `ids`
 * are packed at [0..*outcount). `index` may be NULL. */
int bmi_job_testsome(struct bmi_job_context *context, int incount, const bmi_job_id_t *ids,
                     int *outcount, int *index, struct bmi_job_status *statuses, int max_idle_ms);

/* Reports up to `incount` jobs that have ended, in the order of their ends. */
int bmi_job_testcontext(struct bmi_job_context *context, int incount, int *outcount,
                        struct bmi_job_status *statuses, int max_idle_ms);

/* Waits for one job, for programs that post and wait. A job that has not ended after `timeout_ms`
 * is cancelled, and the call waits until it has ended: memory lent to the job is the caller's again
 * in any case.
 *
 *     posted = bmi_job_recv(context, from, buffer, size, BMI_EXT_ALLOC, tag, NULL, &id, &status);
 *     error = bmi_job_wait(context, id, &status, posted, 5000);
 *
 *   id          as the post set it. So the post is a statement of its own: C evaluates the
 *               arguments of one call in any order
 *   status      the post's, filled here if the job was pending; may be NULL
 *   posted      the return value of the post. If it is not 0, the call does not wait
 *   timeout_ms  0 cancels at once; < 0: no limit
 * Returns: the job's error, as in *status: 0, or the cause of its failure (ETIMEDOUT: cancelled
 *          here), of a machine its result; `posted` if that is < 0; EINVAL: no such job, or another
 *          thread's test call has reported it.
 * Owns: memory lent to the job returns to the caller. Threads: any, other jobs may be waited for at
 *       once; not within a machine's action. Blocks: up to timeout_ms, and then for as long as the
 *       cancel takes. */
int bmi_job_wait(struct bmi_job_context *context, bmi_job_id_t id, struct bmi_job_status *status,
                 int posted, int timeout_ms);

/* ---- tables of state machines ----------------------------------------------------------------
 * For instance:
 *
 *   enum { RECEIVE, ANSWER, GIVE_UP };
 *   static const struct bmi_sm_state states[] = {
 *       [RECEIVE] = {"receive", .action = receive,
 *                    .on = {BMI_SM_OK(ANSWER), BMI_SM_FAIL(GIVE_UP)}},
 *       [ANSWER] = {"answer", .action = answer,
 *                   .on = {BMI_SM_OK(BMI_SM_END), BMI_SM_FAIL(GIVE_UP)}},
 *       [GIVE_UP] = {"give up", .action = give_up, .on = {BMI_SM_ELSE(BMI_SM_END)}},
 *   };
 *   static struct bmi_sm_table request = BMI_SM_TABLE("request", states);
 */

/* The result of an action. BMI_SM_DONE: done, with the result 0. Another value >= 0: a choice that
 * it made. BMI_SM_DEFERRED: done when all of the machine's jobs have ended, with the result 0, or
 * the error of the first that failed. <0, a BMI error: failed, for that cause. If no job is
 * pending, a machine continues at once after BMI_SM_DEFERRED, with the result 0. BMI_SM_DEFERRED is
 * negative and no error: a caller of bmi_sm_posted() compares with it first. Jobs that are
 * pending when an action returns anything else continue; the machine's next deferred state waits
 * for them, too. */
#define BMI_SM_DONE 0
#define BMI_SM_DEFERRED (-2147483647 - 1)

/* An action of a state; `data` is the argument that the machine was started with. It must not
 * block. */
typedef int (*bmi_sm_action)(struct bmi_sm *machine, void *data);

/* For an action that posts exactly one job: return bmi_sm_posted(bmi_job_send(...)). An immediate
 * completion becomes DONE, a pending one DEFERRED. After several posts return BMI_SM_DEFERRED if
 * none was refused: DONE does not wait for pending jobs. */
static inline int bmi_sm_posted(int posted)
{
    return posted == 0 ? BMI_SM_DEFERRED : posted > 0 ? BMI_SM_DONE : posted;
}

enum bmi_sm_when { BMI_SM_NEVER = 0, BMI_SM_IS, BMI_SM_FAILED, BMI_SM_ANY };

struct bmi_sm_transition {
    enum bmi_sm_when when;
    int result;
    int to; /* index of a state, or BMI_SM_END */
};

#define BMI_SM_END (-1)       /* the machine ends, or returns to the one that jumped into it */
#define BMI_SM_TRANSITIONS 12 /* at most, of a state */
#define BMI_SM_ON(value, state)     \
    {                               \
        BMI_SM_IS, (value), (state) \
    }
#define BMI_SM_OK(state) BMI_SM_ON(0, state)
#define BMI_SM_FAIL(state)        \
    {                             \
        BMI_SM_FAILED, 0, (state) \
    } /* any negative result not listed by ON */
#define BMI_SM_ELSE(state)     \
    {                          \
        BMI_SM_ANY, 0, (state) \
    } /* any result without a transition of its own */

enum bmi_sm_wait {
    BMI_SM_ALL = 0,      /* a deferred state continues when all jobs and children have ended */
    BMI_SM_FIRST_FAILURE /* the same, but the first failure cancels all others */
};

struct bmi_sm_table;

struct bmi_sm_state {
    const char *name;
    bmi_sm_action action;      /* either this, */
    struct bmi_sm_table *jump; /* or the table of another machine, run in this one's place; its
                                  final result is this state's */
    void *(*jump_data)(struct bmi_sm *machine, void *data); /* data for its actions; NULL: `data`.
                                                               If it returns NULL, the state's
                                                               result is ENOMEM */
    enum bmi_sm_wait wait;
    int choices; /* results >= 0 of this state are 0..choices-1; 0 counts as 1 */
    struct bmi_sm_transition on[BMI_SM_TRANSITIONS];
};

struct bmi_sm_table {
    const char *name;
    const struct bmi_sm_state *states; /* the machine starts in the first */
    int count;
    BMI_TASK_ATOMIC(int) checked; /* the library's: depth in tables, once checked */
};

/* Initializes a table from an array of states. */
#define BMI_SM_TABLE(name, states)                                       \
    {                                                                    \
        (name), (states), (int)(sizeof(states) / sizeof((states)[0])), 0 \
    }

/* Checks a table, and those that it jumps into; the first start of a machine does the same. It
 * refuses: a state without a name, or without one of action and jump; a transition to a state that
 * does not exist, for a result that the state cannot have, or for a result that has a transition
 * already; a result without a transition; a state that cannot be reached, or from which the end
 * cannot be reached (an endless loop); a jump into a table that is being run already; more than 16
 * tables deep.
 * Returns: 0; EINVAL, and `text` (may be NULL) describes the fault and its place.
 * Owns: the table is used as long as any machine runs it. Threads: any, at any time. Blocks: no. */
int bmi_sm_check(struct bmi_sm_table *table, char *text, size_t size);

/* ---- machines -------------------------------------------------------------------------------- */

/* Where a machine's steps run in the background. In the foreground the calling threads take them,
 * on their present CPU. */
struct bmi_sm_placement {
    const struct bmi_cpuset *cpus;      /* NULL: any; copied */
    const struct bmi_task_hints *hints; /* memory that it uses; lent until it ends */
    struct bmi_task_group *group; /* of the default manager, that the machine's task belongs to
                                     (bmi/task_group.h); NULL: none. Not together with cpus. It must
                                     stay open, and must not be cancelled, until the machine has
                                     ended: bmi_job_cancel ends machines */
};

/* Starts a machine. It is a job, which ends with the machine and whose status has the machine's
 * result as its error. `options` as for all posts: at a deadline each of its jobs and children
 * ends. With `options->machine` the new machine is a child of that one, which waits for it in a
 * deferred state, as for a job. Without a placement a child belongs to its parent's group.
 * Returns: 0: pending, never 1; EINVAL (a bad table: the log has the details; a group of another
 *          task manager, or together with cpus), ENOMEM, ETIMEDOUT, ECANCEL.
 * Owns: the table, `data`, and a child's status are lent until it has ended. Threads: any, a child
 * only from its parent's actions. Blocks: no. */
int bmi_sm_start(struct bmi_job_context *context, struct bmi_sm_table *table, void *data,
                 const struct bmi_sm_placement *placement, const struct bmi_job_options *options,
                 bmi_job_id_t *id, struct bmi_job_status *status);

/* The next functions are for actions, on their own machine. Threads: the one that runs the action.
 * Blocks: no. Owns: nothing. */

/* Returns: its context; the result that led to this state; its deadline, 0: none; whether it was
 * cancelled (also after that was delivered); its job's id. Owns: nothing. Threads: the one that
 * runs the action. Blocks: no. */
struct bmi_job_context *bmi_sm_context(const struct bmi_sm *machine);
int bmi_sm_last(const struct bmi_sm *machine);
uint64_t bmi_sm_deadline(const struct bmi_sm *machine);
bool bmi_sm_cancelled(const struct bmi_sm *machine);
bmi_job_id_t bmi_sm_id(const struct bmi_sm *machine);

/* Moves the deadline, for jobs posted from now on: states that clean up may need time. */
void bmi_sm_set_deadline(struct bmi_sm *machine, uint64_t deadline_ns);

/* Sets the result of the whole machine, in place of its last state's result. */
void bmi_sm_set_result(struct bmi_sm *machine, int result);

/* ---- servers --------------------------------------------------------------------------------- */

/* The beginning of the data of a machine that bmi_job_accept has started. */
struct bmi_job_accepted {
    /* The request; its buffer is freed when the machine ends. An action that frees it earlier, by
     * BMI_unexpected_free, sets it to NULL. */
    struct BMI_unexpected_info message;
    void *user_ptr; /* that of the options of bmi_job_accept */
};

/* Starts a machine of `table` for each unexpected message, with at most `limit` of them alive. A
 * message above the limit stays with the library, in its sender's budget (the setting peer_memory):
 * when that is used up its sender's next unexpected sends wait. The same holds while there is no
 * memory for a machine.
 *   limit       >= 1
 *   data_size   bytes of a machine's data: zeroed, and beginning with a struct bmi_job_accepted; 0:
 *               only that. The library frees them when the machine has ended
 *   options     as for all posts, except that `machine` must be NULL. Its deadline ends this job,
 *               not the machines; an action sets its machine's own, see bmi_sm_set_deadline
 * When the job is cancelled, or at its deadline, it accepts no more messages; it ends when its
 * machines, which are not cancelled, have ended. status->actual: how many it started. The machines'
 * own ends are not reported. A machine counts from its start to its end, also while it waits: if
 * requests wait for other requests (a lock, a watch), bound the waiting ones below `limit`, else no
 * machine is left that could wake them. To end a server: cancel this job, wait for it with
 * bmi_job_test for as long as machines may take, then call bmi_job_context_close, which cancels the
 * rest. A context has one such job at a time; jobs of bmi_job_unexpected have their messages first.
 * Returns: 0: pending, never 1; EINVAL (a bad table: the log has the details; limit; data_size
 *          above 0 and below that of struct bmi_job_accepted), EBUSY (the context has one), ENOMEM,
 *          ETIMEDOUT, ECANCEL. Owns: the table is lent until the job has ended. Threads: any.
 *          Blocks: no. */
int bmi_job_accept(struct bmi_job_context *context, struct bmi_sm_table *table, int limit,
                   size_t data_size, const struct bmi_job_options *options, bmi_job_id_t *id,
                   struct bmi_job_status *status);

/* The beginning of the data of a machine that bmi_job_serve has started. */
struct bmi_job_request {
    /* The request, which an action ends once, by bmi_rpc_reply or bmi_rpc_fail; after that no
     * action may use it. */
    struct bmi_rpc_request *request;
    void *user_ptr; /* that of the options of bmi_job_serve */
};

/* A service whose requests are served by machines.
 *   table      each request starts a machine of it when all of the request is there
 *   data_size  bytes of a machine's data: zeroed, and beginning with a struct bmi_job_request; 0:
 *              only that
 *   arrived    as in struct bmi_rpc_service: unpacks the arguments. bmi_rpc_data(request) is the
 *              machine's data, to store the arguments in; bmi_rpc_set_data and
 *              bmi_rpc_argument are the library's. NULL: the request has no cheaper pieces, and
 *              the machine unpacks it
 *   timeout_ms as in struct bmi_rpc_service
 *   release    the request has ended, and its machine, if it had one: frees what its data points
 *              to; then the library frees the data. Any thread calls it, without a lock; it must
 *              not block. NULL: there is nothing to free */
struct bmi_job_service {
    struct bmi_sm_table *table;
    size_t data_size;
    int (*arrived)(struct bmi_rpc_request *request, struct bmi_message *arguments);
    void (*release)(void *data);
    int timeout_ms;
};

/* Offers a service of the context's instance under a name (bmi_instance_rpc_register): starts a
 * machine for each request. A machine that ends without having ended its request ends it: with its
 * result if that is an error, else with EREMOTE (a one-way request: without an error). When the
 * caller cancels its call or goes, the machine is cancelled (bmi_job_cancel). The machines' own
 * ends are not reported.
 *   options  as for all posts, except that `machine` must be NULL. Its deadline ends this job, not
 *            the machines; an action sets its machine's own, see bmi_sm_set_deadline
 * When the job is cancelled, or at its deadline, the service is withdrawn; the job ends when its
 * machines, which are not cancelled, have ended. Requests without a machine at that time end with
 * ENOSYS; `release` may be called for them until the instance ends. status->actual: how many
 * machines it started. A context may serve any number of services.
 * Returns: 0: pending, never 1; EINVAL (NULL, a bad table: the log has the details, data_size above
 *          0 and below that of struct bmi_job_request), ENOMEM, ETIMEDOUT, ECANCEL, and the errors
 *          of bmi_rpc_register. Owns: *service and the name are copied; the table is lent until the
 *          job has ended. Threads: any. Blocks: no. */
int bmi_job_serve(struct bmi_job_context *context, const char *name,
                  const struct bmi_job_service *service, const struct bmi_job_options *options,
                  bmi_job_id_t *id, struct bmi_job_status *status);

/* ---- trace ----------------------------------------------------------------------------------- */

enum bmi_sm_event {
    BMI_SM_STARTED,
    BMI_SM_STEP,    /* an action has returned */
    BMI_SM_RESUMED, /* the jobs that a deferred state waited for have ended */
    BMI_SM_JUMPED,  /* into another table */
    BMI_SM_ENDED
};

struct bmi_sm_trace {
    enum bmi_sm_event event;
    bmi_job_id_t machine;
    const char *table, *state; /* state: NULL for STARTED and ENDED */
    int result;                /* BMI_SM_DEFERRED: it waits */
    uint64_t time_ns;          /* CLOCK_MONOTONIC */
    uint64_t took_ns;          /* STEP: the action; RESUMED: the wait; ENDED: the machine's life */
};

typedef void (*bmi_sm_tracer)(void *argument, const struct bmi_sm_trace *trace);

/* Sets a function that is called for each event of a context's machines; NULL: none. The thread
 * that runs the machine calls it; it must not call the library. Returns: nothing. Owns: `argument`
 * is lent until the context is closed. Threads: any; a step that is under way may still report to
 * the former tracer. Blocks: no. */
void bmi_sm_trace_to(struct bmi_job_context *context, bmi_sm_tracer tracer, void *argument);

/* A tracer that writes a line for each event to the FILE * that is its argument. */
void bmi_sm_trace_print(void *file, const struct bmi_sm_trace *trace);

#ifdef __cplusplus
}
#endif
#endif
