/* SPDX-License-Identifier: BSD-3-Clause
 *
 * request.c - what the program may ask of a request, and how many requests run as tasks.
 */
#include "bmi/rpc/request.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "bmi/base/instance.h"
#include "bmi/rpc/serve.h"
#include "bmi/rpc/services.h"

struct bmi_instance *bmi__request_instance(const struct bmi_rpc_request *request)
{
    return request->exchange.instance;
}

BMI_addr_t bmi_rpc_address(const struct bmi_rpc_request *request)
{
    return request->address;
}

void *bmi_rpc_argument(const struct bmi_rpc_request *request)
{
    return request->service->calls.argument;
}

struct bmi_message *bmi_rpc_arguments(struct bmi_rpc_request *request)
{
    return &request->arguments;
}

void bmi_rpc_set_data(struct bmi_rpc_request *request, void *data)
{
    request->data = data;
}

void *bmi_rpc_data(const struct bmi_rpc_request *request)
{
    return request->data;
}

bool bmi_rpc_is_cancelled(const struct bmi_rpc_request *request)
{
    return atomic_load(&request->is_cancelled);
}

bool bmi_rpc_is_one_way(const struct bmi_rpc_request *request)
{
    return (request->head.flags & RPC_ONE_WAY) != 0;
}

/* ---- tasks ---------------------------------------------------------------------------------- */

/* Tasks that are queued or run: the library does not end before them. */
struct bmi__requests {
    pthread_mutex_t lock;
    pthread_cond_t none;
    int count; /* lock */
};

void bmi__requests_add(struct bmi_instance *instance, int change)
{
    struct bmi__requests *requests = instance->requests;
    pthread_mutex_lock(&requests->lock);
    requests->count += change;
    if (requests->count == 0)
        pthread_cond_broadcast(&requests->none);
    pthread_mutex_unlock(&requests->lock);
}

void bmi__requests_wait(struct bmi_instance *instance)
{
    struct bmi__requests *requests = instance->requests;
    pthread_mutex_lock(&requests->lock);
    while (requests->count > 0)
        pthread_cond_wait(&requests->none, &requests->lock);
    pthread_mutex_unlock(&requests->lock);
}

/* ---- open and close ------------------------------------------------------------------------- */

int bmi__requests_open(struct bmi_instance *instance)
{
    struct bmi__requests *requests = calloc(1, sizeof *requests);
    if (requests == NULL)
        return -ENOMEM;
    pthread_mutex_init(&requests->lock, NULL);
    pthread_cond_init(&requests->none, NULL);
    instance->requests = requests;
    return 0;
}

void bmi__requests_close(struct bmi_instance *instance)
{
    free(instance->requests);
    instance->requests = NULL;
}
