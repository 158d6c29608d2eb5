/* SPDX-License-Identifier: BSD-3-Clause
 *
 * store.h - inside trove-stub: stores, operations, and the table of a backend.
 *
 * An operation runs once, from beginning to end: within its post if the backend does not block
 * (mem, null), else by a task that may block, or, for bytes of an open file, in pieces by io_uring.
 * The running thread owns all of it; other threads only set `cancelled`. Inside, errors are negated
 * errno values; bmi_status_of translates at completion.
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

enum { TROVE_PIECE_SEGMENTS = 64 }; /* segments of memory, moved by one call */

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
    /* reads and writes: lists, and the present position */
    void *const *buffers;
    const bmi_size_t *sizes, *offsets, *stream_sizes;
    int count, stream_count;
    int buffer, stream;                  /* the next entries */
    bmi_size_t buffer_done, stream_done; /* bytes of them that were moved */
    struct {
        void *buffer;
        bmi_size_t size, offset;
    } one; /* a list of one */
    /* the others */
    struct bmi_trove_pair *pairs;
    const struct bmi_trove_pair *expected; /* puts; or NULL */
    struct bmi_trove_pair *old;            /* puts: former values; or NULL */
    bmi_size_t *rooms;                     /* value_size of each of `old` at the post */
    struct bmi_trove_position *position;
    bmi_trove_object_id_t *objects, *object_position;
    bmi_size_t *size_out;
    bmi_size_t new_size;
    void *object;                       /* the backend's, between begin and end */
    int (*within)(struct trove_op *op); /* dir: called within a transaction of the key/values */
    struct trove_piece *piece;          /* dir with io_uring: under way */
    int ring_fd;                        /* the same: its file */
    struct trove_lease *lease;          /* writes: the lease that its memory is from; or NULL */
    bool syncing;                       /* the same: its last step, a flush, is under way */
};

struct trove_lease;
struct trove_block;

/* A backend: functions that block unless `immediate`. Functions with an operation return 0 or a
 * negated errno, and set op->actual if they count. Any number of threads at once. */
struct trove_backend {
    const char *name; /* "dir" */
    bool immediate;   /* no function blocks: operations run within their post */
    /* `path`: the text after the name's colon. The text of an error is set on failure. */
    int (*open)(struct bmi_trove_store *store, const char *path, char *error, size_t error_size);
    int (*close)(struct bmi_trove_store *store);
    int (*space)(struct bmi_trove_store *store, bmi_size_t *total, bmi_size_t *available);
    int (*collection_create)(struct bmi_trove_store *store, bmi_trove_collection_id_t collection);
    int (*collection_remove)(struct bmi_trove_store *store, bmi_trove_collection_id_t collection);
    int (*collection_next)(struct bmi_trove_store *store, bmi_trove_collection_id_t *collection);
    /* Before and after the pieces of a read or write. */
    int (*begin)(struct trove_op *op);
    void (*end)(struct trove_op *op);
    ssize_t (*read)(struct trove_op *op, const struct trove_piece *piece);
    ssize_t (*write)(struct trove_op *op, const struct trove_piece *piece);
    int (*sync)(struct trove_op *op); /* after a write's last piece */
    int (*run)(struct trove_op *op);  /* all other operations */
    /* Runs it asynchronously if it can: true. NULL: never. */
    bool (*start)(struct trove_op *op);
    /* See lease.h. Add a range to a lease; false: not this one. NULL: never. */
    bool (*lend)(struct trove_lease *lease, const struct bmi_trove_place *place, bmi_size_t offset,
                 bmi_size_t size);
    bool (*lend_blank)(struct trove_lease *lease, const struct bmi_trove_place *place,
                       bmi_size_t offset, bmi_size_t size);
    void (*lease_return)(struct bmi_trove_store *store, struct trove_block *block);
};

