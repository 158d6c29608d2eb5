/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gateway_server.c - has blocks of bytes, for gateway.c and gateway_client.c. It uses the default
 * instance only. SIGINT or SIGTERM ends it.
 *
 * usage: gateway_server [LISTEN]     default: a free tcp port of 127.0.0.1; prints its URL
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "gateway.h"

static volatile sig_atomic_t ended;

static void end(int number)
{
    (void)number;
    ended = 1;
}

/* Makes the answer to a request. Returns its size. */
static bmi_size_t answer_make(const struct BMI_unexpected_info *request,
                              struct gateway_answer *answer)
{
    uint64_t block = GATEWAY_BLOCKS;
    answer->error = request->size == sizeof block ? 0 : -BMI_EPROTO;
    if (answer->error == 0)
        memcpy(&block, request->buffer, sizeof block);
    if (answer->error == 0 && block >= GATEWAY_BLOCKS)
        answer->error = -BMI_ENOENT;
    if (answer->error != 0)
        return sizeof answer->error;
    for (uint64_t i = 0; i < GATEWAY_BLOCK; i++)
        answer->bytes[i] = gateway_byte(block, i);
    return sizeof *answer;
}

/* Answers one request, and waits until the answer is sent. Returns 0 or an error. */
static int serve(const struct BMI_unexpected_info *request, bmi_context_id context)
{
    static struct gateway_answer answer;
    bmi_op_id_t op;
    bmi_error_code_t error = 0;
    int count = 0;
    int posted = BMI_post_send(&op, request->addr, &answer, answer_make(request, &answer),
                               BMI_EXT_ALLOC, request->tag, NULL, context, NULL);
    while (posted == 0 && count == 0) {
        int status = BMI_test(op, &count, &error, NULL, NULL, 10000, context);
        if (status < 0)
            return status;
    }
    return posted < 0 ? posted : error;
}

int main(int argc, char **argv)
{
    const char *listen = argc > 1 ? argv[1] : "tcp://127.0.0.1:0";
    char url[BMI_MAX_ADDR_LEN], method[32];
    bmi_context_id context;
    struct BMI_unexpected_info request;
    int count = 0;
    signal(SIGINT, end);
    signal(SIGTERM, end);
    snprintf(method, sizeof method, "%.*s", (int)strcspn(listen, ":"), listen);
    int status = BMI_initialize(method, listen, BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC);
    if (status < 0) {
        fprintf(stderr, "gateway_server: %s: %s\n", listen, bmi_status_string(status));
        return 1;
    }
    BMI_open_context(&context);
    BMI_get_info(0, BMI_GET_LISTEN_ADDR, url);
    printf("%s\n", url);
    fflush(stdout);
    while (!ended && BMI_testunexpected(1, &count, &request, 100) >= 0) { /* ms, until a signal */
        if (count == 0)
            continue;
        status = serve(&request, context);
        if (status < 0) /* that client has disconnected; the others have not */
            fprintf(stderr, "gateway_server: %s\n", bmi_status_string(status));
        BMI_unexpected_free(request.addr, request.buffer);
    }
    BMI_close_context(context);
    return BMI_finalize() < 0;
}
