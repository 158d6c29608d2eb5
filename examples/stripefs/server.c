/* SPDX-License-Identifier: BSD-3-Clause
 *
 * server.c - what a server does, as one state machine. Each of its slots serves one request after
 * another; which of those that have come is next, share.c says. There is a slot more than are
 * served at a time, so that one always hears of what comes.
 *
 *   receive -> admit -> decode -> [place] -> dispatch -> ... -> reply -> finish -> receive, decode
 *     write:                   create -> flow
 *     read:                    flow
 *     commit, lookup, unlink:  get -> got -> [put, remove]
 *     list:                    begin -> iterate <-> collect
 *
 * Whatever fails goes to `reply`, which tells the client. A slot that is cancelled ends where it
 * waits for a request.
 */
#include "server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { REQUEST_MS = 120000, LISTED = 16, REPLY_RESERVE = 256, DRAIN_MS = 5000 };

struct slot {
    struct server *server;
    struct BMI_unexpected_info info;
    struct sfs_request request;
    struct sfs_reply reply;
    struct bmi_job_status status;
    struct bmi_trove_place place;
    bmi_trove_object_t object;
    struct bmi_trove_pair pairs[LISTED];
    struct bmi_trove_position position;
    struct bmi_flow_extent extents[SFS_EXTENTS_MAX];
    struct bmi_flow_stripe stripe;
    bmi_size_t prefix_size;
    uint32_t cluster;
    bmi_job_id_t machine;
    char keys[LISTED][BMI_TROVE_KEY_MAX];
    uint8_t values[LISTED][SFS_META_MAX];
    uint8_t entries[SFS_REPLY_MAX];
    uint8_t bytes[SFS_REPLY_MAX];
};

static struct bmi_job_options of(struct bmi_sm *machine)
{
    return (struct bmi_job_options){.machine = machine};
}

/* ---- receive and decode ---------------------------------------------------------------------- */

static int receive(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = of(machine);
    if (bmi_sm_cancelled(machine))
        return -BMI_ECANCEL;
    bmi_sm_set_deadline(machine, 0);
    return bmi_sm_posted(bmi_job_unexpected(slot->server->jobs, &slot->info, &options, NULL, NULL));
}

/* The client learns at once that it is not answered, instead of waiting. */
static void hang_up_on(BMI_addr_t client)
{
    BMI_set_info(client, BMI_TCP_CLOSE_SOCKET, NULL);
}

/* Choices: 0: its turn comes later; 1: it is served now. */
static int admit(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    int result = shares_admit(&slot->server->shares, &slot->info);
    (void)machine;
    if (result >= 0)
        return result;
    hang_up_on(slot->info.addr);
    BMI_unexpected_free(slot->info.addr, slot->info.buffer);
    BMI_set_info(slot->info.addr, BMI_DEC_ADDR_REF, NULL);
    return 0;
}

/* Choices: 0: dispatch; 1: this store is to remember its place first. */
static int decode(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    int result = sfs_request_decode(&slot->request, slot->info.buffer, (size_t)slot->info.size);
    BMI_unexpected_free(slot->info.addr, slot->info.buffer);
    slot->reply = (struct sfs_reply){.op = slot->request.op};
    bmi_sm_set_deadline(machine, bmi_job_deadline(REQUEST_MS));
    slot->place = (struct bmi_trove_place){slot->server->store, DATA, slot->request.object};
    return result < 0 ? result
                      : place_check(slot->server, slot->request.server, slot->request.servers);
}

static int place_put(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = of(machine);
    struct bmi_trove_place place = index_of(slot->server);
    slot->cluster = (uint32_t)slot->request.server << 16 | slot->request.servers;
    slot->pairs[0] =
        (struct bmi_trove_pair){(void *)"P", 1, &slot->cluster, sizeof slot->cluster, 0};
    return bmi_sm_posted(bmi_job_trove_put(slot->server->jobs, &place, slot->pairs, 1,
                                           BMI_TROVE_SYNC, &options, NULL, &slot->status));
}

