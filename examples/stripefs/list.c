/* SPDX-License-Identifier: BSD-3-Clause
 *
 * list.c - lists of folders. Each server has some of a folder's entries; machines take one folder
 * on one server after another, and request its pages in turn:
 *
 *   next -> page -> paged: page, next
 */
#include <stdlib.h>
#include <string.h>

#include "client.h"

struct lists {
    struct client *client;
    struct listing *listings;
    size_t count, next; /* of listings times servers */
};

struct lister {
    struct lists *lists;
    struct listing *listing;
    int server;
    char after[SFS_NAME_MAX + 1];
    struct rpc rpc;
};

static int entry_add(struct listing *listing, const struct sfs_entry *entry)
{
    if (listing->count == listing->room) {
        size_t room = listing->room != 0 ? listing->room * 2 : 64;
        struct sfs_entry *grown = realloc(listing->entries, room * sizeof *grown);
        if (grown == NULL)
            return -BMI_ENOMEM;
        listing->entries = grown;
        listing->room = room;
    }
    struct sfs_entry *to = &listing->entries[listing->count];
    *to = *entry;
    to->meta.target = NULL;
    if (entry->meta.kind == SFS_LINK) {
        char *target = malloc((size_t)entry->meta.target_size + 1);
        if (target == NULL)
            return -BMI_ENOMEM;
        memcpy(target, entry->meta.target, entry->meta.target_size);
        target[entry->meta.target_size] = '\0';
        to->meta.target = target;
    }
    listing->count++;
    return 0;
}

void list_free(struct listing *listing)
{
    for (size_t i = 0; i < listing->count; i++)
        free((char *)listing->entries[i].meta.target);
    free(listing->entries);
    free(listing->failure);
    *listing = (struct listing){0};
}

/* ---- machines -------------------------------------------------------------------------------- */

/* Choices: 0: a folder on a server; 1: there are no more. */
static int next(struct bmi_sm *machine, void *data)
{
    struct lister *lister = data;
    struct lists *lists = lister->lists;
    size_t servers = (size_t)lists->client->count;
    (void)machine;
    while (lists->next < lists->count * servers) {
        lister->listing = &lists->listings[lists->next / servers];
        lister->server = (int)(lists->next++ % servers);
        lister->after[0] = '\0';
        if (lister->listing->error == 0)
            return 0;
    }
    return 1;
}

static int page_entry(struct rpc *rpc, const struct sfs_entry *entry)
{
    struct lister *lister = rpc->taker;
    memcpy(lister->after, entry->name, (size_t)entry->name_size + 1);
    return entry_add(lister->listing, entry);
}

static int page(struct bmi_sm *machine, void *data)
{
    struct lister *lister = data;
    struct rpc *rpc = &lister->rpc;
    rpc_make(rpc, lister->lists->client, lister->server, SFS_LIST, lister->listing->path);
    rpc->request.after = lister->after;
    rpc->entry_take = page_entry;
    rpc->taker = lister;
    return rpc_start(rpc, machine);
}

/* Choices: 0: the last page of this server; 1: the next page. */
static int paged(struct bmi_sm *machine, void *data)
{
    const struct lister *lister = data;
    (void)machine;
    return lister->rpc.reply.more;
}

static int failed(struct bmi_sm *machine, void *data)
{
    struct lister *lister = data;
    struct client *client = lister->lists->client;
    lister->listing->error = bmi_sm_last(machine);
    if (lister->listing->failure == NULL && client->failure[0] != '\0')
        lister->listing->failure = strdup(client->failure);
    client->failure[0] = '\0';
    return BMI_SM_DONE;
}

enum { NEXT, PAGE, PAGED, FAILED, STATES };

static const struct bmi_sm_state lister_states[STATES] = {
    [NEXT] = {"next", .action = next, .choices = 2,
              .on = {BMI_SM_OK(PAGE), BMI_SM_ELSE(BMI_SM_END)}},
    [PAGE] = {"page", .action = page, .on = {BMI_SM_OK(PAGED), BMI_SM_FAIL(FAILED)}},
    [PAGED] = {"paged", .action = paged, .choices = 2,
               .on = {BMI_SM_ON(1, PAGE), BMI_SM_ELSE(NEXT)}},
    [FAILED] = {"failed", .action = failed, .on = {BMI_SM_ELSE(NEXT)}},
};
static struct bmi_sm_table lister_table = BMI_SM_TABLE("lister", lister_states);

static int entry_order(const void *one, const void *other)
{
    const struct sfs_entry *a = one, *b = other;
    return strcmp(a->name, b->name);
}

void lists_read(struct client *client, struct listing *listings, size_t count)
{
    struct lists lists = {client, listings, count, 0};
    size_t all = count * (size_t)client->count, parallel = (size_t)client->parallel;
    size_t machines = all < parallel ? all : parallel;
    struct lister *listers = calloc(machines, sizeof *listers);
    int result = listers == NULL ? -BMI_ENOMEM : 0;
    for (size_t i = 0; i < machines && result == 0; i++)
        listers[i].lists = &lists;
    if (result == 0 && count > 0)
        result = client_run_many(client, &lister_table, listers, machines, sizeof *listers);
    free(listers);
    for (size_t i = 0; i < count; i++) {
        struct listing *listing = &listings[i];
        if (listing->error == 0 && result < 0)
            listing->error = result;
        if (listing->count > 0)
            qsort(listing->entries, listing->count, sizeof *listing->entries, entry_order);
    }
}

int list_read(struct client *client, struct listing *listing, const char *path)
{
    *listing = (struct listing){.path = path};
    lists_read(client, listing, 1);
    if (listing->failure != NULL)
        snprintf(client->failure, sizeof client->failure, "%s", listing->failure);
    return listing->error;
}
