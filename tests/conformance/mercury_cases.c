/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mercury_cases.c - the calls that Mercury's BMI plugin makes, in its order
 * (docs/using-with-mercury.md): a request is an unexpected message, its answer an expected one; a
 * bulk transfer is a request, the data under a tag of its own, and for a put an acknowledgement.
 * One thread calls BMI_testunexpected and BMI_testcontext in turn, for one event each.
 */
#include "harness.h"

#include <stdio.h>
#include <string.h>

/* Tags: three bits name the messages of a bulk transfer, the rest its number. */
enum { REQUEST = 1 << 28, DATA = 1 << 29, ACK = 1 << 30 };
enum { CALL = 7, SERVED = 4 };

/* The content of a transfer's request. */
struct request {
    bool puts;
    char *memory; /* of the process that serves it */
    bmi_size_t size;
    bmi_msg_tag_t data_tag, ack_tag;
};

/* A transfer of either side: the user_ptr of its operations. */
struct transfer {
    struct request request;
    bool served, ack;
    int left; /* completions until it is done */
    bmi_error_code_t error;
    BMI_addr_t peer;
    bmi_op_id_t request_id, data_id, ack_id;
    bmi_size_t data_size, ack_size;
};

/* A process that uses the plugin. */
struct user {
    struct rank *rank;
    bmi_context_id context;
    struct transfer served[SERVED];
    BMI_addr_t caller; /* of the last call */
    int calls, requests;
};

/* ---- one side of a transfer ------------------------------------------------------------------ */

static void posted(struct user *user, struct transfer *transfer, int status)
{
    NEED(user->rank, status == 0 || status == 1);
    if (status == 1) {
        CHECK(user->rank, user->rank->may_be_immediate);
        transfer->left--;
    }
}

static void receive(struct user *user, struct transfer *transfer, void *memory)
{
    posted(user, transfer,
           BMI_post_recv(&transfer->data_id, transfer->peer, memory, transfer->request.size,
                         &transfer->data_size, BMI_EXT_ALLOC, transfer->request.data_tag, transfer,
                         user->context, NULL));
}

static void send(struct user *user, struct transfer *transfer, const void *memory)
{
    posted(user, transfer,
           BMI_post_send(&transfer->data_id, transfer->peer, memory, transfer->request.size,
                         BMI_EXT_ALLOC, transfer->request.data_tag, transfer, user->context, NULL));
}

static void ask(struct user *user, struct transfer *transfer, bmi_msg_tag_t tag)
{
    posted(user, transfer,
           BMI_post_sendunexpected(&transfer->request_id, transfer->peer, &transfer->request,
                                   sizeof transfer->request, BMI_EXT_ALLOC, tag, transfer,
                                   user->context, NULL));
}

static void await_ack(struct user *user, struct transfer *transfer)
{
    posted(user, transfer,
           BMI_post_recv(&transfer->ack_id, transfer->peer, &transfer->ack, sizeof transfer->ack,
                         &transfer->ack_size, BMI_EXT_ALLOC, transfer->request.ack_tag, transfer,
                         user->context, NULL));
}

static void acknowledge(struct user *user, struct transfer *transfer)
{
    transfer->ack = true;
    posted(user, transfer,
           BMI_post_send(&transfer->ack_id, transfer->peer, &transfer->ack, sizeof transfer->ack,
                         BMI_EXT_ALLOC, transfer->request.ack_tag, transfer, user->context, NULL));
}

static struct transfer transfer_make(struct user *user, bool puts, char *there, bmi_size_t size,
                                     int number)
{
    return (struct transfer){.peer = user->rank->peer,
                             .left = puts ? 3 : 2,
                             .request = {.puts = puts,
                                         .memory = there,
                                         .size = size,
                                         .data_tag = number | DATA,
                                         .ack_tag = puts ? number | ACK : 0}};
}

/* Copies `memory` to the peer's memory `there`. */
static void put_begin(struct user *user, struct transfer *transfer, const void *memory, char *there,
                      bmi_size_t size, int number)
{
    *transfer = transfer_make(user, true, there, size, number);
    ask(user, transfer, number | REQUEST);
    await_ack(user, transfer);
    send(user, transfer, memory);
}

/* The other way. */
static void get_begin(struct user *user, struct transfer *transfer, void *memory, char *there,
                      bmi_size_t size, int number)
{
    *transfer = transfer_make(user, false, there, size, number);
    receive(user, transfer, memory);
    ask(user, transfer, number | REQUEST);
}

