/* SPDX-License-Identifier: BSD-3-Clause
 *
 * serve.h - requests that are served.
 */
#ifndef BMI_RPC_SERVE_H
#define BMI_RPC_SERVE_H

#include "bmi/rpc/exchange.h"

struct bmi_instance;

/* struct bmi__upcalls: a message of SPACE_REQUEST. Returns whether the buffer is the callee's. */
bool bmi__request_arrived_locked(struct peer *peer, int32_t number, void *buffer, bmi_size_t size);
/* The same: a CANCEL. */
void bmi__request_cancelled_locked(struct peer *peer, int32_t number, uint8_t flags);

/* How a request is forwarded: functions that the poller calls without a lock. */
struct forwarding {
    /* The request's caller has cancelled it, or has gone: the forwarding ends soon. */
    void (*cancel)(struct forwarding *forwarding);
    /* The request is over. */
    void (*release)(struct forwarding *forwarding);
};

/* From now on bmi__request_forwarded ends the request, and the structure is the request's.
 * -BMI_EINVAL: the request has ended, or does not run. */
int bmi__request_forward(struct bmi_rpc_request *request, struct forwarding *forwarding);
/* Ends it with an errno, a BMI error, or this reply, which it takes. Poller, no lock. */
void bmi__request_forwarded(struct bmi_rpc_request *request, int status, struct bmi_message *reply);

struct bmi_instance *bmi__request_instance(const struct bmi_rpc_request *request);
/* Waits until no `run` is queued or under way in the blocking pool. */
void bmi__requests_wait(struct bmi_instance *instance);

int bmi__requests_open(struct bmi_instance *instance);
void bmi__requests_close(struct bmi_instance *instance);

#endif
