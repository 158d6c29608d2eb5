/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc.c - a request to a server and its reply, and perhaps a flow beside it, as a machine:
 *
 *   ask: its children receive the reply and run the flow, and the last of them to post its part
 *        sends the request, so that both are posted before any answer, or the connection's end. The
 *        first failure cancels the rest: a refused request leaves no flow behind. done: records a
 *        server's failure. A request that was under way while this process was stopped is sent
 *        again, since the server did not cause time-outs and lost connections of that time. All
 *        requests may be executed twice; for COMMIT and UNLINK `retried` says that their reply may
 *        be the second one.
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

static struct bmi_job_options options_of(struct rpc *rpc, struct bmi_sm *machine)
{
    return (struct bmi_job_options){.machine = machine,
                                    .deadline_ns = bmi_job_deadline(rpc->client->timeout_ms)};
}

/* A child has posted its part: the last one sends the request. A refusal counts as a job's failure,
 * and cancels the posted parts. */
static int part_posted(struct rpc *rpc, struct bmi_sm *machine)
{
    struct bmi_job_options options = {.machine = machine};
    if (--rpc->parts > 0)
        return BMI_SM_DEFERRED;
    int result = bmi_job_sendunexpected(rpc->client->jobs, rpc->client->addresses[rpc->server],
                                        rpc->bytes, rpc->size, BMI_EXT_ALLOC,
                                        (bmi_msg_tag_t)rpc->request.tag, &options, NULL, NULL);
    if (result < 0)
        result = bmi_job_null(rpc->client->jobs, result, &options, NULL, NULL);
    return result < 0 ? result : BMI_SM_DEFERRED;
}

/* ---- the reply ------------------------------------------------------------------------------- */

