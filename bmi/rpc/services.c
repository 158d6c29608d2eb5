/* SPDX-License-Identifier: BSD-3-Clause
 *
 * services.c - see services.h.
 */
#include "bmi/rpc/services.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bmi/state/library.h"
#include "bmi/task.h"

enum { BUCKETS = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct service *buckets[BUCKETS]; /* lock */
static bool pool_started;                /* lock */

/* FNV-1a. */
static struct service **bucket_of(const char *name)
{
    uint32_t hash = 2166136261u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return &buckets[hash % BUCKETS];
}

static struct service **place_locked(const char *name)
{
    struct service **place = bucket_of(name);
    while (*place != NULL && strcmp((*place)->name, name) != 0)
        place = &(*place)->next;
    return place;
}

struct service *bmi__service_get(const char *name)
{
    pthread_mutex_lock(&lock);
    struct service *service = *place_locked(name);
    if (service != NULL)
        service->users++;
    pthread_mutex_unlock(&lock);
    return service;
}

void bmi__service_put(struct service *service)
{
    pthread_mutex_lock(&lock);
    bool last = --service->users == 0;
    pthread_mutex_unlock(&lock);
    if (!last)
        return;
    if (service->calls.withdrawn != NULL)
        service->calls.withdrawn(service->calls.argument);
    free(service);
}

/* Starts the pool once. Not within `lock`: it may wait for a thread that takes that. */
static int pool_start(void)
{
    int status = bmi_task_manager_start(NULL, BMI_TASK_HOOKS_ONLY);
    if (status < 0)
        return status;
    pthread_mutex_lock(&lock);
    bool again = pool_started;
    pool_started = true;
    pthread_mutex_unlock(&lock);
    if (again)
        bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
    return 0;
}

static int service_add(const char *name, const struct bmi_rpc_service *calls)
{
    if (name == NULL || name[0] == '\0' || calls == NULL || calls->run == NULL ||
        (calls->options & ~(unsigned)BMI_RPC_BLOCKING) != 0 || calls->timeout_ms < 0)
        return -BMI_EINVAL;
    if (strnlen(name, BMI_RPC_NAME_MAX) == BMI_RPC_NAME_MAX)
        return -BMI_ENAMETOOLONG;
    struct service *service = calloc(1, sizeof *service);
    if (service == NULL)
        return -BMI_ENOMEM;
    int status = calls->options & BMI_RPC_BLOCKING ? pool_start() : 0;
    service->calls = *calls;
    service->users = 1;
    strcpy(service->name, name);
    pthread_mutex_lock(&lock);
    struct service **place = place_locked(name);
    if (status == 0 && *place != NULL)
        status = -BMI_EEXIST;
    if (status == 0)
        *place = service;
    pthread_mutex_unlock(&lock);
    if (status < 0)
        free(service);
    return status;
}

int bmi_rpc_register(const char *name, const struct bmi_rpc_service *calls)
{
    if (!bmi__running())
        return -BMI_EINVAL;
    int status = service_add(BUILTIN_NAME, &bmi__builtin_service);
    return status == 0 || status == -BMI_EEXIST ? service_add(name, calls) : status;
}

int bmi_rpc_unregister(const char *name)
{
    if (name == NULL || !bmi__running())
        return -BMI_EINVAL;
    pthread_mutex_lock(&lock);
    struct service **place = place_locked(name), *service = *place;
    if (service != NULL)
        *place = service->next;
    pthread_mutex_unlock(&lock);
    if (service != NULL)
        bmi__service_put(service);
    return service != NULL ? 0 : -BMI_ENOENT;
}

static struct service *at_locked(int index)
{
    for (int i = 0; i < BUCKETS; i++)
        for (struct service *service = buckets[i]; service != NULL; service = service->next)
            if (index-- == 0)
                return service;
    return NULL;
}

int bmi_rpc_service_next(int index, struct bmi_rpc_statistics *statistics)
{
    if (index < 0 || statistics == NULL || !bmi__running())
        return -BMI_EINVAL;
    pthread_mutex_lock(&lock);
    const struct service *service = at_locked(index);
    if (service != NULL) {
        *statistics = (struct bmi_rpc_statistics){.requests = atomic_load(&service->requests),
                                                  .failed = atomic_load(&service->failed),
                                                  .cancelled = atomic_load(&service->cancelled),
                                                  .running = atomic_load(&service->running),
                                                  .bytes_in = atomic_load(&service->bytes_in),
                                                  .bytes_out = atomic_load(&service->bytes_out)};
        strcpy(statistics->name, service->name);
    }
    pthread_mutex_unlock(&lock);
    return service != NULL ? 0 : -BMI_ENOENT;
}

void bmi__services_stop(void)
{
    for (int i = 0; i < BUCKETS; i++)
        while (buckets[i] != NULL) {
            struct service *service = buckets[i];
            buckets[i] = service->next;
            bmi__service_put(service);
        }
    if (pool_started)
        bmi_task_manager_stop(NULL, BMI_TASK_HOOKS_ONLY);
    pool_started = false;
}
