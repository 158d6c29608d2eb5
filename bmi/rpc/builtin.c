/* SPDX-License-Identifier: BSD-3-Clause
 *
 * builtin.c - the service "bmi.services": names and counters of all services of this process, for
 * bmi-rpc(1). The reply has for each service a string and an array of six numbers, all express:
 * requests, failed, cancelled, running, bytes in, bytes out.
 */
#include "bmi/rpc/services.h"

#include "bmi/instance.h"
#include "bmi/rpc/serve.h"

static void services_run(struct bmi_rpc_request *request)
{
    struct bmi_instance *instance = bmi__request_instance(request);
    struct bmi_message *reply = bmi_message_new();
    struct bmi_rpc_statistics one;
    if (reply == NULL) {
        bmi_rpc_fail(request, -BMI_ENOMEM);
        return;
    }
    for (int i = 0; bmi_instance_rpc_service_next(instance, i, &one) == 0; i++) {
        const uint64_t counters[] = {one.requests, one.failed,   one.cancelled,
                                     one.running,  one.bytes_in, one.bytes_out};
        bmi_pack_string(reply, one.name);
        bmi_pack_array(reply, counters, sizeof counters / sizeof *counters, sizeof *counters);
    }
    bmi_rpc_reply(request, reply);
}

const struct bmi_rpc_service bmi__builtin_service = {.run = services_run};
