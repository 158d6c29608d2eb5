/* SPDX-License-Identifier: BSD-3-Clause
 *
 * context_test.c - flow contexts: closed with flows, by tasks, while others open and poll; and the
 * descriptors that a program's own loop waits for.
 */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <time.h>

#include "bmi/base/clock.h"
#include "bmi/base/instance.h"
#include "bmi/progress/progress.h"
#include "bmi/progress/wakeup.h"
#include "bmi/task.h"
#include "flow/flow_self.h"
#include "tests/unit/deep.h"
#include "trove-stub/completion.h"

/* ---- flows ----------------------------------------------------------------------------------- */

static const struct bmi_flow_extent whole = {.size = FILE_SIZE, .count = 1};
static const struct region memory = {arrived, FILE_SIZE};

/* A flow without a sender, which is under way until it is cancelled. */
static bmi_flow_id_t endless_post(bmi_msg_tag_t tag, bmi_flow_context_id_t where)
{
    bmi_flow_id_t id;
    CU_ASSERT_EQUAL(bmi_flow_post(&id,
                                  &(struct bmi_flow_description){.source = from_network(tag),
                                                                 .destination = in_memory(&memory),
                                                                 .extents = &whole,
                                                                 .extent_count = 1},
                                  NULL, where),
                    0);
    return id;
}

static struct bmi_trove_place file_make(void)
{
    files_make(9);
    return object_make(file, FILE_SIZE);
}

/* The file, from storage through the network to memory. The first flow, which has no sender yet, is
 * pending; the second may be done within its post. */
static void file_post(struct flows *flows, const struct bmi_trove_place *place)
{
    flows_post(flows, &(struct bmi_flow_description){.source = from_network(4),
                                                     .destination = in_memory(&memory),
                                                     .extents = &whole,
                                                     .extent_count = 1});
    flows_post(flows, &(struct bmi_flow_description){.source = on_storage(place),
                                                     .destination = from_network(4),
                                                     .extents = &whole,
                                                     .extent_count = 1,
                                                     .timeout_ms = 600000});
}

static void flows_go_on(void)
{
    struct bmi_trove_place place = file_make();
    struct flows flows = {0};
    file_post(&flows, &place);
    flows_wait(&flows);
    CU_ASSERT(flows.errors[0] == 0 && flows.errors[1] == 0);
    CU_ASSERT_EQUAL(memcmp(file, arrived, FILE_SIZE), 0);
}

/* ---- closing --------------------------------------------------------------------------------- */

static void closing_a_context_ends_its_flows(void)
{
    bmi_flow_context_id_t another;
    CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&another), 0);
    for (int i = 0; i < 4; i++)
        endless_post(60 + i, another);
    CU_ASSERT_EQUAL(bmi_flow_context_close(another), 0);
    CU_ASSERT_EQUAL(bmi_flow_context_close(another), -BMI_EINVAL);
}

struct closing {
    bmi_flow_context_id_t context;
    int result;
};

static enum bmi_task_status close_task(struct bmi_task *task, void *argument)
{
    struct closing *closing = argument;
    (void)task;
    closing->result = bmi_flow_context_close(closing->context);
    return BMI_TASK_DONE;
}

/* Closes the context, if there is one, and opens another in its place. */
static enum bmi_task_status reopen_task(struct bmi_task *task, void *argument)
{
    struct closing *closing = argument;
    (void)task;
    closing->result = closing->context != 0 ? bmi_flow_context_close(closing->context) : 0;
    if (closing->result == 0)
        closing->result = bmi_flow_context_open(&closing->context);
    return BMI_TASK_DONE;
}

static void closing_submit(struct bmi_task *task, struct closing *closing,
                           enum bmi_task_status (*function)(struct bmi_task *, void *))
{
    struct bmi_task_attributes attributes = {.function = function, .argument = closing};
    closing->result = 1;
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(task, NULL, &attributes), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_submit(task), 0);
}

