/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc_cases.c - "RPC": calls of bmi/rpc.h. RECEIVER serves, SENDER calls.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

#include "bmi/rpc.h"

enum { CALL_MS = 60000, LARGE = 3 * MIB + 17 };

/* ---- the services ---------------------------------------------------------------------------- */

/* A request's data: the memory of its cheaper piece. */
struct served {
    char *memory;
    uint64_t size, reply_size, seed;
    char tail[8];
};

/* Of the role that serves: the argument of its services. */
struct counts {
    atomic_int ended, timed_out, cancelled, wrong;
    _Atomic(struct bmi_rpc_request *) held; /* the last deferred one */
    uint64_t seed;                          /* of the caller's last body */
};

static struct counts *counts_of(struct rank *rank)
{
    return rank_of_case(rank, sizeof(struct counts));
}

static struct counts *served_counts(const struct bmi_rpc_request *request)
{
    return bmi_rpc_argument(request);
}

static void served_ended(struct bmi_rpc_request *request, bmi_error_code_t status)
{
    struct served *served = bmi_rpc_data(request);
    struct counts *counts = served_counts(request);
    atomic_fetch_add(&counts->timed_out, status == -BMI_ETIMEDOUT);
    if (served != NULL) {
        free(served->memory);
        free(served);
    }
    atomic_fetch_add(&counts->ended, 1);
}

/* The sizes are express, the body cheaper, and there is an express piece behind it. */
static int body_place(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    struct served *served = calloc(1, sizeof *served);
    bmi_rpc_set_data(request, served);
    if (served == NULL)
        return -BMI_ENOMEM;
    int status = bmi_unpack_u64(arguments, &served->size);
    if (status == 0)
        status = bmi_unpack_u64(arguments, &served->reply_size);
    if (status == 0)
        status = bmi_unpack_u64(arguments, &served->seed);
    if (status < 0)
        return status;
    served->memory = malloc(served->size + 1);
    if (served->memory == NULL)
        return -BMI_ENOMEM;
    return bmi_unpack(arguments, served->memory, (bmi_size_t)served->size, BMI_UNPACK_CHEAPER);
}

static int body_arrived(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    int status = body_place(request, arguments);
    struct served *served = bmi_rpc_data(request);
    if (status == 0)
        status = bmi_unpack(arguments, served->tail, sizeof served->tail, BMI_UNPACK_EXPRESS);
    return status;
}

/* Checks the body, and replies with one of the size that the caller asked for. */
static void body_run(struct bmi_rpc_request *request)
{
    struct served *served = bmi_rpc_data(request);
    if (!pattern_holds(served->memory, (bmi_size_t)served->size, served->seed) ||
        memcmp(served->tail, "the tail", 8) != 0)
        atomic_fetch_add(&served_counts(request)->wrong, 1);
    char *memory = realloc(served->memory, served->reply_size + 1);
    struct bmi_message *reply = bmi_message_new();
    served->memory = memory;
    pattern_fill(memory, (bmi_size_t)served->reply_size, served->seed + 1);
    bmi_pack_u64(reply, served->reply_size);
    bmi_pack_string(reply, "reply");
    bmi_pack(reply, memory, (bmi_size_t)served->reply_size, BMI_PACK_CHEAPER | BMI_UNPACK_CHEAPER);
    bmi_rpc_reply(request, reply);
}

static void null_run(struct bmi_rpc_request *request)
{
    bmi_rpc_reply(request, NULL);
}

static void failing_run(struct bmi_rpc_request *request)
{
    bmi_rpc_fail(request, -BMI_ENOSPC);
}

/* Ended by its cancel. */
static void held_run(struct bmi_rpc_request *request)
{
    (void)request;
}

static void held_cancelled(struct bmi_rpc_request *request)
{
    atomic_fetch_add(&served_counts(request)->cancelled, 1);
    bmi_rpc_fail(request, -BMI_EIO); /* not sent */
}

