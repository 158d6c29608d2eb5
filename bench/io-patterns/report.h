/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report.h - the results: a table on the terminal, JSON lines, a drawing.
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "bench.h"

#include <stdarg.h>

/* One contender's samples of one row. */
struct series {
    double *samples; /* in the order taken; NULL: the contender takes no part */
    int count;
    double value, least, most;
    char note[256]; /* printed behind the table's line, and as "note" in JSON; may be empty */
};

/* One number of servers and clients, one size. If the pattern has rows of its own kind, the label
 * distinguishes them within a panel (neighbours with equal text: one part of table and drawing). */
struct row {
    char panel[64], label[48];
    const char *unit; /* of this panel: of rates ("/s") more is better; NULL: the pattern's */
    struct grid grid;
    struct work work;
    struct series series[CONTENDER_COUNT];
};

struct report {
    const struct options *options;
    struct row *rows;
    int count;
};

/* Prepares the rows of a grid. Returns: their number. */
int rows_prepare(const struct options *options, const struct grid *grid, struct row *rows);
const char *row_unit(const struct row *row, const struct pattern *pattern);
bool row_less_is_better(const struct row *row, const struct pattern *pattern);
/* Room for the samples of the contenders that take part. */
void row_open(struct row *row, const struct options *options, unsigned contenders);
void row_finish(struct row *row, const struct options *options);
/* Ends the process if a file that the run needs at its end cannot be written. */
void report_files_check(const struct options *options);
void report_start(const struct report *report);
void report_row_print(const struct report *report, const struct row *row);
void report_end(const struct report *report);

/* plot.c */
void plot_write(const struct report *report, const char *path);

#endif
