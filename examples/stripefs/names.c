/* SPDX-License-Identifier: BSD-3-Clause
 *
 * names.c - a server's requests for metadata: COMMIT, LOOKUP, UNLINK, LIST, NAMES. Each name is a
 * key of the store's index, and a list of names is removed in one step.
 */
#include <stdlib.h>
#include <string.h>

#include "server.h"

static unsigned sync_flag(const struct served *served)
{
    return served->request.flags & SFS_SYNCED ? BMI_TROVE_SYNC : 0;
}

/* Room for `count` keys and values, in `pairs`. */
static int pairs_make(struct served *served, size_t count, size_t value_room)
{
    size_t each = BMI_TROVE_KEY_MAX + value_room;
    served->pairs = calloc(count, sizeof *served->pairs);
    served->room = malloc(count * each);
    if (served->pairs == NULL || served->room == NULL)
        return -BMI_ENOMEM;
    for (size_t i = 0; i < count; i++) {
        char *key = (char *)served->room + i * each;
        served->pairs[i] = (struct bmi_trove_pair){key, BMI_TROVE_KEY_MAX, key + BMI_TROVE_KEY_MAX,
                                                   (bmi_size_t)value_room, 0};
    }
    return 0;
}

static void pair_set_key(struct bmi_trove_pair *pair, const char *path)
{
    pair->key_size = path_key(pair->key, path, strlen(path));
}

static bool is_root(const char *path)
{
    return strcmp(path, "/") == 0;
}

/* ---- COMMIT, LOOKUP -------------------------------------------------------------------------- */

int names_get(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    struct bmi_trove_place place = index_of(served->server);
    if (is_root(served->request.path))
        return served->request.op == SFS_LOOKUP ? BMI_SM_DONE : -BMI_EINVAL;
    if (pairs_make(served, 2, SFS_META_MAX) < 0)
        return -BMI_ENOMEM;
    pair_set_key(&served->pairs[0], served->request.path);
    return bmi_sm_posted(bmi_job_trove_get(served->server->jobs, &place, served->pairs, 1,
                                           BMI_SM_MINE(machine), NULL, &served->status));
}

/* A folder and a file do not replace each other: the folder's contents would be lost. */
static int replace_check(const struct sfs_meta *former, const struct sfs_meta *meta)
{
    if ((former->kind == SFS_FOLDER) == (meta->kind == SFS_FOLDER))
        return 0;
    return former->kind == SFS_FOLDER ? -BMI_EISDIR : -BMI_ENOTDIR;
}

/* "/" is in no store and always exists. Choices: 0: reply; 1: put. */
int names_got(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    const struct bmi_trove_pair *pair = served->pairs;
    bool commit = served->request.op == SFS_COMMIT;
    struct sfs_meta meta = {.kind = SFS_FOLDER, .mode = 0755};
    uint8_t root[SFS_META_MAX];
    (void)machine;
    if (is_root(served->request.path)) {
        sfs_meta_pack(served->answer, root, sfs_meta_encode(&meta, root));
        return 0;
    }
    if (pair->error == -BMI_ENOENT && commit) {
        sfs_meta_pack(served->answer, NULL, 0);
        return 1;
    }
    if (pair->error < 0)
        return pair->error;
    if (sfs_meta_decode(&meta, pair->value, (size_t)pair->value_size) < 0)
        return -BMI_EIO;
    sfs_meta_pack(served->answer, pair->value, (size_t)pair->value_size);
    int result = commit ? replace_check(&meta, &served->request.meta) : 0;
    return result < 0 ? result : commit;
}

int names_put(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    struct bmi_trove_place place = index_of(served->server);
    struct bmi_trove_pair *pair = &served->pairs[1];
    pair_set_key(pair, served->request.path);
    pair->value_size = (bmi_size_t)sfs_meta_encode(&served->request.meta, pair->value);
    return bmi_sm_posted(bmi_job_trove_put(served->server->jobs, &place, pair, 1, sync_flag(served),
                                           BMI_SM_MINE(machine), NULL, &served->status));
}

/* ---- UNLINK ---------------------------------------------------------------------------------- */

