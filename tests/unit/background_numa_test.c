/* SPDX-License-Identifier: BSD-3-Clause
 *
 * background_numa_test.c - on a machine with several NUMA nodes, progress in the background moves
 * to the node of the thread that posts. vm.numa runs it in guests.
 */
#include <time.h>

#include "numa.h"

enum { PATIENCE_S = 60 };

static BMI_addr_t self;
static bmi_context_id context;
static cpu_set_t everywhere; /* the CPUs of the process */

static void set_up(void)
{
    char address[BMI_MAX_ADDR_LEN];
    sched_setaffinity(0, sizeof everywhere, &everywhere); /* new threads inherit it */
    CU_ASSERT_EQUAL_FATAL(BMI_initialize("bmi_tcp", "tcp://127.0.0.1:0",
                                         BMI_INIT_SERVER | BMI_INIT_BACKGROUND),
                          0);
    CU_ASSERT_EQUAL_FATAL(BMI_get_info(0, BMI_GET_LISTEN_ADDR, address), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_addr_lookup(&self, address), 0);
    CU_ASSERT_EQUAL_FATAL(BMI_open_context(&context), 0);
}

static void tear_down(void)
{
    BMI_close_context(context);
    CU_ASSERT_EQUAL(BMI_finalize(), 0);
}

/* A message to this process, from its post to its end. */
static void message_pass(void)
{
    static char sent[8], arrived[8];
    bmi_op_id_t ids[2], id;
    bmi_size_t actual;
    bmi_error_code_t error;
    int pending = 0, count;
    int result = BMI_post_recv(&ids[0], self, arrived, sizeof arrived, &actual, BMI_EXT_ALLOC, 1,
                               NULL, context, NULL);
    CU_ASSERT_FATAL(result >= 0);
    pending += result == 0;
    result = BMI_post_send(&ids[1], self, sent, sizeof sent, BMI_EXT_ALLOC, 1, NULL, context, NULL);
    CU_ASSERT_FATAL(result >= 0);
    pending += result == 0;
    while (pending > 0) {
        CU_ASSERT_FATAL(BMI_testcontext(1, &id, &count, &error, &actual, NULL, 1000, context) >= 0);
        pending -= count;
    }
}

static void the_task_is_near_the_posts(void)
{
    for (int i = 0; i < nodes.count; i++) {
        int node = node_of_cpu(nodes.cpu[i]);
        time_t end = time(NULL) + PATIENCE_S;
        run_on(nodes.cpu[i]);
        while (blocking_threads_on(node) == 0 && time(NULL) < end)
            message_pass();
        CU_ASSERT_EQUAL(blocking_threads_on(node), 1);
        for (int k = 0; k < nodes.count; k++)
            CU_ASSERT(k == i || blocking_threads_on(node_of_cpu(nodes.cpu[k])) == 0);
    }
}

/* The manager goes on, and so does the thread, for other tasks. */
static void the_thread_returns(void)
{
    int off = 0;
    CU_ASSERT_EQUAL_FATAL(bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY), 0);
    the_task_is_near_the_posts();
    CU_ASSERT_EQUAL(BMI_set_info(0, BMI_BACKGROUND, &off), 0);
    for (int i = 0; i < nodes.count; i++)
        CU_ASSERT_EQUAL(blocking_threads_on(node_of_cpu(nodes.cpu[i])), 0);
    CU_ASSERT_EQUAL(bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY), 0);
}

static CU_TestInfo cases[] = {{"the task is near the posts", the_task_is_near_the_posts},
                              {"the thread returns", the_thread_returns},
                              CU_TEST_INFO_NULL};

int main(void)
{
    CU_SuiteInfo suites[] = {{"the background on NUMA nodes", NULL, NULL, set_up, tear_down, cases},
                             CU_SUITE_INFO_NULL};
    sched_getaffinity(0, sizeof everywhere, &everywhere);
    return nodes_find() ? unit_run_suites(suites) : NODES_SKIPPED;
}
