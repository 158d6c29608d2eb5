/* SPDX-License-Identifier: BSD-3-Clause
 *
 * server.h - a store, and the state machines that serve it: see server.c. The job context runs one
 * machine at a time, so data that only machines use needs no lock.
 */
#ifndef STRIPEFS_SERVER_H
#define STRIPEFS_SERVER_H

#include <pthread.h>

#include <bmi/job.h>

#include "protocol.h"

/* The places of data in a store. */
enum { NAMES = 1, DATA = 2 }; /* collections */
enum { INDEX = 1 };           /* the object of NAMES that has all key/values */

enum { LISTED = 16, REPLY_RESERVE = 256, OBJECTS_LISTED = 4096, HEADER_ROOM = 64 };

struct share;
struct host;
struct session;
struct server;

/* Chooses the next request: share.c. */
struct shares {
    int most, most_client,
        most_host; /* requests served at a time: in all, for a client, for a host */
    pthread_mutex_t lock;
    int served, waiting; /* lock */
    struct share *first; /* lock */
    struct host *hosts;  /* lock */
};

/* Objects without a name, by client: session.c. */
enum { SESSION_BITS = 14 };
struct sessions {
    struct session *first;
    struct object *buckets[1 << SESSION_BITS];
};

/* The clients that are served, by patterns of the identity that they have proved: allow.c. */
enum { ALLOW_PATTERNS = 64 };
struct allow_list {
    const char *patterns[ALLOW_PATTERNS];
    int count; /* 0: all are served */
    uint64_t second;
    unsigned lines; /* logged within it */
};

/* A request that is being served. */
struct slot {
    struct server *server;
    struct BMI_unexpected_info info; /* its buffer is kept until the request has been served */
    struct sfs_request request;
    struct sfs_reply reply;
    struct session *session; /* NULL: none */
    struct bmi_job_status status;
    struct bmi_trove_place place;
    bmi_trove_object_id_t object;
    struct bmi_trove_pair pairs[SFS_BATCH_MAX];
    struct bmi_job_status statuses[SFS_BATCH_MAX];
    struct bmi_trove_position position;
    struct bmi_flow_extent extents[SFS_EXTENTS_MAX];
    struct bmi_flow_stripe stripe;
    bmi_size_t size;
    bmi_job_id_t machine;
    /* watch.c's */
    bmi_job_id_t flow; /* 0: none runs */
    bool stalled;
    uint64_t progress_ns; /* when the client last moved bytes */
    bmi_size_t moved;
    union {
        struct {
            char keys[LISTED][BMI_TROVE_KEY_MAX];
            uint8_t values[LISTED][SFS_META_MAX];
        } list;
        struct {
            char keys[SFS_BATCH_MAX][BMI_TROVE_KEY_MAX];
            uint8_t values[SFS_BATCH_MAX][HEADER_ROOM]; /* enough except for links */
        } batch;
        bmi_trove_object_id_t objects[OBJECTS_LISTED];
    } u;
    uint8_t entries[SFS_REPLY_MAX];
    uint8_t bytes[SFS_REPLY_MAX];
};

struct server {
    struct bmi_job_context *jobs;
    struct bmi_trove_store *store;
    struct slot *slots; /* one for each request served at a time, and one that receives the next */
    int slot_count;
    struct shares shares;
    struct sessions sessions;
    uint64_t start;           /* in each reply */
    bool watching;            /* watch.c's machine runs */
    unsigned position, count; /* the number of this store's server, and of all servers */
    struct allow_list allowed;
};

/* Opens the store; creates it if it is absent. `count` 0: the store's own place. Prints errors on
 * standard error. Returns 0 or -1. */
int server_open(struct server *server, const char *folder, unsigned position, unsigned count);
/* Starts a machine for each of `requests` slots. */
int server_start(struct server *server, int requests);
/* Ends the machines, and undoes server_open. */
int server_close(struct server *server);

/* ---- share.c ---- */

