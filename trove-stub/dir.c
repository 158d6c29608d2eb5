/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dir.c - the backend dir: an object is a file, its key/values are in LMDB. See dir.h.
 *
 * An object exists if its file does. Its key/values are removed, and put, in transactions of LMDB,
 * which has one writer at a time; a file is removed within a transaction, so that no key is put for
 * an object that is being removed. Keys that a crash between the two leaves are removed when an
 * object of that number is created again.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "bmi/base/crypto.h"
#include "bmi/base/instance.h"
#include "trove-stub/dir.h"
#include "trove-stub/limit.h"

struct object_path {
    char text[48]; /* 00000001/ab/ab00000000000001 */
};

static struct object_path path_of(const struct trove_op *op)
{
    struct object_path path;
    snprintf(path.text, sizeof path.text, "%08x/%02x/%016llx", (unsigned)op->place.collection,
             (unsigned)(op->place.object >> 56), (unsigned long long)op->place.object);
    return path;
}

static struct trove_dir *dir_of(const struct trove_op *op)
{
    return op->place.store->state;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Whether a failed open is worth another try. */
static bool room_made(struct trove_dir *dir, int result)
{
    return (result == -EMFILE || result == -ENFILE) && bmi__files_make_room(&dir->files);
}

/* Opens a file below the folder of collections. If no descriptor is left, closes unused kept files
 * first. Returns the descriptor, or a negated errno. */
static int object_open(struct trove_dir *dir, const char *path, int flags)
{
    int fd;
    do {
        fd = openat(dir->collections, path, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0666);
        fd = fd < 0 ? -errno : fd;
    } while (room_made(dir, fd));
    return fd;
}

static int dir_begin(struct trove_op *op)
{
    struct trove_dir *dir = dir_of(op);
    if (op->object != NULL)
        return 0; /* io_uring has begun it */
    op->object = bmi__files_find(&dir->files, op->place.collection, op->place.object);
    if (op->object != NULL)
        return 0;
    struct trove_file *file = NULL;
    int result;
    do {
        uint64_t removals = bmi__files_removals(&dir->files);
        int fd = object_open(dir, path_of(op).text, 0);
        if (fd < 0)
            return fd == -ENOTDIR ? -ENOENT : fd;
        result = bmi__files_add(&dir->files, op->place.collection, op->place.object, fd, removals,
                                &file);
    } while (result == -EAGAIN);
    op->object = file;
    return result;
}

static void dir_end(struct trove_op *op)
{
    if (op->object != NULL)
        bmi__files_put(&dir_of(op)->files, op->object);
    op->object = NULL;
}

static int fd_of(const struct trove_op *op)
{
    return ((struct trove_file *)op->object)->fd;
}

static ssize_t dir_read(struct trove_op *op, const struct trove_piece *piece)
{
    ssize_t moved;
    do
        moved = preadv(fd_of(op), piece->memory, piece->count, piece->offset);
    while (moved < 0 && errno == EINTR);
    return moved < 0 ? -errno : moved;
}

static ssize_t dir_write(struct trove_op *op, const struct trove_piece *piece)
{
    ssize_t moved;
    do
        moved = pwritev(fd_of(op), piece->memory, piece->count, piece->offset);
    while (moved < 0 && errno == EINTR);
    return moved < 0 ? -errno : moved;
}

static int file_name_sync(struct trove_op *op);

/* Flushes the bytes, then the name, unless bytes were lost already. */
static int file_sync(struct trove_op *op, int (*sync)(int fd))
{
    int result = bmi__file_flushed(op->object, sync(fd_of(op)) != 0 ? -errno : 0);
    return result != 0 ? result : file_name_sync(op);
}

static int dir_sync_data(struct trove_op *op)
{
    return file_sync(op, fdatasync);
}

/* ---- objects --------------------------------------------------------------------------------- */

static int exists(struct trove_op *op)
{
    return faccessat(dir_of(op)->collections, path_of(op).text, F_OK, 0) != 0 ? -errno : 0;
}

/* Creates the folder of the object's bucket. */
static int bucket_make(struct trove_op *op, struct object_path path)
{
    struct trove_dir *dir = dir_of(op);
    path.text[11] = '\0'; /* 00000001/ab */
    return mkdirat(dir->collections, path.text, 0777) != 0 && errno != EEXIST ? -errno : 0;
}

static int folder_sync(struct trove_dir *dir, const char *path)
{
    int result;
    do
        result = bmi__dir_sync(dir->collections, path);
    while (room_made(dir, result));
    return result;
}

/* Flushes the folders that hold the file, after it was created or removed. */
static int bucket_sync(struct trove_op *op)
{
    struct object_path path = path_of(op);
    path.text[11] = '\0';
    int result = folder_sync(dir_of(op), path.text);
    path.text[8] = '\0';
    return result != 0 ? result : folder_sync(dir_of(op), path.text);
}

/* Flushes the folders of the file's name: for a file that was created without BMI_TROVE_SYNC, or
 * before this process opened it, the name may not be on disk yet. */
static int file_name_sync(struct trove_op *op)
{
    struct trove_file *file = op->object;
    if (atomic_load(&file->named))
        return 0;
    int result = bmi__file_flushed(file, bucket_sync(op));
    if (result == 0)
        atomic_store(&file->named, true);
    return result;
}

static int file_make(struct trove_op *op, int *fd)
{
    struct object_path path = path_of(op);
    for (int tries = 0; tries < 2; tries++) {
        *fd = object_open(dir_of(op), path.text, O_CREAT | O_EXCL);
        if (*fd >= 0 || *fd != -ENOENT)
            break;
        int result = bucket_make(op, path);
        if (result != 0)
            return result;
    }
    return *fd < 0 ? *fd : 0;
}

/* Whether the object is absent, and so may be created. */
static int is_gone(struct trove_op *op)
{
    int result = exists(op);
    return result == 0 ? -EEXIST : result == -ENOENT || result == -ENOTDIR ? 0 : result;
}

/* 0 stands for no object. */
static int number_random(bmi_trove_object_id_t *number)
{
    int result;
    do
        result = bmi__random(&bmi__default, number, sizeof *number);
    while (result == 0 && *number == 0);
    return result;
}

static void file_forget(struct trove_op *op)
{
    bmi__files_forget(&dir_of(op)->files, op->place.collection, op->place.object);
}

static int file_remove(struct trove_op *op)
{
    if (unlinkat(dir_of(op)->collections, path_of(op).text, 0) != 0)
        return errno == ENOTDIR ? -ENOENT : -errno;
    file_forget(op);
    return 0;
}

/* The predecessor's key/values are removed before the file exists: from then on others may put
 * theirs. */
static int dir_create(struct trove_op *op)
{
    struct trove_dir *dir = dir_of(op);
    bool choose = *op->objects == 0;
    int fd = -1, result = 0;
    op->place.object = *op->objects;
    do {
        if (choose)
            result = number_random(&op->place.object);
        if (result == 0 && dir->keys != NULL)
            result = bmi__keys_remove_leftovers(dir->keys, op, is_gone);
        if (result == 0)
            result = file_make(op, &fd);
    } while (choose && result == -EEXIST);
    if (result != 0)
        return result;
    file_forget(op); /* of a predecessor whose removal is under way */
    uint64_t removals = bmi__files_removals(&dir->files);
    if ((op->flags & BMI_TROVE_SYNC) != 0)
        result = fsync(fd) != 0 ? -errno : bucket_sync(op);
    if (result != 0) {
        file_remove(op);
        close(fd);
        return result;
    }
    struct trove_file *file; /* kept for the next use, which may open it again as well */
    int added =
        bmi__files_add(&dir->files, op->place.collection, op->place.object, fd, removals, &file);
    if (added == 0) {
        if (op->flags & BMI_TROVE_SYNC)
            atomic_store(&file->named, true);
        bmi__files_put(&dir->files, file);
    }
    *op->objects = op->place.object;
    return 0;
}

static int dir_remove(struct trove_op *op)
{
    struct trove_dir *dir = dir_of(op);
    int result =
        dir->keys != NULL ? bmi__keys_remove_object(dir->keys, op, file_remove) : file_remove(op);
    /* The file has been removed; key/values that a full disk kept are removed with its successor's
     * creation. */
    if (op->finished)
        result = 0;
    return result == 0 && (op->flags & BMI_TROVE_SYNC) != 0 ? bucket_sync(op) : result;
}

static int dir_stream(struct trove_op *op)
{
    struct stat status;
    int fd = fd_of(op), result = 0;
    if (op->what == TROVE_SIZE) {
        result = fstat(fd, &status) != 0 ? -errno : 0;
        if (result == 0)
            *op->size_out = status.st_size;
    } else if (op->what == TROVE_RESIZE) {
        result = ftruncate(fd, op->new_size) != 0 ? -errno : 0;
        if (result == 0 && (op->flags & BMI_TROVE_SYNC) != 0)
            result = file_sync(op, fsync);
    } else {
        result = file_sync(op, fsync);
        if (result == 0 && dir_of(op)->keys != NULL)
            result = bmi__keys_sync(dir_of(op)->keys);
    }
    return result == -EINVAL ? -EFBIG : result;
}

static int dir_change(struct trove_op *op)
{
    struct trove_dir *dir = dir_of(op);
    pthread_rwlock_rdlock(&dir->buckets);
    int result = op->what == TROVE_CREATE ? dir_create(op) : dir_remove(op);
    pthread_rwlock_unlock(&dir->buckets);
    return result;
}

static int dir_run(struct trove_op *op)
{
    if (op->what == TROVE_CREATE || op->what == TROVE_REMOVE)
        return dir_change(op);
    if (op->what == TROVE_OBJECTS)
        return bmi__dir_objects(op);
    if (op->what >= TROVE_GET)
        return dir_of(op)->keys != NULL ? bmi__keys_run(dir_of(op)->keys, op, exists) : -ENOSYS;
    int result = dir_begin(op);
    if (result == 0)
        result = dir_stream(op);
    dir_end(op);
    return result;
}

/* io_uring moves bytes of an open file. */
static bool dir_start(struct trove_op *op)
{
    struct trove_dir *dir = dir_of(op);
    if (dir->ring == NULL || (op->what != TROVE_READ && op->what != TROVE_WRITE))
        return false;
    struct trove_file *file = bmi__files_find(&dir->files, op->place.collection, op->place.object);
    op->object = file;
    if (file == NULL)
        return false;
    /* The folders of the name must be flushed, too, which the ring cannot do. */
    bool name =
        op->what == TROVE_WRITE && (op->flags & BMI_TROVE_SYNC) != 0 && !atomic_load(&file->named);
    return !name && bmi__ring_start(dir->ring, op, file->fd);
}

/* ---- stores ---------------------------------------------------------------------------------- */

static int dir_open(struct bmi_trove_store *store, const char *path, char *error, size_t error_size)
{
    if (bmi__crypto_start() < 0)
        return bmi__trove_explain(-EIO, error, error_size, "libcrypto cannot be used");
    struct trove_dir *dir = calloc(1, sizeof *dir);
    if (dir == NULL || !bmi__files_open(&dir->files, store->settings.open_files)) {
        free(dir);
        return bmi__trove_explain(-ENOMEM, error, error_size, "out of memory");
    }
    struct size_guard guard = bmi__size_guard();
    int result = bmi__dir_open(dir, path, store->settings.create, error, error_size);
    if (result != 0)
        goto undo_files;
    result =
        bmi__keys_open(&dir->keys, dir->folder, path, store->settings.careful, error, error_size);
    if (result != 0)
        goto undo_dir;
    if (!store->settings.no_uring)
        dir->ring = bmi__ring_open(store->settings.ring_entries);
    store->state = dir;
    bmi__size_unguard(&guard);
    return 0;

undo_dir:
    bmi__dir_close(dir);
undo_files:
    bmi__files_close(&dir->files);
    free(dir);
    bmi__size_unguard(&guard);
    return result;
}

static int dir_close(struct bmi_trove_store *store)
{
    struct trove_dir *dir = store->state;
    if (dir->ring != NULL)
        bmi__ring_close(dir->ring);
    int keys = dir->keys != NULL ? bmi__keys_close(dir->keys) : 0;
    int files = bmi__files_close(&dir->files);
    bmi__dir_close(dir);
    free(dir);
    return keys != 0 ? keys : files;
}

static int dir_space(struct bmi_trove_store *store, bmi_size_t *total, bmi_size_t *available)
{
    struct trove_dir *dir = store->state;
    struct statvfs status;
    if (fstatvfs(dir->folder, &status) != 0)
        return -errno;
    *total = (bmi_size_t)(status.f_blocks * status.f_frsize);
    *available = (bmi_size_t)(status.f_bavail * status.f_frsize);
    return 0;
}

const struct trove_backend bmi__trove_dir = {
    .name = "dir",
    .open = dir_open,
    .close = dir_close,
    .space = dir_space,
    .collection_create = bmi__dir_collection_create,
    .collection_remove = bmi__dir_collection_remove,
    .collection_next = bmi__dir_collection_next,
    .begin = dir_begin,
    .end = dir_end,
    .read = dir_read,
    .write = dir_write,
    .sync = dir_sync_data,
    .run = dir_run,
    .start = dir_start,
};
