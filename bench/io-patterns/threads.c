/* SPDX-License-Identifier: BSD-3-Clause
 *
 * threads.c - the cost of many waiting threads: one process sends, `size` threads of another
 * receive.
 *
 * Each thread waits for messages of four bytes under a tag, and in a context, of its own, and
 * answers each. The sender serves one after the other, waiting for the answer in between, so all
 * threads but one always wait. The value is half of a round trip, of the `amount` in the middle:
 * the clock starts when each thread has had WARM_UP messages (a new thread has to settle on a CPU),
 * and stops before the first thread ends. In the plain reference each thread blocks in a receive on
 * a connection of its own.
 *
 * A receiving thread accesses its own struct only; the process's main thread waits for their end.
 */
#include "bmi_side.h"
#include "raw_side.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define THREADS_MAX 1000
#define FIRST_TAG 0x50000000 /* above those of samples */

enum { WARM_UP = 64, WARM_UP_LEAST = 200 };

static uint64_t rounds_before(const struct work *work)
{
    return work->size * WARM_UP > WARM_UP_LEAST ? work->size * WARM_UP : WARM_UP_LEAST;
}

static uint64_t rounds_all(const struct work *work)
{
    return rounds_before(work) + work->amount + work->size;
}

/* The number of rounds that a thread takes part in: the threads take the rounds in turn. */
static uint64_t rounds_of(const struct work *work, uint32_t thread)
{
    uint64_t all = rounds_all(work);
    return all / work->size + (thread < all % work->size);
}

/* The time that the rounds in the middle take. */
struct clock {
    uint64_t start, stop; /* ns */
};

static void clock_look(struct clock *clock, const struct work *work, uint64_t round)
{
    if (round == rounds_before(work))
        clock->start = now_ns();
    else if (round == rounds_before(work) + work->amount)
        clock->stop = now_ns();
}

static double clock_seconds(const struct clock *clock)
{
    return (double)(clock->stop - clock->start) / 1e9;
}

static void threads_check(const struct work *work)
{
    if (work->size > THREADS_MAX)
        die("threads: at most %d", THREADS_MAX);
}

static void round_check(const struct work *work, uint32_t got, uint64_t wanted)
{
    if (work->verify && got != (uint32_t)wanted)
        die("message %u instead of %u", got, (uint32_t)wanted);
}

static void thread_start(pthread_t *thread, void *(*function)(void *), void *argument)
{
    int error = pthread_create(thread, NULL, function, argument);
    if (error != 0)
        die("no thread: %s", strerror(error));
}

/* ---- BMI ----------------------------------------------------------------------------------- */

struct receiver {
    pthread_t thread;
    struct bmi_side side; /* with a context of its own */
    BMI_addr_t client;
    const struct work *work;
    uint32_t number;
    sem_t *ready;
    pthread_barrier_t *over; /* of all and the main thread */
};

static void *receiver_main(void *argument)
{
    struct receiver *receiver = argument;
    struct bmi_side *side = &receiver->side;
    uint64_t received = 0, sent = 0, rounds = rounds_of(receiver->work, receiver->number);
    uint32_t in, out;
    bmi_msg_tag_t tag = FIRST_TAG + (bmi_msg_tag_t)receiver->number;
    struct bmi_counted recv_op = {.op.complete = counted_complete, .counter = &received};
    struct bmi_counted send_op = {.op.complete = counted_complete, .counter = &sent};
    if (rounds > 0)
        side_recv(side, &recv_op.op, receiver->client, &in, sizeof in, BMI_EXT_ALLOC, tag);
    sem_post(receiver->ready);
    for (uint64_t round = 0; round < rounds; round++) {
        side_await(side, &received, round + 1);
        round_check(receiver->work, in, receiver->number + round * receiver->work->size);
        out = in;
        if (round + 1 < rounds)
            side_recv(side, &recv_op.op, receiver->client, &in, sizeof in, BMI_EXT_ALLOC, tag);
        side_send(side, &send_op.op, receiver->client, &out, sizeof out, BMI_EXT_ALLOC, tag);
        side_await(side, &sent, round + 1);
    }
    pthread_barrier_wait(receiver->over); /* the time that a thread takes to end must not count */
    return NULL;
}

static void threads_serve_bmi(struct bmi_side *side, const struct work *work, bmi_peer client)
{
    sem_t ready;
    pthread_barrier_t over;
    struct receiver *receivers = allocate(work->size * sizeof *receivers);
    threads_check(work);
    sem_init(&ready, 0, 0);
    pthread_barrier_init(&over, NULL, work->size + 1);
    for (uint32_t i = 0; i < work->size; i++) {
        receivers[i] = (struct receiver){.side.timeout_s = side->timeout_s,
                                         .client = client,
                                         .work = work,
                                         .number = i,
                                         .ready = &ready,
                                         .over = &over};
        bmi_check(BMI_open_context(&receivers[i].side.context), "BMI_open_context");
        thread_start(&receivers[i].thread, receiver_main, &receivers[i]);
    }
    for (uint32_t i = 0; i < work->size; i++)
        while (sem_wait(&ready) < 0)
            continue;
    acknowledge_and_await(side, client, work, NULL);
    pthread_barrier_wait(&over);
    for (uint32_t i = 0; i < work->size; i++) {
        pthread_join(receivers[i].thread, NULL);
        BMI_close_context(receivers[i].side.context);
    }
    pthread_barrier_destroy(&over);
    sem_destroy(&ready);
    free(receivers);
}

