/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stripefs_fuzz.c - the messages of examples/stripefs. The first byte is the operation; the rest is
 * the stream of its request, of its reply, and metadata. All input is read within its bounds; what
 * is accepted is within its limits, and a request packs to the same bytes again.
 */
#include <stdbool.h>

#include "examples/stripefs/message_case.h"
#include "examples/stripefs/protocol.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* Reads all of the bytes: a sanitizer checks that they are the message's. */
static uint64_t touch(const void *memory, size_t size)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < size; i++)
        sum += ((const uint8_t *)memory)[i];
    return sum;
}

static void path_try(const char *path, unsigned servers)
{
    size_t size = strlen(path);
    require(sfs_path_check(path, size) == 0);
    require(sfs_path_server(path, size, servers) < servers);
    require(sfs_path_name(path, size) >= 1);
}

/* The padding behind an express piece is not looked at, so that the bytes may differ there. */
static void request_again(const struct sfs_request *request, size_t size)
{
    struct bmi_message *again = bmi_message_new();
    sfs_request_pack(again, request);
    require(again->error == 0 && again->stream_size == size);
    bmi_message_free(again);
}

static void request_try(enum sfs_op op, const uint8_t *data, size_t size)
{
    struct sfs_request request = {.op = op};
    struct opened opened;
    int result = sfs_request_unpack(message_open(&opened, data, size), &request);
    require(result <= 0);
    if (result == 0) {
        require(request.server < request.servers && request.servers <= SFS_SERVERS_MAX);
        if (request.path != NULL)
            path_try(request.path, request.servers);
        if (request.after != NULL)
            require(strlen(request.after) <= SFS_NAME_MAX);
        require(request.count <=
                (op == SFS_WRITE || op == SFS_READ ? SFS_EXTENTS_MAX : SFS_BATCH_MAX));
        for (uint32_t i = 0; op == SFS_UNLINK && i < request.count; i++)
            path_try(request.u.paths[i], request.servers);
        request_again(&request, size);
    }
    message_close(&opened);
}

static void entries_try(struct bmi_message *message, enum sfs_op op)
{
    struct sfs_entry entry;
    bool more;
    while (sfs_entry_unpack(message, op, &entry, &more) > 0) {
        require(entry.name_size == strlen(entry.name) && entry.name_size > 0);
        require(op == SFS_NAMES || strchr(entry.name, '/') == NULL);
        require(entry.meta.target_size == 0 ||
                memchr(entry.meta.target, 0, entry.meta.target_size) == NULL);
    }
}

static void reply_try(enum sfs_op op, const uint8_t *data, size_t size)
{
    struct opened opened;
    struct bmi_message *message = message_open(&opened, data, size);
    struct sfs_former formers[2];
    const uint64_t *objects;
    const uint8_t *used;
    size_t count;
    bool more;
    if (op == SFS_LIST || op == SFS_NAMES)
        entries_try(message, op);
    else if (op == SFS_UNLINK && sfs_formers_unpack(message, formers, 2) == 0)
        require(formers[1].status <= 0 &&
                (formers[1].kind == SFS_FILE) == (formers[1].object != 0));
    else if (op == SFS_OBJECTS &&
             sfs_objects_unpack(message, &objects, &used, &count, &more) == 0 && count > 0)
        require(touch(objects, count * sizeof *objects) + touch(used, count) != UINT64_MAX);
    message_close(&opened);
}

static void meta_try(const uint8_t *data, size_t size)
{
    struct sfs_meta meta;
    uint8_t again[SFS_META_MAX];
    uint8_t *copy = malloc(size > 0 ? size : 1);
    memcpy(copy, data, size);
    if (sfs_meta_decode(&meta, copy, size) == 0)
        require(sfs_meta_encode(&meta, again) == size && memcmp(again, copy, size) == 0);
    sfs_path_check((const char *)copy, size);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    enum sfs_op op = (enum sfs_op)(SFS_WRITE + data[0] % (SFS_OPS - 1));
    request_try(op, data + 1, size - 1);
    reply_try(op, data + 1, size - 1);
    meta_try(data + 1, size - 1);
    return 0;
}
