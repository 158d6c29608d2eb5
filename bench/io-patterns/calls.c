/* SPDX-License-Identifier: BSD-3-Clause
 *
 * calls.c - see calls.h.
 */
#include "calls.h"

#include <stdlib.h>

static uint64_t unmeasured(const struct work *work)
{
    return work->amount / 4 + 1;
}

uint64_t calls_total(const struct work *work)
{
    return work->amount + unmeasured(work);
}

void calls_open(struct calls *calls, const struct work *work)
{
    *calls =
        (struct calls){.work = work, .total = calls_total(work), .unmeasured = unmeasured(work)};
    calls->start_ns = allocate(work->window * sizeof *calls->start_ns);
    calls->took_ns = allocate(work->amount * sizeof *calls->took_ns);
}

bool call_begin(struct calls *calls, uint32_t place)
{
    if (calls->started == calls->total)
        return false;
    calls->started++;
    calls->start_ns[place] = now_ns();
    return true;
}

void call_end(struct calls *calls, uint32_t place)
{
    uint64_t now = now_ns();
    if (calls->ended >= calls->unmeasured)
        calls->took_ns[calls->ended - calls->unmeasured] = now - calls->start_ns[place];
    if (++calls->ended == calls->unmeasured)
        calls->first_ns = now;
}

double calls_close(struct calls *calls)
{
    uint64_t amount = calls->work->amount;
    double figure = 0, mean = seconds_since(calls->first_ns) / (double)amount;
    uint64_t median_ns = rounds_median(calls->took_ns, amount); /* sorts them */
    switch (calls->work->figure) {
    case CALLS_MEDIAN:
        figure = (double)median_ns * 1e-9;
        break;
    case CALLS_TAIL:
        figure = (double)calls->took_ns[amount * 99 / 100] * 1e-9;
        break;
    case CALLS_LONGEST:
        figure = (double)calls->took_ns[amount * 999 / 1000] * 1e-9;
        break;
    case CALLS_MEAN:
        figure = mean;
        break;
    }
    free(calls->start_ns);
    free(calls->took_ns);
    return figure;
}
