/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc_bmi.c - calls by bmi/rpc.h, and as the reference `post` an exchange of posted messages.
 *
 * Both sides of `post` post their receives ahead: the server the next one after its reply, the
 * client after its request. A server leaves the sample at the client's last message.
 */
#include "bmi_side.h"
#include "rpc.h"

#include <stdlib.h>

#define SERVICE "bench"

static void *memory_get(bmi_size_t size)
{
    void *memory = malloc((size_t)size);
    if (!memory)
        die("no memory");
    return memory;
}

/* ---- the service --------------------------------------------------------------------------- */

struct service {
    const struct work *work;
    uint8_t *body; /* of replies */
    uint64_t run, ended;
};

static void request_ended(struct bmi_rpc_request *request, bmi_error_code_t status)
{
    struct service *service = bmi_rpc_argument(request);
    bmi_check(status, "a request");
    free(bmi_rpc_data(request));
    service->ended++;
}

static void reply_check(int status)
{
    bmi_check(status, "bmi_rpc_reply");
}

static void null_run(struct bmi_rpc_request *request)
{
    reply_check(bmi_rpc_reply(request, NULL));
}

static int body_arrived(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    bmi_size_t size;
    int status = bmi_unpack_size(arguments, &size);
    if (status < 0)
        return status;
    void *memory = memory_get(size);
    bmi_rpc_set_data(request, memory);
    return bmi_unpack(arguments, memory, size, BMI_UNPACK_CHEAPER);
}

static void body_run(struct bmi_rpc_request *request)
{
    struct service *service = bmi_rpc_argument(request);
    rpc_body_check(service->work, bmi_rpc_data(request), service->run++);
    reply_check(bmi_rpc_reply(request, NULL));
}

/* Replies with as many bytes as the caller wants. */
static void reply_run(struct bmi_rpc_request *request)
{
    struct service *service = bmi_rpc_argument(request);
    struct bmi_message *reply = bmi_message_new();
    uint64_t size;
    bmi_check(bmi_unpack_u64(bmi_rpc_arguments(request), &size), "bmi_unpack_u64");
    rpc_body_fill(service->work, service->body, service->run++);
    bmi_pack(reply, service->body, (bmi_size_t)size, BMI_PACK_CHEAPER | BMI_UNPACK_CHEAPER);
    reply_check(bmi_rpc_reply(request, reply));
}

static void calls_serve(struct bmi_side *side, const struct work *work, BMI_addr_t client)
{
    static const struct bmi_rpc_service services[] = {
        [RPC_NULL] = {.run = null_run, .ended = request_ended},
        [RPC_REQUEST] = {.arrived = body_arrived, .run = body_run, .ended = request_ended},
        [RPC_REPLY] = {.run = reply_run, .ended = request_ended},
    };
    struct service service = {.work = work, .body = allocate_pages(work->size + 1)};
    struct bmi_rpc_service offered = services[work->on];
    uint64_t left = 0;
    struct bmi_counted last = {.op.complete = counted_complete, .counter = &left};
    uint8_t bare[RPC_BARE];
    offered.argument = &service;
    bmi_check(bmi_rpc_register(SERVICE, &offered), "bmi_rpc_register");
    side_recv(side, &last.op, client, bare, sizeof bare, BMI_EXT_ALLOC, tag_data(work));
    acknowledge_and_await(side, client, work, NULL);
    side_await(side, &left, 1);
    side_await(side, &service.ended, calls_total(work));
    bmi_check(bmi_rpc_unregister(SERVICE), "bmi_rpc_unregister");
    free(service.body);
}

/* ---- its client ---------------------------------------------------------------------------- */

struct caller {
    struct calls calls;
    struct bmi_side *side;
    BMI_addr_t server;
    uint8_t *body; /* of requests */
    struct call {
        struct bmi_op op;
        struct caller *caller;
        uint32_t place;
        uint8_t *memory; /* the reply's body */
    } all[];
};

