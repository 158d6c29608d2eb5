/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stress_test.c - threads that open contexts of flows and jobs, post, cancel, test, and close in
 * the midst, themselves or by a task, while workers run steps and machines: nothing is used that
 * was freed, and all ends. Prints its seed (BMI_TEST_SEED repeats it).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "bmi/base/clock.h"
#include "bmi/flow.h"
#include "bmi/progress/progress.h"
#include "job/job_case.h"

enum { THREADS = 4, ROUNDS = 60, SIZE = 40000, POSTS = 8, PLACES = 2 * POSTS, TAGS = 64 };

struct actor {
    pthread_t thread;
    unsigned number, random;
    bmi_flow_context_id_t flows;
    struct bmi_job_context *jobs;
    bmi_job_id_t ids[POSTS];
    int id_count;
    struct bmi_trove_place source, places[PLACES]; /* an object to read, others to write */
    char from[SIZE], to[PLACES][SIZE];
    void *buffers[1 + PLACES]; /* the same */
    int used;                  /* of these, in this round: each belongs to one post */
    bmi_size_t size;
    atomic_int ended; /* machines */
};

static struct bmi_trove_store *store;
static struct actor actors[THREADS];

static unsigned choose(struct actor *actor, unsigned count)
{
    actor->random = actor->random * 1664525u + 1013904223u;
    return (actor->random >> 16) % count;
}

/* ---- flows ---- */

static const struct bmi_flow_extent whole = {.size = SIZE, .count = 1};

static struct bmi_flow_endpoint memory_of(struct actor *actor, int which)
{
    return (struct bmi_flow_endpoint){.kind = BMI_FLOW_MEMORY,
                                      .u.memory = {.buffers = &actor->buffers[which],
                                                   .sizes = &actor->size,
                                                   .count = 1}};
}

static struct bmi_flow_endpoint network(struct actor *actor, unsigned tag)
{
    return (struct bmi_flow_endpoint){
        .kind = BMI_FLOW_NETWORK,
        .u.network = {.address = job_case.self,
                      .tag = (bmi_msg_tag_t)(1 + actor->number * TAGS + tag)}};
}

static struct bmi_flow_description something(struct actor *actor)
{
    struct bmi_flow_description what = {.extents = &whole, .extent_count = 1, .buffer_count = 3};
    struct bmi_flow_endpoint storage = {.kind = BMI_FLOW_STORAGE,
                                        .u.storage = {.place = actor->source}};
    int place = actor->used++;
    unsigned tag = choose(actor, 4);
    what.buffer_size = 1 + choose(actor, 2000);
    what.timeout_ms = choose(actor, 3) == 0 ? (int)choose(actor, 3) : 0;
    what.flags = BMI_FLOW_ZEROS;
    switch (choose(actor, 5)) {
    case 0:
        what.source = memory_of(actor, 0), what.destination = memory_of(actor, 1 + place);
        break;
    case 1:
        storage.u.storage.place = actor->places[place];
        what.source = memory_of(actor, 0), what.destination = storage;
        break;
    case 2:
        what.source = storage, what.destination = network(actor, tag);
        break;
    case 3:
        what.source = network(actor, tag), what.destination = memory_of(actor, 1 + place);
        break;
    default:
        what.source = memory_of(actor, 0), what.destination = network(actor, tag);
    }
    return what;
}

static void flows_post(struct actor *actor)
{
    bmi_flow_id_t ids[POSTS];
    bmi_error_code_t errors[POSTS];
    int count = 0;
    for (unsigned i = 0, posts = choose(actor, POSTS); i < posts; i++) {
        struct bmi_flow_description what = something(actor);
        int result = bmi_flow_post(&ids[0], &what, NULL, actor->flows);
        if (result == 0 && choose(actor, 3) == 0)
            bmi_flow_cancel(ids[0], actor->flows);
    }
    for (unsigned i = 0, tests = choose(actor, 3); i < tests; i++)
        bmi_flow_testcontext(POSTS, ids, &count, errors, NULL, NULL, (int)choose(actor, 2),
                             actor->flows);
}

/* ---- jobs ---- */

/* Has a flow, a timer, and sometimes a child; ends with any of their results. */
static int act(struct bmi_sm *machine, void *data)
{
    struct actor *actor = data;
    struct bmi_job_options options = {.machine = machine};
    struct bmi_job_context *context = bmi_sm_context(machine);
    static char byte;
    bmi_job_timer(context, bmi__monotonic_ns() + 20000, &options, NULL, NULL);
    bmi_job_recv(context, job_case.self, &byte, 0, BMI_EXT_ALLOC,
                 (bmi_msg_tag_t)(1000 + actor->number), &options, NULL, NULL);
    bmi_job_send(context, job_case.self, &byte, 0, BMI_EXT_ALLOC,
                 (bmi_msg_tag_t)(1000 + actor->number), &options, NULL, NULL);
    return BMI_SM_DEFERRED;
}

static int end(struct bmi_sm *machine, void *data)
{
    struct actor *actor = data;
    (void)machine;
    atomic_fetch_add(&actor->ended, 1);
    return BMI_SM_DONE;
}

