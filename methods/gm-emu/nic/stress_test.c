/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stress_test.c - many peers, many threads.
 *
 * "peers": 256 connections from 8 processes to one port, each an exchange of messages of random
 * lengths, with every side sleeping whenever it has nothing to do; then half of them end.
 * "threads": two ports, each driven by a thread, while others send messages and directed sends to
 * both, take some back, register, allocate, and exposure; with as few tokens as there may be.
 */
#include "harness.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

static double scale(void)
{
    const char *text = getenv("BMI_TEST_SCALE");
    return text != NULL ? strtod(text, NULL) : 1;
}

/* ---- many peers ---------------------------------------------------------------------------------
 */

enum { PROCESSES = 8, CONNECTIONS = 32, PEERS = PROCESSES * CONNECTIONS };

struct talk { /* a client's connection */
    struct nic_peer *peer;
    unsigned seed, answers, due;
    uint32_t length;
    bool up, down;
    uint8_t data[4096];
    struct iovec iov;
};

static int talk_send(struct talk *talk)
{
    talk->length = 1 + (uint32_t)rand_r(&talk->seed) % 4096;
    pattern_fill(talk->data, talk->length, talk->answers);
    talk->iov = (struct iovec){talk->data, talk->length};
    return nic_send_with_callback(talk->peer, &talk->iov, 1, 12, NIC_LOW_PRIORITY, NIC_BUFFERED,
                                  NULL, NULL);
}

static void client_message(struct host *host, struct nic_event *event)
{
    struct talk *talk = nic_peer_context(event->peer);
    (void)host;
    if (event->length != talk->length ||
        !pattern_is(event->message, event->length, talk->answers)) {
        fprintf(stderr, "an answer differs from its message\n");
        _exit(2);
    }
    talk->answers++;
    if (talk->answers < talk->due && talk_send(talk) < 0)
        _exit(3);
}

static bool talks_done(const struct talk *talks)
{
    for (int i = 0; i < CONNECTIONS; i++)
        if (talks[i].answers < talks[i].due)
            return false;
    return true;
}

static void client_run(unsigned process, uint16_t number, unsigned messages)
{
    static struct host host;
    static struct talk talks[CONNECTIONS];
    host_forget();
    host_open(&host, NULL);
    host_provide(&host, 16, 12, NIC_LOW_PRIORITY);
    host.on_message = client_message;
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        talks[i].seed = process * 1000 + i;
        talks[i].due = messages;
        if (nic_connect(host.port, "many", number, &talks[i], &talks[i].peer) != 0)
            _exit(4);
    }
    if (!UNTIL(host.ups == CONNECTIONS))
        _exit(5);
    for (unsigned i = 0; i < CONNECTIONS; i++)
        if (talk_send(&talks[i]) < 0)
            _exit(6);
    if (!UNTIL(talks_done(talks))) /* some may be down by then */
        _exit(7);
    if (process % 2 == 0) /* the others are ended by the server */
        _exit(0);
    if (!UNTIL(host.downs == CONNECTIONS))
        _exit(8);
    host_close(&host);
    _exit(0);
}

static struct nic_peer *accepted_peers[PEERS];
static unsigned answered;
static uint8_t *answer_memory;

/* The answer is the message: it may have to wait, so it is copied. */
struct answer {
    struct iovec iov;
    struct answer *next;
};
static struct answer *answers_free;

static void answer_done(struct nic_port *port, void *context, int status)
{
    (void)port;
    (void)status;
    struct answer *answer = context;
    answer->next = answers_free;
    answers_free = answer;
}

static void server_message(struct host *host, struct nic_event *event)
{
    struct answer *answer = answers_free;
    (void)host;
    CU_ASSERT_PTR_NOT_NULL_FATAL(answer);
    answers_free = answer->next;
    memcpy(answer->iov.iov_base, event->message, event->length);
    answer->iov.iov_len = event->length;
    int status = nic_send_with_callback(event->peer, &answer->iov, 1, 12, NIC_LOW_PRIORITY,
                                        NIC_BUFFERED, answer_done, answer);
    CU_ASSERT(status >= 0);
    if (status != 0)
        answer_done(NULL, answer, status);
    answered++;
}

