/* SPDX-License-Identifier: BSD-3-Clause
 * start.h - what initialize and finalize need of others. */
#ifndef BMI_START_H
#define BMI_START_H

/* info.c: prints all statistics to standard error. */
void bmi__statistics_print(void);

#endif
