/* SPDX-License-Identifier: BSD-3-Clause
 *
 * place_sim.c - runs a workload in virtual time. A running task, and a copy of memory, ask for
 * bandwidth of each memory and link that they use, in proportion to their speed; the speeds are
 * max-min fair, and change only at events: a step ends, a task arrives. CPUs of one node are alike.
 * A policy chooses where a new task waits, which task an idle CPU takes, and which regions move
 * before a run. The CPU of the task copies them.
 */
#include "place.h"

#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    RESOURCES = 128, /* memories, and links both ways */
    LOOK = 4,        /* tasks of each queue that an idle CPU considers */
    NOWHERE = -1
};
#define MOMENT_NS 0.5 /* events so close happen together */

enum state { AWAY, READY, RUNNING, ENDED };

struct runner {
    const struct place_task *task;
    enum state state;
    struct place_random random;
    int node, next;   /* where it waits or runs; behind it in the queue */
    uint32_t runs;    /* that are left */
    uint64_t pending; /* uses whose regions move before the run */
    bool copying;     /* the step: a copy of the lowest pending one, or the run */
    double due_ns;    /* AWAY: until then; INFINITY: until its team's barrier opens */
    double start_ns;  /* added to the next run: cold caches */
    double left, full_ns, speed;
    double needs[RESOURCES]; /* bytes a ns at full speed */
    bool loaded;
    struct bmi__place_region hints[PLACE_USES]; /* of the group, as it is in the load */
    struct bmi__place_group group;
};

struct queue {
    int first, last;
};

struct sim {
    const struct bmi__place_machine *machine;
    const struct place_work *work;
    enum place_policy policy;
    struct place_random random;
    double now_ns;
    struct runner *runners;
    int *lies;         /* node of each region */
    uint32_t *reached; /* by team: tasks at the barrier */
    int *running;
    uint32_t running_count, ended, turn;
    struct queue queues[BMI__PLACE_NODES];
    uint32_t idle[BMI__PLACE_NODES];
    uint64_t version, looked[BMI__PLACE_NODES]; /* nothing changed: do not look again */
    struct bmi__place_load load;
    uint32_t resource_count;
    uint32_t *links; /* by vertex: its way out; the next one is the way in */
    double capacity[RESOURCES];
    struct place_result result;
};

static void trace(struct sim *sim, uint64_t event, uint64_t of)
{
    uint64_t values[] = {event, of, (uint64_t)sim->now_ns};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        sim->result.trace = (sim->result.trace ^ values[i]) * UINT64_C(0x100000001b3);
}

/* ---- bandwidth ------------------------------------------------------------------------------- */

static bool covers(const struct sim *sim, uint32_t upper, uint32_t lower)
{
    return bmi__place_distance(sim->machine->topology, upper, lower) == 0;
}

static void resources_make(struct sim *sim)
{
    const struct bmi__place_machine *machine = sim->machine;
    const struct bmi__topology *topology = machine->topology;
    sim->resource_count = machine->node_count;
    sim->links = allocate(topology->node_count * sizeof *sim->links);
    for (uint32_t i = 0; i < machine->node_count; i++)
        sim->capacity[i] = machine->memory_rate;
    for (uint32_t i = 1; i < topology->node_count; i++) {
        uint32_t below = 0;
        for (uint32_t j = 0; j < machine->node_count; j++)
            below += covers(sim, i, machine->vertices[j]);
        if (below == 0)
            continue;
        if (sim->resource_count + 2 > RESOURCES)
            die("place: a tree with too many links");
        sim->links[i] = sim->resource_count;
        for (int way = 0; way < 2; way++)
            sim->capacity[sim->resource_count++] = PLACE_LINK * below * machine->memory_rate;
    }
}

/* Bytes from one node to another go out of each vertex up to the common one, then into each. */
static void path_add(const struct sim *sim, double *needs, int from, int to, double rate)
{
    const struct bmi__topology_node *nodes = sim->machine->topology->nodes;
    uint32_t source = sim->machine->vertices[from], sink = sim->machine->vertices[to];
    for (uint32_t i = source; !covers(sim, i, sink); i = nodes[i].parent)
        needs[sim->links[i]] += rate;
    for (uint32_t i = sink; !covers(sim, i, source); i = nodes[i].parent)
        needs[sim->links[i] + 1] += rate;
}

