/* SPDX-License-Identifier: BSD-3-Clause
 *
 * layout.c - creates, checks, locks and lists a dir store's folders. See dir.h. Files that must
 * survive a crash are flushed, and the folder that holds a new name too; the version file is
 * renamed into place last, so that a store is complete or does not exist.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trove-stub/dir.h"

#define VERSION "bmi-trove 1\n"

int bmi__dir_sync(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int result = fsync(fd) != 0 ? -errno : 0;
    close(fd);
    return result;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool is_ours(const char *name)
{
    static const char *const names[] = {".",         "..",          "lock",
                                        "keys",      "collections", "bmi-trove.new",
                                        "lost+found"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Opens a folder's entries; NULL with errno. */
static DIR *list_open(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    if (list == NULL && fd >= 0) {
        int error = errno;
        close(fd);
        errno = error;
    }
    return list;
}

/* Reads the next entry. Returns 1, 0 (there is none), or a negated errno. */
static int list_next(DIR *list, const struct dirent **one)
{
    errno = 0;
    *one = readdir(list);
    return *one != NULL ? 1 : -errno;
}

/* Whether the folder has only files of an interrupted creation: 1, 0, or a negated errno. */
static int folder_free(int folder)
{
    const struct dirent *one;
    int result;
    DIR *list = list_open(folder, ".");
    if (list == NULL)
        return -errno;
    while ((result = list_next(list, &one)) > 0 && is_ours(one->d_name))
        continue;
    closedir(list);
    return result < 0 ? result : result == 0;
}

