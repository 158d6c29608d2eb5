/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward_cases.c - "RPC": bmi_rpc_forward. RECEIVER forwards the calls of SENDER back to it, where
 * other services reply; in the last case the second server is a third process.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

#include "bmi/rpc.h"

enum { CALL_MS = 60000, LARGE = 3 * MIB + 17 };

/* What a request holds; its body is the only cheaper piece. */
struct order {
    const char *service; /* that it is forwarded to */
    uint64_t size, reply_size, seed;
    uint32_t timeout_ms, reply_max; /* of the forwarded call */
    int32_t status;                 /* with which the forwarded request has to end */
};

static struct bmi_message *order_pack(const struct order *order, const void *memory, unsigned mode)
{
    const uint64_t numbers[] = {order->size, order->reply_size, order->seed};
    struct bmi_message *request = bmi_message_new();
    bmi_pack_string(request, order->service);
    bmi_pack_array(request, numbers, 3, sizeof *numbers);
    bmi_pack_u32(request, order->timeout_ms);
    bmi_pack_u32(request, order->reply_max);
    bmi_pack_u32(request, (uint32_t)order->status);
    bmi_pack(request, memory, (bmi_size_t)order->size, mode | BMI_UNPACK_CHEAPER);
    bmi_pack(request, "the tail", 8, BMI_PACK_LATER | BMI_UNPACK_EXPRESS);
    return request;
}

static int order_unpack(struct bmi_message *arguments, struct order *order)
{
    const void *array = NULL;
    size_t count = 0;
    uint32_t expected = 0;
    int status = bmi_unpack_string(arguments, &order->service);
    if (status == 0)
        status = bmi_unpack_array(arguments, &array, &count, sizeof(uint64_t));
    if (status == 0 && count == 3) {
        const uint64_t *numbers = array;
        order->size = numbers[0];
        order->reply_size = numbers[1];
        order->seed = numbers[2];
    }
    if (status == 0)
        status = bmi_unpack_u32(arguments, &order->timeout_ms);
    if (status == 0)
        status = bmi_unpack_u32(arguments, &order->reply_max);
    if (status == 0)
        status = bmi_unpack_u32(arguments, &expected);
    order->status = (int32_t)expected;
    return status;
}

/* ---- the services of both servers ------------------------------------------------------------ */

/* A request's data. */
struct served {
    struct order order;
    char *memory, tail[8];
};

/* Of a role: the argument of its services. */
struct counts {
    atomic_int arrived, forwarded, ended, cancelled, wrong;
    BMI_addr_t second; /* 0: the caller is the second server */
    _Atomic(struct bmi_rpc_request *) held;
};

static struct counts *counts_of(struct rank *rank)
{
    return rank_of_case(rank, sizeof(struct counts));
}

static struct counts *served_counts(const struct bmi_rpc_request *request)
{
    return bmi_rpc_argument(request);
}

static int body_place(struct bmi_rpc_request *request)
{
    struct served *served = bmi_rpc_data(request);
    struct bmi_message *arguments = bmi_rpc_arguments(request);
    served->memory = malloc(served->order.size + 1);
    int status =
        bmi_unpack(arguments, served->memory, (bmi_size_t)served->order.size, BMI_UNPACK_CHEAPER);
    if (status == 0)
        status = bmi_unpack(arguments, served->tail, sizeof served->tail, BMI_UNPACK_EXPRESS);
    return status;
}

static int served_arrived(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    struct served *served = calloc(1, sizeof *served);
    bmi_rpc_set_data(request, served);
    if (served == NULL)
        return -BMI_ENOMEM;
    int status = order_unpack(arguments, &served->order);
    return status == 0 ? body_place(request) : status;
}

/* Unpacked later, by the test. */
static int later_arrived(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    struct served *served = calloc(1, sizeof *served);
    bmi_rpc_set_data(request, served);
    if (served == NULL)
        return -BMI_ENOMEM;
    int status = order_unpack(arguments, &served->order);
    atomic_store(&served_counts(request)->held, request);
    return status == 0 ? BMI_RPC_LATER : status;
}

