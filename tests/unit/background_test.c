/* SPDX-License-Identifier: BSD-3-Clause
 *
 * background_test.c - progress in the background: messages move without test calls, it can be
 * switched at any time, its end leaves a consistent state; tasks run while BMI waits. Also: a
 * completion wakes the threads that wait for it, and no other.
 */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bmi/api/api.h"
#include "bmi/base/clock.h"
#include "bmi/base/instance.h"
#include "bmi/progress/progress.h"
#include "bmi/state/context.h"
#include "bmi/task.h"
#include "emulation.h"
#include "unit.h"

enum { SERVER = BMI_INIT_SERVER, BACKGROUND = BMI_INIT_BACKGROUND, PATIENCE_S = 120 };

struct self {
    BMI_addr_t address; /* this process */
    bmi_context_id context;
};

static void self_open(struct self *self, const char *scheme, int flags)
{
    char method[32], listen[64], bound[BMI_MAX_ADDR_LEN];
    bool loop = strcmp(scheme, "loop") == 0;
    snprintf(method, sizeof method, "bmi_%s", scheme);
    snprintf(listen, sizeof listen, "%s://%s", scheme, loop ? "background" : "127.0.0.1:0");
    CU_ASSERT_EQUAL_FATAL(BMI_initialize(method, listen, SERVER | flags), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_get_info(0, BMI_GET_LISTEN_ADDR, bound), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_addr_lookup(&self->address, bound), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&self->context), 0);
}

static void self_close(struct self *self)
{
    BMI_close_context(self->context);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

static int background_get(void)
{
    int on = -1;
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_BACKGROUND, &on), 0);
    return on;
}

static int background_set(int on)
{
    return BMI_set_info(0, BMI_BACKGROUND, &on);
}

static bool late(time_t *since)
{
    time_t now = time(NULL);
    if (*since == 0)
        *since = now;
    sched_yield();
    return now - *since > PATIENCE_S;
}

static uint64_t completed(struct self *self)
{
    struct bmi_context_statistics statistics = {.context = self->context};
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_GET_CONTEXT_STATISTICS, &statistics), 0);
    return statistics.queue_depth + statistics.immediate;
}

/* ---- messages ------------------------------------------------------------------------------- */

/* Sends to itself, and checks for the message without any call that makes progress. */
static void message_moves_unattended(struct self *self, bmi_size_t size, bmi_msg_tag_t tag)
{
    uint8_t *out = malloc((size_t)size), *in = calloc(1, (size_t)size);
    bmi_op_id_t ids[2];
    bmi_size_t actual = 0;
    uint64_t before = completed(self);
    time_t since = 0;
    for (bmi_size_t i = 0; i < size; i++)
        out[i] = (uint8_t)(i * 7 + tag);
    CU_ASSERT_TRUE_FATAL(BMI_post_recv(&ids[0], self->address, in, size, &actual, BMI_EXT_ALLOC,
                                       tag, NULL, self->context, NULL) >= 0);
    CU_ASSERT_TRUE_FATAL(BMI_post_send(&ids[1], self->address, out, size, BMI_EXT_ALLOC, tag, NULL,
                                       self->context, NULL) >= 0);
    while (completed(self) < before + 2 && !late(&since))
        continue;
    CU_ASSERT_EQUAL_FATAL(completed(self), before + 2);
    CU_ASSERT_EQUAL(memcmp(in, out, (size_t)size), 0);
    for (int taken = 1; taken > 0;) {
        bmi_op_id_t done[2];
        bmi_error_code_t errors[2] = {0, 0};
        BMI_testcontext(2, done, &taken, errors, NULL, NULL, 0, self->context);
        CU_ASSERT_EQUAL(errors[0], 0);
        CU_ASSERT_EQUAL(errors[1], 0);
    }
    free(out);
    free(in);
}

static void messages_move(const char *scheme)
{
    static const bmi_size_t sizes[] = {4, 32768, 4 << 20, 1000, 1 << 20};
    struct self self;
    self_open(&self, scheme, BACKGROUND);
    CU_ASSERT_EQUAL(background_get(), 1);
    for (int i = 0; i < 50; i++)
        message_moves_unattended(&self, sizes[(size_t)i % COUNT_OF(sizes)], i);
    self_close(&self);
}

static void they_move_over_loop(void)
{
    messages_move("loop");
}

