/* SPDX-License-Identifier: BSD-3-Clause
 *
 * services.c - see services.h.
 */
#include "bmi/rpc/services.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/base/instance.h"
#include "bmi/instance.h"
#include "bmi/state/library.h"
#include "bmi/task.h"

enum { BUCKETS = 256 };

struct bmi__services {
    pthread_mutex_t lock;
    struct service *buckets[BUCKETS]; /* lock */
    bool pool_started;                /* lock */
};

/* FNV-1a. */
static struct service **bucket_of(struct bmi__services *services, const char *name)
{
    uint32_t hash = 2166136261u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return &services->buckets[hash % BUCKETS];
}

static struct service **place_locked(struct bmi__services *services, const char *name)
{
    struct service **place = bucket_of(services, name);
    while (*place != NULL && strcmp((*place)->name, name) != 0)
        place = &(*place)->next;
    return place;
}

struct service *bmi__service_get(struct bmi_instance *instance, const char *name)
{
    struct bmi__services *services = instance->services;
    pthread_mutex_lock(&services->lock);
    struct service *service = *place_locked(services, name);
    if (service != NULL)
        service->users++;
    pthread_mutex_unlock(&services->lock);
    return service;
}

void bmi__service_put(struct bmi_instance *instance, struct service *service)
{
    struct bmi__services *services = instance->services;
    pthread_mutex_lock(&services->lock);
    bool last = --service->users == 0;
    pthread_mutex_unlock(&services->lock);
    if (!last)
        return;
    if (service->calls.withdrawn != NULL)
        service->calls.withdrawn(service->calls.argument);
    free(service);
}

/* Starts the pool once. Not within `lock`: it may wait for a thread that takes that. */
static int pool_start(struct bmi__services *services)
{
    int status = bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY);
    if (status < 0)
        return status;
    pthread_mutex_lock(&services->lock);
    bool again = services->pool_started;
    services->pool_started = true;
    pthread_mutex_unlock(&services->lock);
    if (again)
        bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
    return 0;
}

static int service_add(struct bmi__services *services, const char *name,
                       const struct bmi_rpc_service *calls)
{
    if (name == NULL || name[0] == '\0' || calls == NULL || calls->run == NULL ||
        (calls->options & ~(unsigned)BMI_RPC_BLOCKING) != 0 || calls->timeout_ms < 0)
        return -BMI_EINVAL;
    if (strnlen(name, BMI_RPC_NAME_MAX) == BMI_RPC_NAME_MAX)
        return -BMI_ENAMETOOLONG;
    struct service *service = calloc(1, sizeof *service);
    if (service == NULL)
        return -BMI_ENOMEM;
    int status = calls->options & BMI_RPC_BLOCKING ? pool_start(services) : 0;
    service->calls = *calls;
    service->users = 1;
    strcpy(service->name, name);
    pthread_mutex_lock(&services->lock);
    struct service **place = place_locked(services, name);
    if (status == 0 && *place != NULL)
        status = -BMI_EEXIST;
    if (status == 0)
        *place = service;
    pthread_mutex_unlock(&services->lock);
    if (status < 0)
        free(service);
    return status;
}

int bmi_instance_rpc_register(struct bmi_instance *instance, const char *name,
                              const struct bmi_rpc_service *calls)
{
    if (instance == NULL || !bmi__running(instance))
        return -BMI_EINVAL;
    struct bmi__services *services = instance->services;
    int status = service_add(services, BUILTIN_NAME, &bmi__builtin_service);
    return status == 0 || status == -BMI_EEXIST ? service_add(services, name, calls) : status;
}

int bmi_rpc_register(const char *name, const struct bmi_rpc_service *calls)
{
    return bmi_instance_rpc_register(&bmi__default, name, calls);
}

int bmi_instance_rpc_unregister(struct bmi_instance *instance, const char *name)
{
    if (name == NULL || instance == NULL || !bmi__running(instance))
        return -BMI_EINVAL;
    struct bmi__services *services = instance->services;
    pthread_mutex_lock(&services->lock);
    struct service **place = place_locked(services, name), *service = *place;
    if (service != NULL)
        *place = service->next;
    pthread_mutex_unlock(&services->lock);
    if (service != NULL)
        bmi__service_put(instance, service);
    return service != NULL ? 0 : -BMI_ENOENT;
}

int bmi_rpc_unregister(const char *name)
{
    return bmi_instance_rpc_unregister(&bmi__default, name);
}

static struct service *at_locked(struct bmi__services *services, int index)
{
    for (int i = 0; i < BUCKETS; i++)
        for (struct service *service = services->buckets[i]; service != NULL;
             service = service->next)
            if (index-- == 0)
                return service;
    return NULL;
}

int bmi_instance_rpc_service_next(struct bmi_instance *instance, int index,
                                  struct bmi_rpc_statistics *statistics)
{
    if (index < 0 || statistics == NULL || instance == NULL || !bmi__running(instance))
        return -BMI_EINVAL;
    struct bmi__services *services = instance->services;
    pthread_mutex_lock(&services->lock);
    const struct service *service = at_locked(services, index);
    if (service != NULL) {
        *statistics = (struct bmi_rpc_statistics){.requests = atomic_load(&service->requests),
                                                  .failed = atomic_load(&service->failed),
                                                  .cancelled = atomic_load(&service->cancelled),
                                                  .running = atomic_load(&service->running),
                                                  .bytes_in = atomic_load(&service->bytes_in),
                                                  .bytes_out = atomic_load(&service->bytes_out)};
        strcpy(statistics->name, service->name);
    }
    pthread_mutex_unlock(&services->lock);
    return service != NULL ? 0 : -BMI_ENOENT;
}

int bmi_rpc_service_next(int index, struct bmi_rpc_statistics *statistics)
{
    return bmi_instance_rpc_service_next(&bmi__default, index, statistics);
}

void bmi__services_stop(struct bmi_instance *instance)
{
    struct bmi__services *services = instance->services;
    for (int i = 0; i < BUCKETS; i++)
        while (services->buckets[i] != NULL) {
            struct service *service = services->buckets[i];
            services->buckets[i] = service->next;
            bmi__service_put(instance, service);
        }
    if (services->pool_started)
        bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
    services->pool_started = false;
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__services_open(struct bmi_instance *instance)
{
    struct bmi__services *services = calloc(1, sizeof *services);
    if (services == NULL)
        return -ENOMEM;
    pthread_mutex_init(&services->lock, NULL);
    instance->services = services;
    return 0;
}

void bmi__services_close(struct bmi_instance *instance)
{
    free(instance->services);
    instance->services = NULL;
}