/* The thread that tests for flows runs the task, which waits for flows. */
static void a_task_closes_a_context_with_flows(void)
{
    struct closing closing;
    struct bmi_task task;
    bmi_flow_id_t id;
    bmi_error_code_t error;
    int count;
    CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&closing.context), 0);
    endless_post(70, closing.context);
    closing_submit(&task, &closing, reopen_task);
    CU_ASSERT_EQUAL(bmi_flow_testcontext(1, &id, &count, &error, NULL, NULL, 0, context), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, PATIENCE_MS), 0);
    CU_ASSERT_EQUAL(closing.result, 0);
    CU_ASSERT_EQUAL(bmi_flow_context_close(closing.context), 0);
}

/* After the last context was closed BMI may be finalized: it has no resource of flow's any more. */
static void a_task_closes_the_last_context(void)
{
    struct closing closing = {.context = context};
    struct bmi_task task;
    bmi_context_id mine;
    bmi_op_id_t op;
    bmi_error_code_t error;
    int count;
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&mine), 0);
    endless_post(72, context);
    CU_ASSERT_EQUAL(bmi_flow_cancel(endless_post(73, context), context), 0);
    closing_submit(&task, &closing, close_task);
    while (bmi_task_state(&task) != BMI_TASK_ENDED)
        CU_ASSERT_EQUAL(BMI_testcontext(1, &op, &count, &error, NULL, NULL, 0, mine), 0);
    CU_ASSERT_EQUAL_FATAL(closing.result, 0);
    BMI_close_context(mine);
    CU_ASSERT_EQUAL_FATAL(BMI_finalize(), 0);
    network_start();
    CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&context), 0);
    flows_go_on();
}

/* The thread that closes the last context waits, and runs tasks meanwhile. */
static void a_task_opens_while_the_last_closes(void)
{
    struct closing closing = {0};
    struct bmi_task task;
    CU_ASSERT_EQUAL(flow_run(&(struct bmi_flow_description){.source = from_network(71),
                                                            .destination = in_memory(&memory),
                                                            .extents = &whole,
                                                            .extent_count = 1,
                                                            .timeout_ms = 1},
                             NULL),
                    -BMI_ETIMEDOUT);
    closing_submit(&task, &closing, reopen_task);
    CU_ASSERT_EQUAL(bmi_flow_context_close(context), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, PATIENCE_MS), 0);
    CU_ASSERT_EQUAL_FATAL(closing.result, 0);
    context = closing.context;
    flows_go_on();
}

/* On a thread of the blocking pool: from the network to memory. */
static enum bmi_task_status wait_for_flow(struct bmi_task *task, void *argument)
{
    atomic_bool *ended = argument;
    bmi_flow_context_id_t another;
    bmi_flow_id_t id;
    bmi_error_code_t error = 0;
    int count = 0;
    (void)task;
    CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&another), 0);
    endless_post(75, another);
    CU_ASSERT_EQUAL(bmi_flow_post(&id,
                                  &(struct bmi_flow_description){.source = from_network(76),
                                                                 .destination = in_memory(&memory),
                                                                 .extents = &whole,
                                                                 .extent_count = 1,
                                                                 .timeout_ms = 10},
                                  NULL, another),
                    0);
    CU_ASSERT_EQUAL(bmi_flow_testcontext(1, &id, &count, &error, NULL, NULL, PATIENCE_MS / 2,
                                         another),
                    1);
    CU_ASSERT_EQUAL(error, -BMI_ETIMEDOUT);
    atomic_store(ended, count == 1);
    CU_ASSERT_EQUAL(bmi_flow_context_close(another), 0);
    return BMI_TASK_DONE;
}

static enum bmi_task_status wait_for_task(struct bmi_task *task, void *argument)
{
    struct bmi_task *other = argument;
    (void)task;
    CU_ASSERT_EQUAL(bmi_task_submit(other), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(other, PATIENCE_MS), 0);
    return BMI_TASK_DONE;
}

/* A test call runs a task that waits for a task that waits for a flow: the latter polls
 * by itself. */
