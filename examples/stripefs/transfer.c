/* SPDX-License-Identifier: BSD-3-Clause
 *
 * transfer.c - moves files, by worker machines that take one chunk after another, so that disks see
 * a large file from its beginning to its end:
 *
 *   next -> read, send | fetch, write -> chunk done
 *        -> the last chunk of a file: keep -> commit -> drop the former -> next
 *   next -> commit: a link or folder that is put
 *
 * A file that is put gets an object number of its own. When all bytes have arrived, the servers are
 * asked to keep them even if this client disconnects; then the commit gives them their name. A put
 * that fails, or is ended by a signal, removes its bytes and leaves the former file of that name; a
 * get does the same with the local file. A stream (a pipe, standard input) is read chunk by chunk
 * by one worker, since its size is unknown.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client.h"
#include "local.h"

struct worker {
    struct client *client;
    struct transfers *transfers;
    struct file *file; /* of the chunk under way */
    uint64_t at, chunk_size;
    struct bmi_flow_extent extents[SFS_EXTENTS_MAX];
    int extent_count;
    bmi_size_t bytes;
    void *regions[1];
    bmi_size_t region_sizes[1];
    struct bmi_flow_stripe stripe;
    struct local local;
    struct sfs_meta former;
    struct rpc *rpcs; /* one a server */
    uint8_t *buffer;
};

/* ---- requests to several servers ------------------------------------------------------------- */

/* Whether each server has bytes of the file; servers send requested bytes that they do not have as
 * zeros. */
static bool all_hold(const struct worker *worker)
{
    uint64_t all = UINT64_MAX >> (64 - worker->client->count);
    return (worker->file->meta.holders & all) == all;
}

/* The bytes of a file need no separate KEEP if one request carries all of them. */
static void write_prepare(struct worker *worker, struct rpc *rpc, int server)
{
    struct file *file = worker->file;
    bool whole = !file->stream && file->meta.size <= CHUNK && !worker->client->sync;
    rpc->start = worker->client->sync ? &file->starts[server] : NULL;
    rpc->written = &file->written;
    file->meta.holders |= UINT64_C(1) << server;
    file->kept = whole && file->meta.size <= file->meta.stripe;
    if (file->kept)
        rpc->request.flags |= SFS_LAST;
}

/* A WRITE or READ of the chunk to each server that has bytes of it. */
static int chunk_ask(struct worker *worker, struct bmi_sm *machine, enum sfs_op op)
{
    struct client *client = worker->client;
    struct sfs_meta *meta = &worker->file->meta;
    worker->stripe.stripe_size = meta->stripe;
    worker->regions[0] = worker->buffer;
    worker->region_sizes[0] = worker->bytes;
    if (op == SFS_READ && !all_hold(worker))
        memset(worker->buffer, 0, (size_t)worker->bytes);
    for (uint32_t part = 0; part < (uint32_t)client->count; part++) {
        int server = (int)((meta->object + part) % (uint64_t)client->count);
        bmi_size_t share =
            bmi_flow_request_size(worker->extents, worker->extent_count, &bmi_flow_simple_stripe,
                                  &worker->stripe, part, (uint32_t)client->count);
        bool holds = meta->holders >> server & 1;
        if (share <= 0 || (op == SFS_READ && !holds))
            continue;
        struct rpc *rpc = &worker->rpcs[server];
        rpc_make(rpc, client, server, op, NULL);
        if (op == SFS_WRITE)
            write_prepare(worker, rpc, server);
        rpc->request.object = meta->object;
        rpc->request.part = part;
        rpc->request.stripe = meta->stripe;
        rpc->request.count = (uint32_t)worker->extent_count;
        for (int i = 0; i < worker->extent_count; i++)
            rpc->request.u.extents[i] = (struct sfs_extent){(uint64_t)worker->extents[i].offset,
                                                            (uint64_t)worker->extents[i].size};
        struct bmi_flow_endpoint memory = {.kind = BMI_FLOW_MEMORY};
        memory.u.memory.buffers = worker->regions;
        memory.u.memory.sizes = worker->region_sizes;
        memory.u.memory.count = 1;
        rpc->has_flow = true;
        rpc->flow = (struct bmi_flow_description){.source = memory,
                                                  .destination = memory,
                                                  .extents = worker->extents,
                                                  .extent_count = worker->extent_count,
                                                  .distribution = &bmi_flow_simple_stripe,
                                                  .distribution_parameters = &worker->stripe,
                                                  .server = part,
                                                  .servers = (uint32_t)client->count,
                                                  .buffer_count = 4};
        int result = rpc_start(rpc, machine);
        if (result != BMI_SM_DEFERRED)
            return result;
    }
    return BMI_SM_DEFERRED;
}

