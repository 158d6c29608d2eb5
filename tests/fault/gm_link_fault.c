/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gm_link_fault.c - attacks of a peer on the links of method gm that the library itself never
 * makes: the peer uses the software NIC directly, and receives and sends any messages, or none.
 *
 * The library serves in this process; the bad peers are ports of the NIC beside it, run by the same
 * thread. There are also clients with their own library, one of which is stopped.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "methods/gm-emu/nic/share.h"
#include "serve.h"

enum { SIZE = 15, BUFFERS = 4 }; /* the method's class of messages */

struct raw {
    struct nic_port *port;
    struct nic_peer *peer;
    bool up, down;
    int status;
};

static char listening[BMI_MAX_ADDR_LEN];

static void raw_step(struct raw *raw)
{
    struct nic_event *event = nic_receive(raw->port);
    switch (event->type) {
    case NIC_PEER_UP_EVENT:
        raw->up = true;
        break;
    case NIC_PEER_DOWN_EVENT:
        raw->down = true;
        raw->status = event->status;
        break;
    default:
        nic_unknown(raw->port, event);
    }
}

static bool in_time(uint64_t start)
{
    return now_ns() - start < TEST_BOUND_MS * UINT64_C(1000000);
}

static void links_end(void)
{
    uint64_t start = now_ns();
    while (method_statistics("bmi_gm").links > 0 && in_time(start))
        operations_step(10);
    CHECK(method_statistics("bmi_gm").links == 0, "a connection does not end");
}

static void buffers_provide(struct raw *raw)
{
    uint8_t *memory = nic_dma_malloc(raw->port, (uint64_t)BUFFERS << SIZE);
    CHECK(memory != NULL, "no memory of the NIC's");
    for (int i = 0; i < BUFFERS; i++)
        must(nic_provide_receive_buffer(raw->port, memory + ((size_t)i << SIZE), SIZE,
                                        NIC_LOW_PRIORITY),
             "nic_provide_receive_buffer");
}

static void raw_open(struct raw *raw)
{
    char host[BMI_MAX_ADDR_LEN];
    struct nic_options options;
    uint64_t start = now_ns();
    *raw = (struct raw){0};
    nic_options_default(&options);
    must(nic_open(&options, &raw->port), "nic_open");
    buffers_provide(raw);
    snprintf(host, sizeof host, "%s", strstr(listening, "://") + 3);
    *strrchr(host, ':') = '\0';
    must(nic_connect(raw->port, host, (uint16_t)test_port(listening), NULL, &raw->peer),
         "nic_connect");
    while (!raw->up && in_time(start)) {
        operations_step(0);
        raw_step(raw);
    }
    CHECK(raw->up, "the library's port takes no connection");
}

static void raw_close(struct raw *raw)
{
    nic_close(raw->port);
    links_end();
}

/* ---- messages that are no frames ------------------------------------------------------------- */

/* Sends bytes that begin no frame: the connection ends. */
static void no_frame(const char *name, int byte, size_t length)
{
    static uint8_t message[1 << SIZE];
    struct iovec iov = {message, length};
    struct raw raw;
    uint64_t before = method_statistics("bmi_gm").bad_frames, start = now_ns();
    raw_open(&raw);
    memset(message, byte, length);
    int result =
        nic_send_with_callback(raw.peer, &iov, 1, SIZE, NIC_LOW_PRIORITY, NIC_BUFFERED, NULL, NULL);
    CHECK(result == 1, "a message does not go at once: %d", result);
    while (!raw.down && in_time(start)) {
        operations_step(0);
        raw_step(&raw);
    }
    CHECK(raw.down, "%s: the connection was not ended", name);
    CHECK(method_statistics("bmi_gm").bad_frames == before + 1, "%s: ended for something else",
          name);
    raw_close(&raw);
    printf("  %s: ended\n", name);
}

/* ---- stopped clients ------------------------------------------------------------------------- */

enum {
    STOPPED = 4, /* that many, numbered from 0: their shares are all tokens */
    RUNNING = STOPPED,
    CLIENTS,
    PUTS = 24,
    PUT_SIZE = 64 << 10,
    HELLO_TAG = 3,
    READY_TAG,
    PUT_TAG
};

static BMI_addr_t addresses[CLIENTS + 1];
static unsigned ready;

