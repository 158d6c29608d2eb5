/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trove.h - storage for flows, tests, and small services: byte streams and key/values.
 *
 * A store holds collections (numbered by the program), a collection holds objects (64-bit numbers),
 * and an object has a byte stream and key/values. A store has a backend, which the caller names
 * when it opens the store: "dir:/path" (files in a folder, key/values in LMDB), "mem:" (memory,
 * gone when closed), "null:" (as mem, but it keeps only the size of a stream and reads back made-up
 * bytes).
 *
 * Work is posted and tested for as in bmi.h: a post returns 1 (done, no completion follows), 0
 * (pending: a test call of its context reports it once), or <0 (refused). Opening, closing and
 * collections are plain calls that block. Errors are BMI's, negated, everywhere
 * (bmi_status_string names them); sizes and offsets are in bytes, times in milliseconds.
 *
 * Threads. The task manager (bmi/task.h) does the work; every open store starts it (hooks only).
 * Work that may block is a task on its blocking pool; on systems with io_uring, that moves the
 * bytes of open files. This layer has no thread of its own, and BMI need not be initialized. A
 * child of fork() must open its own stores and contexts, and not use its parent's.
 *
 * One wait for several sources. Every context has a descriptor (bmi_trove_context_fd), readable
 * while bmi_trove_testcontext with 0 ms would report or do something: exactly what
 * BMI_GET_CONTEXT_FD promises, and bmi_flow_context_fd in flow.h. A loop over all three puts the
 * three descriptors into one epoll set (which is a descriptor itself, to be handed on), calls each
 * test with 0 ms, and sleeps in epoll_wait when all reported nothing. bmi_trove_context_notify in
 * addition calls a function at each completion, to mark or wake a queue of the caller's own.
 */
#ifndef BMI_TROVE_H
#define BMI_TROVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../bmi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- types ----------------------------------------------------------------------------------- */

struct bmi_trove_store;
typedef uint32_t bmi_trove_collection_id_t;
typedef uint64_t bmi_trove_object_id_t; /* never 0 */
typedef int64_t bmi_trove_op_id_t;      /* outstanding operation; 0 is none */
typedef int64_t bmi_trove_context_id_t;

#define BMI_TROVE_KEY_MAX 480          /* bytes of a key; at least 1 */
#define BMI_TROVE_VALUE_MAX (1 << 24)  /* bytes of a value; 0 is legal */
#define BMI_TROVE_OFFSET_MAX INT64_MAX /* a stream ends before it; a file system may allow less */
#define BMI_TROVE_LIST_MAX (1 << 20)   /* entries of a list */

/* An object's place. Copied by posts. */
struct bmi_trove_place {
    struct bmi_trove_store *store;
    bmi_trove_collection_id_t collection;
    bmi_trove_object_id_t object;
};

/* Flags of posts. */
enum bmi_trove_flag {
    BMI_TROVE_SYNC = 1,     /* on disk before it completes (writes, resize, create, remove, put) */
    BMI_TROVE_ONLY_NEW = 2, /* put: EEXIST if one of the keys exists, or is in the list twice */
    BMI_TROVE_ZEROS = 4,    /* reads: bytes beyond the stream's end read as zeros */
    BMI_TROVE_WHEN_RELEASED = 8 /* remove: after the last hold was released, see bmi_trove_hold */
};

/* One key/value. For put: key and value are read. For get: value and value_size give room,
 * value_size returns the value's whole size, error is 0, -ENOENT, or -EMSGSIZE (room too small:
 * value has as much as fits). For iterate: key and value give room, and both sizes are returned. */
struct bmi_trove_pair {
    void *key;
    bmi_size_t key_size;
    void *value;
    bmi_size_t value_size;
    bmi_error_code_t error; /* out */
};

/* The place where an iteration continues: after this key. All zero: at the start. Plain data, may
 * be stored. */
struct bmi_trove_position {
    uint32_t key_size;
    unsigned char key[BMI_TROVE_KEY_MAX];
};

/* ---- stores ---------------------------------------------------------------------------------- */