/* ---- steps of a worker ----------------------------------------------------------------------- */

/* The next chunk; an empty file has one, too. After a failure all remaining chunks of the file are
 * taken as one: the metadata may claim any size. */
static void chunk_take(struct worker *worker)
{
    struct transfers *transfers = worker->transfers;
    struct file *file = transfers->files[transfers->next];
    uint64_t left =
        file->stream || file->meta.kind != SFS_FILE ? 0 : file->meta.size - transfers->at;
    if (file->error < 0 && left > CHUNK) {
        file->chunks -= (left - 1) / CHUNK;
        transfers->at = file->meta.size - CHUNK;
        left = CHUNK;
    }
    worker->file = file;
    worker->at = transfers->at;
    worker->chunk_size = left < CHUNK ? left : CHUNK;
    transfers->at += worker->chunk_size;
    if (left <= CHUNK) {
        transfers->at = 0;
        transfers->next++;
    }
}

/* After a signal only files that were begun continue, to undo them. */
static bool none_left(const struct worker *worker)
{
    const struct transfers *transfers = worker->transfers;
    bool ended = worker->client->ended != 0;
    if (transfers->next == transfers->count || (ended && transfers->at == 0))
        return true;
    if (ended && transfers->files[transfers->next]->error == 0)
        transfers->files[transfers->next]->error = -BMI_ECANCEL;
    return false;
}

/* Choices: 0: no more chunks; 1: put; 2: get; 3: put a link or folder. */
static int next(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    (void)machine;
    if (none_left(worker))
        return 0;
    chunk_take(worker);
    if (worker->file->error < 0)
        return worker->file->error; /* another chunk of it failed */
    if (worker->file->meta.kind != SFS_FILE)
        return 3;
    int result = file_open(worker->file);
    return result < 0 ? result : worker->file->put ? 1 : 2;
}

/* Choices: 0: read, then send; 1: no bytes in this chunk. */
static int put_read(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    if (worker->file->stream)
        return stream_start(&worker->local, worker->file, machine, worker->buffer, CHUNK);
    int result = extents_find(worker->file, worker->at, worker->chunk_size, worker->extents,
                              &worker->extent_count, &worker->bytes);
    if (result < 0)
        return result;
    if (worker->extent_count == 0)
        return 1;
    worker->local.extents = worker->extents;
    worker->local.count = worker->extent_count;
    return local_start(&worker->local, worker->file, machine, worker->buffer);
}

/* Choices: 0: sent; 1: the stream has ended. */
static int put_send(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    if (worker->file->stream) {
        worker->bytes = worker->local.got;
        worker->chunk_size = (uint64_t)worker->bytes;
        worker->extents[0] = (struct bmi_flow_extent){.offset = (bmi_size_t)worker->at,
                                                      .size = worker->bytes,
                                                      .count = 1};
        worker->extent_count = 1;
        if (worker->bytes == 0)
            return 1;
    }
    return chunk_ask(worker, machine, SFS_WRITE);
}

/* Choices: 0: the chunk is done; 1: a stream's next one. */
static int moved(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    (void)machine;
    worker->client->bytes_done += worker->chunk_size;
    if (!worker->file->stream)
        return 0;
    worker->at += worker->chunk_size;
    worker->file->meta.size = worker->at;
    return worker->chunk_size == CHUNK;
}

/* Choices: 0: fetch, then write; 1: no bytes in this chunk. */
static int get_fetch(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    if (worker->chunk_size == 0)
        return 1;
    worker->bytes = (bmi_size_t)worker->chunk_size;
    worker->extents[0] = (struct bmi_flow_extent){.offset = (bmi_size_t)worker->at,
                                                  .size = worker->bytes,
                                                  .count = 1};
    worker->extent_count = 1;
    return chunk_ask(worker, machine, SFS_READ);
}

static int get_write(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    worker->local.extents = worker->extents;
    worker->local.count = 1;
    return local_start(&worker->local, worker->file, machine, worker->buffer);
}

