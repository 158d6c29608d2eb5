/* SPDX-License-Identifier: BSD-3-Clause
 *
 * client.h - shared by the files of bmi-stripefs. Machines run inside client_run only, in the main
 * thread; only tasks that may block read and write local files.
 */
#ifndef STRIPEFS_CLIENT_H
#define STRIPEFS_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>

#include <bmi/job.h>

#include "protocol.h"

enum { CHUNK = 2 << 20, WORKERS_MAX = 64 };

struct client {
    struct bmi_job_context *jobs;
    int count; /* of servers */
    BMI_addr_t addresses[SFS_SERVERS_MAX];
    char *urls[SFS_SERVERS_MAX];
    uint32_t stripe;
    int timeout_ms, parallel;
    bool sync, recursive, repair, trace;
    uint32_t next_tag;
    int failures;                    /* how many errors were printed on standard error */
    char failure[512];               /* of the last failed request: the server, and the cause */
    char target[SFS_TARGET_MAX + 1]; /* of the last link that was looked up */
    bool attributes_missed;          /* the warning that attributes are not kept was printed */
    /* the end by a signal: signals.c */
    atomic_int ended;    /* the signal; 0: none has come */
    atomic_bool running; /* in client_run */
    int end_fd;          /* readable once a signal has come */
    bmi_job_id_t end_event;
    struct rpc *rpcs; /* that run */
    /* stops of this process: rpc.c */
    uint64_t tick_ns, woken_ns; /* last check by client_run; when a stop was noticed */
    /* the progress bar's */
    bool show;
    uint64_t bytes_done, bytes_all;
    unsigned files_done, files_all;
    uint64_t begin_ns;
};

/* ---- rpc.c: a request and its reply ---- */

/* What a reply says, besides lists. */
struct reply {
    uint64_t start;            /* WRITE, KEEP: differs after each start of the server */
    uint64_t total, available; /* SPACE */
    bool has_meta;             /* COMMIT: the former meta exists */
    bool more;                 /* LIST, NAMES, OBJECTS: further entries follow */
    struct sfs_meta meta;      /* LOOKUP: its target is in client->target; COMMIT: without one */
};

struct rpc {
    struct client *client;
    int server;
    bool quiet;                 /* a failure does not matter */
    struct sfs_request request; /* the caller's: flags, and the fields of the op */
    struct reply reply;
    /* LIST and NAMES, OBJECTS: take one entry of the reply. They return 0 or an error */
    int (*entry_take)(struct rpc *rpc, const struct sfs_entry *entry);
    int (*object_take)(struct rpc *rpc, uint64_t object, bool used);
    void *taker;
    struct sfs_former *formers; /* UNLINK: where the former entries go */
    uint64_t *start;            /* the server's start at the file's first request, 0: none yet;
                          NULL: ignored */
    uint64_t *written;          /* WRITE: servers that have replied to a WRITE of the object */
    bool has_flow;
    struct bmi_flow_description flow; /* except the network's end */
    /* rpc.c's own */
    bool anew;    /* the server was restarted since `start` */
    bool retried; /* it may have been executed twice */
    int tries;
    uint64_t asked_ns;
    bmi_job_id_t machine, flow_job;
    struct rpc *next, **at; /* in the client's list */
    struct bmi_job_status called;
};

extern struct bmi_sm_table rpc_table; /* its data is a struct rpc */

/* Prepares one; `path` may be NULL, and is lent. */
void rpc_make(struct rpc *rpc, struct client *client, int server, enum sfs_op op, const char *path);
/* Executes it. Returns 0 or an error: the server's, or the cause of a missing reply. */
int rpc_call(struct rpc *rpc);
/* The same as a child of a machine. Where it cannot be started, that counts as the failure of a
 * child: others use the caller's memory, and must end before the state does. Returns
 * BMI_SM_DEFERRED or an error. */
int rpc_start(struct rpc *rpc, struct bmi_sm *machine);
/* KEEP or DROP of an object on all servers that hold it, as children; `rpcs` and `starts` (NULL:
 * ignored) have one entry a server. Returns BMI_SM_DEFERRED or an error. */
int rpc_object(struct client *client, struct rpc *rpcs, struct bmi_sm *machine, enum sfs_op op,
               const struct sfs_meta *meta, uint64_t *starts);
/* Runs a machine to its end. Returns its result. */
int client_run(struct client *client, struct bmi_sm_table *table, void *data);
/* Runs a machine for each of `count` elements of an array, to their ends. If not all can be
 * started, the others do their work. Returns 0 or an error. */
int client_run_many(struct client *client, struct bmi_sm_table *table, void *array, size_t count,
                    size_t size);
