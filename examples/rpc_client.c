/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc_client.c - the smallest client of remote procedure calls (bmi/rpc.h): calls the service
 * "greet" of a server (rpc_server.c) and prints its reply.
 *
 * usage: rpc_client tcp://host:port [NAME]
 */
#include <stdio.h>

#include <bmi/rpc.h>

/* Called by a test function when the reply is there. */
static int reply_unpack(struct bmi_message *reply, void *argument)
{
    const char *text;
    int status = bmi_unpack_string(reply, &text);

    if (status == 0)
        snprintf(argument, 200, "%s", text);
    return status;
}

int main(int argc, char **argv)
{
    static const struct bmi_rpc_options options = {.timeout_ms = 10000};
    char text[200];
    BMI_addr_t server;
    bmi_context_id context;
    bmi_op_id_t call;
    bmi_size_t size;
    bmi_error_code_t error = 0;
    int count = 0;
    /* A client names no methods: BMI starts that of the URL. */
    int status = BMI_initialize(NULL, NULL, 0);

    if (status < 0) {
        fprintf(stderr, "rpc_client: %s\n", bmi_status_string(status));
        return 1;
    }
    BMI_open_context(&context);
    status = BMI_addr_lookup(&server, argc > 1 ? argv[1] : ""); /* connects later, by itself */
    if (status == 0) {
        struct bmi_message *request = bmi_message_new();
        bmi_pack_string(request, argc > 2 ? argv[2] : "client");
        status = bmi_rpc_call(&call, server, "greet", request, reply_unpack, text, &options, NULL,
                              context); /* 0: pending; 1: done already */
    }
    while (status == 0 && count == 0)
        status = BMI_test(call, &count, &error, &size, NULL, 1000, context);
    status = status < 0 ? status : error;
    if (status)
        fprintf(stderr, "rpc_client: %s\n", bmi_status_string(status));
    else
        printf("%s\n", text);
    BMI_close_context(context);
    BMI_finalize();
    return status ? 1 : 0;
}
