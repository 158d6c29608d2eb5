/* SPDX-License-Identifier: BSD-3-Clause
 *
 * streams.c - see streams.h. A completion posts the stream's next message. One thread; no locks.
 */
#include "streams.h"

#include <stdlib.h>

struct stream {
    struct bmi_client *client;
    const struct work *work;
    const struct layout *layout;
    bool writes;
    int server;
    uint64_t messages, next;
    uint64_t *ended; /* of all streams: messages, requests, acknowledgements */
    uint8_t request[REQUEST_SIZE], ack[ACK_SIZE], end[ACK_SIZE];
    struct bmi_counted request_op, end_op;
    struct bmi_op ack_op;
    struct stream_op {
        struct bmi_op op;
        struct stream *stream;
        struct bmi_pieces pieces;
    } * ops;
};

static void stream_post_next(struct stream *stream, struct stream_op *op)
{
    const struct work *work = stream->work;
    struct bmi_side *side = &stream->client->side;
    BMI_addr_t server = stream->client->servers[stream->server];
    uint64_t message = stream->next++;
    uint32_t size = message_size(work, message);
    pieces_set(&op->pieces, stream->layout, stream->server, message * work->size, size);
    if (stream->writes)
        side_send_list(side, &op->op, server, &op->pieces, size, tag_data(work));
    else
        side_recv_list(side, &op->op, server, &op->pieces, size, tag_data(work));
}

static void stream_op_complete(struct bmi_op *op)
{
    struct stream_op *stream_op = (struct stream_op *)op;
    struct stream *stream = stream_op->stream;
    ++*stream->ended;
    if (stream->next < stream->messages)
        stream_post_next(stream, stream_op);
}

static void stream_post_window(struct stream *stream)
{
    for (uint32_t i = 0; i < stream->work->window && stream->next < stream->messages; i++)
        stream_post_next(stream, &stream->ops[i]);
}

/* Whether this side posts before the server does. */
static bool stream_is_first(const struct stream *stream)
{
    return stream->work->first == (stream->writes ? FIRST_SENDER : FIRST_RECEIVER);
}

/* The server is ready. */
static void stream_ack_complete(struct bmi_op *op)
{
    struct stream *stream = (void *)((char *)op - offsetof(struct stream, ack_op));
    ++*stream->ended;
    if (!stream_is_first(stream))
        stream_post_window(stream);
}

static void stream_prepare(struct stream *stream)
{
    uint32_t window = stream->work->window;
    struct bmi_counted counted = {.op.complete = counted_complete, .counter = stream->ended};
    stream->messages = message_count(stream->work);
    stream->ops = allocate(window * sizeof *stream->ops);
    for (uint32_t i = 0; i < window; i++) {
        stream->ops[i].op.complete = stream_op_complete;
        stream->ops[i].stream = stream;
        pieces_open(&stream->ops[i].pieces, stream->layout, stream->work->size);
    }
    stream->request_op = counted;
    stream->end_op = counted;
    stream->ack_op.complete = stream_ack_complete;
}

static void stream_start(struct stream *stream)
{
    struct bmi_side *side = &stream->client->side;
    BMI_addr_t server = stream->client->servers[stream->server];
    struct work asked = *stream->work;
    asked.server = (uint8_t)stream->server;
    side_recv(side, &stream->ack_op, server, stream->ack, ACK_SIZE, BMI_EXT_ALLOC, tag_ack(&asked));
    if (stream->writes)
        side_recv(side, &stream->end_op.op, server, stream->end, ACK_SIZE, BMI_EXT_ALLOC,
                  tag_ack(&asked));
    if (stream_is_first(stream))
        stream_post_window(stream);
    side_request(side, &stream->request_op.op, server, &asked, stream->request);
}

static void stream_end(struct stream *stream)
{
    for (uint32_t i = 0; i < stream->work->window; i++)
        pieces_close(&stream->ops[i].pieces);
    free(stream->ops);
}

double streams_run(struct bmi_client *client, const struct work *work, const struct layout *layout,
                   bool writes)
{
    uint64_t ended = 0;
    int count = client->server_count;
    struct stream *streams = allocate((size_t)count * sizeof *streams);
    for (int i = 0; i < count; i++) {
        streams[i] = (struct stream){.client = client,
                                     .work = work,
                                     .layout = layout,
                                     .writes = writes,
                                     .server = i,
                                     .ended = &ended};
        stream_prepare(&streams[i]);
    }
    uint64_t start = now_ns();
    for (int i = 0; i < count; i++)
        stream_start(&streams[i]);
    side_await(&client->side, &ended, (uint64_t)count * (message_count(work) + (writes ? 3 : 2)));
    double seconds = seconds_since(start);
    for (int i = 0; i < count; i++)
        stream_end(&streams[i]);
    free(streams);
    return seconds;
}
