/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc_stress.c - remote procedure calls with bulk transfers, written as an RPC library writes them,
 * while processes are stopped, killed, and started again.
 *
 * Each process has one thread that makes progress (testunexpected, then testcontext); others post,
 * wait, and cancel late operations. A caller posts the receive of its answer, then sends its
 * request as an unexpected message. The server moves the bulk: it requests a get or a put by its
 * own unexpected message, whose answer is the data and then a status. The parent stops and kills
 * clients and servers for a while. In all cases each call ends, in time, with a cause or with the
 * right bytes; and in the end each client completes its calls.
 *
 * A call's operations are counted in its group, under `lock`; the end of the last one wakes a
 * waiting thread or continues with the server's next step. No thread calls the library with `lock`
 * held.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support.h"

enum { CLIENTS = 4, CALLERS = 3, CALLS = 40, CHAOS_MS = 3000 };
enum {
    BULK_TAG = 7,
    ANSWER_TAG = 100,
    DATA_TAG = 1 << 20,
    BULK_MAX = 300000,
    OPS_MAX = 6,
    PATIENCE_MS = 20000
};
enum direction { GET = 1, PUT = 2 }; /* as the server sees it */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended;
static bmi_context_id context;
static _Atomic bool stopping;
static _Atomic bool *calm; /* the parent does not stop or kill its children any more */

/* ---- groups of operations -------------------------------------------------------------------- */

struct group;

struct op {
    struct group *group;
    bmi_op_id_t id;
    bmi_size_t actual;
    bool pending, posted; /* posted: the id is known */
};

struct group {
    struct op ops[OPS_MAX];
    unsigned used, pending;
    bool cancelled;
    int failure;                         /* error of the first failed operation */
    void (*finished)(struct group *all); /* NULL: a thread waits for `ended` */
};

static void group_release(struct group *group)
{
    pthread_mutex_lock(&lock);
    bool last = --group->pending == 0;
    void (*finished)(struct group *) = group->finished;
    if (last && finished == NULL)
        pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&lock);
    if (last && finished)
        finished(group);
}

static void op_end(struct op *op, int status, bmi_size_t actual)
{
    struct group *group = op->group;
    pthread_mutex_lock(&lock);
    CHECK(op->pending, "an operation ended twice");
    op->pending = false;
    op->actual = actual;
    if (status != 0 && group->failure == 0)
        group->failure = status;
    pthread_mutex_unlock(&lock);
    group_release(group);
}

/* The next place; the group's hold keeps it from finishing before all are posted. */
static struct op *op_next(struct group *group)
{
    pthread_mutex_lock(&lock);
    CHECK(group->used < OPS_MAX, "too many operations of one call");
    struct op *op = &group->ops[group->used++];
    op->group = group;
    op->pending = true;
    group->pending++;
    pthread_mutex_unlock(&lock);
    return op;
}

static void group_hold(struct group *group)
{
    pthread_mutex_lock(&lock);
    group->pending++;
    pthread_mutex_unlock(&lock);
}

/* After a post. The operation may have ended already, its group has not: see group_hold. */
static void posted(struct op *op, int result, bmi_size_t actual)
{
    if (result != 0) {
        op_end(op, result < 0 ? result : 0, actual);
        return;
    }
    pthread_mutex_lock(&lock);
    op->posted = true;
    bool cancelled = op->group->cancelled;
    pthread_mutex_unlock(&lock);
    if (cancelled)
        must(BMI_cancel(op->id, context), "BMI_cancel");
}

static void send_one(struct group *group, BMI_addr_t peer, const void *bytes, size_t size,
                     bmi_msg_tag_t tag)
{
    struct op *op = op_next(group);
    posted(op,
           BMI_post_send(&op->id, peer, bytes, (bmi_size_t)size, BMI_EXT_ALLOC, tag, op, context,
                         NULL),
           (bmi_size_t)size);
}

