/* SPDX-License-Identifier: BSD-3-Clause
 *
 * group.c - the object behind bmi/task_group.h: hints, counting of tasks, split, merge, and end of
 * groups. group.h has the rules of threads and locks; group_place.c decides where groups go.
 */
#include "task/group.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- hints ----------------------------------------------------------------------------------- */

static bool hints_valid(const struct bmi_task_group_hints *hints)
{
    return hints->count <= BMI_TASK_GROUP_REGIONS &&
           (hints->count == 0 || hints->regions != NULL) && hints->runs >= 0 &&
           hints->compute_ns >= 0;
}

static int node_of(const struct bmi__place_machine *machine, int numa)
{
    uint32_t vertex = bmi__topology_numa(machine->topology, numa);
    return vertex != BMI__NO_NODE ? bmi__place_node_of(machine, vertex) : -1;
}

static void hints_read(const struct bmi__place_machine *machine,
                       const struct bmi_task_group_hints *given, struct bmi__group_hints *hints)
{
    *hints = (struct bmi__group_hints){
        .count = given->count,
        .tasks = given->tasks > 0 ? given->tasks : 1,
        .runs = given->runs > 0 ? given->runs : 1,
        .compute_ns = given->compute_ns,
        .tasks_stay = given->tasks_stay,
    };
    for (uint32_t i = 0; i < hints->count; i++) {
        const struct bmi_task_group_region *region = &given->regions[i];
        hints->addresses[i] = region->address;
        hints->movable[i] = !region->stays && region->address != NULL && region->bytes > 0;
        hints->one[i] = (struct bmi__place_region){
            .bytes = (double)region->bytes,
            .read = (double)region->read / hints->tasks,
            .written = (double)region->written / hints->tasks,
            .node = node_of(machine, region->node),
            .stays = true,
        };
    }
}

/* Several groups use the memory: it moves with none of them. */
static void hints_share(struct bmi__group_hints *hints)
{
    memset(hints->movable, 0, sizeof(hints->movable));
}

static double mean(double one, double other, const struct bmi__group_hints *into,
                   const struct bmi__group_hints *from)
{
    return (one * into->tasks + other * from->tasks) / ((double)into->tasks + from->tasks);
}

static uint32_t hints_find(const struct bmi__group_hints *hints,
                           const struct bmi__group_hints *other, uint32_t i)
{
    uint32_t at = 0;
    while (at < hints->count && (hints->addresses[at] != other->addresses[i] ||
                                 hints->one[at].bytes != other->one[i].bytes))
        at++;
    return at;
}

/* Adds the hints `from`. Returns false, with `into` changed, if these are too many regions. */
static bool hints_add(struct bmi__group_hints *into, const struct bmi__group_hints *from)
{
    double added[2][BMI_TASK_GROUP_REGIONS] = {{0}}; /* read, written by a task of `from` */
    for (uint32_t i = 0; i < from->count; i++) {
        uint32_t at = hints_find(into, from, i);
        if (at == BMI_TASK_GROUP_REGIONS)
            return false;
        if (at == into->count) {
            into->addresses[at] = from->addresses[i];
            into->movable[at] = from->movable[i];
            into->one[at] = from->one[i];
            into->one[at].read = into->one[at].written = 0;
            into->count++;
        }
        into->movable[at] = into->movable[at] && from->movable[i];
        added[0][at] += from->one[i].read;
        added[1][at] += from->one[i].written;
    }
    for (uint32_t i = 0; i < into->count; i++) {
        into->one[i].read = mean(into->one[i].read, added[0][i], into, from);
        into->one[i].written = mean(into->one[i].written, added[1][i], into, from);
    }
    into->compute_ns = mean(into->compute_ns, from->compute_ns, into, from);
    into->runs = mean(into->runs, from->runs, into, from);
    into->tasks_stay = into->tasks_stay || from->tasks_stay;
    into->tasks += from->tasks;
    return true;
}

/* ---- making and ending ----------------------------------------------------------------------- */

