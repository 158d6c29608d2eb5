/* SPDX-License-Identifier: BSD-3-Clause
 *
 * place.h - the simulator of placement: a machine, workloads, and policies in virtual time. Its
 * decisions are those of task/placement.c, whose files are part of this program.
 */
#ifndef BENCH_PLACE_H
#define BENCH_PLACE_H

#include "task/placement.h"

#include <stdbool.h>
#include <stdint.h>

enum { PLACE_USES = 4 };
#define PLACE_LINK 0.3 /* a link's bandwidth each way, in parts of that of the memory below it */

struct place_region {
    double bytes;
    int node; /* at the start; -1: its first use places it */
    bool pinned;
};

/* How a task uses a region in each run. */
struct place_use {
    uint32_t region;
    double read, written; /* bytes */
    bool own;             /* no other task uses it, so that it may move with the task */
};

struct place_task {
    struct place_use uses[PLACE_USES];
    uint32_t use_count, team, runs;
    double compute_ns; /* of a run, beside its accesses */
    double pause_ns;   /* mean time between two runs: a client thinks */
};

/* Tasks first..first+count-1 arrive together. With a barrier, each run of one waits for all. */
struct place_team {
    double arrival_ns;
    uint32_t first, count;
    bool barrier;
};

struct place_work {
    struct place_region *regions;
    struct place_task *tasks;
    struct place_team *teams;
    uint32_t region_count, task_count, team_count;
};

/* Random numbers that are the same on each machine. */
struct place_random {
    uint64_t state;
};
double place_uniform(struct place_random *random); /* below 1 */
double place_exponential(struct place_random *random, double mean);

/* place_work.c: the workloads, by number, for a machine of `nodes` nodes of `cpus` CPUs. */
const char *place_work_name(uint32_t number); /* NULL: past the last */
const char *place_work_panel(uint32_t number);
void place_work_make(struct place_work *work, uint32_t number, uint32_t nodes, uint32_t cpus,
                     double bytes, struct place_random random);
void place_work_free(struct place_work *work);

enum place_policy {
    PLACE_NONE,   /* one queue for the machine */
    PLACE_RANDOM, /* a queue for each node; idle CPUs take from a random one */
    PLACE_TASKS,  /* decisions, but memory never moves */
    PLACE_TOUCH,  /* idle CPUs take from the nearest queue; the task's memory follows */
    PLACE_MIXED   /* decisions */
};

struct place_result {
    double time_ns;
    uint64_t trace; /* hash of each start, move, and end, with its time */
    uint32_t tasks_moved, regions_moved;
    double bytes_moved;
};

/* place_sim.c */
struct place_result place_simulate(const struct bmi__place_machine *machine,
                                   const struct place_work *work, enum place_policy policy,
                                   uint64_t seed);
double place_bound(const struct bmi__place_machine *machine, const struct place_work *work,
                   uint64_t seed); /* the same seed: the same pauses */

#endif
