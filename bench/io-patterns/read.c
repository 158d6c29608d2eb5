/* SPDX-License-Identifier: BSD-3-Clause
 *
 * read.c - the N x M parallel read.
 *
 * Each client asks each server with an unexpected message of 25 bytes, gets an acknowledgement of
 * 400, then `amount` bytes in messages of `size`, which it receives as lists of segments, `window`
 * of them posted for each server. A server sends from one buffer, `window` messages of each client
 * at a time. The first receives are posted ahead of the request (--first receiver), or when the
 * acknowledgement comes, which goes out before the first sends (together) or after them (sender).
 */
#include "bmi_side.h"
#include "layout.h"
#include "raw_side.h"
#include "streams.h"

#include <stdlib.h>
#include <sys/epoll.h>

#define RAW_PIECES 128

/* A server's data for a client begins at this position of the server's stream. */
static uint64_t client_shift(const struct work *work)
{
    return (uint64_t)work->client * DATA_SHIFT;
}

static const uint8_t *server_data(const struct work *work)
{
    /* Rounded up, so that requests of several clients share one buffer. */
    uint64_t shifts = ((uint64_t)work->client / 64 + 1) * 64 * DATA_SHIFT;
    return data_source(work->server, data_area(work) + shifts) + client_shift(work);
}

/* ---- BMI server: one state machine per request --------------------------------------------- */

struct read_machine {
    struct bmi_side *side;
    BMI_addr_t client;
    struct work work;
    const uint8_t *data;
    uint64_t messages, next, ended; /* to send, posted, completed with the acknowledgement's */
    uint8_t ack[ACK_SIZE];
    struct machine_op {
        struct bmi_op op;
        struct read_machine *machine;
    } ops[]; /* the acknowledgement's, then the window's */
};

static void machine_send_next(struct read_machine *machine, struct machine_op *op)
{
    const struct work *work = &machine->work;
    uint64_t message = machine->next++;
    side_send(machine->side, &op->op, machine->client,
              machine->data + data_place(work, message * work->size), message_size(work, message),
              BMI_EXT_ALLOC, tag_data(work));
}

static void machine_op_complete(struct bmi_op *op)
{
    struct read_machine *machine = ((struct machine_op *)op)->machine;
    machine->ended++;
    if (op != &machine->ops[0].op && machine->next < machine->messages)
        machine_send_next(machine, (struct machine_op *)op);
    else if (machine->ended == machine->messages + 1)
        free(machine);
}

static void machine_acknowledge(struct read_machine *machine)
{
    side_send(machine->side, &machine->ops[0].op, machine->client, machine->ack, ACK_SIZE,
              BMI_EXT_ALLOC, tag_ack(&machine->work));
}

static void read_serve_bmi(struct bmi_side *side, const struct work *work, bmi_peer client)
{
    uint32_t ops = work->window + 1;
    struct read_machine *machine = allocate(sizeof *machine + ops * sizeof(struct machine_op));
    *machine = (struct read_machine){.side = side,
                                     .client = client,
                                     .work = *work,
                                     .data = server_data(work),
                                     .messages = message_count(work)};
    for (uint32_t i = 0; i < ops; i++)
        machine->ops[i] = (struct machine_op){{.complete = machine_op_complete}, machine};
    if (work->first != FIRST_SENDER)
        machine_acknowledge(machine);
    for (uint32_t i = 1; i < ops && machine->next < machine->messages; i++)
        machine_send_next(machine, &machine->ops[i]);
    if (work->first == FIRST_SENDER)
        machine_acknowledge(machine);
}

/* ---- BMI client ---------------------------------------------------------------------------- */

static double read_run_bmi(struct bmi_client *client, const struct work *work)
{
    struct layout layout;
    layout_prepare(&layout, work, client->server_count);
    if (work->verify)
        layout_clear(&layout);
    double seconds = streams_run(client, work, &layout, false);
    for (int i = 0; work->verify && i < client->server_count; i++)
        layout_check(&layout, i, (uint32_t)i, client_shift(work), work->amount);
    return seconds;
}

/* ---- plain sockets ------------------------------------------------------------------------- */

struct raw_sender {
    struct work work;
    const uint8_t *data;
    uint8_t ack[ACK_SIZE];
    size_t ack_sent;
    uint64_t position; /* sent so far */
};

