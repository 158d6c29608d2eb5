/* SPDX-License-Identifier: BSD-3-Clause
 *
 * keys.c - key/values of a dir store, in one LMDB database: the key is collection (4 bytes), object
 * (8 bytes), then the program's key. Numbers are big-endian, so that an object's keys lie together
 * and in order.
 *
 * LMDB has one writer at a time and any number of readers, each with a snapshot; a transaction is
 * atomic, also when the process is killed. It begins and ends on one thread. Every transaction
 * holds `growing` for reading. A thread holds it for writing while it grows the map, which LMDB
 * allows between transactions only, or opens the environment again: after LMDB could not write its
 * meta page it refuses all transactions, and after its map could not grow it has none.
 *
 * After a failed flush no data is reported as on disk, until the store is opened anew.
 */
#include "trove-stub/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if BMI_WITH_LMDB
#include <lmdb.h>

#include "trove-stub/dir.h"
#include "trove-stub/index.h"

enum { PREFIX = 12, KEY_SPACE = PREFIX + BMI_TROVE_KEY_MAX };

static const size_t map_first = (size_t)1 << 30; /* address space, not memory or disk */

struct trove_keys {
    MDB_env *env; /* growing; NULL: it could not be opened again; a thread that needs it tries */
    MDB_dbi table;
    int folder; /* the store's */
    bool careful;
    atomic_bool flush_failed; /* the system reports lost bytes once: from then on this does */
    pthread_rwlock_t growing;
};

struct full_key {
    size_t size;
    unsigned char bytes[KEY_SPACE];
};

static int lmdb_errno(int result)
{
    switch (result) {
    case MDB_NOTFOUND:
        return -ENOENT;
    case MDB_KEYEXIST:
        return -EEXIST;
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_PANIC:
    case MDB_INVALID:
        return -EIO;
    case MDB_VERSION_MISMATCH:
        return -EPROTO;
    case MDB_TXN_FULL:
        return -E2BIG;
    case MDB_MAP_FULL:
        return -ENOSPC;
    default:
        return result > 0 ? -result : result < 0 ? -EIO : 0;
    }
}

static MDB_val key_make(struct full_key *full, const struct trove_op *op, const void *key,
                        bmi_size_t key_size)
{
    bmi__number_put(full->bytes, op->place.collection, 4);
    bmi__number_put(full->bytes + 4, op->place.object, 8);
    if (key_size > 0)
        memcpy(full->bytes + PREFIX, key, (size_t)key_size);
    full->size = PREFIX + (size_t)key_size;
    return (MDB_val){.mv_size = full->size, .mv_data = full->bytes};
}

/* ---- opening --------------------------------------------------------------------------------- */

/* LMDB creates this file sparse, maps it, and writes there: without room on the disk that would be
 * SIGBUS. So allocate it first. */
