/* SPDX-License-Identifier: BSD-3-Clause
 *
 * probes_traffic.c - passes each probe of docs/tracing.md. The process sends to itself messages
 * that wait for credit, makes a call, and loses a connection, over tcp; over gm it sends within the
 * post. It begins at the end of its input, and prints its numbers of posts and matches, for
 * probes_test.py.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <bmi.h>
#include <bmi/rpc.h>

enum {
    MESSAGES = 2000,
    BYTES = 2000,
    LARGE = 1 << 20,
    SMALL = 24,
    SMALLS = 20,
    TAG = 1,
    NEVER = 2
};

static bmi_context_id context;
static BMI_addr_t self;
static char memory[LARGE];
static int posts, receives;

static void must(int status, const char *what)
{
    if (status >= 0)
        return;
    fprintf(stderr, "%s: %s\n", what, bmi_status_string(status));
    exit(1);
}

/* Counts a post. Returns how many completions follow. */
static int posted(int status, const char *what)
{
    must(status, what);
    posts++;
    return status == 0;
}

/* Returns how many completed. */
static int progress(void)
{
    bmi_op_id_t ops[64];
    bmi_error_code_t errors[64];
    int count;
    must(BMI_testcontext(64, ops, &count, errors, NULL, NULL, 10, context), "testcontext");
    return count;
}

static void complete(int pending)
{
    while (pending > 0)
        pending -= progress();
}

static int send_post(bmi_size_t size)
{
    bmi_op_id_t op;
    return posted(BMI_post_send(&op, self, memory, size, BMI_EXT_ALLOC, TAG, NULL, context, NULL),
                  "post_send");
}

static int receive_post(bmi_size_t size, bmi_msg_tag_t tag)
{
    bmi_op_id_t op;
    static bmi_size_t actual;
    receives += tag == TAG;
    return posted(BMI_post_recv(&op, self, memory, size, &actual, BMI_EXT_ALLOC, tag, NULL, context,
                                NULL),
                  "post_recv");
}

/* The sends come first: some messages arrive without a receive, others wait for credit. */
static void unmatched(int count, bmi_size_t size)
{
    struct bmi_statistics statistics = {0};
    int pending = 0;
    for (int i = 0; i < count; i++)
        pending += send_post(size);
    while (statistics.unmatched_messages == 0) {
        pending -= progress();
        must(BMI_get_info(self, BMI_GET_STATISTICS, &statistics), "statistics");
    }
    for (int i = 0; i < count; i++)
        pending += receive_post(size, TAG);
    complete(pending);
}

/* The receives come first, until one was announced to its sender before that sent. */
static void announced(void)
{
    struct bmi_statistics statistics = {0};
    while (statistics.announced_sent == 0) {
        int pending = receive_post(LARGE, TAG);
        pending -= progress();
        pending += send_post(LARGE);
        complete(pending);
        must(BMI_get_info(self, BMI_GET_STATISTICS, &statistics), "statistics");
    }
}

/* The first small message between two passes of progress. */
static void sent_now(void)
{
    for (int i = 0; i < SMALLS; i++) {
        int pending = receive_post(SMALL, TAG);
        pending += send_post(SMALL);
        complete(pending);
    }
}

static void serve(struct bmi_rpc_request *request)
{
    bmi_rpc_reply(request, bmi_message_new());
}

static void call(void)
{
    static const struct bmi_rpc_service service = {.run = serve};
    bmi_op_id_t op;
    must(bmi_rpc_register("traffic", &service), "rpc_register");
    int status = bmi_rpc_call(&op, self, "traffic", NULL, NULL, NULL, NULL, NULL, context);
    complete(posted(status, "rpc_call"));
}

static void lose(void)
{
    int pending = receive_post(1, NEVER);
    must(BMI_set_info(self, BMI_TCP_CLOSE_SOCKET, NULL), "close_socket");
    complete(pending);
}

static void start(const char *method, const char *listen)
{
    char url[BMI_MAX_ADDR_LEN];
    must(BMI_initialize(method, listen, BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC), "initialize");
    must(BMI_open_context(&context), "open_context");
    must(BMI_get_info(0, BMI_GET_LISTEN_ADDR, url), "listen_addr");
    must(BMI_addr_lookup(&self, url), "addr_lookup");
}

static void end(void)
{
    BMI_close_context(context);
    must(BMI_finalize(), "finalize");
}

int main(void)
{
    while (getchar() != EOF)
        continue; /* the counters are not ready */
    start("bmi_tcp", "tcp://127.0.0.1:0");
    unmatched(MESSAGES, BYTES);
    unmatched(1, LARGE);
    announced();
    call();
    lose();
    end();
    start("bmi_gm", "gm://127.0.0.1:0"); /* a method that can send without an operation */
    sent_now();
    end();
    printf("posts %d matches %d\n", posts, receives);
    return 0;
}