static void a_task_waits_for_a_task_that_waits_for_a_flow(void)
{
    struct bmi_task waiting, inner;
    struct bmi_task_attributes blocks = {.function = wait_for_flow, .options = BMI_TASK_MAY_BLOCK};
    struct bmi_task_attributes waits = {.function = wait_for_task, .argument = &inner};
    atomic_bool ended = false;
    bmi_flow_id_t id;
    bmi_error_code_t error;
    int count;
    blocks.argument = &ended;
    flows_go_on(); /* the network is open */
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&inner, NULL, &blocks), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&waiting, NULL, &waits), 0);
    CU_ASSERT_EQUAL(bmi_task_submit(&waiting), 0);
    CU_ASSERT_EQUAL(bmi_flow_testcontext(1, &id, &count, &error, NULL, NULL, 0, context), 0);
    CU_ASSERT_EQUAL(bmi_task_wait(&waiting, PATIENCE_MS), 0);
    CU_ASSERT_TRUE(atomic_load(&ended));
}

/* A flow that leaves most of its work to its task, which only the closing thread can run. */
static void post_and_close(void *argument)
{
    const struct region from = {file, FILE_SIZE};
    const struct bmi_trove_place *place = argument;
    bmi_flow_context_id_t another;
    bmi_flow_id_t id;
    CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&another), 0);
    int result = bmi_flow_post(&id,
                               &(struct bmi_flow_description){.source = in_memory(&from),
                                                              .destination = on_storage(place),
                                                              .extents = &whole,
                                                              .extent_count = 1,
                                                              .buffer_size = 1024},
                               NULL, another);
    CU_ASSERT(result == 0 || result == 1); /* another thread may have run it meanwhile */
    endless_post(74, another);
    CU_ASSERT_EQUAL(bmi_flow_context_close(another), 0);
}

static void a_context_is_closed_deep_in_tasks(void)
{
    struct bmi_trove_place place = object_make("", 0);
    files_make(12);
    deep_run(post_and_close, &place);
    flows_go_on();
}

/* Workers poll while the last context is closed, and open others. */
static void contexts_come_and_go_while_workers_poll(void)
{
    enum { ROUNDS = 20, TASKS = 2 };
    CU_ASSERT_EQUAL(bmi_flow_context_close(context), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_start(NULL, BMI_TASK_WORKERS), 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct closing closing[TASKS];
        struct bmi_task tasks[TASKS];
        CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&context), 0);
        for (int i = 0; i < TASKS; i++) {
            CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&closing[i].context), 0);
            endless_post(80 + i, closing[i].context);
            closing_submit(&tasks[i], &closing[i], i == 0 ? close_task : reopen_task);
        }
        endless_post(80 + TASKS, context);
        CU_ASSERT_EQUAL(bmi_flow_context_close(context), 0);
        for (int i = 0; i < TASKS; i++) {
            CU_ASSERT_EQUAL(bmi_task_wait(&tasks[i], PATIENCE_MS), 0);
            CU_ASSERT_EQUAL(closing[i].result, 0);
        }
        CU_ASSERT_EQUAL(bmi_flow_context_close(closing[1].context), 0);
    }
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_WORKERS), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&context), 0);
}

/* A space of operations that complete when the test completes them. */
static struct {
    int64_t context;
    int fd;
    sem_t asleep, closed;
} own;

static void own_progress(void *owner)
{
    (void)owner;
}

static int own_source(void *owner)
{
    (void)owner;
    return own.fd;
}

/* Called by the waiting thread, between a check and the sleep. */
static bool own_sleeps(void *owner)
{
    (void)owner;
    sem_post(&own.asleep);
    return false;
}

static void own_nothing(struct bmi__posted *posted)
{
    (void)posted;
}

static struct bmi__space own_space = {
    .progress = own_progress,
    .source = own_source,
    .cancel = own_nothing,
    .destroy = own_nothing,
    .sleeps = own_sleeps,
    .lock = BMI__SPACE_LOCK,
};

static void *own_close(void *argument)
{
    bmi__space_close_context(&own_space, own.context);
    sem_post(&own.closed);
    return argument;
}

static bool own_closed(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_MS / 1000;
    return sem_timedwait(&own.closed, &until) == 0;
}

