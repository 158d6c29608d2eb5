/* SPDX-License-Identifier: BSD-3-Clause
 *
 * server.c - serves requests: a service for each kind, whose requests run the same state machine.
 * share.c decides which of the waiting requests is next.
 *
 *   admit -> unpack -> dispatch -> ... -> reply
 *     write:          create -> flow -> moved           (data.c)
 *     read:           flow -> moved
 *     keep:           keep -> kept
 *     drop:           drop -> dropped
 *     objects:        objects -> listed
 *     commit, lookup: get -> got -> [put]               (names.c)
 *     unlink:         find -> remove
 *     list, names:    begin -> iterate <-> collect
 *
 * Each failure goes to `reply`, and fails the call. A request whose client has gone is cancelled,
 * and goes there, too.
 */
#include "server.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

enum { REQUEST_MS = 120000, REPLY_MS = 10000, DRAIN_MS = 5000, STRAYS = 4 };

/* ---- begin ----------------------------------------------------------------------------------- */

static void turn_come(struct turn *turn)
{
    struct served *served = (struct served *)((char *)turn - offsetof(struct served, turn));
    bmi_job_event_complete(served->server->jobs, served->turn_event, 0, 0);
}

static int admit(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    const struct service *service = served->call.user_ptr;
    struct server *server = service->server;
    served->server = server;
    served->client = bmi_rpc_address(served->call.request);
    served->request.op = service->op;
    served->turn.client = served->client;
    int result = bmi_job_event(server->jobs, BMI_SM_MINE(machine), &served->turn_event, NULL);
    if (result < 0)
        return result;
    result = shares_admit(&server->shares, &served->turn,
                          BMI_addr_rev_lookup_unexpected(served->client));
    if (result < 0)
        bmi_job_event_complete(server->jobs, served->turn_event, result, 0);
    return BMI_SM_DEFERRED;
}

static int unpack(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    struct sfs_request *request = &served->request;
    const struct server *server = served->server;
    int result = sfs_request_unpack(bmi_rpc_arguments(served->call.request), request);
    bmi_sm_set_deadline(machine, bmi_job_deadline(REQUEST_MS));
    served->place = (struct bmi_trove_place){server->store, DATA, request->object};
    if (result == 0)
        result = allow_list_check(&served->server->allowed, served->client);
    if (result < 0)
        return result;
    if (request->server != server->position || request->servers != server->count)
        return -BMI_EBADR;
    served->answer = bmi_message_new();
    return served->answer != NULL ? BMI_SM_DONE : -BMI_ENOMEM;
}

/* Choices: the operation. */
static int dispatch(struct bmi_sm *machine, void *data)
{
    const struct served *served = data;
    (void)machine;
    return (int)served->request.op;
}

static int space(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    bmi_size_t total = 0, available = 0;
    (void)machine; /* asks the file system, which knows without reading the disk */
    int result = bmi_trove_space(served->server->store, &total, &available);
    bmi_pack_u64(served->answer, (uint64_t)total);
    bmi_pack_u64(served->answer, (uint64_t)available);
    return result;
}

/* ---- reply ----------------------------------------------------------------------------------- */

static int reply(struct bmi_sm *machine, void *data)
{
    struct served *served = data;
    int result = served->stalled ? -BMI_ETIMEDOUT : bmi_sm_last(machine);
    served->stalled = result == -BMI_ETIMEDOUT;
    session_leave(served);
    if (result < 0)
        return result; /* fails the request */
    struct bmi_message *answer = served->answer;
    served->answer = NULL;
    return bmi_rpc_reply(served->call.request, answer);
}

/* The reply has been sent, or cannot be. */
static void release(void *data)
{
    struct served *served = data;
    if (served->server != NULL)
        shares_leave(&served->server->shares, &served->turn, served->stalled);
    bmi_message_free(served->answer);
    free(served->pairs);
    free(served->room);
}

