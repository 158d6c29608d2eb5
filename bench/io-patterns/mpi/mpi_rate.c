/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi_rate.c - small messages one way with MPI, a window of them outstanding on either side.
 */
#include "mpi_side.h"

#include <stdlib.h>

#define STREAM 0x30000u

struct ring {
    const struct work *work;
    int peer;
    bool sends;
    uint8_t *memory;
    uint64_t *messages; /* the message that each place holds */
    uint64_t next, ended;
    struct mpi_set set;
};

static void ring_post(struct ring *ring, int place)
{
    const struct work *work = ring->work;
    uint8_t *buffer = ring->memory + (size_t)place * work->size;
    uint64_t message = ring->next++;
    ring->messages[place] = message;
    if (!ring->sends) {
        MPI_Irecv(buffer, (int)work->size, MPI_BYTE, ring->peer, TAG_DATA, MPI_COMM_WORLD,
                  &ring->set.requests[place]);
        return;
    }
    if (work->verify)
        data_fill(buffer, work->size, STREAM, message * work->size);
    MPI_Isend(buffer, (int)work->size, MPI_BYTE, ring->peer, TAG_DATA, MPI_COMM_WORLD,
              &ring->set.requests[place]);
}

static void ring_open(struct ring *ring, const struct work *work, int peer, bool sends)
{
    *ring = (struct ring){.work = work, .peer = peer, .sends = sends};
    ring->memory = allocate_pages((size_t)work->window * work->size);
    ring->messages = allocate(work->window * sizeof *ring->messages);
    set_open(&ring->set, (int)work->window);
}

static void ring_start(struct ring *ring)
{
    for (uint32_t i = 0; i < ring->work->window && ring->next < ring->work->amount; i++)
        ring_post(ring, (int)i);
}

static void ring_run(struct ring *ring, const struct mpi_world *world)
{
    const struct work *work = ring->work;
    while (ring->ended < work->amount) {
        int found = set_test(&ring->set, world);
        ring->ended += (uint64_t)found;
        for (int i = 0; i < found; i++) {
            int place = ring->set.indices[i];
            if (work->verify && !ring->sends)
                data_check(ring->memory + (size_t)place * work->size, work->size, STREAM,
                           ring->messages[place] * work->size);
            if (ring->next < work->amount)
                ring_post(ring, place);
        }
    }
}

static void ring_close(struct ring *ring)
{
    set_close(&ring->set);
    free(ring->memory);
    free(ring->messages);
}

static void rate_serve(const struct mpi_world *world)
{
    struct work work;
    struct ring ring;
    int client;
    request_await(&work, &client);
    ring_open(&ring, &work, client, false);
    ring_start(&ring);
    acknowledge(client);
    ring_run(&ring, world);
    acknowledge(client);
    ring_close(&ring);
}

static double rate_run(const struct mpi_world *world, const struct work *work)
{
    struct ring ring;
    uint8_t ack[ACK_SIZE];
    ring_open(&ring, work, 0, true);
    ask_and_await(0, work);
    uint64_t start = now_ns();
    ring_start(&ring);
    ring_run(&ring, world);
    MPI_Recv(ack, ACK_SIZE, MPI_BYTE, 0, TAG_ACK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    double seconds = seconds_since(start);
    ring_close(&ring);
    return seconds;
}

const struct mpi_pattern mpi_rate = {.name = "rate", .serve = rate_serve, .run = rate_run};
