/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc.c - a request to a server, as a call of its service, and perhaps a flow beside it; a machine:
 *
 *   ask: posts the flow, then the call, so that the flow notices the connection's end. A call that
 *        fails cancels the flow: a refused request leaves none behind. A flow that fails leaves the
 *        call, whose reply has the cause. done: records a server's failure. A request that was
 *        under way while this process was stopped is called again, since the server did not cause
 *        time-outs and lost connections of that time. All requests may be executed twice; for
 *        COMMIT and UNLINK `retried` says that their reply may be the second one.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

enum { STOPPED_MS = 2000, WAKING_MS = 5000, TRIES_MAX = 10 };

/* ---- stops of this process ------------------------------------------------------------------- */

/* client_run checks every SHOW_MS. A longer gap means that the process was stopped: by ^Z, a
 * debugger, or a paused host. */
static void stop_notice(struct client *client)
{
    uint64_t now_ns = bmi_job_deadline(0);
    if (client->tick_ns != 0 && now_ns - client->tick_ns > (uint64_t)STOPPED_MS * 1000000)
        client->woken_ns = now_ns;
    client->tick_ns = now_ns;
}

static bool retry_due(struct rpc *rpc, int error)
{
    struct client *client = rpc->client;
    stop_notice(client);
    bool ours = error == -BMI_ETIMEDOUT || error == -BMI_ECONNRESET || error == -BMI_EPIPE;
    return ours && client->ended == 0 && client->woken_ns != 0 && rpc->tries < TRIES_MAX &&
           rpc->asked_ns < client->woken_ns + (uint64_t)WAKING_MS * 1000000;
}

/* ---- the call -------------------------------------------------------------------------------- */

/* The target of a link would end with the message. */
static int meta_take(struct bmi_message *message, struct rpc *rpc)
{
    struct reply *reply = &rpc->reply;
    int result = sfs_meta_unpack(message, &reply->meta, &reply->has_meta);
    if (result == 0 && rpc->request.op == SFS_LOOKUP) {
        if (!reply->has_meta)
            return -BMI_EBADMSG;
        memcpy(rpc->client->target, reply->meta.target, reply->meta.target_size);
        rpc->client->target[reply->meta.target_size] = '\0';
    }
    reply->meta.target = rpc->client->target;
    return result;
}

static int space_take(struct bmi_message *message, struct reply *reply)
{
    int result = bmi_unpack_u64(message, &reply->total);
    return result < 0 ? result : bmi_unpack_u64(message, &reply->available);
}

static int entries_take(struct bmi_message *message, struct rpc *rpc)
{
    struct sfs_entry entry;
    bool more = false, some = false;
    int result;
    while ((result = sfs_entry_unpack(message, rpc->request.op, &entry, &more)) > 0) {
        result = rpc->entry_take(rpc, &entry);
        if (result < 0)
            break;
        some = true;
    }
    rpc->reply.more = more && some;
    return result;
}

static int objects_take(struct bmi_message *message, struct rpc *rpc)
{
    const uint64_t *objects;
    const uint8_t *used;
    size_t count = 0;
    int result = sfs_objects_unpack(message, &objects, &used, &count, &rpc->reply.more);
    for (size_t i = 0; i < count && result == 0; i++)
        result = rpc->object_take(rpc, objects[i], used[i] != 0);
    rpc->reply.more = rpc->reply.more && count > 0;
    return result;
}

/* Called by the poller, perhaps on another thread: machines use the reply after the call's end. */
static int reply_take(struct bmi_message *message, void *argument)
{
    struct rpc *rpc = argument;
    switch (rpc->request.op) {
    case SFS_WRITE:
    case SFS_KEEP:
        return bmi_unpack_u64(message, &rpc->reply.start);
    case SFS_COMMIT:
    case SFS_LOOKUP:
        return meta_take(message, rpc);
    case SFS_SPACE:
        return space_take(message, &rpc->reply);
    case SFS_LIST:
    case SFS_NAMES:
        return entries_take(message, rpc);
    case SFS_OBJECTS:
        return objects_take(message, rpc);
    case SFS_UNLINK:
        return sfs_formers_unpack(message, rpc->formers, rpc->request.count);
    default:
        return 0;
    }
}

