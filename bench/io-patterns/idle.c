/* SPDX-License-Identifier: BSD-3-Clause
 *
 * idle.c - the cost to a server of connected clients that do nothing.
 *
 * A thousand client processes connect; the first then asks the server for its use of CPU and
 * memory, waits `amount` milliseconds, and asks again. `idle` gives the CPU time between, in
 * percent of a core; `memory` the growth of the server's memory since its first client, per client.
 */
#include "bmi_side.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The contents of the server's acknowledgement. In the byte order of the machine on which client
 * and server run. */
struct usage {
    uint64_t cpu_ns;
    uint64_t heap;                       /* bytes that malloc has given out */
    uint64_t resident;                   /* bytes of private memory in use */
    uint64_t heap_first, resident_first; /* at the first request */
    uint64_t clients;                    /* seen so far, the first one included */
};
_Static_assert(sizeof(struct usage) <= ACK_SIZE, "usage fits into an acknowledgement");

static uint64_t resident_read(void)
{
    unsigned long size, resident, shared;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu %lu %lu", &size, &resident, &shared) != 3)
        die("/proc/self/statm cannot be read");
    fclose(file);
    return (uint64_t)(resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void usage_read(struct usage *usage)
{
    struct timespec cpu;
    struct mallinfo2 heap = mallinfo2();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    usage->cpu_ns = (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec;
    usage->heap = heap.uordblks + heap.hblkhd;
    usage->resident = resident_read();
}

static void idle_serve(struct bmi_side *side, const struct work *work, bmi_peer client)
{
    static struct usage first;
    static uint8_t known[UINT16_MAX + 1];
    struct usage usage;
    uint8_t ack[ACK_SIZE] = {0};
    usage_read(&usage);
    if (first.clients == 0)
        first = usage;
    if (!known[work->client]) {
        known[work->client] = 1;
        first.clients++;
    }
    usage.heap_first = first.heap;
    usage.resident_first = first.resident;
    usage.clients = first.clients;
    memcpy(ack, &usage, sizeof usage);
    acknowledge_and_await(side, client, work, ack);
}

static void usage_ask(struct bmi_client *client, const struct work *work, struct usage *usage)
{
    uint8_t ack[ACK_SIZE];
    client_ask_for(client, 0, work, ack);
    memcpy(usage, ack, sizeof *usage);
}

static void idle_await(const struct work *work)
{
    struct timespec time = {.tv_sec = (time_t)(work->amount / 1000),
                            .tv_nsec = (long)(work->amount % 1000) * 1000000};
    nanosleep(&time, NULL);
}

/* Returns: percent of a core; 0 for all clients but the first. */
static double idle_run(struct bmi_client *client, const struct work *work)
{
    struct usage before, after;
    if (work->client != 0) {
        usage_ask(client, work, &before);
        return 0;
    }
    /* The first second is left out: the other clients' connecting still causes work then. */
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    usage_ask(client, work, &before);
    uint64_t start = now_ns();
    idle_await(work);
    usage_ask(client, work, &after);
    if (after.clients < work->size)
        die("the server knows %llu clients of %u", (unsigned long long)after.clients, work->size);
    return (double)(after.cpu_ns - before.cpu_ns) * 1e-9 / seconds_since(start) * 100;
}

/* Returns: bytes per client. */
static double memory_run(struct bmi_client *client, const struct work *work)
{
    struct usage usage;
    usage_ask(client, work, &usage);
    if (work->client != 0)
        return 0;
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    usage_ask(client, work, &usage);
    if (usage.clients < work->size)
        die("the server knows %llu clients of %u", (unsigned long long)usage.clients, work->size);
    if (usage.clients < 2)
        die("memory of a client is that of all after the first: --clients 2 or more");
    int64_t heap = (int64_t)(usage.heap - usage.heap_first);
    int64_t resident = (int64_t)(usage.resident - usage.resident_first);
    int64_t growth = heap > resident ? heap : resident;
    return growth > 0 ? (double)growth / (double)(usage.clients - 1) : 0;
}

static double value_plain(double slowest, const struct work *work, int pairs)
{
    (void)work;
    (void)pairs;
    return slowest;
}

/* Sizes follow from the grid. */
#define IDLE(NAME, SUMMARY, UNIT, RUN, AMOUNT, TAKES)                                         \
    {                                                                                         \
        .name = NAME, .summary = SUMMARY, .unit = UNIT, .size_name = "clients", .sizes = "0", \
        .size_is_clients = true, .amount = AMOUNT, .less_is_better = true, .grid = "1x1000",  \
        .takes = TAKES_PARTICIPANTS | (TAKES), .contenders = BIT(CONTENDER_BMI),              \
        .value = value_plain, .serve_bmi = idle_serve, .run_bmi = RUN,                        \
    }

const struct pattern pattern_idle =
    IDLE("idle", "CPU time of a server with connected clients that do nothing", "% of a core",
         idle_run, "3000", TAKES_MESSAGES);
const struct pattern pattern_memory =
    IDLE("memory", "memory of a server for each connected client that does nothing", "bytes",
         memory_run, "0", 0);
