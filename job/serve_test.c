/* SPDX-License-Identifier: BSD-3-Clause
 *
 * serve_test.c - bmi_job_rpc and bmi_job_serve: calls as jobs, and a machine for each request.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "job/job_case.h"

enum { BODY = 300000 };

struct work {
    struct bmi_job_request base;
    char *body; /* the request's cheaper piece; then the reply's */
    bmi_size_t size;
    uint32_t wish; /* express */
};

/* What the machine does with the request. */
enum wish { REPLY, FORGET, FAIL, WAIT };

static atomic_int released, waiting, failed_waits;

static int arrived(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    struct work *work = bmi_rpc_data(request);
    int result = bmi_unpack_u32(arguments, &work->wish);
    if (result == 0)
        result = bmi_unpack_size(arguments, &work->size);
    if (result < 0)
        return result;
    work->body = malloc((size_t)work->size + 1);
    return work->body != NULL ? bmi_unpack(arguments, work->body, work->size, BMI_UNPACK_CHEAPER)
                              : -BMI_ENOMEM;
}

static void release(void *data)
{
    struct work *work = data;
    free(work->body);
    atomic_fetch_add(&released, 1);
}

static int begin(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    bmi_job_id_t id;
    CU_ASSERT_PTR_EQUAL(work->base.user_ptr, &released);
    if (work->wish != WAIT)
        return bmi_sm_posted(bmi_job_timer(bmi_sm_context(machine), bmi_job_deadline(1),
                                           BMI_SM_MINE(machine), NULL, NULL));
    int posted = bmi_job_event(bmi_sm_context(machine), BMI_SM_MINE(machine), &id, NULL);
    atomic_fetch_add(&waiting, 1);
    return bmi_sm_posted(posted);
}

static int answer(struct bmi_sm *machine, void *data)
{
    struct work *work = data;
    (void)machine;
    if (work->wish != REPLY)
        return work->wish == FAIL ? -BMI_ENOSPC : BMI_SM_DONE;
    struct bmi_message *reply = bmi_message_new();
    bmi_pack(reply, work->body, work->size, BMI_PACK_CHEAPER | BMI_UNPACK_CHEAPER);
    return bmi_rpc_reply(work->base.request, reply);
}

static int give_up(struct bmi_sm *machine, void *data)
{
    (void)data;
    atomic_fetch_add(&failed_waits, 1);
    return bmi_sm_last(machine);
}

enum { BEGIN, ANSWER, GIVE_UP };
static const struct bmi_sm_state states[] = {
    [BEGIN] = {.name = "begin", .action = begin, .on = {BMI_SM_OK(ANSWER), BMI_SM_FAIL(GIVE_UP)}},
    [ANSWER] = {.name = "answer", .action = answer, .on = {BMI_SM_ELSE(BMI_SM_END)}},
    [GIVE_UP] = {.name = "give up", .action = give_up, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table table = BMI_SM_TABLE("served", states);
static const struct bmi_job_service service = {.table = &table,
                                               .data_size = sizeof(struct work),
                                               .arrived = arrived,
                                               .release = release};

static bmi_job_id_t serve_begin(void)
{
    bmi_job_id_t id;
    const struct bmi_job_options options = {.user_ptr = &released};
    released = waiting = failed_waits = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_job_serve(job_case.context, "served", &service, &options, &id, NULL),
                          0);
    return id;
}

/* Runs the context until the value is reached. */
static bool reached(atomic_int *value, int wanted)
{
    uint64_t until_ns = bmi_job_deadline(PATIENCE_MS);
    while (atomic_load(value) < wanted && bmi_job_deadline(0) < until_ns) {
        bmi_job_id_t id;
        int posted = bmi_job_timer(job_case.context, bmi_job_deadline(1), NULL, &id, NULL);
        bmi_job_wait(job_case.context, id, NULL, posted, -1);
    }
    return atomic_load(value) >= wanted;
}

/* Cancels the serving job, whose machines have ended. */
static void serve_end(bmi_job_id_t id, int started)
{
    struct bmi_job_status status = {0};
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, id, &status, 0, 0), -BMI_ETIMEDOUT);
    CU_ASSERT_EQUAL(status.kind, BMI_JOB_SERVE);
    CU_ASSERT_EQUAL(status.actual, started);
    CU_ASSERT(reached(&released, started));
}

