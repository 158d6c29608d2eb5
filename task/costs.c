/* SPDX-License-Identifier: BSD-3-Clause
 *
 * costs.c - the costs of a manager, see costs.h. A figure that was not measured, or that cannot be
 * true, does not replace the default: a wrong one would move memory to and fro.
 */
#include "task/costs.h"
#include "task/group.h"

#include <math.h> /* INFINITY only: libbmi is not linked with libm */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum cost { LOCAL, REMOTE, MOVE, REGION, TASK };

/* A remote access that seems faster than a local one by less than this takes as long. Then the
 * factor is small: among nodes that are alike a group goes to that of its memory, and gains that
 * small move nothing. */
#define REMOTE_NOISE 0.2
#define REMOTE_LEAST 0.05

/* Figures beyond these come from a disturbed measurement, or are of no known machine. */
static const struct {
    const char *name;
    double least, most;
} limits[BMI__COSTS] = {
    [LOCAL] = {"local_ns_per_kib", 2, 5000}, [REMOTE] = {"remote_factor", REMOTE_LEAST, 10},
    [MOVE] = {"move_ns_per_kib", 2, 20000},  [REGION] = {"move_region_ns", 0, 1e7},
    [TASK] = {"move_task_ns", 0, 1e6},
};

static double *cost_of(struct bmi_task_costs *costs, unsigned i)
{
    double *const all[] = {&costs->local_ns_per_kib, &costs->remote_factor, &costs->move_ns_per_kib,
                           &costs->move_region_ns, &costs->move_task_ns};
    return all[i];
}

/* ---- derived from samples -------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of all nodes' local reads; or of the part that each level of distance adds to remote
 * ones, in local reads. The lower one of two; INFINITY: there is none. */
static double median(const struct bmi__samples *samples, bool remote)
{
    double values[BMI__CALIBRATE_NODES * BMI__CALIBRATE_NODES];
    uint32_t count = 0;
    for (uint32_t i = 0; i < samples->count; i++) {
        for (uint32_t j = 0; j < samples->count; j++) {
            double local = samples->read_ns_per_kib[i][i], ns = samples->read_ns_per_kib[i][j];
            if (remote == (i != j) && local < INFINITY && ns < INFINITY)
                values[count++] = remote ? (ns / local - 1) / samples->distance[i][j] : ns;
        }
    }
    qsort(values, count, sizeof(*values), compare);
    return count > 0 ? values[(count - 1) / 2] : INFINITY;
}

static double difference(double more, double less)
{
    return more < INFINITY && less < INFINITY ? more - less : INFINITY;
}

static void cost_measured(struct bmi__calibration *calibration, enum cost i, double value)
{
    char *cause = calibration->cause[i];
    bool whole = value < INFINITY;
    if (whole && value >= limits[i].least && value <= limits[i].most) {
        *cost_of(&calibration->costs, i) = value;
        calibration->source[i] = BMI_TASK_COST_MEASURED;
    } else if (whole) {
        snprintf(cause, BMI_TASK_COST_CAUSE, "measured as %.4g, not within %g to %g", value,
                 limits[i].least, limits[i].most);
    } else {
        snprintf(cause, BMI_TASK_COST_CAUSE, "%s", calibration->samples.cause);
    }
}

void bmi__costs_derive(const struct bmi__samples *samples, struct bmi__calibration *calibration)
{
    memset(calibration, 0, sizeof(*calibration));
    calibration->costs = bmi__place_typical;
    calibration->samples = *samples;
    double factor = median(samples, true);
    cost_measured(calibration, LOCAL, median(samples, false));
    cost_measured(calibration, REMOTE,
                  factor > -REMOTE_NOISE && factor < REMOTE_LEAST ? REMOTE_LEAST : factor);

    /* A move reads over the distance, which the decision counts by itself. */
    const struct bmi_task_costs *costs = &calibration->costs;
    double kib = BMI__CALIBRATE_KIB - samples->page_kib;
    double each = difference(samples->move_pages_ns, samples->move_page_ns) / kib;
    double reading = costs->local_ns_per_kib * costs->remote_factor * samples->distance[0][1];
    cost_measured(calibration, MOVE, each < INFINITY ? each - reading : INFINITY);
    cost_measured(calibration, REGION, difference(samples->move_page_ns, each * samples->page_kib));
    cost_measured(calibration, TASK, difference(samples->cold_ns, samples->warm_ns));
}

/* ---- of a manager ---------------------------------------------------------------------------- */