static double remote(const struct sim *sim, int cpu, int memory)
{
    const struct bmi__place_machine *machine = sim->machine;
    unsigned far =
        bmi__place_distance(machine->topology, machine->vertices[cpu], machine->vertices[memory]);
    return 1 + far * machine->costs.remote_factor;
}

/* Max-min fair: all speeds rise together; those that use a resource that is full stay behind. */
static void speeds_solve(struct sim *sim)
{
    double left[RESOURCES], wanted[RESOURCES] = {0}, level = 0;
    uint32_t count = sim->resource_count, slow = 0;
    memcpy(left, sim->capacity, sizeof left);
    for (uint32_t i = 0; i < sim->running_count; i++) {
        struct runner *runner = &sim->runners[sim->running[i]];
        runner->speed = 0;
        for (uint32_t j = 0; j < count; j++)
            wanted[j] += runner->needs[j];
    }
    while (slow < sim->running_count) {
        double step = 1 - level;
        uint32_t full = RESOURCES;
        for (uint32_t j = 0; j < count; j++)
            if (wanted[j] > 0 && left[j] < step * wanted[j]) {
                step = left[j] / wanted[j];
                full = j;
            }
        level += step;
        for (uint32_t j = 0; j < count; j++)
            left[j] -= step * wanted[j];
        for (uint32_t i = 0; i < sim->running_count; i++) {
            struct runner *runner = &sim->runners[sim->running[i]];
            if (runner->speed > 0 || (full < RESOURCES && !(runner->needs[full] > 0)))
                continue;
            runner->speed = level;
            slow++;
            for (uint32_t j = 0; j < count; j++)
                wanted[j] -= runner->needs[j];
        }
        if (full < RESOURCES)
            wanted[full] = 0; /* but for rounding it is */
    }
}

/* ---- the load that decisions see ------------------------------------------------------------- */

static void load_leave(struct sim *sim, struct runner *runner)
{
    if (runner->loaded)
        bmi__place_load_remove(sim->machine, &sim->load, &runner->group);
    runner->loaded = false;
    sim->version++;
}

/* Fills the hints: regions that are to move lie where they go to. */
static void hints_fill(const struct sim *sim, struct runner *runner)
{
    const struct place_task *task = runner->task;
    for (uint32_t i = 0; i < task->use_count; i++) {
        const struct place_use *use = &task->uses[i];
        const struct place_region *region = &sim->work->regions[use->region];
        runner->hints[i] = (struct bmi__place_region){
            .bytes = region->bytes,
            .read = use->read,
            .written = use->written,
            .node = runner->pending >> i & 1 ? runner->node : sim->lies[use->region],
            .stays = region->pinned || !use->own || sim->policy == PLACE_TASKS,
        };
    }
    runner->group = (struct bmi__place_group){
        .regions = runner->hints,
        .region_count = task->use_count,
        .tasks = 1,
        .compute_ns = task->compute_ns,
        .runs = runner->runs,
        .home = runner->node != NOWHERE ? sim->machine->vertices[runner->node] : 0,
    };
}

static void load_renew(struct sim *sim, struct runner *runner)
{
    load_leave(sim, runner);
    hints_fill(sim, runner);
    bmi__place_load_add(sim->machine, &sim->load, &runner->group);
    runner->loaded = true;
}

/* ---- steps of a task ------------------------------------------------------------------------- */

static void queue_push(struct sim *sim, int index)
{
    struct runner *runner = &sim->runners[index];
    struct queue *queue = &sim->queues[sim->policy == PLACE_NONE ? 0 : runner->node];
    runner->state = READY;
    runner->next = NOWHERE;
    if (queue->first == NOWHERE)
        queue->first = index;
    else
        sim->runners[queue->last].next = index;
    queue->last = index;
    sim->version++;
}

static void queue_remove(struct sim *sim, struct queue *queue, int index)
{
    int before = NOWHERE;
    for (int i = queue->first; i != index; i = sim->runners[i].next)
        before = i;
    if (before == NOWHERE)
        queue->first = sim->runners[index].next;
    else
        sim->runners[before].next = sim->runners[index].next;
    if (queue->last == index)
        queue->last = before;
}

