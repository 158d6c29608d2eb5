/* SPDX-License-Identifier: BSD-3-Clause
 *
 * openmetrics.h - reports of processes as metrics: OpenMetrics 1.0 text, or the older text format
 * of Prometheus. docs/monitoring.md lists them.
 */
#ifndef OPENMETRICS_H
#define OPENMETRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "report_parse.h"
#include "report_read.h"

struct metrics_process {
    long process;
    char name[REPORT_NAME_SIZE]; /* of its program */
    bool up;                     /* it has sent a report */
    struct report report;
};

/* How the reports were collected. */
struct metrics_collection {
    double seconds;
    uint64_t failed;  /* reports since the start that were not whole, or in another's name */
    uint64_t skipped; /* processes beyond the limit */
};

struct metrics {
    struct metrics_process *processes;
    int count;
    const struct metrics_collection *collection; /* NULL: no metrics of it */
    bool peers;                                  /* metrics for each peer, beside the sums */
    bool plain; /* text format 0.0.4 of Prometheus; else OpenMetrics */
};

/* Returns the text, to be freed, and its size; NULL: no memory. Sorts the peers of the reports. */
char *metrics_text(const struct metrics *metrics, size_t *size);

#endif
