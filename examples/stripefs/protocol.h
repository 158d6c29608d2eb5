/* SPDX-License-Identifier: BSD-3-Clause
 *
 * protocol.h - messages between the client and the servers of stripefs, and the form of a path.
 *
 * A request is one unexpected message; its reply comes under the request's tag, the bytes of a
 * file, as a flow, under the tag after it. All numbers are little-endian. A message has a magic
 * number and a version; every length is checked before it is used, and a message is refused if it
 * is longer or shorter than its contents.
 */
#ifndef STRIPEFS_PROTOCOL_H
#define STRIPEFS_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define SFS_MAGIC 0x53465342u /* "BSFS" */
#define SFS_VERSION 3         /* of messages */
#define SFS_META_VERSION 1    /* of metadata, which stores keep */
#define SFS_SERVERS_MAX 64
#define SFS_PATH_MAX 470    /* bytes of a path */
#define SFS_NAME_MAX 255    /* of one name in it */
#define SFS_TARGET_MAX 4095 /* of a symbolic link */
#define SFS_EXTENTS_MAX 64
#define SFS_BATCH_MAX 256 /* paths of an UNLINK, objects of a DROP */
#define SFS_META_MAX 4224 /* bytes of metadata, encoded */
#define SFS_REQUEST_MAX 16384
#define SFS_REPLY_MAX 65536
#define SFS_STRIPE_MAX (1 << 30)
#define SFS_LEASE_TAG 1 /* never sent: a receive under it ends with the connection */

enum sfs_op {
    SFS_WRITE = 1, /* object, layout, extents: then the bytes */
    SFS_READ,      /* the same */
    SFS_KEEP,      /* object: stays after its client has disconnected; with SFS_SYNCED it is
                      on disk */
    SFS_DROP,      /* objects: removed */
    SFS_COMMIT,  /* path, meta: the path has this meta from now on; replies with the former meta */
    SFS_LOOKUP,  /* path: replies with its meta */
    SFS_LIST,    /* path of a folder, name to continue after: replies with entries */
    SFS_UNLINK,  /* paths: removed; replies with the former entry of each */
    SFS_SPACE,   /* replies with total and available bytes */
    SFS_NAMES,   /* path to continue after: replies with entries of all folders, named by path */
    SFS_OBJECTS, /* object to continue after, 0 at first: replies with objects */
    SFS_OPS
};

enum sfs_kind { SFS_FILE = 1, SFS_FOLDER, SFS_LINK };

/* Metadata of a name. Bytes of a file are on servers (object + n) % servers for the stripe's server
 * n. The target has no NUL; after decoding it points into the message. */
struct sfs_meta {
    uint8_t kind;
    uint32_t mode, uid, gid; /* mode: permission bits */
    int64_t mtime_ns;
    uint64_t size;
    uint64_t object;  /* of a file: on each server that has bytes of it */
    uint64_t holders; /* bit n: server n of the list has bytes */
    uint32_t stripe;
    uint16_t target_size;
    const char *target; /* of a link */
};

struct sfs_extent {
    uint64_t offset, size;
};

/* Flags of requests. */
#define SFS_SYNCED 1 /* KEEP, COMMIT, UNLINK: on disk before the reply */
#define SFS_MORE 2   /* WRITE: the server has replied to a WRITE of this object before */
#define SFS_LAST 4   /* WRITE: all bytes of the object; it is kept, as by KEEP */

struct sfs_request {
    uint16_t op;
    uint16_t server, servers; /* the server's place in the client's list, and the list's length */
    uint32_t tag;
    uint32_t flags;
    uint64_t client; /* a random number of the client's process */
    uint64_t object;
    uint32_t part; /* WRITE, READ: the stripe's server number */
    uint32_t stripe;
    uint16_t extent_count;
    struct sfs_extent extents[SFS_EXTENTS_MAX];
    uint16_t object_count; /* DROP */
    uint64_t objects[SFS_BATCH_MAX];
    uint16_t path_size, after_size;
    char path[SFS_PATH_MAX + 1];
    char after[SFS_NAME_MAX + 1];
    struct sfs_meta meta;
    uint16_t path_count;  /* UNLINK */
    const uint8_t *paths; /* encoded by sfs_path_add; after decoding within the message */
    size_t paths_size;
};

