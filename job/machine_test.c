/* SPDX-License-Identifier: BSD-3-Clause
 *
 * machine_test.c - state machines: steps, choices, jumps, jobs, children, deadlines, cancels, and
 * thousands at once; in the foreground and in the background.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "job/job_case.h"

/* The record of each machine. */
struct life {
    char path[64]; /* a letter for each step */
    int count;
    struct bmi_job_status status[4];
    bmi_job_id_t event;
    uint64_t deadline_ns;
    struct life *children;
    char memory[32];
};

static void step(struct life *life, char letter)
{
    size_t length = strlen(life->path);
    if (length + 1 < sizeof life->path)
        life->path[length] = letter;
}

static struct bmi_job_status run(struct bmi_sm_table *table, void *data, uint64_t deadline_ns)
{
    struct bmi_job_options options = {.user_ptr = data, .deadline_ns = deadline_ns};
    bmi_job_id_t id;
    CU_ASSERT_EQUAL_FATAL(bmi_sm_start(job_case.context, table, data, NULL, &options, &id, NULL),
                          0);
    struct bmi_job_status status = job_case_fetch();
    CU_ASSERT_EQUAL(status.id, id);
    CU_ASSERT_EQUAL(status.kind, BMI_JOB_MACHINE);
    CU_ASSERT_PTR_EQUAL(status.user_ptr, data);
    return status;
}

static struct bmi_job_options of(struct bmi_sm *machine)
{
    return (struct bmi_job_options){.machine = machine};
}

/* ---- steps, choices, results ----------------------------------------------------------------- */

static int choose(struct bmi_sm *machine, void *data)
{
    struct life *life = data;
    (void)machine;
    step(life, 'c');
    return life->count++ % 3;
}

static int work(struct bmi_sm *machine, void *data)
{
    struct life *life = data;
    step(life, (char)('0' + bmi_sm_last(machine)));
    return BMI_SM_DONE;
}

static int fail(struct bmi_sm *machine, void *data)
{
    (void)machine;
    step(data, 'f');
    return -BMI_EROFS;
}

static int clean(struct bmi_sm *machine, void *data)
{
    step(data, bmi_sm_last(machine) < 0 ? 'x' : '?');
    return BMI_SM_DONE;
}

