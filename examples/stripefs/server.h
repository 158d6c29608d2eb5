/* SPDX-License-Identifier: BSD-3-Clause
 *
 * server.h - a store, and the machines that serve it: see server.c.
 */
#ifndef STRIPEFS_SERVER_H
#define STRIPEFS_SERVER_H

#include <stdatomic.h>

#include <bmi/job.h>

#include "protocol.h"

/* Where things are in a store. */
enum { NAMES = 1, DATA = 2 }; /* collections */
enum { INDEX = 1 };           /* the object of NAMES that has all key/values */

struct slot;

struct server {
    struct bmi_job_context *jobs;
    struct bmi_trove_store *store;
    struct slot *slots; /* requests that are served at a time */
    int slot_count;
    /* which server of how many this store is, once a client has said so: position << 16 | count */
    atomic_uint place;
};

/* Opens the store, made if it is not there. Says on standard error what is wrong. Returns 0 or -1.
 */
int server_open(struct server *server, const char *folder);
/* Starts `requests` machines, each of which serves one request after another. */
int server_start(struct server *server, int requests);
/* Ends the machines, and what server_open did. */
int server_close(struct server *server);

/* store.c: opens and checks; blocks. */
int store_open(struct server *server, const char *folder);

/* For tests: after `skip` operations of the store one fails, as on a full disk. */
void store_fault(struct server *server, uint64_t skip);

struct bmi_trove_place index_of(const struct server *server);
/* Whether a request is for this server; the first one tells the store what it is. */
int place_check(struct server *server, unsigned position, unsigned count);
/* The key of a path's metadata: 'N', the folder, a NUL, the name. Returns its size. */
bmi_size_t path_key(char *key, const char *path, size_t size);
/* The beginning of keys of a folder's entries. */
bmi_size_t folder_key(char *key, const char *path, size_t size);

#endif
