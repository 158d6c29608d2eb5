/* SPDX-License-Identifier: BSD-3-Clause
 *
 * protocol.c - encodes and decodes messages, without I/O or state; tests/fuzz feeds it any bytes.
 * After a message ended too early, or had an impossible value, its cursor is `bad` and yields
 * zeros.
 */
#include "protocol.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <bmi.h>

struct writer {
    uint8_t *at, *end;
    bool bad;
};

struct reader {
    const uint8_t *at, *end;
    bool bad;
};

static void put(struct writer *writer, uint64_t value, unsigned bytes)
{
    if (writer->bad || (size_t)(writer->end - writer->at) < bytes) {
        writer->bad = true;
        return;
    }
    for (unsigned i = 0; i < bytes; i++)
        *writer->at++ = (uint8_t)(value >> (8 * i));
}

static void put_bytes(struct writer *writer, const void *bytes, size_t size)
{
    if (writer->bad || (size_t)(writer->end - writer->at) < size) {
        writer->bad = true;
        return;
    }
    if (size > 0)
        memcpy(writer->at, bytes, size);
    writer->at += size;
}

static void put_text(struct writer *writer, const char *text, uint16_t size)
{
    put(writer, size, 2);
    put_bytes(writer, text, size);
}

static uint64_t get(struct reader *reader, unsigned bytes)
{
    uint64_t value = 0;
    if (reader->bad || (size_t)(reader->end - reader->at) < bytes) {
        reader->bad = true;
        return 0;
    }
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)*reader->at++ << (8 * i);
    return value;
}

/* Text within the message; a NUL in it is an error. */
static uint16_t get_span(struct reader *reader, const char **text, size_t most)
{
    uint16_t size = (uint16_t)get(reader, 2);
    *text = (const char *)reader->at;
    if (reader->bad || size > most || (size_t)(reader->end - reader->at) < size ||
        memchr(reader->at, '\0', size) != NULL) {
        reader->bad = true;
        return 0;
    }
    reader->at += size;
    return size;
}

/* Copies into `text` and adds a NUL. */
static uint16_t get_text(struct reader *reader, char *text, size_t most)
{
    const char *span;
    uint16_t size = get_span(reader, &span, most);
    memcpy(text, span, size);
    text[size] = '\0';
    return size;
}

static int64_t written(const struct writer *writer, const uint8_t *bytes)
{
    return writer->bad ? -BMI_EMSGSIZE : writer->at - bytes;
}

/* ---- metadata -------------------------------------------------------------------------------- */

static void put_meta(struct writer *writer, const struct sfs_meta *meta)
{
    put(writer, SFS_META_VERSION, 1);
    put(writer, meta->kind, 1);
    put(writer, meta->mode, 4);
    put(writer, meta->uid, 4);
    put(writer, meta->gid, 4);
    put(writer, (uint64_t)meta->mtime_ns, 8);
    put(writer, meta->size, 8);
    put(writer, meta->object, 8);
    put(writer, meta->holders, 8);
    put(writer, meta->stripe, 4);
    put_text(writer, meta->target, meta->target_size);
}

static void get_meta(struct reader *reader, struct sfs_meta *meta)
{
    uint8_t version = (uint8_t)get(reader, 1);
    meta->kind = (uint8_t)get(reader, 1);
    meta->mode = (uint32_t)get(reader, 4);
    meta->uid = (uint32_t)get(reader, 4);
    meta->gid = (uint32_t)get(reader, 4);
    meta->mtime_ns = (int64_t)get(reader, 8);
    meta->size = get(reader, 8);
    meta->object = get(reader, 8);
    meta->holders = get(reader, 8);
    meta->stripe = (uint32_t)get(reader, 4);
    meta->target_size = get_span(reader, &meta->target, SFS_TARGET_MAX);
    bool file = meta->kind == SFS_FILE;
    if (version != SFS_META_VERSION || meta->kind < SFS_FILE || meta->kind > SFS_LINK ||
        meta->mode > 07777 || meta->size > INT64_MAX ||
        (file && (meta->object == 0 || meta->stripe == 0 || meta->stripe > SFS_STRIPE_MAX)) ||
        (meta->kind == SFS_LINK) != (meta->target_size > 0))
        reader->bad = true;
}

