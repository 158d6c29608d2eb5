/* SPDX-License-Identifier: BSD-3-Clause
 *
 * place_work.c - the workloads of the placement simulator. Loops are those of the paper: each run
 * of a task is STREAM's triad over three vectors of its own, and a barrier ends it.
 */
#include "place.h"

#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RUNS 40
#define KIB 1024.0
#define MIB (1024 * KIB)
#define US 1000.0
#define MS (1000 * US)

double place_uniform(struct place_random *random)
{
    uint64_t mixed = random->state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((mixed ^ mixed >> 31) >> 11) * 0x1p-53;
}

double place_exponential(struct place_random *random, double mean)
{
    return -mean * log(1 - place_uniform(random));
}

static double between(struct place_random *random, double low, double high)
{
    return low + (high - low) * place_uniform(random);
}

struct builder {
    struct place_work *work;
    uint32_t nodes, cpus; /* CPUs of a node */
    double bytes;         /* of a vector */
    struct place_random random;
};

static void *grow(void *array, uint32_t count, size_t size)
{
    if ((count & (count + 1)) == 0) /* full at powers of two, less one */
        array = realloc(array, (size_t)(count + 1) * 2 * size);
    if (!array)
        die("no memory");
    return array;
}

static uint32_t region_add(struct builder *builder, double bytes, int node, bool pinned)
{
    struct place_work *work = builder->work;
    work->regions = grow(work->regions, work->region_count, sizeof *work->regions);
    work->regions[work->region_count] = (struct place_region){bytes, node, pinned};
    return work->region_count++;
}

static struct place_team *team_add(struct builder *builder, double arrival_ns, bool barrier)
{
    struct place_work *work = builder->work;
    work->teams = grow(work->teams, work->team_count, sizeof *work->teams);
    work->teams[work->team_count] = (struct place_team){.arrival_ns = arrival_ns,
                                                        .first = work->task_count,
                                                        .barrier = barrier};
    return &work->teams[work->team_count++];
}

/* Adds a task to the last team. */
static struct place_task *task_add(struct builder *builder, uint32_t runs, double compute_ns)
{
    struct place_work *work = builder->work;
    work->tasks = grow(work->tasks, work->task_count, sizeof *work->tasks);
    work->tasks[work->task_count] =
        (struct place_task){.team = work->team_count - 1, .runs = runs, .compute_ns = compute_ns};
    work->teams[work->team_count - 1].count++;
    return &work->tasks[work->task_count++];
}

static void use_add(struct place_task *task, uint32_t region, double read, double written, bool own)
{
    task->uses[task->use_count++] = (struct place_use){region, read, written, own};
}

/* A team whose tasks each compute a = b + c * d over vectors that lie on `node`. */
static void loop_add(struct builder *builder, uint32_t tasks, uint32_t runs, int node)
{
    double bytes = builder->bytes;
    team_add(builder, 0, true);
    for (uint32_t i = 0; i < tasks; i++) {
        struct place_task *task =
            task_add(builder, runs, between(&builder->random, 0.095, 0.105) * MS);
        for (int vector = 0; vector < 3; vector++)
            use_add(task, region_add(builder, bytes, node, false), vector ? bytes : 0,
                    vector ? 0 : bytes, true);
    }
}

static void stream_make(struct builder *builder)
{
    for (uint32_t i = 0; i < builder->nodes; i++)
        loop_add(builder, builder->cpus, RUNS, -1);
}

/* Four small teams for each node; each shares a vector. */
static void nested_make(struct builder *builder)
{
    for (uint32_t i = 0; i < 4 * builder->nodes; i++) {
        uint32_t shared = region_add(builder, builder->bytes, -1, false);
        loop_add(builder, builder->cpus >= 4 ? builder->cpus / 4 : 1, RUNS, -1);
        const struct place_team *team = &builder->work->teams[i];
        for (uint32_t j = 0; j < team->count; j++)
            use_add(&builder->work->tasks[team->first + j], shared, builder->bytes / 4, 0, false);
    }
}

/* The vectors were written by the team of another node. */
static void twisted_make(struct builder *builder)
{
    for (uint32_t i = 0; i < builder->nodes; i++)
        loop_add(builder, builder->cpus, RUNS, (int)((i + 1) % builder->nodes));
}

/* The first node's team ends when a quarter of the others' runs is over. */
static void early_make(struct builder *builder)
{
    for (uint32_t i = 0; i < builder->nodes; i++)
        loop_add(builder, builder->cpus, i ? RUNS : RUNS / 4, (int)i);
}

/* The first node's team has four times the others' runs. */
static void late_make(struct builder *builder)
{
    for (uint32_t i = 0; i < builder->nodes; i++)
        loop_add(builder, builder->cpus, i ? RUNS / 4 : RUNS, (int)i);
}

/* From few runs on the first node to many on the last. */
static void graded_make(struct builder *builder)
{
    for (uint32_t i = 0; i < builder->nodes; i++)
        loop_add(builder, builder->cpus, 2 * RUNS * (i + 1) / (builder->nodes + 1), (int)i);
}

