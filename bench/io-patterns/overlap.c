/* SPDX-License-Identifier: BSD-3-Clause
 *
 * overlap.c - does a message move while the program computes? Post, compute for T, wait: the value
 * is T / all of that time, in the median round, on the side that computes (of two that do, on the
 * slower one). 1 is the most; a side that must wait for the message after it has computed gets
 * less.
 *
 * The client sends, the server receives. In each round both sides first synchronize (two messages
 * of one byte), and post at the same moment: neither knows beforehand what the other has posted. T
 * is CPU time of the thread, so that a thread that displaces it does not shorten its computing. The
 * plain reference moves the data by blocking calls in a second thread, which only copies and needs
 * no answer from the other side: that is the upper bound, and `--reference raw` prints the ratio to
 * it. On two cores, if both sides compute, the bound is T / (T + C/2), where C is the time that all
 * copies of a message take on a core.
 *
 * The threads that compute, one on each side, have a CPU each: without that the scheduler often put
 * both on one of two CPUs for a whole sample, and then the T of one was waiting time of the other.
 * All other threads run on any CPU. One thread, or two that alternate; no locks.
 */
#include "bmi_side.h"
#include "raw_side.h"
#include "report.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#define STREAM 0x40000u

/* ---- BMI ----------------------------------------------------------------------------------- */

enum { CPU_SERVER, CPU_CLIENT };

struct rank {
    struct bmi_side *side;
    BMI_addr_t peer;
    const struct work *work;
    uint8_t *buffer;
    uint8_t token;
    uint64_t done, wanted;
    struct bmi_counted ops[2];
    uint64_t *rounds_ns;
};

static void rank_open(struct rank *rank, struct bmi_side *side, BMI_addr_t peer,
                      const struct work *work)
{
    *rank = (struct rank){.side = side, .peer = peer, .work = work};
    rank->buffer = allocate_pages(work->size);
    rank->rounds_ns = allocate(work->amount * sizeof *rank->rounds_ns);
}

/* Returns: the median of the rounds' nanoseconds. */
static uint64_t rank_close(struct rank *rank)
{
    uint64_t median_ns = rounds_median(rank->rounds_ns, rank->work->amount);
    free(rank->buffer);
    free(rank->rounds_ns);
    return median_ns;
}

static struct bmi_op *rank_op(struct rank *rank)
{
    struct bmi_counted *op = &rank->ops[rank->wanted++ % 2];
    *op = (struct bmi_counted){.op.complete = counted_complete, .counter = &rank->done};
    return &op->op;
}

static void rank_await(struct rank *rank)
{
    side_await(rank->side, &rank->done, rank->wanted);
}

static void token_recv(struct rank *rank)
{
    side_recv(rank->side, rank_op(rank), rank->peer, &rank->token, 1, BMI_EXT_ALLOC,
              tag_ack(rank->work));
}

static void token_send(struct rank *rank)
{
    side_send(rank->side, rank_op(rank), rank->peer, &rank->token, 1, BMI_EXT_ALLOC,
              tag_ack(rank->work));
}

/* Synchronizes both sides. The client returns half of a round trip after the server. */
static void rank_barrier(struct rank *rank, bool server)
{
    token_recv(rank);
    if (server)
        rank_await(rank);
    token_send(rank);
    rank_await(rank);
}

static void rank_compute(struct rank *rank, uint8_t who)
{
    if (rank->work->on & who)
        compute(rank->work->compute_us);
}

static void overlap_serve_bmi(struct bmi_side *side, const struct work *work, bmi_peer client)
{
    struct rank rank;
    uint8_t ack[ACK_SIZE] = {0};
    thread_cpu_take(CPU_SERVER);
    rank_open(&rank, side, client, work);
    acknowledge_and_await(side, client, work, NULL);
    for (uint64_t round = 0; round < work->amount; round++) {
        rank_barrier(&rank, true);
        uint64_t start = now_ns();
        side_recv(side, rank_op(&rank), client, rank.buffer, work->size, BMI_EXT_ALLOC,
                  tag_data(work));
        rank_compute(&rank, ON_RECEIVER);
        rank_await(&rank);
        rank.rounds_ns[round] = now_ns() - start;
        if (work->verify)
            data_check(rank.buffer, work->size, STREAM, round * work->size);
    }
    uint64_t median_ns = rounds_median(rank.rounds_ns, work->amount);
    memcpy(ack, &median_ns, sizeof median_ns);
    acknowledge_and_await(side, client, work, ack);
    rank_close(&rank);
    thread_cpus_release();
}

