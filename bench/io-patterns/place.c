/* SPDX-License-Identifier: BSD-3-Clause
 *
 * place.c - placement of tasks and memory, simulated: the time that each policy takes for each
 * workload, beside a lower bound. All is virtual: the same figures on any machine.
 */
#include "place.h"
#include "report.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define VECTOR "16M"

static const char *const trees[] = {"package:2 numa:1 core:16 pu:1",
                                    "package:2 numa:2 core:16 pu:1",
                                    "package:8 numa:1 core:32 pu:1"};

/* One core moves 10 GB/s of local memory; 2 of 5 cores saturate their node's. */
static const struct bmi_task_costs costs = {
    .local_ns_per_kib = 100,
    .remote_factor = 0.6,
    .move_ns_per_kib = 250,
    .move_region_ns = 5000,
    .move_task_ns = 2000,
};
#define SATURATING 0.4

static void tree_read(struct bmi__topology *topology, const char *tree)
{
    char error[256];
    bool file = access(tree, R_OK) == 0;
    struct bmi_task_settings settings = {
        .topology = file ? BMI_TASK_TOPOLOGY_XML : BMI_TASK_TOPOLOGY_SYNTHETIC,
        .topology_text = tree,
    };
    if (bmi__topology_build(&settings, topology, error, sizeof error) != 0)
        die("%s", error);
}

static enum contender contender_of(enum place_policy policy)
{
    static const enum contender contenders[] = {
        [PLACE_NONE] = CONTENDER_UNPLACED,    [PLACE_RANDOM] = CONTENDER_RANDOM,
        [PLACE_TASKS] = CONTENDER_TASKS_ONLY, [PLACE_TOUCH] = CONTENDER_NEXT_TOUCH,
        [PLACE_MIXED] = CONTENDER_MIXED,
    };
    return contenders[policy];
}

static void row_simulate(struct report *report, const struct bmi__place_machine *machine,
                         uint32_t number, uint64_t bytes)
{
    struct row *row = &report->rows[report->count++];
    uint32_t cpus = machine->topology->nodes[machine->vertices[0]].count;
    struct place_result result;
    row->grid = report->options->grids[0];
    row->work.size = (uint32_t)bytes;
    format_text(row->panel, sizeof row->panel, "%s, %u nodes of %u CPUs, %u KiB",
                place_work_panel(number), machine->node_count, cpus, row->work.size / 1024);
    format_text(row->label, sizeof row->label, "%s", place_work_name(number));
    row_open(row, report->options, report->options->pattern->contenders);
    for (int rep = 0; rep < report->options->reps; rep++) {
        uint64_t seed = (uint64_t)rep + 1;
        struct place_work work;
        place_work_make(&work, number, machine->node_count, cpus, (double)bytes,
                        (struct place_random){seed});
        for (enum place_policy policy = PLACE_NONE; policy <= PLACE_MIXED; policy++) {
            struct series *series = &row->series[contender_of(policy)];
            result = place_simulate(machine, &work, policy, seed);
            series->samples[series->count++] = result.time_ns / 1e6;
        }
        struct series *bound = &row->series[CONTENDER_BOUND];
        bound->samples[bound->count++] = place_bound(machine, &work, seed) / 1e6;
        place_work_free(&work);
    }
    format_text(row->series[CONTENDER_MIXED].note, sizeof row->series[CONTENDER_MIXED].note,
                "%u task moves, %u of %.0f MiB memory, trace %016llx", result.tasks_moved,
                result.regions_moved, result.bytes_moved / 1048576,
                (unsigned long long)result.trace);
    row_finish(row, report->options);
    report_row_print(report, row);
}

static void machine_simulate(struct report *report, const struct bmi__place_machine *machine,
                             uint64_t bytes)
{
    for (uint32_t number = 0; place_work_name(number); number++) {
        if (report->count == ROWS_MAX)
            die("place: at most %d rows", ROWS_MAX);
        row_simulate(report, machine, number, bytes);
    }
}

static void place_run(const struct options *options, struct report *report)
{
    int count = options->tree ? 1 : (int)(sizeof trees / sizeof *trees);
    for (int i = 0; i < count; i++) {
        struct bmi__topology topology;
        struct bmi__place_machine machine;
        tree_read(&topology, options->tree ? options->tree : trees[i]);
        bmi__place_machine_make(&machine, &topology, &costs, 0, 0);
        machine.memory_rate =
            SATURATING * topology.cpu_count / machine.node_count * 1024 / costs.local_ns_per_kib;
        machine.link_rate = PLACE_LINK * machine.memory_rate;
        for (int size = 0; size < options->size_count; size++)
            machine_simulate(report, &machine, options->sizes[size]);
        bmi__topology_free(&topology);
    }
}

const struct pattern pattern_place = {
    .name = "place",
    .summary = "placement of tasks and memory on NUMA nodes, simulated",
    .unit = "ms",
    .size_name = "vector",
    .sizes = VECTOR,
    .amount = "1",
    .less_is_better = true,
    .takes = TAKES_SIZE | TAKES_TREE,
    .reps = 3,
    .labels = "workload",
    .contenders = BIT(CONTENDER_MIXED) | BIT(CONTENDER_UNPLACED) | BIT(CONTENDER_RANDOM) |
                  BIT(CONTENDER_TASKS_ONLY) | BIT(CONTENDER_NEXT_TOUCH) | BIT(CONTENDER_BOUND),
    .run_here = place_run,
};
