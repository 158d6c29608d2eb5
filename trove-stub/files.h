/* SPDX-License-Identifier: BSD-3-Clause
 *
 * files.h - the open files of a dir store: one for each object that is used, kept open for the next
 * use, the longest unused closed first. Its lock is innermost and never held over a system call but
 * close's. What is opened without it may be removed meanwhile: a file is added only if no object
 * was removed since before it was opened.
 *
 * The system tells once for each opening of a file that it could not write what it had, and takes
 * it for written from then on. So a file remembers that a flush of it failed, and stays open.
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
    atomic_int flush_error;           /* negated: a flush failed, and so do all that follow */
    atomic_bool named;                /* the folders that hold it are on disk, too */
    struct trove_file *same_bucket;   /* lock */
    struct trove_file *older, *newer; /* lock: of those without users */
};

struct trove_file_list {
    struct trove_file *oldest, *newest;
};

struct trove_files {
    pthread_mutex_t lock;
    struct trove_file **buckets; /* lock; bucket_count, a power of 2 */
    uint32_t bucket_count;
    uint32_t count, most; /* lock: open; to be kept */
    uint64_t removals;    /* lock: how often one was forgotten */
    /* lock: without users; those that may be closed, and those a flush of which failed */
    struct trove_file_list idle, failed;
};

bool bmi__files_open(struct trove_files *files, uint32_t most);
/* Closes all; nobody uses one. Returns 0 or a negated errno of a close. */
int bmi__files_close(struct trove_files *files);
/* The object's file, if it is open; it is the caller's until put. */
struct trove_file *bmi__files_find(struct trove_files *files, uint32_t collection, uint64_t object);
/* How often one was forgotten so far. */
uint64_t bmi__files_removals(struct trove_files *files);
/* Adds one that was opened after `removals` was asked for; gives the one that somebody else added
 * meanwhile, closing fd. Returns 0, or, with fd closed, -ENOMEM or -EAGAIN: an object was removed
 * since, perhaps this one; it is to be opened again. */
int bmi__files_add(struct trove_files *files, uint32_t collection, uint64_t object, int fd,
                   uint64_t removals, struct trove_file **added);
/* Notes what a flush of the file came to. Returns it, or what one before failed with. */
int bmi__file_flushed(struct trove_file *file, int result);
/* Descriptors are used up: closes half of those that nobody uses, the longest unused first. Returns
 * whether there was one. */
bool bmi__files_make_room(struct trove_files *files);
void bmi__files_put(struct trove_files *files, struct trove_file *file);
/* The object was removed: its file is not found any more. */
void bmi__files_forget(struct trove_files *files, uint32_t collection, uint64_t object);

#endif
