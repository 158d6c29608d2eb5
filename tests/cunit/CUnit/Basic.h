/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Basic.h - a stand-in for the part of CUnit that the tests use, for targets without a CUnit
 * package (BMI_TEST_CUNIT=standin). Names and meaning are those of CUnit. Assertions may fail in
 * any thread; a fatal one ends the test, or the process if another thread than that of the test
 * fails it.
 */
#ifndef TESTS_CUNIT_BASIC_H
#define TESTS_CUNIT_BASIC_H

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CU_FALSE 0
#define CU_TRUE 1

enum { CUE_SUCCESS = 0, CUE_NOMEMORY = 1 };

typedef int CU_BOOL, CU_ErrorCode;
typedef void (*CU_TestFunc)(void);
typedef enum { CU_BRM_NORMAL, CU_BRM_SILENT, CU_BRM_VERBOSE } CU_BasicRunMode;
typedef struct CU_Test *CU_pTest;
typedef struct CU_Suite *CU_pSuite;

typedef struct {
    const char *pName;
    CU_TestFunc pTestFunc;
} CU_TestInfo;

typedef struct {
    const char *pName;
    int (*pInitFunc)(void), (*pCleanupFunc)(void);
    void (*pSetUpFunc)(void), (*pTearDownFunc)(void);
    CU_TestInfo *pTests;
} CU_SuiteInfo;

#define CU_TEST_INFO_NULL \
    {                     \
        NULL, NULL        \
    }
#define CU_SUITE_INFO_NULL                 \
    {                                      \
        NULL, NULL, NULL, NULL, NULL, NULL \
    }

CU_ErrorCode CU_initialize_registry(void);
void CU_cleanup_registry(void);
CU_pSuite CU_add_suite(const char *name, int (*begin)(void), int (*end)(void));
CU_pTest CU_add_test(CU_pSuite suite, const char *name, CU_TestFunc function);
CU_ErrorCode CU_register_suites(CU_SuiteInfo *suites);
CU_pTest CU_get_current_test(void);
const char *CU_get_error_msg(void);
void CU_basic_set_mode(CU_BasicRunMode mode);
/* Runs all tests. The failures of an earlier run are forgotten. */
CU_ErrorCode CU_basic_run_tests(void);
/* Failed assertions, and failed suite functions, since the run began. */
unsigned CU_get_number_of_failures(void);
CU_BOOL CU_assertImplementation(CU_BOOL good, unsigned line, const char *condition,
                                const char *file, const char *function, CU_BOOL fatal);

#define CU_ADD_TEST(suite, test) CU_add_test(suite, #test, test)

#define CU__CHECK(good, text, fatal) \
    ((void)CU_assertImplementation((good), (unsigned)__LINE__, text, __FILE__, "", fatal))

#define CU_PASS(text) CU__CHECK(CU_TRUE, "CU_PASS(" #text ")", CU_FALSE)
#define CU_FAIL(text) CU__CHECK(CU_FALSE, "CU_FAIL(" #text ")", CU_FALSE)
#define CU_FAIL_FATAL(text) CU__CHECK(CU_FALSE, "CU_FAIL_FATAL(" #text ")", CU_TRUE)

#define CU_ASSERT(value) CU__CHECK((value) ? CU_TRUE : CU_FALSE, #value, CU_FALSE)
#define CU_ASSERT_FATAL(value) CU__CHECK((value) ? CU_TRUE : CU_FALSE, #value, CU_TRUE)
#define CU_ASSERT_TRUE(value) CU_ASSERT(value)
#define CU_ASSERT_TRUE_FATAL(value) CU_ASSERT_FATAL(value)
#define CU_ASSERT_FALSE(value) CU__CHECK(!(value), "!(" #value ")", CU_FALSE)

#define CU_ASSERT_EQUAL(a, b) CU__CHECK((a) == (b), #a " == " #b, CU_FALSE)
#define CU_ASSERT_EQUAL_FATAL(a, b) CU__CHECK((a) == (b), #a " == " #b, CU_TRUE)
#define CU_ASSERT_NOT_EQUAL(a, b) CU__CHECK((a) != (b), #a " != " #b, CU_FALSE)
#define CU_ASSERT_NOT_EQUAL_FATAL(a, b) CU__CHECK((a) != (b), #a " != " #b, CU_TRUE)

#define CU__SAME(a, b) ((const void *)(a) == (const void *)(b))
#define CU_ASSERT_PTR_EQUAL(a, b) CU__CHECK(CU__SAME(a, b), #a " == " #b, CU_FALSE)
#define CU_ASSERT_PTR_EQUAL_FATAL(a, b) CU__CHECK(CU__SAME(a, b), #a " == " #b, CU_TRUE)
#define CU_ASSERT_PTR_NOT_EQUAL(a, b) CU__CHECK(!CU__SAME(a, b), #a " != " #b, CU_FALSE)
#define CU_ASSERT_PTR_NOT_EQUAL_FATAL(a, b) CU__CHECK(!CU__SAME(a, b), #a " != " #b, CU_TRUE)
#define CU_ASSERT_PTR_NULL(a) CU__CHECK(CU__SAME(a, NULL), #a " == NULL", CU_FALSE)
#define CU_ASSERT_PTR_NOT_NULL(a) CU__CHECK(!CU__SAME(a, NULL), #a " != NULL", CU_FALSE)
#define CU_ASSERT_PTR_NOT_NULL_FATAL(a) CU__CHECK(!CU__SAME(a, NULL), #a " != NULL", CU_TRUE)

#define CU__ALIKE(a, b) (strcmp((const char *)(a), (const char *)(b)) == 0)
#define CU_ASSERT_STRING_EQUAL(a, b) CU__CHECK(CU__ALIKE(a, b), #a " is " #b, CU_FALSE)
#define CU_ASSERT_STRING_EQUAL_FATAL(a, b) CU__CHECK(CU__ALIKE(a, b), #a " is " #b, CU_TRUE)
#define CU_ASSERT_STRING_NOT_EQUAL(a, b) CU__CHECK(!CU__ALIKE(a, b), #a " is not " #b, CU_FALSE)

#define CU_ASSERT_DOUBLE_EQUAL(a, b, most) \
    CU__CHECK(fabs((double)(a) - (double)(b)) <= fabs((double)(most)), #a " is near " #b, CU_FALSE)

#endif
