/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report.h - what was measured: a table on the terminal, JSON lines, a drawing.
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "bench.h"

#include <stdarg.h>

/* One contender's samples of one row. */
struct series {
    double *samples; /* in the order taken; NULL: the contender takes no part */
    int count;
    double median, least, most;
};

/* One number of servers and clients, one size. */
struct row {
    struct grid grid;
    struct work work;
    struct series series[CONTENDER_COUNT];
};

struct report {
    const struct options *options;
    struct row *rows;
    int count;
};

void row_finish(struct row *row);
int report_servers(const struct options *options);
void report_start(const struct report *report);
void report_row_print(const struct report *report, const struct row *row);
void report_end(const struct report *report);

/* plot.c */
void plot_write(const struct report *report, const char *path);

#endif