static int later_arrived(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    (void)arguments;
    atomic_store(&served_counts(request)->held, request);
    return BMI_RPC_LATER;
}

static void service_register(struct rank *rank, const char *name, struct bmi_rpc_service service)
{
    service.argument = counts_of(rank);
    NEED_STATUS(rank, bmi_rpc_register(name, &service), 0);
}

static const struct {
    const char *name;
    struct bmi_rpc_service service;
} services[] = {{"null", {.run = null_run, .ended = served_ended}},
                {"pool", {.run = null_run, .ended = served_ended, .options = BMI_RPC_BLOCKING}},
                {"body", {.arrived = body_arrived, .run = body_run, .ended = served_ended}},
                {"failing", {.run = failing_run, .ended = served_ended}},
                {"waiting", {.run = held_run, .cancelled = held_cancelled, .ended = served_ended}},
                {"later", {.arrived = later_arrived, .run = body_run, .ended = served_ended}}};

enum { SERVICES = sizeof services / sizeof *services };

static void services_register(struct rank *rank)
{
    for (int i = 0; i < SERVICES; i++)
        service_register(rank, services[i].name, services[i].service);
    CHECK_STATUS(rank, bmi_rpc_register("later", &services[SERVICES - 1].service), -BMI_EEXIST);
}

static void services_withdraw(struct rank *rank)
{
    for (int i = 0; i < SERVICES; i++)
        CHECK_STATUS(rank, bmi_rpc_unregister(services[i].name), 0);
    CHECK_STATUS(rank, bmi_rpc_unregister("later"), -BMI_ENOENT);
}

/* ---- the caller ------------------------------------------------------------------------------ */

struct caller {
    char *memory;
    uint64_t size, seed;
    int unpacked;
};

static int body_unpack(struct bmi_message *reply, void *argument)
{
    struct caller *caller = argument;
    const char *text;
    uint64_t size;
    caller->unpacked++;
    int status = bmi_unpack_u64(reply, &size);
    if (status == 0)
        status = bmi_unpack_string(reply, &text);
    if (status < 0)
        return status;
    if (size != caller->size || strcmp(text, "reply") != 0)
        return -BMI_EIO;
    return bmi_unpack(reply, caller->memory, (bmi_size_t)size, BMI_UNPACK_CHEAPER);
}

static struct bmi_message *body_pack(const char *memory, uint64_t size, uint64_t reply_size,
                                     uint64_t seed, unsigned mode)
{
    struct bmi_message *request = bmi_message_new();
    bmi_pack_u64(request, size);
    bmi_pack_u64(request, reply_size);
    bmi_pack_u64(request, seed);
    bmi_pack(request, memory, (bmi_size_t)size, mode | BMI_UNPACK_CHEAPER);
    bmi_pack(request, "the tail", 8, BMI_PACK_LATER | BMI_UNPACK_EXPRESS);
    return request;
}

static void call_begin(struct rank *rank, struct op *op, const char *service,
                       struct bmi_message *request, bmi_rpc_unpack unpack, void *argument,
                       int timeout_ms)
{
    const struct bmi_rpc_options options = {.timeout_ms = timeout_ms};
    *op = (struct op){.size = INT64_MAX};
    op->posted = bmi_rpc_call(&op->id, rank->peer, service, request, unpack, argument, &options, op,
                              rank->context);
    NEED(rank, op->posted >= 0);
    op->done = op->posted == 1;
    rank->pending += !op->done;
}

static bmi_error_code_t call_end(struct rank *rank, struct op *op)
{
    op_wait(rank, op);
    return op->error;
}

static bmi_error_code_t call(struct rank *rank, const char *service, struct bmi_message *request,
                             bmi_rpc_unpack unpack, void *argument, int timeout_ms)
{
    struct op op;
    call_begin(rank, &op, service, request, unpack, argument, timeout_ms);
    return call_end(rank, &op);
}