/* ---- the caller ------------------------------------------------------------------------------ */

static char sent[BODY], got[BODY];

static int unpack(struct bmi_message *reply, void *argument)
{
    bmi_size_t size;
    int result = bmi_unpack_size(reply, &size);
    if (result == 0 && size > BODY)
        result = -BMI_EMSGSIZE;
    return result < 0 ? result : bmi_unpack(reply, argument, size, BMI_UNPACK_CHEAPER);
}

static struct bmi_message *request_make(enum wish wish, bmi_size_t size)
{
    struct bmi_message *request = bmi_message_new();
    bmi_pack_u32(request, wish);
    bmi_pack(request, sent, size, BMI_PACK_CHEAPER | BMI_UNPACK_CHEAPER);
    return request;
}

static int call(enum wish wish, bmi_size_t size, const struct bmi_job_options *options,
                struct bmi_job_status *status)
{
    bmi_job_id_t id;
    int posted = bmi_job_rpc(job_case.context, job_case.self, "served", request_make(wish, size),
                             unpack, got, NULL, options, &id, status);
    CU_ASSERT(posted >= 0);
    return bmi_job_wait(job_case.context, id, status, posted, PATIENCE_MS);
}

static void replies(void)
{
    static const bmi_size_t sizes[] = {0, 1, 5000, BODY};
    bmi_job_id_t id = serve_begin();
    for (int i = 0; i < 4; i++) {
        struct bmi_job_status status = {0};
        memset(sent, 'a' + i, sizeof sent);
        memset(got, 0, sizeof got);
        CU_ASSERT_EQUAL(call(REPLY, sizes[i], NULL, &status), 0);
        CU_ASSERT_EQUAL(status.kind, BMI_JOB_RPC);
        CU_ASSERT(status.actual >= sizes[i]);
        CU_ASSERT_EQUAL(memcmp(sent, got, (size_t)sizes[i]), 0);
    }
    serve_end(id, 4);
}

/* A machine that has not ended its request when it ends. */
static void no_reply(void)
{
    bmi_job_id_t id = serve_begin();
    struct bmi_job_status status;
    CU_ASSERT_EQUAL(call(FORGET, 10, NULL, &status), -BMI_EREMOTE);
    CU_ASSERT_EQUAL(call(FAIL, 10, NULL, &status), -BMI_ENOSPC);
    serve_end(id, 2);
}

static void one_way(void)
{
    bmi_job_id_t id = serve_begin(), own;
    const struct bmi_rpc_options options = {.one_way = 1};
    int posted = bmi_job_rpc(job_case.context, job_case.self, "served", request_make(FORGET, BODY),
                             NULL, NULL, &options, NULL, &own, NULL);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, own, NULL, posted, PATIENCE_MS), 0);
    CU_ASSERT(reached(&released, 1));
    serve_end(id, 1);
}

/* The end of the call, by a deadline or a cancel, cancels the request's machine. */
static void cancelled(void)
{
    bmi_job_id_t id = serve_begin(), own;
    struct bmi_job_status status;
    struct bmi_job_options options = {.deadline_ns = bmi_job_deadline(300)};
    CU_ASSERT_EQUAL(call(WAIT, 10, &options, &status), -BMI_ETIMEDOUT);
    CU_ASSERT(reached(&released, 1));
    CU_ASSERT_EQUAL(failed_waits, waiting);
    int before = waiting;
    int posted = bmi_job_rpc(job_case.context, job_case.self, "served", request_make(WAIT, BODY),
                             NULL, NULL, NULL, NULL, &own, NULL);
    CU_ASSERT_EQUAL(posted, 0);
    CU_ASSERT(reached(&waiting, before + 1));
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, own), 0);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, own, NULL, posted, PATIENCE_MS), -BMI_ECANCEL);
    CU_ASSERT(reached(&failed_waits, before + 1));
    serve_end(id, before + 1);
}

