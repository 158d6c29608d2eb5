/* SPDX-License-Identifier: BSD-3-Clause
 *
 * write.c - the N x M parallel write: read, in the other direction.
 *
 * Each client asks each server with an unexpected message of 25 bytes, gets an acknowledgement of
 * 400, sends `amount` bytes in messages of `size`, each a list of segments, and ends with the
 * server's second acknowledgement: all data has arrived. The server posts its first receives before
 * the acknowledgement (--first receiver) or after it (together); the client posts its first sends
 * at the acknowledgement, or before the request (sender).
 */
#include "bmi_side.h"
#include "layout.h"
#include "raw_side.h"
#include "streams.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define RAW_PIECES 128

/* The stream of a client's data, unlike those of servers. */
static uint32_t client_stream(const struct work *work)
{
    return 0x10000u + work->client;
}

static uint64_t server_shift(int server)
{
    return (uint64_t)server * DATA_SHIFT;
}

/* Checks a message that a server received. */
static void message_check(const struct work *work, const uint8_t *bytes, uint64_t position,
                          uint64_t size)
{
    data_check(bytes, size, client_stream(work), position + server_shift(work->server));
}

/* The server's receive memory, which its requests of equal work share in turn. */
struct sink {
    struct sink *next;
    uint8_t *memory;
    uint64_t size;
    bool own; /* not of BMI_memalloc */
};
static struct sink *sinks_free;

static struct sink *sink_take(uint64_t size)
{
    for (struct sink **place = &sinks_free; *place; place = &(*place)->next) {
        struct sink *sink = *place;
        if (sink->size == size && sink->own == data_is_own()) {
            *place = sink->next;
            return sink;
        }
    }
    struct sink *sink = allocate(sizeof *sink);
    *sink = (struct sink){.memory = data_allocate(size), .size = size, .own = data_is_own()};
    return sink;
}

static void sink_give(struct sink *sink)
{
    sink->next = sinks_free;
    sinks_free = sink;
}

/* ---- BMI server: one state machine per request --------------------------------------------- */

struct write_machine {
    struct bmi_side *side;
    BMI_addr_t client;
    struct work work;
    struct sink *sink;
    uint64_t messages, next, received;
    struct bmi_acks acks;
    struct machine_op {
        struct bmi_op op;
        struct write_machine *machine;
        uint64_t message;
    } * ops;
};

static void machine_receive_next(struct write_machine *machine, struct machine_op *op)
{
    const struct work *work = &machine->work;
    op->message = machine->next++;
    side_recv(machine->side, &op->op, machine->client,
              machine->sink->memory + data_place(work, op->message * work->size),
              message_size(work, op->message), BMI_EXT_ALLOC, tag_data(work));
}

static void machine_op_complete(struct bmi_op *op)
{
    struct machine_op *machine_op = (struct machine_op *)op;
    struct write_machine *machine = machine_op->machine;
    const struct work *work = &machine->work;
    uint64_t position = machine_op->message * work->size;
    if (work->verify)
        message_check(work, machine->sink->memory + data_place(work, position), position,
                      message_size(work, machine_op->message));
    machine->received++;
    if (machine->next < machine->messages)
        machine_receive_next(machine, machine_op);
    else if (machine->received == machine->messages)
        acks_send(&machine->acks);
}

static void machine_close(struct bmi_acks *acks)
{
    struct write_machine *machine = (void *)((char *)acks - offsetof(struct write_machine, acks));
    sink_give(machine->sink);
    free(machine->ops);
    free(machine);
}

static void write_serve_bmi(struct bmi_side *side, const struct work *work, bmi_peer client)
{
    struct write_machine *machine = allocate(sizeof *machine);
    *machine = (struct write_machine){.side = side,
                                      .client = client,
                                      .work = *work,
                                      .sink = sink_take(data_area(work)),
                                      .messages = message_count(work)};
    if (work->verify)
        memset(machine->sink->memory, 0, machine->sink->size);
    machine->ops = allocate(work->window * sizeof *machine->ops);
    acks_open(&machine->acks, side, client, work, machine_close);
    if (work->first == FIRST_TOGETHER)
        acks_send(&machine->acks);
    for (uint32_t i = 0; i < work->window; i++) {
        machine->ops[i].op.complete = machine_op_complete;
        machine->ops[i].machine = machine;
        if (machine->next < machine->messages)
            machine_receive_next(machine, &machine->ops[i]);
    }
    if (work->first != FIRST_TOGETHER)
        acks_send(&machine->acks);
}