/* Runs the caller in SENDER; RECEIVER serves meanwhile. */
static void with_services(struct rank *rank, void (*caller)(struct rank *rank))
{
    if (rank->role == RECEIVER)
        services_register(rank);
    rank_warm_up(rank);
    if (rank->role == SENDER)
        caller(rank);
    rank_barrier(rank);
    if (rank->role == RECEIVER) {
        CHECK_EQUAL(rank, atomic_load(&counts_of(rank)->wrong), 0);
        services_withdraw(rank);
    }
}

static void one_body(struct rank *rank, uint64_t size, uint64_t reply_size, unsigned mode)
{
    uint64_t seed = ++counts_of(rank)->seed;
    struct caller caller = {.size = reply_size};
    char *memory = memory_take(rank, (bmi_size_t)size + 1);
    caller.memory = memory_take(rank, (bmi_size_t)reply_size + 1);
    pattern_fill(memory, (bmi_size_t)size, seed);
    struct op op;
    call_begin(rank, &op, "body", body_pack(memory, size, reply_size, seed, mode), body_unpack,
               &caller, CALL_MS);
    if (mode == BMI_PACK_SAFER)
        memset(memory, 0, size); /* it was copied */
    CHECK_STATUS(rank, call_end(rank, &op), 0);
    CHECK_EQUAL(rank, caller.unpacked, 1);
    if (!pattern_holds(caller.memory, (bmi_size_t)reply_size, seed + 1))
        rank_fail(rank, false, __FILE__, __LINE__, "%llu to %llu bytes: wrong bytes in the reply",
                  (unsigned long long)size, (unsigned long long)reply_size);
    memory_give_back(memory);
    memory_give_back(caller.memory);
}

static void null_calls_call(struct rank *rank)
{
    for (int i = 0; i < 100; i++)
        CHECK_STATUS(rank, call(rank, "null", NULL, NULL, NULL, CALL_MS), 0);
    for (int i = 0; i < 20; i++)
        CHECK_STATUS(rank, call(rank, "pool", NULL, NULL, NULL, CALL_MS), 0);
}

static void null_calls(struct rank *rank)
{
    with_services(rank, null_calls_call);
}

static void sizes_call(struct rank *rank)
{
    static const uint64_t sizes[] = {0,    1,     100,   3900,  4000,   4096,   8192,
                                     9999, 16384, 65536, 65537, 200000, 300000, LARGE};
    static const unsigned modes[] = {BMI_PACK_SAFER, BMI_PACK_LATER, BMI_PACK_CHEAPER};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (unsigned j = 0; j < 3; j++) {
            one_body(rank, sizes[i], 10, modes[j]);
            one_body(rank, 10, sizes[i], modes[j]);
            one_body(rank, sizes[i], sizes[i], modes[j]);
        }
}

static void sizes(struct rank *rank)
{
    with_services(rank, sizes_call);
}