static double overlap_run_bmi(struct bmi_client *client, const struct work *work)
{
    struct rank rank;
    uint8_t ack[ACK_SIZE];
    uint64_t server_ns;
    thread_cpu_take(CPU_CLIENT);
    client_ask(client, 0, work);
    rank_open(&rank, &client->side, client->servers[0], work);
    for (uint64_t round = 0; round < work->amount; round++) {
        if (work->verify)
            data_fill(rank.buffer, work->size, STREAM, round * work->size);
        rank_barrier(&rank, false);
        uint64_t start = now_ns();
        side_send(rank.side, rank_op(&rank), rank.peer, rank.buffer, work->size, BMI_EXT_ALLOC,
                  tag_data(work));
        rank_compute(&rank, ON_SENDER);
        rank_await(&rank);
        rank.rounds_ns[round] = now_ns() - start;
    }
    side_recv(rank.side, rank_op(&rank), rank.peer, ack, ACK_SIZE, BMI_EXT_ALLOC, tag_ack(work));
    rank_await(&rank);
    memcpy(&server_ns, ack, sizeof server_ns);
    return overlap_seconds(work, rank_close(&rank), server_ns);
}

/* ---- plain sockets ------------------------------------------------------------------------- */

/* The thread that moves the data while the other computes. */
struct mover {
    pthread_t thread;
    sem_t posted, moved;
    int socket;
    const struct work *work;
    uint8_t *buffer;
    uint64_t *rounds_ns;
    bool sends;
};

static void *mover_main(void *argument)
{
    struct mover *mover = argument;
    thread_cpus_release();
    for (uint64_t round = 0; round < mover->work->amount; round++) {
        sem_wait(&mover->posted);
        if (mover->sends)
            socket_send(mover->socket, mover->buffer, mover->work->size);
        else
            socket_recv(mover->socket, mover->buffer, mover->work->size);
        sem_post(&mover->moved);
    }
    return NULL;
}

static void mover_open(struct mover *mover, int socket, const struct work *work, bool sends)
{
    *mover = (struct mover){.socket = socket, .work = work, .sends = sends};
    mover->buffer = allocate_pages(work->size);
    mover->rounds_ns = allocate(work->amount * sizeof *mover->rounds_ns);
    sem_init(&mover->posted, 0, 0);
    sem_init(&mover->moved, 0, 0);
    if (pthread_create(&mover->thread, NULL, mover_main, mover) != 0)
        die("no thread");
}

static void mover_close(struct mover *mover)
{
    pthread_join(mover->thread, NULL);
    sem_destroy(&mover->posted);
    sem_destroy(&mover->moved);
    free(mover->buffer);
    free(mover->rounds_ns);
}

/* One round after both sides have synchronized. */
static void mover_round(struct mover *mover, uint8_t who, uint64_t round)
{
    uint64_t start = now_ns();
    sem_post(&mover->posted);
    if (mover->work->on & who)
        compute(mover->work->compute_us);
    while (sem_wait(&mover->moved) < 0)
        continue;
    mover->rounds_ns[round] = now_ns() - start;
}

static void overlap_serve_raw(struct raw_link *link, const struct work *work)
{
    struct mover mover;
    uint8_t ack[ACK_SIZE] = {0}, token;
    thread_cpu_take(CPU_SERVER);
    link_blocking_set(link, true);
    mover_open(&mover, link->socket, work, false);
    socket_send(link->socket, ack, sizeof ack);
    for (uint64_t round = 0; round < work->amount; round++) {
        socket_recv(link->socket, &token, 1);
        socket_send(link->socket, &token, 1);
        mover_round(&mover, ON_RECEIVER, round);
        if (work->verify)
            data_check(mover.buffer, work->size, STREAM, round * work->size);
    }
    uint64_t median_ns = rounds_median(mover.rounds_ns, work->amount);
    memcpy(ack, &median_ns, sizeof median_ns);
    socket_send(link->socket, ack, sizeof ack);
    mover_close(&mover);
    link_blocking_set(link, false);
    thread_cpus_release();
}