static int place_undo(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    atomic_store(&slot->server->place, 0);
    return bmi_sm_last(machine);
}

/* Choices: the operation. */
static int dispatch(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    (void)machine;
    bool root = slot->request.path_size == 1;
    if (root && (slot->request.op == SFS_COMMIT || slot->request.op == SFS_UNLINK))
        return -BMI_EINVAL;
    return slot->request.op;
}

/* ---- bytes of files -------------------------------------------------------------------------- */

static int create(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = of(machine);
    slot->object = slot->request.object;
    return bmi_sm_posted(bmi_job_trove_create(slot->server->jobs, &slot->place, &slot->object, 0,
                                              &options, NULL, &slot->status));
}

static int flow(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    const struct sfs_request *request = &slot->request;
    struct bmi_job_options options = of(machine);
    struct bmi_flow_endpoint network = {.kind = BMI_FLOW_NETWORK};
    struct bmi_flow_endpoint storage = {.kind = BMI_FLOW_STORAGE};
    bool write = request->op == SFS_WRITE;
    network.u.network.address = slot->info.addr;
    network.u.network.tag = (bmi_msg_tag_t)(request->tag + 1);
    storage.u.storage.place = slot->place;
    slot->stripe.stripe_size = request->stripe;
    for (int i = 0; i < request->extent_count; i++)
        slot->extents[i] =
            (struct bmi_flow_extent){.offset = (bmi_size_t)request->extents[i].offset,
                                     .size = (bmi_size_t)request->extents[i].size,
                                     .count = 1};
    struct bmi_flow_description description = {
        .source = write ? network : storage,
        .destination = write ? storage : network,
        .extents = slot->extents,
        .extent_count = request->extent_count,
        .distribution = &bmi_flow_simple_stripe,
        .distribution_parameters = &slot->stripe,
        .server = request->part,
        .servers = request->servers,
        .flags = write ? BMI_FLOW_DRAIN : BMI_FLOW_ZEROS,
        .buffer_count = 4,
    };
    return bmi_sm_posted(
        bmi_job_flow(slot->server->jobs, &description, &options, NULL, &slot->status));
}

static int sync_object(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = of(machine);
    return bmi_sm_posted(
        bmi_job_trove_flush(slot->server->jobs, &slot->place, &options, NULL, &slot->status));
}

static int drop(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = of(machine);
    return bmi_sm_posted(
        bmi_job_trove_remove(slot->server->jobs, &slot->place, 0, &options, NULL, &slot->status));
}

/* ---- metadata -------------------------------------------------------------------------------- */

static int get(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = of(machine);
    struct bmi_trove_place place = index_of(slot->server);
    bmi_size_t size = path_key(slot->keys[0], slot->request.path, slot->request.path_size);
    if (slot->request.path_size == 1)
        return BMI_SM_DONE; /* "/" is always there */
    slot->pairs[0] = (struct bmi_trove_pair){slot->keys[0], size, slot->values[0], SFS_META_MAX, 0};
    return bmi_sm_posted(bmi_job_trove_get(slot->server->jobs, &place, slot->pairs, 1, &options,
                                           NULL, &slot->status));
}

/* Choices: 0: that was all; 1: put; 2: remove. */
static int got(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    const struct bmi_trove_pair *pair = &slot->pairs[0];
    (void)machine;
    if (slot->request.path_size == 1) {
        slot->reply.has_meta = true;
        slot->reply.meta = (struct sfs_meta){.kind = SFS_FOLDER, .mode = 0755};
        return 0;
    }
    if (pair->error == -BMI_ENOENT && slot->request.op == SFS_COMMIT)
        return 1;
    if (pair->error < 0)
        return pair->error;
    slot->reply.has_meta = true;
    int result = sfs_meta_decode(&slot->reply.meta, pair->value, (size_t)pair->value_size);
    if (result < 0) {
        slot->reply.has_meta = false;
        return -BMI_EIO;
    }
    return slot->request.op == SFS_COMMIT ? 1 : slot->request.op == SFS_UNLINK ? 2 : 0;
}