static void they_move_over_tcp(void)
{
    messages_move("tcp");
}

/* After callers have polled for long without a pause, the background task ticks less often, but
 * still does. */
static void it_comes_after_a_long_exchange(void)
{
    enum { EXCHANGE_NS = 40000000 };
    struct self self;
    self_open(&self, "tcp", BACKGROUND);
    for (int round = 0; round < 5; round++) {
        uint64_t end = bmi__monotonic_ns() + EXCHANGE_NS;
        while (bmi__monotonic_ns() < end) {
            bmi_op_id_t id;
            bmi_error_code_t error;
            int count = 0;
            BMI_testcontext(1, &id, &count, &error, NULL, NULL, 0, self.context);
            CU_ASSERT_EQUAL(count, 0);
        }
        message_moves_unattended(&self, 1 << 20, round);
    }
    self_close(&self);
}

static void idle_cpus_write(void)
{
    struct self self;
    self_open(&self, "tcp", BACKGROUND);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=on"), 0);
    for (int i = 0; i < 100; i++)
        message_moves_unattended(&self, i % 2 == 0 ? 100 : 200000, i);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=off"), 0);
    message_moves_unattended(&self, 100, 1);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=on"), 0);
    self_close(&self);
    self_open(&self, "tcp", BACKGROUND); /* the setting has persisted */
    message_moves_unattended(&self, 100, 1);
    self_close(&self);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=off"), 0);
}

/* ---- on and off ----------------------------------------------------------------------------- */

static void it_is_off_unless_asked_for(void)
{
    struct self self;
    self_open(&self, "loop", 0);
    CU_ASSERT_EQUAL(background_get(), 0);
    CU_ASSERT_EQUAL(background_set(2), -BMI_EINVAL);
    CU_ASSERT_EQUAL(background_set(-1), -BMI_EINVAL);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_BACKGROUND, NULL), -BMI_EINVAL);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "progress=nobody"), -BMI_EINVAL);
    CU_ASSERT_EQUAL(background_get(), 0);
    self_close(&self);
}

static void all_ways_switch_it(void)
{
    struct self self;
    struct bmi_setting setting = {.name = "progress"};
    self_open(&self, "loop", BACKGROUND);
    CU_ASSERT_EQUAL(background_get(), 1);
    self_close(&self);
    self_open(&self, "loop", 0); /* the flag counted for that use */
    CU_ASSERT_EQUAL(background_get(), 0);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "progress=background"), 0);
    CU_ASSERT_EQUAL(background_get(), 1);
    message_moves_unattended(&self, 100000, 1);
    CU_ASSERT_EQUAL(background_set(0), 0);
    CU_ASSERT_EQUAL(background_get(), 0);
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_SETTING, &setting), 0);
    CU_ASSERT_STRING_EQUAL(setting.value, "caller");
    CU_ASSERT_EQUAL(background_set(1), 0);
    CU_ASSERT_EQUAL(background_set(1), 0);
    self_close(&self);
    self_open(&self, "loop", 0); /* the earlier setting persists */
    CU_ASSERT_EQUAL(background_get(), 1);
    CU_ASSERT_EQUAL(background_set(0), 0);
    self_close(&self);
    setenv("BMI_PROGRESS", "background", 1);
    self_open(&self, "loop", 0);
    CU_ASSERT_EQUAL(background_get(), 1);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "progress=caller"), 0);
    CU_ASSERT_EQUAL(background_get(), 0);
    self_close(&self);
    unsetenv("BMI_PROGRESS");
}

/* ---- switched while threads wait ------------------------------------------------------------- */

enum { TALKERS = 4, ROUNDS = 200 };

struct talker {
    struct self *self;
    pthread_t thread;
    int number;
    atomic_int rounds;
};

/* One message at a time to itself, each waited for. */
static void *talk(void *argument)
{
    struct talker *talker = argument;
    char out[9000] = "x", in[9000];
    bmi_context_id context;
    if (BMI_open_context(&context) != 0)
        return NULL;
    for (int round = 0; round < ROUNDS; round++) {
        bmi_op_id_t ids[2], done;
        bmi_size_t actual, size = round % 2 ? 10 : (bmi_size_t)sizeof out;
        int left = 0, count;
        bmi_error_code_t error;
        left += BMI_post_recv(&ids[0], talker->self->address, in, size, &actual, BMI_EXT_ALLOC,
                              talker->number, NULL, context, NULL) == 0;
        left += BMI_post_send(&ids[1], talker->self->address, out, size, BMI_EXT_ALLOC,
                              talker->number, NULL, context, NULL) == 0;
        while (left > 0) {
            if (BMI_testcontext(1, &done, &count, &error, NULL, NULL, PATIENCE_S * 1000, context) <
                    1 ||
                error != 0)
                return NULL;
            left -= count;
        }
        atomic_fetch_add(&talker->rounds, 1);
    }
    BMI_close_context(context);
    return NULL;
}

