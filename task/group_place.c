/* SPDX-License-Identifier: BSD-3-Clause
 *
 * group_place.c - where groups go: their home at the first submit, and moves to a CPU that has
 * nothing to run. placement.c decides; this file keeps the load that the decisions read, finds
 * candidates, and carries out the decisions. group.h has the rules of threads and locks.
 *
 * The load counts each outstanding task by itself, at the vertex of its part. It follows the
 * counters of a part when a decision is made, and when a part's tasks begin or cease to be
 * outstanding.
 *
 * A CPU without work considers, of each group that waits elsewhere: all of it, tasks and memory, if
 * no task of it has begun and the CPU's node has room for all; else one task, whose choice is
 * applied to as many tasks as even out the tasks for each CPU, without memory. The number of
 * changes to groups (group_changes) shows whether another look can have another result.
 */
#include "task/group.h"

#include <stdlib.h>

/* ---- the state ------------------------------------------------------------------------------- */

int bmi__groups_open_locked(struct bmi_task_manager *manager)
{
    if (manager->groups != NULL)
        return 0;
    struct bmi__groups *groups = calloc(1, sizeof(*groups));
    if (groups == NULL)
        return -BMI_ENOMEM;
    bmi__place_machine_make(&groups->machine, &manager->topology, &bmi__place_typical, 0, 0);
    int result = bmi__place_load_open(&groups->machine, &groups->load);
    if (result == 0)
        manager->groups = groups;
    else
        free(groups);
    return result;
}

void bmi__groups_free(struct bmi_task_manager *manager)
{
    if (manager->groups == NULL)
        return;
    bmi__place_load_close(&manager->groups->load);
    free(manager->groups);
}

int bmi_task_group_trace(struct bmi_task_manager *manager, bmi_task_group_trace_function trace,
                         void *argument)
{
    manager = bmi__manager(manager);
    if (manager == NULL)
        return -BMI_ENOMEM;
    pthread_mutex_lock(&manager->placing);
    int result = bmi__groups_open_locked(manager);
    if (result == 0) {
        manager->groups->trace = trace;
        manager->groups->trace_argument = argument;
    }
    pthread_mutex_unlock(&manager->placing);
    return result;
}

static void trace_locked(const struct bmi__groups *groups,
                         const struct bmi_task_group_decision *decision)
{
    if (groups->trace != NULL)
        groups->trace(groups->trace_argument, decision);
}

/* ---- the load -------------------------------------------------------------------------------- */

static struct bmi__place_group one_task(const struct bmi_task_group *group, uint32_t vertex)
{
    return (struct bmi__place_group){
        .regions = group->hints.one,
        .region_count = group->hints.count,
        .tasks = 1,
        .compute_ns = group->hints.compute_ns,
        .runs = group->hints.runs,
        .home = vertex,
        .stays = group->hints.tasks_stay,
    };
}

/* The group as a whole, with so many tasks. Valid until the next call. */
static struct bmi__place_group all_tasks(struct bmi_task_group *group, uint32_t vertex,
                                         uint32_t tasks)
{
    struct bmi__place_group all = one_task(group, vertex);
    for (uint32_t i = 0; i < group->hints.count; i++) {
        group->all[i] = group->hints.one[i];
        group->all[i].read *= tasks;
        group->all[i].written *= tasks;
        group->all[i].stays = !group->hints.movable[i];
    }
    all.regions = group->all;
    all.tasks = tasks;
    return all;
}

/* Counts `tasks` of a part. */
static void count_to_locked(struct bmi_task_group *group, struct bmi__group_part *part,
                            uint32_t tasks)
{
    struct bmi__groups *groups = group->manager->groups;
    const struct bmi__place_group one = one_task(group, atomic_load(&part->vertex));
    for (; part->counted < tasks; part->counted++)
        bmi__place_load_add(&groups->machine, &groups->load, &one);
    for (; part->counted > tasks; part->counted--)
        bmi__place_load_remove(&groups->machine, &groups->load, &one);
}

void bmi__group_count_locked(struct bmi_task_group *group, struct bmi__group_part *part)
{
    if (!group->flat && atomic_load(&part->vertex) != BMI__NO_NODE)
        count_to_locked(group, part, atomic_load(&part->outstanding));
}

