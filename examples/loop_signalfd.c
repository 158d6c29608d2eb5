/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loop_signalfd.c - a signal in a loop: as a descriptor of the program's own beside the context's,
 * and as a job. docs/event-loops.md explains it.
 */
#include <bmi/job.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "loop_message.h"

/* The program's own signalfd(2), beside the descriptor of the context. */
static void own_descriptor(struct bmi_job_context *context, const sigset_t *signals)
{
    int fd = signalfd(-1, signals, SFD_CLOEXEC);
    struct pollfd fds[] = {{.fd = fd, .events = POLLIN},
                           {.fd = bmi_job_context_fd(context), .events = POLLIN}};
    struct signalfd_siginfo info;
    struct bmi_job_status status;
    int count = 0;
    while ((fds[0].revents & POLLIN) == 0) {
        check("bmi_job_testcontext", bmi_job_testcontext(context, 1, &count, &status, 0));
        if (count == 0)
            poll(fds, 2, -1);
    }
    if (read(fd, &info, sizeof info) == sizeof info)
        printf("signal %u\n", info.ssi_signo);
    close(fd);
}

/* A job: a wait in any test call ends with it. */
static void as_a_job(struct bmi_job_context *context)
{
    struct bmi_job_status status;
    int count = 0;
    check("bmi_job_signal", bmi_job_signal(context, SIGINT, NULL, NULL, NULL));
    raise(SIGINT);
    while (count == 0)
        check("bmi_job_testcontext", bmi_job_testcontext(context, 1, &count, &status, 1000));
    printf("signal %d\n", (int)status.actual);
}

int main(void)
{
    struct bmi_job_context *context;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL); /* before BMI has threads */
    start();
    check("bmi_job_context_open", bmi_job_context_open(0, &context));
    raise(SIGINT);
    own_descriptor(context, &signals);
    as_a_job(context);
    bmi_job_context_close(context);
    return BMI_finalize() != 0;
}
