/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi_overlap.c - does a message move while the program computes? With MPI: see overlap.c.
 */
#include "mpi_side.h"

#include <stdlib.h>
#include <string.h>

#define STREAM 0x40000u

static void token_send(int peer)
{
    uint8_t token = 0;
    MPI_Send(&token, 1, MPI_BYTE, peer, TAG_ACK, MPI_COMM_WORLD);
}

static void token_recv(int peer)
{
    uint8_t token;
    MPI_Recv(&token, 1, MPI_BYTE, peer, TAG_ACK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void overlap_serve(const struct mpi_world *world)
{
    struct work work;
    uint8_t ack[ACK_SIZE] = {0};
    int client;
    thread_cpu_take(world->rank);
    request_await(&work, &client);
    uint8_t *buffer = allocate_pages(work.size);
    uint64_t *rounds_ns = allocate(work.amount * sizeof *rounds_ns);
    acknowledge(client);
    for (uint64_t round = 0; round < work.amount; round++) {
        MPI_Request request;
        token_recv(client);
        token_send(client);
        uint64_t start = now_ns();
        MPI_Irecv(buffer, (int)work.size, MPI_BYTE, client, TAG_DATA, MPI_COMM_WORLD, &request);
        if (work.on & ON_RECEIVER)
            compute(work.compute_us);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        rounds_ns[round] = now_ns() - start;
        if (work.verify)
            data_check(buffer, work.size, STREAM, round * work.size);
    }
    uint64_t median_ns = rounds_median(rounds_ns, work.amount);
    memcpy(ack, &median_ns, sizeof median_ns);
    MPI_Send(ack, ACK_SIZE, MPI_BYTE, client, TAG_ACK, MPI_COMM_WORLD);
    free(buffer);
    free(rounds_ns);
}

static double overlap_run(const struct mpi_world *world, const struct work *work)
{
    uint8_t ack[ACK_SIZE], *buffer = allocate_pages(work->size);
    uint64_t *rounds_ns = allocate(work->amount * sizeof *rounds_ns);
    uint64_t server_ns;
    thread_cpu_take(world->rank);
    ask_and_await(0, work);
    for (uint64_t round = 0; round < work->amount; round++) {
        MPI_Request request;
        if (work->verify)
            data_fill(buffer, work->size, STREAM, round * work->size);
        token_send(0);
        token_recv(0);
        uint64_t start = now_ns();
        MPI_Isend(buffer, (int)work->size, MPI_BYTE, 0, TAG_DATA, MPI_COMM_WORLD, &request);
        if (work->on & ON_SENDER)
            compute(work->compute_us);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        rounds_ns[round] = now_ns() - start;
    }
    MPI_Recv(ack, ACK_SIZE, MPI_BYTE, 0, TAG_ACK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    memcpy(&server_ns, ack, sizeof server_ns);
    uint64_t median_ns = rounds_median(rounds_ns, work->amount);
    free(buffer);
    free(rounds_ns);
    return overlap_seconds(work, median_ns, server_ns);
}

const struct mpi_pattern mpi_overlap = {.name = "overlap",
                                        .serve = overlap_serve,
                                        .run = overlap_run};
