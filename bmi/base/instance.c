/* SPDX-License-Identifier: BSD-3-Clause
 *
 * instance.c - the default instance. See instance.h.
 */
#include "bmi/base/instance.h"

extern struct bmi__settings bmi__default_settings; /* settings.c */
extern struct bmi__logging bmi__default_logging;   /* log.c */

struct bmi_instance bmi__default = {
    .settings = &bmi__default_settings,
    .logging = &bmi__default_logging,
    .starting = BMI__CHECKED_LOCK,
};

struct bmi_instance *bmi_instance_default(void)
{
    return &bmi__default;
}

const char *bmi_instance_name(const struct bmi_instance *instance)
{
    return instance->name;
}
