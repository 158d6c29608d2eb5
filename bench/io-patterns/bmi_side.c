/* SPDX-License-Identifier: BSD-3-Clause
 *
 * bmi_side.c - posting, completing, and the request that opens each exchange.
 */
#include "bmi_side.h"

#include <stdlib.h>

#define COMPLETIONS_MAX 64

/* Ends the process if a BMI call failed. */
void bmi_check(int status, const char *what)
{
    if (status < 0)
        die("%s: %s", what, bmi_status_string(status));
}

/* Records the result of a post: pending, or completed at once. */
static void op_posted(struct bmi_side *side, struct bmi_op *op, int status, const char *what)
{
    bmi_check(status, what);
    if (status == 0) {
        side->outstanding++;
        return;
    }
    op->next = NULL;
    if (side->done_first)
        side->done_last->next = op;
    else
        side->done_first = op;
    side->done_last = op;
}

void side_send(struct bmi_side *side, struct bmi_op *op, BMI_addr_t to, const void *buffer,
               bmi_size_t size, enum bmi_buffer_type type, bmi_msg_tag_t tag)
{
    bmi_op_id_t id;
    op->expected = -1;
    op_posted(side, op, BMI_post_send(&id, to, buffer, size, type, tag, op, side->context, NULL),
              "BMI_post_send");
}

void side_recv(struct bmi_side *side, struct bmi_op *op, BMI_addr_t from, void *buffer,
               bmi_size_t size, enum bmi_buffer_type type, bmi_msg_tag_t tag)
{
    bmi_op_id_t id;
    op->expected = size;
    int status =
        BMI_post_recv(&id, from, buffer, size, &op->actual, type, tag, op, side->context, NULL);
    op_posted(side, op, status, "BMI_post_recv");
}

void side_send_list(struct bmi_side *side, struct bmi_op *op, BMI_addr_t to,
                    const struct bmi_pieces *pieces, bmi_size_t size, bmi_msg_tag_t tag)
{
    bmi_op_id_t id;
    op->expected = -1;
    int status =
        BMI_post_send_list(&id, to, (const void *const *)pieces->buffers, pieces->sizes,
                           pieces->count, size, BMI_EXT_ALLOC, tag, op, side->context, NULL);
    op_posted(side, op, status, "BMI_post_send_list");
}

void side_recv_list(struct bmi_side *side, struct bmi_op *op, BMI_addr_t from,
                    const struct bmi_pieces *pieces, bmi_size_t size, bmi_msg_tag_t tag)
{
    bmi_op_id_t id;
    op->expected = size;
    int status = BMI_post_recv_list(&id, from, pieces->buffers, pieces->sizes, pieces->count, size,
                                    &op->actual, BMI_EXT_ALLOC, tag, op, side->context, NULL);
    op_posted(side, op, status, "BMI_post_recv_list");
}

void side_request(struct bmi_side *side, struct bmi_op *op, BMI_addr_t to, const struct work *work,
                  uint8_t bytes[REQUEST_SIZE])
{
    bmi_op_id_t id;
    op->expected = -1;
    request_encode(bytes, work);
    int status = BMI_post_sendunexpected(&id, to, bytes, REQUEST_SIZE, BMI_EXT_ALLOC, tag_ack(work),
                                         op, side->context, NULL);
    op_posted(side, op, status, "BMI_post_sendunexpected");
}

void side_call(struct bmi_side *side, struct bmi_op *op, BMI_addr_t to, const char *service,
               struct bmi_message *request, bmi_rpc_unpack unpack, void *argument)
{
    bmi_op_id_t id;
    op->expected = -1;
    op_posted(side, op,
              bmi_rpc_call(&id, to, service, request, unpack, argument, NULL, op, side->context),
              "bmi_rpc_call");
}

static void op_run(struct bmi_op *op)
{
    if (op->expected >= 0 && op->actual != op->expected)
        die("a message of %lld bytes came instead of %lld", (long long)op->actual,
            (long long)op->expected);
    op->complete(op);
}

static int immediate_run(struct bmi_side *side)
{
    int run = 0;
    for (; side->done_first && run < COMPLETIONS_MAX; run++) {
        struct bmi_op *op = side->done_first;
        side->done_first = op->next;
        op_run(op);
    }
    return run;
}

int side_step(struct bmi_side *side, int wait_ms)
{
    bmi_op_id_t ids[COMPLETIONS_MAX];
    bmi_error_code_t errors[COMPLETIONS_MAX];
    bmi_size_t sizes[COMPLETIONS_MAX];
    void *users[COMPLETIONS_MAX];
    int count = 0;
    int run = immediate_run(side);
    if (run || side->done_first || side->polls)
        wait_ms = 0;
    if (side->others > 0) {
        run += side->other_step(side, wait_ms);
        wait_ms = 0;
    }
    bmi_check(BMI_testcontext(COMPLETIONS_MAX, ids, &count, errors, sizes, users, wait_ms,
                              side->context),
              "BMI_testcontext");
    for (int i = 0; i < count; i++) {
        struct bmi_op *op = users[i];
        side->outstanding--;
        if (side->ending && errors[i] != 0)
            continue;
        bmi_check(errors[i], op->expected < 0 ? "a send or a call" : "a receive");
        op->actual = sizes[i];
        op_run(op);
    }
    return run + count;
}