static unsigned sync_flag(const struct slot *slot)
{
    return slot->request.flags & SFS_SYNCED ? BMI_TROVE_SYNC : 0;
}

static int put(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = of(machine);
    struct bmi_trove_place place = index_of(slot->server);
    int64_t size = sfs_meta_encode(&slot->request.meta, slot->values[0], SFS_META_MAX);
    if (size < 0)
        return (int)size;
    /* A folder and a file do not replace each other: what is in the folder would be lost. */
    if (slot->reply.has_meta &&
        (slot->reply.meta.kind == SFS_FOLDER) != (slot->request.meta.kind == SFS_FOLDER))
        return slot->reply.meta.kind == SFS_FOLDER ? -BMI_EISDIR : -BMI_ENOTDIR;
    slot->pairs[0].key_size = path_key(slot->keys[0], slot->request.path, slot->request.path_size);
    slot->pairs[0].value_size = size;
    return bmi_sm_posted(bmi_job_trove_put(slot->server->jobs, &place, slot->pairs, 1,
                                           sync_flag(slot), &options, NULL, &slot->status));
}

static int remove_key(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = of(machine);
    struct bmi_trove_place place = index_of(slot->server);
    return bmi_sm_posted(bmi_job_trove_remove_keys(slot->server->jobs, &place, slot->pairs, 1,
                                                   sync_flag(slot), &options, NULL, &slot->status));
}

/* ---- lists ----------------------------------------------------------------------------------- */

static int list_begin(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    const struct sfs_request *request = &slot->request;
    (void)machine;
    bmi_size_t size = folder_key((char *)slot->position.key, request->path, request->path_size);
    slot->prefix_size = size;
    if (size + request->after_size > BMI_TROVE_KEY_MAX)
        return -BMI_ENAMETOOLONG;
    memcpy(slot->position.key + size, request->after, request->after_size);
    slot->position.key_size = (uint32_t)(size + request->after_size);
    slot->reply.entries = slot->entries;
    return BMI_SM_DONE;
}

static int iterate(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = of(machine);
    struct bmi_trove_place place = index_of(slot->server);
    for (int i = 0; i < LISTED; i++)
        slot->pairs[i] = (struct bmi_trove_pair){slot->keys[i], BMI_TROVE_KEY_MAX, slot->values[i],
                                                 SFS_META_MAX, 0};
    return bmi_sm_posted(bmi_job_trove_iterate(slot->server->jobs, &place, &slot->position,
                                               slot->pairs, LISTED, &options, NULL, &slot->status));
}