static void serve(struct user *user, const struct BMI_unexpected_info *info)
{
    struct transfer *served = user->served;
    while (served < user->served + SERVED && served->left > 0)
        served++;
    NEED(user->rank, served < user->served + SERVED);
    NEED_EQUAL(user->rank, info->size, sizeof served->request);
    *served = (struct transfer){.served = true, .peer = info->addr};
    memcpy(&served->request, info->buffer, sizeof served->request);
    served->left = served->request.puts ? 2 : 1;
    if (!served->request.puts) {
        send(user, served, served->request.memory);
    } else {
        receive(user, served, served->request.memory);
        if (served->left == 1)
            acknowledge(user, served);
    }
}

/* ---- progress -------------------------------------------------------------------------------- */

static int fetch(struct user *user)
{
    struct BMI_unexpected_info info;
    int count = 0;
    NEED(user->rank, BMI_testunexpected(1, &count, &info, 0) >= 0);
    if (count == 0)
        return 0;
    CHECK_EQUAL(user->rank, info.error_code, 0);
    if (info.tag & REQUEST) {
        serve(user, &info);
        user->requests++;
    } else {
        user->caller = info.addr;
        user->calls++;
    }
    CHECK_STATUS(user->rank, BMI_unexpected_free(info.addr, info.buffer), 0);
    return 1;
}

/* Takes the next event, for which it waits at most `ms`. */
static int progress(struct user *user, int ms)
{
    struct transfer *transfer = NULL;
    bmi_op_id_t id = 0;
    bmi_size_t size = 0;
    bmi_error_code_t error = 0;
    int count = 0, fetched = fetch(user);
    NEED(user->rank, BMI_testcontext(1, &id, &count, &error, &size, (void **)&transfer,
                                     fetched ? 0 : ms, user->context) >= 0);
    if (count == 0)
        return fetched;
    NEED(user->rank, transfer != NULL && transfer->left > 0);
    CHECK(user->rank,
          id == transfer->request_id || id == transfer->data_id || id == transfer->ack_id);
    transfer->left--;
    if (error != 0)
        transfer->error = error;
    else if (id == transfer->data_id)
        CHECK_EQUAL(user->rank, size, transfer->request.size);
    if (transfer->served && transfer->request.puts && id == transfer->data_id) {
        if (error == 0)
            acknowledge(user, transfer);
        else
            transfer->left--; /* there will be no acknowledgement */
    }
    return fetched + count;
}

static void finish(struct user *user, struct transfer *transfer)
{
    int64_t deadline = now_ms() + 60000 * patience();
    while (transfer->left > 0) {
        NEED(user->rank, now_ms() < deadline);
        progress(user, 1000);
    }
}

static void finish_well(struct user *user, struct transfer *transfer)
{
    finish(user, transfer);
    CHECK_STATUS(user->rank, transfer->error, 0);
    CHECK_EQUAL(user->rank, transfer->ack, transfer->request.puts);
}

static void await_count(struct user *user, const int *count, int wanted)
{
    int64_t deadline = now_ms() + 60000 * patience();
    while (*count < wanted) {
        NEED(user->rank, now_ms() < deadline);
        progress(user, 1000);
    }
}

static struct user user_begin(struct rank *rank)
{
    struct user user = {.rank = rank};
    NEED_STATUS(rank, BMI_open_context(&user.context), 0);
    return user;
}