/* 0 takes the default. */
struct bmi_trove_settings {
    bool create;         /* make the store if the folder is absent or empty */
    bool no_uring;       /* move bytes of files by tasks that may block, even if the system has
                            io_uring */
    bool no_immediate;   /* never complete within the post */
    bool careful;        /* put without BMI_TROVE_SYNC: write data in order, so that a crash of the
                            machine (not just of the process) can never damage older key/values;
                            costs a disk flush each */
    uint32_t open_files; /* 256: files of a dir store kept open; fewer where the process has no
                            more descriptors */
    uint32_t ring_entries;    /* 128: operations under way in io_uring at a time */
    bmi_size_t immediate_max; /* 1 MiB: mem and null do larger reads and writes as tasks */
    bmi_size_t capacity;      /* mem: bytes of all streams, ENOSPC beyond; 0: no limit. Counted in
                                 blocks of 64 KiB that hold data */
};

/* Opens a store: "dir:/path", "mem:", "null:"; settings may be NULL. `error` (may be NULL) gets a
 * text with the cause on failure.
 * Returns: 0 and *store; EINVAL (unknown backend, NULL), ENOENT (no store there, and `create` is
 *          not set), ENOTDIR, ENOTEMPTY (`create` is set, but the folder holds something else),
 *          EPROTO (a store of another version, or a file that is no store), EBUSY (in use; the text
 *          names the process), EACCES, EROFS, ENOSPC, ENOMEM, EMFILE, EIO, EDEADLK (within a task,
 *          while another thread ends the task manager and may wait for that task).
 * Owns: *store is the caller's until bmi_trove_close; settings and strings are copied.
 * Threads: any. Blocks: for the disk. */
int bmi_trove_open(struct bmi_trove_store **store, const char *where,
                   const struct bmi_trove_settings *settings, char *error, size_t error_size);

/* Closes a store; outstanding operations end first. Key/values are flushed; bytes of streams that
 * were written without BMI_TROVE_SYNC are written back by the system later, unless flushed before.
 * Returns: 0; EINVAL (NULL); EIO, ENOSPC (flushing failed; it is closed nevertheless).
 * Owns: takes the store. Threads: no other thread may be using it. Blocks: for the disk. */
int bmi_trove_close(struct bmi_trove_store *store);

/* The space of the store's disk or capacity (mem without one: the machine's memory). null: both
 * INT64_MAX. Returns: 0; EINVAL, EIO. Owns: nothing. Threads: any. Blocks: for the disk. */
int bmi_trove_space(struct bmi_trove_store *store, bmi_size_t *total, bmi_size_t *available);

/* Makes a collection. Returns: 0; EEXIST, EINVAL (NULL), ENOSPC, ENOMEM, EIO. Owns: nothing.
 * Threads: any. Blocks: until it is on disk. */
int bmi_trove_collection_create(struct bmi_trove_store *store,
                                bmi_trove_collection_id_t collection);

/* Removes an empty collection. Returns: 0; ENOENT, ENOTEMPTY (it has objects), EBUSY, EIO, EINVAL.
 * Owns: nothing. Threads: any. Blocks: until it is on disk. */
int bmi_trove_collection_remove(struct bmi_trove_store *store,
                                bmi_trove_collection_id_t collection);

/* Finds the first collection whose number is >= *collection.
 * Returns: 0 and *collection; ENOENT (no more), EINVAL, EIO. Owns: nothing. Threads: any.
 * Blocks: for the disk. */
int bmi_trove_collection_next(struct bmi_trove_store *store, bmi_trove_collection_id_t *collection);

/* ---- contexts and tests ---------------------------------------------------------------------- */

/* Opens a context: it queues the completions of operations posted to it. It belongs to no store.
 * Returns: 0; EINVAL (NULL), ENOMEM, EMFILE. Owns: *context until bmi_trove_context_close.
 * Threads: any. Blocks: no. */
int bmi_trove_context_open(bmi_trove_context_id_t *context);

/* Closes a context: cancels its outstanding operations and waits for them, drops completions not
 * fetched.
 * Returns: 0; EINVAL. Owns: buffers are the caller's again. Threads: no other thread may be using
 *          it.
 * Blocks: until operations that the disk has begun have ended. */
int bmi_trove_context_close(bmi_trove_context_id_t context);

/* The context's descriptor, for poll, select, or epoll: see the top. Never read, write or close it.
 * Returns: the descriptor; EINVAL, EMFILE, ENOMEM. Owns: the library's, valid until the context is
 * closed. Threads: any. Blocks: no. */
int bmi_trove_context_fd(bmi_trove_context_id_t context);