/* ---- BMI client ---------------------------------------------------------------------------- */

/* Prepares a client's memory; the contents stay over the samples. */
static void client_fill(struct layout *layout, const struct work *work, int servers)
{
    layout_prepare(layout, work, servers);
    for (int i = 0; work->verify && i < servers; i++)
        layout_fill(layout, i, client_stream(work), server_shift(i));
}

static double write_run_bmi(struct bmi_client *client, const struct work *work)
{
    struct layout layout;
    client_fill(&layout, work, client->server_count);
    return streams_run(client, work, &layout, true);
}

/* ---- plain sockets ------------------------------------------------------------------------- */

struct raw_receiver {
    struct work work;
    struct sink *sink;
    uint64_t position;
};

static const uint8_t raw_ack[ACK_SIZE];

static void raw_receiver_ready(struct raw_link *link)
{
    struct raw_receiver *receiver = link->state;
    const struct work *work = &receiver->work;
    uint64_t place = data_place(work, receiver->position);
    uint64_t size = data_ahead(work, receiver->position);
    struct iovec piece = {receiver->sink->memory + place, size};
    size_t got = link_recv_some(link, &piece, 1);
    if (work->verify)
        message_check(work, receiver->sink->memory + place, receiver->position, got);
    receiver->position += got;
    if (receiver->position < work->amount)
        return;
    link_send(link, raw_ack, ACK_SIZE);
    sink_give(receiver->sink);
    free(receiver);
    link->ready = NULL;
}

static void write_serve_raw(struct raw_link *link, const struct work *work)
{
    struct raw_receiver *receiver = allocate(sizeof *receiver);
    *receiver = (struct raw_receiver){.work = *work, .sink = sink_take(data_area(work))};
    link->state = receiver;
    link->ready = raw_receiver_ready;
    link->spins = work->spin;
    link_send(link, raw_ack, ACK_SIZE);
}

struct raw_sender {
    const struct work *work;
    const struct layout *layout;
    int server;
    size_t acks_got; /* bytes of both acknowledgements */
    uint64_t position;
    uint64_t *received;
};

/* Continues a client's stream: an acknowledgement's bytes, or a message's list. */
static void raw_sender_ready(struct raw_link *link)
{
    struct raw_sender *sender = link->state;
    const struct work *work = sender->work;
    bool asked = sender->acks_got < ACK_SIZE && work->first != FIRST_SENDER;
    if (asked || sender->position == work->amount) {
        uint8_t ack[ACK_SIZE];
        struct iovec piece = {ack, ACK_SIZE - sender->acks_got % ACK_SIZE};
        size_t got = link_recv_some(link, &piece, 1);
        sender->acks_got += got;
        *sender->received += got;
        if (sender->acks_got == ACK_SIZE && sender->position < work->amount)
            link_watch(link, EPOLLOUT);
        return;
    }
    struct iovec pieces[RAW_PIECES];
    uint64_t message = sender->position / work->size;
    uint64_t end = message * work->size + message_size(work, message);
    int count = layout_pieces(sender->layout, sender->server, data_place(work, sender->position),
                              end - sender->position, pieces, RAW_PIECES);
    sender->position += link_send_some(link, pieces, count);
    if (sender->position == work->amount)
        link_watch(link, EPOLLIN);
}

static double write_run_raw(struct raw_client *client, const struct work *work)
{
    struct layout layout;
    uint64_t received = 0;
    int count = client->link_count;
    struct raw_sender *senders = allocate((size_t)count * sizeof *senders);
    client_fill(&layout, work, count);
    for (int i = 0; i < count; i++) {
        senders[i] = (struct raw_sender){.work = work,
                                         .layout = &layout,
                                         .server = i,
                                         .received = &received};
        client->links[i].state = &senders[i];
        client->links[i].ready = raw_sender_ready;
    }
    uint64_t start = now_ns();
    for (int i = 0; i < count; i++) {
        link_ask(&client->links[i], i, work);
        if (work->first == FIRST_SENDER)
            link_watch(&client->links[i], EPOLLOUT);
    }
    raw_await(client, &received, (uint64_t)count * 2 * ACK_SIZE, work->spin);
    double seconds = seconds_since(start);
    free(senders);
    return seconds;
}

const struct pattern pattern_write = {
    .name = "write",
    .summary = "each client writes to each server, sending lists",
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
    .serve_bmi = write_serve_bmi,
    .serve_raw = write_serve_raw,
    .run_bmi = write_run_bmi,
    .run_raw = write_run_raw,
};