static void served_free(struct bmi_rpc_request *request)
{
    struct served *served = bmi_rpc_data(request);
    if (served != NULL)
        free(served->memory);
    free(served);
}

static void front_run(struct bmi_rpc_request *request)
{
    struct counts *counts = served_counts(request);
    const struct order *order = &((struct served *)bmi_rpc_data(request))->order;
    const struct bmi_rpc_options options = {.timeout_ms = (int)order->timeout_ms,
                                            .reply_max = order->reply_max};
    BMI_addr_t server = counts->second;
    if (server == 0)
        server = bmi_rpc_address(request);
    atomic_fetch_add(&counts->wrong,
                     bmi_rpc_forward(request, server, order->service, &options) != 0);
}

/* Misused first: the request stays the program's. */
static void misuse_run(struct bmi_rpc_request *request)
{
    struct counts *counts = served_counts(request);
    const struct bmi_rpc_options wrong = {.timeout_ms = -1};
    BMI_addr_t server = bmi_rpc_address(request);
    char name[BMI_RPC_NAME_MAX + 1];
    memset(name, 'n', sizeof name);
    name[BMI_RPC_NAME_MAX] = '\0';
    bool good = bmi_rpc_forward(NULL, server, "back", NULL) == -BMI_EINVAL &&
                bmi_rpc_forward(request, server, "", NULL) == -BMI_EINVAL &&
                bmi_rpc_forward(request, server, name, NULL) == -BMI_ENAMETOOLONG &&
                bmi_rpc_forward(request, server, "back", &wrong) == -BMI_EINVAL &&
                bmi_rpc_forward(request, server, "back", NULL) == 0 &&
                bmi_rpc_forward(request, server, "back", NULL) == -BMI_EINVAL &&
                bmi_rpc_reply(request, NULL) == -BMI_EINVAL &&
                bmi_rpc_fail(request, -BMI_EIO) == -BMI_EINVAL;
    atomic_fetch_add(&counts->wrong, !good);
}

/* No address of the program's. */
static void stale_run(struct bmi_rpc_request *request)
{
    struct counts *counts = served_counts(request);
    atomic_fetch_add(&counts->wrong, bmi_rpc_forward(request, -7, "back", NULL) != 0);
}

static void front_cancelled(struct bmi_rpc_request *request)
{
    atomic_fetch_add(&served_counts(request)->wrong, 1); /* a forwarded request is the library's */
}

static void front_ended(struct bmi_rpc_request *request, bmi_error_code_t status)
{
    const struct served *served = bmi_rpc_data(request);
    if (served != NULL && served->order.status != status)
        atomic_fetch_add(&served_counts(request)->wrong, 1);
    served_free(request);
    atomic_fetch_add(&served_counts(request)->forwarded, 1);
}

static void back_run(struct bmi_rpc_request *request)
{
    struct served *served = bmi_rpc_data(request);
    const struct order *order = &served->order;
    if (!pattern_holds(served->memory, (bmi_size_t)order->size, order->seed) ||
        memcmp(served->tail, "the tail", 8) != 0)
        atomic_fetch_add(&served_counts(request)->wrong, 1);
    struct bmi_message *reply = bmi_message_new();
    served->memory = realloc(served->memory, order->reply_size + 1);
    pattern_fill(served->memory, (bmi_size_t)order->reply_size, order->seed + 1);
    bmi_pack_string(reply, "reply");
    bmi_pack(reply, served->memory, (bmi_size_t)order->reply_size,
             BMI_PACK_CHEAPER | BMI_UNPACK_CHEAPER);
    bmi_rpc_reply(request, reply);
}

static void failing_run(struct bmi_rpc_request *request)
{
    bmi_rpc_fail(request, -BMI_ENOSPC);
}

/* Ended by its cancel. */
static void waiting_run(struct bmi_rpc_request *request)
{
    atomic_fetch_add(&served_counts(request)->arrived, 1);
}

static void waiting_cancelled(struct bmi_rpc_request *request)
{
    atomic_fetch_add(&served_counts(request)->cancelled, 1);
    bmi_rpc_fail(request, -BMI_EIO); /* not sent */
}

