/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tasks.c - the cost of the task manager: nanoseconds from submit until the submitter sees the end.
 *
 * The layout is that of PIOMan's tables. One thread submits a task for its own CPU, for each other
 * CPU, and for each shared level up to the global queue, where the first CPU to poll takes it; each
 * CPU of the task's set polls. Beside it stands the round trip of a cache line between the same two
 * CPUs. Then follow the levels of a large synthetic tree, with 1 to 16 threads on one queue.
 * Samples are a few hundred microseconds long, and those of the manager and of the paper's tree of
 * lists under spinlocks (paper_tree.h) take turns, so that both see the same machine. The value is
 * the lower quartile, since other load of the machine only ever adds. Each sample has its tasks at
 * another place of a page: addresses that are equal in their lowest 12 bits slow each other down,
 * by some hundredths of the value, and chance decides which of the tasks' and the queue's are
 * equal.
 *
 * Samples are taken by the main thread alone; a sample's other threads live as long as it does.
 */
#include "paper_tree.h"
#include "report.h"

#include "bmi.h"
#include "bmi/task.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TREE "package:8 l3:4 core:8 pu:1"
#define WARM_UP 10 /* part of the tasks of a sample */
#define OTHERS_MAX 256
#define TASKS 8 /* a thread's own, of those that share a queue */
#define PAGE 4096
#define STEP (11 * 64) /* from a sample's place to that of the next: the page's lines in turn */
#define CROWD_TIMES 8  /* such a sample has that many times the tasks of others */

enum kind { LOCK_FREE, SPINLOCK, KINDS };

/* The manager, and the paper's tree of the same shape. */
struct pair {
    struct bmi_task_manager *manager;
    struct paper_tree *tree;
    struct bmi_cpuset cpus;
    bool synthetic;
};

/* One row's measurement. */
struct probe {
    const struct pair *pair;
    int cpu;                  /* of the thread that submits */
    struct bmi_cpuset target; /* the CPUs that may run the task */
    bool creates;             /* the task is prepared anew each time */
    int threads;              /* that share the queue; 0: one task at a time */
};

static cpu_set_t at_start; /* the mask that the program was started with */

static void bind_to(int cpu)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET((size_t)cpu, &mask);
    if (sched_setaffinity(0, sizeof mask, &mask) < 0)
        die("CPU %d cannot be used", cpu);
}

/* The CPU for a thread that stands for one of a synthetic tree: one after the other of ours. */
static int real_cpu(int index)
{
    int left = index % CPU_COUNT(&at_start), cpu = 0;
    while (!CPU_ISSET((size_t)cpu, &at_start) || left-- > 0)
        cpu++;
    return cpu;
}

/* ---- managers and tasks -------------------------------------------------------------------- */

static void pair_open(struct pair *pair, const char *tree, enum bmi_task_threads threads)
{
    char error[256];
    struct bmi_task_settings settings = {
        .topology = tree ? BMI_TASK_TOPOLOGY_SYNTHETIC : BMI_TASK_TOPOLOGY_LIVE,
        .topology_text = tree,
    };
    *pair = (struct pair){.synthetic = tree != NULL};
    int status = bmi_task_manager_create(&settings, &pair->manager, error, sizeof error);
    if (status < 0)
        die("task manager: %s", error);
    if (bmi_task_manager_start(pair->manager, threads) < 0)
        die("task manager: its threads cannot be started");
    bmi_task_cpus(pair->manager, &pair->cpus);
    pair->tree = paper_tree_open(pair->manager);
}

static void pair_close(struct pair *pair)
{
    paper_tree_close(pair->tree);
    bmi_task_manager_destroy(pair->manager);
}

static enum bmi_task_status nothing_run(struct bmi_task *task, void *argument)
{
    (void)task;
    (void)argument;
    return BMI_TASK_DONE;
}

static void nothing_run_paper(struct paper_task *task)
{
    (void)task;
}

/* A task of either kind. */
union any_task {
    struct bmi_task managers;
    struct paper_task papers;
};

static inline void task_create(union any_task *task, const struct pair *pair, enum kind kind,
                               const struct bmi_cpuset *cpus)
{
    struct bmi_task_attributes attributes = {.function = nothing_run, .cpus = cpus};
    if (kind == SPINLOCK)
        paper_prepare(pair->tree, &task->papers, nothing_run_paper, cpus);
    else if (bmi_task_prepare(&task->managers, pair->manager, &attributes) != 0)
        die("bmi_task_prepare failed");
}

