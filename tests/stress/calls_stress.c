/* SPDX-License-Identifier: BSD-3-Clause
 *
 * calls_stress.c - calls of bmi/rpc.h from many threads to servers that are killed and started
 * again.
 *
 * A process of 16 threads calls four server processes: bodies of random size and mode both ways,
 * random cancels and short deadlines. The servers answer at once, from a thread of the blocking
 * pool, or later from a thread of their own; some requests they unpack later, some they forward to
 * another server. The parent kills servers. Each call ends exactly once, with the right bytes or
 * with a cause that it can have; in the end every server answers, and nothing waits anywhere.
 *
 * usage: calls_stress [SECONDS]
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bmi/rpc.h"
#include "support.h"

enum { SERVERS = 4, THREADS = 16, CALLS = 8, SIZE_MAX_BYTES = 600000, SECONDS = 8 };
enum work { AT_ONCE, LATER_REPLY, FAILS, WORKS };

static atomic_bool *calm; /* shared: no server is killed any more */

/* ---- the servers ----------------------------------------------------------------------------- */

struct job {
    struct job *next; /* the helper's queue */
    struct bmi_rpc_request *request;
    void *memory;
    const char *forward; /* the address of another server, or "" */
    uint64_t key, size, reply_size;
    bool deferred;
    enum work work;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wanted = PTHREAD_COND_INITIALIZER;
static struct job *queue; /* lock */
static bool stopping;     /* lock */
static atomic_int alive;

static void helper_give(struct job *job)
{
    pthread_mutex_lock(&lock);
    job->next = queue;
    queue = job;
    pthread_cond_signal(&wanted);
    pthread_mutex_unlock(&lock);
}

static int job_unpack(struct job *job, struct bmi_message *arguments)
{
    job->memory = malloc(job->size + 1);
    return bmi_unpack(arguments, job->memory, (bmi_size_t)job->size, BMI_UNPACK_CHEAPER);
}

static int work_arrived(struct bmi_rpc_request *request, struct bmi_message *arguments)
{
    struct job *job = calloc(1, sizeof *job);
    uint32_t work, later;
    atomic_fetch_add(&alive, 1);
    bmi_rpc_set_data(request, job);
    job->request = request;
    if (bmi_unpack_u64(arguments, &job->key) != 0 || bmi_unpack_u64(arguments, &job->size) != 0 ||
        bmi_unpack_u64(arguments, &job->reply_size) != 0 || bmi_unpack_u32(arguments, &work) != 0 ||
        bmi_unpack_u32(arguments, &later) != 0 || bmi_unpack_string(arguments, &job->forward) != 0)
        return -BMI_EBADMSG;
    job->work = (enum work)work;
    job->deferred = later != 0;
    if (!job->deferred)
        return job_unpack(job, arguments);
    helper_give(job);
    return BMI_RPC_LATER;
}

static void job_reply(struct job *job)
{
    struct bmi_message *reply = bmi_message_new();
    job->memory = realloc(job->memory, job->reply_size + 1);
    pattern_fill(job->memory, job->reply_size, job->key + 1, 0);
    bmi_pack_u64(reply, job->key);
    bmi_pack(reply, job->memory, (bmi_size_t)job->reply_size,
             BMI_PACK_CHEAPER | BMI_UNPACK_CHEAPER);
    must(bmi_rpc_reply(job->request, reply), "bmi_rpc_reply");
}

static void job_forward(const struct job *job)
{
    BMI_addr_t other;
    must(BMI_addr_lookup(&other, job->forward), "BMI_addr_lookup");
    must(bmi_rpc_forward(job->request, other, "last", NULL), "bmi_rpc_forward");
}

static void work_run(struct bmi_rpc_request *request)
{
    struct job *job = bmi_rpc_data(request);
    int64_t wrong = pattern_wrong(job->memory, job->size, job->key, 0);
    CHECK(wrong < 0, "a request's byte %lld is wrong", (long long)wrong);
    if (job->forward[0] != '\0' && bmi_rpc_argument(request) == NULL)
        job_forward(job);
    else if (job->work == AT_ONCE)
        job_reply(job);
    else if (job->work == FAILS)
        must(bmi_rpc_fail(request, -BMI_ENOSPC), "bmi_rpc_fail");
    else
        helper_give(job);
}

static void work_ended(struct bmi_rpc_request *request, bmi_error_code_t status)
{
    struct job *job = bmi_rpc_data(request);
    (void)status;
    free(job->memory);
    free(job);
    atomic_fetch_sub(&alive, 1);
}

/* Unpacks the deferred requests, and answers those that wait. */
static void *helper_run(void *argument)
{
    (void)argument;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (queue == NULL && !stopping)
            pthread_cond_wait(&wanted, &lock);
        struct job *job = queue;
        queue = job != NULL ? job->next : NULL;
        pthread_mutex_unlock(&lock);
        if (job == NULL)
            return NULL;
        if (!job->deferred) {
            job_reply(job);
            continue;
        }
        job->deferred = false;
        must(job_unpack(job, bmi_rpc_arguments(job->request)), "unpacking later");
        must(bmi_rpc_resume(job->request), "bmi_rpc_resume");
    }
}

