/* SPDX-License-Identifier: BSD-3-Clause
 * files.c - see files.h. */
#include "trove-stub/files.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

bool bmi__files_open(struct trove_files *files, uint32_t most)
{
    *files = (struct trove_files){.most = most, .bucket_count = 64};
    while (files->bucket_count < most && files->bucket_count < 1 << 20)
        files->bucket_count *= 2;
    files->buckets = calloc(files->bucket_count, sizeof *files->buckets);
    pthread_mutex_init(&files->lock, NULL);
    return files->buckets != NULL;
}

static struct trove_file **bucket_of(struct trove_files *files, uint32_t collection,
                                     uint64_t object)
{
    uint64_t mixed = (object ^ (uint64_t)collection << 32) * 0x9e3779b97f4a7c15u;
    return &files->buckets[(mixed >> 40) & (files->bucket_count - 1)];
}

static struct trove_file *find_locked(struct trove_files *files, uint32_t collection,
                                      uint64_t object)
{
    struct trove_file *file = *bucket_of(files, collection, object);
    while (file != NULL && (file->object != object || file->collection != collection))
        file = file->same_bucket;
    return file;
}

static bool has_failed(struct trove_file *file)
{
    return atomic_load(&file->flush_error) != 0;
}

int bmi__file_flushed(struct trove_file *file, int result)
{
    int none = 0;
    if (result == -EIO || result == -ENOSPC || result == -EDQUOT)
        atomic_compare_exchange_strong(&file->flush_error, &none, result);
    int error = atomic_load(&file->flush_error);
    return error != 0 ? error : result;
}

/* A flush can fail only while the file has a user: a file without users stays in its list. */
static struct trove_file_list *list_of(struct trove_files *files, struct trove_file *file)
{
    return has_failed(file) ? &files->failed : &files->idle;
}

/* Into and out of the lists of unused files. */
static void unused_enter_locked(struct trove_files *files, struct trove_file *file)
{
    struct trove_file_list *list = list_of(files, file);
    file->newer = NULL;
    file->older = list->newest;
    *(list->newest != NULL ? &list->newest->newer : &list->oldest) = file;
    list->newest = file;
}

static void unused_leave_locked(struct trove_files *files, struct trove_file *file)
{
    struct trove_file_list *list = list_of(files, file);
    *(file->older != NULL ? &file->older->newer : &list->oldest) = file->newer;
    *(file->newer != NULL ? &file->newer->older : &list->newest) = file->older;
}

static void unhash_locked(struct trove_files *files, struct trove_file *file)
{
    struct trove_file **link = bucket_of(files, file->collection, file->object);
    while (*link != file)
        link = &(*link)->same_bucket;
    *link = file->same_bucket;
    files->count--;
}

static int file_free(struct trove_file *file)
{
    int result = close(file->fd) != 0 ? -errno : 0;
    free(file);
    return result;
}

static int list_free(struct trove_file_list *list)
{
    int result = 0;
    for (struct trove_file *file = list->oldest, *next; file != NULL; file = next) {
        next = file->newer;
        int closed = file_free(file);
        result = result != 0 ? result : closed;
    }
    return result;
}

int bmi__files_close(struct trove_files *files)
{
    int idle = list_free(&files->idle), failed = list_free(&files->failed);
    int result = idle != 0 ? idle : failed;
    free(files->buckets);
    pthread_mutex_destroy(&files->lock);
    return result;
}

static struct trove_file *use_locked(struct trove_files *files, struct trove_file *file)
{
    if (file != NULL && file->users++ == 0)
        unused_leave_locked(files, file);
    return file;
}

struct trove_file *bmi__files_find(struct trove_files *files, uint32_t collection, uint64_t object)
{
    pthread_mutex_lock(&files->lock);
    struct trove_file *file = use_locked(files, find_locked(files, collection, object));
    pthread_mutex_unlock(&files->lock);
    return file;
}

uint64_t bmi__files_removals(struct trove_files *files)
{
    pthread_mutex_lock(&files->lock);
    uint64_t removals = files->removals;
    pthread_mutex_unlock(&files->lock);
    return removals;
}

int bmi__files_add(struct trove_files *files, uint32_t collection, uint64_t object, int fd,
                   uint64_t removals, struct trove_file **added)
{
    struct trove_file *new = calloc(1, sizeof *new);
    if (new == NULL) {
        close(fd);
        return -ENOMEM;
    }
    *new = (struct trove_file){.collection = collection, .object = object, .fd = fd, .users = 1};
    struct trove_file *evicted = NULL;
    pthread_mutex_lock(&files->lock);
    bool late = files->removals != removals;
    struct trove_file *file =
        late ? NULL : use_locked(files, find_locked(files, collection, object));
    if (file == NULL && !late) {
        struct trove_file **bucket = bucket_of(files, collection, object);
        new->same_bucket = *bucket;
        *bucket = new;
        if (++files->count > files->most && (evicted = files->idle.oldest) != NULL) {
            unused_leave_locked(files, evicted);
            unhash_locked(files, evicted);
        }
    }
    pthread_mutex_unlock(&files->lock);
    if (evicted != NULL)
        file_free(evicted);
    if (file != NULL || late)
        file_free(new);
    *added = late || file != NULL ? file : new;
    return late ? -EAGAIN : 0;
}

bool bmi__files_make_room(struct trove_files *files)
{
    struct trove_file *closing = NULL;
    uint32_t idle = 0;
    pthread_mutex_lock(&files->lock);
    for (struct trove_file *file = files->idle.oldest; file != NULL; file = file->newer)
        idle++;
    for (uint32_t left = (idle + 1) / 2; left > 0; left--) {
        struct trove_file *file = files->idle.oldest;
        unused_leave_locked(files, file);
        unhash_locked(files, file);
        file->older = closing;
        closing = file;
    }
    pthread_mutex_unlock(&files->lock);
    for (struct trove_file *next; closing != NULL; closing = next) {
        next = closing->older;
        file_free(closing);
    }
    return idle > 0;
}

void bmi__files_put(struct trove_files *files, struct trove_file *file)
{
    bool unused = false;
    pthread_mutex_lock(&files->lock);
    if (--file->users == 0) {
        unused = file->gone || (files->count > files->most && !has_failed(file));
        if (unused && !file->gone)
            unhash_locked(files, file);
        if (!unused)
            unused_enter_locked(files, file);
    }
    pthread_mutex_unlock(&files->lock);
    if (unused)
        file_free(file);
}

void bmi__files_forget(struct trove_files *files, uint32_t collection, uint64_t object)
{
    pthread_mutex_lock(&files->lock);
    files->removals++;
    struct trove_file *file = find_locked(files, collection, object);
    bool unused = file != NULL && file->users == 0;
    if (file != NULL) {
        unhash_locked(files, file);
        file->gone = true;
        if (unused)
            unused_leave_locked(files, file);
    }
    pthread_mutex_unlock(&files->lock);
    if (unused)
        file_free(file);
}
