/* SPDX-License-Identifier: BSD-3-Clause
 *
 * clients.c - a server of many connected clients, of which some are active.
 */
#include "clients.h"
#include "report.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void clients_reply(const struct work *work, uint8_t reply[ACK_SIZE])
{
    struct clients_usage usage = {0};
    struct timespec cpu;
    memset(reply, 0, ACK_SIZE);
    if (work->on == CLIENTS_CALL)
        return;
    if (work->on == CLIENTS_END)
        usage.system_calls = system_calls_end();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    usage.cpu_ns = (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec;
    memcpy(reply, &usage, sizeof usage);
    if (work->on == CLIENTS_START_COUNTING)
        system_calls_start();
}

/* Counting costs the server time, so it is off for the other figures. */
bool clients_asks(const struct work *work, uint8_t *on)
{
    *on = work->figure == CLIENTS_SYSTEM_CALLS ? CLIENTS_START_COUNTING : CLIENTS_START;
    return work->figure >= CALLS_ELSEWHERE;
}

double clients_used(const struct work *work, const uint8_t before[ACK_SIZE],
                    const uint8_t after[ACK_SIZE])
{
    struct clients_usage first, last;
    memcpy(&first, before, sizeof first);
    memcpy(&last, after, sizeof last);
    double calls = (double)calls_total(work);
    if (work->figure == CLIENTS_SYSTEM_CALLS)
        return (double)last.system_calls / calls;
    return (double)(last.cpu_ns - first.cpu_ns) * 1e-9 / calls;
}

uint32_t clients_active(const struct work *work, uint32_t number)
{
    return (uint32_t)((uint64_t)number * work->size / work->window);
}

uint32_t clients_address(uint32_t client)
{
    return (127u << 24) + client + 1;
}

/* ---- rows ---------------------------------------------------------------------------------- */

static const struct panel {
    const char *name, *unit;
    uint8_t figure;
} panels[] = {
    {"calls/s", "calls/s", CALLS_MEAN},
    {"us a call, median", "us", CALLS_MEDIAN},
    {"us a call, 99th percentile", "us", CALLS_TAIL},
    {"us a call, 99.9th percentile", "us", CALLS_LONGEST},
    {"server's CPU time a call, us", "us", CLIENTS_CPU},
    {"server's system calls a call", "system calls", CLIENTS_SYSTEM_CALLS},
};

static void row_fill(struct row *row, const struct options *options, const struct grid *grid,
                     const struct panel *panel, uint64_t active, uint64_t connected)
{
    work_fill(&row->work, options, grid, connected);
    row->work.window = (uint32_t)active;
    row->work.figure = panel->figure;
    row->unit = panel->unit;
    format_text(row->panel, sizeof row->panel, "%s, %llu active", panel->name,
                (unsigned long long)active);
    format_text(row->label, sizeof row->label, "%llu", (unsigned long long)connected);
}

static void clients_options_check(const struct options *options)
{
    uint64_t least = options->actives[0], most = 0;
    if (strcmp(options->method, "tcp") != 0)
        refuse("clients: over tcp only, whose server can be dialled by many addresses");
    if (options->url_count > 0)
        refuse("clients: on this host only, not with --servers URL");
    for (int i = 0; i < options->size_count; i++)
        if (options->sizes[i] < 1 || options->sizes[i] > CLIENTS_MAX)
            refuse("clients: from 1 to %d can be connected", CLIENTS_MAX);
        else if (options->sizes[i] > most)
            most = options->sizes[i];
    for (int i = 1; i < options->active_count; i++)
        least = options->actives[i] < least ? options->actives[i] : least;
    if (least > most)
        refuse("clients: %llu cannot be active where %llu are connected", (unsigned long long)least,
               (unsigned long long)most);
}

static int clients_rows(const struct options *options, const struct grid *grid, struct row *rows)
{
    int count = 0;
    bool countable = system_calls_countable();
    if (!countable)
        printf("system calls: not counted, since the kernel's tracepoints cannot be used "
               "(perf_event_open)\n");
    for (size_t i = 0; i < sizeof panels / sizeof *panels; i++) {
        if (panels[i].figure == CLIENTS_SYSTEM_CALLS && !countable)
            continue;
        for (int j = 0; j < options->active_count; j++)
            for (int k = 0; k < options->size_count && count < ROWS_MAX; k++)
                if (options->actives[j] <= options->sizes[k])
                    row_fill(&rows[count++], options, grid, &panels[i], options->actives[j],
                             options->sizes[k]);
    }
    return count;
}

static double value_clients(double figure, const struct work *work, int pairs)
{
    (void)pairs;
    if (work->figure == CALLS_MEAN)
        return 1 / figure;
    return work->figure == CLIENTS_SYSTEM_CALLS ? figure : figure * 1e6;
}

const struct pattern pattern_clients = {
    .name = "clients",
    .summary = "a server of many connected clients, of which some are active",
    .unit = "calls/s, us, system calls",
    .size_name = "clients",
    .labels = "connected",
    .sizes = "64,1000,10000",
    .actives = "1,64,1000",
    .message_size = REQUEST_SIZE,
    .amount = "20000",
    .less_is_better = true,
    .one_pair = true,
    .listens_everywhere = true,
    .engine_of_server = true,
    .takes = TAKES_PARTICIPANTS | TAKES_SIZE | TAKES_MESSAGES | TAKES_ACTIVE,
    .contenders = BIT(CONTENDER_BMI) | BIT(CONTENDER_BMI_URING) | BIT(CONTENDER_RAW),
    .on_request = BIT(CONTENDER_BMI_URING),
    .options_check = clients_options_check,
    .rows = clients_rows,
    .value = value_clients,
    .serve_bmi = clients_serve_bmi,
    .serve_raw = clients_serve_raw,
    .run_bmi = clients_run_bmi,
    .run_raw = clients_run_raw,
};
