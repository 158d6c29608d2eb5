/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc_server.c - the smallest server of remote procedure calls (bmi/rpc.h): offers the service
 * "greet", which replies to a name with "hello, NAME".
 *
 * usage: rpc_server [URL]     default: a free port of 127.0.0.1; prints its URL.
 */
#include <stdio.h>
#include <string.h>

#include <bmi/rpc.h>

/* Called by the test function in main, when all of a request is there. */
static void greet(struct bmi_rpc_request *request)
{
    const char *name;
    char text[200];
    int status = bmi_unpack_string(bmi_rpc_arguments(request), &name);

    if (status < 0) {
        bmi_rpc_fail(request, status); /* the caller's call ends with that error */
        return;
    }
    snprintf(text, sizeof text, "hello, %s", name);
    struct bmi_message *reply = bmi_message_new();
    bmi_pack_string(reply, text); /* an error of packing also fails the call */
    bmi_rpc_reply(request, reply);
}

int main(int argc, char **argv)
{
    static const struct bmi_rpc_service service = {.run = greet};
    const char *listen = argc > 1 ? argv[1] : "tcp://127.0.0.1:0";
    char url[BMI_MAX_ADDR_LEN], method[32]; /* a scheme names its method: "tcp" */
    bmi_context_id context;
    bmi_op_id_t op;
    int count;
    snprintf(method, sizeof method, "%.*s", (int)strcspn(listen, ":"), listen);
    int status = BMI_initialize(method, listen, BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC);

    if (status == 0)
        status = bmi_rpc_register("greet", &service);
    if (status < 0) {
        fprintf(stderr, "rpc_server: %s: %s\n", listen, bmi_status_string(status));
        return 1;
    }
    BMI_open_context(&context);
    BMI_get_info(0, BMI_GET_LISTEN_ADDR, url); /* has the port that was chosen */
    printf("%s\n", url);
    fflush(stdout);
    /* Any test function makes progress; this server posts nothing of its own. */
    while (BMI_testcontext(1, &op, &count, &status, NULL, NULL, 10000, context) >= 0)
        continue;
}
