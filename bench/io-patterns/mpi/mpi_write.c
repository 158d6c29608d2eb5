/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi_write.c - the N x M parallel write with MPI.
 */
#include "mpi_side.h"

#include <stdlib.h>
#include <string.h>

static uint32_t client_stream(const struct work *work)
{
    return 0x10000u + work->client;
}

static uint64_t server_shift(int server)
{
    return (uint64_t)server * DATA_SHIFT;
}

struct writer {
    struct work work;
    uint8_t *memory;
    uint64_t messages, next, received;
    uint8_t ack[ACK_SIZE];
    uint64_t *places; /* the message that each place of the window receives */
};

static void message_receive_next(struct writer *writer, int client, int place, MPI_Request *request)
{
    const struct work *work = &writer->work;
    uint64_t message = writer->next++;
    writer->places[place] = message;
    MPI_Irecv(writer->memory + data_place(work, message * work->size),
              (int)message_size(work, message), MPI_BYTE, client, TAG_DATA, MPI_COMM_WORLD,
              request);
}

/* Begins to answer; a writer's places are both acknowledgements', then the window's. */
static void writer_start(struct writer *writer, const struct work *work, int client,
                         uint8_t *memory, MPI_Request *requests)
{
    *writer = (struct writer){.work = *work, .messages = message_count(work), .memory = memory};
    writer->places = allocate(work->window * sizeof *writer->places);
    if (work->verify)
        memset(memory, 0, data_area(work));
    for (uint32_t i = 0; i < work->window && writer->next < writer->messages; i++)
        message_receive_next(writer, client, (int)i, &requests[2 + i]);
    MPI_Isend(writer->ack, ACK_SIZE, MPI_BYTE, client, TAG_ACK, MPI_COMM_WORLD, &requests[0]);
}

/* Continues after a message: check, receive the next, or notify the client of the end. */
static void writer_continue(struct writer *writer, int client, int place, MPI_Request *requests)
{
    const struct work *work = &writer->work;
    uint64_t position = writer->places[place] * work->size;
    if (work->verify)
        data_check(writer->memory + data_place(work, position),
                   message_size(work, writer->places[place]), client_stream(work),
                   position + server_shift(work->server));
    writer->received++;
    if (writer->next < writer->messages)
        message_receive_next(writer, client, place, &requests[2 + place]);
    else if (writer->received == writer->messages)
        MPI_Isend(writer->ack, ACK_SIZE, MPI_BYTE, client, TAG_ACK, MPI_COMM_WORLD, &requests[1]);
}

static void write_serve(const struct mpi_world *world)
{
    struct writer *writers = allocate((size_t)world->clients * sizeof *writers);
    struct mpi_set set = {0};
    struct work work;
    int client, asked = 0, places = 0;
    uint64_t left = 1; /* completions to come; the clients' work is equal, so the first one's
                          counts */
    while (left > 0) {
        if (asked < world->clients && request_take(&work, &client)) {
            places = (int)work.window + 2;
            if (!set.requests) {
                set_open(&set, places * world->clients);
                left = (uint64_t)world->clients * (message_count(&work) + 2);
            }
            uint8_t *memory = data_arena(data_area(&work) * (uint64_t)world->clients);
            client -= world->servers;
            writer_start(&writers[client], &work, client + world->servers,
                         memory + data_area(&work) * (uint64_t)client,
                         &set.requests[client * places]);
            asked++;
        }
        int found = asked > 0 ? set_test(&set, world) : 0;
        left -= (uint64_t)found;
        for (int i = 0; i < found; i++) {
            int who = set.indices[i] / places, place = set.indices[i] % places;
            if (place >= 2)
                writer_continue(&writers[who], who + world->servers, place - 2,
                                &set.requests[who * places]);
        }
    }
    for (int i = 0; i < world->clients; i++)
        free(writers[i].places);
    set_close(&set);
    free(writers);
}

struct stream {
    uint64_t messages, next;
    uint8_t request[REQUEST_SIZE], acks[2][ACK_SIZE];
};

static void message_send_next(struct stream *stream, const struct layout *layout, int server,
                              const struct work *work, MPI_Request *request)
{
    void *base;
    uint64_t message = stream->next++;
    MPI_Datatype type =
        layout_type(layout, server, message * work->size, message_size(work, message), &base);
    MPI_Isend(base, 1, type, server, TAG_DATA, MPI_COMM_WORLD, request);
    MPI_Type_free(&type);
}

/* A stream's places are the request's, both acknowledgements', then the window's. */
static void stream_start(struct stream *stream, int server, const struct work *work,
                         MPI_Request *requests)
{
    struct work asked = *work;
    asked.server = (uint8_t)server;
    request_encode(stream->request, &asked);
    for (int i = 0; i < 2; i++)
        MPI_Irecv(stream->acks[i], ACK_SIZE, MPI_BYTE, server, TAG_ACK, MPI_COMM_WORLD,
                  &requests[1 + i]);
    MPI_Isend(stream->request, REQUEST_SIZE, MPI_BYTE, server, TAG_REQUEST, MPI_COMM_WORLD,
              &requests[0]);
}

static void stream_continue(struct stream *stream, const struct layout *layout, int server,
                            const struct work *work, int place, MPI_Request *requests)
{
    if (place == 1) /* the server is ready */
        for (uint32_t i = 0; i < work->window && stream->next < stream->messages; i++)
            message_send_next(stream, layout, server, work, &requests[3 + i]);
    else if (place >= 3 && stream->next < stream->messages)
        message_send_next(stream, layout, server, work, &requests[place]);
}

static double write_run(const struct mpi_world *world, const struct work *work)
{
    struct layout layout;
    struct mpi_set set;
    int places = (int)work->window + 3;
    uint64_t left = (uint64_t)world->servers * (message_count(work) + 3);
    struct stream *streams = allocate((size_t)world->servers * sizeof *streams);
    layout_prepare(&layout, work, world->servers);
    for (int i = 0; work->verify && i < world->servers; i++)
        layout_fill(&layout, i, client_stream(work), server_shift(i));
    set_open(&set, places * world->servers);
    uint64_t start = now_ns();
    for (int i = 0; i < world->servers; i++) {
        streams[i].messages = message_count(work);
        stream_start(&streams[i], i, work, &set.requests[i * places]);
    }
    while (left > 0) {
        int found = set_test(&set, world);
        left -= (uint64_t)found;
        for (int i = 0; i < found; i++) {
            int server = set.indices[i] / places;
            stream_continue(&streams[server], &layout, server, work, set.indices[i] % places,
                            &set.requests[server * places]);
        }
    }
    double seconds = seconds_since(start);
    set_close(&set);
    free(streams);
    return seconds;
}

const struct mpi_pattern mpi_write = {.name = "write", .serve = write_serve, .run = write_run};