/* Sets a function that is called once for each completion, after that was queued. The completing
 * thread calls it, with a lock held: `notify` may write to an eventfd, signal a condition, count,
 * or submit a task, and must not call bmi_trove_*. NULL removes it: no call is under way after the
 * return. With io_uring a completion appears only in a test call: also watch the descriptor.
 * Returns: 0; EINVAL. Owns: the argument is lent until NULL is set. Threads: any, but not within
 * notify.
 * Blocks: no. */
int bmi_trove_context_notify(bmi_trove_context_id_t context, void (*notify)(void *argument),
                             void *argument);

/* The tests are as those of bmi.h: max_idle_ms 0 polls, >0 waits up to that long and uses no CPU
 * (but runs tasks of the default manager), <0 is EINVAL. Each completion is reported once, in order
 * of completion. `actual` is the number of bytes read or written, or of pairs or objects; of a
 * failed operation, those known good. actual and user_ptr (and their arrays) may be NULL.
 * Returns: 1 if *outcount > 0, 0 if not; EINVAL, EMFILE or ENOMEM (max_idle_ms > 0: a waiting
 * thread needs a descriptor and some memory, and none is left). Owns: the operation's buffers and
 * arrays are the caller's again. Threads: any number at once. Blocks: up to max_idle_ms. */
int bmi_trove_test(bmi_trove_op_id_t op, int *outcount, bmi_error_code_t *error, bmi_size_t *actual,
                   void **user_ptr, int max_idle_ms, bmi_trove_context_id_t context);

/* Reports those of `incount` operations (ids of 0 are skipped) that have completed; outputs are
 * packed, index[k] is the place in ops. Otherwise as above. */
int bmi_trove_testsome(int incount, const bmi_trove_op_id_t *ops, int *outcount, int *index,
                       bmi_error_code_t *errors, bmi_size_t *actuals, void **user_ptrs,
                       int max_idle_ms, bmi_trove_context_id_t context);

/* Reports up to `incount` completions of the context. Otherwise as above. */
int bmi_trove_testcontext(int incount, bmi_trove_op_id_t *ops, int *outcount,
                          bmi_error_code_t *errors, bmi_size_t *actuals, void **user_ptrs,
                          int max_idle_ms, bmi_trove_context_id_t context);

/* Asks an operation to end: it completes once, with ECANCEL, or with its real result if that came
 * first. Work that a disk has begun is not undone: `actual` counts it.
 * Returns: 0, also if it has completed and was not fetched yet; EINVAL (no such operation or
 * context). Owns: buffers stay lent until the completion. Threads: any. Blocks: no. */
int bmi_trove_cancel(bmi_trove_op_id_t op, bmi_trove_context_id_t context);

/* ---- posts -----------------------------------------------------------------------------------
 * Common to all: `*op` is set before the completion can be seen; 0 if there will be none. Out
 * parameters are set before it, too. A place's object must exist, else ENOENT.
 * Returns: 0, 1, or refused: EINVAL (NULL, negative, a list whose totals differ, an invalid context
 *          or store, unknown flags), EFBIG (beyond BMI_TROVE_OFFSET_MAX), ENOMEM, EAGAIN (no thread
 *          can be started for it).
 * Completes with: 0, ENOENT, EIO, ENOSPC, EFBIG, EROFS, EMFILE, ENOMEM, ECANCEL, and the errors
 * named at each. An operation that ends immediately with an error returns that error from its post.
 * Owns: buffers, arrays and out parameters are lent until completion; the place is copied. Threads:
 * any.
 * Blocks: no (mem and null do up to immediate_max bytes of copying). */

/* Creates an object with the number *object. If that is 0, takes a free number and stores it there.
 * EEXIST: an object of that number exists. place->object is ignored. */
int bmi_trove_post_create(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                          bmi_trove_object_id_t *object, unsigned flags, void *user_ptr,
                          bmi_trove_context_id_t context);

/* Removes an object with its stream and key/values. With BMI_TROVE_WHEN_RELEASED: after the last
 * hold was released; until then the operation is pending and may be cancelled. It is also ENOENT if
 * another removal waits already. */
int bmi_trove_post_remove(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                          unsigned flags, void *user_ptr, bmi_trove_context_id_t context);

