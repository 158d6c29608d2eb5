/* SPDX-License-Identifier: BSD-3-Clause
 *
 * names.c - a server's requests for metadata: COMMIT, LOOKUP, UNLINK, LIST, NAMES. Each name is a
 * key of the store's index, and a list of names is removed in one step.
 */
#include <string.h>

#include "server.h"

static unsigned sync_flag(const struct slot *slot)
{
    return slot->request.flags & SFS_SYNCED ? BMI_TROVE_SYNC : 0;
}

/* ---- COMMIT, LOOKUP -------------------------------------------------------------------------- */

int names_get(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = slot_options(machine);
    struct bmi_trove_place place = index_of(slot->server);
    char *key = slot->u.list.keys[0];
    if (slot->request.path_size == 1)
        return slot->request.op == SFS_LOOKUP ? BMI_SM_DONE : -BMI_EINVAL;
    slot->pairs[0] =
        (struct bmi_trove_pair){key, path_key(key, slot->request.path, slot->request.path_size),
                                slot->u.list.values[0], SFS_META_MAX, 0};
    return bmi_sm_posted(bmi_job_trove_get(slot->server->jobs, &place, slot->pairs, 1, &options,
                                           NULL, &slot->status));
}

/* "/" is in no store and always exists. Choices: 0: reply; 1: put. */
int names_got(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    const struct bmi_trove_pair *pair = &slot->pairs[0];
    bool commit = slot->request.op == SFS_COMMIT;
    (void)machine;
    if (slot->request.path_size == 1) {
        slot->reply.has_meta = true;
        slot->reply.meta = (struct sfs_meta){.kind = SFS_FOLDER, .mode = 0755};
        return 0;
    }
    if (pair->error == -BMI_ENOENT && commit)
        return 1;
    if (pair->error < 0)
        return pair->error;
    if (sfs_meta_decode(&slot->reply.meta, pair->value, (size_t)pair->value_size) < 0)
        return -BMI_EIO;
    slot->reply.has_meta = true;
    return commit ? 1 : 0;
}

/* A folder and a file do not replace each other: the folder's contents would be lost. The former
 * meta's target stays in values[0] until the reply. */
int names_put(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = slot_options(machine);
    struct bmi_trove_place place = index_of(slot->server);
    uint8_t *value = slot->u.list.values[1];
    int64_t size = sfs_meta_encode(&slot->request.meta, value, SFS_META_MAX);
    if (size < 0)
        return (int)size;
    if (slot->reply.has_meta &&
        (slot->reply.meta.kind == SFS_FOLDER) != (slot->request.meta.kind == SFS_FOLDER))
        return slot->reply.meta.kind == SFS_FOLDER ? -BMI_EISDIR : -BMI_ENOTDIR;
    slot->pairs[0].value = value;
    slot->pairs[0].value_size = size;
    return bmi_sm_posted(bmi_job_trove_put(slot->server->jobs, &place, slot->pairs, 1,
                                           sync_flag(slot), &options, NULL, &slot->status));
}

/* ---- UNLINK ---------------------------------------------------------------------------------- */

int names_find(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = slot_options(machine);
    struct bmi_trove_place place = index_of(slot->server);
    const uint8_t *at = slot->request.paths, *end = at + slot->request.paths_size;
    char path[SFS_PATH_MAX + 1];
    for (int i = 0; i < slot->request.path_count; i++) {
        char *key = slot->u.batch.keys[i];
        uint16_t size = sfs_path_take(path, &at, end);
        if (size == 1)
            return -BMI_EINVAL;
        slot->pairs[i] = (struct bmi_trove_pair){key, path_key(key, path, size),
                                                 slot->u.batch.values[i], HEADER_ROOM, 0};
    }
    return bmi_sm_posted(bmi_job_trove_get(slot->server->jobs, &place, slot->pairs,
                                           slot->request.path_count, &options, NULL,
                                           &slot->status));
}

/* The former entry of a path. Only a link's meta may be too long for the room. */
static struct sfs_former former_of(const struct bmi_trove_pair *pair)
{
    struct sfs_meta meta;
    if (pair->error == -BMI_EMSGSIZE)
        return (struct sfs_former){.kind = SFS_LINK};
    if (pair->error < 0)
        return (struct sfs_former){.status = pair->error};
    if (sfs_meta_decode(&meta, pair->value, (size_t)pair->value_size) < 0)
        return (struct sfs_former){.status = -BMI_EIO};
    bool file = meta.kind == SFS_FILE;
    return (struct sfs_former){.kind = meta.kind,
                               .object = file ? meta.object : 0,
                               .holders = file ? meta.holders : 0};
}

