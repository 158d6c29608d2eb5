/* SPDX-License-Identifier: BSD-3-Clause
 *
 * services.h - the table of services, by name. A lock of its own, innermost.
 */
#ifndef BMI_RPC_SERVICES_H
#define BMI_RPC_SERVICES_H

#include <stdatomic.h>

#include "bmi/rpc.h"

struct bmi_instance;

struct service {
    struct service *next; /* table */
    struct bmi_rpc_service calls;
    unsigned users; /* the table, and requests; lock */
    _Atomic uint64_t requests, failed, cancelled, running, bytes_in, bytes_out;
    char name[BMI_RPC_NAME_MAX];
};

/* The service "bmi.services" (builtin.c): offered from the first registration on. */
#define BUILTIN_NAME "bmi.services"
extern const struct bmi_rpc_service bmi__builtin_service;

/* The service of that name, with a reference; NULL: none. Any thread. */
struct service *bmi__service_get(struct bmi_instance *instance, const char *name);
void bmi__service_put(struct bmi_instance *instance, struct service *service);
/* Forgets all. No request is left. */
void bmi__services_stop(struct bmi_instance *instance);
int bmi__services_open(struct bmi_instance *instance);
void bmi__services_close(struct bmi_instance *instance);

#endif