static int failed(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    struct file *file = worker->file;
    int error = bmi_sm_last(machine);
    if (file->error == 0) {
        bool here = file->put || worker->client->failure[0] == '\0'; /* no server failed */
        file->error = error < 0 ? error : -BMI_EIO;
        if (file->failed != NULL)
            *file->failed = true;
        client_complain(worker->client, here ? file->local : file->remote, file->error);
    }
    return BMI_SM_DONE;
}

/* Choices: 0: other chunks are not done; 1: finish a put; 2: finish a get; 3: it failed. */
static int chunk_done(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    (void)machine;
    if (--worker->file->chunks > 0)
        return 0;
    return worker->file->error < 0 ? 3 : worker->file->put ? 1 : 2;
}

static int put_keep(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    struct file *file = worker->file;
    int result = file->stream ? 0 : file_unchanged(file);
    if (result < 0 || file->kept)
        return result;
    return rpc_object(worker->client, worker->rpcs, machine, SFS_KEEP, &file->meta,
                      worker->client->sync ? file->starts : NULL);
}

static int put_commit(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    struct file *file = worker->file;
    int server = path_server(worker->client, file->remote);
    rpc_make(&worker->rpcs[server], worker->client, server, SFS_COMMIT, file->remote);
    worker->rpcs[server].request.meta = file->meta;
    return rpc_start(&worker->rpcs[server], machine);
}

/* Whether a failed commit has certainly no effect: the server has refused it. Errors that may also
 * come from this side, after the commit, are not among these. With sync a server that cannot flush
 * the name reports EIO or ENOSPC, and may show the name nevertheless. */
static bool refused(const struct client *client, int error)
{
    static const int causes[] = {BMI_EISDIR, BMI_ENOTDIR, BMI_EINVAL,       BMI_EACCES,
                                 BMI_EBADR,  BMI_ENOSYS,  BMI_ENAMETOOLONG, BMI_EFBIG};
    if (error == -BMI_EIO || error == -BMI_ENOSPC)
        return !client->sync;
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++)
        if (error == -causes[i])
            return true;
    return false;
}

/* Choices: 0: the server has refused: undo; 1: the name may be the new file's or not. In that case
 * the bytes of both files stay: a name without bytes would be worse than bytes without a name. */
static int commit_failed(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    failed(machine, data);
    return !refused(worker->client, bmi_sm_last(machine));
}

/* Drops the bytes of the file that had the name before. */
static int put_drop_former(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    int server = path_server(worker->client, worker->file->remote);
    const struct reply *reply = &worker->rpcs[server].reply;
    if (!reply->has_meta || reply->meta.kind != SFS_FILE ||
        reply->meta.object == worker->file->meta.object) /* the commit was sent twice */
        return BMI_SM_DONE;
    worker->former = reply->meta;
    return rpc_object(worker->client, worker->rpcs, machine, SFS_DROP, &worker->former, NULL);
}

static int get_finish(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    (void)machine;
    return file_finish(worker->file);
}

/* A failed put leaves no bytes. An unreachable server removes them itself. */
static int undo(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    if (worker->file->meta.kind != SFS_FILE)
        return BMI_SM_DONE;
    if (worker->file->put)
        return rpc_object(worker->client, worker->rpcs, machine, SFS_DROP, &worker->file->meta,
                          NULL);
    file_undo(worker->file);
    return BMI_SM_DONE;
}

static int file_over(struct bmi_sm *machine, void *data)
{
    struct worker *worker = data;
    (void)machine;
    worker->client->files_done++;
    file_close(worker->file);
    return BMI_SM_DONE;
}

enum {
    NEXT,
    PUT_READ,
    PUT_SEND,
    MOVED,
    GET_FETCH,
    GET_WRITE,
    CHUNK_FAILED,
    CHUNK_DONE,
    PUT_KEEP,
    PUT_COMMIT,
    COMMIT_FAILED,
    PUT_DROP_FORMER,
    GET_FINISH,
    FINISH_FAILED,
    UNDO,
    OVER,
    STATES
};