static void user_end(struct user *user)
{
    for (int i = 0; i < SERVED; i++)
        finish_well(user, &user->served[i]);
    CHECK_EQUAL(user->rank, progress(user, 0), 0);
    BMI_close_context(user->context);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* The receive of the answer is posted before the request. */
static void call_begin(struct user *user, struct transfer *call, char *answer, bmi_size_t size)
{
    *call = (struct transfer){.peer = user->rank->peer,
                              .left = 2,
                              .request = {.size = size, .data_tag = CALL}};
    receive(user, call, answer);
    ask(user, call, CALL);
}

static void answer_call(struct user *user, const char *answer, bmi_size_t size)
{
    struct transfer sent = {.peer = user->caller,
                            .left = 1,
                            .request = {.size = size, .data_tag = CALL}};
    const char *host = BMI_addr_rev_lookup_unexpected(user->caller);
    CHECK(user->rank, host != NULL && *host != '\0');
    send(user, &sent, answer);
    finish_well(user, &sent);
}

static void call(struct user *user, uint64_t seed)
{
    char answer[4096];
    struct transfer one;
    call_begin(user, &one, answer, sizeof answer);
    finish_well(user, &one);
    CHECK(user->rank, pattern_holds(answer, sizeof answer, seed));
}

static void serve_call(struct user *user, uint64_t seed)
{
    char answer[4096];
    await_count(user, &user->calls, user->calls + 1);
    pattern_fill(answer, sizeof answer, seed);
    answer_call(user, answer, sizeof answer);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void copy_there_and_back(struct user *user, char *memory, char *there, bmi_size_t size,
                                int number)
{
    struct transfer transfer;
    pattern_fill(memory, size, (uint64_t)size);
    put_begin(user, &transfer, memory, there, size, number);
    finish_well(user, &transfer);
    memset(memory, 0, (size_t)size);
    get_begin(user, &transfer, memory, there, size, number + 1);
    finish_well(user, &transfer);
    CHECK(user->rank, pattern_holds(memory, size, (uint64_t)size));
}

/* Calls, and transfers of each size. The classic library's limit is 16 MiB. */
static void bulk(struct rank *rank)
{
    static const bmi_size_t sizes[] = {1, 4096, 70000, 17 * MIB};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    struct user user = user_begin(rank);
    char *there, *memory = memory_take(rank, sizes[COUNT - 1]);
    if (rank->role == RECEIVER) {
        rank_write(rank, SENDER, &memory, sizeof memory);
        serve_call(&user, 1);
        serve_call(&user, 2);
    } else {
        rank_read_idle(rank, RECEIVER, &there, sizeof there);
        call(&user, 1);
        for (int i = 0; i < COUNT; i++)
            copy_there_and_back(&user, memory, there, sizes[i], 2 * i + 1);
        call(&user, 2);
    }
    user_end(&user);
    memory_give_back(memory);
    rank_barrier(rank);
}

/* Cancels the operations that have an id, in the plugin's order. */
static void cancel(struct user *user, struct transfer *transfer)
{
    const bmi_op_id_t ids[] = {transfer->ack_id, transfer->request_id, transfer->data_id};
    for (int i = 0; i < 3; i++)
        if (ids[i] > 0)
            CHECK_STATUS(user->rank, BMI_cancel(ids[i], user->context), 0);
}

/* Given: a peer that is not making progress. Then: each operation ends once, cancelled or not, and
 * the next call works. */
static void cancel_transfers(struct rank *rank)
{
    struct user user = user_begin(rank);
    char *there, *memory = memory_take(rank, MIB);
    struct transfer get, put;
    rank_warm_up(rank);
    if (rank->role == RECEIVER) {
        rank_write(rank, SENDER, &memory, sizeof memory);
        rank_barrier_idle(rank);
        serve_call(&user, 1);
    } else {
        rank_read_idle(rank, RECEIVER, &there, sizeof there);
        get_begin(&user, &get, memory, there, MIB, 1);
        put_begin(&user, &put, memory, there, MIB, 2);
        cancel(&user, &get);
        cancel(&user, &put);
        rank_barrier_idle(rank);
        finish(&user, &get);
        finish(&user, &put);
        CHECK(rank, get.error == 0 || get.error == -BMI_ECANCEL);
        CHECK(rank, put.error == 0 || put.error == -BMI_ECANCEL);
        call(&user, 1);
    }
    for (int i = 0; i < SERVED; i++)
        cancel(&user, &user.served[i]);
    for (int i = 0; i < SERVED; i++)
        finish(&user, &user.served[i]);
    BMI_close_context(user.context);
    memory_give_back(memory);
    rank_barrier(rank);
}

/* Given: a call to a peer that has died. Then: its operations end with the cause. A cancel of them
 * succeeds, and nothing more is reported: the plugin, which drops such completions, gets no other.
 */
static void dead_peer(struct rank *rank)
{
    char answer[100];
    struct transfer one;
    if (rank->role == RECEIVER) {
        rank_start_server(rank, NULL, 0);
        rank_write(rank, SENDER, rank->listen, sizeof rank->listen);
        struct user server = user_begin(rank);
        serve_call(&server, 1);
        rank_await_signal(rank, SENDER);
        rank_crash(rank);
    }
    rank_start_client(rank);
    rank_read_idle(rank, RECEIVER, rank->peer_url, sizeof rank->peer_url);
    rank->peer = rank_look_up(rank, rank->peer_url);
    struct user user = user_begin(rank);
    call(&user, 1);
    call_begin(&user, &one, answer, sizeof answer);
    rank_signal(rank, RECEIVER);
    finish(&user, &one);
    CHECK(rank, error_is_loss(one.error));
    cancel(&user, &one);
    CHECK_EQUAL(rank, progress(&user, 0), 0);
    BMI_close_context(user.context);
    rank_stop(rank);
}

/* Role 0 gets from role 1 while role 1 puts into role 0, both under the same number, since each
 * counts its own transfers. Each has dialled the other, `first` before. */
static void pull_and_push(struct rank *rank, int first)
{
    enum { SIZE = 5000 };
    char pulled[SIZE], pushed[SIZE], local[SIZE], *there, *here = rank->role ? pulled : pushed;
    if (rank->role == 0)
        NEED_STATUS(rank, BMI_set_info(0, BMI_SETTING, "join=off"), 0);
    struct user user = user_begin(rank);
    struct transfer transfer;
    pattern_fill(pulled, SIZE, 1);
    for (int turn = 0; turn < 2; turn++) {
        if (rank->role == (turn == 0 ? first : 1 - first))
            call(&user, 1);
        else
            serve_call(&user, 1);
        rank_barrier_idle(rank);
    }
    struct bmi_statistics counts = statistics_of(rank, 0);
    CHECK_EQUAL(rank, counts.connects, 1);
    CHECK_EQUAL(rank, counts.accepts, 1);
    rank_write(rank, rank_other(rank), &here, sizeof here);
    rank_read_idle(rank, rank_other(rank), &there, sizeof there);
    if (rank->role == 0)
        get_begin(&user, &transfer, local, there, SIZE, 1);
    rank_barrier_idle(rank);
    if (rank->role == 1) {
        pattern_fill(local, SIZE, 2);
        put_begin(&user, &transfer, local, there, SIZE, 1);
    }
    finish_well(&user, &transfer);
    await_count(&user, &user.requests, 1);
    user_end(&user);
    if (rank->role == 0) {
        CHECK(rank, pattern_holds(local, SIZE, 1));
        CHECK(rank, pattern_holds(pushed, SIZE, 2));
    }
}

static void pull_and_push_first(struct rank *rank)
{
    pull_and_push(rank, 0);
}

static void pull_and_push_second(struct rank *rank)
{
    pull_and_push(rank, 1);
}

/* A server of one scheme, bound to one host without a port, looks its own address up. */
static void own_address(struct rank *rank)
{
    static const char *const hosts[] = {"127.0.0.1", "0.0.0.0", "localhost"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        char method[100], listen[200], url[200];
        int port = 0;
        if (strcmp(rank->method->scheme, "tls") == 0 && strcmp(hosts[i], "0.0.0.0") == 0)
            continue; /* no certificate names it */
        snprintf(method, sizeof method, "bmi_%s", rank->method->scheme);
        snprintf(listen, sizeof listen, "%s://%s", rank->method->scheme, hosts[i]);
        NEED_STATUS(rank, BMI_initialize(method, listen, BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC),
                    0);
        NEED_STATUS(rank, BMI_get_info(0, BMI_TCP_GET_PORT, &port), 0);
        CHECK(rank, port > 0);
        snprintf(url, sizeof url, "%s://%s:%d", rank->method->scheme, hosts[i], port);
        rank->peer = rank_look_up(rank, url);
        CHECK(rank, strcmp(BMI_addr_rev_lookup(rank->peer), url) == 0);
        NEED_STATUS(rank, BMI_open_context(&rank->context), 0);
        message_pass_self(rank);
        rank_stop(rank);
    }
}

#define SECTION .section = "Functions"
const struct conformance_case mercury_cases[] = {
    {SECTION, .name = "mercury: a server's own address", .run = own_address, .where = RAW | PORTS},
    {SECTION, .name = "mercury: calls and bulk transfers", .run = bulk, .where = PROCESSES},
    {SECTION, .name = "mercury: cancelled bulk transfers", .run = cancel_transfers,
     .where = PROCESSES},
    {SECTION, .name = "mercury: a call to a dead peer", .run = dead_peer,
     .where = CAST | OF_PROCESS, .roles = 2},
    {SECTION, .name = "mercury: pull and push at once, join=off", .run = pull_and_push_first,
     .where = BOTH_LISTEN},
    {SECTION, .name = "mercury: push and pull at once, join=off", .run = pull_and_push_second,
     .where = BOTH_LISTEN},
    {0},
};
