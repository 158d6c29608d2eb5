/* SPDX-License-Identifier: BSD-3-Clause
 *
 * place.c - on which NUMA node a flow's steps run, and its buffers lie.
 *
 * Where the CPUs of the process belong to several nodes, a flow is a group of tasks
 * (bmi/task_group.h): its task is the step, its regions are the program's memory at the ends, or
 * else the flow's buffers. The buffers are for the node of the thread that posts the flow, since
 * that thread serves the flow's client. The first step that is a task makes the group: many flows
 * have none, since threads in test calls run their steps. No region moves: the program's memory
 * belongs to the program, and the network uses the buffers at any time and may have registered
 * them.
 *
 * Otherwise there is no group and no node, and the steps run near the CPU of the post, where the
 * flow's memory was touched last.
 *
 * Threads and locks: the post writes `node` and `near` before another thread knows the flow, and
 * they do not change; `group` belongs to the flow's step, as the task does. The task manager's
 * locks are within all others. A group that is closed while its task returns is freed by the task's
 * end.
 */
#include <sched.h>

#include "flow/internal.h"
#include "task/internal.h"
#include "task/memory.h"

/* The program's memory at an end, which may be untouched. */
static struct bmi_task_group_region memory_region(const struct flow *flow,
                                                  const struct bmi_flow_endpoint *end)
{
    int node = -1;
    if (end->u.memory.count > 0)
        node = bmi_task_memory_node(NULL, end->u.memory.buffers[0], 1);
    return (struct bmi_task_group_region){
        .bytes = (uint64_t)flow->what.buffer_size,
        .node = node >= 0 ? node : flow->node,
        .stays = true,
    };
}

static uint32_t regions_of(const struct flow *flow, struct bmi_task_group_region regions[2])
{
    const struct bmi_flow_description *what = &flow->what;
    uint64_t each = (uint64_t)what->buffer_size;
    uint32_t count = 0;
    if (flow->needs_buffers)
        regions[count++] = (struct bmi_task_group_region){
            .bytes = each * what->buffer_count,
            .read = each,
            .written = each,
            .node = flow->node,
            .stays = true,
        };
    if (what->source.kind == BMI_FLOW_MEMORY) {
        regions[count] = memory_region(flow, &what->source);
        regions[count++].read = each;
    }
    if (what->destination.kind == BMI_FLOW_MEMORY) {
        regions[count] = memory_region(flow, &what->destination);
        regions[count++].written = each;
    }
    return count;
}

void bmi__flow_place_prepare(void)
{
    struct bmi_task_numa second;
    struct bmi_task_cost cost;
    if (bmi_task_numa_node(NULL, 1, &second) == 0)
        bmi_task_group_cost(NULL, 0, &cost);
}

/* Without memory there is none, and the step may run anywhere. */
static void group_make(struct flow *flow)
{
    struct bmi_task_group_region regions[2];
    bmi_size_t total = bmi__flow_request_total(flow->what.extents, flow->what.extent_count);
    struct bmi_task_group_hints hints = {
        .regions = regions,
        .count = regions_of(flow, regions),
        .runs = (double)total / flow->what.servers / (double)flow->what.buffer_size,
    };
    bmi_task_group_create(NULL, NULL, &hints, &flow->group);
}

void bmi__flow_place(struct flow *flow)
{
    flow->node = bmi__memory_here(bmi_task_manager_default());
    if (flow->node < 0)
        flow->is_near =
            bmi_task_cpus_near(NULL, sched_getcpu(), BMI_TASK_LEVEL_CACHE, &flow->near) == 0;
}

void bmi__flow_place_end(struct flow *flow)
{
    bmi_task_group_close(flow->group);
}

int bmi__flow_submit(struct flow *flow, bmi_task_function function)
{
    struct bmi_task_attributes attributes = {.function = function, .argument = flow};
    if (flow->is_near)
        attributes.cpus = &flow->near;
    int result = bmi_task_prepare(&flow->task, NULL, &attributes);
    if (result != 0)
        return result;
    if (flow->node >= 0 && flow->group == NULL)
        group_make(flow);
    return flow->group != NULL ? bmi_task_group_submit(flow->group, &flow->task)
                               : bmi_task_submit(&flow->task);
}
