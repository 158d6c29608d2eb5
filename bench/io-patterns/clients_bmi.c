/* SPDX-License-Identifier: BSD-3-Clause
 *
 * clients_bmi.c - the pattern clients over BMI. The server answers each request, an unexpected
 * message, at once.
 */
#include "bmi_side.h"
#include "clients.h"

#include <stdlib.h>
#include <string.h>

/* ---- the server ---------------------------------------------------------------------------- */

struct answer {
    struct bmi_op op;
    struct answer *next; /* of those that can be used again */
    uint8_t bytes[ACK_SIZE];
};

static struct answer *answers_free;

static void answer_gone(struct bmi_op *op)
{
    struct answer *answer = (struct answer *)op;
    answer->next = answers_free;
    answers_free = answer;
}

void clients_serve_bmi(struct bmi_side *side, const struct work *work, BMI_addr_t client)
{
    struct answer *answer = answers_free;
    if (answer)
        answers_free = answer->next;
    else
        answer = allocate(sizeof *answer);
    answer->op.complete = answer_gone;
    clients_reply(work, answer->bytes);
    side_send(side, &answer->op, client, answer->bytes, ACK_SIZE, BMI_EXT_ALLOC, tag_ack(work));
}

/* ---- the clients --------------------------------------------------------------------------- */

static BMI_addr_t connected[CLIENTS_MAX]; /* the server, as each client dialled it */
static uint32_t connected_count;

static void connected_set(struct bmi_client *client, const struct work *work)
{
    const char *port = strrchr(BMI_addr_rev_lookup(client->servers[0]), ':');
    struct work question = *work;
    question.on = CLIENTS_CALL;
    while (connected_count > work->size)
        bmi_check(BMI_set_info(connected[--connected_count], BMI_DROP_ADDR, NULL), "BMI_DROP_ADDR");
    for (; connected_count < work->size; connected_count++) {
        char url[64];
        uint32_t address = clients_address(connected_count);
        struct bmi_client one = *client;
        format_text(url, sizeof url, "tcp://127.%u.%u.%u%s", address >> 16 & 255,
                    address >> 8 & 255, address & 255, port);
        bmi_check(BMI_addr_lookup(&connected[connected_count], url), url);
        one.servers = &connected[connected_count];
        client_ask(&one, 0, &question);
    }
}

struct callers {
    struct calls calls;
    struct bmi_side *side;
    struct work asked;
    uint8_t request[REQUEST_SIZE];
    struct caller {
        struct caller_op {
            struct bmi_op op;
            struct caller *caller;
        } ask_op, answer_op;
        struct callers *callers;
        uint32_t place;
        int ended; /* of the two operations */
        uint8_t reply[ACK_SIZE];
    } all[];
};

static void call_start(struct caller *caller)
{
    struct callers *callers = caller->callers;
    const struct work *work = callers->calls.work;
    BMI_addr_t server = connected[clients_active(work, caller->place)];
    if (!call_begin(&callers->calls, caller->place))
        return;
    caller->ended = 0;
    side_recv(callers->side, &caller->answer_op.op, server, caller->reply, ACK_SIZE, BMI_EXT_ALLOC,
              tag_ack(work));
    side_request(callers->side, &caller->ask_op.op, server, &callers->asked, callers->request);
}

static void op_complete(struct bmi_op *op)
{
    struct caller *caller = ((struct caller_op *)op)->caller;
    if (++caller->ended < 2)
        return;
    call_end(&caller->callers->calls, caller->place);
    call_start(caller);
}

static double calls_run(struct bmi_client *client, const struct work *work)
{
    struct callers *callers = allocate(sizeof *callers + work->window * sizeof(struct caller));
    callers->side = &client->side;
    callers->asked = *work;
    callers->asked.on = CLIENTS_CALL;
    calls_open(&callers->calls, work);
    for (uint32_t i = 0; i < work->window; i++) {
        struct caller *caller = &callers->all[i];
        *caller = (struct caller){.callers = callers, .place = i};
        caller->ask_op = (struct caller_op){{.complete = op_complete}, caller};
        caller->answer_op = caller->ask_op;
        call_start(caller);
    }
    side_await(&client->side, &callers->calls.ended, callers->calls.total);
    double figure = calls_close(&callers->calls);
    free(callers);
    return figure;
}

static void usage_ask(struct bmi_client *client, const struct work *work, uint8_t on,
                      uint8_t usage[ACK_SIZE])
{
    struct work question = *work;
    question.on = on;
    client_ask_for(client, 0, &question, usage);
}

double clients_run_bmi(struct bmi_client *client, const struct work *work)
{
    uint8_t before[ACK_SIZE], after[ACK_SIZE], on;
    bool asks = clients_asks(work, &on);
    connected_set(client, work);
    if (asks)
        usage_ask(client, work, on, before);
    double figure = calls_run(client, work);
    if (!asks)
        return figure;
    usage_ask(client, work, CLIENTS_END, after);
    return clients_used(work, before, after);
}
