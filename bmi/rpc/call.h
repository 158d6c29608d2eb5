/* SPDX-License-Identifier: BSD-3-Clause
 *
 * call.h - calls, for bmi_rpc_call.
 */
#ifndef BMI_RPC_CALL_H
#define BMI_RPC_CALL_H

#include "bmi/rpc/exchange.h"

struct bmi_instance;
struct call;

/* Makes a call of these arguments, closes the request, and takes it. Returns 0 or a BMI error. */
int bmi__call_make(struct bmi_instance *instance, const char *service, struct bmi_message *request,
                   bmi_rpc_unpack unpack, void *argument, const struct bmi_rpc_options *options,
                   struct call **call);
/* Frees a call whose post was refused with that status. */
void bmi__call_refused(struct call *call, int status);

/* struct bmi__upcalls: the server has withdrawn messages of the reply. */
void bmi__reply_withdrawn_locked(struct peer *peer, int32_t number, uint8_t flags);

/* Before the first call. Negative: an errno. */
int bmi__calls_open(struct bmi_instance *instance);
/* Frees the memory of calls that is kept. */
void bmi__calls_close(struct bmi_instance *instance);

#endif