static void copy_begin(struct sim *sim, struct runner *runner, uint32_t region)
{
    const struct bmi_task_costs *costs = &sim->machine->costs;
    int from = sim->lies[region], to = runner->node;
    double bytes = sim->work->regions[region].bytes;
    double ns_per_kib =
        costs->move_ns_per_kib + costs->local_ns_per_kib * (remote(sim, to, from) - 1);
    runner->full_ns = bytes / 1024 * ns_per_kib + costs->move_region_ns;
    runner->needs[from] += bytes / runner->full_ns;
    runner->needs[to] += bytes / runner->full_ns;
    path_add(sim, runner->needs, from, to, bytes / runner->full_ns);
    sim->result.regions_moved++;
    sim->result.bytes_moved += bytes;
}

static void run_begin(struct sim *sim, struct runner *runner)
{
    const struct place_task *task = runner->task;
    int cpu = runner->node;
    double kib = 0;
    for (uint32_t i = 0; i < task->use_count; i++) {
        const struct place_use *use = &task->uses[i];
        kib += (use->read + use->written) / 1024 * remote(sim, cpu, sim->lies[use->region]);
    }
    runner->full_ns =
        task->compute_ns + runner->start_ns + kib * sim->machine->costs.local_ns_per_kib;
    runner->start_ns = 0;
    for (uint32_t i = 0; i < task->use_count; i++) {
        const struct place_use *use = &task->uses[i];
        int memory = sim->lies[use->region];
        runner->needs[memory] += (use->read + use->written) / runner->full_ns;
        path_add(sim, runner->needs, memory, cpu, use->read / runner->full_ns);
        path_add(sim, runner->needs, cpu, memory, use->written / runner->full_ns);
    }
}

static void step_begin(struct sim *sim, struct runner *runner)
{
    memset(runner->needs, 0, sizeof runner->needs);
    runner->left = 1;
    runner->copying = runner->pending != 0;
    if (runner->copying)
        copy_begin(sim, runner, runner->task->uses[__builtin_ctzll(runner->pending)].region);
    else
        run_begin(sim, runner);
    trace(sim, runner->copying ? 1 : 2, (uint64_t)(runner - sim->runners));
}

/* Regions that follow the task to its CPU. */
static uint64_t follow(struct sim *sim, struct runner *runner)
{
    uint64_t remote_ones = 0;
    for (uint32_t i = 0; i < runner->task->use_count; i++)
        if (!runner->hints[i].stays && sim->lies[runner->task->uses[i].region] != runner->node)
            remote_ones |= UINT64_C(1) << i;
    if (sim->policy == PLACE_TOUCH)
        return remote_ones;
    if (sim->policy != PLACE_MIXED || !remote_ones || runner->pending)
        return runner->pending;
    struct bmi__place_choice choice;
    load_leave(sim, runner);
    hints_fill(sim, runner);
    bmi__place_choose(sim->machine, &sim->load, &runner->group, 0, runner->group.home, &choice);
    return choice.placement == BMI_TASK_PLACE_DATA ? choice.moved : 0;
}

/* A CPU of the node takes the task. */
static void task_begin(struct sim *sim, int index, int node)
{
    struct runner *runner = &sim->runners[index];
    sim->result.tasks_moved += runner->node != node;
    runner->start_ns = runner->node != node ? sim->machine->costs.move_task_ns : 0;
    runner->node = node;
    runner->state = RUNNING;
    for (uint32_t i = 0; i < runner->task->use_count; i++) {
        int *lies = &sim->lies[runner->task->uses[i].region];
        *lies = *lies == NOWHERE ? node : *lies;
    }
    runner->pending = follow(sim, runner);
    load_renew(sim, runner);
    sim->idle[node]--;
    sim->running[sim->running_count++] = index;
    step_begin(sim, runner);
}

static void barrier_reach(struct sim *sim, struct runner *runner)
{
    const struct place_team *team = &sim->work->teams[runner->task->team];
    runner->state = AWAY;
    runner->due_ns = INFINITY;
    if (++sim->reached[runner->task->team] < team->count)
        return;
    sim->reached[runner->task->team] = 0;
    for (uint32_t i = team->first; i < team->first + team->count; i++)
        queue_push(sim, (int)i);
}