void bmi__group_count_all_locked(struct bmi_task_group *group)
{
    for (uint32_t i = 0; i < BMI_TASK_GROUP_PARTS; i++)
        bmi__group_count_locked(group, &group->parts[i]);
}

void bmi__group_uncount_locked(struct bmi_task_group *group)
{
    for (uint32_t i = 0; i < BMI_TASK_GROUP_PARTS; i++)
        count_to_locked(group, &group->parts[i], 0);
}

/* ---- a new group ----------------------------------------------------------------------------- */

uint32_t bmi__group_home_locked(struct bmi_task_group *group)
{
    struct bmi__groups *groups = group->manager->groups;
    uint32_t home = atomic_load(&group->parts[0].vertex);
    if (home != BMI__NO_NODE)
        return home;
    uint32_t within = group->parent != NULL ? bmi__group_home_locked(group->parent) : 0;
    const struct bmi__place_group all = all_tasks(group, within, group->hints.tasks);
    home = bmi__place_new(&groups->machine, &groups->load, &all, within, BMI_TASK_LEVEL_NUMA);
    atomic_store(&group->parts[0].vertex, home);
    trace_locked(groups, &(struct bmi_task_group_decision){
                             .group = group,
                             .placement = BMI_TASK_PLACE_TASK,
                             .from = -1,
                             .to = (int)home,
                         });
    return home;
}

/* ---- candidates ------------------------------------------------------------------------------ */

/* How many more tasks a vertex has CPUs for. At least 1, since one of its CPUs has no work. */
static uint32_t room_locked(const struct bmi__groups *groups, uint32_t vertex)
{
    uint32_t cpus = groups->machine.topology->nodes[vertex].count;
    uint32_t tasks = groups->load.tasks[vertex];
    return tasks < cpus ? cpus - tasks : 1;
}

static bool is_whole_locked(const struct bmi_task_group *group, uint32_t part, uint32_t room)
{
    uint32_t counted = 0;
    for (uint32_t i = 0; i < BMI_TASK_GROUP_PARTS; i++)
        counted += group->parts[i].counted;
    return part == 0 && counted == group->parts[0].counted && counted <= room &&
           atomic_load(&group->parts[0].waiting) >= counted;
}

/* Adds a part whose tasks wait where the vertex `idle` does not look. */
static uint32_t candidate_add_locked(struct bmi__groups *groups, struct bmi_task_group *group,
                                     uint32_t i, uint32_t idle, uint32_t count)
{
    struct bmi__group_part *part = &group->parts[i];
    uint32_t vertex = atomic_load(&part->vertex);
    if (count == BMI__GROUP_LOOK || part->counted == 0 || atomic_load(&part->waiting) == 0 ||
        bmi__place_distance(groups->machine.topology, vertex, idle) == 0)
        return count;
    part->candidate = is_whole_locked(group, i, room_locked(groups, idle))
                          ? all_tasks(group, vertex, part->counted)
                          : one_task(group, vertex);
    groups->candidates[count] = &part->candidate;
    groups->found[count].group = group;
    groups->found[count].part = i;
    return count + 1;
}

