/* SPDX-License-Identifier: BSD-3-Clause
 *
 * protocol.c - packs and unpacks requests and replies, without I/O or state; tests/fuzz feeds it
 * any bytes.
 */
#include "protocol.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The pieces of a request behind its head, a letter each: both sides follow this table. */
static const struct {
    const char *service, *pieces;
} ops[SFS_OPS] = {
    [SFS_WRITE] = {"stripefs.write", "lx"},   /* layout, extents */
    [SFS_READ] = {"stripefs.read", "lx"},     /* */
    [SFS_KEEP] = {"stripefs.keep", "o"},      /* object */
    [SFS_DROP] = {"stripefs.drop", "d"},      /* objects */
    [SFS_COMMIT] = {"stripefs.commit", "pm"}, /* path, meta */
    [SFS_LOOKUP] = {"stripefs.lookup", "p"},  /* */
    [SFS_LIST] = {"stripefs.list", "pa"},     /* path, name after it */
    [SFS_UNLINK] = {"stripefs.unlink", "u"},  /* paths, to the end of the message */
    [SFS_SPACE] = {"stripefs.space", ""},     /* */
    [SFS_NAMES] = {"stripefs.names", "p"},    /* */
    [SFS_OBJECTS] = {"stripefs.objects", "o"},
};

const char *sfs_service(enum sfs_op op)
{
    return ops[op].service;
}

/* ---- metadata -------------------------------------------------------------------------------- */

enum { META_HEAD = 52 }; /* bytes before the target */

static void put(uint8_t **at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        *(*at)++ = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t **at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t) * (*at)++ << (8 * i);
    return value;
}

size_t sfs_meta_encode(const struct sfs_meta *meta, uint8_t *bytes)
{
    uint8_t *at = bytes;
    put(&at, SFS_META_VERSION, 1);
    put(&at, meta->kind, 1);
    put(&at, meta->mode, 4);
    put(&at, meta->uid, 4);
    put(&at, meta->gid, 4);
    put(&at, (uint64_t)meta->mtime_ns, 8);
    put(&at, meta->size, 8);
    put(&at, meta->object, 8);
    put(&at, meta->holders, 8);
    put(&at, meta->stripe, 4);
    put(&at, meta->target_size, 2);
    if (meta->target_size > 0)
        memcpy(at, meta->target, meta->target_size);
    return META_HEAD + (size_t)meta->target_size;
}

int sfs_meta_decode(struct sfs_meta *meta, const uint8_t *bytes, size_t size)
{
    const uint8_t *at = bytes;
    if (size < META_HEAD)
        return -BMI_EBADMSG;
    uint8_t version = (uint8_t)get(&at, 1);
    meta->kind = (uint8_t)get(&at, 1);
    meta->mode = (uint32_t)get(&at, 4);
    meta->uid = (uint32_t)get(&at, 4);
    meta->gid = (uint32_t)get(&at, 4);
    meta->mtime_ns = (int64_t)get(&at, 8);
    meta->size = get(&at, 8);
    meta->object = get(&at, 8);
    meta->holders = get(&at, 8);
    meta->stripe = (uint32_t)get(&at, 4);
    meta->target_size = (uint16_t)get(&at, 2);
    meta->target = (const char *)at;
    bool file = meta->kind == SFS_FILE;
    bool bad =
        version != SFS_META_VERSION || meta->kind < SFS_FILE || meta->kind > SFS_LINK ||
        meta->mode > 07777 || meta->size > INT64_MAX ||
        (file && (meta->object == 0 || meta->stripe == 0 || meta->stripe > SFS_STRIPE_MAX)) ||
        (meta->kind == SFS_LINK) != (meta->target_size > 0) || meta->target_size > SFS_TARGET_MAX ||
        size != META_HEAD + (size_t)meta->target_size;
    return bad || memchr(at, '\0', meta->target_size) != NULL ? -BMI_EBADMSG : 0;
}

void sfs_meta_pack(struct bmi_message *message, const void *encoded, size_t size)
{
    bmi_pack(message, encoded, (bmi_size_t)size, BMI_PACK_SAFER | BMI_UNPACK_EXPRESS);
}

int sfs_meta_unpack(struct bmi_message *message, struct sfs_meta *meta, bool *exists)
{
    const void *encoded;
    bmi_size_t size;
    int result = bmi_unpack_in_place(message, &encoded, &size);
    *exists = result == 0 && size > 0;
    return *exists ? sfs_meta_decode(meta, encoded, (size_t)size) : result;
}

/* ---- requests -------------------------------------------------------------------------------- */

enum { HEAD_NUMBERS = 3, LAYOUT_NUMBERS = 4 };

