/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gateway.c - two instances of BMI in a process (bmi/instance.h): one serves the clients of this
 * host over gm, the other one is a client of a server over tcp. The gateway passes requests of the
 * first side on to the second, and the answers back, in one thread that waits for both.
 *
 *     gateway_server                              prints tcp://127.0.0.1:PORT
 *     gateway tcp://127.0.0.1:PORT [LISTEN]       prints gm://localhost:PORT, or LISTEN (gm)
 *     gateway_client gm://localhost:PORT 0 100    reads 100 blocks
 *
 * SIGINT or SIGTERM ends it, after it has answered the requests that it has.
 */
#include <bmi/instance.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>

#include "gateway.h"

enum { MOST = 64 }; /* requests at a time, each with memory for a block */

/* An instance, and what the loop needs of it. */
struct side {
    struct bmi_instance *instance;
    bmi_context_id context;
    int fd; /* readable while the instance has something to report or to do */
};
static struct side front, back; /* towards clients; towards the server */
static BMI_addr_t server;       /* an address of `back` */

static void check(const char *what, int status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "gateway: %s: %s\n", what, bmi_status_string(status));
    exit(1);
}

/* Each instance has its own methods and settings. The latter are ahead of the environment's. */
static void side_open(struct side *side, const struct bmi_instance_options *options)
{
    struct bmi_context_fd descriptor = {0};
    check(options->listen != NULL ? options->listen : options->name,
          bmi_instance_open(&side->instance, options));
    check("context", bmi_instance_open_context(side->instance, &side->context));
    descriptor.context = side->context;
    check("descriptor", bmi_instance_get_info(side->instance, BMI_GET_CONTEXT_FD, &descriptor));
    side->fd = descriptor.fd;
}

/* Many clients, of which each gets little memory for requests that wait. */
static void front_open(const char *listen)
{
    const struct bmi_instance_options options = {
        .name = "front",
        .methods = "bmi_gm",
        .listen = listen,
        .settings = "peer_memory=64K",
        .flags = BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC | BMI_AUTO_REF_COUNT,
    };
    side_open(&front, &options);
}

/* One server: its answers arrive also while the loop is busy with clients, and after 5 s of silence
 * its requests fail. No method is named: the look-up starts it. */
static void back_open(const char *url)
{
    const struct bmi_instance_options options = {
        .name = "back",
        .settings = "progress=background,peer_timeout_ms=5000",
    };
    side_open(&back, &options);
    check(url, bmi_instance_addr_lookup(back.instance, &server, url));
}

static void side_close(struct side *side)
{
    struct bmi_statistics sum; /* of this instance */
    check("statistics", bmi_instance_get_info(side->instance, BMI_GET_STATISTICS, &sum));
    printf("%s: requests: %d received, %d sent; answers: %d received, %d sent\n",
           bmi_instance_name(side->instance), (int)sum.unexpected_received,
           (int)sum.unexpected_sent, (int)sum.messages_received, (int)sum.messages_sent);
    check("close", bmi_instance_close(side->instance)); /* with its context and addresses */
}

/* ---- a request ------------------------------------------------------------------------------- */

/* From the arrival of a request until its answer is sent. */
struct exchange {
    struct BMI_unexpected_info request; /* its address is one of `front` */
    bmi_msg_tag_t tag;                  /* of the request to the server; 0: none */
    bmi_op_id_t receive;                /* of the server's answer */
    struct gateway_answer *answer;
    bmi_size_t size;        /* of the answer */
    bmi_error_code_t error; /* sent instead of the answer */
    int pending;            /* operations that have not completed */
    bool answering;         /* the one that is pending sends the answer */
};
static int exchanges;
static bool ending;

/* The request's buffer goes back only now, so `peer_memory` bounds the requests of one client. */
static void finish(struct exchange *exchange, bmi_error_code_t error)
{
    BMI_addr_t client = exchange->request.addr;
    if (error != 0) /* that client has disconnected; the others have not */
        fprintf(stderr, "gateway: an answer: %s\n", bmi_status_string(error));
    if (exchange->tag > 0)
        bmi_tag_give(server, exchange->tag);
    if (exchange->answer != NULL)
        BMI_memfree(client, exchange->answer, sizeof *exchange->answer, BMI_SEND);
    BMI_unexpected_free(client, exchange->request.buffer);
    BMI_set_info(client, BMI_DEC_ADDR_REF, NULL); /* BMI_AUTO_REF_COUNT has added it */
    free(exchange);
    exchanges--;
}

