/* SPDX-License-Identifier: BSD-3-Clause
 *
 * protocol.c - encodes and decodes. Does no I/O and keeps no state; tests/fuzz feeds it anything.
 * A cursor that ran out of bytes, or met what cannot be, is `bad` and gives zeros from then on.
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

static void put_text(struct writer *writer, const char *text, uint16_t size)
{
    put(writer, size, 2);
    if (writer->bad || (size_t)(writer->end - writer->at) < size) {
        writer->bad = true;
        return;
    }
    memcpy(writer->at, text, size);
    writer->at += size;
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

/* Into `text`, with a NUL behind it, which must not be within. */
static uint16_t get_text(struct reader *reader, char *text, size_t most)
{
    uint16_t size = (uint16_t)get(reader, 2);
    text[0] = '\0';
    if (reader->bad || size > most || (size_t)(reader->end - reader->at) < size ||
        memchr(reader->at, '\0', size) != NULL) {
        reader->bad = true;
        return 0;
    }
    memcpy(text, reader->at, size);
    text[size] = '\0';
    reader->at += size;
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
    meta->target_size = get_text(reader, meta->target, SFS_TARGET_MAX);
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
    return op >= SFS_COMMIT && op <= SFS_UNLINK;
}

static bool op_has_object(uint16_t op)
{
    return op >= SFS_WRITE && op <= SFS_DROP;
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
    if (op_has_path(request->op))
        put_text(&writer, request->path, request->path_size);
    if (request->op == SFS_LIST)
        put_text(&writer, request->after, request->after_size);
    if (request->op == SFS_COMMIT)
        put_meta(&writer, &request->meta);
    return written(&writer, bytes);
}

/* Extents ascend, and do not overlap or run over. */
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

static void get_body(struct reader *reader, struct sfs_request *request)
{
    if (op_has_object(request->op)) {
        request->object = get(reader, 8);
        if (request->object == 0)
            reader->bad = true;
    }
    if (op_has_extents(request->op))
        get_extents(reader, request);
    if (op_has_path(request->op)) {
        request->path_size = get_text(reader, request->path, SFS_PATH_MAX);
        if (sfs_path_check(request->path, request->path_size) < 0)
            reader->bad = true;
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

static void get_entry(struct reader *reader, struct sfs_entry *entry)
{
    entry->name_size = get_text(reader, entry->name, SFS_NAME_MAX);
    get_meta(reader, &entry->meta);
    if (entry->name_size == 0 || memchr(entry->name, '/', entry->name_size) != NULL ||
        strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0)
        reader->bad = true; /* it becomes a local file's name */
}

int64_t sfs_entry_encode(const struct sfs_entry *entry, uint8_t *bytes, size_t room)
{
    struct writer writer = {bytes, bytes + room, false};
    put_entry(&writer, entry);
    return written(&writer, bytes);
}

void sfs_entry_take(struct sfs_entry *entry, const uint8_t **at, const uint8_t *end)
{
    struct reader reader = {*at, end, false};
    get_entry(&reader, entry);
    *at = reader.at;
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
    if (!writer.bad && (size_t)(writer.end - writer.at) >= reply->entries_size) {
        if (reply->entries_size > 0)
            memcpy(writer.at, reply->entries, reply->entries_size);
        writer.at += reply->entries_size;
    } else {
        writer.bad = true;
    }
    return written(&writer, bytes);
}

int sfs_reply_decode(struct sfs_reply *reply, const uint8_t *bytes, size_t size)
{
    struct reader reader = {bytes, bytes + size, false};
    struct sfs_entry entry;
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
    for (uint32_t i = 0; i < reply->entry_count && !reader.bad; i++)
        get_entry(&reader, &entry);
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