/* A service that ends waits for its machines, and refuses later calls. */
static void ending(void)
{
    bmi_job_id_t id = serve_begin(), own;
    struct bmi_job_status status;
    int count;
    int posted = bmi_job_rpc(job_case.context, job_case.self, "served", request_make(WAIT, 10),
                             NULL, NULL, NULL, NULL, &own, NULL);
    CU_ASSERT(reached(&waiting, 1));
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    CU_ASSERT_EQUAL(call(REPLY, 10, NULL, &status), -BMI_ENOSYS);
    CU_ASSERT_EQUAL(bmi_job_test(job_case.context, id, &count, &status, 0), 0);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, own, NULL, posted, 0), -BMI_ETIMEDOUT);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, id, &status, 0, PATIENCE_MS), -BMI_ECANCEL);
    CU_ASSERT_EQUAL(status.actual, 1);
    CU_ASSERT(reached(&released, 1));
}

/* ---- calls of machines ----------------------------------------------------------------------- */

static int call_two(struct bmi_sm *machine, void *data)
{
    int result = 0;
    (void)data;
    for (int i = 0; i < 2 && result >= 0; i++)
        result = bmi_job_rpc(bmi_sm_context(machine), job_case.self, "served",
                             request_make(i == 0 ? REPLY : FAIL, 10), unpack, got, NULL,
                             BMI_SM_MINE(machine), NULL, NULL);
    return result < 0 ? result : BMI_SM_DEFERRED;
}

static const struct bmi_sm_state caller_states[] = {
    {.name = "call", .action = call_two, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table callers = BMI_SM_TABLE("caller", caller_states);

static void of_a_machine(void)
{
    bmi_job_id_t id = serve_begin(), own;
    int posted = bmi_sm_start(job_case.context, &callers, NULL, NULL, NULL, &own, NULL);
    CU_ASSERT_EQUAL(bmi_job_wait(job_case.context, own, NULL, posted, PATIENCE_MS), -BMI_ENOSPC);
    serve_end(id, 2);
}

/* The context is closed, by the suite, while a service is offered and a request waits. */
static void closing(void)
{
    serve_begin();
    CU_ASSERT_EQUAL(bmi_job_rpc(job_case.context, job_case.self, "served", request_make(WAIT, 10),
                                NULL, NULL, NULL, NULL, NULL, NULL),
                    0);
    CU_ASSERT(reached(&waiting, 1));
}

static void refused(void)
{
    bmi_job_id_t id = serve_begin(), other;
    struct bmi_job_service small = service, no_table = service;
    struct bmi_job_status status;
    char name[BMI_RPC_NAME_MAX + 1];
    small.data_size = sizeof(struct bmi_job_request) - 1;
    no_table.table = NULL;
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    CU_ASSERT_EQUAL(bmi_job_serve(job_case.context, "served", &service, NULL, &other, &status),
                    -BMI_EEXIST);
    CU_ASSERT_EQUAL(bmi_job_serve(job_case.context, name, &service, NULL, NULL, NULL),
                    -BMI_ENAMETOOLONG);
    CU_ASSERT_EQUAL(bmi_job_serve(job_case.context, "x", &small, NULL, NULL, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_serve(job_case.context, "x", &no_table, NULL, NULL, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_serve(job_case.context, "x", NULL, NULL, NULL, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_serve(NULL, "x", &service, NULL, NULL, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_rpc(NULL, job_case.self, "served", request_make(REPLY, 10), NULL, NULL,
                                NULL, NULL, NULL, NULL),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_job_rpc(job_case.context, job_case.self, "", request_make(REPLY, 10), NULL,
                                NULL, NULL, NULL, NULL, NULL),
                    -BMI_EINVAL);
    serve_end(id, 0);
}

int main(void)
{
    static CU_TestInfo tests[] = {
        {"replies", replies},     {"no reply", no_reply}, {"one-way", one_way},
        {"cancelled", cancelled}, {"ending", ending},     {"calls of a machine", of_a_machine},
        {"refused", refused},     {"closing", closing},   CU_TEST_INFO_NULL,
    };
    return job_case_run("serve", "serve, background", tests);
}