enum { CHOOSE, WORK, FAIL, CLEAN };
static const struct bmi_sm_state choice_states[] = {
    [CHOOSE] = {"choose", .action = choose, .choices = 3,
                .on = {BMI_SM_ON(2, FAIL), BMI_SM_ELSE(WORK)}},
    [WORK] = {"work", .action = work, .on = {BMI_SM_OK(CHOOSE), BMI_SM_FAIL(BMI_SM_END)}},
    [FAIL] = {"fail", .action = fail,
              .on = {BMI_SM_ON(-BMI_EROFS, CLEAN), BMI_SM_ELSE(BMI_SM_END)}},
    [CLEAN] = {"clean", .action = clean, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table choice = {"choice", choice_states, 4, 0};

static void test_choices(void)
{
    struct life life = {0};
    CU_ASSERT_EQUAL(run(&choice, &life, 0).error, 0);
    CU_ASSERT_STRING_EQUAL(life.path, "c0c1cfx");
}

static int undeclared(struct bmi_sm *machine, void *data)
{
    (void)machine;
    (void)data;
    return 5;
}

static void test_no_transition(void)
{
    static const struct bmi_sm_state states[] = {
        {"only", .action = undeclared, .on = {BMI_SM_OK(BMI_SM_END), BMI_SM_FAIL(BMI_SM_END)}}};
    static struct bmi_sm_table table = {"undeclared", states, 1, 0};
    CU_ASSERT_EQUAL(run(&table, NULL, 0).error, -BMI_EINVAL);
}

static void test_refused(void)
{
    static const struct bmi_sm_state states[] = {
        {"only", .action = work, .on = {BMI_SM_OK(BMI_SM_END)}}};
    static struct bmi_sm_table table = {"flawed", states, 1, 0};
    bmi_job_id_t id = 7;
    CU_ASSERT_EQUAL(bmi_sm_start(job_case.context, &table, NULL, NULL, NULL, &id, NULL),
                    -BMI_EINVAL);
    CU_ASSERT_EQUAL(id, 0);
    CU_ASSERT_EQUAL(bmi_sm_start(job_case.context, NULL, NULL, NULL, NULL, &id, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(bmi_sm_start(NULL, &choice, NULL, NULL, NULL, &id, NULL), -BMI_EINVAL);
    job_case_none();
}

static int result_set(struct bmi_sm *machine, void *data)
{
    (void)data;
    bmi_sm_set_result(machine, 42);
    return -BMI_EIO;
}

static void test_result(void)
{
    static const struct bmi_sm_state states[] = {
        {"only", .action = result_set, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
    static struct bmi_sm_table table = {"result", states, 1, 0};
    CU_ASSERT_EQUAL(run(&table, NULL, 0).error, 42);
}

/* ---- jumps ----------------------------------------------------------------------------------- */

static void *inner_data(struct bmi_sm *machine, void *data)
{
    struct life *life = data;
    (void)machine;
    return life->children;
}

static const struct bmi_sm_state outer_states[] = {
    {"into", .jump = &choice, .jump_data = inner_data,
     .on = {BMI_SM_OK(1), BMI_SM_FAIL(BMI_SM_END)}},
    {"again, on its own data", .jump = &choice, .on = {BMI_SM_OK(2), BMI_SM_FAIL(BMI_SM_END)}},
    {"fail", .action = fail, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table outer = {"outer", outer_states, 3, 0};
static const struct bmi_sm_state outmost_states[] = {
    {"in", .jump = &outer, .on = {BMI_SM_OK(BMI_SM_END), BMI_SM_FAIL(1)}},
    {"clean", .action = clean, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table outmost = {"outmost", outmost_states, 2, 0};

static void test_jumps(void)
{
    struct life inner = {0}, life = {.children = &inner}, without = {0};
    struct bmi_job_statistics before, after;
    CU_ASSERT_EQUAL(run(&outer, &life, 0).error, -BMI_EROFS);
    CU_ASSERT_STRING_EQUAL(inner.path, "c0c1cfx");
    CU_ASSERT_STRING_EQUAL(life.path, "c0c1cfxf");
    memset(&inner, 0, sizeof inner);
    life = (struct life){.children = &inner};
    CU_ASSERT_EQUAL(run(&outmost, &life, 0).error, 0);
    CU_ASSERT_STRING_EQUAL(life.path, "c0c1cfxfx");
    CU_ASSERT_EQUAL(bmi_job_statistics(job_case.context, &before), 0);
    CU_ASSERT_EQUAL(run(&outmost, &without, 0).error, 0);
    CU_ASSERT_EQUAL(bmi_job_statistics(job_case.context, &after), 0);
    CU_ASSERT_EQUAL(after.machine_bytes, before.machine_bytes);
    CU_ASSERT_EQUAL(run(&outer, &without, 0).error, -BMI_ENOMEM);
}

/* ---- waiting for jobs ------------------------------------------------------------------------ */

static int exchange(struct bmi_sm *machine, void *data)
{
    struct life *life = data;
    struct bmi_job_context *context = bmi_sm_context(machine);
    struct bmi_job_options options = of(machine);
    step(life, 'e');
    int posted = bmi_job_recv(context, job_case.self, life->memory, 32, BMI_EXT_ALLOC, 5, &options,
                              NULL, &life->status[0]);
    if (posted >= 0)
        posted = bmi_job_send(context, job_case.self, "hello", 5, BMI_EXT_ALLOC, 5, &options, NULL,
                              &life->status[1]);
    if (posted >= 0)
        posted = bmi_job_timer(context, bmi_job_deadline(2), &options, NULL, &life->status[2]);
    return posted < 0 ? posted : BMI_SM_DEFERRED;
}

static int look(struct bmi_sm *machine, void *data)
{
    struct life *life = data;
    (void)machine;
    step(life, 'l');
    return life->status[0].actual == 5 && memcmp(life->memory, "hello", 5) == 0 ? 0 : -BMI_EIO;
}

static const struct bmi_sm_state exchange_states[] = {
    {"exchange", .action = exchange, .on = {BMI_SM_OK(1), BMI_SM_FAIL(BMI_SM_END)}},
    {"look", .action = look, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table exchanger = {"exchanger", exchange_states, 2, 0};

static void test_jobs(void)
{
    struct life life = {0};
    CU_ASSERT_EQUAL(run(&exchanger, &life, 0).error, 0);
    CU_ASSERT_STRING_EQUAL(life.path, "el");
    CU_ASSERT_EQUAL(life.status[2].kind, BMI_JOB_TIMER);
    CU_ASSERT_EQUAL(life.status[1].error, 0);
}

static int null_failing(struct bmi_sm *machine, void *data)
{
    struct life *life = data;
    struct bmi_job_options options = of(machine);
    bmi_job_null(bmi_sm_context(machine), 0, &options, NULL, &life->status[0]);
    bmi_job_null(bmi_sm_context(machine), -BMI_ENOSPC, &options, NULL, &life->status[1]);
    bmi_job_null(bmi_sm_context(machine), -BMI_EIO, &options, NULL, NULL);
    return BMI_SM_DEFERRED;
}

/* All had ended before the action returned, and the first failure is the result. */
static void test_failure(void)
{
    static const struct bmi_sm_state states[] = {
        {"fail", .action = null_failing, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
    static struct bmi_sm_table table = {"failing", states, 1, 0};
    struct life life = {0};
    CU_ASSERT_EQUAL(run(&table, &life, 0).error, -BMI_ENOSPC);
    CU_ASSERT_EQUAL(life.status[1].error, -BMI_ENOSPC);
}

/* A machine that ends while its job is pending stays alive until that has ended. */
static int leave_behind(struct bmi_sm *machine, void *data)
{
    struct life *life = data;
    struct bmi_job_options options = of(machine);
    return bmi_job_timer(bmi_sm_context(machine), bmi_job_deadline(3), &options, NULL,
                         &life->status[0]) < 0;
}

static void test_left_behind(void)
{
    static const struct bmi_sm_state states[] = {
        {"leave", .action = leave_behind, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
    static struct bmi_sm_table table = {"leaving", states, 1, 0};
    struct life life = {0};
    CU_ASSERT_EQUAL(run(&table, &life, 0).error, 0);
    CU_ASSERT_EQUAL(life.status[0].kind, BMI_JOB_TIMER);
}

/* ---- cancel and deadlines -------------------------------------------------------------------- */

static int wait_for_ever(struct bmi_sm *machine, void *data)
{
    struct life *life = data;
    struct bmi_job_options options = of(machine);
    step(life, 'w');
    life->deadline_ns = bmi_sm_deadline(machine);
    return bmi_sm_posted(bmi_job_recv(bmi_sm_context(machine), job_case.self, life->memory, 32,
                                      BMI_EXT_ALLOC, 77, &options, NULL, &life->status[0]));
}

static int tidy(struct bmi_sm *machine, void *data)
{
    struct life *life = data;
    struct bmi_job_options options = of(machine);
    step(life, bmi_sm_cancelled(machine) ? 'C' : 't');
    bmi_sm_set_result(machine, bmi_sm_last(machine));
    bmi_sm_set_deadline(machine, 0);
    return bmi_sm_posted(bmi_job_timer(bmi_sm_context(machine), bmi_job_deadline(1), &options, NULL,
                                       &life->status[1]));
}

static const struct bmi_sm_state waiting_states[] = {
    {"wait", .action = wait_for_ever, .on = {BMI_SM_ELSE(1)}},
    {"tidy", .action = tidy, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table waiting = {"waiting", waiting_states, 2, 0};

static void test_cancel(void)
{
    struct life life = {0};
    bmi_job_id_t id;
    CU_ASSERT_EQUAL_FATAL(bmi_sm_start(job_case.context, &waiting, &life, NULL, NULL, &id, NULL),
                          0);
    job_case_none(); /* it may have begun to wait, or not */
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    struct bmi_job_status status = job_case_fetch();
    CU_ASSERT_EQUAL(status.error, -BMI_ECANCEL);
    CU_ASSERT_STRING_EQUAL(life.path, "wC");
    CU_ASSERT_EQUAL(life.status[1].error, 0); /* its clean-up was not disturbed */
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), -BMI_EINVAL);
}

static void test_cancel_at_once(void)
{
    struct life life = {0};
    bmi_job_id_t id;
    bmi_sm_start(job_case.context, &waiting, &life, NULL, NULL, &id, NULL);
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    CU_ASSERT_EQUAL(job_case_fetch().error, -BMI_ECANCEL);
    CU_ASSERT_STRING_EQUAL(life.path, "wC");
}

static void test_deadline(void)
{
    struct life life = {0};
    uint64_t deadline_ns = bmi_job_deadline(200);
    struct bmi_job_status status = run(&waiting, &life, deadline_ns);
    if (status.error == -BMI_ETIMEDOUT && strcmp(life.path, "wt") == 0) {
        CU_ASSERT_EQUAL(life.deadline_ns, deadline_ns);
        CU_ASSERT_EQUAL(life.status[0].error, -BMI_ETIMEDOUT);
    } else { /* a machine so busy that the deadline passed before the first step */
        CU_ASSERT_TRUE(bmi_job_deadline(0) > deadline_ns);
    }
    CU_ASSERT_TRUE(bmi_job_deadline(0) >= deadline_ns);
}

/* ---- children -------------------------------------------------------------------------------- */

enum { CHILDREN = 20 };
#define BMI_EXDEV BMI_EBADR /* some error that no other function returns */

static int child_work(struct bmi_sm *machine, void *data)
{
    struct life *life = data;
    struct bmi_job_options options = of(machine);
    return bmi_sm_posted(bmi_job_timer(bmi_sm_context(machine), bmi_job_deadline(life->count % 3),
                                       &options, NULL, NULL));
}

static int child_end(struct bmi_sm *machine, void *data)
{
    struct life *life = data;
    (void)machine;
    step(life, 'd');
    return life->count == 7 ? -BMI_EXDEV : 0;
}

static const struct bmi_sm_state child_states[] = {
    {"work", .action = child_work, .on = {BMI_SM_OK(1), BMI_SM_FAIL(BMI_SM_END)}},
    {"end", .action = child_end, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table child = {"child", child_states, 2, 0};

static int children_start(struct bmi_sm *machine, void *data)
{
    struct life *life = data;
    struct bmi_job_options options = of(machine);
    for (int i = 0; i < CHILDREN; i++) {
        life->children[i].count = life->count == 100 && i == 5 ? 7 : i + life->count;
        bool waits = life->count == 100 && i != 5;
        int result =
            bmi_sm_start(bmi_sm_context(machine), waits ? &waiting : &child, &life->children[i],
                         NULL, &options, NULL, &life->children[i].status[2]);
        if (result < 0)
            return result;
    }
    return BMI_SM_DEFERRED;
}

static const struct bmi_sm_state all_states[] = {
    {"all", .action = children_start, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table all = {"all", all_states, 1, 0};
static const struct bmi_sm_state first_states[] = {{"first failure", .action = children_start,
                                                    .wait = BMI_SM_FIRST_FAILURE,
                                                    .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table first = {"first", first_states, 1, 0};

static void test_children(void)
{
    struct life lives[CHILDREN] = {0}, life = {.children = lives, .count = 8};
    CU_ASSERT_EQUAL(run(&all, &life, 0).error, 0);
    memset(lives, 0, sizeof lives);
    life.count = 0;
    CU_ASSERT_EQUAL(run(&all, &life, 0).error, -BMI_EXDEV); /* number 7's, and all had to end */
    for (int i = 0; i < CHILDREN; i++) {
        CU_ASSERT_STRING_EQUAL(lives[i].path, "d");
        CU_ASSERT_EQUAL(lives[i].status[2].error, i == 7 ? -BMI_EXDEV : 0);
    }
}

/* All children but one wait for ever; that one fails, and the others are cancelled and clean up. */
static void test_first_failure(void)
{
    struct life lives[CHILDREN] = {0}, life = {.children = lives, .count = 100};
    CU_ASSERT_EQUAL(run(&first, &life, 0).error, -BMI_EXDEV);
    for (int i = 0; i < CHILDREN; i++) {
        CU_ASSERT_STRING_EQUAL(lives[i].path, i == 5 ? "d" : "wC");
        CU_ASSERT_EQUAL(lives[i].status[2].error, i == 5 ? -BMI_EXDEV : -BMI_ECANCEL);
    }
}

/* A parent's cancel and deadline reach its children. */
static void test_children_cancelled(void)
{
    struct life lives[CHILDREN] = {0}, life = {.children = lives, .count = 100};
    bmi_job_id_t id;
    bmi_sm_start(job_case.context, &all, &life, NULL, NULL, &id, NULL);
    job_case_none();
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    struct bmi_job_status status = job_case_fetch();
    CU_ASSERT_TRUE(status.error == -BMI_ECANCEL || status.error == -BMI_EXDEV);
    CU_ASSERT_STRING_EQUAL(lives[0].path, "wC");
    memset(lives, 0, sizeof lives);
    CU_ASSERT_TRUE(run(&all, &life, bmi_job_deadline(100)).error < 0);
    CU_ASSERT_EQUAL(lives[19].status[2].error < 0, true);
}

/* ---- many ------------------------------------------------------------------------------------ */

enum { MANY = 5000, THREADS = 4 };

static int hop(struct bmi_sm *machine, void *data)
{
    atomic_int *hops = data;
    struct bmi_job_options options = of(machine);
    if (atomic_fetch_add(hops, 1) >= MANY * 4)
        return 1;
    return bmi_sm_posted(bmi_job_null(bmi_sm_context(machine), 0, &options, NULL, NULL));
}

static const struct bmi_sm_state hop_states[] = {
    {"hop", .action = hop, .choices = 2,
     .on = {BMI_SM_OK(0), BMI_SM_ON(1, BMI_SM_END), BMI_SM_FAIL(BMI_SM_END)}}};
static struct bmi_sm_table hopper = {"hopper", hop_states, 1, 0};

static atomic_int fetched;

static void *fetch_thread(void *argument)
{
    struct bmi_job_status status[16];
    int count = 0;
    while (atomic_load(&fetched) < MANY) {
        if (bmi_job_testcontext(argument, 16, &count, status, 50) < 0)
            return NULL;
        for (int i = 0; i < count; i++)
            if (status[i].error != 1)
                return NULL;
        atomic_fetch_add(&fetched, count);
    }
    return argument;
}

static void test_many(void)
{
    pthread_t threads[THREADS];
    struct bmi_job_statistics statistics;
    atomic_int hops = 0;
    atomic_store(&fetched, 0);
    for (int i = 0; i < MANY; i++)
        CU_ASSERT_EQUAL_FATAL(bmi_sm_start(job_case.context, &hopper, &hops, NULL, NULL, NULL,
                                           NULL),
                              0);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, fetch_thread, job_case.context);
    for (int i = 0; i < THREADS; i++) {
        void *good;
        pthread_join(threads[i], &good);
        CU_ASSERT_PTR_NOT_NULL(good);
    }
    CU_ASSERT_EQUAL(atomic_load(&fetched), MANY);
    CU_ASSERT_EQUAL(atomic_load(&hops), MANY * 5);
    bmi_job_statistics(job_case.context, &statistics);
    CU_ASSERT_EQUAL(statistics.machines, MANY);
    CU_ASSERT_EQUAL(statistics.machines_alive, 0);
    CU_ASSERT_EQUAL(statistics.pending, 0);
    CU_ASSERT_EQUAL(statistics.steps, MANY * 5);
}

/* A machine that never waits does not delay a timer. */
static int spin(struct bmi_sm *machine, void *data)
{
    (void)machine;
    return atomic_load((atomic_int *)data);
}

static void test_fair(void)
{
    static const struct bmi_sm_state states[] = {
        {"spin", .action = spin, .choices = 2, .on = {BMI_SM_OK(0), BMI_SM_ELSE(BMI_SM_END)}}};
    static struct bmi_sm_table table = {"spinner", states, 1, 0};
    atomic_int stop = 0;
    bmi_job_id_t timer;
    bmi_sm_start(job_case.context, &table, &stop, NULL, NULL, NULL, NULL);
    bmi_job_timer(job_case.context, bmi_job_deadline(1), NULL, &timer, NULL);
    CU_ASSERT_EQUAL(job_case_fetch().id, timer);
    atomic_store(&stop, 1);
    CU_ASSERT_EQUAL(job_case_fetch().error, 1);
}

/* ---- trace ----------------------------------------------------------------------------------- */

struct traced {
    char events[64];
    uint64_t last_ns;
    bool forward;
};

static void trace_note(void *argument, const struct bmi_sm_trace *trace)
{
    struct traced *traced = argument;
    size_t length = strlen(traced->events);
    traced->events[length] = "sSrjE"[trace->event];
    traced->forward = traced->forward && trace->time_ns >= traced->last_ns;
    traced->last_ns = trace->time_ns;
}

/* If all jobs of a step have ended before it could wait there is no RESUMED. */
static bool exchange_traced(const struct traced *traced)
{
    return strcmp(traced->events, "sSrSE") == 0 || strcmp(traced->events, "sSSE") == 0;
}

static void test_trace(void)
{
    struct traced traced = {.forward = true};
    struct life life = {0};
    char text[4096] = "";
    FILE *file = fmemopen(text, sizeof text, "w");
    bmi_sm_trace_to(job_case.context, trace_note, &traced);
    run(&exchanger, &life, 0);
    CU_ASSERT_TRUE(exchange_traced(&traced));
    CU_ASSERT_TRUE(traced.forward);
    bmi_sm_trace_to(job_case.context, bmi_sm_trace_print, file);
    memset(&life, 0, sizeof life);
    run(&exchanger, &life, 0);
    bmi_sm_trace_to(job_case.context, NULL, NULL);
    run(&exchanger, &life, 0);
    fclose(file);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "exchanger: exchange step waits"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "exchanger ended 0"));
    CU_ASSERT_TRUE(exchange_traced(&traced));
}

/* Machines that wait when the context is closed are cancelled, clean up, and end. */
static struct life closed[100];

static void test_close(void)
{
    memset(closed, 0, sizeof closed);
    for (int i = 0; i < 100; i++)
        bmi_sm_start(job_case.context, &waiting, &closed[i], NULL, NULL, NULL, NULL);
    if (!job_case.background)
        job_case_none();
}

static void test_closed(void)
{
    for (int i = 0; i < 100; i++)
        CU_ASSERT_EQUAL(closed[i].path[strlen(closed[i].path) - 1], 'C');
}

int main(void)
{
    static CU_TestInfo tests[] = {
        {"steps and choices", test_choices},
        {"a result without a transition", test_no_transition},
        {"machines that are refused", test_refused},
        {"a result of its own", test_result},
        {"jumps", test_jumps},
        {"waiting for jobs", test_jobs},
        {"the first failure is the result", test_failure},
        {"jobs left behind", test_left_behind},
        {"cancel", test_cancel},
        {"cancel at once", test_cancel_at_once},
        {"deadline", test_deadline},
        {"children, all", test_children},
        {"children, first failure", test_first_failure},
        {"children of a cancelled one", test_children_cancelled},
        {"thousands, on several threads", test_many},
        {"one that never waits", test_fair},
        {"trace", test_trace},
        {"close while they wait", test_close},
        {"what became of them", test_closed},
        CU_TEST_INFO_NULL,
    };
    return job_case_run("machines", "machines in the background", tests);
}