static void switched_under(const char *scheme)
{
    struct self self;
    struct talker talkers[TALKERS];
    self_open(&self, scheme, 0);
    for (int i = 0; i < TALKERS; i++) {
        talkers[i] = (struct talker){.self = &self, .number = i};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&talkers[i].thread, NULL, talk, &talkers[i]), 0);
    }
    for (int i = 0; i < 30; i++)
        CU_ASSERT_EQUAL(background_set(i % 2 == 0), 0);
    for (int i = 0; i < TALKERS; i++) {
        pthread_join(talkers[i].thread, NULL);
        CU_ASSERT_EQUAL(atomic_load(&talkers[i].rounds), ROUNDS);
    }
    self_close(&self);
}

static void switched_while_threads_wait(void)
{
    switched_under("loop");
    switched_under("tcp");
}

/* ---- the end -------------------------------------------------------------------------------- */

static void the_end_finds_things_outstanding(void)
{
    static char in[64], out[300000];
    for (int i = 0; i < 20; i++) {
        struct self self;
        bmi_op_id_t id;
        bmi_size_t actual;
        self_open(&self, i % 2 ? "loop" : "tcp", BACKGROUND);
        if (i % 3 == 0)
            message_moves_unattended(&self, 30000, 1);
        CU_ASSERT_EQUAL(BMI_post_recv(&id, self.address, in, sizeof in, &actual, BMI_EXT_ALLOC, 7,
                                      NULL, self.context, NULL),
                        0);
        CU_ASSERT_EQUAL(BMI_post_send(&id, self.address, out, sizeof out, BMI_EXT_ALLOC, 8, NULL,
                                      self.context, NULL),
                        0);
        if (i % 2)
            CU_ASSERT_EQUAL(background_set(0), 0);
        CU_ASSERT_EQUAL(BMI_finalize(), 0);
    }
}

/* Returns 0, or the line that failed. */
static int child_goes_on(struct self *self)
{
    char out[5000] = "hello", in[5000];
    bmi_op_id_t ids[2], done[2];
    bmi_error_code_t errors[2];
    bmi_size_t actual;
    int count, left = 0, on = 1;
    if (BMI_get_info(0, BMI_BACKGROUND, &on) != 0 || on != 0)
        return __LINE__;
    left += BMI_post_recv(&ids[0], self->address, in, sizeof in, &actual, BMI_EXT_ALLOC, 1, NULL,
                          self->context, NULL) == 0;
    left += BMI_post_send(&ids[1], self->address, out, sizeof out, BMI_EXT_ALLOC, 1, NULL,
                          self->context, NULL) == 0;
    while (left > 0) {
        if (BMI_testcontext(2, done, &count, errors, NULL, NULL, PATIENCE_S * 1000, self->context) <
            1)
            return __LINE__;
        left -= count;
    }
    if (strcmp(in, "hello") != 0 || BMI_finalize() != 0)
        return __LINE__;
    return 0;
}

static void a_child_goes_on_without(void)
{
    struct self self;
    self_open(&self, "loop", BACKGROUND);
    for (int i = 0; i < 10; i++) {
        int status = -1;
        message_moves_unattended(&self, 20000, i);
        pid_t child = fork();
        if (child == 0) {
            alarm(PATIENCE_S);
            _exit(child_goes_on(&self) != 0);
        }
        CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
        CU_ASSERT_EQUAL(status, 0);
    }
    message_moves_unattended(&self, 20000, 1);
    self_close(&self);
}

static void one_finalizes(struct self *self)
{
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=off"), 0);
    self_close(self);
}

/* Switched off at the fork, while another user has the parent's task manager: the child must not
 * use the parent's manager to write with idle CPUs. */
