/* SPDX-License-Identifier: BSD-3-Clause
 *
 * remove.c - the verb rm. The tree is collected first, level by level, then removed by several
 * machines at a time, each of which takes a batch of names that are on one server:
 *
 *   next -> unlink: the names -> drop: their bytes -> over -> next
 *                         failed ------------------> over
 *
 * A folder is removed after all its entries, so `left` counts the remaining ones, and one more
 * while they are being collected. A folder that keeps any entry stays, and so do its parents.
 */
#include <stdlib.h>
#include <string.h>

#include "client.h"

enum { LEVEL_MOST = 256 };

struct victim {
    char *path;
    bool folder;
    uint64_t object, holders; /* of a file: as listed */
    struct victim *parent;    /* NULL: an argument */
    struct victim *next;      /* of all */
    struct victim *next_ready;
    size_t left;
    bool failed;
};

struct removal {
    struct client *client;
    struct victim *all;
    struct victim *entered; /* in `all`: this one and later ones have been collected */
    struct victim *ready[SFS_SERVERS_MAX]; /* by the server that has the name */
};

struct remover {
    struct removal *removal;
    struct victim *victims[SFS_BATCH_MAX];
    int count, server;
    struct sfs_former formers[SFS_BATCH_MAX]; /* in the order of the victims */
    struct rpc *rpcs;                         /* one a server */
};

/* ---- collecting ------------------------------------------------------------------------------ */

/* "/" has no name to remove. */
static void ready_push(struct removal *removal, struct victim *victim)
{
    struct victim **at = &removal->ready[path_server(removal->client, victim->path)];
    if (strcmp(victim->path, "/") == 0)
        return;
    victim->next_ready = *at;
    *at = victim;
}

/* An entry of a victim is done. After the last one the victim may be removed, or it stays, and then
 * its parent stays, too. */
static void settle(struct removal *removal, struct victim *victim, bool failed)
{
    while (victim != NULL) {
        victim->failed = victim->failed || failed;
        if (--victim->left > 0)
            return;
        if (!victim->failed) {
            ready_push(removal, victim);
            return;
        }
        failed = true;
        victim = victim->parent;
    }
}

static struct victim *victim_add(struct removal *removal, const char *path,
                                 const struct sfs_meta *meta, struct victim *parent)
{
    struct victim *victim = calloc(1, sizeof *victim);
    char *copy = strdup(path);
    if (victim == NULL || copy == NULL) {
        free(copy);
        free(victim);
        return NULL;
    }
    *victim = (struct victim){.path = copy,
                              .folder = meta->kind == SFS_FOLDER,
                              .object = meta->kind == SFS_FILE ? meta->object : 0,
                              .holders = meta->holders,
                              .parent = parent,
                              .next = removal->all,
                              .left = 1};
    removal->all = victim;
    if (parent != NULL)
        parent->left++;
    return victim;
}

/* A folder's entries become victims. */
static void entries_add(struct removal *removal, struct victim *folder,
                        const struct listing *listing)
{
    struct client *client = removal->client;
    int error = listing->error;
    if (error == 0 && listing->count > 0 && !client->recursive)
        error = -BMI_ENOTEMPTY;
    for (size_t i = 0; i < listing->count && error == 0; i++) {
        const struct sfs_entry *entry = &listing->entries[i];
        char *path = path_join(client, folder->path, entry->name);
        struct victim *victim =
            path != NULL ? victim_add(removal, path, &entry->meta, folder) : NULL;
        if (victim == NULL)
            error = -BMI_ENOMEM;
        else if (!victim->folder)
            settle(removal, victim, false);
        free(path);
    }
    if (error < 0) {
        if (listing->failure != NULL)
            strncpy(client->failure, listing->failure, sizeof client->failure - 1);
        client_complain(client, folder->path, error);
    }
    settle(removal, folder, error < 0);
}

