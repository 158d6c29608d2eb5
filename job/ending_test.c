/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ending_test.c - how jobs and machines end that are cancelled late, early, twice, or by the
 * thousand; jumps that fail; deadlines that never come. In the foreground and in the background.
 */
#include <stdatomic.h>
#include <time.h>

#include "bmi/base/clock.h"
#include "bmi/progress/progress.h"
#include "job/internal.h"
#include "job/job_case.h"
#include "task/internal.h"
#include "tests/unit/deep.h"

static struct bmi_job_options of(struct bmi_sm *machine)
{
    return (struct bmi_job_options){.machine = machine};
}

static bmi_job_id_t start(struct bmi_sm_table *table, void *data)
{
    bmi_job_id_t id = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_sm_start(job_case.context, table, data, NULL, NULL, &id, NULL), 0);
    return id;
}

/* Runs the foreground's tasks until *what changes from 0; `id` is pending meanwhile. */
static void run_until(_Atomic bmi_job_id_t *what, bmi_job_id_t id)
{
    time_t end = time(NULL) + PATIENCE_MS / 1000;
    while (atomic_load(what) == 0 && time(NULL) < end) {
        struct bmi_job_status status;
        int count;
        CU_ASSERT_EQUAL_FATAL(bmi_job_test(job_case.context, id, &count, &status, 1), 0);
    }
    CU_ASSERT_NOT_EQUAL_FATAL(atomic_load(what), 0);
}

/* ---- after the last state -------------------------------------------------------------------- */

static int leave(struct bmi_sm *machine, void *data)
{
    static char memory[32];
    struct bmi_job_options options = of(machine);
    int posted = bmi_job_recv(bmi_sm_context(machine), job_case.self, memory, 32, BMI_EXT_ALLOC, 77,
                              &options, NULL, data);
    return posted < 0 ? posted : BMI_SM_DONE;
}