static void ask_one(struct group *group, BMI_addr_t peer, const void *bytes, size_t size,
                    bmi_msg_tag_t tag)
{
    struct op *op = op_next(group);
    posted(op,
           BMI_post_sendunexpected(&op->id, peer, bytes, (bmi_size_t)size, BMI_EXT_ALLOC, tag, op,
                                   context, NULL),
           (bmi_size_t)size);
}

static void receive_one(struct group *group, BMI_addr_t peer, void *bytes, size_t size,
                        bmi_msg_tag_t tag)
{
    struct op *op = op_next(group);
    int result = BMI_post_recv(&op->id, peer, bytes, (bmi_size_t)size, &op->actual, BMI_EXT_ALLOC,
                               tag, op, context, NULL);
    posted(op, result, result == 1 ? op->actual : 0);
}

/* Cancels all, as a program that does not know which of its operations still run. */
static void group_cancel(struct group *group)
{
    bmi_op_id_t ids[OPS_MAX];
    unsigned count = 0;
    pthread_mutex_lock(&lock);
    group->cancelled = true;
    for (unsigned i = 0; i < group->used; i++)
        if (group->ops[i].pending && group->ops[i].posted)
            ids[count++] = group->ops[i].id;
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < count; i++)
        must(BMI_cancel(ids[i], context), "BMI_cancel");
}

static bool group_wait(struct group *group, unsigned wait_ms)
{
    struct timespec until;
    int result = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&lock);
    while (group->pending > 0 && result == 0)
        result = pthread_cond_timedwait(&ended, &lock, &until);
    bool done = group->pending == 0;
    pthread_mutex_unlock(&lock);
    return done;
}

/* ---- messages -------------------------------------------------------------------------------- */

struct request {
    uint64_t call; /* names its bulk, and determines its bytes */
    uint32_t size;
    int32_t tag; /* of the answer */
    enum direction direction;
};

struct bulk_request {
    uint64_t call;
    uint32_t size;
    int32_t data_tag, word_tag;
    enum direction direction;
};

struct answer {
    uint64_t call;
    int64_t wrong; /* offset of the first wrong byte that the server got, or -1 */
};

/* ---- progress: one thread of each process ---------------------------------------------------- */

static void (*asked)(const struct BMI_unexpected_info *info);
static void (*tick)(void);

static void *progress_run(void *unused)
{
    (void)unused;
    while (!stopping) {
        struct BMI_unexpected_info info;
        struct completion completion;
        int count = 0;
        must(BMI_testunexpected(1, &count, &info, 0), "BMI_testunexpected");
        if (count > 0) {
            CHECK(info.error_code == 0, "an unexpected message: %s", status_name(info.error_code));
            asked(&info);
            must(BMI_unexpected_free(info.addr, info.buffer), "BMI_unexpected_free");
        } else if (next_completion(context, 50, &completion)) {
            op_end(completion.user, completion.status, completion.size);
        }
        if (tick)
            tick();
    }
    return NULL;
}

static pthread_t progress_start(void)
{
    pthread_condattr_t attributes;
    pthread_t thread;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&ended, &attributes);
    pthread_condattr_destroy(&attributes);
    must(BMI_open_context(&context), "BMI_open_context");
    CHECK(pthread_create(&thread, NULL, progress_run, NULL) == 0, "pthread_create");
    return thread;
}

/* ---- client ---------------------------------------------------------------------------------- */

struct call {
    struct group group;
    struct request request;
    struct answer answer;
    bool open; /* its bulk may be moved; under `lock` */
    char *bulk;
};

/* A status that no call waits for: its bulk does not exist any more. */
struct refusal {
    struct group group;
    int32_t word;
};

static struct call *calls[CALLERS]; /* under `lock` */
static BMI_addr_t server;
static _Atomic uint64_t called, failed, given_up;

static void refusal_end(struct group *group)
{
    free((struct refusal *)((char *)group - offsetof(struct refusal, group)));
}

