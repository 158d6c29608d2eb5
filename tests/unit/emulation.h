/* SPDX-License-Identifier: BSD-3-Clause
 *
 * emulation.h - for tests that run in an emulated process (qemu-user, preset aarch64), which lacks
 * some system calls. bmi_test sets BMI_TEST_EMULATED for them.
 */
#ifndef TEST_EMULATION_H
#define TEST_EMULATION_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* Whether the test has to be left out, since an emulated process lacks this; prints the reason. */
static inline bool test_emulation_lacks(const char *what)
{
    if (getenv("BMI_TEST_EMULATED") == NULL)
        return false;
    printf("skipped: qemu-user has no %s ", what);
    return true;
}

#endif