int names_remove(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = slot_options(machine);
    struct bmi_trove_place place = index_of(slot->server);
    slot->reply.entries = slot->entries;
    for (int i = 0; i < slot->request.path_count; i++) {
        struct sfs_former former = former_of(&slot->pairs[i]);
        int64_t size = sfs_former_encode(&former, slot->entries + slot->reply.entries_size,
                                         SFS_REPLY_MAX - REPLY_RESERVE - slot->reply.entries_size);
        if (size < 0)
            return (int)size;
        slot->reply.entries_size += (size_t)size;
    }
    return bmi_sm_posted(bmi_job_trove_remove_keys(slot->server->jobs, &place, slot->pairs,
                                                   slot->request.path_count, sync_flag(slot),
                                                   &options, NULL, &slot->status));
}

int names_removed(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    (void)machine;
    slot->reply.entry_count = slot->request.path_count;
    return BMI_SM_DONE;
}

/* ---- LIST, NAMES ----------------------------------------------------------------------------- */

/* NAMES begins at the first key, or after that of the path. */
int names_begin(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    const struct sfs_request *request = &slot->request;
    char *key = (char *)slot->position.key;
    bmi_size_t size;
    (void)machine;
    slot->reply.entries = slot->entries;
    if (request->op == SFS_NAMES) {
        size = request->path_size > 1 ? path_key(key, request->path, request->path_size) : 1;
        key[0] = 'N';
    } else {
        size = folder_key(key, request->path, request->path_size);
        if (size + request->after_size > BMI_TROVE_KEY_MAX)
            return -BMI_ENAMETOOLONG;
        memcpy(key + size, request->after, request->after_size);
        size += request->after_size;
    }
    slot->position.key_size = (uint32_t)size;
    return BMI_SM_DONE;
}

int names_iterate(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = slot_options(machine);
    struct bmi_trove_place place = index_of(slot->server);
    for (int i = 0; i < LISTED; i++)
        slot->pairs[i] = (struct bmi_trove_pair){slot->u.list.keys[i], BMI_TROVE_KEY_MAX,
                                                 slot->u.list.values[i], SFS_META_MAX, 0};
    return bmi_sm_posted(bmi_job_trove_iterate(slot->server->jobs, &place, &slot->position,
                                               slot->pairs, LISTED, &options, NULL, &slot->status));
}

/* The entry's name: for LIST within the folder, for NAMES its path. Returns false if the key is not
 * one of the folder, or not a name. */
static bool entry_name(const struct slot *slot, const struct bmi_trove_pair *pair,
                       struct sfs_entry *entry)
{
    char folder[BMI_TROVE_KEY_MAX];
    if (slot->request.op == SFS_NAMES) {
        entry->name_size = (uint16_t)key_path(entry->name, pair->key, (size_t)pair->key_size);
        return entry->name_size > 0;
    }
    bmi_size_t prefix = folder_key(folder, slot->request.path, slot->request.path_size);
    if (pair->key_size <= prefix || memcmp(pair->key, folder, (size_t)prefix) != 0)
        return false;
    entry->name_size = (uint16_t)(pair->key_size - prefix);
    memcpy(entry->name, (const char *)pair->key + prefix, entry->name_size);
    return true;
}

/* Takes an entry into the reply. Returns 0; 1: no more of this folder, or no room. */
static int entry_take(struct slot *slot, const struct bmi_trove_pair *pair)
{
    struct sfs_entry entry;
    if (pair->error < 0)
        return pair->error;
    if (!entry_name(slot, pair, &entry))
        return 1;
    if (sfs_meta_decode(&entry.meta, pair->value, (size_t)pair->value_size) < 0)
        return -BMI_EIO;
    int64_t size = sfs_entry_encode(&entry, slot->entries + slot->reply.entries_size,
                                    SFS_REPLY_MAX - REPLY_RESERVE - slot->reply.entries_size);
    if (size < 0) {
        slot->reply.more = true;
        return 1;
    }
    slot->reply.entries_size += (size_t)size;
    slot->reply.entry_count++;
    return 0;
}

/* Choices: 0: iterate again; 1: reply. */
int names_collect(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    (void)machine;
    for (int i = 0; i < (int)slot->status.actual; i++) {
        int result = entry_take(slot, &slot->pairs[i]);
        if (result != 0)
            return result;
    }
    return slot->status.actual < LISTED;
}