static void piece_pack(struct bmi_message *message, const struct sfs_request *request, char piece)
{
    const uint64_t layout[LAYOUT_NUMBERS] = {request->object, request->part, request->stripe,
                                             request->tag};
    uint8_t meta[SFS_META_MAX];
    switch (piece) {
    case 'l':
        bmi_pack_array(message, layout, LAYOUT_NUMBERS, 8);
        break;
    case 'x':
        bmi_pack_array(message, request->u.extents, 2 * (size_t)request->count, 8);
        break;
    case 'o':
        bmi_pack_u64(message, request->object);
        break;
    case 'd':
        bmi_pack_array(message, request->u.objects, request->count, 8);
        break;
    case 'p':
        bmi_pack_string(message, request->path);
        break;
    case 'a':
        bmi_pack_string(message, request->after);
        break;
    case 'm':
        sfs_meta_pack(message, meta, sfs_meta_encode(&request->meta, meta));
        break;
    default:
        for (uint32_t i = 0; i < request->count; i++)
            bmi_pack_string(message, request->u.paths[i]);
    }
}

void sfs_request_pack(struct bmi_message *message, const struct sfs_request *request)
{
    const uint64_t head[HEAD_NUMBERS] = {request->server, request->servers, request->flags};
    bmi_pack_array(message, head, HEAD_NUMBERS, 8);
    for (const char *piece = ops[request->op].pieces; *piece != '\0'; piece++)
        piece_pack(message, request, *piece);
}

/* Takes an array of `least` to `most` numbers. Returns their number, or an error. */
static int numbers_take(struct bmi_message *message, uint64_t *numbers, size_t least, size_t most)
{
    const void *array;
    size_t count;
    int result = bmi_unpack_array(message, &array, &count, 8);
    if (result < 0 || count < least)
        return -BMI_EBADMSG;
    if (count > most)
        return -BMI_EINVAL;
    memcpy(numbers, array, count * sizeof *numbers);
    return (int)count;
}

static int head_take(struct bmi_message *message, struct sfs_request *request)
{
    uint64_t head[HEAD_NUMBERS];
    int result = numbers_take(message, head, HEAD_NUMBERS, HEAD_NUMBERS);
    if (result < 0)
        return result;
    if (head[1] == 0 || head[1] > SFS_SERVERS_MAX || head[0] >= head[1] || head[2] > UINT32_MAX)
        return -BMI_EINVAL;
    request->server = (uint32_t)head[0];
    request->servers = (uint32_t)head[1];
    request->flags = (uint32_t)head[2];
    return 0;
}

static int layout_take(struct bmi_message *message, struct sfs_request *request)
{
    uint64_t layout[LAYOUT_NUMBERS];
    int result = numbers_take(message, layout, LAYOUT_NUMBERS, LAYOUT_NUMBERS);
    if (result < 0)
        return result;
    if (layout[0] == 0 || layout[1] >= request->servers || layout[2] == 0 ||
        layout[2] > SFS_STRIPE_MAX || layout[3] <= SFS_LEASE_TAG || layout[3] > INT32_MAX)
        return -BMI_EINVAL;
    request->object = layout[0];
    request->part = (uint32_t)layout[1];
    request->stripe = (uint32_t)layout[2];
    request->tag = (uint32_t)layout[3];
    return 0;
}

/* Extents ascend, and do not overlap or overflow. */
static int extents_take(struct bmi_message *message, struct sfs_request *request)
{
    struct sfs_extent *extents = request->u.extents;
    int numbers = numbers_take(message, request->u.objects, 2, 2 * (size_t)SFS_EXTENTS_MAX);
    uint64_t least = 0;
    if (numbers < 0 || numbers % 2 != 0)
        return numbers < 0 ? numbers : -BMI_EINVAL;
    request->count = (uint32_t)numbers / 2;
    for (uint32_t i = 0; i < request->count; i++) {
        if (extents[i].offset < least || extents[i].size == 0 || extents[i].offset > INT64_MAX ||
            extents[i].size > INT64_MAX - extents[i].offset)
            return -BMI_EINVAL;
        least = extents[i].offset + extents[i].size;
    }
    return 0;
}

static int objects_take(struct bmi_message *message, struct sfs_request *request)
{
    int count = numbers_take(message, request->u.objects, 1, SFS_BATCH_MAX);
    for (int i = 0; i < count; i++)
        if (request->u.objects[i] == 0)
            return -BMI_EINVAL;
    request->count = count < 0 ? 0 : (uint32_t)count;
    return count < 0 ? count : 0;
}

static int path_take(struct bmi_message *message, const char **path)
{
    int result = bmi_unpack_string(message, path);
    return result < 0 ? result : sfs_path_check(*path, strlen(*path));
}

static int paths_take(struct bmi_message *message, struct sfs_request *request)
{
    bmi_size_t size;
    int result = 0;
    do
        result = request->count == SFS_BATCH_MAX
                     ? -BMI_EINVAL
                     : path_take(message, &request->u.paths[request->count++]);
    while (result == 0 && bmi_unpack_size(message, &size) != -BMI_ENODATA);
    return result;
}

