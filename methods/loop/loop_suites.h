/* SPDX-License-Identifier: BSD-3-Clause
 *
 * loop_suites.h - the parts of the loop method's test, one file each.
 */
#ifndef LOOP_SUITES_H
#define LOOP_SUITES_H

#include <CUnit/Basic.h>

extern CU_TestInfo loop_memory_tests[]; /* loop_memory_test.c: registrations, puts, gets */
extern CU_TestInfo loop_thread_tests[]; /* loop_thread_test.c: many threads at once */

#endif
