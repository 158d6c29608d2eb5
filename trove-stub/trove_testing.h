/* SPDX-License-Identifier: BSD-3-Clause
 *
 * trove_testing.h - shared by the tests of trove-stub and flow: stores in their own folder, and
 * waits for posts.
 */
#ifndef TROVE_TESTING_H
#define TROVE_TESTING_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bmi/trove.h"
#include "tests/unit/unit.h"

enum { PATIENCE_MS = 120000 };

/* A folder of this test's own. */
struct folder {
    char path[256];
};

static inline void folder_make(struct folder *folder)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder->path, sizeof folder->path, "%s/bmi-trove-XXXXXX",
             base != NULL && strlen(base) < 200 ? base : "/tmp");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder->path));
}

static inline int folder_remove_one(const char *path, const struct stat *status, int type,
                                    struct FTW *where)
{
    (void)status, (void)type, (void)where;
    return remove(path);
}

static inline void folder_remove(struct folder *folder)
{
    nftw(folder->path, folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The result of a post. */
struct outcome {
    bmi_error_code_t error;
    bmi_size_t actual; /* -1: not reported, since it was done within the post */
    bool immediate;
};

/* Waits for the end of an operation, by the result and id of its post. */
static inline struct outcome outcome_of(int result, const bmi_trove_op_id_t *op,
                                        bmi_trove_context_id_t context)
{
    struct outcome outcome = {.error = result < 0 ? result : 0,
                              .actual = -1,
                              .immediate = result != 0};
    if (result != 0) {
        CU_ASSERT_EQUAL(*op, 0);
        return outcome;
    }
    int count = 0;
    CU_ASSERT(*op > 0);
    CU_ASSERT_EQUAL(bmi_trove_test(*op, &count, &outcome.error, &outcome.actual, NULL, PATIENCE_MS,
                                   context),
                    1);
    CU_ASSERT_EQUAL_FATAL(count, 1);
    return outcome;
}

/* For a program that was started anew as a child: runs `body` silently, as a case, since helpers
 * assert. Returns the exit status. */
static inline int child_run(void (*body)(void))
{
    CU_TestInfo cases[] = {{"child", body}, CU_TEST_INFO_NULL};
    CU_SuiteInfo suites[] = {{"child", NULL, NULL, NULL, NULL, cases}, CU_SUITE_INFO_NULL};
    if (CU_initialize_registry() != CUE_SUCCESS || CU_register_suites(suites) != CUE_SUCCESS)
        return 1;
    CU_basic_set_mode(CU_BRM_SILENT);
    CU_basic_run_tests();
    return CU_get_number_of_failures() == 0 ? 0 : 1;
}

static inline void bytes_make(char *bytes, size_t size, unsigned seed)
{
    uint32_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < size; i++) {
        state = state * 1664525 + 1013904223;
        bytes[i] = (char)(state >> 24);
    }
}

#endif