int64_t sfs_meta_encode(const struct sfs_meta *meta, uint8_t *bytes, size_t room)
{
    struct writer writer = {bytes, bytes + room, false};
    put_meta(&writer, meta);
    return written(&writer, bytes);
}

int sfs_meta_decode(struct sfs_meta *meta, const uint8_t *bytes, size_t size)
{
    struct reader reader = {bytes, bytes + size, false};
    get_meta(&reader, meta);
    return reader.bad || reader.at != reader.end ? -BMI_EPROTO : 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool op_has_path(uint16_t op)
{
    return (op >= SFS_COMMIT && op <= SFS_LIST) || op == SFS_NAMES;
}

static bool op_has_object(uint16_t op)
{
    return (op >= SFS_WRITE && op <= SFS_KEEP) || op == SFS_OBJECTS;
}

static bool op_has_extents(uint16_t op)
{
    return op == SFS_WRITE || op == SFS_READ;
}

int64_t sfs_request_encode(const struct sfs_request *request, uint8_t *bytes, size_t room)
{
    struct writer writer = {bytes, bytes + room, false};
    put(&writer, SFS_MAGIC, 4);
    put(&writer, SFS_VERSION, 2);
    put(&writer, request->op, 2);
    put(&writer, request->tag, 4);
    put(&writer, request->server, 2);
    put(&writer, request->servers, 2);
    put(&writer, request->flags, 4);
    put(&writer, request->client, 8);
    if (op_has_object(request->op))
        put(&writer, request->object, 8);
    if (op_has_extents(request->op)) {
        put(&writer, request->part, 4);
        put(&writer, request->stripe, 4);
        put(&writer, request->extent_count, 2);
        for (int i = 0; i < request->extent_count; i++) {
            put(&writer, request->extents[i].offset, 8);
            put(&writer, request->extents[i].size, 8);
        }
    }
    if (request->op == SFS_DROP) {
        put(&writer, request->object_count, 2);
        for (int i = 0; i < request->object_count; i++)
            put(&writer, request->objects[i], 8);
    }
    if (op_has_path(request->op))
        put_text(&writer, request->path, request->path_size);
    if (request->op == SFS_UNLINK) {
        put(&writer, request->path_count, 2);
        put_bytes(&writer, request->paths, request->paths_size);
    }
    if (request->op == SFS_LIST)
        put_text(&writer, request->after, request->after_size);
    if (request->op == SFS_COMMIT)
        put_meta(&writer, &request->meta);
    return written(&writer, bytes);
}

/* Extents ascend, and do not overlap or overflow. */
static void get_extents(struct reader *reader, struct sfs_request *request)
{
    uint64_t least = 0;
    request->part = (uint32_t)get(reader, 4);
    request->stripe = (uint32_t)get(reader, 4);
    request->extent_count = (uint16_t)get(reader, 2);
    if (request->extent_count > SFS_EXTENTS_MAX || request->stripe == 0 ||
        request->stripe > SFS_STRIPE_MAX || request->part >= request->servers)
        reader->bad = true;
    for (int i = 0; i < request->extent_count && !reader->bad; i++) {
        struct sfs_extent *extent = &request->extents[i];
        extent->offset = get(reader, 8);
        extent->size = get(reader, 8);
        if (extent->offset < least || extent->size == 0 || extent->offset > INT64_MAX ||
            extent->size > INT64_MAX - extent->offset)
            reader->bad = true;
        least = extent->offset + extent->size;
    }
}

static void get_objects(struct reader *reader, struct sfs_request *request)
{
    request->object_count = (uint16_t)get(reader, 2);
    if (request->object_count == 0 || request->object_count > SFS_BATCH_MAX)
        reader->bad = true;
    for (int i = 0; i < request->object_count && !reader->bad; i++) {
        request->objects[i] = get(reader, 8);
        if (request->objects[i] == 0)
            reader->bad = true;
    }
}

static void get_path(struct reader *reader, char *path)
{
    uint16_t size = get_text(reader, path, SFS_PATH_MAX);
    if (sfs_path_check(path, size) < 0)
        reader->bad = true;
}

static void get_paths(struct reader *reader, struct sfs_request *request)
{
    char path[SFS_PATH_MAX + 1];
    request->path_count = (uint16_t)get(reader, 2);
    if (request->path_count == 0 || request->path_count > SFS_BATCH_MAX)
        reader->bad = true;
    request->paths = reader->at;
    for (int i = 0; i < request->path_count && !reader->bad; i++)
        get_path(reader, path);
    request->paths_size = (size_t)(reader->at - request->paths);
}

static void get_body(struct reader *reader, struct sfs_request *request)
{
    if (op_has_object(request->op)) {
        request->object = get(reader, 8);
        if (request->object == 0 && request->op != SFS_OBJECTS)
            reader->bad = true;
    }
    if (op_has_extents(request->op))
        get_extents(reader, request);
    if (request->op == SFS_DROP)
        get_objects(reader, request);
    if (request->op == SFS_UNLINK)
        get_paths(reader, request);
    if (op_has_path(request->op)) {
        get_path(reader, request->path);
        request->path_size = (uint16_t)strlen(request->path);
    }
    if (request->op == SFS_LIST)
        request->after_size = get_text(reader, request->after, SFS_NAME_MAX);
    if (request->op == SFS_COMMIT)
        get_meta(reader, &request->meta);
}

int sfs_request_decode(struct sfs_request *request, const uint8_t *bytes, size_t size)
{
    struct reader reader = {bytes, bytes + size, false};
    memset(request, 0, sizeof *request);
    if (get(&reader, 4) != SFS_MAGIC)
        return -BMI_EPROTO;
    uint16_t version = (uint16_t)get(&reader, 2);
    request->op = (uint16_t)get(&reader, 2);
    request->tag = (uint32_t)get(&reader, 4) & 0x7fffffff;
    if (version != SFS_VERSION)
        return reader.bad ? -BMI_EPROTO : -BMI_EPROTONOSUPPORT;
    request->server = (uint16_t)get(&reader, 2);
    request->servers = (uint16_t)get(&reader, 2);
    request->flags = (uint32_t)get(&reader, 4);
    request->client = get(&reader, 8);
    if (request->op < SFS_WRITE || request->op >= SFS_OPS || request->servers == 0 ||
        request->servers > SFS_SERVERS_MAX || request->server >= request->servers)
        return -BMI_EPROTO;
    get_body(&reader, request);
    return reader.bad || reader.at != reader.end ? -BMI_EPROTO : 0;
}

/* ---- replies --------------------------------------------------------------------------------- */

static void put_entry(struct writer *writer, const struct sfs_entry *entry)
{
    put_text(writer, entry->name, entry->name_size);
    put_meta(writer, &entry->meta);
}

static bool name_good(const char *name, size_t size)
{
    return size > 0 && size <= SFS_NAME_MAX && memchr(name, '/', size) == NULL &&
           strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* A name becomes part of a local path, so it must not lead elsewhere. */
static void get_entry(struct reader *reader, struct sfs_entry *entry, bool is_path)
{
    entry->name_size = get_text(reader, entry->name, SFS_PATH_MAX);
    get_meta(reader, &entry->meta);
    if (is_path ? sfs_path_check(entry->name, entry->name_size) < 0
                : !name_good(entry->name, entry->name_size))
        reader->bad = true;
}

static void get_former(struct reader *reader, struct sfs_former *former)
{
    former->status = (int32_t)(uint32_t)get(reader, 4);
    former->kind = (uint8_t)get(reader, 1);
    former->object = get(reader, 8);
    former->holders = get(reader, 8);
    if (former->status > 0 || former->kind > SFS_LINK ||
        (former->kind == SFS_FILE) != (former->object != 0))
        reader->bad = true;
}

static void get_object(struct reader *reader, struct sfs_object *object)
{
    uint64_t used;
    object->object = get(reader, 8);
    used = get(reader, 1);
    object->used = used != 0;
    if (object->object == 0 || used > 1)
        reader->bad = true;
}

int64_t sfs_entry_encode(const struct sfs_entry *entry, uint8_t *bytes, size_t room)
{
    struct writer writer = {bytes, bytes + room, false};
    put_entry(&writer, entry);
    return written(&writer, bytes);
}

int64_t sfs_former_encode(const struct sfs_former *former, uint8_t *bytes, size_t room)
{
    struct writer writer = {bytes, bytes + room, false};
    put(&writer, (uint32_t)former->status, 4);
    put(&writer, former->kind, 1);
    put(&writer, former->object, 8);
    put(&writer, former->holders, 8);
    return written(&writer, bytes);
}

int64_t sfs_object_encode(const struct sfs_object *object, uint8_t *bytes, size_t room)
{
    struct writer writer = {bytes, bytes + room, false};
    put(&writer, object->object, 8);
    put(&writer, object->used, 1);
    return written(&writer, bytes);
}

int64_t sfs_path_encode(const char *path, size_t size, uint8_t *bytes, size_t room)
{
    struct writer writer = {bytes, bytes + room, false};
    put_text(&writer, path, (uint16_t)size);
    return written(&writer, bytes);
}

void sfs_entry_take(struct sfs_entry *entry, const uint8_t **at, const uint8_t *end)
{
    struct reader reader = {*at, end, false};
    get_entry(&reader, entry, true);
    *at = reader.at;
}

void sfs_former_take(struct sfs_former *former, const uint8_t **at, const uint8_t *end)
{
    struct reader reader = {*at, end, false};
    get_former(&reader, former);
    *at = reader.at;
}

void sfs_object_take(struct sfs_object *object, const uint8_t **at, const uint8_t *end)
{
    struct reader reader = {*at, end, false};
    get_object(&reader, object);
    *at = reader.at;
}

uint16_t sfs_path_take(char *path, const uint8_t **at, const uint8_t *end)
{
    struct reader reader = {*at, end, false};
    uint16_t size = get_text(&reader, path, SFS_PATH_MAX);
    *at = reader.at;
    return size;
}

static void get_entries(struct reader *reader, const struct sfs_reply *reply)
{
    union {
        struct sfs_entry entry;
        struct sfs_former former;
        struct sfs_object object;
    } any;
    for (uint32_t i = 0; i < reply->entry_count && !reader->bad; i++) {
        if (reply->op == SFS_UNLINK)
            get_former(reader, &any.former);
        else if (reply->op == SFS_OBJECTS)
            get_object(reader, &any.object);
        else
            get_entry(reader, &any.entry, reply->op == SFS_NAMES);
    }
}

int64_t sfs_reply_encode(const struct sfs_reply *reply, uint8_t *bytes, size_t room)
{
    struct writer writer = {bytes, bytes + room, false};
    put(&writer, SFS_MAGIC, 4);
    put(&writer, SFS_VERSION, 2);
    put(&writer, reply->op, 2);
    put(&writer, (uint32_t)reply->status, 4);
    put(&writer, reply->start, 8);
    if (reply->op == SFS_SPACE) {
        put(&writer, reply->total, 8);
        put(&writer, reply->available, 8);
    }
    put(&writer, reply->has_meta, 1);
    if (reply->has_meta)
        put_meta(&writer, &reply->meta);
    put(&writer, reply->more, 1);
    put(&writer, reply->entry_count, 4);
    put_bytes(&writer, reply->entries, reply->entries_size);
    return written(&writer, bytes);
}

int sfs_reply_decode(struct sfs_reply *reply, const uint8_t *bytes, size_t size)
{
    struct reader reader = {bytes, bytes + size, false};
    memset(reply, 0, sizeof *reply);
    if (get(&reader, 4) != SFS_MAGIC)
        return -BMI_EPROTO;
    if (get(&reader, 2) != SFS_VERSION)
        return reader.bad ? -BMI_EPROTO : -BMI_EPROTONOSUPPORT;
    reply->op = (uint16_t)get(&reader, 2);
    reply->status = (int32_t)(uint32_t)get(&reader, 4);
    reply->start = get(&reader, 8);
    if (reply->op == SFS_SPACE) {
        reply->total = get(&reader, 8);
        reply->available = get(&reader, 8);
    }
    reply->has_meta = get(&reader, 1) != 0;
    if (reply->has_meta)
        get_meta(&reader, &reply->meta);
    reply->more = get(&reader, 1) != 0;
    reply->entry_count = (uint32_t)get(&reader, 4);
    reply->entries = reader.at;
    get_entries(&reader, reply);
    reply->entries_size = (size_t)(reader.at - reply->entries);
    return reader.bad || reader.at != reader.end || reply->status > 0 ? -BMI_EPROTO : 0;
}

/* ---- paths ----------------------------------------------------------------------------------- */

int sfs_path_check(const char *path, size_t size)
{
    if (size > SFS_PATH_MAX)
        return -BMI_ENAMETOOLONG;
    if (size == 0 || path[0] != '/' || memchr(path, '\0', size) != NULL)
        return -BMI_EINVAL;
    for (size_t begin = 1; begin < size || (begin == size && size > 1);) {
        size_t end = begin;
        while (end < size && path[end] != '/')
            end++;
        size_t length = end - begin;
        if (length > SFS_NAME_MAX)
            return -BMI_ENAMETOOLONG;
        if (length == 0 || (length == 1 && path[begin] == '.') ||
            (length == 2 && path[begin] == '.' && path[begin + 1] == '.'))
            return -BMI_EINVAL;
        begin = end + 1;
    }
    return 0;
}

size_t sfs_path_name(const char *path, size_t size)
{
    while (size > 0 && path[size - 1] != '/')
        size--;
    return size;
}

unsigned sfs_path_server(const char *path, size_t size, unsigned servers)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (uint8_t)path[i]) * 0x100000001b3u;
    return (unsigned)((hash ^ hash >> 32) % servers);
}

