/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bandwidth.c - one way, `amount` bytes in messages of `size`, all posted at the start.
 *
 * The server posts all receives and acknowledges; the client then posts all sends. The time ends
 * with the server's second acknowledgement: all has come. Each message has memory of its own, or,
 * with --memory, they take turns in less.
 */
#include "bmi_side.h"
#include "raw_side.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define STREAM 0x20000u
/* A plain receiver takes as much as there is, whatever the messages. */
#define RAW_READ (1u << 20)

/* ---- BMI ----------------------------------------------------------------------------------- */

struct flood {
    struct work work;
    uint64_t messages, received;
    uint8_t *memory;
    struct bmi_acks acks;
    struct flood_op {
        struct bmi_op op;
        struct flood *flood;
    } ops[];
};

/* The last receive has completed: check, and tell the client. */
static void flood_receive_complete(struct bmi_op *op)
{
    struct flood *flood = ((struct flood_op *)op)->flood;
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
    uint64_t messages = message_count(work);
    struct flood *flood = allocate(sizeof *flood + messages * sizeof(struct flood_op));
    *flood = (struct flood){.work = *work,
                            .messages = messages,
                            .memory = data_arena(memory_size(work))};
    if (work->verify)
        memset(flood->memory, 0, work->amount);
    for (uint64_t i = 0; i < messages; i++) {
        flood->ops[i] = (struct flood_op){{.complete = flood_receive_complete}, flood};
        side_recv(side, &flood->ops[i].op, client, flood->memory + memory_place(work, i),
                  message_size(work, i), BMI_EXT_ALLOC, tag_data(work));
    }
    acks_open(&flood->acks, side, client, work, flood_close);
    acks_send(&flood->acks);
}

static double bandwidth_run_bmi(struct bmi_client *client, const struct work *work)
{
    const uint8_t *data = data_source(STREAM, memory_size(work));
    uint64_t messages = message_count(work), ended = 0;
    uint8_t ack[ACK_SIZE];
    struct bmi_counted *ops = allocate((messages + 1) * sizeof *ops);
    for (uint64_t i = 0; i <= messages; i++)
        ops[i] = (struct bmi_counted){.op.complete = counted_complete, .counter = &ended};
    client_ask(client, 0, work);
    side_recv(&client->side, &ops[messages].op, client->servers[0], ack, ACK_SIZE, BMI_EXT_ALLOC,
              tag_ack(work));
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < messages; i++)
        side_send(&client->side, &ops[i].op, client->servers[0], data + memory_place(work, i),
                  message_size(work, i), BMI_EXT_ALLOC, tag_data(work));
    side_await(&client->side, &ended, messages + 1);
    double seconds = seconds_since(start);
    free(ops);
    return seconds;
}

/* ---- plain sockets ------------------------------------------------------------------------- */

static void bandwidth_serve_raw(struct raw_link *link, const struct work *work)
{
    uint64_t area = memory_size(work);
    uint8_t *memory = data_arena(area);
    uint8_t ack[ACK_SIZE] = {0};
    if (work->verify)
        memset(memory, 0, work->amount);
    link_blocking_set(link, true);
    socket_send(link->socket, ack, sizeof ack);
    for (uint64_t got = 0; got < work->amount;) {
        uint64_t left = work->amount - got, to_end = area - got % area;
        left = left < to_end ? left : to_end;
        ssize_t more =
            recv(link->socket, memory + got % area, left < RAW_READ ? left : RAW_READ, 0);
        if (more <= 0)
            die("recv: the peer has gone");
        got += (uint64_t)more;
    }
    if (work->verify)
        data_check(memory, work->amount, STREAM, 0);
    socket_send(link->socket, ack, sizeof ack);
    link_blocking_set(link, false);
}

static double bandwidth_run_raw(struct raw_client *client, const struct work *work)
{
    const uint8_t *data = data_source(STREAM, memory_size(work));
    uint64_t messages = message_count(work);
    struct raw_link *link = &client->links[0];
    uint8_t ack[ACK_SIZE];
    link_blocking_set(link, true);
    link_ask_and_await(link, 0, work);
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < messages; i++)
        socket_send(link->socket, data + memory_place(work, i), message_size(work, i));
    socket_recv(link->socket, ack, sizeof ack);
    double seconds = seconds_since(start);
    link_blocking_set(link, false);
    return seconds;
}

const struct pattern pattern_bandwidth = {
    .name = "bandwidth",
    .summary = "one way, all messages posted at the start",
    .unit = "MB/s",
    .size_name = "message",
    .sizes = "1K,4K,16K,64K,256K,1M,4M",
    .amount = "120MB",
    .amount_is_bytes = true,
    .one_pair = true,
    .takes = TAKES_PARTIES | TAKES_SIZE | TAKES_BYTES | TAKES_VERIFY | TAKES_MEMORY,
    .on_request = BIT(CONTENDER_BMI_PLAIN),
    .contenders = BIT(CONTENDER_BMI) | BIT(CONTENDER_BMI_PLAIN) | BIT(CONTENDER_RAW) |
                  BIT(CONTENDER_MPI) | BIT(CONTENDER_FI) | BIT(CONTENDER_MEMCPY),
    .value = value_bandwidth,
    .serve_bmi = bandwidth_serve_bmi,
    .serve_raw = bandwidth_serve_raw,
    .run_bmi = bandwidth_run_bmi,
    .run_raw = bandwidth_run_raw,
};