static void run_end(struct sim *sim, int index)
{
    struct runner *runner = &sim->runners[index];
    sim->idle[runner->node]++;
    trace(sim, 3, (uint64_t)index);
    if (--runner->runs == 0) {
        runner->state = ENDED;
        sim->ended++;
        load_leave(sim, runner);
    } else if (sim->work->teams[runner->task->team].barrier) {
        barrier_reach(sim, runner);
    } else if (runner->task->pause_ns > 0) {
        runner->state = AWAY;
        runner->due_ns = sim->now_ns + place_exponential(&runner->random, runner->task->pause_ns);
        load_leave(sim, runner);
    } else {
        queue_push(sim, index);
    }
}

/* Returns: whether the CPU has nothing more to do for the task. */
static bool step_end(struct sim *sim, int index)
{
    struct runner *runner = &sim->runners[index];
    if (!runner->copying) {
        run_end(sim, index);
        return true;
    }
    uint32_t use = (uint32_t)__builtin_ctzll(runner->pending);
    sim->lies[runner->task->uses[use].region] = runner->node;
    sim->version++;
    runner->pending &= runner->pending - 1;
    step_begin(sim, runner);
    return false;
}

/* ---- placement ------------------------------------------------------------------------------- */

/* The hints of a team, merged: one region for each node. */
static struct bmi__place_group team_merge(struct sim *sim, const struct place_team *team,
                                          struct bmi__place_region *merged)
{
    struct bmi__place_group group = {.regions = merged, .tasks = team->count};
    memset(merged, 0, (sim->machine->node_count + 1) * sizeof *merged);
    for (uint32_t i = team->first; i < team->first + team->count; i++) {
        struct runner *runner = &sim->runners[i];
        hints_fill(sim, runner);
        group.compute_ns += runner->group.compute_ns / team->count;
        group.runs = fmax(group.runs, runner->group.runs);
        for (uint32_t j = 0; j < runner->group.region_count; j++) {
            struct bmi__place_region *part = &merged[runner->hints[j].node + 1];
            part->bytes += runner->hints[j].bytes;
            part->read += runner->hints[j].read;
            part->written += runner->hints[j].written;
        }
    }
    group.region_count = sim->machine->node_count + 1;
    for (uint32_t i = 0; i < group.region_count; i++)
        merged[i].node = (int)i - 1;
    return group;
}

static int node_new(struct sim *sim, struct bmi__place_group *group, uint32_t *within)
{
    *within = bmi__place_new(sim->machine, &sim->load, group, *within, BMI_TASK_LEVEL_NUMA);
    return bmi__place_node_of(sim->machine, *within);
}

static void team_arrive(struct sim *sim, const struct place_team *team)
{
    struct bmi__place_region merged[BMI__PLACE_NODES + 1];
    struct bmi__place_group group = team_merge(sim, team, merged);
    bool decides = sim->policy >= PLACE_TASKS;
    uint32_t vertex = 0;
    int node = decides ? node_new(sim, &group, &vertex) : NOWHERE;
    for (uint32_t i = team->first; i < team->first + team->count; i++) {
        struct runner *runner = &sim->runners[i];
        uint32_t within = vertex;
        hints_fill(sim, runner);
        if (!decides)
            runner->node = (int)(sim->turn++ % sim->machine->node_count);
        else
            runner->node = node != NOWHERE ? node : node_new(sim, &runner->group, &within);
        load_renew(sim, runner);
        queue_push(sim, (int)i);
    }
}

/* Tasks that wait away from `node`, some of each queue. */
static uint32_t candidates_list(struct sim *sim, int node, int *indices,
                                const struct bmi__place_group **groups)
{
    uint32_t count = 0;
    for (int i = 0; i < (int)sim->machine->node_count; i++) {
        int index = i != node ? sim->queues[i].first : NOWHERE;
        for (int j = 0; j < LOOK && index != NOWHERE; j++, index = sim->runners[index].next) {
            sim->runners[index].group.runs = sim->runners[index].runs;
            groups[count] = &sim->runners[index].group;
            indices[count++] = index;
        }
    }
    return count;
}