static void errors_call(struct rank *rank)
{
    struct op op;
    char text[10] = "";
    CHECK_STATUS(rank, call(rank, "nobody", NULL, NULL, NULL, CALL_MS), -BMI_ENOSYS);
    CHECK_STATUS(rank, call(rank, "failing", NULL, NULL, NULL, CALL_MS), -BMI_ENOSPC);
    CHECK_STATUS(rank, call(rank, "body", NULL, NULL, NULL, CALL_MS), -BMI_EBADMSG);
    /* a reply that the caller does not unpack */
    CHECK_STATUS(rank,
                 call(rank, "body", body_pack(text, 0, LARGE, 0, BMI_PACK_CHEAPER), NULL, NULL,
                      CALL_MS),
                 -BMI_EBADMSG);
    /* a large body for a service that is not there, or does not take it */
    char *memory = memory_take(rank, LARGE);
    CHECK_STATUS(rank,
                 call(rank, "nobody", body_pack(memory, LARGE, 0, 0, BMI_PACK_CHEAPER), NULL, NULL,
                      CALL_MS),
                 -BMI_ENOSYS);
    CHECK_STATUS(rank,
                 call(rank, "null", body_pack(memory, LARGE, 0, 0, BMI_PACK_CHEAPER), NULL, NULL,
                      CALL_MS),
                 -BMI_EBADMSG);
    memory_give_back(memory);
    struct bmi_message *twice = bmi_message_new();
    bmi_pack(twice, NULL, 5, BMI_PACK_SAFER | BMI_UNPACK_EXPRESS);
    CHECK_STATUS(rank,
                 bmi_rpc_call(&op.id, rank->peer, "null", twice, NULL, NULL, NULL, NULL,
                              rank->context),
                 -BMI_EINVAL);
    CHECK_STATUS(rank,
                 bmi_rpc_call(&op.id, rank->peer, "", NULL, NULL, NULL, NULL, NULL, rank->context),
                 -BMI_EINVAL);
    CHECK_STATUS(rank, call(rank, "null", NULL, NULL, NULL, CALL_MS), 0);
}

static void errors(struct rank *rank)
{
    with_services(rank, errors_call);
}

/* Requests arrive in their order: when this one has ended, those before it have arrived. */
static void let_arrive(struct rank *rank)
{
    CHECK_STATUS(rank, call(rank, "null", NULL, NULL, NULL, CALL_MS), 0);
}

static void deadlines_call(struct rank *rank)
{
    int64_t before = now_ms();
    CHECK_STATUS(rank, call(rank, "waiting", NULL, NULL, NULL, 200 * patience()), -BMI_ETIMEDOUT);
    CHECK(rank, now_ms() - before >= 200);
    struct op op;
    call_begin(rank, &op, "waiting", NULL, NULL, NULL, 0);
    let_arrive(rank);
    CHECK_STATUS(rank, BMI_cancel(op.id, rank->context), 0);
    CHECK_STATUS(rank, call_end(rank, &op), -BMI_ECANCEL);
    char *memory = memory_take(rank, LARGE);
    call_begin(rank, &op, "later", body_pack(memory, LARGE, 10, 0, BMI_PACK_CHEAPER), NULL, NULL,
               0);
    let_arrive(rank);
    CHECK_STATUS(rank, BMI_cancel(op.id, rank->context), 0);
    CHECK_STATUS(rank, call_end(rank, &op), -BMI_ECANCEL);
    memory_give_back(memory);
    CHECK_STATUS(rank, call(rank, "null", NULL, NULL, NULL, CALL_MS), 0);
}

static void deadlines(struct rank *rank)
{
    with_services(rank, deadlines_call);
    if (rank->role != RECEIVER)
        return;
    while (atomic_load(&counts_of(rank)->cancelled) < 2)
        op_collect(rank, 10);
    struct bmi_rpc_request *request = atomic_load(&counts_of(rank)->held);
    CHECK(rank, bmi_rpc_is_cancelled(request));
    CHECK_STATUS(rank, bmi_rpc_resume(request), 0);
    while (atomic_load(&counts_of(rank)->ended) < 6)
        op_collect(rank, 10);
}

