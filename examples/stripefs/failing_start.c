/* SPDX-License-Identifier: BSD-3-Clause
 *
 * failing_start.c - for a test: in place of bmi_sm_start, with no memory for the machine whose
 * number is in STRIPEFS_FAILS. Earlier machines continue.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include <bmi/job.h>

int __real_bmi_sm_start(struct bmi_job_context *context, struct bmi_sm_table *table, void *data,
                        const struct bmi_sm_placement *placement,
                        const struct bmi_job_options *options, bmi_job_id_t *id,
                        struct bmi_job_status *status);
int __wrap_bmi_sm_start(struct bmi_job_context *context, struct bmi_sm_table *table, void *data,
                        const struct bmi_sm_placement *placement,
                        const struct bmi_job_options *options, bmi_job_id_t *id,
                        struct bmi_job_status *status);

int __wrap_bmi_sm_start(struct bmi_job_context *context, struct bmi_sm_table *table, void *data,
                        const struct bmi_sm_placement *placement,
                        const struct bmi_job_options *options, bmi_job_id_t *id,
                        struct bmi_job_status *status)
{
    static atomic_long starts;
    const char *number = getenv("STRIPEFS_FAILS");
    if (number != NULL && atomic_fetch_add(&starts, 1) + 1 == atol(number))
        return -BMI_ENOMEM;
    return __real_bmi_sm_start(context, table, data, placement, options, id, status);
}
