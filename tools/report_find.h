/* SPDX-License-Identifier: BSD-3-Clause
 *
 * report_find.h - finds the running instances that send a report (BMI_REPORT=on), of one process or
 * of all, by the names of their sockets in /proc/net/unix.
 */
#ifndef REPORT_FIND_H
#define REPORT_FIND_H

#include <stdint.h>

#include "report_read.h"

enum { REPORT_INSTANCES = 64 }; /* found of a process at most, besides its default instance */

/* Fills in process and instance of up to `most` sources, sorted by these; the default instance is
 * the first of its process. `process` 0: of all processes that answer us: those of our user, and
 * all if we are root. Returns how many; *skipped: those beyond the limits. */
int reports_find(long process, struct report_source *sources, int most, uint64_t *skipped);

#endif