static void back_ended(struct bmi_rpc_request *request, bmi_error_code_t status)
{
    (void)status;
    served_free(request);
    atomic_fetch_add(&served_counts(request)->ended, 1);
}

static const struct {
    const char *name;
    struct bmi_rpc_service service;
} fronts[] =
    {{"front", {served_arrived, front_run, front_cancelled, front_ended, NULL, NULL, 0, 0}},
     {"front pool",
      {served_arrived, front_run, front_cancelled, front_ended, NULL, NULL, BMI_RPC_BLOCKING, 0}},
     {"front later", {later_arrived, front_run, front_cancelled, front_ended, NULL, NULL, 0, 0}},
     {"misuse", {served_arrived, misuse_run, front_cancelled, front_ended, NULL, NULL, 0, 0}},
     {"stale", {served_arrived, stale_run, front_cancelled, front_ended, NULL, NULL, 0, 0}}},
  backs[] = {{"back", {served_arrived, back_run, NULL, back_ended, NULL, NULL, 0, 0}},
             {"failing", {served_arrived, failing_run, NULL, back_ended, NULL, NULL, 0, 0}},
             {"waiting",
              {served_arrived, waiting_run, waiting_cancelled, back_ended, NULL, NULL, 0, 0}},
             {"other pieces", {NULL, failing_run, NULL, back_ended, NULL, NULL, 0, 0}}};

enum { FRONTS = sizeof fronts / sizeof *fronts, BACKS = sizeof backs / sizeof *backs };

static void service_register(struct rank *rank, const char *name, struct bmi_rpc_service service)
{
    service.argument = counts_of(rank);
    NEED_STATUS(rank, bmi_rpc_register(name, &service), 0);
}

static void fronts_register(struct rank *rank)
{
    for (int i = 0; i < FRONTS; i++)
        service_register(rank, fronts[i].name, fronts[i].service);
}

static void backs_register(struct rank *rank)
{
    for (int i = 0; i < BACKS; i++)
        service_register(rank, backs[i].name, backs[i].service);
}

static void counted_until(struct rank *rank, atomic_int *count, int expected)
{
    while (atomic_load(count) < expected)
        op_collect(rank, 10);
    CHECK_EQUAL(rank, atomic_load(count), expected);
}

/* SENDER's part, which makes so many calls that are forwarded. */
static void with_servers(struct rank *rank, void (*caller)(struct rank *rank), int calls)
{
    if (rank->role == SENDER)
        backs_register(rank);
    else
        fronts_register(rank);
    rank_warm_up(rank);
    if (rank->role == SENDER)
        caller(rank);
    rank_barrier(rank);
    if (rank->role == RECEIVER)
        counted_until(rank, &counts_of(rank)->forwarded, calls);
    CHECK_EQUAL(rank, atomic_load(&counts_of(rank)->wrong), 0);
    for (int i = 0; rank->role == SENDER && i < BACKS; i++)
        CHECK_STATUS(rank, bmi_rpc_unregister(backs[i].name), 0);
    for (int i = 0; rank->role == RECEIVER && i < FRONTS; i++)
        CHECK_STATUS(rank, bmi_rpc_unregister(fronts[i].name), 0);
}

/* ---- the caller ------------------------------------------------------------------------------ */

struct caller {
    struct op op;
    struct order order;
    char *memory, *reply;
};

static int reply_unpack(struct bmi_message *reply, void *argument)
{
    struct caller *caller = argument;
    const char *text;
    int status = bmi_unpack_string(reply, &text);
    if (status < 0)
        return status;
    if (strcmp(text, "reply") != 0)
        return -BMI_EIO;
    return bmi_unpack(reply, caller->reply, (bmi_size_t)caller->order.reply_size,
                      BMI_UNPACK_CHEAPER);
}