static const struct bmi_sm_state states[] = {
    {"act", .action = act, .on = {BMI_SM_ELSE(1)}},
    {"end", .action = end, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table table = {"stress", states, 2, 0};

static bmi_job_id_t job_post(struct actor *actor)
{
    struct bmi_flow_description what;
    bmi_job_id_t id = 0;
    switch (choose(actor, 5)) {
    case 0:
        bmi_sm_start(actor->jobs, &table, actor, NULL, NULL, &id, NULL);
        break;
    case 1:
        bmi_job_timer(actor->jobs, bmi__monotonic_ns() + choose(actor, 100000), NULL, &id, NULL);
        break;
    case 2:
        bmi_job_event(actor->jobs, NULL, &id, NULL);
        break;
    case 3:
        bmi_job_trove_read_at(actor->jobs, &actor->source, actor->to[actor->used++], SIZE, 0,
                              BMI_TROVE_ZEROS, NULL, &id, NULL);
        break;
    default:
        what = something(actor);
        bmi_job_flow(actor->jobs, &what, NULL, &id, NULL);
    }
    return id;
}

static void jobs_post(struct actor *actor)
{
    struct bmi_job_status statuses[POSTS];
    int count = 0;
    for (unsigned i = 0, posts = choose(actor, POSTS); i < posts; i++) {
        bmi_job_id_t id = job_post(actor);
        if (id != 0 && choose(actor, 3) == 0)
            bmi_job_cancel(actor->jobs, id);
    }
    for (unsigned i = 0, tests = choose(actor, 3); i < tests; i++)
        bmi_job_testcontext(actor->jobs, POSTS, &count, statuses, (int)choose(actor, 2));
}

/* ---- rounds ---- */

static enum bmi_task_status close_all(struct bmi_task *task, void *argument)
{
    struct actor *actor = argument;
    (void)task;
    bmi_job_context_close(actor->jobs);
    CU_ASSERT_EQUAL(bmi_flow_context_close(actor->flows), 0);
    return BMI_TASK_DONE;
}

static void close_by_task(struct actor *actor)
{
    struct bmi_task task;
    unsigned options = choose(actor, 3) == 0 ? BMI_TASK_MAY_BLOCK : 0;
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&task, NULL,
                                           &(struct bmi_task_attributes){.function = close_all,
                                                                         .argument = actor,
                                                                         .options = options}),
                          0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_submit(&task), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, PATIENCE_MS), 0);
}

static void round_run(struct actor *actor)
{
    unsigned options = choose(actor, 2) == 0 ? BMI_JOB_BACKGROUND : 0;
    CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&actor->flows), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_job_context_open(options, &actor->jobs), 0);
    actor->used = 0;
    flows_post(actor);
    jobs_post(actor);
    if (choose(actor, 2) == 0)
        close_by_task(actor);
    else
        close_all(NULL, actor);
}

static void *actor_run(void *argument)
{
    struct actor *actor = argument;
    for (int i = 0; i < ROUNDS; i++)
        round_run(actor);
    return NULL;
}

static struct bmi_trove_place object_make(bmi_trove_context_id_t context)
{
    struct bmi_trove_place place = {.store = store, .collection = 1};
    bmi_trove_op_id_t op;
    CU_ASSERT_EQUAL_FATAL(bmi_trove_post_create(&op, &place, &place.object, 0, NULL, context), 1);
    return place;
}

static void actor_make(struct actor *actor, unsigned number, unsigned seed)
{
    bmi_trove_context_id_t context;
    *actor = (struct actor){.number = number, .random = seed + number, .size = SIZE};
    actor->buffers[0] = actor->from;
    CU_ASSERT_EQUAL_FATAL(bmi_trove_context_open(&context), 0);
    actor->source = object_make(context);
    for (int i = 0; i < PLACES; i++) {
        actor->buffers[1 + i] = actor->to[i];
        actor->places[i] = object_make(context);
    }
    CU_ASSERT_EQUAL(bmi_trove_context_close(context), 0);
}

static void all_run(enum bmi_task_threads threads)
{
    const char *text = getenv("BMI_TEST_SEED");
    unsigned seed = text != NULL ? (unsigned)strtoul(text, NULL, 0) : (unsigned)time(NULL);
    printf("BMI_TEST_SEED=%u ", seed);
    fflush(stdout);
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_start(NULL, threads), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_open(&store, "mem:", NULL, NULL, 0), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_trove_collection_create(store, 1), 0);
    for (unsigned i = 0; i < THREADS; i++)
        actor_make(&actors[i], i, seed);
    for (int i = 0; i < THREADS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&actors[i].thread, NULL, actor_run, &actors[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(actors[i].thread, NULL);
    CU_ASSERT_EQUAL(bmi_trove_close(store), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, threads), 0);
}

static void test_workers(void)
{
    all_run(BMI_TASK_WORKERS);
}

static void test_hooks(void)
{
    all_run(BMI_TASK_HOOKS_ONLY);
}

int main(void)
{
    static CU_TestInfo tests[] = {
        {"with workers", test_workers},
        {"with hooks", test_hooks},
        CU_TEST_INFO_NULL,
    };
    static CU_SuiteInfo suites[] = {
        {.pName = "stress",
         .pSetUpFunc = job_case_begin,
         .pTearDownFunc = job_case_end,
         .pTests = tests},
        CU_SUITE_INFO_NULL,
    };
    return unit_run_suites(suites);
}