/* Lists some folders at once, and adds their entries. */
static void folders_enter(struct removal *removal, struct victim **folders, size_t count)
{
    struct client *client = removal->client;
    struct listing *listings = calloc(count, sizeof *listings);
    struct listing none = {.error = -BMI_ENOMEM};
    for (size_t i = 0; i < count && listings != NULL; i++)
        listings[i].path = folders[i]->path;
    if (listings != NULL)
        lists_read(client, listings, count);
    for (size_t i = 0; i < count; i++) {
        entries_add(removal, folders[i], listings != NULL ? &listings[i] : &none);
        if (listings != NULL)
            list_free(&listings[i]);
    }
    free(listings);
}

/* New victims are inserted first, so that each level is complete before it is entered. */
static void levels_enter(struct removal *removal)
{
    struct victim *folders[LEVEL_MOST];
    while (removal->all != removal->entered) {
        struct victim *until = removal->entered;
        size_t count = 0;
        removal->entered = removal->all;
        for (struct victim *victim = removal->entered; victim != until; victim = victim->next) {
            if (victim->folder)
                folders[count++] = victim;
            if (count == LEVEL_MOST) {
                folders_enter(removal, folders, count);
                count = 0;
            }
        }
        if (count > 0)
            folders_enter(removal, folders, count);
    }
}

/* ---- removing -------------------------------------------------------------------------------- */

/* Takes victims of one server; each call prefers another server. */
static void batch_take(struct remover *remover)
{
    struct removal *removal = remover->removal;
    struct client *client = removal->client;
    remover->count = 0;
    for (int tries = 0; tries < client->count; tries++) {
        remover->server = (remover->server + 1) % client->count;
        if (removal->ready[remover->server] != NULL)
            break;
    }
    struct victim **ready = &removal->ready[remover->server];
    struct rpc *rpc = &remover->rpcs[remover->server];
    rpc_make(rpc, client, remover->server, SFS_UNLINK, NULL);
    rpc->formers = remover->formers;
    while (*ready != NULL && remover->count < SFS_BATCH_MAX) {
        struct victim *victim = *ready;
        *ready = victim->next_ready;
        rpc->request.u.paths[remover->count] = victim->path;
        remover->victims[remover->count++] = victim;
    }
    rpc->request.count = (uint32_t)remover->count;
}

/* Choices: 0: no name may be removed now; 1: unlink. A machine that makes a folder ready takes it
 * itself. */
static int next(struct bmi_sm *machine, void *data)
{
    struct remover *remover = data;
    (void)machine;
    if (remover->removal->client->ended != 0)
        return 0;
    batch_take(remover);
    return remover->count > 0;
}

static int unlink_names(struct bmi_sm *machine, void *data)
{
    struct remover *remover = data;
    return rpc_start(&remover->rpcs[remover->server], machine);
}

/* Handles each name's result. A name that an earlier try has removed already had the
 * listed entry. */
static void formers_settle(struct remover *remover)
{
    struct client *client = remover->removal->client;
    bool retried = remover->rpcs[remover->server].retried;
    for (int i = 0; i < remover->count; i++) {
        struct victim *victim = remover->victims[i];
        const struct sfs_former *former = &remover->formers[i];
        if (former->status == -BMI_ENOENT && retried)
            continue;
        if (former->status < 0) {
            victim->failed = true;
            victim->object = 0;
            client_complain(client, victim->path, (int)former->status);
            continue;
        }
        victim->object = former->object;
        victim->holders = former->holders;
    }
}

