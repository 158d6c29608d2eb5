/* SPDX-License-Identifier: BSD-3-Clause
 *
 * server.h - a store, and the state machines that serve it: see server.c. The job context runs one
 * machine at a time, so data that only machines use needs no lock.
 */
#ifndef STRIPEFS_SERVER_H
#define STRIPEFS_SERVER_H

#include <bmi/job.h>

#include "protocol.h"

/* The places of data in a store. */
enum { NAMES = 1, DATA = 2 }; /* collections */
enum { INDEX = 1 };           /* the object of NAMES that has all key/values */

enum { WAITING_MOST = 1024 }; /* requests of a client, which take 8 KiB each */
enum { LISTED = 16, OBJECTS_LISTED = 4096, PAGE_BYTES = 60000, HEADER_ROOM = 64 };

struct share;
struct host;
struct session;
struct server;

/* A request's turn to be served. */
struct turn {
    BMI_addr_t client;
    bool waits, came; /* share.c's: at most one of them: it is queued, it is counted as served */
    struct turn *next;
};

/* Chooses the next request: share.c. */
struct shares {
    void (*come)(struct turn *turn); /* the turn has come */
    int most, most_client,
        most_host; /* requests served at a time: in all, for a client, for a host */
    int served, waiting;
    struct share *first;
    struct host *hosts;
};

/* Objects without a name, by connection: session.c. */
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

/* A service: the user pointer of its requests. */
struct service {
    struct server *server;
    enum sfs_op op;
    bmi_job_id_t job; /* 0: none */
};

/* A request, from its arrival to its end; zeroed at first. */
struct served {
    struct bmi_job_request call;
    struct server *server;
    BMI_addr_t client;
    struct turn turn;
    bmi_job_id_t turn_event; /* ends when the turn has come */
    struct sfs_request request;
    struct bmi_message *answer;
    struct session *session; /* NULL: none */
    struct bmi_job_status status;
    struct bmi_trove_place place;
    bmi_trove_object_id_t object;
    struct bmi_trove_pair *pairs; /* names.c's, with their room */
    void *room;
    struct bmi_trove_position position;
    struct bmi_flow_extent extents[SFS_EXTENTS_MAX];
    struct bmi_flow_stripe stripe;
    bmi_size_t size;
    bool again; /* DROP: the client has gone, and this is the second try */
    /* watch.c's */
    bmi_job_id_t flow; /* 0: none runs */
    struct served *next_moving;
    bool stalled;
    uint64_t progress_ns; /* when the client last moved bytes */
    bmi_size_t moved;
};

struct server {
    struct bmi_job_context *jobs;
    struct bmi_trove_store *store;
    struct service services[SFS_OPS];
    bmi_job_id_t strays; /* the job that refuses messages that are no calls */
    struct shares shares;
    struct sessions sessions;
    uint64_t start;           /* in each reply */
    struct served *moving;    /* watch.c's: requests with a flow */
    bool watching;            /* watch.c's machine runs */
    unsigned position, count; /* the number of this store's server, and of all servers */
    struct allow_list allowed;
};

/* Opens the store; creates it if it is absent. `count` 0: the store's own place. Prints errors on
 * standard error. Returns 0 or -1. */
int server_open(struct server *server, const char *folder, unsigned position, unsigned count);
/* Offers the services; serves so many requests at a time. */
int server_start(struct server *server, int requests);
/* Ends the services, and undoes server_open. */
int server_close(struct server *server);

/* ---- share.c ---- */

/* `come` is called with a lock held, once for each turn; it may complete events. */
void shares_open(struct shares *shares, int requests, void (*come)(struct turn *turn));
/* No turn comes any more. */
void shares_close(struct shares *shares);
/* Takes a request of turn->client, on `host` (NULL: not known). Returns 0: its turn has come, or
 * will; ENOMEM; EAGAIN: too many of this client wait. */
int shares_admit(struct shares *shares, struct turn *turn, const char *host);
/* The request has ended, or waits no more; not after another such call. `stalled`: it was ended
 * because the client moved no bytes. */
void shares_leave(struct shares *shares, struct turn *turn, bool stalled);
bool shares_waiting(struct shares *shares);

/* ---- allow.c ---- */

/* Checks that clients of each listen URL, separated by commas, prove an identity, if there are
 * patterns. Returns whether it is so; if not, a message is on standard error. */
bool allow_list_usable(const struct allow_list *allowed, const char *listen);
/* Returns 0, or EACCES for a client that no pattern fits, which is on standard error. */
int allow_list_check(struct allow_list *allowed, BMI_addr_t client);

/* ---- session.c ---- */

/* Begins a request that concerns objects of its client. Returns 0 or ENOMEM. */
int session_enter(struct served *served);
/* Ends the use, if it was begun. */
void session_leave(struct served *served);
/* The object has no name yet: it is removed when the client has disconnected, unless it is kept.
 * Returns 0 or ENOMEM. */
int object_track(struct served *served, uint64_t object);
/* Returns whether the object was tracked. */
bool object_keep(struct served *served, uint64_t object);
void object_forget(struct server *server, uint64_t object);
/* Whether a connected client may be about to name it. */
bool object_used(struct server *server, uint64_t object);

/* ---- watch.c ---- */

/* The request's flow has begun: it is ended when its client moves no bytes for too long. */
void watch_flow(struct served *served);
/* It has ended. */
void unwatch_flow(struct served *served);

/* ---- data.c, names.c: actions of server.c's table ---- */

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
int names_begin(struct bmi_sm *machine, void *data);
int names_iterate(struct bmi_sm *machine, void *data);
int names_collect(struct bmi_sm *machine, void *data);

/* ---- notify.c ---- */

/* Sends a state ("READY=1") to the service manager that started the program, if one did. */
void manager_notify(const char *state);

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
