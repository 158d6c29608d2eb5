/* SPDX-License-Identifier: BSD-3-Clause
 *
 * server.h - a store, and the machines that serve it: see server.c.
 */
#ifndef STRIPEFS_SERVER_H
#define STRIPEFS_SERVER_H

#include <pthread.h>
#include <stdatomic.h>

#include <bmi/job.h>

#include "protocol.h"

/* Where things are in a store. */
enum { NAMES = 1, DATA = 2 }; /* collections */
enum { INDEX = 1 };           /* the object of NAMES that has all key/values */

struct slot;

/* share.c: whose request is served next. */
struct share;
struct shares {
    int most, most_each; /* requests that are served at a time, of all clients and of one */
    pthread_mutex_t lock;
    int served;          /* lock */
    struct share *first; /* lock */
};

struct server {
    struct bmi_job_context *jobs;
    struct bmi_trove_store *store;
    struct slot *slots; /* one for each request that is served at a time, one to hear of more */
    int slot_count;
    struct shares shares;
    uint64_t start; /* told in each reply */
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

void shares_open(struct shares *shares, int requests);
/* What is still kept is given back. */
void shares_close(struct shares *shares);
/* A request has come. Returns 1: it is to be served now; 0: it is kept, its turn comes; ENOMEM. */
int shares_admit(struct shares *shares, const struct BMI_unexpected_info *request);
/* A request of this client has been served. Returns whether there is a next one. */
bool shares_next(struct shares *shares, BMI_addr_t client, struct BMI_unexpected_info *next);

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
