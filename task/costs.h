/* SPDX-License-Identifier: BSD-3-Clause
 *
 * costs.h - the costs by which groups are placed, and where each is from: given by the program,
 * measured on this machine (calibrate.c), or the default.
 *
 * Threads and locks. calibrate.c measures once in a process, under pthread_once, and without any
 * lock of a manager. The first caller starts a thread, which moves from node to node, and waits for
 * it, but no longer than BMI__CALIBRATE_LIMIT_MS; callers that come meanwhile wait for the first
 * one. Until the thread posts its end, the state is the thread's. If the first caller leaves
 * earlier, nothing of that state is used, ever, and the thread ends by itself at its own deadline,
 * as soon as it has a CPU. Samples that were kept never change: any thread reads them.
 *
 * A manager has its copy in struct bmi__groups, under `placing`. `costs_known`, written under
 * `placing`, is set once that copy is valid; from the first group on neither changes, since the
 * load depends on the costs.
 */
#ifndef BMI_TASK_COSTS_H
#define BMI_TASK_COSTS_H

#include "bmi/task_group.h"
#include "task/placement.h"

enum {
    BMI__COSTS = 5, /* members of struct bmi_task_costs */
    BMI__CALIBRATE_NODES = 8,
    BMI__CALIBRATE_KIB = 64,       /* memory on each node, and the larger move */
    BMI__CALIBRATE_BUDGET_MS = 60, /* the thread begins no sample after that */
    BMI__CALIBRATE_LIMIT_MS = 80,  /* a caller waits so long */
};

/* Times, each the least of several; INFINITY: not measured. Nodes are numbered as in `numa`. */
struct bmi__samples {
    uint32_t count; /* of nodes; if there are more, some of all parts of the tree */
    int numa[BMI__CALIBRATE_NODES];
    unsigned distance[BMI__CALIBRATE_NODES][BMI__CALIBRATE_NODES];
    /* by a CPU of the first node, of memory on the second one, not in a cache */
    double read_ns_per_kib[BMI__CALIBRATE_NODES][BMI__CALIBRATE_NODES];
    double page_kib;
    double move_page_ns, move_pages_ns; /* of a page, of BMI__CALIBRATE_KIB; from node 0 to 1 */
    double cold_ns, warm_ns; /* to read a first-level cache's size, just written on another node;
                                and once more */
    uint64_t took_ns;
    char cause[BMI_TASK_COST_CAUSE]; /* of the first sample that is missing */
};

struct bmi__calibration {
    struct bmi_task_costs costs;
    enum bmi_task_cost_source source[BMI__COSTS];
    char cause[BMI__COSTS][BMI_TASK_COST_CAUSE];
    struct bmi__samples samples;
};

/* ---- calibrate.c ---- */

/* Fills samples of a machine that is this one and has several nodes: the thread has a budget, and
 * the caller a limit. Not twice at a time, nor again after a thread was late. */
void bmi__calibrate(const struct bmi__place_machine *machine, int budget_ms, int limit_ms,
                    struct bmi__samples *samples);
/* The same once in the process, within BMI__CALIBRATE_LIMIT_MS. */
const struct bmi__samples *bmi__calibrate_once(const struct bmi__place_machine *machine);

/* ---- costs.c ---- */

/* Derives costs from samples. One that has no samples, or that is out of its limits, is the
 * default, with the cause. */
void bmi__costs_derive(const struct bmi__samples *samples, struct bmi__calibration *calibration);
/* The manager learns its costs, unless they are known. Returns 0, or -BMI_ENOMEM. */
int bmi__costs_need(struct bmi_task_manager *manager);

#endif