static void answers_make(unsigned count)
{
    answer_memory = calloc(count, 4096);
    struct answer *answers = calloc(count, sizeof(*answers));
    for (unsigned i = 0; i < count; i++) {
        answers[i].iov.iov_base = answer_memory + (size_t)i * 4096;
        answers[i].next = answers_free;
        answers_free = &answers[i];
    }
}

static void many_peers_at_once(void)
{
    static struct host server;
    pid_t children[PROCESSES];
    unsigned messages = (unsigned)(60 * scale()) + 1;
    struct rlimit files;
    CU_ASSERT_EQUAL(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &files), 0);
    host_open(&server, NULL);
    host_provide(&server, 64, 12, NIC_LOW_PRIORITY);
    answers_make(PEERS + 64);
    uint16_t number = host_listen(&server, "many");
    for (unsigned i = 0; i < PROCESSES; i++)
        if ((children[i] = fork()) == 0)
            client_run(i, number, messages);
    server.on_message = server_message;
    unsigned known = 0;
    while (answered < PEERS * messages || server.downs < PEERS / 2) {
        unsigned accepted = server.accepted;
        CU_ASSERT_FATAL(hosts_drive());
        if (server.accepted > accepted)
            accepted_peers[known++] = server.peer;
    }
    CU_ASSERT_EQUAL(server.received, PEERS * messages);
    for (unsigned i = 0; i < known; i++)
        nic_peer_close(accepted_peers[i]);
    CU_ASSERT(UNTIL(server.downs == PEERS));
    for (unsigned i = 0; i < PROCESSES; i++) {
        int status;
        CU_ASSERT_EQUAL(waitpid(children[i], &status, 0), children[i]);
        CU_ASSERT_EQUAL(status, 0);
    }
    host_close(&server);
}

/* ---- many threads -------------------------------------------------------------------------------
 */

enum { SENDERS = 4, AREA = 64 << 10 };

struct end { /* a port and its polling thread */
    struct nic_port *port;
    struct nic_peer *peer;
    uint64_t key; /* of the other's area */
    _Atomic unsigned received, received_sum, up;
    atomic_bool stop;
};
static struct end ends[2];
static _Atomic unsigned sent_sum, callbacks_due, callbacks_had, failed;

static void sent(struct nic_port *port, void *context, int status)
{
    (void)port;
    atomic_fetch_add(&callbacks_had, 1);
    if (status != 0)
        atomic_fetch_add(&failed, 1);
    atomic_store((atomic_bool *)context, true);
}

static void end_event(struct end *end, struct nic_event *event)
{
    uint32_t value;
    switch (event->type) {
    case NIC_RECV_EVENT:
    case NIC_FAST_RECV_EVENT:
        memcpy(&value, event->message, sizeof(value));
        atomic_fetch_add(&end->received_sum, value);
        atomic_fetch_add(&end->received, 1);
        break;
    case NIC_PEER_ACCEPTED_EVENT:
    case NIC_PEER_UP_EVENT:
        end->peer = event->peer;
        atomic_store(&end->up, 1);
        break;
    default:
        break;
    }
    nic_unknown(end->port, event);
}

static void *drive(void *context)
{
    struct end *end = context;
    while (!atomic_load(&end->stop))
        end_event(end, nic_blocking_receive(end->port, 50));
    return NULL;
}

/* CUnit is for one thread. */
static void expect(bool good)
{
    if (!good)
        atomic_fetch_add(&failed, 1);
}