static void deferred(struct rank *rank)
{
    char *memory = memory_take(rank, LARGE);
    struct caller caller = {.size = 5, .memory = memory_take(rank, 6)};
    struct op op;
    if (rank->role == RECEIVER)
        services_register(rank);
    rank_warm_up(rank);
    if (rank->role == SENDER) {
        pattern_fill(memory, LARGE, 77);
        call_begin(rank, &op, "later", body_pack(memory, LARGE, 5, 77, BMI_PACK_LATER), body_unpack,
                   &caller, 0);
        for (int i = 0; i < 10; i++) /* others pass */
            one_body(rank, 100000, 100000, BMI_PACK_CHEAPER);
    } else {
        while (atomic_load(&counts_of(rank)->held) == NULL)
            op_collect(rank, 10);
    }
    rank_barrier(rank);
    if (rank->role == RECEIVER) {
        struct bmi_rpc_request *request = atomic_load(&counts_of(rank)->held);
        NEED_STATUS(rank, body_arrived(request, bmi_rpc_arguments(request)), 0);
        NEED_STATUS(rank, bmi_rpc_resume(request), 0);
        CHECK_STATUS(rank, bmi_rpc_resume(request), -BMI_EINVAL);
        while (atomic_load(&counts_of(rank)->ended) < 11)
            op_collect(rank, 10);
        CHECK_EQUAL(rank, atomic_load(&counts_of(rank)->wrong), 0);
    } else {
        CHECK_STATUS(rank, call_end(rank, &op), 0);
        CHECK(rank, pattern_holds(caller.memory, 5, 78));
    }
    rank_barrier(rank);
    memory_give_back(memory);
    memory_give_back(caller.memory);
}

static void one_way_call(struct rank *rank)
{
    const struct bmi_rpc_options options = {.one_way = 1};
    char *memory = memory_take(rank, LARGE);
    pattern_fill(memory, LARGE, 3);
    for (int i = 0; i < 10; i++) {
        struct op op = {.size = INT64_MAX};
        bmi_size_t size = i % 2 ? LARGE : 100;
        op.posted = bmi_rpc_call(&op.id, rank->peer, "body",
                                 body_pack(memory, (uint64_t)size, 0, 3, BMI_PACK_CHEAPER), NULL,
                                 NULL, &options, &op, rank->context);
        NEED(rank, op.posted >= 0);
        op.done = op.posted == 1;
        rank->pending += !op.done;
        CHECK_STATUS(rank, call_end(rank, &op), 0);
    }
    memory_give_back(memory);
}

static void one_way(struct rank *rank)
{
    with_services(rank, one_way_call);
    while (rank->role == RECEIVER && atomic_load(&counts_of(rank)->ended) < 10)
        op_collect(rank, 10);
}

/* Express pieces of any size: in the header, and in a message of their own. */
static void express_run(struct bmi_rpc_request *request)
{
    struct bmi_message *reply = bmi_message_new();
    const void *memory;
    bmi_size_t size;
    int status = bmi_unpack_in_place(bmi_rpc_arguments(request), &memory, &size);
    if (status == 0)
        bmi_pack(reply, memory, size, BMI_PACK_SAFER | BMI_UNPACK_EXPRESS);
    bmi_rpc_reply(request, reply);
}

static int express_unpack(struct bmi_message *reply, void *argument)
{
    struct caller *caller = argument;
    return bmi_unpack(reply, caller->memory, (bmi_size_t)caller->size, BMI_UNPACK_EXPRESS);
}

static void express_call(struct rank *rank)
{
    static const uint64_t sizes[] = {0, 1, 7, 3000, 5000, 12000, 20000, 100000, MIB - 8};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *memory = memory_take(rank, (bmi_size_t)sizes[i] + 1);
        struct caller caller = {.size = sizes[i],
                                .memory = memory_take(rank, (bmi_size_t)sizes[i] + 1)};
        struct bmi_message *request = bmi_message_new();
        pattern_fill(memory, (bmi_size_t)sizes[i], i);
        bmi_pack(request, memory, (bmi_size_t)sizes[i], BMI_PACK_LATER | BMI_UNPACK_EXPRESS);
        CHECK_STATUS(rank, call(rank, "express", request, express_unpack, &caller, CALL_MS), 0);
        CHECK(rank, pattern_holds(caller.memory, (bmi_size_t)sizes[i], i));
        memory_give_back(memory);
        memory_give_back(caller.memory);
    }
    struct bmi_message *large = bmi_message_new();
    char *memory = memory_take(rank, MIB);
    CHECK_STATUS(rank, bmi_pack(large, memory, MIB, BMI_PACK_SAFER | BMI_UNPACK_EXPRESS),
                 -BMI_EMSGSIZE);
    bmi_message_free(large);
    memory_give_back(memory);
}