int names_find(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    const struct sfs_request *request = &served->request;
    struct bmi_trove_place place = index_of(served->server);
    if (pairs_make(served, request->count, HEADER_ROOM) < 0)
        return -BMI_ENOMEM;
    for (uint32_t i = 0; i < request->count; i++) {
        if (is_root(request->u.paths[i]))
            return -BMI_EINVAL;
        pair_set_key(&served->pairs[i], request->u.paths[i]);
    }
    return bmi_sm_posted(bmi_job_trove_get(served->server->jobs, &place, served->pairs,
                                           (int)request->count, BMI_SM_MINE(machine), NULL,
                                           &served->status));
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
    struct served *served = data;
    struct bmi_trove_place place = index_of(served->server);
    struct sfs_former formers[SFS_BATCH_MAX];
    size_t count = served->request.count;
    for (size_t i = 0; i < count; i++)
        formers[i] = former_of(&served->pairs[i]);
    sfs_formers_pack(served->answer, formers, count);
    return bmi_sm_posted(bmi_job_trove_remove_keys(served->server->jobs, &place, served->pairs,
                                                   (int)count, sync_flag(served),
                                                   BMI_SM_MINE(machine), NULL, &served->status));
}

/* ---- LIST, NAMES ----------------------------------------------------------------------------- */

/* NAMES begins at the first key, or after that of the path. */
int names_begin(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    const struct sfs_request *request = &served->request;
    char *key = (char *)served->position.key;
    bmi_size_t size;
    (void)machine;
    if (request->op == SFS_NAMES) {
        size = is_root(request->path) ? 1 : path_key(key, request->path, strlen(request->path));
        key[0] = 'N';
    } else {
        size_t after = strlen(request->after);
        size = folder_key(key, request->path, strlen(request->path));
        if (size + (bmi_size_t)after > BMI_TROVE_KEY_MAX)
            return -BMI_ENAMETOOLONG;
        memcpy(key + size, request->after, after);
        size += (bmi_size_t)after;
    }
    served->position.key_size = (uint32_t)size;
    return pairs_make(served, LISTED, SFS_META_MAX);
}

int names_iterate(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    struct bmi_trove_place place = index_of(served->server);
    for (int i = 0; i < LISTED; i++) {
        served->pairs[i].key_size = BMI_TROVE_KEY_MAX;
        served->pairs[i].value_size = SFS_META_MAX;
    }
    return bmi_sm_posted(bmi_job_trove_iterate(served->server->jobs, &place, &served->position,
                                               served->pairs, LISTED, BMI_SM_MINE(machine), NULL,
                                               &served->status));
}

/* The entry's name: for LIST within the folder, for NAMES its path, SFS_PATH_MAX + 1 bytes with a
 * NUL. Returns false if the key is not one of the folder, or not a name. */
static bool entry_name(const struct served *served, const struct bmi_trove_pair *pair, char *name)
{
    char folder[BMI_TROVE_KEY_MAX];
    const char *path = served->request.path;
    if (served->request.op == SFS_NAMES)
        return key_path(name, pair->key, (size_t)pair->key_size) > 0;
    bmi_size_t prefix = folder_key(folder, path, strlen(path));
    if (pair->key_size <= prefix || pair->key_size - prefix > SFS_PATH_MAX ||
        memcmp(pair->key, folder, (size_t)prefix) != 0)
        return false;
    memcpy(name, (const char *)pair->key + prefix, (size_t)(pair->key_size - prefix));
    name[pair->key_size - prefix] = '\0';
    return true;
}

/* Takes an entry into the reply. Returns 0; 1: no more of this folder. */
static int entry_take(struct served *served, const struct bmi_trove_pair *pair)
{
    struct sfs_meta meta;
    char name[SFS_PATH_MAX + 1];
    if (pair->error < 0)
        return pair->error;
    if (!entry_name(served, pair, name))
        return 1;
    if (sfs_meta_decode(&meta, pair->value, (size_t)pair->value_size) < 0)
        return -BMI_EIO;
    sfs_entry_pack(served->answer, name, pair->value, (size_t)pair->value_size);
    served->size += pair->key_size + pair->value_size;
    return 0;
}

/* Choices: 0: iterate again; 1: reply. */
int names_collect(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    int count = (int)served->status.actual, result = 0;
    (void)machine;
    for (int i = 0; i < count && result == 0; i++)
        result = entry_take(served, &served->pairs[i]);
    if (result < 0)
        return result;
    bool last = result > 0 || count < LISTED, full = served->size >= PAGE_BYTES;
    if (last || full)
        sfs_entries_end(served->answer, !last);
    return last || full;
}