/* Continues a server's answer: the rest of the acknowledgement, and one message at a time. */
static void raw_sender_ready(struct raw_link *link)
{
    struct raw_sender *sender = link->state;
    const struct work *work = &sender->work;
    struct iovec pieces[2];
    uint64_t message = sender->position / work->size;
    uint64_t end = message * work->size + message_size(work, message);
    pieces[0] = (struct iovec){sender->ack + sender->ack_sent, ACK_SIZE - sender->ack_sent};
    pieces[1] =
        (struct iovec){(void *)(uintptr_t)(sender->data + data_place(work, sender->position)),
                       end - sender->position};
    int first = sender->ack_sent == ACK_SIZE;
    size_t sent = link_send_some(link, pieces + first, 2 - first);
    size_t of_ack = sent < ACK_SIZE - sender->ack_sent ? sent : ACK_SIZE - sender->ack_sent;
    sender->ack_sent += of_ack;
    sender->position += sent - of_ack;
    if (sender->position < work->amount)
        return;
    free(sender);
    link->ready = NULL;
    link_watch(link, EPOLLIN);
}

static void read_serve_raw(struct raw_link *link, const struct work *work)
{
    struct raw_sender *sender = allocate(sizeof *sender);
    sender->work = *work;
    sender->data = server_data(work);
    link->state = sender;
    link->ready = raw_sender_ready;
    link->spins = work->spin;
    link_watch(link, EPOLLOUT);
}

struct raw_receiver {
    const struct work *work;
    const struct layout *layout;
    int server;
    uint8_t ack[ACK_SIZE];
    size_t ack_got;
    uint64_t position;
    uint64_t *received; /* of all links, acknowledgements included */
};

static void raw_receiver_ready(struct raw_link *link)
{
    struct raw_receiver *receiver = link->state;
    const struct work *work = receiver->work;
    struct iovec pieces[RAW_PIECES];
    int count = 0;
    size_t ack_left = ACK_SIZE - receiver->ack_got;
    if (ack_left > 0)
        pieces[count++] = (struct iovec){receiver->ack + receiver->ack_got, ack_left};
    if (receiver->position == work->amount)
        return; /* where links are continued all the time */
    uint64_t place = data_place(work, receiver->position);
    uint64_t size = data_ahead(work, receiver->position);
    count += layout_pieces(receiver->layout, receiver->server, place, size, pieces + count,
                           RAW_PIECES - count);
    size_t got = link_recv_some(link, pieces, count);
    size_t of_ack = got < ack_left ? got : ack_left;
    receiver->ack_got += of_ack;
    receiver->position += got - of_ack;
    *receiver->received += got;
}

static double read_run_raw(struct raw_client *client, const struct work *work)
{
    struct layout layout;
    uint64_t received = 0;
    int count = client->link_count;
    struct raw_receiver *receivers = allocate((size_t)count * sizeof *receivers);
    layout_prepare(&layout, work, count);
    if (work->verify)
        layout_clear(&layout);
    for (int i = 0; i < count; i++) {
        receivers[i] = (struct raw_receiver){.work = work,
                                             .layout = &layout,
                                             .server = i,
                                             .received = &received};
        client->links[i].state = &receivers[i];
        client->links[i].ready = raw_receiver_ready;
    }
    uint64_t start = now_ns();
    for (int i = 0; i < count; i++)
        link_ask(&client->links[i], i, work);
    raw_await(client, &received, (uint64_t)count * (ACK_SIZE + work->amount), work->spin);
    double seconds = seconds_since(start);
    for (int i = 0; work->verify && i < count; i++)
        layout_check(&layout, i, (uint32_t)i, client_shift(work), work->amount);
    free(receivers);
    return seconds;
}

const struct pattern pattern_read = {
    .name = "read",
    .summary = "each client reads from each server, receiving lists",
    .unit = "MB/s",
    .size_name = "message",
    .sizes = "256K",
    .amount = "10MB",
    .amount_is_bytes = true,
    .window = 8,
    .takes = TAKES_PARTICIPANTS | TAKES_SIZE | TAKES_BYTES | TAKES_SEGMENT | TAKES_WINDOW |
             TAKES_VERIFY | TAKES_POST,
    .on_request = BIT(CONTENDER_BMI_PLAIN) | BIT(CONTENDER_BMI_URING),
    .contenders = BIT(CONTENDER_BMI) | BIT(CONTENDER_BMI_PLAIN) | BIT(CONTENDER_BMI_URING) |
                  BIT(CONTENDER_RAW) | BIT(CONTENDER_TLS) | BIT(CONTENDER_MPI),
    .value = value_bandwidth,
    .serve_bmi = read_serve_bmi,
    .serve_raw = read_serve_raw,
    .run_bmi = read_run_bmi,
    .run_raw = read_run_raw,
};
