/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc.c - remote procedure calls: null calls, and calls with a body whose size the receiver does
 * not know before.
 *
 * The references do the same by a header before the body (raw, mpi), or by probing (mpi-probe).
 * `post` is the bare exchange of messages of the same sizes: both sides know them before, and have
 * memory for them. The receiver of a body allocates its memory in each call.
 */
#include "rpc.h"
#include "report.h"

#include <stdio.h>

#define BODY_BYTES (64u << 20) /* of a sample, where that is fewer calls than --messages */
#define BODY_CALLS 8           /* but no fewer */

void rpc_body_fill(const struct work *work, void *body, uint64_t number)
{
    if (work->verify)
        data_fill(body, work->size, RPC_STREAM, number * work->size);
}

void rpc_body_check(const struct work *work, const void *body, uint64_t number)
{
    if (work->verify)
        data_check(body, work->size, RPC_STREAM, number * work->size);
}

/* ---- rows ---------------------------------------------------------------------------------- */

static const uint32_t windows[] = {1, 16, 64};
enum { WINDOWS = sizeof windows / sizeof *windows };

struct panel {
    const char *name, *unit;
    enum rpc_kind kind;
    enum calls_figure figure;
};

static const struct panel panels[] = {
    {"null calls in flight, us, median", "us", RPC_NULL, CALLS_MEDIAN},
    {"null calls in flight, us, 99th percentile", "us", RPC_NULL, CALLS_TAIL},
    {"null calls in flight, calls/s", "calls/s", RPC_NULL, CALLS_MEAN},
    {"body in the request, us, median", "us", RPC_REQUEST, CALLS_MEDIAN},
    {"body in the request, MB/s", "MB/s", RPC_REQUEST, CALLS_MEAN},
    {"body in the reply, us, median", "us", RPC_REPLY, CALLS_MEDIAN},
    {"body in the reply, MB/s", "MB/s", RPC_REPLY, CALLS_MEAN},
};
enum { PANELS = sizeof panels / sizeof *panels, RATES = 2 /* the panel of calls a second */ };

static uint64_t body_calls(const struct options *options, uint64_t size)
{
    uint64_t calls = BODY_BYTES / size > BODY_CALLS ? BODY_BYTES / size : BODY_CALLS;
    return calls < options->messages ? calls : options->messages;
}

static void row_fill(struct row *row, const struct options *options, const struct grid *grid,
                     const struct panel *panel, int place)
{
    uint64_t size = panel->kind == RPC_NULL ? 0 : options->sizes[place];
    bool kilo = size % 1024 == 0;
    work_fill(&row->work, options, grid, size);
    row->work.on = (uint8_t)panel->kind;
    row->work.figure = (uint8_t)panel->figure;
    row->unit = panel->unit;
    format_text(row->panel, sizeof row->panel, "%s", panel->name);
    if (panel->kind == RPC_NULL) {
        row->work.window = windows[place];
        format_text(row->label, sizeof row->label, "%u", windows[place]);
        return;
    }
    row->work.amount = body_calls(options, size);
    format_text(row->label, sizeof row->label, "%llu%s",
                (unsigned long long)(kilo ? size / 1024 : size), kilo ? " KiB" : "");
}

static int rpc_rows(const struct options *options, const struct grid *grid, struct row *rows)
{
    int count = 0;
    for (int i = 0; i < PANELS; i++) {
        int places = panels[i].kind == RPC_NULL ? WINDOWS : options->size_count;
        for (int place = 0; place < places; place++)
            row_fill(&rows[count++], options, grid, &panels[i], place);
    }
    return count;
}

static double value_rpc(double seconds, const struct work *work, int pairs)
{
    (void)pairs;
    if (work->figure != CALLS_MEAN)
        return seconds * 1e6;
    return work->on == RPC_NULL ? 1 / seconds : work->size / seconds / 1e6;
}

/* How much more calls a second many in flight are than one. */
static void rates_print(const struct report *report)
{
    const struct row *one = &report->rows[RATES * WINDOWS], *many = one + WINDOWS - 1;
    printf("null calls/s, %u in flight to 1:", windows[WINDOWS - 1]);
    for (enum contender i = 0; i < CONTENDER_COUNT; i++)
        if (one->series[i].samples)
            printf(" %s %.2f", contender_name(i), many->series[i].value / one->series[i].value);
    printf("\n");
    output_flush();
}

const struct pattern pattern_rpc = {
    .name = "rpc",
    .summary = "remote procedure calls: null, and with a body of unknown size",
    .unit = "us, calls/s, MB/s",
    .size_name = "body",
    .labels = "body, or calls in flight",
    .sizes = "1K,4K,16K,64K,256K,1M,4M,16M",
    .amount = "5000",
    .less_is_better = true,
    .plain_is_bare = true,
    .one_pair = true,
    .takes = TAKES_PARTICIPANTS | TAKES_SIZE | TAKES_MESSAGES | TAKES_VERIFY,
    .contenders = BIT(CONTENDER_BMI) | BIT(CONTENDER_POST) | BITS_RAW | BIT(CONTENDER_MPI) |
                  BIT(CONTENDER_MPI_PROBE),
    .rows = rpc_rows,
    .end_print = rates_print,
    .value = value_rpc,
    .serve_bmi = rpc_serve_bmi,
    .serve_raw = rpc_serve_raw,
    .run_bmi = rpc_run_bmi,
    .run_raw = rpc_run_raw,
};
