/* SPDX-License-Identifier: BSD-3-Clause
 *
 * is.c - the integer sort of the NAS Parallel Benchmarks over BMI; see is_sort.h.
 *
 * The servers are the processes that sort. Each begins at the client's request, and a message after
 * it names all of them; the acknowledgement has the server's result. What the processes exchange in
 * a sample has one tag: each of two processes sends the other one message a step, and both take the
 * steps in the same order. work.size is the number of keys, work.window that of the processes.
 */
#include "is.h"
#include "bmi_side.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

#define URL_SIZE 256

/* ---- a server's exchange ------------------------------------------------------------------- */

struct bmi_exchange {
    struct is_exchange base;
    struct bmi_side *side;
    BMI_addr_t *peers; /* by rank; not this process */
    bmi_msg_tag_t tag;
    struct bmi_counted *ops;
    uint64_t completed;
    struct is_parts out, in; /* of sums and sizes */
    uint32_t *values;        /* of each process, to be added up */
};

static struct bmi_op *op_of(struct bmi_exchange *exchange, int place)
{
    exchange->ops[place] =
        (struct bmi_counted){.op.complete = counted_complete, .counter = &exchange->completed};
    return &exchange->ops[place].op;
}

static void part_send(struct bmi_exchange *exchange, int place, int peer,
                      const struct is_parts *out)
{
    side_send(exchange->side, op_of(exchange, place), exchange->peers[peer],
              out->words + out->places[peer],
              (bmi_size_t)out->counts[peer] * (bmi_size_t)sizeof *out->words, BMI_EXT_ALLOC,
              exchange->tag);
}

static void part_recv(struct bmi_exchange *exchange, int place, int peer, const struct is_parts *in)
{
    side_recv(exchange->side, op_of(exchange, place), exchange->peers[peer],
              in->words + in->places[peer],
              (bmi_size_t)in->counts[peer] * (bmi_size_t)sizeof *in->words, BMI_EXT_ALLOC,
              exchange->tag);
}

/* Posts all receives, then all sends, each process beginning with the one after it. */
static void parts_exchange(struct bmi_exchange *exchange, const struct is_parts *out,
                           const struct is_parts *in)
{
    int rank = exchange->base.rank, count = exchange->base.count;
    exchange->completed = 0;
    for (int i = 1; i < count; i++)
        part_recv(exchange, i - 1, (rank + count - i) % count, in);
    for (int i = 1; i < count; i++)
        part_send(exchange, count - 2 + i, (rank + i) % count, out);
    memcpy(in->words + in->places[rank], out->words + out->places[rank],
           (size_t)out->counts[rank] * sizeof *out->words);
    side_await(exchange->side, &exchange->completed, 2 * (uint64_t)(count - 1));
}

static void keys_exchange(struct is_exchange *base, const struct is_parts *out,
                          const struct is_parts *in)
{
    parts_exchange((struct bmi_exchange *)base, out, in);
}

/* Describes parts of `words` words for each process; a sum's are the same to all. */
static void parts_set(struct is_parts *parts, uint32_t *memory, int processes, int words, int step)
{
    parts->words = memory;
    for (int i = 0; i < processes; i++) {
        parts->counts[i] = words;
        parts->places[i] = i * step;
    }
}

static void sizes_exchange(struct is_exchange *base, uint32_t *out, uint32_t *in)
{
    struct bmi_exchange *exchange = (struct bmi_exchange *)base;
    parts_set(&exchange->out, out, base->count, 1, 1);
    parts_set(&exchange->in, in, base->count, 1, 1);
    parts_exchange(exchange, &exchange->out, &exchange->in);
}

static void sum_exchange(struct is_exchange *base, uint32_t *values, int count)
{
    struct bmi_exchange *exchange = (struct bmi_exchange *)base;
    uint32_t *all = exchange->values;
    parts_set(&exchange->out, values, base->count, count, 0);
    parts_set(&exchange->in, all, base->count, count, count);
    parts_exchange(exchange, &exchange->out, &exchange->in);
    memset(values, 0, (size_t)count * sizeof *values);
    for (int i = 0; i < base->count; i++)
        for (int j = 0; j < count; j++)
            values[j] += all[i * count + j];
}

