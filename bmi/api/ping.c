/* SPDX-License-Identifier: BSD-3-Clause
 *
 * ping.c - bmi_ping: one ping in a context of its own, which the program does not see.
 */
#include <errno.h>

#include "bmi/api/api.h"
#include "bmi/base/instance.h"
#include "bmi/connection/address.h"
#include "bmi/state/context.h"

static int ping(BMI_addr_t addr, int timeout_ms, bmi_context_id context, double *round_trip_us)
{
    bmi_op_id_t id;
    bmi_size_t nanoseconds = 0;
    bmi_error_code_t error = 0;
    int count = 0;
    struct post post = {.kind = OP_PING, .address = addr, .context = context};
    int status = bmi__post(&post, &id);
    if (status < 0)
        return status;
    status = BMI_test(id, &count, &error, &nanoseconds, NULL, timeout_ms, context);
    if (status >= 0 && count == 0) {
        BMI_cancel(id, context);
        while (status >= 0 && count == 0)
            status = BMI_test(id, &count, &error, &nanoseconds, NULL, 1000, context);
        if (error == -BMI_ECANCEL)
            error = -BMI_ETIMEDOUT;
    }
    *round_trip_us = (double)nanoseconds / 1000;
    return status < 0 ? status : error;
}

int bmi_ping(BMI_addr_t addr, int timeout_ms, double *round_trip_us)
{
    bmi_context_id context;
    if (timeout_ms <= 0 || round_trip_us == NULL)
        return -BMI_EINVAL;
    int status = bmi_instance_open_context(bmi__address_instance(addr), &context);
    if (status < 0)
        return status;
    bmi__context_hide(bmi__context_find(context));
    status = ping(addr, timeout_ms, context, round_trip_us);
    BMI_close_context(context);
    return status;
}
