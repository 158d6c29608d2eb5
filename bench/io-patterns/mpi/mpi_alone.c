/* SPDX-License-Identifier: BSD-3-Clause
 *
 * mpi_alone.c - a run whose servers and clients are the ranks that the user's mpiexec placed, on
 * one host or many: BMI, plain sockets, and MPI among the same processes.
 *
 * Every rank walks through the same sizes, repetitions and contenders; MPI carries the servers'
 * addresses, the barriers, and the clients' figures. Rank 0 reports.
 */
#include "../bmi_side.h"
#include "../raw_side.h"
#include "../report.h"
#include "mpi_side.h"

#include <stdlib.h>
#include <string.h>

#define URL_SIZE 256

/* A rank's part in each contender. */
struct alone {
    struct options *options;
    const struct mpi_world *world;
    bool server;
    const char *host; /* that this rank's servers listen on */
    bool one_host;    /* all ranks are on it */
    struct bmi_side bmi_server;
    struct bmi_client bmi_client;
    struct raw_server raw_server;
    struct raw_client raw_client;
    uint32_t sequence;
};

/* This host's name, or 127.0.0.1 where all ranks share a host. */
static void host_choose(struct alone *alone, const struct mpi_world *world)
{
    static char own[MPI_MAX_PROCESSOR_NAME];
    int length, size = world->servers + world->clients;
    char(*all)[MPI_MAX_PROCESSOR_NAME] = allocate((size_t)size * sizeof *all);
    bool one_host = true;
    MPI_Get_processor_name(own, &length);
    MPI_Allgather(own, MPI_MAX_PROCESSOR_NAME, MPI_CHAR, all, MPI_MAX_PROCESSOR_NAME, MPI_CHAR,
                  MPI_COMM_WORLD);
    for (int i = 0; i < size; i++)
        one_host = one_host && strcmp(own, all[i]) == 0;
    free(all);
    alone->one_host = one_host;
    alone->host = one_host ? "127.0.0.1" : own;
}

/* Gives every rank the servers' addresses, as if --servers had named them. */
static void urls_exchange(struct alone *alone, const char own[URL_SIZE])
{
    int servers = alone->world->servers, size = servers + alone->world->clients;
    char(*all)[URL_SIZE] = allocate((size_t)size * sizeof *all);
    MPI_Allgather(own, URL_SIZE, MPI_CHAR, all, URL_SIZE, MPI_CHAR, MPI_COMM_WORLD);
    alone->options->urls = allocate((size_t)servers * sizeof(char *));
    alone->options->url_count = servers;
    for (int i = 0; i < servers; i++)
        alone->options->urls[i] = all[i]; /* stays to the end of the process */
}

static void bmi_open(struct alone *alone)
{
    char listen[URL_SIZE], address[BMI_MAX_ADDR_LEN] = "", own[URL_SIZE] = "";
    format_text(listen, sizeof listen, "%s://%s:0", alone->options->method, alone->host);
    if (alone->options->pattern->contenders & BIT(CONTENDER_BMI_BACKGROUND))
        setenv("BMI_PROGRESS", "caller", 1); /* the report states this progress */
    if (alone->server)
        bmi_server_open(&alone->bmi_server, alone->options, listen, address);
    format_text(own, sizeof own, "%s", address);
    urls_exchange(alone, own);
    if (!alone->server)
        bmi_client_open(&alone->bmi_client, alone->options);
}

static void bmi_close(struct alone *alone)
{
    bmi_side_close(alone->server ? &alone->bmi_server : &alone->bmi_client.side);
}

static void raw_open(struct alone *alone)
{
    char listen[URL_SIZE], own[URL_SIZE] = "";
    format_text(listen, sizeof listen, "raw://%s:0", alone->host);
    if (alone->server)
        raw_server_open(&alone->raw_server, &raw_plain, listen, own, sizeof own);
    urls_exchange(alone, own);
    if (!alone->server)
        raw_client_open(&alone->raw_client, &raw_plain, alone->options);
}

