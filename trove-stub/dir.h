/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dir.h - inside the dir backend: how a store lies on a disk.
 *
 *     bmi-trove              one line, "bmi-trove 1": the version. Written last in a new store
 *     lock                   locked (flock) while a process has the store open, whose id it holds
 *     keys/                  LMDB: all key/values
 *     collections/00000001/  a collection, by its number in hexadecimal
 *         ab/                objects, by the upper 8 bits of their number
 *             ab00000000000001   an object's stream
 */
#ifndef TROVE_DIR_H
#define TROVE_DIR_H

#include <pthread.h>

#include "trove-stub/files.h"
#include "trove-stub/store.h"

struct trove_dir {
    int folder;      /* the store's */
    int collections; /* its subfolder */
    int lock;
    pid_t owner; /* the process that took the lock; 0: none */
    /* Held for writing while a collection's empty folders are removed, for reading while a file is
     * created or removed in one of them. The outermost lock. */
    pthread_rwlock_t buckets;
    struct trove_files files;
    struct trove_keys *keys;
    struct trove_ring *ring; /* NULL: tasks move all bytes */
};

/* layout.c: creates, checks and locks a store; fills folder, collections, lock. */
int bmi__dir_open(struct trove_dir *dir, const char *path, bool create, char *error,
                  size_t error_size);
void bmi__dir_close(struct trove_dir *dir);
int bmi__dir_sync(int at, const char *name);
int bmi__dir_collection_create(struct bmi_trove_store *store, bmi_trove_collection_id_t collection);
int bmi__dir_collection_remove(struct bmi_trove_store *store, bmi_trove_collection_id_t collection);
int bmi__dir_collection_next(struct bmi_trove_store *store, bmi_trove_collection_id_t *collection);
int bmi__dir_objects(struct trove_op *op);

#endif