static const struct bmi_sm_state worker_states[STATES] = {
    [NEXT] = {"next", .action = next, .choices = 4,
              .on = {BMI_SM_ON(0, BMI_SM_END), BMI_SM_ON(1, PUT_READ), BMI_SM_ON(2, GET_FETCH),
                     BMI_SM_ON(3, PUT_COMMIT), BMI_SM_FAIL(CHUNK_FAILED)}},
    [PUT_READ] = {"read", .action = put_read, .choices = 2,
                  .on = {BMI_SM_OK(PUT_SEND), BMI_SM_ON(1, MOVED), BMI_SM_FAIL(CHUNK_FAILED)}},
    /* It waits for all servers: otherwise one of them could wait long for bytes that are not sent
     * any more after another's failure, and create the object again after it was dropped. */
    [PUT_SEND] = {"send", .action = put_send, .choices = 2,
                  .on = {BMI_SM_OK(MOVED), BMI_SM_ON(1, MOVED), BMI_SM_FAIL(CHUNK_FAILED)}},
    [GET_FETCH] = {"fetch", .action = get_fetch, .wait = BMI_SM_FIRST_FAILURE, .choices = 2,
                   .on = {BMI_SM_OK(GET_WRITE), BMI_SM_ON(1, MOVED), BMI_SM_FAIL(CHUNK_FAILED)}},
    [GET_WRITE] = {"write", .action = get_write,
                   .on = {BMI_SM_OK(MOVED), BMI_SM_FAIL(CHUNK_FAILED)}},
    [MOVED] = {"moved", .action = moved, .choices = 2,
               .on = {BMI_SM_ON(1, PUT_READ), BMI_SM_ELSE(CHUNK_DONE)}},
    [CHUNK_FAILED] = {"chunk failed", .action = failed, .on = {BMI_SM_ELSE(CHUNK_DONE)}},
    [CHUNK_DONE] = {"chunk done", .action = chunk_done, .choices = 4,
                    .on = {BMI_SM_OK(NEXT), BMI_SM_ON(1, PUT_KEEP), BMI_SM_ON(2, GET_FINISH),
                           BMI_SM_ELSE(UNDO)}},
    [PUT_KEEP] = {"keep", .action = put_keep, .wait = BMI_SM_FIRST_FAILURE,
                  .on = {BMI_SM_OK(PUT_COMMIT), BMI_SM_FAIL(FINISH_FAILED)}},
    [PUT_COMMIT] = {"commit", .action = put_commit,
                    .on = {BMI_SM_OK(PUT_DROP_FORMER), BMI_SM_FAIL(COMMIT_FAILED)}},
    [COMMIT_FAILED] = {"commit failed", .action = commit_failed, .choices = 2,
                       .on = {BMI_SM_ON(1, OVER), BMI_SM_ELSE(UNDO)}},
    [PUT_DROP_FORMER] = {"drop former", .action = put_drop_former, .on = {BMI_SM_ELSE(OVER)}},
    [GET_FINISH] = {"finish", .action = get_finish,
                    .on = {BMI_SM_OK(OVER), BMI_SM_FAIL(FINISH_FAILED)}},
    [FINISH_FAILED] = {"finish failed", .action = failed, .on = {BMI_SM_ELSE(UNDO)}},
    [UNDO] = {"undo", .action = undo, .on = {BMI_SM_ELSE(OVER)}},
    [OVER] = {"over", .action = file_over, .on = {BMI_SM_ELSE(NEXT)}},
};
static struct bmi_sm_table worker_table = BMI_SM_TABLE("worker", worker_states);

/* ---- many workers ---------------------------------------------------------------------------- */

static int worker_make(struct worker *worker, struct client *client, struct transfers *transfers)
{
    worker->client = client;
    worker->transfers = transfers;
    worker->rpcs = calloc((size_t)client->count, sizeof *worker->rpcs);
    worker->buffer = malloc(CHUNK);
    if (worker->rpcs == NULL || worker->buffer == NULL)
        return -BMI_ENOMEM;
    return 0;
}

static void worker_free(struct worker *worker)
{
    free(worker->rpcs);
    free(worker->buffer);
}

struct file *file_make(struct client *client, const char *local, const char *remote)
{
    struct file *file = calloc(1, sizeof *file);
    char *copies[] = {strdup(remote), strdup(local)};
    if (file == NULL || copies[0] == NULL || copies[1] == NULL) {
        free(copies[0]);
        free(copies[1]);
        free(file);
        client_complain(client, local, -BMI_ENOMEM);
        return NULL;
    }
    *file = (struct file){.client = client, .remote = copies[0], .local = copies[1], .fd = -1};
    pthread_mutex_init(&file->lock, NULL);
    return file;
}