static void call_begin(struct rank *rank, struct caller *caller, const char *front,
                       const struct order *order, unsigned mode)
{
    static atomic_ullong seed;
    const struct bmi_rpc_options options = {.timeout_ms = CALL_MS};
    *caller = (struct caller){.order = *order, .op = {.size = INT64_MAX}};
    caller->order.seed = atomic_fetch_add(&seed, 2);
    caller->memory = memory_take(rank, (bmi_size_t)order->size + 1);
    caller->reply = memory_take(rank, (bmi_size_t)order->reply_size + 1);
    pattern_fill(caller->memory, (bmi_size_t)order->size, caller->order.seed);
    caller->op.posted = bmi_rpc_call(&caller->op.id, rank->peer, front,
                                     order_pack(&caller->order, caller->memory, mode), reply_unpack,
                                     caller, &options, &caller->op, rank->context);
    NEED_STATUS(rank, caller->op.posted, 0);
    rank->pending++;
}

static void call_end(struct rank *rank, struct caller *caller, int expected)
{
    const struct order *order = &caller->order;
    op_wait(rank, &caller->op);
    CHECK_STATUS(rank, caller->op.error, expected);
    if (expected == 0 &&
        !pattern_holds(caller->reply, (bmi_size_t)order->reply_size, order->seed + 1))
        rank_fail(rank, false, __FILE__, __LINE__, "%llu to %llu bytes: wrong bytes in the reply",
                  (unsigned long long)order->size, (unsigned long long)order->reply_size);
    memory_give_back(caller->memory);
    memory_give_back(caller->reply);
}