static void a_child_has_idle_cpus_of_its_own(void)
{
    struct self self;
    int status = -1;
#ifdef __SANITIZE_THREAD__
    printf("skipped: no threads in a child of threads under the thread sanitizer ");
    return;
#endif
    if (test_emulation_lacks("threads in a child of threads"))
        return;
    self_open(&self, "tcp", BACKGROUND);
    CU_ASSERT_EQUAL(bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY), 0);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=on"), 0);
    message_moves_unattended(&self, 20000, 1);
    CU_ASSERT_EQUAL(background_set(0), 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE_S);
        CU_ASSERT_EQUAL(background_set(1), 0);
        for (int i = 0; i < 100; i++)
            message_moves_unattended(&self, 20000, i);
        one_finalizes(&self);
        _exit(CU_get_number_of_failures() != 0);
    }
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT_EQUAL(status, 0);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY), 0);
    one_finalizes(&self);
}

/* ---- tasks ---------------------------------------------------------------------------------- */

static enum bmi_task_status count_up(struct bmi_task *task, void *argument)
{
    (void)task;
    atomic_fetch_add((atomic_int *)argument, 1);
    return BMI_TASK_DONE;
}

static void task_is_run(struct bmi_task *task, atomic_int *runs)
{
    int before = atomic_load(runs);
    time_t since = 0;
    CU_ASSERT_EQUAL(bmi_task_submit(task), 0);
    while (atomic_load(runs) == before && !late(&since))
        continue;
    CU_ASSERT_EQUAL(atomic_load(runs), before + 1);
    CU_ASSERT_EQUAL(bmi_task_wait(task, -1), 0);
}

static void *wait_in_test(void *argument)
{
    (void)argument;
    struct BMI_unexpected_info info;
    int count = 0;
    if (BMI_testunexpected(1, &count, &info, PATIENCE_S * 1000) == 1)
        BMI_unexpected_free(info.addr, info.buffer);
    return NULL;
}

/* Without workers the waiting thread runs them, whether the wait has begun or not, and whether the
 * manager existed when it began. */
static void tasks_run_where_a_caller_waits(void)
{
    struct self self;
    struct bmi_task task;
    atomic_int runs = 0;
    pthread_t threads[2];
    bmi_op_id_t id;
    self_open(&self, "loop", 0);
    for (int i = 0; i < 2; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, wait_in_test, NULL), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY), 0);
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, NULL,
                                     &(struct bmi_task_attributes){.function = count_up,
                                                                   .argument = &runs}),
                    0);
    for (int i = 0; i < 100; i++)
        task_is_run(&task, &runs);
    for (int i = 0; i < 2; i++)
        CU_ASSERT_TRUE(BMI_post_sendunexpected(&id, self.address, "", 0, BMI_EXT_ALLOC, 0, NULL,
                                               self.context, NULL) >= 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY), 0);
    self_close(&self);
}

static void tasks_run_in_the_background(void)
{
    struct self self;
    struct bmi_task task;
    atomic_int runs = 0;
    self_open(&self, "loop", BACKGROUND);
    CU_ASSERT_EQUAL(bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY), 0);
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, NULL,
                                     &(struct bmi_task_attributes){.function = count_up,
                                                                   .argument = &runs}),
                    0);
    for (int i = 0; i < 100; i++) {
        task_is_run(&task, &runs);
        if (i % 10 == 0)
            message_moves_unattended(&self, 5000, i);
    }
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY), 0);
    self_close(&self);
}

enum { POOL_THREADS = 4, HELD_S = 20 };

struct held {
    atomic_bool over;
    atomic_int began, ended;
};

/* Continues by itself in the end, so that a failing test ends. */
static enum bmi_task_status hold_thread(struct bmi_task *task, void *argument)
{
    struct held *held = argument;
    time_t since = time(NULL);
    (void)task;
    atomic_fetch_add(&held->began, 1);
    while (!atomic_load(&held->over) && time(NULL) - since < HELD_S)
        sched_yield();
    atomic_fetch_add(&held->ended, 1);
    return BMI_TASK_DONE;
}

/* The program's own tasks occupy the blocking pool: the background gets no thread, and does not
 * need one to end. */