static void *send_to_both(void *context)
{
    unsigned number = (unsigned)(uintptr_t)context, seed = number + 1;
    unsigned messages = (unsigned)(400 * scale()) + 1;
    static uint8_t areas[SENDERS][AREA];
    uint8_t *area = areas[number];
    for (unsigned i = 0; i < messages; i++) {
        struct end *end = &ends[i % 2];
        uint32_t value = (uint32_t)rand_r(&seed) % 1000;
        size_t length = 4 + (size_t)rand_r(&seed) % 4092;
        atomic_bool done = false;
        memcpy(area, &value, sizeof(value));
        struct iovec iov = {area, length};
        int status;
        bool directed = i % 3 == 0;
        if (directed)
            expect(nic_register_memory(end->port, area, length) == 0);
        while ((status = directed ? nic_directed_send_with_callback(end->peer, &iov, 1, end->key, 0,
                                                                    sent, &done)
                                  : nic_send_with_callback(end->peer, &iov, 1, 12,
                                                           (enum nic_priority)(i & 1),
                                                           i % 5 == 0 ? NIC_BUFFERED : 0, sent,
                                                           &done)) == -EAGAIN)
            sched_yield();
        if (directed)
            nic_push(end->peer, AREA);
        bool taken_back = status == 0 && i % 7 == 0 && nic_cancel_send(end->peer, &done);
        if (status == 0 && !taken_back)
            atomic_fetch_add(&callbacks_due, 1);
        while (status == 0 && !taken_back && !atomic_load(&done))
            sched_yield();
        if (!directed && !taken_back)
            atomic_fetch_add(&sent_sum, value);
        if (directed)
            expect(nic_deregister_memory(end->port, area, length) == 0);
        void *memory = nic_dma_malloc(end->port, length);
        uint64_t key;
        if (nic_expose(end->port, end->peer, memory, length, &key) == 0)
            expect(nic_revoke(end->port, key) == 0);
        nic_dma_free(end->port, memory);
    }
    return NULL;
}

static void end_open(struct end *end)
{
    struct nic_options options;
    nic_options_default(&options);
    options.send_tokens = 2;
    options.receive_tokens = 2;
    CU_ASSERT_EQUAL_FATAL(nic_open(&options, &end->port), 0);
    for (int i = 0; i < NIC_PRIORITIES; i++)
        CU_ASSERT_EQUAL(nic_provide_receive_buffer(end->port, nic_dma_malloc(end->port, 4096), 12,
                                                   (enum nic_priority)i),
                        0);
    atomic_store(&end->stop, false);
}

static void many_threads_at_once(void)
{
    pthread_t pollers[2], senders[SENDERS];
    uint16_t number = 0;
    end_open(&ends[0]);
    end_open(&ends[1]);
    CU_ASSERT_EQUAL(nic_listen(ends[0].port, "threads", &number), 0);
    for (int i = 0; i < 2; i++)
        pthread_create(&pollers[i], NULL, drive, &ends[i]);
    CU_ASSERT_EQUAL(nic_connect(ends[1].port, "threads", number, NULL, &ends[1].peer), 0);
    while (atomic_load(&ends[0].up) + atomic_load(&ends[1].up) < 2)
        sched_yield();
    for (int i = 0; i < 2; i++) {
        void *memory = nic_dma_malloc(ends[i].port, AREA);
        CU_ASSERT_EQUAL(nic_expose(ends[i].port, ends[i].peer, memory, AREA, &ends[1 - i].key), 0);
    }
    for (uintptr_t i = 0; i < SENDERS; i++)
        pthread_create(&senders[i], NULL, send_to_both, (void *)i);
    for (int i = 0; i < SENDERS; i++)
        pthread_join(senders[i], NULL);
    while (atomic_load(&ends[0].received_sum) + atomic_load(&ends[1].received_sum) <
           atomic_load(&sent_sum))
        sched_yield();
    for (int i = 0; i < 2; i++)
        atomic_store(&ends[i].stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(pollers[i], NULL);
    CU_ASSERT_EQUAL(atomic_load(&ends[0].received_sum) + atomic_load(&ends[1].received_sum),
                    atomic_load(&sent_sum));
    CU_ASSERT_EQUAL(atomic_load(&failed), 0);
    CU_ASSERT_EQUAL(atomic_load(&callbacks_had), atomic_load(&callbacks_due));
    for (int i = 0; i < 2; i++)
        nic_close(ends[i].port);
}

int main(void)
{
    static const struct test_case CASES[] = {
        {"many peers at once", many_peers_at_once},
        {"many threads at once", many_threads_at_once},
    };
    return CASES_RUN("stress", CASES);
}