static void bulk_refuse(BMI_addr_t peer, bmi_msg_tag_t tag)
{
    struct refusal *refusal = calloc(1, sizeof *refusal);
    CHECK(refusal, "no memory");
    refusal->group.finished = refusal_end;
    refusal->word = 1;
    group_hold(&refusal->group);
    send_one(&refusal->group, peer, &refusal->word, sizeof refusal->word, tag);
    group_release(&refusal->group);
}

static void client_asked(const struct BMI_unexpected_info *info)
{
    static int32_t well;
    struct bulk_request wanted;
    struct call *call = NULL;
    CHECK(info->tag == BULK_TAG && info->size == sizeof wanted, "a strange request");
    memcpy(&wanted, info->buffer, sizeof wanted);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < CALLERS; i++)
        if (calls[i] && calls[i]->open && calls[i]->request.call == wanted.call)
            call = calls[i];
    if (call) {
        call->group.pending++;
        call->open = false; /* once */
    }
    pthread_mutex_unlock(&lock);
    if (call == NULL) {
        bulk_refuse(info->addr, wanted.word_tag);
        return;
    }
    if (wanted.direction == GET)
        send_one(&call->group, info->addr, call->bulk, wanted.size, wanted.data_tag);
    else
        receive_one(&call->group, info->addr, call->bulk, wanted.size, wanted.data_tag);
    send_one(&call->group, info->addr, &well, sizeof well, wanted.word_tag);
    group_release(&call->group);
}

static void call_prepare(struct call *call, struct chance *chance, char *bulk)
{
    static _Atomic int32_t next_tag = ANSWER_TAG;
    static const uint32_t sizes[] = {1, 900, 9000, 40000, BULK_MAX};
    *call = (struct call){.bulk = bulk, .open = true};
    call->request.call = chance_next(chance);
    call->request.size = sizes[chance_below(chance, sizeof sizes / sizeof *sizes)];
    call->request.tag = next_tag++;
    call->request.direction = chance_below(chance, 2) ? GET : PUT;
    if (call->request.direction == GET)
        pattern_fill(bulk, call->request.size, call->request.call, 0);
    else
        memset(bulk, 0, call->request.size);
}

static bool call_good(const struct call *call)
{
    const struct request *request = &call->request;
    if (call->group.failure != 0 || call->open) {
        failed++;
        return false;
    }
    CHECK(call->answer.call == request->call, "another call's answer");
    CHECK(call->answer.wrong == -1, "the server got wrong bytes at %lld of %u",
          (long long)call->answer.wrong, request->size);
    int64_t wrong = pattern_wrong(call->bulk, request->size, request->call, 0);
    CHECK(wrong < 0, "wrong bytes at %lld of %u", (long long)wrong, request->size);
    called++;
    return true;
}

/* One call, from its posts to its end, with any result. */
static bool call_make(int caller, struct chance *chance, char *bulk)
{
    static const unsigned patience[] = {0, 1, 5, 500, 2000, 2000, 2000, 2000};
    struct call call;
    unsigned wait_ms = patience[chance_below(chance, sizeof patience / sizeof *patience)];
    call_prepare(&call, chance, bulk);
    pthread_mutex_lock(&lock);
    calls[caller] = &call;
    pthread_mutex_unlock(&lock);
    group_hold(&call.group);
    receive_one(&call.group, server, &call.answer, sizeof call.answer, call.request.tag);
    ask_one(&call.group, server, &call.request, sizeof call.request, call.request.tag);
    group_release(&call.group);
    bool in_time = group_wait(&call.group, wait_ms * test_slowness());
    pthread_mutex_lock(&lock);
    calls[caller] = NULL;
    pthread_mutex_unlock(&lock);
    if (!in_time) {
        given_up++;
        group_cancel(&call.group);
        CHECK(group_wait(&call.group, PATIENCE_MS * test_slowness()), "cancelled, and not ended");
    }
    return call_good(&call);
}

