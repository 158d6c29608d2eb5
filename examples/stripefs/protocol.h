/* SPDX-License-Identifier: BSD-3-Clause
 *
 * protocol.h - what client and servers of stripefs tell each other, and what a path may be.
 *
 * A request is one unexpected message; its reply comes under the request's tag, the bytes of a
 * file, as a flow, under the tag after it. All numbers are little-endian. A message has a magic
 * number and a version; every length is checked before it is used, and a message that is longer
 * than what it says is refused, as is one that is shorter.
 */
#ifndef STRIPEFS_PROTOCOL_H
#define STRIPEFS_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SFS_MAGIC 0x53465342u /* "BSFS" */
#define SFS_VERSION 2         /* of messages */
#define SFS_META_VERSION 1    /* of metadata, which stores keep */
#define SFS_SERVERS_MAX 64
#define SFS_PATH_MAX 470    /* bytes of a path */
#define SFS_NAME_MAX 255    /* of one name in it */
#define SFS_TARGET_MAX 1023 /* of a symbolic link */
#define SFS_EXTENTS_MAX 64
#define SFS_META_MAX 1152 /* bytes of metadata, encoded */
#define SFS_REQUEST_MAX 4096
#define SFS_REPLY_MAX 65536
#define SFS_STRIPE_MAX (1 << 30)

enum sfs_op {
    SFS_WRITE = 1, /* object, layout, extents: then the bytes */
    SFS_READ,      /* the same */
    SFS_SYNC,      /* object: on disk */
    SFS_DROP,      /* object: gone */
    SFS_COMMIT,    /* path, meta: known by that name from now on; tells the former meta */
    SFS_LOOKUP,    /* path: tells its meta */
    SFS_LIST,      /* path of a folder, name to go on after: tells entries */
    SFS_UNLINK,    /* path: no more known; tells the former meta */
    SFS_SPACE,     /* tells total and available bytes */
    SFS_OPS
};

enum sfs_kind { SFS_FILE = 1, SFS_FOLDER, SFS_LINK };

/* Of a name. Bytes of a file are on servers (first + n) % servers for the stripe's server n. */
struct sfs_meta {
    uint8_t kind;
    uint32_t mode, uid, gid; /* mode: permission bits */
    int64_t mtime_ns;
    uint64_t size;
    uint64_t object;  /* of a file: on each server that has bytes of it */
    uint64_t holders; /* bit n: server n of the list has bytes */
    uint32_t stripe;
    uint16_t target_size;
    char target[SFS_TARGET_MAX + 1]; /* of a link */
};

struct sfs_extent {
    uint64_t offset, size;
};

#define SFS_SYNCED 1 /* flag of COMMIT, UNLINK: on disk before the reply */

struct sfs_request {
    uint16_t op;
    uint16_t server, servers; /* which one of how many the client takes it for */
    uint32_t tag;
    uint32_t flags;
    uint64_t object;
    uint32_t part; /* WRITE, READ: the stripe's server number */
    uint32_t stripe;
    uint16_t extent_count;
    struct sfs_extent extents[SFS_EXTENTS_MAX];
    uint16_t path_size, after_size;
    char path[SFS_PATH_MAX + 1];
    char after[SFS_NAME_MAX + 1];
    struct sfs_meta meta;
};

struct sfs_entry {
    uint16_t name_size;
    char name[SFS_NAME_MAX + 1];
    struct sfs_meta meta;
};

struct sfs_reply {
    uint16_t op;
    int32_t status; /* 0 or a BMI error */
    uint64_t start; /* another one whenever the server was started anew */
    uint64_t total, available;
    bool has_meta; /* COMMIT, UNLINK: there was a former one */
    struct sfs_meta meta;
    bool more; /* LIST: entries follow these */
    uint32_t entry_count;
    const uint8_t *entries; /* encoded; within the message */
    size_t entries_size;
};

/* All return the encoded size, or a negative BMI error: EMSGSIZE (no room). */
int64_t sfs_request_encode(const struct sfs_request *request, uint8_t *bytes, size_t room);
int64_t sfs_meta_encode(const struct sfs_meta *meta, uint8_t *bytes, size_t room);
/* `entries` of a reply are encoded one after another by sfs_entry_encode. */
int64_t sfs_entry_encode(const struct sfs_entry *entry, uint8_t *bytes, size_t room);
int64_t sfs_reply_encode(const struct sfs_reply *reply, uint8_t *bytes, size_t room);

/* All return 0 or EPROTO (no such message), EPROTONOSUPPORT (another version). A request that could
 * be read as far as its tag has that in any case, so that it can be answered, else tag 0. */
int sfs_request_decode(struct sfs_request *request, const uint8_t *bytes, size_t size);
int sfs_reply_decode(struct sfs_reply *reply, const uint8_t *bytes, size_t size);
int sfs_meta_decode(struct sfs_meta *meta, const uint8_t *bytes, size_t size);
/* Takes the entry at *at, which moves on; bytes that sfs_reply_decode found good. */
void sfs_entry_take(struct sfs_entry *entry, const uint8_t **at, const uint8_t *end);

/* Whether a path is one: "/" or "/name/name", no ".", "..", or empty names, no NUL.
 * Returns: 0, EINVAL, ENAMETOOLONG. */
int sfs_path_check(const char *path, size_t size);
/* An option's text: a decimal number within limits, and nothing else. Returns: whether it is; if
 * not, it has been told on standard error. */
bool sfs_number(const char *program, const char *option, const char *text, long least, long most,
                long *value);
/* Returns: whether what was printed has got where it should; if not, it has been told. */
bool sfs_output_good(const char *program);
/* Where the last name of a checked path other than "/" begins. */
size_t sfs_path_name(const char *path, size_t size);
/* The server that has a path's metadata. */
unsigned sfs_path_server(const char *path, size_t size, unsigned servers);

#endif
