/* SPDX-License-Identifier: BSD-3-Clause
 *
 * dir.h - inside the dir backend: how a store lies on a disk.
 *
 *     bmi-trove              one line, "bmi-trove 1": the version. Written last when a store is
 * made lock                   locked (flock) while a process has the store open; its number stands
 * in it keys/                  LMDB: all key/values collections/00000001/  a collection, its number
 * in hexadecimal ab/                objects by the upper 8 bits of their number ab00000000000001 an
 * object's stream
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
    pid_t owner; /* who took the lock; 0: nobody */
    /* Exclusive while a collection's empty folders are removed, shared while a file is made or
     * removed in one of them. The outermost lock. */
    pthread_rwlock_t buckets;
    struct trove_files files;
    struct trove_keys *keys;
    struct trove_ring *ring; /* NULL: tasks move all bytes */
};

/* layout.c: makes, checks and locks a store; fills folder, collections, lock. */
int bmi__dir_open(struct trove_dir *dir, const char *path, bool create, char *error,
                  size_t error_size);
void bmi__dir_close(struct trove_dir *dir);
int bmi__dir_sync(int at, const char *name);
int bmi__dir_collection_create(struct bmi_trove_store *store, bmi_trove_collection_t collection);
int bmi__dir_collection_remove(struct bmi_trove_store *store, bmi_trove_collection_t collection);
int bmi__dir_collection_next(struct bmi_trove_store *store, bmi_trove_collection_t *collection);
int bmi__dir_objects(struct trove_op *op);

#endif