/* The closing thread waits for it meanwhile, and no completion is queued. */
static void a_post_ends_at_once_while_its_context_closes(void)
{
    struct bmi__posted posted = {0};
    pthread_t closer;
    int64_t id;
    own.fd = eventfd(0, EFD_CLOEXEC);
    CU_ASSERT_FATAL(own.fd >= 0);
    sem_init(&own.asleep, 0, 0);
    sem_init(&own.closed, 0, 0);
    CU_ASSERT_EQUAL_FATAL(bmi__space_open_context(&own_space, NULL, &own.context), 0);
    CU_ASSERT_EQUAL_FATAL(bmi__posted_begin(&own_space, &posted, own.context, NULL, &id), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&closer, NULL, own_close, NULL), 0);
    sem_wait(&own.asleep);
    bmi__posted_complete(&own_space, &posted, 0, 0);
    CU_ASSERT_EQUAL(bmi__posted_end(&own_space, &posted, POSTED_IMMEDIATE_ALWAYS, &id), 1);
    CU_ASSERT_EQUAL(id, 0);
    bool closed = own_closed();
    CU_ASSERT(closed);
    if (!closed)
        bmi__space_wake(&own_space, NULL);
    pthread_join(closer, NULL);
    close(own.fd);
}

/* ---- sleeping threads ------------------------------------------------------------------------ */

/* A post by another thread, a moment after this thread sleeps. */
struct posting {
    struct bmi_trove_place place;
    struct flows flows;
};

static void moment_wait(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static void *posting_run(void *argument)
{
    struct posting *posting = argument;
    moment_wait();
    file_post(&posting->flows, &posting->place);
    return NULL;
}

/* A thread that waits for flows between memory and storage has not been in the network's wait
 * before. */
static void a_sleeping_thread_is_woken_for_the_network(void)
{
    struct posting posting = {.place = file_make()};
    bmi_flow_id_t id;
    bmi_error_code_t error = 0;
    pthread_t poster;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&poster, NULL, posting_run, &posting), 0);
    for (int i = 0, count; i < 1 || i < posting.flows.left; i++) {
        CU_ASSERT_EQUAL_FATAL(bmi_flow_testcontext(1, &id, &count, &error, NULL, NULL, PATIENCE_MS,
                                                   context),
                              1);
        CU_ASSERT_EQUAL(error, 0);
        if (i == 0)
            CU_ASSERT_EQUAL(pthread_join(poster, NULL), 0);
    }
    CU_ASSERT_EQUAL(memcmp(file, arrived, FILE_SIZE), 0);
}

static void *brief_post(void *argument)
{
    int *result = argument;
    bmi_flow_id_t id;
    moment_wait();
    *result = bmi_flow_post(&id,
                            &(struct bmi_flow_description){.source = from_network(75),
                                                           .destination = in_memory(&memory),
                                                           .extents = &whole,
                                                           .extent_count = 1,
                                                           .timeout_ms = 30},
                            NULL, context);
    return NULL;
}

static uint64_t brief_wait_ms(void)
{
    pthread_t poster;
    bmi_flow_id_t id;
    bmi_error_code_t error = 0;
    int count = 0, posted = -1;
    uint64_t start = bmi__monotonic_ns();
    CU_ASSERT_EQUAL_FATAL(pthread_create(&poster, NULL, brief_post, &posted), 0);
    CU_ASSERT(bmi_flow_testcontext(1, &id, &count, &error, NULL, NULL, PATIENCE_MS, context) >= 0);
    CU_ASSERT(count == 1 && error == -BMI_ETIMEDOUT);
    CU_ASSERT_EQUAL(pthread_join(poster, NULL), 0);
    CU_ASSERT_EQUAL(posted, 0);
    return (bmi__monotonic_ns() - start) / 1000000;
}

/* A sleeping thread checks again after a second at the latest: among several tries one shows
 * whether it was woken earlier. */
static void a_sleeping_thread_is_woken_for_a_deadline(void)
{
    enum { TRIES = 5, IN_TIME_MS = 500 };
    uint64_t best = UINT64_MAX;
    flows_go_on(); /* the network is open */
    for (int i = 0; i < TRIES && best >= IN_TIME_MS; i++) {
        uint64_t ms = brief_wait_ms();
        best = ms < best ? ms : best;
    }
    CU_ASSERT(best < IN_TIME_MS);
}

/* ---- a program's own loop -------------------------------------------------------------------- */

