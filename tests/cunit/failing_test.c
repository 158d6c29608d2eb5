/* SPDX-License-Identifier: BSD-3-Clause
 *
 * failing_test.c - assertions that fail, for a test that has to fail: whatever stands for CUnit
 * must count each one, end a test at a fatal one, and go on with the next test.
 */
#include <CUnit/Basic.h>
#include <pthread.h>
#include <stdlib.h>

static void *fail_in_thread(void *argument)
{
    CU_ASSERT_PTR_NULL(argument);
    return NULL;
}

static void three_failures(void)
{
    CU_ASSERT_EQUAL(1, 2);
    CU_ASSERT_STRING_EQUAL("one", "other");
    CU_ASSERT_DOUBLE_EQUAL(1.0, 1.2, 0.1);
    CU_ASSERT_TRUE(1 == 1);
}

static void fatal_failure(void)
{
    CU_ASSERT_FATAL(0 == 1);
    exit(0); /* not reached; 0 as in main */
}

static void failure_of_a_thread(void)
{
    pthread_t thread;
    int something = 0;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, fail_in_thread, &something), 0);
    pthread_join(thread, NULL);
}

/* 0 (which the test takes for a failure): not all were counted. */
int main(void)
{
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 0;
    CU_pSuite suite = CU_add_suite("failures", NULL, NULL);
    CU_ADD_TEST(suite, three_failures);
    CU_ADD_TEST(suite, fatal_failure);
    CU_ADD_TEST(suite, failure_of_a_thread);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    printf("%u of 5 failures were counted\n", failures);
    return failures == 5 ? 1 : 0;
}