struct sfs_entry {
    uint16_t name_size;
    char name[SFS_PATH_MAX + 1]; /* LIST: a name; NAMES: a path */
    struct sfs_meta meta;
};

/* The former entry of an unlinked path. */
struct sfs_former {
    int32_t status; /* 0 or a BMI error, for this path */
    uint8_t kind;
    uint64_t object, holders;
};

/* A server's object, in the reply to OBJECTS. */
struct sfs_object {
    uint64_t object;
    bool used; /* by a connected client: it may still get its name */
};

struct sfs_reply {
    uint16_t op;
    int32_t status; /* 0 or a BMI error */
    uint64_t start; /* differs after each start of the server */
    uint64_t total, available;
    bool has_meta; /* COMMIT: the former meta exists */
    struct sfs_meta meta;
    bool more;              /* LIST, NAMES, OBJECTS: further ones follow */
    uint32_t entry_count;   /* of entries, formers, or objects */
    const uint8_t *entries; /* encoded; after decoding within the message */
    size_t entries_size;
};

/* All return the encoded size, or a negative BMI error: EMSGSIZE (no room). */
int64_t sfs_request_encode(const struct sfs_request *request, uint8_t *bytes, size_t room);
int64_t sfs_meta_encode(const struct sfs_meta *meta, uint8_t *bytes, size_t room);
/* The entries of a reply, or paths of a request, are encoded one after another by these. */
int64_t sfs_entry_encode(const struct sfs_entry *entry, uint8_t *bytes, size_t room);
int64_t sfs_former_encode(const struct sfs_former *former, uint8_t *bytes, size_t room);
int64_t sfs_object_encode(const struct sfs_object *object, uint8_t *bytes, size_t room);
int64_t sfs_path_encode(const char *path, size_t size, uint8_t *bytes, size_t room);
int64_t sfs_reply_encode(const struct sfs_reply *reply, uint8_t *bytes, size_t room);

/* All return 0 or EPROTO (no such message), EPROTONOSUPPORT (another version). If the tag of a
 * request could be read, it is set also after an error, so that the request can be answered; else
 * it is 0. */
int sfs_request_decode(struct sfs_request *request, const uint8_t *bytes, size_t size);
int sfs_reply_decode(struct sfs_reply *reply, const uint8_t *bytes, size_t size);
int sfs_meta_decode(struct sfs_meta *meta, const uint8_t *bytes, size_t size);
/* Decode the item at *at, which advances, of a message that was decoded without error. */
void sfs_entry_take(struct sfs_entry *entry, const uint8_t **at, const uint8_t *end);
void sfs_former_take(struct sfs_former *former, const uint8_t **at, const uint8_t *end);
void sfs_object_take(struct sfs_object *object, const uint8_t **at, const uint8_t *end);
/* Returns the path's size; `path` has SFS_PATH_MAX + 1 bytes and gets a NUL. */
uint16_t sfs_path_take(char *path, const uint8_t **at, const uint8_t *end);

/* Checks a path: "/" or "/name/name", no ".", "..", or empty names, no NUL.
 * Returns: 0, EINVAL, ENAMETOOLONG. */
int sfs_path_check(const char *path, size_t size);
/* Parses an option's text: a decimal number within limits. Returns: whether it is valid; if not, a
 * message is on standard error. */
bool sfs_number(const char *program, const char *option, const char *text, long least, long most,
                long *value);
/* Flushes standard output. Returns: whether all output was written; if not, a message is on
 * standard error. */
bool sfs_output_good(const char *program);
/* Prints a name from another user so that no byte of it acts on a terminal or ends the line:
 * control characters and invalid UTF-8 as \\ooo, a backslash as two. */
void sfs_name_print(FILE *file, const char *name);
/* The place of the last name of a checked path other than "/". */
size_t sfs_path_name(const char *path, size_t size);
/* The server that has a path's metadata. */
unsigned sfs_path_server(const char *path, size_t size, unsigned servers);

#endif
