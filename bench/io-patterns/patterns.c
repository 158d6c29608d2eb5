/* SPDX-License-Identifier: BSD-3-Clause
 *
 * patterns.c - the table of patterns; a new one adds a file and a line.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

extern const struct pattern pattern_read, pattern_write, pattern_latency, pattern_bandwidth,
    pattern_rate, pattern_testcost, pattern_reapcost, pattern_idle, pattern_memory, pattern_job,
    pattern_tasks, pattern_overlap, pattern_threads, pattern_flow, pattern_handshake, pattern_rpc,
    pattern_clients, pattern_place, pattern_is;

const struct pattern *const patterns[] = {
    &pattern_read,     &pattern_write,    &pattern_latency, &pattern_bandwidth, &pattern_rate,
    &pattern_testcost, &pattern_reapcost, &pattern_idle,    &pattern_memory,    &pattern_job,
    &pattern_tasks,    &pattern_overlap,  &pattern_threads, &pattern_flow,      &pattern_handshake,
    &pattern_rpc,      &pattern_clients,  &pattern_place,   &pattern_is,        NULL,
};

const struct pattern *pattern_named(const char *name)
{
    for (int i = 0; patterns[i]; i++)
        if (strcmp(patterns[i]->name, name) == 0)
            return patterns[i];
    return NULL;
}

/* Returns: the pattern at a place of the table; NULL past its end. */
const struct pattern *pattern_numbered(uint8_t number)
{
    uint8_t count = 0;
    while (patterns[count])
        count++;
    return number < count ? patterns[number] : NULL;
}

/* The pattern's place in the table, by which a request names it. */
uint8_t pattern_number(const struct pattern *pattern)
{
    uint8_t number = 0;
    while (patterns[number] != pattern)
        number++;
    return number;
}

const char *contender_name(enum contender contender)
{
    static const char *const names[] = {
        [CONTENDER_BMI] = "bmi",
        [CONTENDER_BMI_PLAIN] = "bmi-plain",
        [CONTENDER_BMI_BACKGROUND] = "bmi-background",
        [CONTENDER_BMI_URING] = "bmi-io_uring",
        [CONTENDER_LOCK_FREE] = "lock-free",
        [CONTENDER_POST] = "post",
        [CONTENDER_RAW] = "raw",
        [CONTENDER_RAW_POLL] = "raw-poll",
        [CONTENDER_TLS] = "tls",
        [CONTENDER_TLS_POLL] = "tls-poll",
        [CONTENDER_MPI] = "mpi",
        [CONTENDER_MPI_PROBE] = "mpi-probe",
        [CONTENDER_MPI_YIELD] = "mpi-yield",
        [CONTENDER_FI] = "fi_pingpong",
        [CONTENDER_MEMCPY] = "memcpy",
        [CONTENDER_SPINLOCK] = "spinlock",
        [CONTENDER_LINE] = "line",
        [CONTENDER_MIXED] = "mixed",
        [CONTENDER_UNPLACED] = "none",
        [CONTENDER_RANDOM] = "random",
        [CONTENDER_TASKS_ONLY] = "tasks-only",
        [CONTENDER_NEXT_TOUCH] = "next-touch",
        [CONTENDER_BOUND] = "bound",
    };
    return names[contender];
}

const char *on_name(uint8_t on)
{
    static const char *const names[] = {
        [0] = "neither", [ON_SENDER] = "sender", [ON_RECEIVER] = "receiver", [ON_BOTH] = "both"};
    return names[on & ON_BOTH];
}

const char *post_name(enum post post)
{
    static const char *const names[] = {[POST_DEFAULT] = "window",
                                        [POST_ALL] = "all",
                                        [POST_WINDOW] = "window",
                                        [POST_ONE] = "one"};
    return names[post];
}

const char *first_name(enum first first)
{
    static const char *const names[] = {
        [FIRST_RECEIVER] = "receiver", [FIRST_SENDER] = "sender", [FIRST_TOGETHER] = "together"};
    return names[first];
}

double value_bandwidth(double slowest, const struct work *work, int pairs)
{
    return (double)work->amount * pairs / slowest / 1e6;
}

double value_rate(double slowest, const struct work *work, int pairs)
{
    return (double)work->amount * pairs / slowest;
}

double value_latency(double slowest, const struct work *work, int pairs)
{
    (void)pairs;
    return slowest / (double)work->amount / 2 * 1e6;
}

static int order(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

uint64_t rounds_median(uint64_t *rounds_ns, uint64_t count)
{
    qsort(rounds_ns, count, sizeof *rounds_ns, order);
    return rounds_ns[count / 2];
}

double overlap_seconds(const struct work *work, uint64_t sender_ns, uint64_t receiver_ns)
{
    uint64_t slower = work->on & ON_SENDER ? sender_ns : 0;
    if (work->on & ON_RECEIVER && receiver_ns > slower)
        slower = receiver_ns;
    return (double)slower * 1e-9;
}
