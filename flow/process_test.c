/* SPDX-License-Identifier: BSD-3-Clause
 *
 * process_test.c - flows between processes over tcp: a client and servers that store on a folder
 * and in memory; and a client whose server is killed in the midst of a flow. Also flows of a child
 * of fork().
 *
 * A request is an unexpected message; the reply has the result of the server's flow. A server is
 * this program, started anew.
 */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "flow/flow_testing.h"
#include "flow/internal.h"

enum { SERVERS = 2, SIZE = 9 * 1024 * 1024 + 333, REPLY_TAG = 7, FLOW_TAG = 8 };
enum request_kind { REQUEST_PUT, REQUEST_GET, REQUEST_STOP };

struct request {
    uint32_t kind, server;
    bmi_size_t size;
};

struct reply {
    bmi_error_code_t error;
    bmi_size_t actual;
};

static struct folder folder;
static struct bmi_flow_extent extent = {.offset = 0, .size = SIZE, .count = 1};
static char file[SIZE], arrived[SIZE];

static struct bmi_flow_description striped(uint32_t server)
{
    return (struct bmi_flow_description){.extents = &extent,
                                         .extent_count = 1,
                                         .distribution = &bmi_flow_simple_stripe,
                                         .server = server,
                                         .servers = SERVERS,
                                         .timeout_ms = PATIENCE_MS};
}

/* ---- servers --------------------------------------------------------------------------------- */

/* Ends a server if the expectation fails: the client notices that. */
static void need(bool holds)
{
    if (!holds)
        _exit(3);
}

static void server_flow(const struct request *request, BMI_addr_t client,
                        const struct bmi_trove_place *place, struct reply *reply)
{
    struct bmi_flow_description what = striped(request->server);
    struct bmi_flow_endpoint network = {.kind = BMI_FLOW_NETWORK,
                                        .u.network = {.address = client, .tag = FLOW_TAG}};
    bool put = request->kind == REQUEST_PUT;
    bmi_flow_id_t id;
    int count = 0;
    what.source = put ? network : on_storage(place);
    what.destination = put ? on_storage(place) : network;
    extent.size = request->size;
    int result = bmi_flow_post(&id, &what, NULL, context);
    *reply = (struct reply){.error = result < 0 ? result : 0, .actual = -1};
    if (result == 0)
        need(bmi_flow_test(id, &count, &reply->error, &reply->actual, NULL, 2 * PATIENCE_MS,
                           context) == 1);
}

static void reply_send(BMI_addr_t client, struct reply *reply)
{
    bmi_context_id replies;
    bmi_op_id_t op;
    bmi_error_code_t error = 0;
    int count;
    need(BMI_open_context(&replies) == 0);
    int result = BMI_post_send(&op, client, reply, sizeof *reply, BMI_EXT_ALLOC, REPLY_TAG, NULL,
                               replies, NULL);
    if (result == 0)
        need(BMI_test(op, &count, &error, NULL, NULL, PATIENCE_MS, replies) == 1);
    BMI_close_context(replies);
}

static uint32_t own_number; /* of a server */
static int own_pipe;

static void server_run(void)
{
    uint32_t number = own_number;
    int tell = own_pipe;
    char address[BMI_MAX_ADDR_LEN] = "", where[400];
    need(BMI_initialize("bmi_tcp", "tcp://127.0.0.1:0", BMI_INIT_SERVER) == 0);
    need(BMI_get_info(0, BMI_GET_LISTEN_ADDR, address) == 0);
    snprintf(where, sizeof where, "dir:%s", folder.path);
    need(bmi_trove_open(&store, number == 0 ? where : "mem:",
                        &(struct bmi_trove_settings){.create = true}, NULL, 0) == 0);
    need(bmi_trove_collection_create(store, 1) == 0);
    need(bmi_trove_context_open(&storage_context) == 0);
    need(bmi_flow_context_open(&context) == 0);
    struct bmi_trove_place place = object_make("", 0);
    need(write(tell, address, sizeof address) == sizeof address);
    for (bool stop = false; !stop;) {
        struct BMI_unexpected_info message;
        int count = 0;
        need(BMI_testunexpected(1, &count, &message, 1000) >= 0);
        if (count == 0)
            continue;
        struct request request;
        need(message.size == sizeof request);
        memcpy(&request, message.buffer, sizeof request);
        BMI_unexpected_free(message.addr, message.buffer);
        struct reply reply = {0};
        stop = request.kind == REQUEST_STOP;
        if (!stop)
            server_flow(&request, message.addr, &place, &reply);
        reply_send(message.addr, &reply);
    }
    need(bmi_flow_context_close(context) == 0);
    need(bmi_trove_context_close(storage_context) == 0);
    need(bmi_trove_close(store) == 0);
    need(BMI_finalize() == 0);
    _exit(0);
}

