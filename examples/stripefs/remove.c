/* SPDX-License-Identifier: BSD-3-Clause
 *
 * remove.c - rm: what is to go is collected first, then removed by several machines at a time:
 *
 *   next -> unlink: its name -> drop: its bytes -> over -> next
 *                      failed ------------------> over
 *
 * A folder goes when all that was in it has gone, so `left` counts what has not, and one more while
 * it is being collected. One that keeps anything stays, and so do those that it is in.
 */
#include <stdlib.h>
#include <string.h>

#include "client.h"

struct victim {
    char *path;
    struct victim *parent, *next; /* NULL: named by the user; in the list of all */
    struct victim *next_ready;
    size_t left;
    bool failed;
};

struct removal {
    struct client *client;
    struct victim *all, *ready;
};

struct remover {
    struct removal *removal;
    struct victim *victim;
    struct sfs_meta meta; /* of what was unlinked */
    struct rpc *rpcs;     /* one a server */
};

/* ---- what is to go --------------------------------------------------------------------------- */

static void ready_push(struct removal *removal, struct victim *victim)
{
    victim->next_ready = removal->ready;
    removal->ready = victim;
}

/* One of what a victim waits for is done with: the victim may go, or stays, which is told upwards.
 */
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

static struct victim *victim_add(struct removal *removal, const char *path, struct victim *parent)
{
    struct victim *victim = calloc(1, sizeof *victim);
    char *copy = strdup(path);
    if (victim == NULL || copy == NULL) {
        free(copy);
        free(victim);
        return NULL;
    }
    *victim = (struct victim){.path = copy, .parent = parent, .next = removal->all, .left = 1};
    removal->all = victim;
    if (parent != NULL)
        parent->left++;
    return victim;
}

/* A victim and all that is in it. */
static void collect(struct removal *removal, const char *path, const struct sfs_meta *meta,
                    struct victim *parent)
{
    struct client *client = removal->client;
    struct listing listing = {0};
    struct victim *victim = victim_add(removal, path, parent);
    int result = victim == NULL ? -BMI_ENOMEM : 0;
    if (result == 0 && meta->kind == SFS_FOLDER)
        result = list(client, path, &listing);
    if (result == 0 && listing.count > 0 && !client->recursive)
        result = -BMI_ENOTEMPTY;
    if (result < 0)
        client_complain(client, path, result);
    for (size_t i = 0; i < listing.count && result == 0; i++) {
        char *below = path_join(client, path, listing.entries[i].name);
        if (below != NULL)
            collect(removal, below, &listing.entries[i].meta, victim);
        else
            victim->failed = true;
        free(below);
    }
    free(listing.entries);
    if (victim != NULL)
        settle(removal, victim, result < 0);
    else if (parent != NULL)
        parent->failed = true;
}

/* ---- removing -------------------------------------------------------------------------------- */

/* Choices: 0: nothing is left that may go; 1: unlink; 2: "/", which has no name. */
static int next(struct bmi_sm *machine, void *data)
{
    struct remover *remover = data;
    struct removal *removal = remover->removal;
    (void)machine;
    remover->victim = removal->ready;
    if (removal->ready == NULL)
        return 0; /* what becomes ready is for whoever makes it so */
    removal->ready = remover->victim->next_ready;
    return strcmp(remover->victim->path, "/") == 0 ? 2 : 1;
}

static int unlink_name(struct bmi_sm *machine, void *data)
{
    struct remover *remover = data;
    struct client *client = remover->removal->client;
    const char *path = remover->victim->path;
    int server = path_server(client, path);
    rpc_make(&remover->rpcs[server], client, server, SFS_UNLINK, path);
    return rpc_start(&remover->rpcs[server], machine);
}

static int drop(struct bmi_sm *machine, void *data)
{
    struct remover *remover = data;
    struct client *client = remover->removal->client;
    const struct sfs_reply *reply =
        &remover->rpcs[path_server(client, remover->victim->path)].reply;
    if (!reply->has_meta || reply->meta.kind != SFS_FILE)
        return BMI_SM_DONE;
    remover->meta = reply->meta;
    return rpc_object(client, remover->rpcs, machine, SFS_DROP, &remover->meta, NULL);
}

static int failed(struct bmi_sm *machine, void *data)
{
    struct remover *remover = data;
    remover->victim->failed = true;
    client_complain(remover->removal->client, remover->victim->path, bmi_sm_last(machine));
    return BMI_SM_DONE;
}

static int over(struct bmi_sm *machine, void *data)
{
    struct remover *remover = data;
    (void)machine;
    settle(remover->removal, remover->victim->parent, remover->victim->failed);
    return BMI_SM_DONE;
}

enum { NEXT, UNLINK, DROP, FAILED, OVER, STATES };

static const struct bmi_sm_state remover_states[STATES] = {
    [NEXT] = {"next", .action = next, .choices = 3,
              .on = {BMI_SM_ON(0, BMI_SM_END), BMI_SM_ON(1, UNLINK), BMI_SM_ELSE(OVER)}},
    [UNLINK] = {"unlink", .action = unlink_name, .on = {BMI_SM_OK(DROP), BMI_SM_FAIL(FAILED)}},
    [DROP] = {"drop", .action = drop, .on = {BMI_SM_ELSE(OVER)}},
    [FAILED] = {"failed", .action = failed, .on = {BMI_SM_ELSE(OVER)}},
    [OVER] = {"over", .action = over, .on = {BMI_SM_ELSE(NEXT)}},
};
static struct bmi_sm_table remover_table = {"remover", remover_states, STATES, 0};

static int removers_start(struct bmi_sm *machine, void *data)
{
    struct remover *removers = data;
    struct bmi_job_options options = {.machine = machine};
    for (int i = 0; removers[i].rpcs != NULL; i++) {
        int result = bmi_sm_start(removers[i].removal->client->jobs, &remover_table, &removers[i],
                                  NULL, &options, NULL, NULL);
        if (result < 0) /* the others do its work */
            return i > 0 ? BMI_SM_DEFERRED : result;
    }
    return BMI_SM_DEFERRED;
}

static const struct bmi_sm_state all_states[] = {
    {"removers", .action = removers_start, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table all_table = {"removal", all_states, 1, 0};

static void removal_run(struct removal *removal)
{
    struct client *client = removal->client;
    struct remover *removers = calloc((size_t)client->parallel + 1, sizeof *removers);
    int result = removers == NULL ? -BMI_ENOMEM : 0;
    for (int i = 0; i < client->parallel && result == 0; i++) {
        removers[i].removal = removal;
        removers[i].rpcs = calloc((size_t)client->count, sizeof *removers[i].rpcs);
        result = removers[i].rpcs == NULL ? -BMI_ENOMEM : 0;
    }
    if (result == 0)
        result = client_run(client, &all_table, removers);
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
    for (int i = 0; i < count; i++) {
        if (!path_good(client, arguments[i]))
            continue;
        int result = lookup(client, arguments[i], &meta);
        if (result < 0)
            client_complain(client, arguments[i], result);
        else
            collect(&removal, arguments[i], &meta, NULL);
    }
    removal_run(&removal);
    for (struct victim *victim = removal.all, *following; victim != NULL; victim = following) {
        following = victim->next;
        free(victim->path);
        free(victim);
    }
    return client->failures > 0;
}