static struct bmi_task_group *group_make(struct bmi_task_manager *manager,
                                         struct bmi_task_group *parent)
{
    struct bmi_task_group *group = calloc(1, sizeof(*group));
    if (group == NULL)
        return NULL;
    group->manager = manager;
    group->parent = parent;
    atomic_store(&group->references, 1);
    pthread_mutex_init(&group->moving, NULL);
    for (uint32_t i = 0; i < BMI_TASK_GROUP_PARTS; i++)
        atomic_store(&group->parts[i].vertex, BMI__NO_NODE);
    return group;
}

static void group_link_locked(struct bmi_task_group *group)
{
    struct bmi__groups *groups = group->manager->groups;
    group->flat = groups->machine.node_count <= 1;
    if (group->flat)
        atomic_store(&group->parts[0].vertex, 0);
    group->next = groups->first;
    group->link = &groups->first;
    if (group->next != NULL)
        group->next->link = &group->next;
    groups->first = group;
    if (group->parent != NULL)
        atomic_fetch_add(&group->parent->references, 1);
}

static void group_unlink_locked(struct bmi_task_group *group)
{
    bmi__group_uncount_locked(group);
    *group->link = group->next;
    if (group->next != NULL)
        group->next->link = group->link;
}

static void group_free(struct bmi_task_group *group)
{
    pthread_mutex_destroy(&group->moving);
    free(group);
}

void bmi__group_drop(struct bmi_task_group *group)
{
    while (group != NULL && atomic_fetch_sub(&group->references, 1) == 1) {
        struct bmi_task_group *parent = group->parent;
        pthread_mutex_lock(&group->manager->placing);
        group_unlink_locked(group);
        pthread_mutex_unlock(&group->manager->placing);
        group_free(group);
        group = parent;
    }
}

int bmi_task_group_create(struct bmi_task_manager *manager, struct bmi_task_group *parent,
                          const struct bmi_task_group_hints *hints, struct bmi_task_group **group)
{
    static const struct bmi_task_group_hints none;
    manager = bmi__manager(manager);
    if (manager == NULL)
        return -BMI_ENOMEM;
    if (group == NULL || (parent != NULL && parent->manager != manager) ||
        (hints != NULL && !hints_valid(hints)))
        return -BMI_EINVAL;
    int result = bmi__costs_need(manager);
    if (result != 0)
        return result;
    struct bmi_task_group *made = group_make(manager, parent);
    if (made == NULL)
        return -BMI_ENOMEM;
    pthread_mutex_lock(&manager->placing);
    hints_read(&manager->groups->machine, hints != NULL ? hints : &none, &made->hints);
    if (hints == NULL && parent != NULL) {
        made->hints = parent->hints;
        made->hints.tasks = 1;
        hints_share(&made->hints);
    }
    group_link_locked(made);
    pthread_mutex_unlock(&manager->placing);
    *group = made;
    return 0;
}

/* Both locks, in their order. */
static void group_lock(struct bmi_task_group *group)
{
    pthread_mutex_lock(&group->moving);
    pthread_mutex_lock(&group->manager->placing);
}

static void group_unlock(struct bmi_task_group *group)
{
    pthread_mutex_unlock(&group->manager->placing);
    pthread_mutex_unlock(&group->moving);
}

static void hints_set_locked(struct bmi_task_group *group, const struct bmi__group_hints *hints)
{
    bmi__group_uncount_locked(group);
    group->hints = *hints;
    bmi__group_count_all_locked(group);
}

void bmi_task_group_close(struct bmi_task_group *group)
{
    if (group == NULL)
        return;
    group_lock(group);
    hints_share(&group->hints);
    group_unlock(group);
    bmi__group_drop(group);
}

int bmi_task_group_set_hints(struct bmi_task_group *group, const struct bmi_task_group_hints *hints)
{
    struct bmi__group_hints read;
    if (group == NULL || hints == NULL || !hints_valid(hints))
        return -BMI_EINVAL;
    group_lock(group);
    hints_read(&group->manager->groups->machine, hints, &read);
    hints_set_locked(group, &read);
    group_unlock(group);
    return 0;
}

