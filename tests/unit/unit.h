/* SPDX-License-Identifier: BSD-3-Clause
 *
 * unit.h - shared by the unit tests of the core: the main of one suite, and the log's catcher.
 */
#ifndef TESTS_UNIT_H
#define TESTS_UNIT_H

#include <CUnit/Basic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bmi.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* Runs suites. Returns the program's exit status. */
static inline int unit_run_suites(CU_SuiteInfo *suites)
{
    if (CU_initialize_registry() != CUE_SUCCESS || CU_register_suites(suites) != CUE_SUCCESS) {
        fprintf(stderr, "%s: cannot register: %s\n", suites->pName, CU_get_error_msg());
        return 1;
    }
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failed = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failed == 0 ? 0 : 1;
}

static inline int unit_run(const char *name, CU_TestInfo *tests)
{
    CU_SuiteInfo suites[] = {{.pName = name, .pTests = tests}, CU_SUITE_INFO_NULL};
    return unit_run_suites(suites);
}

/* Lines logged at level error or above since log_catch, joined by newlines. */
struct caught {
    char text[8192];
};

static inline void caught_write(void *argument, enum bmi_log_level level, const char *text)
{
    struct caught *caught = argument;
    size_t used = strlen(caught->text);
    (void)level;
    snprintf(caught->text + used, sizeof caught->text - used, "%s\n", text);
}

#endif