static int call_post(struct rpc *rpc, struct bmi_sm *machine)
{
    struct bmi_job_options options = {.machine = machine,
                                      .deadline_ns = bmi_job_deadline(rpc->client->timeout_ms)};
    struct bmi_message *message = bmi_message_new();
    if (message == NULL)
        return -BMI_ENOMEM;
    sfs_request_pack(message, &rpc->request);
    return bmi_job_rpc(rpc->client->jobs, rpc->client->addresses[rpc->server],
                       sfs_service(rpc->request.op), message, reply_take, rpc, NULL, &options, NULL,
                       &rpc->called);
}

/* ---- with a flow ----------------------------------------------------------------------------- */

static int call(struct bmi_sm *machine, void *data)
{
    return bmi_sm_posted(call_post(data, machine));
}

static int call_failed(struct bmi_sm *machine, void *data)
{
    const struct rpc *rpc = data;
    bmi_job_cancel(rpc->client->jobs, rpc->flow_job);
    return bmi_sm_last(machine);
}

static const struct bmi_sm_state call_states[] = {
    {"call", .action = call, .on = {BMI_SM_OK(BMI_SM_END), BMI_SM_FAIL(1)}},
    {"call failed", .action = call_failed, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table call_table = BMI_SM_TABLE("call", call_states);

static int flow_post(struct rpc *rpc, struct bmi_sm *machine)
{
    struct bmi_job_options options = {.machine = machine,
                                      .deadline_ns = bmi_job_deadline(rpc->client->timeout_ms)};
    struct bmi_flow_endpoint network = {.kind = BMI_FLOW_NETWORK};
    network.u.network.address = rpc->client->addresses[rpc->server];
    network.u.network.tag = (bmi_msg_tag_t)rpc->request.tag;
    if (rpc->request.op == SFS_WRITE)
        rpc->flow.destination = network;
    else
        rpc->flow.source = network;
    return bmi_job_flow(rpc->client->jobs, &rpc->flow, &options, &rpc->flow_job, NULL);
}

/* ---- the request ----------------------------------------------------------------------------- */

/* After a signal only requests that finish or undo earlier ones are sent. */
static bool may_ask(const struct rpc *rpc)
{
    enum sfs_op op = rpc->request.op;
    return rpc->client->ended == 0 || op == SFS_KEEP || op == SFS_DROP || op == SFS_COMMIT;
}

static void running_add(struct rpc *rpc, struct bmi_sm *machine)
{
    struct client *client = rpc->client;
    rpc->machine = bmi_sm_id(machine);
    if (rpc->at != NULL)
        return;
    rpc->next = client->rpcs;
    rpc->at = &client->rpcs;
    if (rpc->next != NULL)
        rpc->next->at = &rpc->next;
    client->rpcs = rpc;
}

static void running_remove(struct rpc *rpc)
{
    if (rpc->at == NULL)
        return;
    *rpc->at = rpc->next;
    if (rpc->next != NULL)
        rpc->next->at = rpc->at;
    rpc->at = NULL;
}

/* Of the flow; above the lease's. */
static void tag_choose(struct rpc *rpc)
{
    uint32_t *tag = &rpc->client->next_tag;
    *tag = (*tag + 1) & INT32_MAX;
    if (*tag <= SFS_LEASE_TAG)
        *tag = SFS_LEASE_TAG + 1;
    rpc->request.tag = *tag;
}

static int ask(struct bmi_sm *machine, void *data)
{
    struct rpc *rpc = data;
    if (!may_ask(rpc))
        return -BMI_ECANCEL;
    rpc->asked_ns = bmi_job_deadline(0);
    rpc->tries++;
    rpc->called = (struct bmi_job_status){0};
    running_add(rpc, machine);
    if (rpc->written != NULL && *rpc->written >> rpc->server & 1)
        rpc->request.flags |= SFS_MORE;
    if (!rpc->has_flow)
        return bmi_sm_posted(call_post(rpc, machine));
    tag_choose(rpc);
    int result = flow_post(rpc, machine);
    if (result < 0)
        return result;
    result =
        bmi_sm_start(rpc->client->jobs, &call_table, rpc, NULL, BMI_SM_MINE(machine), NULL, NULL);
    if (result < 0) {
        rpc->called.error = result;
        bmi_job_cancel(rpc->client->jobs, rpc->flow_job);
    }
    return BMI_SM_DEFERRED;
}

static const char *cause_of(const struct rpc *rpc, int error)
{
    if (error == -BMI_ENOSYS)
        return " (it ends, or does not serve requests of this version)";
    if (error == -BMI_EBADR)
        return " (it was started with another place in the list of servers)";
    if (rpc->anew)
        return " (it was restarted meanwhile: put the file again)";
    if (error == -BMI_ENOENT && rpc->request.op <= SFS_KEEP && rpc->request.op != SFS_READ)
        return " (it has removed the bytes of this put: put the file again)";
    return "";
}

/* Data that a server had not yet on disk is lost if its machine failed meanwhile, and so was
 * restarted. */
static int start_check(struct rpc *rpc)
{
    if (rpc->start == NULL || *rpc->start == rpc->reply.start)
        return 0;
    rpc->anew = *rpc->start != 0;
    *rpc->start = rpc->reply.start;
    return rpc->anew ? -BMI_EIO : 0;
}

/* Choices: 0: done; 1: call again. */
static int done(struct bmi_sm *machine, void *data)
{
    struct rpc *rpc = data;
    int error = rpc->called.error < 0 ? rpc->called.error : bmi_sm_last(machine);
    running_remove(rpc);
    if (error == 0)
        error = start_check(rpc);
    if (error == 0 && rpc->written != NULL)
        *rpc->written |= UINT64_C(1) << rpc->server;
    if (error < 0 && retry_due(rpc, error)) {
        rpc->retried = true;
        return 1;
    }
    if (error < 0 && error != -BMI_ECANCEL && !rpc->quiet)
        snprintf(rpc->client->failure, sizeof rpc->client->failure, "server %s: %s%s",
                 rpc->client->urls[rpc->server], bmi_status_string(error), cause_of(rpc, error));
    return error;
}

static const struct bmi_sm_state rpc_states[] = {
    {"ask", .action = ask, .on = {BMI_SM_ELSE(1)}},
    {"done", .action = done, .choices = 2, .on = {BMI_SM_ON(1, 0), BMI_SM_ELSE(BMI_SM_END)}},
};
struct bmi_sm_table rpc_table = BMI_SM_TABLE("request", rpc_states);

void client_cancel(struct client *client)
{
    for (struct rpc *rpc = client->rpcs, *next; rpc != NULL; rpc = next) {
        enum sfs_op op = rpc->request.op;
        next = rpc->next;
        if (op != SFS_KEEP && op != SFS_DROP && op != SFS_COMMIT && op != SFS_UNLINK)
            bmi_job_cancel(client->jobs, rpc->machine);
    }
}

/* ---- for others ------------------------------------------------------------------------------ */

void rpc_make(struct rpc *rpc, struct client *client, int server, enum sfs_op op, const char *path)
{
    memset(rpc, 0, sizeof *rpc);
    rpc->client = client;
    rpc->server = server;
    rpc->request.op = op;
    rpc->request.server = (uint32_t)server;
    rpc->request.servers = (uint32_t)client->count;
    rpc->request.flags = client->sync ? SFS_SYNCED : 0;
    rpc->request.path = path;
}

int rpc_call(struct rpc *rpc)
{
    return client_run(rpc->client, &rpc_table, rpc);
}

int rpc_start(struct rpc *rpc, struct bmi_sm *machine)
{
    struct bmi_job_context *jobs = rpc->client->jobs;
    int result = bmi_sm_start(jobs, &rpc_table, rpc, NULL, BMI_SM_MINE(machine), NULL, NULL);
    if (result < 0)
        result = bmi_job_null(jobs, result, BMI_SM_MINE(machine), NULL, NULL);
    return result < 0 ? result : BMI_SM_DEFERRED;
}

int rpc_object(struct client *client, struct rpc *rpcs, struct bmi_sm *machine, enum sfs_op op,
               const struct sfs_meta *meta, uint64_t *starts)
{
    for (int server = 0; server < client->count; server++) {
        if (!(meta->holders >> server & 1))
            continue;
        struct rpc *rpc = &rpcs[server];
        rpc_make(rpc, client, server, op, NULL);
        rpc->quiet = op == SFS_DROP;
        rpc->start = starts != NULL ? &starts[server] : NULL;
        rpc->request.object = meta->object;
        if (op == SFS_DROP) {
            rpc->request.count = 1;
            rpc->request.u.objects[0] = meta->object;
        }
        int result = rpc_start(rpc, machine);
        if (result != BMI_SM_DEFERRED)
            return result;
    }
    return BMI_SM_DEFERRED;
}

int path_server(const struct client *client, const char *path)
{
    return (int)sfs_path_server(path, strlen(path), (unsigned)client->count);
}

/* ---- running machines, and the progress bar -------------------------------------------------- */

static void progress_show(const struct client *client, bool last)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    if (!client->show || client->files_all == 0)
        return;
    double seconds = (double)(bmi_job_deadline(0) - client->begin_ns) / 1e9;
    double part = client->bytes_all > 0 ? (double)client->bytes_done / (double)client->bytes_all
                                        : (double)client->files_done / client->files_all;
    int full = (int)(part * WIDTH);
    memset(bar, ' ', WIDTH);
    memset(bar, '=', (size_t)(full < WIDTH ? full : WIDTH));
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r[%s] %3.0f%% %u/%u files, %.1f MB/s%s", bar, part * 100, client->files_done,
            client->files_all, seconds > 0 ? (double)client->bytes_done / 1e6 / seconds : 0,
            last ? "\n" : "");
}

