/* SPDX-License-Identifier: BSD-3-Clause
 *
 * coordinator.c - the whole run: groups, sizes, repetitions, contenders in turn.
 *
 * All contenders' processes live at the same time, waiting without using CPU, and take their
 * samples in turn, so that other load of the machine affects all of them. The order of turns
 * reverses with each repetition. A first round of each size only warms up.
 */
#include "coordinator.h"
#include "fi_pingpong.h"
#include "group.h"
#include "keys.h"
#include "launch.h"
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static uint32_t sequence; /* of samples, over the whole run */

static void progress_show(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void progress_show(const char *format, ...)
{
    if (!isatty(2))
        return;
    char text[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\r\033[K%s", text);
}

/* Takes one round of samples: each contender once. */
static void round_take(struct group *groups, int count, const struct options *options,
                       const struct work *work, struct row *row, int rep)
{
    int pairs = row->grid.servers * row->grid.clients;
    for (int i = 0; i < count; i++) {
        struct group *group = &groups[rep % 2 == 0 ? i : count - 1 - i];
        struct work sample = *work;
        sample.sequence = ++sequence;
        progress_show("%s %dx%d %u %s: %s, %s %d of %d", options->pattern->name, row->grid.servers,
                      row->grid.clients, work->size, row->label, contender_name(group->contender),
                      rep < 0 ? "warm-up" : "sample", rep < 0 ? 1 : rep + 1,
                      rep < 0 ? 1 : options->reps);
        double figure = group_sample(group, &sample);
        struct series *series = &row->series[group->contender];
        if (rep >= 0)
            series->samples[series->count++] = options->pattern->value(figure, work, pairs);
    }
}

/* Measures one row with groups that run. What they said when they were ready is in its notes. */
static void row_measure(struct group *groups, int count, const struct options *options,
                        struct row *row)
{
    row_open(row, options, options->contenders);
    for (int rep = -1; rep < options->reps; rep++)
        round_take(groups, count, options, &row->work, row, rep);
    row_finish(row, options);
    for (int i = 0; i < count; i++)
        format_text(row->series[groups[i].contender].note, sizeof row->series->note, "%s",
                    groups[i].note);
}

static void grid_measure(const struct options *options, const struct grid *grid,
                         struct report *report)
{
    struct group groups[CONTENDER_COUNT];
    int count = 0;
    for (enum contender i = 0; i < CONTENDER_COUNT; i++)
        if (options->contenders & BIT(i)) {
            progress_show("%s %dx%d: starting %s", options->pattern->name, grid->servers,
                          grid->clients, contender_name(i));
            group_start(&groups[count++], i, options, grid);
        }
    struct row *rows = &report->rows[report->count];
    int row_count = rows_prepare(options, grid, rows);
    for (int i = 0; i < row_count; i++) {
        struct row *row = &rows[i];
        row_measure(groups, count, options, row);
        report->count++;
        progress_show("%s", "");
        report_row_print(report, row);
    }
    for (int i = 0; i < count; i++)
        group_end(&groups[i]);
}

/* A thousand processes are two thousand descriptors. */
static void descriptors_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void grids_run(const struct options *options, struct report *report)
{
    descriptors_raise();
    launch_open();
    if ((options->contenders & BITS_MPI) && !launch_mpi_found())
        die("--reference mpi: bmi-bench-mpi beside this program and mpiexec are wanted "
            "(install mpich and build again)");
    if (options->contenders & BIT(CONTENDER_FI))
        fi_pingpong_open(options);
    if (strcmp(options->method, "tls") == 0 || options->contenders & BITS_TLS)
        keys_make(options);
    report_start(report);
    for (int i = 0; i < options->grid_count; i++)
        grid_measure(options, &options->grids[i], report);
    report_end(report);
}

static void rows_free(struct report *report)
{
    for (int i = 0; i < report->count; i++)
        for (int j = 0; j < CONTENDER_COUNT; j++)
            free(report->rows[i].series[j].samples);
    free(report->rows);
}

void coordinator_run(const struct options *options)
{
    struct report report = {.options = options};
    report_files_check(options);
    int rows = options->pattern->labels ? ROWS_MAX : SIZES_MAX;
    report.rows = allocate((size_t)(options->grid_count * rows) * sizeof *report.rows);
    if (options->pattern->run_here) {
        report_start(&report);
        options->pattern->run_here(options, &report);
        report_end(&report);
    } else {
        grids_run(options, &report);
    }
    rows_free(&report);
}