static void parts_open(struct is_parts *parts, int processes)
{
    parts->counts = allocate((size_t)processes * sizeof *parts->counts);
    parts->places = allocate((size_t)processes * sizeof *parts->places);
}

static void parts_close(struct is_parts *parts)
{
    free(parts->counts);
    free(parts->places);
}

static void exchange_open(struct bmi_exchange *exchange, struct bmi_side *side,
                          const struct work *work)
{
    int count = (int)work->window;
    *exchange = (struct bmi_exchange){.base = {.rank = work->server,
                                               .count = count,
                                               .sum = sum_exchange,
                                               .sizes = sizes_exchange,
                                               .keys = keys_exchange},
                                      .side = side,
                                      .tag = tag_data(work)};
    exchange->peers = allocate((size_t)count * sizeof *exchange->peers);
    exchange->ops = allocate(2 * (size_t)count * sizeof *exchange->ops);
    exchange->values = allocate((size_t)count * IS_VALUES_MAX * sizeof *exchange->values);
    parts_open(&exchange->out, count);
    parts_open(&exchange->in, count);
}

static void exchange_close(struct bmi_exchange *exchange)
{
    free(exchange->peers);
    free(exchange->ops);
    free(exchange->values);
    parts_close(&exchange->out);
    parts_close(&exchange->in);
}

/* Learns the other servers' addresses from the client. */
static void peers_learn(struct bmi_exchange *exchange, BMI_addr_t client)
{
    int count = exchange->base.count;
    char(*urls)[URL_SIZE] = allocate((size_t)count * sizeof *urls);
    exchange->completed = 0;
    side_recv(exchange->side, op_of(exchange, 0), client, urls, count * URL_SIZE, BMI_EXT_ALLOC,
              exchange->tag);
    side_await(exchange->side, &exchange->completed, 1);
    for (int i = 0; i < count; i++)
        if (i != exchange->base.rank)
            bmi_check(BMI_addr_lookup(&exchange->peers[i], urls[i]), urls[i]);
    free(urls);
}

static void is_serve(struct bmi_side *side, const struct work *work, bmi_peer client)
{
    const struct is_class *kind = is_class_of(work->size);
    struct bmi_exchange exchange;
    struct is_result result;
    uint8_t ack[ACK_SIZE] = {0};
    if (!kind)
        die("a request to sort %u keys, which no class has", work->size);
    exchange_open(&exchange, side, work);
    peers_learn(&exchange, client);
    is_sort(kind, &exchange.base, &result);
    exchange_close(&exchange);
    memcpy(ack, &result, sizeof result);
    acknowledge_and_await(side, client, work, ack);
}

/* ---- the client ---------------------------------------------------------------------------- */

double is_figure_of(const struct work *work, const uint8_t (*acks)[ACK_SIZE])
{
    double slowest = 0, communication = 0;
    uint32_t right = 0, misplaced = 0;
    for (uint32_t i = 0; i < work->window; i++) {
        struct is_result result;
        memcpy(&result, acks[i], sizeof result);
        slowest = result.seconds > slowest ? result.seconds : slowest;
        communication += result.communication_seconds;
        right += result.ranks_right;
        misplaced += result.misplaced;
    }
    if (right != IS_TESTS * IS_ITERATIONS || misplaced > 0)
        die("verification failed: %u of %d ranks are right, %u keys are misplaced", right,
            IS_TESTS * IS_ITERATIONS, misplaced);
    communication /= work->window; /* of a process */
    switch (work->figure) {
    case IS_COMMUNICATION:
        return communication;
    case IS_SHARE:
        return communication / slowest;
    default:
        return slowest;
    }
}

/* The servers' URLs, as they were looked up. */
static char (*urls_list(const struct bmi_client *client))[URL_SIZE]
{
    char(*urls)[URL_SIZE] = allocate((size_t)client->server_count * sizeof *urls);
    for (int i = 0; i < client->server_count; i++)
        format_text(urls[i], URL_SIZE, "%s", BMI_addr_rev_lookup(client->servers[i]));
    return urls;
}