static int reply_receive(struct bmi_sm *machine, void *data)
{
    struct rpc *rpc = data;
    struct bmi_job_options options = {.machine = machine};
    int result = bmi_job_recv(rpc->client->jobs, rpc->client->addresses[rpc->server], rpc->room,
                              (bmi_size_t)rpc->room_size, BMI_EXT_ALLOC,
                              (bmi_msg_tag_t)rpc->request.tag, &options, NULL, &rpc->received);
    return result < 0 ? result : part_posted(rpc, machine);
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

static int reply_check(struct bmi_sm *machine, void *data)
{
    struct rpc *rpc = data;
    (void)machine;
    int result = sfs_reply_decode(&rpc->reply, rpc->room, (size_t)rpc->received.actual);
    if (result < 0)
        return result;
    if (rpc->reply.op != rpc->request.op)
        return -BMI_EPROTO;
    return rpc->reply.status < 0 ? rpc->reply.status : start_check(rpc);
}

static const struct bmi_sm_state reply_states[] = {
    {"receive reply", .action = reply_receive, .wait = BMI_SM_FIRST_FAILURE,
     .on = {BMI_SM_OK(1), BMI_SM_FAIL(BMI_SM_END)}},
    {"check reply", .action = reply_check, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table reply_table = {"reply", reply_states, 2, 0};

/* ---- the flow -------------------------------------------------------------------------------- */

static int flow_run(struct bmi_sm *machine, void *data)
{
    struct rpc *rpc = data;
    struct bmi_job_options options = {.machine = machine};
    int result = bmi_job_flow(rpc->client->jobs, &rpc->flow, &options, NULL, NULL);
    return result < 0 ? result : part_posted(rpc, machine);
}

/* The server's side of the flow failed; its reply has the cause. */
static int flow_excuse(struct bmi_sm *machine, void *data)
{
    (void)machine;
    (void)data;
    return BMI_SM_DONE;
}

static const struct bmi_sm_state flow_states[] = {
    {"flow", .action = flow_run, .wait = BMI_SM_FIRST_FAILURE,
     .on = {BMI_SM_OK(BMI_SM_END), BMI_SM_ON(-BMI_EPIPE, 1), BMI_SM_FAIL(BMI_SM_END)}},
    {"wait for the cause", .action = flow_excuse, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table flow_table = {"flow", flow_states, 2, 0};

static void flow_prepare(struct rpc *rpc)
{
    struct bmi_flow_endpoint network = {.kind = BMI_FLOW_NETWORK};
    network.u.network.address = rpc->client->addresses[rpc->server];
    network.u.network.tag = (bmi_msg_tag_t)(rpc->request.tag + 1);
    if (rpc->request.op == SFS_WRITE)
        rpc->flow.destination = network;
    else
        rpc->flow.source = network;
}

/* ---- the request ----------------------------------------------------------------------------- */

/* After a signal only requests that finish or undo earlier ones are sent. */
static bool may_ask(const struct rpc *rpc)
{
    uint16_t op = rpc->request.op;
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

static void tag_choose(struct client *client)
{
    client->next_tag = (client->next_tag + 2) & 0x7ffffffe;
    if (client->next_tag == 0)
        client->next_tag = 2;
}

static int ask(struct bmi_sm *machine, void *data)
{
    struct rpc *rpc = data;
    struct client *client = rpc->client;
    struct bmi_job_options options = options_of(rpc, machine);
    if (!may_ask(rpc))
        return -BMI_ECANCEL;
    tag_choose(client);
    rpc->request.tag = client->next_tag;
    rpc->asked_ns = bmi_job_deadline(0);
    rpc->tries++;
    if (rpc->written != NULL && *rpc->written >> rpc->server & 1)
        rpc->request.flags |= SFS_MORE;
    rpc->size = sfs_request_encode(&rpc->request, rpc->bytes, sizeof rpc->bytes);
    if (rpc->size < 0)
        return (int)rpc->size;
    rpc->parts = rpc->has_flow ? 2 : 1;
    int result = bmi_sm_start(client->jobs, &reply_table, rpc, NULL, &options, NULL, NULL);
    if (result >= 0 && rpc->has_flow) {
        flow_prepare(rpc);
        result = bmi_sm_start(client->jobs, &flow_table, rpc, NULL, &options, NULL, NULL);
    }
    /* A refusal counts as a job's failure, and cancels the children. */
    if (result < 0)
        result = bmi_job_null(client->jobs, result, &options, NULL, NULL);
    if (result < 0)
        return result;
    running_add(rpc, machine);
    return BMI_SM_DEFERRED;
}

static const char *cause_of(const struct rpc *rpc, int error)
{
    if (error == -BMI_EBADR)
        return " (it was started with another place in the list of servers)";
    if (rpc->anew)
        return " (it was restarted meanwhile: put the file again)";
    if (error == -BMI_ENOENT && rpc->request.op <= SFS_KEEP && rpc->request.op != SFS_READ)
        return " (it has removed the bytes of this put: put the file again)";
    return "";
}

/* Choices: 0: done; 1: send the request again. */
static int done(struct bmi_sm *machine, void *data)
{
    struct rpc *rpc = data;
    int error = bmi_sm_last(machine);
    running_remove(rpc);
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
    {"ask", .action = ask, .wait = BMI_SM_FIRST_FAILURE, .on = {BMI_SM_ELSE(1)}},
    {"done", .action = done, .choices = 2, .on = {BMI_SM_ON(1, 0), BMI_SM_ELSE(BMI_SM_END)}},
};
struct bmi_sm_table rpc_table = {"request", rpc_states, 2, 0};

void client_cancel(struct client *client)
{
    for (struct rpc *rpc = client->rpcs, *next; rpc != NULL; rpc = next) {
        uint16_t op = rpc->request.op;
        next = rpc->next;
        if (op != SFS_KEEP && op != SFS_DROP && op != SFS_COMMIT && op != SFS_UNLINK)
            bmi_job_cancel(client->jobs, rpc->machine);
    }
}

/* ---- for others ------------------------------------------------------------------------------ */

void rpc_make(struct rpc *rpc, struct client *client, int server, enum sfs_op op, const char *path)
{
    memset(rpc, 0, offsetof(struct rpc, bytes));
    rpc->client = client;
    rpc->server = server;
    rpc->room = rpc->small;
    rpc->room_size = sizeof rpc->small;
    rpc->request.op = (uint16_t)op;
    rpc->request.server = (uint16_t)server;
    rpc->request.servers = (uint16_t)client->count;
    rpc->request.client = client->id;
    rpc->request.flags = client->sync ? SFS_SYNCED : 0;
    if (path != NULL) {
        rpc->request.path_size = (uint16_t)strlen(path);
        memcpy(rpc->request.path, path, rpc->request.path_size);
    }
}

int rpc_call(struct rpc *rpc)
{
    return client_run(rpc->client, &rpc_table, rpc);
}

int rpc_start(struct rpc *rpc, struct bmi_sm *machine)
{
    struct bmi_job_options options = {.machine = machine};
    int result = bmi_sm_start(rpc->client->jobs, &rpc_table, rpc, NULL, &options, NULL, NULL);
    return result < 0 ? result : BMI_SM_DEFERRED;
}

int rpc_refused(struct client *client, struct bmi_sm *machine, int error)
{
    struct bmi_job_options options = {.machine = machine};
    int result = bmi_job_null(client->jobs, error, &options, NULL, NULL);
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
            rpc->request.object_count = 1;
            rpc->request.objects[0] = meta->object;
        }
        int result = rpc_start(rpc, machine);
        if (result != BMI_SM_DEFERRED)
            return rpc_refused(client, machine, result);
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