static inline void task_submit(union any_task *task, enum kind kind)
{
    if (kind == SPINLOCK)
        paper_submit(&task->papers);
    else
        bmi_task_submit(&task->managers);
}

static inline bool task_ended(union any_task *task, enum kind kind)
{
    return kind == SPINLOCK ? paper_ended(&task->papers)
                            : bmi_task_state(&task->managers) == BMI_TASK_ENDED;
}

/* Returns: how many tasks ran. */
static inline unsigned tasks_schedule(const struct pair *pair, enum kind kind, int cpu)
{
    return kind == SPINLOCK ? paper_schedule(pair->tree, cpu)
                            : bmi_task_schedule_on(pair->manager, cpu);
}

/* Where a sample's tasks are, in memory for TASKS of them that begins anywhere in a page. */
struct site {
    _Alignas(PAGE) uint8_t memory[PAGE + TASKS * sizeof(union any_task)];
};

static union any_task *site_tasks(struct site *site, unsigned sample)
{
    return (void *)(site->memory + (size_t)sample * STEP % PAGE);
}

static struct bmi_cpuset only(int cpu)
{
    struct bmi_cpuset set;
    bmi_cpuset_clear(&set);
    bmi_cpuset_add(&set, cpu);
    return set;
}

/* ---- one task at a time -------------------------------------------------------------------- */

/* A CPU that polls, for tasks or for the ball. */
struct poller {
    pthread_t thread;
    const struct pair *pair; /* NULL: the ball */
    enum kind kind;
    int cpu;
    atomic_bool ready, stop;
    _Alignas(64) atomic_uint ball;
};

static void *poller_main(void *argument)
{
    struct poller *poller = argument;
    bind_to(poller->cpu);
    atomic_store(&poller->ready, true);
    while (!atomic_load_explicit(&poller->stop, memory_order_relaxed)) {
        if (poller->pair)
            tasks_schedule(poller->pair, poller->kind, poller->cpu);
        else if (atomic_load_explicit(&poller->ball, memory_order_acquire) == 1)
            atomic_store_explicit(&poller->ball, 0, memory_order_release);
    }
    return NULL;
}

static void poller_open(struct poller *poller, const struct pair *pair, enum kind kind, int cpu)
{
    *poller = (struct poller){.pair = pair, .kind = kind, .cpu = cpu};
    if (pthread_create(&poller->thread, NULL, poller_main, poller) != 0)
        die("no thread");
    while (!atomic_load(&poller->ready))
        sched_yield();
}

static void poller_close(struct poller *poller)
{
    atomic_store(&poller->stop, true);
    pthread_join(poller->thread, NULL);
}

/* Polls on each CPU of the task's set but the submitter's. Returns: how many do. */
static int pollers_open(struct poller pollers[OTHERS_MAX], const struct probe *probe,
                        enum kind kind)
{
    int count = 0;
    if (probe->pair->synthetic)
        return 0;
    for (int cpu = bmi_cpuset_next(&probe->target, 0); cpu >= 0 && count < OTHERS_MAX;
         cpu = bmi_cpuset_next(&probe->target, cpu + 1))
        if (cpu != probe->cpu)
            poller_open(&pollers[count++], probe->pair, kind, cpu);
    return count;
}

/* Submits a task again and again. Returns: nanoseconds for each. */
static double tasks_time(const struct probe *probe, enum kind kind, int times, unsigned sample)
{
    static struct site site;
    const struct pair *pair = probe->pair;
    union any_task *task = site_tasks(&site, sample);
    bool own = bmi_cpuset_has(&probe->target, probe->cpu);
    uint64_t start = 0;
    task_create(task, pair, kind, &probe->target);
    for (int i = -times / WARM_UP; i < times; i++) {
        if (i == 0)
            start = now_ns();
        if (probe->creates)
            task_create(task, pair, kind, &probe->target);
        task_submit(task, kind);
        while (!task_ended(task, kind))
            if (own)
                tasks_schedule(pair, kind, probe->cpu);
    }
    return (double)(now_ns() - start) / times;
}

