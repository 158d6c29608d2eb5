/* SPDX-License-Identifier: BSD-3-Clause
 *
 * testcost.c - the cost of one BMI_testcontext call while `size` operations are outstanding.
 *
 * The client posts that many receives, each under a tag of its own, that no message matches.
 * `testcost` then times calls that find no completion, `reapcost` calls that report one (of a
 * receive that was cancelled just before). At the end all are cancelled and fetched.
 */
#include "bmi_side.h"

#include <stdlib.h>

static void testcost_serve(struct bmi_side *side, const struct work *work, bmi_peer client)
{
    acknowledge_and_await(side, client, work, NULL);
}

struct waiting {
    bmi_op_id_t *ids;
    uint8_t (*buffers)[24];
    uint32_t count;
};

static void receive_post(const struct bmi_client *client, struct waiting *waiting, uint32_t place)
{
    bmi_size_t actual;
    /* Above the tags of samples, so nothing matches. */
    bmi_msg_tag_t tag = (bmi_msg_tag_t)(0x40000000u + place);
    int status = BMI_post_recv(&waiting->ids[place], client->servers[0], waiting->buffers[place],
                               sizeof waiting->buffers[place], &actual, BMI_EXT_ALLOC, tag, NULL,
                               client->side.context, NULL);
    bmi_check(status, "BMI_post_recv");
    if (status > 0)
        die("a receive that nothing matches completed at once");
}

/* Fetches at most one completion. Returns: completions. */
static int context_test(const struct bmi_client *client, int wait_ms)
{
    bmi_op_id_t id;
    bmi_error_code_t error;
    int count = 0;
    bmi_check(BMI_testcontext(1, &id, &count, &error, NULL, NULL, wait_ms, client->side.context),
              "BMI_testcontext");
    if (count > 0 && error != -BMI_ECANCEL)
        die("a cancelled receive ended with: %s", bmi_status_string(error));
    return count;
}

static void cancelled_await(const struct bmi_client *client)
{
    uint64_t start = now_ns();
    while (context_test(client, WAIT_MS) == 0)
        if (seconds_since(start) > client->side.timeout_s)
            die("a cancelled receive does not complete");
}

static void waiting_open(struct waiting *waiting, struct bmi_client *client,
                         const struct work *work)
{
    client_ask(client, 0, work); /* connects */
    waiting->count = work->size;
    waiting->ids = allocate(work->size * sizeof *waiting->ids);
    waiting->buffers = allocate(work->size * sizeof *waiting->buffers);
    for (uint32_t i = 0; i < work->size; i++)
        receive_post(client, waiting, i);
    /* A round trip, after which all traffic that the posts caused towards the peer has gone. */
    client_ask(client, 0, work);
}

static void waiting_close(struct waiting *waiting, const struct bmi_client *client)
{
    for (uint32_t i = 0; i < waiting->count; i++)
        bmi_check(BMI_cancel(waiting->ids[i], client->side.context), "BMI_cancel");
    for (uint32_t i = 0; i < waiting->count; i++)
        cancelled_await(client);
    free(waiting->ids);
    free(waiting->buffers);
}

static double testcost_run(struct bmi_client *client, const struct work *work)
{
    struct waiting waiting;
    waiting_open(&waiting, client, work);
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < work->amount; i++)
        if (context_test(client, 0) != 0)
            die("a completion where there can be none");
    double seconds = seconds_since(start);
    waiting_close(&waiting, client);
    return seconds;
}

static double reapcost_run(struct bmi_client *client, const struct work *work)
{
    struct waiting waiting;
    double seconds = 0;
    waiting_open(&waiting, client, work);
    for (uint64_t i = 0; i < work->amount; i++) {
        uint32_t place = (uint32_t)(i % work->size);
        bmi_check(BMI_cancel(waiting.ids[place], client->side.context), "BMI_cancel");
        uint64_t start = now_ns();
        int count = context_test(client, 0);
        seconds += seconds_since(start);
        if (count == 0)
            cancelled_await(client);
        receive_post(client, &waiting, place);
    }
    waiting_close(&waiting, client);
    return seconds;
}

static double value_call(double slowest, const struct work *work, int pairs)
{
    (void)pairs;
    return slowest / (double)work->amount * 1e6;
}

/* The two differ in the timed calls, not in how the samples are taken. */
#define COST(NAME, SUMMARY, RUN)                                                            \
    {                                                                                       \
        .name = NAME, .summary = SUMMARY, .unit = "us", .size_name = "outstanding",         \
        .sizes = "10,100000", .amount = "20000", .less_is_better = true, .one_pair = true,  \
        .takes = TAKES_PARTICIPANTS | TAKES_SIZE | TAKES_MESSAGES,                          \
        .contenders = BIT(CONTENDER_BMI), .value = value_call, .serve_bmi = testcost_serve, \
        .run_bmi = RUN,                                                                     \
    }

const struct pattern pattern_testcost =
    COST("testcost", "cost of a BMI_testcontext call that finds nothing, by outstanding operations",
         testcost_run);
const struct pattern pattern_reapcost =
    COST("reapcost", "cost of a BMI_testcontext call that reports one completion, likewise",
         reapcost_run);
