/* SPDX-License-Identifier: BSD-3-Clause
 *
 * cunit.c - the stand-in of CUnit/Basic.h: a list of suites, each with a list of tests. The lists
 * belong to the thread that runs the tests; the count of failures belongs to all threads.
 */
#include <CUnit/Basic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct CU_Test {
    struct CU_Test *next;
    CU_TestFunc function;
    char name[];
};

struct CU_Suite {
    struct CU_Suite *next;
    int (*begin)(void), (*end)(void);
    void (*before)(void), (*after)(void); /* each test */
    struct CU_Test *tests;
    char name[];
};

static struct {
    struct CU_Suite *suites;
    struct CU_Test *current;
    CU_BasicRunMode mode;
    atomic_uint failures, assertions;
    jmp_buf fatal; /* valid in `thread` while current is set */
    pthread_t thread;
} registry;

CU_ErrorCode CU_initialize_registry(void)
{
    CU_cleanup_registry();
    return CUE_SUCCESS;
}

/* Keeps the count of failures. */
void CU_cleanup_registry(void)
{
    struct CU_Suite *suite;
    struct CU_Test *test;
    while ((suite = registry.suites) != NULL) {
        registry.suites = suite->next;
        while ((test = suite->tests) != NULL) {
            suite->tests = test->next;
            free(test);
        }
        free(suite);
    }
}

CU_pSuite CU_add_suite(const char *name, int (*begin)(void), int (*end)(void))
{
    struct CU_Suite **last = &registry.suites;
    while (*last != NULL)
        last = &(*last)->next;
    if ((*last = calloc(1, sizeof **last + strlen(name) + 1)) == NULL)
        return NULL;
    strcpy((*last)->name, name);
    (*last)->begin = begin;
    (*last)->end = end;
    return *last;
}

CU_pTest CU_add_test(CU_pSuite suite, const char *name, CU_TestFunc function)
{
    struct CU_Test **last = &suite->tests;
    while (*last != NULL)
        last = &(*last)->next;
    if ((*last = calloc(1, sizeof **last + strlen(name) + 1)) == NULL)
        return NULL;
    strcpy((*last)->name, name);
    (*last)->function = function;
    return *last;
}

CU_ErrorCode CU_register_suites(CU_SuiteInfo *suites)
{
    for (; suites->pName != NULL; suites++) {
        CU_pSuite suite = CU_add_suite(suites->pName, suites->pInitFunc, suites->pCleanupFunc);
        if (suite == NULL)
            return CUE_NOMEMORY;
        suite->before = suites->pSetUpFunc;
        suite->after = suites->pTearDownFunc;
        for (CU_TestInfo *test = suites->pTests; test->pName != NULL; test++)
            if (CU_add_test(suite, test->pName, test->pTestFunc) == NULL)
                return CUE_NOMEMORY;
    }
    return CUE_SUCCESS;
}

CU_pTest CU_get_current_test(void)
{
    return registry.current;
}

const char *CU_get_error_msg(void)
{
    return "out of memory"; /* nothing else can fail */
}

void CU_basic_set_mode(CU_BasicRunMode mode)
{
    registry.mode = mode;
}

unsigned CU_get_number_of_failures(void)
{
    return atomic_load(&registry.failures);
}

CU_BOOL CU_assertImplementation(CU_BOOL good, unsigned line, const char *condition,
                                const char *file, const char *function, CU_BOOL fatal)
{
    (void)function;
    atomic_fetch_add(&registry.assertions, 1);
    if (good)
        return CU_TRUE;
    atomic_fetch_add(&registry.failures, 1);
    printf("\n    FAILED: %s:%u: %s\n", file, line, condition);
    fflush(stdout);
    if (fatal && (registry.current == NULL || !pthread_equal(registry.thread, pthread_self())))
        abort(); /* there is no test that this thread could end */
    if (fatal)
        longjmp(registry.fatal, 1);
    return CU_FALSE;
}

static void test_run(struct CU_Suite *suite, struct CU_Test *test)
{
    unsigned failed_before = CU_get_number_of_failures();
    bool loud = registry.mode == CU_BRM_VERBOSE;
    if (loud)
        printf("  Test: %s ...", test->name);
    fflush(stdout);
    if (suite->before != NULL)
        suite->before();
    registry.current = test;
    registry.thread = pthread_self();
    if (setjmp(registry.fatal) == 0)
        test->function();
    registry.current = NULL;
    if (suite->after != NULL)
        suite->after();
    if (CU_get_number_of_failures() != failed_before)
        printf("  Test: %s failed\n", test->name);
    else if (loud)
        printf(" passed\n");
    fflush(stdout);
}

static CU_BOOL function_run(struct CU_Suite *suite, int (*function)(void))
{
    CU_BOOL good = function == NULL || function() == 0;
    return CU_assertImplementation(good, 0, "begin or end of the suite", suite->name, "", 0);
}

CU_ErrorCode CU_basic_run_tests(void)
{
    unsigned tests = 0;
    atomic_store(&registry.failures, 0);
    atomic_store(&registry.assertions, 0);
    for (struct CU_Suite *suite = registry.suites; suite != NULL; suite = suite->next) {
        if (registry.mode == CU_BRM_VERBOSE)
            printf("\nSuite: %s\n", suite->name);
        if (!function_run(suite, suite->begin))
            continue;
        for (struct CU_Test *test = suite->tests; test != NULL; test = test->next, tests++)
            test_run(suite, test);
        function_run(suite, suite->end);
    }
    printf("\n%u tests, %u assertions, %u failures\n", tests, atomic_load(&registry.assertions),
           CU_get_number_of_failures());
    fflush(stdout);
    return CUE_SUCCESS;
}
