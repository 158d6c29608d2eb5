/* SPDX-License-Identifier: BSD-3-Clause
 *
 * hello_client.c - the smallest client: sends a message to a server (hello_server.c) and prints its
 * answer.
 *
 * usage: hello_client tcp://host:port
 */
#include <stdio.h>

#include <bmi.h>

/* Waits for one operation. `posted` is the result of its post: 0 pending, 1 done already (then no
 * test call reports it), below 0 an error. Returns 0 or the error. */
static int finish(int posted, bmi_op_id_t op, bmi_context_id context)
{
    bmi_error_code_t error = 0;
    bmi_size_t size;
    int count = 0;

    while (posted == 0 && count == 0)
        if (BMI_test(op, &count, &error, &size, NULL, 10000, context) < 0)
            return -1;
    return posted < 0 ? posted : error;
}

int main(int argc, char **argv)
{
    enum { TAG = 1 }; /* the answer has the same tag as the request */
    static const char hello[] = "hello, server";
    char answer[100];
    BMI_addr_t server;
    bmi_context_id context;
    bmi_op_id_t receive, send;
    bmi_size_t size;
    int receiving, sending;
    /* A client names no methods: BMI starts that of the URL. */
    int status = BMI_initialize(NULL, NULL, 0);

    if (status < 0) {
        fprintf(stderr, "hello_client: %s\n", bmi_status_string(status));
        return 1;
    }
    BMI_open_context(&context);
    status = BMI_addr_lookup(&server, argc > 1 ? argv[1] : ""); /* connects later, by itself */
    if (status == 0) {
        /* Post the receive first: then the answer finds it when it comes. */
        receiving = BMI_post_recv(&receive, server, answer, sizeof(answer) - 1, &size,
                                  BMI_EXT_ALLOC, TAG, NULL, context, NULL);
        sending = BMI_post_sendunexpected(&send, server, hello, sizeof(hello) - 1, BMI_EXT_ALLOC,
                                          TAG, NULL, context, NULL);
        status = finish(sending, send, context);
        if (status == 0)
            status = finish(receiving, receive, context);
    }
    if (status)
        fprintf(stderr, "hello_client: %s\n", bmi_status_string(status));
    else
        printf("%s\n", answer);
    BMI_close_context(context);
    BMI_finalize();
    return status ? 1 : 0;
}
