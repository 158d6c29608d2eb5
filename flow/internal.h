/* SPDX-License-Identifier: BSD-3-Clause
 *
 * internal.h - inside flow: a flow, its chunks, and the engine that they share.
 *
 * A flow is cut into chunks of buffer_size bytes. A chunk is filled from the source and emptied to
 * the destination; several are under way, in a ring of slots. Chunks are begun, sent, and received
 * in order; what storage does in between may end in any order.
 *
 * Rules. All of a flow belongs to its *step*, which one thread at a time runs: `wanted` counts who
 * asked for it since it last looked; who makes it 1 runs it or submits its task. From elsewhere
 * come only `kill` (cancel, deadline), and completions, which are put into `arrived` under `lock`.
 * What others may read while it runs is atomic. Locks: a flow's, the engine's (but those of its
 * contexts, which come first), and the space's are never held together, but cancel sets `kill`
 * under the space's.
 */
#ifndef FLOW_INTERNAL_H
#define FLOW_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "bmi/task.h"
#include "flow/request.h"
#include "trove-stub/completion.h"
#include "trove-stub/loan.h"

enum { FLOW_PIECES_MAX = 65536 }; /* of a chunk: both sides of a connection cut there, too */

enum chunk_state {
    CHUNK_IDLE,
    CHUNK_FILLING, /* an operation of the source has it */
    CHUNK_FULL,
    CHUNK_EMPTYING, /* an operation of the destination has it */
    CHUNK_DONE
};

/* A list of memory or of ranges, that grows. */
struct flow_list {
    void **buffers;      /* memory */
    bmi_size_t *offsets; /* or stream */
    bmi_size_t *sizes;
    int first, count, room; /* first: those before are done with */
};

struct flow_chunk {
    struct flow *flow;
    enum chunk_state state;
    bool on_network; /* whose operation it is */
    bool failed;
    uint64_t number;
    bmi_size_t partial; /* of one that failed: bytes that arrived nevertheless, from its start */
    int64_t op;         /* BMI's or trove's */
    bmi_size_t size;    /* bytes that it is to move */
    bmi_size_t moved;   /* of these, by the present operation's predecessors (short ones) */
    void *buffer;       /* of our own, where neither end is memory and the store lends none */
    bmi_size_t buffer_size;
    struct trove_loan loan; /* the store's memory in its place, unless it is empty */
    struct flow_list memory, stream_in, stream_out; /* storage as source, as destination */
    /* with the flow's lock: a completion */
    struct flow_chunk *next_arrived;
    bmi_error_code_t error;
    bmi_size_t actual;
};

/* Where the next bytes of a memory endpoint are. */
struct flow_memory {
    void *const *buffers;
    const bmi_size_t *sizes;
    int count, at;
    bmi_size_t start; /* request position of buffers[at] */
};

struct flow {
    struct bmi__posted posted; /* first */
    struct bmi_task task;
    struct bmi_cpuset near; /* where steps run, if is_near */
    bool is_near;
    struct flow *next_here; /* its thread's, between steps_begin and steps_end */
    atomic_uint wanted;
    _Atomic bmi_error_code_t kill; /* cancelled, or its time is over */
    struct bmi_flow_description what;
    struct flow_walk walk;
    struct flow_memory source_memory, destination_memory;
    uint32_t source_losses, destination_losses; /* of a network end's address, when it was posted */
    bool needs_buffers;
    bool any_memory; /* the network takes any memory alike, also the store's */
    bool walked;     /* there are no more chunks */
    bool cutting;    /* the next chunk is cut in part */
    int cut_pieces;  /* of it */
    bool killed;     /* kill was acted upon */
    bool draining;   /* goes on taking messages though it has failed */
    bool filling_ended;
    bool must_tell;  /* the receiver waits for an empty message */
    bool last_begun; /* the last operation was begun: farewell */
    bool more;       /* a step ended before all was done that can be done */
    bool finished;
    struct flow_chunk *chunks, farewell; /* buffer_count; the last operation's */
    uint64_t begun, sent, ended;         /* chunks: begun to fill, begun to empty, done in order */
    uint64_t broken_at;                  /* the first chunk that failed; UINT64_MAX */
    uint32_t operations;                 /* outstanding */
    bmi_size_t walked_bytes;             /* of all chunks so far */
    bmi_error_code_t error;
    _Atomic bmi_size_t total, taken, delivered, good, copied;
    _Atomic uint32_t in_flight;
    uint64_t deadline_ns;                  /* 0: none */
    struct flow *next_timed, **timed_link; /* engine's lock */
    pthread_mutex_t lock;
    struct flow_chunk *arrived, **arrived_end; /* lock */
};

