/* SPDX-License-Identifier: BSD-3-Clause
 *
 * check.c - the verb check: compares the objects of all servers with all names. It finds
 *
 *   - objects without a name, which killed clients and servers leave behind; --repair removes them;
 *     - files some of whose objects are missing; - names in folders that do not exist; --repair
 *     creates these.
 *
 * The objects are listed before the names, so that a file that is put meanwhile is no orphan.
 * Objects that a connected client has written are no orphans either: the servers know those.
 */
#include <stdlib.h>
#include <string.h>

#include "client.h"

/* A named file's object, or an object of a server. */
struct item {
    uint64_t object, holders; /* of a server's: only that server's bit */
    size_t name;              /* in `paths` */
};

struct items {
    struct item *list;
    size_t count, room;
};

struct check {
    struct client *client;
    struct items stored[SFS_SERVERS_MAX]; /* by object */
    struct items named;                   /* by object */
    char **paths;                         /* of all names, with their kind in front, in order */
    size_t path_count, path_room;
    unsigned long used, orphans, damaged, lost;
};

static int item_add(struct items *items, struct item item)
{
    if (items->count == items->room) {
        size_t room = items->room != 0 ? items->room * 2 : 1024;
        struct item *grown = realloc(items->list, room * sizeof *grown);
        if (grown == NULL)
            return -BMI_ENOMEM;
        items->list = grown;
        items->room = room;
    }
    items->list[items->count++] = item;
    return 0;
}

static int item_order(const void *one, const void *other)
{
    const struct item *a = one, *b = other;
    return (a->object > b->object) - (a->object < b->object);
}

static void items_sort(struct items *items)
{
    if (items->count > 0)
        qsort(items->list, items->count, sizeof *items->list, item_order);
}

static struct item *item_find(const struct items *items, uint64_t object)
{
    struct item key = {.object = object};
    return items->count == 0
               ? NULL
               : bsearch(&key, items->list, items->count, sizeof *items->list, item_order);
}

/* ---- reading the servers --------------------------------------------------------------------- */

static int object_add(struct rpc *rpc, uint64_t object, bool used)
{
    struct check *check = rpc->taker;
    check->used += used;
    return item_add(&check->stored[rpc->server],
                    (struct item){object, (uint64_t)!used << rpc->server, 0});
}

static int objects_read(struct check *check, int server)
{
    struct items *stored = &check->stored[server];
    struct rpc rpc;
    int result;
    do {
        rpc_make(&rpc, check->client, server, SFS_OBJECTS, NULL);
        rpc.request.object = stored->count > 0 ? stored->list[stored->count - 1].object : 0;
        rpc.object_take = object_add;
        rpc.taker = check;
        result = rpc_call(&rpc);
    } while (result == 0 && rpc.reply.more);
    items_sort(stored);
    return result;
}

static int name_add(struct rpc *rpc, const struct sfs_entry *entry)
{
    struct check *check = rpc->taker;
    if (check->path_count == check->path_room) {
        size_t room = check->path_room != 0 ? check->path_room * 2 : 1024;
        char **grown = realloc(check->paths, room * sizeof *grown);
        if (grown == NULL)
            return -BMI_ENOMEM;
        check->paths = grown;
        check->path_room = room;
    }
    char *path = malloc((size_t)entry->name_size + 2);
    if (path == NULL)
        return -BMI_ENOMEM;
    path[0] = (char)entry->meta.kind;
    memcpy(path + 1, entry->name, (size_t)entry->name_size + 1);
    check->paths[check->path_count++] = path;
    if (entry->meta.kind != SFS_FILE)
        return 0;
    return item_add(&check->named,
                    (struct item){entry->meta.object, entry->meta.holders, check->path_count - 1});
}

static int names_read(struct check *check, int server)
{
    char last[SFS_PATH_MAX + 1] = "/";
    struct rpc rpc;
    int result;
    do {
        rpc_make(&rpc, check->client, server, SFS_NAMES, last);
        rpc.entry_take = name_add;
        rpc.taker = check;
        result = rpc_call(&rpc);
        if (rpc.reply.more)
            strcpy(last, check->paths[check->path_count - 1] + 1);
    } while (result == 0 && rpc.reply.more);
    return result;
}

/* Complains of a server that does not answer: without it the check has no result. */
static int servers_read(struct check *check)
{
    struct client *client = check->client;
    for (int pass = 0; pass < 2; pass++)
        for (int server = 0; server < client->count; server++) {
            int result = pass == 0 ? objects_read(check, server) : names_read(check, server);
            if (result < 0) {
                client_complain(client, client->urls[server], result);
                return result;
            }
        }
    items_sort(&check->named);
    return 0;
}

/* ---- orphans --------------------------------------------------------------------------------- */

static void orphans_drop(struct check *check, int server, struct rpc *rpc)
{
    struct client *client = check->client;
    if (rpc->request.count == 0)
        return;
    int result = rpc_call(rpc);
    if (result < 0)
        client_complain(client, client->urls[server], result);
    rpc_make(rpc, client, server, SFS_DROP, NULL);
}