static void *caller_run(void *argument)
{
    int caller = *(int *)argument;
    struct chance chance = {test_seed() ^ ((uint64_t)caller << 32) ^ now_ns()};
    char *bulk = malloc(BULK_MAX);
    CHECK(bulk, "no memory");
    for (unsigned good = 0; !*calm || good < test_scaled(CALLS, 10);) {
        bool before = *calm;
        if (call_make(caller, &chance, bulk))
            good += before;
        else if (chance_below(&chance, 4) == 0)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL); /* as programs that retry */
    }
    free(bulk);
    return NULL;
}

static int client_main(void *argument, int channel)
{
    pthread_t progress, callers[CALLERS];
    int numbers[CALLERS];
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    must(BMI_addr_lookup(&server, argument), "BMI_addr_lookup");
    asked = client_asked;
    progress = progress_start();
    for (int i = 0; i < CALLERS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&callers[i], NULL, caller_run, &numbers[i]) == 0, "pthread_create");
    }
    for (int i = 0; i < CALLERS; i++)
        pthread_join(callers[i], NULL);
    stopping = true;
    pthread_join(progress, NULL);
    BMI_close_context(context);
    must(BMI_finalize(), "BMI_finalize");
    printf("  client: %llu calls, %llu given up, %llu failed\n", (unsigned long long)called,
           (unsigned long long)given_up, (unsigned long long)failed);
    tell_number(channel, (int64_t)called);
    return 0;
}

/* ---- server ---------------------------------------------------------------------------------- */

enum { WORD = 0 }; /* the place of the word's receive in its group */

/* Steps: the bulk, then the answer. Used by the progress thread alone. */
struct service {
    struct group group;
    struct service *next;
    struct request request;
    struct bulk_request wanted;
    struct answer answer;
    int32_t word; /* status of the bulk: 0 is success */
    BMI_addr_t client;
    uint64_t until_ns;
    bool cancelled;
    char bulk[];
};

static struct service *services;
static unsigned served, dropped;

static void service_end(struct service *service)
{
    struct service **link = &services;
    while (*link != service)
        link = &(*link)->next;
    *link = service->next;
    must(BMI_set_info(service->client, BMI_DEC_ADDR_REF, NULL), "BMI_DEC_ADDR_REF");
    free(service);
}

static void service_answered(struct group *group)
{
    served++;
    service_end((struct service *)group);
}

static void service_moved(struct group *group)
{
    struct service *service = (struct service *)group;
    const struct request *request = &service->request;
    if (group->failure != 0 || service->word != 0) {
        dropped++;
        service_end(service);
        return;
    }
    service->answer.call = request->call;
    service->answer.wrong = -1;
    if (request->direction == GET)
        service->answer.wrong = pattern_wrong(service->bulk, request->size, request->call, 0);
    *group = (struct group){.finished = service_answered};
    group_hold(group);
    send_one(group, service->client, &service->answer, sizeof service->answer, request->tag);
    group_release(group);
}

static void server_asked(const struct BMI_unexpected_info *info)
{
    static int32_t next_tag = DATA_TAG;
    struct request request;
    CHECK(info->size == sizeof request, "a strange request of %lld bytes", (long long)info->size);
    memcpy(&request, info->buffer, sizeof request);
    CHECK(request.tag == info->tag && request.size <= BULK_MAX, "a damaged request");
    struct service *service = calloc(1, sizeof *service + request.size);
    CHECK(service, "no memory");
    *service = (struct service){.next = services, .request = request, .client = info->addr};
    service->until_ns = now_ns() + UINT64_C(1000000) * 3000 * test_slowness();
    service->wanted = (struct bulk_request){request.call, request.size, next_tag, next_tag + 1,
                                            request.direction};
    next_tag += 2;
    services = service;
    service->group.finished = service_moved;
    group_hold(&service->group);
    receive_one(&service->group, info->addr, &service->word, sizeof service->word,
                service->wanted.word_tag);
    if (request.direction == GET) {
        receive_one(&service->group, info->addr, service->bulk, request.size,
                    service->wanted.data_tag);
    } else {
        pattern_fill(service->bulk, request.size, request.call, 0);
        send_one(&service->group, info->addr, service->bulk, request.size,
                 service->wanted.data_tag);
    }
    ask_one(&service->group, info->addr, &service->wanted, sizeof service->wanted, BULK_TAG);
    group_release(&service->group);
}