static void call(struct rank *rank, const char *front, const struct order *order, int expected)
{
    struct caller caller;
    call_begin(rank, &caller, front, order, BMI_PACK_CHEAPER);
    call_end(rank, &caller, expected);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static const uint64_t sizes[] = {0, 1, 3000, 4000, 9999, 65536, 300000, LARGE};
static const unsigned modes[] = {BMI_PACK_SAFER, BMI_PACK_LATER, BMI_PACK_CHEAPER};
enum { SIZES = sizeof sizes / sizeof *sizes, MODES = 3 };

static void sizes_call(struct rank *rank)
{
    for (int i = 0; i < SIZES; i++)
        for (int j = 0; j < MODES; j++)
            for (int k = 0; k < 3; k++) {
                const struct order order = {.service = "back",
                                            .size = k == 1 ? 10 : sizes[i],
                                            .reply_size = k == 0 ? 10 : sizes[i]};
                struct caller caller;
                call_begin(rank, &caller, k == 2 ? "front pool" : "front", &order, modes[j]);
                call_end(rank, &caller, 0);
            }
}

static void forward_sizes(struct rank *rank)
{
    with_servers(rank, sizes_call, SIZES * MODES * 3);
}

static void errors_call(struct rank *rank)
{
    static const struct order orders[] = {
        {.service = "failing", .status = -BMI_ENOSPC},
        {.service = "failing", .size = LARGE, .status = -BMI_ENOSPC},
        {.service = "nobody", .status = -BMI_ENOSYS},
        {.service = "nobody", .size = LARGE, .status = -BMI_ENOSYS},
        {.service = "other pieces", .size = LARGE, .status = -BMI_EBADMSG},
        {.service = "back", .reply_size = 5000, .reply_max = 4000, .status = -BMI_EMSGSIZE},
        {.service = "back", .reply_size = LARGE, .reply_max = 4000, .status = -BMI_EMSGSIZE},
        {.service = "waiting", .timeout_ms = 100, .status = -BMI_ETIMEDOUT},
        {.service = "waiting", .timeout_ms = 100, .size = LARGE, .status = -BMI_ETIMEDOUT}};
    for (unsigned i = 0; i < sizeof orders / sizeof *orders; i++)
        call(rank, "front", &orders[i], orders[i].status);
    call(rank, "misuse", &(struct order){.service = "", .size = 10}, 0);
    call(rank, "stale", &(struct order){.service = "", .status = -BMI_EINVAL}, -BMI_EINVAL);
    call(rank, "front", &(struct order){.service = "back", .size = 10}, 0);
    /* on a busy machine the body may not be there in time: then the service does not run */
    counted_until(rank, &counts_of(rank)->cancelled, atomic_load(&counts_of(rank)->arrived));
}

static void forward_errors(struct rank *rank)
{
    with_servers(rank, errors_call, 12);
}

/* Cancelled when it waits at the second server, and at once. */
static void cancel_call(struct rank *rank)
{
    struct caller caller;
    for (int i = 0; i < 4; i++) {
        const struct order order = {.service = "waiting",
                                    .size = i % 2 ? LARGE : 10,
                                    .status = -BMI_ECANCEL};
        call_begin(rank, &caller, "front", &order, BMI_PACK_CHEAPER);
        counted_until(rank, &counts_of(rank)->arrived, i + 1);
        CHECK_STATUS(rank, BMI_cancel(caller.op.id, rank->context), 0);
        call_end(rank, &caller, -BMI_ECANCEL);
        counted_until(rank, &counts_of(rank)->cancelled, i + 1);
        counted_until(rank, &counts_of(rank)->ended, i + 1);
    }
    call(rank, "front", &(struct order){.service = "back", .size = 10}, 0);
}

static void forward_cancel(struct rank *rank)
{
    with_servers(rank, cancel_call, 5);
}

static void one_way_call(struct rank *rank)
{
    const struct bmi_rpc_options options = {.one_way = 1};
    char *memory = memory_take(rank, LARGE);
    pattern_fill(memory, LARGE, 3);
    for (int i = 0; i < 10; i++) {
        struct op op = {.size = INT64_MAX};
        const struct order order = {.service = "back", .size = i % 2 ? LARGE : 100, .seed = 3};
        op.posted =
            bmi_rpc_call(&op.id, rank->peer, "front", order_pack(&order, memory, BMI_PACK_CHEAPER),
                         NULL, NULL, &options, &op, rank->context);
        NEED_STATUS(rank, op.posted, 0);
        rank->pending++;
        op_wait(rank, &op);
        CHECK_STATUS(rank, op.error, 0);
    }
    counted_until(rank, &counts_of(rank)->ended, 10);
    memory_give_back(memory);
}

static void forward_one_way(struct rank *rank)
{
    with_servers(rank, one_way_call, 10);
}

static void deferred_call(struct rank *rank)
{
    const struct order order = {.service = "back", .size = LARGE, .reply_size = LARGE};
    call(rank, "front later", &order, 0);
}

/* It cannot be forwarded before its pieces are there. */
static void forward_deferred(struct rank *rank)
{
    if (rank->role == SENDER) {
        with_servers(rank, deferred_call, 1);
        return;
    }
    fronts_register(rank);
    rank_warm_up(rank);
    struct bmi_rpc_request *request;
    while ((request = atomic_load(&counts_of(rank)->held)) == NULL)
        op_collect(rank, 10);
    CHECK_STATUS(rank, bmi_rpc_forward(request, rank->peer, "back", NULL), -BMI_EINVAL);
    NEED_STATUS(rank, body_place(request), 0);
    NEED_STATUS(rank, bmi_rpc_resume(request), 0);
    rank_barrier(rank);
    counted_until(rank, &counts_of(rank)->forwarded, 1);
    for (int i = 0; i < FRONTS; i++)
        CHECK_STATUS(rank, bmi_rpc_unregister(fronts[i].name), 0);
}

/* Many at once, some cancelled. */
static void many_call(struct rank *rank)
{
    enum { CALLS = 200 };
    struct caller callers[CALLS];
    for (int i = 0; i < CALLS; i++) {
        const struct order order = {.service = "back",
                                    .size = (uint64_t)i * 1999 % 400000,
                                    .reply_size = (uint64_t)i * 4001 % 400000};
        call_begin(rank, &callers[i], i % 4 == 0 ? "front pool" : "front", &order, modes[i % 3]);
        if (i % 5 == 1)
            BMI_cancel(callers[i].op.id, rank->context);
    }
    for (int i = 0; i < CALLS; i++) {
        op_wait(rank, &callers[i].op);
        bool cancelled = i % 5 == 1 && callers[i].op.error == -BMI_ECANCEL;
        call_end(rank, &callers[i], cancelled ? -BMI_ECANCEL : 0);
    }
}

static void many_ended(struct bmi_rpc_request *request, bmi_error_code_t status)
{
    if (status != 0 && status != -BMI_ECANCEL)
        atomic_fetch_add(&served_counts(request)->wrong, 1);
    served_free(request);
}

static void forward_many(struct rank *rank)
{
    if (rank->role == SENDER)
        backs_register(rank);
    for (int i = 0; rank->role == RECEIVER && i < 2; i++) {
        struct bmi_rpc_service service = fronts[i].service;
        service.ended = many_ended;
        service.cancelled = NULL;
        service_register(rank, fronts[i].name, service);
    }
    rank_warm_up(rank);
    if (rank->role == SENDER)
        many_call(rank);
    rank_barrier(rank);
    CHECK_EQUAL(rank, atomic_load(&counts_of(rank)->wrong), 0);
    none_unmatched(rank);
}

/* ---- the second server dies ------------------------------------------------------------------ */

/* Role 0 calls role 1, which forwards to role 2. */
static void dies_second(struct rank *rank)
{
    rank_start_server(rank, NULL, 0);
    backs_register(rank);
    rank_write(rank, 1, rank->listen, sizeof rank->listen);
    counted_until(rank, &counts_of(rank)->arrived, 2);
    rank_crash(rank);
}

static void dies_first(struct rank *rank)
{
    char url[BMI_MAX_ADDR_LEN];
    rank_read_idle(rank, 2, url, sizeof url);
    rank_start_server(rank, NULL, 0);
    fronts_register(rank);
    counts_of(rank)->second = rank_look_up(rank, url);
    rank_write(rank, 0, rank->listen, sizeof rank->listen);
    rank_await_signal(rank, 0);
    counted_until(rank, &counts_of(rank)->forwarded, 4);
    rank_stop(rank);
}

static void dies_caller(struct rank *rank)
{
    const struct order waiting = {.service = "waiting", .size = 10},
                       large = {.service = "waiting", .size = LARGE},
                       back = {.service = "back", .size = LARGE, .reply_size = LARGE};
    struct caller callers[2];
    rank_read_idle(rank, 1, rank->peer_url, sizeof rank->peer_url);
    rank_start_client(rank);
    rank->peer = rank_look_up(rank, rank->peer_url);
    call(rank, "front", &back, 0);
    call_begin(rank, &callers[0], "front", &waiting, BMI_PACK_CHEAPER);
    call_begin(rank, &callers[1], "front", &large, BMI_PACK_CHEAPER);
    for (int i = 0; i < 2; i++) {
        op_wait(rank, &callers[i].op);
        CHECK(rank, error_is_loss(callers[i].op.error));
        call_end(rank, &callers[i], callers[i].op.error);
    }
    /* not there any more */
    call_begin(rank, &callers[0], "front", &back, BMI_PACK_CHEAPER);
    op_wait(rank, &callers[0].op);
    CHECK(rank, error_is_loss(callers[0].op.error));
    call_end(rank, &callers[0], callers[0].op.error);
    rank_signal(rank, 1);
    rank_stop(rank);
}

static void second_dies(struct rank *rank)
{
    if (rank->role == 2)
        dies_second(rank);
    else if (rank->role == 1)
        dies_first(rank);
    else
        dies_caller(rank);
}

const struct conformance_case forward_cases[] = {
    {"RPC", "forwarded: sizes and modes", forward_sizes, 0, 0, 0},
    {"RPC", "forwarded: errors", forward_errors, 0, 0, 0},
    {"RPC", "forwarded: cancel", forward_cancel, 0, 0, 0},
    {"RPC", "forwarded: one-way calls", forward_one_way, 0, 0, 0},
    {"RPC", "forwarded: a deferred request", forward_deferred, 0, 0, 0},
    {"RPC", "forwarded: many at once", forward_many, 0, 0, 0},
    {"RPC", "forwarded: the second server dies", second_dies, CAST | OF_PROCESS, 0, 3},
    {NULL, NULL, NULL, 0, 0, 0},
};