static void client_heard(const struct BMI_unexpected_info *info)
{
    int64_t who;
    memcpy(&who, info->buffer, sizeof who);
    addresses[who] = info->addr;
    ready += info->tag == READY_TAG;
    must(BMI_unexpected_free(info->addr, info->buffer), "BMI_unexpected_free");
}

/* Serves until all of `count` clients are ready. A client that has ended fails the test. */
static void clients_await(const struct child *clients, unsigned count)
{
    uint64_t start = now_ns();
    while (ready < count && in_time(start)) {
        operations_step(10);
        for (unsigned i = 0; i < count; i++)
            child_check(&clients[i]);
    }
    CHECK(ready >= count, "%u of %u clients are ready", ready, count);
}

static int client_run(void *argument, int channel)
{
    static char in[PUTS][PUT_SIZE], server_address[BMI_MAX_ADDR_LEN];
    static struct noted receives[PUTS];
    struct noted send;
    BMI_addr_t server;
    int64_t who = (intptr_t)argument;
    unsigned count = who < STOPPED ? PUTS : 1;
    hear(channel, server_address, sizeof server_address);
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    operations_open();
    must(BMI_addr_lookup(&server, server_address), "BMI_addr_lookup");
    note_sendunexpected(&send, server, &who, sizeof who, HELLO_TAG);
    noted_good(&send, "hello");
    for (unsigned i = 0; i < count; i++)
        note_receive(&receives[i], server, in[i], PUT_SIZE, PUT_TAG);
    note_sendunexpected(&send, server, &who, sizeof who, READY_TAG); /* after the messages that it
                                                                        announced */
    noted_good(&send, "ready");
    while (!heard(channel, 0))
        operations_step(10);
    noted_good(&receives[0], "a receive");
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    return 0;
}

/* The counters of the NIC in the method's log when it stops. */
static unsigned long long bounced, vm_written;
static bool figures_told;

static void figures_take(void *argument, enum bmi_log_level level, const char *text)
{
    const char *figures = strstr(text, "vm_written ");
    (void)argument;
    if (level == BMI_LOG_INFO && figures != NULL)
        figures_told = sscanf(figures, "vm_written %llu (%*u bytes), bounced %llu", &vm_written,
                              &bounced) == 2;
}

static void figures_listen(bool listen)
{
    struct bmi_log_callback callback = {.write = listen ? figures_take : NULL,
                                        .level = BMI_LOG_INFO};
    must(BMI_set_info(0, BMI_LOG_CALLBACK, &callback), "BMI_set_info");
}

/* Directed sends need the receiver here, and some receivers are stopped: those sends wait, others
 * do not. */
static void stopped(struct child *clients)
{
    static char out[PUT_SIZE];
    static struct noted sends[STOPPED * PUTS], other;
    setenv("BMI_GM_VM_WRITE", "0", 1);
    setenv("BMI_GM_MAPPING", "0", 1);
    setenv("BMI_GM_SEND_TOKENS", "16", 1);
    serve_here(0, listening);
    operations_open();
    test_unexpected = client_heard;
    for (int i = 0; i < CLIENTS; i++)
        tell(clients[i].channel, listening, sizeof listening);
    clients_await(clients, CLIENTS);
    for (int i = 0; i < STOPPED; i++)
        child_signal(&clients[i], SIGSTOP);
    for (int i = 0; i < STOPPED * PUTS; i++)
        note_send(&sends[i], addresses[i % STOPPED], out, PUT_SIZE, PUT_TAG);
    for (int i = 0; i < 10; i++) /* they are in the NIC, as many as it accepts */
        operations_step(0);
    note_send(&other, addresses[RUNNING], out, PUT_SIZE, PUT_TAG);
    CHECK(noted_wait(&other, 1, TEST_BOUND_MS / 10), "a stopped client holds up another's message");
    noted_good(&other, "a send");
    for (int i = 0; i < STOPPED * PUTS; i++)
        CHECK(!sends[i].ended, "a send to a stopped client ended: %s",
              status_name(sends[i].status));
    tell_number(clients[RUNNING].channel, 0);
    child_end(&clients[RUNNING]);
    for (int i = 0; i < STOPPED; i++)
        child_kill(&clients[i]);
    CHECK(noted_wait(sends, STOPPED * PUTS, TEST_BOUND_MS), "sends to a killed client do not end");
    test_unexpected = NULL;
    figures_listen(true);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    figures_listen(false);
    CHECK(figures_told && vm_written == 0 && bounced > 0,
          "the log does not tell which way the data went");
    unsetenv("BMI_GM_VM_WRITE");
    unsetenv("BMI_GM_MAPPING");
    unsetenv("BMI_GM_SEND_TOKENS");
    printf("  %d stopped clients with %d messages on their way each: another has its own\n",
           STOPPED, PUTS);
}

