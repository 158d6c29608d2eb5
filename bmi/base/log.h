/* SPDX-License-Identifier: BSD-3-Clause
 *
 * log.h - messages for people: off unless asked for by BMI_LOG or a callback.
 */
#ifndef BMI_LOG_H
#define BMI_LOG_H

#include <stdbool.h>

#include "bmi.h"

struct bmi_instance;

enum { BMI__LOG_WARNINGS = 100 }; /* written in a second at most; then how many were not */

/* Whether messages of a level go anywhere; cheap, for use before costly formatting. */
bool bmi__log_wanted(struct bmi_instance *instance, enum bmi_log_level level);
void bmi__log(struct bmi_instance *instance, enum bmi_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void bmi__log_callback(struct bmi_instance *instance, const struct bmi_log_callback *callback);

/* Called before an instance starts and after it has ended; never for the default one.
 * Returns 0 or -ENOMEM. */
int bmi__logging_open(struct bmi_instance *instance);
void bmi__logging_close(struct bmi_instance *instance);

#endif