void file_free(struct file *file)
{
    if (file == NULL)
        return;
    pthread_mutex_destroy(&file->lock);
    free(file->remote);
    free(file->local);
    free(file->target);
    free(file);
}

void transfers_run(struct transfers *transfers)
{
    struct client *client = transfers->client;
    struct worker *workers = calloc((size_t)client->parallel, sizeof *workers);
    int result = workers == NULL ? -BMI_ENOMEM : 0;
    size_t count = 0;
    client->begin_ns = bmi_job_deadline(0);
    while (count < (size_t)client->parallel && count < transfers->chunks && result == 0)
        result = worker_make(&workers[count++], client, transfers);
    if (result == 0)
        result = client_run_many(client, &worker_table, workers, count, sizeof *workers);
    if (result < 0)
        client_complain(client, "transfers", result);
    for (int i = 0; workers != NULL && i < client->parallel; i++)
        worker_free(&workers[i]);
    free(workers);
    for (size_t i = 0; i < transfers->count; i++)
        file_free(transfers->files[i]);
    free(transfers->files);
    client->files_all = client->files_done = 0;
    client->bytes_all = client->bytes_done = 0;
    *transfers = (struct transfers){.client = client};
}

static int file_prepare(struct transfers *transfers, struct file *file)
{
    if (transfers->count == transfers->room) {
        size_t room = transfers->room != 0 ? transfers->room * 2 : 64;
        struct file **grown = realloc(transfers->files, room * sizeof *grown);
        if (grown == NULL)
            return -BMI_ENOMEM;
        transfers->files = grown;
        transfers->room = room;
    }
    if (file->put && file->meta.kind == SFS_FILE) {
        if (getrandom(&file->meta.object, sizeof file->meta.object, 0) < 0)
            return -BMI_EIO;
        file->meta.object = (file->meta.object >> 2) + 1; /* never 0; odd and even equally often */
    }
    return 0;
}

void transfers_add(struct transfers *transfers, struct file *file)
{
    int result = file_prepare(transfers, file);
    if (result < 0) {
        client_complain(transfers->client, file->local, result);
        if (file->failed != NULL)
            *file->failed = true;
        file_free(file);
        return;
    }
    file->chunks = file->meta.kind == SFS_FILE && file->meta.size > 0
                       ? (file->meta.size + CHUNK - 1) / CHUNK
                       : 1;
    transfers->files[transfers->count++] = file;
    transfers->chunks += file->chunks;
    transfers->client->files_all++;
    if (file->meta.kind == SFS_FILE)
        transfers->client->bytes_all += file->meta.size;
}

/* ---- one file, without workers --------------------------------------------------------------- */

static int fetch_only(struct bmi_sm *machine, void *data)
{
    return chunk_ask(data, machine, SFS_READ);
}

static const struct bmi_sm_state fetch_states[] = {
    {"fetch", .action = fetch_only, .wait = BMI_SM_FIRST_FAILURE, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table fetch_table = BMI_SM_TABLE("fetch", fetch_states);

static int output_error(struct client *client)
{
    int error = bmi_status_of(errno);
    snprintf(client->failure, sizeof client->failure, "standard output: %s",
             bmi_status_string(error));
    return error;
}

static int cat_chunk(struct worker *worker, uint64_t offset, uint64_t size)
{
    worker->bytes = (bmi_size_t)size;
    worker->extents[0] =
        (struct bmi_flow_extent){.offset = (bmi_size_t)offset, .size = worker->bytes, .count = 1};
    worker->extent_count = 1;
    int result = client_run(worker->client, &fetch_table, worker);
    if (result < 0)
        return result;
    return fwrite(worker->buffer, 1, size, stdout) == size ? 0 : output_error(worker->client);
}

int file_cat(struct client *client, const struct sfs_meta *meta)
{
    struct file file = {.client = client, .meta = *meta, .fd = -1};
    struct worker worker = {.file = &file};
    int result = worker_make(&worker, client, NULL);
    for (uint64_t at = 0; at < meta->size && result == 0; at += CHUNK)
        result = cat_chunk(&worker, at, meta->size - at < CHUNK ? meta->size - at : CHUNK);
    if (fflush(stdout) != 0 && result == 0)
        result = output_error(client);
    worker_free(&worker);
    return result;
}