static void express(struct rank *rank)
{
    static const struct bmi_rpc_service service = {.run = express_run};
    if (rank->role == RECEIVER)
        NEED_STATUS(rank, bmi_rpc_register("express", &service), 0);
    rank_warm_up(rank);
    if (rank->role == SENDER)
        express_call(rank);
    rank_barrier(rank);
    if (rank->role == RECEIVER)
        CHECK_STATUS(rank, bmi_rpc_unregister("express"), 0);
}

/* A context that is closed ends its calls, and the memory of their pieces is free then. */
static void closing_call(struct rank *rank)
{
    bmi_context_id context;
    bmi_op_id_t ids[3];
    char *memory = memory_take(rank, LARGE);
    NEED_STATUS(rank, BMI_open_context(&context), 0);
    NEED_STATUS(rank,
                bmi_rpc_call(&ids[0], rank->peer, "waiting", NULL, NULL, NULL, NULL, NULL, context),
                0);
    NEED_STATUS(rank,
                bmi_rpc_call(&ids[1], rank->peer, "later",
                             body_pack(memory, LARGE, 0, 0, BMI_PACK_CHEAPER), NULL, NULL, NULL,
                             NULL, context),
                0);
    NEED_STATUS(rank,
                bmi_rpc_call(&ids[2], rank->peer, "null", NULL, NULL, NULL, NULL, NULL, context),
                0);
    let_arrive(rank);
    BMI_close_context(context);
    memory_give_back(memory);
    CHECK_STATUS(rank, call(rank, "null", NULL, NULL, NULL, CALL_MS), 0);
}

static void closing(struct rank *rank)
{
    with_services(rank, closing_call);
    while (rank->role == RECEIVER && atomic_load(&counts_of(rank)->cancelled) < 1)
        op_collect(rank, 10);
    struct bmi_rpc_request *request =
        rank->role == RECEIVER ? atomic_load(&counts_of(rank)->held) : NULL;
    if (request != NULL)
        CHECK_STATUS(rank, bmi_rpc_resume(request), 0);
    while (rank->role == RECEIVER && atomic_load(&counts_of(rank)->ended) < 5)
        op_collect(rank, 10);
}

/* Many at once, of all kinds, some cancelled. */
static void many_call(struct rank *rank)
{
    enum { CALLS = 200 };
    struct op ops[CALLS];
    struct caller callers[CALLS];
    char *memory = memory_take(rank, 400000);
    pattern_fill(memory, 400000, 9);
    for (int i = 0; i < CALLS; i++) {
        uint64_t size = (uint64_t)i * 1999 % 400000;
        callers[i] =
            (struct caller){.size = size, .memory = memory_take(rank, (bmi_size_t)size + 1)};
        if (i % 4 == 0)
            call_begin(rank, &ops[i], "null", NULL, NULL, NULL, CALL_MS);
        else
            call_begin(rank, &ops[i], i % 4 == 1 ? "later" : "body",
                       body_pack(memory, size, size, 9, BMI_PACK_CHEAPER), body_unpack, &callers[i],
                       CALL_MS);
        if (i % 4 == 1 || i % 16 == 2)
            BMI_cancel(ops[i].id, rank->context);
    }
    for (int i = 0; i < CALLS; i++) {
        bmi_error_code_t error = call_end(rank, &ops[i]);
        bool cancelled = i % 4 == 1 || i % 16 == 2;
        if (!cancelled || error != -BMI_ECANCEL)
            CHECK_STATUS(rank, error, 0);
        if (error == 0 && i % 4 >= 2)
            CHECK(rank, pattern_holds(callers[i].memory, (bmi_size_t)callers[i].size, 10));
        memory_give_back(callers[i].memory);
    }
    memory_give_back(memory);
}