/* Returns 0, -ENOENT (there is none), -EPROTO (with a text), or another negated errno. */
static int version_check(int folder, const char *path, char *error, size_t error_size)
{
    char text[64];
    int fd = openat(folder, "bmi-trove", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? -ENOENT
                               : bmi__trove_explain(-errno, error, error_size, "%s/bmi-trove: %s",
                                                    path, strerror(errno));
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    if (strcmp(text, VERSION) == 0)
        return 0;
    text[strcspn(text, "\n")] = '\0';
    if (strncmp(text, "bmi-trove ", 10) == 0)
        return bmi__trove_explain(-EPROTO, error, error_size,
                                  "%s: a store of version %s; this library has version 1", path,
                                  text + 10);
    return bmi__trove_explain(-EPROTO, error, error_size,
                              "%s: its file bmi-trove is not that of a store", path);
}

static int version_write(int folder)
{
    int fd = openat(folder, "bmi-trove.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return -errno;
    ssize_t length = (ssize_t)strlen(VERSION);
    ssize_t wrote = write(fd, VERSION, (size_t)length);
    int result = wrote == length ? 0 : wrote < 0 ? -errno : -ENOSPC;
    if (result == 0 && fsync(fd) != 0)
        result = -errno;
    close(fd);
    if (result == 0 && renameat(folder, "bmi-trove.new", folder, "bmi-trove") != 0)
        result = -errno;
    return result != 0 ? result : bmi__dir_sync(folder, ".");
}

/* Creates the folders except LMDB's, which is created when the store is opened, if it
 * is missing. */
static int folders_make(int folder)
{
    if (mkdirat(folder, "collections", 0777) != 0 && errno != EEXIST)
        return -errno;
    return version_write(folder);
}

static int lock_take(struct trove_dir *dir, const char *path, char *error, size_t error_size)
{
    char text[32];
    dir->lock = openat(dir->folder, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (dir->lock < 0)
        return bmi__trove_explain(-errno, error, error_size, "%s/lock: %s", path, strerror(errno));
    if (flock(dir->lock, LOCK_EX | LOCK_NB) != 0) {
        ssize_t got = pread(dir->lock, text, sizeof text - 1, 0);
        text[got > 0 ? got : 0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        return bmi__trove_explain(errno == EWOULDBLOCK ? -EBUSY : -errno, error, error_size,
                                  "%s: in use by process %s", path, text);
    }
    dir->owner = getpid();
    int length = snprintf(text, sizeof text, "%ld\n", (long)dir->owner);
    if (ftruncate(dir->lock, 0) != 0 || pwrite(dir->lock, text, (size_t)length, 0) != length)
        return bmi__trove_explain(errno != 0 ? -errno : -EIO, error, error_size, "%s/lock: %s",
                                  path, strerror(errno));
    return 0;
}

/* Flushes the folder that holds the new folder's name. */
static int parent_sync(const char *path)
{
    char *copy = strdup(path);
    if (copy == NULL)
        return -ENOMEM;
    int result = bmi__dir_sync(AT_FDCWD, dirname(copy));
    free(copy);
    return result == -EACCES ? 0 : result; /* a folder that may be searched, not read */
}

static int folder_open(struct trove_dir *dir, const char *path, bool create, char *error,
                       size_t error_size)
{
    bool made = create && mkdir(path, 0777) == 0;
    if (create && !made && errno != EEXIST)
        return bmi__trove_explain(-errno, error, error_size, "%s: %s", path, strerror(errno));
    int result = made ? parent_sync(path) : 0;
    if (result != 0)
        return bmi__trove_explain(result, error, error_size, "the folder of %s: %s", path,
                                  strerror(-result));
    dir->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->folder < 0)
        return bmi__trove_explain(-errno, error, error_size, "%s: %s", path, strerror(errno));
    return 0;
}

static int store_check(struct trove_dir *dir, const char *path, bool create, char *error,
                       size_t error_size)
{
    int result = version_check(dir->folder, path, error, error_size);
    if (result != -ENOENT)
        return result;
    int is_free = folder_free(dir->folder);
    if (is_free < 0)
        return bmi__trove_explain(is_free, error, error_size, "%s: %s", path, strerror(-is_free));
    if (!is_free)
        return bmi__trove_explain(create ? -ENOTEMPTY : -ENOENT, error, error_size,
                                  "%s: no store, and not empty", path);
    if (!create)
        return bmi__trove_explain(-ENOENT, error, error_size, "%s: no store there", path);
    return 1;
}

int bmi__dir_open(struct trove_dir *dir, const char *path, bool create, char *error,
                  size_t error_size)
{
    dir->folder = dir->collections = dir->lock = -1;
    pthread_rwlock_init(&dir->buckets, NULL);
    int result = folder_open(dir, path, create, error, error_size);
    if (result == 0 && (result = store_check(dir, path, create, error, error_size)) >= 0) {
        bool make = result == 1;
        result = lock_take(dir, path, error, error_size);
        if (result == 0 && make && (result = folders_make(dir->folder)) != 0)
            bmi__trove_explain(0, error, error_size, "%s: %s", path, strerror(-result));
    }
    if (result == 0) {
        dir->collections = openat(dir->folder, "collections", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir->collections < 0)
            result = bmi__trove_explain(-errno, error, error_size, "%s/collections: %s", path,
                                        strerror(errno));
    }
    if (result != 0)
        bmi__dir_close(dir);
    return result;
}

void bmi__dir_close(struct trove_dir *dir)
{
    const int fds[] = {dir->collections, dir->folder, dir->lock};
    if (dir->owner == getpid())
        flock(dir->lock, LOCK_UN); /* a child may have the descriptor, too */
    pthread_rwlock_destroy(&dir->buckets);
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* ---- collections ----------------------------------------------------------------------------- */

struct name {
    char text[16];
};

static struct name collection_name(bmi_trove_collection_id_t collection)
{
    struct name name;
    snprintf(name.text, sizeof name.text, "%08x", (unsigned)collection);
    return name;
}

int bmi__dir_collection_create(struct bmi_trove_store *store, bmi_trove_collection_id_t collection)
{
    struct trove_dir *dir = store->state;
    if (mkdirat(dir->collections, collection_name(collection).text, 0777) != 0)
        return -errno;
    return fsync(dir->collections) != 0 ? -errno : 0;
}

/* Removes the folders of a collection that hold no object. */
static int buckets_remove(int collection)
{
    char name[8];
    for (unsigned i = 0; i < 256; i++) {
        snprintf(name, sizeof name, "%02x", i);
        if (unlinkat(collection, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
            return errno == EEXIST ? -ENOTEMPTY : -errno;
    }
    return 0;
}

int bmi__dir_collection_remove(struct bmi_trove_store *store, bmi_trove_collection_id_t collection)
{
    struct trove_dir *dir = store->state;
    struct name name = collection_name(collection);
    int fd = openat(dir->collections, name.text, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    pthread_rwlock_wrlock(&dir->buckets);
    int result = buckets_remove(fd);
    if (result == 0 && unlinkat(dir->collections, name.text, AT_REMOVEDIR) != 0)
        result = errno == EEXIST ? -ENOTEMPTY : -errno;
    pthread_rwlock_unlock(&dir->buckets);
    close(fd);
    if (result == 0 && fsync(dir->collections) != 0)
        result = -errno;
    return result;
}

/* A file's name that is a number of `digits` hexadecimal digits. */
static bool number_read(const char *name, size_t digits, uint64_t *number)
{
    if (strlen(name) != digits || strspn(name, "0123456789abcdef") != digits)
        return false;
    *number = strtoull(name, NULL, 16);
    return true;
}

int bmi__dir_collection_next(struct bmi_trove_store *store, bmi_trove_collection_id_t *collection)
{
    struct trove_dir *dir = store->state;
    uint64_t number, least = UINT64_MAX;
    const struct dirent *one;
    int result;
    DIR *list = list_open(dir->collections, ".");
    if (list == NULL)
        return -errno;
    while ((result = list_next(list, &one)) > 0)
        if (number_read(one->d_name, 8, &number) && number >= *collection && number < least)
            least = number;
    closedir(list);
    if (result < 0 || least == UINT64_MAX)
        return result < 0 ? result : -ENOENT;
    *collection = (bmi_trove_collection_id_t)least;
    return 0;
}

/* ---- lists of objects ------------------------------------------------------------------------ */

static int number_order(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return a < b ? -1 : a > b;
}

struct numbers {
    uint64_t *list;
    size_t count, room;
};

static int numbers_add(struct numbers *numbers, uint64_t number)
{
    if (numbers->count == numbers->room) {
        size_t room = numbers->room > 0 ? numbers->room * 2 : 256;
        uint64_t *list = realloc(numbers->list, room * sizeof *list);
        if (list == NULL)
            return -ENOMEM;
        numbers->list = list;
        numbers->room = room;
    }
    numbers->list[numbers->count++] = number;
    return 0;
}

/* The objects of a bucket that come after `position`, sorted. */
static int bucket_read(int collection, unsigned bucket, uint64_t position, struct numbers *numbers)
{
    char name[8];
    uint64_t number;
    const struct dirent *one;
    int result;
    snprintf(name, sizeof name, "%02x", bucket);
    numbers->count = 0;
    DIR *list = list_open(collection, name);
    if (list == NULL)
        return errno == ENOENT ? 0 : -errno;
    while ((result = list_next(list, &one)) > 0) {
        if (number_read(one->d_name, 16, &number) && number > position)
            result = numbers_add(numbers, number);
        if (result < 0)
            break;
    }
    closedir(list);
    if (numbers->count > 1)
        qsort(numbers->list, numbers->count, sizeof *numbers->list, number_order);
    return result;
}

int bmi__dir_objects(struct trove_op *op)
{
    struct trove_dir *dir = op->place.store->state;
    struct numbers numbers = {0};
    struct name name = collection_name(op->place.collection);
    int collection = openat(dir->collections, name.text, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (collection < 0)
        return -errno;
    int result = 0;
    for (unsigned bucket = (unsigned)(*op->object_position >> 56);
         bucket < 256 && op->actual < op->count && result == 0; bucket++) {
        result = bucket_read(collection, bucket, *op->object_position, &numbers);
        for (size_t i = 0; i < numbers.count && result == 0 && op->actual < op->count; i++)
            op->objects[op->actual++] = numbers.list[i];
    }
    close(collection);
    free(numbers.list);
    if (result == 0 && op->actual > 0)
        *op->object_position = op->objects[op->actual - 1];
    return result;
}
