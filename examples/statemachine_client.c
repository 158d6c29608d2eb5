/* SPDX-License-Identifier: BSD-3-Clause
 *
 * statemachine_client.c - sends many requests at once to statemachine_server.c and checks the
 * answers.
 *
 * usage: statemachine_client URL [requests [bytes]]       default: 100 requests of 100000 bytes
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <bmi.h>

enum { BATCH = 64, WAIT_MS = 10000 };

struct request {
    char text[40];
    char answer[24]; /* zeroed, so that the answer is a string */
};

/* The number of operations to wait for, and the first error. */
struct progress {
    int outstanding;
    int status;
};

/* Counts a post: 0 is one more operation to wait for, 1 was done at once. */
static void posted(struct progress *progress, int result)
{
    if (result == 0)
        progress->outstanding++;
    else if (result < 0 && progress->status == 0)
        progress->status = result;
}

/* A request is three operations under a tag of its own: the answer's receive is posted first. */
static void request_post(struct request *request, bmi_msg_tag_t tag, BMI_addr_t server,
                         const void *body, bmi_size_t body_size, bmi_context_id context,
                         struct progress *progress)
{
    bmi_op_id_t op;
    bmi_size_t size;

    snprintf(request->text, sizeof(request->text), "sum %" PRId64, body_size);
    posted(progress, BMI_post_recv(&op, server, request->answer, sizeof(request->answer) - 1, &size,
                                   BMI_EXT_ALLOC, tag, NULL, context, NULL));
    posted(progress,
           BMI_post_sendunexpected(&op, server, request->text, (bmi_size_t)strlen(request->text),
                                   BMI_EXT_ALLOC, tag, NULL, context, NULL));
    posted(progress,
           BMI_post_send(&op, server, body, body_size, BMI_EXT_ALLOC, tag, NULL, context, NULL));
}

static void wait_all(struct progress *progress, bmi_context_id context)
{
    while (progress->outstanding > 0 && progress->status == 0) {
        bmi_op_id_t ops[BATCH];
        bmi_error_code_t errors[BATCH];
        bmi_size_t sizes[BATCH];
        int count = 0;
        int result = BMI_testcontext(BATCH, ops, &count, errors, sizes, NULL, WAIT_MS, context);

        if (result < 0)
            progress->status = result;
        else if (count == 0)
            progress->status = -BMI_ETIMEDOUT;
        for (int i = 0; i < count; i++)
            if (errors[i] && progress->status == 0)
                progress->status = errors[i];
        progress->outstanding -= count;
    }
}

/* Returns how many answers are wrong. */
static int check_answers(const struct request *requests, int count, uint64_t sum)
{
    int wrong = 0;

    for (int i = 0; i < count; i++)
        if (strtoull(requests[i].answer, NULL, 10) != sum)
            wrong++;
    return wrong;
}

int main(int argc, char **argv)
{
    int count = argc > 2 ? atoi(argv[2]) : 100;
    bmi_size_t body_size = argc > 3 ? atol(argv[3]) : 100000;
    struct progress progress = {.outstanding = 0};
    struct request *requests;
    unsigned char *body;
    bmi_context_id context;
    BMI_addr_t server;
    uint64_t sum = 0;
    int wrong;

    if (argc < 2 || argc > 4 || count < 1 || body_size < 1) {
        fprintf(stderr, "usage: statemachine_client URL [requests [bytes]]\n");
        return 2;
    }
    requests = calloc((size_t)count, sizeof(*requests));
    body = malloc((size_t)body_size);
    if (!requests || !body) {
        perror("statemachine_client");
        return 1;
    }
    for (bmi_size_t i = 0; i < body_size; i++)
        sum += body[i] = (unsigned char)(i * 7);

    BMI_initialize(NULL, NULL, 0);
    BMI_open_context(&context);
    progress.status = BMI_addr_lookup(&server, argv[1]);
    for (int i = 0; i < count && progress.status == 0; i++)
        request_post(&requests[i], i, server, body, body_size, context, &progress);
    wait_all(&progress, context);
    BMI_close_context(context); /* cancels what an error left outstanding: buffers are ours again */
    BMI_finalize();

    wrong = check_answers(requests, count, sum);
    if (progress.status)
        fprintf(stderr, "statemachine_client: %s\n", bmi_status_string(progress.status));
    else
        printf("%d answers, %d wrong\n", count, wrong);
    free(body);
    free(requests);
    return progress.status || wrong;
}
