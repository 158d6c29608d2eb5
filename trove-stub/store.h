/* SPDX-License-Identifier: BSD-3-Clause
 *
 * store.h - inside trove-stub: stores, operations, and what a backend is.
 *
 * An operation is run once, from beginning to end: within its post where the backend does not block
 * (mem, null), else by a task that may block, or, for bytes of an open file, in pieces by io_uring.
 * Whoever runs it owns all of it; only `cancelled` is set from elsewhere. Inside, errors are
 * negated errno values; bmi_status_of translates at completion.
 */
#ifndef TROVE_STORE_H
#define TROVE_STORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

#include "bmi/task.h"
#include "bmi/trove.h"
#include "trove-stub/completion.h"

enum trove_what {
    TROVE_READ,
    TROVE_WRITE,
    TROVE_RESIZE,
    TROVE_FLUSH,
    TROVE_SIZE,
    TROVE_CREATE,
    TROVE_REMOVE,
    TROVE_OBJECTS,
    TROVE_GET,
    TROVE_PUT,
    TROVE_REMOVE_KEYS,
    TROVE_ITERATE
};

enum { TROVE_PIECE_SEGMENTS = 64 }; /* of memory, moved by one call */

/* A piece of an operation: one range of the stream, and memory for it. */
struct trove_piece {
    struct iovec memory[TROVE_PIECE_SEGMENTS];
    int count;
    bmi_size_t offset, size;
};

struct trove_op {
    struct bmi__posted posted; /* first */
    struct bmi_task task;
    struct bmi_trove_place place;
    enum trove_what what;
    unsigned flags;
    atomic_bool cancelled;
    bool has_task;          /* the task may be submitted; the space's lock */
    bool finished;          /* no more pieces */
    int delay_ms;           /* injected */
    int fault;              /* injected: a negated errno or BMI error, or 0 */
    bool faulty;            /* fault and `most` are injected */
    bmi_size_t actual;      /* moved so far */
    bmi_size_t total, most; /* most: stop there (injected) */
    bmi_size_t *actual_out;
    /* reads and writes: lists, and where we are in them */
    void *const *buffers;
    const bmi_size_t *sizes, *offsets, *stream_sizes;
    int count, stream_count;
    int buffer, stream;                  /* entries that are next */
    bmi_size_t buffer_done, stream_done; /* of these */
    struct {
        void *buffer;
        bmi_size_t size, offset;
    } one; /* a list of one */
    /* the others */
    struct bmi_trove_pair *pairs;
    const struct bmi_trove_pair *expected; /* puts; or NULL */
    struct bmi_trove_pair *old;            /* puts: what was there; or NULL */
    bmi_size_t *rooms;                     /* value_size of each of `old` at the post */
    struct bmi_trove_position *position;
    bmi_trove_object_t *objects, *object_position;
    bmi_size_t *size_out;
    bmi_size_t new_size;
    void *object;                       /* the backend's, between begin and end */
    int (*within)(struct trove_op *op); /* dir: called within a transaction of the key/values */
    struct trove_piece *piece;          /* dir with io_uring: under way */
    int ring_fd;                        /* the same: its file */
    struct trove_loan *loan;            /* writes: of whose memory it is; or NULL */
    bool syncing;                       /* the same: its last step, a flush, is under way */
};

struct trove_loan;
struct trove_block;

/* A backend: functions that block unless `immediate`. What gets an operation returns 0 or a negated
 * errno, and sets op->actual where it counts. Any number of threads at once. */
struct trove_backend {
    const char *name; /* "dir" */
    bool immediate;   /* nothing blocks: operations are run within their post */
    /* `path`: what stands behind the name's colon. The text is set on failure. */
    int (*open)(struct bmi_trove_store *store, const char *path, char *error, size_t error_size);
    int (*close)(struct bmi_trove_store *store);
    int (*space)(struct bmi_trove_store *store, bmi_size_t *total, bmi_size_t *available);
    int (*collection_create)(struct bmi_trove_store *store, bmi_trove_collection_t collection);
    int (*collection_remove)(struct bmi_trove_store *store, bmi_trove_collection_t collection);
    int (*collection_next)(struct bmi_trove_store *store, bmi_trove_collection_t *collection);
    /* Before and after the pieces of a read or write. */
    int (*begin)(struct trove_op *op);
    void (*end)(struct trove_op *op);
    ssize_t (*read)(struct trove_op *op, const struct trove_piece *piece);
    ssize_t (*write)(struct trove_op *op, const struct trove_piece *piece);
    int (*sync)(struct trove_op *op); /* after a write's last piece */
    int (*run)(struct trove_op *op);  /* all the others */
    /* Runs it asynchronously if it can: true. NULL: never. */
    bool (*start)(struct trove_op *op);
    /* See loan.h. Add a range to a loan; false: not this one. NULL: never. */
    bool (*lend)(struct trove_loan *loan, const struct bmi_trove_place *place, bmi_size_t offset,
                 bmi_size_t size);
    bool (*lend_blank)(struct trove_loan *loan, const struct bmi_trove_place *place,
                       bmi_size_t offset, bmi_size_t size);
    void (*loan_return)(struct bmi_trove_store *store, struct trove_block *block);
};