static void it_ends_without_a_thread(void)
{
    struct self self;
    struct bmi_task tasks[POOL_THREADS];
    struct held held = {.over = false};
    time_t since = 0;
    self_open(&self, "loop", 0);
    CU_ASSERT_EQUAL(bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY), 0);
    for (int i = 0; i < POOL_THREADS; i++) {
        struct bmi_task_attributes attributes = {.function = hold_thread,
                                                 .argument = &held,
                                                 .options = BMI_TASK_MAY_BLOCK};
        CU_ASSERT_EQUAL(bmi_task_prepare(&tasks[i], NULL, &attributes), 0);
        CU_ASSERT_EQUAL(bmi_task_submit(&tasks[i]), 0);
    }
    while (atomic_load(&held.began) < POOL_THREADS && !late(&since))
        continue;
    for (int i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(background_set(1), 0);
        CU_ASSERT_EQUAL(background_set(0), 0);
    }
    CU_ASSERT_EQUAL(atomic_load(&held.ended), 0);
    CU_ASSERT_EQUAL(background_set(1), 0);
    atomic_store(&held.over, true);
    message_moves_unattended(&self, 20000, 1);
    for (int i = 0; i < POOL_THREADS; i++)
        CU_ASSERT_EQUAL(bmi_task_wait(&tasks[i], -1), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY), 0);
    CU_ASSERT_EQUAL(background_set(0), 0);
    self_close(&self);
}

/* From within a task that the background runs: it cannot wait for its own end. */
static enum bmi_task_status switch_off(struct bmi_task *task, void *argument)
{
    (void)task;
    atomic_int *result = argument;
    atomic_store(result, background_set(0));
    return BMI_TASK_DONE;
}

static void it_does_not_wait_for_itself(void)
{
    struct self self;
    struct bmi_task task;
    atomic_int result = 1;
    time_t since = 0;
    self_open(&self, "loop", BACKGROUND);
    CU_ASSERT_EQUAL(bmi_task_prepare(&task, NULL,
                                     &(struct bmi_task_attributes){.function = switch_off,
                                                                   .argument = &result}),
                    0);
    CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
    while (atomic_load(&result) == 1 && !late(&since))
        continue;
    CU_ASSERT_EQUAL(atomic_load(&result), -BMI_EDEADLK);
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), 0);
    CU_ASSERT_EQUAL(background_get(), 1);
    self_close(&self);
}

/* ---- tasks that run while a thread switches it off ------------------------------------------- */

enum { QUEUED = 8 };
static _Thread_local bool switching_off;

struct meddler {
    struct bmi_task task;
    bool within; /* run by the thread that switches it off, meanwhile */
    int child, on_status, off_status;
};

static enum bmi_task_status meddle(struct bmi_task *task, void *argument)
{
    struct meddler *meddler = argument;
    (void)task;
    meddler->within = switching_off;
    if (!switching_off)
        return BMI_TASK_DONE;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, &meddler->child, 0);
    meddler->on_status = background_set(1);
    meddler->off_status = background_set(0);
    return BMI_TASK_DONE;
}

/* Switches it on and off with tasks queued. Returns whether one ran within that call. */
static bool switch_with_tasks(struct meddler *meddlers)
{
    bool within = false;
    CU_ASSERT_EQUAL_FATAL(background_set(1), 0);
    for (int i = 0; i < QUEUED; i++) {
        meddlers[i] = (struct meddler){.child = -1};
        CU_ASSERT_EQUAL(bmi_task_prepare(&meddlers[i].task, NULL,
                                         &(struct bmi_task_attributes){.function = meddle,
                                                                       .argument = &meddlers[i]}),
                        0);
        CU_ASSERT_EQUAL(bmi_task_submit(&meddlers[i].task), 0);
    }
    switching_off = true;
    CU_ASSERT_EQUAL(background_set(0), 0);
    switching_off = false;
    CU_ASSERT_EQUAL(background_get(), 0);
    for (int i = 0; i < QUEUED; i++) {
        CU_ASSERT_EQUAL(bmi_task_wait(&meddlers[i].task, -1), 0);
        within = within || meddlers[i].within;
        if (!meddlers[i].within)
            continue;
        CU_ASSERT_EQUAL(meddlers[i].child, 0);
        CU_ASSERT_EQUAL(meddlers[i].on_status, -BMI_EDEADLK);
        CU_ASSERT_EQUAL(meddlers[i].off_status, 0); /* as the other thread does the same */
    }
    return within;
}

