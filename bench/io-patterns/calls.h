/* SPDX-License-Identifier: BSD-3-Clause
 *
 * calls.h - the times of a sample's calls: requests that a client sends and the server answers.
 *
 * In a sample `amount` calls follow others that are not timed; `window` of them are under way. One
 * thread; no locks.
 */
#ifndef BENCH_CALLS_H
#define BENCH_CALLS_H

#include "bench.h"

/* work.figure: the figure of a sample, in seconds a call */
enum calls_figure {
    CALLS_MEDIAN,
    CALLS_TAIL,     /* the 99th of 100 */
    CALLS_LONGEST,  /* the 999th of 1,000 */
    CALLS_MEAN,     /* the sample's time over their number */
    CALLS_ELSEWHERE /* the first of the figures that these times do not give */
};

struct calls {
    const struct work *work;
    uint64_t total, unmeasured; /* calls; those at the beginning */
    uint64_t started, ended;
    uint64_t *start_ns; /* of the call at each place of the window */
    uint64_t *took_ns;  /* of each measured call */
    uint64_t first_ns;  /* when those began */
};

/* Calls of a sample, the first ones that are not measured included. */
uint64_t calls_total(const struct work *work);
void calls_open(struct calls *calls, const struct work *work);
/* A call begins at a place of the window. Returns: false: it is not wanted any more. */
bool call_begin(struct calls *calls, uint32_t place);
void call_end(struct calls *calls, uint32_t place);
/* Returns: the sample's figure; 0 for one of elsewhere. */
double calls_close(struct calls *calls);

#endif
