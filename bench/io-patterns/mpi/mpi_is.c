/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi_is.c - the integer sort over MPI's collective calls; see ../is_sort.h. The ranks that serve
 * sort when the last rank asks them.
 *
 * The calls of `mpi` spin while they wait, which takes CPUs from other ranks where there are more
 * ranks than CPUs. `mpi-yield` starts the same calls without waiting, and yields until they end.
 */
#include "../is.h"
#include "mpi_side.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct mpi_exchange {
    struct is_exchange base;
    MPI_Comm servers;
    bool yields;
};

static void call_await(MPI_Request *call)
{
    int done = 0;
    for (MPI_Test(call, &done, MPI_STATUS_IGNORE); !done; MPI_Test(call, &done, MPI_STATUS_IGNORE))
        sched_yield();
}

static void sum_exchange(struct is_exchange *base, uint32_t *values, int count)
{
    struct mpi_exchange *exchange = (struct mpi_exchange *)base;
    MPI_Request call;
    if (!exchange->yields) {
        MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_UINT32_T, MPI_SUM, exchange->servers);
        return;
    }
    MPI_Iallreduce(MPI_IN_PLACE, values, count, MPI_UINT32_T, MPI_SUM, exchange->servers, &call);
    call_await(&call);
}

static void sizes_exchange(struct is_exchange *base, uint32_t *out, uint32_t *in)
{
    struct mpi_exchange *exchange = (struct mpi_exchange *)base;
    MPI_Request call;
    if (!exchange->yields) {
        MPI_Alltoall(out, 1, MPI_UINT32_T, in, 1, MPI_UINT32_T, exchange->servers);
        return;
    }
    MPI_Ialltoall(out, 1, MPI_UINT32_T, in, 1, MPI_UINT32_T, exchange->servers, &call);
    call_await(&call);
}

static void keys_exchange(struct is_exchange *base, const struct is_parts *out,
                          const struct is_parts *in)
{
    struct mpi_exchange *exchange = (struct mpi_exchange *)base;
    MPI_Request call;
    if (!exchange->yields) {
        MPI_Alltoallv(out->words, out->counts, out->places, MPI_UINT32_T, in->words, in->counts,
                      in->places, MPI_UINT32_T, exchange->servers);
        return;
    }
    MPI_Ialltoallv(out->words, out->counts, out->places, MPI_UINT32_T, in->words, in->counts,
                   in->places, MPI_UINT32_T, exchange->servers, &call);
    call_await(&call);
}

/* The communicator of the ranks that sort, made at the first sample. */
static MPI_Comm servers_of(const struct mpi_world *world)
{
    static MPI_Comm servers = MPI_COMM_NULL;
    static bool made;
    int colour = world->rank < world->servers ? 0 : MPI_UNDEFINED;
    if (!made)
        MPI_Comm_split(MPI_COMM_WORLD, colour, world->rank, &servers);
    made = true;
    return servers;
}

static void is_serve(const struct mpi_world *world)
{
    struct mpi_exchange exchange = {.base = {.rank = world->rank,
                                             .count = world->servers,
                                             .sum = sum_exchange,
                                             .sizes = sizes_exchange,
                                             .keys = keys_exchange},
                                    .servers = servers_of(world)};
    struct work work;
    struct is_result result;
    uint8_t ack[ACK_SIZE] = {0};
    int client;
    request_await(&work, &client);
    exchange.yields = work.plain;
    is_sort(is_class_of(work.size), &exchange.base, &result);
    memcpy(ack, &result, sizeof result);
    MPI_Send(ack, ACK_SIZE, MPI_BYTE, client, TAG_ACK, MPI_COMM_WORLD);
}

/* MPI's own waiting would take a CPU from the ranks that sort. */
static void acks_await(MPI_Request *requests, int count)
{
    int done = 0;
    while (!done) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
    }
}

static double is_run(const struct mpi_world *world, const struct work *work)
{
    int count = world->servers;
    MPI_Request *requests = allocate((size_t)count * sizeof *requests);
    uint8_t request[REQUEST_SIZE], (*acks)[ACK_SIZE] = allocate((size_t)count * sizeof *acks);
    servers_of(world);
    request_encode(request, work);
    for (int i = 0; i < count; i++) {
        MPI_Irecv(acks[i], ACK_SIZE, MPI_BYTE, i, TAG_ACK, MPI_COMM_WORLD, &requests[i]);
        MPI_Send(request, REQUEST_SIZE, MPI_BYTE, i, TAG_REQUEST, MPI_COMM_WORLD);
    }
    acks_await(requests, count);
    double figure = is_figure_of(work, (const uint8_t(*)[ACK_SIZE])acks);
    free(requests);
    free(acks);
    return figure;
}

const struct mpi_pattern mpi_is = {.name = "is", .serve = is_serve, .run = is_run};