enum {
    ADMIT,
    UNPACK,
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
    BEGIN,
    ITERATE,
    COLLECT,
    SPACE,
    REPLY,
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
    [ADMIT] = THEN("admit", admit, UNPACK),
    [UNPACK] = THEN("unpack", unpack, DISPATCH),
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
    [DROPPED] = {"dropped", .action = data_dropped, .choices = 2,
                 .on = {BMI_SM_ON(1, DROP), BMI_SM_ELSE(REPLY)}},
    [OBJECTS] = THEN("objects", data_objects, OBJECTS_READ),
    [OBJECTS_READ] = LAST("objects read", data_listed),
    [GET] = THEN("get", names_get, GOT),
    [GOT] = {"got", .action = names_got, .choices = 2,
             .on = {BMI_SM_ON(1, PUT), BMI_SM_ELSE(REPLY)}},
    [PUT] = LAST("put", names_put),
    [FIND] = THEN("find", names_find, REMOVE),
    [REMOVE] = LAST("remove", names_remove),
    [BEGIN] = THEN("begin list", names_begin, ITERATE),
    [ITERATE] = THEN("iterate", names_iterate, COLLECT),
    [COLLECT] = {"collect", .action = names_collect, .choices = 2,
                 .on = {BMI_SM_OK(ITERATE), BMI_SM_ELSE(REPLY)}},
    [SPACE] = LAST("space", space),
    [REPLY] = {"reply", .action = reply, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table serve = BMI_SM_TABLE("serve", states);

/* ---- messages that are no calls -------------------------------------------------------------- */

/* Closes the connection, so that a client of another protocol does not wait for a reply. */
static int stray_refuse(struct bmi_sm *machine, void *data)
{
    const struct bmi_job_accepted *accepted = data;
    (void)machine;
    BMI_set_info(accepted->message.addr, BMI_TCP_CLOSE_SOCKET, NULL);
    BMI_set_info(accepted->message.addr, BMI_DEC_ADDR_REF, NULL);
    return BMI_SM_DONE;
}

static const struct bmi_sm_state stray_states[] = {
    {"refuse", .action = stray_refuse, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table stray_table = BMI_SM_TABLE("stray", stray_states);

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
    const struct bmi_job_service calls = {.table = &serve,
                                          .data_size = sizeof(struct served),
                                          .release = release,
                                          .timeout_ms = REPLY_MS};
    shares_open(&server->shares, requests, turn_come);
    int result = bmi_job_accept(server->jobs, &stray_table, STRAYS, 0, NULL, &server->strays, NULL);
    for (enum sfs_op op = SFS_WRITE; op < SFS_OPS && result == 0; op++) {
        struct service *service = &server->services[op];
        struct bmi_job_options options = {.user_ptr = service};
        *service = (struct service){.server = server, .op = op};
        result =
            bmi_job_serve(server->jobs, sfs_service(op), &calls, &options, &service->job, NULL);
    }
    if (result < 0)
        fprintf(stderr, "bmi-stripefsd: %s\n", bmi_status_string(result));
    return result < 0 ? -1 : 0;
}

/* Ends a service, or accepting; its machines have until `until_ns`. */
static void job_end(struct server *server, bmi_job_id_t job, uint64_t until_ns)
{
    struct bmi_job_status status;
    uint64_t now_ns = bmi_job_deadline(0);
    int count;
    if (job != 0)
        bmi_job_test(server->jobs, job, &count, &status,
                     now_ns < until_ns ? (int)((until_ns - now_ns) / 1000000) : 0);
}

int server_close(struct server *server)
{
    uint64_t until_ns = bmi_job_deadline(DRAIN_MS);
    bmi_job_cancel(server->jobs, server->strays);
    for (enum sfs_op op = SFS_WRITE; op < SFS_OPS; op++)
        bmi_job_cancel(server->jobs, server->services[op].job);
    for (enum sfs_op op = SFS_WRITE; op < SFS_OPS; op++)
        job_end(server, server->services[op].job, until_ns);
    shares_close(&server->shares);
    bmi_job_context_close(server->jobs);
    int result = server->store != NULL ? bmi_trove_close(server->store) : 0;
    if (result < 0)
        fprintf(stderr, "bmi-stripefsd: closing the store: %s\n", bmi_status_string(result));
    return result;
}
