/* SPDX-License-Identifier: BSD-3-Clause
 *
 * handover_test.c - duties that pass from one poller to the next: timers from a caller to the
 * background and from that to a program that polls a descriptor, hooks from one waiting thread to
 * another; and a failed start of the background leaves nothing behind. Stands in for
 * bmi__waiter_delist and bmi_task_manager_start (the linker's --wrap).
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "bmi/base/instance.h"
#include "bmi/method.h"
#include "bmi/progress/background.h"
#include "bmi/progress/progress.h"
#include "bmi/progress/waiters.h"
#include "bmi/progress/wakeup.h"
#include "bmi/state/context.h"
#include "bmi/task.h"
#include "unit.h"

enum { PATIENCE_S = 60 };

static bmi_context_id context;

static void open(int flags)
{
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_loop", "loop://handover", BMI_INIT_SERVER | flags),
                          0);
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&context), 0);
}

static void end(void)
{
    BMI_close_context(context);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

static int background_set(int on)
{
    return BMI_set_info(0, BMI_BACKGROUND, &on);
}

static int background_get(void)
{
    int on = -1;
    CU_ASSERT_EQUAL(BMI_get_info(0, BMI_BACKGROUND, &on), 0);
    return on;
}

static bool becomes(atomic_bool *what)
{
    time_t until = time(NULL) + PATIENCE_S;
    while (!atomic_load(what) && time(NULL) < until)
        sched_yield();
    return atomic_load(what);
}

static void look(void)
{
    bmi_op_id_t op;
    bmi_error_code_t error;
    int count;
    CU_ASSERT_EQUAL(BMI_testcontext(1, &op, &count, &error, NULL, NULL, 0, context), 0);
}

/* ---- timers --------------------------------------------------------------------------------- */

static struct bmi_timer timer;
static atomic_bool fired;

static void expired(struct bmi_timer *which)
{
    (void)which;
    atomic_store(&fired, true);
}

/* The poller calls this within its turn. */
static bool set_and_ready(struct waiter *waiter)
{
    bool *set = waiter->argument;
    if (!*set)
        bmi_method_timer_set(waiter->instance, &timer, 5);
    return *set = true;
}

static void a_caller_sets_a_timer(void)
{
    open(BMI_INIT_BACKGROUND);
    timer = (struct bmi_timer){.expired = expired};
    for (int i = 0; i < 5; i++) {
        bool set = false;
        struct waiter waiter = {.instance = &bmi__default,
                                .ready = set_and_ready,
                                .argument = &set,
                                .list = context_waiters(bmi__context_find(context))};
        atomic_store(&fired, false);
        while (!bmi__progress_asleep(&bmi__default)) /* the background watches */
            sched_yield();
        bmi__progress_wait(&waiter, PATIENCE_S * 1000);
        CU_ASSERT_TRUE(becomes(&fired)); /* no thread tests any more */
    }
    end();
}

static void the_background_leaves_a_timer(void)
{
    open(0);
    CU_ASSERT_EQUAL(background_set(1), 0);
    struct bmi_context_fd fd = {.context = context};
    CU_ASSERT_EQUAL_FATAL(BMI_get_info(0, BMI_GET_CONTEXT_FD, &fd), 0);
    struct pollfd readable = {.fd = fd.fd, .events = POLLIN};
    timer = (struct bmi_timer){.expired = expired};
    atomic_store(&fired, false);
    while (poll(&readable, 1, 10) != 0 || !bmi__progress_asleep(&bmi__default))
        look(); /* the background stands by while a thread polls without a pause */
    bmi_method_timer_set(&bmi__default, &timer, 1000);
    /* until the background has the timer, and waits */
    while (!atomic_load(&fired) &&
           (poll(&readable, 1, 0) != 0 || !bmi__progress_asleep(&bmi__default)))
        sched_yield();
    CU_ASSERT_EQUAL(background_set(0), 0);
    time_t until = time(NULL) + PATIENCE_S;
    while (!atomic_load(&fired) && time(NULL) < until)
        if (poll(&readable, 1, PATIENCE_S * 1000) > 0)
            look();
    CU_ASSERT_TRUE(atomic_load(&fired));
    end();
}

/* ---- hooks ---------------------------------------------------------------------------------- */

static pthread_t delayed; /* its next delist waits for `go` */
static atomic_bool delay, arrived, go;