static int many_later(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    int status = body_arrived(request, arguments);
    return status == 0 ? BMI_RPC_LATER : status;
}

static void resume_cancelled(struct bmi_rpc_request *request)
{
    bmi_rpc_resume(request);
}

static void many(struct rank *rank)
{
    static const struct bmi_rpc_service later = {.arrived = many_later,
                                                 .run = body_run,
                                                 .cancelled = resume_cancelled,
                                                 .ended = served_ended};
    if (rank->role == RECEIVER) {
        services_register(rank);
        bmi_rpc_unregister("later");
        service_register(rank, "later", later);
    }
    rank_warm_up(rank);
    if (rank->role == SENDER)
        many_call(rank);
    rank_barrier(rank);
    if (rank->role == RECEIVER)
        CHECK_EQUAL(rank, atomic_load(&counts_of(rank)->wrong), 0);
    none_unmatched(rank);
}

/* ---- a caller that does not move ------------------------------------------------------------- */

enum { STILL_CALLS = 240, STILL_LARGE = 24, STILL_MS = 300 };

/* The body of the first request, and those of the first replies, are too large to be sent before
 * their receiver makes progress; of the other replies there are too many. */
static void still_call(struct rank *rank)
{
    struct op ops[STILL_CALLS];
    struct caller callers[STILL_CALLS];
    char *memory = memory_take(rank, LARGE);
    int timed_out = 0, withdrawn = 0, lost = 0;
    /* libfabric cannot withdraw a message, so the connection ends */
    bool may_lose = strncmp(rank->method->scheme, "ofi", 3) == 0;
    pattern_fill(memory, LARGE, 5);
    for (int i = 0; i < STILL_CALLS; i++) {
        uint64_t size = i == 0 ? LARGE : 10;
        uint64_t reply_size = i < STILL_LARGE ? MIB : 3900;
        callers[i] = (struct caller){.size = reply_size,
                                     .memory = memory_take(rank, (bmi_size_t)reply_size)};
        call_begin(rank, &ops[i], "still", body_pack(memory, size, reply_size, 5, BMI_PACK_CHEAPER),
                   body_unpack, &callers[i], 0);
    }
    op_collect(rank, 20); /* sends what can be sent: the server makes no progress yet */
    rank_signal(rank, RECEIVER);
    rank_read_idle(rank, RECEIVER, &withdrawn, sizeof withdrawn);
    for (int i = 0; i < STILL_CALLS; i++) {
        bmi_error_code_t error = call_end(rank, &ops[i]);
        timed_out += error == -BMI_ETIMEDOUT;
        lost += may_lose && error_is_loss(error);
        if (error != -BMI_ETIMEDOUT && !(may_lose && error_is_loss(error)))
            CHECK_STATUS(rank, error, 0);
        if (error == 0)
            CHECK(rank, pattern_holds(callers[i].memory, (bmi_size_t)callers[i].size, 6));
        memory_give_back(callers[i].memory);
    }
    memory_give_back(memory);
    if (lost > 0)
        return;
    CHECK_EQUAL(rank, timed_out, withdrawn);
    CHECK_STATUS(rank, call(rank, "null", NULL, NULL, NULL, CALL_MS), 0);
}

/* The service's time-out ends requests of a caller that does not take their replies, or does not
 * send their bodies. The caller learns of it when it goes on, and other calls do not notice. */