static void server_exec(uint32_t number, int tell)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char number_text[16], tell_text[16];
    snprintf(number_text, sizeof number_text, "%u", (unsigned)number);
    snprintf(tell_text, sizeof tell_text, "%d", tell);
    execl("/proc/self/exe", "flow_process", number_text, tell_text, folder.path, (char *)NULL);
    _exit(2);
}

static pid_t server_pids[SERVERS];
static BMI_addr_t servers[SERVERS];

static void set_up(void)
{
    char address[BMI_MAX_ADDR_LEN], addresses[SERVERS][BMI_MAX_ADDR_LEN];
    folder_make(&folder);
    bytes_make(file, SIZE, 3);
    for (uint32_t i = 0; i < SERVERS; i++) {
        int ends[2];
        CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
        server_pids[i] = fork();
        if (server_pids[i] == 0)
            server_exec(i, ends[1]);
        close(ends[1]);
        size_t got = 0;
        for (ssize_t more; got < sizeof address &&
                           (more = read(ends[0], address + got, sizeof address - got)) > 0;)
            got += (size_t)more;
        CU_ASSERT_EQUAL_FATAL(got, sizeof address);
        memcpy(addresses[i], address, sizeof address);
        close(ends[0]);
    }
    CU_ASSERT_EQUAL_FATAL(BMI_initialize(NULL, NULL, 0), 0);
    for (int i = 0; i < SERVERS; i++)
        CU_ASSERT_EQUAL_FATAL(BMI_addr_lookup(&servers[i], addresses[i]), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&context), 0);
}

/* ---- the client ------------------------------------------------------------------------------ */

static bmi_context_id client_context;

static void request_send(uint32_t server, enum request_kind kind, bmi_size_t size)
{
    struct request request = {.kind = kind, .server = server, .size = size};
    bmi_op_id_t op;
    bmi_error_code_t error = 0;
    int count = 0, result;
    result = BMI_post_sendunexpected(&op, servers[server], &request, sizeof request, BMI_EXT_ALLOC,
                                     1, NULL, client_context, NULL);
    CU_ASSERT_FATAL(result >= 0);
    if (result == 0)
        CU_ASSERT_EQUAL(BMI_test(op, &count, &error, NULL, NULL, PATIENCE_MS, client_context), 1);
    CU_ASSERT_EQUAL(error, 0);
}

static bmi_size_t reply_size;

static int reply_post(uint32_t server, struct reply *reply, bmi_op_id_t *op)
{
    return BMI_post_recv(op, servers[server], reply, sizeof *reply, &reply_size, BMI_EXT_ALLOC,
                         REPLY_TAG, NULL, client_context, NULL);
}

/* The result of a reply whose receive was posted with this result. */
static bmi_error_code_t reply_await(int posted, bmi_op_id_t op)
{
    bmi_error_code_t error = posted < 0 ? posted : 0;
    int count = 0;
    if (posted == 0)
        CU_ASSERT_EQUAL(BMI_test(op, &count, &error, NULL, NULL, PATIENCE_MS, client_context), 1);
    return error;
}

static bmi_error_code_t reply_take(uint32_t server, struct reply *reply)
{
    bmi_op_id_t op = 0;
    int posted = reply_post(server, reply, &op);
    return reply_await(posted, op);
}

/* Posts a flow with each server, then sends the request: a flow belongs to the connection of its
 * post. */
static void transfer_begin(enum request_kind kind, struct flows *flows, struct region *region)
{
    for (uint32_t i = 0; i < SERVERS; i++) {
        struct bmi_flow_description what = striped(i);
        struct bmi_flow_endpoint network = {.kind = BMI_FLOW_NETWORK,
                                            .u.network = {.address = servers[i], .tag = FLOW_TAG}};
        what.source = kind == REQUEST_PUT ? in_memory(region) : network;
        what.destination = kind == REQUEST_PUT ? network : in_memory(region);
        flows_post(flows, &what);
        request_send(i, kind, SIZE);
    }
}

static void transfer(enum request_kind kind, char *bytes)
{
    struct region region = {bytes, SIZE};
    struct flows flows = {0};
    transfer_begin(kind, &flows, &region);
    flows_wait(&flows);
    for (uint32_t i = 0; i < SERVERS; i++) {
        struct reply reply;
        CU_ASSERT_EQUAL(flows.errors[i], 0);
        CU_ASSERT_EQUAL(reply_take(i, &reply), 0);
        CU_ASSERT_EQUAL(reply.error, 0);
    }
}

static void tear_down(void)
{
    CU_ASSERT_EQUAL(bmi_flow_context_close(context), 0);
    BMI_close_context(client_context);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
    folder_remove(&folder);
}

static void server_wait(uint32_t server, bool killed)
{
    int status = 0;
    CU_ASSERT_EQUAL(waitpid(server_pids[server], &status, 0), server_pids[server]);
    CU_ASSERT_EQUAL(killed ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0,
                    1);
}