static const struct bmi_sm_state leaving_states[] = {
    {"leave", .action = leave, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table leaving = {"leaving", leaving_states, 1, 0};

/* A job that it has left pending without end ends, too. */
static void leaving_is_cancelled(bool at_once)
{
    static struct bmi_job_status received;
    memset(&received, 0, sizeof received);
    bmi_job_id_t id = start(&leaving, &received);
    for (int i = 0; i < 10 && !at_once; i++)
        job_case_none();
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    struct bmi_job_status status = job_case_fetch();
    CU_ASSERT_EQUAL(status.id, id);
    CU_ASSERT_EQUAL(status.error, 0); /* the result of its last state */
    CU_ASSERT_EQUAL(received.error, -BMI_ECANCEL);
}

static void test_after_the_last_state(void)
{
    leaving_is_cancelled(false);
}

static void test_before_the_last_state(void)
{
    leaving_is_cancelled(true);
}

static int fail(struct bmi_sm *machine, void *data)
{
    (void)machine;
    (void)data;
    return -BMI_EROFS;
}

static const struct bmi_sm_state failing_states[] = {
    {"fail", .action = fail, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table failing = {"failing", failing_states, 1, 0};

static int leaving_and_failing(struct bmi_sm *machine, void *data)
{
    struct bmi_job_options options = of(machine);
    int result = bmi_sm_start(bmi_sm_context(machine), &leaving, data, NULL, &options, NULL, NULL);
    if (result == 0)
        result = bmi_sm_start(bmi_sm_context(machine), &failing, NULL, NULL, &options, NULL, NULL);
    return result < 0 ? result : BMI_SM_DEFERRED;
}

static void test_leaving_child(void)
{
    static const struct bmi_sm_state states[] = {{"start", .action = leaving_and_failing,
                                                  .wait = BMI_SM_FIRST_FAILURE,
                                                  .on = {BMI_SM_ELSE(BMI_SM_END)}}};
    static struct bmi_sm_table table = {"parent of a leaving one", states, 1, 0};
    static struct bmi_job_status received;
    memset(&received, 0, sizeof received);
    bmi_job_id_t id = start(&table, &received);
    struct bmi_job_status status = job_case_fetch();
    CU_ASSERT_EQUAL(status.id, id);
    CU_ASSERT_EQUAL(status.error, -BMI_EROFS);
    CU_ASSERT_EQUAL(received.error, -BMI_ECANCEL);
}

/* ---- children that tidy up ------------------------------------------------------------------- */

/* Waits for one event, and in its second state, after any result of the first, for another. */
struct child {
    _Atomic bmi_job_id_t id, first, second;
    struct bmi_job_status ended, second_ended;
};

static int wait_event(struct bmi_sm *machine, _Atomic bmi_job_id_t *event,
                      struct bmi_job_status *status)
{
    struct bmi_job_options options = of(machine);
    bmi_job_id_t id;
    int posted = bmi_job_event(bmi_sm_context(machine), &options, &id, status);
    atomic_store(event, id);
    return bmi_sm_posted(posted);
}

static int child_wait(struct bmi_sm *machine, void *data)
{
    struct child *child = data;
    return wait_event(machine, &child->first, NULL);
}

static int child_tidy(struct bmi_sm *machine, void *data)
{
    struct child *child = data;
    bmi_sm_set_result(machine, bmi_sm_last(machine));
    return wait_event(machine, &child->second, &child->second_ended);
}

static const struct bmi_sm_state child_states[] = {
    {"wait", .action = child_wait, .on = {BMI_SM_ELSE(1)}},
    {"tidy", .action = child_tidy, .on = {BMI_SM_ELSE(BMI_SM_END)}},
};
static struct bmi_sm_table tidying = {"tidying", child_states, 2, 0};

static int children_start(struct bmi_sm *machine, void *data)
{
    struct child *children = data;
    struct bmi_job_options options = of(machine);
    for (int i = 0; i < 2; i++) {
        bmi_job_id_t id;
        int result = bmi_sm_start(bmi_sm_context(machine), &tidying, &children[i], NULL, &options,
                                  &id, &children[i].ended);
        if (result < 0)
            return result;
        atomic_store(&children[i].id, id);
    }
    return BMI_SM_DEFERRED;
}

static const struct bmi_sm_state parent_states[] = {{"children", .action = children_start,
                                                     .wait = BMI_SM_FIRST_FAILURE,
                                                     .on = {BMI_SM_ELSE(BMI_SM_END)}}};
static struct bmi_sm_table parent = {"parent", parent_states, 1, 0};

static void complete(_Atomic bmi_job_id_t *event, bmi_error_code_t error)
{
    CU_ASSERT_EQUAL(bmi_job_event_complete(job_case.context, atomic_load(event), error, 0), 0);
}

static void wait_alive(bmi_job_id_t id, uint64_t machines)
{
    time_t end = time(NULL) + PATIENCE_MS / 1000;
    struct bmi_job_statistics statistics = {.machines_alive = machines + 1};
    while (statistics.machines_alive > machines && time(NULL) < end) {
        struct bmi_job_status status;
        int count;
        CU_ASSERT_EQUAL_FATAL(bmi_job_test(job_case.context, id, &count, &status, 1), 0);
        bmi_job_statistics(job_case.context, &statistics);
    }
    CU_ASSERT_EQUAL_FATAL(statistics.machines_alive, machines);
}

/* A parent is cancelled, both children clean up, and one has done so: its ECANCEL must not cancel
 * the other once more. */
static bmi_job_id_t one_has_tidied(struct child children[2])
{
    bmi_job_id_t id = start(&parent, children);
    run_until(&children[0].first, id);
    run_until(&children[1].first, id);
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    run_until(&children[0].second, id);
    run_until(&children[1].second, id);
    complete(&children[1].second, 0);
    wait_alive(id, 2);
    return id;
}

static void test_tidying_child(void)
{
    static struct child children[2];
    memset(children, 0, sizeof children);
    bmi_job_id_t id = one_has_tidied(children);
    complete(&children[0].second, 0); /* it is pending */
    struct bmi_job_status status = job_case_fetch();
    CU_ASSERT_EQUAL(status.id, id);
    CU_ASSERT_EQUAL(status.error, -BMI_ECANCEL);
    CU_ASSERT_EQUAL(children[0].second_ended.error, 0);
    CU_ASSERT_EQUAL(children[0].ended.error, -BMI_ECANCEL);
    CU_ASSERT_EQUAL(children[1].ended.error, -BMI_ECANCEL);
}

/* A second cancel is delivered as well. */
static void test_cancelled_twice(void)
{
    static struct child children[2];
    memset(children, 0, sizeof children);
    bmi_job_id_t id = one_has_tidied(children);
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    CU_ASSERT_EQUAL(job_case_fetch().error, -BMI_ECANCEL);
    CU_ASSERT_EQUAL(children[0].second_ended.error, -BMI_ECANCEL);
}

/* A child that was cancelled by itself, and continues, is cancelled again when its
 * sibling fails. */
static void test_child_goes_on(void)
{
    static struct child children[2];
    memset(children, 0, sizeof children);
    bmi_job_id_t id = start(&parent, children);
    run_until(&children[0].first, id);
    run_until(&children[1].first, id);
    run_until(&children[0].id, id);
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, atomic_load(&children[0].id)), 0);
    run_until(&children[0].second, id);
    complete(&children[1].first, -BMI_EROFS);
    run_until(&children[1].second, id);
    complete(&children[1].second, 0);
    CU_ASSERT_EQUAL(job_case_fetch().error, -BMI_EROFS);
    CU_ASSERT_EQUAL(children[0].second_ended.error, -BMI_ECANCEL);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

enum { MANY = 1000 };

static int receive_many(struct bmi_sm *machine, void *data)
{
    static char memory[32];
    struct bmi_job_options options = of(machine);
    _Atomic bmi_job_id_t *posted = data;
    for (int i = 0; i < MANY; i++) {
        int result = bmi_job_recv(bmi_sm_context(machine), job_case.self, memory, 32, BMI_EXT_ALLOC,
                                  1000 + i, &options, NULL, NULL);
        if (result < 0)
            return result;
    }
    atomic_store(posted, 1);
    return BMI_SM_DEFERRED;
}

/* More completions at once than one batch. */
static void test_many(void)
{
    static const struct bmi_sm_state states[] = {
        {"receive", .action = receive_many, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
    static struct bmi_sm_table table = {"many", states, 1, 0};
    static _Atomic bmi_job_id_t posted;
    atomic_store(&posted, 0);
    bmi_job_id_t id = start(&table, &posted);
    run_until(&posted, id);
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    CU_ASSERT_EQUAL(job_case_fetch().error, -BMI_ECANCEL);
}

/* A job whose post has not returned when all are cancelled ends when the post returns. */
static void test_posting(void)
{
    struct bmi__job_ends ends = {0};
    bmi_job_id_t id;
    int result;
    struct bmi__job *job = bmi__job_new(job_case.context, BMI_JOB_EVENT, NULL, &id, NULL, &result);
    CU_ASSERT_PTR_NOT_NULL_FATAL(job);
    bmi_lock_take(&job_case.context->lock);
    bmi__job_cancel_all_locked(job_case.context, &ends);
    bmi_lock_give(&job_case.context->lock);
    bmi__job_after(job_case.context, &ends);
    job_case_none();
    CU_ASSERT_EQUAL(bmi__job_posted(job_case.context, job, 0, &id, NULL), 0);
    struct bmi_job_status status = job_case_fetch();
    CU_ASSERT_EQUAL(status.id, id);
    CU_ASSERT_EQUAL(status.error, -BMI_ECANCEL);
}

static void test_timer_with_deadline(void)
{
    struct bmi_job_options options = {.deadline_ns = bmi_job_deadline(PATIENCE_MS)};
    bmi_job_id_t id;
    CU_ASSERT_EQUAL_FATAL(bmi_job_timer(job_case.context, bmi_job_deadline(2 * PATIENCE_MS),
                                        &options, &id, NULL),
                          0);
    CU_ASSERT_EQUAL(bmi_job_cancel(job_case.context, id), 0);
    CU_ASSERT_EQUAL(job_case_fetch().error, -BMI_ECANCEL);
    options.deadline_ns = bmi_job_deadline(50);
    int posted =
        bmi_job_timer(job_case.context, bmi_job_deadline(2 * PATIENCE_MS), &options, &id, NULL);
    if (posted == 0)
        posted = job_case_fetch().error;
    CU_ASSERT_EQUAL(posted, -BMI_ETIMEDOUT);
}

static void test_deadline_for_ever(void)
{
    struct bmi_job_options options = {.deadline_ns = bmi_job_deadline(INT64_MAX)};
    bmi_job_id_t id;
    CU_ASSERT_EQUAL(options.deadline_ns, UINT64_MAX);
    CU_ASSERT_TRUE(bmi_job_deadline(INT64_MAX / 1000000) > bmi_job_deadline(PATIENCE_MS));
    CU_ASSERT_EQUAL(bmi_job_timer(job_case.context, bmi_job_deadline(1), &options, &id, NULL), 0);
    CU_ASSERT_EQUAL(job_case_fetch().error, 0);
    CU_ASSERT_EQUAL_FATAL(bmi_job_event(job_case.context, &options, &id, NULL), 0);
    job_case_none();
    CU_ASSERT_EQUAL(bmi_job_event_complete(job_case.context, id, 0, 0), 0);
    CU_ASSERT_EQUAL(job_case_fetch().error, 0);
}

/* ---- a jump that fails again and again ------------------------------------------------------- */

struct jumping {
    atomic_bool released;
    bool impatient;
    unsigned tries;
    time_t end;
};

static void *jump_data(struct bmi_sm *machine, void *data)
{
    struct jumping *jumping = data;
    (void)machine;
    if (++jumping->tries % 1000000 == 0 && time(NULL) >= jumping->end)
        jumping->impatient = true;
    return jumping->impatient || atomic_load(&jumping->released) ? jumping : NULL;
}

static int jumped(struct bmi_sm *machine, void *data)
{
    (void)machine;
    (void)data;
    return BMI_SM_DONE;
}

static int release(struct bmi_sm *machine, void *data)
{
    struct jumping *jumping = data;
    (void)machine;
    atomic_store(&jumping->released, true);
    return BMI_SM_DONE;
}

/* Other machines get their turn; a jump that failed does not count as a step. */
static void test_failing_jump(void)
{
    static const struct bmi_sm_state inner_states[] = {
        {"in", .action = jumped, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
    static struct bmi_sm_table inner = {"inner", inner_states, 1, 0};
    static const struct bmi_sm_state states[] = {{"jump", .jump = &inner, .jump_data = jump_data,
                                                  .on = {BMI_SM_OK(BMI_SM_END), BMI_SM_FAIL(0)}}};
    static struct bmi_sm_table jumper = {"jumper", states, 1, 0};
    static const struct bmi_sm_state other_states[] = {
        {"release", .action = release, .on = {BMI_SM_ELSE(BMI_SM_END)}}};
    static struct bmi_sm_table other = {"other", other_states, 1, 0};
    static struct jumping jumping;
    memset(&jumping, 0, sizeof jumping);
    jumping.end = time(NULL) + PATIENCE_MS / 1000;
    struct bmi_job_statistics statistics;
    start(&jumper, &jumping);
    start(&other, &jumping);
    CU_ASSERT_EQUAL(job_case_fetch().error, 0);
    CU_ASSERT_EQUAL(job_case_fetch().error, 0);
    CU_ASSERT_FALSE(jumping.impatient);
    bmi_job_statistics(job_case.context, &statistics);
    CU_ASSERT_EQUAL(statistics.steps, 2);
}

/* ---- contexts that are closed by tasks ------------------------------------------------------- */

static struct bmi_job_context *other_open(void)
{
    struct bmi_job_context *other = NULL;
    CU_ASSERT_EQUAL_FATAL(bmi_job_context_open(job_case.background ? BMI_JOB_BACKGROUND : 0,
                                               &other),
                          0);
    return other;
}

/* The machine has not run yet, if only the thread that closes the context could run it. */
static void start_and_close(void *argument)
{
    struct bmi_job_status *received = argument;
    struct bmi_job_context *other = other_open();
    bmi_job_id_t event;
    CU_ASSERT_EQUAL(bmi_sm_start(other, &leaving, received, NULL, NULL, NULL, NULL), 0);
    CU_ASSERT_EQUAL(bmi_job_event(other, NULL, &event, NULL), 0);
    bmi_job_context_close(other);
}

static void test_closed_deep(void)
{
    enum { ROUNDS = 20 };
    for (int i = 0; i < ROUNDS; i++) {
        struct bmi_job_status received = {0};
        deep_run(start_and_close, &received);
        CU_ASSERT(received.error == 0 || received.error == -BMI_ECANCEL);
    }
}

/* Tasks, one of which closes the context on the stack of the task that polls the network in the
 * background. */
struct closer {
    struct bmi_task task;
    struct bmi_job_context *context;
    atomic_bool *closed;
};

static bool is_above_poller(void)
{
    struct bmi_task_manager *manager = bmi_task_manager_default();
    return bmi__thread_self_of(manager) && bmi__worker_self(manager) == NULL &&
           bmi__helper_self(manager) == NULL;
}

static enum bmi_task_status close_above(struct bmi_task *task, void *argument)
{
    struct closer *closer = argument;
    (void)task;
    if (!atomic_load(closer->closed) && is_above_poller() && !atomic_exchange(closer->closed, true))
        bmi_job_context_close(closer->context);
    return BMI_TASK_DONE;
}

/* The poller wakes when a timer is due, and runs tasks then. */
static void test_closed_above_the_poller(void)
{
    enum { CLOSERS = 4 };
    static struct bmi_job_status received;
    if (!job_case.background)
        return;
    struct bmi_job_context *other = other_open();
    struct closer closers[CLOSERS];
    atomic_bool closed = false;
    time_t end = time(NULL) + PATIENCE_MS / 1000;
    for (int i = 0; i < CLOSERS; i++) {
        closers[i] = (struct closer){.context = other, .closed = &closed};
        CU_ASSERT_EQUAL(bmi_task_prepare(&closers[i].task, NULL,
                                         &(struct bmi_task_attributes){.function = close_above,
                                                                       .argument = &closers[i]}),
                        0);
    }
    while (!atomic_load(&closed) && time(NULL) < end) {
        bmi_job_id_t id;
        bmi_job_timer(other, bmi__monotonic_ns() + 1000, NULL, &id, NULL);
        for (int i = 0; i < CLOSERS; i++)
            bmi_task_submit(&closers[i].task);
        for (int i = 0; i < CLOSERS; i++)
            bmi_task_wait(&closers[i].task, -1);
    }
    CU_ASSERT_TRUE(atomic_load(&closed));
    start(&leaving, &received); /* others continue */
}

int main(void)
{
    static CU_TestInfo tests[] = {
        {"cancelled after its last state", test_after_the_last_state},
        {"cancelled before its last state", test_before_the_last_state},
        {"a sibling fails after the last state", test_leaving_child},
        {"a child that tidies up is left alone", test_tidying_child},
        {"but not if cancelled twice", test_cancelled_twice},
        {"a child that goes on is reached", test_child_goes_on},
        {"a thousand jobs", test_many},
        {"while it is posted", test_posting},
        {"a timer with a deadline", test_timer_with_deadline},
        {"a deadline that never comes", test_deadline_for_ever},
        {"a jump that fails", test_failing_jump},
        {"a context is closed deep in tasks", test_closed_deep},
        {"a context is closed above the poller", test_closed_above_the_poller},
        CU_TEST_INFO_NULL,
    };
    return job_case_run("ends", "ends in the background", tests);
}
