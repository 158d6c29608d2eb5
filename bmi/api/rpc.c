/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc.c - bmi_rpc_call.
 */
#include "bmi/rpc.h"

#include "bmi/api/api.h"
#include "bmi/base/instance.h"
#include "bmi/rpc/call.h"
#include "bmi/rpc/head.h"
#include "bmi/state/library.h"

int bmi_rpc_call(bmi_op_id_t *id, BMI_addr_t server, const char *service,
                 struct bmi_message *request, bmi_rpc_unpack unpack, void *unpack_argument,
                 const struct bmi_rpc_options *options, void *user_ptr, bmi_context_id context_id)
{
    struct call *call = NULL;
    const struct context *context = running_context(context_id);
    int status = id != NULL && context != NULL ? 0 : -BMI_EINVAL;
    if (id != NULL)
        *id = 0;
    if (status == 0)
        status = bmi__call_make(context->instance, service, request, unpack, unpack_argument,
                                options, &call);
    if (status < 0) {
        bmi_message_free(request);
        return status;
    }
    struct post post = {.kind = OP_EXCHANGE,
                        .address = server,
                        .buffer = call,
                        .user_ptr = user_ptr,
                        .context = context_id};
    status = bmi__post(&post, id);
    if (status < 0)
        bmi__call_refused(call, status);
    return status;
}

void bmi_rpc_limits(struct bmi_rpc_limits *limits)
{
    if (limits != NULL)
        *limits = (struct bmi_rpc_limits){.express_max = RPC_EXPRESS_MAX,
                                          .message_max = RPC_MESSAGE_MAX - RPC_HEAD_MAX,
                                          .request_express_max = RPC_REQUEST_EXPRESS_MAX};
}