/* An idle CPU of a node whose queue is empty decides. Returns: whether it found a task. */
static bool look_decide(struct sim *sim, int node)
{
    int indices[LOOK * BMI__PLACE_NODES];
    const struct bmi__place_group *groups[LOOK * BMI__PLACE_NODES];
    struct bmi__place_choice choice;
    if (!sim->idle[node] || sim->queues[node].first != NOWHERE || sim->looked[node] == sim->version)
        return false;
    sim->looked[node] = sim->version;
    uint32_t count = candidates_list(sim, node, indices, groups);
    int found = bmi__place_find(sim->machine, &sim->load, sim->machine->vertices[node], groups,
                                count, &choice);
    if (found < 0)
        return false;
    struct runner *runner = &sim->runners[indices[found]];
    runner->pending = choice.moved;
    if (choice.placement == BMI_TASK_PLACE_DATA) {
        load_renew(sim, runner);
        return true;
    }
    queue_remove(sim, &sim->queues[runner->node], indices[found]);
    task_begin(sim, indices[found], node);
    return true;
}

/* The queue that an idle CPU takes from by policies without decisions; NOWHERE: none. */
static int queue_choose(struct sim *sim, int node)
{
    int best = NOWHERE;
    double least = INFINITY;
    for (int i = 0; i < (int)sim->machine->node_count; i++) {
        if (sim->queues[i].first == NOWHERE)
            continue;
        double rank =
            sim->policy == PLACE_TOUCH ? remote(sim, node, i) : place_uniform(&sim->random);
        if (rank < least) {
            least = rank;
            best = i;
        }
    }
    return best;
}

static bool look_take(struct sim *sim, int node, int from)
{
    if (!sim->idle[node] || from == NOWHERE || sim->queues[from].first == NOWHERE)
        return false;
    int index = sim->queues[from].first;
    queue_remove(sim, &sim->queues[from], index);
    task_begin(sim, index, node);
    return true;
}

/* A random idle CPU's node. */
static int idle_choose(struct sim *sim)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < sim->machine->node_count; i++)
        sum += sim->idle[i];
    double left = place_uniform(&sim->random) * sum;
    int node = 0;
    while (sum && left >= sim->idle[node])
        left -= sim->idle[node++];
    return node;
}

/* Idle CPUs begin tasks until none finds one. */
static void dispatch(struct sim *sim)
{
    bool decides = sim->policy == PLACE_TASKS || sim->policy == PLACE_MIXED;
    bool found = true;
    while (sim->policy == PLACE_NONE && look_take(sim, idle_choose(sim), 0))
        continue;
    while (sim->policy != PLACE_NONE && found) {
        found = false;
        for (int node = 0; decides && node < (int)sim->machine->node_count; node++)
            found |= look_decide(sim, node);
        for (int node = 0; !found && node < (int)sim->machine->node_count; node++)
            while (look_take(sim, node, node))
                found = true;
        for (int node = 0; !found && !decides && node < (int)sim->machine->node_count; node++)
            found |= look_take(sim, node, queue_choose(sim, node));
    }
}

/* ---- the run --------------------------------------------------------------------------------- */

static double next_ns(const struct sim *sim)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < sim->running_count; i++) {
        const struct runner *runner = &sim->runners[sim->running[i]];
        least = fmin(least, runner->left * runner->full_ns / runner->speed);
    }
    for (uint32_t i = 0; i < sim->work->task_count; i++)
        if (sim->runners[i].state == AWAY)
            least = fmin(least, sim->runners[i].due_ns - sim->now_ns);
    if (!(least < INFINITY))
        die("place: no task can run");
    return fmax(least, 0);
}

static void advance(struct sim *sim, double step_ns)
{
    sim->now_ns += step_ns;
    for (uint32_t i = sim->running_count; i-- > 0;) {
        struct runner *runner = &sim->runners[sim->running[i]];
        runner->left -= step_ns * runner->speed / runner->full_ns;
        if (runner->left * runner->full_ns > MOMENT_NS * runner->speed)
            continue;
        if (step_end(sim, sim->running[i]))
            sim->running[i] = sim->running[--sim->running_count];
    }
    for (uint32_t i = 0; i < sim->work->task_count; i++) {
        struct runner *runner = &sim->runners[i];
        const struct place_team *team = &sim->work->teams[runner->task->team];
        if (runner->state != AWAY || runner->due_ns > sim->now_ns + MOMENT_NS)
            continue;
        if (runner->node == NOWHERE) {
            team_arrive(sim, team);
        } else {
            if (sim->policy == PLACE_RANDOM) /* any thread may have received the request */
                runner->node = (int)(place_uniform(&sim->random) * sim->machine->node_count);
            load_renew(sim, runner);
            queue_push(sim, (int)i);
        }
    }
}

