/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi_latency.c - ping-pong with MPI; a side posts its receive when it has sent.
 */
#include "mpi_side.h"

#include <stdlib.h>

struct pingpong {
    const struct work *work;
    int peer;
    uint8_t *in, *out;
    MPI_Request receive;
};

static void pingpong_open(struct pingpong *pingpong, const struct work *work, int peer)
{
    *pingpong = (struct pingpong){.work = work,
                                  .peer = peer,
                                  .in = allocate(work->size),
                                  .out = allocate(work->size)};
}

static void pingpong_close(struct pingpong *pingpong)
{
    free(pingpong->in);
    free(pingpong->out);
}

static void receive_post(struct pingpong *pingpong)
{
    MPI_Irecv(pingpong->in, (int)pingpong->work->size, MPI_BYTE, pingpong->peer, TAG_DATA,
              MPI_COMM_WORLD, &pingpong->receive);
}

static void ball_send(struct pingpong *pingpong, uint64_t round, uint32_t stream)
{
    const struct work *work = pingpong->work;
    if (work->verify)
        data_fill(pingpong->out, work->size, stream, round * work->size);
    MPI_Send(pingpong->out, (int)work->size, MPI_BYTE, pingpong->peer, TAG_DATA, MPI_COMM_WORLD);
}

static void ball_await(struct pingpong *pingpong, uint64_t round, uint32_t stream)
{
    const struct work *work = pingpong->work;
    MPI_Wait(&pingpong->receive, MPI_STATUS_IGNORE);
    if (work->verify)
        data_check(pingpong->in, work->size, stream, round * work->size);
}

static void latency_serve(const struct mpi_world *world)
{
    struct pingpong pingpong;
    struct work work;
    int client;
    (void)world;
    request_await(&work, &client);
    pingpong_open(&pingpong, &work, client);
    receive_post(&pingpong);
    acknowledge(client);
    for (uint64_t round = 0; round < work.amount + WARM_UP_ROUNDS; round++) {
        ball_await(&pingpong, round, 1);
        ball_send(&pingpong, round, 2);
        if (round + 1 < work.amount + WARM_UP_ROUNDS)
            receive_post(&pingpong);
    }
    pingpong_close(&pingpong);
}

static double latency_run(const struct mpi_world *world, const struct work *work)
{
    struct pingpong pingpong;
    (void)world;
    pingpong_open(&pingpong, work, 0);
    ask_and_await(0, work);
    uint64_t start = 0;
    for (uint64_t round = 0; round < work->amount + WARM_UP_ROUNDS; round++) {
        if (round == WARM_UP_ROUNDS)
            start = now_ns();
        ball_send(&pingpong, round, 1);
        receive_post(&pingpong);
        ball_await(&pingpong, round, 2);
    }
    double seconds = seconds_since(start);
    pingpong_close(&pingpong);
    return seconds;
}

const struct mpi_pattern mpi_latency = {.name = "latency",
                                        .serve = latency_serve,
                                        .run = latency_run};