struct bmi_trove_store {
    const struct trove_backend *backend;
    void *state; /* the backend's */
    struct bmi_trove_settings settings;
    atomic_uint outstanding;
    pthread_mutex_t lock;  /* fault and its count; delays wait under it */
    pthread_cond_t delays; /* an operation that is delayed was cancelled */
    struct bmi_trove_fault fault;
    uint64_t fault_seen;
    void *held; /* holds.c's tree; lock */
    struct {
        _Atomic uint64_t operations, immediate, reads, read_bytes, writes, written_bytes, keys,
            errors, cancels, uring, tasks, faults, lent_bytes;
    } counts;
};

/* ---- holds.c ---- */

/* Has a removal wait for the object's holders. Returns 1: it waits, and may be over already; 0:
 * there are none; or a negated errno. */
int bmi__trove_removal_wait(struct trove_op *op);
/* A removal was cancelled: has it run, if it waited, to end so. The space's lock is held. Returns
 * whether it waited. */
bool bmi__trove_removal_cancel(struct trove_op *op);
/* A removal that may have waited has run, or will not: the object may be held again. */
void bmi__trove_removal_over(struct trove_op *op);
/* The store is being closed: all holds end. */
void bmi__trove_holds_end(struct bmi_trove_store *store);

/* Prepares the operation's task. Returns 0 or a negated errno. */
int bmi__trove_task_prepare(struct trove_op *op);

/* ---- pairs.c ---- */

/* Compares and fills what a put was asked to, of pair `index`, whose value is now `value` (NULL:
 * the key is absent). Returns whether it is as expected. */
bool bmi__pair_exchange(struct trove_op *op, int index, const void *value, size_t value_size);

extern const struct trove_backend bmi__trove_dir, bmi__trove_mem, bmi__trove_null;
extern struct bmi__space bmi__trove_space;

/* ---- trove.c --------------------------------------------------------------------------------- */

/* The post of an operation that was made up: what the post returns. Takes the operation. */
int bmi__trove_start(struct trove_op *op, bmi_trove_op_id_t *id, void *user_ptr,
                     bmi_trove_context_id_t context);
/* Ends the operation; it may be gone then. */
void bmi__trove_finish(struct trove_op *op, int error);
/* Has it run, from where it is, by a task that may block. */
void bmi__trove_by_task(struct trove_op *op);
/* Fills `error` with a printf-like text; returns `result`. */
int bmi__trove_explain(int result, char *error, size_t error_size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- move.c ---------------------------------------------------------------------------------- */

/* The next piece of a read or write; false: there is none, it has ended well. */
bool bmi__trove_piece_next(struct trove_op *op, struct trove_piece *piece);
/* Accounts for a piece of which `moved` bytes were moved, or which failed with a negated errno.
 * Returns 0, or the error with which the operation ends. */
int bmi__trove_piece_done(struct trove_op *op, struct trove_piece *piece, ssize_t moved);
/* Runs a read or write to its end, by the backend's blocking calls. */
int bmi__trove_move(struct trove_op *op);

/* ---- pairs.c --------------------------------------------------------------------------------- */

/* Gives a value that was found: to a pair of get, or with its key to one of iterate. */
void bmi__pair_found(struct bmi_trove_pair *pair, const void *value, size_t value_size);
void bmi__pair_next(struct bmi_trove_pair *pair, struct bmi_trove_position *position,
                    const void *key, size_t key_size, const void *value, size_t value_size);

/* ---- ring.c: io_uring; without it, rings are never there ------------------------------------- */

struct trove_ring;
/* NULL: not on this system. */
struct trove_ring *bmi__ring_open(unsigned entries);
void bmi__ring_close(struct trove_ring *ring);
/* Starts an operation whose file is open; false: the ring is full. */
bool bmi__ring_start(struct trove_ring *ring, struct trove_op *op, int fd);
/* Completes what rings have done. */
void bmi__rings_reap(void);
/* The descriptor that is readable while they may have something; or a negated errno. */
int bmi__rings_source(void);

/* ---- keys.c: key/values of the dir backend, in LMDB ------------------------------------------ */

struct trove_keys;
/* *keys is NULL where it was built without LMDB. */
int bmi__keys_open(struct trove_keys **keys, int folder, const char *path, bool careful,
                   char *error, size_t error_size);
int bmi__keys_close(struct trove_keys *keys);
int bmi__keys_sync(struct trove_keys *keys);
/* `exists` and `remove` are called between the transaction's begin and its end, so that an object
 * is never removed while keys are put. */
int bmi__keys_run(struct trove_keys *keys, struct trove_op *op, int (*exists)(struct trove_op *op));
int bmi__keys_remove_object(struct trove_keys *keys, struct trove_op *op,
                            int (*remove)(struct trove_op *op));
/* What a removal that failed has left, before the object is made; `is_gone` is called as those
 * are, and refuses by an error. */
int bmi__keys_remove_leftovers(struct trove_keys *keys, struct trove_op *op,
                               int (*is_gone)(struct trove_op *op));

#endif
