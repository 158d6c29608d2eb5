/* SPDX-License-Identifier: BSD-3-Clause
 *
 * job.c - the cost of job over bare BMI, and of state machines. Everything is in this one process:
 * messages go over the loop method, so that only the library's own work counts. Each row is
 * nanoseconds for one operation of its label; bare BMI and job take their samples in turn.
 */
#include "bmi_side.h"
#include "report.h"

#include <bmi/job.h>

#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 64, SIZE = 24, ALIVE = 100000 };

static struct {
    struct bmi_job_context *jobs;
    bmi_context_id bare;
    BMI_addr_t self;
    char out[SIZE], in[BATCH][SIZE];
} bench;

static double ns_each(uint64_t start_ns, uint64_t count)
{
    return (double)(now_ns() - start_ns) / (double)count;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Posts and fetches BATCH receives and sends of bare BMI. */
static void bare_batch(void)
{
    bmi_op_id_t ids[BATCH];
    bmi_error_code_t errors[BATCH];
    bmi_size_t sizes[BATCH], actual;
    void *pointers[BATCH];
    for (int i = 0; i < BATCH; i++)
        bmi_check(BMI_post_recv(&ids[0], bench.self, bench.in[i], SIZE, &actual, BMI_EXT_ALLOC, i,
                                bench.in, bench.bare, NULL),
                  "BMI_post_recv");
    for (int i = 0; i < BATCH; i++)
        bmi_check(BMI_post_send(&ids[0], bench.self, bench.out, SIZE, BMI_EXT_ALLOC, i, bench.in,
                                bench.bare, NULL),
                  "BMI_post_send");
    for (int left = 2 * BATCH, count; left > 0; left -= count)
        bmi_check(BMI_testcontext(BATCH, ids, &count, errors, sizes, pointers, 1000, bench.bare),
                  "BMI_testcontext");
}

static void job_batch(void)
{
    struct bmi_job_status statuses[BATCH];
    struct bmi_job_options options = {.user_ptr = bench.in};
    for (int i = 0; i < BATCH; i++)
        bmi_check(bmi_job_recv(bench.jobs, bench.self, bench.in[i], SIZE, BMI_EXT_ALLOC, i,
                               &options, NULL, NULL),
                  "bmi_job_recv");
    for (int i = 0; i < BATCH; i++)
        bmi_check(bmi_job_send(bench.jobs, bench.self, bench.out, SIZE, BMI_EXT_ALLOC, i, &options,
                               NULL, NULL),
                  "bmi_job_send");
    for (int left = 2 * BATCH, count; left > 0; left -= count)
        bmi_check(bmi_job_testcontext(bench.jobs, BATCH, &count, statuses, 1000),
                  "bmi_job_testcontext");
}

static double batches(void (*batch)(void), uint64_t messages)
{
    uint64_t count = messages / BATCH + 1, start = now_ns();
    for (uint64_t i = 0; i < count; i++)
        batch();
    return ns_each(start, count * BATCH * 2);
}

static double bare_sample(uint64_t messages)
{
    return batches(bare_batch, messages);
}

static double job_sample(uint64_t messages)
{
    return batches(job_batch, messages);
}

/* ---- state machines -------------------------------------------------------------------------- */

struct count {
    uint64_t left;
};

static int step(struct bmi_sm *machine, void *data)
{
    struct count *count = data;
    (void)machine;
    return --count->left == 0;
}

static int step_deferred(struct bmi_sm *machine, void *data)
{
    struct count *count = data;
    struct bmi_job_options options = {.machine = machine};
    if (--count->left == 0)
        return 1;
    bmi_check(bmi_job_null(bmi_sm_context(machine), 0, &options, NULL, NULL), "bmi_job_null");
    return BMI_SM_DEFERRED;
}

static struct bmi_job_options event_of(struct bmi_sm *machine)
{
    return (struct bmi_job_options){.machine = machine};
}

/* Waits for an event; stores its id at `data`. */
static int wait_once(struct bmi_sm *machine, void *data)
{
    struct bmi_job_options options = event_of(machine);
    return bmi_sm_posted(bmi_job_event(bmi_sm_context(machine), &options, data, NULL));
}

static const struct bmi_sm_state step_states[] = {
    {"one", .action = step, .choices = 2,
     .on = {BMI_SM_OK(1), BMI_SM_ON(1, BMI_SM_END), BMI_SM_FAIL(BMI_SM_END)}},
    {"other", .action = step, .choices = 2,
     .on = {BMI_SM_OK(0), BMI_SM_ON(1, BMI_SM_END), BMI_SM_FAIL(BMI_SM_END)}},
};
static struct bmi_sm_table steps = {"steps", step_states, 2, 0};
static const struct bmi_sm_state deferred_states[] = {
    {"wait", .action = step_deferred, .choices = 2,
     .on = {BMI_SM_OK(0), BMI_SM_ON(1, BMI_SM_END), BMI_SM_FAIL(BMI_SM_END)}},
};
static struct bmi_sm_table deferred = {"deferred", deferred_states, 1, 0};
static const struct bmi_sm_state event_states[] = {
    {"event", .action = wait_once, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table waiter = {"waiter", event_states, 1, 0};

static void machines_fetch(int machines)
{
    struct bmi_job_status statuses[BATCH];
    for (int count; machines > 0; machines -= count)
        bmi_check(bmi_job_testcontext(bench.jobs, BATCH, &count, statuses, 1000),
                  "bmi_job_testcontext");
}

static double machine_sample(struct bmi_sm_table *table, uint64_t count)
{
    struct count left = {.left = count};
    uint64_t start = now_ns();
    bmi_check(bmi_sm_start(bench.jobs, table, &left, NULL, NULL, NULL, NULL), "bmi_sm_start");
    machines_fetch(1);
    return ns_each(start, count);
}

static double step_sample(uint64_t count)
{
    return machine_sample(&steps, count);
}

static double deferred_sample(uint64_t count)
{
    return machine_sample(&deferred, count);
}

/* Machines that all wait at once: started, each woken by its event, and fetched. */
static double alive_sample(uint64_t count)
{
    bmi_job_id_t *events = allocate(count * sizeof *events);
    struct bmi_job_status status;
    int none;
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < count; i++)
        bmi_check(bmi_sm_start(bench.jobs, &waiter, &events[i], NULL, NULL, NULL, NULL),
                  "bmi_sm_start");
    while (events[count - 1] == 0)
        bmi_check(bmi_job_testcontext(bench.jobs, 1, &none, &status, 0), "bmi_job_testcontext");
    for (uint64_t i = 0; i < count; i++)
        bmi_check(bmi_job_event_complete(bench.jobs, events[i], 0, 0), "bmi_job_event_complete");
    machines_fetch((int)count);
    double each = ns_each(start, count);
    free(events);
    return each;
}

/* ---- the run --------------------------------------------------------------------------------- */

static const struct {
    const char *panel, *label;
    double (*sample)(uint64_t count);
    uint64_t most; /* most operations of a sample; 0: as many as --messages */
} kinds[] = {
    {"a completion of a 24-byte message", "bare BMI", bare_sample, 0},
    {"a completion of a 24-byte message", "job", job_sample, 0},
    {"a state machine's step", "done at once", step_sample, 0},
    {"a state machine's step", "waits for a null job", deferred_sample, 0},
    {"a whole state machine", "all alive at once", alive_sample, ALIVE},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void notes_write(struct row *rows)
{
    struct bmi_job_statistics statistics;
    struct series *job = &rows[1].series[CONTENDER_BMI];
    struct series *alive = &rows[KINDS - 1].series[CONTENDER_BMI];
    format_text(job->note, sizeof job->note, "%.1f over bare",
                job->value - rows[0].series[CONTENDER_BMI].value);
    bmi_job_statistics(bench.jobs, &statistics);
    format_text(alive->note, sizeof alive->note, "%llu of them, %llu bytes each and %llu for jobs",
                (unsigned long long)rows[KINDS - 1].work.amount,
                (unsigned long long)(statistics.machine_bytes / rows[KINDS - 1].work.amount),
                (unsigned long long)(statistics.job_bytes / rows[KINDS - 1].work.amount));
}

static void bench_open(void)
{
    char url[BMI_MAX_ADDR_LEN];
    bmi_check(BMI_initialize("bmi_loop", "loop://bench:0", BMI_INIT_SERVER), "BMI_initialize");
    /* Every operation completes through a test call: the slower way, and the same for both. */
    bmi_check(BMI_set_info(0, BMI_SETTING, (void *)"immediate=off"), "BMI_set_info");
    bmi_check(BMI_get_info(0, BMI_GET_LISTEN_ADDR, url), "BMI_get_info");
    bmi_check(BMI_addr_lookup(&bench.self, url), "BMI_addr_lookup");
    bmi_check(BMI_open_context(&bench.bare), "BMI_open_context");
    bmi_check(bmi_job_context_open(0, &bench.jobs), "bmi_job_context_open");
}

static void job_run(const struct options *options, struct report *report)
{
    bench_open();
    for (int i = 0; i < KINDS; i++) {
        struct row *row = &report->rows[i];
        snprintf(row->panel, sizeof row->panel, "%s", kinds[i].panel);
        snprintf(row->label, sizeof row->label, "%s", kinds[i].label);
        row->work.size = SIZE;
        row->work.amount = kinds[i].most != 0 && kinds[i].most < options->messages
                               ? kinds[i].most
                               : options->messages;
        row_open(row, options, options->contenders);
    }
    for (int rep = -1; rep < options->reps; rep++)
        for (int i = 0; i < KINDS; i++) {
            struct series *series = &report->rows[i].series[CONTENDER_BMI];
            double value = kinds[i].sample(report->rows[i].work.amount);
            if (rep >= 0)
                series->samples[series->count++] = value;
        }
    for (int i = 0; i < KINDS; i++)
        row_finish(&report->rows[i], options);
    notes_write(report->rows);
    for (int i = 0; i < KINDS; i++) {
        report->count++;
        report_row_print(report, &report->rows[i]);
    }
    bmi_job_context_close(bench.jobs);
    BMI_close_context(bench.bare);
    BMI_finalize();
}

const struct pattern pattern_job = {
    .name = "job",
    .summary = "cost of a job over bare BMI, and of a state machine's step",
    .unit = "ns",
    .size_name = "bytes",
    .sizes = "24",
    .amount = "200000",
    .less_is_better = true,
    .one_pair = true,
    .takes = TAKES_MESSAGES,
    .labels = "for one of",
    .contenders = BIT(CONTENDER_BMI),
    .run_here = job_run,
};