static void still(struct rank *rank)
{
    static const struct bmi_rpc_service service = {.arrived = body_arrived,
                                                   .run = body_run,
                                                   .ended = served_ended,
                                                   .timeout_ms = STILL_MS};
    const char *progress = getenv("BMI_PROGRESS");
    if (progress != NULL && strcmp(progress, "background") == 0)
        rank_skip(rank, "with progress in the background each caller moves");
    if (rank->role == RECEIVER) {
        services_register(rank);
        NEED_STATUS(rank, BMI_set_info(0, BMI_SETTING, "cancel_grace_ms=20"), 0);
        service_register(rank, "still", service);
    }
    rank_warm_up(rank);
    if (rank->role == SENDER) {
        still_call(rank);
    } else {
        char go;
        rank_read_idle(rank, SENDER, &go, 1);
        while (atomic_load(&counts_of(rank)->ended) < STILL_CALLS)
            op_collect(rank, 10);
        int withdrawn = atomic_load(&counts_of(rank)->timed_out);
        CHECK(rank, withdrawn >= STILL_LARGE / 2);
        rank_write(rank, SENDER, &withdrawn, sizeof withdrawn);
    }
    rank_barrier(rank);
    if (rank->role == RECEIVER) {
        CHECK_EQUAL(rank, atomic_load(&counts_of(rank)->wrong), 0);
        CHECK_STATUS(rank, bmi_rpc_unregister("still"), 0);
        services_withdraw(rank);
    }
    none_unmatched(rank);
}

/* ---- messages on the wire -------------------------------------------------------------------- */

enum { COUNTED = 8, COUNTED_SIZE = 200000 };

/* Calls that are all of one size class. Returns how the sender's counters changed. */
static struct bmi_statistics counted(struct rank *rank, uint64_t size)
{
    struct bmi_statistics before = statistics_of(rank, rank->peer);
    for (int i = 0; i < COUNTED; i++)
        one_body(rank, size, 10, BMI_PACK_CHEAPER);
    struct bmi_statistics after = statistics_of(rank, rank->peer);
    after.unexpected_sent -= before.unexpected_sent;
    after.messages_sent -= before.messages_sent;
    after.messages_received -= before.messages_received;
    after.rendezvous_sent -= before.rendezvous_sent;
    after.copied_bytes -= before.copied_bytes;
    return after;
}

/* A small call is one message each way; a large body is one more. */
static void messages_call(struct rank *rank)
{
    struct bmi_statistics small = counted(rank, 100), large = counted(rank, COUNTED_SIZE);
    CHECK_EQUAL(rank, small.unexpected_sent, COUNTED);
    CHECK_EQUAL(rank, small.messages_sent, 0);
    CHECK_EQUAL(rank, small.messages_received, COUNTED);
    CHECK_EQUAL(rank, large.unexpected_sent, COUNTED);
    CHECK_EQUAL(rank, large.messages_sent, COUNTED);
    CHECK_EQUAL(rank, large.messages_received, COUNTED);
    CHECK_EQUAL(rank, small.copied_bytes + large.copied_bytes, 0);
    struct bmi_method_info info = method_info(rank);
    if (!info.can_put && !info.can_get) /* there was credit: no round trip for the body */
        CHECK_EQUAL(rank, large.rendezvous_sent, 0);
}

static void messages(struct rank *rank)
{
    uint64_t before = statistics_of(rank, 0).copied_bytes;
    with_services(rank, messages_call);
    /* no byte of a large body went through the library's memory */
    uint64_t copied = statistics_of(rank, 0).copied_bytes - before;
    CHECK(rank, rank->role == SENDER || copied < COUNTED_SIZE);
}

const struct conformance_case rpc_cases[] = {
    {"RPC", "null calls", null_calls, 0, 0, 0},
    {"RPC", "sizes and modes", sizes, 0, 0, 0},
    {"RPC", "express pieces", express, 0, 0, 0},
    {"RPC", "errors", errors, 0, 0, 0},
    {"RPC", "deadlines and cancel", deadlines, 0, 0, 0},
    {"RPC", "a deferred request", deferred, 0, 0, 0},
    {"RPC", "one-way calls", one_way, 0, 0, 0},
    {"RPC", "a context with calls is closed", closing, 0, 0, 0},
    {"RPC", "a caller that does not move", still, PROCESSES, 60, 0},
    {"RPC", "messages of a call", messages, PROCESSES, 0, 0},
    {"RPC", "many at once", many, 0, 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};
