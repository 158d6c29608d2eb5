/* SPDX-License-Identifier: BSD-3-Clause
 *
 * error.h - errors of the system as BMI's codes. All functions of the task manager that can fail
 * return negative codes of BMI's; errno values stay where they arise.
 */
#ifndef BMI_TASK_ERROR_H
#define BMI_TASK_ERROR_H

#include "bmi.h"

/* The negative code for an errno value; EIO for one that has no code. */
int bmi__task_error(int number);

#endif