/* On one host MPI's data is to go where BMI's goes. */
static double mpi_sample(struct alone *alone, struct work *work)
{
    const struct mpi_world *world = alone->world;
    uint64_t before = traffic_carried();
    double figure = mpi_sample_take(mpi_pattern_named(alone->options->pattern->name), world, work);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world->rank == 0 && alone->one_host && !options_use_memory(alone->options))
        traffic_check(alone->options, work, (uint64_t)(world->servers * world->clients), before);
    return figure;
}

/* Takes one sample of a contender. Returns: the slowest client's seconds, on rank 0. */
static double sample_take(struct alone *alone, enum contender contender, struct work *work)
{
    const struct pattern *pattern = alone->options->pattern;
    uint64_t requests = (uint64_t)alone->world->clients;
    double figure = 0, slowest = 0;
    work_contender_set(work, alone->options, contender);
    work->sequence = ++alone->sequence;
    data_allocator_set(NULL); /* BMI's own samples and requests set it again */
    MPI_Barrier(MPI_COMM_WORLD);
    if (BIT(contender) & BITS_MPI)
        figure = mpi_sample(alone, work);
    else if (alone->server && BIT(contender) & BITS_BMI)
        bmi_server_run(&alone->bmi_server, requests);
    else if (alone->server)
        raw_server_run(&alone->raw_server, requests);
    else if (BIT(contender) & BITS_BMI)
        figure = bmi_client_run(&alone->bmi_client, work);
    else
        figure = pattern->run_raw(&alone->raw_client, work);
    MPI_Reduce(&figure, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    return slowest;
}

static void row_measure(struct alone *alone, struct row *row)
{
    const struct options *options = alone->options;
    int pairs = row->grid.servers * row->grid.clients;
    struct work work = row->work;
    row_open(row, options, options->contenders);
    for (int rep = -1; rep < options->reps; rep++)
        for (int i = 0; i < CONTENDER_COUNT; i++) {
            enum contender contender = (enum contender)(rep % 2 == 0 ? i : CONTENDER_COUNT - 1 - i);
            struct series *series = &row->series[contender];
            if (!(options->contenders & BIT(contender)))
                continue;
            double slowest = sample_take(alone, contender, &work);
            if (rep >= 0 && alone->world->rank == 0)
                series->samples[series->count++] = options->pattern->value(slowest, &work, pairs);
        }
}

static void rows_measure(struct alone *alone, struct report *report)
{
    const struct options *options = alone->options;
    report->count = rows_prepare(options, &options->grids[0], report->rows);
    for (int i = 0; i < report->count; i++) {
        struct row *row = &report->rows[i];
        row_measure(alone, row);
        if (alone->world->rank != 0)
            continue;
        row_finish(row, options);
        report_row_print(report, row);
    }
}

void alone_run(struct options *options, const struct mpi_world *world)
{
    struct report report = {.options = options};
    struct alone alone = {.options = options,
                          .world = world,
                          .server = world->rank < world->servers};
    if (options->grid_count > 1 || options->role != ROLE_COORDINATOR)
        refuse("--grid and --role: not where MPI places the processes");
    if (options->pattern->run_here)
        refuse("%s: bmi-bench's own, without other processes", options->pattern->name);
    if (options->contenders & BIT(CONTENDER_BMI_BACKGROUND))
        refuse("--progress background: a process has one kind of progress; use bmi-bench");
    if (options->contenders & (BIT(CONTENDER_FI) | BIT(CONTENDER_MEMCPY) | BITS_TLS))
        refuse("--reference fi, memcpy, tls: not where MPI places the processes; use bmi-bench");
    if (world->rank == 0)
        report_files_check(options);
    host_choose(&alone, world);
    report.rows = allocate(ROWS_MAX * sizeof *report.rows);
    if (options->contenders & BITS_BMI)
        bmi_open(&alone);
    if (options->contenders & BITS_RAW)
        raw_open(&alone);
    if (world->rank == 0)
        report_start(&report);
    rows_measure(&alone, &report);
    if (world->rank == 0)
        report_end(&report);
    if (options->contenders & BITS_BMI)
        bmi_close(&alone);
}