/* After a signal: cancels all work that may be cut short. */
void client_cancel(struct client *client);
/* Prints the error of `name` and counts it; not after a signal. */
void client_complain(struct client *client, const char *name, int error);
int path_server(const struct client *client, const char *path);

/* ---- transfer.c: files ---- */

/* A file that is put or got; or a link or folder that is put. */
struct file {
    struct client *client;
    char *remote, *local;
    char *target; /* of a link */
    bool put;
    bool follow;  /* put: follow symbolic links */
    bool stream;  /* put: read to its end, which is unknown before */
    bool *failed; /* set if it fails; NULL: ignored */
    struct sfs_meta meta;
    int fd;           /* -1: not open */
    off_t data, hole; /* put: the last run of data that was found */
    uint64_t chunks;  /* not yet done */
    int error;
    bool kept;                        /* put: the servers keep its bytes already */
    uint64_t written;                 /* put: see struct rpc */
    uint64_t starts[SFS_SERVERS_MAX]; /* put, to be on disk: see struct rpc */
    char temporary[4200];             /* get: written here, then renamed */
    /* local.c's */
    struct file *next_temporary;
    pthread_mutex_t lock;
    struct local *writing, *last; /* lock: chunks to be written, in order; the first one is being
                                     written */
};

struct transfers {
    struct client *client;
    struct file **files;
    size_t count, room;
    uint64_t chunks;
    size_t next; /* file, and start of its next chunk */
    uint64_t at;
};

/* Makes a file. NULL and a complaint if there is no memory. */
struct file *file_make(struct client *client, const char *local, const char *remote);
void file_free(struct file *file); /* NULL: nothing */
/* Adds a file, which belongs to the transfers then, also after a failure, of which it complains. */
void transfers_add(struct transfers *transfers, struct file *file);
/* Moves all files, several at a time, and frees them. */
void transfers_run(struct transfers *transfers);
/* Writes a file's bytes to standard output. */
int file_cat(struct client *client, const struct sfs_meta *meta);

/* ---- list.c ---- */

/* Entries of a folder, in order; a NUL follows each name and target. */
struct listing {
    const char *path;
    struct sfs_entry *entries;
    size_t count, room;
    int error;
    char *failure; /* the server that failed, and the cause; NULL: not known */
};

/* Lists `count` folders, several at a time. Each has its entries, or an error. */
void lists_read(struct client *client, struct listing *listings, size_t count);
/* Lists one folder. Returns 0 or an error, with details in client->failure. */
int list_read(struct client *client, struct listing *listing, const char *path);
void list_free(struct listing *listing);

/* ---- path.c ---- */

/* Normalises an argument: repeated slashes become one, and one at the end is removed; *folder: it
 * had one. Complains of an invalid path. Returns whether it is valid. */
bool path_take(struct client *client, char *path, bool *folder);
/* Complains of an invalid path. */
bool path_good(struct client *client, const char *path);
/* Both are allocated; NULL and a complaint if there is no memory. */
char *path_join(struct client *client, const char *folder, const char *name);
char *path_copy(struct client *client, const char *path);
/* The last name of a local or remote path, and its length without trailing slashes. */
const char *base_find(const char *path, size_t *length);
/* folder/last name of path, allocated; NULL and a complaint if there is no memory. */
char *base_join(struct client *client, const char *folder, const char *path);
/* Whether all paths have different last names, since all go to one folder. Complains if not. */
bool bases_differ(struct client *client, int count, char **paths);
/* Returns 0 and *meta, whose target is in client->target, or an error, without a complaint. */
int lookup(struct client *client, const char *path, struct sfs_meta *meta);
/* The same for an argument with or without a trailing slash: ENOTDIR if it must be a folder. */
int lookup_argument(struct client *client, const char *path, bool folder, struct sfs_meta *meta);

/* ---- verbs: put.c, get.c, remove.c, check.c, verbs.c ---- */

int verb_put(struct client *client, int count, char **arguments);
int verb_get(struct client *client, int count, char **arguments);
int verb_rm(struct client *client, int count, char **arguments);
int verb_check(struct client *client, int count, char **arguments);
int verb_cat(struct client *client, int count, char **arguments);
int verb_ls(struct client *client, int count, char **arguments);
int verb_stat(struct client *client, int count, char **arguments);
int verb_df(struct client *client, int count, char **arguments);

/* ---- signals.c ---- */

/* Blocks the signals that end the program and starts the thread that waits for them. */
void signals_take(struct client *client);
/* Prepares the end of machines. Returns 0 or an error. */
int signals_open(struct client *client);
/* Ends the program by the signal, if one has come: the machines have ended. */
void signals_end(const struct client *client);

#endif