static int reply_unpack(struct bmi_message *reply, void *argument)
{
    struct call *call = argument;
    bmi_size_t size;
    int status = bmi_unpack_size(reply, &size);
    if (status < 0)
        return status;
    call->memory = memory_get(size);
    return bmi_unpack(reply, call->memory, size, BMI_UNPACK_CHEAPER);
}

static void call_start(struct call *call)
{
    struct caller *caller = call->caller;
    const struct work *work = caller->calls.work;
    struct bmi_message *request = NULL;
    bmi_rpc_unpack unpack = NULL;
    if (work->on == RPC_REQUEST)
        rpc_body_fill(work, caller->body, caller->calls.started);
    if (!call_begin(&caller->calls, call->place))
        return;
    if (work->on == RPC_REQUEST) {
        request = bmi_message_new();
        bmi_pack(request, caller->body, work->size, BMI_PACK_CHEAPER | BMI_UNPACK_CHEAPER);
    } else if (work->on == RPC_REPLY) {
        request = bmi_message_new();
        bmi_pack_u64(request, work->size);
        unpack = reply_unpack;
    }
    side_call(caller->side, &call->op, caller->server, SERVICE, request, unpack, call);
}

static void call_complete(struct bmi_op *op)
{
    struct call *call = (struct call *)op;
    struct calls *calls = &call->caller->calls;
    call_end(calls, call->place);
    if (call->memory)
        rpc_body_check(calls->work, call->memory, calls->ended - 1);
    free(call->memory);
    call->memory = NULL;
    call_start(call);
}

static double calls_run(struct bmi_client *client, const struct work *work)
{
    struct caller *caller = allocate(sizeof *caller + work->window * sizeof(struct call));
    uint8_t bare[RPC_BARE] = {0};
    uint64_t gone = 0;
    struct bmi_counted last = {.op.complete = counted_complete, .counter = &gone};
    caller->side = &client->side;
    caller->server = client->servers[0];
    caller->body = allocate_pages(work->size + 1);
    calls_open(&caller->calls, work);
    client_ask(client, 0, work);
    for (uint32_t i = 0; i < work->window; i++) {
        caller->all[i] = (struct call){.op.complete = call_complete, .caller = caller, .place = i};
        call_start(&caller->all[i]);
    }
    side_await(&client->side, &caller->calls.ended, caller->calls.total);
    double figure = calls_close(&caller->calls);
    side_send(&client->side, &last.op, caller->server, bare, sizeof bare, BMI_EXT_ALLOC,
              tag_data(work));
    side_await(&client->side, &gone, 1);
    free(caller->body);
    free(caller);
    return figure;
}

/* ---- posted messages ----------------------------------------------------------------------- */

/* A side of the exchange. */
struct exchange {
    struct calls calls; /* the client's times; the server only counts */
    struct bmi_side *side;
    BMI_addr_t peer;
    const struct work *work;
    bmi_size_t in_size, out_size;
    uint64_t received, sent;
    struct turn {
        struct turn_op {
            struct bmi_op op;
            struct turn *turn;
        } in_op, out_op;
        struct exchange *exchange;
        uint32_t place;
        uint8_t *in, *out;
    } all[];
};

static bmi_size_t message_bytes(const struct work *work, enum rpc_kind kind)
{
    return work->on == kind ? work->size : RPC_BARE;
}

/* Into memory of its own, as a service's. */
static void turn_recv(struct turn *turn)
{
    struct exchange *exchange = turn->exchange;
    free(turn->in);
    turn->in = memory_get(exchange->in_size);
    side_recv(exchange->side, &turn->in_op.op, exchange->peer, turn->in, exchange->in_size,
              BMI_EXT_ALLOC, tag_data(exchange->work));
}

static void turn_send(struct turn *turn)
{
    struct exchange *exchange = turn->exchange;
    side_send(exchange->side, &turn->out_op.op, exchange->peer, turn->out, exchange->out_size,
              BMI_EXT_ALLOC, tag_data(exchange->work));
}

