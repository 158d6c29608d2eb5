/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bandwidth.c - one way, `amount` bytes in messages of `size`, `window` of them posted at the
 * start: all of them, unless --post sets fewer.
 *
 * The server posts its first receives and acknowledges (--first together: in the reverse order);
 * the client then posts its first sends. With --first sender those precede the request. The time
 * begins with the first send and ends with the server's second acknowledgement: all data has
 * arrived. Each message has memory of its own, or, with --memory, messages share less memory in
 * turn.
 */
#include "bmi_side.h"
#include "raw_side.h"

#include <stdlib.h>
#include <string.h>

#define STREAM 0x20000u
/* A plain receiver takes all data that is there, whatever the message size. */
#define RAW_READ (1u << 20)

/* ---- BMI ----------------------------------------------------------------------------------- */

struct flood {
    struct work work;
    struct bmi_side *side;
    BMI_addr_t client;
    uint64_t messages, next, received;
    uint8_t *memory;
    struct bmi_acks acks;
    struct flood_op {
        struct bmi_op op;
        struct flood *flood;
    } ops[];
};

static void flood_receive_next(struct flood *flood, struct flood_op *op)
{
    const struct work *work = &flood->work;
    uint64_t message = flood->next++;
    side_recv(flood->side, &op->op, flood->client, flood->memory + memory_place(work, message),
              message_size(work, message), BMI_EXT_ALLOC, tag_data(work));
}

/* The last receive has completed: check, and notify the client. */
static void flood_receive_complete(struct bmi_op *op)
{
    struct flood *flood = ((struct flood_op *)op)->flood;
    if (flood->next < flood->messages)
        flood_receive_next(flood, (struct flood_op *)op);
    if (++flood->received < flood->messages)
        return;
    if (flood->work.verify)
        data_check(flood->memory, flood->work.amount, STREAM, 0);
    acks_send(&flood->acks);
}

static void flood_close(struct bmi_acks *acks)
{
    free((char *)acks - offsetof(struct flood, acks));
}

static void bandwidth_serve_bmi(struct bmi_side *side, const struct work *work, bmi_peer client)
{
    struct flood *flood = allocate(sizeof *flood + work->window * sizeof(struct flood_op));
    *flood = (struct flood){.work = *work,
                            .side = side,
                            .client = client,
                            .messages = message_count(work),
                            .memory = data_arena(memory_size(work))};
    if (work->verify)
        memset(flood->memory, 0, work->amount);
    acks_open(&flood->acks, side, client, work, flood_close);
    if (work->first == FIRST_TOGETHER)
        acks_send(&flood->acks);
    for (uint64_t i = 0; i < work->window && flood->next < flood->messages; i++) {
        flood->ops[i] = (struct flood_op){{.complete = flood_receive_complete}, flood};
        flood_receive_next(flood, &flood->ops[i]);
    }
    if (work->first != FIRST_TOGETHER)
        acks_send(&flood->acks);
}

struct source {
    const struct work *work;
    struct bmi_client *client;
    const uint8_t *data;
    uint64_t messages, next, ended; /* `ended`: the last acknowledgement, too */
    struct source_op {
        struct bmi_op op;
        struct source *source;
    } ops[];
};

static void source_send_next(struct source *source, struct source_op *op)
{
    const struct work *work = source->work;
    uint64_t message = source->next++;
    side_send(&source->client->side, &op->op, source->client->servers[0],
              source->data + memory_place(work, message), message_size(work, message),
              BMI_EXT_ALLOC, tag_data(work));
}

static void source_op_complete(struct bmi_op *op)
{
    struct source *source = ((struct source_op *)op)->source;
    source->ended++;
    if (source->next < source->messages)
        source_send_next(source, (struct source_op *)op);
}

static void source_start(struct source *source)
{
    for (uint32_t i = 0; i < source->work->window && source->next < source->messages; i++) {
        source->ops[i] = (struct source_op){{.complete = source_op_complete}, source};
        source_send_next(source, &source->ops[i]);
    }
}

