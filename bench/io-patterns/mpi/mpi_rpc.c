/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi_rpc.c - calls over MPI: a header message, then the body's (mpi); or one message, whose size
 * the receiver learns by MPI_Mprobe (mpi-probe). A side that expects no body has a receive posted.
 */
#include "../rpc.h"
#include "mpi_side.h"

#include <stdlib.h>

#define TAG_BODY 4

static uint8_t *memory_get(size_t size)
{
    uint8_t *memory = malloc(size);
    if (!memory)
        die("no memory");
    return memory;
}

/* A body, or a header without one, is one message if the receiver probes. */
static void message_send(const struct work *work, int peer, struct rpc_header header,
                         const void *body)
{
    if (header.body == 0 || !work->plain)
        MPI_Send(&header, sizeof header, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD);
    if (header.body > 0)
        MPI_Send(body, (int)header.body, MPI_BYTE, peer, work->plain ? TAG_DATA : TAG_BODY,
                 MPI_COMM_WORLD);
}

/* The body that a header announces. */
static uint8_t *body_recv(int peer, uint64_t size)
{
    uint8_t *body = memory_get(size);
    MPI_Recv(body, (int)size, MPI_BYTE, peer, TAG_BODY, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return body;
}

static uint8_t *probed_recv(int peer, int *size)
{
    MPI_Message message;
    MPI_Status status;
    MPI_Mprobe(peer, TAG_DATA, MPI_COMM_WORLD, &message, &status);
    MPI_Get_count(&status, MPI_BYTE, size);
    uint8_t *memory = memory_get((size_t)*size);
    MPI_Mrecv(memory, *size, MPI_BYTE, &message, MPI_STATUS_IGNORE);
    return memory;
}

/* Returns: the body, or the message that was probed for; the caller frees it. NULL: no body. */
static uint8_t *message_recv(const struct work *work, int peer)
{
    struct rpc_header header;
    int size;
    if (work->plain)
        return probed_recv(peer, &size);
    MPI_Recv(&header, sizeof header, MPI_BYTE, peer, TAG_DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return header.body > 0 ? body_recv(peer, header.body) : NULL;
}

static void rpc_serve(const struct mpi_world *world)
{
    struct work work;
    int client;
    (void)world;
    request_await(&work, &client);
    uint8_t *out = allocate_pages(work.size + 1);
    acknowledge(client);
    for (uint64_t i = 0, total = calls_total(&work); i < total; i++) {
        uint8_t *in = message_recv(&work, client);
        if (work.on == RPC_REQUEST)
            rpc_body_check(&work, in, i);
        if (work.on == RPC_REPLY)
            rpc_body_fill(&work, out, i);
        struct rpc_header header = {.body = work.on == RPC_REPLY ? work.size : 0};
        message_send(&work, client, header, out);
        free(in);
    }
    free(out);
}

struct caller {
    struct calls calls;
    struct mpi_set replies; /* without bodies, or their headers */
    struct rpc_header *headers;
    uint8_t *out;
};

/* Whether replies are probed for. */
static bool probes(const struct work *work)
{
    return work->plain && work->on == RPC_REPLY;
}

static void call_start(struct caller *caller, uint32_t place)
{
    const struct work *work = caller->calls.work;
    struct rpc_header header = {.body = work->on == RPC_REQUEST ? work->size : 0,
                                .wanted = work->on == RPC_REPLY ? work->size : 0};
    if (header.body > 0)
        rpc_body_fill(work, caller->out, caller->calls.started);
    if (!call_begin(&caller->calls, place))
        return;
    message_send(work, 0, header, caller->out);
    if (!probes(work))
        MPI_Irecv(&caller->headers[place], sizeof header, MPI_BYTE, 0, TAG_DATA, MPI_COMM_WORLD,
                  &caller->replies.requests[place]);
}

static void call_finish(struct caller *caller, uint32_t place, uint8_t *in)
{
    struct calls *calls = &caller->calls;
    if (in == NULL && caller->headers[place].body > 0)
        in = body_recv(0, caller->headers[place].body);
    call_end(calls, place);
    if (in != NULL)
        rpc_body_check(calls->work, in, calls->ended - 1);
    free(in);
    call_start(caller, place);
}

static void replies_await(struct caller *caller, const struct mpi_world *world)
{
    int size;
    if (probes(caller->calls.work)) {
        call_finish(caller, 0, probed_recv(0, &size));
        return;
    }
    int found = set_test(&caller->replies, world);
    for (int i = 0; i < found; i++)
        call_finish(caller, (uint32_t)caller->replies.indices[i], NULL);
}

static double rpc_run(const struct mpi_world *world, const struct work *work)
{
    struct caller caller = {.headers = allocate(work->window * sizeof *caller.headers),
                            .out = allocate_pages(work->size + 1)};
    calls_open(&caller.calls, work);
    set_open(&caller.replies, (int)work->window);
    ask_and_await(0, work);
    for (uint32_t place = 0; place < work->window; place++)
        call_start(&caller, place);
    while (caller.calls.ended < caller.calls.total)
        replies_await(&caller, world);
    double figure = calls_close(&caller.calls);
    set_close(&caller.replies);
    free(caller.headers);
    free(caller.out);
    return figure;
}

const struct mpi_pattern mpi_rpc = {.name = "rpc", .serve = rpc_serve, .run = rpc_run};