static void it_is_switched_off_by_a_thread_that_runs_tasks(void)
{
    struct self self;
    struct meddler meddlers[QUEUED];
    time_t since = 0;
    bool within;
    self_open(&self, "loop", 0);
    while (!(within = switch_with_tasks(meddlers)) && !late(&since))
        continue;
    CU_ASSERT_TRUE(within);
    CU_ASSERT_EQUAL(background_set(1), 0);
    message_moves_unattended(&self, 20000, 1);
    self_close(&self);
}

/* ---- woken threads --------------------------------------------------------------------------- */

static bool notify(struct context *context, bmi_op_id_t op)
{
    struct wakes wakes = {.count = 0};
    bmi__waiters_notify(context->instance, context_waiters(context), op, &wakes);
    bool any = wakes.count > 0;
    bmi__wakes_finish(&wakes);
    return any;
}

static void enlist(struct waiter *waiter, struct context *context, bmi_op_id_t op)
{
    *waiter =
        (struct waiter){.instance = context->instance, .list = context_waiters(context), .op = op};
    bmi__waiter_enlist(waiter, false);
}

static void a_completion_wakes_its_own_waiter(void)
{
    enum { CONTEXTS = 64 };
    static struct waiter waiters[CONTEXTS];
    struct context *contexts[CONTEXTS];
    CU_ASSERT_EQUAL_FATAL(bmi__parts_open(&bmi__default), 0);
    for (int i = 0; i < CONTEXTS; i++) {
        bmi_context_id id;
        CU_ASSERT_EQUAL_FATAL(bmi__context_open(&bmi__default, &id), 0);
        contexts[i] = bmi__context_find(id);
        enlist(&waiters[i], contexts[i], i % 2 ? 1000 + i : 0);
    }
    CU_ASSERT_EQUAL(bmi__waiters_asleep(&bmi__default), CONTEXTS);
    for (int k = 0; k < CONTEXTS; k++) {
        notify(contexts[k], 999); /* another operation of that context */
        CU_ASSERT_EQUAL(atomic_exchange(&waiters[k].signalled, 0), k % 2 == 0);
        CU_ASSERT_TRUE(notify(contexts[k], 1000 + k));
        for (int i = 0; i < CONTEXTS; i++)
            CU_ASSERT_EQUAL(atomic_exchange(&waiters[i].signalled, 0), i == k);
    }
    for (int i = 0; i < CONTEXTS; i++) {
        bmi__waiter_delist(&waiters[i]);
        CU_ASSERT_FALSE(notify(contexts[i], 1000 + i));
        bmi__context_release(contexts[i]);
    }
    CU_ASSERT_EQUAL(bmi__waiters_asleep(&bmi__default), 0);
    bmi__parts_close(&bmi__default);
}

/* Several on one context: each one that tests the operation, and one of those that take any. */
static void waiters_of_one_context(void)
{
    bmi_context_id id;
    CU_ASSERT_EQUAL_FATAL(bmi__parts_open(&bmi__default), 0);
    CU_ASSERT_EQUAL_FATAL(bmi__context_open(&bmi__default, &id), 0);
    struct context *context = bmi__context_find(id);
    static const bmi_op_id_t wanted[] = {0, 7, 0, 7, 8, WAITER_SOME};
    static const unsigned woken[] = {1, 1, 0, 1, 0, 1}, next[] = {0, 0, 1, 0, 1, 1};
    struct waiter waiters[COUNT_OF(wanted)];
    for (size_t i = 0; i < COUNT_OF(wanted); i++)
        enlist(&waiters[i], context, wanted[i]);
    notify(context, 7);
    for (size_t i = 0; i < COUNT_OF(wanted); i++)
        CU_ASSERT_EQUAL(atomic_load(&waiters[i].signalled), woken[i]);
    notify(context, 8); /* the first that takes any has been woken already */
    for (size_t i = 0; i < COUNT_OF(wanted); i++)
        CU_ASSERT_EQUAL(atomic_load(&waiters[i].signalled), woken[i] | next[i]);
    for (size_t i = 0; i < COUNT_OF(wanted); i++)
        bmi__waiter_delist(&waiters[i]);
    bmi__context_release(context);
    bmi__parts_close(&bmi__default);
}

struct taker {
    struct self *self;
    bool unexpected;
    int most, count;
    bmi_op_id_t op; /* tests this one only; 0: any */
    atomic_bool back;
};