/* Takes an entry into the reply. Returns 0; 1: no more of this folder, or no room. */
static int entry_take(struct slot *slot, const struct bmi_trove_pair *pair)
{
    char folder[BMI_TROVE_KEY_MAX];
    struct sfs_entry entry;
    bmi_size_t prefix = folder_key(folder, slot->request.path, slot->request.path_size);
    if (pair->error < 0)
        return pair->error;
    if (pair->key_size <= prefix || memcmp(pair->key, folder, (size_t)prefix) != 0)
        return 1;
    entry.name_size = (uint16_t)(pair->key_size - prefix);
    memcpy(entry.name, (const char *)pair->key + prefix, entry.name_size);
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

/* Choices: 0: iterate again; 1: that was all. */
static int collect(struct bmi_sm *machine, void *data)
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

static int space(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    bmi_size_t total = 0, available = 0;
    (void)machine; /* asks the system, which knows without reading the disk */
    int result = bmi_trove_space(slot->server->store, &total, &available);
    slot->reply.total = (uint64_t)total;
    slot->reply.available = (uint64_t)available;
    return result;
}

/* ---- reply ----------------------------------------------------------------------------------- */

static int reply(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = of(machine);
    int last = bmi_sm_last(machine);
    bool gone = slot->request.op == SFS_DROP && last == -BMI_ENOENT;
    slot->reply.status = last < 0 && !gone ? last : 0;
    slot->reply.start = slot->server->start;
    if (slot->reply.status < 0) {
        slot->reply.has_meta = slot->reply.more = false;
        slot->reply.entry_count = 0;
        slot->reply.entries_size = 0;
    }
    if (slot->request.tag == 0)
        return BMI_SM_DONE; /* nobody of ours asked */
    bmi_sm_set_deadline(machine, bmi_job_deadline(REQUEST_MS));
    int64_t size = sfs_reply_encode(&slot->reply, slot->bytes, SFS_REPLY_MAX);
    if (size < 0)
        return (int)size;
    return bmi_sm_posted(bmi_job_send(slot->server->jobs, slot->info.addr, slot->bytes, size,
                                      BMI_EXT_ALLOC, (bmi_msg_tag_t)slot->request.tag, &options,
                                      NULL, &slot->status));
}

/* There is no memory to answer with. */
static int hang_up(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    (void)machine;
    hang_up_on(slot->info.addr);
    return BMI_SM_DONE;
}

/* A client that has gone is no concern of ours. Choices: 0: none waits; 1: the next one. */
static int finish(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    BMI_addr_t client = slot->info.addr;
    int next =
        !bmi_sm_cancelled(machine) && shares_next(&slot->server->shares, client, &slot->info);
    BMI_set_info(client, BMI_DEC_ADDR_REF, NULL);
    return next;
}

enum {
    RECEIVE,
    ADMIT,
    DECODE,
    PLACE_PUT,
    PLACE_UNDO,
    DISPATCH,
    CREATE,
    FLOW,
    SYNC,
    DROP,
    GET,
    GOT,
    PUT,
    REMOVE,
    LIST_BEGIN,
    ITERATE,
    COLLECT,
    SPACE,
    REPLY,
    HANG_UP,
    FINISH,
    STATES
};

/* A state that does one thing and is followed by the reply, whether that went well or not. */
#define LAST(name, act)                                   \
    {                                                     \
        name, .action = act, .on = { BMI_SM_ELSE(REPLY) } \
    }

static const struct bmi_sm_state states[STATES] = {
    [RECEIVE] = {"receive", .action = receive, .on = {BMI_SM_OK(ADMIT), BMI_SM_FAIL(BMI_SM_END)}},
    [ADMIT] = {"admit", .action = admit, .choices = 2,
               .on = {BMI_SM_ON(1, DECODE), BMI_SM_ELSE(RECEIVE)}},
    [DECODE] = {"decode", .action = decode, .choices = 2,
                .on = {BMI_SM_OK(DISPATCH), BMI_SM_ON(1, PLACE_PUT), BMI_SM_FAIL(REPLY)}},
    [PLACE_PUT] = {"put place", .action = place_put,
                   .on = {BMI_SM_OK(DISPATCH), BMI_SM_FAIL(PLACE_UNDO)}},
    [PLACE_UNDO] = LAST("undo place", place_undo),
    [DISPATCH] = {"dispatch", .action = dispatch, .choices = SFS_OPS,
                  .on = {BMI_SM_ON(SFS_WRITE, CREATE), BMI_SM_ON(SFS_READ, FLOW),
                         BMI_SM_ON(SFS_SYNC, SYNC), BMI_SM_ON(SFS_DROP, DROP),
                         BMI_SM_ON(SFS_COMMIT, GET), BMI_SM_ON(SFS_LOOKUP, GET),
                         BMI_SM_ON(SFS_UNLINK, GET), BMI_SM_ON(SFS_LIST, LIST_BEGIN),
                         BMI_SM_ON(SFS_SPACE, SPACE), BMI_SM_ELSE(REPLY)}},
    [CREATE] = {"create", .action = create,
                .on = {BMI_SM_OK(FLOW), BMI_SM_ON(-BMI_EEXIST, FLOW), BMI_SM_FAIL(REPLY)}},
    [FLOW] = LAST("flow", flow),
    [SYNC] = LAST("sync", sync_object),
    [DROP] = LAST("drop", drop),
    [GET] = {"get", .action = get, .on = {BMI_SM_OK(GOT), BMI_SM_FAIL(REPLY)}},
    [GOT] = {"got", .action = got, .choices = 3,
             .on = {BMI_SM_ON(1, PUT), BMI_SM_ON(2, REMOVE), BMI_SM_ELSE(REPLY)}},
    [PUT] = LAST("put", put),
    [REMOVE] = LAST("remove", remove_key),
    [LIST_BEGIN] = {"begin list", .action = list_begin,
                    .on = {BMI_SM_OK(ITERATE), BMI_SM_FAIL(REPLY)}},
    [ITERATE] = {"iterate", .action = iterate, .on = {BMI_SM_OK(COLLECT), BMI_SM_FAIL(REPLY)}},
    [COLLECT] = {"collect", .action = collect, .choices = 2,
                 .on = {BMI_SM_OK(ITERATE), BMI_SM_ELSE(REPLY)}},
    [SPACE] = LAST("space", space),
    [REPLY] = {"reply", .action = reply,
               .on = {BMI_SM_ON(-BMI_ENOMEM, HANG_UP), BMI_SM_ELSE(FINISH)}},
    [HANG_UP] = {"hang up", .action = hang_up, .on = {BMI_SM_ELSE(FINISH)}},
    [FINISH] = {"finish", .action = finish, .choices = 2,
                .on = {BMI_SM_ON(1, DECODE), BMI_SM_ELSE(RECEIVE)}},
};
static struct bmi_sm_table serve = {"serve", states, STATES, 0};

/* ---- life ------------------------------------------------------------------------------------ */

int server_open(struct server *server, const char *folder)
{
    int result = bmi_job_context_open(0, &server->jobs);
    if (result < 0) {
        fprintf(stderr, "bmi-stripefsd: %s\n", bmi_status_string(result));
        return -1;
    }
    if (getrandom(&server->start, sizeof server->start, 0) != sizeof server->start) {
        fprintf(stderr, "bmi-stripefsd: no random number\n");
        return -1;
    }
    return store_open(server, folder);
}

int server_start(struct server *server, int requests)
{
    shares_open(&server->shares, requests);
    server->slots = calloc((size_t)requests + 1, sizeof *server->slots);
    if (server->slots == NULL) {
        fprintf(stderr, "bmi-stripefsd: no memory for %d requests at a time\n", requests);
        return -1;
    }
    for (int i = 0; i <= requests; i++) {
        struct slot *slot = &server->slots[i];
        slot->server = server;
        int result = bmi_sm_start(server->jobs, &serve, slot, NULL, NULL, &slot->machine, NULL);
        if (result < 0) {
            fprintf(stderr, "bmi-stripefsd: %s\n", bmi_status_string(result));
            return -1;
        }
        server->slot_count++;
    }
    return 0;
}

int server_close(struct server *server)
{
    struct bmi_job_status status;
    int count = 1;
    for (int i = 0; i < server->slot_count; i++)
        bmi_job_cancel(server->jobs, server->slots[i].machine);
    for (int left = server->slot_count; left > 0 && count > 0; left--)
        bmi_job_testcontext(server->jobs, 1, &count, &status, DRAIN_MS);
    bmi_job_context_close(server->jobs);
    free(server->slots);
    shares_close(&server->shares);
    int result = server->store != NULL ? bmi_trove_close(server->store) : 0;
    if (result < 0)
        fprintf(stderr, "bmi-stripefsd: closing the store: %s\n", bmi_status_string(result));
    return result;
}