static int drop(struct bmi_sm *machine, void *data)
{
    struct remover *remover = data;
    struct client *client = remover->removal->client;
    formers_settle(remover);
    for (int server = 0; server < client->count; server++) {
        struct rpc *rpc = &remover->rpcs[server];
        rpc_make(rpc, client, server, SFS_DROP, NULL);
        rpc->quiet = true;
        for (int i = 0; i < remover->count; i++) {
            const struct victim *victim = remover->victims[i];
            if (victim->object != 0 && (victim->holders >> server & 1))
                rpc->request.u.objects[rpc->request.count++] = victim->object;
        }
        int result = rpc->request.count > 0 ? rpc_start(rpc, machine) : BMI_SM_DEFERRED;
        if (result != BMI_SM_DEFERRED)
            return result;
    }
    return BMI_SM_DEFERRED;
}

static int failed(struct bmi_sm *machine, void *data)
{
    struct remover *remover = data;
    struct client *client = remover->removal->client;
    char failure[sizeof client->failure];
    memcpy(failure, client->failure, sizeof failure);
    for (int i = 0; i < remover->count; i++) {
        remover->victims[i]->failed = true;
        memcpy(client->failure, failure, sizeof failure);
        client_complain(client, remover->victims[i]->path, bmi_sm_last(machine));
    }
    return BMI_SM_DONE;
}

static int over(struct bmi_sm *machine, void *data)
{
    struct remover *remover = data;
    (void)machine;
    for (int i = 0; i < remover->count; i++)
        settle(remover->removal, remover->victims[i]->parent, remover->victims[i]->failed);
    return BMI_SM_DONE;
}

enum { NEXT, UNLINK, DROP, FAILED, OVER, STATES };

static const struct bmi_sm_state remover_states[STATES] = {
    [NEXT] = {"next", .action = next, .choices = 2,
              .on = {BMI_SM_ON(0, BMI_SM_END), BMI_SM_ELSE(UNLINK)}},
    [UNLINK] = {"unlink", .action = unlink_names, .on = {BMI_SM_OK(DROP), BMI_SM_FAIL(FAILED)}},
    [DROP] = {"drop", .action = drop, .on = {BMI_SM_ELSE(OVER)}},
    [FAILED] = {"failed", .action = failed, .on = {BMI_SM_ELSE(OVER)}},
    [OVER] = {"over", .action = over, .on = {BMI_SM_ELSE(NEXT)}},
};
static struct bmi_sm_table remover_table = BMI_SM_TABLE("remover", remover_states);

static void removal_run(struct removal *removal)
{
    struct client *client = removal->client;
    struct remover *removers = calloc((size_t)client->parallel, sizeof *removers);
    int result = removers == NULL ? -BMI_ENOMEM : 0;
    for (int i = 0; i < client->parallel && result == 0; i++) {
        removers[i].removal = removal;
        removers[i].server = i; /* each begins with another server */
        removers[i].rpcs = calloc((size_t)client->count, sizeof *removers[i].rpcs);
        result = removers[i].rpcs == NULL ? -BMI_ENOMEM : 0;
    }
    if (result == 0)
        result = client_run_many(client, &remover_table, removers, (size_t)client->parallel,
                                 sizeof *removers);
    if (result < 0)
        client_complain(client, "rm", result);
    for (int i = 0; removers != NULL && i < client->parallel; i++)
        free(removers[i].rpcs);
    free(removers);
}

int verb_rm(struct client *client, int count, char **arguments)
{
    struct removal removal = {.client = client};
    struct sfs_meta meta;
    bool slash;
    for (int i = 0; i < count; i++) {
        if (!path_take(client, arguments[i], &slash))
            continue;
        int result = lookup_argument(client, arguments[i], slash, &meta);
        struct victim *victim =
            result == 0 ? victim_add(&removal, arguments[i], &meta, NULL) : NULL;
        if (victim == NULL)
            client_complain(client, arguments[i], result < 0 ? result : -BMI_ENOMEM);
        else if (!victim->folder)
            settle(&removal, victim, false);
    }
    levels_enter(&removal);
    removal_run(&removal);
    for (struct victim *victim = removal.all, *following; victim != NULL; victim = following) {
        following = victim->next;
        free(victim->path);
        free(victim);
    }
    return client->failures > 0;
}