static void *take(void *argument)
{
    struct taker *taker = argument;
    struct BMI_unexpected_info info;
    bmi_op_id_t id;
    bmi_error_code_t error;
    const int idle_ms = 10 * PATIENCE_S * 1000;
    if (taker->op != 0)
        BMI_test(taker->op, &taker->count, &error, NULL, NULL, idle_ms, taker->self->context);
    else if (!taker->unexpected)
        BMI_testcontext(taker->most, &id, &taker->count, &error, NULL, NULL, idle_ms,
                        taker->self->context);
    else if (BMI_testunexpected(taker->most, &taker->count, &info, idle_ms) == 1)
        BMI_unexpected_free(info.addr, info.buffer);
    atomic_store(&taker->back, true);
    return NULL;
}

static bool comes_back(struct taker *taker)
{
    time_t since = 0;
    while (!atomic_load(&taker->back) && !late(&since))
        continue;
    return atomic_load(&taker->back);
}

/* The first waiting thread, the poller, returns without taking a completion. The last one, which
 * then polls, waits for another operation. A thread that sleeps between them and takes one is
 * notified.
 */
static void remaining_operations_are_reported(bool unexpected)
{
    struct self self;
    struct taker takers[3] = {{.most = 0}, {.most = 1}, {.most = 1}};
    pthread_t threads[3];
    bmi_op_id_t id, other;
    char bytes[2][8] = {"one", "two"};
    bmi_size_t actual;
    self_open(&self, "loop", 0);
    CU_ASSERT_EQUAL_FATAL(BMI_post_recv(&other, self.address, bytes[0], 8, &actual, BMI_EXT_ALLOC,
                                        1, NULL, self.context, NULL),
                          0);
    CU_ASSERT_EQUAL_FATAL(BMI_post_recv(&id, self.address, bytes[1], 8, &actual, BMI_EXT_ALLOC, 2,
                                        NULL, self.context, NULL),
                          0);
    takers[2].op = other;
    for (unsigned i = 0; i < 3; i++) {
        takers[i].self = &self;
        takers[i].unexpected = unexpected;
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, take, &takers[i]), 0);
        while (!bmi__progress_poller_blocks(&bmi__default) ||
               bmi__waiters_asleep(&bmi__default) != i)
            sched_yield();
    }
    int done = unexpected ? BMI_post_sendunexpected(&id, self.address, "", 0, BMI_EXT_ALLOC, 0,
                                                    NULL, self.context, NULL)
                          : BMI_cancel(id, self.context);
    CU_ASSERT_TRUE(done >= 0);
    for (int i = 0; i < 2; i++) {
        CU_ASSERT_TRUE_FATAL(comes_back(&takers[i]));
        CU_ASSERT_EQUAL(takers[i].count, i);
    }
    CU_ASSERT_EQUAL(BMI_cancel(other, self.context), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    self_close(&self);
}

static void a_completion_that_is_left_is_told(void)
{
    remaining_operations_are_reported(false);
}

static void a_message_that_is_left_is_told(void)
{
    remaining_operations_are_reported(true);
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"a completion wakes its own waiter", a_completion_wakes_its_own_waiter},
        {"waiters of one context", waiters_of_one_context},
        {"a completion that is left wakes a thread", a_completion_that_is_left_is_told},
        {"a message that is left wakes a thread", a_message_that_is_left_is_told},
        {"tasks run where a caller waits", tasks_run_where_a_caller_waits},
        {"it is off unless asked for", it_is_off_unless_asked_for},
        {"all ways switch it", all_ways_switch_it},
        {"messages move, over loop", they_move_over_loop},
        {"messages move, over tcp", they_move_over_tcp},
        {"it comes after a long exchange", it_comes_after_a_long_exchange},
        {"idle CPUs write", idle_cpus_write},
        {"switched while threads wait", switched_while_threads_wait},
        {"the end finds things outstanding", the_end_finds_things_outstanding},
        {"a child goes on without", a_child_goes_on_without},
        {"a child has idle CPUs of its own", a_child_has_idle_cpus_of_its_own},
        {"tasks run in the background", tasks_run_in_the_background},
        {"it ends without a thread", it_ends_without_a_thread},
        {"it does not wait for itself", it_does_not_wait_for_itself},
        {"it is switched off by a thread that runs tasks",
         it_is_switched_off_by_a_thread_that_runs_tasks},
        CU_TEST_INFO_NULL,
    };
    return unit_run("background", tests);
}
