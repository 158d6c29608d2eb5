/* SPDX-License-Identifier: BSD-3-Clause
 *
 * forward.c - bmi_rpc_forward: a request becomes a call to another server, whose reply, or error,
 * becomes the request's.
 *
 * The call sends the arguments from the memory in which they lie, which stays until the request
 * has ended. The reply is received to memory of the message that is sent on. The poller alone
 * posts the call, cancels it, and ends the request: none of these can overtake another. The request
 * owns the forward.
 */
#include <errno.h>
#include <stdlib.h>

#include "bmi/api/api.h"
#include "bmi/base/error.h"
#include "bmi/base/instance.h"
#include "bmi/protocol/cancel.h"
#include "bmi/rpc/call.h"
#include "bmi/rpc/serve.h"
#include "bmi/state/context.h"
#include "bmi/state/library.h"

struct forward {
    struct forwarding forwarding; /* first */
    struct bmi_deferred work;     /* posts the call; when that is over, ends the request */
    struct bmi_rpc_request *request;
    struct call *call; /* not posted yet */
    BMI_addr_t server;
    bmi_op_id_t id;            /* posted */
    struct bmi_message *reply; /* to be sent on */
    int error;                 /* of the call */
    bool over;                 /* the call is */
};

static struct forward *forward_of_work(struct bmi_deferred *work)
{
    return (struct forward *)((char *)work - offsetof(struct forward, work));
}

/* Takes the whole reply, of any pieces. */
static int forward_unpack(struct bmi_message *reply, void *argument)
{
    struct forward *forward = argument;
    forward->reply = bmi__message_take(reply);
    return forward->reply != NULL ? 0 : -BMI_ENOMEM;
}

static void call_over_locked(struct peer *peer, struct op *op)
{
    struct forward *forward = op->user_ptr;
    (void)peer;
    forward->error = op->error;
    forward->over = true;
    bmi__op_give(op);
    bmi_method_defer(peer->instance, &forward->work);
}

struct bmi__forwards {
    struct context context; /* of these calls */
};

static void forward_end(struct forward *forward, int status)
{
    struct bmi_message *reply = forward->reply;
    forward->reply = NULL;
    bmi__request_forwarded(forward->request, status, reply);
}

static void call_post(struct forward *forward)
{
    struct bmi__forwards *forwards = bmi__request_instance(forward->request)->forwards;
    struct post post = {.kind = OP_EXCHANGE,
                        .address = forward->server,
                        .buffer = forward->call,
                        .user_ptr = forward,
                        .internal = &forwards->context};
    bool cancelled = !bmi__running(bmi__request_instance(forward->request)) ||
                     bmi_rpc_is_cancelled(forward->request);
    int status = cancelled ? BMI__CANCELLED : bmi__post(&post, &forward->id);
    if (status >= 0) {
        forward->call = NULL;
        return;
    }
    forward->error = status;
    forward_end(forward, status);
}

static void forward_work(struct bmi_deferred *work)
{
    struct forward *forward = forward_of_work(work);
    if (forward->over)
        forward_end(forward, forward->error);
    else
        call_post(forward);
}

/* A call that is not posted yet will not be. */
static void forward_cancel(struct forwarding *forwarding)
{
    const struct forward *forward = (struct forward *)forwarding;
    struct op *op = forward->id != 0 ? bmi__op_find(forward->id) : NULL;
    if (op != NULL)
        bmi__cancel(op, forward->id);
}

static void forward_release(struct forwarding *forwarding)
{
    struct forward *forward = (struct forward *)forwarding;
    if (forward->call != NULL)
        bmi__call_refused(forward->call, forward->error != 0 ? forward->error : BMI__CANCELLED);
    bmi_message_free(forward->reply);
    free(forward);
}

static int forward_make(struct bmi_rpc_request *request, BMI_addr_t server, const char *service,
                        const struct bmi_rpc_options *options, struct forward **result)
{
    struct bmi_rpc_options call = options != NULL ? *options : (struct bmi_rpc_options){0};
    struct forward *forward = calloc(1, sizeof *forward);
    struct bmi_message *arguments = bmi__message_again(bmi_rpc_arguments(request));
    int status = forward != NULL && arguments != NULL ? 0 : -BMI_ENOMEM;
    call.one_way = bmi_rpc_is_one_way(request);
    if (status == 0)
        status = bmi__call_make(bmi__request_instance(request), service, arguments, forward_unpack,
                                forward, &call, &forward->call);
    if (status < 0) {
        bmi_message_free(arguments);
        free(forward);
        return status;
    }
    forward->forwarding.cancel = forward_cancel;
    forward->forwarding.release = forward_release;
    forward->work.run = forward_work;
    forward->request = request;
    forward->server = server;
    *result = forward;
    return 0;
}

int bmi_rpc_forward(struct bmi_rpc_request *request, BMI_addr_t server, const char *service,
                    const struct bmi_rpc_options *options)
{
    struct forward *forward;
    if (request == NULL || !bmi__running(bmi__request_instance(request)))
        return -BMI_EINVAL;
    int status = forward_make(request, server, service, options, &forward);
    if (status < 0)
        return status;
    status = bmi__request_forward(request, &forward->forwarding);
    if (status < 0)
        forward_release(&forward->forwarding);
    else
        bmi_method_defer(bmi__request_instance(request), &forward->work);
    return status;
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__forwards_open(struct bmi_instance *instance)
{
    struct bmi__forwards *forwards = calloc(1, sizeof *forwards);
    if (forwards == NULL)
        return -ENOMEM;
    forwards->context.instance = instance;
    forwards->context.direct = call_over_locked;
    instance->forwards = forwards;
    return 0;
}

void bmi__forwards_close(struct bmi_instance *instance)
{
    free(instance->forwards);
    instance->forwards = NULL;
}