static int piece_take(struct bmi_message *message, struct sfs_request *request, char piece)
{
    bool exists = false;
    int result;
    switch (piece) {
    case 'l':
        return layout_take(message, request);
    case 'x':
        return extents_take(message, request);
    case 'o':
        result = bmi_unpack_u64(message, &request->object);
        return result == 0 && request->object == 0 && request->op == SFS_KEEP ? -BMI_EINVAL
                                                                              : result;
    case 'd':
        return objects_take(message, request);
    case 'p':
        return path_take(message, &request->path);
    case 'a':
        result = bmi_unpack_string(message, &request->after);
        return result == 0 && strlen(request->after) > SFS_NAME_MAX ? -BMI_ENAMETOOLONG : result;
    case 'm':
        result = sfs_meta_unpack(message, &request->meta, &exists);
        return result == 0 && !exists ? -BMI_EBADMSG : result;
    default:
        return paths_take(message, request);
    }
}

int sfs_request_unpack(struct bmi_message *message, struct sfs_request *request)
{
    bmi_size_t size;
    int result = head_take(message, request);
    for (const char *piece = ops[request->op].pieces; *piece != '\0' && result == 0; piece++)
        result = piece_take(message, request, *piece);
    if (result == 0 && bmi_unpack_size(message, &size) != -BMI_ENODATA)
        result = -BMI_EBADMSG;
    return result;
}

/* ---- replies --------------------------------------------------------------------------------- */

void sfs_entry_pack(struct bmi_message *message, const char *name, const void *meta, size_t size)
{
    bmi_pack_string(message, name);
    sfs_meta_pack(message, meta, size);
}

/* No entry has an empty name. */
void sfs_entries_end(struct bmi_message *message, bool more)
{
    bmi_pack_string(message, "");
    bmi_pack_u32(message, more);
}

static bool name_good(const char *name, size_t size)
{
    return size <= SFS_NAME_MAX && strchr(name, '/') == NULL && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

/* A name becomes part of a local path, so it must not lead elsewhere. */
int sfs_entry_unpack(struct bmi_message *message, enum sfs_op op, struct sfs_entry *entry,
                     bool *more)
{
    const char *name;
    uint32_t follow = 0;
    bool exists = false;
    int result = bmi_unpack_string(message, &name);
    if (result < 0)
        return result;
    size_t size = strlen(name);
    if (size == 0) {
        result = bmi_unpack_u32(message, &follow);
        *more = follow != 0;
        return result;
    }
    if (op == SFS_NAMES ? sfs_path_check(name, size) < 0 : !name_good(name, size))
        return -BMI_EBADMSG;
    result = sfs_meta_unpack(message, &entry->meta, &exists);
    if (result < 0 || !exists)
        return -BMI_EBADMSG;
    entry->name_size = (uint16_t)size;
    memcpy(entry->name, name, size + 1);
    return 1;
}

enum { FORMER_NUMBERS = sizeof(struct sfs_former) / sizeof(uint64_t) };

void sfs_formers_pack(struct bmi_message *message, const struct sfs_former *formers, size_t count)
{
    bmi_pack_array(message, formers, count * FORMER_NUMBERS, 8);
}

int sfs_formers_unpack(struct bmi_message *message, struct sfs_former *formers, size_t count)
{
    size_t numbers = count * FORMER_NUMBERS;
    if (numbers_take(message, (uint64_t *)formers, numbers, numbers) < 0)
        return -BMI_EBADMSG;
    for (size_t i = 0; i < count; i++)
        if (formers[i].status > 0 || formers[i].status < INT32_MIN || formers[i].kind > SFS_LINK ||
            (formers[i].kind == SFS_FILE) != (formers[i].object != 0))
            return -BMI_EBADMSG;
    return 0;
}

void sfs_objects_pack(struct bmi_message *message, const uint64_t *objects, const uint8_t *used,
                      size_t count, bool more)
{
    bmi_pack_array(message, objects, count, 8);
    bmi_pack_array(message, used, count, 1);
    bmi_pack_u32(message, more);
}

int sfs_objects_unpack(struct bmi_message *message, const uint64_t **objects, const uint8_t **used,
                       size_t *count, bool *more)
{
    const void *numbers, *flags;
    uint32_t follow;
    size_t flag_count = 0;
    int result = bmi_unpack_array(message, &numbers, count, 8);
    if (result == 0)
        result = bmi_unpack_array(message, &flags, &flag_count, 1);
    if (result == 0)
        result = bmi_unpack_u32(message, &follow);
    if (result < 0 || flag_count != *count)
        return -BMI_EBADMSG;
    *objects = numbers;
    *used = flags;
    *more = follow != 0;
    return 0;
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
