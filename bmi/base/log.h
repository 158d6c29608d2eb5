/* SPDX-License-Identifier: BSD-3-Clause
 *
 * log.h - messages for people: off unless asked for by BMI_LOG or a callback.
 */
#ifndef BMI_LOG_H
#define BMI_LOG_H

#include <stdbool.h>

#include "bmi.h"

enum { BMI__LOG_WARNINGS = 100 }; /* written in a second at most; then how many were not */

/* Whether messages of a level go anywhere; cheap, for use before costly formatting. */
bool bmi__log_wanted(enum bmi_log_level level);
void bmi__log(enum bmi_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void bmi__log_callback(const struct bmi_log_callback *callback);

#endif