/* ---- a task's way through its group ---------------------------------------------------------- */

void bmi__group_submitted(struct bmi_task_group *group, struct bmi_task *task)
{
    struct bmi__group_part *home = &group->parts[0];
    task->group = group;
    task->cpu = 0;
    atomic_fetch_add(&group->references, 1);
    atomic_fetch_add(&home->waiting, 1);
    unsigned before = atomic_fetch_add(&home->outstanding, 1);
    if (group->flat)
        return;
    if (before == 0 || atomic_load(&home->vertex) == BMI__NO_NODE) {
        pthread_mutex_lock(&group->manager->placing);
        bmi__group_home_locked(group);
        bmi__group_count_locked(group, home);
        pthread_mutex_unlock(&group->manager->placing);
    }
    atomic_fetch_add(&group->manager->group_changes, 1);
}

void bmi__group_again(struct bmi_task *task)
{
    atomic_fetch_add(&task->group->parts[task->cpu].waiting, 1);
}

bool bmi__group_is_cancelled(const struct bmi_task_group *group)
{
    while (group != NULL && !atomic_load(&group->cancelled))
        group = group->parent;
    return group != NULL;
}

bool bmi__group_begin(struct bmi_task *task)
{
    atomic_fetch_sub(&task->group->parts[task->cpu].waiting, 1);
    return bmi__group_is_cancelled(task->group);
}

void bmi__group_end(struct bmi_task_group *group, uint32_t part)
{
    struct bmi__group_part *of = &group->parts[part];
    if (atomic_fetch_sub(&of->outstanding, 1) == 1 && !group->flat) {
        pthread_mutex_lock(&group->manager->placing);
        bmi__group_count_locked(group, of);
        pthread_mutex_unlock(&group->manager->placing);
        atomic_fetch_add(&group->manager->group_changes, 1);
    }
    bmi__group_drop(group);
}

struct bmi__task_node *bmi__group_node(const struct bmi_task *task)
{
    struct bmi_task_group *group = task->group;
    return &group->manager->nodes[atomic_load(&group->parts[task->cpu].vertex)];
}

void bmi__group_push(struct bmi_task_manager *manager, struct bmi_task *tasks)
{
    if (tasks == NULL)
        return;
    atomic_fetch_add(&manager->group_changes, 1);
    while (tasks != NULL) {
        struct bmi_task *task = tasks;
        tasks = task->next;
        bmi__task_queue(manager, task);
    }
}

/* ---- split, merge, cancel -------------------------------------------------------------------- */

/* Takes up to `most` waiting tasks of a part, and lets them join another group. Returns how many;
 * they are put in front of *tasks. */
static uint32_t tasks_change_locked(struct bmi_task_group *from, uint32_t part, uint32_t most,
                                    struct bmi_task_group *into, struct bmi_task **tasks)
{
    struct bmi__group_part *of = &from->parts[part];
    uint32_t vertex = atomic_load(&of->vertex), count = 0;
    if (vertex == BMI__NO_NODE)
        return 0;
    struct bmi_task *taken =
        bmi__affinity_take(&from->manager->nodes[vertex].affinity, from, part, most);
    struct bmi_task **end = &taken;
    for (; *end != NULL; end = &(*end)->next) {
        (*end)->group = into;
        (*end)->cpu = 0;
        count++;
    }
    *end = *tasks;
    *tasks = taken;
    atomic_fetch_sub(&of->waiting, count);
    atomic_fetch_sub(&of->outstanding, count);
    atomic_fetch_sub(&from->references, count); /* the caller has one more */
    atomic_fetch_add(&into->references, count);
    atomic_fetch_add(&into->parts[0].waiting, count);
    atomic_fetch_add(&into->parts[0].outstanding, count);
    return count;
}