static uint32_t candidates_locked(struct bmi__groups *groups, uint32_t idle)
{
    uint32_t count = 0;
    for (struct bmi_task_group *group = groups->first; group != NULL; group = group->next)
        bmi__group_count_all_locked(group);
    for (struct bmi_task_group *group = groups->first; group != NULL; group = group->next) {
        for (uint32_t i = 0; i < BMI_TASK_GROUP_PARTS; i++)
            count = candidate_add_locked(groups, group, i, idle, count);
    }
    return count;
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* What a thread carries out after a decision. */
struct move {
    struct bmi_task_group *group; /* with a reference; NULL: nothing is to be done */
    struct bmi_task *tasks;
    uint32_t count; /* of tasks */
    uint64_t moved; /* regions; if any, the group's lock `moving` is held */
    uint32_t to;
};

static struct bmi_task *tasks_take_locked(struct bmi_task_group *group, uint32_t part,
                                          uint32_t most)
{
    uint32_t vertex = atomic_load(&group->parts[part].vertex);
    return bmi__affinity_take(&group->manager->nodes[vertex].affinity, group, part, most);
}

static uint32_t tasks_count(const struct bmi_task *tasks)
{
    uint32_t count = 0;
    for (; tasks != NULL; tasks = tasks->next)
        count++;
    return count;
}

/* The home moves: so do the tasks that are submitted from now on. */
static void move_home_locked(struct move *move)
{
    struct bmi_task_group *group = move->group;
    move->tasks = tasks_take_locked(group, 0, UINT32_MAX);
    move->count = tasks_count(move->tasks);
    bmi__group_uncount_locked(group);
    atomic_store(&group->parts[0].vertex, move->to);
    bmi__group_count_all_locked(group);
}

/* A part at a vertex, or one that is not in use; BMI_TASK_GROUP_PARTS: all are. */
static uint32_t part_for_locked(struct bmi_task_group *group, uint32_t vertex)
{
    uint32_t at = 0;
    while (at < BMI_TASK_GROUP_PARTS && atomic_load(&group->parts[at].vertex) != vertex)
        at++;
    for (uint32_t i = 1; at == BMI_TASK_GROUP_PARTS && i < BMI_TASK_GROUP_PARTS; i++) {
        struct bmi__group_part *part = &group->parts[i];
        if (atomic_load(&part->outstanding) != 0)
            continue;
        bmi__group_count_locked(group, part);
        atomic_store(&part->vertex, vertex);
        at = i;
    }
    return at;
}

/* So many tasks of the part even out the tasks for each CPU, there and at the vertex. */
static uint32_t even_locked(const struct bmi__groups *groups, const struct bmi__group_part *part,
                            uint32_t to)
{
    uint64_t cpus = groups->machine.topology->nodes[atomic_load(&part->vertex)].count;
    uint64_t room = room_locked(groups, to);
    uint64_t even = part->counted * room / (cpus + room);
    return even > 0 ? (uint32_t)even : 1;
}

static void move_some_locked(const struct bmi__groups *groups, struct move *move, uint32_t from)
{
    struct bmi_task_group *group = move->group;
    uint32_t to = part_for_locked(group, move->to);
    if (to == BMI_TASK_GROUP_PARTS)
        return;
    struct bmi__group_part *old = &group->parts[from], *new = &group->parts[to];
    move->tasks = tasks_take_locked(group, from, even_locked(groups, old, move->to));
    move->count = tasks_count(move->tasks);
    for (struct bmi_task *task = move->tasks; task != NULL; task = task->next)
        task->cpu = (uint16_t)to;
    atomic_fetch_add(&new->outstanding, move->count);
    atomic_fetch_add(&new->waiting, move->count);
    atomic_fetch_sub(&old->waiting, move->count);
    atomic_fetch_sub(&old->outstanding, move->count);
    bmi__group_count_locked(group, old);
    bmi__group_count_locked(group, new);
}

/* Takes a reference, unless the group is about to be freed. */
static bool group_hold(struct bmi_task_group *group)
{
    unsigned references = atomic_load(&group->references);
    while (references > 0 &&
           !atomic_compare_exchange_weak(&group->references, &references, references + 1))
        continue;
    return references > 0;
}

/* Applies a choice but for the copying, unless the group is about to be freed. */
static void apply_locked(struct bmi__groups *groups, int found, uint32_t idle,
                         const struct bmi__place_choice *choice, struct move *move)
{
    struct bmi_task_group *group = groups->found[found].group;
    uint32_t part = groups->found[found].part, from = atomic_load(&group->parts[part].vertex);
    bool leaves = choice->placement >= BMI_TASK_PLACE_TASK;
    if (!group_hold(group))
        return;
    *move = (struct move){.group = group, .to = leaves ? idle : from};
    if (choice->moved != 0 && pthread_mutex_trylock(&group->moving) == 0)
        move->moved = choice->moved;
    if (leaves && group->parts[part].candidate.regions == group->all)
        move_home_locked(move);
    else if (leaves)
        move_some_locked(groups, move, part);
    if (move->count == 0 && move->moved == 0 && atomic_load(&group->parts[part].vertex) == from) {
        group->counts.decisions[BMI_TASK_PLACE_STAY]++; /* its tasks have begun, or are delayed */
        return;
    }
    group->counts.decisions[choice->placement]++;
    group->counts.tasks_moved += move->count;
    struct bmi_task_group_decision decision = {
        .group = group,
        .placement = choice->placement,
        .from = (int)from,
        .to = (int)move->to,
        .tasks = move->count,
        .moved = move->moved,
    };
    for (int i = 0; i < 4; i++)
        decision.cost_ns[i] = choice->cost_ns[i];
    trace_locked(groups, &decision);
}

/* Notes where a region lies now; one that the system could not move stays from now on. */
static void region_moved_locked(struct bmi_task_group *group, uint32_t i, int node, bool failed)
{
    if (failed) {
        group->hints.movable[i] = false;
        group->counts.regions_failed++;
        return;
    }
    group->hints.one[i].node = node;
    group->counts.regions_moved++;
    group->counts.bytes_moved += (uint64_t)group->hints.one[i].bytes;
}

/* The caller holds `moving`, so that the regions do not change meanwhile. */
static void copy_regions(struct bmi_task_manager *manager, struct bmi_task_group *group,
                         uint64_t moved, uint32_t to)
{
    int node = bmi__place_node_of(&manager->groups->machine, to);
    int numa = manager->topology.nodes[manager->groups->machine.vertices[node]].numa;
    uint64_t failed = 0;
    for (uint32_t i = 0; i < BMI_TASK_GROUP_REGIONS; i++) {
        if (moved >> i & 1 && bmi_task_memory_move(manager, group->hints.addresses[i],
                                                   (uint64_t)group->hints.one[i].bytes, numa) != 0)
            failed |= UINT64_C(1) << i;
    }
    pthread_mutex_lock(&manager->placing);
    bmi__group_uncount_locked(group);
    for (uint32_t i = 0; i < BMI_TASK_GROUP_REGIONS; i++) {
        if (moved >> i & 1)
            region_moved_locked(group, i, node, failed >> i & 1);
    }
    bmi__group_count_all_locked(group);
    pthread_mutex_unlock(&manager->placing);
}

static bool move_finish(struct bmi_task_manager *manager, const struct move *move)
{
    if (move->moved != 0) {
        copy_regions(manager, move->group, move->moved, move->to);
        pthread_mutex_unlock(&move->group->moving);
    }
    bmi__group_push(manager, move->tasks);
    bmi__group_drop(move->group);
    return move->count > 0;
}

/* ---- a CPU without work ---------------------------------------------------------------------- */

static void look_locked(struct bmi__groups *groups, uint32_t leaf, struct move *move)
{
    int node = bmi__place_node_of(&groups->machine, leaf);
    if (node < 0)
        return;
    uint32_t idle = groups->machine.vertices[node];
    uint32_t count = candidates_locked(groups, idle);
    struct bmi__place_choice choice;
    int found =
        bmi__place_find(&groups->machine, &groups->load, idle, groups->candidates, count, &choice);
    for (uint32_t i = 0; i < count; i++) {
        if ((int)i != found)
            groups->found[i].group->counts.decisions[BMI_TASK_PLACE_STAY]++;
    }
    if (found >= 0)
        apply_locked(groups, found, idle, &choice, move);
}

bool bmi__group_pull(struct bmi_task_manager *manager, uint32_t cpu)
{
    struct bmi__task_cpu *at = &manager->cpus[cpu];
    uint64_t changes = atomic_load(&manager->group_changes);
    struct move move = {.group = NULL};
    if (pthread_mutex_trylock(&manager->placing) != 0)
        return false;
    if (manager->groups != NULL)
        look_locked(manager->groups, manager->topology.leaf_of[cpu], &move);
    pthread_mutex_unlock(&manager->placing);
    if (move.count == 0 && move.moved == 0)
        atomic_store_explicit(&at->group_looked, changes, memory_order_relaxed);
    return move.group != NULL && move_finish(manager, &move);
}
