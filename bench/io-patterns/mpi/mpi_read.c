/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi_read.c - the N x M parallel read with MPI.
 */
#include "mpi_side.h"

#include <stdlib.h>

struct reader {
    struct work work;
    const uint8_t *data;
    uint64_t messages, next, ended;
    uint8_t ack[ACK_SIZE];
};

static uint64_t client_shift(const struct work *work)
{
    return (uint64_t)work->client * DATA_SHIFT;
}

static void message_send_next(struct reader *reader, int client, MPI_Request *request)
{
    const struct work *work = &reader->work;
    uint64_t message = reader->next++;
    MPI_Isend(reader->data + data_place(work, message * work->size),
              (int)message_size(work, message), MPI_BYTE, client, TAG_DATA, MPI_COMM_WORLD,
              request);
}

/* Begins to answer; a reader's places are the acknowledgement's, then the window's. */
static void reader_start(struct reader *reader, const struct work *work, int client,
                         MPI_Request *requests)
{
    uint64_t shifts = ((uint64_t)work->client / 64 + 1) * 64 * DATA_SHIFT;
    *reader = (struct reader){.work = *work, .messages = message_count(work)};
    reader->data = data_source(work->server, data_area(work) + shifts) + client_shift(work);
    MPI_Isend(reader->ack, ACK_SIZE, MPI_BYTE, client, TAG_ACK, MPI_COMM_WORLD, &requests[0]);
    for (uint32_t i = 1; i <= work->window && reader->next < reader->messages; i++)
        message_send_next(reader, client, &requests[i]);
}

static void read_serve(const struct mpi_world *world)
{
    struct reader *readers = allocate((size_t)world->clients * sizeof *readers);
    struct mpi_set set = {0};
    struct work work;
    int client, asked = 0, ended = 0, places = 0;
    while (ended < world->clients) {
        if (asked < world->clients && request_take(&work, &client)) {
            places = (int)work.window + 1;
            if (!set.requests)
                set_open(&set, places * world->clients);
            client -= world->servers;
            reader_start(&readers[client], &work, client + world->servers,
                         &set.requests[client * places]);
            asked++;
        }
        int found = asked > 0 ? set_test(&set, world) : 0;
        for (int i = 0; i < found; i++) {
            int place = set.indices[i];
            struct reader *reader = &readers[place / places];
            reader->ended++;
            if (place % places != 0 && reader->next < reader->messages)
                message_send_next(reader, place / places + world->servers, &set.requests[place]);
            ended += reader->ended == reader->messages + 1;
        }
    }
    set_close(&set);
    free(readers);
}

struct stream {
    uint64_t messages, next;
    uint8_t request[REQUEST_SIZE], ack[ACK_SIZE];
};

static void message_receive_next(struct stream *stream, const struct layout *layout, int server,
                                 const struct work *work, MPI_Request *request)
{
    void *base;
    uint64_t message = stream->next++;
    MPI_Datatype type =
        layout_type(layout, server, message * work->size, message_size(work, message), &base);
    MPI_Irecv(base, 1, type, server, TAG_DATA, MPI_COMM_WORLD, request);
    MPI_Type_free(&type);
}

/* A stream's places are the request's, the acknowledgement's, then the window's. */
static void stream_start(struct stream *stream, const struct layout *layout, int server,
                         const struct work *work, MPI_Request *requests)
{
    struct work asked = *work;
    asked.server = (uint8_t)server;
    request_encode(stream->request, &asked);
    MPI_Irecv(stream->ack, ACK_SIZE, MPI_BYTE, server, TAG_ACK, MPI_COMM_WORLD, &requests[1]);
    for (uint32_t i = 0; i < work->window && stream->next < stream->messages; i++)
        message_receive_next(stream, layout, server, work, &requests[2 + i]);
    MPI_Isend(stream->request, REQUEST_SIZE, MPI_BYTE, server, TAG_REQUEST, MPI_COMM_WORLD,
              &requests[0]);
}

static double read_run(const struct mpi_world *world, const struct work *work)
{
    struct layout layout;
    struct mpi_set set;
    int places = (int)work->window + 2;
    uint64_t left = (uint64_t)world->servers * (message_count(work) + 2);
    struct stream *streams = allocate((size_t)world->servers * sizeof *streams);
    layout_prepare(&layout, work, world->servers);
    if (work->verify)
        layout_clear(&layout);
    set_open(&set, places * world->servers);
    uint64_t start = now_ns();
    for (int i = 0; i < world->servers; i++) {
        streams[i].messages = message_count(work);
        stream_start(&streams[i], &layout, i, work, &set.requests[i * places]);
    }
    while (left > 0) {
        int found = set_test(&set, world);
        left -= (uint64_t)found;
        for (int i = 0; i < found; i++) {
            int server = set.indices[i] / places;
            if (set.indices[i] % places >= 2 && streams[server].next < streams[server].messages)
                message_receive_next(&streams[server], &layout, server, work,
                                     &set.requests[set.indices[i]]);
        }
    }
    double seconds = seconds_since(start);
    for (int i = 0; work->verify && i < world->servers; i++)
        layout_check(&layout, i, (uint32_t)i, client_shift(work), work->amount);
    set_close(&set);
    free(streams);
    return seconds;
}

const struct mpi_pattern mpi_read = {.name = "read", .serve = read_serve, .run = read_run};
