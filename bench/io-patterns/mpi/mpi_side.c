/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi_side.c - sets of requests, asking and acknowledging, datatypes. MPI's default error handler
 * ends the program with a message, so the code ignores statuses.
 */
#include "mpi_side.h"

#include <sched.h>
#include <stdlib.h>

void set_open(struct mpi_set *set, int count)
{
    set->requests = allocate((size_t)count * sizeof *set->requests);
    set->indices = allocate((size_t)count * sizeof *set->indices);
    set->count = count;
    for (int i = 0; i < count; i++)
        set->requests[i] = MPI_REQUEST_NULL;
}

void set_close(struct mpi_set *set)
{
    free(set->requests);
    free(set->indices);
}

int set_test(struct mpi_set *set, const struct mpi_world *world)
{
    int found = 0;
    MPI_Testsome(set->count, set->requests, &found, set->indices, MPI_STATUSES_IGNORE);
    if (found == MPI_UNDEFINED)
        found = 0;
    if (found == 0 && world->crowded)
        sched_yield();
    return found;
}

static void request_receive(struct work *work, const MPI_Status *status, int *client)
{
    uint8_t request[REQUEST_SIZE];
    *client = status->MPI_SOURCE;
    MPI_Recv(request, REQUEST_SIZE, MPI_BYTE, *client, TAG_REQUEST, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    request_decode(work, request);
}

bool request_take(struct work *work, int *client)
{
    int found = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, TAG_REQUEST, MPI_COMM_WORLD, &found, &status);
    if (found)
        request_receive(work, &status, client);
    return found;
}

void request_await(struct work *work, int *client)
{
    MPI_Status status;
    MPI_Probe(MPI_ANY_SOURCE, TAG_REQUEST, MPI_COMM_WORLD, &status);
    request_receive(work, &status, client);
}

void acknowledge(int client)
{
    uint8_t ack[ACK_SIZE] = {0};
    MPI_Send(ack, ACK_SIZE, MPI_BYTE, client, TAG_ACK, MPI_COMM_WORLD);
}

void ask_and_await(int server, const struct work *work)
{
    struct work asked = *work;
    uint8_t request[REQUEST_SIZE], ack[ACK_SIZE];
    asked.server = (uint8_t)server;
    request_encode(request, &asked);
    MPI_Send(request, REQUEST_SIZE, MPI_BYTE, server, TAG_REQUEST, MPI_COMM_WORLD);
    MPI_Recv(ack, ACK_SIZE, MPI_BYTE, server, TAG_ACK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* The pieces one by one, for a message that is not whole segments. */
static MPI_Datatype pieces_type(const struct layout *layout, int server, uint64_t position,
                                uint64_t size)
{
    int room = (int)(size / layout->segment + 2);
    struct iovec *pieces = allocate((size_t)room * sizeof *pieces);
    int *lengths = allocate((size_t)room * sizeof *lengths);
    MPI_Aint *places = allocate((size_t)room * sizeof *places);
    int count = layout_pieces(layout, server, position, size, pieces, room);
    MPI_Datatype type;
    for (int i = 0; i < count; i++) {
        lengths[i] = (int)pieces[i].iov_len;
        places[i] = (uint8_t *)pieces[i].iov_base - layout->memory;
    }
    MPI_Type_create_hindexed(count, lengths, places, MPI_BYTE, &type);
    free(pieces);
    free(lengths);
    free(places);
    return type;
}

MPI_Datatype layout_type(const struct layout *layout, int server, uint64_t position, uint64_t size,
                         void **base)
{
    struct iovec first;
    MPI_Datatype type;
    layout_pieces(layout, server, position, size, &first, 1);
    if (position % layout->segment == 0 && size % layout->segment == 0) {
        MPI_Type_create_hvector((int)(size / layout->segment), (int)layout->segment,
                                (MPI_Aint)(layout->segment * layout->lanes), MPI_BYTE, &type);
        *base = first.iov_base;
    } else {
        type = pieces_type(layout, server, position, size);
        *base = layout->memory;
    }
    MPI_Type_commit(&type);
    return type;
}

double mpi_sample_take(const struct mpi_pattern *pattern, const struct mpi_world *world,
                       const struct work *work)
{
    double seconds = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    if (world->rank < world->servers)
        pattern->serve(world);
    else
        seconds = pattern->run(world, work);
    MPI_Barrier(MPI_COMM_WORLD); /* no rank leaves MPI with data still under way */
    return seconds;
}