int client_run(struct client *client, struct bmi_sm_table *table, void *data)
{
    enum { SHOW_MS = 200 };
    struct bmi_job_status status;
    bool over = false, show = client->show && client->files_all > 0;
    atomic_store(&client->running, true);
    if (client->ended != 0)
        signals_end(client);
    client->tick_ns = bmi_job_deadline(0);
    int result = bmi_sm_start(client->jobs, table, data, NULL, NULL, NULL, NULL);
    while (result >= 0 && !over) {
        int count = 0;
        result = bmi_job_testcontext(client->jobs, 1, &count, &status, SHOW_MS);
        if (count > 0 && status.kind == BMI_JOB_EVENT)
            client_cancel(client);
        over = count > 0 && status.kind == BMI_JOB_MACHINE;
        stop_notice(client);
        progress_show(client, false);
    }
    if (show)
        progress_show(client, true);
    atomic_store(&client->running, false);
    if (client->ended != 0)
        signals_end(client);
    return result < 0 ? result : status.error;
}

struct many {
    struct client *client;
    struct bmi_sm_table *table;
    char *array;
    size_t count, size;
};

static int many_start(struct bmi_sm *machine, void *data)
{
    const struct many *many = data;
    for (size_t i = 0; i < many->count; i++) {
        int result = bmi_sm_start(many->client->jobs, many->table, many->array + i * many->size,
                                  NULL, BMI_SM_MINE(machine), NULL, NULL);
        if (result < 0)
            return i > 0 ? BMI_SM_DEFERRED : result;
    }
    return BMI_SM_DEFERRED;
}

static const struct bmi_sm_state many_states[] = {
    {"many", .action = many_start, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table many_table = BMI_SM_TABLE("many", many_states);

int client_run_many(struct client *client, struct bmi_sm_table *table, void *array, size_t count,
                    size_t size)
{
    struct many many = {client, table, array, count, size};
    return client_run(client, &many_table, &many);
}

void client_complain(struct client *client, const char *name, int error)
{
    client->failures++;
    if (client->ended == 0) {
        fprintf(stderr, "%sbmi-stripefs: ", client->show ? "\r" : "");
        sfs_name_print(stderr, name);
        fputs(": ", stderr);
        sfs_name_print(stderr,
                       client->failure[0] != '\0' ? client->failure : bmi_status_string(error));
        fputc('\n', stderr);
    }
    client->failure[0] = '\0';
}