static double tasks_sample(const struct probe *probe, enum kind kind, int times, unsigned sample)
{
    static struct poller pollers[OTHERS_MAX];
    int count = pollers_open(pollers, probe, kind);
    double each_ns = tasks_time(probe, kind, times, sample);
    for (int i = 0; i < count; i++)
        poller_close(&pollers[i]);
    return each_ns;
}

/* A cache line's round trip between the submitter's CPU and the only other one of the set. */
static double line_sample(const struct probe *probe, int times)
{
    static struct poller poller;
    uint64_t start = 0;
    poller_open(&poller, NULL, LOCK_FREE, bmi_cpuset_next(&probe->target, 0));
    for (int i = -times / WARM_UP; i < times; i++) {
        if (i == 0)
            start = now_ns();
        atomic_store_explicit(&poller.ball, 1, memory_order_release);
        while (atomic_load_explicit(&poller.ball, memory_order_acquire) == 1)
            continue;
    }
    double each_ns = (double)(now_ns() - start) / times;
    poller_close(&poller);
    return each_ns;
}

/* ---- threads that share a queue ------------------------------------------------------------ */

struct crowd {
    const struct probe *probe;
    enum kind kind;
    atomic_int missing; /* threads that are not ready yet */
    int each;           /* tasks of a thread */
    unsigned sample;    /* its number: where the tasks are */
};

struct member {
    struct crowd *crowd;
    int cpu, on; /* of the tree; where it really runs */
    uint64_t from_ns, to_ns;
    struct site *site;
    pthread_t thread;
};

/* Waits for the others without sleeping: a thread that is still to be woken when the first one
 * begins would find the work done, without any contention. */
static void crowd_begin(struct crowd *crowd)
{
    atomic_fetch_sub(&crowd->missing, 1);
    while (atomic_load(&crowd->missing) > 0)
        sched_yield();
}

static void *member_main(void *argument)
{
    struct member *member = argument;
    struct crowd *crowd = member->crowd;
    const struct pair *pair = crowd->probe->pair;
    union any_task *tasks = site_tasks(member->site, crowd->sample);
    bind_to(member->on);
    for (int i = 0; i < TASKS; i++)
        task_create(&tasks[i], pair, crowd->kind, &crowd->probe->target);
    crowd_begin(crowd);
    member->from_ns = now_ns();
    for (int done = 0; done < crowd->each; done += TASKS) {
        for (int i = 0; i < TASKS; i++)
            task_submit(&tasks[i], crowd->kind);
        for (int i = 0; i < TASKS; i++)
            while (!task_ended(&tasks[i], crowd->kind))
                if (tasks_schedule(pair, crowd->kind, member->cpu) == 0)
                    sched_yield();
    }
    member->to_ns = now_ns();
    return NULL;
}

