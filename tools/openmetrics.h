/* SPDX-License-Identifier: BSD-3-Clause
 *
 * openmetrics.h - reports of processes as metrics: OpenMetrics 1.0 text, or the older text format
 * of Prometheus. docs/monitoring.md lists them, and explains the labels.
 */
#ifndef OPENMETRICS_H
#define OPENMETRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "report_parse.h"
#include "report_read.h"

/* An instance of a process. */
struct metrics_instance {
    long process;
    char program[REPORT_NAME_SIZE];  /* its name */
    char name[REPORT_INSTANCE_SIZE]; /* "": the default instance */
    bool up;                         /* it has sent a report */
    struct report report;
};

/* How the reports were collected. */
struct metrics_collection {
    double seconds;
    uint64_t failed;  /* reports since the start that were not whole, or in another's name */
    uint64_t skipped; /* reports beyond the limits */
};

struct metrics {
    struct metrics_instance *instances; /* those of a process stand together */
    int count;
    const struct metrics_collection *collection; /* NULL: no metrics of it */
    bool peers;                                  /* metrics for each peer, beside the sums */
    bool plain; /* text format 0.0.4 of Prometheus; else OpenMetrics */
};

/* Fills in an instance by its report, whose text it changes. Returns false if it is not shown: it
 * has ended meanwhile, does not report to us, or another process answered. One that is shown has a
 * report for report_release, also if it is not up. */
bool metrics_take(struct metrics_instance *instance, const struct report_source *source);

/* Returns the text, to be freed, and its size; NULL: no memory. Sorts the peers of the reports. */
char *metrics_text(const struct metrics *metrics, size_t *size);

#endif
