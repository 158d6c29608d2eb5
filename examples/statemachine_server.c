/* SPDX-License-Identifier: BSD-3-Clause
 *
 * statemachine_server.c - a server of many clients in one thread.
 *
 * Service: a client sends the request "sum SIZE" (unexpected), then SIZE bytes under the same tag;
 * the server answers with the sum of those bytes, in decimal. Each request is a small state
 * machine:
 *
 *     RECEIVE_BODY --post_recv--> SEND_ANSWER --post_send--> FINISHED
 *
 * The server never waits for one client. One loop waits for any completion; its user pointer names
 * the state machine, which takes its next step.
 *
 * usage: statemachine_server [tcp://host:port]    default: a free port of 127.0.0.1; prints its
 * URL. With an address it listens on all interfaces. Ends on SIGINT or SIGTERM. The client is
 * statemachine_client.c.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <bmi.h>

enum {
    REQUEST_MAX = 40,
    BODY_MAX = 1 << 24, /* largest body that a client may announce; the server checks it */
    BATCH = 64,
    WAIT_MS = 500 /* longest delay until a signal to end is noticed */
};

enum state { RECEIVE_BODY, SEND_ANSWER, FINISHED };

struct session {
    enum state state; /* the next step */
    BMI_addr_t client;
    bmi_msg_tag_t tag;
    unsigned char *body;
    bmi_size_t body_size;
    bmi_size_t received;
    char answer[24];
};

static volatile sig_atomic_t ending;

static void end(int signal_number)
{
    (void)signal_number;
    ending = 1;
}

static void session_end(struct session *session, int status)
{
    if (status < 0)
        fprintf(stderr, "a client's request ended: %s\n", bmi_status_string(status));
    BMI_memfree(session->client, session->body, session->body_size, BMI_RECV);
    free(session);
}

static int send_answer(struct session *session, bmi_context_id context)
{
    uint64_t sum = 0;
    bmi_op_id_t op;

    for (bmi_size_t i = 0; i < session->received; i++)
        sum += session->body[i];
    snprintf(session->answer, sizeof(session->answer), "%" PRIu64, sum);
    return BMI_post_send(&op, session->client, session->answer, (bmi_size_t)strlen(session->answer),
                         BMI_EXT_ALLOC, session->tag, session, context, NULL);
}

static int receive_body(struct session *session, bmi_context_id context)
{
    bmi_op_id_t op; /* not kept: the completion brings the user pointer, `session` */

    return BMI_post_recv(&op, session->client, session->body, session->body_size,
                         &session->received, BMI_PRE_ALLOC, session->tag, session, context, NULL);
}

/* Takes steps until the machine has to wait. A post that returns 1 was done at once and will not be
 * reported, so the next step follows here. */
static void session_run(struct session *session, bmi_context_id context)
{
    int posted = 1;

    while (posted == 1) {
        switch (session->state) {
        case RECEIVE_BODY:
            session->state = SEND_ANSWER;
            posted = receive_body(session, context);
            break;
        case SEND_ANSWER:
            session->state = FINISHED;
            posted = send_answer(session, context);
            break;
        case FINISHED:
            session_end(session, 0);
            return;
        }
    }
    if (posted < 0)
        session_end(session, posted);
}

/* Starts the state machine of a request; a bad one gets no answer, only a line in the log. */
static void session_start(const struct BMI_unexpected_info *request, bmi_context_id context)
{
    char text[REQUEST_MAX + 1] = "";
    struct session *session = calloc(1, sizeof(*session));
    long size;

    if (request->size <= REQUEST_MAX)
        memcpy(text, request->buffer, (size_t)request->size);
    if (!session || sscanf(text, "sum %ld", &size) != 1 || size < 1 || size > BODY_MAX) {
        fprintf(stderr, "request refused\n");
        free(session);
        return;
    }
    session->client = request->addr;
    session->tag = request->tag;
    session->body_size = size;
    session->body = BMI_memalloc(session->client, size, BMI_RECV);
    if (!session->body) {
        fprintf(stderr, "no memory for a request\n");
        free(session);
        return;
    }
    session_run(session, context);
}

/* Fetches the requests that have come. Returns <0 on an error that no client caused. */
static int take_requests(bmi_context_id context)
{
    struct BMI_unexpected_info requests[BATCH];
    int count = 0;
    int status = BMI_testunexpected(BATCH, &count, requests, 0);

    for (int i = 0; i < count; i++) {
        session_start(&requests[i], context);
        BMI_unexpected_free(requests[i].addr, requests[i].buffer);
    }
    return status;
}

/* Waits for completions; a request ends the wait, too. Each session takes its step. */
static int take_completions(bmi_context_id context)
{
    bmi_op_id_t ops[BATCH];
    bmi_error_code_t errors[BATCH];
    bmi_size_t sizes[BATCH];
    void *sessions[BATCH];
    int count = 0;
    int status = BMI_testcontext(BATCH, ops, &count, errors, sizes, sessions, WAIT_MS, context);

    for (int i = 0; i < count; i++) {
        struct session *session = sessions[i];

        if (session->state == SEND_ANSWER)
            session->received = sizes[i];
        if (errors[i])
            session_end(session, errors[i]);
        else
            session_run(session, context);
    }
    return status;
}

int main(int argc, char **argv)
{
    const char *listen = argc > 1 ? argv[1] : "tcp://127.0.0.1:0";
    struct sigaction action = {.sa_handler = end};
    char url[BMI_MAX_ADDR_LEN];
    bmi_context_id context;
    /* Without this flag a server listens on all interfaces, for any host in the address. */
    int only_there = argc > 1 ? 0 : BMI_TCP_BIND_SPECIFIC;
    int status = BMI_initialize("bmi_tcp", listen, BMI_INIT_SERVER | only_there);

    if (status < 0) {
        fprintf(stderr, "statemachine_server: %s: %s\n", listen, bmi_status_string(status));
        return 1;
    }
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    BMI_open_context(&context);
    BMI_get_info(0, BMI_GET_LISTEN_ADDR, url);
    printf("%s\n", url);
    fflush(stdout);

    while (!ending && status >= 0) {
        status = take_requests(context);
        if (status >= 0)
            status = take_completions(context);
    }
    if (status < 0)
        fprintf(stderr, "statemachine_server: %s\n", bmi_status_string(status));
    BMI_close_context(context);
    BMI_finalize();
    return status < 0;
}
