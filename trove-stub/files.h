/* SPDX-License-Identifier: BSD-3-Clause
 *
 * files.h - the open files of a dir store: one for each object in use, kept open for the next use;
 * the file that was unused longest is closed first. Its lock is innermost; the only system call
 * under it is close. A file is opened without the lock, and its object may be removed meanwhile: a
 * file is added only if no object was removed since before it was opened.
 *
 * The system reports a failed write-back once for each opening of a file, and treats the data as
 * written from then on. So a file records that a flush of it failed, and stays open.
 */
#ifndef TROVE_FILES_H
#define TROVE_FILES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct trove_file {
    uint32_t collection;
    uint64_t object;
    int fd;
    uint32_t users;                   /* lock */
    bool gone;                        /* lock: removed; closed after the last use */
    atomic_int flush_error;           /* negated: a flush failed, and so do all later ones */
    atomic_bool named;                /* its entry in the folders is on disk, too */
    struct trove_file *same_bucket;   /* lock */
    struct trove_file *older, *newer; /* lock: list of files without users */
};

struct trove_file_list {
    struct trove_file *oldest, *newest;
};

struct trove_files {
    pthread_mutex_t lock;
    struct trove_file **buckets; /* lock; bucket_count, a power of 2 */
    uint32_t bucket_count;
    uint32_t count, most; /* lock: open files; most to keep open */
    uint64_t removals;    /* lock: number of forgotten objects */
    /* lock: without users: those that may be closed, and those whose flush failed */
    struct trove_file_list idle, failed;
};

bool bmi__files_open(struct trove_files *files, uint32_t most);
/* Closes all files; none may have a user. Returns 0 or a negated errno of a close. */
int bmi__files_close(struct trove_files *files);
/* The object's file, if it is open; it is the caller's until put. */
struct trove_file *bmi__files_find(struct trove_files *files, uint32_t collection, uint64_t object);
/* The number of forgotten objects until now. */
uint64_t bmi__files_removals(struct trove_files *files);
/* Adds a file that was opened after `removals` was read. If another thread has added it meanwhile,
 * returns that one and closes fd. Returns 0, or, with fd closed, -ENOMEM or -EAGAIN: an object was
 * removed since, perhaps this one; open it again. */
int bmi__files_add(struct trove_files *files, uint32_t collection, uint64_t object, int fd,
                   uint64_t removals, struct trove_file **added);
/* Records the result of a flush of the file. Returns it, or the error of an earlier flush. */
int bmi__file_flushed(struct trove_file *file, int result);
/* No descriptor is left: closes half of the unused files, the longest unused first. Returns whether
 * there was one. */
bool bmi__files_make_room(struct trove_files *files);
void bmi__files_put(struct trove_files *files, struct trove_file *file);
/* The object was removed: its file is not found any more. */
void bmi__files_forget(struct trove_files *files, uint32_t collection, uint64_t object);

#endif