/* Cancels operations that take too long, or wait for data that will not come. */
static void server_tick(void)
{
    uint64_t now = now_ns();
    for (struct service *service = services, *next; service; service = next) {
        next = service->next;
        bool told = !service->group.ops[WORD].pending;
        bool hopeless = (told && service->word != 0) || service->group.failure != 0;
        if (!service->cancelled && (hopeless || now > service->until_ns)) {
            service->cancelled = true;
            group_cancel(&service->group);
        }
    }
}

static int server_main(void *argument, int channel)
{
    char listening[BMI_MAX_ADDR_LEN];
    unsigned port = *(unsigned *)argument;
    char address[64];
    test_address(address, port);
    serve(address, BMI_AUTO_REF_COUNT, listening);
    asked = server_asked;
    tick = server_tick;
    pthread_t progress = progress_start();
    tell(channel, listening, sizeof listening);
    hear_number(channel); /* the clients have ended */
    uint64_t until = now_ns() + UINT64_C(1000000) * PATIENCE_MS * test_slowness();
    while (method_statistics(test_method()).links > 0) {
        CHECK(now_ns() < until, "links to clients that are gone");
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL); /* its last ends are reported */
    stopping = true;
    pthread_join(progress, NULL);
    CHECK(services == NULL, "a service that never ended");
    printf("  server: %u served, %u dropped, %zu bytes in use\n", served, dropped, memory_in_use());
    BMI_close_context(context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* ---- the parent ------------------------------------------------------------------------------ */

static char listening[BMI_MAX_ADDR_LEN];
static unsigned port;
static struct child server_child, clients[CLIENTS];

static void server_begin(void)
{
    server_child = child_start("server", server_main, &port);
    hear(server_child.channel, listening, sizeof listening);
    port = test_port(listening);
}

static void pause_ms(unsigned ms)
{
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

static void stop_for_a_while(const struct child *child, struct chance *chance)
{
    child_signal(child, SIGSTOP);
    pause_ms((unsigned)chance_below(chance, 300));
    child_signal(child, SIGCONT);
}

static void trouble(struct chance *chance)
{
    unsigned which = (unsigned)chance_below(chance, CLIENTS);
    switch (chance_below(chance, 6)) {
    case 0:
        child_kill(&clients[which]);
        clients[which] = child_start("client", client_main, listening);
        break;
    case 1:
        child_kill(&server_child);
        pause_ms((unsigned)chance_below(chance, 200));
        server_begin();
        break;
    case 2:
        stop_for_a_while(&server_child, chance);
        break;
    default:
        stop_for_a_while(&clients[which], chance);
        break;
    }
}

int main(void)
{
    test_begin("rpc_stress", 60);
    struct chance chance = {test_seed()};
    calm = shared_memory(sizeof *calm);
    server_begin();
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = child_start("client", client_main, listening);
    uint64_t until = now_ns() + UINT64_C(1000000) * CHAOS_MS * test_slowness();
    while (now_ns() < until) {
        pause_ms(20 + (unsigned)chance_below(&chance, 200));
        trouble(&chance);
    }
    *calm = true;
    for (int i = 0; i < CLIENTS; i++)
        child_end(&clients[i]);
    tell_number(server_child.channel, 0);
    child_end(&server_child);
    return test_passed();
}
