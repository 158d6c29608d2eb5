/* SPDX-License-Identifier: BSD-3-Clause
 *
 * query.c - queries of the tree and its queues, and its drawing. Counters are read one by one while
 * other threads write them: sums may differ by the operations under way.
 */
#include "task/internal.h"

#include <stdarg.h>
#include <stdio.h>

int bmi_task_cpus(struct bmi_task_manager *manager, struct bmi_cpuset *cpus)
{
    manager = bmi__manager(manager);
    if (cpus != NULL)
        bmi_cpuset_clear(cpus);
    if (manager == NULL)
        return 0;
    if (cpus != NULL)
        bmi__topology_cpus(&manager->topology, 0, cpus);
    return (int)manager->topology.cpu_count;
}

int bmi_task_cpus_near(struct bmi_task_manager *manager, int cpu, enum bmi_task_level level,
                       struct bmi_cpuset *cpus)
{
    manager = bmi__manager(manager);
    if (manager == NULL || cpus == NULL || cpu < 0 || cpu >= BMI_CPUSET_MAX ||
        level < BMI_TASK_LEVEL_CPU || level > BMI_TASK_LEVEL_MACHINE)
        return -BMI_EINVAL;
    uint32_t local = manager->topology.local_of[cpu];
    if (local == BMI__NO_CPU)
        return -BMI_EINVAL;
    bmi__topology_cpus(&manager->topology, bmi__topology_near(&manager->topology, local, level),
                       cpus);
    return 0;
}

int bmi_task_queue_count(struct bmi_task_manager *manager)
{
    manager = bmi__manager(manager);
    return manager != NULL ? (int)manager->topology.node_count : 0;
}

void bmi__node_counts(struct bmi__task_node *node, struct bmi__queue_counts *counts)
{
    bmi__queue_count(node->queue, counts);
    uint64_t turned = atomic_load(&node->turned);
    counts->popped -= turned < counts->popped ? turned : counts->popped;
    counts->pushed -= turned < counts->pushed ? turned : counts->pushed;
}

int bmi_task_queue_statistics(struct bmi_task_manager *manager, int queue,
                              struct bmi_task_queue_statistics *statistics)
{
    manager = bmi__manager(manager);
    if (manager == NULL || statistics == NULL || queue < 0 ||
        (uint32_t)queue >= manager->topology.node_count)
        return -BMI_EINVAL;
    struct bmi__task_node *node = &manager->nodes[queue];
    struct bmi__queue_counts counts;
    bmi__node_counts(node, &counts);
    counts.popped += atomic_load(&node->affinity.popped);
    counts.pushed += atomic_load(&node->affinity.pushed);
    *statistics = (struct bmi_task_queue_statistics){
        .name = node->shape->name,
        .parent = node->parent != NULL ? (int)node->parent->index : -1,
        .depth = (int)node->shape->depth,
        .submitted = counts.pushed,
        .run = counts.popped,
        .contended = counts.contended,
        .queued = counts.pushed > counts.popped ? counts.pushed - counts.popped : 0,
        .served = atomic_load(&node->live) != 0,
    };
    bmi__topology_cpus(&manager->topology, (uint32_t)queue, &statistics->cpus);
    return 0;
}

int bmi_task_numa_node(struct bmi_task_manager *manager, int index, struct bmi_task_numa *numa)
{
    manager = bmi__manager(manager);
    if (manager == NULL || numa == NULL || index < 0)
        return -BMI_EINVAL;
    const struct bmi__topology *topology = &manager->topology;
    for (uint32_t i = 0; i < topology->node_count; i++) {
        const struct bmi__topology_node *node = &topology->nodes[i];
        if (node->numa < 0 || index-- > 0)
            continue;
        *numa = (struct bmi_task_numa){
            .node = node->numa,
            .queue = (int)i,
            .memory = node->memory,
        };
        return 0;
    }
    return -BMI_EINVAL;
}

uint64_t bmi_task_queue_run_by(struct bmi_task_manager *manager, int queue, int cpu)
{
    manager = bmi__manager(manager);
    if (manager == NULL || queue < 0 || (uint32_t)queue >= manager->topology.node_count ||
        cpu < -1 || cpu >= BMI_CPUSET_MAX)
        return 0;
    struct bmi__task_node *node = &manager->nodes[queue];
    uint32_t place = node->shape->count;
    if (cpu >= 0) {
        place = manager->topology.local_of[cpu] - node->shape->first;
        if (manager->topology.local_of[cpu] == BMI__NO_CPU || place >= node->shape->count)
            return 0;
    }
    return atomic_load_explicit(&node->run_by[place], memory_order_relaxed);
}

/* ---- drawing ---- */

struct drawing {
    char *text;
    size_t size, used;
};

__attribute__((format(printf, 2, 3))) static void draw(struct drawing *drawing, const char *format,
                                                       ...)
{
    va_list arguments;
    bool room = drawing->used < drawing->size;
    va_start(arguments, format);
    int length = vsnprintf(room ? drawing->text + drawing->used : NULL,
                           room ? drawing->size - drawing->used : 0, format, arguments);
    va_end(arguments);
    drawing->used += length > 0 ? (size_t)length : 0;
}

/* "0-3,8" */
static void draw_cpus(struct drawing *drawing, const struct bmi_cpuset *cpus)
{
    const char *comma = "";
    int first = bmi_cpuset_next(cpus, 0);
    while (first >= 0) {
        int last = first;
        while (bmi_cpuset_has(cpus, last + 1))
            last++;
        draw(drawing, last > first ? "%s%d-%d" : "%s%d", comma, first, last);
        comma = ",";
        first = bmi_cpuset_next(cpus, last + 1);
    }
}

static void draw_queue(struct drawing *drawing, struct bmi_task_manager *manager, int queue)
{
    struct bmi_task_queue_statistics statistics;
    if (bmi_task_queue_statistics(manager, queue, &statistics) != 0)
        return;
    draw(drawing, "%*s%s (CPU%s ", 2 * statistics.depth, "", statistics.name,
         bmi_cpuset_count(&statistics.cpus) > 1 ? "s" : "");
    draw_cpus(drawing, &statistics.cpus);
    draw(drawing, "): queue %d, submitted %llu, run %llu, queued %llu, contended %llu%s\n", queue,
         (unsigned long long)statistics.submitted, (unsigned long long)statistics.run,
         (unsigned long long)statistics.queued, (unsigned long long)statistics.contended,
         statistics.served ? ", worker" : "");
}

size_t bmi_task_topology_text(struct bmi_task_manager *manager, char *text, size_t size)
{
    struct drawing drawing = {.text = text, .size = text != NULL ? size : 0};
    manager = bmi__manager(manager);
    if (drawing.size > 0)
        text[0] = '\0';
    if (manager == NULL)
        return 0;
    draw(&drawing, "%u CPUs, %u queues; %u workers\n", manager->topology.cpu_count,
         manager->topology.node_count, atomic_load(&manager->live_workers));
    for (int queue = 0; queue < (int)manager->topology.node_count; queue++)
        draw_queue(&drawing, manager, queue);
    return drawing.used;
}
