/* SPDX-License-Identifier: BSD-3-Clause
 *
 * serve.h - requests that are served.
 */
#ifndef BMI_RPC_SERVE_H
#define BMI_RPC_SERVE_H

#include "bmi/rpc/exchange.h"

/* struct bmi__upcalls: a message of SPACE_REQUEST. Returns whether the buffer is the callee's. */
bool bmi__request_arrived_locked(struct peer *peer, int32_t number, void *buffer, bmi_size_t size);
/* Waits until no `run` is queued or under way in the blocking pool. */
void bmi__requests_wait(void);

#endif
