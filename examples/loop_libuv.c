/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loop_libuv.c - a program in a libuv loop: the descriptor of a job context is a uv_poll_t, beside
 * a timer of libuv's. docs/event-loops.md explains it.
 */
#include <bmi/job.h>
#include <uv.h>

#include "loop_message.h"

static struct bmi_job_context *context;
static struct BMI_unexpected_info info;
static int left;
static uv_poll_t poll_handle;
static uv_timer_t timer;

/* Takes all jobs that have ended. */
static void jobs_take(void)
{
    struct bmi_job_status status;
    int count = 0;
    while (bmi_job_testcontext(context, 1, &count, &status, 0) == 1) {
        check("job", status.error);
        if (status.kind == BMI_JOB_UNEXPECTED) {
            printf("%s\n", (char *)info.buffer);
            BMI_unexpected_free(info.addr, info.buffer);
        }
        left--;
    }
    if (left == 0) { /* the loop ends when it has no handle left */
        uv_poll_stop(&poll_handle);
        uv_timer_stop(&timer);
    }
}

static void readable(uv_poll_t *handle, int status, int events)
{
    (void)handle, (void)status, (void)events;
    jobs_take();
}

static void tick(uv_timer_t *handle)
{
    (void)handle; /* libuv's own handles run beside */
}

int main(void)
{
    BMI_addr_t self = start();
    check("bmi_job_context_open", bmi_job_context_open(0, &context));
    uv_loop_t *loop = uv_default_loop();
    uv_poll_init(loop, &poll_handle, bmi_job_context_fd(context));
    uv_timer_init(loop, &timer);
    uv_timer_start(&timer, tick, 1, 1);
    uv_poll_start(&poll_handle, UV_READABLE, readable);

    check("bmi_job_unexpected", bmi_job_unexpected(context, &info, NULL, NULL, NULL));
    int sent =
        bmi_job_sendunexpected(context, self, "hello", 6, BMI_EXT_ALLOC, 1, NULL, NULL, NULL);
    check("bmi_job_sendunexpected", sent);
    left = 1 + (sent == 0);
    jobs_take(); /* a post may have completed within the call, or the message may be
                    there already */
    uv_run(loop, UV_RUN_DEFAULT);

    uv_close((uv_handle_t *)&poll_handle, NULL); /* before the context: it closes the descriptor */
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(loop, UV_RUN_DEFAULT);
    uv_loop_close(loop);
    bmi_job_context_close(context);
    return BMI_finalize() != 0;
}
