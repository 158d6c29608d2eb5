/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rate.c - one way, `amount` small messages, `window` of them outstanding on either side.
 *
 * Each message has a buffer of its own; a completion posts the next message with it. The plain
 * reference does one write per message. The time ends with the server's second acknowledgement.
 */
#include "bmi_side.h"
#include "raw_side.h"

#include <stdlib.h>

#define STREAM 0x30000u
#define RAW_READ (256u << 10)

/* ---- BMI ----------------------------------------------------------------------------------- */

/* One side's ring of operations. */
struct ring {
    struct bmi_side *side;
    BMI_addr_t peer;
    struct work work;
    bool sends;
    uint64_t next, ended;
    struct bmi_acks acks; /* the server's */
    uint8_t *memory;
    struct ring_op {
        struct bmi_op op;
        struct ring *ring;
        uint8_t *buffer;
        uint64_t message;
    } ops[];
};

static void ring_post(struct ring *ring, struct ring_op *op)
{
    const struct work *work = &ring->work;
    op->message = ring->next++;
    if (!ring->sends) {
        side_recv(ring->side, &op->op, ring->peer, op->buffer, work->size, BMI_EXT_ALLOC,
                  tag_data(work));
        return;
    }
    if (work->verify)
        data_fill(op->buffer, work->size, STREAM, op->message * work->size);
    side_send(ring->side, &op->op, ring->peer, op->buffer, work->size, BMI_EXT_ALLOC,
              tag_data(work));
}

static void ring_op_complete(struct bmi_op *op)
{
    struct ring_op *ring_op = (struct ring_op *)op;
    struct ring *ring = ring_op->ring;
    const struct work *work = &ring->work;
    if (work->verify && !ring->sends)
        data_check(ring_op->buffer, work->size, STREAM, ring_op->message * work->size);
    ring->ended++;
    if (ring->next < work->amount)
        ring_post(ring, ring_op);
    else if (ring->ended == work->amount && !ring->sends)
        acks_send(&ring->acks);
}

static struct ring *ring_open(struct bmi_side *side, BMI_addr_t peer, const struct work *work)
{
    struct ring *ring = allocate(sizeof *ring + work->window * sizeof(struct ring_op));
    *ring = (struct ring){.side = side, .peer = peer, .work = *work};
    ring->memory = allocate_pages((size_t)work->window * work->size);
    for (uint32_t i = 0; i < work->window; i++)
        ring->ops[i] = (struct ring_op){{.complete = ring_op_complete},
                                        ring,
                                        ring->memory + (size_t)i * work->size,
                                        0};
    return ring;
}

static void ring_start(struct ring *ring)
{
    for (uint32_t i = 0; i < ring->work.window && ring->next < ring->work.amount; i++)
        ring_post(ring, &ring->ops[i]);
}

static void ring_close(struct ring *ring)
{
    free(ring->memory);
    free(ring);
}

static void acks_gone(struct bmi_acks *acks)
{
    ring_close((void *)((char *)acks - offsetof(struct ring, acks)));
}

static void rate_serve_bmi(struct bmi_side *side, const struct work *work, bmi_peer client)
{
    struct ring *ring = ring_open(side, client, work);
    acks_open(&ring->acks, side, client, work, acks_gone);
    ring_start(ring);
    acks_send(&ring->acks);
}

static double rate_run_bmi(struct bmi_client *client, const struct work *work)
{
    struct ring *ring = ring_open(&client->side, client->servers[0], work);
    uint8_t ack[ACK_SIZE];
    uint64_t acknowledged = 0;
    struct bmi_counted op = {.op.complete = counted_complete, .counter = &acknowledged};
    ring->sends = true;
    client_ask(client, 0, work);
    side_recv(&client->side, &op.op, client->servers[0], ack, ACK_SIZE, BMI_EXT_ALLOC,
              tag_ack(work));
    uint64_t start = now_ns();
    ring_start(ring);
    side_await(&client->side, &ring->ended, work->amount);
    side_await(&client->side, &acknowledged, 1);
    double seconds = seconds_since(start);
    ring_close(ring);
    return seconds;
}

/* ---- plain sockets ------------------------------------------------------------------------- */

static void rate_serve_raw(struct raw_link *link, const struct work *work)
{
    uint8_t ack[ACK_SIZE] = {0};
    uint8_t *memory = allocate_pages(RAW_READ);
    uint64_t total = work->amount * work->size;
    link_blocking_set(link, true);
    link_send(link, ack, sizeof ack);
    for (uint64_t got = 0; got < total;) {
        uint64_t left = total - got;
        struct iovec piece = {memory, left < RAW_READ ? left : RAW_READ};
        size_t more = link_recv_some(link, &piece, 1);
        if (work->verify)
            data_check(memory, more, STREAM, got);
        got += more;
    }
    link_send(link, ack, sizeof ack);
    link_blocking_set(link, false);
    free(memory);
}

static double rate_run_raw(struct raw_client *client, const struct work *work)
{
    struct raw_link *link = &client->links[0];
    uint8_t ack[ACK_SIZE];
    uint8_t *memory = allocate_pages((size_t)work->window * work->size);
    link_blocking_set(link, true);
    link_ask_and_await(link, 0, work);
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < work->amount; i++) {
        uint8_t *buffer = memory + i % work->window * work->size;
        if (work->verify)
            data_fill(buffer, work->size, STREAM, i * work->size);
        link_send(link, buffer, work->size);
    }
    link_recv(link, ack, sizeof ack);
    double seconds = seconds_since(start);
    link_blocking_set(link, false);
    free(memory);
    return seconds;
}

const struct pattern pattern_rate = {
    .name = "rate",
    .summary = "small messages a second, many outstanding",
    .unit = "msg/s",
    .size_name = "message",
    .sizes = "24,256,1024",
    .amount = "100000",
    .one_pair = true,
    .window = 1000,
    .takes = TAKES_PARTICIPANTS | TAKES_SIZE | TAKES_MESSAGES | TAKES_WINDOW | TAKES_VERIFY,
    .on_request = BIT(CONTENDER_BMI_URING),
    .contenders = BIT(CONTENDER_BMI) | BIT(CONTENDER_BMI_URING) | BIT(CONTENDER_RAW) |
                  BIT(CONTENDER_TLS) | BIT(CONTENDER_MPI),
    .value = value_rate,
    .serve_bmi = rate_serve_bmi,
    .serve_raw = rate_serve_raw,
    .run_bmi = rate_run_bmi,
    .run_raw = rate_run_raw,
};