static int lock_file_make(int folder)
{
    enum { LMDB_LOCK_BYTES = 8192 };
    int fd = openat(folder, "keys/lock.mdb", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return errno;
    int result = posix_fallocate(fd, 0, LMDB_LOCK_BYTES);
    close(fd);
    return result;
}

static void env_close(struct trove_keys *keys)
{
    if (keys->env != NULL)
        mdb_env_close(keys->env);
    keys->env = NULL;
}

/* A program that this one starts does not inherit the file of the key/values. LMDB sets that flag
 * for its other files only. */
static void data_file_keep(MDB_env *env)
{
    int fd;
    if (mdb_env_get_fd(env, &fd) == 0)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* LMDB does not flush each transaction (careful: it flushes data before references to it); callers
 * that need a flush do it after the commit. */
static int env_open(struct trove_keys *keys, const char *path)
{
    unsigned flags = MDB_NOTLS | (keys->careful ? MDB_NOMETASYNC : MDB_NOSYNC);
    MDB_txn *txn;
    int result = mdb_env_create(&keys->env);
    if (result != 0) {
        keys->env = NULL;
        return result;
    }
    if ((result = mdb_env_set_mapsize(keys->env, map_first)) == 0)
        result = mdb_env_open(keys->env, path, flags, 0666);
    if (result == 0)
        data_file_keep(keys->env);
    if (result == 0 && (result = mdb_txn_begin(keys->env, NULL, 0, &txn)) == 0) {
        result = mdb_dbi_open(txn, NULL, 0, &keys->table);
        if (result == 0)
            result = mdb_txn_commit(txn);
        else
            mdb_txn_abort(txn);
    }
    if (result != 0)
        env_close(keys);
    return result;
}

int bmi__keys_open(struct trove_keys **keys, int folder, const char *path, bool careful,
                   char *error, size_t error_size)
{
    char name[4200];
    struct trove_keys *new = calloc(1, sizeof *new);
    if (new == NULL)
        return bmi__trove_explain(-ENOMEM, error, error_size, "out of memory");
    new->folder = folder;
    new->careful = careful;
    int length = snprintf(name, sizeof name, "%s/keys", path);
    int result = length < (int)sizeof name ? 0 : ENAMETOOLONG;
    if (result == 0 && mkdirat(folder, "keys", 0777) != 0 && errno != EEXIST)
        result = errno;
    if (result == 0)
        result = lock_file_make(folder);
    if (result == 0)
        result = env_open(new, name);
    if (result == 0) /* LMDB flushes its files, not the names of new ones */
        result = -bmi__dir_sync(folder, "keys");
    if (result == 0)
        result = -bmi__dir_sync(folder, ".");
    if (result != 0) {
        env_close(new);
        free(new);
        return bmi__trove_explain(lmdb_errno(result), error, error_size, "%s: %s", name,
                                  mdb_strerror(result));
    }
    pthread_rwlock_init(&new->growing, NULL);
    *keys = new;
    return 0;
}

/* ---- transactions ---------------------------------------------------------------------------- */

/* MDB_PANIC: the environment must be opened again. */
static int txn_begin(struct trove_keys *keys, unsigned flags, MDB_txn **txn)
{
    return keys->env != NULL ? mdb_txn_begin(keys->env, NULL, flags, txn) : MDB_PANIC;
}

/* Between transactions: opens the environment again, unless another thread has. It uses a path
 * through the folder's descriptor, which stays valid when the process changes its directory or the
 * store is moved. */
static int env_renew(struct trove_keys *keys)
{
    char name[64];
    MDB_txn *txn;
    snprintf(name, sizeof name, "/proc/self/fd/%d/keys", keys->folder);
    pthread_rwlock_wrlock(&keys->growing);
    int result = txn_begin(keys, MDB_RDONLY, &txn);
    if (result == 0) {
        mdb_txn_abort(txn);
    } else if (result == MDB_PANIC) {
        env_close(keys);
        result = env_open(keys, name);
    }
    pthread_rwlock_unlock(&keys->growing);
    return result;
}

/* Between transactions: doubles the map. LMDB unmaps the old map before it creates the new one:
 * without address space for that it has no map, and would access the unmapped one. So the
 * environment is closed, and a thread that needs it opens it again. */
static int map_grow(struct trove_keys *keys)
{
    MDB_envinfo info;
    pthread_rwlock_wrlock(&keys->growing);
    int result = 0;
    if (keys->env != NULL && (result = mdb_env_info(keys->env, &info)) == 0 &&
        (result = mdb_env_set_mapsize(keys->env, info.me_mapsize * 2)) != 0)
        env_close(keys);
    pthread_rwlock_unlock(&keys->growing);
    return result;
}

/* Call it with `growing` held. The system treats data that it could not write as written from then
 * on: the next flush would succeed although earlier data is lost. So the failure is recorded. */
static int flush(struct trove_keys *keys)
{
    if (atomic_load(&keys->flush_failed))
        return EIO;
    int result = mdb_env_sync(keys->env, 1);
    if (result != 0)
        atomic_store(&keys->flush_failed, true);
    return result;
}

static int sync_once(struct trove_keys *keys)
{
    pthread_rwlock_rdlock(&keys->growing);
    int result = keys->env != NULL ? flush(keys) : MDB_PANIC;
    pthread_rwlock_unlock(&keys->growing);
    return result;
}

/* Data that was put before LMDB was closed is in the file, which the flush covers. */
int bmi__keys_sync(struct trove_keys *keys)
{
    int result;
    do
        result = sync_once(keys);
    while (result == MDB_PANIC && (result = env_renew(keys)) == 0);
    return lmdb_errno(result);
}

int bmi__keys_close(struct trove_keys *keys)
{
    int result = bmi__keys_sync(keys);
    env_close(keys);
    pthread_rwlock_destroy(&keys->growing);
    free(keys);
    return result;
}

typedef int (*change)(struct trove_keys *keys, MDB_txn *txn, struct trove_op *op);

static int change_once(struct trove_keys *keys, struct trove_op *op, change what)
{
    MDB_txn *txn;
    bool synced = (op->flags & BMI_TROVE_SYNC) != 0;
    if (synced && atomic_load(&keys->flush_failed))
        return EIO; /* so that it is not visible and then reported as failed */
    pthread_rwlock_rdlock(&keys->growing);
    int result = txn_begin(keys, 0, &txn);
    if (result == 0) {
        result = what(keys, txn, op);
        if (result == 0)
            result = mdb_txn_commit(txn);
        else
            mdb_txn_abort(txn);
    }
    if (result == 0 && synced)
        result = flush(keys);
    pthread_rwlock_unlock(&keys->growing);
    return result;
}

/* Adds a page at the end of a file. */
static int page_append(int fd)
{
    static const char page[4096];
    struct stat status;
    if (fstat(fd, &status) != 0)
        return errno;
    off_t at = status.st_size, end = at + (off_t)sizeof page;
    while (at < end) {
        ssize_t wrote = pwrite(fd, page, (size_t)(end - at), at);
        if (wrote <= 0)
            return wrote < 0 ? errno : EIO;
        at += wrote;
    }
    return 0;
}

/* Finds the cause of a short write, which LMDB always reports as EIO: appending another page to the
 * file fails with the same cause. Within a transaction: no other thread writes there. */
static int cause_find(struct trove_keys *keys)
{
    MDB_txn *txn;
    int fd, result = 0;
    pthread_rwlock_rdlock(&keys->growing);
    if (txn_begin(keys, 0, &txn) == 0) {
        if (mdb_env_get_fd(keys->env, &fd) == 0)
            result = page_append(fd);
        mdb_txn_abort(txn);
    }
    pthread_rwlock_unlock(&keys->growing);
    return result != 0 ? result : EIO;
}

/* Runs one writing transaction; repeats it in a larger map if it does not fit, or after opening
 * LMDB again if that had failed before. Effects outside the table must come last in it. */
static int change_run(struct trove_keys *keys, struct trove_op *op, change what)
{
    int result;
    do
        result = change_once(keys, op, what);
    while ((result == MDB_MAP_FULL && (result = map_grow(keys)) == 0) ||
           (result == MDB_PANIC && (result = env_renew(keys)) == 0));
    if (result == EIO && !atomic_load(&keys->flush_failed))
        result = cause_find(keys);
    if (result == EIO && keys->careful) /* its commits flush */
        atomic_store(&keys->flush_failed, true);
    return lmdb_errno(result);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Compares with the present value and returns it. An empty value's data may be anywhere, but is not
 * NULL. */
static int put_compare(struct trove_keys *keys, MDB_txn *txn, struct trove_op *op)
{
    struct full_key full;
    bool same = true;
    for (int i = 0; i < op->count; i++) {
        MDB_val key = key_make(&full, op, op->pairs[i].key, op->pairs[i].key_size), value;
        int result = mdb_get(txn, keys->table, &key, &value);
        if (result != 0 && result != MDB_NOTFOUND)
            return result;
        same &= bmi__pair_exchange(op, i, result == 0 ? value.mv_data : NULL,
                                   result == 0 ? value.mv_size : 0);
    }
    return same ? 0 : EAGAIN;
}

static int put_all(struct trove_keys *keys, MDB_txn *txn, struct trove_op *op)
{
    struct full_key full;
    unsigned flags = (op->flags & BMI_TROVE_ONLY_NEW) != 0 ? MDB_NOOVERWRITE : 0;
    bool compares = op->expected != NULL || op->old != NULL;
    int result = compares ? put_compare(keys, txn, op) : 0;
    for (int i = 0; i < op->count && result == 0; i++) {
        struct bmi_trove_pair *pair = &op->pairs[i];
        MDB_val key = key_make(&full, op, pair->key, pair->key_size);
        MDB_val value = {.mv_size = (size_t)pair->value_size, .mv_data = pair->value};
        result = mdb_put(txn, keys->table, &key, &value, flags);
        pair->error = 0;
    }
    op->actual = op->count;
    return result;
}

static int remove_all(struct trove_keys *keys, MDB_txn *txn, struct trove_op *op)
{
    struct full_key full;
    op->actual = 0;
    for (int i = 0; i < op->count; i++) {
        struct bmi_trove_pair *pair = &op->pairs[i];
        MDB_val key = key_make(&full, op, pair->key, pair->key_size);
        int result = mdb_del(txn, keys->table, &key, NULL);
        if (result != 0 && result != MDB_NOTFOUND)
            return result;
        pair->error = result == 0 ? 0 : -BMI_ENOENT;
        op->actual += result == 0;
    }
    return 0;
}

static int get_all(struct trove_keys *keys, MDB_txn *txn, struct trove_op *op)
{
    struct full_key full;
    MDB_val value;
    for (int i = 0; i < op->count; i++) {
        struct bmi_trove_pair *pair = &op->pairs[i];
        MDB_val key = key_make(&full, op, pair->key, pair->key_size);
        int result = mdb_get(txn, keys->table, &key, &value);
        if (result != 0 && result != MDB_NOTFOUND)
            return result;
        pair->error = -BMI_ENOENT;
        if (result != 0)
            continue;
        bmi__pair_found(pair, value.mv_data, value.mv_size);
        op->actual++;
    }
    return 0;
}

static bool same_object(const MDB_val *key, const struct full_key *full)
{
    return key->mv_size > PREFIX && memcmp(key->mv_data, full->bytes, PREFIX) == 0;
}

static int iterate(struct trove_keys *keys, MDB_txn *txn, struct trove_op *op)
{
    struct full_key full;
    struct bmi_trove_position *position = op->position;
    MDB_cursor *cursor;
    MDB_val value, key = key_make(&full, op, position->key, position->key_size);
    int result = mdb_cursor_open(txn, keys->table, &cursor);
    if (result != 0)
        return result;
    result = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    if (result == 0 && key.mv_size == full.size && memcmp(key.mv_data, full.bytes, full.size) == 0)
        result = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    while (result == 0 && same_object(&key, &full) && op->actual < op->count) {
        bmi__pair_next(&op->pairs[op->actual++], position, (char *)key.mv_data + PREFIX,
                       key.mv_size - PREFIX, value.mv_data, value.mv_size);
        result = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    return result == MDB_NOTFOUND ? 0 : result;
}

static int read_once(struct trove_keys *keys, struct trove_op *op)
{
    MDB_txn *txn;
    pthread_rwlock_rdlock(&keys->growing);
    int result = txn_begin(keys, MDB_RDONLY, &txn);
    if (result == 0) {
        result = op->what == TROVE_GET ? get_all(keys, txn, op) : iterate(keys, txn, op);
        mdb_txn_abort(txn);
    }
    pthread_rwlock_unlock(&keys->growing);
    return result;
}

static int read_run(struct trove_keys *keys, struct trove_op *op)
{
    int result;
    do
        result = read_once(keys, op);
    while (result == MDB_PANIC && (result = env_renew(keys)) == 0);
    return lmdb_errno(result);
}

/* Within the transaction, after its lock was taken: the object exists, and stays. */
static int write_run(struct trove_keys *keys, MDB_txn *txn, struct trove_op *op)
{
    int result = op->within(op);
    if (result != 0)
        return -result;
    return op->what == TROVE_PUT ? put_all(keys, txn, op) : remove_all(keys, txn, op);
}

int bmi__keys_run(struct trove_keys *keys, struct trove_op *op, int (*exists)(struct trove_op *op))
{
    op->within = exists;
    int result = op->what == TROVE_GET || op->what == TROVE_ITERATE ? exists(op) : 0;
    if (result != 0)
        return result == -ENOTDIR ? -ENOENT : result;
    if (op->what == TROVE_GET || op->what == TROVE_ITERATE)
        return read_run(keys, op);
    result = change_run(keys, op, write_run);
    if (result != 0)
        op->actual = 0;
    return result == -ENOTDIR ? -ENOENT : result;
}

static int remove_keys(struct trove_keys *keys, MDB_txn *txn, struct trove_op *op)
{
    struct full_key full;
    MDB_cursor *cursor;
    MDB_val value, key = key_make(&full, op, NULL, 0);
    int result = mdb_cursor_open(txn, keys->table, &cursor);
    if (result != 0)
        return result;
    while ((result = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE)) == 0 &&
           same_object(&key, &full) && (result = mdb_cursor_del(cursor, 0)) == 0)
        key = key_make(&full, op, NULL, 0);
    mdb_cursor_close(cursor);
    return result == MDB_NOTFOUND ? 0 : result;
}

/* `within` comes last, and runs once only: a repeated transaction does not call it again. */
static int remove_object(struct trove_keys *keys, MDB_txn *txn, struct trove_op *op)
{
    int result = remove_keys(keys, txn, op);
    if (result != 0)
        return result;
    result = op->finished ? 0 : op->within(op);
    op->finished = result == 0;
    return -result;
}

int bmi__keys_remove_object(struct trove_keys *keys, struct trove_op *op,
                            int (*remove)(struct trove_op *op))
{
    op->within = remove;
    return change_run(keys, op, remove_object);
}

/* Within the transaction, after its lock was taken: the object does not exist, and no thread puts
 * keys. */
static int remove_leftovers(struct trove_keys *keys, MDB_txn *txn, struct trove_op *op)
{
    int result = op->within(op);
    return result != 0 ? -result : remove_keys(keys, txn, op);
}

int bmi__keys_remove_leftovers(struct trove_keys *keys, struct trove_op *op,
                               int (*is_gone)(struct trove_op *op))
{
    op->within = is_gone;
    return change_run(keys, op, remove_leftovers);
}

#else

int bmi__keys_open(struct trove_keys **keys, int folder, const char *path, bool careful,
                   char *error, size_t error_size)
{
    (void)folder, (void)path, (void)careful, (void)error, (void)error_size;
    *keys = NULL;
    return 0;
}

int bmi__keys_close(struct trove_keys *keys)
{
    (void)keys;
    return 0;
}

int bmi__keys_sync(struct trove_keys *keys)
{
    (void)keys;
    return 0;
}

int bmi__keys_run(struct trove_keys *keys, struct trove_op *op, int (*exists)(struct trove_op *op))
{
    (void)keys, (void)op, (void)exists;
    return -ENOSYS;
}

int bmi__keys_remove_object(struct trove_keys *keys, struct trove_op *op,
                            int (*remove)(struct trove_op *op))
{
    (void)keys;
    return remove(op);
}

int bmi__keys_remove_leftovers(struct trove_keys *keys, struct trove_op *op,
                               int (*is_gone)(struct trove_op *op))
{
    (void)keys;
    return is_gone(op);
}

#endif