/* More tasks than CPUs, in teams of random lengths. */
static void crowded_make(struct builder *builder)
{
    for (uint32_t i = 0; i < 4 * builder->nodes; i++)
        loop_add(builder, builder->cpus >= 2 ? builder->cpus / 2 : 1,
                 (uint32_t)between(&builder->random, 5, 60), (int)(i / 4));
}

/* One thread has written all vectors. */
static void serial_make(struct builder *builder)
{
    for (uint32_t i = 0; i < builder->nodes; i++)
        loop_add(builder, builder->cpus, RUNS, 0);
}

/* Groups of some tasks that share memory; they come and go. */
static void groups_make(struct builder *builder)
{
    uint32_t count = 12 * builder->nodes * builder->cpus;
    double arrival_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t tasks = 1 + (uint32_t)between(&builder->random, 0, 4);
        uint32_t runs = 1 + (uint32_t)place_exponential(&builder->random, 8);
        uint32_t shared = region_add(builder, 256 * KIB, -1, false);
        arrival_ns +=
            place_exponential(&builder->random, 4.5 * MS / builder->nodes / builder->cpus);
        team_add(builder, arrival_ns, false);
        for (uint32_t j = 0; j < tasks; j++) {
            struct place_task *task =
                task_add(builder, runs, between(&builder->random, 50, 150) * US);
            double bytes = between(&builder->random, 0.25, 2) * MIB;
            use_add(task, region_add(builder, bytes, -1, false), bytes / 2, bytes / 2, true);
            use_add(task, shared, 64 * KIB, 0, false);
        }
    }
}

/* Clients that think between requests, each with state of its own, and streams of flows. What the
 * network receives lies in registered memory on the first node. */
static void server_make(struct builder *builder)
{
    uint32_t total = builder->nodes * builder->cpus;
    uint32_t network = region_add(builder, 64 * MIB, 0, true);
    for (uint32_t i = 0; i < 3 * total; i++) {
        double bytes = between(&builder->random, 128, 512) * KIB;
        team_add(builder, place_exponential(&builder->random, 0.2 * MS), false);
        struct place_task *task = task_add(builder, 100, between(&builder->random, 5, 15) * US);
        task->pause_ns = 0.1 * MS;
        use_add(task, region_add(builder, bytes, -1, false), bytes * 0.75, bytes * 0.25, true);
        use_add(task, network, 4 * KIB, 4 * KIB, false);
    }
    for (uint32_t i = 0; i < total; i++) {
        bool registered = place_uniform(&builder->random) < 0.5;
        team_add(builder, between(&builder->random, 0, 10) * MS, false);
        struct place_task *task = task_add(builder, 64, 20 * US);
        task->pause_ns = 0.05 * MS;
        use_add(task, region_add(builder, 2 * MIB, -1, registered), 256 * KIB, 256 * KIB, true);
        use_add(task, network, 4 * KIB, 0, false);
    }
}

/* Anything, anywhere. */
static void random_make(struct builder *builder)
{
    struct place_random *random = &builder->random;
    for (uint32_t i = 0; i < 3 * builder->nodes; i++) {
        uint32_t tasks = 1 + (uint32_t)between(random, 0, builder->cpus);
        uint32_t runs = 1 + (uint32_t)place_exponential(random, 15);
        int node = (int)between(random, -1, builder->nodes);
        team_add(builder, place_exponential(random, 20 * MS), place_uniform(random) < 0.5);
        for (uint32_t j = 0; j < tasks; j++) {
            struct place_task *task = task_add(builder, runs, place_exponential(random, 0.5 * MS));
            for (int use = 0; use < 2; use++) {
                double bytes = exp2(between(random, 16, 24));
                bool pinned = place_uniform(random) < 0.2;
                use_add(task, region_add(builder, bytes, node, pinned),
                        bytes * place_uniform(random), bytes * place_uniform(random), true);
            }
        }
    }
}

static const struct {
    const char *name, *panel;
    void (*make)(struct builder *builder);
} works[] = {
    {"stream", "balanced loops", stream_make},
    {"nested teams", "balanced loops", nested_make},
    {"twisted", "balanced loops", twisted_make},
    {"one node early", "imbalanced loops", early_make},
    {"one node late", "imbalanced loops", late_make},
    {"graded", "imbalanced loops", graded_make},
    {"crowded", "imbalanced loops", crowded_make},
    {"one writer", "others", serial_make},
    {"small groups", "others", groups_make},
    {"file server", "others", server_make},
    {"random", "others", random_make},
};

const char *place_work_name(uint32_t number)
{
    return number < sizeof works / sizeof *works ? works[number].name : NULL;
}

const char *place_work_panel(uint32_t number)
{
    return works[number].panel;
}

void place_work_make(struct place_work *work, uint32_t number, uint32_t nodes, uint32_t cpus,
                     double bytes, struct place_random random)
{
    struct builder builder = {
        .work = work, .nodes = nodes, .cpus = cpus, .bytes = bytes, .random = random};
    *work = (struct place_work){0};
    works[number].make(&builder);
}

void place_work_free(struct place_work *work)
{
    free(work->regions);
    free(work->tasks);
    free(work->teams);
}
