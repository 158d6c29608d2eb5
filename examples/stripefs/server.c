/* SPDX-License-Identifier: BSD-3-Clause
 *
 * server.c - serves requests, by one state machine. Each of its slots serves one request after
 * another; share.c decides which of the waiting requests is next. There is one slot more than
 * requests are served at a time, so that one always receives.
 *
 *   receive -> admit -> decode -> dispatch -> ... -> reply -> finish -> receive, decode
 *     write:          create -> flow -> moved           (data.c)
 *     read:           flow -> moved
 *     keep:           keep -> kept
 *     drop:           drop -> dropped
 *     objects:        objects -> listed
 *     commit, lookup: get -> got -> [put]               (names.c)
 *     unlink:         find -> remove -> removed
 *     list, names:    begin -> iterate <-> collect
 *
 * Each failure goes to `reply`, which reports it to the client. A cancelled slot ends when it waits
 * for a request.
 */
#include "server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { REQUEST_MS = 120000, REPLY_MS = 10000, DRAIN_MS = 5000 };

struct bmi_job_options slot_options(struct bmi_sm *machine)
{
    return (struct bmi_job_options){.machine = machine};
}

/* ---- receive and decode ---------------------------------------------------------------------- */

static int receive(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = slot_options(machine);
    if (bmi_sm_cancelled(machine))
        return -BMI_ECANCEL;
    bmi_sm_set_deadline(machine, 0);
    return bmi_sm_posted(bmi_job_unexpected(slot->server->jobs, &slot->info, &options, NULL, NULL));
}

/* Closes the connection, so that the client does not wait for a reply that cannot come. */
static void hang_up_on(BMI_addr_t client)
{
    BMI_set_info(client, BMI_TCP_CLOSE_SOCKET, NULL);
}

/* Choices: 0: it waits for its turn; 1: it is served now. */
static int admit(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    BMI_addr_t client = slot->info.addr;
    int result =
        shares_admit(&slot->server->shares, &slot->info, BMI_addr_rev_lookup_unexpected(client));
    (void)machine;
    if (result >= 0)
        return result;
    hang_up_on(client);
    BMI_unexpected_free(client, slot->info.buffer);
    BMI_set_info(client, BMI_DEC_ADDR_REF, NULL);
    return 0;
}

static int decode(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    const struct sfs_request *request = &slot->request;
    const struct server *server = slot->server;
    int result = sfs_request_decode(&slot->request, slot->info.buffer, (size_t)slot->info.size);
    slot->reply = (struct sfs_reply){.op = request->op};
    slot->stalled = false;
    bmi_sm_set_deadline(machine, bmi_job_deadline(REQUEST_MS));
    slot->place = (struct bmi_trove_place){server->store, DATA, request->object};
    if (result == 0)
        result = allow_list_check(&slot->server->allowed, slot->info.addr);
    if (result < 0)
        return result;
    return request->server == server->position && request->servers == server->count ? 0
                                                                                    : -BMI_EBADR;
}

/* Choices: the operation. */
static int dispatch(struct bmi_sm *machine, void *data)
{
    const struct slot *slot = data;
    (void)machine;
    return slot->request.op;
}

static int space(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    bmi_size_t total = 0, available = 0;
    (void)machine; /* asks the file system, which knows without reading the disk */
    int result = bmi_trove_space(slot->server->store, &total, &available);
    slot->reply.total = (uint64_t)total;
    slot->reply.available = (uint64_t)available;
    return result;
}

/* ---- reply ----------------------------------------------------------------------------------- */

static int reply(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    struct bmi_job_options options = slot_options(machine);
    int last = bmi_sm_last(machine);
    slot->reply.status = slot->stalled ? -BMI_ETIMEDOUT : last < 0 ? last : 0;
    slot->reply.start = slot->server->start;
    if (slot->reply.status < 0) {
        slot->reply.has_meta = slot->reply.more = false;
        slot->reply.entry_count = 0;
        slot->reply.entries_size = 0;
    }
    if (slot->request.tag == 0)
        return BMI_SM_DONE; /* not a request of this protocol */
    bmi_sm_set_deadline(machine, bmi_job_deadline(REPLY_MS));
    int64_t size = sfs_reply_encode(&slot->reply, slot->bytes, SFS_REPLY_MAX);
    if (size < 0)
        return (int)size;
    return bmi_sm_posted(bmi_job_send(slot->server->jobs, slot->info.addr, slot->bytes, size,
                                      BMI_EXT_ALLOC, (bmi_msg_tag_t)slot->request.tag, &options,
                                      NULL, &slot->status));
}

/* There is no memory for an answer. */
static int hang_up(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    (void)machine;
    hang_up_on(slot->info.addr);
    return BMI_SM_DONE;
}