static double is_run(struct bmi_client *client, const struct work *work)
{
    enum { OPS = 3 }; /* for each server */
    struct bmi_side *side = &client->side;
    int count = client->server_count;
    uint64_t done = 0;
    char(*urls)[URL_SIZE] = urls_list(client);
    struct bmi_counted *ops = allocate((size_t)count * OPS * sizeof *ops);
    uint8_t(*requests)[REQUEST_SIZE] = allocate((size_t)count * sizeof *requests);
    uint8_t(*acks)[ACK_SIZE] = allocate((size_t)count * sizeof *acks);
    for (int i = 0; i < count * OPS; i++)
        ops[i] = (struct bmi_counted){.op.complete = counted_complete, .counter = &done};
    for (int i = 0; i < count; i++) {
        struct work asked = *work;
        asked.server = (uint8_t)i;
        side_recv(side, &ops[i * OPS].op, client->servers[i], acks[i], ACK_SIZE, BMI_EXT_ALLOC,
                  tag_ack(work));
        side_request(side, &ops[i * OPS + 1].op, client->servers[i], &asked, requests[i]);
        side_send(side, &ops[i * OPS + 2].op, client->servers[i], urls, count * URL_SIZE,
                  BMI_EXT_ALLOC, tag_data(work));
    }
    side_await(side, &done, (uint64_t)count * OPS);
    double figure = is_figure_of(work, (const uint8_t(*)[ACK_SIZE])acks);
    free(urls);
    free(ops);
    free(requests);
    free(acks);
    return figure;
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* Bytes of keys that a process sends to others. */
static uint64_t bytes_sent(uint64_t keys, uint64_t processes)
{
    return keys * sizeof(uint32_t) * IS_ITERATIONS / processes * (processes - 1) / processes;
}

static void row_fill(struct row *row, const struct options *options, const struct grid *grid,
                     enum is_figure figure, uint64_t keys)
{
    static const struct {
        const char *name, *unit;
    } figures[] = {[IS_SECONDS] = {"Mop/s", "Mop/s"},
                   [IS_COMMUNICATION] = {"communication, us an iteration", "us"},
                   [IS_SHARE] = {"communication, % of the time", "%"}};
    work_fill(&row->work, options, grid, keys);
    row->work.figure = (uint8_t)figure;
    row->work.window = (uint32_t)grid->servers;
    row->work.amount = bytes_sent(keys, (uint64_t)grid->servers);
    row->unit = figures[figure].unit;
    format_text(row->panel, sizeof row->panel, "%d processes, %s", grid->servers,
                figures[figure].name);
    format_text(row->label, sizeof row->label, "%c", is_class_of(keys)->name);
}

static int is_rows(const struct options *options, const struct grid *grid, struct row *rows)
{
    int count = 0;
    for (enum is_figure figure = IS_SECONDS; figure < IS_FIGURES; figure++)
        for (int i = 0; i < options->size_count; i++)
            row_fill(&rows[count++], options, grid, figure, options->sizes[i]);
    return count;
}

static void is_options_check(const struct options *options)
{
    for (int i = 0; i < options->grid_count; i++)
        if (options->grids[i].clients != 1)
            refuse("is: one client only, and the servers do the work");
}

static double value_is(double figure, const struct work *work, int pairs)
{
    (void)pairs;
    switch (work->figure) {
    case IS_COMMUNICATION:
        return figure / IS_ITERATIONS * 1e6;
    case IS_SHARE:
        return figure * 100;
    default:
        return work->size * (double)IS_ITERATIONS / figure / 1e6;
    }
}

const struct pattern pattern_is = {
    .name = "is",
    .summary = "the NAS Parallel Benchmarks' integer sort, all to all among the servers",
    .unit = "Mop/s, us, %",
    .size_name = "keys",
    .labels = "class",
    .sizes = "8M", /* class A */
    .amount = "1", /* follows from the class */
    .amount_is_bytes = true,
    .grid = "4x1",
    .takes = TAKES_PARTICIPANTS | TAKES_CLASS,
    .on_request = BIT(CONTENDER_BMI_PLAIN),
    .contenders = BIT(CONTENDER_BMI) | BIT(CONTENDER_BMI_PLAIN) | BIT(CONTENDER_MPI) |
                  BIT(CONTENDER_MPI_YIELD),
    .options_check = is_options_check,
    .rows = is_rows,
    .value = value_is,
    .serve_bmi = is_serve,
    .run_bmi = is_run,
};