/* Waits on the descriptor only. */
static void descriptor_wait(struct flows *flows)
{
    struct pollfd poll_fd = {.fd = bmi_flow_context_fd(context), .events = POLLIN};
    CU_ASSERT_FATAL(poll_fd.fd >= 0);
    while (flows->left > 0) {
        bmi_flow_id_t id;
        bmi_error_code_t error = 0;
        int count = 0;
        CU_ASSERT_EQUAL_FATAL(poll(&poll_fd, 1, PATIENCE_MS), 1);
        CU_ASSERT_FATAL(bmi_flow_testcontext(1, &id, &count, &error, NULL, NULL, 0, context) >= 0);
        CU_ASSERT_EQUAL(error, 0);
        flows->left -= count;
    }
}

static void the_descriptor_drives_flows(void)
{
    const struct bmi_trove_fault slow = {.kinds = BMI_TROVE_READS, .delay_ms = 1};
    struct bmi_trove_place place = file_make();
    struct flows flows = {0};
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &slow), 0);
    file_post(&flows, &place);
    descriptor_wait(&flows);
    CU_ASSERT_EQUAL(memcmp(file, arrived, FILE_SIZE), 0);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
}

/* The operations of these flows all complete at once, so no later completion comes, and each step
 * leaves the rest to the next step. */
static void the_descriptor_tells_of_steps(void)
{
    enum { FLOWS = 3 };
    const struct region from = {file, FILE_SIZE};
    struct bmi_trove_place places[FLOWS];
    struct flows flows = {0};
    files_make(11);
    for (int i = 0; i < FLOWS; i++) {
        places[i] = object_make("", 0);
        flows_post(&flows, &(struct bmi_flow_description){.source = in_memory(&from),
                                                          .destination = on_storage(&places[i]),
                                                          .extents = &whole,
                                                          .extent_count = 1,
                                                          .buffer_size = 1024});
    }
    descriptor_wait(&flows);
    for (int i = 0; i < FLOWS; i++) {
        CU_ASSERT_EQUAL(flows.errors[i], 0);
        object_read(&places[i], arrived, FILE_SIZE);
        CU_ASSERT_EQUAL(memcmp(file, arrived, FILE_SIZE), 0);
    }
}

/* Leaves a message to this process that no call takes yet: the network's descriptor stays readable
 * while no thread polls the network. */
static void message_leave(bmi_context_id mine)
{
    const char *progress = getenv("BMI_PROGRESS");
    struct pollfd network = {.fd = bmi__progress_fd(&bmi__default), .events = POLLIN};
    bmi_op_id_t op;
    int result = BMI_post_sendunexpected(&op, self, "m", 1, BMI_EXT_ALLOC, 3, NULL, mine, NULL);
    CU_ASSERT_EQUAL_FATAL(result, 1); /* it is small, and there is a connection */
    if (progress == NULL || strcmp(progress, "background") != 0)
        CU_ASSERT_EQUAL(poll(&network, 1, PATIENCE_MS), 1);
}

static void message_take(void)
{
    struct BMI_unexpected_info info;
    int count = 0;
    while (count == 0)
        CU_ASSERT_FATAL(BMI_testunexpected(1, &count, &info, PATIENCE_MS) >= 0);
    CU_ASSERT_EQUAL(BMI_unexpected_free(info.addr, info.buffer), 0);
}

/* Flows of the present context have not used the network, and do not poll it. */
static void the_descriptor_forgets_a_network_that_is_closed(void)
{
    enum { TESTS = 1000 };
    struct pollfd poll_fd = {.events = POLLIN};
    bmi_context_id mine;
    bmi_flow_id_t id;
    bmi_error_code_t error;
    int count, readable = 1;
    CU_ASSERT_FATAL(bmi_flow_context_fd(context) >= 0);
    flows_go_on();
    CU_ASSERT_EQUAL(bmi_flow_context_close(context), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_flow_context_open(&context), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&mine), 0);
    message_leave(mine);
    poll_fd.fd = bmi_flow_context_fd(context);
    for (int i = 0; i < TESTS && readable > 0; i++) {
        CU_ASSERT_EQUAL(bmi_flow_testcontext(1, &id, &count, &error, NULL, NULL, 0, context), 0);
        readable = poll(&poll_fd, 1, 0);
    }
    CU_ASSERT_EQUAL(readable, 0);
    message_take();
    BMI_close_context(mine);
}