static void runners_make(struct sim *sim, uint64_t seed)
{
    const struct place_work *work = sim->work;
    sim->runners = allocate(work->task_count * sizeof *sim->runners);
    sim->running = allocate(work->task_count * sizeof *sim->running);
    sim->reached = allocate(work->team_count * sizeof *sim->reached);
    sim->lies = allocate(work->region_count * sizeof *sim->lies);
    for (uint32_t i = 0; i < work->region_count; i++)
        sim->lies[i] = work->regions[i].node;
    for (uint32_t i = 0; i < work->task_count; i++)
        sim->runners[i] = (struct runner){
            .task = &work->tasks[i],
            .runs = work->tasks[i].runs,
            .node = NOWHERE,
            .random = {seed + i},
            .due_ns = work->teams[work->tasks[i].team].arrival_ns,
        };
    for (uint32_t i = 0; i < sim->machine->node_count; i++) {
        sim->queues[i] = (struct queue){NOWHERE, NOWHERE};
        sim->idle[i] = sim->machine->topology->nodes[sim->machine->vertices[i]].count;
    }
}

struct place_result place_simulate(const struct bmi__place_machine *machine,
                                   const struct place_work *work, enum place_policy policy,
                                   uint64_t seed)
{
    struct sim *sim = allocate(sizeof *sim);
    *sim = (struct sim){.machine = machine, .work = work, .policy = policy, .random = {seed}};
    if (bmi__place_load_open(machine, &sim->load) < 0)
        die("no memory");
    resources_make(sim);
    runners_make(sim, seed);
    while (sim->ended < work->task_count) {
        dispatch(sim);
        speeds_solve(sim);
        advance(sim, next_ns(sim));
    }
    struct place_result result = sim->result;
    result.time_ns = sim->now_ns;
    bmi__place_load_close(&sim->load);
    free(sim->runners);
    free(sim->running);
    free(sim->reached);
    free(sim->lies);
    free(sim->links);
    free(sim);
    return result;
}

/* No schedule is faster: the time of all work on all CPUs, of all bytes at all memories, of pinned
 * ones at theirs, and of the longest task, all memory local. */
double place_bound(const struct bmi__place_machine *machine, const struct place_work *work,
                   uint64_t seed)
{
    double cpu_ns = 0, bytes = 0, pinned[BMI__PLACE_NODES] = {0}, longest_ns = 0, cpus = 0;
    for (uint32_t i = 0; i < work->task_count; i++) {
        const struct place_task *task = &work->tasks[i];
        struct place_random random = {seed + i};
        double run_ns = task->compute_ns, pauses_ns = 0;
        for (uint32_t j = 0; j < task->use_count; j++) {
            const struct place_region *region = &work->regions[task->uses[j].region];
            double each = task->uses[j].read + task->uses[j].written;
            run_ns += each / 1024 * machine->costs.local_ns_per_kib;
            bytes += each * task->runs;
            if (region->pinned && region->node >= 0)
                pinned[region->node] += each * task->runs;
        }
        for (uint32_t j = 1; task->pause_ns > 0 && j < task->runs; j++)
            pauses_ns += place_exponential(&random, task->pause_ns);
        cpu_ns += run_ns * task->runs;
        longest_ns =
            fmax(longest_ns, work->teams[task->team].arrival_ns + pauses_ns + run_ns * task->runs);
    }
    for (uint32_t i = 0; i < machine->node_count; i++)
        cpus += machine->topology->nodes[machine->vertices[i]].count;
    double bound = fmax(longest_ns, cpu_ns / cpus);
    bound = fmax(bound, bytes / machine->memory_rate / machine->node_count);
    for (uint32_t i = 0; i < machine->node_count; i++)
        bound = fmax(bound, pinned[i] / machine->memory_rate);
    return bound;
}
