/* SPDX-License-Identifier: BSD-3-Clause
 *
 * internal.h - inside flow: a flow, its chunks, and the engine that the flows of an instance share.
 *
 * A flow is cut into chunks of buffer_size bytes. A chunk is filled from the source and emptied to
 * the destination; several are under way, in a ring of slots. Chunks begin, and are sent and
 * received, in order; operations of storage may end in any order.
 *
 * Rules. All of a flow belongs to its *step*, which one thread at a time runs: `wanted` counts the
 * requests for a step since its last check; the thread that makes it 1 runs the step or submits its
 * task. Other threads only set `kill` (cancel, deadline), and put completions into `arrived` under
 * `lock`. Fields that others may read meanwhile are atomic. A thread never holds two of these
 * locks: a flow's, an engine's (except those of its contexts, which come first), and the space's;
 * but cancel sets `kill` under the space's.
 *
 * Files, from the top; each uses those below it: flow.c (posts and tests), engine.c (polls), run.c
 * (which thread runs a step), step.c (what a step does), chunk.c (a chunk's operations); place.c,
 * deadlines.c, descriptor.c, buffers.c, request.c, distribution.c. unit.layers checks that.
 */
#ifndef FLOW_INTERNAL_H
#define FLOW_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "bmi/task_group.h"
#include "flow/request.h"
#include "trove-stub/completion.h"
#include "trove-stub/lease.h"

enum { FLOW_PIECES_MAX = 65536 }; /* of a chunk: both sides of a connection cut there */

enum chunk_state {
    CHUNK_IDLE,
    CHUNK_FILLING, /* an operation of the source is using it */
    CHUNK_FULL,
    CHUNK_EMPTYING, /* an operation of the destination is using it */
    CHUNK_DONE
};

/* A list of memory or of ranges, that grows. */
struct flow_list {
    void **buffers;      /* memory */
    bmi_size_t *offsets; /* or the stream */
    bmi_size_t *sizes;
    int first, count, room; /* first: earlier entries are finished */
};

#define BUFFER_OF_NOBODY ((BMI_addr_t)0) /* an address: any memory is suitable */

/* Memory of flow's, and what it suits. */
struct flow_buffer {
    void *memory; /* NULL: none */
    bmi_size_t size;
    const struct bmi_instance *instance; /* that of the flow */
    BMI_addr_t address;
    enum bmi_op_type use;
    int node;       /* the NUMA node that it is for; -1: any */
    bool is_mapped; /* whole pages, bound to that node */
};

struct flow_chunk {
    struct flow *flow;
    enum chunk_state state;
    bool on_network; /* the operation is one of the network */
    bool failed;
    uint64_t number;
    bmi_size_t partial; /* of a failed operation: bytes that arrived nevertheless, from its start */
    int64_t op;         /* BMI's or trove's */
    bmi_size_t size;    /* bytes that it should move */
    bmi_size_t moved;   /* of these, moved by earlier short operations */
    struct flow_buffer buffer; /* of the flow, if neither end is memory and the store lends none */
    struct trove_lease lease;  /* the store's memory instead, unless the lease is empty */
    struct flow_list memory, stream_in, stream_out; /* storage as source, as destination */
    /* with the flow's lock: a completion */
    struct flow_chunk *next_arrived;
    bmi_error_code_t error;
    bmi_size_t actual;
};

/* The place of the next bytes of a memory endpoint. */
struct flow_memory {
    void *const *buffers;
    const bmi_size_t *sizes;
    int count, at;
    bmi_size_t start; /* request position of buffers[at] */
};

