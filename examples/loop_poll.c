/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loop_poll.c - poll(2) with the descriptor of a BMI context. docs/event-loops.md explains it.
 */
#include <poll.h>

#include "loop_message.h"

int main(void)
{
    bmi_context_id context;
    bmi_op_id_t op = 0;
    BMI_addr_t self = start();
    check("BMI_open_context", BMI_open_context(&context));
    struct bmi_context_fd descriptor = {.context = context};
    check("BMI_get_info", BMI_get_info(0, BMI_GET_CONTEXT_FD, &descriptor));
    int posted =
        BMI_post_sendunexpected(&op, self, "hello", 6, BMI_EXT_ALLOC, 1, NULL, context, NULL);
    check("BMI_post_sendunexpected", posted);

    int sent = posted == 1, received = 0;
    while (!sent || !received) {
        struct BMI_unexpected_info info;
        bmi_error_code_t error = 0;
        int ended = 0, messages = 0;
        /* fetch all completions and messages before the next sleep */
        check("BMI_testcontext", BMI_testcontext(1, &op, &ended, &error, NULL, NULL, 0, context));
        check("BMI_testunexpected", BMI_testunexpected(1, &messages, &info, 0));
        check("send", error);
        sent += ended;
        if (messages > 0) {
            printf("%s\n", (char *)info.buffer);
            BMI_unexpected_free(info.addr, info.buffer);
            received = 1;
        }
        if (ended == 0 && messages == 0) {
            struct pollfd fds[] = {{.fd = descriptor.fd, .events = POLLIN}}; /* and your own */
            poll(fds, 1, -1);
        }
    }
    BMI_close_context(context);
    return BMI_finalize() != 0;
}