/* ---- a client that claims to write, and never to have written ------------------------------- */

enum {
    LIAR = CLIENTS,
    LIAR_BOUND_MS = 1000,
    PIECES = 64, /* of the memory that it claims, one after another */
    PIECE = PUT_SIZE / PIECES,
    CLAIM_MS = 96
};

/* A mapping of the NIC's memory, by what may be done there and its least and largest size. */
static void *nic_memory(const char *permissions, size_t least, size_t most)
{
    char line[512], how[8];
    unsigned long begin, end;
    void *found = NULL;
    FILE *file = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, file) != NULL)
        if (strstr(line, "bmi-gm-nic") != NULL &&
            sscanf(line, "%lx-%lx %7s", &begin, &end, how) == 3 && strcmp(how, permissions) == 0 &&
            end - begin >= least && end - begin <= most)
            found = (void *)begin; /* NOLINT: an address */
    fclose(file);
    return found;
}

struct claims {
    const struct nic_shared_port *port;
    struct nic_shared_link *link;
    uint64_t keys[PIECES];
    unsigned count;
};

/* The server's exposures. */
static void keys_look(struct claims *claims)
{
    claims->count = 0;
    for (uint32_t i = 0; i < claims->port->exposures && claims->count < PIECES; i++) {
        uint64_t key = atomic_load(&claims->port->exposure[i].key);
        if (key != 0)
            claims->keys[claims->count++] = key;
    }
}

static bool is_exposed(const struct claims *claims, uint64_t key)
{
    return atomic_load(&claims->port->exposure[key & ((1u << NIC_EXPOSURE_BITS) - 1)].key) == key;
}

/* Claims each piece for a while after it was revoked; the last one for ever. */
static void *claims_move(void *argument)
{
    const struct timespec SHORT = {.tv_nsec = 100000}, LONG = {.tv_nsec = CLAIM_MS * 1000000};
    struct claims *claims = argument;
    for (unsigned i = 0; i + 1 < PIECES; i++) {
        while (is_exposed(claims, claims->keys[i]))
            nanosleep(&SHORT, NULL);
        nanosleep(&LONG, NULL);
        atomic_store(&claims->link->end[0].claim, claims->keys[i + 1]);
    }
    return NULL;
}

/* Registers no memory, so its message comes as frames, while its claim states that it writes. */
static int liar_run(void *argument, int channel)
{
    static char server_address[BMI_MAX_ADDR_LEN], out[PUT_SIZE];
    static struct claims claims;
    struct noted send;
    BMI_addr_t server;
    pthread_t mover;
    int64_t who = LIAR;
    (void)argument;
    hear(channel, server_address, sizeof server_address);
    setenv("BMI_GM_PAGES", "128", 1); /* used up by the buffers for incoming messages */
    must(BMI_initialize(NULL, NULL, 0), "BMI_initialize");
    operations_open();
    must(BMI_addr_lookup(&server, server_address), "BMI_addr_lookup");
    note_sendunexpected(&send, server, &who, sizeof who, READY_TAG);
    noted_good(&send, "ready");
    claims.port = nic_memory("r--s", 0, SIZE_MAX);
    claims.link = nic_memory("rw-s", 1 << 20, 2 << 20);
    CHECK(claims.port != NULL && claims.link != NULL, "the NIC's memory is not found");
    uint64_t start = now_ns();
    for (keys_look(&claims); claims.count < PIECES && in_time(start); keys_look(&claims))
        operations_step(1);
    CHECK(claims.count == PIECES, "the server exposes %u pieces", claims.count);
    atomic_store(&claims.link->end[0].claim, claims.keys[0]);
    must(-pthread_create(&mover, NULL, claims_move, &claims), "pthread_create");
    note_send(&send, server, out, sizeof out, PUT_TAG);
    tell_number(channel, 0);
    noted_good(&send, "a send");
    hear_number(channel); /* does not notice the end of its connection */
    return 0;
}

