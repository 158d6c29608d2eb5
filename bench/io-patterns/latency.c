/* SPDX-License-Identifier: BSD-3-Clause
 *
 * latency.c - ping-pong: `amount` round trips of `size` bytes, one at a time, after WARM_UP_ROUNDS
 * others.
 *
 * Each side posts its receive after its send, as a program over sockets does: only the message lies
 * between a receive and the answer. The value is half of a round trip. BMI's buffers are
 * BMI_memalloc's, or plain ones. Sockets block, or spin on a non-blocking receive: the best that a
 * program can do on a busy machine, and on an idle one.
 */
#include "bmi_side.h"
#include "raw_side.h"

#include <stdlib.h>
#include <string.h>

/* ---- BMI ----------------------------------------------------------------------------------- */

struct pingpong {
    const struct work *work;
    bmi_context_id context;
    BMI_addr_t peer;
    enum bmi_buffer_type type;
    void *out, *in;
    int pending;
    int timeout_s;
};

static void *buffer_open(const struct pingpong *pingpong, enum bmi_op_type direction)
{
    bmi_size_t size = pingpong->work->size ? pingpong->work->size : 1;
    if (pingpong->work->plain)
        return allocate((size_t)size);
    void *buffer = BMI_memalloc(pingpong->peer, size, direction);
    if (!buffer)
        die("BMI_memalloc: no memory");
    return buffer;
}

static void buffer_close(const struct pingpong *pingpong, void *buffer, enum bmi_op_type direction)
{
    bmi_size_t size = pingpong->work->size ? pingpong->work->size : 1;
    if (pingpong->work->plain)
        free(buffer);
    else
        bmi_check(BMI_memfree(pingpong->peer, buffer, size, direction), "BMI_memfree");
}

static void pingpong_open(struct pingpong *pingpong, struct bmi_side *side, BMI_addr_t peer,
                          const struct work *work)
{
    *pingpong = (struct pingpong){.work = work,
                                  .context = side->context,
                                  .peer = peer,
                                  .timeout_s = side->timeout_s,
                                  .type = work->plain ? BMI_EXT_ALLOC : BMI_PRE_ALLOC};
    pingpong->out = buffer_open(pingpong, BMI_SEND);
    pingpong->in = buffer_open(pingpong, BMI_RECV);
}

static void pingpong_close(const struct pingpong *pingpong)
{
    buffer_close(pingpong, pingpong->out, BMI_SEND);
    buffer_close(pingpong, pingpong->in, BMI_RECV);
}

static void size_check(const struct pingpong *pingpong, bmi_size_t actual)
{
    if (actual != pingpong->work->size)
        die("a message of %lld bytes came instead of %u", (long long)actual, pingpong->work->size);
}

static void receive_post(struct pingpong *pingpong)
{
    bmi_op_id_t id;
    bmi_size_t actual;
    int status =
        BMI_post_recv(&id, pingpong->peer, pingpong->in, pingpong->work->size, &actual,
                      pingpong->type, tag_data(pingpong->work), NULL, pingpong->context, NULL);
    bmi_check(status, "BMI_post_recv");
    if (status == 0)
        pingpong->pending++;
    else
        size_check(pingpong, actual);
}

static void send_post(struct pingpong *pingpong)
{
    bmi_op_id_t id;
    int status =
        BMI_post_send(&id, pingpong->peer, pingpong->out, pingpong->work->size, pingpong->type,
                      tag_data(pingpong->work), NULL, pingpong->context, NULL);
    bmi_check(status, "BMI_post_send");
    if (status == 0)
        pingpong->pending++;
}

/* Waits until all posted operations have completed. */
static void all_await(struct pingpong *pingpong)
{
    uint64_t idle = 0;
    while (pingpong->pending > 0) {
        bmi_op_id_t ids[2];
        bmi_error_code_t errors[2];
        bmi_size_t actuals[2];
        int count = 0;
        bmi_check(BMI_testcontext(2, ids, &count, errors, actuals, NULL, WAIT_MS,
                                  pingpong->context),
                  "BMI_testcontext");
        for (int i = 0; i < count; i++) {
            bmi_check(errors[i], "an operation");
            size_check(pingpong, actuals[i]);
        }
        pingpong->pending -= count;
        if (count > 0)
            idle = 0;
        else if (idle == 0)
            idle = now_ns();
        else if (seconds_since(idle) > pingpong->timeout_s)
            die("nothing came for %d s", pingpong->timeout_s);
    }
}

