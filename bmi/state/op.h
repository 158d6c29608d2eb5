/* SPDX-License-Identifier: BSD-3-Clause
 *
 * op.h - operations: a table of slots with generations.
 *
 * Memory of operations is type-stable: it is returned to the system only when no instance is open,
 * so a stale id, or a pointer read without a lock, always points to *an* operation. Memory of peers
 * is an instance's, and is freed with it. So a thread that looks an operation up reads the peer
 * that it names, checks the generation, takes the peer's lock, and checks again: if the generation
 * is current, that peer is of the id's instance, which does not close during a call.
 *
 * An operation's life:  free -> POSTING (only the posting thread knows it)
 *   -> PENDING (id known) -> completed into its context -> taken out by a test call -> free
 *   -> or completed while POSTING: DONE_INLINE, taken by the posting thread itself.
 * Fields are guarded by the peer's lock until completion, by the context's lock from then on.
 */
#ifndef BMI_OP_H
#define BMI_OP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <urcu/wfcqueue.h>

#include "bmi/lock.h"
#include "bmi/method.h"
#include "bmi/state/wire.h"

struct context;
struct peer;
struct unmatched;
struct remote_memory;

/* EXCHANGE: a call, or a request that is served (bmi/rpc/exchange.h): it has no frames of its own,
 * and ends when that layer completes it. */
enum op_kind { OP_SEND, OP_SEND_UNEXPECTED, OP_RECV, OP_PING, OP_EXCHANGE };

enum __attribute__((packed)) op_state { OP_FREE, OP_POSTING, OP_PENDING, OP_DONE_INLINE };

/* Where an operation stands in the protocol, and so which list it is in. */
enum op_stage {
    STAGE_NONE,
    SEND_PENDING,  /* nothing went; in its tag queue, or the peer's unexpected queue */
    SEND_FRAME,    /* the message is one frame, with the method */
    SEND_RTS,      /* asked, waits for the receiver; in no list */
    SEND_STREAM,   /* goes as DATA frames; in the peer's streams */
    SEND_PUT,      /* a transfer moves it */
    SEND_PUT_TOLD, /* it is there; the frame that says so is with the method */
    RECV_POSTED,   /* waits for its message; in its tag queue's receives */
    RECV_ARRIVING, /* an eager message is being put to its memory */
    RECV_HELD,     /* will take an unmatched message that is still arriving */
    RECV_CLEARED,  /* CTS was sent: DATA or a put will come */
    RECV_GET,      /* a transfer fetches it */
    STAGE_NEXT,    /* posted while its peer's link was being closed: waits for the next one */
    STAGE_DYING,   /* failed; waits for the method to give its frame or transfer back */
};

enum op_flags {
    OP_ANNOUNCED = 1,     /* a receive: announced to the sender by an RTR */
    OP_UNASKED = 1,       /* a send: goes eager also if it is large: its receive will be in time */
    OP_CANCEL_ASKED = 2,  /* cancelled; until deadline_ns a receive waits for RTR_CANCELLED or a put
                             into it, a send for its put */
    OP_TOMBSTONE = 4,     /* of no program: discards the message of a receive whose cancel was not
                             answered */
    OP_COUNTED_LARGE = 8, /* counts in its link's large_expected */
    OP_FRAME_OUT = 16,    /* its frame is with the method */
    OP_STARTED = 32,      /* a send: its first DATA frame has been made */
    OP_CANCEL_WAITS = 32, /* a receive: cancelled; its sender has many others to answer first */
    OP_CANCELLED = 64,    /* a send whose rest is not sent; a receive whose rest is drained */
    OP_DISCARDING = 128,  /* its message is too large and is drained */
};

struct op {
    union {
        struct op *next;                /* list of its stage; then the context's `ready` */
        struct cds_wfcq_node completed; /* the context's `incoming` */
    };
    struct op *previous;
    struct op *peer_next, *peer_previous; /* all of the peer's */
    _Atomic(struct bmi_instance *) instance;
    _Atomic(struct peer *) peer;       /* NULL once completed */
    _Atomic(struct context *) context; /* read without a lock if only the id is known */
    void *user_ptr;
    struct bmi_segments list; /* all of the memory; moved bytes are behind the cursor */
    void *buffer;             /* the list of a single buffer */
    bmi_size_t size;
    bmi_size_t total;    /* message's size, or receive's capacity */
    bmi_size_t actual;   /* bytes done; result */
    bmi_size_t expected; /* receive: size of the message being received */
    uint64_t remote;     /* the other side's operation, or the used announcement's; tombstone: the
                            cancelled receive */
    struct unmatched *held;
    struct remote_memory *memory; /* registered for put or get; NULL if not */
    struct bmi_frame frame;
    uint64_t deadline_ns; /* cancel's grace */
    wire_tag tag;
    int error;              /* result: negated errno */
    uint32_t message_index; /* send: place in the peer's count of messages */
    uint32_t slot;
    atomic_uint generation;
    atomic_bool used_up; /* each generation was used since the first */
    _Atomic(enum op_state) state;
    uint8_t kind, stage, flags;
    atomic_bool ready; /* in its context's list of completed; context's lock */
};

/* The post and its completion may come in either order. Returns whether the caller is the first of
 * them: the operation was POSTING, and is in state `to` now. */
static inline bool bmi__op_is_first(struct op *op, enum op_state to)
{
    enum op_state posting = OP_POSTING;
    return bmi_replace(&op->state, &posting, to);
}

/* Takes a free operation for the instance, state POSTING, everything else zero. NULL: no memory.
 * Any thread. */
struct op *bmi__op_take(struct bmi_instance *instance);
/* Gives it back; its id is stale from now on. */
void bmi__op_give(struct op *op);
/* The operation of an id, or NULL. May be stale the next moment: see above. */
struct op *bmi__op_find(bmi_op_id_t id);
/* Whether an operation of this initialization had that id and was given back since. */
bool bmi__op_is_over(bmi_op_id_t id);
bmi_op_id_t bmi__op_id(const struct op *op);
/* Calls visit for each operation of the instance. Another thread may give one back meanwhile. */
void bmi__op_each(struct bmi_instance *instance, void (*visit)(struct op *op, void *argument),
                  void *argument);
/* Gives back the operations of an instance that ends. No thread uses them. */
void bmi__ops_give(struct bmi_instance *instance);
/* Frees the table of the process. No instance is open. */
void bmi__op_table_free(void);

/* Sets a cursor to the place of another one, for `left` bytes. It copies field by field: a copy in
 * wide pieces of fields that were just stored in narrow ones stalls the processor until all earlier
 * stores are done. */
static inline void bmi__segments_lend(struct bmi_segments *to, const struct bmi_segments *from,
                                      bmi_size_t left)
{
    to->buffers = from->buffers;
    to->sizes = from->sizes;
    to->count = from->count;
    to->index = from->index;
    to->offset = from->offset;
    to->left = left;
}

/* Doubly linked lists of operations by next/previous. */
struct op_list {
    struct op *first, *last;
};
void bmi__op_append(struct op_list *list, struct op *op);
void bmi__op_prepend(struct op_list *list, struct op *op);
void bmi__op_remove(struct op_list *list, struct op *op);

#endif