/* The new group is the caller's alone until it has returned. */
static uint32_t split_locked(struct bmi_task_group *group, uint32_t most,
                             struct bmi_task_group *part, struct bmi_task **tasks)
{
    struct bmi__group_hints *hints = &group->hints;
    group_link_locked(part);
    atomic_store(&part->parts[0].vertex, atomic_load(&group->parts[0].vertex));
    atomic_store(&part->cancelled, atomic_load(&group->cancelled));
    uint32_t count = tasks_change_locked(group, 0, most, part, tasks);
    hints_share(hints);
    part->hints = *hints;
    part->hints.tasks = count > 0 ? count : 1;
    hints->tasks = hints->tasks > count ? hints->tasks - count : 1;
    bmi__group_count_all_locked(group);
    bmi__group_count_all_locked(part);
    return count;
}

int bmi_task_group_split(struct bmi_task_group *group, uint32_t most, struct bmi_task_group **part)
{
    if (group == NULL || part == NULL || most == 0 || most > INT_MAX)
        return -BMI_EINVAL;
    struct bmi_task_manager *manager = group->manager;
    struct bmi_task *tasks = NULL;
    struct bmi_task_group *made = group_make(manager, group->parent);
    if (made == NULL)
        return -BMI_ENOMEM;
    group_lock(group);
    uint32_t count = split_locked(group, most, made, &tasks);
    group_unlock(group);
    *part = made;
    bmi__group_push(manager, tasks);
    return (int)count;
}

/* Tasks of a cancelled group stay there and end. */
static uint32_t merge_locked(struct bmi_task_group *into, struct bmi_task_group *from,
                             struct bmi_task **tasks)
{
    struct bmi__group_part *home = &into->parts[0];
    uint32_t count = 0;
    if (atomic_load(&home->vertex) == BMI__NO_NODE)
        atomic_store(&home->vertex, atomic_load(&from->parts[0].vertex));
    for (uint32_t i = 0; i < BMI_TASK_GROUP_PARTS && !bmi__group_is_cancelled(from); i++)
        count += tasks_change_locked(from, i, INT_MAX, into, tasks);
    return count;
}

int bmi_task_group_merge(struct bmi_task_group *into, struct bmi_task_group *from)
{
    if (into == NULL || from == NULL || into == from || into->manager != from->manager)
        return -BMI_EINVAL;
    struct bmi_task_manager *manager = into->manager;
    struct bmi_task_group *first = (uintptr_t)into < (uintptr_t)from ? into : from;
    struct bmi_task_group *second = first == into ? from : into;
    struct bmi_task *tasks = NULL;
    pthread_mutex_lock(&first->moving);
    pthread_mutex_lock(&second->moving);
    pthread_mutex_lock(&manager->placing);
    struct bmi__group_hints sum = into->hints;
    int result = -BMI_EINVAL;
    if (hints_add(&sum, &from->hints)) {
        struct bmi__group_hints rest = from->hints;
        rest.count = 0;
        result = (int)merge_locked(into, from, &tasks);
        hints_set_locked(from, &rest);
        hints_set_locked(into, &sum);
    }
    pthread_mutex_unlock(&manager->placing);
    pthread_mutex_unlock(&second->moving);
    pthread_mutex_unlock(&first->moving);
    bmi__group_push(manager, tasks);
    return result;
}

/* Under placing, so that a split or merge at the same time comes before or after. */
void bmi_task_group_cancel(struct bmi_task_group *group)
{
    pthread_mutex_lock(&group->manager->placing);
    atomic_store(&group->cancelled, true);
    pthread_mutex_unlock(&group->manager->placing);
}

void bmi_task_group_statistics(struct bmi_task_group *group,
                               struct bmi_task_group_statistics *statistics)
{
    pthread_mutex_lock(&group->manager->placing);
    *statistics = group->counts;
    for (uint32_t i = 0; i < BMI_TASK_GROUP_PARTS; i++) {
        statistics->outstanding += atomic_load(&group->parts[i].outstanding);
        statistics->waiting += atomic_load(&group->parts[i].waiting);
    }
    uint32_t home = atomic_load(&group->parts[0].vertex);
    statistics->home = home != BMI__NO_NODE ? (int)home : -1;
    pthread_mutex_unlock(&group->manager->placing);
}