extern struct bmi__space bmi__flow_space;

/* ---- engine.c ----------------------------------------------------------------------------------
 */

/* Of the first and last flow context. Return a negated BMI error. */
int bmi__engine_open(void);
void bmi__engine_close(void);
/* In a child of fork(): what is the parent's, its locks included, is left to it. */
void bmi__engine_forget(void);
/* Before a flow that uses the network. Returns a negated BMI error. */
int bmi__engine_network_open(void);
/* The contexts that flows' operations are posted to. */
bmi_context_id bmi__engine_network(void);
bmi_trove_context_id_t bmi__engine_storage(void);
void bmi__engine_poll(void);
int bmi__engine_source(void);
/* What completion.h wants of a space that has its own way to sleep. */
bool bmi__engine_sleeps(void);
void bmi__engine_sleep(struct bmi__space_waiter *sleeper, int64_t left_ns);
void bmi__engine_wake(void);
void bmi__engine_fd_used(void);
/* A task of ours was submitted: it is told to a program that waits for a descriptor of flow's. */
void bmi__engine_task_waits(void);
void bmi__engine_time(struct flow *flow);
void bmi__engine_untime(struct flow *flow);

/* ---- flow.c ------------------------------------------------------------------------------------
 */

/* Asks for a step. Any thread, any lock but the task manager's. */
void bmi__flow_wake(struct flow *flow);
/* Between these the caller's wakes are kept, and run by the second: a thread that waits does not
 * leave to a worker, which runs in holes only, what it waits for. */
void bmi__flow_steps_begin(void);
void bmi__flow_steps_end(void);
void bmi__flow_kill(struct flow *flow, bmi_error_code_t cause);
/* In a child of fork(): no step is kept. */
void bmi__flow_steps_forget(void);
/* A chunk's operation has completed. */
void bmi__flow_arrived(struct flow_chunk *chunk, bmi_error_code_t error, bmi_size_t actual);
void bmi__flow_free(struct flow *flow);

/* ---- step.c ------------------------------------------------------------------------------------
 */

/* Does all that can be done now. Sets flow->finished at the end. */
void bmi__flow_advance(struct flow *flow);

/* ---- buffers.c ---------------------------------------------------------------------------------
 */

#define BUFFER_OF_NOBODY ((BMI_addr_t)0) /* an address: any memory will do */
void *bmi__buffer_get(BMI_addr_t address, bmi_size_t size, enum bmi_op_type use);
void bmi__buffer_put(BMI_addr_t address, void *buffer, bmi_size_t size, enum bmi_op_type use);
/* With the last flow context. */
void bmi__buffers_free(void);
/* In a child of fork(). */
void bmi__buffers_forget(void);

/* ---- chunk.c -----------------------------------------------------------------------------------
 */

/* Cuts the next chunk. Returns 1, 0 (there is none), a negated BMI error, or CHUNK_CUT_LATER: the
 * walk's budget is used up, and the next call goes on with this chunk. */
enum { CHUNK_CUT_LATER = 2 };
int bmi__chunk_cut(struct flow *flow, struct flow_chunk *chunk);
/* Begin to fill or to empty. Return 1 (done), 0 (an operation is under way), or a negated BMI
 * error, with chunk->actual set where it is done. */
int bmi__chunk_fill(struct flow_chunk *chunk);
int bmi__chunk_empty(struct flow_chunk *chunk);
/* The chunk's stream list begins `bytes` later, for the rest of a short operation. */
void bmi__chunk_skip(struct flow_chunk *chunk, bmi_size_t bytes);
/* The last operation of a flow: an empty message, or the stream's flush. */
int bmi__chunk_farewell(struct flow_chunk *chunk);
int bmi__chunk_flush(struct flow_chunk *chunk);
/* After a post to a network end: whether a connection of its has ended since the flow began. What
 * was just posted is for another one then, where the rest of the flow never comes: returns why,
 * else 0. */
bmi_error_code_t bmi__chunk_lost(const struct flow_chunk *chunk);
void bmi__chunk_cancel(struct flow_chunk *chunk);
void bmi__chunk_free(struct flow_chunk *chunk);

#endif
