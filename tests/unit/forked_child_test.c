/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forked_child_test.c - a process that forked while its threads waited, and has ended, as with
 * daemon(3): its child continues with its address and contexts, in its own threads.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bmi/base/instance.h"
#include "bmi/progress/progress.h"
#include "bmi/progress/waiters.h"
#include "bmi/state/context.h"
#include "emulation.h"
#include "unit.h"

enum { THREADS = 6, ROUNDS = 20, PATIENCE_MS = 120000 };

static BMI_addr_t own_address;
static bmi_context_id contexts[THREADS];
static atomic_int failed_line;

#define MUST(condition)                                                    \
    do {                                                                   \
        int none = 0;                                                      \
        if (!(condition))                                                  \
            atomic_compare_exchange_strong(&failed_line, &none, __LINE__); \
    } while (0)

/* The last waits for unexpected messages, all others for their contexts. */
static void *wait_for_nothing(void *argument)
{
    bmi_context_id *context = argument;
    struct BMI_unexpected_info info;
    bmi_op_id_t op;
    bmi_error_code_t error;
    int count;
    for (;;) {
        if (context == &contexts[THREADS - 1])
            BMI_testunexpected(1, &count, &info, PATIENCE_MS);
        else
            BMI_testcontext(1, &op, &count, &error, NULL, NULL, PATIENCE_MS, *context);
    }
    return NULL;
}

/* Messages to itself in its own context, one at a time. */
static void *exchange(void *argument)
{
    bmi_context_id *context = argument;
    bmi_msg_tag_t tag = (bmi_msg_tag_t)(context - contexts);
    for (int i = 0; i < ROUNDS && atomic_load(&failed_line) == 0; i++) {
        char out[6000] = "hello", in[6000] = "";
        bmi_op_id_t ids[2], done[2];
        bmi_error_code_t errors[2];
        bmi_size_t actual;
        int left = 0;
        left += BMI_post_recv(&ids[0], own_address, in, sizeof in, &actual, BMI_EXT_ALLOC, tag,
                              NULL, *context, NULL) == 0;
        left += BMI_post_send(&ids[1], own_address, out, sizeof out, BMI_EXT_ALLOC, tag, NULL,
                              *context, NULL) == 0;
        while (left > 0) {
            int count = 0;
            int status =
                BMI_testcontext(2, done, &count, errors, NULL, NULL, PATIENCE_MS / 4, *context);
            MUST(status == 1 && count > 0 && errors[0] == 0);
            if (status != 1)
                return NULL;
            left -= count;
        }
        MUST(strcmp(in, "hello") == 0);
    }
    return NULL;
}

static void threads_make(pthread_t threads[THREADS], void *(*run)(void *))
{
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, run, &contexts[i]) == 0);
}

/* Waits in the library before it has threads, and after. */
static void child_goes_on(void)
{
    pthread_t threads[THREADS];
    MUST(bmi__waiters_asleep(&bmi__default) == 0 &&
         bmi__waiters_for_unexpected(&bmi__default) == 0);
    MUST(!bmi__progress_polled(&bmi__default));
    exchange(&contexts[0]);
    threads_make(threads, exchange);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        BMI_close_context(contexts[i]);
    MUST(BMI_finalize() == 0);
}

/* One polls, asleep; THREADS - 1 sleep. */
static void parent_waits(const char *method, const char *listen, int flags)
{
    pthread_t threads[THREADS];
    char bound[BMI_MAX_ADDR_LEN];
    MUST(BMI_initialize(method, listen, BMI_INIT_SERVER | flags) == 0);
    MUST(BMI_get_info(0, BMI_GET_LISTEN_ADDR, bound) == 0);
    MUST(BMI_addr_lookup(&own_address, bound) == 0);
    for (int i = 0; i < THREADS; i++)
        MUST(BMI_open_context(&contexts[i]) == 0);
    threads_make(threads, wait_for_nothing);
    while (bmi__waiters_asleep(&bmi__default) < THREADS - 1 ||
           !bmi__progress_poller_blocks(&bmi__default))
        usleep(1000);
}

/* Forks, ends, and leaves all to its child, which reports the line that failed, or 0. */
static void parent_run(const char *method, const char *listen, int flags, int tell)
{
    pid_t parent = getpid();
    parent_waits(method, listen, flags);
    pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE_MS / 1000);
        while (getppid() == parent)
            usleep(1000);
        child_goes_on();
        int line = atomic_load(&failed_line);
        _exit(write(tell, &line, sizeof line) != sizeof line);
    }
    MUST(child > 0);
    exchange(&contexts[THREADS - 1]); /* as before; no thread waits on its context */
    _exit(atomic_load(&failed_line) != 0);
}

static void forked_child_of(const char *method, const char *listen, int flags)
{
    int tell[2], status = -1, line = -1;
    CU_ASSERT_EQUAL_FATAL(pipe(tell), 0);
    pid_t parent = fork();
    if (parent == 0) {
        close(tell[0]);
        alarm(PATIENCE_MS / 1000);
        parent_run(method, listen, flags, tell[1]);
    }
    close(tell[1]);
    CU_ASSERT_EQUAL(waitpid(parent, &status, 0), parent);
    CU_ASSERT_EQUAL(status, 0);
    CU_ASSERT_EQUAL(read(tell[0], &line, sizeof line), sizeof line);
    CU_ASSERT_EQUAL(line, 0);
    close(tell[0]);
}

static void a_child_has_no_waiters_of_its_parents(void)
{
    for (int i = 0; i < 5; i++)
        forked_child_of("bmi_loop", "loop://child", 0);
}

static void nor_over_tcp(void)
{
    for (int i = 0; i < 5; i++)
        forked_child_of("bmi_tcp", "tcp://127.0.0.1:0", 0);
}

static void nor_of_one_with_progress_in_the_background(void)
{
    for (int i = 0; i < 5; i++)
        forked_child_of("bmi_tcp", "tcp://127.0.0.1:0", BMI_INIT_BACKGROUND);
}

int main(void)
{
    static CU_TestInfo tests[] = {
        {"a child has no waiters of its parent's", a_child_has_no_waiters_of_its_parents},
        {"nor over tcp", nor_over_tcp},
        {"nor of one with progress in the background", nor_of_one_with_progress_in_the_background},
        CU_TEST_INFO_NULL,
    };
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    /* A child that starts threads crashes there, or waits for a lock of the allocator. */
    puts("skipped: built with a sanitizer");
    return 77;
#endif
    if (test_emulation_lacks("threads in a child of threads"))
        return 77;
    return unit_run("a child whose parent has ended", tests);
}