static double bandwidth_run_bmi(struct bmi_client *client, const struct work *work)
{
    struct source *source = allocate(sizeof *source + work->window * sizeof(struct source_op));
    *source = (struct source){.work = work,
                              .client = client,
                              .data = data_source(STREAM, memory_size(work)),
                              .messages = message_count(work)};
    struct bmi_counted end = {.op.complete = counted_complete, .counter = &source->ended};
    uint8_t ack[ACK_SIZE];
    uint64_t start = now_ns();
    if (work->first == FIRST_SENDER)
        source_start(source);
    client_ask(client, 0, work);
    side_recv(&client->side, &end.op, client->servers[0], ack, ACK_SIZE, BMI_EXT_ALLOC,
              tag_ack(work));
    if (work->first != FIRST_SENDER) {
        start = now_ns();
        source_start(source);
    }
    side_await(&client->side, &source->ended, source->messages + 1);
    double seconds = seconds_since(start);
    free(source);
    return seconds;
}

/* ---- plain sockets ------------------------------------------------------------------------- */

static void bandwidth_serve_raw(struct raw_link *link, const struct work *work)
{
    uint64_t area = memory_size(work), posted = (uint64_t)work->window * work->size;
    uint64_t most = posted < RAW_READ ? posted : RAW_READ;
    uint8_t *memory = data_arena(area);
    uint8_t ack[ACK_SIZE] = {0};
    if (work->verify)
        memset(memory, 0, work->amount);
    link_blocking_set(link, !work->spin);
    link_send(link, ack, sizeof ack);
    for (uint64_t got = 0; got < work->amount;) {
        uint64_t left = work->amount - got, to_end = area - got % area;
        left = left < to_end ? left : to_end;
        struct iovec piece = {memory + got % area, left < most ? left : most};
        got += link_recv_some(link, &piece, 1);
    }
    if (work->verify)
        data_check(memory, work->amount, STREAM, 0);
    link_send(link, ack, sizeof ack);
    link_blocking_set(link, false);
}

static double bandwidth_run_raw(struct raw_client *client, const struct work *work)
{
    const uint8_t *data = data_source(STREAM, memory_size(work));
    uint64_t messages = message_count(work);
    struct raw_link *link = &client->links[0];
    uint8_t ack[ACK_SIZE];
    link_blocking_set(link, !work->spin);
    uint64_t start = now_ns();
    link_ask(link, 0, work);
    if (work->first != FIRST_SENDER) {
        link_recv(link, ack, sizeof ack);
        start = now_ns();
    }
    for (uint64_t i = 0; i < messages; i++)
        link_send(link, data + memory_place(work, i), message_size(work, i));
    if (work->first == FIRST_SENDER)
        link_recv(link, ack, sizeof ack);
    link_recv(link, ack, sizeof ack);
    double seconds = seconds_since(start);
    link_blocking_set(link, false);
    return seconds;
}

const struct pattern pattern_bandwidth = {
    .name = "bandwidth",
    .summary = "one way, messages posted at the start",
    .unit = "MB/s",
    .size_name = "message",
    .sizes = "1K,4K,16K,64K,256K,1M,4M",
    .amount = "120MB",
    .amount_is_bytes = true,
    .one_pair = true,
    .post = POST_ALL,
    .window = 8,
    .takes = TAKES_PARTICIPANTS | TAKES_SIZE | TAKES_BYTES | TAKES_VERIFY | TAKES_MEMORY |
             TAKES_WINDOW | TAKES_POST,
    .on_request = BIT(CONTENDER_BMI_PLAIN) | BIT(CONTENDER_BMI_URING),
    .contenders = BIT(CONTENDER_BMI) | BIT(CONTENDER_BMI_PLAIN) | BIT(CONTENDER_BMI_URING) |
                  BIT(CONTENDER_RAW) | BIT(CONTENDER_TLS) | BIT(CONTENDER_MPI) | BIT(CONTENDER_FI) |
                  BIT(CONTENDER_MEMCPY),
    .value = value_bandwidth,
    .serve_bmi = bandwidth_serve_bmi,
    .serve_raw = bandwidth_serve_raw,
    .run_bmi = bandwidth_run_bmi,
    .run_raw = bandwidth_run_raw,
};