static void descriptors_beside_workers(void)
{
    enum { ROUNDS = 5 };
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_start(NULL, BMI_TASK_WORKERS), 0);
    for (int round = 0; round < ROUNDS; round++) {
        the_descriptor_drives_flows();
        the_descriptor_tells_of_steps();
    }
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_WORKERS), 0);
    the_descriptor_tells_of_steps(); /* the message does not delay these flows */
}

/* ---- without BMI ----------------------------------------------------------------------------- */

static void time_limits_without_bmi(void)
{
    const struct bmi_trove_fault slow = {.kinds = BMI_TROVE_READS, .delay_ms = PATIENCE_MS};
    struct bmi_trove_place place = file_make();
    struct bmi_flow_description what = {.source = on_storage(&place),
                                        .destination = in_memory(&memory),
                                        .extents = &whole,
                                        .extent_count = 1,
                                        .timeout_ms = 600000};
    CU_ASSERT_EQUAL(flow_run(&what, NULL), 0);
    CU_ASSERT_EQUAL(memcmp(file, arrived, FILE_SIZE), 0);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, &slow), 0);
    what.timeout_ms = 20;
    CU_ASSERT_EQUAL(flow_run(&what, NULL), -BMI_ETIMEDOUT);
    CU_ASSERT_EQUAL(bmi_trove_inject(store, NULL), 0);
    what.source = from_network(1);
    bmi_flow_id_t id;
    CU_ASSERT_EQUAL(bmi_flow_post(&id, &what, NULL, context), -BMI_EINVAL);
}

/* Against the rules: the context is closed afterwards, by the suite. */
static void bmi_ends_before_the_context(void)
{
    CU_ASSERT_EQUAL_FATAL(BMI_initialize(NULL, NULL, 0), 0);
    CU_ASSERT_EQUAL(BMI_addr_lookup(&self, "tcp://127.0.0.1:1"), 0);
    const struct bmi_flow_description what = {.source = from_network(1),
                                              .destination = in_memory(&memory),
                                              .extents = &whole,
                                              .extent_count = 1};
    CU_ASSERT(flow_run(&what, NULL) < 0);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

static CU_TestInfo alone[] = {{"time limits without BMI", time_limits_without_bmi},
                              {"BMI ends before the context", bmi_ends_before_the_context},
                              CU_TEST_INFO_NULL};

static CU_TestInfo cases[] = {
    {"closing a context ends its flows", closing_a_context_ends_its_flows},
    {"a task closes a context with flows", a_task_closes_a_context_with_flows},
    {"a task closes the last context", a_task_closes_the_last_context},
    {"a task opens while the last closes", a_task_opens_while_the_last_closes},
    {"a task waits for a task that waits for a flow",
     a_task_waits_for_a_task_that_waits_for_a_flow},
    {"a context is closed deep in tasks", a_context_is_closed_deep_in_tasks},
    {"a post ends at once while its context closes", a_post_ends_at_once_while_its_context_closes},
    {"a sleeping thread is woken for the network", a_sleeping_thread_is_woken_for_the_network},
    {"a sleeping thread is woken for a deadline", a_sleeping_thread_is_woken_for_a_deadline},
    {"the descriptor drives flows", the_descriptor_drives_flows},
    {"the descriptor reports steps", the_descriptor_tells_of_steps},
    {"the descriptor forgets a network that is closed",
     the_descriptor_forgets_a_network_that_is_closed},
    {"contexts come and go while workers poll", contexts_come_and_go_while_workers_poll},
    {"descriptors beside workers", descriptors_beside_workers},
    CU_TEST_INFO_NULL};

int main(void)
{
    CU_SuiteInfo suites[] = {{"flow contexts", NULL, NULL, set_up, tear_down, cases},
                             {"flows without BMI", NULL, NULL, store_open, store_close, alone},
                             CU_SUITE_INFO_NULL};
    return unit_run_suites(suites);
}
