/* SPDX-License-Identifier: BSD-3-Clause
 *
 * protocol.h - requests and replies of stripefs, and the form of a path.
 *
 * Each kind of request is a call (bmi/rpc.h) of a service of its own. The bytes of a file move
 * beside the call, as a flow under the tag that the request names. Whatever is unpacked is checked
 * before it is used. A service fails with EBADMSG if a request has other pieces, with EINVAL if it
 * has impossible values.
 */
#ifndef STRIPEFS_PROTOCOL_H
#define STRIPEFS_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <bmi/rpc.h>

#define SFS_META_VERSION 1 /* of metadata, which stores keep */
#define SFS_SERVERS_MAX 64
#define SFS_PATH_MAX 470    /* bytes of a path */
#define SFS_NAME_MAX 255    /* of one name in it */
#define SFS_TARGET_MAX 4095 /* of a symbolic link */
#define SFS_EXTENTS_MAX 64
#define SFS_BATCH_MAX 256 /* paths of an UNLINK, objects of a DROP */
#define SFS_META_MAX 4224 /* bytes of metadata, encoded */
#define SFS_STRIPE_MAX (1 << 30)
#define SFS_LEASE_TAG 1 /* never sent: a receive under it ends with the connection */

enum sfs_op {
    SFS_WRITE = 1, /* object, layout, extents, tag of the flow. Reply: start */
    SFS_READ,      /* the same. Reply: nothing */
    SFS_KEEP,      /* object: stays after its client has disconnected; with SFS_SYNCED it is
                      on disk. Reply: start */
    SFS_DROP,      /* objects: removed. Reply: nothing */
    SFS_COMMIT,    /* path, meta: the path has this meta from now on. Reply: the former one, empty
                      if there was none */
    SFS_LOOKUP,    /* path. Reply: its meta */
    SFS_LIST,      /* path of a folder, name to continue after. Reply: entries */
    SFS_UNLINK,    /* paths: removed. Reply: the former entry of each */
    SFS_SPACE,     /* Reply: total and available bytes */
    SFS_NAMES,     /* path to continue after. Reply: entries of all folders, named by path */
    SFS_OBJECTS,   /* object to continue after, 0 at first. Reply: objects */
    SFS_OPS
};

enum sfs_kind { SFS_FILE = 1, SFS_FOLDER, SFS_LINK };

/* Metadata of a name. Bytes of a file are on servers (object + n) % servers for the stripe's server
 * n. The target has no NUL; after decoding it points into the encoded bytes. */
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
    enum sfs_op op;
    uint32_t server, servers; /* the server's place in the client's list, and the list's length */
    uint32_t flags;
    uint64_t object;
    uint32_t part; /* WRITE, READ: the stripe's server number */
    uint32_t stripe;
    uint32_t tag;
    uint32_t count; /* of extents, objects, or paths */
    union {
        struct sfs_extent extents[SFS_EXTENTS_MAX];
        uint64_t objects[SFS_BATCH_MAX];  /* DROP */
        const char *paths[SFS_BATCH_MAX]; /* UNLINK; lent, or within the message */
    } u;
    const char *path, *after; /* the same */
    struct sfs_meta meta;
};

/* An entry of a list. */
struct sfs_entry {
    uint16_t name_size;
    char name[SFS_PATH_MAX + 1]; /* LIST: a name; NAMES: a path */
    struct sfs_meta meta;
};

/* The former entry of an unlinked path. */
struct sfs_former {
    int64_t status; /* 0 or a BMI error, for this path */
    uint64_t kind;
    uint64_t object, holders;
};

/* The name of an operation's service. */
const char *sfs_service(enum sfs_op op);

/* Packs a request; an error is found when it is posted. */
void sfs_request_pack(struct bmi_message *message, const struct sfs_request *request);
/* Unpacks a request whose `op` is set. Returns 0 or an error. */
int sfs_request_unpack(struct bmi_message *message, struct sfs_request *request);

/* Encodes metadata, in SFS_META_MAX bytes. Returns their number. */
size_t sfs_meta_encode(const struct sfs_meta *meta, uint8_t *bytes);
/* Returns 0 or EBADMSG. */
int sfs_meta_decode(struct sfs_meta *meta, const uint8_t *bytes, size_t size);

/* Pieces of replies. All that unpack return 0 or EBADMSG; pointers are into the message. */
void sfs_meta_pack(struct bmi_message *message, const void *encoded, size_t size);
int sfs_meta_unpack(struct bmi_message *message, struct sfs_meta *meta, bool *exists);
/* A list's entries, and its end: whether further ones follow. */
void sfs_entry_pack(struct bmi_message *message, const char *name, const void *meta, size_t size);
void sfs_entries_end(struct bmi_message *message, bool more);
/* Returns 1 and an entry, 0 and *more at the end, or EBADMSG. */
int sfs_entry_unpack(struct bmi_message *message, enum sfs_op op, struct sfs_entry *entry,
                     bool *more);
void sfs_formers_pack(struct bmi_message *message, const struct sfs_former *formers, size_t count);
/* There must be `count`. */
int sfs_formers_unpack(struct bmi_message *message, struct sfs_former *formers, size_t count);
/* `used`: whether a connected client may still give the object its name. */
void sfs_objects_pack(struct bmi_message *message, const uint64_t *objects, const uint8_t *used,
                      size_t count, bool more);
int sfs_objects_unpack(struct bmi_message *message, const uint64_t **objects, const uint8_t **used,
                       size_t *count, bool *more);

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
