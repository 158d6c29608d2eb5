/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stripefs_fuzz.c - the messages of examples/stripefs: all input is read within its bounds, and an
 * accepted message encodes to the same bytes again.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "examples/stripefs/protocol.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void request_try(const uint8_t *data, size_t size)
{
    static struct sfs_request request;
    uint8_t again[SFS_REQUEST_MAX];
    int result = sfs_request_decode(&request, data, size);
    require(result <= 0);
    if (result < 0)
        return;
    if (request.path_size > 0) {
        require(sfs_path_check(request.path, request.path_size) == 0);
        require(sfs_path_server(request.path, request.path_size, request.servers) <
                request.servers);
        require(sfs_path_name(request.path, request.path_size) >= 1);
    }
    const uint8_t *at = request.paths; /* NULL: there are none */
    const uint8_t *end = at != NULL ? at + request.paths_size : NULL;
    char path[SFS_PATH_MAX + 1];
    for (int i = 0; i < request.path_count; i++)
        require(sfs_path_check(path, sfs_path_take(path, &at, end)) == 0);
    require(at == end);
    int64_t length = sfs_request_encode(&request, again, sizeof again);
    require(length == (int64_t)size);
    /* the tag's uppermost bit is not used */
    require(memcmp(again, data, 8) == 0 && memcmp(again + 12, data + 12, size - 12) == 0);
}

static void entry_try(uint16_t op, const uint8_t **at, const uint8_t *end)
{
    struct sfs_entry entry;
    struct sfs_former former;
    struct sfs_object object;
    if (op == SFS_UNLINK) {
        sfs_former_take(&former, at, end);
        require(former.status <= 0 && (former.kind == SFS_FILE) == (former.object != 0));
        return;
    }
    if (op == SFS_OBJECTS) {
        sfs_object_take(&object, at, end);
        require(object.object != 0);
        return;
    }
    sfs_entry_take(&entry, at, end);
    require(entry.name_size == strlen(entry.name));
    require(op == SFS_NAMES || strchr(entry.name, '/') == NULL);
    require(entry.meta.target_size == 0 ||
            memchr(entry.meta.target, 0, entry.meta.target_size) == NULL);
}

static void reply_try(const uint8_t *data, size_t size)
{
    static struct sfs_reply reply;
    static uint8_t again[SFS_REPLY_MAX];
    if (sfs_reply_decode(&reply, data, size) < 0)
        return;
    const uint8_t *at = reply.entries, *end = at + reply.entries_size;
    for (uint32_t i = 0; i < reply.entry_count; i++)
        entry_try(reply.op, &at, end);
    require(at == end);
    if (size <= sizeof again)
        require(sfs_reply_encode(&reply, again, sizeof again) == (int64_t)size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sfs_meta meta;
    uint8_t again[SFS_META_MAX];
    /* a copy of exactly that size: the sanitizer sees reads beyond it */
    uint8_t *copy = malloc(size > 0 ? size : 1);
    memcpy(copy, data, size);
    request_try(copy, size);
    reply_try(copy, size);
    if (sfs_meta_decode(&meta, copy, size) == 0)
        require(sfs_meta_encode(&meta, again, sizeof again) == (int64_t)size &&
                memcmp(again, copy, size) == 0);
    sfs_path_check((const char *)copy, size);
    free(copy);
    return 0;
}