/* The server answers and ends. Its connection drops an answer that has no receive yet. */
static void server_stop(uint32_t server)
{
    struct reply reply;
    bmi_op_id_t op = 0;
    int posted = reply_post(server, &reply, &op);
    request_send(server, REQUEST_STOP, 0);
    CU_ASSERT_EQUAL(reply_await(posted, op), 0);
    server_wait(server, false);
}

static void a_file_goes_to_servers_and_back(void)
{
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&client_context), 0);
    for (int round = 0; round < 3; round++) {
        bytes_make(file, SIZE, 100 + (unsigned)round);
        memset(arrived, 0, SIZE);
        transfer(REQUEST_PUT, file);
        transfer(REQUEST_GET, arrived);
        CU_ASSERT_EQUAL(memcmp(file, arrived, SIZE), 0);
    }
    for (uint32_t i = 0; i < SERVERS; i++)
        server_stop(i);
}

/* One server is killed while both send: its flow ends with a cause, the other's continues. */
static void a_killed_server_ends_its_flows_only(void)
{
    struct region region = {arrived, SIZE};
    struct flows flows = {0};
    struct bmi_flow_progress progress = {0};
    struct reply reply;
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&client_context), 0);
    transfer(REQUEST_PUT, file);
    memset(arrived, 0, SIZE);
    kill(server_pids[0], SIGSTOP); /* so that the flow has not ended when it is killed */
    transfer_begin(REQUEST_GET, &flows, &region);
    bmi_flow_id_t first = flows.ids[0];
    do {
        bmi_error_code_t error;
        int count = 0;
        CU_ASSERT_EQUAL_FATAL(bmi_flow_test(first, &count, &error, NULL, NULL, 10, context), 0);
        CU_ASSERT_EQUAL(bmi_flow_progress(flows.ids[1], &progress, context), 0);
    } while (progress.good < progress.total || progress.total < 0);
    kill(server_pids[0], SIGKILL);
    flows_wait(&flows);
    server_wait(0, true);
    CU_ASSERT(flows.errors[0] == -BMI_ECONNRESET || flows.errors[0] == -BMI_EPIPE);
    CU_ASSERT_EQUAL(flows.actuals[0], 0);
    CU_ASSERT_EQUAL(flows.errors[1], 0);
    CU_ASSERT_EQUAL(reply_take(1, &reply), 0);
    CU_ASSERT_EQUAL(reply.error, 0);
    server_stop(1);
}

/* ---- children -------------------------------------------------------------------------------- */

/* Small enough that no thread is started, which ThreadSanitizer forbids in a child. */
static bool storage_is_read(void)
{
    enum { LITTLE = 300000 };
    const struct bmi_flow_extent little = {.size = LITTLE, .count = 1};
    const struct region memory = {arrived, LITTLE};
    bytes_make(file, LITTLE, 9);
    memset(arrived, 0, LITTLE);
    struct bmi_trove_place place = object_make(file, LITTLE);
    struct bmi_flow_description what = {.source = on_storage(&place),
                                        .destination = in_memory(&memory),
                                        .extents = &little,
                                        .extent_count = 1};
    return flow_run(&what, NULL) == 0 && memcmp(file, arrived, LITTLE) == 0;
}

/* It has its own store and contexts; those of its parent are unknown. */
static void child_run_flow(void)
{
    bmi_flow_context_id_t parents = context;
    alarm(PATIENCE_MS / 1000);
    store_open();
    CU_ASSERT_EQUAL(bmi_flow_context_close(parents), -BMI_EINVAL);
    CU_ASSERT_TRUE(storage_is_read());
    store_close();
    _exit(CU_get_number_of_failures() > 0);
}

/* It is forked while another thread is in a call. */
static void a_child_has_flows_of_its_own(void)
{
    int status = 0;
    CU_ASSERT_TRUE(storage_is_read());
    pthread_mutex_lock(&bmi__flow_space.lock);
    pid_t child = fork();
    if (child == 0)
        child_run_flow();
    pthread_mutex_unlock(&bmi__flow_space.lock);
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
    CU_ASSERT_TRUE(storage_is_read());
}

static CU_TestInfo cases[] = {{"a file goes to servers and back", a_file_goes_to_servers_and_back},
                              {"a killed server ends its flows only",
                               a_killed_server_ends_its_flows_only},
                              CU_TEST_INFO_NULL};

static CU_TestInfo children[] = {{"a child has flows of its own", a_child_has_flows_of_its_own},
                                 CU_TEST_INFO_NULL};

int main(int argc, char **argv)
{
    if (argc == 4) {
        snprintf(folder.path, sizeof folder.path, "%s", argv[3]);
        own_number = (uint32_t)atoi(argv[1]);
        own_pipe = atoi(argv[2]);
        return child_run(server_run);
    }
    CU_SuiteInfo suites[] = {{"flow processes", NULL, NULL, set_up, tear_down, cases},
                             {"flows of a child", NULL, NULL, store_open, store_close, children},
                             CU_SUITE_INFO_NULL};
    return unit_run_suites(suites);
}
