/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hello_server.c - the smallest server: gets a message from any client, and answers it.
 *
 * usage: hello_server [URL]     default: a free port of 127.0.0.1; prints its URL.
 * With an address it listens on all interfaces.
 */
#include <stdio.h>
#include <string.h>

#include <bmi.h>

/* Answers one request: to its sender, under its tag. Returns 0 or an error. */
static int answer(const struct BMI_unexpected_info *request, bmi_context_id context)
{
    static const char text[] = "hello, client";
    bmi_op_id_t op;
    bmi_size_t size;
    bmi_error_code_t error = 0;
    int count = 0;
    int posted = BMI_post_send(&op, request->addr, text, sizeof(text), BMI_EXT_ALLOC, request->tag,
                               NULL, context, NULL);

    while (posted == 0 && count == 0) /* 0: pending; 1: done already, no test call reports it */
        if (BMI_test(op, &count, &error, &size, NULL, 10000, context) < 0)
            return -1;
    return posted < 0 ? posted : error;
}

int main(int argc, char **argv)
{
    const char *listen = argc > 1 ? argv[1] : "tcp://127.0.0.1:0";
    char url[BMI_MAX_ADDR_LEN], method[32]; /* a scheme names its method: "tcp" */
    bmi_context_id context;                 /* queues the completions of our posts */
    struct BMI_unexpected_info request;
    /* Without this flag a server listens on all interfaces, for any host in the address. */
    int only_there = argc > 1 ? 0 : BMI_TCP_BIND_SPECIFIC;
    int count;
    snprintf(method, sizeof method, "%.*s", (int)strcspn(listen, ":"), listen);
    int status = BMI_initialize(method, listen, BMI_INIT_SERVER | only_there);

    if (status < 0) {
        fprintf(stderr, "hello_server: %s: %s\n", listen, bmi_status_string(status));
        return 1;
    }
    BMI_open_context(&context);
    BMI_get_info(0, BMI_GET_LISTEN_ADDR, url); /* has the port that was chosen */
    printf("%s\n", url);
    fflush(stdout);

    /* An unexpected message needs no receive: so a server gets the requests of its clients. */
    while (BMI_testunexpected(1, &count, &request, 10000) >= 0) {
        if (count == 0)
            continue;
        printf("got \"%.*s\"\n", (int)request.size, (const char *)request.buffer);
        fflush(stdout);
        status = answer(&request, context);
        if (status) /* that client has disconnected; the others have not */
            fprintf(stderr, "hello_server: %s\n", bmi_status_string(status));
        BMI_unexpected_free(request.addr, request.buffer);
    }
}