/* The contents of a round's ping, and of its pong. */
static void ball_fill(const struct work *work, void *buffer, uint64_t round, uint32_t stream)
{
    if (work->verify)
        data_fill(buffer, work->size, stream, round * work->size);
}

static void ball_check(const struct work *work, const void *buffer, uint64_t round, uint32_t stream)
{
    if (work->verify)
        data_check(buffer, work->size, stream, round * work->size);
}

static void latency_serve_bmi(struct bmi_side *side, const struct work *work, bmi_peer client)
{
    struct pingpong pingpong;
    pingpong_open(&pingpong, side, client, work);
    acknowledge_and_await(side, client, work, NULL);
    receive_post(&pingpong);
    for (uint64_t round = 0; round < work->amount + WARM_UP_ROUNDS; round++) {
        all_await(&pingpong);
        ball_check(work, pingpong.in, round, 1);
        ball_fill(work, pingpong.out, round, 2);
        send_post(&pingpong);
        if (round + 1 < work->amount + WARM_UP_ROUNDS)
            receive_post(&pingpong);
    }
    all_await(&pingpong);
    pingpong_close(&pingpong);
}

static double latency_run_bmi(struct bmi_client *client, const struct work *work)
{
    struct pingpong pingpong;
    pingpong_open(&pingpong, &client->side, client->servers[0], work);
    client_ask(client, 0, work);
    uint64_t start = 0;
    for (uint64_t round = 0; round < work->amount + WARM_UP_ROUNDS; round++) {
        if (round == WARM_UP_ROUNDS)
            start = now_ns();
        ball_fill(work, pingpong.out, round, 1);
        send_post(&pingpong);
        receive_post(&pingpong);
        all_await(&pingpong);
        ball_check(work, pingpong.in, round, 2);
    }
    double seconds = seconds_since(start);
    pingpong_close(&pingpong);
    return seconds;
}

/* ---- plain sockets ------------------------------------------------------------------------- */

static void latency_serve_raw(struct raw_link *link, const struct work *work)
{
    uint8_t ack[ACK_SIZE] = {0};
    uint8_t *in = allocate(work->size), *out = allocate(work->size);
    link_blocking_set(link, !work->spin);
    link_send(link, ack, sizeof ack);
    for (uint64_t round = 0; round < work->amount + WARM_UP_ROUNDS; round++) {
        link_recv(link, in, work->size);
        ball_check(work, in, round, 1);
        ball_fill(work, out, round, 2);
        link_send(link, out, work->size);
    }
    link_blocking_set(link, false);
    free(in);
    free(out);
}

static double latency_run_raw(struct raw_client *client, const struct work *work)
{
    struct raw_link *link = &client->links[0];
    uint8_t *in = allocate(work->size), *out = allocate(work->size);
    link_blocking_set(link, !work->spin);
    link_ask_and_await(link, 0, work);
    uint64_t start = 0;
    for (uint64_t round = 0; round < work->amount + WARM_UP_ROUNDS; round++) {
        if (round == WARM_UP_ROUNDS)
            start = now_ns();
        ball_fill(work, out, round, 1);
        link_send(link, out, work->size);
        link_recv(link, in, work->size);
        ball_check(work, in, round, 2);
    }
    double seconds = seconds_since(start);
    link_blocking_set(link, false);
    free(in);
    free(out);
    return seconds;
}

const struct pattern pattern_latency = {
    .name = "latency",
    .summary = "ping-pong of one message; the value is one way",
    .unit = "us",
    .size_name = "message",
    .sizes = "24,100,200,400,800,1200",
    .amount = "2000",
    .less_is_better = true,
    .empty_messages = true,
    .one_pair = true,
    .takes = TAKES_PARTICIPANTS | TAKES_SIZE | TAKES_MESSAGES | TAKES_VERIFY,
    .on_request = BIT(CONTENDER_BMI_BACKGROUND) | BIT(CONTENDER_BMI_URING),
    .contenders = BITS_BMI_OURS | BITS_RAW | BIT(CONTENDER_MPI) | BIT(CONTENDER_FI),
    .value = value_latency,
    .serve_bmi = latency_serve_bmi,
    .serve_raw = latency_serve_raw,
    .run_bmi = latency_run_bmi,
    .run_raw = latency_run_raw,
};
