/* SPDX-License-Identifier: BSD-3-Clause
 *
 * store.c - the contents of a server's store: collection NAMES with one object, INDEX, whose
 * key/values are "V" (the version), "P" (the server's place and the number of servers), and "N..."
 * (metadata, by path); and collection DATA with an object for each file that has bytes here.
 */
#include <stdio.h>
#include <string.h>

#include "server.h"

enum { STORE_VERSION = 1, PATIENCE_MS = 60000 };

struct bmi_trove_place index_of(const struct server *server)
{
    return (struct bmi_trove_place){server->store, NAMES, INDEX};
}

/* Waits for a job, before the server serves. Returns its error. */
static int await(struct server *server, int posted, bmi_job_id_t id, struct bmi_job_status *status)
{
    int count = 0;
    if (posted != 0)
        return posted < 0 ? posted : status->error;
    int result = bmi_job_test(server->jobs, id, &count, status, PATIENCE_MS);
    return result < 0 ? result : count == 0 ? -BMI_ETIMEDOUT : status->error;
}

static int pair_get(struct server *server, struct bmi_trove_pair *pair)
{
    struct bmi_trove_place place = index_of(server);
    struct bmi_job_status status;
    bmi_job_id_t id;
    int posted = bmi_job_trove_get(server->jobs, &place, pair, 1, NULL, &id, &status);
    int result = await(server, posted, id, &status);
    return result < 0 ? result : pair->error;
}

static int pair_put(struct server *server, struct bmi_trove_pair *pair)
{
    struct bmi_trove_place place = index_of(server);
    struct bmi_job_status status;
    bmi_job_id_t id;
    int posted =
        bmi_job_trove_put(server->jobs, &place, pair, 1, BMI_TROVE_SYNC, NULL, &id, &status);
    return await(server, posted, id, &status);
}

static int refuse(const char *folder, const char *cause)
{
    fprintf(stderr, "bmi-stripefsd: store %s: %s\n", folder, cause);
    return -1;
}

/* A new store gets collections, index, and version; an existing one must be of this version. The
 * version is written last: an incomplete store is created again. */
static int version_check(struct server *server, const char *folder)
{
    uint8_t version = 0;
    struct bmi_trove_pair pair = {(void *)"V", 1, &version, 1, 0};
    struct bmi_trove_place place = index_of(server);
    bmi_trove_object_id_t object = INDEX;
    struct bmi_job_status status;
    bmi_job_id_t id;
    char text[128];
    int result = pair_get(server, &pair);
    if (result == 0 && pair.value_size == 1 && version == STORE_VERSION)
        return 0;
    if (result == 0) {
        snprintf(text, sizeof text, "is of version %u; this program knows version %d", version,
                 STORE_VERSION);
        return refuse(folder, text);
    }
    if (result != -BMI_ENOENT)
        return refuse(folder, bmi_status_string(result));
    bmi_trove_collection_id_t other = 0;
    while (bmi_trove_collection_next(server->store, &other) == 0) {
        if (other > DATA)
            return refuse(folder, "is not a stripefs store");
        other++;
    }
    bmi_trove_collection_create(server->store, NAMES);
    bmi_trove_collection_create(server->store, DATA);
    int posted =
        bmi_job_trove_create(server->jobs, &place, &object, BMI_TROVE_SYNC, NULL, &id, &status);
    result = await(server, posted, id, &status);
    version = STORE_VERSION;
    pair = (struct bmi_trove_pair){(void *)"V", 1, &version, 1, 0};
    if (result == 0 || result == -BMI_EEXIST)
        result = pair_put(server, &pair);
    return result < 0 ? refuse(folder, bmi_status_string(result)) : 0;
}

/* The place of a new store is the one given; a store that has one keeps it. No client may set it:
 * the first wrong list of servers would make the store useless. */
static int place_take(struct server *server, const char *folder, unsigned position, unsigned count)
{
    uint32_t given = position << 16 | count, place = given;
    struct bmi_trove_pair pair = {(void *)"P", 1, &place, sizeof place, 0};
    char text[128];
    int result = pair_get(server, &pair);
    if (result == -BMI_ENOENT && count == 0)
        return refuse(
            folder, "is new: give --place N/COUNT, this server's number and the number of servers");
    if (result == -BMI_ENOENT) {
        place = given;
        pair = (struct bmi_trove_pair){(void *)"P", 1, &place, sizeof place, 0};
        result = pair_put(server, &pair);
    }
    if (result < 0)
        return refuse(folder, bmi_status_string(result));
    server->position = place >> 16;
    server->count = place & 0xffff;
    if (count == 0 || place == given)
        return 0;
    snprintf(text, sizeof text, "is that of server %u/%u, not %u/%u", server->position + 1,
             server->count, position + 1, count);
    return refuse(folder, text);
}

int store_open(struct server *server, const char *folder, unsigned position, unsigned count)
{
    /* Every operation completes through its job, which has the count of an iteration. Careful: a
     * put without sync must not endanger data that others put with sync. */
    struct bmi_trove_settings settings = {.create = true, .no_immediate = true, .careful = true};
    char where[4096], error[512] = "";
    bool kind_told = strncmp(folder, "dir:", 4) == 0 || strcmp(folder, "mem:") == 0;
    if (snprintf(where, sizeof where, "%s%s", kind_told ? "" : "dir:", folder) >= (int)sizeof where)
        return refuse(folder, "the name is too long");
    int result = bmi_trove_open(&server->store, where, &settings, error, sizeof error);
    if (result < 0)
        return refuse(folder, error[0] != '\0' ? error : bmi_status_string(result));
    if (version_check(server, folder) < 0)
        return -1;
    return place_take(server, folder, position, count);
}

void store_fault(struct server *server, uint64_t skip)
{
    struct bmi_trove_fault fault = {.kinds = BMI_TROVE_ALL,
                                    .skip = skip,
                                    .times = 1,
                                    .error = -BMI_ENOSPC};
    bmi_trove_inject(server->store, &fault);
}

bmi_size_t path_key(char *key, const char *path, size_t size)
{
    size_t name = sfs_path_name(path, size);
    size_t folder = name > 1 ? name - 1 : 1; /* of "/a" it is "/" */
    key[0] = 'N';
    memcpy(key + 1, path, folder);
    key[1 + folder] = '\0';
    memcpy(key + 2 + folder, path + name, size - name);
    return (bmi_size_t)(2 + folder + size - name);
}

bmi_size_t folder_key(char *key, const char *path, size_t size)
{
    key[0] = 'N';
    memcpy(key + 1, path, size);
    key[1 + size] = '\0';
    return (bmi_size_t)(2 + size);
}

size_t key_path(char *path, const char *key, size_t size)
{
    const char *end = size > 1 ? memchr(key + 1, '\0', size - 1) : NULL;
    if (key[0] != 'N' || end == NULL || size > SFS_PATH_MAX + 2)
        return 0;
    size_t folder = (size_t)(end - key) - 1, name = size - folder - 2;
    if (folder == 1)
        folder = 0; /* "/" */
    if (folder + 1 + name > SFS_PATH_MAX)
        return 0;
    memcpy(path, key + 1, folder);
    path[folder] = '/';
    memcpy(path + folder + 1, end + 1, name);
    path[folder + 1 + name] = '\0';
    return folder + 1 + name;
}
