/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi_bandwidth.c - one way with MPI, all messages posted at the start.
 */
#include "mpi_side.h"

#include <stdlib.h>
#include <string.h>

#define STREAM 0x20000u

static MPI_Request *requests_allocate(uint64_t count)
{
    return allocate(count * sizeof(MPI_Request));
}

static void bandwidth_serve(const struct mpi_world *world)
{
    struct work work;
    int client;
    (void)world;
    request_await(&work, &client);
    uint64_t messages = message_count(&work);
    uint8_t *memory = data_arena(memory_size(&work));
    MPI_Request *requests = requests_allocate(messages);
    if (work.verify)
        memset(memory, 0, work.amount);
    for (uint64_t i = 0; i < messages; i++)
        MPI_Irecv(memory + memory_place(&work, i), (int)message_size(&work, i), MPI_BYTE, client,
                  TAG_DATA, MPI_COMM_WORLD, &requests[i]);
    acknowledge(client);
    MPI_Waitall((int)messages, requests, MPI_STATUSES_IGNORE);
    if (work.verify)
        data_check(memory, work.amount, STREAM, 0);
    acknowledge(client);
    free(requests);
}

static double bandwidth_run(const struct mpi_world *world, const struct work *work)
{
    const uint8_t *data = data_source(STREAM, memory_size(work));
    uint64_t messages = message_count(work);
    uint8_t ack[ACK_SIZE];
    MPI_Request *requests = requests_allocate(messages + 1);
    (void)world;
    ask_and_await(0, work);
    MPI_Irecv(ack, ACK_SIZE, MPI_BYTE, 0, TAG_ACK, MPI_COMM_WORLD, &requests[messages]);
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < messages; i++)
        MPI_Isend(data + memory_place(work, i), (int)message_size(work, i), MPI_BYTE, 0, TAG_DATA,
                  MPI_COMM_WORLD, &requests[i]);
    MPI_Waitall((int)messages + 1, requests, MPI_STATUSES_IGNORE);
    double seconds = seconds_since(start);
    free(requests);
    return seconds;
}

const struct mpi_pattern mpi_bandwidth = {.name = "bandwidth",
                                          .serve = bandwidth_serve,
                                          .run = bandwidth_run};