static void turn_sent(struct bmi_op *op)
{
    ((struct turn_op *)op)->turn->exchange->sent++;
}

/* The server's; the replies go in the order of the requests. */
static void request_received(struct bmi_op *op)
{
    struct turn *turn = ((struct turn_op *)op)->turn;
    struct exchange *exchange = turn->exchange;
    const struct work *work = exchange->work;
    uint64_t number = exchange->received++;
    if (work->on == RPC_REQUEST)
        rpc_body_check(work, turn->in, number);
    if (work->on == RPC_REPLY)
        rpc_body_fill(work, turn->out, number);
    turn_send(turn);
    if (number + work->window < exchange->calls.total)
        turn_recv(turn);
}

static void turn_start(struct turn *turn)
{
    struct exchange *exchange = turn->exchange;
    if (exchange->work->on == RPC_REQUEST)
        rpc_body_fill(exchange->work, turn->out, exchange->calls.started);
    if (!call_begin(&exchange->calls, turn->place))
        return;
    turn_send(turn);
    turn_recv(turn);
}

static void reply_received(struct bmi_op *op)
{
    struct turn *turn = ((struct turn_op *)op)->turn;
    struct exchange *exchange = turn->exchange;
    call_end(&exchange->calls, turn->place);
    if (exchange->work->on == RPC_REPLY)
        rpc_body_check(exchange->work, turn->in, exchange->received);
    exchange->received++;
    turn_start(turn);
}

static struct exchange *exchange_open(struct bmi_side *side, BMI_addr_t peer,
                                      const struct work *work, bool serves)
{
    struct exchange *exchange = allocate(sizeof *exchange + work->window * sizeof(struct turn));
    *exchange =
        (struct exchange){.side = side,
                          .peer = peer,
                          .work = work,
                          .in_size = message_bytes(work, serves ? RPC_REQUEST : RPC_REPLY),
                          .out_size = message_bytes(work, serves ? RPC_REPLY : RPC_REQUEST)};
    calls_open(&exchange->calls, work);
    for (uint32_t i = 0; i < work->window; i++) {
        struct turn *turn = &exchange->all[i];
        *turn = (struct turn){.exchange = exchange, .place = i};
        turn->in_op =
            (struct turn_op){{.complete = serves ? request_received : reply_received}, turn};
        turn->out_op = (struct turn_op){{.complete = turn_sent}, turn};
        turn->out = allocate_pages((size_t)exchange->out_size);
    }
    return exchange;
}

/* Returns: the client's figure. */
static double exchange_close(struct exchange *exchange)
{
    uint64_t total = exchange->calls.total;
    side_await(exchange->side, &exchange->received, total);
    double figure = calls_close(&exchange->calls);
    side_await(exchange->side, &exchange->sent, total);
    for (uint32_t i = 0; i < exchange->work->window; i++) {
        free(exchange->all[i].in);
        free(exchange->all[i].out);
    }
    free(exchange);
    return figure;
}

static void posts_serve(struct bmi_side *side, const struct work *work, BMI_addr_t client)
{
    struct exchange *exchange = exchange_open(side, client, work, true);
    for (uint32_t i = 0; i < work->window && i < exchange->calls.total; i++)
        turn_recv(&exchange->all[i]);
    acknowledge_and_await(side, client, work, NULL);
    exchange_close(exchange);
}

static double posts_run(struct bmi_client *client, const struct work *work)
{
    struct exchange *exchange = exchange_open(&client->side, client->servers[0], work, false);
    client_ask(client, 0, work);
    for (uint32_t i = 0; i < work->window; i++)
        turn_start(&exchange->all[i]);
    return exchange_close(exchange);
}

void rpc_serve_bmi(struct bmi_side *side, const struct work *work, bmi_peer client)
{
    (work->plain ? posts_serve : calls_serve)(side, work, client);
}

double rpc_run_bmi(struct bmi_client *client, const struct work *work)
{
    return (work->plain ? posts_run : calls_run)(client, work);
}
