/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gateway_client.c - reads blocks from gateway.c, or from gateway_server.c, and checks their bytes.
 *
 * usage: gateway_client URL FIRST COUNT
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "gateway.h"

static bmi_context_id context;
static BMI_addr_t server;

static void check(const char *what, int status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "gateway_client: %s: %s\n", what, bmi_status_string(status));
    exit(1);
}

/* Waits for an operation, by the result of its post. */
static void finish(const char *what, int posted, bmi_op_id_t op, bmi_size_t *size)
{
    bmi_error_code_t error = 0;
    int count = 0;
    while (posted == 0 && count == 0)
        check(what, BMI_test(op, &count, &error, size, NULL, 10000, context));
    check(what, posted < 0 ? posted : error);
}

/* The memory is of BMI_memalloc: over gm the peer writes to it directly. */
static void read_block(uint64_t block, struct gateway_answer *answer)
{
    enum { TAG = 1 };
    bmi_op_id_t receive, send;
    bmi_size_t size = 0;
    int receiving = BMI_post_recv(&receive, server, answer, sizeof *answer, &size, BMI_PRE_ALLOC,
                                  TAG, NULL, context, NULL);
    int sending = BMI_post_sendunexpected(&send, server, &block, sizeof block, BMI_EXT_ALLOC, TAG,
                                          NULL, context, NULL);
    finish("request", sending, send, NULL);
    finish("answer", receiving, receive, &size);
    check("answer", size >= (bmi_size_t)sizeof answer->error ? answer->error : -BMI_EPROTO);
    bool right = size == sizeof *answer;
    for (uint64_t i = 0; right && i < GATEWAY_BLOCK; i++)
        right = answer->bytes[i] == gateway_byte(block, i);
    check("bytes of the block", right ? 0 : -BMI_EBADMSG);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: gateway_client URL FIRST COUNT\n");
        return 2;
    }
    uint64_t first = strtoull(argv[2], NULL, 10), count = strtoull(argv[3], NULL, 10);
    check("BMI_initialize", BMI_initialize(NULL, NULL, 0));
    check("BMI_open_context", BMI_open_context(&context));
    check(argv[1], BMI_addr_lookup(&server, argv[1]));
    struct gateway_answer *answer = BMI_memalloc(server, sizeof *answer, BMI_RECV);
    check("memory", answer != NULL ? 0 : -BMI_ENOMEM);
    for (uint64_t i = 0; i < count; i++)
        read_block(first + i, answer);
    printf("%llu blocks are right\n", (unsigned long long)count);
    BMI_memfree(server, answer, sizeof *answer, BMI_RECV);
    BMI_close_context(context);
    return BMI_finalize() < 0;
}