static int server_main(void *argument, int channel)
{
    static const struct bmi_rpc_service work = {.arrived = work_arrived,
                                                .run = work_run,
                                                .ended = work_ended};
    static const struct bmi_rpc_service pool = {.arrived = work_arrived,
                                                .run = work_run,
                                                .ended = work_ended,
                                                .options = BMI_RPC_BLOCKING};
    struct bmi_rpc_service last = work, quick = work;
    char address[64], listening[BMI_MAX_ADDR_LEN];
    bmi_context_id context;
    pthread_t helper;
    test_address(address, *(unsigned *)argument);
    serve(address, 0, listening);
    must(BMI_open_context(&context), "BMI_open_context");
    char grace[] = "cancel_grace_ms=60000"; /* callers are slow, but take everything */
    must(BMI_set_info(0, BMI_SETTING, grace), "BMI_set_info");
    must(bmi_rpc_register("work", &work), "bmi_rpc_register");
    must(bmi_rpc_register("pool", &pool), "bmi_rpc_register");
    quick.timeout_ms = 5;
    must(bmi_rpc_register("quick", &quick), "bmi_rpc_register");
    last.argument = &last; /* does not forward */
    must(bmi_rpc_register("last", &last), "bmi_rpc_register");
    pthread_create(&helper, NULL, helper_run, NULL);
    tell(channel, listening, sizeof listening);
    struct completion completion;
    while (!heard(channel, 0))
        next_completion(context, 20, &completion);
    for (uint64_t until = now_ns() + TEST_BOUND_MS * UINT64_C(1000000);
         atomic_load(&alive) > 0 && now_ns() < until;)
        next_completion(context, 20, &completion);
    CHECK(atomic_load(&alive) == 0, "%d requests are left", atomic_load(&alive));
    pthread_mutex_lock(&lock);
    stopping = true;
    pthread_cond_signal(&wanted);
    pthread_mutex_unlock(&lock);
    pthread_join(helper, NULL);
    BMI_close_context(context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* ---- the caller ------------------------------------------------------------------------------ */

struct call {
    bmi_op_id_t id;
    void *memory, *reply;
    uint64_t key, size, reply_size;
    bool pending, cancelled, has_deadline, fails;
    bool may_be_lost; /* with the connection to a server that was killed */
    bool succeeded;
};

static BMI_addr_t servers[SERVERS];
static char (*server_urls)[BMI_MAX_ADDR_LEN];
static atomic_ullong succeeded, failed;

static int reply_unpack(struct bmi_message *reply, void *argument)
{
    struct call *call = argument;
    uint64_t key;
    int status = bmi_unpack_u64(reply, &key);
    if (status < 0)
        return status;
    CHECK(key == call->key, "a reply of another call");
    return bmi_unpack(reply, call->reply, (bmi_size_t)call->reply_size, BMI_UNPACK_CHEAPER);
}

static uint64_t size_draw(struct chance *chance)
{
    static const uint64_t limits[] = {16, 4000, 70000, SIZE_MAX_BYTES};
    return chance_below(chance, limits[chance_below(chance, 4)]);
}

static void call_end(struct call *call, int status)
{
    CHECK(call->pending, "a call ended twice");
    call->pending = false;
    bool good = status == 0 && !call->fails;
    if (good) {
        int64_t wrong = pattern_wrong(call->reply, call->reply_size, call->key + 1, 0);
        CHECK(wrong < 0, "a reply's byte %lld is wrong", (long long)wrong);
    }
    bool lost = status == -BMI_ECONNRESET || status == -BMI_ECONNREFUSED || status == -BMI_EPIPE ||
                status == -BMI_ETIMEDOUT || status == -BMI_EHOSTUNREACH;
    CHECK(good || (call->fails && status == -BMI_ENOSPC) ||
              (call->cancelled && status == -BMI_ECANCEL) ||
              (call->has_deadline && status == -BMI_ETIMEDOUT) || (lost && call->may_be_lost),
          "a call ended with %s", status_name(status));
    atomic_fetch_add(good ? &succeeded : &failed, 1);
    free(call->memory);
    free(call->reply);
    call->succeeded = good;
}

static void call_begin(struct call *call, BMI_addr_t server, bmi_context_id context,
                       struct chance *chance, bool plain, bool may_be_lost)
{
    static const unsigned modes[] = {BMI_PACK_SAFER, BMI_PACK_LATER, BMI_PACK_CHEAPER};
    enum work work = plain ? AT_ONCE : (enum work)chance_below(chance, WORKS);
    *call = (struct call){.key = chance_next(chance),
                          .size = size_draw(chance),
                          .reply_size = size_draw(chance),
                          .pending = true,
                          .fails = work == FAILS,
                          .may_be_lost = may_be_lost};
    struct bmi_rpc_options options = {0};
    if (!plain && chance_below(chance, 8) == 0)
        options.timeout_ms = 1 + (int)chance_below(chance, 30);
    static const char *const services[] = {"work", "pool", "quick"};
    unsigned service = (unsigned)chance_below(chance, plain ? 2 : 3);
    call->has_deadline = options.timeout_ms > 0 || service == 2;
    call->memory = malloc(call->size + 1);
    call->reply = malloc(call->reply_size + 1);
    pattern_fill(call->memory, call->size, call->key, 0);
    struct bmi_message *request = bmi_message_new();
    bmi_pack_u64(request, call->key);
    bmi_pack_u64(request, call->size);
    bmi_pack_u64(request, call->reply_size);
    bmi_pack_u32(request, work);
    bmi_pack_u32(request, !plain && chance_below(chance, 5) == 0);
    bool forward = !plain && chance_below(chance, 4) == 0;
    bmi_pack_string(request, forward ? server_urls[chance_below(chance, SERVERS)] : "");
    bmi_pack(request, call->memory, (bmi_size_t)call->size,
             modes[chance_below(chance, 3)] | BMI_UNPACK_CHEAPER);
    int status = bmi_rpc_call(&call->id, server, services[service], request, reply_unpack, call,
                              &options, call, context);
    if (status != 0)
        call_end(call, status == 1 ? 0 : status);
}

static void caller_look(struct call *calls, bmi_context_id context, struct chance *chance,
                        unsigned *pending)
{
    struct completion completion;
    if (next_completion(context, 10, &completion))
        call_end(completion.user, completion.status);
    *pending = 0;
    for (int i = 0; i < CALLS; i++) {
        *pending += calls[i].pending;
        if (calls[i].pending && !calls[i].cancelled && chance_below(chance, 100) == 0) {
            calls[i].cancelled = true;
            must(BMI_cancel(calls[i].id, context), "BMI_cancel");
        }
    }
}

/* Makes a call that at most the end of an old connection prevents. */
static bool call_plain(struct call *call, BMI_addr_t server, bmi_context_id context,
                       struct chance *chance, bool may_be_lost)
{
    struct completion completion;
    call_begin(call, server, context, chance, true, may_be_lost);
    while (call->pending)
        if (next_completion(context, 100, &completion))
            call_end(completion.user, completion.status);
    return call->succeeded;
}

static void *caller_run(void *argument)
{
    struct chance chance = {.state = test_seed() + (uint64_t)(uintptr_t)argument};
    static struct call all[THREADS][CALLS];
    struct call *calls = all[(uintptr_t)argument];
    unsigned pending = 0;
    bmi_context_id context;
    must(BMI_open_context(&context), "BMI_open_context");
    while (!atomic_load(calm) || pending > 0) {
        for (int i = 0; i < CALLS && !atomic_load(calm); i++)
            if (!calls[i].pending)
                call_begin(&calls[i], servers[chance_below(&chance, SERVERS)], context, &chance,
                           false, true);
        caller_look(calls, context, &chance, &pending);
    }
    for (int i = 0; i < SERVERS; i++) {
        while (!call_plain(&calls[0], servers[i], context, &chance, true))
            ; /* the old connection's end is noticed; the test has a time-out */
        call_plain(&calls[0], servers[i], context, &chance, false);
    }
    BMI_close_context(context);
    return NULL;
}

/* Replies to calls that were cancelled still arrive, and are discarded. */
static struct bmi_statistics settled(void)
{
    struct bmi_statistics all = statistics_of(0);
    struct completion completion;
    bmi_context_id context;
    must(BMI_open_context(&context), "BMI_open_context");
    for (uint64_t until = now_ns() + TEST_BOUND_MS * UINT64_C(1000000);
         all.unmatched_messages > 0 && now_ns() < until; all = statistics_of(0))
        next_completion(context, 20, &completion);
    BMI_close_context(context);
    return all;
}

static int client_main(void *argument, int channel)
{
    pthread_t threads[THREADS];
    server_urls = argument;
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    for (int i = 0; i < SERVERS; i++)
        must(BMI_addr_lookup(&servers[i], server_urls[i]), "BMI_addr_lookup");
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, caller_run, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    struct bmi_statistics all = settled();
    CHECK(all.unmatched_messages == 0, "%llu messages are left",
          (unsigned long long)all.unmatched_messages);
    printf("%llu calls succeeded, %llu failed as they may\n", (unsigned long long)succeeded,
           (unsigned long long)failed);
    CHECK(succeeded > 0, "no call succeeded");
    tell_number(channel, 1);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* ---- the parent ------------------------------------------------------------------------------ */

static void server_start(struct child *server, unsigned *port, char address[BMI_MAX_ADDR_LEN])
{
    *server = child_start("server", server_main, port);
    hear(server->channel, address, BMI_MAX_ADDR_LEN);
    *port = test_port(address);
}

int main(int count, char **arguments)
{
    static char addresses[SERVERS][BMI_MAX_ADDR_LEN];
    struct child server[SERVERS], client;
    unsigned port[SERVERS] = {0};
    unsigned seconds = count > 1 ? (unsigned)atoi(arguments[1]) : test_scaled(SECONDS, 2);
    test_begin("calls_stress", seconds + 60);
    calm = shared_memory(sizeof *calm);
    struct chance chance = {.state = test_seed()};
    for (int i = 0; i < SERVERS; i++)
        server_start(&server[i], &port[i], addresses[i]);
    client = child_start("client", client_main, addresses);
    for (uint64_t until = now_ns() + seconds * UINT64_C(1000000000); now_ns() < until;) {
        if (heard(client.channel, 300 + (int)chance_below(&chance, 700)))
            CHECK(false, "the client ended early");
        int one = (int)chance_below(&chance, SERVERS);
        child_kill(&server[one]);
        server_start(&server[one], &port[one], addresses[one]);
    }
    atomic_store(calm, true);
    (void)hear_number(client.channel);
    child_end(&client);
    for (int i = 0; i < SERVERS; i++) {
        tell_number(server[i].channel, 1);
        child_end(&server[i]);
    }
    return test_passed();
}