static double threads_run_bmi(struct bmi_client *client, const struct work *work)
{
    uint64_t received = 0, sent = 0;
    uint32_t in, out;
    struct bmi_counted recv_op = {.op.complete = counted_complete, .counter = &received};
    struct bmi_counted send_op = {.op.complete = counted_complete, .counter = &sent};
    threads_check(work);
    client_ask(client, 0, work);
    struct clock clock = {0};
    for (uint64_t round = 0; round < rounds_all(work); round++) {
        clock_look(&clock, work, round);
        bmi_msg_tag_t tag = FIRST_TAG + (bmi_msg_tag_t)(round % work->size);
        out = (uint32_t)round;
        side_recv(&client->side, &recv_op.op, client->servers[0], &in, sizeof in, BMI_EXT_ALLOC,
                  tag);
        side_send(&client->side, &send_op.op, client->servers[0], &out, sizeof out, BMI_EXT_ALLOC,
                  tag);
        side_await(&client->side, &received, round + 1);
        side_await(&client->side, &sent, round + 1);
        round_check(work, in, round);
    }
    return clock_seconds(&clock);
}

/* ---- plain sockets ------------------------------------------------------------------------- */

struct raw_receiver {
    pthread_t thread;
    int socket;
};

/* Answers until the sender closes the connection. */
static void *raw_receiver_main(void *argument)
{
    struct raw_receiver *receiver = argument;
    uint32_t message;
    for (;;) {
        ssize_t got = recv(receiver->socket, &message, sizeof message, MSG_WAITALL);
        if (got < 0 && errno == EINTR)
            continue;
        if (got != sizeof message)
            break;
        socket_send(receiver->socket, &message, sizeof message);
    }
    close(receiver->socket);
    return NULL;
}

static void port_set(struct sockaddr_storage *address, in_port_t port)
{
    if (address->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)address)->sin6_port = port;
    else
        ((struct sockaddr_in *)address)->sin_port = port;
}

static in_port_t port_get(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                          : ((const struct sockaddr_in *)address)->sin_port;
}

/* A socket that listens beside a connection's own end. */
static int beside_listen(int connection, in_port_t *port)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getsockname(connection, (struct sockaddr *)&address, &size) < 0)
        die("own address not found");
    port_set(&address, 0);
    int listener = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) < 0 ||
        listen(listener, THREADS_MAX) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) < 0)
        die("listening socket: %s", strerror(errno));
    *port = port_get(&address);
    return listener;
}

/* A connection to that, from the other end. */
static int beside_connect(int connection, in_port_t port)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getpeername(connection, (struct sockaddr *)&address, &size) < 0)
        die("peer's address not found");
    port_set(&address, port);
    int made = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0 || connect(made, (struct sockaddr *)&address, size) < 0)
        die("connect: %s", strerror(errno));
    socket_nodelay_set(made);
    return made;
}

static void threads_serve_raw(struct raw_link *link, const struct work *work)
{
    uint8_t ack[ACK_SIZE] = {0};
    in_port_t port;
    threads_check(work);
    int listener = beside_listen(link->socket, &port);
    struct raw_receiver *receivers = allocate(work->size * sizeof *receivers);
    memcpy(ack, &port, sizeof port);
    link_blocking_set(link, true);
    socket_send(link->socket, ack, sizeof ack);
    for (uint32_t i = 0; i < work->size; i++) {
        receivers[i].socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (receivers[i].socket < 0)
            die("accept: %s", strerror(errno));
        socket_nodelay_set(receivers[i].socket);
        thread_start(&receivers[i].thread, raw_receiver_main, &receivers[i]);
    }
    close(listener);
    for (uint32_t i = 0; i < work->size; i++)
        pthread_join(receivers[i].thread, NULL);
    link_blocking_set(link, false);
    free(receivers);
}

static double threads_run_raw(struct raw_client *client, const struct work *work)
{
    struct raw_link *link = &client->links[0];
    uint8_t ack[ACK_SIZE];
    in_port_t port;
    threads_check(work);
    link_blocking_set(link, true);
    link_ask(link, 0, work);
    socket_recv(link->socket, ack, sizeof ack);
    memcpy(&port, ack, sizeof port);
    int *sockets = allocate(work->size * sizeof *sockets);
    for (uint32_t i = 0; i < work->size; i++)
        sockets[i] = beside_connect(link->socket, port);
    struct clock clock = {0};
    for (uint64_t round = 0; round < rounds_all(work); round++) {
        clock_look(&clock, work, round);
        uint32_t message = (uint32_t)round;
        socket_send(sockets[round % work->size], &message, sizeof message);
        socket_recv(sockets[round % work->size], &message, sizeof message);
        round_check(work, message, round);
    }
    for (uint32_t i = 0; i < work->size; i++)
        close(sockets[i]);
    link_blocking_set(link, false);
    free(sockets);
    return clock_seconds(&clock);
}

const struct pattern pattern_threads = {
    .name = "threads",
    .summary = "one process sends 4 bytes to one of many threads of another; one way",
    .unit = "us",
    .size_name = "threads",
    .sizes = "1,2,4,8,16,32,64",
    .message_size = 4,
    .amount = "50000",
    .less_is_better = true,
    .one_pair = true,
    .takes = TAKES_PARTICIPANTS | TAKES_SIZE | TAKES_MESSAGES | TAKES_VERIFY,
    .contenders = BIT(CONTENDER_BMI) | BIT(CONTENDER_BMI_BACKGROUND) | BIT(CONTENDER_RAW),
    .value = value_latency,
    .serve_bmi = threads_serve_bmi,
    .serve_raw = threads_serve_raw,
    .run_bmi = threads_run_bmi,
    .run_raw = threads_run_raw,
};