static void orphans_find(struct check *check, int server)
{
    struct client *client = check->client;
    struct rpc rpc;
    rpc_make(&rpc, client, server, SFS_DROP, NULL);
    for (size_t i = 0; i < check->stored[server].count; i++) {
        const struct item *stored = &check->stored[server].list[i];
        const struct item *named = item_find(&check->named, stored->object);
        if (stored->holders == 0 || (named != NULL && (named->holders >> server & 1)))
            continue;
        check->orphans++;
        printf("server %s: object %016llx has no name%s\n", client->urls[server],
               (unsigned long long)stored->object, client->repair ? ": removed" : "");
        if (!client->repair)
            continue;
        rpc.request.u.objects[rpc.request.count++] = stored->object;
        if (rpc.request.count == SFS_BATCH_MAX)
            orphans_drop(check, server, &rpc);
    }
    orphans_drop(check, server, &rpc);
}

/* ---- files with missing parts ---------------------------------------------------------------- */

static int object_seek(struct rpc *rpc, uint64_t object, bool used)
{
    uint64_t *wanted = rpc->taker;
    (void)used;
    if (object == *wanted)
        *wanted = 0;
    return 0;
}

static bool object_there(struct check *check, int server, uint64_t object)
{
    struct rpc rpc;
    rpc_make(&rpc, check->client, server, SFS_OBJECTS, NULL);
    rpc.request.object = object - 1;
    rpc.object_take = object_seek;
    rpc.taker = &object;
    return rpc_call(&rpc) < 0 || object == 0;
}

/* It may have been put after the objects were listed, or removed since: then no part is missing. */
static bool part_missing(struct check *check, const struct item *named, int server)
{
    struct sfs_meta meta;
    if (!(named->holders >> server & 1) ||
        item_find(&check->stored[server], named->object) != NULL ||
        object_there(check, server, named->object))
        return false;
    int result = lookup(check->client, check->paths[named->name] + 1, &meta);
    check->client->failure[0] = '\0';
    return result == 0 && meta.kind == SFS_FILE && meta.object == named->object;
}

static void damaged_find(struct check *check)
{
    struct client *client = check->client;
    for (size_t i = 0; i < check->named.count; i++) {
        const struct item *named = &check->named.list[i];
        bool damaged = false;
        for (int server = 0; server < client->count; server++) {
            if (!part_missing(check, named, server))
                continue;
            damaged = true;
            sfs_name_print(stdout, check->paths[named->name] + 1);
            printf(": its part on server %s is missing\n", client->urls[server]);
        }
        check->damaged += damaged;
    }
}

/* ---- names that no folder leads to ----------------------------------------------------------- */

static int path_order(const void *one, const void *other)
{
    return strcmp(*(char *const *)one + 1, *(char *const *)other + 1);
}

static bool folder_known(const struct check *check, char *folder)
{
    char **found =
        bsearch(&folder, check->paths, check->path_count, sizeof *check->paths, path_order);
    return found != NULL && (*found)[0] == SFS_FOLDER;
}

static int folder_make(struct client *client, const char *path)
{
    struct rpc rpc;
    rpc_make(&rpc, client, path_server(client, path), SFS_COMMIT, path);
    rpc.request.meta = (struct sfs_meta){.kind = SFS_FOLDER, .mode = 0700};
    return rpc_call(&rpc);
}

/* In the order of paths a folder comes before its entries, and the entries of a lost folder follow
 * each other; so each lost folder is found once, except some that have other names between. */
static void lost_find(struct check *check)
{
    struct client *client = check->client;
    char folder[SFS_PATH_MAX + 2], last[SFS_PATH_MAX + 2] = "";
    if (check->path_count > 0)
        qsort(check->paths, check->path_count, sizeof *check->paths, path_order);
    for (size_t i = 0; i < check->path_count; i++) {
        strcpy(folder, check->paths[i]);
        for (char *slash; (slash = strrchr(folder + 1, '/')) > folder + 1;) {
            *slash = '\0';
            if (folder_known(check, folder) || strcmp(folder + 1, last) == 0)
                break;
            strcpy(last, folder + 1);
            struct sfs_meta meta;
            if (lookup(client, last, &meta) == 0 && meta.kind == SFS_FOLDER)
                break; /* created meanwhile */
            client->failure[0] = '\0';
            int result = client->repair ? folder_make(client, last) : 0;
            check->lost++;
            sfs_name_print(stdout, last);
            printf(": has entries but does not exist%s\n", client->repair ? ": created" : "");
            if (result < 0)
                client_complain(client, last, result);
        }
    }
}

/* ---- the verb -------------------------------------------------------------------------------- */

static void check_free(struct check *check)
{
    for (int server = 0; server < SFS_SERVERS_MAX; server++)
        free(check->stored[server].list);
    for (size_t i = 0; i < check->path_count; i++)
        free(check->paths[i]);
    free(check->paths);
    free(check->named.list);
}

int verb_check(struct client *client, int count, char **arguments)
{
    struct check check = {.client = client};
    (void)count;
    (void)arguments;
    if (servers_read(&check) == 0) {
        for (int server = 0; server < client->count; server++)
            orphans_find(&check, server);
        damaged_find(&check);
        lost_find(&check);
        printf("%zu names, %lu objects in use by clients; objects without a name: %lu, files with "
               "missing parts: %lu, missing folders: %lu\n",
               check.path_count, check.used, check.orphans, check.damaged, check.lost);
    }
    check_free(&check);
    bool left = check.damaged > 0 || (!client->repair && (check.orphans > 0 || check.lost > 0));
    return client->failures > 0 || left;
}