void shares_open(struct shares *shares, int requests);
/* Frees the waiting requests. */
void shares_close(struct shares *shares);
/* Takes a request of a client on `host` (NULL: not known). Returns 1: serve it now; 0: it waits for
 * its turn; ENOMEM. */
int shares_admit(struct shares *shares, const struct BMI_unexpected_info *request,
                 const char *host);
/* A request of this client has ended; `stalled`: it was ended because the client moved no bytes.
 * Returns whether *next is to be served now. */
bool shares_next(struct shares *shares, BMI_addr_t client, bool stalled,
                 struct BMI_unexpected_info *next);
bool shares_waiting(struct shares *shares);

/* ---- allow.c ---- */

/* Checks that clients of each listen URL, separated by commas, prove an identity, if there are
 * patterns. Returns whether it is so; if not, a message is on standard error. */
bool allow_list_usable(const struct allow_list *allowed, const char *listen);
/* Returns 0, or EACCES for a client that no pattern fits, which is on standard error. */
int allow_list_check(struct allow_list *allowed, BMI_addr_t client);

/* ---- session.c ---- */

/* Begins a request that concerns objects of the slot's client. Returns 0 or ENOMEM. */
int session_enter(struct slot *slot);
/* Ends the use, if it was begun. */
void session_leave(struct slot *slot);
/* The object has no name yet: it is removed when the client has disconnected, unless it is kept.
 * Returns 0 or ENOMEM. */
int object_track(struct slot *slot, uint64_t object);
/* Returns whether the object was tracked. */
bool object_keep(struct slot *slot, uint64_t object);
void object_forget(struct server *server, uint64_t object);
/* Whether a connected client may be about to name it. */
bool object_used(struct server *server, uint64_t object);
/* After the job context was closed. */
void sessions_close(struct server *server);

/* ---- watch.c ---- */

/* The slot's flow has begun: it is ended when its client moves no bytes for too long. */
void watch_flow(struct slot *slot);

/* ---- data.c, names.c: actions of server.c's table ---- */

struct bmi_job_options slot_options(struct bmi_sm *machine);

int data_create(struct bmi_sm *machine, void *data);
int data_flow(struct bmi_sm *machine, void *data);
int data_moved(struct bmi_sm *machine, void *data);
int data_keep(struct bmi_sm *machine, void *data);
int data_kept(struct bmi_sm *machine, void *data);
int data_drop(struct bmi_sm *machine, void *data);
int data_dropped(struct bmi_sm *machine, void *data);
int data_objects(struct bmi_sm *machine, void *data);
int data_listed(struct bmi_sm *machine, void *data);

int names_get(struct bmi_sm *machine, void *data);
int names_got(struct bmi_sm *machine, void *data);
int names_put(struct bmi_sm *machine, void *data);
int names_find(struct bmi_sm *machine, void *data);
int names_remove(struct bmi_sm *machine, void *data);
int names_removed(struct bmi_sm *machine, void *data);
int names_begin(struct bmi_sm *machine, void *data);
int names_iterate(struct bmi_sm *machine, void *data);
int names_collect(struct bmi_sm *machine, void *data);

/* ---- store.c ---- */

/* Opens and checks; blocks. */
int store_open(struct server *server, const char *folder, unsigned position, unsigned count);

/* For tests: after `skip` operations of the store one fails, as on a full disk. */
void store_fault(struct server *server, uint64_t skip);

struct bmi_trove_place index_of(const struct server *server);
/* The key of a path's metadata: 'N', the folder, a NUL, the name. Returns its size. */
bmi_size_t path_key(char *key, const char *path, size_t size);
/* The beginning of keys of a folder's entries. */
bmi_size_t folder_key(char *key, const char *path, size_t size);
/* The path of such a key, SFS_PATH_MAX + 1 bytes with a NUL. Returns its size, 0: no such key. */
size_t key_path(char *path, const char *key, size_t size);

#endif
