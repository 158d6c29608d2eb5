/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loop_epoll.c - epoll(7) with the descriptor of a job context. docs/event-loops.md explains it.
 */
#include <bmi/job.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "loop_message.h"

int main(void)
{
    struct bmi_job_context *context;
    struct BMI_unexpected_info info;
    struct epoll_event in = {.events = EPOLLIN};
    BMI_addr_t self = start();
    check("bmi_job_context_open", bmi_job_context_open(0, &context));
    int set = epoll_create1(EPOLL_CLOEXEC), fd = bmi_job_context_fd(context);
    check("bmi_job_context_fd", fd);
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &in) != 0) /* level-triggered */
        return 1;

    check("bmi_job_unexpected", bmi_job_unexpected(context, &info, NULL, NULL, NULL));
    int sent =
        bmi_job_sendunexpected(context, self, "hello", 6, BMI_EXT_ALLOC, 1, NULL, NULL, NULL);
    check("bmi_job_sendunexpected", sent);
    for (int left = 1 + (sent == 0); left > 0;) {
        struct bmi_job_status status;
        struct epoll_event event;
        int count = 0;
        check("bmi_job_testcontext", bmi_job_testcontext(context, 1, &count, &status, 0));
        if (count == 0) { /* nothing is left: sleep */
            epoll_wait(set, &event, 1, -1);
            continue;
        }
        check("job", status.error);
        if (status.kind == BMI_JOB_UNEXPECTED) {
            printf("%s\n", (char *)info.buffer);
            BMI_unexpected_free(info.addr, info.buffer);
        }
        left--;
    }
    close(set);
    bmi_job_context_close(context);
    return BMI_finalize() != 0;
}