static void answer(struct exchange *exchange)
{
    const struct BMI_unexpected_info *request = &exchange->request;
    const bool refused = exchange->error != 0;
    bmi_op_id_t op;
    int posted =
        BMI_post_send(&op, request->addr, refused ? (void *)&exchange->error : exchange->answer,
                      refused ? (bmi_size_t)sizeof exchange->error : exchange->size,
                      refused ? BMI_EXT_ALLOC : BMI_PRE_ALLOC, request->tag, exchange,
                      front.context, NULL);
    exchange->answering = true;
    exchange->pending = posted == 0;
    if (posted != 0) /* 1: done already, no test call reports it */
        finish(exchange, posted < 0 ? posted : 0);
}

/* Takes the result of an operation with the server. After the last one the client is answered. */
static void asked(struct exchange *exchange, bmi_error_code_t error)
{
    if (exchange->error == 0) /* the first error is the cause */
        exchange->error = error;
    if (exchange->pending == 0)
        answer(exchange);
    else if (error != 0) /* a request that failed gets no answer */
        BMI_cancel(exchange->receive, back.context);
}

/* Asks the server, through the other instance. Clients may use the same tags, so the request gets
 * another one. An operation's address and context must belong to one instance; memory need not:
 * that of gm is plain memory for tcp (BMI_EXT_ALLOC). */
static void pass_on(struct exchange *exchange)
{
    const struct BMI_unexpected_info *request = &exchange->request;
    bmi_op_id_t op;
    int posted = exchange->tag = bmi_tag_take(server);
    if (posted > 0)
        posted = BMI_post_recv(&exchange->receive, server, exchange->answer,
                               sizeof *exchange->answer, &exchange->size, BMI_EXT_ALLOC,
                               exchange->tag, exchange, back.context, NULL);
    exchange->pending = posted == 0;
    if (posted >= 0)
        posted = BMI_post_sendunexpected(&op, server, request->buffer, request->size, BMI_EXT_ALLOC,
                                         exchange->tag, exchange, back.context, NULL);
    exchange->pending += posted == 0;
    asked(exchange, posted < 0 ? posted : 0);
}

static void begin(const struct BMI_unexpected_info *request)
{
    struct exchange *exchange = calloc(1, sizeof *exchange);
    check("a request", exchange != NULL ? 0 : -BMI_ENOMEM);
    exchange->request = *request;
    const bool full = ++exchanges > MOST || ending;
    if (!full)
        exchange->answer = BMI_memalloc(request->addr, sizeof *exchange->answer, BMI_SEND);
    if (exchange->answer != NULL) {
        pass_on(exchange);
    } else {
        exchange->error = full ? -BMI_EAGAIN : -BMI_ENOMEM;
        answer(exchange);
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* Fetches a completion of one instance. Returns whether there was one. */
static bool complete(const struct side *side)
{
    bmi_op_id_t op;
    bmi_error_code_t error;
    bmi_size_t size;
    void *user;
    int count = 0;
    check("test", BMI_testcontext(1, &op, &count, &error, &size, &user, 0, side->context));
    if (count == 0)
        return false;
    struct exchange *exchange = user;
    exchange->pending--;
    if (op == exchange->receive)
        exchange->size = size;
    if (exchange->answering)
        finish(exchange, error);
    else
        asked(exchange, error);
    return true;
}

/* A test call reports of one instance only, so each gets its turn. When none has anything, the
 * thread sleeps until a descriptor of either, or a signal, wakes it. */
static void serve(int signal_fd)
{
    struct pollfd fds[] = {{.fd = signal_fd, .events = POLLIN},
                           {.fd = front.fd, .events = POLLIN},
                           {.fd = back.fd, .events = POLLIN}};
    while (!ending || exchanges > 0) {
        struct BMI_unexpected_info request;
        int count = 0, busy = complete(&front) + complete(&back);
        check("requests", bmi_instance_testunexpected(front.instance, 1, &count, &request, 0));
        if (count > 0)
            begin(&request);
        poll(fds, 3, busy + count > 0 ? 0 : -1);
        if (fds[0].revents != 0) {
            ending = true;
            fds[0].fd = -1; /* poll leaves it out */
        }
    }
}

int main(int argc, char **argv)
{
    char url[BMI_MAX_ADDR_LEN];
    sigset_t signals;
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: gateway SERVER [LISTEN]\n");
        return 2;
    }
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, NULL); /* before an instance starts threads */
    front_open(argc > 2 ? argv[2] : "gm://localhost:0");
    back_open(argv[1]);
    check("URL", bmi_instance_get_info(front.instance, BMI_GET_LISTEN_ADDR, url));
    printf("%s\n", url);
    fflush(stdout);
    serve(signalfd(-1, &signals, SFD_CLOEXEC));
    side_close(&front);
    side_close(&back);
    return 0;
}