static void pieces_done(struct operation *operation, bmi_error_code_t status, bmi_size_t size)
{
    struct noted *noted = (struct noted *)operation;
    noted->ended = true;
    noted->status = status;
    noted->size = size;
}

/* A receive of PIECES with gaps between: each has its own exposure. */
static void pieces_receive(struct noted *noted, BMI_addr_t peer)
{
    static char in[PIECES][2 * PIECE];
    static void *list[PIECES];
    static bmi_size_t sizes[PIECES];
    bmi_size_t actual = 0;
    for (int i = 0; i < PIECES; i++) {
        list[i] = in[i];
        sizes[i] = PIECE;
    }
    *noted = (struct noted){.operation = {.done = pieces_done}, .posted = true};
    int result = BMI_post_recv_list(&noted->id, peer, list, sizes, PIECES, PUT_SIZE, &actual,
                                    BMI_EXT_ALLOC, PUT_TAG, noted, test_context, NULL);
    operation_posted(&noted->operation, result, actual);
}

/* No memory of the liar is left, although it lives and keeps its claims. */
static void liar_leaves(unsigned before)
{
    uint64_t start = now_ns();
    while (descriptors_open() > before && in_time(start))
        operations_step(10);
    CHECK(descriptors_open() <= before, "%u descriptors, of which the liar has a part; %u before",
          descriptors_open(), before);
    start = now_ns();
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    CHECK(now_ns() - start < LIAR_BOUND_MS * UINT64_C(1000000) * test_slowness(),
          "BMI_finalize took %llu ms", (unsigned long long)(now_ns() - start) / 1000000);
}

/* It harms only itself: its message has arrived, its connection ends; another client gets its
 * message at once. */
static void lied_to(struct child *liar, struct child *honest)
{
    static char out[PUT_SIZE];
    const struct child both[] = {*liar, *honest};
    struct noted other, receive;
    ready = 0;
    serve_here(0, listening);
    operations_open();
    test_unexpected = client_heard;
    unsigned before = descriptors_open();
    tell(liar->channel, listening, sizeof listening);
    tell(honest->channel, listening, sizeof listening);
    clients_await(both, 2);
    pieces_receive(&receive, addresses[LIAR]);
    uint64_t start = now_ns();
    while (!heard(liar->channel, 0) && in_time(start))
        operations_step(1);
    CHECK(heard(liar->channel, 0), "the liar sees no exposures");
    hear_number(liar->channel);
    note_send(&other, addresses[RUNNING], out, PUT_SIZE, PUT_TAG);
    CHECK(noted_wait(&receive, 1, TEST_BOUND_MS), "the liar's message does not end");
    noted_good(&other, "a send");
    CHECK(now_ns() - start < LIAR_BOUND_MS * UINT64_C(1000000) * test_slowness(),
          "all waited %llu ms for a client that claims to write",
          (unsigned long long)(now_ns() - start) / 1000000);
    tell_number(honest->channel, 0);
    child_end(honest);
    links_end();
    test_unexpected = NULL;
    liar_leaves(before);
    child_kill(liar);
    printf("  a client that claims to write for ever: its connection ended, another has its own\n");
}

int main(void)
{
    test_begin("gm_link_fault", 90);
    setenv("BMI_CONNECT_TIMEOUT_MS", "600000", 1); /* no other time-out ends a link in this time */
    setenv("BMI_PEER_TIMEOUT_MS", "600000", 1);
    setenv("BMI_GM_RESEND_TIMEOUT_MS", "600000", 1);
    setenv("BMI_TEST_METHOD", "gm", 1);
    struct child clients[CLIENTS];
    for (intptr_t i = 0; i < CLIENTS; i++)
        clients[i] = child_start(i < STOPPED ? "stopped" : "running", client_run, (void *)i);
    struct child liar = child_start("liar", liar_run, NULL);
    struct child honest = child_start("honest", client_run, (void *)(intptr_t)RUNNING);
    serve_here(0, listening);
    operations_open();
    no_frame("a message of zeros", 0, 40);
    no_frame("a long message of ones", 0xff, 1 << SIZE);
    BMI_close_context(test_context);
    must(BMI_finalize(), "BMI_finalize");
    stopped(clients);
    lied_to(&liar, &honest);
    return test_passed();
}