/* Choices: 0: no request waits; 1: the next one. */
static int finish(struct bmi_sm *machine, void *data)
{
    struct slot *slot = data;
    BMI_addr_t client = slot->info.addr;
    slot->stalled = slot->stalled || bmi_sm_last(machine) == -BMI_ETIMEDOUT;
    session_leave(slot);
    BMI_unexpected_free(client, slot->info.buffer);
    int next = !bmi_sm_cancelled(machine) &&
               shares_next(&slot->server->shares, client, slot->stalled, &slot->info);
    BMI_set_info(client, BMI_DEC_ADDR_REF, NULL);
    return next;
}

enum {
    RECEIVE,
    ADMIT,
    DECODE,
    DISPATCH,
    CREATE,
    FLOW,
    MOVED,
    KEEP,
    KEPT,
    DROP,
    DROPPED,
    OBJECTS,
    OBJECTS_READ,
    GET,
    GOT,
    PUT,
    FIND,
    REMOVE,
    REMOVED,
    BEGIN,
    ITERATE,
    COLLECT,
    SPACE,
    REPLY,
    HANG_UP,
    FINISH,
    STATES
};

/* A state that the reply follows, after success and failure; and a state that another one follows
 * after success. */
#define LAST(name, act)                                   \
    {                                                     \
        name, .action = act, .on = { BMI_SM_ELSE(REPLY) } \
    }
#define THEN(name, act, next)                                              \
    {                                                                      \
        name, .action = act, .on = { BMI_SM_OK(next), BMI_SM_FAIL(REPLY) } \
    }

static const struct bmi_sm_state states[STATES] = {
    [RECEIVE] = {"receive", .action = receive, .on = {BMI_SM_OK(ADMIT), BMI_SM_FAIL(BMI_SM_END)}},
    [ADMIT] = {"admit", .action = admit, .choices = 2,
               .on = {BMI_SM_ON(1, DECODE), BMI_SM_ELSE(RECEIVE)}},
    [DECODE] = THEN("decode", decode, DISPATCH),
    [DISPATCH] = {"dispatch", .action = dispatch, .choices = SFS_OPS,
                  .on = {BMI_SM_ON(SFS_WRITE, CREATE), BMI_SM_ON(SFS_READ, FLOW),
                         BMI_SM_ON(SFS_KEEP, KEEP), BMI_SM_ON(SFS_DROP, DROP),
                         BMI_SM_ON(SFS_COMMIT, GET), BMI_SM_ON(SFS_LOOKUP, GET),
                         BMI_SM_ON(SFS_UNLINK, FIND), BMI_SM_ON(SFS_LIST, BEGIN),
                         BMI_SM_ON(SFS_NAMES, BEGIN), BMI_SM_ON(SFS_OBJECTS, OBJECTS),
                         BMI_SM_ON(SFS_SPACE, SPACE), BMI_SM_ELSE(REPLY)}},
    [CREATE] = {"create", .action = data_create, .choices = 2,
                .on = {BMI_SM_OK(FLOW), BMI_SM_ON(1, FLOW), BMI_SM_ON(-BMI_EEXIST, FLOW),
                       BMI_SM_FAIL(REPLY)}},
    [FLOW] = {"flow", .action = data_flow, .on = {BMI_SM_ELSE(MOVED)}},
    [MOVED] = LAST("moved", data_moved),
    [KEEP] = THEN("keep", data_keep, KEPT),
    [KEPT] = LAST("kept", data_kept),
    [DROP] = {"drop", .action = data_drop, .on = {BMI_SM_ELSE(DROPPED)}},
    [DROPPED] = LAST("dropped", data_dropped),
    [OBJECTS] = THEN("objects", data_objects, OBJECTS_READ),
    [OBJECTS_READ] = LAST("objects read", data_listed),
    [GET] = THEN("get", names_get, GOT),
    [GOT] = {"got", .action = names_got, .choices = 2,
             .on = {BMI_SM_ON(1, PUT), BMI_SM_ELSE(REPLY)}},
    [PUT] = LAST("put", names_put),
    [FIND] = THEN("find", names_find, REMOVE),
    [REMOVE] = THEN("remove", names_remove, REMOVED),
    [REMOVED] = LAST("removed", names_removed),
    [BEGIN] = THEN("begin list", names_begin, ITERATE),
    [ITERATE] = THEN("iterate", names_iterate, COLLECT),
    [COLLECT] = {"collect", .action = names_collect, .choices = 2,
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

int server_open(struct server *server, const char *folder, unsigned position, unsigned count)
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
    return store_open(server, folder, position, count);
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
        struct bmi_job_options options = {.user_ptr = slot};
        int result = bmi_sm_start(server->jobs, &serve, slot, NULL, &options, &slot->machine, NULL);
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
    for (int left = server->slot_count; left > 0 && count > 0;) {
        bmi_job_testcontext(server->jobs, 1, &count, &status, DRAIN_MS);
        left -= count > 0 && status.user_ptr != NULL; /* other machines have none */
    }
    bmi_job_context_close(server->jobs);
    sessions_close(server);
    free(server->slots);
    shares_close(&server->shares);
    int result = server->store != NULL ? bmi_trove_close(server->store) : 0;
    if (result < 0)
        fprintf(stderr, "bmi-stripefsd: closing the store: %s\n", bmi_status_string(result));
    return result;
}