static void costs_learn(struct bmi_task_manager *manager, struct bmi__calibration *calibration)
{
    struct bmi__samples none = {.move_page_ns = INFINITY, .cold_ns = INFINITY};
    struct bmi__place_machine machine;
    bmi__place_machine_make(&machine, &manager->topology, &bmi__place_typical, 0, 0);
    const struct bmi__samples *samples = &none;
    if (machine.node_count <= 1)
        snprintf(none.cause, sizeof(none.cause), "there is one node");
    else if (!manager->topology.this_system)
        snprintf(none.cause, sizeof(none.cause), "the topology is not this machine's");
    else
        samples = bmi__calibrate_once(&machine);
    bmi__costs_derive(samples, calibration);
}

static void costs_set_locked(struct bmi_task_manager *manager,
                             const struct bmi__calibration *calibration)
{
    manager->groups->calibration = *calibration;
    manager->groups->machine.costs = calibration->costs;
    atomic_store(&manager->costs_known, true);
}

int bmi__costs_need(struct bmi_task_manager *manager)
{
    struct bmi__calibration calibration;
    if (atomic_load(&manager->costs_known))
        return 0;
    costs_learn(manager, &calibration);
    pthread_mutex_lock(&manager->placing);
    int result = bmi__groups_open_locked(manager);
    if (result == 0 && !atomic_load(&manager->costs_known)) /* not given meanwhile */
        costs_set_locked(manager, &calibration);
    pthread_mutex_unlock(&manager->placing);
    return result;
}

int bmi_task_group_set_costs(struct bmi_task_manager *manager, const struct bmi_task_costs *costs)
{
    struct bmi__calibration calibration = {.costs = bmi__place_typical};
    manager = bmi__manager(manager);
    if (manager == NULL)
        return -BMI_ENOMEM;
    if (costs != NULL && !bmi__task_costs_valid(costs))
        return -BMI_EINVAL;
    if (costs != NULL)
        calibration.costs = *costs;
    else
        costs_learn(manager, &calibration);
    for (int i = 0; costs != NULL && i < BMI__COSTS; i++)
        calibration.source[i] = BMI_TASK_COST_GIVEN;
    pthread_mutex_lock(&manager->placing);
    int result = bmi__groups_open_locked(manager);
    if (result == 0 && manager->groups->first != NULL)
        result = -BMI_EBUSY;
    if (result == 0)
        costs_set_locked(manager, &calibration);
    pthread_mutex_unlock(&manager->placing);
    return result;
}

int bmi_task_group_cost(struct bmi_task_manager *manager, int index, struct bmi_task_cost *cost)
{
    manager = bmi__manager(manager);
    if (manager == NULL)
        return -BMI_ENOMEM;
    if (cost == NULL || index < 0 || index >= BMI__COSTS)
        return -BMI_EINVAL;
    int result = bmi__costs_need(manager);
    if (result != 0)
        return result;
    pthread_mutex_lock(&manager->placing);
    const struct bmi__calibration *calibration = &manager->groups->calibration;
    *cost = (struct bmi_task_cost){
        .name = limits[index].name,
        .value = *cost_of(&manager->groups->calibration.costs, (unsigned)index),
        .source = calibration->source[index],
    };
    memcpy(cost->cause, calibration->cause[index], sizeof(cost->cause));
    pthread_mutex_unlock(&manager->placing);
    return 0;
}

static double read_between(const struct bmi__samples *samples, int cpus, int memory)
{
    for (uint32_t i = 0; i < samples->count; i++) {
        for (uint32_t j = 0; j < samples->count; j++) {
            if (samples->numa[i] == cpus && samples->numa[j] == memory &&
                samples->read_ns_per_kib[i][j] < INFINITY)
                return samples->read_ns_per_kib[i][j];
        }
    }
    return 0;
}

int bmi_task_numa_access(struct bmi_task_manager *manager, int cpus, int memory, int *distance,
                         double *read_ns_per_kib)
{
    manager = bmi__manager(manager);
    if (manager == NULL)
        return -BMI_ENOMEM;
    const struct bmi__topology *topology = &manager->topology;
    uint32_t from = bmi__topology_numa(topology, cpus), to = bmi__topology_numa(topology, memory);
    if (distance == NULL || read_ns_per_kib == NULL || from == BMI__NO_NODE || to == BMI__NO_NODE)
        return -BMI_EINVAL;
    int result = bmi__costs_need(manager);
    if (result != 0)
        return result;
    *distance = (int)bmi__place_distance(topology, from, to);
    pthread_mutex_lock(&manager->placing);
    *read_ns_per_kib = read_between(&manager->groups->calibration.samples, cpus, memory);
    pthread_mutex_unlock(&manager->placing);
    return 0;
}