struct flow {
    struct bmi__posted posted; /* first */
    struct bmi__space *space;
    struct flow_engine *engine;     /* that of its context */
    bmi_context_id network;         /* where its operations are posted; 0: not used */
    bmi_trove_context_id_t storage; /* the same */
    struct bmi_task task;
    struct bmi_task_group *group; /* of steps that are tasks, on several NUMA nodes; or NULL */
    int node;                     /* for its buffers; -1: there is only one */
    struct bmi_cpuset near;       /* with one node: CPUs for the steps, if is_near */
    bool is_near;
    struct flow *next_here; /* of its thread, between steps_begin and steps_end */
    atomic_uint wanted;
    _Atomic bmi_error_code_t kill; /* cancelled, or timed out */
    struct bmi_flow_description what;
    struct flow_walk walk;
    struct flow_memory source_memory, destination_memory;
    uint32_t source_losses, destination_losses; /* of a network end's address, at the post */
    bool needs_buffers;
    bool any_memory; /* the network treats all memory alike, also the store's */
    bool walked;     /* there are no more chunks */
    bool cutting;    /* the next chunk is cut partly */
    int cut_pieces;  /* of it */
    bool killed;     /* kill was handled */
    bool draining;   /* still receives messages although it has failed */
    bool filling_ended;
    bool must_tell;  /* the receiver waits for an empty message */
    bool last_begun; /* the last operation was begun: end of stream */
    bool more;       /* a step ended before it had done all possible work */
    bool finished;
    struct flow_chunk *chunks, end_of_stream; /* buffer_count; of the last message or flush */
    uint64_t begun, sent, ended; /* chunks: begun to fill, begun to empty, done in order */
    uint64_t broken_at;          /* the first chunk that failed; UINT64_MAX */
    uint32_t operations;         /* outstanding */
    bmi_size_t walked_bytes;     /* of all chunks until now */
    bmi_error_code_t error;
    _Atomic bmi_size_t total, taken, delivered, good, copied;
    _Atomic uint32_t in_flight;
    uint64_t deadline_ns;                  /* 0: none */
    struct flow *next_timed, **timed_link; /* the deadlines' lock */
    pthread_mutex_t lock;
    struct flow_chunk *arrived, **arrived_end; /* lock */
};

extern struct bmi__space bmi__flow_space;

/* ---- flow.c ---------------------------------------------------------------------------------- */

/* As bmi_flow_context_open, for any instance, which need not run yet. */
int bmi__flow_context_open(struct bmi_instance *instance, bmi_flow_context_id_t *context);
/* Where flows of an open context post operations of storage. */
bmi_trove_context_id_t bmi__flow_context_storage(bmi_flow_context_id_t context);

/* ---- engine.c -------------------------------------------------------------------------------- */

/* For each flow context of the instance: the engine, which the first one makes; the last close ends
 * its use. Open returns 0 and *engine, or a negated BMI error. */
int bmi__engine_open(struct bmi_instance *instance, struct flow_engine **engine);
void bmi__engine_close(struct flow_engine *engine);
/* In a child of fork(): leaves the parent's resources alone, including its locks. */
void bmi__engines_forget(void);
/* Call it before a flow that uses the network. Returns a negated BMI error. */
int bmi__engine_network_open(struct flow_engine *engine);
/* The contexts that flows post their operations to. */
bmi_context_id bmi__engine_network(const struct flow_engine *engine);
bmi_trove_context_id_t bmi__engine_storage(const struct flow_engine *engine);
/* The functions of completion.h for a space with its own way to sleep; the owner is an engine. */
void bmi__engine_poll(void *owner);
int bmi__engine_source(void *owner);
bool bmi__engine_sleeps(void *owner);
void bmi__engine_sleep(struct bmi__space_waiter *self, int64_t left_ns);
void bmi__engine_wake(void *owner);
void bmi__engine_fd_used(void *owner);

/* ---- run.c ----------------------------------------------------------------------------------- */

/* Runs the first step. The flow may be freed when this returns. */
void bmi__flow_start(struct flow *flow);
/* Between these calls the steps that the caller requests are kept; the second call runs them. So a
 * waiting thread does not depend on a worker, which may run only while its CPU is idle. */
void bmi__flow_steps_begin(void);
void bmi__flow_steps_end(void);
/* Ends the flow with that cause. Any thread; any lock may be held except the task manager's. */
void bmi__flow_kill(struct flow *flow, bmi_error_code_t cause);
/* In a child of fork(): drops the kept steps. */
void bmi__flow_steps_forget(void);
/* A chunk's operation has completed. */
void bmi__flow_arrived(struct flow_chunk *chunk, bmi_error_code_t error, bmi_size_t actual);

/* ---- deadlines.c ----------------------------------------------------------------------------- */

/* `due`: BMI's poller calls it when a deadline is due. */
void bmi__deadlines_init(struct flow_engine *engine, void (*due)(struct flow_engine *engine));
/* No flow is left. */
void bmi__deadlines_end(struct flow_engine *engine);
void bmi__deadline_add(struct flow *flow);
void bmi__deadline_remove(struct flow *flow);
/* Ends flows whose time is over, by `kill`; a flow leaves the list before it is freed. */
void bmi__deadlines_run(struct flow_engine *engine,
                        void (*kill)(struct flow *flow, bmi_error_code_t cause));