/* Holds an object of the store, for readers: a removal with BMI_TROVE_WHEN_RELEASED waits until
 * each hold was released. While such a removal waits, new holds are refused. A hold belongs to this
 * process and ends with the store; it does not affect other operations on the object. This call
 * does not check whether the object exists; a read does.
 * Returns: 0; ENOENT (a removal waits), EINVAL, ENOMEM. Owns: the hold is the caller's until
 * bmi_trove_release; the place is copied. Threads: any. Blocks: no. */
int bmi_trove_hold(const struct bmi_trove_place *place);

/* Ends one hold; the end of the last one starts a waiting removal.
 * Returns: 0; EINVAL: it is not held. Owns: takes the hold. Threads: any. Blocks: no. */
int bmi_trove_release(const struct bmi_trove_place *place);

/* Lists up to `count` objects of the collection in ascending order, beginning after *position (0 at
 * first), which advances. actual: their number; fewer than count: there were no more. A test call
 * reports it: this never completes within the post. */
int bmi_trove_post_objects(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                           bmi_trove_object_id_t *position, bmi_trove_object_id_t *objects,
                           int count, void *user_ptr, bmi_trove_context_id_t context);

/* Reads the pieces (stream_offsets[], stream_sizes[]) of the stream, in that order, into the pieces
 * (buffers[], sizes[]) of memory; the counts may differ, the totals may not. Zero-length pieces are
 * legal. *actual (may be NULL) and the completion return the number of bytes read. The first piece
 * that reaches the stream's end is the last one, and memory behind it is not changed. With
 * BMI_TROVE_ZEROS bytes beyond the end read as zeros, and count. Holes are zeros always. */
int bmi_trove_post_read_list(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                             void *const *buffers, const bmi_size_t *sizes, int count,
                             const bmi_size_t *stream_offsets, const bmi_size_t *stream_sizes,
                             int stream_count, bmi_size_t *actual, unsigned flags, void *user_ptr,
                             bmi_trove_context_id_t context);

/* Writes, in the same way; the stream grows as needed. On ENOSPC or EIO `actual` is the number of
 * bytes, in order of the lists, that were written before. */
int bmi_trove_post_write_list(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                              const void *const *buffers, const bmi_size_t *sizes, int count,
                              const bmi_size_t *stream_offsets, const bmi_size_t *stream_sizes,
                              int stream_count, bmi_size_t *actual, unsigned flags, void *user_ptr,
                              bmi_trove_context_id_t context);

/* One piece of each. */
int bmi_trove_post_read_at(bmi_trove_op_id_t *op, const struct bmi_trove_place *place, void *buffer,
                           bmi_size_t size, bmi_size_t offset, bmi_size_t *actual, unsigned flags,
                           void *user_ptr, bmi_trove_context_id_t context);
int bmi_trove_post_write_at(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                            const void *buffer, bmi_size_t size, bmi_size_t offset,
                            bmi_size_t *actual, unsigned flags, void *user_ptr,
                            bmi_trove_context_id_t context);

/* Cuts or extends the stream; added bytes read as zeros. */
int bmi_trove_post_resize(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                          bmi_size_t size, unsigned flags, void *user_ptr,
                          bmi_trove_context_id_t context);

/* Writes the object's stream and key/values to disk, with all changes that completed before the
 * post. If a flush, or an operation with BMI_TROVE_SYNC, fails with EIO or ENOSPC, data is lost:
 * from then on both fail, until the store is opened anew or, for a stream, the object
 * is removed. */
int bmi_trove_post_flush(bmi_trove_op_id_t *op, const struct bmi_trove_place *place, void *user_ptr,
                         bmi_trove_context_id_t context);

/* Reads the stream's size. */
int bmi_trove_post_size(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                        bmi_size_t *size, void *user_ptr, bmi_trove_context_id_t context);

/* Key/values of an object, as lists of 1 or more. A list is atomic, for all threads and across a
 * crash. Keys are bytes, in the order of memcmp. ENOSYS: the dir backend was built without LMDB.
 * `actual` is the number of pairs found, put, removed, or returned. */

/* Gets the values; each pair has its own error. The operation's own error is 0 unless the store
 * failed. */
int bmi_trove_post_get(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                       struct bmi_trove_pair *pairs, int count, void *user_ptr,
                       bmi_trove_context_id_t context);