void __real_bmi__waiter_delist(struct waiter *waiter);
void __wrap_bmi__waiter_delist(struct waiter *waiter);

void __wrap_bmi__waiter_delist(struct waiter *waiter)
{
    __real_bmi__waiter_delist(waiter);
    if (!atomic_load(&delay) || !pthread_equal(pthread_self(), delayed))
        return;
    atomic_store(&delay, false);
    atomic_store(&arrived, true);
    becomes(&go);
}

static atomic_bool over, left;

static bool is_over(struct waiter *waiter)
{
    (void)waiter;
    return atomic_load(&over);
}

static void *wait_long(void *argument)
{
    struct waiter waiter = {.instance = &bmi__default,
                            .ready = is_over,
                            .list = context_waiters(argument),
                            .op = WAITER_SOME};
    bmi__progress_wait(&waiter, 10 * PATIENCE_S * 1000);
    atomic_store(&left, true);
    return NULL;
}

static enum bmi_task_status nothing(struct bmi_task *task, void *argument)
{
    (void)task;
    (void)argument;
    return BMI_TASK_DONE;
}

static bool always(struct waiter *waiter)
{
    (void)waiter;
    return true;
}

/* A poller gives up its role for a task that another thread has run by then: it continues
 * to wait. */
static void another_runs_the_hooks(void)
{
    open(0);
    struct context *found = bmi__context_find(context);
    struct waiter at_once = {.instance = &bmi__default,
                             .ready = always,
                             .list = context_waiters(found),
                             .op = WAITER_SOME};
    struct bmi_task task;
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY), 0);
    CU_ASSERT_EQUAL_FATAL(bmi_task_prepare(&task, NULL,
                                           &(struct bmi_task_attributes){.function = nothing}),
                          0);
    atomic_store(&over, false);
    atomic_store(&left, false);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&delayed, NULL, wait_long, found), 0);
    while (!bmi__progress_poller_blocks(&bmi__default))
        sched_yield();
    atomic_store(&delay, true);
    CU_ASSERT_EQUAL(bmi_task_submit(&task), 0);
    CU_ASSERT_TRUE(becomes(&arrived));  /* on its way out, still the poller */
    bmi__progress_wait(&at_once, 1000); /* runs the hooks */
    CU_ASSERT_EQUAL(bmi_task_wait(&task, -1), 0);
    atomic_store(&go, true);
    while (!atomic_load(&left) && !bmi__progress_poller_blocks(&bmi__default))
        sched_yield();
    CU_ASSERT_FALSE(atomic_load(&left));
    atomic_store(&over, true);
    bmi__progress_kick(&bmi__default);
    pthread_join(delayed, NULL);
    bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
    end();
}

/* ---- a start that fails --------------------------------------------------------------------- */

static atomic_bool no_workers;

int __real_bmi_task_manager_start(struct bmi_task_manager *manager, enum bmi_task_threads threads);
int __wrap_bmi_task_manager_start(struct bmi_task_manager *manager, enum bmi_task_threads threads);

int __wrap_bmi_task_manager_start(struct bmi_task_manager *manager, enum bmi_task_threads threads)
{
    if (atomic_load(&no_workers) && threads == BMI_TASK_WORKERS)
        return -EAGAIN;
    return __real_bmi_task_manager_start(manager, threads);
}

static void offload_can_not_start(void)
{
    open(0);
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=on"), 0);
    atomic_store(&no_workers, true);
    CU_ASSERT_TRUE(background_set(1) < 0);
    CU_ASSERT_EQUAL(background_get(), 0);
    CU_ASSERT_FALSE(bmi__background_on(&bmi__default));
    atomic_store(&no_workers, false);
    CU_ASSERT_EQUAL(background_set(1), 0);
    CU_ASSERT_TRUE(bmi__background_on(&bmi__default));
    CU_ASSERT_EQUAL(background_set(0), 0);
    CU_ASSERT_FALSE(bmi__background_on(&bmi__default));
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_SETTING, "offload=off"), 0);
    end();
}

int main(void)
{
    CU_TestInfo tests[] = {
        {"a caller sets a timer", a_caller_sets_a_timer},
        {"the background leaves a timer", the_background_leaves_a_timer},
        {"another runs the hooks", another_runs_the_hooks},
        {"offload can't start", offload_can_not_start},
        CU_TEST_INFO_NULL,
    };
    return unit_run("handover", tests);
}