/* In a child of fork(). */
void bmi__deadlines_forget(struct flow_engine *engine);

/* ---- descriptor.c ---------------------------------------------------------------------------- */

void bmi__descriptor_init(struct flow_engine *engine);
/* Makes it, the first time. Returns it, or a negated errno. */
int bmi__descriptor(struct flow_engine *engine);
/* Watches one more. Returns 0 or a negated errno. */
int bmi__descriptor_watch(struct flow_engine *engine, int fd);
/* Watches the network of the engine's instance, while it is open and a program polls the
 * descriptor. */
void bmi__descriptor_network_open(struct flow_engine *engine);
/* `running`: the instance still runs, as it should. */
void bmi__descriptor_network_close(struct flow_engine *engine, bool running);
/* Makes it readable after that time; UINT64_MAX: never. */
void bmi__descriptor_timer(struct flow_engine *engine, uint64_t delay_ns);
/* A program polls it from now on. */
void bmi__descriptor_use(struct flow_engine *engine);
bool bmi__descriptor_used(const struct flow_engine *engine);
/* A task of flow's was submitted: wakes a program that waits for the descriptor. */
void bmi__descriptor_signal(struct flow_engine *engine);
/* Call it before the check of the sources that the event stands for. */
void bmi__descriptor_clear(struct flow_engine *engine);
/* In a child of fork(). */
void bmi__descriptor_forget(struct flow_engine *engine);

/* ---- step.c ---------------------------------------------------------------------------------- */

/* Does all work that is possible now. Sets flow->finished at the end. */
void bmi__flow_advance(struct flow *flow);

/* ---- place.c --------------------------------------------------------------------------------- */

/* A context is opened: on several nodes the costs of placement are measured now, once in a process,
 * so that no post, test call, or step waits for that. */
void bmi__flow_place_prepare(void);
/* Decides where a new flow's steps and buffers go. Called by the thread that posts it. */
void bmi__flow_place(struct flow *flow);
/* The flow is freed. */
void bmi__flow_place_end(struct flow *flow);
/* Submits the flow's task, for the owner of its next step. Returns 0 or an error of the task
 * manager. */
int bmi__flow_submit(struct flow *flow, bmi_task_function function);

/* ---- buffers.c ------------------------------------------------------------------------------- */

/* Sets the buffer's memory, by its other members; NULL: there is none. */
void bmi__buffer_get(struct flow_buffer *buffer);
void bmi__buffer_put(const struct flow_buffer *buffer);
/* Called with the last flow context of the instance. */
void bmi__buffers_free(const struct bmi_instance *instance);
/* In a child of fork(). */
void bmi__buffers_forget(void);

/* ---- chunk.c --------------------------------------------------------------------------------- */

/* Cuts the next chunk. Returns 1, 0 (there is none), a negated BMI error, or CHUNK_CUT_LATER: the
 * walk's budget is used up, and the next call continues with this chunk. */
enum { CHUNK_CUT_LATER = 2 };
int bmi__chunk_cut(struct flow *flow, struct flow_chunk *chunk);
/* Begin to fill or to empty. Return 1 (done), 0 (an operation is under way), or a negated BMI
 * error, with chunk->actual set if it is done. */
int bmi__chunk_fill(struct flow_chunk *chunk);
int bmi__chunk_empty(struct flow_chunk *chunk);
/* The chunk's stream list begins `bytes` later, for the rest of a short operation. */
void bmi__chunk_skip(struct flow_chunk *chunk, bmi_size_t bytes);
/* The last operation of a flow: an empty message (end of stream), or the stream's flush. */
int bmi__chunk_end_of_stream(struct flow_chunk *chunk);
int bmi__chunk_flush(struct flow_chunk *chunk);
/* Call it after a post to a network end: returns the cause if a connection of the end's address has
 * ended since the flow began, else 0. In that case the operation is for another connection, over
 * which the rest of the flow never comes. */
bmi_error_code_t bmi__chunk_lost(const struct flow_chunk *chunk);
void bmi__chunk_cancel(struct flow_chunk *chunk);
void bmi__chunk_free(struct flow_chunk *chunk);

#endif