/* Each thread submits and runs, as one of the CPUs of the set. Returns: nanoseconds for a task. */
static double crowd_sample(const struct probe *probe, enum kind kind, int times, unsigned sample)
{
    int threads = probe->threads, cpu = -1;
    struct crowd crowd = {.probe = probe, .kind = kind, .missing = threads, .sample = sample};
    struct member *members = allocate((size_t)threads * sizeof *members);
    uint64_t from_ns = UINT64_MAX, to_ns = 0;
    crowd.each = (times * CROWD_TIMES / threads / TASKS + 1) * TASKS;
    for (int i = 0; i < threads; i++) {
        cpu = bmi_cpuset_next(&probe->target, cpu + 1);
        if (cpu < 0)
            cpu = bmi_cpuset_next(&probe->target, 0);
        members[i] = (struct member){.crowd = &crowd,
                                     .cpu = cpu,
                                     .on = real_cpu(i),
                                     .site = allocate_pages(sizeof *members[i].site)};
        if (pthread_create(&members[i].thread, NULL, member_main, &members[i]) != 0)
            die("no thread");
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(members[i].thread, NULL);
        from_ns = members[i].from_ns < from_ns ? members[i].from_ns : from_ns;
        to_ns = members[i].to_ns > to_ns ? members[i].to_ns : to_ns;
        free(members[i].site);
    }
    free(members);
    return (double)(to_ns - from_ns) / ((double)crowd.each * threads);
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* The queue whose CPUs are just these. */
static int queue_of(struct bmi_task_manager *manager, const struct bmi_cpuset *cpus)
{
    struct bmi_task_queue_statistics statistics;
    for (int queue = 0; bmi_task_queue_statistics(manager, queue, &statistics) == 0; queue++)
        if (memcmp(&statistics.cpus, cpus, sizeof *cpus) == 0)
            return queue;
    die("a level without a queue");
}

/* Which CPUs ran the tasks of a queue that several CPUs share. */
static void shares_note(struct series *series, struct bmi_task_manager *manager,
                        const struct bmi_cpuset *cpus)
{
    int queue = queue_of(manager, cpus);
    uint64_t sum = 0;
    size_t used = 0, room = sizeof series->note;
    for (int cpu = bmi_cpuset_next(cpus, 0); cpu >= 0; cpu = bmi_cpuset_next(cpus, cpu + 1))
        sum += bmi_task_queue_run_by(manager, queue, cpu);
    for (int cpu = bmi_cpuset_next(cpus, 0); cpu >= 0 && sum > 0 && used < room;
         cpu = bmi_cpuset_next(cpus, cpu + 1))
        used += (size_t)snprintf(series->note + used, room - used, "%sCPU %d %.1f %%",
                                 used ? ", " : "", cpu,
                                 100.0 * (double)bmi_task_queue_run_by(manager, queue, cpu) /
                                     (double)sum);
}

static double probe_sample(const struct probe *probe, enum contender contender, int times)
{
    enum kind kind = contender == CONTENDER_SPINLOCK ? SPINLOCK : LOCK_FREE;
    static unsigned samples[KINDS];
    if (contender == CONTENDER_LINE)
        return line_sample(probe, times);
    unsigned sample = samples[kind]++;
    return probe->threads > 0 ? crowd_sample(probe, kind, times, sample)
                              : tasks_sample(probe, kind, times, sample);
}

/* Adds a row to the report and measures it. */
static void row_measure(struct report *report, const struct probe *probe, const char *panel,
                        const char *label)
{
    const struct options *options = report->options;
    struct row *row = &report->rows[report->count++];
    int others = bmi_cpuset_count(&probe->target) - bmi_cpuset_has(&probe->target, probe->cpu);
    bool far = !probe->pair->synthetic && !bmi_cpuset_has(&probe->target, probe->cpu);
    unsigned contenders =
        BIT(CONTENDER_LOCK_FREE) | BIT(CONTENDER_SPINLOCK) | (far ? BIT(CONTENDER_LINE) : 0);
    row->grid = options->grids[0];
    row->work.amount = options->messages;
    row->work.size = probe->threads > 0 ? (uint32_t)probe->threads : 1;
    format_text(row->panel, sizeof row->panel, "%s", panel);
    format_text(row->label, sizeof row->label, "%s", label);
    row_open(row, options, contenders);
    for (int rep = -1; rep < options->reps; rep++)
        for (int i = 0; i < CONTENDER_COUNT; i++) {
            enum contender contender = (enum contender)(rep % 2 == 0 ? i : CONTENDER_COUNT - 1 - i);
            struct series *series = &row->series[contender];
            if (!series->samples)
                continue;
            double each_ns = probe_sample(probe, contender, (int)options->messages);
            if (rep >= 0)
                series->samples[series->count++] = each_ns;
        }
    if (!far && others > 0 && !probe->pair->synthetic)
        shares_note(&row->series[CONTENDER_LOCK_FREE], probe->pair->manager, &probe->target);
    row_finish(row, options);
    report_row_print(report, row);
}

/* Measures each queue above a CPU, its own first (`first` is its label; NULL: not that). */
static void levels_each(struct report *report, struct probe *probe, const char *first,
                        const char *panel,
                        void (*each)(struct report *report, struct probe *probe, const char *panel,
                                     const char *label))
{
    struct bmi_task_manager *manager = probe->pair->manager;
    struct bmi_task_queue_statistics statistics;
    for (int queue = bmi_task_queue_count(manager) - 1; queue >= 0; queue--) {
        char label[48];
        bmi_task_queue_statistics(manager, queue, &statistics);
        if (!bmi_cpuset_has(&statistics.cpus, probe->cpu))
            continue;
        bool own = bmi_cpuset_count(&statistics.cpus) == 1;
        if (own && !first)
            continue;
        snprintf(label, sizeof label, "%.30s", own ? first : queue ? statistics.name : "global");
        probe->target = statistics.cpus;
        each(report, probe, panel, label);
    }
}

static void level_row(struct report *report, struct probe *probe, const char *panel,
                      const char *label)
{
    row_measure(report, probe, panel, label);
}

/* A panel for each level, a row for each number of threads. */
static void level_crowds(struct report *report, struct probe *probe, const char *panel,
                         const char *label)
{
    char title[64], threads[32];
    snprintf(title, sizeof title, "%s: %.40s", panel, label);
    for (int i = 0; i < report->options->size_count; i++) {
        probe->threads = (int)report->options->sizes[i];
        format_text(threads, sizeof threads, "%d", probe->threads);
        row_measure(report, probe, title, threads);
    }
}

/* ---- parts of the run ---------------------------------------------------------------------- */

static void machine_measure(struct report *report)
{
    struct pair pair;
    pair_open(&pair, NULL, BMI_TASK_HOOKS_ONLY);
    struct probe probe = {.pair = &pair, .cpu = bmi_cpuset_next(&pair.cpus, 0)};
    const char *panel = "this machine";
    char label[48];
    bind_to(probe.cpu);
    probe.target = only(probe.cpu);
    probe.creates = true;
    row_measure(report, &probe, panel, "own CPU, created anew");
    probe.creates = false;
    row_measure(report, &probe, panel, "own CPU");
    int others = 0;
    for (int cpu = bmi_cpuset_next(&pair.cpus, probe.cpu + 1); cpu >= 0 && others < OTHERS_MAX;
         cpu = bmi_cpuset_next(&pair.cpus, cpu + 1), others++) {
        probe.target = only(cpu);
        format_text(label, sizeof label, "CPU %d", cpu);
        row_measure(report, &probe, panel, label);
    }
    levels_each(report, &probe, NULL, panel, level_row);
    pair_close(&pair);
}

/* The own CPU's queue while workers sleep on all CPUs. */
static void workers_measure(struct report *report)
{
    struct pair pair;
    pair_open(&pair, NULL, BMI_TASK_WORKERS);
    struct probe probe = {.pair = &pair, .cpu = bmi_cpuset_next(&pair.cpus, 0)};
    probe.target = only(probe.cpu);
    bind_to(probe.cpu);
    row_measure(report, &probe, "this machine, with workers", "own CPU");
    pair_close(&pair);
}

static void tree_measure(struct report *report, const char *tree)
{
    struct pair pair;
    char panel[64];
    pair_open(&pair, tree, BMI_TASK_HOOKS_ONLY);
    struct probe probe = {.pair = &pair, .cpu = bmi_cpuset_next(&pair.cpus, 0)};
    bind_to(real_cpu(0));
    format_text(panel, sizeof panel, "tree of %d CPUs", bmi_cpuset_count(&pair.cpus));
    levels_each(report, &probe, "own CPU", panel, level_row);
    levels_each(report, &probe, "own CPU's", "threads on one queue", level_crowds);
    pair_close(&pair);
}

/* Reports a tree that hwloc refuses before the first measurement. */
static void tree_check(const char *tree)
{
    struct pair pair;
    pair_open(&pair, tree, BMI_TASK_HOOKS_ONLY);
    pair_close(&pair);
}

static void tasks_run(const struct options *options, struct report *report)
{
    const char *tree = options->tree ? options->tree : TREE;
    if (sched_getaffinity(0, sizeof at_start, &at_start) < 0)
        die("the CPUs that may be used cannot be told");
    tree_check(tree);
    machine_measure(report);
    sched_setaffinity(0, sizeof at_start, &at_start);
    workers_measure(report);
    tree_measure(report, tree);
    sched_setaffinity(0, sizeof at_start, &at_start);
}

const struct pattern pattern_tasks = {
    .name = "tasks",
    .summary = "the task manager: submit a task, have it run, see it done",
    .unit = "ns",
    .size_name = "threads",
    .sizes = "1,2,4,8,16",
    .amount = "2000",
    .less_is_better = true,
    .low_quartile = true,
    .takes = TAKES_SIZE | TAKES_MESSAGES | TAKES_TREE,
    .reps = 21,
    .labels = "which CPU runs it",
    .contenders = BIT(CONTENDER_LOCK_FREE) | BIT(CONTENDER_SPINLOCK) | BIT(CONTENDER_LINE),
    .run_here = tasks_run,
};
