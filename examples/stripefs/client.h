/* SPDX-License-Identifier: BSD-3-Clause
 *
 * client.h - what the files of bmi-stripefs share. Machines run inside client_run only, in the one
 * thread of the program; just reading and writing of local files is done by tasks that may block.
 */
#ifndef STRIPEFS_CLIENT_H
#define STRIPEFS_CLIENT_H

#include <pthread.h>

#include <bmi/job.h>

#include "protocol.h"

enum { CHUNK = 2 << 20, SMALL_REPLY = 2048, WORKERS_MAX = 64 };

struct client {
    struct bmi_job_context *jobs;
    int count; /* of servers */
    BMI_addr_t addresses[SFS_SERVERS_MAX];
    char *urls[SFS_SERVERS_MAX];
    uint32_t stripe;
    int timeout_ms, parallel;
    bool sync, recursive, trace;
    uint32_t next_tag;
    int failures;      /* things that went wrong, each told on standard error */
    char failure[512]; /* which server failed the request that failed last, and why */
    /* the progress bar's */
    bool show;
    uint64_t bytes_done, bytes_all;
    unsigned files_done, files_all;
    uint64_t begin_ns;
};

/* ---- rpc.c: a request and its reply ---- */

struct rpc {
    struct client *client;
    int server;
    bool quiet;                 /* a failure is no failure of what it is for */
    struct sfs_request request; /* the caller's: op, flags, and what the op wants */
    struct sfs_reply reply;
    uint64_t *start; /* the server's for this file so far, 0: none yet; NULL: no matter */
    bool has_flow;
    struct bmi_flow_description flow; /* but for the network's end */
    /* rpc.c's own */
    bool anew;     /* the server was started anew since `start` */
    uint8_t *room; /* for the reply; NULL: small */
    size_t room_size;
    struct bmi_job_status received;
    int parts; /* children that have not posted theirs yet */
    bmi_size_t size;
    uint8_t bytes[SFS_REQUEST_MAX];
    uint8_t small[SMALL_REPLY];
};

extern struct bmi_sm_table rpc_table; /* its data is a struct rpc */

/* Prepares one; `path` may be NULL. */
void rpc_make(struct rpc *rpc, struct client *client, int server, enum sfs_op op, const char *path);
/* Does it. Returns the reply's status, or why there is none. */
int rpc_call(struct rpc *rpc);
/* The same as a child of a machine. Returns BMI_SM_DEFERRED or an error. */
int rpc_start(struct rpc *rpc, struct bmi_sm *machine);
/* Where one of a state's children could not be started, when others run: they use the caller's
 * memory, and end before the state does. It is noted as a child's failure would be. Returns
 * BMI_SM_DEFERRED or an error. */
int rpc_refused(struct client *client, struct bmi_sm *machine, int error);
/* SYNC or DROP of an object on all servers that hold it, as children; `rpcs` has one a server, as
 * has `starts` (NULL: no matter). Returns BMI_SM_DEFERRED or an error. */
int rpc_object(struct client *client, struct rpc *rpcs, struct bmi_sm *machine, enum sfs_op op,
               const struct sfs_meta *meta, uint64_t *starts);
/* Runs a machine to its end. Returns its result. */
int client_run(struct client *client, struct bmi_sm_table *table, void *data);
/* Says what went wrong with `name` and counts it. */
void client_complain(struct client *client, const char *name, int error);
int path_server(const struct client *client, const char *path);

/* ---- transfer.c: files ---- */

/* A file on its way. */
struct file {
    struct client *client;
    char *remote, *local;
    bool put;
    struct sfs_meta meta;
    int fd;           /* -1: not open */
    off_t data, hole; /* put: where it has data, as far as was looked */
    uint64_t chunks;  /* not yet done */
    int error;
    uint64_t starts[SFS_SERVERS_MAX]; /* put, to be on disk: see struct rpc */
    char temporary[4200];             /* get: written here, then renamed */
    /* local.c's */
    struct file *next_temporary;
    pthread_mutex_t lock;
    struct local *writing, *last; /* lock: chunks to be written, in turn; the first one is */
};

struct transfers {
    struct client *client;
    struct file **files;
    size_t count, room;
    uint64_t chunks;
    size_t next; /* file, and where its next chunk begins */
    uint64_t at;
};

/* Adds a file, which is the transfers' then. Returns 0 or an error. */
int transfers_add(struct transfers *transfers, struct file *file);
/* Moves all of them, several at a time, and frees them. */
void transfers_run(struct transfers *transfers);
/* Writes a file's bytes to standard output. */
int file_cat(struct client *client, const struct sfs_meta *meta);
/* Removes the bytes of a file; what can't be reached is left. */
void file_drop(struct client *client, const struct sfs_meta *meta);

/* ---- verbs.c ---- */

struct listing {
    struct sfs_entry *entries;
    size_t count, room;
};

/* Complains of a path that is none. */
bool path_good(struct client *client, const char *path);
/* folder/name, allocated; NULL and a complaint if there is no memory. */
char *path_join(struct client *client, const char *folder, const char *name);
/* Returns 0 and *meta, or an error, which it does not complain of. */
int lookup(struct client *client, const char *path, struct sfs_meta *meta);
/* All entries of a folder, in order; the caller frees them. Returns 0 or an error. */
int list(struct client *client, const char *path, struct listing *listing);

int verb_put(struct client *client, int count, char **arguments);
int verb_get(struct client *client, int count, char **arguments);
int verb_cat(struct client *client, int count, char **arguments);
int verb_ls(struct client *client, int count, char **arguments);
int verb_stat(struct client *client, int count, char **arguments);
int verb_df(struct client *client, int count, char **arguments);

/* ---- remove.c ---- */

int verb_rm(struct client *client, int count, char **arguments);

#endif