/* Puts or replaces. EEXIST with BMI_TROVE_ONLY_NEW. EINVAL: a key or value beyond its maximum. With
 * BMI_TROVE_SYNC, EIO and ENOSPC may come from the flush that follows: then other threads may see
 * the list, although `actual` is 0 and a crash of the machine may lose it. */
int bmi_trove_post_put(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                       struct bmi_trove_pair *pairs, int count, unsigned flags, void *user_ptr,
                       bmi_trove_context_id_t context);

/* Puts, compares, and returns the former value, in one step.
 *   expected  NULL, or an array of `count`: nothing is put unless the value of each key is that of
 *             its entry (error 0: value, value_size; error -ENOENT: the key is absent), as a get
 *             has filled it. EAGAIN: one value differs. Keys of these entries are ignored
 *   old       NULL, or an array of `count` whose value and value_size give room: each is filled as
 *             by a get of the key before the put, also if that ends with EAGAIN. Keys of these
 *             entries are ignored
 * Otherwise as put. */
int bmi_trove_post_exchange(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                            struct bmi_trove_pair *pairs, const struct bmi_trove_pair *expected,
                            struct bmi_trove_pair *old, int count, unsigned flags, void *user_ptr,
                            bmi_trove_context_id_t context);

/* Removes the keys. The pair of an absent key gets the error -ENOENT; that is no failure. With
 * BMI_TROVE_SYNC, as put: after EIO and ENOSPC the keys may be gone. */
int bmi_trove_post_remove_keys(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                               struct bmi_trove_pair *pairs, int count, unsigned flags,
                               void *user_ptr, bmi_trove_context_id_t context);

/* Lists up to `count` pairs whose keys come after *position, which advances. Fewer: there were no
 * more. A pair's error is -EMSGSIZE if its room was too small: its sizes are those needed. value
 * NULL: only keys and the sizes of values. A test call reports `actual`: this never
 * completes within the post. */
int bmi_trove_post_iterate(bmi_trove_op_id_t *op, const struct bmi_trove_place *place,
                           struct bmi_trove_position *position, struct bmi_trove_pair *pairs,
                           int count, void *user_ptr, bmi_trove_context_id_t context);

/* ---- faults and statistics ------------------------------------------------------------------- */

enum bmi_trove_kind {
    BMI_TROVE_READS = 1,
    BMI_TROVE_WRITES = 2,   /* and resize */
    BMI_TROVE_SYNCS = 4,    /* flush */
    BMI_TROVE_KEYS = 8,     /* key/values */
    BMI_TROVE_OBJECTS = 16, /* create, remove, objects, size */
    BMI_TROVE_ALL = 31
};

/* A fault: operations of these kinds are counted as they are posted; the first `skip` succeed, the
 * next `times` (0: all) fail. */
struct bmi_trove_fault {
    unsigned kinds; /* 0: no more faults */
    uint64_t skip, times;
    bmi_error_code_t error; /* -BMI_EIO, -BMI_ENOSPC, ...: complete with it; 0: with success */
    bmi_size_t limit; /* most bytes that a read or write moves. With an error: these bytes move,
                         then it fails (0: none). Without an error: the operation is short (0: no
                         limit) */
    int delay_ms;     /* and each takes that much longer */
};

/* Sets the store's fault, in place of the one before, and starts counting. fault NULL: none.
 * Returns: 0; EINVAL. Owns: copied. Threads: any. Blocks: no. */
int bmi_trove_inject(struct bmi_trove_store *store, const struct bmi_trove_fault *fault);

struct bmi_trove_statistics {
    uint64_t operations; /* posted */
    uint64_t immediate;  /* of these, done within the post */
    uint64_t reads, read_bytes, writes, written_bytes;
    uint64_t keys; /* key/value operations */
    uint64_t errors, cancels;
    uint64_t uring;       /* pieces moved by io_uring */
    uint64_t tasks;       /* operations done by tasks */
    uint64_t faults;      /* injected */
    uint64_t lent_bytes;  /* of those read and written: not copied, a flow used the
                             store's memory */
    uint64_t outstanding; /* gauge */
};

/* Returns: 0; EINVAL. Owns: nothing. Threads: any. Blocks: no. */
/* a function with the name of a structure, as C allows */
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
int bmi_trove_statistics(struct bmi_trove_store *store, struct bmi_trove_statistics *statistics);
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#ifdef __cplusplus
}
#endif
#endif