/* A client that polls checks for unexpected messages, too, as programs with one thread do. */
static void unexpected_poll(void)
{
    struct BMI_unexpected_info info;
    int count = 0;
    bmi_check(BMI_testunexpected(1, &count, &info, 0), "BMI_testunexpected");
    if (count > 0)
        die("an unexpected message came to a client");
}

void side_await(struct bmi_side *side, const uint64_t *value, uint64_t target)
{
    uint64_t moved = 0; /* time of the last completion, read only while there are none */
    while (*value < target) {
        if (side->polls)
            unexpected_poll();
        if (side_step(side, WAIT_MS) > 0)
            moved = 0;
        else if (moved == 0)
            moved = now_ns();
        else if (seconds_since(moved) > side->timeout_s)
            die("nothing completed for %d s, %llu operations outstanding", side->timeout_s,
                (unsigned long long)side->outstanding);
    }
}

void counted_complete(struct bmi_op *op)
{
    ++*((struct bmi_counted *)op)->counter;
}

void client_ask_for(struct bmi_client *client, int server, const struct work *work, uint8_t *ack)
{
    struct work asked = *work;
    uint8_t request[REQUEST_SIZE], unread[ACK_SIZE];
    uint64_t done = 0;
    struct bmi_counted ops[2];
    for (int i = 0; i < 2; i++)
        ops[i] = (struct bmi_counted){.op.complete = counted_complete, .counter = &done};
    asked.server = (uint8_t)server;
    side_recv(&client->side, &ops[0].op, client->servers[server], ack ? ack : unread, ACK_SIZE,
              BMI_EXT_ALLOC, tag_ack(work));
    side_request(&client->side, &ops[1].op, client->servers[server], &asked, request);
    side_await(&client->side, &done, 2);
}

void client_ask(struct bmi_client *client, int server, const struct work *work)
{
    client_ask_for(client, server, work, NULL);
}

static const uint8_t zeroes[ACK_SIZE];

void acknowledge_and_await(struct bmi_side *side, BMI_addr_t client, const struct work *work,
                           const uint8_t *ack)
{
    uint64_t gone = 0;
    struct bmi_counted op = {.op.complete = counted_complete, .counter = &gone};
    side_send(side, &op.op, client, ack ? ack : zeroes, ACK_SIZE, BMI_EXT_ALLOC, tag_ack(work));
    side_await(side, &gone, 1);
}

static void acks_complete(struct bmi_op *op)
{
    struct bmi_acks *acks = ((struct acks_op *)op)->acks;
    if (++acks->gone == 2)
        acks->close(acks);
}

void acks_open(struct bmi_acks *acks, struct bmi_side *side, BMI_addr_t client,
               const struct work *work, void (*close)(struct bmi_acks *acks))
{
    *acks = (struct bmi_acks){.side = side, .client = client, .tag = tag_ack(work), .close = close};
    for (int i = 0; i < 2; i++)
        acks->ops[i] = (struct acks_op){.op.complete = acks_complete, .acks = acks};
}

void acks_send(struct bmi_acks *acks)
{
    side_send(acks->side, &acks->ops[acks->sent++].op, acks->client, zeroes, ACK_SIZE,
              BMI_EXT_ALLOC, acks->tag);
}

/* Makes room for the pieces of a message of up to `size` bytes, wherever it begins. */
void pieces_open(struct bmi_pieces *pieces, const struct layout *layout, uint64_t size)
{
    pieces->room = (int)(size / layout->segment + 2);
    pieces->buffers = allocate((size_t)pieces->room * sizeof *pieces->buffers);
    pieces->sizes = allocate((size_t)pieces->room * sizeof *pieces->sizes);
}

/* Names the pieces of a stream's bytes [position, position + size). */
void pieces_set(struct bmi_pieces *pieces, const struct layout *layout, int server,
                uint64_t position, uint64_t size)
{
    uint64_t done = 0;
    for (pieces->count = 0; done < size; pieces->count++) {
        struct iovec piece;
        layout_pieces(layout, server, position + done, size - done, &piece, 1);
        pieces->buffers[pieces->count] = piece.iov_base;
        pieces->sizes[pieces->count] = (bmi_size_t)piece.iov_len;
        done += piece.iov_len;
    }
}

void pieces_close(struct bmi_pieces *pieces)
{
    free(pieces->buffers);
    free(pieces->sizes);
}
