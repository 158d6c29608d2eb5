/* SPDX-License-Identifier: BSD-3-Clause
 *
 * failing_reply.c - for a test: in place of bmi_job_send, with no memory for a server's third
 * reply.
 */
#include <bmi/job.h>

int __real_bmi_job_send(struct bmi_job_context *context, BMI_addr_t address, const void *buffer,
                        bmi_size_t size, enum bmi_buffer_type type, bmi_msg_tag_t tag,
                        const struct bmi_job_options *options, bmi_job_id_t *id,
                        struct bmi_job_status *status);
int __wrap_bmi_job_send(struct bmi_job_context *context, BMI_addr_t address, const void *buffer,
                        bmi_size_t size, enum bmi_buffer_type type, bmi_msg_tag_t tag,
                        const struct bmi_job_options *options, bmi_job_id_t *id,
                        struct bmi_job_status *status);

int __wrap_bmi_job_send(struct bmi_job_context *context, BMI_addr_t address, const void *buffer,
                        bmi_size_t size, enum bmi_buffer_type type, bmi_msg_tag_t tag,
                        const struct bmi_job_options *options, bmi_job_id_t *id,
                        struct bmi_job_status *status)
{
    static int replies;
    if (++replies == 3)
        return -BMI_ENOMEM;
    return __real_bmi_job_send(context, address, buffer, size, type, tag, options, id, status);
}
