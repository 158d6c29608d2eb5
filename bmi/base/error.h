/* SPDX-License-Identifier: BSD-3-Clause
 * error.h - errno values and BMI's error numbers, and back. */
#ifndef BMI_ERROR_H
#define BMI_ERROR_H

#include "bmi.h"

/* The negated BMI error of a negated errno (0 stays 0; values that carry BMI_ERROR already are
 * returned as they are; an errno without a counterpart becomes EIO). */
bmi_error_code_t bmi__error(int negated_errno);

/* The BMI error "cancelled", which has no errno of its own, as methods and the core pass it. */
enum { BMI__CANCELLED = -(1 << 20) };

#endif