/* ---- command lines --------------------------------------------------------------------------- */

bool sfs_number(const char *program, const char *option, const char *text, long least, long most,
                long *value)
{
    char *end;
    errno = 0;
    *value = strtol(text, &end, 10);
    if (isdigit((unsigned char)*text) && *end == '\0' && errno == 0 && *value >= least &&
        *value <= most)
        return true;
    fprintf(stderr, "%s: %s %s: a number from %ld to %ld is wanted\n", program, option, text, least,
            most);
    return false;
}

bool sfs_output_good(const char *program)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    fprintf(stderr, "%s: cannot write to standard output\n", program);
    return false;
}

/* The length of the character at `at` if it is UTF-8 and no control character, else 0. */
static size_t printable_length(const unsigned char *at)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 0x20},
                 {0xe0, 0xc0, 0xa0},
                 {0xf0, 0xe0, 0x800},
                 {0xf8, 0xf0, 0x10000}};
    for (size_t more = 0; more < 4; more++) {
        if ((at[0] & forms[more].mask) != forms[more].lead)
            continue;
        uint32_t code = at[0] & (unsigned char)~forms[more].mask;
        for (size_t i = 1; i <= more; i++) {
            if ((at[i] & 0xc0) != 0x80)
                return 0;
            code = code << 6 | (at[i] & 0x3fu);
        }
        bool good = code >= forms[more].least && code <= 0x10ffff && code != 0x7f;
        /* U+2028 and U+2029 end lines; U+202A..U+202E, U+2066..U+2069 turn their direction */
        bool turns = (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
        return good && !turns ? more + 1 : 0;
    }
    return 0;
}

void sfs_name_print(FILE *file, const char *name)
{
    const unsigned char *at = (const unsigned char *)name;
    while (*at != '\0') {
        size_t length = printable_length(at);
        if (*at == '\\')
            fputs("\\\\", file);
        else if (length > 0)
            fwrite(at, 1, length, file);
        else
            fprintf(file, "\\x%02x", *at);
        at += length > 0 ? length : 1;
    }
}