static double overlap_run_raw(struct raw_client *client, const struct work *work)
{
    struct raw_link *link = &client->links[0];
    struct mover mover;
    uint8_t ack[ACK_SIZE], token = 0;
    uint64_t server_ns;
    thread_cpu_take(CPU_CLIENT);
    link_blocking_set(link, true);
    link_ask_and_await(link, 0, work);
    mover_open(&mover, link->socket, work, true);
    for (uint64_t round = 0; round < work->amount; round++) {
        if (work->verify)
            data_fill(mover.buffer, work->size, STREAM, round * work->size);
        socket_send(link->socket, &token, 1);
        socket_recv(link->socket, &token, 1);
        mover_round(&mover, ON_SENDER, round);
    }
    socket_recv(link->socket, ack, sizeof ack);
    memcpy(&server_ns, ack, sizeof server_ns);
    uint64_t median_ns = rounds_median(mover.rounds_ns, work->amount);
    mover_close(&mover);
    link_blocking_set(link, false);
    return overlap_seconds(work, median_ns, server_ns);
}

/* ---- rows ---------------------------------------------------------------------------------- */

static double value_overlap(double slowest, const struct work *work, int pairs)
{
    (void)pairs;
    return work->compute_us * 1e-6 / slowest;
}

/* The times to compute: the given ones, or times up to a few times as long as a message of the size
 * takes. */
static int times_of(const struct options *options, uint64_t size, uint64_t times[TIMES_MAX])
{
    static const uint64_t parts[] = {20, 10, 4, 2, 1};
    uint64_t most = size <= 64u << 10 ? 200 : 2000;
    if (options->time_count > 0) {
        memcpy(times, options->times, sizeof options->times);
        return options->time_count;
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        times[i] = most / parts[i];
    return sizeof parts / sizeof *parts;
}

static void panel_name(struct row *row, uint64_t size, uint8_t on)
{
    bool kilo = size % 1024 == 0;
    format_text(row->panel, sizeof row->panel, "%llu %s, computing on %s%s",
                (unsigned long long)(kilo ? size / 1024 : size), kilo ? "KiB" : "bytes",
                on == ON_BOTH ? "" : "the ", on_name(on));
}

static int overlap_rows(const struct options *options, const struct grid *grid, struct row *rows)
{
    int count = 0;
    for (int i = 0; i < options->size_count; i++) {
        uint64_t times[TIMES_MAX];
        int time_count = times_of(options, options->sizes[i], times);
        for (uint8_t on = ON_SENDER; on <= ON_BOTH; on++)
            for (int j = 0; options->on & 1u << on && j < time_count; j++) {
                struct row *row = &rows[count++];
                if (count > ROWS_MAX)
                    die("at most %d sizes and times", ROWS_MAX);
                work_fill(&row->work, options, grid, options->sizes[i]);
                row->work.on = on;
                row->work.compute_us = (uint16_t)times[j];
                panel_name(row, options->sizes[i], on);
                format_text(row->label, sizeof row->label, "%u us", row->work.compute_us);
            }
    }
    return count;
}

const struct pattern pattern_overlap = {
    .name = "overlap",
    .summary = "computing while a message moves: its part of the time",
    .unit = "part",
    .size_name = "message",
    .sizes = "32K,1M",
    .amount = "50",
    .one_pair = true,
    .takes =
        TAKES_PARTICIPANTS | TAKES_SIZE | TAKES_MESSAGES | TAKES_VERIFY | TAKES_COMPUTE | TAKES_ON,
    .labels = "computing for",
    .contenders = BIT(CONTENDER_BMI) | BIT(CONTENDER_BMI_BACKGROUND) | BIT(CONTENDER_RAW) |
                  BIT(CONTENDER_MPI),
    .rows = overlap_rows,
    .value = value_overlap,
    .serve_bmi = overlap_serve_bmi,
    .serve_raw = overlap_serve_raw,
    .run_bmi = overlap_run_bmi,
    .run_raw = overlap_run_raw,
};