struct bmi_trove_store {
    const struct trove_backend *backend;
    void *state; /* the backend's */
    struct bmi_trove_settings settings;
    atomic_uint outstanding;
    pthread_mutex_t lock;  /* fault and its count; delays wait under it */
    pthread_cond_t delays; /* a delayed operation was cancelled */
    struct bmi_trove_fault fault;
    uint64_t fault_seen;
    void *held; /* holds.c's tree; lock */
    struct {
        _Atomic uint64_t operations, immediate, reads, read_bytes, writes, written_bytes, keys,
            errors, cancels, uring, tasks, faults, lent_bytes;
    } counts;
};

/* ---- holds.c ---- */

/* Makes a removal wait for the object's holders. Returns 1: it waits, and may have ended already;
 * 0: there are none; or a negated errno. */
int bmi__trove_removal_wait(struct trove_op *op);
/* A removal was cancelled: if it waits, submits it, so that it ends with ECANCEL. The space's lock
 * is held. Returns whether it waited. */
bool bmi__trove_removal_cancel(struct trove_op *op);
/* A removal that may have waited has run, or will not: the object may be held again. */
void bmi__trove_removal_over(struct trove_op *op);
/* The store is being closed: all holds end. */
void bmi__trove_holds_end(struct bmi_trove_store *store);

/* Prepares the operation's task. Returns 0 or a negated errno. */
int bmi__trove_task_prepare(struct trove_op *op);

/* ---- pairs.c ---- */

/* Compares, and fills the former value, as the put requests, for pair `index`, whose present value
 * is `value` (NULL: the key is absent). Returns whether it is as expected. */
bool bmi__pair_exchange(struct trove_op *op, int index, const void *value, size_t value_size);

extern const struct trove_backend bmi__trove_dir, bmi__trove_mem, bmi__trove_null;
extern struct bmi__space bmi__trove_space;

/* ---- trove.c --------------------------------------------------------------------------------- */

/* Posts an operation that was created; returns the post's result. Takes the operation. */
int bmi__trove_start(struct trove_op *op, bmi_trove_op_id_t *id, void *user_ptr,
                     bmi_trove_context_id_t context);
/* Ends the operation; it may be freed then. */
void bmi__trove_finish(struct trove_op *op, int error);
/* Lets a task that may block run it, from its present position. */
void bmi__trove_by_task(struct trove_op *op);
/* Fills `error` with a printf-like text; returns `result`. */
int bmi__trove_explain(int result, char *error, size_t error_size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- move.c ---------------------------------------------------------------------------------- */

/* The next piece of a read or write; false: there is none, it has ended without an error. */
bool bmi__trove_piece_next(struct trove_op *op, struct trove_piece *piece);
/* Accounts for a piece of which `moved` bytes were moved, or which failed with a negated errno.
 * Returns 0, or the error with which the operation ends. */
int bmi__trove_piece_done(struct trove_op *op, struct trove_piece *piece, ssize_t moved);
/* Runs a read or write to its end, by the backend's blocking calls. */
int bmi__trove_move(struct trove_op *op);

/* ---- pairs.c --------------------------------------------------------------------------------- */

/* Copies a found value: to a pair of get, or with its key to one of iterate. */
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
/* Completes operations that rings have finished. */
void bmi__rings_reap(void);
/* The descriptor that is readable while they may have completions; or a negated errno. */
int bmi__rings_source(void);

/* ---- keys.c: key/values of the dir backend, in LMDB ------------------------------------------ */

struct trove_keys;
/* *keys is NULL if it was built without LMDB. */
int bmi__keys_open(struct trove_keys **keys, int folder, const char *path, bool careful,
                   char *error, size_t error_size);
int bmi__keys_close(struct trove_keys *keys);
int bmi__keys_sync(struct trove_keys *keys);
/* `exists` and `remove` are called between the transaction's begin and its end, so that an object
 * is never removed while keys are put. */
int bmi__keys_run(struct trove_keys *keys, struct trove_op *op, int (*exists)(struct trove_op *op));
int bmi__keys_remove_object(struct trove_keys *keys, struct trove_op *op,
                            int (*remove)(struct trove_op *op));
/* Removes keys that a failed removal has left, before the object is created; `is_gone` is called
 * within the transaction as well, and refuses by an error. */
int bmi__keys_remove_leftovers(struct trove_keys *keys, struct trove_op *op,
                               int (*is_gone)(struct trove_op *op));

#endif
